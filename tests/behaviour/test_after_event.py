from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from tests.behaviour.conftest import OpenWorld
from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmHost,
    AlarmService,
    ScheduleConfiguration,
    StorageOptions,
    open_host,
    process_due,
    schedule_configuration,
)
from trio_alarms.testing import open_test_host

INLINE = StorageOptions(executor="inline")
AFTER_EVENT = ScheduleConfiguration(dispatch_after_event=True)
request_id: ContextVar[str] = ContextVar("request_id", default="none")


class Log:
    """What happened, in order, with a handler and an event scope that say so."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def handle(self, event: AlarmDue[Any]) -> None:
        """Note an alarm."""
        self.lines.append(f"handle {event.id}")

    @asynccontextmanager
    async def scope(self, _: AlarmHost) -> AsyncIterator[int]:
        """Note an event."""
        self.lines.append("enter")
        try:
            yield len(self.lines)
        finally:
            self.lines.append("leave")

    def options(self) -> dict[str, Any]:
        """A host that dispatches after its events."""
        return {
            "alarms": process_due(self.handle),
            "event_scope": self.scope,
            "configuration": AFTER_EVENT,
        }


async def test_what_is_due_runs_after_the_event(open_world: OpenWorld, mock_clock: object) -> None:
    """Once an event has ended, due alarms run in a later task and a fresh scope (R41)."""
    log = Log()
    world = await open_world(**log.options())
    async with world.host.event():
        await world.host.scheduler.schedule_alarm("job", "a", after=0)
    log.lines.append("the caller has its result")
    await _until_handled(log)
    assert log.lines == [
        "enter",
        "leave",
        "the caller has its result",
        "enter",
        "handle a",
        "leave",
    ]
    assert world.rows() == []


async def _until_handled(log: Log, times: int = 1) -> None:
    for _ in range(1_000):
        await trio.testing.wait_all_tasks_blocked(0.001)
        ended = log.lines[-1] == "leave" and len(_handled(log)) == times
        if ended:
            await trio.testing.wait_all_tasks_blocked(0.001)
            return
    raise AssertionError(log.lines)


def _handled(log: Log) -> list[str]:
    return [line for line in log.lines if line.startswith("handle")]


async def test_by_default_nothing_runs_after_an_event(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """Without `dispatch_after_event` due alarms are left to the native alarm (R1, R41)."""
    log = Log()
    world = await open_inline_world(**log.options() | {"configuration": ScheduleConfiguration()})
    async with world.host.event():
        await world.host.scheduler.schedule_alarm("job", "a", after=0)
    await trio.testing.wait_all_tasks_blocked()
    assert log.lines == ["enter", "leave"]
    assert world.native_alarm() == 0


async def test_future_deadlines_are_left_to_the_native_alarm(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """A check that finds nothing due runs no pass and writes nothing (R23, R41)."""
    log = Log()
    world = await open_world(**log.options())
    await world.host.scheduler.schedule_alarm("job", "a", after=60)
    before = world.rows()
    await world.harness.consume_native_alarm()
    async with world.host.event():
        pass
    await trio.testing.wait_all_tasks_blocked(0.001)
    assert log.lines == ["enter", "leave"]
    assert world.rows() == before
    # Whoever wrote anything would have reconciled.
    assert world.native_alarm() is None


async def test_a_failed_event_is_followed_by_a_check(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """The caller has its error before what is due runs (R41)."""
    log = Log()
    world = await open_inline_world(**log.options())

    async def event() -> None:
        async with world.host.event():
            await world.host.scheduler.schedule_alarm("job", "a", after=0)
            raise LookupError

    with pytest.raises(LookupError):
        await event()
    assert _handled(log) == []
    await trio.testing.wait_all_tasks_blocked()
    assert _handled(log) == ["handle a"]


async def test_a_cancelled_event_is_followed_by_a_check(
    open_inline_world: OpenWorld, autojump_clock: object
) -> None:
    """What a cancelled event had enrolled runs all the same (R41)."""
    log = Log()
    world = await open_inline_world(**log.options())
    with trio.move_on_after(1):
        async with world.host.event():
            await world.host.scheduler.schedule_alarm("job", "a", after=0)
            await trio.sleep_forever()
    assert _handled(log) == []
    await trio.testing.wait_all_tasks_blocked()
    assert _handled(log) == ["handle a"]


async def test_an_event_whose_scope_fails_on_the_way_out_is_followed_by_a_check(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """However an event ended, what is due runs (R41)."""
    log = Log()
    failures = [LookupError("clean-up")]

    @asynccontextmanager
    async def scope(_: AlarmHost) -> AsyncIterator[None]:
        yield
        if failures:
            raise failures.pop()

    world = await open_inline_world(**log.options() | {"event_scope": scope})
    with pytest.raises(LookupError):
        async with world.host.event():
            await world.host.scheduler.schedule_alarm("job", "a", after=0)
    await trio.testing.wait_all_tasks_blocked()
    assert _handled(log) == ["handle a"]


async def test_the_clean_up_of_the_event_is_looked_at_too(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """The check comes after the scope has closed, so what its clean-up enrolled runs (R41)."""
    log = Log()

    @asynccontextmanager
    async def scope(host: AlarmHost) -> AsyncIterator[None]:
        yield
        if not log.lines:
            await host.scheduler.schedule_alarm("job", "late", after=0)

    world = await open_inline_world(**log.options() | {"event_scope": scope})
    async with world.host.event():
        pass
    await trio.testing.wait_all_tasks_blocked()
    assert _handled(log) == ["handle late"]


async def test_a_task_override_turns_the_check_on_and_off(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """`dispatch_after_event` is resolved in the task of the event (R2, R41)."""
    log = Log()
    world = await open_inline_world(**log.options())
    with schedule_configuration(ScheduleConfiguration(dispatch_after_event=False)):
        async with world.host.event():
            await world.host.scheduler.schedule_alarm("job", "a", after=0)
    await trio.testing.wait_all_tasks_blocked()
    assert _handled(log) == []
    async with world.host.event():
        pass
    await trio.testing.wait_all_tasks_blocked()
    assert _handled(log) == ["handle a"]


async def test_a_contradictory_override_is_logged_and_does_not_fail_the_event(
    open_inline_world: OpenWorld, mock_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """An event that cannot tell whether to check ends as it would have, unchecked (R1, R41)."""
    log = Log()
    world = await open_inline_world(**log.options())
    await world.host.scheduler.schedule_alarm("job", "a", after=0)
    with schedule_configuration(ScheduleConfiguration(minimum_retry_delay=7_200)):
        async with world.host.event():
            pass
    await trio.testing.wait_all_tasks_blocked()
    assert _handled(log) == []
    assert "dispatch_after_event" in caplog.text


async def test_a_pass_is_not_followed_by_a_check(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """Events are the application's; what falls due in a pass is the native alarm's (R41)."""
    log = Log()

    class Jobs(AlarmService, key="app/jobs"):
        job = Alarm(None)
        other = Alarm(None, lifecycle="manual")

    async def enrol(event: AlarmDue[Any]) -> None:
        await log.handle(event)
        # A manual alarm is not charged, so it is due at once.
        await event.host.scheduler.schedule_alarm(Jobs.other, "b", after=0)

    registration = Jobs.handlers(Jobs.job.handled_by(enrol), Jobs.other.handled_by(log.handle))
    world = await open_inline_world(**log.options() | {"alarms": registration})
    await world.host.scheduler.schedule_alarm(Jobs.job, "a", after=0)
    assert await world.harness.deliver()
    await trio.testing.wait_all_tasks_blocked()
    assert log.lines == ["enter", "handle a", "leave"]
    assert world.native_alarm() == 0


async def test_many_events_at_once_need_few_checks(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """Checks that begin while a pass is under way join it; nothing runs twice (R21, R41)."""
    log = Log()
    world = await open_inline_world(**log.options())

    async def event(id: str) -> None:
        async with world.host.event():
            await world.host.scheduler.schedule_alarm("job", id, after=0)

    ids = [str(number) for number in range(20)]
    async with trio.open_nursery() as nursery:
        for id in ids:
            nursery.start_soon(event, id)
    await trio.testing.wait_all_tasks_blocked()
    await world.harness.settle()
    assert sorted(_handled(log)) == sorted(f"handle {id}" for id in ids)
    assert world.rows() == []


async def test_the_check_runs_in_the_hosts_context(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """What the event set in its context is not seen by the pass after it (R41)."""
    seen: list[str] = []

    async def note(_: AlarmDue[Any]) -> None:
        seen.append(request_id.get())

    world = await open_inline_world(alarms=process_due(note), configuration=AFTER_EVENT)
    request_id.set("of the test")
    async with world.host.event():
        request_id.set("of the event")
        await world.host.scheduler.schedule_alarm("job", "a", after=0)
    await trio.testing.wait_all_tasks_blocked()
    assert seen == ["none"]


async def test_an_override_around_the_event_does_not_reach_the_pass_after_it(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """Policy of the event's task is not that of the host's tasks (R2, R41)."""
    log = Log()
    world = await open_inline_world(**log.options())
    budget = ScheduleConfiguration(minimum_retry_delay=600)

    async def fail(_: AlarmDue[Any]) -> None:
        raise LookupError

    await world.harness.reopen(alarms=process_due(fail))
    with schedule_configuration(budget):
        async with world.host.event():
            await world.host.scheduler.schedule_alarm("job", "a", after=0)
        await trio.testing.wait_all_tasks_blocked()
    assert world.native_alarm() == 1_000


async def test_a_check_inside_a_transaction_block_of_the_event_is_not_in_the_block(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """An event inside a block: the pass waits for the commit, and is not part of it (R12, R41)."""
    log = Log()
    world = await open_inline_world(**log.options())
    await world.host.scheduler.schedule_alarm("job", "a", after=0)
    async with world.host.scheduler.transaction() as tx:
        async with world.host.event():
            await tx.schedule_alarm("job", "b", after=0)
        await trio.testing.wait_all_tasks_blocked()
        assert _handled(log) == []
    await trio.testing.wait_all_tasks_blocked()
    assert _handled(log) == ["handle a", "handle b"]


async def test_the_driver_runs_in_the_context_that_the_host_was_opened_in(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Tasks of the host start from the context at opening, out of all blocks (R41)."""
    seen: list[str] = []

    async def note(_: AlarmDue[Any]) -> None:
        seen.append(request_id.get())

    request_id.set("at opening")
    async with open_host(":memory:", alarms=process_due(note)) as host:
        request_id.set("later")
        await host.scheduler.schedule_alarm("job", "a", after=5)
        mock_clock.jump(5)
        await trio.testing.wait_all_tasks_blocked()
    assert seen == ["at opening"]


