"""A wall clock on which a week passes in seconds, and which a killed process does not stop."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import attrs
import trio

if TYPE_CHECKING:
    from datetime import datetime

_LONGEST_SLEEP_SECONDS = 1.0


@attrs.frozen
class AcceleratedClock:
    """An `AlarmClock` that maps the machine's wall clock to calendar time.

    `real_origin_ns` of the wall clock is `calendar_origin_ms` of the calendar, and from there
    every real second is `acceleration` calendar seconds. The three integers are the whole
    clock: whoever has them reads the same time, so it goes on while nobody runs.
    """

    real_origin_ns: int
    calendar_origin_ms: int
    acceleration: int

    @classmethod
    def starting_at(cls, calendar: datetime, acceleration: int) -> AcceleratedClock:
        """A clock that shows the instant `calendar` now."""
        return cls(time.time_ns(), round(calendar.timestamp() * 1000), acceleration)

    @classmethod
    def from_text(cls, text: str) -> AcceleratedClock:
        """The clock that `to_text` described, in another process or after a kill.

        Raises:
            ValueError: The text is not three integers separated by `/`.
        """
        real_origin_ns, calendar_origin_ms, acceleration = map(int, text.split("/"))
        return cls(real_origin_ns, calendar_origin_ms, acceleration)

    def to_text(self) -> str:
        """The clock as a command-line argument."""
        return f"{self.real_origin_ns}/{self.calendar_origin_ms}/{self.acceleration}"

    def now_ms(self) -> int:
        """Calendar time now, in ms since the epoch."""
        elapsed_ns = time.time_ns() - self.real_origin_ns
        return self.calendar_origin_ms + elapsed_ns * self.acceleration // 1_000_000

    async def sleep_until_ms(self, deadline: int) -> None:
        """Sleep until the calendar shows `deadline` or later; never returns early.

        Always a checkpoint. It re-reads the wall clock every real second, as that may be set.

        Args:
            deadline: Calendar time in ms since the epoch.
        """
        await trio.lowlevel.checkpoint()
        while (seconds := self.real_seconds_until(deadline)) > 0:  # noqa: ASYNC110 - time, no event
            await trio.sleep(min(seconds, _LONGEST_SLEEP_SECONDS))

    def real_seconds_until(self, deadline: int) -> float:
        """Real seconds until the calendar shows `deadline` (ms); negative when it is past."""
        return (deadline - self.now_ms()) / 1000 / self.acceleration
