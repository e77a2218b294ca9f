"""Which writes and syncs a child made, in order, as strace saw them.

strace and nothing else: a preload needs a compiler, and what the kernel counts by itself
(`/proc/<pid>/io`) has no syncs. Where it is missing, or may not trace, those tests are skipped.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
import pytest

ROOT: Final = Path(__file__).parents[2]
_TRACED: Final = "trace=write,pwrite64,fsync,fdatasync"
_CALL: Final = re.compile(r"(\d+) +(write|pwrite64|fsync|fdatasync)\(\d+<(.*?)>(.*)")
_RESUMED: Final = re.compile(r"(\d+) +<\.\.\. (fsync|fdatasync) resumed>.*= 0$")


@attrs.frozen
class Call:
    """A write that began, or a sync that succeeded."""

    kind: str  # "write" or "sync"
    path: str
    text: str


def require_strace() -> str:
    """The path of strace; skips the test where it cannot be used."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed: no way to count syncs from outside")
    tried = subprocess.run([strace, "-o", "/dev/null", "true"], capture_output=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"strace may not trace here: {tried.stderr.decode(errors='replace')[:200]}")
    return strace


def traced(module: str, *arguments: str, output: Path) -> list[Call]:
    """Run a module of ours to its end and return its calls."""
    command = [require_strace(), "-f", "-y", "-e", _TRACED, "-o", str(output)]
    command += [sys.executable, "-m", module, *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr.decode()
    return list(_parse(output.read_text(encoding="utf-8", errors="replace")))


def _parse(trace: str) -> Iterator[Call]:
    begun: dict[str, str] = {}
    for line in trace.splitlines():
        if match := _CALL.match(line):
            thread, name, path, rest = match.groups()
            if name in {"write", "pwrite64"}:
                yield Call("write", path, rest)
            elif rest.endswith("= 0"):
                yield Call("sync", path, rest)
            else:
                begun[thread] = path
        elif match := _RESUMED.match(line):
            yield Call("sync", begun.pop(match.group(1)), "")
