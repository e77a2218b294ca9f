"""Hosts: `open_host`, and the public face of an open one."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ._arguments import describe, is_of_type
from ._clock import AlarmClock
from ._configuration import ScheduleConfiguration
from ._errors import (
    InvalidAlarmRegistrationError,
    InvalidScheduleConfigurationError,
)
from ._host_settings import HostSettings, checked_settings
from ._model import AlarmDue, DispatchResult
from ._nursery import BodyNursery
from ._options import DispatchOptions
from ._registrations import AlarmRegistration, AlarmService
from ._reporting import logger
from ._requests import AlarmView
from ._runtime import HostRuntime, open_runtime
from ._scheduler import (
    AlarmScheduler,
    ServiceScheduler,
    TransactionBlock,
    check_dispatch_arguments,
)
from ._storage_options import StorageOptions
from ._time import Duration, instant_from_ms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime
    from os import PathLike

    from ._definitions import Dispatcher
    from ._events import EventScope
    from ._native_alarm import NativeAlarm
    from ._registrations import HandlerSet
    from ._reporting import Reporter
    from ._scheduler import AlarmTransaction
    from ._writer import HostWriter

CustomDispatcher: TypeAlias = "Callable[[AlarmHost], Awaitable[object]]"

_DEFAULT_CONFIGURATION: Final = ScheduleConfiguration()
_DEFAULT_STORAGE: Final = StorageOptions()
_DEFAULT_OPTIONS: Final = DispatchOptions()


def _named(service: object) -> str:
    """What was given for a service, by its key if it is one."""
    if is_of_type(service, type) and issubclass(service, AlarmService):
        return repr(service.__key__)
    return describe(service)  # pyright: ignore[reportUnknownArgumentType]  # anything at all


class HostStorage:
    """The application's own tables in the host's database."""

    def __init__(self, writer: HostWriter, configuration: ScheduleConfiguration) -> None:
        self._writer = writer
        self._configuration = configuration

    def transaction(self) -> AbstractAsyncContextManager[AlarmTransaction, None]:
        """Open a transaction block; see `AlarmScheduler.transaction`.

        The same block, but one without an alarm method neither reconciles nor makes the host
        managed.

        Raises:
            StorageOperationError: On entering or leaving, the storage failed, or it may not be
                used here.
        """
        return TransactionBlock(
            self._writer, AlarmView(), self._configuration, asks_reconciliation=False
        )

    async def query(self, sql: str, params: Any = ()) -> list[tuple[Any, ...]]:
        """Read with one SQL statement.

        Outside of any transaction it reads the last committed state, without waiting for writers;
        inside a block of this task, what that block sees. Writes nothing. Cancelled before it has
        started it does nothing; then it runs to its end.

        Args:
            sql: One statement that only reads.
            params: Its parameters, a sequence or a mapping.

        Raises:
            StorageOperationError: The statement failed or would write; its cause is the
                `sqlite3.Error`.
        """
        return await self._writer.read(
            lambda connection: connection.query(sql, params), name="query"
        )


class AlarmHost:
    """An open host: one native alarm, its logical alarms, and the application's storage.

    Made by `open_host`. After its block every method raises `StorageOperationError`.
    """

    _runtime: HostRuntime
    scheduler: AlarmScheduler
    """The raw scheduler: every alarm, by definition or by tag."""
    storage: HostStorage
    """The application's own tables in the same database."""
    native_alarm: NativeAlarm
    """The single timestamp that wakes this host."""
    clock: AlarmClock
    """The clock that deadlines are compared with."""
    name: str
    """The name of this host within its database."""

    def _bind(self, runtime: HostRuntime) -> None:
        settings = runtime.settings
        self._runtime = runtime
        self.scheduler = AlarmScheduler(
            runtime.writer, AlarmView(), settings.configuration, runtime.wakes, runtime.dispatchers
        )
        self.storage = HostStorage(runtime.writer, settings.configuration)
        self.native_alarm = runtime.native_alarm
        self.clock = settings.clock
        self.name = settings.name

    def now(self) -> datetime:
        """The time on the host's clock, in UTC.

        Raises:
            StorageOperationError: The host is closed.
        """
        self._runtime.writer.check_open("now")
        return instant_from_ms(self.clock.now_ms())

    def service(self, service: type[AlarmService]) -> ServiceScheduler:
        """The scheduler of a service that is registered with this host.

        Raises:
            InvalidAlarmRegistrationError: It is not registered.
        """
        runtime = self._runtime
        runtime.writer.check_open("service")
        registration = runtime.settings.registration
        known = () if registration is None else registration.services
        # By identity: what is no service compares and shows itself as it likes.
        if not any(service is each for each in known):
            names = ", ".join(repr(each.__key__) for each in known) or "none"
            raise InvalidAlarmRegistrationError(
                f"service must be one that is registered with the host {self.name!r} ({names}), not"
                f" {_named(service)}; pass its handlers to open_host"
            )
        return ServiceScheduler(
            runtime.writer,
            AlarmView(service.__key__, service.__alarms__),
            runtime.settings.configuration,
            runtime.wakes,
        )

    @asynccontextmanager
    async def event(self) -> AsyncIterator[EventScope[Any]]:
        """One incoming application event: a fresh event scope and nursery around the body (R40).

        What is started in `scope.nursery` ends before the event does. With
        `dispatch_after_event`, what is due is dispatched right after, in another task (R41).
        Nothing is stored by itself. Cancellation cancels the body and its nursery.

        Raises:
            StorageOperationError: The host is closed.
        """
        runtime = self._runtime
        runtime.writer.check_open("event")
        dispatches = False
        try:
            async with runtime.enter_event() as scope:
                try:
                    yield scope
                finally:
                    dispatches = _dispatches_after_event(runtime)
        finally:
            if dispatches:
                runtime.check_after_event()

    async def deliver_native_alarm(self, *, force: bool = False) -> bool:
        """Deliver the native alarm as the driver would, in the calling task (R20-R24).

        Nothing happens while it is not yet due. It returns after the pass that it started or
        joined. Cancellation cancels the pass it started; what is still due stays due.

        Args:
            force: Deliver even if the native alarm is not due.

        Returns:
            Whether there was a delivery.

        Raises:
            Exception: What the pass it started raised; a group where there are several.
            AlarmPassError: The pass that it joined failed, or it would wait for itself.
            StorageOperationError: The storage failed, or the host is closing.
        """
        return await self._runtime.deliver_if_due(force=force)

    async def _run_registration(self, registration: AlarmRegistration) -> DispatchResult:
        self._runtime.writer.check_open("run")
        return await self._runtime.dispatchers.run_registration(registration.dispatchers)

    async def _run_handler_set(self, handler_set: HandlerSet) -> DispatchResult:
        self._runtime.writer.check_open("run")
        dispatcher: Dispatcher = handler_set.dispatcher
        return await self._runtime.dispatchers.run_set(dispatcher)


