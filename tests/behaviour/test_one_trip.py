"""One trip per alarm: a row is settled and the next one re-read together (R6, R27, R28, R53)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from tests.behaviour.group_tools import Call, Calls, Watch, fail, idle, open_watched, until
from tests.behaviour.storage_tools import error_of, locked
from trio_alarms import (
    AlarmDue,
    AlarmFailure,
    DispatchOptions,
    StorageOperationError,
    StorageOptions,
)
from trio_alarms._store._executor import InlineExecutor, ThreadExecutor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.behaviour.conftest import OpenWorld, World

TAG = "due"
ORDERED = DispatchOptions(concurrency=1, limit=100)


class Handler:
    """Notes what it gets, and then does what the test wants with it."""

    def __init__(self, act: Callable[[AlarmDue[Any]], Awaitable[object]] | None = None) -> None:
        self.ids: list[str] = []
        self._act = act

    async def __call__(self, event: AlarmDue[Any]) -> None:
        """Note it, and act."""
        self.ids.append(event.id)
        if self._act is not None:
            await self._act(event)


async def arm(world: World, number: int) -> list[str]:
    """So many alarms that are due, in the order of their ids."""
    ids = [f"{at:03}" for at in range(number)]
    async with world.host.scheduler.transaction() as tx:
        for id in ids:
            await tx.schedule_alarm(TAG, id, after=0)
    return ids


def left(world: World) -> list[str]:
    """The ids of the due alarms that another connection still sees."""
    return sorted(row.id for row in world.rows() if row.tag == TAG)


def check_nothing_in_hand(world: World) -> None:
    """Nothing is in hand or runs, and nobody has the turn."""
    runtime = world.host._runtime
    assert runtime.writer.in_hand == {}
    assert runtime.dispatch_state.running == {}
    assert idle(world.host)


def dispatching(
    world: World, handler: Handler, options: DispatchOptions = ORDERED
) -> Callable[[], Awaitable[Any]]:
    """Dispatch what is due."""
    return partial(world.host.scheduler.process_due_alarms, handler, options)


@pytest.fixture
def every_trip(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """One for every trip to SQLite, of the writer and of the reader."""
    trips: list[float] = []
    for executor in (InlineExecutor, ThreadExecutor):

        async def noted(self: Any, function: Any, method: Any = executor.run) -> Any:
            trips.append(trio.current_time())
            return await method(self, function)

        monkeypatch.setattr(executor, "run", noted)
    return trips


# How many trips and commits


@pytest.mark.parametrize("way", ["acknowledged", "charged", "skipped", "undecodable"])
async def test_each_alarm_costs_one_trip(
    mock_clock: trio.testing.MockClock,
    open_world: OpenWorld,
    storage_kind: str,
    every_trip: list[float],
    way: str,
) -> None:
    """Whatever comes of it, twenty more alarms are twenty more trips and commits."""

    async def act(event: AlarmDue[Any]) -> None:
        if way != "acknowledged":
            raise ValueError(event.id)

    async def skip(_: AlarmFailure) -> Any:
        return "skip-and-advance-repeat" if way == "skipped" else "retry"

    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    options = DispatchOptions(limit=100, on_failure=skip)
    counts: list[tuple[int, int, int]] = []
    for number in (5, 25):
        ids = await arm(world, number)
        if way == "undecodable":
            world.sql("UPDATE trio_alarms_alarms SET payload = '{' WHERE tag = ?", TAG)
        handler = Handler(act)
        before = len(every_trip), len(watch.trips), watch.commits
        result = await dispatching(world, handler, options)()
        after = len(every_trip), len(watch.trips), watch.commits
        counts.append(tuple(b - a for a, b in zip(before, after, strict=True)))  # type: ignore[arg-type]  # three of them
        assert handler.ids == ([] if way == "undecodable" else ids)
        assert len(result.handled) + len(result.failed) == number
        world.sql("DELETE FROM trio_alarms_alarms WHERE tag = ?", TAG)
    few, many = counts
    assert [b - a for a, b in zip(few, many, strict=True)] == [20, 20, 20]
    # The constant: what is due, the guard before and after, and the first row.
    assert few[0] - 5 <= 5
    check_nothing_in_hand(world)


async def test_a_pass_costs_one_trip_per_alarm_too(
    mock_clock: trio.testing.MockClock,
    open_world: OpenWorld,
    storage_kind: str,
    every_trip: list[float],
) -> None:
    """A delivery through a hook, which commits the guard as well."""
    handler = Handler()

    async def hook(host: Any) -> None:
        await host.scheduler.process_due_alarms(handler, ORDERED)

    world, watch = await open_watched(open_world, mock_clock, storage_kind, alarms=hook)
    counts: list[int] = []
    for number in (5, 25):
        ids = await arm(world, number)
        handler.ids.clear()
        before = len(every_trip)
        await world.host.deliver_native_alarm()
        counts.append(len(every_trip) - before)
        assert handler.ids == ids
        assert left(world) == []
    assert counts[1] - counts[0] == 20
    assert counts[0] - 5 <= 15
    assert watch.commits > 30
    check_nothing_in_hand(world)


@pytest.mark.parametrize("number", [8, 20, 50])
async def test_side_by_side_acknowledgements_share_commits(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str, number: int
) -> None:
    """Eight at a time: each alarm runs once, and fewer commits than alarms are made."""

    async def together(_: AlarmDue[Any]) -> None:
        await barrier.wait()

    barrier = trio.Event()
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    ids = await arm(world, number)
    handler = Handler(together)
    options = DispatchOptions(concurrency=8, limit=100)
    async with trio.open_nursery() as nursery:
        calls = Calls(nursery, watch)
        call = await calls.start(dispatching(world, handler, options))
        await until(lambda: len(handler.ids) == 8)
        barrier.set()
    assert sorted(handler.ids) == ids
    assert call.outcome == "value"
    assert len(call.result.handled) == number
    assert left(world) == []
    # How many depends on Trio's own draw once they are out of step; those in step need two.
    # The guard before and after are two of them, and choosing what is due is the third.
    assert calls.commits - 3 <= (2 if number == 8 else number - 6)
    check_nothing_in_hand(world)


# Strict order


@pytest.mark.parametrize("fails", [False, True])
async def test_a_handler_starts_only_when_the_former_is_settled_durably(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str, *, fails: bool
) -> None:
    """Another connection sees, from within each handler, that those before are settled (R28)."""
    seen: list[list[str]] = []
    running = 0

    async def act(event: AlarmDue[Any]) -> None:
        nonlocal running
        running += 1
        assert running == 1
        rows = [row for row in world.rows() if row.tag == TAG]
        seen.append([row.id for row in rows if not row.attempts])
        await trio.lowlevel.checkpoint()
        running -= 1
        if fails:
            raise ValueError(event.id)

    world, _ = await open_watched(open_world, mock_clock, storage_kind)
    ids = await arm(world, 6)
    await dispatching(world, Handler(act))()
    assert seen == [ids[at:] for at in range(6)]
    assert len(left(world)) == (6 if fails else 0)


async def test_a_settlement_that_fails_starts_nothing_more(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """The next row is let go; what was handled is acknowledged first, next time (R53)."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    ids = await arm(world, 4)

    async def act(event: AlarmDue[Any]) -> None:
        if event.id == ids[1] and not failed:
            watch.at_commit(1, partial(fail, "SQLITE_FULL"))
        elif event.id == ids[2]:
            assert left(world) == ids[2:]

    failed = False
    handler = Handler(act)
    error = await error_of(dispatching(world, handler))
    assert isinstance(error, StorageOperationError)
    failed = True
    assert handler.ids == ids[:2]
    assert left(world) == ids[1:]
    runtime = world.host._runtime
    assert runtime.dispatch_state.running == {}
    # What is handled and not acknowledged stays in hand, and nothing else (R6, R53).
    assert [ref.id for ref in runtime.writer.in_hand] == [ids[1]]
    assert idle(world.host)
    result = await dispatching(world, handler)()
    assert handler.ids == ids
    assert [event.id for event in result.handled] == ids[1:]
    assert left(world) == []
    check_nothing_in_hand(world)


