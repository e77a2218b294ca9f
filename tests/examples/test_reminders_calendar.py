"""What the reminders example reads from a calendar, and what it refuses."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from examples.reminders.calendar_file import CalendarFile, read_calendar
from examples.reminders.calendar_outline import CalendarError
from examples.reminders.calendar_reminders import MOST_REMINDERS, ReminderWeek, week_of
from examples.reminders.calendar_time import CalendarDuration, moment
from examples.reminders.sample import SAMPLE, SAMPLE_FIRST_DAY

if TYPE_CHECKING:
    from pathlib import Path

BERLIN = ZoneInfo("Europe/Berlin")

# Worked out by hand from the file: when each title rings, in the time zone of its event.
SAMPLE_RINGS = {
    "Check the nightly backup": [
        "2026-03-27T02:30+01:00",
        "2026-03-28T02:30+01:00",
        "2026-03-29T03:30+02:00",  # there is no 02:30 on that day
        "2026-03-30T02:30+02:00",
        "2026-03-31T02:30+02:00",
        "2026-04-01T02:30+02:00",
        "2026-04-02T02:30+02:00",
    ],
    "Take the medicine": [
        "2026-03-27T08:00+01:00",
        "2026-03-27T08:10+01:00",
        "2026-03-28T08:00+01:00",
        "2026-03-28T08:10+01:00",
        "2026-03-30T08:00+02:00",
        "2026-03-30T08:10+02:00",
        "2026-03-31T08:00+02:00",
        "2026-03-31T08:10+02:00",
        "2026-04-02T08:00+02:00",
        "2026-04-02T08:10+02:00",
    ],
    "Mira's birthday": ["2026-03-27T09:00+01:00", "2026-03-28T09:00+01:00"],
    "Stand-up": [
        "2026-03-27T09:05+01:00",
        "2026-03-27T09:15+01:00",
        "2026-04-02T09:05+02:00",
        "2026-04-02T09:15+02:00",
    ],
    "Stand-up with the auditors": ["2026-03-31T10:15+02:00"],
    "Call with New York": [
        "2026-03-27T09:45-04:00",
        "2026-03-30T09:45-04:00",
        "2026-04-01T09:45-04:00",
    ],
    "Parking ticket": ["2026-03-27T15:50+01:00"],
    "Handover to Lisbon": [
        "2026-03-27T16:55+00:00",
        "2026-03-28T16:55+00:00",
        "2026-03-29T16:55+01:00",
        "2026-03-30T16:55+01:00",
    ],
    "Half marathon": [
        "2026-03-28T09:00+01:00",  # 24 hours before
        "2026-03-28T10:00+01:00",  # a day before
        "2026-03-29T13:30+02:00",
    ],
    "Yoga": ["2026-03-28T10:30+01:00"],
    "Yoga (summer hours)": ["2026-03-31T19:00+02:00", "2026-04-02T19:00+02:00"],
    "Demo for Tokyo": [
        "2026-03-29T10:00+09:00",
        "2026-03-30T09:00+09:00",
        "2026-03-30T09:15+09:00",
        "2026-03-30T09:30+09:00",
        "2026-03-30T09:45+09:00",
    ],
    "Night shift": ["2026-03-29T06:45+02:00"],  # eight hours from 22:00 end at 07:00
    "The clocks have changed": ["2026-03-29T09:00+02:00"],
    "Conference in Prague": ["2026-03-31T09:00+02:00"],
    "Release freeze": ["2026-03-31T12:00+02:00", "2026-03-31T14:00+02:00"],
    "Send the invoice": ["2026-03-31T17:00+02:00", "2026-04-02T14:00+02:00"],
    "Easter holiday": ["2026-03-31T20:00+02:00"],
    "Tax return is due": ["2026-04-01T18:00+02:00"],
}

ALARM = ("BEGIN:VALARM", "ACTION:DISPLAY", "TRIGGER:-PT10M", "END:VALARM")


def entry(*lines: str, uid: str = "a@b", name: str = "VEVENT") -> list[str]:
    """A VEVENT or VTODO with these lines."""
    return [f"BEGIN:{name}", f"UID:{uid}", *lines, f"END:{name}"]


def calendar_text(*lines: str) -> str:
    """A calendar with these lines, which begin on line 3."""
    return "\n".join(["BEGIN:VCALENDAR", "VERSION:2.0", *lines, "END:VCALENDAR", ""])


def read(path: Path, *lines: str) -> CalendarFile:
    """Write a calendar and read it."""
    file = path / "test.ics"
    file.write_text(calendar_text(*lines), encoding="utf-8")
    return read_calendar(file)


def week(path: Path, *lines: str, first_day: date = SAMPLE_FIRST_DAY) -> ReminderWeek:
    """Write a calendar that is at home in Berlin, and compute its week."""
    return week_of(read(path, "X-WR-TIMEZONE:Europe/Berlin", *lines), first_day)


def rings(found: ReminderWeek) -> list[str]:
    """When the reminders of a week ring."""
    return [reminder.rings_at.isoformat(timespec="minutes") for reminder in found.reminders]


def event(*lines: str, start: str = "20260330T100000", uid: str = "a@b") -> list[str]:
    """An event in Berlin with these lines."""
    return entry(f"DTSTART;TZID=Europe/Berlin:{start}", *lines, uid=uid)


def alarm(*lines: str) -> list[str]:
    """A VALARM with these lines."""
    return ["BEGIN:VALARM", *lines, "END:VALARM"]


def test_the_sample_rings_as_worked_out_by_hand() -> None:
    """Every reminder of the sample's week is found, at its local time, and no other."""
    found: dict[str, list[str]] = defaultdict(list)
    for reminder in week_of(read_calendar(SAMPLE), SAMPLE_FIRST_DAY).reminders:
        local = reminder.rings_at.isoformat(timespec="minutes")
        found[reminder.announcement.title].append(local)
    assert found == SAMPLE_RINGS


