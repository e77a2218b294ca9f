"""Events: a fresh scope and nursery around each application event and alarm pass (R40)."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs

from ._context import Frame, find
from ._nursery import BodyNursery

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import trio

    from ._host import AlarmHost

R = TypeVar("R")


@attrs.frozen(eq=False)
class EventScope(Generic[R]):
    """What one event owns: a nursery that ends before the event does, and its resources.

    `resources` is what the host's `event_scope` yielded, `None` without one.
    """

    nursery: trio.Nursery
    resources: R


class EventFrame(Frame):
    """The frame of an event."""

    def __init__(self, owner: object, scope: EventScope[Any]) -> None:
        self.owner = owner
        self.scope = scope
        self.over = False


def current_event(owner: object) -> EventScope[Any] | None:
    """The scope of the event of this host that the running task is inside of."""
    frame = find(EventFrame, lambda frame: frame.owner is owner and not frame.over)
    return None if frame is None else frame.scope


@asynccontextmanager
async def entered_event(
    owner: object,
    host: AlarmHost,
    factory: Callable[[AlarmHost], AbstractAsyncContextManager[Any]] | None,
) -> AsyncIterator[EventScope[Any]]:
    """Enter a fresh event scope and nursery; both are left before the block is over."""
    manager = nullcontext(None) if factory is None else factory(host)
    async with manager as resources:
        frame: EventFrame | None = None
        try:
            async with BodyNursery() as nursery:
                frame = EventFrame(owner, EventScope(nursery, resources))
                with frame:
                    yield frame.scope
        finally:
            # Not before the tasks in its nursery have ended, which belong to it.
            if frame is not None:
                frame.over = True
