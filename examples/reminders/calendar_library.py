"""All calls of icalendar and recurring-ical-events, given the types that the libraries lack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

import icalendar
import recurring_ical_events  # type: ignore[import-untyped]  # cast below to what we rely on

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

# The libraries are typed in part or not at all; here that ends.
_icalendar = cast("Any", icalendar)
_recurring = cast("Any", recurring_ical_events)

_TIME_ZONE = "X-WR-TIMEZONE"
_TAG = "X-TRIO-ALARMS-TAG"


class Component(Protocol):
    """What we use of a component: its properties, and those that could not be parsed."""

    @property
    def errors(self) -> list[tuple[str | None, str]]:
        """The name of each property that is broken, and what is wrong with it."""
        ...

    def get(self, name: str, default: object = None, /) -> Any:
        """The value of a property; of dates and durations `.dt` is the Python value."""
        ...


def split_line(text: str) -> tuple[str, dict[str, str], str]:
    """The name, parameters and value of a content line.

    Raises:
        ValueError: It is none.
    """
    name, parameters, value = _icalendar.parser.Contentline(text).parts()
    # A parameter with several values is a list; none that we look at may have several.
    return name, {key: str(values) for key, values in parameters.items()}, value


def forget_time_zones() -> None:
    """Forget the VTIMEZONEs of all calendars parsed so far, which icalendar remembers."""
    _icalendar.use_zoneinfo()


def knows_time_zone(name: str) -> bool:
    """Whether the name is in the time zone database, or means one that is."""
    try:
        return _icalendar.timezone.tzp.timezone(name) is not None
    except (ValueError, KeyError, OSError):  # an unlikely name, or a directory of zones
        return False


def parse_calendar(text: str) -> list[Component]:
    """Parse one VCALENDAR: the calendar and all components in it, in the order of the text.

    Raises:
        Exception: Something in it cannot be parsed; the library raises many kinds.
    """
    return cast("list[Component]", _icalendar.Calendar.from_ical(text).walk())


def complaint(text: str) -> str | None:
    """What the library says is wrong with the text of one component, if it says so."""
    try:
        _icalendar.Component.from_ical(text)
    except Exception as error:  # noqa: BLE001 - it raises many kinds, any of them is a complaint
        return str(error) or type(error).__name__
    return None


def parse_date_time(text: str, time_zone: str | None) -> datetime:
    """Parse a DATE-TIME value.

    Raises:
        ValueError: It is none.
    """
    return cast("datetime", _icalendar.vDatetime.from_ical(text, time_zone))


def recurrences(
    components: Iterable[Component],
    name: str,
    time_zone: str | None,
    begin: datetime,
    end: datetime,
) -> list[tuple[int, Component]]:
    """The occurrences of a series that touch the span from `begin` to `end`.

    Args:
        components: An event and its overrides.
        name: What they are, VEVENT or VTODO.
        time_zone: The X-WR-TIMEZONE of their calendar.
        begin: The first instant of the span.
        end: The instant that ends it.

    Returns:
        Each occurrence, a copy of a component with its own dates, after the index of that one.

    Raises:
        Exception: Its recurrence is malformed; the library raises many kinds.
    """
    calendar = _icalendar.Calendar()
    if time_zone is not None:
        calendar.add(_TIME_ZONE, time_zone)
    for index, component in enumerate(components):
        # The library copies components; this property goes along and says which one it was.
        cast("Any", component)[_TAG] = _icalendar.vText(str(index))
        calendar.add_component(component)
    found = _recurring.of(calendar, components=[name]).between(begin, end)
    return [(int(occurrence[_TAG]), occurrence) for occurrence in found]
