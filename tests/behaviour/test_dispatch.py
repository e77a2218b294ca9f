"""What a dispatch chooses, in which order and how many at a time it runs it (R25, R27)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmFailure,
    AlarmHost,
    AlarmPassError,
    AlarmRegistration,
    DispatchOptions,
    DispatchResult,
    InvalidAlarmRegistrationError,
    ScheduleConfiguration,
    StorageOperationError,
    define,
    merge_all,
    open_host,
)

from .conftest import OpenWorld, World
from .services import Held, Recorder, fine, serving

RING: Alarm[None] = Alarm(None, tag="ring")
PAINT: Alarm[None] = Alarm(None, tag="paint", lifecycle="manual")


async def arm(world: World, *ids: str, tag: str = "ring", after: float = 0) -> None:
    """Schedule an automatic alarm for each id."""
    for id in ids:
        await world.host.scheduler.schedule_alarm(tag, id, after=after)


async def arm_manual(world: World, *ids: str, tag: str = "paint") -> None:
    """Schedule a manual alarm for each id, due now."""
    for id in ids:
        await world.host.scheduler.schedule_alarm(tag, id, after=0, lifecycle="manual")


# What is chosen.


async def test_at_most_the_limit_is_taken_and_the_rest_comes_with_the_next_delivery(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """What is over the limit stays due and untouched (R25)."""
    handler = Recorder()
    world = await open_world(
        alarms=serving({"ring": handler}, options=DispatchOptions(limit=2)),
    )
    await arm(world, *"12345")
    for expected in ("12", "34", "5"):
        handler.events.clear()
        assert await world.host.deliver_native_alarm()
        assert handler.ids == list(expected)
        await world.step()
    assert not await world.host.deliver_native_alarm()


async def test_the_default_limit_is_a_hundred(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """A hundred automatic rows and apart from them a hundred manual ones (R25)."""
    handler, manual = Recorder(), Recorder()
    world = await open_inline_world(alarms=serving({"ring": handler}, manual={"paint": manual}))
    async with world.host.scheduler.transaction() as tx:
        for number in range(105):
            await tx.schedule_alarm("ring", f"{number:03}", after=0)
            await tx.schedule_alarm("paint", f"{number:03}", after=0, lifecycle="manual")
    await world.host.deliver_native_alarm()
    assert handler.ids == [f"{number:03}" for number in range(100)]
    assert sorted(manual.ids) == handler.ids
    await world.host.deliver_native_alarm()
    assert len(handler.ids) == len(manual.ids) == 105


async def test_manual_rows_do_not_consume_the_limit(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """A hundred of them run beside a limit of one automatic row (R25)."""
    handler, manual = Recorder(), Recorder()
    world = await open_inline_world(
        alarms=serving(
            {"ring": handler}, manual={"paint": manual}, options=DispatchOptions(limit=1)
        )
    )
    await arm_manual(world, *"abc")
    await arm(world, "1", "2")
    await world.host.deliver_native_alarm()
    assert handler.ids == ["1"]
    assert sorted(manual.ids) == ["a", "b", "c"]


async def test_a_driver_works_off_what_is_over_the_limit_at_once(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Delivery follows delivery until nothing is due, also while some of them fail (R25)."""
    ran: list[float] = []

    async def ring(event: AlarmDue[Any]) -> None:
        ran.append(trio.current_time())

    async def paint(event: AlarmDue[Any]) -> None:
        raise ValueError

    path = tmp_path / "alarms.db"
    async with open_host(path, driver=False) as host, host.scheduler.transaction() as tx:
        for number in range(25):
            await tx.schedule_alarm("ring", str(number), after=0)
            await tx.schedule_alarm("paint", str(number), after=0, lifecycle="manual")
    async with open_host(
        path,
        alarms=serving({"ring": ring}, manual={"paint": paint}, options=DispatchOptions(limit=10)),
    ):
        await trio.sleep(1)
    assert ran == [0] * 25


