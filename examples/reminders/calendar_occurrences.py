"""Computes when the entries of a calendar recur, with their exceptions and overrides."""

from __future__ import annotations

from datetime import UTC, date, datetime, tzinfo
from typing import TYPE_CHECKING, cast

import attrs

from .calendar_library import recurrences
from .calendar_outline import printable
from .calendar_time import CalendarDuration, moment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .calendar_file import CalendarEntry, CalendarFile
    from .calendar_library import Component

_LONGEST_TITLE = 80
_OVER = frozenset({"CANCELLED", "COMPLETED"})


@attrs.frozen
class Occurrence:
    """One occurrence of an entry: what it is called and when it is.

    `recurrence_id` tells it apart within its series. `start` and `end` are in its time zone,
    whose name is `time_zone`; without an end it ends when it starts.
    """

    entry: CalendarEntry
    recurrence_id: str
    title: str
    start: datetime
    end: datetime
    all_day: bool
    time_zone: str


def occurrences_between(
    series: list[CalendarEntry], calendar: CalendarFile, begin: datetime, end: datetime
) -> Iterator[Occurrence]:
    """The occurrences of a series that touch the span; not those cancelled or completed.

    Args:
        series: The entries that share a UID: an event and its overrides.
        calendar: The calendar that they are from.
        begin: The first instant of the span.
        end: The instant that ends it.
    """
    recurs = any(
        entry.outline.all_of(name)
        for entry in series
        for name in ("RRULE", "RDATE", "RECURRENCE-ID")
    )
    has_zone = any(
        "TZID" in line.parameters for entry in series for line in entry.outline.all_of("DTSTART")
    )
    found = recurrences(
        [entry.component for entry in series],
        series[0].outline.name,
        # For times without a zone; the library takes one whose VTIMEZONE has no TZNAME for such.
        None if has_zone else calendar.time_zone,
        begin,
        end,
    )
    for index, component in found:
        if not is_over(component):
            entry = series[index]
            recurrence_id = _recurrence_id(entry, component) if recurs else "once"
            started: date = component.get("DTSTART").dt
            yield _occurrence(entry, component, started, recurrence_id, calendar.home)


def as_occurrence(entry: CalendarEntry, instant: datetime, home: tzinfo) -> Occurrence:
    """The entry itself, for an alarm that rings at this instant however often it recurs.

    An override repeats the alarms of its event; named by the instant, they are the same one.
    """
    dated = entry.component.get("DTSTART", entry.component.get("DUE"))
    started: date = dated.dt if dated is not None else instant  # a to-do may have no date
    return _occurrence(entry, entry.component, started, _instant_text(instant), home)


def is_over(component: Component) -> bool:
    """Whether it is cancelled or completed, so that nobody wants to be reminded of it."""
    return str(component.get("STATUS", "")).strip().upper() in _OVER


def _instant_text(value: date) -> str:
    """A date or an instant in the basic format of ISO 8601."""
    if not isinstance(value, datetime):
        return value.strftime("%Y%m%d")
    if value.tzinfo is None:
        return value.strftime("%Y%m%dT%H%M%S")
    return value.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


def _occurrence(
    entry: CalendarEntry,
    component: Component,
    started: date,
    recurrence_id: str,
    home: tzinfo,
) -> Occurrence:
    start = moment(started, home)
    return Occurrence(
        entry=entry,
        recurrence_id=recurrence_id,
        title=_title(component),
        start=start,
        end=_end(entry, component, start, home),
        all_day=not isinstance(started, datetime),
        time_zone=_time_zone_name(entry, start),
    )


def _recurrence_id(entry: CalendarEntry, component: Component) -> str:
    """Which occurrence it is: the one that an override names, even where it was moved."""
    override = entry.outline.find("RECURRENCE-ID")
    if override is not None and "RANGE" not in override.parameters:
        return _instant_text(component.get("RECURRENCE-ID").dt)
    # With a RANGE one override stands for many occurrences; only their starts tell them apart.
    return _instant_text(component.get("DTSTART").dt)


def _title(component: Component) -> str:
    summary = component.get("SUMMARY", "")
    text = cast("object", summary[0] if isinstance(summary, list) else summary)
    return printable(str(text)).strip()[:_LONGEST_TITLE] or "(no title)"


def _end(entry: CalendarEntry, component: Component, start: datetime, home: tzinfo) -> datetime:
    length = entry.outline.find("DURATION")
    if length is not None and entry.outline.find("RDATE") is None:
        # The library adds it to the wall clock, exact hours too. An RDATE may bring its own.
        return CalendarDuration.from_ical(length.value).after(start)
    end = component.get("DUE" if entry.outline.name == "VTODO" else "DTEND")
    return start if end is None else moment(end.dt, home)


def _time_zone_name(entry: CalendarEntry, start: datetime) -> str:
    """The name of the zone that `start` is in; a VTIMEZONE's own is known by its TZID only."""
    key: str | None = getattr(start.tzinfo, "key", None)
    line = entry.outline.find("DTSTART") or entry.outline.find("DUE")
    tzid = line.parameters.get("TZID") if line else None
    return printable(key or tzid or str(start.tzinfo))
