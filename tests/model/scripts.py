"""Random scripts, drawn along a model so that they keep to states where something can go wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import attrs
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.model.alarms import MANUAL, Ref
from tests.model.dispatchers import FIRST, SECOND
from tests.model.dispatching import Handling
from tests.model.model import Model
from tests.model.steps import (
    NO_OVERRIDE,
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
    Lifecycle,
    Method,
    Move,
    OpenScope,
    Operation,
    Options,
    Outside,
    Override,
    Policy,
    Proceed,
    Raise,
    Refused,
    Reopen,
    Return,
    Run,
    Running,
    Schedule,
    Script,
    Serving,
    Step,
    Write,
)

T = TypeVar("T")

DEFINITIONS = FIRST | SECOND
TAGS = ("plain", "plain", "skip", "skip", "slow", "slow", "retry", "sweep", "sweep", "tidy")
IDS = ("x", "y")
PAYLOADS = (0, 1) * 5 + ("broken",)  # that does not decode
METHODS: tuple[Method, ...] = (
    "schedule_alarm",
    "schedule_alarm",
    "schedule_alarm_earlier",
    "schedule_alarm_earlier",
    "ensure_alarm",
)
MANUAL_IDS = ("x", "y", "z", "u", "v")  # more than have permits
ALL_SWEEPS = Block(
    tuple(Schedule("schedule_alarm", "sweep", id, 0, lifecycle="manual") for id in MANUAL_IDS)
)
SERVINGS: tuple[Serving, ...] = (
    "both",
    "both",
    "both",
    "set",
    "set",
    "process_due",
    "first",
    "second",
    "nothing",
)
RUNNINGS: tuple[Running, ...] = ("both", "first", "second", "set", "process_due")

policies = st.builds(
    Policy,
    in_flight_recovery=st.sampled_from([1_000, 500, 2_500]),
    minimum_retry_delay=st.sampled_from([1_000, 2_000]),
    unchanged_attempt_budget=st.sampled_from([2, 3, 1]),
    minimum_repeat_interval=st.sampled_from([1_000, 2_000]),
)
all_options = st.builds(
    Options,
    limit=st.sampled_from([100, 1, 2]),
    concurrency=st.sampled_from([1, 2]),
    timeout=st.sampled_from([None, None, 2_500]),
    retry_failed_after=st.sampled_from([None, 0, 1_750]),
    on_failure=st.sampled_from([True, True, False]),
)
overrides = st.sampled_from(
    [
        NO_OVERRIDE,
        NO_OVERRIDE,
        NO_OVERRIDE,
        NO_OVERRIDE,
        Override(unchanged_attempt_budget=1),
        Override(unchanged_attempt_budget=4),
        Override(in_flight_recovery=3_000),
    ]
)
answers: st.SearchStrategy[Action] = st.sampled_from(
    [
        Answer("retry"),
        Answer("skip-and-advance-repeat"),
        Answer("retry", after=2_250),
        Answer("retry", after=0),
        Return(),
        Raise(),
    ]
)


@attrs.frozen
class Aim:
    """Which alarms an operation is about, more often than others."""

    own: Handling | None = None
    parked: tuple[Ref, ...] = ()


def aim_of(model: Model, own: Handling | None = None) -> Aim:
    """What a caller aims at."""
    rows = model.stored.alarms.rows
    return Aim(own, tuple(ref for ref, row in rows.items() if row.parked))


@st.composite
def refs(draw: DrawFn, aim: Aim) -> Ref:
    """The handling's own alarm every other time, and now and then a parked one."""
    kind = draw(st.integers(0, 3))
    if kind < 2 and aim.own is not None:
        return aim.own.ref
    if kind == 2 and aim.parked:
        return draw(st.sampled_from(aim.parked))
    tag = draw(st.sampled_from(TAGS))
    return tag, draw(st.sampled_from(MANUAL_IDS if tag == "sweep" else IDS))


@st.composite
def schedules(draw: DrawFn, aim: Aim, *, in_block: bool = False) -> Schedule:
    """One of the three methods, seldom with another lifecycle than the tag's."""
    tag, id = draw(refs(aim))
    lifecycle: Lifecycle = DEFINITIONS[tag].lifecycle  # type: ignore[assignment] # of the two
    if draw(st.integers(0, 15)) == 15:
        lifecycle = "automatic" if lifecycle == MANUAL else "manual"
    method: Method = draw(st.sampled_from(METHODS))
    recurs = lifecycle == "automatic" or draw(st.integers(0, 15)) == 15
    return Schedule(
        method,
        tag,
        id,
        draw(st.sampled_from([0, -1_000, 500, 1_000, 1_500, 5_000])),
        draw(st.sampled_from(PAYLOADS)),
        lifecycle,
        draw(st.sampled_from([None, None, 1_000, 3_000, 500])) if recurs else None,
        draw(st.sampled_from([None, None, None, 0, 1, 2])) if recurs else None,
        standalone=in_block and draw(st.booleans()),
    )


@st.composite
def cancels(draw: DrawFn, aim: Aim, *, in_block: bool = False) -> Cancel:
    """A cancellation."""
    tag, id = draw(refs(aim))
    return Cancel(tag, id, standalone=in_block and draw(st.booleans()))


