"""Reads a calendar file and checks all in it that reminders depend on.

What this module returns is sound: its dates are dates, its time zones are known and its alarms
have triggers. Whatever is not is a `CalendarError` that names the line and the component.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from datetime import UTC, date, datetime, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import attrs

from .calendar_alarm import CalendarAlarm, duration, read_alarm
from .calendar_library import (
    Component,
    complaint,
    forget_time_zones,
    knows_time_zone,
    parse_calendar,
)
from .calendar_outline import CalendarError, ComponentOutline, outline, printable, shown
from .calendar_time import CalendarDuration, moment

if TYPE_CHECKING:
    from pathlib import Path

_LARGEST_FILE_BYTES = 16 * 1024 * 1024

# What may stand once in an entry and decides when its reminders ring. icalendar keeps an event
# in which other properties are broken, and so do we.
_SINGLE = ("UID", "DTSTART", "DTEND", "DUE", "DURATION", "RECURRENCE-ID", "SEQUENCE", "STATUS")
_DECISIVE = frozenset((*_SINGLE, "RRULE", "RDATE", "EXDATE"))


@attrs.frozen
class CalendarEntry:
    """A VEVENT or a VTODO with its alarms.

    `recurrence_id` says which occurrence it overrides, if any; of two entries that are the same
    otherwise, the one with the higher `sequence` is the newer version.
    """

    uid: str
    recurrence_id: date | None
    sequence: int
    alarms: tuple[CalendarAlarm, ...]
    component: Component
    outline: ComponentOutline


@attrs.frozen
class CalendarFile:
    """A calendar that has been read and found sound.

    `digest` identifies its content. `home` is the time zone of all-day entries and of times
    without a zone: the one that the file names (`time_zone`), else the machine's.
    """

    title: str
    digest: str
    home: tzinfo
    time_zone: str | None
    entries: tuple[CalendarEntry, ...]


def read_calendar(path: Path) -> CalendarFile:
    """Read the calendar at `path`.

    Raises:
        CalendarError: It cannot be read, or something in it is malformed.
    """
    content = _content(path)
    calendars = outline(_decoded(content))
    if not calendars:
        raise CalendarError("the file is empty; a calendar begins with BEGIN:VCALENDAR")
    _check_scale(calendars)
    time_zone = _named_time_zone(calendars)
    home = ZoneInfo(time_zone) if time_zone else machine_time_zone()
    titles = [line.value for calendar in calendars for line in calendar.all_of("X-WR-CALNAME")]
    return CalendarFile(
        title=printable(titles[0] if titles else path.name),
        digest=hashlib.sha256(content).hexdigest(),
        home=home,
        time_zone=time_zone,
        entries=tuple(_entries(calendars, home)),
    )


def machine_time_zone() -> tzinfo:
    """The time zone of this machine with its daylight-saving rules; UTC if that is unknown."""
    link_target = os.path.realpath("/etc/localtime").partition("zoneinfo/")[2]
    for name in (os.environ.get("TZ", "").removeprefix(":"), link_target):
        try:
            return ZoneInfo(name)
        except (ValueError, KeyError, OSError):  # no name, an unknown one, a directory of zones
            continue
    return UTC


def _content(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():
            what = "a directory" if path.is_dir() else "not a regular file"
            raise CalendarError(f"it is {what}, a calendar file is expected")
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CalendarError(f"it cannot be read: {reason}") from error
    if len(content) > _LARGEST_FILE_BYTES:
        raise CalendarError(f"it is larger than {_LARGEST_FILE_BYTES} bytes")
    return content


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise CalendarError(
            f"line {line}: the byte 0x{content[error.start]:02x} is not UTF-8 text"
        ) from error


def _check_scale(calendars: list[ComponentOutline]) -> None:
    for calendar in calendars:
        line = calendar.find("CALSCALE")
        if line is not None and line.value.strip().upper() != "GREGORIAN":
            raise calendar.error(f"CALSCALE is {shown(line.value)}, GREGORIAN is allowed", line)


def _named_time_zone(calendars: list[ComponentOutline]) -> str | None:
    for calendar in calendars:
        line = calendar.find("X-WR-TIMEZONE")
        if line is not None:
            try:
                return ZoneInfo(line.value).key
            except (ValueError, KeyError, OSError) as error:
                raise calendar.error(
                    f"X-WR-TIMEZONE is {shown(line.value)}, which is no known time zone", line
                ) from error
    return None


def _entries(calendars: list[ComponentOutline], home: tzinfo) -> list[CalendarEntry]:
    forget_time_zones()
    with warnings.catch_warnings():
        # icalendar warns where it guesses, rightly, at a TZID like /vendor.example/Europe/Berlin.
        warnings.simplefilter("ignore")
        _check_time_zones(calendars)
        return [
            _entry(component, place, home)
            for component, place in _parsed(calendars)
            if place.name in ("VEVENT", "VTODO")
        ]


def _check_time_zones(calendars: list[ComponentOutline]) -> None:
    components = [component for calendar in calendars for component in calendar.walk()]
    defined = {
        line.value.strip("/")
        for component in components
        if component.name == "VTIMEZONE"
        for line in component.all_of("TZID")
    }
    for component in components:
        for line in component.lines:
            name = line.parameters.get("TZID")
            if name is not None and name.strip("/") not in defined and not knows_time_zone(name):
                raise component.error(
                    f"{line.name} is in the time zone {shown(name)}, which is neither defined by"
                    " a VTIMEZONE of the calendar nor known",
                    line,
                )


def _parsed(
    calendars: list[ComponentOutline],
) -> list[tuple[Component, ComponentOutline]]:
    try:
        components = [
            component for calendar in calendars for component in parse_calendar(calendar.text())
        ]
    except Exception as error:
        raise _malformed(calendars, error) from error
    places = [place for calendar in calendars for place in calendar.walk()]
    return list(zip(components, places, strict=True))


def _malformed(calendars: list[ComponentOutline], error: Exception) -> CalendarError:
    """Find what icalendar could not parse, by giving it one piece at a time."""
    places = [place for calendar in calendars for place in calendar.walk()]
    for place in places:
        for line in place.lines:
            probe = ComponentOutline("X-PROBE", line.number, lines=[line])
            if wrong := complaint(probe.text()):
                return place.error(f"{line.name}: {wrong}", line)
    for place in reversed(places):  # the innermost first
        if wrong := complaint(place.text()):
            return place.error(wrong)
    return CalendarError(f"it cannot be parsed: {error}")


def _entry(component: Component, place: ComponentOutline, home: tzinfo) -> CalendarEntry:
    for name in _SINGLE:
        place.find(name)
    if any(name in _DECISIVE for name, _ in component.errors):
        decisive = [line for line in place.lines if line.name in _DECISIVE]
        only_decisive = attrs.evolve(place, lines=decisive, children=[])
        raise _malformed([only_decisive], ValueError(component.errors[0][1]))
    try:
        _check_span(component, place, home)
    except OverflowError as error:
        raise place.error("a date or duration in it is out of range") from error
    alarms = _alarms(place, home)
    uid = place.find("UID")
    if uid is None and alarms:
        raise place.error("it has alarms but no UID, so they have no lasting identity")
    return CalendarEntry(
        uid=uid.value if uid else "",
        recurrence_id=_date(component, place, "RECURRENCE-ID"),
        sequence=int(component.get("SEQUENCE", 0)),
        alarms=alarms,
        component=component,
        outline=place,
    )


def _alarms(entry: ComponentOutline, home: tzinfo) -> tuple[CalendarAlarm, ...]:
    alarms: list[CalendarAlarm] = []
    has_date = entry.find("DTSTART") is not None or entry.find("DUE") is not None
    for index, place in enumerate(child for child in entry.children if child.name == "VALARM"):
        alarm = read_alarm(place, index, home)
        if alarm is None:
            continue
        if not has_date and isinstance(alarm.trigger, CalendarDuration):
            raise place.error(
                "its TRIGGER is a duration, but its entry has neither DTSTART nor DUE",
                place.find("TRIGGER"),
            )
        alarms.append(alarm)
    return tuple(alarms)


def _check_span(component: Component, place: ComponentOutline, home: tzinfo) -> None:
    """Check that the entry starts, and ends no earlier than that."""
    start = _date(component, place, "DTSTART")
    end_name = "DUE" if place.name == "VTODO" else "DTEND"
    end = _date(component, place, end_name)
    if start is None and place.name == "VEVENT":
        raise place.error("it has no DTSTART")
    length = place.find("DURATION")
    if length is not None and duration(place, length).nominal().total_seconds() < 0:
        raise place.error(f"DURATION is {shown(length.value)}, which is below zero", length)
    if start is None or end is None:
        return
    if isinstance(start, datetime) != isinstance(end, datetime):
        raise place.error(
            f"DTSTART and {end_name} are a date and a date-time, both must be the same",
            place.find(end_name),
        )
    if moment(end, home) < moment(start, home):
        raise place.error(f"{end_name} ({end}) is before DTSTART ({start})", place.find(end_name))


def _date(component: Component, place: ComponentOutline, name: str) -> date | None:
    line = place.find(name)
    if line is None:
        return None
    value: object = component.get(name).dt
    if not isinstance(value, date):
        raise place.error(
            f"{name} is {shown(line.value)}, which is neither a date nor a date-time", line
        )
    return value
