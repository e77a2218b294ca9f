"""The reminders example: its clock, its log, its supervisor, its command, and all of it."""

from __future__ import annotations

import io
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio
import trio.testing
from rich.console import Console

import trio_alarms
from examples.reminders.__main__ import main
from examples.reminders.accelerated_clock import AcceleratedClock
from examples.reminders.calendar_file import read_calendar
from examples.reminders.calendar_reminders import Announcement, Reminder, ReminderWeek, week_of
from examples.reminders.ring_log import (
    Enrolment,
    Ring,
    RingLogReader,
    open_ring_log,
)
from examples.reminders.ringing_process import RingingProcess, parse_command
from examples.reminders.ringing_service import (
    Reminders,
    accelerated_configuration,
    enrol,
    ringing_into,
)
from examples.reminders.sample import SAMPLE, SAMPLE_FIRST_DAY
from examples.reminders.supervisor import Supervisor
from examples.reminders.tally import Tally
from examples.reminders.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trio.testing import MockClock

ROOT = Path(__file__).resolve().parents[2]
DUE = datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
DEMO_SECONDS = 60
LAST_OF_THE_SAMPLE = "VEVENT/yoga@nora.example/20260402T173000Z/0.0"


def announcement(title: str = "Tea", rings_at: datetime = DUE, **changes: Any) -> Announcement:
    """What a reminder says, at the start of its event unless changed."""
    said = Announcement(title, rings_at, "start", rings_at, all_day=False, time_zone="UTC")
    return attrs.evolve(said, **changes)


def reminders(count: int) -> list[Reminder]:
    """Reminders a minute apart."""
    return [
        Reminder(str(index), announcement(rings_at=DUE + timedelta(minutes=index)))
        for index in range(count)
    ]


def sample_week() -> ReminderWeek:
    """The week that the demo rings by default."""
    return week_of(read_calendar(SAMPLE), SAMPLE_FIRST_DAY)


# The clock


async def test_the_clock_runs_ahead_and_is_never_early(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sleep ends when the calendar shows its deadline, after the real time that this takes."""
    monkeypatch.setattr(time, "time_ns", lambda: round(trio.current_time() * 1_000_000_000))
    clock = AcceleratedClock.starting_at(DUE, 3600)
    started_ms = clock.now_ms()
    assert started_ms == round(DUE.timestamp() * 1000)
    for hours in (1, 5):
        deadline = started_ms + hours * 3_600_000
        await clock.sleep_until_ms(deadline)
        assert clock.now_ms() >= deadline
        assert clock.real_seconds_until(deadline) == pytest.approx(0, abs=1e-6)


async def test_the_clock_always_checkpoints() -> None:
    """A deadline that is past is a checkpoint too."""
    clock = AcceleratedClock.starting_at(DUE, 3600)
    with trio.testing.assert_checkpoints():
        await clock.sleep_until_ms(0)


def test_the_clock_goes_on_in_another_process() -> None:
    """Its text is the whole clock: who reads it reads the same time."""
    clock = AcceleratedClock.starting_at(DUE, 43_200)
    assert AcceleratedClock.from_text(clock.to_text()) == clock


# The log


def test_each_record_is_read_once_and_only_when_complete(tmp_path: Path) -> None:
    """A reader that follows the log gets each record as it was written, once."""
    reader = RingLogReader(tmp_path / "log")
    assert reader.new_records() == []
    ring = Ring(7, "VEVENT/ä/1", DUE, announcement("Zoë's\ntea"))
    with open_ring_log(tmp_path / "log") as log:
        log.append(Enrolment(7, 1))
        assert reader.new_records() == [Enrolment(7, 1)]
        log.append(ring)
        log.append(ring)
        with (tmp_path / "log").open("ab") as file:
            file.write(b'{"process": 7, ')
        assert reader.new_records() == [ring, ring]
        assert reader.new_records() == []


def test_a_line_torn_by_a_kill_spoils_no_other(tmp_path: Path) -> None:
    """The next process ends the torn line, and readers skip it."""
    path = tmp_path / "log"
    path.write_bytes(b'{"process": 7, "remi')
    with open_ring_log(path) as log:
        log.append(Enrolment(8, 0))
    assert RingLogReader(path).new_records() == [Enrolment(8, 0)]


def test_each_record_is_fsynced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appending returns after the record, written in one piece, has been fsynced."""
    calls: list[str] = []

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: object) -> object:
            calls.append(name)
            return function(*arguments)

        return call

    with open_ring_log(tmp_path / "log") as log:
        monkeypatch.setattr(os, "write", noted("write", os.write))
        monkeypatch.setattr(os, "fsync", noted("fsync", os.fsync))
        log.append(Enrolment(7, 1))
    assert calls == ["write", "fsync"]


