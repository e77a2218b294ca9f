"""Nurseries whose exceptions leave as they came, not wrapped in a group of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import trio

if TYPE_CHECKING:
    from types import TracebackType


class BodyNursery:
    """A nursery around the body of one of our blocks.

    What can come out of it:

    - the body raised E and no task did: E, the same object;
    - the body raised E and tasks failed too: a group of E and their errors;
    - the body was cancelled: trio's own rules, so that the right scope catches it;
    - only tasks failed: trio's group, or with `unwrap` the error itself where it is one.
    """

    def __init__(self, *, unwrap: bool = False) -> None:
        self._unwrap = unwrap
        self._manager = trio.open_nursery()

    async def __aenter__(self) -> trio.Nursery:
        self._nursery = await self._manager.__aenter__()
        return self._nursery

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is None or holds_cancelled(error):
            try:
                return bool(await self._manager.__aexit__(kind, error, traceback))
            except BaseExceptionGroup as group:
                if self._unwrap:
                    raise_single(group)
                raise
        self._nursery.cancel_scope.cancel()
        try:
            await self._manager.__aexit__(None, None, None)
        except trio.Cancelled:
            # The body's own error is on its way out and says more; whoever cancelled cancels the
            # next checkpoint as well.
            return False  # noqa: ASYNC910 - the nursery's own exit was one
        except BaseExceptionGroup as group:
            others = group.split(trio.Cancelled)[1]
            if others is None:
                return False  # noqa: ASYNC910 - the nursery's own exit was one
            raise BaseExceptionGroup(
                "the block and tasks beside it failed", [error, *others.exceptions]
            ) from None
        return False


def holds_cancelled(error: BaseException) -> bool:
    """Whether the error is, or groups, trio's `Cancelled`."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return group.subgroup(trio.Cancelled) is not None
    return isinstance(error, trio.Cancelled)


def raise_single(error: BaseException) -> None:
    """Raise what a nursery wrapped, where that is a single error."""
    group = cast("BaseExceptionGroup[BaseException]", error)
    if isinstance(error, BaseExceptionGroup) and len(group.exceptions) == 1:
        raise group.exceptions[0]


def combined(errors: list[Exception], message: str) -> Exception | None:
    """One error for several: none, the error itself, or a group of them."""
    if not errors:
        return None
    return errors[0] if len(errors) == 1 else ExceptionGroup(message, errors)
