"""What is durable is on the disk and not only in the page cache, which outlives a kill (R60)."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest

from tests.crash.system_calls import Call, traced
from trio_alarms import StorageOperationError, StorageOptions, open_host

LEVELS = {"full": 2, "normal": 1, "off": 0}
# Values with which an application might write a pragma, those that would do harm among them.
VALUES = ["0", "1", "off", "normal", "full", "delete", "memory", "exclusive", "truncate"]
# They limit the memory of the whole process, which here is pytest.
PROCESS_WIDE = {"hard_heap_limit", "soft_heap_limit"}


def every_pragma() -> list[str]:
    """What this SQLite knows."""
    with closing(sqlite3.connect(":memory:")) as connection:
        names = [name for (name,) in connection.execute("PRAGMA pragma_list")]
    assert {"synchronous", "journal_mode", "wal_checkpoint"} <= set(names)
    return [name for name in names if name not in PROCESS_WIDE]


def spellings(pragma: str) -> list[str]:
    """Statements that write a pragma, or might."""
    return [
        *(f"PRAGMA {pragma} = {value}" for value in VALUES),
        f"pragma main.{pragma}(0)",
        f"/* ; */ PrAgMa\n\"{pragma}\" = 'off' -- ;",
        f"SELECT * FROM pragma_{pragma}('0')",
        f"EXPLAIN PRAGMA {pragma} = off",
    ]


@pytest.mark.parametrize("found", ["no file", "delete", "truncate", "persist", "wal"])
@pytest.mark.parametrize("synchronous", LEVELS)
@pytest.mark.parametrize("executor", ["inline", "thread"])
async def test_opening_switches_to_wal_and_the_level_asked_for(
    tmp_path: Path,
    found: str,
    synchronous: Literal["full", "normal", "off"],
    executor: Literal["inline", "thread"],
) -> None:
    """Whatever mode a file was in, the writer is in WAL mode at the level asked for (R60)."""
    path = tmp_path / "alarms.db"
    if found != "no file":
        with closing(sqlite3.connect(path)) as other:
            other.execute(f"PRAGMA journal_mode = {found}")
            other.execute("PRAGMA synchronous = off")
            other.execute("CREATE TABLE app (x)")
    options = StorageOptions(synchronous=synchronous, executor=executor)
    for _ in range(2):  # and once more when the file is ours
        async with open_host(path, storage=options) as host, host.storage.transaction() as tx:
            assert await tx.execute("PRAGMA synchronous") == [(LEVELS[synchronous],)]
            assert await tx.execute("PRAGMA journal_mode") == [("wal",)]


async def test_the_default_is_full(tmp_path: Path) -> None:
    """Whoever asks for nothing gets `synchronous=full` (R60)."""
    async with open_host(tmp_path / "alarms.db") as host, host.storage.transaction() as tx:
        assert await tx.execute("PRAGMA synchronous") == [(2,)]


@pytest.mark.parametrize("pragma", every_pragma())
async def test_no_pragma_of_the_application_takes_durability_away(
    tmp_path: Path, mock_clock: object, pragma: str
) -> None:
    """However a pragma is written, each is refused or leaves `synchronous=2` and WAL (R10, R60)."""
    path = tmp_path / "alarms.db"
    async with open_host(path, storage=StorageOptions(executor="inline")) as host:
        for statement in spellings(pragma):
            try:
                async with host.storage.transaction() as tx:
                    await tx.execute(statement)
            except StorageOperationError:
                pass
            try:
                async with host.storage.transaction() as tx:
                    await tx.run_sync(lambda raw, sql=statement: raw.execute(sql).fetchall())
            except (StorageOperationError, sqlite3.Error):
                pass
            try:
                await host.storage.query(statement)
            except StorageOperationError:
                pass
            async with host.storage.transaction() as tx:
                assert await tx.execute("PRAGMA synchronous") == [(2,)], statement
                assert await tx.execute("PRAGMA journal_mode") == [("wal",)], statement
                assert await tx.execute("PRAGMA locking_mode") == [("normal",)], statement
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def unsynced(calls: Sequence[Call], marks: str, wal: str) -> tuple[list[str], list[str]]:
    """The names of all marked commits, and of those that returned before the log was synced."""
    written: dict[str, bool] = {}  # the open ones, and whether they wrote to the log
    pending = False  # whether the log has writes that no sync followed
    ended, missed = [], []
    for call in calls:
        if call.path == wal:
            pending = call.kind == "write"
            if pending:
                written = dict.fromkeys(written, True)
        elif call.path == marks and call.kind == "write":
            verb, name = call.text.split('"')[1].removesuffix("\\n").split(" ", 1)
            if verb == "begin":
                written[name] = False
            else:
                ended.append(name)
                if not written.pop(name) or pending:
                    missed.append(name)
    return ended, missed


@pytest.mark.skipif(sys.platform != "linux", reason="strace is a tool of Linux")
class TestSyncs:
    """Counted from outside the process."""

    def test_every_commit_is_synced_before_it_returns(self, tmp_path: Path) -> None:
        """Between the last write to the log and each return lies an fdatasync of it (R60)."""
        ended, missed = self._commits(tmp_path, "full")
        assert missed == []
        assert len(ended) == len(set(ended)) >= 25

    def test_the_directory_entries_of_a_new_database_are_synced(self, tmp_path: Path) -> None:
        """A database that we created is there after a power cut: its directory is synced (R60)."""
        calls = self._calls(tmp_path, "full")
        first_mark = next(i for i, call in enumerate(calls) if call.text.startswith(', "end'))
        synced = {call.path for call in calls[:first_mark] if call.kind == "sync"}
        assert str(tmp_path) in synced

    def test_a_weaker_level_syncs_no_commit(self, tmp_path: Path) -> None:
        """`synchronous="normal"` is what it says, and the count above counts (R60)."""
        ended, missed = self._commits(tmp_path, "normal")
        assert missed == ended

    def _calls(self, directory: Path, synchronous: str) -> list[Call]:
        return traced(
            "tests.crash.committing",
            str(directory / "alarms.db"),
            str(directory / "marks"),
            synchronous,
            output=directory / "trace",
        )

    def _commits(self, directory: Path, synchronous: str) -> tuple[list[str], list[str]]:
        calls = self._calls(directory, synchronous)
        return unsynced(calls, str(directory / "marks"), str(directory / "alarms.db-wal"))