# Tally and timeline


def test_the_tally_tells_rung_twice_lost_and_unexpected_apart() -> None:
    """Each expected reminder is rung or lost, and what rings besides is noticed."""
    tally = Tally(reminders(4))
    assert [tally.count(name) for name in ("0", "1", "1", "3", "stranger")] == [1, 1, 2, 1, 1]
    assert tally.rung == ["0", "1", "3"]
    assert tally.rung_twice == ["1"]
    assert [reminder.id for reminder in tally.lost] == ["2"]
    assert tally.unexpected == ["stranger"]


def shown(show: Callable[[Timeline], None], *, terminal: bool = False) -> str:
    """What the timeline prints."""
    output = io.StringIO()
    show(Timeline(Console(file=output, width=40, force_terminal=terminal)))
    return output.getvalue()


def test_a_ring_is_one_plain_line_in_local_time() -> None:
    """Without a terminal there are no colours and no wrapping; titles are never markup."""
    said = announcement(
        "[red]Tea[/red] with a title that is longer than the console is wide",
        rings_at=datetime.fromisoformat("2026-03-29T09:45+02:00"),
        anchor_at=datetime.fromisoformat("2026-03-29T10:00+02:00"),
        time_zone="Europe/Berlin",
    )
    ring = Ring(1, "a", said.rings_at, said)
    line = shown(lambda timeline: timeline.rang(ring, seconds=1.25, again=False, late=False))
    assert line == (
        "  1.2 s  Sun 29 Mar 09:45 +02:00  Europe/Berlin      [red]Tea[/red] with a title that is"
        " longer than the console is wide, 15 min before the start\n"
    )
    assert "\x1b[" in shown(
        lambda timeline: timeline.rang(ring, seconds=1.25, again=False, late=False), terminal=True
    )


def test_the_columns_have_a_heading() -> None:
    """The heading stands over the columns of the rings."""
    heading = shown(lambda timeline: timeline.begins(sample_week(), 14)).splitlines()[-1]
    ring = Ring(1, "a", DUE, announcement())
    line = shown(lambda timeline: timeline.rang(ring, seconds=1.25, again=False, late=False))
    assert heading.index("calendar time") == line.index("Sun 29 Mar")
    assert heading.index("zone") == line.index("UTC")
    assert heading.index("reminder") == line.index("Tea")
    assert heading.startswith("elapsed ")


@pytest.mark.parametrize(
    ("rings", "end"),
    [
        ("0 1", "lost: 0\n\nNothing was lost through the kill: all 2 reminders rang.\n"),
        ("0 1 1", "rang. 1 rang again, since the kill came before the ring was acknowledged.\n"),
        ("0", "lost: 1\n  Sun 29 Mar 01:31 +00:00  Tea\n"),
        ("0 1 2", "not expected, but rung: 1\nlost: 0\n"),
    ],
)
def test_the_figures_are_explained_when_nothing_was_lost(rings: str, end: str) -> None:
    """The demo ends with a sentence on what the figures mean, or with what was lost."""
    tally = Tally(reminders(2))
    for reminder_id in rings.split():
        tally.count(reminder_id)
    assert shown(lambda timeline: timeline.ends(tally)).endswith(end)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"anchor_at": DUE}, ", at the start"),
        ({"anchor_at": DUE, "anchor": "due"}, ", it is due now"),
        ({"anchor_at": DUE - timedelta(minutes=90), "anchor": "end"}, ", 1 h 30 min after the end"),
        ({"anchor_at": DUE + timedelta(days=3, hours=2)}, ", 3 d 2 h before the start"),
        ({"anchor_at": DUE + timedelta(hours=23)}, ", 23 h before the start"),
        ({"anchor_at": DUE, "all_day": True}, "Tea (all day), at the start"),
    ],
)
def test_a_ring_says_how_it_relates_to_its_event(changes: dict[str, Any], words: str) -> None:
    """Before or after, the start or the end, in lengths that people use."""
    ring = Ring(1, "a", DUE, announcement(**changes))
    line = shown(lambda timeline: timeline.rang(ring, seconds=0, again=False, late=False))
    assert line.endswith(words + "\n")


