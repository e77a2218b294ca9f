"""What a run leaves: a table to read, and JSON with every round."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from .figures import Line

VERDICTS: Final = {"met": "met", "missed": "MISSED", "not measured": "NOT MEASURED"}
DASH: Final = "\N{EN DASH}"

_HEADINGS: Final = ("measure", "of", "median", "spread", "bound", "wanted", "", "disk µs", "load")
_LEFT_ALIGNED: Final = 2


@attrs.frozen
class Run:
    """Everything about one run; `rounds` holds, by group, what each contestant took in each."""

    machine: Mapping[str, str]
    settings: Mapping[str, Any]
    lines: Sequence[Line]
    rounds: Mapping[str, Any]

    @property
    def load_threshold(self) -> float | None:
        """The load from which rounds were dropped."""
        threshold: float | None = self.settings["load_threshold"]
        return threshold


def text_table(lines: Sequence[Line]) -> str:
    """The table for a terminal."""
    rows = [_HEADINGS, *map(_cells, lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    padded = [
        [
            cell.ljust(width) if column < _LEFT_ALIGNED else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]
    text = ["  ".join(row).rstrip() for row in padded]
    text.insert(1, "-" * max(map(len, text)))
    return "\n".join(text)


def machine_text(machine: Mapping[str, str]) -> str:
    """The machine on a line."""
    return "; ".join(f"{name}: {value}" for name, value in machine.items())


def dropped_text(run: Run) -> str:
    """From which load rounds were dropped, and how many were."""
    if run.load_threshold is None:
        return "No round was dropped for load."
    dropped = {line.group: line.dropped for line in run.lines if line.dropped}
    counts = ", ".join(f"{count} of {group}" for group, count in dropped.items()) or "none"
    return (
        f"Rounds during which others kept more than {run.load_threshold:g} CPUs busy were dropped"
        f" and run again: {counts}."
    )


def write_json(run: Run, path: Path) -> None:
    """Write all of it."""
    text = json.dumps(attrs.asdict(run), indent=1, ensure_ascii=False)
    path.write_text(text + "\n", "utf-8")


def read_json(path: Path) -> Run:
    """Read what `write_json` wrote."""
    stored = json.loads(path.read_text("utf-8"))
    return Run(**{**stored, "lines": [Line(**line) for line in stored["lines"]]})


def number(value: float) -> str:
    """A figure with the digits that count."""
    size = abs(value)
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 or not size else f"{value:.3f}"


def median(line: Line) -> str:
    """The median with its unit."""
    return f"{number(line.median)} {line.unit}".rstrip() if line.figures else DASH


def spread(line: Line) -> str:
    """The least and the greatest of the rounds."""
    if not line.figures:
        return DASH
    return f"{number(min(line.figures))}{DASH}{number(max(line.figures))}"


def limit(line: Line, value: float | None) -> str:
    """A bound as the table writes it."""
    if value is None:
        return ""
    return f"{'≥' if line.at_least else '≤'} {value:g} {line.unit}".rstrip()


def _cells(line: Line) -> tuple[str, ...]:
    return (
        line.measure,
        line.of or DASH,
        median(line),
        spread(line),
        limit(line, line.bound),
        limit(line, line.wanted),
        VERDICTS[line.verdict],
        f"{line.disk_us:.0f}",
        f"{line.load:.2f}",
    )
