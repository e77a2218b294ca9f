"""Payloads to and from JSON text: strict JSON, and strictly typed values by way of cattrs."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Final

from cattrs import BaseConverter

from .._errors import (
    InvalidAlarmPayloadError,
    InvalidAlarmRegistrationError,
    StoredAlarmDecodeError,
)
from ._converter import strict_converter
from ._faults import DuplicateMemberError, explain, type_name
from ._text import JSON, MAX_DEPTH, MAX_INTEGER_DIGITS, atom_to_text, read_json, to_text, write_json

__all__ = [
    "JSON",
    "MAX_DEPTH",
    "MAX_INTEGER_DIGITS",
    "DuplicateMemberError",
    "PayloadCodec",
    "decode_json",
    "encode_json",
]


_ATOMS: Final = frozenset({types.NoneType, bool, int, str})


class PayloadCodec:
    """How the payloads of one alarm definition are stored.

    Args:
        payload_type: What cattrs can structure and unstructure as JSON; `None` for no payload.
        converter: A cattrs converter to use as it is given; without one, types are structured
            strictly.
        upgrade: From the stored JSON value to the JSON value of today's type, applied to every
            stored value.

    Raises:
        InvalidAlarmRegistrationError: The type has no (strict) JSON form; its `__cause__` is a
            `DuplicateMemberError` where a union has two members of one name.
    """

    __slots__ = ("_atomic", "_name", "_structure", "_tuples", "_type", "_unstructure", "_upgrade")

    def __init__(
        self,
        payload_type: object,
        *,
        converter: BaseConverter | None = None,
        upgrade: Callable[[JSON], JSON] | None = None,
    ) -> None:
        self._type: Any = types.NoneType if payload_type is None else payload_type
        self._name = type_name(payload_type)
        self._upgrade = upgrade
        # A converter of the user's may unstructure to tuples; ours makes lists of what is one.
        self._tuples = converter is not None
        # Its JSON is the value itself.
        self._atomic = converter is None and isinstance(self._type, type) and self._type in _ATOMS
        if converter is None or payload_type is None:
            converter = strict_converter()
        try:
            self._structure = converter.get_structure_hook(self._type)
            self._unstructure = converter.get_unstructure_hook(self._type)
        except Exception as error:
            raise InvalidAlarmRegistrationError(
                f"payload_type must be a type that can be structured and unstructured as JSON,"
                f" not {self._name}: {str(error) or type(error).__name__}"
            ) from error

    def encode(self, value: Any, *, max_bytes: int) -> str:
        """Write a payload as the JSON text to store, from which `decode` makes an equal one.

        `upgrade` has no part in it, as nothing is stored yet.

        Args:
            value: The payload.
            max_bytes: The most bytes of UTF-8 that the text may take.

        Raises:
            InvalidAlarmPayloadError: It is not of the type, is no JSON, does not come back the
                same, or is too large or too deep. The message names the field but shows nothing.
        """
        if self._atomic and type(value) is self._type:
            # Without a look at it again: its JSON is the value itself.
            return atom_to_text(value, max_bytes=max_bytes)
        try:
            tree = self._unstructure(value)
        except Exception as error:
            raise InvalidAlarmPayloadError(f"payload: {explain(error)[1]}") from error
        text, stored = to_text(tree, max_bytes=max_bytes, tuples=self._tuples)
        try:
            came_back = self._comes_back(value, text, stored)
        except Exception as error:  # noqa: BLE001 - the payload's own code may raise anything
            path, reason, cause = explain(error)
            raise InvalidAlarmPayloadError(f"payload{path}: {reason}") from cause
        if not came_back:
            raise InvalidAlarmPayloadError(
                f"payload: its JSON does not structure back to an equal {self._name}"
            )
        return text

    def _comes_back(self, value: Any, text: str, stored: JSON) -> bool:
        restored = self._structure(stored, self._type)
        # Compared by text, as there are classes without equality, and aware datetimes in a repeated
        # hour equal none of another zone. A user's converter may write equal sets differently.
        return write_json(self._unstructure(restored)) == text or bool(restored == value)

    def decode(self, text: str) -> Any:
        """Make the payload of the stored text.

        Raises:
            StoredAlarmDecodeError: Anything at all is wrong with it, or `upgrade` raised.
        """
        stored = decode_json(text)
        try:
            if self._upgrade is not None:
                stored = self._upgrade(stored)
        except Exception as error:
            raise StoredAlarmDecodeError(
                f"the stored payload is no {self._name}: upgrade raised {type(error).__name__}"
            ) from error
        try:
            return self._structure(stored, self._type)
        except Exception as error:  # noqa: BLE001 - the payload's own code may raise anything
            path, reason, cause = explain(error)
            raise StoredAlarmDecodeError(
                f"the stored payload is no {self._name}: payload{path}: {reason}"
            ) from cause


def encode_json(value: JSON, *, max_bytes: int) -> str:
    """Write a payload of plain JSON values as the text to store.

    Args:
        value: None, a bool, int, float or str, or lists and dicts with str keys of these.
        max_bytes: The most bytes of UTF-8 that the text may take.

    Raises:
        InvalidAlarmPayloadError: It is no JSON, would not come back the same, or is too large or
            too deep. The message names the field but shows nothing.
    """
    text, _ = to_text(value, max_bytes=max_bytes)
    return text


def decode_json(text: str) -> JSON:
    """Make plain JSON values of the stored text.

    Raises:
        StoredAlarmDecodeError: It is no strict JSON.
    """
    try:
        text.encode()  # what was no UTF-8 in the file has lone surrogates here
        return read_json(text)
    except Exception as error:
        raise StoredAlarmDecodeError(
            f"the stored payload is no JSON that can be read ({type(error).__name__})"
        ) from error
