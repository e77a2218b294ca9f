"""How the database is used: `StorageOptions`."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias, get_args

import attrs

from ._arguments import chosen, describe_choice, require_integer
from ._errors import InvalidScheduleConfigurationError
from ._time import Duration, duration_to_ms

Synchronous: TypeAlias = Literal["full", "normal", "off"]
ExecutorName: TypeAlias = Literal["auto", "thread", "inline"]

_CHOICES: Final = {"synchronous": get_args(Synchronous), "executor": get_args(ExecutorName)}


def _require_choice(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    allowed = _CHOICES[attribute.name]
    if chosen(value, allowed) is None:
        raise InvalidScheduleConfigurationError(
            f"{attribute.name} must be one of {', '.join(map(repr, allowed))}, not"
            f" {describe_choice(value)}"
        )


def _require_positive(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    require_integer(
        value, parameter=attribute.name, error=InvalidScheduleConfigurationError, minimum=1
    )


def _require_duration(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    duration_to_ms(value, parameter=attribute.name, error=InvalidScheduleConfigurationError)


@attrs.frozen(kw_only=True)
class StorageOptions:
    """How a host uses its database; one set per file and process.

    Args:
        synchronous: SQLite's `PRAGMA synchronous`. `"full"`: what returned survives a loss of
            power; `"normal"` and `"off"` trade that for speed (a killed process loses nothing).
        busy_timeout: How long, in seconds of Trio time, an operation waits for another process's
            lock before it fails.
        executor: `"thread"` runs SQLite in a worker thread, `"inline"` in the event loop's
            thread, `"auto"` inline under a `MockClock` and else in a thread.
        max_payload_bytes: The most that a payload's stored UTF-8 text may take, in bytes.

    Raises:
        InvalidScheduleConfigurationError: A value is not one of these.
    """

    synchronous: Synchronous = attrs.field(default="full", validator=_require_choice)
    busy_timeout: Duration = attrs.field(default=5.0, validator=_require_duration)
    executor: ExecutorName = attrs.field(default="auto", validator=_require_choice)
    max_payload_bytes: int = attrs.field(default=1_048_576, validator=_require_positive)

    @property
    def busy_timeout_seconds(self) -> float:
        """`busy_timeout` in seconds."""
        milliseconds = duration_to_ms(
            self.busy_timeout, parameter="busy_timeout", error=InvalidScheduleConfigurationError
        )
        return milliseconds / 1000
