"""Play a script to a host and to the model, and hold the two together after every step."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import trio
from trio.testing import MockClock

from tests.model.alarms import Ref
from tests.model.dispatching import Due
from tests.model.hosted import Hosted
from tests.model.model import ANYTHING, Model, Outcome
from tests.model.steps import DEFAULT_OPTIONS, DEFAULT_POLICY, Script
from tests.model.terms import due_of


def play(script: Script) -> None:
    """Play the whole script; the first difference is an `AssertionError` that shows how."""
    difference = _difference(script)
    assert difference is None, f"{difference}\n{script}"


def play_and_shrink(script: Script) -> None:
    """As `play`, but what it shows is a script from which no step can be left out."""
    if _difference(script) is not None:
        play(_shrunk(script))


def _shrunk(script: Script) -> Script:
    """Leave out runs of steps, long ones first, as long as there is a difference."""
    length = len(script.steps)
    while length:
        start = 0
        while start < len(script.steps):
            steps = script.steps[:start] + script.steps[start + length :]
            shorter = attrs.evolve(script, steps=steps)
            if _difference(shorter) is None:
                start += length
            else:
                script = shorter
        length //= 2
    for given in ({"options": DEFAULT_OPTIONS}, {"policy": DEFAULT_POLICY}, {"serving": "both"}):
        plainer = attrs.evolve(script, **given)
        if _difference(plainer) is not None:
            script = plainer
    return script


def _difference(script: Script) -> str | None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "alarms.db"
        return trio.run(_first_difference, script, path, clock=MockClock())


async def _first_difference(script: Script, path: Path) -> str | None:
    model = Model(script)
    revisions: dict[int, bytes] = {}
    async with Hosted.open(script, path) as hosted:
        for number, step in enumerate(script.steps):
            found = await hosted.apply(step)
            model.dispatching.seen_running = frozenset(one.ref for one in hosted.waiting())
            expected = model.apply(step)
            host, told = _seen(hosted, found), _told(model, expected)
            told["revisions"] = _revisions(model, host["revisions"], revisions)
            for what, value in told.items():
                if _differs(what, host[what], value):
                    return (
                        f"after step {number}, {step!r}, at {model.now}: {what}\n"
                        f"  of the host:  {host[what]!r}\n"
                        f"  of the model: {value!r}"
                    )
    return None


def _told(model: Model, outcome: Outcome | None) -> dict[str, Any]:
    """What the model says."""
    return {
        "outcome of the operation": outcome,
        "handlers that wait": [
            (one.stage, one.ref, one.due) for one in model.dispatching.waiting()
        ],
        "rows": [
            (
                *ref,
                row.lifecycle,
                row.run_at,
                row.wake_at,
                row.retry_at,
                row.repeat_every,
                row.progress,
                row.attempts,
                row.parked,
                row.payload,
            )
            for ref, row in model.stored.alarms.in_order()
        ],
        "application rows": model.stored.journal,
        "native alarm": model.stored.native_alarm,
        "reports": sorted(model.stored.reports),
        "deliveries and runs": dict(model.calls),
    }


def _seen(hosted: Hosted, outcome: Outcome | None) -> dict[str, Any]:
    """The same of the host."""
    rows, native_alarm, journal = hosted.read()
    waiting: list[tuple[str, tuple[str, str], Due | None]] = [
        (one.stage, one.ref, due_of(one.event)) for one in hosted.waiting()
    ]
    return {
        "outcome of the operation": outcome,
        "handlers that wait": waiting,
        "rows": [row[:-1] for row in rows],
        "revisions": {(row[0], row[1]): row[-1] for row in rows},
        "application rows": journal,
        "native alarm": native_alarm,
        "reports": sorted(hosted.reports),
        "deliveries and runs": dict(hosted.calls),
    }


def _differs(what: str, found: Any, expected: Any) -> bool:
    if what != "deliveries and runs":
        return bool(found != expected)
    known = {call for call, outcome in expected.items() if outcome is not ANYTHING}
    return found.keys() != expected.keys() or any(found[one] != expected[one] for one in known)


def _revisions(
    model: Model, stored: dict[Ref, bytes], known: dict[int, bytes]
) -> dict[Ref, bytes | str]:
    """What the stored ones have to be: as they were where the model's are, else new ones (R3)."""
    expected: dict[Ref, bytes | str] = {}
    for ref, row in model.stored.alarms.rows.items():
        revision = stored.get(ref)
        if row.revision not in known:
            if revision is None or revision in known.values():
                expected[ref] = "a new one"
                continue
            known[row.revision] = revision
        expected[ref] = known[row.revision]
    return expected
