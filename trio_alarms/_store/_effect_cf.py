"""Reading what effect-cf stored in the same file, in every shape that its tables have had (R63).

Its alarms are in `effect_cf_scheduled_alarms`. Later releases count attempts in
`effect_cf_alarm_attempts`, for a while with a column `ordered`, which has no meaning here; later
still the alarms have `wake_at`, which is computed anew, and `lifecycle`. A column is in another
place where it was added to an older table, so columns go by name.
"""

from __future__ import annotations

import math
import os
import sqlite3
from typing import Any, Final, NamedTuple

from .._arguments import describe
from .._errors import StorageOperationError
from .._model import NO_PROGRESS, AlarmRef, AlarmRow, Lifecycle
from .._time import MAX_DURATION_MS, MAX_INSTANT_MS, MIN_INSTANT_MS

_ALARMS: Final = "effect_cf_scheduled_alarms"
_ATTEMPTS: Final = "effect_cf_alarm_attempts"

_ALARM_COLUMNS: Final = frozenset(
    {"storage_id", "alarm_id", "tag", "run_at", "repeat_every_ms", "payload"}
)
_ATTEMPT_COLUMNS: Final = frozenset({"storage_id", "attempts", "parked", "retry_at", "progress"})

_MAX_REF_LENGTH: Final = 512
_SHOWN_LENGTH: Final = 80


class _StoredAlarm(NamedTuple):
    """One alarm as it is found, each value of whatever type it is stored as."""

    tag: Any
    id: Any
    lifecycle: Any
    run_at: Any
    repeat_every_ms: Any
    payload: Any
    attempts: Any
    parked: Any
    retry_at: Any
    progress: Any


def has_effect_cf_tables(connection: sqlite3.Connection) -> bool:
    """Whether effect-cf has alarms in this file; attempts alone belong to none."""
    return bool(_columns(connection, _ALARMS))


def read_effect_cf(connection: sqlite3.Connection) -> list[AlarmRow]:
    """Read all of effect-cf's alarms, each with a new revision; nothing is written.

    Instants are rounded up to whole milliseconds and bounded to those that can be stored, periods
    to the longest one. A payload is kept as it is, even if it is not JSON: it fails when its
    alarm is due, as it did before. Attempts of alarms that are gone are passed over.

    Raises:
        StorageOperationError: a table has a shape that effect-cf never gave it, or an alarm has
            values that cannot be kept; the message names its tag and id (operation `"import"`).
    """
    rows = [_to_row(alarm) for alarm in _read_alarms(connection)]
    refs: set[AlarmRef] = set()
    for row in rows:
        if row.ref in refs:
            raise _refusal(row.ref.tag, row.ref.id, "it is stored twice")
        refs.add(row.ref)
    return rows


def drop_effect_cf(connection: sqlite3.Connection) -> None:
    """Drop effect-cf's tables, with their indices."""
    connection.execute(f"DROP TABLE IF EXISTS {_ATTEMPTS}")
    connection.execute(f"DROP TABLE IF EXISTS {_ALARMS}")


def _columns(connection: sqlite3.Connection, table: str) -> frozenset[str]:
    """The names of a table's columns; none where there is no such table."""
    found = connection.execute(
        "SELECT c.name FROM sqlite_master AS t, pragma_table_info(t.name) AS c"
        " WHERE t.type = 'table' AND t.name = ?",
        (table,),
    )
    return frozenset(name for (name,) in found)


def _read_alarms(connection: sqlite3.Connection) -> list[_StoredAlarm]:
    columns = _columns(connection, _ALARMS)
    _require_columns(_ALARMS, columns, _ALARM_COLUMNS)
    lifecycle = "a.lifecycle" if "lifecycle" in columns else "'automatic'"
    attempts, source = f"0, 0, NULL, {NO_PROGRESS}", ""
    if counted := _columns(connection, _ATTEMPTS):
        _require_columns(_ATTEMPTS, counted, _ATTEMPT_COLUMNS)
        attempts = (
            "ifnull(s.attempts, 0), ifnull(s.parked, 0), s.retry_at,"
            f" ifnull(s.progress, {NO_PROGRESS})"
        )
        source = f" LEFT JOIN {_ATTEMPTS} AS s ON s.storage_id = a.storage_id"
    text_factory = connection.text_factory
    connection.text_factory = _decode
    try:
        found = connection.execute(
            f"SELECT a.tag, a.alarm_id, {lifecycle}, a.run_at, a.repeat_every_ms, a.payload,"
            f" {attempts} FROM {_ALARMS} AS a{source} ORDER BY a.storage_id"
        ).fetchall()
    finally:
        connection.text_factory = text_factory
    return [_StoredAlarm(*values) for values in found]


