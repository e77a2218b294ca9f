"""Rows that a commit brought along, and that do not begin all the same (R6, R27, R53)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from tests.behaviour.group_tools import (
    Call,
    Calls,
    commit_under_way,
    fail,
    idle,
    open_watched,
    schedule,
    stored,
    until,
)
from tests.behaviour.storage_tools import error_of
from trio_alarms import AlarmDue, DispatchOptions, StorageOperationError

if TYPE_CHECKING:
    from tests.behaviour.conftest import OpenWorld


# Trio's own draw: whether tasks that became runnable together run first come, first served.
@pytest.mark.parametrize("draw", [0.9, 0.1], ids=["in order", "reversed"])
async def test_a_row_does_not_start_where_the_commit_that_brought_it_failed(
    mock_clock: trio.testing.MockClock,
    open_world: OpenWorld,
    storage_kind: str,
    monkeypatch: pytest.MonkeyPatch,
    draw: float,
) -> None:
    """It was re-read in the commit's trip, with an acknowledgement that was not stored (R53)."""
    started: list[str] = []
    go = trio.Event()

    async def handler(event: AlarmDue[Any]) -> None:
        started.append(event.id)
        await go.wait()

    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    scheduler = world.host.scheduler
    for number in range(4):
        await scheduler.schedule_alarm("due", f"{number}", after=0)
    options = DispatchOptions(concurrency=2)
    async with trio.open_nursery() as nursery:
        dispatch = await Calls(nursery, watch).start(
            lambda: scheduler.process_due_alarms(handler, options)
        )
        await until(lambda: len(started) == 2)
        async with commit_under_way(world, watch, storage_kind) as calls:
            # Who leads is not of the dispatch, so that its tasks learn of the failure later.
            leader = await calls.start(schedule(world.host, "leader"))
            calls.at_commit(1, fail)
            go.set()
            await trio.testing.wait_all_tasks_blocked()
            monkeypatch.setattr("trio._core._run._r.random", lambda: draw)
    assert isinstance(leader.error, StorageOperationError)
    assert dispatch.outcome == "error"
    assert sorted(started) == ["0", "1"]
    assert sorted(row.id for row in world.rows() if row.tag == "due") == ["0", "1", "2", "3"]
    assert stored(world) == {}
    # What was handled stays in hand until it is acknowledged, and nothing else (R6, R53).
    runtime = world.host._runtime
    assert sorted(ref.id for ref in runtime.writer.in_hand) == ["0", "1"]
    assert runtime.dispatch_state.running == {}


@pytest.mark.parametrize("draw", [0.0, 0.9])
async def test_a_row_that_was_brought_along_does_not_start_once_the_host_closes(
    mock_clock: trio.testing.MockClock,
    open_world: OpenWorld,
    storage_kind: str,
    monkeypatch: pytest.MonkeyPatch,
    draw: float,
) -> None:
    """Closing began in the turn of the loop between its re-read and its start (R6, R27)."""
    started: list[str] = []
    go = trio.Event()

    async def handler(event: AlarmDue[Any]) -> None:
        started.append(event.id)
        await go.wait()

    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    scheduler = world.host.scheduler
    runtime = world.host._runtime
    for number in range(4):
        await scheduler.schedule_alarm("due", f"{number}", after=0)
    options = DispatchOptions(concurrency=2)

    async def write_and_close() -> None:
        await scheduler.schedule_alarm("later", "a", after=60)
        runtime.dispatch_state.closing = True

    async with trio.open_nursery() as nursery:
        dispatch = await Calls(nursery, watch).start(
            lambda: scheduler.process_due_alarms(handler, options)
        )
        await until(lambda: len(started) == 2)
        async with commit_under_way(world, watch, storage_kind) as calls:
            # Whoever closes shares the commit that brings the rows along, but does not lead.
            await calls.start(schedule(world.host, "leader"))
            await calls.start(write_and_close)
            go.set()
            await trio.testing.wait_all_tasks_blocked()
            monkeypatch.setattr("trio._core._run._r.random", lambda: draw)
    assert dispatch.outcome == "value"
    assert sorted(started) == ["0", "1"]
    assert sorted(row.id for row in world.rows() if row.tag == "due") == ["2", "3"]
    assert runtime.writer.in_hand == {}
    assert runtime.dispatch_state.running == {}


@pytest.mark.parametrize("how", ["cancelled", "error"])
async def test_rows_that_were_about_to_start_are_let_go_where_nothing_starts(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str, how: str
) -> None:
    """Several were in hand, to start at once, as the pass was cancelled or failed (R6, R27)."""
    started: list[str] = []

    async def handler(event: AlarmDue[Any]) -> None:
        started.append(event.id)

    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    scheduler = world.host.scheduler
    for number in range(4):
        await scheduler.schedule_alarm("due", f"{number}", after=0)
    # Nobody serves it; it is moved in the second commit, after the guard's.
    await scheduler.schedule_alarm("manual", "1", after=0, lifecycle="manual")
    dispatch = Call(partial(scheduler.process_due_alarms, handler, DispatchOptions(concurrency=3)))
    async with trio.open_nursery() as nursery:
        calls = Calls(nursery, watch)
        if how == "cancelled":
            calls.at_commit(2, lambda: watch.in_loop(dispatch.scope.cancel))
        else:
            calls.at_commit(2, fail)
        nursery.start_soon(calls._run, dispatch)
    assert dispatch.outcome == how
    assert started == []
    runtime = world.host._runtime
    assert runtime.writer.in_hand == {}
    assert runtime.dispatch_state.running == {}
    assert idle(world.host)
    await world.step()
    # Of the manual one it says that nobody serves it.
    await error_of(partial(world.host.scheduler.process_due_alarms, handler))
    assert started == ["0", "1", "2", "3"]
