"""What the library takes and gives, in the model's terms."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import attrs

import trio_alarms
from tests.model.dispatching import Due
from tests.model.model import Raised
from tests.model.steps import Override, Policy
from trio_alarms import AlarmDue, AlarmStatus, DispatchResult, ScheduleConfiguration

EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
EPOCH_MS: Final = round(EPOCH.timestamp() * 1000)


def at(milliseconds: int) -> datetime:
    """The model's time as an instant."""
    return EPOCH + timedelta(milliseconds=milliseconds)


def since(when: datetime | None) -> Any:
    """An instant as the model's time."""
    return None if when is None else round((when - EPOCH) / timedelta(milliseconds=1))


def seconds(milliseconds: int | None) -> float | None:
    """A duration of a script as the library takes it."""
    return None if milliseconds is None else milliseconds / 1000


def configuration(given: Policy | Override) -> ScheduleConfiguration:
    """A script's configuration as the library takes it."""
    fields: dict[str, Any] = {
        name: value if name == "unchanged_attempt_budget" else seconds(value)
        for name, value in attrs.asdict(given).items()
    }
    return ScheduleConfiguration(**fields)


def due_of(event: AlarmDue[Any] | None) -> Any:
    """An event in the model's terms."""
    if event is None:
        return None
    return Due(event.tag, event.id, event.payload, since(event.scheduled_at), event.attempts)


def status_of(status: AlarmStatus) -> tuple[Any, ...]:
    """A status in the model's terms."""
    repeat = status.repeat_every
    return (
        since(status.run_at),
        since(status.retry_at),
        since(status.wake_at),
        status.attempts,
        status.parked,
        status.lifecycle,
        None if repeat is None else round(repeat / timedelta(milliseconds=1)),
        status.progress,
    )


def result_of(result: DispatchResult, *, several: bool) -> tuple[Any, ...]:
    """A result in the model's terms; that of several dispatchers is in no order."""
    handled = [due_of(event) for event in result.handled]
    failed = [
        (failure.tag, failure.id, public_name(failure.error), due_of(failure.event))
        for failure in result.failed
    ]
    if several:
        handled.sort(key=repr)
        failed.sort(key=repr)
    parked = sorted((parked.attempts, since(parked.retry_at)) for parked in result.parked)
    return handled, failed, parked


def public_name(error: BaseException) -> str:
    """The name of its class, or of the public one that it is a case of."""
    names = [known.__name__ for known in type(error).__mro__]
    return next((name for name in names if name in trio_alarms.__all__), names[0])


def raised(error: BaseException) -> Raised:
    """An error in the model's terms: bare when single, in groups when several (R30)."""
    if not isinstance(error, BaseExceptionGroup):
        return Raised((public_name(error),), getattr(error, "inner", ()))
    assert len(error.exceptions) > 1, "a single error is raised bare"
    return Raised(tuple(sorted(name for one in error.exceptions for name in raised(one).names)))
