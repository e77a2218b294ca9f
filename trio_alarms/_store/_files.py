"""What is on disk before SQLite touches it: finding, creating and inspecting a database file."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import quote

import attrs

from .._arguments import describe
from .._errors import InvalidScheduleConfigurationError, StorageOperationError
from ._schema import read_version

if TYPE_CHECKING:
    from collections.abc import Container

PRIVATE_DATABASE: Final = ":memory:"

_NEW_FILE_MODE: Final = 0o600
_PERMISSION_BITS: Final = 0o777
_WRITE_BITS: Final = 0o222
_CREATION_TRIES: Final = 10

# The smallest page SQLite knows: nothing shorter can be a database. SQLite itself takes a file
# of exactly one byte for an empty one, so its word alone would not do.
_SMALLEST_DATABASE: Final = 512


@attrs.frozen
class DatabaseFile:
    """A database file that was found fit to be opened.

    `path` is absolute and free of symbolic links. `mode` holds the permission bits, which the
    side and lock files take. `private` is true for `":memory:"`: the file lives in a temporary
    directory of its own, which `discard` removes.
    """

    path: str
    device: int
    inode: int
    mode: int
    created: bool
    private: bool

    @property
    def identity(self) -> tuple[int, int]:
        """The device and inode: the same however the path is spelled or linked (R62)."""
        return self.device, self.inode


def locate(
    database: object,
    *,
    supported_version: int,
    open_already: Container[tuple[int, int]] = (),
    create: bool = True,
) -> DatabaseFile:
    """Find the database file, or create an empty one, and look at it read-only (R60).

    Not a byte of a refused file, or of its directory, changes: nothing is locked, switched to
    WAL or created beside it. A new file has mode 0600 whatever the umask; an existing empty file
    is a new database, whose mode is kept.

    Args:
        database: a path, or `":memory:"` for a private temporary file.
        supported_version: the newest schema version that the caller knows.
        open_already: the identities of files that this process opens or has open, which are not
            looked at again.
        create: whether a missing file is a new database; else it is refused.

    Raises:
        InvalidScheduleConfigurationError: `database` is no path.
        StorageOperationError: the file cannot be opened (operation `"open"`); the cause is the
            `OSError` or the `sqlite3.Error`, except for a schema that is too new.
    """
    given = _path_of(database)
    if given == PRIVATE_DATABASE and create:
        return _create_private()
    try:
        path = os.path.realpath(given)
        status, created = _stat_or_create(path) if create else (Path(path).stat(), False)
        _require_usable(path, status)
    except OSError as error:
        raise _refusal(given, error.strerror or str(error)) from error
    file = _database_file(path, status, created=created, private=False)
    if status.st_size > 0 and file.identity not in open_already:
        _inspect(path, status.st_size, supported_version)
    return file


def discard(database: DatabaseFile) -> None:
    """Remove a private database with its directory; any other one is left alone."""
    if database.private:
        shutil.rmtree(Path(database.path).parent, ignore_errors=True)


def identity(path: str) -> tuple[int, int]:
    """Return the device and inode of the file at `path`, links followed."""
    status = Path(path).stat()
    return status.st_dev, status.st_ino


def database_uri(path: str, **parameters: str) -> str:
    """Return the SQLite URI of an absolute path, whatever characters the path has."""
    query = "&".join(f"{key}={value}" for key, value in parameters.items())
    return f"file://{quote(os.fsencode(path))}" + (f"?{query}" if query else "")


def _path_of(database: object) -> str:
    """The path as a string that the operating system takes."""
    try:
        path = os.fspath(cast("str | bytes", database))
    except Exception as error:
        raise _bad_database(describe(database)) from error
    if not issubclass(type(path), str):
        raise _bad_database("a path of bytes")
    # The characters themselves: methods of a subclass are not ours to call.
    path = str.__str__(cast("str", path))
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise _bad_database(f"{path!r}, which is no file name") from error
    if not path:
        raise _bad_database("an empty path")
    if b"\0" in encoded:
        raise _bad_database(f"{path!r}, which has a NUL character")
    return path


def _bad_database(given: str) -> InvalidScheduleConfigurationError:
    return InvalidScheduleConfigurationError(
        f"database must be a str or os.PathLike[str] path or {PRIVATE_DATABASE!r}, not {given}"
    )


def _refusal(path: str, reason: str) -> StorageOperationError:
    return StorageOperationError(
        f"the database {path!r} cannot be opened: {reason}", operation="open"
    )


def _database_file(
    path: str, status: os.stat_result, *, created: bool, private: bool
) -> DatabaseFile:
    return DatabaseFile(
        path=path,
        device=status.st_dev,
        inode=status.st_ino,
        mode=status.st_mode & _PERMISSION_BITS,
        created=created,
        private=private,
    )


def _create_private() -> DatabaseFile:
    try:
        directory = Path(tempfile.mkdtemp(prefix="trio_alarms-")).resolve()
        path = str(directory / "alarms.db")
        try:
            status, _ = _stat_or_create(path)
        except OSError:
            directory.rmdir()
            raise
    except OSError as error:
        raise _refusal(PRIVATE_DATABASE, error.strerror or str(error)) from error
    return _database_file(path, status, created=True, private=True)


def _stat_or_create(path: str) -> tuple[os.stat_result, bool]:
    """The status of the file, and whether this call created it."""
    for _ in range(_CREATION_TRIES):
        with contextlib.suppress(FileNotFoundError):
            return Path(path).stat(), False
        try:
            # Invariant: only a file that this call makes is ever opened by hand. Closing any
            # descriptor of a file drops the POSIX locks of the whole process on it, those of
            # other SQLite connections included.
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, _NEW_FILE_MODE)
        except FileExistsError:
            continue  # somebody else created it meanwhile: theirs counts
        try:
            os.fchmod(descriptor, _NEW_FILE_MODE)  # the umask may have taken bits away
            return os.fstat(descriptor), True
        finally:
            os.close(descriptor)
    raise FileExistsError(errno.EEXIST, "it appears and vanishes again and again", path)


def _require_usable(path: str, status: os.stat_result) -> None:
    """Raise unless the path is a regular file that we can read and write, side files included."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    # No permission stops root. Whoever took every write bit away meant the file to stay as it is.
    if not status.st_mode & _WRITE_BITS:
        raise PermissionError(errno.EACCES, "the file is read-only", path)
    if not _accessible(path, os.R_OK | os.W_OK):
        raise PermissionError(errno.EACCES, "the file is not readable and writable", path)
    directory = str(Path(path).parent)
    if not _accessible(directory, os.W_OK | os.X_OK):
        raise PermissionError(
            errno.EACCES, "its directory is not writable, and SQLite keeps files in it", directory
        )


