"""The pytest plugin: the fixtures `alarm_harness` and `alarm_clock`.

It is loaded with pytest, in every project where trio_alarms is installed; so it has to load
without pytest-trio as well.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from .._clock import TrioClock
from ._fixture import harness_factory

if TYPE_CHECKING:
    from ._harness import AlarmHarness

try:
    pytest_trio: Any = importlib.import_module("pytest_trio")
except ImportError:
    pytest_trio = None

OpenHarness: TypeAlias = "Callable[..., Awaitable[AlarmHarness]]"


async def _alarm_harness() -> AsyncIterator[OpenHarness]:
    """Open harnesses: `harness = await alarm_harness(alarms=registration)`.

    Takes the options of `open_test_host`. As many as wanted; all of them are closed at the end
    of the test, which also has to name pytest-trio's `mock_clock` or `autojump_clock`.
    """
    async with harness_factory() as open_harness:
        yield open_harness


def _alarm_clock() -> Callable[..., TrioClock]:
    """Make clocks: `alarm_clock(epoch=epoch)` is a `TrioClock` on the test's `MockClock`."""
    return TrioClock


def _missing(name: str) -> Callable[[], None]:
    def say_what_to_install() -> None:
        raise pytest.UsageError(
            f"the fixture {name} needs pytest-trio: install trio_alarms[testing], and make the"
            " test async with its mock_clock or autojump_clock fixture"
        )

    return say_what_to_install


alarm_harness: Any
alarm_clock: Any
if pytest_trio is None:
    alarm_harness = pytest.fixture(_missing("alarm_harness"), name="alarm_harness")
    alarm_clock = pytest.fixture(_missing("alarm_clock"), name="alarm_clock")
else:
    alarm_harness = pytest_trio.trio_fixture(_alarm_harness)
    alarm_clock = pytest.fixture(_alarm_clock, name="alarm_clock")