def test_ids_stay_the_same_and_are_fit_for_alarms() -> None:
    """Reading again gives the same ids; each is one of a kind and acceptable as an alarm's id."""
    first, second = (
        [reminder.id for reminder in week_of(read_calendar(SAMPLE), SAMPLE_FIRST_DAY).reminders]
        for _ in range(2)
    )
    assert first == second
    assert len(set(first)) == len(first)
    assert "VEVENT/stand-up@nora.example/20260331T071500Z/0.0" in first  # moved to 11:00


def test_an_id_survives_a_long_and_an_odd_uid(tmp_path: Path) -> None:
    """A UID that is too long or has a NUL is replaced by its digest."""
    lines = [
        *event(*ALARM, uid="x" * 600),
        *event(*ALARM, uid="y\0z"),
    ]
    ids = [reminder.id for reminder in week(tmp_path, *lines).reminders]
    assert len(set(ids)) == 2
    assert all(len(name) <= 512 and name.isprintable() for name in ids)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-PT15M", CalendarDuration(0, -900)),
        ("P1DT2H3M4S", CalendarDuration(1, 7384)),
        ("+P2W", CalendarDuration(14, 0)),
        ("pt0s", CalendarDuration(0, 0)),
    ],
)
def test_durations_keep_days_and_hours_apart(text: str, expected: CalendarDuration) -> None:
    """A day is a day of the calendar and 24 hours are hours."""
    assert CalendarDuration.from_ical(text) == expected


@pytest.mark.parametrize("text", ["", "P", "PT", "15M", "P1H", "PT1D", "P-1D", "PT1.5H", "P1D "])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """Only the forms of RFC 5545 are read; blanks around them do not matter."""
    if text.strip() == "P1D":
        assert CalendarDuration.from_ical(text) == CalendarDuration(1, 0)
    else:
        with pytest.raises(ValueError, match="is not a duration"):
            CalendarDuration.from_ical(text)


