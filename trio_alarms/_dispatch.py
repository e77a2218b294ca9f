"""One dispatch: choose what is due, run it, acknowledge or charge it (R25-R29, R53)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import attrs
import trio

from ._arguments import describe
from ._errors import (
    AlarmError,
    InvalidProcessDueAlarmsOptionsError,
    StorageOperationError,
    StoredAlarmDecodeError,
    UnhandledTagError,
)
from ._handling import Handling
from ._model import AlarmDue, AlarmFailure, AlarmParked, AlarmRef, AlarmRow, DispatchResult
from ._nursery import BodyNursery, combined
from ._operations import acknowledging, failing
from ._options import FailureAction, Retry
from ._reporting import logger
from ._store import _alarms
from ._store._alarms import DueRow, TagView
from ._time import instant_from_ms, saturated

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ._configuration import ResolvedConfiguration
    from ._definitions import Dispatcher
    from ._events import EventScope
    from ._host import AlarmHost
    from ._model import Lifecycle
    from ._options import DispatchOptions
    from ._store._connection import Connection
    from ._store._session import Session
    from ._transactions import HostWriter

_T = TypeVar("_T")

_ACTIONS: Final = ("retry", "skip-and-advance-repeat")

MANUAL_LIMIT: Final = 100
MANUAL_CONCURRENCY: Final = 4


@attrs.frozen
class Route:
    """How rows of one tag are handled: decoding, handler, and the definition's own policy."""

    handler: Callable[[AlarmDue[Any]], Awaitable[object]]
    decode: Callable[[str], Any]
    manual: bool = False
    failure: str | None = None
    retry_initial_delay_ms: int | None = None
    timeout_seconds: float | None = None


FindRoute: TypeAlias = "Callable[[str], Route | None]"


@attrs.frozen
class Unacknowledged:
    """What was handled, but could not be acknowledged since the storage failed (R53)."""

    revision: bytes
    completed_at: int
    event: AlarmDue[Any] | None


@attrs.define(eq=False)
class DispatchState:
    """What all dispatches of one host share."""

    writer: HostWriter
    # Invariant: each entry's row was handled; the handler does not run again for that revision.
    unacknowledged: dict[AlarmRef, Unacknowledged] = attrs.Factory(dict[AlarmRef, Unacknowledged])
    running: dict[object, tuple[str, float]] = attrs.Factory(dict[object, tuple[str, float]])
    logged_tags: set[str] = attrs.Factory(set[str])
    closing: bool = False

    def running_tags(self) -> dict[str, float]:
        """The tags of the handlers that run, with the Trio time at which the first started."""
        tags: dict[str, float] = {}
        for tag, since in self.running.values():
            tags[tag] = min(since, tags.get(tag, since))
        return tags

    def log_unhandled(self, tag: str) -> None:
        """Log a tag without a handler once, not at every try (R30)."""
        if tag not in self.logged_tags:
            self.logged_tags.add(tag)
            logger.error(
                "alarms of the tag %r are due, and no handler is registered for it; they are kept,"
                " back off and park",
                tag,
            )


@attrs.frozen
class Plan:
    """What one dispatch sees and how it runs."""

    host: AlarmHost
    scope: EventScope[Any]
    find_route: FindRoute
    options: DispatchOptions
    view: TagView
    manual_limiter: trio.CapacityLimiter
    configuration: ResolvedConfiguration
    automatic: bool = True


def routes_of(dispatcher: Dispatcher) -> FindRoute:
    """The routes of a service's or a define set's handlers."""
    routes = {
        tag: Route(
            handler=bound.handler,
            decode=bound.alarm.decode,
            manual=bound.alarm.lifecycle == "manual",
            failure=bound.alarm.failure,
            retry_initial_delay_ms=bound.alarm.retry_initial_delay_ms,
            timeout_seconds=bound.alarm.timeout_seconds,
        )
        for tag, bound in dispatcher.handlers.items()
    }
    return routes.get


