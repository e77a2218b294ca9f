"""What the measuring processes share: the order, the job that is run, and the answer.

A child gets one order on its command line and prints one line of JSON. It imports nothing but the
standard library, because it runs in the environment of a peer.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

Answer: TypeAlias = dict[str, Any]
Tables: TypeAlias = Mapping[str, Mapping[str, str]]

WARM_UP: Final = 20
DAY: Final = 86_400.0
# Not a whole part of any peer's polling interval, so that jobs meet every phase of it.
WAKE_LEAD: Final = 2.5
SETTLE: Final = 1.0
POLL: Final = 0.005


@dataclasses.dataclass(frozen=True)
class Order:
    """One measure of one peer.

    Attributes:
        measure: Which of the measures.
        folder: A folder of its own for the database, kept between `interrupt` and `recover`.
        durability: `"full"` is WAL and synchronous=FULL, `"default"` what the peer does by itself.
        count: How many jobs.
        callers: How many schedule at once.
        retained: How many further jobs, due tomorrow, lie in the store.
        pool: Whether jobs may run at once, in the pool that the peer's documentation shows.
        seconds: How long to measure; how long to wait for an interrupted job.
        limit: When to stop, in seconds, however much is done.
        spacing: The time between two due times, in seconds.
    """

    measure: str
    folder: Path
    durability: str = "full"
    count: int = 1
    callers: int = 1
    retained: int = 0
    pool: bool = False
    seconds: float = 0.0
    limit: float = 60.0
    spacing: float = 0.097

    @classmethod
    def parse(cls, text: str) -> Order:
        """The order that the parent put on the command line."""
        values = json.loads(text)
        return cls(**{**values, "folder": Path(values["folder"])})

    def text(self) -> str:
        """The order for the command line."""
        return json.dumps({**dataclasses.asdict(self), "folder": str(self.folder)})


class Runs:
    """What ran, and when.

    Attributes:
        interrupting: Whether a job says that it has started, and then never ends.
    """

    def __init__(self) -> None:
        self.interrupting = False
        self.started: list[tuple[int, float]] = []
        self.reached = threading.Event()
        self._wanted = 0
        self._notify: Callable[[], None] = self.reached.set
        self._lock = threading.Lock()

    def expect(self, wanted: int, notify: Callable[[], None] | None = None) -> None:
        """Forget what ran; tell when so many more have."""
        with self._lock:
            self.started.clear()
            self.reached.clear()
            self._wanted = wanted
            self._notify = notify or self.reached.set

    def note(self, index: int) -> None:
        """A job has started."""
        now = time.time()
        with self._lock:
            self.started.append((index, now))
            enough = len(self.started) == self._wanted
        if enough:
            self._notify()

    def announce(self) -> None:
        """Tell the parent that the job to be interrupted runs."""
        answer({"started": time.time()})


RUNS: Final = Runs()


def job(index: int) -> None:
    """The job of every peer that calls plain functions."""
    if RUNS.interrupting:
        RUNS.announce()
        threading.Event().wait()
    RUNS.note(index)


def answer(values: Mapping[str, Any]) -> None:
    """Print a line for the parent."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def read_pragmas(connection: sqlite3.Connection) -> Answer:
    """What a connection has in force."""
    return {
        name: connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous")
    }


def set_pragmas(connection: sqlite3.Connection, durability: str) -> None:
    """Give a peer's connection our durability; its own default is left alone.

    `"off"` leaves the journal mode alone too, because a file keeps that.
    """
    if durability == "full":
        connection.execute("PRAGMA journal_mode=WAL").fetchall()
    if durability != "default":
        connection.execute(f"PRAGMA synchronous={durability.upper()}")


def clone(file: Path, count: int, tables: Tables) -> None:
    """Multiply the only row of each table: `n` counts, other columns are as in that row."""
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("BEGIN IMMEDIATE")
    for table, changed in tables.items():
        columns = [
            name
            for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")
            if changed.get(name) != ""
        ]
        values = [changed.get(name, f"template.{name}") for name in columns]
        connection.execute(
            f"""
            WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers
            WHERE n < {count - 1}), template AS (SELECT * FROM {table} LIMIT 1)
            INSERT INTO {table} ({", ".join(columns)})
            SELECT {", ".join(values)} FROM numbers, template
            """  # noqa: S608 - names and expressions of the adapters
        )
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()


def count_rows(file: Path, condition: str) -> int:
    """How many rows there are, as another process would see it."""
    connection = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=30)
    try:
        query = f"SELECT count(*) FROM {condition}"  # noqa: S608 - the adapters' own
        return int(connection.execute(query).fetchone()[0])
    finally:
        connection.close()


def due_times(count: int, spacing: float) -> list[float]:
    """Due times on whole milliseconds, so that none is rounded."""
    first = int((time.time() + WAKE_LEAD) * 1000)
    return [(first + round(index * spacing * 1000)) / 1000 for index in range(count)]


def latencies(due: list[float]) -> Answer:
    """How late each job started, in seconds; what never started is counted."""
    started = dict(RUNS.started)
    return {
        "latencies": [started[index] - due[index] for index in sorted(started)],
        "missing": len(due) - len(started),
    }


def dispatched(seconds: float, wanted: int, left: int) -> Answer:
    """The answer of a dispatch measure: how many ran and were recorded as done."""
    ran = len(RUNS.started)
    return {"seconds": seconds, "count": min(ran, wanted - left), "ran": ran, "left": left}


def recovered(opened_at: float, reason: str | None) -> Answer:
    """The answer of a recovery measure: when the interrupted job began again, or why not."""
    if not RUNS.started:
        return {"never": reason}
    return {"seconds": RUNS.started[0][1] - opened_at}


def order_of_command_line() -> Order:
    """What the parent wants from this process."""
    return Order.parse(sys.argv[1])
