"""The fixture of the fault tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.faults.injection import Injector, faulty_connections


@pytest.fixture
def injector(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> Iterator[Injector]:
    """Faults for every connection that the package opens in the test, whose number is recorded."""
    injector = Injector()
    monkeypatch.setattr("sqlite3.connect", faulty_connections(injector))
    yield injector
    assert injector.injected
    record_property("faults_injected", injector.injected)
