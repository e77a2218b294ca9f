"""The judge of the kills finds what it is there to find, or their silence would prove nothing."""

from __future__ import annotations

from collections import Counter

import attrs
import pytest

from tests.crash.journal import Entry
from tests.crash.judge import Judge
from tests.crash.snapshot import Snapshot, StoredAlarm

DUE = StoredAlarm(lifecycle="automatic", run_at=100, wake_at=100, attempts=0)
MANUAL = StoredAlarm(lifecycle="manual", run_at=100, wake_at=100, attempts=0)
ENDED_MS = 1_000


def entry(event: str, tag: str = "plain", at_ms: int = 500, scheduled_ms: int = 100) -> Entry:
    """Something that happened to the one alarm of its tag."""
    return Entry(epoch=0, at_ms=at_ms, event=event, tag=tag, id="a", scheduled_ms=scheduled_ms)


def stored(tag: str = "plain", alarm: StoredAlarm = DUE) -> Snapshot:
    """One row, and a host that is armed for it."""
    return Snapshot(native_alarm=100, alarms={(tag, "a"): alarm})


EMPTY = Snapshot()
COMMITTED = [entry("committed")]
HANDLED = [entry("run"), entry("handled")]
OWNED = attrs.evolve(stored("batch", MANUAL), queue={"item": "a"})


@pytest.mark.parametrize(
    "epochs",
    [
        [(COMMITTED, stored()), (HANDLED, EMPTY)],
        [(COMMITTED, stored()), ([entry("run")], stored()), (HANDLED, EMPTY)],
        [(COMMITTED, stored()), (HANDLED, stored()), (HANDLED, EMPTY)],
        [
            ([entry("committed", "pay")], stored("pay")),
            ([], attrs.evolve(EMPTY, moves=Counter("a"))),
        ],
        [([], OWNED)],
    ],
)
def test_what_may_be_is_no_problem(epochs: list[tuple[list[Entry], Snapshot]]) -> None:
    """An alarm may run again until its acknowledgement is committed (R52)."""
    assert judged(epochs) == []


@pytest.mark.parametrize(
    ("problem", "epochs"),
    [
        ("integrity_check", [([], Snapshot(integrity="row 1 missing"))]),
        ("is lost", [(COMMITTED, EMPTY)]),
        ("is lost", [(COMMITTED, stored()), ([entry("run")], EMPTY)]),
        ("after it was acknowledged", [(COMMITTED + HANDLED, EMPTY), ([entry("run")], EMPTY)]),
        ("not committed", [([entry("not committed")], stored())]),
        ("not committed", [([entry("not committed"), *HANDLED], EMPTY)]),
        ("ran twice", [([*COMMITTED, entry("run"), *HANDLED], EMPTY)]),
        ("failed less often", [([], stored(alarm=attrs.evolve(DUE, attempts=1)))]),
        ("early", [([entry("run", at_ms=99)], stored())]),
        ("the repeat", [([], stored("tick")), ([], EMPTY)]),
        (
            "which was acknowledged",
            [([], stored("tick")), ([entry("run", "tick", scheduled_ms=50)], stored("tick"))],
        ),
        ("balances", [([], Snapshot(balance=3993))]),
        ("was made 2 times", [([], Snapshot(moves=Counter("aa")))]),
        ("still to be made", [([], attrs.evolve(stored("pay"), moves=Counter("a")))]),
        ("half of order", [([], attrs.evolve(stored(), orders=Counter("a")))]),
        ("without its alarm", [([], Snapshot(orders=Counter("aa")))]),
        ("manual alarms", [([], stored("batch", MANUAL))]),
        ("manual alarms", [([], Snapshot(queue={"item": "a"}))]),
        ("not exactly once", [([entry("committed", "item")], EMPTY)]),
        ("is armed for None", [([], attrs.evolve(stored(), native_alarm=None))]),
        ("is armed for 2000", [([], attrs.evolve(stored(), native_alarm=2000))]),
        (
            "comes back",
            [
                (
                    [],
                    attrs.evolve(
                        OWNED, alarms={("batch", "a"): attrs.evolve(MANUAL, wake_at=3000)}
                    ),
                )
            ],
        ),
        (
            "before its deadline",
            [
                ([], stored(alarm=attrs.evolve(DUE, wake_at=600))),
                ([entry("opened"), entry("run")], stored()),
            ],
        ),
    ],
)
def test_what_may_not_be_is_found(problem: str, epochs: list[tuple[list[Entry], Snapshot]]) -> None:
    """Each promise of R52 that is broken is named."""
    assert any(problem in found for found in judged(epochs)), judged(epochs)


def judged(epochs: list[tuple[list[Entry], Snapshot]]) -> list[str]:
    """What the judge finds in these epochs."""
    judge = Judge()
    for entries, now in epochs:
        judge.after_epoch(entries, now, ENDED_MS)
    return judge.problems
