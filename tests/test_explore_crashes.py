"""Losing the process at every commit: what the explorer finds, and our own paths explored."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmRegistration,
    AlarmService,
    DispatchOptions,
    InvalidScheduleConfigurationError,
    StorageOperationError,
    import_effect_cf,
)
from trio_alarms.testing import (
    AlarmHarness,
    CrashExplorationError,
    CrashPoint,
    explore_crashes,
)


class Bank(AlarmService, key="tests/bank"):
    """Payments, and a sweep that owns itself."""

    pay = Alarm(int)
    sweep = Alarm(None, lifecycle="manual")


async def pay_in_two_commits(event: AlarmDue[int]) -> None:
    """Moves the money in one commit; the acknowledgement is another."""
    async with event.host.storage.transaction() as tx:
        await tx.executemany(
            "UPDATE accounts SET balance = balance + ? WHERE name = ?",
            [(-event.payload, "a"), (event.payload, "b")],
        )


async def pay_in_one_commit(event: AlarmDue[int]) -> None:
    """Moves the money and acknowledges in the same commit."""
    async with event.host.storage.transaction() as tx:
        await tx.executemany(
            "UPDATE accounts SET balance = balance + ? WHERE name = ?",
            [(-event.payload, "a"), (event.payload, "b")],
        )
        await tx.acknowledge(event)


async def sweep_once(event: AlarmDue[None]) -> None:
    """Notes the sweep and ends the alarm, in one commit."""
    async with event.host.service(Bank).transaction() as tx:
        await tx.execute("INSERT INTO sweeps VALUES (?)", (event.id,))
        await tx.cancel_alarm(Bank.sweep, event.id)


def registration(pay: Any = pay_in_one_commit) -> AlarmRegistration:
    """The bank's handlers."""
    return Bank.handlers(Bank.pay.handled_by(pay), Bank.sweep.handled_by(sweep_once))


async def pay_later(harness: AlarmHarness) -> None:
    """Opens two accounts and schedules a payment, in one transaction; then it falls due."""
    async with harness.host.service(Bank).transaction() as tx:
        await tx.execute("CREATE TABLE accounts (name PRIMARY KEY, balance)")
        await tx.execute("INSERT INTO accounts VALUES ('a', 10), ('b', 0)")
        await tx.schedule_alarm(Bank.pay, "rent", after=5, payload=3)
    await harness.advance(6)


async def table_exists(harness: AlarmHarness, name: str) -> bool:
    """Whether the scenario got as far as its first commit."""
    return bool(
        await harness.host.storage.query("SELECT 1 FROM sqlite_master WHERE name = ?", (name,))
    )


async def paid_once_or_never_promised(harness: AlarmHarness) -> None:
    """What must hold after any crash: the payment that was scheduled is made, once."""
    await harness.advance(10)
    if await table_exists(harness, "accounts"):
        balances = await harness.host.storage.query("SELECT balance FROM accounts ORDER BY name")
        assert balances == [(7,), (3,)]
        assert await harness.host.scheduler.list_alarms() == []


async def test_a_handler_that_pays_twice_is_found(mock_clock: object) -> None:
    """The crash between the handler's commit and its acknowledgement shows the bug."""
    with pytest.raises(CrashExplorationError, match=r"replay with only=\d+") as failure:
        await explore_crashes(
            pay_later,
            invariant=paid_once_or_never_promised,
            alarms=registration(pay_in_two_commits),
        )
    point, database = failure.value.point, failure.value.database
    assert isinstance(failure.value.__cause__, AssertionError)
    assert point is not None
    assert point.kind == "after commit"
    with closing(sqlite3.connect(database)) as left:
        assert left.execute("SELECT balance FROM accounts ORDER BY name").fetchall() == [(4,), (6,)]
    shutil.rmtree(database.parent)


async def test_one_point_can_be_replayed_alone(mock_clock: object) -> None:
    """`only` crashes where the report said, and nowhere else."""
    with pytest.raises(CrashExplorationError) as first:
        await explore_crashes(
            pay_later,
            invariant=paid_once_or_never_promised,
            alarms=registration(pay_in_two_commits),
        )
    assert first.value.point is not None
    number = first.value.point.number
    with pytest.raises(CrashExplorationError) as again:
        await explore_crashes(
            pay_later,
            invariant=paid_once_or_never_promised,
            only=number,
            alarms=registration(pay_in_two_commits),
        )
    assert again.value.point == first.value.point
    report = await explore_crashes(
        pay_later,
        invariant=paid_once_or_never_promised,
        only=number,
        alarms=registration(),
    )
    assert report.points == (CrashPoint(number, first.value.point.kind, first.value.point.nth),)
    for failure in (first.value, again.value):
        shutil.rmtree(failure.database.parent)


