"""Compares what rang with what the calendar expects."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .calendar_reminders import Reminder


class Tally:
    """Counts rings against the expected reminders, each known by its id."""

    def __init__(self, expected: Iterable[Reminder]) -> None:
        self.expected = {reminder.id: reminder for reminder in expected}
        self._rings: Counter[str] = Counter()

    def count(self, reminder_id: str) -> int:
        """Count one ring; returns how often that reminder has rung by now."""
        self._rings[reminder_id] += 1
        return self._rings[reminder_id]

    @property
    def rung(self) -> list[str]:
        """The expected reminders that rang, once or more often."""
        return [reminder_id for reminder_id in self.expected if reminder_id in self._rings]

    @property
    def rung_twice(self) -> list[str]:
        """Those that rang more than once: rung, but not acknowledged when the kill came."""
        return [reminder_id for reminder_id in self.rung if self._rings[reminder_id] > 1]

    @property
    def lost(self) -> list[Reminder]:
        """The expected reminders that never rang."""
        return [
            reminder
            for reminder_id, reminder in self.expected.items()
            if reminder_id not in self._rings
        ]

    @property
    def unexpected(self) -> list[str]:
        """What rang although the calendar does not have it."""
        return [reminder_id for reminder_id in self._rings if reminder_id not in self.expected]