def test_days_follow_the_calendar_and_hours_the_clock() -> None:
    """Across the change a day and 24 hours differ, in both directions and at both changes."""
    spring = datetime(2026, 3, 29, 10, tzinfo=BERLIN)
    assert CalendarDuration(-1, 0).after(spring).isoformat() == "2026-03-28T10:00:00+01:00"
    assert CalendarDuration(0, -86400).after(spring).isoformat() == "2026-03-28T09:00:00+01:00"
    autumn = datetime(2026, 10, 25, 10, tzinfo=BERLIN)
    assert CalendarDuration(0, -86400).after(autumn).isoformat() == "2026-10-24T11:00:00+02:00"
    assert CalendarDuration(1, 0).after(datetime(2026, 3, 28, 2, 30, tzinfo=BERLIN)) == datetime(
        2026, 3, 29, 1, 30, tzinfo=UTC
    )


def test_a_date_begins_at_midnight_at_home() -> None:
    """All-day entries and floating times are in the home zone of the calendar."""
    assert moment(date(2026, 3, 29), BERLIN) == datetime(2026, 3, 28, 23, tzinfo=UTC)
    floating = datetime(2026, 3, 29, 12)  # noqa: DTZ001 - a floating time is what is meant
    assert moment(floating, BERLIN) == datetime(2026, 3, 29, 10, tzinfo=UTC)


def test_the_span_is_seven_days_of_the_home_zone(tmp_path: Path) -> None:
    """The week begins at midnight and ends before midnight; with the change it has 167 hours."""
    found = week(
        tmp_path,
        *event(*alarm("TRIGGER:PT0S"), start="20260327T000000", uid="first"),
        *event(*alarm("TRIGGER:PT0S"), start="20260326T235959", uid="before"),
        *event(*alarm("TRIGGER:PT0S"), start="20260402T235959", uid="last"),
        *event(*alarm("TRIGGER:PT0S"), start="20260403T000000", uid="after"),
    )
    assert rings(found) == ["2026-03-27T00:00+01:00", "2026-04-02T23:59+02:00"]
    in_utc = found.span.end.astimezone(UTC) - found.span.start.astimezone(UTC)
    assert in_utc == timedelta(hours=167)


def test_an_alarm_may_be_far_from_its_event(tmp_path: Path) -> None:
    """Events long before and after the week ring in it where their alarms say so."""
    found = week(
        tmp_path,
        *event(*alarm("TRIGGER:-P52W"), start="20270329T100000", uid="later"),
        *event(*alarm("TRIGGER:P90D"), start="20260101T100000", uid="earlier"),
        *event(*alarm("TRIGGER:-PT1H"), start="20260101T100000", uid="not now"),
    )
    assert rings(found) == ["2026-03-30T10:00+02:00", "2026-04-01T10:00+02:00"]


def test_an_instant_rings_once_for_a_whole_series(tmp_path: Path) -> None:
    """An absolute trigger of a recurring event, copied into its override, is one reminder."""
    at = alarm("TRIGGER;VALUE=DATE-TIME:20260330T080000Z", "REPEAT:1", "DURATION:PT5M")
    found = week(
        tmp_path,
        *event("RRULE:FREQ=DAILY;COUNT=9", *at, start="20260325T090000"),
        *event("RECURRENCE-ID;TZID=Europe/Berlin:20260331T090000", *at, start="20260331T120000"),
    )
    assert rings(found) == ["2026-03-30T10:00+02:00", "2026-03-30T10:05+02:00"]


