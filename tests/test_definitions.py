# ruff: noqa: D101 - the payload classes are examples, as their names say

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import attrs
import cattrs
import pytest

from trio_alarms._definitions import Alarm, BoundHandler, Dispatcher
from trio_alarms._errors import (
    AlarmError,
    InvalidAlarmPayloadError,
    InvalidAlarmRegistrationError,
    StoredAlarmDecodeError,
)
from trio_alarms._model import AlarmDue
from trio_alarms._options import DispatchOptions
from trio_alarms._registrations import AlarmService, define


@attrs.frozen
class Expire:
    user_id: str


class Namesakes:
    """Holds a class of a name that is taken."""

    Expire = attrs.make_class("Expire", ["other"])


class Opaque:
    """A type that only a converter can know."""


def opaque_converter() -> cattrs.Converter:
    """Store each `Opaque` as an empty object."""
    converter = cattrs.Converter()
    converter.register_structure_hook(Opaque, lambda _stored, _type: Opaque())
    converter.register_unstructure_hook(Opaque, lambda _value: {})
    return converter


async def on_expire(_event: AlarmDue[Expire]) -> None:
    """Handle an expiry."""


def test_a_definition_has_the_defaults_of_the_contract() -> None:
    """Without arguments an alarm is automatic, and the dispatch options decide the rest."""
    alarm = Alarm(Expire, tag="app/expire")
    assert alarm.tag == "app/expire"
    assert alarm.payload_type is Expire
    assert alarm.lifecycle == "automatic"
    assert alarm.failure is None
    assert alarm.retry_initial_delay_ms is None
    assert alarm.timeout_seconds is None


def test_durations_are_whole_milliseconds_rounded_up() -> None:
    """A bare number is seconds, a timedelta is itself."""
    alarm = Alarm(Expire, retry_initial_delay=0.0001, timeout=timedelta(seconds=30))
    assert alarm.retry_initial_delay_ms == 1
    assert alarm.timeout_seconds == 30


def test_an_initial_delay_implies_retry() -> None:
    """`retry_initial_delay` says what a failure means, as `failure` does."""
    assert Alarm(Expire, retry_initial_delay=5).failure == "retry"
    assert Alarm(Expire, retry_initial_delay=5, failure="retry").failure == "retry"
    assert Alarm(Expire, failure="skip-and-advance-repeat").failure == "skip-and-advance-repeat"


