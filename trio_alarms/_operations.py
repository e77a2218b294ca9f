"""The scheduler's operations on one alarm: read the row, apply the rule, write it.

Each is a synchronous function on an open `Session`, made by a function that takes what the loop
knows; so a whole operation is one trip to where the connection lives.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from . import _rules
from ._errors import StoredAlarmDecodeError
from ._model import NO_PROGRESS, AlarmRecord, AlarmRef, AlarmRow, AlarmStatus
from ._rules import Circumstances, ScheduleRequest
from ._time import instant_from_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._configuration import ResolvedConfiguration
    from ._handling import Handling
    from ._store._session import Session

_REVISION_BYTES: Final = 16


class ScheduleRule(Protocol):
    """One of `_rules.schedule`, `schedule_earlier` and `ensure`."""

    def __call__(
        self, request: ScheduleRequest, existing: AlarmRow | None, circumstances: Circumstances
    ) -> AlarmRow | None: ...


StatusOperation: TypeAlias = "Callable[[Session], AlarmStatus]"


def new_revision() -> bytes:
    """A revision that never was and never comes back, over all processes (R20)."""
    return os.urandom(_REVISION_BYTES)


def status_of(row: AlarmRow) -> AlarmStatus:
    """The public status of a row.

    Raises:
        StoredAlarmDecodeError: Somebody else has stored a value that no release of ours writes.
    """
    try:
        return _status_of(row)
    except (OverflowError, TypeError, ValueError) as error:
        raise StoredAlarmDecodeError(
            f"the stored alarm {row.ref.tag!r}, {row.ref.id!r} has an instant, a duration or a"
            f" count out of range: {error}"
        ) from error


def _status_of(row: AlarmRow) -> AlarmStatus:
    run_at = instant_from_ms(row.run_at)
    return AlarmStatus(
        run_at=run_at,
        retry_at=None if row.retry_at is None else instant_from_ms(row.retry_at),
        wake_at=run_at if row.wake_at == row.run_at else instant_from_ms(row.wake_at),
        attempts=row.attempts,
        parked=row.parked,
        lifecycle=row.lifecycle,
        repeat_every=(
            None if row.repeat_every is None else timedelta(milliseconds=row.repeat_every)
        ),
        progress=None if row.progress == NO_PROGRESS else row.progress,
    )


def record_of(row: AlarmRow) -> AlarmRecord:
    """The public record of a row."""
    return AlarmRecord(ref=row.ref, status=status_of(row), payload=row.payload)


def scheduling(
    rule: ScheduleRule,
    request: ScheduleRequest,
    configuration: ResolvedConfiguration,
    handling: Handling | None,
) -> StatusOperation:
    """Apply a scheduling rule to the stored row (R4, R6, R6a)."""
    source = None if handling is None else handling.row

    def operation(session: Session) -> AlarmStatus:
        existing = session.read(request.ref)
        circumstances = Circumstances(
            now=session.now,
            configuration=configuration,
            revision=new_revision(),
            source=source,
            in_hand=is_in_hand(session, existing),
        )
        row = rule(request, existing, circumstances)
        if row is not None:
            session.put(existing, row)
            return status_of(row)
        if existing is None:
            raise AssertionError("a rule that writes nothing has found a row")
        return status_of(existing)

    return operation


def cancelling(ref: AlarmRef) -> Callable[[Session], bool]:
    """Remove the row with its attempt state (R9)."""
    return lambda session: session.remove(ref)


def acknowledging(
    row: AlarmRow, configuration: ResolvedConfiguration, *, completed_at: int | None = None
) -> Callable[[Session], bool]:
    """Acknowledge an occurrence whose revision still stands (R28); whether it stood."""

    def operation(session: Session) -> bool:
        existing = session.read(row.ref)
        if existing is None or existing.revision != row.revision:
            return False
        following = _rules.complete(
            existing,
            now=session.now if completed_at is None else completed_at,
            configuration=configuration,
            revision=new_revision(),
        )
        if following is None:
            session.remove_row(row.ref, existing)
        else:
            session.put(existing, following)
        return True

    return operation


def failing(
    row: AlarmRow, configuration: ResolvedConfiguration, initial: int | None
) -> Callable[[Session], AlarmRow | None]:
    """Charge a failed attempt where the revision still stands (R28); the row as it is then."""

    def operation(session: Session) -> AlarmRow | None:
        existing = session.read(row.ref)
        if existing is None or existing.revision != row.revision:
            return None
        failed = _rules.fail(
            existing,
            now=session.now,
            configuration=configuration,
            revision=new_revision(),
            initial=initial,
        )
        session.put(existing, failed)
        return failed

    return operation


def is_in_hand(session: Session, row: AlarmRow | None) -> bool:
    """Whether the stored row is the one that a handler of this process has in hand (R6)."""
    return row is not None and session.in_hand.get(row.ref) == row.revision
