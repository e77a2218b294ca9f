"""What follows a shared commit, each for its own caller: reports, effects, acknowledgements."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from tests.behaviour.group_tools import (
    TAG,
    Call,
    Calls,
    Operation,
    RefusedError,
    Watch,
    commit_under_way,
    fail,
    idle,
    open_watched,
    schedule,
    stored,
)
from tests.behaviour.storage_tools import locked
from trio_alarms import (
    AlarmDue,
    AlarmParked,
    DispatchOptions,
    ScheduleConfiguration,
    StorageOperationError,
    StorageOptions,
    alarm_reporter,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.behaviour.conftest import OpenWorld, World
    from trio_alarms._store._session import Session

IMPATIENT = StorageOptions(executor="inline", synchronous="off", busy_timeout=1)
PATIENT = StorageOptions(executor="inline", synchronous="off", busy_timeout=30)

PARKS_AT_ONCE = ScheduleConfiguration(unchanged_attempt_budget=1)


class Handlings:
    """Handlers that all wait, and then do the same at once, each in its own handling."""

    def __init__(self, act: Callable[[AlarmDue[Any]], Any], number: int = 3) -> None:
        self.running: list[AlarmDue[Any]] = []
        self.all_run = trio.Event()
        self._act = act
        self._number = number
        self._go = trio.Event()

    async def __call__(self, event: AlarmDue[Any]) -> None:
        """Wait, then act."""
        self.running.append(event)
        if len(self.running) == self._number:
            self.all_run.set()
        await self._go.wait()
        await self._act(event)

    def go(self) -> None:
        """Let all of them act."""
        self._go.set()


async def dispatch(world: World, handlings: Handlings, nursery: trio.Nursery, *ids: str) -> Call:
    """Begin to dispatch alarms that are due now, until their handlers all wait."""
    for id in ids:
        await world.host.scheduler.schedule_alarm("due", id, after=0)
    calls = Calls(nursery, Watch())
    options = DispatchOptions(concurrency=len(ids))
    call = await calls.start(partial(world.host.scheduler.process_due_alarms, handlings, options))
    await handlings.all_run.wait()
    return call


async def test_reports_reach_their_own_callers_in_their_own_contexts(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """Handlers that park alarms in one commit are each told of their own (R16)."""
    caller: ContextVar[str] = ContextVar("caller", default="nobody")
    told: list[tuple[str, str, timedelta]] = []
    tasks: list[tuple[str, trio.lowlevel.Task]] = []

    async def report(id: str, parked: AlarmParked) -> None:
        told.append((id, caller.get(), parked.retry_at - world.host.now()))
        tasks.append((id, trio.lowlevel.current_task()))

    async def park(event: AlarmDue[Any]) -> None:
        caller.set(event.id)
        tasks.append((event.id, trio.lowlevel.current_task()))
        hours = 2 + int(event.id)
        with alarm_reporter(partial(report, event.id)):
            await world.host.scheduler.schedule_alarm(TAG, event.id, after=timedelta(hours=hours))

    world, watch = await open_watched(
        open_world, mock_clock, storage_kind, configuration=PARKS_AT_ONCE
    )
    handlings = Handlings(park, 6)
    ids = [f"{number}" for number in range(6)]
    async with trio.open_nursery() as nursery:
        call = await dispatch(world, handlings, nursery, *ids)
        async with commit_under_way(world, watch, storage_kind) as calls:
            handlings.go()
            await trio.testing.wait_all_tasks_blocked()
    assert call.outcome == "value"
    assert sorted(told) == [(id, id, timedelta(hours=2 + int(id))) for id in ids]
    # The committing task is the caller's.
    assert len(set(tasks)) == 6
    assert len(call.result.parked) == 6
    # One for what they scheduled; then their acknowledgements.
    assert 1 < calls.commits < 6
    assert {row.parked for row in world.rows() if row.tag == TAG} == {1}


async def test_a_reporter_holds_up_its_own_caller_alone(
    autojump_clock: trio.testing.MockClock,
    open_inline_world: OpenWorld,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that sleeps or raises changes nothing for those that share its commit (R16)."""
    ended: dict[str, float] = {}

    async def report(id: str, _: AlarmParked) -> None:
        if id == "raises":
            raise RuntimeError(id)
        if id != "returns":
            await trio.sleep(3 if id == "sleeps" else 1_000)

    async def park(event: AlarmDue[Any]) -> None:
        with alarm_reporter(partial(report, event.id)):
            await world.host.scheduler.schedule_alarm(TAG, event.id, after=600)
        ended[event.id] = trio.current_time()

    world, watch = await open_watched(
        open_inline_world, autojump_clock, configuration=PARKS_AT_ONCE
    )
    handlings = Handlings(park, 4)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        await dispatch(world, handlings, nursery, "returns", "raises", "sleeps", "never ends")
        async with commit_under_way(world, watch) as calls:
            handlings.go()
            await trio.testing.wait_all_tasks_blocked()
            plain = await calls.start(schedule(world.host, "beside"))
    assert plain.at == began
    assert ended == {
        "returns": began,
        "raises": began,
        "sleeps": began + 3,
        "never ends": began + 5,
    }
    assert len(caplog.records) == 2
    assert set(stored(world)) == {*ended, "beside"}


