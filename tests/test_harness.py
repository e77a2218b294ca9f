from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import trio_alarms
from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmHost,
    AlarmPassError,
    AlarmService,
    DispatchOptions,
    InvalidAlarmRefError,
    InvalidScheduleConfigurationError,
    ScheduleConfiguration,
    StorageOperationError,
    StorageOptions,
    TrioClock,
    process_due,
)
from trio_alarms.testing import AlarmHarness, open_test_host

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
THREAD = StorageOptions(executor="thread")


class Log:
    """A handler that notes when its alarms ran, and lasts as long as their payload says."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, float]] = []
        self.ends: list[tuple[str, float]] = []

    async def handle(self, event: AlarmDue[Any]) -> None:
        """Note, wait, note."""
        self.runs.append((event.id, round(trio.current_time(), 6)))
        if event.payload:
            await trio.sleep(event.payload)
        self.ends.append((event.id, round(trio.current_time(), 6)))

    @property
    def alarms(self) -> Callable[[AlarmHost], Awaitable[object]]:
        """A dispatcher with this handler."""
        return process_due(self.handle)


async def _fail(_: AlarmDue[Any]) -> None:
    raise LookupError("handler")


async def _fail_hook(_: AlarmHost) -> None:
    raise LookupError("hook")


async def _schedule(harness: AlarmHarness, **seconds: float) -> None:
    for id, after in seconds.items():
        await harness.host.scheduler.schedule_alarm("job", id, after=after)


def _stored(harness: AlarmHarness, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(harness.database)) as connection:
        return connection.execute(sql).fetchall()


# Opening one.


async def test_a_harness_needs_a_mock_clock() -> None:
    """Under the real clock the error says what to use instead (api)."""
    with pytest.raises(InvalidScheduleConfigurationError, match="mock_clock"):
        async with open_test_host():
            pytest.fail("it has opened")


async def test_a_harness_is_on_virtual_time_without_a_driver(mock_clock: object) -> None:
    """The defaults: a `TrioClock` from 2000 on, inline storage, no driver (api)."""
    log = Log()
    async with open_test_host(alarms=log.alarms) as harness:
        assert isinstance(harness.host.clock, TrioClock)
        assert harness.host.now() == EPOCH
        await _schedule(harness, a=0)
        await trio.testing.wait_all_tasks_blocked()
        assert log.runs == []


async def test_its_time_begins_at_the_epoch(mock_clock: Any) -> None:
    """Wall time and Trio's time move together (C26)."""
    epoch = datetime(2026, 10, 25, tzinfo=UTC)
    mock_clock.jump(100)
    async with open_test_host(epoch=epoch) as harness:
        assert harness.host.now() == epoch + timedelta(seconds=100)
        await harness.advance(12.345)
        assert harness.host.now() == epoch + timedelta(seconds=112.345)
        assert trio.current_time() == pytest.approx(112.345)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"clock": TrioClock()}, "epoch"),
        ({"alarms": 5}, "alarms"),
        ({"storage": None}, "storage"),
        ({"driver": 2}, "driver"),
        ({"epoch": datetime(2000, 1, 1)}, "epoch"),  # noqa: DTZ001 - naive on purpose
    ],
    ids=["clock", "alarms", "storage", "driver", "epoch"],
)
async def test_a_bad_option_is_refused_bare(
    mock_clock: object, options: dict[str, Any], match: str
) -> None:
    """Errors of opening come out as `open_host` raises them (api)."""
    with pytest.raises(InvalidScheduleConfigurationError, match=match):
        async with open_test_host(**options):
            pytest.fail("it has opened")


async def test_an_unknown_option_is_pythons_type_error(mock_clock: object) -> None:
    """A misspelt option is not ignored (api)."""
    with pytest.raises(TypeError, match="alarm"):
        async with open_test_host(alarm=None):
            pytest.fail("it has opened")


async def test_what_the_body_raises_leaves_as_the_same_object(mock_clock: object) -> None:
    """A failing test fails with its own error (api: Exceptions)."""
    error = AssertionError("of the test")

    async def fail() -> None:
        async with open_test_host():
            raise error

    with pytest.raises(AssertionError) as caught:
        await fail()
    assert caught.value is error


async def test_a_private_database_is_gone_in_the_end(mock_clock: object) -> None:
    """`":memory:"` leaves nothing in the temporary directory (api)."""
    async with open_test_host() as harness:
        directory = Path(harness.database).parent
        await harness.crash()
    assert not directory.exists()


# Moving time.


