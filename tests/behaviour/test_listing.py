"""Listing alarms: order, pages, filters, and what a service's view shows."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock

from tests.behaviour.work_service import Note, Work, at, fail, work
from trio_alarms import (
    Alarm,
    AlarmRecord,
    AlarmService,
    ScheduleConfiguration,
    StoredAlarmDecodeError,
    merge_all,
)

if TYPE_CHECKING:
    from tests.behaviour.conftest import OpenWorld, World

BUDGET_OF_ONE = ScheduleConfiguration(unchanged_attempt_budget=1)


class Other(AlarmService, key="other"):
    """A second service, whose tags sort between those of the first."""

    pending = Alarm(None)
    manual = Alarm(None, lifecycle="manual", tag="other/manual")


def both_services() -> Any:
    """A registration in which every automatic alarm fails."""
    return merge_all(
        work(fail, skipping=fail, manual=fail),
        Other.handlers(Other.pending.handled_by(fail), Other.manual.handled_by(fail)),
    )


def ids(records: list[AlarmRecord]) -> list[str]:
    """The ids of the records."""
    return [record.ref.id for record in records]


def refs(records: list[AlarmRecord]) -> list[tuple[str, str]]:
    """The identities of the records."""
    return [(record.ref.tag, record.ref.id) for record in records]


async def pages(alarms: Any, limit: int, **filters: Any) -> list[AlarmRecord]:
    """Everything that a listing gives, a page at a time."""
    found: list[AlarmRecord] = []
    while page := await alarms.list_alarms(
        limit=limit, after=found[-1] if found else None, **filters
    ):
        assert len(page) <= limit
        found += page
    return found


async def enrol_many(world: World) -> list[AlarmRecord]:
    """Alarms of five tags, both lifecycles and few deadlines, some parked; in dispatch order."""
    chosen = random.Random(7)  # noqa: S311 - the same alarms every time
    deadlines = [-5_000, 0, 0, 1_000, 90_000]
    async with world.host.scheduler.transaction() as tx:
        for number in range(8):
            for alarm in (Work.plain, Work.skipping, Work.manual, Other.pending, Other.manual):
                payload: Any = Note("x") if alarm in Work.__alarms__.values() else None
                await tx.schedule_alarm(
                    alarm, f"{number}", run_at=at(chosen.choice(deadlines)), payload=payload
                )
    for row in world.rows():
        if row.lifecycle == "automatic" and chosen.random() < 0.4:
            world.sql(
                "UPDATE trio_alarms_alarms SET parked = 1, attempts = 8, retry_at = wake_at"
                " WHERE tag = ? AND id = ?",
                row.tag,
                row.id,
            )
    everything = await world.host.scheduler.list_alarms(limit=1_000)
    assert refs(everything) == [(row.tag, row.id) for row in world.rows()]
    return everything


async def test_records_come_in_dispatch_order_with_status_and_stored_text(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """By wake, then tag, then id; the payload stays text (R3)."""
    world = await open_world(alarms=both_services())
    alarms = world.host.scheduler
    await alarms.schedule_alarm("b", "2", run_at=at(0), payload={"x": [1]})
    await alarms.schedule_alarm("b", "10", run_at=at(0), repeat_every=60, progress=4)
    await alarms.schedule_alarm("a", "z", run_at=at(0), lifecycle="manual")
    await alarms.schedule_alarm("a", "a", run_at=at(1))
    await alarms.schedule_alarm("z", "z", run_at=at(-1))
    await world.step()
    alarms = world.host.scheduler
    found = await alarms.list_alarms()
    assert refs(found) == [
        ("z", "z"),
        ("a", "z"),
        ("b", "10"),
        ("b", "2"),
        ("a", "a"),
    ]
    assert [record.payload for record in found] == ["null", "null", "null", '{"x":[1]}', "null"]
    for record in found:
        assert record.status == await alarms.get_alarm_status(record.ref.tag, record.ref.id)


async def test_a_record_that_backs_off_is_where_its_wake_is(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The order goes by the wake and not by the deadline (R3)."""
    world = await open_world(alarms=work(fail))
    service = world.host.service(Work)
    await service.schedule_alarm(Work.plain, "failed", run_at=at(0), payload=Note("x"))
    await world.harness.deliver()
    await service.schedule_alarm(Work.plain, "before", run_at=at(999), payload=Note("x"))
    await service.schedule_alarm(Work.plain, "after", run_at=at(1_001), payload=Note("x"))
    await world.step()
    assert ids(await world.host.scheduler.list_alarms()) == ["before", "failed", "after"]


