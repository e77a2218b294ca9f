"""Faults that the operating system and SQLite make themselves, in processes of their own."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.behaviour.storage_tools import error_of, items, require_unlocked
from tests.faults.test_sweep import (
    block,
    cancel,
    ensure,
    list_all,
    native_get,
    native_set,
    opened,
    put_back,
    query,
    schedule,
    schedule_earlier,
    status,
)
from trio_alarms import StorageOperationError, StorageOptions, open_host

ROOT = Path(__file__).parents[2]

# Holds the write lock until it is killed or its input ends.
LOCKER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""

# Schedules until no file may grow any more, then lets them grow again.
LIMITED = """
import resource, sqlite3, sys, trio
from trio_alarms import StorageOperationError, open_host

async def main():
    async with open_host(sys.argv[1], driver=False) as host:
        async with host.storage.transaction() as tx:
            await tx.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, bytes BLOB)")
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
        stored, failures = 0, []
        while len(failures) < 3:
            try:
                async with host.scheduler.transaction() as tx:
                    await tx.execute("INSERT INTO items VALUES (?, zeroblob(5000))", (stored,))
                    await tx.schedule_alarm("t", str(stored), after=1000 + stored)
            except StorageOperationError as error:
                failures.append(error)
            else:
                assert not failures
                stored += 1
        for error in failures:
            assert error.outcome == "rolled back", error.outcome
            assert isinstance(error.__cause__, sqlite3.Error), error
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        await host.scheduler.schedule_alarm("t", "later", after=1)
        alarms = await host.scheduler.list_alarms(limit=1000)
        assert [alarm.ref.id for alarm in alarms] == ["later", *map(str, range(stored))]
        assert await host.storage.query("SELECT count(*) FROM items") == [(stored,)]
        assert await host.native_alarm.get() == alarms[0].status.wake_at
        assert await host.storage.query("PRAGMA integrity_check") == [("ok",)]
    print(stored, flush=True)

trio.run(main)
"""

# The driver of a process whose files may not grow; it is let go after a while.
LIMITED_DRIVER = """
import resource, sys, trio
from trio_alarms import open_host, process_due

async def main():
    handled = trio.Event()
    runs = []

    async def handle(event):
        runs.append(event.id)
        handled.set()

    async with open_host(sys.argv[1], alarms=process_due(handle)) as host:
        await host.scheduler.schedule_alarm("t", "1", after=0.3)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
        await trio.sleep(1)
        assert not runs
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        with trio.fail_after(30):
            await handled.wait()
            while await host.scheduler.list_alarms():
                await trio.sleep(0.01)
    print(*runs, flush=True)

trio.run(main)
"""

# Opens a database as nobody in particular, and tells how that went. The interpreter itself may be
# root's alone, so everything is imported first.
UNPRIVILEGED = """
import os, sqlite3, sys, trio
from trio_alarms import StorageOperationError, open_host

async def main():
    try:
        async with open_host(sys.argv[1], driver=False):
            print("opened")
    except StorageOperationError as error:
        assert isinstance(error.__cause__, (OSError, sqlite3.Error)), error.__cause__
        print("refused", error.operation)

if os.geteuid() == 0:
    trio.run(trio.to_thread.run_sync, len, "")
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
trio.run(main)
"""


def child(program: str, path: Path) -> str:
    """Run a program; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextmanager
