from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from trio_alarms import (
    AlarmDue,
    StorageOperationError,
    StorageOptions,
    import_effect_cf,
    open_host,
    process_due,
)
from trio_alarms._store import _lock

ROOT = Path(__file__).parents[2]

# A process that opens a host, says so, and keeps it until its input ends.
HOLDER = """
import sys, trio
from trio_alarms import open_host

async def main():
    async with open_host(sys.argv[1], name=sys.argv[2], driver=False) as host:
        await host.scheduler.schedule_alarm("job", "of the holder", after=3600)
        print("open", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)

trio.run(main)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The database of the test, in a directory of its own."""
    directory = tmp_path / "data"
    directory.mkdir()
    return directory / "alarms.db"


@pytest.fixture
def machine_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of the test's own in place of the one in which hard links meet."""
    directory = tmp_path / "machine"
    directory.mkdir()
    monkeypatch.setattr(_lock, "_MACHINE_DIRECTORY", directory)
    return directory


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    previous = os.umask(mask)
    try:
        yield
    finally:
        os.umask(previous)


def _modes(directory: Path) -> dict[str, int]:
    """The mode of every file; lock files by their ending, as their names are hashes."""
    found = {}
    for file in directory.iterdir():
        name = "lock" if file.suffix == ".lock" else file.name
        found[name] = stat.S_IMODE(file.stat().st_mode)
    return found


def _contents(directory: Path) -> dict[str, tuple[bytes, int, int]]:
    """Every file of a directory, byte for byte, with its mode and its time."""
    found = {}
    for file in sorted(directory.iterdir()):
        status = file.stat()
        content = file.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[file.name] = (content, status.st_mode, status.st_mtime_ns)
    return found


def _execute(path: Path, *statements: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return [row for statement in statements for row in connection.execute(statement)]


def _touch(path: Path) -> None:
    path.touch()


def _make_database(path: Path) -> None:
    _execute(path, "CREATE TABLE app (x)")


def _change_mode(path: Path, mode: int) -> None:
    path.chmod(mode)


def _remove(path: Path) -> None:
    path.unlink()


async def _open(path: object, **options: Any) -> None:
    async with open_host(path, **options) as host:  # type: ignore[arg-type]  # options of any kind
        await host.scheduler.schedule_alarm("job", "a", after=60)


OPENINGS: dict[str, Callable[[Path], Awaitable[object]]] = {
    "open_host": _open,
    "import_effect_cf": import_effect_cf,
}


# A database that we create, and one that is there.


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
async def test_a_database_that_we_create_is_for_its_owner_alone(
    path: Path, mock_clock: object, mask: int
) -> None:
    """Under any umask the file, its log, its index and its lock have mode 0600 (R60)."""
    with _umask(mask):
        async with open_host(path) as host:
            await host.scheduler.schedule_alarm("job", "a", after=60)
            assert _modes(path.parent) == {
                "alarms.db": 0o600,
                "alarms.db-wal": 0o600,
                "alarms.db-shm": 0o600,
                "lock": 0o600,
            }
    assert _modes(path.parent) == {"alarms.db": 0o600, "lock": 0o600}


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o660, 0o666, 0o644])
@pytest.mark.parametrize("make", ["empty", "database"])
async def test_an_existing_databases_mode_is_kept_and_taken(
    path: Path, mock_clock: object, mode: int, make: str
) -> None:
    """Beside an existing database everything takes its mode, which stays (R60)."""
    (_touch if make == "empty" else _make_database)(path)
    _change_mode(path, mode)
    with _umask(0o077):
        async with open_host(path) as host:
            await host.scheduler.schedule_alarm("job", "a", after=60)
            assert set(_modes(path.parent).values()) == {mode}
            assert len(_modes(path.parent)) == 4


async def test_an_empty_file_is_a_new_database(path: Path, mock_clock: object) -> None:
    """A file of no bytes holds nothing that could be lost (R60)."""
    _touch(path)
    await _open(path)
    assert _execute(path, "SELECT id FROM trio_alarms_alarms") == [("a",)]


