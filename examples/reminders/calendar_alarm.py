"""Reads one VALARM: when it rings, from what it counts, and how often it repeats."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from .calendar_library import parse_date_time
from .calendar_outline import shown
from .calendar_time import CalendarDuration, moment

if TYPE_CHECKING:
    from datetime import tzinfo

    from .calendar_outline import ComponentOutline, PropertyLine

_MOST_REPETITIONS = 1000

Anchor: TypeAlias = Literal["start", "end"]


@attrs.frozen
class CalendarAlarm:
    """A VALARM that has been read.

    Its `trigger` is an instant, or a duration from the `anchor` of what it reminds of. After
    the first ring it rings `repetitions` times more, one `interval` apart. `index` is its place
    among the alarms of its entry.
    """

    index: int
    trigger: CalendarDuration | datetime
    anchor: Anchor
    repetitions: int
    interval: CalendarDuration

    def offsets(self) -> list[CalendarDuration]:
        """How long after its trigger each ring comes; the first is at once."""
        return [self.interval.times(count) for count in range(self.repetitions + 1)]


def read_alarm(outline: ComponentOutline, index: int, home: tzinfo) -> CalendarAlarm | None:
    """Read the VALARM that stands at `outline`; `None` if it asks for no action.

    Raises:
        CalendarError: It has no trigger, or something in it is malformed.
    """
    line = outline.find("TRIGGER")
    if line is None:
        raise outline.error("it has no TRIGGER, so it says nowhere when to ring")
    repetitions, interval = _repetition(outline)
    action = outline.find("ACTION")
    if action is not None and action.value.strip().upper() == "NONE":
        return None
    return CalendarAlarm(
        index, _trigger(outline, line, home), _anchor(outline, line), repetitions, interval
    )


def _trigger(
    outline: ComponentOutline, line: PropertyLine, home: tzinfo
) -> CalendarDuration | datetime:
    text = line.value.strip()
    is_instant = line.parameters.get("VALUE", "").upper() == "DATE-TIME"
    if not is_instant and text.lstrip("+-")[:1].upper() == "P":
        return duration(outline, line)
    try:
        return moment(parse_date_time(text, line.parameters.get("TZID")), home)
    except (ValueError, OverflowError) as error:
        raise outline.error(
            f"TRIGGER is {shown(text)}, which is neither a duration such as -PT15M"
            " nor a date-time such as 20260327T080000Z",
            line,
        ) from error


def _anchor(outline: ComponentOutline, line: PropertyLine) -> Anchor:
    related = line.parameters.get("RELATED", "START")
    if related.upper() == "START":
        return "start"
    if related.upper() == "END":
        return "end"
    raise outline.error(f"TRIGGER is RELATED to {shown(related)}, START or END is allowed", line)


def _repetition(outline: ComponentOutline) -> tuple[int, CalendarDuration]:
    repeat, interval_line = outline.find("REPEAT"), outline.find("DURATION")
    interval = duration(outline, interval_line) if interval_line else CalendarDuration(0, 0)
    if repeat is None:
        return 0, interval
    digits = repeat.value.strip()
    if not (digits.isascii() and digits.isdigit()) or int(digits[:9]) > _MOST_REPETITIONS:
        raise outline.error(
            f"REPEAT is {shown(digits)}, a number from 0 to {_MOST_REPETITIONS} is allowed", repeat
        )
    if int(digits) > 0 and interval.nominal().total_seconds() <= 0:
        raise outline.error(
            f"REPEAT is {digits}, but no DURATION above zero says how far apart", repeat
        )
    return int(digits), interval


def duration(outline: ComponentOutline, line: PropertyLine) -> CalendarDuration:
    """Read a property that is a duration.

    Raises:
        CalendarError: It is none, or is out of range.
    """
    try:
        value = CalendarDuration.from_ical(line.value)
        value.nominal()
    except (ValueError, OverflowError) as error:
        reason = "too long" if isinstance(error, OverflowError) else "not a duration such as PT15M"
        raise outline.error(f"{line.name} is {shown(line.value)}, {reason}", line) from error
    return value
