"""Fills the tables of docs/explanation/performance.md from the JSON of full runs.

`python -m benchmarks.page first/full.json second/full.json`
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .figures import Line
from .report import (
    DASH,
    VERDICTS,
    Run,
    dropped_text,
    limit,
    machine_text,
    median,
    read_json,
    spread,
)

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "explanation" / "performance.md"
PLOTS: Final = ROOT / "docs" / "_static" / "performance"

BEGIN: Final = "<!-- benchmark: begin (python -m benchmarks.page writes what follows) -->"
END: Final = "<!-- benchmark: end -->"

_HEADINGS: Final = ("measure", "of", "bound", "we want")
_ORDINALS: Final = ("first", "second", "third", "fourth", "fifth")


def filled(page: str, text: str) -> str:
    """The page with this text between its markers.

    Raises:
        ValueError: It has none.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN!r} followed by {END!r}")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def text_of(runs: Sequence[Run]) -> str:
    """What the page says about some runs: the machine, one table, and the rounds that count."""
    names = [f"{name} run" for name in _ORDINALS[: len(runs)]]
    parts = [machine_text(runs[0].machine) + ".", _table(runs, names)]
    parts += [
        f"{name.capitalize()}: {dropped_text(run)}" for name, run in zip(names, runs, strict=True)
    ]
    return "\n\n".join(parts)


def _table(runs: Sequence[Run], names: Sequence[str]) -> str:
    headings = [*_HEADINGS, *names]
    rows = [headings, ["---"] * len(headings)]
    for lines in zip(*(run.lines for run in runs), strict=True):
        first = lines[0]
        if any((line.measure, line.of) != (first.measure, first.of) for line in lines):
            raise ValueError("the runs have different rows; make them with the same program")
        limits = [limit(first, first.bound), limit(first, first.wanted)]
        rows.append([first.measure, first.of or DASH, *limits, *map(_cell, lines)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(line: Line) -> str:
    measured = f"**{median(line)}** ({spread(line)})"
    verdict = "" if line.verdict == "met" else f" {VERDICTS[line.verdict]}"
    return f"{measured}{verdict}; disk {line.disk_us:.0f} µs, load {line.load:.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the page, and draw the first run's plots beside it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="the JSON of one run or several")
    runs = [read_json(path) for path in parser.parse_args(arguments).runs]
    text = text_of(runs)
    if importlib.util.find_spec("matplotlib"):
        from .plots import draw  # noqa: PLC0415 - an optional requirement

        PLOTS.mkdir(parents=True, exist_ok=True)
        folder = f"../{PLOTS.relative_to(PAGE.parents[1])}"
        text += "".join(f"\n\n![]({folder}/{path.name})" for path in draw(runs[0], PLOTS))
    PAGE.write_text(filled(PAGE.read_text("utf-8"), text), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
