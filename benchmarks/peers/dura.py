"""dura: an engine and its worker threads in this process, as in its README.

`run_workers` takes no polling interval, so its workers look once a second. What dura sets by itself
is our durability, so its two settings are one.
"""

from __future__ import annotations

import importlib
import sqlite3
import time
from datetime import datetime, timedelta
from threading import Event, Thread
from typing import Any, ClassVar, Final

from .child import Answer, Tables, job, read_pragmas
from .threads import ThreadPeer, main

POOL: Final = 2  # as in its README


class Dura(ThreadPeer):
    """DurableEngine on a file."""

    retained: ClassVar[Tables] = {
        "tasks": {"task_id": "'task-' || n", "last_attempt_run": "'run-' || n"},
        "runs": {"run_id": "'run-' || n", "task_id": "'task-' || n"},
    }
    unfinished = "tasks WHERE state NOT IN ('completed', 'failed', 'cancelled')"

    def open(self) -> None:
        """Open the engine."""
        self.dura: Any = importlib.import_module("dura")
        self.engine: Any = self.dura.DurableEngine(self.file)
        if self.durability == "off":  # to fill a store: this thread's connection only
            self.engine._conn().execute("PRAGMA synchronous=OFF")  # noqa: SLF001 - no other way
        self.stopping = Event()
        self.workers: list[Thread] = []

    def put(self, index: int, due: float) -> None:
        """Spawn a task that is available at that time."""
        after = timedelta(seconds=due - time.time())
        self.engine.spawn_task(name="job", params={"index": index}, available_after=after)

    def start(self) -> None:
        """Start the threads that `run_workers` starts, so that they can be stopped from here."""

        def handle(_engine: object, task: Any) -> None:
            job(task.params["index"])

        for number in range(POOL if self.order.pool else 1):
            worker = Thread(
                target=self.dura.run_worker,
                args=(self.engine,),
                kwargs={
                    "handlers": {"job": handle},
                    "worker_id": f"worker_{number}",
                    "stop_event": self.stopping,
                },
                daemon=True,
            )
            worker.start()
            self.workers.append(worker)

    def stop(self) -> None:
        """Stop the workers and close."""
        self.stopping.set()
        for worker in self.workers:
            worker.join()
        self.engine.close()

    def pragmas(self) -> Answer:
        """What is in force on this thread's connection; every thread's is opened alike."""
        return read_pragmas(self.engine._conn())  # noqa: SLF001 - no other way to read it

    def explain(self) -> str:
        """The job waits for its lease to end."""
        connection = sqlite3.connect(self.file)
        row = connection.execute(
            "SELECT claim_expires_at FROM runs WHERE state = 'running'"
        ).fetchone()
        connection.close()
        if row is None:
            return "the job is still stored"
        ends = datetime.fromisoformat(row[0]).timestamp()
        return f"leased to the killed worker for {ends - time.time():.0f} s more (120 s in all)"


if __name__ == "__main__":
    main(Dura)
