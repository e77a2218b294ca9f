"""Cancellation is exact and prompt, at every step of every operation (R11, C10)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import trio
import trio.testing

from tests.behaviour.conftest import OpenWorld, World
from tests.behaviour.storage_tools import (
    INSERT,
    Cancelled,
    Moment,
    cancelled_at,
    create_items,
    error_of,
    hold_the_turn,
    items,
    locked,
    require_unlocked,
)
from trio_alarms import (
    AlarmDue,
    AlarmHost,
    DispatchOptions,
    StorageOperationError,
    StorageOptions,
    open_host,
)

MOMENTS: list[Moment] = ["as it starts to wait", "as it goes on"]
BUSY_SECONDS = 0.1
IMPATIENT = StorageOptions(executor="inline", busy_timeout=BUSY_SECONDS)

Operation: TypeAlias = Callable[[AlarmHost], Awaitable[object]]


async def schedule(host: AlarmHost) -> None:
    """Replace the alarm."""
    await host.scheduler.schedule_alarm("send", "a", after=5, payload="new")


async def schedule_earlier(host: AlarmHost) -> None:
    """Move the alarm to an earlier deadline."""
    await host.scheduler.schedule_alarm_earlier("send", "a", after=5, payload="new")


async def ensure(host: AlarmHost) -> None:
    """Bring the alarm's payload up to date."""
    await host.scheduler.ensure_alarm("send", "a", after=5, payload="new")


async def cancel(host: AlarmHost) -> None:
    """Remove the alarm."""
    assert await host.scheduler.cancel_alarm("send", "a")


async def block(host: AlarmHost) -> None:
    """Change rows and alarms in one transaction."""
    async with host.scheduler.transaction() as tx:
        await tx.execute(INSERT, (1,))
        await tx.schedule_alarm("send", "a", after=5, payload="new")
        await tx.executemany(INSERT, [(2,), (3,)])
        await tx.cancel_alarm("send", "missing")


async def nested_blocks(host: AlarmHost) -> None:
    """Change rows and alarms in blocks and methods inside a block."""
    async with host.storage.transaction() as tx:
        await tx.execute(INSERT, (1,))
        async with host.scheduler.transaction() as inner:
            await inner.execute(INSERT, (2,))
            await host.scheduler.schedule_alarm("send", "a", after=5, payload="new")
            async with host.storage.transaction() as innermost:
                await innermost.run_sync(lambda connection: connection.execute(INSERT, (3,)))


async def careless_block(host: AlarmHost) -> None:
    """Swallow every cancellation inside a block."""
    async with host.scheduler.transaction() as tx:
        for change in (
            partial(tx.execute, INSERT, (1,)),
            partial(tx.schedule_alarm, "send", "a", after=5, payload="new"),
        ):
            try:
                await change()
            except trio.Cancelled:
                pass  # as a careless body does


OPERATIONS: dict[str, tuple[Operation, str | None, list[int]]] = {
    "schedule": (schedule, '"new"', []),
    "schedule earlier": (schedule_earlier, '"new"', []),
    "ensure": (ensure, '"new"', []),
    "cancel": (cancel, None, []),
    "block": (block, '"new"', [1, 2, 3]),
    "nested blocks": (nested_blocks, '"new"', [1, 2, 3]),
    "careless block": (careless_block, '"new"', [1]),
}


async def _put_back(world: World) -> None:
    """The state before: one alarm with an old payload, and no item."""
    async with world.host.scheduler.transaction() as tx:
        await tx.execute("DELETE FROM items WHERE id > 0")
        await tx.cancel_alarm("send", "a")
        await tx.schedule_alarm("send", "a", after=60, payload="old")


def _state(world: World) -> tuple[Any, ...]:
    return world.rows(), items(world.path), world.native_alarm()


def _check(world: World, name: str, before: tuple[Any, ...], outcome: Cancelled) -> None:
    """Cancelled: nothing is stored. Returned: all of it is. Nobody holds a transaction."""
    _, payload, ids = OPERATIONS[name]
    if outcome.cancelled or outcome.error is not None:
        assert _state(world) == before
    else:
        row = world.row("send", "a")
        assert (None if row is None else row.payload) == payload
        assert items(world.path) == ids
        assert world.native_alarm() == (None if row is None else row.wake_at)
    require_unlocked(world.path)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", OPERATIONS)
