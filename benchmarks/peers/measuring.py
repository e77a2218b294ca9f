"""Rounds: each peer's child process after the other, for one measure after the other."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from ..disk import probe
from ..load import LoadMeter
from .catalogue import Setting, Sizes, Trial, trials
from .child import Answer, Order
from .environments import ROOT, Environment, why

_STARTED_WITHIN: Final = 30.0
_KILLED_AFTER: Final = 0.5
# How long a child may take beyond the limit that it keeps itself: to fill its store, to stop.
_GRACE: Final = 240.0


@attrs.frozen
class Sample:
    """What one child answered.

    Attributes:
        round: In which round.
        trial: Which of the trials.
        peer: The module of the peer.
        setting: The peer's durability.
        answer: Its line of JSON; `{"problem": …}` if there is none.
        disk_us: The disk probe just before.
        load: How many CPUs others kept busy meanwhile.
    """

    round: int
    trial: str
    peer: str
    setting: Setting
    answer: Answer
    disk_us: float
    load: float


@attrs.frozen
class Bench:
    """Everything that a run needs.

    Attributes:
        environments: The peers, in the order of the table.
        sizes: How much of each.
        rounds: How many times.
        work: A folder for the databases, on a disk.
        settings: Which settings to measure.
        measures: Names of trials to measure; all, if there are none.
        say: Where progress goes.
        save: Is given all that is measured, after each round, and how many rounds that are.
    """

    environments: Sequence[Environment]
    sizes: Sizes
    rounds: int
    work: Path
    settings: Sequence[Setting]
    measures: Sequence[str]
    say: Callable[[str], None]
    save: Callable[[Sequence[Sample], int], None]

    def contestants(self, turn: int) -> list[tuple[Environment, Setting]]:
        """Who takes a measure, in an order that changes from round to round."""
        all_of_them = [
            (environment, setting)
            for environment in self.environments
            if environment.python is not None
            for setting in environment.peer.settings
            if setting in self.settings
        ]
        first = turn % max(1, len(all_of_them))
        return all_of_them[first:] + all_of_them[:first]

    def run(self) -> list[Sample]:
        """Measure all rounds."""
        wanted = [*trials(self.sizes), Trial("recovery", {})]
        wanted = [each for each in wanted if not self.measures or each.name in self.measures]
        samples: list[Sample] = []
        begun = time.monotonic()
        for turn in range(self.rounds):
            for trial in wanted:
                samples += self._trial(turn, trial)
                seconds = time.monotonic() - begun
                self.say(f"round {turn + 1} of {self.rounds}: {trial.name}, {seconds:.0f} s")
            self.save(samples, turn + 1)
        return samples

    def _trial(self, turn: int, trial: Trial) -> Iterator[Sample]:
        for environment, setting in self.contestants(turn):
            folder = self.work / f"{trial.name}-{environment.peer.module}-{setting}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            disk_us, meter = probe(self.work), LoadMeter.begin()
            order = {"folder": folder, "durability": setting, "limit": self.sizes.limit}
            if trial.name == "recovery":
                answer = _recovery(environment, order, self.sizes.patience)
            else:
                answer = _child(environment, Order(**{**order, **trial.order}))
            shutil.rmtree(folder, ignore_errors=True)
            yield Sample(
                turn,
                trial.name,
                environment.peer.module,
                setting,
                answer,
                disk_us,
                meter.read(),
            )


def _command(environment: Environment, order: Order) -> list[str]:
    # The environment that could not be made is no contestant.
    assert environment.python is not None  # noqa: S101 - told to the type checker
    module = f"benchmarks.peers.{environment.peer.module}"
    return [str(environment.python), "-m", module, order.text()]


def _child(environment: Environment, order: Order) -> Answer:
    """Run a child to its end."""
    timeout = order.limit * 2 + order.seconds + _GRACE
    try:
        done = subprocess.run(
            _command(environment, order),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"no end within {timeout:.0f} s"}
    return last_answer(done.stdout, done.stderr)


def last_answer(stdout: str, stderr: str) -> Answer:
    """The last line of JSON, or what the child died of."""
    lines = stdout.strip().splitlines()
    if not lines:
        return {"problem": why(stderr)}
    answer: Any = json.loads(lines[-1])
    return dict(answer)


def _recovery(environment: Environment, order: dict[str, Any], patience: float) -> Answer:
    """Kill a process in the middle of a job, and see what the next one does with the job."""
    victim = Order(**{**order, "measure": "interrupt", "pool": True, "limit": _STARTED_WITHIN})
    with subprocess.Popen(
        _command(environment, victim), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None  # noqa: S101 - told to the type checker
        line = process.stdout.readline()  # the child gives up by itself after a while
        started = b"started" in line
        if started:
            time.sleep(_KILLED_AFTER)
        process.send_signal(signal.SIGKILL)
    if not started:
        return {"problem": "the job to be interrupted did not start"}
    heir = Order(**{**order, "measure": "recover", "pool": True, "seconds": patience})
    return _child(environment, heir)
