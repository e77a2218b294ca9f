"""What others do to an alarm while its handler runs (R6, R9, R28)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock

from tests.behaviour.work_service import (
    HeldHandler,
    Note,
    Work,
    at,
    delivering,
    fail,
    plain,
    stored,
    work,
)
from trio_alarms import AlarmFailure, DispatchOptions, FailureAction, ScheduleConfiguration

if TYPE_CHECKING:
    from tests.behaviour.conftest import OpenWorld
    from trio_alarms import AlarmDue


# While a row is in hand


async def test_a_row_that_is_only_selected_keeps_its_deadline(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """In hand is what has started, not what waits for its turn (R6)."""
    handler = HeldHandler()
    world = await open_world(alarms=work(handler))
    await plain(world, run_at=at(0))
    await plain(world, id="b", run_at=at(0))
    async with delivering(world, handler):
        status = await plain(world, "schedule_alarm_earlier", id="b", run_at=at(9_000))
    assert status.run_at == at(0)
    assert handler.ids == ["a"]


async def test_a_row_is_in_hand_while_on_failure_decides(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Until its failure is recorded it has no deadline left to keep (R6)."""
    asked, may_answer = trio.Event(), trio.Event()

    async def think(failure: AlarmFailure) -> FailureAction | None:
        asked.set()
        await may_answer.wait()
        return None

    world = await open_world(alarms=work(fail, options=DispatchOptions(on_failure=think)))
    await plain(world, run_at=at(0))
    await world.step()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.harness.deliver)
        await asked.wait()
        status = await plain(world, "schedule_alarm_earlier", run_at=at(9_000))
        may_answer.set()
    assert (status.run_at, status.attempts) == (at(9_000), 0)
    assert (stored(world).run_at, stored(world).attempts) == (9_000, 0)


async def test_a_manual_row_is_in_hand_until_the_pass_has_moved_it(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """After its handler returned it still takes the given deadline (R6, R29)."""
    other = HeldHandler()
    ran = trio.Event()

    async def note(event: AlarmDue[Note]) -> None:
        await trio.lowlevel.checkpoint()
        ran.set()

    world = await open_world(alarms=work(other, manual=note))
    await world.host.service(Work).schedule_alarm(
        Work.manual, "m", run_at=at(0), payload=Note("first")
    )
    await plain(world, run_at=at(0))
    async with delivering(world, other):
        await ran.wait()
        await trio.testing.wait_all_tasks_blocked()
        status = await world.host.service(Work).schedule_alarm_earlier(
            Work.manual, "m", run_at=at(500_000), payload=Note("second")
        )
    assert status.run_at == at(500_000)
    assert stored(world, "m", "manual").run_at == 500_000


async def test_a_row_that_moved_is_no_longer_in_hand(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """What the handler scheduled anew has a deadline to keep (R6)."""
    handler = HeldHandler()

    async def rearm_and_wait(event: AlarmDue[Note]) -> None:
        await event.host.service(Work).schedule_alarm(
            Work.plain, "a", run_at=at(5_000), payload=Note("rearmed")
        )
        await handler(event)

    world = await open_world(alarms=work(rearm_and_wait))
    await plain(world, run_at=at(0))
    async with delivering(world, handler):
        status = await plain(world, "schedule_alarm_earlier", run_at=at(9_000))
    assert status.run_at == at(5_000)
    assert stored(world).payload == '{"text":"rearmed"}'


async def test_nothing_is_in_hand_after_the_pass(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """A row that backs off has its deadline again, and so has one whose pass was cancelled (R6)."""
    handler = HeldHandler()
    world = await open_world(alarms=work(handler))
    await plain(world, run_at=at(0))
    with trio.CancelScope() as scope:
        async with delivering(world, handler):
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert (await plain(world, "schedule_alarm_earlier", run_at=at(9_000))).run_at == at(0)
    handler.failures = 1
    handler.may_end.set()
    await world.harness.deliver()
    assert stored(world).attempts == 1
    assert (await plain(world, "schedule_alarm_earlier", run_at=at(9_000))).run_at == at(0)


# Replaced and cancelled while running


@pytest.mark.parametrize("ending", ["returns", "raises", "last attempt", "dies"])
async def test_an_alarm_set_anew_while_its_handler_runs_is_wholly_the_new_one(
    open_world: OpenWorld, mock_clock: MockClock, ending: str
) -> None:
    """However the handler ends: one row, the new values, no attempts (R28, C08)."""
    handler = HeldHandler(failures=1 if ending in ("raises", "last attempt") else 0)
    budget = 1 if ending == "last attempt" else 8
    world = await open_world(
        alarms=work(handler), configuration=ScheduleConfiguration(unchanged_attempt_budget=budget)
    )
    await plain(world, run_at=at(0))
    if ending == "dies":
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.harness.deliver)
            await handler.started.wait()
            await plain(world, run_at=at(9_000), payload=Note("second"))
            await world.harness.crash()
        handler.may_end.set()
        await world.harness.reopen()
    else:
        async with delivering(world, handler):
            await plain(world, run_at=at(9_000), payload=Note("second"))
    row = stored(world)
    assert len(world.rows()) == 1
    assert (row.run_at, row.payload, row.attempts, row.parked) == (
        9_000,
        '{"text":"second"}',
        0,
        0,
    )
    handler.events.clear()
    await world.harness.advance(10)
    assert [event.payload.text for event in handler.events] == ["second"]


@pytest.mark.parametrize("ending", ["returns", "raises", "dies"])
@pytest.mark.parametrize("repeat_every", [None, 60])
async def test_an_alarm_cancelled_while_its_handler_runs_never_runs_again(
    open_world: OpenWorld, mock_clock: MockClock, ending: str, repeat_every: int | None
) -> None:
    """However the handler ends it stays cancelled, and a later schedule is fresh (R9, C13)."""
    handler = HeldHandler(failures=1 if ending == "raises" else 0)
    world = await open_world(alarms=work(handler))
    await plain(world, run_at=at(0), repeat_every=repeat_every)
    if ending == "dies":
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.harness.deliver)
            await handler.started.wait()
            await world.host.service(Work).cancel_alarm(Work.plain, "a")
            await world.harness.crash()
        handler.may_end.set()
        await world.harness.reopen()
    else:
        async with delivering(world, handler):
            await world.host.service(Work).cancel_alarm(Work.plain, "a")
    assert world.rows() == []
    handler.events.clear()
    await world.harness.advance(3_600)
    assert handler.events == []
    await plain(world, after=0)
    row = stored(world)
    assert (row.attempts, row.parked, row.progress) == (0, 0, -1)


async def test_cancelling_forgets_the_attempts(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The attempt state goes with the row (R9)."""
    world = await open_world(
        alarms=work(fail), configuration=ScheduleConfiguration(unchanged_attempt_budget=1)
    )
    await plain(world, run_at=at(0), progress=5)
    await world.harness.deliver()
    assert stored(world).parked == 1
    await world.step()
    assert await world.host.service(Work).cancel_alarm(Work.plain, "a")
    await plain(world, run_at=at(0), progress=1)
    row = stored(world)
    assert (row.attempts, row.parked, row.progress, row.retry_at) == (0, 0, 1, None)
