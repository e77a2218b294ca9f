# ruff: noqa: D101, D103, D106 - the payload classes are examples, as their names say

from __future__ import annotations

import collections
import dataclasses
import enum
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    TypedDict,
    TypeVar,
    Union,
)
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import cattrs
import pytest
from cattrs.preconf.json import make_converter
from cattrs.strategies import configure_tagged_union
from hypothesis import given, settings
from hypothesis import strategies as st

from trio_alarms._codec import (
    MAX_DEPTH,
    MAX_INTEGER_DIGITS,
    DuplicateMemberError,
    PayloadCodec,
    decode_json,
    encode_json,
)
from trio_alarms._errors import (
    InvalidAlarmPayloadError,
    InvalidAlarmRegistrationError,
    StoredAlarmDecodeError,
)

MEBIBYTE = 1_048_576
T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Kind(enum.StrEnum):
    MAIL = "mail"


class Days(enum.Flag):
    MONDAY = 1
    TUESDAY = 2


class Ratio(float, enum.Enum):
    HALF = 0.5


class Token(str):
    __slots__ = ()


class Photo(bytes):
    __slots__ = ()


class Shades(enum.Enum):
    GREY = (1, 2)


UserId = NewType("UserId", str)


class Options(TypedDict):
    limit: int
    colours: NotRequired[list[Colour]]


class Point(NamedTuple):
    x: int
    colour: Colour


@attrs.frozen
class Expire:
    user_id: str


@attrs.frozen
class Renew:
    user_id: str
    months: int = 1


@attrs.frozen
class RenewYearly(Renew):
    years: int = 1


@dataclasses.dataclass(frozen=True)
class Order:
    items: list[Item]
    change: Expire | Renew | None = None
    note: str | None = None


@attrs.frozen
class Item:
    name: str
    due: datetime
    tags: frozenset[str] = frozenset()
    limits: dict[str, int] = attrs.field(factory=dict)


@attrs.define
class Node:
    """Refers to itself, in each way that a class can."""

    value: int
    child: Node | None = None
    children: list[Node | Expire] = attrs.field(factory=list)
    by_name: dict[str, Node] = attrs.field(factory=dict)


@attrs.frozen
class Box(Generic[T]):
    value: T
    other: Optional[T] = None  # noqa: UP045 - cattrs resolves type variables in this form


class Namesakes:
    @attrs.frozen
    class Expire:
        other: int


@attrs.frozen
class Nested:
    changes: list[Expire | Namesakes.Expire | None]


@attrs.frozen
class Positive:
    number: int = attrs.field(validator=attrs.validators.gt(0))


def codec(declared: object, **options: Any) -> PayloadCodec:
    return PayloadCodec(declared, **options)


def encode(declared: object, value: object, *, max_bytes: int = MEBIBYTE) -> str:
    return codec(declared).encode(value, max_bytes=max_bytes)


def refusal(declared: object, value: object) -> str:
    """The words with which a payload is refused."""
    with pytest.raises(InvalidAlarmPayloadError) as caught:
        encode(declared, value)
    return str(caught.value)


NOON = datetime(2026, 10, 25, 12, tzinfo=UTC)
REPEATED_HOUR = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Paris"), fold=1)

