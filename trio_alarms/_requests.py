"""Checking what a caller passes to the scheduling methods, before anything is stored."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeGuard

import attrs

from ._arguments import chosen, describe, describe_choice, is_of_type, require_integer
from ._codec import encode_json
from ._definitions import Alarm
from ._errors import (
    InvalidAlarmRefError,
    InvalidAlarmRegistrationError,
    InvalidRepeatEveryError,
)
from ._model import AlarmRef, Lifecycle
from ._names import require_name
from ._rules import ScheduleRequest
from ._time import duration_to_ms, instant_to_ms, saturated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ._clock import AlarmClock
    from ._configuration import ResolvedConfiguration


@attrs.define(eq=False)
class ScheduleArguments:
    """The arguments of a scheduling method as they were given."""

    run_at: object
    after: object
    payload: Any
    repeat_every: object
    progress: object
    lifecycle: object


@attrs.frozen
class AlarmView:
    """Which alarms a scheduler can name: a service's own, or with `alarms=None` all of them."""

    service: str = ""
    alarms: Mapping[str, Alarm[Any]] | None = None

    @property
    def tags(self) -> frozenset[str] | None:
        """The tags in view; `None` for all."""
        return None if self.alarms is None else frozenset(self.alarms)

    def tag(self, alarm: object) -> str:
        """The tag that an argument `alarm` names."""
        if _is_definition(alarm):
            return self._tag_of(alarm)
        if self.alarms is not None:
            raise InvalidAlarmRefError(
                f"alarm must be one of the definitions of {self.service!r}, not"
                f" {describe(alarm)}; tag strings work on host.scheduler only"
            )
        if not is_of_type(alarm, str):
            raise InvalidAlarmRefError(
                f"alarm must be an Alarm definition or a tag string, not {describe(alarm)}"
            )
        return require_name(alarm, parameter="alarm", error=InvalidAlarmRefError)

    def ref(self, alarm: object, id: object) -> AlarmRef:
        """The identity that the arguments `alarm` and `id` name."""
        tag = self.tag(alarm)
        return AlarmRef(tag, require_name(id, parameter="id", error=InvalidAlarmRefError))

    def request(
        self,
        alarm: object,
        id: object,
        given: ScheduleArguments,
        *,
        clock: AlarmClock,
        configuration: ResolvedConfiguration,
        max_bytes: int,
    ) -> ScheduleRequest:
        """Everything that a scheduling method was given, checked."""
        ref = self.ref(alarm, id)
        encode: Callable[..., str] = encode_json
        if _is_definition(alarm):
            encode, lifecycle = alarm.encode, alarm.lifecycle
            if given.lifecycle is not None:
                raise InvalidAlarmRefError(
                    "lifecycle can be given with a tag string only; the definition of"
                    f" {ref.tag!r} says {lifecycle!r}"
                )
        else:
            lifecycle = _lifecycle(given.lifecycle)
        if lifecycle == "manual":
            _refuse_for_manual(given)
        progress = given.progress
        if progress is not None:
            progress = require_integer(
                progress, parameter="progress", error=InvalidAlarmRefError, minimum=0
            )
        return ScheduleRequest(
            ref,
            lifecycle,
            _deadline(given, clock),
            _period(given.repeat_every, configuration),
            progress,
            encode(given.payload, max_bytes=max_bytes),
        )

    def _tag_of(self, alarm: Alarm[Any]) -> str:
        try:
            tag = alarm.tag
        except InvalidAlarmRegistrationError as error:
            raise InvalidAlarmRefError(f"alarm must be a definition with a tag; {error}") from error
        if self.alarms is not None and self.alarms.get(tag) is not alarm:
            raise InvalidAlarmRefError(
                f"alarm {tag!r} is not a definition of the service {self.service!r}, which has"
                f" {', '.join(map(repr, sorted(self.alarms)))}"
            )
        return tag


def _is_definition(alarm: object) -> TypeGuard[Alarm[Any]]:
    return isinstance(alarm, Alarm)


def _lifecycle(given: object) -> Lifecycle:
    lifecycle = "automatic" if given is None else chosen(given, ("automatic", "manual"))
    if lifecycle == "automatic":
        return "automatic"
    if lifecycle == "manual":
        return "manual"
    raise InvalidAlarmRefError(
        f"lifecycle must be 'automatic' or 'manual', not {describe_choice(given)}"
    )


def _refuse_for_manual(given: ScheduleArguments) -> None:
    for parameter, value in (("repeat_every", given.repeat_every), ("progress", given.progress)):
        if value is not None:
            raise InvalidAlarmRefError(
                f"{parameter} cannot be given for a manual alarm ({describe(value)} was): its"
                " handler owns its repeats and its progress"
            )


def _deadline(given: ScheduleArguments, clock: AlarmClock) -> int:
    if (given.run_at is None) == (given.after is None):
        what = "neither was" if given.run_at is None else "both were"
        raise InvalidAlarmRefError(
            f"exactly one of run_at (an aware datetime) and after (a duration) is needed; {what}"
            " given"
        )
    if given.run_at is not None:
        return instant_to_ms(given.run_at, parameter="run_at")
    if is_of_type(given.after, datetime):
        raise InvalidAlarmRefError(
            f"after must be a timedelta or a number of seconds, not {describe(given.after)}; an"
            " instant is given as run_at="
        )
    delay = duration_to_ms(given.after, parameter="after", error=InvalidAlarmRefError)
    return saturated(clock.now_ms() + delay)


def _period(value: object, configuration: ResolvedConfiguration) -> int | None:
    if value is None:
        return None
    return duration_to_ms(
        value,
        parameter="repeat_every",
        error=InvalidRepeatEveryError,
        minimum_ms=configuration.minimum_repeat_interval_ms,
    )
