"""The mutants of `nox -s mutants` apply to the code as it is, and name tests that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{m.rule}-{m.breaks}" for m in MUTANTS])
def test_a_mutant_applies_and_names_a_test(mutant: Mutant) -> None:
    """Its patch changes the code, once, and its test is defined where it says."""
    source = (ROOT / "trio_alarms" / mutant.file).read_text("utf-8")
    assert mutant.applied(source) != source
    file, _, name = mutant.test.partition("::")
    defined = (ROOT / "tests" / file).read_text("utf-8")
    assert f"def {name.partition('[')[0]}(" in defined
