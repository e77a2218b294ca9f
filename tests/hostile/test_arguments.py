"""Whatever is given to a public parameter: it works, or an `AlarmError` says why it does not."""

from __future__ import annotations

import logging
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import chdir, closing
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tests.hostile.values import (
    DURATIONS,
    HOSTILE,
    INSTANTS,
    NAMES,
    OBJECTS,
    VALID_NAMES,
    assert_shows_no_content,
    asynchronous,
    often,
    payloads,
    quick,
    some_of,
    thorough,
)
from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmError,
    AlarmHost,
    AlarmService,
    DispatchOptions,
    InvalidAlarmRegistrationError,
    Retry,
    ScheduleConfiguration,
    StorageOptions,
    SystemClock,
    TrioClock,
    alarm_reporter,
    define,
    import_effect_cf,
    merge_all,
    open_host,
    process_due,
    schedule_configuration,
)
from trio_alarms.testing import AlarmHarness, explore_crashes, open_test_host

# Values are long on purpose, and Hypothesis prints them only where one fails.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")


@attrs.frozen
class Note:
    """A payload."""

    text: str


class Notes(AlarmService, key="notes"):
    """One alarm of each lifecycle."""

    note = Alarm(Note)
    bare = Alarm(None)
    held = Alarm(Note, lifecycle="manual")


async def ignore(event: AlarmDue[Any]) -> None:
    """A handler."""


NOTES = Notes.handlers(
    Notes.note.handled_by(ignore), Notes.bare.handled_by(ignore), Notes.held.handled_by(ignore)
)


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """What is logged about thousands of alarms is of no interest."""
    logger = logging.getLogger("trio_alarms")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(level)


# The scheduler


ALARMS = st.one_of(st.just("raw"), st.sampled_from([Notes.note, Notes.bare, Notes.held]))
IDS = st.sampled_from(["a", "b", *NAMES])
SCHEDULING = st.fixed_dictionaries(
    {"payload": st.one_of(payloads(), st.builds(Note, payloads()), st.none())},
    optional={
        "run_at": often(INSTANTS),
        "after": often(DURATIONS),
        "repeat_every": often(st.integers(60, 10**6)),
        "progress": often(st.integers(0, 2**63 - 1)),
        "lifecycle": often(st.sampled_from(["automatic", "manual"])),
    },
)


NEVER = st.sampled_from([False])


@attrs.frozen
class Call:
    """A method of the scheduler, and what it is given."""

    method: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    # On the service's view instead of the raw scheduler; inside a transaction block.
    service: bool
    block: bool


METHODS = ("schedule_alarm", "schedule_alarm_earlier", "ensure_alarm")
CALLS = st.one_of(
    st.builds(
        Call,
        st.sampled_from(METHODS),
        st.tuples(often(ALARMS), often(IDS)),
        SCHEDULING,
        st.booleans(),
        st.booleans(),
    ),
    st.builds(
        Call,
        st.sampled_from(["cancel_alarm", "get_alarm_status"]),
        st.tuples(often(ALARMS), often(IDS)),
        st.just({}),
        st.booleans(),
        st.booleans(),
    ),
    st.builds(
        Call,
        st.just("list_alarms"),
        st.just(()),
        some_of(
            alarm=often(ALARMS),
            parked=often(st.booleans()),
            wake_before=often(INSTANTS),
            limit=often(st.integers(1, 10)),
            after=HOSTILE,
        ),
        st.booleans(),
        NEVER,
    ),
    st.builds(
        Call,
        st.just("process_due_alarms"),
        st.tuples(often(st.just(ignore)), often(st.just(DispatchOptions()))),
        st.just({}),
        NEVER,
        NEVER,
    ),
)


async def rows_of(host: AlarmHost) -> list[tuple[Any, ...]]:
    """All that is stored of alarms and hosts."""
    rows = await host.storage.query("SELECT * FROM trio_alarms_alarms ORDER BY host, tag, id")
    return rows + await host.storage.query("SELECT * FROM trio_alarms_hosts ORDER BY name")


