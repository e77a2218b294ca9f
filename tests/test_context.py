"""What the running task is inside of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from contextvars import copy_context
from typing import ClassVar

import trio

from trio_alarms._context import Frame, context_outside, find


class Room(Frame):
    """A frame with a name."""

    def __init__(self, name: str = "") -> None:
        self.name = name


class Cellar(Frame):
    """Another kind of frame."""


class Curtain(Frame):
    """Rooms outside of it cannot be seen."""

    hides: ClassVar[tuple[type[Frame], ...]] = (Room,)


def room() -> str | None:
    """The name of the innermost room that is visible."""
    found = find(Room, lambda _: True)
    return None if found is None else found.name


def test_the_innermost_frame_of_a_kind_is_found() -> None:
    """Of nested frames the innermost that matches is found, past frames of other kinds."""
    assert room() is None
    with Room("outer"), Room("inner") as inner, Cellar():
        assert room() == "inner"
        assert find(Room, lambda frame: frame.name == "outer") is not None
        assert find(Room, lambda frame: frame.name == "none") is None
        assert find(Room, lambda _: True) is inner
    assert room() is None


def test_a_frame_can_hide_outer_ones() -> None:
    """What is hidden is not seen from inside, but what is entered inside is."""
    with Room("outer"), Curtain():
        assert room() is None
        with Room("inner"):
            assert room() == "inner"
        with Cellar():
            assert room() is None
            assert find(Cellar, lambda _: True) is not None
    assert room() is None


def test_frames_are_left_in_order() -> None:
    """Leaving a frame brings back the one around it."""
    with Room("outer"):
        with Room("inner"):
            pass
        assert room() == "outer"


def test_leaving_in_another_context_changes_nothing_there() -> None:
    """A frame that is left where it was never entered disturbs nobody, and does not raise."""
    entered = Room("entered elsewhere")
    copy_context().run(entered.__enter__)
    with Room("here"):
        entered.__exit__(None, None, None)
        assert room() == "here"


def test_a_frame_that_stays_behind_does_not_bring_back_outer_ones() -> None:
    """Left not innermost first, the frames that are over stay until the innermost is left."""
    outer, inner = Room("outer"), Room("inner")
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert room() == "inner"
    inner.__exit__(None, None, None)
    copied = copy_context()
    assert copied.run(room) in {None, "outer"}
    outer.__exit__(None, None, None)
    assert room() is None


async def test_tasks_inherit_what_they_were_started_in() -> None:
    """A child is inside of what its starter was in, also after the starter has left it."""
    seen: list[str | None] = []
    left = trio.Event()

    async def child() -> None:
        seen.append(room())
        await left.wait()
        seen.append(room())
        with Room("the child's"):
            seen.append(room())

    async with trio.open_nursery() as nursery:
        with Room("the parent's"):
            nursery.start_soon(child)
            await trio.lowlevel.checkpoint()
            assert room() == "the parent's"
        left.set()
    assert seen == ["the parent's", "the parent's", "the child's"]
    assert room() is None


async def test_a_context_outside_is_inside_of_nothing() -> None:
    """A task that starts from `context_outside` sees none of the frames around it."""
    with Room("around"):
        context = context_outside()
        assert context.run(room) is None
        assert room() == "around"


async def test_a_generators_frame_ends_with_it() -> None:
    """The frame of a generator is its caller's too while it is suspended, and not longer."""

    async def rooms() -> AsyncIterator[int]:
        with Room("the generator's"):
            yield 1
            yield 2

    async with aclosing(rooms()) as some:  # type: ignore[type-var]  # a generator is one
        async for _ in some:
            assert room() == "the generator's"
            break
    assert room() is None

    def names() -> Iterator[str | None]:
        with Room("a plain generator's"):
            yield room()

    assert list(names()) == ["a plain generator's"]
    assert room() is None