async def test_a_database_is_switched_to_a_write_ahead_log(path: Path, mock_clock: object) -> None:
    """Readers and the writer do not wait for each other, and a commit is synced (R60)."""
    _execute(path, "PRAGMA journal_mode = delete", "CREATE TABLE app (x)")
    async with open_host(path) as host:
        async with host.storage.transaction() as tx:
            assert await tx.execute("PRAGMA journal_mode") == [("wal",)]
            assert await tx.execute("PRAGMA synchronous") == [(2,)]
            await tx.execute("INSERT INTO app VALUES (1)")
            assert _execute(path, "SELECT * FROM app") == []
        assert _execute(path, "SELECT * FROM app") == [(1,)]


@pytest.mark.parametrize(("synchronous", "level"), [("full", 2), ("normal", 1), ("off", 0)])
async def test_how_far_a_commit_is_synced_is_an_option(
    path: Path, mock_clock: object, synchronous: Any, level: int
) -> None:
    """`synchronous` is what `StorageOptions` say, full by default (R60)."""
    storage = StorageOptions(synchronous=synchronous)
    async with open_host(path, storage=storage) as host, host.storage.transaction() as tx:
        assert await tx.execute("PRAGMA synchronous") == [(level,)]


async def test_application_tables_live_in_the_same_file(path: Path, mock_clock: object) -> None:
    """Tables that were there stay as they are, and ours are prefixed (R60)."""
    _execute(path, "CREATE TABLE orders (x)", "INSERT INTO orders VALUES (1)")
    await _open(path)
    names = _execute(path, "SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")
    assert all(name == "orders" or name.startswith("trio_alarms_") for (name,) in names)
    assert _execute(path, "SELECT * FROM orders") == [(1,)]


# What is refused, and stays as it is.


def _newer(path: Path) -> None:
    _execute(
        path,
        "CREATE TABLE trio_alarms_schema (version INTEGER)",
        "INSERT INTO trio_alarms_schema VALUES (999)",
    )


def _newer_in_wal_mode(path: Path) -> None:
    _newer(path)
    _execute(path, "PRAGMA journal_mode = wal")


def _read_only(path: Path) -> None:
    _execute(path, "CREATE TABLE app (x)")
    path.chmod(0o444)


def _read_only_and_empty(path: Path) -> None:
    path.touch(0o400)


def _cut_short(path: Path) -> None:
    _execute(path, "CREATE TABLE app (x)")
    path.write_bytes(path.read_bytes()[:300])


def _text(length: int) -> Callable[[Path], object]:
    return lambda path: path.write_bytes((b"hello, world\n" * length)[:length])


