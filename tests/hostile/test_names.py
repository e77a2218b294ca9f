"""Tags and ids of any characters: each alarm is its own, whatever its name looks like."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tests.hostile.test_arguments import quiet
from tests.hostile.values import BAD_NAMES, NAMES, VALID_NAMES, quick, thorough
from trio_alarms import AlarmDue, AlarmHost, InvalidAlarmRefError, process_due
from trio_alarms.testing import open_test_host

__all__ = ["quiet"]  # the fixture, which is for this module too

REFS = st.lists(st.tuples(VALID_NAMES, VALID_NAMES), min_size=2, max_size=20, unique=True)


async def listed(host: AlarmHost) -> list[tuple[str, str]]:
    """All alarms, page by page."""
    found: list[Any] = []
    while True:
        page = await host.scheduler.list_alarms(limit=3, after=found[-1] if found else None)
        if not page:
            return [(record.ref.tag, record.ref.id) for record in found]
        found += page


def check_names(refs: list[tuple[str, str]], name: str) -> None:
    """Schedule, list, cancel and run alarms of these names: each is stored and run as itself."""
    ran: list[tuple[str, str]] = []

    async def run(event: AlarmDue[Any]) -> None:
        assert event.payload == [event.tag, event.id]
        ran.append((event.tag, event.id))

    async def main(path: Path) -> None:
        async with open_test_host(path, name=name[:128], alarms=process_due(run)) as harness:
            scheduler = harness.host.scheduler
            for tag, id in refs:
                await scheduler.schedule_alarm(tag, id, after=1, payload=[tag, id])
            await harness.crash()
            await harness.reopen()
            scheduler = harness.host.scheduler
            assert await listed(harness.host) == sorted(refs)
            tag, id = refs[0]
            of_tag = await scheduler.list_alarms(alarm=tag)
            assert [record.ref.id for record in of_tag] == sorted(i for t, i in refs if t == tag)
            assert await scheduler.cancel_alarm(tag, id)
            assert await scheduler.get_alarm_status(tag, id) is None
            assert await listed(harness.host) == sorted(refs[1:])
            await harness.advance(1)
            assert await listed(harness.host) == []
        assert ran == sorted(refs[1:])

    with tempfile.TemporaryDirectory() as folder:
        trio.run(main, Path(folder) / "alarms.db", clock=trio.testing.MockClock())


def test_names_that_look_like_something_else() -> None:
    """Quotes, wildcards, SQL and formats are characters; every pair is another alarm (R3)."""
    check_names(
        [*[(tag, id) for tag in NAMES for id in NAMES][:100], ("a", "bc"), ("ab", "c")], NAMES[0]
    )


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
async def test_names_that_sqlite_would_cut_or_refuse(name: str, mock_clock: object) -> None:
    """NUL, half a surrogate pair, none or too many characters: refused wherever they stand (R3)."""
    async with open_test_host() as harness:
        for method in ("schedule_alarm", "schedule_alarm_earlier", "ensure_alarm"):
            for ref in ((name, "a"), ("a", name)):
                with pytest.raises(InvalidAlarmRefError):
                    await getattr(harness.host.scheduler, method)(*ref, after=1)
        for method in ("cancel_alarm", "get_alarm_status"):
            for ref in ((name, "a"), ("a", name)):
                with pytest.raises(InvalidAlarmRefError):
                    await getattr(harness.host.scheduler, method)(*ref)
        with pytest.raises(InvalidAlarmRefError):
            await harness.host.scheduler.list_alarms(alarm=name)
        assert await harness.host.scheduler.list_alarms() == []


@quick(25)
@given(refs=REFS, name=VALID_NAMES)
def test_any_names(refs: list[tuple[str, str]], name: str) -> None:
    """Each alarm is stored, found, listed in order, cancelled and run as itself alone (R3)."""
    check_names(refs, name)


@pytest.mark.trust
@thorough(300)
@given(refs=REFS, name=VALID_NAMES)
def test_very_many_names(refs: list[tuple[str, str]], name: str) -> None:
    """As above, at length (R3)."""
    check_names(refs, name)
