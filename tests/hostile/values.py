"""Strategies of hostile values, and the profiles under which they are tried."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar
from unittest import mock

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from trio_alarms import (
    AlarmRecord,
    AlarmRef,
    AlarmStatus,
    DispatchOptions,
    Retry,
    ScheduleConfiguration,
    StorageOptions,
)

T = TypeVar("T")

IN_CI: Final = "CI" in os.environ

# Stands in every payload and every hostile object: no message may show it.
CONTENT: Final = "what-no-error-may-show"
EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)


def quick(examples: int) -> settings:
    """The same few examples at every run."""
    return settings(max_examples=examples, derandomize=True, database=None, **_COMMON)


def thorough(examples: int) -> settings:
    """Many examples, others at every run; but in CI, where green is to mean the same each time."""
    return settings(max_examples=examples, derandomize=IN_CI, database=None, **_COMMON)


_COMMON: Final[dict[str, Any]] = {
    "deadline": None,
    "phases": [Phase.explicit, Phase.generate],  # shrinking would take minutes
    "suppress_health_check": list(HealthCheck),
}


class HostileError(Exception):
    """What the special methods of `Hostile` raise."""

    def __init__(self) -> None:
        super().__init__(CONTENT)


def _raise(*_: object, **__: object) -> NoReturn:
    raise HostileError


_SPECIAL = [
    "__eq__",
    "__ne__",
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
    "__hash__",
    "__bool__",
    "__len__",
    "__iter__",
    "__contains__",
    "__getitem__",
    "__index__",
    "__int__",
    "__float__",
    "__str__",
    "__format__",
    "__add__",
    "__radd__",
    "__sub__",
    "__rsub__",
    "__mul__",
    "__rmul__",
    "__floordiv__",
    "__neg__",
    "__abs__",
    "__round__",
    "__trunc__",
    "__getattr__",
]


def _hostile(name: str, *bases: type) -> Any:
    """A class of which no special method can be used, but `repr`, which tells the content."""
    return type(name, bases, dict.fromkeys(_SPECIAL, _raise) | {"__repr__": lambda _: CONTENT})


Hostile = _hostile("Hostile", object)
HostileInt = _hostile("HostileInt", int)
HostileFloat = _hostile("HostileFloat", float)
HostileStr = _hostile("HostileStr", str)
HostileDelta = _hostile("HostileDelta", timedelta)
HostileDatetime = _hostile("HostileDatetime", datetime)


class Uncomparable:
    """As arrays are: compared it gives something without a truth value."""

    def __eq__(self, other: object) -> Any:
        return self

    def __hash__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        raise HostileError

    def __repr__(self) -> str:
        return CONTENT


class Colour(Enum):
    """A member of an enum that is no string."""

    RED = CONTENT


def synchronous(_: object) -> None:
    """No async function."""


async def asynchronous(_: object) -> None:
    """An async function, of whatever."""


async def without_arguments() -> None:
    """An async function that cannot be called as we do."""


def generator(_: object) -> Any:
    """A generator function."""
    yield


NAMES: Final = [
    "'; DROP TABLE trio_alarms_alarms; --",
    '"quoted"',
    "it''s",
    "%_[a-z]*?",
    "a/b",
    "\\",
    "{0}{tag!r}%s%(x)d",
    "<script>alert(1)</script>",
    "line\nbreak\r\t",
    "\x01\x7f\x85\u2028\ufeff\ufffe",
    "\u202eright to left",
    "e\u0301",
    "\u00e9",
    "😀",
    " ",
    "NULL",
    "?1",
    "x" * 512,
    "😀" * 512,
]
BAD_NAMES: Final = ["", "a\0b", "\0", "\ud800", "x\udfff", "x" * 513]

_STATUS = AlarmStatus(
    run_at=EPOCH,
    retry_at=None,
    wake_at=EPOCH,
    attempts=0,
    parked=False,
    lifecycle="automatic",
    repeat_every=None,
    progress=None,
)

OBJECTS: Final[list[Any]] = [
    None,
    True,
    False,
    ...,
    NotImplemented,
    object(),
    object,
    Hostile(),
    Uncomparable(),
    HostileInt(7),
    HostileFloat(0.5),
    HostileStr("hostile"),
    HostileDelta(seconds=90),
    HostileDatetime(2000, 1, 1, tzinfo=UTC),
    Colour.RED,
    synchronous,
    asynchronous,
    without_arguments,
    generator,
    functools.partial(asynchronous, CONTENT),
    functools.partial(synchronous),
    lambda *_: CONTENT,
    len,
    print,
    Path,
    Decimal("1.5"),
    Decimal("NaN"),
    Fraction(1, 3),
    1j,
    date(2000, 1, 1),
    datetime(2000, 1, 1),  # noqa: DTZ001 - that is the case
    datetime.max,  # noqa: DTZ901 - as above
    datetime.max.replace(tzinfo=timezone(-timedelta(hours=23))),
    datetime.min.replace(tzinfo=timezone(timedelta(hours=23))),
    timedelta.max,
    timedelta.min,
    timedelta(microseconds=1),
    10**5000,
    -(10**5000),
    2**63 - 1,
    2**63,
    -(2**63) - 1,
    1e-300,
    -0.0,
    AlarmRef("raw", "a"),
    AlarmRecord(AlarmRef("raw", "a"), _STATUS, CONTENT),
    AlarmRecord(AlarmRef("raw\0", Hostile()), _STATUS, CONTENT),
    AlarmRecord(Hostile(), Hostile(), Hostile()),
    AlarmRecord(AlarmRef("raw", "a"), Hostile(), CONTENT),
    ScheduleConfiguration(),
    DispatchOptions(),
    StorageOptions(),
    Retry(after=1),
    ValueError(CONTENT),
    ValueError,
    *(mock.Mock(spec=kind) for kind in (int, float, str, list, datetime, timedelta, AlarmRecord)),
    mock.MagicMock(),
    "x" * 100_000,
]

# What claims to be a float, Hypothesis asks whether it is a number before it prints it.
_DRAWN = [each for each in OBJECTS if type(each) is float or each.__class__ is not float]
_SCALARS = st.one_of(
    st.integers(),
    st.floats(),
    st.binary(max_size=20),
    st.text(max_size=20),
    st.text(st.characters(categories=["Cs", "Cc", "Lu"]), max_size=5),
    st.datetimes(timezones=st.sampled_from([None, UTC, timezone(timedelta(hours=14))])),
    st.timedeltas(),
    st.sampled_from(NAMES + BAD_NAMES),
    # By number, as hypothesis would compare and hash what it samples.
    st.integers(0, len(_DRAWN) - 1).map(lambda number: _DRAWN[number]),
)
HOSTILE: Final = st.one_of(
    _SCALARS,
    st.lists(_SCALARS, max_size=3),
    st.lists(_SCALARS, max_size=3).map(tuple),
    st.dictionaries(st.text(max_size=5), _SCALARS, max_size=3),
)

VALID_NAMES: Final = st.one_of(
    st.sampled_from(NAMES), st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
).filter(lambda name: "\0" not in name and len(name) <= 512)
DURATIONS: Final = st.one_of(
    st.integers(0, 10**9), st.floats(0, 1e9), st.timedeltas(timedelta(0), timedelta(days=36_525))
)
INSTANTS: Final = st.datetimes(
    datetime(1, 1, 2),  # noqa: DTZ001 - hypothesis adds the zone
    datetime(9999, 12, 30),  # noqa: DTZ001 - as above
    timezones=st.just(UTC),
)
JSON: Final = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
        st.just(CONTENT),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b", CONTENT]), inner, max_size=3),
    ),
    max_leaves=8,
)


def often(valid: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly what is allowed, so that what is checked later is reached too; else anything."""
    return st.one_of(valid, valid, valid, HOSTILE)


def some_of(
    **parameters: st.SearchStrategy[Any],
) -> st.SearchStrategy[dict[str, Any]]:
    """Keyword arguments: any of these, with values from their strategies."""
    return st.fixed_dictionaries({}, optional=parameters)


def payloads() -> st.SearchStrategy[Any]:
    """Payloads that may and that may not be stored."""
    return st.one_of(JSON, JSON, HOSTILE, _nested(), st.just({CONTENT: {1, 2}}))


def _nested() -> st.SearchStrategy[Any]:
    return st.sampled_from([90, 101, 5_000]).map(_lists)


def _lists(depth: int) -> Any:
    value: Any = [CONTENT]
    for _ in range(depth):
        value = [value]
    return value


def assert_shows_no_content(error: BaseException) -> None:
    """The message is of a readable length and shows no content."""
    message = str(error)
    assert CONTENT not in message, message
    assert len(message) < 1_000, message


def call(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Call what has a precise type with whatever was drawn."""
    return function(*arguments, **options)
