from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trio_alarms._errors import StorageOperationError
from trio_alarms._store import _lock
from trio_alarms._store._files import DatabaseFile, locate
from trio_alarms._store._lock import HostLock, acquire_host_lock

ROOT = Path(__file__).parents[1]

HOLDER = """
import sys
from trio_alarms._store._files import locate
from trio_alarms._store._lock import acquire_host_lock

lock = acquire_host_lock(locate(sys.argv[1], supported_version=1), "default")
"""
DEAD = 4194305  # one more than the greatest process id
WAIT = "print('ready', flush=True); sys.stdin.read()\n"

# Each leaves a child that lives on and says so by its process id, and waits.
PARENTS = {
    "os.fork": """
import os, time
if os.fork() == 0:
    print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
sys.stdin.read()
""",
    "multiprocessing": """
import multiprocessing, os, time
def live():
    print(os.getpid(), flush=True)
    time.sleep(60)
multiprocessing.get_context("fork").Process(target=live).start()
sys.stdin.read()
""",
    "subprocess": """
import subprocess
print(subprocess.Popen(["sleep", "60"], close_fds=False).pid, flush=True)
sys.stdin.read()
""",
}


@pytest.fixture(autouse=True)
def machine_directory(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A directory of the test's own in place of the one in which links meet."""
    directory = tmp_path_factory.mktemp("machine")
    monkeypatch.setattr(_lock, "_MACHINE_DIRECTORY", directory)
    return directory


def _find(path: Path) -> DatabaseFile:
    return locate(path, supported_version=1)


def _acquire(path: Path, name: str = "default") -> HostLock:
    return acquire_host_lock(_find(path), name)


def _refusal(path: Path, name: str = "default") -> StorageOperationError:
    with pytest.raises(StorageOperationError) as caught:
        _acquire(path, name)
    assert caught.value.operation == "lock"
    return caught.value


def _lock_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.lock"))


@contextlib.contextmanager
def _process(program: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has run `HOLDER` and the program, once it says so."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER + program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    previous = os.umask(mask)
    try:
        yield
    finally:
        os.umask(previous)


def test_a_second_host_of_a_name_is_refused_in_this_process(tmp_path: Path) -> None:
    """One host per database and name, and the error names the holder (R62)."""
    path = tmp_path / "app.db"
    lock = _acquire(path)
    error = _refusal(path)
    assert f"this process ({os.getpid()})" in str(error)
    assert "'default'" in str(error)
    assert str(path) in str(error)
    other = _acquire(path, "other")
    lock.release()
    lock.release()
    _acquire(path).release()
    other.release()


def test_a_second_host_of_a_name_is_refused_in_another_process(tmp_path: Path) -> None:
    """The error names the process that holds the lock, and says so at once (R62)."""
    path = tmp_path / "app.db"
    with _process(WAIT, path) as holder:
        assert _line(holder) == "ready"
        began = time.perf_counter()
        assert f"process {holder.pid};" in str(_refusal(path))
        assert time.perf_counter() - began < 1
        _acquire(path, "other").release()
        holder.communicate()
    _acquire(path).release()


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    """A killed host holds up nobody (R62, C25)."""
    path = tmp_path / "app.db"
    with _process(WAIT, path) as holder:
        assert _line(holder) == "ready"
        holder.kill()
        holder.wait()
        _acquire(path).release()


@pytest.mark.parametrize("kind", PARENTS)
def test_a_lock_dies_with_its_process_although_a_child_lives_on(tmp_path: Path, kind: str) -> None:
    """A child of a killed host does not keep its lock (R62, C25)."""
    path = tmp_path / "app.db"
    with _process(PARENTS[kind], path) as holder:
        child = int(_line(holder))
        try:
            assert str(holder.pid) in str(_refusal(path))
            holder.kill()
            holder.wait()
            os.kill(child, 0)
            began = time.perf_counter()
            _acquire(path).release()
            assert time.perf_counter() - began < 1
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_forked_child_does_not_release_the_lock_of_its_parent(tmp_path: Path) -> None:
    """What a child inherits is no lock of its own, whatever it does with it (R62)."""
    path = tmp_path / "app.db"
    program = """
import os
child = os.fork()
if child == 0:
    lock.release()
    del lock
    os._exit(0)
os.waitpid(child, 0)
"""
    with _process(program + WAIT, path) as holder:
        assert _line(holder) == "ready"
        assert str(holder.pid) in str(_refusal(path))
        holder.communicate()


def test_links_and_spellings_meet_in_one_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths, symbolic links and hard links lead to the same lock (R62, C25)."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "app.db"
    _find(path)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "symbolic.db").symlink_to(path)
    (folder / "hard.db").hardlink_to(path)
    (tmp_path / "beside.db").hardlink_to(path)
    spellings = [Path("app.db"), folder / "symbolic.db", folder / "hard.db", Path("beside.db")]
    for spelling in spellings:
        lock = _acquire(spelling)
        for other in spellings:
            assert str(os.getpid()) in str(_refusal(other))
        lock.release()


def test_hard_links_in_one_directory_need_nothing_outside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers that share a directory only agree about the links in it (R62)."""
    path = tmp_path / "app.db"
    _find(path)
    (tmp_path / "beside.db").hardlink_to(path)
    lock = _acquire(path)
    (tmp_path / "other machine").mkdir()
    monkeypatch.setattr(_lock, "_MACHINE_DIRECTORY", tmp_path / "other machine")
    assert str(os.getpid()) in str(_refusal(tmp_path / "beside.db"))
    lock.release()


def test_links_meet_in_the_directory_of_the_machine_and_not_of_the_process(
    tmp_path: Path, machine_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where links meet does not depend on `TMPDIR`, unless there is nothing else (R62)."""
    path = tmp_path / "app.db"
    _find(path)
    (tmp_path / "folder").mkdir()
    link = tmp_path / "folder" / "hard.db"
    link.hardlink_to(path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "folder"))
    _acquire(path).release()
    assert len(_lock_files(machine_directory)) == 1
    monkeypatch.setattr(_lock, "_MACHINE_DIRECTORY", tmp_path / "missing")
    _acquire(path).release()
    assert len(_lock_files(tmp_path / "folder")) == 1


