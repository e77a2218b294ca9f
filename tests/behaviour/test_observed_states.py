"""What each step of an alarm's life leaves in the table and in the native alarm.

Each test is numbered by its row of the table of states that the rules were drawn from. Instants
are in ms from the first deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs
import pytest
import trio
from trio.testing import MockClock

from tests.behaviour.work_service import (
    HandlerError,
    HeldHandler,
    Note,
    Recorder,
    Work,
    at,
    delivering,
    fail,
    work,
)
from trio_alarms import AlarmParked, InvalidAlarmRegistrationError, ScheduleConfiguration

if TYPE_CHECKING:
    from tests.behaviour.conftest import OpenWorld, StoredRow, World
    from trio_alarms import Alarm, AlarmDue

HOUR_MS = 3_600_000
CONFIGURATION = ScheduleConfiguration(minimum_repeat_interval=1)
BUDGET_OF_TWO = attrs.evolve(CONFIGURATION, unchanged_attempt_budget=2)

State: TypeAlias = tuple[int, int, int, int, int | None, Literal["new", "same"], int | None]


def state(
    world: World, before: StoredRow | None, alarm: Alarm[Any] | str = Work.plain, id: str = "a"
) -> State | None:
    """(run_at, wake_at, attempts, parked, retry_at, revision, native alarm), or None: no row.

    The revision is compared with `before`'s.
    """
    row = world.row(alarm if isinstance(alarm, str) else alarm.tag, id)
    if row is None:
        return None
    revision: Literal["new", "same"] = (
        "same" if before is not None and row.revision == before.revision else "new"
    )
    return (
        row.run_at,
        row.wake_at,
        row.attempts,
        row.parked,
        row.retry_at,
        revision,
        world.native_alarm(),
    )


def stored(world: World, alarm: Alarm[Any] = Work.plain, id: str = "a") -> StoredRow:
    """The row, which is there."""
    row = world.row(alarm.tag, id)
    assert row is not None
    return row


async def schedule(
    world: World,
    run_at: int,
    text: str = "first",
    *,
    alarm: Alarm[Note] = Work.plain,
    id: str = "a",
    **options: Any,
) -> StoredRow:
    """Schedule from outside; the row that this leaves."""
    await world.host.service(Work).schedule_alarm(
        alarm, id, run_at=at(run_at), payload=Note(text), **options
    )
    return stored(world, alarm, id)


async def schedule_earlier(
    world: World,
    run_at: int,
    text: str = "second",
    *,
    alarm: Alarm[Note] = Work.plain,
    **options: Any,
) -> StoredRow:
    """Min-merge from outside; the row that this leaves."""
    await world.host.service(Work).schedule_alarm_earlier(
        alarm, "a", run_at=at(run_at), payload=Note(text), **options
    )
    return stored(world, alarm)


def rearm(
    run_at: int | None = None,
    *,
    back_by: int = 0,
    alarm: Alarm[Note] = Work.plain,
    id: str = "a",
    then_fails: bool = False,
) -> Any:
    """A handler that schedules an alarm at `run_at`, or `back_by` before now."""

    async def handler(event: AlarmDue[Note]) -> None:
        now = event.host.now()
        await event.host.service(Work).schedule_alarm(
            alarm,
            id,
            run_at=now - (at(back_by) - at(0)) if run_at is None else at(run_at),
            payload=Note("rearmed"),
        )
        if then_fails:
            raise HandlerError

    return handler


# A plain automatic alarm


async def test_01_new(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """A new automatic alarm arms the native alarm at its deadline (R3, R4, R20)."""
    world = await open_world(alarms=work(), configuration=CONFIGURATION)
    await schedule(world, 0)
    assert state(world, None) == (0, 0, 0, 0, None, "new", 0)


async def test_02_in_its_handler(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """Before its handler the row is not touched, and the guard stands (R18, R22, R27)."""
    handler = HeldHandler()
    world = await open_world(alarms=work(handler), configuration=CONFIGURATION)
    before = await schedule(world, 0)
    await world.step()
    async with delivering(world, handler):
        assert state(world, before) == (0, 0, 0, 0, None, "same", 1_000)
        assert stored(world) == before


async def test_03_succeeded(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """A handled one-shot is gone, and the native alarm is the next deadline or none (R20, R28)."""
    world = await open_world(alarms=work(), configuration=CONFIGURATION)
    await schedule(world, 0)
    await schedule(world, 5_000, id="next")
    await world.step()
    await world.harness.deliver()
    assert (state(world, None), world.native_alarm()) == (None, 5_000)
    await world.harness.advance(5)
    assert (world.rows(), world.native_alarm()) == ([], None)


async def test_04_scheduled_again(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """A second schedule replaces all, even by identical values with a new revision (R3, R4)."""
    world = await open_world(alarms=work(), configuration=CONFIGURATION)
    before = await schedule(world, 0, repeat_every=2)
    await world.step()
    same = await schedule(world, 0, repeat_every=2)
    assert state(world, before) == (0, 0, 0, 0, None, "new", 0)
    assert attrs.evolve(same, revision=before.revision) == before
    await world.step()
    await schedule(world, 700, "second")
    assert state(world, same) == (700, 700, 0, 0, None, "new", 700)
    assert (stored(world).payload, stored(world).repeat_every) == ('{"text":"second"}', None)


async def test_05_cancelled(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """A cancelled alarm is gone, the native alarm is recomputed, a missing one is fine (R9)."""
    world = await open_world(alarms=work(), configuration=CONFIGURATION)
    await schedule(world, 0)
    await schedule(world, 5_000, id="other")
    await world.step()
    alarms = world.host.service(Work)
    assert await alarms.cancel_alarm(Work.plain, "a") is True
    assert (state(world, None), world.native_alarm()) == (None, 5_000)
    assert await alarms.cancel_alarm(Work.plain, "a") is False
    assert world.native_alarm() == 5_000


async def test_06_failed_once(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """The first failure is retried a second later, its deadline stays (R7, R28)."""
    world = await open_world(alarms=work(fail), configuration=CONFIGURATION)
    before = await schedule(world, 0)
    await world.step()
    await world.harness.deliver()
    assert state(world, before) == (0, 1_000, 1, 0, 1_000, "new", 1_000)


async def test_07_failed_twice(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """Delays double, the event still shows the first deadline, no delivery raises (R7, R28)."""
    handler = Recorder(failures=2)
    world = await open_world(alarms=work(handler), configuration=CONFIGURATION)
    before = await schedule(world, 0)
    await world.harness.deliver()
    await world.step()
    await world.harness.advance(1)
    assert state(world, before) == (0, 3_000, 2, 0, 3_000, "new", 3_000)
    assert [(event.scheduled_at, event.attempts) for event in handler.events] == [
        (at(0), 0),
        (at(0), 1),
    ]


async def test_08_retry_succeeded(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """After a retry that succeeds nothing is left (R28)."""
    handler = Recorder(failures=2)
    world = await open_world(alarms=work(handler), configuration=CONFIGURATION)
    await schedule(world, 0)
    await world.step()
    await world.harness.advance(3)
    assert handler.ran_at == [0, 1_000, 3_000]
    assert (world.rows(), world.native_alarm()) == ([], None)


# Parking


async def parked(open_world: OpenWorld, handler: Any = fail, **options: Any) -> World:
    """A world whose alarm has parked at 1,000 after its budget of two."""
    world = await open_world(alarms=work(handler), configuration=BUDGET_OF_TWO, **options)
    await schedule(world, 0)
    await world.harness.advance(1)
    await world.step()
    return world


async def test_09_budget_reached(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """The failure that reaches the budget parks for an hour, reported once (R7, R16, R28)."""
    reports: list[AlarmParked] = []

    async def reporter(report: AlarmParked) -> None:
        reports.append(report)

    world = await parked(open_world, reporter=reporter)
    retry_at = 1_000 + HOUR_MS
    assert state(world, None) == (0, retry_at, 2, 1, retry_at, "new", retry_at)
    assert reports == [AlarmParked(attempts=2, retry_at=at(retry_at))]


async def test_10_parked_and_failed_again(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """Parked alarms fail hourly, uncharged and unreported (R7, R16, R28)."""
    reports: list[AlarmParked] = []

    async def reporter(report: AlarmParked) -> None:
        reports.append(report)

    world = await parked(open_world, reporter=reporter)
    before = stored(world)
    await world.harness.advance(3_600)
    retry_at = 1_000 + 2 * HOUR_MS
    assert state(world, before) == (0, retry_at, 2, 1, retry_at, "new", retry_at)
    assert len(reports) == 1


async def test_11_parked_then_scheduled(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """A schedule from outside unparks (R4)."""
    world = await parked(open_world)
    before = stored(world)
    await schedule(world, 9_000)
    assert state(world, before) == (9_000, 9_000, 0, 0, None, "new", 9_000)


async def test_12_parked_then_scheduled_earlier(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """A later min-merge keeps the past deadline, unparked and so due at once (R6)."""
    world = await parked(open_world)
    before = stored(world)
    await schedule_earlier(world, 9_000)
    assert state(world, before) == (0, 0, 0, 0, None, "new", 0)


async def test_13_backing_off_then_scheduled_earlier(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """A later min-merge ends a back-off: the alarm runs at once (R6)."""
    handler = Recorder(failures=1)
    world = await open_world(alarms=work(handler), configuration=CONFIGURATION)
    await schedule(world, 0)
    await world.harness.deliver()
    before = stored(world)
    await world.step()
    await schedule_earlier(world, 9_000)
    assert state(world, before) == (0, 0, 0, 0, None, "new", 0)
    await world.harness.deliver()
    assert handler.ran_at == [0, 0]


# Repeats


async def test_14_repeat_succeeded(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """The next occurrence is a period after the completion, with payload and repeat (R8)."""

    async def take_200_ms(event: AlarmDue[Note]) -> None:
        mock_clock.jump(0.2)

    world = await open_world(alarms=work(take_200_ms), configuration=CONFIGURATION)
    before = await schedule(world, 0, repeat_every=1.5)
    await world.step()
    await world.harness.deliver()
    assert state(world, before) == (1_700, 1_700, 0, 0, None, "new", 1_700)
    after = stored(world)
    assert (after.payload, after.repeat_every) == (before.payload, 1_500)


async def test_15_repeat_missed(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """Missed occurrences are skipped: one run, the next a period later (R8)."""
    handler = Recorder()
    world = await open_world(alarms=work(handler), configuration=CONFIGURATION)
    before = await schedule(world, 0, repeat_every=2)
    await world.harness.set_time(at(10_500))
    await world.step()
    await world.harness.settle()
    assert handler.ran_at == [10_500]
    assert state(world, before) == (12_500, 12_500, 0, 0, None, "new", 12_500)


async def test_16_repeat_failed(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """A failed repeat backs off as a one-shot does, and its success starts afresh (R8, R28)."""
    handler = Recorder(failures=1)
    world = await open_world(alarms=work(handler), configuration=CONFIGURATION)
    before = await schedule(world, 0, repeat_every=2)
    await world.harness.deliver()
    assert state(world, before) == (0, 1_000, 1, 0, 1_000, "new", 1_000)
    await world.step()
    await world.harness.advance(1)
    assert state(world, before) == (3_000, 3_000, 0, 0, None, "new", 3_000)


async def test_17_one_shot_skipped(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """A definition that skips failures acknowledges a failed one-shot away (R28)."""
    world = await open_world(alarms=work(skipping=fail), configuration=CONFIGURATION)
    await schedule(world, 0, alarm=Work.skipping)
    await world.step()
    await world.harness.deliver()
    assert (world.rows(), world.native_alarm()) == ([], None)


async def test_18_repeat_skipped(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """A definition that skips failures advances a failed repeat, uncharged (R8, R28)."""
    world = await open_world(alarms=work(skipping=fail), configuration=CONFIGURATION)
    before = await schedule(world, 0, alarm=Work.skipping, repeat_every=5)
    await world.step()
    await world.harness.deliver()
    assert state(world, before, Work.skipping) == (5_000, 5_000, 0, 0, None, "new", 5_000)


# The earlier of two


@pytest.mark.parametrize("run_at", [pytest.param(1_000, id="19"), pytest.param(0, id="20")])
async def test_19_and_20_min_merge_later_or_equal(
    open_world: OpenWorld, mock_clock: MockClock, run_at: int
) -> None:
    """The stored deadline stays with its payload and repeat, under a new revision (R6)."""
    world = await open_world(alarms=work(), configuration=CONFIGURATION)
    before = await schedule(world, 0, repeat_every=2)
    await world.step()
    after = await schedule_earlier(world, run_at, repeat_every=3)
    assert state(world, before) == (0, 0, 0, 0, None, "new", 0)
    assert attrs.evolve(after, revision=before.revision) == before


async def test_21_min_merge_earlier(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """An earlier deadline comes with its own payload and its own repeat, here none (R6)."""
    world = await open_world(alarms=work(), configuration=CONFIGURATION)
    before = await schedule(world, 0, repeat_every=2)
    await world.step()
    after = await schedule_earlier(world, -1_000)
    assert state(world, before) == (-1_000, -1_000, 0, 0, None, "new", -1_000)
    assert (after.payload, after.repeat_every) == ('{"text":"second"}', None)


async def test_22_min_merge_of_an_unknown_id(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """Without a row a min-merge is a schedule (R6)."""
    world = await open_world(alarms=work(), configuration=CONFIGURATION)
    await schedule_earlier(world, 700, "first", repeat_every=2)
    assert state(world, None) == (700, 700, 0, 0, None, "new", 700)
    assert (stored(world).payload, stored(world).repeat_every) == ('{"text":"first"}', 2_000)


# From outside, while the handler runs


async def test_23_min_merge_later_during_the_handler(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """A row in hand takes the given deadline, and runs again then (R6, R28)."""
    handler = HeldHandler()
    world = await open_world(alarms=work(handler), configuration=CONFIGURATION)
    before = await schedule(world, 0)
    await world.step()
    async with delivering(world, handler):
        await schedule_earlier(world, 1_000)
    assert state(world, before) == (1_000, 1_000, 0, 0, None, "new", 1_000)
    await world.harness.advance(1)
    assert handler.ran_at == [0, 1_000]
    assert [event.payload.text for event in handler.events] == ["first", "second"]
    assert world.rows() == []


@pytest.mark.parametrize("repeat_every", [None, 2])
@pytest.mark.parametrize("failures", [0, 1])
async def test_24_replaced_during_the_handler(
    open_world: OpenWorld, mock_clock: MockClock, failures: int, repeat_every: int | None
) -> None:
    """Neither acknowledgement nor failure touches what replaced the alarm (R28)."""
    handler = HeldHandler(failures=failures)
    world = await open_world(alarms=work(handler), configuration=CONFIGURATION)
    before = await schedule(world, 0, repeat_every=repeat_every)
    await world.step()
    async with delivering(world, handler):
        replaced = await schedule(world, 9_000, "second", repeat_every=repeat_every)
    assert state(world, before) == (9_000, 9_000, 0, 0, None, "new", 9_000)
    assert stored(world) == replaced


async def test_25_cancelled_during_the_handler(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """A failure does not bring back what was cancelled meanwhile (R9, R28)."""
    handler = HeldHandler(failures=1)
    world = await open_world(alarms=work(handler), configuration=CONFIGURATION)
    await schedule(world, 0)
    await world.step()
    async with delivering(world, handler):
        await world.host.service(Work).cancel_alarm(Work.plain, "a")
    assert (world.rows(), world.native_alarm()) == ([], None)


# By the handler itself


@pytest.mark.parametrize("then_fails", [pytest.param(False, id="26"), pytest.param(True, id="27")])
async def test_26_and_27_rearmed_by_its_handler(
    open_world: OpenWorld, mock_clock: MockClock, *, then_fails: bool
) -> None:
    """A self-rearm is charged once, whether its handler then succeeds or fails (R4, R28)."""
    handler = rearm(5_000, then_fails=then_fails)
    world = await open_world(alarms=work(handler), configuration=CONFIGURATION)
    before = await schedule(world, 0)
    await world.step()
    await world.harness.deliver()
    assert state(world, before) == (5_000, 5_000, 1, 0, 1_000, "new", 5_000)


async def test_28_rearmed_in_the_past_each_time(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """A handler that always wants to run at once backs off and parks at the budget (R4, R7)."""
    handler = rearm(back_by=1_000)
    world = await open_world(alarms=work(handler), configuration=CONFIGURATION)
    before = await schedule(world, 0)
    now = 0
    for attempts, delay in enumerate([1, 2, 4, 8, 16, 32, 64, 3_600, 3_600], 1):
        await world.harness.deliver()
        wake_at = now + delay * 1_000
        assert state(world, before) == (
            now - 1_000,
            wake_at,
            min(8, attempts),
            int(attempts >= 8),
            wake_at,
            "new",
            wake_at,
        )
        before, now = stored(world), wake_at
        await world.step()
        await world.harness.set_time(at(now))


async def test_29_min_merged_by_its_handler(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """The handler's later deadline is taken, charged once (R4, R6)."""

    async def merge(event: AlarmDue[Note]) -> None:
        await event.host.service(Work).schedule_alarm_earlier(
            Work.plain, "a", run_at=at(5_000), payload=Note("second")
        )

    world = await open_world(alarms=work(merge), configuration=CONFIGURATION)
    before = await schedule(world, 0)
    await world.step()
    await world.harness.deliver()
    assert state(world, before) == (5_000, 5_000, 1, 0, 1_000, "new", 5_000)
    assert stored(world).payload == '{"text":"second"}'


