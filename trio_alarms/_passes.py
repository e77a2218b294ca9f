"""Passes: one at a time, who joins one, and how it ends (R21-R24).

A pass goes through these stages::

    waiting ──► acquiring ──► dispatching ──► closing ──► over
       │            │              │             ▲
       └────────────┴──────────────┴─────────────┘   failed or cancelled

``waiting``: until no `defer_wakes` scope is open. ``acquiring``: it is active, so that commits
keep the guard armed; its event scope is entered. ``dispatching``: inside a `defer_wakes` scope of
its own. ``closing``: the native alarm is brought in line, shielded.
"""

from __future__ import annotations

import enum
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs
import trio

from ._configuration import DEFAULT_CONFIGURATION
from ._context import Frame, find
from ._errors import (
    AlarmPassError,
    HostClosingError,
    InvalidScheduleConfigurationError,
    StorageOperationError,
)
from ._nursery import BodyNursery, combined, holds_cancelled, raise_single
from ._reporting import logger
from ._time import saturated
from ._wakes import nothing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractAsyncContextManager

    from ._configuration import ResolvedConfiguration
    from ._events import EventScope
    from ._store._session import Session
    from ._wakes import ActivePass, Wakes
    from ._writer import HostWriter

SLOW_PASS_SECONDS: Final = 30.0
_RENEWAL_RETRY_SECONDS: Final = 0.5


class Stage(enum.Enum):
    """Where a pass is; see the drawing at the top."""

    WAITING = enum.auto()
    ACQUIRING = enum.auto()
    DISPATCHING = enum.auto()
    CLOSING = enum.auto()


@attrs.define(eq=False)
class Pass:
    """One pass. `outcome` is what it raised, once it is over.

    `managed` is whether the scheduler owned the native alarm when it began: if not, it only runs
    the raw hook and leaves the guard alone (R35).
    """

    native: bool
    managed: bool = True
    stage: Stage = Stage.WAITING
    over: trio.Event = attrs.field(factory=trio.Event)
    outcome: BaseException | None = None
    active: ActivePass | None = None
    scope: trio.CancelScope | None = None
    # Left once the dispatch has set its own guard, which may be an earlier one.
    before_dispatch: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    # A post-event check that found nothing due writes nothing (R23).
    found_nothing: bool = False
    # The event scope failed before dispatch began, or the configuration did (R24).
    not_acquired: bool = False
    not_configured: bool = False
    began_dispatch: bool = False
    # The pass's own nursery was cancelled from inside (R24).
    self_cancelled: bool = False


class PassFrame(Frame):
    """The frame of a pass, from its waiting to the end of its event scope."""

    def __init__(self, owner: object, current: Pass) -> None:
        self.owner = owner
        self.current = current


class DueDispatch(Protocol):
    """What a pass dispatches: chosen in one commit, then run."""

    def choose(self, session: Session) -> Any:
        """Look what is due."""
        ...

    def landed(self, chosen: Any) -> None:
        """What was chosen is durable."""
        ...

    async def run(self) -> None:
        """Dispatch it."""
        ...

    def let_go(self) -> None:
        """What was not begun is no longer in hand."""
        ...


class PassHost(Protocol):
    """What a host's passes are made of."""

    @property
    def has_driver(self) -> bool:
        """Whether a task delivers the native alarm, which the guard must be renewed for."""
        ...

    def resolve(self) -> ResolvedConfiguration:
        """The configuration in force."""
        ...

    def enter_event(self) -> AbstractAsyncContextManager[EventScope[Any]]:
        """A fresh event scope."""
        ...

    def prepare_dispatch(self, scope: EventScope[Any]) -> DueDispatch:
        """What is to be dispatched in this event."""
        ...

    async def deliver_raw(self, scope: EventScope[Any]) -> None:
        """Run the raw hook of a host that is not managed."""
        ...

    async def settle_raw(self, outcome: BaseException | None) -> None:
        """Clear or move the native alarm after the raw hook."""
        ...

    async def has_due(self) -> bool:
        """Whether anything is due."""
        ...

    def note_storage_failure(self, error: StorageOperationError) -> None:
        """Log a storage failure, once per episode."""
        ...

    def running_tags(self) -> dict[str, float]:
        """The tags of the handlers that run, with the Trio time at which the first started."""
        ...


