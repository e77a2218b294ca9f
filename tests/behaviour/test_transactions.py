"""Transaction blocks: what they commit, how they end, whose they are, and in which order."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from tests.behaviour.conftest import OpenWorld, World
from tests.behaviour.storage_tools import (
    INSERT,
    ROLL_BACK,
    allow_reconciling,
    create_items,
    error_of,
    hold_the_turn,
    items,
    refuse_reconciling,
    require_unlocked,
)
from trio_alarms import (
    AlarmHost,
    AlarmTransaction,
    InvalidAlarmRefError,
    StorageOperationError,
    open_host,
)

# Application SQL and alarms commit or roll back together (R10).


async def test_everything_is_stored_when_the_block_is_left(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """Rows, alarms and native alarm become visible together, at the commit, durably (R10)."""
    world = await open_world()
    await create_items(world.host)
    await world.step()
    async with world.host.scheduler.transaction() as tx:
        await tx.execute(INSERT, (1,))
        await tx.schedule_alarm("send", "a", after=60)
        assert items(world.path) == []
        assert world.rows() == []
        assert world.native_alarm() is None
    assert items(world.path) == [1]
    assert world.native_alarm() == 60_000
    await world.step()
    assert items(world.path) == [1]
    assert [row.id for row in world.rows()] == ["a"]


@pytest.mark.parametrize("method", ["schedule", "cancel", "earlier", "ensure", "many"])
async def test_an_exception_undoes_every_kind_of_change(
    mock_clock: object, open_world: OpenWorld, method: str
) -> None:
    """A body that raises leaves rows, alarms and native alarm as they were (R10)."""
    world = await open_world()
    await create_items(world.host)
    await world.host.scheduler.schedule_alarm("send", "a", after=60, payload="old")
    before = (world.rows(), world.native_alarm())
    await world.step()
    error = ValueError("no")

    async def body() -> None:
        async with world.host.scheduler.transaction() as tx:
            await tx.execute(INSERT, (1,))
            if method == "schedule":
                await tx.schedule_alarm("send", "a", after=5, payload="new")
            elif method == "cancel":
                assert await tx.cancel_alarm("send", "a")
            elif method == "earlier":
                await tx.schedule_alarm_earlier("send", "a", after=5, payload="new")
            elif method == "ensure":
                await tx.ensure_alarm("send", "a", after=5, payload="new")
            else:
                await tx.executemany(INSERT, [(2,), (3,)])
            raise error

    assert await error_of(body) is error
    assert items(world.path) == []
    assert (world.rows(), world.native_alarm()) == before
    require_unlocked(world.path)


async def test_a_transaction_sees_its_own_changes(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """Inside the block its own changes are seen, outside of it only what is committed (R12)."""
    world = await open_world()
    await create_items(world.host)
    host = world.host
    async with host.scheduler.transaction() as tx:
        status = await tx.schedule_alarm("send", "a", after=60)
        assert await tx.get_alarm_status("send", "a") == status
        assert await host.scheduler.get_alarm_status("send", "a") == status
        assert len(await host.scheduler.list_alarms()) == 1
        assert await tx.execute(INSERT + " RETURNING id", (1,)) == [(1,)]
        assert await host.storage.query("SELECT count(*) FROM items") == [(2,)]
        seen: list[Any] = []

        async def look() -> None:
            seen.append(await host.scheduler.get_alarm_status("send", "a"))
            seen.append(await host.scheduler.list_alarms())
            seen.append(await host.storage.query("SELECT count(*) FROM items"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
        assert seen == [None, [], [(1,)]]


@pytest.mark.parametrize("how", ["ABORT", "ROLLBACK", "FAIL"])
@pytest.mark.parametrize("standalone", [True, False])
async def test_a_failing_reconciliation_rolls_everything_back(
    mock_clock: object, open_world: OpenWorld, how: str, *, standalone: bool
) -> None:
    """Where the native alarm cannot be reconciled, nothing is committed (R10)."""
    world = await open_world()
    await create_items(world.host)
    refuse_reconciling(world, how)

    async def body() -> None:
        if standalone:
            await world.host.scheduler.schedule_alarm("send", "a", after=60)
        else:
            async with world.host.scheduler.transaction() as tx:
                await tx.execute(INSERT, (1,))
                await tx.schedule_alarm("send", "a", after=60)

    error = await error_of(body)
    assert isinstance(error, StorageOperationError)
    assert error.outcome == "rolled back"
    assert isinstance(error.__cause__, sqlite3.Error)
    assert world.rows() == []
    assert items(world.path) == []
    require_unlocked(world.path)
    allow_reconciling(world)
    await body()
    assert len(world.rows()) == 1


async def test_a_commit_that_fails_rolls_back(
    mock_clock: object, open_inline_world: OpenWorld
) -> None:
    """A commit that a deferred constraint refuses stores nothing; the next one works (R10)."""
    world = await open_inline_world()
    await create_items(world.host)
    world.host._runtime.database.writer.raw.execute("PRAGMA foreign_keys = on")
    async with world.host.storage.transaction() as tx:
        await tx.execute(
            "CREATE TABLE parts (item INTEGER REFERENCES items (id) DEFERRABLE INITIALLY DEFERRED)"
        )

    async def body() -> None:
        async with world.host.scheduler.transaction() as tx:
            await tx.schedule_alarm("send", "a", after=0)
            await tx.execute("INSERT INTO parts VALUES (77)")

    error = await error_of(body)
    assert isinstance(error, StorageOperationError)
    assert isinstance(error.__cause__, sqlite3.IntegrityError)
    assert world.rows() == []
    require_unlocked(world.path)
    await world.host.scheduler.schedule_alarm("send", "b", after=0)
    assert [row.id for row in world.rows()] == ["b"]


async def test_failing_sql_lets_the_block_go_on(mock_clock: object, open_world: OpenWorld) -> None:
    """A statement that fails is a storage error, and undoes itself only (R10)."""
    world = await open_world()
    await create_items(world.host)
    async with world.host.scheduler.transaction() as tx:
        await tx.execute(INSERT, (1,))
        for statement, cause in (
            ("SELEC 1", sqlite3.OperationalError),
            ("INSERT INTO items (id) VALUES (2), (0)", sqlite3.IntegrityError),
            ("INSERT INTO items (note) VALUES (?)", sqlite3.ProgrammingError),
        ):
            with pytest.raises(StorageOperationError) as caught:
                await tx.execute(statement)
            assert isinstance(caught.value.__cause__, cause)
        with pytest.raises(StorageOperationError):
            await tx.executemany(INSERT, [(3,), (0,)])
        with pytest.raises(InvalidAlarmRefError):
            await tx.schedule_alarm("", "a", after=1)
        await tx.schedule_alarm("send", "a", after=1)
    assert items(world.path) == [1]
    assert len(world.rows()) == 1


@pytest.mark.parametrize(
    "statement", ["COMMIT", " /* x */ rollback", "BEGIN", "SAVEPOINT s", "RELEASE s", "END"]
)
async def test_transaction_control_is_refused(
    mock_clock: object, open_world: OpenWorld, statement: str
) -> None:
    """Transaction control in application SQL is refused, and the block goes on (R10)."""
    world = await open_world()
    await create_items(world.host)
    async with world.host.storage.transaction() as tx:
        await tx.execute(INSERT, (1,))
        for use in (tx.execute(statement), tx.executemany(statement, [()])):
            with pytest.raises(StorageOperationError, match="refused"):
                await use
        with pytest.raises(StorageOperationError):
            await world.host.storage.query(statement)
        assert items(world.path) == []
        await tx.execute(INSERT, (2,))
    assert items(world.path) == [1, 2]


async def _use_every_method(world: World, tx: AlarmTransaction) -> list[BaseException | None]:
    """What each method raises when it is used in the block of `tx`."""
    host = world.host

    async def nested() -> None:
        async with host.scheduler.transaction():
            pass

    uses: list[Callable[[], Awaitable[object]]] = [
        lambda: tx.execute(INSERT, (5,)),
        lambda: tx.executemany(INSERT, [(6,)]),
        lambda: tx.run_sync(lambda connection: connection.execute(INSERT, (7,)).rowcount),
        lambda: tx.schedule_alarm("send", "b", after=0),
        lambda: tx.schedule_alarm_earlier("send", "b", after=0),
        lambda: tx.ensure_alarm("send", "b", after=0),
        lambda: tx.cancel_alarm("send", "a"),
        lambda: tx.get_alarm_status("send", "a"),
        lambda: host.scheduler.schedule_alarm("send", "c", after=0),
        lambda: host.scheduler.get_alarm_status("send", "a"),
        lambda: host.storage.query("SELECT 1"),
        nested,
    ]
    return [await error_of(use) for use in uses]


# What follows when SQLite has rolled the transaction back by itself (R10).


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("way", ["execute", "executemany", "run_sync", "alarm"])
async def test_every_later_method_and_the_exit_raise(
    mock_clock: object, open_world: OpenWorld, way: str, depth: int
) -> None:
    """Once SQLite has rolled back, nothing more is stored and everything raises (R10)."""
    world = await open_world()
    await create_items(world.host)
    await world.host.scheduler.schedule_alarm("send", "a", after=60)
    if way == "alarm":
        world.sql(
            "CREATE TRIGGER refuse BEFORE INSERT ON trio_alarms_alarms"
            " BEGIN SELECT RAISE(ROLLBACK, 'refused'); END"
        )
    before = (world.rows(), world.native_alarm())
    errors: list[BaseException | None] = []

    async def roll_back(tx: AlarmTransaction) -> None:
        if way == "execute":
            await tx.execute(ROLL_BACK)
        elif way == "executemany":
            await tx.executemany("INSERT OR ROLLBACK INTO items (id) VALUES (?)", [(8,), (0,)])
        elif way == "run_sync":
            await tx.run_sync(lambda connection: connection.execute(ROLL_BACK))
        else:
            await tx.schedule_alarm("send", "z", after=1)

    async def block(depth: int) -> None:
        async with world.host.scheduler.transaction() as tx:
            await tx.execute(INSERT, (depth,))
            if depth > 1:
                errors.append(await error_of(lambda: block(depth - 1)))
            else:
                error = await error_of(lambda: roll_back(tx))
                assert isinstance(error, StorageOperationError | sqlite3.IntegrityError)
            errors.extend(await _use_every_method(world, tx))

    errors.append(await error_of(lambda: block(depth)))
    assert {type(error) for error in errors} == {StorageOperationError}
    assert items(world.path) == []
    assert (world.rows(), world.native_alarm()) == before
    require_unlocked(world.path)
    await world.host.scheduler.cancel_alarm("send", "a")
    assert world.rows() == []


async def test_the_error_that_caused_it_leaves_as_it_is(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """A body that lets the first error go raises that one, not another (R10)."""
    world = await open_world()
    await create_items(world.host)
    raised: list[BaseException] = []

    async def body() -> None:
        async with world.host.scheduler.transaction() as tx:
            try:
                await tx.execute(ROLL_BACK)
            except StorageOperationError as error:
                raised.append(error)
                raise

    assert [await error_of(body)] == raised
    assert isinstance(raised[0].__cause__, sqlite3.IntegrityError)
    require_unlocked(world.path)


@pytest.mark.parametrize("nested", [True, False])
async def test_a_full_disk_stores_nothing(
    mock_clock: object, open_world: OpenWorld, *, nested: bool
) -> None:
    """A disk that is full in the middle of a block leaves nothing of it behind (R10, C22)."""
    world = await open_world()
    await create_items(world.host)
    pages = world.sql("PRAGMA page_count")[0][0]

    async def fill(tx: AlarmTransaction) -> None:
        await tx.execute("INSERT INTO items (note) VALUES (?)", ("x" * 100_000,))

    async def body() -> None:
        async with world.host.scheduler.transaction() as tx:
            await tx.schedule_alarm("send", "a", after=0)
            await tx.execute(f"PRAGMA max_page_count = {pages + 2}")
            if nested:
                async with world.host.scheduler.transaction() as inner:
                    await fill(inner)
            else:
                await fill(tx)

    error = await error_of(body)
    assert isinstance(error, StorageOperationError)
    assert isinstance(error.__cause__, sqlite3.OperationalError)
    assert error.__cause__.sqlite_errorname == "SQLITE_FULL"
    assert world.rows() == []
    assert items(world.path) == []
    require_unlocked(world.path)
    async with world.host.scheduler.transaction() as tx:
        await tx.execute("PRAGMA max_page_count = 100000")
        await fill(tx)
    assert len(items(world.path)) == 1


ERROR = ValueError("the body's own")
ENDINGS = ["returns", "raises", "is cancelled", "swallows the cancellation"]
EVENTS = [
    "nothing",
    "SQLite rolls back",
    "the host is left",
    "the process is lost",
    "the handling ends",
]


class Holder:
    """A task that holds a block, nested or not, until it is told how to end it."""

    def __init__(self, world: World, ending: str, *, nested: bool) -> None:
        self.world = world
        self.ending = ending
        self.nested = nested
        self.inside = trio.Event()
        self.go_on = trio.Event()
        self.over = trio.Event()
        self.error: BaseException | None = None
        self.scope = trio.CancelScope()
        self.tx: AlarmTransaction

    async def run(self) -> None:
        """Hold the block; what its exit raised is kept."""
        host = self.world.host
        try:
            with self.scope:
                async with AsyncExitStack() as stack:
                    if self.nested:
                        outer = await stack.enter_async_context(host.scheduler.transaction())
                        await outer.execute(INSERT, (1,))
                    async with host.scheduler.transaction() as self.tx:
                        await self._body()
        except Exception as error:  # noqa: BLE001 - handed to the test
            self.error = error
        finally:
            self.over.set()

    async def _body(self) -> None:
        await self.tx.execute(INSERT, (2,))
        await self.tx.schedule_alarm("send", "held", after=0)
        self.inside.set()
        with trio.CancelScope(shield=True):
            await self.go_on.wait()
        if self.ending == "raises":
            raise ERROR
        if self.ending == "is cancelled":
            self.scope.cancel()
            await trio.sleep_forever()
        if self.ending == "swallows the cancellation":
            self.scope.cancel()
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                return  # as a careless body does


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("event", EVENTS)
async def test_every_exit_of_a_block(
    mock_clock: object, open_inline_world: OpenWorld, event: str, ending: str, *, nested: bool
) -> None:
    """However a block ends: all of it is stored or nothing, and told so (R10-R15)."""
    holders: list[Holder] = []

    async def dispatcher(host: AlarmHost) -> None:
        await host.scheduler.process_due_alarms(handler)

    async def handler(due: Any) -> None:
        holders.append(Holder(world, ending, nested=nested))
        due.scope.nursery.start_soon(holders[0].run)
        await holders[0].inside.wait()

    world = await open_inline_world(alarms=dispatcher)
    await create_items(world.host)
    async with trio.open_nursery() as nursery:
        if event == "the handling ends":
            await world.host.scheduler.schedule_alarm("start", "now", after=0)
            nursery.start_soon(world.harness.deliver)
            await trio.testing.wait_all_tasks_blocked()
        else:
            holders.append(Holder(world, ending, nested=nested))
            nursery.start_soon(holders[0].run)
            await holders[0].inside.wait()
        holder = holders[0]
        if event == "SQLite rolls back":
            # As ON CONFLICT ROLLBACK does, but from here.
            connection = world.host._runtime.database.writer
            connection.rollback()
        elif event == "the host is left":
            await world.harness.close()
        elif event == "the process is lost":
            await world.harness.crash()
        holder.go_on.set()
        await holder.over.wait()

    if ending == "raises":
        assert holder.error is ERROR
    elif event == "nothing":
        assert holder.error is None
        assert holder.scope.cancelled_caught is (ending != "returns")
    elif ending == "is cancelled":
        assert holder.error is None
        assert holder.scope.cancelled_caught
    else:
        assert isinstance(holder.error, StorageOperationError)
    stored = ending == "returns" and event == "nothing"
    assert items(world.path) == ([] if not stored else [1, 2] if nested else [2])
    assert (world.row("send", "held") is not None) is stored
    require_unlocked(world.path)
    if event in {"the host is left", "the process is lost"}:
        await world.harness.reopen()
    with trio.fail_after(1):
        await world.host.scheduler.schedule_alarm("send", "next", after=9)
    assert world.row("send", "next") is not None


# A block inside a block of the same task is a savepoint (R13).


@pytest.mark.parametrize("outer_raises", [True, False])
@pytest.mark.parametrize("inner_raises", [True, False])
async def test_an_inner_block_is_undone_alone_and_stored_with_the_outer_one(
    mock_clock: object,
    open_world: OpenWorld,
    *,
    inner_raises: bool,
    outer_raises: bool,
) -> None:
    """A caught failure of the inner block undoes the inner one only (R13)."""
    world = await open_world()
    await create_items(world.host)
    host = world.host

    async def inner() -> None:
        async with host.storage.transaction() as tx:
            await tx.execute(INSERT, (2,))
            await tx.schedule_alarm("send", "inner", after=2)
            if inner_raises:
                raise ERROR

    async def outer() -> None:
        async with host.scheduler.transaction() as tx:
            await tx.execute(INSERT, (1,))
            await tx.schedule_alarm("send", "outer", after=9)
            error = await error_of(inner)
            assert error is (ERROR if inner_raises else None)
            await tx.execute(INSERT, (3,))
            assert items(world.path) == []
            if outer_raises:
                raise ERROR

    assert await error_of(outer) is (ERROR if outer_raises else None)
    await world.step()
    if outer_raises:
        assert (items(world.path), world.rows()) == ([], [])
        assert world.native_alarm() is None
    elif inner_raises:
        assert items(world.path) == [1, 3]
        assert [row.id for row in world.rows()] == ["outer"]
        assert world.native_alarm() == 9_000
    else:
        assert items(world.path) == [1, 2, 3]
        assert [row.id for row in world.rows()] == ["inner", "outer"]
        assert world.native_alarm() == 2_000


async def test_a_standalone_method_inside_a_block_is_part_of_it(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """A scheduler method called inside a block becomes durable with the block (R13)."""
    world = await open_world()
    host = world.host

    async def body() -> None:
        async with host.storage.transaction():
            await host.scheduler.schedule_alarm("send", "a", after=1)
            assert world.rows() == []
            raise ERROR

    assert await error_of(body) is ERROR
    assert world.rows() == []
    async with host.storage.transaction():
        await host.scheduler.schedule_alarm("send", "a", after=1)
    assert [row.id for row in world.rows()] == ["a"]
    assert world.native_alarm() == 1_000


async def test_an_alarm_operation_that_fails_undoes_itself_only(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """A failing alarm operation in a block is a savepoint: what was before stays (R13)."""
    world = await open_world()
    world.sql(
        # FAIL keeps what the failing statement itself has changed so far.
        "CREATE TRIGGER refuse AFTER INSERT ON trio_alarms_alarms WHEN new.tag = 'refused'"
        " BEGIN SELECT RAISE(FAIL, 'refused'); END"
    )
    async with world.host.scheduler.transaction() as tx:
        await tx.schedule_alarm("send", "a", after=1)
        with pytest.raises(StorageOperationError):
            await tx.schedule_alarm("refused", "b", after=1)
        await tx.schedule_alarm("send", "c", after=2)
    assert [row.id for row in world.rows()] == ["a", "c"]


async def test_deeply_nested_blocks_undo_the_right_one(
    mock_clock: object, open_inline_world: OpenWorld
) -> None:
    """Of nested blocks each undoes exactly what was done inside of it (R13)."""
    world = await open_inline_world()
    await create_items(world.host)
    for fails in itertools.product([True, False], repeat=4):
        await _check_nested_blocks(world, fails)


async def _check_nested_blocks(world: World, fails: tuple[bool, ...]) -> None:
    """Nest a block for each of `fails`, which says whether it raises, and check what is stored."""
    host = world.host

    async def block(level: int) -> None:
        async with host.storage.transaction() as tx:
            await tx.execute(INSERT, (10 * level + 1,))
            if level < len(fails):
                await error_of(lambda: block(level + 1))
            await tx.execute(INSERT, (10 * level + 2,))
            if fails[level - 1]:
                raise ERROR

    await error_of(lambda: block(1))
    kept = itertools.takewhile(lambda level: not fails[level - 1], range(1, len(fails) + 1))
    expected = sorted(10 * level + nth for level in kept for nth in (1, 2))
    assert items(world.path) == expected
    async with host.storage.transaction() as tx:
        await tx.execute("DELETE FROM items WHERE id > 0")


async def test_an_inner_block_that_cannot_be_released_stores_nothing(
    mock_clock: object, open_inline_world: OpenWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the inner exit fails, the block can only be rolled back, and says so (R13)."""
    world = await open_inline_world()
    await create_items(world.host)
    connection = world.host._runtime.database.writer

    def fail() -> None:
        raise sqlite3.OperationalError("disk I/O error")

    async def inner() -> None:
        async with world.host.storage.transaction() as tx:
            await tx.execute(INSERT, (2,))
            monkeypatch.setattr(connection, "release", fail)

    async def outer() -> None:
        async with world.host.storage.transaction() as tx:
            await tx.execute(INSERT, (1,))
            assert isinstance(await error_of(inner), StorageOperationError)
            monkeypatch.undo()
            with pytest.raises(StorageOperationError):
                await tx.execute(INSERT, (3,))

    assert isinstance(await error_of(outer), StorageOperationError)
    assert items(world.path) == []
    require_unlocked(world.path)