def test_a_refused_host_keeps_no_part_of_the_lock(tmp_path: Path) -> None:
    """Of the lock files of a linked database, all are locked or none (R62)."""
    path = tmp_path / "app.db"
    _find(path)
    (tmp_path / "folder").mkdir()
    link = tmp_path / "folder" / "hard.db"
    link.hardlink_to(path)
    lock = _acquire(path)
    assert str(os.getpid()) in str(_refusal(link))
    lock.release()
    _acquire(link).release()


@pytest.mark.parametrize("mask", [0o000, 0o077, 0o777])
@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_lock_file_has_the_mode_of_its_database(tmp_path: Path, mode: int, mask: int) -> None:
    """Whoever may write the database can lock it, and nobody else, under any umask (R60)."""
    path = tmp_path / "app.db"
    path.touch()
    path.chmod(mode)
    with _umask(mask):
        _acquire(path).release()
    (file,) = _lock_files(tmp_path)
    assert stat.S_IMODE(file.stat().st_mode) == mode
    path.chmod(0o660)
    _acquire(path).release()
    assert stat.S_IMODE(file.stat().st_mode) == 0o660


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_lock_file_that_root_makes_belongs_to_the_owner_of_the_database(tmp_path: Path) -> None:
    """A command that root ran once does not lock the owner out (R60)."""
    path = tmp_path / "app.db"
    path.touch()
    os.chown(path, 12345, 23456)
    _acquire(path).release()
    (file,) = _lock_files(tmp_path)
    assert (file.stat().st_uid, file.stat().st_gid) == (12345, 23456)


