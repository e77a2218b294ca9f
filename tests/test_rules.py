"""The pure rules, each with its numbers, and what holds whatever the numbers are."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import attrs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trio_alarms._configuration import DEFAULT_CONFIGURATION, ResolvedConfiguration
from trio_alarms._model import NO_PROGRESS, AlarmRef, AlarmRow, Lifecycle
from trio_alarms._rules import (
    Circumstances,
    ScheduleRequest,
    complete,
    ensure,
    fail,
    retry_delay,
    schedule,
    schedule_earlier,
)
from trio_alarms._store import _alarms, _schema
from trio_alarms._time import MAX_INSTANT_MS, MIN_INSTANT_MS

HOUR_MS = 3_600_000
OLD, NEW = b"old revision", b"new revision"
REF, OTHER = AlarmRef("bill", "7"), AlarmRef("bill", "8")

REQUEST = ScheduleRequest(
    ref=REF, lifecycle="automatic", run_at=500, repeat_every=None, progress=None, payload='"new"'
)
ROW = AlarmRow(
    ref=REF,
    lifecycle="automatic",
    run_at=0,
    wake_at=0,
    retry_at=None,
    repeat_every=60_000,
    progress=NO_PROGRESS,
    attempts=0,
    parked=False,
    revision=OLD,
    payload='"old"',
)
MANUAL_REQUEST = attrs.evolve(REQUEST, lifecycle="manual")
MANUAL_ROW = attrs.evolve(ROW, lifecycle="manual", repeat_every=None)


def backing_off(row: AlarmRow = ROW, *, attempts: int = 3, parked: bool = False) -> AlarmRow:
    """A row with attempts, whose retry is due at 9,000."""
    return attrs.evolve(row, attempts=attempts, parked=parked, retry_at=9_000, wake_at=9_000)


def circumstances(
    source: AlarmRow | None = None,
    *,
    now: int = 100,
    in_hand: bool = False,
    configuration: ResolvedConfiguration = DEFAULT_CONFIGURATION,
) -> Circumstances:
    """Outside of any handling unless there is a source."""
    return Circumstances(now, configuration, NEW, source=source, in_hand=in_hand)


def failed(
    row: AlarmRow,
    *,
    now: int = 100,
    initial: int | None = None,
    configuration: ResolvedConfiguration = DEFAULT_CONFIGURATION,
) -> AlarmRow:
    """The row after one more failure."""
    return fail(row, now=now, configuration=configuration, revision=NEW, initial=initial)


def completed(
    row: AlarmRow, *, now: int = 100, configuration: ResolvedConfiguration = DEFAULT_CONFIGURATION
) -> AlarmRow | None:
    """The row after its occurrence was handled."""
    return complete(row, now=now, configuration=configuration, revision=NEW)


def accounts(row: AlarmRow | None) -> tuple[int, bool, int | None]:
    """Attempts, parking and retry deadline of a row that is there."""
    assert row is not None
    return (row.attempts, row.parked, row.retry_at)


# Delays


def test_delays_double_and_then_park_for_an_hour() -> None:
    """By default 1, 2, 4, 8, 16, 32 and 64 s, then hourly (R7)."""
    delays = [
        retry_delay(attempts, parked=attempts >= 8, configuration=DEFAULT_CONFIGURATION)
        for attempts in range(1, 10)
    ]
    assert delays == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, HOUR_MS, HOUR_MS]


@pytest.mark.parametrize(
    ("initial", "attempts", "delay"),
    [
        (None, 3, 4_000),
        (0, 3, 4_000),
        (999, 1, 1_000),
        (1_001, 1, 1_001),
        (5_000, 3, 20_000),
        (HOUR_MS + 1, 1, HOUR_MS),
        (86_400_000, 9, HOUR_MS),
    ],
)
def test_an_initial_delay_counts_from_the_minimum_up_to_the_parked_delay(
    initial: int | None, attempts: int, delay: int
) -> None:
    """A first delay is never under `minimum_retry_delay`, and no delay over the parked one (R7)."""
    found = retry_delay(
        attempts, parked=False, configuration=DEFAULT_CONFIGURATION, initial=initial
    )
    assert found == delay


@pytest.mark.parametrize("attempts", [10_000, 2**31, 2**63 - 1])
def test_a_stored_count_of_any_size_delays_by_the_cap(attempts: int) -> None:
    """Ten thousand attempts and more overflow nothing (R7, C16)."""
    configuration = attrs.evolve(DEFAULT_CONFIGURATION, unchanged_attempt_budget=2**63 - 1)
    assert retry_delay(attempts, parked=False, configuration=configuration) == HOUR_MS
    row = failed(backing_off(attempts=attempts), configuration=configuration)
    assert row.retry_at == 100 + HOUR_MS


def test_a_parked_alarm_waits_the_parked_delay_whatever_its_first_delay() -> None:
    """Parked means the parked delay, at any count (R7)."""
    for attempts in (1, 8, 10_000):
        found = retry_delay(
            attempts, parked=True, configuration=DEFAULT_CONFIGURATION, initial=5_000
        )
        assert found == HOUR_MS


# Failing


def test_a_failure_charges_one_attempt_and_leaves_the_deadline() -> None:
    """Attempts grow by one, the retry is a delay from now, `run_at` stays (R28)."""
    assert failed(ROW) == attrs.evolve(ROW, attempts=1, retry_at=1_100, wake_at=1_100, revision=NEW)


def test_the_failure_that_reaches_the_budget_parks() -> None:
    """The eighth unchanged attempt waits for an hour (R7, R28)."""
    assert accounts(failed(backing_off(attempts=6))) == (7, False, 100 + 64_000)
    assert accounts(failed(backing_off(attempts=7))) == (8, True, 100 + HOUR_MS)


def test_a_parked_alarm_that_fails_again_is_charged_no_more() -> None:
    """Parked stays parked with its count, an hour later (R28)."""
    assert accounts(failed(backing_off(attempts=2, parked=True))) == (2, True, 100 + HOUR_MS)


def test_a_stored_count_above_the_budget_stays_and_parks() -> None:
    """A budget that was lowered parks at the next failure and rewrites no count (R28)."""
    lowered = attrs.evolve(DEFAULT_CONFIGURATION, unchanged_attempt_budget=2)
    assert accounts(failed(backing_off(attempts=5), configuration=lowered)) == (
        5,
        True,
        100 + HOUR_MS,
    )


def test_a_raised_budget_does_not_resume_what_is_parked() -> None:
    """Parked rows stay parked under a larger budget (R7)."""
    raised = attrs.evolve(DEFAULT_CONFIGURATION, unchanged_attempt_budget=100)
    row = failed(backing_off(attempts=8, parked=True), configuration=raised)
    assert accounts(row) == (8, True, 100 + HOUR_MS)


def test_a_retry_before_a_later_deadline_does_not_bring_it_forward() -> None:
    """`wake_at` is the later of deadline and retry (R3)."""
    row = failed(attrs.evolve(ROW, run_at=50_000, wake_at=50_000))
    assert (row.run_at, row.retry_at, row.wake_at) == (50_000, 1_100, 50_000)


# Completing


def test_a_completed_one_shot_is_over() -> None:
    """An acknowledged one-shot leaves nothing (R28)."""
    assert completed(attrs.evolve(ROW, repeat_every=None)) is None


def test_a_completed_repeat_starts_afresh_a_period_after_its_completion() -> None:
    """The next occurrence counts from completion, without attempts or parking (R8, R28)."""
    row = backing_off(parked=True, attempts=8)
    assert completed(row, now=10_500) == attrs.evolve(
        ROW, run_at=70_500, wake_at=70_500, revision=NEW
    )


def test_a_stored_period_under_the_floor_waits_for_the_floor() -> None:
    """A floor that was raised since the period was stored holds (R8)."""
    row = completed(attrs.evolve(ROW, repeat_every=1_500))
    assert row is not None
    assert (row.run_at, row.repeat_every) == (100 + 60_000, 1_500)


def test_a_completed_repeat_keeps_its_progress() -> None:
    """Progress is no part of the attempt state (R28)."""
    row = completed(attrs.evolve(ROW, progress=7))
    assert row is not None
    assert row.progress == 7


# Scheduling from outside


@pytest.mark.parametrize(
    "existing", [None, ROW, backing_off(), backing_off(parked=True, attempts=8), MANUAL_ROW]
)
def test_a_schedule_from_outside_is_fresh_enrolment(existing: AlarmRow | None) -> None:
    """Everything is the given, without attempts, parking or retry (R4)."""
    assert schedule(REQUEST, existing, circumstances()) == AlarmRow(
        ref=REF,
        lifecycle="automatic",
        run_at=500,
        wake_at=500,
        retry_at=None,
        repeat_every=None,
        progress=NO_PROGRESS,
        attempts=0,
        parked=False,
        revision=NEW,
        payload='"new"',
    )


@pytest.mark.parametrize("given_progress", [0, 4, 5])
def test_a_known_progress_from_outside_changes_nothing(given_progress: int) -> None:
    """A replayed notice neither refills a budget nor replaces newer state (R4)."""
    existing = backing_off(attrs.evolve(ROW, progress=5))
    request = attrs.evolve(REQUEST, progress=given_progress)
    assert schedule(request, existing, circumstances()) is None
    assert schedule_earlier(request, existing, circumstances()) is None


def test_new_progress_from_outside_is_stored() -> None:
    """A larger progress replaces (R4)."""
    row = schedule(attrs.evolve(REQUEST, progress=6), backing_off(), circumstances())
    assert row is not None
    assert (row.progress, row.attempts, row.run_at) == (6, 0, 500)


def test_progress_that_is_not_given_stays() -> None:
    """The stored progress is the greater of both (R4)."""
    row = schedule(REQUEST, attrs.evolve(ROW, progress=6), circumstances())
    assert row is not None
    assert row.progress == 6


# Self-rearms


def test_a_self_rearm_charges_one_attempt() -> None:
    """A handler that schedules its own alarm without progress is charged (R4)."""
    row = schedule(REQUEST, ROW, circumstances(ROW))
    assert accounts(row) == (1, False, 1_100)


def test_a_self_rearm_under_another_id_inherits_the_charge() -> None:
    """A new id does not escape the budget (R4)."""
    source = backing_off(attempts=4)
    row = schedule(attrs.evolve(REQUEST, ref=OTHER), None, circumstances(source))
    assert accounts(row) == (5, False, 100 + 16_000)


def test_several_schedules_in_one_handling_charge_once() -> None:
    """Again, under a new id, and after a cancel: one attempt (R4)."""
    source = backing_off(attempts=2)
    first = schedule(REQUEST, source, circumstances(source))
    again = schedule(REQUEST, first, circumstances(source))
    after_cancel = schedule(REQUEST, None, circumstances(source))
    under_another_id = schedule(attrs.evolve(REQUEST, ref=OTHER), None, circumstances(source))
    for row in (first, again, after_cancel, under_another_id):
        assert accounts(row)[0] == 3


def test_a_self_rearm_does_not_lower_what_another_alarm_already_has() -> None:
    """The greater of the charged and the stored count stands (R4)."""
    row = schedule(
        attrs.evolve(REQUEST, ref=OTHER),
        backing_off(attrs.evolve(ROW, ref=OTHER), attempts=6),
        circumstances(backing_off(attempts=1)),
    )
    assert accounts(row)[0] == 6


def test_self_rearms_stop_at_the_budget_and_park() -> None:
    """The charge that reaches the budget parks (R4)."""
    row = schedule(REQUEST, ROW, circumstances(backing_off(attempts=7)))
    assert accounts(row) == (8, True, 100 + HOUR_MS)
    beyond = schedule(REQUEST, ROW, circumstances(backing_off(attempts=20)))
    assert accounts(beyond) == (8, True, 100 + HOUR_MS)


@pytest.mark.parametrize(
    ("source", "existing"),
    [
        (backing_off(attempts=2, parked=True), ROW),
        (ROW, backing_off(attempts=2, parked=True)),
        (backing_off(attempts=2, parked=True), None),
    ],
)
def test_a_self_rearm_beside_what_is_parked_is_parked_uncharged(
    source: AlarmRow, existing: AlarmRow | None
) -> None:
    """Parking passes on, with the greater count and no charge (R4)."""
    row = schedule(REQUEST, existing, circumstances(source))
    assert accounts(row) == (2, True, 100 + HOUR_MS)


def test_new_progress_makes_a_self_rearm_fresh() -> None:
    """Who gets somewhere is not charged, and is unparked (R4)."""
    source = backing_off(attrs.evolve(ROW, progress=5), attempts=8, parked=True)
    row = schedule(attrs.evolve(REQUEST, progress=6), source, circumstances(source))
    assert accounts(row) == (0, False, None)


def test_known_progress_in_a_handling_charges_but_is_not_ignored() -> None:
    """Within a handling an old progress schedules all the same, charged (R4)."""
    source = attrs.evolve(ROW, progress=5)
    row = schedule(attrs.evolve(REQUEST, progress=5), source, circumstances(source))
    assert accounts(row)[0] == 1
    assert row is not None
    assert (row.run_at, row.progress) == (500, 5)


def test_once_its_progress_grew_a_handling_may_schedule_its_own_alarm_freely() -> None:
    """After progress in this handling its own alarm is not charged (R4)."""
    source = backing_off(attrs.evolve(ROW, progress=5))
    grown = schedule(attrs.evolve(REQUEST, progress=6), source, circumstances(source))
    assert accounts(schedule(REQUEST, grown, circumstances(source)))[0] == 0
    assert (
        accounts(schedule(attrs.evolve(REQUEST, progress=6), grown, circumstances(source)))[0] == 0
    )


def test_growing_progress_of_its_own_alarm_does_not_free_others() -> None:
    """The exception is for the source's own alarm only (R4)."""
    source = attrs.evolve(ROW, progress=5)
    other = attrs.evolve(ROW, ref=OTHER, progress=9)
    row = schedule(attrs.evolve(REQUEST, ref=OTHER), other, circumstances(source))
    assert accounts(row)[0] == 1