async def test_cancelled_at_any_step_an_operation_is_all_or_nothing(
    mock_clock: object, open_world: OpenWorld, storage_kind: str, name: str, moment: Moment
) -> None:
    """Cancelled at any step: it raised and nothing is stored, or returned and all is (R11, C10)."""
    world = await open_world()
    await create_items(world.host)
    outcomes: list[bool] = []
    step = 1
    while True:
        await _put_back(world)
        before = _state(world)
        outcome = await cancelled_at(step, moment, partial(OPERATIONS[name][0], world.host))
        assert outcome.error is None
        _check(world, name, before, outcome)
        if not outcome.reached:
            break
        outcomes.append(outcome.cancelled)
        step += 1
    # Up to some step it is cancelled, and from then on it is not.
    assert outcomes == sorted(outcomes, reverse=True)
    # In a thread a single operation is one trip, which is waited for.
    assert outcomes[0] or storage_kind == "thread"


@pytest.mark.parametrize("name", OPERATIONS)
async def test_called_when_already_cancelled_an_operation_does_nothing(
    mock_clock: object, open_world: OpenWorld, name: str
) -> None:
    """In a scope that was cancelled before, every operation raises and stores nothing (R11)."""
    world = await open_world()
    await create_items(world.host)
    await _put_back(world)
    before = _state(world)
    with trio.CancelScope() as scope:
        scope.cancel()
        await OPERATIONS[name][0](world.host)
    assert scope.cancelled_caught
    assert _state(world) == before
    require_unlocked(world.path)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", OPERATIONS)
async def test_cancelled_while_it_waits_for_its_turn_it_does_nothing(
    mock_clock: object, open_inline_world: OpenWorld, name: str, moment: Moment
) -> None:
    """Cancelled as it waits for, or is given, its turn: all or nothing, and others go on (R11)."""
    world = await open_inline_world()
    await create_items(world.host)
    step = 1
    while True:
        await _put_back(world)
        before = _state(world)
        outcomes: list[Cancelled] = []

        async def operate(step: int = step, outcomes: list[Cancelled] = outcomes) -> None:
            outcomes.append(
                await cancelled_at(step, moment, partial(OPERATIONS[name][0], world.host))
            )

        async with trio.open_nursery() as nursery:
            leave = await nursery.start(hold_the_turn, world.host)
            nursery.start_soon(operate)
            await trio.testing.wait_all_tasks_blocked()
            leave.set()
        (outcome,) = outcomes
        assert outcome.error is None
        _check(world, name, before, outcome)
        if not outcome.reached:
            break
        step += 1
    assert step > 2


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("releases", [False, True])
@pytest.mark.parametrize("name", OPERATIONS)
async def test_waiting_for_another_processs_lock_can_be_cancelled(
    autojump_clock: object,
    open_inline_world: OpenWorld,
    name: str,
    moment: Moment,
    *,
    releases: bool,
) -> None:
    """While another process holds the lock, every step can be cancelled, at once (R11, C10)."""
    world = await open_inline_world(storage=IMPATIENT)
    await create_items(world.host)
    step = 1
    while True:
        await _put_back(world)
        before = _state(world)
        with locked(world.path) as release:
            async with trio.open_nursery() as nursery:

                async def let_go(release: Callable[[], None] = release) -> None:
                    await trio.sleep(BUSY_SECONDS / 2)
                    release()

                if releases:
                    nursery.start_soon(let_go)
                outcome = await cancelled_at(step, moment, partial(OPERATIONS[name][0], world.host))
            if not releases:
                release()
        _check(world, name, before, outcome)
        assert outcome.seconds == 0
        if not releases:
            assert outcome.cancelled or isinstance(outcome.error, StorageOperationError)
        if not outcome.reached:
            break
        step += 1
    assert step > 4
    assert (outcome.error is None) is releases


