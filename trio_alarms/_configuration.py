"""The scheduling policy: its bounds, its defaults, and how a task overrides it (R1, R2)."""

from __future__ import annotations

from contextvars import ContextVar
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import attrs
from attrs.validators import optional

from ._arguments import describe, require_integer
from ._errors import InvalidScheduleConfigurationError
from ._time import Duration, duration_to_ms

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_SECOND_MS = 1000
_MINUTE_MS = 60 * _SECOND_MS
_HOUR_MS = 60 * _MINUTE_MS

_LEAST_MS = {
    "in_flight_recovery": 1,
    "minimum_retry_delay": _SECOND_MS,
    "parked_retry_delay": _HOUR_MS,
    "minimum_repeat_interval": _SECOND_MS,
}


def _to_ms(parameter: str, value: Duration) -> int:
    return duration_to_ms(
        value,
        parameter=parameter,
        error=InvalidScheduleConfigurationError,
        minimum_ms=_LEAST_MS[parameter],
    )


def _check_duration(_instance: object, attribute: attrs.Attribute[Any], value: Duration) -> None:
    _to_ms(attribute.name, value)


def _check_flag(_instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidScheduleConfigurationError(
            f"{attribute.name} must be True, False or None, not {describe(value)}"
        )


def _check_budget(_instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    require_integer(
        value, parameter=attribute.name, error=InvalidScheduleConfigurationError, minimum=1
    )


@attrs.frozen(cache_hash=True)
class ScheduleConfiguration:
    """The scheduling policy of a host, or a task's override of it; `None` decides nothing.

    Each field is resolved at each use: the task's override, else the host's configuration, else
    the default.

    Args:
        dispatch_after_event: Whether a host looks for due alarms after every event. Default False.
        in_flight_recovery: How long the guard stands before work in flight counts as lost, a
            positive `Duration`. Default 1 s.
        minimum_retry_delay: The first delay after a failure, at least 1 s. Default 1 s.
        unchanged_attempt_budget: After how many unchanged attempts an alarm is parked, an int of
            at least 1. Default 8.
        parked_retry_delay: The delay of parked alarms and the bound of all delays, at least 1 h
            and at least `minimum_retry_delay`. Default 1 h.
        minimum_repeat_interval: The least `repeat_every`, at least 1 s. Default 60 s.

    Raises:
        InvalidScheduleConfigurationError: A field is out of bounds.
    """

    dispatch_after_event: bool | None = attrs.field(default=None, validator=optional(_check_flag))
    in_flight_recovery: Duration | None = attrs.field(
        default=None, validator=optional(_check_duration)
    )
    minimum_retry_delay: Duration | None = attrs.field(
        default=None, validator=optional(_check_duration)
    )
    unchanged_attempt_budget: int | None = attrs.field(
        default=None, validator=optional(_check_budget)
    )
    parked_retry_delay: Duration | None = attrs.field(
        default=None, validator=optional(_check_duration)
    )
    minimum_repeat_interval: Duration | None = attrs.field(
        default=None, validator=optional(_check_duration)
    )

    @cached_property
    def _resolved(self) -> ResolvedConfiguration:
        """What it resolves to where no task overrides it, which is nearly everywhere."""
        return _resolve(self, None)


@attrs.frozen
class ResolvedConfiguration:
    """The policy in force: every field decided, durations in whole milliseconds.

    Invariant: `parked_retry_delay_ms >= minimum_retry_delay_ms`.
    """

    dispatch_after_event: bool = False
    in_flight_recovery_ms: int = _SECOND_MS
    minimum_retry_delay_ms: int = _SECOND_MS
    unchanged_attempt_budget: int = 8
    parked_retry_delay_ms: int = _HOUR_MS
    minimum_repeat_interval_ms: int = _MINUTE_MS


DEFAULT_CONFIGURATION = ResolvedConfiguration()


@attrs.frozen(eq=False)
class _Override:
    """What a `with schedule_configuration(...)` block has put in force in its context."""

    configuration: ScheduleConfiguration
    owner: _ConfigurationScope
    previous: _Override | None


_current: ContextVar[_Override | None] = ContextVar(
    "trio_alarms_schedule_configuration", default=None
)


class _ConfigurationScope:
    """The block of `schedule_configuration`; stateless, so that one may be entered anywhere."""

    def __init__(self, configuration: ScheduleConfiguration) -> None:
        self._configuration = configuration

    def __enter__(self) -> None:
        previous = _current.get()
        merged = (
            self._configuration
            if previous is None
            else _merge(previous.configuration, self._configuration)
        )
        _current.set(_Override(merged, self, previous))

    def __exit__(self, *_exception: object) -> None:
        # Not `reset(token)`, which fails when clean-up runs in another context; there the
        # override in force is not ours, and stays.
        current = _current.get()
        if current is not None and current.owner is self:
            _current.set(current.previous)


def schedule_configuration(configuration: ScheduleConfiguration) -> AbstractContextManager[None]:
    """Override the policy, field by field, for the current task and what it starts.

    Nested overrides merge: a field that the inner one leaves `None` keeps the outer one's value.
    Nothing is stored. How two fields relate is checked where the policy is used.

    Args:
        configuration: The fields to override; those that are `None` stay as they are.

    Raises:
        InvalidScheduleConfigurationError: `configuration` is no `ScheduleConfiguration`.
    """
    return _ConfigurationScope(_require_configuration(configuration))


def resolve_configuration(host: ScheduleConfiguration) -> ResolvedConfiguration:
    """Resolve the policy for the current task: its override, else the host's, else the default.

    Args:
        host: The configuration given to the host.

    Raises:
        InvalidScheduleConfigurationError: `host` is no `ScheduleConfiguration`, or
            `parked_retry_delay` is less than `minimum_retry_delay`.
    """
    override = _current.get()
    if override is None:
        return _require_configuration(host)._resolved  # noqa: SLF001 - one module, one concern
    return _resolve(_require_configuration(host), override.configuration)


# Values are resolved at every use and rarely differ; failures are not remembered.
@lru_cache(maxsize=64)
def _resolve(
    host: ScheduleConfiguration, override: ScheduleConfiguration | None
) -> ResolvedConfiguration:
    given = host if override is None else _merge(host, override)
    decided: dict[str, Any] = {}
    for name, value in _given_fields(given).items():
        if name in _LEAST_MS:
            decided[f"{name}_ms"] = _to_ms(name, value)
        else:
            decided[name] = value
    resolved = attrs.evolve(DEFAULT_CONFIGURATION, **decided)
    if resolved.parked_retry_delay_ms < resolved.minimum_retry_delay_ms:
        raise InvalidScheduleConfigurationError(
            "parked_retry_delay must be at least minimum_retry_delay, but resolves to"
            f" {resolved.parked_retry_delay_ms / 1000:g} s where minimum_retry_delay is"
            f" {resolved.minimum_retry_delay_ms / 1000:g} s"
        )
    return resolved


def _merge(base: ScheduleConfiguration, over: ScheduleConfiguration) -> ScheduleConfiguration:
    return attrs.evolve(base, **_given_fields(over))


def _given_fields(configuration: ScheduleConfiguration) -> dict[str, Any]:
    fields = attrs.asdict(configuration, recurse=False)
    return {name: value for name, value in fields.items() if value is not None}


def _require_configuration(value: object) -> ScheduleConfiguration:
    if not isinstance(value, ScheduleConfiguration):
        raise InvalidScheduleConfigurationError(
            f"configuration must be a ScheduleConfiguration, not {describe(value)}"
        )
    return value
