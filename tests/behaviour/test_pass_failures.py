"""Passes that fail before they dispatch, or cancel themselves, are held back (R24)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from trio_alarms import (
    AlarmDue,
    AlarmHost,
    AlarmPassError,
    InvalidScheduleConfigurationError,
    ScheduleConfiguration,
    open_host,
    schedule_configuration,
)

from .conftest import OpenWorld, World
from .services import Held, Recorder, failing, fine, serving

pytestmark = pytest.mark.usefixtures("native_reads")

HOUR = 3600


class Acquisition:
    """An event scope that can fail on its way in, and how often it was tried and when."""

    def __init__(self) -> None:
        self.failing = True
        self.times: list[float] = []
        self.error = OSError("the pool is empty")

    @asynccontextmanager
    async def __call__(self, host: AlarmHost) -> AsyncIterator[None]:
        """Fail, or enter."""
        self.times.append(trio.current_time())
        await self.prepare(host)
        if self.failing:
            raise self.error
        yield

    async def prepare(self, host: AlarmHost) -> None:
        """What it does before it fails."""


@contextmanager
def contradictory() -> Iterator[None]:
    """A policy whose fields contradict each other: the delay would be over its bound."""
    with schedule_configuration(ScheduleConfiguration(minimum_retry_delay=2 * HOUR)):
        yield


async def held_back(world: World, error: type[Exception] = OSError) -> float:
    """Deliver a pass that fails, and say by how many seconds it holds the host back."""
    with pytest.raises(error):
        await world.host.deliver_native_alarm(force=True)
    native_alarm = world.native_alarm()
    assert native_alarm is not None
    return (native_alarm - world.now()) / 1000


async def test_a_failed_acquisition_charges_nothing_and_arms_a_guard(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Due rows are untouched, of both lifecycles, and the native alarm is a second away (R24)."""
    acquisition = Acquisition()
    world = await open_world(
        alarms=serving({"ring": fine}, manual={"paint": fine}), event_scope=acquisition
    )
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    await world.host.scheduler.schedule_alarm("paint", "1", after=0, lifecycle="manual")
    before = world.rows()
    mock_clock.jump(5)
    with pytest.raises(OSError, match="pool") as caught:
        await world.host.deliver_native_alarm()
    assert caught.value is acquisition.error
    assert world.rows() == before
    assert world.native_alarm() == 6_000


async def test_the_guard_doubles_with_each_failure_up_to_the_parked_delay(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """A blip costs seconds, a lasting failure an hour at most between two tries (R24)."""
    world = await open_inline_world(alarms=serving({"ring": fine}), event_scope=Acquisition())
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    delays = []
    for _ in range(15):
        delays.append(await held_back(world))
        mock_clock.jump(delays[-1])
    assert delays == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, HOUR, HOUR, HOUR]


