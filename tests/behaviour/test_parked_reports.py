"""Reports of parked alarms: which, when, where, and what a bad reporter can do (R16)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import trio

from tests.behaviour.conftest import OpenWorld, World
from tests.behaviour.storage_tools import (
    allow_reconciling,
    error_of,
    refuse_reconciling,
)
from trio_alarms import (
    AlarmDue,
    AlarmHost,
    AlarmParked,
    DispatchOptions,
    DispatchResult,
    ScheduleConfiguration,
    StorageOperationError,
    alarm_reporter,
)

PARKS_AT_ONCE = ScheduleConfiguration(unchanged_attempt_budget=1)
HOUR = timedelta(hours=1)

Handler = Callable[[AlarmDue[Any]], Awaitable[None]]


class Reports:
    """A reporter that keeps what it gets, and a dispatcher whose handler the test sets."""

    def __init__(self) -> None:
        self.got: list[AlarmParked] = []
        self.handler: Handler = self.fail
        self.results: list[DispatchResult] = []
        self.options = DispatchOptions()

    async def __call__(self, parked: AlarmParked) -> None:
        """Keep a report."""
        self.got.append(parked)

    async def dispatch(self, host: AlarmHost) -> None:
        """Dispatch what is due."""
        self.results.append(await host.scheduler.process_due_alarms(self.handler, self.options))

    async def fail(self, _: object) -> None:
        """Handle an alarm without success."""
        raise ValueError("the handler's")


@pytest.fixture
def reports() -> Reports:
    """The reporter and dispatcher of the world."""
    return Reports()


async def open_parking(open_world: OpenWorld, reports: Reports, **options: Any) -> World:
    """A world that parks at the first unchanged attempt."""
    options.setdefault("reporter", reports)
    return await open_world(alarms=reports.dispatch, configuration=PARKS_AT_ONCE, **options)


async def deliver(world: World, *ids: str) -> None:
    """Make alarms due now, and deliver them."""
    for id in ids:
        await world.host.scheduler.schedule_alarm("work", id, after=0)
    await world.harness.deliver()


async def test_a_failure_that_parks_is_reported_once_and_after_its_commit(
    mock_clock: object, open_world: OpenWorld, reports: Reports
) -> None:
    """The alarm that a failure newly parked is reported when that is durable (R16)."""
    seen: list[Any] = []

    async def reporter(parked: AlarmParked) -> None:
        await reports(parked)
        seen.append(world.rows()[0].parked)

    world = await open_parking(open_world, reports, reporter=reporter)
    await deliver(world, "a")
    assert reports.got == [AlarmParked(attempts=1, retry_at=world.host.now() + HOUR)]
    assert seen == [1]
    assert [result.parked for result in reports.results] == [tuple(reports.got)]


async def test_a_parked_episode_is_reported_once(
    mock_clock: object, open_world: OpenWorld, reports: Reports
) -> None:
    """A parked alarm that fails again is not reported; one that was freed in between is (R16)."""
    world = await open_parking(open_world, reports)
    await deliver(world, "a")
    for _ in range(3):
        await world.step()
        await world.harness.advance(3_600)
    assert len(reports.got) == 1
    assert world.rows()[0].parked
    await deliver(world, "a")
    assert len(reports.got) == 2


async def test_each_newly_parked_alarm_of_a_transaction_is_reported(
    mock_clock: object, open_world: OpenWorld, reports: Reports
) -> None:
    """A block that parks several alarms reports each once, after it has committed (R16)."""
    counts: list[int] = []

    async def rearm(event: AlarmDue[Any]) -> None:
        async with event.host.scheduler.transaction() as tx:
            for id in ("a", "b", "c"):
                await tx.schedule_alarm("work", id, after=0)
            await tx.schedule_alarm("work", "a", after=1)
            await tx.cancel_alarm("work", "c")
            counts.append(len(reports.got))
        counts.append(len(reports.got))

    reports.handler = rearm
    world = await open_parking(open_world, reports)
    await deliver(world, "a")
    assert counts == [0, 2]
    assert reports.got == [AlarmParked(attempts=1, retry_at=world.host.now() + HOUR)] * 2
    assert reports.results[0].parked == tuple(reports.got)


async def test_the_report_shows_the_effective_wake(
    mock_clock: object, open_world: OpenWorld, reports: Reports
) -> None:
    """`retry_at` of a report is when the alarm wakes, be its deadline later (R16)."""

    async def rearm(event: AlarmDue[Any]) -> None:
        await event.host.scheduler.schedule_alarm("work", "a", after=7_200)

    reports.handler = rearm
    world = await open_parking(open_world, reports)
    await deliver(world, "a")
    assert reports.got == [AlarmParked(attempts=1, retry_at=world.host.now() + 2 * HOUR)]


@pytest.mark.parametrize("undone", ["block", "savepoint", "reconciliation", "cancellation"])
async def test_what_is_not_committed_is_not_reported(
    mock_clock: object, open_world: OpenWorld, reports: Reports, undone: str
) -> None:
    """Parking that was rolled back, undone or not committed is not reported (R16)."""

    async def park(event: AlarmDue[Any]) -> None:
        async with event.host.scheduler.transaction() as tx:
            await tx.schedule_alarm("work", "b", after=0)
            if undone == "cancellation":
                scope.cancel()
            elif undone != "reconciliation":
                raise ValueError(undone)

    async def rearm(event: AlarmDue[Any]) -> None:
        if undone == "savepoint":
            async with event.host.scheduler.transaction():
                await error_of(partial(park, event))
        elif undone == "reconciliation":
            # Past the guard, so that the commit has to set it anew.
            await world.harness.set_time(world.host.now() + timedelta(seconds=5))
            refuse_reconciling(world)
            error = await error_of(partial(park, event))
            assert isinstance(error, StorageOperationError)
            allow_reconciling(world)
        else:
            with scope:
                await error_of(partial(park, event))

    scope = trio.CancelScope()
    reports.handler = rearm
    world = await open_parking(open_world, reports)
    await deliver(world, "a")
    assert reports.got == []
    assert reports.results[0].failed == ()
    assert world.rows() == []


async def test_it_runs_in_the_committing_task_outside_of_the_handling(
    mock_clock: object, open_world: OpenWorld, reports: Reports
) -> None:
    """A reporter runs where the commit was made, and what it schedules is fresh enrolment (R16)."""
    tasks: list[Any] = []

    async def reporter(parked: AlarmParked) -> None:
        await reports(parked)
        tasks.append(trio.lowlevel.current_task())
        async with world.host.scheduler.transaction() as tx:
            await tx.schedule_alarm("work", "by the reporter", after=60)
        await world.host.scheduler.schedule_alarm("work", "by the reporter too", after=60)

    async def rearm(event: AlarmDue[Any]) -> None:
        tasks.append(trio.lowlevel.current_task())
        await event.host.scheduler.schedule_alarm("work", "b", after=0)
        async with event.host.scheduler.transaction() as tx:
            await tx.schedule_alarm("work", "c", after=0)

    reports.handler = rearm
    world = await open_parking(open_world, reports, reporter=reporter)
    with trio.fail_after(1):
        await deliver(world, "a")
    assert len(reports.got) == 2
    assert len(set(tasks)) == 1
    enrolled = [row for row in world.rows() if row.id.startswith("by the reporter")]
    assert [(row.attempts, row.parked) for row in enrolled] == [(0, 0), (0, 0)]


async def test_it_runs_outside_of_a_handling_that_is_over(
    mock_clock: object, open_world: OpenWorld, reports: Reports
) -> None:
    """The reporter of a recorded failure can write, although the handling is over (R15, R16)."""

    async def reporter(parked: AlarmParked) -> None:
        await reports(parked)
        await world.host.scheduler.schedule_alarm("work", "by the reporter", after=60)

    world = await open_parking(open_world, reports, reporter=reporter)
    await deliver(world, "a")
    assert len(reports.got) == 1
    row = world.row("work", "by the reporter")
    assert row is not None
    assert (row.attempts, row.parked) == (0, 0)


async def test_a_reporter_that_raises_changes_nothing(
    mock_clock: object,
    open_world: OpenWorld,
    reports: Reports,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A reporter that raises is logged; the next report is made, and the call returns (R16)."""

    async def reporter(parked: AlarmParked) -> None:
        await reports(parked)
        raise RuntimeError("the reporter's")

    async def rearm(event: AlarmDue[Any]) -> None:
        async with event.host.scheduler.transaction() as tx:
            await tx.schedule_alarm("work", "b", after=0)
            await tx.schedule_alarm("work", "c", after=0)

    reports.handler = rearm
    world = await open_parking(open_world, reports, reporter=reporter)
    await deliver(world, "a")
    assert len(reports.got) == 2
    assert [row.id for row in world.rows()] == ["b", "c"]
    assert [len(result.handled) for result in reports.results] == [1]
    failures = [record for record in caplog.records if "reporter failed" in record.message]
    assert len(failures) == 2


