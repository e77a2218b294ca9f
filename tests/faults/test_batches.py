"""The storage fails at every statement of a shared commit: each caller has its true outcome."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import trio.testing

from tests.behaviour.group_tools import Call, Calls, Watch
from tests.behaviour.storage_tools import error_of
from tests.faults.injection import (
    MANNERS,
    Fault,
    Injector,
    Kind,
    Manner,
    look,
    require_idle,
    require_storage_errors,
    require_unlocked,
    storage_options,
)
from trio_alarms import AlarmDue, AlarmHost, DispatchOptions, StorageOperationError
from trio_alarms.testing import open_test_host

if TYPE_CHECKING:
    from trio_alarms._store._session import Session

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
FIRST = EPOCH + timedelta(days=100)


class RefusedError(Exception):
    """What one of the operations raises in its trip."""


@attrs.define
class StrikingFault(Fault):
    """A fault that does something more as it first strikes; and can be told to strike one text."""

    text: str = ""
    on_strike: Callable[[], object] = lambda: None

    def strikes(self, sql: str) -> bool:
        """Count it, if it is of those that are counted."""
        if self.text and not (self.struck and self.lasting) and not sql.startswith(self.text):
            return False
        strikes = Fault.strikes(self, sql)
        if strikes and len(self.struck) == 1:
            self.on_strike()
        return strikes


@attrs.frozen
class Member:
    """An operation of a batch, and what is stored of it if it succeeds."""

    run: Callable[[], Any]
    id: str
    after: str | None


@attrs.define
class Batches:
    """A host, its file, and batches of the same operations again and again."""

    host: AlarmHost
    path: Path
    before: dict[str, str] = attrs.Factory(lambda: {"gone": "old", "kept": "old", "half": "old"})

    async def put_back(self) -> None:
        """The state before."""
        scheduler = self.host.scheduler
        async with scheduler.transaction() as tx:
            for number, id in enumerate(["new", "gone", "kept", "earlier", "ensured", "half"]):
                await tx.cancel_alarm("send", id)
                if id in self.before:
                    run_at = FIRST + timedelta(days=number)
                    await tx.schedule_alarm("send", id, run_at=run_at, payload="old")

    def members(self) -> list[Member]:
        """The operations of one batch, one of which always fails, half way."""
        scheduler, writer = self.host.scheduler, self.host._runtime.writer

        def refuse(session: Session) -> None:
            session.connection.raw.execute("UPDATE trio_alarms_alarms SET payload = 'half'")
            raise RefusedError

        def run(name: str, id: str, days: int) -> Callable[[], Any]:
            run_at = FIRST + timedelta(days=days)
            return partial(getattr(scheduler, name), "send", id, run_at=run_at, payload="new")

        return [
            Member(run("schedule_alarm", "new", -1), "new", "new"),
            Member(partial(scheduler.cancel_alarm, "send", "gone"), "gone", None),
            Member(partial(writer.write, refuse, name="refused"), "half", "never"),
            Member(run("schedule_alarm_earlier", "earlier", -2), "earlier", "new"),
            Member(run("ensure_alarm", "ensured", 10), "ensured", "new"),
            Member(run("schedule_alarm", "kept", 5), "kept", "new"),
        ]

    async def run(
        self, injector: Injector, fault: StrikingFault, *, cancels: bool = False
    ) -> tuple[list[Call], list[Member]]:
        """Have the members share a commit with the fault in force; nothing else has a trip."""
        members = self.members()
        queue = self.host._runtime.database.queue
        async with trio.open_nursery() as nursery:
            await queue.acquire()
            calls = Calls(nursery, Watch())
            await calls.start_all(*(member.run for member in members))
            if cancels:
                # One that waits, and, as the fault strikes, the leader and one more.
                calls.all[4].scope.cancel()
                fault.on_strike = lambda: [calls.all[number].scope.cancel() for number in (0, 5)]
            with injector.inject(fault):
                queue.release()
                for call in calls.all:
                    await call.ended.wait()
        return calls.all, members

    def stored(self) -> dict[str, str]:
        """The alarms and their payloads."""
        (rows,) = look(self.path, "SELECT id, payload FROM trio_alarms_alarms WHERE tag = 'send'")
        return {id: payload.strip('"') for id, payload in rows}

    def check_reconciled(self) -> None:
        """The native alarm is the earliest deadline that is stored."""
        stored, earliest = look(
            self.path,
            "SELECT native_alarm FROM trio_alarms_hosts",
            "SELECT min(wake_at) FROM trio_alarms_alarms",
        )
        assert stored == earliest


@asynccontextmanager
async def opened(path: Path, executor: Any) -> AsyncIterator[Batches]:
    """A host for batches."""
    async with open_test_host(path, epoch=EPOCH, storage=storage_options(executor)) as harness:
        yield Batches(harness.host, path)


def effects(
    before: dict[str, str], calls: list[Call], members: list[Member], *, unknown: bool = False
) -> dict[str, str]:
    """What is stored where exactly those that got a value are; or those whose outcome is open."""
    expected = dict(before)
    for call, member in zip(calls, members, strict=True):
        if call.outcome == "value" or (unknown and is_unknown(call)):
            if member.after is None:
                expected.pop(member.id, None)
            else:
                expected[member.id] = member.after
    return expected


def is_unknown(call: Call) -> bool:
    """Whether a caller was told that it cannot be known."""
    return getattr(call.error, "outcome", None) == "unknown"


def check_outcomes(
    batches: Batches, calls: list[Call], members: list[Member], fault: StrikingFault
) -> None:
    """Each caller's outcome is what another connection sees, and each error is its own."""
    stored = batches.stored()
    assert stored in (
        effects(batches.before, calls, members),
        effects(batches.before, calls, members, unknown=True),
    ), fault
    batches.check_reconciled()
    errors = [call.error for call in calls if call.error is not None]
    assert len({id(error) for error in errors}) == len(errors)
    for error in errors:
        if not isinstance(error, RefusedError):
            require_storage_errors(error, fault)
    if any(is_unknown(call) for call in calls):
        assert any(sql.startswith("COMMIT") for sql in fault.struck)
    require_unlocked(batches.path)
    require_idle(batches.host)