BAD_DEFINITIONS: list[tuple[dict[str, Any], str]] = [
    ({"tag": ""}, "tag must be a non-empty str of at most 512 characters"),
    ({"tag": 7}, "tag must be"),
    ({"tag": "x" * 513}, "not one of 513 characters"),
    ({"tag": "a\0b"}, "not one with NUL"),
    ({"tag": "a\ud800"}, "not one with a lone surrogate"),
    ({"lifecycle": "Manual"}, "lifecycle must be 'automatic' or 'manual', not 'Manual'"),
    ({"lifecycle": None}, "lifecycle must be 'automatic' or 'manual', not None"),
    ({"failure": "skip"}, "failure must be 'retry' or 'skip-and-advance-repeat', not 'skip'"),
    ({"failure": ["retry"]}, "failure must be"),
    ({"retry_initial_delay": -1}, "retry_initial_delay must be"),
    ({"retry_initial_delay": True}, "retry_initial_delay must be"),
    ({"retry_initial_delay": float("nan")}, "retry_initial_delay must be"),
    (
        {"retry_initial_delay": 1, "failure": "skip-and-advance-repeat"},
        "retry_initial_delay implies failure='retry'",
    ),
    ({"timeout": 0}, "timeout must be"),
    ({"timeout": -1}, "timeout must be"),
    ({"timeout": "30"}, "timeout must be"),
    ({"timeout": timedelta(days=40_000)}, "timeout must be"),
    ({"lifecycle": "manual", "failure": "retry"}, "failure cannot be given for a manual alarm"),
    (
        {"lifecycle": "manual", "retry_initial_delay": 1},
        "retry_initial_delay cannot be given for a manual alarm",
    ),
    ({"upgrade": 7}, "upgrade must be a plain function"),
    ({"upgrade": on_expire}, "upgrade must be a plain function"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD_DEFINITIONS)
def test_a_bad_definition_is_refused_when_it_is_made(arguments: dict[str, Any], words: str) -> None:
    """The error names the argument, what was given and what is allowed (C18)."""
    with pytest.raises(InvalidAlarmRegistrationError) as caught:
        Alarm(Expire, **arguments)
    assert words in str(caught.value)


def test_an_unknown_keyword_is_a_type_error() -> None:
    """A misspelt argument is Python's own error."""
    with pytest.raises(TypeError):
        Alarm(Expire, repeat=5)  # type: ignore[call-overload]  # the case tested


def test_a_manual_alarm_may_have_a_timeout() -> None:
    """Only what decides about failures is refused."""
    assert Alarm(None, lifecycle="manual", timeout=30).timeout_seconds == 30


def test_a_tag_may_have_512_characters() -> None:
    """The bound belongs to what is allowed."""
    assert Alarm(None, tag="é" * 512).tag == "é" * 512


def test_two_members_of_one_name_are_refused_when_the_alarm_is_defined() -> None:
    """No converter is waited for: `_type` could not tell the members apart."""
    with pytest.raises(InvalidAlarmRegistrationError, match=r"two members .* are named Expire"):
        Alarm(Expire | Namesakes.Expire | None)


def test_a_payload_is_stored_as_its_definition_says() -> None:
    """A definition encodes and decodes its own payloads, with its `upgrade`."""
    alarm = Alarm(Expire, upgrade=lambda stored: {"user_id": stored["user_id"].lower()})
    text = alarm.encode(Expire("U"), max_bytes=100)
    assert text == '{"user_id":"U"}'
    assert alarm.decode(text) == Expire("u")
    with pytest.raises(InvalidAlarmPayloadError, match=r"max_payload_bytes"):
        alarm.encode(Expire("U"), max_bytes=5)
    with pytest.raises(StoredAlarmDecodeError, match="upgrade raised KeyError"):
        alarm.decode("{}")


def test_a_type_that_needs_a_converter_is_judged_when_it_has_its_place() -> None:
    """`Alarm` cannot know the converter of its service, which may be what the type needs."""
    alarm = Alarm(Opaque, tag="opaque")
    with pytest.raises(InvalidAlarmRegistrationError, match="Opaque has no JSON form"):
        alarm.encode(Opaque(), max_bytes=10)
    with pytest.raises(InvalidAlarmRegistrationError, match="Opaque has no JSON form"):
        define(alarm)
    define(alarm, converter=opaque_converter())
    assert isinstance(alarm.decode(alarm.encode(Opaque(), max_bytes=10)), Opaque)


def test_an_alarm_keeps_the_converter_that_it_was_defined_with() -> None:
    """Payloads are written and read in one way, however many sets share the alarm."""
    converter = opaque_converter()
    alarm = Alarm(Opaque, tag="opaque")
    define(alarm, converter=converter)
    define(alarm, converter=converter)
    define(alarm)
    with pytest.raises(InvalidAlarmRegistrationError, match="with another converter"):
        define(alarm, converter=opaque_converter())
    plain = Alarm(Expire, tag="expire")
    define(plain)
    with pytest.raises(InvalidAlarmRegistrationError, match="with another converter"):
        define(plain, converter=converter)


def test_a_definition_without_a_tag_says_how_to_give_it_one() -> None:
    """An alarm outside of any service has no attribute's name to be known by."""
    alarm = Alarm(Expire)
    assert repr(alarm) == "<Alarm without a tag>"
    with pytest.raises(InvalidAlarmRegistrationError, match=r"tag=\.\.\., or make it an attribute"):
        _ = alarm.tag


def test_a_definition_shows_its_tag() -> None:
    """A repr names the alarm and no payload."""
    assert repr(Alarm(Expire, tag="app/expire")) == "<Alarm 'app/expire'>"


class Handler:
    """Handles an expiry when it is called."""

    async def __call__(self, _event: AlarmDue[Expire]) -> None:
        """Handle an expiry."""

    async def handle(self, _event: AlarmDue[Expire]) -> None:
        """Handle an expiry."""

    def handle_synchronously(self, _event: AlarmDue[Expire]) -> None:
        """Handle nothing that can be awaited."""


def declared(event: AlarmDue[Expire]) -> Awaitable[None]:
    """Give an awaitable, and say so."""
    return on_expire(event)


async def on_expire_for(_tenant: str, _event: AlarmDue[Expire]) -> None:
    """Handle an expiry of one tenant."""


@pytest.mark.parametrize(
    "handler",
    [
        on_expire,
        declared,
        functools.partial(on_expire_for, "tenant"),
        Handler(),
        Handler().handle,
        lambda event: on_expire(event),  # noqa: PLW0108 - the case tested
    ],
)
def test_any_callable_that_returns_an_awaitable_is_a_handler(
    handler: Callable[[AlarmDue[Expire]], Awaitable[object]],
) -> None:
    """Binding is a value: it holds the alarm and the handler, and changes neither."""
    alarm = Alarm(Expire, tag="expire")
    assert alarm.handled_by(handler) == BoundHandler(alarm, handler)


def synchronous(_event: AlarmDue[Expire]) -> None:
    """Handle nothing that can be awaited."""


async def generator(_event: AlarmDue[Expire]) -> Any:
    """Yield, which a handler cannot."""
    yield


@pytest.mark.parametrize(
    "handler",
    [
        synchronous,
        generator,
        functools.partial(synchronous),
        Handler,
        Handler().handle_synchronously,
        print,
        None,
        "on_expire",
    ],
)
def test_a_plainly_synchronous_handler_is_refused(handler: Any) -> None:
    """What cannot be awaited is refused before any host opens (C18)."""
    with pytest.raises(InvalidAlarmRegistrationError, match="'expire' must be an async callable"):
        Alarm(Expire, tag="expire").handled_by(handler)


class Service(AlarmService, key="service"):
    """One automatic and one manual alarm."""

    expire = Alarm(Expire)
    sweep = Alarm(None, lifecycle="manual", tag="app/sweep")


async def on_sweep(_event: AlarmDue[None]) -> None:
    """Handle a sweep."""


def test_a_dispatcher_knows_its_tags_by_lifecycle() -> None:
    """What a dispatch asks at every turn is known from the start."""
    bound = {"expire": Service.expire.handled_by(on_expire)}
    both = {**bound, "app/sweep": Service.sweep.handled_by(on_sweep)}
    dispatcher = Dispatcher(key="service", handlers=both, options=DispatchOptions())
    assert dispatcher.tags == {"expire", "app/sweep"}
    assert dispatcher.manual_tags == {"app/sweep"}
    assert dispatcher.has_automatic
    del both["expire"]
    assert not Dispatcher(key=None, handlers=both, options=DispatchOptions()).has_automatic


def test_every_error_of_a_definition_is_an_alarm_error() -> None:
    """One `except` catches all that this package raises on purpose."""
    assert issubclass(InvalidAlarmRegistrationError, AlarmError)
