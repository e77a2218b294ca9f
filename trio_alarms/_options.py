"""What a dispatch may be told: how much, how parallel, how long, and what failures mean."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias

import attrs
from attrs.validators import optional

from ._arguments import describe, is_plainly_synchronous, require_integer
from ._errors import InvalidProcessDueAlarmsOptionsError
from ._model import AlarmFailure
from ._time import Duration, duration_to_ms


def _to_ms(parameter: str, value: Duration, *, minimum_ms: int = 0) -> int:
    return duration_to_ms(
        value,
        parameter=parameter,
        error=InvalidProcessDueAlarmsOptionsError,
        minimum_ms=minimum_ms,
    )


def _check_delay(_instance: object, attribute: attrs.Attribute[Any], value: Duration) -> None:
    _to_ms(attribute.name, value)


@attrs.frozen
class Retry:
    """A failure action: retry, with `after` as the first delay, which doubles per attempt.

    Args:
        after: A `Duration` (seconds when a number); `minimum_retry_delay` where it is less.

    Raises:
        InvalidProcessDueAlarmsOptionsError: `after` is no duration.
    """

    after: Duration = attrs.field(validator=_check_delay)

    @property
    def after_ms(self) -> int:
        """`after` in whole milliseconds, rounded up."""
        return _to_ms("after", self.after)


FailureAction: TypeAlias = Literal["retry", "skip-and-advance-repeat"] | Retry
OnFailure: TypeAlias = Callable[[AlarmFailure], Awaitable[FailureAction | None]]


def _check_count(_instance: object, attribute: attrs.Attribute[int], value: int) -> None:
    require_integer(
        value, parameter=attribute.name, error=InvalidProcessDueAlarmsOptionsError, minimum=1
    )


def _check_timeout(_instance: object, attribute: attrs.Attribute[Any], value: Duration) -> None:
    _to_ms(attribute.name, value, minimum_ms=1)


def _check_on_failure(_instance: object, attribute: attrs.Attribute[Any], value: OnFailure) -> None:
    if is_plainly_synchronous(value):
        raise InvalidProcessDueAlarmsOptionsError(
            f"{attribute.name} must be an async callable that takes an AlarmFailure, not"
            f" {describe(value)}"
        )


@attrs.frozen
class DispatchOptions:
    """How one dispatcher works through its due alarms.

    Args:
        limit: How many automatic alarms one dispatch takes at most, an int of at least 1.
        concurrency: How many automatic handlers run at a time, an int of at least 1.
        timeout: A positive `Duration` (seconds when a number) that bounds one run of a handler,
            for alarms that define none; `None` does not bound it.
        retry_failed_after: A `Duration`: the first delay after a failure, for alarms that define
            none; it doubles per attempt and is never under `minimum_retry_delay`.
        on_failure: An async callable that is asked what a failure means, for alarms that do not
            define it; `None`, and its answer `None`, mean `"retry"`.

    Raises:
        InvalidProcessDueAlarmsOptionsError: A field has a bad value.
    """

    limit: int = attrs.field(default=100, validator=_check_count)
    concurrency: int = attrs.field(default=1, validator=_check_count)
    timeout: Duration | None = attrs.field(default=None, validator=optional(_check_timeout))
    retry_failed_after: Duration | None = attrs.field(
        default=None, validator=optional(_check_delay)
    )
    on_failure: OnFailure | None = attrs.field(default=None, validator=optional(_check_on_failure))

    @property
    def timeout_seconds(self) -> float | None:
        """`timeout` in seconds, rounded up to whole milliseconds."""
        if self.timeout is None:
            return None
        return _to_ms("timeout", self.timeout, minimum_ms=1) / 1000

    @property
    def retry_failed_after_ms(self) -> int | None:
        """`retry_failed_after` in whole milliseconds, rounded up."""
        given = self.retry_failed_after
        return None if given is None else _to_ms("retry_failed_after", given)
