"""What grows with the number of alarms that are retained, none of which is due."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import trio

from trio_alarms import ServiceScheduler

from . import files
from .children import run_child
from .hosts import Chores, Countdown, open_chores, seconds_until_none_is_due
from .references import Alarm
from .rounds import Group, Row, Sample, Samples, Work

FEW: Final = "1,000"
MANY: Final = "1,000,000"

OPERATIONS: Final = ("schedule", "cancel", "dispatch", "reconcile")


def operations(work: Work, retained: Callable[[Work], int]) -> Sample:
    """The time per operation on a file that retains so many alarms; it is left as it was."""
    path = _retaining(work, retained(work))
    scattered = _scattered_alarms(retained(work), work.sizes.scale_operations)
    seconds = trio.run(_schedule_and_cancel, path, scattered)
    seconds["dispatch"] = trio.run(_dispatch, path, work.sizes.scale_operations)
    return {name: value / work.sizes.scale_operations for name, value in seconds.items()}


def opening(work: Work, retained: Callable[[Work], int]) -> Sample:
    """From opening a file that retains so many to the handler of the one that is due."""
    path = _retaining(work, retained(work))
    files.fill(path, files.due_alarms(1))
    return {"milliseconds": run_child("handled", path, 1)["seconds"] * 1000}


async def _schedule_and_cancel(path: Path, alarms: Sequence[Alarm]) -> dict[str, float]:
    calls = [(id, files.instant(run_at)) for _, id, run_at, _ in alarms]
    seconds: dict[str, float] = {}
    async with open_chores(path) as host:
        chores = host.service(Chores)
        for name, operation in (
            ("schedule", _schedule),
            ("reconcile", _reconcile),
            ("cancel", _cancel),
        ):
            began = time.perf_counter()
            await operation(chores, calls)
            seconds[name] = time.perf_counter() - began
    return seconds


async def _schedule(chores: ServiceScheduler, calls: Sequence[tuple[str, datetime]]) -> None:
    for id, run_at in calls:
        await chores.schedule_alarm(Chores.once, id, run_at=run_at, payload="work")


async def _cancel(chores: ServiceScheduler, calls: Sequence[tuple[str, datetime]]) -> None:
    for id, _ in calls:
        await chores.cancel_alarm(Chores.once, id)


async def _reconcile(chores: ServiceScheduler, calls: Sequence[tuple[str, datetime]]) -> None:
    """Once to the guard and once to the deadlines each time."""
    for _ in calls:
        async with chores.defer_wakes():
            pass


async def _dispatch(path: Path, count: int) -> float:
    due_before = files.now_ms()
    files.fill(path, files.due_alarms(count))
    countdown = Countdown(count)

    async def once(_: object) -> None:
        countdown.tick()

    async with open_chores(path, once=once) as host:
        began = time.perf_counter()
        return await seconds_until_none_is_due(host, countdown, due_before=due_before, began=began)


def _scattered_alarms(retained: int, count: int) -> list[Alarm]:
    """Alarms between the retained ones, all over the table and its indices."""
    stride = max(1, retained // count)
    return [
        (tag, f"alarm-{number * stride % retained}-{number}", run_at, payload)
        for number, (tag, _, run_at, payload) in enumerate(files.future_alarms(count))
    ]


def _retaining(work: Work, count: int) -> Path:
    path = work.kept / f"retaining-{count}.db"
    if not path.exists():
        files.make_file(path)
        files.fill(path, files.future_alarms(count))
    return path


def _few(work: Work) -> int:
    return work.sizes.few


def _many(work: Work) -> int:
    return work.sizes.retained


def _growth(operation: str) -> Callable[[Samples], float]:
    return lambda samples: samples[MANY][operation] / samples[FEW][operation]


SCALE: Final = Group(
    "scale",
    {
        FEW: partial(operations, retained=_few),
        MANY: partial(operations, retained=_many),
        "opening": partial(opening, retained=_many),
    },
    [
        *(
            Row(
                f"cost with 1,000,000 retained alarms over with 1,000: {operation}",
                _growth(operation),
                of="itself",
                bound=1.5,
                wanted=1.2,
            )
            for operation in OPERATIONS
        ),
        Row(
            "opening a host with 1,000,000 retained alarms to its first handler",
            lambda samples: samples["opening"]["milliseconds"],
            unit="ms",
            bound=150,
            wanted=50,
        ),
    ],
    long=True,
)