async def test_the_guard_of_a_failure_goes_by_the_hosts_policy(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """From `minimum_retry_delay` to `parked_retry_delay`, whatever these are (R24)."""
    world = await open_inline_world(
        alarms=serving({"ring": fine}),
        event_scope=Acquisition(),
        configuration=ScheduleConfiguration(
            minimum_retry_delay=3000, parked_retry_delay=7000, in_flight_recovery=5
        ),
    )
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    delays = []
    for _ in range(4):
        delays.append(await held_back(world))
        mock_clock.jump(delays[-1])
    assert delays == [3000, 6000, 7000, 7000]


async def test_a_pass_that_dispatches_starts_the_doubling_anew(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Also one that then fails of its handlers: acquiring has worked (R24)."""
    acquisition = Acquisition()

    world = await open_inline_world(
        alarms=serving(manual={"paint": failing}), event_scope=acquisition
    )
    await world.host.scheduler.schedule_alarm("paint", "1", after=0, lifecycle="manual")
    assert [await held_back(world) for _ in range(3)] == [1, 1, 1]
    for expected in (8, 16):
        mock_clock.jump(HOUR)
        assert await held_back(world) == expected
    acquisition.failing = False
    with pytest.raises(ValueError, match="1"):
        await world.host.deliver_native_alarm(force=True)
    acquisition.failing = True
    mock_clock.jump(2 * HOUR)
    assert await held_back(world) == 1


async def test_an_earlier_future_native_alarm_stays(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """The guard never delays what is armed before it (R24)."""
    world = await open_inline_world(alarms=serving({"ring": fine}), event_scope=Acquisition())
    await world.host.scheduler.schedule_alarm("ring", "1", after=20)
    for _ in range(6):
        with pytest.raises(OSError, match="pool"):
            await world.host.deliver_native_alarm(force=True)
    # The sixth guard would be 32 s away.
    assert world.native_alarm() == 1_000
    mock_clock.jump(1)
    await held_back(world)
    await world.host.scheduler.schedule_alarm("ring", "1", after=20)
    assert world.native_alarm() == 21_000
    assert await held_back(world) == 20


async def test_a_guard_that_the_failing_pass_left_itself_counts_as_unset(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """A scope that commits something before it fails cannot make the tries come fast (R24)."""

    class Committing(Acquisition):
        async def prepare(self, host: AlarmHost) -> None:
            await host.scheduler.schedule_alarm("ring", "far", after=10 * HOUR)

    world = await open_inline_world(alarms=serving({"ring": fine}), event_scope=Committing())
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    delays = []
    for _ in range(5):
        delays.append(await held_back(world))
        mock_clock.jump(delays[-1])
    assert delays == [1, 2, 4, 8, 16]


async def test_an_open_scopes_short_guard_stands_instead(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Work that is deferred comes back soon if the process dies (R24, R18)."""
    release = trio.Event()

    class Deferring(Acquisition):
        async def prepare(self, host: AlarmHost) -> None:
            await nursery.start(maintain, host)

    async def maintain(host: AlarmHost, task_status: trio.TaskStatus[None]) -> None:
        async with host.scheduler.defer_wakes():
            task_status.started()
            await release.wait()

    acquisition = Deferring()
    world = await open_inline_world(
        alarms=serving({"ring": fine}),
        event_scope=acquisition,
        configuration=ScheduleConfiguration(minimum_retry_delay=500, in_flight_recovery=3),
    )
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    async with trio.open_nursery() as nursery:
        assert await held_back(world) == 3
        release.set()
    # The last scope to leave reconciles to the deadline.
    assert world.native_alarm() == 0


async def test_a_contradictory_policy_of_the_delivering_task_is_held_back_by_the_defaults(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Nothing is charged, and the delays are the default ones (R24)."""
    world = await open_world(
        alarms=serving({"ring": fine}),
        configuration=ScheduleConfiguration(minimum_retry_delay=100),
    )
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    before = world.rows()
    delays = []
    for _ in range(3):
        with contradictory():
            delays.append(await held_back(world, InvalidScheduleConfigurationError))
        mock_clock.jump(delays[-1])
    assert delays == [1, 2, 4]
    assert world.rows() == before


async def test_a_contradictory_policy_of_the_event_scope_is_held_back_by_the_defaults(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """The configuration in force where dispatch would begin is what counts (R24, R2)."""

    @asynccontextmanager
    async def scope(_: AlarmHost) -> AsyncIterator[None]:
        with contradictory():
            yield

    world = await open_inline_world(
        alarms=serving({"ring": fine}),
        event_scope=scope,
        configuration=ScheduleConfiguration(minimum_retry_delay=100),
    )
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    before = world.rows()
    delays = []
    for _ in range(3):
        delays.append(await held_back(world, InvalidScheduleConfigurationError))
        mock_clock.jump(delays[-1])
    assert delays == [1, 2, 4]
    assert world.rows() == before


async def test_a_failing_post_event_pass_arms_the_guard_too(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """What is due is not forgotten because nobody can dispatch it now (R24)."""
    acquisition = Acquisition()
    acquisition.failing = False
    world = await open_inline_world(
        alarms=serving({"ring": fine}),
        event_scope=acquisition,
        configuration=ScheduleConfiguration(dispatch_after_event=True),
    )
    async with world.host.event():
        await world.host.scheduler.schedule_alarm("ring", "1", after=0)
        acquisition.failing = True
    await trio.testing.wait_all_tasks_blocked()
    assert world.native_alarm() == 1_000
    assert [row.attempts for row in world.rows()] == [0]
    with pytest.raises(OSError, match="pool"):
        await world.harness.settle()


async def test_a_handler_that_cancels_the_events_nursery_has_failed_the_pass(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Nobody is charged, the rest is not started, and the guard holds the next try back (R24)."""
    ran: list[str] = []

    async def ring(event: AlarmDue[Any]) -> None:
        ran.append(event.id)
        event.scope.nursery.cancel_scope.cancel()
        await trio.lowlevel.checkpoint()

    world = await open_world(alarms=serving({"ring": ring}))
    for id in "123":
        await world.host.scheduler.schedule_alarm("ring", id, after=0)
    before = world.rows()
    delays = []
    for _ in range(3):
        delays.append(await held_back(world, AlarmPassError))
        mock_clock.jump(delays[-1])
    assert delays == [1, 2, 4]
    assert ran == ["1", "1", "1"]
    assert world.rows() == before


async def test_a_handler_that_cancels_the_events_nursery_and_returns_is_acknowledged(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """It has returned, so it is handled, whatever becomes of the pass (R24, R28)."""

    async def ring(event: AlarmDue[Any]) -> None:
        event.scope.nursery.cancel_scope.cancel()

    world = await open_inline_world(alarms=serving({"ring": ring}))
    for id in "12":
        await world.host.scheduler.schedule_alarm("ring", id, after=0)
    assert await held_back(world, AlarmPassError) == 1
    assert [(row.id, row.attempts) for row in world.rows()] == [("2", 0)]


async def test_a_crash_in_the_events_nursery_cancels_the_pass_and_holds_it_back(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """The pass raises what crashed, bare; no alarm is charged for it (R24)."""
    error = ValueError("a task of the event crashed")

    async def crash() -> None:
        raise error

    async def ring(event: AlarmDue[Any]) -> None:
        event.scope.nursery.start_soon(crash)
        await trio.sleep_forever()

    world = await open_inline_world(alarms=serving({"ring": ring}))
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    delays = []
    for _ in range(3):
        with pytest.raises(ValueError, match="crashed") as caught:
            await world.host.deliver_native_alarm()
        assert caught.value is error
        native_alarm = world.native_alarm()
        assert native_alarm is not None
        delays.append((native_alarm - world.now()) / 1000)
        mock_clock.jump(delays[-1])
    assert delays == [1, 2, 4]
    assert [row.attempts for row in world.rows()] == [0]


async def test_failures_of_every_such_kind_double_together(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """A pass that cancels itself does not start the doubling anew (R24)."""
    acquisition = Acquisition()

    async def ring(event: AlarmDue[Any]) -> None:
        event.scope.nursery.cancel_scope.cancel()
        await trio.lowlevel.checkpoint()

    world = await open_inline_world(alarms=serving({"ring": ring}), event_scope=acquisition)
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    delays = []
    for unacquired in (True, False, True, False):
        acquisition.failing = unacquired
        delays.append(await held_back(world, OSError if unacquired else AlarmPassError))
        mock_clock.jump(delays[-1])
    assert delays == [1, 2, 4, 8]


async def test_who_joined_a_pass_that_cancelled_itself_gets_its_error(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """It has failed and was not cancelled, so no joiner runs one at once (R24, R21)."""
    proceed = trio.Event()
    ran: list[str] = []

    async def ring(event: AlarmDue[Any]) -> None:
        ran.append(event.id)
        await proceed.wait()
        event.scope.nursery.cancel_scope.cancel()
        await trio.lowlevel.checkpoint()

    world = await open_inline_world(alarms=serving({"ring": ring}))
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    failures: list[AlarmPassError] = []

    async def deliver() -> None:
        with pytest.raises(AlarmPassError) as caught:
            await world.host.deliver_native_alarm(force=True)
        failures.append(caught.value)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(deliver)
        await trio.testing.wait_all_tasks_blocked()
        proceed.set()
    assert ran == ["1"]
    assert len(failures) == 3
    assert [error.__cause__ for error in failures if error.__cause__] == [failures[0]] * 2


async def test_a_manual_alarm_of_a_pass_that_cancelled_itself_comes_back_soon(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """It keeps its in-flight deadline, as in any pass that was cancelled (R24, R29)."""

    async def paint(event: AlarmDue[Any]) -> None:
        event.scope.nursery.cancel_scope.cancel()
        await trio.lowlevel.checkpoint()

    world = await open_inline_world(
        alarms=serving(manual={"paint": paint}),
        configuration=ScheduleConfiguration(in_flight_recovery=9),
    )
    await world.host.scheduler.schedule_alarm("paint", "1", after=0, lifecycle="manual")
    with pytest.raises(AlarmPassError):
        await world.host.deliver_native_alarm()
    assert [row.wake_at for row in world.rows()] == [9_000]


async def test_a_pass_cancelled_by_its_leader_is_no_failure(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Deadlines are reconciled at once, and no delay begins to double (R24)."""
    handler, acquisition = Held(), Acquisition()
    acquisition.failing = False
    world = await open_inline_world(alarms=serving({"ring": handler}), event_scope=acquisition)
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    for number in range(1, 4):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.host.deliver_native_alarm)
            await handler.until_started(number)
            nursery.cancel_scope.cancel()
        assert world.native_alarm() == 0
    acquisition.failing = True
    assert await held_back(world) == 1


async def test_closing_a_host_that_is_held_back_leaves_its_guard(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Only the next opening goes by the deadline again (R24, R20)."""
    acquisition = Acquisition()
    world = await open_inline_world(alarms=serving({"ring": fine}), event_scope=acquisition)
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    assert await held_back(world) == 1
    await world.harness.close()
    assert world.native_alarm() == 1_000
    acquisition.failing = False
    await world.harness.reopen()
    assert world.native_alarm() == 0
    assert await world.harness.deliver()
    assert world.rows() == []


class Deliveries:
    """How often a driver tried in an hour, whatever the pass then failed of."""

    def __init__(self) -> None:
        self.times: list[float] = []

    @asynccontextmanager
    async def scope(self, _: AlarmHost) -> AsyncIterator[None]:
        """Count a pass."""
        self.times.append(trio.current_time())
        yield


async def passes_in_an_hour(path: Path, lifecycle: Any = "automatic", **options: Any) -> int:
    """How many passes a driver starts for one due alarm within a virtual hour."""
    deliveries = Deliveries()
    options.setdefault("event_scope", deliveries.scope)
    async with open_host(path, **options) as host:
        await host.scheduler.schedule_alarm("ring", "1", after=0, lifecycle=lifecycle)
        await trio.sleep(HOUR - 1)
    return len(deliveries.times)


async def test_a_driver_does_not_spin_on_a_failing_acquisition(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Twelve tries in the first hour, each logged with its traceback (R24, R51)."""
    acquisition = Acquisition()
    await passes_in_an_hour(
        tmp_path / "alarms.db", alarms=serving({"ring": fine}), event_scope=acquisition
    )
    assert acquisition.times == [2**n - 1 for n in range(12)]
    assert len(caplog.records) == 12
    assert all(record.exc_info for record in caplog.records)


async def test_a_driver_does_not_spin_on_passes_that_cancel_themselves(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Twelve tries in the first hour, and no attempt charged (R24)."""

    async def ring(event: AlarmDue[Any]) -> None:
        event.scope.nursery.cancel_scope.cancel()
        await trio.sleep_forever()

    path = tmp_path / "alarms.db"
    assert await passes_in_an_hour(path, alarms=serving({"ring": ring})) == 12


async def test_a_driver_does_not_spin_on_crashes_in_the_events_nursery(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Twelve tries in the first hour (R24)."""

    async def crash() -> None:
        raise ValueError

    async def ring(event: AlarmDue[Any]) -> None:
        event.scope.nursery.start_soon(crash)
        await trio.sleep_forever()

    path = tmp_path / "alarms.db"
    assert await passes_in_an_hour(path, alarms=serving({"ring": ring})) == 12


async def test_a_driver_does_not_spin_on_alarms_that_nobody_handles(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """An automatic one backs off and parks, a manual one waits an hour (R24, R30)."""
    nobody = serving({"other": fine})
    assert await passes_in_an_hour(tmp_path / "1.db", alarms=nobody) == 8
    assert await passes_in_an_hour(tmp_path / "2.db", "manual", alarms=nobody) == 1
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 2


async def test_a_driver_does_not_spin_on_a_dispatcher_that_fails_or_does_nothing(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """What the hook leaves due meets the unknown-tag policy, so it backs off (R33)."""

    async def fail(_: AlarmHost) -> None:
        raise ValueError

    async def idle(_: AlarmHost) -> None:
        pass

    assert await passes_in_an_hour(tmp_path / "1.db", alarms=fail) == 8
    assert await passes_in_an_hour(tmp_path / "2.db", alarms=idle) == 8


async def test_a_driver_does_not_spin_on_a_dispatcher_that_cannot_resolve_its_policy(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """It has failed before it dispatched anything, so the unknown-tag policy applies (R33)."""

    async def dispatch(host: AlarmHost) -> None:
        with contradictory():
            await host.scheduler.process_due_alarms(fine)

    assert await passes_in_an_hour(tmp_path / "alarms.db", alarms=dispatch) == 8


async def test_a_driver_does_not_spin_on_handlers_that_always_fail(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Automatic ones back off and park, manual ones come back in an hour (R28, R29)."""
    assert await passes_in_an_hour(tmp_path / "1.db", alarms=serving({"ring": failing})) == 8
    manual = serving(manual={"ring": failing})
    assert await passes_in_an_hour(tmp_path / "2.db", "manual", alarms=manual) == 1


async def test_a_blip_costs_a_second(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """An event scope that fails once delays what is due by the first delay only (R24)."""
    acquisition, handler = Acquisition(), Recorder()
    async with open_host(
        tmp_path / "alarms.db", alarms=serving({"ring": handler}), event_scope=acquisition
    ) as host:
        await host.scheduler.schedule_alarm("ring", "1", after=0)
        await trio.sleep(0.5)
        acquisition.failing = False
        await trio.sleep(0.6)
        assert handler.ids == ["1"]
    assert acquisition.times == [0, 1]