ROUND_TRIPS: list[tuple[Any, Any, str]] = [
    (None, None, "null"),
    (int, 2**70, "1180591620717411303424"),
    (bool, True, "true"),
    (str, "é\0\u2028", '"é\\u0000\u2028"'),
    (float, 1.5, "1.5"),
    (float, 1, "1.0"),
    (Any, {"a": [1, 1.0, None, True, "x"]}, '{"a":[1,1.0,null,true,"x"]}'),
    (object, [], "[]"),
    (Colour, Colour.RED, '"red"'),
    (Level, Level.HIGH, "2"),
    (Kind, Kind.MAIL, '"mail"'),
    (Days, Days.MONDAY | Days.TUESDAY, "3"),
    (Ratio, Ratio.HALF, "0.5"),
    (Token, Token("t"), '"t"'),
    (Literal["a", 1, Colour.RED], Colour.RED, '"red"'),
    (Literal[1, True], True, "true"),
    (UserId, UserId("u"), '"u"'),
    (Annotated[int, "positive"], 3, "3"),
    (datetime, NOON, '"2026-10-25T12:00:00+00:00"'),
    (
        datetime,
        datetime(2000, 1, 2, 3, tzinfo=timezone(timedelta(hours=-3))),
        '"2000-01-02T03:00:00-03:00"',
    ),
    (date, date(2000, 1, 2), '"2000-01-02"'),
    (time, time(8, 30), '"08:30:00"'),
    (UUID, UUID(int=7), '"00000000-0000-0000-0000-000000000007"'),
    (Decimal, Decimal("1.50"), '"1.50"'),
    (bytes, b"\xff\x00", '"/wA="'),
    (Path, Path("a/b"), '"a/b"'),
    (list[int], [1, 2], "[1,2]"),
    (list, [1, "a"], '[1,"a"]'),
    (tuple[int, str], (1, "a"), '[1,"a"]'),
    (tuple[int, ...], (1, 2), "[1,2]"),
    (tuple[()], (), "[]"),
    (Sequence[int], (1, 2), "[1,2]"),
    (set[str], {"b", "a", "c"}, '["a","b","c"]'),
    (frozenset[Colour], frozenset(Colour), '["blue","red"]'),
    (AbstractSet[int], {1}, "[1]"),
    (collections.deque[int], collections.deque([1]), "[1]"),
    (dict[str, float], {"b": 2, "a": 1.0}, '{"b":2.0,"a":1.0}'),
    (dict[Colour, int], {Colour.RED: 1}, '{"red":1}'),
    (dict, {"a": 1}, '{"a":1}'),
    (Mapping[str, int], {"a": 1}, '{"a":1}'),
    (
        collections.OrderedDict[str, int],
        collections.OrderedDict(b=1, a=2),
        '{"b":1,"a":2}',
    ),
    (Options, {"limit": 1, "colours": [Colour.BLUE]}, '{"limit":1,"colours":["blue"]}'),
    (Options, {"limit": 1}, '{"limit":1}'),
    (Point, Point(1, Colour.RED), '[1,"red"]'),
    (Expire, Expire("u"), '{"user_id":"u"}'),
    (Expire | Renew, Renew("u"), '{"_type":"Renew","user_id":"u","months":1}'),
    (Union[Expire, Renew, None], None, "null"),  # noqa: UP007 - the older form of a union
    (Expire | None, Expire("u"), '{"_type":"Expire","user_id":"u"}'),
    (int | str | None, "7", '"7"'),
    (int | float, 1, "1"),
    (int | float, 1.0, "1.0"),
    (float | None, 1, "1.0"),
    (Literal["auto"] | int, "auto", '"auto"'),
    (Colour | int | None, Colour.RED, '"red"'),
    (Expire | list[Expire] | str, [Expire("u")], '[{"user_id":"u"}]'),
    (dict[str, int] | list[int], {"a": 1}, '{"a":1}'),
    (datetime | None, NOON, '"2026-10-25T12:00:00+00:00"'),
    (Any | None, {"a": 1}, '{"a":1}'),
    (UserId | None, UserId("u"), '"u"'),
    (Annotated[int, "positive"] | None, 1, "1"),
    (Options | None, {"limit": 1}, '{"limit":1}'),
    (Point | str, Point(1, Colour.RED), '[1,"red"]'),
    (Days | None, Days.MONDAY, "1"),
    (Kind | int, Kind.MAIL, '"mail"'),
    (bool | int, True, "true"),
    (Box[int], Box(1), '{"value":1,"other":null}'),
    (Box[Box[Colour]], Box(Box(Colour.RED)), '{"value":{"value":"red","other":null},"other":null}'),
    (
        Order,
        Order([Item("x", NOON, frozenset("ba"), {"é": 1})], Expire("u")),
        (
            '{"items":[{"name":"x","due":"2026-10-25T12:00:00+00:00","tags":["a","b"],'
            '"limits":{"é":1}}],"change":{"_type":"Expire","user_id":"u"},"note":null}'
        ),
    ),
]


@pytest.mark.parametrize(("declared", "value", "text"), ROUND_TRIPS)
def test_a_payload_comes_back_equal_from_strict_json(
    declared: object, value: object, text: str
) -> None:
    """Each kind of type has one stored form, from which an equal value is made (C19)."""
    payloads = codec(declared)
    assert payloads.encode(value, max_bytes=MEBIBYTE) == text
    restored = payloads.decode(text)
    assert restored == value
    assert payloads.encode(restored, max_bytes=MEBIBYTE) == text