async def outcome(operation: Callable[[], Awaitable[object]]) -> AlarmError | None:
    """The error of an operation, which is one of ours and shows no content."""
    try:
        await operation()
    except AlarmError as error:
        assert_shows_no_content(error)
        return error
    return None


async def check_call(host: AlarmHost, call: Call) -> None:
    """One call on a host: it works, or raises an error of ours and stores nothing."""
    before = await rows_of(host)
    scheduler = host.service(Notes) if call.service else host.scheduler

    async def operation() -> None:
        if call.block:
            async with scheduler.transaction() as tx:
                await getattr(tx, call.method)(*call.arguments, **call.options)
        else:
            await getattr(scheduler, call.method)(*call.arguments, **call.options)

    if await outcome(operation) is not None and call.method != "process_due_alarms":
        assert await rows_of(host) == before
    elif call.method in METHODS:
        alarm, id = call.arguments
        assert await scheduler.get_alarm_status(alarm, id) is not None


def check_calls(calls: list[Call]) -> None:
    """Make the calls on one host, each checked, and check that it still works."""

    async def main() -> None:
        async with open_test_host(alarms=NOTES) as harness:
            for call in calls:
                await check_call(harness.host, call)
            await harness.host.scheduler.schedule_alarm("last", "a", after=0)
            assert len(await harness.host.scheduler.list_alarms(alarm="last")) == 1

    trio.run(main, clock=trio.testing.MockClock())


@quick(30)
@given(calls=st.lists(CALLS, min_size=4, max_size=12))
def test_any_argument_of_the_scheduler(calls: list[Call]) -> None:
    """It is stored and found, or an `AlarmError` is raised and nothing is stored (C18)."""
    check_calls(calls)


@pytest.mark.trust
@thorough(800)
@given(calls=st.lists(CALLS, min_size=4, max_size=12))
def test_very_many_arguments_of_the_scheduler(calls: list[Call]) -> None:
    """As above, at length (C18)."""
    check_calls(calls)


@pytest.mark.parametrize("method", [*METHODS, "cancel_alarm", "get_alarm_status", "list_alarms"])
async def test_every_hostile_object_in_every_parameter(method: str, mock_clock: object) -> None:
    """Each of them in each place, the others being as they should (C18)."""
    async with open_test_host(alarms=NOTES) as harness:
        for value in OBJECTS:
            for call_ in calls_with(value, method):
                await check_call(harness.host, call_)


def calls_with(value: Any, method: str) -> Iterator[Call]:
    """Calls of a method with the value in the place of each argument in turn."""
    if method == "list_alarms":
        for parameter in ("alarm", "parked", "wake_before", "limit", "after"):
            yield Call(method, (), {parameter: value}, service=False, block=False)
        return
    scheduling = method in METHODS
    due = {"after": 5} if scheduling else {}
    for arguments in ((value, "a"), ("raw", value)):
        yield Call(method, arguments, due, service=False, block=False)
    yield Call(method, (value, "a"), due, service=True, block=False)
    if scheduling:
        note = {"payload": Note(value), **due}
        yield Call(method, (Notes.note, "a"), note, service=True, block=False)
        yield Call(method, ("raw", "a"), {"run_at": value}, service=False, block=True)
        for parameter in ("after", "payload", "repeat_every", "progress", "lifecycle"):
            options = {**due, parameter: value}
            yield Call(method, ("raw", "a"), options, service=False, block=False)


# What is made without a host