async def test_reporters_take_at_most_five_seconds(
    autojump_clock: object,
    open_inline_world: OpenWorld,
    reports: Reports,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All reports of a commit together take at most 5 s, and the commit stands (R16)."""
    took: list[float] = []

    async def reporter(parked: AlarmParked) -> None:
        await reports(parked)
        await trio.sleep_forever()

    async def rearm(event: AlarmDue[Any]) -> None:
        began = trio.current_time()
        async with event.host.scheduler.transaction() as tx:
            for id in ("b", "c", "d"):
                await tx.schedule_alarm("work", id, after=0)
        took.append(trio.current_time() - began)

    reports.handler = rearm
    world = await open_parking(open_inline_world, reports, reporter=reporter)
    await deliver(world, "a")
    assert took == [pytest.approx(5)]
    assert len(reports.got) == 3
    assert [row.parked for row in world.rows()] == [1, 1, 1]
    assert "reporter was cancelled" in caplog.text


@pytest.mark.parametrize("in_a_block", [True, False])
async def test_a_report_is_shielded_from_cancellation(
    autojump_clock: object, open_inline_world: OpenWorld, reports: Reports, *, in_a_block: bool
) -> None:
    """A cancellation during the report neither cuts it short nor hides the commit (R11, R16)."""
    finished: list[str] = []

    async def reporter(parked: AlarmParked) -> None:
        scope.cancel()
        await trio.sleep(2)
        await reports(parked)

    async def rearm(event: AlarmDue[Any]) -> None:
        with scope:
            if in_a_block:
                async with event.host.scheduler.transaction() as tx:
                    await tx.schedule_alarm("work", "b", after=0)
            else:
                await event.host.scheduler.schedule_alarm("work", "b", after=0)
            finished.append("returned")
            await trio.lowlevel.checkpoint()
            finished.append("not cancelled")

    scope = trio.CancelScope()
    reports.handler = rearm
    world = await open_parking(open_inline_world, reports, reporter=reporter)
    await deliver(world, "a")
    assert len(reports.got) == 1
    assert finished == ["returned"]
    assert world.row("work", "b") is not None


async def test_an_override_of_the_task_gets_the_reports(
    mock_clock: object, open_world: OpenWorld, reports: Reports
) -> None:
    """`alarm_reporter` around the commit gets its reports instead of the host's (R16)."""
    other = Reports()

    async def rearm(event: AlarmDue[Any]) -> None:
        with alarm_reporter(other):
            await event.host.scheduler.schedule_alarm("work", "b", after=0)

    reports.handler = rearm
    world = await open_parking(open_world, reports)
    await deliver(world, "a")
    assert (len(reports.got), len(other.got)) == (0, 1)


async def test_without_a_reporter_it_is_logged_without_content(
    mock_clock: object, open_world: OpenWorld, reports: Reports, caplog: pytest.LogCaptureFixture
) -> None:
    """The default reporter warns on the logger, with neither tag nor id nor payload (R16)."""
    world = await open_parking(open_world, reports, reporter=None)
    await deliver(world, "the id")
    (record,) = [record for record in caplog.records if "parked after" in record.message]
    assert (record.name, record.levelno) == ("trio_alarms", logging.WARNING)
    assert "the id" not in record.getMessage()
    assert "work" not in record.getMessage()


async def test_a_reporter_that_parks_again_does_not_recurse_for_ever(
    mock_clock: object, open_world: OpenWorld, reports: Reports
) -> None:
    """A reporter may schedule the very alarm it was told of: that frees it (R4, R16)."""

    async def reporter(parked: AlarmParked) -> None:
        await reports(parked)
        await world.host.scheduler.schedule_alarm("work", "a", after=60)

    world = await open_parking(open_world, reports, reporter=reporter)
    with trio.fail_after(1):
        await deliver(world, "a")
    assert len(reports.got) == 1
    assert [(row.attempts, row.parked, row.run_at) for row in world.rows()] == [(0, 0, 60_000)]
