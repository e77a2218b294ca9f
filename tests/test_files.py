from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trio_alarms._errors import InvalidScheduleConfigurationError, StorageOperationError
from trio_alarms._store._files import DatabaseFile, database_uri, discard, identity, locate

NOBODY = 65534
LIVE_WRITER = "import sys; print('ready', flush=True); sys.stdin.read()"
KILLED_WRITER = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


def _find(database: object) -> DatabaseFile:
    return locate(database, supported_version=1)


def _refusal(database: object) -> StorageOperationError:
    with pytest.raises(StorageOperationError) as caught:
        _find(database)
    assert caught.value.operation == "open"
    assert caught.value.outcome == "rolled back"
    return caught.value


def _contents(directory: Path) -> dict[str, tuple[bytes, int, int]]:
    """Every regular file of a directory, byte for byte, with its mode and its time."""
    found: dict[str, tuple[bytes, int, int]] = {}
    for path in sorted(directory.iterdir()):
        status = path.stat()
        text = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[path.name] = (text, status.st_mode, status.st_mtime_ns)
    return found


def _make_database(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements or ("CREATE TABLE application (x)",):
            connection.execute(statement)


def _version_statements(version: object) -> tuple[str, str]:
    return (
        "CREATE TABLE trio_alarms_schema (version)",
        f"INSERT INTO trio_alarms_schema VALUES ({version!r})",
    )


def _start_writer(path: Path, *statements: str, end: str) -> subprocess.Popen[str]:
    """A process that runs the statements on a connection, which it leaves open to the end."""
    program = "\n".join(
        [
            "import sqlite3",
            f"connection = sqlite3.connect({str(path)!r}, isolation_level=None)",
            *(f"connection.execute({statement!r}).fetchall()" for statement in statements),
            end,
        ]
    )
    return subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _leave_behind(path: Path, *statements: str) -> None:
    """Run the statements in a process that is killed right after them."""
    with _start_writer(path, *statements, end=KILLED_WRITER) as writer:
        writer.wait()


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    previous = os.umask(mask)
    try:
        yield
    finally:
        os.umask(previous)


@contextlib.contextmanager
def _unprivileged() -> Iterator[None]:
    """Without root's permissions, which no mode of a file stops."""
    if os.geteuid() != 0:
        yield
        return
    group, groups = os.getegid(), os.getgroups()
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


@pytest.fixture
def common_directory() -> Iterator[Path]:
    """A directory that every user can enter and write, as pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o777)
        yield directory
        directory.chmod(0o777)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
def test_a_new_database_is_for_its_owner_alone_under_any_umask(tmp_path: Path, mask: int) -> None:
    """A database that we create has mode 0600 (R60)."""
    path = tmp_path / "app.db"
    with _umask(mask):
        file = _find(path)
    assert stat.S_IMODE(path.stat().st_mode) == file.mode == 0o600
    assert path.stat().st_size == 0
    assert file.created
    assert not file.private


def test_an_empty_file_is_a_new_database_whose_mode_is_kept(tmp_path: Path) -> None:
    """An existing empty file is taken with the mode it has (R60)."""
    path = tmp_path / "app.db"
    path.touch()
    path.chmod(0o664)
    file = _find(path)
    assert (file.mode, file.created) == (0o664, False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o664


def test_an_existing_database_is_found_untouched(tmp_path: Path) -> None:
    """Looking at a database changes nothing, in it or beside it (R60)."""
    path = tmp_path / "app.db"
    _make_database(path, "PRAGMA journal_mode = wal", *_version_statements(1))
    path.chmod(0o640)
    before = _contents(tmp_path)
    file = _find(path)
    assert (file.path, file.mode, file.created) == (str(path), 0o640, False)
    assert _contents(tmp_path) == before


@pytest.mark.parametrize("name", ["app.db", "a b.db", "100%.db", "x?mode=ro.db", "y#z&w.db", "é☃"])
def test_a_path_may_have_any_characters(tmp_path: Path, name: str) -> None:
    """What has a meaning in a URI has none in a path (R60)."""
    path = tmp_path / name
    _make_database(path, *_version_statements(2))
    assert "version 2" in str(_refusal(path))
    with contextlib.closing(sqlite3.connect(database_uri(str(path)), uri=True)) as connection:
        assert connection.execute("SELECT version FROM trio_alarms_schema").fetchone() == (2,)
    assert [child.name for child in tmp_path.iterdir()] == [name]


@pytest.mark.skipif(sys.platform != "linux", reason="other file systems take Unicode names only")
def test_a_path_need_not_be_unicode(tmp_path: Path) -> None:
    """Any file name of the operating system's will do (R60)."""
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.db")
    _make_database(Path(path))
    assert _find(path).path == path


def test_a_database_is_the_same_however_it_is_spelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths and symbolic links lead to one real path, hard links to one identity (R62)."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "app.db"
    file = _find(path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "symbolic.db").symlink_to("../app.db")
    (tmp_path / "hard.db").hardlink_to(path)
    for spelling in ("app.db", Path("folder/../app.db"), "folder/symbolic.db", f"/{path}"):
        other = _find(spelling)
        assert path.samefile(other.path)
        assert other.identity == file.identity == identity(str(path))
    assert _find("folder/symbolic.db").path == str(path)
    assert _find("hard.db").path == str(tmp_path / "hard.db")
    assert _find("hard.db").identity == file.identity


def test_a_dangling_symbolic_link_names_the_database_to_create(tmp_path: Path) -> None:
    """A link to a file that is not there yet creates that file (R60)."""
    link = tmp_path / "link.db"
    link.symlink_to("app.db")
    file = _find(link)
    assert (file.path, file.created) == (str(tmp_path / "app.db"), True)


def test_memory_is_a_private_file_gone_at_the_end() -> None:
    """`":memory:"` is a file in a directory of its own, which is removed with all in it (R60)."""
    first, second = _find(":memory:"), _find(":memory:")
    assert first.private
    assert first.created
    assert first.identity != second.identity
    directory = Path(first.path).parent
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(Path(first.path).stat().st_mode) == 0o600
    (directory / "side file").touch()
    discard(first)
    assert not directory.exists()
    assert Path(second.path).exists()
    discard(second)
    discard(second)


def test_memory_needs_a_directory_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A private file that cannot be made is a storage error like any other (R60)."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert isinstance(_refusal(":memory:").__cause__, FileNotFoundError)


def test_a_private_directory_without_its_file_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be made whole is not left in parts (R60)."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "open", fail)
    assert "no space left" in str(_refusal(":memory:"))
    assert not list(tmp_path.iterdir())


def test_discarding_leaves_a_database_with_a_path_alone(tmp_path: Path) -> None:
    """Only private databases are removed (R60)."""
    discard(_find(tmp_path / "app.db"))
    assert (tmp_path / "app.db").exists()


class _BytesPath:
    def __fspath__(self) -> bytes:
        return b"app.db"


@pytest.mark.parametrize(
    "given", [None, 7, True, b"app.db", _BytesPath(), object(), "", "a\0b.db", "\ud800.db"]
)
def test_what_is_no_path_is_refused_by_name(given: object) -> None:
    """A `database` of the wrong type, empty, or that no file can have as its name (R60)."""
    with pytest.raises(InvalidScheduleConfigurationError, match=r"^database must be a str or "):
        _find(given)


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    """A database is created, its directory is not (R60)."""
    error = _refusal(tmp_path / "missing" / "app.db")
    assert isinstance(error.__cause__, FileNotFoundError)
    assert str(tmp_path / "missing" / "app.db") in str(error)
    assert not list(tmp_path.iterdir())


def test_a_directory_is_refused(tmp_path: Path) -> None:
    """A directory is no database (R60)."""
    assert isinstance(_refusal(tmp_path).__cause__, IsADirectoryError)
    assert not list(tmp_path.iterdir())


def test_a_path_through_a_file_is_refused(tmp_path: Path) -> None:
    """A file has nothing in it to open (R60)."""
    (tmp_path / "file").touch()
    assert isinstance(_refusal(tmp_path / "file" / "app.db").__cause__, NotADirectoryError)


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    """A symbolic link that leads to itself leads to no file (R60)."""
    (tmp_path / "app.db").symlink_to("app.db")
    assert isinstance(_refusal(tmp_path / "app.db").__cause__, OSError)


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    """What the file system does not take is a storage error (R60)."""
    assert isinstance(_refusal(tmp_path / ("x" * 5000)).__cause__, OSError)


def test_a_pipe_is_refused_without_waiting_for_its_other_end(tmp_path: Path) -> None:
    """Only a regular file can be a database (R60)."""
    os.mkfifo(tmp_path / "app.db")
    assert "not a regular file" in str(_refusal(tmp_path / "app.db"))
    assert isinstance(_refusal(os.devnull).__cause__, OSError)


@pytest.mark.parametrize("make", [Path.touch, _make_database])
def test_a_read_only_file_is_refused_even_by_root(tmp_path: Path, make: object) -> None:
    """A file whose write bits were all taken away stays as it is, whoever runs (R60)."""
    assert callable(make)
    path = tmp_path / "app.db"
    make(path)
    path.chmod(0o444)
    before = _contents(tmp_path)
    assert isinstance(_refusal(path).__cause__, PermissionError)
    assert _contents(tmp_path) == before


def test_a_file_that_we_may_not_write_is_refused(common_directory: Path) -> None:
    """Without permission to read and write it a file is not opened (R60)."""
    path = common_directory / "app.db"
    _make_database(path)
    path.chmod(0o444 if os.geteuid() else 0o644)
    before = _contents(common_directory)
    with _unprivileged():
        error = _refusal(path)
    assert isinstance(error.__cause__, PermissionError)
    assert _contents(common_directory) == before


@pytest.mark.parametrize("names", [["app.db"], []])
def test_a_directory_that_we_may_not_write_is_refused(
    common_directory: Path, names: list[str]
) -> None:
    """SQLite keeps files beside the database, so that its directory must be writable (R60)."""
    for name in names:
        _make_database(common_directory / name)
        (common_directory / name).chmod(0o666)
    common_directory.chmod(0o555)
    before = _contents(common_directory)
    with _unprivileged():
        error = _refusal(common_directory / "app.db")
    assert isinstance(error.__cause__, PermissionError)
    assert _contents(common_directory) == before


def test_a_directory_that_we_may_not_enter_is_refused(common_directory: Path) -> None:
    """Whatever the permission that is missing, the error is ours with its cause (R60)."""
    _make_database(common_directory / "app.db")
    common_directory.chmod(0o666)
    with _unprivileged():
        assert isinstance(_refusal(common_directory / "app.db").__cause__, PermissionError)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 100, 511, 512, 513, 1024, 5000])