# The supervisor, with processes that behave as told

PUPPET = """
import sys, time
from pathlib import Path
from examples.reminders.calendar_file import read_calendar
from examples.reminders.calendar_reminders import week_of
from examples.reminders.ring_log import Enrolment, Ring, RingLogReader, open_ring_log
from examples.reminders.ringing_process import parse_command

process = parse_command(sys.argv[2:])
week = week_of(read_calendar(process.calendar), process.first_day)
before = [r for r in RingLogReader(process.log).new_records() if isinstance(r, Ring)]
half = len(week.reminders) // 2
def ring(log, reminders):
    for reminder in reminders:
        log.append(Ring(1, reminder.id, reminder.rings_at, reminder.announcement))
with open_ring_log(process.log) as log:
    if sys.argv[1] == "fails": sys.exit(3)
    log.append(Enrolment(1, 0 if before else len(week.reminders)))
    if not before:
        ring(log, week.reminders[:half])
        time.sleep(60)
    if sys.argv[1] == "rings one twice": ring(log, week.reminders[half - 1:])
    if sys.argv[1] == "loses one": ring(log, week.reminders[half:-1])
    if sys.argv[1] == "never ends":
        ring(log, week.reminders[half:-1])
        time.sleep(60)
"""


@attrs.frozen
class Puppet(RingingProcess):
    """A process that only writes the log, in the way that it is told to."""

    behaviour: str = ""

    def command(self) -> list[str]:
        """The same arguments, for the script above."""
        python, _, _, *arguments = super().command()
        return [python, "-c", PUPPET, self.behaviour, *arguments]


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("behaviour", "rung", "twice", "lost"),
    [
        ("rings one twice", 52, 1, 0),
        ("loses one", 51, 0, 1),
        ("never ends", 51, 0, 1),
        ("fails", 0, 0, 52),
    ],
)
async def test_the_supervisor_counts_what_the_log_says(
    tmp_path: Path, behaviour: str, rung: int, twice: int, lost: int
) -> None:
    """Whatever a process does, the wait for it has an end, and the log decides what has rung."""
    week = sample_week()
    tally = Tally(week.reminders)
    output = io.StringIO()
    clock = AcceleratedClock.starting_at(week.span.end, 40_000)
    puppet = Puppet(SAMPLE, SAMPLE_FIRST_DAY, clock, tmp_path, behaviour=behaviour)
    supervisor = Supervisor(puppet, tally, Timeline(Console(file=output)), patience=3)
    with trio.fail_after(DEMO_SECONDS):
        await supervisor.ring_through_a_kill()
    counts = (len(tally.rung), len(tally.rung_twice), len(tally.lost))
    assert counts == (rung, twice, lost)
    assert ("ended by itself with exit code 3" in output.getvalue()) == (behaviour == "fails")
    assert ("SIGKILL" in output.getvalue()) == (behaviour != "fails")
    assert ("[again: " in output.getvalue()) == bool(twice)


def test_the_command_line_of_the_process_says_all(tmp_path: Path) -> None:
    """What the second process is told is what the first was told."""
    clock = AcceleratedClock.starting_at(DUE, 40_000)
    process = RingingProcess(SAMPLE, date(2026, 3, 27), clock, tmp_path, until_all_have_rung=True)
    assert parse_command(process.command()[3:]) == process


# The application


