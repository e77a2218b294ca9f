"""`explore_crashes`: lose the process at every commit of a scenario, and look what is left."""

from __future__ import annotations

import random
import shutil
import tempfile
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import attrs
import trio
from trio._core import _run as trio_run

from .._arguments import describe, is_plainly_synchronous, require_integer
from .._clock import TrioClock
from .._errors import InvalidScheduleConfigurationError, StorageOperationError
from .._store._seam import current_seam, seam_in_force
from ._harness import EPOCH, AlarmHarness, open_test_host

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

Points: TypeAlias = Literal["commits", "checkpoints"]
PointKind: TypeAlias = Literal["before commit", "after commit", "checkpoint"]

_FIRST_THROW: Final = random.Random(0).getstate()  # noqa: S311 - the order of tasks is not secret


@attrs.frozen
class CrashPoint:
    """One place at which the process was lost.

    `number` counts all points of a run from 1, and is what `only` takes; `nth` counts those of
    this kind. `operation` is what the library was about, such as `schedule_alarm`; of a transaction
    all that was called in it, and of operations that share a commit one.
    """

    number: int
    kind: PointKind
    nth: int
    operation: str

    def __str__(self) -> str:
        place = "at" if self.kind == "checkpoint" else self.kind.split()[0]
        what = "checkpoint" if self.kind == "checkpoint" else "commit"
        return f"crash point {self.number}, {place} {what} {self.nth} ({self.operation})"


@attrs.frozen
class CrashReport:
    """What `explore_crashes` has tried: the points after each of which the invariant held."""

    points: tuple[CrashPoint, ...]


class CrashExplorationError(AssertionError):
    """The invariant did not hold after a crash; its failure is `__cause__`.

    Or the scenario is not the same each time, and did not reach a point again. `point` is where
    the process was lost, or should have been (`None`: in the run without a crash), and `database`
    the file that was left, with the directory it lies in.
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
        self._operation = ""
        self._called: dict[str, None] = {}
        self.passed: list[CrashPoint] = []
        self.lost_at: CrashPoint | None = None
        self.on_loss: Callable[[], None] | None = None

    def before_trip(self, operation: str) -> None:
        # A lost process lets go of its transaction; that writes nothing.
        if operation == "rollback":
            self._called.clear()
            return
        if self.lost_at is not None:
            raise _lost(operation)
        self._operation = operation
        if operation == "transaction" or self._called:
            self._called[operation] = None
            # The commit of a block says little; what was called in it says which it is.
            if operation == "commit":
                self._operation = ", ".join(self._called)
        if self._checkpoints:
            self._pass("checkpoint")

    def before_commit(self) -> None:
        self._pass("before commit")

    def after_commit(self) -> None:
        self._called.clear()
        self._pass("after commit")

    def _pass(self, kind: PointKind) -> None:
        if self.lost_at is not None:
            return
        nth = 1 + sum(point.kind == kind for point in self.passed)
        point = CrashPoint(len(self.passed) + 1, kind, nth, self._operation)
        self.passed.append(point)
        if point.number == self._crash_at:
            self.lost_at = point
            if self.on_loss is not None:
                self.on_loss()
            raise _lost(self._operation)


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

    A scenario has to do the same each time, or the exploration fails. Tasks that run side by side
    take their turns in one order in all runs and replays; with storage in threads they need not.

    It finds what a crash does to this one order: neither what two tasks do to each other in
    another, nor what a second crash does to the recovery.

    Nothing is left behind but the file of a failure that is raised. Cancellation ends it.

    Args:
        scenario: An async function of an `AlarmHarness`. What it raises without a crash leaves
            as it is.
        invariant: An async function of an `AlarmHarness`. Whatever it raises is its failure, but
            for a cancellation or an interruption.
        points: `"commits"`: before and after each commit of the library; `"checkpoints"`: also
            whenever the library is about to use its storage.
        only: Try this point alone, by its number.
        **options: The options of `open_test_host` but `database`.

    Returns:
        The points that were tried.

    Raises:
        CrashExplorationError: The invariant, or reopening or settling, failed after a crash; or
            the scenario is not the same each time.
        InvalidScheduleConfigurationError: A bad argument, there is no point `only`, or the clock
            is not a `MockClock`.
    """
    if points not in ("commits", "checkpoints"):
        raise InvalidScheduleConfigurationError(
            f"points must be 'commits' or 'checkpoints', not {describe(points)}"
        )
    if only is not None:
        only = require_integer(
            only, parameter="only", error=InvalidScheduleConfigurationError, minimum=1
        )
    for parameter, function in (("scenario", scenario), ("invariant", invariant)):
        if is_plainly_synchronous(function):
            raise InvalidScheduleConfigurationError(
                f"{parameter} must be an async function, not {describe(function)}"
            )
    if "database" in options:
        raise InvalidScheduleConfigurationError(
            "database cannot be given: each run has a file of its own"
        )
    if current_seam() is not None:
        raise InvalidScheduleConfigurationError(
            "explore_crashes cannot be called by a scenario: its own hosts would be lost as well"
        )
    with _restored_order():
        run = _Exploration(scenario, invariant, points, options)
        reached = await run.without_crash()
        if only is not None and only > len(reached):
            raise InvalidScheduleConfigurationError(
                f"only must be at most {len(reached)}, the number of the scenario's last point, not"
                f" {only}"
            )
        to_try = reached if only is None else [reached[only - 1]]
        return CrashReport(tuple([await run.crashing_at(point) for point in to_try]))


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
        self._epoch = TrioClock(self._options.pop("epoch", EPOCH)).epoch
        self._began = trio.current_time()

    async def without_crash(self) -> list[CrashPoint]:
        """A run to the end; the points that it passed."""
        seam = _CrashSeam(self._points, None)
        with _database_of_a_run() as database:
            await self._run_scenario(seam, database)
            await self._check(None, database)
        return seam.passed

    async def crashing_at(self, point: CrashPoint) -> CrashPoint:
        """A run that loses its process at the point of this number; which that was."""
        seam = _CrashSeam(self._points, point.number)
        with _database_of_a_run() as database:
            await self._run_scenario(seam, database)
            if seam.lost_at is None:
                raise _failure(
                    f"{point}, was not reached in a run of {len(seam.passed)} points: the scenario"
                    " is not the same each time",
                    point,
                    database,
                )
            await self._check(seam.lost_at, database)
        return seam.lost_at

    async def _run_scenario(self, seam: _CrashSeam, database: Path) -> None:  # noqa: ASYNC910 - opening a host is one
        _begin_order()
        try:
            with seam_in_force(seam), trio.CancelScope() as scope:
                async with open_test_host(
                    database, epoch=self._start(), **self._options
                ) as harness:
                    seam.on_loss = lambda: _lose(harness, scope)
                    await self._scenario(harness)
        except BaseException as error:
            # What a scenario raises as its process is lost is no failure of its own. Outside of
            # the scope, which takes its cancellation out of what tasks side by side raise.
            if seam.lost_at is None or _interrupts(error):
                raise

    async def _check(self, lost_at: CrashPoint | None, database: Path) -> None:
        try:
            async with open_test_host(database, epoch=self._start(), **self._options) as harness:
                await harness.settle()
                await self._invariant(harness)
        except BaseException as error:
            # The failures of pytest are no `Exception`.
            if _interrupts(error):
                raise
            where = "without a crash" if lost_at is None else f"after {lost_at}"
            raise _failure(
                f"the invariant failed {where}: {type(error).__name__}: {error}", lost_at, database
            ) from error

    def _start(self) -> datetime:
        """The epoch with which this run starts at the same time as the first one did."""
        return self._epoch - timedelta(seconds=trio.current_time() - self._began)


