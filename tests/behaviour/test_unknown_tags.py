from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio.testing

from tests.behaviour.conftest import OpenWorld
from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmRegistration,
    AlarmService,
    DispatchOptions,
    FailureAction,
    InvalidAlarmRegistrationError,
    StoredAlarmDecodeError,
    define,
    open_host,
)

HOUR = 3_600_000


class Known(AlarmService, key="app/known"):
    """What the host does have handlers for."""

    job = Alarm(None, tag="known")


class Orphans(AlarmService, key="app/orphans"):
    """What it has no handlers for until later."""

    job = Alarm(None, tag="orphan")
    sweep = Alarm(None, tag="swept", lifecycle="manual")


def _known(handler: Callable[[AlarmDue[Any]], Awaitable[object]]) -> AlarmRegistration:
    return Known.handlers(Known.job.handled_by(handler))


class Seen:
    """A handler that notes the ids it gets."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    async def __call__(self, event: AlarmDue[Any]) -> None:
        """Handle an event."""
        self.ids.append(event.id)


def _logged(caplog: pytest.LogCaptureFixture, tag: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if repr(tag) in record.getMessage()]


async def test_an_automatic_alarm_without_a_handler_backs_off_and_parks(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """A due row of an unknown tag fails as undecodable, backs off and parks by R7 (R30)."""
    seen = Seen()
    world = await open_world(alarms=_known(seen))
    await world.host.scheduler.schedule_alarm("orphan", "a", after=0, payload=[1])
    tries = []
    for _ in range(9):
        await world.harness.advance(0)
        await world.step()
        row = world.row("orphan", "a")
        assert row is not None
        tries.append((row.attempts, row.parked, row.wake_at - world.now()))
        status = await world.host.scheduler.get_alarm_status("orphan", "a")
        assert status is not None
        await world.harness.set_time(status.wake_at)
        assert (row.payload, row.run_at) == ("[1]", 0)
    seconds = [1, 2, 4, 8, 16, 32, 64, 3_600, 3_600]
    assert tries == [
        (min(attempt, 8), int(attempt >= 8), delay * 1_000)
        for attempt, delay in enumerate(seconds, start=1)
    ]


async def test_a_manual_alarm_without_a_handler_waits_an_hour(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """A due manual row of an unknown tag raises and waits an hour; the rest runs (R29, R30)."""
    seen = Seen()
    world = await open_world(alarms=_known(seen))
    await world.host.scheduler.schedule_alarm("swept", "a", after=0, lifecycle="manual")
    await world.host.scheduler.schedule_alarm(Known.job, "b", after=0)
    await world.step()
    before = world.row("swept", "a")
    assert before is not None
    with pytest.raises(InvalidAlarmRegistrationError, match="'swept'"):
        await world.harness.deliver()
    assert seen.ids == ["b"]
    row = world.row("swept", "a")
    assert row is not None
    assert (row.run_at, row.wake_at, row.attempts) == (HOUR, HOUR, 0)
    assert row.revision == before.revision
    assert world.native_alarm() == HOUR


async def test_no_alarm_is_deleted_and_each_runs_once_it_has_a_handler(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """Alarms of a tag without a handler are kept; with the handler back they run (C17, R30)."""
    known, orphans = Seen(), Seen()
    world = await open_inline_world(alarms=_known(known))
    ids = [str(number) for number in range(10)]
    for id in ids:
        await world.host.scheduler.schedule_alarm(Orphans.job, id, after=0)
        await world.host.scheduler.schedule_alarm(Known.job, id, after=0)
    await world.harness.advance(10)
    assert sorted(known.ids) == ids
    listed = await world.host.scheduler.list_alarms(alarm="orphan")
    assert sorted(record.ref.id for record in listed) == ids
    assert {record.status.attempts for record in listed} == {4}
    registration = Orphans.handlers(
        Orphans.job.handled_by(orphans), Orphans.sweep.handled_by(orphans)
    )
    await world.harness.reopen(alarms=registration)
    await world.harness.advance(16)
    assert sorted(orphans.ids) == ids
    assert world.rows() == []


async def test_an_alarm_without_a_handler_never_spins(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """Between two tries the native alarm waits for the back-off, and nothing is delivered (R30)."""
    world = await open_inline_world(alarms=_known(Seen()))
    await world.host.scheduler.schedule_alarm("orphan", "a", after=0)
    assert await world.harness.deliver()
    assert not await world.harness.deliver()
    assert world.native_alarm() == 1_000
    await world.harness.advance(0.999)
    row = world.row("orphan", "a")
    assert row is not None
    assert row.attempts == 1


async def test_a_tag_without_a_handler_is_logged_once(
    open_inline_world: OpenWorld, mock_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    """One log record for each tag, of both lifecycles, not for each alarm or try (C17, R30)."""
    world = await open_inline_world(alarms=_known(Seen()), driver=True)
    for id in "abc":
        await world.host.scheduler.schedule_alarm("orphan", id, after=0)
    await world.host.scheduler.schedule_alarm("swept", "a", after=0, lifecycle="manual")
    with pytest.raises(InvalidAlarmRegistrationError):
        await world.harness.advance(5)
    await world.harness.advance(1)
    await world.host.scheduler.schedule_alarm("another", "a", after=0)
    await world.harness.advance(5)
    assert len(_logged(caplog, "orphan")) == 1
    assert len(_logged(caplog, "swept")) == 1
    assert len(_logged(caplog, "another")) == 1
    messages = " ".join(record.getMessage() for record in caplog.records)
    assert "'a'" not in messages


async def test_a_tag_without_a_handler_is_not_logged_by_the_driver_either(
    mock_clock: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The pass that raises for a manual row of an unknown tag adds no record to the tag's (R51)."""
    async with open_host(tmp_path / "alarms.db", alarms=_known(Seen())) as host:
        await host.scheduler.schedule_alarm("swept", "a", after=0, lifecycle="manual")
        await trio.testing.wait_all_tasks_blocked()
        status = await host.scheduler.get_alarm_status("swept", "a")
        assert status is not None
        assert status.run_at > host.now()
    assert len(_logged(caplog, "swept")) == 1
    assert len(caplog.records) == 1