async def test_the_mended_handler_holds_at_every_commit(mock_clock: object) -> None:
    """Before and after each commit, opening's included, the payment is made once."""
    report = await explore_crashes(
        pay_later, invariant=paid_once_or_never_promised, alarms=registration()
    )
    kinds = [point.kind for point in report.points]
    assert kinds == ["before commit", "after commit"] * (len(kinds) // 2)
    assert len(kinds) >= 10


@pytest.mark.parametrize("options", [{}, {"driver": True}], ids=["no driver", "driver"])
async def test_our_own_dispatch_holds_at_every_checkpoint(
    mock_clock: object, options: dict[str, Any]
) -> None:
    """The same at every use of the storage, with and without a driver (R52)."""
    report = await explore_crashes(
        pay_later,
        invariant=paid_once_or_never_promised,
        points="checkpoints",
        alarms=registration(),
        **options,
    )
    assert sum(point.kind == "checkpoint" for point in report.points) >= 12


@pytest.mark.parametrize("points", ["commits", "checkpoints"])
async def test_operations_that_share_a_commit_are_durable_once_they_return(
    mock_clock: object, points: Any
) -> None:
    """Whoever had a value finds it stored after the crash, and the host armed for it (R11, R52)."""
    told: set[str] = set()
    refused: list[str] = []

    async def schedule(harness: AlarmHarness, id: str, after: int) -> None:
        await harness.host.service(Bank).schedule_alarm(Bank.pay, id, after=after, payload=1)
        told.add(id)

    async def give_up(harness: AlarmHarness) -> None:
        with trio.move_on_after(0):
            await schedule(harness, "given up", 50)

    async def refuse(harness: AlarmHarness) -> None:
        with contextlib.suppress(StorageOperationError):
            await harness.host.scheduler.schedule_alarm("refused", "x", after=40)
            refused.append("stored")

    async def in_a_block(harness: AlarmHarness, id: str) -> None:
        async with harness.host.service(Bank).transaction() as tx:
            await tx.execute("INSERT INTO notes VALUES (?)", (id,))
            await tx.schedule_alarm(Bank.pay, id, after=70, payload=1)
        told.add(id)

    async def scenario(harness: AlarmHarness) -> None:
        # A run that never reached its point has left what it was told.
        told.clear()
        async with harness.host.storage.transaction() as tx:
            await tx.execute("CREATE TABLE notes (id)")
            await tx.execute(
                "CREATE TRIGGER refuse BEFORE INSERT ON trio_alarms_alarms"
                " WHEN new.tag = 'refused' BEGIN SELECT RAISE(ABORT, 'refused'); END"
            )
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(schedule, harness, f"first {number}", 100 - number)
            nursery.start_soon(refuse, harness)
            nursery.start_soon(give_up, harness)
            nursery.start_soon(in_a_block, harness, "block")
            await trio.testing.wait_all_tasks_blocked()
            for number in range(4):
                nursery.start_soon(schedule, harness, f"second {number}", 60 + number)

    async def what_was_told_is_stored(harness: AlarmHarness) -> None:
        alarms = await harness.host.scheduler.list_alarms()
        ids = {record.ref.id for record in alarms}
        assert told <= ids
        told.clear()
        assert "given up" not in ids
        assert refused == []
        earliest = alarms[0].status.wake_at if alarms else None
        assert await harness.host.native_alarm.get() == earliest
        if await table_exists(harness, "notes"):
            notes = await harness.host.storage.query("SELECT id FROM notes")
            assert notes == ([("block",)] if "block" in ids else [])

    report = await explore_crashes(
        scenario, invariant=what_was_told_is_stored, points=points, alarms=registration()
    )
    assert len(report.points) >= 10


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("acknowledges", [False, True])
@pytest.mark.parametrize("points", ["commits", "checkpoints"])
async def test_many_payments_hold_at_every_point_however_they_are_acknowledged(
    mock_clock: object, points: Any, concurrency: int, *, acknowledges: bool
) -> None:
    """What was acknowledged, alone or with others or with the next row, runs never again (R52)."""
    runs: dict[str, int] = {}
    ids = [f"{number}" for number in range(5)]

    async def pay(event: AlarmDue[int]) -> None:
        runs[event.id] = runs.get(event.id, 0) + 1
        async with event.host.storage.transaction() as tx:
            await tx.execute("INSERT OR IGNORE INTO paid VALUES (?)", (event.id,))
            if acknowledges:
                await tx.acknowledge(event)

    async def scenario(harness: AlarmHarness) -> None:
        runs.clear()
        async with harness.host.service(Bank).transaction() as tx:
            await tx.execute("CREATE TABLE paid (id PRIMARY KEY)")
            for id in ids:
                await tx.schedule_alarm(Bank.pay, id, after=5, payload=1)
        await harness.advance(6)

    async def each_is_paid(harness: AlarmHarness) -> None:
        await harness.advance(10)
        if not await table_exists(harness, "paid"):
            return
        paid = await harness.host.storage.query("SELECT id FROM paid ORDER BY id")
        assert [row[0] for row in paid] == ids
        assert await harness.host.scheduler.list_alarms() == []
        # Only what was running as the process was lost has run twice.
        assert sorted(runs) == ids
        assert sum(runs.values()) <= len(ids) + concurrency

    options = DispatchOptions(concurrency=concurrency)
    registered = Bank.handlers(
        Bank.pay.handled_by(pay), Bank.sweep.handled_by(sweep_once), options=options
    )
    report = await explore_crashes(
        scenario, invariant=each_is_paid, points=points, alarms=registered
    )
    assert len(report.points) >= 16


async def test_a_manual_checkpoint_holds_at_every_commit(mock_clock: object) -> None:
    """A manual alarm whose crash was survived comes back at its in-flight deadline (R26)."""

    async def scenario(harness: AlarmHarness) -> None:
        async with harness.host.service(Bank).transaction() as tx:
            await tx.execute("CREATE TABLE sweeps (id)")
            await tx.schedule_alarm(Bank.sweep, "one", after=1)
        await harness.advance(2)

    async def swept_once(harness: AlarmHarness) -> None:
        await harness.advance(10)
        if await table_exists(harness, "sweeps"):
            assert await harness.host.storage.query("SELECT id FROM sweeps") == [("one",)]
            assert await harness.host.scheduler.list_alarms() == []

    report = await explore_crashes(scenario, invariant=swept_once, alarms=registration())
    assert len(report.points) >= 12


async def test_defer_wakes_holds_at_every_commit(mock_clock: object) -> None:
    """Whatever the guard was, the reopened host is armed for what is scheduled (R17, R19)."""

    async def scenario(harness: AlarmHarness) -> None:
        bank = harness.host.service(Bank)
        async with bank.defer_wakes():
            await bank.schedule_alarm(Bank.pay, "x", after=60, payload=1)
            async with bank.defer_wakes():
                await bank.schedule_alarm(Bank.pay, "y", after=30, payload=1)

    async def armed_for_the_earliest(harness: AlarmHarness) -> None:
        alarms = await harness.host.scheduler.list_alarms()
        earliest = alarms[0].status.wake_at if alarms else None
        assert await harness.host.native_alarm.get() == earliest

    report = await explore_crashes(
        scenario, invariant=armed_for_the_earliest, points="checkpoints", alarms=registration()
    )
    assert len(report.points) >= 15


async def test_the_import_holds_at_every_commit(mock_clock: object, tmp_path: Path) -> None:
    """All of the old alarms are taken over, or all are still where they were (R63)."""

    async def scenario(harness: AlarmHarness) -> None:
        await harness.close()
        with closing(sqlite3.connect(harness.database, isolation_level=None)) as connection:
            connection.execute(
                "CREATE TABLE effect_cf_scheduled_alarms (storage_id TEXT PRIMARY KEY, alarm_id"
                " TEXT NOT NULL, tag TEXT NOT NULL, run_at INTEGER NOT NULL,"
                " repeat_every_ms INTEGER, payload TEXT NOT NULL)"
            )
            connection.executemany(
                "INSERT INTO effect_cf_scheduled_alarms VALUES (?, ?, 'pay', 4102444800000, NULL,"
                " '1')",
                [("pay:1", "1"), ("pay:2", "2")],
            )
        assert await import_effect_cf(harness.database) == 2

    async def all_or_nothing(harness: AlarmHarness) -> None:
        new = len(await harness.host.scheduler.list_alarms())
        old = 0
        if await table_exists(harness, "effect_cf_scheduled_alarms"):
            found = await harness.host.storage.query(
                "SELECT count(*) FROM effect_cf_scheduled_alarms"
            )
            old = found[0][0]
        assert (new, old) in {(0, 0), (0, 2), (2, 0)}

    report = await explore_crashes(scenario, invariant=all_or_nothing, points="checkpoints")
    assert len(report.points) >= 4


async def test_what_the_scenario_raises_without_a_crash_leaves_as_it_is(
    mock_clock: object,
) -> None:
    """A bug of the scenario itself is not taken for a failure after a crash."""
    error = ZeroDivisionError("of the scenario's own")

    async def scenario(harness: AlarmHarness) -> None:
        raise error

    async def nothing(harness: AlarmHarness) -> None:
        """Holds always."""

    with pytest.raises(ZeroDivisionError) as raised:
        await explore_crashes(scenario, invariant=nothing)
    assert raised.value is error


async def test_points_of_another_name_are_refused(mock_clock: object) -> None:
    """The error names the parameter and what is allowed."""

    async def nothing(harness: AlarmHarness) -> None:
        """Holds always."""

    points: Any = "everywhere"
    with pytest.raises(InvalidScheduleConfigurationError, match="points must be 'commits' or"):
        await explore_crashes(nothing, invariant=nothing, points=points)
