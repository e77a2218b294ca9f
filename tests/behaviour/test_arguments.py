"""Bad arguments: a clear error at the call, and nothing stored."""

from __future__ import annotations

import enum
import math
import re
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from trio.testing import MockClock

from tests.behaviour.work_service import Note, Recorder, Work, at, succeed, work
from trio_alarms import (
    Alarm,
    AlarmError,
    AlarmRecord,
    AlarmRef,
    AlarmService,
    DispatchOptions,
    InvalidAlarmPayloadError,
    InvalidAlarmRefError,
    InvalidAlarmRegistrationError,
    InvalidProcessDueAlarmsOptionsError,
    InvalidRepeatEveryError,
    InvalidScheduleConfigurationError,
    ScheduleConfiguration,
    StorageOptions,
    define,
    open_host,
    process_due,
    schedule_configuration,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.behaviour.conftest import OpenWorld
    from trio_alarms import AlarmHost, AlarmParked

METHODS = ["schedule_alarm", "schedule_alarm_earlier", "ensure_alarm"]
CONTENT = "what no error may show"
NAME_RULE = "without NUL and lone surrogates"
DURATION_RULE = "a timedelta or a number of seconds"
ZONE_AHEAD, ZONE_BEHIND = timezone(timedelta(hours=12)), timezone(-timedelta(hours=12))


class BrokenZone(tzinfo):
    """A time zone that cannot say its offset."""

    tzname = dst = None  # type: ignore[assignment]  # a zone needs no more than its offset

    def utcoffset(self, _when: datetime | None) -> timedelta:
        """Fail."""
        raise ValueError(CONTENT)


@attrs.frozen
class Bad:
    """Bad arguments, the error that they raise, and words that its message has to have."""

    given: dict[str, Any]
    error: type[AlarmError]
    words: tuple[str, ...]

    def __str__(self) -> str:
        return "-".join(f"{name}={type(value).__name__}" for name, value in self.given.items())


def bad(error: type[AlarmError], *words: str, **given: Any) -> Bad:
    """A case of the tables below."""
    return Bad(given, error, words)


BAD_NAMES: list[tuple[Any, str]] = [
    ("", "an empty one"),
    ("x" * 513, "513 characters"),
    ("a\0b", "NUL"),
    ("\ud800", "surrogate"),
    (7, "not 7"),
    (None, "not None"),
    (True, "not True"),
    (b"a", "bytes"),
    (["a"], "list"),
]

BAD_DURATIONS: list[tuple[Any, str]] = [
    (-1, "not -1"),
    (-0.001, "-0.001"),
    (math.nan, "nan"),
    (math.inf, "inf"),
    (1e18, r"1e\+18"),
    (10**12, "1000000000000"),
    (10**5000, "an int of 16610 bits"),
    (1_000_000_000_000.0, r"1e\+12|1000000000000"),
    (True, "True"),
    ("5", "str"),
    (timedelta(-1), "days=-1"),
    (timedelta(days=36_526), "days=36526"),
    (timedelta.max, "days=999999999"),
    ([5], "list"),
]

BAD_INSTANTS: list[tuple[Any, str]] = [
    (datetime(2000, 1, 1), r"replace\(tzinfo=UTC\).*astimezone"),  # noqa: DTZ001 - that is the case
    (date(2000, 1, 1), "aware datetime"),
    ("2000-01-01T00:00:00Z", "str"),
    (946_684_800, "946684800"),
    (946_684_800_000, "946684800000"),
    (0.5, "0.5"),
    (True, "True"),
    (timedelta(seconds=5), "seconds=5"),
    (datetime.max.replace(tzinfo=UTC), "9999-12-31"),
    (datetime.max.replace(tzinfo=ZONE_BEHIND), "9999-12-31"),
    (datetime.min.replace(tzinfo=ZONE_AHEAD), "0001-01-01"),
    (datetime(2000, 1, 1, tzinfo=BrokenZone()), "time zone"),
]

SCHEDULING = [
    *(bad(InvalidAlarmRefError, "^alarm must be", words, alarm=name) for name, words in BAD_NAMES),
    *(
        bad(InvalidAlarmRefError, "^id must be", NAME_RULE, words, id=name)
        for name, words in BAD_NAMES
    ),
    bad(InvalidAlarmRefError, "^alarm must be .* with a tag", alarm=Alarm(None)),
    *(
        bad(InvalidAlarmRefError, "^run_at must be", words, run_at=value)
        for value, words in BAD_INSTANTS
    ),
    bad(InvalidAlarmRefError, "exactly one of run_at .* and after", "neither", run_at=None),
    bad(InvalidAlarmRefError, "exactly one of run_at .* and after", "both", after=5),
    *(
        bad(InvalidAlarmRefError, "^after must be", DURATION_RULE, words, run_at=None, after=value)
        for value, words in BAD_DURATIONS
    ),
    *(
        bad(
            InvalidRepeatEveryError,
            "^repeat_every must be",
            "60 seconds",
            words,
            repeat_every=value,
        )
        for value, words in [
            *BAD_DURATIONS,
            (0, "not 0"),
            (1e-9, "1e-09"),
            (59.999, "59.999"),
            (timedelta(0), r"timedelta\(0\)"),
        ]
    ),
    *(
        bad(InvalidAlarmRefError, "^progress must be an int from 0 to", words, progress=value)
        for value, words in [
            (-1, "-1"),
            (1.0, "1.0"),
            (True, "True"),
            ("5", "str"),
            (math.nan, "nan"),
            (2**63, str(2**63)),
            (10**5000, "16610 bits"),
        ]
    ),
    *(
        bad(
            InvalidAlarmRefError,
            "^lifecycle must be 'automatic' or 'manual'",
            words,
            lifecycle=value,
        )
        for value, words in [
            ("Manual", "'Manual'"),
            ("", "''"),
            (1, "1"),
            (True, "True"),
            (["manual"], "list"),
        ]
    ),
    bad(InvalidAlarmRefError, "^repeat_every .* manual", "60", lifecycle="manual", repeat_every=60),
    bad(InvalidAlarmRefError, "^progress .* manual", "0", lifecycle="manual", progress=0),
]

BAD_PAYLOADS: list[tuple[Any, str]] = [
    (math.nan, "^payload: NaN"),
    (-math.inf, "^payload: NaN and infinities"),
    ([CONTENT, {"fine": [1, math.inf]}], r"^payload\[1\].*\[1\]: NaN and infinities"),
    (10**5000, "^payload: .*digits"),
    ({CONTENT: {1, 2}}, "^payload.*: set"),
    ({1: "a", "1": "b"}, "^payload: keys must be strings, not int"),
    ({None: CONTENT}, "^payload: keys must be strings"),
    (object(), "^payload: object is no JSON type"),
    (b"bytes", "^payload: bytes"),
    ((1, CONTENT), "^payload: tuple"),
    (datetime(2000, 1, 1, tzinfo=UTC), "^payload: datetime"),
    ("\ud800" + CONTENT, "^payload: .*surrogate"),
    ({"\udfff": CONTENT}, "^payload: .*surrogate"),
    (CONTENT * 100_000, r"^payload: \d+ bytes .* 1048576 allowed \(max_payload_bytes\)"),
    (Note(CONTENT), "^payload: Note is no JSON type"),
]


def type_of(value: object) -> str:
    """The id of a case: values themselves are long, odd or not printable."""
    return type(value).__name__


def nested(depth: int) -> Any:
    """Lists within each other."""
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def assert_says(error: AlarmError, words: tuple[str, ...]) -> None:
    """The message has all the words, is of a readable length, and keeps the secret."""
    for each in words:
        assert re.search(each, str(error), re.DOTALL), f"{each!r} is not in {str(error)[:300]!r}"
    assert len(str(error)) < 500
    assert CONTENT not in str(error)


async def assert_refused(host: AlarmHost, case: Bad, *arguments: Any, **given: Any) -> None:
    """Every scheduling method refuses it, standalone and in a block, which can go on."""
    for method in METHODS:
        with pytest.raises(case.error) as caught:
            await getattr(host.scheduler, method)(*arguments, **given)
        assert type(caught.value) is case.error
        assert_says(caught.value, case.words)
        async with host.storage.transaction() as tx:
            with pytest.raises(case.error) as caught:
                await getattr(tx, method)(*arguments, **given)
            assert_says(caught.value, case.words)


async def assert_nothing_stored(host: AlarmHost) -> None:
    """Neither an alarm nor the mark of a managed host."""
    assert await host.storage.query("SELECT * FROM trio_alarms_alarms") == []
    assert await host.storage.query("SELECT * FROM trio_alarms_hosts") == []


# Scheduling


@pytest.mark.parametrize("case", SCHEDULING, ids=str)
async def test_bad_scheduling_arguments_are_refused(
    open_inline_world: OpenWorld, mock_clock: MockClock, case: Bad
) -> None:
    """The error names the parameter, what was given and what is allowed (R4, R5, R8, C03, C18)."""
    world = await open_inline_world(alarms=work())
    given = {"alarm": "raw", "id": "a", "run_at": at(0), "payload": CONTENT} | case.given
    await assert_refused(world.host, case, given.pop("alarm"), given.pop("id"), **given)
    await assert_nothing_stored(world.host)


@pytest.mark.parametrize(("payload", "words"), BAD_PAYLOADS, ids=type_of)
async def test_payloads_that_are_no_json_are_refused(
    open_inline_world: OpenWorld, mock_clock: MockClock, payload: Any, words: str
) -> None:
    """The error names the field's path and never the content (C19)."""
    world = await open_inline_world(alarms=work())
    case = bad(InvalidAlarmPayloadError, words)
    await assert_refused(world.host, case, "raw", "a", run_at=at(0), payload=payload)
    await assert_nothing_stored(world.host)


@pytest.mark.parametrize("depth", [101, 100_000])
async def test_payloads_that_are_too_deep_are_refused(
    open_inline_world: OpenWorld, mock_clock: MockClock, depth: int
) -> None:
    """Depth is bounded, so that whatever is stored can be read (C19)."""
    world = await open_inline_world(alarms=work())
    case = bad(InvalidAlarmPayloadError, "^payload.*nested.*")
    await assert_refused(world.host, case, "raw", "a", run_at=at(0), payload=nested(depth))
    await assert_nothing_stored(world.host)


class Money:
    """No class that can be stored."""


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (None, "^payload: expected Note, got NoneType"),
        ({"text": CONTENT}, "^payload: expected Note, got dict"),
        (Note(5), r"^payload\.text: expected a string"),  # type: ignore[arg-type]  # that is the case
        (Note([CONTENT]), r"^payload\.text: expected a string"),  # type: ignore[arg-type]  # as above
        (Note("\ud800" + CONTENT), r"^payload\.text: .*surrogate"),
        (Money(), "^payload: expected Note, got Money"),
    ],
)
async def test_payloads_of_another_type_are_refused(
    open_inline_world: OpenWorld, mock_clock: MockClock, payload: Any, words: str
) -> None:
    """A definition's payload is checked when it is set, not at delivery (C19)."""
    world = await open_inline_world(alarms=work())
    case = bad(InvalidAlarmPayloadError, words)
    await assert_refused(world.host, case, Work.plain, "a", run_at=at(0), payload=payload)
    await assert_nothing_stored(world.host)


