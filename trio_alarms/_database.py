"""One database file in this process: its connections, its queue of writers, its registry.

All hosts of a file share one `Database`, so that their writes take turns (R14).
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, TypeVar

import trio

from ._clock import runs_on_mock_clock
from ._errors import StorageOperationError
from ._storage_options import StorageOptions
from ._store._connection import Connection, is_busy, open_reader, open_writer, use_wal
from ._store._executor import Executor, InlineExecutor, ThreadExecutor
from ._store._files import DatabaseFile, discard, locate
from ._store._lock import HostLock, acquire_host_lock
from ._store._schema import SCHEMA_VERSION, migrate, read_version, refuse_newer
from ._store._seam import current_seam
from ._store._session import CommitProbe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ._transactions import OpenTransaction

T = TypeVar("T")

Stage: TypeAlias = Literal["opening", "open", "closing", "closed"]

# How long SQLite itself waits for a lock inside a worker thread, where that blocks nobody, and
# the pause between two tries of ours, during which cancellation is noticed (R11).
_THREAD_BUSY_MS: Final = 50
_RETRY_SECONDS: Final = 0.02


class Gate:
    """Whether a host may still use the storage; checked before and inside every trip.

    A lost host (a simulated crash) reaches nothing any more, so that finalizers fail instead of
    writing.
    """

    def __init__(self) -> None:
        self.lost = False

    def check(self, operation: str) -> None:
        """Raise where the host is gone."""
        if self.lost:
            raise StorageOperationError(
                f"{operation}: the host has lost its process", operation=operation
            )


class Place(Protocol):
    """A place in the queue of writers."""

    def grant(self) -> None:
        """The turn is here; not a checkpoint."""
        ...


class _SinglePlace:
    """The place of a task that will have the turn to itself."""

    def __init__(self) -> None:
        self.ready = trio.Event()

    def grant(self) -> None:
        self.ready.set()


class WriterQueue:
    """Who writes next: first come, first served, over all hosts of the file (R14)."""

    def __init__(self) -> None:
        self._held = False
        self._waiting: deque[Place] = deque()

    @property
    def last(self) -> Place | None:
        """The last place, behind which nobody waits yet."""
        return self._waiting[-1] if self._waiting else None

    @property
    def is_free(self) -> bool:
        """Whether nobody has the turn or waits for it."""
        return not self._held

    def try_acquire(self) -> bool:
        """Take the turn if nobody has it or waits for it; not a checkpoint."""
        if self._held:
            return False
        self._held = True
        return True

    async def acquire(self) -> None:
        """Wait for the turn. A cancelled caller leaves the queue without having had it."""
        if self.try_acquire():
            return  # noqa: ASYNC910 - a free turn is taken at once; the trip that follows is one
        place = _SinglePlace()
        self.enter(place)
        try:
            await place.ready.wait()
        except BaseException:
            # The turn may have been handed over just before the cancellation was delivered.
            if place.ready.is_set():
                self.release()
            else:
                self.leave(place)
            raise

    def enter(self, place: Place) -> None:
        """Wait at the end, where somebody has the turn; not a checkpoint."""
        self._waiting.append(place)

    def leave(self, place: Place) -> None:
        """Give up a place whose turn has not come."""
        self._waiting.remove(place)

    def release(self) -> None:
        """Hand the turn to the first in the queue."""
        # Invariant: while anybody waits, `_held` stays true; the turn goes from hand to hand.
        if self._waiting:
            self._waiting.popleft().grant()
        else:
            self._held = False


class Database:
    """An open database file. Made by `acquire_database`, given back with `release_database`."""

    def __init__(self, file: DatabaseFile, options: StorageOptions) -> None:
        self.file = file
        self.options = options
        self.queue: WriterQueue = WriterQueue()
        # The transaction of the block that has the turn, if a block has it.
        self.transaction: OpenTransaction | None = None
        self.token: trio.lowlevel.TrioToken = trio.lowlevel.current_trio_token()
        # Invariant: a name is here from its claim to its release; its lock follows the claim.
        self.hosts: dict[str, HostLock | None] = {}
        self.users = 0
        self.stage: Stage = "opening"
        self.stage_over: trio.Event = trio.Event()
        inline = options.executor == "inline" or (
            options.executor == "auto" and runs_on_mock_clock()
        )
        # In seconds.
        self.busy_timeout: float = options.busy_timeout_seconds
        self._busy_ms = 0 if inline else _THREAD_BUSY_MS
        self._executor: Executor = InlineExecutor() if inline else ThreadExecutor()
        self._read_executor: Executor = InlineExecutor() if inline else ThreadExecutor()
        self._writer: Connection | None = None
        self._reader: Connection | None = None
        self._seam = current_seam()
        self.probe: CommitProbe = CommitProbe(file.path, busy_timeout_ms=self._busy_ms)

    @property
    def writer(self) -> Connection:
        """The connection that writes."""
        if self._writer is None:
            raise StorageOperationError("the database is closed", operation="write")
        return self._writer

    @property
    def reader(self) -> Connection:
        """The connection that sees the last committed state."""
        if self._reader is None:
            raise StorageOperationError("the database is closed", operation="read")
        return self._reader

    @property
    def busy(self) -> bool:
        """Whether a worker thread is on its way to the file, for the test harness."""
        return self._executor.busy or self._read_executor.busy

    def enter_stage(self, stage: Stage) -> None:
        """Go on to the next stage of the life of an open file, and wake who waits for that."""
        self.stage = stage
        self.stage_over.set()
        self.stage_over = trio.Event()

    async def open(self) -> None:
        """Connect, switch to WAL and bring the schema up to date."""
        gate = Gate()
        await self.until_unlocked(partial(self.run, self._connect, gate, operation="open"))
        await self.until_unlocked(partial(self.run, self._migrate, gate, operation="open"))

    async def close(self) -> None:
        """Close both connections, shielded; a private file is removed."""
        with trio.CancelScope(shield=True):
            await self._read_executor.run(self._close_reader)
            await self._executor.run(self._close_writer)

    def run(
        self, function: Callable[[], T], gate: Gate, *, operation: str, application: bool = False
    ) -> Awaitable[T]:
        """Call `function` where the writer lives; SQLite's errors become ours.

        With `application` code of the application's runs in it. What it returns is to be awaited
        at once.
        """
        gate.check(operation)
        if self._seam is not None:
            self._seam.before_trip(operation)
        executor = self._executor
        run = executor.run_application if application else executor.run
        return run(partial(_guarded, function, gate, operation))

    async def read(self, function: Callable[[Connection], T], gate: Gate, *, operation: str) -> T:
        """Call `function` with the connection that sees the last committed state."""
        gate.check(operation)
        reader = self.reader
        trip = partial(_guarded, lambda: function(reader), gate, operation)
        # A reader waits for nobody, but for another process that recovers the log after a crash.
        return await self.until_unlocked(partial(self._read_executor.run, trip))

    async def until_unlocked(
        self, attempt: Callable[[], Awaitable[T]], deadline: float | None = None
    ) -> T:
        """Try again while another process holds the lock, for up to `busy_timeout` (R11).

        Cancellable between two tries; bounded all the same where the caller is shielded. With a
        `deadline` until then, but once in any case.
        """
        if deadline is None:
            deadline = trio.current_time() + self.busy_timeout
        while True:
            try:
                return await attempt()
            except StorageOperationError as error:
                if not is_busy(error.__cause__) or trio.current_time() >= deadline:
                    raise
            await trio.sleep(_RETRY_SECONDS)

    def _connect(self) -> None:
        path = self.file.path
        self._close_writer()
        self._close_reader()
        writer = open_writer(
            path, synchronous=self.options.synchronous, busy_timeout_ms=self._busy_ms
        )
        writer.seam = self._seam
        try:
            # Looked at again: an immutable look at the file saw no write-ahead log.
            refuse_newer(read_version(writer.raw), path)
            use_wal(writer)
            self._reader = open_reader(path, busy_timeout_ms=self._busy_ms)
        except BaseException:
            writer.close()
            raise
        self._writer = writer

    def _migrate(self) -> None:
        writer = self.writer
        if read_version(writer.raw) == SCHEMA_VERSION:
            return
        writer.begin()
        try:
            migrate(writer.raw, self.file.path)
            writer.commit()
        except BaseException:
            writer.rollback()
            raise

    def _close_writer(self) -> None:
        self.probe.close()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def _guarded(function: Callable[[], T], gate: Gate, operation: str) -> T:
    gate.check(operation)
    try:
        return function()
    except sqlite3.Error as error:
        raise StorageOperationError(f"{operation}: {error}", operation=operation) from error


# The writers of this process, by the identity of their file: the one documented piece of global
# state, since two writers of one process on one file would deadlock each other.
_registry: Final[dict[tuple[int, int], Database]] = {}
_registry_lock: Final = threading.Lock()


async def acquire_database(path: object, options: StorageOptions | None, name: str) -> Database:
    """The database of this file, with the lock of the host called `name`.

    Opened if nobody in this process has it open yet; with `options=None` those in use will do.
    Cancellable while it waits for another process's lock or for another task that opens or closes
    the file; then nothing is left behind.

    Raises:
        InvalidScheduleConfigurationError: `path` is not a path.
        StorageOperationError: The file cannot be opened; or it is open in this process with other
            options or in another Trio run; or a host of this name has it, here or elsewhere.
    """
    # Whoever is cancelled already creates nothing.
    await trio.lowlevel.checkpoint()
    while True:
        file = locate(path, supported_version=SCHEMA_VERSION, open_already=_registry)
        with _registry_lock:
            database = _registry.get(file.identity)
            leads = database is None
            if database is None:
                database = _registry[file.identity] = Database(file, options or StorageOptions())
            else:
                _refuse_other_use(database, options, name)
            joins = leads or database.stage == "open"
            if joins:
                database.users += 1
                database.hosts[name] = None
        if joins:
            break
        await database.stage_over.wait()
    try:
        database.hosts[name] = acquire_host_lock(database.file, name)
        if leads:
            await database.open()
    except BaseException:
        await release_database(database, name)
        raise
    if leads:
        database.enter_stage("open")
    return database


async def release_database(database: Database, name: str) -> None:  # noqa: ASYNC910 - closing is the checkpoint, for the last user
    """Give the database back; the last user closes it. Shielded, bounded by SQLite's closing."""
    with _registry_lock:
        lock = database.hosts.pop(name)
        database.users -= 1
        last = database.users == 0
        if last:
            database.enter_stage("closing")
    try:
        if last:
            await database.close()
    finally:
        if lock is not None:
            lock.release()
        if last:
            discard(database.file)
            # Only now may somebody else open the file in this process again.
            with _registry_lock:
                if _registry.get(database.file.identity) is database:
                    del _registry[database.file.identity]
            database.enter_stage("closed")


def _refuse_other_use(database: Database, options: StorageOptions | None, name: str) -> None:
    path = database.file.path
    if database.token is not trio.lowlevel.current_trio_token():
        raise StorageOperationError(
            f"{path!r} is open in another Trio run of this process; a file belongs to one run",
            operation="open",
        )
    if database.stage == "closing":
        return
    if options is not None and database.options != options:
        raise StorageOperationError(
            f"{path!r} is open in this process with {database.options!r}; all its hosts share one"
            " writer, so they need the same StorageOptions",
            operation="open",
        )
    if name in database.hosts:
        raise StorageOperationError(
            f"the host {name!r} of {path!r} is already open in this process (process id"
            f" {os.getpid()}); one host per name may be open",
            operation="lock",
        )
