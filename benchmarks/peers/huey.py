"""huey with SqliteHuey, and its consumer with thread workers in this process.

At our durability the consumer looks as often as its options let it: at the schedule each second,
the least there is, and at the queue each 0.1 s. By default that pause grows to 10 s.
"""

from __future__ import annotations

import importlib
import time
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

from .child import DAY, Answer, Tables, job, read_pragmas
from .threads import ThreadPeer, main

POOL: Final = 4  # as in huey's README


class Huey(ThreadPeer):
    """SqliteHuey on a file."""

    # A delayed job waits here once a worker has seen it.
    retained: ClassVar[Tables] = {
        "schedule": {"id": "", "timestamp": "template.timestamp + n * 0.001"}
    }
    unfinished = "(SELECT 1 FROM task UNION ALL SELECT 1 FROM schedule)"

    def open(self) -> None:
        """Open the store."""
        huey: Any = importlib.import_module("huey")
        options = {} if self.durability == "default" else {"fsync": self.durability == "full"}
        self.huey: Any = huey.SqliteHuey(filename=str(self.file), **options)
        self.job: Any = self.huey.task()(job)
        self.consumer: Any = None

    def put(self, index: int, due: float) -> None:
        """Enqueue a job with the time when it is due."""
        self.job.schedule(args=(index,), eta=datetime.fromtimestamp(due, UTC))

    def put_retained(self) -> None:
        """Put a job where a worker puts one that is not due."""
        eta = datetime.fromtimestamp(time.time() + DAY, UTC)
        self.huey.add_schedule(self.job.s(0, eta=eta))

    def start(self) -> None:
        """Start the consumer, as its command line does, but for the signal handlers."""
        consumer: Any = importlib.import_module("huey.consumer")
        options = {} if self.durability == "default" else {"max_delay": 0.1}
        workers = POOL if self.order.pool else 1
        self.consumer = consumer.Consumer(self.huey, workers=workers, **options)
        self.consumer.start()

    def stop(self) -> None:
        """Stop the consumer and close."""
        if self.consumer is not None:
            self.consumer.stop(graceful=True)
        self.huey.storage.close()

    def pragmas(self) -> Answer:
        """What is in force on huey's connection."""
        return read_pragmas(self.huey.storage.conn)


if __name__ == "__main__":
    main(Huey)