def test_another_alarm_starts_with_the_progress_of_its_source() -> None:
    """Without a row of its own, progress counts from the source's (R4)."""
    source = attrs.evolve(ROW, progress=5)
    request = attrs.evolve(REQUEST, ref=OTHER)
    charged = schedule(attrs.evolve(request, progress=5), None, circumstances(source))
    fresh = schedule(attrs.evolve(request, progress=6), None, circumstances(source))
    assert (accounts(charged)[0], accounts(fresh)[0]) == (1, 0)
    inherited = schedule(request, None, circumstances(source))
    assert inherited is not None
    assert inherited.progress == 5


@pytest.mark.parametrize(
    ("asked", "source"),
    [
        (MANUAL_REQUEST, backing_off()),
        (REQUEST, MANUAL_ROW),
        (MANUAL_REQUEST, MANUAL_ROW),
    ],
)
def test_nothing_is_charged_across_lifecycles(asked: ScheduleRequest, source: AlarmRow) -> None:
    """There is a source only where both alarms are automatic (R4, R5)."""
    row = schedule(asked, None, circumstances(source))
    assert accounts(row) == (0, False, None)
    assert row is not None
    assert row.progress == NO_PROGRESS


def test_a_schedule_as_manual_drops_repeat_and_progress() -> None:
    """A manual alarm has neither (R4, R5)."""
    row = schedule(MANUAL_REQUEST, attrs.evolve(ROW, progress=7), circumstances())
    assert row is not None
    assert (row.lifecycle, row.repeat_every, row.progress) == ("manual", None, NO_PROGRESS)


