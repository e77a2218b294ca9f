"""Group commit: each caller has its own outcome, though many share a commit (R11, R14)."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from tests.behaviour.group_tools import (
    TAG,
    Call,
    Calls,
    HeldCommit,
    Operation,
    RefusedError,
    block,
    cancel,
    check_own_errors,
    commit_under_way,
    ensure,
    fail,
    idle,
    open_watched,
    refuse_in_sql,
    schedule,
    schedule_earlier,
    stored,
    write_and_refuse,
)
from tests.behaviour.storage_tools import create_items, error_of, items, locked, require_unlocked
from trio_alarms import (
    NativeAlarmOwnedError,
    StorageOperationError,
    StorageOptions,
    StoredAlarmDecodeError,
    open_host,
)
from trio_alarms._store import _native

if TYPE_CHECKING:
    from tests.behaviour.conftest import OpenWorld, World
    from trio_alarms._store._session import Session


def spoil(world: World, id: str) -> None:
    """Make a stored alarm one whose status cannot be told."""
    world.sql("UPDATE trio_alarms_alarms SET repeat_every = 9000000000000000000 WHERE id = ?", id)


# Isolation


METHODS = ("schedule_alarm", "schedule_alarm_earlier", "ensure_alarm", "cancel_alarm")
# Of a hundred callers; those from 40 to 69 share the commit that fails.
REFUSED = {4: StorageOperationError, 16: StoredAlarmDecodeError, 79: RefusedError}
CANCELLED_BEFORE, CANCELLED_DURING, FAILING = (0, 90), (1, 50), range(40, 70)


async def hundred_operations(world: World) -> tuple[list[Operation], dict[str, str]]:
    """Operations of four kinds, three of them refused in the trip, and what is stored before."""
    host = world.host
    before: dict[str, str] = {}
    for number in range(100):
        if number % 4 == 3 or number == 16:
            await schedule(host, f"{number}", "old")()
            before[f"{number}"] = "old"
    operations = [
        (schedule, schedule_earlier, ensure, cancel)[number % 4](host, f"{number}")
        for number in range(100)
    ]
    # One in a trigger, one whose row cannot be told, one that raises when it has changed rows.
    refuse_in_sql(world, "4")
    spoil(world, "16")
    operations[16] = schedule_earlier(host, "16")
    operations[79] = write_and_refuse(world, "79")
    return operations, before


def check_outcome(number: int, call: Call, expected: dict[str, str]) -> None:
    """One of the hundred had its true outcome; bring what must be stored up to date."""
    if number in CANCELLED_BEFORE:
        assert call.outcome == "cancelled", number
    elif number in FAILING:
        assert isinstance(call.error, StorageOperationError), number
        assert call.error.outcome == "rolled back"
    elif number in REFUSED:
        assert type(call.error) is REFUSED[number], number
    else:
        assert call.outcome == "value", (number, call.error)
        if number % 4 == 3:
            assert call.result is True
            del expected[f"{number}"]
        else:
            assert call.result.run_at == call.result.wake_at
            expected[f"{number}"] = "new"


async def test_each_of_a_hundred_callers_has_its_true_outcome(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """Refused, cancelled before, cancelled during, in a commit that fails: each its own (R11)."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    host = world.host
    await create_items(host)
    operations, expected = await hundred_operations(world)
    async with commit_under_way(world, watch, storage_kind) as calls:
        every = await calls.start_all(*operations[:40])
        await calls.start(block(host, 1))
        every += await calls.start_all(*operations[40:70])
        await calls.start(block(host, 2))
        every += await calls.start_all(*operations[70:])

        def cancel_and_fail() -> None:
            watch.in_loop(every[CANCELLED_DURING[1]].scope.cancel)
            fail()

        calls.at_commit(1, lambda: watch.in_loop(every[CANCELLED_DURING[0]].scope.cancel))
        calls.at_commit(3, cancel_and_fail)
        for number in CANCELLED_BEFORE:
            every[number].scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        # They leave at once.
        assert [call.ended.is_set() for call in every].count(True) == 2
    assert calls.commits == 5
    for number, call in enumerate(every):
        check_outcome(number, call, expected)
    assert [every[number].outcome for number in CANCELLED_DURING] == ["value", "error"]
    methods = [METHODS[number % 4] for number in FAILING]
    check_own_errors([every[number] for number in FAILING], *methods, cause="SQLITE_FULL")
    await world.step()
    assert stored(world) == expected
    assert items(world.path) == [1, 2]
    assert world.native_alarm() == min(row.wake_at for row in world.rows())
    assert idle(world.host)


