"""Where SQLite runs: in a worker thread, or inline under a clock that jumps.

Both keep the same promise: cancellation is noticed before the function starts and not after, so
that what it returned or raised is what happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

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


class ThreadExecutor:
    """Runs in one worker thread at a time, so that a slow disk never stalls the event loop."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(1)

    @property
    def busy(self) -> bool:
        """Whether the worker thread has anything to do."""
        return self._limiter.borrowed_tokens > 0

    async def run(self, function: Callable[[], T]) -> T:
        """Run the function in a worker thread."""
        return await trio.to_thread.run_sync(function, limiter=self._limiter)
