"""What a host costs while it lives: idle, with a backlog, and with its wakes deferred."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from . import files
from .children import run_child
from .rounds import Group, Row, Sample, Samples, Work, figure

_CHECK_INTERVAL_SECONDS: Final = 30.0
_IN_FLIGHT_RECOVERY_SECONDS: Final = 1.0
_MINUTE: Final = 60.0
_MEBIBYTE: Final = 2**20


def idle(work: Work) -> Sample:
    """Two hosts that wait for tomorrow: one whose CPU time is read, one whose statements are."""
    seconds = work.sizes.idle_seconds
    paths = {
        program: _future_file(work, f"{program}.db") for program in ("idle", "idle-statements")
    }
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(run_child, program, path, seconds) for program, path in paths.items()]
        figures = {name: value for each in runs for name, value in each.result().items()}
    return {
        "cpu": figures["cpu"] * _MINUTE / seconds,
        "statements": figures["statements"] / math.ceil(seconds / _CHECK_INTERVAL_SECONDS),
    }


def empty(work: Work) -> Sample:
    """The memory of a host without alarms."""
    return run_child("empty", work.folder / "empty.db")


def overdue(work: Work) -> Sample:
    """The memory of a host that dispatches a backlog."""
    path = work.folder / "overdue.db"
    files.make_file(path)
    files.fill(path, files.due_alarms(work.sizes.overdue))
    return run_child("overdue", path, work.sizes.overdue)


def deferred(work: Work) -> Sample:
    """How often the native alarm is written inside one `defer_wakes`."""
    counted = run_child("deferred", work.folder / "deferred.db", work.sizes.deferred_transactions)
    renewals = counted["seconds"] / _IN_FLIGHT_RECOVERY_SECONDS
    return {**counted, "beyond": counted["writes"] - renewals}


def _future_file(work: Work, name: str) -> Path:
    path = work.kept / name
    if not path.exists():
        files.make_file(path)
        files.fill(path, files.future_alarms(work.sizes.idle_alarms))
    return path


def _more_memory(samples: Samples) -> float:
    return (samples["overdue"]["bytes"] - samples["empty"]["bytes"]) / _MEBIBYTE


IDLE: Final = Group(
    "idle",
    {"host": idle},
    [
        Row(
            "idle for 60 s with 100,000 future alarms, CPU",
            figure("host", "cpu"),
            unit="s",
            bound=0.02,
            wanted=0.005,
        ),
        Row(
            "the same, statements per check_interval",
            figure("host", "statements"),
            bound=1,
        ),
    ],
    long=True,
)

MEMORY: Final = Group(
    "memory",
    {"empty": empty, "overdue": overdue},
    [
        Row(
            "resident memory while 200,000 overdue alarms are dispatched, over an empty host",
            _more_memory,
            unit="MiB",
            bound=24,
            wanted=8,
        ),
    ],
    long=True,
)

DEFER: Final = Group(
    "defer",
    {"host": deferred},
    [
        Row(
            "native alarm writes in 1,000 transactions inside one defer_wakes, less elapsed / 1 s",
            figure("host", "beyond"),
            bound=2,
        ),
    ],
)
