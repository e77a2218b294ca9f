"""The storage fails at every statement of every operation: all or nothing, and on it goes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import pytest
import trio.testing

from tests.behaviour.storage_tools import error_of
from tests.faults.injection import (
    APPLICATION_INSERT as INSERT,
)
from tests.faults.injection import (
    MANNERS,
    Fault,
    Injector,
    look,
    require_idle,
    require_storage_errors,
    require_unlocked,
    storage_options,
)
from trio_alarms import AlarmHost, open_host
from trio_alarms.testing import AlarmHarness, open_test_host

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
# Instants, so that what is stored does not depend on how long a lock was waited for.
FAR, NEAR = EPOCH + timedelta(days=300), EPOCH + timedelta(days=200)


@attrs.frozen
class World:
    """A managed host, one whose native alarm is the application's, and their file."""

    harness: AlarmHarness
    raw: AlarmHost
    path: Path

    @property
    def host(self) -> AlarmHost:
        """The managed host."""
        return self.harness.host

    def state(self) -> Any:
        """All that is durable, but for the revisions."""
        return look(
            self.path,
            "SELECT host, tag, id, lifecycle, run_at, wake_at, retry_at, repeat_every, progress,"
            " attempts, parked, payload FROM trio_alarms_alarms ORDER BY host, tag, id",
            "SELECT name, managed, native_alarm FROM trio_alarms_hosts ORDER BY name",
            "SELECT id FROM items ORDER BY id",
        )


@asynccontextmanager
async def opened(path: Path, executor: Any) -> AsyncIterator[World]:
    """Both hosts, open."""
    storage = storage_options(executor)
    async with (
        open_test_host(path, epoch=EPOCH, storage=storage) as harness,
        open_host(path, name="raw", driver=False, storage=storage) as raw,
    ):
        async with harness.host.storage.transaction() as tx:
            await tx.execute("CREATE TABLE items (id INTEGER PRIMARY KEY)")
        yield World(harness, raw, path)


async def schedule(world: World) -> object:
    """Replace the alarm."""
    return await world.host.scheduler.schedule_alarm("send", "a", run_at=NEAR, payload="new")


async def schedule_earlier(world: World) -> object:
    """Move the alarm to an earlier deadline."""
    return await world.host.scheduler.schedule_alarm_earlier(
        "send", "a", run_at=NEAR, payload="new"
    )


async def ensure(world: World) -> object:
    """Bring the alarm's payload up to date."""
    return await world.host.scheduler.ensure_alarm("send", "a", run_at=NEAR, payload="new")


async def ensure_anew(world: World) -> object:
    """Add an alarm that is not there."""
    return await world.host.scheduler.ensure_alarm("send", "b", run_at=NEAR, payload="new")


async def cancel(world: World) -> object:
    """Remove the alarm."""
    return await world.host.scheduler.cancel_alarm("send", "a")


async def cancel_missing(world: World) -> object:
    """Remove an alarm that is not there."""
    return await world.host.scheduler.cancel_alarm("send", "missing")


async def status(world: World) -> object:
    """Look at one alarm."""
    return await world.host.scheduler.get_alarm_status("send", "a")


async def list_all(world: World) -> object:
    """Look at all alarms."""
    records = await world.host.scheduler.list_alarms()
    return [(record.ref, record.payload, record.status) for record in records]


async def query(world: World) -> object:
    """Read the application's rows."""
    return await world.host.storage.query("SELECT id FROM items")


async def application_block(world: World) -> object:
    """Change the application's rows only."""
    async with world.host.storage.transaction() as tx:
        await tx.execute(INSERT, (1,))
        await tx.executemany(INSERT, [(2,), (3,)])
        return await tx.execute("SELECT id FROM items ORDER BY id")


async def reading_block(world: World) -> object:
    """Change nothing in a block."""
    async with world.host.storage.transaction():
        return await world.host.storage.query("SELECT id FROM items")


async def block(world: World) -> object:
    """Change rows and alarms in one transaction, with a savepoint and a function."""
    async with world.host.scheduler.transaction() as tx:
        await tx.execute(INSERT, (1,))
        await tx.schedule_alarm("send", "a", run_at=NEAR, payload="new")
        async with world.host.scheduler.transaction() as inner:
            await inner.executemany(INSERT, [(2,), (3,)])
            await inner.schedule_alarm_earlier("send", "b", run_at=NEAR)
        await world.host.scheduler.ensure_alarm("send", "c", run_at=NEAR)
        await tx.run_sync(lambda connection: connection.execute(INSERT, (4,)) and None)
        await tx.cancel_alarm("send", "c")
        return await tx.get_alarm_status("send", "a")


