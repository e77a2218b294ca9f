"""Scripts in which the library once differed from the model."""

from __future__ import annotations

import attrs

from tests.model.compare import check_against_model
from tests.model.steps import (
    DEFAULT_OPTIONS,
    Deliver,
    Do,
    Outside,
    Proceed,
    Raise,
    Return,
    Run,
    Schedule,
    Script,
)


def test_a_manual_alarm_that_a_set_serves_and_that_falls_due_while_it_runs_stays_due() -> None:
    """Only what no handler serves is kept for an hour after a hook (R33)."""
    sweep_now = Schedule("schedule_alarm", "sweep", "x", 0, lifecycle="manual")
    check_against_model(
        Script(
            (
                Outside(Schedule("schedule_alarm", "plain", "x", 0)),
                Deliver(),
                Proceed(0, Do(sweep_now)),
                Proceed(0, Return()),
                Deliver(),
            ),
            serving="set",
        )
    )


def test_an_on_failure_that_raises_keeps_an_alarm_whose_definition_skips() -> None:
    """The retry is recorded, whatever the definition says (R28)."""
    check_against_model(
        Script(
            (
                Outside(Schedule("schedule_alarm", "skip", "x", 0)),
                Deliver(),
                Proceed(0, Raise()),
                Proceed(0, Raise()),
            ),
            options=attrs.evolve(DEFAULT_OPTIONS, on_failure=True),
        )
    )


def test_a_direct_run_takes_a_manual_alarm_that_was_replaced_after_its_handler_had_ended() -> None:
    """It is no longer in hand, and its handler does not run (R6, R25, R27)."""
    sweep = Schedule("schedule_alarm", "sweep", "x", 0, lifecycle="manual")
    check_against_model(
        Script(
            (
                Outside(sweep),
                Outside(Schedule("schedule_alarm", "plain", "x", 0)),
                Deliver(),
                Proceed(1, Return()),
                Outside(sweep),
                Run("first"),
                Proceed(0, Return()),  # the pass ends; the newer row is in the run's hand
                Outside(attrs.evolve(sweep, in_ms=5_000, method="schedule_alarm_earlier")),
                Proceed(0, Return()),
            )
        )
    )
