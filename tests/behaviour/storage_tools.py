"""What the tests of transactions and cancellation share: other writers, faults, cancelled steps."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs
import trio

from trio_alarms import AlarmHost

if TYPE_CHECKING:
    from tests.behaviour.conftest import World

INSERT = "INSERT INTO items (id) VALUES (?)"
# Violates the primary key, upon which SQLite rolls the whole transaction back by itself.
ROLL_BACK = "INSERT OR ROLLBACK INTO items (id) VALUES (0)"

Moment: TypeAlias = Literal["as it starts to wait", "as it goes on"]


async def create_items(host: AlarmHost) -> None:
    """Make the application's table, with the item 0 in it."""
    async with host.storage.transaction() as tx:
        await tx.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, note TEXT UNIQUE)")
        await tx.execute(INSERT, (0,))


def items(path: Path) -> list[int]:
    """The items that are durable, but for item 0."""
    with closing(sqlite3.connect(path)) as other:
        found = other.execute("SELECT id FROM items WHERE id <> 0 ORDER BY id").fetchall()
    return [row[0] for row in found]


def require_unlocked(path: Path) -> None:
    """Nobody holds a transaction open: another connection gets to write at once."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")


@contextmanager
def locked(path: Path) -> Iterator[Callable[[], None]]:
    """Hold the write lock as another process does; yields what lets go of it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield lambda: other.execute("ROLLBACK") and None


async def hold_the_turn(host: AlarmHost, task_status: trio.TaskStatus[trio.Event]) -> None:
    """Hold a block in a task of its own until the event is set that `nursery.start` gives."""
    leave = trio.Event()
    async with host.storage.transaction():
        task_status.started(leave)
        await leave.wait()


async def error_of(operation: Callable[[], Awaitable[object]]) -> BaseException | None:
    """What an operation raises, `Cancelled` excepted."""
    try:
        await operation()
    except trio.Cancelled:
        raise
    except BaseException as error:  # noqa: BLE001 - handed to the test
        return error
    return None


@attrs.define
class Cancelled:
    """How an operation ended that was cancelled at one of its steps."""

    result: Any = None
    error: BaseException | None = None
    # Whether it raised `trio.Cancelled`, which its scope then caught.
    cancelled: bool = False
    # Whether the cancellation came at all: false once the operation has fewer steps.
    reached: bool = False
    # Trio's time from the cancellation to the end.
    seconds: float = 0.0


class _CancelAtStep(trio.abc.Instrument):
    """Cancels a scope when a task reaches one of its steps."""

    def __init__(self, step: int, moment: Moment, scope: trio.CancelScope) -> None:
        self.task: trio.lowlevel.Task | None = None
        self.at: float | None = None
        self._step = step
        self._moment = moment
        self._scope = scope

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._moment == "as it goes on":
            self._count(task)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._moment == "as it starts to wait":
            self._count(task)

    def _count(self, task: trio.lowlevel.Task) -> None:
        if task is not self.task:
            return
        self._step -= 1
        if not self._step:
            self.at = trio.current_time()
            self._scope.cancel()


async def cancelled_at(
    step: int, moment: Moment, operation: Callable[[], Awaitable[Any]]
) -> Cancelled:
    """Run an operation and cancel it when it suspends, or is resumed, for the `step`-th time."""
    outcome = Cancelled()
    scope = trio.CancelScope()
    instrument = _CancelAtStep(step, moment, scope)

    async def run() -> None:
        with scope:
            instrument.task = trio.lowlevel.current_task()
            try:
                outcome.result = await operation()
            except Exception as error:  # noqa: BLE001 - handed to the test
                outcome.error = error
            finally:
                instrument.task = None
        outcome.cancelled = scope.cancelled_caught

    trio.lowlevel.add_instrument(instrument)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
    finally:
        trio.lowlevel.remove_instrument(instrument)
    outcome.reached = instrument.at is not None
    if instrument.at is not None:
        outcome.seconds = trio.current_time() - instrument.at
    return outcome


def refuse_reconciling(world: World, how: str = "ABORT") -> None:
    """Have the native alarm's row refuse every write, as a failing reconciliation does."""
    for kind in ("INSERT", "UPDATE"):
        world.sql(
            f"CREATE TRIGGER refuse_{kind} BEFORE {kind} ON trio_alarms_hosts"
            f" BEGIN SELECT RAISE({how}, 'refused'); END"
        )


def allow_reconciling(world: World) -> None:
    """Let it be written again."""
    for kind in ("INSERT", "UPDATE"):
        world.sql(f"DROP TRIGGER refuse_{kind}")