async def sweep(
    batches: Batches,
    injector: Injector,
    fault: Callable[[int], StrikingFault],
    *,
    cancels: bool,
) -> int:
    """Have each statement of the batch fail in turn; the number of those it has."""
    at = 1
    while True:
        await batches.put_back()
        assert batches.stored() == batches.before
        one = fault(at)
        calls, members = await batches.run(injector, one, cancels=cancels)
        check_outcomes(batches, calls, members, one)
        if not one.struck:
            outcomes = [call.outcome for call in calls]
            fifth = "cancelled" if cancels else "value"
            assert outcomes == ["value", "value", "error", "value", fifth, "value"]
            return at - 1
        at += 1


@pytest.mark.parametrize("cancels", [False, True])
@pytest.mark.parametrize(("kind", "manner"), MANNERS)
async def test_a_statement_that_fails_is_told_to_those_it_concerns(
    autojump_clock: object,
    tmp_path: Path,
    injector: Injector,
    kind: Kind,
    manner: Manner,
    *,
    cancels: bool,
) -> None:
    """Whichever statement of a batch fails: stored is what got a value, and no more (R10, R11)."""
    async with opened(tmp_path / "alarms.db", "inline") as batches:
        fault = partial(StrikingFault, kind, manner)
        # Six savepoints and what is in them, the reconciliation, BEGIN and COMMIT.
        assert await sweep(batches, injector, fault, cancels=cancels) > 20


@pytest.mark.trust
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("executor", ["inline", "thread"])
@pytest.mark.parametrize(("kind", "manner"), MANNERS)
async def test_storage_that_keeps_failing_is_told_to_those_it_concerns(
    mock_clock: trio.testing.MockClock,
    tmp_path: Path,
    injector: Injector,
    kind: Kind,
    manner: Manner,
    *,
    executor: str,
    lasting: bool,
) -> None:
    """As above, in both places where SQLite runs, and when nothing works from then on (R10)."""
    if executor == "inline":
        mock_clock.autojump_threshold = 0
    async with opened(tmp_path / "alarms.db", executor) as batches:
        fault = partial(StrikingFault, kind, manner, lasting=lasting)
        for cancels in (False, True) if executor == "inline" else (False,):
            assert await sweep(batches, injector, fault, cancels=cancels)


