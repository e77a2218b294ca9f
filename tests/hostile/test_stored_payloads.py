"""Whatever stands in the file in the place of a payload: it is JSON, or that alarm fails."""

from __future__ import annotations

import json
import pickle
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tests.hostile.test_arguments import quiet
from tests.hostile.values import CONTENT, assert_shows_no_content, quick, thorough
from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmFailure,
    DispatchOptions,
    StoredAlarmDecodeError,
    define,
)
from trio_alarms.testing import open_test_host

__all__ = ["quiet"]  # the fixture, which is for this module too

executed: list[str] = []


def execute(what: str = "called") -> Any:
    """What nothing stored may ever have called."""
    executed.append(what)


class Payload:
    """A class that a stored class name would lead to."""

    def __init__(self, **_: Any) -> None:
        execute("constructed")

    def __reduce__(self) -> Any:
        return (execute, ("unpickled",))


@attrs.frozen
class Order:
    """A payload."""

    number: int
    note: str = ""


@attrs.frozen
class Refund:
    """The other member of a union."""

    number: int


TYPES: Final[dict[str, Any]] = {
    "order": Order,
    "either": Order | Refund,
    "numbers": dict[str, list[int]],
    "anything": Any,
    "upgraded": Order,
}


def upgrade(stored: Any) -> Any:
    """As applications write them: sure of what was stored."""
    return {"number": stored["nr"]} if "nr" in stored else stored


def this(what: str) -> str:
    """The name by which a stored class name or a YAML tag would find something of ours."""
    return f"{__name__}.{what}"


KNOWN: Final[list[bytes]] = [
    b"",
    b"\0",
    b"null",
    b"{}",
    b"{",
    b"[]" * 3,
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b'"\\ud800"',
    b'{"number": NaN}',
    b'{"number": 1e999}',
    b'{"number": -Infinity}',
    b'{"number": ' + b"9" * 5_000 + b"}",
    b'{"number": ' + b"9" * 1_000_000 + b"}",
    b"1" * 4_301,
    b'{"number": 1, "number": 2}',
    b'{"number": "1"}',
    b'{"number": true}',
    b"[" * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    b'{"number": ' + b"[" * 900 + b"]" * 900 + b"}",
    *(pickle.dumps(Payload(), protocol) for protocol in range(6)),
    json.dumps({"_type": this("Payload"), "number": 1}).encode(),
    json.dumps({"_type": "Payload", "number": 1}).encode(),
    json.dumps({"_type": "__class__", "number": 1}).encode(),
    json.dumps({"_type": ["Order"], "number": 1}).encode(),
    json.dumps({"py/object": this("Payload")}).encode(),
    json.dumps({"py/reduce": [{"py/function": this("execute")}]}).encode(),
    json.dumps({"__class__": this("Payload"), "__init__": {}, "__dict__": {}}).encode(),
    f"!!python/object/apply:{this('execute')} []".encode(),
    f"__import__({__name__!r}).execute()".encode(),
    json.dumps({"number": f"__import__({__name__!r}).execute()"}).encode(),
    json.dumps({"number": CONTENT}).encode(),
    CONTENT.encode(),
]

GARBAGE: Final = st.one_of(
    st.sampled_from(KNOWN),
    st.binary(max_size=200),
    st.text(max_size=50).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["number", "note", "_type", "nr", "x"]), inner, max_size=4
            )
        ),
    ).map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass")),
)


@attrs.frozen
class Stored:
    """What is put into a payload's column: bytes as they are, or as text, right or wrong."""

    tag: str
    content: bytes
    as_text: bool


STORED: Final = st.builds(Stored, st.sampled_from(sorted(TYPES)), GARBAGE, st.booleans())


def contents(path: Path) -> dict[tuple[str, str], bytes]:
    """The payloads' bytes."""
    with closing(sqlite3.connect(path)) as other:
        rows = other.execute("SELECT tag, id, CAST(payload AS BLOB) FROM trio_alarms_alarms")
        return {(tag, id): content for tag, id, content in rows}


