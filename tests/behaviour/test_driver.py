"""The driver: when it wakes, what it goes by, and what it leaves alone (R50)."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from trio_alarms import (
    AlarmClock,
    AlarmDue,
    AlarmHost,
    ScheduleConfiguration,
    StorageOptions,
    SystemClock,
    TrioClock,
    open_host,
    process_due,
    schedule_configuration,
)
from trio_alarms._runtime import HostRuntime
from trio_alarms._store._native import NativeState

from .services import Held, Recorder, failing, locked, serving

pytestmark = pytest.mark.usefixtures("native_reads")

NINE = datetime(2026, 3, 1, 9, tzinfo=UTC)


class WallClock:
    """What `time.time_ns` shows in Trio: it goes with Trio's clock, and it can step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, start: datetime) -> None:
        self._start_ns = int(start.timestamp()) * 10**9
        self._stepped_ns = 0
        self._real = time.time_ns
        monkeypatch.setattr(time, "time_ns", self._time_ns)

    def step(self, seconds: float) -> None:
        """Set it forward or back; Trio's clock does not notice."""
        self._stepped_ns += round(seconds * 10**9)

    def _time_ns(self) -> int:
        try:
            elapsed = trio.current_time()
        except RuntimeError:
            return self._real()
        return self._start_ns + round(elapsed * 10**9) + self._stepped_ns


class Times:
    """A handler that notes Trio's time at each of its starts."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.events: list[AlarmDue[Any]] = []
        self._changed = trio.Event()

    async def __call__(self, event: AlarmDue[Any]) -> None:
        """Note the time."""
        self.times.append(trio.current_time())
        self.events.append(event)
        self._changed.set()
        self._changed = trio.Event()

    async def until(self, number: int) -> None:
        """Wait until it was called so many times."""
        while len(self.times) < number:
            await self._changed.wait()


# When it wakes.


async def test_it_delivers_at_the_deadline(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Each alarm at its own, whatever order they were set in (R50)."""
    handler = Times()
    async with open_host(tmp_path / "alarms.db", alarms=serving({"ring": handler})) as host:
        for seconds in (5, 1.5, 3600, 0.001):
            await host.scheduler.schedule_alarm("ring", str(seconds), after=seconds)
        await trio.sleep(4000)
    assert handler.times == [0.001, 1.5, 5, 3600]