def _header_only(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0")


REFUSED: dict[str, Callable[[Path], object]] = {
    "a newer schema": _newer,
    "a newer schema in WAL mode": _newer_in_wal_mode,
    "a read-only database": _read_only,
    "a read-only empty file": _read_only_and_empty,
    "a database cut short": _cut_short,
    "one byte": _text(1),
    "some text": _text(100),
    "a page of text": _text(4096),
    "a header alone": _header_only,
    "a directory": Path.mkdir,
    "a pipe": os.mkfifo,
}


@pytest.mark.parametrize("opening", OPENINGS)
@pytest.mark.parametrize("kind", REFUSED)
async def test_what_is_refused_stays_as_it_is(
    path: Path, mock_clock: object, kind: str, opening: str
) -> None:
    """Not a byte, a mode or a name in the directory of a refused file changes (R60)."""
    REFUSED[kind](path)
    before = _contents(path.parent)
    with pytest.raises(StorageOperationError) as caught:
        await OPENINGS[opening](path)
    error = caught.value
    assert error.operation == "open"
    assert str(path) in str(error)
    if "newer" in kind:
        assert "999" in str(error)
    else:
        assert isinstance(error.__cause__, OSError | sqlite3.Error)
    assert _contents(path.parent) == before


async def test_a_missing_directory_is_refused(path: Path, mock_clock: object) -> None:
    """A directory is not made up for a database (R60)."""
    missing = path.parent / "missing" / "alarms.db"
    with pytest.raises(StorageOperationError) as caught:
        await _open(missing)
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert list(path.parent.iterdir()) == []


async def test_a_newer_schema_that_only_the_log_shows_is_refused_under_the_lock(
    path: Path, mock_clock: object
) -> None:
    """The version is looked at again once the lock is held; rows and schema stay (R60)."""
    await _open(path)
    source = path.parent / "source.db"
    shutil.copy(path, source)
    with closing(sqlite3.connect(source, isolation_level=None)) as writer:
        writer.execute("UPDATE trio_alarms_schema SET version = 999")
        # As a process leaves them that was killed before its log was checkpointed, and whose
        # index is gone: what is in the log cannot be seen without writing.
        shutil.copy(source, path)
        shutil.copy(f"{source}-wal", f"{path}-wal")
    with pytest.raises(StorageOperationError, match="999"):
        await _open(path)
    assert _execute(path, "SELECT version FROM trio_alarms_schema") == [(999,)]
    # Nothing stayed locked.
    _execute(path, "UPDATE trio_alarms_schema SET version = 1")
    await _open(path)


async def test_a_file_that_was_refused_opens_once_it_is_in_order(
    path: Path, mock_clock: object
) -> None:
    """A refused opening keeps nothing of the file, neither lock nor registration (R62)."""
    _newer(path)
    for _ in range(2):
        with pytest.raises(StorageOperationError, match="999"):
            await _open(path)
    _remove(path)
    await _open(path)


# Waiting for another process.


async def test_opening_waits_for_another_process_that_holds_the_file(
    path: Path, autojump_clock: object
) -> None:
    """A lock that is released within the busy timeout delays opening, no more (R11)."""
    with closing(_exclusive(path)) as other:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_open, path)
            await trio.sleep(3)
            assert _execute_count(other) == 0
            other.execute("COMMIT")
    assert trio.current_time() == pytest.approx(3, abs=0.1)
    assert _execute(path, "SELECT id FROM trio_alarms_alarms") == [("a",)]


async def test_opening_gives_up_after_the_busy_timeout(path: Path, autojump_clock: object) -> None:
    """The error's cause is SQLite's own, and the file is as it was (R11, R60)."""
    with closing(_exclusive(path)), pytest.raises(StorageOperationError) as caught:
        await _open(path, storage=StorageOptions(busy_timeout=2))
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    assert trio.current_time() == pytest.approx(2, abs=0.1)
    assert _execute(path, "SELECT name FROM sqlite_master") == [("app",)]
    await _open(path)


async def test_opening_can_be_cancelled_while_it_waits(path: Path, autojump_clock: object) -> None:
    """Waiting for another process's lock is cancellable, opening included (R11)."""
    with closing(_exclusive(path)):
        with trio.move_on_after(1) as scope:
            await _open(path)
        assert scope.cancelled_caught
        assert trio.current_time() == pytest.approx(1, abs=0.1)
    await _open(path)


def _exclusive(path: Path) -> sqlite3.Connection:
    """A connection that keeps everybody else out of the file."""
    _execute(path, "CREATE TABLE app (x)")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    return connection


def _execute_count(connection: sqlite3.Connection) -> int:
    found = connection.execute("SELECT count(*) FROM sqlite_master WHERE name LIKE 'trio%'")
    return int(found.fetchone()[0])


# One host for each name.


