"""Alarms whose handler alone decides what becomes of them (R26, R27, R29)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmPassError,
    AlarmService,
    DispatchOptions,
    InvalidAlarmRegistrationError,
    ScheduleConfiguration,
    StorageOperationError,
    StoredAlarmDecodeError,
    merge_all,
    open_host,
)

from .conftest import OpenWorld, StoredRow, World
from .services import Held, Recorder, failing, fine, locked, serving

HOUR_MS = 3_600_000

Act = Callable[[AlarmDue[Any]], Awaitable[object]]


async def arm(world: World, *ids: str, tag: str = "paint", after: float = 0) -> None:
    """Schedule a manual alarm for each id."""
    for id in ids:
        await world.host.scheduler.schedule_alarm(tag, id, after=after, lifecycle="manual")


def only(world: World) -> StoredRow:
    """The one row there is."""
    (row,) = world.rows()
    return row


async def test_before_its_handler_runs_it_is_moved_to_its_in_flight_deadline(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """With the same revision, and the event still shows the deadline that was due (R26)."""
    seen: list[StoredRow] = []
    events: list[AlarmDue[Any]] = []

    async def paint(event: AlarmDue[Any]) -> None:
        seen.append(only(world))
        events.append(event)

    world = await open_world(
        alarms=serving(manual={"paint": paint}),
        configuration=ScheduleConfiguration(in_flight_recovery=7),
    )
    await arm(world, "1", after=2)
    scheduled = only(world)
    mock_clock.jump(5)
    await world.host.deliver_native_alarm()
    assert seen == [attrs.evolve(scheduled, run_at=12_000, wake_at=12_000)]
    assert events[0].scheduled_at == world.host.now().replace(second=2)
    assert events[0].attempts == 0


async def test_all_selected_rows_are_moved_before_the_first_handler_runs(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """In one transaction, and those that wait for a permit too (R26)."""
    seen: list[list[int]] = []

    async def paint(event: AlarmDue[Any]) -> None:
        seen.append([row.wake_at for row in world.rows() if row.tag == "paint"])

    async def ring(event: AlarmDue[Any]) -> None:
        seen.append([row.wake_at for row in world.rows() if row.tag == "paint"])

    world = await open_inline_world(alarms=serving({"ring": ring}, manual={"paint": paint}))
    await arm(world, *"123456")
    await world.host.scheduler.schedule_alarm("ring", "0", after=0)
    await world.host.deliver_native_alarm()
    assert seen == [[1_000] * 6] * 7


async def test_whatever_its_handler_does_it_is_not_acknowledged_and_comes_back_in_an_hour(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Counted from the end of the dispatch, same revision, nothing charged (R29)."""
    ran: list[str] = []

    async def paint(event: AlarmDue[Any]) -> None:
        ran.append(event.id)
        mock_clock.jump(30)
        if event.id == "bad":
            raise ValueError("bad")

    world = await open_world(alarms=serving(manual={"paint": paint}))
    for id, expectation in (("good", None), ("bad", ValueError)):
        await arm(world, id)
        scheduled = only(world)
        if expectation is None:
            await world.host.deliver_native_alarm()
        else:
            with pytest.raises(expectation, match="bad"):
                await world.host.deliver_native_alarm()
        due = world.now() + HOUR_MS
        assert only(world) == attrs.evolve(scheduled, run_at=due, wake_at=due)
        assert world.native_alarm() == due
        await world.step()
        assert world.native_alarm() == due
        await world.harness.set_time(world.host.now().replace(hour=world.host.now().hour + 1))
        if expectation is None:
            assert await world.host.deliver_native_alarm()
            await world.host.scheduler.cancel_alarm("paint", id)
    assert ran == ["good", "good", "bad"]


