"""The clocks that alarms go by: the system's wall clock, and one driven by Trio's."""

from __future__ import annotations

import math
import sys
import time
from datetime import UTC, datetime
from typing import Final, Protocol, runtime_checkable

import attrs
import trio

from ._errors import InvalidScheduleConfigurationError
from ._time import Duration, duration_to_ms, instant_to_us


@runtime_checkable
class AlarmClock(Protocol):
    """What tells a host the time and sleeps until a deadline."""

    def now_ms(self) -> int:
        """Return the time in whole milliseconds since the Unix epoch, rounded down."""
        ...

    async def sleep_until_ms(self, deadline: int) -> None:
        """Sleep until `now_ms()` is at least `deadline`, and never return earlier.

        Always a checkpoint. Cancellation ends the sleep at once.

        Args:
            deadline: Milliseconds since the Unix epoch.
        """
        ...


# What is left of a sleep for a thread that sleeps to the microsecond: what the loop's may be late.
_LAST_STRETCH_NS: Final = 1_500_000


def _check_interval(value: Duration) -> float:
    return (
        duration_to_ms(
            value,
            parameter="check_interval",
            error=InvalidScheduleConfigurationError,
            minimum_ms=1,
        )
        / 1000
    )


@attrs.frozen
class SystemClock:
    """The system's wall clock.

    While it sleeps it reads the wall clock again at least every `check_interval`, so that a
    clock step or a resume from suspend is noticed by then.

    Args:
        check_interval: A positive `Duration` (seconds when a number); kept as float seconds.

    Raises:
        InvalidScheduleConfigurationError: `check_interval` is no positive duration.
    """

    check_interval: float = attrs.field(default=30.0, converter=_check_interval)

    def now_ms(self) -> int:
        """Return the time in whole milliseconds since the Unix epoch, rounded down."""
        return time.time_ns() // 1_000_000

    async def sleep_until_ms(self, deadline: int) -> None:
        """Sleep until the wall clock shows `deadline`, and never return earlier.

        Always a checkpoint. Cancellation ends the sleep at once.

        Args:
            deadline: Milliseconds since the Unix epoch.
        """
        await trio.lowlevel.checkpoint()
        # Not in whole milliseconds, of which the one that has begun would be slept through twice.
        while (remaining_ns := deadline * 1_000_000 - time.time_ns()) > 0:
            # A MockClock would jump while a thread sleeps.
            last_stretch_ns = 0 if runs_on_mock_clock() else _LAST_STRETCH_NS
            if remaining_ns > last_stretch_ns:
                seconds = (remaining_ns - last_stretch_ns) / 1_000_000_000
                await trio.sleep(min(seconds, self.check_interval))
            else:
                await _sleep_in_thread(remaining_ns / 1_000_000_000)


async def _sleep_in_thread(seconds: float) -> None:
    """Sleep more exactly than Trio's loop, which waits for whole milliseconds, rounded up."""
    await trio.to_thread.run_sync(
        time.sleep,
        seconds,
        abandon_on_cancel=True,
        # Past the limiter of the threads that the application may have all in use.
        limiter=trio.CapacityLimiter(1),
    )


def _epoch_us(clock: TrioClock) -> int:
    return instant_to_us(clock.epoch, parameter="epoch", error=InvalidScheduleConfigurationError)


@attrs.frozen
class TrioClock:
    """`epoch` plus `trio.current_time()`, so that a `MockClock` drives every deadline.

    Made for tests: under Trio's own clock, zero is an arbitrary moment of each run.

    Args:
        epoch: The aware datetime at which Trio's clock shows zero.

    Raises:
        InvalidScheduleConfigurationError: `epoch` is no aware datetime.
    """

    epoch: datetime = datetime(2000, 1, 1, tzinfo=UTC)
    _epoch_us: int = attrs.field(
        default=attrs.Factory(_epoch_us, takes_self=True), init=False, repr=False, eq=False
    )

    def now_ms(self) -> int:
        """Return the time in whole milliseconds since the Unix epoch, rounded down.

        Raises:
            RuntimeError: It is called outside of Trio.
        """
        return self._ms_at(trio.current_time())

    async def sleep_until_ms(self, deadline: int) -> None:
        """Sleep until Trio's clock has brought `deadline`, in one piece, and not a bit less.

        Always a checkpoint. Cancellation ends the sleep at once.

        Args:
            deadline: Milliseconds since the Unix epoch.
        """
        wake_time = (deadline * 1000 - self._epoch_us) / 1_000_000
        # The float nearest to a far deadline may lie before it, and a MockClock jumps exactly
        # there: without this the sleep would end early.
        while self._ms_at(wake_time) < deadline:
            wake_time = math.nextafter(wake_time, math.inf)
        await trio.sleep_until(wake_time)

    def _ms_at(self, trio_time: float) -> int:
        numerator, denominator = trio_time.as_integer_ratio()
        elapsed_us = (2_000_000 * numerator + denominator) // (2 * denominator)
        return (self._epoch_us + elapsed_us) // 1000


def runs_on_mock_clock() -> bool:
    """Return whether the running Trio clock is a `trio.testing.MockClock`.

    Raises:
        RuntimeError: It is called outside of Trio.
    """
    clock = trio.lowlevel.current_clock()
    # Nobody has a MockClock without having imported trio.testing, which production never does.
    testing = sys.modules.get("trio.testing")
    return testing is not None and isinstance(clock, testing.MockClock)


def default_clock() -> AlarmClock:
    """Return the clock of a host that was given none: a `TrioClock` under a `MockClock`.

    Raises:
        RuntimeError: It is called outside of Trio.
    """
    return TrioClock() if runs_on_mock_clock() else SystemClock()
