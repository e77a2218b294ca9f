"""What the tests of group commit share: a seam that counts, callers, and a commit held up."""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import trio
import trio.testing

from trio_alarms import StorageOperationError
from trio_alarms._store._seam import seam_in_force

if TYPE_CHECKING:
    from tests.behaviour.conftest import OpenWorld, World
    from trio_alarms import AlarmHost
    from trio_alarms._store._session import Session

Operation: TypeAlias = "Callable[[], Awaitable[Any]]"

TAG = "job"
# Where a thread runs, no clock may jump; a test that hangs goes on after so many real seconds.
_HANGING_SECONDS = 10.0


class Watch:
    """A seam that counts trips and commits, and does what the test wants at one of them."""

    def __init__(self) -> None:
        self.trips: list[str] = []
        # Those that began.
        self.commits = 0
        self._hooks: dict[int, Callable[[], None]] = {}
        self._token = trio.lowlevel.current_trio_token()

    def before_trip(self, operation: str) -> None:
        """Count a trip."""
        self.trips.append(operation)

    def before_commit(self) -> None:
        """Count a commit, and do what was asked for; what that raises, the commit raises."""
        self.commits += 1
        hook = self._hooks.pop(self.commits, None)
        if hook is not None:
            hook()

    def after_commit(self) -> None:
        """Nothing."""

    def at_commit(self, nth: int, hook: Callable[[], None]) -> None:
        """Call `hook`, where the connection lives, as the `nth` commit from now on begins."""
        self._hooks[self.commits + nth] = hook

    def in_loop(self, function: Callable[[], object]) -> None:
        """Call a function in Trio's thread, from there or from the one where SQLite runs."""
        try:
            trio.lowlevel.current_task()
        except RuntimeError:
            trio.from_thread.run_sync(function, trio_token=self._token)
        else:
            function()


def fail(code: str = "SQLITE_FULL") -> None:
    """Fail as SQLite does."""
    error = sqlite3.OperationalError(f"an injected failure: {code}")
    error.sqlite_errorname = code
    error.sqlite_errorcode = getattr(sqlite3, code)
    raise error


@attrs.define(eq=False)
class Call:
    """One caller's operation, and how it ended."""

    operation: Operation
    scope: trio.CancelScope = attrs.Factory(trio.CancelScope)
    result: Any = None
    error: Exception | None = None
    cancelled: bool = False
    ended: trio.Event = attrs.Factory(trio.Event)
    # Trio's time, and how many commits had begun, when it ended.
    at: float = math.nan
    commits: int = -1

    @property
    def outcome(self) -> str:
        """Which of `"value"`, `"error"` and `"cancelled"` came of it."""
        assert self.ended.is_set()
        if self.cancelled:
            return "cancelled"
        return "value" if self.error is None else "error"


class Calls:
    """Callers, each in a task of its own, started in a known order."""

    def __init__(self, nursery: trio.Nursery, watch: Watch) -> None:
        self.all: list[Call] = []
        self._nursery = nursery
        self._watch = watch
        # How many commits there are before the first one of a call.
        self.base = watch.commits

    @property
    def commits(self) -> int:
        """How many commits have begun since."""
        return self._watch.commits - self.base

    def at_commit(self, nth: int, hook: Callable[[], None]) -> None:
        """Call `hook` as the `nth` commit of a call begins."""
        self._watch.at_commit(self.base + nth - self._watch.commits, hook)

    async def start(self, operation: Operation) -> Call:
        """Start one; it is queued, or over, on return."""
        call = Call(operation)
        self.all.append(call)
        self._nursery.start_soon(self._run, call)
        await trio.testing.wait_all_tasks_blocked()
        return call

    async def start_all(self, *operations: Operation) -> list[Call]:
        """Start several, in this order."""
        return [await self.start(operation) for operation in operations]

    async def _run(self, call: Call) -> None:
        with call.scope:
            try:
                call.result = await call.operation()
            except Exception as error:  # noqa: BLE001 - handed to the test
                call.error = error
        call.cancelled = call.scope.cancelled_caught
        call.at = trio.current_time()
        call.commits = self._watch.commits - self.base
        call.ended.set()


class HeldCommit:
    """A hook that keeps a commit under way, in its worker thread, until it is let go."""

    def __init__(self) -> None:
        self.reached = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        self._released = threading.Event()

    def __call__(self) -> None:
        """Say that the commit begins, and wait."""
        trio.from_thread.run_sync(self.reached.set, trio_token=self._token)
        assert self._released.wait(60)

    def release(self) -> None:
        """Let the commit go on."""
        self._released.set()