def process_due(
    handler: Callable[[AlarmDue[Any]], Awaitable[object]],
    options: DispatchOptions = _DEFAULT_OPTIONS,
) -> Callable[[AlarmHost], Awaitable[DispatchResult]]:
    """Make `process_due_alarms` into a dispatcher to hand to `open_host` as `alarms=`.

    Args:
        handler: An async callable that takes an `AlarmDue`, for every tag.
        options: Limits, timeouts and what to do about failures.

    Raises:
        InvalidProcessDueAlarmsOptionsError: `handler` or `options` is not one.
    """
    check_dispatch_arguments(handler, options)

    async def dispatch(host: AlarmHost) -> DispatchResult:
        return await host.scheduler.process_due_alarms(handler, options)

    return dispatch


@asynccontextmanager
async def open_host(
    database: str | PathLike[str],
    *,
    name: str = "default",
    alarms: AlarmRegistration | CustomDispatcher | None = None,
    raw_alarm: CustomDispatcher | None = None,
    event_scope: Callable[[AlarmHost], AbstractAsyncContextManager[Any]] | None = None,
    configuration: ScheduleConfiguration = _DEFAULT_CONFIGURATION,
    reporter: Reporter | None = None,
    clock: AlarmClock | None = None,
    driver: bool = True,
    drain_timeout: Duration = 5.0,
    storage: StorageOptions = _DEFAULT_STORAGE,
) -> AsyncIterator[AlarmHost]:
    """Open a host on a database file.

    `async with open_host("app.db", alarms=registration) as host:` is the whole use of it.

    Opening is durable: the file and its tables are there, and the native alarm of a managed host
    is the earliest deadline, so that what a crash interrupted runs at once. It can be cancelled
    while it waits for another process's lock.

    Leaving normally starts no new pass or handler and gives those that run `drain_timeout`
    seconds; leaving by an exception or a cancellation cancels them at once, which charges no
    attempt. What the body raises leaves as the same object.

    Args:
        database: A path, or `":memory:"` for a private temporary file.
        name: The host's name; several hosts may live in one database.
        alarms: What dispatches: a registration, or an async function that takes the host.
        raw_alarm: An async function that takes the host, called with every pass.
        event_scope: A function that takes the host and returns an async context manager, entered
            afresh around every event.
        configuration: The host's policy.
        reporter: An async callable that gets an `AlarmParked` for each alarm that is parked.
        clock: What deadlines are compared with; by default the wall clock, or Trio's clock under
            a `MockClock`.
        driver: Whether a task delivers the native alarm; else call `deliver_native_alarm`.
        drain_timeout: How long, in seconds, running handlers get when the block is left.
        storage: How the database is used.

    Raises:
        InvalidAlarmRefError: A bad `name`.
        InvalidScheduleConfigurationError: Another bad argument.
        StorageOperationError: The file cannot be opened, or a host of this name has it.
    """
    settings = checked_settings(
        database,
        name=name,
        alarms=alarms,
        raw_alarm=raw_alarm,
        event_scope=event_scope,
        configuration=configuration,
        reporter=reporter,
        clock=clock,
        driver=driver,
        drain_timeout=drain_timeout,
        storage=storage,
    )
    async with _opened(settings) as runtime:
        yield runtime.face


@asynccontextmanager
async def _opened(settings: HostSettings) -> AsyncIterator[HostRuntime]:
    """An open host around the body, with its driver; drained or stopped, then closed."""
    host = AlarmHost()
    runtime = await open_runtime(settings, host)
    host._bind(runtime)  # noqa: SLF001 - the host is made here
    body_failed = True
    try:
        async with BodyNursery(unwrap=True) as nursery:
            runtime.start(nursery)
            try:
                yield runtime
                await runtime.drain()
            finally:
                await runtime.stop()
                nursery.cancel_scope.cancel()
        body_failed = False
    finally:
        failure = await runtime.close()
        if failure is not None and body_failed:
            logger.error("closing a host could not reconcile", exc_info=failure)
    if failure is not None:
        raise failure


def _dispatches_after_event(runtime: HostRuntime) -> bool:
    """Whether the event that ends wants a check; a contradictory configuration is logged."""
    try:
        return runtime.resolve().dispatch_after_event
    except InvalidScheduleConfigurationError as error:
        logger.error("dispatch_after_event could not be resolved", exc_info=error)
        return False