async def test_several_remembered_acknowledgements_come_first_and_cost_one_trip_each(
    mock_clock: trio.testing.MockClock,
    open_world: OpenWorld,
    storage_kind: str,
    every_trip: list[float],
) -> None:
    """None of what was handled is handled again; what was not, is, afterwards (R53)."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    ids = await arm(world, 6)
    waiting = trio.Event()
    broken = True

    async def act(_: AlarmDue[Any]) -> None:
        if broken:
            await waiting.wait()

    handler = Handler(act)
    options = DispatchOptions(concurrency=3, limit=100)
    with disk_full(world):
        async with trio.open_nursery() as nursery:
            calls = Calls(nursery, watch)
            call = await calls.start(dispatching(world, handler, options))
            await until(lambda: len(handler.ids) == 3)
            waiting.set()
    assert call.outcome == "error"
    assert sorted(handler.ids) == ids[:3]
    assert left(world) == ids
    broken = False
    before = len(every_trip)
    result = await dispatching(world, handler)()
    trips = len(every_trip) - before
    assert handler.ids[3:] == ids[3:]
    assert len(handler.ids) == 6
    assert sorted(event.id for event in result.handled) == ids
    assert trips - 6 <= 6
    check_nothing_in_hand(world)


@contextmanager
def disk_full(world: World) -> Iterator[None]:
    """No due alarm can be deleted or changed."""
    for kind in ("DELETE", "UPDATE"):
        world.sql(
            f"CREATE TRIGGER full_{kind} BEFORE {kind} ON trio_alarms_alarms WHEN old.tag = 'due'"
            " BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
    yield
    for kind in ("DELETE", "UPDATE"):
        world.sql(f"DROP TRIGGER full_{kind}")


# Between the re-read and the start


def at_commit_that_settles(
    watch: Watch, id: str, hook: Callable[[], object]
) -> Callable[[AlarmDue[Any]], Awaitable[None]]:
    """A handler's act: call `hook` in the loop, as the commit that settles `id` begins."""

    async def act(event: AlarmDue[Any]) -> None:
        if event.id == id:
            watch.at_commit(1, lambda: watch.in_loop(hook))

    return act


