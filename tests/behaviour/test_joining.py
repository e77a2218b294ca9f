"""One pass at a time, and what becomes of those who come while one is under way (R21)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from trio_alarms import (
    AlarmDue,
    AlarmHost,
    AlarmPassError,
    ScheduleConfiguration,
    StorageOperationError,
    open_host,
)

from .conftest import OpenWorld
from .services import Held, Recorder, fine, serving


class Scope:
    """An event scope that can be held on its way in and on its way out."""

    def __init__(self) -> None:
        self.entered = 0
        self.left = 0
        self.hold_entry = False
        self.hold_exit = False
        self.reached = trio.Event()
        self.go_on = trio.Event()

    @asynccontextmanager
    async def __call__(self, _: AlarmHost) -> AsyncIterator[None]:
        """Enter and leave, each when it is let."""
        self.entered += 1
        if self.hold_entry:
            self.reached.set()
            await self.go_on.wait()
        yield
        if self.hold_exit:
            self.reached.set()
            await self.go_on.wait()
        self.left += 1


async def test_a_delivery_joins_the_pass_under_way_and_starts_none(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Two deliveries make one pass and one run of the handler (R21)."""
    handler = Held()
    world = await open_world(alarms=serving({"ring": handler}))
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    delivered: list[bool] = []

    async def deliver() -> None:
        delivered.append(await world.host.deliver_native_alarm(force=True))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver)
        await handler.until_started(1)
        nursery.start_soon(deliver)
        nursery.start_soon(deliver)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert delivered == []
        handler.let_go()
    assert delivered == [True, True, True]
    assert handler.started == ["1"]
    assert world.rows() == []