def _lose(harness: AlarmHarness, scope: trio.CancelScope) -> None:
    harness.host._runtime.lose()  # noqa: SLF001 - the explorer belongs to the library
    scope.cancel()


def _failure(message: str, point: CrashPoint | None, database: Path) -> CrashExplorationError:
    # First what to do about it: the words of an invariant may go on for pages.
    replay = "" if point is None else f"replay with only={point.number}; "
    return CrashExplorationError(
        f"{replay}database file: {database}\n{message}", point=point, database=database
    )


def _interrupts(error: BaseException) -> bool:
    """Whether it is none of the scenario's or the invariant's own."""
    kinds = (trio.Cancelled, KeyboardInterrupt, SystemExit, GeneratorExit)
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return group.subgroup(kinds) is not None
    return isinstance(error, kinds)


@contextmanager
def _database_of_a_run() -> Iterator[Path]:
    """The path of a new file, which stays where a failure names it."""
    directory = Path(tempfile.mkdtemp(prefix="trio_alarms-crash-"))
    named = False
    try:
        yield directory / "alarms.db"
    except CrashExplorationError:
        named = True
        raise
    finally:
        if not named:
            shutil.rmtree(directory, ignore_errors=True)


def _dice() -> random.Random | None:
    """What Trio throws to choose which of its tasks goes first."""
    # Not public, hence with care; its own hook for hypothesis uses the same.
    dice = getattr(trio_run, "_r", None)
    return dice if isinstance(dice, random.Random) else None


def _begin_order() -> None:
    """Let tasks side by side take their turns as in every other run."""
    dice = _dice()
    if dice is not None:
        dice.setstate(_FIRST_THROW)


@contextmanager
def _restored_order() -> Iterator[None]:
    """Leave the dice as they were found."""
    dice = _dice()
    state = None if dice is None else dice.getstate()
    try:
        yield
    finally:
        if dice is not None and state is not None:
            dice.setstate(state)
