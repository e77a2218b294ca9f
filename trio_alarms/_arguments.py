"""Judging what a caller passed, and naming it in an error without showing its content."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, cast, get_origin

if TYPE_CHECKING:
    from ._errors import AlarmError

T = TypeVar("T")

# What SQLite stores in an INTEGER column or takes as a LIMIT.
MAX_INTEGER = 2**63 - 1

_LARGEST_SHOWN_BITS = 128
_LONGEST_SHOWN_CHOICE = 40
_SHOWN: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (types.NoneType, str),
    (bool, bool.__repr__),
    (int, int.__repr__),
    (float, float.__repr__),
    (timedelta, timedelta.__repr__),
)


def is_of_type(value: object, kind: type[T]) -> TypeGuard[T]:
    """Whether the methods of `kind` work on `value`.

    Unlike `isinstance` it does not ask the value's `__class__`, which a mock redefines.
    """
    return issubclass(type(value), kind)


def describe(value: object) -> str:
    """Name `value` for an error message: numbers, times and functions by value, all else by type.

    It never raises, runs no code of the value's own class, and never shows what could be a
    payload.
    """
    if is_of_type(value, int) and int.bit_length(value) > _LARGEST_SHOWN_BITS:
        return f"an int of {int.bit_length(value)} bits"
    for kind, show in _SHOWN:
        if issubclass(type(value), kind):
            return show(value)
    if is_of_type(value, datetime):
        return f"{datetime.date(value)}T{datetime.time(value)}"
    if is_of_type(value, types.FunctionType):
        return f"the function {value.__qualname__}"
    return f"an object of type {type(value).__name__}"


def chosen(value: object, allowed: Sequence[str]) -> str | None:
    """The one of `allowed` that has the characters of `value`, which may be anything."""
    if not is_of_type(value, str):
        return None
    characters = str.__str__(value)
    return characters if characters in allowed else None


def describe_choice(value: object) -> str:
    """Name `value` where one of a few strings is allowed: a short str is shown."""
    if not is_of_type(value, str):
        return describe(value)
    characters = str.__str__(value)
    if len(characters) > _LONGEST_SHOWN_CHOICE:
        return f"a str of {len(characters)} characters"
    return repr(characters)


def require_integer(
    value: object,
    *,
    parameter: str,
    error: type[AlarmError],
    minimum: int,
    maximum: int = MAX_INTEGER,
) -> int:
    """Return `value` when it is an int (no bool) in the given range, else raise `error`."""
    # The number itself: a subclass may compare as it likes.
    is_number = is_of_type(value, int) and not is_of_type(value, bool)
    number = int.__int__(cast("int", value)) if is_number else None
    if number is None or not minimum <= number <= maximum:
        raise error(
            f"{parameter} must be an int from {minimum} to {maximum}, not {describe(value)}"
        )
    return number


def is_plainly_synchronous(function: Any) -> bool:
    """Whether calling `function` plainly gives no awaitable, or it cannot be called at all.

    Only what is known without a call counts: a `def` that neither is declared nor wraps something
    awaitable, a generator function, a builtin, a class without `__await__`. A lambda cannot be
    declared `async`, so it has the benefit of the doubt.
    """
    while isinstance(function, functools.partial | types.MethodType):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    if inspect.iscoroutinefunction(function):
        return False
    if isinstance(function, type):
        return not hasattr(function, "__await__")
    if not callable(function) or isinstance(function, types.BuiltinFunctionType):
        return True
    if not isinstance(function, types.FunctionType):
        # Looked up on the type, as a call does.
        function = type(function).__call__
    return isinstance(function, types.FunctionType) and _is_synchronous_function(function)


def _is_synchronous_function(function: types.FunctionType) -> bool:
    flags = function.__code__.co_flags
    if flags & (inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE):
        return False
    if flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        return True
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None and not is_plainly_synchronous(wrapped):
        return False
    return function.__name__ != "<lambda>" and not _declares_awaitable(function)


def _declares_awaitable(function: types.FunctionType) -> bool:
    try:
        declared = function.__annotations__.get("return")
    except NameError:
        # Python 3.14 evaluates annotations here; what cannot be read is not plain.
        return True
    if isinstance(declared, str):
        name = declared.partition("[")[0].rpartition(".")[2].strip()
        return name in {"Any", "Awaitable", "Coroutine"}
    origin = get_origin(declared) or declared
    return origin is Any or (isinstance(origin, type) and issubclass(origin, Awaitable))