@pytest.mark.parametrize("driver", ["with", "without"])
@pytest.mark.parametrize("executor", ["inline", "thread"])
async def test_advance_delivers_each_alarm_at_its_own_instant(
    mock_clock: object, executor: Any, driver: str
) -> None:
    """All that falls due on the way runs, each when it is due, and is acknowledged (C26)."""
    log = Log()
    storage = StorageOptions(executor=executor)
    async with open_test_host(
        alarms=log.alarms,
        storage=storage,
        driver=driver == "with",
        configuration=ScheduleConfiguration(minimum_repeat_interval=1),
    ) as harness:
        await _schedule(harness, c=30, a=10, b=10.001, far=60.001)
        await harness.host.scheduler.schedule_alarm("job", "again", after=25, repeat_every=25)
        await harness.advance(60)
        assert log.runs == [
            ("a", 10),
            ("b", 10.001),
            ("again", 25),
            ("c", 30),
            ("again", 50),
        ]
        assert harness.host.now() == EPOCH + timedelta(seconds=60)
        left = [(r.ref.id, r.status.wake_at) for r in await harness.host.scheduler.list_alarms()]
        assert left == [
            ("far", EPOCH + timedelta(seconds=60.001)),
            ("again", EPOCH + timedelta(seconds=75)),
        ]
        await harness.advance(timedelta(milliseconds=1))
        assert log.runs[-1] == ("far", 60.001)


async def test_advance_delivers_what_is_overdue(mock_clock: object) -> None:
    """What is due already runs at once, by an advance of nothing, too (api)."""
    log = Log()
    async with open_test_host(alarms=log.alarms) as harness:
        await _schedule(harness, a=0)
        await harness.advance(0)
        await _schedule(harness, b=5)
        await harness.set_time(EPOCH + timedelta(seconds=20))
        await harness.advance(1)
    assert log.runs == [("a", 0), ("b", 20)]


async def test_advance_follows_chains(mock_clock: object) -> None:
    """What a handler schedules within the time runs on the same advance (C26)."""
    runs: list[float] = []

    async def chain(event: AlarmDue[Any]) -> None:
        runs.append(trio.current_time())
        if len(runs) < 5:
            await event.host.scheduler.schedule_alarm("next", str(len(runs)), after=20)

    async with open_test_host(alarms=process_due(chain)) as harness:
        await _schedule(harness, first=1)
        await harness.advance(100)
    assert runs == pytest.approx([1, 21, 41, 61, 81])


async def test_advance_delivers_retries(mock_clock: object) -> None:
    """A failing handler's retries come at their back-off, each in its turn (R7, C26)."""
    runs: list[float] = []

    async def fail(event: AlarmDue[Any]) -> None:
        runs.append(trio.current_time())
        raise LookupError

    async with open_test_host(alarms=process_due(fail)) as harness:
        await _schedule(harness, a=0)
        await harness.advance(60)
    assert runs == pytest.approx([0, 1, 3, 7, 15, 31])


async def test_other_tasks_run_into_the_new_time(mock_clock: object) -> None:
    """A task of the test that sleeps wakes at its own time on the way (C26)."""
    log: list[str] = []

    async def sleep(seconds: float) -> None:
        await trio.sleep(seconds)
        log.append(f"woken at {trio.current_time():g}")

    async with open_test_host(alarms=Log().alarms) as harness, trio.open_nursery() as nursery:
        nursery.start_soon(sleep, 10)
        await _schedule(harness, a=20)
        await harness.advance(10)
        assert log == ["woken at 10"]
        await harness.advance(20)


@pytest.mark.parametrize("driver", ["with", "without"])
async def test_a_handler_that_waits_needs_a_clock_that_jumps(
    autojump_clock: object, driver: str
) -> None:
    """With `autojump_clock` a handler may wait in virtual time (api)."""
    log = Log()
    async with open_test_host(alarms=log.alarms, driver=driver == "with") as harness:
        await harness.host.scheduler.schedule_alarm("job", "a", after=10, payload=30)
        await harness.advance(20)
        assert log.ends == [("a", 40)]
        assert await harness.host.scheduler.list_alarms() == []


async def test_advance_in_another_task_gives_a_handler_its_time(mock_clock: object) -> None:
    """A delivery in one task, an advance in another: a handler that waits gets on (api)."""
    log = Log()
    async with open_test_host(alarms=log.alarms) as harness:
        await harness.host.scheduler.schedule_alarm("job", "a", after=0, payload=30)
        await _schedule(harness, b=20, c=40)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(harness.deliver)
            await trio.testing.wait_all_tasks_blocked()
            await harness.advance(60)
        assert log.runs == [("a", 0), ("b", 30), ("c", 40)]
        assert log.ends[0] == ("a", 30)
        assert harness.host.now() == EPOCH + timedelta(seconds=60)


