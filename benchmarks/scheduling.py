"""Scheduling: one caller, a hundred, and together with a row of the application's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Final

import trio

from trio_alarms import ServiceScheduler

from . import files, references
from .hosts import Chores, Executor, open_chores
from .references import Alarm
from .rounds import Group, Row, Sample, Work, speed

_WARM_UP: Final = 20
_INSERT_NOTE: Final = references.INSERT_NOTE


def bare(work: Work) -> Sample:
    """The reference: read, write, least wake, native alarm, commit; in this thread."""
    return _bare(work, work.sizes.operations)


def bare_as_many(work: Work) -> Sample:
    """The same, for as many alarms as many callers arm, as a larger table costs more."""
    return _bare(work, work.sizes.concurrent_operations)


def _bare(work: Work, operations: int) -> Sample:
    database = files.make_reference_file(work.folder / "bare.db")
    warm_up, alarms = _alarms(operations)
    for alarm in warm_up:
        references.schedule(database, alarm)
    began = time.perf_counter()
    for alarm in alarms:
        references.schedule(database, alarm)
    seconds = time.perf_counter() - began
    database.close()
    return {"seconds": seconds / len(alarms)}


def threaded(work: Work) -> Sample:
    """The same, each sent to a thread."""
    database = files.make_reference_file(work.folder / "threaded.db")
    warm_up, alarms = _alarms(work.sizes.operations)
    operation = partial(references.schedule, database)

    async def main() -> float:
        await references.threaded(operation, warm_up)
        began = time.perf_counter()
        await references.threaded(operation, alarms)
        return time.perf_counter() - began

    seconds = trio.run(main)
    database.close()
    return {"seconds": seconds / len(alarms)}


def batched(work: Work) -> Sample:
    """The reference for many callers: one leader, one commit for all that wait."""
    database = files.make_reference_file(work.folder / "batched.db")
    warm_up, alarms = _alarms(work.sizes.concurrent_operations)
    shares = [alarms[first :: work.sizes.callers] for first in range(work.sizes.callers)]

    async def main() -> float:
        await references.batched(database, [warm_up])
        began = time.perf_counter()
        await references.batched(database, shares)
        return time.perf_counter() - began

    seconds = trio.run(main)
    database.close()
    return {"seconds": seconds / len(alarms)}


def one_caller(work: Work, executor: Executor) -> Sample:
    """`schedule_alarm`, one call after the other."""
    warm_up, alarms = _alarms(work.sizes.operations)

    async def main() -> float:
        async with open_chores(work.folder / "ours.db", executor=executor) as host:
            chores = host.service(Chores)
            await _schedule(chores, _calls(warm_up))
            calls = _calls(alarms)
            began = time.perf_counter()
            await _schedule(chores, calls)
            return time.perf_counter() - began

    return {"seconds": trio.run(main) / len(alarms)}


def many_callers(work: Work, executor: Executor) -> Sample:
    """`schedule_alarm` from many tasks, each one call after the other."""
    warm_up, alarms = _alarms(work.sizes.concurrent_operations)
    calls = _calls(alarms)
    shares = [calls[first :: work.sizes.callers] for first in range(work.sizes.callers)]

    async def main() -> float:
        async with open_chores(work.folder / "ours.db", executor=executor) as host:
            chores = host.service(Chores)
            await _schedule(chores, _calls(warm_up))
            began = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for share in shares:
                    nursery.start_soon(_schedule, chores, share)
            return time.perf_counter() - began

    return {"seconds": trio.run(main) / len(alarms)}


def threaded_with_note(work: Work) -> Sample:
    """The reference for a transaction block: an insert and an alarm, sent in one trip."""
    path = work.folder / "threaded.db"
    database = files.make_reference_file(path)
    files.make_notes(path)
    warm_up, alarms = _alarms(work.sizes.operations)
    operation = partial(references.schedule, database, note="work")

    async def main() -> float:
        await references.threaded(operation, warm_up)
        began = time.perf_counter()
        await references.threaded(operation, alarms)
        return time.perf_counter() - began

    seconds = trio.run(main)
    database.close()
    return {"seconds": seconds / len(alarms)}


def transaction_block(work: Work) -> Sample:
    """A block with one insert of the application's and one alarm."""
    path = work.folder / "ours.db"
    files.make_file(path)
    files.make_notes(path)
    warm_up, alarms = _alarms(work.sizes.operations)

    async def main() -> float:
        async with open_chores(path) as host:
            chores = host.service(Chores)
            await _schedule_with_notes(chores, _calls(warm_up))
            calls = _calls(alarms)
            began = time.perf_counter()
            await _schedule_with_notes(chores, calls)
            return time.perf_counter() - began

    return {"seconds": trio.run(main) / len(alarms)}


def _alarms(count: int) -> tuple[Sequence[Alarm], Sequence[Alarm]]:
    """What is armed before the clock runs, so that statements are prepared, and what while."""
    return files.future_alarms(_WARM_UP, prefix="warm-up"), files.future_alarms(count)


def _calls(alarms: Sequence[Alarm]) -> Sequence[tuple[str, datetime]]:
    return [(id, files.instant(run_at)) for _, id, run_at, _ in alarms]


async def _schedule(chores: ServiceScheduler, calls: Sequence[tuple[str, datetime]]) -> None:
    for id, run_at in calls:
        await chores.schedule_alarm(Chores.once, id, run_at=run_at, payload="work")


async def _schedule_with_notes(
    chores: ServiceScheduler, calls: Sequence[tuple[str, datetime]]
) -> None:
    for id, run_at in calls:
        async with chores.transaction() as tx:
            await tx.execute(_INSERT_NOTE, (id, "work"))
            await tx.schedule_alarm(Chores.once, id, run_at=run_at, payload="work")


SCHEDULE: Final = Group(
    "schedule",
    {
        "bare": bare,
        "threaded": threaded,
        "one caller, thread": partial(one_caller, executor="thread"),
        "one caller, inline": partial(one_caller, executor="inline"),
    },
    [
        Row(
            "schedule_alarm, one caller, thread executor",
            speed("one caller, thread", "threaded"),
            of="threaded",
            at_least=True,
            bound=0.80,
            wanted=0.95,
        ),
        Row(
            "schedule_alarm, one caller, inline executor",
            speed("one caller, inline", "bare"),
            of="bare",
            at_least=True,
            bound=0.70,
            wanted=0.85,
        ),
    ],
)

CONCURRENT: Final = Group(
    "schedule-100",
    {
        "bare": bare_as_many,
        "batched": batched,
        "many callers": partial(many_callers, executor="thread"),
    },
    [
        Row(
            "schedule_alarm, 100 concurrent callers",
            speed("many callers", "batched"),
            of="batched",
            at_least=True,
            bound=0.45,
            wanted=0.65,
        ),
        Row(
            "schedule_alarm, 100 concurrent callers",
            speed("many callers", "bare"),
            of="bare",
            at_least=True,
            bound=3,
            wanted=5,
        ),
    ],
)

BLOCK: Final = Group(
    "block",
    {"threaded": threaded_with_note, "block": transaction_block},
    [
        Row(
            "transaction block: one insert, one alarm",
            speed("block", "threaded"),
            of="threaded, both in one trip",
            at_least=True,
            bound=0.40,
            wanted=0.50,
        ),
    ],
)
