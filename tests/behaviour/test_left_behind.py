"""What a handling leaves behind can no longer change alarms or open transactions (R15)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from tests.behaviour.conftest import OpenWorld, World
from tests.behaviour.storage_tools import (
    INSERT,
    create_items,
    error_of,
    hold_the_turn,
    items,
    locked,
    require_unlocked,
)
from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmHost,
    AlarmPassError,
    DispatchOptions,
    StorageOperationError,
    StorageOptions,
    define,
    open_host,
)

Handler = Callable[[AlarmDue[Any]], Awaitable[None]]


class Dispatching:
    """A custom dispatcher whose handler, and `on_failure`, the test sets."""

    def __init__(self) -> None:
        self.handler: Handler
        self.on_failure: Callable[[Any], Awaitable[Any]] | None = None

    async def __call__(self, host: AlarmHost) -> None:
        """Dispatch what is due."""
        await host.scheduler.process_due_alarms(
            self.handler, DispatchOptions(on_failure=self.on_failure)
        )


@pytest.fixture
def dispatching() -> Dispatching:
    """What dispatches the world's alarms."""
    return Dispatching()


async def deliver(world: World) -> None:
    """Make an alarm due now, and deliver it."""
    await world.host.scheduler.schedule_alarm("start", "now", after=0)
    await world.harness.deliver()


WRITES: dict[str, Callable[[AlarmHost, AlarmDue[Any]], Awaitable[object]]] = {
    "schedule": lambda host, _: host.scheduler.schedule_alarm("send", "a", after=9),
    "schedule earlier": lambda host, _: host.scheduler.schedule_alarm_earlier("send", "a", after=9),
    "ensure": lambda host, _: host.scheduler.ensure_alarm("send", "a", after=9),
    "cancel": lambda host, _: host.scheduler.cancel_alarm("send", "kept"),
    "block": lambda host, _: host.scheduler.transaction().__aenter__(),
    "storage block": lambda host, _: host.storage.transaction().__aenter__(),
    "defer_wakes": lambda host, _: host.scheduler.defer_wakes().__aenter__(),
    "native alarm": lambda host, _: host.native_alarm.delete(),
}


@pytest.mark.parametrize("lifecycle", ["automatic", "manual"])
@pytest.mark.parametrize("write", WRITES)
async def test_a_task_left_behind_cannot_write(
    mock_clock: object, open_world: OpenWorld, write: str, lifecycle: Any
) -> None:
    """Every way to write raises in a task that a handler left behind; reading does not (R15)."""
    errors: list[BaseException | None] = []
    returned = trio.Event()
    read: list[Any] = []

    async def left_behind(event: AlarmDue[None]) -> None:
        await returned.wait()
        await trio.testing.wait_all_tasks_blocked()
        errors.append(await error_of(lambda: WRITES[write](event.host, event)))
        read.append(await event.host.scheduler.get_alarm_status("send", "kept"))
        read.append(await event.host.storage.query("SELECT 1"))

    async def handler(event: AlarmDue[None]) -> None:
        event.scope.nursery.start_soon(left_behind, event)
        returned.set()

    start = Alarm(None, tag="start", lifecycle=lifecycle)
    world = await open_world(alarms=define(start).handlers(start.handled_by(handler)))
    await world.host.scheduler.schedule_alarm("send", "kept", after=60)
    before = world.row("send", "kept")
    await world.host.scheduler.schedule_alarm(start, "now", after=0)
    await world.harness.deliver()
    assert [type(error) for error in errors] == [StorageOperationError]
    assert world.row("send", "a") is None
    assert world.row("send", "kept") == before
    assert (read[0].attempts, read[1]) == (0, [(1,)])
    require_unlocked(world.path)


