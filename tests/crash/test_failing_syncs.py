"""A disk that takes writes and fails to sync them (R10, R11)."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.failing_syncs import SYNC_CALLS, found
from trio_alarms import open_host

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in SYNC_CALLS,
    reason="the numbers of the system calls that are to fail are known for Linux on two machines",
)


async def commit_unsynced(path: Path, what: str, how_often: str) -> tuple[str, int]:
    """What a child said of its commit before it died, and how much the next start finds."""
    command = [sys.executable, "-m", "tests.crash.failing_syncs", str(path), what, how_often]
    child = subprocess.run(  # noqa: ASYNC221 - nothing else runs in this test
        command, cwd=ROOT, capture_output=True, check=False, timeout=60, text=True
    )
    if child.stdout == "no seccomp\n":
        pytest.skip("this kernel or container admits no seccomp filter")
    assert child.stdout, child.stderr
    async with open_host(path, driver=False) as host:
        return child.stdout.strip(), await found(host)


@pytest.mark.parametrize("what", ["alarm", "application"])
async def test_a_commit_that_cannot_be_synced_has_an_unknown_outcome(
    tmp_path: Path, mock_clock: object, what: str
) -> None:
    """It is whole in the log, where the next start may find it, so it is not undone (R11)."""
    said, after_the_kill = await commit_unsynced(tmp_path / "alarms.db", what, "always")
    assert said == "unknown, 0 found", after_the_kill


@pytest.mark.parametrize("what", ["alarm", "application"])
async def test_a_commit_that_was_not_synced_once_is_really_rolled_back(
    tmp_path: Path, mock_clock: object, what: str
) -> None:
    """What is reported as rolled back does not come back with the next start (R10, R11)."""
    said, after_the_kill = await commit_unsynced(tmp_path / "alarms.db", what, "once")
    assert said == "rolled back, 0 found"
    assert after_the_kill == 0
