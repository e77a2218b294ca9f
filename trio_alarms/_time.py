"""Durations and aware datetimes to and from whole milliseconds, exactly."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import TypeAlias

from ._arguments import describe, is_of_type
from ._errors import AlarmError, InvalidAlarmRefError

Duration: TypeAlias = timedelta | float | int

MIN_INSTANT_MS = -62_135_596_800_000  # 0001-01-01T00:00:00.000Z
MAX_INSTANT_MS = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z
MAX_DURATION_MS = 36_525 * 86_400_000  # 100 years

_DAY_MS = 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NANOSECONDS_PER_SECOND = 1_000_000_000


def duration_to_ms(
    value: object, *, parameter: str, error: type[AlarmError], minimum_ms: int = 0
) -> int:
    """Convert a `Duration` to whole milliseconds, rounded up.

    A float counts as the decimal number that it is printed as, to the nearest nanosecond, so that
    0.1 is 100 ms and so that 0.1 + 0.2 is 300 ms. What is positive stays at least 1 ms.

    Args:
        value: A `timedelta`, or a number of seconds.
        parameter: The name that the error gives to the value.
        error: What to raise.
        minimum_ms: The least allowed, in milliseconds after rounding.

    Raises:
        error: `value` is no duration, is negative, or is out of range.
    """
    milliseconds = _ceil_to_ms(value)
    if milliseconds is None or not minimum_ms <= milliseconds <= MAX_DURATION_MS:
        raise error(
            f"{parameter} must be a timedelta or a number of seconds, from"
            f" {minimum_ms / 1000:g} seconds to 100 years, not {describe(value)}"
        )
    return milliseconds


def _ceil_to_ms(value: object) -> int | None:
    """Return whole milliseconds, rounded up, or None for what is no duration or is negative."""
    if is_of_type(value, timedelta):
        # The base class's operator: subclasses redefine it and the fields it reads.
        microseconds = timedelta.__floordiv__(value, _MICROSECOND)
        return _ceil_divide(microseconds, 1000) if microseconds >= 0 else None
    if isinstance(value, bool):
        return None
    if is_of_type(value, int):
        seconds = int.__int__(value)
        return seconds * 1000 if seconds >= 0 else None
    if not is_of_type(value, float):
        return None
    number = float.__float__(value)
    if not math.isfinite(number) or number < 0:
        return None
    nanoseconds = round(Fraction(repr(number)) * _NANOSECONDS_PER_SECOND)
    return max(_ceil_divide(nanoseconds, 1_000_000), 1 if number > 0 else 0)


def instant_to_ms(value: object, *, parameter: str) -> int:
    """Convert an aware datetime to milliseconds since the Unix epoch, rounded up.

    Args:
        value: An aware `datetime` up to 9999-12-31T23:59:59.999Z, in any zone.
        parameter: The name that the error gives to the value.

    Raises:
        InvalidAlarmRefError: `value` is no datetime, is naive, or is out of range.
    """
    if type(value) is datetime and value.tzinfo is UTC:
        # Most are in UTC, whose difference to the epoch needs no questions.
        elapsed = value - _EPOCH
        milliseconds = (
            elapsed.days * _DAY_MS
            + elapsed.seconds * 1000
            + _ceil_divide(elapsed.microseconds, 1000)
        )
    else:
        microseconds = instant_to_us(value, parameter=parameter, error=InvalidAlarmRefError)
        milliseconds = _ceil_divide(microseconds, 1000)
    if not MIN_INSTANT_MS <= milliseconds <= MAX_INSTANT_MS:
        raise InvalidAlarmRefError(
            f"{parameter} must be from 0001-01-01T00:00:00.000Z to 9999-12-31T23:59:59.999Z,"
            f" not {describe(value)} in its time zone"
        )
    return milliseconds


def instant_to_us(value: object, *, parameter: str, error: type[AlarmError]) -> int:
    """Convert an aware datetime to microseconds since the Unix epoch, exactly.

    Args:
        value: An aware `datetime`, in any zone.
        parameter: The name that the error gives to the value.
        error: What to raise.

    Raises:
        error: `value` is no datetime or is naive, or its time zone does not work.
    """
    if not is_of_type(value, datetime):
        raise error(f"{parameter} must be an aware datetime, not {describe(value)}")
    try:
        naive = datetime.utcoffset(value) is None
        # The base class's operator: subclasses return differences of their own.
        since_epoch = None if naive else datetime.__sub__(value, _EPOCH)
    except Exception as cause:
        raise error(
            f"{parameter} must be an aware datetime, but the time zone of {describe(value)} fails"
        ) from cause
    if since_epoch is None:
        raise error(
            f"{parameter} must be an aware datetime, not the naive {describe(value)}; make it"
            " aware with value.replace(tzinfo=UTC) if it is in UTC, or with"
            " value.astimezone() if it is in local time"
        )
    return timedelta.__floordiv__(since_epoch, _MICROSECOND)


def instant_from_ms(milliseconds: int) -> datetime:
    """Convert milliseconds since the Unix epoch to a datetime in UTC, saturated at both ends."""
    within = max(MIN_INSTANT_MS, min(milliseconds, MAX_INSTANT_MS))
    # By its own units, which timedelta need not convert.
    return _EPOCH + timedelta(0, within // 1000, within % 1000 * 1000)


def saturated(milliseconds: int) -> int:
    """Bound a computed instant, in milliseconds, to the last one that can be stored."""
    return min(milliseconds, MAX_INSTANT_MS)


def _ceil_divide(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