VALUES: dict[str, tuple[Callable[..., object], st.SearchStrategy[dict[str, Any]]]] = {
    "StorageOptions": (
        StorageOptions,
        some_of(
            synchronous=often(st.sampled_from(["full", "normal", "off"])),
            busy_timeout=often(DURATIONS),
            executor=often(st.sampled_from(["auto", "thread", "inline"])),
            max_payload_bytes=often(st.integers(1, 2**40)),
        ),
    ),
    "ScheduleConfiguration": (
        lambda **given: schedule_configuration(ScheduleConfiguration(**given)),
        some_of(
            dispatch_after_event=often(st.booleans()),
            in_flight_recovery=often(DURATIONS),
            minimum_retry_delay=often(DURATIONS),
            unchanged_attempt_budget=often(st.integers(1, 100)),
            parked_retry_delay=often(DURATIONS),
            minimum_repeat_interval=often(DURATIONS),
        ),
    ),
    "DispatchOptions": (
        DispatchOptions,
        some_of(
            limit=often(st.integers(1, 100)),
            concurrency=often(st.integers(1, 100)),
            timeout=often(DURATIONS),
            retry_failed_after=often(DURATIONS),
            on_failure=often(st.just(asynchronous)),
        ),
    ),
    "Retry": (Retry, st.fixed_dictionaries({"after": often(DURATIONS)})),
    "Alarm": (
        Alarm,
        st.fixed_dictionaries(
            {"payload_type": often(st.sampled_from([None, str, Note, int | None, list[Note]]))},
            optional={
                "tag": often(VALID_NAMES),
                "lifecycle": often(st.sampled_from(["automatic", "manual"])),
                "failure": often(st.sampled_from([None, "retry", "skip-and-advance-repeat"])),
                "retry_initial_delay": often(DURATIONS),
                "timeout": often(DURATIONS),
                "upgrade": HOSTILE,
            },
        ),
    ),
    "SystemClock": (SystemClock, some_of(check_interval=often(DURATIONS))),
    "TrioClock": (TrioClock, some_of(epoch=often(INSTANTS))),
    "handled_by": (
        Notes.note.handled_by,
        st.fixed_dictionaries({"handler": HOSTILE}),
    ),
    "handlers": (
        lambda bound, **options: Notes.handlers(*bound, **options),
        st.fixed_dictionaries(
            {
                "bound": st.lists(
                    often(st.sampled_from([Notes.note.handled_by(ignore), NOTES])), max_size=4
                )
            },
            optional={"options": often(st.just(DispatchOptions()))},
        ),
    ),
    "define": (
        lambda alarms, bound, **options: define(*alarms, **options).handlers(*bound),
        st.fixed_dictionaries(
            {
                "alarms": st.lists(
                    often(st.builds(Alarm, st.just(str), tag=VALID_NAMES)), max_size=3
                ),
                "bound": st.lists(HOSTILE, max_size=2),
            },
            optional={"converter": HOSTILE},
        ),
    ),
    "merge_all": (
        lambda registrations: merge_all(*registrations),
        st.fixed_dictionaries({"registrations": st.lists(often(st.just(NOTES)), max_size=3)}),
    ),
    "process_due": (
        process_due,
        st.fixed_dictionaries(
            {"handler": often(st.just(ignore))},
            optional={"options": often(st.just(DispatchOptions()))},
        ),
    ),
    "schedule_configuration": (
        schedule_configuration,
        st.fixed_dictionaries({"configuration": HOSTILE}),
    ),
    "alarm_reporter": (alarm_reporter, st.fixed_dictionaries({"reporter": HOSTILE})),
}


def service_class(namespace: dict[str, Any], **keywords: Any) -> object:
    """Define a service, as a class statement does."""
    return type(AlarmService)("Service", (AlarmService,), namespace, **keywords)


SERVICES = st.fixed_dictionaries(
    {"namespace": st.fixed_dictionaries({"x": st.builds(Alarm, st.just(str)) | HOSTILE})},
    optional={"key": often(VALID_NAMES), "converter": HOSTILE},
)
VALUES["AlarmService"] = (service_class, SERVICES)

VALUE_CALLS = st.sampled_from(sorted(VALUES)).flatmap(
    lambda name: st.tuples(st.just(name), VALUES[name][1])
)


@pytest.mark.parametrize("name", sorted(VALUES))
def test_every_hostile_object_in_every_field(name: str) -> None:
    """Each of them in each field, the others left out where they may be (C18)."""
    parameters = FIELDS[name]
    for value in OBJECTS:
        for parameter in parameters:
            given_ = {**NEEDED.get(name, {}), parameter: value}
            check_values([(name, given_)])


