"""The class of a payload has changed since it was stored."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio.testing

from trio_alarms import Alarm, AlarmDue, AlarmStatus, define
from trio_alarms.testing import AlarmHarness, open_test_host


@attrs.frozen
class Order:
    """As it was when it was stored."""

    number: int
    customer: str


@attrs.frozen
class Extended:
    """A field was added, without a default."""

    number: int
    customer: str
    currency: str


@attrs.frozen
class Renamed:
    """A field was renamed."""

    number: int
    buyer: str


@attrs.frozen
class Reduced:
    """A field was dropped."""

    number: int


@attrs.frozen
class Lenient:
    """A field was added, with a default."""

    number: int
    customer: str
    currency: str = "EUR"


class Seen:
    """A handler that keeps the payloads."""

    def __init__(self) -> None:
        self.payloads: list[Any] = []

    async def __call__(self, event: AlarmDue[Any]) -> None:
        """Keep it."""
        self.payloads.append(event.payload)


def handlers(kind: type, seen: Seen, upgrade: Callable[[Any], Any] | None = None) -> Any:
    """A handler set of today's class, beside another alarm that has not changed."""
    order = Alarm(kind, tag="order", upgrade=upgrade)
    other = Alarm(str, tag="other")
    return define(order, other).handlers(order.handled_by(seen), other.handled_by(seen))


async def status_of(harness: AlarmHarness) -> AlarmStatus:
    """The order's."""
    status = await harness.host.scheduler.get_alarm_status("order", "1")
    assert status is not None
    return status


def stored(path: Path) -> str:
    """The text of the order, past the library."""
    with closing(sqlite3.connect(path)) as other:
        found = other.execute("SELECT payload FROM trio_alarms_alarms WHERE tag = 'order'")
        return str(found.fetchone()[0])


async def schedule(harness: AlarmHarness) -> None:
    """What yesterday's code has stored, with the other alarm behind it."""
    old = {"number": 7, "customer": "Ada"}
    await harness.host.scheduler.schedule_alarm("order", "1", after=0, payload=old)
    await harness.host.scheduler.schedule_alarm("other", "1", after=1, payload="fine")


def to_today(value: Any) -> Any:
    """The upgrade to every class above."""
    return {"currency": "EUR", "buyer": value.get("customer"), **value}


@pytest.mark.parametrize("changed", [Extended, Renamed])
@pytest.mark.parametrize("mended_by", ["a fix", "an upgrade"])
async def test_a_payload_that_no_longer_fits_waits_for_its_mending(
    mock_clock: trio.testing.MockClock, tmp_path: Path, changed: type, mended_by: str
) -> None:
    """It alone fails, backs off and parks, with its bytes untouched; mended it runs (C20)."""
    path = tmp_path / "alarms.db"
    seen = Seen()
    async with open_test_host(path, alarms=handlers(Order, seen)) as harness:
        await schedule(harness)
        before = stored(path)
        await harness.reopen(alarms=handlers(changed, seen))
        await harness.advance(2)
        assert seen.payloads == ["fine"]
        assert 1 <= (await status_of(harness)).attempts <= 2
        await harness.advance(3_600)
        status = await status_of(harness)
        assert (status.attempts, status.parked) == (8, True)
        assert stored(path) == before
        if mended_by == "a fix":
            await harness.reopen(alarms=handlers(Order, seen))
        else:
            await harness.reopen(alarms=handlers(changed, seen, to_today))
        await harness.advance(3_600)
        assert len(seen.payloads) == 2
        assert seen.payloads[1].number == 7
        assert await harness.host.scheduler.list_alarms() == []


@pytest.mark.parametrize("changed", [Reduced, Lenient])
async def test_a_change_that_old_payloads_fit_runs(
    mock_clock: trio.testing.MockClock, changed: type
) -> None:
    """A field that was dropped, or added with a default, disturbs nothing (C20)."""
    seen = Seen()
    async with open_test_host(alarms=handlers(Order, seen)) as harness:
        await schedule(harness)
        await harness.reopen(alarms=handlers(changed, seen))
        await harness.advance(1)
        assert [type(payload) for payload in seen.payloads] == [changed, str]