def test_an_override_brings_its_own_alarms(tmp_path: Path) -> None:
    """A moved occurrence rings by its own alarms, or not at all where it has none."""
    found = week(
        tmp_path,
        *event("RRULE:FREQ=DAILY;COUNT=4", *ALARM, start="20260330T090000"),
        *event("RECURRENCE-ID;TZID=Europe/Berlin:20260331T090000", start="20260331T120000"),
        *event(
            "RECURRENCE-ID;TZID=Europe/Berlin:20260401T090000",
            *alarm("TRIGGER:-PT1H"),
            start="20260401T120000",
        ),
    )
    assert rings(found) == [
        "2026-03-30T08:50+02:00",
        "2026-04-01T11:00+02:00",
        "2026-04-02T08:50+02:00",
    ]


def test_the_newer_version_of_an_event_counts(tmp_path: Path) -> None:
    """Of two versions of an event the one with the higher SEQUENCE rings, wherever it stands."""
    found = week(
        tmp_path,
        *event("SEQUENCE:2", *alarm("TRIGGER;VALUE=DATE-TIME:20260330T080000Z")),
        *event("SEQUENCE:1", *alarm("TRIGGER;VALUE=DATE-TIME:20260331T080000Z")),
    )
    assert rings(found) == ["2026-03-30T10:00+02:00"]


def test_what_is_over_does_not_ring(tmp_path: Path) -> None:
    """Cancelled events, completed to-dos and alarms without an action are silent."""
    found = week(
        tmp_path,
        *event("STATUS:CANCELLED", *ALARM, uid="cancelled"),
        *entry("DUE:20260330T080000Z", "STATUS:COMPLETED", *ALARM, uid="done", name="VTODO"),
        *event(*alarm("ACTION:NONE", "TRIGGER:-PT10M"), uid="none"),
        *event("STATUS:CANCELLED", *alarm("TRIGGER;VALUE=DATE-TIME:20260330T080000Z"), uid="at"),
    )
    assert found.reminders == ()


def test_a_to_do_rings_before_it_is_due(tmp_path: Path) -> None:
    """To-dos count from DTSTART or DUE, and need neither for an instant."""
    found = week(
        tmp_path,
        *entry("DUE:20260330T080000Z", *ALARM, uid="due", name="VTODO"),
        *entry(
            "DTSTART:20260330T080000Z",
            "DUE:20260331T080000Z",
            *alarm("TRIGGER;RELATED=END:-PT10M"),
            uid="both",
            name="VTODO",
        ),
        *entry(*alarm("TRIGGER;VALUE=DATE-TIME:20260401T080000Z"), uid="undated", name="VTODO"),
    )
    assert rings(found) == [
        "2026-03-30T07:50+00:00",
        "2026-03-31T07:50+00:00",
        "2026-04-01T08:00+00:00",
    ]
    assert [reminder.announcement.anchor for reminder in found.reminders] == ["due"] * 3


def test_several_calendars_in_one_file_are_read(tmp_path: Path) -> None:
    """A stream of calendars is one calendar, as RFC 5545 allows."""
    lines = [
        *event(*ALARM, uid="one"),
        "END:VCALENDAR",
        "BEGIN:VCALENDAR",
        *event(*ALARM, uid="two"),
    ]
    assert len(week(tmp_path, *lines).reminders) == 2


def test_titles_are_one_printable_line(tmp_path: Path) -> None:
    """No title can steer a terminal or break the timeline."""
    found = week(tmp_path, *event("SUMMARY:a\\nb \x1b[31mred\x1b[0m " + "c" * 200, *ALARM))
    title = found.reminders[0].announcement.title
    assert title.isprintable()
    assert title.startswith("a b  [31mred")
    assert len(title) <= 80


def test_a_file_with_a_byte_order_mark_and_folded_lines_is_read(tmp_path: Path) -> None:
    """Windows writes a BOM, and long lines are folded; both are undone."""
    lines = event("SUMMARY:in two", "  parts", *ALARM)
    (tmp_path / "bom.ics").write_bytes(
        b"\xef\xbb\xbf" + calendar_text(*lines).replace("\n", "\r\n").encode()
    )
    calendar = read_calendar(tmp_path / "bom.ics")
    assert week_of(calendar, SAMPLE_FIRST_DAY).reminders[0].announcement.title == "in two parts"