async def test_enrolling_is_all_or_nothing_and_happens_once(tmp_path: Path) -> None:
    """The mark and the alarms are one commit, and where the mark is nothing is enrolled (R10)."""
    week = sample_week()
    bad = attrs.evolve(week, reminders=(*week.reminders, Reminder("x" * 600, announcement())))
    with open_ring_log(tmp_path / "log") as log:
        async with trio_alarms.open_host(
            tmp_path / "test.db", alarms=ringing_into(log), driver=False
        ) as host:
            with pytest.raises(trio_alarms.InvalidAlarmRefError):
                await enrol(host, bad)
            assert await host.scheduler.list_alarms() == []
            assert await enrol(host, week) == 52
            await host.service(Reminders).cancel_alarm(Reminders.ring, LAST_OF_THE_SAMPLE)
            assert await enrol(host, week) == 0
            assert len(await host.scheduler.list_alarms()) == 51
            other_week = attrs.evolve(week, first_day=date(2026, 4, 3))
            assert await enrol(host, other_week) == 52


def test_the_policy_counts_in_the_clock_s_own_time() -> None:
    """Guards and retries take as long for real as they do without the acceleration (R1, R18)."""
    policy = accelerated_configuration(43_200)
    assert policy.in_flight_recovery == 43_200
    assert policy.minimum_retry_delay == 43_200
    assert accelerated_configuration(1).parked_retry_delay == 3600


# The command


