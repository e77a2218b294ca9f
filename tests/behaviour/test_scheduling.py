"""Scheduling, min-merging, ensuring and cancelling, from the call to the handler."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from tests.behaviour.work_service import (
    HandlerError,
    HeldHandler,
    Note,
    Recorder,
    Work,
    at,
    delivering,
    fail,
    succeed,
    work,
)
from trio_alarms import (
    Alarm,
    AlarmFailure,
    AlarmService,
    AlarmStatus,
    DispatchOptions,
    FailureAction,
    InvalidRepeatEveryError,
    Retry,
    ScheduleConfiguration,
    StorageOptions,
    define,
    schedule_configuration,
)

if TYPE_CHECKING:
    from tests.behaviour.conftest import OpenWorld, StoredRow, World
    from trio_alarms import AlarmDue

HOUR_MS = 3_600_000
SHORT_REPEATS = ScheduleConfiguration(minimum_repeat_interval=1)
METHODS = ["schedule_alarm", "schedule_alarm_earlier", "ensure_alarm"]


async def plain(world: World, method: str = "schedule_alarm", id: str = "a", **options: Any) -> Any:
    """Call a method of the service's view for its plain alarm."""
    options.setdefault("payload", Note("first"))
    return await getattr(world.host.service(Work), method)(Work.plain, id, **options)


def stored(world: World, id: str = "a", tag: str = "plain") -> StoredRow:
    """The row, which is there."""
    row = world.row(tag, id)
    assert row is not None
    return row


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


# Ensuring


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
    """However often a start ensures and dies, there is one row and one delivery (C07)."""
    handler = Recorder()
    # It is opened so often, and no power is lost.
    options = StorageOptions(executor="inline", synchronous="off")
    world = await open_inline_world(alarms=work(handler), storage=options)
    for _ in range(300):
        await plain(world, "ensure_alarm", run_at=at(30_000))
        assert len(world.rows()) == 1
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


# Delays


class Delayed(AlarmService, key="delayed"):
    """Alarms that say themselves how they are retried, or do not."""

    silent = Alarm(None)
    own_delay = Alarm(None, retry_initial_delay=7)
    retried = Alarm(None, failure="retry")


@pytest.mark.parametrize(
    ("tag", "answer", "option", "delay"),
    [
        ("silent", None, None, 1),
        ("silent", None, 3, 3),
        ("silent", Retry(after=5), 3, 5),
        ("silent", "retry", 3, 3),
        ("silent", Retry(after=0), 3, 1),
        ("silent", None, 0.5, 1),
        ("own_delay", Retry(after=5), 3, 7),
        ("retried", Retry(after=5), 3, 5),
        ("retried", "skip-and-advance-repeat", 3, 3),
    ],
)
async def test_the_first_delay_is_the_most_specific_one(
    open_world: OpenWorld,
    mock_clock: MockClock,
    *,
    tag: str,
    answer: FailureAction | None,
    option: float | None,
    delay: int,
) -> None:
    """The definition's, else the answer's, else the options', never under the minimum (R7)."""

    async def on_failure(failure: AlarmFailure) -> FailureAction | None:
        await trio.lowlevel.checkpoint()
        return answer

    world = await open_world(
        alarms=Delayed.handlers(
            *(alarm.handled_by(fail) for alarm in Delayed.__alarms__.values()),
            options=DispatchOptions(on_failure=on_failure, retry_failed_after=option),
        )
    )
    await world.host.scheduler.schedule_alarm(tag, "a", run_at=at(0))
    await world.step()
    await world.harness.deliver()
    assert stored(world, tag=tag).retry_at == delay * 1_000
    await world.harness.advance(delay)
    assert stored(world, tag=tag).retry_at == delay * 1_000 + 2 * delay * 1_000


