"""Bad arguments of many calls, and what their errors have to say."""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, Any

import attrs

from trio_alarms import AlarmError

if TYPE_CHECKING:
    from trio_alarms import AlarmHost

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


async def assert_nothing_stored(host: AlarmHost) -> None:
    """Neither an alarm nor the mark of a managed host."""
    assert await host.storage.query("SELECT * FROM trio_alarms_alarms") == []
    assert await host.storage.query("SELECT * FROM trio_alarms_hosts") == []


def synchronous(_: object) -> None:
    """No async function."""
