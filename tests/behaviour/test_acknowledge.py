"""`tx.acknowledge`: the handler's writes and its acknowledgement in one commit (R36)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from tests.behaviour.conftest import OpenWorld, World
from tests.behaviour.storage_tools import (
    INSERT,
    ROLL_BACK,
    create_items,
    error_of,
    items,
    locked,
    require_unlocked,
)
from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmFailure,
    AlarmHost,
    AlarmService,
    AlarmTransaction,
    DispatchOptions,
    DispatchResult,
    InvalidAlarmRefError,
    StorageOperationError,
    define,
)

ERROR = ValueError("the handler's")

Handler = Callable[[AlarmDue[Any]], Awaitable[None]]


class Work:
    """A dispatcher whose handler and `on_failure` the test sets, and what it did."""

    def __init__(self) -> None:
        self.handler: Handler
        self.on_failure: Callable[[AlarmFailure], Awaitable[Any]] | None = None
        self.results: list[DispatchResult] = []
        self.started: list[str] = []
        self.asserted: list[AssertionError] = []
        self.timeout: float | None = None
        self.concurrency = 1

    async def dispatch(self, host: AlarmHost) -> None:
        """Dispatch what is due."""
        options = DispatchOptions(
            on_failure=self.on_failure, timeout=self.timeout, concurrency=self.concurrency
        )
        self.results.append(await host.scheduler.process_due_alarms(self._handle, options))

    async def _handle(self, event: AlarmDue[Any]) -> None:
        self.started.append(event.id)
        try:
            await self.handler(event)
        except AssertionError as error:
            # Or it would be taken for a handler's failure.
            self.asserted.append(error)
            raise


@pytest.fixture
def work() -> Iterator[Work]:
    """What dispatches the world's alarms."""
    work = Work()
    yield work
    assert work.asserted == []


async def open_working(open_world: OpenWorld, work: Work, **options: Any) -> World:
    """A world with the application's table."""
    world = await open_world(alarms=work.dispatch, **options)
    await create_items(world.host)
    return world


async def deliver(world: World, id: str = "a", **options: Any) -> None:
    """Make an alarm due now, and deliver it."""
    await world.host.scheduler.schedule_alarm("work", id, after=0, **options)
    await world.harness.deliver()


async def acknowledge(event: AlarmDue[Any], number: int = 1) -> bool:
    """Write an item and acknowledge, in one transaction."""
    async with event.host.scheduler.transaction() as tx:
        await tx.execute(INSERT, (number,))
        return await tx.acknowledge(event)


@pytest.mark.parametrize("block", ["scheduler", "storage", "nested"])
@pytest.mark.parametrize("ending", ["returns", "raises"])
async def test_the_writes_and_the_acknowledgement_are_one_commit(
    mock_clock: object, open_world: OpenWorld, work: Work, block: str, ending: str
) -> None:
    """Both are stored by the commit and not before, however the handler ends (R36)."""

    async def handler(event: AlarmDue[Any]) -> None:
        host = event.host
        opener = host.storage if block == "storage" else host.scheduler
        async with opener.transaction() as tx:
            await tx.execute(INSERT, (1,))
            if block == "nested":
                async with host.storage.transaction() as inner:
                    assert await inner.acknowledge(event)
            else:
                assert await tx.acknowledge(event)
            assert await tx.get_alarm_status("work", "a") is None
            assert world.row("work", "a") is not None
            assert items(world.path) == []
        assert (world.row("work", "a"), items(world.path)) == (None, [1])
        if ending == "raises":
            raise ERROR

    work.handler = handler
    world = await open_working(open_world, work)
    await deliver(world)
    await world.step()
    assert (world.rows(), items(world.path)) == ([], [1])
    assert world.native_alarm() is None
    (result,) = work.results
    if ending == "returns":
        assert ([event.id for event in result.handled], result.failed) == (["a"], ())
    else:
        assert ([failure.error for failure in result.failed], result.handled) == ([ERROR], ())


@pytest.mark.parametrize("undone", ["raises", "is cancelled", "SQLite rolls back"])
@pytest.mark.parametrize("ending", ["returns", "raises"])
async def test_a_transaction_that_is_not_committed_acknowledges_nothing(
    mock_clock: object, open_world: OpenWorld, work: Work, undone: str, ending: str
) -> None:
    """Rolled back, the acknowledgement is undone too: the handler's end decides as usual (R36)."""

    async def attempt(event: AlarmDue[Any]) -> None:
        with trio.CancelScope() as scope:
            async with event.host.scheduler.transaction() as tx:
                await tx.execute(INSERT, (1,))
                assert await tx.acknowledge(event)
                if undone == "raises":
                    raise ERROR
                if undone == "is cancelled":
                    scope.cancel()
                else:
                    await tx.execute(ROLL_BACK)

    async def handler(event: AlarmDue[Any]) -> None:
        await error_of(partial(attempt, event))
        assert world.row("work", "a") is not None
        if ending == "raises":
            raise ERROR

    work.handler = handler
    world = await open_working(open_world, work)
    await deliver(world)
    assert items(world.path) == []
    assert [row.attempts for row in world.rows()] == ([1] if ending == "raises" else [])
    require_unlocked(world.path)