async def test_advance_gives_a_handler_of_the_driver_its_time(mock_clock: object) -> None:
    """The driver's handlers wait in virtual time while the harness moves it (api)."""
    log = Log()
    async with open_test_host(alarms=log.alarms, driver=True) as harness:
        await harness.host.scheduler.schedule_alarm("job", "a", after=10, payload=30.5)
        await harness.advance(60)
        assert log.ends == [("a", 40.5)]
        assert harness.host.now() == EPOCH + timedelta(seconds=60)


async def test_advance_returns_when_the_last_handler_has_ended(autojump_clock: object) -> None:
    """A handler that is still running at the end of the time is waited for (C26)."""
    log = Log()
    async with open_test_host(alarms=log.alarms, driver=True) as harness:
        await harness.host.scheduler.schedule_alarm("job", "a", after=10, payload=30)
        await harness.advance(15)
        assert log.ends == [("a", 40)]
        assert await harness.host.scheduler.list_alarms() == []


@pytest.mark.parametrize("duration", [-1, float("nan"), float("inf"), True, "60", None])
async def test_only_a_duration_can_be_advanced(mock_clock: object, duration: Any) -> None:
    """The error names the parameter (api)."""
    async with open_test_host() as harness:
        with pytest.raises(InvalidScheduleConfigurationError, match="duration"):
            await harness.advance(duration)
        assert harness.host.now() == EPOCH


async def test_set_time_delivers_nothing(mock_clock: object) -> None:
    """The clock moves, and what is due stays due (api)."""
    log = Log()
    async with open_test_host(alarms=log.alarms) as harness:
        await _schedule(harness, a=5)
        await harness.set_time(EPOCH + timedelta(days=1))
        await trio.testing.wait_all_tasks_blocked()
        assert log.runs == []
        assert harness.host.now() == EPOCH + timedelta(days=1)
        assert await harness.deliver()
    assert log.runs == [("a", 86_400)]


async def test_set_time_goes_forward_only(mock_clock: object) -> None:
    """An earlier or a naive instant is refused, the present one is not (api)."""
    async with open_test_host() as harness:
        await harness.set_time(EPOCH + timedelta(seconds=5))
        with pytest.raises(InvalidScheduleConfigurationError, match="when"):
            await harness.set_time(EPOCH)
        with pytest.raises(InvalidAlarmRefError, match="when"):
            await harness.set_time(datetime(2027, 1, 1))  # noqa: DTZ001 - naive on purpose
        await harness.set_time(EPOCH + timedelta(seconds=5))
        assert harness.host.now() == EPOCH + timedelta(seconds=5)


# Delivering.


async def test_deliver_is_one_delivery(mock_clock: object) -> None:
    """It says whether one was due, and delivers no second one (api)."""
    log = Log()
    alarms = process_due(log.handle, DispatchOptions(limit=1))
    async with open_test_host(alarms=alarms) as harness:
        assert not await harness.deliver()
        await _schedule(harness, a=0, b=0, later=60)
        assert await harness.deliver()
        assert log.runs == [("a", 0)]
        assert await harness.deliver()
        assert not await harness.deliver()
        assert log.runs == [("a", 0), ("b", 0)]


async def test_settle_delivers_until_nothing_is_due(mock_clock: object) -> None:
    """All that is due now runs, and the clock stays (api)."""
    log = Log()
    alarms = process_due(log.handle, DispatchOptions(limit=1))
    async with open_test_host(alarms=alarms) as harness:
        await _schedule(harness, a=0, b=0, c=0, later=60)
        await harness.settle()
        assert [id for id, _ in log.runs] == ["a", "b", "c"]
        assert harness.host.now() == EPOCH


async def test_a_consumed_native_alarm_delivers_nothing(mock_clock: object) -> None:
    """As a platform that lost it: nothing comes until something reconciles (api)."""
    log = Log()
    async with open_test_host(alarms=log.alarms) as harness:
        await _schedule(harness, a=5)
        await harness.consume_native_alarm()
        assert await harness.host.native_alarm.get() is None
        await harness.advance(60)
        assert log.runs == []
        await _schedule(harness, b=60)
        assert await harness.host.native_alarm.get() == EPOCH + timedelta(seconds=5)
        await harness.advance(0)
        assert log.runs == [("a", 60)]