async def test_30_another_id_scheduled_by_the_handler(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Another id inherits the charge, first runs a second later, and is then gone (R4)."""
    handler = Recorder()

    async def spawn(event: AlarmDue[Note]) -> None:
        await handler(event)
        if event.id == "a":
            await rearm(0, id="b")(event)

    world = await open_world(alarms=work(spawn), configuration=CONFIGURATION)
    await schedule(world, 0)
    await world.step()
    await world.harness.settle()
    assert state(world, None, id="b") == (0, 1_000, 1, 0, 1_000, "new", 1_000)
    assert world.row("plain", "a") is None
    await world.step()
    await world.harness.advance(1)
    assert (handler.ids, handler.ran_at) == (["a", "b"], [0, 1_000])
    assert (world.rows(), world.native_alarm()) == ([], None)


async def test_31_another_id_scheduled_again_on_the_retry(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """What was due in the same batch is skipped, as its revision moved, and waits on (R4, R27)."""
    handler = Recorder()

    async def spawn_and_fail(event: AlarmDue[Note]) -> None:
        await handler(event)
        if event.id == "a":
            await rearm(event.attempts * 1_000, id="b", then_fails=True)(event)

    world = await open_world(alarms=work(spawn_and_fail), configuration=CONFIGURATION)
    await schedule(world, 0)
    await world.harness.deliver()
    before = stored(world, id="b")
    assert before.wake_at == stored(world).wake_at == 1_000
    await world.step()
    await world.harness.advance(1)
    assert handler.ids == ["a", "a"]
    assert state(world, before, id="b") == (1_000, 3_000, 2, 0, 3_000, "new", 3_000)


async def test_32_manual_alarm_scheduled_by_an_automatic_handler(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Nothing is charged across lifecycles; it runs in the next delivery (R4, R5)."""
    manual = Recorder()
    world = await open_world(
        alarms=work(rearm(0, alarm=Work.manual, id="m"), manual=manual),
        configuration=CONFIGURATION,
    )
    await schedule(world, 0)
    await world.harness.deliver()
    assert state(world, None, Work.manual, "m") == (0, 0, 0, 0, None, "new", 0)
    assert manual.ids == []
    await world.step()
    await world.harness.deliver()
    assert manual.ids == ["m"]


async def test_33_cancelled_by_its_handler(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """A handler that cancels its own alarm and fails does not revive it (R9, R28)."""

    async def cancel_and_fail(event: AlarmDue[Note]) -> None:
        assert await event.host.service(Work).cancel_alarm(Work.plain, event.id)
        raise HandlerError

    world = await open_world(alarms=work(cancel_and_fail), configuration=CONFIGURATION)
    await schedule(world, 0)
    await world.step()
    await world.harness.deliver()
    assert (world.rows(), world.native_alarm()) == ([], None)


async def test_34_another_of_the_batch_cancelled_by_the_handler(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Each row is read again before its handler, so what was cancelled is skipped (R9, R27)."""
    handler = Recorder()

    async def cancel_b(event: AlarmDue[Note]) -> None:
        await handler(event)
        await event.host.service(Work).cancel_alarm(Work.plain, "b")

    world = await open_world(alarms=work(cancel_b), configuration=CONFIGURATION)
    await schedule(world, 0)
    await schedule(world, 0, id="b")
    await world.step()
    await world.harness.deliver()
    assert handler.ids == ["a"]
    assert world.rows() == []


async def test_35_enrolled_while_a_handler_runs(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """What is enrolled during a batch comes with the next delivery, right after (R20, R25)."""
    handler = HeldHandler()
    world = await open_world(alarms=work(handler), configuration=CONFIGURATION)
    await schedule(world, 0)
    async with delivering(world, handler):
        await schedule(world, 0, id="b")
        assert world.native_alarm() == 1_000
    assert handler.ids == ["a"]
    assert world.native_alarm() == 0
    await world.step()
    await world.harness.deliver()
    assert handler.ids == ["a", "b"]


# Manual alarms


async def test_36_manual_before(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """A manual alarm has neither attempts nor retry (R3, R5)."""
    world = await open_world(alarms=work(), configuration=CONFIGURATION)
    await schedule(world, 0, alarm=Work.manual)
    assert state(world, None, Work.manual) == (0, 0, 0, 0, None, "new", 0)
    assert (stored(world, Work.manual).lifecycle, stored(world, Work.manual).progress) == (
        "manual",
        -1,
    )


async def test_37_manual_in_the_handler(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """It moved to its in-flight deadline, and its event still shows the deadline (R26)."""
    handler = HeldHandler()
    world = await open_world(alarms=work(manual=handler), configuration=CONFIGURATION)
    before = await schedule(world, 0, alarm=Work.manual)
    await world.step()
    async with delivering(world, handler):
        assert state(world, before, Work.manual) == (1_000, 1_000, 0, 0, None, "same", 1_000)
    assert [event.scheduled_at for event in handler.events] == [at(0)]


async def test_38_manual_succeeded(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """It is never acknowledged: an hour after the end of the pass it runs again (R29)."""
    handler = Recorder()

    async def take_200_ms(event: AlarmDue[Note]) -> None:
        await handler(event)
        mock_clock.jump(0.2)

    world = await open_world(alarms=work(manual=take_200_ms), configuration=CONFIGURATION)
    before = await schedule(world, 0, alarm=Work.manual)
    await world.harness.deliver()
    run_at = 200 + HOUR_MS
    assert state(world, before, Work.manual) == (run_at, run_at, 0, 0, None, "same", run_at)
    await world.step()
    await world.harness.advance(3_600)
    assert handler.ran_at == [0, run_at]


async def test_39_manual_failed(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """The pass raises the handler's error; nothing is charged, it waits for an hour (R29)."""
    world = await open_world(alarms=work(manual=fail), configuration=CONFIGURATION)
    before = await schedule(world, 0, alarm=Work.manual)
    await world.step()
    with pytest.raises(HandlerError):
        await world.harness.deliver()
    assert state(world, before, Work.manual) == (HOUR_MS, HOUR_MS, 0, 0, None, "same", HOUR_MS)


async def test_40_manual_cancelled_by_its_handler(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """A manual handler is done with its alarm when it cancels it (R9, R29)."""

    async def cancel(event: AlarmDue[Note]) -> None:
        await event.host.service(Work).cancel_alarm(Work.manual, event.id)

    world = await open_world(alarms=work(manual=cancel), configuration=CONFIGURATION)
    await schedule(world, 0, alarm=Work.manual)
    await world.step()
    await world.harness.deliver()
    assert (world.rows(), world.native_alarm()) == ([], None)


async def test_41_manual_rescheduled_by_its_handler(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """A newer checkpoint wins, without a charge (R5, R29)."""
    world = await open_world(
        alarms=work(manual=rearm(5_000, alarm=Work.manual)), configuration=CONFIGURATION
    )
    before = await schedule(world, 0, alarm=Work.manual)
    await world.step()
    await world.harness.deliver()
    assert state(world, before, Work.manual) == (5_000, 5_000, 0, 0, None, "new", 5_000)


async def test_42_manual_rescheduled_in_the_past(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """It runs again at once, without a back-off: its owner keeps the floor (R5, R29)."""
    handler = Recorder()

    async def reschedule(event: AlarmDue[Note]) -> None:
        await handler(event)
        await rearm(back_by=1_000, alarm=Work.manual)(event)

    world = await open_world(alarms=work(manual=reschedule), configuration=CONFIGURATION)
    before = await schedule(world, 0, alarm=Work.manual)
    for _ in range(3):
        assert await world.harness.deliver()
        assert state(world, before, Work.manual) == (-1_000, -1_000, 0, 0, None, "new", -1_000)
        before = stored(world, Work.manual)
        await world.step()
    assert handler.ran_at == [0, 0, 0]


async def test_43_manual_rescheduled_from_outside(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """What others schedule while its handler runs stands (R29)."""
    handler = HeldHandler()
    world = await open_world(alarms=work(manual=handler), configuration=CONFIGURATION)
    before = await schedule(world, 0, alarm=Work.manual)
    await world.step()
    async with delivering(world, handler):
        await schedule(world, 9_000, "second", alarm=Work.manual)
    assert state(world, before, Work.manual) == (9_000, 9_000, 0, 0, None, "new", 9_000)


async def test_44_manual_min_merged_after_a_failure(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The recovery deadline is what a min-merge compares with (R6, R29)."""
    world = await open_world(alarms=work(manual=fail), configuration=CONFIGURATION)
    await schedule(world, 0, alarm=Work.manual)
    with pytest.raises(HandlerError):
        await world.harness.deliver()
    before = stored(world, Work.manual)
    await world.step()
    after = await schedule_earlier(world, 100_000, alarm=Work.manual)
    assert state(world, before, Work.manual) == (100_000, 100_000, 0, 0, None, "new", 100_000)
    assert after.payload == '{"text":"second"}'


# Tags that nobody registered


async def test_45_automatic_alarm_of_an_unknown_tag(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """It fails, is charged and backs off (R28, R30)."""
    world = await open_world(alarms=work(), configuration=CONFIGURATION)
    await world.host.scheduler.schedule_alarm("unknown", "a", run_at=at(0))
    before = world.row("unknown", "a")
    await world.step()
    await world.harness.deliver()
    assert state(world, before, "unknown") == (0, 1_000, 1, 0, 1_000, "new", 1_000)


async def test_46_manual_alarm_of_an_unknown_tag(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """It waits for an hour, the delivery raises, and others are dispatched all the same (R29)."""
    handler = Recorder()
    world = await open_world(alarms=work(handler), configuration=CONFIGURATION)
    await world.host.scheduler.schedule_alarm("unknown", "a", run_at=at(0), lifecycle="manual")
    before = world.row("unknown", "a")
    await schedule(world, 0, id="b")
    await world.step()
    with pytest.raises(InvalidAlarmRegistrationError, match="'unknown'"):
        await world.harness.deliver()
    assert state(world, before, "unknown") == (HOUR_MS, HOUR_MS, 0, 0, None, "same", HOUR_MS)
    assert handler.ids == ["b"]


# Progress and lifecycle


@pytest.mark.parametrize("progress", [5, 4, 0])
async def test_47_known_progress(
    open_world: OpenWorld, mock_clock: MockClock, progress: int
) -> None:
    """A schedule with a progress that is known changes nothing, without an error (R4)."""
    world = await open_world(alarms=work(), configuration=CONFIGURATION)
    before = await schedule(world, 0, progress=5)
    await world.step()
    status = await world.host.service(Work).schedule_alarm(
        Work.plain, "a", run_at=at(9_000), payload=Note("second"), progress=progress
    )
    assert stored(world) == before
    assert world.native_alarm() == 0
    assert (status.run_at, status.progress) == (at(0), 5)


async def test_48_progress_not_given(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """Progress that is not given stays (R4)."""
    world = await open_world(alarms=work(), configuration=CONFIGURATION)
    before = await schedule(world, 700, progress=6)
    await world.step()
    after = await schedule(world, 0)
    assert state(world, before) == (0, 0, 0, 0, None, "new", 0)
    assert after.progress == 6


async def test_49_automatic_replaced_as_manual(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """A manual alarm keeps neither repeat nor progress (R4, R5)."""
    world = await open_world(alarms=work(), configuration=CONFIGURATION)
    alarms = world.host.scheduler
    await alarms.schedule_alarm("raw", "a", run_at=at(0), repeat_every=2, progress=7)
    before = world.row("raw", "a")
    await world.step()
    await world.host.scheduler.schedule_alarm("raw", "a", run_at=at(0), lifecycle="manual")
    assert state(world, before, "raw") == (0, 0, 0, 0, None, "new", 0)
    after = world.row("raw", "a")
    assert after is not None
    assert (after.lifecycle, after.repeat_every, after.progress) == ("manual", None, -1)


async def test_50_manual_min_merged_as_automatic(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The lifecycle is the given one though deadline and payload are kept (R6)."""
    world = await open_world(alarms=work(), configuration=CONFIGURATION)
    alarms = world.host.scheduler
    await alarms.schedule_alarm("raw", "a", run_at=at(0), payload="first", lifecycle="manual")
    before = world.row("raw", "a")
    await world.step()
    await world.host.scheduler.schedule_alarm_earlier("raw", "a", run_at=at(900), payload="second")
    assert state(world, before, "raw") == (0, 0, 0, 0, None, "new", 0)
    after = world.row("raw", "a")
    assert after is not None
    assert (after.lifecycle, after.payload) == ("automatic", '"first"')


# Killed in a handler


async def killed_in(world: World, handler: HeldHandler) -> None:
    """Deliver, lose the process while the handler runs, and open a new one 300 ms later."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.harness.deliver)
        await handler.started.wait()
        await world.harness.crash()
    handler.may_end.set()
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    clock.jump(0.3)
    await world.harness.reopen()


async def test_52_killed_in_an_automatic_handler(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Opening replaces the guard by the deadline, and it runs at once, uncharged (R52)."""
    handler = HeldHandler()
    world = await open_world(alarms=work(handler), configuration=CONFIGURATION)
    before = await schedule(world, 0)
    await killed_in(world, handler)
    assert state(world, before) == (0, 0, 0, 0, None, "same", 0)
    await world.harness.settle()
    assert handler.ran_at == [300]
    assert world.rows() == []


async def test_53_killed_in_a_manual_handler(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """It runs again at its in-flight deadline (R26, R52)."""
    handler = HeldHandler()
    world = await open_world(alarms=work(manual=handler), configuration=CONFIGURATION)
    before = await schedule(world, 0, alarm=Work.manual)
    await killed_in(world, handler)
    assert state(world, before, Work.manual) == (1_000, 1_000, 0, 0, None, "same", 1_000)
    await world.harness.settle()
    assert handler.ran_at == []
    await world.harness.advance(0.7)
    assert handler.ran_at == [1_000]


# Also observed


async def test_a_retried_alarm_sorts_by_its_retry_time(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Dispatch order goes by the wake, not by the deadline (R3, R25)."""
    handler = Recorder(failures=1)
    world = await open_world(alarms=work(handler), configuration=CONFIGURATION)
    await schedule(world, 0, id="retried")
    await world.harness.deliver()
    await schedule(world, 400, id="z")
    await schedule(world, 1_600, id="y")
    await world.harness.set_time(at(2_000))
    await world.step()
    await world.harness.deliver()
    assert handler.ids == ["retried", "z", "retried", "y"]


async def test_four_manual_handlers_run_beside_automatic_ones(
    open_inline_world: OpenWorld, autojump_clock: MockClock
) -> None:
    """Six manual alarms start four and two, three automatic ones run one by one (R27)."""
    started: dict[str, int] = {}

    def taking(seconds: float) -> Any:
        async def handler(event: AlarmDue[Note]) -> None:
            started[event.id] = round((event.host.now() - at(0)).total_seconds() * 1_000)
            await trio.sleep(seconds)

        return handler

    world = await open_inline_world(
        alarms=work(taking(0.1), manual=taking(0.3)), configuration=CONFIGURATION
    )
    for number in range(6):
        await schedule(world, 0, alarm=Work.manual, id=f"m{number}")
    for number in range(3):
        await schedule(world, 0, id=f"a{number}")
    await world.harness.deliver()
    assert started == {
        **dict.fromkeys(["m0", "m1", "m2", "m3"], 0),
        **dict.fromkeys(["m4", "m5"], 300),
        "a0": 0,
        "a1": 100,
        "a2": 200,
    }
