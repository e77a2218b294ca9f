# ruff: noqa: D101 - the payload classes are examples, as their names say

from __future__ import annotations

from typing import Any, cast

import attrs
import cattrs
import pytest

from trio_alarms._definitions import Alarm
from trio_alarms._errors import (
    InvalidAlarmRegistrationError,
    InvalidProcessDueAlarmsOptionsError,
)
from trio_alarms._model import AlarmDue, DispatchResult
from trio_alarms._options import DispatchOptions
from trio_alarms._registrations import (
    AlarmRegistration,
    AlarmService,
    HandlerSet,
    define,
    merge_all,
)


@attrs.frozen
class Expire:
    user_id: str


class Expirations(AlarmService, key="app/expirations"):
    """Two automatic alarms and a manual one."""

    expire = Alarm(Expire)
    digest = Alarm(list[str], failure="skip-and-advance-repeat", timeout=30)
    sweep = Alarm(None, lifecycle="manual", tag="app/sweep")


class Reminders(AlarmService):
    """Named by its class."""

    remind = Alarm(Expire)


async def handle(_event: AlarmDue[Any]) -> None:
    """Handle anything."""


def expirations(options: DispatchOptions | None = None) -> AlarmRegistration:
    """All of `Expirations`, handled."""
    bound = [alarm.handled_by(handle) for alarm in Expirations.__alarms__.values()]
    return Expirations.handlers(*bound, options=options or DispatchOptions())


def reminders() -> AlarmRegistration:
    """All of `Reminders`, handled."""
    return Reminders.handlers(Reminders.remind.handled_by(handle))


def test_the_attribute_gives_the_default_tag() -> None:
    """An alarm is known by its tag, or else by its attribute's name."""
    assert Expirations.expire.tag == "expire"
    assert Expirations.sweep.tag == "app/sweep"
    assert Expirations.__alarms__ == {
        "expire": Expirations.expire,
        "digest": Expirations.digest,
        "app/sweep": Expirations.sweep,
    }


def test_the_qualified_name_is_the_default_key() -> None:
    """A service is named by its key, or else by its class."""

    class Inner(AlarmService):
        """Named by where it stands."""

    assert Expirations.__key__ == "app/expirations"
    assert Reminders.__key__ == "Reminders"
    assert Inner.__key__.endswith("<locals>.Inner")


def test_a_registration_is_a_value() -> None:
    """Composing gives equal values each time and changes neither alarms nor services (R31)."""
    options = DispatchOptions(limit=7)
    first, second = expirations(options), expirations(options)
    assert first == second
    assert hash(first) == hash(second)
    (dispatcher,) = first.dispatchers
    assert dispatcher.key == "app/expirations"
    assert dispatcher.options == options
    assert dispatcher.tags == {"expire", "digest", "app/sweep"}
    assert first.services == (Expirations,)
    with pytest.raises(TypeError):
        cast("dict[str, object]", dispatcher.handlers)["new"] = None
    with pytest.raises(TypeError):
        cast("dict[str, object]", Expirations.__alarms__)["new"] = None
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        first.services = ()  # type: ignore[misc]  # the case tested


def test_the_order_of_handlers_does_not_matter() -> None:
    """Handlers are found by their alarm."""
    bound = [alarm.handled_by(handle) for alarm in Expirations.__alarms__.values()]
    assert Expirations.handlers(*reversed(bound)) == Expirations.handlers(*bound)


class Strangers(AlarmService, key="strangers"):
    """Has an alarm of a tag that another service uses too."""

    expire = Alarm(Expire)


def test_each_alarm_has_exactly_one_handler() -> None:
    """A missing, doubled or foreign handler is refused before any host opens."""
    bound = [alarm.handled_by(handle) for alarm in Expirations.__alarms__.values()]
    with pytest.raises(InvalidAlarmRegistrationError, match=r"'digest', 'app/sweep' of .* have no"):
        Expirations.handlers(bound[0])
    with pytest.raises(InvalidAlarmRegistrationError, match="'expire' of Expirations has two"):
        Expirations.handlers(*bound, bound[0])
    foreign = Strangers.expire.handled_by(handle)
    with pytest.raises(InvalidAlarmRegistrationError, match="'expire'> is no alarm of Expirations"):
        Expirations.handlers(foreign, *bound[1:])