@st.composite
def blocks(draw: DrawFn, aim: Aim, depth: int = 0) -> Block:
    """A transaction block, with savepoints in it."""
    kinds: list[Callable[[], Operation]] = [
        lambda: draw(schedules(aim, in_block=True)),
        lambda: draw(schedules(aim, in_block=True)),
        lambda: draw(cancels(aim, in_block=True)),
        lambda: Write(draw(st.integers(0, 9))),
        lambda: Acknowledge(draw(st.sampled_from(["own", "own", "own", "copy", "other"]))),
    ]
    if aim.own is not None:
        kinds.append(Acknowledge)
    if depth < 2:
        kinds.append(lambda: draw(blocks(aim, depth + 1)))
        kinds.append(lambda: Deferred(Cancel("plain", "x")))
    count = draw(st.integers(1, 3))
    operations = tuple(draw(st.sampled_from(kinds))() for _ in range(count))
    return Block(operations, fails=draw(st.sampled_from([False, False, True])))


@st.composite
def operations(draw: DrawFn, aim: Aim) -> Operation:
    """What a caller may do to alarms."""
    kind = draw(st.integers(0, 11))
    if kind < 6:
        return draw(schedules(aim))
    if kind < 7:
        return draw(cancels(aim))
    if kind < 10:
        return draw(blocks(aim))
    if kind < 11 or aim.own is None:
        return Deferred(draw(schedules(aim)))
    return Refused(draw(st.sampled_from(["deliver", "run", "process_due"])))


@st.composite
def proceedings(draw: DrawFn, model: Model) -> Proceed:
    """What one of those who wait does next."""
    waiting = model.dispatching.waiting()
    which = draw(st.integers(0, len(waiting) - 1))
    own = waiting[which]
    if draw(st.integers(0, 9)) < (7 if own.stage == "handler" else 3):
        # A raised budget does not resume what is parked (R7).
        aim = aim_of(model, own)
        raised = own.row.parked or (aim.parked and draw(st.booleans()))
        override = Override(unchanged_attempt_budget=4) if raised else draw(overrides)
        return Proceed(which, Do(draw(operations(aim)), draw(st.booleans()), override))
    if own.stage == "on_failure":
        return Proceed(which, draw(answers))
    fails = draw(st.integers(0, 9)) < (7 if own.dispatch.dispatcher.options.on_failure else 5)
    action: Action = Raise() if fails else Return()
    return Proceed(which, action)


@st.composite
def moves(draw: DrawFn, model: Model) -> Move:
    """To an instant at which something happens, or a little further."""
    instants = [row.wake_at for row in model.stored.alarms.rows.values()]
    instants += [model.stored.guard_at] if model.stored.scopes else []
    instants += [
        one.times_out_at for one in model.dispatching.waiting() if one.times_out_at is not None
    ]
    steps = sorted({instant - model.now for instant in instants if instant > model.now})[:3]
    return Move(draw(st.sampled_from([*steps, 125, 1_000])))


@st.composite
def reopenings(draw: DrawFn, model: Model) -> Reopen:
    """The same again, another registration, or another configuration."""
    serving = draw(st.sampled_from([None, *SERVINGS]))
    policy = draw(policies) if draw(st.integers(0, 3)) == 3 else None
    return Reopen(serving, policy, crash=draw(st.booleans()))


@st.composite
def outside(draw: DrawFn, model: Model) -> Outside:
    """An operation by a task that handles nothing."""
    return Outside(draw(operations(aim_of(model))), draw(overrides))


deliveries = st.builds(Deliver, st.sampled_from([False, False, False, True]), overrides)
runs = st.builds(Run, st.sampled_from(RUNNINGS), overrides)


def closings(count: int) -> st.SearchStrategy[CloseScope]:
    """One of the scopes is left, in one of the ways."""
    how = st.sampled_from(["success", "error", "cancellation"])
    return st.builds(CloseScope, st.integers(0, count - 1), how)


@st.composite
def next_steps(draw: DrawFn, model: Model) -> Step:
    """A step for which the model's state is the right one."""
    stored = model.stored
    is_due = stored.native_alarm is not None and stored.native_alarm <= model.now
    open_calls = model.open_calls()
    may_call = model.managed and len(open_calls) < 2
    waits = bool(model.dispatching.waiting())
    kinds: list[tuple[int, Callable[[], Step]]] = [
        (15 if len(stored.alarms.rows) < 2 else 4, lambda: draw(outside(model))),
        (3 if waits or is_due else 10, lambda: draw(moves(model))),
        (1, lambda: Outside(ALL_SWEEPS)),
        (1, lambda: OpenScope(draw(overrides))),
        (1, lambda: draw(reopenings(model))),
    ]
    if waits:
        kinds.append((32, lambda: draw(proceedings(model))))
    if may_call:
        kinds.append((25 if is_due and not waits else 1, lambda: draw(deliveries)))
        kinds.append((1, lambda: Deliver(force=True)))
        kinds.append((2, lambda: draw(runs)))
        kinds.append((1, Consume))
    parked = [row.wake_at for row in stored.alarms.rows.values() if row.parked]
    if parked and min(parked) > model.now and not waits:
        kinds.append((5, lambda: Move(min(parked) - model.now)))
    if model.open_scopes:
        kinds.append((4, lambda: draw(closings(len(model.open_scopes)))))
    if open_calls:
        kinds.append((1, lambda: CancelCall(draw(st.integers(0, len(open_calls) - 1)))))
    chosen = draw(st.sampled_from([kind for weight, kind in kinds for _ in range(weight)]))
    return chosen()


@st.composite
def scripts(draw: DrawFn, length: int) -> Script:
    """A whole script."""
    opened = Script((), draw(st.sampled_from(SERVINGS)), draw(policies), draw(all_options))
    model = Model(opened)
    steps: list[Step] = []
    for _ in range(length):
        step = draw(next_steps(model))
        model.apply(step)
        steps.append(step)
    return Script(tuple(steps), opened.serving, opened.policy, opened.options)
