"""What type checkers say about definitions and handlers; checked, never run.

A `type: ignore` is an assertion: without the error that it names it is itself an error.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import functools
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any, assert_type

import attrs

from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmFailure,
    AlarmRegistration,
    AlarmService,
    BoundHandler,
    DispatchOptions,
    FailureAction,
    Retry,
    define,
    merge_all,
)


@attrs.frozen
class Expire:
    """One payload."""

    user_id: str


@attrs.frozen
class Renew:
    """Another payload."""

    months: int


class Expirations(AlarmService, key="app/expirations"):
    """Alarms of each form of payload type."""

    expire = Alarm(Expire)
    names = Alarm(list[str], failure="skip-and-advance-repeat", timeout=30)
    sweep = Alarm(None, lifecycle="manual", tag="app/sweep")
    change: Alarm[Expire | Renew] = Alarm(Expire | Renew, retry_initial_delay=timedelta(seconds=5))
    anything: Alarm[Any] = Alarm(Any, upgrade=lambda stored: stored)


assert_type(Expirations.expire, Alarm[Expire])
assert_type(Expirations.names, Alarm[list[str]])
assert_type(Expirations.sweep, Alarm[None])
assert_type(Expirations.change, Alarm[Expire | Renew])
assert_type(Expirations.anything, Alarm[Any])
assert_type(Expirations.expire.tag, str)
assert_type(Expirations.expire.decode("{}"), Expire)

Alarm()  # type: ignore[call-overload]  # a payload type is needed
Alarm(Expire, lifecycle="once")  # type: ignore[call-overload]  # no lifecycle
Alarm(Expire, failure="skip")  # type: ignore[call-overload]  # no failure policy
Alarm(Expire, timeout="30")  # type: ignore[call-overload]  # no duration
Alarm(Expire, tag=7)  # type: ignore[call-overload]  # no tag
Alarm(Expire, repeat=5)  # type: ignore[call-overload]  # no such argument
Alarm(Expire, "expire")  # type: ignore[call-overload]  # only the type has a place


async def on_expire(event: AlarmDue[Expire]) -> None:
    """Take one payload type."""
    assert_type(event.payload, Expire)
    assert_type(event.attempts, int)


async def on_names(event: AlarmDue[list[str]]) -> int:
    """Return something, which nobody looks at."""
    return len(event.payload)


async def on_sweep(event: AlarmDue[None]) -> None:
    """Take no payload."""
    assert_type(event.payload, None)


async def on_change(event: AlarmDue[Expire | Renew]) -> None:
    """Take a union."""
    assert_type(event.payload, Expire | Renew)


async def on_anything(_event: AlarmDue[Any]) -> None:
    """Take every payload."""


async def on_two(_event: AlarmDue[Expire], _more: int) -> None:
    """Take too much."""


def synchronous(_event: AlarmDue[Expire]) -> None:
    """Return nothing to await."""


def returns_awaitable(event: AlarmDue[Expire]) -> Awaitable[None]:
    """Return something to await."""
    return on_expire(event)


class Handler:
    """Handle when called."""

    async def __call__(self, event: AlarmDue[Expire]) -> None:
        """Handle an expiry."""


async def on_expire_for(_tenant: str, _event: AlarmDue[Expire]) -> None:
    """Take an argument of its own first."""


assert_type(Expirations.expire.handled_by(on_expire), BoundHandler)
Expirations.expire.handled_by(on_anything)
Expirations.expire.handled_by(returns_awaitable)
Expirations.expire.handled_by(Handler())
Expirations.expire.handled_by(functools.partial(on_expire_for, "tenant"))
Expirations.expire.handled_by(lambda event: on_expire(event))  # noqa: PLW0108 - the case shown
Expirations.names.handled_by(on_names)
Expirations.sweep.handled_by(on_sweep)
Expirations.change.handled_by(on_change)
Expirations.anything.handled_by(on_expire)

Expirations.expire.handled_by(on_names)  # type: ignore[arg-type]  # another payload type
Expirations.expire.handled_by(on_sweep)  # type: ignore[arg-type]  # no payload is expected
Expirations.sweep.handled_by(on_expire)  # type: ignore[arg-type]  # there is no payload
Expirations.change.handled_by(on_expire)  # type: ignore[arg-type]  # one member only
Expirations.expire.handled_by(on_two)  # type: ignore[arg-type]  # an argument too many
Expirations.expire.handled_by(synchronous)  # type: ignore[arg-type]  # nothing to await
Expirations.expire.handled_by(on_expire_for)  # type: ignore[arg-type]  # an argument too many

registration = Expirations.handlers(
    Expirations.expire.handled_by(on_expire),
    options=DispatchOptions(limit=100),
)
assert_type(registration, AlarmRegistration)
assert_type(merge_all(registration, registration), AlarmRegistration)

Expirations.handlers(on_expire)  # type: ignore[arg-type]  # not bound to an alarm
Expirations.handlers(options=None)  # type: ignore[arg-type]  # no options
Expirations.handlers(limit=5)  # type: ignore[call-arg]  # options have their own class

handler_set = define(Expirations.expire).handlers(Expirations.expire.handled_by(on_expire))
merge_all(handler_set)  # type: ignore[arg-type]  # a handler set stands by itself
define("expire")  # type: ignore[arg-type]  # no definition


class NoKey(AlarmService, key=7):  # type: ignore[arg-type]  # no key
    """A service of a bad key."""


async def on_failure(failure: AlarmFailure) -> FailureAction | None:
    """Say what a failure means."""
    return Retry(after=5) if failure.event is None else "skip-and-advance-repeat"


async def on_failure_badly(_failure: AlarmFailure) -> str:
    """Say what no failure can mean."""
    return "ignore"


DispatchOptions(on_failure=on_failure, timeout=timedelta(seconds=1), retry_failed_after=2.5)
DispatchOptions(on_failure=on_failure_badly)  # type: ignore[arg-type]  # no failure action
DispatchOptions(concurrency="4")  # type: ignore[arg-type]  # no int
