"""`defer_wakes`: a guard is armed while scopes are open, and reconciled by the last (R17-R19)."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from tests.behaviour.conftest import OpenWorld, World
from tests.behaviour.storage_tools import (
    allow_reconciling,
    error_of,
    hold_the_turn,
    locked,
    refuse_reconciling,
    require_unlocked,
)
from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmHost,
    AlarmService,
    ScheduleConfiguration,
    StorageOperationError,
    StorageOptions,
    define,
    open_host,
    schedule_configuration,
)

ERROR = ValueError("the body's")


async def schedule(world: World, id: str, after: float) -> None:
    """Schedule an alarm this many seconds from the epoch of the harness."""
    await world.host.scheduler.schedule_alarm("send", id, after=after - world.now() / 1000)


async def jump(world: World, seconds: float) -> None:
    """Move the clock forward; nothing is delivered."""
    await world.harness.set_time(world.host.now() + timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("deadline", "guarded"),
    [(None, 1_000), (0, 1_000), (0.5, 500), (1, 1_000), (1.001, 1_000), (60, 1_000)],
)
async def test_entering_arms_the_guard_unless_an_earlier_alarm_does(
    mock_clock: object, open_world: OpenWorld, deadline: float | None, guarded: int
) -> None:
    """The guard is committed before the body; an earlier future native alarm stays (R17, R18)."""
    world = await open_world()
    if deadline is not None:
        await schedule(world, "a", deadline)
    await world.step()
    async with world.host.scheduler.defer_wakes():
        assert world.native_alarm() == guarded
    assert world.native_alarm() == (None if deadline is None else round(deadline * 1_000))


async def test_a_process_that_dies_inside_comes_back_at_the_guard(
    mock_clock: object, open_inline_world: OpenWorld
) -> None:
    """The guard is durable: after a crash in the body it is what is stored (R17)."""
    world = await open_inline_world()
    await schedule(world, "a", 60)

    async def die() -> None:
        async with world.host.scheduler.defer_wakes():
            await world.harness.crash()

    assert isinstance(await error_of(die), StorageOperationError)
    assert world.native_alarm() == 1_000
    await world.harness.reopen()
    assert world.native_alarm() == 60_000


async def test_it_makes_the_host_managed(mock_clock: object, open_world: OpenWorld) -> None:
    """`defer_wakes` is the scheduler's: from then on it owns the native alarm (R35)."""
    world = await open_world()
    await world.host.native_alarm.set(world.host.now() + timedelta(seconds=50))
    async with world.host.scheduler.defer_wakes():
        assert world.native_alarm() == 1_000
    assert world.native_alarm() is None
    with pytest.raises(Exception, match="managed"):
        await world.host.native_alarm.delete()


@pytest.mark.parametrize("ending", ["returns", "raises", "is cancelled", "swallows a cancellation"])
async def test_leaving_reconciles_to_the_earliest_deadline(
    mock_clock: object, open_world: OpenWorld, ending: str
) -> None:
    """The last scope reconciles on success, error and cancellation alike (R19)."""
    world = await open_world()
    await schedule(world, "a", 60)
    scope = trio.CancelScope()

    async def body() -> None:
        with scope:
            async with world.host.scheduler.defer_wakes():
                await schedule(world, "b", 30)
                await schedule(world, "c", 90)
                assert world.native_alarm() == 1_000
                if ending == "raises":
                    raise ERROR
                if ending != "returns":
                    scope.cancel()
                if ending == "is cancelled":
                    await trio.sleep_forever()

    assert await error_of(body) is (ERROR if ending == "raises" else None)
    assert world.native_alarm() == 30_000
    assert not world.host._runtime.wakes.scopes_open
    await world.step()
    assert world.native_alarm() == 30_000


