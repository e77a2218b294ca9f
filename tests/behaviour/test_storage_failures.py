"""A locked database, a full disk, a broken one: nothing is lost, nothing spins (R51, R53)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from trio_alarms import (
    AlarmDue,
    AlarmHost,
    DispatchOptions,
    ScheduleConfiguration,
    StorageOperationError,
    open_host,
)
from trio_alarms._store import _connection

from .conftest import OpenWorld, World
from .services import Held, Recorder, fine, locked, serving

pytestmark = pytest.mark.usefixtures("native_reads")

# What a pass raises: one storage failure, or one of its dispatch and one of reconciling after it.
FAILED = (StorageOperationError, ExceptionGroup)
REPEATS = ScheduleConfiguration(minimum_repeat_interval=1)


class Times:
    """A handler that notes Trio's time at each of its starts."""

    def __init__(self) -> None:
        self.times: list[float] = []

    async def __call__(self, _: AlarmDue[Any]) -> None:
        """Note the time."""
        self.times.append(trio.current_time())


class Fault:
    """A failure of SQLite's at every beginning of a write transaction, while it is switched on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.code: str | None = None
        self.times: list[float] = []
        begin = _connection.Connection.begin

        def faulty_begin(connection: _connection.Connection, *, synced: bool = True) -> None:
            if self.code is not None:
                self.times.append(trio.current_time())
                error = sqlite3.OperationalError("a fault")
                error.sqlite_errorname = self.code
                error.sqlite_errorcode = getattr(sqlite3, self.code)
                raise error
            begin(connection, synced=synced)

        monkeypatch.setattr(_connection.Connection, "begin", faulty_begin)


@contextmanager
def no_acknowledgements(path: Path) -> Iterator[None]:
    """A disk so full that no alarm can be deleted or changed, while everything else works."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for event in ("DELETE", "UPDATE"):
            connection.execute(
                f"CREATE TRIGGER full_{event} BEFORE {event} ON trio_alarms_alarms"
                " BEGIN INSERT INTO ballast VALUES (zeroblob(1000000)); END"
            )
    try:
        yield
    finally:
        with closing(sqlite3.connect(path)) as connection, connection:
            for event in ("DELETE", "UPDATE"):
                connection.execute(f"DROP TRIGGER full_{event}")


async def limit_pages(host: AlarmHost) -> None:
    """Let the file of the host's database not grow by more than it has."""
    async with host.storage.transaction() as tx:
        await tx.execute("CREATE TABLE ballast (bytes BLOB)")
    async with host.storage.transaction() as tx:

        def limit(connection: sqlite3.Connection) -> None:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages + 10}")

        await tx.run_sync(limit)


