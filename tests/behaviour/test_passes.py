"""What a pass does from its first wait to its last reconciliation (R22, R23)."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from trio_alarms import (
    AlarmDue,
    AlarmHost,
    ScheduleConfiguration,
    StorageOperationError,
    open_host,
)

from .conftest import OpenWorld, World
from .services import Recorder, fine, locked, serving

STAGES = ["waiting", "acquiring", "dispatching", "cleaning up"]
RECOVERY = ScheduleConfiguration(in_flight_recovery=7)


class Staged:
    """A handler, an event scope and a maintenance that hold a pass in the stage asked for."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.reached = trio.Event()
        self.runs: list[str] = []
        self.holding = True

    async def handler(self, event: AlarmDue[Any]) -> None:
        """Hold the pass while it dispatches."""
        self.runs.append(event.id)
        await self._hold("dispatching")

    @asynccontextmanager
    async def scope(self, _: AlarmHost) -> AsyncIterator[None]:
        """Hold the pass while it acquires or cleans up."""
        await self._hold("acquiring")
        yield
        await self._hold("cleaning up")

    async def maintain(self, host: AlarmHost) -> None:
        """Hold the pass while it waits."""
        if self.stage == "waiting":
            async with host.scheduler.defer_wakes():
                self.reached.set()
                await trio.sleep_forever()

    async def _hold(self, stage: str) -> None:
        if self.holding and self.stage == stage:
            self.reached.set()
            await trio.sleep_forever()


@contextmanager
def nothing_written(path: Path) -> Iterator[None]:
    """Check that no other connection commits anything meanwhile."""
    connection = sqlite3.connect(path)
    try:
        before = connection.execute("PRAGMA data_version").fetchone()
        yield
        assert connection.execute("PRAGMA data_version").fetchone() == before
    finally:
        connection.close()


async def arm(world: World, *ids: str, after: float = 0) -> None:
    """Schedule an automatic alarm for each id."""
    for id in ids:
        await world.host.scheduler.schedule_alarm("ring", id, after=after)


async def deliver(world: World) -> None:
    """Deliver whether or not the native alarm is due."""
    await world.host.deliver_native_alarm(force=True)


