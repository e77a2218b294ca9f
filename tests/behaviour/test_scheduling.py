"""Scheduling, min-merging, ensuring and cancelling, from the call to the handler."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock

from tests.behaviour.work_service import (
    HandlerError,
    Note,
    Recorder,
    Work,
    at,
    fail,
    plain,
    stored,
    work,
)
from trio_alarms import (
    Alarm,
    AlarmFailure,
    AlarmStatus,
    DispatchOptions,
    FailureAction,
    ScheduleConfiguration,
    define,
)

if TYPE_CHECKING:
    from tests.behaviour.conftest import OpenWorld
    from trio_alarms import AlarmDue

HOUR_MS = 3_600_000
METHODS = ["schedule_alarm", "schedule_alarm_earlier", "ensure_alarm"]


# Where the methods are


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "surface", ["service", "raw", "tag", "service block", "raw block", "storage block"]
)
async def test_every_scheduler_and_block_stores_the_same(
    open_world: OpenWorld, mock_clock: MockClock, surface: str, method: str
) -> None:
    """All surfaces have the same methods, which return what is stored (R4, R6, R6a)."""
    world = await open_world(alarms=work())
    host = world.host
    blocks: dict[str, Any] = {
        "service block": host.service(Work),
        "raw block": host.scheduler,
        "storage block": host.storage,
    }
    options: dict[str, Any] = {
        "run_at": at(700),
        "payload": {"text": "first"} if surface == "tag" else Note("first"),
        "repeat_every": 60,
        "progress": 3,
    }
    alarm = "plain" if surface == "tag" else Work.plain
    if surface in blocks:
        async with blocks[surface].transaction() as tx:
            status = await getattr(tx, method)(alarm, "a", **options)
            assert await tx.get_alarm_status(alarm, "a") == status
    else:
        alarms: Any = host.service(Work) if surface == "service" else host.scheduler
        status = await getattr(alarms, method)(alarm, "a", **options)
    assert status == AlarmStatus(
        run_at=at(700),
        retry_at=None,
        wake_at=at(700),
        attempts=0,
        parked=False,
        lifecycle="automatic",
        repeat_every=timedelta(seconds=60),
        progress=3,
    )
    await world.step()
    assert await world.host.service(Work).get_alarm_status(Work.plain, "a") == status
    row = stored(world)
    assert (row.run_at, row.wake_at, row.repeat_every, row.progress, row.payload) == (
        700,
        700,
        60_000,
        3,
        '{"text":"first"}',
    )


@pytest.mark.parametrize("surface", ["service", "raw", "tag", "block"])
async def test_every_scheduler_and_block_cancels_the_same(
    open_world: OpenWorld, mock_clock: MockClock, surface: str
) -> None:
    """Cancelling says whether there was one, and removes it (R9)."""
    world = await open_world(alarms=work())
    await plain(world, run_at=at(0))
    await world.step()
    alarm = "plain" if surface == "tag" else Work.plain

    async def cancel() -> bool:
        if surface == "block":
            async with world.host.storage.transaction() as tx:
                return await tx.cancel_alarm(Work.plain, "a")
        alarms: Any = world.host.service(Work) if surface == "service" else world.host.scheduler
        found: bool = await alarms.cancel_alarm(alarm, "a")
        return found

    assert await cancel() is True
    assert world.rows() == []
    assert await cancel() is False
    assert await world.host.scheduler.get_alarm_status(Work.plain, "a") is None


async def test_a_definition_decides_the_lifecycle(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Tag, lifecycle and stored form come from the definition (R3, R5)."""
    world = await open_world(alarms=work())
    status = await world.host.service(Work).schedule_alarm(
        Work.manual, "a", run_at=at(0), payload=Note("first")
    )
    assert (status.lifecycle, status.progress, status.repeat_every) == ("manual", None, None)
    assert stored(world, tag="manual").lifecycle == "manual"


# Identity


