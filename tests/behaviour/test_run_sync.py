"""`tx.run_sync`: application code where the connection lives, inside the transaction (R10)."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.behaviour.conftest import OpenWorld
from tests.behaviour.storage_tools import (
    INSERT,
    ROLL_BACK,
    create_items,
    error_of,
    items,
    require_unlocked,
)
from trio_alarms import (
    AlarmHost,
    AlarmTransaction,
    StorageOperationError,
    StorageOptions,
    open_host,
)


def insert(id: int, connection: sqlite3.Connection) -> int:
    """Add an item, as an ORM does."""
    return connection.execute(INSERT, (id,)).rowcount


async def test_its_changes_are_the_transactions(mock_clock: object, open_world: OpenWorld) -> None:
    """What `fn` returns is returned, and what it changed is stored with the block (R10)."""
    world = await open_world()
    await create_items(world.host)

    def count_alarms(connection: sqlite3.Connection) -> int:
        return int(connection.execute("SELECT count(*) FROM trio_alarms_alarms").fetchone()[0])

    async with world.host.scheduler.transaction() as tx:
        await tx.schedule_alarm("send", "a", after=1)
        assert await tx.run_sync(partial(insert, 1)) == 1
        assert await tx.run_sync(count_alarms) == 1
        assert items(world.path) == []
    await world.step()
    assert items(world.path) == [1]


async def test_it_runs_where_the_connection_lives(
    mock_clock: object, open_world: OpenWorld, storage_kind: str
) -> None:
    """`fn` runs in the worker thread with thread storage, and else in the loop's own (R10)."""
    world = await open_world()
    async with world.host.storage.transaction() as tx:
        thread = await tx.run_sync(lambda _: threading.get_ident())
    assert (thread == threading.get_ident()) is (storage_kind != "thread")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("v"),
        sqlite3.OperationalError("s"),
        KeyError(),
        StorageOperationError("m", operation="x"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_it_raises_passes_unchanged_and_the_block_goes_on(
    mock_clock: object, open_world: OpenWorld, error: Exception
) -> None:
    """What `fn` raises is the same object; what it changed is undone, nothing else (R10)."""
    world = await open_world()
    await create_items(world.host)

    def fail(connection: sqlite3.Connection) -> None:
        insert(2, connection)
        connection.execute("DELETE FROM trio_alarms_alarms")
        connection.execute("SAVEPOINT mine")
        raise error

    async with world.host.scheduler.transaction() as tx:
        await tx.schedule_alarm("send", "a", after=1)
        await tx.execute(INSERT, (1,))
        assert await error_of(partial(tx.run_sync, fail)) is error
        await tx.execute(INSERT, (3,))
    assert items(world.path) == [1, 3]
    assert [row.id for row in world.rows()] == ["a"]


async def test_an_error_of_sqlites_own_passes_unchanged(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """A constraint that `fn` violates is a plain `sqlite3.IntegrityError` (R10)."""
    world = await open_world()
    await create_items(world.host)
    async with world.host.storage.transaction() as tx:
        await tx.execute(INSERT, (1,))
        with pytest.raises(sqlite3.IntegrityError):
            await tx.run_sync(partial(insert, 1))
        await tx.run_sync(partial(insert, 2))
    assert items(world.path) == [1, 2]


async def test_an_error_that_no_coroutine_can_raise_still_undoes(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """A `StopIteration` of `fn` becomes a `RuntimeError`, and its changes are undone (R10)."""
    world = await open_world()
    await create_items(world.host)
    error = StopIteration()

    def fail(connection: sqlite3.Connection) -> None:
        insert(2, connection)
        raise error

    async with world.host.storage.transaction() as tx:
        with pytest.raises(RuntimeError) as caught:
            await tx.run_sync(fail)
        await tx.execute(INSERT, (1,))
    assert caught.value.__cause__ is error
    assert items(world.path) == [1]


async def test_a_savepoint_left_open_undoes_it(mock_clock: object, open_world: OpenWorld) -> None:
    """When `fn` leaves a savepoint open, what it changed is undone and the block goes on (R10)."""
    world = await open_world()
    await create_items(world.host)

    def leave_open(connection: sqlite3.Connection) -> None:
        connection.execute("SAVEPOINT mine")
        insert(2, connection)

    async with world.host.storage.transaction() as tx:
        await tx.execute(INSERT, (1,))
        with pytest.raises(StorageOperationError, match="savepoint") as caught:
            await tx.run_sync(leave_open)
        assert caught.value.operation == "run_sync"
        with pytest.raises(StorageOperationError):
            await tx.execute("RELEASE mine")
        await tx.execute(INSERT, (3,))
    assert items(world.path) == [1, 3]


async def test_balanced_savepoints_are_allowed(mock_clock: object, open_world: OpenWorld) -> None:
    """Savepoints that `fn` closes work, each undoing what was done inside of it (R10)."""
    world = await open_world()
    await create_items(world.host)

    def use(connection: sqlite3.Connection) -> None:
        connection.execute("SAVEPOINT outer_one")
        insert(1, connection)
        connection.execute("SAVEPOINT inner_one")
        insert(2, connection)
        connection.execute("ROLLBACK TO inner_one")
        connection.execute("RELEASE inner_one")
        connection.execute("RELEASE outer_one")

    async with world.host.storage.transaction() as tx:
        await tx.run_sync(use)
    assert items(world.path) == [1]


@pytest.mark.parametrize(
    "control",
    [
        lambda connection: connection.commit(),
        lambda connection: connection.rollback(),
        lambda connection: connection.execute("COMMIT"),
        lambda connection: connection.execute("ROLLBACK"),
        lambda connection: connection.executescript("SELECT 1"),
        lambda connection: connection.close(),
        lambda connection: connection.__enter__().__exit__(None, None, None),
    ],
)
async def test_it_cannot_end_the_transaction(
    mock_clock: object, open_world: OpenWorld, control: Callable[[sqlite3.Connection], object]
) -> None:
    """A commit or rollback in `fn` is refused by SQLite; what `fn` changed is undone (R10)."""
    world = await open_world()
    await create_items(world.host)

    def use(connection: sqlite3.Connection) -> None:
        insert(2, connection)
        control(connection)

    async with world.host.storage.transaction() as tx:
        await tx.execute(INSERT, (1,))
        with pytest.raises(sqlite3.DatabaseError):
            await tx.run_sync(use)
        assert items(world.path) == []
        await tx.execute(INSERT, (3,))
    assert items(world.path) == [1, 3]


async def test_a_statement_cached_by_it_is_refused_elsewhere(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """A savepoint that `fn` has prepared is refused in `tx.execute` afterwards (R10)."""
    world = await open_world()
    await create_items(world.host)

    def use(connection: sqlite3.Connection) -> None:
        for _ in range(3):
            connection.execute("SAVEPOINT mine")
            connection.execute("RELEASE mine")

    for nth in (1, 2):
        async with world.host.storage.transaction() as tx:
            await tx.run_sync(use)
            for statement in ("SAVEPOINT mine", "RELEASE mine", " SAVEPOINT mine"):
                with pytest.raises(StorageOperationError, match="refused"):
                    await tx.execute(statement)
            await tx.execute(INSERT, (nth,))
    assert items(world.path) == [1, 2]


async def test_after_sqlite_rolled_back_it_stores_nothing(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """A `fn` that goes on after ON CONFLICT ROLLBACK stores nothing behind our back (R10)."""
    world = await open_world()
    await create_items(world.host)

    def use(connection: sqlite3.Connection) -> None:
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(ROLL_BACK)
        with pytest.raises(sqlite3.OperationalError):
            insert(2, connection)

    async def body() -> None:
        async with world.host.storage.transaction() as tx:
            await tx.execute(INSERT, (1,))
            await tx.run_sync(use)
            with pytest.raises(StorageOperationError):
                await tx.run_sync(partial(insert, 3))

    assert isinstance(await error_of(body), StorageOperationError)
    assert items(world.path) == []
    require_unlocked(world.path)


async def test_a_cursor_that_it_returns_blocks_nobody(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """An unfinished cursor that `fn` returns blocks neither commit nor later ones (R10, C24)."""
    world = await open_world()
    await create_items(world.host)
    async with world.host.storage.transaction() as tx:
        await tx.executemany(INSERT, [(1,), (2,)])
        reading = await tx.run_sync(lambda connection: connection.execute("SELECT id FROM items"))
        writing = await tx.run_sync(
            lambda connection: connection.execute(
                "INSERT INTO items (id) VALUES (3), (4) RETURNING id"
            )
        )
    world.sql(INSERT, 5)
    await world.host.scheduler.schedule_alarm("send", "a", after=1)
    assert items(world.path) == [1, 2, 3, 4, 5]
    for cursor in (reading, writing):
        with pytest.raises(sqlite3.ProgrammingError):
            cursor.fetchone()


async def test_settings_that_it_changes_are_put_back(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """A row factory that `fn` sets reaches neither `tx.execute` nor the alarms (R10)."""
    world = await open_world()

    def use(connection: sqlite3.Connection) -> None:
        connection.row_factory = sqlite3.Row
        connection.text_factory = bytes

    async with world.host.scheduler.transaction() as tx:
        status = await tx.schedule_alarm("send", "a", after=1, payload="x")
        await tx.run_sync(use)
        assert await tx.get_alarm_status("send", "a") == status
        assert await tx.execute("SELECT 'x'") == [("x",)]


async def test_it_is_not_called_once_cancelled(mock_clock: object, open_world: OpenWorld) -> None:
    """Cancelled before `fn` has started, `run_sync` does not call it (R11)."""
    world = await open_world()
    await create_items(world.host)
    called: list[None] = []

    with trio.CancelScope() as scope:
        async with world.host.storage.transaction() as tx:
            scope.cancel()
            await tx.run_sync(lambda _: called.append(None))
    assert scope.cancelled_caught
    assert called == []
    require_unlocked(world.path)


@pytest.fixture
def thread_host(tmp_path: Path) -> Callable[[], AbstractAsyncContextManager[AlarmHost]]:
    """Opens a host on the real clock whose storage is in a worker thread."""
    return lambda: open_host(tmp_path / "alarms.db", storage=StorageOptions(executor="thread"))


OpenThreadHost = Callable[[], AbstractAsyncContextManager[AlarmHost]]


async def test_once_started_it_runs_to_its_end(thread_host: OpenThreadHost, tmp_path: Path) -> None:
    """A `fn` that has started is waited for, be it cancelled; then the block rolls back (R11)."""
    started, go_on, ended = trio.Event(), threading.Event(), threading.Event()

    def use(connection: sqlite3.Connection) -> None:
        trio.from_thread.run_sync(started.set)
        assert go_on.wait(10)
        insert(1, connection)
        ended.set()

    async with thread_host() as host, trio.open_nursery() as nursery:
        await create_items(host)
        scope = trio.CancelScope()

        async def block() -> None:
            with scope:
                async with host.storage.transaction() as tx:
                    await tx.run_sync(use)
                    assert ended.is_set()
                    await tx.execute(INSERT, (2,))

        nursery.start_soon(block)
        await started.wait()
        scope.cancel()
        await trio.lowlevel.checkpoint()
        go_on.set()
    assert scope.cancelled_caught
    assert items(tmp_path / "alarms.db") == []


async def test_it_can_ask_whether_it_is_cancelled(
    thread_host: OpenThreadHost, tmp_path: Path
) -> None:
    """A `fn` that asks trio whether it was cancelled is undone when it was (R10, R11)."""
    scope = trio.CancelScope()

    def use(connection: sqlite3.Connection) -> None:
        insert(2, connection)
        trio.from_thread.run_sync(scope.cancel)
        trio.from_thread.check_cancelled()

    async with thread_host() as host:
        await create_items(host)
        async with host.storage.transaction() as tx:
            await tx.execute(INSERT, (1,))
            with scope:
                await tx.run_sync(use)
            await tx.execute(INSERT, (3,))
    assert scope.cancelled_caught
    assert items(tmp_path / "alarms.db") == [1, 3]


async def _nest(host: AlarmHost) -> None:
    async with host.scheduler.transaction() as tx:
        await tx.execute(INSERT, (9,))


REENTRANT: dict[str, Callable[[AlarmHost, AlarmTransaction], Any]] = {
    "tx.execute": lambda _, tx: tx.execute(INSERT, (9,)),
    "tx.run_sync": lambda _, tx: tx.run_sync(partial(insert, 9)),
    "tx.schedule_alarm": lambda _, tx: tx.schedule_alarm("send", "a", after=0),
    "schedule_alarm": lambda host, _: host.scheduler.schedule_alarm("send", "a", after=0),
    "query": lambda host, _: host.storage.query("SELECT 1"),
    "get_alarm_status": lambda host, _: host.scheduler.get_alarm_status("send", "a"),
    "a nested block": lambda host, _: _nest(host),
    "native_alarm.get": lambda host, _: host.native_alarm.get(),
}


@pytest.mark.parametrize("use", REENTRANT)
async def test_it_cannot_use_the_host_through_trio(
    thread_host: OpenThreadHost, tmp_path: Path, use: str
) -> None:
    """A `fn` that calls back into its transaction with `from_thread` gets an error (R12)."""
    caught: list[BaseException] = []

    def call_back(host: AlarmHost, tx: AlarmTransaction, connection: sqlite3.Connection) -> None:
        insert(1, connection)
        try:
            trio.from_thread.run(lambda: REENTRANT[use](host, tx))
        except StorageOperationError as error:
            caught.append(error)

    with trio.fail_after(5):
        async with thread_host() as host:
            await create_items(host)
            async with host.scheduler.transaction() as tx:
                await tx.run_sync(partial(call_back, host, tx))
                await tx.execute(INSERT, (2,))
    assert len(caught) == 1
    assert items(tmp_path / "alarms.db") == [1, 2]


async def test_the_host_says_so_in_a_thread(thread_host: OpenThreadHost) -> None:
    """A method of the host's that is called in a thread, without trio, is an error (R12)."""
    async with thread_host() as host, host.storage.transaction() as tx:
        with pytest.raises(StorageOperationError, match="Trio run"):
            await tx.run_sync(lambda _: host.now())


async def test_a_thread_of_the_applications_own_can_write_through_trio(
    thread_host: OpenThreadHost, tmp_path: Path
) -> None:
    """A thread that the task in the block waits for writes in that block, in its place (R12)."""

    async def schedule(host: AlarmHost) -> None:
        await host.scheduler.schedule_alarm("send", "a", after=60)
        await host.storage.query("SELECT 1")

    with trio.fail_after(5):
        async with thread_host() as host:
            await create_items(host)
            async with host.scheduler.transaction() as tx:
                await tx.execute(INSERT, (1,))
                await trio.to_thread.run_sync(partial(trio.from_thread.run, schedule, host))
                assert items(tmp_path / "alarms.db") == []
            assert len(await host.scheduler.list_alarms()) == 1


async def test_a_foreign_thread_waits_for_its_turn(
    thread_host: OpenThreadHost, tmp_path: Path
) -> None:
    """A thread that was started elsewhere writes after the block, not inside of it (R12, R14)."""
    order: list[str] = []

    async with thread_host() as host:
        token = trio.lowlevel.current_trio_token()

        async def schedule() -> None:
            await host.scheduler.schedule_alarm("send", "a", after=60)
            order.append("scheduled")

        def work() -> None:
            trio.from_thread.run(schedule, trio_token=token)

        async with host.scheduler.transaction() as tx:
            thread = threading.Thread(target=work)
            thread.start()
            await tx.schedule_alarm("send", "b", after=60)
            while not host._runtime.database.queue._waiting:
                await trio.lowlevel.checkpoint()
            order.append("left")
        await trio.to_thread.run_sync(thread.join)
        assert order == ["left", "scheduled"]
        assert len(await host.scheduler.list_alarms()) == 2
