"""What the running task is inside of: blocks, handlings, events, passes, deferring scopes.

One context variable holds a linked list of frames, innermost first. Tasks inherit it when they
are started, which is what the rules about child tasks and tasks left behind need.
"""

from __future__ import annotations

from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class Frame:
    """One thing that a task is inside of, from `with frame:` to the end of that block."""

    hides: ClassVar[tuple[type[Frame], ...]] = ()
    """Kinds of outer frames that cannot be seen from inside this one."""

    outer: Frame | None = None

    def __enter__(self) -> Self:
        self.outer = _innermost.get()
        _innermost.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Not `reset(token)`: that fails in another context, as in a generator's clean-up.
        if _innermost.get() is self:
            _innermost.set(self.outer)


_innermost: ContextVar[Frame | None] = ContextVar("trio_alarms_innermost_frame", default=None)

F = TypeVar("F", bound=Frame)


def find(kind: type[F], matches: Callable[[F], bool]) -> F | None:
    """The innermost visible frame of a kind that matches."""
    frame = _innermost.get()
    while frame is not None:
        if isinstance(frame, kind) and matches(frame):
            return frame
        if frame.hides and any(issubclass(kind, hidden) for hidden in frame.hides):
            return None
        frame = frame.outer
    return None


def context_outside() -> Context:
    """A copy of the current context that is inside of nothing.

    A host's own tasks start from it: whatever the task that opened the host was inside of, its
    tasks are not.
    """
    context = copy_context()
    context.run(_innermost.set, None)
    return context
