"""The pytest plugin: the fixtures `alarm_harness` and `alarm_clock`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

if TYPE_CHECKING:
    from trio_alarms import TrioClock
    from trio_alarms.testing import AlarmHarness

OpenHarness: TypeAlias = "Callable[..., Awaitable[AlarmHarness]]"

_INSTALL = (
    "the fixture {} needs pytest-trio: install trio_alarms[testing], and make the test async with"
    " its mock_clock or autojump_clock fixture"
)

try:
    import pytest_trio
except ImportError:

    @pytest.fixture
    def alarm_harness() -> None:
        """A fixture that says what to install."""
        raise pytest.UsageError(_INSTALL.format("alarm_harness"))

    @pytest.fixture
    def alarm_clock() -> None:
        """A fixture that says what to install."""
        raise pytest.UsageError(_INSTALL.format("alarm_clock"))

else:

    @pytest_trio.trio_fixture
    async def alarm_harness() -> AsyncIterator[OpenHarness]:
        """`harness = await alarm_harness(**open_test_host_options)`.

        As many as wanted; all of them are closed at the end of the test. The test also needs
        pytest-trio's `mock_clock` or `autojump_clock`.
        """
        # Imported late, so that coverage and other plugins see the package being imported.
        import trio

        from trio_alarms._nursery import BodyNursery

        async with BodyNursery(unwrap=True) as nursery:
            leave = trio.Event()

            async def open_harness(database: Any = None, **options: Any) -> AlarmHarness:
                if database is not None:
                    options["database"] = database
                # In a task of its own: the test's task and the fixture's are not the same, and a
                # nursery must be left by the task that opened it.
                harness: AlarmHarness = await nursery.start(_hold_open, options, leave)
                return harness

            yield open_harness
            leave.set()

    async def _hold_open(options: dict[str, Any], leave: Any, *, task_status: Any) -> None:
        from trio_alarms.testing import open_test_host

        async with open_test_host(**options) as harness:
            task_status.started(harness)
            await leave.wait()

    @pytest.fixture
    def alarm_clock() -> Callable[..., TrioClock]:
        """`alarm_clock(epoch=…)` makes a `TrioClock` on the test's `MockClock`."""
        from trio_alarms import TrioClock

        return TrioClock
