"""The arguments of `open_host`, checked before anything is created."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard, cast

import attrs
import trio

from ._arguments import describe, is_plainly_synchronous
from ._clock import AlarmClock, default_clock
from ._configuration import ScheduleConfiguration, resolve_configuration
from ._definitions import BoundHandler
from ._errors import InvalidAlarmRefError, InvalidScheduleConfigurationError
from ._names import MAX_HOST_NAME_LENGTH, require_name
from ._registrations import AlarmRegistration, AlarmService
from ._storage_options import StorageOptions
from ._time import duration_to_ms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from ._host import AlarmHost
    from ._reporting import Reporter


@attrs.frozen
class HostSettings:
    """The checked arguments of `open_host`."""

    database: object
    name: str
    registration: AlarmRegistration | None
    dispatcher: Callable[[AlarmHost], Awaitable[object]] | None
    raw_alarm: Callable[[AlarmHost], Awaitable[object]] | None
    event_scope: Callable[[AlarmHost], AbstractAsyncContextManager[Any]] | None
    configuration: ScheduleConfiguration
    reporter: Reporter | None
    clock: AlarmClock
    driver: bool
    drain_timeout: float
    storage: StorageOptions


def checked_settings(
    database: object,
    *,
    name: object,
    alarms: Any,
    raw_alarm: Any,
    event_scope: Any,
    configuration: Any,
    reporter: Any,
    clock: Any,
    driver: Any,
    drain_timeout: Any,
    storage: Any,
) -> HostSettings:
    """The arguments of `open_host`, each checked before anything is created."""
    _require_trio()
    host_name = require_name(
        name, parameter="name", error=InvalidAlarmRefError, maximum=MAX_HOST_NAME_LENGTH
    )
    _require(configuration, ScheduleConfiguration, "configuration")
    _require(storage, StorageOptions, "storage")
    _require(driver, bool, "driver")
    if clock is not None:
        _require(clock, AlarmClock, "clock")
    registration: AlarmRegistration | None = None
    dispatcher: Any = alarms
    if isinstance(alarms, AlarmRegistration):
        registration, dispatcher = alarms, None
    for parameter, function, allowed in (
        ("alarms", dispatcher, "an AlarmRegistration or an async function"),
        ("raw_alarm", raw_alarm, "an async function"),
        ("reporter", reporter, "an async function"),
    ):
        if function is not None and is_plainly_synchronous(function):
            raise InvalidScheduleConfigurationError(
                f"{parameter} must be {allowed}, not {_named(function)}"
            )
    if not (event_scope is None or callable(event_scope)):
        raise InvalidScheduleConfigurationError(
            "event_scope must be a function that takes the host and returns an async context"
            f" manager, not {describe(event_scope)}"
        )
    drain_ms = duration_to_ms(
        drain_timeout, parameter="drain_timeout", error=InvalidScheduleConfigurationError
    )
    resolve_configuration(configuration)
    return HostSettings(
        database=database,
        name=host_name,
        registration=registration,
        dispatcher=dispatcher,
        raw_alarm=raw_alarm,
        event_scope=cast("Any", event_scope),
        configuration=configuration,
        reporter=reporter,
        clock=default_clock() if clock is None else clock,
        driver=driver,
        drain_timeout=drain_ms / 1000,
        storage=storage,
    )


def _require_trio() -> None:
    """Say what to do where Trio's own error would only say that this is not Trio."""
    try:
        trio.lowlevel.current_trio_token()
    except RuntimeError as error:
        raise RuntimeError(
            "open_host needs a running Trio: call it from an async function under trio.run(…);"
            " asyncio is not supported"
        ) from error


def _is_service(value: object) -> TypeGuard[type[AlarmService]]:
    return isinstance(value, type) and issubclass(value, AlarmService)


def _named(function: object) -> str:
    """What was given as a dispatcher or hook, with what is likely to be meant."""
    if _is_service(function):
        return f"the service {function.__qualname__}; pass {function.__qualname__}.handlers(…)"
    if isinstance(function, BoundHandler):
        return "a single bound handler; pass the service's handlers(…) with it"
    kind: object = type(function)
    if kind is list or kind is tuple:
        return f"{describe(function)}; compose registrations with merge_all(…)"
    return describe(function)


def _require(value: object, kind: type, parameter: str) -> None:
    try:
        fits = isinstance(value, kind)
    except Exception:  # noqa: BLE001 - a protocol asks the object, which may raise anything
        fits = False
    if not fits:
        raise InvalidScheduleConfigurationError(
            f"{parameter} must be of type {kind.__name__}, not {describe(value)}"
        )
