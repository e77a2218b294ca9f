"""One dispatch: choose what is due, in which order and how many at a time (R25-R27, R29, R53)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ._dispatch_plan import DispatchState, Plan, Tally
from ._errors import StorageOperationError
from ._lane import Lane, NextRow, NothingFollows, Taken
from ._nursery import BodyNursery
from ._row_handler import RowHandler
from ._store import _alarms
from ._store._alarms import DueRow, DueWindow
from ._time import saturated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._model import AlarmRef, AlarmRow, DispatchResult, Lifecycle
    from ._store._session import Session

MANUAL_LIMIT: Final = 100
MANUAL_CONCURRENCY: Final = 4

# A manual row has no acknowledgement to bring another along.
_NOTHING_FOLLOWS: Final = NothingFollows()


@attrs.frozen
class Chosen:
    """What is due, and the first rows as they were then."""

    automatic: list[DueRow]
    first: list[AlarmRow | None]
    manual: list[DueRow]


class Dispatch:
    """One run of a dispatcher over what was due when it began.

    What is due is chosen by a write of its own, or by that of a pass (`choose`, `landed`).
    """

    def __init__(self, state: DispatchState, plan: Plan) -> None:
        self._state = state
        self._writer = state.writer
        self._plan = plan
        self._tally = Tally()
        self._handlers = RowHandler(state, plan, self._tally)
        self._lane = Lane(plan.options.concurrency, self._admit)
        self._chosen = False
        self._manual: list[DueRow] = []
        self._manual_started: list[DueRow] = []

    async def run(self) -> DispatchResult:
        """Dispatch once. A failing handler cancels no other; cancellation cancels all (R27).

        Raises:
            Exception: What a manual handler, an `on_failure` or the storage raised; a group of
                them where there are several.
        """
        try:
            await self._forget_settled()
            if not self._chosen:
                await self._writer.write(self.choose, name="dispatch", landed=self.landed)
            async with BodyNursery(unwrap=True) as nursery:
                if self._manual:
                    nursery.start_soon(self._run_manual, self._manual, self._plan.manual_limiter)
                await self._run_automatic(self._lane, nursery)
            await self._move_after()
        finally:
            self.let_go()
            # A manual row stays in hand until it is moved (R6).
            for due in self._manual_started:
                self._let_go(due.ref, due.revision)
        return self._tally.result()

    @property
    def has_nothing_to_do(self) -> bool:
        """Whether nothing was due when that was looked for, so that `run` need not be called."""
        return (
            self._chosen
            and not self._lane.ready
            and not self._lane.upcoming
            and not self._manual
            and not self._state.unacknowledged
        )

    def choose(self, session: Session, window: DueWindow | None = None) -> Chosen:
        """Look what is due, re-read what starts at once, and move the manual rows (R25-R27)."""
        plan = self._plan
        limit = plan.options.limit if plan.automatic else 0
        automatic = self._due(session, "automatic", limit, window) if limit else []
        first = [session.read(row.ref) for row in automatic[: plan.options.concurrency]]
        manual = self._due(session, "manual", MANUAL_LIMIT, window)
        for row in manual:
            # To where they come back if this process dies (R26).
            delay = (
                plan.configuration.in_flight_recovery_ms
                if self._serves_manual(row.ref.tag)
                else plan.configuration.parked_retry_delay_ms
            )
            _move(session, row, saturated(session.now + delay))
        return Chosen(automatic, first, manual)

    def landed(self, chosen: Chosen) -> None:
        """What was chosen is durable; in the loop, before anybody else writes."""
        self._chosen = True
        self._manual = chosen.manual
        for row, found in zip(chosen.automatic, chosen.first, strict=False):
            self._lane.places_taken += self._lane.admit(row, found)
        self._lane.upcoming.extend(chosen.automatic[len(chosen.first) :])

    def let_go(self) -> None:
        """What is in hand and was not started is no longer so."""
        while self._lane.ready:
            self._release(self._lane.ready.popleft())

    def _due(
        self, session: Session, lifecycle: Lifecycle, limit: int, window: DueWindow | None
    ) -> list[DueRow]:
        return _alarms.select_due(
            session.connection.raw,
            session.host,
            lifecycle=lifecycle,
            view=self._plan.view,
            now=session.now,
            limit=limit,
            window=window,
        )

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

    async def _run_automatic(self, lane: Lane, nursery: trio.Nursery) -> None:  # noqa: ASYNC910 - choosing them was a checkpoint
        """Start the rows in order, as many at a time as there are places."""
        while not self._starts_nothing():
            if lane.unclaimed:
                if lane.unclaimed > 1:
                    self._writer.expect_company()
                lane.start_ready(nursery, self._run_next)
                await trio.lowlevel.checkpoint()
            elif lane.upcoming and lane.place_free:
                lane.places_taken += 1
                lane.start(nursery, self._take_next, lane)
                await trio.lowlevel.checkpoint()
            elif lane.places_taken:
                await lane.until_changed()
            else:
                return  # noqa: ASYNC910 - as above

    async def _take_next(self, lane: Lane) -> None:  # noqa: ASYNC910 - the trip for its row is the checkpoint
        """Take the next row in hand where no other row brings it along."""
        following = NextRow(lane)
        try:
            await self._writer.look(
                following.read_after(lambda _: None), name="dispatch", landed=following.landed
            )
        except StorageOperationError as error:
            self._tally.stop(error)
        finally:
            if not following.in_hand:
                lane.leave_place()
        lane.wake()

    async def _run_next(self, lane: Lane, nursery: trio.Nursery) -> None:  # noqa: ASYNC910 - the trip for its row is the checkpoint
        """Run the row that is ready first; the row that follows gets its place."""
        taken = lane.claim()
        following = NextRow(lane)
        try:
            # Cancelled since the row before was settled: this one does not begin.
            await trio.lowlevel.checkpoint_if_cancelled()
            if not self._starts_nothing():
                await self._process(taken, following)
        except StorageOperationError as error:
            self._tally.stop(error)
        finally:
            self._release(taken)
            if not following.in_hand:
                lane.leave_place()
        if lane.one_at_a_time and lane.ready:
            if self._starts_nothing():
                lane.wake()
            else:
                # A turn of the loop earlier than `_run_automatic` would.
                lane.start_ready(nursery, self._run_next)

    async def _run_manual(self, rows: Sequence[DueRow], permits: trio.CapacityLimiter) -> None:
        """Start the rows, each once it has its permit; they take their permits in order."""
        upcoming = deque(rows)
        async with BodyNursery(unwrap=True) as nursery:
            while upcoming and not self._starts_nothing():
                borrowers = await _acquire_free(permits, len(upcoming))
                due = [upcoming.popleft() for _ in borrowers]
                taken = await self._take_manual(due)
                if len(due) > 1:
                    self._writer.expect_company()
                for borrower, row in zip(borrowers, taken, strict=True):
                    if row is None:
                        permits.release_on_behalf_of(borrower)
                    else:
                        nursery.start_soon(self._run_manual_row, row, permits, borrower)

    async def _take_manual(self, rows: Sequence[DueRow]) -> Sequence[Taken | None]:
        """Re-read rows and take them in hand, in one trip (R27)."""
        taken: list[Taken | None] = [None for _ in rows]

        def landed(found: list[AlarmRow | None]) -> None:
            taken[:] = [self._admit(due, row) for due, row in zip(rows, found, strict=True)]

        try:
            await self._writer.look(
                lambda session: [session.read(due.ref) for due in rows],
                name="dispatch",
                landed=landed,
            )
        except StorageOperationError as error:
            self._tally.stop(error)
        return taken  # noqa: ASYNC910 - the trip for its row is the checkpoint

    async def _run_manual_row(  # noqa: ASYNC910 - the trip for its row is the checkpoint
        self, taken: Taken, permits: trio.CapacityLimiter, borrower: object
    ) -> None:
        try:
            # Cancelled since it was taken in hand: it does not begin.
            await trio.lowlevel.checkpoint_if_cancelled()
            if not self._starts_nothing():
                await self._process(taken, _NOTHING_FOLLOWS)
        except StorageOperationError as error:
            self._tally.stop(error)
        finally:
            self._release(taken)
            permits.release_on_behalf_of(borrower)

    def _starts_nothing(self) -> bool:
        return self._tally.stopped or self._state.closing

    def _admit(self, due: DueRow, row: AlarmRow | None) -> Taken | None:
        """Take a row in hand that was just re-read, before anybody else writes (R6, R27)."""
        if row is None or row.revision != due.revision:
            return None
        if row.ref in self._state.running or self._starts_nothing():
            return None
        handled = self._state.unacknowledged.get(row.ref)
        if handled is not None and handled.revision == row.revision:
            return Taken(due, row, handled)
        # A manual row that was replaced after its handler had ended is no longer in hand (R6).
        if self._writer.in_hand.get(row.ref) == row.revision:
            return None
        self._writer.in_hand[row.ref] = row.revision
        self._state.running[row.ref] = trio.current_time()
        return Taken(due, row)

    async def _process(self, taken: Taken, following: NextRow | NothingFollows) -> None:
        due, row, handled = taken.due, taken.row, taken.handled
        if handled is not None:
            await self._handlers.acknowledge(
                row, handled.event, following, completed_at=handled.completed_at
            )
            return
        route = self._plan.find_route(row.ref.tag)
        if row.lifecycle == "manual":
            self._manual_started.append(due)
            # The event shows the deadline that was due, not the one it was moved to (R26).
            await self._handlers.handle_manual(attrs.evolve(row, run_at=due.wake_at), route)
        else:
            await self._handlers.handle_automatic(row, route, following)

    def _release(self, taken: Taken) -> None:
        """A row's handler is over, or was never begun. A manual row stays in hand (R6)."""
        if taken.handled is None:
            del self._state.running[taken.row.ref]
        if taken.row.lifecycle == "automatic" or taken.handled is not None:
            self._let_go(taken.row.ref, taken.row.revision)

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


async def _acquire_free(permits: trio.CapacityLimiter, most: int) -> Sequence[object]:
    """Wait for one permit and take what else is free; returns who borrowed them."""
    borrowers = [object()]
    try:
        permits.acquire_on_behalf_of_nowait(borrowers[0])
    except trio.WouldBlock:
        await permits.acquire_on_behalf_of(borrowers[0])
        try:
            # Handlers that shared a commit end in one turn of the loop, this one or the next.
            await trio.lowlevel.checkpoint()
        except BaseException:
            permits.release_on_behalf_of(borrowers[0])
            raise
    while len(borrowers) < most:
        borrower = object()
        try:
            permits.acquire_on_behalf_of_nowait(borrower)
        except trio.WouldBlock:
            break
        borrowers.append(borrower)
    return borrowers  # noqa: ASYNC910 - the trip for the rows is the checkpoint


def _move(session: Session, row: DueRow, run_at: int) -> None:
    _alarms.move(session.connection.raw, session.host, row, run_at)