def _accessible(path: str, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _inspect(path: str, size: int, supported_version: int) -> None:
    """Refuse a non-empty file that is no database or has tables from a newer version (R60)."""
    try:
        if size < _SMALLEST_DATABASE:
            raise sqlite3.DatabaseError("file is not a database")
        version = _peek_schema_version(path)
    except sqlite3.Error as error:
        raise _refusal(path, str(error)) from error
    if version > supported_version:
        raise _refusal(
            path,
            f"its trio_alarms tables have schema version {version}, and this release of"
            f" trio_alarms knows versions up to {supported_version}; use a newer one",
        )


def _peek_schema_version(path: str) -> int:
    """The stored schema version as far as it can be seen without writing a byte.

    It is read again once the host's lock is held, so a version that cannot be seen here is 0.
    """
    if _size(f"{path}-wal") > 0 and Path(f"{path}-shm").exists():
        # The newest commits may be in the write-ahead log only. With an index (-shm) that it must
        # not write, SQLite follows the log in memory of its own. A connection that this process
        # opens meanwhile would share that index and could not write: hence `open_already`.
        with contextlib.suppress(sqlite3.OperationalError):
            return _read_version_at(database_uri(path, mode="ro", readonly_shm="1"))
    try:
        version = _read_version_at(database_uri(path, mode="ro", immutable="1"))
    except sqlite3.DatabaseError as error:
        if not (_is_damage(error) and _may_be_in_flux(path)):
            raise
        return 0
    # What a hot journal is about to roll back proves nothing.
    return 0 if _size(f"{path}-journal") > 0 else version


def _read_version_at(uri: str) -> int:
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=0)) as connection:
        try:
            return read_version(connection)
        except ValueError as error:
            raise sqlite3.DatabaseError("trio_alarms_schema holds no version number") from error


def _is_damage(error: sqlite3.Error) -> bool:
    code: int = getattr(error, "sqlite_errorcode", 0)  # errors that we raise have none
    return code & 0xFF == sqlite3.SQLITE_CORRUPT


def _may_be_in_flux(path: str) -> bool:
    """Whether an immutable look may have met a write half done, of a live or a killed process."""
    return _size(f"{path}-wal") > 0 or _size(f"{path}-journal") > 0


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return 0