async def test_what_one_parks_and_another_frees_is_not_reported(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """Reported is what is still parked once they have committed together, and once (R16)."""
    told: list[tuple[str, timedelta]] = []

    async def report(id: str, parked: AlarmParked) -> None:
        told.append((id, parked.retry_at - world.host.now()))

    async def park(event: AlarmDue[Any]) -> None:
        order = int(event.id)
        for _ in range(order):
            await trio.testing.wait_all_tasks_blocked()
        scheduler = world.host.scheduler
        with alarm_reporter(partial(report, event.id)):
            if order in {0, 1}:
                # Both of them park the same alarm; the second one's deadline stands.
                hours = 2 + order
                await scheduler.schedule_alarm(TAG, "shared", after=timedelta(hours=hours))
            elif order == 2:
                await scheduler.schedule_alarm(TAG, "freed", after=600)

    world, watch = await open_watched(
        open_world, mock_clock, storage_kind, configuration=PARKS_AT_ONCE
    )
    handlings = Handlings(park)
    async with trio.open_nursery() as nursery:
        await dispatch(world, handlings, nursery, "0", "1", "2")
        async with commit_under_way(world, watch, storage_kind) as calls:
            handlings.go()
            for _ in range(4):
                await trio.testing.wait_all_tasks_blocked()
            await calls.start(schedule(world.host, "freed"))
    # That it says so shows that the second one was in the same commit.
    assert told == [("0", timedelta(hours=3))]
    freed = world.row(TAG, "freed")
    assert freed is not None
    assert not freed.parked


async def test_failures_that_are_recorded_together_are_each_reported(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """Each handler's failure parks its own alarm, in a commit they share (R16, R28)."""
    told: list[AlarmParked] = []

    async def report(parked: AlarmParked) -> None:
        told.append(parked)

    async def act(event: AlarmDue[Any]) -> None:
        raise ValueError(event.id)

    world, watch = await open_watched(
        open_world, mock_clock, storage_kind, configuration=PARKS_AT_ONCE, reporter=report
    )
    handlings = Handlings(act)
    async with trio.open_nursery() as nursery:
        call = await dispatch(world, handlings, nursery, "0", "1", "2")
        async with commit_under_way(world, watch, storage_kind) as calls:
            handlings.go()
            await trio.testing.wait_all_tasks_blocked()
    assert len(told) == 3
    assert sorted(failure.id for failure in call.result.failed) == ["0", "1", "2"]
    assert len(call.result.parked) == 3
    assert calls.commits < 3
    due = [row for row in world.rows() if row.tag == "due"]
    assert [(row.id, row.attempts, row.parked) for row in due] == [
        ("0", 1, 1),
        ("1", 1, 1),
        ("2", 1, 1),
    ]


async def test_effects_follow_the_commit_of_those_alone_that_succeeded(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """In order, once, in the loop, and not for what is refused or fails to commit."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    writer = world.host._runtime.writer
    effects: list[str] = []

    def noting(id: str, *, refused: bool = False) -> Operation:
        def effect() -> None:
            trio.lowlevel.current_task()
            effects.append(id)
            assert watch.commits > commits

        def operation(session: Session) -> str:
            session.after_commit(effect)
            if refused:
                raise RefusedError
            return id

        return partial(writer.write, operation, name="note")

    commits = watch.commits
    async with commit_under_way(world, watch, storage_kind) as calls:
        await calls.start_all(noting("a"), noting("b", refused=True), noting("c"))
    assert [call.result for call in calls.all] == ["a", None, "c"]
    assert effects == ["a", "c"]
    async with commit_under_way(world, watch, storage_kind) as calls:
        calls.at_commit(1, fail)
        await calls.start_all(noting("d"), noting("e"))
    assert [call.outcome for call in calls.all] == ["error"] * 2
    assert effects == ["a", "c"]


# Acknowledgements in batches


async def nothing(_: object) -> None:
    """Handle at once."""


@pytest.mark.parametrize("leader", ["an acknowledgement", "an operation"])
async def test_acknowledgements_that_wait_in_a_batch_survive_a_cancelled_pass(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str, leader: str
) -> None:
    """Whoever leads: what was handled is acknowledged, and others' work is stored (R28)."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    handlings = Handlings(nothing)
    async with trio.open_nursery() as nursery:
        call = await dispatch(world, handlings, nursery, "0", "1", "2")
        async with commit_under_way(world, watch, storage_kind) as calls:
            if leader == "an operation":
                await calls.start(schedule(world.host, "before"))
            handlings.go()
            await trio.testing.wait_all_tasks_blocked()
            await calls.start(schedule(world.host, "after"))
            call.scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert not call.ended.is_set()
    assert call.outcome == "cancelled"
    assert {other.outcome for other in calls.all} == {"value"}
    assert [row.id for row in world.rows() if row.tag == "due"] == []
    assert len(stored(world)) == len(calls.all)
    assert idle(world.host)
    await world.step()
    assert await world.host.deliver_native_alarm() is False


async def test_acknowledgements_outlive_a_cancelled_leader(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """The operation at the head of their batch leaves it; they go on (R28)."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    handlings = Handlings(nothing)
    async with trio.open_nursery() as nursery:
        call = await dispatch(world, handlings, nursery, "0", "1", "2")
        async with commit_under_way(world, watch, storage_kind) as calls:
            head = await calls.start(schedule(world.host, "head"))
            handlings.go()
            await trio.testing.wait_all_tasks_blocked()
            head.scope.cancel()
    assert head.outcome == "cancelled"
    assert call.outcome == "value"
    assert len(call.result.handled) == 3
    assert [row.id for row in world.rows() if row.tag == "due"] == []
    assert stored(world) == {}
    assert calls.commits < 3


async def test_acknowledgements_wait_for_a_lock_though_their_pass_is_cancelled(
    autojump_clock: trio.testing.MockClock, open_inline_world: OpenWorld
) -> None:
    """For `busy_timeout` at most; released before, they are stored (R11, R28)."""
    world, watch = await open_watched(open_inline_world, autojump_clock, storage=PATIENT)
    handlings = Handlings(nothing)
    async with trio.open_nursery() as nursery:
        call = await dispatch(world, handlings, nursery, "0", "1", "2")
        with locked(world.path) as release:
            calls = Calls(nursery, watch)
            plain = await calls.start(schedule(world.host, "plain"))
            handlings.go()
            await trio.sleep(0.1)
            beside = await calls.start(schedule(world.host, "beside"))
            plain.scope.cancel()
            await trio.sleep(0.1)
            call.scope.cancel()
            await trio.sleep(0.1)
            assert plain.outcome == "cancelled"
            assert not call.ended.is_set()
            release()
            released_at = trio.current_time()
            await call.ended.wait()
            await beside.ended.wait()
            assert trio.current_time() - released_at <= 0.1
    # Nothing was left to be cancelled, or hardly anything.
    assert call.outcome in {"cancelled", "value"}
    assert beside.outcome == "value"
    assert [(row.tag, row.id) for row in world.rows()] == [(TAG, "beside"), ("first", "first")]


async def test_acknowledgements_give_up_on_a_lock_that_stays(
    autojump_clock: trio.testing.MockClock, open_inline_world: OpenWorld
) -> None:
    """Each is remembered, and none of the handlers runs again in this process (R53)."""
    world, watch = await open_watched(open_inline_world, autojump_clock, storage=IMPATIENT)
    async with trio.open_nursery() as nursery:
        calls = Calls(nursery, watch)
        await world.host.scheduler.schedule_alarm("due", "0", after=0)
        await world.host.scheduler.schedule_alarm("due", "1", after=0)
        handlings = Handlings(nothing, 2)
        options = DispatchOptions(concurrency=2)
        run = partial(world.host.scheduler.process_due_alarms, handlings, options)
        failed = await calls.start(run)
        with locked(world.path):
            handlings.go()
            await failed.ended.wait()
        assert isinstance(failed.error, (StorageOperationError, ExceptionGroup))
        await trio.sleep(0.1)
        again = await calls.start(run)
    assert again.outcome == "value"
    assert sorted(event.id for event in handlings.running) == ["0", "1"]
    assert [row.id for row in world.rows() if row.tag == "due"] == []