async def block_with_undone_savepoint(world: World) -> object:
    """Undo an inner block, and keep the outer one."""
    async with world.host.scheduler.transaction() as tx:
        await tx.execute(INSERT, (1,))

        async def undone() -> None:
            async with world.host.scheduler.transaction() as inner:
                await inner.execute(INSERT, (2,))
                await inner.schedule_alarm("send", "a", run_at=NEAR)
                raise LookupError

        with contextlib.suppress(LookupError):
            await undone()
        await tx.schedule_alarm("send", "b", run_at=NEAR)
    return None


async def abandoned_block(world: World) -> object:
    """Raise out of a block that has changed rows and alarms."""

    async def abandoned() -> None:
        async with world.host.scheduler.transaction() as tx:
            await tx.schedule_alarm("send", "a", run_at=NEAR, payload="new")
            await tx.execute(INSERT, (1,))
            raise LookupError

    with contextlib.suppress(LookupError):
        await abandoned()
        raise AssertionError("the body's own error was lost")
    return None


async def native_set(world: World) -> object:
    """Arm a native alarm of the application's."""
    return await world.raw.native_alarm.set(NEAR)


async def native_delete(world: World) -> object:
    """Disarm a native alarm of the application's."""
    return await world.raw.native_alarm.delete()


async def native_get(world: World) -> object:
    """Look at the native alarm."""
    return await world.host.native_alarm.get()


Operation: TypeAlias = Callable[[World], Awaitable[object]]
OPERATIONS: list[Operation] = [
    schedule,
    schedule_earlier,
    ensure,
    ensure_anew,
    cancel,
    cancel_missing,
    status,
    list_all,
    query,
    application_block,
    reading_block,
    block,
    block_with_undone_savepoint,
    abandoned_block,
    native_set,
    native_delete,
    native_get,
]
names = [operation.__name__ for operation in OPERATIONS]


async def put_back(world: World) -> None:
    """The state before: one alarm with an old payload, and no item."""
    async with world.host.scheduler.transaction() as tx:
        await tx.execute("DELETE FROM items WHERE true")
        for id in "abc":
            await tx.cancel_alarm("send", id)
        await tx.schedule_alarm("send", "a", run_at=FAR, payload="old")
    await world.raw.native_alarm.set(FAR)


async def sweep(
    world: World, injector: Injector, operation: Operation, fault: Callable[[int], Fault]
) -> int:
    """Have each statement of the operation fail in turn; the number of those it has."""
    await put_back(world)
    old = world.state()
    expected = await operation(world)
    new = world.state()
    at = 1
    while True:
        await put_back(world)
        assert world.state() == old
        results: list[object] = []

        async def run(results: list[object] = results) -> None:
            results.append(await operation(world))

        with injector.inject(fault(at)) as injected:
            error = await error_of(run)
        require_unlocked(world.path)
        require_idle(world.host)
        if error is None:
            assert world.state() == new, injected
            assert results == [expected]
        else:
            require_storage_errors(error, injected)
            if getattr(error, "outcome", "rolled back") == "rolled back":
                assert world.state() == old, injected
            else:
                assert injected.struck[0].startswith("COMMIT")
                assert world.state() in (old, new)
        if not injected.struck:
            assert error is None
            return at - 1
        at += 1


@pytest.mark.parametrize("operation", OPERATIONS, ids=names)
async def test_a_statement_that_fails_leaves_all_or_nothing(
    autojump_clock: object, tmp_path: Path, injector: Injector, operation: Operation
) -> None:
    """Whichever statement fails in whatever way: wholly old or wholly new, nothing held (R10)."""
    async with opened(tmp_path / "alarms.db", "inline") as world:
        for kind, manner in MANNERS:
            assert await sweep(world, injector, operation, partial(Fault, kind, manner))


@pytest.mark.trust
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("executor", ["inline", "thread"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=names)
async def test_storage_that_keeps_failing_leaves_all_or_nothing(
    mock_clock: trio.testing.MockClock,
    tmp_path: Path,
    injector: Injector,
    operation: Operation,
    executor: str,
    *,
    lasting: bool,
) -> None:
    """As above, in both places where SQLite runs, and when nothing works from then on (R10)."""
    if executor == "inline":
        mock_clock.autojump_threshold = 0
    async with opened(tmp_path / "alarms.db", executor) as world:
        for kind, manner in MANNERS:
            if lasting and manner != "refused":
                continue
            fault = partial(Fault, kind, manner, lasting=lasting)
            assert await sweep(world, injector, operation, fault)