async def test_an_undone_inner_block_acknowledges_nothing(
    mock_clock: object, open_world: OpenWorld, work: Work
) -> None:
    """An acknowledgement in a savepoint that is undone did not happen (R13, R36)."""

    async def inner(event: AlarmDue[Any]) -> None:
        async with event.host.scheduler.transaction() as tx:
            assert await tx.acknowledge(event)
            raise ERROR

    async def handler(event: AlarmDue[Any]) -> None:
        async with event.host.scheduler.transaction() as tx:
            assert await error_of(partial(inner, event)) is ERROR
            await tx.execute(INSERT, (1,))
        raise ERROR

    work.handler = handler
    world = await open_working(open_world, work)
    await deliver(world)
    assert items(world.path) == [1]
    assert [row.attempts for row in world.rows()] == [1]


async def test_a_repeat_advances_from_the_transaction(
    mock_clock: object, open_world: OpenWorld, work: Work
) -> None:
    """A repeat moves to now + period in the transaction, not when the handler ends (R36)."""

    async def handler(event: AlarmDue[Any]) -> None:
        assert await acknowledge(event, len(work.started))
        if len(work.started) == 1:
            await world.harness.set_time(event.host.now().replace(second=30))

    work.handler = handler
    world = await open_working(open_world, work)
    await deliver(world, repeat_every=100, payload="kept")
    (row,) = world.rows()
    assert (row.run_at, row.wake_at, row.attempts, row.payload) == (100_000, 100_000, 0, '"kept"')
    assert world.native_alarm() == 100_000
    await world.harness.advance(70)
    assert work.started == ["a", "a"]
    assert world.rows()[0].run_at == 200_000


@pytest.mark.parametrize("answer", ["retry", "skip-and-advance-repeat", None])
async def test_the_answer_of_on_failure_changes_nothing(
    mock_clock: object, open_world: OpenWorld, work: Work, answer: Any
) -> None:
    """A handler that raises after the commit has failed: asked, without an effect (R36)."""
    asked: list[AlarmFailure] = []

    async def handler(event: AlarmDue[Any]) -> None:
        assert await acknowledge(event)
        raise ERROR

    async def on_failure(failure: AlarmFailure) -> Any:
        asked.append(failure)
        return answer

    work.handler, work.on_failure = handler, on_failure
    world = await open_working(open_world, work)
    await deliver(world, repeat_every=100)
    assert [failure.error for failure in asked] == [ERROR]
    (row,) = world.rows()
    assert (row.run_at, row.attempts, row.retry_at) == (100_000, 0, None)
    assert work.results[0].failed == tuple(asked)


async def test_a_timeout_after_it_changes_nothing(
    autojump_clock: object, open_inline_world: OpenWorld, work: Work
) -> None:
    """A handler that runs past its timeout after the commit is not charged (R36)."""

    async def handler(event: AlarmDue[Any]) -> None:
        assert await acknowledge(event)
        await trio.sleep_forever()

    work.handler, work.timeout = handler, 5
    world = await open_working(open_inline_world, work)
    await deliver(world)
    assert world.rows() == []
    assert [type(failure.error) for failure in work.results[0].failed] == [trio.TooSlowError]


@pytest.mark.parametrize("ending", ["returns", "raises"])
async def test_after_it_the_storage_is_not_needed_any_more(
    autojump_clock: object, open_inline_world: OpenWorld, work: Work, ending: str
) -> None:
    """After the commit nothing is written for the alarm, so that no lock holds it up (R36)."""

    async def handler(event: AlarmDue[Any]) -> None:
        if event.id == "b":
            lock.close()
            return
        assert await acknowledge(event)
        lock.enter_context(locked(world.path))
        if ending == "raises":
            raise ERROR

    work.handler = handler
    world = await open_working(open_inline_world, work)
    for id in ("a", "b"):
        await world.host.scheduler.schedule_alarm("work", id, after=0)
    with ExitStack() as lock:
        assert await error_of(world.harness.deliver) is None
    assert work.started == ["a", "b"]
    assert world.rows() == []
    (result,) = work.results
    assert [event.id for event in result.handled] == ["a", "b"][ending == "raises" :]
    assert [failure.error for failure in result.failed] == [ERROR][ending == "returns" :]


