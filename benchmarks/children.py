"""What is measured in a process of its own, and how that is started.

`python -m benchmarks.children idle app.db 60` prints one line of JSON. A process of its own tells
CPU time and memory of a host alone, can be killed, and can have its statements counted without
slowing down anything that is timed.
"""

from __future__ import annotations

import json
import resource
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import trio

from trio_alarms import AlarmDue

from . import files
from .hosts import Chores, Countdown, open_chores, seconds_until_none_is_due

ROOT: Final = Path(__file__).parents[1]
STARTED: Final = "started"

_SETTLE_SECONDS: Final = 1.0
_STATUS: Final = Path("/proc/self/status")
_KIBIBYTE: Final = 1024
_NATIVE_WRITE: Final = "INSERT INTO trio_alarms_hosts"


def run_child(program: str, *arguments: object) -> dict[str, float]:
    """Run one of the programs below to its end, and return what it has measured."""
    done = subprocess.run(
        command(program, *arguments), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def command(program: str, *arguments: object) -> list[str]:
    """How a program is started."""
    return [sys.executable, "-m", "benchmarks.children", program, *map(str, arguments)]


@contextmanager
def killed_after_start(program: str, *arguments: object) -> Iterator[None]:
    """Start a program, wait until it says that it has begun, and kill it at the block's end."""
    child = subprocess.Popen(
        command(program, *arguments), cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        if child.stdout is None or child.stdout.readline().strip() != STARTED:
            raise RuntimeError(f"{program} ended before it had begun")
        yield
    finally:
        child.kill()
        child.communicate()


@contextmanager
def statements_noted() -> Iterator[list[str]]:
    """Note the text of every statement on connections that are opened inside the block."""
    noted: list[str] = []
    connect = sqlite3.connect

    def connect_noting(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_trace_callback(noted.append)
        return connection

    sqlite3.connect = connect_noting  # type: ignore[assignment]  # the same but for the callback
    try:
        yield noted
    finally:
        sqlite3.connect = connect


async def idle(path: str, seconds: str) -> Mapping[str, float]:
    """The CPU seconds of a host that has nothing to do."""
    async with open_chores(Path(path)):
        await trio.sleep(_SETTLE_SECONDS)
        before = time.process_time()
        await trio.sleep(float(seconds))
        return {"cpu": time.process_time() - before}


async def idle_statements(path: str, seconds: str) -> Mapping[str, float]:
    """The statements of such a host."""
    with statements_noted() as noted:
        async with open_chores(Path(path)):
            await trio.sleep(_SETTLE_SECONDS)
            before = len(noted)
            await trio.sleep(float(seconds))
            return {"statements": len(noted) - before}


async def empty(path: str) -> Mapping[str, float]:
    """The most memory that a host without alarms takes, in bytes."""
    async with open_chores(Path(path)):
        await trio.sleep(_SETTLE_SECONDS)
    return {"bytes": most_resident_bytes()}


async def overdue(path: str, count: str) -> Mapping[str, float]:
    """The most memory that a host takes that dispatches so many overdue alarms, in bytes."""
    countdown = Countdown(int(count))

    async def once(event: AlarmDue[str]) -> None:  # noqa: ARG001 - a handler takes its event
        countdown.tick()

    due_before = files.now_ms()
    # As many at once as the other rows have: more memory, and an hour less.
    async with open_chores(Path(path), once=once, concurrency=64) as host:
        began = time.perf_counter()
        seconds = await seconds_until_none_is_due(
            host, countdown, due_before=due_before, began=began
        )
    return {"bytes": most_resident_bytes(), "seconds": seconds}


async def deferred(path: str, count: str) -> Mapping[str, float]:
    """How often the native alarm is written by transactions inside one `defer_wakes`."""
    alarms = files.future_alarms(int(count))
    with statements_noted() as noted:
        async with open_chores(Path(path)) as host:
            chores = host.service(Chores)
            began, before = time.perf_counter(), len(noted)
            async with chores.defer_wakes():
                for _, id, run_at, _ in alarms:
                    async with chores.transaction() as tx:
                        await tx.schedule_alarm(
                            Chores.once, id, run_at=files.instant(run_at), payload="work"
                        )
            seconds = time.perf_counter() - began
            writes = sum(text.startswith(_NATIVE_WRITE) for text in noted[before:])
    return {"writes": writes, "seconds": seconds}


async def interrupted(path: str, count: str) -> Mapping[str, float]:
    """Say when so many handlers run, none of which ever ends."""
    countdown = Countdown(int(count))

    async def once(event: AlarmDue[str]) -> None:  # noqa: ARG001 - a handler takes its event
        countdown.tick()
        await trio.sleep_forever()

    async with open_chores(Path(path), once=once, concurrency=int(count)):
        await countdown.wait()
        print(STARTED, flush=True)
        await trio.sleep_forever()
    raise AssertionError("it is killed")


async def handled(path: str, count: str) -> Mapping[str, float]:
    """The seconds from opening a host until so many handlers have been called."""
    countdown = Countdown(int(count))

    async def once(event: AlarmDue[str]) -> None:  # noqa: ARG001 - a handler takes its event
        countdown.tick()

    began = time.perf_counter()
    async with open_chores(Path(path), once=once, concurrency=int(count)):
        await countdown.wait()
        return {"seconds": time.perf_counter() - began}


def most_resident_bytes() -> int:
    """The most memory that this process has ever had resident.

    Not by `getrusage` where there is another way: on Linux that counts the parent's before `exec`.
    """
    if _STATUS.exists():
        for line in _STATUS.read_text("ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * _KIBIBYTE
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * _KIBIBYTE


PROGRAMS: Final[Mapping[str, Callable[..., Awaitable[Mapping[str, float]]]]] = {
    "idle": idle,
    "idle-statements": idle_statements,
    "empty": empty,
    "overdue": overdue,
    "deferred": deferred,
    "interrupted": interrupted,
    "handled": handled,
}


if __name__ == "__main__":
    print(json.dumps(trio.run(PROGRAMS[sys.argv[1]], *sys.argv[2:])))