def test_a_self_rearm_waits_until_the_later_of_deadline_and_retry() -> None:
    """The given deadline stays, the retry holds it back (R3, R4)."""
    row = schedule(attrs.evolve(REQUEST, run_at=-1_000), ROW, circumstances(ROW))
    assert row is not None
    assert (row.run_at, row.retry_at, row.wake_at) == (-1_000, 1_100, 1_100)


# The earlier of two


@pytest.mark.parametrize("run_at", [0, 1, 500])
def test_an_earlier_or_equal_stored_deadline_is_kept_with_payload_and_repeat(run_at: int) -> None:
    """The stored deadline wins a tie, and attempts are cleared (R6)."""
    request = attrs.evolve(REQUEST, run_at=run_at)
    assert schedule_earlier(request, backing_off(), circumstances()) == attrs.evolve(
        ROW, revision=NEW
    )


def test_an_earlier_given_deadline_replaces() -> None:
    """What comes sooner brings its payload and repeat along (R6)."""
    row = schedule_earlier(attrs.evolve(REQUEST, run_at=-1), ROW, circumstances())
    assert row is not None
    assert (row.run_at, row.payload, row.repeat_every) == (-1, '"new"', None)


def test_a_manual_alarm_keeps_no_repeat_with_the_deadline() -> None:
    """A repeat that is kept would be a manual alarm's (R6)."""
    row = schedule_earlier(MANUAL_REQUEST, ROW, circumstances())
    assert row is not None
    assert (row.lifecycle, row.run_at, row.payload) == ("manual", 0, '"old"')
    assert row.repeat_every is None


