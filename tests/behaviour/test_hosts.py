from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmHost,
    AlarmService,
    InvalidAlarmRefError,
    InvalidAlarmRegistrationError,
    InvalidScheduleConfigurationError,
    ScheduleConfiguration,
    StorageOperationError,
    StorageOptions,
    SystemClock,
    TrioClock,
    define,
    open_host,
    process_due,
)


class Jobs(AlarmService, key="app/jobs"):
    """A registered service."""

    job = Alarm(None, tag="job")


class Others(AlarmService, key="app/others"):
    """A service that is not registered."""

    job = Alarm(None, tag="other")


async def _ignore(_: AlarmDue[Any]) -> None:
    pass


def _synchronous(_: object) -> None:
    pass


JOBS = Jobs.handlers(Jobs.job.handled_by(_ignore))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The database of the test."""
    return tmp_path / "alarms.db"


def _rows(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(
            "SELECT host, id FROM trio_alarms_alarms ORDER BY host, id"
        ).fetchall()


# What a host is.


async def test_a_host_knows_its_name_and_its_time(path: Path, mock_clock: Any) -> None:
    """The public face of an open host (api)."""
    clock = TrioClock(datetime(2026, 1, 1, tzinfo=UTC))
    async with open_host(path, name="mine", clock=clock) as host:
        assert host.name == "mine"
        assert host.clock is clock
        assert host.now() == datetime(2026, 1, 1, tzinfo=UTC)
        mock_clock.jump(90)
        assert host.now() == datetime(2026, 1, 1, 0, 1, 30, tzinfo=UTC)
        assert host.now().tzinfo is UTC


async def test_under_a_mock_clock_a_host_is_on_trios_time(path: Path, mock_clock: object) -> None:
    """A plain test with a mock clock just works: `TrioClock` and inline storage (api)."""
    async with open_host(path) as host:
        assert isinstance(host.clock, TrioClock)


async def test_without_a_mock_clock_a_host_is_on_wall_time(path: Path) -> None:
    """By default deadlines are compared with the wall clock (api)."""
    async with open_host(path, driver=False) as host:
        assert isinstance(host.clock, SystemClock)
        assert abs(host.now() - datetime.now(UTC)) < timedelta(minutes=1)


async def test_a_service_has_a_scheduler_of_its_own_alarms(path: Path, mock_clock: object) -> None:
    """`host.service` binds the scheduler to a registered service, and to no other (api)."""
    async with open_host(path, alarms=JOBS) as host:
        await host.service(Jobs).schedule_alarm(Jobs.job, "a", after=60)
        assert [record.ref.id for record in await host.service(Jobs).list_alarms()] == ["a"]
        with pytest.raises(InvalidAlarmRegistrationError, match="'app/jobs'") as caught:
            host.service(Others)
        assert "'app/others'" in str(caught.value)
        with pytest.raises(InvalidAlarmRefError, match="app/jobs"):
            await host.service(Jobs).schedule_alarm(Others.job, "a", after=60)
        with pytest.raises(InvalidAlarmRefError, match="job"):
            await host.service(Jobs).schedule_alarm("job", "b", after=60)
    async with open_host(path) as host:
        with pytest.raises(InvalidAlarmRegistrationError, match="none"):
            host.service(Jobs)


# Its arguments.


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"alarms": 5}, "alarms"),
        ({"alarms": _synchronous}, "alarms"),
        ({"alarms": define()}, "alarms"),
        ({"alarms": Jobs}, "alarms"),
        ({"raw_alarm": "hook"}, "raw_alarm"),
        ({"raw_alarm": _synchronous}, "raw_alarm"),
        ({"event_scope": "scope"}, "event_scope"),
        ({"configuration": None}, "configuration"),
        ({"configuration": {"in_flight_recovery": 1}}, "configuration"),
        ({"reporter": 5}, "reporter"),
        ({"reporter": _synchronous}, "reporter"),
        ({"clock": 5}, "clock"),
        ({"clock": datetime}, "clock"),
        ({"driver": None}, "driver"),
        ({"driver": 1}, "driver"),
        ({"drain_timeout": -1}, "drain_timeout"),
        ({"drain_timeout": float("nan")}, "drain_timeout"),
        ({"drain_timeout": float("inf")}, "drain_timeout"),
        ({"drain_timeout": True}, "drain_timeout"),
        ({"drain_timeout": "5"}, "drain_timeout"),
        ({"drain_timeout": timedelta(days=40_000)}, "drain_timeout"),
        ({"storage": None}, "storage"),
        ({"storage": {"executor": "inline"}}, "storage"),
        (
            {
                "configuration": ScheduleConfiguration(
                    minimum_retry_delay=7_200, parked_retry_delay=3_600
                )
            },
            "parked_retry_delay",
        ),
    ],
    ids=lambda case: case if isinstance(case, str) else type(*case.values()).__name__,
)
async def test_a_bad_argument_is_refused_by_name_before_anything_is_created(
    path: Path, mock_clock: object, options: dict[str, Any], parameter: str
) -> None:
    """The error names the parameter; no file comes into being (api: Errors)."""
    with pytest.raises(InvalidScheduleConfigurationError, match=parameter):
        async with open_host(path, **options):
            pytest.fail("it has opened")
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("name", ["", "x" * 129, "a\0b", "\ud800", None, 5, b"default", True])
async def test_a_bad_name_is_refused_before_anything_is_created(
    path: Path, mock_clock: object, name: Any
) -> None:
    """A name is non-empty, at most 128 characters, without NUL or lone surrogates (R62)."""
    with pytest.raises(InvalidAlarmRefError, match="name"):
        async with open_host(path, name=name):
            pytest.fail("it has opened")
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("name", ["x" * 128, "a/b", "ünïcödé", " ", "'; DROP TABLE x; --", "a\nb"])
async def test_any_other_name_will_do(path: Path, mock_clock: object, name: str) -> None:
    """Names are data: no character of them is special (R62)."""
    async with open_host(path, name=name) as host:
        await host.scheduler.schedule_alarm("job", "a", after=60)
    async with open_host(path, name=name) as host:
        assert len(await host.scheduler.list_alarms()) == 1


@pytest.mark.parametrize("database", [None, 5, b"alarms.db", "", "a\0b", Path, ["alarms.db"]])
async def test_what_is_no_path_is_refused(mock_clock: object, database: Any) -> None:
    """A database is a path or ":memory:" (api: Errors)."""
    with pytest.raises(InvalidScheduleConfigurationError, match="database"):
        async with open_host(database):
            pytest.fail("it has opened")


async def test_an_unknown_keyword_is_pythons_type_error(path: Path, mock_clock: object) -> None:
    """Misspelt options are not ignored (api: Errors)."""
    with pytest.raises(TypeError, match="alarm"):
        open_host(path, alarm=JOBS)  # type: ignore[call-arg]  # the mistake that is tested
    assert list(path.parent.iterdir()) == []


# After its block.


async def _enter(manager: Any) -> None:
    async with manager:
        pass


def _uses(host: AlarmHost) -> dict[str, Callable[[], Awaitable[object] | object]]:
    scheduler, service = host.scheduler, host.service(Jobs)
    when = host.now()
    return {
        "now": host.now,
        "service": lambda: host.service(Jobs),
        "event": lambda: _enter(host.event()),
        "deliver": host.deliver_native_alarm,
        "deliver by force": lambda: host.deliver_native_alarm(force=True),
        "native get": host.native_alarm.get,
        "native set": lambda: host.native_alarm.set(when),
        "native delete": host.native_alarm.delete,
        "query": lambda: host.storage.query("SELECT 1"),
        "storage block": lambda: _enter(host.storage.transaction()),
        "schedule": lambda: scheduler.schedule_alarm("job", "a", after=0),
        "schedule earlier": lambda: scheduler.schedule_alarm_earlier("job", "a", after=0),
        "ensure": lambda: scheduler.ensure_alarm("job", "a", after=0),
        "cancel": lambda: scheduler.cancel_alarm("job", "a"),
        "status": lambda: scheduler.get_alarm_status("job", "a"),
        "list": scheduler.list_alarms,
        "block": lambda: _enter(scheduler.transaction()),
        "defer": lambda: _enter(scheduler.defer_wakes()),
        "process due": lambda: scheduler.process_due_alarms(_ignore),
        "registration run": lambda: JOBS.run(host),
        "set run": lambda: define().handlers().run(host),
        "service schedule": lambda: service.schedule_alarm(Jobs.job, "a", after=0),
        "service list": service.list_alarms,
        "service block": lambda: _enter(service.transaction()),
        "service defer": lambda: _enter(service.defer_wakes()),
    }


@pytest.mark.parametrize("others", ["alone", "beside another host"])
async def test_after_its_block_every_method_is_refused(
    path: Path, mock_clock: object, others: str
) -> None:
    """A host that was left does nothing any more, be its file open or not (api)."""
    async with AsyncExitStack() as stack:
        if others != "alone":
            await stack.enter_async_context(open_host(path, name="other"))
        async with open_host(path, alarms=JOBS) as host:
            uses = _uses(host)
        for name, use in uses.items():
            with pytest.raises(StorageOperationError) as caught:
                await _use(use)
            assert "closed" in str(caught.value), name
        assert _rows(path) == []


async def _use(use: Callable[[], Awaitable[object] | object]) -> None:
    returned = use()
    if isinstance(returned, Awaitable):
        await returned


async def test_a_block_that_outlives_its_host_is_over(path: Path, mock_clock: object) -> None:
    """A transaction that was entered before is of no use after (R12)."""
    async with open_host(path, name="other"):
        async with AsyncExitStack() as stack:
            async with open_host(path) as host:
                tx = await stack.enter_async_context(host.scheduler.transaction())
                await tx.schedule_alarm("job", "a", after=60)
            with pytest.raises(StorageOperationError, match="closed"):
                await tx.schedule_alarm("job", "b", after=60)
            with pytest.raises(StorageOperationError, match="closed"):
                await stack.aclose()
        assert _rows(path) == []


async def test_a_host_works_only_in_the_trio_run_that_opened_it(
    path: Path, mock_clock: object
) -> None:
    """Another Trio run can neither use a host nor open its file (R12)."""
    storage = StorageOptions(executor="inline")
    async with open_host(path, alarms=JOBS, storage=storage) as host:
        uses = _uses(host)

        async def elsewhere() -> None:
            for name, use in uses.items():
                with pytest.raises(StorageOperationError) as caught:
                    await _use(use)
                assert "another Trio run" in str(caught.value), name
            with pytest.raises(StorageOperationError, match="another Trio run"):
                async with open_host(path, name="other", storage=storage):
                    pytest.fail("it has opened")

        await trio.to_thread.run_sync(trio.run, elsewhere)
        assert _rows(path) == []
        await host.scheduler.schedule_alarm("job", "a", after=60)


# Several hosts in one file.


async def test_hosts_of_one_file_are_independent(path: Path, autojump_clock: object) -> None:
    """Each has its own native alarm, alarms, dispatch and policy in the shared tables (api)."""
    handled: list[tuple[str, str, float]] = []

    async def note(event: AlarmDue[Any]) -> None:
        handled.append((event.host.name, event.id, trio.current_time()))

    async def fail(event: AlarmDue[Any]) -> None:
        await note(event)
        raise LookupError

    async with (
        open_host(path, name="one", alarms=process_due(note)) as one,
        open_host(
            path,
            name="two",
            alarms=process_due(fail),
            configuration=ScheduleConfiguration(unchanged_attempt_budget=1),
        ) as two,
    ):
        for host, seconds in ((one, 5), (two, 3)):
            await host.scheduler.schedule_alarm("job", "same", after=seconds)
            await host.scheduler.schedule_alarm("job", f"of {host.name}", after=60)
        assert await one.native_alarm.get() == one.now() + timedelta(seconds=5)
        assert await two.native_alarm.get() == two.now() + timedelta(seconds=3)
        await trio.sleep(10)
        assert [(name, id) for name, id, _ in handled] == [("two", "same"), ("one", "same")]
        assert [when for _, _, when in handled] == pytest.approx([3, 5])
        assert [record.ref.id for record in await one.scheduler.list_alarms()] == ["of one"]
        parked, _ = reversed(await two.scheduler.list_alarms())
        assert (parked.ref.id, parked.status.parked) == ("same", True)
        assert await one.scheduler.cancel_alarm("job", "of two") is False
        assert await two.scheduler.cancel_alarm("job", "same") is True
        assert await one.native_alarm.get() == one.now() + timedelta(seconds=50)


async def test_hosts_of_one_file_share_its_application_tables(
    path: Path, mock_clock: object
) -> None:
    """There is one application storage in a file (api)."""
    async with open_host(path, name="one") as one, open_host(path, name="two") as two:
        async with one.storage.transaction() as tx:
            await tx.execute("CREATE TABLE app (x)")
            await tx.execute("INSERT INTO app VALUES (1)")
        async with two.storage.transaction() as tx:
            await tx.execute("INSERT INTO app VALUES (2)")
        assert await one.storage.query("SELECT * FROM app") == [(1,), (2,)]


async def test_drivers_of_one_file_do_not_hold_each_other_up(
    path: Path, autojump_clock: object
) -> None:
    """A handler of one host runs while those of the other are delivered (api)."""
    order: list[str] = []

    async def handle(event: AlarmDue[Any]) -> None:
        await trio.sleep(100 if event.host.name == "slow" else 0)
        order.append(event.host.name)

    async with (
        open_host(path, name="slow", alarms=process_due(handle)) as slow,
        open_host(path, name="fast", alarms=process_due(handle)) as fast,
    ):
        await slow.scheduler.schedule_alarm("job", "a", after=1)
        await fast.scheduler.schedule_alarm("job", "a", after=2)
        await trio.sleep(200)
    assert order == ["fast", "slow"]


async def test_a_writers_turn_passes_between_hosts_in_order(path: Path, mock_clock: object) -> None:
    """First come, first served, over all hosts of the file (R14)."""
    order: list[str] = []
    turns = [trio.Event() for _ in range(6)]

    async def write(host: AlarmHost, number: int) -> None:
        await turns[number].wait()
        await host.scheduler.schedule_alarm("job", str(number), after=60)
        order.append(str(number))

    async with (
        open_host(path, name="one") as one,
        open_host(path, name="two") as two,
        trio.open_nursery() as nursery,
    ):
        for number in range(6):
            nursery.start_soon(write, (one, two)[number % 2], number)
        async with one.scheduler.transaction():
            for turn in turns:
                turn.set()
                await trio.testing.wait_all_tasks_blocked()
            assert order == []
        await trio.testing.wait_all_tasks_blocked()
        assert order == list("012345")


async def test_the_same_file_with_other_options_is_refused(path: Path, mock_clock: object) -> None:
    """All hosts of a file share one writer, so they need the same `StorageOptions` (api)."""
    async with open_host(path):
        for storage in (
            StorageOptions(busy_timeout=1),
            StorageOptions(synchronous="normal"),
            StorageOptions(max_payload_bytes=10),
            StorageOptions(executor="inline"),
        ):
            with pytest.raises(StorageOperationError, match="StorageOptions") as caught:
                async with open_host(path, name="other", storage=storage):
                    pytest.fail("it has opened")
            assert caught.value.operation == "open"
        async with open_host(path, name="other", storage=StorageOptions()):
            pass
    async with open_host(path, storage=StorageOptions(executor="inline")):
        pass


async def test_a_file_stays_open_as_long_as_one_of_its_hosts(
    path: Path, mock_clock: object
) -> None:
    """Leaving one host closes nothing of another; the last one closes the file (api)."""
    leave = trio.Event()

    async def hold(*, task_status: trio.TaskStatus[AlarmHost]) -> None:
        async with open_host(path, name="two") as host:
            task_status.started(host)
            await leave.wait()

    async with trio.open_nursery() as nursery:
        async with open_host(path, name="one"):
            two: AlarmHost = await nursery.start(hold)
        await two.scheduler.schedule_alarm("job", "a", after=60)
        assert (path.parent / "alarms.db-wal").exists()
        leave.set()
    assert not (path.parent / "alarms.db-wal").exists()
    assert _rows(path) == [("two", "a")]


@pytest.mark.parametrize("executor", ["inline", "thread"])
async def test_hosts_of_one_file_may_be_opened_and_left_at_once(
    path: Path, mock_clock: object, executor: Any
) -> None:
    """Opening waits for an opening or closing of the same file in another task (api)."""
    storage = StorageOptions(executor=executor)

    async def live(number: int) -> None:
        for life in range(3):
            async with open_host(path, name=str(number), storage=storage, driver=False) as host:
                await host.scheduler.schedule_alarm("job", str(life), after=60)

    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(live, number)
    assert len(_rows(path)) == 15


@pytest.mark.parametrize("executor", ["inline", "thread"])
async def test_a_cancelled_opening_leaves_nothing_behind(
    path: Path, mock_clock: object, executor: Any
) -> None:
    """Wherever opening is cancelled, the file can be opened at once afterwards (R11)."""
    storage = StorageOptions(executor=executor)
    opened = 0
    for checkpoints in range(30):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_after, scope, checkpoints)
                async with open_host(path, storage=storage):
                    opened += 1
                    nursery.cancel_scope.cancel()
        async with open_host(path, storage=storage) as host:
            await host.scheduler.schedule_alarm("job", str(checkpoints), after=60)
    if executor == "inline":
        assert 0 < opened < 30
    assert len(_rows(path)) == 30


async def test_an_opening_that_is_cancelled_already_creates_nothing(
    path: Path, mock_clock: object
) -> None:
    """Not even an empty file comes into being (R11)."""
    with trio.CancelScope() as scope:
        scope.cancel()
        async with open_host(path):
            pytest.fail("it has opened")
    assert scope.cancelled_caught
    assert list(path.parent.iterdir()) == []


async def _cancel_after(scope: trio.CancelScope, checkpoints: int) -> None:
    for _ in range(checkpoints):
        await trio.lowlevel.checkpoint()
    scope.cancel()


# A private file.


async def test_memory_is_a_private_file_that_is_gone_at_close(mock_clock: object) -> None:
    """`":memory:"` is a temporary file of the host's own (api)."""
    async with open_host(":memory:") as one, open_host(":memory:") as two:
        await one.scheduler.schedule_alarm("job", "a", after=60)
        assert await two.scheduler.list_alarms() == []
        files = []
        for host in (one, two):
            ((_, _, file),) = await host.storage.query("PRAGMA database_list")
            files.append(Path(file))
            assert files[-1].stat().st_mode & 0o777 == 0o600
            assert files[-1].parent.stat().st_mode & 0o777 == 0o700
    assert [file.parent.exists() for file in files] == [False, False]


async def test_a_private_file_is_gone_after_a_failure_too(mock_clock: object) -> None:
    """However the block is left, nothing stays in the temporary directory (api)."""
    files: list[Path] = []

    async def fail() -> None:
        async with open_host(":memory:") as host:
            ((_, _, file),) = await host.storage.query("PRAGMA database_list")
            files.append(Path(file))
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    assert not files[0].parent.exists()
