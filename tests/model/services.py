"""The alarms of `dispatchers`, and what their handlers fail with."""

from __future__ import annotations

from typing import Any, Final

from trio_alarms import Alarm, AlarmService, define


class First(AlarmService, key="first"):
    """`dispatchers.FIRST`."""

    plain = Alarm(int)
    skip = Alarm(int, failure="skip-and-advance-repeat")
    sweep = Alarm(int, lifecycle="manual")


class Second(AlarmService, key="second"):
    """`dispatchers.SECOND`."""

    slow = Alarm(int, retry_initial_delay=3, timeout=4.5)
    retry = Alarm(int, failure="retry")
    tidy = Alarm(int, lifecycle="manual", timeout=4.5)


FIRST: Final = (First.plain, First.skip, First.sweep)
SECOND: Final = (Second.slow, Second.retry, Second.tidy)
SET: Final = (
    Alarm(int, tag="plain"),
    Alarm(int, tag="skip", failure="skip-and-advance-repeat"),
    Alarm(int, tag="sweep", lifecycle="manual"),
    Alarm(int, tag="slow", retry_initial_delay=3, timeout=4.5),
    Alarm(int, tag="retry", failure="retry"),
    Alarm(int, tag="tidy", lifecycle="manual", timeout=4.5),
)
ALARMS: Final[dict[str, Alarm[Any]]] = {alarm.tag: alarm for alarm in (*FIRST, *SECOND)}
defined: Final = define(*SET)


class HandlerError(Exception):
    """What handlers fail with."""


class OnFailureError(Exception):
    """What an `on_failure` fails with."""


class ScopeError(Exception):
    """What the body of a `defer_wakes` scope fails with."""
