"""What can be done to a host and to its model alike, as plain values that print as code.

A step means something in every state: what it names by number is taken modulo how many there
are, and where there is none the step does nothing. So any part of a failing script is a script.
All times are in ms, and multiples of 125: such clocks and timeouts are exact as floats too.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import attrs

Method: TypeAlias = Literal["schedule_alarm", "schedule_alarm_earlier", "ensure_alarm"]
Lifecycle: TypeAlias = Literal["automatic", "manual"]
# What serves the host's alarms, or is run directly: see `dispatchers.dispatchers`.
Serving: TypeAlias = Literal["both", "first", "second", "set", "process_due", "nothing"]
Running: TypeAlias = Literal["both", "first", "second", "set", "process_due"]


class _Value:
    """Shows itself as code, without what is by default."""

    def __repr__(self) -> str:
        shown = []
        kind: Any = type(self)
        for field in attrs.fields(kind):
            value = getattr(self, field.name)
            if field.default is attrs.NOTHING:
                shown.append(repr(value))
            elif value != field.default:
                shown.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


@attrs.frozen(repr=False)
class Override(_Value):
    """A `schedule_configuration` around a step."""

    unchanged_attempt_budget: int | None = None
    in_flight_recovery: int | None = None


NO_OVERRIDE: Final = Override()


@attrs.frozen(repr=False)
class Policy(_Value):
    """The host's configuration (R1)."""

    in_flight_recovery: int = 1_000
    minimum_retry_delay: int = 1_000
    unchanged_attempt_budget: int = 3
    parked_retry_delay: int = 3_600_000
    minimum_repeat_interval: int = 1_000


@attrs.frozen(repr=False)
class Options(_Value):
    """The dispatch options of the first service, of the set and of `process_due_alarms`."""

    limit: int = 100
    concurrency: int = 1
    timeout: int | None = None
    retry_failed_after: int | None = None
    on_failure: bool = False


DEFAULT_POLICY: Final = Policy()
DEFAULT_OPTIONS: Final = Options()


# Operations: what a caller does to alarms, from outside, in a handler or in an `on_failure`


@attrs.frozen(repr=False)
class Schedule(_Value):
    """One of the three methods that write an alarm; its deadline is `in_ms` from now.

    In a block it is the transaction's method, or with `standalone` the scheduler's (R13).
    """

    method: Method
    tag: str
    id: str
    in_ms: int
    payload: Any = 0
    lifecycle: Lifecycle = "automatic"
    repeat_every: int | None = None
    progress: int | None = None
    standalone: bool = False


@attrs.frozen(repr=False)
class Cancel(_Value):
    """`cancel_alarm`; `standalone` as in `Schedule`."""

    tag: str
    id: str
    standalone: bool = False


@attrs.frozen(repr=False)
class Acknowledge(_Value):
    """`tx.acknowledge`; only in a block.

    Given the event in hand, an equal copy of it, or the event of the handler that comes next.
    """

    event: Literal["own", "copy", "other"] = "own"


@attrs.frozen(repr=False)
class Write(_Value):
    """A row of application data; only in a block."""

    number: int


@attrs.frozen(repr=False)
class Block(_Value):
    """A transaction block, or inside one a savepoint; with `fails` it ends by an error."""

    operations: tuple[Operation, ...]
    fails: bool = False


@attrs.frozen(repr=False)
class Deferred(_Value):
    """An operation inside a `defer_wakes` scope of its own."""

    operation: Operation


@attrs.frozen(repr=False)
class Refused(_Value):
    """Something that a handler may not do: it would wait for itself (R21, R25)."""

    what: Literal["deliver", "run", "process_due"]


Operation: TypeAlias = "Schedule | Cancel | Acknowledge | Write | Block | Deferred | Refused"


# What a handler or an `on_failure` does that waits to be told


@attrs.frozen(repr=False)
class Do(_Value):
    """An operation, in a task that the handler starts where `child`."""

    operation: Operation
    child: bool = False
    override: Override = NO_OVERRIDE


@attrs.frozen(repr=False)
class Return(_Value):
    """The handler returns; an `on_failure` returns `None`."""


@attrs.frozen(repr=False)
class Raise(_Value):
    """The handler or the `on_failure` raises."""


@attrs.frozen(repr=False)
class Answer(_Value):
    """An `on_failure` returns this; `after` makes it a `Retry`. A handler returns."""

    action: Literal["retry", "skip-and-advance-repeat"] = "retry"
    after: int | None = None


Action: TypeAlias = Do | Return | Raise | Answer


# Steps


@attrs.frozen(repr=False)
class Outside(_Value):
    """An operation by a task that handles nothing."""

    operation: Operation
    override: Override = NO_OVERRIDE


@attrs.frozen(repr=False)
class Proceed(_Value):
    """Tell the `which`-th of the handlers that wait, in order of tag and id, what to do."""

    which: int
    action: Action


@attrs.frozen(repr=False)
class OpenScope(_Value):
    """A task of its own enters `defer_wakes()`, and stays."""

    override: Override = NO_OVERRIDE


@attrs.frozen(repr=False)
class CloseScope(_Value):
    """The `which`-th of these tasks leaves its scope."""

    which: int
    how: Literal["success", "error", "cancellation"] = "success"


@attrs.frozen(repr=False)
class Deliver(_Value):
    """A task of its own calls `deliver_native_alarm`."""

    force: bool = False
    override: Override = NO_OVERRIDE


@attrs.frozen(repr=False)
class Run(_Value):
    """A task of its own dispatches directly (R25)."""

    what: Running
    override: Override = NO_OVERRIDE


@attrs.frozen(repr=False)
class CancelCall(_Value):
    """The `which`-th of the deliveries and runs under way is cancelled."""

    which: int


@attrs.frozen(repr=False)
class Move(_Value):
    """Time passes."""

    by_ms: int


@attrs.frozen(repr=False)
class Consume(_Value):
    """The native alarm is forgotten, as by a platform that has delivered it."""


@attrs.frozen(repr=False)
class Reopen(_Value):
    """The host ends, by a crash where asked or where anything is under way, and is opened anew."""

    serving: Serving | None = None
    policy: Policy | None = None
    crash: bool = True


@attrs.frozen(repr=False)
class Nothing(_Value):
    """What a script is shrunk to."""


Step: TypeAlias = (
    Outside
    | Proceed
    | OpenScope
    | CloseScope
    | Deliver
    | Run
    | CancelCall
    | Move
    | Consume
    | Reopen
    | Nothing
)


@attrs.frozen(repr=False)
class Script(_Value):
    """How the host is opened first, and what then happens."""

    steps: tuple[Step, ...]
    serving: Serving = "both"
    policy: Policy = DEFAULT_POLICY
    options: Options = DEFAULT_OPTIONS

    def __str__(self) -> str:
        """As code over several lines, without the steps that do nothing."""
        shown = [repr(step) for step in self.steps if step != Nothing()]
        fields = ["(", *(f"    {step}," for step in shown), "),"]
        fields += [
            f"{name}={value!r},"
            for name, value in attrs.asdict(self, recurse=False).items()
            if name != "steps" and value != getattr(attrs.fields(Script), name).default
        ]
        return "\n".join(["Script(", *(f"    {line}" for line in fields), ")"])
