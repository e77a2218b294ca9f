"""A service with an alarm of each kind, and handlers that a test steers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs
import trio

from trio_alarms import Alarm, AlarmService, DispatchOptions

if TYPE_CHECKING:
    from tests.behaviour.conftest import StoredRow, World
    from trio_alarms import AlarmDue, AlarmRegistration

EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)

Handler: TypeAlias = "Callable[[AlarmDue[Any]], Awaitable[object]]"


def at(milliseconds: int) -> datetime:
    """An instant, as far from the epoch of the harness as the columns of a row show it."""
    return EPOCH + timedelta(milliseconds=milliseconds)


@attrs.frozen
class Note:
    """A payload."""

    text: str


class Work(AlarmService, key="work"):
    """One alarm of each kind."""

    plain = Alarm(Note)
    skipping = Alarm(Note, failure="skip-and-advance-repeat")
    manual = Alarm(Note, lifecycle="manual")


class HandlerError(Exception):
    """What handlers in tests fail with."""


async def succeed(event: AlarmDue[Any]) -> None:
    """Handle at once."""
    await trio.lowlevel.checkpoint()


async def fail(event: AlarmDue[Any]) -> None:
    """Fail at once."""
    await trio.lowlevel.checkpoint()
    raise HandlerError


def work(
    plain: Handler = succeed,
    *,
    skipping: Handler = succeed,
    manual: Handler = succeed,
    options: DispatchOptions | None = None,
) -> AlarmRegistration:
    """A registration of the service with these handlers."""
    return Work.handlers(
        Work.plain.handled_by(plain),
        Work.skipping.handled_by(skipping),
        Work.manual.handled_by(manual),
        options=DispatchOptions() if options is None else options,
    )


class Recorder:
    """A handler that notes what it gets, and fails as long as it is told to."""

    def __init__(self, *, failures: int = 0) -> None:
        self.events: list[AlarmDue[Any]] = []
        self.ran_at: list[int] = []
        self.failures = failures

    async def __call__(self, event: AlarmDue[Any]) -> None:
        """Note it, and fail if so told."""
        self.events.append(event)
        self.ran_at.append(round((event.host.now() - EPOCH) / timedelta(milliseconds=1)))
        await trio.lowlevel.checkpoint()
        if self.failures:
            self.failures -= 1
            raise HandlerError

    @property
    def ids(self) -> list[str]:
        """The ids of what it got, in order."""
        return [event.id for event in self.events]


class HeldHandler(Recorder):
    """A handler that waits until the test lets it end."""

    def __init__(self, *, failures: int = 0) -> None:
        super().__init__(failures=failures)
        self.started = trio.Event()
        self.may_end = trio.Event()

    async def __call__(self, event: AlarmDue[Any]) -> None:
        """Wait, then note it, and fail if so told."""
        self.started.set()
        await self.may_end.wait()
        await super().__call__(event)


@asynccontextmanager
async def delivering(world: World, handler: HeldHandler) -> AsyncIterator[None]:
    """Around a body that acts from outside while the handler runs; then the handler ends."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.harness.deliver)
        await handler.started.wait()
        yield
        handler.may_end.set()


async def plain(world: World, method: str = "schedule_alarm", id: str = "a", **options: Any) -> Any:
    """Call a method of the service's view for its plain alarm."""
    options.setdefault("payload", Note("first"))
    return await getattr(world.host.service(Work), method)(Work.plain, id, **options)


def stored(world: World, id: str = "a", tag: str = "plain") -> StoredRow:
    """The row, which is there."""
    row = world.row(tag, id)
    assert row is not None
    return row
