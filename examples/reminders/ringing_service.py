"""The application: enrols a calendar's reminders as durable alarms, and rings them.

This is the module to read for how `trio_alarms` is used; all the others are about calendars,
about killing a process, and about showing what happens.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import trio

from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmHost,
    AlarmRegistration,
    AlarmService,
    DispatchOptions,
    ScheduleConfiguration,
    open_host,
)

from .calendar_reminders import Announcement
from .ring_log import Enrolment, Ring

if TYPE_CHECKING:
    from pathlib import Path

    from .accelerated_clock import AcceleratedClock
    from .calendar_reminders import ReminderWeek
    from .ring_log import RingLog

_TABLE_CHECK_SECONDS = 0.1


class Reminders(AlarmService, key="examples/reminders"):
    """The alarms of this service: one for each ring of a reminder, with what to announce."""

    ring = Alarm(Announcement)


def ringing_into(log: RingLog) -> AlarmRegistration:
    """The service's handlers, for a host: ringing is a line in the log."""

    async def on_ring(event: AlarmDue[Announcement]) -> None:
        ring = Ring(os.getpid(), event.id, event.scheduled_at, event.payload)
        await trio.to_thread.run_sync(log.append, ring)

    return Reminders.handlers(
        Reminders.ring.handled_by(on_ring),
        options=DispatchOptions(limit=500, concurrency=8),
    )


def accelerated_configuration(acceleration: int) -> ScheduleConfiguration:
    """The default policy at this acceleration: its durations count in the clock's own time.

    A guard of one second would be over within microseconds, so each duration is as many seconds
    of the clock as pass while the default passes for real.
    """
    return ScheduleConfiguration(
        in_flight_recovery=1 * acceleration,
        minimum_retry_delay=1 * acceleration,
        parked_retry_delay=max(3600, 10 * acceleration),
    )


async def enrol(host: AlarmHost, week: ReminderWeek) -> int:
    """Schedule the week's reminders and mark the calendar as enrolled, in one transaction.

    When it returns, both are durable; a kill before that leaves neither. Where the mark stands
    already, nothing is scheduled.

    Returns:
        How many reminders were scheduled.
    """
    mark = (week.calendar_digest, week.first_day.isoformat())
    async with host.service(Reminders).transaction() as tx:
        await tx.execute(
            "CREATE TABLE IF NOT EXISTS enrolled_calendars"
            " (digest TEXT, first_day TEXT, PRIMARY KEY (digest, first_day)) WITHOUT ROWID"
        )
        if await tx.execute(
            "SELECT 1 FROM enrolled_calendars WHERE digest = ? AND first_day = ?", mark
        ):
            return 0
        for reminder in week.reminders:
            await tx.schedule_alarm(
                Reminders.ring,
                reminder.id,
                run_at=reminder.rings_at,
                payload=reminder.announcement,
            )
        await tx.execute("INSERT INTO enrolled_calendars VALUES (?, ?)", mark)
    return len(week.reminders)


async def serve(
    database: Path,
    clock: AcceleratedClock,
    log: RingLog,
    week: ReminderWeek,
    *,
    until_all_have_rung: bool,
) -> None:
    """Enrol the week's reminders, unless that is done, and ring each when it is due.

    Runs until it is cancelled or killed or, if asked to, until no alarm is left in the table.
    """
    async with open_host(
        database,
        alarms=ringing_into(log),
        clock=clock,
        configuration=accelerated_configuration(clock.acceleration),
    ) as host:
        enrolled = await enrol(host, week)
        log.append(Enrolment(os.getpid(), enrolled))
        # The table has no event to wait for: other hosts and processes may change it too.
        while not until_all_have_rung or await host.scheduler.list_alarms(limit=1):  # noqa: ASYNC110 - a table sets no event
            await trio.sleep(_TABLE_CHECK_SECONDS)
