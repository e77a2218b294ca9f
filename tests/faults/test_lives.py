"""The storage fails while a host opens, closes, imports, defers wakes, or drives itself."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio.testing

from tests.behaviour.services import serving
from tests.behaviour.storage_tools import error_of
from tests.faults.injection import (
    MANNERS,
    Fault,
    Injector,
    look,
    require_idle,
    require_storage_errors,
    require_unlocked,
    run_sql,
    storage_options,
)
from tests.test_effect_cf import SHAPES
from trio_alarms import AlarmDue, StorageOperationError, _database, import_effect_cf, open_host
from trio_alarms import _import as importing
from trio_alarms.testing import open_test_host

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
FAR = EPOCH + timedelta(days=300)
FAR_MS = int(FAR.timestamp() * 1000)
NEAR = EPOCH + timedelta(days=200)
NEAR_MS = int(NEAR.timestamp() * 1000)
ORDINARY = {"full, from then on", "I/O error, landed"}
FAULTS: list[Any] = [
    pytest.param(
        partial(Fault, kind, manner, lasting=lasting),
        id=name,
        marks=() if name in ORDINARY else pytest.mark.trust,
    )
    for kind, manner in MANNERS
    for lasting, how in ((False, manner), (True, "from then on"))
    if manner == "refused" or not lasting
    for name in [f"{kind}, {how}"]
]
EXECUTORS = ["inline", pytest.param("thread", marks=pytest.mark.trust)]

ALARMS = "SELECT tag, id, run_at, payload FROM trio_alarms_alarms ORDER BY id"
NATIVE = "SELECT managed, native_alarm FROM trio_alarms_hosts WHERE name = 'default'"
OURS = "SELECT count(*) FROM sqlite_master WHERE name LIKE 'trio_alarms_%' AND type = 'table'"
OLD = "SELECT count(*) FROM sqlite_master WHERE name LIKE 'effect_cf_%' AND type = 'table'"
STALE_GUARD = "UPDATE trio_alarms_hosts SET native_alarm = 12345"


def let_jump(clock: trio.testing.MockClock, executor: str) -> None:
    """Have the clock jump where nothing works beside the event loop."""
    if executor == "inline":
        clock.autojump_threshold = 0


async def make_managed(path: Path) -> None:
    """A file of a host with one alarm."""
    async with open_host(path, driver=False, storage=storage_options("inline")) as host:
        await host.scheduler.schedule_alarm("send", "a", run_at=FAR, payload="kept")


async def make_new(path: Path) -> None:
    """Nothing yet."""


async def make_stale(path: Path) -> None:
    """A file in which a crash has left a guard."""
    await make_managed(path)
    run_sql(path, STALE_GUARD)


async def make_foreign(path: Path) -> None:
    """A database of the application's, in which we have no tables yet."""
    run_sql(path, "CREATE TABLE items (id INTEGER PRIMARY KEY); INSERT INTO items VALUES (7)")


def fresh(template: Path, directory: Path) -> Path:
    """A copy of the template in a directory of its own."""
    directory.mkdir()
    path = directory / "alarms.db"
    if template.exists():
        shutil.copy(template, path)
    return path


def require_closed() -> None:
    """Nothing of this process has a database open."""
    assert _database._registry == {}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("make", [make_new, make_managed, make_stale, make_foreign])
