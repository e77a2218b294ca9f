from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
import trio
import trio.testing

from tests.behaviour.conftest import OpenWorld, World
from trio_alarms import (
    AlarmDue,
    AlarmHost,
    InvalidAlarmRefError,
    NativeAlarmOwnedError,
    ScheduleConfiguration,
    process_due,
)


async def _ignore(_: AlarmDue[Any]) -> None:
    pass


def _is_managed(world: World, name: str = "default") -> bool:
    found = world.sql("SELECT managed FROM trio_alarms_hosts WHERE name = ?", name)
    return bool(found and found[0][0])


async def _in(world: World, seconds: float) -> None:
    await world.host.native_alarm.set(world.host.now() + timedelta(seconds=seconds))


# Whose the native alarm is.


async def test_an_unmanaged_native_alarm_is_the_applications(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """Until the first alarm write the application sets and deletes the native alarm (R35)."""
    world = await open_world()
    assert await world.host.native_alarm.get() is None
    await _in(world, 5)
    await world.step()
    assert await world.host.native_alarm.get() == world.host.now() + timedelta(seconds=5)
    assert not _is_managed(world)
    await world.host.native_alarm.delete()
    assert await world.host.native_alarm.get() is None


async def _schedule(host: AlarmHost) -> None:
    await host.scheduler.schedule_alarm("job", "a", after=60)


async def _schedule_earlier(host: AlarmHost) -> None:
    await host.scheduler.schedule_alarm_earlier("job", "a", after=60)


async def _ensure(host: AlarmHost) -> None:
    await host.scheduler.ensure_alarm("job", "a", after=60)


async def _cancel(host: AlarmHost) -> None:
    await host.scheduler.cancel_alarm("job", "absent")


async def _block(host: AlarmHost) -> None:
    async with host.scheduler.transaction():
        pass


async def _defer(host: AlarmHost) -> None:
    async with host.scheduler.defer_wakes():
        pass


async def _dispatch(host: AlarmHost) -> None:
    await host.scheduler.process_due_alarms(_ignore)


async def _storage_block_with_an_alarm(host: AlarmHost) -> None:
    async with host.storage.transaction() as tx:
        await tx.cancel_alarm("job", "absent")


WRITES = [
    _schedule,
    _schedule_earlier,
    _ensure,
    _cancel,
    _block,
    _defer,
    _dispatch,
    _storage_block_with_an_alarm,
]


@pytest.mark.parametrize("write", WRITES)
async def test_the_first_alarm_write_makes_a_host_managed(
    open_world: OpenWorld,
    mock_clock: object,
    write: Callable[[AlarmHost], Awaitable[None]],
) -> None:
    """Each way of writing alarms hands the native alarm to the scheduler, for good (R35)."""
    world = await open_world()
    await _in(world, 5)
    await write(world.host)
    assert _is_managed(world)
    row = world.row("job", "a")
    assert world.native_alarm() == (None if row is None else row.wake_at)
    await world.step()
    before = world.native_alarm()
    with pytest.raises(NativeAlarmOwnedError, match="'default'"):
        await _in(world, 1)
    with pytest.raises(NativeAlarmOwnedError, match="'default'"):
        await world.host.native_alarm.delete()
    assert world.native_alarm() == before


@pytest.mark.parametrize("write", [_cancel, _block, _defer, _dispatch])
async def test_a_write_that_changes_nothing_makes_a_host_managed_too(
    open_world: OpenWorld,
    mock_clock: object,
    write: Callable[[AlarmHost], Awaitable[None]],
) -> None:
    """The mark is stored even where the native alarm stays as it is (R35)."""
    world = await open_world()
    await write(world.host)
    await world.step()
    assert _is_managed(world)
    with pytest.raises(NativeAlarmOwnedError):
        await _in(world, 5)


async def _status(host: AlarmHost) -> None:
    await host.scheduler.get_alarm_status("job", "a")


async def _list(host: AlarmHost) -> None:
    await host.scheduler.list_alarms()


async def _query(host: AlarmHost) -> None:
    await host.storage.query("SELECT 1")


async def _storage_block(host: AlarmHost) -> None:
    async with host.storage.transaction() as tx:
        await tx.execute("CREATE TABLE app (x)")
        await tx.get_alarm_status("job", "a")


async def _rolled_back_schedule(host: AlarmHost) -> None:
    with suppress(LookupError):
        async with host.storage.transaction() as tx:
            await tx.schedule_alarm("job", "a", after=60)
            raise LookupError


async def _event(host: AlarmHost) -> None:
    async with host.event():
        pass


async def _delivery(host: AlarmHost) -> None:
    assert not await host.deliver_native_alarm()


@pytest.mark.parametrize(
    "read",
    [_status, _list, _query, _storage_block, _rolled_back_schedule, _event, _delivery],
)
async def test_reads_do_not_make_a_host_managed(
    open_world: OpenWorld,
    mock_clock: object,
    read: Callable[[AlarmHost], Awaitable[None]],
) -> None:
    """Reads, events, and storage blocks without an alarm method leave the native alarm (R35)."""
    world = await open_world(configuration=ScheduleConfiguration(dispatch_after_event=True))
    await _in(world, 5)
    await read(world.host)
    await trio.testing.wait_all_tasks_blocked()
    await world.step()
    assert not _is_managed(world)
    assert world.native_alarm() == 5_000


async def test_the_first_reconciliation_replaces_what_was_set(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """An earlier timestamp of the application's does not survive the first alarm (R35)."""
    world = await open_world()
    await _in(world, 5)
    await world.step()
    await world.host.scheduler.schedule_alarm("job", "a", after=60)
    assert world.native_alarm() == 60_000


async def test_being_managed_is_a_mark_per_host_name(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """One host's alarms do not make another one of the same file managed (R35)."""
    world = await open_inline_world()
    other = await open_inline_world(name="other")
    await world.host.scheduler.schedule_alarm("job", "a", after=60)
    await _in(other, 5)
    assert not _is_managed(other, "other")
    assert other.native_alarm() == 5_000
    assert world.native_alarm() == 60_000


async def test_another_process_makes_a_host_managed(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """The mark is durable and read where it is stored, whoever wrote it (R20, R35)."""
    world = await open_inline_world(alarms=process_due(_ignore))
    await _in(world, 60)
    world.sql(
        "INSERT INTO trio_alarms_alarms SELECT name, 'job', 'a', 'automatic', ?, ?, NULL, NULL,"
        " -1, 0, 0, randomblob(16), 'null' FROM trio_alarms_hosts",
        world.epoch_ms + 5_000,
        world.epoch_ms + 5_000,
    )
    world.sql("UPDATE trio_alarms_hosts SET managed = 1, native_alarm = ?", world.epoch_ms + 5_000)
    with pytest.raises(NativeAlarmOwnedError):
        await world.host.native_alarm.delete()
    await world.harness.advance(5)
    assert world.rows() == []
    assert world.native_alarm() is None


async def test_opening_an_unmanaged_host_reconciles_nothing(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """Neither opening nor leaving touches the application's timestamp (R35)."""
    world = await open_world()
    await _in(world, 5)
    for _ in range(2):
        await world.harness.reopen()
        assert world.native_alarm() == 5_000
    assert not _is_managed(world)


@pytest.mark.parametrize("when", ["now", None, 5])
async def test_only_an_aware_datetime_can_be_set(
    open_inline_world: OpenWorld, mock_clock: object, when: Any
) -> None:
    """A bad timestamp is refused by name, and nothing is stored (R35)."""
    world = await open_inline_world()
    with pytest.raises(InvalidAlarmRefError, match="when"):
        await world.host.native_alarm.set(when)
    assert world.native_alarm() is None


async def test_setting_takes_part_in_the_tasks_block(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """Set in a storage block, the timestamp commits or rolls back with it (R13, R35)."""
    world = await open_inline_world()
    with suppress(LookupError):
        async with world.host.storage.transaction():
            await _in(world, 5)
            assert await world.host.native_alarm.get() is not None
            assert world.native_alarm() is None
            raise LookupError
    assert await world.host.native_alarm.get() is None
    async with world.host.storage.transaction():
        await _in(world, 7)
    assert world.native_alarm() == 7_000


async def test_the_driver_notices_a_timestamp_that_a_block_committed(
    open_inline_world: OpenWorld, autojump_clock: object
) -> None:
    """The driver is woken by the commit of the block, not by the call inside it (R35, R50)."""
    delivered = trio.Event()

    async def hook(_: AlarmHost) -> None:
        delivered.set()

    world = await open_inline_world(raw_alarm=hook, driver=True)
    await trio.testing.wait_all_tasks_blocked()
    async with world.host.storage.transaction():
        await _in(world, 5)
        await trio.testing.wait_all_tasks_blocked()
    with trio.fail_after(6):
        await delivered.wait()
    assert trio.current_time() == pytest.approx(5)


# Deliveries of a host that is not managed.


class Hook:
    """A raw hook that counts its runs and does what it is told."""

    def __init__(self, act: Callable[[AlarmHost], Awaitable[object]] | None = None) -> None:
        self.runs: list[float] = []
        self.act = act

    async def __call__(self, host: AlarmHost) -> None:
        """Run, as the host's raw hook."""
        self.runs.append(trio.current_time())
        if self.act is not None:
            await self.act(host)


async def _fail(_: AlarmHost) -> None:
    raise LookupError("hook")


async def _sleep(_: AlarmHost) -> None:
    await trio.sleep(10)


async def test_a_raw_delivery_runs_the_hook_and_clears_the_timestamp(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """The timestamp stays while the hook runs and is cleared when it returns (R35)."""
    during: list[int | None] = []
    hook = Hook()
    world = await open_world(raw_alarm=hook)

    async def look(_: AlarmHost) -> None:
        during.append(world.native_alarm())

    hook.act = look
    await _in(world, 5)
    await world.step()
    await world.harness.advance(5)
    assert hook.runs == [pytest.approx(5)]
    assert during == [5_000]
    assert world.native_alarm() is None
    assert not _is_managed(world)
    await world.harness.advance(100)
    assert len(hook.runs) == 1


async def test_nothing_is_delivered_before_the_timestamp(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """A raw delivery, too, is not early, unless it is forced (R35)."""
    hook = Hook()
    world = await open_world(raw_alarm=hook)
    await _in(world, 5)
    assert not await world.host.deliver_native_alarm()
    assert hook.runs == []
    assert await world.host.deliver_native_alarm(force=True)
    assert len(hook.runs) == 1


async def test_an_unmanaged_host_without_a_hook_just_clears_the_timestamp(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """Without a raw hook a delivery has nothing to run and does not come again (R35)."""
    world = await open_world()
    await _in(world, 5)
    await world.harness.advance(5)
    assert world.native_alarm() is None
    assert not _is_managed(world)


async def test_a_custom_dispatcher_does_not_run_in_a_raw_delivery(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """A delivery of an unmanaged host runs the raw hook only (R35)."""
    hook = Hook()

    async def dispatch(_: AlarmHost) -> None:
        pytest.fail("there is nothing to dispatch")

    world = await open_inline_world(alarms=dispatch, raw_alarm=hook)
    await _in(world, 5)
    await world.harness.advance(5)
    assert len(hook.runs) == 1


@pytest.mark.parametrize("seconds", [3, 0])
async def test_a_timestamp_that_the_hook_sets_stands(
    open_world: OpenWorld, mock_clock: object, seconds: float
) -> None:
    """What the hook sets is kept, be it the very instant that is being delivered (R35)."""
    hook = Hook()

    async def rearm(host: AlarmHost) -> None:
        if len(hook.runs) == 1:
            await host.native_alarm.set(host.now() + timedelta(seconds=seconds))

    hook.act = rearm
    world = await open_world(raw_alarm=hook)
    await _in(world, 5)
    await world.harness.set_time(world.host.now() + timedelta(seconds=5))
    assert await world.harness.deliver()
    assert world.native_alarm() == 5_000 + seconds * 1_000
    await world.harness.advance(seconds)
    assert len(hook.runs) == 2
    assert world.native_alarm() is None


async def test_a_timestamp_that_the_hook_deletes_stays_deleted(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """A hook that deletes and fails is not retried: it has written meanwhile (R35)."""
    hook = Hook()

    async def delete_and_fail(host: AlarmHost) -> None:
        await host.native_alarm.delete()
        raise LookupError("hook")

    hook.act = delete_and_fail
    world = await open_world(raw_alarm=hook)
    await _in(world, 5)
    with pytest.raises(LookupError):
        await world.harness.advance(5)
    assert world.native_alarm() is None


async def test_a_failing_hook_is_retried_with_doubling_delays(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """A raw delivery that raised comes again after 1, 2, 4 ... 64, 64 s (R35)."""
    hook = Hook(_fail)
    world = await open_inline_world(raw_alarm=hook)
    await _in(world, 0)
    waits = []
    for _ in range(9):
        with pytest.raises(LookupError, match="hook"):
            await world.harness.deliver()
        native_alarm = world.native_alarm()
        assert native_alarm is not None
        waits.append(native_alarm - world.now())
        await world.harness.set_time(
            world.host.now() + timedelta(milliseconds=native_alarm - world.now())
        )
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 64_000, 64_000]
    assert not _is_managed(world)
    hook.act = None
    assert await world.harness.deliver()
    assert world.native_alarm() is None
    hook.act = _fail
    await _in(world, 0)
    with pytest.raises(LookupError):
        await world.harness.deliver()
    assert world.native_alarm() == world.now() + 1_000


async def test_a_hook_that_sets_and_fails_keeps_what_it_set(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """A timestamp written meanwhile stands, whether the hook returned or raised (R35)."""

    async def set_and_fail(host: AlarmHost) -> None:
        await host.native_alarm.set(host.now() + timedelta(seconds=30))
        raise LookupError("hook")

    world = await open_inline_world(raw_alarm=set_and_fail)
    await _in(world, 0)
    with pytest.raises(LookupError):
        await world.harness.deliver()
    assert world.native_alarm() == 30_000


async def test_a_set_that_was_rolled_back_does_not_count_as_written(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """Only what was stored meanwhile keeps the delivered timestamp from being cleared (R35)."""

    async def set_in_vain(host: AlarmHost) -> None:
        with suppress(LookupError):
            async with host.storage.transaction():
                await host.native_alarm.set(host.now() + timedelta(seconds=30))
                raise LookupError

    world = await open_inline_world(raw_alarm=set_in_vain)
    await _in(world, 0)
    assert await world.harness.deliver()
    assert world.native_alarm() is None


async def test_a_cancelled_raw_delivery_leaves_the_timestamp(
    open_inline_world: OpenWorld, autojump_clock: object
) -> None:
    """A hook that was cancelled has neither returned nor raised: it is due again (R35)."""

    async def hang(_: AlarmHost) -> None:
        await trio.sleep_forever()

    world = await open_inline_world(raw_alarm=hang)
    await _in(world, 0)
    with trio.move_on_after(5) as scope:
        await world.harness.deliver()
    assert scope.cancelled_caught
    assert world.native_alarm() == 0
    assert not _is_managed(world)


async def test_a_hook_may_schedule_the_first_alarm(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """The first alarm of a raw hook makes the host managed, and its deadline counts (R35)."""
    handled: list[str] = []

    async def handle(event: AlarmDue[Any]) -> None:
        handled.append(event.id)

    async def schedule_first(host: AlarmHost) -> None:
        await host.native_alarm.set(host.now() + timedelta(seconds=2))
        await host.scheduler.schedule_alarm("job", "a", after=30)

    hook = Hook(schedule_first)
    world = await open_world(alarms=process_due(handle), raw_alarm=hook)
    await _in(world, 5)
    await world.harness.advance(5)
    assert _is_managed(world)
    assert world.native_alarm() == 35_000
    hook.act = None
    await world.step()
    await world.harness.advance(30)
    assert handled == ["a"]
    assert world.native_alarm() is None


async def test_a_hook_that_schedules_the_first_alarm_and_fails(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """Once managed, deadlines count; a failing hook's retry is the alarms' business (R35)."""

    async def schedule_and_fail(host: AlarmHost) -> None:
        await host.scheduler.schedule_alarm("job", "a", after=30)
        raise LookupError("hook")

    world = await open_world(raw_alarm=schedule_and_fail)
    await _in(world, 0)
    with pytest.raises(LookupError):
        await world.harness.deliver()
    assert _is_managed(world)
    assert world.native_alarm() == 30_000


async def test_a_hook_that_schedules_the_first_alarm_and_is_cancelled(
    open_inline_world: OpenWorld, autojump_clock: object
) -> None:
    """The alarm that was committed before the cancellation has armed the host (R35)."""

    async def schedule_and_hang(host: AlarmHost) -> None:
        await host.scheduler.schedule_alarm("job", "a", after=30)
        await trio.sleep_forever()

    world = await open_inline_world(raw_alarm=schedule_and_hang)
    await _in(world, 0)
    with trio.move_on_after(1):
        await world.harness.deliver()
    assert _is_managed(world)
    assert world.native_alarm() == 30_000


async def test_a_hook_may_dispatch_in_a_raw_delivery(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """A dispatch makes the host managed; nothing stays armed where there is nothing (R35)."""

    async def dispatch(host: AlarmHost) -> None:
        await host.scheduler.schedule_alarm("job", "a", after=0)
        result = await host.scheduler.process_due_alarms(_ignore)
        assert [event.tag for event in result.handled] == ["job"]

    world = await open_world(raw_alarm=dispatch)
    await _in(world, 0)
    assert await world.harness.deliver()
    assert _is_managed(world)
    assert world.rows() == []
    assert world.native_alarm() is None


async def test_an_alarm_scheduled_beside_a_running_hook_is_armed(
    open_inline_world: OpenWorld, autojump_clock: object
) -> None:
    """Another task's first alarm takes over while a raw hook runs, and is not cleared (R35)."""
    world = await open_inline_world(raw_alarm=_sleep)
    await _in(world, 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.harness.deliver)
        await trio.sleep(5)
        await world.host.scheduler.schedule_alarm("job", "a", after=60)
        assert world.native_alarm() == 65_000
    assert world.native_alarm() == 65_000


async def test_a_delivery_joins_a_running_hook(
    open_inline_world: OpenWorld, autojump_clock: object
) -> None:
    """One raw delivery at a time: who comes meanwhile waits for it (R21, R35)."""
    hook = Hook(_sleep)
    world = await open_inline_world(raw_alarm=hook)
    await _in(world, 0)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(world.host.deliver_native_alarm)
    assert hook.runs == [0]
    assert trio.current_time() == pytest.approx(10)
    assert world.native_alarm() is None


async def test_a_raw_delivery_enters_a_fresh_event_scope(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """A raw delivery is an event like any other (R35, R40)."""
    log: list[str] = []

    @asynccontextmanager
    async def scope(_: AlarmHost) -> AsyncIterator[None]:
        log.append("enter")
        yield
        log.append("leave")

    async def hook(_: AlarmHost) -> None:
        log.append("hook")

    world = await open_inline_world(raw_alarm=hook, event_scope=scope)
    await _in(world, 0)
    await world.harness.deliver()
    assert log == ["enter", "hook", "leave"]


async def test_a_failing_event_scope_is_a_failed_raw_delivery(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """Where the scope cannot be entered the hook did not run, and comes again in 1 s (R35)."""
    hook = Hook()

    @asynccontextmanager
    async def scope(_: AlarmHost) -> AsyncIterator[None]:
        if world.now() == 0:
            raise LookupError("scope")
        yield

    world = await open_inline_world(raw_alarm=hook, event_scope=scope)
    await _in(world, 0)
    with pytest.raises(LookupError):
        await world.harness.deliver()
    assert hook.runs == []
    assert world.native_alarm() == 1_000
    await world.harness.advance(1)
    assert len(hook.runs) == 1
    assert world.native_alarm() is None


async def test_the_driver_delivers_to_the_raw_hook(
    open_inline_world: OpenWorld, autojump_clock: object
) -> None:
    """The driver serves an unmanaged host, its retries included (R35, R50)."""
    hook = Hook()

    async def fail_once(_: AlarmHost) -> None:
        if len(hook.runs) == 1:
            raise LookupError("hook")

    hook.act = fail_once
    world = await open_inline_world(raw_alarm=hook, driver=True)
    await _in(world, 5)
    await trio.sleep(20)
    assert hook.runs == [pytest.approx(5), pytest.approx(6)]
    with pytest.raises(LookupError):
        await world.harness.settle()