def test_a_class_that_refers_to_itself_keeps_its_declared_types() -> None:
    """A union is tagged in a recursive class too, at every depth."""
    value = Node(1, Node(2, by_name={"a": Node(3)}), [Expire("u"), Node(4, children=[Expire("v")])])
    text = encode(Node, value)
    assert codec(Node).decode(text) == value
    assert json.loads(text)["children"][1]["children"][0] == {"_type": "Expire", "user_id": "v"}


class TypeAliasType:
    """A `type` alias as Python 3.12 makes it, as far as it is looked at."""

    __value__: Any

    def __repr__(self) -> str:
        return "Tree"


def test_an_alias_may_refer_to_itself() -> None:
    """A recursive alias is strict at every depth, also where it repeats a member of a union."""
    tree = TypeAliasType()
    tree.__value__ = list[tree] | datetime  # type: ignore[valid-type]  # made at run time
    value = [NOON, [NOON, []]]
    for declared in (tree, Union[datetime, tree]):  # noqa: UP007 - the alias is no type for `|`
        text = encode(declared, value)
        assert codec(declared).decode(text) == value
        words = "payload[0][0]: expected list[Tree] | datetime.datetime, got int"
        assert refusal(declared, [[1]]) == words


def test_a_datetime_in_a_repeated_hour_comes_back_as_the_same_instant() -> None:
    """An aware datetime of any zone can be stored, although Python calls no other equal to it."""
    restored = codec(datetime).decode(encode(datetime, REPEATED_HOUR))
    assert restored.astimezone(UTC) == REPEATED_HOUR.astimezone(UTC)


def test_equal_sets_have_equal_texts() -> None:
    """A set is stored in an order of its own, whatever order it iterates in."""
    one, other = {0, 8}, {8, 0}  # these collide, so that the first one stays first
    assert list(one) != list(other)
    assert encode(set[int], one) == encode(set[int], other)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(deadline=None)
@given(json_values)
def test_plain_json_comes_back_the_same(value: object) -> None:
    """What JSON can say comes back with its types, whether plain or declared as Any (C19)."""
    text = encode_json(value, max_bytes=MEBIBYTE)
    assert repr(decode_json(text)) == repr(value)
    assert encode(Any, value) == text


