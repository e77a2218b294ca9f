"""Shows what happens as it happens, with rich: coloured in a terminal, plain elsewhere."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

    from .calendar_reminders import Announcement, ReminderWeek
    from .ring_log import Enrolment, Ring
    from .tally import Tally

_MOST_HOURS = 48
_TIME_WIDTH = len("Sun 29 Mar 03:30 +02:00")
_ZONE_WIDTH = 18
_ANCHORS = {"start": "the start", "end": "the end", "due": "it is due"}


class Timeline:
    """Prints the demo; titles are shown as they are and never as markup."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def begins(self, week: ReminderWeek, seconds: float) -> None:
        """The calendar has been read."""
        self._line(week.calendar_title, style="bold")
        self._line(
            f"{len(week.reminders)} reminders {_days(week)}; the seven days pass in"
            f" {seconds:g} seconds"
        )
        self._line(
            "In the order of ringing. Elapsed: real seconds since the start. Calendar time: in the"
            " zone of the reminder, with its offset from UTC, so mixed zones look out of order."
        )
        self._line("")
        self._line(
            f"elapsed  {'calendar time':<{_TIME_WIDTH}}  {'zone':<{_ZONE_WIDTH}} reminder", "bold"
        )

    def nothing_to_ring(self, week: ReminderWeek) -> None:
        """The calendar has no reminder in these days."""
        self._line(
            f"{week.calendar_title}: no reminders {_days(week)}, so there is nothing to ring;"
            " --from chooses other days"
        )

    def enrolled(self, record: Enrolment) -> None:
        """A process is ready."""
        if record.reminders:
            self._event(
                f"process {record.process} enrolled {record.reminders} reminders and marked the"
                " calendar, in one transaction"
            )
        else:
            self._event(
                f"process {record.process} sees that the calendar is enrolled: nothing is"
                " enrolled again"
            )

    def rang(self, ring: Ring, *, seconds: float, again: bool, late: bool) -> None:
        """A reminder rang, `seconds` after the start of the demo."""
        announcement = ring.announcement
        line = Text()
        line.append(f"{seconds:5.1f} s  ", style="dim")
        line.append(_local_time(announcement), style="cyan")
        line.append(f"  {announcement.time_zone:<{_ZONE_WIDTH}} ", style="dim")
        line.append(announcement.title, style="bold")
        line.append(" (all day)" if announcement.all_day else "")
        line.append(", " + _relation(announcement))
        if again:
            line.append("  [again: the kill came before it was acknowledged]", style="yellow")
        elif late:
            line.append("  [late: nobody was there when it was due]", style="yellow")
        self._console.print(line, soft_wrap=True)

    def killed(self, process: int, rung: int, expected: int) -> None:
        """The process was killed."""
        self._event(f"SIGKILL: process {process} is gone; {rung} of {expected} have rung", "red")

    def restarted(self, process: int) -> None:
        """It runs again."""
        self._event(f"started again as process {process}", "green")

    def failed(self, process: int, code: int) -> None:
        """A process ended by itself with an error."""
        self._event(f"process {process} ended by itself with exit code {code}", "red")

    def ends(self, tally: Tally) -> None:
        """The result: four counts, what was lost by name, and what they mean."""
        self._line("")
        self._line(f"expected: {len(tally.expected)}")
        self._line(f"rung: {len(tally.rung)}")
        self._line(f"rung twice: {len(tally.rung_twice)}")
        if tally.unexpected:
            self._line(f"not expected, but rung: {len(tally.unexpected)}", "bold red")
        self._line(f"lost: {len(tally.lost)}", "bold red" if tally.lost else "bold green")
        for reminder in tally.lost:
            announcement = reminder.announcement
            self._line(f"  {_local_time(announcement)}  {announcement.title}", "red")
        if tally.expected and not tally.lost and not tally.unexpected:
            self._line("")
            self._line(_conclusion(tally), "green")

    def _event(self, text: str, style: str = "magenta") -> None:
        self._line(f"-- {text}", style)

    def _line(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)


def _days(week: ReminderWeek) -> str:
    last_day = week.first_day + timedelta(days=6)
    return f"from {week.first_day:%a %d %b %Y} to {last_day:%a %d %b %Y}"


def _conclusion(tally: Tally) -> str:
    """What the counts say when nothing was lost."""
    twice = len(tally.rung_twice)
    again = f" {twice} rang again, since the kill came before the ring was acknowledged."
    return (
        f"Nothing was lost through the kill: all {len(tally.expected)} reminders rang."
        f"{again if twice else ''}"
    )


def _local_time(announcement: Announcement) -> str:
    """When it rings, on a clock in its time zone, with the offset that the zone has then."""
    rings_at = announcement.rings_at
    return f"{rings_at:%a %d %b %H:%M} {rings_at.isoformat()[-6:]}"


def _relation(announcement: Announcement) -> str:
    """How the ring relates to what it reminds of, such as `15 min before the start`."""
    anchor = _ANCHORS[announcement.anchor]
    # Within one zone Python subtracts wall clocks; the time that passes is wanted.
    ahead = announcement.anchor_at.astimezone(UTC) - announcement.rings_at.astimezone(UTC)
    if not ahead:
        return "it is due now" if announcement.anchor == "due" else f"at {anchor}"
    return f"{_length(abs(ahead))} {'before' if ahead > timedelta(0) else 'after'} {anchor}"


def _length(length: timedelta) -> str:
    minutes, seconds = divmod(round(length.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24) if hours >= _MOST_HOURS else (0, hours)
    parts = ((days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s"))
    return " ".join(f"{count} {unit}" for count, unit in parts if count)
