"""Ten thousand times: an alarm that is set while the driver is about whatever it is about."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from trio_alarms import AlarmDue, StorageOptions, open_host, process_due


async def check_near_alarms_run(path: Path, repetitions: int, seed: int) -> None:
    """Set a near alarm beside a far one, after random yields, and check when it runs."""
    source = random.Random(seed)  # noqa: S311 - yields are not secret
    ran = trio.Event()

    async def run(event: AlarmDue[Any]) -> None:
        ran.set()

    storage = StorageOptions(synchronous="off")
    async with open_host(path, alarms=process_due(run), storage=storage) as host:
        scheduler = host.scheduler
        for number in range(repetitions):
            ran = trio.Event()
            await scheduler.schedule_alarm("far", str(number % 3), after=3600)
            for _ in range(source.randrange(12)):
                await trio.lowlevel.checkpoint()
            if source.random() < 0.3:
                await scheduler.cancel_alarm("far", str(number % 3))
            elif source.random() < 0.3:
                await trio.sleep(source.random())
            seconds = source.choice([0, 0.001, 0.2])
            due = trio.current_time() + seconds
            await scheduler.schedule_alarm("near", "1", after=seconds)
            with trio.fail_after(1):
                await ran.wait()
            assert due <= trio.current_time() + 0.001


@pytest.mark.parametrize("seed", range(5))
async def test_a_near_alarm_is_never_missed(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, seed: int
) -> None:
    """Set beside one that is far, moved or cancelled, after random yields: in time (C06)."""
    await check_near_alarms_run(tmp_path / "alarms.db", 40, seed)


@pytest.mark.trust
async def test_a_near_alarm_is_never_missed_in_ten_thousand(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """As above, ten thousand times (C06)."""
    await check_near_alarms_run(tmp_path / "alarms.db", 10_000, random.randrange(2**32))  # noqa: S311 - as above
