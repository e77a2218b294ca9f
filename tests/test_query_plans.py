"""Every query on alarms goes by a named index, and no work grows with what is retained (R61)."""

from __future__ import annotations

import functools
import re
import shutil
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from trio.testing import MockClock

from trio_alarms import (
    Alarm,
    AlarmService,
    DispatchOptions,
    ScheduleConfiguration,
    StorageOptions,
    define,
    merge_all,
)
from trio_alarms._store import _alarms, _native, _schema
from trio_alarms._store._alarms import ALL_TAGS, TagView
from trio_alarms.testing import open_test_host

if TYPE_CHECKING:
    from trio_alarms import AlarmDue, AlarmHost
    from trio_alarms.testing import AlarmHarness

OPTIONS = StorageOptions(executor="inline", synchronous="off")


async def succeed(event: AlarmDue[Any]) -> None:
    """Handle at once."""


async def fail(event: AlarmDue[Any]) -> None:
    """Fail at once."""
    raise ValueError


class First(AlarmService, key="first"):
    """A service with every kind of alarm."""

    fine = Alarm(None)
    failing = Alarm(None)
    manual = Alarm(None, lifecycle="manual")


class Second(AlarmService, key="second"):
    """Another one."""

    other = Alarm(None)


REGISTRATION = merge_all(
    First.handlers(
        First.fine.handled_by(succeed),
        First.failing.handled_by(fail),
        First.manual.handled_by(succeed),
    ),
    Second.handlers(Second.other.handled_by(succeed)),
)


def connections(host: AlarmHost) -> list[sqlite3.Connection]:
    """The connections that a host works with."""
    database = host._runtime.database
    return [database.writer.raw, database.reader.raw]


@contextmanager
def traced(host: AlarmHost) -> Iterator[list[str]]:
    """Collect every statement that the host sends, with its values filled in."""
    statements: list[str] = []
    for connection in connections(host):
        connection.set_trace_callback(statements.append)
    try:
        yield statements
    finally:
        for connection in connections(host):
            connection.set_trace_callback(None)


def plan(connection: sqlite3.Connection, statement: str) -> list[str]:
    """The steps by which SQLite answers a statement."""
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]


def assert_indexed(path: Path, statements: list[str], *kinds: str) -> None:
    """Each statement on our tables searches a named index, and scans or sorts nothing."""
    ours = {each for each in statements if re.search("trio_alarms_(alarms|hosts)", each)}
    assert {each.split()[0] for each in ours} >= set(kinds)
    with closing(sqlite3.connect(path)) as connection:
        for statement in ours:
            for step in plan(connection, statement):
                assert re.fullmatch(
                    r"SEARCH trio_alarms_(alarms|hosts) USING (COVERING )?INDEX trio_alarms_\w+ .*",
                    step,
                ), f"{step}: {statement}"


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[AlarmHarness]:
    """A host whose commits need not outlive a loss of power."""
    options.setdefault("storage", OPTIONS)
    async with open_test_host(path, **options) as harness:
        yield harness


async def enrol(host: AlarmHost, *alarms: Alarm[None] | str, **options: Any) -> None:
    """Schedule two due alarms of each kind."""
    for alarm in alarms:
        for id in "ab":
            await host.scheduler.schedule_alarm(alarm, id, after=0, **options)


# Plans


async def test_scheduling_is_answered_by_indices(tmp_path: Path, mock_clock: MockClock) -> None:
    """Every method, alone, in blocks and while wakes are deferred (R61)."""
    path = tmp_path / "alarms.db"
    async with opened(path, alarms=REGISTRATION) as harness:
        host = harness.host
        alarms = host.scheduler
        with traced(host) as statements:
            await enrol(host, First.fine, First.manual, "raw")
            await alarms.schedule_alarm(First.fine, "p", after=0, progress=1, repeat_every=60)
            await alarms.schedule_alarm(First.fine, "p", after=0, progress=1)
            await alarms.schedule_alarm_earlier(First.fine, "b", after=9)
            await alarms.ensure_alarm(First.fine, "b", after=9)
            await alarms.ensure_alarm(First.fine, "e", after=9, repeat_every=60)
            await alarms.get_alarm_status(First.fine, "b")
            await host.service(First).cancel_alarm(First.fine, "e")
            async with host.storage.transaction() as tx:
                await tx.schedule_alarm(First.fine, "c", after=0)
                await tx.schedule_alarm_earlier(First.fine, "c", after=9)
                await tx.ensure_alarm(First.fine, "d", after=0)
                await tx.get_alarm_status(First.fine, "d")
                await tx.cancel_alarm(First.fine, "d")
            async with alarms.defer_wakes():
                await alarms.schedule_alarm(First.fine, "f", after=0)
            await host.native_alarm.get()
        assert_indexed(path, statements, "SELECT", "INSERT", "DELETE")


