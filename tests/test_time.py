from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trio_alarms._errors import InvalidAlarmRefError, InvalidRepeatEveryError
from trio_alarms._time import (
    MAX_DURATION_MS,
    MAX_INSTANT_MS,
    MIN_INSTANT_MS,
    duration_to_ms,
    instant_from_ms,
    instant_to_ms,
    saturated,
)

PARIS = ZoneInfo("Europe/Paris")
EAST = timezone(timedelta(hours=14))
WEST = timezone(timedelta(hours=-12))


def _to_ms(value: object, minimum_ms: int = 0) -> int:
    return duration_to_ms(
        value, parameter="after", error=InvalidRepeatEveryError, minimum_ms=minimum_ms
    )


def _instant(value: object) -> int:
    return instant_to_ms(value, parameter="run_at")


class _FloatSubclass(float):
    def __repr__(self) -> str:
        return "FloatSubclass()"


class _IntSubclass(int):
    pass


class _MisleadingTimedelta(timedelta):
    """Like the durations of date libraries, whose fields mean something of their own."""

    days = seconds = microseconds = 0

    def __floordiv__(self, _other: object) -> int:  # type: ignore[override]  # the case tested
        return 0


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        (0, 0),
        (-0.0, 0),
        (1, 1000),
        (0.1, 100),
        (0.1 + 0.2, 300),
        (1.001, 1001),
        (1.0001, 1001),
        (0.0005, 1),
        (1e-9, 1),
        (1e-12, 1),
        (5e-324, 1),
        (1234567.891, 1_234_567_891),
        (3_000_000_000.001, 3_000_000_000_001),
        (timedelta(microseconds=1), 1),
        (timedelta(milliseconds=1), 1),
        (timedelta(microseconds=1001), 2),
        (timedelta(days=1, microseconds=1), 86_400_001),
        (timedelta(days=36_525), MAX_DURATION_MS),
        (36_525 * 86_400, MAX_DURATION_MS),
        (36_525 * 86_400.0, MAX_DURATION_MS),
        (_FloatSubclass(0.1), 100),
        (_IntSubclass(2), 2000),
        (_MisleadingTimedelta(milliseconds=5), 5),
    ],
)
def test_durations_are_rounded_up_to_whole_milliseconds(value: object, milliseconds: int) -> None:
    """A duration is whole milliseconds, rounded up, without the drift of binary fractions."""
    converted = _to_ms(value)
    assert converted == milliseconds
    assert type(converted) is int


@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        None,
        "1",
        b"1",
        math.nan,
        math.inf,
        -math.inf,
        -1,
        -1e-12,
        timedelta(microseconds=-1),
        timedelta.min,
        timedelta.max,
        timedelta(days=36_525, microseconds=1),
        36_525 * 86_400 + 1,
        1e12,
        1e18,
        1e308,
        pytest.param(10**5000, id="huge"),
        pytest.param(-(10**5000), id="-huge"),
        Decimal(1),
        Fraction(1),
        1j,
        datetime(2000, 1, 1, tzinfo=UTC),
    ],
)
def test_what_is_no_duration_is_refused(value: object) -> None:
    """Bools, NaN, infinities, negatives, over 100 years, other types: refused by name (C03)."""
    with pytest.raises(InvalidRepeatEveryError, match=r"^after must be .* to 100 years, not "):
        _to_ms(value)


def test_the_error_names_the_range_and_what_was_given() -> None:
    """A duration under the least allowed is refused, naming all three (C18)."""
    with pytest.raises(
        InvalidRepeatEveryError,
        match=r"^after must be a timedelta or a number of seconds, from 60 seconds to 100 years,"
        r" not 59\.9$",
    ):
        _to_ms(59.9, minimum_ms=60_000)


def test_a_minimum_applies_to_the_rounded_value() -> None:
    """What is stored is what is bounded, so the least positive duration is positive."""
    assert _to_ms(1e-9, minimum_ms=1) == 1
    assert _to_ms(60, minimum_ms=60_000) == 60_000
    with pytest.raises(InvalidRepeatEveryError):
        _to_ms(0, minimum_ms=1)
    with pytest.raises(InvalidRepeatEveryError):
        _to_ms(0.0, minimum_ms=1)


@given(st.integers(0, MAX_DURATION_MS))
def test_a_float_of_whole_milliseconds_is_exactly_those(milliseconds: int) -> None:
    """Dividing by 1000 and converting back loses nothing up to 100 years."""
    assert _to_ms(milliseconds / 1000) == milliseconds


@given(st.floats(0, MAX_DURATION_MS / 1000))
def test_a_duration_never_gets_shorter(seconds: float) -> None:
    """What is stored is at least what was given, to the nanosecond, and under 1 ms more."""
    excess = Fraction(_to_ms(seconds), 1000) - Fraction(repr(seconds))
    assert -Fraction(1, 10**9) < excess < Fraction(1, 1000)