def test_lock_files_stay_and_are_used_again(tmp_path: Path) -> None:
    """A released lock leaves its file, whose old process id misleads nobody (R62)."""
    path = tmp_path / "app.db"
    with _process("", path) as holder:
        holder.wait()
    (file,) = _lock_files(tmp_path)
    assert file.read_text() == f"{holder.pid}\n"
    lock = _acquire(path)
    assert _lock_files(tmp_path) == [file]
    assert f"this process ({os.getpid()})" in str(_refusal(path))
    lock.release()


@pytest.mark.parametrize("written", ["", "not a number", f"{DEAD}\n"])
def test_a_holder_that_cannot_be_told_is_still_a_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    """The lock counts, and not what the file says (R62)."""
    monkeypatch.setattr(_lock, "_RETRY_SECONDS", 0)
    path = tmp_path / "app.db"
    lock = _acquire(path)
    (file,) = _lock_files(tmp_path)
    file.write_text(written)
    assert (written.strip() if written[:1].isdigit() else "another process") in str(_refusal(path))
    lock.release()


def test_a_child_that_is_about_to_let_go_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child forked in the moment of its parent's death costs the next host no try (R62, C25)."""
    path = tmp_path / "app.db"
    lock = _acquire(path)
    (file,) = _lock_files(tmp_path)
    file.write_text(f"{DEAD}\n")

    def let_go(_: float) -> None:
        lock.release()

    monkeypatch.setattr(time, "sleep", let_go)
    again = _acquire(path)
    assert _lock_files(tmp_path) == [file]
    again.release()


def test_a_holder_of_another_user_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may not be signalled lives all the same (R62)."""

    def deny(*_: object) -> None:
        raise PermissionError

    path = tmp_path / "app.db"
    lock = _acquire(path)
    (file,) = _lock_files(tmp_path)
    file.write_text("1\n")
    monkeypatch.setattr(os, "kill", deny)
    assert "process 1;" in str(_refusal(path))
    lock.release()


def test_a_lock_is_released_from_any_thread(tmp_path: Path) -> None:
    """Worker threads take turns with the storage (R62)."""
    path = tmp_path / "app.db"
    lock = _acquire(path)
    thread = threading.Thread(target=lock.release)
    thread.start()
    thread.join()
    again = _acquire(path)
    assert len(_lock_files(tmp_path)) == 1
    again.release()


def test_a_refusal_leaves_no_file_open(tmp_path: Path) -> None:
    """Trying again and again costs no file descriptors (R62)."""
    path = tmp_path / "app.db"
    lock = _acquire(path)
    probe = os.dup(0)
    os.close(probe)
    for _ in range(3):
        _refusal(path)
    again = os.dup(0)
    os.close(again)
    assert again == probe
    lock.release()


def test_a_database_that_was_replaced_meanwhile_is_refused(tmp_path: Path) -> None:
    """The lock is on the file that was looked at and no other one (R62)."""
    path = tmp_path / "app.db"
    file = _find(path)
    path.rename(tmp_path / "old.db")
    path.touch()
    with pytest.raises(StorageOperationError, match="replaced") as caught:
        acquire_host_lock(file, "default")
    assert caught.value.operation == "lock"
    path.unlink()
    with pytest.raises(StorageOperationError) as caught:
        acquire_host_lock(file, "default")
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert not _lock_files(tmp_path)


def test_a_lock_file_that_cannot_be_used_is_a_storage_error(tmp_path: Path) -> None:
    """Where the lock cannot be had the host does not open (R62)."""
    path = tmp_path / "app.db"
    _acquire(path).release()
    (file,) = _lock_files(tmp_path)
    file.unlink()
    file.symlink_to(path)
    assert isinstance(_refusal(path).__cause__, OSError)


def test_any_name_makes_a_file_name(tmp_path: Path) -> None:
    """A host's name may hold what a file's may not (R62)."""
    path = tmp_path / "app.db"
    locks = [_acquire(path, name) for name in ("a/b", "..", "é" * 128, "A", "a")]
    assert len(_lock_files(tmp_path)) == len(locks)
    for lock in locks:
        lock.release()