@pytest.mark.parametrize("wrong", [handle, None, Expirations.expire, [Expirations.expire]])
def test_a_handler_must_be_bound_to_its_alarm(wrong: Any) -> None:
    """What is no result of `handled_by` is refused, naming what it is."""
    with pytest.raises(InvalidAlarmRegistrationError, match="handlers takes what handled_by"):
        Expirations.handlers(wrong)


@pytest.mark.parametrize("options", [None, {"limit": 5}, 5])
def test_options_must_be_dispatch_options(options: Any) -> None:
    """Options of another type are refused when the handlers are composed."""
    with pytest.raises(InvalidProcessDueAlarmsOptionsError, match="options must be DispatchOpt"):
        Reminders.handlers(Reminders.remind.handled_by(handle), options=options)


@pytest.mark.parametrize("key", ["", 7, "x" * 513, "a\0", "\ud800"])
def test_a_bad_key_is_refused(key: Any) -> None:
    """A service's name follows the rules for tags (C18)."""
    with pytest.raises(InvalidAlarmRegistrationError, match="key must be a non-empty str"):
        type("Service", (AlarmService,), {}, key=key)


def test_an_unknown_keyword_of_a_service_is_a_type_error() -> None:
    """A misspelt keyword is Python's own error."""
    with pytest.raises(TypeError):
        type("Service", (AlarmService,), {}, name="service")


@pytest.mark.parametrize("converter", [cattrs.Converter, "json", object()])
def test_a_converter_must_be_one(converter: Any) -> None:
    """A class in place of an instance is noticed when the service is defined."""
    with pytest.raises(InvalidAlarmRegistrationError, match="converter must be a cattrs converter"):
        type("Service", (AlarmService,), {}, converter=converter)
    with pytest.raises(InvalidAlarmRegistrationError, match="converter must be a cattrs converter"):
        define(converter=converter)


def test_a_service_structures_payloads_with_its_converter() -> None:
    """The converter is used as it is, with its laxity."""

    class Lax(AlarmService, key="lax", converter=cattrs.Converter()):
        """Takes "7" for an int."""

        count = Alarm(int)

    class Strict(AlarmService, key="strict"):
        """Does not."""

        count = Alarm(int)

    assert Lax.count.decode('"7"') == 7
    with pytest.raises(Exception, match="expected an integer"):
        Strict.count.decode('"7"')


def test_a_payload_type_without_json_form_is_refused_with_its_service() -> None:
    """The class statement fails with our error, not with one that wraps it."""
    with pytest.raises(InvalidAlarmRegistrationError, match="complex has no JSON form"):
        type("Service", (AlarmService,), {"wrong": Alarm(complex)})


def test_two_alarms_of_a_service_cannot_share_a_tag() -> None:
    """A tag leads to one alarm."""
    alarms = {"one": Alarm(None, tag="two"), "two": Alarm(None)}
    with pytest.raises(InvalidAlarmRegistrationError, match="two alarms of Service have the tag"):
        type("Service", (AlarmService,), alarms)


def test_an_alarm_belongs_to_one_attribute_of_one_service() -> None:
    """One definition cannot have two tags or two converters."""
    with pytest.raises(InvalidAlarmRegistrationError, match="already an alarm of Expirations"):
        type("Service", (AlarmService,), {"expire": Expirations.expire})
    alarm = Alarm(None)
    with pytest.raises(InvalidAlarmRegistrationError, match="already an alarm of Service"):
        type("Service", (AlarmService,), {"one": alarm, "two": alarm})


def test_an_attribute_cannot_hide_what_a_service_is_composed_with() -> None:
    """An alarm named `handlers` would take that method away."""
    with pytest.raises(InvalidAlarmRegistrationError, match="hides the method"):
        type("Service", (AlarmService,), {"handlers": Alarm(None)})


def test_a_service_with_alarms_cannot_be_subclassed() -> None:
    """The alarms of a service stand in its own body, also those of a mix-in."""
    with pytest.raises(InvalidAlarmRegistrationError, match="inherits alarms from Expirations"):
        type("Service", (Expirations,), {})
    mix_in = type("MixIn", (), {"expire": Alarm(Expire)})
    with pytest.raises(InvalidAlarmRegistrationError, match="inherits alarms from MixIn"):
        type("Service", (mix_in, AlarmService), {})


def test_a_service_may_inherit_what_is_no_alarm() -> None:
    """A base for several services may hold their helpers."""

    class Base(AlarmService):
        """Helpers only."""

        @staticmethod
        def helper() -> int:
            """Help."""
            return 7

    class Derived(Base, key="derived"):
        """One alarm."""

        expire = Alarm(Expire)

    assert Derived.helper() == 7
    assert set(Derived.__alarms__) == {"expire"}
    assert Base.__alarms__ == {}