@given(st.timedeltas(timedelta(0), timedelta(milliseconds=MAX_DURATION_MS)))
def test_a_timedelta_is_rounded_up_exactly(duration: timedelta) -> None:
    """A timedelta is rounded up by less than a millisecond, and never down."""
    excess = timedelta(milliseconds=_to_ms(duration)) - duration
    assert timedelta(0) <= excess < timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 1),
        (datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC), 1),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 0),
        (datetime(1969, 12, 31, 23, 59, 59, 998_999, tzinfo=UTC), -1),
        (datetime(1970, 1, 1, 1, tzinfo=PARIS), 0),
        (datetime(2026, 10, 25, 2, 30, tzinfo=PARIS), 1_792_888_200_000),
        (datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=PARIS), 1_792_891_800_000),
        (datetime(1, 1, 1, tzinfo=UTC), MIN_INSTANT_MS),
        (datetime(1, 1, 1, tzinfo=WEST), MIN_INSTANT_MS + 12 * 3_600_000),
        (datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC), MAX_INSTANT_MS),
        (datetime.max.replace(tzinfo=EAST), MAX_INSTANT_MS + 1 - 14 * 3_600_000),
        (datetime.max.replace(tzinfo=PARIS), MAX_INSTANT_MS + 1 - 3_600_000),
    ],
)
def test_instants_are_rounded_up_to_whole_milliseconds(value: datetime, milliseconds: int) -> None:
    """An instant is integer milliseconds since the epoch, rounded up, in any zone and fold."""
    assert _instant(value) == milliseconds


@pytest.mark.parametrize(
    "value",
    [
        datetime.max.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=WEST),
        datetime.min.replace(tzinfo=EAST),
        datetime.min.replace(tzinfo=PARIS),
    ],
)
def test_an_instant_out_of_range_is_refused(value: datetime) -> None:
    """What rounds up past 9999-12-31T23:59:59.999Z is refused, naming the argument (C03)."""
    with pytest.raises(
        InvalidAlarmRefError, match=r"^run_at must be from 0001-.* to 9999-12-31T23:59:59\.999Z,"
    ):
        _instant(value)


@pytest.mark.parametrize("value", [None, True, 0, 1e12, "2000-01-01T00:00:00Z", date(2000, 1, 1)])
def test_what_is_no_datetime_is_refused(value: object) -> None:
    """Only aware datetimes are instants; a timestamp in whatever unit is refused (C03)."""
    with pytest.raises(InvalidAlarmRefError, match=r"^run_at must be an aware datetime, not "):
        _instant(value)


class _NoOffset(tzinfo):
    tzname = dst = None  # type: ignore[assignment]  # a zone needs no more than its offset

    def utcoffset(self, _when: datetime | None) -> None:
        return None


class _BrokenZone(tzinfo):
    tzname = dst = None  # type: ignore[assignment]  # a zone needs no more than its offset

    def utcoffset(self, _when: datetime | None) -> timedelta:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "value",
    [datetime(2000, 1, 1), datetime.max, datetime(2000, 1, 1, tzinfo=_NoOffset())],  # noqa: DTZ001, DTZ901 - the case tested
)
def test_a_naive_datetime_is_refused_with_advice(value: datetime) -> None:
    """A naive datetime is an error that says how to make it aware (C03)."""
    with pytest.raises(InvalidAlarmRefError, match=r"^run_at .*naive .*replace\(tzinfo=UTC\)"):
        _instant(value)


def test_a_broken_time_zone_is_refused_with_its_cause() -> None:
    """What a time zone raises is the cause of our error, not the error itself."""
    with pytest.raises(InvalidAlarmRefError, match=r"^run_at .* time zone") as caught:
        _instant(datetime(2000, 1, 1, tzinfo=_BrokenZone()))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


class _MisleadingDatetime(datetime):
    """Like the datetimes of date libraries, whose differences are of classes of their own."""

    def __sub__(self, _other: object) -> timedelta:  # type: ignore[override]  # the case tested
        return timedelta(0)


def test_a_datetime_subclass_counts_as_the_datetime_that_it_is() -> None:
    """Subclasses that redefine subtraction are converted by the base class's."""
    assert _instant(_MisleadingDatetime(1970, 1, 2, tzinfo=UTC)) == 86_400_000


@given(
    st.datetimes(
        datetime(1, 1, 2),  # noqa: DTZ001 - hypothesis takes naive bounds
        datetime(9999, 12, 30),  # noqa: DTZ001 - hypothesis takes naive bounds
        timezones=st.timezones(),
    )
)
def test_an_instant_is_never_stored_earlier(value: datetime) -> None:
    """The stored instant is at or after the given one, by less than a millisecond."""
    stored = instant_from_ms(_instant(value))
    assert stored.tzinfo is UTC
    assert timedelta(0) <= stored - value.astimezone(UTC) < timedelta(milliseconds=1)


@given(st.integers(MIN_INSTANT_MS, MAX_INSTANT_MS))
@example(MIN_INSTANT_MS)
@example(MAX_INSTANT_MS)
def test_every_stored_instant_comes_back_as_itself(milliseconds: int) -> None:
    """Milliseconds to a datetime and back are the same milliseconds."""
    assert _instant(instant_from_ms(milliseconds)) == milliseconds


def test_computed_instants_saturate() -> None:
    """Instants that the scheduler computes saturate at 9999-12-31T23:59:59.999Z."""
    assert saturated(MAX_INSTANT_MS) == MAX_INSTANT_MS
    assert saturated(10**30) == MAX_INSTANT_MS
    assert instant_from_ms(10**30) == datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    assert instant_from_ms(-(10**30)) == datetime(1, 1, 1, tzinfo=UTC)
