"""The command line: `python -m examples.reminders [my.ics] [--from 2026-03-27]`."""

from __future__ import annotations

import argparse
import io
import math
import sys
import tempfile
from contextlib import ExitStack
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from rich.console import Console

from .accelerated_clock import AcceleratedClock
from .calendar_file import read_calendar
from .calendar_outline import CalendarError, printable
from .calendar_reminders import week_of
from .ringing_process import RingingProcess
from .sample import SAMPLE, SAMPLE_FIRST_DAY
from .supervisor import Supervisor
from .tally import Tally
from .timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .calendar_reminders import ReminderWeek

EXIT_LOST = 1
EXIT_BAD_INPUT = 2  # what argparse exits with, too
EXIT_INTERRUPTED = 130  # what shells report for Ctrl-C

_READING_SECONDS = 10.0
# For the process to start and to enrol, so that the first reminders are not late already.
_LEAD_SECONDS = 2.0


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; a wrong one ends the program with exit code 2."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.reminders",
        description="Rings the reminders of seven days of a calendar within seconds, through a"
        " kill, and counts what was lost.",
    )
    parser.add_argument(
        "calendar", nargs="?", type=Path, help="an .ics file (default: the sample that ships)"
    )
    parser.add_argument(
        "--from",
        dest="first_day",
        type=_day,
        metavar="YYYY-MM-DD",
        help=f"the first of the seven days (default: today; {SAMPLE_FIRST_DAY} for the sample)",
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=14.0,
        help="how long the seven days take (default: %(default)g)",
    )
    parser.add_argument(
        "--directory",
        type=_new_directory,
        help="an empty or new directory in which the database and the log are kept"
        " (default: a temporary one)",
    )
    return parser.parse_args(arguments)


def _day(text: str) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date such as 2026-03-27") from None
    if not 1970 <= day.year <= 2200:
        raise argparse.ArgumentTypeError(f"{text} is not between the years 1970 and 2200")
    return day


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 1 <= seconds <= 30:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 30")
    return seconds


def _new_directory(text: str) -> Path:
    path = Path(text)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise argparse.ArgumentTypeError(f"{text!r} exists and is not an empty directory")
    return path


async def read_week(path: Path, first_day: date | None) -> ReminderWeek:
    """Read the calendar and compute its week, from today on if no day is given.

    Raises:
        CalendarError: It is malformed, or its recurrences are too many to compute in time.
    """

    def read() -> ReminderWeek:
        calendar = read_calendar(path)
        return week_of(calendar, first_day or datetime.now(calendar.home).date())

    with trio.move_on_after(_READING_SECONDS):
        return await trio.to_thread.run_sync(read, abandon_on_cancel=True)
    raise CalendarError(
        f"its recurrences cannot be computed within {_READING_SECONDS:g} seconds;"
        " does something recur every second?"
    )


async def run_demo(
    path: Path, first_day: date | None, seconds: float, directory: Path, console: Console
) -> int:
    """Ring the week of the calendar at `path`; returns the exit code."""
    timeline = Timeline(console)
    begun = trio.current_time()
    week = await read_week(path, first_day)
    tally = Tally(week.reminders)
    if not week.reminders:
        timeline.nothing_to_ring(week)
    else:
        timeline.begins(week, seconds)
        await trio.Path(directory).mkdir(exist_ok=True)
        # The process reads the calendar too before it can enrol.
        lead = _LEAD_SECONDS + 2 * (trio.current_time() - begun)
        acceleration = math.ceil((week.span.end - week.span.start).total_seconds() / seconds)
        clock = AcceleratedClock.starting_at(
            week.span.start - timedelta(seconds=lead * acceleration), acceleration
        )
        process = RingingProcess(path, week.first_day, clock, directory)
        await Supervisor(process, tally, timeline).ring_through_a_kill()
    timeline.ends(tally)
    return EXIT_LOST if tally.lost or tally.unexpected else 0


def _replace_what_cannot_be_encoded(stream: object) -> None:
    """A title may hold characters that the terminal's encoding lacks."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = parse_arguments(arguments)
    is_sample = options.calendar is None or (
        options.calendar.exists() and options.calendar.samefile(SAMPLE)
    )
    path: Path = SAMPLE if options.calendar is None else options.calendar
    first_day = options.first_day or (SAMPLE_FIRST_DAY if is_sample else None)
    _replace_what_cannot_be_encoded(sys.stdout)
    with ExitStack() as stack:
        directory = options.directory or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="trio-alarms-reminders-"))
        )
        try:
            return trio.run(run_demo, path, first_day, options.seconds, directory, Console())
        except CalendarError as error:
            print(f"error: {printable(str(path))}: {error}", file=sys.stderr)
            return EXIT_BAD_INPUT
        except KeyboardInterrupt:
            print("interrupted; the ringing process has been killed", file=sys.stderr)
            return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
