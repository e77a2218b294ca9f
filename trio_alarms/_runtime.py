"""One open host from within: its parts wired together, its opening, draining and closing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from ._configuration import resolve_configuration
from ._context import context_outside
from ._database import Database, Gate, acquire_database, release_database
from ._dispatch_plan import DispatchState
from ._dispatchers import Dispatchers, PassDispatch, Registered
from ._driver import Driver
from ._episodes import Episodes
from ._errors import HostClosingError, StorageOperationError
from ._events import entered_event
from ._host_settings import HostSettings
from ._native_alarm import NativeAlarm, RawDelivery, read_state
from ._passes import Passes
from ._store import _alarms, _native
from ._store._native import NativeState, Reconciliation
from ._store._session import Session
from ._wakes import Wakes
from ._writer import HostWriter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from contextvars import Context

    from ._configuration import ResolvedConfiguration
    from ._events import EventScope
    from ._host import AlarmHost


class HostRuntime:
    """The parts of one open host. `AlarmHost` is its public face."""

    def __init__(self, settings: HostSettings, database: Database, face: AlarmHost) -> None:
        self.settings = settings
        self.clock = settings.clock
        self.database = database
        self.face = face
        self.gate = Gate()
        self.episodes = Episodes()
        self.wakes = Wakes(self.native_alarm_changed)
        self.writer = HostWriter(
            database,
            self.gate,
            name=settings.name,
            clock=settings.clock,
            reconciler=self.wakes,
            reporter=settings.reporter,
        )
        self.native_alarm = NativeAlarm(self.writer, self.native_alarm_changed)
        self.passes = Passes(self.writer, self.wakes, self)
        self.dispatch_state = DispatchState(self.writer)
        self.dispatchers = Dispatchers(
            face,
            self.dispatch_state,
            self.wakes,
            self.passes,
            resolve=self.resolve,
            enter_event=self.enter_event,
        )
        # Who gets what a pass of ours raised; the test harness raises it instead of logging it.
        self.on_pass_failure: Callable[[Exception], None] = self.episodes.log
        registration = settings.registration
        self._registered = Registered(() if registration is None else registration.dispatchers)
        self._raw_delivery = RawDelivery(self.writer, self.native_alarm)
        self._driver = Driver(self, self.episodes)
        self._nursery: trio.Nursery | None = None
        self._context: Context = context_outside()
        self._checks_after_event = 0

    # What the driver and the passes need of a host.

    @property
    def has_driver(self) -> bool:
        """Whether a task delivers the native alarm."""
        return self.settings.driver

    def is_closing(self) -> bool:
        """Whether the host starts nothing any more."""
        return self.passes.closing

    def resolve(self) -> ResolvedConfiguration:
        """The configuration in force in the running task (R2)."""
        return resolve_configuration(self.settings.configuration)

    def enter_event(self) -> AbstractAsyncContextManager[EventScope[Any]]:
        """A fresh event scope (R40)."""
        return entered_event(self.writer, self.face, self.settings.event_scope)

    def prepare_dispatch(self, scope: EventScope[Any]) -> PassDispatch:
        """What a managed host's pass does."""
        return self.dispatchers.prepare_pass(scope, self._registered, self._hook())

    async def deliver_raw(self, scope: EventScope[Any]) -> None:  # noqa: ASYNC910 - what it awaits is the checkpoint, where there is anything to do
        """What a delivery of a host that is not managed does (R35)."""
        del scope
        if self.settings.raw_alarm is not None:
            await self.settings.raw_alarm(self.face)

    async def settle_raw(self, outcome: BaseException | None) -> None:
        """Clear or move the timestamp of a host that is not managed."""
        await self._raw_delivery.settle(outcome)

    async def has_due(self) -> bool:
        """Whether anything is due now."""
        name, now = self.settings.name, self.clock.now_ms()
        return await self.writer.read(
            lambda connection: _alarms.has_due(connection.raw, name, now), name="check"
        )

    def running_tags(self) -> dict[str, float]:
        """The tags of the handlers that run."""
        return self.dispatch_state.running_tags()

    def note_storage_failure(self, error: StorageOperationError) -> None:
        """Log a storage failure, once per episode."""
        self.episodes.log_storage(error)

    async def read_state(self) -> NativeState:
        """The native alarm that is stored, and whether the scheduler owns it."""
        return await read_state(self.writer)

    async def deliver(self, *, managed: bool) -> None:
        """Run a pass, or join the one that is under way."""
        if not managed and self.passes.current is None:
            await self._raw_delivery.begin()
        await self.passes.run(native=True, managed=managed)

    def report_pass_failure(self, error: Exception) -> None:
        """Tell whoever is to know that a pass failed; not if it is that the host is left."""
        if not (self.gate.lost or isinstance(error, HostClosingError)):
            self.on_pass_failure(error)

    def native_alarm_changed(self) -> None:
        """A commit of this process has changed the native alarm."""
        self._driver.wake()

    # Deliveries and checks.

    async def deliver_if_due(self, *, force: bool) -> bool:
        """Deliver in the calling task if the stored native alarm is due; whether it was."""
        self.writer.check_open("deliver_native_alarm")
        self.passes.refuse_waiting_for_oneself("deliver_native_alarm")
        try:
            state = await self.read_state()
            native_alarm = state.native_alarm
            due = native_alarm is not None and native_alarm <= self.clock.now_ms()
            if not (due or force):
                return False
            await self.deliver(managed=state.managed)
        except Exception:
            if self.gate.lost:
                return False  # noqa: ASYNC910 - what it awaits is the checkpoint, where there is anything to do
            raise
        return True

    def check_after_event(self) -> None:
        """Check in a later task whether anything is due (R41)."""
        if self._nursery is None or self.is_closing() or self._checks_after_event:
            return
        self._checks_after_event += 1
        # In the host's own context, never in the event's.
        self._context.copy().run(self._nursery.start_soon, self._check_after_event)

    async def _check_after_event(self) -> None:  # noqa: ASYNC910 - what it awaits is the checkpoint, where there is anything to do
        self._checks_after_event -= 1
        try:
            state = await read_state(self.writer)
            if state.managed and await self.has_due():
                await self.passes.run(native=False)
        except Exception as error:  # noqa: BLE001 - told to whoever is to know; the host goes on
            self.report_pass_failure(error)

    def _hook(self) -> Callable[[], Awaitable[object]] | None:
        """The custom dispatcher and the raw hook, which count as one (R33, R34)."""
        dispatcher, raw_alarm = self.settings.dispatcher, self.settings.raw_alarm
        if dispatcher is None:
            return None if raw_alarm is None else partial(raw_alarm, self.face)
        if raw_alarm is None:
            return partial(dispatcher, self.face)

        async def both() -> None:
            await dispatcher(self.face)
            await raw_alarm(self.face)

        return both

    # Opening and closing.

    async def reconcile_on_opening(self) -> None:
        """Replace whatever a crash left by the earliest deadline (R20, R52)."""
        name = self.settings.name
        state, earliest = await self.database.read(
            lambda connection: (
                _native.read(connection.raw, name),
                _alarms.earliest_wake(connection.raw, name),
            ),
            self.gate,
            operation="open",
        )
        if state.managed and state.native_alarm != earliest:
            await self._reconcile_to_deadlines()

    def start(self, nursery: trio.Nursery) -> None:
        """Start the driver, in the host's own context."""
        self._nursery = nursery
        if self.settings.driver:
            self._context.copy().run(nursery.start_soon, self._driver.run)

    async def drain(self) -> None:
        """Start nothing more, and give what runs up to `drain_timeout` seconds."""
        self._stop_starting()
        with trio.move_on_after(self.settings.drain_timeout):
            await self.passes.until_idle()
        self.passes.cancel_all()
        await self.passes.until_idle()

    async def stop(self) -> None:
        """Cancel all that runs, at once; shielded, until it has unwound."""
        self._stop_starting()
        self.passes.cancel_all()
        with trio.CancelScope(shield=True):
            await self.passes.until_idle()

    def lose(self) -> None:
        """Lose the process, for tests: from here on nothing is written."""
        self.gate.lost = True
        self._stop_starting()
        self.passes.cancel_all()

    async def close(self) -> Exception | None:
        """Reconcile, give the database back, and refuse every later call; shielded.

        What reconciling raised is returned.
        """
        failure: Exception | None = None
        # First, so that no task that waits for its turn begins a block once the others are over.
        self.writer.closed = True
        with trio.CancelScope(shield=True):
            await self._take_back_blocks()
            try:
                if not self.gate.lost and not self.passes.held_back:
                    await self._reconcile_if_managed()
            except StorageOperationError as error:
                failure = error
            finally:
                await release_database(self.database, self.settings.name)
        return failure

    def _stop_starting(self) -> None:
        self.dispatch_state.closing = True
        self.passes.close()
        self._driver.wake()

    async def _take_back_blocks(self) -> None:  # noqa: ASYNC910 - what it awaits is the checkpoint, where there is anything to do
        """Roll back a block of this host that another task still holds."""
        transaction = self.database.transaction
        if transaction is not None and transaction.writer is self.writer:
            await transaction.take_over(f"the host {self.settings.name!r} was closed")

    async def _reconcile_if_managed(self) -> None:
        await self.reconcile_on_opening()

    async def _reconcile_to_deadlines(self) -> None:
        """Reconcile whatever scopes are open; bounded by `busy_timeout` twice."""
        with trio.move_on_after(self.settings.storage.busy_timeout_seconds) as bound:
            await self.database.queue.acquire()
        if bound.cancelled_caught:
            raise StorageOperationError(
                "reconcile: another task kept the turn to write for too long",
                operation="reconcile",
            )
        try:
            await self.database.until_unlocked(
                partial(self.database.run, self._reconcile_trip, self.gate, operation="reconcile")
            )
        finally:
            self.database.queue.release()

    def _reconcile_trip(self) -> None:
        session = Session(self.database.writer, self.settings.name, self.database.probe)
        session.asks_reconciliation = True
        session.begin()
        session.commit(Reconciliation(0))


async def open_runtime(settings: HostSettings, face: AlarmHost) -> HostRuntime:
    """Open the database and reconcile; on failure or cancellation nothing stays behind.

    Raises:
        StorageOperationError: The file cannot be opened, or a host of this name has it.
    """
    database = await acquire_database(settings.database, settings.storage, settings.name)
    try:
        runtime = HostRuntime(settings, database, face)
        await runtime.reconcile_on_opening()
    except BaseException:
        with trio.CancelScope(shield=True):
            await release_database(database, settings.name)
        raise
    return runtime
