"""An open database file: its queue of writers, its tries, and the registry of this process."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from trio_alarms import StorageOperationError, StorageOptions
from trio_alarms._database import (
    Database,
    Gate,
    WriterQueue,
    _registry,
    acquire_database,
    release_database,
)

INLINE = StorageOptions(executor="inline", busy_timeout=0.1)
THREAD = StorageOptions(executor="thread", busy_timeout=0.1)
BOTH = pytest.mark.parametrize("options", [INLINE, THREAD], ids=["inline", "thread"])


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A path for a database; no database may stay open after the test."""
    yield tmp_path / "alarms.db"
    assert _registry == {}


async def open_and_give_back(path: Path, options: StorageOptions, name: str = "default") -> None:
    """Open the database and close it again."""
    await release_database(await acquire_database(path, options, name), name)


# Turns go from hand to hand, first come first served (R14).


async def test_turns_are_taken_in_the_order_of_asking() -> None:
    """Whoever asks first has the turn first, and nobody overtakes (R14)."""
    queue = WriterQueue()
    order: list[int] = []

    async def take(number: int) -> None:
        await queue.acquire()
        order.append(number)
        await trio.lowlevel.checkpoint()
        queue.release()

    assert queue.try_acquire()
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(take, number)
            await trio.testing.wait_all_tasks_blocked()
        queue.release()
        # The turn is promised to the first that waits, so it is not free.
        assert not queue.try_acquire()
    assert order == [0, 1, 2, 3, 4]
    assert queue.try_acquire()


@pytest.mark.parametrize("released_first", [True, False])
async def test_a_cancelled_waiter_takes_no_turn_with_it(*, released_first: bool) -> None:
    """Cancelled before its turn, or as it comes, a waiter passes the turn on (R11, R14)."""
    queue = WriterQueue()
    order: list[int] = []
    scopes = [trio.CancelScope() for _ in range(3)]

    async def take(number: int) -> None:
        with scopes[number]:
            await queue.acquire()
            order.append(number)
            queue.release()

    assert queue.try_acquire()
    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(take, number)
            await trio.testing.wait_all_tasks_blocked()
        if released_first:
            queue.release()
        scopes[0].cancel()
        scopes[1].cancel()
        if not released_first:
            queue.release()
    assert order == ([0, 2] if released_first else [2])
    assert queue.try_acquire()


@BOTH
async def test_the_writer_is_in_wal_mode_and_syncs_every_commit(
    path: Path, options: StorageOptions
) -> None:
    """An open database has a write-ahead log, and its writer `synchronous=full` (R60)."""
    database = await acquire_database(path, options, "default")
    writer = database.writer.raw
    assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert writer.execute("PRAGMA synchronous").fetchone() == (2,)
    await release_database(database, "default")


@BOTH
async def test_sqlites_own_timeout_is_short(path: Path, options: StorageOptions) -> None:
    """SQLite waits not at all inline, and at most 50 ms in a thread (R11)."""
    database = await acquire_database(path, options, "default")
    for connection in (database.writer, database.reader):
        timeout = connection.raw.execute("PRAGMA busy_timeout").fetchone()[0]
        assert timeout == (50 if options is THREAD else 0)
    await release_database(database, "default")


@BOTH
async def test_a_private_file_is_removed(options: StorageOptions) -> None:
    """A `:memory:` database is a file of its own that is gone once it is given back."""
    database = await acquire_database(":memory:", options, "default")
    other = await acquire_database(":memory:", options, "default")
    directory = Path(database.file.path).parent
    assert directory.exists()
    assert other.file.path != database.file.path
    await release_database(database, "default")
    assert not directory.exists()
    await release_database(other, "default")