async def test_listing_and_reading_change_nothing(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """Looking at alarms without a handler writes nothing (C17)."""
    world = await open_inline_world(alarms=_known(Seen()))
    await world.host.scheduler.schedule_alarm("orphan", "a", after=0)
    before = world.rows()
    await world.host.scheduler.list_alarms()
    await world.host.scheduler.get_alarm_status("orphan", "a")
    assert world.rows() == before


async def test_a_host_without_alarms_or_hook_applies_the_policy(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """With neither a dispatcher nor a hook every due row meets the unknown-tag policy (R33)."""
    world = await open_world()
    await world.host.scheduler.schedule_alarm("orphan", "a", after=0)
    await world.host.scheduler.schedule_alarm("swept", "a", after=0, lifecycle="manual")
    await world.step()
    with pytest.raises(InvalidAlarmRegistrationError, match="'swept'"):
        await world.harness.deliver()
    rows = {row.tag: (row.attempts, row.wake_at) for row in world.rows()}
    assert rows == {"orphan": (1, 1_000), "swept": (0, HOUR)}


async def test_a_handler_set_fails_unknown_tags_by_itself(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """A define set dispatches due rows of every tag, and unknown ones fail (R25, R33)."""
    job = Alarm(None, tag="job")
    seen = Seen()
    handlers = define(job).handlers(job.handled_by(seen))
    world = await open_world()
    await world.host.scheduler.schedule_alarm(job, "a", after=0)
    await world.host.scheduler.schedule_alarm("orphan", "a", after=0)
    result = await handlers.run(world.host)
    assert [event.tag for event in result.handled] == ["job"]
    assert [failure.tag for failure in result.failed] == ["orphan"]
    assert isinstance(result.failed[0].error, StoredAlarmDecodeError)
    row = world.row("orphan", "a")
    assert row is not None
    assert row.wake_at == 1_000


async def test_an_unknown_tag_is_never_skipped(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """Not even on_failure deletes what could not be read (R28)."""

    async def skip(_: object) -> FailureAction:
        return "skip-and-advance-repeat"

    job = Alarm(None, tag="job")
    handlers = define(job).handlers(
        job.handled_by(Seen()), options=DispatchOptions(on_failure=skip)
    )
    world = await open_inline_world(alarms=handlers)
    await world.host.scheduler.schedule_alarm("orphan", "a", after=0)
    await world.harness.advance(0)
    row = world.row("orphan", "a")
    assert row is not None
    assert row.attempts == 1


async def test_a_tag_that_gets_a_handler_later_decodes_again(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """Parked by a missing handler, scheduled anew it runs at once (R4, R30)."""
    orphans = Seen()
    registration = Orphans.handlers(
        Orphans.job.handled_by(orphans), Orphans.sweep.handled_by(orphans)
    )
    world = await open_inline_world(alarms=_known(Seen()))
    await world.host.scheduler.schedule_alarm("orphan", "a", after=0)
    await world.harness.advance(600)
    row = world.row("orphan", "a")
    assert row is not None
    assert row.parked
    await world.harness.reopen(alarms=registration)
    await world.host.scheduler.schedule_alarm(Orphans.job, "a", after=0)
    await world.harness.advance(0)
    assert orphans.ids == ["a"]
