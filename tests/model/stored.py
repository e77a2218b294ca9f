"""What is stored, and what follows each commit: reports (R16), the native alarm (R17-R20)."""

from __future__ import annotations

from tests.model.alarms import Alarms, Ref, Row
from tests.model.steps import Policy


class Stored:
    """The rows, the application's rows, and the native alarm with its guard.

    `reports` are those since they were last cleared. All times are in ms.
    """

    def __init__(self) -> None:
        self.now = 0
        self.alarms = Alarms()
        self.journal: list[int] = []
        self.acknowledged: set[int] = set()  # revisions that a handler acknowledged itself (R36)
        self.native_alarm: int | None = None
        self.reports: list[tuple[int, int]] = []
        self._committed: dict[Ref, Row] = {}
        self.forget()

    def forget(self) -> None:
        """Lose what was in memory only, as a crash does."""
        self.scopes = 0
        self.pass_is_active = False
        self.guard_at = 0
        self._guard_delay = 0

    def snapshot(self) -> tuple[dict[Ref, Row], list[int], set[int]]:
        """What a rollback restores."""
        return dict(self.alarms.rows), list(self.journal), set(self.acknowledged)

    def restore(self, snapshot: tuple[dict[Ref, Row], list[int], set[int]]) -> None:
        """Undo what was done since."""
        self.alarms.rows, self.journal, self.acknowledged = snapshot

    def commit(self) -> list[tuple[int, int]]:
        """Commit what was done to rows; the reports of what is parked now and was not before."""
        before, self._committed = self._committed, dict(self.alarms.rows)
        parked = [
            (row.attempts, row.wake_at)
            for ref, row in self.alarms.rows.items()
            if row.parked and not (ref in before and before[ref].parked)
        ]
        self.reports += parked
        self.reconcile()
        return parked

    def reconcile(self) -> None:
        """The native alarm is the least wake deadline (R20), or the guard stands (R18)."""
        if self.scopes == 0 and not self.pass_is_active:
            self.native_alarm = self.alarms.least_wake()
            return
        if self.guard_at <= self.now:
            self.guard_at = self.now + self._guard_delay
        native = self.native_alarm
        if native is None or native <= self.now or native > self.guard_at:
            self.native_alarm = self.guard_at

    def enter_scope(self, policy: Policy) -> None:
        """One `defer_wakes` scope more (R17)."""
        if self.scopes == 0:
            self._guard_delay = policy.in_flight_recovery
            self.guard_at = self.now + self._guard_delay
        self.scopes += 1
        self.reconcile()

    def leave_scope(self) -> bool:
        """One scope less (R19); whether it was the last."""
        self.scopes -= 1
        if self.scopes == 0 and not self.pass_is_active:
            self.reconcile()
        return self.scopes == 0

    def begin_pass(self, policy: Policy) -> None:
        """A pass becomes active and enters a scope of its own (R22)."""
        self.pass_is_active = True
        self._guard_delay, self.guard_at = policy.in_flight_recovery, 0
        self.enter_scope(policy)

    def end_pass(self) -> None:
        """It leaves its scope and is over (R23)."""
        self.leave_scope()
        self.pass_is_active = False
        self.reconcile()
