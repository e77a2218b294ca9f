"""The storage fails at every statement of a delivery: nothing is lost, nothing runs twice (R53)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import trio.testing

from tests.behaviour.services import serving
from tests.behaviour.storage_tools import error_of
from tests.faults.injection import APPLICATION_INSERT as INSERT
from tests.faults.injection import (
    MANNERS,
    Fault,
    Injector,
    look,
    require_idle,
    require_storage_errors,
    require_unlocked,
    storage_options,
)
from trio_alarms import AlarmDue, AlarmFailure, DispatchOptions
from trio_alarms.testing import AlarmHarness, open_test_host

# One of each of what a single failure can do to a transaction.
FEW: list[Any] = [
    partial(Fault, "busy", "refused"),
    partial(Fault, "full", "rolled back"),
    partial(Fault, "I/O error", "landed"),
]


class Scenario:
    """Alarms that are due, with handlers that do as the scenario's name says."""

    def __init__(self, how: str, path: Path) -> None:
        self.how = how
        self.path = path
        # The ids whose handlers began, and those whose handlers did all that they are to do.
        self.began: list[str] = []
        self.ended: list[str] = []
        self.registration = serving(
            {"ring": self._handle},
            manual={"sweep": self._handle},
            options=DispatchOptions(on_failure=self._skip if how == "is skipped" else None),
        )
        self.ids = ["1"] if how == "manual" else ["1", "2"]
        self.tag = "sweep" if how == "manual" else "ring"
        self.harness: AlarmHarness

    async def _handle(self, event: AlarmDue[Any]) -> None:
        self.began.append(event.id)
        scheduler = event.host.scheduler
        if self.how == "acknowledges itself":
            async with scheduler.transaction() as tx:
                await tx.execute(INSERT, (int(event.id),))
                assert await tx.acknowledge(event)
        elif self.how == "schedules itself":
            await scheduler.schedule_alarm("ring", event.id, after=1000)
        elif self.how == "cancels itself":
            await scheduler.cancel_alarm("ring", event.id)
        elif self.how == "schedules another":
            await scheduler.ensure_alarm("other", event.id, after=5000)
        self.ended.append(event.id)
        if self.how in {"fails", "is skipped"}:
            raise ValueError

    async def _skip(self, _: AlarmFailure) -> Any:
        return "skip-and-advance-repeat"

    async def put_back(self) -> None:
        """The alarms are due, and nothing else is there."""
        async with self.harness.host.scheduler.transaction() as tx:
            await tx.execute("DELETE FROM items WHERE true")
            for id in self.ids:
                await tx.cancel_alarm("other", id)
                await tx.cancel_alarm(self.tag, id)
                await tx.schedule_alarm(
                    self.tag,
                    id,
                    after=0,
                    lifecycle="manual" if self.how == "manual" else "automatic",
                    repeat_every=90 if self.how == "repeats" else None,
                )
        self.began.clear()
        self.ended.clear()

    def rows(self) -> dict[str, tuple[int, int, int]]:
        """Of each alarm: its deadline in ms from now, its attempts and its wake in ms from now."""
        now = self.harness.host.clock.now_ms()
        (found,) = look(
            self.path,
            "SELECT id, run_at, attempts, wake_at FROM trio_alarms_alarms WHERE tag <> 'other'",
        )
        return {
            id: (run_at - now, attempts, wake_at - now) for id, run_at, attempts, wake_at in found
        }

    def check_at_once(self) -> None:
        """What a delivery that the storage failed in may leave."""
        rows = self.rows()
        items, native, (every,) = look(
            self.path,
            "SELECT id FROM items ORDER BY id",
            "SELECT native_alarm FROM trio_alarms_hosts WHERE name = 'default'",
            "SELECT min(wake_at), count(*) FROM trio_alarms_alarms",
        )
        for id in self.ids:
            if id not in rows:
                # Gone only where it was handled.
                assert id in self.ended
                assert self.how not in {"fails", "repeats", "schedules itself", "manual"}
            else:
                run_at, attempts, _ = rows[id]
                assert attempts <= self.began.count(id)
                assert run_at <= 0 or self.how in {"repeats", "schedules itself", "manual"}
        if self.how == "acknowledges itself":
            assert [str(id) for (id,) in items] == [id for id in self.ids if id not in rows]
        # Whatever is left is woken: by its deadline, or before that by a guard.
        if every[1]:
            assert native[0][0] is not None
            assert native[0][0] <= max(every[0], self.harness.host.clock.now_ms() + 1_000)

    def check_in_the_end(self) -> None:
        """What all of it comes to, once the storage works again."""
        rows = self.rows()
        if self.how == "manual":
            assert rows["1"][0] > 3_000_000
            assert self.ended
        elif self.how == "fails":
            for id in self.ids:
                assert 1 <= rows[id][1] <= self.began.count(id)
        else:
            # What has returned never runs again in this process.
            assert sorted(self.ended) == self.ids
            if self.how == "repeats":
                assert all(60_000 < rows[id][0] <= 90_000 for id in self.ids)
            elif self.how == "schedules itself":
                assert all(900_000 < rows[id][0] <= 1_000_000 for id in self.ids)
            else:
                assert rows == {}
        if self.how == "acknowledges itself":
            assert look(self.path, "SELECT id FROM items ORDER BY id") == [[(1,), (2,)]]
        (due,) = look(self.path, "SELECT min(wake_at) FROM trio_alarms_alarms")
        (native,) = look(
            self.path, "SELECT native_alarm FROM trio_alarms_hosts WHERE name = 'default'"
        )
        assert native == due


