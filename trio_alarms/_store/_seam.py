"""A seam at the storage, for tests: where a process may be lost.

A database looks for the seam of its context when it is made; without one, nothing is asked.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class Seam(Protocol):
    """What is asked around every trip to the writer and every commit; each may raise."""

    def before_trip(self, operation: str) -> None:
        """A trip is about to be sent from the loop."""
        ...

    def before_commit(self) -> None:
        """A transaction is about to commit."""
        ...

    def after_commit(self) -> None:
        """A transaction has committed, and nobody knows yet."""
        ...


_current: ContextVar[Seam | None] = ContextVar("trio_alarms_storage_seam", default=None)


def current_seam() -> Seam | None:
    """The seam of the running context."""
    return _current.get()


@contextmanager
def seam_in_force(seam: Seam) -> Iterator[None]:
    """Put a seam at every database that is opened inside the block."""
    before = _current.get()
    _current.set(seam)
    try:
        yield
    finally:
        _current.set(before)