@pytest.mark.parametrize("write", ["schedule", "block"])
async def test_what_queued_while_the_handling_was_active_is_refused_when_it_is_over(
    mock_clock: object, open_world: OpenWorld, dispatching: Dispatching, write: str
) -> None:
    """A left-behind task that waited for its turn since before is refused all the same (R15)."""
    errors: list[BaseException | None] = []
    queued, handled = trio.Event(), trio.Event()

    async def left_behind(event: AlarmDue[Any]) -> None:
        queued.set()
        errors.append(await error_of(lambda: WRITES[write](event.host, event)))

    async def handler(event: AlarmDue[Any]) -> None:
        # The turn is held by a task outside of any handling.
        await turn_wanted_and_taken()
        event.scope.nursery.start_soon(left_behind, event)
        await queued.wait()
        await trio.testing.wait_all_tasks_blocked()
        handled.set()

    world = await open_world(alarms=dispatching)
    dispatching.handler = handler
    wanted, taken = trio.Event(), trio.Event()

    async def turn_wanted_and_taken() -> None:
        wanted.set()
        await taken.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver, world)
        await wanted.wait()
        leave = await nursery.start(hold_the_turn, world.host)
        taken.set()
        await handled.wait()
        await trio.testing.wait_all_tasks_blocked()
        leave.set()
    assert [type(error) for error in errors] == [StorageOperationError]
    assert world.rows() == []
    require_unlocked(world.path)


@pytest.mark.parametrize("write", ["schedule", "block"])
async def test_what_waits_for_another_process_is_refused_when_the_handling_is_over(
    autojump_clock: object, open_inline_world: OpenWorld, dispatching: Dispatching, write: str
) -> None:
    """A left-behind task that has its turn, but waits for a lock, is refused too (R15)."""
    errors: list[BaseException | None] = []
    world = await open_inline_world(alarms=dispatching)

    async def left_behind(event: AlarmDue[Any]) -> None:
        errors.append(await error_of(lambda: WRITES[write](event.host, event)))

    async def handler(event: AlarmDue[Any]) -> None:
        hold_lock.set()
        await lock_held.wait()
        event.scope.nursery.start_soon(left_behind, event)
        await trio.sleep(0.1)

    hold_lock, lock_held = trio.Event(), trio.Event()
    dispatching.handler = handler
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver, world)
        await hold_lock.wait()
        with locked(world.path):
            lock_held.set()
            await trio.sleep(0.2)
    assert [type(error) for error in errors] == [StorageOperationError]
    assert world.rows() == []
    require_unlocked(world.path)


@pytest.mark.parametrize("work", ["schedule", "block", "storage block", "nested"])
async def test_whenever_the_handler_returns_a_write_left_behind_is_all_or_nothing(
    mock_clock: object, open_world: OpenWorld, dispatching: Dispatching, work: str
) -> None:
    """At whatever step the handling ends, what returned is stored and what raised is not (R15)."""
    outcomes: list[BaseException | None] = []
    steps = 0

    async def write(host: AlarmHost) -> None:
        if work == "schedule":
            await host.scheduler.schedule_alarm("send", "a", after=60)
        elif work == "block":
            async with host.scheduler.transaction() as tx:
                await tx.schedule_alarm("send", "a", after=60)
                await tx.execute(INSERT, (1,))
        elif work == "storage block":
            async with host.storage.transaction() as tx:
                for id in range(1, 4):
                    await tx.execute(INSERT, (id,))
        else:
            async with host.storage.transaction() as tx:
                await tx.execute(INSERT, (1,))
                async with host.scheduler.transaction() as inner:
                    await inner.execute(INSERT, (2,))
                    await inner.schedule_alarm("send", "a", after=60)

    async def left_behind(host: AlarmHost) -> None:
        outcomes.append(await error_of(partial(write, host)))

    async def handler(event: AlarmDue[Any]) -> None:
        event.scope.nursery.start_soon(left_behind, event.host)
        for _ in range(steps):
            await trio.lowlevel.checkpoint()

    world = await open_world(alarms=dispatching)
    await create_items(world.host)
    dispatching.handler = handler
    both: set[bool] = set()
    for steps in range(24):
        outcomes.clear()
        await deliver(world)
        (error,) = outcomes
        assert isinstance(error, StorageOperationError | None)
        stored = (world.row("send", "a") is not None, items(world.path))
        if error is not None:
            assert stored == (False, []), steps
        else:
            assert (
                stored
                == {
                    "schedule": (True, []),
                    "block": (True, [1]),
                    "storage block": (False, [1, 2, 3]),
                    "nested": (True, [1, 2]),
                }[work]
            )
        both.add(error is None)
        require_unlocked(world.path)
        async with world.host.scheduler.transaction() as tx:
            await tx.execute("DELETE FROM items WHERE id > 0")
            await tx.cancel_alarm("send", "a")
    assert False in both


