"""Children that are killed at random moments and started again (R52)."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

import attrs
import pytest

from tests.crash import journal
from tests.crash.judge import PROMPT_MS, Figures, Judge
from tests.crash.snapshot import Snapshot, take_snapshot
from tests.crash.workload import Task

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).parents[2]
# A run that is later than PROMPT_MS once, because the machine stalled, is no fault of ours.
STALL_MS = 5000
KILLS_IN_A_ROUND = 25


class Round:
    """One database, its children one after the other, and the judge of what they leave."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory = directory
        self._database = directory / "alarms.db"
        self._journal = directory / "journal"
        self._random = random.Random(seed)  # noqa: S311 - when to kill, no secret
        self._epoch = 0
        self._entries_read = 0
        self._judge = Judge()
        self._successor = self._spawn()

    def kill(self, times: int) -> Judge:
        """Start children and kill them, so many times; then let one finish all that is due."""
        figures = self._judge.figures
        while figures.kills < times:
            alive = self._moment()
            leaves = self._random.random() < 0.2
            leave_after = max(0.001, alive - self._random.random() * 0.4) if leaves else None
            with self._child(leave_after=leave_after) as child:
                time.sleep(alive)
                child.send_signal(signal.SIGKILL)
                status = child.wait()
            self._require(status == -signal.SIGKILL or (leaves and status == 0), status)
            figures.kills += status != 0
            figures.left_in_peace += status == 0
            self._look()
        with self._child(drain=True) as child:
            self._require(child.wait(timeout=60) == 0, child.returncode)
        self._judge.after_drain(self._look())
        self._require_no_problems()
        return self._judge

    def _moment(self) -> float:
        """Seconds until the kill: now and then while the host opens, else while it works."""
        if self._random.random() < 0.2:
            return self._random.random() * 0.06
        return self._random.uniform(0.05, 0.8)

    @contextmanager
    def _child(
        self, *, leave_after: float | None = None, drain: bool = False
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A child that has just been told to start; its successor imports meanwhile."""
        task = Task(
            database=str(self._database),
            journal=str(self._journal),
            epoch=self._epoch,
            seed=self._random.getrandbits(32),
            executor=self._random.choice(["thread", "thread", "inline"]),
            produce=not drain and self._random.random() < 0.75,
            drain=drain,
            leave_after=leave_after,
        )
        child, self._successor = self._successor, self._spawn()
        with child:
            try:
                assert child.stdin is not None
                assert child.stdout is not None
                self._require(child.stdout.readline() == b"ready\n", child.poll())
                child.stdin.write(json.dumps(attrs.asdict(task)).encode() + b"\n")
                child.stdin.flush()
                yield child
            finally:
                child.kill()

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self._stderr.open("ab") as stderr:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.crash.workload"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )

    def close(self) -> None:
        """Let the child go that was never told to start."""
        with self._successor:
            self._successor.kill()

    def _look(self) -> Snapshot:
        ended_ms = time.time_ns() // 1_000_000
        entries = journal.read(self._journal)
        now = take_snapshot(self._database, self._directory / "copy")
        self._judge.after_epoch(entries[self._entries_read :], now, ended_ms)
        self._entries_read = len(entries)
        self._require_no_problems()
        self._epoch += 1
        return now

    def _require_no_problems(self) -> None:
        assert not self._judge.problems, self._judge.problems

    @property
    def _stderr(self) -> Path:
        return self._directory / "stderr"

    def _require(self, holds: bool, status: int | None) -> None:  # noqa: FBT001 - an assertion
        assert holds, f"the child ended by itself ({status}):\n{self._stderr.read_text()[-4000:]}"


def check_work(figures: Figures) -> None:
    """Something was done, mostly within a second of its time, and always but for a stall."""
    assert figures.committed > 0
    assert figures.runs > 0
    for delays_ms in (figures.automatic_delays_ms, figures.manual_delays_ms):
        # How much was due when a host opened is chance; a slow machine leaves little.
        assert median([0, *delays_ms]) < PROMPT_MS, sorted(delays_ms)
        assert max([0, *delays_ms]) < STALL_MS, sorted(delays_ms)


def check_kills(directory: Path, kills: int) -> Judge:
    """One round, judged; prints what it amounted to, and the seed that decided what was tried."""
    seed = int(os.environ.get("KILL_SEED", random.SystemRandom().getrandbits(32)))
    print(f"KILL_SEED={seed}, files in {directory}")
    with closing(Round(directory, seed)) as round_:
        judge = round_.kill(kills)
    print(judge.figures)
    return judge


def test_a_few_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    """Due alarms run at least once, acknowledged ones never again, at once or in time (R52)."""
    figures = check_kills(tmp_path, 6).figures
    check_work(figures)


@pytest.mark.trust
@pytest.mark.parametrize("round_", range(8))
def test_two_hundred_kills_lose_nothing_and_repeat_nothing(tmp_path: Path, round_: int) -> None:
    """As above, often enough to meet each moment in which a process can end (R52)."""
    figures = check_kills(tmp_path, KILLS_IN_A_ROUND).figures
    check_work(figures)
