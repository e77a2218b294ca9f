"""What a run leaves to read: the tables, for a terminal and for the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from .catalogue import MEASURES, OURS, Measure, Peer, Setting, Sizes
from .environments import Environment
from .figures import Cell, cell_of, number, pragmas_of, required, standing
from .measuring import Sample

HEADINGS: Final[Mapping[Setting, str]] = {
    "full": "At our durability (WAL, synchronous=FULL)",
    "default": "With their own defaults",
}
BEGIN: Final = "<!-- peers: written by python -m benchmarks.peers --fill -->\n"
END: Final = "<!-- peers: end -->\n"


@attrs.frozen
class Results:
    """A run: who, how much, and what the children answered."""

    machine: Mapping[str, str]
    sizes: Sizes
    rounds: int
    environments: Sequence[Environment]
    samples: Sequence[Sample]

    def title(self, measure: Measure) -> str:
        """A measure's title with the sizes of this run."""
        sizes = self.sizes
        return measure.title.format(
            few=f"{sizes.few:,}",
            many=f"{sizes.many:,}",
            due=f"{sizes.due:,}",
            idle=f"{sizes.waiting:,}",
        )

    def cell(self, measure: Measure, peer: Peer, setting: Setting) -> Cell:
        """One peer's figures."""
        where: Setting = "full" if peer.one_setting else setting
        for environment in self.environments:
            if environment.peer.module == peer.module and environment.reason:
                return Cell((), (environment.reason,))
        return cell_of(measure, peer.module, where, self.samples)

    def settings(self) -> list[Setting]:
        """Which settings were measured, of peers other than ourselves."""
        return [
            setting
            for setting in HEADINGS
            if any(each.setting == setting and each.peer != OURS.module for each in self.samples)
        ]

    def measured(self) -> list[Measure]:
        """Which measures anybody has figures or notes for."""
        names = {sample.trial for sample in self.samples}
        return [
            measure
            for measure in MEASURES
            if measure.name in names
            or (measure.name == "growth" and {"few", "many"} <= names)
            or (measure.name.startswith("wake") and "wake" in names)
        ]


def shown(cell: Cell) -> str:
    """A cell's median and spread, or that there is none."""
    if not cell.values:
        return "–"  # noqa: RUF001 - a dash, where a figure would be
    return f"{number(cell.median)} ({number(min(cell.values))} to {number(max(cell.values))})"


def verdict(measure: Measure, peer: Peer, setting: Setting, ours: Cell, theirs: Cell) -> str:
    """Where we are beside one peer, and whether that is allowed."""
    where = standing(measure, ours, theirs)
    if where is None:
        return "not compared"
    if not theirs.values:
        return "ahead"
    best, other = max(ours.median, theirs.median), min(ours.median, theirs.median)
    factor = f" {number(best / other)}\N{MULTIPLICATION SIGN}" if other and where != "level" else ""
    word = "BEHIND" if where == "behind" and required(measure, peer, setting) else where
    return f"{word}{factor}"


def text(results: Results) -> str:
    """The tables for a terminal: a block for each measure, a line for each peer."""
    lines: list[str] = []
    for setting in results.settings():
        lines += [HEADINGS[setting], "=" * len(HEADINGS[setting]), ""]
        for measure in results.measured():
            lines.append(f"{results.title(measure)} [{measure.unit}, {measure.better} is better]")
            ours = results.cell(measure, OURS, setting)
            for environment in results.environments:
                peer = environment.peer
                cell = results.cell(measure, peer, setting)
                stands = "" if peer is OURS else verdict(measure, peer, setting, ours, cell)
                notes = "; ".join(cell.notes)
                lines.append(f"  {peer.title:14} {shown(cell):28} {stands:16} {notes}".rstrip())
            lines.append("")
    return "\n".join([*lines, *conditions(results)])


def conditions(results: Results) -> list[str]:
    """What the figures hold for, on lines."""
    disk = sorted(sample.disk_us for sample in results.samples)
    load = sorted(sample.load for sample in results.samples)
    lines = ["; ".join(f"{name}: {value}" for name, value in results.machine.items())]
    if disk:
        lines.append(
            f"rounds: {results.rounds}; disk probe before each (4 KiB, fdatasync): median"
            f" {disk[len(disk) // 2]:.0f} µs, {disk[0]:.0f} to {disk[-1]:.0f}; CPUs that others"
            f" kept busy: median {load[len(load) // 2]:.2f}, at most {load[-1]:.2f}"
        )
    for environment in results.environments:
        versions = ", ".join(f"{name} {version}" for name, version in environment.versions.items())
        settings = "; ".join(
            f"{setting}: {' and '.join(found)}"
            for setting in HEADINGS
            if (found := pragmas_of(environment.peer.module, setting, results.samples))
        )
        lines.append(
            f"{environment.peer.title}: {environment.reason or versions}. {settings}".strip()
        )
    return lines


def markdown(results: Results) -> str:
    """The tables for the documentation: a row for each measure, a column for each peer."""
    parts: list[str] = []
    peers = [environment.peer for environment in results.environments]
    for setting in results.settings():
        notes: list[str] = []
        rows = [
            [_row_title(results, measure), *_row(results, measure, setting, peers, notes)]
            for measure in results.measured()
        ]
        header = ["measure", *(peer.title for peer in peers), "where trio_alarms is not ahead"]
        parts += [f"### {HEADINGS[setting]}", "", *_table(header, rows), ""]
        parts += [f"{index}. {note}" for index, note in enumerate(notes, 1)]
        parts.append("")
    parts += ["### Conditions", "", *(f"- {line}" for line in conditions(results)), ""]
    return "\n".join(parts)


def _row_title(results: Results, measure: Measure) -> str:
    return f"{results.title(measure)}, {measure.unit} ({measure.better} is better)"


def _row(
    results: Results,
    measure: Measure,
    setting: Setting,
    peers: Sequence[Peer],
    notes: list[str],
) -> list[str]:
    """The cells of a row; what must be said about one goes to the notes, and its number here."""
    ours = results.cell(measure, OURS, setting)
    cells: list[str] = []
    exceptions: list[str] = []
    for peer in peers:
        cell = results.cell(measure, peer, setting)
        marks = []
        for note in cell.notes:
            said = f"{peer.title}: {note}"
            if said not in notes:
                notes.append(said)
            marks.append(f"[{notes.index(said) + 1}]")
        cells.append(" ".join([shown(cell), *marks]))
        if peer.module != OURS.module:
            stands = verdict(measure, peer, setting, ours, cell)
            if not stands.startswith("ahead"):
                exceptions.append(f"{peer.title}: {stands}")
    return [*cells, "; ".join(exceptions) or "ahead of all"]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(header)} |",
        f"|{'---|' * len(header)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def fill(page: str, tables: str) -> str:
    """Put the tables between the marks of a page.

    Raises:
        ValueError: The page has no such marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the marks {BEGIN.strip()!r} and {END.strip()!r}")
    return f"{before}{begin}\n{tables.strip()}\n\n{end}{after}"


def behind(results: Results) -> list[str]:
    """Where we are behind and are not to be."""
    found = []
    for measure in results.measured():
        ours = results.cell(measure, OURS, "full")
        for environment in results.environments:
            if environment.peer.module == OURS.module or "full" not in results.settings():
                continue
            theirs = results.cell(measure, environment.peer, "full")
            if verdict(measure, environment.peer, "full", ours, theirs).startswith("BEHIND"):
                found.append(f"{results.title(measure)}: {environment.peer.title}")
    return found