def test_a_zone_that_one_file_defines_is_unknown_to_the_next(tmp_path: Path) -> None:
    """The VTIMEZONEs of a calendar are its own."""
    zone = [
        "BEGIN:VTIMEZONE",
        "TZID:Here",
        "BEGIN:STANDARD",
        "DTSTART:19700101T000000",
        "TZOFFSETFROM:+0500",
        "TZOFFSETTO:+0500",
        "END:STANDARD",
        "END:VTIMEZONE",
    ]
    here = entry("DTSTART;TZID=Here:20260330T100000", *ALARM)
    assert rings(week(tmp_path, *here, *zone)) == ["2026-03-30T09:50+05:00"]
    with pytest.raises(CalendarError, match="line 6: VEVENT 'a@b': DTSTART is in the time zone"):
        week(tmp_path, *here)


def test_too_many_reminders_are_refused(tmp_path: Path) -> None:
    """What could not ring within a minute is an error, not a demo that fails."""
    assert len(week(tmp_path, *event("RRULE:FREQ=HOURLY", *ALARM)).reminders) == 15 + 3 * 24
    minutely = event("RRULE:FREQ=MINUTELY", *ALARM)
    with pytest.raises(CalendarError, match=f"more than {MOST_REMINDERS} reminders"):
        week(tmp_path, *minutely)