async def test_whenever_the_handler_returns_no_block_is_held_any_more(
    mock_clock: object, open_inline_world: OpenWorld, dispatching: Dispatching
) -> None:
    """At whatever step of entering a block its handling ends, the turn is given back (R15)."""
    errors: list[BaseException | None] = []
    go_on = trio.Event()
    steps = 0

    async def hold(host: AlarmHost) -> None:
        async with host.storage.transaction():
            await go_on.wait()

    async def left_behind(host: AlarmHost) -> None:
        errors.append(await error_of(partial(hold, host)))

    async def handler(event: AlarmDue[Any]) -> None:
        event.scope.nursery.start_soon(left_behind, event.host)
        for _ in range(steps):
            await trio.lowlevel.checkpoint()

    world = await open_inline_world(alarms=dispatching)
    dispatching.handler = handler
    for count in range(12):
        steps, go_on = count, trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deliver, world)
            await trio.testing.wait_all_tasks_blocked()
            require_unlocked(world.path)
            assert world.rows() == []
            go_on.set()
    assert {type(error) for error in errors} == {StorageOperationError}


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("lifecycle", ["automatic", "manual"])
async def test_a_block_still_held_is_rolled_back_and_its_exit_raises(
    mock_clock: object, open_world: OpenWorld, lifecycle: Any, *, nested: bool
) -> None:
    """A block that a left-behind task holds ends with the handling, not with the task (R15)."""
    errors: list[BaseException | None] = []
    inside, go_on = trio.Event(), trio.Event()

    async def hold(event: AlarmDue[None]) -> None:
        async with event.host.scheduler.transaction() as tx:
            await tx.execute(INSERT, (1,))
            if nested:
                async with event.host.scheduler.transaction() as inner:
                    await inner.execute(INSERT, (2,))
                    await _wait_inside(inside, go_on)
                    errors.append(await error_of(lambda: inner.execute(INSERT, (3,))))
            else:
                await _wait_inside(inside, go_on)
                errors.append(await error_of(lambda: tx.execute(INSERT, (3,))))

    async def left_behind(event: AlarmDue[None]) -> None:
        errors.append(await error_of(partial(hold, event)))

    async def handler(event: AlarmDue[None]) -> None:
        event.scope.nursery.start_soon(left_behind, event)
        await inside.wait()

    start = Alarm(None, tag="start", lifecycle=lifecycle)
    world = await open_world(alarms=define(start).handlers(start.handled_by(handler)))
    await create_items(world.host)
    await world.host.scheduler.schedule_alarm(start, "now", after=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.harness.deliver)
        await inside.wait()
        await world.host.scheduler.schedule_alarm("send", "by another task", after=60)
        require_unlocked(world.path)
        assert items(world.path) == []
        go_on.set()
    assert [type(error) for error in errors] == [StorageOperationError] * 2
    assert "handling" in str(errors[1])
    assert items(world.path) == []
    assert world.row("send", "by another task") is not None


async def _wait_inside(inside: trio.Event, go_on: trio.Event) -> None:
    inside.set()
    await go_on.wait()