async def test_the_driver_is_outside_of_what_its_opener_was_inside_of(
    mock_clock: trio.testing.MockClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The tasks of a host that was opened inside a block are not part of the block (R12, R41)."""
    log = Log()
    path = tmp_path / "alarms.db"
    inner = open_host(path, name="inner", storage=INLINE, alarms=process_due(log.handle))
    async with open_test_host(path, name="inner", storage=INLINE) as harness:
        await harness.host.scheduler.schedule_alarm("job", "a", after=5)
    async with (
        open_test_host(path, name="outer", storage=INLINE) as outer,
        AsyncExitStack() as stack,
    ):
        async with outer.host.scheduler.transaction():
            await stack.enter_async_context(inner)
            mock_clock.jump(5)
            await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked()
        assert log.lines == ["handle a"]
    assert caplog.records == []


async def test_an_event_that_ends_with_its_host_starts_no_pass(
    mock_clock: object,
) -> None:
    """Leaving the host right after an event starts nothing; what is due stays due (R41)."""
    log = Log()
    async with open_test_host(**log.options()) as harness:
        async with harness.host.event():
            await harness.host.scheduler.schedule_alarm("job", "a", after=0)
        await harness.reopen(configuration=ScheduleConfiguration())
        assert _handled(log) == []
        status = await harness.host.scheduler.get_alarm_status("job", "a")
        assert status is not None
        assert status.attempts == 0
        await harness.settle()
        assert _handled(log) == ["handle a"]


async def test_an_event_that_outlives_its_host_is_no_trouble(
    mock_clock: object,
) -> None:
    """An event that another task still has open ends by itself; its writes are refused (R41)."""
    log = Log()
    async with trio.open_nursery() as nursery, open_test_host(**log.options()) as harness:
        opened, leave = trio.Event(), trio.Event()
        host = harness.host

        async def event() -> None:
            async with host.event():
                opened.set()
                await leave.wait()

        nursery.start_soon(event)
        await opened.wait()
        await host.scheduler.schedule_alarm("job", "a", after=0)
        await harness.reopen()
        leave.set()
        await trio.testing.wait_all_tasks_blocked()
        assert log.lines == ["enter", "leave"]


async def test_an_unmanaged_host_checks_nothing(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """A post-event check of an unmanaged host runs no raw hook and writes nothing (R35, R41)."""

    async def hook(_: AlarmHost) -> None:
        pytest.fail("nothing was delivered")

    world = await open_inline_world(raw_alarm=hook, configuration=AFTER_EVENT)
    await world.host.native_alarm.set(world.host.now())
    async with world.host.event():
        pass
    await trio.testing.wait_all_tasks_blocked()
    assert world.native_alarm() == 0


async def test_a_failing_check_is_raised_by_the_next_harness_call(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """What a pass after an event raised is not lost (R41)."""

    async def fail(_: AlarmHost) -> None:
        raise LookupError("hook")

    world = await open_inline_world(raw_alarm=fail, configuration=AFTER_EVENT)
    async with world.host.event():
        await world.host.scheduler.schedule_alarm("job", "a", after=0)
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(LookupError, match="hook"):
        await world.harness.advance(0)


async def test_a_failing_check_is_logged_without_a_harness(
    mock_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """A failing pass after an event is logged with its traceback; the host goes on (R41, R51)."""

    async def fail(_: AlarmHost) -> None:
        raise LookupError("hook")

    async with open_host(
        ":memory:", raw_alarm=fail, configuration=AFTER_EVENT, driver=False
    ) as host:
        async with host.event():
            await host.scheduler.schedule_alarm("job", "a", after=0)
        await trio.testing.wait_all_tasks_blocked()
        assert len([record for record in caplog.records if record.exc_info]) == 1
        assert "LookupError: hook" in caplog.text
        status = await host.scheduler.get_alarm_status("job", "a")
        assert status is not None
