"""What may become of one alarm: R3-R9 and the writes of R26, R28 and R29, over a dictionary."""

from __future__ import annotations

from itertools import count
from typing import Any, TypeAlias

import attrs

from tests.model.steps import Policy, Schedule

Ref: TypeAlias = tuple[str, str]  # tag and id

AUTOMATIC = "automatic"
MANUAL = "manual"


class RefusedError(Exception):
    """An operation ends with an error and changes nothing."""

    def __init__(self, name: str, inner: tuple[Any, ...] = ()) -> None:
        super().__init__(name)
        self.name = name
        self.inner = inner


@attrs.frozen
class Row:
    """A logical alarm (R3)."""

    lifecycle: str
    run_at: int
    payload: Any
    repeat_every: int | None
    revision: int
    progress: int = -1
    attempts: int = 0
    parked: bool = False
    retry_at: int | None = None

    @property
    def wake_at(self) -> int:
        """When it is dispatched (R3)."""
        return self.run_at if self.retry_at is None else max(self.run_at, self.retry_at)

    @property
    def status(self) -> tuple[Any, ...]:
        """The fields of its `AlarmStatus`."""
        return (
            self.run_at,
            self.retry_at,
            self.wake_at,
            self.attempts,
            self.parked,
            self.lifecycle,
            self.repeat_every,
            None if self.progress < 0 else self.progress,
        )


def delay(policy: Policy, attempts: int, *, parked: bool, initial: int | None = None) -> int:
    """How long an alarm waits after so many attempts (R7)."""
    if parked:
        return policy.parked_retry_delay
    first = policy.minimum_retry_delay
    if initial is not None:
        first = max(first, initial)
    return min(policy.parked_retry_delay, first << (attempts - 1))


