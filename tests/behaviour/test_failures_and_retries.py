"""How an automatic alarm is acknowledged, skipped, charged and parked (R28, R7)."""

from __future__ import annotations

import itertools
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmFailure,
    AlarmParked,
    AlarmService,
    DispatchOptions,
    InvalidProcessDueAlarmsOptionsError,
    Retry,
    ScheduleConfiguration,
    StoredAlarmDecodeError,
    TrioClock,
)

from .conftest import OpenWorld, StoredRow, World
from .services import Held, Recorder, failing, fine, serving

HOUR_MS = 3_600_000
REPEATS = ScheduleConfiguration(minimum_repeat_interval=1)


def only(world: World) -> StoredRow:
    """The one row there is."""
    rows = world.rows()
    assert len(rows) == 1
    return rows[0]


async def arm(world: World, id: str = "1", *, after: float = 0, **arguments: Any) -> None:
    """Schedule an automatic alarm."""
    await world.host.scheduler.schedule_alarm("ring", id, after=after, **arguments)


class Failing:
    """A handler that fails as long as it is told to."""

    def __init__(self) -> None:
        self.failing = True
        self.attempts: list[int] = []
        self.scheduled_at: list[datetime] = []

    async def __call__(self, event: AlarmDue[Any]) -> None:
        """Fail, or not."""
        self.attempts.append(event.attempts)
        self.scheduled_at.append(event.scheduled_at)
        if self.failing:
            raise ValueError("a failure")


# Acknowledged.


