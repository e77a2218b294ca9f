"""What a process that died, or was left, comes back to (R52)."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from trio_alarms import (
    AlarmDue,
    DispatchOptions,
    ScheduleConfiguration,
    StorageOptions,
    TrioClock,
    open_host,
)

from .conftest import OpenWorld
from .services import Held, Recorder, fine, locked, serving

pytestmark = pytest.mark.usefixtures("native_reads")

START = datetime(2026, 3, 1, 9, tzinfo=UTC)
REPEATS = ScheduleConfiguration(minimum_repeat_interval=1)


class Times:
    """A handler that notes Trio's time at each of its starts, and its events."""

    def __init__(self, seconds: float = 0) -> None:
        self.times: list[float] = []
        self.events: list[AlarmDue[Any]] = []
        self.running = 0
        self.most = 0
        self._seconds = seconds

    async def __call__(self, event: AlarmDue[Any]) -> None:
        """Note the time, and run for as long as was asked."""
        self.times.append(trio.current_time())
        self.events.append(event)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self._seconds:
                await trio.sleep(self._seconds)
        finally:
            self.running -= 1


@pytest.mark.parametrize("end", ["crashed", "left"])
@pytest.mark.parametrize("days", [0.1, 3, 400])
async def test_what_fell_due_while_no_process_ran_fires_once_at_the_next_opening(
    end: str, days: float, open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """Within a second, with its own deadline as `scheduled_at` (C02)."""
    handler = Times()
    world = await open_inline_world(alarms=serving({"ring": handler}), driver=True, epoch=START)
    await world.host.scheduler.schedule_alarm("ring", "1", after=3600)
    await trio.sleep(5)
    if end == "crashed":
        await world.harness.crash()
    else:
        await world.harness.close()
    await trio.sleep(timedelta(days=days).total_seconds())
    assert handler.times == []
    opened = trio.current_time()
    await world.harness.reopen()
    await trio.sleep(1)
    assert len(handler.times) == 1
    assert handler.times[0] - opened < 1
    assert handler.events[0].scheduled_at == START + timedelta(seconds=3600)
    await trio.sleep(10_000)
    assert len(handler.times) == 1


@pytest.mark.parametrize("periods", [1, 10, 1000])
async def test_a_repeat_catches_no_missed_occurrence_up(
    periods: int, open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """One run at the opening, then the next a period after its completion (C05, R8)."""
    handler = Times(seconds=2)
    world = await open_inline_world(
        alarms=serving({"ring": handler}), driver=True, configuration=REPEATS
    )
    await world.host.scheduler.schedule_alarm("ring", "1", after=10, repeat_every=10)
    await world.harness.close()
    await trio.sleep(10 * periods + 5)
    opened = trio.current_time()
    await world.harness.reopen()
    await trio.sleep(15)
    assert handler.times == [opened, opened + 12]


async def test_a_handler_slower_than_its_period_never_overlaps_itself(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """The period counts from its completion, beside a driver and direct runs (C05)."""
    handler = Times(seconds=25)
    registration = serving({"ring": handler})
    world = await open_inline_world(alarms=registration, driver=True, configuration=REPEATS)
    await world.host.scheduler.schedule_alarm("ring", "1", after=0, repeat_every=10)
    for _ in range(10):
        await trio.sleep(7)
        with trio.move_on_after(1):
            await registration.run(world.host)
    assert handler.most == 1
    assert handler.times[:2] == [0, 35]


@pytest.mark.parametrize(("lifecycle", "tag"), [("automatic", "ring"), ("manual", "paint")])
async def test_leaving_gives_running_handlers_their_time_and_starts_nothing_anew(
    lifecycle: Any, tag: str, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """0.5 s and 60 s left, and a drain of 2 s: one acknowledged, one due again (C11).

    The automatic one without a charge; a manual one has no attempts to be charged.
    """
    ended: list[str] = []
    started: list[str] = []

    async def ring(event: AlarmDue[Any]) -> None:
        started.append(event.id)
        await trio.sleep(0.5 if event.id == "short" else 60)
        ended.append(event.id)

    path = tmp_path / "alarms.db"
    options = DispatchOptions(concurrency=2 if lifecycle == "automatic" else 1)
    registration = serving({"ring": ring}, manual={"paint": ring}, options=options)
    async with open_host(path, alarms=registration, drain_timeout=2) as host:
        async with host.scheduler.transaction() as tx:
            await tx.schedule_alarm(tag, "long", after=0, lifecycle=lifecycle)
            await tx.schedule_alarm("ring", "short", after=0)
            await tx.schedule_alarm("ring", "waiting", after=0)
        while len(started) < 2:
            await trio.testing.wait_all_tasks_blocked()
        left = trio.current_time()
    assert trio.current_time() - left == 2
    assert sorted(started) == ["long", "short"]
    assert ended == ["short"]
    handler = Recorder()
    async with open_host(path, alarms=serving({"ring": handler}, manual={"paint": handler})):
        await trio.sleep(2)
    assert sorted(handler.ids) == ["long", "waiting"]
    charged = {event.id: event.attempts for event in handler.events if event.tag == "ring"}
    assert charged == ({"long": 0} if lifecycle == "automatic" else {}) | {"waiting": 0}


async def test_an_automatic_handler_cut_off_by_leaving_is_charged_nothing(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """However often it happens: the eighth time is no parking (C11, R28)."""
    held = Held()
    path = tmp_path / "alarms.db"
    async with open_host(path, driver=False) as host:
        await host.scheduler.schedule_alarm("ring", "1", after=0)
    for number in range(10):
        async with open_host(path, alarms=serving({"ring": held}), drain_timeout=0):
            await held.until_started(number + 1)
    held.let_go()
    async with open_host(path, alarms=serving({"ring": held})) as host:
        await trio.sleep(1)
        assert await host.scheduler.list_alarms() == []
    assert len(held.started) == 11
    assert len(held.cancelled) == 10


async def test_opening_writes_nothing_where_the_native_alarm_is_right(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """No row and no schema is changed by it, nor by leaving (R52)."""
    path = tmp_path / "alarms.db"
    async with open_host(path, driver=False) as host:
        await host.scheduler.schedule_alarm("ring", "1", after=1000)
    with closing(sqlite3.connect(path)) as watcher:
        before = watcher.execute("PRAGMA data_version").fetchone()
        # It does not even ask for the lock.
        with locked(path):
            async with open_host(path, alarms=serving({"ring": fine})):
                pass
            assert trio.current_time() == 0
        async with open_host(path, alarms=serving({"ring": fine})) as host:
            await trio.sleep(10)
            assert await host.native_alarm.get() == datetime(2000, 1, 1, 0, 16, 40, tzinfo=UTC)
        assert watcher.execute("PRAGMA data_version").fetchone() == before


@pytest.mark.parametrize("driver", [True, False])
@pytest.mark.parametrize("lifecycle", ["automatic", "manual"])
async def test_a_kill_in_a_handler_brings_it_back_without_any_setting(
    driver: bool,  # noqa: FBT001 - a parameter of the test
    lifecycle: Any,
    open_inline_world: OpenWorld,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """At once, or at its in-flight deadline where it is manual (C14, R52)."""
    held = Held()
    registration = (
        serving({"ring": held}) if lifecycle == "automatic" else serving(manual={"ring": held})
    )
    world = await open_inline_world(alarms=registration, driver=driver)
    await world.host.scheduler.schedule_alarm("ring", "1", after=0, lifecycle=lifecycle)
    async with trio.open_nursery() as nursery:
        if not driver:
            nursery.start_soon(world.host.deliver_native_alarm)
        await held.until_started(1)
        await trio.sleep(0.25)
        await world.harness.crash()
    reopened = trio.current_time()
    await world.harness.reopen()
    due = 0.25 if lifecycle == "automatic" else 1
    if not driver:
        assert world.native_alarm() == (0 if lifecycle == "automatic" else 1000)
        await trio.sleep_until(due)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.host.deliver_native_alarm)
            await held.until_started(2)
            held.let_go()
    else:
        await held.until_started(2)
        held.let_go()
    assert trio.current_time() == due
    assert trio.current_time() - reopened < 1


async def test_crashes_in_quick_succession_lose_and_double_nothing_that_was_acknowledged(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """A process that dies every few instants still works everything off (R52)."""
    handler = Times(seconds=0.3)
    world = await open_inline_world(
        alarms=serving({"ring": handler}),
        driver=True,
        storage=StorageOptions(executor="inline", synchronous="off"),
    )
    ids = [f"{number:02}" for number in range(20)]
    async with world.host.scheduler.transaction() as tx:
        for number, id in enumerate(ids):
            await tx.schedule_alarm("ring", id, after=0.1 * number)
    # After so many runs, these were acknowledged.
    acknowledged: list[tuple[int, set[str]]] = []
    while world.rows():
        await trio.sleep(0.35 + 0.07 * (len(acknowledged) % 9))
        await world.harness.crash()
        acknowledged.append((len(handler.events), set(ids) - {row.id for row in world.rows()}))
        await world.harness.reopen()
        assert len(acknowledged) < 200
    assert len(acknowledged) > 10
    for runs, settled in acknowledged:
        assert not {event.id for event in handler.events[runs:]} & settled
    assert {event.id for event in handler.events} == set(ids)
    assert world.native_alarm() is None


CHILD = """
import sys
import trio
from trio_alarms import Alarm, AlarmService, open_host

class Service(AlarmService, key="service"):
    ring = Alarm(None)
    paint = Alarm(None, lifecycle="manual")

async def run(event):
    print(event.tag, flush=True)
    if sys.argv[2] == "dies":
        await trio.sleep_forever()
    async with event.host.scheduler.transaction() as tx:
        await tx.cancel_alarm(event.tag, event.id)

async def main():
    registration = Service.handlers(Service.ring.handled_by(run), Service.paint.handled_by(run))
    async with open_host(sys.argv[1], alarms=registration) as host:
        if sys.argv[2] == "dies":
            await host.service(Service).schedule_alarm(Service.ring, "1", after=0)
            await host.service(Service).schedule_alarm(Service.paint, "1", after=0)
        else:
            print("open", flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@pytest.mark.real_time
def test_after_sigkill_in_both_kinds_of_handlers_both_run_again(tmp_path: Path) -> None:
    """Within a second of opening: at once, and at an in-flight deadline that is no later (C14)."""
    path = tmp_path / "alarms.db"

    def start(mode: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path), mode], stdout=subprocess.PIPE, text=True
        )

    in_flight = 0.0
    for mode in ("dies", "lives"):
        with start(mode) as child:
            assert child.stdout is not None
            try:
                if mode == "lives":
                    assert child.stdout.readline() == "open\n"
                opened = time.time()
                ran = {child.stdout.readline(): time.time() for _ in range(2)}
                assert sorted(ran) == ["paint\n", "ring\n"]
                if mode == "lives":
                    assert ran["ring\n"] - opened < 1
                    assert in_flight - opened < 1
                    assert ran["paint\n"] - max(opened, in_flight) < 1
                    while tags_of(path):
                        assert time.time() - opened < 10
                        time.sleep(0.02)
                else:
                    assert tags_of(path) == ["paint", "ring"]
            finally:
                child.kill()
        if mode == "dies":
            in_flight = wake_of(path, "paint")


def wake_of(path: Path, tag: str) -> float:
    """When the alarm of a tag is due, in seconds since 1970."""
    query = "SELECT wake_at FROM trio_alarms_alarms WHERE tag = ?"
    with closing(sqlite3.connect(path)) as connection:
        (found,) = connection.execute(query, (tag,)).fetchone()
    return float(found) / 1000


def tags_of(path: Path) -> list[str]:
    """The tags that are stored."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT tag FROM trio_alarms_alarms ORDER BY tag").fetchall()
    return [tag for (tag,) in found]


async def test_a_cancelled_alarm_stays_cancelled_over_a_crash_in_its_handler(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """And a later schedule is a fresh alarm (C13)."""
    held = Held()
    world = await open_inline_world(alarms=serving({"ring": held}))
    await world.host.scheduler.schedule_alarm("ring", "1", after=0, repeat_every=60)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        await held.until_started(1)
        assert await world.host.scheduler.cancel_alarm("ring", "1")
        await world.harness.crash()
    await world.harness.reopen()
    assert world.rows() == []
    assert world.native_alarm() is None
    held.let_go()
    status = await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    assert status.attempts == 0
    await world.harness.settle()
    assert held.started == ["1", "1"]
    assert isinstance(world.host.clock, TrioClock)
