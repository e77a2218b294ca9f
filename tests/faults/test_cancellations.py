"""What `tests/behaviour/test_cancellation.py` leaves out: whole lives, reads, dispatches (R11)."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio.testing

from tests.behaviour.storage_tools import Cancelled, Moment, cancelled_at, locked
from tests.faults.injection import (
    look,
    require_idle,
    require_unlocked,
    run_sql,
    storage_options,
)
from tests.faults.test_deliveries import Scenario, deliver, process, run
from tests.faults.test_lives import ALARMS, FAR, FAR_MS, NATIVE, NEAR, NEAR_MS, STALE_GUARD, fresh
from tests.faults.test_lives import make_managed as make_template
from tests.faults.test_sweep import OPERATIONS, Operation, opened, put_back
from tests.test_effect_cf import SHAPES
from trio_alarms import _database, import_effect_cf, open_host
from trio_alarms.testing import open_test_host

MOMENTS: list[Moment] = ["as it starts to wait", "as it goes on"]
BUSY_SECONDS = 0.1
EXECUTORS = ["inline", "thread"]


def let_jump(clock: trio.testing.MockClock, executor: str) -> None:
    """Have the clock jump where nothing works beside the event loop."""
    if executor == "inline":
        clock.autojump_threshold = 0


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("executor", ["inline", pytest.param("thread", marks=pytest.mark.trust)])
@pytest.mark.parametrize("operation", OPERATIONS, ids=[each.__name__ for each in OPERATIONS])
async def test_cancelled_at_any_step_it_has_raised_and_changed_nothing_or_done_all(
    mock_clock: trio.testing.MockClock,
    tmp_path: Path,
    operation: Operation,
    executor: str,
    moment: Moment,
) -> None:
    """Every operation, reads and the native alarm's included, at every step (R11)."""
    let_jump(mock_clock, executor)
    async with opened(tmp_path / "alarms.db", executor) as world:
        await put_back(world)
        old = world.state()
        expected = await operation(world)
        new = world.state()
        step = 1
        while True:
            await put_back(world)
            outcome = await cancelled_at(step, moment, partial(operation, world))
            assert outcome.error is None
            assert world.state() == (old if outcome.cancelled else new)
            assert outcome.cancelled or outcome.result == expected
            assert outcome.seconds == 0
            require_unlocked(world.path)
            require_idle(world.host)
            if not outcome.reached:
                break
            step += 1
        assert step > 1


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("is_locked", [False, True])
async def test_a_life_cancelled_at_any_step_leaves_nothing_open(
    mock_clock: trio.testing.MockClock,
    tmp_path: Path,
    executor: str,
    moment: Moment,
    *,
    is_locked: bool,
) -> None:
    """Opening, working and leaving, under another process's lock as well: over at once (R11)."""
    let_jump(mock_clock, executor)
    template = tmp_path / "template.db"
    await make_template(template)
    run_sql(template, STALE_GUARD)
    step = 1
    while True:
        path = fresh(template, tmp_path / str(step))

        async def live(path: Path = path) -> None:
            async with open_host(path, storage=storage_options(executor)) as host:
                async with host.scheduler.defer_wakes():
                    await host.scheduler.schedule_alarm("send", "b", run_at=NEAR)
                await host.scheduler.cancel_alarm("send", "a")

        if is_locked:
            with locked(path):
                outcome = await cancelled_at(step, moment, live)
        else:
            outcome = await cancelled_at(step, moment, live)
            assert outcome.error is None
        # Where it is shielded it reconciles: as the scope is left, and as the host is.
        assert outcome.seconds <= 3 * (BUSY_SECONDS + 0.03)
        assert _database._registry == {}
        require_unlocked(path)
        ids = [row[1] for row in look(path, ALARMS)[0]]
        assert ids in (["a"], ["a", "b"], ["b"])
        if not outcome.cancelled and outcome.error is None:
            assert ids == ["b"]
        ((_, native),) = look(path, NATIVE)[0]
        assert native is not None
        assert native in {12345, FAR_MS if ids == ["a"] else NEAR_MS}
        async with open_host(path, driver=False, storage=storage_options(executor)) as host:
            assert await host.native_alarm.get() == (FAR if ids == ["a"] else NEAR)
        if not outcome.reached:
            break
        step += 1
    assert step > 3


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("is_locked", [False, True])
async def test_an_import_cancelled_at_any_step_has_changed_nothing_or_taken_all(
    autojump_clock: object, tmp_path: Path, moment: Moment, *, is_locked: bool
) -> None:
    """Also while it waits for another process's lock, and at once (R11, R63)."""
    template = tmp_path / "template.db"
    run_sql(
        template,
        f"PRAGMA journal_mode = wal; {list(SHAPES.values())[-1]};"
        "INSERT INTO effect_cf_scheduled_alarms (storage_id, tag, alarm_id, run_at, payload)"
        f" VALUES ('s', 'job', '1', {NEAR_MS}, 'null')",
    )
    step = 1
    while step < 40:
        path = fresh(template, tmp_path / str(step))

        async def take(path: Path = path) -> int:
            return await import_effect_cf(path)

        outcome: Cancelled
        if is_locked:
            with locked(path):
                outcome = await cancelled_at(step, moment, take)
        else:
            outcome = await cancelled_at(step, moment, take)
            assert outcome.error is None
        assert outcome.seconds == 0
        assert _database._registry == {}
        require_unlocked(path)
        left = 1 if outcome.cancelled or outcome.error is not None else 0
        assert await import_effect_cf(path) == left
        assert [row[1] for row in look(path, ALARMS)[0]] == ["1"]
        if not outcome.reached:
            break
        step += 1
    assert step > 3


@pytest.mark.parametrize("dispatch", [deliver, process, run])
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("is_locked", [False, True])
async def test_a_dispatch_cancelled_at_any_step_loses_and_repeats_nothing(
    mock_clock: trio.testing.MockClock,
    tmp_path: Path,
    dispatch: Any,
    executor: str,
    *,
    is_locked: bool,
) -> None:
    """With and without another process's lock, in a pass and outside of one: bounded (R11, R19)."""
    let_jump(mock_clock, executor)
    path = tmp_path / "alarms.db"
    scenario = Scenario("returns", path)
    async with open_test_host(
        path,
        epoch=datetime(2000, 1, 1, tzinfo=UTC),
        alarms=scenario.registration,
        storage=storage_options(executor),
    ) as harness:
        scenario.harness = harness
        async with harness.host.storage.transaction() as tx:
            await tx.execute("CREATE TABLE items (id INTEGER PRIMARY KEY)")
        for moment in MOMENTS:
            step = 1
            while True:
                await scenario.put_back()
                if is_locked:
                    with locked(path):
                        outcome = await cancelled_at(step, moment, partial(dispatch, scenario))
                else:
                    outcome = await cancelled_at(step, moment, partial(dispatch, scenario))
                    assert outcome.error is None
                assert outcome.seconds <= 3 * (BUSY_SECONDS + 0.03)
                require_unlocked(path)
                require_idle(harness.host)
                scenario.check_at_once()
                await harness.advance(5)
                scenario.check_in_the_end()
                if not outcome.reached:
                    break
                step += 1
            assert step > 1
