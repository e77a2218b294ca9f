"""The child that is killed: producers and handlers on a real file, clock and threads.

Run as `python -m tests.crash.workload`; it says "ready" on stdout once it is imported, and starts
when it reads a line with its task as JSON.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

import attrs
import trio

from tests.crash.journal import Entry, Journal
from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmHost,
    AlarmService,
    AlarmTransaction,
    DispatchOptions,
    ScheduleConfiguration,
    ServiceScheduler,
    StorageOptions,
    merge_all,
    open_host,
)

IN_FLIGHT_MS: Final = 400
ACCOUNTS: Final = 4
OPENING_BALANCE: Final = 1000
OWNERS: Final = 3
PRODUCERS: Final = 3

_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS moves (id TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS orders (id TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS queue (owner TEXT NOT NULL, item TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS served (item TEXT NOT NULL)",
    *(f"INSERT OR IGNORE INTO accounts VALUES ({id}, {OPENING_BALANCE})" for id in range(ACCOUNTS)),
)


@attrs.frozen
class Task:
    """What one child is to do."""

    database: str
    journal: str
    epoch: int
    seed: int
    executor: str
    produce: bool  # without producers, what an earlier kill left is undisturbed
    drain: bool  # leave once only repeats are left
    leave_after: float | None  # seconds until the host is left in peace, if it still lives


class Notices(AlarmService, key="notices"):
    """Acknowledged when their handler returns."""

    plain = Alarm(str)
    flaky = Alarm(str)
    tick = Alarm(str)


class Payments(AlarmService, key="payments"):
    """Acknowledged in the transaction that moves the money."""

    pay = Alarm(str)


class Batches(AlarmService, key="batches"):
    """Each owns a small queue in the application's tables: there is a row while it has items."""

    batch = Alarm(str, lifecycle="manual")


class HandlerError(Exception):
    """What handlers fail with on purpose."""


class ChangeOfMindError(Exception):
    """What a producer rolls back with."""


