"""Leaving while handlers run, in real time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import trio

from trio_alarms import AlarmDue, DispatchOptions, open_host, process_due


@pytest.mark.real_time
async def test_leaving_takes_as_long_as_the_drain_may_and_no_longer(tmp_path: Path) -> None:
    """0.5 s and 60 s left, a drain of 2 s: one acknowledged, one due again, in under 3 s (C11)."""
    path = tmp_path / "alarms.db"
    started: list[str] = []
    ended: list[str] = []
    both = trio.Event()

    async def handle(event: AlarmDue[Any]) -> None:
        started.append(event.id)
        if len(started) == 2:
            both.set()
        await trio.sleep(0.5 if event.id == "short" else 60)
        ended.append(event.id)

    registration = process_due(handle, DispatchOptions(concurrency=2))
    async with open_host(path, alarms=registration, drain_timeout=2) as host:
        async with host.scheduler.transaction() as tx:
            await tx.schedule_alarm("raw", "long", after=0)
            await tx.schedule_alarm("raw", "short", after=0)
            await tx.schedule_alarm("raw", "waiting", after=1)
        with trio.fail_after(10):
            await both.wait()
        left = time.monotonic()
    assert 2 <= time.monotonic() - left < 3
    assert sorted(started) == ["long", "short"]
    assert ended == ["short"]
    again: list[tuple[str, int]] = []

    async def see(event: AlarmDue[Any]) -> None:
        again.append((event.id, event.attempts))

    async with open_host(path, alarms=process_due(see)) as host:
        with trio.fail_after(10):
            while await host.scheduler.list_alarms():  # noqa: ASYNC110 - rows set no event
                await trio.sleep(0.02)
    assert sorted(again) == [("long", 0), ("waiting", 0)]