async def test_a_payload_up_to_the_limit_is_stored(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The limit counts bytes of UTF-8 text and belongs to the range (C19)."""
    options = StorageOptions(executor="inline", max_payload_bytes=10)
    world = await open_world(storage=options)
    alarms = world.host.scheduler
    await alarms.schedule_alarm("raw", "a", run_at=at(0), payload="é" * 4)
    with pytest.raises(InvalidAlarmPayloadError, match=r"12 bytes .* 10 allowed"):
        await alarms.schedule_alarm("raw", "b", run_at=at(0), payload="é" * 5)
    assert [row.id for row in world.rows()] == ["a"]


async def test_a_lifecycle_beside_a_definition_is_refused(
    open_inline_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The definition says it already (R5)."""
    world = await open_inline_world(alarms=work())
    for lifecycle in ("automatic", "manual", "x"):
        case = bad(InvalidAlarmRefError, "^lifecycle .* tag string only", "'plain' .* 'automatic'")
        await assert_refused(
            world.host, case, Work.plain, "a", run_at=at(0), payload=Note("x"), lifecycle=lifecycle
        )
    await assert_nothing_stored(world.host)


@pytest.mark.parametrize("parameter", ["repeat_every", "progress"])
async def test_a_manual_definition_takes_neither_repeat_nor_progress(
    open_inline_world: OpenWorld, mock_clock: MockClock, parameter: str
) -> None:
    """Its handler owns both (R5)."""
    world = await open_inline_world(alarms=work())
    case = bad(InvalidAlarmRefError, f"^{parameter} cannot be given for a manual alarm", "60")
    await assert_refused(
        world.host, case, Work.manual, "a", run_at=at(0), payload=Note("x"), **{parameter: 60}
    )
    await assert_nothing_stored(world.host)


async def test_a_services_view_takes_its_own_definitions_only(
    open_inline_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Tag strings, foreign definitions and look-alikes are unknown alarms."""
    world = await open_inline_world(alarms=work())
    view: Any = world.host.service(Work)
    strangers: list[tuple[Any, str]] = [
        ("plain", "^alarm must be one of the definitions of 'work'.*host.scheduler"),
        (Alarm(Note, tag="plain"), "^alarm 'plain' is not a definition of the service 'work'"),
        (Alarm(Note, tag="foreign"), "^alarm 'foreign' is not .* 'manual', 'plain', 'skipping'"),
        (Alarm(Note), "^alarm must be .* with a tag"),
        (None, "^alarm must be one of the definitions"),
    ]
    for stranger, words in strangers:
        for method in METHODS:
            with pytest.raises(InvalidAlarmRefError, match=words):
                await getattr(view, method)(stranger, "a", run_at=at(0), payload=Note("x"))
        for method in ("cancel_alarm", "get_alarm_status"):
            with pytest.raises(InvalidAlarmRefError, match=words):
                await getattr(view, method)(stranger, "a")
        async with view.transaction() as tx:
            with pytest.raises(InvalidAlarmRefError, match=words):
                await tx.schedule_alarm(stranger, "a", run_at=at(0), payload=Note("x"))
        if stranger is not None:
            with pytest.raises(InvalidAlarmRefError, match=words):
                await view.list_alarms(alarm=stranger)
    assert world.rows() == []


@pytest.mark.parametrize("method", ["cancel_alarm", "get_alarm_status"])
@pytest.mark.parametrize(("name", "words"), BAD_NAMES, ids=type_of)
async def test_bad_tags_and_ids_are_refused_everywhere(
    open_inline_world: OpenWorld, mock_clock: MockClock, name: Any, words: str, method: str
) -> None:
    """Cancelling and looking up check them as scheduling does."""
    world = await open_inline_world(alarms=work())
    alarms: Any = world.host.scheduler
    for arguments, parameter in (((name, "a"), "alarm"), (("raw", name), "id")):
        with pytest.raises(InvalidAlarmRefError, match=f"^{parameter} must be .*{words}"):
            await getattr(alarms, method)(*arguments)
        async with world.host.storage.transaction() as tx:
            with pytest.raises(InvalidAlarmRefError, match=f"^{parameter} must be .*{words}"):
                await getattr(tx, method)(*arguments)
    await assert_nothing_stored(world.host)


async def test_names_of_the_greatest_length_are_taken(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """512 characters, whatever their size in bytes."""
    world = await open_world()
    name = "😀" * 512
    await world.host.scheduler.schedule_alarm(name, name, run_at=at(0))
    await world.step()
    assert await world.host.scheduler.cancel_alarm(name, name)


class Kind(str, enum.Enum):  # noqa: UP042 - unlike a StrEnum it does not print as its value
    """Names as an application may keep them."""

    EXPIRE = "app/expire"


async def test_a_member_of_an_enum_of_strings_is_its_value(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The characters count, and not how the object prints (R3)."""
    assert str(Kind.EXPIRE) != Kind.EXPIRE.value
    world = await open_world(name=Kind.EXPIRE)
    await world.host.scheduler.schedule_alarm(Kind.EXPIRE, Kind.EXPIRE, run_at=at(0))
    await world.step()
    assert world.host.name == "app/expire"
    assert [(row.tag, row.id) for row in world.rows()] == [("app/expire", "app/expire")]
    assert Alarm(None, tag=Kind.EXPIRE).tag == "app/expire"
    assert await world.host.scheduler.cancel_alarm("app/expire", Kind.EXPIRE)


@pytest.mark.parametrize("method", [*METHODS, "cancel_alarm", "get_alarm_status", "list_alarms"])
async def test_an_unknown_keyword_is_a_type_error(
    open_inline_world: OpenWorld, mock_clock: MockClock, method: str
) -> None:
    """As Python says it (C18)."""
    world = await open_inline_world(alarms=work())
    arguments = [] if method == "list_alarms" else ["raw", "a"]
    for alarms in (world.host.scheduler, world.host.service(Work)):
        with pytest.raises(TypeError, match="unexpected keyword argument 'runat'"):
            await getattr(alarms, method)(*arguments, runat=at(0))
    await assert_nothing_stored(world.host)


async def test_a_bad_argument_in_a_block_leaves_what_the_block_did(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """A caught refusal undoes nothing else, an uncaught one all of the block (R10, R13)."""
    world = await open_world(alarms=work())
    alarms = world.host.scheduler
    async with alarms.transaction() as tx:
        await tx.schedule_alarm("raw", "kept", run_at=at(0))
        with pytest.raises(InvalidAlarmRefError):
            await tx.schedule_alarm("raw", "", run_at=at(0))

    async def lose_all() -> None:
        async with alarms.transaction() as tx:
            await tx.schedule_alarm("raw", "lost", run_at=at(0))
            await tx.schedule_alarm("raw", "b", run_at=at(0), repeat_every=1)

    with pytest.raises(InvalidRepeatEveryError):
        await lose_all()
    await world.step()
    assert [row.id for row in world.rows()] == ["kept"]


async def test_a_contradictory_policy_is_refused_where_it_is_used(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The relation of two fields fails when they are resolved, and nothing is stored (R1)."""
    world = await open_world(alarms=work())
    with schedule_configuration(ScheduleConfiguration(minimum_retry_delay=7_200)):
        for method in METHODS:
            with pytest.raises(
                InvalidScheduleConfigurationError,
                match=r"parked_retry_delay must be at least minimum_retry_delay.* 3600 s .* 7200 s",
            ):
                await getattr(world.host.scheduler, method)("raw", "a", run_at=at(0))
        with pytest.raises(InvalidScheduleConfigurationError):
            async with world.host.scheduler.defer_wakes():
                pytest.fail("its body was entered")
    await assert_nothing_stored(world.host)


# Extreme times


@pytest.mark.parametrize(
    "options",
    [
        {"run_at": datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)},
        {"run_at": datetime(9999, 1, 1, tzinfo=ZONE_BEHIND)},
        {"after": 36_525 * 86_400},
        {"after": timedelta(days=36_525)},
        {"after": 3e9},
        {"run_at": datetime.max.replace(microsecond=0, tzinfo=ZONE_AHEAD)},
        {"after": 60, "repeat_every": timedelta(days=36_525)},
        {"run_at": at(60_000), "progress": 2**63 - 1},
    ],
)
async def test_extreme_times_are_stored_and_simply_not_due(
    open_world: OpenWorld, mock_clock: MockClock, options: dict[str, Any]
) -> None:
    """They come back as given, and another alarm still fires in a second (C03)."""
    handler = Recorder()
    world = await open_world(alarms=work(handler))
    status = await world.host.service(Work).schedule_alarm(
        Work.plain, "far", payload=Note("x"), **options
    )
    if "run_at" in options:
        assert status.run_at == options["run_at"]
    await world.host.service(Work).schedule_alarm(Work.plain, "near", after=1, payload=Note("x"))
    before = world.row("plain", "far")
    await world.step()
    await world.harness.advance(1)
    assert (handler.ids, handler.ran_at) == (["near"], [1_000])
    assert world.row("plain", "far") == before


async def test_a_computed_deadline_past_the_last_instant_saturates(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Durations from near the end of time end at its end (C03)."""
    epoch = datetime(9999, 12, 31, tzinfo=UTC)
    handler = Recorder(failures=1)
    world = await open_world(alarms=work(handler), epoch=epoch)
    last = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    far = await world.host.scheduler.schedule_alarm("raw", "far", after=timedelta(days=365))
    assert far.run_at == last
    assert [row.run_at for row in world.rows()] == [86_399_999]
    await world.host.service(Work).schedule_alarm(
        Work.plain, "repeat", run_at=epoch, payload=Note("x"), repeat_every=timedelta(days=365)
    )
    await world.step()
    await world.harness.advance(1)
    status = await world.host.service(Work).get_alarm_status(Work.plain, "repeat")
    assert status is not None
    assert (status.run_at, len(handler.events)) == (last, 2)


async def test_a_refused_time_leaves_other_alarms_alone(
    open_world: OpenWorld, mock_clock: MockClock
) -> None:
    """After every refusal another alarm in a second still fires (C03)."""
    handler = Recorder()
    world = await open_world(alarms=work(handler))
    for value, _ in BAD_DURATIONS:
        with pytest.raises(InvalidAlarmRefError):
            await world.host.scheduler.schedule_alarm("raw", "a", after=value)
    await world.host.service(Work).schedule_alarm(Work.plain, "near", after=1, payload=Note("x"))
    await world.step()
    await world.harness.advance(2)
    assert handler.ran_at == [1_000]


# Payloads that are taken


@attrs.frozen
class Paid:
    """One member of a union."""

    amount: int
    when: datetime


@attrs.frozen
class Refused:
    """The other one, with the same field."""

    amount: int


either = Alarm(Paid | Refused, tag="either")
anything = Alarm(Any, tag="anything")


@pytest.mark.parametrize(
    ("alarm", "payload"),
    [
        (anything, 2**70),
        (anything, -(10**4299)),
        (anything, 0.1),
        (anything, -0.0),
        (anything, 1e308),
        (anything, nested(100)),
        (anything, {"": [], "a": {"b": [None, True, 1, 1.0, "\u2028 😀 \x00"]}}),
        (anything, "x" * 1_000_000),
        (anything, "'; DROP TABLE trio_alarms_alarms; --"),
        (either, Paid(1, datetime(2000, 1, 1, 12, tzinfo=ZONE_AHEAD))),
        (either, Refused(1)),
    ],
    ids=type_of,
)
async def test_a_payload_that_is_taken_comes_back_equal(
    open_world: OpenWorld, mock_clock: MockClock, alarm: Any, payload: Any
) -> None:
    """After a crash and a restart the handler gets an equal value of the same type (C19)."""
    handler = Recorder()
    world = await open_world(
        alarms=define(either, anything).handlers(
            either.handled_by(handler), anything.handled_by(handler)
        )
    )
    await world.host.scheduler.schedule_alarm(alarm, "a", run_at=at(0), payload=payload)
    await world.harness.crash()
    await world.harness.reopen()
    await world.harness.deliver()
    received = handler.events[0].payload
    assert received == payload
    assert type(received) is type(payload)
    assert repr(received) == repr(payload)


# Listing


@pytest.mark.parametrize(
    "case",
    [
        *(
            bad(InvalidAlarmRefError, "^alarm must be", words, alarm=name)
            for name, words in BAD_NAMES
            if name is not None
        ),
        *(
            bad(InvalidAlarmRefError, "^parked must be a bool", words, parked=value)
            for value, words in [(1, "1"), ("yes", "str"), (0.0, "0.0")]
        ),
        *(
            bad(InvalidAlarmRefError, "^wake_before must be", words, wake_before=value)
            for value, words in BAD_INSTANTS
        ),
        *(
            bad(InvalidAlarmRefError, "^limit must be an int from 1 to", words, limit=value)
            for value, words in [
                (0, "0"),
                (-1, "-1"),
                (1.0, "1.0"),
                (True, "True"),
                ("5", "str"),
                (None, "None"),
                (2**63, str(2**63)),
            ]
        ),
        *(
            bad(InvalidAlarmRefError, "^after must be the last AlarmRecord", words, after=value)
            for value, words in [
                (("a", "b"), "tuple"),
                (AlarmRef("raw", "a"), "AlarmRef"),
                (5, "5"),
                ("token", "str"),
            ]
        ),
    ],
    ids=str,
)
async def test_bad_listing_arguments_are_refused(
    open_inline_world: OpenWorld, mock_clock: MockClock, case: Bad
) -> None:
    """The error names the parameter, what was given and what is allowed."""
    world = await open_inline_world(alarms=work())
    with pytest.raises(case.error) as caught:
        await world.host.scheduler.list_alarms(**case.given)
    assert_says(caught.value, case.words)


async def test_a_page_key_put_together_by_hand_is_checked(
    open_inline_world: OpenWorld, mock_clock: MockClock
) -> None:
    """Whatever a record holds, the error is ours and names `after`."""
    world = await open_inline_world(alarms=work())
    alarms: Any = world.host.scheduler
    status = await alarms.schedule_alarm("raw", "a", run_at=at(0))
    good = AlarmRecord(AlarmRef("raw", ""), status, "")
    naive = attrs.evolve(status, wake_at=at(0).replace(tzinfo=None))
    for record in (
        attrs.evolve(good, ref=AlarmRef("\ud800", "a")),
        attrs.evolve(good, ref=AlarmRef("raw", 2)),  # type: ignore[arg-type]  # that is the case
        attrs.evolve(good, ref=None),  # type: ignore[arg-type]  # as above
        attrs.evolve(good, status=None),  # type: ignore[arg-type]  # as above
        attrs.evolve(good, status=naive),
    ):
        with pytest.raises(InvalidAlarmRefError, match=r"^after"):
            await alarms.list_alarms(after=record)
    assert len(await alarms.list_alarms(after=good)) == 1


# Dispatching


class Card(AlarmService, key="card"):
    """A service that no host here has registered."""

    paid = Alarm(None)


def synchronous(_: object) -> None:
    """No async function."""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((synchronous,), "^handler must be an async callable.*synchronous"),
        ((None,), "^handler must be an async callable.*None"),
        ((succeed, {"limit": 5}), "^options must be a DispatchOptions, not .*dict"),
        ((succeed, None), "^options must be a DispatchOptions, not None"),
    ],
)
async def test_bad_dispatch_arguments_are_refused(
    open_inline_world: OpenWorld, mock_clock: MockClock, arguments: tuple[Any, ...], words: str
) -> None:
    """Both ways to dispatch with one handler check it before anything runs (C18)."""
    world = await open_inline_world()
    with pytest.raises(InvalidProcessDueAlarmsOptionsError, match=words):
        await world.host.scheduler.process_due_alarms(*arguments)
    with pytest.raises(InvalidProcessDueAlarmsOptionsError, match=words):
        process_due(*arguments)
    await assert_nothing_stored(world.host)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"concurrency": 0}, "^concurrency must be an int from 1 to"),
        ({"concurrency": 1.5}, "^concurrency must be an int from 1 to .* 1.5"),
        ({"limit": True}, "^limit must be an int from 1 to .* True"),
        ({"timeout": 0}, "^timeout must be"),
        ({"retry_failed_after": math.nan}, "^retry_failed_after must be .* nan"),
        ({"on_failure": synchronous}, "^on_failure must be an async callable"),
    ],
)
def test_bad_dispatch_options_are_refused(given: dict[str, Any], words: str) -> None:
    """They fail when the options are made (C18)."""
    with pytest.raises(InvalidProcessDueAlarmsOptionsError, match=words):
        DispatchOptions(**given)