def run_demo(*arguments: str) -> subprocess.Popen[str]:
    """Start the demo as a user does."""
    return subprocess.Popen(
        [sys.executable, "-m", "examples.reminders", *arguments],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.real_time
def test_the_demo_loses_nothing_through_a_kill(tmp_path: Path) -> None:
    """The sample's week rings through a SIGKILL: enrolled once, and nothing lost (R52)."""
    started = time.monotonic()
    demo = run_demo("--seconds", "5", "--directory", str(tmp_path / "kept"))
    output, errors = demo.communicate(timeout=DEMO_SECONDS)
    assert time.monotonic() - started < DEMO_SECONDS
    assert (demo.returncode, errors) == (0, "")
    assert "\nexpected: 52\nrung: 52\nrung twice: " in output
    assert "\nlost: 0\n\nNothing was lost through the kill: all 52 reminders rang." in output
    assert "SIGKILL" in output
    assert "Sun 29 Mar 03:30 +02:00  Europe/Berlin      Check the nightly backup" in output
    records = RingLogReader(tmp_path / "kept" / "rings.log").new_records()
    enrolments = [record for record in records if isinstance(record, Enrolment)]
    rings = [record for record in records if isinstance(record, Ring)]
    assert [enrolment.reminders for enrolment in enrolments] == [52, 0]
    by_process = [
        {ring.reminder_id for ring in rings if ring.process == enrolment.process}
        for enrolment in enrolments
    ]
    assert len(by_process[0]) >= 26
    assert by_process[1]
    assert set.union(*by_process) == {reminder.id for reminder in sample_week().reminders}


@pytest.mark.real_time
def test_a_row_that_is_removed_is_reported_as_lost(tmp_path: Path) -> None:
    """Evidence is the log: an alarm that vanished from the table is lost, and the exit code 1."""
    demo = run_demo("--seconds", "6", "--directory", str(tmp_path / "kept"))
    wait_for_enrolment(tmp_path / "kept")
    assert remove_alarm(tmp_path / "kept" / "reminders.db", LAST_OF_THE_SAMPLE) == 1
    output, errors = demo.communicate(timeout=DEMO_SECONDS)
    assert (demo.returncode, errors) == (1, "")
    assert "\nrung: 51\n" in output
    assert output.endswith("\nlost: 1\n  Thu 02 Apr 19:00 +02:00  Yoga (summer hours)\n")


def wait_for_enrolment(directory: Path) -> Enrolment:
    """Wait until the demo that keeps its files there has enrolled the calendar."""
    reader = RingLogReader(directory / "rings.log")
    give_up = time.monotonic() + DEMO_SECONDS
    while time.monotonic() < give_up:
        for record in reader.new_records():
            if isinstance(record, Enrolment):
                return record
        time.sleep(0.02)
    raise TimeoutError


def remove_alarm(database: Path, alarm_id: str) -> int:
    """Remove the rows of an alarm behind the scheduler's back; returns how many there were."""
    with closing(sqlite3.connect(database, timeout=10)) as connection, connection:
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        removed = 0
        for (table,) in tables.fetchall():
            columns = connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
            if {("tag",), ("id",), ("run_at",)} <= set(columns.fetchall()):
                cursor = connection.execute(f'DELETE FROM "{table}" WHERE id = ?', (alarm_id,))
                removed += cursor.rowcount
        return removed


@pytest.mark.real_time
def test_hundreds_of_reminders_end_in_time(tmp_path: Path) -> None:
    """A calendar with 600 reminders, many at one instant, rings whole through the kill."""
    lines = ["BEGIN:VCALENDAR", "X-WR-TIMEZONE:Europe/Berlin"]
    for number in range(300):
        start = f"202603{27 + number % 5}T{8 + number % 3:02}0000"
        alarm = ["BEGIN:VALARM", "TRIGGER:-PT5M", "REPEAT:1", "DURATION:PT5M", "END:VALARM"]
        lines += ["BEGIN:VEVENT", f"UID:{number}", f"DTSTART:{start}", *alarm, "END:VEVENT"]
    (tmp_path / "many.ics").write_text("\n".join([*lines, "END:VCALENDAR", ""]), encoding="utf-8")
    demo = run_demo(str(tmp_path / "many.ics"), "--from", "2026-03-27", "--seconds", "5")
    output, errors = demo.communicate(timeout=DEMO_SECONDS)
    assert (demo.returncode, errors) == (0, "")
    assert "\nexpected: 600\nrung: 600\n" in output
    assert "SIGKILL" in output
    assert "\nlost: 0\n\nNothing was lost" in output


@pytest.fixture
def heeding_interrupts() -> Iterator[None]:
    """Children take SIGINT even where whoever runs the tests ignores it, as `nohup` and CI do."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.real_time
@pytest.mark.usefixtures("heeding_interrupts")
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path) -> None:
    """Ctrl-C ends the demo without a traceback and takes the ringing process along."""
    demo = run_demo("--directory", str(tmp_path / "kept"))
    enrolment = wait_for_enrolment(tmp_path / "kept")
    demo.send_signal(signal.SIGINT)
    _, errors = demo.communicate(timeout=DEMO_SECONDS)
    assert demo.returncode == 130
    assert errors == "interrupted; the ringing process has been killed\n"
    with pytest.raises(ProcessLookupError):
        os.kill(enrolment.process, 0)


def test_a_malformed_calendar_ends_the_command_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the file and the line, the exit code is 2, and nothing is stored."""
    bad = tmp_path / "bad.ics"
    bad.write_text(SAMPLE.read_text(encoding="utf-8")[:3000], encoding="utf-8")
    kept = tmp_path / "kept"
    assert main([str(bad), "--directory", str(kept)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {bad}: line ")
    assert captured.err.count("\n") == 1
    assert not kept.exists()


def test_a_week_without_reminders_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is nothing to ring and nothing to lose, and nothing is stored."""
    kept = tmp_path / "kept"
    assert main([str(SAMPLE), "--from", "1990-01-01", "--directory", str(kept)]) == 0
    output = capsys.readouterr().out
    assert "no reminders from Mon 01 Jan 1990 to Sun 07 Jan 1990" in output
    assert output.endswith("expected: 0\nrung: 0\nrung twice: 0\nlost: 0\n")
    assert not kept.exists()


def test_a_user_s_calendar_starts_today(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --from the seven days of a user's file begin today; those of the sample never do."""
    mine = tmp_path / "mine.ics"
    mine.write_text("BEGIN:VCALENDAR\nX-WR-TIMEZONE:Asia/Tokyo\nEND:VCALENDAR\n", encoding="utf-8")
    before = datetime.now(UTC) + timedelta(hours=9)
    assert main([str(mine)]) == 0
    after = datetime.now(UTC) + timedelta(hours=9)
    output = capsys.readouterr().out
    assert any(f"from {day:%a %d %b %Y} to" in output for day in (before, after))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "tomorrow"], "argument --from: 'tomorrow' is not a date such as 2026-03-27"),
        (["--from", "9999-12-31"], "argument --from: 9999-12-31 is not between"),
        (["--seconds", "nan"], "argument --seconds: 'nan' is not a number from 1 to 30"),
        (["--directory", "."], "argument --directory: '.' exists and is not an empty directory"),
    ],
)
def test_a_wrong_argument_is_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong argument ends the command with exit code 2 and says what is allowed."""
    with pytest.raises(SystemExit) as exited:
        main(arguments)
    assert exited.value.code == 2
    assert message in capsys.readouterr().err