async def test_a_one_shot_that_was_handled_is_deleted(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """And nothing is armed for it any more (R28)."""
    world = await open_world(alarms=serving({"ring": fine}))
    await arm(world)
    await world.host.deliver_native_alarm()
    assert world.rows() == []
    assert world.native_alarm() is None
    await world.step()
    assert not await world.host.deliver_native_alarm()


async def test_a_repeat_advances_from_its_completion(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """A new revision, nothing charged, payload and repeat kept (R28, R8)."""

    async def ring(event: AlarmDue[Any]) -> None:
        mock_clock.jump(0.2)

    world = await open_world(alarms=serving({"ring": ring}), configuration=REPEATS)
    await arm(world, repeat_every=1.5)
    scheduled = only(world)
    await world.host.deliver_native_alarm()
    row = only(world)
    assert row == attrs.evolve(scheduled, run_at=1_700, wake_at=1_700, revision=row.revision)
    assert row.revision != scheduled.revision
    assert world.native_alarm() == 1_700


async def test_a_repeat_that_was_missed_runs_once_and_skips_what_it_missed(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Down for ten periods: one run, then the next a period after its completion (R8, C05)."""
    handler = Recorder()
    world = await open_world(alarms=serving({"ring": handler}), configuration=REPEATS)
    await arm(world, repeat_every=2)
    mock_clock.jump(20.5)
    await world.step()
    await world.host.deliver_native_alarm()
    assert len(handler.events) == 1
    assert only(world).run_at == 22_500
    assert not await world.host.deliver_native_alarm()


async def test_a_failed_repeat_keeps_its_deadline_until_it_succeeds(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Then it goes on from that completion with nothing charged (R28)."""
    handler = Failing()
    world = await open_inline_world(alarms=serving({"ring": handler}), configuration=REPEATS)
    await arm(world, repeat_every=10)
    await world.harness.advance(1)
    row = only(world)
    assert (row.run_at, row.wake_at, row.attempts) == (0, 3_000, 2)
    handler.failing = False
    await world.harness.advance(2)
    row = only(world)
    assert (row.run_at, row.wake_at, row.attempts, row.retry_at) == (13_000, 13_000, 0, None)


async def test_an_acknowledgement_is_not_prevented_by_cancelling_the_pass(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """A handler that returned is acknowledged, however the pass ends (R28)."""
    world = await open_world()
    done = trio.Event()

    async def ring(event: AlarmDue[Any]) -> None:
        leading.cancel()
        done.set()

    await world.harness.reopen(alarms=serving({"ring": ring}))
    await arm(world)
    await arm(world, "2")
    with trio.CancelScope() as leading:
        await world.host.deliver_native_alarm()
    assert leading.cancelled_caught
    assert done.is_set()
    assert only(world).id == "2"


async def test_an_acknowledgement_that_waits_for_its_turn_is_not_lost_when_cancelled(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """It waits on, shielded and bounded, and the alarm never runs again (R28, R11)."""
    held = Held()
    world = await open_inline_world(alarms=serving({"ring": held}))
    await arm(world)
    leading = trio.CancelScope()

    async def lead() -> None:
        with leading:
            await world.host.deliver_native_alarm()

    async def write(task_status: trio.TaskStatus[None]) -> None:
        async with world.host.scheduler.transaction():
            task_status.started()
            await trio.sleep(3)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lead)
        await held.until_started(1)
        await nursery.start(write)
        held.let_go()
        await trio.sleep(1)
        leading.cancel()
    assert trio.current_time() == 3
    assert world.rows() == []


# Charged.


async def test_a_failure_charges_one_attempt_and_leaves_the_deadline(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """`retry_at` counts from the failure, and the pass itself does not fail (R28)."""

    async def ring(event: AlarmDue[Any]) -> None:
        mock_clock.jump(0.25)
        raise ValueError

    world = await open_world(alarms=serving({"ring": ring}))
    await arm(world, after=1, payload=None)
    scheduled = only(world)
    mock_clock.jump(3)
    assert await world.host.deliver_native_alarm()
    row = only(world)
    assert row == attrs.evolve(
        scheduled, wake_at=4_250, retry_at=4_250, attempts=1, revision=row.revision
    )
    assert row.revision != scheduled.revision
    assert world.native_alarm() == 4_250


async def test_failures_back_off_and_park_at_the_budget(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """1, 2, 4 … 64 s, then at the eighth attempt parked and hourly, reported once (R28, R7)."""
    handler = Failing()
    reports: list[AlarmParked] = []

    async def report(parked: AlarmParked) -> None:
        reports.append(parked)

    world = await open_world(alarms=serving({"ring": handler}), reporter=report)
    await arm(world)
    delays = []
    for _ in range(10):
        assert await world.host.deliver_native_alarm()
        row = only(world)
        delays.append((row.wake_at - world.now()) // 1000)
        assert row.run_at == 0
        await world.step()
        assert not await world.host.deliver_native_alarm()
        mock_clock.jump(delays[-1])
    assert delays == [1, 2, 4, 8, 16, 32, 64, 3600, 3600, 3600]
    assert handler.attempts == [0, 1, 2, 3, 4, 5, 6, 7, 8, 8]
    assert set(handler.scheduled_at) == {datetime(2000, 1, 1, tzinfo=UTC)}
    assert (only(world).attempts, only(world).parked) == (8, 1)
    assert [report.attempts for report in reports] == [8]
    assert reports[0].retry_at == datetime(2000, 1, 1, 1, 2, 7, tzinfo=UTC)


async def test_a_parked_alarm_that_succeeds_is_acknowledged(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """A one-shot is gone, a repeat starts afresh (R28)."""
    handler = Failing()
    world = await open_inline_world(
        alarms=serving({"ring": handler}),
        configuration=attrs.evolve(REPEATS, unchanged_attempt_budget=2),
    )
    await arm(world, "once")
    await arm(world, "repeat", repeat_every=60)
    await world.harness.advance(10)
    assert [row.parked for row in world.rows()] == [1, 1]
    handler.failing = False
    await world.harness.advance(3600)
    row = only(world)
    assert (row.id, row.attempts, row.parked, row.retry_at) == ("repeat", 0, 0, None)


async def test_a_stored_count_over_the_budget_stays_and_the_delay_is_the_bound(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """The next failure parks; ten thousand attempts overflow nothing (R28, R7, C16)."""
    world = await open_inline_world(alarms=serving({"ring": failing}))
    await arm(world)
    world.sql("UPDATE trio_alarms_alarms SET attempts = 10000")
    await world.host.deliver_native_alarm()
    row = only(world)
    assert (row.attempts, row.parked, row.wake_at) == (10_000, 1, HOUR_MS)


async def test_a_greater_budget_does_not_resume_what_is_parked(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """It stays parked and hourly, with the count it has (R7)."""
    world = await open_inline_world(
        alarms=serving({"ring": failing}),
        configuration=ScheduleConfiguration(unchanged_attempt_budget=2),
    )
    await arm(world)
    await world.harness.advance(10)
    await world.harness.reopen(configuration=ScheduleConfiguration(unchanged_attempt_budget=20))
    await world.harness.advance(3600)
    row = only(world)
    assert (row.attempts, row.parked) == (2, 1)
    assert row.wake_at - world.now() > HOUR_MS - 10_000


# Whose decision it is.

DECISIONS = {
    # The definition's own policy, what on_failure answers, and what becomes of the alarm.
    (None, None): "retry",
    (None, "retry"): "retry",
    (None, "skip-and-advance-repeat"): "skip",
    (None, Retry(after=30)): "retry after 30",
    ("retry", None): "retry",
    ("retry", "retry"): "retry",
    ("retry", "skip-and-advance-repeat"): "retry",
    ("retry", Retry(after=30)): "retry after 30",
    ("skip-and-advance-repeat", None): "skip",
    ("skip-and-advance-repeat", "retry"): "skip",
    ("skip-and-advance-repeat", "skip-and-advance-repeat"): "skip",
    ("skip-and-advance-repeat", Retry(after=30)): "skip",
}


@pytest.mark.parametrize("repeat_every", [None, 60])
@pytest.mark.parametrize(("given", "outcome"), DECISIONS.items())
async def test_the_definitions_policy_wins_over_what_on_failure_answers(
    given: Any,
    outcome: str,
    repeat_every: float | None,
    open_inline_world: OpenWorld,
    mock_clock: trio.testing.MockClock,
) -> None:
    """With neither it is a retry; a skipped one-shot is gone, a skipped repeat advances (R28)."""
    policy, answer = given
    asked: list[AlarmFailure] = []

    async def ask(failure: AlarmFailure) -> Any:
        asked.append(failure)
        return answer

    world = await open_inline_world(
        alarms=serving({"ring": failing}, failure=policy, options=DispatchOptions(on_failure=ask))
    )
    await arm(world, repeat_every=repeat_every)
    await world.host.deliver_native_alarm()
    (failure,) = asked
    assert (failure.tag, failure.id) == ("ring", "1")
    assert isinstance(failure.error, ValueError)
    assert failure.event is not None
    assert failure.event.id == "1"
    if outcome == "skip" and repeat_every is None:
        assert world.rows() == []
        return
    row = only(world)
    if outcome == "skip":
        assert (row.run_at, row.wake_at, row.attempts) == (60_000, 60_000, 0)
    else:
        delay = 30_000 if outcome == "retry after 30" else 1_000
        assert (row.run_at, row.wake_at, row.attempts) == (0, delay, 1)


@pytest.mark.parametrize("defined", [None, 5])
@pytest.mark.parametrize("answered", [None, 30, 0.001])
@pytest.mark.parametrize("optional", [None, 100])
async def test_the_first_delay_is_the_definitions_the_answers_or_the_options(
    defined: float | None,
    answered: float | None,
    optional: float | None,
    open_inline_world: OpenWorld,
    mock_clock: trio.testing.MockClock,
) -> None:
    """In this order, never under the minimum, and it doubles from there (R7)."""

    async def ask(failure: AlarmFailure) -> Any:
        return None if answered is None else Retry(after=answered)

    definition: dict[str, Any] = {} if defined is None else {"retry_initial_delay": defined}
    world = await open_inline_world(
        alarms=serving(
            {"ring": failing},
            options=DispatchOptions(retry_failed_after=optional, on_failure=ask),
            **definition,
        ),
        configuration=ScheduleConfiguration(minimum_retry_delay=2),
    )
    await arm(world)
    given = [seconds for seconds in (defined, answered, optional) if seconds is not None]
    first = max(2, given[0]) if given else 2
    for expected in (first, 2 * first, 4 * first):
        await world.host.deliver_native_alarm()
        assert only(world).wake_at - world.now() == expected * 1000
        mock_clock.jump(expected)


async def test_a_retry_after_doubles_and_is_bounded_by_the_parked_delay(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """However great its first delay is (R7)."""
    world = await open_inline_world(
        alarms=serving({"ring": failing}, retry_initial_delay=timedelta(hours=10))
    )
    await arm(world)
    await world.host.deliver_native_alarm()
    assert only(world).wake_at == HOUR_MS


async def test_an_on_failure_that_fails_records_the_retry_and_fails_the_pass_at_the_end(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """The other rows run first (R28)."""
    error = RuntimeError("cannot decide")
    ran: list[str] = []

    async def ring(event: AlarmDue[Any]) -> None:
        ran.append(event.id)
        if event.id == "1":
            raise ValueError

    async def ask(failure: AlarmFailure) -> None:
        raise error

    world = await open_inline_world(
        alarms=serving({"ring": ring}, options=DispatchOptions(on_failure=ask))
    )
    for id in "123":
        await arm(world, id)
    with pytest.raises(RuntimeError) as caught:
        await world.host.deliver_native_alarm()
    assert caught.value is error
    assert ran == ["1", "2", "3"]
    assert (only(world).attempts, only(world).wake_at) == (1, 1_000)


@pytest.mark.parametrize("answer", ["skip", "Retry", 5, True, Retry])
async def test_an_answer_of_on_failure_that_is_none_of_the_actions_is_an_error(
    answer: object, open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """The retry is recorded, and the pass says what is allowed (R28)."""

    async def ask(failure: AlarmFailure) -> Any:
        return answer

    world = await open_inline_world(
        alarms=serving({"ring": failing}, options=DispatchOptions(on_failure=ask))
    )
    await arm(world)
    with pytest.raises(InvalidProcessDueAlarmsOptionsError, match="skip-and-advance-repeat"):
        await world.host.deliver_native_alarm()
    assert only(world).attempts == 1


async def test_on_failure_belongs_to_the_handling(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """What it schedules for the same alarm is a self-rearm, charged once with the failure (R4)."""

    async def ask(failure: AlarmFailure) -> None:
        await world.host.scheduler.schedule_alarm("ring", failure.id, after=50)

    world = await open_inline_world(
        alarms=serving({"ring": failing}, options=DispatchOptions(on_failure=ask))
    )
    await arm(world)
    await world.host.deliver_native_alarm()
    row = only(world)
    assert (row.run_at, row.attempts, row.retry_at) == (50_000, 1, 1_000)


async def test_on_failure_is_not_bounded_by_the_handlers_timeout_and_can_be_cancelled(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """Cancelled with its pass it charges nothing (R28)."""
    asked: list[float] = []

    async def ask(failure: AlarmFailure) -> None:
        asked.append(trio.current_time())
        await trio.sleep(100)

    world = await open_inline_world(
        alarms=serving({"ring": failing}, timeout=1, options=DispatchOptions(on_failure=ask))
    )
    await arm(world)
    with trio.move_on_after(50):
        await world.host.deliver_native_alarm()
    assert only(world).attempts == 0
    await world.host.deliver_native_alarm()
    assert asked == [0, 50]
    assert only(world).attempts == 1


# What cannot be decoded.


class Counting(AlarmService, key="counting"):
    """A service whose payload must be a number."""

    count = Alarm(int, failure="skip-and-advance-repeat")


async def test_a_payload_that_does_not_decode_is_retried_and_never_skipped(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Whatever its definition and `on_failure` say: what could not be read is not deleted (R28)."""
    handler = Recorder()
    failures: list[AlarmFailure] = []

    async def ask(failure: AlarmFailure) -> Any:
        failures.append(failure)
        return "skip-and-advance-repeat"

    world = await open_world(
        alarms=Counting.handlers(
            Counting.count.handled_by(handler), options=DispatchOptions(on_failure=ask)
        )
    )
    await world.host.scheduler.schedule_alarm("count", "1", after=0, payload="seven")
    await world.host.deliver_native_alarm()
    row = only(world)
    assert (row.attempts, row.wake_at, row.payload) == (1, 1_000, '"seven"')
    assert handler.events == []
    (failure,) = failures
    assert isinstance(failure.error, StoredAlarmDecodeError)
    assert failure.event is None


async def test_a_payload_that_does_not_decode_is_retried_after_what_on_failure_answers(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """A `Retry` counts for every failure that is retried (R7)."""

    async def ask(failure: AlarmFailure) -> Any:
        return Retry(after=45)

    world = await open_inline_world(
        alarms=Counting.handlers(
            Counting.count.handled_by(fine), options=DispatchOptions(on_failure=ask)
        )
    )
    await world.host.scheduler.schedule_alarm("count", "1", after=0, payload="seven")
    await world.host.deliver_native_alarm()
    assert only(world).wake_at == 45_000


async def test_a_payload_that_does_not_decode_parks_and_runs_once_it_can_be_read(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """It alone waits; others of its tag run (R28)."""
    handler = Recorder()
    world = await open_inline_world(
        alarms=Counting.handlers(Counting.count.handled_by(handler)),
        configuration=ScheduleConfiguration(unchanged_attempt_budget=3),
    )
    await world.host.scheduler.schedule_alarm("count", "bad", after=0, payload="7")
    await world.host.scheduler.schedule_alarm("count", "good", after=1, payload=7)
    await world.harness.advance(100)
    assert handler.ids == ["good"]
    assert (only(world).id, only(world).attempts, only(world).parked) == ("bad", 3, 1)
    world.sql("UPDATE trio_alarms_alarms SET payload = '7'")
    await world.harness.advance(3600)
    assert [(event.id, event.payload) for event in handler.events] == [("good", 7), ("bad", 7)]


# What is no failure.


async def test_only_exceptions_are_failures(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Another `BaseException` propagates from the delivery, and nothing is charged (R28)."""

    class StopEverythingError(BaseException):
        pass

    async def ring(event: AlarmDue[Any]) -> None:
        raise StopEverythingError

    world = await open_inline_world(alarms=serving({"ring": ring}))
    await arm(world)
    before = only(world)
    with pytest.raises(StopEverythingError):
        await world.host.deliver_native_alarm()
    assert only(world) == before
    assert world.native_alarm() == 0


async def test_the_errors_of_a_handlers_own_nursery_are_one_failed_attempt(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """`AlarmFailure.error` holds them all, and everything else goes on (C15)."""
    failures: list[AlarmFailure] = []
    errors = [ValueError("one"), KeyError("two")]

    async def fail(error: Exception) -> None:
        raise error

    async def ring(event: AlarmDue[Any]) -> None:
        if event.id == "1":
            async with trio.open_nursery() as nursery:
                for error in errors:
                    nursery.start_soon(fail, error)

    async def ask(failure: AlarmFailure) -> None:
        failures.append(failure)

    world = await open_inline_world(
        alarms=serving({"ring": ring}, options=DispatchOptions(on_failure=ask))
    )
    await arm(world, "1")
    await arm(world, "2")
    await world.host.deliver_native_alarm()
    (failure,) = failures
    assert isinstance(failure.error, ExceptionGroup)
    assert set(failure.error.exceptions) == set(errors)
    assert (only(world).id, only(world).attempts) == ("1", 1)


async def test_a_group_that_holds_the_passs_own_cancellation_is_no_failure(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """A handler whose clean-up fails while it is cancelled is not charged for that (C15)."""
    started = trio.Event()

    async def clean_up_badly() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("while cancelled")

    async def ring(event: AlarmDue[Any]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clean_up_badly)
            nursery.start_soon(trio.sleep_forever)
            started.set()
            await trio.sleep_forever()

    world = await open_inline_world(alarms=serving({"ring": ring}))
    await arm(world)

    async def cancel_the_pass() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.host.deliver_native_alarm)
            await started.wait()
            nursery.cancel_scope.cancel()

    with pytest.raises(BaseExceptionGroup) as caught:
        await cancel_the_pass()
    assert caught.group_contains(ValueError, match="while cancelled")
    assert only(world).attempts == 0


async def test_a_cancelled_handler_that_raises_something_else_has_failed(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """What it raised is no cancellation any more; the charge is shielded (R28)."""
    started = trio.Event()

    async def ring(event: AlarmDue[Any]) -> None:
        try:
            started.set()
            await trio.sleep_forever()
        finally:
            raise ValueError("while cancelled")

    world = await open_inline_world(alarms=serving({"ring": ring}))
    await arm(world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        await started.wait()
        nursery.cancel_scope.cancel()
    assert (only(world).attempts, only(world).wake_at) == (1, 1_000)


async def test_a_handler_that_swallows_its_cancellation_is_handled(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """It returned; the acknowledgement is shielded (R28)."""
    started = trio.Event()

    async def ring(event: AlarmDue[Any]) -> None:
        with trio.CancelScope(shield=True):
            started.set()
            await trio.testing.wait_all_tasks_blocked()

    world = await open_inline_world(alarms=serving({"ring": ring}))
    await arm(world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        await started.wait()
        nursery.cancel_scope.cancel()
    assert world.rows() == []


# Changed while its handler runs.


@pytest.mark.parametrize("end", ["returns", "raises", "raises its last", "crashes"])
@pytest.mark.parametrize("change", ["scheduled", "cancelled", "cancelled and scheduled"])
async def test_a_change_from_outside_while_the_handler_runs_stands(
    end: str, change: str, open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """However the handling ends: the new alarm and no attempts, or no row (C08, C13)."""
    held = Held(None if end == "returns" else ValueError("no"))
    world = await open_inline_world(alarms=serving({"ring": held}))
    scheduler = world.host.scheduler
    await arm(world)
    if end == "raises its last":
        world.sql("UPDATE trio_alarms_alarms SET attempts = 7")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        await held.until_started(1)
        if "cancelled" in change:
            assert await scheduler.cancel_alarm("ring", "1")
        if "scheduled" in change:
            await scheduler.schedule_alarm("ring", "1", after=9, payload=["new"])
        if end == "crashes":
            await world.harness.crash()
        held.let_go()
    if end == "crashes":
        await world.harness.reopen()
    if change == "cancelled":
        assert world.rows() == []
        assert world.native_alarm() is None
        await arm(world, after=9)
    row = only(world)
    assert (row.run_at, row.wake_at, row.attempts, row.parked) == (9_000, 9_000, 0, 0)
    assert world.native_alarm() == 9_000
    assert row.payload == ("null" if change == "cancelled" else '["new"]')
    assert held.most == 1


@pytest.mark.parametrize("end", ["returns", "raises"])
async def test_a_handler_that_schedules_itself_anew_is_charged_once_however_it_ends(
    end: str, open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Neither the acknowledgement nor the failure touches the new row (R28, R4)."""

    async def ring(event: AlarmDue[Any]) -> None:
        await event.host.scheduler.schedule_alarm("ring", event.id, after=5)
        if end == "raises":
            raise ValueError

    world = await open_world(alarms=serving({"ring": ring}))
    await arm(world)
    await world.host.deliver_native_alarm()
    await world.step()
    row = only(world)
    assert (row.run_at, row.wake_at, row.retry_at, row.attempts) == (5_000, 5_000, 1_000, 1)
    assert world.native_alarm() == 5_000


async def test_a_handler_that_cancels_itself_and_fails_is_not_revived(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """There is no row left to charge (R28)."""

    async def ring(event: AlarmDue[Any]) -> None:
        await event.host.scheduler.cancel_alarm("ring", event.id)
        raise ValueError

    world = await open_world(alarms=serving({"ring": ring}))
    await arm(world, repeat_every=60)
    await world.host.deliver_native_alarm()
    assert world.rows() == []
    assert world.native_alarm() is None


async def test_a_handler_that_sets_itself_in_the_past_backs_off_and_parks(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """A busy loop of self-rearms is charged like failures (R4, R28)."""
    ran: list[float] = []

    async def ring(event: AlarmDue[Any]) -> None:
        ran.append(trio.current_time())
        await event.host.scheduler.schedule_alarm(
            "ring", event.id, run_at=event.host.now() - timedelta(seconds=1)
        )

    world = await open_inline_world(alarms=serving({"ring": ring}))
    await arm(world)
    await world.harness.advance(7200)
    assert ran == [*itertools.accumulate([0, 1, 2, 4, 8, 16, 32, 64, 3600])]
    assert only(world).parked == 1


# Logged.


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged about failed handlers."""
    return [record.getMessage() for record in caplog.records if "failed with" in record.message]


async def test_a_failing_handler_is_logged_when_it_begins_to_fail_and_when_it_parks(
    open_inline_world: OpenWorld,
    mock_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With type, tag and attempt, not at every try, and never with its id (R51)."""
    handler = Failing()
    world = await open_inline_world(alarms=serving({"ring": handler}))
    await arm(world, "a secret id")
    await world.harness.advance(8000)
    begun, parked = messages(caplog)
    assert "ValueError" in begun
    assert "'ring'" in begun
    assert "attempt 1" in begun
    assert "attempt 8" in parked
    assert "parked" in parked
    assert "secret" not in caplog.text
    handler.failing = False
    await world.harness.advance(3600)
    await arm(world)
    handler.failing = True
    await world.harness.settle()
    assert len(messages(caplog)) == 3


@pytest.mark.parametrize("first", ["schedules itself", "acknowledges itself"])
async def test_a_handler_that_fails_after_it_has_settled_its_row_is_logged_too(
    first: str,
    open_inline_world: OpenWorld,
    mock_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its error is in no row, so the log is the only place left for it (R51)."""

    async def ring(event: AlarmDue[Any]) -> None:
        if first == "schedules itself":
            await event.host.scheduler.schedule_alarm("ring", event.id, after=5)
        else:
            async with event.host.scheduler.transaction() as tx:
                assert await tx.acknowledge(event)
        raise ValueError("lost?")

    world = await open_inline_world(alarms=serving({"ring": ring}))
    await arm(world)
    await world.host.deliver_native_alarm()
    assert len(messages(caplog)) == 1
    assert "lost?" in caplog.text


async def test_a_skipped_failure_is_logged_too(
    open_inline_world: OpenWorld,
    mock_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Skipping is a policy for the alarm, not for the log (R51)."""
    caplog.set_level(logging.WARNING)
    world = await open_inline_world(
        alarms=serving({"ring": failing}, failure="skip-and-advance-repeat")
    )
    await arm(world)
    await world.host.deliver_native_alarm()
    assert world.rows() == []
    assert len(messages(caplog)) == 1


async def test_a_failure_of_the_distant_future_saturates(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Delays never lead beyond the last instant that can be stored (R7)."""
    handler = Recorder()
    world = await open_inline_world(
        alarms=serving({"ring": failing, "repeat": handler}),
        epoch=datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    )
    await arm(world)
    await world.host.scheduler.schedule_alarm("repeat", "1", after=0, repeat_every=60)
    await world.host.deliver_native_alarm()
    assert handler.ids == ["1"]
    assert [row.wake_at for row in world.rows()] == [999, 999]
    assert isinstance(world.host.clock, TrioClock)


async def test_the_first_failure_after_a_self_rearm_is_logged(
    open_inline_world: OpenWorld, mock_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """Attempts that a self-rearm was charged are no failures, so none was told of yet (R51)."""
    runs = itertools.count()

    async def rearm_then_fail(event: AlarmDue[Any]) -> None:
        if next(runs) == 0:
            await event.host.scheduler.schedule_alarm("ring", event.id, after=0)
        else:
            raise ValueError("a failure")

    world = await open_inline_world(alarms=serving({"ring": rearm_then_fail}))
    await arm(world)
    with caplog.at_level(logging.WARNING, logger="trio_alarms"):
        await world.harness.advance(1)
        assert only(world).attempts == 2
        assert len(caplog.records) == 1
        await world.harness.advance(30)
    assert only(world).attempts > 2
    assert len(caplog.records) == 1


async def test_a_handler_that_returns_no_awaitable_fails_saying_so(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """A lambda is only known to be synchronous once it is called (R28)."""
    failures: list[AlarmFailure] = []

    async def note(failure: AlarmFailure) -> None:
        failures.append(failure)

    handler: Any = lambda _: None  # noqa: E731 - the mistake that is tested
    world = await open_inline_world(
        alarms=serving({"ring": handler}, options=DispatchOptions(on_failure=note))
    )
    await arm(world)
    await world.harness.settle()
    (failure,) = failures
    assert "the handler of the alarm tag 'ring' returned None" in str(failure.error)
    assert "async" in str(failure.error)
