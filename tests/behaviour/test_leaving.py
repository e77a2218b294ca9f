from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmHost,
    AlarmPassError,
    AlarmService,
    DispatchOptions,
    StorageOperationError,
    define,
    open_host,
    process_due,
)

Body = Callable[[AlarmHost], Awaitable[object]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The database of the test."""
    return tmp_path / "alarms.db"


def _stored(path: Path) -> dict[str, tuple[int, int]]:
    """The attempts of each stored alarm, and its wake in ms since the mock clock's start."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT id, attempts, wake_at FROM trio_alarms_alarms").fetchall()
    return {id: (attempts, wake_at - EPOCH_MS) for id, attempts, wake_at in rows}


def _native_alarm(path: Path) -> int | None:
    with closing(sqlite3.connect(path)) as connection:
        (found,) = connection.execute("SELECT native_alarm FROM trio_alarms_hosts").fetchone()
    return None if found is None else found - EPOCH_MS


EPOCH_MS = 946_684_800_000


class Work:
    """Handlers that last as many seconds as their alarm's payload says, and note what they do."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def handle(self, event: AlarmDue[Any]) -> None:
        """Begin, wait, end."""
        self.log.append(f"{event.id} begins")
        try:
            await trio.sleep(event.payload or 0)
        except trio.Cancelled:
            self.log.append(f"{event.id} is cancelled")
            raise
        self.log.append(f"{event.id} ends")


async def _schedule(host: AlarmHost, **seconds: float) -> None:
    """Alarms that are due now, whose handlers last so many seconds."""
    async with host.scheduler.transaction() as tx:
        for id, payload in seconds.items():
            await tx.schedule_alarm("job", id, after=0, payload=payload)


def _concurrently(handler: Callable[[AlarmDue[Any]], Awaitable[object]]) -> Any:
    return process_due(handler, DispatchOptions(concurrency=10))


# Draining.


async def test_running_handlers_get_the_drain_timeout(path: Path, autojump_clock: object) -> None:
    """One that ends in time is acknowledged, the others are cancelled without a charge (C11)."""
    work = Work()
    async with open_host(path, alarms=_concurrently(work.handle), drain_timeout=2) as host:
        await _schedule(host, short=0.5, long=60)
        await trio.testing.wait_all_tasks_blocked()
    assert work.log[2:] == ["short ends", "long is cancelled"]
    assert trio.current_time() == pytest.approx(2)
    assert _stored(path) == {"long": (0, 0)}
    assert _native_alarm(path) == 0


async def test_what_was_cancelled_is_due_at_the_next_opening(
    path: Path, autojump_clock: object
) -> None:
    """A handler that the drain cancelled runs again when the host is opened anew (C11, R52)."""
    work = Work()
    async with open_host(path, alarms=process_due(work.handle), drain_timeout=0) as host:
        await _schedule(host, long=60)
        await trio.testing.wait_all_tasks_blocked()
    async with open_host(path, alarms=process_due(work.handle)) as host:
        await trio.sleep(60.1)
    assert work.log == ["long begins", "long is cancelled", "long begins", "long ends"]
    assert _stored(path) == {}


async def test_a_drain_that_has_nothing_to_wait_for_is_over_at_once(
    path: Path, autojump_clock: object
) -> None:
    """Far deadlines delay nothing (C11)."""
    async with open_host(path, drain_timeout=1_000) as host:
        await host.scheduler.schedule_alarm("job", "far", after=10_000)
        await trio.testing.wait_all_tasks_blocked()
    assert trio.current_time() == 0
    assert _native_alarm(path) == 10_000_000


@pytest.mark.real_time
async def test_ten_thousand_far_alarms_do_not_slow_leaving_down(
    path: Path, mock_clock: object
) -> None:
    """Closing takes under 200 ms however many alarms are retained (C11, R61)."""
    async with open_host(path) as host:
        rows = [(f"{number:05}", EPOCH_MS + 10**9 + number) for number in range(10_000)]
        async with host.storage.transaction() as tx:
            await tx.executemany(
                "INSERT INTO trio_alarms_alarms VALUES ('default', 'job', ?, 'automatic', ?2, ?2,"
                " NULL, NULL, -1, 0, 0, randomblob(16), 'null')",
                rows,
            )
        await host.scheduler.cancel_alarm("job", "absent")
        began = time.perf_counter()
    assert time.perf_counter() - began < 0.2
    assert _native_alarm(path) == 10**9


async def test_no_handler_starts_during_the_drain(path: Path, autojump_clock: object) -> None:
    """Rows that wait for their turn when the host is left stay as they are (C11)."""
    work = Work()
    async with open_host(path, alarms=process_due(work.handle)) as host:
        await _schedule(host, a=1, b=1, c=1)
        await trio.testing.wait_all_tasks_blocked()
    assert work.log == ["a begins", "a ends"]
    assert _stored(path) == {"b": (0, 0), "c": (0, 0)}
    assert _native_alarm(path) == 0


async def test_no_manual_handler_starts_during_the_drain(
    path: Path, autojump_clock: object
) -> None:
    """Manual rows that wait for a permit when the host is left do not start either (C11)."""
    work = Work()

    class Jobs(AlarmService, key="app/jobs"):
        job = Alarm(float, lifecycle="manual")

    async with open_host(path, alarms=Jobs.handlers(Jobs.job.handled_by(work.handle))) as host:
        async with host.scheduler.transaction() as tx:
            for id in "abcdef":
                await tx.schedule_alarm(Jobs.job, id, after=0, payload=1.0)
        await trio.testing.wait_all_tasks_blocked()
    assert sorted(work.log) == sorted(
        line for id in "abcd" for line in (f"{id} begins", f"{id} ends")
    )
    wakes = {id: wake_at for id, (_, wake_at) in _stored(path).items()}
    assert wakes == dict.fromkeys("abcd", 3_601_000) | dict.fromkeys("ef", 1_000)


async def test_no_pass_starts_during_the_drain(path: Path, autojump_clock: object) -> None:
    """What falls due while a handler is drained is left to the next opening (C11)."""
    work = Work()
    async with open_host(path, alarms=process_due(work.handle)) as host:
        await _schedule(host, a=3)
        await host.scheduler.schedule_alarm("job", "b", after=1)
        await trio.testing.wait_all_tasks_blocked()
    assert work.log == ["a begins", "a ends"]
    assert _stored(path) == {"b": (0, 1_000)}
    assert _native_alarm(path) == 1_000


async def test_a_drained_handler_can_still_write(path: Path, autojump_clock: object) -> None:
    """While it is drained, a handler schedules and transacts as ever (C11)."""

    async def handle(event: AlarmDue[Any]) -> None:
        await trio.sleep(1)
        async with event.host.storage.transaction() as tx:
            await tx.execute("CREATE TABLE app (x)")
            await tx.schedule_alarm("job", "b", after=60, payload=1)
            assert await tx.acknowledge(event)

    async with open_host(path, alarms=process_due(handle)) as host:
        await _schedule(host, a=0)
        await trio.testing.wait_all_tasks_blocked()
    assert _stored(path) == {"b": (1, 61_000)}


async def test_a_drain_waits_for_the_clean_up_of_the_event_scope(
    path: Path, autojump_clock: object
) -> None:
    """A pass is over only when its event scope is, and that may enrol work (R40, C11)."""

    @asynccontextmanager
    async def scope(host: AlarmHost) -> AsyncIterator[None]:
        yield
        await trio.sleep(1)
        await host.scheduler.schedule_alarm("job", "b", after=60)

    work = Work()
    async with open_host(path, alarms=process_due(work.handle), event_scope=scope) as host:
        await _schedule(host, a=1)
        await trio.testing.wait_all_tasks_blocked()
    assert trio.current_time() == pytest.approx(2)
    assert _stored(path) == {"b": (0, 62_000)}
    assert _native_alarm(path) == 62_000


async def test_a_drain_that_is_cancelled_cancels_what_runs(
    path: Path, autojump_clock: object
) -> None:
    """Cancelling whoever leaves cuts the drain short, and charges nothing (C11)."""
    work = Work()
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(1) as scope:
            async with open_host(
                path, alarms=process_due(work.handle), driver=False, drain_timeout=60
            ) as host:
                await _schedule(host, a=30)
                # In a task that is not cancelled itself.
                nursery.start_soon(Outcome().of, host.deliver_native_alarm)
                await trio.testing.wait_all_tasks_blocked()
        assert scope.cancelled_caught
        assert work.log == ["a begins", "a is cancelled"]
        assert trio.current_time() == pytest.approx(1)
        assert _stored(path) == {"a": (0, 0)}
        assert _native_alarm(path) == 0


async def test_a_pass_that_fails_during_the_drain_is_logged(
    path: Path, autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """A failing pass is logged with its traceback, also when it is the last one (R51)."""

    async def fail(_: AlarmHost) -> None:
        await trio.sleep(1)
        raise LookupError("hook")

    async with open_host(path, raw_alarm=fail) as host:
        await _schedule(host, a=0)
        await trio.testing.wait_all_tasks_blocked()
    assert "LookupError: hook" in caplog.text


async def test_a_clean_leaving_logs_nothing(
    path: Path, autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a drained nor a cancelled pass is something to report (C11)."""
    work = Work()
    async with open_host(path, alarms=_concurrently(work.handle), drain_timeout=2) as host:
        await _schedule(host, short=0.5, long=60)
        await trio.testing.wait_all_tasks_blocked()
    async with open_host(path, alarms=_concurrently(work.handle)):
        await trio.testing.wait_all_tasks_blocked()
        with suppress(LookupError):
            async with open_host(path, name="other", alarms=process_due(work.handle)) as host:
                await _schedule(host, other=60)
                await trio.testing.wait_all_tasks_blocked()
                raise LookupError
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


# Leaving by an exception or a cancellation.


async def _leave_with(error: BaseException, path: Path, **options: Any) -> None:
    async with open_host(path, **options) as host:
        await _schedule(host, a=60)
        await trio.testing.wait_all_tasks_blocked()
        raise error


ERRORS = [
    LookupError("body"),
    RuntimeError("body"),
    StopAsyncIteration("body"),
    GeneratorExit(),
    KeyboardInterrupt(),
    SystemExit(3),
    ExceptionGroup("of the body's own", [ValueError(), ExceptionGroup("inner", [KeyError()])]),
    StorageOperationError("body", operation="body"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("options", [{"driver": True}, {"driver": False}], ids=str)
async def test_the_bodys_exception_leaves_as_the_same_object(
    path: Path, autojump_clock: object, error: BaseException, options: dict[str, bool]
) -> None:
    """Leaving by an exception cancels at once, and it is not wrapped (api: Exceptions)."""
    work = Work()
    with pytest.raises(type(error)) as caught:
        await _leave_with(error, path, alarms=process_due(work.handle), **options)
    assert caught.value is error
    assert trio.current_time() == 0
    assert work.log == (["a begins", "a is cancelled"] if options["driver"] else [])
    assert _stored(path) == {"a": (0, 0)}
    assert _native_alarm(path) == 0


async def test_a_failing_clean_up_of_a_pass_does_not_hide_the_bodys_exception(
    path: Path, autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """What the driver's pass raised while it was cancelled is logged; the body's error leaves."""

    @asynccontextmanager
    async def scope(_: AlarmHost) -> AsyncIterator[None]:
        try:
            yield
        finally:
            raise KeyError("clean-up")

    error = LookupError("body")
    work = Work()
    with pytest.raises(LookupError) as caught:
        await _leave_with(error, path, alarms=process_due(work.handle), event_scope=scope)
    assert caught.value is error
    assert "KeyError: 'clean-up'" in caplog.text
    assert _stored(path) == {"a": (0, 0)}


@pytest.mark.parametrize("driver", ["with", "without"])
async def test_a_cancelled_body_cancels_at_once(
    path: Path, autojump_clock: object, driver: str
) -> None:
    """Leaving by a cancellation does not drain, not even what other tasks run (api)."""
    work = Work()
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(1) as scope:
            async with open_host(
                path, alarms=process_due(work.handle), driver=driver == "with"
            ) as host:
                await _schedule(host, a=60)
                if driver == "without":
                    nursery.start_soon(Outcome().of, host.deliver_native_alarm)
                await trio.sleep_forever()
        assert scope.cancelled_caught
        assert work.log == ["a begins", "a is cancelled"]
        assert trio.current_time() == pytest.approx(1)
        assert _stored(path) == {"a": (0, 0)}
        assert _native_alarm(path) == 0


async def test_a_handler_that_fails_while_it_is_cancelled_is_charged(
    path: Path, autojump_clock: object
) -> None:
    """An error in place of the cancellation is the handler's own failure (R28)."""

    async def fail(_: AlarmDue[Any]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise LookupError("in the clean-up")

    with trio.move_on_after(1):
        async with open_host(path, alarms=process_due(fail)) as host:
            await _schedule(host, a=0)
            await trio.sleep_forever()
    assert _stored(path) == {"a": (1, 2_000)}
    assert _native_alarm(path) == 2_000


async def test_leaving_waits_for_a_handler_that_shields_itself(
    path: Path, autojump_clock: object
) -> None:
    """What cannot be cancelled is waited for, so that nothing of a host outlives it (R40)."""
    work = Work()
    outcome = Outcome()

    async def shielded(event: AlarmDue[Any]) -> None:
        with trio.CancelScope(shield=True):
            await work.handle(event)

    async with trio.open_nursery() as nursery:
        with suppress(LookupError):
            async with open_host(path, alarms=process_due(shielded), driver=False) as host:
                await _schedule(host, a=30)
                nursery.start_soon(outcome.of, host.deliver_native_alarm)
                await trio.testing.wait_all_tasks_blocked()
                raise LookupError
        assert trio.current_time() == pytest.approx(30)
        assert work.log == ["a begins", "a ends"]
        assert _stored(path) == {}


async def test_leaving_replaces_a_guard_by_the_deadline(path: Path, autojump_clock: object) -> None:
    """Either way the native alarm is reconciled, although a scope is still open (R20)."""
    async with trio.open_nursery() as nursery:
        for error in (None, LookupError("body")):
            with suppress(LookupError):
                async with open_host(path, driver=False) as host:
                    await host.scheduler.schedule_alarm("job", "a", after=60)
                    entered = trio.Event()
                    nursery.start_soon(_defer, host, entered)
                    await entered.wait()
                    await host.scheduler.schedule_alarm("job", "a", after=100)
                    assert _native_alarm(path) == 1_000
                    if error is not None:
                        raise error
            assert _native_alarm(path) == 100_000
        nursery.cancel_scope.cancel()
    assert _native_alarm(path) == 100_000


async def _defer(host: AlarmHost, entered: trio.Event) -> None:
    async with host.scheduler.defer_wakes():
        entered.set()
        await trio.sleep_forever()


# Work in tasks of the caller.


class Outcome:
    """What became of a call in another task."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.returned: object = None
        self.over = trio.Event()

    async def of(self, call: Callable[[], Awaitable[object]]) -> None:
        """Make the call."""
        try:
            self.returned = await call()
        except Exception as error:  # noqa: BLE001 - which one is the question
            self.error = error
        finally:
            self.over.set()


def _direct_runs(handler: Any) -> dict[str, Body]:
    class Jobs(AlarmService, key="app/jobs"):
        job = Alarm(float)

    job = Alarm(float, tag="job")
    return {
        "delivery": lambda host: host.deliver_native_alarm(),
        "registration": Jobs.handlers(Jobs.job.handled_by(handler)).run,
        "set": define(job).handlers(job.handled_by(handler)).run,
        "process_due_alarms": process_due(handler),
    }


KINDS = ["delivery", "registration", "set", "process_due_alarms"]


@pytest.mark.parametrize("kind", KINDS)
async def test_work_in_a_callers_task_is_drained(
    path: Path, autojump_clock: object, kind: str
) -> None:
    """What another task dispatches gets the drain timeout as well, and returns (C11)."""
    work = Work()
    outcome = Outcome()
    run = _direct_runs(work.handle)[kind]
    async with trio.open_nursery() as nursery:
        async with open_host(path, alarms=process_due(work.handle), driver=False) as host:
            await _schedule(host, a=2, b=2)
            nursery.start_soon(outcome.of, lambda: run(host))
            await trio.testing.wait_all_tasks_blocked()
        assert trio.current_time() == pytest.approx(2)
        await outcome.over.wait()
    assert outcome.error is None
    assert work.log == ["a begins", "a ends"]
    assert _stored(path) == {"b": (0, 0)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [None, LookupError("body")], ids=["normally", "by an error"])
async def test_work_in_a_callers_task_is_cancelled(
    path: Path, autojump_clock: object, kind: str, error: Exception | None
) -> None:
    """The caller, who was not cancelled, is told that the host was closed (R21, C11)."""
    work = Work()
    outcome = Outcome()
    run = _direct_runs(work.handle)[kind]
    async with trio.open_nursery() as nursery:
        with suppress(LookupError):
            async with open_host(
                path, alarms=process_due(work.handle), driver=False, drain_timeout=1
            ) as host:
                await _schedule(host, a=60)
                nursery.start_soon(outcome.of, lambda: run(host))
                await trio.testing.wait_all_tasks_blocked()
                if error is not None:
                    raise error
        assert trio.current_time() == pytest.approx(0 if error else 1)
        await outcome.over.wait()
    assert isinstance(outcome.error, StorageOperationError)
    assert "closed" in str(outcome.error)
    assert work.log == ["a begins", "a is cancelled"]
    assert _stored(path) == {"a": (0, 0)}
    assert _native_alarm(path) == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_the_clean_up_of_work_in_a_callers_task_comes_before_the_end(
    path: Path, autojump_clock: object, kind: str
) -> None:
    """An event scope can still write when leaving has cancelled what ran in it (R40)."""

    @asynccontextmanager
    async def scope(host: AlarmHost) -> AsyncIterator[None]:
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
                await host.scheduler.schedule_alarm("job", "from the clean-up", after=60)

    work = Work()
    outcome = Outcome()
    run = _direct_runs(work.handle)[kind]
    async with trio.open_nursery() as nursery:
        async with open_host(
            path, alarms=process_due(work.handle), event_scope=scope, driver=False, drain_timeout=1
        ) as host:
            await _schedule(host, a=60)
            nursery.start_soon(outcome.of, lambda: run(host))
            await trio.testing.wait_all_tasks_blocked()
        await outcome.over.wait()
    assert isinstance(outcome.error, StorageOperationError)
    assert _stored(path) == {"a": (0, 0), "from the clean-up": (0, 62_000)}


async def test_joiners_do_not_take_over_while_the_host_closes(
    path: Path, autojump_clock: object
) -> None:
    """Who had joined a pass that leaving cancelled gets an error and runs none itself (R21)."""
    work = Work()
    joiners = [Outcome() for _ in range(3)]
    async with trio.open_nursery() as nursery:
        async with open_host(path, alarms=process_due(work.handle), drain_timeout=1) as host:
            await _schedule(host, a=60)
            await trio.testing.wait_all_tasks_blocked()
            for joiner in joiners:
                nursery.start_soon(joiner.of, lambda: host.deliver_native_alarm(force=True))
            await trio.testing.wait_all_tasks_blocked()
        for joiner in joiners:
            await joiner.over.wait()
            assert isinstance(joiner.error, StorageOperationError)
    assert work.log == ["a begins", "a is cancelled"]


async def test_a_joiner_of_a_pass_that_fails_in_the_drain_gets_its_error(
    path: Path, autojump_clock: object
) -> None:
    """A pass that ends by itself in the drain has its own outcome for who joined it (R21)."""

    async def fail(_: AlarmHost) -> None:
        await trio.sleep(1)
        raise LookupError("hook")

    leader, joiner = Outcome(), Outcome()
    async with (
        trio.open_nursery() as nursery,
        open_host(path, raw_alarm=fail, driver=False) as host,
    ):
        await _schedule(host, a=0)
        nursery.start_soon(leader.of, host.deliver_native_alarm)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(joiner.of, lambda: host.deliver_native_alarm(force=True))
        await trio.testing.wait_all_tasks_blocked()
    assert isinstance(leader.error, LookupError)
    assert isinstance(joiner.error, AlarmPassError)


async def test_a_delivery_that_waits_for_scopes_does_not_delay_leaving(
    path: Path, autojump_clock: object
) -> None:
    """A pass that has not begun never begins, and its caller is told (R22, C11)."""
    outcome = Outcome()
    async with trio.open_nursery() as nursery:
        async with open_host(path, driver=False, drain_timeout=60) as host:
            await _schedule(host, a=0)
            entered = trio.Event()
            nursery.start_soon(_defer, host, entered)
            await entered.wait()
            nursery.start_soon(outcome.of, lambda: host.deliver_native_alarm(force=True))
            await trio.testing.wait_all_tasks_blocked()
        assert trio.current_time() == 0
        await outcome.over.wait()
        assert isinstance(outcome.error, StorageOperationError)
        nursery.cancel_scope.cancel()
    assert _stored(path) == {"a": (0, 0)}
    assert _native_alarm(path) == 0


async def test_a_delivery_that_begins_while_the_host_drains_is_refused(
    path: Path, autojump_clock: object
) -> None:
    """No new pass or dispatch starts once the host is being left (C11)."""
    work = Work()
    late = {kind: Outcome() for kind in KINDS}
    async with trio.open_nursery() as nursery:
        async with open_host(path, alarms=process_due(work.handle)) as host:
            await _schedule(host, a=2)
            await trio.testing.wait_all_tasks_blocked()
            for kind, run in _direct_runs(work.handle).items():
                nursery.start_soon(_after, 1.5, late[kind], run, host)
        for outcome in late.values():
            await outcome.over.wait()
    # The delivery joined the pass that was still being drained.
    assert late.pop("delivery").error is None
    for outcome in late.values():
        assert isinstance(outcome.error, StorageOperationError)
    assert work.log == ["a begins", "a ends"]


async def _after(seconds: float, outcome: Outcome, run: Body, host: AlarmHost) -> None:
    await trio.sleep(seconds)
    await outcome.of(lambda: run(host))


async def test_a_block_of_another_task_is_rolled_back(path: Path, autojump_clock: object) -> None:
    """A transaction that is still open when its host is left is undone, and says so (R12)."""
    outcome = Outcome()
    entered = trio.Event()

    async def hold(host: AlarmHost) -> None:
        async with host.scheduler.transaction() as tx:
            await tx.schedule_alarm("job", "a", after=0)
            entered.set()
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        async with open_host(path, driver=False) as host:
            nursery.start_soon(outcome.of, lambda: hold(host))
            await entered.wait()
        assert trio.current_time() == 0
    assert isinstance(outcome.error, StorageOperationError)
    assert _stored(path) == {}


async def test_an_error_in_a_block_that_was_taken_back_leaves_as_it_is(
    path: Path, autojump_clock: object
) -> None:
    """The body's own exception is not replaced by the news that the host is gone (R10)."""
    error = LookupError("body")
    outcome = Outcome()
    entered = trio.Event()

    async def hold(host: AlarmHost) -> None:
        async with host.scheduler.transaction():
            entered.set()
            await trio.sleep(1)
            raise error

    async with trio.open_nursery() as nursery, open_host(path, driver=False) as host:
        nursery.start_soon(outcome.of, lambda: hold(host))
        await entered.wait()
    assert outcome.error is error


# Several hosts of one file.


async def test_leaving_one_host_leaves_the_others_of_its_file_alone(
    path: Path, autojump_clock: object
) -> None:
    """Queued blocks of another host go on when the host that held the turn is left (R14)."""
    log: list[str] = []

    async def write(host: AlarmHost, id: str) -> None:
        async with host.scheduler.transaction() as tx:
            await tx.schedule_alarm("job", id, after=60)
            log.append(f"{host.name} {id}")

    held, entered = Outcome(), trio.Event()

    async def hold(host: AlarmHost) -> None:
        async with host.scheduler.transaction() as tx:
            await tx.schedule_alarm("job", "held", after=60)
            entered.set()
            await trio.sleep_forever()

    async with open_host(path, name="stays") as stays, trio.open_nursery() as nursery:
        queued = Outcome()
        async with open_host(path, name="leaves") as leaves:
            nursery.start_soon(held.of, lambda: hold(leaves))
            await entered.wait()
            nursery.start_soon(write, stays, "1")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(queued.of, lambda: write(leaves, "2"))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(write, stays, "3")
            await trio.testing.wait_all_tasks_blocked()
            assert log == []
        await queued.over.wait()
        assert isinstance(queued.error, StorageOperationError)
        await trio.testing.wait_all_tasks_blocked()
        assert log == ["stays 1", "stays 3"]
        assert sorted(_stored(path)) == ["1", "3"]
        nursery.cancel_scope.cancel()


async def test_a_closed_host_writes_nothing_although_its_file_is_open(
    path: Path, autojump_clock: object
) -> None:
    """A scope that outlives its host does not touch the native alarm of its successor (R20)."""
    first_left = trio.Event()
    outcome = Outcome()

    async def outlive(host: AlarmHost, entered: trio.Event) -> None:
        async with host.scheduler.defer_wakes():
            entered.set()
            await first_left.wait()

    async with open_host(path, name="other"), trio.open_nursery() as nursery:
        entered = trio.Event()
        async with open_host(path, driver=False) as host:
            await host.scheduler.schedule_alarm("job", "a", after=60)
            nursery.start_soon(outcome.of, lambda: outlive(host, entered))
            await entered.wait()
        async with (
            open_host(path, driver=False) as successor,
            successor.scheduler.defer_wakes(),
        ):
            guard = await successor.native_alarm.get()
            first_left.set()
            await outcome.over.wait()
            assert isinstance(outcome.error, StorageOperationError)
            assert await successor.native_alarm.get() == guard


async def test_all_that_waits_for_its_turn_is_told_that_the_host_was_closed(
    path: Path, autojump_clock: object
) -> None:
    """Nobody hangs behind a block that was queued when the file was closed (R14)."""
    held, entered = Outcome(), trio.Event()
    queued = [Outcome() for _ in range(4)]

    async def hold(host: AlarmHost) -> None:
        async with host.scheduler.transaction():
            entered.set()
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        async with open_host(path, driver=False) as host:
            nursery.start_soon(held.of, lambda: hold(host))
            await entered.wait()
            for number, outcome in enumerate(queued):
                write = (
                    (lambda: hold(host)) if number % 2 == 0 else (lambda: _schedule(host, queued=0))
                )
                nursery.start_soon(outcome.of, write)
                await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(60):
            for outcome in queued:
                await outcome.over.wait()
        nursery.cancel_scope.cancel()
    for outcome in queued:
        assert isinstance(outcome.error, StorageOperationError)
    assert _stored(path) == {}


async def test_leaving_is_not_held_up_by_another_hosts_block(
    path: Path, autojump_clock: object
) -> None:
    """A host whose native alarm is right can be left while another one writes (R14)."""
    async with open_host(path, name="other") as other, other.scheduler.transaction():
        async with open_host(path, name="left", driver=False):
            pass
        assert trio.current_time() == 0


@pytest.mark.parametrize("error", [None, LookupError("body")], ids=["normally", "by an error"])
async def test_leaving_waits_no_longer_than_the_busy_timeout_for_its_turn(
    path: Path, autojump_clock: object, error: Exception | None
) -> None:
    """Where another host keeps the turn, leaving is bounded, and says what it left undone (R11)."""
    async with open_host(path, name="other") as other, trio.open_nursery() as nursery:
        with pytest.raises(StorageOperationError if error is None else LookupError) as caught:
            await _leave_while_another_writes(path, other, nursery, error)
        assert error in (None, caught.value)
        assert trio.current_time() == pytest.approx(5)
        nursery.cancel_scope.cancel()
    async with open_host(path, driver=False) as host:
        assert await host.native_alarm.get() is None


async def _leave_while_another_writes(
    path: Path, other: AlarmHost, nursery: trio.Nursery, error: Exception | None
) -> None:
    async with open_host(path, driver=False) as host:
        entered = trio.Event()
        nursery.start_soon(_defer, host, entered)
        await entered.wait()
        nursery.start_soon(_hold_the_turn, other)
        await trio.testing.wait_all_tasks_blocked()
        if error is not None:
            raise error


async def _hold_the_turn(host: AlarmHost) -> None:
    async with host.scheduler.transaction():
        await trio.sleep(30)


async def test_opening_waits_no_longer_than_the_busy_timeout_for_its_turn(
    path: Path, autojump_clock: object
) -> None:
    """A host that cannot be reconciled does not open as if it were (R11, R20)."""
    async with open_host(path, driver=False) as host:
        await host.scheduler.schedule_alarm("job", "a", after=60)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE trio_alarms_hosts SET native_alarm = NULL")
    async with open_host(path, name="other") as other:
        async with other.scheduler.transaction():
            with pytest.raises(StorageOperationError, match="turn"):
                async with open_host(path):
                    pytest.fail("it has opened")
            assert trio.current_time() == pytest.approx(5)
        async with open_host(path, driver=False):
            assert _native_alarm_of(path, "default") == 60_000


def _native_alarm_of(path: Path, name: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (found,) = connection.execute(
            "SELECT native_alarm FROM trio_alarms_hosts WHERE name = ?", (name,)
        ).fetchone()
    return int(found) - EPOCH_MS
