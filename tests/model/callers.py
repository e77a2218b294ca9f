"""What a task does to a host's alarms, as the operations of a script say."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import attrs

from tests.model.model import Outcome, Returned
from tests.model.services import ALARMS
from tests.model.steps import (
    Acknowledge,
    Block,
    Cancel,
    Deferred,
    Operation,
    Refused,
    Schedule,
    Write,
)
from tests.model.terms import at, raised, seconds, status_of
from trio_alarms import AlarmDue, AlarmError, AlarmHost, AlarmStatus


class BlockError(Exception):
    """What the body of a transaction block fails with, after these outcomes."""

    def __init__(self, inner: tuple[Outcome, ...]) -> None:
        super().__init__()
        self.inner = inner


@attrs.frozen
class Caller:
    """A task that does operations: its own event, if it handles one, and another's."""

    host: AlarmHost
    dispatch: Callable[[str], Awaitable[object]]
    event: AlarmDue[Any] | None = None
    other: AlarmDue[Any] | None = None

    async def operate(self, operation: Operation, tx: Any = None) -> Outcome:
        """Do it in this task, in the block `tx` if there is one."""
        try:
            if isinstance(operation, Deferred):
                async with self.host.scheduler.defer_wakes():
                    return await self.operate(operation.operation)
            return Returned(await self._effect(operation, tx))
        except (AlarmError, BlockError) as error:
            return raised(error)

    async def _effect(self, operation: Operation, tx: Any) -> Any:
        result: Any = None
        match operation:
            case Schedule():
                result = await self._schedule(operation, tx)
            case Cancel(tag, id):
                result = await self._target(operation, tx).cancel_alarm(tag, id)
            case Write(number):
                await tx.execute("INSERT INTO journal VALUES (?)", (number,))
            case Acknowledge(which):
                result = await tx.acknowledge(self._event(which))
            case Block(operations, fails):
                async with self.host.scheduler.transaction() as inner_tx:
                    result = tuple([await self.operate(one, inner_tx) for one in operations])
                    if fails:
                        raise BlockError(result)
            case Refused("deliver"):
                await self.host.deliver_native_alarm(force=True)
            case Refused(what):
                await self.dispatch("both" if what == "run" else what)
        return result

    def _target(self, operation: Schedule | Cancel, tx: Any) -> Any:
        return self.host.scheduler if tx is None or operation.standalone else tx

    async def _schedule(self, given: Schedule, tx: Any) -> tuple[Any, ...]:
        """By definition where it is as defined, else by tag (as another version of the code)."""
        alarm: Any = ALARMS[given.tag]
        options: dict[str, Any] = {}
        if alarm.lifecycle != given.lifecycle or not isinstance(given.payload, int):
            alarm = given.tag
            options["lifecycle"] = given.lifecycle
        method: Callable[..., Awaitable[AlarmStatus]]
        method = getattr(self._target(given, tx), given.method)
        status = await method(
            alarm,
            given.id,
            run_at=self.host.now() + timedelta(milliseconds=given.in_ms),
            payload=given.payload,
            repeat_every=seconds(given.repeat_every),
            progress=given.progress,
            **options,
        )
        return status_of(status)

    def _event(self, which: str) -> AlarmDue[Any]:
        if which == "other" and self.other is not None:
            return self.other
        if self.event is None:
            none: Any = None
            return AlarmDue("plain", "x", 0, at(0), 0, self.host, none)
        return self.event if which == "own" else attrs.evolve(self.event)