@pytest.mark.parametrize("pattern", [b"SQLite format 3\0", b"hello, world\n", b"\0"])
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, length: int, pattern: bytes) -> None:
    """Any non-empty file without SQLite's header, however short, is left as it is (R60)."""
    path = tmp_path / "notes.txt"
    path.write_bytes((pattern * length)[:length])
    before = _contents(tmp_path)
    error = _refusal(path)
    assert isinstance(error.__cause__, sqlite3.DatabaseError)
    assert "not a database" in str(error)
    assert _contents(tmp_path) == before


def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    """A file that has SQLite's header and nothing sensible behind it is left as it is (R60)."""
    path = tmp_path / "app.db"
    _make_database(path)
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 9000)
    before = _contents(tmp_path)
    assert isinstance(_refusal(path).__cause__, sqlite3.DatabaseError)
    assert _contents(tmp_path) == before


@pytest.mark.parametrize("journal_mode", ["delete", "wal"])
def test_a_newer_schema_is_refused_naming_both_versions(tmp_path: Path, journal_mode: str) -> None:
    """A file that a later release wrote is left as it is (R60)."""
    path = tmp_path / "app.db"
    _make_database(path, f"PRAGMA journal_mode = {journal_mode}", *_version_statements(7))
    before = _contents(tmp_path)
    error = _refusal(path)
    assert "schema version 7" in str(error)
    assert "up to 1" in str(error)
    assert _contents(tmp_path) == before
    assert locate(path, supported_version=7).path == str(path)