async def test_an_opening_that_fails_leaves_nothing_behind(
    mock_clock: trio.testing.MockClock,
    tmp_path: Path,
    injector: Injector,
    make: Callable[[Path], Any],
    fault: Callable[[int], Fault],
    *,
    executor: str,
) -> None:
    """Whichever statement fails: tables wholly there or not, no lock, and it opens next (R60)."""
    let_jump(mock_clock, executor)
    template = tmp_path / "template.db"
    await make(template)
    kept = make in {make_managed, make_stale}
    at = 1
    while True:
        path = fresh(template, tmp_path / str(at))
        storage = storage_options(executor)

        async def attempt(path: Path = path, storage: Any = storage) -> None:
            async with open_host(path, driver=False, storage=storage):
                injector.fault = None

        with injector.inject(fault(at)) as injected:
            error = await error_of(attempt)
        require_closed()
        require_storage_errors(error, injected)
        if path.exists():
            require_unlocked(path)
            ((ours,),) = look(path, OURS)
            assert ours[0] in {0, 3}
            assert ours[0] == 3 or error is not None
            if kept:
                assert look(path, ALARMS) == [[("send", "a", FAR_MS, '"kept"')]]
        async with open_host(path, driver=False, storage=storage) as host:
            await host.scheduler.schedule_alarm("send", "b", run_at=NEAR)
            native = await host.native_alarm.get()
            assert native == NEAR
        assert len(look(path, ALARMS)[0]) == 1 + kept
        if not injected.struck:
            assert error is None
            assert at > 3
            return
        at += 1


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_closing_that_fails_lets_go_of_everything(
    mock_clock: trio.testing.MockClock,
    tmp_path: Path,
    injector: Injector,
    fault: Callable[[int], Fault],
    *,
    executor: str,
) -> None:
    """A host that cannot reconcile as it is left says so, holds nothing, and opens next (R20)."""
    let_jump(mock_clock, executor)
    template = tmp_path / "template.db"
    await make_managed(template)
    at = 1
    while True:
        path = fresh(template, tmp_path / str(at))
        storage = storage_options(executor)
        armed = fault(at)

        async def attempt(path: Path = path, storage: Any = storage, armed: Fault = armed) -> None:
            async with open_host(path, driver=False, storage=storage):
                run_sql(path, STALE_GUARD)
                injector.fault = armed

        try:
            error = await error_of(attempt)
        finally:
            injector.fault = None
            injector.injected += len(armed.struck)
        require_closed()
        require_unlocked(path)
        require_storage_errors(error, armed)
        native = look(path, NATIVE)[0]
        assert native in ([(1, FAR_MS)], [(1, 12345)])
        if error is None:
            assert native == [(1, FAR_MS)]
        async with open_host(path, driver=False, storage=storage) as host:
            assert await host.native_alarm.get() == FAR
        if not armed.struck:
            assert error is None
            assert at > 3
            return
        at += 1


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("beside", [False, True])
async def test_an_import_that_fails_changes_nothing(
    autojump_clock: object,
    tmp_path: Path,
    injector: Injector,
    fault: Callable[[int], Fault],
    monkeypatch: pytest.MonkeyPatch,
    *,
    beside: bool,
) -> None:
    """Whichever statement fails: all of it is taken over or nothing, beside a host too (R63)."""
    # It has no options of its own to say how long a lock is waited for.
    monkeypatch.setattr(importing, "_BUSY_SECONDS", 0.1)
    monkeypatch.setattr(_database, "StorageOptions", partial(storage_options, "inline"))
    template = tmp_path / "template.db"
    shape = list(SHAPES.values())[-1]
    rows = "".join(
        "INSERT INTO effect_cf_scheduled_alarms (storage_id, tag, alarm_id, run_at, payload)"
        f" VALUES ('s{id}', 'job', '{id}', {NEAR_MS + id}, 'null');"
        for id in (1, 2)
    )
    run_sql(template, shape + ";" + rows)
    at = 1
    while True:
        path = fresh(template, tmp_path / str(at))
        async with AsyncExitStack() as stack:
            if beside:
                options: Any = {"driver": False, "storage": storage_options("inline")}
                await stack.enter_async_context(open_host(path, name="beside", **options))
            with injector.inject(fault(at)) as injected:
                error = await error_of(partial(import_effect_cf, path))
            require_unlocked(path)
            require_storage_errors(error, injected)
            ((old,), (ours,)) = look(path, OLD, OURS)
            taken = [] if ours[0] == 0 else look(path, ALARMS)[0]
            assert (old[0] == 0) is (len(taken) == 2)
            assert (old[0] > 0) is (taken == [])
            if error is None or getattr(error, "outcome", "") == "rolled back":
                assert (old[0] > 0) is (error is not None)
            assert await import_effect_cf(path) == (2 if taken == [] else 0)
            assert look(path, NATIVE) == [[(1, NEAR_MS + 1)]]
        require_closed()
        if not injected.struck:
            assert error is None
            assert at > 10
            return
        at += 1


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_defer_scope_whose_storage_fails_is_over_and_wakes_in_time(
    mock_clock: trio.testing.MockClock,
    tmp_path: Path,
    injector: Injector,
    fault: Callable[[int], Fault],
    *,
    executor: str,
) -> None:
    """Entering, inside and leaving: the scope is closed, and never is it woken late (R17, R19)."""
    let_jump(mock_clock, executor)
    path = tmp_path / "alarms.db"
    async with open_test_host(path, epoch=EPOCH, storage=storage_options(executor)) as harness:
        scheduler = harness.host.scheduler

        async def put_back() -> None:
            await scheduler.cancel_alarm("send", "b")
            await scheduler.schedule_alarm("send", "a", run_at=FAR)

        progress: list[str] = []

        async def defer() -> None:
            async with scheduler.defer_wakes():
                progress.append("entered")
                await scheduler.schedule_alarm("send", "b", run_at=NEAR)
                progress.append("scheduled")

        at = 1
        while True:
            await put_back()
            assert look(path, NATIVE) == [[(1, FAR_MS)]]
            progress.clear()
            with injector.inject(fault(at)) as injected:
                error = await error_of(defer)
            require_unlocked(path)
            require_idle(harness.host)
            require_storage_errors(error, injected)
            ids = [row[1] for row in look(path, ALARMS)[0]]
            unknown = getattr(error, "outcome", "") == "unknown"
            assert ids == (["a", "b"] if "scheduled" in progress else ["a"]) or unknown
            ((_, native),) = look(path, NATIVE)[0]
            earliest = NEAR_MS if "b" in ids else FAR_MS
            assert native is not None
            assert native <= earliest
            if error is None:
                assert progress == ["entered", "scheduled"]
                assert native == earliest
            await scheduler.cancel_alarm("send", "b")
            assert look(path, NATIVE) == [[(1, FAR_MS)]]
            if not injected.struck:
                assert error is None
                assert at > 10
                return
            at += 1


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_driver_goes_on_by_itself_but_for_a_corrupt_database(
    autojump_clock: object,
    tmp_path: Path,
    injector: Injector,
    fault: Callable[[int], Fault],
) -> None:
    """Whichever statement fails, for once or for a while: handled once; corrupt: over (R51)."""
    at = 1
    while True:
        path = tmp_path / f"{at}.db"
        handled: list[float] = []

        async def handle(_: AlarmDue[Any], handled: list[float] = handled) -> None:
            handled.append(trio.current_time())

        armed = fault(at)

        async def drive(path: Path = path, handle: Any = handle, armed: Fault = armed) -> None:
            alarms = serving({"ring": handle})
            async with open_host(path, alarms=alarms, storage=storage_options("inline")) as host:
                await host.scheduler.schedule_alarm("ring", "1", after=5)
                await trio.testing.wait_all_tasks_blocked()
                injector.fault = armed
                await trio.sleep(20)
                injector.fault = None
                await trio.sleep(61)

        try:
            error = await error_of(drive)
        finally:
            injector.fault = None
            injector.injected += len(armed.struck)
        require_closed()
        require_unlocked(path)
        if armed.struck and armed.kind == "corrupt":
            assert isinstance(error, StorageOperationError)
            assert isinstance(error.__cause__, sqlite3.Error)
            assert len(handled) <= 1
            assert handled or len(look(path, ALARMS)[0]) == 1
        else:
            assert error is None
            assert len(handled) == 1
            assert look(path, ALARMS) == [[]]
            assert look(path, NATIVE) == [[(1, None)]]
        if not armed.struck:
            assert at > 10
            return
        at += 1