@pytest.mark.parametrize("stage", ["waiting", "acquiring", "dispatching", "cleaning up"])
async def test_a_joiner_returns_when_the_event_scopes_clean_up_is_over(
    stage: str, open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Whatever stage the pass is in when it is joined, its end is its scope's end (R21)."""
    handler, scope = Held(), Scope()
    scope.hold_entry = stage == "acquiring"
    scope.hold_exit = stage != "acquiring"
    world = await open_inline_world(alarms=serving({"ring": handler}), event_scope=scope)
    scheduler = world.host.scheduler
    await scheduler.schedule_alarm("ring", "1", after=0)
    maintenance_over = trio.Event()
    ends: list[str] = []

    async def maintain(task_status: trio.TaskStatus[None]) -> None:
        async with scheduler.defer_wakes():
            task_status.started()
            await maintenance_over.wait()

    async def deliver(name: str) -> None:
        assert await world.host.deliver_native_alarm(force=True)
        ends.append(f"{name} after {scope.left} scopes")

    async with trio.open_nursery() as nursery:
        if stage == "waiting":
            await nursery.start(maintain)
        if stage == "cleaning up":
            handler.let_go()
        nursery.start_soon(deliver, "leader")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(deliver, "joiner")
        await trio.testing.wait_all_tasks_blocked()
        assert ends == []
        maintenance_over.set()
        handler.let_go()
        await trio.testing.wait_all_tasks_blocked()
        assert scope.reached.is_set()
        assert ends == []
        scope.go_on.set()
    assert sorted(ends) == ["joiner after 1 scopes", "leader after 1 scopes"]
    assert (scope.entered, handler.started) == (1, ["1"])


async def test_a_native_delivery_that_joins_arms_the_guard_again(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """A timestamp that the platform has consumed is replaced by the guard at once (R21, R18)."""
    handler = Held()
    world = await open_world(alarms=serving({"ring": handler}))
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        await handler.until_started(1)
        mock_clock.jump(20)
        await world.harness.consume_native_alarm()
        assert world.native_alarm() is None
        joined = trio.Event()

        async def join() -> None:
            joined.set()
            await world.host.deliver_native_alarm(force=True)

        nursery.start_soon(join)
        await joined.wait()
        for _ in range(100):
            if world.native_alarm() is not None:
                break
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert world.native_alarm() == 21_000
        handler.let_go()
    assert handler.started == ["1"]


async def test_joining_the_delivery_of_a_raw_hook_arms_nothing(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """The native alarm of a host that is not managed is the application's (R21, R35)."""
    release, entered = trio.Event(), trio.Event()
    runs: list[str] = []

    async def raw(_: AlarmHost) -> None:
        runs.append("raw")
        entered.set()
        await release.wait()

    world = await open_inline_world(raw_alarm=raw)
    await world.host.native_alarm.set(world.host.now())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        await entered.wait()
        nursery.start_soon(world.host.deliver_native_alarm)
        await trio.testing.wait_all_tasks_blocked()
        assert world.sql("SELECT managed, native_alarm FROM trio_alarms_hosts") == [
            (0, world.epoch_ms)
        ]
        release.set()
    assert runs == ["raw"]
    assert world.native_alarm() is None


async def test_a_post_event_check_joins_without_arming_anything(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Only a native delivery re-arms when it joins; a post-event check writes nothing (R21)."""
    handler = Held()
    world = await open_inline_world(
        alarms=serving({"ring": handler}),
        configuration=ScheduleConfiguration(dispatch_after_event=True),
    )
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        await handler.until_started(1)
        await world.harness.consume_native_alarm()
        async with world.host.event():
            pass
        await trio.testing.wait_all_tasks_blocked()
        assert world.native_alarm() is None
        handler.let_go()
    assert handler.started == ["1"]


async def test_the_failure_of_a_joined_pass_reaches_the_joiner_as_alarm_pass_error(
    open_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """The leader gets the error itself, a joiner an `AlarmPassError` with it as cause (R21)."""
    error = ValueError("out of paint")
    handler = Held(error)
    world = await open_world(alarms=serving(manual={"paint": handler}))
    await world.host.scheduler.schedule_alarm("paint", "1", after=0, lifecycle="manual")
    caught: list[Exception] = []

    async def deliver() -> None:
        try:
            await world.host.deliver_native_alarm(force=True)
        except Exception as raised:  # noqa: BLE001 - what is raised is what is tested
            caught.append(raised)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver)
        await handler.until_started(1)
        nursery.start_soon(deliver)
        await trio.testing.wait_all_tasks_blocked(0.01)
        handler.let_go()
    leader, joiner = sorted(caught, key=lambda raised: isinstance(raised, AlarmPassError))
    assert leader is error
    assert isinstance(joiner, AlarmPassError)
    assert joiner.__cause__ is error


async def test_a_joiner_of_a_cancelled_pass_runs_one_itself(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """The leader's cancellation is the leader's own; of three joiners one leads on (R21)."""
    handler = Held()
    world = await open_inline_world(alarms=serving({"ring": handler}))
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    leading = trio.CancelScope()
    delivered: list[bool] = []

    async def lead() -> None:
        with leading:
            await world.host.deliver_native_alarm()

    async def join() -> None:
        delivered.append(await world.host.deliver_native_alarm(force=True))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lead)
        await handler.until_started(1)
        for _ in range(3):
            nursery.start_soon(join)
        await trio.testing.wait_all_tasks_blocked()
        leading.cancel()
        await handler.until_started(2)
        await trio.testing.wait_all_tasks_blocked()
        assert delivered == []
        assert handler.running == 1
        handler.let_go()
    assert leading.cancelled_caught
    assert delivered == [True, True, True]
    assert handler.started == ["1", "1"]
    assert handler.most == 1
    assert world.rows() == []


async def test_a_post_event_joiner_of_a_cancelled_pass_runs_one_itself(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """What an event's end found due runs although the pass that it joined was cancelled (R21)."""
    handler = Held()
    world = await open_inline_world(
        alarms=serving({"ring": handler}),
        configuration=ScheduleConfiguration(dispatch_after_event=True),
    )
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        await handler.until_started(1)
        async with world.host.event():
            pass
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    await handler.until_started(2)
    handler.let_go()
    await trio.testing.wait_all_tasks_blocked()
    assert world.rows() == []


async def test_a_cancelled_joiner_does_not_disturb_the_pass(
    open_inline_world: OpenWorld, mock_clock: trio.testing.MockClock
) -> None:
    """Joining is only waiting (R21)."""
    handler = Held()
    world = await open_inline_world(alarms=serving({"ring": handler}))
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.host.deliver_native_alarm)
        await handler.until_started(1)
        with trio.move_on_after(1) as joining:
            async with trio.open_nursery() as other:
                other.start_soon(world.host.deliver_native_alarm)
                other.start_soon(world.host.deliver_native_alarm)
                await trio.testing.wait_all_tasks_blocked()
                joining.cancel()
        assert handler.running == 1
        handler.let_go()
    assert handler.started == handler.ended == ["1"]
    assert world.rows() == []


async def test_a_joiner_starts_no_pass_while_the_host_closes(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """The pass that is cancelled by closing is not run again by who joined it (R21)."""
    handler = Held()
    caught: list[Exception] = []
    opening = open_host(
        tmp_path / "alarms.db", alarms=serving({"ring": handler}), driver=False, drain_timeout=0
    )
    async with trio.open_nursery() as nursery, opening as host:

        async def deliver() -> None:
            try:
                await host.deliver_native_alarm(force=True)
            except Exception as error:  # noqa: BLE001 - what is raised is what is tested
                caught.append(error)

        await host.scheduler.schedule_alarm("ring", "1", after=0)
        nursery.start_soon(deliver)
        await handler.until_started(1)
        nursery.start_soon(deliver)
        await trio.testing.wait_all_tasks_blocked()
    assert handler.started == handler.cancelled == ["1"]
    assert [isinstance(error, StorageOperationError) for error in caught] == [True, True]


async def test_no_delivery_is_started_or_joined_after_the_host_is_left(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """A closed host refuses deliveries, due or not (R21)."""
    async with open_host(tmp_path / "alarms.db", alarms=serving({"ring": fine})) as host:
        pass
    for force in (False, True):
        with pytest.raises(StorageOperationError, match="closed"):
            await host.deliver_native_alarm(force=force)


class Asking:
    """Asks for a delivery, and keeps what came of it."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    async def ask(self, host: AlarmHost, *, force: bool = True) -> None:
        """Ask, and do not wait for long."""
        with trio.fail_after(1):
            try:
                await host.deliver_native_alarm(force=force)
            except AlarmPassError as error:
                self.errors.append(error)


@pytest.mark.parametrize("delivery", ["forced", "due"])
async def test_a_handler_that_asks_for_a_delivery_gets_an_error_at_once(
    delivery: str, open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """A handler, its tasks and what it leaves in the event's nursery are in the pass (R21)."""
    force = delivery == "forced"
    asking = Asking()

    async def ring(event: AlarmDue[Any]) -> None:
        await asking.ask(event.host, force=force)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_later, event.host)
        event.scope.nursery.start_soon(ask_later, event.host)

    async def ask_later(host: AlarmHost) -> None:
        await trio.sleep(0.1)
        await asking.ask(host, force=force)

    world = await open_inline_world(alarms=serving({"ring": ring}))
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    await world.harness.deliver()
    assert len(asking.errors) == 3
    assert world.rows() == []


async def test_a_pass_cannot_be_asked_for_from_its_event_scope_or_its_hook(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """The scope's way in and out and the dispatcher belong to the pass (R21)."""
    asking = Asking()

    @asynccontextmanager
    async def scope(host: AlarmHost) -> AsyncIterator[None]:
        await asking.ask(host)
        yield
        await asking.ask(host)

    async def dispatch(host: AlarmHost) -> None:
        await asking.ask(host)

    world = await open_inline_world(alarms=dispatch, event_scope=scope)
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    await world.harness.deliver()
    assert len(asking.errors) == 3


async def test_a_delivery_cannot_be_asked_for_inside_ones_own_scope_or_transaction(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """It would wait for the end of the block that waits for it (R21)."""
    asking = Asking()
    world = await open_inline_world(alarms=serving({"ring": fine}))
    scheduler = world.host.scheduler
    async with scheduler.defer_wakes():
        await asking.ask(world.host)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking.ask, world.host)
    async with scheduler.transaction():
        await asking.ask(world.host)
    assert len(asking.errors) == 3
    await scheduler.schedule_alarm("ring", "1", after=0)
    assert await world.host.deliver_native_alarm()


async def test_a_handler_of_a_direct_run_cannot_ask_for_a_delivery(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """The run's own `defer_wakes` scope would be waited for (R21, R25)."""
    asking = Asking()
    world = await open_inline_world(alarms=serving({"ring": fine}))

    async def ring(event: AlarmDue[Any]) -> None:
        await asking.ask(event.host)

    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    await world.host.scheduler.process_due_alarms(ring)
    assert len(asking.errors) == 1


async def test_a_task_that_outlives_its_pass_may_ask_for_another(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """Being inside a pass ends with the pass (R21)."""
    handler = Recorder()
    asked = trio.Event()
    async with trio.open_nursery() as nursery:

        @asynccontextmanager
        async def scope(host: AlarmHost) -> AsyncIterator[None]:
            if not handler.events:
                nursery.start_soon(ask_much_later, host)
            yield

        async def ask_much_later(host: AlarmHost) -> None:
            await asked.wait()
            await host.deliver_native_alarm()

        world = await open_inline_world(alarms=serving({"ring": handler}), event_scope=scope)
        await world.host.scheduler.schedule_alarm("ring", "1", after=0)
        await world.harness.deliver()
        await world.host.scheduler.schedule_alarm("ring", "2", after=0)
        asked.set()
    assert handler.ids == ["1", "2"]


async def test_a_delivery_beside_anothers_scope_or_transaction_just_waits(
    open_inline_world: OpenWorld, autojump_clock: trio.testing.MockClock
) -> None:
    """Only one's own blocks would be waited for in vain (R21)."""
    handler = Recorder()
    world = await open_inline_world(alarms=serving({"ring": handler}))
    scheduler = world.host.scheduler
    await scheduler.schedule_alarm("ring", "1", after=0)

    async def write(task_status: trio.TaskStatus[None]) -> None:
        async with scheduler.transaction():
            task_status.started()
            await trio.sleep(3)

    async with trio.open_nursery() as nursery:
        await nursery.start(write)
        assert await world.host.deliver_native_alarm()
        assert trio.current_time() >= 3
    assert handler.ids == ["1"]
