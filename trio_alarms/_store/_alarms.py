"""Every statement on alarm rows.

Each query that scheduling and dispatch depend on names its index, so that SQLite refuses it
rather than scan, and the work never grows with what is retained (R61).
"""

from __future__ import annotations

import heapq
import itertools
import sqlite3
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from .._model import AlarmRef, AlarmRow, Lifecycle

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

LIFECYCLES: Final[tuple[Lifecycle, ...]] = ("automatic", "manual")

_COLUMNS: Final = (
    "tag, id, lifecycle, run_at, wake_at, retry_at, repeat_every, progress, attempts, parked,"
    " revision, payload"
)
# As bytes: a payload that somebody made no UTF-8 of must fail its own alarm, not the whole query.
_READ_COLUMNS: Final = _COLUMNS.replace("payload", "CAST(payload AS BLOB)")

READ: Final = (
    f"SELECT {_READ_COLUMNS} FROM trio_alarms_alarms INDEXED BY trio_alarms_alarms_by_ref"
    " WHERE host = ? AND tag = ? AND id = ?"
)
WRITE: Final = (
    f"INSERT INTO trio_alarms_alarms (host, {_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)"
    " ON CONFLICT (host, tag, id) DO UPDATE SET lifecycle = excluded.lifecycle,"
    " run_at = excluded.run_at, wake_at = excluded.wake_at, retry_at = excluded.retry_at,"
    " repeat_every = excluded.repeat_every, progress = excluded.progress,"
    " attempts = excluded.attempts, parked = excluded.parked, revision = excluded.revision,"
    " payload = excluded.payload"
)
DELETE: Final = (
    "DELETE FROM trio_alarms_alarms INDEXED BY trio_alarms_alarms_by_ref"
    " WHERE host = ? AND tag = ? AND id = ?"
)
# A manual row keeps its revision when dispatch moves it (R26, R29).
MOVE: Final = (
    "UPDATE trio_alarms_alarms INDEXED BY trio_alarms_alarms_by_ref"
    " SET run_at = ?, wake_at = ? WHERE host = ? AND tag = ? AND id = ? AND revision = ?"
)
DUE_BY_WAKE: Final = (
    "SELECT wake_at, tag, id, revision FROM trio_alarms_alarms"
    " INDEXED BY trio_alarms_alarms_by_wake"
    " WHERE host = ? AND lifecycle = ? AND wake_at <= ? ORDER BY wake_at, tag, id LIMIT ?"
)
DUE_BY_TAG: Final = (
    "SELECT wake_at, tag, id, revision FROM trio_alarms_alarms"
    " INDEXED BY trio_alarms_alarms_by_tag"
    " WHERE host = ? AND lifecycle = ? AND tag = ? AND wake_at <= ?"
    " ORDER BY wake_at, id LIMIT ?"
)
# One step of a loose index scan: the next tag after the one given.
NEXT_TAG: Final = (
    "SELECT min(tag) FROM trio_alarms_alarms INDEXED BY trio_alarms_alarms_by_tag"
    " WHERE host = ? AND lifecycle = ? AND tag > ?"
)
EARLIEST: Final = (
    "SELECT min(wake_at) FROM trio_alarms_alarms INDEXED BY trio_alarms_alarms_by_wake"
    " WHERE host = ? AND lifecycle = ?"
)

# Up to so many tags are gone through one by one, and so many due rows of excluded tags are skipped.
_FEW_TAGS: Final = 32
_SKIPPED: Final = 1_000
_LARGEST_WINDOW: Final = 2**62
# What is due is mostly little, and then found with one statement for all tags.
_WINDOW: Final = 64

DueKey: TypeAlias = tuple[int, str, str, bytes]


@attrs.frozen
class DueRow:
    """One row that was chosen for dispatch: its identity and revision, never its payload."""

    wake_at: int
    ref: AlarmRef
    revision: bytes


@attrs.frozen
class TagView:
    """Which tags a dispatch or a listing sees: `only` those, or all but `excluded`."""

    only: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()

    def sees(self, tag: str) -> bool:
        """Whether alarms of this tag are seen."""
        return tag not in self.excluded and (self.only is None or tag in self.only)

    def narrowed(self, inner: TagView) -> TagView:
        """What is seen through both views."""
        if self is ALL_TAGS:
            return inner
        excluded = self.excluded | inner.excluded
        if self.only is None and inner.only is None:
            return TagView(excluded=excluded)
        if self.only is None or inner.only is None:
            only = self.only if inner.only is None else inner.only
            return TagView(only=(only or frozenset()) - excluded)
        return TagView(only=(self.only & inner.only) - excluded)


