"""Registrations made of plain functions, and handlers that can be held and watched."""

from __future__ import annotations

import sqlite3
import types
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import trio

from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmRegistration,
    AlarmService,
    DispatchOptions,
)

Handler: TypeAlias = Callable[[AlarmDue[Any]], Awaitable[object]]

_DEFAULT_OPTIONS = DispatchOptions()
_keys = count()


def serving(
    automatic: Mapping[str, Handler] | None = None,
    *,
    manual: Mapping[str, Handler] | None = None,
    options: DispatchOptions = _DEFAULT_OPTIONS,
    **definition: Any,
) -> AlarmRegistration:
    """A registration of one service with an alarm without payload for each given tag.

    `definition` is given to each automatic `Alarm`.
    """
    handlers = {**(automatic or {}), **(manual or {})}
    alarms: dict[str, Alarm[Any]] = {
        tag: Alarm(None, tag=tag, **definition) for tag in automatic or {}
    }
    alarms |= {tag: Alarm(None, tag=tag, lifecycle="manual") for tag in manual or {}}
    body = {f"alarm_{number}": alarm for number, alarm in enumerate(alarms.values())}
    service: Any = types.new_class(
        "Service",
        (AlarmService,),
        {"key": f"service-{next(_keys)}"},
        lambda namespace: namespace.update(body),
    )
    bound = [alarms[tag].handled_by(handler) for tag, handler in handlers.items()]
    registration: AlarmRegistration = service.handlers(*bound, options=options)
    return registration


async def fine(event: AlarmDue[Any]) -> None:
    """A handler that does nothing."""


async def failing(event: AlarmDue[Any]) -> None:
    """A handler that fails."""
    raise ValueError(event.id)


class Held:
    """A handler that runs until it is let go, and what it has seen.

    `most` is the greatest number that ran at a time. With `error` it raises that once let go.
    """

    def __init__(self, error: Exception | None = None) -> None:
        self.started: list[str] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []
        self.running = 0
        self.most = 0
        self._error = error
        self._open = trio.Event()
        self._changed = trio.Event()

    async def __call__(self, event: AlarmDue[Any]) -> None:
        """Run until let go."""
        self.started.append(event.id)
        self.running += 1
        self.most = max(self.most, self.running)
        self._change()
        try:
            await self._open.wait()
        except trio.Cancelled:
            self.cancelled.append(event.id)
            raise
        finally:
            self.running -= 1
            self._change()
        self.ended.append(event.id)
        if self._error is not None:
            raise self._error

    def let_go(self) -> None:
        """Let those that run and those to come return."""
        self._open.set()

    async def until_started(self, number: int) -> None:
        """Wait until so many have started in all."""
        while len(self.started) < number:
            await self._changed.wait()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class Recorder:
    """A handler that notes the ids it gets."""

    def __init__(self) -> None:
        self.events: list[AlarmDue[Any]] = []

    async def __call__(self, event: AlarmDue[Any]) -> None:
        """Note the event."""
        self.events.append(event)

    @property
    def ids(self) -> list[str]:
        """The ids in the order of the handlers' starts."""
        return [event.id for event in self.events]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process's write lock on the database, for all that the library can tell."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            connection.execute("ROLLBACK")
