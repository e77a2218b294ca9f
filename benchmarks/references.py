"""What trio_alarms is measured against: the least that is durable, on the same tables.

`bare`: a transaction for each. `threaded`: one task sends it through `trio.to_thread`. `batched`:
what callers want meanwhile is done one by one, and shares the next commit.
"""

import os
import sqlite3
from collections.abc import Callable, Iterable

import trio

PRAGMAS = "PRAGMA journal_mode=wal; PRAGMA synchronous=full; PRAGMA journal_size_limit=4194304"
SCHEMA = """CREATE TABLE trio_alarms_alarms (
 host TEXT NOT NULL, tag TEXT NOT NULL, id TEXT NOT NULL, lifecycle TEXT NOT NULL
 CHECK (lifecycle IN ('automatic', 'manual')), run_at INTEGER NOT NULL, wake_at INTEGER NOT NULL,
 retry_at INTEGER, repeat_every INTEGER CHECK (repeat_every > 0),
 progress INTEGER NOT NULL CHECK (progress >= -1), attempts INTEGER NOT NULL CHECK (attempts >= 0),
 parked INTEGER NOT NULL CHECK (parked IN (0, 1)), revision BLOB NOT NULL, payload TEXT NOT NULL,
 CHECK (wake_at = max(run_at, ifnull(retry_at, run_at))), CHECK (NOT parked OR attempts > 0),
 CHECK (lifecycle = 'automatic'
  OR (repeat_every IS NULL AND progress = -1 AND attempts = 0 AND retry_at IS NULL)));
CREATE TABLE trio_alarms_hosts (
 name TEXT NOT NULL, managed INTEGER NOT NULL CHECK (managed IN (0, 1)), native_alarm INTEGER);
CREATE UNIQUE INDEX trio_alarms_alarms_by_ref ON trio_alarms_alarms (host, tag, id);
CREATE INDEX trio_alarms_alarms_by_tag
 ON trio_alarms_alarms (host, lifecycle, tag, wake_at, id, revision);
CREATE INDEX trio_alarms_alarms_by_wake
 ON trio_alarms_alarms (host, lifecycle, wake_at, tag, id, revision);
CREATE INDEX trio_alarms_alarms_parked
 ON trio_alarms_alarms (host, wake_at, tag, id) WHERE parked = 1;
CREATE UNIQUE INDEX trio_alarms_hosts_by_name ON trio_alarms_hosts (name);"""
READ = """SELECT tag, id, lifecycle, run_at, wake_at, retry_at, repeat_every, progress,
 attempts, parked, revision, CAST(payload AS BLOB) FROM trio_alarms_alarms
 INDEXED BY trio_alarms_alarms_by_ref WHERE host = ? AND tag = ? AND id = ?"""
WRITE = """INSERT INTO trio_alarms_alarms (host, tag, id, lifecycle, run_at, wake_at, retry_at,
 repeat_every, progress, attempts, parked, revision, payload) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)
 ON CONFLICT (host, tag, id) DO UPDATE SET lifecycle = excluded.lifecycle,
 run_at = excluded.run_at, wake_at = excluded.wake_at, retry_at = excluded.retry_at,
 repeat_every = excluded.repeat_every, progress = excluded.progress, attempts = excluded.attempts,
 parked = excluded.parked, revision = excluded.revision, payload = excluded.payload"""
DELETE = """DELETE FROM trio_alarms_alarms INDEXED BY trio_alarms_alarms_by_ref
 WHERE host = ? AND tag = ? AND id = ?"""
EARLIEST = """SELECT min(wake_at) FROM trio_alarms_alarms
 INDEXED BY trio_alarms_alarms_by_wake WHERE host = ? AND lifecycle = ?"""
READ_NATIVE = """SELECT managed, native_alarm FROM trio_alarms_hosts
 INDEXED BY trio_alarms_hosts_by_name WHERE name = ?"""
WRITE_NATIVE = """INSERT INTO trio_alarms_hosts (name, managed, native_alarm)
 VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET managed = max(managed, excluded.managed),
 native_alarm = excluded.native_alarm"""
INSERT_NOTE = "INSERT INTO notes (id, note) VALUES (?, ?)"
LOOKS = (("default", "automatic"), ("default", "manual"))
Alarm = tuple[str, str, int, str]  # tag, id, deadline in ms, payload


def connect(path: str) -> sqlite3.Connection:
    """Open a database durably, for one thread at a time; statements are prepared once."""
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    return database.executescript(PRAGMAS).connection


def schedule(database: sqlite3.Connection, *alarms: Alarm, note: str | None = None) -> None:
    """Arm alarms with one commit: `bare` sends one, `batched` several."""
    (execute := database.execute)("BEGIN IMMEDIATE")
    if note is not None:
        execute(INSERT_NOTE, (alarms[0][1], note))
    for tag, id, at, payload in alarms:
        execute(READ, ("default", tag, id)).fetchone()
        rest = ("automatic", at, at, None, None, -1, 0, 0, os.urandom(16), payload)
        execute(WRITE, ("default", tag, id, *rest))
        wake = min(filter(None, (execute(EARLIEST, look).fetchone()[0] for look in LOOKS)))
        if execute(READ_NATIVE, ("default",)).fetchone() != (1, wake):
            execute(WRITE_NATIVE, ("default", 1, wake))
    execute("COMMIT")


def dispatch(database: sqlite3.Connection, alarm: Alarm) -> None:
    """Read an alarm and delete it, with one commit."""
    database.execute("BEGIN IMMEDIATE")
    database.execute(READ, ("default", *alarm[:2])).fetchone()
    database.execute(DELETE, ("default", *alarm[:2]))
    database.execute("COMMIT")


async def threaded(operation: Callable[[Alarm], object], alarms: Iterable[Alarm]) -> None:
    """Send an operation to a thread for one alarm after the other, from this task."""
    for alarm in alarms:
        await trio.to_thread.run_sync(operation, alarm)


async def batched(database: sqlite3.Connection, shares: Iterable[Iterable[Alarm]]) -> None:
    """Arm alarms through one leader, for one caller per share, each one alarm at a time."""
    waiting, arrived = list[tuple[Alarm, trio.Event]](), trio.Event()

    async def call(share: Iterable[Alarm]) -> None:
        for alarm in share:
            waiting.append((alarm, done := trio.Event()))
            arrived.set()
            await done.wait()

    async def lead() -> None:
        nonlocal waiting, arrived
        while True:
            await arrived.wait()
            batch, waiting, arrived = waiting, [], trio.Event()
            await trio.to_thread.run_sync(schedule, database, *(alarm for alarm, _ in batch))
            for _, done in batch:
                done.set()

    async with trio.open_nursery() as leader:
        leader.start_soon(lead)
        async with trio.open_nursery() as callers:
            for share in shares:
                callers.start_soon(call, share)
        leader.cancel_scope.cancel()


if __name__ == "__main__":
    statements = (text for name, text in globals().items() if name.isupper() and name != "LOOKS")
    print(*statements, "BEGIN IMMEDIATE", "COMMIT", sep=";\n")