async def test_a_pass_cancelled_as_a_row_is_settled_does_not_start_the_next(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """It was re-read in the same trip; it is let go, and nothing is charged (R27)."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    ids = await arm(world, 4)
    scope = trio.CancelScope()
    handler = Handler(at_commit_that_settles(watch, ids[1], scope.cancel))
    async with trio.open_nursery() as nursery:
        calls = Calls(nursery, watch)
        call = Call(dispatching(world, handler), scope)
        nursery.start_soon(calls._run, call)
    assert call.outcome == "cancelled"
    assert handler.ids == ids[:2]
    assert left(world) == ids[2:]
    assert [row.attempts for row in world.rows() if row.tag == TAG] == [0, 0]
    check_nothing_in_hand(world)
    await world.step()
    again = Handler()
    await dispatching(world, again)()
    assert again.ids == ids[2:]


@pytest.mark.parametrize("how", ["lost", "closing"])
async def test_a_host_that_goes_as_a_row_is_settled_does_not_start_the_next(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str, how: str
) -> None:
    """What was settled stays so; the next one, though re-read, is let go (R27, R52)."""
    handler = Handler()

    async def hook(host: Any) -> None:
        await host.scheduler.process_due_alarms(handler, ORDERED)

    world, watch = await open_watched(open_world, mock_clock, storage_kind, alarms=hook)
    ids = await arm(world, 4)
    runtime = world.host._runtime
    go = runtime.lose if how == "lost" else runtime._stop_starting
    handler._act = at_commit_that_settles(watch, ids[1], go)
    await error_of(world.harness.deliver)
    assert handler.ids == ids[:2]
    assert left(world) == ids[2:]
    assert runtime.writer.in_hand == {}
    assert runtime.dispatch_state.running == {}
    assert [row.attempts for row in world.rows() if row.tag == TAG] == [0, 0]
    await (world.harness.crash() if how == "lost" else world.harness.close())
    await world.harness.reopen()
    await world.harness.settle()
    assert handler.ids == ids
    assert left(world) == []


@pytest.mark.parametrize("change", ["cancel", "schedule", "earlier", "ensure"])
async def test_a_row_changed_from_outside_while_the_former_is_handled_is_seen(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str, change: str
) -> None:
    """The re-read comes after the former's handler, so what it did to the next counts (R27)."""

    async def act(event: AlarmDue[Any]) -> None:
        scheduler = world.host.scheduler
        if event.id != ids[0]:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outside, scheduler)

    async def outside(scheduler: Any) -> None:
        if change == "cancel":
            await scheduler.cancel_alarm(TAG, ids[1])
        elif change == "schedule":
            await scheduler.schedule_alarm(TAG, ids[1], after=500)
        elif change == "earlier":
            # Selected and not started: it keeps its deadline (R6), but is another revision.
            await scheduler.schedule_alarm_earlier(TAG, ids[1], after=500)
        else:
            await scheduler.ensure_alarm(TAG, ids[1], after=500)

    world, _ = await open_watched(open_world, mock_clock, storage_kind)
    ids = await arm(world, 3)
    handler = Handler(act)
    await dispatching(world, handler)()
    assert handler.ids == (ids if change == "ensure" else [ids[0], ids[2]])
    row = world.row(TAG, ids[1])
    if change in {"cancel", "ensure"}:
        assert row is None
    else:
        assert row is not None
        # From within a handling these are self-rearms, which back off; the deadline says which.
        assert row.run_at == (500_000 if change == "schedule" else 0)
    check_nothing_in_hand(world)


