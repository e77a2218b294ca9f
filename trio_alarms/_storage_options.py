"""How the database is used: `StorageOptions`."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import attrs

from ._errors import InvalidScheduleConfigurationError
from ._time import Duration, duration_to_ms

Synchronous: TypeAlias = Literal["full", "normal", "off"]
ExecutorName: TypeAlias = Literal["auto", "thread", "inline"]


def _one_of(choices: object) -> attrs.AttrsInstance | object:
    allowed = get_args(choices)

    def check(_: object, attribute: attrs.Attribute[str], value: object) -> None:
        if value not in allowed:
            raise InvalidScheduleConfigurationError(
                f"{attribute.name} must be one of {', '.join(map(repr, allowed))}, not {value!r}"
            )

    return check


def _positive_int(_: object, attribute: attrs.Attribute[int], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidScheduleConfigurationError(
            f"{attribute.name} must be an int of at least 1, not {value!r}"
        )


def _duration(_: object, attribute: attrs.Attribute[Duration], value: object) -> None:
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

    synchronous: Synchronous = attrs.field(default="full", validator=_one_of(Synchronous))
    busy_timeout: Duration = attrs.field(default=5.0, validator=_duration)
    executor: ExecutorName = attrs.field(default="auto", validator=_one_of(ExecutorName))
    max_payload_bytes: int = attrs.field(default=1_048_576, validator=_positive_int)

    @property
    def busy_timeout_seconds(self) -> float:
        """`busy_timeout` in seconds."""
        milliseconds = duration_to_ms(
            self.busy_timeout, parameter="busy_timeout", error=InvalidScheduleConfigurationError
        )
        return milliseconds / 1000
