"""The storage's threads are its own: the application may use up all of Trio's."""

from __future__ import annotations

from pathlib import Path

import trio
import trio.testing

from trio_alarms import StorageOptions, open_host


async def test_a_function_runs_though_the_application_has_used_up_its_threads(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """Threads that wait for `run_sync` through `from_thread` do not keep it from running (R10)."""
    # Where it does not run, the test goes on after ten real seconds.
    mock_clock.autojump_threshold = 10
    storage = StorageOptions(executor="thread", synchronous="off")
    async with open_host(tmp_path / "alarms.db", driver=False, storage=storage) as host:

        async def use() -> list[tuple[int]]:
            with trio.fail_after(60):
                async with host.storage.transaction() as tx:
                    await host.scheduler.schedule_alarm("send", "a", after=60)
                    return await tx.run_sync(lambda raw: raw.execute("SELECT 1").fetchall())

        def from_a_thread() -> list[tuple[int]]:
            return trio.from_thread.run(use)

        limiter = trio.to_thread.current_default_thread_limiter()
        limiter.total_tokens = 1
        found = await trio.to_thread.run_sync(from_a_thread)
        assert found == [(1,)]
        assert await host.scheduler.get_alarm_status("send", "a") is not None