async def test_a_native_alarm_that_was_consumed_in_a_crash_is_back_at_opening(
    mock_clock: object,
) -> None:
    """Delivered, then killed before anything was written: opening reconciles (R52)."""
    log = Log()
    async with open_test_host(alarms=log.alarms) as harness:
        await _schedule(harness, a=5)
        await harness.consume_native_alarm()
        await harness.crash()
        await harness.reopen()
        await harness.advance(5)
    assert log.runs == [("a", 5)]


# What failed.


async def test_a_delivery_raises_what_its_pass_raised(mock_clock: object) -> None:
    """A failing pass is raised by the call that delivered, not logged (api)."""
    async with open_test_host(raw_alarm=_fail_hook) as harness:
        for call in (harness.deliver, harness.settle, lambda: harness.advance(10)):
            await harness.host.scheduler.schedule_alarm("job", "a", after=0)
            with pytest.raises(LookupError, match="hook"):
                await call()
        await harness.host.scheduler.cancel_alarm("job", "a")


@pytest.mark.parametrize("executor", ["inline", "thread"])
async def test_what_the_driver_met_is_raised_too(mock_clock: object, executor: Any) -> None:
    """A pass in the background that failed is raised once, as it is, by the call (api)."""
    storage = StorageOptions(executor=executor)
    async with open_test_host(raw_alarm=_fail_hook, driver=True, storage=storage) as harness:
        for _ in range(5):
            await _schedule(harness, a=5)
            with pytest.raises(LookupError, match="hook"):
                await harness.advance(5.5)
            await harness.host.scheduler.cancel_alarm("job", "a")
        await harness.advance(5)


async def test_what_failed_after_the_last_call_is_raised_at_the_end(mock_clock: object) -> None:
    """A failure that no call has raised does not get lost (api)."""

    async def leave() -> None:
        async with open_test_host(raw_alarm=_fail_hook, driver=True) as harness:
            await _schedule(harness, a=0)
            await trio.testing.wait_all_tasks_blocked()

    with pytest.raises(LookupError, match="hook"):
        await leave()


async def test_a_failing_handler_is_no_failing_pass(mock_clock: object) -> None:
    """An automatic handler's error is its alarm's business (R28)."""
    async with open_test_host(alarms=process_due(_fail)) as harness:
        await _schedule(harness, a=0)
        assert await harness.deliver()
        status = await harness.host.scheduler.get_alarm_status("job", "a")
        assert status is not None
        assert status.attempts == 1


async def test_who_joined_a_failing_pass_does_not_report_it_again(mock_clock: object) -> None:
    """A check after an event that joins the test's own delivery adds nothing (api)."""
    entered = trio.Event()

    async def fail(_: AlarmHost) -> None:
        entered.set()
        await trio.testing.wait_all_tasks_blocked()
        raise LookupError("hook")

    configuration = ScheduleConfiguration(dispatch_after_event=True)
    async with open_test_host(raw_alarm=fail, configuration=configuration) as harness:
        await _schedule(harness, a=0)
        raised: list[str] = []

        async def deliver() -> None:
            with pytest.raises(LookupError) as caught:
                await harness.deliver()
            raised.append(str(caught.value))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(deliver)
            await entered.wait()
            async with harness.host.event():
                pass
        assert raised == ["hook"]
        await harness.advance(0)


async def test_the_harness_does_not_wait_for_itself(mock_clock: object) -> None:
    """Inside one's own scope or handler a call that would wait is refused at once (R21)."""
    log = Log()
    async with open_test_host(alarms=log.alarms, driver=True) as harness:
        async with harness.host.scheduler.defer_wakes():
            await _schedule(harness, a=0)
            with pytest.raises(AlarmPassError):
                await harness.advance(5)
        await harness.advance(0)
        assert [id for id, _ in log.runs] == ["a"]


# Crashing.


async def test_a_crash_loses_what_was_not_committed(mock_clock: object) -> None:
    """What was committed is there after it, and nothing else; `":memory:"` too (api)."""
    async with open_test_host() as harness:
        await _schedule(harness, durable=60)
        old = harness.host

        async def write() -> None:
            async with old.scheduler.transaction() as tx:
                await tx.schedule_alarm("job", "lost", after=60)
                await harness.crash()

        with pytest.raises(StorageOperationError):
            await write()
        await harness.reopen()
        assert harness.host is not old
        records = await harness.host.scheduler.list_alarms()
        assert [record.ref.id for record in records] == ["durable"]


