"""JSON values to and from the text that is stored: strict JSON, of bounded depth and size."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Any, Final, TypeAlias, cast

from .._errors import InvalidAlarmPayloadError
from .._names import has_lone_surrogate
from ._faults import ANY_KEY, Misfit, Unstorable, shortened

# A recursive type here would turn down every function that is annotated with `dict[str, Any]`.
JSON: TypeAlias = Any

# Well inside of what Python's recursion limit lets any reader take apart again.
MAX_DEPTH: Final = 100
# The most digits that Python converts between int and text by default.
MAX_INTEGER_DIGITS: Final = 4300

_INTEGER_BOUND: Final = 10**MAX_INTEGER_DIGITS
_LONGEST_KEY_SHOWN: Final = 64


class Entries(dict[Any, Any]):
    """An unstructured mapping, whose keys are content; other dicts are keyed by field names."""


def _parse_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is out of range")
    return number


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def _refuse_value(value: object) -> object:
    raise Misfit(_scalar_fault(value))


_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_refuse_value
)
_DECODER: Final = json.JSONDecoder(parse_float=_parse_float, parse_constant=_refuse_constant)

write_json = _ENCODER.encode


def read_json(text: str) -> JSON:
    """Read strict JSON; any `Exception` says that it is none."""
    return _DECODER.decode(text)


def to_text(tree: Any, *, max_bytes: int, tuples: bool = False) -> tuple[str, JSON]:
    """Write a JSON value as text, and read it again as a later process will.

    The common case is judged by the C code of `json` and by comparing; the tree is walked only
    where that leaves doubt, or to say what is wrong.

    Args:
        tree: The value; an `Unstorable` in it says what could not be unstructured.
        max_bytes: The most bytes of UTF-8 that the text may take.
        tuples: Whether a tuple counts as an array, which it does not come back as.

    Raises:
        InvalidAlarmPayloadError: `tree` is no JSON value, too deep, or too large.
    """
    try:
        text = write_json(tree)
        _require_size(text, max_bytes)
        stored = read_json(text)
        if stored == tree and _is_evidently_within_bounds(text):
            return text, stored
    except InvalidAlarmPayloadError:
        raise
    except Exception as error:
        # Mostly a TypeError, ValueError or RecursionError; but a subclass of a JSON type, whose
        # own comparison is asked, may raise anything.
        # Python 3.13 adds notes with keys of mappings, which are content.
        vars(error).pop("__notes__", None)
        path, reason = _diagnose(tree, tuples=tuples) or ("", "it cannot be written as JSON")
        raise InvalidAlarmPayloadError(f"payload{shortened(path)}: {reason}") from error
    fault = _diagnose(tree, tuples=tuples)
    if fault is not None:
        path, reason = fault
        raise InvalidAlarmPayloadError(f"payload{shortened(path)}: {reason}")
    return text, stored


def atom_to_text(atom: str | bool | int | None, *, max_bytes: int) -> str:  # noqa: FBT001 - the value, not a flag
    """Write one value of a basic type as text; nothing but a fault of its own can be wrong with it.

    Raises:
        InvalidAlarmPayloadError: It cannot be stored, or is too large.
    """
    reason = _scalar_fault(atom)
    if reason is not None:
        raise InvalidAlarmPayloadError(f"payload: {reason}")
    text = write_json(atom)
    _require_size(text, max_bytes)
    return text


def _require_size(text: str, max_bytes: int) -> None:
    size = len(text) if text.isascii() else len(text.encode())
    if size > max_bytes:
        raise InvalidAlarmPayloadError(
            f"payload: {size} bytes of JSON are more than the {max_bytes} allowed"
            " (max_payload_bytes)"
        )


def _is_evidently_within_bounds(text: str) -> bool:
    """Whether depth and integers are in bounds for sure; False leaves it open."""
    integers_are_bounded = 0 < sys.get_int_max_str_digits() <= MAX_INTEGER_DIGITS
    return integers_are_bounded and text.count("[") + text.count("{") <= MAX_DEPTH


def _diagnose(tree: Any, *, tuples: bool) -> tuple[str, str] | None:
    """The path and the reason of the first thing in a tree that is no storable JSON value."""
    try:
        return _find_fault(tree, tuples=tuples, depth=0)
    except RecursionError:
        # The caller itself is deep down.
        return "", "it is nested too deeply"
    except Exception:  # noqa: BLE001 - the payload's own classes may raise anything
        return "", "it holds a subclass of a JSON type that does not work as one"


def _find_fault(tree: Any, *, tuples: bool, depth: int) -> tuple[str, str] | None:
    if isinstance(tree, dict | list) or (tuples and isinstance(tree, tuple)):
        if depth == MAX_DEPTH:
            return "", f"it is nested deeper than {MAX_DEPTH} levels"
        container = cast("dict[Any, Any] | Sequence[Any]", tree)
        return _find_fault_inside(container, tuples=tuples, depth=depth)
    reason = _scalar_fault(tree)
    return None if reason is None else ("", reason)


def _find_fault_inside(
    tree: dict[Any, Any] | Sequence[Any], *, tuples: bool, depth: int
) -> tuple[str, str] | None:
    if isinstance(tree, dict):
        for key in tree:
            reason = _key_fault(key)
            if reason is not None:
                return "", reason
        items = ((_key_step(tree, key), item) for key, item in tree.items())
    else:
        items = ((f"[{index}]", item) for index, item in enumerate(tree))
    for step, item in items:
        fault = _find_fault(item, tuples=tuples, depth=depth + 1)
        if fault is not None:
            path, reason = fault
            return step + path, reason
    return None


def _key_step(mapping: dict[Any, Any], key: str) -> str:
    is_field = not isinstance(mapping, Entries) and len(key) <= _LONGEST_KEY_SHOWN
    return f".{key}" if is_field and key.isidentifier() else ANY_KEY


def _key_fault(key: object) -> str | None:
    if isinstance(key, Unstorable):
        return f"a key does not fit: {key.reason}"
    if not isinstance(key, str):
        return f"keys must be strings, not {type(key).__name__}"
    return "a key has a lone surrogate" if has_lone_surrogate(key) else None


def _scalar_fault(value: object) -> str | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return "it has a lone surrogate" if has_lone_surrogate(value) else None
    if isinstance(value, int):
        is_bounded = -_INTEGER_BOUND < value < _INTEGER_BOUND
        return None if is_bounded else f"the integer has more than {MAX_INTEGER_DIGITS} digits"
    if isinstance(value, float):
        return None if math.isfinite(value) else "NaN and infinities are no JSON"
    if isinstance(value, Unstorable):
        return value.reason
    return f"{type(value).__name__} is no JSON type"
