"""Rounds: references and subjects in turn, as often as is needed, and what they took.

A group is what is measured together. In each of its rounds every contestant runs once, in an order
that turns about from round to round, so that what the machine does meanwhile meets all alike.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import attrs

from .disk import probe
from .load import LoadMeter
from .sizes import Sizes

Sample: TypeAlias = Mapping[str, float]
"""What one run of a contestant has measured, by name; most have only `seconds`, per operation."""

Samples: TypeAlias = Mapping[str, Sample]
"""What the contestants of one round have measured."""


@attrs.frozen
class Work:
    """What a contestant gets: a folder of its own, one that its group keeps, and how much to do."""

    folder: Path
    kept: Path
    sizes: Sizes


Contestant: TypeAlias = Callable[[Work], Sample]


@attrs.frozen
class Row:
    """One row of the table: a figure of each round, and what it has to be.

    `at_least` tells which way is good. `of` names the reference that it is a ratio to, if any.
    """

    measure: str
    figure: Callable[[Samples], float]
    bound: float
    wanted: float | None = None
    of: str | None = None
    unit: str = ""
    at_least: bool = False


@attrs.frozen
class Group:
    """Contestants that run in the same rounds, and the rows that are made of them.

    `long` groups take so long that a quick run makes one round of them.
    """

    name: str
    contestants: Mapping[str, Contestant]
    rows: Sequence[Row]
    long: bool = False


@attrs.frozen
class Round:
    """One round: what was measured, the disk probe in µs, and the CPUs that others kept busy."""

    samples: Samples
    disk_us: float
    load: float


@attrs.frozen
class Measured:
    """All rounds of a group: those that count, and those that were too loaded to."""

    group: Group
    kept: Sequence[Round]
    dropped: Sequence[Round]


@attrs.frozen
class Rules:
    """How many rounds are needed, how many may be tried, and the load from which one is dropped."""

    rounds: int
    most: int
    load_threshold: float | None

    def keeps(self, load: float) -> bool:
        """Whether a round under this load counts."""
        return self.load_threshold is None or load <= self.load_threshold


def measure(
    group: Group, rules: Rules, sizes: Sizes, folder: Path, tell: Callable[[str], None]
) -> Measured:
    """Run rounds until enough count, or as many as may be tried have been."""
    kept: list[Round] = []
    dropped: list[Round] = []
    home = folder / group.name
    shutil.rmtree(home, ignore_errors=True)
    keeping = home / "kept"
    keeping.mkdir(parents=True)
    try:
        while len(kept) < rules.rounds and (number := len(kept) + len(dropped)) < rules.most:
            this = _run_round(group, number, sizes, home, keeping)
            counts = rules.keeps(this.load)
            (kept if counts else dropped).append(this)
            tell(
                f"{group.name}: round {number + 1}, load {this.load:.2f}, disk"
                f" {this.disk_us:.0f} µs{'' if counts else ', dropped'}"
            )
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return Measured(group, kept, dropped)


def _run_round(group: Group, number: int, sizes: Sizes, home: Path, kept: Path) -> Round:
    names = list(group.contestants)
    if number % 2:
        names.reverse()
    disk_us = probe(home)
    meter = LoadMeter.begin()
    samples: dict[str, Sample] = {}
    for name in names:
        own = home / name
        own.mkdir()
        gc.collect()
        samples[name] = group.contestants[name](Work(own, kept, sizes))
        shutil.rmtree(own)
    return Round(samples, disk_us, meter.read())


def speed(subject: str, reference: str) -> Callable[[Samples], float]:
    """How fast the subject is in a round, as a multiple of the reference's speed in it."""
    return lambda samples: samples[reference]["seconds"] / samples[subject]["seconds"]


def figure(contestant: str, name: str) -> Callable[[Samples], float]:
    """One figure of one contestant."""
    return lambda samples: samples[contestant][name]
