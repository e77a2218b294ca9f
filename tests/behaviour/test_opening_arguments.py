"""Bad arguments of `open_host` and its options: an error, and nothing created."""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from trio.testing import MockClock

from tests.behaviour.bad_arguments import (
    BAD_DURATIONS,
    BAD_INSTANTS,
    BAD_NAMES,
    Bad,
    assert_nothing_stored,
    assert_says,
    bad,
    synchronous,
)
from tests.behaviour.work_service import Work, succeed, work
from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmService,
    InvalidAlarmRefError,
    InvalidAlarmRegistrationError,
    InvalidScheduleConfigurationError,
    ScheduleConfiguration,
    StorageOptions,
    open_host,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.behaviour.conftest import OpenWorld
    from trio_alarms import AlarmHost, AlarmParked


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
            (Work, "the service Work"),
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


class _Shop(AlarmService, key="tests/shop"):
    """A service that is passed where its handlers are meant."""

    order = Alarm(None)


async def _on_order(event: AlarmDue[None]) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (_Shop, r"pass _Shop\.handlers\("),
        (_Shop.order.handled_by(_on_order), r"the service's handlers\("),
        ([_Shop.handlers(_Shop.order.handled_by(_on_order))], "merge_all"),
    ],
    ids=["a service", "a bound handler", "a list of registrations"],
)
async def test_what_is_nearly_a_registration_is_refused_with_what_to_pass(
    tmp_path: Path, given: Any, hint: str
) -> None:
    """A newcomer's first mistakes are answered with the call that was meant."""
    with pytest.raises(InvalidScheduleConfigurationError, match=hint):
        async with open_host(tmp_path / "alarms.db", alarms=given):
            raise AssertionError("it opened")
    assert not any(tmp_path.iterdir())  # noqa: ASYNC240 - an empty folder of the test's


def test_opening_under_asyncio_says_what_is_needed(tmp_path: Path) -> None:
    """Trio's own words, "must be called from async context", would puzzle there."""

    async def main() -> None:
        async with open_host(tmp_path / "alarms.db"):
            raise AssertionError("it opened")

    with pytest.raises(RuntimeError, match=r"trio\.run.*asyncio is not supported"):
        asyncio.run(main())
    assert list(tmp_path.iterdir()) == []
