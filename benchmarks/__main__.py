"""The command line: `python -m benchmarks [--quick] [--only schedule] [--output folder]`."""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs

from . import dispatching, living, scale, scheduling, starting, waking
from .disk import NoDiskError, read_mounts, require_disk
from .figures import Line, failed, lines_of
from .machine import describe_machine
from .report import Run, dropped_text, machine_text, text_table, write_json
from .rounds import Group, Measured, Rules, measure
from .sizes import FULL, QUICK

EXIT_MISSED: Final = 1
EXIT_BAD_USE: Final = 2  # what argparse exits with, too

GROUPS: Final[Sequence[Group]] = (
    scheduling.SCHEDULE,
    scheduling.CONCURRENT,
    scheduling.BLOCK,
    dispatching.DISPATCH,
    waking.WAKE,
    scale.SCALE,
    living.IDLE,
    living.MEMORY,
    living.DEFER,
    starting.RECOVERY,
    starting.IMPORT,
)

_RESULTS: Final = Path(__file__).parent / "results"
_ROUNDS: Final = 5
_QUICK_ROUNDS: Final = 3
_LOAD_THRESHOLD: Final = 0.5
# How many rounds may be tried for each one that is needed, before a group is given up.
_TRIES: Final = 3


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; a wrong one ends the program with exit code 2."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures trio_alarms beside references that do as little as can be done.",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="every row in under four minutes, with less to do and fewer rounds; no bound counts",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="WORD",
        help=f"only groups whose name has this in it: {', '.join(group.name for group in GROUPS)}",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=_RESULTS,
        help="where results are written and databases are made (default: %(default)s)",
    )
    parser.add_argument(
        "--rounds", type=int, help=f"rounds that count (default: {_ROUNDS}, quick {_QUICK_ROUNDS})"
    )
    parser.add_argument(
        "--load-threshold",
        type=float,
        metavar="CPUS",
        help="drop rounds during which others kept more CPUs busy (default:"
        f" {_LOAD_THRESHOLD}, quick none)",
    )
    return parser.parse_args(arguments)


def chosen_groups(words: Sequence[str]) -> list[Group]:
    """The groups that `--only` names; all, where it names none."""
    if not words:
        return list(GROUPS)
    return [group for group in GROUPS if any(word in group.name for word in words)]


def rules_of(options: argparse.Namespace, group: Group) -> Rules:
    """How a group's rounds are run."""
    if options.quick:
        rounds = options.rounds or (1 if group.long else _QUICK_ROUNDS)
        tries = rounds if options.load_threshold is None else rounds * _TRIES
        return Rules(rounds, tries, options.load_threshold)
    rounds = options.rounds or _ROUNDS
    threshold = _LOAD_THRESHOLD if options.load_threshold is None else options.load_threshold
    return Rules(rounds, rounds * _TRIES, threshold)


def run(options: argparse.Namespace, groups: Sequence[Group]) -> Run:
    """Measure all of the groups; progress goes to stderr."""
    folder: Path = options.output
    folder.mkdir(parents=True, exist_ok=True)
    file_system = require_disk(folder, read_mounts())
    work = folder / "work"
    sizes = QUICK if options.quick else FULL
    measured: list[Measured] = []
    lines: list[Line] = []
    for group in groups:
        rules = rules_of(options, group)
        each = measure(group, rules, sizes, work, lambda text: print(text, file=sys.stderr))
        measured.append(each)
        lines += lines_of(each, rules.rounds)
    shutil.rmtree(work, ignore_errors=True)
    settings = {
        "quick": options.quick,
        "load_threshold": rules_of(options, groups[0]).load_threshold,
        "sizes": attrs.asdict(sizes),
    }
    rounds = {
        each.group.name: {
            "kept": [attrs.asdict(one) for one in each.kept],
            "dropped": [attrs.asdict(one) for one in each.dropped],
        }
        for each in measured
    }
    return Run(describe_machine(file_system), settings, lines, rounds)


def draw_if_possible(done: Run, folder: Path) -> None:
    """Draw the plots where matplotlib is installed."""
    if not importlib.util.find_spec("matplotlib"):
        print("no plots are drawn: matplotlib is not installed", file=sys.stderr)
        return
    from .plots import draw  # noqa: PLC0415 - an optional requirement

    draw(done, folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code tells whether every bound was met."""
    options = parse_arguments(arguments)
    groups = chosen_groups(options.only)
    if not groups:
        print(f"--only {' '.join(options.only)} names no group", file=sys.stderr)
        return EXIT_BAD_USE
    try:
        done = run(options, groups)
    except NoDiskError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_USE
    print(machine_text(done.machine))
    print(text_table(done.lines))
    print(dropped_text(done))
    if options.quick:
        less = ", ".join(f"{name} {size:g}" for name, size in done.settings["sizes"].items())
        print(f"A quick run does less than its rows say: {less}.")
    write_json(done, options.output / ("quick.json" if options.quick else "full.json"))
    draw_if_possible(done, options.output)
    missed = failed(done.lines)
    if missed and not options.quick:
        print(f"{len(missed)} of {len(done.lines)} rows miss their bound", file=sys.stderr)
        return EXIT_MISSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