@pytest.mark.parametrize("crash", ["before the commit", "after the commit"])
async def test_after_a_crash_it_is_done_once_or_not_at_all(
    mock_clock: object, open_inline_world: OpenWorld, work: Work, crash: str
) -> None:
    """A process lost before the commit does it again, one lost after it does not (R36, R52)."""

    async def handler(event: AlarmDue[Any]) -> None:
        async with event.host.scheduler.transaction() as tx:
            await tx.execute(INSERT, (1,))
            assert await tx.acknowledge(event)
            if crash == "before the commit" and len(work.started) == 1:
                reached.set()
                await trio.sleep_forever()
        if len(work.started) == 1:
            reached.set()
            await trio.sleep_forever()

    reached = trio.Event()
    work.handler = handler
    world = await open_working(open_inline_world, work)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver, world)
        await reached.wait()
        await world.harness.crash()
        await world.harness.reopen()
    assert items(world.path) == ([] if crash == "before the commit" else [1])
    await world.harness.settle()
    assert (world.rows(), items(world.path)) == ([], [1])
    assert len(work.started) == (2 if crash == "before the commit" else 1)


async def test_a_pass_cancelled_after_it_does_not_run_the_alarm_again(
    mock_clock: object, open_world: OpenWorld, work: Work
) -> None:
    """What was acknowledged before its pass was cancelled stays acknowledged (R36)."""

    async def handler(event: AlarmDue[Any]) -> None:
        assert await acknowledge(event)
        scope.cancel()
        await trio.sleep_forever()

    scope = trio.CancelScope()
    work.handler = handler
    world = await open_working(open_world, work)
    with scope:
        await deliver(world)
    assert scope.cancelled_caught
    await world.step()
    await world.harness.settle()
    assert work.started == ["a"]
    assert (world.rows(), items(world.path)) == ([], [1])


@pytest.mark.parametrize("change", ["schedule", "the same schedule", "cancel"])
async def test_an_occurrence_that_is_no_longer_current_is_not_acknowledged(
    mock_clock: object, open_world: OpenWorld, work: Work, change: str
) -> None:
    """Replaced or cancelled meanwhile, it returns False and changes nothing (R36)."""
    acknowledged: list[bool] = []

    async def handler(event: AlarmDue[Any]) -> None:
        reached.set()
        await changed.wait()
        before = world.rows()
        acknowledged.append(await acknowledge(event))
        assert world.rows() == before

    reached, changed = trio.Event(), trio.Event()
    work.handler = handler
    world = await open_working(open_world, work)
    scheduler = world.host.scheduler
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver, world)
        await reached.wait()
        if change == "cancel":
            await scheduler.cancel_alarm("work", "a")
        else:
            await scheduler.schedule_alarm("work", "a", after=9 if change == "schedule" else 0)
        expected = world.rows()
        changed.set()
    assert acknowledged == [False]
    assert world.rows() == expected
    assert items(world.path) == [1]


async def test_it_acknowledges_once(mock_clock: object, open_world: OpenWorld, work: Work) -> None:
    """A second acknowledgement, in the same transaction or a later one, returns False (R36)."""
    answers: list[bool] = []

    async def handler(event: AlarmDue[Any]) -> None:
        async with event.host.scheduler.transaction() as tx:
            answers.append(await tx.acknowledge(event))
            answers.append(await tx.acknowledge(event))
        async with event.host.scheduler.transaction() as tx:
            answers.append(await tx.acknowledge(event))

    work.handler = handler
    world = await open_working(open_world, work)
    await deliver(world, repeat_every=100)
    assert answers == [True, False, False]
    assert [row.run_at for row in world.rows()] == [100_000]