async def test_after_a_crash_the_old_host_is_refused(mock_clock: object) -> None:
    """Before and after reopening, the host that was lost raises (api)."""
    async with open_test_host(alarms=Log().alarms) as harness:
        old = harness.host
        await harness.crash()
        for _ in range(2):
            for use in (
                old.native_alarm.get,
                old.scheduler.list_alarms,
                old.deliver_native_alarm,
                lambda: old.scheduler.schedule_alarm("job", "a", after=0),
                lambda: old.storage.query("SELECT 1"),
            ):
                with pytest.raises(StorageOperationError):
                    await use()
            with pytest.raises(StorageOperationError):
                old.now()
            await harness.reopen()
        assert await harness.host.scheduler.list_alarms() == []


async def test_between_a_crash_and_reopening_only_time_moves(mock_clock: object) -> None:
    """A process that is down: its calls are refused, the clock goes on (C02)."""
    log = Log()
    async with open_test_host(alarms=log.alarms) as harness:
        await _schedule(harness, a=5)
        await harness.crash()
        for call in (
            harness.deliver,
            harness.settle,
            harness.consume_native_alarm,
            lambda: harness.advance(1),
        ):
            with pytest.raises(StorageOperationError):
                await call()
        await harness.crash()
        await harness.set_time(EPOCH + timedelta(days=3))
        await harness.reopen()
        await harness.settle()
        await harness.advance(60)
    assert log.runs == [("a", 3 * 86_400)]


@pytest.mark.parametrize("lifecycle", ["automatic", "manual"])
async def test_a_crash_inside_a_handler_drops_it(autojump_clock: object, lifecycle: Any) -> None:
    """A delivery under way elsewhere returns False; what was due runs after reopening (C14)."""

    class Jobs(AlarmService, key="app/jobs"):
        job = Alarm(None, tag="job", lifecycle=lifecycle)

    log: list[str] = []
    delivered: list[bool] = []

    async def hang(event: AlarmDue[Any]) -> None:
        log.append("begins")
        try:
            await trio.sleep_forever()
        finally:
            log.append("dropped")

    async def handle(event: AlarmDue[Any]) -> None:
        log.append(f"runs with {event.attempts} attempts")
        await event.host.scheduler.cancel_alarm("job", "a")

    async with open_test_host(alarms=Jobs.handlers(Jobs.job.handled_by(hang))) as harness:
        await harness.host.scheduler.schedule_alarm(Jobs.job, "a", after=0)

        async def deliver() -> None:
            delivered.append(await harness.deliver())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(deliver)
            await trio.testing.wait_all_tasks_blocked()
            await harness.crash()
        assert delivered == [False]
        assert log == ["begins", "dropped"]
        await harness.reopen(alarms=Jobs.handlers(Jobs.job.handled_by(handle)))
        await harness.advance(1)
        assert log[2:] == ["runs with 0 attempts"]
        await harness.advance(3_600)
        assert len(log) == 3


