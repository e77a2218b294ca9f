"""The tables, and the versioned migrations that make them (R60).

A migration is a tuple of statements; version N is reached by the first N of them. All that are
missing run in one transaction, so that a file is never seen between two versions.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from .._errors import StorageOperationError

_ALARMS: Final = """
CREATE TABLE trio_alarms_alarms (
    host TEXT NOT NULL,
    tag TEXT NOT NULL,
    id TEXT NOT NULL,
    lifecycle TEXT NOT NULL CHECK (lifecycle IN ('automatic', 'manual')),
    run_at INTEGER NOT NULL,
    wake_at INTEGER NOT NULL,
    retry_at INTEGER,
    repeat_every INTEGER CHECK (repeat_every > 0),
    progress INTEGER NOT NULL CHECK (progress >= -1),
    attempts INTEGER NOT NULL CHECK (attempts >= 0),
    parked INTEGER NOT NULL CHECK (parked IN (0, 1)),
    revision BLOB NOT NULL,
    payload TEXT NOT NULL,
    CHECK (wake_at = max(run_at, ifnull(retry_at, run_at))),
    CHECK (NOT parked OR attempts > 0),
    CHECK (
        lifecycle = 'automatic'
        OR (repeat_every IS NULL AND progress = -1 AND attempts = 0 AND retry_at IS NULL)
    )
)
"""

_HOSTS: Final = """
CREATE TABLE trio_alarms_hosts (
    name TEXT NOT NULL,
    managed INTEGER NOT NULL CHECK (managed IN (0, 1)),
    native_alarm INTEGER
)
"""

# The dispatch and wake indices end in the revision, so that choosing what is due is answered by
# the index alone and reads no payload (R61).
_INDICES: Final = (
    "CREATE UNIQUE INDEX trio_alarms_alarms_by_ref ON trio_alarms_alarms (host, tag, id)",
    """
    CREATE INDEX trio_alarms_alarms_by_tag
    ON trio_alarms_alarms (host, lifecycle, tag, wake_at, id, revision)
    """,
    """
    CREATE INDEX trio_alarms_alarms_by_wake
    ON trio_alarms_alarms (host, lifecycle, wake_at, tag, id, revision)
    """,
    """
    CREATE INDEX trio_alarms_alarms_parked
    ON trio_alarms_alarms (host, wake_at, tag, id) WHERE parked = 1
    """,
    "CREATE UNIQUE INDEX trio_alarms_hosts_by_name ON trio_alarms_hosts (name)",
)

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = ((_ALARMS, _HOSTS, *_INDICES),)

SCHEMA_VERSION: Final = len(MIGRATIONS)


def read_version(connection: sqlite3.Connection) -> int:
    """The schema version that is stored; 0 where our tables are not there."""
    found = connection.execute(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'trio_alarms_schema'"
    ).fetchone()
    if found is None:
        return 0
    row = connection.execute("SELECT max(version) FROM trio_alarms_schema").fetchone()
    return int(row[0] or 0)


def refuse_newer(version: int, path: str) -> None:
    """Refuse a file whose schema a later release of trio_alarms wrote."""
    if version > SCHEMA_VERSION:
        raise StorageOperationError(
            f"{path!r} has trio_alarms schema version {version}; this release knows versions up"
            f" to {SCHEMA_VERSION}, so use a newer trio_alarms to open it",
            operation="open",
        )


def migrate(connection: sqlite3.Connection, path: str) -> None:
    """Bring the tables up to date, inside a transaction that the caller has begun."""
    version = read_version(connection)
    refuse_newer(version, path)
    if version == SCHEMA_VERSION:
        return
    if version == 0:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS trio_alarms_schema (version INTEGER NOT NULL)"
        )
    for statements in MIGRATIONS[version:]:
        for statement in statements:
            connection.execute(statement)
    connection.execute("DELETE FROM trio_alarms_schema")
    connection.execute("INSERT INTO trio_alarms_schema (version) VALUES (?)", (SCHEMA_VERSION,))
