"""Plots of a run: how far each row is from its bound, and how fast each contestant is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .figures import Line
from .report import Run, limit, median

BOUNDS_PLOT: Final = "bounds.svg"
SPEEDS_PLOT: Final = "speeds.svg"

_MET: Final = "#2a7f62"
_MISSED: Final = "#b3412f"
# A figure of nothing at all is as far within its bound as the axis goes.
_FARTHEST: Final = 20.0
_MICROSECONDS: Final = 1e6


def draw(run: Run, folder: Path) -> list[Path]:
    """Draw both plots into a folder, the same for the same figures."""
    with mpl.rc_context({"svg.hashsalt": "trio_alarms", "svg.fonttype": "none", "font.size": 9}):
        return [_draw_bounds(run.lines, folder), _draw_speeds(run, folder)]


def margin(value: float, line: Line) -> float:
    """How many times better than its bound a figure is."""
    if line.at_least:
        return value / line.bound
    return min(_FARTHEST, line.bound / value) if value > 0 else _FARTHEST


def _draw_bounds(lines: Sequence[Line], folder: Path) -> Path:
    shown = [line for line in lines if line.figures]
    chart = Figure(figsize=(11, 0.36 * len(shown) + 1.2), layout="constrained")
    axes = chart.subplots()
    for position, line in enumerate(shown):
        _draw_bar(axes, position, line)
    names = [f"{each.measure}{f', of {each.of}' if each.of else ''}" for each in shown]
    axes.set_yticks(range(len(shown)), names)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=1)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlabel("how many times better than the bound (diamond: wanted, line: spread)")
    return _save(chart, folder / BOUNDS_PLOT)


def _draw_bar(axes: Axes, position: int, line: Line) -> None:
    middle = margin(line.median, line)
    ends = sorted(margin(value, line) for value in line.figures)
    color = _MET if line.verdict == "met" else _MISSED
    axes.barh(position, middle - 1, left=1, height=0.55, color=color, alpha=0.75)
    axes.plot((ends[0], ends[-1]), (position, position), color="black", linewidth=1)
    if line.wanted:
        axes.plot(margin(line.wanted, line), position, "D", color="black", markersize=4)
    label = f"{median(line)}, {limit(line, line.bound)}"
    beside = ("axes fraction", "data")
    axes.annotate(label, (1.01, position), xycoords=beside, va="center", fontsize=8)


def _draw_speeds(run: Run, folder: Path) -> Path:
    """The contestants that take a time per operation, a panel for each group."""
    groups = {
        name: {
            contestant: [each["samples"][contestant]["seconds"] for each in kept]
            for contestant, sample in kept[0]["samples"].items()
            if set(sample) == {"seconds"}
        }
        for name, rounds in run.rounds.items()
        if (kept := rounds["kept"])
    }
    groups = {name: contestants for name, contestants in groups.items() if len(contestants) > 1}
    count = max(1, len(groups))
    chart = Figure(figsize=(9, 1.5 * count), layout="constrained")
    panels = chart.subplots(count, squeeze=False)
    for axes, (name, contestants) in zip(panels[:, 0], groups.items(), strict=False):
        medians = [statistics.median(each) * _MICROSECONDS for each in contestants.values()]
        axes.barh(list(contestants), medians, color=_MET, alpha=0.75)
        axes.invert_yaxis()
        axes.set_title(f"{name}: µs per operation", loc="left", fontsize=9)
    return _save(chart, folder / SPEEDS_PLOT)


def _save(chart: Figure, path: Path) -> Path:
    chart.savefig(path, metadata={"Date": None})
    return path