@pytest.mark.parametrize("source", [None, ROW])
def test_a_row_in_hand_has_no_deadline_left_to_keep(source: AlarmRow | None) -> None:
    """While it is handled the call is a plain schedule, whoever calls (R6)."""
    found = schedule_earlier(REQUEST, ROW, circumstances(source, in_hand=True))
    assert found == schedule(REQUEST, ROW, circumstances(source))


# Ensuring


def test_ensuring_what_is_absent_schedules_it() -> None:
    """Without a row it is a schedule, charged in a handling as any other (R6a)."""
    assert ensure(REQUEST, None, circumstances()) == schedule(REQUEST, None, circumstances())
    source = attrs.evolve(ROW, ref=OTHER)
    assert accounts(ensure(REQUEST, None, circumstances(source)))[0] == 1


def test_ensuring_what_is_there_alike_writes_nothing() -> None:
    """Deadline, attempts and revision stay, whatever deadline and progress are given (R6a)."""
    existing = backing_off(parked=True, attempts=8)
    request = attrs.evolve(REQUEST, payload='"old"', repeat_every=60_000, run_at=-9, progress=99)
    assert ensure(request, existing, circumstances()) is None


def test_ensuring_brings_the_payload_up_to_date_and_keeps_the_rest() -> None:
    """A differing payload is written; deadline, attempts, parking and progress stay (R6a)."""
    existing = backing_off(attrs.evolve(ROW, progress=3), parked=True, attempts=8)
    request = attrs.evolve(REQUEST, repeat_every=60_000, progress=99)
    assert ensure(request, existing, circumstances()) == attrs.evolve(
        existing, payload='"new"', revision=NEW
    )