async def test_an_undone_inner_block_does_not_make_the_host_managed(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """Only a committed block of the scheduler makes its host managed (R13, R35)."""
    world = await open_world()
    await create_items(world.host)
    host = world.host

    async def inner() -> None:
        async with host.scheduler.transaction() as tx:
            await tx.schedule_alarm("send", "a", after=1)
            raise ERROR

    async with host.storage.transaction() as tx:
        await error_of(inner)
        await tx.execute(INSERT, (1,))
    assert items(world.path) == [1]
    await host.native_alarm.set(host.now())


# A transaction belongs to the task that entered the block, until it is left (R12).


async def test_its_methods_raise_in_another_task(mock_clock: object, open_world: OpenWorld) -> None:
    """In a child task every method of the block's raises, and nothing waits forever (R12)."""
    world = await open_world()
    await create_items(world.host)
    host = world.host
    errors: list[BaseException | None] = []

    async def child(tx: AlarmTransaction) -> None:
        for use in (
            lambda: tx.execute(INSERT, (1,)),
            lambda: tx.executemany(INSERT, [(1,)]),
            lambda: tx.run_sync(lambda connection: connection.execute(INSERT, (1,)).rowcount),
            lambda: tx.schedule_alarm("send", "a", after=0),
            lambda: tx.ensure_alarm("send", "a", after=0),
            lambda: tx.schedule_alarm_earlier("send", "a", after=0),
            lambda: tx.cancel_alarm("send", "a"),
            lambda: tx.get_alarm_status("send", "a"),
            lambda: host.scheduler.schedule_alarm("send", "a", after=0),
            lambda: host.scheduler.cancel_alarm("send", "a"),
            lambda: host.storage.transaction().__aenter__(),
            lambda: host.scheduler.transaction().__aenter__(),
            lambda: host.scheduler.defer_wakes().__aenter__(),
        ):
            error = await error_of(use)
            errors.append(error)

    with trio.fail_after(1):
        async with host.scheduler.transaction() as tx:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(child, tx)
            await tx.execute(INSERT, (2,))
    assert {type(error) for error in errors} == {StorageOperationError}
    assert items(world.path) == [2]
    assert world.rows() == []


async def test_its_methods_raise_after_the_block(mock_clock: object, open_world: OpenWorld) -> None:
    """A transaction that is kept beyond its block changes nothing any more (R12)."""
    world = await open_world()
    await create_items(world.host)
    async with world.host.scheduler.transaction() as kept:
        pass
    async with world.host.scheduler.transaction() as tx:
        for use in (kept.execute(INSERT, (1,)), kept.schedule_alarm("send", "a", after=0)):
            with pytest.raises(StorageOperationError, match="left"):
                await use
        async with world.host.scheduler.transaction() as inner:
            pass
        with pytest.raises(StorageOperationError, match="left"):
            await inner.execute(INSERT, (1,))
        await tx.execute(INSERT, (2,))
    assert items(world.path) == [2]


async def test_a_child_that_outlives_the_block_writes_by_itself(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """Once the parent has left the block, a child started inside of it can write (R12)."""
    world = await open_world()
    left = trio.Event()

    async def child() -> None:
        await left.wait()
        await world.host.scheduler.schedule_alarm("send", "child", after=1)

    async with trio.open_nursery() as nursery:
        async with world.host.scheduler.transaction() as tx:
            nursery.start_soon(child)
            await tx.schedule_alarm("send", "parent", after=2)
        left.set()
    assert [row.id for row in world.rows()] == ["child", "parent"]


async def test_a_block_of_another_host_of_the_database_is_refused(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """Inside a block, writing through another host of the file raises at once (R12)."""
    world = await open_world()
    await create_items(world.host)
    async with open_host(world.path, name="other", storage=_storage(world)) as other:
        await other.scheduler.schedule_alarm("send", "known", after=60)
        with trio.fail_after(1):
            async with world.host.scheduler.transaction() as tx:
                await tx.execute(INSERT, (1,))
                for use in (
                    lambda: other.scheduler.transaction().__aenter__(),
                    lambda: other.storage.transaction().__aenter__(),
                    lambda: other.scheduler.schedule_alarm("send", "a", after=0),
                    lambda: other.scheduler.cancel_alarm("send", "known"),
                    lambda: other.scheduler.defer_wakes().__aenter__(),
                ):
                    assert isinstance(await error_of(use), StorageOperationError)
                assert await other.scheduler.get_alarm_status("send", "known") is not None
        assert items(world.path) == [1]
        assert [record.ref.id for record in await other.scheduler.list_alarms()] == ["known"]


async def test_blocks_of_two_databases_are_independent(
    mock_clock: object, open_inline_world: OpenWorld, tmp_path: Any
) -> None:
    """A block of a host on another file is no savepoint of this one (R12, R13)."""
    world = await open_inline_world()

    async def both(other: AlarmHost) -> None:
        async with world.host.scheduler.transaction() as tx:
            await tx.schedule_alarm("send", "here", after=1)
            async with other.scheduler.transaction() as inner:
                await inner.schedule_alarm("send", "there", after=1)
            raise ERROR

    async with open_host(tmp_path / "other.db") as other:
        assert await error_of(lambda: both(other)) is ERROR
        assert world.rows() == []
        assert len(await other.scheduler.list_alarms()) == 1


@pytest.mark.parametrize("raises", [True, False])
@pytest.mark.parametrize("nested", [True, False])
async def test_a_block_that_another_task_leaves_is_rolled_back(
    mock_clock: object, open_world: OpenWorld, *, nested: bool, raises: bool
) -> None:
    """A block that is left by another task than its own stores nothing, and says so (R12)."""
    world = await open_world()
    await create_items(world.host)
    errors: list[BaseException | None] = []

    async def leave(block: Any) -> None:
        error = ERROR if raises else None

        async def exit_block() -> None:
            await block.__aexit__(type(error), error, None)

        errors.append(await error_of(exit_block))

    async def body() -> None:
        async with AsyncExitStack() as stack:
            if nested:
                outer = await stack.enter_async_context(world.host.scheduler.transaction())
                await outer.execute(INSERT, (1,))
            block = world.host.scheduler.transaction()
            tx = await block.__aenter__()
            await tx.execute(INSERT, (2,))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(leave, block)
            with pytest.raises(StorageOperationError):
                await tx.execute(INSERT, (3,))

    error = await error_of(body)
    assert isinstance(errors[0], type(None) if raises else StorageOperationError)
    assert isinstance(error, StorageOperationError if nested else type(None))
    assert items(world.path) == []
    require_unlocked(world.path)
    with trio.fail_after(1):
        await world.host.scheduler.schedule_alarm("send", "next", after=1)


async def test_blocks_that_are_not_left_innermost_first_store_nothing(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """Leaving an outer block before an inner one undoes all of it, and is an error (R13)."""
    world = await open_world()
    await create_items(world.host)
    outer, inner = world.host.scheduler.transaction(), world.host.scheduler.transaction()
    await (await outer.__aenter__()).execute(INSERT, (1,))
    await (await inner.__aenter__()).execute(INSERT, (2,))
    for block in (outer, inner):
        with pytest.raises(StorageOperationError):
            await block.__aexit__(None, None, None)
    assert items(world.path) == []
    require_unlocked(world.path)
    with trio.fail_after(1):
        await world.host.scheduler.schedule_alarm("send", "next", after=1)


async def test_a_block_is_entered_and_left_once(mock_clock: object, open_world: OpenWorld) -> None:
    """Entering or leaving a block twice is an error that ends nobody else's (R12)."""
    world = await open_world()
    await create_items(world.host)
    block = world.host.scheduler.transaction()
    async with block as tx:
        await tx.execute(INSERT, (1,))
        with pytest.raises(StorageOperationError):
            await block.__aenter__()
    assert items(world.path) == [1]

    async def hold(task_status: trio.TaskStatus[trio.Event]) -> None:
        async with world.host.scheduler.transaction() as tx:
            await tx.execute(INSERT, (2,))
            go_on = trio.Event()
            task_status.started(go_on)
            await go_on.wait()
            raise ERROR

    async def other(task_status: trio.TaskStatus[trio.Event]) -> None:
        assert await error_of(lambda: hold(task_status)) is ERROR

    async with trio.open_nursery() as nursery:
        go_on = await nursery.start(other)
        with pytest.raises(StorageOperationError):
            await block.__aexit__(None, None, None)
        assert items(world.path) == [1]
        go_on.set()
    assert items(world.path) == [1]
    async with block as tx:
        await tx.execute(INSERT, (3,))
    assert items(world.path) == [1, 3]


async def test_leaving_the_host_ends_blocks_and_those_who_wait_for_one(
    autojump_clock: object, open_inline_world: OpenWorld
) -> None:
    """When a host is left, blocks of other tasks are rolled back, and none begins (R12)."""
    world = await open_inline_world()
    await create_items(world.host)
    await world.host.scheduler.schedule_alarm("send", "a", after=60)
    errors: dict[str, BaseException | None] = {}
    go_on = trio.Event()

    async def hold(host: AlarmHost) -> None:
        async with host.scheduler.transaction() as tx:
            await tx.execute(INSERT, (1,))
            await go_on.wait()

    async def enter(host: AlarmHost) -> None:
        async with host.scheduler.transaction():
            await go_on.wait()

    async def schedule(host: AlarmHost) -> None:
        await host.scheduler.schedule_alarm("send", "b", after=60)

    async def keep_error(name: str, use: Callable[[AlarmHost], Awaitable[None]]) -> None:
        errors[name] = await error_of(lambda: use(world.host))

    for another_host in (False, True):
        async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
            if another_host:
                await world.harness.reopen()
                await stack.enter_async_context(
                    open_host(world.path, name="other", storage=_storage(world))
                )
            go_on = trio.Event()
            for name, use in (("hold", hold), ("enter", enter), ("schedule", schedule)):
                nursery.start_soon(keep_error, name, use)
                await trio.testing.wait_all_tasks_blocked()
            began = trio.current_time()
            await world.harness.close()
            assert trio.current_time() == began
            assert set(errors) >= {"enter", "schedule"}
            require_unlocked(world.path)
            go_on.set()
        assert {type(error) for error in errors.values()} == {StorageOperationError}
        assert items(world.path) == []
        assert [row.id for row in world.rows()] == ["a"]


async def test_a_process_lost_at_any_step_of_a_block_holds_nothing_open(
    mock_clock: object, open_inline_world: OpenWorld
) -> None:
    """Whenever its host is lost, a block is rolled back, be another host of the file open (R12)."""
    world = await open_inline_world()
    await create_items(world.host)
    outcomes: list[BaseException | None] = []

    async def write() -> None:
        async with world.host.scheduler.transaction() as tx:
            await tx.execute(INSERT, (1,))
            await tx.schedule_alarm("send", "a", after=60)

    async def keep_error() -> None:
        outcomes.append(await error_of(write))

    async with open_host(world.path, name="other", storage=_storage(world)) as other:
        # Trio shuffles what runs in one step, so each is tried several times.
        for steps in [step for step in range(10) for _ in range(4)]:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(keep_error)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                await world.harness.crash()
            require_unlocked(world.path)
            committed = outcomes[-1] is None
            assert items(world.path) == ([1] if committed else [])
            assert (world.row("send", "a") is not None) is committed
            await world.harness.reopen()
            async with other.storage.transaction() as tx:
                await tx.execute("DELETE FROM items WHERE id > 0")
            await world.host.scheduler.cancel_alarm("send", "a")
    assert {type(error) for error in outcomes} == {type(None), StorageOperationError}


# Blocks inside generators (R12, R13).


async def test_a_context_manager_of_the_applications_own(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """A block wrapped in an `asynccontextmanager` ends as any other (R10)."""
    world = await open_world()
    await create_items(world.host)

    @asynccontextmanager
    async def unit() -> AsyncIterator[AlarmTransaction]:
        async with world.host.scheduler.transaction() as tx:
            yield tx

    async with unit() as tx:
        await tx.execute(INSERT, (1,))

    async def fail() -> None:
        async with unit() as tx:
            await tx.execute(INSERT, (2,))
            raise ERROR

    assert await error_of(fail) is ERROR
    assert items(world.path) == [1]


async def test_a_generator_that_is_closed_rolls_back(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """A block of a generator that is closed half way is rolled back, in its own task (R10)."""
    world = await open_world()
    await create_items(world.host)

    async def numbers() -> AsyncIterator[int]:
        async with world.host.scheduler.transaction() as tx:
            for number in range(1, 4):
                await tx.execute(INSERT, (number,))
                yield number

    async with aclosing(numbers()) as some:  # type: ignore[type-var]  # a generator is one
        async for number in some:
            if number == 2:
                break
    assert items(world.path) == []
    async for _ in numbers():
        pass
    assert items(world.path) == [1, 2, 3]


@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
@pytest.mark.parametrize("nested", [True, False])
async def test_a_generator_that_is_dropped_never_stores_a_part(
    mock_clock: object, open_world: OpenWorld, *, nested: bool
) -> None:
    """A block of a generator that is just dropped stores nothing and frees the turn (R12)."""
    world = await open_world()
    await create_items(world.host)

    async def numbers() -> AsyncIterator[int]:
        async with world.host.scheduler.transaction() as tx:
            for number in range(1, 4):
                await tx.execute(INSERT, (number,))
                yield number

    async def drop() -> None:
        async for _ in numbers():
            break
        while not nested and world.host._runtime.database.transaction is not None:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()

    async def nest() -> None:
        async with world.host.scheduler.transaction() as tx:
            await tx.execute(INSERT, (7,))
            await drop()

    if nested:
        assert isinstance(await error_of(nest), StorageOperationError)
    else:
        await drop()
    with trio.fail_after(1):
        await world.host.scheduler.schedule_alarm("send", "next", after=1)
    assert items(world.path) == []
    require_unlocked(world.path)


# Transactions take turns, first come first served (R14).


@pytest.mark.parametrize("kinds", list(itertools.product(["block", "method"], repeat=3)))
async def test_first_come_first_served_over_all_hosts(
    mock_clock: object, open_world: OpenWorld, kinds: tuple[str, ...]
) -> None:
    """Blocks and standalone methods of all hosts of a file run in the order they came (R14)."""
    world = await open_world()
    async with open_host(world.path, name="other", storage=_storage(world)) as other:
        hosts = [world.host, other, world.host]
        order: list[int] = []

        async def write(number: int) -> None:
            scheduler = hosts[number].scheduler
            if kinds[number] == "method":
                await scheduler.schedule_alarm("send", str(number), after=1)
            else:
                async with scheduler.transaction() as tx:
                    await tx.schedule_alarm("send", str(number), after=1)
            order.append(number)

        async with trio.open_nursery() as nursery:
            leave = await nursery.start(hold_the_turn, world.host)
            for number in range(3):
                nursery.start_soon(write, number)
                await trio.testing.wait_all_tasks_blocked()
            assert order == []
            leave.set()
        assert order == [0, 1, 2]
        assert len(world.sql("SELECT 1 FROM trio_alarms_alarms")) == 3


async def test_blocks_of_two_tasks_never_mix(mock_clock: object, open_world: OpenWorld) -> None:
    """What one task rolls back takes nothing of another task's with it (R14)."""
    world = await open_world()
    await create_items(world.host)

    async def write(number: int) -> None:
        async with world.host.storage.transaction() as tx:
            await tx.execute(INSERT, (number,))
            await trio.lowlevel.checkpoint()
            await tx.execute(INSERT, (number + 100,))
            if number % 2:
                raise ERROR

    async with trio.open_nursery() as nursery:
        for number in range(1, 9):
            nursery.start_soon(error_of, lambda number=number: write(number))
    assert items(world.path) == [2, 4, 6, 8, 102, 104, 106, 108]


async def test_a_cancelled_waiter_leaves_the_queue(
    mock_clock: object, open_world: OpenWorld
) -> None:
    """Whoever is cancelled while it waits neither writes nor holds up the others (R11, R14)."""
    world = await open_world()
    scopes = [trio.CancelScope() for _ in range(4)]
    done: list[int] = []

    async def write(number: int) -> None:
        with scopes[number]:
            await world.host.scheduler.schedule_alarm("send", str(number), after=1)
            done.append(number)

    async with trio.open_nursery() as nursery:
        leave = await nursery.start(hold_the_turn, world.host)
        for number in range(4):
            nursery.start_soon(write, number)
            await trio.testing.wait_all_tasks_blocked()
        scopes[0].cancel()
        scopes[2].cancel()
        await trio.testing.wait_all_tasks_blocked()
        leave.set()
    assert done == [1, 3]
    assert [row.id for row in world.rows()] == ["1", "3"]


# The handler of an alarm due now starts after the commit, or never (C22).


@pytest.mark.parametrize("ending", ["commits", "raises", "savepoint", "full", "cancelled"])
async def test_the_handler_runs_after_the_commit_and_only_then(
    autojump_clock: object, open_inline_world: OpenWorld, ending: str
) -> None:
    """An alarm due now that a block schedules runs within a second of its commit (C22)."""
    started: list[float] = []

    async def dispatcher(host: AlarmHost) -> None:
        await host.scheduler.process_due_alarms(handler)

    async def handler(_: object) -> None:
        started.append(trio.current_time())

    world = await open_inline_world(alarms=dispatcher, driver=True)
    host = world.host
    await create_items(host)
    pages = world.sql("PRAGMA page_count")[0][0]

    async def schedule(*, raises: bool) -> None:
        async with host.scheduler.transaction() as tx:
            await tx.execute(INSERT, (1,))
            await tx.schedule_alarm("send", "a", after=0)
            await trio.sleep(2)
            if raises:
                raise ERROR

    async def block() -> None:
        async with host.scheduler.transaction() as tx:
            if ending == "full":
                await tx.execute(f"PRAGMA max_page_count = {pages}")
            if ending == "savepoint":
                await error_of(lambda: schedule(raises=True))
            else:
                await schedule(raises=ending == "raises")
            if ending == "full":
                await tx.execute("INSERT INTO items (note) VALUES (?)", ("x" * 100_000,))

    with trio.move_on_after(1 if ending == "cancelled" else 10):
        await error_of(block)
    left = trio.current_time()
    assert started == []
    await trio.sleep(30)
    if ending == "commits":
        assert len(started) == 1
        assert left <= started[0] <= left + 1
        assert items(world.path) == [1]
    else:
        assert started == []
        assert items(world.path) == []
    assert world.rows() == []


# What a body raises leaves as the same object (api.md, "Exceptions").


@pytest.mark.parametrize("block", ["transaction", "nested", "event", "defer_wakes", "open_host"])
@pytest.mark.parametrize(
    "error",
    [
        ValueError("v"),
        KeyboardInterrupt(),
        SystemExit(3),
        ExceptionGroup("g", [ValueError("v"), KeyError("k")]),
        StorageOperationError("s", operation="mine"),
        RuntimeError("r"),
        StopAsyncIteration(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_the_bodys_exception_is_not_wrapped(
    mock_clock: object,
    open_world: OpenWorld,
    error: BaseException,
    block: str,
) -> None:
    """What a body raises comes out as the very same object, not in a group (R10, R19, R40)."""
    world = await open_world()
    host = world.host

    async def body() -> None:
        async with AsyncExitStack() as stack:
            if block in {"transaction", "nested"}:
                await stack.enter_async_context(host.scheduler.transaction())
            if block == "nested":
                await stack.enter_async_context(host.storage.transaction())
            if block == "event":
                await stack.enter_async_context(host.event())
            if block == "defer_wakes":
                await stack.enter_async_context(host.scheduler.defer_wakes())
            if block == "open_host":
                await stack.enter_async_context(
                    open_host(world.path, name="other", storage=_storage(world))
                )
            raise error

    assert await error_of(body) is error
    assert error.__cause__ is None
    require_unlocked(world.path)


@pytest.mark.parametrize("block", ["transaction", "event", "defer_wakes", "open_host"])
async def test_cancellation_is_caught_by_the_scope_that_caused_it(
    mock_clock: object, open_world: OpenWorld, block: str
) -> None:
    """A body's own cancel scope around a block catches its cancellation, unwrapped (R11)."""
    world = await open_world()
    host = world.host
    blocks: dict[str, Callable[[], Any]] = {
        "transaction": host.scheduler.transaction,
        "event": host.event,
        "defer_wakes": host.scheduler.defer_wakes,
        "open_host": lambda: open_host(world.path, name="other", storage=_storage(world)),
    }
    with trio.CancelScope() as scope:
        async with blocks[block]():
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    require_unlocked(world.path)


async def test_a_rollback_that_fails_does_not_mask_it(
    mock_clock: object,
    open_inline_world: OpenWorld,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Where even rolling back fails, the body's error is what leaves (R10)."""
    world = await open_inline_world()
    await create_items(world.host)
    connection = world.host._runtime.database.writer

    def fail() -> None:
        raise sqlite3.OperationalError("disk I/O error")

    async def body() -> None:
        async with world.host.storage.transaction() as tx:
            await tx.execute(INSERT, (1,))
            monkeypatch.setattr(connection, "rollback", fail)
            raise ERROR

    assert await error_of(body) is ERROR
    assert "could not be rolled back" in caplog.text
    monkeypatch.undo()
    with trio.fail_after(1):
        await world.host.scheduler.schedule_alarm("send", "next", after=1)
    assert items(world.path) == []
    assert [row.id for row in world.rows()] == ["next"]


def _storage(world: World) -> Any:
    """The storage options that the world's host has, for another host of its file."""
    return world.host._runtime.settings.storage