async def test_a_delivery_does_nothing_until_the_native_alarm_is_due(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """It says whether it delivered, and `force` delivers all the same (R20, R22)."""
    handler = Recorder()
    world = await open_world(alarms=serving({"ring": handler}))
    assert not await world.host.deliver_native_alarm()
    await arm(world, "1", after=5)
    mock_clock.jump(4.999)
    assert not await world.host.deliver_native_alarm()
    assert await world.host.deliver_native_alarm(force=True)
    assert handler.ids == []
    mock_clock.jump(0.001)
    assert await world.host.deliver_native_alarm()
    assert handler.ids == ["1"]
    assert not await world.host.deliver_native_alarm()


async def test_a_pass_runs_in_the_delivering_task(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Its event scope is entered and left there, and its handlers inherit its context (R22)."""
    who: ContextVar[str] = ContextVar("who", default="nobody")
    tasks: list[object] = []
    seen: list[str] = []

    @asynccontextmanager
    async def scope(_: AlarmHost) -> AsyncIterator[None]:
        tasks.append(trio.lowlevel.current_task())
        yield
        tasks.append(trio.lowlevel.current_task())

    async def ring(event: AlarmDue[Any]) -> None:
        seen.append(who.get())

    world = await open_inline_world(alarms=serving({"ring": ring}), event_scope=scope)
    await arm(world, "1")
    who.set("the deliverer")
    await world.host.deliver_native_alarm()
    assert tasks == [trio.lowlevel.current_task()] * 2
    assert seen == ["the deliverer"]


async def test_the_guard_is_committed_after_the_scope_is_entered_and_before_the_first_handler(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """A process that dies in the first handler comes back at the guard (R22)."""
    native: list[tuple[str, int | None]] = []

    @asynccontextmanager
    async def scope(_: AlarmHost) -> AsyncIterator[None]:
        native.append(("entering", world.native_alarm()))
        mock_clock.jump(1)
        yield

    async def ring(event: AlarmDue[Any]) -> None:
        native.append(("handling", world.native_alarm()))

    world = await open_world(
        alarms=serving({"ring": ring}), event_scope=scope, configuration=RECOVERY
    )
    await arm(world, "1")
    await world.host.deliver_native_alarm()
    assert native == [("entering", 0), ("handling", 8_000)]
    assert world.native_alarm() is None


async def test_a_delivery_by_itself_writes_nothing(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """A due timestamp counts as consumed; the first commit of the pass overwrites it (R50)."""
    staged = Staged("acquiring")
    world = await open_inline_world(
        alarms=serving({"ring": staged.handler}), event_scope=staged.scope
    )
    await arm(world, "1")
    async with trio.open_nursery() as nursery:
        with nothing_written(world.path), locked(world.path):
            nursery.start_soon(world.host.deliver_native_alarm)
            await staged.reached.wait()
        assert world.native_alarm() == 0
        nursery.cancel_scope.cancel()


async def test_a_commit_on_the_scopes_way_in_sets_a_fresh_guard(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """An active pass does not look at deadlines: its first commit sets the guard (R22, R18)."""
    native: list[int | None] = []

    @asynccontextmanager
    async def scope(host: AlarmHost) -> AsyncIterator[None]:
        await host.scheduler.schedule_alarm("ring", "soon", after=1)
        native.append(world.native_alarm())
        yield

    world = await open_inline_world(
        alarms=serving({"ring": fine}), event_scope=scope, configuration=RECOVERY
    )
    await arm(world, "1")
    mock_clock.jump(100)
    await world.host.deliver_native_alarm()
    assert native == [107_000]
    assert world.native_alarm() == 101_000


async def test_each_pass_sets_its_own_guard(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """A guard that an earlier pass has set is none of the next one's (R22)."""
    native: list[int | None] = []

    async def ring(event: AlarmDue[Any]) -> None:
        native.append(world.native_alarm())

    world = await open_inline_world(alarms=serving({"ring": ring}), configuration=RECOVERY)
    for _ in range(2):
        await arm(world, "1")
        await world.harness.consume_native_alarm()
        await world.host.deliver_native_alarm(force=True)
        mock_clock.jump(3)
    assert native == [7_000, 10_000]


async def test_a_commit_on_the_scopes_way_in_takes_over_no_earlier_guard(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """The first commit of a pass sets its guard, though that of the last one is to come (R22)."""
    native: list[int | None] = []

    @asynccontextmanager
    async def scope(host: AlarmHost) -> AsyncIterator[None]:
        await host.scheduler.schedule_alarm("ring", "later", after=60)
        native.append(world.native_alarm())
        yield

    world = await open_inline_world(
        alarms=serving({"ring": fine}), event_scope=scope, configuration=RECOVERY
    )
    for _ in range(2):
        await arm(world, "1")
        await world.harness.consume_native_alarm()
        await world.host.deliver_native_alarm(force=True)
        mock_clock.jump(3)
    assert native == [7_000, 10_000]


async def test_commits_of_a_pass_keep_the_guard_and_its_end_looks_at_deadlines(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Neither an earlier deadline nor cancelling all touches the guard meanwhile (R18, R23)."""
    native: list[int | None] = []

    async def ring(event: AlarmDue[Any]) -> None:
        scheduler = event.host.scheduler
        await scheduler.schedule_alarm("later", "1", after=0.5)
        native.append(world.native_alarm())
        await scheduler.cancel_alarm("later", "1")
        await scheduler.cancel_alarm("ring", "1")
        native.append(world.native_alarm())
        await scheduler.schedule_alarm("later", "2", after=30)

    world = await open_world(alarms=serving({"ring": ring, "later": fine}), configuration=RECOVERY)
    await arm(world, "1")
    await world.host.deliver_native_alarm()
    assert native == [7_000, 7_000]
    assert world.native_alarm() == 30_000


async def test_a_pass_waits_until_no_scope_is_open(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Scopes of any task count, and one that opens while the pass waits does too (R22)."""
    handler = Recorder()
    world = await open_inline_world(alarms=serving({"ring": handler}))
    await arm(world, "1")
    releases = [trio.Event(), trio.Event()]

    async def maintain(release: trio.Event, task_status: trio.TaskStatus[None]) -> None:
        async with world.host.scheduler.defer_wakes():
            task_status.started()
            await release.wait()

    async with trio.open_nursery() as nursery:
        await nursery.start(maintain, releases[0])
        nursery.start_soon(deliver, world)
        await trio.testing.wait_all_tasks_blocked()
        await nursery.start(maintain, releases[1])
        releases[0].set()
        await trio.testing.wait_all_tasks_blocked()
        assert handler.ids == []
        releases[1].set()
        await trio.testing.wait_all_tasks_blocked()
        assert handler.ids == ["1"]


async def test_a_waiting_delivery_keeps_the_guard_armed(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """A timestamp that was consumed is replaced at once, and again at each guard (R22)."""
    world = await open_inline_world(alarms=serving({"ring": fine}), configuration=RECOVERY)
    await arm(world, "1")
    release = trio.Event()

    async def maintain(task_status: trio.TaskStatus[None]) -> None:
        async with world.host.scheduler.defer_wakes():
            task_status.started()
            await release.wait()

    async with trio.open_nursery() as nursery:
        await nursery.start(maintain)
        await world.harness.consume_native_alarm()
        nursery.start_soon(deliver, world)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            armed = world.native_alarm()
            assert armed is not None
            assert armed == world.now() + 7_000
            mock_clock.jump(7)
            await trio.testing.wait_all_tasks_blocked()
        release.set()
    assert world.rows() == []
    assert world.native_alarm() is None


async def test_a_delivery_that_waits_through_scopes_one_after_the_other_stays_armed(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """The next scope may open in the very moment in which the last one ends (R22)."""
    world = await open_inline_world(alarms=serving({"ring": fine}), configuration=RECOVERY)
    await arm(world, "1")
    releases = [trio.Event() for _ in range(40)]

    async def maintain() -> None:
        for number, release in enumerate(releases):
            async with world.host.scheduler.defer_wakes():
                await release.wait()
            for _ in range(number // 2):
                await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(maintain)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(deliver, world)
        await trio.testing.wait_all_tasks_blocked()
        for release in releases:
            release.set()
            await trio.testing.wait_all_tasks_blocked()
            if not world.rows():
                break
            mock_clock.jump(7)
            await trio.testing.wait_all_tasks_blocked()
            armed = world.native_alarm()
            assert armed is not None
            assert armed > world.now()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("checkpoints", range(12))
async def test_no_pass_begins_while_a_scope_is_open_that_opened_just_then(
    checkpoints: int, open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Also between its last look at what is due and its beginning a pass gives way (R22)."""
    handler = Recorder()
    begun_beside_a_scope: list[bool] = []
    maintaining = False

    @asynccontextmanager
    async def scope(_: AlarmHost) -> AsyncIterator[None]:
        begun_beside_a_scope.append(maintaining)
        yield

    world = await open_inline_world(
        alarms=serving({"ring": handler}),
        event_scope=scope,
        configuration=ScheduleConfiguration(dispatch_after_event=True),
    )
    scheduler = world.host.scheduler
    async with scheduler.defer_wakes():
        async with world.host.event():
            await scheduler.schedule_alarm("ring", "1", after=0)
        await trio.testing.wait_all_tasks_blocked()
    for _ in range(checkpoints):
        await trio.lowlevel.checkpoint()
    maintaining = True
    async with scheduler.defer_wakes():
        await trio.testing.wait_all_tasks_blocked()
        maintaining = False
    await trio.testing.wait_all_tasks_blocked()
    assert handler.ids == ["1"]
    assert begun_beside_a_scope == [False, False]


async def test_a_scope_that_opens_while_a_pass_looks_is_waited_for(
    open_inline_world: OpenWorld,
    mock_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pass looks for open scopes again once it knows that something is due (R22)."""
    handler = Recorder()
    world = await open_inline_world(alarms=serving({"ring": handler}))
    await arm(world, "1")
    runtime, leave = world.host._runtime, trio.Event()
    look = runtime.has_due

    async def maintain(task_status: trio.TaskStatus[None]) -> None:
        async with world.host.scheduler.defer_wakes():
            task_status.started()
            await leave.wait()

    async def look_and_open_a_scope() -> bool:
        monkeypatch.setattr(runtime, "has_due", look)
        due = await look()
        await nursery.start(maintain)
        return due

    monkeypatch.setattr(runtime, "has_due", look_and_open_a_scope)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(runtime.passes.run, native=False))
        await trio.testing.wait_all_tasks_blocked()
        assert handler.ids == []
        leave.set()
    assert handler.ids == ["1"]


async def test_a_post_event_check_that_finds_nothing_due_writes_nothing(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Neither at once nor after it has waited for a scope (R23)."""
    world = await open_inline_world(
        alarms=serving({"ring": fine}),
        configuration=ScheduleConfiguration(dispatch_after_event=True),
    )
    await arm(world, "1", after=500)
    with nothing_written(world.path), locked(world.path):
        async with world.host.event():
            pass
        await trio.testing.wait_all_tasks_blocked()
        # Whatever waited for the lock would have given up by now.
        mock_clock.jump(100)
        await trio.testing.wait_all_tasks_blocked()
    assert world.native_alarm() == 500_000
    assert not await world.harness.deliver()


async def test_what_a_post_event_check_found_due_may_be_gone_when_its_turn_comes(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """It looks again once the scopes have ended, and then writes nothing (R22, R23)."""
    scopes: list[str] = []

    @asynccontextmanager
    async def scope(_: AlarmHost) -> AsyncIterator[None]:
        scopes.append("entered")
        yield

    world = await open_inline_world(
        alarms=serving({"ring": fine}),
        event_scope=scope,
        configuration=ScheduleConfiguration(dispatch_after_event=True),
    )
    scheduler = world.host.scheduler
    async with scheduler.defer_wakes():
        async with world.host.event():
            await scheduler.schedule_alarm("ring", "1", after=0)
        await trio.testing.wait_all_tasks_blocked()
        await scheduler.cancel_alarm("ring", "1")
    with nothing_written(world.path), locked(world.path):
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(100)
        await trio.testing.wait_all_tasks_blocked()
    assert not await world.harness.deliver()
    assert scopes == ["entered"]
    assert world.native_alarm() is None


async def test_a_post_event_pass_reconciles_when_it_has_dispatched(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """The guard that it left is replaced by the next deadline (R23)."""
    handler = Recorder()
    world = await open_inline_world(
        alarms=serving({"ring": handler}),
        configuration=ScheduleConfiguration(dispatch_after_event=True),
    )
    await arm(world, "later", after=50)
    async with world.host.event():
        await world.host.scheduler.schedule_alarm("ring", "now", after=0)
    await trio.testing.wait_all_tasks_blocked()
    assert handler.ids == ["now"]
    assert world.native_alarm() == 50_000


async def test_a_native_delivery_with_nothing_due_still_reconciles(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """A timestamp that no deadline stands behind does not ring forever (R23, R20)."""
    world = await open_world(alarms=serving({"ring": fine}))
    await arm(world, "1", after=60)
    world.sql("UPDATE trio_alarms_hosts SET native_alarm = ?", world.epoch_ms)
    assert await world.host.deliver_native_alarm()
    assert world.native_alarm() == 60_000
    assert not await world.host.deliver_native_alarm()


async def test_what_a_scopes_clean_up_schedules_is_armed_when_the_pass_ends(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """The pass is active to the end of its event scope and reconciles after it (R22, R23)."""
    native: list[int | None] = []

    @asynccontextmanager
    async def scope(host: AlarmHost) -> AsyncIterator[None]:
        yield
        await host.scheduler.schedule_alarm("ring", "next", after=2)
        native.append(world.native_alarm())

    world = await open_world(
        alarms=serving({"ring": fine}), event_scope=scope, configuration=RECOVERY
    )
    await arm(world, "1")
    await world.host.deliver_native_alarm()
    assert native == [7_000]
    assert world.native_alarm() == 2_000


async def hold_in_stage(world: World, staged: Staged, deliver: Any, nursery: trio.Nursery) -> None:
    """Have the pass of `deliver` reach the stage and stay there."""
    nursery.start_soon(staged.maintain, world.host)
    await trio.testing.wait_all_tasks_blocked()
    nursery.start_soon(deliver)
    await staged.reached.wait()
    await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("stage", STAGES)
async def test_a_cancelled_pass_leaves_what_is_due_due(
    stage: str, open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Cancelled in any stage: deadlines are reconciled at once and nothing is charged (R24)."""
    staged = Staged(stage)
    world = await open_inline_world(
        alarms=serving({"ring": staged.handler}), event_scope=staged.scope, configuration=RECOVERY
    )
    await arm(world, "1")
    await arm(world, "2", after=3)
    before = world.row("ring", "1")
    async with trio.open_nursery() as nursery:
        await hold_in_stage(world, staged, partial(deliver, world), nursery)
        nursery.cancel_scope.cancel()
    if stage == "cleaning up":
        assert world.row("ring", "1") is None
        assert world.native_alarm() == 3_000
    else:
        assert world.row("ring", "1") == before
        assert world.native_alarm() == 0
    staged.holding = False
    mock_clock.jump(3)
    await world.harness.settle()
    assert staged.runs == (["1", "1", "2"] if stage == "dispatching" else ["1", "2"])
    assert world.native_alarm() is None


@pytest.mark.parametrize("stage", STAGES)
async def test_a_pass_whose_host_is_closed_is_cancelled_after_the_drain(
    stage: str, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """What it did not acknowledge is due, uncharged, at the next opening (R23, R24)."""
    staged = Staged(stage)
    path = tmp_path / "alarms.db"
    caught: list[Exception] = []
    async with trio.open_nursery() as nursery:
        async with open_host(
            path,
            alarms=serving({"ring": staged.handler}),
            event_scope=staged.scope,
            driver=False,
            drain_timeout=2,
        ) as host:

            async def deliver() -> None:
                try:
                    await host.deliver_native_alarm(force=True)
                except StorageOperationError as error:
                    caught.append(error)

            await host.scheduler.schedule_alarm("ring", "1", after=0)
            nursery.start_soon(staged.maintain, host)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(deliver)
            await staged.reached.wait()
            await trio.testing.wait_all_tasks_blocked()
            began = trio.current_time()
        # A pass that only waits is given up at once; the others get their time.
        assert trio.current_time() - began == (0 if stage == "waiting" else 2)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert len(caught) == 1
    handler = Recorder()
    async with open_host(path, alarms=serving({"ring": handler}), driver=False) as host:
        await host.deliver_native_alarm()
    assert [event.attempts for event in handler.events] == ([] if stage == "cleaning up" else [0])


@pytest.mark.parametrize("stage", STAGES)
async def test_a_crash_in_any_stage_of_a_pass_loses_nothing(
    stage: str, open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """No finalizer of the pass writes, and the next process runs what was not acknowledged (R52).

    A delivery that was under way returns False.
    """
    staged = Staged(stage)
    world = await open_inline_world(
        alarms=serving({"ring": staged.handler}), event_scope=staged.scope, configuration=RECOVERY
    )
    await arm(world, "1")
    delivered: list[bool] = []

    async def deliver() -> None:
        delivered.append(await world.host.deliver_native_alarm(force=True))

    async with trio.open_nursery() as nursery:
        await hold_in_stage(world, staged, deliver, nursery)
        with nothing_written(world.path):
            await world.harness.crash()
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert delivered == [False]
    staged.holding = False
    await world.harness.reopen()
    await world.harness.settle()
    assert staged.runs == (["1", "1"] if stage == "dispatching" else ["1"])
    assert world.rows() == []


async def test_a_pass_raises_one_error_bare_and_several_as_a_group(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """What a delivery raises is what the pass that it started raised (R29, R30)."""
    errors = {"1": ValueError("one"), "2": KeyError("two")}

    async def paint(event: AlarmDue[Any]) -> None:
        raise errors[event.id]

    world = await open_world(alarms=serving(manual={"paint": paint}))
    await world.host.scheduler.schedule_alarm("paint", "1", after=0, lifecycle="manual")
    with pytest.raises(ValueError, match="one") as single:
        await world.host.deliver_native_alarm()
    assert single.value is errors["1"]
    for id in errors:
        await world.host.scheduler.schedule_alarm("paint", id, after=0, lifecycle="manual")
    with pytest.raises(ExceptionGroup) as several:
        await world.host.deliver_native_alarm()
    assert set(several.value.exceptions) == set(errors.values())


async def test_a_failing_clean_up_fails_the_pass_but_undoes_no_acknowledgement(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """The pass reconciles because it dispatched and because it failed (R23)."""
    error = RuntimeError("the pool is gone")

    @asynccontextmanager
    async def scope(_: AlarmHost) -> AsyncIterator[None]:
        yield
        raise error

    world = await open_inline_world(alarms=serving({"ring": fine}), event_scope=scope)
    await arm(world, "1")
    await arm(world, "2", after=9)
    with pytest.raises(RuntimeError) as caught:
        await world.host.deliver_native_alarm()
    assert caught.value is error
    assert [row.id for row in world.rows()] == ["2"]
    assert world.native_alarm() == 9_000


async def test_what_a_handler_leaves_in_the_events_nursery_ends_before_the_pass(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """The pass is not over while a task of its event runs (R22, R40)."""
    order: list[str] = []

    async def ring(event: AlarmDue[Any]) -> None:
        event.scope.nursery.start_soon(linger)
        order.append("handled")

    async def linger() -> None:
        await trio.sleep(3)
        order.append("lingered")

    world = await open_inline_world(alarms=serving({"ring": ring}))
    await arm(world, "1")
    await world.host.deliver_native_alarm()
    order.append("over")
    assert order == ["handled", "lingered", "over"]
