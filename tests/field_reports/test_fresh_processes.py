"""What another process has stored, or holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from trio_alarms import AlarmDue, open_host, process_due

PAYLOADS = """
import sys
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from typing import Any

import attrs
import trio
import trio.testing

from trio_alarms import Alarm, define
from trio_alarms.testing import open_test_host

class Colour(Enum):
    RED = "red"

@attrs.frozen
class Paid:
    amount: int
    when: datetime

@attrs.frozen
class Refused:
    amount: int
    colours: frozenset[Colour]
    pair: tuple[int, str]

zone = timezone(timedelta(hours=5, minutes=45))
VALUES = {
    "paid": (Paid | Refused, Paid(2**70, datetime(2000, 1, 1, tzinfo=zone))),
    "refused": (Paid | Refused, Refused(-1, frozenset({Colour.RED}), (1, "x"))),
    "deep": (Any, [[[[[[{"a": [1.0, 1, True, None]}]]]]]]),
    "text": (str, "\\u2028\\U0001f600\\x00"),
    "set": (set[str], {"a", "b", "c", "d", "e"}),
}
alarms = {tag: Alarm(kind, tag=tag) for tag, (kind, _) in VALUES.items()}
seen = {}

async def see(event):
    seen[event.tag] = event.payload

async def main():
    handlers = define(*alarms.values()).handlers(*(a.handled_by(see) for a in alarms.values()))
    async with open_test_host(sys.argv[1], alarms=handlers) as harness:
        if sys.argv[2] == "store":
            for tag, alarm in alarms.items():
                await harness.host.scheduler.schedule_alarm(
                    alarm, "1", after=0, payload=VALUES[tag][1]
                )
        else:
            await harness.settle()
            assert seen == {tag: value for tag, (_, value) in VALUES.items()}, seen
            assert {tag: type(value) for tag, value in seen.items()} == {
                tag: type(value) for tag, (_, value) in VALUES.items()
            }
            assert await harness.host.scheduler.list_alarms() == []

trio.run(main, clock=trio.testing.MockClock())
"""

HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
sys.stdout.write("held")
sys.stdout.flush()
sys.stdin.readline()
connection.execute("ROLLBACK")
"""


def test_payloads_are_equal_in_a_fresh_process(tmp_path: Path) -> None:
    """Stored by one process, they come back equal and of the same types in another (C19)."""
    for what in ("store", "read"):
        done = subprocess.run(
            [sys.executable, "-c", PAYLOADS, str(tmp_path / "alarms.db"), what],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr


async def lock_from_another_process(path: Path) -> trio.Process:
    """Start a process that holds the write lock until a line is sent to it."""
    process: trio.Process = await trio.lowlevel.open_process(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.receive_some() == b"held"
    return process


async def release(process: trio.Process) -> float:
    """Let go of the lock; when that was."""
    assert process.stdin is not None
    await process.stdin.send_all(b"\n")
    await process.wait()
    return trio.current_time()


async def check_a_lock_is_waited_out(path: Path, seconds: float) -> None:
    """Held while an alarm falls due, and while a handler ends: each runs once, soon after."""
    ran: dict[str, list[float]] = {"first": [], "second": []}
    in_first, end_first = trio.Event(), trio.Event()
    longest = 0.0

    async def handle(event: AlarmDue[Any]) -> None:
        ran[event.id].append(trio.current_time())
        if event.id == "first":
            in_first.set()
            await end_first.wait()

    async def tick() -> None:
        nonlocal longest
        while True:
            before = trio.current_time()
            await trio.sleep(0.02)
            longest = max(longest, trio.current_time() - before)

    async with open_host(path, alarms=process_due(handle)) as host, trio.open_nursery() as nursery:
        await host.scheduler.schedule_alarm("raw", "first", after=0)
        await host.scheduler.schedule_alarm("raw", "second", after=1)
        with trio.fail_after(10):
            await in_first.wait()
        process = await lock_from_another_process(path)
        nursery.start_soon(tick)
        end_first.set()
        await trio.sleep(seconds)
        assert ran["second"] == []
        released = await release(process)
        with trio.fail_after(10):
            while await host.scheduler.list_alarms():  # noqa: ASYNC110 - rows set no event
                await trio.sleep(0.05)
        nursery.cancel_scope.cancel()
    assert [len(times) for times in ran.values()] == [1, 1]
    assert ran["second"][0] - released < 3
    assert longest < 2


@pytest.mark.real_time
async def test_a_lock_of_another_process_holds_nothing_up_but_the_delivery(tmp_path: Path) -> None:
    """Held for longer than the busy timeout, while an alarm falls due and a handler ends (C21)."""
    await check_a_lock_is_waited_out(tmp_path / "alarms.db", 7)


@pytest.mark.trust
@pytest.mark.real_time
async def test_a_lock_held_for_thirty_seconds_holds_nothing_up_but_the_delivery(
    tmp_path: Path,
) -> None:
    """As above, through several busy timeouts (C21)."""
    await check_a_lock_is_waited_out(tmp_path / "alarms.db", 30)