def locked_by_another_process(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process holds the write lock."""
    with subprocess.Popen(
        [sys.executable, "-c", LOCKER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"locked\n"
            yield process
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("executor", ["inline", "thread"])
async def test_under_another_processs_lock_writes_fail_and_reads_do_not(
    mock_clock: trio.testing.MockClock, tmp_path: Path, executor: str
) -> None:
    """A lock that outlasts `busy_timeout` changes nothing; a killed holder blocks nobody (R11)."""
    if executor == "inline":
        mock_clock.autojump_threshold = 0
    path = tmp_path / "alarms.db"
    async with opened(path, executor) as world:
        await put_back(world)
        before = world.state()
        with locked_by_another_process(path):
            for operation in (schedule, schedule_earlier, ensure, cancel, block, native_set):
                error = await error_of(partial(operation, world))
                assert isinstance(error, StorageOperationError)
                assert error.outcome == "rolled back"
                assert getattr(error.__cause__, "sqlite_errorname", "") == "SQLITE_BUSY"
            for reading in (status, list_all, query, native_get):
                assert await reading(world) is not None
            assert world.state() == before
        require_unlocked(path)
        for operation in (schedule, schedule_earlier, ensure, block, cancel, native_set):
            await operation(world)


@pytest.mark.parametrize("executor", ["inline", "thread"])
async def test_a_file_that_may_not_grow_is_an_error_and_no_half_of_anything(
    mock_clock: object, tmp_path: Path, executor: Any
) -> None:
    """With `max_page_count` reached, blocks fail whole; what needs no room works (R10)."""
    path = tmp_path / "alarms.db"
    storage = StorageOptions(executor=executor, synchronous="off")

    def limit(connection: sqlite3.Connection, spare: int) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + spare}")

    async with open_host(path, driver=False, storage=storage) as host:
        async with host.storage.transaction() as tx:
            await tx.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, bytes BLOB)")
            await tx.run_sync(partial(limit, spare=4))
        await host.scheduler.schedule_alarm("send", "a", after=60)
        stored: list[int] = []

        async def store(id: int) -> None:
            async with host.scheduler.transaction() as tx:
                await tx.schedule_alarm("send", "b", after=id)
                await tx.execute("INSERT INTO items VALUES (?, zeroblob(3000))", (id,))
                await tx.schedule_alarm("send", "c", after=id)
            stored.append(id)

        errors = [await error_of(partial(store, id)) for id in range(1, 21)]
        failures = [error for error in errors if error is not None]
        assert stored
        assert len(failures) > 5
        for error in failures:
            assert isinstance(error, StorageOperationError)
            assert error.outcome == "rolled back"
            assert getattr(error.__cause__, "sqlite_errorname", "") == "SQLITE_FULL"
        require_unlocked(path)
        assert items(path) == stored
        due = {each.ref.id: each.status.run_at for each in await host.scheduler.list_alarms()}
        assert (due["b"] - host.now()).total_seconds() == stored[-1]
        assert due["b"] == due["c"]
        large = partial(host.scheduler.schedule_alarm, "send", "a", after=1, payload="x" * 50_000)
        assert isinstance(await error_of(large), StorageOperationError)
        assert await host.scheduler.cancel_alarm("send", "a")
        async with host.storage.transaction() as tx:
            await tx.run_sync(partial(limit, spare=1000))
        await large()
        await store(99)


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
def test_under_a_limit_of_file_size_nothing_half_is_stored(tmp_path: Path) -> None:
    """What returned is durable, what raised is not, and it goes on under a new limit (R10)."""
    path = tmp_path / "alarms.db"
    stored = int(child(LIMITED, path))
    assert stored > 5
    with closing(sqlite3.connect(path)) as connection:
        count = connection.execute("SELECT count(*) FROM trio_alarms_alarms").fetchone()
    assert count == (stored + 1,)


@pytest.mark.real_time
@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
def test_a_driver_goes_on_once_files_may_grow_again(tmp_path: Path) -> None:
    """A disk that is full for a while delays an alarm; it runs once, by itself (R51)."""
    path = tmp_path / "alarms.db"
    assert child(LIMITED_DRIVER, path) == "1"
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT id FROM trio_alarms_alarms").fetchall() == []
        hosts = connection.execute("SELECT name, native_alarm FROM trio_alarms_hosts").fetchall()
        assert hosts == [("default", None)]
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that everybody reaches."""
    directory = Path(tempfile.mkdtemp(prefix="trio_alarms-faults-"))
    directory.chmod(0o777)
    yield directory
    directory.chmod(0o777)
    for each in directory.iterdir():
        each.chmod(0o777)
    shutil.rmtree(directory)


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX permissions")
@pytest.mark.parametrize(
    ("what", "mode", "outcome"),
    [
        ("nothing is there", None, "opened"),
        ("file", 0o666, "opened"),
        ("file", 0o000, "refused open"),
        ("file", 0o444, "refused open"),
        ("file", 0o222, "refused open"),
        ("directory", 0o555, "refused open"),
        ("directory", 0o000, "refused open"),
        ("empty directory", 0o555, "refused open"),
        ("lock file", 0o000, "refused lock"),
        ("lock file", 0o444, "refused lock"),
    ],
)
def test_without_permission_it_is_refused_and_stays_as_it_is(
    open_directory: Path, what: str, mode: int | None, outcome: str
) -> None:
    """A process without root that may not use a file is told so, and not a byte changes (R60)."""
    path = open_directory / "alarms.db"
    root = os.geteuid() == 0
    if what in {"file", "directory", "lock file"}:
        assert child(UNPRIVILEGED, path) == "opened"
    if what == "lock file":
        target = next(open_directory.glob("*.lock"))
    else:
        target = path if what == "file" else open_directory
    if mode is not None:
        target.chmod(mode)
    contents = _contents(open_directory) if root else {}
    assert child(UNPRIVILEGED, path) == outcome
    if outcome != "opened" and root:
        assert _contents(open_directory) == contents


def _contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        each.name: (each.stat().st_mode, each.read_bytes()) for each in sorted(directory.iterdir())
    }
