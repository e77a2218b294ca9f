"""From the children's answers to figures: medians, spreads, and who is ahead."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import attrs

from .catalogue import Measure, Peer, Setting
from .child import Answer
from .measuring import Sample

Standing: TypeAlias = Literal["ahead", "level", "behind"]

# Medians nearer to each other than this say nothing about who is faster.
_LEVEL: Final = 1.05


@attrs.frozen
class Cell:
    """What one peer does in one measure, in one setting.

    Attributes:
        values: A figure for each round that gave one.
        notes: Why rounds gave none, or what was wrong with them.
    """

    values: Sequence[float] = ()
    notes: Sequence[str] = ()

    @property
    def median(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.values)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so great a share does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def rate(answer: Answer) -> float | None:
    """Jobs per second."""
    return answer["count"] / answer["seconds"] if answer.get("count") else None


def value_of(measure: str, answers: Mapping[str, Answer]) -> float | None:
    """A measure's figure from one round's answers of one peer, by the names of the trials."""
    if measure == "growth":
        few, many = (rate(answers.get(name, {})) for name in ("few", "many"))
        return few / many if few and many else None
    if measure in ("wake_p50", "wake_p99"):
        late = answers.get("wake", {}).get("latencies")
        share = 0.5 if measure == "wake_p50" else 0.99
        return percentile(late, share) * 1e3 if late else None
    answer = answers.get(measure, {})
    if measure == "idle":
        return answer["cpu"] / answer["seconds"] * 60e3 if "cpu" in answer else None
    if measure == "recovery":
        return answer["seconds"] * 1e3 if "seconds" in answer else None
    return rate(answer)


def notes_of(answer: Answer) -> list[str]:
    """What a reader must know about an answer."""
    notes = []
    notes += [str(answer[name]) for name in ("problem", "never", "note") if answer.get(name)]
    if answer.get("failed"):
        total = answer["failed"] + answer["count"]
        notes.append(f"{answer['failed']} of {total} calls failed: {answer['error']}")
    if answer.get("left"):
        notes.append("stopped at the time limit; the rate is that of what was done")
    if answer.get("missing"):
        notes.append(f"{answer['missing']} jobs had not started when the measure ended")
    return notes


def trials_of(measure: str) -> tuple[str, ...]:
    """Which trials a measure is read from."""
    if measure == "growth":
        return ("few", "many")
    return ("wake",) if measure.startswith("wake") else (measure,)


def cell_of(measure: Measure, peer: str, setting: Setting, samples: Iterable[Sample]) -> Cell:
    """Gather a cell from a run's samples."""
    rounds: dict[int, dict[str, Answer]] = {}
    notes: dict[str, None] = {}  # a set that keeps its order
    for sample in samples:
        if (sample.peer, sample.setting) != (peer, setting):
            continue
        if sample.trial in trials_of(measure.name):
            rounds.setdefault(sample.round, {})[sample.trial] = sample.answer
            # A lease's remaining seconds differ from round to round: the first says enough.
            for note in notes_of(sample.answer)[: 0 if notes else None]:
                notes[note] = None
    values = [value_of(measure.name, answers) for answers in rounds.values()]
    return Cell([value for value in values if value is not None], list(notes))


def standing(measure: Measure, ours: Cell, theirs: Cell) -> Standing | None:
    """Where we are beside a peer; `None` where one of the two was not measured at all."""
    if not ours.values:
        return None
    if not theirs.values:
        # Only an interrupted job that never runs again is an answer without a figure.
        return "ahead" if measure.name == "recovery" and theirs.notes else None
    our, their = ours.median, theirs.median
    if measure.floor is not None and max(our, their) <= measure.floor:
        return "level"
    if max(our, their) <= min(our, their) * _LEVEL:
        return "level"
    return "ahead" if (our > their) == (measure.better == "more") else "behind"


def required(measure: Measure, peer: Peer, setting: Setting) -> bool:
    """Whether we are to be ahead of this peer here: at our durability, by kind."""
    return setting == "full" and peer.kind in measure.against


def pragmas_of(peer: str, setting: Setting, samples: Iterable[Sample]) -> list[str]:
    """The pragmas that were read from a peer's connection, once for each combination."""
    levels = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
    found: dict[str, None] = {}
    for sample in samples:
        pragmas = sample.answer.get("pragmas")
        if pragmas and (sample.peer, sample.setting) == (peer, setting):
            level = levels.get(pragmas["synchronous"], str(pragmas["synchronous"]))
            found[f"{pragmas['journal_mode']}, {level}"] = None
    return list(found)


def number(value: float) -> str:
    """A figure with three digits that count."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}"