MISFITS: list[tuple[Any, Any, str]] = [
    (int, True, "payload: expected an integer, got a boolean"),
    (int, 1.0, "payload: expected an integer, got a number"),
    (int, "7", "payload: expected an integer, got a string"),
    (str, 1, "payload: expected a string, got an integer"),
    (float, 2**70 + 1, "payload: the int has no equal float"),
    (float, 10**400, "payload: the int has no equal float"),
    (float, "1.0", "payload: expected a number, got a string"),
    (None, 1, "payload: expected null, got an integer"),
    (Expire, None, "payload: expected Expire, got NoneType"),
    (Expire, {"user_id": "u"}, "payload: expected Expire, got dict"),
    (Renew, RenewYearly("u"), "payload: expected Renew, got RenewYearly"),
    (Expire | Renew, RenewYearly("u"), "payload: expected Renew, got RenewYearly"),
    (int | str, 1.5, "payload: expected int | str, got float"),
    (int | str, True, "payload: expected int | str, got a boolean"),
    (list[int], (1,), "payload: expected list, got tuple"),
    (Sequence[int], [1], "payload: expected tuple (what collections.abc.Sequence[int] is read as)"),
    (list[int], [1, "a"], "payload[1]: expected an integer, got a string"),
    (tuple[int, str], (1,), "payload: expected 2 items, got 1"),
    (set[int], [1], "payload: expected set, got list"),
    (dict[str, int], [1], "payload: expected dict, got list"),
    (dict[str, int], {"SECRET": "a"}, "payload[…]: expected an integer, got a string"),
    (dict[Any, int], {1: 1}, "payload: keys must be strings, not int"),
    (dict[Colour, int], {"red": 1}, "payload: a key does not fit: expected Colour, got str"),
    (datetime, NOON.replace(tzinfo=None), "payload: a naive datetime cannot be stored; make it"),
    (date, NOON, "payload: expected date, got datetime"),
    (time, time(8, tzinfo=ZoneInfo("Europe/Paris")), "payload: the offset of the time's zone"),
    (Decimal, Decimal("NaN"), "payload: the Decimal is not finite"),
    (Colour, "red", "payload: expected Colour, got str"),
    (Literal["a", 1], True, "payload: expected a value of Literal['a', 1]"),
    (Options, {"colours": []}, "payload.limit: it is missing"),
    (Options, {"limit": 1, "SECRET": 1}, "payload: it has a key that Options does not declare"),
    (Options, {"colours": [], "limit": "x"}, "payload.limit: expected an integer, got a string"),
    (Options, [1], "payload: expected Options, got list"),
    (UUID, "SECRET", "payload: expected UUID, got str"),
    (Photo, Photo(b"x"), "payload: Photo has no JSON form; declare bytes"),
    (Point, (1, Colour.RED), "payload: expected Point, got tuple"),
    (Node, Node(1, Node("SECRET")), "payload.child.value: expected an integer, got a string"),  # type: ignore[arg-type]  # the case tested
    (
        Order,
        Order([Item("a", NOON), Item("b", NOON.replace(tzinfo=None))]),
        "payload.items[1].due: a naive datetime",
    ),
    (
        Order,
        Order([Item("a", NOON, limits={"SECRET": "x"})]),  # type: ignore[dict-item]  # the case tested
        "payload.items[0].limits[…]: expected an integer, got a string",
    ),
    (set[Colour], {Colour.RED, "SECRET"}, "payload[0]: expected Colour, got str"),
    (Expire | Renew, "SECRET", "payload: expected "),
    (Any, Expire("SECRET"), "payload: Expire is no JSON type"),
    (Any, (1,), "payload: tuple is no JSON type"),
    (Any, {1: "SECRET", "1": "b"}, "payload: keys must be strings, not int"),
    (Any, {"a": [1, {"b": float("nan")}]}, "payload.a[1].b: NaN and infinities are no JSON"),
    (Any, {"SECRET key": float("inf")}, "payload[…]: NaN and infinities are no JSON"),
    (Any, b"SECRET", "payload: bytes is no JSON type"),
    (Any, ["SECRET\ud800"], "payload[0]: it has a lone surrogate"),
    (Any, {"SECRET\ud800": 1}, "payload: a key has a lone surrogate"),
    (Any, [10**5000], f"payload[0]: the integer has more than {MAX_INTEGER_DIGITS} digits"),
    (list[int], [-(10**5000)], "payload[0]: the integer has more than 4300 digits"),
]


@pytest.mark.parametrize(("declared", "value", "words"), MISFITS)
def test_what_would_not_come_back_equal_is_refused_by_path(
    declared: object, value: object, words: str
) -> None:
    """A payload that would fail at its delivery is refused when it is set, without a word of it."""
    message = refusal(declared, value)
    assert message.startswith(words)
    assert "SECRET" not in message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), (1,), {1: "a"}, {None: 1}, "\udfff"])
def test_a_plain_payload_that_is_no_json_is_refused(value: object) -> None:
    """A payload of a tag string follows the same rules as one of a definition (C19)."""
    with pytest.raises(InvalidAlarmPayloadError, match=r"^payload"):
        encode_json(value, max_bytes=MEBIBYTE)


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_nesting_is_bounded_well_inside_of_the_recursion_limit() -> None:
    """The deepest payload allowed comes back, also as a class; a deeper one is refused (C19)."""
    assert decode_json(encode_json(nested(MAX_DEPTH), max_bytes=MEBIBYTE)) == nested(MAX_DEPTH)
    assert "deeper than 100 levels" in refusal(Any, nested(MAX_DEPTH + 1))
    chain = Node(0)
    for number in range(MAX_DEPTH // 2 - 1):
        chain = Node(number, children=[chain])
    assert codec(Node).decode(encode(Node, chain)) == chain


def test_many_containers_beside_each_other_are_not_deep() -> None:
    """What is bounded is depth, not the number of lists and objects."""
    wide: list[Any] = [[{}] for _ in range(1000)]
    assert decode_json(encode_json(wide, max_bytes=MEBIBYTE)) == wide


def test_any_depth_is_refused_without_a_recursion_error() -> None:
    """A hundred thousand levels are refused like a hundred and one, plain, typed or in a circle."""
    circle: list[Any] = []
    circle.append(circle)
    chain = Node(0)
    for _ in range(100_000):
        chain = Node(0, chain)
    for declared, value in [(Any, nested(100_000)), (Any, circle), (Node, chain)]:
        message = refusal(declared, value)
        assert "nested" in message
        assert len(message) < 400


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000 + "]" * 100_000,
        '{"child":' * 100_000,
        '{"value":0,"child":' * 300 + "null" + "}" * 300,
    ],
)
def test_stored_text_of_any_depth_is_an_error_of_ours(text: str) -> None:
    """A stored payload that is too deep does not decode; the recursion error is the cause."""
    with pytest.raises(StoredAlarmDecodeError) as caught:
        codec(Node).decode(text)
    assert isinstance(caught.value.__cause__, RecursionError)


