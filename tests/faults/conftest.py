"""The fixture of the fault tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.injection import Injector, faulty_connections


@pytest.fixture
def injector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Injector]:
    """Faults for every connection that the package opens in the test."""
    injector = Injector()
    monkeypatch.setattr("sqlite3.connect", faulty_connections(injector))
    yield injector
    assert injector.injected