def test_a_newer_schema_that_a_killed_process_left_in_the_log_is_seen(tmp_path: Path) -> None:
    """What is committed to the write-ahead log only counts, and the log stays as it is (R60)."""
    path = tmp_path / "app.db"
    _make_database(path, *_version_statements(1))
    _leave_behind(path, "PRAGMA journal_mode = wal", "UPDATE trio_alarms_schema SET version = 7")
    before = _contents(tmp_path)
    assert set(before) == {"app.db", "app.db-shm", "app.db-wal"}
    assert "schema version 7" in str(_refusal(path))
    assert _contents(tmp_path) == before


def test_a_newer_schema_that_a_living_process_has_in_the_log_is_seen(tmp_path: Path) -> None:
    """Another process at work is neither waited for nor disturbed (R60)."""
    path = tmp_path / "app.db"
    _make_database(path, *_version_statements(1))
    statements = (
        "PRAGMA journal_mode = wal",
        "UPDATE trio_alarms_schema SET version = 7",
        "BEGIN IMMEDIATE",
        "UPDATE trio_alarms_schema SET version = 1",
    )
    with _start_writer(path, *statements, end=LIVE_WRITER) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        before = _contents(tmp_path)
        assert "schema version 7" in str(_refusal(path))
        assert _contents(tmp_path) == before
        writer.communicate()


