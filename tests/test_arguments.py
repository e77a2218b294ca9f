from __future__ import annotations

import functools
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from unittest.mock import AsyncMock

import pytest

from trio_alarms._arguments import (
    MAX_INTEGER,
    _declares_awaitable,
    describe,
    is_plainly_synchronous,
    require_integer,
)
from trio_alarms._errors import AlarmError, InvalidAlarmRefError


class _Hostile:
    """Everything that an error message could ask of it fails."""

    def __repr__(self) -> str:
        raise AssertionError

    __str__ = __repr__


class _HostileZone(tzinfo):
    tzname = dst = None  # type: ignore[assignment]  # a zone needs no more than its offset

    def utcoffset(self, _when: datetime | None) -> timedelta:
        raise AssertionError


class _SecretFloat(float):
    def __repr__(self) -> str:
        return "secret"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "None"),
        (True, "True"),
        (-7, "-7"),
        (0.1, "0.1"),
        (float("nan"), "nan"),
        (_SecretFloat(0.5), "0.5"),
        (timedelta(seconds=1), "datetime.timedelta(seconds=1)"),
        (datetime(2000, 1, 2, 3, 4, 5, tzinfo=UTC), "2000-01-02T03:04:05"),
        (datetime(1, 1, 1, tzinfo=_HostileZone()), "0001-01-01T00:00:00"),
        ("a payload", "an object of type str"),
        (_Hostile(), "an object of type _Hostile"),
    ],
)
def test_describe_names_numbers_by_value_and_objects_by_type(value: object, words: str) -> None:
    """An error names what was given but never what could be a payload."""
    assert describe(value) == words


def test_describe_does_not_print_an_integer_that_python_refuses_to_print() -> None:
    """An integer of more digits than Python converts is still named."""
    assert describe(10**5000) == "an int of 16610 bits"


def test_describe_names_a_function() -> None:
    """A function is named by its qualified name."""
    assert describe(test_describe_names_a_function).startswith("the function test_describe")


@pytest.mark.parametrize("value", [0, -1, True, 1.0, 1.5, "1", None, MAX_INTEGER + 1, 2**999])
def test_require_integer_names_parameter_value_and_range(value: object) -> None:
    """Counts that are no int in range are refused at the call (C18)."""
    with pytest.raises(InvalidAlarmRefError, match=f"^limit must be an int from 1 to {2**63 - 1}"):
        require_integer(value, parameter="limit", error=InvalidAlarmRefError, minimum=1)


@pytest.mark.parametrize("value", [1, 2, MAX_INTEGER])
def test_require_integer_returns_what_is_in_range(value: int) -> None:
    """Both bounds belong to the range."""
    assert value == require_integer(value, parameter="limit", error=AlarmError, minimum=1)


async def _handle(_event: object) -> None: ...


def _wrapping(function: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(function)
    def wrapper(*arguments: object) -> object:
        return function(*arguments)

    return wrapper


def _declared(_event: object) -> Awaitable[None]:
    return _handle(_event)


def _declared_coroutine(_event: object) -> Coroutine[Any, Any, None]:
    return _handle(_event)


def _declared_any(_event: object) -> Any:
    return _handle(_event)


@types.coroutine
def _generator_based(_event: object) -> Generator[Any, Any, None]:
    yield


class _Handler:
    async def __call__(self, _event: object) -> None: ...

    async def handle(self, _event: object) -> None: ...

    def handle_synchronously(self, _event: object) -> None: ...


class _LenZero:
    """False in a condition, but a handler."""

    def __len__(self) -> int:
        return 0

    async def __call__(self, _event: object) -> None: ...


class _Task:
    def __init__(self, _event: object) -> None: ...

    def __await__(self) -> Iterator[None]:
        yield


@pytest.mark.parametrize(
    "function",
    [
        _handle,
        _declared,
        _declared_coroutine,
        _declared_any,
        _generator_based,
        lambda event: _handle(event),  # noqa: PLW0108 - the case tested
        functools.partial(_handle, None),
        functools.partial(_Handler().handle),
        _wrapping(_handle),
        _wrapping(functools.partial(_handle)),
        _Handler(),
        _Handler().handle,
        _LenZero(),
        _Task,
        functools.lru_cache(_handle),
        AsyncMock(),
    ],
)
def test_what_can_give_an_awaitable_is_not_plainly_synchronous(function: object) -> None:
    """Any callable that returns an awaitable will do."""
    assert not is_plainly_synchronous(function)


def _synchronous(_event: object) -> None: ...


def _unannotated(_event):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - the case tested
    return None


def _text(_event: object) -> str:
    return "retry"


def _generator(_event: object) -> Iterator[None]:
    yield


async def _async_generator(_event: object) -> AsyncIterator[None]:
    yield


class _SynchronousHandler:
    def __call__(self, _event: object) -> None: ...


class _EvaluatedAnnotations:
    """The return annotation as an object, as without `from __future__ import annotations`."""

    def none(self) -> None: ...

    def awaitable(self) -> None: ...

    none.__annotations__["return"] = None
    awaitable.__annotations__["return"] = Awaitable[None]


@pytest.mark.parametrize(
    "function",
    [
        _synchronous,
        _unannotated,
        _text,
        _generator,
        _async_generator,
        functools.partial(_synchronous, None),
        _wrapping(_synchronous),
        _SynchronousHandler(),
        _SynchronousHandler,
        _Handler().handle_synchronously,
        _EvaluatedAnnotations().none,
        print,
        None,
        "handle",
        7,
    ],
)
def test_what_gives_no_awaitable_is_plainly_synchronous(function: object) -> None:
    """A handler that is no async function is refused before it is ever called (C18)."""
    assert is_plainly_synchronous(function)


def test_an_evaluated_return_annotation_counts_like_its_text() -> None:
    """A `def` that is declared to return an awaitable is believed in either form."""
    assert not is_plainly_synchronous(_EvaluatedAnnotations().awaitable)


class _LazyAnnotations:
    """A function as Python 3.14 has it, with an annotation that cannot be evaluated yet."""

    @property
    def __annotations__(self) -> dict[str, Any]:  # type: ignore[override]  # the case tested
        raise NameError


def test_a_return_annotation_that_cannot_be_evaluated_is_believed() -> None:
    """Names imported for type checkers alone do not make a handler synchronous."""
    function: Any = _LazyAnnotations()
    assert _declares_awaitable(function)
