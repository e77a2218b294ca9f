"""What a run leaves: a table to read, and JSON with every round."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from .figures import Line
from .rounds import Measured, Row

_HEADINGS: Final = ("measure", "of", "median", "spread", "bound", "wanted", "", "disk µs", "load")
_LEFT_ALIGNED: Final = 2
_NONE: Final = "\N{EN DASH}"


@attrs.frozen
class Run:
    """Everything about one run."""

    machine: Mapping[str, str]
    settings: Mapping[str, Any]
    measured: Sequence[Measured]
    lines: Sequence[Line]


def cells(line: Line) -> tuple[str, ...]:
    """What the table says about a row."""
    row = line.row
    return (
        row.measure,
        row.of or _NONE,
        amount(row, line.median) if line.figures else _NONE,
        spread(line.figures) if line.figures else _NONE,
        limit(row, row.bound),
        "" if row.wanted is None else limit(row, row.wanted),
        {"met": "met", "missed": "MISSED", "not measured": "NOT MEASURED"}[line.verdict],
        f"{line.disk_us:.0f}",
        f"{line.load:.2f}",
    )


def text_table(lines: Sequence[Line]) -> str:
    """The table for a terminal."""
    rows = [_HEADINGS, *map(cells, lines)]
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


def markdown_table(lines: Sequence[Line]) -> str:
    """The table for the documentation."""
    rows = [_HEADINGS, tuple("---" for _ in _HEADINGS), *map(cells, lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def machine_text(machine: Mapping[str, str]) -> str:
    """The machine on a line."""
    return "; ".join(f"{name}: {value}" for name, value in machine.items())


def dropped_text(lines: Sequence[Line], load_threshold: float | None) -> str:
    """From which load rounds were dropped, and how many were."""
    if load_threshold is None:
        return "No round was dropped for load."
    dropped = {line.group: line.dropped for line in lines if line.dropped}
    counts = ", ".join(f"{group} {count}" for group, count in dropped.items()) or "none"
    return (
        f"Rounds during which others kept more than {load_threshold:g} CPUs busy were dropped and"
        f" run again: {counts}."
    )


def write_json(run: Run, path: Path) -> None:
    """Write all of it, every round with what each contestant took."""
    path.write_text(json.dumps(as_json(run), indent=1, ensure_ascii=False) + "\n", "utf-8")


def as_json(run: Run) -> dict[str, Any]:
    """The run as JSON values."""
    return {
        "machine": dict(run.machine),
        "settings": dict(run.settings),
        "rows": [
            {
                "group": line.group,
                "measure": line.row.measure,
                "of": line.row.of,
                "unit": line.row.unit,
                "at_least": line.row.at_least,
                "bound": line.row.bound,
                "wanted": line.row.wanted,
                "median": line.median if line.figures else None,
                "figures": list(line.figures),
                "disk_us": line.disk_us,
                "load": line.load,
                "dropped": line.dropped,
                "verdict": line.verdict,
            }
            for line in run.lines
        ],
        "groups": {
            each.group.name: {
                "kept": [attrs.asdict(one) for one in each.kept],
                "dropped": [attrs.asdict(one) for one in each.dropped],
            }
            for each in run.measured
        },
    }


def number(value: float) -> str:
    """A figure with three digits that count."""
    size = abs(value)
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 or not size else f"{value:.3f}"


def spread(figures: Sequence[float]) -> str:
    """The least and the greatest of some figures."""
    return f"{number(min(figures))}{_NONE}{number(max(figures))}"


def amount(row: Row, value: float) -> str:
    """A figure with its unit."""
    return f"{number(value)} {row.unit}".strip()


def limit(row: Row, value: float) -> str:
    """A bound as the table writes it."""
    return f"{'≥' if row.at_least else '≤'} {value:g} {row.unit}".rstrip()
