"""A child that commits in every way there is, and marks when each began and when it returned.

Run as `python -m tests.crash.committing <database> <marks> <synchronous>`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Literal, cast

import trio

from trio_alarms import Alarm, AlarmDue, AlarmHost, AlarmService, StorageOptions, open_host


class Work(AlarmService, key="work"):
    """One alarm for each way to end a handling."""

    plain = Alarm(None)
    failing = Alarm(None)
    acknowledged = Alarm(None)
    repeat = Alarm(None)
    manual = Alarm(None, lifecycle="manual")


class HandlerError(Exception):
    """What the failing handler raises."""


class Committer:
    """Marks a beginning and an end around everything that must be durable on return."""

    def __init__(self, marks: str) -> None:
        self._marks = os.open(marks, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    @contextmanager
    def marked(self, name: str) -> Iterator[None]:
        """Write "begin" before the body and "end" after it."""
        os.write(self._marks, f"begin {name}\n".encode())
        yield
        os.write(self._marks, f"end {name}\n".encode())

    async def run(self, database: str, synchronous: Literal["full", "normal"]) -> None:
        """Open the host, commit in every way, and leave."""
        registration = Work.handlers(
            Work.plain.handled_by(self.nothing),
            Work.failing.handled_by(self.fail),
            Work.acknowledged.handled_by(self.acknowledge),
            Work.repeat.handled_by(self.nothing),
            Work.manual.handled_by(self.nothing),
        )
        options = StorageOptions(synchronous=synchronous, executor="thread")
        async with open_host(database, alarms=registration, driver=False, storage=options) as host:
            await self._write(host)
            for alarm in (Work.plain, Work.failing, Work.acknowledged, Work.manual):
                await host.service(Work).schedule_alarm(alarm, "due", after=0)
                with self.marked(f"delivery of {alarm.tag}"):
                    await host.deliver_native_alarm(force=True)
            await host.service(Work).schedule_alarm(Work.repeat, "due", after=0, repeat_every=60)
            with self.marked("delivery of repeat"):
                await host.deliver_native_alarm(force=True)
            with self.marked("concurrently"):
                async with trio.open_nursery() as nursery:
                    for index in range(8):
                        nursery.start_soon(self._schedule, host, f"concurrent-{index}")

    async def _write(self, host: AlarmHost) -> None:
        service = host.service(Work)
        with self.marked("native alarm"):
            await host.native_alarm.set(datetime(2100, 1, 1, tzinfo=UTC))
        with self.marked("schedule_alarm"):
            await service.schedule_alarm(Work.plain, "one", after=3600)
        with self.marked("schedule_alarm_earlier"):
            await service.schedule_alarm_earlier(Work.plain, "one", after=1800)
        with self.marked("ensure_alarm"):
            await service.ensure_alarm(Work.repeat, "two", after=3600, repeat_every=60)
        with self.marked("cancel_alarm"):
            await service.cancel_alarm(Work.plain, "one")
        with self.marked("application SQL"):
            async with host.storage.transaction() as tx:
                await tx.execute("CREATE TABLE items (id INTEGER PRIMARY KEY)")
        with self.marked("a block with both"):
            async with service.transaction() as tx:
                await tx.execute("INSERT INTO items VALUES (1)")
                await tx.schedule_alarm(Work.plain, "three", after=3600)
        with self.marked("run_sync"):
            async with host.storage.transaction() as tx:
                await tx.run_sync(lambda raw: raw.execute("INSERT INTO items VALUES (2)"))
        scope = service.defer_wakes()
        with self.marked("entering defer_wakes"):
            await scope.__aenter__()
        with self.marked("leaving defer_wakes"):
            await scope.__aexit__(None, None, None)

    async def _schedule(self, host: AlarmHost, id: str) -> None:
        with self.marked(id):
            await host.service(Work).schedule_alarm(Work.plain, id, after=3600)

    async def nothing(self, _due: AlarmDue[None]) -> None:
        """Handle."""
        await trio.lowlevel.checkpoint()

    async def fail(self, _due: AlarmDue[None]) -> None:
        """Fail."""
        await trio.lowlevel.checkpoint()
        raise HandlerError

    async def acknowledge(self, due: AlarmDue[None]) -> None:
        """Acknowledge in a transaction."""
        with self.marked("tx.acknowledge"):
            async with due.host.storage.transaction() as tx:
                await tx.execute("INSERT INTO items VALUES (3)")
                await tx.acknowledge(due)


def main() -> None:
    """Commit in every way."""
    database, marks, synchronous = sys.argv[1:]
    trio.run(Committer(marks).run, database, cast('Literal["full", "normal"]', synchronous))


if __name__ == "__main__":
    main()