async def test_a_self_rearm_waits_the_minimum_delay_whatever_its_failures_wait(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Initial delays are for failures only (R7)."""

    async def rearm(event: AlarmDue[None]) -> None:
        await event.host.service(Delayed).schedule_alarm(Delayed.own_delay, "a", after=0)

    world = await open_world(
        alarms=Delayed.handlers(
            Delayed.silent.handled_by(succeed),
            Delayed.own_delay.handled_by(rearm),
            Delayed.retried.handled_by(succeed),
            options=DispatchOptions(retry_failed_after=3),
        )
    )
    await world.host.service(Delayed).schedule_alarm(Delayed.own_delay, "a", run_at=at(0))
    await world.step()
    await world.harness.deliver()
    assert stored(world, tag="own_delay").retry_at == 1_000


async def test_an_alarm_that_always_fails_is_tried_on_schedule(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The defaults back off to a minute and then park for hours (R7)."""
    handler = Recorder(failures=100)
    world = await open_world(alarms=work(handler))
    await plain(world, run_at=at(0))
    await world.harness.advance(100)
    await world.step()
    await world.harness.advance(2 * 3_600)
    parked_at = 127_000
    assert handler.ran_at == [
        *(0, 1_000, 3_000, 7_000, 15_000, 31_000, 63_000, parked_at),
        parked_at + HOUR_MS,
    ]
    assert [event.attempts for event in handler.events] == [0, 1, 2, 3, 4, 5, 6, 7, 8]


async def test_a_raised_budget_does_not_resume_what_is_parked(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """After a restart with a larger budget it still waits hourly (R7)."""
    world = await open_world(
        alarms=work(fail), configuration=ScheduleConfiguration(unchanged_attempt_budget=1)
    )
    await plain(world, run_at=at(0))
    await world.harness.deliver()
    assert stored(world).parked == 1
    await world.harness.reopen(configuration=ScheduleConfiguration(unchanged_attempt_budget=99))
    await world.harness.advance(3_600)
    row = stored(world)
    assert (row.attempts, row.parked, row.wake_at) == (1, 1, 2 * HOUR_MS)


async def test_ten_thousand_stored_attempts_overflow_nothing(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """One more failure waits for the cap (R7, C16)."""
    world = await open_world(
        alarms=work(fail), configuration=ScheduleConfiguration(unchanged_attempt_budget=2**62)
    )
    await plain(world, run_at=at(0))
    world.sql("UPDATE trio_alarms_alarms SET attempts = 10000, retry_at = run_at")
    await world.step()
    await world.harness.deliver()
    row = stored(world)
    assert (row.attempts, row.parked, row.wake_at) == (10_001, 0, HOUR_MS)


# Repeats


async def test_a_period_under_the_floor_is_refused(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The floor is a minute unless configured, and belongs to the range (R8)."""
    world = await open_world(alarms=work())
    with pytest.raises(InvalidRepeatEveryError, match=r"repeat_every .* from 60 seconds .* 59\.99"):
        await plain(world, run_at=at(0), repeat_every=59.99)
    assert world.rows() == []
    await plain(world, run_at=at(0), repeat_every=60)
    with schedule_configuration(ScheduleConfiguration(minimum_repeat_interval=5)):
        await plain(world, id="b", run_at=at(0), repeat_every=5)
    assert [row.repeat_every for row in world.rows()] == [60_000, 5_000]


async def test_a_stored_period_under_todays_floor_waits_for_the_floor(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """A floor that was raised since holds for the next occurrence (R8)."""
    handler = Recorder()
    world = await open_world(alarms=work(handler), configuration=SHORT_REPEATS)
    await plain(world, run_at=at(0), repeat_every=2)
    await world.harness.reopen(configuration=ScheduleConfiguration())
    await world.harness.advance(60)
    assert handler.ran_at == [0, 60_000]
    assert stored(world).repeat_every == 2_000


async def test_a_repeat_that_was_down_for_ten_periods_runs_once(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """One run, and the next a period after its completion (R8, C05)."""
    handler = Recorder()
    world = await open_world(alarms=work(handler))
    await plain(world, run_at=at(0), repeat_every=60)
    await world.harness.deliver()
    await world.harness.crash()
    mock_clock.jump(630)
    await world.harness.reopen()
    await world.harness.advance(120)
    assert handler.ran_at == [0, 630_000, 690_000, 750_000]


async def test_a_handler_slower_than_its_period_never_overlaps_itself(
    open_inline_world: OpenWorld, autojump_clock: MockClock
) -> None:
    """The period begins at the completion (R8, C05)."""
    running, spans = 0, []

    async def slow(event: AlarmDue[Note]) -> None:
        nonlocal running
        running += 1
        assert running == 1
        began = trio.current_time()
        await trio.sleep(5)
        spans.append((round(began), round(trio.current_time())))
        running -= 1

    world = await open_inline_world(alarms=work(slow), configuration=SHORT_REPEATS, driver=True)
    await plain(world, run_at=at(0), repeat_every=2)
    await trio.sleep(20)
    assert spans == [(0, 5), (7, 12), (14, 19)]


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
