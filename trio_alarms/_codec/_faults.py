"""What does not fit, where it stands, and how an error says so without showing content.

A path is made of field names, indices and `[…]` for a key of a mapping, which is content.
"""

from __future__ import annotations

import types
from typing import Any, Final

import attrs
from cattrs.errors import AttributeValidationNote, BaseValidationError, IterableValidationNote

_JSON_NAMES: Final[dict[type, str]] = {
    types.NoneType: "null",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
}

# Stands in a path for a key of a mapping.
ANY_KEY: Final = "[…]"

# Why a key does not fit that the declared type requires.
MISSING: Final = "it is missing"

_LONGEST_PATH: Final = 200


class UnstorableTypeError(Exception):
    """A declared type that has no strict JSON form."""


class DuplicateMemberError(UnstorableTypeError):
    """A union with two members of one name, so that `_type` cannot tell them apart."""


class Misfit(Exception):  # noqa: N818 - it says what a value is, and never leaves this package
    """A JSON value that does not fit the declared type. Its text shows no content."""


class Within(Exception):  # noqa: N818 - it says where an error is, and never leaves this package
    """Something went wrong inside a container: at which step of the path, and what."""

    def __init__(self, step: str, error: Exception) -> None:
        super().__init__(step)
        self.step = step
        self.error = error


@attrs.frozen(eq=False)
class Unstorable:
    """Stands in an unstructured tree for a value that cannot be stored.

    Whoever walks the tree finds it together with its path, so that unstructuring, which cattrs
    generates code for, need not keep track of paths.
    """

    reason: str


def json_name(value: object) -> str:
    """Name the kind of a JSON value, never its content."""
    return _JSON_NAMES.get(type(value)) or f"an object of type {type(value).__name__}"


def type_name(declared: Any) -> str:
    """Name a declared type as its author wrote it."""
    if isinstance(declared, type) and not hasattr(declared, "__args__"):
        return declared.__name__
    try:
        return repr(declared).removeprefix("typing.")
    except Exception:  # noqa: BLE001 - what is given for a type may be anything
        return f"an object of type {type(declared).__name__}"


def unexpected(expected: str, value: object) -> Unstorable:
    """Stand in for a Python value of another type than the declared one."""
    return Unstorable(f"expected {expected}, got {type(value).__name__}")


def shortened(path: str) -> str:
    """Bound the path of what is nested deeply."""
    return path if len(path) <= _LONGEST_PATH else f"{path[:_LONGEST_PATH]}…"


def explain(error: Exception) -> tuple[str, str, Exception]:
    """The path to the first thing that went wrong, what it is, and the error it was."""
    steps: list[str] = []
    missing = False
    while True:
        if isinstance(error, Within):
            steps.append(error.step)
            error = error.error
        elif isinstance(error, BaseValidationError):
            error = error.exceptions[0]
            note = _validation_note(error)
            steps.append(_step(note))
            missing = isinstance(note, AttributeValidationNote) and error.args == (note.name,)
        else:
            return shortened("".join(steps)), _reason(error, missing=missing), error


def _validation_note(error: Exception) -> AttributeValidationNote | IterableValidationNote | None:
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, AttributeValidationNote | IterableValidationNote):
            return note
    return None


def _step(note: AttributeValidationNote | IterableValidationNote | None) -> str:
    if note is None:
        return ""
    if isinstance(note, AttributeValidationNote):
        return f".{note.name}"
    # The key of a mapping, even where it is a number.
    return f"[{note.index}]" if " @ index " in note else ANY_KEY


def _reason(error: Exception, *, missing: bool) -> str:
    if isinstance(error, Misfit):
        return str(error)
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if missing and isinstance(error, KeyError):
        return MISSING
    return f"it was refused with {type(error).__name__}"