WRONG: dict[str, Callable[[AlarmDue[Any]], Any]] = {
    "an equal copy": attrs.evolve,
    "another alarm's": lambda event: attrs.evolve(event, id="b"),
    "nothing": lambda _: None,
    "its id": lambda event: event.id,
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_any_other_object_is_refused(
    mock_clock: object, open_world: OpenWorld, work: Work, wrong: str
) -> None:
    """Only the object that the handler got will do; any other is an error of its own (R36)."""

    async def handler(event: AlarmDue[Any]) -> None:
        async with event.host.scheduler.transaction() as tx:
            with pytest.raises(InvalidAlarmRefError, match="event must be"):
                await tx.acknowledge(WRONG[wrong](event))
            await tx.execute(INSERT, (1,))
        raise ERROR

    work.handler = handler
    world = await open_working(open_world, work)
    await deliver(world)
    assert items(world.path) == [1]
    assert [row.attempts for row in world.rows()] == [1]


async def test_the_event_of_an_earlier_attempt_is_refused(
    mock_clock: object, open_world: OpenWorld, work: Work
) -> None:
    """An event that was kept from an earlier handling acknowledges nothing in a later one (R36)."""
    events: list[AlarmDue[Any]] = []

    async def handler(event: AlarmDue[Any]) -> None:
        events.append(event)
        async with event.host.scheduler.transaction() as tx:
            with pytest.raises(InvalidAlarmRefError):
                await tx.acknowledge(events[0] if len(events) > 1 else None)  # type: ignore[arg-type]  # a wrong object
        raise ERROR

    work.handler = handler
    world = await open_working(open_world, work)
    await deliver(world)
    await world.harness.advance(1)
    assert len(events) == 2
    assert [row.attempts for row in world.rows()] == [2]
    async with world.host.scheduler.transaction() as tx:
        for event in events:
            with pytest.raises(InvalidAlarmRefError):
                await tx.acknowledge(event)


async def test_the_event_of_a_handling_beside_it_is_refused(
    mock_clock: object, open_world: OpenWorld, work: Work
) -> None:
    """Of two handlers that run at once none can acknowledge for the other (R36)."""
    events: dict[str, AlarmDue[Any]] = {}
    both = trio.Event()

    async def handler(event: AlarmDue[Any]) -> None:
        events[event.id] = event
        if len(events) == 2:
            both.set()
        await both.wait()
        other = events["b" if event.id == "a" else "a"]
        async with event.host.scheduler.transaction() as tx:
            with pytest.raises(InvalidAlarmRefError):
                await tx.acknowledge(other)
        raise ERROR

    work.handler, work.concurrency = handler, 2
    world = await open_working(open_world, work)
    await world.host.scheduler.schedule_alarm("work", "b", after=0)
    await deliver(world)
    assert [row.attempts for row in world.rows()] == [1, 1]


async def test_a_manual_alarms_event_is_refused(mock_clock: object, open_world: OpenWorld) -> None:
    """A manual alarm cancels or reschedules; acknowledging it is an error (R36)."""
    caught: list[BaseException | None] = []
    sweep = Alarm(None, tag="sweep", lifecycle="manual")

    async def handler(event: AlarmDue[None]) -> None:
        async with event.host.scheduler.transaction() as tx:
            caught.append(await error_of(partial(tx.acknowledge, event)))

    world = await open_world(alarms=define(sweep).handlers(sweep.handled_by(handler)))
    await world.host.scheduler.schedule_alarm(sweep, "a", after=0)
    await world.harness.deliver()
    assert [type(error) for error in caught] == [InvalidAlarmRefError]
    assert len(world.rows()) == 1


async def test_a_task_that_the_handler_starts_can_acknowledge(
    mock_clock: object, open_world: OpenWorld, work: Work
) -> None:
    """A child of the handler acknowledges in a transaction of its own (R36)."""
    answers: list[bool] = []

    async def child(event: AlarmDue[Any]) -> None:
        answers.append(await acknowledge(event))

    async def handler(event: AlarmDue[Any]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child, event)
        raise ERROR

    work.handler = handler
    world = await open_working(open_world, work)
    await deliver(world)
    assert answers == [True]
    assert (world.rows(), items(world.path)) == ([], [1])


async def test_on_failure_can_acknowledge(
    mock_clock: object, open_world: OpenWorld, work: Work
) -> None:
    """`on_failure` acknowledges the event of its failure; then nothing is charged (R36)."""
    answers: list[bool] = []

    async def handler(_: object) -> None:
        raise ERROR

    async def on_failure(failure: AlarmFailure) -> str:
        assert failure.event is not None
        answers.append(await acknowledge(failure.event))
        return "retry"

    work.handler, work.on_failure = handler, on_failure
    world = await open_working(open_world, work)
    await deliver(world)
    assert answers == [True]
    assert (world.rows(), items(world.path)) == ([], [1])


async def test_what_is_scheduled_after_it_is_charged_as_without_it(
    mock_clock: object, open_world: OpenWorld, work: Work
) -> None:
    """A self-rearm after the acknowledgement, own id or another, counts one attempt (R4, R36)."""

    async def handler(event: AlarmDue[Any]) -> None:
        assert await acknowledge(event)
        await event.host.scheduler.schedule_alarm("work", "a", after=5)
        await event.host.scheduler.schedule_alarm("work", "b", after=5)

    work.handler = handler
    world = await open_working(open_world, work)
    await deliver(world)
    assert [(row.id, row.attempts, row.run_at, row.retry_at) for row in world.rows()] == [
        ("a", 1, 5_000, 1_000),
        ("b", 1, 5_000, 1_000),
    ]
    assert [event.id for event in work.results[0].handled] == ["a"]


async def test_in_the_same_transaction_a_new_schedule_stands(
    mock_clock: object, open_world: OpenWorld, work: Work
) -> None:
    """Acknowledged and scheduled anew in one transaction, the new schedule stands (R36)."""

    async def handler(event: AlarmDue[Any]) -> None:
        async with event.host.scheduler.transaction() as tx:
            assert await tx.acknowledge(event)
            await tx.schedule_alarm("work", "a", after=60, payload="next")
            assert not await tx.acknowledge(event)

    work.handler = handler
    world = await open_working(open_world, work)
    await deliver(world)
    assert [(row.run_at, row.payload) for row in world.rows()] == [(60_000, '"next"')]


async def test_a_row_is_in_hand_until_it_is_acknowledged(
    mock_clock: object, open_world: OpenWorld, work: Work
) -> None:
    """After the acknowledgement a min-merge keeps the repeat's next, earlier deadline (R6, R36)."""

    async def handler(event: AlarmDue[Any]) -> None:
        assert await acknowledge(event)
        await event.host.scheduler.schedule_alarm_earlier("work", "a", after=500)

    work.handler = handler
    world = await open_working(open_world, work)
    await deliver(world, repeat_every=100)
    (row,) = world.rows()
    assert (row.run_at, row.repeat_every) == (100_000, 100_000)


async def test_a_services_transaction_acknowledges_too(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """A block of a service's view acknowledges the service's own alarm (R36)."""

    class Service(AlarmService, key="service"):
        start = Alarm(None)

    async def handler(event: AlarmDue[None]) -> None:
        async with event.host.service(Service).transaction() as tx:
            assert await tx.acknowledge(event)
        raise ERROR

    world = await open_world(alarms=Service.handlers(Service.start.handled_by(handler)))
    await world.host.scheduler.schedule_alarm(Service.start, "a", after=0)
    await world.harness.deliver()
    assert world.rows() == []


async def test_it_works_only_in_the_block_and_its_task(
    mock_clock: object, open_world: OpenWorld, work: Work
) -> None:
    """After the block, or in a child of its task, it is a storage error (R12, R36)."""
    caught: list[BaseException | None] = []

    async def child(tx: AlarmTransaction, event: AlarmDue[Any]) -> None:
        caught.append(await error_of(partial(tx.acknowledge, event)))

    async def handler(event: AlarmDue[Any]) -> None:
        async with event.host.scheduler.transaction() as tx, trio.open_nursery() as nursery:
            nursery.start_soon(child, tx, event)
        await child(tx, event)
        raise ERROR

    work.handler = handler
    world = await open_working(open_world, work)
    await deliver(world)
    assert [type(error) for error in caught] == [StorageOperationError] * 2
    assert [row.attempts for row in world.rows()] == [1]


async def test_cancelled_before_it_has_started_it_does_nothing(
    mock_clock: object, open_world: OpenWorld, work: Work
) -> None:
    """Cancelled, it acknowledges nothing, and the block can go on outside that scope (R11, R36)."""

    async def handler(event: AlarmDue[Any]) -> None:
        async with event.host.scheduler.transaction() as tx:
            with trio.CancelScope() as scope:
                scope.cancel()
                await tx.acknowledge(event)
            assert scope.cancelled_caught
            await tx.execute(INSERT, (1,))
        raise ERROR

    work.handler = handler
    world = await open_working(open_world, work)
    await deliver(world)
    assert items(world.path) == [1]
    assert [row.attempts for row in world.rows()] == [1]


async def test_outside_of_a_handling_it_is_refused(
    mock_clock: object, open_world: OpenWorld, work: Work
) -> None:
    """A task that is in no handling has nothing to acknowledge (R36)."""
    events: list[AlarmDue[Any]] = []
    got, refused = trio.Event(), trio.Event()

    async def handler(event: AlarmDue[Any]) -> None:
        events.append(event)
        got.set()
        await refused.wait()
        raise ERROR

    work.handler = handler
    world = await open_working(open_world, work)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver, world)
        await got.wait()
        async with world.host.scheduler.transaction() as tx:
            with pytest.raises(InvalidAlarmRefError):
                await tx.acknowledge(events[0])
        refused.set()
    assert [row.attempts for row in world.rows()] == [1]
