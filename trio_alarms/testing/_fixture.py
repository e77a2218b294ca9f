"""What the fixture `alarm_harness` gives: harnesses that all end with the test."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from .._nursery import BodyNursery
from ._harness import AlarmHarness, open_test_host

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


@asynccontextmanager
async def harness_factory() -> AsyncIterator[Callable[..., Awaitable[AlarmHarness]]]:
    """A function that opens harnesses; all of them are closed when the block is left.

    Each lives in a task of its own: the test's task and its fixture's are not the same, and a
    nursery must be left by the task that opened it.
    """
    leave = trio.Event()
    async with BodyNursery(unwrap=True) as nursery:

        async def open_harness(**options: Any) -> AlarmHarness:
            harness: AlarmHarness = await nursery.start(_hold_open, options, leave)
            return harness

        yield open_harness
        leave.set()


async def _hold_open(
    options: dict[str, Any],
    leave: trio.Event,
    *,
    task_status: trio.TaskStatus[AlarmHarness],
) -> None:
    async with open_test_host(**options) as harness:
        task_status.started(harness)
        await leave.wait()
