"""litequeue, a bare queue: pop, run, done, and 0.1 s of sleep when empty, as its example consumer.

It has no delay, so the caller sleeps until a job is due and then puts it. After a restart the
consumer takes back what was claimed, with `retry_expired`, as its README says.
"""

from __future__ import annotations

import importlib
from threading import Event, Thread
from typing import Any, ClassVar, Final

from .child import Answer, Tables, job, read_pragmas, set_pragmas
from .threads import ThreadPeer, main

POOL: Final = 4
PAUSE: Final = 0.1  # its example's


class LiteQueue(ThreadPeer):
    """LiteQueue on a file."""

    retained: ClassVar[Tables] = {"Queue": {"message_id": "template.message_id || n"}}
    unfinished = "Queue WHERE status IN (0, 1)"
    delays = False

    def open(self) -> None:
        """Open the queue."""
        litequeue: Any = importlib.import_module("litequeue")
        self.queue: Any = litequeue.LiteQueue(filename=str(self.file))
        set_pragmas(self.queue.conn, self.durability)
        self.stopping = Event()
        self.consumers: list[Thread] = []

    def put(self, index: int, due: float) -> None:  # noqa: ARG002 - a bare queue knows no due time
        """Put a message."""
        self.queue.put(str(index))

    def start(self) -> None:
        """Start the consumers, after taking back what a killed one had claimed."""
        if self.order.measure == "recover":
            self.queue.retry_expired(0)
        for _ in range(POOL if self.order.pool else 1):
            consumer = Thread(target=self.consume, daemon=True)
            consumer.start()
            self.consumers.append(consumer)

    def consume(self) -> None:
        """The loop of the example."""
        while not self.stopping.is_set():
            message = self.queue.pop()
            if message is None:
                self.stopping.wait(PAUSE)
                continue
            job(int(message.data))
            self.queue.done(message.message_id, claim_id=message.claim_id)

    def stop(self) -> None:
        """Stop the consumers and close."""
        self.stopping.set()
        for consumer in self.consumers:
            consumer.join()
        self.queue.close()

    def pragmas(self) -> Answer:
        """What is in force on the connection that writes."""
        return read_pragmas(self.queue.conn)


if __name__ == "__main__":
    main(LiteQueue)
