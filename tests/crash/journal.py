"""The append-only file in which a child says what it did, each line on disk before it goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import attrs


@attrs.frozen
class Entry:
    """One thing that happened in the child of an epoch; `at_ms` is its wall clock."""

    epoch: int
    at_ms: int
    event: str
    tag: str = ""
    id: str = ""
    attempts: int = 0
    scheduled_ms: int = 0


class Journal:
    """Writes entries, each with one write and one fsync."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        # Ends the line that a kill may have cut off.
        os.write(self._file, b"\n")

    def write(self, entry: Entry) -> None:
        """Append an entry; it is on disk when this returns."""
        os.write(self._file, json.dumps(attrs.asdict(entry)).encode() + b"\n")
        os.fsync(self._file)


def read(path: Path) -> list[Entry]:
    """All whole entries, oldest first."""
    return list(_entries(path)) if path.exists() else []


def _entries(path: Path) -> Iterator[Entry]:
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            fields = json.loads(line)
        except ValueError:
            continue  # empty, or cut off by a kill
        yield Entry(**fields)
