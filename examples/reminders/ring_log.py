"""The log that says what rang: appended and fsynced by handlers, read by the supervisor.

It is the demo's evidence, so it never takes anything from the table of alarms: a reminder counts
as rung because its handler ran and its line reached the disk.
"""

from __future__ import annotations

import functools
import os
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

import attrs
from cattrs.preconf.json import JsonConverter, make_converter
from cattrs.strategies import configure_tagged_union

from .calendar_reminders import Announcement

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@attrs.frozen
class Enrolment:
    """A process is ready: it has enrolled this many reminders, none if the mark was there."""

    process: int
    reminders: int


@attrs.frozen
class Ring:
    """A reminder rang in this process; it was due at `due_at`."""

    process: int
    reminder_id: str
    due_at: datetime
    announcement: Announcement


LogRecord: TypeAlias = Enrolment | Ring


@functools.cache
def _converter() -> JsonConverter:
    converter = make_converter()
    configure_tagged_union(LogRecord, converter)
    return converter


class RingLog:
    """The writing end. Appending is thread-safe, and durable when it returns."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def append(self, record: LogRecord) -> None:
        """Append one record and wait until it is on the disk.

        Raises:
            OSError: It could not be written whole, or not be brought to the disk.
        """
        line = _converter().dumps(record, unstructure_as=LogRecord).encode() + b"\n"
        written = os.write(self._descriptor, line)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes of a log record were written")
        os.fsync(self._descriptor)


@contextmanager
def open_ring_log(path: Path) -> Iterator[RingLog]:
    """Open the log for appending, create it durably if it is new, and close it at the end."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        _end_torn_line(descriptor)
        _fsync_directory(path.parent)
        yield RingLog(descriptor)
    finally:
        os.close(descriptor)


def _end_torn_line(descriptor: int) -> None:
    """End a line that a killed process left without its end, so that it spoils no other."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        os.write(descriptor, b"\n")


def _fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RingLogReader:
    """The reading end: hands out each record once, as soon as its line is complete."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_records(self) -> list[LogRecord]:
        """The records since the last call. A line that was torn by a kill is no record."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return []
        complete, newline, _ = content.rpartition(b"\n")
        self._offset += len(complete) + len(newline)
        return [record for line in complete.split(b"\n") if (record := _record(line)) is not None]


def _record(line: bytes) -> LogRecord | None:
    try:
        return _converter().loads(line, LogRecord)  # type: ignore[arg-type]  # a union is no type
    except Exception:  # noqa: BLE001 - json and cattrs raise many kinds; all mean a torn line
        return None