@pytest.mark.parametrize("change", ["cancel", "schedule", "earlier"])
async def test_a_row_that_is_changed_after_its_re_read_is_in_hand(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str, change: str
) -> None:
    """Queued behind the trip that re-read it: its handler runs, and the change stands (R6, R28)."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    ids = await arm(world, 3)
    scheduler = world.host.scheduler
    operation: Callable[[], Awaitable[Any]] = partial(scheduler.cancel_alarm, TAG, ids[1])
    if change == "schedule":
        operation = partial(scheduler.schedule_alarm, TAG, ids[1], after=500)
    elif change == "earlier":
        # It has no deadline left to keep (R6).
        operation = partial(scheduler.schedule_alarm_earlier, TAG, ids[1], after=500)
    async with trio.open_nursery() as nursery:
        calls = Calls(nursery, watch)
        changed = Call(operation)

        def queue() -> None:
            nursery.start_soon(calls._run, changed)

        async def act(event: AlarmDue[Any]) -> None:
            if event.id == ids[0]:
                watch.at_commit(1, lambda: watch.in_loop(queue))
            elif event.id == ids[1]:
                # It is over before this handler is, whichever was first.
                await changed.ended.wait()

        handler = Handler(act)
        call = Call(dispatching(world, handler))
        nursery.start_soon(calls._run, call)
    assert changed.outcome == "value"
    assert call.outcome == "value"
    assert handler.ids == ids
    row = world.row(TAG, ids[1])
    if change == "cancel":
        assert changed.result is True
        assert row is None
    else:
        assert row is not None
        assert (row.run_at, row.attempts) == (500_000, 0)
    check_nothing_in_hand(world)


async def test_a_row_that_another_dispatch_runs_is_skipped(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """Two dispatches over the same rows, one at a time each: every alarm runs once (R27)."""

    async def act(event: AlarmDue[Any]) -> None:
        active.append(event.id)
        assert active.count(event.id) == 1
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        active.remove(event.id)

    active: list[str] = []
    world, _ = await open_watched(open_world, mock_clock, storage_kind)
    ids = await arm(world, 30)
    handler = Handler(act)
    results: list[Any] = []

    async def run() -> None:
        results.append(await dispatching(world, handler)())

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(run)
    assert sorted(handler.ids) == ids
    assert sum(len(result.handled) for result in results) == 30
    assert left(world) == []
    check_nothing_in_hand(world)


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_rows_that_are_gone_do_not_end_the_dispatch(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str, concurrency: int
) -> None:
    """Where the next row, or several in a row, are gone, those after them still run (R27)."""

    async def act(event: AlarmDue[Any]) -> None:
        if event.id == ids[2]:
            world.sql(
                "DELETE FROM trio_alarms_alarms WHERE id IN (?, ?, ?, ?, ?)", *ids[5:9], ids[-1]
            )

    world, _ = await open_watched(open_world, mock_clock, storage_kind)
    ids = await arm(world, 12)
    handler = Handler(act)
    await dispatching(world, handler, DispatchOptions(concurrency=concurrency, limit=100))()
    # Side by side some may have begun before they were gone.
    assert {*ids[:5], *ids[9:11]} <= set(handler.ids)
    assert len(handler.ids) <= 7 + 2 * (concurrency - 1)
    assert left(world) == []
    check_nothing_in_hand(world)


async def test_a_row_acknowledged_in_a_block_has_the_next_one_follow(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """A handler that acknowledges itself has no settling trip to bring the next row (R36)."""

    async def act(event: AlarmDue[Any]) -> None:
        if int(event.id) % 2:
            async with event.host.scheduler.transaction() as tx:
                assert await tx.acknowledge(event)

    world, _ = await open_watched(open_world, mock_clock, storage_kind)
    ids = await arm(world, 7)
    handler = Handler(act)
    result = await dispatching(world, handler)()
    assert handler.ids == ids
    assert [event.id for event in result.handled] == ids
    check_nothing_in_hand(world)


async def test_one_row_lets_the_permits_of_several_go_on(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """At most so many run at a time, in order of their starts, whoever ends first (R27)."""
    gates: dict[str, trio.Event] = {}
    running: set[str] = set()

    async def act(event: AlarmDue[Any]) -> None:
        running.add(event.id)
        assert len(running) <= 3
        gates[event.id] = trio.Event()
        await gates[event.id].wait()
        running.discard(event.id)

    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    ids = await arm(world, 9)
    handler = Handler(act)
    async with trio.open_nursery() as nursery:
        calls = Calls(nursery, watch)
        await calls.start(dispatching(world, handler, DispatchOptions(concurrency=3, limit=100)))
        for at in range(9):
            await until(lambda at=at: len(handler.ids) == min(9, at + 3))
            assert handler.ids == ids[: at + 3]
            # The last of them first.
            last = max(running)
            gates[last].set()
            await until(lambda last=last: last not in running)
    assert handler.ids == ids
    check_nothing_in_hand(world)


# Contexts

colour: ContextVar[str] = ContextVar("colour", default="none")


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("fails", [False, True])
async def test_no_handler_sees_the_context_of_the_one_before(
    mock_clock: trio.testing.MockClock,
    open_world: OpenWorld,
    storage_kind: str,
    concurrency: int,
    *,
    fails: bool,
) -> None:
    """Each starts in the context of the dispatch, though the one before brought its row along."""
    seen: list[str] = []

    async def act(event: AlarmDue[Any]) -> None:
        seen.append(colour.get())
        colour.set(event.id)
        await trio.lowlevel.checkpoint()
        assert colour.get() == event.id
        if fails:
            raise ValueError(event.id)

    async def on_failure(failure: AlarmFailure) -> None:
        # One handling, so one context.
        assert colour.get() == failure.id

    world, _ = await open_watched(open_world, mock_clock, storage_kind)
    await arm(world, 6)
    token = colour.set("the dispatch's")
    options = DispatchOptions(concurrency=concurrency, limit=100, on_failure=on_failure)
    await dispatching(world, Handler(act), options)()
    assert seen == ["the dispatch's"] * 6
    assert colour.get() == "the dispatch's"
    colour.reset(token)


async def test_each_handler_has_a_task_of_its_own_and_no_task_waits_for_the_next(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """A thousand alarms one at a time nest no tasks in each other."""
    depths: list[int] = []

    async def act(_: AlarmDue[Any]) -> None:
        depth, task = 0, trio.lowlevel.current_task()
        while task.parent_nursery is not None:
            depth, task = depth + 1, task.parent_nursery.parent_task
        depths.append(depth)

    world, _ = await open_watched(open_world, mock_clock, storage_kind)
    await arm(world, 300)
    await dispatching(world, Handler(act), DispatchOptions(limit=1_000))()
    assert len(depths) == 300
    assert len(set(depths)) == 1


# Deadlines of the pass itself


async def test_what_waits_for_a_lock_between_two_rows_goes_on_when_it_is_released(
    autojump_clock: trio.testing.MockClock, open_inline_world: OpenWorld
) -> None:
    """The settlement, and with it the next row, is only late (R11)."""
    storage = StorageOptions(executor="inline", synchronous="off", busy_timeout=5)
    world, watch = await open_watched(open_inline_world, autojump_clock, storage=storage)
    ids = await arm(world, 4)
    started: list[float] = []
    async with trio.open_nursery() as nursery:

        async def hold() -> None:
            with locked(world.path) as release:
                held.set()
                await trio.sleep(1)
                release()

        held = trio.Event()

        async def act(event: AlarmDue[Any]) -> None:
            started.append(trio.current_time())
            if event.id == ids[1]:
                nursery.start_soon(hold)
                await held.wait()

        began = trio.current_time()
        handler = Handler(act)
        calls = Calls(nursery, watch)
        call = await calls.start(dispatching(world, handler))
    assert call.outcome == "value"
    assert handler.ids == ids
    assert [time - began for time in started] == pytest.approx([0, 0, 1, 1], abs=0.05)
    check_nothing_in_hand(world)


async def test_the_event_shows_when_each_alarm_was_due(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """What is re-read with another's settlement is its own row (R27)."""
    events: list[AlarmDue[Any]] = []

    async def act(event: AlarmDue[Any]) -> None:
        events.append(event)

    world, _ = await open_watched(open_world, mock_clock, storage_kind)
    epoch = world.host.now()
    for number in range(5):
        await world.host.scheduler.schedule_alarm(
            TAG, f"{number}", after=number, payload=["payload", number]
        )
    await world.harness.set_time(epoch + timedelta(seconds=60))
    await dispatching(world, Handler(act))()
    assert [(event.id, event.payload) for event in events] == [
        (f"{number}", ["payload", number]) for number in range(5)
    ]
    assert [event.scheduled_at - epoch for event in events] == [
        timedelta(seconds=number) for number in range(5)
    ]
