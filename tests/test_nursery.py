"""`BodyNursery`: what comes out of it, for every way in which its body and its tasks can end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from trio_alarms._nursery import BodyNursery, combined, holds_cancelled, raise_single

BODY = ValueError("the body's")
TASK = KeyError("a task's")
OTHER = RuntimeError("another task's")


async def error_of(operation: Callable[[], Awaitable[object]]) -> BaseException | None:
    """What an operation raises."""
    try:
        await operation()
    except BaseException as error:  # noqa: BLE001 - handed to the test
        return error
    return None


async def fail(error: BaseException) -> None:
    """Raise, after a moment."""
    await trio.lowlevel.checkpoint()
    raise error


async def fail_when_cancelled(error: BaseException) -> None:
    """Raise while being cancelled."""
    try:
        await trio.sleep_forever()
    finally:
        raise error


@pytest.mark.parametrize("unwrap", [False, True])
@pytest.mark.parametrize(
    "error", [BODY, KeyboardInterrupt(), SystemExit(1), ExceptionGroup("g", [BODY, TASK])]
)
async def test_the_bodys_error_alone_leaves_as_it_is(error: BaseException, *, unwrap: bool) -> None:
    """A body that raises cancels the tasks, and its error is the same object."""
    cancelled: list[bool] = []

    async def task() -> None:
        try:
            await trio.sleep_forever()
        finally:
            cancelled.append(True)

    async def body() -> None:
        async with BodyNursery(unwrap=unwrap) as nursery:
            nursery.start_soon(task)
            await trio.lowlevel.checkpoint()
            raise error

    assert await error_of(body) is error
    assert cancelled == [True]
    assert error.__cause__ is None


async def test_errors_of_body_and_tasks_leave_together() -> None:
    """Where a task fails beside the body, both errors are in one group."""

    async def body() -> None:
        async with BodyNursery(unwrap=True) as nursery:
            nursery.start_soon(fail_when_cancelled, TASK)
            await trio.lowlevel.checkpoint()
            raise BODY

    error = await error_of(body)
    assert isinstance(error, ExceptionGroup)
    assert error.exceptions[0] is BODY
    assert error.exceptions[1] is TASK
    assert len(error.exceptions) == 2


async def test_the_body_may_raise_while_a_failing_task_cancels_it() -> None:
    """A body that makes an error of its cancellation leaves together with what caused it."""

    async def body() -> None:
        async with BodyNursery() as nursery:
            nursery.start_soon(fail, TASK)
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                raise BODY from None

    error = await error_of(body)
    assert isinstance(error, ExceptionGroup)
    assert set(error.exceptions) == {BODY, TASK}


@pytest.mark.parametrize("unwrap", [False, True])
@pytest.mark.parametrize("waits", [False, True])
async def test_a_task_that_fails_alone(*, unwrap: bool, waits: bool) -> None:
    """The single error of a task is trio's group, or with `unwrap` the error itself."""

    async def body() -> None:
        async with BodyNursery(unwrap=unwrap) as nursery:
            nursery.start_soon(fail, TASK)
            if waits:
                await trio.sleep_forever()

    error = await error_of(body)
    if unwrap:
        assert error is TASK
    else:
        assert isinstance(error, ExceptionGroup)
        assert error.exceptions == (TASK,)


async def test_several_failing_tasks_stay_a_group() -> None:
    """`unwrap` takes nothing away where several tasks failed."""

    async def body() -> None:
        async with BodyNursery(unwrap=True) as nursery:
            nursery.start_soon(fail_when_cancelled, TASK)
            nursery.start_soon(fail, OTHER)

    error = await error_of(body)
    assert isinstance(error, ExceptionGroup)
    assert set(error.exceptions) == {TASK, OTHER}


@pytest.mark.parametrize("unwrap", [False, True])
async def test_a_cancelled_body_is_caught_by_the_scope_that_cancelled(*, unwrap: bool) -> None:
    """Cancellation from outside leaves as trio's own, and its scope catches it."""
    with trio.CancelScope() as scope:
        async with BodyNursery(unwrap=unwrap) as nursery:
            nursery.start_soon(trio.sleep_forever)
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_the_bodys_error_wins_over_a_cancellation_from_outside() -> None:
    """A body that raises while its surroundings are cancelled still raises its own error."""
    with trio.CancelScope() as scope:

        async def body() -> None:
            async with BodyNursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                scope.cancel()
                raise BODY

        assert await error_of(body) is BODY
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught


async def test_cancelling_the_nursery_from_inside_is_absorbed_by_it() -> None:
    """A nursery whose own scope was cancelled ends without an error."""
    async with BodyNursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        nursery.cancel_scope.cancel()
        await trio.sleep_forever()
    assert nursery.cancel_scope.cancelled_caught


async def test_a_group_with_a_cancellation_in_it_is_taken_apart_by_trio() -> None:
    """What a body's inner nursery mixed with a cancellation leaves without the cancellation."""
    scope = trio.CancelScope()

    async def body() -> None:
        with scope:
            async with BodyNursery(unwrap=True), trio.open_nursery() as inner:
                inner.start_soon(fail_when_cancelled, TASK)
                inner.start_soon(trio.sleep_forever)
                await trio.lowlevel.checkpoint()
                scope.cancel()

    error = await error_of(body)
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        (error,) = error.exceptions
    assert error is TASK


async def test_holds_cancelled() -> None:
    """A `Cancelled` is found by itself and at any depth of a group."""
    caught: list[BaseException] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            caught.append(error)
            raise
    cancelled = caught[0]
    assert holds_cancelled(cancelled)
    deep = BaseExceptionGroup("outer", [BODY, BaseExceptionGroup("inner", [cancelled, TASK])])
    assert holds_cancelled(deep)
    assert not holds_cancelled(BODY)
    assert not holds_cancelled(ExceptionGroup("g", [BODY, TASK]))


def test_raise_single() -> None:
    """Only a group of one is taken apart."""
    with pytest.raises(ValueError, match="the body's") as caught:
        raise_single(ExceptionGroup("g", [BODY]))
    assert caught.value is BODY
    raise_single(ExceptionGroup("g", [BODY, TASK]))
    raise_single(BODY)


def test_combined() -> None:
    """None, the error itself, or one group, in order."""
    assert combined([], "m") is None
    assert combined([BODY], "m") is BODY
    group = combined([BODY, TASK], "m")
    assert isinstance(group, ExceptionGroup)
    assert group.exceptions == (BODY, TASK)
    assert group.message == "m"
