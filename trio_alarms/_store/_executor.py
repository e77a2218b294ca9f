"""Where SQLite runs: in a worker thread, or inline under a clock that jumps.

Both keep the same promise: cancellation is noticed before the function starts and not after, so
that what it returned or raised is what happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    import outcome

T = TypeVar("T")


class Executor(Protocol):
    """Runs one synchronous function at a time."""

    @property
    def busy(self) -> bool:
        """Whether a function runs or waits for its turn, in real time that no clock shows."""
        ...

    async def run(self, function: Callable[[], T]) -> T:
        """Run the function; once it has started, its outcome is the outcome."""
        ...

    async def run_application(self, function: Callable[[], T]) -> T:
        """Run a function of the application's, in which `trio.from_thread` works in a thread."""
        ...


class InlineExecutor:
    """Runs in the event loop's thread, after a checkpoint.

    For tests under a `MockClock`: a clock that jumps whenever every task is blocked would jump
    while a worker thread is busy.
    """

    busy = False

    async def run(self, function: Callable[[], T]) -> T:
        """Run the function here."""
        await trio.lowlevel.checkpoint()
        return function()

    async def run_application(self, function: Callable[[], T]) -> T:
        """Run the function here."""
        return await self.run(function)


class ThreadExecutor:
    """Runs in one worker thread at a time, so that a slow disk never stalls the event loop."""

    def __init__(self) -> None:
        # Invariant: true from before a function is sent until it is back; then it goes from hand
        # to hand while anybody waits.
        self._taken = False
        self._waiting = trio.lowlevel.ParkingLot()

    @property
    def busy(self) -> bool:
        """Whether the worker thread has anything to do."""
        return self._taken

    async def run(self, function: Callable[[], T]) -> T:
        """Run the function in a worker thread.

        By way of `start_thread_soon`, which crosses to the thread and back in half the time of
        `to_thread.run_sync` (70 against 130 µs); that also serves `from_thread` and contexts.
        """
        await self._take()
        try:
            return await _in_thread(function)
        finally:
            self._give_back()

    async def run_application(self, function: Callable[[], T]) -> T:
        """Run a function of the application's in a worker thread."""
        await self._take()
        try:
            # Past the limiter of the threads that may be waiting for this.
            return await trio.to_thread.run_sync(function, limiter=trio.CapacityLimiter(1))
        finally:
            self._give_back()

    async def _take(self) -> None:  # noqa: ASYNC910 - crossing to the thread is the checkpoint
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._taken:
            await self._waiting.park()
        self._taken = True

    def _give_back(self) -> None:
        if self._waiting:
            self._waiting.unpark()
        else:
            self._taken = False


async def _in_thread(function: Callable[[], T]) -> T:
    """Run in a worker thread, whatever is cancelled meanwhile."""
    task = trio.lowlevel.current_task()
    token = trio.lowlevel.current_trio_token()

    def deliver(result: outcome.Outcome[T]) -> None:
        try:
            token.run_sync_soon(trio.lowlevel.reschedule, task, result)
        except trio.RunFinishedError:
            # The run has crashed, and nobody waits any more.
            pass

    # Without a name: setting it takes two calls into the system's library for each function.
    trio.lowlevel.start_thread_soon(function, deliver)
    value: T = await trio.lowlevel.wait_task_rescheduled(_not_cancelled)
    return value


def _not_cancelled(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
