"""The native alarm: one row per host with the single timestamp that wakes it (R18, R20, R35)."""

from __future__ import annotations

import sqlite3
from typing import Final

import attrs

from . import _alarms

READ: Final = (
    "SELECT managed, native_alarm FROM trio_alarms_hosts INDEXED BY trio_alarms_hosts_by_name"
    " WHERE name = ?"
)
WRITE: Final = (
    "INSERT INTO trio_alarms_hosts (name, managed, native_alarm) VALUES (?, ?, ?)"
    " ON CONFLICT (name) DO UPDATE SET managed = max(managed, excluded.managed),"
    " native_alarm = excluded.native_alarm"
)


@attrs.frozen
class NativeState:
    """What is stored for a host. A name that never wrote is unmanaged and unset."""

    managed: bool
    native_alarm: int | None


@attrs.frozen
class Reconciliation:
    """What the loop knows when it sends a commit; the worker thread never looks for itself.

    With `guard_at` the guard stands instead of the deadlines (R18). A stored native alarm equal
    to `own_guard` was left by the pass that is ending and counts as unset (R24). `era` tells
    which setting of the guard it was made under.
    """

    now: int
    guard_at: int | None = None
    own_guard: int | None = None
    era: int = 0


@attrs.frozen
class NativeChange:
    """What a reconciliation changed the native alarm from, and to."""

    before: int | None
    after: int | None


def read(connection: sqlite3.Connection, host: str) -> NativeState:
    """The stored native alarm of the host, and whether the scheduler owns it."""
    found = connection.execute(READ, (host,)).fetchone()
    if found is None:
        return NativeState(managed=False, native_alarm=None)
    return NativeState(managed=bool(found[0]), native_alarm=found[1])


def write(
    connection: sqlite3.Connection, host: str, native_alarm: int | None, *, managed: bool
) -> None:
    """Store the native alarm; a host that is managed stays so."""
    connection.execute(WRITE, (host, int(managed), native_alarm))


def reconcile(
    connection: sqlite3.Connection, host: str, reconciliation: Reconciliation
) -> NativeChange | None:
    """Bring the native alarm in line with the table, or with the guard; the host is then managed.

    Written only where it changes, or where the host was not managed before; returns the change.
    """
    found = connection.execute(READ, (host,)).fetchone()
    managed, native_alarm = (0, None) if found is None else found
    if reconciliation.guard_at is None:
        target = _alarms.earliest_wake(connection, host)
    else:
        target = _guarded(native_alarm, reconciliation, reconciliation.guard_at)
    if target == native_alarm and managed:
        return None
    write(connection, host, target, managed=True)
    return None if target == native_alarm else NativeChange(native_alarm, target)


def _guarded(native_alarm: int | None, reconciliation: Reconciliation, guard_at: int) -> int:
    if native_alarm is None or native_alarm == reconciliation.own_guard:
        return guard_at
    # An earlier future native alarm stays, even when everything was cancelled (R18).
    return native_alarm if reconciliation.now < native_alarm <= guard_at else guard_at