def test_a_payload_is_refused_near_the_end_of_the_stack() -> None:
    """A caller that is itself deep down gets a clear error too."""

    def descend(levels: int) -> None:
        if levels:
            descend(levels - 1)
        else:
            encode_json(nested(MAX_DEPTH + 1), max_bytes=MEBIBYTE)

    free = sys.getrecursionlimit() - len(inspect.stack())
    outcomes: set[str] = set()
    for levels in range(free - 150, free - 20):
        try:
            descend(levels)
        except InvalidAlarmPayloadError as error:
            outcomes.add(str(error))
    assert "payload: it is nested too deeply" in outcomes


def test_size_is_counted_in_bytes_of_the_stored_text() -> None:
    """`max_payload_bytes` bounds the UTF-8 text, not the number of characters."""
    assert encode(str, "éé", max_bytes=6) == '"éé"'
    with pytest.raises(InvalidAlarmPayloadError, match=r"6 bytes .* more than the 5 allowed"):
        encode(str, "éé", max_bytes=5)
    with pytest.raises(InvalidAlarmPayloadError, match="2097154 bytes"):
        encode_json("x" * 2 * MEBIBYTE, max_bytes=MEBIBYTE)


def test_integers_are_bounded_by_what_every_process_reads() -> None:
    """An integer that this process could write, but another could not read, is refused (C19)."""
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        assert "more than 4300 digits" in refusal(Any, 10**MAX_INTEGER_DIGITS)
        largest = 10**MAX_INTEGER_DIGITS - 1
        assert decode_json(encode(int, largest)) == largest
    finally:
        sys.set_int_max_str_digits(limit)


@pytest.mark.parametrize(
    "text", ["", "nope", "NaN", "[1e999]", "-Infinity", "1" * 5000, "{}x", b"\x80\x04N.", None]
)
def test_stored_text_that_is_no_strict_json_does_not_decode(text: Any) -> None:
    """Whatever stands in the store, it is read as JSON or not at all (C19)."""
    for decode in (decode_json, codec(Expire).decode, codec(Any).decode):
        with pytest.raises(StoredAlarmDecodeError) as caught:
            decode(text)
        assert caught.value.__cause__ is not None


