"""The frozen values: references, rows, statuses, events and results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

import attrs

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from ._events import EventScope
    from ._host import AlarmHost

P = TypeVar("P")

Lifecycle: TypeAlias = Literal["automatic", "manual"]

NO_PROGRESS = -1


@attrs.frozen(cache_hash=True)
class AlarmRef:
    """The identity of an alarm within its host."""

    tag: str
    id: str


@attrs.frozen
class AlarmRow:
    """An alarm as it is stored; every instant and duration in whole milliseconds (R3).

    `revision` is the guard of every acknowledgement and failure: it is new at each schedule,
    failure and repeat completion, and never comes back.
    """

    ref: AlarmRef
    lifecycle: Lifecycle
    run_at: int
    wake_at: int
    retry_at: int | None
    repeat_every: int | None
    progress: int
    attempts: int
    parked: bool
    revision: bytes
    payload: str


@attrs.frozen
class AlarmStatus:
    """What is known about a scheduled alarm.

    `run_at` is its deadline, `retry_at` where back-off or parking holds it until, and `wake_at`
    the later of the two: when it is dispatched. `progress` is `None` when there is none.
    """

    run_at: datetime
    retry_at: datetime | None
    wake_at: datetime
    attempts: int
    parked: bool
    lifecycle: Lifecycle
    repeat_every: timedelta | None
    progress: int | None


@attrs.frozen
class AlarmRecord:
    """One stored alarm as `list_alarms` returns it; `payload` is the undecoded JSON text."""

    ref: AlarmRef
    status: AlarmStatus
    payload: str


@attrs.frozen
class AlarmDue(Generic[P]):
    """What a handler receives: one alarm that is due.

    `attempts` counts the earlier unchanged attempts, `scheduled_at` stays the deadline on every
    retry, and `scope` is the event scope of the pass that dispatches.
    """

    tag: str
    id: str
    payload: P
    scheduled_at: datetime
    attempts: int
    host: AlarmHost = attrs.field(repr=False, eq=False)
    scope: EventScope[Any] = attrs.field(repr=False, eq=False)


@attrs.frozen
class AlarmFailure:
    """A failed handling; `event` is `None` when the stored alarm could not be decoded."""

    tag: str
    id: str
    error: Exception
    event: AlarmDue[Any] | None


@attrs.frozen
class AlarmParked:
    """An alarm that was newly parked.

    Content-free on purpose: no identifiers, payload or error text, so that it can be sent to
    any monitoring. `retry_at` is the effective wake.
    """

    attempts: int
    retry_at: datetime


@attrs.frozen
class DispatchResult:
    """What one dispatch did; each tuple is in the order in which it happened."""

    handled: tuple[AlarmDue[Any], ...] = ()
    failed: tuple[AlarmFailure, ...] = ()
    parked: tuple[AlarmParked, ...] = ()