async def test_an_unregistered_service_is_refused(
    open_inline_world: OpenWorld, mock_clock: MockClock
) -> None:
    """The error says which are registered."""
    world = await open_inline_world(alarms=work())
    for service in (Card, None, "work"):
        with pytest.raises(InvalidAlarmRegistrationError, match=r"^service must be .*'work'"):
            world.host.service(service)  # type: ignore[arg-type]  # that is the case


# Opening


def files_in(directory: Path) -> list[str]:
    """The names of what is there."""
    return sorted(path.name for path in directory.iterdir())


async def reporter(report: AlarmParked) -> None:
    """A reporter."""


async def asynchronous(host: AlarmHost) -> None:
    """An async function."""


@asynccontextmanager
async def event_scope(host: AlarmHost) -> AsyncIterator[None]:
    """An event scope."""
    yield


OPENING = [
    *(
        bad(InvalidAlarmRefError, "^name must be", "at most 128", words, name=name)
        for name, words in [
            *(each for each in BAD_NAMES if each[1] != "513 characters"),
            ("x" * 129, "129 characters"),
        ]
    ),
    *(
        bad(
            InvalidScheduleConfigurationError,
            "^alarms must be an AlarmRegistration or",
            words,
            alarms=value,
        )
        for value, words in [
            (5, "5"),
            ("work", "str"),
            (synchronous, "synchronous"),
            (Work, "type"),
            ([work()], "list"),
        ]
    ),
    *(
        bad(
            InvalidScheduleConfigurationError,
            f"^{name} must be an async function",
            words,
            **{name: value},
        )
        for name in ("raw_alarm", "reporter")
        for value, words in [(5, "5"), (synchronous, "synchronous"), (work(), "AlarmRegistration")]
    ),
    bad(InvalidScheduleConfigurationError, "^event_scope must be a function", "5", event_scope=5),
    *(
        bad(
            InvalidScheduleConfigurationError,
            f"^{name} must be of type {kind}",
            words,
            **{name: value},
        )
        for name, kind, value, words in [
            ("configuration", "ScheduleConfiguration", {}, "dict"),
            ("configuration", "ScheduleConfiguration", None, "None"),
            ("storage", "StorageOptions", {}, "dict"),
            ("storage", "StorageOptions", None, "None"),
            ("driver", "bool", 1, "1"),
            ("driver", "bool", None, "None"),
            ("clock", "AlarmClock", object(), "object"),
            ("clock", "AlarmClock", 5, "5"),
        ]
    ),
    *(
        bad(InvalidScheduleConfigurationError, "^drain_timeout must be", words, drain_timeout=value)
        for value, words in BAD_DURATIONS
    ),
    bad(
        InvalidScheduleConfigurationError,
        "^parked_retry_delay must be at least minimum_retry_delay",
        configuration=ScheduleConfiguration(minimum_retry_delay=3_601),
    ),
]


