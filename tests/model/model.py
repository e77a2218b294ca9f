"""A host by the rules alone: its operations, deliveries and runs, step by step.

The rules are stated a second time here, without a database and without tasks: rows in `alarms`
(R3-R9), commits and the native alarm in `stored` (R16-R20), dispatch in `dispatching` (R25-R30,
R36), and on top of them operations (R10, R13, R17) and passes (R21-R24).
"""

from __future__ import annotations

from functools import singledispatchmethod
from typing import Any, Final, TypeAlias

import attrs

from tests.model.alarms import RefusedError
from tests.model.dispatching import Dispatching, Handling, Work
from tests.model.steps import (
    Acknowledge,
    Action,
    Answer,
    Block,
    Cancel,
    CancelCall,
    CloseScope,
    Consume,
    Deferred,
    Deliver,
    Do,
    Move,
    OpenScope,
    Operation,
    Outside,
    Override,
    Policy,
    Proceed,
    Raise,
    Refused,
    Reopen,
    Run,
    Schedule,
    Script,
    Step,
    Write,
)
from tests.model.stored import Stored


@attrs.frozen
class Returned:
    """A call returned this."""

    value: Any


@attrs.frozen
class Raised:
    """A call raised errors of these classes, sorted; `inner` is what a block had done before."""

    names: tuple[str, ...]
    inner: tuple[Outcome, ...] = ()


Outcome: TypeAlias = Returned | Raised
ANYTHING: Final = Raised(("anything",))  # a direct run in a process that was lost


@attrs.frozen
class Caller:
    """In whose name an operation is done."""

    policy: Policy
    handling: Handling | None = None