def test_merging_keeps_the_order_and_changes_nothing() -> None:
    """A merged registration holds the dispatchers of all, and may be merged again (R31)."""
    one, other = expirations(), reminders()
    merged = merge_all(one, other)
    assert merged.dispatchers == one.dispatchers + other.dispatchers
    assert merged.services == (Expirations, Reminders)
    assert (one, other) == (expirations(), reminders())
    assert merge_all(one) == one
    assert merge_all(merge_all(one), other) == merged


def test_merged_keys_and_tags_are_unique() -> None:
    """Two handlers for one tag, or two services of one name, are refused (R31)."""
    with pytest.raises(InvalidAlarmRegistrationError, match="the key 'app/expirations' is in two"):
        merge_all(expirations(), reminders(), expirations())
    strangers = Strangers.handlers(Strangers.expire.handled_by(handle))
    with pytest.raises(InvalidAlarmRegistrationError, match="the tag 'expire' is in two"):
        merge_all(expirations(), strangers)


def test_merging_nothing_is_refused() -> None:
    """A host without handlers is opened without a registration."""
    with pytest.raises(InvalidAlarmRegistrationError, match="at least one"):
        merge_all()


def test_a_handler_set_cannot_be_merged() -> None:
    """It dispatches alarms of every tag, so nothing can stand beside it."""
    handler_set: Any = define().handlers()
    with pytest.raises(InvalidAlarmRegistrationError, match=r"not the handlers of a define"):
        merge_all(expirations(), handler_set)


@pytest.mark.parametrize("wrong", [None, Expirations, handle, [1]])
def test_only_registrations_can_be_merged(wrong: Any) -> None:
    """The error names what was given instead."""
    with pytest.raises(InvalidAlarmRegistrationError, match="merge_all takes AlarmRegistrations"):
        merge_all(expirations(), wrong)


def test_a_handler_set_has_one_handler_for_each_alarm() -> None:
    """What holds for a service's handlers holds without a service."""
    ping, pong = Alarm(None, tag="ping"), Alarm(None, tag="pong", lifecycle="manual")
    alarms = define(ping, pong)
    options = DispatchOptions(limit=5)
    handlers = alarms.handlers(pong.handled_by(handle), ping.handled_by(handle), options=options)
    assert handlers.dispatcher.key is None
    assert handlers.dispatcher.options == options
    assert handlers.dispatcher.tags == {"ping", "pong"}
    assert hash(handlers) == hash(
        alarms.handlers(*handlers.dispatcher.handlers.values(), options=options)
    )
    with pytest.raises(InvalidAlarmRegistrationError, match=r"'pong' of this define\(\.\.\.\) has"):
        alarms.handlers(ping.handled_by(handle))
    with pytest.raises(InvalidAlarmRegistrationError, match="is no alarm of this define"):
        alarms.handlers(ping.handled_by(handle), Reminders.remind.handled_by(handle))


def test_defined_alarms_need_tags_of_their_own() -> None:
    """Without a service there is no attribute to name them, and tags are unique."""
    with pytest.raises(InvalidAlarmRegistrationError, match="has no tag yet"):
        define(Alarm(None))
    with pytest.raises(InvalidAlarmRegistrationError, match="two alarms of this define"):
        define(Alarm(None, tag="ping"), Alarm(Expire, tag="ping"))
    wrong: Any = "ping"
    with pytest.raises(InvalidAlarmRegistrationError, match="define takes Alarms, not an object"):
        define(wrong)


@attrs.frozen
class Host:
    """Notes what it is asked to run."""

    ran: list[object] = attrs.Factory(list[object])

    async def _run_registration(self, registration: AlarmRegistration) -> DispatchResult:
        self.ran.append(registration)
        return DispatchResult()

    async def _run_handler_set(self, handler_set: HandlerSet) -> DispatchResult:
        self.ran.append(handler_set)
        return DispatchResult()


async def test_running_hands_the_value_to_the_host() -> None:
    """`run` dispatches once and returns what that did; a handler set is callable too (R25)."""
    host: Any = Host()
    registration, handler_set = reminders(), define().handlers()
    assert await registration.run(host) == DispatchResult()
    assert await handler_set.run(host) == DispatchResult()
    assert await handler_set(host) == DispatchResult()
    assert host.ran == [registration, handler_set, handler_set]