@pytest.mark.parametrize("limit", [1, 3, 7, 40, 1_000])
async def test_pages_give_every_alarm_once_and_in_order(
    open_world: OpenWorld, mock_clock: MockClock, limit: int
) -> None:
    """Whatever the limit and the filters, the pages add up to the filtered whole (R3)."""
    world = await open_world(alarms=both_services())
    everything = await enrol_many(world)
    assert len(everything) == 40
    await world.step()
    scheduler = world.host.scheduler
    for alarm, parked, before in itertools.product(
        (None, "plain", Work.plain, Other.manual, "nobody's"),
        (None, True, False),
        (None, 0, 1, 95_000),
    ):
        tag = alarm.tag if isinstance(alarm, Alarm) else alarm
        expected = [
            record
            for record in everything
            if tag in (None, record.ref.tag)
            and parked in (None, record.status.parked)
            and (before is None or record.status.wake_at < at(before))
        ]
        found = await pages(
            scheduler,
            limit,
            alarm=alarm,
            parked=parked,
            wake_before=None if before is None else at(before),
        )
        # The identities first: their difference is quick to show.
        assert refs(found) == refs(expected)
        assert found == expected


async def test_the_filters_of_the_test_above_all_find_something(
    open_inline_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The alarms that pages are tested with are parked and not, due and not, of both kinds (R3)."""
    world = await open_inline_world(alarms=both_services())
    everything = await enrol_many(world)
    for tag in ("plain", "pending"):
        assert {record.status.parked for record in everything if record.ref.tag == tag} == {
            True,
            False,
        }
    assert {record.status.lifecycle for record in everything} == {"automatic", "manual"}
    wakes = [record.status.wake_at for record in everything]
    assert len(set(wakes)) < len(wakes)


async def test_a_services_view_lists_only_its_tags(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Each view pages through its own alarms, and the raw scheduler through all (R3)."""
    world = await open_world(alarms=both_services())
    everything = await enrol_many(world)
    await world.step()
    for service in (Work, Other):
        tags = service.__alarms__.keys()
        for parked in (None, True, False):
            expected = [
                record
                for record in everything
                if record.ref.tag in tags and parked in (None, record.status.parked)
            ]
            found = await pages(world.host.service(service), 4, parked=parked)
            assert refs(found) == refs(expected)
            assert found == expected


async def test_wake_before_is_strict(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """An alarm at the very instant is not before it, one a fraction of a ms earlier is (R3)."""
    world = await open_world()
    await world.host.scheduler.schedule_alarm("t", "a", run_at=at(1_000))
    await world.step()
    alarms = world.host.scheduler
    assert await alarms.list_alarms(wake_before=at(1_000)) == []
    assert ids(await alarms.list_alarms(wake_before=at(1_001))) == ["a"]
    just_after = at(1_000).replace(microsecond=1)
    assert ids(await alarms.list_alarms(wake_before=just_after)) == ["a"]


async def test_a_page_has_a_hundred_records_unless_told_otherwise(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The default limit is 100."""
    world = await open_world()
    async with world.host.scheduler.transaction() as tx:
        for number in range(130):
            await tx.schedule_alarm("t", f"{number:03}", run_at=at(0))
    await world.step()
    first = await world.host.scheduler.list_alarms()
    assert ids(first) == [f"{number:03}" for number in range(100)]
    rest = await world.host.scheduler.list_alarms(after=first[-1])
    assert ids(rest) == [f"{number:03}" for number in range(100, 130)]


async def test_a_page_goes_on_after_a_record_that_is_gone(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The key says where to go on, whether or not its alarm is still there."""
    world = await open_world()
    for id in "abcd":
        await world.host.scheduler.schedule_alarm("t", id, run_at=at(0))
    page = await world.host.scheduler.list_alarms(limit=2)
    for id in "bc":
        await world.host.scheduler.cancel_alarm("t", id)
    await world.step()
    assert ids(await world.host.scheduler.list_alarms(after=page[-1])) == ["d"]


async def test_an_alarm_that_moves_on_is_not_lost_between_pages(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """What is scheduled later while one pages shows up again, and others are not skipped."""
    world = await open_world()
    for id in "abc":
        await world.host.scheduler.schedule_alarm("t", id, run_at=at(0))
    page = await world.host.scheduler.list_alarms(limit=1)
    await world.host.scheduler.schedule_alarm("t", "a", run_at=at(5))
    await world.step()
    assert ids(await pages(world.host.scheduler, 1)) == ["b", "c", "a"]
    assert ids(await world.host.scheduler.list_alarms(after=page[-1])) == ["b", "c", "a"]


async def test_parked_alarms_are_listed(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """What parked by failing is found by `parked=True`, and not once it is scheduled again."""
    world = await open_world(alarms=work(fail), configuration=BUDGET_OF_ONE)
    service = world.host.service(Work)
    for id in "ab":
        await service.schedule_alarm(Work.plain, id, run_at=at(0), payload=Note("x"))
    await world.harness.deliver()
    await world.step()
    service = world.host.service(Work)
    await service.schedule_alarm(Work.plain, "b", run_at=at(0), payload=Note("x"))
    assert ids(await service.list_alarms(parked=True)) == ["a"]
    assert ids(await service.list_alarms(parked=False)) == ["b"]
    assert ids(await service.list_alarms()) == ["b", "a"]


async def test_listing_inside_a_block_sees_what_the_block_did(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """In the block's task the uncommitted state is seen, elsewhere the last committed one (R13)."""
    world = await open_world()
    alarms = world.host.scheduler
    await alarms.schedule_alarm("t", "a", run_at=at(0))
    seen: dict[str, list[str]] = {}

    async def look(where: str) -> None:
        seen[where] = ids(await world.host.scheduler.list_alarms())

    async with alarms.transaction() as tx:
        await tx.schedule_alarm("t", "b", run_at=at(0))
        await tx.cancel_alarm("t", "a")
        await look("inside")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look, "child")
    await look("afterwards")
    assert seen == {"inside": ["b"], "child": ["a"], "afterwards": ["b"]}


async def test_listing_changes_nothing(open_world: OpenWorld, mock_clock: MockClock) -> None:
    """Neither what is due without a handler nor what cannot be decoded is touched (C17)."""
    world = await open_world(alarms=work())
    alarms = world.host.scheduler
    for number in range(10):
        await alarms.schedule_alarm("without a handler", f"{number}", run_at=at(0))
    await alarms.schedule_alarm("plain", "a", run_at=at(0), payload={"no": "note"})
    before = world.rows(), world.native_alarm()
    await world.step()
    records = await world.host.scheduler.list_alarms()
    assert len(records) == 11
    assert {record.payload for record in records} == {"null", '{"no":"note"}'}
    assert (world.rows(), world.native_alarm()) == before


async def test_a_host_that_never_wrote_lists_nothing(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """A listing is a read: the host stays unmanaged (R35)."""
    world = await open_world(alarms=work())
    assert await world.host.scheduler.list_alarms() == []
    assert await world.host.service(Work).list_alarms(alarm=Work.plain, parked=True) == []
    assert world.sql("SELECT * FROM trio_alarms_hosts") == []


async def test_a_value_that_no_release_writes_is_an_error_of_ours(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """Somebody else's row is named, and the other alarms can still be looked up (R3)."""
    world = await open_inline_world()
    for id in ("far", "fine"):
        await world.host.scheduler.schedule_alarm("ring", id, after=5)
    world.sql("UPDATE trio_alarms_alarms SET repeat_every = 9000000000000000000 WHERE id = 'far'")
    with pytest.raises(StoredAlarmDecodeError, match=r"'far'.*out of range"):
        await world.host.scheduler.list_alarms()
    with pytest.raises(StoredAlarmDecodeError, match=r"'far'.*out of range"):
        await world.host.scheduler.get_alarm_status("ring", "far")
    assert await world.host.scheduler.get_alarm_status("ring", "fine") is not None