class Child:
    """The producers and handlers, and the journal they write."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._random = random.Random(task.seed)  # noqa: S311 - what happens when, no secret
        self._journal = Journal(Path(task.journal))
        self._host: AlarmHost | None = None
        self._produced = 0

    def note(self, event: str, tag: str = "", id: str = "", due: object = None) -> None:
        """Write to the journal."""
        attempts = scheduled_ms = 0
        if isinstance(due, AlarmDue):
            tag, id, attempts = due.tag, due.id, due.attempts
            scheduled_ms = round(due.scheduled_at.timestamp() * 1000)
        assert self._host is not None
        self._journal.write(
            Entry(
                epoch=self._task.epoch,
                at_ms=self._host.clock.now_ms(),
                event=event,
                tag=tag,
                id=id,
                attempts=attempts,
                scheduled_ms=scheduled_ms,
            )
        )

    async def run(self) -> None:
        """Open the host and work until the end, which is mostly a SIGKILL."""
        registration = merge_all(
            Notices.handlers(
                Notices.plain.handled_by(self.on_plain),
                Notices.flaky.handled_by(self.on_flaky),
                Notices.tick.handled_by(self.on_tick),
                options=DispatchOptions(concurrency=3),
            ),
            Payments.handlers(Payments.pay.handled_by(self.on_pay)),
            Batches.handlers(Batches.batch.handled_by(self.on_batch)),
        )
        async with open_host(
            self._task.database,
            alarms=registration,
            configuration=ScheduleConfiguration(
                in_flight_recovery=IN_FLIGHT_MS / 1000, minimum_repeat_interval=1
            ),
            storage=StorageOptions(executor=self._task.executor),  # type: ignore[arg-type]  # as JSON
        ) as host:
            self._host = host
            self.note("opened")
            async with host.storage.transaction() as tx:
                for statement in _TABLES:
                    await tx.execute(statement)
            if self._task.drain:
                await self._drained()
                return
            with trio.move_on_after(self._task.leave_after or 60):
                await self._produce()
                await trio.sleep_forever()

    async def _drained(self) -> None:
        assert self._host is not None
        with trio.fail_after(30):
            while True:
                left = await self._host.scheduler.list_alarms(limit=10)
                if all(record.ref.tag == "tick" for record in left):
                    return
                await trio.sleep(0.05)

    # --- handlers ---

    async def on_plain(self, due: AlarmDue[str]) -> None:
        """Handle, sometimes taking a while."""
        self.note("run", due=due)
        if self._random.random() < 0.4:
            await trio.sleep(self._random.random() * 0.02)
        self.note("handled", due=due)

    async def on_flaky(self, due: AlarmDue[str]) -> None:
        """Fail the first time."""
        self.note("run", due=due)
        await trio.lowlevel.checkpoint()
        if due.attempts == 0:
            self.note("failed", due=due)
            raise HandlerError
        self.note("handled", due=due)

    async def on_tick(self, due: AlarmDue[str]) -> None:
        """Handle a repeat."""
        self.note("run", due=due)
        await trio.sleep(self._random.random() * 0.01)
        self.note("handled", due=due)

    async def on_pay(self, due: AlarmDue[str]) -> None:
        """Move money and acknowledge in one commit."""
        self.note("run", due=due)
        origin, target = self._random.sample(range(ACCOUNTS), 2)
        async with due.host.storage.transaction() as tx:
            await tx.execute("UPDATE accounts SET balance = balance - 7 WHERE id = ?", (origin,))
            await tx.execute("INSERT INTO moves VALUES (?)", (due.id,))
            if not await tx.acknowledge(due):
                self.note("wrong: a payment in hand is not current", due=due)
            await tx.execute("UPDATE accounts SET balance = balance + 7 WHERE id = ?", (target,))
        self.note("handled", due=due)
        if self._random.random() < 0.1:
            # The acknowledgement is committed: neither a delay nor a failure brings it back.
            await trio.sleep(0.01)
            raise HandlerError

    async def on_batch(self, due: AlarmDue[str]) -> None:
        """Serve a few items of the queue, each in a transaction; the row ends with the queue."""
        self.note("run", due=due)
        for _ in range(5):
            async with due.host.service(Batches).transaction() as tx:
                found = await tx.execute(
                    "SELECT item FROM queue WHERE owner = ? ORDER BY rowid LIMIT 2", (due.id,)
                )
                if not found:
                    self.note("wrong: a row without a queue", due=due)
                    return
                await tx.execute("DELETE FROM queue WHERE item = ?", found[0])
                await tx.execute("INSERT INTO served VALUES (?)", found[0])
                if len(found) == 1:
                    await tx.cancel_alarm(Batches.batch, due.id)
            if len(found) == 1:
                return
            await trio.sleep(self._random.random() * 0.02)
        async with due.host.service(Batches).transaction() as tx:
            await tx.schedule_alarm(Batches.batch, due.id, after=0, payload="more")

    # --- producers ---

    async def _produce(self) -> None:
        assert self._host is not None
        for index in range(2):
            await self._host.service(Notices).ensure_alarm(
                Notices.tick, f"tick-{index}", after=0, payload="tick", repeat_every=1
            )
            self.note("committed", "tick", f"tick-{index}")
        if not self._task.produce:
            return
        async with trio.open_nursery() as nursery:
            for _ in range(PRODUCERS):
                nursery.start_soon(self._producer)

    async def _producer(self) -> None:
        kinds = [self._schedule, self._order, self._change_of_mind, self._enqueue, self._pay]
        while True:
            produce: Callable[[str], Awaitable[None]] = self._random.choice(kinds)
            self._produced += 1
            with trio.move_on_after(self._random.choice([0.004, 0.03, 10, 10, 10, 10])):
                await produce(f"{self._task.epoch}-{self._produced}")
            await trio.sleep(self._random.random() * 0.02)

    async def _schedule(self, id: str) -> None:
        alarm = self._random.choice([Notices.plain, Notices.flaky])
        service = self._service(Notices)
        try:
            await service.schedule_alarm(alarm, id, after=self._delay(), payload=self._payload())
        except trio.Cancelled:
            self.note("not committed", alarm.tag, id)
            raise
        self.note("committed", alarm.tag, id)

    async def _pay(self, id: str) -> None:
        try:
            await self._service(Payments).schedule_alarm(
                Payments.pay, id, after=self._delay(), payload=self._payload()
            )
        except trio.Cancelled:
            self.note("not committed", "pay", id)
            raise
        self.note("committed", "pay", id)

    async def _order(self, id: str, *, fails: bool = False) -> None:
        try:
            async with self._transaction() as tx:
                await tx.execute("INSERT INTO orders VALUES (?)", (id,))
                await tx.schedule_alarm(
                    Notices.plain, id, after=self._delay(), payload=self._payload()
                )
                await tx.execute("INSERT INTO orders VALUES (?)", (id,))
                if fails:
                    raise ChangeOfMindError  # noqa: TRY301 - the block rolls back on its way
        except (trio.Cancelled, ChangeOfMindError):
            self.note("not committed", "plain", id)
            raise
        self.note("committed", "plain", id)

    async def _change_of_mind(self, id: str) -> None:
        try:
            await self._order(id, fails=True)
        except ChangeOfMindError:
            return

    async def _enqueue(self, id: str) -> None:
        owner = f"owner-{self._random.randrange(OWNERS)}"
        self.note("enqueuing", "batch", owner)
        try:
            async with self._service(Batches).transaction() as tx:
                await tx.execute("INSERT INTO queue VALUES (?, ?)", (owner, id))
                await tx.schedule_alarm_earlier(Batches.batch, owner, after=0, payload="items")
        except trio.Cancelled:
            self.note("not committed", "item", id)
            raise
        self.note("committed", "item", id)

    def _service(self, service: type[AlarmService]) -> ServiceScheduler:
        assert self._host is not None
        return self._host.service(service)

    def _transaction(self) -> AbstractAsyncContextManager[AlarmTransaction]:
        return self._service(Notices).transaction()

    def _delay(self) -> float:
        return self._random.choice([0, 0, 0.05, 0.3])

    def _payload(self) -> str:
        return "x" * self._random.choice([1, 1, 9000])


def main() -> None:
    """Wait for the word to start, then work."""
    print("ready", flush=True)
    if task := sys.stdin.readline():
        trio.run(Child(Task(**json.loads(task))).run)


if __name__ == "__main__":
    main()
