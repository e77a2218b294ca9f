"""The measures for peers that are called from threads."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Barrier, Lock, Thread
from typing import ClassVar

from .child import (
    DAY,
    POLL,
    RUNS,
    SETTLE,
    WARM_UP,
    Answer,
    Order,
    Tables,
    answer,
    clone,
    count_rows,
    dispatched,
    due_times,
    latencies,
    order_of_command_line,
    recovered,
)


class ThreadPeer(abc.ABC):
    """One peer on one database.

    Attributes:
        file_name: The database, in the order's folder.
        retained: Which rows to multiply for retained jobs, and how they differ (see `clone`).
        unfinished: What to count to know what is not done yet.
        delays: Whether the peer can delay a job; else the caller sleeps and then puts it.
    """

    file_name: ClassVar[str] = "jobs.db"
    retained: ClassVar[Tables]
    unfinished: ClassVar[str]
    delays: ClassVar[bool] = True

    def __init__(self, order: Order, durability: str | None = None) -> None:
        self.order = order
        self.durability = durability or order.durability

    @property
    def file(self) -> Path:
        """The database file."""
        return self.order.folder / self.file_name

    @abc.abstractmethod
    def open(self) -> None:
        """Open the store, to schedule jobs."""

    @abc.abstractmethod
    def put(self, index: int, due: float) -> None:
        """Schedule a job; a bare queue takes it as due at once."""

    @abc.abstractmethod
    def start(self) -> None:
        """Start what runs jobs."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop what runs jobs, if it runs, and close the store."""

    @abc.abstractmethod
    def pragmas(self) -> Answer:
        """What is in force on the peer's own connection."""

    def put_retained(self) -> None:
        """Schedule the one job that is multiplied for `retained`."""
        self.put(-1, time.time() + DAY)

    def explain(self) -> str:
        """Why an interrupted job does not run again while it is still stored."""
        return "the job is still stored"


def fill(peer: type[ThreadPeer], order: Order, count: int) -> None:
    """Schedule jobs that are due already, through the peer itself, without waiting for the disk."""
    filler = peer(order, durability="off")
    filler.open()
    due = time.time() - 1
    for index in range(count):
        filler.put(index, due)
    filler.stop()


def retain(peer: type[ThreadPeer], order: Order) -> None:
    """Lay jobs for tomorrow into the store."""
    if not order.retained:
        return
    first = peer(order, durability="off")
    first.open()
    first.put_retained()
    first.stop()
    clone(first.file, order.retained, peer.retained)


def schedule(kind: type[ThreadPeer], order: Order) -> Answer:
    """Schedule jobs for tomorrow from some threads at once."""
    retain(kind, order)
    peer = kind(order)
    peer.open()
    for index in range(WARM_UP):
        peer.put(order.count + index, time.time() + DAY)
    lock, barrier = Lock(), Barrier(order.callers + 1)
    done: list[int] = []
    errors: list[str] = []

    def caller(indices: range) -> None:
        succeeded = 0
        barrier.wait()
        deadline = time.perf_counter() + order.limit
        for index in indices:
            try:
                peer.put(index, time.time() + DAY)
                succeeded += 1
            except Exception as error:  # noqa: BLE001 - a peer's failures are a result
                with lock:
                    errors.append(f"{type(error).__name__}: {error}"[:200])
            if time.perf_counter() > deadline:
                break
        with lock:
            done.append(succeeded)

    callers = [
        Thread(target=caller, args=(range(number, order.count, order.callers),))
        for number in range(order.callers)
    ]
    for thread in callers:
        thread.start()
    barrier.wait()
    begun = time.perf_counter()
    for thread in callers:
        thread.join()
    seconds = time.perf_counter() - begun
    pragmas = peer.pragmas()
    peer.stop()
    return {
        "seconds": seconds,
        "count": sum(done),
        "failed": len(errors),
        "error": errors[0] if errors else None,
        "pragmas": pragmas,
    }


def dispatch(kind: type[ThreadPeer], order: Order) -> Answer:
    """Run jobs that are due already, until all have run and are recorded as done."""
    fill(kind, order, order.count)
    RUNS.expect(order.count)
    peer = kind(order)
    peer.open()
    pragmas = peer.pragmas()
    begun = time.perf_counter()
    peer.start()
    RUNS.reached.wait(order.limit)
    left = count_rows(peer.file, kind.unfinished)
    while left and time.perf_counter() - begun < order.limit:
        time.sleep(POLL)
        left = count_rows(peer.file, kind.unfinished)
    result = dispatched(time.perf_counter() - begun, order.count, left)
    peer.stop()
    return {**result, "pragmas": pragmas}


def wake(kind: type[ThreadPeer], order: Order) -> Answer:
    """Run jobs that fall due one after another, and see how late each starts."""
    RUNS.expect(order.count)
    peer = kind(order)
    peer.open()
    peer.start()
    due = due_times(order.count, order.spacing)
    for index, instant in enumerate(due):
        if not peer.delays:
            time.sleep(max(0.0, instant - time.time()))
        peer.put(index, instant)
    RUNS.reached.wait(max(0.0, due[-1] - time.time()) + order.limit)
    result = {**latencies(due), "pragmas": peer.pragmas()}
    peer.stop()
    if not kind.delays:
        result["note"] = "has no delay: the caller sleeps until a job is due, and then puts it"
    return result


def idle(kind: type[ThreadPeer], order: Order) -> Answer:
    """What waiting costs while jobs for tomorrow lie in the store; a bare queue's is empty."""
    if kind.delays:
        retain(kind, order)
    peer = kind(order)
    peer.open()
    peer.start()
    time.sleep(SETTLE)
    before = time.process_time()
    time.sleep(order.seconds)
    used = time.process_time() - before
    pragmas = peer.pragmas()
    peer.stop()
    result = {"cpu": used, "seconds": order.seconds, "pragmas": pragmas}
    return result if kind.delays else {**result, "note": "holds no future jobs: its queue is empty"}


def interrupt(kind: type[ThreadPeer], order: Order) -> Answer:
    """Run a job that never ends; the parent kills this process once it has begun."""
    RUNS.interrupting = True
    RUNS.expect(1)
    peer = kind(order)
    peer.open()
    peer.start()
    peer.put(0, time.time())
    RUNS.reached.wait(order.limit)
    return {"error": "the job did not start"}


def recover(kind: type[ThreadPeer], order: Order) -> Answer:
    """Open what the killed process left, and wait for its job to run again."""
    RUNS.expect(1)
    peer = kind(order)
    opened_at = time.time()
    peer.open()
    peer.start()
    RUNS.reached.wait(order.seconds)
    reason = None
    if not RUNS.started:
        left = count_rows(peer.file, kind.unfinished)
        reason = peer.explain() if left else "the job is no longer stored: it is lost"
    result = recovered(opened_at, reason)
    peer.stop()
    return result


MEASURES: Mapping[str, Callable[[type[ThreadPeer], Order], Answer]] = {
    "schedule": schedule,
    "dispatch": dispatch,
    "wake": wake,
    "idle": idle,
    "interrupt": interrupt,
    "recover": recover,
}


def main(kind: type[ThreadPeer]) -> None:
    """Carry out the order on the command line."""
    order = order_of_command_line()
    answer(MEASURES[order.measure](kind, order))