async def test_all_hosts_of_a_file_share_one_database(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the path is spelled, there is one writer, closed by the last host (R14, R62)."""
    link = tmp_path / "link.db"
    first = await acquire_database(path, INLINE, "one")
    link.symlink_to(path)
    monkeypatch.chdir(tmp_path)
    assert await acquire_database(link, INLINE, "two") is first
    assert await acquire_database(path.name, INLINE, "three") is first
    await release_database(first, "one")
    await release_database(first, "three")
    assert first.writer.raw.execute("SELECT 1").fetchone() == (1,)
    await release_database(first, "two")
    with pytest.raises(StorageOperationError, match="closed"):
        _ = first.writer


async def test_other_options_are_refused_while_it_is_open(path: Path) -> None:
    """The hosts of one file share a writer, so they need the same `StorageOptions`."""
    database = await acquire_database(path, INLINE, "one")
    for other in (THREAD, StorageOptions(executor="inline"), StorageOptions(synchronous="off")):
        with pytest.raises(StorageOperationError, match="StorageOptions"):
            await acquire_database(path, other, "two")
    await release_database(database, "one")
    await open_and_give_back(path, THREAD)


async def test_a_name_is_refused_while_it_is_open(path: Path) -> None:
    """A second host of a name is refused at once, and takes nothing of the first (R62)."""
    database = await acquire_database(path, INLINE, "one")
    with pytest.raises(StorageOperationError, match=str(os.getpid())) as caught:
        await acquire_database(path, INLINE, "one")
    assert caught.value.operation == "lock"
    assert database.writer.raw.execute("SELECT 1").fetchone() == (1,)
    await release_database(database, "one")


async def test_another_trio_run_is_refused(path: Path) -> None:
    """A file that is open in one Trio run cannot be opened in another of the process (R12)."""
    errors: list[BaseException] = []

    async def elsewhere() -> None:
        with pytest.raises(StorageOperationError, match="another Trio run") as caught:
            await acquire_database(path, INLINE, "two")
        errors.append(caught.value)

    database = await acquire_database(path, INLINE, "one")
    thread = threading.Thread(target=partial(trio.run, elsewhere))
    thread.start()
    await trio.to_thread.run_sync(thread.join)
    assert len(errors) == 1
    await release_database(database, "one")
    thread = threading.Thread(target=partial(trio.run, partial(open_and_give_back, path, INLINE)))
    thread.start()
    await trio.to_thread.run_sync(thread.join)


class Stopped:
    """Holds a database at one of its stages until it is told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        self.reached = trio.Event()
        self.go_on = trio.Event()
        whole = getattr(Database, method)
        stopped = self

        async def stop(database: Database) -> Any:
            stopped.reached.set()
            await stopped.go_on.wait()
            return await whole(database)

        monkeypatch.setattr(Database, method, stop)


async def test_whoever_comes_while_it_opens_waits_and_joins(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second host waits for the first to have opened the file, and shares it (R62)."""
    stopped = Stopped(monkeypatch, "open")
    opened: dict[str, Database] = {}

    async def open_one(name: str) -> None:
        opened[name] = await acquire_database(path, INLINE, name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_one, "one")
        await stopped.reached.wait()
        nursery.start_soon(open_one, "two")
        await trio.testing.wait_all_tasks_blocked()
        assert opened == {}
        with pytest.raises(StorageOperationError, match="StorageOptions"):
            await acquire_database(path, THREAD, "three")
        with pytest.raises(StorageOperationError, match="already open"):
            await acquire_database(path, INLINE, "one")
        stopped.go_on.set()
    assert opened["one"] is opened["two"]
    for name, database in opened.items():
        await release_database(database, name)


@pytest.mark.parametrize("how", ["is cancelled", "fails"])
async def test_whoever_waits_opens_it_when_the_first_could_not(
    path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Where the host that was opening the file gives up, the next one opens it itself (R11)."""
    opened: list[Database] = []
    whole = Database.open
    reached, go_on = trio.Event(), trio.Event()

    async def open_or_fail(database: Database) -> None:
        if not reached.is_set():
            reached.set()
            await go_on.wait()
            if how == "fails":
                raise StorageOperationError("no", operation="open")
        await whole(database)

    monkeypatch.setattr(Database, "open", open_or_fail)
    scope = trio.CancelScope()

    async def first() -> None:
        with scope, pytest.raises(StorageOperationError, match="no"):
            await acquire_database(path, INLINE, "one")

    async def second() -> None:
        opened.append(await acquire_database(path, INLINE, "two"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(first)
        await reached.wait()
        nursery.start_soon(second)
        await trio.testing.wait_all_tasks_blocked()
        if how == "is cancelled":
            scope.cancel()
        else:
            go_on.set()
    assert scope.cancelled_caught is (how == "is cancelled")
    assert opened[0].writer.raw.execute("SELECT 1").fetchone() == (1,)
    await release_database(opened[0], "two")


async def test_whoever_comes_while_it_closes_waits_and_opens_it_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that comes while the last one closes the file opens it again, as it likes (R62)."""
    database = await acquire_database(path, INLINE, "one")
    stopped = Stopped(monkeypatch, "close")
    opened: list[Database] = []

    async def open_again() -> None:
        opened.append(await acquire_database(path, THREAD, "one"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(release_database, database, "one")
        await stopped.reached.wait()
        nursery.start_soon(open_again)
        await trio.testing.wait_all_tasks_blocked()
        assert opened == []
        stopped.go_on.set()
    assert opened[0] is not database
    await release_database(opened[0], "one")


async def test_a_failure_to_close_locks_nobody_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the connections cannot be closed, the lock and the registry let go all the same."""

    async def fail(_: Database) -> None:
        await trio.lowlevel.checkpoint()
        raise sqlite3.OperationalError("disk I/O error")

    database = await acquire_database(path, INLINE, "one")
    with monkeypatch.context() as patched:
        patched.setattr(Database, "close", fail)
        with pytest.raises(sqlite3.OperationalError):
            await release_database(database, "one")
    await database.close()
    await open_and_give_back(path, INLINE, "one")


@BOTH
async def test_opening_can_be_cancelled_at_every_step(path: Path, options: StorageOptions) -> None:
    """Opening that is cancelled at any step leaves no lock and nothing open (R11)."""
    for steps in range(30):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_after, steps, scope)
                database = await acquire_database(path, options, "one")
                scope.shield = True
                nursery.cancel_scope.shield = True
                await release_database(database, "one")
                nursery.cancel_scope.cancel()
        assert _registry == {}
    await open_and_give_back(path, options, "one")


async def _cancel_after(steps: int, scope: trio.CancelScope) -> None:
    for _ in range(steps):
        await trio.lowlevel.checkpoint()
    scope.cancel()


async def test_opening_waits_for_another_processs_lock_and_can_be_cancelled(
    path: Path, autojump_clock: object
) -> None:
    """Opening waits for a lock in Trio time; cancelled at once, or an error after a while (R11)."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE items (id)")
        other.execute("BEGIN EXCLUSIVE")
        began = trio.current_time()
        with trio.move_on_after(0.03) as scope:
            await acquire_database(path, INLINE, "one")
        assert scope.cancelled_caught
        assert trio.current_time() - began <= 0.031
        with pytest.raises(StorageOperationError, match="locked"):
            await acquire_database(path, INLINE, "one")
        assert 0.1 <= trio.current_time() - began <= 0.2
        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_and_give_back, path, INLINE, "one")
            await trio.sleep(0.05)
            other.execute("ROLLBACK")


# How often, and how long, another process's lock is waited for (R11).


async def test_it_tries_every_20_ms_until_the_timeout(path: Path, autojump_clock: object) -> None:
    """Tries are 20 ms apart, and the last one is not before `busy_timeout` (R11)."""
    database = await acquire_database(path, INLINE, "one")
    tries = await _tries(database, None)
    assert tries == pytest.approx([0, 0.02, 0.04, 0.06, 0.08, 0.1])
    await release_database(database, "one")


async def test_a_deadline_that_is_past_leaves_one_try(path: Path, autojump_clock: object) -> None:
    """With a deadline of its own it tries until then, but once in any case (R11, R19)."""
    database = await acquire_database(path, INLINE, "one")
    assert await _tries(database, trio.current_time() - 1) == [0]
    assert len(await _tries(database, trio.current_time() + 0.04)) == 3
    await release_database(database, "one")


async def _tries(database: Database, deadline: float | None) -> list[float]:
    tries: list[float] = []
    began = trio.current_time()

    async def attempt() -> None:
        tries.append(trio.current_time() - began)
        await database.run(database.writer.begin, Gate(), operation="test")

    with closing(sqlite3.connect(database.file.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageOperationError, match="locked"):
            await database.until_unlocked(attempt, deadline)
    return tries


async def test_only_a_lock_is_waited_for(path: Path, autojump_clock: object) -> None:
    """Any other failure is raised at the first try (R11)."""
    database = await acquire_database(path, INLINE, "one")
    began = trio.current_time()

    async def attempt() -> None:
        await database.run(lambda: database.writer.raw.execute("SELEC"), Gate(), operation="test")

    with pytest.raises(StorageOperationError) as caught:
        await database.until_unlocked(attempt)
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    assert trio.current_time() == began
    await release_database(database, "one")


@BOTH
async def test_a_lost_host_reaches_nothing(path: Path, options: StorageOptions) -> None:
    """Once its gate is lost, no trip of a host's runs, be it on its way already."""
    database = await acquire_database(path, options, "one")
    gate, called = Gate(), []
    await database.run(lambda: called.append("before"), gate, operation="test")
    gate.lost = True
    with pytest.raises(StorageOperationError, match="lost"):
        await database.run(lambda: called.append("after"), gate, operation="test")
    with pytest.raises(StorageOperationError, match="lost"):
        await database.read(lambda _: called.append("after"), gate, operation="test")
    assert called == ["before"]
    await release_database(database, "one")


async def test_a_host_lost_while_its_trip_is_on_its_way(path: Path) -> None:
    """A gate that is lost between sending and running is noticed by the trip itself."""
    database = await acquire_database(path, INLINE, "one")
    gate, called = Gate(), []

    class LosesOnTheWay:
        async def run(self, function: Any) -> Any:
            await trio.lowlevel.checkpoint()
            gate.lost = True
            return function()

    executor, database._executor = database._executor, LosesOnTheWay()
    with pytest.raises(StorageOperationError, match="lost"):
        await database.run(lambda: called.append(1), gate, operation="test")
    assert called == []
    database._executor = executor
    await release_database(database, "one")