def _decode(stored: bytes) -> str:
    """Text as it is stored; what is no UTF-8 becomes lone surrogates and is refused by row."""
    return stored.decode(errors="surrogateescape")


def _require_columns(table: str, found: frozenset[str], known: frozenset[str]) -> None:
    if missing := known - found:
        raise StorageOperationError(
            f"import: the table {table} has no column {', '.join(sorted(missing))}, so it is in"
            " none of the shapes that effect-cf has given it; nothing was changed",
            operation="import",
        )


def _to_row(alarm: _StoredAlarm) -> AlarmRow:
    try:
        return _build_row(alarm)
    except ValueError as error:
        raise _refusal(alarm.tag, alarm.id, str(error)) from error


def _build_row(alarm: _StoredAlarm) -> AlarmRow:
    """The same alarm as a row of ours; `ValueError` says why that cannot be."""
    ref = AlarmRef(tag=_ref_part(alarm.tag, "tag"), id=_ref_part(alarm.id, "alarm_id"))
    run_at = _instant(alarm.run_at, "run_at")
    if _lifecycle(alarm.lifecycle) == "manual":
        return AlarmRow(
            ref=ref,
            lifecycle="manual",
            run_at=run_at,
            wake_at=run_at,
            # effect-cf, too, gives none of these a meaning for a manual alarm (R5).
            retry_at=None,
            repeat_every=None,
            progress=NO_PROGRESS,
            attempts=0,
            parked=False,
            revision=os.urandom(16),
            payload=_payload(alarm.payload),
        )
    attempts = _count(alarm.attempts, "attempts", minimum=0)
    parked = _count(alarm.parked, "parked", minimum=0)
    if parked > 1 or (parked and not attempts):
        raise ValueError(f"parked is {parked} with {attempts} attempts")
    retry_at = None if alarm.retry_at is None else _instant(alarm.retry_at, "retry_at")
    return AlarmRow(
        ref=ref,
        lifecycle="automatic",
        run_at=run_at,
        wake_at=run_at if retry_at is None else max(run_at, retry_at),
        retry_at=retry_at,
        repeat_every=_period(alarm.repeat_every_ms),
        progress=_count(alarm.progress, "progress", minimum=NO_PROGRESS),
        attempts=attempts,
        parked=bool(parked),
        revision=os.urandom(16),
        payload=_payload(alarm.payload),
    )


def _ref_part(value: object, column: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_REF_LENGTH:
        raise ValueError(f"{column} must be text of 1 to {_MAX_REF_LENGTH} characters")
    if "\0" in value or _has_lone_surrogate(value):
        raise ValueError(f"{column} has a NUL or is not UTF-8")
    return value


def _lifecycle(value: object) -> Lifecycle:
    if value == "automatic":
        return "automatic"
    if value == "manual":
        return "manual"
    raise ValueError("lifecycle must be 'automatic' or 'manual'")


def _payload(value: object) -> str:
    if not isinstance(value, str) or _has_lone_surrogate(value):
        raise ValueError("payload must be text in UTF-8")
    return value


def _has_lone_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _instant(value: object, column: str) -> int:
    """Milliseconds since the epoch; JavaScript's dates reach farther than ours."""
    return min(max(_whole(value, column), MIN_INSTANT_MS), MAX_INSTANT_MS)


def _period(value: object) -> int | None:
    if value is None:
        return None
    period_ms = _whole(value, "repeat_every_ms")
    if period_ms <= 0:
        raise ValueError(f"repeat_every_ms must be positive, not {describe(value)}")
    return min(period_ms, MAX_DURATION_MS)


def _whole(value: object, column: str) -> int:
    """A finite number, rounded up so that nothing fires early."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{column} must be a finite number, not {describe(value)}")
    return math.ceil(value)


def _count(value: object, column: str, *, minimum: int) -> int:
    if not isinstance(value, int) or value < minimum:
        raise ValueError(f"{column} must be an integer from {minimum}, not {describe(value)}")
    return value


def _refusal(tag: object, id: object, problem: str) -> StorageOperationError:
    return StorageOperationError(
        f"import: effect-cf's alarm with tag {_shown(tag)} and id {_shown(id)} cannot be taken"
        f" over: {problem}; nothing was changed",
        operation="import",
    )


def _shown(value: object) -> str:
    if not isinstance(value, str):
        return describe(value)
    shown = value if len(value) <= _SHOWN_LENGTH else f"{value[:_SHOWN_LENGTH]}…"
    return repr(shown)