async def test_a_handler_that_leaves_its_own_block_open_does_not_keep_the_turn(
    mock_clock: object, open_world: OpenWorld, dispatching: Dispatching
) -> None:
    """A block that the handler itself never leaves is rolled back when it returns (R15)."""
    kept: list[Any] = []

    async def handler(event: AlarmDue[Any]) -> None:
        block = event.host.scheduler.transaction()
        kept.append(block)
        tx = await block.__aenter__()
        await tx.execute(INSERT, (1,))

    world = await open_world(alarms=dispatching)
    await create_items(world.host)
    dispatching.handler = handler
    with trio.fail_after(1):
        await deliver(world)
    assert items(world.path) == []
    assert world.rows() == []
    with pytest.raises(StorageOperationError):
        await kept[0].__aexit__(None, None, None)
    require_unlocked(world.path)


async def test_the_handling_lasts_until_on_failure_has_returned(
    mock_clock: object, open_world: OpenWorld, dispatching: Dispatching
) -> None:
    """A task of a handler that failed can write while `on_failure` runs, and not after (R15)."""
    errors: list[BaseException | None] = []
    asked, written, over = trio.Event(), trio.Event(), trio.Event()

    async def left_behind(event: AlarmDue[Any]) -> None:
        await asked.wait()
        errors.append(await error_of(lambda: WRITES["schedule"](event.host, event)))
        written.set()
        await over.wait()
        errors.append(await error_of(lambda: WRITES["cancel"](event.host, event)))

    async def handler(event: AlarmDue[Any]) -> None:
        event.scope.nursery.start_soon(left_behind, event)
        raise ValueError("the handler's")

    async def on_failure(_: object) -> None:
        asked.set()
        await written.wait()

    world = await open_world(alarms=dispatching)
    dispatching.handler, dispatching.on_failure = handler, on_failure
    await world.host.scheduler.schedule_alarm("send", "kept", after=60)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver, world)
        await written.wait()
        await trio.testing.wait_all_tasks_blocked()
        over.set()
    assert [type(error) for error in errors] == [type(None), StorageOperationError]
    assert {row.id for row in world.rows()} == {"now", "a", "kept"}


async def test_after_a_timeout_what_is_left_behind_cannot_write(
    autojump_clock: object, open_inline_world: OpenWorld
) -> None:
    """A handler that timed out is over, and so is what it has started (R15, R28)."""
    errors: list[BaseException | None] = []

    async def left_behind(event: AlarmDue[None]) -> None:
        await trio.sleep(10)
        errors.append(await error_of(lambda: WRITES["schedule"](event.host, event)))

    async def handler(event: AlarmDue[None]) -> None:
        event.scope.nursery.start_soon(left_behind, event)
        await trio.sleep_forever()

    start = Alarm(None, tag="start", timeout=1)
    world = await open_inline_world(alarms=define(start).handlers(start.handled_by(handler)))
    await world.host.scheduler.schedule_alarm(start, "now", after=0)
    await world.harness.deliver()
    assert [type(error) for error in errors] == [StorageOperationError]
    assert [row.attempts for row in world.rows()] == [1]


async def test_the_event_scopes_clean_up_can_write(
    mock_clock: object, open_world: OpenWorld, dispatching: Dispatching
) -> None:
    """The event scope's clean-up schedules and opens transactions as it likes (R15, R40)."""

    @asynccontextmanager
    async def event_scope(host: AlarmHost) -> AsyncIterator[None]:
        yield
        await host.scheduler.schedule_alarm("send", "from clean-up", after=60)
        async with host.scheduler.transaction() as tx:
            await tx.execute(INSERT, (1,))
            await tx.schedule_alarm("send", "from its block", after=60)

    async def handler(event: AlarmDue[Any]) -> None:
        event.scope.nursery.start_soon(trio.lowlevel.checkpoint)

    world = await open_world(alarms=dispatching, event_scope=event_scope)
    await create_items(world.host)
    dispatching.handler = handler
    await deliver(world)
    assert items(world.path) == [1]
    assert [(row.id, row.attempts) for row in world.rows()] == [
        ("from clean-up", 0),
        ("from its block", 0),
    ]
    assert world.native_alarm() == 60_000