class Passes:
    """The passes of one host."""

    def __init__(self, writer: HostWriter, wakes: Wakes, host: PassHost) -> None:
        self._writer = writer
        self._wakes = wakes
        self._host = host
        self._current: Pass | None = None
        self._failed_acquisitions = 0
        # Whether the native alarm is the guard of a pass that was held back (R24).
        self.held_back: bool = False
        self._owned_scopes: set[trio.CancelScope] = set()
        self._all_over = trio.Event()
        self.closing: bool = False

    @property
    def current(self) -> Pass | None:
        """The pass that is under way."""
        return self._current

    @contextmanager
    def owned_scope(self) -> Iterator[trio.CancelScope]:
        """A cancel scope around work in a caller's task that the host can cancel and wait for."""
        with trio.CancelScope() as scope:
            if not self._owned_scopes:
                self._all_over = trio.Event()
            self._owned_scopes.add(scope)
            try:
                yield scope
            finally:
                self._owned_scopes.discard(scope)
                if not self._owned_scopes:
                    self._all_over.set()

    async def until_idle(self) -> None:  # noqa: ASYNC910 - nothing to wait for is none
        """Wait until no pass and no dispatch is under way."""
        while self._owned_scopes:
            await self._all_over.wait()

    def close(self) -> None:
        """Start no pass any more; one that only waits for scopes to end is cancelled."""
        self.closing = True
        current = self._current
        if current is not None and current.stage is Stage.WAITING and current.scope is not None:
            current.scope.cancel()

    def cancel_all(self) -> None:
        """Cancel every pass and dispatch that is under way, in whichever task it runs."""
        for scope in self._owned_scopes:
            scope.cancel()

    def refuse_waiting_for_oneself(self, operation: str) -> None:
        """Refuse to wait for what the running task is itself inside of (R21)."""
        inside = None
        if self.inside() is not None:
            inside = "the pass"
        elif self._wakes.own_scope_open():
            inside = "its own defer_wakes scope"
        elif self._writer.current_transaction(operation) is not None:
            inside = "its own transaction block"
        if inside is not None:
            raise AlarmPassError(
                f"{operation} was called from within {inside}, whose end it would wait for"
            )

    def inside(self) -> Pass | None:
        """The pass of this host that the running task is inside of."""
        frame = find(
            PassFrame, lambda frame: frame.owner is self and not frame.current.over.is_set()
        )
        return None if frame is None else frame.current

    async def run(self, *, native: bool, managed: bool = True) -> None:
        """Run a pass here, or join the one that is under way.

        Raises:
            AlarmPassError: The pass that was joined failed.
            StorageOperationError: The host is closing, or the storage failed.
        """
        while True:
            joined = self._current
            if joined is None:
                if self.closing:
                    raise HostClosingError(
                        "deliver: the host is closing; no new pass starts", operation="deliver"
                    )
                await self._lead(Pass(native, managed))
                return
            if native and joined.managed:
                # The platform has consumed the timestamp: never leave the host unarmed (R21).
                await self._writer.write(nothing, name="deliver", synced=False)
            await joined.over.wait()
            if joined.outcome is None:
                return
            if not holds_cancelled(joined.outcome):
                raise AlarmPassError(
                    f"the pass that was joined failed: {type(joined.outcome).__name__}"
                ) from joined.outcome

    async def _lead(self, this: Pass) -> None:
        self._current = this
        with self.owned_scope() as scope:
            this.scope = scope
            try:
                try:
                    with PassFrame(self, this):
                        await self._run_stages(this)
                except BaseException as error:  # noqa: BLE001 - raised again by _close
                    this.outcome = error
                await self._close(this)
            finally:
                self._current = None
                this.over.set()
        if scope.cancelled_caught:
            raise HostClosingError(
                "deliver: the host was closed while this pass ran", operation="deliver"
            )

    async def _run_stages(self, this: Pass) -> None:
        if not this.managed:
            async with self._host.enter_event() as scope:
                await self._host.deliver_raw(scope)
            return
        if not await self._may_begin(this):
            this.found_nothing = True
            return
        this.stage = Stage.ACQUIRING
        try:
            configuration = self._host.resolve()
        except InvalidScheduleConfigurationError:
            this.not_configured = True
            this.active = self._wakes.begin_pass(DEFAULT_CONFIGURATION.in_flight_recovery_ms)
            raise
        this.active = self._wakes.begin_pass(configuration.in_flight_recovery_ms)
        async with BodyNursery(unwrap=True) as nursery:
            nursery.start_soon(self._warn_when_slow)
            if self._host.has_driver:
                first = saturated(self._writer.clock.now_ms() + configuration.in_flight_recovery_ms)
                nursery.start_soon(self._renew_guard, this, first)
            await self._dispatch_in_event(this)
            nursery.cancel_scope.cancel()

    async def _may_begin(self, this: Pass) -> bool:
        """Wait until no scope is open; whether there is anything to do then (R22, R23)."""
        while True:
            await self._wait_for_scopes(this)
            if not this.native and not await self._host.has_due():
                return False
            # One may have opened while it was looked whether anything is due.
            if not self._wakes.scopes_open:
                return True

    async def _wait_for_scopes(self, this: Pass) -> None:  # noqa: ASYNC910 - its commit is the checkpoint where it makes one
        """Wait until no scope is open; a native delivery keeps the guard armed meanwhile (R22)."""
        # The next scope may open while the wait for the last one is being left.
        while self._wakes.scopes_open:
            if not this.native:
                await self._wakes.until_scopes_end()
                continue
            await self._writer.write(nothing, name="deliver", synced=False)
            async with BodyNursery(unwrap=True) as nursery:
                nursery.start_soon(self._keep_guard)
                await self._wakes.until_scopes_end()
                nursery.cancel_scope.cancel()

    async def _renew_guard(self, this: Pass, first: int) -> None:
        """Keep the guard of a pass that lives: from `first` on, then the one of its dispatch (R50).

        Before `first` it has no guard that could have fallen due.
        """
        with this.before_dispatch:
            await self._sleep_until(first)
            await self._keep_guard()
        await self._keep_guard()

    async def _keep_guard(self) -> None:
        """Commit the guard again whenever it falls due, until cancelled (R22, R50).

        No alarm is rescued from a handler that lives.
        """
        while True:
            await self._sleep_until(self._wakes.guard_at)
            try:
                await self._writer.write(nothing, name="guard", synced=False)
            except StorageOperationError as error:
                self._host.note_storage_failure(error)
                await trio.sleep(_RENEWAL_RETRY_SECONDS)

    async def _sleep_until(self, deadline: int) -> None:
        """Sleep on the host's clock; one that fails must not end the pass whose guard it keeps."""
        told = False
        while True:
            try:
                await self._writer.clock.sleep_until_ms(deadline)
            except Exception as error:  # noqa: BLE001 - whatever an application's clock raises
                if not told:
                    logger.error(
                        "the clock failed; the guard is kept once it works", exc_info=error
                    )
                told = True
                await trio.sleep(_RENEWAL_RETRY_SECONDS)
            else:
                return

    async def _dispatch_in_event(self, this: Pass) -> None:
        cut_short = False
        acquired = False
        failed = True
        try:
            async with self._host.enter_event() as scope:
                acquired = True
                try:
                    await self._dispatch(this, scope)
                    failed = False
                except BaseException as error:
                    cut_short = holds_cancelled(error)
                    raise
        except BaseException as error:
            if holds_cancelled(error):
                raise
            this.not_acquired |= not acquired
            # Cancelled inside, something else outside: a task in the nursery failed.
            this.self_cancelled = cut_short
            if cut_short or not failed:
                raise_single(error)
            raise
        if cut_short:
            this.self_cancelled = True
            raise AlarmPassError(
                "the pass's own nursery was cancelled from inside; what is due stays due and is"
                " held back for a moment"
            )

    async def _dispatch(self, this: Pass, scope: EventScope[Any]) -> None:
        try:
            configuration = self._host.resolve()
        except InvalidScheduleConfigurationError:
            this.not_configured = True
            raise
        due = self._host.prepare_dispatch(scope)
        try:
            # One commit sets the guard and chooses what is due.
            async with self._wakes.deferring(
                self._writer, configuration, due.choose, due.landed, synced=False
            ):
                this.stage = Stage.DISPATCHING
                this.began_dispatch = True
                this.before_dispatch.cancel()
                await due.run()
        finally:
            due.let_go()

    async def _warn_when_slow(self) -> None:
        await trio.sleep(SLOW_PASS_SECONDS)
        now = trio.current_time()
        running = {tag: round(now - since) for tag, since in self._host.running_tags().items()}
        logger.warning(
            "a pass has run for %d s; handlers that still run, with the seconds since each"
            " started: %s",
            SLOW_PASS_SECONDS,
            running,
        )

    async def _close(self, this: Pass) -> None:  # noqa: ASYNC910 - its commit is the checkpoint where it makes one
        """Bring the native alarm in line, then raise what the pass raised (R23, R24)."""
        this.stage = Stage.CLOSING
        try:
            if this.managed:
                await self._reconcile(this)
            else:
                await self._host.settle_raw(this.outcome)
        except StorageOperationError as error:
            if this.outcome is None or not self._writer.gate.lost:
                this.outcome = _joint_outcome(this.outcome, error)
        except trio.Cancelled as cancelled:
            # It is reconciled all the same; an error of the pass says more.
            this.outcome = cancelled if this.outcome is None else this.outcome
        if this.outcome is not None:
            raise this.outcome

    async def _reconcile(self, this: Pass) -> None:  # noqa: ASYNC910 - its commit is the checkpoint where it makes one
        needed = not this.found_nothing and (
            this.native
            or this.began_dispatch
            or this.outcome is not None
            or (this.active is not None and this.active.asked)
        )
        self._set_guard_rule(this)
        try:
            if needed:
                await self._writer.write_surely(nothing, name="reconcile")
        finally:
            self._wakes.end_pass()

    def _set_guard_rule(self, this: Pass) -> None:
        """Hold a pass back that failed before it dispatched, longer every time (R24)."""
        self.held_back = False
        failed = this.outcome is not None and not holds_cancelled(this.outcome)
        if failed and (this.not_acquired or this.not_configured or this.self_cancelled):
            delay = self._next_hold_back(this)
            self.held_back = self._wakes.hold_back(delay)
            return
        if this.began_dispatch and not this.self_cancelled:
            self._failed_acquisitions = 0
        self._wakes.end_pass()

    def _next_hold_back(self, this: Pass) -> int:
        configuration = DEFAULT_CONFIGURATION if this.not_configured else self._host.resolve()
        ceiling = configuration.parked_retry_delay_ms
        doublings = min(self._failed_acquisitions, ceiling.bit_length())
        self._failed_acquisitions += 1
        return saturated(min(ceiling, configuration.minimum_retry_delay_ms << doublings))


def _joint_outcome(
    outcome: BaseException | None, failure: StorageOperationError | None
) -> BaseException | None:
    if failure is None or outcome is None:
        return outcome if failure is None else failure
    if isinstance(outcome, Exception):
        return combined([outcome, failure], "a pass failed, and so did reconciling after it")
    logger.error("reconciling after a pass failed", exc_info=failure)
    return outcome