async def open_watched(
    open_world: OpenWorld,
    clock: trio.testing.MockClock,
    kind: str = "inline",
    *,
    managed: bool = True,
    **options: Any,
) -> tuple[World, Watch]:
    """A world whose storage is watched; a test of it that hangs fails."""
    clock.autojump_threshold = _HANGING_SECONDS if kind == "thread" else 0
    watch = Watch()
    with seam_in_force(watch):
        world = await open_world(**options)
    if managed:
        # So that the first reconciliation of a test is like every other.
        await world.host.scheduler.schedule_alarm("first", "first", after=10_000_000)
    return world, watch


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds, in a worker thread's time too; one that never does fails."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    for _ in range(3_000):
        if holds():
            return
        await trio.testing.wait_all_tasks_blocked(0.001 if clock.autojump_threshold else 0)
    raise AssertionError("it never held")


@asynccontextmanager
async def commit_under_way(
    world: World, watch: Watch, kind: str = "inline"
) -> AsyncIterator[Calls]:
    """While another's commit is under way; on leaving it ends, and all calls are waited for.

    In a thread a commit is held up. Inline a commit takes no time, so a block keeps the turn.
    """
    held, leave = HeldCommit(), trio.Event()

    async def hold() -> None:
        async with world.host.storage.transaction():
            if kind != "thread":
                held.reached.set()
                await leave.wait()

    with trio.fail_after(3600):
        async with trio.open_nursery() as nursery:
            if kind == "thread":
                watch.at_commit(1, held)
            nursery.start_soon(hold)
            await held.reached.wait()
            calls = Calls(nursery, watch)
            # The commit of the block is still to come.
            calls.base += kind != "thread"
            try:
                yield calls
            finally:
                held.release()
                leave.set()
    assert all(call.ended.is_set() for call in calls.all)


def schedule(host: AlarmHost, id: str, payload: str = "new") -> Operation:
    """Schedule an alarm for later."""
    return partial(host.scheduler.schedule_alarm, TAG, id, after=600, payload=payload)


def schedule_earlier(host: AlarmHost, id: str, payload: str = "new") -> Operation:
    """The same, with another method."""
    return partial(host.scheduler.schedule_alarm_earlier, TAG, id, after=600, payload=payload)


def ensure(host: AlarmHost, id: str, payload: str = "new") -> Operation:
    """The same, with another method."""
    return partial(host.scheduler.ensure_alarm, TAG, id, after=600, payload=payload)


def cancel(host: AlarmHost, id: str) -> Operation:
    """Remove an alarm."""
    return partial(host.scheduler.cancel_alarm, TAG, id)


def block(host: AlarmHost, item: int, seen: list[set[str]] | None = None) -> Operation:
    """A transaction block that inserts an item, and notes which alarms it sees."""

    async def run() -> None:
        async with host.storage.transaction() as tx:
            if seen is not None:
                found = await tx.execute(
                    "SELECT id FROM trio_alarms_alarms WHERE tag = ? ORDER BY id", (TAG,)
                )
                seen.append({row[0] for row in found})
            await tx.execute("INSERT INTO items (id) VALUES (?)", (item,))

    return run


def stored(world: World) -> dict[str, str]:
    """Which alarms of these tests another connection sees, with their payloads."""
    return {row.id: row.payload.strip('"') for row in world.rows() if row.tag == TAG}


def idle(host: AlarmHost) -> bool:
    """Whether nobody has, or waits for, the turn to write."""
    database = host._runtime.database
    queue = database.queue
    return not (
        queue._held
        or queue._waiting
        or database.transaction is not None
        or database.writer.in_transaction
    )


def check_own_errors(calls: list[Call], *operations: str, cause: str | None = None) -> None:
    """Each got an error of its own, with its own operation and, where given, SQLite's cause."""
    errors = [call.error for call in calls]
    for error, operation in zip(errors, operations, strict=True):
        assert isinstance(error, StorageOperationError), error
        assert error.operation == operation
        assert operation in str(error)
        if cause is not None:
            assert getattr(error.__cause__, "sqlite_errorname", None) == cause
    assert len({id(error) for error in errors}) == len(errors)


def refuse_in_sql(world: World, id: str, how: str = "ABORT") -> None:
    """Have SQLite refuse an alarm of this id, whenever it is inserted."""
    world.sql(
        f"CREATE TRIGGER refuse_{id} BEFORE INSERT ON trio_alarms_alarms WHEN new.id = '{id}'"
        f" BEGIN SELECT RAISE({how}, 'refused'); END"
    )


class RefusedError(Exception):
    """What an operation is refused with, inside its trip."""


def write_and_refuse(world: World, id: str) -> Operation:
    """Change an alarm and the native alarm in the trip, and raise."""
    writer = world.host._runtime.writer

    def operation(session: Session) -> None:
        raw = session.connection.raw
        raw.execute("UPDATE trio_alarms_alarms SET payload = '\"half\"' WHERE id = ?", (id,))
        raw.execute("UPDATE trio_alarms_hosts SET native_alarm = 1")
        session.after_commit(lambda: fail("SQLITE_INTERNAL"))
        raise RefusedError(id)

    return partial(writer.write, operation, name="refused")