def storage_records(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged about the storage."""
    return [
        record.getMessage() for record in caplog.records if "storage failed" in record.getMessage()
    ]


# Another process's lock.


async def test_a_locked_database_holds_the_delivery_up_and_no_longer(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver goes on within a second of the release, with one log record (R51, C21)."""
    handler = Times()
    path = tmp_path / "alarms.db"
    async with open_host(path, alarms=serving({"ring": handler})) as host:
        await host.scheduler.schedule_alarm("ring", "1", after=5)
        with locked(path):
            await trio.sleep(35)
            assert handler.times == []
        await trio.sleep(1)
        assert len(handler.times) == 1
        assert await host.scheduler.list_alarms() == []
    (record,) = storage_records(caplog)
    assert "SQLITE_BUSY" in record
    assert len(caplog.records) == 1


async def test_no_handler_starts_without_a_guard(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """While the guard cannot be committed, a crash would not bring the alarm back (R22)."""
    handler = Recorder()
    world = await open_inline_world(alarms=serving({"ring": handler}))
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    before = world.rows()
    with locked(world.path):
        for _ in range(2):
            with pytest.raises(FAILED):
                await world.host.deliver_native_alarm()
    assert handler.ids == []
    assert world.rows() == before
    await world.host.deliver_native_alarm()
    assert handler.ids == ["1"]


async def test_each_episode_is_logged_once_per_cause(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ends with the first delivery that succeeds; then the same cause is news again (R51)."""
    fault, handler = Fault(monkeypatch), Times()
    async with open_host(tmp_path / "alarms.db", alarms=serving({"ring": handler})) as host:
        for expected in (
            ["SQLITE_FULL", "SQLITE_IOERR"],
            ["SQLITE_FULL"],
            ["SQLITE_IOERR", "SQLITE_FULL"],
        ):
            caplog.clear()
            handler.times.clear()
            await host.scheduler.schedule_alarm("ring", "1", after=10)
            for code in (*expected, *expected):
                fault.code = code
                await trio.sleep(600)
            fault.code = None
            await trio.sleep(100)
            assert len(handler.times) == 1
            assert [
                code for record in storage_records(caplog) for code in expected if code in record
            ] == expected
            assert len(caplog.records) == len(expected)


@pytest.mark.parametrize("code", ["SQLITE_FULL", "SQLITE_IOERR"])
async def test_a_full_disk_is_tried_again_with_a_delay_that_doubles_up_to_a_minute(
    code: str,
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """About sixty tries in an hour; it goes on by itself when space returns (R51, C23)."""
    fault, handler = Fault(monkeypatch), Times()
    async with open_host(tmp_path / "alarms.db", alarms=serving({"ring": handler})) as host:
        await host.scheduler.schedule_alarm("ring", "1", after=0)
        fault.code = code
        await trio.sleep(3600)
        tries = sorted(set(fault.times))
        assert tries[:8] == [0, 1, 3, 7, 15, 31, 63, 123]
        assert {late - early for early, late in pairwise(tries[7:])} == {60}
        assert len(fault.times) <= 3 * len(tries)
        fault.code = None
        await trio.sleep(61)
    assert len(handler.times) == 1


async def test_the_back_off_begins_anew_after_a_delivery_that_succeeds(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Yesterday's full disk does not delay today's recovery (R51)."""
    fault, handler = Fault(monkeypatch), Times()
    async with open_host(tmp_path / "alarms.db", alarms=serving({"ring": handler})) as host:
        for _ in range(2):
            fault.times.clear()
            await host.scheduler.schedule_alarm("ring", "1", after=1)
            fault.code = "SQLITE_FULL"
            await trio.sleep(200)
            fault.code = None
            await trio.sleep(100)
            first, second = sorted(set(fault.times))[:2]
            assert second - first == 1
    assert len(handler.times) == 2


@pytest.mark.parametrize("seconds", [120, pytest.param(600, marks=pytest.mark.trust)])
async def test_a_locked_database_is_tried_every_half_second(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
    seconds: int,
) -> None:
    """After the waiting of each try, without any growing delay (R51)."""
    fault = Fault(monkeypatch)
    async with open_host(tmp_path / "alarms.db", alarms=serving({"ring": fine})) as host:
        await host.scheduler.schedule_alarm("ring", "1", after=0)
        fault.code = "SQLITE_BUSY"
        await trio.sleep(seconds)
        tries = sorted(set(fault.times))
        assert max(late - early for early, late in pairwise(tries)) == pytest.approx(0.5)


async def test_a_corrupt_database_ends_the_host(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to wait for (R51)."""
    fault = Fault(monkeypatch)

    async def run() -> None:
        async with open_host(tmp_path / "alarms.db", alarms=serving({"ring": fine})) as host:
            await host.scheduler.schedule_alarm("ring", "1", after=10)
            fault.code = "SQLITE_CORRUPT"
            await trio.sleep_forever()

    with pytest.raises(StorageOperationError) as caught:
        await run()
    assert isinstance(caught.value.__cause__, sqlite3.Error)
    assert trio.current_time() == 10


async def test_a_really_corrupt_database_ends_the_host(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A damaged page is noticed when it is read (R51)."""
    path = tmp_path / "alarms.db"
    async with open_host(path, driver=False) as host:
        await host.scheduler.schedule_alarm("ring", "1", after=10)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'trio_alarms_alarms'"
        ).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)

    async def run() -> None:
        async with open_host(path, alarms=serving({"ring": fine})):
            await trio.sleep_forever()

    with trio.fail_after(100), pytest.raises(StorageOperationError):
        await run()


# Handled, but not acknowledged.


async def hold_acknowledgement(world: World, held: Held, seconds: float) -> None:
    """Deliver, and keep the database locked from the handler's end on for so many seconds."""
    async with trio.open_nursery() as nursery:

        async def deliver() -> None:
            with pytest.raises(FAILED):
                await world.host.deliver_native_alarm()

        nursery.start_soon(deliver)
        await held.until_started(1)
        with locked(world.path):
            held.let_go()
            await trio.sleep(seconds)


async def test_what_was_handled_while_the_storage_failed_is_not_run_again(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """The acknowledgement is retried instead, until it works (R53)."""
    held = Held()
    world = await open_inline_world(alarms=serving({"ring": held}))
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    await hold_acknowledgement(world, held, 30)
    assert [row.attempts for row in world.rows()] == [0]
    with locked(world.path), pytest.raises(FAILED):
        await world.host.deliver_native_alarm()
    assert len(world.rows()) == 1
    assert await world.host.deliver_native_alarm()
    assert world.rows() == []
    assert held.started == ["1"]


async def test_a_handler_that_ends_while_another_process_writes_is_acknowledged_afterwards(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Locked for 30 s from its end on: one run, and gone within a second of the release (C21)."""
    held = Held()
    path = tmp_path / "alarms.db"
    async with open_host(path, alarms=serving({"ring": held})) as host:
        await host.scheduler.schedule_alarm("ring", "1", after=0)
        await held.until_started(1)
        with locked(path):
            held.let_go()
            await trio.sleep(30)
        await trio.sleep(1)
        assert await host.scheduler.list_alarms() == []
        assert held.started == ["1"]
    assert len(storage_records(caplog)) == 1


async def test_a_disk_that_is_full_at_the_acknowledgement_costs_one_run_and_one_record(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """For an hour the driver backs off; when space returns it goes on by itself (C23)."""
    handler = Times()
    path = tmp_path / "alarms.db"
    async with open_host(path, alarms=serving({"ring": handler})) as host:
        await limit_pages(host)
        await host.scheduler.schedule_alarm("ring", "1", after=5)
        with no_acknowledgements(path):
            await trio.sleep(3600)
            assert handler.times == [5]
            assert len(await host.scheduler.list_alarms()) == 1
        await trio.sleep(61)
        assert await host.scheduler.list_alarms() == []
    assert handler.times == [5]
    (record,) = storage_records(caplog)
    assert "SQLITE_FULL" in record
    assert len(caplog.records) == 1


async def test_a_remembered_repeat_advances_from_when_it_was_completed(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """Not from when that could be stored (R53, R8)."""
    held = Held()
    world = await open_inline_world(alarms=serving({"ring": held}), configuration=REPEATS)
    await world.host.scheduler.schedule_alarm("ring", "1", after=0, repeat_every=60)
    await trio.sleep(2)
    await hold_acknowledgement(world, held, 30)
    await world.host.deliver_native_alarm()
    (row,) = world.rows()
    assert (row.run_at, row.attempts) == (62_000, 0)
    assert held.started == ["1"]


async def test_a_skip_that_could_not_be_stored_is_remembered_too(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """Skipping is an acknowledgement (R53, R28)."""
    held = Held(ValueError("skip me"))
    world = await open_inline_world(
        alarms=serving({"ring": held}, failure="skip-and-advance-repeat")
    )
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    await hold_acknowledgement(world, held, 30)
    await world.host.deliver_native_alarm()
    assert world.rows() == []
    assert held.started == ["1"]


async def test_a_failure_that_could_not_be_stored_runs_again_uncharged(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """It is not remembered (R53)."""
    held = Held(ValueError("no"))
    world = await open_inline_world(alarms=serving({"ring": held}))
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    await hold_acknowledgement(world, held, 30)
    assert [row.attempts for row in world.rows()] == [0]
    await world.host.deliver_native_alarm()
    assert held.started == ["1", "1"]
    assert [row.attempts for row in world.rows()] == [1]


async def test_what_is_scheduled_anew_is_not_taken_for_what_was_handled(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """What is remembered is the revision (R53)."""
    held = Held()
    world = await open_inline_world(alarms=serving({"ring": held}))
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    await hold_acknowledgement(world, held, 30)
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    await world.host.deliver_native_alarm()
    assert held.started == ["1", "1"]
    assert world.rows() == []


async def test_an_earlier_schedule_for_what_is_handled_but_not_acknowledged_takes_its_deadline(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """It is in hand until it is acknowledged, so it has no deadline left to keep (R6, R53)."""
    held = Held()
    world = await open_inline_world(alarms=serving({"ring": held}))
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    await hold_acknowledgement(world, held, 30)
    await world.host.scheduler.schedule_alarm_earlier("ring", "1", after=50)
    (row,) = world.rows()
    assert row.run_at - world.now() == 50_000
    await world.harness.advance(49)
    assert held.started == ["1"]
    await world.harness.advance(1)
    assert held.started == ["1", "1"]
    assert world.rows() == []
    await world.host.scheduler.schedule_alarm("ring", "1", after=1)
    await world.host.scheduler.schedule_alarm_earlier("ring", "1", after=50)
    assert world.rows()[0].run_at - world.now() == 1_000


async def test_what_is_cancelled_while_it_is_remembered_is_gone(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """A later alarm of the same identity is a fresh one (R53, R9)."""
    held = Held()
    world = await open_inline_world(alarms=serving({"ring": held}))
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    await hold_acknowledgement(world, held, 30)
    await world.host.scheduler.cancel_alarm("ring", "1")
    await world.harness.settle()
    assert held.started == ["1"]
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    await world.host.deliver_native_alarm()
    assert held.started == ["1", "1"]


async def test_a_new_process_does_not_remember(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """Handled at least once: after a crash the handler runs again (R53, R52)."""
    held = Held()
    world = await open_inline_world(alarms=serving({"ring": held}))
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    await hold_acknowledgement(world, held, 30)
    await world.harness.crash()
    await world.harness.reopen()
    await world.harness.deliver()
    assert held.started == ["1", "1"]
    assert world.rows() == []


async def test_what_had_not_begun_when_the_storage_failed_is_left_as_it_is(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """A dispatch that cannot write starts no more handlers (R53)."""
    held = Held()
    world = await open_inline_world(alarms=serving({"ring": held}))
    for id in "123":
        await world.host.scheduler.schedule_alarm("ring", id, after=0)
    before = world.rows()
    await hold_acknowledgement(world, held, 30)
    assert held.started == ["1"]
    assert world.rows() == before
    await world.host.deliver_native_alarm()
    assert held.started == ["1", "2", "3"]
    assert world.rows() == []


async def test_those_that_run_beside_it_are_remembered_each(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """All that were handled are acknowledged with the next delivery and none runs again (R53)."""
    held = Held()
    world = await open_inline_world(
        alarms=serving({"ring": held}, options=DispatchOptions(concurrency=3))
    )
    for id in "1234":
        await world.host.scheduler.schedule_alarm("ring", id, after=0)
    async with trio.open_nursery() as nursery:

        async def deliver() -> None:
            with pytest.raises(FAILED):
                await world.host.deliver_native_alarm()

        nursery.start_soon(deliver)
        await held.until_started(3)
        with locked(world.path):
            held.let_go()
            await trio.sleep(60)
    assert sorted(held.started) == ["1", "2", "3"]
    await world.host.deliver_native_alarm()
    assert sorted(held.started) == ["1", "2", "3", "4"]
    assert world.rows() == []


async def test_a_direct_run_remembers_as_well_and_its_result_says_what_was_handled(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """The memory is the process's, not one pass's (R53, R25)."""
    held = Held()
    world = await open_inline_world(alarms=serving({"ring": held}))
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    await hold_acknowledgement(world, held, 30)
    result = await world.host.scheduler.process_due_alarms(held)
    assert [event.id for event in result.handled] == ["1"]
    assert held.started == ["1"]
    assert world.rows() == []


async def test_a_handler_whose_own_writes_fail_has_failed(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """What its calls raise is its failure; charged once the storage works (R28)."""

    async def ring(event: AlarmDue[Any]) -> None:
        with locked(world.path):
            await event.host.scheduler.schedule_alarm("other", "1", after=0)

    world = await open_inline_world(alarms=serving({"ring": ring}))
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    await world.host.deliver_native_alarm()
    assert [(row.id, row.attempts) for row in world.rows()] == [("1", 1)]


async def test_a_pass_that_cannot_reconcile_leaves_its_guard(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """So that the next try comes, whoever dies meanwhile (R51, R18)."""
    held = Held()
    world = await open_inline_world(alarms=serving({"ring": held}))
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    await world.host.scheduler.schedule_alarm("ring", "2", after=timedelta(days=9))
    await hold_acknowledgement(world, held, 30)
    assert world.native_alarm() == 1_000
    await world.harness.crash()
    await world.harness.reopen()
    assert world.native_alarm() == 0


async def test_an_acknowledgement_in_the_handlers_own_transaction_is_retried_by_the_handler(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """Where that transaction fails, nothing was handled, and the alarm is charged (R36, R53)."""
    ran: list[int] = []

    async def ring(event: AlarmDue[Any]) -> None:
        ran.append(event.attempts)
        async with event.host.scheduler.transaction() as tx:
            await tx.execute("CREATE TABLE IF NOT EXISTS done (id TEXT PRIMARY KEY)")
            await tx.acknowledge(event)
            if len(ran) == 1:
                raise OSError

    world = await open_inline_world(alarms=serving({"ring": ring}))
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    await world.harness.advance(5)
    assert ran == [0, 1]
    assert world.rows() == []


async def test_memory_of_what_was_handled_does_not_grow(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """It is held only while the revision stands (R53)."""
    held = Held()
    world = await open_inline_world(alarms=serving({"ring": held}))
    for id in ("acknowledged", "cancelled", "scheduled anew"):
        held.started.clear()
        await world.host.scheduler.schedule_alarm("ring", id, after=0)
        await hold_acknowledgement(world, held, 30)
        assert list(unacknowledged(world)) == [id]
        if id == "cancelled":
            await world.host.scheduler.cancel_alarm("ring", id)
        elif id == "scheduled anew":
            await world.host.scheduler.schedule_alarm("ring", id, after=1)
        await world.harness.advance(5)
        await world.host.deliver_native_alarm(force=True)
        assert unacknowledged(world) == []
        assert world.host._runtime.writer.in_hand == {}
    assert world.rows() == []


def unacknowledged(world: World) -> list[str]:
    """The ids of what the host remembers as handled."""
    return [ref.id for ref in world.host._runtime.dispatch_state.unacknowledged]
