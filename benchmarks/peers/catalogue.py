"""Who is measured, and what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

import attrs

Kind: TypeAlias = Literal["ours", "job scheduler", "bare queue"]
Setting: TypeAlias = Literal["full", "default"]

SETTINGS: Final[Sequence[Setting]] = ("full", "default")


@attrs.frozen
class Peer:
    """A package, and the adapter that measures it.

    Attributes:
        module: The adapter in this package, and the name of its requirements file.
        title: What the table calls it.
        kind: What it is; a bare queue has no delay and no retry.
        distributions: Whose versions are recorded.
        one_setting: Whether what it does by itself is our durability, so that it is measured once.
        leaves_out: What a bare queue does not do for each job that a scheduler does.
    """

    module: str
    title: str
    kind: Kind
    distributions: Sequence[str]
    one_setting: bool = False
    leaves_out: str = ""

    @property
    def settings(self) -> Sequence[Setting]:
        """In which settings it is measured."""
        return ("full",) if self.one_setting else SETTINGS


OURS: Final = Peer("ours", "trio_alarms", "ours", ("trio_alarms", "trio"), one_setting=True)

_NO_SCHEDULER: Final = (
    "no due times; no retry, backoff or time limit; no identity that replaces or cancels a job; no"
    " worker, the loop is the application's"
)

PEERS: Final[Sequence[Peer]] = (
    OURS,
    Peer("apscheduler3", "APScheduler 3", "job scheduler", ("APScheduler", "SQLAlchemy")),
    Peer(
        "apscheduler4", "APScheduler 4", "job scheduler", ("APScheduler", "SQLAlchemy", "aiosqlite")
    ),
    Peer("huey", "huey", "job scheduler", ("huey",)),
    Peer("dura", "dura", "job scheduler", ("dura",), one_setting=True),
    Peer(
        "litequeue",
        "litequeue",
        "bare queue",
        ("litequeue",),
        leaves_out=f"{_NO_SCHEDULER}; noticing that a claimed message was never done is the"
        " application's",
    ),
    Peer(
        "persistqueue",
        "persist-queue",
        "bare queue",
        ("persist-queue",),
        one_setting=True,
        leaves_out=f"{_NO_SCHEDULER}; payloads are pickles; what was acknowledged stays stored"
        " until the application clears it",
    ),
)


@attrs.frozen
class Measure:
    """One row of the table.

    Attributes:
        name: How the results call it.
        title: How the table does; `{}` stands for the sizes of the run.
        unit: Of its figures.
        better: Whether the greater or the lesser figure is ahead.
        against: Of which kinds of peers we must be ahead.
        floor: Figures on the good side of this say the same: both are as good as none.
    """

    name: str
    title: str
    unit: str
    better: Literal["more", "less"]
    against: frozenset[Kind]
    floor: float | None = None


_SCHEDULERS: Final[frozenset[Kind]] = frozenset({"job scheduler"})
_ALL: Final[frozenset[Kind]] = frozenset({"job scheduler", "bare queue"})

MEASURES: Final[Sequence[Measure]] = (
    Measure("schedule_1", "schedule a job, 1 caller", "jobs/s", "more", _SCHEDULERS),
    Measure("schedule_100", "schedule a job, 100 callers", "jobs/s", "more", _ALL),
    Measure(
        "growth",
        "time to schedule, {many} retained over {few}",
        "\N{MULTIPLICATION SIGN}",
        "less",
        _SCHEDULERS,
        floor=1.2,
    ),
    Measure("dispatch", "run {due} due jobs, one at a time", "jobs/s", "more", _SCHEDULERS),
    Measure("dispatch_pool", "run {due} due jobs, in its pool", "jobs/s", "more", _SCHEDULERS),
    Measure("wake_p50", "start after due, p50", "ms", "less", _ALL),
    Measure("wake_p99", "start after due, p99", "ms", "less", _ALL),
    Measure("idle", "CPU while {idle} jobs wait", "ms/min", "less", _SCHEDULERS, floor=6.0),
    Measure("recovery", "interrupted job runs again, from opening", "ms", "less", _ALL),
)


@attrs.frozen
class Sizes:
    """How much of each.

    Attributes:
        schedule: Jobs that one caller schedules.
        concurrent: Jobs that 100 callers schedule together.
        few: Retained jobs that growth is measured from.
        many: Retained jobs that it is measured to.
        grown: Jobs scheduled in each of the two.
        due: Jobs that are dispatched.
        limit: When a dispatch or a schedule measure is stopped, in seconds; the rate still counts.
        woken: Jobs that fall due one after another.
        waiting: Jobs that wait while nothing happens.
        idle: How long nothing happens, in seconds.
        patience: How long an interrupted job may take to run again, in seconds.
    """

    schedule: int = 1_000
    concurrent: int = 2_000
    few: int = 1_000
    many: int = 100_000
    grown: int = 500
    due: int = 10_000
    limit: float = 15.0
    woken: int = 100
    waiting: int = 100_000
    idle: float = 10.0
    patience: float = 5.0


FULL: Final = Sizes()
QUICK: Final = Sizes(
    schedule=300,
    concurrent=500,
    many=20_000,
    grown=200,
    due=1_000,
    limit=15.0,
    woken=30,
    waiting=10_000,
    idle=5.0,
    patience=3.0,
)


@attrs.frozen
class Trial:
    """One run of a child process, and which orders it takes; see `child.Order` for the fields."""

    name: str
    order: dict[str, Any]


def trials(sizes: Sizes) -> list[Trial]:
    """What each peer does in a round. Recovery takes two processes, and is not among them."""
    return [
        Trial("schedule_1", {"measure": "schedule", "count": sizes.schedule}),
        Trial("schedule_100", {"measure": "schedule", "count": sizes.concurrent, "callers": 100}),
        Trial("few", {"measure": "schedule", "count": sizes.grown, "retained": sizes.few}),
        Trial("many", {"measure": "schedule", "count": sizes.grown, "retained": sizes.many}),
        Trial("dispatch", {"measure": "dispatch", "count": sizes.due}),
        Trial("dispatch_pool", {"measure": "dispatch", "count": sizes.due, "pool": True}),
        Trial("wake", {"measure": "wake", "count": sizes.woken, "pool": True}),
        Trial("idle", {"measure": "idle", "retained": sizes.waiting, "seconds": sizes.idle}),
    ]
