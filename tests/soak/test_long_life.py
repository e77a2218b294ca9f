"""Schedule, run, acknowledge, over and over: nothing grows, nothing is left, nothing drifts."""

from __future__ import annotations

import gc
import os
import resource
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import trio.testing

from trio_alarms import Alarm, AlarmDue, define
from trio_alarms.testing import AlarmHarness, open_test_host

CYCLES: Final = int(os.environ.get("TRIO_ALARMS_SOAK_CYCLES", "1000000"))
# Of one round, which takes a minute of virtual time.
BATCH: Final = 100
MINUTE: Final = timedelta(minutes=1)
MEBIBYTE: Final = 2**20
MOST_WAL: Final = 8 * MEBIBYTE
MOST_GROWTH: Final = 8 * MEBIBYTE

plain = Alarm(int, tag="plain")
paying = Alarm(int, tag="paying")
failing = Alarm(int, tag="failing", retry_initial_delay=1)
manual = Alarm(int, tag="manual", lifecycle="manual")
tick = Alarm(None, tag="tick")


class Life:
    """The handlers, and what they have noticed."""

    def __init__(self) -> None:
        self.handled = 0
        self.ticks = 0
        self.failed: set[str] = set()

    def alarms(self) -> Any:
        """The handlers, one for each way in which a handling can end."""
        return define(plain, paying, failing, manual, tick).handlers(
            plain.handled_by(self.on_plain),
            paying.handled_by(self.on_paying),
            failing.handled_by(self.on_failing),
            manual.handled_by(self.on_manual),
            tick.handled_by(self.on_tick),
        )

    async def on_plain(self, event: AlarmDue[int]) -> None:
        """Be acknowledged."""
        assert event.host.now() == event.scheduled_at
        self.handled += 1

    async def on_paying(self, event: AlarmDue[int]) -> None:
        """Acknowledge in a transaction of its own."""
        assert event.host.now() == event.scheduled_at
        async with event.host.scheduler.transaction() as tx:
            await tx.execute("UPDATE account SET balance = balance + 1")
            assert await tx.acknowledge(event)
        self.handled += 1

    async def on_failing(self, event: AlarmDue[int]) -> None:
        """Fail once, and succeed a second later."""
        assert event.host.now() == event.scheduled_at + timedelta(seconds=event.attempts)
        if event.attempts == 0:
            raise LookupError
        self.handled += 1

    async def on_manual(self, event: AlarmDue[int]) -> None:
        """Cancel itself."""
        assert await event.host.scheduler.cancel_alarm(manual, event.id)
        self.handled += 1

    async def on_tick(self, event: AlarmDue[None]) -> None:
        """Repeat every minute, on the minute."""
        assert event.host.now() == event.scheduled_at
        assert event.scheduled_at.second == event.scheduled_at.microsecond == 0
        self.ticks += 1


def resident_memory() -> int:
    """What this process has in memory now; where that cannot be read, the most it ever had."""
    gc.collect()
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def size_of(path: Path) -> int:
    """How large a file is."""
    return path.stat().st_size if path.exists() else 0


def deadlines() -> Iterator[tuple[Alarm[int], timedelta]]:
    """What a round schedules: mostly plain alarms, and deadlines spread over most of a minute."""
    for number in range(BATCH):
        kind = {0: failing, 1: manual, 2: paying, 3: paying}.get(number % 20, plain)
        yield kind, timedelta(milliseconds=1 + number % 50 * 1_000)


async def round_of(harness: AlarmHarness) -> None:
    """A minute of life."""
    scheduler = harness.host.scheduler
    for number, (kind, after) in enumerate(deadlines()):
        await scheduler.schedule_alarm(kind, str(number), after=after, payload=number)
    await harness.advance(MINUTE)


async def check_life(path: Path, cycles: int) -> None:
    """Live for so many cycles, and check that nothing has grown or been left."""
    rounds = cycles // BATCH
    warm = max(1, rounds // 5)
    life = Life()
    wal = path.with_name(f"{path.name}-wal")
    before = largest_wal = 0
    async with open_test_host(path, alarms=life.alarms()) as harness:
        began = harness.host.now()
        async with harness.host.storage.transaction() as tx:
            await tx.execute("CREATE TABLE account (balance INTEGER)")
            await tx.execute("INSERT INTO account VALUES (0)")
        await harness.host.scheduler.ensure_alarm(
            tick, "tick", after=MINUTE, payload=None, repeat_every=MINUTE
        )
        for number in range(rounds):
            if number == warm:
                before = resident_memory()
            await round_of(harness)
            largest_wal = max(largest_wal, size_of(wal))
        growth = resident_memory() - before
        assert harness.host.now() == began + rounds * MINUTE
        assert (life.handled, life.ticks) == (rounds * BATCH, rounds)
        assert await harness.host.scheduler.cancel_alarm(tick, "tick")
        assert await harness.host.storage.query("SELECT balance FROM account") == [
            (rounds * BATCH // 10,)
        ]
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT * FROM trio_alarms_alarms").fetchall() == []
        assert other.execute("SELECT native_alarm FROM trio_alarms_hosts").fetchall() == [(None,)]
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    print(
        f"{life.handled} cycles: resident memory grew by {growth / MEBIBYTE:.2f} MiB,"
        f" the log was {largest_wal / MEBIBYTE:.2f} MiB at most,"
        f" the file is {size_of(path) / MEBIBYTE:.2f} MiB"
    )
    assert growth < MOST_GROWTH
    assert largest_wal < MOST_WAL


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Those that fail on purpose are logged, which pytest would keep in memory."""
    caplog.set_level("CRITICAL", logger="trio_alarms")


@pytest.mark.trust
async def test_twenty_thousand_cycles(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    """Memory flat, tables empty, log bounded, every deadline to the millisecond (R8, R28, R61)."""
    await check_life(tmp_path / "alarms.db", 20_000)


@pytest.mark.soak
async def test_a_million_cycles(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    """The same for as many as `TRIO_ALARMS_SOAK_CYCLES` says, a million if it says nothing."""
    await check_life(tmp_path / "alarms.db", CYCLES)
