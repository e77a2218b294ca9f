"""Database files to measure on: the alarms that they are filled with, for us and the references."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import trio

from trio_alarms import open_host

from . import references
from .references import Alarm

TAG: Final = "once"
MANUAL_TAG: Final = "by_hand"
PAYLOAD: Final = '"work"'

DAY_MS: Final = 86_400_000
# Prime to the number of milliseconds in a day, so that deadlines are spread and do not repeat.
_STRIDE_MS: Final = 7_919_993

# So few in a transaction that the write-ahead log stays small.
_CHUNK: Final = 20_000

NOTES: Final = "CREATE TABLE notes (id TEXT PRIMARY KEY, note TEXT NOT NULL)"


def now_ms() -> int:
    """The wall clock, as alarms go by it."""
    return time.time_ns() // 1_000_000


def instant(milliseconds: int) -> datetime:
    """A deadline as the public methods take it."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def future_alarms(count: int, *, prefix: str = "alarm") -> list[Alarm]:
    """Alarms due some time tomorrow, in no order."""
    tomorrow = now_ms() + DAY_MS
    return [
        (TAG, f"{prefix}-{number}", tomorrow + number * _STRIDE_MS % DAY_MS, PAYLOAD)
        for number in range(count)
    ]


def due_alarms(count: int, *, tag: str = TAG) -> list[Alarm]:
    """Alarms that have just fallen due, one after the other."""
    ago = now_ms() - 1_000 - count
    return [(tag, f"due-{number}", ago + number, PAYLOAD) for number in range(count)]


def make_file(path: Path) -> None:
    """Make a database as an application has it: opened once by a host, and closed."""

    async def open_once() -> None:
        async with open_host(path, driver=False):
            pass

    trio.run(open_once)


def make_reference_file(path: Path) -> sqlite3.Connection:
    """Make the same for a reference, and keep it open."""
    database = references.connect(str(path))
    database.executescript(references.SCHEMA)
    return database


def fill(path: Path, alarms: Sequence[Alarm], *, lifecycle: str = "automatic") -> None:
    """Put alarms into a closed file as if a host had armed them, and left.

    All of it is on the disk on return: nothing is left to be written while something is measured.
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.executescript("PRAGMA synchronous = off; PRAGMA cache_size = -400000")
        for first in range(0, len(alarms), _CHUNK):
            database.execute("BEGIN")
            chunk = alarms[first : first + _CHUNK]
            database.executemany(references.WRITE, _rows(chunk, lifecycle))
            database.execute("COMMIT")
        wakes = [
            database.execute(references.EARLIEST, ("default", kind)).fetchone()[0]
            for kind in ("automatic", "manual")
        ]
        earliest = min(wake for wake in wakes if wake is not None)
        database.execute(references.WRITE_NATIVE, ("default", 1, earliest))
    _flush(path)


def make_notes(path: Path) -> None:
    """Make a table of the application's in a closed file."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(NOTES)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _rows(alarms: Sequence[Alarm], lifecycle: str) -> Iterator[tuple[object, ...]]:
    for tag, id, at, payload in alarms:
        fixed = (None, None, -1, 0, 0, os.urandom(16), payload)
        yield ("default", tag, id, lifecycle, at, at, *fixed)