HOWS = [
    "returns",
    "acknowledges itself",
    "schedules itself",
    "cancels itself",
    "schedules another",
    "repeats",
    "fails",
    "is skipped",
    "manual",
]


async def deliver(scenario: Scenario) -> None:
    """A delivery of the native alarm."""
    await scenario.harness.host.deliver_native_alarm()


async def process(scenario: Scenario) -> None:
    """A direct dispatch with one handler."""
    await scenario.harness.host.scheduler.process_due_alarms(scenario._handle)


async def run(scenario: Scenario) -> None:
    """A direct run of the registration."""
    await scenario.registration.run(scenario.harness.host)


async def check_every_statement(
    scenario: Scenario,
    injector: Injector,
    dispatch: Callable[[Scenario], Awaitable[None]],
    fault: Callable[..., Fault],
) -> int:
    """Have each statement of a dispatch fail in turn; the number of those it has."""
    host = scenario.harness.host
    at = 1
    while True:
        await scenario.put_back()
        with injector.inject(fault(at=at)) as injected:
            error = await error_of(partial(dispatch, scenario))
        require_unlocked(scenario.path)
        require_idle(host)
        require_storage_errors(error, injected)
        scenario.check_at_once()
        await scenario.harness.advance(5)
        scenario.check_in_the_end()
        # The next dispatch of all forgets what was remembered and has been settled otherwise.
        await host.deliver_native_alarm(force=True)
        assert not host._runtime.dispatch_state.unacknowledged
        assert not host._runtime.writer.in_hand
        require_idle(host)
        if not injected.struck:
            assert error is None
            return at - 1
        at += 1
        assert at < 1_000, "no dispatch has so many statements: the fault does not move on"


async def check_all_faults(
    scenario: Scenario,
    injector: Injector,
    dispatch: Callable[[Scenario], Awaitable[None]],
    faults: list[Callable[..., Fault]],
    executor: Any = "inline",
) -> None:
    """Sweep one scenario with each of the faults."""
    path = scenario.path
    async with open_test_host(
        path, alarms=scenario.registration, storage=storage_options(executor)
    ) as harness:
        scenario.harness = harness
        async with harness.host.storage.transaction() as tx:
            await tx.execute("CREATE TABLE items (id INTEGER PRIMARY KEY)")
        for fault in faults:
            assert await check_every_statement(scenario, injector, dispatch, fault) > 10


@pytest.mark.parametrize("how", HOWS)
async def test_a_delivery_whose_storage_fails_loses_and_repeats_nothing(
    autojump_clock: object, tmp_path: Path, injector: Injector, how: str
) -> None:
    """Whichever statement fails: what was handled is not run again, the rest is (R51, R53)."""
    faults = FEW if how == "acknowledges itself" else FEW[1:2]
    await check_all_faults(Scenario(how, tmp_path / "alarms.db"), injector, deliver, faults)


@pytest.mark.parametrize("dispatch", [process, run])
async def test_a_direct_dispatch_whose_storage_fails_loses_and_repeats_nothing(
    autojump_clock: object,
    tmp_path: Path,
    injector: Injector,
    dispatch: Callable[[Scenario], Awaitable[None]],
) -> None:
    """A dispatch outside of a pass remembers what it handled as well (R25, R53)."""
    scenario = Scenario("returns", tmp_path / "alarms.db")
    await check_all_faults(scenario, injector, dispatch, FEW[1:2])


@pytest.mark.trust
@pytest.mark.parametrize(
    ("executor", "lasting"), list(product(["inline", "thread"], [False, True]))
)
@pytest.mark.parametrize("how", HOWS)
async def test_a_delivery_whose_storage_keeps_failing_loses_and_repeats_nothing(
    mock_clock: trio.testing.MockClock,
    tmp_path: Path,
    injector: Injector,
    how: str,
    executor: str,
    *,
    lasting: bool,
) -> None:
    """As above, in both places where SQLite runs, and when nothing works from then on (R53)."""
    if executor == "inline":
        mock_clock.autojump_threshold = 0
    faults: list[Any] = [
        partial(Fault, kind, manner, lasting=lasting)
        for kind, manner in MANNERS
        if manner == "refused" or not lasting
    ]
    await check_all_faults(
        Scenario(how, tmp_path / "alarms.db"), injector, deliver, faults, executor
    )
