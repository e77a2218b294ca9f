"""Taking over a database that effect-cf wrote (R63)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from ._clock import SystemClock
from ._database import Gate, acquire_database, release_database
from ._errors import InvalidAlarmRefError, StorageOperationError
from ._names import MAX_HOST_NAME_LENGTH, require_name
from ._storage_options import StorageOptions
from ._store._connection import is_busy
from ._store._effect_cf import drop_effect_cf, has_effect_cf_tables, read_effect_cf
from ._store._files import database_uri, locate
from ._store._native import Reconciliation
from ._store._schema import SCHEMA_VERSION
from ._store._session import Session

if TYPE_CHECKING:
    from os import PathLike

    from ._database import Database
    from ._model import AlarmRef

_BUSY_SECONDS: Final = StorageOptions().busy_timeout_seconds
_RETRY_SECONDS: Final = 0.02


async def import_effect_cf(database: str | PathLike[str], *, name: str = "default") -> int:
    """Take over the alarms of a SQLite file that effect-cf wrote, in place (R63).

    Identity, deadline, lifecycle, repeat, payload, attempts, parking, retry deadline and progress
    are kept; the old tables are dropped; the host becomes managed. One transaction under the
    host's lock: durable when it returns. Without the old tables nothing is written.

    Cancellation: if it raises `trio.Cancelled`, nothing was changed.

    Args:
        database: The path of an existing file.
        name: The host that takes the alarms over; it must not be open.

    Returns:
        How many alarms it took over.

    Raises:
        InvalidAlarmRefError: A bad `name`.
        InvalidScheduleConfigurationError: `database` is not a path.
        StorageOperationError: The file cannot be opened, the host is open, an alarm cannot be
            represented, or the host already has an alarm of the same tag and id. Nothing was
            changed.
    """
    host = require_name(
        name, parameter="name", error=InvalidAlarmRefError, maximum=MAX_HOST_NAME_LENGTH
    )
    await trio.lowlevel.checkpoint()
    if not await _holds_effect_cf(database):
        return 0
    opened = await acquire_database(database, None, host)
    try:
        return await _take_over(opened, host)
    finally:
        with trio.CancelScope(shield=True):
            await release_database(opened, host)


async def _take_over(opened: Database, host: str) -> int:
    gate = Gate()
    # Bounded, since the task itself may be inside the block that has the turn (R12).
    with trio.move_on_after(opened.options.busy_timeout_seconds) as bound:
        await opened.queue.acquire()
    if bound.cancelled_caught:
        raise StorageOperationError(
            "import: another task kept the turn to write for too long", operation="import"
        )
    try:
        return await opened.until_unlocked(
            partial(opened.run, partial(_import_trip, opened, host), gate, operation="import")
        )
    finally:
        opened.queue.release()


def _import_trip(opened: Database, host: str) -> int:
    session = Session(opened.writer, host, opened.probe)
    session.begin()
    try:
        rows = read_effect_cf(opened.writer.raw)
        for row in rows:
            _refuse_existing(session, row.ref)
            session.put(None, row)
        drop_effect_cf(opened.writer.raw)
        session.asks_reconciliation = bool(rows)
    except BaseException:
        session.rollback()
        raise
    # What it finds parked was parked long ago, so nobody is told of it.
    session.commit(Reconciliation(SystemClock().now_ms()))
    return len(rows)


def _refuse_existing(session: Session, ref: AlarmRef) -> None:
    if session.read(ref) is not None:
        raise StorageOperationError(
            f"import: the host {session.host!r} already has an alarm of the tag {ref.tag!r} and id"
            f" {ref.id!r}; nothing was changed",
            operation="import",
        )


async def _holds_effect_cf(database: str | PathLike[str]) -> bool:
    """Look for the old tables without writing anything; wait for another process's lock."""
    file = locate(database, supported_version=SCHEMA_VERSION, create=False)
    deadline = trio.current_time() + _BUSY_SECONDS
    while True:
        try:
            return _look(file.path)  # noqa: ASYNC910 - the import begins with a checkpoint
        except sqlite3.Error as error:
            if not is_busy(error) or trio.current_time() >= deadline:
                raise StorageOperationError(f"import: {error}", operation="import") from error
        await trio.sleep(_RETRY_SECONDS)


def _look(path: str) -> bool:
    # One that could not write would leave the side files of a write-ahead log behind.
    uri = database_uri(path, mode="rw")
    with closing(sqlite3.connect(uri, uri=True, timeout=0)) as connection:
        if not has_effect_cf_tables(connection):
            return False
        # What cannot be taken over is refused before anything is created; it is read again.
        read_effect_cf(connection)
        return True
