"""Which policy is in force: the task's override, else the host's, else the default (R1, R2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock

from tests.behaviour.work_service import (
    HeldHandler,
    Note,
    Recorder,
    Work,
    at,
    delivering,
    fail,
    work,
)
from trio_alarms import (
    InvalidRepeatEveryError,
    InvalidScheduleConfigurationError,
    ScheduleConfiguration,
    schedule_configuration,
)

if TYPE_CHECKING:
    from tests.behaviour.conftest import OpenWorld, StoredRow, World
    from trio_alarms import Alarm, AlarmDue

HOUR_MS = 3_600_000


async def schedule(
    world: World, run_at: int = 0, *, alarm: Alarm[Note] = Work.plain, **options: Any
) -> None:
    """Schedule an alarm from outside."""
    await world.host.service(Work).schedule_alarm(
        alarm, "a", run_at=at(run_at), payload=Note("x"), **options
    )


def stored(world: World, tag: str = "plain") -> StoredRow:
    """The row, which is there."""
    row = world.row(tag, "a")
    assert row is not None
    return row


# The host's configuration


async def test_the_hosts_delays_and_budget(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """Failures follow the host's minimum delay, budget and parked delay (R2, R7)."""
    world = await open_world(
        alarms=work(fail),
        configuration=ScheduleConfiguration(
            minimum_retry_delay=3, unchanged_attempt_budget=3, parked_retry_delay=7_200
        ),
    )
    await schedule(world)
    seen = []
    for _ in range(4):
        await world.harness.deliver()
        row = stored(world)
        seen.append((row.attempts, row.parked, row.wake_at))
        await world.step()
        await world.harness.set_time(at(row.wake_at))
    assert seen == [
        (1, 0, 3_000),
        (2, 0, 9_000),
        (3, 1, 9_000 + 2 * HOUR_MS),
        (3, 1, 9_000 + 4 * HOUR_MS),
    ]