@pytest.mark.parametrize(("run_at", "expected"), [(-5, -5), (0, 0), (500, 0)])
def test_ensuring_another_repeat_takes_the_earlier_deadline(run_at: int, expected: int) -> None:
    """A differing repeat moves the deadline to the earlier of both (R6a)."""
    request = attrs.evolve(REQUEST, payload='"old"', repeat_every=90_000, run_at=run_at)
    row = ensure(request, ROW, circumstances())
    assert row == attrs.evolve(
        ROW, repeat_every=90_000, run_at=expected, wake_at=expected, revision=NEW
    )


def test_ensuring_another_repeat_does_not_end_a_back_off() -> None:
    """The retry deadline stays, so the alarm still waits for it (R6a)."""
    request = attrs.evolve(REQUEST, repeat_every=90_000, run_at=-5)
    row = ensure(request, backing_off(), circumstances())
    assert row is not None
    assert (row.run_at, row.retry_at, row.wake_at, row.attempts) == (-5, 9_000, 9_000, 3)


def test_ensuring_as_manual_clears_what_manual_alarms_have_not() -> None:
    """Becoming manual clears attempts, parking, retry, progress and repeat (R5, R6a)."""
    existing = backing_off(attrs.evolve(ROW, progress=3, run_at=700), parked=True, attempts=8)
    row = ensure(attrs.evolve(MANUAL_REQUEST, payload='"old"'), existing, circumstances())
    assert row == attrs.evolve(MANUAL_ROW, run_at=500, wake_at=500, revision=NEW, payload='"old"')


def test_ensuring_a_manual_alarm_as_automatic_uses_no_given_progress() -> None:
    """Progress is used only where there is no row (R6a)."""
    row = ensure(attrs.evolve(REQUEST, progress=9), MANUAL_ROW, circumstances())
    assert row is not None
    assert (row.lifecycle, row.run_at, row.progress) == ("automatic", 0, NO_PROGRESS)


def test_ensuring_the_row_in_hand_by_its_own_handler_writes_nothing() -> None:
    """Whatever is given, so that it is still acknowledged away (R6a)."""
    assert ensure(REQUEST, ROW, circumstances(ROW, in_hand=True)) is None
    assert ensure(MANUAL_REQUEST, ROW, circumstances(ROW, in_hand=True)) is None


@pytest.mark.parametrize("source", [None, attrs.evolve(ROW, ref=OTHER)])
def test_ensuring_the_row_in_hand_from_elsewhere_writes_what_differs(
    source: AlarmRow | None,
) -> None:
    """Others write, and the acknowledgement then misses (R6a)."""
    row = ensure(REQUEST, ROW, circumstances(source, in_hand=True))
    assert row is not None
    assert (row.payload, row.revision) == ('"new"', NEW)


# Far deadlines


