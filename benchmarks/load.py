"""How busy others keep the machine while something is measured."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import attrs

_STAT: Final = Path("/proc/stat")
# The columns of `/proc/stat` in which somebody computes: user, nice, system, and what the
# hypervisor gave to others. Interrupts are mostly those of our own writes.
_BUSY_COLUMNS: Final = (0, 1, 2, 7)


@attrs.frozen
class LoadMeter:
    """Begun before and read after; what we and our children computed is subtracted."""

    began: float
    busy: float
    ours: float

    @classmethod
    def begin(cls) -> LoadMeter:
        """Start measuring."""
        return cls(time.perf_counter(), _busy_seconds(), _our_seconds())

    def read(self) -> float:
        """How many CPUs others have kept busy since, on average.

        Where there is no `/proc/stat`, the load average without ourselves.
        """
        if not _STAT.exists():
            return max(0.0, os.getloadavg()[0] - 1)
        elapsed = time.perf_counter() - self.began
        others = (_busy_seconds() - self.busy) - (_our_seconds() - self.ours)
        return max(0.0, others / elapsed)


def _busy_seconds() -> float:
    if not _STAT.exists():
        return 0.0
    columns = _STAT.read_text("ascii").split("\n", 1)[0].split()[1:]
    return sum(int(columns[index]) for index in _BUSY_COLUMNS) / os.sysconf("SC_CLK_TCK")


def _our_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