async def test_no_finalizer_writes_after_a_crash(autojump_clock: object) -> None:
    """Handlers, scopes and blocks that clean up find the storage gone (api)."""
    failures: list[str] = []

    async def write(host: AlarmHost, id: str) -> None:
        with trio.CancelScope(shield=True):
            try:
                await host.scheduler.schedule_alarm("job", id, after=0)
            except StorageOperationError:
                failures.append(id)

    async def handle(event: AlarmDue[Any]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            await write(event.host, "of the handler")

    @asynccontextmanager
    async def scope(host: AlarmHost) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await write(host, "of the scope")

    async with open_test_host(alarms=process_due(handle), event_scope=scope) as harness:
        await _schedule(harness, a=0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(harness.deliver)
            await trio.testing.wait_all_tasks_blocked()
            before = _stored(harness, "SELECT * FROM trio_alarms_alarms")
            guard = _stored(harness, "SELECT * FROM trio_alarms_hosts")
            await harness.crash()
        assert failures == ["of the handler", "of the scope"]
        assert _stored(harness, "SELECT * FROM trio_alarms_alarms") == before
        assert _stored(harness, "SELECT * FROM trio_alarms_hosts") == guard


async def test_a_delivery_returns_false_whatever_its_clean_up_raised(
    autojump_clock: object,
) -> None:
    """A lost process raises nothing any more (api)."""
    delivered: list[bool] = []

    async def handle(event: AlarmDue[Any]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await event.host.scheduler.cancel_alarm("job", "a")

    @asynccontextmanager
    async def scope(_: AlarmHost) -> AsyncIterator[None]:
        try:
            yield
        finally:
            raise LookupError("clean-up")

    async with open_test_host(alarms=process_due(handle), event_scope=scope) as harness:
        await _schedule(harness, a=0)

        async def deliver() -> None:
            delivered.append(await harness.host.deliver_native_alarm())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(deliver)
            await trio.testing.wait_all_tasks_blocked()
            await harness.crash()
        assert delivered == [False]
        await harness.reopen(event_scope=None, alarms=Log().alarms)
        await harness.settle()


@pytest.mark.parametrize("how", ["deliver", "advance", "driver", "direct run"])
async def test_a_handler_may_crash_its_own_process(mock_clock: object, how: str) -> None:
    """It dies with the process, and the call that ran it is over (api)."""
    log: list[str] = []

    async def crash(event: AlarmDue[Any]) -> None:
        log.append("begins")
        if len(log) == 1:
            try:
                await harness.crash()
            finally:
                log.append("dies")

    async with open_test_host(alarms=process_due(crash), driver=how == "driver") as harness:
        await _schedule(harness, a=0)
        if how == "deliver":
            assert await harness.deliver() is False
        elif how == "advance":
            await harness.advance(60)
        elif how == "driver":
            await trio.testing.wait_all_tasks_blocked()
        else:
            with pytest.raises(StorageOperationError):
                await harness.host.scheduler.process_due_alarms(crash)
        assert log == ["begins", "dies"]
        await harness.reopen()
        await harness.settle()
        assert log == ["begins", "dies", "begins"]
        assert await harness.host.scheduler.list_alarms() == []


async def test_a_crash_ends_an_advance_that_is_under_way(mock_clock: object) -> None:
    """It does not go on in the next life of the host (api)."""
    log = Log()
    begun, hold = trio.Event(), trio.Event()

    async def handle(event: AlarmDue[Any]) -> None:
        await log.handle(event)
        begun.set()
        await hold.wait()

    async with open_test_host(alarms=process_due(handle)) as harness:
        await _schedule(harness, a=5, b=20)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(harness.advance, 60)
            await begun.wait()
            await harness.crash()
            hold.set()
            await harness.reopen()
        assert log.runs == [("a", 5)]
        assert harness.host.now() == EPOCH + timedelta(seconds=5)
        await harness.advance(60)
        assert log.runs == [("a", 5), ("a", 5), ("b", 20)]


async def test_a_crash_with_tasks_of_the_test_inside_everything(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """Blocks, deferring scopes, events, runs and queued writes of other tasks all end (api)."""
    outcomes: dict[str, str] = {}
    hold = trio.Event()

    async def of(name: str, use: Callable[[AlarmHost], Awaitable[object]]) -> None:
        try:
            await use(harness.host)
            outcomes[name] = "returned"
        except Exception as error:  # noqa: BLE001 - which one is the question
            outcomes[name] = type(error).__name__

    async def event(host: AlarmHost) -> None:
        async with host.event() as scope:
            scope.nursery.start_soon(hold.wait)

    async def defer(host: AlarmHost) -> None:
        async with host.scheduler.defer_wakes():
            await hold.wait()

    async def block(host: AlarmHost) -> None:
        async with host.scheduler.transaction() as tx:
            await tx.schedule_alarm("job", "in the block", after=60)
            await hold.wait()

    async def queued(host: AlarmHost) -> None:
        await host.scheduler.schedule_alarm("job", "queued", after=60)

    uses = {
        "event": event,
        "defer": defer,
        "waiting delivery": lambda host: host.deliver_native_alarm(force=True),
        "block": block,
        "queued": queued,
        "queued block": block,
    }
    async with open_test_host() as harness:
        await _schedule(harness, a=60)
        async with trio.open_nursery() as nursery:
            for name, use in uses.items():
                nursery.start_soon(of, name, use)
                await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(60):
                await harness.crash()
            assert trio.current_time() == 0
            hold.set()
        assert outcomes == {
            "event": "returned",
            "defer": "StorageOperationError",
            "waiting delivery": "returned",
            "block": "StorageOperationError",
            "queued": "StorageOperationError",
            "queued block": "StorageOperationError",
        }
        await harness.reopen()
        records = await harness.host.scheduler.list_alarms()
        assert [record.ref.id for record in records] == ["a"]
        assert await harness.host.native_alarm.get() == EPOCH + timedelta(seconds=60)
    assert caplog.records == []


async def test_a_crash_drops_the_drivers_tasks(mock_clock: object) -> None:
    """A driver's handler is dropped, and so is a check after an event (api)."""
    log: list[str] = []

    async def hang(event: AlarmDue[Any]) -> None:
        log.append(event.id)
        await trio.sleep_forever()

    configuration = ScheduleConfiguration(dispatch_after_event=True)
    async with open_test_host(
        alarms=process_due(hang), driver=True, configuration=configuration
    ) as harness:
        await _schedule(harness, a=0)
        await trio.testing.wait_all_tasks_blocked()
        async with harness.host.event():
            pass
        await harness.crash()
        await trio.testing.wait_all_tasks_blocked()
        assert log == ["a"]
        await harness.reopen(driver=False)
        assert [r.status.attempts for r in await harness.host.scheduler.list_alarms()] == [0]


async def test_a_crash_of_one_host_leaves_the_other_of_its_file_alone(
    mock_clock: object, tmp_path: Path
) -> None:
    """Only the process that was lost is lost (api)."""
    path = tmp_path / "alarms.db"
    async with (
        open_test_host(path, name="one") as one,
        open_test_host(path, name="two", alarms=Log().alarms) as two,
    ):
        await _schedule(one, a=5)
        await _schedule(two, a=5)
        await one.crash()
        await two.advance(5)
        assert await two.host.scheduler.list_alarms() == []
        await one.reopen()
        assert len(await one.host.scheduler.list_alarms()) == 1


# Reopening.


async def test_reopening_leaves_an_open_host_first(autojump_clock: object) -> None:
    """A deploy: the host is drained, and a new one opened over what it left (api)."""
    log = Log()
    async with open_test_host(alarms=log.alarms, driver=True) as harness:
        await harness.host.scheduler.schedule_alarm("job", "a", after=0, payload=2)
        await trio.testing.wait_all_tasks_blocked()
        await harness.reopen()
        assert log.ends == [("a", 2)]
        assert await harness.host.scheduler.list_alarms() == []


async def test_options_of_reopening_stay(mock_clock: object) -> None:
    """Overrides hold from then on; the others are as before (api)."""
    first, second = Log(), Log()
    async with open_test_host(alarms=first.alarms, name="mine") as harness:
        await harness.reopen(alarms=second.alarms)
        await harness.reopen()
        assert harness.host.name == "mine"
        await _schedule(harness, a=0)
        await harness.settle()
    assert first.runs == []
    assert second.runs == [("a", 0)]


async def test_a_reopening_that_fails_changes_no_option(mock_clock: object) -> None:
    """After a refused option the harness can be reopened with good ones (api)."""
    log = Log()
    async with open_test_host(alarms=log.alarms) as harness:
        with pytest.raises(InvalidScheduleConfigurationError, match="clock"):
            await harness.reopen(clock=TrioClock())
        await _schedule(harness, a=0)
        with pytest.raises(InvalidScheduleConfigurationError, match="alarms"):
            await harness.reopen(alarms=5)
        with pytest.raises(StorageOperationError):
            await harness.deliver()
        await harness.reopen()
        await harness.settle()
    assert log.runs == [("a", 0)]


async def test_reopening_reconciles(mock_clock: object) -> None:
    """The guard that a crash left is replaced by the earliest deadline (R52)."""
    async with open_test_host() as harness, trio.open_nursery() as nursery:
        await _schedule(harness, a=60)
        await harness.consume_native_alarm()
        entered, leave = trio.Event(), trio.Event()

        async def defer() -> None:
            with suppress(StorageOperationError):
                async with harness.host.scheduler.defer_wakes():
                    entered.set()
                    await leave.wait()

        nursery.start_soon(defer)
        await entered.wait()
        assert await harness.host.native_alarm.get() == EPOCH + timedelta(seconds=1)
        await harness.crash()
        leave.set()
        await harness.reopen()
        assert await harness.host.native_alarm.get() == EPOCH + timedelta(seconds=60)


async def test_an_alarm_that_is_ensured_at_every_start_stays_one(mock_clock: object) -> None:
    """Restart, ensure: one row, which fires at its stored time (C07)."""
    log = Log()
    async with open_test_host(alarms=log.alarms) as harness:
        await harness.host.scheduler.ensure_alarm("job", "a", after=30)
        await harness.advance(20)
        await harness.reopen()
        await harness.host.scheduler.ensure_alarm("job", "a", after=30)
        assert len(await harness.host.scheduler.list_alarms()) == 1
        await harness.advance(60)
    assert log.runs == [("a", 30)]


async def test_a_repeat_that_is_ensured_at_five_starts_keeps_its_phase(
    mock_clock: object,
) -> None:
    """One row, and the occurrences come as if there had been one start (C07)."""
    log = Log()
    async with open_test_host(alarms=log.alarms) as harness:
        for start in range(5):
            await harness.host.scheduler.ensure_alarm("job", "a", after=60, repeat_every=60)
            await harness.advance(50)
            await (harness.crash() if start % 2 else harness.reopen())
            await harness.reopen()
        assert len(await harness.host.scheduler.list_alarms()) == 1
    assert log.runs == [("a", 60), ("a", 120), ("a", 180), ("a", 240)]


async def test_three_hundred_starts_that_are_killed_deliver_once(mock_clock: object) -> None:
    """However often a process dies after it ensured its alarm: one row, one delivery (C07)."""
    log = Log()
    storage = StorageOptions(executor="inline", synchronous="off")
    async with open_test_host(alarms=log.alarms, storage=storage) as harness:
        for _ in range(300):
            await harness.host.scheduler.ensure_alarm("job", "a", after=300)
            await harness.set_time(harness.host.now() + timedelta(milliseconds=100))
            await harness.crash()
            await harness.reopen()
        assert len(await harness.host.scheduler.list_alarms()) == 1
        await harness.advance(600)
    assert log.runs == [("a", 300)]


# The thread executor, and no flakes.


async def test_a_thread_works_too(mock_clock: object) -> None:
    """With storage in a worker thread the clock is moved by hand (api)."""
    log = Log()
    async with open_test_host(alarms=log.alarms, storage=THREAD) as harness:
        await _schedule(harness, a=5, b=10)
        await harness.advance(5)
        await harness.crash()
        await harness.reopen()
        await harness.advance(60)
        assert log.runs == [("a", 5), ("b", 10)]


async def test_a_slow_thread_does_not_move_the_clock(mock_clock: object) -> None:
    """A pass whose statements take real time is waited for, not advanced (api)."""
    log: list[tuple[str, float]] = []

    async def handle(event: AlarmDue[Any]) -> None:
        async with event.host.storage.transaction() as tx:
            await tx.run_sync(_burn)
        log.append((event.id, trio.current_time()))

    async with open_test_host(alarms=process_due(handle), storage=THREAD, driver=True) as harness:
        await _schedule(harness, a=5)
        await harness.advance(60)
        assert [id for id, _ in log] == ["a"]
        assert log[0][1] == pytest.approx(5)


def _burn(connection: sqlite3.Connection) -> None:
    """Take some hundredths of a second."""
    connection.execute(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000)"
        " SELECT count(*) FROM n"
    ).fetchone()


async def check_repeats(number: int, driver: str) -> None:
    """The same steps over and over have the same result every time."""
    outcomes = set()
    storage = StorageOptions(executor="inline", synchronous="off")
    for _ in range(number):
        log = Log()
        epoch = EPOCH - timedelta(seconds=trio.current_time())
        async with open_test_host(
            alarms=process_due(log.handle, DispatchOptions(concurrency=3)),
            driver=driver == "with",
            storage=storage,
            epoch=epoch,
        ) as harness:
            began = trio.current_time()
            await _schedule(harness, a=1, b=1, c=1, d=2)
            await harness.advance(60)
            assert await harness.host.scheduler.list_alarms() == []
        runs = sorted((id, round(when - began, 3)) for id, when in log.runs)
        outcomes.add(tuple(runs))
    assert outcomes == {(("a", 1), ("b", 1), ("c", 1), ("d", 2))}


@pytest.mark.parametrize("driver", ["with", "without"])
async def test_many_repeats_have_one_outcome(mock_clock: object, driver: str) -> None:
    """All that fell due is handled when advancing returns, at its own instant (C26)."""
    await check_repeats(50, driver)


@pytest.mark.trust
@pytest.mark.parametrize("driver", ["with", "without"])
async def test_a_thousand_repeats_have_one_outcome(mock_clock: object, driver: str) -> None:
    """As above, a thousand times (C26)."""
    await check_repeats(1000, driver)


def test_no_sql_asks_sqlite_for_the_time() -> None:
    """Time comes from the host's clock alone, so that a test can move it (C26)."""
    asks = re.compile(
        r"CURRENT_(TIME|DATE|TIMESTAMP)|\b(strftime|julianday|unixepoch|datetime|date|time)\('"
    )
    package = Path(trio_alarms.__file__).parent
    found = [
        f"{path.name}: {line.strip()}"
        for path in package.rglob("*.py")
        for line in path.read_text().splitlines()
        if asks.search(line)
    ]
    assert found == []
