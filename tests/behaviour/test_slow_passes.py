"""The warning about a pass that does not end (R27)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from trio_alarms import AlarmDue, AlarmHost, open_host

from .conftest import OpenWorld, World
from .services import Held, fine, serving


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged about slow passes."""
    return [
        record.getMessage() for record in caplog.records if "a pass has run" in record.getMessage()
    ]


async def run_for(world: World, seconds: float) -> None:
    """Deliver, and cancel the pass after so many virtual seconds."""
    with trio.move_on_after(seconds):
        await world.host.deliver_native_alarm()


async def test_a_pass_of_thirty_seconds_is_reported_once_with_what_still_runs(
    open_inline_world: OpenWorld,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The tags of the handlers that run, the seconds since each started, and no id (R27)."""

    async def slow(event: AlarmDue[Any]) -> None:
        await trio.sleep_forever()

    async def quick(event: AlarmDue[Any]) -> None:
        await trio.sleep(10)

    world = await open_inline_world(
        alarms=serving({"1 quick": quick, "2 slow": slow}, manual={"held": slow})
    )
    scheduler = world.host.scheduler
    for seconds in (29.9, 1000):
        assert warnings(caplog) == []
        await scheduler.schedule_alarm("1 quick", "a secret", after=0)
        await scheduler.schedule_alarm("2 slow", "a secret", after=0)
        await scheduler.schedule_alarm("held", "a secret", after=0, lifecycle="manual")
        await run_for(world, seconds)
    (warning,) = warnings(caplog)
    assert "'2 slow': 20" in warning
    assert "'held': 30" in warning
    assert "quick" not in warning
    assert "secret" not in caplog.text
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_of_several_handlers_of_a_tag_the_one_that_has_run_longest_counts(
    open_inline_world: OpenWorld,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each tag is named once (R27)."""

    async def slow(event: AlarmDue[Any]) -> None:
        await trio.sleep(5 if event.id == "1" else 1000)

    world = await open_inline_world(alarms=serving(manual={"held": slow}))
    for id in "123456":
        await world.host.scheduler.schedule_alarm("held", id, after=0, lifecycle="manual")
    await run_for(world, 60)
    (warning,) = warnings(caplog)
    assert warning.count("held") == 1
    assert "'held': 30" in warning


@pytest.mark.parametrize("where", ["way in", "way out", "nursery"])
async def test_a_pass_whose_event_scope_hangs_is_reported_too(
    where: str,
    open_inline_world: OpenWorld,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Thirty seconds after it became active, whatever it hangs in; then no handler runs (R27)."""

    @asynccontextmanager
    async def scope(_: AlarmHost) -> AsyncIterator[None]:
        if where == "way in":
            await trio.sleep_forever()
        yield
        if where == "way out":
            await trio.sleep_forever()

    async def ring(event: AlarmDue[Any]) -> None:
        if where == "nursery":
            event.scope.nursery.start_soon(trio.sleep_forever)

    world = await open_inline_world(alarms=serving({"ring": ring}), event_scope=scope)
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    await run_for(world, 29.9)
    assert warnings(caplog) == []
    await world.host.scheduler.schedule_alarm("ring", "1", after=0)
    await run_for(world, 100)
    (warning,) = warnings(caplog)
    assert "ring" not in warning


async def test_the_seconds_count_from_when_the_pass_became_active(
    open_inline_world: OpenWorld,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Waiting for others' scopes is not the pass's slowness; acquiring its scope is (R27, R22)."""

    @asynccontextmanager
    async def scope(_: AlarmHost) -> AsyncIterator[None]:
        await trio.sleep(20)
        yield

    async def ring(event: AlarmDue[Any]) -> None:
        await trio.sleep(9 if event.id == "quick" else 11)

    async def maintain(host: AlarmHost, task_status: trio.TaskStatus[None]) -> None:
        async with host.scheduler.defer_wakes():
            task_status.started()
            await trio.sleep(100)

    world = await open_inline_world(alarms=serving({"ring": ring}), event_scope=scope)
    for id, expected in (("quick", 0), ("slow", 1)):
        await world.host.scheduler.schedule_alarm("ring", id, after=0)
        async with trio.open_nursery() as nursery:
            await nursery.start(maintain, world.host)
            await world.host.deliver_native_alarm(force=True)
        assert world.rows() == []
        assert len(warnings(caplog)) == expected


async def test_each_pass_is_reported_for_itself(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """With a driver as without one (R27)."""

    async def ring(event: AlarmDue[Any]) -> None:
        await trio.sleep(40)

    async with open_host(tmp_path / "alarms.db", alarms=serving({"ring": ring})) as host:
        for after in (0, 100, 200):
            await host.scheduler.schedule_alarm("ring", str(after), after=after)
        await trio.sleep(400)
    assert len(warnings(caplog)) == 3


async def test_quick_passes_are_not_reported_however_many(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The clock starts anew with each pass (R27)."""
    held = Held()
    async with open_host(
        tmp_path / "alarms.db", alarms=serving({"ring": fine}, manual={"held": held})
    ) as host:
        for after in range(20):
            await host.scheduler.schedule_alarm("ring", str(after), after=5 * after)
        await trio.sleep(100)
        held.let_go()
    assert caplog.records == []
