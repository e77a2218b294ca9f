"""`ensure_alarm`: safe to call at every start (R6a)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from trio.testing import MockClock

from tests.behaviour.work_service import (
    HeldHandler,
    Note,
    Recorder,
    Work,
    at,
    delivering,
    fail,
    plain,
    stored,
    work,
)
from trio_alarms import AlarmStatus, StorageOptions

if TYPE_CHECKING:
    from tests.behaviour.conftest import OpenWorld
    from trio_alarms import AlarmDue


async def test_a_repeat_ensured_at_every_start_keeps_its_phase(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Five starts leave one row that fires at its stored time (R6a, C07)."""
    handler = Recorder()
    world = await open_world(alarms=work(handler))
    first = None
    for _ in range(5):
        await plain(world, "ensure_alarm", after=30, repeat_every=60)
        first = stored(world) if first is None else first
        assert world.rows() == [first]
        mock_clock.jump(2)
        await world.harness.crash()
        await world.harness.reopen()
    await world.harness.advance(80)
    assert handler.ran_at == [30_000, 90_000]


async def test_three_hundred_killed_starts_deliver_once(
    open_inline_world: OpenWorld, mock_clock: MockClock
) -> None:
    """However often a start ensures and dies, the first row stays and is delivered (C07)."""
    handler = Recorder()
    # It is opened so often, and no power is lost.
    options = StorageOptions(executor="inline", synchronous="off")
    world = await open_inline_world(alarms=work(handler), storage=options)
    first = None
    for _ in range(300):
        await plain(world, "ensure_alarm", after=30)
        first = stored(world) if first is None else first
        assert world.rows() == [first]
        mock_clock.jump(0.05)
        await world.harness.crash()
        await world.harness.reopen()
    await world.harness.advance(60)
    assert handler.ran_at == [30_000]


async def test_ensuring_what_is_alike_writes_nothing(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Where nothing differs the revision stays, whatever deadline and progress (R6a)."""
    world = await open_world(alarms=work(fail))
    await plain(world, run_at=at(0), repeat_every=60, progress=2)
    await world.harness.deliver()
    before = world.rows(), world.native_alarm()
    await world.step()
    status = await plain(world, "ensure_alarm", run_at=at(-5_000), repeat_every=60, progress=9)
    assert (world.rows(), world.native_alarm()) == before
    assert (status.attempts, status.progress, status.run_at) == (1, 2, at(0))


async def test_ensuring_brings_payload_and_repeat_up_to_date(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Attempts and progress stay; a differing repeat takes the earlier deadline (R6a)."""
    world = await open_world(alarms=work(fail))
    await plain(world, run_at=at(0), repeat_every=60, progress=2)
    await world.harness.deliver()
    before = stored(world)
    await world.step()
    await plain(world, "ensure_alarm", run_at=at(9_000), repeat_every=60, payload=Note("second"))
    renamed = stored(world)
    assert renamed == attrs.evolve(before, payload='{"text":"second"}', revision=renamed.revision)
    assert renamed.revision != before.revision
    await plain(world, "ensure_alarm", run_at=at(-500), repeat_every=90, payload=Note("second"))
    assert stored(world) == attrs.evolve(
        renamed, run_at=-500, repeat_every=90_000, revision=stored(world).revision
    )
    await plain(world, "ensure_alarm", run_at=at(9_000), repeat_every=75, payload=Note("second"))
    assert (stored(world).run_at, stored(world).repeat_every) == (-500, 75_000)


async def test_ensuring_another_lifecycle_clears_or_begins_the_accounts(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Becoming manual clears attempts, retry, repeat and progress (R5, R6a)."""
    world = await open_world()
    await world.host.scheduler.schedule_alarm("raw", "a", run_at=at(0), progress=2)
    await world.harness.deliver()
    assert stored(world, tag="raw").attempts == 1
    await world.step()
    await world.host.scheduler.ensure_alarm("raw", "a", run_at=at(700), lifecycle="manual")
    row = stored(world, tag="raw")
    assert (row.lifecycle, row.run_at, row.wake_at) == ("manual", 0, 0)
    assert (row.attempts, row.retry_at, row.progress) == (0, None, -1)
    await world.step()
    await world.host.scheduler.ensure_alarm("raw", "a", run_at=at(700), progress=5)
    row = stored(world, tag="raw")
    assert (row.lifecycle, row.run_at, row.progress) == ("automatic", 0, -1)


async def test_a_one_shot_that_has_run_is_armed_anew(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """It has no row any more, so ensuring enrols it again (R6a)."""
    handler = Recorder()
    world = await open_world(alarms=work(handler))
    for _ in range(2):
        await plain(world, "ensure_alarm", run_at=at(0))
        await world.step()
        await world.harness.settle()
    assert handler.ids == ["a", "a"]


async def test_a_handler_that_ensures_its_own_alarm_is_still_acknowledged(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """It gets the row's status and writes nothing, whatever is given (R6a)."""
    statuses: list[AlarmStatus] = []

    async def ensure(event: AlarmDue[Note]) -> None:
        statuses.append(
            await event.host.service(Work).ensure_alarm(
                Work.plain, "a", run_at=at(9_000), payload=Note("second"), repeat_every=60
            )
        )

    world = await open_world(alarms=work(ensure))
    await plain(world, run_at=at(0))
    await world.step()
    await world.harness.deliver()
    assert [(status.run_at, status.repeat_every) for status in statuses] == [(at(0), None)]
    assert world.rows() == []


async def test_a_handler_that_ensures_what_it_scheduled_anew_writes(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Its own new row is not the one in hand (R6a)."""

    async def rearm_and_ensure(event: AlarmDue[Note]) -> None:
        alarms = event.host.service(Work)
        await alarms.schedule_alarm(Work.plain, "a", run_at=at(5_000), payload=Note("again"))
        await alarms.ensure_alarm(Work.plain, "a", run_at=at(9_000), payload=Note("ensured"))

    world = await open_world(alarms=work(rearm_and_ensure))
    await plain(world, run_at=at(0))
    await world.step()
    await world.harness.deliver()
    assert (stored(world).run_at, stored(world).payload) == (5_000, '{"text":"ensured"}')


async def test_ensuring_from_outside_while_the_row_is_in_hand_runs_it_again(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Differing values are written, so the acknowledgement misses (R6a, R28)."""
    handler = HeldHandler()
    world = await open_world(alarms=work(handler))
    await plain(world, run_at=at(0))
    await world.step()
    async with delivering(world, handler):
        await plain(world, "ensure_alarm", run_at=at(9_000), payload=Note("second"))
    assert (stored(world).run_at, stored(world).attempts) == (0, 0)
    await world.harness.settle()
    assert [event.payload.text for event in handler.events] == ["first", "second"]
    assert world.rows() == []


async def test_ensuring_alike_from_outside_while_the_row_is_in_hand_changes_nothing(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Where nothing differs the alarm is acknowledged as ever (R6a)."""
    handler = HeldHandler()
    world = await open_world(alarms=work(handler))
    await plain(world, run_at=at(0))
    async with delivering(world, handler):
        await plain(world, "ensure_alarm", run_at=at(9_000))
    assert world.rows() == []