def test_computed_deadlines_saturate() -> None:
    """What is computed never lies past the last instant (R7, R8)."""
    for row in (
        failed(ROW, now=MAX_INSTANT_MS - 1),
        completed(ROW, now=MAX_INSTANT_MS - 1),
        schedule(REQUEST, ROW, circumstances(ROW, now=MAX_INSTANT_MS)),
    ):
        assert row is not None
        assert row.wake_at == MAX_INSTANT_MS


# What holds whatever the numbers are

instants = st.integers(MIN_INSTANT_MS, MAX_INSTANT_MS) | st.integers(-10_000, 10_000)
periods = st.none() | st.integers(1, 36_525 * 86_400_000)
progresses = st.integers(0, 2**63 - 1) | st.integers(0, 5)
refs = st.sampled_from([REF, OTHER])
configurations = st.builds(
    lambda minimum, more, budget, interval: ResolvedConfiguration(
        minimum_retry_delay_ms=minimum,
        parked_retry_delay_ms=max(HOUR_MS, minimum) + more,
        unchanged_attempt_budget=budget,
        minimum_repeat_interval_ms=interval,
    ),
    st.integers(1_000, 10_000_000),
    st.integers(0, 10_000_000),
    st.integers(1, 10) | st.integers(1, 2**63 - 1),
    st.integers(1_000, 10_000_000),
)


@st.composite
def automatic_rows(draw: st.DrawFn, ref: AlarmRef | None = None) -> AlarmRow:
    """Any automatic row that the schema takes."""
    run_at = draw(instants)
    attempts = draw(st.integers(0, 12) | st.integers(0, 2**63 - 1))
    retry_at = draw(instants) if attempts else None
    return AlarmRow(
        ref=draw(refs) if ref is None else ref,
        lifecycle="automatic",
        run_at=run_at,
        wake_at=run_at if retry_at is None else max(run_at, retry_at),
        retry_at=retry_at,
        repeat_every=draw(periods),
        progress=draw(st.just(NO_PROGRESS) | progresses),
        attempts=attempts,
        parked=attempts > 0 and draw(st.booleans()),
        revision=OLD,
        payload="1",
    )


@st.composite
def rows(draw: st.DrawFn, ref: AlarmRef | None = None) -> AlarmRow:
    """Any row that the schema takes."""
    row = draw(automatic_rows(ref))
    if draw(st.booleans()):
        return row
    return attrs.evolve(
        row,
        lifecycle="manual",
        wake_at=row.run_at,
        retry_at=None,
        repeat_every=None,
        progress=NO_PROGRESS,
        attempts=0,
        parked=False,
    )


@st.composite
def requests(draw: st.DrawFn) -> ScheduleRequest:
    """Any request that the argument checks let through."""
    lifecycle: Lifecycle = draw(st.sampled_from(["automatic", "manual"]))
    automatic = lifecycle == "automatic"
    return ScheduleRequest(
        ref=REF,
        lifecycle=lifecycle,
        run_at=draw(instants),
        repeat_every=draw(periods) if automatic else None,
        progress=draw(st.none() | progresses) if automatic else None,
        payload=draw(st.sampled_from(["1", "2"])),
    )


moments = st.builds(
    Circumstances,
    now=instants,
    configuration=configurations,
    revision=st.just(NEW),
    source=st.none() | rows(),
    in_hand=st.booleans(),
)