async def test_tag_and_id_are_never_run_together(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Pairs whose concatenations are alike are different alarms (R3)."""
    world = await open_world()
    pairs = [("a", "bc"), ("ab", "c"), ("a/b", "c"), ("a", "b/c"), ("A", "bc"), ("a", "BC")]
    alarms = world.host.scheduler
    for number, (tag, id) in enumerate(pairs):
        assert await alarms.get_alarm_status(tag, id) is None
        # Whoever took another of them for this one would ignore the known progress.
        await alarms.schedule_alarm(tag, id, run_at=at(number), progress=1)
    await world.step()
    alarms = world.host.scheduler
    assert [(row.tag, row.id) for row in world.rows()] == pairs
    for number, (tag, id) in enumerate(pairs):
        status = await alarms.get_alarm_status(tag, id)
        assert status is not None
        assert status.run_at == at(number)
        assert await alarms.cancel_alarm(tag, id)
        assert [(row.tag, row.id) for row in world.rows()] == pairs[number + 1 :]


async def test_ids_are_kept_as_they_are(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """No normalisation, trimming or SQL pattern: names that look alike stay apart (R3)."""
    ids = ["\u00e9", "e\u0301", " a", "a ", "%", "_", "'", '"', "\n", "😀", "1", "01", "x" * 512]
    world = await open_world()
    for id in ids:
        await world.host.scheduler.schedule_alarm("t", id, run_at=at(0), payload=id)
    await world.step()
    seen = {record.ref.id: record.payload for record in await world.host.scheduler.list_alarms()}
    assert set(seen) == set(ids)
    assert len(seen) == len(ids)


async def test_hosts_of_one_database_have_alarms_of_their_own(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The same tag and id in another host is another alarm (R3)."""
    first = await open_world(name="first")
    second = await open_world(name="second")
    await first.host.scheduler.schedule_alarm("t", "a", run_at=at(1), payload=1)
    await second.host.scheduler.schedule_alarm("t", "a", run_at=at(2), payload=2)
    await first.step()
    assert [row.payload for row in first.rows()] == ["1"]
    await first.host.scheduler.cancel_alarm("t", "a")
    assert [row.payload for row in second.rows()] == ["2"]
    assert (first.native_alarm(), second.native_alarm()) == (None, 2)


async def test_revisions_are_128_bits_that_never_come_back(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Each schedule, failure and repeat completion has a revision of its own (R3, R20)."""
    world = await open_world(alarms=work(Recorder(failures=1)))
    revisions = []
    for _ in range(20):
        await plain(world, run_at=at(0), repeat_every=60)
        revisions.append(stored(world).revision)
    await world.harness.deliver()
    revisions.append(stored(world).revision)
    await world.harness.advance(1)
    revisions.append(stored(world).revision)
    await world.step()
    await world.host.service(Work).cancel_alarm(Work.plain, "a")
    await plain(world, run_at=at(0))
    revisions.append(stored(world).revision)
    assert len(set(revisions)) == 23
    assert {len(revision) for revision in revisions} == {16}


# Deadlines


async def test_after_counts_from_now(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """A duration counts from the host's now, at the call (R4)."""
    world = await open_world(alarms=work())
    mock_clock.jump(3)
    await world.step()
    await plain(world, after=timedelta(seconds=1.5))
    await plain(world, id="b", after=0)
    await plain(world, id="c", after=0.0001)
    assert [stored(world, id).run_at for id in "abc"] == [4_500, 3_000, 3_001]


@pytest.mark.parametrize(
    ("run_at", "stored_as"),
    [
        (at(5) + timedelta(microseconds=1), 6),
        (at(5) + timedelta(microseconds=999), 6),
        (at(5), 5),
        (at(-5) - timedelta(microseconds=1), -5),
        (at(5).astimezone(timezone(timedelta(hours=-7))), 5),
    ],
)
async def test_deadlines_are_rounded_up_and_returned_in_utc(
    open_world: OpenWorld, mock_clock: MockClock, run_at: datetime, stored_as: int
) -> None:
    """Nothing ever fires early, and what comes back is the stored instant (R4)."""
    world = await open_world(alarms=work())
    status = await plain(world, run_at=run_at)
    assert stored(world).run_at == stored_as
    assert status.run_at == at(stored_as)
    assert status.run_at.tzinfo is UTC


@pytest.mark.parametrize("year", [1, 1969, 1970, 1999])
async def test_a_deadline_in_the_past_is_due_at_once(
    open_world: OpenWorld, mock_clock: MockClock, year: int
) -> None:
    """It is dispatched by the next delivery, with the deadline that was given (R4, C02)."""
    handler = Recorder()
    world = await open_world(alarms=work(handler))
    await plain(world, run_at=datetime(year, 1, 1, tzinfo=UTC))
    await world.step()
    assert await world.harness.deliver()
    assert [event.scheduled_at for event in handler.events] == [datetime(year, 1, 1, tzinfo=UTC)]


async def test_the_driver_fires_a_past_deadline_at_once(
    open_inline_world: OpenWorld, mock_clock: MockClock
) -> None:
    """With a driver it fires without any time passing (C02)."""
    handler = Recorder()
    world = await open_inline_world(alarms=work(handler), driver=True)
    await trio.testing.wait_all_tasks_blocked()
    await plain(world, run_at=at(-1_000_000))
    await trio.testing.wait_all_tasks_blocked()
    assert handler.ran_at == [0]


# Schedules in a handling


async def test_a_task_that_the_handler_starts_is_in_its_handling(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """A self-rearm from a child task is charged as the handler's own (R4)."""

    async def through_a_child(event: AlarmDue[Note]) -> None:
        async def child() -> None:
            await event.host.service(Work).schedule_alarm(
                Work.plain, "a", run_at=at(0), payload=Note("again")
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)

    world = await open_world(alarms=work(through_a_child))
    await plain(world, run_at=at(0))
    await world.step()
    await world.harness.deliver()
    assert (stored(world).attempts, stored(world).wake_at) == (1, 1_000)


async def test_on_failure_is_in_the_handling(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """What `on_failure` schedules is charged, once in all (R4)."""

    async def rearm(failure: AlarmFailure) -> FailureAction | None:
        assert failure.event is not None
        for _ in range(2):
            await failure.event.host.service(Work).schedule_alarm(
                Work.plain, "a", run_at=at(500), payload=Note("again")
            )
        return None

    world = await open_world(alarms=work(fail, options=DispatchOptions(on_failure=rearm)))
    await plain(world, run_at=at(0))
    await world.step()
    await world.harness.deliver()
    assert (stored(world).attempts, stored(world).wake_at) == (1, 1_000)
    assert stored(world).payload == '{"text":"again"}'


async def test_self_rearms_of_many_ids_park_all_of_them(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """An alarm that always goes on under a new id parks as one that stays (R4)."""

    async def go_on(event: AlarmDue[Note]) -> None:
        await event.host.service(Work).schedule_alarm(
            Work.plain, str(int(event.id) + 1), after=0, payload=Note("again")
        )

    world = await open_world(
        alarms=work(go_on), configuration=ScheduleConfiguration(unchanged_attempt_budget=3)
    )
    await plain(world, id="0", run_at=at(0))
    for _ in range(3):
        await world.harness.deliver()
        await world.step()
        await world.harness.set_time(at(world.native_alarm() or 0))
    row = stored(world, id="3")
    assert len(world.rows()) == 1
    assert (row.attempts, row.parked, row.wake_at) == (3, 1, 3_000 + HOUR_MS)


async def test_progress_frees_a_self_rearm(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """A handler that reports progress is never charged, however often it rearms (R4)."""

    async def go_on(event: AlarmDue[Note]) -> None:
        alarms = event.host.service(Work)
        status = await alarms.get_alarm_status(Work.plain, "a")
        assert status is not None
        await alarms.schedule_alarm(
            Work.plain, "a", after=0, payload=Note("x"), progress=(status.progress or 0) + 1
        )
        await alarms.schedule_alarm(Work.plain, "a", after=0, payload=Note("again"))

    world = await open_world(alarms=work(go_on))
    await plain(world, run_at=at(0))
    for progress in range(1, 12):
        assert await world.harness.deliver()
        row = stored(world)
        assert (row.progress, row.attempts, row.wake_at) == (progress, 0, 0)
        await world.step()


async def test_a_schedule_in_a_handling_of_another_lifecycle_is_not_charged(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """A manual handler schedules automatic alarms as from outside (R4, R5)."""

    async def enrol(event: AlarmDue[Note]) -> None:
        await event.host.service(Work).schedule_alarm(
            Work.plain, "a", run_at=at(0), payload=Note("from manual")
        )

    world = await open_world(alarms=work(manual=enrol))
    await world.host.service(Work).schedule_alarm(
        Work.manual, "m", run_at=at(0), payload=Note("first")
    )
    await world.step()
    await world.harness.deliver()
    assert (stored(world).attempts, stored(world).wake_at) == (0, 0)


# Without a registration


async def test_a_handler_set_schedules_by_its_definitions(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The raw scheduler takes the alarms of a handler set (R4)."""
    note = Alarm(Note, tag="app/note")
    handler = Recorder()
    world = await open_world(alarms=define(note).handlers(note.handled_by(handler)))
    await world.host.scheduler.schedule_alarm(note, "a", run_at=at(0), payload=Note("typed"))
    await world.step()
    await world.harness.deliver()
    assert [event.payload for event in handler.events] == [Note("typed")]


async def test_a_failing_handler_that_rearmed_another_alarm_leaves_that_alarm(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The failure charges its own row only; what was scheduled stands (R4, R28)."""

    async def spawn_and_fail(event: AlarmDue[Note]) -> None:
        if event.id == "a":
            await event.host.service(Work).schedule_alarm(
                Work.plain, "b", run_at=at(9_000), payload=Note("spawned")
            )
            raise HandlerError

    world = await open_world(alarms=work(spawn_and_fail))
    await plain(world, run_at=at(0))
    await world.step()
    await world.harness.deliver()
    assert (stored(world).attempts, stored(world, "b").attempts) == (1, 1)
    assert (stored(world).wake_at, stored(world, "b").wake_at) == (1_000, 9_000)