ALL_TAGS: Final = TagView()


def read(connection: sqlite3.Connection, host: str, ref: AlarmRef) -> AlarmRow | None:
    """The stored row, if there is one."""
    found = connection.execute(READ, (host, ref.tag, ref.id)).fetchone()
    return None if found is None else _row(found)


def write(connection: sqlite3.Connection, host: str, row: AlarmRow) -> None:
    """Insert or replace the row."""
    connection.execute(
        WRITE,
        (
            host,
            row.ref.tag,
            row.ref.id,
            row.lifecycle,
            row.run_at,
            row.wake_at,
            row.retry_at,
            row.repeat_every,
            row.progress,
            row.attempts,
            int(row.parked),
            row.revision,
            _stored_payload(row.payload),
        ),
    )


def _stored_payload(payload: str) -> str | bytes:
    """What is stored for a payload that `_row` has read: the very bytes that were there."""
    try:
        payload.encode()
    except UnicodeEncodeError:
        return payload.encode(errors="surrogateescape")
    return payload


def delete(connection: sqlite3.Connection, host: str, ref: AlarmRef) -> bool:
    """Delete the row; whether there was one."""
    return connection.execute(DELETE, (host, ref.tag, ref.id)).rowcount > 0


def move(connection: sqlite3.Connection, host: str, row: DueRow, run_at: int) -> None:
    """Move the deadline of a manual row whose revision is unchanged; the revision stays."""
    connection.execute(MOVE, (run_at, run_at, host, row.ref.tag, row.ref.id, row.revision))


def earliest_wake(connection: sqlite3.Connection, host: str) -> int | None:
    """The least `wake_at` of the host's alarms."""
    wakes = [connection.execute(EARLIEST, (host, kind)).fetchone()[0] for kind in LIFECYCLES]
    return min((wake for wake in wakes if wake is not None), default=None)


def has_due(connection: sqlite3.Connection, host: str, now: int) -> bool:
    """Whether anything is due."""
    earliest = earliest_wake(connection, host)
    return earliest is not None and earliest <= now


class DueWindow:
    """What is due first of a host, whatever its tag: read once for several dispatches."""

    def __init__(self) -> None:
        self._keys: dict[Lifecycle, list[DueKey]] = {}

    def all_due(
        self, connection: sqlite3.Connection, host: str, lifecycle: Lifecycle, now: int
    ) -> list[DueKey] | None:
        """All that is due, in dispatch order; `None` where that is more than a few."""
        keys = self._keys.get(lifecycle)
        if keys is None:
            keys = connection.execute(DUE_BY_WAKE, (host, lifecycle, now, _WINDOW)).fetchall()
            self._keys[lifecycle] = keys
        return keys if len(keys) < _WINDOW else None


def select_due(
    connection: sqlite3.Connection,
    host: str,
    *,
    lifecycle: Lifecycle,
    view: TagView,
    now: int,
    limit: int,
    window: DueWindow | None = None,
) -> list[DueRow]:
    """Up to `limit` due rows of the view's tags in dispatch order, read from an index alone.

    With a `window`, which all calls of one moment may share, from that where it will do.
    """
    keys: Sequence[DueKey]
    all_due = None if window is None else window.all_due(connection, host, lifecycle, now)
    if all_due is not None:
        keys = [key for key in all_due if view.sees(key[1])][:limit]
    elif view == ALL_TAGS:
        keys = connection.execute(DUE_BY_WAKE, (host, lifecycle, now, limit)).fetchall()
    elif view.only is not None:
        keys = _due_of(connection, host, lifecycle, view.only, now, limit)
    else:
        keys = _due_beside(connection, host, lifecycle, view.excluded, now, limit)
    return [DueRow(wake_at, AlarmRef(tag, id), revision) for wake_at, tag, id, revision in keys]


def _due_of(  # noqa: PLR0917 - the parameters of the query, in its order
    connection: sqlite3.Connection,
    host: str,
    lifecycle: Lifecycle,
    tags: Iterable[str],
    now: int,
    limit: int,
) -> Sequence[DueKey]:
    """What is due of these tags, whatever is due of others."""
    keys = (
        key
        for tag in tags
        for key in connection.execute(DUE_BY_TAG, (host, lifecycle, tag, now, limit)).fetchall()
    )
    return heapq.nsmallest(limit, keys)


