"""The command line: `python -m benchmarks.peers [--quick] [--only huey] [--output folder]`."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from ..disk import NoDiskError, read_mounts, require_disk
from ..machine import describe_machine
from .catalogue import FULL, OURS, PEERS, QUICK, SETTINGS, Sizes, trials
from .environments import ROOT, Environment, find_python, make, version_of
from .measuring import Bench, Sample
from .table import Results, behind, fill, markdown, text

EXIT_BEHIND: Final = 1
EXIT_BAD_USE: Final = 2

PAGE: Final = ROOT / "docs" / "explanation" / "performance-peers.md"
_BY_MODULE: Final = {peer.module: peer for peer in PEERS}


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; a wrong one ends the program with exit code 2."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description="Measures trio_alarms beside what users would pick instead.",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="one round with less to do; no verdict counts")
    add("--only", action="append", default=[], choices=sorted(_BY_MODULE), help="only this peer")
    names = [*(trial.name for trial in trials(FULL)), "recovery"]
    add("--measure", action="append", default=[], choices=names, help="only this trial")
    add("--setting", action="append", default=[], choices=SETTINGS, help="only this setting")
    add("--rounds", type=int, help="how many rounds (default: 5, quick 1)")
    add(
        "--output", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the results"
    )
    add("--venvs", type=Path, default=ROOT / ".nox" / "peers", help="folder of the environments")
    add("--python", type=Path, help="the interpreter (default: a Python 3.13, else this one)")
    add("--results", type=Path, nargs="+", help="show these results instead of measuring")
    add("--fill", action="store_true", help=f"write the tables into {PAGE.relative_to(ROOT)}")
    return parser.parse_args(arguments)


def environments(options: argparse.Namespace) -> list[Environment]:
    """Install whom the command line names, and ourselves."""
    python = (options.python or find_python()).absolute()
    print(f"{python}: {'.'.join(map(str, version_of(python)))}", file=sys.stderr)
    made = []
    for peer in PEERS:
        if options.only and peer.module not in (*options.only, OURS.module):
            continue
        environment = make(peer, python, options.venvs.absolute())
        print(f"{peer.title}: {environment.reason or 'installed'}", file=sys.stderr)
        made.append(environment)
    return made


def measure(options: argparse.Namespace) -> Results:
    """Run all rounds; progress goes to stderr."""
    folder: Path = options.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    file_system = require_disk(folder, read_mounts())
    work = folder / "peers-work"
    work.mkdir(exist_ok=True)
    made = environments(options)
    sizes = QUICK if options.quick else FULL
    # Python, SQLite and the packages are those of the environments, not of this process.
    about = describe_machine(file_system)
    machine = {name: about[name] for name in ("CPU", "kernel", "file system")}

    def save(samples: Sequence[Sample], rounds: int) -> None:
        write(Results(machine, sizes, rounds, made, samples), options)

    bench = Bench(
        environments=made,
        sizes=sizes,
        rounds=options.rounds or (1 if options.quick else 5),
        work=work,
        settings=options.setting or SETTINGS,
        measures=options.measure,
        say=lambda line: print(line, file=sys.stderr),
        save=save,
    )
    samples = bench.run()
    shutil.rmtree(work, ignore_errors=True)
    return Results(machine, sizes, bench.rounds, made, samples)


def write(results: Results, options: argparse.Namespace) -> None:
    """Write what is measured so far, for reading and for `--results`."""
    stem = "-".join(["peers", *options.setting, *(["quick"] if options.quick else [])])
    written = json.dumps(as_json(results), indent=1, ensure_ascii=False)
    (options.output / f"{stem}.json").write_text(written + "\n", "utf-8")
    (options.output / f"{stem}.md").write_text(markdown(results) + "\n", "utf-8")


def as_json(results: Results) -> dict[str, Any]:
    """The results as JSON values, every answer included."""
    return {
        "machine": dict(results.machine),
        "sizes": attrs.asdict(results.sizes),
        "rounds": results.rounds,
        "environments": [
            {"peer": each.peer.module, "versions": each.versions, "reason": each.reason}
            for each in results.environments
        ],
        "samples": [attrs.asdict(sample) for sample in results.samples],
    }


def from_json(values: dict[str, Any]) -> Results:
    """The results that were written."""
    made = [
        Environment(_BY_MODULE[each["peer"]], None, each["versions"], each["reason"])
        for each in values["environments"]
    ]
    samples = [Sample(**each) for each in values["samples"]]
    return Results(values["machine"], Sizes(**values["sizes"]), values["rounds"], made, samples)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or read what was measured; the exit code tells whether we are behind."""
    options = parse_arguments(arguments)
    if options.results is not None:
        read = [from_json(json.loads(path.read_text("utf-8"))) for path in options.results]
        samples = [sample for each in read for sample in each.samples]
        results = attrs.evolve(read[0], samples=samples)
    else:
        try:
            results = measure(options)
        except NoDiskError as error:
            print(error, file=sys.stderr)
            return EXIT_BAD_USE
    print(text(results))
    if options.fill:
        PAGE.write_text(fill(PAGE.read_text("utf-8"), markdown(results)), "utf-8")
    late = behind(results)
    for each in late:
        print(f"behind: {each}", file=sys.stderr)
    return EXIT_BEHIND if late and not options.quick else 0


if __name__ == "__main__":
    sys.exit(main())