class Dispatch:
    """One run of a dispatcher over what was due when it began."""

    def __init__(self, state: DispatchState, plan: Plan) -> None:
        self._state = state
        self._writer = state.writer
        self._plan = plan
        self._handled: list[AlarmDue[Any]] = []
        self._failed: list[AlarmFailure] = []
        self._parked: list[AlarmParked] = []
        self._errors: list[Exception] = []
        # Set when the storage fails: what was not begun is left as it is.
        self._stopped = False
        self._manual_started: list[DueRow] = []

    async def run(self) -> DispatchResult:
        """Dispatch once. A failing handler cancels no other; cancellation cancels all (R27).

        Raises:
            Exception: What a manual handler, an `on_failure` or the storage raised; a group of
                them where there are several.
        """
        await self._forget_settled()
        automatic, manual = await self._choose()
        if manual:
            await self._move_before(manual)
        try:
            async with BodyNursery(unwrap=True) as nursery:
                if manual:
                    nursery.start_soon(self._run_rows, manual, self._plan.manual_limiter)
                if automatic:
                    permits = trio.CapacityLimiter(self._plan.options.concurrency)
                    await self._run_rows(automatic, permits)
            await self._move_after()
        finally:
            # A manual row stays in hand until it is moved (R6).
            for due in self._manual_started:
                self._writer.in_hand.pop(due.ref, None)
        error = combined(self._errors, "several alarms of one dispatch failed")
        if error is not None:
            raise error
        return DispatchResult(tuple(self._handled), tuple(self._failed), tuple(self._parked))

    async def _forget_settled(self) -> None:  # noqa: ASYNC910 - choosing what is due is one
        """Forget what is remembered as unacknowledged and whose revision is gone (R53)."""
        remembered = self._state.unacknowledged
        if not remembered:
            return  # noqa: ASYNC910 - as above
        host, refs = self._writer.name, tuple(remembered)
        rows = await self._writer.read(
            lambda connection: [_alarms.read(connection.raw, host, ref) for ref in refs],
            name="dispatch",
        )
        for ref, row in zip(refs, rows, strict=True):
            handled = remembered.get(ref)
            if handled is not None and (row is None or row.revision != handled.revision):
                del remembered[ref]

    async def _choose(self) -> tuple[list[DueRow], list[DueRow]]:
        plan, host = self._plan, self._writer.name
        now = self._writer.clock.now_ms()
        limit = plan.options.limit if plan.automatic else 0

        def choose(connection: Connection) -> tuple[list[DueRow], list[DueRow]]:
            def due(lifecycle: Lifecycle, limit: int) -> list[DueRow]:
                return _alarms.select_due(
                    connection.raw,
                    host,
                    lifecycle=lifecycle,
                    view=plan.view,
                    now=now,
                    limit=limit,
                )

            return due("automatic", limit) if limit else [], due("manual", MANUAL_LIMIT)

        return await self._writer.read(choose, name="dispatch")

    async def _move_before(self, rows: Sequence[DueRow]) -> None:
        """Move manual rows to where they come back if this process dies (R26)."""
        configuration = self._plan.configuration
        served = {row.ref.tag for row in rows if self._serves_manual(row.ref.tag)}

        def move(session: Session) -> None:
            for row in rows:
                delay = (
                    configuration.in_flight_recovery_ms
                    if row.ref.tag in served
                    else configuration.parked_retry_delay_ms
                )
                _move(session, row, saturated(session.now + delay))

        await self._writer.write(move, name="dispatch")

    async def _move_after(self) -> None:  # noqa: ASYNC910 - the trip for its row is the checkpoint
        """Leave manual rows that nobody moved meanwhile for hourly recovery (R29)."""
        rows = self._manual_started
        if not rows:
            return  # noqa: ASYNC910 - the trip for its row is the checkpoint
        delay = self._plan.configuration.parked_retry_delay_ms

        def move(session: Session) -> None:
            for row in rows:
                _move(session, row, saturated(session.now + delay))

        try:
            await self._writer.write(move, name="dispatch")
        except StorageOperationError as error:
            self._errors.append(error)

    async def _run_rows(self, rows: Sequence[DueRow], permits: trio.CapacityLimiter) -> None:
        """Start the rows in order, each once it has its permit.

        The permit is taken before the task is started: tasks of one batch start in any order.
        """
        async with BodyNursery(unwrap=True) as nursery:
            for row in rows:
                borrower = object()
                await permits.acquire_on_behalf_of(borrower)
                if self._stopped or self._state.closing:
                    permits.release_on_behalf_of(borrower)
                    break
                nursery.start_soon(self._run_row, row, permits, borrower)

    async def _run_row(self, due: DueRow, permits: trio.CapacityLimiter, borrower: object) -> None:  # noqa: ASYNC910 - the trip for its row is the checkpoint
        try:
            row = await self._take(due)
            if row is not None:
                try:
                    await self._handle(row, due)
                finally:
                    if row.lifecycle == "automatic":
                        self._writer.in_hand.pop(row.ref, None)
        except StorageOperationError as error:
            self._stop(error)
        finally:
            permits.release_on_behalf_of(borrower)

    async def _take(self, due: DueRow) -> AlarmRow | None:
        """Re-read the row and take it in hand; `None` where it is not to be run (R27)."""
        row = await self._writer.look(lambda session: session.read(due.ref), name="dispatch")
        if row is None or row.revision != due.revision:
            return None
        if row.ref in self._writer.in_hand or self._stopped or self._state.closing:
            return None
        handled = self._state.unacknowledged.get(row.ref)
        if handled is not None and handled.revision == row.revision:
            await self._acknowledge(row, handled.event, completed_at=handled.completed_at)
            return None
        # Invariant: between the re-read's turn and this line there is no checkpoint (R6).
        self._writer.in_hand[row.ref] = row.revision
        return row

    async def _handle(self, row: AlarmRow, due: DueRow) -> None:
        route = self._plan.find_route(row.ref.tag)
        running = object()
        self._state.running[running] = (row.ref.tag, trio.current_time())
        try:
            if row.lifecycle == "manual":
                self._manual_started.append(due)
                # The event shows the deadline that was due, not the one it was moved to (R26).
                await self._handle_manual(attrs.evolve(row, run_at=due.wake_at), route)
            else:
                await self._handle_automatic(row, route)
        finally:
            del self._state.running[running]

    async def _handle_manual(self, row: AlarmRow, route: Route | None) -> None:
        """Run a manual row's handler; nothing is acknowledged, whatever it does (R29)."""
        if route is None or not route.manual:
            self._state.log_unhandled(row.ref.tag)
            self._errors.append(UnhandledTagError(row.ref.tag))
            return  # noqa: ASYNC910 - the trip for its row is the checkpoint
        try:
            event = self._event(row, route)
        except StoredAlarmDecodeError as undecodable:
            self._errors.append(undecodable)
            return  # noqa: ASYNC910 - the trip for its row is the checkpoint
        handling = Handling(self._writer, row, event)
        error = await self._in_handling(handling, lambda: self._call(route, event))
        self._parked += handling.parked
        if error is not None:
            self._errors.append(error)
        else:
            self._handled.append(event)

    async def _handle_automatic(self, row: AlarmRow, route: Route | None) -> None:
        """Run an automatic row's handler, then acknowledge or charge it (R28)."""
        if route is None:
            await self._fail_undecodable(row, route, _no_handler(row.ref.tag))
            return
        try:
            event = self._event(row, route)
        except StoredAlarmDecodeError as undecodable:
            await self._fail_undecodable(row, route, undecodable)
            return
        handling, outcome = Handling(self._writer, row, event), _Outcome()

        async def run_and_ask() -> None:
            error = await self._call(route, event)
            if error is not None:
                outcome.failure = AlarmFailure(event.tag, event.id, error, event)
                outcome.answer = await self._ask(outcome.failure)

        await self._in_handling(handling, run_and_ask)
        if outcome.failure is None:
            if not handling.acknowledged:
                await self._acknowledge(row, event)
            else:
                self._handled.append(event)
        else:
            self._failed.append(outcome.failure)
            await self._settle_failure(handling, route, outcome.failure, outcome.answer)
        self._parked += handling.parked

    async def _fail_undecodable(
        self, row: AlarmRow, route: Route | None, error: StoredAlarmDecodeError
    ) -> None:
        """What cannot be decoded is asked about, and always charged: nothing is deleted (R28)."""
        failure = AlarmFailure(row.ref.tag, row.ref.id, error, None)
        handling = Handling(self._writer, row, None)
        answer = await self._in_handling(handling, lambda: self._ask(failure))
        self._failed.append(failure)
        await self._charge(handling, route, failure, answer.action)
        self._parked += handling.parked

    async def _settle_failure(  # noqa: ASYNC910 - the trip for its row is the checkpoint
        self,
        handling: Handling,
        route: Route,
        failure: AlarmFailure,
        answer: _Answer,
    ) -> None:
        """Skip or charge a failed handling, as its definition or `on_failure` decided."""
        action = answer.action
        decided = "retry" if answer.undecided else route.failure
        if decided is None:
            decided = "retry" if action is None or isinstance(action, Retry) else action
        if not handling.acknowledged and decided == "retry":
            await self._charge(handling, route, failure, action)
            return
        if not handling.acknowledged:
            await self._acknowledge(handling.row, None)
        _log_failure(handling.row, failure, None)

    async def _in_handling(self, handling: Handling, function: Callable[[], Awaitable[_T]]) -> _T:
        """Call within the handling; it is over, for all that it left behind, on return (R15)."""
        try:
            with handling:
                return await function()
        finally:
            handling.active = False
            await self._writer.take_back(handling)

    async def _call(self, route: Route, event: AlarmDue[Any]) -> Exception | None:
        """Run the handler, bounded by its timeout; what it raised, if that is a failure."""
        timeout = route.timeout_seconds
        if timeout is None:
            timeout = self._plan.options.timeout_seconds
        try:
            with trio.CancelScope() as scope:
                if timeout is not None:
                    scope.deadline = trio.current_time() + timeout
                await route.handler(event)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is its failure
            return error  # noqa: ASYNC910 - the trip for its row is the checkpoint
        if scope.cancelled_caught:
            return trio.TooSlowError(f"the handler ran past its timeout of {timeout:g} s")
        return None

    async def _ask(self, failure: AlarmFailure) -> _Answer:
        """Ask `on_failure`; what it raises is raised at the end, and the retry is recorded."""
        on_failure = self._plan.options.on_failure
        if on_failure is None:
            return _Answer()  # noqa: ASYNC910 - the trip for its row is the checkpoint
        try:
            action = _checked_action(await on_failure(failure))
        except Exception as error:  # noqa: BLE001 - raised from the pass after the other rows
            self._errors.append(error)
            return _Answer(undecided=True)  # noqa: ASYNC910 - the trip for its row is the checkpoint
        return _Answer(action)

    async def _acknowledge(
        self, row: AlarmRow, event: AlarmDue[Any] | None, *, completed_at: int | None = None
    ) -> None:
        """Acknowledge by revision, shielded; remembered where the storage fails (R28, R53)."""
        if completed_at is None:
            completed_at = self._writer.clock.now_ms()
        try:
            await self._writer.write_surely(
                acknowledging(row, self._plan.configuration, completed_at=completed_at),
                name="acknowledge",
            )
        except StorageOperationError as error:
            self._state.unacknowledged[row.ref] = Unacknowledged(row.revision, completed_at, event)
            self._stop(error)
            return  # noqa: ASYNC910 - the trip for its row is the checkpoint
        self._state.unacknowledged.pop(row.ref, None)
        if event is not None:
            self._handled.append(event)

    async def _charge(
        self,
        handling: Handling,
        route: Route | None,
        failure: AlarmFailure,
        action: FailureAction | None,
    ) -> None:
        """Record a failed attempt, shielded; not remembered where the storage fails (R53)."""
        row = handling.row
        try:
            failed = await self._writer.write_surely(
                failing(row, self._plan.configuration, self._initial_delay(route, action)),
                name="record failure",
                handling=handling,
            )
        except StorageOperationError as error:
            self._stop(error)
            return  # noqa: ASYNC910 - the trip for its row is the checkpoint
        if route is None:
            self._state.log_unhandled(row.ref.tag)
        else:
            _log_failure(row, failure, failed)

    def _initial_delay(self, route: Route | None, action: FailureAction | None) -> int | None:
        """The first of the definition's, the answer's and the options' delay (R7)."""
        if route is not None and route.retry_initial_delay_ms is not None:
            return route.retry_initial_delay_ms
        if isinstance(action, Retry):
            return action.after_ms
        return self._plan.options.retry_failed_after_ms

    def _event(self, row: AlarmRow, route: Route) -> AlarmDue[Any]:
        return AlarmDue(
            tag=row.ref.tag,
            id=row.ref.id,
            payload=route.decode(row.payload),
            scheduled_at=instant_from_ms(row.run_at),
            attempts=row.attempts,
            host=self._plan.host,
            scope=self._plan.scope,
        )

    def _serves_manual(self, tag: str) -> bool:
        route = self._plan.find_route(tag)
        return route is not None and route.manual

    def _stop(self, error: AlarmError) -> None:
        self._errors.append(error)
        self._stopped = True


