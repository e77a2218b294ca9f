"""How long failures and self-rearms wait, and when a repeat comes again (R7, R8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock

from tests.behaviour.work_service import Note, Recorder, at, fail, plain, stored, succeed, work
from trio_alarms import (
    Alarm,
    AlarmFailure,
    AlarmService,
    DispatchOptions,
    FailureAction,
    InvalidRepeatEveryError,
    Retry,
    ScheduleConfiguration,
    schedule_configuration,
)

if TYPE_CHECKING:
    from tests.behaviour.conftest import OpenWorld
    from trio_alarms import AlarmDue

HOUR_MS = 3_600_000
SHORT_REPEATS = ScheduleConfiguration(minimum_repeat_interval=1)


# Delays


class Delayed(AlarmService, key="delayed"):
    """Alarms that say themselves how they are retried, or do not."""

    silent = Alarm(None)
    own_delay = Alarm(None, retry_initial_delay=7)
    retried = Alarm(None, failure="retry")


@pytest.mark.parametrize(
    ("tag", "answer", "option", "delay"),
    [
        ("silent", None, None, 1),
        ("silent", None, 3, 3),
        ("silent", Retry(after=5), 3, 5),
        ("silent", "retry", 3, 3),
        ("silent", Retry(after=0), 3, 1),
        ("silent", None, 0.5, 1),
        ("own_delay", Retry(after=5), 3, 7),
        ("retried", Retry(after=5), 3, 5),
        ("retried", "skip-and-advance-repeat", 3, 3),
    ],
)
async def test_the_first_delay_is_the_most_specific_one(
    open_world: OpenWorld,
    mock_clock: MockClock,
    *,
    tag: str,
    answer: FailureAction | None,
    option: float | None,
    delay: int,
) -> None:
    """The definition's, else the answer's, else the options', never under the minimum (R7)."""

    async def on_failure(failure: AlarmFailure) -> FailureAction | None:
        await trio.lowlevel.checkpoint()
        return answer

    world = await open_world(
        alarms=Delayed.handlers(
            *(alarm.handled_by(fail) for alarm in Delayed.__alarms__.values()),
            options=DispatchOptions(on_failure=on_failure, retry_failed_after=option),
        )
    )
    await world.host.scheduler.schedule_alarm(tag, "a", run_at=at(0))
    await world.step()
    await world.harness.deliver()
    assert stored(world, tag=tag).retry_at == delay * 1_000
    await world.harness.advance(delay)
    assert stored(world, tag=tag).retry_at == delay * 1_000 + 2 * delay * 1_000


async def test_a_self_rearm_waits_the_minimum_delay_whatever_its_failures_wait(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Initial delays are for failures only (R7)."""

    async def rearm(event: AlarmDue[None]) -> None:
        await event.host.service(Delayed).schedule_alarm(Delayed.own_delay, "a", after=0)

    world = await open_world(
        alarms=Delayed.handlers(
            Delayed.silent.handled_by(succeed),
            Delayed.own_delay.handled_by(rearm),
            Delayed.retried.handled_by(succeed),
            options=DispatchOptions(retry_failed_after=3),
        )
    )
    await world.host.service(Delayed).schedule_alarm(Delayed.own_delay, "a", run_at=at(0))
    await world.step()
    await world.harness.deliver()
    assert stored(world, tag="own_delay").retry_at == 1_000


async def test_an_alarm_that_always_fails_is_tried_on_schedule(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The defaults back off to a minute and then park for hours (R7)."""
    handler = Recorder(failures=100)
    world = await open_world(alarms=work(handler))
    await plain(world, run_at=at(0))
    await world.harness.advance(100)
    await world.step()
    await world.harness.advance(2 * 3_600)
    parked_at = 127_000
    assert handler.ran_at == [
        *(0, 1_000, 3_000, 7_000, 15_000, 31_000, 63_000, parked_at),
        parked_at + HOUR_MS,
    ]
    assert [event.attempts for event in handler.events] == [0, 1, 2, 3, 4, 5, 6, 7, 8]


async def test_a_raised_budget_does_not_resume_what_is_parked(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """After a restart with a larger budget it still waits hourly (R7)."""
    world = await open_world(
        alarms=work(fail), configuration=ScheduleConfiguration(unchanged_attempt_budget=1)
    )
    await plain(world, run_at=at(0))
    await world.harness.deliver()
    assert stored(world).parked == 1
    await world.harness.reopen(configuration=ScheduleConfiguration(unchanged_attempt_budget=99))
    await world.harness.advance(3_600)
    row = stored(world)
    assert (row.attempts, row.parked, row.wake_at) == (1, 1, 2 * HOUR_MS)


async def test_ten_thousand_stored_attempts_overflow_nothing(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """One more failure waits for the cap (R7, C16)."""
    world = await open_world(
        alarms=work(fail), configuration=ScheduleConfiguration(unchanged_attempt_budget=2**62)
    )
    await plain(world, run_at=at(0))
    world.sql("UPDATE trio_alarms_alarms SET attempts = 10000, retry_at = run_at")
    await world.step()
    await world.harness.deliver()
    row = stored(world)
    assert (row.attempts, row.parked, row.wake_at) == (10_001, 0, HOUR_MS)


# Repeats


async def test_a_period_under_the_floor_is_refused(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The floor is a minute unless configured, and belongs to the range (R8)."""
    world = await open_world(alarms=work())
    with pytest.raises(InvalidRepeatEveryError, match=r"repeat_every .* from 60 seconds .* 59\.99"):
        await plain(world, run_at=at(0), repeat_every=59.99)
    assert world.rows() == []
    await plain(world, run_at=at(0), repeat_every=60)
    with schedule_configuration(ScheduleConfiguration(minimum_repeat_interval=5)):
        await plain(world, id="b", run_at=at(0), repeat_every=5)
    assert [row.repeat_every for row in world.rows()] == [60_000, 5_000]


async def test_a_stored_period_under_todays_floor_waits_for_the_floor(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """A floor that was raised since holds for the next occurrence (R8)."""
    handler = Recorder()
    world = await open_world(alarms=work(handler), configuration=SHORT_REPEATS)
    await plain(world, run_at=at(0), repeat_every=2)
    await world.harness.reopen(configuration=ScheduleConfiguration())
    await world.harness.advance(60)
    assert handler.ran_at == [0, 60_000]
    assert stored(world).repeat_every == 2_000


async def test_a_repeat_that_was_down_for_ten_periods_runs_once(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """One run, and the next a period after its completion (R8, C05)."""
    handler = Recorder()
    world = await open_world(alarms=work(handler))
    await plain(world, run_at=at(0), repeat_every=60)
    await world.harness.deliver()
    await world.harness.crash()
    mock_clock.jump(630)
    await world.harness.reopen()
    await world.harness.advance(120)
    assert handler.ran_at == [0, 630_000, 690_000, 750_000]


async def test_a_handler_slower_than_its_period_never_overlaps_itself(
    open_inline_world: OpenWorld, autojump_clock: MockClock
) -> None:
    """The period begins at the completion (R8, C05)."""
    running, spans = 0, []

    async def slow(event: AlarmDue[Note]) -> None:
        nonlocal running
        running += 1
        assert running == 1
        began = trio.current_time()
        await trio.sleep(5)
        spans.append((round(began), round(trio.current_time())))
        running -= 1

    world = await open_inline_world(alarms=work(slow), configuration=SHORT_REPEATS, driver=True)
    await plain(world, run_at=at(0), repeat_every=2)
    await trio.sleep(20)
    assert spans == [(0, 5), (7, 12), (14, 19)]
