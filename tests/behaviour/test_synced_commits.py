"""Which commits wait for the disk: all but those that only guard a pass (R22, R52, R60)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.behaviour.services import Recorder, serving
from trio_alarms import AlarmDue, StorageOptions
from trio_alarms._store._connection import Connection

if TYPE_CHECKING:
    from tests.behaviour.conftest import OpenWorld, World

FULL, NORMAL, OFF = 2, 1, 0

DURABLE = StorageOptions(executor="thread")


@pytest.fixture
def levels(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """SQLite's level of synchronisation at each commit of a writer."""
    found: list[int] = []
    commit = Connection.commit

    def noted(connection: Connection) -> None:
        found.append(connection.raw.execute("PRAGMA synchronous").fetchone()[0])
        commit(connection)

    monkeypatch.setattr(Connection, "commit", noted)
    return found


async def deliver(world: World, levels: list[int], tag: str, **options: Any) -> list[int]:
    """Arm an alarm that is due and deliver it; the levels of what is committed meanwhile."""
    await world.host.scheduler.schedule_alarm(tag, "a", after=0, **options)
    levels.clear()
    await world.harness.deliver()
    return levels


async def test_all_but_the_guard_of_a_pass_is_synced(
    mock_clock: object, open_inline_world: OpenWorld, levels: list[int]
) -> None:
    """A pass waits for the disk with what its handler writes, its acknowledgement and its end."""
    inside: list[Any] = []

    async def handler(event: AlarmDue[Any]) -> None:
        async with event.host.scheduler.transaction() as tx:
            inside.extend(await tx.execute("PRAGMA synchronous"))
            await tx.schedule_alarm("later", "b", after=60)

    world = await open_inline_world(alarms=serving(automatic={"work": handler}), storage=DURABLE)
    assert await deliver(world, levels, "work") == [NORMAL, FULL, FULL, FULL]
    assert inside == [(FULL,)]


async def test_a_pass_that_moves_manual_alarms_is_synced(
    mock_clock: object, open_inline_world: OpenWorld, levels: list[int]
) -> None:
    """Where a manual alarm comes back after a crash has to last, so its commit is synced (R26)."""
    paint = Recorder()
    world = await open_inline_world(alarms=serving(manual={"paint": paint}), storage=DURABLE)
    assert await deliver(world, levels, "paint", lifecycle="manual") == [FULL, FULL, FULL]
    assert len(paint.events) == 1


async def test_a_defer_wakes_scope_of_the_applications_is_synced(
    mock_clock: object, open_inline_world: OpenWorld, levels: list[int]
) -> None:
    """Its guard is durable when the body begins, as it promises (R17)."""
    world = await open_inline_world(storage=DURABLE)
    levels.clear()
    async with world.host.scheduler.defer_wakes():
        assert levels == [FULL]
    assert levels == [FULL, FULL]


@pytest.mark.parametrize(("synchronous", "level"), [("normal", NORMAL), ("off", OFF)])
async def test_a_weaker_level_stays_what_it_is(
    mock_clock: object,
    open_inline_world: OpenWorld,
    levels: list[int],
    synchronous: Any,
    level: int,
) -> None:
    """No commit is synced more than was asked for, before and after a guard (R60)."""
    world = await open_inline_world(
        alarms=serving(automatic={"work": Recorder()}),
        storage=StorageOptions(executor="inline", synchronous=synchronous),
    )
    assert await deliver(world, levels, "work") == [level] * 3
