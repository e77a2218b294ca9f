"""How soon a process is at work: importing the package, and what a kill had interrupted."""

from __future__ import annotations

import compileall
import statistics
import subprocess
import sys
from functools import partial
from typing import Final

from . import files
from .children import ROOT, killed_after_start, run_child
from .rounds import Group, Row, Sample, Work, figure, speed

_IMPORT: Final = """
import time
began = time.perf_counter()
import {names}
print(time.perf_counter() - began)
"""


def import_seconds(work: Work, names: str) -> Sample:
    """The time that importing takes, the median over new interpreters."""
    # As pip does when it installs; an editable install has no bytecode of ours.
    compileall.compile_dir(ROOT / "trio_alarms", quiet=1)
    seconds = []
    for _ in range(work.sizes.imports):
        done = subprocess.run(
            [sys.executable, "-c", _IMPORT.format(names=names)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        seconds.append(float(done.stdout))
    return {"seconds": statistics.median(seconds)}


def recovery(work: Work) -> Sample:
    """From opening the file that a kill left behind until the interrupted alarms run again."""
    seconds = []
    for number in range(work.sizes.recoveries):
        path = work.folder / f"killed-{number}.db"
        files.make_file(path)
        files.fill(path, files.due_alarms(work.sizes.interrupted))
        with killed_after_start("interrupted", path, work.sizes.interrupted):
            pass
        seconds.append(run_child("handled", path, work.sizes.interrupted)["seconds"])
    return {"milliseconds": statistics.median(seconds) * 1000}


RECOVERY: Final = Group(
    "recovery",
    {"host": recovery},
    [
        Row(
            "interrupted automatic alarms run again after SIGKILL, from opening",
            figure("host", "milliseconds"),
            unit="ms",
            bound=300,
            wanted=50,
        ),
    ],
)

IMPORT: Final = Group(
    "import",
    {
        "dependencies": partial(import_seconds, names="trio, attrs, cattrs, sqlite3"),
        "trio_alarms": partial(import_seconds, names="trio_alarms"),
    },
    [
        Row(
            "importing the package",
            # How fast the dependencies are beside us is how long we take beside them.
            speed("dependencies", "trio_alarms"),
            of="trio, attrs, cattrs, sqlite3",
            bound=1.6,
            wanted=1.2,
        ),
    ],
)