@pytest.mark.parametrize("cancels", [False, True])
async def test_a_commit_that_took_place_all_the_same_has_succeeded_for_all(
    autojump_clock: object, tmp_path: Path, injector: Injector, *, cancels: bool
) -> None:
    """SQLite reports an error, and the re-read finds the commit: everybody has a value (R11)."""
    async with opened(tmp_path / "alarms.db", "inline") as batches:
        await batches.put_back()
        fault = StrikingFault("I/O error", "landed", text="COMMIT")
        calls, members = await batches.run(injector, fault, cancels=cancels)
        check_outcomes(batches, calls, members, fault)
        assert fault.struck
        outcomes = [call.outcome for call in calls]
        fifth = "cancelled" if cancels else "value"
        assert outcomes == ["value", "value", "error", "value", fifth, "value"]
        assert isinstance(calls[2].error, RefusedError)


async def test_cancelled_in_a_try_that_finds_a_lock_one_leaves_after_it(
    autojump_clock: object, tmp_path: Path, injector: Injector
) -> None:
    """Leader and member alike: nothing is stored, so they say so before the next try (R11)."""
    async with opened(tmp_path / "alarms.db", "inline") as batches:
        await batches.put_back()
        began = trio.current_time()
        fault = StrikingFault("busy", text="BEGIN", lasting=True)
        calls, members = await batches.run(injector, fault, cancels=True)
        check_outcomes(batches, calls, members, fault)
        outcomes = [call.outcome for call in calls]
        assert outcomes == ["cancelled", "error", "error", "error", "cancelled", "cancelled"]
        assert [calls[number].at for number in (0, 4, 5)] == [began] * 3
        # The others wait on for as long as the storage is to wait.
        assert all(calls[number].at - began >= 0.1 for number in (1, 2, 3))
        assert batches.stored() == batches.before


@pytest.mark.parametrize("manner", ["landed", "rolled back"])
async def test_a_commit_of_which_nothing_can_be_known_is_unknown_to_all(
    autojump_clock: object, tmp_path: Path, injector: Injector, manner: Manner
) -> None:
    """Each gets an error of its own that says so; the one that was refused knows better (R11)."""
    async with opened(tmp_path / "alarms.db", "inline") as batches:
        await batches.put_back()
        fault = StrikingFault("I/O error", manner, text="COMMIT", lasting=True)
        calls, members = await batches.run(injector, fault)
        errors = [call.error for number, call in enumerate(calls) if number != 2]
        for error in errors:
            assert isinstance(error, StorageOperationError)
            assert error.outcome == "unknown"
            assert isinstance(error.__cause__, sqlite3.Error)
        assert [getattr(error, "operation", None) for error in errors] == [
            "schedule_alarm",
            "cancel_alarm",
            "schedule_alarm_earlier",
            "ensure_alarm",
            "schedule_alarm",
        ]
        assert len({id(error) for error in errors}) == 5
        # All of them or none.
        stored = batches.stored()
        everything = effects(batches.before, calls, members, unknown=True)
        assert stored == (everything if manner == "landed" else batches.before)
        # Its own failure was before, and is certain.
        assert isinstance(calls[2].error, RefusedError)
        await batches.put_back()
        assert batches.stored() == batches.before


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize(("kind", "manner"), MANNERS)
async def test_what_is_handled_is_acknowledged_once_whatever_fails(
    autojump_clock: object,
    tmp_path: Path,
    injector: Injector,
    kind: Kind,
    manner: Manner,
    *,
    concurrency: int,
) -> None:
    """Acknowledgements that share a commit, or bring the next row along, are not lost (R53)."""
    at = 0
    struck = True
    async with opened(tmp_path / "alarms.db", "inline") as batches:
        scheduler = batches.host.scheduler
        while struck:
            at += 1
            handled: list[str] = []

            async def handle(event: AlarmDue[Any], handled: list[str] = handled) -> None:
                await trio.lowlevel.checkpoint()
                handled.append(event.id)

            ids = ["a", "b", "c", "d", "e"]
            for id in ids:
                await scheduler.schedule_alarm("due", id, run_at=EPOCH)
            run = partial(
                scheduler.process_due_alarms, handle, DispatchOptions(concurrency=concurrency)
            )
            fault = Fault(kind, manner, at)
            with injector.inject(fault):
                require_storage_errors(await error_of(run), fault)
            struck = bool(fault.struck)
            require_idle(batches.host)
            runtime = batches.host._runtime
            assert runtime.dispatch_state.running == {}
            assert set(runtime.writer.in_hand) == set(runtime.dispatch_state.unacknowledged)
            await run()
            assert sorted(handled) == ids, fault
            assert batches.stored() == {}
            assert await scheduler.list_alarms() == []
            assert runtime.writer.in_hand == {}
    assert at > 15
