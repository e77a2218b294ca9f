"""Computes which reminders of a calendar ring within seven days, and when."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

from .calendar_occurrences import as_occurrence, is_over, occurrences_between
from .calendar_outline import CalendarError
from .calendar_time import CalendarDuration, moment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .calendar_alarm import CalendarAlarm
    from .calendar_file import CalendarEntry, CalendarFile
    from .calendar_occurrences import Occurrence

MOST_REMINDERS = 2000
"""More could not ring within the minute that the demo may take."""

_LONGEST_UID = 300
# How far a time zone may move a date or a time without a zone; what that lets in is sifted later.
_MARGIN = timedelta(days=2)

Anchor: TypeAlias = Literal["start", "end", "due"]


@attrs.frozen
class Announcement:
    """What a reminder says: when it rings, of what, and when that starts, ends or is due.

    Its times are in the time zone of the event, whose name is `time_zone`.
    """

    title: str
    rings_at: datetime
    anchor: Anchor
    anchor_at: datetime
    all_day: bool
    time_zone: str


@attrs.frozen
class Reminder:
    """One ring of one alarm.

    `id` is the same whenever the calendar is read: UID, recurrence id, and index of the alarm.
    """

    id: str
    announcement: Announcement

    @property
    def rings_at(self) -> datetime:
        """The instant at which it is due."""
        return self.announcement.rings_at


@attrs.frozen
class Span:
    """The instants from `start` up to, but without, `end`."""

    start: datetime
    end: datetime

    def __contains__(self, instant: datetime) -> bool:
        return self.start <= instant < self.end


@attrs.frozen
class ReminderWeek:
    """What the demo rings: every reminder of a calendar within seven days from `first_day`."""

    calendar_title: str
    calendar_digest: str
    first_day: date
    span: Span
    reminders: tuple[Reminder, ...]


def week_of(calendar: CalendarFile, first_day: date) -> ReminderWeek:
    """The reminders of the seven days that begin with the midnight of `first_day`.

    The midnights are those of the calendar's home zone, so a week in which its clocks change is
    an hour shorter or longer.

    Raises:
        CalendarError: A recurrence cannot be computed, or there are too many reminders.
    """
    next_week = first_day + timedelta(days=7)
    span = Span(moment(first_day, calendar.home), moment(next_week, calendar.home))
    reminders: dict[str, Reminder] = {}
    for series in _series(calendar):
        for reminder in _reminders_of(series, calendar, span):
            reminders[reminder.id] = reminder
            if len(reminders) > MOST_REMINDERS:
                raise CalendarError(
                    f"more than {MOST_REMINDERS} reminders ring in the seven days from"
                    f" {first_day}, more than this demo can ring within a minute"
                )
    in_order = sorted(reminders.values(), key=lambda reminder: (reminder.rings_at, reminder.id))
    return ReminderWeek(calendar.title, calendar.digest, first_day, span, tuple(in_order))


def _series(calendar: CalendarFile) -> list[list[CalendarEntry]]:
    """The entries that share a UID, together: an event and its overrides."""
    current: dict[tuple[str, str, date | None], CalendarEntry] = {}
    for entry in calendar.entries:
        # A file may hold older versions of an entry; the highest SEQUENCE is the one that counts.
        key = (entry.outline.name, entry.uid, entry.recurrence_id)
        if key not in current or entry.sequence > current[key].sequence:
            current[key] = entry
    series: dict[tuple[str, str], list[CalendarEntry]] = defaultdict(list)
    for (name, uid, _), entry in current.items():
        series[name, uid].append(entry)
    return list(series.values())


def _reminders_of(
    series: list[CalendarEntry], calendar: CalendarFile, span: Span
) -> Iterator[Reminder]:
    try:
        yield from _relative_reminders(series, calendar, span)
        for entry in series:
            yield from _absolute_reminders(entry, calendar, span)
    except CalendarError:
        raise
    except Exception as error:
        raise series[0].outline.error(f"when it recurs cannot be computed: {error}") from error


def _relative_reminders(
    series: list[CalendarEntry], calendar: CalendarFile, span: Span
) -> Iterator[Reminder]:
    """The reminders whose alarms count from the start or the end of each occurrence."""
    distances = [
        alarm.trigger.nominal() + offset.nominal()
        for entry in series
        for alarm in entry.alarms
        if isinstance(alarm.trigger, CalendarDuration)
        for offset in alarm.offsets()
    ]
    if not distances:
        return
    begin = span.start - max(distances) - _MARGIN
    end = span.end - min(distances) + _MARGIN
    for occurrence in occurrences_between(series, calendar, begin, end):
        for alarm in occurrence.entry.alarms:
            if isinstance(alarm.trigger, CalendarDuration):
                start_or_end = occurrence.start if alarm.anchor == "start" else occurrence.end
                first = alarm.trigger.after(start_or_end)
                yield from _rings(alarm, occurrence, first, span)


def _absolute_reminders(
    entry: CalendarEntry, calendar: CalendarFile, span: Span
) -> Iterator[Reminder]:
    """The reminders whose alarms name an instant; they ring once, however often it recurs."""
    for alarm in entry.alarms:
        if isinstance(alarm.trigger, datetime) and not is_over(entry.component):
            occurrence = as_occurrence(entry, alarm.trigger, calendar.home)
            first = alarm.trigger.astimezone(occurrence.start.tzinfo)
            yield from _rings(alarm, occurrence, first, span)


def _rings(
    alarm: CalendarAlarm, occurrence: Occurrence, first: datetime, span: Span
) -> Iterator[Reminder]:
    """The first ring and its repetitions, as far as they are within the span."""
    entry = occurrence.entry
    for repetition, offset in enumerate(alarm.offsets()):
        rings_at = offset.after(first)
        if rings_at in span:
            announcement = Announcement(
                title=occurrence.title,
                rings_at=rings_at,
                anchor=_anchor(alarm, entry),
                anchor_at=occurrence.start if alarm.anchor == "start" else occurrence.end,
                all_day=occurrence.all_day,
                time_zone=occurrence.time_zone,
            )
            which = f"{alarm.index}.{repetition}"
            uid = _short_uid(entry.uid)
            yield Reminder(
                f"{entry.outline.name}/{uid}/{occurrence.recurrence_id}/{which}", announcement
            )


def _anchor(alarm: CalendarAlarm, entry: CalendarEntry) -> Anchor:
    if entry.outline.name != "VTODO":
        return alarm.anchor
    starts = entry.outline.find("DTSTART") is not None
    return "start" if alarm.anchor == "start" and starts else "due"


def _short_uid(uid: str) -> str:
    """The UID, or a digest of one that is too long or too odd for the id of an alarm."""
    if len(uid) <= _LONGEST_UID and uid.isprintable():
        return uid
    return "sha256:" + hashlib.sha256(uid.encode()).hexdigest()