async def test_passes_are_answered_by_indices(tmp_path: Path, mock_clock: MockClock) -> None:
    """Acknowledging, advancing, failing, parking, moving, and what no handler is for (R61)."""
    path = tmp_path / "alarms.db"
    budget = ScheduleConfiguration(unchanged_attempt_budget=2)
    async with opened(path, alarms=REGISTRATION, configuration=budget) as harness:
        host = harness.host
        await enrol(host, First.fine, First.failing, First.manual, Second.other, "raw")
        await enrol(host, Second.other, repeat_every=60)
        await enrol(host, "raw by hand", lifecycle="manual")
        with traced(host) as statements:
            with pytest.raises(ExceptionGroup):
                await harness.deliver()
            await harness.advance(5)
            await harness.settle()
            assert len(await host.scheduler.list_alarms(parked=True)) == 4
        assert_indexed(path, statements, "SELECT", "INSERT", "DELETE", "UPDATE")


async def test_hooks_and_direct_runs_are_answered_by_indices(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """All other ways to dispatch, and acknowledging in a block (R61)."""
    path = tmp_path / "alarms.db"
    handled: list[str] = []

    async def acknowledge(event: AlarmDue[Any]) -> None:
        handled.append(event.tag)
        async with event.host.scheduler.transaction() as tx:
            assert await tx.acknowledge(event)

    async def hook(host: AlarmHost) -> None:
        await host.scheduler.process_due_alarms(acknowledge)

    unknown = Alarm(None, tag="raw")
    async with opened(path, alarms=REGISTRATION, raw_alarm=hook) as harness:
        host = harness.host
        with traced(host) as statements:
            await enrol(host, First.fine, "raw")
            await harness.deliver()
            await enrol(host, First.fine, "raw")
            await host.scheduler.process_due_alarms(acknowledge, DispatchOptions(limit=1))
            await define(unknown).handlers(unknown.handled_by(acknowledge)).run(host)
            await enrol(host, First.fine)
            await REGISTRATION.run(host)
        assert {"raw", "fine"} <= set(handled)
        assert_indexed(path, statements, "SELECT", "INSERT", "DELETE")


async def test_opening_and_checks_after_events_are_answered_by_indices(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """What a host asks of its own accord (R61)."""
    path = tmp_path / "alarms.db"
    configuration = ScheduleConfiguration(dispatch_after_event=True)
    async with opened(path, alarms=REGISTRATION, configuration=configuration) as harness:
        host = harness.host
        await enrol(host, First.fine)
        with traced(host) as statements:
            async with host.event():
                pass
            await harness.settle()
            await enrol(host, First.fine)
            await harness.consume_native_alarm()
            await host._runtime.reconcile_on_opening()
        assert await host.native_alarm.get() == host.now()
        assert_indexed(path, statements, "SELECT", "INSERT", "DELETE")


async def test_listings_are_answered_by_indices(tmp_path: Path, mock_clock: MockClock) -> None:
    """Every filter, for all tags and for some (R61)."""
    path = tmp_path / "alarms.db"
    async with opened(path, alarms=REGISTRATION) as harness:
        host = harness.host
        await enrol(host, First.fine, First.manual, "raw")
        with traced(host) as statements:
            for alarms in (host.scheduler, host.service(First)):
                after = (await alarms.list_alarms(limit=1))[-1]
                for parked in (None, True, False):
                    for alarm in (None, First.fine):
                        await alarms.list_alarms(alarm=alarm, parked=parked)
                        await alarms.list_alarms(alarm=alarm, parked=parked, after=after)
                        await alarms.list_alarms(alarm=alarm, parked=parked, wake_before=host.now())
        assert len(statements) > 40
        assert_indexed(path, statements, "SELECT")


@pytest.fixture
def table() -> Iterator[sqlite3.Connection]:
    """The tables as a new database has them."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        _schema.migrate(connection, "memory")
        yield connection


@pytest.mark.parametrize(
    ("statement", "index", "parameters"),
    [
        (_alarms.DUE_BY_WAKE, "trio_alarms_alarms_by_wake", 4),
        (_alarms.DUE_BY_TAG, "trio_alarms_alarms_by_tag", 5),
        (_alarms.NEXT_TAG, "trio_alarms_alarms_by_tag", 3),
        (_alarms.EARLIEST, "trio_alarms_alarms_by_wake", 2),
    ],
)
def test_choosing_what_is_due_reads_an_index_alone(
    table: sqlite3.Connection, statement: str, index: str, parameters: int
) -> None:
    """A covering index answers, and no payload is read (R61)."""
    read: list[str | None] = []

    def note(action: int, _: str | None, column: str | None, *rest: object) -> int:
        if action == sqlite3.SQLITE_READ:
            read.append(column)
        return sqlite3.SQLITE_OK

    table.set_authorizer(note)
    values = ["x"] * parameters
    steps = [row[3] for row in table.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
    assert len(steps) == 1
    assert re.match(f"SEARCH trio_alarms_alarms USING COVERING INDEX {index} ", steps[0])
    assert "payload" not in read


@pytest.mark.parametrize(
    ("statement", "index", "parameters"),
    [
        (_alarms.READ, "trio_alarms_alarms_by_ref", 3),
        (_alarms.DELETE, "trio_alarms_alarms_by_ref", 3),
        (_alarms.MOVE, "trio_alarms_alarms_by_ref", 6),
        (_native.READ, "trio_alarms_hosts_by_name", 1),
    ],
)
def test_single_rows_are_found_by_their_whole_key(
    table: sqlite3.Connection, statement: str, index: str, parameters: int
) -> None:
    """One search of a unique index finds the row (R61)."""
    values = ["x"] * parameters
    steps = [row[3] for row in table.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
    key = "host=? AND tag=? AND id=?" if "alarms_by_ref" in index else "name=?"
    assert len(steps) == 1
    assert re.match(rf"SEARCH \w+ USING INDEX {index} ", steps[0])
    assert steps[0].endswith(f"({key})")


# Work


@contextmanager
def counted(host: AlarmHost) -> Iterator[list[int]]:
    """Count the steps of SQLite's virtual machine that a host takes."""
    steps = [0]

    def step() -> int:
        steps[0] += 1
        return 0

    for connection in connections(host):
        connection.set_progress_handler(step, 1)
    try:
        yield steps
    finally:
        for connection in connections(host):
            connection.set_progress_handler(None, 1)


def insert(
    connection: sqlite3.Connection,
    number: int,
    *,
    tag: str,
    tags: int | None = None,
    wake_at: Callable[[int], int],
    lifecycle: str = "automatic",
    parked: bool = False,
) -> None:
    """Store so many alarms past the library, of one tag or of `tags` different ones."""
    stored_before = connection.execute("SELECT count(*) FROM trio_alarms_alarms").fetchone()[0]
    connection.execute("BEGIN IMMEDIATE")
    for each in range(number):
        wake = wake_at(each)
        connection.execute(
            "INSERT INTO trio_alarms_alarms (host, tag, id, lifecycle, run_at, wake_at, retry_at,"
            " progress, attempts, parked, revision, payload)"
            " VALUES ('default', ?, ?, ?, ?, ?, ?, -1, ?, ?, randomblob(16), 'null')",
            (
                tag if tags is None else f"{tag} {each % tags}",
                f"filler {stored_before + each}",
                lifecycle,
                wake,
                wake,
                wake if parked else None,
                8 if parked else 0,
                int(parked),
            ),
        )
    connection.execute("COMMIT")


FAR = 253_000_000_000_000
MANY = 10_000


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`filled(number, tag, far=…)`: a database with so many alarms, each made once and copied."""

    @functools.cache
    def made(number: int, tag: str, *, far: bool) -> Path:
        path = tmp_path_factory.mktemp("filled") / "made.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            _schema.migrate(connection, str(path))
            first = FAR if far else 0
            tags = number if tag == "tags of their own" else None
            insert(connection, number, tag=tag, tags=tags, wake_at=lambda each: first + each)
        return path

    def copied(number: int, tag: str, *, far: bool) -> Path:
        path = tmp_path_factory.mktemp("copied") / "alarms.db"
        shutil.copy(made(number, tag, far=far), path)
        return path

    return copied


Operation: TypeAlias = "Callable[[AlarmHarness], Awaitable[object]]"


def on_scheduler(method: str, *arguments: Any, **options: Any) -> Operation:
    """Call a method of the raw scheduler."""
    return lambda harness: getattr(harness.host.scheduler, method)(*arguments, **options)


async def in_a_block(harness: AlarmHarness) -> None:
    """Several changes in one commit."""
    async with harness.host.scheduler.transaction() as tx:
        await tx.schedule_alarm(First.fine, "b", after=0)
        await tx.cancel_alarm(First.fine, "b")


OPERATIONS: dict[str, Operation] = {
    "schedule": on_scheduler("schedule_alarm", First.fine, "new", after=0),
    "replace": on_scheduler("schedule_alarm", First.fine, "fine", after=0),
    "min-merge": on_scheduler("schedule_alarm_earlier", First.fine, "fine", after=0),
    "ensure": on_scheduler("ensure_alarm", First.fine, "fine", after=0),
    "cancel": on_scheduler("cancel_alarm", First.fine, "fine"),
    "cancel what is absent": on_scheduler("cancel_alarm", First.fine, "absent"),
    "status": on_scheduler("get_alarm_status", First.fine, "fine"),
    "block": in_a_block,
    "deliver": lambda harness: harness.deliver(),
    "run": lambda harness: REGISTRATION.run(harness.host),
    "reconcile": lambda harness: harness.host._runtime.reconcile_on_opening(),
    "list": on_scheduler("list_alarms", limit=2),
    "list a tag": on_scheduler("list_alarms", alarm=First.fine, limit=2),
}


DUE = [First.fine, First.failing, First.manual, Second.other]
TAGS = ["fine", "manual", "tags of their own"]


async def steps_of(path: Path, operation: Operation) -> int:
    """The steps of an operation on the database at `path`."""
    async with opened(path, alarms=REGISTRATION) as harness:
        await with_due_alarms(harness, operation)
        # Only now is it counted: statements are prepared, and the schema was read.
        return await with_due_alarms(harness, operation)


async def with_due_alarms(harness: AlarmHarness, operation: Operation) -> int:
    """The steps of an operation with an alarm of each kind due."""
    for alarm in DUE:
        await harness.host.scheduler.schedule_alarm(alarm, alarm.tag, after=0)
    with counted(harness.host) as steps:
        await operation(harness)
    return steps[0]


def assert_no_more(few: int, many: int) -> None:
    """The steps are the same, but for some that a deeper tree or a longer text takes."""
    assert 0 < many <= few * 1.1 + 10


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("tag", TAGS)
async def test_work_does_not_grow_with_retained_alarms(
    filled: Callable[..., Path], mock_clock: MockClock, name: str, tag: str
) -> None:
    """With a hundred or ten thousand alarms that are not due the steps are the same (R61)."""
    few = await steps_of(filled(100, tag, far=True), OPERATIONS[name])
    assert_no_more(few, await steps_of(filled(MANY, tag, far=True), OPERATIONS[name]))


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in ("deliver", "run")])
@pytest.mark.parametrize("tag", TAGS)
async def test_scheduling_does_not_grow_with_what_is_overdue(
    filled: Callable[..., Path], mock_clock: MockClock, name: str, tag: str
) -> None:
    """A backlog of ten or ten thousand makes no difference to it (R61)."""
    few = await steps_of(filled(10, tag, far=False), OPERATIONS[name])
    assert_no_more(few, await steps_of(filled(MANY, tag, far=False), OPERATIONS[name]))


def steps_on(table: sqlite3.Connection, query: Callable[[], object]) -> int:
    """The steps of a query, once its statements are prepared."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    for handler in (None, step):
        table.set_progress_handler(handler, 1)
        query()
    table.set_progress_handler(None, 1)
    return steps


def choosing_steps(table: sqlite3.Connection, view: TagView) -> int:
    """The steps of choosing what is due through a view."""
    return steps_on(
        table,
        lambda: _alarms.select_due(
            table, "default", lifecycle="automatic", view=view, now=0, limit=10
        ),
    )


@pytest.mark.parametrize(
    "view",
    [TagView(only=frozenset({"fine", "failing"})), TagView(excluded=frozenset({"backlog"}))],
    ids=["owned tags", "unowned tags"],
)
@pytest.mark.parametrize("parked", [False, True])
def test_choosing_does_not_grow_with_what_is_overdue_under_other_tags(
    table: sqlite3.Connection, view: TagView, *, parked: bool
) -> None:
    """A backlog that is not to be seen is not read (R61)."""
    seen = []
    for number in (10, MANY):
        table.execute("DELETE FROM trio_alarms_alarms")
        insert(table, 20, tag="fine", wake_at=lambda each: -each)
        insert(table, number, tag="backlog", wake_at=lambda each: -each, parked=parked)
        insert(table, number, tag="fine", wake_at=lambda each: -each, lifecycle="manual")
        seen.append(choosing_steps(table, view))
    assert_no_more(*seen)


def test_choosing_reads_no_more_of_a_backlog_than_its_limit(table: sqlite3.Connection) -> None:
    """Its own backlog does not matter either (R61)."""
    seen = []
    for number in (100, MANY):
        table.execute("DELETE FROM trio_alarms_alarms")
        insert(table, number, tag="tag", tags=7, wake_at=lambda each: -each)
        seen.append(
            [choosing_steps(table, view) for view in (ALL_TAGS, TagView(only=frozenset({"tag 1"})))]
        )
    assert seen[0] == seen[1]


@pytest.mark.parametrize("tags", [5, 300])
@pytest.mark.parametrize("overdue", [3, 3_000])
@pytest.mark.parametrize("limit", [1, 10, 5_000, 2**63 - 1])
def test_what_is_chosen_is_the_first_that_is_due(
    table: sqlite3.Connection, tags: int, overdue: int, limit: int
) -> None:
    """Few or many tags, a backlog of unseen ones or not: the choice is the same (R25)."""
    insert(table, 1_000, tag="tag", tags=tags, wake_at=lambda each: each % 90 - 80)
    insert(table, overdue, tag="seen", tags=3, wake_at=lambda each: -each % 90 - 99)
    insert(table, 500, tag="tag 1", wake_at=lambda each: -each, lifecycle="manual")
    stored = table.execute(
        "SELECT wake_at, tag, id FROM trio_alarms_alarms"
        " WHERE lifecycle = 'automatic' AND wake_at <= 0"
    ).fetchall()
    owned = frozenset({"seen 0", "seen 1", "seen 2"})
    for view in (
        ALL_TAGS,
        TagView(only=owned),
        TagView(excluded=owned),
        TagView(excluded=owned | {"tag 1"}),
        TagView(only=frozenset()),
    ):
        chosen = _alarms.select_due(
            table, "default", lifecycle="automatic", view=view, now=0, limit=limit
        )
        visible = sorted(
            row
            for row in stored
            if (view.only is None or row[1] in view.only) and row[1] not in view.excluded
        )
        assert [(due.wake_at, due.ref.tag, due.ref.id) for due in chosen] == visible[:limit]


@pytest.mark.parametrize("parked", [None, True])
@pytest.mark.parametrize("tags", [None, {"tag 1"}, {"tag 0", "tag 1", "tag 2"}])
def test_a_page_does_not_read_the_pages_before_it(
    table: sqlite3.Connection, tags: set[str] | None, *, parked: bool | None
) -> None:
    """A page far into alarms of one deadline costs what the first one costs (R61)."""
    insert(table, 3_000, tag="tag", tags=3, wake_at=lambda _: 0, parked=bool(parked))
    keys = [
        (row.wake_at, row.ref.tag, row.ref.id)
        for row in _alarms.list_rows(
            table,
            "default",
            tags={"tag 1"},
            parked=None,
            wake_before=None,
            after=None,
            limit=3_000,
        )
    ]

    def page(after: tuple[int, str, str]) -> int:
        return steps_on(
            table,
            lambda: _alarms.list_rows(
                table,
                "default",
                tags=tags,
                parked=parked,
                wake_before=None,
                after=after,
                limit=10,
            ),
        )

    assert_no_more(page(keys[100]), page(keys[800]))