async def test_the_hosts_in_flight_recovery(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """The guard and a manual alarm's in-flight deadline follow it (R2, R22, R26)."""
    handler = HeldHandler()
    world = await open_world(
        alarms=work(manual=handler), configuration=ScheduleConfiguration(in_flight_recovery=5)
    )
    await schedule(world, alarm=Work.manual)
    await world.step()
    async with delivering(world, handler):
        assert (stored(world, "manual").run_at, world.native_alarm()) == (5_000, 5_000)


async def test_the_hosts_parked_delay_is_what_manual_alarms_wait(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """An alarm that its handler left waits the host's parked delay (R2, R29)."""
    world = await open_world(
        alarms=work(), configuration=ScheduleConfiguration(parked_retry_delay=7_200)
    )
    await schedule(world, alarm=Work.manual)
    await world.step()
    await world.harness.deliver()
    assert stored(world, "manual").run_at == 2 * HOUR_MS


async def test_the_hosts_minimum_repeat_interval(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Periods are compared with it at the call (R2, R8)."""
    world = await open_world(
        alarms=work(), configuration=ScheduleConfiguration(minimum_repeat_interval=10)
    )
    await schedule(world, repeat_every=10)
    with pytest.raises(InvalidRepeatEveryError, match="from 10 seconds"):
        await schedule(world, repeat_every=9)
    assert stored(world).repeat_every == 10_000


async def test_dispatch_after_event_is_off_unless_configured(
    open_inline_world: OpenWorld, mock_clock: MockClock
) -> None:
    """By default an event starts no dispatch; the host's or the task's word does (R1, R2, R41)."""
    handler = Recorder()
    world = await open_inline_world(alarms=work(handler))

    async def have_an_event() -> None:
        await schedule(world)
        async with world.host.event():
            pass
        await trio.testing.wait_all_tasks_blocked()

    await have_an_event()
    assert handler.ids == []
    with schedule_configuration(ScheduleConfiguration(dispatch_after_event=True)):
        await have_an_event()
    assert handler.ids == ["a"]
    await world.harness.reopen(configuration=ScheduleConfiguration(dispatch_after_event=True))
    await have_an_event()
    assert handler.ids == ["a", "a"]
    with schedule_configuration(ScheduleConfiguration(dispatch_after_event=False)):
        await have_an_event()
    assert handler.ids == ["a", "a"]


async def test_a_reopened_host_goes_by_its_new_configuration(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Nothing of the policy is stored with the alarms (R2)."""
    world = await open_world(
        alarms=work(fail), configuration=ScheduleConfiguration(minimum_retry_delay=3)
    )
    await schedule(world)
    await world.harness.reopen(configuration=ScheduleConfiguration(minimum_retry_delay=40))
    await world.harness.deliver()
    assert stored(world).retry_at == 40_000


# A task's override


async def test_a_tasks_override_wins_field_by_field(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """What it leaves open the host decides, and then the default (R2)."""
    world = await open_world(
        alarms=work(fail),
        configuration=ScheduleConfiguration(minimum_retry_delay=3, unchanged_attempt_budget=1),
    )
    await schedule(world)
    await world.step()
    with schedule_configuration(ScheduleConfiguration(unchanged_attempt_budget=2)):
        await world.harness.deliver()
    assert (stored(world).attempts, stored(world).parked, stored(world).wake_at) == (1, 0, 3_000)
    with schedule_configuration(ScheduleConfiguration(parked_retry_delay=7_200)):
        await world.harness.advance(3)
    assert (stored(world).attempts, stored(world).parked) == (1, 1)
    assert stored(world).wake_at == 3_000 + 2 * HOUR_MS


async def test_nested_overrides_merge_and_end(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """The inner one wins where it decides, and only inside its block (R2)."""
    world = await open_world(alarms=work())
    outer = ScheduleConfiguration(minimum_repeat_interval=5, minimum_retry_delay=9)
    with schedule_configuration(outer):
        with schedule_configuration(ScheduleConfiguration(minimum_retry_delay=2)):
            await schedule(world, repeat_every=5)
        with (
            schedule_configuration(ScheduleConfiguration(minimum_repeat_interval=8)),
            pytest.raises(InvalidRepeatEveryError, match="from 8 seconds"),
        ):
            await schedule(world, repeat_every=7)
        await schedule(world, repeat_every=7)
    with pytest.raises(InvalidRepeatEveryError, match="from 60 seconds"):
        await schedule(world, repeat_every=7)
    assert stored(world).repeat_every == 7_000


async def test_an_override_holds_for_started_tasks_and_no_others(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """A task takes along what was in force where it was started (R2)."""
    world = await open_world(alarms=work())
    outcomes: dict[str, bool] = {}
    overridden, checked = trio.Event(), trio.Event()

    async def try_to(name: str) -> None:
        try:
            await schedule(world, repeat_every=5)
        except InvalidRepeatEveryError:
            outcomes[name] = False
        else:
            outcomes[name] = True

    async def bystander() -> None:
        await overridden.wait()
        await try_to("bystander")
        checked.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(bystander)
        with schedule_configuration(ScheduleConfiguration(minimum_repeat_interval=5)):
            overridden.set()
            await checked.wait()
            async with trio.open_nursery() as children:
                children.start_soon(try_to, "child")
            nursery.start_soon(try_to, "started inside")
    assert outcomes == {"bystander": False, "child": True, "started inside": True}


async def test_an_override_in_a_handler_is_for_what_the_handler_schedules(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Its own failure goes by what was in force for the dispatch (R2, R7)."""

    async def spawn_and_fail(event: AlarmDue[Note]) -> None:
        with schedule_configuration(ScheduleConfiguration(minimum_retry_delay=30)):
            await event.host.service(Work).schedule_alarm(
                Work.skipping, "a", after=0, payload=Note("x")
            )
            await fail(event)

    world = await open_world(alarms=work(spawn_and_fail))
    await schedule(world)
    await world.step()
    await world.harness.deliver()
    assert (stored(world, "skipping").retry_at, stored(world).retry_at) == (30_000, 1_000)


async def test_an_override_around_defer_wakes_sets_its_guard(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The guard's delay is resolved where the first scope is entered (R2, R17)."""
    world = await open_world(alarms=work())
    await schedule(world, 60_000)
    with schedule_configuration(ScheduleConfiguration(in_flight_recovery=7)):
        async with world.host.scheduler.defer_wakes():
            assert world.native_alarm() == 7_000


async def test_a_contradiction_of_host_and_override_is_refused_at_the_call(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Each alone is fine; together they fail where they are resolved, storing nothing (R1)."""
    world = await open_world(
        alarms=work(), configuration=ScheduleConfiguration(parked_retry_delay=4_000)
    )
    await schedule(world, 60_000)
    before = world.rows()
    with schedule_configuration(ScheduleConfiguration(minimum_retry_delay=5_000)):
        with pytest.raises(InvalidScheduleConfigurationError, match=r"4000 s .* 5000 s"):
            await schedule(world, 0)
        async with world.host.scheduler.transaction() as tx:
            with pytest.raises(InvalidScheduleConfigurationError):
                await tx.schedule_alarm("raw", "a", run_at=at(0))
        # What needs no policy still works.
        assert await world.host.scheduler.cancel_alarm("never", "there") is False
        with schedule_configuration(ScheduleConfiguration(parked_retry_delay=6_000)):
            await schedule(world, 60_000, progress=0)
    assert [(row.tag, row.run_at) for row in world.rows()] == [
        (row.tag, row.run_at) for row in before
    ]
