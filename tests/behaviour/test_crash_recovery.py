"""What a reopened host finds and does after its process was lost (R32, R52)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

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
    fail,
    succeed,
    work,
)
from trio_alarms import (
    Alarm,
    AlarmService,
    InvalidAlarmRegistrationError,
    StorageOperationError,
    StorageOptions,
)

if TYPE_CHECKING:
    from tests.behaviour.conftest import OpenWorld, World
    from trio_alarms import AlarmDue

HOUR_MS = 3_600_000
DAY_S = 86_400


async def plain(world: World, run_at: int, id: str = "a", **options: Any) -> None:
    """Schedule the plain alarm from outside."""
    await world.host.service(Work).schedule_alarm(
        Work.plain, id, run_at=at(run_at), payload=Note("x"), **options
    )


async def manual(world: World, run_at: int, id: str = "m") -> None:
    """Schedule the manual alarm from outside."""
    await world.host.service(Work).schedule_alarm(
        Work.manual, id, run_at=at(run_at), payload=Note("x")
    )


async def restart(world: World, **options: Any) -> None:
    """Lose the process, and open a new one."""
    await world.harness.crash()
    await world.harness.reopen(**options)


# A crash at any point


class Counting:
    """A handler that takes some steps and counts its runs by id."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()

    async def __call__(self, event: AlarmDue[Any]) -> None:
        """Take two steps; those whose id says so fail."""
        self.runs[event.id] += 1
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        if event.id.startswith("failing"):
            raise HandlerError


async def lose_during_a_delivery(world: World, steps: int) -> bool:
    """Deliver, and lose the process after so many steps; whether the delivery was over by then."""
    over = False

    async def deliver(task_status: trio.TaskStatus[None]) -> None:
        nonlocal over
        task_status.started()
        await world.harness.deliver()
        over = True

    async with trio.open_nursery() as nursery:
        await nursery.start(deliver)
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        was_over = over
        await world.harness.crash()
    return was_over


@pytest.mark.parametrize("executor", ["inline", "thread"])
async def test_after_a_crash_at_any_step_all_runs_and_nothing_acknowledged_runs_again(
    open_inline_world: OpenWorld, mock_clock: MockClock, executor: Literal["inline", "thread"]
) -> None:
    """Due alarms run at least once in all, acknowledged ones never again (R52)."""
    handler = Counting()
    world = await open_inline_world(
        alarms=work(handler, skipping=handler, manual=handler),
        # It is opened some fifty times, and no power is lost.
        storage=StorageOptions(executor=executor, synchronous="off"),
    )
    was_over, steps = False, 1
    while not was_over:
        now = world.now()
        ids = {f"{kind} {steps}" for kind in ("one-shot", "last", "repeat", "failing")}
        for id in ids:
            repeat: Any = {"repeat_every": 600} if id.startswith("repeat") else {}
            await plain(world, now, id, **repeat)
        await manual(world, now, f"manual {steps}")
        was_over = await lose_during_a_delivery(world, steps)

        waiting = {row.id for row in world.rows() if row.run_at <= now}
        acknowledged = {id: handler.runs[id] for id in ids - waiting}
        await world.harness.reopen()
        assert world.native_alarm() == min(row.wake_at for row in world.rows())
        await world.harness.settle()
        await world.harness.advance(1)
        for id in ids:
            assert handler.runs[id] >= 1
            if id in acknowledged:
                assert handler.runs[id] == acknowledged[id]
        assert handler.runs[f"manual {steps}"] >= 1
        for row in world.rows():
            await world.host.scheduler.cancel_alarm(row.tag, row.id)
        # Beside a thread a step takes no time, and a delivery many of them.
        steps += 1 if executor == "inline" else steps // 2 + 1
    assert steps > 10


# What a crash interrupts