MALFORMED = {
    "not a calendar": (
        "Dear diary,\ntoday I\n",
        "line 1: 'Dear diary,' is not a property of the form NAME:value",
    ),
    "something else": (
        "BEGIN:VCARD\nEND:VCARD\n",
        "line 1: 'BEGIN:VCARD' stands where BEGIN:VCALENDAR is expected",
    ),
    "empty": ("", "the file is empty"),
    "blank": ("\n\r\n\n", "the file is empty"),
    "truncated": (
        calendar_text(*event(*ALARM)).split("TRIGGER", maxsplit=1)[0],
        "line 6: VALARM of VEVENT 'a@b': the file ends before END:VALARM; is it truncated?",
    ),
    "truncated in a line": (
        calendar_text(*event(*ALARM)).rstrip()[:-3],
        "line 11: VCALENDAR: it begins on line 1 and 'END:VCALEN' stands where END:VCALENDAR",
    ),
    "an END too much": (
        calendar_text("END:VEVENT"),
        "line 3: VCALENDAR: it begins on line 1 and 'END:VEVENT' stands where END:VCALENDAR",
    ),
    "a name that could steer a terminal": (
        calendar_text("BEGIN:\x1b[31mRED", "END:RED"),
        "line 4:  [31MRED: it begins on line 3 and 'END:RED' stands where END: [31MRED is expected",
    ),
    "nested": (
        calendar_text(*["BEGIN:X-DEEP"] * 99),
        "line 13: BEGIN:X-DEEP nests more than 10 components",
    ),
    "no property": (calendar_text(*event("nonsense")), "line 6: 'nonsense' is not a property"),
    "no UID": (
        calendar_text("BEGIN:VEVENT", "DTSTART:20260330T100000Z", *ALARM, "END:VEVENT"),
        "line 3: VEVENT: it has alarms but no UID",
    ),
    "no DTSTART": (calendar_text(*entry(*ALARM)), "line 3: VEVENT 'a@b': it has no DTSTART"),
    "two DTSTARTs": (
        calendar_text(*event("DTSTART:20260330T100000Z")),
        "line 6: VEVENT 'a@b': DTSTART is given 2 times, once is allowed",
    ),
    "bad DTSTART": (
        calendar_text(*entry("DTSTART:20261332T100000")),
        "line 5: VEVENT 'a@b': DTSTART: ",
    ),
    "DTSTART that is a duration": (
        calendar_text(*entry("DTSTART:PT5M")),
        "line 5: VEVENT 'a@b': DTSTART is 'PT5M', which is neither a date nor a date-time",
    ),
    "unknown TZID": (
        calendar_text(*entry("DTSTART;TZID=Mars/Phobos:20260330T100000")),
        "line 5: VEVENT 'a@b': DTSTART is in the time zone 'Mars/Phobos', which is neither",
    ),
    "TZID that is a folder of zones": (
        calendar_text(*entry("DTSTART;TZID=Europe:20260330T100000")),
        "line 5: VEVENT 'a@b': DTSTART is in the time zone 'Europe', which is neither",
    ),
    "unknown X-WR-TIMEZONE": (
        calendar_text("X-WR-TIMEZONE:Nowhere"),
        "line 3: VCALENDAR: X-WR-TIMEZONE is 'Nowhere', which is no known time zone",
    ),
    "broken VTIMEZONE": (
        calendar_text("BEGIN:VTIMEZONE", "TZID:Here", "END:VTIMEZONE"),
        "line 3: VTIMEZONE: ",
    ),
    "broken offset": (
        calendar_text(
            "BEGIN:VTIMEZONE",
            "TZID:Here",
            "BEGIN:STANDARD",
            "DTSTART:19700101T000000",
            "TZOFFSETFROM:far",
            "TZOFFSETTO:+0100",
            "END:STANDARD",
            "END:VTIMEZONE",
        ),
        "line 7: STANDARD of VTIMEZONE: TZOFFSETFROM: ",
    ),
    "DTEND before DTSTART": (
        calendar_text(*event("DTEND;TZID=Europe/Berlin:20260330T093000")),
        "line 6: VEVENT 'a@b': DTEND (2026-03-30 09:30:00+02:00) is before DTSTART (2026-03-30",
    ),
    "DTEND before DTSTART by the time zone alone": (
        calendar_text(*event("DTEND;TZID=Asia/Tokyo:20260330T110000")),
        "line 6: VEVENT 'a@b': DTEND (2026-03-30 11:00:00+09:00) is before DTSTART",
    ),
    "DUE before DTSTART": (
        calendar_text(
            *entry("DTSTART;VALUE=DATE:20260330", "DUE;VALUE=DATE:20260329", name="VTODO")
        ),
        "line 6: VTODO 'a@b': DUE (2026-03-29) is before DTSTART (2026-03-30)",
    ),
    "a date and a date-time": (
        calendar_text(*event("DTEND;VALUE=DATE:20260331")),
        "line 6: VEVENT 'a@b': DTSTART and DTEND are a date and a date-time",
    ),
    "negative DURATION": (
        calendar_text(*event("DURATION:-PT1H")),
        "line 6: VEVENT 'a@b': DURATION is '-PT1H', which is below zero",
    ),
    "out of range": (
        calendar_text(*entry("DTSTART;TZID=Asia/Tokyo:00010101T000000", "DTEND:00010101T000001Z")),
        "line 3: VEVENT 'a@b': a date or duration in it is out of range",
    ),
    "bad RRULE": (
        calendar_text(*event("RRULE:FREQ=SOMETIMES", *ALARM)),
        "line 6: VEVENT 'a@b': RRULE: ",
    ),
    "RRULE that cannot be computed": (
        calendar_text(*event("RRULE:FREQ=DAILY;BYDAY=-1MO,+2TU;BYSETPOS=0", *ALARM)),
        "line 3: VEVENT 'a@b': when it recurs cannot be computed: ",
    ),
    "bad EXDATE": (
        calendar_text(*event("EXDATE:yesterday", *ALARM)),
        "line 6: VEVENT 'a@b': EXDATE: ",
    ),
    "another scale": (
        calendar_text("CALSCALE:JULIAN"),
        "line 3: VCALENDAR: CALSCALE is 'JULIAN', GREGORIAN is allowed",
    ),
    "no TRIGGER": (
        calendar_text(*event(*alarm("ACTION:DISPLAY"))),
        "line 6: VALARM of VEVENT 'a@b': it has no TRIGGER",
    ),
    "two TRIGGERs": (
        calendar_text(*event(*alarm("TRIGGER:-PT1M", "TRIGGER:-PT2M"))),
        "line 8: VALARM of VEVENT 'a@b': TRIGGER is given 2 times, once is allowed",
    ),
    "bad TRIGGER": (
        calendar_text(*event(*alarm("TRIGGER:soon"))),
        "line 7: VALARM of VEVENT 'a@b': TRIGGER",
    ),
    "TRIGGER on a date": (
        calendar_text(*event(*alarm("TRIGGER;VALUE=DATE:20260330"))),
        "line 7: VALARM of VEVENT 'a@b': TRIGGER is '20260330', which is neither a duration",
    ),
    "TRIGGER that is a bad duration": (
        calendar_text(*event(*alarm("TRIGGER:-P1H"))),
        "line 7: VALARM of VEVENT 'a@b': TRIGGER",
    ),
    "TRIGGER out of range": (
        calendar_text(*event(*alarm("TRIGGER:-P99999999W"))),
        "line 3: VEVENT 'a@b': when it recurs cannot be computed: ",
    ),
    "TRIGGER of nothing": (
        calendar_text(*entry(*ALARM, name="VTODO")),
        "line 7: VALARM of VTODO 'a@b': its TRIGGER is a duration, but its entry has neither",
    ),
    "RELATED to nothing": (
        calendar_text(*event(*alarm("TRIGGER;RELATED=MIDDLE:-PT1M"))),
        "line 7: VALARM of VEVENT 'a@b': TRIGGER is RELATED to 'MIDDLE', START or END is allowed",
    ),
    "REPEAT without DURATION": (
        calendar_text(*event(*alarm("TRIGGER:-PT1M", "REPEAT:2"))),
        "line 8: VALARM of VEVENT 'a@b': REPEAT is 2, but no DURATION above zero says how far",
    ),
    "REPEAT too often": (
        calendar_text(*event(*alarm("TRIGGER:-PT1M", "REPEAT:1000000000", "DURATION:PT1S"))),
        "line 8: VALARM of VEVENT 'a@b': REPEAT is '1000000000', a number from 0 to 1000",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_calendar_is_refused_with_what_is_wrong_and_where(
    tmp_path: Path, name: str
) -> None:
    """One line names the component, what is wrong with it, and the line of the file."""
    text, message = MALFORMED[name]
    file = tmp_path / "bad.ics"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(CalendarError) as caught:
        week_of(read_calendar(file), SAMPLE_FIRST_DAY)
    assert str(caught.value).startswith(message)
    assert str(caught.value).isprintable()


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    """The first byte that is not UTF-8 is named, with its line."""
    file = tmp_path / "bad.ics"
    file.write_bytes(calendar_text(*event("SUMMARY:ok")).encode().replace(b"ok", b"\xff\xfe"))
    with pytest.raises(CalendarError, match=r"^line 6: the byte 0xff is not UTF-8 text$"):
        read_calendar(file)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A directory, a missing file, a special file and a huge one each get a reason."""
    with pytest.raises(CalendarError, match="it is a directory"):
        read_calendar(tmp_path)
    with pytest.raises(CalendarError, match="it cannot be read: No such file"):
        read_calendar(tmp_path / "missing.ics")
    with pytest.raises(CalendarError, match=r"it cannot be read: .*null"):
        read_calendar(tmp_path / "a\0b")
    with pytest.raises(CalendarError, match="it is not a regular file"):
        read_calendar(type(tmp_path)("/dev/null"))
    huge = tmp_path / "huge.ics"
    with huge.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(CalendarError, match="it is larger than"):
        read_calendar(huge)