STORED_MISFITS: list[tuple[Any, str, str]] = [
    (int, '"7"', "payload: expected an integer, got a string"),
    (int, "true", "payload: expected an integer, got a boolean"),
    (str, "1", "payload: expected a string, got an integer"),
    (float, "1" + "0" * 400, "payload: the integer is too large for a float"),
    (bool, "1", "payload: expected a boolean, got an integer"),
    (list[str], '"abc"', "payload: expected an array, got a string"),
    (set[str], '{"a":1}', "payload: expected an array, got an object"),
    (tuple[int, str], "[1]", "payload: expected 2 items, got 1"),
    (dict[str, int], "[]", "payload: expected an object, got an array"),
    (Expire, "[]", "payload: expected an object, got an array"),
    (Expire, "{}", "payload.user_id: it is missing"),
    (Options, "[]", "payload: expected an object, got an array"),
    (Options, "{}", "payload.limit: it is missing"),
    (Point, "{}", "payload: expected an array, got an object"),
    (Point, '[1,"SECRET"]', "payload[1]: expected the value of a member of Colour"),
    (Colour, "[]", "payload: expected the value of a member of Colour"),
    (bytes, "1", "payload: expected bytes in base64, got an integer"),
    (Colour, '"SECRET"', "payload: expected the value of a member of Colour"),
    (Level, "true", "payload: expected an integer, got a boolean"),
    (Kind, '"SECRET"', "payload: expected the value of a member of Kind"),
    (Days, "64", "payload: expected the value of a member of Days"),
    (Literal["a"], '"SECRET"', "payload: expected a value of Literal['a']"),
    (datetime, '"2026-01-01T00:00:00"', "payload: expected an ISO 8601 datetime with offset, got"),
    (datetime, '"SECRET"', "payload: expected an ISO 8601 datetime with offset, got another str"),
    (datetime, "0", "payload: expected an ISO 8601 datetime with offset, got an integer"),
    (UUID, '"{00000000-0000-0000-0000-000000000007}"', "payload: expected a UUID"),
    (Decimal, '"NaN"', "payload: expected a decimal number"),
    (bytes, '"%"', "payload: expected bytes in base64"),
    (Expire | Renew, '{"user_id":"u"}', "payload: expected _type to be one of Expire, Renew"),
    (Expire | Renew, '{"_type":"SECRET"}', "payload: expected _type to be one of Expire, Renew"),
    (Expire | None, '{"_type":["Expire"]}', "payload: expected _type to be one of Expire"),
    (int | None, '"1"', "payload: expected int | None, got a string"),
    (Positive, '{"number":-1}', "payload: it was refused with ValueError"),
    (Order, '{"items":[{"name":"x","due":"SECRET"}]}', "payload.items[0].due: expected an ISO"),
    (dict[str, Expire], '{"SECRET":{"user_id":1}}', "payload[…].user_id: expected a string"),
]


@pytest.mark.parametrize(("declared", "text", "words"), STORED_MISFITS)
def test_stored_json_of_another_shape_does_not_decode(
    declared: object, text: str, words: str
) -> None:
    """Types are structured strictly; the error names the field, and no content (C20)."""
    with pytest.raises(StoredAlarmDecodeError) as caught:
        codec(declared).decode(text)
    assert words in str(caught.value)
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_what_newer_code_wrote_is_read_by_older_code() -> None:
    """Unknown keys are ignored, in classes, in members of unions and in TypedDicts (C20)."""
    assert codec(Expire).decode('{"user_id":"u","reason":"r"}') == Expire("u")
    assert codec(Expire | None).decode('{"_type":"Expire","user_id":"u","x":1}') == Expire("u")
    assert codec(Options).decode('{"limit":1,"x":2}') == {"limit": 1}


def test_a_field_may_become_optional() -> None:
    """The one class of an optional union is read without `_type` too, as it was stored before."""
    assert codec(Expire | None).decode('{"user_id":"u"}') == Expire("u")


def test_an_integer_is_accepted_where_a_float_is_declared() -> None:
    """JSON of other writers may say 1 for 1.0; it becomes a float."""
    restored = codec(list[float]).decode("[1]")
    assert restored == [1.0]
    assert type(restored[0]) is float


def test_datetimes_of_other_writers_are_read() -> None:
    """ISO 8601 with offset has more than one spelling."""
    assert codec(datetime).decode('"2026-10-25T12:00:00.000Z"') == NOON


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (complex, "complex has no JSON form of its own"),
        (timedelta, "timedelta has no JSON form of its own"),
        (list[complex], "complex has no JSON form of its own"),
        (Box[complex], "complex has no JSON form of its own"),
        (Box, "Missing type for generic argument T"),
        (collections.Counter[str], "has no strict JSON form"),
        (Shades, "the values of Shades must be str, int, float, bool or None, not tuple"),
        (Literal[b"x"], "holds what is no JSON scalar"),
        (dict[int, str], "the keys of dict[int, str] are not stored as strings"),
        (Colour | str, "str cannot be told from another member"),
        (Colour | Literal["red"], "cannot be told from another member"),
        (datetime | str, "str cannot be told from another member"),
        (list[int] | set[int], "set[int] cannot be told from another member"),
        (Expire | dict[str, int], "dict[str, int] cannot be told from another member"),
        (Options | dict[str, int], "dict[str, int] cannot be told from another member"),
        (Expire | Any, "mixes plain JSON with what has a JSON form of its own"),
        (int | complex, "complex has no JSON form by which int | complex could tell it"),
        (7, "not 7"),
        ("Expire", "not 'Expire'"),
    ],
)
def test_a_type_without_a_strict_json_form_is_refused(declared: object, words: str) -> None:
    """What could fail at every schedule fails when it is defined, saying what to do."""
    with pytest.raises(InvalidAlarmRegistrationError) as caught:
        codec(declared)
    assert "payload_type" in str(caught.value)
    assert words in str(caught.value)
    assert caught.value.__cause__ is not None