async def test_each_service_has_its_own_limit(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """A dispatcher is one service's handlers, and its limit is for its own tags (R25, R30)."""
    first, second = Recorder(), Recorder()
    options = DispatchOptions(limit=2)
    world = await open_inline_world(
        alarms=merge_all(
            serving({"first": first}, options=options), serving({"second": second}, options=options)
        )
    )
    for tag in ("first", "second"):
        await arm(world, *"123", tag=tag)
    await world.host.deliver_native_alarm()
    assert (first.ids, second.ids) == (["1", "2"], ["1", "2"])


async def test_due_rows_start_in_the_order_of_wake_deadline_tag_and_id(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Whatever order they were scheduled in (R3, R25, R27)."""
    handler = Recorder()
    world = await open_world(alarms=serving({"b": handler, "a": handler, "a\x01": handler}))
    for tag, id, after in [
        ("b", "1", 1),
        ("a", "2", 2),
        ("a", "10", 1),
        ("a", "1", 1),
        ("a\x01", "0", 1),
        ("b", "0", 0.5),
    ]:
        await world.host.scheduler.schedule_alarm(tag, id, after=after)
    mock_clock.jump(5)
    await world.host.deliver_native_alarm()
    assert [(event.tag, event.id) for event in handler.events] == [
        ("b", "0"),
        ("a", "1"),
        ("a", "10"),
        ("a\x01", "0"),
        ("b", "1"),
        ("a", "2"),
    ]


async def test_a_retried_row_is_ordered_by_its_retry(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """The order is that of `wake_at`, not of the deadlines (R3, R25)."""
    seen: list[str] = []

    async def ring(event: AlarmDue[Any]) -> None:
        seen.append(event.id)
        if event.id == "old" and event.attempts == 0:
            raise ValueError

    world = await open_inline_world(alarms=serving({"ring": ring}))
    await arm(world, "old")
    await world.host.deliver_native_alarm()
    await arm(world, "new", after=0.5)
    mock_clock.jump(5)
    await world.host.deliver_native_alarm()
    assert seen == ["old", "new", "old"]


async def test_due_rows_are_chosen_once_and_what_comes_later_is_for_the_next_delivery(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """What is enrolled or falls due meanwhile is not in this dispatch (R25)."""
    handler = Held()
    world = await open_inline_world(alarms=serving({"ring": handler}))
    await arm(world, "1")
    await arm(world, "falls due meanwhile", after=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        await handler.until_started(1)
        await arm(world, "enrolled meanwhile")
        mock_clock.jump(2)
        handler.let_go()
    assert handler.started == ["1"]
    assert await world.host.deliver_native_alarm()
    assert handler.started == ["1", "enrolled meanwhile", "falls due meanwhile"]


async def test_the_one_handler_of_process_due_alarms_serves_every_tag_with_json_payloads(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Payloads are plain JSON values, whatever the definitions are (R25)."""
    handler = Recorder()
    world = await open_world()
    payloads: dict[str, Any] = {"a": {"x": [1, 2.5, None, "ü"]}, "b": "text", "c": None}
    for tag, payload in payloads.items():
        await world.host.scheduler.schedule_alarm(tag, "1", after=0, payload=payload)
    await world.step()
    result = await world.host.scheduler.process_due_alarms(handler)
    assert {event.tag: event.payload for event in handler.events} == payloads
    assert result == DispatchResult(handled=tuple(handler.events))
    assert world.rows() == []


async def test_process_due_alarms_has_no_manual_handlers(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """A due manual row that it sees raises after the others ran, and waits an hour (R25, R29)."""
    handler = Recorder()
    world = await open_inline_world()
    await arm(world, "1")
    await arm_manual(world, "2")
    with pytest.raises(InvalidAlarmRegistrationError, match="paint"):
        await world.host.scheduler.process_due_alarms(handler)
    assert handler.ids == ["1"]
    assert [(row.id, row.run_at, row.wake_at) for row in world.rows()] == [
        ("2", 3_600_000, 3_600_000)
    ]


async def test_a_handler_set_dispatches_every_tag_and_unknown_ones_fail(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """`define(...)` counts unknown tags in its limit; they back off and stay (R25)."""
    handler = Recorder()
    handlers = define(RING).handlers(RING.handled_by(handler), options=DispatchOptions(limit=2))
    world = await open_inline_world()
    await arm(world, "1", tag="foreign")
    await arm(world, "1", "2")
    result = await handlers.run(world.host)
    assert [event.id for event in result.handled] == ["1"]
    assert [(failure.tag, failure.event) for failure in result.failed] == [("foreign", None)]
    assert [(row.tag, row.attempts) for row in world.rows()] == [("ring", 0), ("foreign", 1)]


async def test_a_result_holds_what_was_handled_what_failed_and_what_parked(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Each tuple is in the order of the events; a manual success counts as handled (R25)."""
    error = ValueError("no")

    async def ring(event: AlarmDue[Any]) -> None:
        if event.id == "bad":
            raise error

    world = await open_inline_world(configuration=ScheduleConfiguration(unchanged_attempt_budget=1))
    registration = serving({"ring": ring}, manual={"paint": fine})
    await arm(world, "bad", "good")
    await arm_manual(world, "wall")
    result = await registration.run(world.host)
    assert sorted(event.id for event in result.handled) == ["good", "wall"]
    assert [(failure.id, failure.error) for failure in result.failed] == [("bad", error)]
    assert result.failed[0].event is not None
    assert [(parked.attempts, parked.retry_at) for parked in result.parked] == [
        (1, result.parked[0].retry_at)
    ]


# Direct calls are not passes.


async def test_a_direct_run_joins_no_pass_and_none_joins_it(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """A run beside a pass takes what the pass has not in hand (R25, R27)."""
    held, direct = Held(), Recorder()
    world = await open_inline_world(alarms=serving({"ring": held}))
    await arm(world, "1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        await held.until_started(1)
        await arm(world, "2")
        result = await world.host.scheduler.process_due_alarms(direct)
        assert direct.ids == ["2"]
        assert [event.id for event in result.handled] == ["2"]
        assert held.running == 1
        held.let_go()
    assert held.started == ["1"]
    assert world.rows() == []


async def test_a_delivery_waits_for_a_direct_run_and_the_guard_covers_it(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """A run holds a `defer_wakes` scope of its own (R25)."""
    held, handler = Held(), Recorder()
    world = await open_inline_world(
        alarms=serving({"ring": handler}),
        configuration=ScheduleConfiguration(in_flight_recovery=5),
    )
    await arm(world, "1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.scheduler.process_due_alarms, held)
        await held.until_started(1)
        assert world.native_alarm() == 5_000
        await arm(world, "2")
        delivered = False

        async def deliver() -> None:
            nonlocal delivered
            await world.host.deliver_native_alarm(force=True)
            delivered = True

        nursery.start_soon(deliver)
        await trio.testing.wait_all_tasks_blocked()
        assert (delivered, handler.ids) == (False, [])
        held.let_go()
    assert handler.ids == ["2"]
    assert world.native_alarm() is None


async def test_one_alarm_never_runs_twice_at_once(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Three direct runs and a pass over the same rows run each once (R27)."""
    held = Held()
    world = await open_inline_world(
        alarms=serving({"ring": held}, options=DispatchOptions(concurrency=10))
    )
    scheduler = world.host.scheduler
    await arm(world, *"123")
    options = DispatchOptions(concurrency=10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        for _ in range(3):
            nursery.start_soon(scheduler.process_due_alarms, held, options)
        await trio.testing.wait_all_tasks_blocked()
        held.let_go()
    assert sorted(held.started) == ["1", "2", "3"]
    assert world.rows() == []


@pytest.mark.parametrize("lifecycle", ["automatic", "manual"])
async def test_an_alarm_scheduled_anew_does_not_run_beside_its_running_handler(
    lifecycle: Any, open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """Due again at once, it is another occurrence and has to wait for the first (R27)."""
    held = Held()
    registration = (
        serving({"ring": held}) if lifecycle == "automatic" else serving(manual={"ring": held})
    )
    world = await open_inline_world(alarms=registration)
    scheduler = world.host.scheduler
    await scheduler.schedule_alarm("ring", "1", after=0, lifecycle=lifecycle)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        await held.until_started(1)
        await scheduler.schedule_alarm("ring", "1", after=0, lifecycle=lifecycle)
        for _ in range(3):
            with trio.fail_after(100):
                await registration.run(world.host)
        assert held.started == ["1"]
        held.let_go()
    await world.harness.advance(1)
    assert held.started == ["1", "1"]
    assert held.most == 1


async def test_one_manual_alarm_never_runs_twice_at_once(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """Also where its in-flight deadline has passed while its handler runs on (R27)."""
    held = Held()
    registration = serving(manual={"paint": held})
    world = await open_inline_world(alarms=registration)
    await arm_manual(world, "1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(registration.run, world.host)
        await held.until_started(1)
        for _ in range(3):
            await trio.sleep(2)
            await registration.run(world.host)
        assert held.started == ["1"]
        held.let_go()


async def test_a_direct_run_has_four_manual_permits_of_its_own(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Four of a pass and four of a run at a time (R25, R27)."""
    held = Held()
    registration = serving(manual={"paint": held})
    world = await open_inline_world(alarms=registration)
    await arm_manual(world, *"12345")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        await held.until_started(4)
        await arm_manual(world, *"abcde")
        nursery.start_soon(registration.run, world.host)
        await trio.testing.wait_all_tasks_blocked()
        assert held.running == 8
        held.let_go()
    assert held.most == 8


async def test_a_direct_run_enters_an_event_around_itself_or_uses_the_callers(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """`AlarmDue.scope` is always there (R25, R40)."""
    handler = Recorder()
    world = await open_inline_world()
    await arm(world, "1")
    await world.host.scheduler.process_due_alarms(handler)
    await arm(world, "2")
    async with world.host.event() as scope:
        await world.host.scheduler.process_due_alarms(handler)
    first, second = handler.events
    assert first.scope is not scope
    assert isinstance(first.scope.nursery, trio.Nursery)
    assert second.scope is scope


async def test_a_direct_run_of_which_a_handler_cancels_the_event_raises(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """There is no result to return, and what is due stays due, uncharged (R25, R24)."""

    async def ring(event: AlarmDue[Any]) -> None:
        event.scope.nursery.cancel_scope.cancel()
        await trio.lowlevel.checkpoint()

    world = await open_inline_world()
    await arm(world, "1")
    before = world.rows()
    with pytest.raises(AlarmPassError, match="cancelled from inside"):
        await world.host.scheduler.process_due_alarms(ring)
    assert world.rows() == before


DirectCall = Callable[[AlarmHost], Awaitable[object]]


def direct_calls(registration: AlarmRegistration) -> dict[str, DirectCall]:
    """The three ways to dispatch directly."""
    handlers = define(RING).handlers(RING.handled_by(fine))

    async def process(host: AlarmHost) -> object:
        return await host.scheduler.process_due_alarms(fine)

    return {"process_due_alarms": process, "run": registration.run, "set": handlers.run}


@pytest.mark.parametrize("call", ["process_due_alarms", "run", "set"])
async def test_a_handler_cannot_dispatch(
    call: str, open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Neither the handler nor a task of it nor its `on_failure`; it is told at once (R25)."""
    errors: list[str] = []
    registration = serving({"ring": fine})
    dispatch = direct_calls(registration)[call]

    async def attempt(who: str, host: AlarmHost) -> None:
        with pytest.raises(AlarmPassError, match="handler"):
            await dispatch(host)
        errors.append(who)

    async def ring(event: AlarmDue[Any]) -> None:
        await attempt("handler", event.host)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(attempt, "task", event.host)
        raise ValueError

    async def ask(failure: AlarmFailure) -> None:
        await attempt("on_failure", world.host)

    world = await open_inline_world(
        alarms=serving({"ring": ring}, options=DispatchOptions(on_failure=ask))
    )
    await arm(world, "1")
    await world.host.deliver_native_alarm()
    assert errors == ["handler", "task", "on_failure"]
    assert [row.attempts for row in world.rows()] == [1]


@pytest.mark.parametrize("call", ["process_due_alarms", "run", "set"])
async def test_nobody_can_dispatch_inside_a_transaction(
    call: str, open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """The transaction would be waited for (R17, R25)."""
    dispatch = direct_calls(serving({"ring": fine}))[call]
    world = await open_inline_world()
    async with world.host.scheduler.transaction():
        with pytest.raises(StorageOperationError, match="transaction"):
            await dispatch(world.host)
    async with world.host.scheduler.defer_wakes():
        await dispatch(world.host)

    async def hook(host: AlarmHost) -> None:
        async with host.scheduler.transaction():
            with pytest.raises(StorageOperationError, match="transaction"):
                await dispatch(host)
        await dispatch(host)

    await world.harness.reopen(alarms=hook)
    await arm(world, "1")
    with trio.fail_after(100):
        await world.harness.deliver()
    assert world.rows() == []


async def test_direct_runs_are_drained_and_then_cancelled_like_passes(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Who called one gets an error when the host is closed, and nothing is charged (R25)."""
    held = Held()
    path = tmp_path / "alarms.db"
    caught: list[StorageOperationError] = []
    async with trio.open_nursery() as nursery:
        async with open_host(path, driver=False, drain_timeout=3) as host:

            async def run() -> None:
                try:
                    await host.scheduler.process_due_alarms(held)
                except StorageOperationError as error:
                    caught.append(error)

            for id in "12":
                await host.scheduler.schedule_alarm("ring", id, after=0)
            nursery.start_soon(run)
            await held.until_started(1)
        assert trio.current_time() == 3
    assert held.cancelled == ["1"]
    assert len(caught) == 1
    handler = Recorder()
    async with open_host(path, driver=False) as host:
        await host.scheduler.process_due_alarms(handler)
    assert [(event.id, event.attempts) for event in handler.events] == [("1", 0), ("2", 0)]


# How it runs what it chose.


@pytest.mark.parametrize("concurrency", [1, 3, 7])
async def test_automatic_rows_start_in_order_at_most_so_many_at_a_time(
    concurrency: int, open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """The next one starts when one has ended, not when all have (R27)."""
    gates = {str(number): trio.Event() for number in range(7)}
    running: set[str] = set()
    started: list[str] = []

    async def ring(event: AlarmDue[Any]) -> None:
        started.append(event.id)
        running.add(event.id)
        await gates[event.id].wait()
        running.remove(event.id)

    world = await open_inline_world(
        alarms=serving({"ring": ring}, options=DispatchOptions(concurrency=concurrency))
    )
    await arm(world, *gates)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        await trio.testing.wait_all_tasks_blocked()
        while running:
            assert started == list(gates)[: len(started)]
            assert len(running) == min(concurrency, len(gates) - len(started) + len(running))
            # The youngest ends first.
            gates[max(running)].set()
            await trio.testing.wait_all_tasks_blocked()
    assert len(started) == 7


async def test_by_default_automatic_rows_run_one_after_the_other(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """The next handler starts after the last one's acknowledgement (R27, R28)."""
    stored: list[list[str]] = []

    async def ring(event: AlarmDue[Any]) -> None:
        stored.append([row.id for row in world.rows()])

    world = await open_world(alarms=serving({"ring": ring}))
    await arm(world, *"123")
    await world.host.deliver_native_alarm()
    assert stored == [["1", "2", "3"], ["2", "3"], ["3"]]


async def test_a_row_that_was_changed_since_it_was_chosen_is_skipped(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Cancelled or scheduled anew before its turn, it does not run in this dispatch (R27)."""
    ran: list[str] = []

    async def ring(event: AlarmDue[Any]) -> None:
        ran.append(event.id)
        if event.id == "1":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(change_others)

    async def change_others() -> None:
        # In the handling of "1", so that "3" is charged; the point is that it is skipped.
        await world.host.scheduler.cancel_alarm("ring", "2")
        await world.host.scheduler.schedule_alarm("ring", "3", after=0)

    world = await open_world(alarms=serving({"ring": ring}))
    await arm(world, *"1234")
    await world.host.deliver_native_alarm()
    assert ran == ["1", "4"]
    assert [(row.id, row.attempts, row.wake_at) for row in world.rows()] == [("3", 1, 1_000)]


async def test_a_row_scheduled_anew_from_outside_before_its_turn_runs_with_the_next_delivery(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Even with identical values it is another occurrence (R27)."""
    held = Held()
    world = await open_inline_world(alarms=serving({"ring": held}))
    await arm(world, "1", "2")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        await held.until_started(1)
        await arm(world, "2")
        held.let_go()
    assert held.started == ["1"]
    await world.host.deliver_native_alarm()
    assert held.started == ["1", "2"]


async def test_one_failing_handler_cancels_no_other(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Automatic, manual, or of another service: the others run to their end (R27, R30)."""
    held = Held()

    async def fail(event: AlarmDue[Any]) -> None:
        raise ValueError(event.id)

    options = DispatchOptions(concurrency=2)
    world = await open_inline_world(
        alarms=merge_all(
            serving({"bad": fail, "good": held}, manual={"worse": fail}, options=options),
            serving({"other": held}, manual={"more": held}),
        )
    )
    await arm(world, "1", tag="bad")
    await arm(world, "2", tag="good")
    await arm(world, "3", tag="other")
    await arm_manual(world, "4", tag="worse")
    await arm_manual(world, "5", tag="more")
    async with trio.open_nursery() as nursery:

        async def deliver() -> None:
            with pytest.raises(ValueError, match="4"):
                await world.host.deliver_native_alarm()

        nursery.start_soon(deliver)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(held.started) == ["2", "3", "5"]
        held.let_go()
    assert sorted(held.ended) == ["2", "3", "5"]


async def test_cancelling_a_pass_cancels_every_handler_and_charges_none(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """What ran and what had not started is due as before (R27, R28)."""
    held = Held()
    world = await open_inline_world(
        alarms=serving(
            {"ring": held}, manual={"paint": held}, options=DispatchOptions(concurrency=2)
        )
    )
    await arm(world, *"123")
    await arm_manual(world, "4")
    before = [row for row in world.rows() if row.tag == "ring"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        await held.until_started(3)
        nursery.cancel_scope.cancel()
    assert sorted(held.cancelled) == ["1", "2", "4"]
    assert [row for row in world.rows() if row.tag == "ring"] == before


# Time limits.


async def test_a_handler_past_its_timeout_has_failed_with_too_slow_error(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """It counts an attempt and backs off from now, not from the deadline (R27, R28)."""
    held = Held()
    failures: list[AlarmFailure] = []

    async def ask(failure: AlarmFailure) -> None:
        failures.append(failure)

    world = await open_inline_world(
        alarms=serving({"ring": held}, timeout=10, options=DispatchOptions(on_failure=ask))
    )
    await arm(world, "1")
    with trio.fail_after(1000):
        await world.host.deliver_native_alarm()
    assert trio.current_time() == 10
    assert held.cancelled == ["1"]
    (failure,) = failures
    assert isinstance(failure.error, trio.TooSlowError)
    assert "10" in str(failure.error)
    assert [(row.run_at, row.wake_at, row.attempts) for row in world.rows()] == [(0, 11_000, 1)]


async def test_the_options_timeout_is_for_alarms_that_define_none(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """A definition's own wins, shorter or longer, and manual alarms are bounded as well (R27)."""
    ended: dict[str, float] = {}

    async def wait(event: AlarmDue[Any]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended[event.id] = trio.current_time()

    options = DispatchOptions(timeout=5)
    world = await open_inline_world(
        alarms=merge_all(
            serving({"short": wait}, timeout=2, options=options),
            serving({"long": wait}, timeout=8, options=options),
            serving({"none": wait}, manual={"manual": wait}, options=options),
        )
    )
    for tag in ("short", "long", "none"):
        await arm(world, tag, tag=tag)
    await arm_manual(world, "manual", tag="manual")
    with trio.fail_after(1000), pytest.raises(trio.TooSlowError):
        await world.host.deliver_native_alarm()
    assert ended == {"short": 2, "long": 8, "none": 5, "manual": 5}


async def test_a_handler_that_ends_in_time_or_catches_its_timeout_is_handled(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """Only a handler that was cut off has run past its timeout (R27)."""

    async def just_in_time(event: AlarmDue[Any]) -> None:
        await trio.sleep(4.999)

    async def own_limit(event: AlarmDue[Any]) -> None:
        with trio.move_on_after(3):
            await trio.sleep_forever()

    world = await open_inline_world(alarms=serving({"a": just_in_time, "b": own_limit}, timeout=5))
    await arm(world, "1", tag="a")
    await arm(world, "1", tag="b")
    await world.host.deliver_native_alarm()
    assert world.rows() == []


async def test_handlers_that_never_return_hold_the_healthy_ones_up_for_their_timeout_only(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Five of ten seconds each, four at a time, then a healthy one; in the end all park (C12)."""
    stuck_runs: list[float] = []
    healthy_at: list[float] = []

    async def stuck(event: AlarmDue[Any]) -> None:
        stuck_runs.append(trio.current_time())
        await trio.sleep_forever()

    async def healthy(event: AlarmDue[Any]) -> None:
        healthy_at.append(trio.current_time())

    registration = serving(
        {"a stuck": stuck, "healthy": healthy},
        options=DispatchOptions(concurrency=4, timeout=10),
    )
    async with open_host(
        tmp_path / "alarms.db",
        alarms=registration,
        configuration=ScheduleConfiguration(unchanged_attempt_budget=3),
    ) as host:
        async with host.scheduler.transaction() as tx:
            for id in "12345":
                await tx.schedule_alarm("a stuck", id, after=0)
            await tx.schedule_alarm("healthy", "6", after=0)
        began = host.now()
        await trio.sleep(10.5)
        retries = [record.status for record in await host.scheduler.list_alarms()]
        timed_out = [status for status in retries if status.retry_at is not None]
        assert [status.attempts for status in timed_out] == [1] * 4
        for status in timed_out:
            # A second after it was stopped, not after it was due.
            assert status.retry_at - began == pytest.approx(
                timedelta(seconds=11), abs=timedelta(milliseconds=5)
            )
        await trio.sleep(5)
        assert len(healthy_at) == 1
        assert 10 <= healthy_at[0] <= 11
        await trio.sleep(600)
        status = await host.scheduler.list_alarms(parked=True)
        assert [record.status.attempts for record in status] == [3] * 5
        assert len(stuck_runs) == 15
