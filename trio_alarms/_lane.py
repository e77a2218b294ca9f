"""The automatic rows of a dispatch, one after another: what is to come, in hand, and next (R27)."""

from __future__ import annotations

from collections import deque
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

import attrs
import trio

from ._dispatch_plan import Unacknowledged
from ._model import AlarmRow
from ._store._alarms import DueRow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ._store._session import Session

T = TypeVar("T")


@attrs.frozen
class Taken:
    """A row in hand, with what is remembered of it where it only is to be acknowledged (R53)."""

    due: DueRow
    row: AlarmRow
    handled: Unacknowledged | None = None


class Lane:
    """The automatic rows of one dispatch: which are to come, in hand, and running.

    A place is one of the `concurrency` that may run at once. A row's place passes on to the row
    that its acknowledgement brings along, without becoming free between them.
    """

    def __init__(
        self, places: int, admit: Callable[[DueRow, AlarmRow | None], Taken | None]
    ) -> None:
        self._admit = admit
        self._places = places
        self._changed = trio.Event()
        self._context = copy_context()
        self.upcoming: deque[DueRow] = deque()
        # In hand and to be started, in order.
        self.ready: deque[Taken] = deque()
        self.places_taken = 0
        # Invariant: so many tasks will claim a row that is ready, as their first step.
        self._starting = 0

    @property
    def place_free(self) -> bool:
        """Whether another row may be taken in hand."""
        return self.places_taken < self._places

    @property
    def unclaimed(self) -> int:
        """How many rows are ready and have no task yet."""
        return len(self.ready) - self._starting

    @property
    def one_at_a_time(self) -> bool:
        """Whether there is one place only."""
        return self._places == 1

    def admit(self, due: DueRow, row: AlarmRow | None) -> bool:
        """Take a row in hand that was just re-read, if it is to run."""
        taken = self._admit(due, row)
        if taken is None:
            return False
        self.ready.append(taken)
        if not self.one_at_a_time:
            self.wake()
        return True

    def leave_place(self) -> None:
        """Nothing follows in somebody's place."""
        self.places_taken -= 1
        self.wake()

    def start_ready(
        self, nursery: trio.Nursery, run: Callable[[Lane, trio.Nursery], Awaitable[None]]
    ) -> None:
        """Start a task for each row that is ready and has none.

        Tasks that become runnable together run in any order, so each claims its row as it begins.
        """
        for _ in range(self.unclaimed):
            self._starting += 1
            self.start(nursery, run, self, nursery)

    def claim(self) -> Taken:
        """Take the first row that is ready."""
        self._starting -= 1
        return self.ready.popleft()

    def start(
        self, nursery: trio.Nursery, function: Callable[..., Awaitable[None]], *arguments: object
    ) -> None:
        """Start a row's task, in the context of the dispatch and not of the row before."""
        self._context.run(nursery.start_soon, function, *arguments)

    async def until_changed(self) -> None:
        """Wait until a row is ready or a place is free."""
        await self._changed.wait()

    def wake(self) -> None:
        """Let `until_changed` return."""
        self._changed.set()
        self._changed = trio.Event()


class NextRow:
    """The row that comes after one: re-read in the same trip that settles the one (R27)."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._due: DueRow | None = None
        self._found: AlarmRow | None = None
        self.in_hand = False

    def read_after(self, operation: Callable[[Session], T]) -> Callable[[Session], T]:
        """The operation, and then the next row is read, if there is one."""
        if self._due is None and self._lane.upcoming:
            self._due = self._lane.upcoming.popleft()
        due = self._due
        if due is None:
            return operation

        def both(session: Session) -> T:
            value = operation(session)
            self._found = session.read(due.ref)
            return value

        return both

    def landed(self, _: object) -> None:
        """The trip is back; in the loop, before anybody else writes."""
        if self._due is not None:
            self.in_hand = self._lane.admit(self._due, self._found)


class NothingFollows:
    """What comes after a row whose trip brings no other along."""

    def read_after(self, operation: Callable[[Session], T]) -> Callable[[Session], T]:
        """The operation alone."""
        return operation

    def landed(self, _: object) -> None:
        """The trip is back."""
