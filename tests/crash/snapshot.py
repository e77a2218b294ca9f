"""What a kill left in the files."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import attrs

Key: TypeAlias = tuple[str, str]  # tag, id


@attrs.frozen
class StoredAlarm:
    """The columns of a row that the judge looks at."""

    lifecycle: str
    run_at: int
    wake_at: int
    attempts: int


@attrs.frozen
class Snapshot:
    """The committed state."""

    integrity: str = "ok"
    native_alarm: int | None = None
    alarms: Mapping[Key, StoredAlarm] = attrs.Factory(dict)
    balance: int | None = None
    moves: Counter[str] = attrs.Factory(Counter)
    orders: Counter[str] = attrs.Factory(Counter)
    queue: Mapping[str, str] = attrs.Factory(dict)  # item -> owner
    served: Counter[str] = attrs.Factory(Counter)


def take_snapshot(database: Path, scratch: Path) -> Snapshot:
    """Look at a copy, so that the next child finds the files as the kill left them."""
    scratch.mkdir(exist_ok=True)
    copy = scratch / database.name
    for suffix in ("", "-wal", "-shm"):
        Path(f"{copy}{suffix}").unlink(missing_ok=True)
    for suffix in ("", "-wal"):
        if Path(f"{database}{suffix}").exists():
            shutil.copyfile(f"{database}{suffix}", f"{copy}{suffix}")
    if not copy.exists():
        return Snapshot()
    with closing(sqlite3.connect(copy)) as connection:
        return _read(connection)


def _read(connection: sqlite3.Connection) -> Snapshot:
    tables = {
        name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
    }

    def select(columns: str, table: str) -> list[tuple[Any, ...]]:
        if table not in tables:
            return []
        return connection.execute(f"SELECT {columns} FROM {table}").fetchall()

    problems = [line for (line,) in connection.execute("PRAGMA integrity_check")]
    native = [at for (at,) in select("native_alarm", "trio_alarms_hosts")]
    return Snapshot(
        integrity="; ".join(problems),
        native_alarm=native[0] if native else None,
        alarms={
            (tag, id): StoredAlarm(*columns)
            for tag, id, *columns in select(
                "tag, id, lifecycle, run_at, wake_at, attempts", "trio_alarms_alarms"
            )
        },
        balance=next((sum_ for (sum_,) in select("sum(balance)", "accounts")), None),
        moves=_counted(select("id", "moves")),
        orders=_counted(select("id", "orders")),
        queue=dict(select("item, owner", "queue")),
        served=_counted(select("item", "served")),
    )


def _counted(rows: Iterable[tuple[Any, ...]]) -> Counter[str]:
    return Counter(name for (name,) in rows)