@pytest.mark.parametrize("case", OPENING, ids=str)
async def test_bad_arguments_of_open_host_are_refused(
    tmp_path: Path, mock_clock: MockClock, case: Bad
) -> None:
    """Before anything is created, named as all other bad arguments are (R1, R62)."""
    with pytest.raises(case.error) as caught:
        async with open_host(tmp_path / "app.db", **case.given):
            pytest.fail("it was opened")
    assert_says(caught.value, case.words)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(
    ("database", "words"),
    [
        (5, "not 5"),
        (None, "not None"),
        (b"app.db", "bytes"),
        ("", "empty"),
        ("a\0b", "NUL"),
        (object(), "object"),
        (["app.db"], "list"),
    ],
)
async def test_a_database_that_is_no_path_is_refused(
    mock_clock: MockClock, database: Any, words: str
) -> None:
    """The error says what a database may be."""
    with pytest.raises(InvalidScheduleConfigurationError, match=f"^database must be .*{words}"):
        async with open_host(database):
            pytest.fail("it was opened")


async def test_good_arguments_of_open_host_are_taken(tmp_path: Path, mock_clock: MockClock) -> None:
    """What the refusals above call allowed really is (R62)."""
    async with open_host(
        tmp_path / "app.db",
        name="😀" * 128,
        alarms=asynchronous,
        raw_alarm=asynchronous,
        event_scope=event_scope,
        reporter=reporter,
        driver=False,
        drain_timeout=timedelta(0),
    ) as host:
        assert host.name == "😀" * 128


