"""Bad arguments of schedulers: a clear error at the call, and nothing stored."""

from __future__ import annotations

import enum
import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from trio.testing import MockClock

from tests.behaviour.bad_arguments import (
    BAD_DURATIONS,
    BAD_INSTANTS,
    BAD_NAMES,
    CONTENT,
    DURATION_RULE,
    NAME_RULE,
    Bad,
    assert_nothing_stored,
    assert_says,
    bad,
    nested,
    synchronous,
    type_of,
)
from tests.behaviour.work_service import Note, Work, at, succeed, work
from trio_alarms import (
    Alarm,
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
    process_due,
    schedule_configuration,
)

if TYPE_CHECKING:
    from tests.behaviour.conftest import OpenWorld
    from trio_alarms import AlarmHost

METHODS = ["schedule_alarm", "schedule_alarm_earlier", "ensure_alarm"]


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
    bad(InvalidAlarmRefError, "exactly one of run_at .* after", "neither was given", run_at=None),
    bad(InvalidAlarmRefError, "exactly one of run_at .* after", "both were given", after=5),
    bad(
        InvalidAlarmRefError,
        "^after must be",
        DURATION_RULE,
        "not 2000-01-01T00:00:00; .* run_at=$",
        run_at=None,
        after=at(0),
    ),
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