async def test_the_wait_for_a_lock_ends_after_busy_timeout(
    autojump_clock: object, open_inline_world: OpenWorld
) -> None:
    """`busy_timeout` is a time of Trio's, and a lock that outlasts it is an error (R11)."""
    world = await open_inline_world(storage=IMPATIENT)
    await create_items(world.host)
    for name, (operation, _, _) in OPERATIONS.items():
        await _put_back(world)
        before = _state(world)
        with locked(world.path):
            began = trio.current_time()
            error = await error_of(partial(operation, world.host))
            waited = trio.current_time() - began
        assert isinstance(error, StorageOperationError), name
        assert isinstance(error.__cause__, sqlite3.OperationalError)
        assert error.outcome == "rolled back"
        assert BUSY_SECONDS <= waited <= BUSY_SECONDS + 0.021
        assert _state(world) == before


async def test_sqlite_itself_hardly_waits(
    mock_clock: object, open_world: OpenWorld, storage_kind: str
) -> None:
    """SQLite's own lock timeout is 0 inline and at most 50 ms in a thread (R11)."""
    world = await open_world()
    database = world.host._runtime.database
    for connection in (database.writer, database.reader):
        timeout = connection.raw.execute("PRAGMA busy_timeout").fetchone()[0]
        assert timeout <= (50 if storage_kind == "thread" else 0)