class Model:
    """A host, and all that its rows, native alarm, results and reports should be."""

    def __init__(self, script: Script) -> None:
        self.serving = script.serving
        self.policy = script.policy
        self.stored = Stored()
        self.managed = False
        self.calls: dict[int, Outcome | None] = {}
        self._options = script.options
        self._count = 0
        self._restart()

    def _restart(self) -> None:
        self.stored.forget()
        self.dispatching = Dispatching(self.stored, self._options)
        self.open_scopes: list[int] = []  # those of tasks of their own
        self._works: list[Work] = []

    @property
    def now(self) -> int:
        """The time in ms."""
        return self.stored.now

    @property
    def current_pass(self) -> Work | None:
        """The pass that waits or is active."""
        return next((work for work in self._works if work.is_pass), None)

    def open_calls(self) -> list[int]:
        """The deliveries and runs under way."""
        return [call for call, outcome in self.calls.items() if outcome is None]

    def apply(self, step: Step) -> Outcome | None:
        """Do a step; what the operation in it came to, if there is one."""
        self.stored.reports.clear()
        outcome: Outcome | None = self._apply(step)
        self.managed = self.managed or bool(self.stored.alarms.rows)
        return outcome

    # The steps

    @singledispatchmethod
    def _apply(self, _: Step) -> Outcome | None:
        return None

    @_apply.register
    def _outside(self, step: Outside) -> Outcome | None:
        match step.operation:
            case Refused() | Deferred(Refused()):
                return None  # only handlers are refused these
            case operation:
                return self._operate(operation, Caller(self._resolve(step.override)))

    @_apply.register
    def _proceed(self, step: Proceed) -> Outcome | None:
        waiting = self.dispatching.waiting()
        if not waiting:
            return None
        handling = waiting[step.which % len(waiting)]
        outcome = self._tell(handling, step.action)
        self._end_works()
        return outcome

    @_apply.register
    def _open_scope(self, step: OpenScope) -> None:
        self._count += 1
        self.open_scopes.append(self._count)
        self._enter_scope(self._resolve(step.override))

    @_apply.register
    def _close_scope(self, step: CloseScope) -> None:
        if self.open_scopes:
            del self.open_scopes[step.which % len(self.open_scopes)]
            self._leave_scope()

    @_apply.register
    def _deliver(self, step: Deliver) -> None:
        call, policy = self._new_call(), self._resolve(step.override)
        native_alarm = self.stored.native_alarm
        if not step.force and (native_alarm is None or native_alarm > self.now):
            self.calls[call] = Returned(value=False)
        else:
            self._start_or_join(call, policy)

    @_apply.register
    def _run(self, step: Run) -> None:
        call, policy = self._new_call(), self._resolve(step.override)
        self._enter_scope(policy)
        self._begin(Work(call, policy, is_pass=False, serving=step.what))

    @_apply.register
    def _cancel_call(self, step: CancelCall) -> None:
        calls = self.open_calls()
        if not calls:
            return
        call = calls[step.which % len(calls)]
        self.calls[call] = Raised(("Cancelled",))
        for work in list(self._works):
            work.joiners = [one for one in work.joiners if one[0] != call]
            if work.call == call:
                self.dispatching.cancel(work)
                self._leave(work)  # deadlines are reconciled at once (R24)
                for joiner, policy in work.joiners:
                    self._start_or_join(joiner, policy)  # R21

    @_apply.register
    def _move(self, step: Move) -> None:
        self.stored.now += step.by_ms
        waits = self.current_pass is not None and not self.stored.pass_is_active
        if waits and self.stored.guard_at <= self.now:
            self.stored.reconcile()  # as long as it waits, the guard is committed again (R22)
        self.dispatching.pass_time()
        self._end_works()

    @_apply.register
    def _consume(self, _: Consume) -> None:
        self.stored.native_alarm = None

    @_apply.register
    def _reopen(self, step: Reopen) -> None:
        for call in self.open_calls():
            is_run = any(work.call == call and not work.is_pass for work in self._works)
            self.calls[call] = ANYTHING if is_run else Returned(value=False)
        self._restart()
        self.serving = step.serving or self.serving
        self.policy = step.policy or self.policy
        self.stored.reconcile()  # R20

    def _resolve(self, override: Override, below: Policy | None = None) -> Policy:
        """The override's fields first (R2)."""
        given = {name: value for name, value in attrs.asdict(override).items() if value is not None}
        return attrs.evolve(self.policy if below is None else below, **given)

    def _new_call(self) -> int:
        self._count += 1
        self.calls[self._count] = None
        return self._count

    # What a caller does to alarms

    def _operate(self, operation: Operation, caller: Caller) -> Outcome:
        """An operation that is in no block: it commits by itself."""
        if isinstance(operation, Refused):
            return Raised(("AlarmPassError",))
        if isinstance(operation, Deferred):
            self._enter_scope(caller.policy)
            outcome = self._operate(operation.operation, caller)
            self._leave_scope()
            return outcome
        outcome = self._perform(operation, caller)
        if isinstance(outcome, Returned):
            parked = self.stored.commit()
            if caller.handling is not None:
                caller.handling.dispatch.work.parked += parked
        return outcome

    def _perform(self, operation: Operation, caller: Caller) -> Outcome:
        """An operation as a savepoint: a failed one is undone, alone (R13)."""
        snapshot = self.stored.snapshot()
        try:
            return Returned(self._effect(operation, caller))
        except RefusedError as refused:
            self.stored.restore(snapshot)
            return Raised((refused.name,), refused.inner)

    def _effect(self, operation: Operation, caller: Caller) -> Any:
        alarms = self.stored.alarms
        result: Any = None
        match operation:
            case Schedule(tag=tag, id=id):
                handling = caller.handling
                result = alarms.change(
                    operation,
                    self.now,
                    caller.policy,
                    handled=None if handling is None else (handling.ref, handling.row),
                    in_hand=self.dispatching.in_hand((tag, id)),
                ).status
            case Cancel(tag, id):
                result = alarms.cancel((tag, id))
            case Write(number):
                self.stored.journal.append(number)
            case Acknowledge(event):
                handling = caller.handling if event == "own" else None
                result = self.dispatching.acknowledge(handling, caller.policy)
            case Block(operations, fails):
                result = tuple(self._perform(one, caller) for one in operations)
                if fails:
                    raise RefusedError("BlockError", result)
            case Deferred() | Refused():
                raise RefusedError("StorageOperationError")  # not in a block (R17)
        return result

    def _tell(self, handling: Handling, action: Action) -> Outcome | None:
        """What a handler or an `on_failure` does next."""
        if isinstance(action, Do):
            policy = self._resolve(action.override, below=handling.dispatch.work.policy)
            return self._operate(action.operation, Caller(policy, handling))
        if handling.stage == "handler":
            if isinstance(action, Raise):
                self.dispatching.handler_fails(handling, "HandlerError")
            else:
                self.dispatching.handler_returns(handling)
        elif isinstance(action, Raise):
            self.dispatching.on_failure_fails(handling)
        else:
            answer = action if isinstance(action, Answer) else None
            self.dispatching.on_failure_answers(handling, answer)
        return None

    # Scopes, passes and direct runs

    def _enter_scope(self, policy: Policy) -> None:
        self.managed = True
        self.stored.enter_scope(policy)

    def _leave_scope(self) -> None:
        """A pass that waits for the scopes begins after the last (R19, R22)."""
        was_last = self.stored.leave_scope()
        waiting = self.current_pass
        if was_last and waiting is not None and not self.stored.pass_is_active:
            self._begin(waiting)

    def _start_or_join(self, call: int, policy: Policy) -> None:
        """One pass at a time; who joins, or has to wait, commits the guard again (R21, R22)."""
        current = self.current_pass
        if current is not None:
            current.joiners.append((call, policy))
            self.stored.reconcile()
            return
        work = Work(call, policy, is_pass=True, serving=self.serving)
        if self.stored.scopes:
            self._works.append(work)
            self.stored.reconcile()
        else:
            self._begin(work)

    def _begin(self, work: Work) -> None:
        if work not in self._works:
            self._works.append(work)
        if work.is_pass:
            self.stored.begin_pass(work.policy)
        self.dispatching.begin(work)
        self._end_works()

    def _end_works(self) -> None:
        """What came of those that are over."""
        while (work := next((one for one in self._works if one.is_over), None)) is not None:
            self._leave(work)
            self.calls[work.call] = _outcome(work)
            joined = Raised(("AlarmPassError",)) if work.errors else Returned(value=True)
            self.calls.update({call: joined for call, _ in work.joiners})

    def _leave(self, work: Work) -> None:
        self._works.remove(work)
        if not work.is_pass:
            self._leave_scope()
        elif work.dispatches:
            self.stored.end_pass()
        else:
            self.stored.reconcile()  # it never began


def _outcome(work: Work) -> Outcome:
    if work.errors:
        return Raised(tuple(sorted(work.errors)))
    if work.is_pass:
        return Returned(value=True)
    if len(work.dispatches) > 1:  # only the order of each one's is known
        work.handled.sort(key=repr)
        work.failed.sort(key=repr)
    return Returned((work.handled, work.failed, sorted(work.parked)))
