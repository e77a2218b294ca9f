"""The driver: sleeps until the native alarm, delivers, and backs off (R50, R51)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import trio

from ._clock import SystemClock, TrioClock

if TYPE_CHECKING:
    from ._clock import AlarmClock
    from ._episodes import Episodes
    from ._store._native import NativeState

_OTHER_CLOCK_SLICE_SECONDS: Final = 30.0
# How long before a deadline by the wall clock the native alarm is read again, so that at the
# deadline itself nothing is left to do but to deliver.
_READ_AHEAD_MS: Final = 4


class Deliveries(Protocol):
    """What a driver drives."""

    @property
    def clock(self) -> AlarmClock:
        """The host's clock."""
        ...

    def is_closing(self) -> bool:
        """Whether the host starts nothing any more."""
        ...

    async def read_state(self) -> NativeState:
        """The native alarm that is stored, and whether the scheduler owns it."""
        ...

    async def deliver(self, *, managed: bool) -> None:
        """Run a pass, or join the one that is under way."""
        ...

    def report_pass_failure(self, error: Exception) -> None:
        """Tell whoever is to know that a pass failed."""
        ...


class Driver:
    """One task per host that delivers its native alarm.

    Every wake is a hint: target and clock are read again before anything is delivered, by the wall
    clock as the deadline approaches and else once it has come.
    """

    def __init__(self, deliveries: Deliveries, episodes: Episodes) -> None:
        self._deliveries = deliveries
        self._episodes = episodes
        self._sleeping: trio.CancelScope | None = None
        # Invariant: true if the native alarm may have changed since it was last read.
        self._stale = True
        # Invariant: true while a delivery is under way. What fails outside of one has changed
        # nothing, so that the next try would fail at once again.
        self._delivering = False

    def wake(self) -> None:
        """The native alarm has changed, or the host is closing; not a checkpoint."""
        self._stale = True
        if self._sleeping is not None:
            self._sleeping.cancel()

    async def run(self) -> None:  # noqa: ASYNC910 - each step reads the native alarm, which is one
        """Deliver until the host is closing.

        Raises:
            StorageOperationError: The database is corrupt.
        """
        while not self._deliveries.is_closing():
            try:
                await self._step()
            except Exception as error:  # noqa: BLE001 - a failing pass never ends the driver
                if self._deliveries.is_closing():
                    self._deliveries.report_pass_failure(error)
                    break
                await self._after_failure(error)

    async def _step(self) -> None:
        self._stale = False
        self._delivering = False
        state = await self._deliveries.read_state()
        target = state.native_alarm
        clock = self._deliveries.clock
        now = clock.now_ms()
        if target is None or target > now:
            if not isinstance(clock, SystemClock) or target is None:
                await self._sleep_until(target)
                return
            if target - now > _READ_AHEAD_MS:
                await self._sleep_until(target - _READ_AHEAD_MS)
                return
            await self._sleep_until(target)
            if self._stale or clock.now_ms() < target:
                return
        self._delivering = True
        await self._deliveries.deliver(managed=state.managed)
        self._episodes.end()

    async def _sleep_until(self, target: int | None) -> None:
        """Sleep until the target, a wake, or the end of this clock's slice."""
        if self._stale:
            return  # noqa: ASYNC910 - each step reads the native alarm, which is one
        clock = self._deliveries.clock
        with trio.CancelScope() as scope:
            seconds = _slice_seconds(clock)
            if seconds is not None:
                scope.deadline = trio.current_time() + seconds
            self._sleeping = scope
            try:
                if target is None:
                    await trio.sleep_forever()
                else:
                    await clock.sleep_until_ms(target)
            finally:
                self._sleeping = None

    async def _after_failure(self, error: Exception) -> None:  # noqa: ASYNC910 - each step reads the native alarm, which is one
        seconds = self._episodes.seconds_to_wait(error, backs_off=not self._delivering)
        self._deliveries.report_pass_failure(error)
        if seconds:
            await trio.sleep(seconds)


def _slice_seconds(clock: AlarmClock) -> float | None:
    """How long to sleep at most before what is stored is read again; `None`: in one piece."""
    if isinstance(clock, TrioClock):
        return None
    return clock.check_interval if isinstance(clock, SystemClock) else _OTHER_CLOCK_SLICE_SECONDS
