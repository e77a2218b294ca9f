"""The library against a second statement of its rules.

A failure shows the first difference and a script from which no step can be left out. Printed, a
script is code: `check_against_model(Script(…))` plays it again, and `test_found.py` keeps those
that were found.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.model.compare import check_against_model_and_shrink
from tests.model.scripts import scripts
from tests.model.steps import Script

COMMON: Final[dict[str, Any]] = {
    "deadline": None,
    "database": None,
    "phases": [Phase.generate],  # scripts are shrunk as scripts, which takes seconds
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """What the handlers of thousands of steps log is of no interest."""
    logger = logging.getLogger("trio_alarms")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


@settings(max_examples=30, derandomize=True, **COMMON)
@given(script=scripts(length=20))
def test_host_equals_model(script: Script) -> None:
    """Rows, native alarm, results and reports are the model's (R3-R9, R18-R20, R25-R32, R36)."""
    check_against_model_and_shrink(script)


@pytest.mark.trust
@settings(max_examples=500, derandomize="CI" in os.environ, **COMMON)
@given(script=scripts(length=40))
def test_host_equals_model_for_long(script: Script) -> None:
    """The same over longer scripts; others at every run, but in CI."""
    check_against_model_and_shrink(script)
