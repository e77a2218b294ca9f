"""One dispatch: choose what is due, in which order and how many at a time (R25-R27, R29, R53)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from ._dispatch_plan import DispatchState, Plan, Tally
from ._errors import StorageOperationError
from ._nursery import BodyNursery
from ._row_handler import RowHandler
from ._store import _alarms
from ._store._alarms import DueRow
from ._time import saturated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._model import AlarmRef, AlarmRow, DispatchResult, Lifecycle
    from ._store._connection import Connection
    from ._store._session import Session

MANUAL_LIMIT: Final = 100
MANUAL_CONCURRENCY: Final = 4


class Dispatch:
    """One run of a dispatcher over what was due when it began."""

    def __init__(self, state: DispatchState, plan: Plan) -> None:
        self._state = state
        self._writer = state.writer
        self._plan = plan
        self._tally = Tally()
        self._handlers = RowHandler(state, plan, self._tally)
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
                self._let_go(due.ref, due.revision)
        return self._tally.result()

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
                self._let_go(ref, handled.revision)

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
            self._tally.errors.append(error)

    async def _run_rows(self, rows: Sequence[DueRow], permits: trio.CapacityLimiter) -> None:
        """Start the rows in order, each once it has its permit.

        The permit is taken before the task is started: tasks of one batch start in any order.
        """
        async with BodyNursery(unwrap=True) as nursery:
            for row in rows:
                borrower = object()
                await permits.acquire_on_behalf_of(borrower)
                if self._tally.stopped or self._state.closing:
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
                        self._let_go(row.ref, row.revision)
        except StorageOperationError as error:
            self._tally.stop(error)
        finally:
            permits.release_on_behalf_of(borrower)

    async def _take(self, due: DueRow) -> AlarmRow | None:
        """Re-read the row and take it in hand; `None` where it is not to be run (R27)."""
        row = await self._writer.look(lambda session: session.read(due.ref), name="dispatch")
        if row is None or row.revision != due.revision:
            return None
        if row.ref in self._state.running or self._tally.stopped or self._state.closing:
            return None
        handled = self._state.unacknowledged.get(row.ref)
        if handled is not None and handled.revision == row.revision:
            await self._handlers.acknowledge(row, handled.event, completed_at=handled.completed_at)
            self._let_go(row.ref, row.revision)
            return None
        # A manual row that was replaced after its handler had ended is no longer in hand (R6).
        if self._writer.in_hand.get(row.ref) == row.revision:
            return None
        # Invariant: between the re-read's turn and this line there is no checkpoint (R6).
        self._writer.in_hand[row.ref] = row.revision
        return row

    async def _handle(self, row: AlarmRow, due: DueRow) -> None:
        route = self._plan.find_route(row.ref.tag)
        # Invariant: since `_take` looked there was no checkpoint, so it does not run twice (R27).
        self._state.running[row.ref] = trio.current_time()
        try:
            if row.lifecycle == "manual":
                self._manual_started.append(due)
                # The event shows the deadline that was due, not the one it was moved to (R26).
                await self._handlers.handle_manual(attrs.evolve(row, run_at=due.wake_at), route)
            else:
                await self._handlers.handle_automatic(row, route)
        finally:
            del self._state.running[row.ref]

    def _let_go(self, ref: AlarmRef, revision: bytes) -> None:
        """A row is no longer in hand, unless it still is to be acknowledged (R6, R53)."""
        handled = self._state.unacknowledged.get(ref)
        if handled is not None and handled.revision == revision:
            return
        # A newer one may be in hand by now.
        if self._writer.in_hand.get(ref) == revision:
            del self._writer.in_hand[ref]

    def _serves_manual(self, tag: str) -> bool:
        route = self._plan.find_route(tag)
        return route is not None and route.manual


def _move(session: Session, row: DueRow, run_at: int) -> None:
    _alarms.move(session.connection.raw, session.host, row, run_at)
