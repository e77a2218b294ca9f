"""From rounds to the lines of the table: medians, spreads, and whether a bound is met."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal, TypeAlias

import attrs

from .rounds import Measured, Row

Verdict: TypeAlias = Literal["met", "missed", "not measured"]


@attrs.frozen
class Line:
    """One row of the table with its figures, one for each round that counts, and what they say.

    `disk_us` is the median of the rounds' disk probes, `load` the highest of their loads, `dropped`
    how many rounds were too loaded to count.
    """

    group: str
    measure: str
    of: str | None
    unit: str
    at_least: bool
    bound: float
    wanted: float | None
    figures: Sequence[float]
    dropped: int
    disk_us: float
    load: float
    verdict: Verdict

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.figures)

    @property
    def wanted_met(self) -> bool | None:
        """Whether it is also what we want; `None` where nothing is said or measured."""
        if self.wanted is None or not self.figures:
            return None
        return reaches(self.median, self.wanted, at_least=self.at_least)


def reaches(value: float, limit: float, *, at_least: bool) -> bool:
    """Whether a figure keeps to a limit, which it may equal."""
    return value >= limit if at_least else value <= limit


def lines_of(measured: Measured, rounds_needed: int) -> list[Line]:
    """The lines of a group. Too few rounds are no measurement, whatever they say."""
    rounds = measured.kept
    lines: list[Line] = []
    for row in measured.group.rows:
        figures = [row.figure(each.samples) for each in rounds]
        lines.append(
            Line(
                group=measured.group.name,
                measure=row.measure,
                of=row.of,
                unit=row.unit,
                at_least=row.at_least,
                bound=row.bound,
                wanted=row.wanted,
                figures=figures,
                dropped=len(measured.dropped),
                disk_us=statistics.median(each.disk_us for each in rounds) if rounds else 0.0,
                load=max((each.load for each in rounds), default=0.0),
                verdict=_verdict(row, figures, rounds_needed),
            )
        )
    return lines


def failed(lines: Sequence[Line]) -> list[Line]:
    """The lines that do not keep their bound, or that nobody could measure."""
    return [line for line in lines if line.verdict != "met"]


def _verdict(row: Row, figures: Sequence[float], rounds_needed: int) -> Verdict:
    if len(figures) < rounds_needed:
        return "not measured"
    met = reaches(statistics.median(figures), row.bound, at_least=row.at_least)
    return "met" if met else "missed"
