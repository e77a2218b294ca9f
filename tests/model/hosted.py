"""A real host that does what steps say, and shows what came of them in the model's terms."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from functools import singledispatchmethod
from pathlib import Path
from typing import Any

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from tests.model.alarms import Ref
from tests.model.callers import Caller
from tests.model.dispatchers import second_options
from tests.model.model import ANYTHING, Outcome, Raised, Returned
from tests.model.services import (
    FIRST,
    SECOND,
    SET,
    First,
    HandlerError,
    OnFailureError,
    ScopeError,
    Second,
    defined,
)
from tests.model.steps import (
    Action,
    Answer,
    CancelCall,
    CloseScope,
    Consume,
    Deferred,
    Deliver,
    Do,
    Move,
    OpenScope,
    Options,
    Outside,
    Override,
    Proceed,
    Raise,
    Refused,
    Reopen,
    Run,
    Script,
    Step,
)
from tests.model.terms import EPOCH_MS, configuration, raised, result_of, seconds, since
from trio_alarms import (
    AlarmDue,
    AlarmFailure,
    AlarmHost,
    AlarmParked,
    DispatchOptions,
    DispatchResult,
    Retry,
    StorageOptions,
    merge_all,
    process_due,
    schedule_configuration,
)
from trio_alarms.testing import AlarmHarness, open_test_host


@attrs.define(eq=False)
class Waiting:
    """A handler or an `on_failure` that waits to be told; `outcome` is what the last order did."""

    stage: str
    ref: Ref
    event: AlarmDue[Any] | None
    tell: trio.MemorySendChannel[Action]
    outcome: Outcome | None = None


@attrs.define(eq=False)
class Held:
    """A task that stays in a `defer_wakes` scope until it is told how to leave."""

    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    leave: trio.Event = attrs.Factory(trio.Event)
    how: str = "success"


class Hosted:
    """The host, its handlers, and the tasks that the steps start."""

    harness: AlarmHarness

    def __init__(self, script: Script, nursery: trio.Nursery, path: Path) -> None:
        self.reports: list[tuple[int, int]] = []
        self.calls: dict[int, Outcome | None] = {}
        self._options = script.options
        self._nursery = nursery
        self._path = path
        self._waiting: list[Waiting] = []
        self._call_scopes: dict[int, trio.CancelScope] = {}
        self._held: list[Held] = []
        self._count = 0

    @classmethod
    @asynccontextmanager
    async def open(cls, script: Script, path: Path) -> AsyncIterator[Hosted]:
        """Open the script's host; leaving loses it."""
        async with trio.open_nursery() as nursery:
            hosted = cls(script, nursery, path)
            async with open_test_host(
                path,
                alarms=hosted._alarms(script.serving),
                configuration=configuration(script.policy),
                reporter=hosted._report,
                storage=StorageOptions(executor="inline", synchronous="off"),
            ) as hosted.harness:
                async with hosted.host.storage.transaction() as tx:
                    await tx.execute("CREATE TABLE journal (number INTEGER NOT NULL)")
                yield hosted
                await hosted.harness.crash()
            nursery.cancel_scope.cancel()

    @property
    def host(self) -> AlarmHost:
        """The host as it is now."""
        return self.harness.host

    def waiting(self) -> list[Waiting]:
        """As the model's."""
        return sorted(self._waiting, key=lambda one: one.ref)

    def read(self) -> tuple[list[tuple[Any, ...]], int | None, list[int]]:
        """The stored rows, the native alarm and the application's rows, past the library."""
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            rows = connection.execute(
                "SELECT tag, id, lifecycle, run_at, wake_at, retry_at, repeat_every, progress,"
                " attempts, parked, payload, revision FROM trio_alarms_alarms"
                " WHERE host = 'default' ORDER BY wake_at, tag, id"
            ).fetchall()
            native = connection.execute(
                "SELECT native_alarm FROM trio_alarms_hosts WHERE name = 'default'"
            ).fetchone()
            journal = connection.execute("SELECT number FROM journal ORDER BY rowid").fetchall()
        native_alarm = None if native is None or native[0] is None else native[0] - EPOCH_MS
        shown = [
            (
                *row[:3],
                row[3] - EPOCH_MS,
                row[4] - EPOCH_MS,
                None if row[5] is None else row[5] - EPOCH_MS,
                *row[6:9],
                bool(row[9]),
                json.loads(row[10]),
                row[11],
            )
            for row in rows
        ]
        return shown, native_alarm, [number for (number,) in journal]

    async def apply(self, step: Step) -> Outcome | None:
        """Do a step and let all tasks come to rest; what the operation in it came to."""
        self.reports.clear()
        outcome: Outcome | None = await self._apply(step)
        await wait_all_tasks_blocked()
        return outcome

    # The steps

    @singledispatchmethod
    async def _apply(self, _: Step) -> Outcome | None:
        return None

    @_apply.register
    async def _outside(self, step: Outside) -> Outcome | None:
        match step.operation:
            case Refused() | Deferred(Refused()):
                return None
            case operation:
                other = self._waiting[0].event if self._waiting else None
                with schedule_configuration(configuration(step.override)):
                    return await Caller(self.host, self._dispatch, other=other).operate(operation)

    @_apply.register
    async def _proceed(self, step: Proceed) -> Outcome | None:
        waiting = self.waiting()
        if not waiting:
            return None
        told = waiting[step.which % len(waiting)]
        told.outcome = None
        told.tell.send_nowait(step.action)
        await wait_all_tasks_blocked()
        return told.outcome

    @_apply.register
    async def _open_scope(self, step: OpenScope) -> None:
        self._count += 1
        await self._nursery.start(self._hold_scope, step.override)

    @_apply.register
    async def _close_scope(self, step: CloseScope) -> None:
        if not self._held:
            return
        held = self._held.pop(step.which % len(self._held))
        held.how = step.how
        held.leave.set()
        if step.how == "cancellation":
            held.scope.cancel()

    @_apply.register
    async def _deliver(self, step: Deliver) -> None:
        self._call(lambda: self.host.deliver_native_alarm(force=step.force), step.override)

    @_apply.register
    async def _run(self, step: Run) -> None:
        several = step.what not in ("set", "process_due")

        async def run() -> Any:
            return result_of(await self._dispatch(step.what), several=several)

        self._call(run, step.override)

    @_apply.register
    async def _cancel_call(self, step: CancelCall) -> None:
        calls = [call for call, outcome in self.calls.items() if outcome is None]
        if calls:
            self._call_scopes[calls[step.which % len(calls)]].cancel()

    @_apply.register
    async def _move(self, step: Move) -> None:
        await self.harness.set_time(self.host.now() + timedelta(milliseconds=step.by_ms))

    @_apply.register
    async def _consume(self, _: Consume) -> None:
        await self.harness.consume_native_alarm()

    @_apply.register
    async def _reopen(self, step: Reopen) -> None:
        lost = [self._call_scopes[call] for call, one in self.calls.items() if one is None]
        lost += [held.scope for held in self._held]
        if step.crash or lost:
            await self.harness.crash()
            await wait_all_tasks_blocked()
            for scope in lost:
                scope.cancel()
            self._held.clear()
        options: dict[str, Any] = {}
        if step.serving is not None:
            options["alarms"] = self._alarms(step.serving)
        if step.policy is not None:
            options["configuration"] = configuration(step.policy)
        await self.harness.reopen(**options)

    # Their tasks

    async def _hold_scope(self, override: Override, *, task_status: trio.TaskStatus[None]) -> None:
        held = Held()
        with held.scope:
            try:
                with schedule_configuration(configuration(override)):
                    async with self.host.scheduler.defer_wakes():
                        self._held.append(held)
                        task_status.started()
                        await held.leave.wait()
                        await trio.lowlevel.checkpoint()
                        _raise_if(ScopeError, held.how == "error")
            except ScopeError:
                assert held.how == "error"

    def _call(self, function: Callable[[], Awaitable[Any]], override: Override) -> None:
        self._count += 1
        self.calls[self._count] = None
        self._call_scopes[self._count] = trio.CancelScope()
        self._nursery.start_soon(self._finish_call, self._count, function, override)

    async def _finish_call(
        self, call: int, function: Callable[[], Awaitable[Any]], override: Override
    ) -> None:
        outcome: Outcome = ANYTHING
        with self._call_scopes[call] as scope:
            try:
                with schedule_configuration(configuration(override)):
                    outcome = Returned(await function())
            except Exception as error:  # noqa: BLE001 - compared with what the model says
                outcome = raised(error)
        self.calls[call] = Raised(("Cancelled",)) if scope.cancelled_caught else outcome

    # What dispatches

    def _alarms(self, serving: str) -> Any:
        """What `open_host` takes."""
        if serving == "nothing":
            return None
        options = self._dispatch_options(self._options)
        if serving == "process_due":
            return process_due(self._handle, options)
        if serving == "set":
            return defined.handlers(*(one.handled_by(self._handle) for one in SET), options=options)
        first = First.handlers(*(one.handled_by(self._handle) for one in FIRST), options=options)
        second = Second.handlers(
            *(one.handled_by(self._handle) for one in SECOND),
            options=self._dispatch_options(second_options(self._options)),
        )
        return {"first": first, "second": second, "both": merge_all(first, second)}[serving]

    async def _dispatch(self, what: str) -> DispatchResult:
        """A direct run (R25)."""
        result: DispatchResult
        if what == "process_due":
            options = self._dispatch_options(self._options)
            result = await self.host.scheduler.process_due_alarms(self._handle, options)
        else:
            result = await self._alarms(what).run(self.host)
        return result

    def _dispatch_options(self, given: Options) -> DispatchOptions:
        return DispatchOptions(
            limit=given.limit,
            concurrency=given.concurrency,
            timeout=seconds(given.timeout),
            retry_failed_after=seconds(given.retry_failed_after),
            on_failure=self._on_failure if given.on_failure else None,
        )

    # Handlers, `on_failure` and reporter

    async def _report(self, report: AlarmParked) -> None:
        self.reports.append((report.attempts, since(report.retry_at)))

    async def _handle(self, event: AlarmDue[Any]) -> None:
        action = await self._obey("handler", (event.tag, event.id), event)
        _raise_if(HandlerError, isinstance(action, Raise))

    async def _on_failure(self, failure: AlarmFailure) -> Any:
        action = await self._obey("on_failure", (failure.tag, failure.id), failure.event)
        _raise_if(OnFailureError, isinstance(action, Raise))
        match action:
            case Answer(after=int(after)):
                return Retry(after=after / 1000)
            case Answer(given):
                return given
            case _:
                return None

    async def _obey(self, stage: str, ref: Ref, event: AlarmDue[Any] | None) -> Action:
        """Wait to be told, and do so until told to return or to raise."""
        tell, told = trio.open_memory_channel[Action](1)
        waiting = Waiting(stage, ref, event, tell)
        self._waiting.append(waiting)
        try:
            while True:
                action = await told.receive()
                if not isinstance(action, Do):
                    return action
                with schedule_configuration(configuration(action.override)):
                    await self._do(action, waiting)
        finally:
            self._waiting.remove(waiting)

    async def _do(self, action: Do, waiting: Waiting) -> None:
        others = [one.event for one in self._waiting if one is not waiting]
        other = others[0] if others else None
        caller = Caller(self.host, self._dispatch, waiting.event, other)

        async def operate() -> None:
            waiting.outcome = await caller.operate(action.operation)

        if action.child:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(operate)
        else:
            await operate()


def _raise_if(error: type[Exception], condition: bool) -> None:  # noqa: FBT001 - reads as it says
    if condition:
        raise error
