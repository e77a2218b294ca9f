"""The lock that makes a host the only one of its name on a database file (R62)."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from filelock import FileLock, Timeout

from .._errors import StorageOperationError
from ._files import identity

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._files import DatabaseFile

_MACHINE_DIRECTORY: Final = Path("/tmp")  # noqa: S108 - see `_machine_directory`
_TRIES: Final = 50
_RETRY_SECONDS: Final = 0.005


class HostLock:
    """A held lock. The operating system drops it when the process dies, however it dies.

    Children made with `os.fork` or `multiprocessing` close what they inherit of it, and started
    programs never see it, so it does not outlive its process.
    """

    def __init__(self) -> None:
        self._locks: list[FileLock] = []

    def add(self, lock: FileLock) -> None:
        """Keep one more lock file locked until `release`."""
        self._locks.append(lock)

    def release(self) -> None:
        """Let the next host in, from any thread; once released, nothing happens.

        The lock files stay. Removing one opens a gap in which a third host locks a new file of
        the same name while a second one still waits for the old one.
        """
        for lock in reversed(self._locks):
            lock.release()


def acquire_host_lock(database: DatabaseFile, name: str) -> HostLock:
    """Lock the database for the host called `name`, at once or not at all.

    The lock file lies beside the real path, so that containers which share the directory agree,
    and is named by the database's inode, so that all its links in there do. A database with
    several links is also locked in the machine's temporary directory, so that links in different
    directories meet.

    Raises:
        StorageOperationError: another host of that name has the database open, here or in
            another process, or a lock file cannot be used (operation `"lock"`).
    """
    held = HostLock()
    try:
        for path in _lock_paths(database, name):
            held.add(_acquire(path, database, name))
    except BaseException:
        held.release()
        raise
    return held


def _lock_paths(database: DatabaseFile, name: str) -> list[Path]:
    path = Path(database.path)
    try:
        found = identity(database.path)
        links = path.stat().st_nlink
    except OSError as error:
        raise _unusable(database, error) from error
    if found != database.identity:
        raise StorageOperationError(
            f"the database {database.path!r} was replaced while it was being opened",
            operation="lock",
        )
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    beside = f"trio_alarms-{database.inode:x}-{digest}.lock"
    paths = [path.parent / beside]
    if links > 1:
        by_device = f"trio_alarms-{database.device:x}-{database.inode:x}-{digest}.lock"
        paths.append(_machine_directory() / by_device)
    return paths


def _machine_directory() -> Path:
    """The directory in which all processes of the machine look; `TMPDIR` differs between them."""
    return _MACHINE_DIRECTORY if _MACHINE_DIRECTORY.is_dir() else Path(tempfile.gettempdir())


def _acquire(path: Path, database: DatabaseFile, name: str) -> FileLock:
    lock = FileLock(
        path,
        mode=database.mode,
        thread_local=False,
        blocking=False,
        # A lock that would outlive its process is none: better refuse the file system.
        fallback_to_soft=False,
        on_acquired=_sign(database),
    )
    refusal: Timeout | None = None
    holder: int | None = None
    for _ in range(_TRIES):
        try:
            lock.acquire()
        except Timeout as error:
            refusal = error
        except (OSError, NotImplementedError) as error:
            raise _unusable(database, error) from error
        else:
            return lock
        holder = _holder(path)
        if holder is not None and _lives(holder):
            break
        # The holder has not signed yet; or it has died and a child of it, just forked, is about
        # to close what it inherited.
        time.sleep(_RETRY_SECONDS)
    raise StorageOperationError(
        f"a host named {name!r} already has the database {database.path!r} open in"
        f" {_describe(holder)}; close it first or give this one another name",
        operation="lock",
    ) from refusal


def _sign(database: DatabaseFile) -> Callable[[int], None]:
    """Give a lock file that is now ours the database's mode and owner, and our process id."""

    def sign(descriptor: int) -> None:
        # Whoever may write the database must be able to lock it, although root made the file.
        with contextlib.suppress(OSError):
            owner = Path(database.path).stat()
            os.fchown(descriptor, owner.st_uid if os.geteuid() == 0 else -1, owner.st_gid)
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, database.mode)
        # The process id is for the message only: a full disk keeps nobody out.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    return sign


def _holder(path: Path) -> int | None:
    """The process id that the last holder of a lock file has written into it."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's, but there
    return True


def _describe(holder: int | None) -> str:
    if holder is None:
        return "another process"
    return f"this process ({holder})" if holder == os.getpid() else f"process {holder}"


def _unusable(database: DatabaseFile, error: Exception) -> StorageOperationError:
    return StorageOperationError(
        f"the database {database.path!r} cannot be locked: {error}", operation="lock"
    )