async def test_an_unknown_keyword_of_open_host_is_a_type_error(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """As Python says it, and nothing is created (C18)."""
    options: dict[str, Any] = {"drain_timout": 5}
    with pytest.raises(TypeError, match="drain_timout"):
        async with open_host(tmp_path / "app.db", **options):
            pytest.fail("it was opened")
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"synchronous": "FULL"}, "^synchronous must be one of 'full', 'normal', 'off', .*'FULL'"),
        ({"synchronous": None}, "^synchronous must be one of .*None"),
        ({"busy_timeout": -1}, "^busy_timeout must be a timedelta or .*-1"),
        ({"busy_timeout": math.inf}, "^busy_timeout must be .*inf"),
        (
            {"executor": "threads"},
            "^executor must be one of 'auto', 'thread', 'inline', .*'threads'",
        ),
        ({"executor": ["thread"]}, "^executor must be one of .*list"),
        ({"max_payload_bytes": 0}, "^max_payload_bytes must be an int from 1 to .* 0"),
        ({"max_payload_bytes": 1e6}, "^max_payload_bytes must be an int from 1 to .*1000000"),
        ({"max_payload_bytes": True}, "^max_payload_bytes must be an int from 1 to .*True"),
    ],
)
def test_bad_storage_options_are_refused(given: dict[str, Any], words: str) -> None:
    """They fail when the options are made."""
    with pytest.raises(InvalidScheduleConfigurationError, match=words):
        StorageOptions(**given)


async def test_a_bad_instant_for_the_native_alarm_is_refused(
    open_inline_world: OpenWorld, mock_clock: MockClock
) -> None:
    """It is an instant as all others are (R35)."""
    world = await open_inline_world()
    for value, words in BAD_INSTANTS:
        with pytest.raises(InvalidAlarmRefError, match=f"^when must be .*{words}"):
            await world.host.native_alarm.set(value)
    await assert_nothing_stored(world.host)


async def test_a_handler_that_is_left_out_keeps_the_host_from_opening(
    mock_clock: MockClock, tmp_path: Path
) -> None:
    """A registration that does not fit fails when it is composed, before any host (C18)."""
    with pytest.raises(InvalidAlarmRegistrationError, match=r"manual|skipping"):
        async with open_host(
            tmp_path / "app.db", alarms=Work.handlers(Work.plain.handled_by(succeed))
        ):
            pytest.fail("it was opened")
    with pytest.raises(InvalidAlarmRegistrationError, match="async callable"):
        Work.plain.handled_by(synchronous)  # type: ignore[arg-type]  # that is the case
    assert files_in(tmp_path) == []