async def test_while_a_scope_is_open_no_commit_looks_at_deadlines(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """Inside, neither an earlier nor a later alarm, nor cancelling all, moves the guard (R18)."""
    world = await open_world()
    await schedule(world, "a", 60)
    async with world.host.scheduler.defer_wakes():
        await schedule(world, "b", 0.2)
        assert world.native_alarm() == 1_000
        await schedule(world, "b", 90)
        assert world.native_alarm() == 1_000
        async with world.host.scheduler.transaction() as tx:
            await tx.cancel_alarm("send", "a")
            await tx.cancel_alarm("send", "b")
        assert world.rows() == []
        assert world.native_alarm() == 1_000
    assert world.native_alarm() is None


async def test_a_guard_that_was_reached_is_set_anew_by_the_next_commit(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """Where `guard_at <= now`, it becomes now + `guard_delay`, and not before (R18)."""
    world = await open_world()
    await schedule(world, "a", 60)
    async with world.host.scheduler.defer_wakes():
        await jump(world, 0.999)
        await schedule(world, "b", 70)
        assert world.native_alarm() == 1_000
        await jump(world, 0.001)
        await schedule(world, "b", 80)
        assert world.native_alarm() == 2_000
        await jump(world, 9)
        assert world.native_alarm() == 2_000
        await schedule(world, "b", 90)
        assert world.native_alarm() == 11_000
    assert world.native_alarm() == 60_000


async def test_an_earlier_alarm_that_was_kept_is_replaced_once_it_is_past(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """A native alarm before the guard stays for as long as it is in the future (R18)."""
    world = await open_world()
    await schedule(world, "a", 0.5)
    async with world.host.scheduler.defer_wakes():
        await schedule(world, "b", 70)
        assert world.native_alarm() == 500
        await jump(world, 0.5)
        await schedule(world, "b", 80)
        assert world.native_alarm() == 1_000
    assert world.native_alarm() == 500


async def test_the_guard_delay_is_in_flight_recovery_as_resolved_at_the_first_entry(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """The first scope sets the delay, from host or task; scopes inside change nothing (R2, R17)."""
    world = await open_world(configuration=ScheduleConfiguration(in_flight_recovery=3))
    host = world.host
    async with host.scheduler.defer_wakes():
        assert world.native_alarm() == 3_000
        with schedule_configuration(ScheduleConfiguration(in_flight_recovery=10)):
            await jump(world, 1)
            async with host.scheduler.defer_wakes():
                assert world.native_alarm() == 3_000
                await jump(world, 2)
                await schedule(world, "a", 60)
                assert world.native_alarm() == 6_000
    with schedule_configuration(ScheduleConfiguration(in_flight_recovery=10)):
        async with host.scheduler.defer_wakes():
            assert world.native_alarm() == 13_000


@pytest.mark.parametrize("order", list(itertools.permutations([0, 1, 2])))
async def test_scopes_are_counted_across_tasks(
    mock_clock: object, open_world: OpenWorld, order: tuple[int, ...]
) -> None:
    """Of the scopes of several tasks the last to be left reconciles, whichever it is (R17, R19)."""
    world = await open_world()
    await schedule(world, "a", 60)
    leave = [trio.Event() for _ in range(3)]

    async def defer(number: int, task_status: trio.TaskStatus[None]) -> None:
        async with world.host.scheduler.defer_wakes():
            task_status.started()
            await leave[number].wait()

    async with trio.open_nursery() as nursery:
        for number in range(3):
            await nursery.start(defer, number)
        for number in order:
            assert world.native_alarm() == 1_000
            leave[number].set()
            await until_scopes_are(world, 2 - order.index(number))
    assert world.native_alarm() == 60_000


async def until_scopes_are(world: World, count: int) -> None:
    """Wait until so many scopes are left, and the last has reconciled."""
    wakes = world.host._runtime.wakes
    while wakes._scopes != count or (not count and wakes.scopes_open):
        await trio.lowlevel.checkpoint()


async def test_nested_scopes_reconcile_once_at_the_end(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """Leaving an inner scope, be it by an error, leaves the guard to the outer one (R17, R19)."""
    world = await open_world()
    await schedule(world, "a", 60)

    async def fail() -> None:
        async with world.host.scheduler.defer_wakes():
            raise ERROR

    async with world.host.scheduler.defer_wakes():
        async with world.host.scheduler.defer_wakes():
            await schedule(world, "b", 30)
        assert world.native_alarm() == 1_000
        assert await error_of(fail) is ERROR
        assert world.native_alarm() == 1_000
    assert world.native_alarm() == 30_000


async def test_only_the_last_scope_commits_as_it_is_left(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """A scope inside another one is left without a commit: a guard that is past stays (R19)."""
    world = await open_world()
    async with world.host.scheduler.defer_wakes():
        async with world.host.scheduler.defer_wakes():
            await jump(world, 2)
        assert world.native_alarm() == 1_000
    assert world.native_alarm() is None


async def test_a_scope_inside_another_one_renews_a_guard_that_is_due(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """The guard stands in the future before each body, whatever scopes are open (R17, R18)."""
    world = await open_world()
    async with world.host.scheduler.defer_wakes():
        assert world.native_alarm() == 1_000
        await jump(world, 2)
        assert world.native_alarm() == 1_000
        async with world.host.scheduler.defer_wakes():
            assert world.native_alarm() == 3_000
        assert world.native_alarm() == 3_000
    assert world.native_alarm() is None


async def test_scopes_are_counted_per_host(mock_clock: object, open_world: OpenWorld) -> None:
    """A scope of one host does not hold the wakes of another in the same file (R17)."""
    world = await open_world()
    storage = world.host._runtime.settings.storage
    async with (
        open_host(world.path, name="other", storage=storage) as other,
        world.host.scheduler.defer_wakes(),
    ):
        await other.scheduler.schedule_alarm("send", "a", after=60)
        assert await other.native_alarm.get() == other.now() + timedelta(seconds=60)
        assert world.native_alarm() == 1_000


async def test_a_services_scheduler_has_the_same_scopes(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """A scope of a service's view is a scope of the host (R17)."""

    class Service(AlarmService, key="service"):
        start = Alarm(None)

    async def handler(_: object) -> None:
        return

    world = await open_world(alarms=Service.handlers(Service.start.handled_by(handler)))
    await schedule(world, "a", 60)
    async with world.host.service(Service).defer_wakes():
        async with world.host.scheduler.defer_wakes():
            pass
        assert world.native_alarm() == 1_000
    assert world.native_alarm() == 60_000


@pytest.mark.parametrize("kind", ["scheduler", "storage", "nested"])
async def test_inside_a_block_it_is_refused(
    mock_clock: object, open_world: OpenWorld, kind: str
) -> None:
    """Inside a transaction block neither a scope nor a dispatch can begin (R17)."""

    class Service(AlarmService, key="service"):
        start = Alarm(None)

    async def handler(_: object) -> None:
        raise AssertionError("dispatched inside a block")

    registration = Service.handlers(Service.start.handled_by(handler))
    start = Alarm(None, tag="start")
    handlers = define(start).handlers(start.handled_by(handler))
    world = await open_world(alarms=registration)
    host = world.host
    await host.scheduler.schedule_alarm("start", "now", after=0)
    before = (world.rows(), world.native_alarm())
    uses: list[Callable[[], Awaitable[object]]] = [
        lambda: host.scheduler.defer_wakes().__aenter__(),
        lambda: host.service(Service).defer_wakes().__aenter__(),
        lambda: host.scheduler.process_due_alarms(handler),
        lambda: registration.run(host),
        lambda: handlers.run(host),
    ]
    async with AsyncExitStack() as stack:
        if kind == "storage":
            await stack.enter_async_context(host.storage.transaction())
        else:
            await stack.enter_async_context(host.scheduler.transaction())
        if kind == "nested":
            await stack.enter_async_context(host.storage.transaction())
        with trio.fail_after(1):
            errors = [await error_of(use) for use in uses]
    assert {type(error) for error in errors} == {StorageOperationError}
    assert not world.host._runtime.wakes.scopes_open
    assert (world.rows(), world.native_alarm()) == before


async def test_leaving_inside_a_block_does_not_wait_for_oneself(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """A scope that is left inside a block entered later reconciles with that block (R12, R19)."""
    world = await open_world()
    await schedule(world, "a", 60)
    scopes, blocks = AsyncExitStack(), AsyncExitStack()
    with trio.fail_after(1):
        await scopes.enter_async_context(world.host.scheduler.defer_wakes())
        tx = await blocks.enter_async_context(world.host.scheduler.transaction())
        await tx.schedule_alarm("send", "b", after=30)
        await scopes.aclose()
        await blocks.aclose()
    assert world.native_alarm() == 30_000
    require_unlocked(world.path)


async def test_what_follows_waits_for_the_scopes_to_end(
    mock_clock: object, open_inline_world: OpenWorld
) -> None:
    """A delivery waits until the last scope has reconciled, then runs (R19, R22)."""
    handled: list[str] = []
    leave = [trio.Event(), trio.Event()]

    async def dispatcher(host: AlarmHost) -> None:
        await host.scheduler.process_due_alarms(handler)

    async def handler(event: AlarmDue[Any]) -> None:
        handled.append(event.id)

    async def defer(number: int, task_status: trio.TaskStatus[None]) -> None:
        async with world.host.scheduler.defer_wakes():
            task_status.started()
            await leave[number].wait()

    world = await open_inline_world(alarms=dispatcher)
    await schedule(world, "a", 0)
    async with trio.open_nursery() as nursery:
        for number in (0, 1):
            await nursery.start(defer, number)
        nursery.start_soon(partial(world.host.deliver_native_alarm, force=True))
        for number in (0, 1):
            await trio.testing.wait_all_tasks_blocked()
            assert handled == []
            leave[number].set()
    assert handled == ["a"]
    assert world.native_alarm() is None


@pytest.mark.parametrize("raises", [False, True])
async def test_while_a_pass_is_active_the_pass_reconciles(
    mock_clock: object, open_world: OpenWorld, *, raises: bool
) -> None:
    """A scope that is left during a pass leaves the guard to that pass (R19)."""
    guards: list[int | None] = []

    async def dispatcher(host: AlarmHost) -> None:
        await host.scheduler.process_due_alarms(handler)
        # After the dispatch's own scope the pass is still active.
        await error_of(partial(defer, host))
        guards.append(world.native_alarm())

    async def defer(host: AlarmHost) -> None:
        async with host.scheduler.defer_wakes():
            await host.scheduler.schedule_alarm("send", "later", after=60)
            if raises:
                raise ERROR

    async def handler(event: AlarmDue[Any]) -> None:
        await error_of(partial(defer, event.host))
        guards.append(world.native_alarm())

    world = await open_world(alarms=dispatcher)
    await schedule(world, "a", 0)
    await world.harness.deliver()
    assert guards == [1_000, 1_000]
    assert world.native_alarm() == 60_000


async def test_a_pass_that_found_nothing_reconciles_for_a_scope_left_meanwhile(
    mock_clock: object, open_inline_world: OpenWorld
) -> None:
    """A scope entered and left while a pass is acquiring is reconciled by the pass (R19, R23)."""
    acquired, go_on = trio.Event(), trio.Event()

    class Scope:
        async def __aenter__(self) -> None:
            acquired.set()
            await go_on.wait()

        async def __aexit__(self, *_: object) -> None:
            await trio.lowlevel.checkpoint()

    async def dispatcher(_: AlarmHost) -> None:
        return

    world = await open_inline_world(alarms=dispatcher, event_scope=lambda _: Scope())
    await schedule(world, "a", 60)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(world.host.deliver_native_alarm, force=True))
        await acquired.wait()
        async with world.host.scheduler.defer_wakes():
            await schedule(world, "b", 30)
        assert world.native_alarm() == 1_000
        # The pass is active, so that deadlines do not count although no scope is open.
        await schedule(world, "c", 20)
        assert world.native_alarm() == 1_000
        go_on.set()
    assert world.native_alarm() == 20_000


async def test_a_scope_left_in_a_pass_commits_nothing_itself(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """The last scope that is left while a pass is active leaves all of it to the pass (R19)."""
    acquired, go_on = trio.Event(), trio.Event()

    @asynccontextmanager
    async def acquire(_: AlarmHost) -> AsyncIterator[None]:
        acquired.set()
        await go_on.wait()
        yield

    async def dispatcher(_: AlarmHost) -> None:
        await trio.lowlevel.checkpoint()

    world = await open_world(alarms=dispatcher, event_scope=acquire)
    await schedule(world, "a", 60)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(world.host.deliver_native_alarm, force=True))
        await acquired.wait()
        async with world.host.scheduler.defer_wakes():
            await jump(world, 2)
        assert world.native_alarm() == 1_000
        go_on.set()
    assert world.native_alarm() == 60_000


async def test_a_scope_that_could_not_be_entered_holds_nothing_up(
    autojump_clock: object, open_inline_world: OpenWorld
) -> None:
    """Where the guard cannot be committed the body does not run, and deadlines count (R17)."""
    world = await open_inline_world(storage=StorageOptions(executor="inline", busy_timeout=0.1))
    await schedule(world, "a", 60)

    async def enter() -> None:
        async with world.host.scheduler.defer_wakes():
            raise AssertionError("entered without its guard")

    with locked(world.path):
        began = trio.current_time()
        assert isinstance(await error_of(enter), StorageOperationError)
        assert trio.current_time() - began < 0.13
    assert not world.host._runtime.wakes.scopes_open
    assert world.native_alarm() == 60_000
    await schedule(world, "b", 30)
    assert world.native_alarm() == 30_000
    assert not await world.harness.deliver()


@pytest.mark.parametrize("raises", [False, True])
async def test_leaving_that_cannot_reconcile_leaves_the_guard(
    mock_clock: object, open_world: OpenWorld, caplog: pytest.LogCaptureFixture, *, raises: bool
) -> None:
    """A reconciliation that fails on leaving is an error, or logged beside the body's (R19)."""
    world = await open_world()
    await schedule(world, "a", 60)

    async def defer() -> None:
        async with world.host.scheduler.defer_wakes():
            refuse_reconciling(world)
            if raises:
                raise ERROR

    error = await error_of(defer)
    if raises:
        assert error is ERROR
        assert "could not reconcile" in caplog.text
    else:
        assert isinstance(error, StorageOperationError)
    assert world.native_alarm() == 1_000
    assert not world.host._runtime.wakes.scopes_open
    allow_reconciling(world)
    await schedule(world, "b", 90)
    assert world.native_alarm() == 60_000


async def test_a_scope_that_waited_long_for_its_turn_begins_with_a_fresh_guard(
    mock_clock: object, open_inline_world: OpenWorld
) -> None:
    """A guard that is past when it is committed at last is now + `guard_delay` (R17, R18)."""
    world = await open_inline_world()
    entered = trio.Event()

    async def defer() -> None:
        async with world.host.scheduler.defer_wakes():
            assert world.native_alarm() == 6_000
            entered.set()

    async with trio.open_nursery() as nursery:
        leave = await nursery.start(hold_the_turn, world.host)
        nursery.start_soon(defer)
        await trio.testing.wait_all_tasks_blocked()
        await jump(world, 5)
        leave.set()
    assert entered.is_set()


async def test_a_scope_that_begins_while_the_last_one_reconciles_keeps_its_guard(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """Whenever a scope begins while another ends, the guard stands inside of it (R17, R19)."""
    world = await open_world()
    await schedule(world, "a", 60)
    leave = trio.Event()

    async def first(task_status: trio.TaskStatus[None]) -> None:
        async with world.host.scheduler.defer_wakes():
            task_status.started()
            await leave.wait()

    async def second(steps: int) -> None:
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        async with world.host.scheduler.defer_wakes():
            assert world.native_alarm() == 1_000
            await trio.testing.wait_all_tasks_blocked()
            assert world.native_alarm() == 1_000
            await schedule(world, "b", 90)
            assert world.native_alarm() == 1_000

    for steps in range(8):
        leave = trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(first)
            nursery.start_soon(second, steps)
            leave.set()
        assert world.native_alarm() == 60_000
        assert not world.host._runtime.wakes.scopes_open
