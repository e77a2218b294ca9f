"""persist-queue's SQLiteAckQueue, a bare queue: get, run, ack.

It has no delay, so the caller sleeps until a job is due and then puts it. It resumes what was not
acknowledged when it is opened. What it sets by itself is our durability.
"""

from __future__ import annotations

import importlib
from threading import Event, Thread
from typing import Any, ClassVar, Final

from .child import Answer, Tables, job, read_pragmas, set_pragmas
from .threads import ThreadPeer, main

POOL: Final = 4


class PersistQueue(ThreadPeer):
    """SQLiteAckQueue in a folder."""

    retained: ClassVar[Tables] = {"ack_queue_default": {"_id": ""}}
    unfinished = "ack_queue_default WHERE status < 5"
    delays = False

    def open(self) -> None:
        """Open the queue for several threads, as its README says."""
        self.package: Any = importlib.import_module("persistqueue")
        self.queue: Any = self.package.SQLiteAckQueue(
            str(self.order.folder), multithreading=True, db_file_name=self.file_name
        )
        # Both are its connections: one reads, one writes.
        for connection in (self.queue._getter, self.queue._putter):  # noqa: SLF001 - no other way
            set_pragmas(connection, self.durability)
        self.stopping = Event()
        self.consumers: list[Thread] = []

    def put(self, index: int, due: float) -> None:  # noqa: ARG002 - a bare queue knows no due time
        """Put an item."""
        self.queue.put(index)

    def start(self) -> None:
        """Start the consumers."""
        for _ in range(POOL if self.order.pool else 1):
            consumer = Thread(target=self.consume, daemon=True)
            consumer.start()
            self.consumers.append(consumer)

    def consume(self) -> None:
        """Get, run, acknowledge."""
        while not self.stopping.is_set():
            try:
                item = self.queue.get(timeout=1, raw=True)
            except self.package.Empty:
                continue
            job(item["data"])
            self.queue.ack(id=item["pqid"])

    def stop(self) -> None:
        """Stop the consumers and close."""
        self.stopping.set()
        for consumer in self.consumers:
            consumer.join()
        self.queue.close()

    def pragmas(self) -> Answer:
        """What is in force on the connection that writes."""
        return read_pragmas(self.queue._putter)  # noqa: SLF001 - no other way to read it


if __name__ == "__main__":
    main(PersistQueue)
