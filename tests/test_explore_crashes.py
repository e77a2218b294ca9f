"""Losing the process at every commit: what the explorer finds, and our own paths explored."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
import tempfile
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
from trio_alarms.testing import AlarmHarness, CrashExplorationError, explore_crashes


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
    assert point.operation == "transaction, executemany, commit"
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
    assert [(point.number, point.kind) for point in report.points] == [(number, "after commit")]
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


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory in which temporary files are made."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def assert_left(temporary: Path, *directories: Path) -> None:
    """These were left behind, and nothing else."""
    assert list(temporary.iterdir()) == list(directories)


async def ignore(harness: AlarmHarness) -> None:
    """Does nothing, and holds always."""


async def schedule_one(harness: AlarmHarness) -> None:
    """Stores one alarm."""
    await harness.host.service(Bank).schedule_alarm(Bank.pay, "rent", after=5, payload=1)


@pytest.mark.parametrize("only", [0, -1, True, 2.0, "7", 2**63], ids=repr)
async def test_only_is_the_number_of_a_point(
    mock_clock: object, temporary: Path, only: Any
) -> None:
    """All else is refused before anything runs."""
    ran: list[AlarmHarness] = []

    async def scenario(harness: AlarmHarness) -> None:
        ran.append(harness)

    with pytest.raises(InvalidScheduleConfigurationError, match="only must be an int from 1"):
        await explore_crashes(scenario, invariant=ignore, only=only)
    assert ran == []
    assert_left(temporary)


async def test_only_is_a_point_that_the_scenario_has(mock_clock: object, temporary: Path) -> None:
    """The error says how many there are; the last is tried."""
    report = await explore_crashes(schedule_one, invariant=ignore, alarms=registration())
    last = len(report.points)
    with pytest.raises(
        InvalidScheduleConfigurationError,
        match=rf"only must be at most {last}, the .* scenario's last point, not {last + 1}",
    ):
        await explore_crashes(schedule_one, invariant=ignore, only=last + 1, alarms=registration())
    alone = await explore_crashes(schedule_one, invariant=ignore, only=last, alarms=registration())
    assert alone.points == report.points[-1:]
    assert_left(temporary)


@pytest.mark.parametrize("only", [None, 11])
async def test_a_scenario_that_is_another_each_time_fails(
    mock_clock: object, temporary: Path, only: int | None
) -> None:
    """A point that is not reached again would not have been tried."""
    runs: list[AlarmHarness] = []

    async def scenario(harness: AlarmHarness) -> None:
        runs.append(harness)
        for number in range(5 if len(runs) == 1 else 1):
            await harness.host.service(Bank).schedule_alarm(
                Bank.pay, str(number), after=1, payload=1
            )

    with pytest.raises(
        CrashExplorationError,
        match=r"crash point \d+, .*, was not reached.* not the same each time",
    ) as failure:
        await explore_crashes(scenario, invariant=ignore, only=only, alarms=registration())
    point, database = failure.value.point, failure.value.database
    assert point is not None
    assert only in (None, point.number)
    assert f"replay with only={point.number}; database file: {database}\n" in str(failure.value)
    assert_left(temporary, database.parent)


@pytest.mark.parametrize("seed", range(4))
async def test_tasks_side_by_side_run_in_one_order_each_time(
    mock_clock: object, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """So their points are the same in every run and replay; Trio goes on at random afterwards."""
    order = random.Random(seed)  # noqa: S311 - an order is not secret
    state = order.getstate()
    monkeypatch.setattr("trio._core._run._r", order)
    orders: list[list[int]] = []

    async def scenario(harness: AlarmHarness) -> None:
        ran: list[int] = []
        orders.append(ran)

        async def schedule(number: int) -> None:
            for _ in range(number % 3):
                await trio.lowlevel.checkpoint()
            ran.append(number)
            await harness.host.service(Bank).schedule_alarm(
                Bank.pay, str(number), after=9, payload=1
            )

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(schedule, number)

    report = await explore_crashes(scenario, invariant=ignore, alarms=registration())
    assert len(orders) > 4
    assert all(ran == orders[0][: len(ran)] for ran in orders)
    again = await explore_crashes(scenario, invariant=ignore, alarms=registration())
    assert again == report
    assert order.getstate() == state


@pytest.mark.parametrize("how", ["pytest.fail", "pytest.raises", "a group"])
async def test_an_invariant_may_fail_in_any_way(
    mock_clock: object, temporary: Path, how: str
) -> None:
    """Through pytest as well; the message begins with what to do about it."""

    async def fails(harness: AlarmHarness) -> None:
        if not await harness.host.scheduler.list_alarms():
            return
        if how == "pytest.fail":
            pytest.fail("an alarm is left")
        elif how == "pytest.raises":
            with pytest.raises(KeyError):
                pass
        else:
            raise BaseExceptionGroup("several", [pytest.fail.Exception("an alarm is left")])

    async def scenario(harness: AlarmHarness) -> None:
        await schedule_one(harness)
        await harness.host.service(Bank).cancel_alarm(Bank.pay, "rent")

    with pytest.raises(CrashExplorationError) as failure:
        await explore_crashes(scenario, invariant=fails, alarms=registration())
    point, database, cause = failure.value.point, failure.value.database, failure.value.__cause__
    assert point is not None
    assert (point.kind, point.operation) == ("after commit", "schedule_alarm")
    assert cause is not None
    assert str(failure.value) == (
        f"replay with only={point.number}; database file: {database}\n"
        f"the invariant failed after crash point {point.number}, after commit {point.nth}"
        f" (schedule_alarm): {type(cause).__name__}: {cause}"
    )
    assert_left(temporary, database.parent)


async def test_an_invariant_may_fail_without_a_crash(mock_clock: object, temporary: Path) -> None:
    """Then there is nothing to replay."""

    async def fails(harness: AlarmHarness) -> None:
        pytest.fail("never holds")

    with pytest.raises(CrashExplorationError) as failure:
        await explore_crashes(schedule_one, invariant=fails, alarms=registration())
    assert failure.value.point is None
    assert str(failure.value) == (
        f"database file: {failure.value.database}\n"
        "the invariant failed without a crash: Failed: never holds"
    )
    assert failure.value.database.exists()


async def test_what_pytest_raises_in_a_scenario_as_its_process_is_lost_is_no_failure(
    mock_clock: object, temporary: Path
) -> None:
    """A lost process may fail as it likes."""

    async def scenario(harness: AlarmHarness) -> None:
        try:
            await schedule_one(harness)
        except StorageOperationError:
            pytest.fail("it was lost")

    report = await explore_crashes(scenario, invariant=ignore, alarms=registration())
    assert {point.operation for point in report.points} >= {"open", "schedule_alarm"}
    assert_left(temporary)


class Stop(BaseException):
    """No `Exception`."""


@pytest.mark.parametrize(
    "error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3), Stop()], ids=repr
)
@pytest.mark.parametrize("where", ["scenario", "invariant"])
async def test_nothing_is_left_of_what_ends_the_exploration(
    mock_clock: object, temporary: Path, error: BaseException, where: str
) -> None:
    """What a scenario raises, and an interruption, leave as they are, and leave no file."""

    async def fails(harness: AlarmHarness) -> None:
        await schedule_one(harness)
        raise error

    if where == "invariant" and not isinstance(error, KeyboardInterrupt | SystemExit):
        with pytest.raises(CrashExplorationError) as failure:
            await explore_crashes(ignore, invariant=fails, alarms=registration())
        assert failure.value.__cause__ is error
        assert_left(temporary, failure.value.database.parent)
        return
    scenario, invariant = (fails, ignore) if where == "scenario" else (ignore, fails)
    with pytest.raises(type(error)) as raised:
        await explore_crashes(scenario, invariant=invariant, alarms=registration())
    assert raised.value is error
    assert_left(temporary)


@pytest.mark.parametrize("where", ["scenario", "invariant"])
async def test_nothing_is_left_after_a_cancellation(
    autojump_clock: object, temporary: Path, where: str
) -> None:
    """It ends the exploration, wherever that is."""

    async def wait(harness: AlarmHarness) -> None:
        await schedule_one(harness)
        await trio.sleep_forever()

    scenario, invariant = (wait, ignore) if where == "scenario" else (ignore, wait)
    with trio.move_on_after(3) as scope:
        await explore_crashes(scenario, invariant=invariant, alarms=registration())
    assert scope.cancelled_caught
    assert_left(temporary)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("database", "x"),
        ("clock", None),
        ("epoch", "x"),
        ("concurrency", 4),
        ("drain_timeout", "x"),
    ],
)
async def test_bad_options_are_refused_and_leave_nothing(
    mock_clock: object, temporary: Path, option: str, value: Any
) -> None:
    """The error names the option."""
    options = {option: value}
    with pytest.raises((InvalidScheduleConfigurationError, TypeError), match=option):
        await explore_crashes(schedule_one, invariant=ignore, **options)
    assert_left(temporary)


async def test_the_database_cannot_be_chosen(mock_clock: object) -> None:
    """Each run has a file of its own."""
    with pytest.raises(InvalidScheduleConfigurationError, match="database cannot be given: each"):
        await explore_crashes(schedule_one, invariant=ignore, database="x")


@pytest.mark.parametrize("parameter", ["scenario", "invariant"])
async def test_functions_that_are_not_async_are_refused(
    mock_clock: object, temporary: Path, parameter: str
) -> None:
    """The error names the parameter; a lambda may give an awaitable, and is asked."""

    def synchronous(harness: AlarmHarness) -> None:
        """Not async."""

    functions: dict[str, Any] = {"scenario": ignore, "invariant": ignore, parameter: synchronous}
    with pytest.raises(InvalidScheduleConfigurationError, match=f"{parameter} must be an async"):
        await explore_crashes(functions["scenario"], invariant=functions["invariant"])
    nothing: Any = lambda _harness: None  # noqa: E731 - it is about lambdas
    with pytest.raises(TypeError):
        await explore_crashes(nothing, invariant=ignore)
    assert_left(temporary)


async def test_an_exploration_cannot_be_inside_another(mock_clock: object, temporary: Path) -> None:
    """Its own hosts would be lost with the outer process."""

    async def scenario(harness: AlarmHarness) -> None:
        await explore_crashes(schedule_one, invariant=ignore, alarms=registration())

    with pytest.raises(InvalidScheduleConfigurationError, match="called by a scenario"):
        await explore_crashes(scenario, invariant=ignore)
    assert_left(temporary)


async def test_points_of_another_name_are_refused(mock_clock: object) -> None:
    """The error names the parameter and what is allowed."""

    async def nothing(harness: AlarmHarness) -> None:
        """Holds always."""

    points: Any = "everywhere"
    with pytest.raises(InvalidScheduleConfigurationError, match="points must be 'commits' or"):
        await explore_crashes(nothing, invariant=nothing, points=points)
