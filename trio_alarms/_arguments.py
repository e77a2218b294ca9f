"""Judging what a caller passed, and naming it in an error without showing its content."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, get_origin

if TYPE_CHECKING:
    from ._errors import AlarmError

# What SQLite stores in an INTEGER column or takes as a LIMIT.
MAX_INTEGER = 2**63 - 1

_LARGEST_SHOWN_BITS = 128
_SHOWN: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (types.NoneType, str),
    (bool, bool.__repr__),
    (int, int.__repr__),
    (float, float.__repr__),
    (timedelta, timedelta.__repr__),
)


def describe(value: object) -> str:
    """Name `value` for an error message: numbers, times and functions by value, all else by type.

    It never raises, runs no code of the value's own class, and never shows what could be a
    payload.
    """
    if isinstance(value, int) and int.bit_length(value) > _LARGEST_SHOWN_BITS:
        return f"an int of {int.bit_length(value)} bits"
    for kind, show in _SHOWN:
        if isinstance(value, kind):
            return show(value)
    if isinstance(value, datetime):
        return f"{datetime.date(value)}T{datetime.time(value)}"
    if isinstance(value, types.FunctionType):
        return f"the function {value.__qualname__}"
    return f"an object of type {type(value).__name__}"


def require_integer(
    value: object,
    *,
    parameter: str,
    error: type[AlarmError],
    minimum: int,
    maximum: int = MAX_INTEGER,
) -> int:
    """Return `value` when it is an int (no bool) in the given range, else raise `error`."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise error(
            f"{parameter} must be an int from {minimum} to {maximum}, not {describe(value)}"
        )
    return int(value)


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
