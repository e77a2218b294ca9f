"""trio_alarms, in this checkout.

One caller uses the inline executor, as the peers have no thread to cross; 100 callers, and handlers
that run at once, use the thread executor, the default.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Final

import trio

from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmHost,
    AlarmService,
    DispatchOptions,
    StorageOptions,
    open_host,
)

from .child import (
    DAY,
    POLL,
    RUNS,
    SETTLE,
    WARM_UP,
    Answer,
    Order,
    answer,
    clone,
    count_rows,
    dispatched,
    due_times,
    latencies,
    order_of_command_line,
    read_pragmas,
    recovered,
)

POOL: Final = 64
FILE: Final = "jobs.db"
CLONE: Final = {
    "trio_alarms_alarms": {
        "id": "template.id || n",
        "revision": "randomblob(length(template.revision))",
    }
}


class Jobs(AlarmService, key="jobs"):
    """The one kind of job."""

    job = Alarm(int)


async def on_job(event: AlarmDue[int]) -> None:
    """The job."""
    if RUNS.interrupting:
        RUNS.announce()
        await trio.sleep_forever()
    RUNS.note(event.payload)


def host(order: Order, *, driver: bool = True) -> AbstractAsyncContextManager[AlarmHost]:
    """A host on the order's database."""
    at_once = order.pool and order.measure == "dispatch"
    many = at_once or order.callers > 1
    options = DispatchOptions(concurrency=POOL) if at_once else DispatchOptions()
    return open_host(
        order.folder / FILE,
        alarms=Jobs.handlers(Jobs.job.handled_by(on_job), options=options),
        driver=driver,
        storage=StorageOptions(executor="thread" if many else "inline"),
    )


async def put(host: AlarmHost, index: int, due: float) -> None:
    """Schedule one job."""
    run_at = datetime.fromtimestamp(due, UTC)
    await host.service(Jobs).schedule_alarm(Jobs.job, f"job-{index}", run_at=run_at, payload=index)


async def pragmas(host: AlarmHost) -> Answer:
    """What is in force on the host's connection."""
    async with host.scheduler.transaction() as tx:
        return await tx.run_sync(read_pragmas)


async def fill(order: Order, count: int, due: float) -> None:
    """Lay jobs into the store."""
    if not count:
        return
    async with host(order, driver=False) as opened:
        await put(opened, -1, due)
    clone(order.folder / FILE, count, CLONE)


async def schedule(order: Order) -> Answer:
    """Schedule jobs for tomorrow from some tasks at once."""
    await fill(order, order.retained, time.time() + DAY)
    done = 0

    async def caller(indices: range, deadline: float) -> None:
        nonlocal done
        for index in indices:
            await put(opened, index, time.time() + DAY)
            done += 1
            if time.perf_counter() > deadline:
                break

    async with host(order) as opened:
        for index in range(WARM_UP):
            await put(opened, order.count + index, time.time() + DAY)
        begun = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for number in range(order.callers):
                indices = range(number, order.count, order.callers)
                nursery.start_soon(caller, indices, begun + order.limit)
        seconds = time.perf_counter() - begun
        return {
            "seconds": seconds,
            "count": done,
            "failed": 0,
            "error": None,
            "pragmas": await pragmas(opened),
        }


def remaining(order: Order) -> int:
    """How many alarms are stored."""
    return count_rows(order.folder / FILE, "trio_alarms_alarms")


async def dispatch(order: Order) -> Answer:
    """Run jobs that are due already, until all have run and are acknowledged."""
    await fill(order, order.count, time.time() - 1)
    ran = trio.Event()
    RUNS.expect(order.count, ran.set)
    begun = time.perf_counter()
    async with host(order) as opened:
        with trio.move_on_after(order.limit):
            await ran.wait()
        # Only the database tells what another process would see as done.
        while (left := remaining(order)) and time.perf_counter() - begun < order.limit:  # noqa: ASYNC110 - see above
            await trio.sleep(POLL)
        result = dispatched(time.perf_counter() - begun, order.count, left)
        return {**result, "pragmas": await pragmas(opened)}


async def wake(order: Order) -> Answer:
    """Run jobs that fall due one after another, and see how late each starts."""
    ran = trio.Event()
    RUNS.expect(order.count, ran.set)
    async with host(order) as opened:
        due = due_times(order.count, order.spacing)
        for index, instant in enumerate(due):
            await put(opened, index, instant)
        with trio.move_on_after(due[-1] - time.time() + order.limit):
            await ran.wait()
        return {**latencies(due), "pragmas": await pragmas(opened)}


async def idle(order: Order) -> Answer:
    """What waiting costs while jobs for tomorrow lie in the store."""
    await fill(order, order.retained, time.time() + DAY)
    async with host(order) as opened:
        await trio.sleep(SETTLE)
        before = time.process_time()
        await trio.sleep(order.seconds)
        used = time.process_time() - before
        return {"cpu": used, "seconds": order.seconds, "pragmas": await pragmas(opened)}


async def interrupt(order: Order) -> Answer:
    """Run a job that never ends; the parent kills this process once it has begun."""
    RUNS.interrupting = True
    async with host(order) as opened:
        await put(opened, 0, time.time())
        await trio.sleep(order.limit)
        return {"error": "the job did not start"}


async def recover(order: Order) -> Answer:
    """Open what the killed process left, and wait for its job to run again."""
    ran = trio.Event()
    RUNS.expect(1, ran.set)
    opened_at = time.time()
    async with host(order):
        with trio.move_on_after(order.seconds):
            await ran.wait()
        return recovered(opened_at, f"{remaining(order)} alarms are stored")


MEASURES: Final[dict[str, Callable[[Order], Awaitable[Answer]]]] = {
    "schedule": schedule,
    "dispatch": dispatch,
    "wake": wake,
    "idle": idle,
    "interrupt": interrupt,
    "recover": recover,
}


async def main() -> None:
    """Carry out the order on the command line."""
    order = order_of_command_line()
    answer(await MEASURES[order.measure](order))


if __name__ == "__main__":
    trio.run(main)