async def test_one_that_is_refused_undoes_itself_alone(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """It had changed rows and the native alarm, and asked to be told of the commit (R13)."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    await schedule(world.host, "a", "old")()
    before = world.row(TAG, "a")
    async with commit_under_way(world, watch, storage_kind) as calls:
        good = await calls.start(schedule(world.host, "b"))
        bad = await calls.start(write_and_refuse(world, "a"))
        last = await calls.start(schedule(world.host, "c"))
    assert calls.commits == 1
    assert isinstance(bad.error, RefusedError)
    assert (good.outcome, last.outcome) == ("value", "value")
    assert world.row(TAG, "a") == before
    assert set(stored(world)) == {"a", "b", "c"}
    assert world.native_alarm() == 600_000


async def test_where_all_are_refused_nothing_is_committed(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """Each has the error that is its own, and the turn goes on."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    await schedule(world.host, "a", "old")()
    before = world.rows()
    async with commit_under_way(world, watch, storage_kind) as calls:
        bad = await calls.start_all(*(write_and_refuse(world, "a") for _ in range(3)))
        after = await calls.start(partial(world.host.native_alarm.set, world.host.now()))
    assert all(isinstance(call.error, RefusedError) for call in bad)
    assert len({id(call.error) for call in bad}) == 3
    assert isinstance(after.error, NativeAlarmOwnedError)
    assert world.rows() == before
    assert idle(world.host)


async def test_what_reads_and_writes_the_same_alarm_is_applied_in_order(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """Members of a batch see what those before them have done, and no more."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    scheduler = world.host.scheduler
    async with commit_under_way(world, watch, storage_kind) as calls:
        missing = await calls.start(cancel(world.host, "a"))
        first = await calls.start(schedule(world.host, "a", "one"))
        # Keeps the earlier deadline of the one before, with its payload.
        kept = await calls.start(
            partial(scheduler.schedule_alarm_earlier, TAG, "a", after=9_000, payload="two")
        )
        gone = await calls.start(cancel(world.host, "a"))
        anew = await calls.start(
            partial(scheduler.schedule_alarm_earlier, TAG, "a", after=9_000, payload="three")
        )
    assert calls.commits == 1
    assert (missing.result, gone.result) == (False, True)
    assert kept.result.run_at == first.result.run_at
    assert stored(world) == {"a": "three"}
    row = world.row(TAG, "a")
    assert row is not None
    assert row.run_at == 9_000_000
    assert anew.result.run_at != first.result.run_at


# How many commits


@pytest.fixture
def reconciliations(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """One for every reconciliation: whether it wrote."""
    found: list[bool] = []
    reconcile = _native.reconcile

    def noted(*arguments: Any) -> _native.NativeChange | None:
        change = reconcile(*arguments)
        found.append(change is not None)
        return change

    monkeypatch.setattr(_native, "reconcile", noted)
    return found


async def test_what_queues_during_a_commit_shares_the_next(
    mock_clock: trio.testing.MockClock,
    open_world: OpenWorld,
    storage_kind: str,
    reconciliations: list[bool],
) -> None:
    """Fifty operations are one trip, one reconciliation and one commit (R20)."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    world.sql("CREATE TABLE native_writes (native_alarm)")
    world.sql(
        "CREATE TRIGGER noted AFTER UPDATE ON trio_alarms_hosts"
        " BEGIN INSERT INTO native_writes VALUES (new.native_alarm); END"
    )
    scheduler = world.host.scheduler
    async with commit_under_way(world, watch, storage_kind) as calls:
        reconciliations.clear()
        trips = len(watch.trips)
        for number in range(50):
            # Each is the earliest yet.
            await calls.start(
                partial(scheduler.schedule_alarm, TAG, f"{number}", after=1_000 - number)
            )
    # Inline the block that had the turn commits as well.
    assert len(watch.trips) - trips == (1 if storage_kind == "thread" else 2)
    assert calls.commits == 1
    assert reconciliations == [True]
    assert world.sql("SELECT native_alarm - ? FROM native_writes", world.epoch_ms) == [(951_000,)]
    assert [call.outcome for call in calls.all] == ["value"] * 50
    assert len(stored(world)) == 50


async def test_what_changes_no_deadline_does_not_write_the_native_alarm(
    mock_clock: trio.testing.MockClock,
    open_world: OpenWorld,
    storage_kind: str,
    reconciliations: list[bool],
) -> None:
    """Reconciled once, from the table, and written only where it changes (R20)."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    await world.host.scheduler.schedule_alarm(TAG, "soon", after=1)
    async with commit_under_way(world, watch, storage_kind) as calls:
        reconciliations.clear()
        await calls.start_all(*(schedule(world.host, f"{number}") for number in range(5)))
    assert reconciliations == [False]


async def test_a_lone_caller_waits_for_nobody(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """One trip and one commit, at once, one after the other."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    began = trio.current_time()
    for number in range(3):
        commits, trips = watch.commits, len(watch.trips)
        await schedule(world.host, f"{number}")()
        assert (watch.commits - commits, len(watch.trips) - trips) == (1, 1)
        assert f"{number}" in stored(world)
    assert trio.current_time() == began


# Inline no commit takes any time.
@pytest.mark.parametrize("storage_kind", ["thread"])
async def test_the_first_caller_does_not_wait_for_those_behind_it(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """It has its result while the commit of the others is still under way."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    one, two = HeldCommit(), HeldCommit()
    watch.at_commit(1, one)
    watch.at_commit(2, two)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            calls = Calls(nursery, watch)
            first = await calls.start(schedule(world.host, "a"))
            await one.reached.wait()
            others = await calls.start_all(*(schedule(world.host, f"{n}") for n in range(9)))
            assert not first.ended.is_set()
            one.release()
            await first.ended.wait()
            assert stored(world) == {"a": "new"}
            await two.reached.wait()
            # These come too late for the commit that is under way.
            late = await calls.start_all(schedule(world.host, "x"), schedule(world.host, "y"))
            assert not any(call.ended.is_set() for call in (*others, *late))
            two.release()
    assert [call.commits for call in (first, *others, *late)] == [1, *[2] * 9, 3, 3]
    assert len(stored(world)) == 12


async def test_a_thousand_callers_at_once_need_few_commits(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """All started in the same moment, whoever comes first."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    before = watch.commits
    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            for number in range(1_000):
                nursery.start_soon(schedule(world.host, f"{number}"))
    assert len(stored(world)) == 1_000
    assert watch.commits - before <= 3


# Order


async def test_operations_neither_overtake_a_block_nor_are_overtaken(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """Those that queued before a block commit before it, and later ones after it (R14)."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    host = world.host
    await create_items(host)
    seen: list[set[str]] = []
    async with commit_under_way(world, watch, storage_kind) as calls:
        await calls.start_all(schedule(host, "a"), schedule(host, "b"))
        await calls.start(block(host, 1, seen))
        await calls.start(schedule(host, "c"))
        await calls.start(block(host, 2, seen))
        await calls.start(block(host, 3, seen))
        await calls.start_all(schedule(host, "d"), schedule(host, "e"))
    assert seen == [{"a", "b"}, {"a", "b", "c"}, {"a", "b", "c"}]
    assert [call.commits for call in calls.all] == [1, 1, 2, 3, 4, 5, 6, 6]
    assert items(world.path) == [1, 2, 3]


async def test_a_block_that_leaves_the_queue_is_no_obstacle(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """A cancelled block between two batches: what is left keeps its order (R14)."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    host = world.host
    await create_items(host)
    seen: list[set[str]] = []
    async with commit_under_way(world, watch, storage_kind) as calls:
        await calls.start(schedule(host, "a"))
        gone = await calls.start(block(host, 1))
        await calls.start(schedule(host, "b"))
        gone.scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        await calls.start(schedule(host, "c"))
        await calls.start(block(host, 2, seen))
        await calls.start(schedule(host, "d"))
    assert gone.outcome == "cancelled"
    assert seen == [{"a", "b", "c"}]
    assert items(world.path) == [2]
    assert set(stored(world)) == {"a", "b", "c", "d"}


async def test_a_batch_that_everybody_left_is_not_joined(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """Who comes after a block goes after it, though a batch had queued before (R14)."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    host = world.host
    await create_items(host)
    seen: list[set[str]] = []
    async with commit_under_way(world, watch, storage_kind) as calls:
        gone = await calls.start_all(schedule(host, "x"), schedule(host, "y"))
        await calls.start(block(host, 1, seen))
        for call in gone:
            call.scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        await calls.start(schedule(host, "a"))
        await calls.start(block(host, 2, seen))
    assert seen == [set(), {"a"}]
    assert [call.outcome for call in gone] == ["cancelled"] * 2
    assert stored(world) == {"a": "new"}
    assert idle(host)


async def test_two_hosts_of_one_file_take_turns(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """A host's operations do not overtake another host's block, nor share its commit (R14)."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    host = world.host
    await create_items(host)
    world.sql("CREATE TABLE log (host, id)")
    world.sql(
        "CREATE TRIGGER logged AFTER INSERT ON trio_alarms_alarms"
        " BEGIN INSERT INTO log VALUES (new.host, new.id); END"
    )
    options = host._runtime.database.options
    async with open_host(
        world.path, name="other", driver=False, storage=options, clock=host.clock
    ) as other:
        seen: list[set[str]] = []
        async with commit_under_way(world, watch, storage_kind) as calls:
            await calls.start(schedule(host, "a1"))
            await calls.start(schedule(other, "b1"))
            await calls.start(schedule(host, "a2"))
            await calls.start(block(other, 1, seen))
            await calls.start(schedule(host, "a3"))
            await calls.start(schedule(host, "a4"))
            await calls.start(schedule(other, "b2"))
        assert seen == [{"a1", "b1", "a2"}]
        assert {call.outcome for call in calls.all} == {"value"}
        log = world.sql("SELECT host, id FROM log ORDER BY rowid")
        order = [id for _, id in log]
        assert set(order[:3]) == {"a1", "b1", "a2"}
        assert order.index("a1") < order.index("a2")
        assert order[3:] == ["a3", "a4", "b2"]
        assert {name for name, id in log if id.startswith("b")} == {"other"}
        # Each host's native alarm is its own.
        assert await other.native_alarm.get() == await host.native_alarm.get()


# A lock of another process


IMPATIENT = StorageOptions(executor="inline", synchronous="off", busy_timeout=1)
PATIENT = StorageOptions(executor="inline", synchronous="off", busy_timeout=30)


@pytest.mark.parametrize("who", ["the lone leader", "the batch's leader", "a member"])
async def test_cancelled_while_another_process_has_the_lock_one_leaves_and_others_go_on(
    autojump_clock: trio.testing.MockClock, open_inline_world: OpenWorld, who: str
) -> None:
    """Promptly in both cases, whoever is cancelled (R11)."""
    world, watch = await open_watched(open_inline_world, autojump_clock, storage=PATIENT)
    host = world.host
    with locked(world.path) as release, trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            calls = Calls(nursery, watch)
            leader = await calls.start(schedule(host, "leader"))
            members = await calls.start_all(*(schedule(host, f"{n}") for n in range(3)))
            assert not leader.ended.is_set()
            if who != "the lone leader":
                # The batch gets its turn.
                leader.scope.cancel()
                await trio.sleep(0.5)
            victim = members[1] if who == "a member" else members[0]
            victim = leader if who == "the lone leader" else victim
            victim.scope.cancel()
            cancelled_at = trio.current_time()
            await victim.ended.wait()
            assert victim.outcome == "cancelled"
            assert trio.current_time() - cancelled_at <= 0.05
            await trio.sleep(1)
            left = [call for call in members if call is not victim]
            assert not any(call.ended.is_set() for call in left)
            release()
            released_at = trio.current_time()
            for call in left:
                await call.ended.wait()
            assert trio.current_time() - released_at <= 0.05
    assert {call.outcome for call in left} == {"value"}
    assert calls.commits == 1
    assert set(stored(world)) == {f"{n}" for n in range(3) if members[n] in left}
    assert idle(host)


async def test_where_all_are_cancelled_the_turn_is_free(
    autojump_clock: trio.testing.MockClock, open_inline_world: OpenWorld
) -> None:
    """At once, though the lock is still another process's (R11)."""
    world, watch = await open_watched(open_inline_world, autojump_clock, storage=PATIENT)
    host = world.host
    with locked(world.path) as release, trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            calls = Calls(nursery, watch)
            await calls.start_all(*(schedule(host, f"{n}") for n in range(4)))
            # The batch of the last three gets its turn.
            calls.all[0].scope.cancel()
            await trio.sleep(0.5)
            began = trio.current_time()
            for call in calls.all:
                call.scope.cancel()
        assert trio.current_time() - began <= 0.05
        assert [call.outcome for call in calls.all] == ["cancelled"] * 4
        assert idle(host)
        release()
        await schedule(host, "after")()
    assert stored(world) == {"after": "new"}


async def test_one_who_was_cancelled_does_not_lead_the_next(
    autojump_clock: trio.testing.MockClock, open_inline_world: OpenWorld
) -> None:
    """Leaders one after the other are cancelled; the last caller has its outcome (R11)."""
    world, watch = await open_watched(open_inline_world, autojump_clock, storage=PATIENT)
    host = world.host
    with locked(world.path) as release, trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            calls = Calls(nursery, watch)
            await calls.start_all(*(schedule(host, f"{n}") for n in range(6)))
            # All but the last, in the same step, in the order of leading and against it.
            for number in (0, 1, 4, 3, 2):
                calls.all[number].scope.cancel()
            await trio.sleep(0.1)
            assert [call.ended.is_set() for call in calls.all] == [*[True] * 5, False]
            release()
    assert [call.outcome for call in calls.all] == [*["cancelled"] * 5, "value"]
    assert stored(world) == {"5": "new"}
    assert idle(host)


async def test_a_lock_held_for_too_long_is_everybodys_own_error(
    autojump_clock: trio.testing.MockClock, open_inline_world: OpenWorld
) -> None:
    """Each gets an error of its own; nothing is stored, and later calls work (R11)."""
    world, watch = await open_watched(open_inline_world, autojump_clock, storage=IMPATIENT)
    host = world.host
    before = world.rows()
    with locked(world.path), trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            calls = Calls(nursery, watch)
            await calls.start_all(
                schedule(host, "0"), schedule(host, "1"), ensure(host, "2"), cancel(host, "3")
            )
    check_own_errors(
        calls.all,
        *("schedule_alarm", "schedule_alarm", "ensure_alarm", "cancel_alarm"),
        cause="SQLITE_BUSY",
    )
    # The first one's time, and then the batch's own.
    assert calls.all[0].at == pytest.approx(1, abs=0.05)
    assert [call.at for call in calls.all[1:]] == pytest.approx([2] * 3, abs=0.1)
    assert world.rows() == before
    assert idle(host)
    await schedule(host, "after")()
    assert stored(world) == {"after": "new"}


async def test_who_joins_while_the_lock_is_waited_for_has_a_full_wait_of_its_own(
    autojump_clock: trio.testing.MockClock, open_inline_world: OpenWorld
) -> None:
    """A caller is not failed by the time that others had waited before it came (R11)."""
    world, watch = await open_watched(open_inline_world, autojump_clock, storage=IMPATIENT)
    host = world.host
    with locked(world.path) as release, trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            calls = Calls(nursery, watch)
            first = await calls.start(schedule(host, "first"))
            await trio.sleep(0.9)
            late = await calls.start_all(schedule(host, "a"), schedule(host, "b"))
            await first.ended.wait()
            assert isinstance(first.error, StorageOperationError)
            await trio.sleep(0.5)
            assert not late[0].ended.is_set()
            later = await calls.start(schedule(host, "c"))
            release()
    assert {call.outcome for call in (*late, later)} == {"value"}
    assert set(stored(world)) == {"a", "b", "c"}


async def test_between_two_tries_the_loop_and_the_readers_go_on(
    autojump_clock: trio.testing.MockClock, open_inline_world: OpenWorld
) -> None:
    """A batch that waits for a lock holds up no reader."""
    world, watch = await open_watched(open_inline_world, autojump_clock, storage=PATIENT)
    host = world.host
    await schedule(host, "a", "old")()
    with locked(world.path) as release, trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            calls = Calls(nursery, watch)
            await calls.start_all(*(schedule(host, "a") for n in range(3)))
            records = await host.scheduler.list_alarms(alarm=TAG)
            assert [record.payload for record in records] == ['"old"']
            release()
    assert stored(world) == {"a": "new"}


# Failures of the commit, and of SQLite in the middle


@pytest.mark.parametrize("code", ["SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY"])
async def test_a_commit_that_fails_fails_its_batch_alone(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str, code: str
) -> None:
    """Own errors, nothing of it stored; the next batch goes on (R10)."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    host = world.host
    await create_items(host)
    await schedule(host, "d", "old")()
    native_alarm = world.native_alarm()
    async with commit_under_way(world, watch, storage_kind) as calls:
        calls.at_commit(1, lambda: fail(code))
        failed = await calls.start_all(
            schedule(host, "a"), schedule_earlier(host, "b"), ensure(host, "c"), cancel(host, "d")
        )
        await calls.start(block(host, 1))
        fine = await calls.start_all(schedule(host, "e"), cancel(host, "nobody"))
    check_own_errors(
        failed,
        *("schedule_alarm", "schedule_alarm_earlier", "ensure_alarm", "cancel_alarm"),
        cause=code,
    )
    assert [call.outcome for call in fine] == ["value"] * 2
    assert stored(world) == {"d": "old", "e": "new"}
    assert native_alarm is not None
    assert world.native_alarm() == native_alarm
    await world.step()
    await schedule(world.host, "later")()
    assert stored(world) == {"d": "old", "e": "new", "later": "new"}


async def test_a_reconciliation_that_fails_fails_its_batch(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """No commit without its reconciliation (R10, R20)."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    host = world.host
    world.sql(
        "CREATE TRIGGER refuse BEFORE UPDATE ON trio_alarms_hosts"
        " BEGIN SELECT RAISE(ABORT, 'refused'); END"
    )
    before = world.rows()
    async with commit_under_way(world, watch, storage_kind) as calls:
        await calls.start_all(schedule(host, "a"), ensure(host, "b"))
    check_own_errors(calls.all, "schedule_alarm", "ensure_alarm")
    assert world.rows() == before
    assert idle(host)
    world.sql("DROP TRIGGER refuse")
    await schedule(host, "a")()
    assert stored(world) == {"a": "new"}


@pytest.mark.parametrize("position", [0, 1, 3])
async def test_sqlite_rolls_back_by_itself_in_the_middle(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str, position: int
) -> None:
    """What came before is undone and what comes after does not run by itself (R10)."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    host = world.host
    refuse_in_sql(world, "bad", "ROLLBACK")
    before = world.rows()
    operations = [schedule(host, "a"), schedule(host, "b"), schedule(host, "c")]
    operations.insert(position, schedule(host, "bad"))
    async with commit_under_way(world, watch, storage_kind) as calls:
        await calls.start_all(*operations)
    for call in calls.all:
        assert isinstance(call.error, StorageOperationError)
    assert len({id(call.error) for call in calls.all}) == 4
    assert world.rows() == before
    assert idle(host)
    require_unlocked(world.path)
    await schedule(host, "after")()
    assert stored(world) == {"after": "new"}


async def test_what_an_operation_raises_reaches_its_caller_alone(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """As it is, were it a group."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    error = ExceptionGroup("two", [ValueError(1), KeyError(2)])

    def refuse(_: Session) -> None:
        raise error

    async with commit_under_way(world, watch, storage_kind) as calls:
        good = await calls.start(schedule(world.host, "a"))
        bad = await calls.start(partial(world.host._runtime.writer.write, refuse, name="refused"))
        other = await calls.start(schedule(world.host, "b"))
    assert bad.error is error
    assert (good.outcome, other.outcome) == ("value", "value")
    assert set(stored(world)) == {"a", "b"}


# Cancellation during the commit


async def test_cancelled_during_the_commit_all_have_their_results(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """Leader and members alike: what was taken is stored, and says so (R11)."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    async with commit_under_way(world, watch, storage_kind) as calls:
        await calls.start_all(*(schedule(world.host, f"{n}") for n in range(4)))

        def cancel_all() -> None:
            for call in calls.all:
                call.scope.cancel()

        calls.at_commit(1, lambda: watch.in_loop(cancel_all))
    assert [call.outcome for call in calls.all] == ["value"] * 4
    assert set(stored(world)) == {"0", "1", "2", "3"}
    assert idle(world.host)


async def test_cancelled_during_a_commit_that_fails_all_have_their_errors(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """The failure is their true outcome (R11)."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    async with commit_under_way(world, watch, storage_kind) as calls:
        await calls.start_all(*(schedule(world.host, f"{n}") for n in range(4)))

        def cancel_all_and_fail() -> None:
            for call in calls.all:
                watch.in_loop(call.scope.cancel)
            fail()

        calls.at_commit(1, cancel_all_and_fail)
    check_own_errors(calls.all, *["schedule_alarm"] * 4, cause="SQLITE_FULL")
    assert stored(world) == {}
    assert idle(world.host)


async def test_cancelled_before_the_call_it_does_not_queue(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """In a scope that is cancelled already nothing is stored, alone or beside others (R11)."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)

    async def doomed() -> None:
        scope.cancel()
        await schedule(world.host, "doomed")()

    with trio.CancelScope() as scope:
        await doomed()
    assert scope.cancelled_caught
    async with commit_under_way(world, watch, storage_kind) as calls:
        await calls.start(schedule(world.host, "a"))
        call = await calls.start(schedule(world.host, "b"))
        call.scope.cancel()
        with trio.CancelScope() as scope:
            await doomed()
        assert scope.cancelled_caught
    assert call.outcome == "cancelled"
    assert stored(world) == {"a": "new"}


# Crashes and leaving


@pytest.mark.parametrize("how", ["crash", "close"])
async def test_a_batch_that_waits_as_the_host_goes_has_errors(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str, how: str
) -> None:
    """Nothing hangs, nothing is stored, everybody is told."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    host = world.host
    leave = trio.Event()

    async def hold() -> None:
        async with host.storage.transaction():
            await leave.wait()

    with trio.fail_after(3600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(error_of, hold)
            await trio.testing.wait_all_tasks_blocked()
            calls = Calls(nursery, watch)
            await calls.start_all(
                schedule(host, "a"), ensure(host, "b"), schedule(host, "c"), cancel(host, "d")
            )
            calls.all[2].scope.cancel()
            await getattr(world.harness, how)()
            leave.set()
    outcomes = [call.outcome for call in calls.all]
    assert outcomes == ["error", "error", "cancelled", "error"]
    check_own_errors(
        [calls.all[0], calls.all[1], calls.all[3]],
        *("schedule_alarm", "ensure_alarm", "cancel_alarm"),
    )
    assert stored(world) == {}
    require_unlocked(world.path)
    await world.harness.reopen()
    await schedule(world.host, "after")()
    assert stored(world) == {"after": "new"}


@pytest.mark.parametrize("how", ["crash", "close"])
async def test_a_batch_that_waits_for_a_lock_as_the_host_goes_has_errors(
    autojump_clock: trio.testing.MockClock, open_inline_world: OpenWorld, how: str
) -> None:
    """The same while another process has the lock."""
    world, watch = await open_watched(open_inline_world, autojump_clock, storage=IMPATIENT)
    host = world.host
    with locked(world.path), trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            calls = Calls(nursery, watch)
            await calls.start_all(*(schedule(host, f"{n}") for n in range(3)))
            await trio.sleep(0.1)
            await getattr(world.harness, how)()
    assert [call.outcome for call in calls.all] == ["error"] * 3
    assert len({id(call.error) for call in calls.all}) == 3
    assert stored(world) == {}
    await world.harness.reopen()
    await schedule(world.host, "after")()
    assert stored(world) == {"after": "new"}


async def test_a_second_host_goes_on_when_the_first_is_left(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """Batches of both wait; those of the host that is left fail, the others do not."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind)
    options = world.host._runtime.database.options
    leave = trio.Event()
    with trio.fail_after(3600):
        async with open_host(
            world.path, name="other", driver=False, storage=options, clock=world.host.clock
        ) as other:

            async def hold() -> None:
                async with other.storage.transaction():
                    await leave.wait()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(hold)
                await trio.testing.wait_all_tasks_blocked()
                calls = Calls(nursery, watch)
                mine = await calls.start_all(schedule(world.host, "a1"), schedule(world.host, "a2"))
                others = await calls.start_all(schedule(other, "b1"), schedule(other, "b2"))
                nursery.start_soon(world.harness.crash)
                await trio.testing.wait_all_tasks_blocked()
                leave.set()
            assert [call.outcome for call in mine] == ["error"] * 2
            assert [call.outcome for call in others] == ["value"] * 2
            assert await other.scheduler.get_alarm_status(TAG, "b2") is not None
        assert stored(world) == {}


# The native alarm's own commits


@pytest.mark.parametrize("order", ["set first", "set last"])
async def test_setting_the_native_alarm_is_not_overwritten_as_if_it_had_come_first(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str, order: str
) -> None:
    """Set before the first alarm it is durable for a while; set after it, it is refused (R35)."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind, managed=False)
    host = world.host
    when = host.now() + timedelta(seconds=5)
    durable: list[int | None] = []

    def note() -> None:
        durable.append(world.native_alarm())

    set_alarm = partial(host.native_alarm.set, when)
    alarms = [schedule(host, "a"), schedule(host, "b")]
    operations = [set_alarm, *alarms] if order == "set first" else [*alarms, set_alarm]
    async with commit_under_way(world, watch, storage_kind) as calls:
        calls.at_commit(2, note)
        await calls.start_all(*operations)
    if order == "set first":
        assert [call.outcome for call in calls.all] == ["value"] * 3
        assert [call.commits for call in calls.all] == [1, 2, 2]
        assert durable == [5_000]
    else:
        assert [call.outcome for call in calls.all] == ["value", "value", "error"]
        assert isinstance(calls.all[2].error, NativeAlarmOwnedError)
    await world.step()
    assert world.native_alarm() == 600_000
    assert set(stored(world)) == {"a", "b"}


async def test_each_setting_of_the_native_alarm_has_a_commit_of_its_own(
    mock_clock: trio.testing.MockClock, open_world: OpenWorld, storage_kind: str
) -> None:
    """In the order of the calls, between operations that share theirs (R14, R35)."""
    world, watch = await open_watched(open_world, mock_clock, storage_kind, managed=False)
    host = world.host
    await create_items(host)
    now = host.now()
    async with commit_under_way(world, watch, storage_kind) as calls:
        await calls.start(partial(host.native_alarm.set, now + timedelta(seconds=1)))
        await calls.start(block(host, 1))
        await calls.start(host.native_alarm.delete)
        await calls.start(partial(host.native_alarm.set, now + timedelta(seconds=2)))
    assert [call.commits for call in calls.all] == [1, 2, 3, 4]
    assert [call.outcome for call in calls.all] == ["value"] * 4
    assert world.native_alarm() == 2_000
    assert idle(host)
