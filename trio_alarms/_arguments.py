"""Judging what a caller passed, and naming it in an error without showing its content."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Awaitable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, get_origin

if TYPE_CHECKING:
    from ._errors import AlarmError

# What SQLite stores in an INTEGER column or takes as a LIMIT.
MAX_INTEGER = 2**63 - 1

_LARGEST_SHOWN_BITS = 128


def describe(value: object) -> str:
    """Name `value` for an error message: numbers and times by value, all else by type.

    Total: it never raises, never calls code of the value's own class, and never shows what could
    be a payload.
    """
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        if int.bit_length(value) > _LARGEST_SHOWN_BITS:
            return f"an int of {int.bit_length(value)} bits"
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, timedelta):
        return timedelta.__repr__(value)
    if isinstance(value, datetime):
        return datetime.isoformat(datetime.replace(value, tzinfo=None))
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

    Only what can be known without a call counts: a `def` that is neither declared nor wrapped as
    something awaitable, a generator function, a builtin, or a class without `__await__`. A lambda
    cannot be declared `async`, so it gets the benefit of the doubt.
    """
    if not callable(function):
        return True
    if inspect.iscoroutinefunction(function):
        return False
    if isinstance(function, functools.partial):
        return is_plainly_synchronous(function.func)
    if isinstance(function, types.MethodType):
        return is_plainly_synchronous(function.__func__)
    if isinstance(function, types.FunctionType):
        return _is_synchronous_function(function)
    if isinstance(function, type):
        return not hasattr(function, "__await__")
    if isinstance(function, types.BuiltinFunctionType | types.MethodDescriptorType):
        return True
    # Bound to the type: `__call__` is looked up there, never on the instance.
    call: Any = type(function).__call__
    return isinstance(call, types.FunctionType) and _is_synchronous_function(call)


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
    declared = function.__annotations__.get("return")
    if isinstance(declared, str):
        name = declared.partition("[")[0].rpartition(".")[2].strip()
        return name in {"Awaitable", "Coroutine", "Any", "CoroutineType"}
    if declared is Any:
        return True
    origin = get_origin(declared) or declared
    return isinstance(origin, type) and issubclass(origin, Awaitable)