@attrs.frozen
class Untyped:
    anything = attrs.field()  # type: ignore[var-annotated]  # the case tested


@attrs.frozen
class Unresolved:
    item: Nowhere  # type: ignore[name-defined]  # noqa: F821 - the case tested


@attrs.frozen
class Tagged:
    _type: str


Bare = collections.namedtuple("Bare", ["x"])  # noqa: PYI024 - the case tested


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (Untyped, "Untyped.anything has no type"),
        (Bare, "Bare.x has no type"),
        (Unresolved, "an annotation of Unresolved cannot be resolved"),
        (Tagged | Expire, "Tagged has a field _type, which names union members"),
    ],
)
def test_a_class_whose_fields_cannot_be_stored_is_refused(declared: object, words: str) -> None:
    """A class is looked through when it is defined, not when it is first used."""
    with pytest.raises(InvalidAlarmRegistrationError) as caught:
        codec(declared)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "declared",
    [Expire | Namesakes.Expire, Expire | Namesakes.Expire | None, Box[int] | Box[str], Nested],
)
def test_two_members_of_one_name_are_refused(declared: object) -> None:
    """A union's member is named in `_type`, so names are unique, in nested unions too."""
    with pytest.raises(InvalidAlarmRegistrationError, match="_type cannot tell them apart") as info:
        codec(declared)
    assert isinstance(info.value.__cause__, DuplicateMemberError)


@attrs.define
class Counted:
    name: str
    token: object = attrs.field(init=False, eq=False, factory=object)
    size: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.size = len(self.name)


def test_what_a_class_derives_must_come_back_the_same() -> None:
    """A field that is not given to `__init__` is made anew; a payload that loses it is refused."""
    value = Counted("abc")
    assert codec(Counted).decode(encode(Counted, value)) == value
    value.size = 4
    assert "does not structure back to an equal Counted" in refusal(Counted, value)


def test_a_class_without_equality_can_be_stored() -> None:
    """Coming back the same is judged by the JSON, where a class does not say what is equal."""

    @attrs.define(eq=False)
    class Opaque:
        number: int

    assert encode(Opaque, Opaque(1)) == '{"number":1}'


def test_upgrade_sees_every_stored_value_and_nothing_else() -> None:
    """`upgrade` is applied before structuring, to today's shape too, and not when storing (C20)."""
    seen: list[Any] = []

    def upgrade(stored: dict[str, Any]) -> dict[str, Any]:
        seen.append(dict(stored))
        return {"user_id": stored.get("user") or stored["user_id"]}

    payloads = codec(Expire, upgrade=upgrade)
    text = payloads.encode(Expire("u"), max_bytes=MEBIBYTE)
    assert seen == []
    assert payloads.decode(text) == payloads.decode('{"user":"u"}') == Expire("u")
    assert seen == [{"user_id": "u"}, {"user": "u"}]


def test_what_upgrade_raises_makes_the_payload_undecodable() -> None:
    """The error of `upgrade` is the cause, whatever it is (C20)."""
    payloads = codec(Expire, upgrade=lambda stored: stored["SECRET"])
    with pytest.raises(StoredAlarmDecodeError, match="upgrade raised KeyError") as caught:
        payloads.decode('{"user_id":"u"}')
    assert isinstance(caught.value.__cause__, KeyError)
    assert "SECRET" not in str(caught.value)


class Money:
    """A type that only a converter of the user's knows."""

    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and self.cents == other.cents

    __hash__ = None  # type: ignore[assignment]  # it is compared only


@attrs.frozen
class Invoice:
    amount: Money
    lines: tuple[str, ...]
    marks: set[str]


