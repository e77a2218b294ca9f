"""Dispatching what is due: through the driver, beside a loop that reads, deletes and commits."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

import trio

from trio_alarms import AlarmDue

from . import files, references
from .hosts import Chores, Countdown, Handler, do_nothing, open_chores, seconds_until_none_is_due
from .rounds import Group, Row, Sample, Work, speed


def threaded(work: Work) -> Sample:
    """The reference: read, delete and commit, each sent to a thread."""
    path = work.folder / "threaded.db"
    database = files.make_reference_file(path)
    alarms = files.due_alarms(work.sizes.dispatched)
    files.fill(path, alarms)

    async def main() -> float:
        began = time.perf_counter()
        await references.threaded(partial(references.dispatch, database), alarms)
        return time.perf_counter() - began

    seconds = trio.run(main)
    database.close()
    return {"seconds": seconds / len(alarms)}


def automatic(work: Work, concurrency: int) -> Sample:
    """Automatic alarms with a handler that does nothing."""
    countdown = Countdown(work.sizes.dispatched)

    async def once(event: AlarmDue[str]) -> None:  # noqa: ARG001 - a handler takes its event
        countdown.tick()

    return _dispatch(work, countdown, once=once, concurrency=concurrency)


def manual(work: Work) -> Sample:
    """Manual alarms, each cancelled by its handler."""
    countdown = Countdown(work.sizes.dispatched)

    async def by_hand(event: AlarmDue[str]) -> None:
        await event.host.service(Chores).cancel_alarm(Chores.by_hand, event.id)
        countdown.tick()

    return _dispatch(work, countdown, by_hand=by_hand)


def _dispatch(
    work: Work,
    countdown: Countdown,
    *,
    once: Handler = do_nothing,
    by_hand: Handler = do_nothing,
    concurrency: int = 1,
) -> Sample:
    """From when the host is open until the last acknowledgement is durable."""
    path = work.folder / "ours.db"
    files.make_file(path)
    is_manual = by_hand is not do_nothing
    alarms = files.due_alarms(
        work.sizes.dispatched, tag=files.MANUAL_TAG if is_manual else files.TAG
    )
    files.fill(path, alarms, lifecycle="manual" if is_manual else "automatic")
    due_before = files.now_ms() + files.DAY_MS

    async def main() -> float:
        async with open_chores(path, once=once, by_hand=by_hand, concurrency=concurrency) as host:
            began = time.perf_counter()
            return await seconds_until_none_is_due(
                host, countdown, due_before=due_before, began=began
            )

    return {"seconds": trio.run(main) / len(alarms)}


DISPATCH: Final = Group(
    "dispatch",
    {
        "threaded": threaded,
        "one at a time": partial(automatic, concurrency=1),
        "concurrency=64": partial(automatic, concurrency=64),
        "manual": manual,
    },
    [
        Row(
            "10,000 due automatic no-op alarms, one at a time",
            speed("one at a time", "threaded"),
            of="threaded",
            at_least=True,
            bound=0.75,
            wanted=0.95,
        ),
        Row(
            "10,000 due automatic no-op alarms, concurrency=64",
            speed("concurrency=64", "threaded"),
            of="threaded",
            at_least=True,
            bound=3,
            wanted=4.5,
        ),
        Row(
            "10,000 due manual alarms, each cancelled by its handler",
            speed("manual", "threaded"),
            of="threaded",
            at_least=True,
            bound=1.0,
            wanted=1.5,
        ),
    ],
)
