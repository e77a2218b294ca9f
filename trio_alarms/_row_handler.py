"""One row: run its handler, then acknowledge or charge it (R28, R29, R53)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import attrs
import trio

from ._arguments import describe
from ._dispatch_plan import DispatchState, Plan, Route, Tally, Unacknowledged
from ._errors import (
    InvalidProcessDueAlarmsOptionsError,
    StorageOperationError,
    StoredAlarmDecodeError,
    UnhandledTagError,
)
from ._handling import Handling
from ._model import AlarmDue, AlarmFailure, AlarmRow
from ._operations import acknowledging, failing
from ._options import FailureAction, Retry
from ._reporting import logger
from ._time import instant_from_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._store._session import Session

_T = TypeVar("_T")


class Following(Protocol):
    """What comes along with the trip that settles a row: see `_lane.NextRow`."""

    def read_after(self, operation: Callable[[Session], _T]) -> Callable[[Session], _T]:
        """The operation, and then the next row is read."""
        ...

    def landed(self, _: object) -> None:
        """The trip is back."""
        ...


_ACTIONS: Final = ("retry", "skip-and-advance-repeat")


@attrs.frozen
class _Answer:
    """What `on_failure` said. Where it raised, the retry is recorded, whatever is defined (R28)."""

    action: FailureAction | None = None
    undecided: bool = False


@attrs.define
class _Outcome:
    failure: AlarmFailure | None = None
    answer: _Answer = _Answer()


class RowHandler:
    """Runs the handlers of one dispatch's rows and settles what came of each."""

    def __init__(self, state: DispatchState, plan: Plan, tally: Tally) -> None:
        self._state = state
        self._writer = state.writer
        self._plan = plan
        self._tally = tally

    async def handle_manual(self, row: AlarmRow, route: Route | None) -> None:
        """Run a manual row's handler; nothing is acknowledged, whatever it does (R29)."""
        if route is None or not route.manual:
            self._state.log_unhandled(row.ref.tag)
            self._tally.errors.append(UnhandledTagError(row.ref.tag))
            return  # noqa: ASYNC910 - the trip for its row is the checkpoint
        try:
            event = self._event(row, route)
        except StoredAlarmDecodeError as undecodable:
            self._tally.errors.append(undecodable)
            return  # noqa: ASYNC910 - the trip for its row is the checkpoint
        handling = Handling(self._writer, row, event)
        error = await self._in_handling(handling, lambda: self._call(route, event))
        self._tally.parked += handling.parked
        if error is not None:
            self._tally.errors.append(error)
        else:
            self._tally.handled.append(event)

    async def handle_automatic(
        self, row: AlarmRow, route: Route | None, following: Following
    ) -> None:
        """Run an automatic row's handler, then acknowledge or charge it (R28)."""
        if route is None:
            await self._fail_undecodable(row, route, _no_handler(row.ref.tag), following)
            return
        try:
            event = self._event(row, route)
        except StoredAlarmDecodeError as undecodable:
            await self._fail_undecodable(row, route, undecodable, following)
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
                await self.acknowledge(row, event, following)
            else:
                self._tally.handled.append(event)
        else:
            self._tally.failed.append(outcome.failure)
            await self._settle_failure(handling, route, outcome.failure, outcome.answer, following)
        self._tally.parked += handling.parked

    async def _fail_undecodable(
        self,
        row: AlarmRow,
        route: Route | None,
        error: StoredAlarmDecodeError,
        following: Following,
    ) -> None:
        """What cannot be decoded is asked about, and always charged: nothing is deleted (R28)."""
        failure = AlarmFailure(row.ref.tag, row.ref.id, error, None)
        handling = Handling(self._writer, row, None)
        answer = await self._in_handling(handling, lambda: self._ask(failure))
        self._tally.failed.append(failure)
        await self._charge(handling, route, failure, answer.action, following)
        self._tally.parked += handling.parked

    async def _settle_failure(  # noqa: ASYNC910 - the trip for its row is the checkpoint
        self,
        handling: Handling,
        route: Route,
        failure: AlarmFailure,
        answer: _Answer,
        following: Following,
    ) -> None:
        """Skip or charge a failed handling, as its definition or `on_failure` decided."""
        action = answer.action
        decided = "retry" if answer.undecided else route.failure
        if decided is None:
            decided = "retry" if action is None or isinstance(action, Retry) else action
        if not handling.acknowledged and decided == "retry":
            await self._charge(handling, route, failure, action, following)
            return
        if not handling.acknowledged:
            await self.acknowledge(handling.row, None, following)
        _log_failure(handling.row, failure, None, begins=handling.row.attempts == 0)

    async def _in_handling(self, handling: Handling, function: Callable[[], Awaitable[_T]]) -> _T:
        """Call within the handling; it is over, for all that it left behind, on return (R15)."""
        try:
            with handling:
                return await function()
        finally:
            handling.active = False
            if self._writer.database.transaction is not None:
                await self._writer.take_back(handling)

    async def _call(self, route: Route, event: AlarmDue[Any]) -> Exception | None:
        """Run the handler, bounded by its timeout; what it raised, if that is a failure."""
        timeout = route.timeout_seconds
        if timeout is None:
            timeout = self._plan.options.timeout_seconds
        try:
            if timeout is None:
                await _awaitable(route.handler(event), event.tag)
                return None
            with trio.move_on_after(timeout) as scope:
                await _awaitable(route.handler(event), event.tag)
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
            self._tally.errors.append(error)
            return _Answer(undecided=True)  # noqa: ASYNC910 - the trip for its row is the checkpoint
        return _Answer(action)

    async def acknowledge(
        self,
        row: AlarmRow,
        event: AlarmDue[Any] | None,
        following: Following,
        *,
        completed_at: int | None = None,
    ) -> None:
        """Acknowledge by revision, shielded; remembered where the storage fails (R28, R53)."""
        if completed_at is None:
            completed_at = self._writer.clock.now_ms()
        try:
            await self._writer.write_surely(
                following.read_after(
                    acknowledging(row, self._plan.configuration, completed_at=completed_at)
                ),
                name="acknowledge",
                landed=following.landed,
            )
        except StorageOperationError as error:
            self._state.unacknowledged[row.ref] = Unacknowledged(row.revision, completed_at, event)
            self._tally.stop(error)
            return  # noqa: ASYNC910 - the trip for its row is the checkpoint
        self._state.unacknowledged.pop(row.ref, None)
        self._state.failing.discard(row.ref)
        if event is not None:
            self._tally.handled.append(event)

    async def _charge(
        self,
        handling: Handling,
        route: Route | None,
        failure: AlarmFailure,
        action: FailureAction | None,
        following: Following,
    ) -> None:
        """Record a failed attempt, shielded; not remembered where the storage fails (R53)."""
        row = handling.row
        try:
            failed = await self._writer.write_surely(
                following.read_after(
                    failing(row, self._plan.configuration, self._initial_delay(route, action))
                ),
                name="record failure",
                handling=handling,
                landed=following.landed,
            )
        except StorageOperationError as error:
            self._tally.stop(error)
            return  # noqa: ASYNC910 - the trip for its row is the checkpoint
        if route is None:
            self._state.log_unhandled(row.ref.tag)
        else:
            begins = self._state.failure_begins(row)
            _log_failure(row, failure, failed, begins=begins)

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


def _awaitable(returned: Awaitable[object], tag: str) -> Awaitable[object]:
    """What a handler returned; a lambda is known to be synchronous only now."""
    if not isinstance(returned, Awaitable):
        raise TypeError(
            f"the handler of the alarm tag {tag!r} returned {describe(returned)}, not an"
            " awaitable; make it an async function"
        )
    return returned


def _no_handler(tag: str) -> StoredAlarmDecodeError:
    return StoredAlarmDecodeError(f"no handler is registered for the alarm tag {tag!r}")


def _log_failure(
    row: AlarmRow, failure: AlarmFailure, charged: AlarmRow | None, *, begins: bool
) -> None:
    """Log when failures begin and when they park the alarm (R51).

    `charged` is the row after it was charged, `None` where the failure is in no row: then nothing
    but the log tells of it.
    """
    parked = charged is not None and charged.parked and not row.parked
    if begins or parked:
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