def _due_beside(  # noqa: PLR0917 - as above
    connection: sqlite3.Connection,
    host: str,
    lifecycle: Lifecycle,
    excluded: frozenset[str],
    now: int,
    limit: int,
) -> Sequence[DueKey]:
    """What is due of all tags but these.

    By tag where there are few, so that a backlog of the excluded ones costs nothing. There may be
    as many tags as alarms; then by wake, unless that meets such a backlog.
    """
    tags = list(itertools.islice(_tags(connection, host, lifecycle), _FEW_TAGS))
    if len(tags) == _FEW_TAGS:
        window = min(limit, _LARGEST_WINDOW) + _SKIPPED
        keys = connection.execute(DUE_BY_WAKE, (host, lifecycle, now, window)).fetchall()
        beside = [key for key in keys if key[1] not in excluded]
        if len(beside) >= limit or len(keys) < window:
            return beside[:limit]
        tags = list(_tags(connection, host, lifecycle))
    return _due_of(connection, host, lifecycle, set(tags) - excluded, now, limit)


def list_rows(
    connection: sqlite3.Connection,
    host: str,
    *,
    tags: Collection[str] | None,
    parked: bool | None,
    wake_before: int | None,
    after: tuple[int, str, str] | None,
    limit: int,
) -> list[AlarmRow]:
    """Up to `limit` rows in dispatch order, strictly after the key `after`."""
    found: list[tuple[Any, ...]] = []
    for sql, parameters, tag in _listing_queries(host, tags, parked=parked):
        bound = list(parameters)
        if wake_before is not None:
            sql += " AND wake_at < ?"
            bound.append(wake_before)
        if after is not None:
            condition, values = _later_than(after, tag)
            sql += f" AND {condition}"
            bound.extend(values)
        sql += " ORDER BY wake_at, tag, id LIMIT ?"
        bound.append(limit)
        found += connection.execute(sql, bound).fetchall()
    return heapq.nsmallest(limit, map(_row, found), key=order_key)


def order_key(row: AlarmRow) -> tuple[int, str, str]:
    """The key of the dispatch order (R3)."""
    return (row.wake_at, row.ref.tag, row.ref.id)


def _listing_queries(
    host: str, tags: Collection[str] | None, *, parked: bool | None
) -> Iterator[tuple[str, Sequence[object], str | None]]:
    """The index ranges that together hold what a listing asks for, each in order.

    Each comes with its parameters, and with its tag where it is a range of one tag.
    """
    select = f"SELECT {_READ_COLUMNS} FROM trio_alarms_alarms"
    if parked:
        sql = f"{select} INDEXED BY trio_alarms_alarms_parked WHERE host = ? AND parked = 1"
        if tags is None:
            yield sql, (host,), None
        else:
            marks = ",".join("?" * len(tags))
            # The plus keeps SQLite from searching by tag, and so from sorting afterwards.
            yield f"{sql} AND +tag IN ({marks})", (host, *sorted(tags)), None
        return
    unparked = "" if parked is None else " AND parked = 0"
    for lifecycle in LIFECYCLES:
        if tags is None:
            sql = f"{select} INDEXED BY trio_alarms_alarms_by_wake WHERE host = ? AND lifecycle = ?"
            yield sql + unparked, (host, lifecycle), None
            continue
        for tag in sorted(tags):
            sql = (
                f"{select} INDEXED BY trio_alarms_alarms_by_tag"
                " WHERE host = ? AND lifecycle = ? AND tag = ?"
            )
            yield sql + unparked, (host, lifecycle, tag), tag


def _later_than(after: tuple[int, str, str], tag: str | None) -> tuple[str, Sequence[object]]:
    """The condition for what comes after a key, as the index of the range can be searched by it."""
    wake_at, after_tag, after_id = after
    if tag is None:
        return "(wake_at, tag, id) > (?, ?, ?)", after
    if tag == after_tag:
        return "(wake_at, id) > (?, ?)", (wake_at, after_id)
    return ("wake_at >= ?" if tag > after_tag else "wake_at > ?"), (wake_at,)


def _tags(connection: sqlite3.Connection, host: str, lifecycle: Lifecycle) -> Iterator[str]:
    """The distinct tags of the host, one index step each."""
    tag = ""
    while True:
        tag = connection.execute(NEXT_TAG, (host, lifecycle, tag)).fetchone()[0]
        if tag is None:
            return
        yield tag


def _row(found: Sequence[Any]) -> AlarmRow:
    return AlarmRow(
        ref=AlarmRef(found[0], found[1]),
        lifecycle=found[2],
        run_at=found[3],
        wake_at=found[4],
        retry_at=found[5],
        repeat_every=found[6],
        progress=found[7],
        attempts=found[8],
        parked=bool(found[9]),
        revision=found[10],
        payload=found[11].decode(errors="surrogateescape"),
    )