async def test_a_crash_inside_a_block_leaves_nothing_of_it(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Neither alarms nor application writes nor the native alarm (R10, R52)."""
    world = await open_world(alarms=work())
    await plain(world, 5_000, "kept")

    async def lose_in_a_block() -> None:
        async with world.host.storage.transaction() as tx:
            await tx.execute("CREATE TABLE orders (id)")
            await tx.schedule_alarm(Work.plain, "lost", run_at=at(0), payload=Note("x"))
            await tx.cancel_alarm(Work.plain, "kept")
            await world.harness.crash()

    with pytest.raises(StorageOperationError):
        await lose_in_a_block()
    await world.harness.reopen()
    assert [row.id for row in world.rows()] == ["kept"]
    assert world.native_alarm() == 5_000
    assert world.sql("SELECT 1 FROM sqlite_master WHERE name = 'orders'") == []


async def test_a_crash_inside_defer_wakes_leaves_a_guard_that_opening_replaces(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The guard stands until then, and is replaced by the earliest deadline (R17, R52)."""
    world = await open_world(alarms=work())
    await plain(world, 5_000)

    async def lose_while_deferring() -> None:
        async with world.host.scheduler.defer_wakes():
            await plain(world, 3_000, "b")
            await world.harness.crash()
            # As a process that is lost: what runs on reaches nothing any more.
            await plain(world, 1, "c")

    with pytest.raises(StorageOperationError):
        await lose_while_deferring()
    assert world.native_alarm() == 1_000
    await world.harness.reopen()
    assert world.native_alarm() == 3_000


async def test_a_consumed_native_alarm_is_armed_again_at_opening(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """A platform that forgot the timestamp and died loses nothing (R20, R52)."""
    handler = Recorder()
    world = await open_world(alarms=work(handler))
    await plain(world, 0)
    await world.harness.consume_native_alarm()
    assert world.native_alarm() is None
    await restart(world)
    assert world.native_alarm() == 0
    await world.harness.settle()
    assert handler.ids == ["a"]


@pytest.mark.parametrize("lost", [True, False], ids=["killed", "closed"])
async def test_an_alarm_missed_for_days_fires_once_at_opening(
    open_world: OpenWorld, mock_clock: MockClock, *, lost: bool
) -> None:
    """Three days late, at once, with the deadline that it had (R52, C02)."""
    handler = Recorder()
    world = await open_world(alarms=work(handler))
    await plain(world, 60_000)
    await world.harness.advance(30)
    if lost:
        await world.harness.crash()
    mock_clock.jump(30 + 3 * DAY_S)
    await world.harness.reopen()
    await world.harness.settle()
    assert handler.ran_at == [60_000 + 3 * DAY_S * 1_000]
    assert [event.scheduled_at for event in handler.events] == [at(60_000)]
    await world.harness.advance(DAY_S)
    assert len(handler.events) == 1


async def test_the_driver_of_a_reopened_host_fires_what_was_missed(
    open_inline_world: OpenWorld, mock_clock: MockClock
) -> None:
    """It needs no other event to begin (R50, R52, C02)."""
    handler = Recorder()
    world = await open_inline_world(alarms=work(handler))
    await plain(world, 60_000)
    await world.harness.crash()
    mock_clock.jump(3 * DAY_S)
    await world.harness.reopen(driver=True)
    await trio.testing.wait_all_tasks_blocked()
    assert handler.ran_at == [3 * DAY_S * 1_000]


async def test_what_several_crashes_interrupt_still_runs(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Each life that dies in the handler leaves the alarm due and uncharged (R52)."""
    world = await open_world(alarms=work())
    await plain(world, 0)
    for _ in range(5):
        handler = HeldHandler()
        await restart(world, alarms=work(handler))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.harness.deliver)
            await handler.started.wait()
            await world.harness.crash()
        await world.harness.reopen()
    row = world.row("plain", "a")
    assert row is not None
    assert (row.attempts, row.run_at, world.native_alarm()) == (0, 0, 0)
    handler = HeldHandler()
    handler.may_end.set()
    await restart(world, alarms=work(handler))
    await world.harness.settle()
    assert handler.ids == ["a"]
    assert world.rows() == []


async def test_acknowledged_alarms_never_run_again(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """One-shots are gone and repeats have moved on, however often it is reopened (R52)."""
    handler = Recorder()
    world = await open_world(alarms=work(handler))
    await plain(world, 0, "one-shot")
    await plain(world, 0, "repeat", repeat_every=60)
    await world.harness.deliver()
    for _ in range(3):
        await restart(world)
        await world.harness.settle()
    assert handler.ids == ["one-shot", "repeat"]
    assert [(row.id, row.run_at) for row in world.rows()] == [("repeat", 60_000)]


async def test_back_off_and_parking_survive_a_crash(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """A new process neither forgets attempts nor runs them early (R52)."""
    handler = Recorder(failures=100)
    world = await open_world(alarms=work(handler))
    await plain(world, 0)
    for wake_at in (0, 1_000, 3_000, 7_000, 15_000, 31_000, 63_000, 127_000):
        await world.harness.set_time(at(wake_at - 1 if wake_at else 0))
        await restart(world)
        if wake_at:
            await world.harness.settle()
            assert wake_at not in handler.ran_at
        await world.harness.set_time(at(wake_at))
        await world.harness.settle()
        assert handler.ran_at[-1] == wake_at
    row = world.row("plain", "a")
    assert row is not None
    assert (row.attempts, row.parked, row.wake_at) == (8, 1, 127_000 + HOUR_MS)


async def test_manual_alarms_come_back_at_their_in_flight_deadline(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """All that were selected, whether their handlers had started or waited (R26, R52)."""
    handler = HeldHandler()
    world = await open_world(alarms=work(manual=handler))
    for number in range(6):
        await manual(world, 0, f"m{number}")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.harness.deliver)
        await handler.started.wait()
        await trio.testing.wait_all_tasks_blocked()
        await world.harness.crash()
    handler.may_end.set()
    await world.harness.reopen()
    assert {row.run_at for row in world.rows()} == {1_000}
    assert world.native_alarm() == 1_000
    await world.harness.advance(1)
    assert sorted(handler.ids) == [f"m{number}" for number in range(6)]


# The stored lifecycle


class Renewed(AlarmService, key="renewed"):
    """A later version of the service, in which both alarms changed their lifecycle."""

    plain = Alarm(Note, lifecycle="manual")
    manual = Alarm(Note)


async def test_the_lifecycle_is_known_after_a_restart(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """It is stored with the row (R32)."""
    world = await open_world(alarms=work())
    await plain(world, 60_000)
    await manual(world, 60_000)
    await restart(world, alarms=None)
    alarms = world.host.scheduler
    statuses = [
        await alarms.get_alarm_status(tag, id) for tag, id in (("plain", "a"), ("manual", "m"))
    ]
    assert [status and status.lifecycle for status in statuses] == ["automatic", "manual"]


async def test_a_manual_alarm_stays_one_when_its_registration_is_gone(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """It waits for an hour uncharged, and runs as manual when the handler is back (R29, R32)."""
    world = await open_world(alarms=work())
    await manual(world, 0)
    await restart(world, alarms=None)
    with pytest.raises(InvalidAlarmRegistrationError, match="'manual'"):
        await world.harness.deliver()
    row = world.row("manual", "m")
    assert row is not None
    assert (row.lifecycle, row.attempts, row.run_at) == ("manual", 0, HOUR_MS)
    handler = Recorder()
    await restart(world, alarms=work(manual=handler))
    await world.harness.advance(3_600)
    assert handler.ids == ["m"]
    assert world.row("manual", "m") is not None


async def test_an_automatic_alarm_stays_one_when_its_registration_is_gone(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """It is charged and backs off, and is acknowledged when the handler is back (R30, R32)."""
    world = await open_world(alarms=work())
    await plain(world, 0)
    await restart(world, alarms=None)
    await world.harness.deliver()
    row = world.row("plain", "a")
    assert row is not None
    assert (row.attempts, row.wake_at) == (1, 1_000)
    handler = Recorder()
    await restart(world, alarms=work(handler))
    await world.harness.advance(1)
    assert handler.ids == ["a"]
    assert world.rows() == []


async def test_the_stored_lifecycle_counts_when_the_definition_has_changed(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """An automatic row is acknowledged, a manual one waits for its manual handler (R29, R32)."""
    world = await open_world(alarms=work())
    await plain(world, 0)
    await manual(world, 0)
    handler = Recorder()
    await restart(
        world,
        alarms=Renewed.handlers(
            Renewed.plain.handled_by(handler), Renewed.manual.handled_by(handler)
        ),
    )
    with pytest.raises(InvalidAlarmRegistrationError, match="'manual'"):
        await world.harness.deliver()
    assert handler.ids == ["a"]
    assert [(row.id, row.lifecycle, row.run_at) for row in world.rows()] == [
        ("m", "manual", HOUR_MS)
    ]


async def test_a_failing_manual_alarm_is_never_charged_over_restarts(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """However often it fails it stays manual, without attempts or parking (R29, R32)."""
    world = await open_world(alarms=work(succeed, manual=fail))
    await manual(world, 0)
    for hour in range(10):
        await world.harness.set_time(at(hour * HOUR_MS))
        with pytest.raises(HandlerError):
            await world.harness.deliver()
        await restart(world)
    row = world.row("manual", "m")
    assert row is not None
    assert (row.lifecycle, row.attempts, row.parked, row.run_at) == ("manual", 0, 0, 10 * HOUR_MS)