def money_converter() -> cattrs.Converter:
    converter = make_converter()
    converter.register_structure_hook(Money, lambda cents, _: Money(int(cents)))
    converter.register_unstructure_hook(Money, lambda money: money.cents)
    return converter


def test_a_given_converter_is_used_as_it_is() -> None:
    """Its laxity, its tuples and its sets are its own; only the JSON around it is ours."""
    payloads = codec(Invoice, converter=money_converter())
    value = Invoice(Money(5), ("a",), {"x", "y", "z"})
    text = payloads.encode(value, max_bytes=MEBIBYTE)
    assert payloads.decode(text) == value
    assert payloads.decode('{"amount":"5","lines":["a"],"marks":["x","y","z"]}') == value


def test_a_given_converter_may_tag_unions_in_its_own_way() -> None:
    """Without hooks of its own it cannot structure a union; with them it decides."""
    converter = cattrs.Converter()
    configure_tagged_union(Expire | Renew, converter, tag_name="kind")
    payloads = codec(Expire | Renew, converter=converter)
    text = payloads.encode(Renew("u"), max_bytes=MEBIBYTE)
    assert json.loads(text) == {"user_id": "u", "months": 1, "kind": "Renew"}
    assert payloads.decode(text) == Renew("u")


@pytest.mark.parametrize(
    ("declared", "value", "words"),
    [
        (dict[int, str], {1: "SECRET"}, "payload: keys must be strings, not int"),
        (float, float("nan"), "payload: NaN and infinities are no JSON"),
        (list[Any], [nested(MAX_DEPTH)], "it is nested deeper than 100 levels"),
        (Any, {1, 2}, "payload: set is no JSON type"),
        (tuple[Any, ...], ((1,), "\ud800"), "payload[1]: it has a lone surrogate"),
        (list[int], ["SECRET"], "payload[0]: it was refused with ValueError"),
        (dict[str, int], {"SECRET": "x"}, "payload[…]: it was refused with ValueError"),
        (Expire, 5, "payload: it was refused with AttributeError"),
        (Expire, Expire(None), "does not structure back to an equal Expire"),  # type: ignore[arg-type]  # lax, as given
    ],
)
def test_what_a_given_converter_makes_must_be_json(
    declared: object, value: object, words: str
) -> None:
    """The rules of the stored text hold for every converter (C19)."""
    payloads = codec(declared, converter=cattrs.Converter())
    with pytest.raises(InvalidAlarmPayloadError) as caught:
        payloads.encode(value, max_bytes=MEBIBYTE)
    assert words in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_a_given_converter_that_loses_something_is_noticed() -> None:
    """A payload that would come back as another one is refused when it is set (C19)."""
    converter = cattrs.Converter()
    converter.register_structure_hook(Money, lambda cents, _: Money(cents + 1))
    converter.register_unstructure_hook(Money, lambda money: money.cents)
    with pytest.raises(InvalidAlarmPayloadError, match="does not structure back to an equal Money"):
        codec(Money, converter=converter).encode(Money(1), max_bytes=MEBIBYTE)


def test_a_given_converter_without_a_hook_for_the_type_is_refused() -> None:
    """A converter that cannot structure the type is noticed when the alarm is defined."""
    with pytest.raises(InvalidAlarmRegistrationError, match="payload_type"):
        codec(Money, converter=cattrs.Converter())


def test_no_payload_is_null_with_any_converter() -> None:
    """`None` as a type means no payload, which no converter changes."""
    payloads = codec(None, converter=cattrs.Converter())
    assert payloads.encode(None, max_bytes=4) == "null"
    with pytest.raises(StoredAlarmDecodeError):
        payloads.decode("0")


@attrs.frozen
class Parsed:
    """cattrs lets the `converter` of a field take a value of a type that it does not know."""

    amount: Money = attrs.field(converter=lambda given: Money(5) if given == 5 else given)  # type: ignore[var-annotated]  # attrs' plugin has no types for a lambda


def test_a_field_that_attrs_converts_is_stored_only_if_it_is_json() -> None:
    """A value that nobody can unstructure is refused by its path."""
    assert codec(Parsed).decode('{"amount":5}') == Parsed(Money(5))
    assert refusal(Parsed, Parsed(Money(5))) == "payload.amount: Money is no JSON type"