async def test_it_holds_for_tasks_in_any_nursery_however_late(
    mock_clock: object, open_world: OpenWorld, dispatching: Dispatching
) -> None:
    """A task that a handler started in the application's own nursery is left behind too (R15)."""
    errors: list[BaseException | None] = []
    late = trio.Event()

    async def left_behind(event: AlarmDue[Any]) -> None:
        await late.wait()
        errors.append(await error_of(lambda: WRITES["schedule"](event.host, event)))
        errors.append(await error_of(lambda: WRITES["block"](event.host, event)))

    world = await open_world(alarms=dispatching)
    async with trio.open_nursery() as nursery:

        async def handler(event: AlarmDue[Any]) -> None:
            nursery.start_soon(left_behind, event)

        dispatching.handler = handler
        await deliver(world)
        async with world.host.event():
            late.set()
    assert [type(error) for error in errors] == [StorageOperationError] * 2
    assert world.rows() == []


async def test_it_cannot_dispatch_or_acknowledge(
    mock_clock: object, open_world: OpenWorld, dispatching: Dispatching
) -> None:
    """A left-behind task neither dispatches nor acknowledges what its handler got (R15, R36)."""
    errors: list[BaseException | None] = []
    returned = trio.Event()

    async def acknowledge(event: AlarmDue[Any]) -> None:
        async with event.host.scheduler.transaction() as tx:
            await tx.acknowledge(event)

    async def left_behind(event: AlarmDue[Any]) -> None:
        await returned.wait()
        await trio.testing.wait_all_tasks_blocked()
        errors.append(await error_of(partial(acknowledge, event)))
        errors.append(
            await error_of(lambda: event.host.scheduler.process_due_alarms(dispatching.handler))
        )

    async def handler(event: AlarmDue[Any]) -> None:
        event.scope.nursery.start_soon(left_behind, event)
        returned.set()
        raise ValueError("the handler's")

    world = await open_world(alarms=dispatching)
    dispatching.handler = handler
    await deliver(world)
    assert isinstance(errors[0], StorageOperationError)
    assert isinstance(errors[1], StorageOperationError | AlarmPassError)
    assert [row.attempts for row in world.rows()] == [1]


async def test_a_scope_that_it_has_open_is_left_all_the_same(
    mock_clock: object, open_world: OpenWorld, dispatching: Dispatching
) -> None:
    """A `defer_wakes` scope that a left-behind task entered in time still reconciles (R15, R19)."""
    entered, go_on = trio.Event(), trio.Event()

    async def left_behind(host: AlarmHost) -> None:
        async with host.scheduler.defer_wakes():
            await host.scheduler.schedule_alarm("send", "a", after=60)
            entered.set()
            await go_on.wait()

    world = await open_world(alarms=dispatching)
    async with trio.open_nursery() as nursery:

        async def handler(event: AlarmDue[Any]) -> None:
            nursery.start_soon(left_behind, event.host)
            await entered.wait()

        dispatching.handler = handler
        await deliver(world)
        assert world.native_alarm() == 1_000
        go_on.set()
    assert world.native_alarm() == 60_000


async def test_it_can_use_another_host(
    mock_clock: object, open_inline_world: OpenWorld, dispatching: Dispatching, tmp_path: Any
) -> None:
    """A handling that is over binds its own host only (R15)."""
    returned = trio.Event()
    world = await open_inline_world(alarms=dispatching)
    async with open_host(tmp_path / "other.db", storage=StorageOptions(executor="inline")) as other:

        async def left_behind() -> None:
            await returned.wait()
            await trio.testing.wait_all_tasks_blocked()
            await other.scheduler.schedule_alarm("send", "a", after=1)

        async def handler(event: AlarmDue[Any]) -> None:
            event.scope.nursery.start_soon(left_behind)
            returned.set()

        dispatching.handler = handler
        await deliver(world)
        assert len(await other.scheduler.list_alarms()) == 1
