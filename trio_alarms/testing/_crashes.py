"""`explore_crashes`: lose the process at every commit of a scenario, and look what is left."""

from __future__ import annotations

import shutil
import tempfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs
import trio

from .._arguments import describe
from .._errors import InvalidScheduleConfigurationError, StorageOperationError
from .._store._seam import seam_in_force
from ._harness import EPOCH, AlarmHarness, open_test_host

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Points: TypeAlias = Literal["commits", "checkpoints"]
PointKind: TypeAlias = Literal["before commit", "after commit", "checkpoint"]


@attrs.frozen
class CrashPoint:
    """One place at which the process was lost.

    `number` counts all points of a run from 1, and is what `only` takes; `nth` counts those of
    this kind.
    """

    number: int
    kind: PointKind
    nth: int

    def __str__(self) -> str:
        place = "at" if self.kind == "checkpoint" else self.kind.split()[0]
        what = "checkpoint" if self.kind == "checkpoint" else "commit"
        return f"crash point {self.number}, {place} {what} {self.nth}"


@attrs.frozen
class CrashReport:
    """What `explore_crashes` has tried: every point, after each of which the invariant held."""

    points: tuple[CrashPoint, ...]


class CrashExplorationError(AssertionError):
    """The invariant did not hold after a crash; its failure is `__cause__`.

    `point` is where the process was lost (`None`: it was not) and `database` the file that was
    left, with the directory it lies in.
    """

    def __init__(self, message: str, *, point: CrashPoint | None, database: Path) -> None:
        super().__init__(message)
        self.point = point
        self.database = database


class _ProcessLostError(StorageOperationError):
    """The process of this run was lost on purpose."""


class _CrashSeam:
    """Counts the points of one run, and loses the process at one of them."""

    def __init__(self, points: Points, crash_at: int | None) -> None:
        self._checkpoints = points == "checkpoints"
        self._crash_at = crash_at
        self.passed: list[CrashPoint] = []
        self.lost_at: CrashPoint | None = None
        self.on_loss: Callable[[], None] | None = None

    def before_trip(self, operation: str) -> None:
        # A lost process lets go of its transaction; that writes nothing.
        if self.lost_at is not None and operation != "rollback":
            raise _lost(operation)
        if self._checkpoints and operation != "rollback":
            self._pass("checkpoint", operation)

    def before_commit(self) -> None:
        self._pass("before commit", "commit")

    def after_commit(self) -> None:
        self._pass("after commit", "commit")

    def _pass(self, kind: PointKind, operation: str) -> None:
        if self.lost_at is not None:
            return
        nth = 1 + sum(point.kind == kind for point in self.passed)
        point = CrashPoint(len(self.passed) + 1, kind, nth)
        self.passed.append(point)
        if point.number == self._crash_at:
            self.lost_at = point
            if self.on_loss is not None:
                self.on_loss()
            raise _lost(operation)


def _lost(operation: str) -> _ProcessLostError:
    return _ProcessLostError(f"{operation}: the process was lost on purpose", operation=operation)


async def explore_crashes(
    scenario: Callable[[AlarmHarness], Awaitable[object]],
    *,
    invariant: Callable[[AlarmHarness], Awaitable[object]],
    points: Points = "commits",
    only: int | None = None,
    **options: Any,
) -> CrashReport:
    """Run a scenario again and again, each time losing the process at another point.

    After each crash the host is reopened and settled, and then `invariant(harness)` is awaited,
    which asserts what must hold whatever happened; once also without a crash. Opening, and so the
    migration of a new file, is part of each run. Each run starts at the same virtual time, on a
    new file, with inline storage.

    A scenario whose tasks run side by side may reach its points in another order each time; then
    `only` replays a number, not exactly the same moment.

    Nothing is left behind but the file of a failure. Cancellation ends it.

    Args:
        scenario: An async function of an `AlarmHarness`. What it raises without a crash leaves
            as it is.
        invariant: An async function of an `AlarmHarness`.
        points: `"commits"`: before and after each commit of the library; `"checkpoints"`: also
            whenever the library is about to use its storage.
        only: Try this point alone, by its number.
        **options: The options of `open_test_host`.

    Returns:
        The points that were tried.

    Raises:
        CrashExplorationError: The invariant, or reopening or settling, failed after a crash.
        InvalidScheduleConfigurationError: A bad argument, or the clock is not a `MockClock`.
    """
    if points not in ("commits", "checkpoints"):
        raise InvalidScheduleConfigurationError(
            f"points must be 'commits' or 'checkpoints', not {describe(points)}"
        )
    run = _Exploration(scenario, invariant, points, options)
    reached = await run.once(None)
    if only is not None:
        await run.once(only)
        return CrashReport(tuple(point for point in reached if point.number == only))
    for point in reached:
        await run.once(point.number)
    return CrashReport(tuple(reached))


class _Exploration:
    def __init__(
        self,
        scenario: Callable[[AlarmHarness], Awaitable[object]],
        invariant: Callable[[AlarmHarness], Awaitable[object]],
        points: Points,
        options: dict[str, Any],
    ) -> None:
        self._scenario = scenario
        self._invariant = invariant
        self._points: Points = points
        self._options = dict(options)
        self._epoch: datetime = self._options.pop("epoch", EPOCH)
        self._began = trio.current_time()

    async def once(self, crash_at: int | None) -> list[CrashPoint]:
        """One run; the points that it passed."""
        seam = _CrashSeam(self._points, crash_at)
        directory = Path(tempfile.mkdtemp(prefix="trio_alarms-crash-"))
        database = directory / "alarms.db"
        with seam_in_force(seam):
            await self._run_scenario(seam, database)
        if crash_at is not None and seam.lost_at is None:
            shutil.rmtree(directory)
            return seam.passed
        try:
            async with open_test_host(database, epoch=self._start(), **self._options) as harness:
                await harness.settle()
                await self._invariant(harness)
        except Exception as error:
            where = "without a crash" if seam.lost_at is None else f"after {seam.lost_at}"
            replay = "" if seam.lost_at is None else f"; replay with only={seam.lost_at.number}"
            raise CrashExplorationError(
                f"the invariant failed {where}: {type(error).__name__}: {error}{replay}; the"
                f" database is {database}",
                point=seam.lost_at,
                database=database,
            ) from error
        shutil.rmtree(directory)
        return seam.passed

    async def _run_scenario(self, seam: _CrashSeam, database: Path) -> None:  # noqa: ASYNC910 - opening a host is one
        try:
            with trio.CancelScope() as scope:
                async with open_test_host(
                    database, epoch=self._start(), **self._options
                ) as harness:
                    seam.on_loss = lambda: _lose(harness, scope)
                    await self._scenario(harness)
        except Exception:
            # What a scenario raises as its process is lost is no failure of its own. Outside of
            # the scope, which takes its cancellation out of what tasks side by side raise.
            if seam.lost_at is None:
                raise

    def _start(self) -> datetime:
        """The epoch with which this run starts at the same time as the first one did."""
        return self._epoch - timedelta(seconds=trio.current_time() - self._began)


def _lose(harness: AlarmHarness, scope: trio.CancelScope) -> None:
    harness.host._runtime.lose()  # noqa: SLF001 - the explorer belongs to the library
    scope.cancel()