@pytest.fixture(scope="module")
def table() -> Iterator[sqlite3.Connection]:
    """The tables as a new database has them."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        _schema.migrate(connection, "memory")
        yield connection


def assert_consistent(row: AlarmRow) -> None:
    """What every row is, whichever rule wrote it."""
    assert row.wake_at == max(row.run_at, row.run_at if row.retry_at is None else row.retry_at)
    assert row.wake_at <= MAX_INSTANT_MS
    assert (row.retry_at is None) == (row.attempts == 0)
    assert not (row.parked and row.attempts == 0)
    if row.lifecycle == "manual":
        assert (row.repeat_every, row.progress, row.attempts) == (None, NO_PROGRESS, 0)


@given(requests(), st.none() | rows(REF), moments)
def test_every_schedule_leaves_a_row_that_can_be_stored(
    asked: ScheduleRequest, existing: AlarmRow | None, moment: Circumstances
) -> None:
    """Whatever is given and stored, the result is consistent and new (R3, R4, R6)."""
    for rule in (schedule, schedule_earlier):
        row = rule(asked, existing, moment)
        if row is not None:
            assert_consistent(row)
            assert (row.ref, row.lifecycle, row.revision) == (REF, asked.lifecycle, NEW)


@given(requests(), st.none() | rows(REF), moments)
def test_every_ensure_leaves_a_row_that_can_be_stored(
    asked: ScheduleRequest, existing: AlarmRow | None, moment: Circumstances
) -> None:
    """Ensuring keeps attempts with their retry, or clears both (R6a)."""
    row = ensure(asked, existing, moment)
    if row is not None:
        assert_consistent(row)
        if existing is not None and asked.lifecycle == "automatic":
            assert accounts(row) == accounts(existing)


@given(automatic_rows(), instants, configurations, st.none() | st.integers(0, 2**63))
def test_every_failure_leaves_a_row_that_can_be_stored(
    row: AlarmRow, now: int, configuration: ResolvedConfiguration, initial: int | None
) -> None:
    """A failure never lowers a count, unparks, or comes back before the minimum delay (R28)."""
    after = failed(row, now=now, configuration=configuration, initial=initial)
    assert_consistent(after)
    assert row.attempts <= after.attempts <= row.attempts + 1
    assert after.parked >= row.parked
    assert after.parked == (row.parked or after.attempts >= configuration.unchanged_attempt_budget)
    assert after.retry_at is not None
    delay = after.retry_at - now
    assert delay <= configuration.parked_retry_delay_ms
    if after.retry_at < MAX_INSTANT_MS:
        assert delay >= configuration.minimum_retry_delay_ms


@settings(deadline=None)  # it writes to SQLite, which a busy machine may hold up
@given(requests(), rows(REF), moments, instants)
def test_rows_of_every_rule_meet_the_constraints_of_the_schema(
    table: sqlite3.Connection,
    asked: ScheduleRequest,
    existing: AlarmRow,
    moment: Circumstances,
    now: int,
) -> None:
    """The CHECK constraints repeat the rules, so no rule runs into one (R3)."""
    configuration = moment.configuration
    automatic = existing.lifecycle == "automatic"
    for row in (
        schedule(asked, existing, moment),
        schedule_earlier(asked, existing, moment),
        ensure(asked, existing, moment),
        completed(existing, now=now, configuration=configuration),
        failed(existing, now=now, configuration=configuration) if automatic else None,
    ):
        if row is not None:
            _alarms.write(table, "default", row)
            assert _alarms.read(table, "default", row.ref) == row


@given(st.lists(st.booleans(), min_size=1, max_size=6), automatic_rows(REF), moments)
def test_a_handling_charges_its_own_alarm_at_most_once(
    cancels: list[bool], source: AlarmRow, moment: Circumstances
) -> None:
    """However often it schedules, with cancels between, the charge is the first one's (R4)."""
    assume(source.attempts <= moment.configuration.unchanged_attempt_budget)
    moment = attrs.evolve(moment, source=source)
    existing: AlarmRow | None = source
    charges = set()
    for cancel in cancels:
        existing = schedule(REQUEST, None if cancel else existing, moment)
        charges.add(accounts(existing))
    assert len(charges) == 1


@given(requests(), rows(REF), moments)
def test_the_earlier_deadline_wins_unless_the_row_is_in_hand(
    asked: ScheduleRequest, existing: AlarmRow, moment: Circumstances
) -> None:
    """A row that nobody has in hand never moves to a later deadline (R6)."""
    row = schedule_earlier(asked, existing, moment)
    assume(row is not None)
    assert row is not None
    if moment.in_hand:
        assert row.run_at == asked.run_at
    else:
        assert row.run_at == min(existing.run_at, asked.run_at)


@given(st.integers(1, 2**63 - 1), configurations, st.none() | st.integers(0, 2**63))
def test_delays_never_shrink_and_stay_between_minimum_and_parked_delay(
    attempts: int, configuration: ResolvedConfiguration, initial: int | None
) -> None:
    """More attempts wait at least as long, at most the parked delay (R7)."""
    delay = retry_delay(attempts, parked=False, configuration=configuration, initial=initial)
    longer = retry_delay(attempts + 1, parked=False, configuration=configuration, initial=initial)
    assert configuration.minimum_retry_delay_ms <= delay <= longer
    assert longer <= configuration.parked_retry_delay_ms
    assert longer in (2 * delay, configuration.parked_retry_delay_ms)
