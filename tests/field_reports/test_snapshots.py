"""Somebody reads for a long time while the library writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio.testing

from trio_alarms import AlarmDue, StorageOptions, process_due
from trio_alarms.testing import AlarmHarness, open_test_host


async def ignore(event: AlarmDue[Any]) -> None:
    """A handler."""


@contextmanager
def snapshot(path: Path) -> Iterator[sqlite3.Connection]:
    """Hold a snapshot of the database as it is now."""
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM trio_alarms_alarms").fetchone()
        yield reader


async def live(harness: AlarmHarness, rounds: int) -> None:
    """Steady writes: alarms that are scheduled, run and acknowledged."""
    for _ in range(rounds):
        for number in range(5):
            await harness.host.scheduler.schedule_alarm(
                "raw", str(number), after=1, payload="x" * 2_000
            )
        await harness.advance(2)


def checkpointed(path: Path) -> tuple[int, int, int]:
    """Whether a checkpoint that empties the log was kept from it, and what is in the log."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other:
        busy, log, moved = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return busy, log, moved


@pytest.mark.parametrize("executor", ["inline", "thread"])
async def test_the_log_shrinks_after_a_long_reader(
    mock_clock: trio.testing.MockClock, tmp_path: Path, executor: Any
) -> None:
    """While a snapshot is held the log grows; afterwards it shrinks again (C24)."""
    path = tmp_path / "alarms.db"
    wal = tmp_path / "alarms.db-wal"
    storage = StorageOptions(executor=executor, synchronous="off")
    async with open_test_host(path, alarms=process_due(ignore), storage=storage) as harness:
        await live(harness, 1)
        with snapshot(path):
            await live(harness, 60)
            grown = wal.stat().st_size
            assert grown > 4_000_000
        await live(harness, 60)
        assert wal.stat().st_size < grown / 2
        assert checkpointed(path) == (0, 0, 0)
        assert wal.stat().st_size == 0


@pytest.mark.parametrize("executor", ["inline", "thread"])
async def test_no_statement_is_left_open_between_wakes(
    mock_clock: trio.testing.MockClock, tmp_path: Path, executor: Any
) -> None:
    """Whatever was called last, nothing of the library keeps the log from being emptied (C24)."""
    path = tmp_path / "alarms.db"
    storage = StorageOptions(executor=executor, synchronous="off")
    async with open_test_host(path, alarms=process_due(ignore), storage=storage) as harness:
        scheduler = harness.host.scheduler
        await live(harness, 1)
        for number in range(10):
            await scheduler.schedule_alarm("raw", str(number), after=60)
        assert checkpointed(path) == (0, 0, 0)
        await scheduler.list_alarms(limit=3)
        assert checkpointed(path) == (0, 0, 0)
        await harness.host.storage.query("SELECT * FROM trio_alarms_alarms")
        assert checkpointed(path) == (0, 0, 0)
        async with scheduler.transaction() as tx:
            await tx.execute("SELECT * FROM trio_alarms_alarms")
        assert checkpointed(path) == (0, 0, 0)
        await harness.advance(60)
        assert checkpointed(path) == (0, 0, 0)
