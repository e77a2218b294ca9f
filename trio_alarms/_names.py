"""What a tag, an id, a service's key or a host's name must look like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ._arguments import describe, is_of_type

if TYPE_CHECKING:
    from ._errors import AlarmError

MAX_NAME_LENGTH: Final = 512
MAX_HOST_NAME_LENGTH: Final = 128


def require_name(
    value: object,
    *,
    parameter: str,
    error: type[AlarmError],
    maximum: int = MAX_NAME_LENGTH,
) -> str:
    """Return `value` when it can name something in the database, else raise `error`.

    Args:
        value: A non-empty str without NUL or lone surrogates, which SQLite or UTF-8 would refuse
            or cut.
        parameter: The name that the error gives to the value.
        error: What to raise.
        maximum: The most characters allowed.

    Raises:
        error: `value` is no such str.
    """
    if type(value) is str and value.isascii() and "\0" not in value and 0 < len(value) <= maximum:
        return value
    # The characters themselves: what a subclass, such as an enum's member, prints may be another.
    text = str.__str__(value) if is_of_type(value, str) else None
    problem = describe(value) if text is None else _problem(text, maximum)
    if text is None or problem is not None:
        raise error(
            f"{parameter} must be a non-empty str of at most {maximum} characters, without NUL and"
            f" lone surrogates, not {problem}"
        )
    return text


def _problem(value: str, maximum: int) -> str | None:
    if not value:
        return "an empty one"
    if len(value) > maximum:
        return f"one of {len(value)} characters"
    if "\0" in value:
        return "one with NUL"
    return "one with a lone surrogate" if has_lone_surrogate(value) else None


def has_lone_surrogate(text: str) -> bool:
    """Whether `text` holds half of a surrogate pair, which no UTF-8 can express."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