def put(path: Path, stored: list[Stored]) -> None:
    """Put these in the place of the payloads of the alarms "0", "1" and so on."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        for number, each in enumerate(stored):
            value = "CAST(? AS TEXT)" if each.as_text else "?"
            other.execute(
                f"UPDATE trio_alarms_alarms SET payload = {value} WHERE id = ?",
                (each.content, str(number)),
            )


def check_payloads(stored: list[Stored]) -> None:
    """Dispatch alarms with these payloads between healthy ones; those alone may fail."""
    handled: list[tuple[str, str]] = []
    failures: list[AlarmFailure] = []

    async def handle(event: AlarmDue[Any]) -> None:
        handled.append((event.tag, event.id))
        # Strict JSON alone was read.
        plain = attrs.asdict(event.payload) if attrs.has(type(event.payload)) else event.payload
        json.dumps(plain, allow_nan=False)
        if event.tag in ("order", "upgraded"):
            assert type(event.payload) is Order
            assert type(event.payload.number) is int

    async def on_failure(failure: AlarmFailure) -> Any:
        failures.append(failure)
        # Would delete what could not be read, if it were heard.
        return "skip-and-advance-repeat"

    async def main(path: Path) -> None:
        alarms = [
            Alarm(kind, tag=tag, upgrade=upgrade if tag == "upgraded" else None)
            for tag, kind in TYPES.items()
        ]
        handlers = define(*alarms).handlers(
            *(alarm.handled_by(handle) for alarm in alarms),
            options=DispatchOptions(on_failure=on_failure, limit=1_000),
        )
        async with open_test_host(path, alarms=handlers) as harness:
            scheduler = harness.host.scheduler
            for number, each in enumerate(stored):
                await scheduler.schedule_alarm(each.tag, str(number), after=1, payload=None)
                await scheduler.schedule_alarm("order", f"fine-{number}", after=1, payload=FINE)
            await harness.crash()
            put(path, stored)
            before = contents(path)
            await harness.reopen()
            await harness.host.scheduler.list_alarms(limit=1_000)
            await harness.advance(1)
            after = contents(path)
            statuses = {
                record.ref.id: record.status
                for record in await harness.host.scheduler.list_alarms(limit=1_000)
            }
        failed = {(failure.tag, failure.id) for failure in failures}
        expected = {(each.tag, str(number)) for number, each in enumerate(stored)}
        fine = {("order", f"fine-{number}") for number in range(len(stored))}
        assert sorted(handled) == sorted((expected - failed) | fine)
        # Those that failed, and those alone, are kept, with the bytes that they had.
        assert after == {ref: before[ref] for ref in failed}
        for failure in failures:
            assert isinstance(failure.error, StoredAlarmDecodeError)
            assert failure.event is None
            assert statuses[failure.id].attempts == 1
            assert_shows_no_content(failure.error)

    with tempfile.TemporaryDirectory() as folder:
        trio.run(main, Path(folder) / "alarms.db", clock=trio.testing.MockClock())


FINE: Final = {"number": 1, "note": ""}


@pytest.fixture
def nothing_is_executed() -> Iterator[None]:
    """Around a test: nothing that is stored is executed."""
    executed.clear()
    yield
    assert executed == []


@pytest.mark.parametrize("as_text", [True, False], ids=["text", "blob"])
@pytest.mark.parametrize("tag", sorted(TYPES))
def test_known_attacks_in_the_place_of_a_payload(
    nothing_is_executed: None, tag: str, *, as_text: bool
) -> None:
    """Nothing is executed; that alarm alone fails and keeps its bytes; the others run (C19)."""
    check_payloads([Stored(tag, content, as_text) for content in KNOWN])


def test_the_attacks_would_be_noticed() -> None:
    """A pickle of the kind above does what it should not when it is loaded."""
    executed.clear()
    pickle.loads(pickle.dumps(Payload()))  # noqa: S301 - that is the attack
    assert executed == ["constructed", "unpickled"]
    executed.clear()


@quick(30)
@given(stored=st.lists(STORED, min_size=5, max_size=15))
def test_anything_in_the_place_of_a_payload(stored: list[Stored]) -> None:
    """Nothing is executed; that alarm alone fails and keeps its bytes; the others run (C19)."""
    check_payloads(stored)


@pytest.mark.trust
@thorough(400)
@given(stored=st.lists(STORED, min_size=5, max_size=15))
def test_very_much_in_the_place_of_a_payload(stored: list[Stored]) -> None:
    """As above, at length (C19)."""
    check_payloads(stored)
