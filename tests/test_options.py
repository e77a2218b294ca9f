from __future__ import annotations

import functools
import math
from datetime import timedelta
from typing import Any

import attrs
import pytest

from trio_alarms._errors import InvalidProcessDueAlarmsOptionsError
from trio_alarms._model import AlarmFailure
from trio_alarms._options import DispatchOptions, FailureAction, Retry


async def _retry(_failure: AlarmFailure) -> FailureAction | None:
    return Retry(after=5)


class _Policy:
    def __len__(self) -> int:
        return 0

    async def __call__(self, _failure: AlarmFailure) -> FailureAction | None:
        return "retry"


def test_the_defaults() -> None:
    """A hundred alarms, one at a time, without a bound or a rule of its own."""
    options = DispatchOptions()
    assert attrs.astuple(options) == (100, 1, None, None, None)
    assert options.timeout_seconds is None
    assert options.retry_failed_after_ms is None


@pytest.mark.parametrize("field", ["limit", "concurrency"])
@pytest.mark.parametrize("value", [0, -1, 1.0, 1.5, True, "1", None, math.inf, 2**63])
def test_a_bad_count_is_refused(field: str, value: Any) -> None:
    """Counts are ints of at least 1; the error names argument and range (C18)."""
    with pytest.raises(
        InvalidProcessDueAlarmsOptionsError, match=f"^{field} must be an int from 1 to "
    ):
        DispatchOptions(**{field: value})


@pytest.mark.parametrize("value", [1, 2**63 - 1])
def test_counts_at_their_bounds_are_taken(value: int) -> None:
    """One is enough, and everything that SQLite can count is allowed."""
    options = DispatchOptions(limit=value, concurrency=value)
    assert (options.limit, options.concurrency) == (value, value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timeout", 0),
        ("timeout", timedelta(0)),
        *(
            (field, value)
            for field in ("timeout", "retry_failed_after")
            for value in (-1, math.nan, math.inf, True, "1", 1e12)
        ),
    ],
)
def test_a_bad_duration_is_refused(field: str, value: Any) -> None:
    """Durations are checked when the options are made, naming argument and range (C18)."""
    with pytest.raises(InvalidProcessDueAlarmsOptionsError, match=f"^{field} must be .* 100 years"):
        DispatchOptions(**{field: value})


@pytest.mark.parametrize(
    ("value", "seconds"), [(1e-9, 0.001), (0.5, 0.5), (30, 30.0), (timedelta(minutes=1), 60.0)]
)
def test_timeout_is_read_in_seconds(value: float, seconds: float) -> None:
    """A timeout is a positive duration, kept as given and read in seconds."""
    options = DispatchOptions(timeout=value)
    assert options.timeout == value
    assert options.timeout_seconds == seconds


@pytest.mark.parametrize(
    ("value", "milliseconds"), [(0, 0), (0.1, 100), (timedelta(minutes=1), 60_000)]
)
def test_retry_delays_are_read_in_milliseconds(value: float, milliseconds: int) -> None:
    """Delays are durations; that they are never under the minimum is for R7 to see to."""
    assert DispatchOptions(retry_failed_after=value).retry_failed_after_ms == milliseconds
    assert Retry(after=value).after_ms == milliseconds
    assert Retry(value).after == value


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, True, "1", None, 1e12])
def test_a_bad_retry_is_refused(value: Any) -> None:
    """A `Retry` is checked where it is made, in `on_failure`."""
    with pytest.raises(InvalidProcessDueAlarmsOptionsError, match=r"^after must be "):
        Retry(after=value)


@pytest.mark.parametrize(
    "function", [_retry, functools.partial(_retry), _Policy(), _Policy().__call__]
)
def test_on_failure_is_any_async_callable(function: Any) -> None:
    """A partial or an object with an async `__call__` will do, even one whose `len()` is 0."""
    assert DispatchOptions(on_failure=function).on_failure is function


def _skip(_failure: AlarmFailure) -> FailureAction:
    return "skip-and-advance-repeat"


@pytest.mark.parametrize("function", [_skip, functools.partial(_skip), "retry", Retry(1), 0])
def test_a_synchronous_on_failure_is_refused(function: Any) -> None:
    """What is plainly no async callable is refused before any alarm fails (C18)."""
    with pytest.raises(
        InvalidProcessDueAlarmsOptionsError, match=r"^on_failure must be an async callable"
    ):
        DispatchOptions(on_failure=function)


def test_an_unknown_keyword_is_a_type_error() -> None:
    """A misspelt option is Python's own error (C18)."""
    with pytest.raises(TypeError, match="limits"):
        DispatchOptions(limits=1)  # type: ignore[call-arg]  # the case tested


def test_options_are_values() -> None:
    """Options compare by their fields and cannot be changed."""
    assert DispatchOptions(limit=5, on_failure=_retry) == DispatchOptions(5, on_failure=_retry)
    assert Retry(1) == Retry(after=1)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        DispatchOptions().limit = 5  # type: ignore[misc]  # the case tested