async def test_without_a_driver_nothing_is_delivered(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """`driver=False` leaves it to the caller (R50)."""
    handler = Times()
    async with open_host(
        tmp_path / "alarms.db", alarms=serving({"ring": handler}), driver=False
    ) as host:
        await host.scheduler.schedule_alarm("ring", "1", after=1)
        await trio.sleep(100)
        assert handler.times == []
        assert await host.deliver_native_alarm()
    assert handler.times == [100]


async def test_a_deadline_in_the_past_fires_at_once(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Set at run time, with a time long ago, it is due now (C02)."""
    handler = Times()
    async with open_host(tmp_path / "alarms.db", alarms=serving({"ring": handler})) as host:
        await trio.sleep(7)
        await host.scheduler.schedule_alarm("ring", "1", run_at=datetime(1971, 1, 1, tzinfo=UTC))
        await trio.sleep(0.001)
        assert handler.times == [7]
    assert handler.events[0].scheduled_at == datetime(1971, 1, 1, tzinfo=UTC)


async def test_an_alarm_for_the_very_instant_that_is_being_delivered_is_not_lost(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Set by a handler or by another task, to the same millisecond (R50, R20)."""
    ran: list[tuple[str, float]] = []

    async def ring(event: AlarmDue[Any]) -> None:
        ran.append((event.id, trio.current_time()))
        if event.id == "first":
            await event.host.scheduler.schedule_alarm(
                "paint", "second", run_at=event.host.now(), lifecycle="manual"
            )

    async def paint(event: AlarmDue[Any]) -> None:
        ran.append((event.id, trio.current_time()))
        await event.host.scheduler.cancel_alarm("paint", event.id)

    async with open_host(
        tmp_path / "alarms.db", alarms=serving({"ring": ring}, manual={"paint": paint})
    ) as host:
        await host.scheduler.schedule_alarm("ring", "first", after=3)
        await trio.sleep(10)
    assert ran == [("first", 3), ("second", 3)]


@pytest.mark.parametrize("clock", [None, SystemClock(), TrioClock(NINE)])
@pytest.mark.parametrize(
    "change", ["another is set", "it is moved", "it is cancelled and another set", "a block"]
)
async def test_a_commit_wakes_it_at_once(
    change: str,
    clock: AlarmClock | None,
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asleep for an hour, it fires what another task sets for in 0.2 s then (C06)."""
    WallClock(monkeypatch, NINE)
    handler = Times()
    async with open_host(
        tmp_path / "alarms.db", alarms=serving({"ring": handler}), clock=clock
    ) as host:
        scheduler = host.scheduler
        await scheduler.schedule_alarm("ring", "1", after=3600)
        await trio.sleep(1000)
        if change == "another is set":
            await scheduler.schedule_alarm("ring", "2", after=0.2)
        elif change == "it is moved":
            await scheduler.schedule_alarm_earlier("ring", "1", after=0.2)
        elif change == "a block":
            async with scheduler.transaction() as tx:
                await tx.cancel_alarm("ring", "1")
                await tx.schedule_alarm("ring", "2", after=0.2)
        else:
            await scheduler.cancel_alarm("ring", "1")
            await trio.sleep(10)
            await scheduler.schedule_alarm("ring", "2", after=0.2)
        set_at = trio.current_time()
        await trio.sleep(1)
        assert handler.times == [pytest.approx(set_at + 0.2, abs=0.001)]


async def test_a_cancelled_alarm_does_not_ring_and_one_moved_later_rings_then(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The driver goes by what is stored when it wakes (R50)."""
    handler = Times()
    async with open_host(tmp_path / "alarms.db", alarms=serving({"ring": handler})) as host:
        await host.scheduler.schedule_alarm("ring", "cancelled", after=10)
        await host.scheduler.schedule_alarm("ring", "moved", after=10)
        await trio.sleep(9)
        await host.scheduler.cancel_alarm("ring", "cancelled")
        await host.scheduler.schedule_alarm("ring", "moved", after=10)
        await trio.sleep(100)
    assert handler.times == [19]


async def test_a_commit_between_its_read_and_its_sleep_is_not_missed(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a worker thread has read may be old when the driver gets it (C06)."""
    handler = Times()
    read = HostRuntime.read_state
    holding, reached, go_on = False, trio.Event(), trio.Event()

    async def held_back(self: HostRuntime) -> NativeState:
        state = await read(self)
        if holding:
            reached.set()
            await go_on.wait()
        return state

    monkeypatch.setattr(HostRuntime, "read_state", held_back)
    async with open_host(tmp_path / "alarms.db", alarms=serving({"ring": handler})) as host:
        holding = True
        await host.scheduler.schedule_alarm("ring", "1", after=3600)
        await reached.wait()
        await host.scheduler.schedule_alarm("ring", "2", after=0.2)
        holding = False
        go_on.set()
        await trio.sleep(1)
        assert handler.times == [pytest.approx(0.2)]


@pytest.mark.parametrize("checkpoints", range(16))
async def test_a_commit_soon_after_another_is_not_missed(
    checkpoints: int, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Whatever it is about when the second commit lands (C06)."""
    handler = Times()
    async with open_host(tmp_path / "alarms.db", alarms=serving({"ring": handler})) as host:
        await trio.testing.wait_all_tasks_blocked()
        await host.scheduler.schedule_alarm("ring", "1", after=3600)
        for _ in range(checkpoints):
            await trio.lowlevel.checkpoint()
        await host.scheduler.schedule_alarm("ring", "2", after=0.2)
        await trio.sleep(1)
        assert handler.times == [pytest.approx(0.2)]


async def test_no_wake_is_lost_whatever_tasks_do_meanwhile(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Alarms from three tasks with random yields: each on time (C06)."""
    handler = Times()
    due: dict[str, float] = {}
    source = random.Random(7)  # noqa: S311 - yields are not secret

    async def set_some(host: AlarmHost, who: int) -> None:
        for number in range(60):
            seconds = source.choice([0, 0.001, 0.01, 0.2, 1])
            id = f"{who}/{number}"
            await host.scheduler.schedule_alarm("ring", id, after=seconds)
            due[id] = trio.current_time() + seconds
            for _ in range(source.randrange(4)):
                await trio.lowlevel.checkpoint()
            if source.random() < 0.2:
                await trio.sleep(source.random())

    storage = StorageOptions(synchronous="off")
    async with open_host(
        tmp_path / "alarms.db", alarms=serving({"ring": handler}), storage=storage
    ) as host:
        async with trio.open_nursery() as nursery:
            for who in range(3):
                nursery.start_soon(set_some, host, who)
        await trio.sleep(2)
    assert len(handler.events) == 180
    for event, at in zip(handler.events, handler.times, strict=True):
        assert at == pytest.approx(due[event.id], abs=0.002)


@pytest.mark.real_time
async def test_a_commit_from_a_thread_wakes_it_in_time(tmp_path: Path) -> None:
    """With real threads, real files and the real clock (C06)."""
    handler = Times()
    async with open_host(tmp_path / "alarms.db", alarms=serving({"ring": handler})) as host:
        await host.scheduler.schedule_alarm("ring", "far", after=3600)

        due: dict[str, float] = {}

        def set_from_thread() -> None:
            for number in range(10):
                trio.from_thread.run(schedule, str(number))

        async def schedule(id: str) -> None:
            due[id] = trio.current_time() + 0.05
            await host.scheduler.schedule_alarm("ring", id, after=0.05)

        await trio.to_thread.run_sync(set_from_thread)
        with trio.fail_after(10):
            await handler.until(10)
        for event, time in zip(handler.events, handler.times, strict=True):
            assert time - due[event.id] < 1


# What it goes by.


async def test_a_wall_clock_that_steps_forward_is_noticed_within_a_check_interval(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Due at 09:00, asleep since 08:55; at 08:55:01 it is suddenly 10:00 (C01)."""
    wall = WallClock(monkeypatch, NINE - timedelta(minutes=5))
    handler = Times()
    async with open_host(
        tmp_path / "alarms.db", alarms=serving({"ring": handler}), clock=SystemClock()
    ) as host:
        await host.scheduler.schedule_alarm("ring", "1", run_at=NINE)
        await trio.sleep(1)
        wall.step(3600)
        await trio.sleep(1000)
    assert len(handler.times) == 1
    assert handler.times[0] <= 1 + 30
    assert handler.events[0].scheduled_at == NINE


@pytest.mark.parametrize("check_interval", [0.5, 7])
async def test_the_check_interval_is_the_clocks_own(
    check_interval: float,
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A resume from suspend is noticed by then (C01, R50)."""
    wall = WallClock(monkeypatch, NINE - timedelta(minutes=5))
    handler = Times()
    clock = SystemClock(check_interval=check_interval)
    async with open_host(
        tmp_path / "alarms.db", alarms=serving({"ring": handler}), clock=clock
    ) as host:
        await host.scheduler.schedule_alarm("ring", "1", run_at=NINE)
        await trio.sleep(100)
        wall.step(3600)
        await trio.sleep(100)
    assert len(handler.times) == 1
    assert 100 <= handler.times[0] <= 100 + check_interval


@pytest.mark.parametrize("step", [-30, -7200, 200])
async def test_a_wall_clock_that_steps_while_it_sleeps_makes_nothing_fire_early_or_twice(
    step: float,
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It fires when the wall clock shows the deadline (C01)."""
    wall = WallClock(monkeypatch, NINE - timedelta(minutes=5))
    handler = Times()
    async with open_host(
        tmp_path / "alarms.db", alarms=serving({"ring": handler}), clock=SystemClock()
    ) as host:
        await host.scheduler.schedule_alarm("ring", "1", run_at=NINE)
        await trio.sleep(45)
        wall.step(step)
        await trio.sleep(9000)
    expected = 300 - step
    assert handler.times == [pytest.approx(expected, abs=0.002)]
    assert handler.times[0] >= expected


async def test_a_wall_clock_that_steps_back_after_the_run_repeats_nothing(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handled is handled, and a repeat counts from its completion on the new time (C01, R8)."""
    wall = WallClock(monkeypatch, NINE)
    handler = Times()

    async def ring(event: AlarmDue[Any]) -> None:
        await handler(event)
        if len(handler.times) <= 2:
            wall.step(-3600)

    async with open_host(
        tmp_path / "alarms.db", alarms=serving({"ring": ring}), clock=SystemClock()
    ) as host:
        await host.scheduler.schedule_alarm("ring", "once", after=10)
        await host.scheduler.schedule_alarm("ring", "repeat", after=11, repeat_every=100)
        await trio.sleep(3700)
    ran = [(event.id, round(at)) for event, at in zip(handler.events, handler.times, strict=True)]
    # The repeat's first deadline is an hour further away after the first step.
    assert ran == [("once", 10), ("repeat", 3611)]


class CustomClock:
    """A clock of the application's: wrong in the ways that are asked for."""

    def __init__(self, *, early: float = 0, deaf: bool = False) -> None:
        self._early = early
        self._deaf = deaf
        self.stepped_ms = 0

    def now_ms(self) -> int:
        """Tell the time."""
        return 10**12 + int(trio.current_time() * 1000) + self.stepped_ms

    async def sleep_until_ms(self, deadline: int) -> None:
        """Sleep, perhaps not long enough, perhaps as if no step had ever been."""
        seconds = (deadline - self.now_ms()) / 1000 - self._early
        if self._deaf:
            await trio.sleep(seconds)
        else:
            # A clock that ends early still sleeps a little each time.
            await trio.sleep(max(seconds, 0.0005))


async def test_a_sleep_that_ends_early_dispatches_nothing_early_and_nothing_twice(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Three milliseconds before the deadline it is not yet due (C04)."""
    handler = Times()
    clock = CustomClock(early=0.003)
    async with open_host(
        tmp_path / "alarms.db", alarms=serving({"ring": handler}), clock=clock
    ) as host:
        deadline = clock.now_ms() + 5_000
        await host.scheduler.schedule_alarm("ring", "1", after=5)
        await trio.sleep(10)
    assert len(handler.times) == 1
    assert 10**12 + handler.times[0] * 1000 >= deadline
    assert handler.times[0] < 5.002


async def test_with_any_other_clock_it_looks_again_every_thirty_seconds_of_trios_time(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Also where the clock's own sleep never notices a step (R50)."""
    handler = Times()
    clock = CustomClock(deaf=True)
    async with open_host(
        tmp_path / "alarms.db", alarms=serving({"ring": handler}), clock=clock
    ) as host:
        await host.scheduler.schedule_alarm("ring", "1", after=300)
        await trio.sleep(1)
        clock.stepped_ms += 3_600_000
        await trio.sleep(1000)
    assert handler.times == [30]


def commit_elsewhere(path: Path, now_ms: int) -> None:
    """Bring every alarm forward to `now_ms`, as another process's commit would."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE trio_alarms_alarms SET run_at = ?, wake_at = ?", (now_ms,) * 2)
        connection.execute("UPDATE trio_alarms_hosts SET native_alarm = ?", (now_ms,))


@pytest.mark.parametrize(
    ("clock", "interval"), [(SystemClock(check_interval=12), 12), (CustomClock(), 30)]
)
@pytest.mark.parametrize("armed", ["far", "unset"])
async def test_another_processs_commit_is_noticed_after_a_slice_at_the_latest(
    clock: AlarmClock,
    interval: float,
    armed: str,
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Also by a driver that has nothing to wait for (R50)."""
    handler = Times()
    path = tmp_path / "alarms.db"
    async with open_host(path, alarms=serving({"ring": handler}), clock=clock) as host:
        await host.scheduler.schedule_alarm("ring", "1", after=36_000)
        if armed == "unset":
            with closing(sqlite3.connect(path)) as connection, connection:
                connection.execute("UPDATE trio_alarms_hosts SET native_alarm = NULL")
            await trio.sleep(interval)
        await trio.sleep(100)
        commit_elsewhere(path, clock.now_ms())
        await trio.sleep(interval + 1)
        assert len(handler.times) == 1


async def test_under_a_trio_clock_it_sleeps_in_one_piece(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, native_reads: list[float]
) -> None:
    """Virtual years cost a handful of reads, not millions (R50)."""
    handler = Times()
    async with open_host(tmp_path / "alarms.db", alarms=serving({"ring": handler})) as host:
        await host.scheduler.schedule_alarm("ring", "1", after=timedelta(days=3650))
        await trio.sleep(timedelta(days=3651).total_seconds())
    assert handler.times == [timedelta(days=3650).total_seconds()]
    assert len(native_reads) < 10


async def test_a_delivery_goes_by_what_is_stored(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """And so does `native_alarm.get()`; neither by what this process knows (R50)."""
    handler = Times()
    path = tmp_path / "alarms.db"
    async with open_host(path, alarms=serving({"ring": handler}), driver=False) as host:
        await host.scheduler.schedule_alarm("ring", "1", after=3600)
        commit_elsewhere(path, host.clock.now_ms())
        assert await host.native_alarm.get() == host.now()
        assert await host.deliver_native_alarm()
    assert handler.times == [0]


async def test_a_slow_pass_holds_no_other_host_up(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Hosts of one file each have their own driver and passes (R50)."""
    held, handler = Held(), Times()
    path = tmp_path / "alarms.db"
    async with (
        open_host(path, name="a", alarms=serving({"ring": held})) as a,
        open_host(path, name="b", alarms=serving({"ring": handler})) as b,
    ):
        await a.scheduler.schedule_alarm("ring", "1", after=0)
        await held.until_started(1)
        await b.scheduler.schedule_alarm("ring", "1", after=5)
        await trio.sleep(6)
        assert handler.times == [5]
        held.let_go()


# A pass that runs past its guard.


@pytest.mark.parametrize("leader", ["the driver", "a caller"])
@pytest.mark.parametrize("stage", ["handler", "event scope"])
async def test_the_guard_is_renewed_while_a_pass_runs_and_nothing_is_started(
    leader: str, stage: str, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """No alarm is rescued from a handler that lives, an hour or two (R50, C09)."""
    starts: list[float] = []

    async def ring(event: AlarmDue[Any]) -> None:
        starts.append(trio.current_time())
        if stage == "handler":
            await trio.sleep(3600)

    @asynccontextmanager
    async def scope(_: AlarmHost) -> AsyncIterator[None]:
        yield
        if stage == "event scope" and len(starts) == 1:
            await trio.sleep(3600)

    path = tmp_path / "alarms.db"
    registration = serving({"ring": ring})
    async with open_host(
        path,
        alarms=registration,
        event_scope=scope,
        configuration=ScheduleConfiguration(in_flight_recovery=60),
    ) as host:
        async with trio.open_nursery() as nursery:
            if leader == "a caller":
                await host.scheduler.schedule_alarm("ring", "1", after=1)
                # Asked for before it is due, the caller's delivery is the one that leads.
                nursery.start_soon(deliver, host, 2)
                async with host.scheduler.defer_wakes():
                    await trio.sleep(2.5)
            else:
                await host.scheduler.schedule_alarm("ring", "1", after=0)
            await trio.sleep(10)
            await host.scheduler.schedule_alarm("ring", "2", after=5)
            for _ in range(30):
                await trio.sleep(101)
                armed = await host.native_alarm.get()
                assert armed is not None
                # A commit in the very millisecond of the guard may be about to renew it.
                assert timedelta(0) <= armed - host.now() <= timedelta(seconds=60)
            assert len(starts) == 1
        await trio.sleep(3600)
        assert len(starts) == 2


async def test_a_shorter_guard_of_the_event_scope_is_renewed_in_time(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The dispatch's own guard counts, not the one that the pass began with (R50, R2)."""

    @asynccontextmanager
    async def scope(_: AlarmHost) -> AsyncIterator[None]:
        with schedule_configuration(ScheduleConfiguration(in_flight_recovery=5)):
            yield

    held = Held()
    async with open_host(
        tmp_path / "alarms.db",
        alarms=serving({"ring": held}),
        event_scope=scope,
        configuration=ScheduleConfiguration(in_flight_recovery=3600),
    ) as host:
        await host.scheduler.schedule_alarm("ring", "1", after=0)
        for _ in range(20):
            await trio.sleep(7)
            armed = await host.native_alarm.get()
            assert armed is not None
            assert timedelta(0) <= armed - host.now() <= timedelta(seconds=5)
        held.let_go()


async def test_a_guard_that_a_scopes_way_in_has_set_is_renewed_too(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A pass that takes its time to acquire is as alive as one that dispatches (R50)."""

    @asynccontextmanager
    async def scope(host: AlarmHost) -> AsyncIterator[None]:
        await host.scheduler.schedule_alarm("ring", "2", after=0)
        await trio.sleep(100)
        yield

    handler = Times()
    async with open_host(
        tmp_path / "alarms.db",
        alarms=serving({"ring": handler}),
        event_scope=scope,
        configuration=ScheduleConfiguration(in_flight_recovery=5),
    ) as host:
        await host.scheduler.schedule_alarm("ring", "1", after=0)
        for _ in range(12):
            await trio.sleep(8)
            armed = await host.native_alarm.get()
            assert armed is not None
            assert timedelta(0) <= armed - host.now() <= timedelta(seconds=5)
        assert handler.times == []


async def deliver(host: AlarmHost, delay: float) -> None:
    """Deliver after a while, whether or not the native alarm is due."""
    await trio.sleep(delay)
    await host.deliver_native_alarm(force=True)


async def test_a_guard_that_cannot_be_renewed_is_tried_again_and_the_pass_lives_on(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A locked database costs one log record and no handler (R50, R51)."""
    held = Held()
    path = tmp_path / "alarms.db"
    async with open_host(path, alarms=serving({"ring": held})) as host:
        await host.scheduler.schedule_alarm("ring", "1", after=0)
        await held.until_started(1)
        with locked(path):
            await trio.sleep(60)
        assert len(caplog.records) == 1 + 1  # the storage, and that the pass is slow
        assert held.running == 1
        await trio.sleep(1)
        armed = await host.native_alarm.get()
        assert armed is not None
        assert armed >= host.now()
        held.let_go()
        await trio.sleep(1)
        assert await host.scheduler.list_alarms() == []


# What ends it, and what does not.


async def test_a_failing_pass_is_logged_and_the_driver_goes_on(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """With its traceback; the reconciled native alarm brings the next try (R51)."""
    handler = Times()
    async with open_host(
        tmp_path / "alarms.db", alarms=serving({"ring": handler}, manual={"paint": failing})
    ) as host:
        await host.scheduler.schedule_alarm("paint", "secret", after=0, lifecycle="manual")
        await host.scheduler.schedule_alarm("ring", "1", after=5)
        await trio.sleep(10)
    assert handler.times == [5]
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert record.exc_info is not None
    assert "secret" not in record.getMessage()


async def test_a_base_exception_in_a_handler_ends_the_host(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """It leaves the host's block like any crash of the program (R28, R50)."""

    class StopEverythingError(BaseException):
        pass

    async def ring(event: AlarmDue[Any]) -> None:
        raise StopEverythingError

    async def run() -> None:
        async with open_host(tmp_path / "alarms.db", alarms=serving({"ring": ring})) as host:
            await host.scheduler.schedule_alarm("ring", "1", after=0)
            await trio.sleep_forever()

    with pytest.raises(StopEverythingError):
        await run()


async def test_a_clock_that_fails_does_not_make_it_spin(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """It backs off as from a failing storage, and goes on by itself (R51)."""

    class Broken(CustomClock):
        broken = False
        asked = 0

        def now_ms(self) -> int:
            if self.broken:
                self.asked += 1
                if self.asked > 1000:
                    raise SystemExit("the driver spins")
                raise OSError("no time source")
            return super().now_ms()

    clock, handler = Broken(), Recorder()
    async with open_host(
        tmp_path / "alarms.db", alarms=serving({"ring": handler}), clock=clock
    ) as host:
        await host.scheduler.schedule_alarm("ring", "1", after=600)
        clock.broken = True
        await trio.sleep(1200)
        clock.broken = False
        await trio.sleep(100)
    assert handler.ids == ["1"]
    assert clock.asked < 50
    assert len(caplog.records) < 50


async def test_tables_that_are_gone_do_not_make_it_spin(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    native_reads: list[float],
) -> None:
    """Whatever keeps it from reading the native alarm, it backs off (R51)."""
    path = tmp_path / "alarms.db"
    async with open_host(path, alarms=serving({"ring": failing}), clock=CustomClock()) as host:
        await host.scheduler.schedule_alarm("ring", "1", after=600)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("ALTER TABLE trio_alarms_hosts RENAME TO hidden")
        await trio.sleep(3600)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("ALTER TABLE hidden RENAME TO trio_alarms_hosts")
        await trio.sleep(120)
        status = await host.scheduler.get_alarm_status("ring", "1")
    assert status is not None
    assert status.attempts > 0
    assert len(native_reads) < 100
    assert len(caplog.records) < 100


@pytest.mark.real_time
async def test_the_event_loop_ticks_while_a_worker_thread_waits_for_a_lock(
    tmp_path: Path,
) -> None:
    """The driver survives, and delivers within a second of the release (C21)."""
    handler = Times()
    path = tmp_path / "alarms.db"
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            before = trio.current_time()
            await trio.sleep(0.01)
            longest = max(longest, trio.current_time() - before)

    storage = StorageOptions(executor="thread", busy_timeout=0.3)
    async with open_host(path, alarms=serving({"ring": handler}), storage=storage) as host:
        await host.scheduler.schedule_alarm("ring", "1", after=0.2)
        release = threading.Event()

        def hold() -> None:
            with locked(path):
                release.wait(10)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick)
            nursery.start_soon(trio.to_thread.run_sync, hold)
            await trio.sleep(1.5)
            assert handler.times == []
            release.set()
            released = trio.current_time()
            with trio.fail_after(5):
                await handler.until(1)
            assert handler.times[0] - released < 1.5
            nursery.cancel_scope.cancel()
    assert longest < 1


async def test_a_clock_that_fails_to_sleep_does_not_end_the_pass_it_guards(
    mock_clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """The guard is kept once the clock works again; the handler is not cancelled for it (R50)."""

    class FailingSleep:
        """The harness's clock, with a sleep that is broken."""

        def now_ms(self) -> int:
            """Tell the time."""
            return TrioClock().now_ms()

        async def sleep_until_ms(self, deadline: int) -> None:  # noqa: ARG002 - the protocol has it
            """Fail."""
            raise OSError("no timer is left")

    done: list[str] = []

    async def slow(event: AlarmDue[Any]) -> None:
        await trio.testing.wait_all_tasks_blocked()
        done.append(event.id)

    async with open_host(
        tmp_path / "alarms.db",
        alarms=process_due(slow),
        clock=FailingSleep(),
        storage=StorageOptions(executor="inline"),
    ) as host:
        await host.scheduler.schedule_alarm("ring", "1", after=0)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(60)
        await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked()
    assert done == ["1"]