class Alarms:
    """The rows of a host, and what each rule makes of one."""

    def __init__(self) -> None:
        self.rows: dict[Ref, Row] = {}
        self._revisions = count(1)  # never comes back, not even after a rollback (R3)

    def in_order(self) -> list[tuple[Ref, Row]]:
        """Dispatch order: `wake_at`, then tag, then id (R3)."""
        return sorted(self.rows.items(), key=lambda item: (item[1].wake_at, item[0]))

    def least_wake(self) -> int | None:
        """The earliest wake deadline (R20)."""
        return min((row.wake_at for row in self.rows.values()), default=None)

    def change(
        self,
        given: Schedule,
        now: int,
        policy: Policy,
        *,
        handled: tuple[Ref, Row] | None,
        in_hand: bool,
    ) -> Row:
        """One of the methods that write an alarm; the row that is there then.

        `handled` is what the caller's handling re-read, `in_hand` says whether what is stored is
        in hand, in this or another handling.
        """
        _check(given, policy)
        change = self._ensure if given.method == "ensure_alarm" else self._schedule
        return change(given, now, policy, handled, in_hand=in_hand)

    def _schedule(
        self,
        given: Schedule,
        now: int,
        policy: Policy,
        handled: tuple[Ref, Row] | None,
        *,
        in_hand: bool,
    ) -> Row:
        """Arm or replace (R4), or take the earlier deadline (R6)."""
        ref = (given.tag, given.id)
        existing = self.rows.get(ref)
        source = handled[1] if handled is not None else None
        if source is not None and MANUAL in (source.lifecycle, given.lifecycle):
            source = None
        if existing is not None:
            progress = existing.progress
        elif source is not None:
            progress = source.progress
        else:
            progress = -1
        if source is None and given.progress is not None and given.progress <= progress:
            assert existing is not None
            return existing
        run_at, payload, repeat_every = now + given.in_ms, given.payload, given.repeat_every
        keeps = given.method == "schedule_alarm_earlier" and not in_hand
        if keeps and existing is not None and existing.run_at <= run_at:
            run_at, payload = existing.run_at, existing.payload
            repeat_every = None if given.lifecycle == MANUAL else existing.repeat_every
        attempts, parked = 0, False
        grew_now = given.progress is not None and given.progress > progress
        grew_before = (
            source is not None
            and handled is not None
            and handled[0] == ref
            and existing is not None
            and existing.progress > source.progress
        )
        if source is not None and not grew_now and not grew_before:
            counted = existing.attempts if existing is not None else 0
            inherits = source.parked or (existing is not None and existing.parked)
            if inherits:
                attempts = max(source.attempts, counted)
            else:
                charged = max(source.attempts + 1, counted)
                attempts = min(policy.unchanged_attempt_budget, charged)
            parked = attempts > 0 and (attempts >= policy.unchanged_attempt_budget or inherits)
        retry_at = now + delay(policy, attempts, parked=parked) if attempts else None
        if given.lifecycle == MANUAL:
            progress = -1  # R5
        elif given.progress is not None:
            progress = max(progress, given.progress)
        return self._put(
            ref,
            Row(
                given.lifecycle,
                run_at,
                payload,
                repeat_every,
                next(self._revisions),
                progress,
                attempts,
                parked,
                retry_at,
            ),
        )

    def _ensure(
        self,
        given: Schedule,
        now: int,
        policy: Policy,
        handled: tuple[Ref, Row] | None,
        *,
        in_hand: bool,
    ) -> Row:
        """Arm what is not there, else keep its phase (R6a)."""
        ref = (given.tag, given.id)
        existing = self.rows.get(ref)
        if existing is None:
            return self._schedule(given, now, policy, handled, in_hand=False)
        if in_hand and handled is not None and handled[0] == ref:
            return existing
        row = existing
        if given.repeat_every != row.repeat_every:
            run_at = min(row.run_at, now + given.in_ms)
            row = attrs.evolve(row, repeat_every=given.repeat_every, run_at=run_at)
        row = attrs.evolve(row, lifecycle=given.lifecycle, payload=given.payload)
        if row == existing and type(row.payload) is type(existing.payload):
            return existing
        if row.lifecycle == MANUAL:
            row = attrs.evolve(row, attempts=0, parked=False, retry_at=None, progress=-1)
        return self._put(ref, attrs.evolve(row, revision=next(self._revisions)))

    def cancel(self, ref: Ref) -> bool:
        """Remove it with its attempt state (R9)."""
        return self.rows.pop(ref, None) is not None

    def is_current(self, ref: Ref, revision: int) -> bool:
        """Whether it is there and has not moved on."""
        row = self.rows.get(ref)
        return row is not None and row.revision == revision

    def acknowledge(self, ref: Ref, revision: int, now: int, policy: Policy) -> bool:
        """It was handled (R28, R36, R8); whether it still was that occurrence."""
        if not self.is_current(ref, revision):
            return False
        row = self.rows[ref]
        if row.repeat_every is None:
            return self.cancel(ref)
        self._put(
            ref,
            attrs.evolve(
                row,
                run_at=now + max(policy.minimum_repeat_interval, row.repeat_every),
                revision=next(self._revisions),
                attempts=0,
                parked=False,
                retry_at=None,
            ),
        )
        return True

    def fail(
        self, ref: Ref, revision: int, now: int, policy: Policy, initial: int | None
    ) -> Row | None:
        """It failed: one unchanged attempt more, back-off, parking at the budget (R28)."""
        if not self.is_current(ref, revision):
            return None
        row = self.rows[ref]
        attempts, parked = row.attempts, row.parked
        if not parked:
            attempts = max(attempts, min(policy.unchanged_attempt_budget, attempts + 1))
            parked = attempts >= policy.unchanged_attempt_budget
        return self._put(
            ref,
            attrs.evolve(
                row,
                revision=next(self._revisions),
                attempts=attempts,
                parked=parked,
                retry_at=now + delay(policy, attempts, parked=parked, initial=initial),
            ),
        )

    def move(self, ref: Ref, run_at: int) -> None:
        """A manual alarm comes back then; its revision stays (R26, R29)."""
        self.rows[ref] = attrs.evolve(self.rows[ref], run_at=run_at)

    def _put(self, ref: Ref, row: Row) -> Row:
        self.rows[ref] = row
        return row


def _check(given: Schedule, policy: Policy) -> None:
    recurs = given.repeat_every is not None or given.progress is not None
    if given.lifecycle == MANUAL and recurs:
        raise RefusedError("InvalidAlarmRefError")  # R5
    if given.repeat_every is not None and given.repeat_every < policy.minimum_repeat_interval:
        raise RefusedError("InvalidRepeatEveryError")  # R8