FIELDS: dict[str, list[str]] = {
    "StorageOptions": ["synchronous", "busy_timeout", "executor", "max_payload_bytes"],
    "ScheduleConfiguration": [
        "dispatch_after_event",
        "in_flight_recovery",
        "minimum_retry_delay",
        "unchanged_attempt_budget",
        "parked_retry_delay",
        "minimum_repeat_interval",
    ],
    "DispatchOptions": ["limit", "concurrency", "timeout", "retry_failed_after", "on_failure"],
    "Retry": ["after"],
    "Alarm": [
        "payload_type",
        "tag",
        "lifecycle",
        "failure",
        "retry_initial_delay",
        "timeout",
        "upgrade",
    ],
    "SystemClock": ["check_interval"],
    "TrioClock": ["epoch"],
    "handled_by": ["handler"],
    "handlers": ["options"],
    "define": ["converter"],
    "merge_all": [],
    "process_due": ["handler", "options"],
    "schedule_configuration": ["configuration"],
    "alarm_reporter": ["reporter"],
    "AlarmService": ["key", "converter"],
}
NEEDED: dict[str, dict[str, Any]] = {
    "Alarm": {"payload_type": str},
    "handlers": {"bound": [Notes.note.handled_by(ignore)]},
    "define": {"alarms": [Alarm(str, tag="a")], "bound": []},
    "process_due": {"handler": ignore},
    "AlarmService": {"namespace": {}},
}


def check_values(made: list[tuple[str, dict[str, Any]]]) -> None:
    """Make each value: it is made, or an error of ours says why not."""
    for name, given_ in made:
        try:
            VALUES[name][0](**given_)
        except AlarmError as error:
            assert_shows_no_content(error)


@quick(60)
@given(made=st.lists(VALUE_CALLS, min_size=5, max_size=10))
def test_any_field_of_a_value(made: list[tuple[str, dict[str, Any]]]) -> None:
    """It is made, or an `AlarmError` is raised at once (C18)."""
    check_values(made)


@pytest.mark.trust
@thorough(3_000)
@given(made=st.lists(VALUE_CALLS, min_size=5, max_size=10))
def test_very_many_fields_of_values(made: list[tuple[str, dict[str, Any]]]) -> None:
    """As above, at length (C18)."""
    check_values(made)


UNKNOWN = st.from_regex(r"[a-z]{3,8}_x", fullmatch=True)
KEYWORDS: list[Callable[..., Any]] = [
    Alarm,
    StorageOptions,
    ScheduleConfiguration,
    DispatchOptions,
    Retry,
    SystemClock,
    TrioClock,
    Notes.handlers,
    define,
    merge_all,
    process_due,
    open_host,
    open_test_host,
    schedule_configuration,
    alarm_reporter,
    import_effect_cf,
]


@quick(30)
@given(function=st.sampled_from(KEYWORDS), keyword=UNKNOWN, value=HOSTILE)
def test_any_unknown_keyword(function: Callable[..., Any], keyword: str, value: Any) -> None:
    """It is Python's own error, wherever it is given (C18)."""

    async def main() -> None:
        if function in (open_host, open_test_host):
            async with function(":memory:", **{keyword: value}):
                pass
        else:
            function(**{keyword: value})

    with pytest.raises(TypeError, match=f"keyword argument '{keyword}'|missing"):
        trio.run(main, clock=trio.testing.MockClock())


# Opening, the harness, and the storage


