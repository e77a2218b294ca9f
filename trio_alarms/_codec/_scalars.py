"""Hooks for what is one JSON scalar: numbers, strings, text forms, enums and literals."""

from __future__ import annotations

import base64
import enum
import types
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, TypeAlias, get_args
from uuid import UUID

import attrs

from ._faults import Misfit, Unstorable, UnstorableTypeError, json_name, type_name, unexpected

StructureHook: TypeAlias = Callable[[Any, Any], Any]
UnstructureHook: TypeAlias = Callable[[Any], Any]

SCALARS: Final = (types.NoneType, bool, int, float, str)


def identity(value: Any) -> Any:
    """Unstructure what is its own JSON value, or is judged when it is structured back."""
    return value


def structure_any(value: Any, _declared: Any) -> Any:
    """Structure plain JSON."""
    return value


def structure_null(value: Any, _declared: Any) -> None:
    """Structure `None`."""
    if value is not None:
        raise Misfit(f"expected null, got {json_name(value)}")


def structure_scalar(kind: type) -> StructureHook:
    """Make the hook for `str`, `int` or `bool`, and for what is derived from it.

    cattrs looks these up by class, so enums that derive from them come here as well.
    """
    expected = json_name(kind())

    def structure(value: Any, declared: Any) -> Any:
        if value.__class__ is not kind:
            raise Misfit(f"expected {expected}, got {json_name(value)}")
        if declared is kind:
            return value
        return structure_member(value, declared) if is_enum(declared) else declared(value)

    return structure


def structure_float(value: Any, declared: Any) -> Any:
    """Structure a number: an integer is one too."""
    if value.__class__ is int:
        try:
            value = float(value)
        except OverflowError:
            raise Misfit("the integer is too large for a float") from None
    if value.__class__ is not float:
        raise Misfit(f"expected a number, got {json_name(value)}")
    if declared is float:
        return value
    return structure_member(value, declared) if is_enum(declared) else declared(value)


def unstructure_float(value: Any) -> Any:
    """Store an int as the float that it comes back as, where that is the same number."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    try:
        number = float(value)
    except OverflowError:
        number = 0.0
    return number if number == value else Unstorable("the int has no equal float")


@attrs.frozen
class TextForm:
    """How values of a type are written as a JSON string.

    `write` raises ValueError with a reason of ours for what cannot be written; `read` raises
    ValueError or ArithmeticError for other text.
    """

    expected: str
    write: Callable[[Any], str]
    read: Callable[[str], Any]


def _write_datetime(value: datetime) -> str:
    if datetime.utcoffset(value) is None:
        raise ValueError(
            "a naive datetime cannot be stored; make it aware, as with"
            " value.replace(tzinfo=UTC) or value.astimezone()"
        )
    return datetime.isoformat(value)


def _read_datetime(text: str) -> datetime:
    value = datetime.fromisoformat(text)
    if value.tzinfo is None:
        raise ValueError
    return value


def _write_date(value: date) -> str:
    if isinstance(value, datetime):
        raise ValueError("expected date, got datetime")  # noqa: TRY004 - what `write` promises
    return date.isoformat(value)


def _write_time(value: time) -> str:
    if value.tzinfo is not None and time.utcoffset(value) is None:
        raise ValueError("the offset of the time's zone depends on the date")
    return time.isoformat(value)


def _read_uuid(text: str) -> UUID:
    value = UUID(text)
    if str(value) != text.lower():
        raise ValueError
    return value


def _write_decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise ValueError("the Decimal is not finite")
    return str(value)


def _read_decimal(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite():
        raise ValueError
    return value


def _write_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _read_bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


TEXT_FORMS: Final[dict[type, TextForm]] = {
    datetime: TextForm("an ISO 8601 datetime with offset", _write_datetime, _read_datetime),
    date: TextForm("an ISO 8601 date", _write_date, date.fromisoformat),
    time: TextForm("an ISO 8601 time", _write_time, time.fromisoformat),
    UUID: TextForm("a UUID", str, _read_uuid),
    Decimal: TextForm("a decimal number", _write_decimal, _read_decimal),
    bytes: TextForm("bytes in base64", _write_bytes, _read_bytes),
    Path: TextForm("a path", str, Path),
}


def structure_text_form(kind: type) -> StructureHook:
    """Make the hook that reads the text form of `kind`."""
    form = TEXT_FORMS[kind]

    def structure(value: Any, declared: Any) -> Any:
        if value.__class__ is not str:
            raise Misfit(f"expected {form.expected}, got {json_name(value)}")
        if declared is not kind:
            raise Misfit(f"{type_name(declared)} has no JSON form; declare {kind.__name__}")
        try:
            return form.read(value)
        except (ValueError, ArithmeticError):
            raise Misfit(f"expected {form.expected}, got another string") from None

    return structure


def unstructure_text_form(kind: type) -> UnstructureHook:
    """Make the hook that writes the text form of `kind`."""
    form = TEXT_FORMS[kind]

    def unstructure(value: Any) -> Any:
        if not isinstance(value, kind):
            return unexpected(kind.__name__, value)
        try:
            return form.write(value)
        except ValueError as error:
            return Unstorable(str(error))

    return unstructure


def is_enum(declared: Any) -> bool:
    """Whether a declared type is an enum."""
    return isinstance(declared, type) and issubclass(declared, enum.Enum)


def structure_member(value: Any, declared: Any) -> Any:
    """Find the member of an enum by its exact value; what `_missing_` would coerce is refused."""
    if value.__class__ in SCALARS:
        try:
            member = declared(value)
        except ValueError:
            member = None
        if member is not None and (member.value.__class__, member.value) == (
            value.__class__,
            value,
        ):
            return member
    raise Misfit(f"expected the value of a member of {declared.__name__}")


def unstructure_enum(declared: type[enum.Enum]) -> UnstructureHook:
    """Make the hook that stores a member as its value, which must be a JSON scalar."""
    for member in declared:
        if type(member.value) not in SCALARS:
            raise UnstorableTypeError(
                f"the values of {declared.__name__} must be str, int, float, bool or None, not"
                f" {type(member.value).__name__}"
            )

    def unstructure(value: Any) -> Any:
        return value.value if isinstance(value, declared) else unexpected(declared.__name__, value)

    return unstructure


def literal_values(declared: Any) -> dict[tuple[type, Any], Any]:
    """The values of a `Literal` by class and JSON value: 1, True and 1.0 are three."""
    values: dict[tuple[type, Any], Any] = {}
    for value in get_args(declared):
        stored = value.value if isinstance(value, enum.Enum) else value
        if type(stored) not in SCALARS:
            raise UnstorableTypeError(f"{type_name(declared)} holds what is no JSON scalar")
        values[type(stored), stored] = value
    return values


def structure_literal(declared: Any) -> StructureHook:
    """Make the hook for a `Literal`."""
    values = literal_values(declared)

    def structure(value: Any, _declared: Any) -> Any:
        if value.__class__ in SCALARS:
            found = values.get((value.__class__, value), values)
            if found is not values:
                return found
        raise Misfit(f"expected a value of {type_name(declared)}")

    return structure


def unstructure_literal(_declared: Any) -> UnstructureHook:
    """Make the hook that stores a value of a `Literal`; it is judged when structured back."""
    return lambda value: value.value if isinstance(value, enum.Enum) else value
