from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from tests.behaviour.conftest import OpenWorld
from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmHost,
    AlarmPassError,
    AlarmService,
    EventScope,
    StorageOperationError,
    define,
    process_due,
)


class Scopes:
    """An event scope that notes when it is entered and left, and yields a new number each time."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.count = 0

    def __call__(self, host: AlarmHost) -> AbstractAsyncContextManager[int]:
        """Make one, as the host's `event_scope`."""
        return self._scope(host)

    @asynccontextmanager
    async def _scope(self, _: AlarmHost) -> AsyncIterator[int]:
        self.count += 1
        number = self.count
        self.log.append(f"enter {number}")
        try:
            yield number
        except BaseException as error:
            self.log.append(f"{type(error).__name__} in {number}")
            raise
        finally:
            self.log.append(f"leave {number}")


# What an event owns.


async def test_each_event_enters_a_fresh_scope(open_world: OpenWorld, mock_clock: object) -> None:
    """What the event scope yields is the event's resources, anew for each (R40)."""
    scopes = Scopes()
    world = await open_world(event_scope=scopes)
    for number in (1, 2):
        async with world.host.event() as scope:
            assert scope.resources == number
            scopes.log.append("body")
        await world.step()
    assert scopes.log == ["enter 1", "body", "leave 1", "enter 2", "body", "leave 2"]


