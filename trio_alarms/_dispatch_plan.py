"""What a dispatch goes by: its plan, the routes of tags, and what a host's dispatches share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs

from ._model import (
    AlarmDue,
    AlarmFailure,
    AlarmParked,
    AlarmRef,
    AlarmRow,
    DispatchResult,
)
from ._nursery import combined
from ._reporting import logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import trio

    from ._configuration import ResolvedConfiguration
    from ._definitions import Dispatcher
    from ._events import EventScope
    from ._host import AlarmHost
    from ._options import DispatchOptions
    from ._store._alarms import TagView
    from ._writer import HostWriter


_MOST_REMEMBERED_FAILING: Final = 10_000


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
    # The handlers that run, with the Trio time at which each started.
    running: dict[AlarmRef, float] = attrs.Factory(dict[AlarmRef, float])
    logged_tags: set[str] = attrs.Factory(set[str])
    # The alarms whose failures were logged and have not ended; attempts of a self-rearm are none.
    failing: set[AlarmRef] = attrs.Factory(set[AlarmRef])
    closing: bool = False

    def failure_begins(self, row: AlarmRow) -> bool:
        """Whether this failure of an alarm is the first since it last succeeded (R51)."""
        begins = row.attempts == 0 or row.ref not in self.failing
        if len(self.failing) >= _MOST_REMEMBERED_FAILING:
            # Those that were cancelled meanwhile are never taken out one by one.
            self.failing.clear()
        self.failing.add(row.ref)
        return begins

    def running_tags(self) -> dict[str, float]:
        """The tags of the handlers that run, with the Trio time at which the first started."""
        tags: dict[str, float] = {}
        for ref, since in self.running.items():
            tags[ref.tag] = min(since, tags.get(ref.tag, since))
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


@attrs.define(eq=False)
class Tally:
    """What one dispatch has done so far."""

    handled: list[AlarmDue[Any]] = attrs.Factory(list[AlarmDue[Any]])
    failed: list[AlarmFailure] = attrs.Factory(list[AlarmFailure])
    parked: list[AlarmParked] = attrs.Factory(list[AlarmParked])
    errors: list[Exception] = attrs.Factory(list[Exception])
    # Set when the storage fails: what was not begun is left as it is.
    stopped: bool = False

    def stop(self, error: Exception) -> None:
        """The storage failed: begin nothing more."""
        self.errors.append(error)
        self.stopped = True

    def result(self) -> DispatchResult:
        """All of it, or the errors that are to be raised in its place."""
        error = combined(self.errors, "several alarms of one dispatch failed")
        if error is not None:
            raise error
        return DispatchResult(tuple(self.handled), tuple(self.failed), tuple(self.parked))