async def test_a_body_that_swallows_its_cancellation_commits_nothing(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """A cancelled block raises `Cancelled` at its exit, whatever its body made of it (R11)."""
    world = await open_world()
    await create_items(world.host)
    for depth in (1, 2):
        left: list[int] = []
        with trio.CancelScope() as scope:
            async with world.host.storage.transaction() as tx:
                await tx.execute(INSERT, (1,))
                if depth == 1:
                    scope.cancel()
                else:
                    async with world.host.storage.transaction() as inner:
                        await inner.execute(INSERT, (2,))
                        scope.cancel()
                left.append(depth)
        assert scope.cancelled_caught
        assert left == ([1] if depth == 1 else [])
        assert items(world.path) == []
        require_unlocked(world.path)


async def test_a_cancelled_inner_block_is_undone_alone(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """A cancel scope inside a block undoes the inner block only (R11, R13)."""
    world = await open_world()
    await create_items(world.host)
    async with world.host.storage.transaction() as tx:
        await tx.execute(INSERT, (1,))
        with trio.CancelScope() as scope:
            async with world.host.scheduler.transaction() as inner:
                await inner.execute(INSERT, (2,))
                await inner.schedule_alarm("send", "a", after=1)
                scope.cancel()
        assert scope.cancelled_caught
        await tx.execute(INSERT, (3,))
    assert items(world.path) == [1, 3]
    assert world.rows() == []


class Deliveries:
    """A world whose handler ends as told, and what has been handled so far."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.handled: list[str] = []
        self.world: World

    async def handle(self, event: AlarmDue[Any]) -> None:
        """Handle one alarm."""
        if self.how == "tx.acknowledge":
            async with event.host.scheduler.transaction() as tx:
                await tx.execute(INSERT, (1,))
                assert await tx.acknowledge(event)
            self.handled.append(event.id)
            return
        await trio.lowlevel.checkpoint()
        self.handled.append(event.id)
        if self.how in {"fails", "is skipped"}:
            raise ValueError("the handler's")

    async def dispatch(self, host: AlarmHost) -> None:
        """Dispatch what is due."""

        async def skip(_: object) -> Any:
            return "skip-and-advance-repeat"

        options = DispatchOptions(on_failure=skip if self.how == "is skipped" else None)
        await host.scheduler.process_due_alarms(self.handle, options)

    async def put_back(self) -> None:
        """One alarm that is due, and no item."""
        self.handled.clear()
        async with self.world.host.scheduler.transaction() as tx:
            await tx.execute("DELETE FROM items WHERE id > 0")
            await tx.cancel_alarm("send", "a")
            await tx.schedule_alarm("send", "a", after=0)

    def check(self, outcome: Cancelled) -> None:
        """What a cancelled delivery may leave: wholly what was, or wholly what the handler did."""
        world = self.world
        row = world.row("send", "a")
        if self.how == "tx.acknowledge":
            assert items(world.path) == ([] if row is not None else [1])
        if self.how == "fails":
            assert row is not None
            assert row.attempts == (1 if row.retry_at is not None else 0)
            assert len(self.handled) >= row.attempts
        elif row is None:
            assert self.handled == ["a"]
        else:
            assert row.attempts == 0
            assert row.run_at == row.wake_at
        if not outcome.cancelled and outcome.error is None:
            assert self.handled == ["a"]
            assert row is None or self.how == "fails"
        # What is still due stays due, and no guard is left behind.
        assert world.native_alarm() == (None if row is None else row.wake_at)
        require_unlocked(world.path)


WAYS = ["returns", "tx.acknowledge", "fails", "is skipped"]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("how", WAYS)
async def test_cancelled_at_any_step_a_delivery_leaves_no_half_of_anything(
    mock_clock: object, open_world: OpenWorld, how: str, moment: Moment
) -> None:
    """A delivery cancelled at any step acknowledges or charges wholly or not at all (R11, C10)."""
    deliveries = Deliveries(how)
    world = deliveries.world = await open_world(alarms=deliveries.dispatch)
    await create_items(world.host)
    step = 1
    while True:
        await deliveries.put_back()
        deliver = partial(world.host.deliver_native_alarm, force=True)
        outcome = await cancelled_at(step, moment, deliver)
        deliveries.check(outcome)
        if not outcome.reached:
            break
        step += 1
    assert step > 10


@pytest.mark.parametrize("how", WAYS)
async def test_a_delivery_cancelled_under_another_processs_lock_ends_within_bounds(
    autojump_clock: object, open_inline_world: OpenWorld, how: str
) -> None:
    """Where a wait for another process's lock is shielded, it is bounded (R11, R19)."""
    deliveries = Deliveries(how)
    handling, go_on = trio.Event(), trio.Event()
    handle = deliveries.handle

    async def hold(event: AlarmDue[Any]) -> None:
        handling.set()
        with trio.CancelScope(shield=True):
            await go_on.wait()
        await handle(event)

    deliveries.handle = hold  # type: ignore[method-assign]  # the handler waits for the lock
    world = deliveries.world = await open_inline_world(
        alarms=deliveries.dispatch, storage=IMPATIENT
    )
    await create_items(world.host)
    await deliveries.put_back()
    over = trio.Event()

    async def deliver() -> None:
        try:
            await error_of(world.harness.deliver)
        finally:
            over.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver)
        await handling.wait()
        with locked(world.path):
            began = trio.current_time()
            go_on.set()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await over.wait()
            # The acknowledgement or charge, the scope's guard and the pass's reconciliation.
            assert trio.current_time() - began <= 3 * (BUSY_SECONDS + 0.03)
    require_unlocked(world.path)
    await world.harness.advance(2)
    assert deliveries.handled[0] == "a"


async def test_entering_defer_wakes_can_be_cancelled_at_once(
    autojump_clock: object, open_inline_world: OpenWorld
) -> None:
    """Entering `defer_wakes` waits for another process's lock no longer than it is let (R11)."""
    world = await open_inline_world()
    await world.host.scheduler.schedule_alarm("send", "a", after=60)
    with locked(world.path):
        began = trio.current_time()
        with trio.move_on_after(0.03) as scope:
            async with world.host.scheduler.defer_wakes():
                raise AssertionError("entered without its guard")
        assert scope.cancelled_caught
        assert trio.current_time() - began < 0.04
    assert world.native_alarm() == 60_000
    async with world.host.scheduler.defer_wakes():
        assert world.native_alarm() == 1_030
    assert world.native_alarm() == 60_000


@pytest.mark.parametrize("moment", MOMENTS)
async def test_cancelled_at_any_step_defer_wakes_leaves_no_guard(
    mock_clock: object, open_world: OpenWorld, moment: Moment
) -> None:
    """A `defer_wakes` scope cancelled at any step reconciles when it is left (R11, R19)."""
    world = await open_world()
    await world.host.scheduler.schedule_alarm("send", "a", after=60)

    async def defer() -> None:
        async with world.host.scheduler.defer_wakes():
            assert world.native_alarm() == 1_000
            await world.host.scheduler.schedule_alarm("send", "b", after=90)

    step = 1
    while True:
        outcome = await cancelled_at(step, moment, defer)
        assert outcome.error is None
        assert world.native_alarm() == 60_000
        assert not world.host._runtime.wakes.scopes_open
        require_unlocked(world.path)
        if not outcome.reached:
            break
        step += 1
    assert step > 3


@pytest.mark.parametrize("way", ["by an error", "by a cancellation"])
@pytest.mark.parametrize("holder", ["another process", "another task"])
async def test_leaving_defer_wakes_is_bounded(
    autojump_clock: object, open_inline_world: OpenWorld, holder: str, way: str
) -> None:
    """Leaving a `defer_wakes` scope by an error takes at most `busy_timeout` (R19)."""
    world = await open_inline_world(storage=IMPATIENT)
    await world.host.scheduler.schedule_alarm("send", "a", after=60)
    error = ValueError("the body's")
    began: list[float] = []

    async def hold(task_status: trio.TaskStatus[None]) -> None:
        if holder == "another task":
            async with world.host.storage.transaction():
                task_status.started()
                await trio.sleep(3)
        else:
            with locked(world.path):
                task_status.started()
                await trio.sleep(3)

    async def defer(nursery: trio.Nursery) -> None:
        with trio.CancelScope() as scope:
            async with world.host.scheduler.defer_wakes():
                await nursery.start(hold)
                began.append(trio.current_time())
                if way == "by an error":
                    raise error
                scope.cancel()
                await trio.sleep_forever()
        assert scope.cancelled_caught

    async with trio.open_nursery() as nursery:
        raised = await error_of(partial(defer, nursery))
        assert raised is (error if way == "by an error" else None)
        assert trio.current_time() - began[0] <= BUSY_SECONDS + 0.021
        assert not world.host._runtime.wakes.scopes_open
    # The guard stands, so that nothing is lost; the next scope or commit brings it in line.
    assert world.native_alarm() == 1_000
    await world.host.scheduler.schedule_alarm("send", "b", after=90)
    assert world.native_alarm() == 60_000


@pytest.mark.parametrize("moment", MOMENTS)
async def test_cancelled_at_any_step_the_native_alarm_is_old_or_new(
    mock_clock: object, open_world: OpenWorld, moment: Moment
) -> None:
    """`native_alarm.set` that is cancelled stored nothing, and one that returns all (R11)."""
    world = await open_world()
    await create_items(world.host)
    host = world.host
    old, new = host.now(), host.now().replace(year=2001)
    step = 1
    while True:
        await host.native_alarm.set(old)
        outcome = await cancelled_at(step, moment, partial(host.native_alarm.set, new))
        assert await host.native_alarm.get() == (old if outcome.cancelled else new)
        require_unlocked(world.path)
        if not outcome.reached:
            break
        step += 1
    assert step > 1


@pytest.mark.real_time
async def test_the_loop_goes_on_while_a_thread_waits_for_a_lock(tmp_path: Path) -> None:
    """With thread storage a wait for a lock stalls no other task and can be cancelled (R11)."""
    path = tmp_path / "alarms.db"
    storage = StorageOptions(executor="thread", busy_timeout=30)
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            ticks.append(time.monotonic())
            await trio.sleep(0.01)

    async with open_host(path, storage=storage) as host:
        await host.scheduler.schedule_alarm("send", "a", after=60)
        with closing(sqlite3.connect(path)) as other:
            other.execute("BEGIN IMMEDIATE")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tick)
                with trio.move_on_after(0.3) as scope:
                    await host.scheduler.cancel_alarm("send", "a")
                cancelled = time.monotonic()
                nursery.cancel_scope.cancel()
        assert scope.cancelled_caught
        assert cancelled - ticks[0] < 2
        assert len(ticks) > 5
        assert await host.scheduler.cancel_alarm("send", "a")
