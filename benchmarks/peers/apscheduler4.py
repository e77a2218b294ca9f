"""APScheduler 4, a pre-release: AsyncScheduler in asyncio, SQLAlchemyDataStore on aiosqlite.

Schedules that run once have a DateTrigger and refer to a configured task by its name, which is what
costs least; jobs are coroutine functions on its default executor.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

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
    recovered,
)

FILE: Final = "jobs.db"
CLONE: Final = {"schedules": {"id": "template.id || n"}}
UNFINISHED: Final = (
    "(SELECT 1 FROM schedules WHERE next_fire_time IS NOT NULL UNION ALL SELECT 1 FROM jobs)"
)


async def job(index: int) -> None:
    """The job."""
    if RUNS.interrupting:
        RUNS.announce()
        await asyncio.Event().wait()
    RUNS.note(index)


class Store:
    """The scheduler on its database.

    Attributes:
        scheduler: APScheduler's.
        engine: SQLAlchemy's.
    """

    def __init__(self, order: Order, durability: str | None = None) -> None:
        apscheduler: Any = importlib.import_module("apscheduler")
        stores: Any = importlib.import_module("apscheduler.datastores.sqlalchemy")
        sqlalchemy: Any = importlib.import_module("sqlalchemy")
        extension: Any = importlib.import_module("sqlalchemy.ext.asyncio")
        triggers: Any = importlib.import_module("apscheduler.triggers.date")
        self.order = order
        self.trigger: Any = triggers.DateTrigger
        self.engine: Any = extension.create_async_engine(
            f"sqlite+aiosqlite:///{order.folder / FILE}"
        )
        wanted = durability or order.durability

        def connected(connection: Any, _record: object) -> None:
            cursor = connection.cursor()
            if wanted == "full":
                cursor.execute("PRAGMA journal_mode=WAL")
            if wanted != "default":
                cursor.execute(f"PRAGMA synchronous={wanted.upper()}")
            cursor.close()

        sqlalchemy.event.listen(self.engine.sync_engine, "connect", connected)
        options = {} if order.pool else {"max_concurrent_jobs": 1}
        self.scheduler: Any = apscheduler.AsyncScheduler(
            stores.SQLAlchemyDataStore(self.engine), **options
        )

    async def put(self, index: int, due: float) -> None:
        """Add a schedule that fires once."""
        trigger = self.trigger(datetime.fromtimestamp(due, UTC))
        await self.scheduler.add_schedule("job", trigger, args=(index,), id=f"job-{index}")

    async def pragmas(self) -> Answer:
        """What is in force on a connection of the data store's engine."""
        async with self.engine.connect() as connection:
            read: Answer = {}
            for name in ("journal_mode", "synchronous"):
                result = await connection.exec_driver_sql(f"PRAGMA {name}")
                read[name] = result.scalar()
            return read


@contextlib.asynccontextmanager
async def opened(order: Order, *, durability: str | None = None) -> AsyncIterator[Store]:
    """The scheduler, not yet started."""
    store = Store(order, durability)
    async with store.scheduler:
        # As many of the one task at once as the scheduler runs jobs; by default it is one.
        await store.scheduler.configure_task(
            "job", func=job, max_running_jobs=100 if order.pool else 1
        )
        yield store
    await store.engine.dispose()


async def fill(order: Order, count: int, due: float) -> None:
    """Lay jobs into the store."""
    if not count:
        return
    async with opened(order, durability="off") as store:
        await store.put(-1, due)
    clone(order.folder / FILE, count, CLONE)


async def schedule(order: Order) -> Answer:
    """Schedule jobs for tomorrow from some tasks at once, while the scheduler runs."""
    await fill(order, order.retained, time.time() + DAY)
    done = 0
    errors: list[str] = []

    async def caller(indices: range, deadline: float) -> None:
        nonlocal done
        for index in indices:
            try:
                await store.put(index, time.time() + DAY)
                done += 1
            except Exception as error:  # noqa: BLE001 - a peer's failures are a result
                errors.append(f"{type(error).__name__}: {error}"[:200])
            if time.perf_counter() > deadline:
                break

    async with opened(order) as store:
        await store.scheduler.start_in_background()
        for index in range(WARM_UP):
            await store.put(order.count + index, time.time() + DAY)
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(order.callers):
                indices = range(number, order.count, order.callers)
                group.create_task(caller(indices, begun + order.limit))
        return {
            "seconds": time.perf_counter() - begun,
            "count": done,
            "failed": len(errors),
            "error": errors[0] if errors else None,
            "pragmas": await store.pragmas(),
        }


def remaining(order: Order) -> int:
    """How many schedules have yet to fire, and jobs to end."""
    return count_rows(order.folder / FILE, UNFINISHED)


async def reached(timeout: float) -> None:
    """Wait until as many jobs have run as were expected."""
    deadline = time.perf_counter() + timeout
    # RUNS is shared with the peers that use threads, so its event is a thread's.
    while not RUNS.reached.is_set() and time.perf_counter() < deadline:  # noqa: ASYNC110 - see above
        await asyncio.sleep(POLL)


async def dispatch(order: Order) -> Answer:
    """Run jobs that are due already, until all have run and are recorded as done."""
    await fill(order, order.count, time.time() - 1)
    RUNS.expect(order.count)
    async with opened(order) as store:
        pragmas = await store.pragmas()
        begun = time.perf_counter()
        await store.scheduler.start_in_background()
        await reached(order.limit)
        # Only the database tells what another process would see as done.
        while (left := remaining(order)) and time.perf_counter() - begun < order.limit:  # noqa: ASYNC110 - see above
            await asyncio.sleep(POLL)
        result = dispatched(time.perf_counter() - begun, order.count, left)
        return {**result, "pragmas": pragmas}


async def wake(order: Order) -> Answer:
    """Run jobs that fall due one after another, and see how late each starts."""
    RUNS.expect(order.count)
    async with opened(order) as store:
        await store.scheduler.start_in_background()
        due = due_times(order.count, order.spacing)
        for index, instant in enumerate(due):
            await store.put(index, instant)
        await reached(due[-1] - time.time() + order.limit)
        return {**latencies(due), "pragmas": await store.pragmas()}


async def idle(order: Order) -> Answer:
    """What waiting costs while jobs for tomorrow lie in the store."""
    await fill(order, order.retained, time.time() + DAY)
    async with opened(order) as store:
        await store.scheduler.start_in_background()
        await asyncio.sleep(SETTLE)
        before = time.process_time()
        await asyncio.sleep(order.seconds)
        used = time.process_time() - before
        return {"cpu": used, "seconds": order.seconds, "pragmas": await store.pragmas()}


async def interrupt(order: Order) -> Answer:
    """Run a job that never ends; the parent kills this process once it has begun."""
    RUNS.interrupting = True
    async with opened(order) as store:
        await store.scheduler.start_in_background()
        await store.put(0, time.time())
        await asyncio.sleep(order.limit)
        return {"error": "the job did not start"}


async def recover(order: Order) -> Answer:
    """Open what the killed process left, and wait for its job to run again."""
    RUNS.expect(1)
    opened_at = time.time()
    async with opened(order) as store:
        await store.scheduler.start_in_background()
        await reached(order.seconds)
        reason = (
            "its job is leased to the killed scheduler; the clean-up, each 15 minutes, ends it as"
            " abandoned (`cleanup` in apscheduler/datastores/sqlalchemy.py)"
            if remaining(order)
            else "the job is no longer stored: it is lost"
        )
        return recovered(opened_at, reason)


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
    asyncio.run(main())
