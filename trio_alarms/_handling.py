"""A handling: one run of one row's handler, with its `on_failure` (R4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._context import Frame, find

if TYPE_CHECKING:
    from ._model import AlarmDue, AlarmParked, AlarmRow


class Handling(Frame):
    """The frame of a handler and of every task that it starts.

    `row` is the row as it was re-read before the handler began.
    """

    def __init__(self, owner: object, row: AlarmRow, event: AlarmDue[Any] | None) -> None:
        self.owner = owner
        self.row = row
        self.event = event
        # Invariant: false from the moment that handler and `on_failure` have returned; what the
        # handling left behind can no longer change alarms (R15).
        self.active = True
        # Set once `tx.acknowledge` of this event has committed (R36).
        self.acknowledged = False
        self.parked: list[AlarmParked] = []


class Reporting(Frame):
    """A reporter runs outside of the handling whose commit it reports on (R16)."""

    hides = (Handling,)


def current_handling(owner: object) -> Handling | None:
    """The handling of this host that the running task is in or was left behind by."""
    return find(Handling, lambda handling: handling.owner is owner)
