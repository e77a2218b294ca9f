"""The native alarm after every kind of commit, other processes' commits among them (R20)."""

from __future__ import annotations

import os
import random
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock

from tests.behaviour.work_service import (
    HandlerError,
    HeldHandler,
    Note,
    Recorder,
    Work,
    at,
    delivering,
    fail,
    succeed,
    work,
)
from trio_alarms import (
    AlarmFailure,
    AlarmTransaction,
    DispatchOptions,
    FailureAction,
    NativeAlarmOwnedError,
    ScheduleConfiguration,
    StorageOperationError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.behaviour.conftest import OpenWorld, World
    from trio_alarms import AlarmDue

HOUR_MS = 3_600_000
BUDGET_OF_ONE = ScheduleConfiguration(unchanged_attempt_budget=1)


async def plain(world: World, run_at: int, id: str = "a", **options: Any) -> None:
    """Schedule the plain alarm from outside."""
    await world.host.service(Work).schedule_alarm(
        Work.plain, id, run_at=at(run_at), payload=Note("x"), **options
    )


async def schedule_and_fail(world: World, id: str, run_at: int) -> None:
    """A block that schedules and then fails."""
    async with world.host.scheduler.transaction() as tx:
        await tx.schedule_alarm("t", id, run_at=at(run_at))
        raise HandlerError


def earliest(world: World) -> int | None:
    """The least wake of what is stored."""
    return min((row.wake_at for row in world.rows()), default=None)


def count_writes(world: World) -> Callable[[], int]:
    """Count the writes of the native alarm from now on, by a trigger in the database."""
    world.sql("CREATE TABLE writes (name TEXT)")
    for event in ("INSERT", "UPDATE", "DELETE"):
        name = "old" if event == "DELETE" else "new"
        world.sql(
            f"CREATE TRIGGER on_{event} AFTER {event} ON trio_alarms_hosts"
            f" BEGIN INSERT INTO writes VALUES ({name}.name); END"
        )
    return lambda: int(world.sql("SELECT count(*) FROM writes")[0][0])


def other_process_commits(
    world: World,
    run_at: int,
    *,
    id: str = "theirs",
    tag: str = "plain",
    lifecycle: str = "automatic",
    lowers: bool = True,
) -> None:
    """Commit an alarm as another process does: it only lowers the native alarm (R20)."""
    wake = world.epoch_ms + run_at
    name = world.host.name
    with closing(sqlite3.connect(world.path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            "INSERT INTO trio_alarms_alarms (host, tag, id, lifecycle, run_at, wake_at, progress,"
            " attempts, parked, revision, payload) VALUES (?,?,?,?,?,?,-1,0,0,?,?)"
            " ON CONFLICT (host, tag, id) DO UPDATE SET run_at = excluded.run_at,"
            " wake_at = excluded.wake_at, retry_at = NULL, attempts = 0, parked = 0,"
            " revision = excluded.revision",
            (name, tag, id, lifecycle, wake, wake, os.urandom(16), '{"text":"theirs"}'),
        )
        if lowers:
            connection.execute(
                "INSERT INTO trio_alarms_hosts (name, managed, native_alarm) VALUES (?, 1, ?)"
                " ON CONFLICT (name) DO UPDATE SET managed = 1,"
                " native_alarm = min(ifnull(native_alarm, excluded.native_alarm),"
                " excluded.native_alarm)",
                (name, wake),
            )
        connection.execute("COMMIT")


# Commits of our own


async def test_every_scheduling_method_reconciles(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Standalone and in blocks the native alarm is the least wake of what is stored (R20)."""
    world = await open_world(alarms=work())
    alarms = world.host.scheduler

    async def block(run: Callable[[AlarmTransaction], Any], *, storage: bool = False) -> None:
        opener: Any = world.host.storage if storage else world.host.scheduler
        async with opener.transaction() as tx:
            await run(tx)

    steps: list[tuple[Callable[[], Any], int | None]] = [
        (lambda: alarms.schedule_alarm("t", "a", run_at=at(5_000)), 5_000),
        (lambda: alarms.schedule_alarm("t", "b", run_at=at(7_000)), 5_000),
        (lambda: alarms.schedule_alarm("t", "c", run_at=at(3_000), lifecycle="manual"), 3_000),
        (lambda: alarms.schedule_alarm("t", "c", run_at=at(9_000), lifecycle="manual"), 5_000),
        (lambda: alarms.schedule_alarm_earlier("t", "b", run_at=at(4_000)), 4_000),
        (lambda: alarms.schedule_alarm_earlier("t", "b", run_at=at(8_000)), 4_000),
        (lambda: alarms.cancel_alarm("t", "b"), 5_000),
        (lambda: alarms.ensure_alarm("t", "d", run_at=at(2_000), repeat_every=60), 2_000),
        (lambda: alarms.ensure_alarm("t", "d", run_at=at(1_000), repeat_every=90), 1_000),
        (lambda: block(lambda tx: tx.cancel_alarm("t", "d")), 5_000),
        (lambda: block(lambda tx: tx.schedule_alarm("t", "e", run_at=at(600))), 600),
        (lambda: block(lambda tx: tx.cancel_alarm("t", "e"), storage=True), 5_000),
        (lambda: block(lambda tx: tx.ensure_alarm("t", "f", run_at=at(1)), storage=True), 1),
        (lambda: block(lambda tx: tx.schedule_alarm_earlier("t", "f", run_at=at(-1))), -1),
        (lambda: alarms.cancel_alarm("t", "f"), 5_000),
        (lambda: alarms.cancel_alarm("t", "a"), 9_000),
        (lambda: alarms.cancel_alarm("t", "c"), None),
    ]
    for number, (step, expected) in enumerate(steps):
        await step()
        assert (number, world.native_alarm()) == (number, expected)
        assert world.native_alarm() == earliest(world)
        await world.step()
        alarms = world.host.scheduler


async def test_a_block_reconciles_to_what_it_left(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Only the end of a block counts, and a savepoint that was undone does not (R13, R20)."""
    world = await open_world(alarms=work())
    await world.host.scheduler.schedule_alarm("t", "a", run_at=at(5_000))
    writes = count_writes(world)
    async with world.host.scheduler.transaction() as tx:
        await tx.cancel_alarm("t", "a")
        await tx.schedule_alarm("t", "b", run_at=at(1_000))
        await tx.schedule_alarm("t", "b", run_at=at(6_000))
        with pytest.raises(HandlerError):
            await schedule_and_fail(world, "c", 10)
        assert world.native_alarm() == 5_000
    assert (world.native_alarm(), writes()) == (6_000, 1)


async def test_a_block_that_rolls_back_leaves_the_native_alarm(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """What was not committed was never reconciled (R10, R20)."""
    world = await open_world(alarms=work())
    await world.host.scheduler.schedule_alarm("t", "a", run_at=at(5_000))
    writes = count_writes(world)
    with pytest.raises(HandlerError):
        await schedule_and_fail(world, "b", 1_000)
    await world.step()
    assert (world.native_alarm(), writes()) == (5_000, 0)


async def test_alarms_and_native_alarm_change_in_one_commit(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Where reconciling fails nothing of the commit is stored (R10, R20)."""
    world = await open_world(alarms=work())
    await world.host.scheduler.schedule_alarm("t", "a", run_at=at(5_000))
    world.sql(
        "CREATE TRIGGER refuse BEFORE UPDATE ON trio_alarms_hosts"
        " BEGIN SELECT raise(ABORT, 'refused'); END"
    )
    with pytest.raises(StorageOperationError, match="refused"):
        await world.host.scheduler.schedule_alarm("t", "b", run_at=at(1_000))
    with pytest.raises(StorageOperationError, match="refused"):
        await world.host.scheduler.cancel_alarm("t", "a")

    async def in_a_block() -> None:
        async with world.host.scheduler.transaction() as tx:
            await tx.execute("CREATE TABLE lost (x)")
            await tx.schedule_alarm("t", "b", run_at=at(1_000))

    with pytest.raises(StorageOperationError, match="refused"):
        await in_a_block()
    world.sql("DROP TRIGGER refuse")
    await world.step()
    assert [(row.id, row.run_at) for row in world.rows()] == [("a", 5_000)]
    assert world.native_alarm() == 5_000
    assert world.sql("SELECT name FROM sqlite_master WHERE name = 'lost'") == []


async def test_the_native_alarm_is_written_only_when_it_changes(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Commits that leave the least wake do not write it (R20)."""
    world = await open_world(alarms=work())
    await world.host.scheduler.schedule_alarm("t", "a", run_at=at(5_000))
    writes = count_writes(world)
    alarms = world.host.scheduler
    await alarms.schedule_alarm("t", "b", run_at=at(6_000))
    await alarms.schedule_alarm("t", "a", run_at=at(5_000), payload="other")
    await alarms.ensure_alarm("t", "a", run_at=at(1), payload="third")
    await alarms.cancel_alarm("t", "b")
    await alarms.cancel_alarm("t", "never there")
    await world.step()
    assert writes() == 0
    await world.host.scheduler.schedule_alarm("t", "a", run_at=at(5_001))
    assert writes() == 1


async def test_a_storage_block_without_an_alarm_method_leaves_the_native_alarm(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """It neither reconciles nor makes the host managed; with an alarm method it does (R20, R35)."""
    world = await open_world(alarms=work())
    await world.host.native_alarm.set(at(700))
    async with world.host.storage.transaction() as tx:
        await tx.execute("CREATE TABLE t (x)")
        assert await tx.get_alarm_status("t", "a") is None
    await world.step()
    assert world.sql("SELECT managed FROM trio_alarms_hosts") == [(0,)]
    assert world.native_alarm() == 700
    async with world.host.storage.transaction() as tx:
        assert await tx.cancel_alarm("t", "a") is False
    assert world.sql("SELECT managed FROM trio_alarms_hosts") == [(1,)]
    assert world.native_alarm() is None


# Commits of a dispatch


async def ask_to_skip(failure: AlarmFailure) -> FailureAction | None:
    """An `on_failure` that skips."""
    await trio.lowlevel.checkpoint()
    return "skip-and-advance-repeat"


async def acknowledge(event: AlarmDue[Note]) -> None:
    """Acknowledge in a block of the handler's own."""
    async with event.host.scheduler.transaction() as tx:
        assert await tx.acknowledge(event)


async def cancel_all(event: AlarmDue[Note]) -> None:
    """Cancel whatever there is."""
    for record in await event.host.scheduler.list_alarms():
        await event.host.scheduler.cancel_alarm(record.ref.tag, record.ref.id)


@pytest.mark.parametrize(
    ("handler", "repeat_every", "expected"),
    [
        pytest.param(succeed, None, 90_000, id="acknowledged"),
        pytest.param(succeed, 60, 60_000, id="advanced"),
        pytest.param(succeed, 100, 90_000, id="advanced past another"),
        pytest.param(fail, None, 1_000, id="failed"),
        pytest.param(acknowledge, None, 90_000, id="acknowledged in a block"),
        pytest.param(acknowledge, 60, 60_000, id="advanced in a block"),
        pytest.param(cancel_all, None, None, id="everything cancelled"),
    ],
)
async def test_a_dispatch_leaves_the_least_wake(
    open_world: OpenWorld,
    mock_clock: MockClock,
    *,
    handler: Any,
    repeat_every: int | None,
    expected: int | None,
) -> None:
    """However the alarm was handled (R20, R23)."""
    world = await open_world(alarms=work(handler))
    await plain(world, 0, repeat_every=repeat_every)
    await plain(world, 90_000, "later")
    await world.step()
    await world.harness.deliver()
    assert world.native_alarm() == expected == earliest(world)


async def test_parking_skipping_and_manual_moves_reconcile(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """So do the other outcomes of a dispatch (R20, R23)."""
    world = await open_world(alarms=work(fail), configuration=BUDGET_OF_ONE)
    await plain(world, 0)
    await world.harness.deliver()
    assert world.native_alarm() == HOUR_MS == earliest(world)
    await world.harness.reopen(alarms=work(fail, options=DispatchOptions(on_failure=ask_to_skip)))
    await plain(world, 0, repeat_every=70)
    await world.harness.deliver()
    assert world.native_alarm() == 70_000 == earliest(world)
    await world.host.service(Work).schedule_alarm(Work.manual, "m", run_at=at(0), payload=Note("x"))
    assert world.native_alarm() == 0
    await world.harness.deliver()
    assert world.native_alarm() == 70_000
    await world.host.service(Work).cancel_alarm(Work.plain, "a")
    assert world.native_alarm() == HOUR_MS == earliest(world)


async def test_the_opening_of_a_managed_host_reconciles(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Whatever is found there, and nothing is written where it is right (R20, R52)."""
    world = await open_world(alarms=work())
    await plain(world, 5_000)
    for found in (None, -5, 1_000, 9_000_000):
        stored = None if found is None else world.epoch_ms + found
        world.sql("UPDATE trio_alarms_hosts SET native_alarm = ?", stored)
        await world.harness.crash()
        await world.harness.reopen()
        assert world.native_alarm() == 5_000
    writes = count_writes(world)
    await world.harness.crash()
    await world.harness.reopen()
    await world.harness.reopen()
    assert writes() == 0


async def test_each_host_reconciles_its_own_native_alarm(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Alarms of another name in the same database do not count (R20)."""
    first = await open_world(name="first")
    second = await open_world(name="second")
    await first.host.scheduler.schedule_alarm("t", "a", run_at=at(1_000))
    await second.host.scheduler.schedule_alarm("t", "a", run_at=at(2_000))
    await first.host.scheduler.schedule_alarm("t", "a", run_at=at(3_000))
    assert (first.native_alarm(), second.native_alarm()) == (3_000, 2_000)
    await first.host.scheduler.cancel_alarm("t", "a")
    assert (first.native_alarm(), second.native_alarm()) == (None, 2_000)


# Commits of other processes


async def test_another_processes_alarm_is_delivered(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """A delivery goes by what is stored, whoever stored it (R20, R50)."""
    handler = Recorder()
    world = await open_world(alarms=work(handler))
    await plain(world, 9_000, "ours")
    other_process_commits(world, 2_000)
    assert await world.host.native_alarm.get() == at(2_000)
    await world.step()
    await world.harness.advance(2)
    assert (handler.ids, handler.ran_at) == (["theirs"], [2_000])
    assert world.native_alarm() == 9_000


async def test_our_commits_count_other_processes_alarms(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The least wake is read from the table and never from what we remember (R20)."""
    world = await open_world(alarms=work())
    await plain(world, 5_000)
    other_process_commits(world, 3_000)
    await plain(world, 4_000)
    assert world.native_alarm() == 3_000
    await plain(world, 1_000)
    assert world.native_alarm() == 1_000
    await world.step()
    await world.host.service(Work).cancel_alarm(Work.plain, "a")
    assert world.native_alarm() == 3_000
    await world.host.scheduler.cancel_alarm("plain", "theirs")
    assert world.native_alarm() is None


async def test_the_first_commit_of_ours_finds_an_alarm_that_did_not_lower_it(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Only the host reconciles, at its next commit of an alarm write (R20)."""
    world = await open_world(alarms=work())
    await plain(world, 5_000)
    other_process_commits(world, 2_000, lowers=False)
    assert world.native_alarm() == 5_000
    await world.host.scheduler.cancel_alarm("never", "there")
    assert world.native_alarm() == 2_000


async def test_another_processes_first_alarm_makes_the_host_managed(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """From then on the native alarm is the scheduler's and deliveries dispatch (R20, R35)."""
    handler = Recorder()
    raw_deliveries = []

    async def raw(host: Any) -> None:
        raw_deliveries.append(host)

    world = await open_world(alarms=work(handler), raw_alarm=raw)
    await world.host.native_alarm.set(at(5_000))
    other_process_commits(world, 2_000)
    with pytest.raises(NativeAlarmOwnedError):
        await world.host.native_alarm.set(at(1))
    await world.step()
    await world.harness.advance(2)
    assert handler.ids == ["theirs"]
    assert len(raw_deliveries) == 1
    assert world.native_alarm() is None


async def test_another_processes_schedule_during_the_handler_stands(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Its revision is new, so neither acknowledgement nor failure touches it (R20, R28)."""
    for failures in (0, 1):
        handler = HeldHandler(failures=failures)
        world = await open_world(alarms=work(handler), name=f"host {failures}")
        await plain(world, 0, "theirs")
        async with delivering(world, handler):
            other_process_commits(world, 4_000)
            assert world.native_alarm() == 1_000
        row = world.row("plain", "theirs")
        assert row is not None
        assert (row.run_at, row.attempts) == (4_000, 0)
        assert world.native_alarm() == 4_000


async def test_another_processes_manual_alarm_that_moved_meanwhile_stays(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The end of the pass moves no row whose revision is new (R20, R29)."""
    handler = HeldHandler()
    world = await open_world(alarms=work(manual=handler))
    other_process_commits(world, 0, tag="manual", lifecycle="manual")
    await world.harness.reopen()
    async with delivering(world, handler):
        other_process_commits(world, 4_000, tag="manual", lifecycle="manual")
    row = world.row("manual", "theirs")
    assert row is not None
    assert (row.run_at, world.native_alarm()) == (4_000, 4_000)


async def do_something(world: World, clock: MockClock, chosen: random.Random) -> bool:
    """A random operation; whether it ended with a commit of ours."""
    alarms = world.host.service(Work)
    id = chosen.choice("abcd")
    run_at = world.now() + chosen.choice([-1_000, 0, 500, 60_000, HOUR_MS])
    alarm = chosen.choice([Work.plain, Work.manual])
    given: dict[str, Any] = {"run_at": at(run_at), "payload": Note("x")}
    if alarm is Work.plain and chosen.random() < 0.5:
        given["repeat_every"] = 60
    match chosen.randrange(8):
        case 0:
            await alarms.schedule_alarm(alarm, id, **given)
        case 1:
            await alarms.schedule_alarm_earlier(alarm, id, **given)
        case 2:
            await alarms.ensure_alarm(alarm, id, **given)
        case 3:
            await alarms.cancel_alarm(alarm, id)
        case 4:
            other_process_commits(world, run_at, id=id)
            return False
        case 5:
            async with alarms.transaction() as tx:
                await tx.cancel_alarm(alarm, id)
                await tx.schedule_alarm(alarm, chosen.choice("abcd"), **given)
        case _:
            clock.jump(chosen.choice([0, 0.1, 1, 61, 3_600]))
            try:
                return await world.harness.deliver()
            except (HandlerError, ExceptionGroup):
                # A manual handler's failure is raised by the delivery, which is over.
                return True
    return True


@pytest.mark.parametrize("seed", range(12))
async def test_random_operations_always_leave_the_least_wake(
    open_inline_world: OpenWorld, mock_clock: MockClock, seed: int
) -> None:
    """Whatever is done in whatever order, by us or others, the table decides (R20)."""
    chosen = random.Random(seed)  # noqa: S311 - the same operations every time

    async def moody(event: AlarmDue[Note]) -> None:
        await trio.lowlevel.checkpoint()
        if chosen.random() < 0.4:
            raise HandlerError

    world = await open_inline_world(
        alarms=work(moody, manual=moody),
        configuration=ScheduleConfiguration(unchanged_attempt_budget=3),
    )
    for _ in range(60):
        committed = await do_something(world, mock_clock, chosen)
        native_alarm, least = world.native_alarm(), earliest(world)
        if committed:
            assert native_alarm == least
        else:
            # Others only lower it: it may come too early for what they replaced, never too late.
            assert least is None or (native_alarm is not None and native_alarm <= least)
    assert len(world.rows()) > 1
