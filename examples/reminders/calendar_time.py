"""Times as iCalendar means them: which instant a value is, and how long a duration lasts."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, tzinfo

import attrs

_PATTERN = re.compile(
    r"(?P<sign>[+-]?)P"
    r"(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)S)?)?",
    re.ASCII | re.IGNORECASE,
)


@attrs.frozen
class CalendarDuration:
    """A signed duration of nominal days and exact seconds (RFC 5545, 3.3.6).

    Across a daylight-saving change they differ: a day before Sunday 10:00 is Saturday 10:00,
    while 24 hours before it may be Saturday 09:00. A `timedelta` cannot tell them apart.
    """

    days: int
    seconds: int

    @classmethod
    def from_ical(cls, text: str) -> CalendarDuration:
        """Read a DURATION value such as `-PT15M` or `P1DT2H`.

        Raises:
            ValueError: The text is no duration.
        """
        match = _PATTERN.fullmatch(text.strip())
        parts = match.groupdict() if match else {}
        if match is None or not any(parts[name] for name in parts if name != "sign"):
            raise ValueError(f"{text!r} is not a duration such as -PT15M or P1D")
        count = {name: int(digits or 0) for name, digits in parts.items() if name != "sign"}
        sign = -1 if parts["sign"] == "-" else 1
        return cls(
            days=sign * (count["weeks"] * 7 + count["days"]),
            seconds=sign * (count["hours"] * 3600 + count["minutes"] * 60 + count["seconds"]),
        )

    def times(self, count: int) -> CalendarDuration:
        """The duration, `count` times in a row."""
        return CalendarDuration(self.days * count, self.seconds * count)

    def nominal(self) -> timedelta:
        """The length that it has where no clock changes; for ordering and rough bounds."""
        return timedelta(days=self.days, seconds=self.seconds)

    def after(self, moment: datetime) -> datetime:
        """The instant this long after `moment`, in the time zone of `moment`.

        Days are added to the wall clock first, the rest to the time line. A wall clock time that
        a change skips is read with the offset before the change, as RFC 5545 (3.3.5) says.
        """
        # Aware arithmetic within one zone is wall-clock arithmetic, which is what days mean.
        same_wall_clock = moment + timedelta(days=self.days)
        exact = same_wall_clock.astimezone(UTC) + timedelta(seconds=self.seconds)
        return exact.astimezone(moment.tzinfo)


def moment(value: date, home: tzinfo) -> datetime:
    """The instant that a DATE or DATE-TIME value is, in its own time zone.

    A date is its first midnight, and both a date and a time without a zone are in `home`.
    """
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=home)
    if value.tzinfo is None:
        value = value.replace(tzinfo=home)
    # Through UTC, because a wall clock time that a change skips is then shown as it is read.
    return value.astimezone(UTC).astimezone(value.tzinfo)
