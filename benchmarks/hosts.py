"""The service that is measured, and hosts that run it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal, TypeAlias

import trio

from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmHost,
    AlarmService,
    DispatchOptions,
    StorageOptions,
    open_host,
)

Handler: TypeAlias = Callable[[AlarmDue[str]], Awaitable[None]]
Executor: TypeAlias = Literal["thread", "inline"]

_ANY_ALARM = "SELECT 1 FROM trio_alarms_alarms WHERE wake_at <= ? LIMIT 1"
_POLL_SECONDS = 0.0005


class Chores(AlarmService, key="benchmark/chores"):
    """What a service has: an alarm that is acknowledged by itself, and one that is not."""

    once = Alarm(str)
    by_hand = Alarm(str, lifecycle="manual")


async def do_nothing(event: AlarmDue[str]) -> None:
    """Handle at once, as a no-op job does."""


def open_chores(
    path: Path,
    *,
    once: Handler = do_nothing,
    by_hand: Handler = do_nothing,
    concurrency: int = 1,
    executor: Executor = "thread",
) -> AbstractAsyncContextManager[AlarmHost]:
    """Open a host that runs the service, durably, as its users do."""
    registration = Chores.handlers(
        Chores.once.handled_by(once),
        Chores.by_hand.handled_by(by_hand),
        options=DispatchOptions(concurrency=concurrency),
    )
    storage = StorageOptions(executor=executor, synchronous="full")
    return open_host(path, alarms=registration, storage=storage)


class Countdown:
    """Counts handlers that ran, and tells when all have."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._over = trio.Event()

    def tick(self) -> None:
        """One more has run."""
        self._left -= 1
        if self._left == 0:
            self._over.set()

    async def wait(self) -> None:
        """Wait for the last one."""
        await self._over.wait()


async def seconds_until_none_is_due(
    host: AlarmHost, countdown: Countdown, *, due_before: int, began: float
) -> float:
    """The time from `began` until the last of the due alarms is durably acknowledged.

    Args:
        host: Where they are.
        countdown: Is over when the last handler has run; only then is the table looked at.
        due_before: In ms since the epoch.
        began: As `time.perf_counter` told it.
    """
    await countdown.wait()
    while await host.storage.query(_ANY_ALARM, (due_before,)):  # noqa: ASYNC110 - looks from outside, as a user would
        await trio.sleep(_POLL_SECONDS)
    return time.perf_counter() - began
