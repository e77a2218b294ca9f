"""APScheduler 3: a BackgroundScheduler with SQLAlchemyJobStore on SQLite.

The job defaults are those its user guide gives for jobs that must not be dropped: a job that is
late still runs (`misfire_grace_time=None`), and once (`coalesce=True`).
"""

from __future__ import annotations

import importlib
import sqlite3
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

from .child import Answer, Tables, job, read_pragmas, set_pragmas
from .threads import ThreadPeer, main

POOL: Final = 10  # its default thread pool


class APScheduler3(ThreadPeer):
    """BackgroundScheduler on a file."""

    retained: ClassVar[Tables] = {
        "apscheduler_jobs": {
            "id": "'retained-' || n",
            "next_run_time": "template.next_run_time + n * 0.001",
        }
    }
    unfinished = "apscheduler_jobs"

    def open(self) -> None:
        """Start the scheduler paused: APScheduler stores no job before it is started."""
        background: Any = importlib.import_module("apscheduler.schedulers.background")
        stores: Any = importlib.import_module("apscheduler.jobstores.sqlalchemy")
        pools: Any = importlib.import_module("apscheduler.executors.pool")
        sqlalchemy: Any = importlib.import_module("sqlalchemy")
        self.engine: Any = sqlalchemy.create_engine(f"sqlite:///{self.file}")

        def connected(connection: sqlite3.Connection, _record: object) -> None:
            set_pragmas(connection, self.durability)

        sqlalchemy.event.listen(self.engine, "connect", connected)
        self.scheduler: Any = background.BackgroundScheduler(
            jobstores={"default": stores.SQLAlchemyJobStore(engine=self.engine)},
            executors={"default": pools.ThreadPoolExecutor(POOL if self.order.pool else 1)},
            job_defaults={"misfire_grace_time": None, "coalesce": True},
            timezone=UTC,
        )
        self.scheduler.start(paused=True)
        # A store is filled paused; scheduling is measured as users do it, while it runs.
        if self.order.measure == "schedule" and self.durability != "off":
            self.scheduler.resume()

    def put(self, index: int, due: float) -> None:
        """Add a job that runs once."""
        self.scheduler.add_job(
            job,
            "date",
            run_date=datetime.fromtimestamp(due, UTC),
            args=(index,),
            id=f"job-{index}",
        )

    def start(self) -> None:
        """Let the scheduler run jobs."""
        self.scheduler.resume()

    def stop(self) -> None:
        """Stop the scheduler and close.

        What fills a store stays paused instead: shutting down looks for due jobs once more, and
        removes one that it can no longer run.
        """
        if self.durability != "off":
            self.scheduler.shutdown()
        self.engine.dispose()

    def pragmas(self) -> Answer:
        """What is in force on a connection of the job store's engine."""
        with self.engine.connect() as connection:
            return read_pragmas(connection.connection.driver_connection)


if __name__ == "__main__":
    main(APScheduler3)