def test_a_log_without_its_index_is_left_for_the_second_look(tmp_path: Path) -> None:
    """What could only be seen by writing is not looked at before the lock is held (R60)."""
    path = tmp_path / "app.db"
    _make_database(path, *_version_statements(1))
    _leave_behind(path, "PRAGMA journal_mode = wal", "UPDATE trio_alarms_schema SET version = 7")
    (tmp_path / "app.db-shm").unlink()
    before = _contents(tmp_path)
    assert _find(path).path == str(path)
    assert _contents(tmp_path) == before


def test_a_schema_that_is_about_to_be_rolled_back_is_not_believed(tmp_path: Path) -> None:
    """A version that a killed process never committed refuses nothing (R60)."""
    path = tmp_path / "app.db"
    _make_database(path, *_version_statements(1), "CREATE TABLE bulk (x)")
    _leave_behind(
        path,
        "PRAGMA cache_size = 1",
        "BEGIN",
        "UPDATE trio_alarms_schema SET version = 7",
        "INSERT INTO bulk SELECT zeroblob(100000) FROM (VALUES (1), (2), (3))",
    )
    immutable = sqlite3.connect(database_uri(str(path), mode="ro", immutable="1"), uri=True)
    with contextlib.closing(immutable) as connection:
        assert connection.execute("SELECT version FROM trio_alarms_schema").fetchone() == (7,)
    before = _contents(tmp_path)
    assert set(before) == {"app.db", "app.db-journal"}
    assert _find(path).path == str(path)
    assert _contents(tmp_path) == before


def test_a_database_that_a_killed_process_left_half_written_is_not_called_damaged(
    tmp_path: Path,
) -> None:
    """What SQLite is about to repair from its journal is not refused (R60)."""
    path = tmp_path / "app.db"
    _make_database(path)
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 9000)
    (tmp_path / "app.db-journal").write_bytes(b"whatever")
    assert _find(path).path == str(path)


def test_a_version_that_is_no_number_is_refused(tmp_path: Path) -> None:
    """A table of our name that is not ours is left as it is (R60)."""
    path = tmp_path / "app.db"
    _make_database(path, *_version_statements("new"))
    before = _contents(tmp_path)
    assert isinstance(_refusal(path).__cause__, sqlite3.DatabaseError)
    assert _contents(tmp_path) == before


def test_a_file_that_this_process_has_open_is_not_looked_at(tmp_path: Path) -> None:
    """Whoever opened it here has looked, and a look could disturb their opening (R60)."""
    path = tmp_path / "app.db"
    _make_database(path, *_version_statements(7))
    other = _find(tmp_path / "other.db").identity
    with pytest.raises(StorageOperationError):
        locate(path, supported_version=1, open_already={other})
    known = {other, identity(str(path))}
    assert locate(path, supported_version=1, open_already=known).identity in known


@pytest.mark.parametrize("journal_mode", ["delete", "wal"])
def test_looking_at_a_file_keeps_the_locks_of_open_connections(
    tmp_path: Path, journal_mode: str
) -> None:
    """The look drops none of the locks that this process already has on the file (R60)."""
    path = tmp_path / "app.db"
    _make_database(path, f"PRAGMA journal_mode = {journal_mode}", *_version_statements(1))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("UPDATE trio_alarms_schema SET version = 1")
        _find(path)
        other = (
            f"import sqlite3; c = sqlite3.connect({str(path)!r}, timeout=0, isolation_level=None)\n"
            "try: c.execute('BEGIN IMMEDIATE')\n"
            "except sqlite3.OperationalError as error: print(error)"
        )
        ran = subprocess.run(
            [sys.executable, "-c", other], capture_output=True, text=True, check=True
        )
        assert ran.stdout == "database is locked\n"
        connection.execute("COMMIT")


def test_one_of_those_who_create_a_database_at_once_has_created_it(tmp_path: Path) -> None:
    """Whoever comes second takes the file as the first made it (R60)."""
    for attempt in range(20):
        found = _find_at_once(tmp_path / f"{attempt}.db")
        assert len({file.identity for file in found}) == 1
        assert sorted(file.created for file in found) == [False, False, False, True]
        assert {file.mode for file in found} == {0o600}


def test_a_file_that_appears_and_vanishes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that can neither be found nor created ends in an error, not in a loop (R60)."""

    def vanish(*_: object) -> None:
        raise FileExistsError(errno.EEXIST, "file exists")

    monkeypatch.setattr(os, "open", vanish)
    assert isinstance(_refusal(tmp_path / "app.db").__cause__, FileExistsError)


def _find_at_once(path: Path) -> list[DatabaseFile]:
    barrier = threading.Barrier(4)
    found: list[DatabaseFile] = []

    def create() -> None:
        barrier.wait()
        found.append(_find(path))

    threads = [threading.Thread(target=create) for _ in range(barrier.parties)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