@attrs.frozen
class _Answer:
    """What `on_failure` said. Where it raised, the retry is recorded, whatever is defined (R28)."""

    action: FailureAction | None = None
    undecided: bool = False


@attrs.define
class _Outcome:
    failure: AlarmFailure | None = None
    answer: _Answer = _Answer()


def _move(session: Session, row: DueRow, run_at: int) -> None:
    _alarms.move(session.connection.raw, session.host, row, run_at)


def _no_handler(tag: str) -> StoredAlarmDecodeError:
    return StoredAlarmDecodeError(f"no handler is registered for the alarm tag {tag!r}")


def _log_failure(row: AlarmRow, failure: AlarmFailure, charged: AlarmRow | None) -> None:
    """Log when failures begin and when they park the alarm (R51).

    `charged` is the row after it was charged, `None` where the failure is in no row: then nothing
    but the log tells of it.
    """
    parked = charged is not None and charged.parked and not row.parked
    if row.attempts == 0 or parked:
        logger.warning(
            "the handler of the alarm tag %r failed with %s (attempt %d%s)",
            failure.tag,
            type(failure.error).__name__,
            row.attempts + 1 if charged is None else charged.attempts,
            ", now parked" if parked else "",
            exc_info=failure.error,
        )


def _checked_action(action: FailureAction | None) -> FailureAction | None:
    if action is not None and not isinstance(action, Retry) and action not in _ACTIONS:
        raise InvalidProcessDueAlarmsOptionsError(
            "on_failure must return None, 'retry', 'skip-and-advance-repeat' or Retry(after=…),"
            f" not {describe(action)}"
        )
    return action