def _spellings(path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Other ways to name the same file."""
    elsewhere = path.parent.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "link.db").symlink_to(path)
    (elsewhere / "directory").symlink_to(path.parent)
    (path.parent / "hard.db").hardlink_to(path)
    (elsewhere / "hard.db").hardlink_to(path)
    monkeypatch.chdir(path.parent)
    return {
        "a str": str(path),
        "relative": "alarms.db",
        "with dots": path.parent / ".." / path.parent.name / "." / "alarms.db",
        "a symbolic link": elsewhere / "link.db",
        "through a linked directory": elsewhere / "directory" / "alarms.db",
        "a hard link beside it": path.parent / "hard.db",
        "a hard link elsewhere": elsewhere / "hard.db",
    }


async def test_a_second_host_of_a_name_is_refused_however_the_path_is_spelled(
    path: Path, mock_clock: object, monkeypatch: pytest.MonkeyPatch, machine_directory: Path
) -> None:
    """One host per database and name in one process; the error names the process (C25, R62)."""
    _touch(path)
    spellings = _spellings(path, monkeypatch)
    async with open_host(path) as host:
        for name, spelling in {"the same": path, **spellings}.items():
            with pytest.raises(StorageOperationError) as caught:
                await _open(spelling)
            assert caught.value.operation == "lock", name
            assert f"{os.getpid()}" in str(caught.value), name
            async with open_host(spelling, name="other") as other:  # type: ignore[arg-type]  # a path of any kind
                await other.scheduler.schedule_alarm("job", name, after=60)
        await host.scheduler.schedule_alarm("job", "a", after=60)
    for spelling in spellings.values():
        await _open(spelling)


@contextmanager
def _holder(path: object, name: str = "default") -> Iterator[subprocess.Popen[str]]:
    """Another process that has a host open."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "open"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.real_time
async def test_a_second_host_of_a_name_is_refused_from_another_process(
    path: Path, mock_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal comes at once and names the holder's process id (C25, R62)."""
    _touch(path)
    spellings = _spellings(path, monkeypatch)
    try:
        with _holder(path) as holder:
            for name, spelling in spellings.items():
                began = time.perf_counter()
                with pytest.raises(StorageOperationError, match=str(holder.pid)) as caught:
                    await _open(spelling)
                assert caught.value.operation == "lock", name
                assert time.perf_counter() - began < 2
            with pytest.raises(StorageOperationError, match=str(holder.pid)):
                await import_effect_cf_tables(path)
            async with open_host(path, name="other") as other:
                await other.scheduler.schedule_alarm("job", "of the other", after=60)
        await _open(path)
    finally:
        _remove_locks_of_links(path)
    assert len(_execute(path, "SELECT * FROM trio_alarms_alarms")) == 3


def _remove_locks_of_links(path: Path) -> None:
    for lock in _lock._machine_directory().glob(f"trio_alarms-*-{path.stat().st_ino:x}-*.lock"):
        lock.unlink()


async def import_effect_cf_tables(path: Path) -> int:
    """Import into a file that does have effect-cf's tables."""
    _execute(
        path,
        "CREATE TABLE effect_cf_scheduled_alarms (storage_id TEXT PRIMARY KEY, alarm_id TEXT,"
        " tag TEXT, run_at INTEGER, repeat_every_ms INTEGER, payload TEXT)",
    )
    return await import_effect_cf(path)


@pytest.mark.real_time
async def test_a_killed_holder_is_succeeded_at_once(path: Path, mock_clock: object) -> None:
    """The lock dies with its process: a new host opens within a second (C25, R62)."""
    with _holder(path) as holder:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        began = time.perf_counter()
        async with open_host(path) as host:
            assert time.perf_counter() - began < 1
            records = await host.scheduler.list_alarms()
            assert [record.ref.id for record in records] == ["of the holder"]


async def test_hosts_of_other_names_work_from_two_processes(path: Path, mock_clock: object) -> None:
    """A file is shared by processes as long as the names differ (R62)."""
    handled: list[str] = []

    async def note(event: AlarmDue[Any]) -> None:
        handled.append(event.id)

    with _holder(path, "holder"):
        async with open_host(path, alarms=process_due(note), driver=False) as host:
            await host.scheduler.schedule_alarm("job", "a", after=0)
            assert await host.deliver_native_alarm()
    assert handled == ["a"]
    found = _execute(path, "SELECT host, id FROM trio_alarms_alarms")
    assert found == [("holder", "of the holder")]


async def test_two_ways_of_spelling_share_one_writer(
    path: Path, mock_clock: object, monkeypatch: pytest.MonkeyPatch, machine_directory: Path
) -> None:
    """Hosts that were opened through different links of one file take turns (R14, R62)."""
    _touch(path)
    spellings = _spellings(path, monkeypatch)
    async with (
        open_host(path, name="one") as one,
        open_host(spellings["a hard link elsewhere"], name="two") as two,  # type: ignore[arg-type]  # as above
        one.scheduler.transaction(),
    ):
        with pytest.raises(StorageOperationError, match="'one' of the same database"):
            await two.scheduler.schedule_alarm("job", "a", after=60)