OPENING = some_of(
    name=often(VALID_NAMES),
    alarms=often(st.just(NOTES)),
    raw_alarm=often(st.none()),
    event_scope=often(st.none()),
    configuration=often(st.just(ScheduleConfiguration())),
    reporter=often(st.just(asynchronous)),
    clock=often(st.none()),
    driver=often(NEVER),
    drain_timeout=often(DURATIONS),
    storage=often(st.just(StorageOptions(executor="inline", synchronous="off"))),
)
OPTIONS = (
    "name",
    "alarms",
    "raw_alarm",
    "event_scope",
    "configuration",
    "reporter",
    "clock",
    "driver",
    "drain_timeout",
    "storage",
)
DATABASES = st.one_of(
    st.sampled_from(
        ["a.db", Path("b.db"), ":memory:", "", ".", "no/such/folder/a.db", "a\0b", b"c.db", "'; --"]
    ),
    st.text(st.characters(exclude_characters="/"), max_size=30),
    st.text("ab/.", max_size=5).map(lambda text: f"./{text.replace('..', '')}"),
    HOSTILE.filter(lambda value: type(value) not in {str, bytes} or len(value) <= 30),
)


def files_in(folder: str) -> Iterator[Path]:
    """Every file that is there."""
    return (path for path in Path(folder).rglob("*") if path.is_file())


