"""Services, handler sets and registrations: which handlers a host dispatches to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
from cattrs import BaseConverter

from ._arguments import describe
from ._definitions import Alarm, BoundHandler, Dispatcher
from ._errors import InvalidAlarmRegistrationError, InvalidProcessDueAlarmsOptionsError
from ._names import require_name
from ._options import DispatchOptions

if TYPE_CHECKING:
    from ._host import AlarmHost
    from ._model import DispatchResult

_DEFAULT_OPTIONS = DispatchOptions()

# Attributes of every service, which an alarm of the same name would hide.
_RESERVED = frozenset({"handlers"})


class AlarmService:
    """A named group of alarms that are handled together; subclassed, never instantiated.

    ::

        class Expirations(AlarmService, key="app/expirations"):
            expire = Alarm(Expire)
            sweep = Alarm(None, lifecycle="manual", tag="app/sweep")

    Each `Alarm` in the body becomes an alarm of the service, its tag by default the attribute's
    name. A service cannot be subclassed any further once it has alarms.

    Args:
        key: What names the service within a registration; by default the class's qualified name.
        converter: A cattrs converter that structures the payloads, used as it is; by default types
            are structured strictly.

    Raises:
        InvalidAlarmRegistrationError: An empty or bad `key`, two alarms of one tag, an alarm that
            belongs to another service, a payload type without JSON form.
    """

    __key__: ClassVar[str] = "AlarmService"
    __alarms__: ClassVar[Mapping[str, Alarm[Any]]] = MappingProxyType({})

    def __init_subclass__(
        cls, *, key: str | None = None, converter: BaseConverter | None = None, **keywords: Any
    ) -> None:
        super().__init_subclass__(**keywords)
        cls.__key__ = require_name(
            cls.__qualname__ if key is None else key,
            parameter="key",
            error=InvalidAlarmRegistrationError,
        )
        _check_converter(converter)
        _refuse_inherited_alarms(cls)
        found = _alarms_in(cls)
        for attribute, alarm in found.items():
            if attribute in _RESERVED:
                raise InvalidAlarmRegistrationError(
                    f"{cls.__qualname__}.{attribute} hides the method of that name"
                )
            alarm._own(cls, attribute, converter)  # noqa: SLF001 - the service takes it in
        cls.__alarms__ = _by_tag(found.values(), cls.__qualname__)

    @classmethod
    def handlers(
        cls, *bound: BoundHandler, options: DispatchOptions = _DEFAULT_OPTIONS
    ) -> AlarmRegistration:
        """Compose a registration from one handler for each alarm of the service.

        The result is a value; the service is not changed.

        Args:
            bound: What `handled_by` of the service's alarms returned, in any order.
            options: How the service's due alarms are worked through.

        Raises:
            InvalidAlarmRegistrationError: A missing, doubled or foreign handler, or one that is
                not bound to an alarm.
        """
        dispatcher = _compose(cls.__qualname__, cls.__key__, cls.__alarms__, bound, options)
        return AlarmRegistration(dispatchers=(dispatcher,), services=(cls,))


@attrs.frozen
class AlarmRegistration:
    """The services that a host dispatches to, each with its handlers; a value.

    Made by `AlarmService.handlers` and `merge_all`, handed to `open_host`.
    """

    dispatchers: tuple[Dispatcher, ...]
    services: tuple[type[AlarmService], ...]

    async def run(self, host: AlarmHost) -> DispatchResult:
        """Dispatch what is due once, to all services concurrently (R25, R30).

        When it returns, each outcome is durable. Cancellation leaves what is not acknowledged due,
        uncharged.

        Args:
            host: The host whose alarms are dispatched. One that was opened with this registration
                dispatches by itself.

        Raises:
            AlarmPassError: It is called from a handler.
            ExceptionGroup: What handlers of manual alarms, `on_failure` functions and unhandled
                manual tags raised; a single error is raised as it is.
        """
        return await host._run_registration(self)  # noqa: SLF001 - the host's side of it


@attrs.frozen
class HandlerSet:
    """Handlers without a service, for a host that uses the raw scheduler; a value.

    It dispatches due alarms of every tag; one that it has no handler for fails. It is callable
    with a host, so it serves as `alarms=` of `open_host`.
    """

    dispatcher: Dispatcher

    async def run(self, host: AlarmHost) -> DispatchResult:
        """Dispatch what is due once, up to `limit` alarms of all tags (R25).

        When it returns, each outcome is durable. Cancellation leaves what is not acknowledged due,
        uncharged.

        Args:
            host: The host whose alarms are dispatched.

        Raises:
            AlarmPassError: It is called from a handler.
            ExceptionGroup: What handlers of manual alarms, `on_failure` functions and unhandled
                manual tags raised; a single error is raised as it is.
        """
        return await host._run_handler_set(self)  # noqa: SLF001 - the host's side of it

    async def __call__(self, host: AlarmHost) -> DispatchResult:
        """Do as `run`."""
        return await host._run_handler_set(self)  # noqa: SLF001 - the host's side of it


@attrs.frozen
class AlarmSet:
    """Alarms that were defined together without a service; made by `define`."""

    alarms: Mapping[str, Alarm[Any]] = attrs.field(hash=False)

    def handlers(
        self, *bound: BoundHandler, options: DispatchOptions = _DEFAULT_OPTIONS
    ) -> HandlerSet:
        """Compose a handler set from one handler for each alarm; a value.

        Args:
            bound: What `handled_by` of the alarms returned, in any order.
            options: How due alarms are worked through.

        Raises:
            InvalidAlarmRegistrationError: A missing, doubled or foreign handler, or one that is
                not bound to an alarm.
        """
        return HandlerSet(_compose("this define(...)", None, self.alarms, bound, options))


def define(*alarms: Alarm[Any], converter: BaseConverter | None = None) -> AlarmSet:
    """Define alarms without a service, for hosts that use the raw scheduler.

    Args:
        alarms: Definitions with an explicit `tag`. A definition may be in several sets.
        converter: A cattrs converter that structures the payloads, used as it is; by default types
            are structured strictly.

    Raises:
        InvalidAlarmRegistrationError: An argument that is no `Alarm`, one without a tag, two of
            one tag, a payload type without JSON form, or another converter than before.
    """
    _check_converter(converter)
    given: tuple[object, ...] = alarms
    for alarm in given:
        if not isinstance(alarm, Alarm):
            raise InvalidAlarmRegistrationError(f"define takes Alarms, not {describe(alarm)}")
    by_tag = _by_tag(alarms, "this define(...)")
    for alarm in alarms:
        alarm._bind(converter)  # noqa: SLF001 - the set takes it in
    return AlarmSet(by_tag)


def merge_all(*registrations: AlarmRegistration) -> AlarmRegistration:
    """Compose registrations into one; none of them is changed (R31).

    Args:
        registrations: One or more; their keys and tags must be unique taken together.

    Raises:
        InvalidAlarmRegistrationError: There is none, one is no `AlarmRegistration` (a handler set
            of `define` is none), or a key or tag is in two of them.
    """
    if not registrations:
        raise InvalidAlarmRegistrationError("merge_all takes at least one AlarmRegistration")
    given: tuple[object, ...] = registrations
    for registration in given:
        if isinstance(registration, HandlerSet):
            raise InvalidAlarmRegistrationError(
                "merge_all takes AlarmRegistrations, not the handlers of a define(...), which"
                " dispatch alarms of every tag; give them to open_host by themselves"
            )
        if not isinstance(registration, AlarmRegistration):
            raise InvalidAlarmRegistrationError(
                f"merge_all takes AlarmRegistrations, not {describe(registration)}"
            )
    dispatchers = tuple(one for each in registrations for one in each.dispatchers)
    _require_unique("key", [str(dispatcher.key) for dispatcher in dispatchers])
    _require_unique("tag", [tag for dispatcher in dispatchers for tag in dispatcher.handlers])
    return AlarmRegistration(
        dispatchers=dispatchers,
        services=tuple(service for each in registrations for service in each.services),
    )


def _check_converter(converter: object) -> None:
    if converter is not None and not isinstance(converter, BaseConverter):
        raise InvalidAlarmRegistrationError(
            f"converter must be a cattrs converter, not {describe(converter)}"
        )


def _alarms_in(cls: type) -> dict[str, Alarm[Any]]:
    return {name: value for name, value in vars(cls).items() if isinstance(value, Alarm)}


def _refuse_inherited_alarms(cls: type) -> None:
    for base in cls.__mro__[1:]:
        if _alarms_in(base):
            raise InvalidAlarmRegistrationError(
                f"{cls.__qualname__} inherits alarms from {base.__qualname__}; a service defines"
                " all of its alarms itself"
            )


def _by_tag(alarms: Iterable[Alarm[Any]], where: str) -> Mapping[str, Alarm[Any]]:
    by_tag: dict[str, Alarm[Any]] = {}
    for alarm in alarms:
        if alarm.tag in by_tag:
            raise InvalidAlarmRegistrationError(f"two alarms of {where} have the tag {alarm.tag!r}")
        by_tag[alarm.tag] = alarm
    return MappingProxyType(by_tag)


def _compose(
    where: str,
    key: str | None,
    alarms: Mapping[str, Alarm[Any]],
    bound: tuple[BoundHandler, ...],
    options: DispatchOptions,
) -> Dispatcher:
    """Make a dispatcher of exactly one handler for each alarm."""
    if not isinstance(options, DispatchOptions):
        raise InvalidProcessDueAlarmsOptionsError(
            f"options must be DispatchOptions, not {describe(options)}"
        )
    handlers: dict[str, BoundHandler] = {}
    for each in bound:
        tag = _tag_handled(where, alarms, each)
        if tag in handlers:
            raise InvalidAlarmRegistrationError(f"{tag!r} of {where} has two handlers")
        handlers[tag] = each
    missing = [tag for tag in alarms if tag not in handlers]
    if missing:
        raise InvalidAlarmRegistrationError(
            f"{', '.join(map(repr, missing))} of {where} {'has' if len(missing) == 1 else 'have'}"
            " no handler"
        )
    return Dispatcher(key=key, handlers=MappingProxyType(handlers), options=options)


def _tag_handled(where: str, alarms: Mapping[str, Alarm[Any]], bound: object) -> str:
    if not isinstance(bound, BoundHandler):
        raise InvalidAlarmRegistrationError(
            f"handlers takes what handled_by of the alarms of {where} returns, not"
            f" {describe(bound)}"
        )
    for tag, alarm in alarms.items():
        if alarm is bound.alarm:
            return tag
    raise InvalidAlarmRegistrationError(f"{bound.alarm!r} is no alarm of {where}")


def _require_unique(what: str, names: list[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidAlarmRegistrationError(
                f"the {what} {name!r} is in two of the registrations that are merged"
            )
