"""Times and payloads at the edge of what is taken come back as they were given."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from trio.testing import MockClock

from tests.behaviour.bad_arguments import BAD_DURATIONS, ZONE_AHEAD, ZONE_BEHIND, nested, type_of
from tests.behaviour.work_service import Note, Recorder, Work, at, work
from trio_alarms import Alarm, InvalidAlarmRefError, define

if TYPE_CHECKING:
    from tests.behaviour.conftest import OpenWorld

# Extreme times


@pytest.mark.parametrize(
    "options",
    [
        {"run_at": datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)},
        {"run_at": datetime(9999, 1, 1, tzinfo=ZONE_BEHIND)},
        {"after": 36_525 * 86_400},
        {"after": timedelta(days=36_525)},
        {"after": 3e9},
        {"run_at": datetime.max.replace(microsecond=0, tzinfo=ZONE_AHEAD)},
        {"after": 60, "repeat_every": timedelta(days=36_525)},
        {"run_at": at(60_000), "progress": 2**63 - 1},
    ],
)
async def test_extreme_times_are_stored_and_simply_not_due(
    open_world: OpenWorld, mock_clock: MockClock, options: dict[str, Any]
) -> None:
    """They come back as given, and another alarm still fires in a second (C03)."""
    handler = Recorder()
    world = await open_world(alarms=work(handler))
    status = await world.host.service(Work).schedule_alarm(
        Work.plain, "far", payload=Note("x"), **options
    )
    if "run_at" in options:
        assert status.run_at == options["run_at"]
    await world.host.service(Work).schedule_alarm(Work.plain, "near", after=1, payload=Note("x"))
    before = world.row("plain", "far")
    await world.step()
    await world.harness.advance(1)
    assert (handler.ids, handler.ran_at) == (["near"], [1_000])
    assert world.row("plain", "far") == before


async def test_a_computed_deadline_past_the_last_instant_saturates(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Durations from near the end of time end at its end (C03)."""
    epoch = datetime(9999, 12, 31, tzinfo=UTC)
    handler = Recorder(failures=1)
    world = await open_world(alarms=work(handler), epoch=epoch)
    last = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    far = await world.host.scheduler.schedule_alarm("raw", "far", after=timedelta(days=365))
    assert far.run_at == last
    assert [row.run_at for row in world.rows()] == [86_399_999]
    await world.host.service(Work).schedule_alarm(
        Work.plain, "repeat", run_at=epoch, payload=Note("x"), repeat_every=timedelta(days=365)
    )
    await world.step()
    await world.harness.advance(1)
    status = await world.host.service(Work).get_alarm_status(Work.plain, "repeat")
    assert status is not None
    assert (status.run_at, len(handler.events)) == (last, 2)


async def test_a_refused_time_leaves_other_alarms_alone(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """After every refusal another alarm in a second still fires (C03)."""
    handler = Recorder()
    world = await open_world(alarms=work(handler))
    for value, _ in BAD_DURATIONS:
        with pytest.raises(InvalidAlarmRefError):
            await world.host.scheduler.schedule_alarm("raw", "a", after=value)
    await world.host.service(Work).schedule_alarm(Work.plain, "near", after=1, payload=Note("x"))
    await world.step()
    await world.harness.advance(2)
    assert handler.ran_at == [1_000]


# Payloads that are taken


@attrs.frozen
class Paid:
    """One member of a union."""

    amount: int
    when: datetime


@attrs.frozen
class Refused:
    """The other one, with the same field."""

    amount: int


either = Alarm(Paid | Refused, tag="either")
anything = Alarm(Any, tag="anything")


@pytest.mark.parametrize(
    ("alarm", "payload"),
    [
        (anything, 2**70),
        (anything, -(10**4299)),
        (anything, 0.1),
        (anything, -0.0),
        (anything, 1e308),
        (anything, nested(100)),
        (anything, {"": [], "a": {"b": [None, True, 1, 1.0, "\u2028 😀 \x00"]}}),
        (anything, "x" * 1_000_000),
        (anything, "'; DROP TABLE trio_alarms_alarms; --"),
        (either, Paid(1, datetime(2000, 1, 1, 12, tzinfo=ZONE_AHEAD))),
        (either, Refused(1)),
    ],
    ids=type_of,
)
async def test_a_payload_that_is_taken_comes_back_equal(
    open_world: OpenWorld, mock_clock: MockClock, alarm: Any, payload: Any
) -> None:
    """After a crash and a restart the handler gets an equal value of the same type (C19)."""
    handler = Recorder()
    world = await open_world(
        alarms=define(either, anything).handlers(
            either.handled_by(handler), anything.handled_by(handler)
        )
    )
    await world.host.scheduler.schedule_alarm(alarm, "a", run_at=at(0), payload=payload)
    await world.harness.crash()
    await world.harness.reopen()
    await world.harness.deliver()
    received = handler.events[0].payload
    assert received == payload
    assert type(received) is type(payload)
    assert repr(received) == repr(payload)