async def test_without_an_event_scope_there_are_no_resources(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """Without `event_scope` an event still has a nursery of its own (R40)."""
    world = await open_inline_world()
    async with world.host.event() as first, world.host.event() as second:
        assert first.resources is None
        assert first.nursery is not second.nursery


async def test_the_scope_is_made_for_its_host(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """`event_scope` is called with the host whose event it is (R40)."""
    hosts: list[AlarmHost] = []

    @asynccontextmanager
    async def scope(host: AlarmHost) -> AsyncIterator[None]:
        hosts.append(host)
        yield

    worlds = [await open_inline_world(name=name, event_scope=scope) for name in "ab"]
    for world in worlds:
        async with world.host.event():
            pass
    assert hosts == [world.host for world in worlds]


async def test_what_is_started_in_the_nursery_ends_before_the_scope_is_left(
    open_inline_world: OpenWorld, autojump_clock: object
) -> None:
    """The event is over only when its tasks and then its scope are (R40)."""
    scopes = Scopes()
    world = await open_inline_world(event_scope=scopes)

    async def work() -> None:
        await trio.sleep(3)
        scopes.log.append("task ends")

    async with world.host.event() as scope:
        scope.nursery.start_soon(work)
        scopes.log.append("body ends")
    assert scopes.log == ["enter 1", "body ends", "task ends", "leave 1"]
    assert trio.current_time() == pytest.approx(3)


async def test_concurrent_events_do_not_wait_for_each_other(
    open_inline_world: OpenWorld, autojump_clock: object
) -> None:
    """Events are independent of each other (R40)."""
    world = await open_inline_world()

    async def event() -> None:
        async with world.host.event():
            await trio.sleep(5)

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(event)
    assert trio.current_time() == pytest.approx(5)


# What comes out of an event.


async def test_what_the_body_raises_leaves_as_the_same_object(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """The body's exception is not wrapped, and its tasks are cancelled (R40)."""
    scopes = Scopes()
    world = await open_world(event_scope=scopes)
    error = LookupError("body")

    async def fail() -> None:
        async with world.host.event() as scope:
            scope.nursery.start_soon(trio.sleep_forever)
            await trio.lowlevel.checkpoint()
            raise error

    with pytest.raises(LookupError) as caught:
        await fail()
    assert caught.value is error
    assert scopes.log == ["enter 1", "LookupError in 1", "leave 1"]


@pytest.mark.parametrize(
    "error",
    [
        StopAsyncIteration(),
        GeneratorExit(),
        KeyboardInterrupt(),
        RuntimeError(),
        ExceptionGroup("of the body's own", [ValueError()]),
    ],
    ids=repr,
)
async def test_no_kind_of_exception_is_mistaken(
    open_inline_world: OpenWorld, mock_clock: object, error: BaseException
) -> None:
    """Exceptions that generators or nurseries treat specially leave as they are, too (R40)."""
    world = await open_inline_world(event_scope=Scopes())

    async def fail() -> None:
        async with world.host.event():
            raise error

    with pytest.raises(type(error)) as caught:
        await fail()
    assert caught.value is error


async def test_a_failing_task_cancels_the_body(
    open_inline_world: OpenWorld, autojump_clock: object
) -> None:
    """What only a task of the event raised comes out in a group, as of any nursery (R40)."""
    scopes = Scopes()
    world = await open_inline_world(event_scope=scopes)

    async def fail() -> None:
        await trio.sleep(1)
        raise LookupError("task")

    async def event() -> None:
        async with world.host.event() as scope:
            scope.nursery.start_soon(fail)
            await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        await event()
    assert [str(error) for error in caught.value.exceptions] == ["task"]
    assert scopes.log == ["enter 1", "ExceptionGroup in 1", "leave 1"]


async def test_a_body_and_a_task_that_fail_come_out_together(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """Something else failed beside the body: both are in the group (R40)."""
    world = await open_inline_world()
    error = LookupError("body")

    async def fail() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise KeyError("task")

    async def event() -> None:
        async with world.host.event() as scope:
            scope.nursery.start_soon(fail)
            await trio.testing.wait_all_tasks_blocked()
            raise error

    with pytest.raises(ExceptionGroup) as caught:
        await event()
    assert caught.value.exceptions[0] is error
    assert [type(other) for other in caught.value.exceptions[1:]] == [KeyError]


async def test_a_scope_that_fails_to_enter_runs_no_body(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """The event scope's error leaves as it is where its entry failed (R40)."""
    error = LookupError("enter")
    scopes = ["fails"]

    @asynccontextmanager
    async def scope(_: AlarmHost) -> AsyncIterator[None]:
        if scopes:
            raise error
        yield

    world = await open_inline_world(event_scope=scope)
    with pytest.raises(LookupError) as caught:
        async with world.host.event():
            pytest.fail("the body has run")
    assert caught.value is error
    scopes.clear()
    async with world.host.event():
        pass


async def test_a_scope_that_fails_on_the_way_out_says_so(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """A failing clean-up comes out, with the body's error as its context (R40)."""
    world = await open_inline_world(event_scope=_failing_clean_up)
    with pytest.raises(KeyError, match="clean-up"):
        async with world.host.event():
            pass
    body = LookupError("body")
    with pytest.raises(KeyError, match="clean-up") as caught:
        async with world.host.event():
            raise body
    assert caught.value.__context__ is body


@asynccontextmanager
async def _failing_clean_up(_: AlarmHost) -> AsyncIterator[None]:
    try:
        yield
    finally:
        raise KeyError("clean-up")


async def test_a_scope_may_swallow_what_the_body_raised(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """An event scope that handles an error ends the event well (R40)."""

    @asynccontextmanager
    async def scope(_: AlarmHost) -> AsyncIterator[None]:
        try:
            yield
        except LookupError:
            pass

    world = await open_inline_world(event_scope=scope)
    ran = []
    async with world.host.event():
        ran.append("body")
        raise LookupError
    ran.append("after")  # type: ignore[unreachable]  # mypy does not see that it is swallowed
    assert ran == ["body", "after"]


async def test_a_cancelled_event_ends_its_tasks_and_its_scope(
    open_inline_world: OpenWorld, autojump_clock: object
) -> None:
    """Cancellation goes through an event to whoever asked for it (R40)."""
    scopes = Scopes()
    world = await open_inline_world(event_scope=scopes)
    with trio.move_on_after(1) as cancelled:
        async with world.host.event() as scope:
            scope.nursery.start_soon(trio.sleep_forever)
            await trio.sleep_forever()
    assert cancelled.cancelled_caught
    # Trio's nurseries group cancellations.
    assert scopes.log[0::2] == ["enter 1", "leave 1"]
    assert scopes.log[1] in {"Cancelled in 1", "BaseExceptionGroup in 1"}


async def test_an_event_of_a_closed_host_is_refused(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """After the host's block an event cannot begin, and no scope is entered (R40)."""
    scopes = Scopes()
    world = await open_inline_world(event_scope=scopes)
    host = world.host
    await world.harness.crash()
    await world.harness.reopen()
    with pytest.raises(StorageOperationError):
        async with host.event():
            pytest.fail("the body has run")
    assert scopes.log == []


# Work that is enrolled around an event.


async def test_a_scopes_clean_up_can_enrol_work(open_world: OpenWorld, mock_clock: object) -> None:
    """On its way in and out the scope schedules alarms and writes application rows (R40)."""

    @asynccontextmanager
    async def scope(host: AlarmHost) -> AsyncIterator[None]:
        await host.scheduler.schedule_alarm("job", "in", after=60)
        yield
        async with host.storage.transaction() as tx:
            await tx.execute("INSERT INTO app VALUES (1)")
            await tx.schedule_alarm("job", "out", after=30)

    world = await open_world(event_scope=scope)
    async with world.host.storage.transaction() as tx:
        await tx.execute("CREATE TABLE app (x)")
    async with world.host.event():
        assert world.native_alarm() == 60_000
    assert world.native_alarm() == 30_000
    await world.step()
    assert [row.id for row in world.rows()] == ["out", "in"]
    assert world.sql("SELECT * FROM app") == [(1,)]


async def test_a_clean_up_enrols_work_after_its_body_failed(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """A scope that arms a retry in its clean-up can do so when the event failed (R40)."""

    @asynccontextmanager
    async def scope(host: AlarmHost) -> AsyncIterator[None]:
        try:
            yield
        except LookupError:
            await host.scheduler.schedule_alarm("retry", "a", after=5)
            raise

    world = await open_world(event_scope=scope)
    with pytest.raises(LookupError):
        async with world.host.event():
            raise LookupError
    await world.step()
    assert world.native_alarm() == 5_000


async def test_a_passs_clean_up_enrols_work(open_world: OpenWorld, mock_clock: object) -> None:
    """What the clean-up of a pass schedules is armed when the pass ends, and uncharged (R40)."""

    @asynccontextmanager
    async def scope(host: AlarmHost) -> AsyncIterator[None]:
        yield
        await host.scheduler.schedule_alarm("job", "next", after=5)

    async def ignore(_: AlarmDue[Any]) -> None:
        pass

    world = await open_world(event_scope=scope, alarms=process_due(ignore))
    await world.host.scheduler.schedule_alarm("job", "first", after=0)
    await world.step()
    assert await world.harness.deliver()
    assert [(row.id, row.attempts, row.wake_at) for row in world.rows()] == [("next", 0, 5_000)]
    assert world.native_alarm() == 5_000


# The scopes of passes and direct runs.


async def test_a_pass_is_an_event_that_its_alarms_share(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """The alarms of one pass have one scope, those of the next one another (R40)."""
    scopes = Scopes()
    seen: list[tuple[str, EventScope[Any]]] = []

    async def note(event: AlarmDue[Any]) -> None:
        seen.append((event.id, event.scope))

    world = await open_world(event_scope=scopes, alarms=process_due(note))
    for id in "ab":
        await world.host.scheduler.schedule_alarm("job", id, after=0)
    await world.host.scheduler.schedule_alarm("job", "c", after=1)
    await world.step()
    await world.harness.advance(1)
    assert [(id, scope.resources) for id, scope in seen] == [("a", 1), ("b", 1), ("c", 2)]
    assert seen[0][1] is seen[1][1]
    assert scopes.log == ["enter 1", "leave 1", "enter 2", "leave 2"]


async def test_a_delivery_returns_after_its_scope_was_left(
    open_inline_world: OpenWorld, autojump_clock: object
) -> None:
    """What a handler leaves in its event's nursery ends before the delivery returns (R40)."""
    scopes = Scopes()

    async def work() -> None:
        await trio.sleep(3)
        scopes.log.append("task ends")

    async def leave_behind(event: AlarmDue[Any]) -> None:
        event.scope.nursery.start_soon(work)
        scopes.log.append("handled")

    world = await open_inline_world(event_scope=scopes, alarms=process_due(leave_behind))
    await world.host.scheduler.schedule_alarm("job", "a", after=0)
    assert await world.harness.deliver()
    assert scopes.log == ["enter 1", "handled", "task ends", "leave 1"]


@pytest.mark.parametrize("kind", ["registration", "set", "process_due_alarms"])
async def test_a_direct_run_enters_an_event_of_its_own(
    open_inline_world: OpenWorld, mock_clock: object, kind: str
) -> None:
    """Outside of an event a dispatch enters one, so that there always is a scope (R25, R40)."""
    scopes = Scopes()
    resources: list[Any] = []

    async def note(event: AlarmDue[Any]) -> None:
        resources.append(event.scope.resources)

    run = _runs(note)[kind]
    world = await open_inline_world(event_scope=scopes)
    await world.host.scheduler.schedule_alarm("job", "a", after=0)
    await run(world.host)
    assert resources == [1]
    assert scopes.log == ["enter 1", "leave 1"]


@pytest.mark.parametrize("kind", ["registration", "set", "process_due_alarms"])
async def test_a_direct_run_inside_an_event_is_part_of_it(
    open_inline_world: OpenWorld, mock_clock: object, kind: str
) -> None:
    """Inside an event a dispatch takes that event's scope, also from a task of its (R25, R40)."""
    scopes = Scopes()
    seen: list[EventScope[Any]] = []

    async def note(event: AlarmDue[Any]) -> None:
        seen.append(event.scope)

    run = _runs(note)[kind]
    world = await open_inline_world(event_scope=scopes)
    await world.host.scheduler.schedule_alarm("job", "a", after=0)
    async with world.host.event() as scope:
        await run(world.host)
        await world.host.scheduler.schedule_alarm("job", "b", after=0)
        scope.nursery.start_soon(run, world.host)
    assert seen == [scope, scope]
    assert scopes.log == ["enter 1", "leave 1"]


def _runs(handler: Any) -> dict[str, Any]:
    class Jobs(AlarmService, key="app/jobs"):
        job = Alarm(None, tag="job")

    job = Alarm(None, tag="job")
    return {
        "registration": Jobs.handlers(Jobs.job.handled_by(handler)).run,
        "set": define(job).handlers(job.handled_by(handler)).run,
        "process_due_alarms": process_due(handler),
    }


@pytest.mark.parametrize("kind", ["registration", "set", "process_due_alarms"])
async def test_a_direct_run_whose_scope_fails_to_enter_charges_nothing(
    open_inline_world: OpenWorld, mock_clock: object, kind: str
) -> None:
    """Where the event around a dispatch cannot begin, due rows stay as they are (R25, R40)."""

    @asynccontextmanager
    async def scope(_: AlarmHost) -> AsyncIterator[None]:
        if fails:
            raise LookupError("enter")
        yield

    async def ignore(_: AlarmDue[Any]) -> None:
        pass

    fails = ["yes"]
    run = _runs(ignore)[kind]
    world = await open_inline_world(event_scope=scope)
    await world.host.scheduler.schedule_alarm("job", "a", after=0)
    before = world.rows()
    with pytest.raises(LookupError, match="enter"):
        await run(world.host)
    assert world.rows() == before
    assert world.native_alarm() == 0
    fails.clear()
    assert len((await run(world.host)).handled) == 1


@pytest.mark.parametrize("kind", ["registration", "set", "process_due_alarms"])
async def test_a_direct_run_whose_scope_fails_on_the_way_out_has_dispatched(
    open_inline_world: OpenWorld, mock_clock: object, kind: str
) -> None:
    """The clean-up's error comes out; what was acknowledged stays so (R25, R40)."""

    async def ignore(_: AlarmDue[Any]) -> None:
        pass

    run = _runs(ignore)[kind]
    world = await open_inline_world(event_scope=_failing_clean_up)
    await world.host.scheduler.schedule_alarm("job", "a", after=0)
    with pytest.raises(KeyError, match="clean-up"):
        await run(world.host)
    assert world.rows() == []
    assert world.native_alarm() is None


async def test_a_cancelled_direct_run_charges_nothing(
    open_inline_world: OpenWorld, autojump_clock: object
) -> None:
    """Cancelling a dispatch outside of a pass leaves what is due due, and reconciles (R19, R25)."""

    async def hang(_: AlarmDue[Any]) -> None:
        await trio.sleep_forever()

    world = await open_inline_world()
    await world.host.scheduler.schedule_alarm("job", "a", after=0)
    before = world.rows()
    with trio.move_on_after(5) as scope:
        await world.host.scheduler.process_due_alarms(hang)
    assert scope.cancelled_caught
    assert world.rows() == before
    assert world.native_alarm() == 0


async def test_events_of_two_hosts_are_told_apart(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """A dispatch of one host inside an event of another enters an event of its own (R40)."""
    first, second = Scopes(), Scopes()
    resources: list[Any] = []

    async def note(event: AlarmDue[Any]) -> None:
        resources.append((event.host.name, event.scope.resources))

    outer = await open_inline_world(name="outer", event_scope=first)
    inner = await open_inline_world(name="inner", event_scope=second)
    second.count = 10
    await inner.host.scheduler.schedule_alarm("job", "a", after=0)
    async with outer.host.event():
        await inner.host.scheduler.process_due_alarms(note)
    assert resources == [("inner", 11)]


async def test_an_event_inside_a_transaction_block_sees_the_block(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """A task of the event cannot write through its parent's block; it is told so (R12)."""
    world = await open_inline_world()
    refused: list[StorageOperationError] = []

    async def write() -> None:
        try:
            await world.host.scheduler.schedule_alarm("job", "child", after=0)
        except StorageOperationError as error:
            refused.append(error)

    async with world.host.scheduler.transaction() as tx, world.host.event() as scope:
        await tx.schedule_alarm("job", "parent", after=0)
        scope.nursery.start_soon(write)
    assert len(refused) == 1
    assert [row.id for row in world.rows()] == ["parent"]


async def test_an_event_may_deliver(open_inline_world: OpenWorld, mock_clock: object) -> None:
    """A delivery inside an event runs a pass with a fresh scope of its own (R40)."""
    scopes = Scopes()
    resources: list[Any] = []

    async def note(event: AlarmDue[Any]) -> None:
        resources.append(event.scope.resources)

    world = await open_inline_world(event_scope=scopes, alarms=process_due(note))
    await world.host.scheduler.schedule_alarm("job", "a", after=0)
    async with world.host.event():
        assert await world.host.deliver_native_alarm()
    assert resources == [2]
    assert scopes.log == ["enter 1", "enter 2", "leave 2", "leave 1"]


async def test_an_event_in_a_handler_is_one_of_its_own(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """A handler may open an event; to wait for a delivery in it is still refused (R21, R40)."""
    scopes = Scopes()
    log: list[str] = []

    async def nest(event: AlarmDue[Any]) -> None:
        async with event.host.event() as scope:
            log.append(f"{event.scope.resources} and {scope.resources}")
            with pytest.raises(AlarmPassError):
                await event.host.deliver_native_alarm(force=True)

    world = await open_inline_world(event_scope=scopes, alarms=process_due(nest))
    await world.host.scheduler.schedule_alarm("job", "a", after=0)
    await world.harness.settle()
    assert log == ["1 and 2"]
    assert world.rows() == []
