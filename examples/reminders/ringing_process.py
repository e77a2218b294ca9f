"""The process that rings, and that the demo kills: `python -m examples.reminders.ringing_process`.

It is given all it needs on its command line, so that starting it again is starting it anew.
"""

from __future__ import annotations

import argparse
import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from .accelerated_clock import AcceleratedClock
from .calendar_file import read_calendar
from .calendar_reminders import week_of
from .ring_log import open_ring_log
from .ringing_service import serve

if TYPE_CHECKING:
    from collections.abc import Sequence

_PROJECT_ROOT = Path(__file__).resolve().parents[2]
# It ends by itself after this, so that it does not outlive a demo that was killed itself.
_LONGEST_LIFE_SECONDS = 120


@attrs.frozen
class RingingProcess:
    """What the process is to do: which calendar, from which day, on which clock, and where."""

    calendar: Path
    first_day: date
    clock: AcceleratedClock
    directory: Path
    until_all_have_rung: bool = False

    @property
    def database(self) -> Path:
        """The database with the alarms and the mark."""
        return self.directory / "reminders.db"

    @property
    def log(self) -> Path:
        """The log of what rang."""
        return self.directory / "rings.log"

    def command(self) -> list[str]:
        """The command line that starts it from the root of the project."""
        options = ["--until-all-have-rung"] if self.until_all_have_rung else []
        return [
            *(sys.executable, "-m", "examples.reminders.ringing_process"),
            *(str(self.calendar.resolve()), self.first_day.isoformat()),
            *(self.clock.to_text(), str(self.directory.resolve())),
            *options,
        ]

    async def start(self) -> trio.Process:
        """Start it; whoever starts it must wait for it or kill it.

        It has a session of its own, so that Ctrl-C reaches only the one who started it.
        """
        return await trio.lowlevel.open_process(
            self.command(), cwd=_PROJECT_ROOT, start_new_session=True
        )


def parse_command(arguments: Sequence[str]) -> RingingProcess:
    """The process that `RingingProcess.command` describes."""
    parser = argparse.ArgumentParser(prog="examples.reminders.ringing_process")
    parser.add_argument("calendar", type=Path)
    parser.add_argument("first_day", type=date.fromisoformat)
    parser.add_argument("clock", type=AcceleratedClock.from_text)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--until-all-have-rung", action="store_true")
    return RingingProcess(**vars(parser.parse_args(arguments)))


async def run(process: RingingProcess) -> None:
    """Read the calendar, then serve its reminders."""
    week = week_of(read_calendar(process.calendar), process.first_day)
    with open_ring_log(process.log) as log, trio.move_on_after(_LONGEST_LIFE_SECONDS):
        await serve(
            process.database,
            process.clock,
            log,
            week,
            until_all_have_rung=process.until_all_have_rung,
        )


if __name__ == "__main__":
    trio.run(run, parse_command(sys.argv[1:]))