@pytest.mark.parametrize("parked_hours", [1, 3])
async def test_it_comes_back_after_the_parked_retry_delay(
    parked_hours: int, open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """The host's own, where it has one (R29)."""
    world = await open_inline_world(
        alarms=serving(manual={"paint": fine}),
        configuration=ScheduleConfiguration(parked_retry_delay=parked_hours * 3600),
    )
    await arm(world, "1")
    await world.host.deliver_native_alarm()
    assert only(world).wake_at == parked_hours * HOUR_MS


async def cancel(event: AlarmDue[Any]) -> None:
    """Done with it."""
    await event.host.scheduler.cancel_alarm(event.tag, event.id)


async def later(event: AlarmDue[Any]) -> None:
    """Set a newer checkpoint."""
    await event.host.scheduler.schedule_alarm(event.tag, event.id, after=5, lifecycle="manual")


async def in_the_past(event: AlarmDue[Any]) -> None:
    """Set a checkpoint that is due at once."""
    before = event.host.now().replace(year=1999)
    await event.host.scheduler.schedule_alarm(
        event.tag, event.id, run_at=before, lifecycle="manual"
    )


@pytest.mark.parametrize("fails", ["returns", "raises"])
@pytest.mark.parametrize(("act", "wake_at"), [(cancel, None), (later, 5_000), (in_the_past, -1)])
async def test_a_newer_checkpoint_or_a_cancellation_by_its_handler_wins(
    act: Act,
    wake_at: int | None,
    fails: str,
    open_world: OpenWorld,
    mock_clock: trio.testing.MockClock,
) -> None:
    """The end of the dispatch moves unchanged revisions only (R29)."""

    async def paint(event: AlarmDue[Any]) -> None:
        await act(event)
        if fails == "raises":
            raise ValueError("after that")

    world = await open_world(alarms=serving(manual={"paint": paint}))
    await arm(world, "1")
    if fails == "raises":
        with pytest.raises(ValueError, match="after that"):
            await world.host.deliver_native_alarm()
    else:
        await world.host.deliver_native_alarm()
    await world.step()
    if wake_at is None:
        assert world.rows() == []
        assert world.native_alarm() is None
        return
    row = only(world)
    assert row.wake_at == row.run_at
    assert row.wake_at == wake_at or (wake_at < 0 and row.wake_at < 0)
    assert (row.attempts, row.parked, row.retry_at) == (0, 0, None)
    assert world.native_alarm() == row.wake_at


@pytest.mark.parametrize("fails", [ValueError("no"), None])
async def test_a_newer_checkpoint_from_outside_wins(
    fails: ValueError | None, open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Whether its handler then returns or raises (R29)."""
    held = Held(fails)
    world = await open_inline_world(alarms=serving(manual={"paint": held}))
    await arm(world, "1")
    async with trio.open_nursery() as nursery:

        async def deliver() -> None:
            if fails is None:
                await world.host.deliver_native_alarm()
            else:
                with pytest.raises(ValueError, match="no"):
                    await world.host.deliver_native_alarm()

        nursery.start_soon(deliver)
        await held.until_started(1)
        await arm(world, "1", after=9)
        held.let_go()
    assert (only(world).run_at, only(world).wake_at) == (9_000, 9_000)
    assert world.native_alarm() == 9_000


async def test_a_checkpoint_may_turn_it_into_an_automatic_alarm(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Its lifecycle is stored with the row and with each schedule (R29, R32)."""

    async def both(event: AlarmDue[Any]) -> None:
        await event.host.scheduler.schedule_alarm("ring", event.id, after=1, lifecycle="automatic")
        await event.host.scheduler.cancel_alarm("paint", event.id)

    handler = Recorder()
    world = await open_inline_world(alarms=serving({"ring": handler}, manual={"paint": both}))
    await arm(world, "1")
    await world.host.deliver_native_alarm()
    assert [(row.lifecycle, row.attempts) for row in world.rows()] == [("automatic", 0)]


async def test_failures_are_raised_after_all_rows_ran(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Automatic ones as well, and several failures come as one group (R29)."""
    handler = Recorder()
    world = await open_inline_world(alarms=serving({"ring": handler}, manual={"paint": failing}))
    await arm(world, "a", "b")
    for id in "123":
        await world.host.scheduler.schedule_alarm("ring", id, after=0)
    with pytest.raises(ExceptionGroup) as caught:
        await world.host.deliver_native_alarm()
    assert sorted(str(error) for error in caught.value.exceptions) == ["a", "b"]
    assert handler.ids == ["1", "2", "3"]
    assert [row.id for row in world.rows()] == ["a", "b"]


async def test_an_undecodable_payload_is_raised_and_waits_an_hour(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Its handler does not run, its bytes stay (R29)."""
    ran: list[Any] = []

    class Painting(AlarmService, key="painting"):
        paint = Alarm(int, lifecycle="manual")

    async def on_paint(event: AlarmDue[int]) -> None:
        ran.append(event.payload)

    world = await open_inline_world(alarms=Painting.handlers(Painting.paint.handled_by(on_paint)))
    await world.host.scheduler.schedule_alarm(
        "paint", "1", after=0, payload="red", lifecycle="manual"
    )
    with pytest.raises(StoredAlarmDecodeError):
        await world.host.deliver_native_alarm()
    row = only(world)
    assert (ran, row.payload, row.wake_at) == ([], '"red"', HOUR_MS)


@pytest.mark.parametrize("registered", ["nowhere", "as automatic"])
async def test_without_a_manual_handler_it_waits_an_hour_and_the_pass_says_so(
    registered: str, open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Others run, and a process that dies then still brings it back in an hour (R26, R29)."""
    handler, wrong = Recorder(), Recorder()
    seen: list[int] = []

    async def ring(event: AlarmDue[Any]) -> None:
        await handler(event)
        seen.extend(row.wake_at for row in world.rows() if row.tag == "paint")

    automatic: dict[str, Any] = {"ring": ring}
    if registered == "as automatic":
        automatic["paint"] = wrong
    world = await open_world(alarms=serving(automatic))
    await arm(world, "1")
    await world.host.scheduler.schedule_alarm("ring", "2", after=0)
    revision = world.row("paint", "1")
    with pytest.raises(InvalidAlarmRegistrationError, match="'paint'"):
        await world.host.deliver_native_alarm()
    assert handler.ids == ["2"]
    assert wrong.ids == []
    assert revision is not None
    if registered == "as automatic":
        assert seen == [HOUR_MS]
    assert only(world) == attrs.evolve(revision, run_at=HOUR_MS, wake_at=HOUR_MS)
    assert not await world.host.deliver_native_alarm()


async def test_with_its_handler_back_it_runs(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """It was kept all the while (R26, R32)."""
    handler = Recorder()
    world = await open_inline_world(alarms=serving({"ring": fine}))
    await arm(world, "1")
    for _ in range(3):
        with pytest.raises(InvalidAlarmRegistrationError):
            await world.harness.advance(3600)
        assert len(world.rows()) == 1
    await world.harness.reopen(alarms=serving(manual={"paint": handler}))
    await world.harness.advance(3600)
    assert handler.ids == ["1"]


async def test_a_cancelled_pass_brings_it_back_at_its_in_flight_deadline(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """The move to an hour from now is skipped (R29)."""
    held = Held()
    world = await open_world(alarms=serving(manual={"paint": held}))
    await arm(world, "1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        await held.until_started(1)
        nursery.cancel_scope.cancel()
    assert only(world).wake_at == 1_000
    assert world.native_alarm() == 1_000
    held.let_go()
    mock_clock.jump(1)
    await world.host.deliver_native_alarm()
    assert held.started == ["1", "1"]


async def test_at_most_four_run_at_a_time_across_all_services_beside_automatic_ones(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Four permits for the whole pass; automatic handlers need none (R27)."""
    held, automatic = Held(), Held()
    world = await open_inline_world(
        alarms=merge_all(
            serving({"ring": automatic}, manual={"a": held}), serving(manual={"b": held})
        )
    )
    for id in "123":
        await arm(world, f"a{id}", tag="a")
        await arm(world, f"b{id}", tag="b")
        await world.host.scheduler.schedule_alarm("ring", id, after=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        await trio.testing.wait_all_tasks_blocked()
        assert held.running == 4
        assert automatic.running == 1
        automatic.let_go()
        await trio.testing.wait_all_tasks_blocked()
        assert automatic.ended == ["1", "2", "3"]
        assert held.running == 4
        held.let_go()
    assert held.most == 4
    assert sorted(held.ended) == ["a1", "a2", "a3", "b1", "b2", "b3"]


async def test_they_take_their_permits_in_dispatch_order(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """The fifth starts when one of the first four has ended (R27)."""
    gates = {str(number): trio.Event() for number in range(8)}
    running: set[str] = set()

    async def paint(event: AlarmDue[Any]) -> None:
        running.add(event.id)
        await gates[event.id].wait()
        running.remove(event.id)

    world = await open_inline_world(alarms=serving(manual={"paint": paint}))
    for number, id in enumerate(reversed(gates)):
        await arm(world, id, after=0.1 * (len(gates) - number))
    mock_clock.jump(5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(running) == ["0", "1", "2", "3"]
        for id, expected in (("2", "0134"), ("0", "1345"), ("4", "1356"), ("6", "1357")):
            gates[id].set()
            await trio.testing.wait_all_tasks_blocked()
            assert "".join(sorted(running)) == expected
        for gate in gates.values():
            gate.set()


async def test_the_automatic_rows_wait_for_no_manual_handler(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Manual rows run beside them, and only the pass's end waits for both (R27)."""
    held, handler = Held(), Recorder()
    world = await open_inline_world(alarms=serving({"ring": handler}, manual={"paint": held}))
    await arm(world, *"12345")
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        await trio.testing.wait_all_tasks_blocked()
        assert handler.ids == ["1"]
        assert world.row("ring", "1") is None
        assert world.host._runtime.passes.current is not None
        held.let_go()


async def test_a_handler_that_lives_for_hours_is_not_started_again(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Neither at its in-flight deadline nor ever while it lives; afterwards, in an hour (C09)."""
    starts: list[float] = []
    running = 0

    async def paint(event: AlarmDue[Any]) -> None:
        nonlocal running
        assert running == 0
        running += 1
        starts.append(trio.current_time())
        await trio.sleep(7200)
        running -= 1

    async with open_host(
        tmp_path / "alarms.db",
        alarms=serving(manual={"paint": paint}),
        configuration=ScheduleConfiguration(in_flight_recovery=30),
    ) as host:
        await host.scheduler.schedule_alarm("paint", "1", after=0, lifecycle="manual")
        await trio.sleep(7200 + 3600 + 60)
    assert starts == [0, 7200 + 3600]


async def test_a_crash_in_its_handler_brings_it_back_at_its_in_flight_deadline(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Not at once and not in an hour (R26, R52)."""
    held = Held()
    world = await open_world(alarms=serving(manual={"paint": held}))
    await arm(world, "1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        await held.until_started(1)
        await world.harness.crash()
    await world.harness.reopen()
    assert world.native_alarm() == only(world).wake_at == 1_000
    held.let_go()
    assert not await world.host.deliver_native_alarm()
    mock_clock.jump(1)
    assert await world.host.deliver_native_alarm()
    assert held.started == ["1", "1"]


async def test_an_earlier_schedule_for_the_one_in_hand_takes_the_given_deadline(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """In hand it has no deadline left to keep, by its handler or from outside (R6)."""
    held = Held()
    world = await open_inline_world(alarms=serving(manual={"paint": held}))
    await arm(world, "1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        await held.until_started(1)
        await world.host.scheduler.schedule_alarm_earlier(
            "paint", "1", after=50, lifecycle="manual"
        )
        held.let_go()
    assert only(world).wake_at == 50_000


async def test_where_moving_it_fails_at_the_end_it_keeps_its_in_flight_deadline(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """The storage's failure is the pass's, and the alarm comes back soon rather than late (R29)."""
    held = Held()
    world = await open_inline_world(alarms=serving(manual={"paint": held}))
    await arm(world, "1")
    async with trio.open_nursery() as nursery:

        async def deliver() -> None:
            with pytest.raises((StorageOperationError, ExceptionGroup)):
                await world.host.deliver_native_alarm()

        nursery.start_soon(deliver)
        await held.until_started(1)
        with locked(world.path):
            held.let_go()
            await trio.sleep(60)
    assert only(world).wake_at == 1_000


async def test_a_handler_that_fails_is_logged_with_the_pass_and_the_driver_goes_on(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Each try, an hour apart, is one record with its traceback (R29, R51)."""
    handler = Recorder()
    async with open_host(
        tmp_path / "alarms.db", alarms=serving({"ring": handler}, manual={"paint": failing})
    ) as host:
        await host.scheduler.schedule_alarm("paint", "1", after=0, lifecycle="manual")
        await host.scheduler.schedule_alarm("ring", "2", after=1000)
        await trio.sleep(3 * 3600 - 1)
    assert handler.ids == ["2"]
    assert len(caplog.records) == 3
    for record in caplog.records:
        assert record.exc_info is not None
        assert record.exc_info[0] is ValueError


async def test_its_handler_cannot_dispatch_either(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Manual handlings are handlings (R25)."""

    async def paint(event: AlarmDue[Any]) -> None:
        with pytest.raises(AlarmPassError):
            await event.host.scheduler.process_due_alarms(fine)

    world = await open_inline_world(
        alarms=serving(manual={"paint": paint}, options=DispatchOptions())
    )
    await arm(world, "1")
    await world.host.deliver_native_alarm()