def check_opening(database: Any, options: dict[str, Any], *, harness: bool) -> None:
    """Open a host: it opens and works, or an error of ours is raised and nothing is created."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):

        async def main() -> None:
            opener: Any = open_test_host if harness else open_host

            async def operation() -> None:
                async with opener(database, **options) as opened:
                    host = opened.host if harness else opened
                    await host.scheduler.schedule_alarm("raw", "a", after=5)

            error = await outcome(operation)
            assert error is None or not any(files_in(folder)), error

        trio.run(main, clock=trio.testing.MockClock())


@quick(40)
@given(database=DATABASES, options=OPENING, harness=st.booleans())
def test_any_argument_of_open_host(database: Any, options: dict[str, Any], harness: bool) -> None:  # noqa: FBT001 - hypothesis gives it by name
    """It opens, or an `AlarmError` is raised before anything is created (C18)."""
    check_opening(database, options, harness=harness)


@pytest.mark.parametrize("harness", [False, True])
def test_every_hostile_object_as_the_database(*, harness: bool) -> None:
    """Each of them in the place of a path (C18)."""
    for value in OBJECTS:
        if type(value) is not str:
            check_opening(value, {}, harness=harness)


@pytest.mark.trust
@pytest.mark.parametrize("harness", [False, True])
@pytest.mark.parametrize("option", OPTIONS)
def test_every_hostile_object_as_every_option(option: str, *, harness: bool) -> None:
    """Each of them as each option alone (C18)."""
    for value in OBJECTS:
        # What has a clock's methods is one, whatever they answer.
        if option != "clock" or not isinstance(value, mock.MagicMock):
            check_opening("a.db", {option: value}, harness=harness)


@pytest.mark.trust
@thorough(600)
@given(database=DATABASES, options=OPENING, harness=st.booleans())
def test_very_many_arguments_of_open_host(
    database: Any,
    options: dict[str, Any],
    harness: bool,  # noqa: FBT001 - hypothesis gives it by name
) -> None:
    """As above, at length (C18)."""
    check_opening(database, options, harness=harness)


async def _harness_call(harness: AlarmHarness, name: str, value: Any) -> None:
    if name == "native_alarm.set":
        await harness.host.native_alarm.set(value)
    elif name == "service":
        harness.host.service(value)
    elif name == "reopen":
        await harness.reopen(name=value)
    elif name == "reopen alarms":
        await harness.reopen(alarms=value)
    elif name == "advance":
        await harness.advance(value)
    elif name == "set_time":
        await harness.set_time(value)
    elif name == "points":
        await explore_crashes(ignore, invariant=ignore, points=value)
    elif name == "only":
        await explore_crashes(ignore, invariant=ignore, only=value)
    else:
        await getattr(harness.host.storage, name)(value)


async def test_every_hostile_object_as_a_service(mock_clock: object) -> None:
    """None of them is registered, and the error shows nothing of it (C18)."""
    async with open_test_host(alarms=NOTES) as harness:
        for value in [*OBJECTS, *([one] for one in OBJECTS)]:
            with pytest.raises(InvalidAlarmRegistrationError) as caught:
                harness.host.service(value)
            assert_shows_no_content(caught.value)


HARNESS_CALLS = st.tuples(
    st.sampled_from(
        [
            "advance",
            "set_time",
            "native_alarm.set",
            "service",
            "reopen",
            "reopen alarms",
            "points",
            "only",
        ]
    ),
    HOSTILE,
)


@quick(25)
@given(calls=st.lists(HARNESS_CALLS, min_size=1, max_size=6))
def test_any_argument_of_the_harness(calls: list[tuple[str, Any]]) -> None:
    """It works, or an `AlarmError` is raised, and the harness can still be used (C18)."""

    async def main() -> None:
        async with open_test_host(alarms=NOTES) as harness:
            for name, value in calls:
                if await outcome(lambda n=name, v=value: _harness_call(harness, n, v)) is not None:
                    await harness.reopen(name="default", alarms=NOTES)
            await harness.host.scheduler.schedule_alarm("last", "a", after=0)
            assert len(await harness.host.scheduler.list_alarms(alarm="last")) == 1

    trio.run(main, clock=trio.testing.MockClock())


STATEMENTS = st.one_of(
    st.sampled_from(
        [
            "SELECT ?",
            "SELECT :a",
            "INSERT INTO items VALUES (?)",
            "SELECT 1; DROP TABLE items",
            "COMMIT",
            "ROLLBACK",
            "BEGIN",
            "SAVEPOINT x",
            "RELEASE x",
            "ATTACH DATABASE ':memory:' AS other",
            "VACUUM",
            "END",
            "/* */",
            ";",
            "PRAGMA user_version",
        ]
    ),
    HOSTILE,
)
PARAMETERS = st.one_of(st.lists(HOSTILE, max_size=2), HOSTILE)
SQL_CALLS = st.tuples(st.sampled_from(["query", "execute", "executemany", "run_sync"]), STATEMENTS)


def check_sql(calls: list[tuple[tuple[str, Any], Any]]) -> None:
    """Give each to the storage; what the block did before is stored all the same."""

    async def main() -> None:
        async with open_test_host() as harness:
            storage = harness.host.storage
            async with storage.transaction() as tx:
                await tx.execute("CREATE TABLE items (item)")
            async with storage.transaction() as tx:
                await tx.execute("INSERT INTO items VALUES ('first')")
                for (name, sql), params in calls:
                    await outcome(lambda n=name, s=sql, p=params: use(tx, storage, n, s, p))
            assert ("first",) in await storage.query("SELECT item FROM items")
            with closing(sqlite3.connect(harness.database, timeout=0)) as other:
                other.execute("BEGIN IMMEDIATE")

    trio.run(main, clock=trio.testing.MockClock())


async def use(tx: Any, storage: Any, name: str, sql: Any, params: Any) -> None:
    """One call with application SQL."""
    if name == "query":
        await storage.query(sql, params)
    elif name == "run_sync":
        if not callable(sql):
            await tx.run_sync(sql)
    else:
        await getattr(tx, name)(sql, params)


@quick(30)
@given(calls=st.lists(st.tuples(SQL_CALLS, PARAMETERS), min_size=3, max_size=10))
def test_any_sql_and_parameters(calls: list[tuple[tuple[str, Any], Any]]) -> None:
    """It runs, or an `AlarmError` is raised, and the block goes on and commits (R10)."""
    check_sql(calls)


@pytest.mark.trust
@thorough(600)
@given(calls=st.lists(st.tuples(SQL_CALLS, PARAMETERS), min_size=3, max_size=10))
def test_very_much_sql_and_parameters(calls: list[tuple[tuple[str, Any], Any]]) -> None:
    """As above, at length (R10)."""
    check_sql(calls)


def test_every_hostile_object_as_parameters() -> None:
    """Each of them as all the parameters of a statement, and as one of its rows (R10)."""
    for name in ("query", "execute"):
        check_sql([((name, "SELECT ?"), value) for value in OBJECTS])
    insert = ("executemany", "INSERT INTO items VALUES (?)")
    check_sql([(insert, value) for value in OBJECTS])
    check_sql([(insert, [value]) for value in OBJECTS])
