"""A host in a test, over every kind of storage, and a look at its rows past the library."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import pytest
import trio

from trio_alarms import StorageOptions
from trio_alarms._runtime import HostRuntime

if TYPE_CHECKING:
    from trio_alarms import AlarmHost
    from trio_alarms.testing import AlarmHarness


@attrs.frozen
class StoredRow:
    """An alarm as any SQLite tool shows it; instants in ms since the harness's epoch."""

    tag: str
    id: str
    lifecycle: str
    run_at: int
    wake_at: int
    retry_at: int | None
    repeat_every: int | None
    progress: int
    attempts: int
    parked: int
    revision: bytes
    payload: str


class World:
    """A harness, its database file, and what `step` means for this kind of storage."""

    def __init__(self, harness: AlarmHarness, path: Path, *, reopens: bool) -> None:
        self.harness = harness
        self.path = path
        self._reopens = reopens
        self.epoch_ms = harness.host.clock.now_ms()

    @property
    def host(self) -> AlarmHost:
        """The host as it is now."""
        return self.harness.host

    async def step(self) -> None:
        """Between two steps of a test: lose the process and reopen, where that is the storage."""
        if self._reopens:
            await self.harness.crash()
            await self.harness.reopen()

    def now(self) -> int:
        """The time in ms since the epoch of the harness."""
        return self.host.clock.now_ms() - self.epoch_ms

    def rows(self) -> list[StoredRow]:
        """The stored alarms in dispatch order."""
        found = self.sql(
            "SELECT tag, id, lifecycle, run_at, wake_at, retry_at, repeat_every, progress,"
            " attempts, parked, revision, payload FROM trio_alarms_alarms WHERE host = ?"
            " ORDER BY wake_at, tag, id",
            self.host.name,
        )
        return [
            StoredRow(
                *row[:3],
                run_at=row[3] - self.epoch_ms,
                wake_at=row[4] - self.epoch_ms,
                retry_at=None if row[5] is None else row[5] - self.epoch_ms,
                repeat_every=row[6],
                progress=row[7],
                attempts=row[8],
                parked=row[9],
                revision=row[10],
                payload=row[11],
            )
            for row in found
        ]

    def row(self, tag: str, id: str) -> StoredRow | None:
        """One stored alarm."""
        return next((row for row in self.rows() if (row.tag, row.id) == (tag, id)), None)

    def native_alarm(self) -> int | None:
        """The stored native alarm in ms since the epoch of the harness."""
        found = self.sql(
            "SELECT native_alarm FROM trio_alarms_hosts WHERE name = ?", self.host.name
        )
        stored = found[0][0] if found else None
        return None if stored is None else stored - self.epoch_ms

    def sql(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run a statement on a connection of the test's own, committed at once."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(statement, parameters).fetchall()


class SpinningError(BaseException):
    """A driver has read its native alarm so often that virtual time would never pass."""


@pytest.fixture
def native_reads(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When drivers and deliveries read the native alarm; a driver that spins is stopped.

    Under a `MockClock` a driver that spins would hang the test instead of failing it.
    """
    times: list[float] = []
    read = HostRuntime.read_state

    async def noted(self: HostRuntime) -> int | None:
        times.append(trio.current_time())
        if len(times) > 20_000:
            raise SpinningError
        return await read(self)

    monkeypatch.setattr(HostRuntime, "read_state", noted)
    return times


OpenWorld: TypeAlias = "Callable[..., Awaitable[World]]"


@pytest.fixture(params=["inline", "thread", "reopened"])
def storage_kind(request: pytest.FixtureRequest) -> str:
    """The kinds of storage that every rule is tested over."""
    return str(request.param)


@pytest.fixture
def open_world(
    storage_kind: str,
    alarm_harness: Callable[..., Awaitable[AlarmHarness]],
    tmp_path: Path,
) -> OpenWorld:
    """Give a factory of worlds, which takes the options of `open_test_host`.

    The test itself has to name `mock_clock` or `autojump_clock`: pytest-trio looks no further.
    """

    async def open_one(**options: Any) -> World:
        path = tmp_path / "alarms.db"
        executor: Any = "thread" if storage_kind == "thread" else "inline"
        options.setdefault("storage", StorageOptions(executor=executor, synchronous="off"))
        harness = await alarm_harness(database=path, **options)
        return World(harness, path, reopens=storage_kind == "reopened")

    return open_one


@pytest.fixture
def open_inline_world(
    alarm_harness: Callable[..., Awaitable[AlarmHarness]], tmp_path: Path
) -> OpenWorld:
    """As `open_world`, inline only: for rules that do not depend on the storage."""

    async def open_one(**options: Any) -> World:
        path = tmp_path / "alarms.db"
        return World(await alarm_harness(database=path, **options), path, reopens=False)

    return open_one
