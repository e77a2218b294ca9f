"""Dispatch, from what is due to what became of each row: R25-R30 and R36.

Nothing runs by itself. A handler or an `on_failure` is a `Handling` that waits until it is told
to return or to raise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

import attrs

from tests.model.alarms import AUTOMATIC, MANUAL, Ref, RefusedError, Row
from tests.model.dispatchers import Definition, Dispatcher, dispatchers
from tests.model.steps import DEFAULT_OPTIONS, Answer, Options, Policy, Serving
from tests.model.stored import Stored

MANUAL_AT_A_TIME: Final = 4  # R27
MANUAL_LIMIT: Final = 100  # R25


@attrs.frozen
class Due:
    """An `AlarmDue`."""

    tag: str
    id: str
    payload: Any
    scheduled_at: int
    attempts: int


class UnsettledError(Exception):
    """The rules leave open what comes next, and it was not seen either."""


@attrs.define(eq=False)
class Handling:
    """One run of one row's handler, with its `on_failure` (R4).

    `row` is the row as it was re-read. Over, a manual one stays in hand until it is moved (R6).
    """

    dispatch: Dispatch
    ref: Ref
    row: Row
    definition: Definition | None  # none: nothing serves the row
    due: Due | None = None  # none: it does not decode, or nothing serves it
    times_out_at: int | None = None
    stage: Literal["handler", "on_failure", "over"] = "handler"
    error: str = ""


@attrs.define(eq=False)
class Dispatch:
    """One dispatcher at work on what it found due (R25)."""

    work: Work
    dispatcher: Dispatcher
    automatic: list[tuple[Ref, Row]]  # not started, in order
    manual: list[tuple[Ref, Row]]  # not started, in order
    moved: list[tuple[Ref, int]] = attrs.Factory(list)  # manual ones with their revision (R26)
    is_over: bool = False


@attrs.define(eq=False)
class Work:
    """A pass (R21), or a direct run (R25); `call` is whose outcome it is."""

    call: int
    policy: Policy
    is_pass: bool
    serving: Serving
    joiners: list[tuple[int, Policy]] = attrs.Factory(list)
    dispatches: list[Dispatch] = attrs.Factory(list)
    handled: list[Due] = attrs.Factory(list)
    failed: list[tuple[str, str, str, Due | None]] = attrs.Factory(list)
    parked: list[tuple[int, int]] = attrs.Factory(list)
    errors: list[str] = attrs.Factory(list)
    is_over: bool = False


class Dispatching:
    """All dispatches of a host.

    `seen_running` settles what the rules leave open: which of several dispatchers' manual alarms
    gets the next permit. Where it cannot, the model goes no further: `UnsettledError`.
    """

    def __init__(self, stored: Stored, options: Options) -> None:
        self.seen_running: frozenset[Ref] | None = None
        self.handlings: list[Handling] = []
        self._stored = stored
        self._alarms = stored.alarms
        self._options = options

    def waiting(self) -> list[Handling]:
        """The handlers and `on_failure`s that wait to be told, in order of tag and id."""
        found = [one for one in self.handlings if one.stage != "over"]
        return sorted(found, key=lambda one: one.ref)

    def in_hand(self, ref: Ref) -> bool:
        """Whether the row is the one that a handling of this process re-read (R6)."""
        return any(
            one.ref == ref and self._alarms.is_current(ref, one.row.revision)
            for one in self.handlings
        )

    def begin(self, work: Work) -> None:
        """Every dispatcher looks at what is due, at once (R30), and starts."""
        for dispatcher in dispatchers(work.serving, self._options):
            self._select(work, dispatcher)
        self._go_on(work)

    def cancel(self, work: Work) -> None:
        """Nothing is charged, and manual rows stay as they are (R28, R29)."""
        self.handlings = [one for one in self.handlings if one.dispatch.work is not work]

    def pass_time(self) -> None:
        """Handlers that have run past their timeout fail (R28)."""
        late = [
            one
            for one in self.handlings
            if one.stage == "handler"
            and one.times_out_at is not None
            and one.times_out_at <= self._stored.now
        ]
        if self.seen_running is not None and len({one.dispatch.work.call for one in late}) > 1:
            raise UnsettledError  # one may free what the other waits for, at the same instant
        for one in late:
            self.handler_fails(one, "TooSlowError")

    def acknowledge(self, handling: Handling | None, policy: Policy) -> bool:
        """The event in hand is acknowledged within a transaction (R36)."""
        if handling is None or handling.due is None or handling.row.lifecycle == MANUAL:
            raise RefusedError("InvalidAlarmRefError")
        revision = handling.row.revision
        done = self._alarms.acknowledge(handling.ref, revision, self._stored.now, policy)
        if done:
            self._stored.acknowledged.add(revision)
        return done

    def handler_returns(self, handling: Handling) -> None:
        """An automatic row is acknowledged (R28), a manual one is not (R29)."""
        assert handling.due is not None
        work = handling.dispatch.work
        work.handled.append(handling.due)
        handling.stage = "over"
        if handling.row.lifecycle == AUTOMATIC:
            self.handlings.remove(handling)
            self._acknowledge(handling)
        self._go_on(work)

    def handler_fails(self, handling: Handling, error: str) -> None:
        """Ask `on_failure` where there is one (R28)."""
        self._fails(handling, error)
        self._go_on(handling.dispatch.work)

    def on_failure_answers(self, handling: Handling, answer: Answer | None) -> None:
        """Skip, or record the failure (R28)."""
        self._settle(handling, answer)
        self._go_on(handling.dispatch.work)

    def on_failure_fails(self, handling: Handling) -> None:
        """The retry is recorded, and the error is raised in the end (R28)."""
        handling.dispatch.work.errors.append("OnFailureError")
        self._settle(handling, None, must_retry=True)
        self._go_on(handling.dispatch.work)

    def _select(self, work: Work, dispatcher: Dispatcher) -> None:
        """What is due now, in order; manual rows are moved before any handler runs (R25, R26)."""
        due = [
            (ref, row)
            for ref, row in self._alarms.in_order()
            if row.wake_at <= self._stored.now and dispatcher.sees(ref[0], row.lifecycle)
        ]
        automatic = [one for one in due if one[1].lifecycle == AUTOMATIC]
        manual = [one for one in due if one[1].lifecycle == MANUAL][:MANUAL_LIMIT]
        dispatch = Dispatch(work, dispatcher, automatic[: dispatcher.options.limit], manual)
        work.dispatches.append(dispatch)
        for ref, row in manual:
            is_served = dispatcher.serves(ref[0], MANUAL) is not None
            policy = work.policy
            wait = policy.in_flight_recovery if is_served else policy.parked_retry_delay
            self._alarms.move(ref, self._stored.now + wait)
            dispatch.moved.append((ref, row.revision))
        if manual:
            self._stored.commit()

    def _go_on(self, work: Work) -> None:
        """Start what may start (R27), and end what has nothing left."""
        for dispatch in work.dispatches:
            concurrency = dispatch.dispatcher.options.concurrency
            while dispatch.automatic and self._running(dispatch) < concurrency:
                self._start(dispatch, *dispatch.automatic.pop(0))
        for dispatch in self._manual_turns(work):
            self._start(dispatch, *dispatch.manual.pop(0))
        for dispatch in work.dispatches:
            waits = any(one.dispatch is dispatch and one.stage != "over" for one in self.handlings)
            if not (dispatch.is_over or dispatch.automatic or dispatch.manual or waits):
                self._end(dispatch)
        if not all(dispatch.is_over for dispatch in work.dispatches):
            return
        last = work.dispatches[-1].dispatcher
        if work.is_pass and work.serving in ("set", "process_due") and not last.leftover:
            self._select(work, attrs.evolve(last, options=DEFAULT_OPTIONS, leftover=True))  # R33
            self._go_on(work)
        else:
            work.is_over = True

    def _running(self, dispatch: Dispatch) -> int:
        """How many automatic handlers of it run."""
        return sum(
            one.dispatch is dispatch and one.row.lifecycle == AUTOMATIC for one in self.handlings
        )

    def _manual_turns(self, work: Work) -> Iterator[Dispatch]:
        """Whose next manual row gets a permit, as long as there are any."""
        while True:
            taken = sum(
                one.dispatch.work is work and one.row.lifecycle == MANUAL and one.stage != "over"
                for one in self.handlings
            )
            ready = [dispatch for dispatch in work.dispatches if dispatch.manual]
            if not ready or taken >= MANUAL_AT_A_TIME:
                return
            waiting = sum(len(dispatch.manual) for dispatch in ready)
            if self.seen_running is None or waiting <= MANUAL_AT_A_TIME - taken:
                yield ready[0]  # nobody looks, or there are permits for all
                continue
            # A row whose handler is not run has its permit for a moment, which nobody sees.
            seen = [one for one in ready if one.manual[0][0] in self.seen_running]
            if len(ready) > 1 and not (seen and all(self._runs(one) for one in ready)):
                raise UnsettledError
            yield (seen or ready)[0]

    def _runs(self, dispatch: Dispatch) -> bool:
        """Whether its next manual row has a handler, decodes and is nowhere in hand."""
        ref, selected = dispatch.manual[0]
        return (
            self._alarms.is_current(ref, selected.revision)
            and not any(one.ref == ref for one in self.handlings)
            and dispatch.dispatcher.serves(ref[0], MANUAL) is not None
            and dispatch.dispatcher.decodes(selected.payload)
        )

    def _start(self, dispatch: Dispatch, ref: Ref, selected: Row) -> None:
        """Re-read a row and run its handler, unless it moved on or is in hand elsewhere (R27)."""
        if not self._alarms.is_current(ref, selected.revision):
            return
        is_running = any(one.ref == ref and one.stage != "over" for one in self.handlings)
        if is_running or self.in_hand(ref):
            dispatch.moved = [one for one in dispatch.moved if one[0] != ref]
            return
        dispatcher = dispatch.dispatcher
        definition = dispatcher.serves(ref[0], selected.lifecycle)
        row = self._alarms.rows[ref]
        handling = Handling(dispatch, ref, row, definition)
        self.handlings.append(handling)
        if definition is None:
            is_manual = selected.lifecycle == MANUAL
            error = "InvalidAlarmRegistrationError" if is_manual else "StoredAlarmDecodeError"
            self._fails(handling, error)
        elif not dispatcher.decodes(row.payload):
            self._fails(handling, "StoredAlarmDecodeError")
        else:
            # A manual alarm's handler sees the deadline from before it was moved.
            handling.due = Due(*ref, row.payload, selected.run_at, row.attempts)
            limit = definition.timeout or dispatcher.options.timeout
            handling.times_out_at = None if limit is None else self._stored.now + limit

    def _end(self, dispatch: Dispatch) -> None:
        """Manual rows that are still the same occurrence come back in an hour (R29)."""
        dispatch.is_over = True
        self.handlings = [one for one in self.handlings if one.dispatch is not dispatch]
        for ref, revision in dispatch.moved:
            if self._alarms.is_current(ref, revision):
                self._alarms.move(ref, self._stored.now + dispatch.work.policy.parked_retry_delay)
        if dispatch.moved:
            self._stored.commit()

    def _fails(self, handling: Handling, error: str) -> None:
        handling.error = error
        if handling.row.lifecycle == MANUAL:
            handling.stage = "over"
            handling.dispatch.work.errors.append(error)
        elif handling.dispatch.dispatcher.options.on_failure:
            handling.stage = "on_failure"
        else:
            self._settle(handling, None)

    def _settle(
        self, handling: Handling, answer: Answer | None, *, must_retry: bool = False
    ) -> None:
        work, definition = handling.dispatch.work, handling.definition
        handling.stage = "over"
        self.handlings.remove(handling)
        work.failed.append((*handling.ref, handling.error, handling.due))
        action = "retry" if answer is None else answer.action
        initial = handling.dispatch.dispatcher.options.retry_failed_after
        if answer is not None and answer.after is not None:
            initial = answer.after
        if definition is not None:
            action = definition.failure or action
            initial = definition.retry_initial_delay or initial
        if action == "skip-and-advance-repeat" and handling.due is not None and not must_retry:
            self._acknowledge(handling)
            return
        revision = handling.row.revision
        if revision not in self._stored.acknowledged:
            self._alarms.fail(handling.ref, revision, self._stored.now, work.policy, initial)
            work.parked += self._stored.commit()

    def _acknowledge(self, handling: Handling) -> None:
        policy, revision = handling.dispatch.work.policy, handling.row.revision
        if revision not in self._stored.acknowledged:  # else there is nothing left to write (R36)
            self._alarms.acknowledge(handling.ref, revision, self._stored.now, policy)
            self._stored.commit()
