"""Play a script to a host and to the model, and hold the two together after every step."""

from __future__ import annotations

import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import trio
from trio.testing import MockClock

from tests.model.alarms import Ref
from tests.model.dispatching import Due, UnsettledError
from tests.model.hosted import Hosted
from tests.model.model import ANYTHING, Model, Outcome
from tests.model.steps import DEFAULT_OPTIONS, DEFAULT_POLICY, Script, Step
from tests.model.terms import due_of


def check_against_model(script: Script) -> None:
    """Play the whole script; the first difference is an `AssertionError` that shows how."""
    difference = _difference(script)
    assert difference is None, f"{difference}\n{script}"


def check_against_model_and_shrink(script: Script) -> None:
    """As `check_against_model`, but shows a script from which no step can be left out."""
    difference = _difference(script)
    if difference is not None:
        check_against_model(_shrunk(script))
        # Chance may decide about a difference; one that does not come back is one all the same.
        raise AssertionError(f"seen once only: {difference}\n{script}")


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


class _TooBusy(trio.abc.Instrument):
    """Ends a script whose tasks never come to rest."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope = scope
        self._left = 100_000  # a script of 40 steps takes some 5,000

    def before_task_step(self, _: trio.lowlevel.Task) -> None:
        """Count."""
        self._left -= 1
        if not self._left:
            self._scope.cancel()


def _difference(script: Script) -> str | None:
    """The first difference; an error is one too."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "alarms.db"
        scope = trio.CancelScope()
        try:
            return trio.run(
                _first_difference,
                script,
                path,
                scope,
                clock=MockClock(),
                instruments=[_TooBusy(scope)],
            )
        except Exception as error:  # noqa: BLE001 - shown with the script
            return "".join(traceback.format_exception(error))


async def _first_difference(script: Script, path: Path, scope: trio.CancelScope) -> str | None:
    comparison = _Comparison(script)
    with scope:
        async with Hosted.open(script, path) as hosted:
            for number, step in enumerate(script.steps):
                difference = await comparison.step(hosted, step)
                if difference is not None:
                    return f"after step {number}, {step!r}: {difference}"
                if comparison.is_over:
                    break
    return "the tasks never come to rest" if scope.cancelled_caught else None


class _Comparison:
    """The model beside a host, and which revision of the host is which of the model."""

    def __init__(self, script: Script) -> None:
        self._model = Model(script)
        self._revisions: dict[int, bytes] = {}
        self.is_over = False

    async def step(self, hosted: Hosted, step: Step) -> str | None:
        """Do it on both sides; the first difference."""
        found = await hosted.apply(step)
        model = self._model
        model.dispatching.seen_running = frozenset(one.ref for one in hosted.waiting())
        try:
            expected = model.apply(step)
        except UnsettledError:
            self.is_over = True
            return None
        host, told = _seen(hosted, found), _told(model, expected)
        told["revisions"] = _revisions(model, host["revisions"], self._revisions)
        for what, value in told.items():
            if _differs(what, host[what], value):
                return (
                    f"{what} at {model.now}\n"
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
