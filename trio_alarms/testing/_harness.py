"""`open_test_host`: a host under a `MockClock`, and the harness that moves its time."""

from __future__ import annotations

import math
import shutil
import tempfile
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import trio
import trio.testing

from .._arguments import is_of_type
from .._clock import TrioClock, runs_on_mock_clock
from .._errors import AlarmPassError, InvalidScheduleConfigurationError, StorageOperationError
from .._host import AlarmHost, open_host
from .._nursery import BodyNursery, combined
from .._storage_options import StorageOptions
from .._store import _native
from .._store._files import PRIVATE_DATABASE
from .._time import Duration, duration_to_ms, instant_from_ms, instant_to_ms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from os import PathLike

    from .._runtime import HostRuntime
    from .._store._session import Session

EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
# How long, in real seconds, all tasks are blocked before a pass counts as waiting for the clock.
_MOMENT_SECONDS: Final = 0.01
_LONGEST_STEP_SECONDS: Final = 3600.0
# A simulated crash keeps what the operating system has, so waiting for the disk proves nothing.
_INLINE: Final = StorageOptions(executor="inline", synchronous="off")


class _Process:
    """One life of the host: a task of its own that holds it open until it is told to leave."""

    def __init__(self) -> None:
        self.leave = trio.Event()
        self.left = trio.Event()
        self.scope = trio.CancelScope()

    async def run(
        self,
        database: str | PathLike[str],
        options: dict[str, Any],
        *,
        task_status: trio.TaskStatus[AlarmHost],
    ) -> None:
        try:
            with self.scope:
                async with open_host(database, **options) as host:
                    task_status.started(host)
                    await self.leave.wait()
        finally:
            self.left.set()


class AlarmHarness:
    """A host in a test, its virtual time, and its crashes. Made by `open_test_host`.

    What a delivery raises, the call that delivered raises. What a pass in the background raised
    (the driver's, or one after an event) the next call raises.
    """

    def __init__(
        self, nursery: trio.Nursery, database: str | PathLike[str], options: dict[str, Any]
    ) -> None:
        self._nursery = nursery
        self._database = database
        self._options = options
        self._failures: list[Exception] = []
        self._process = _Process()
        self._host: AlarmHost

    @property
    def database(self) -> str | PathLike[str]:
        """The path of the database file."""
        return self._database

    @property
    def host(self) -> AlarmHost:
        """The host as it is now; another one after `reopen`."""
        return self._host

    async def advance(self, duration: Duration) -> None:
        """Move the clock and deliver everything that falls due on the way, each at its instant.

        Returns only after all of it has been handled and acknowledged. A handler that itself
        waits in virtual time needs `autojump_clock`, or `advance` in another task.

        Args:
            duration: How far, in virtual seconds or as a timedelta.

        Raises:
            Exception: What a pass raised.
            InvalidScheduleConfigurationError: `duration` is not a duration.
        """
        target = self._now() + duration_to_ms(
            duration, parameter="duration", error=InvalidScheduleConfigurationError
        )
        runtime = self._begin("advance")
        with _until_lost(runtime):
            await self._advance_to(target, runtime)
        self._raise_failures()

    async def _advance_to(self, target: int, runtime: HostRuntime) -> None:
        while True:
            await self._until_quiet(runtime, target)
            native_alarm = (await runtime.read_state()).native_alarm
            if runtime.passes.current is not None and not runtime.passes.inside():
                # The driver has begun one meanwhile, and what was read may be its guard.
                continue
            now = self._now()
            if native_alarm is not None and native_alarm <= now:
                await self._deliver(runtime)
            elif now < target:
                self._move_to(target if native_alarm is None else min(native_alarm, target))
            else:
                return

    async def set_time(self, when: datetime) -> None:
        """Move the clock forward and deliver nothing.

        Args:
            when: An aware datetime, not before `host.now()`.

        Raises:
            InvalidScheduleConfigurationError: `when` is earlier.
            InvalidAlarmRefError: `when` is not an aware datetime.
        """
        self._raise_failures()
        target = instant_to_ms(when, parameter="when")
        if target < self._now():
            raise InvalidScheduleConfigurationError(
                f"when must not be before host.now(), {instant_from_ms(self._now()).isoformat()};"
                f" it is {when.isoformat()}"
            )
        self._move_to(target)
        await trio.lowlevel.checkpoint()

    async def deliver(self) -> bool:
        """One native delivery, if one is due.

        Returns:
            Whether it was.

        Raises:
            Exception: What the pass raised.
        """
        delivered = await self._deliver(self._begin("deliver"))
        self._raise_failures()
        return delivered

    async def settle(self) -> None:
        """Deliver until nothing is due.

        Raises:
            Exception: What a pass raised.
        """
        runtime = self._begin("settle")
        with _until_lost(runtime):
            await self._until_quiet(runtime)
            while await self._deliver(runtime):
                await self._until_quiet(runtime)
        self._raise_failures()

    async def consume_native_alarm(self) -> None:
        """Forget the armed timestamp, as a platform does when it delivers, without dispatching."""
        runtime = self._begin("consume_native_alarm")

        def operation(session: Session) -> None:
            connection = session.connection.raw
            managed = _native.read(connection, session.host).managed
            _native.write(connection, session.host, None, managed=managed)

        await runtime.writer.write(
            operation, name="consume_native_alarm", asks_reconciliation=False
        )

    async def crash(self) -> None:
        """Lose the process.

        Every task of the host is dropped, uncommitted work is rolled back, no finalizer writes
        anything, and a delivery under way elsewhere returns `False`. What was committed stays.

        A handler that calls it is cancelled, as it dies with the process.
        """
        self._runtime.lose()
        self._process.scope.cancel()
        # Not shielded: a task of the host would wait for itself.
        await self._process.left.wait()

    async def reopen(self, **overrides: Any) -> None:
        """Open a new host over what was durable; one that is still open is left first.

        Args:
            **overrides: `open_host` options that differ from now on.

        Raises:
            StorageOperationError: The database cannot be opened.
        """
        self._raise_failures()
        options = self._options | _checked_options(overrides)
        await self.close()
        await self._open(options)
        self._options = options

    async def close(self) -> None:
        """Leave the host normally, draining it; a crashed or left one is fine."""
        self._process.leave.set()
        await self._process.left.wait()

    @property
    def _runtime(self) -> HostRuntime:
        return self._host._runtime  # noqa: SLF001 - the harness belongs to the library

    async def _open(self, options: dict[str, Any]) -> None:
        self._process = process = _Process()
        try:
            self._host = await self._nursery.start(process.run, self._database, options)
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise
        self._runtime.on_pass_failure = self._note_failure

    def _begin(self, operation: str) -> HostRuntime:
        """What every call begins with: what failed before is raised, a lost host is refused."""
        self._raise_failures()
        runtime = self._runtime
        runtime.writer.check_open(operation)
        return runtime

    async def _deliver(self, runtime: HostRuntime) -> bool:
        try:
            return await runtime.face.deliver_native_alarm()
        except AlarmPassError:
            # It had joined a pass in the background, whose own failure says more.
            self._raise_failures()
            raise

    def _note_failure(self, error: Exception) -> None:
        # Who joined a pass adds nothing to what the one who led it raised.
        if not (isinstance(error, AlarmPassError) and error.__cause__ is not None):
            self._failures.append(error)

    def _raise_failures(self) -> None:
        failures = list(self._failures)
        self._failures.clear()
        error = combined(failures, "several passes failed in the background")
        if error is not None:
            raise error

    def _now(self) -> int:
        clock: TrioClock = self._options["clock"]
        return clock.now_ms()

    def _move_to(self, target: int) -> None:
        # TrioClock rounds to the nearest microsecond, so a float this close is exact enough.
        seconds = (target - self._now()) / 1000
        if seconds > 0:
            _mock_clock().jump(seconds)

    async def _until_quiet(self, runtime: HostRuntime, target: int = 0) -> None:
        """Let other tasks run into the new time, and wait for a pass that is under way.

        One that waits in virtual time gets it, up to `target`, unless the clock jumps by itself.
        """
        while True:
            await trio.testing.wait_all_tasks_blocked()
            current = runtime.passes.current
            if current is None or runtime.passes.inside():
                return
            runtime.passes.refuse_waiting_for_oneself("the harness")
            if self._now() >= target or _mock_clock().autojump_threshold < math.inf:
                await current.over.wait()
                continue
            # A thread is none of ours to see, but it ends within a moment of real time.
            await trio.testing.wait_all_tasks_blocked(_MOMENT_SECONDS)
            if runtime.passes.current is current and not runtime.database.busy:
                self._move_to(min(target, self._now() + _ms_to_next_deadline()))


@asynccontextmanager
async def open_test_host(
    database: str | PathLike[str] = PRIVATE_DATABASE,
    *,
    driver: bool = False,
    epoch: datetime = EPOCH,
    storage: StorageOptions = _INLINE,
    **options: Any,
) -> AsyncIterator[AlarmHarness]:
    """Open a host under a `MockClock`.

    `async with open_test_host(alarms=registration) as harness:` in a test. The host is on a
    `TrioClock`, its storage is inline and it has no driver by default. What was committed
    survives `crash` and `reopen`, with `":memory:"` too. Leaving the block leaves the host;
    cancellation as for `open_host`.

    Args:
        database: A path, or `":memory:"` for a private temporary file.
        driver: Whether a task delivers the native alarm by itself.
        epoch: The aware datetime at which Trio's clock shows zero.
        storage: How the database is used; by default inline, and without waiting for the disk,
            which a simulated crash does not need.
        **options: All other options of `open_host` but `clock`.

    Raises:
        InvalidScheduleConfigurationError: The running Trio clock is not a `MockClock`, or an
            option is bad.
        AlarmError: As for `open_host`.
    """
    if not runs_on_mock_clock():
        raise InvalidScheduleConfigurationError(
            "open_test_host needs a trio.testing.MockClock; use pytest-trio's mock_clock or"
            " autojump_clock fixture, or trio.run(…, clock=MockClock())"
        )
    options = _checked_options(options) | {
        "driver": driver,
        "clock": TrioClock(epoch),
        "storage": storage,
    }
    directory: Path | None = None
    if is_of_type(database, str) and str.__str__(database) == PRIVATE_DATABASE:
        directory = Path(tempfile.mkdtemp(prefix="trio_alarms-"))
        database = directory / "alarms.db"
    try:
        async with BodyNursery(unwrap=True) as nursery:
            harness = AlarmHarness(nursery, database, options)
            await harness._open(options)  # noqa: SLF001 - the harness is made here
            try:
                yield harness
            except BaseException:
                nursery.cancel_scope.cancel()
                raise
            await harness.close()
            harness._raise_failures()  # noqa: SLF001 - as above
    finally:
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _until_lost(runtime: HostRuntime) -> Iterator[None]:
    """A call that a crash overtakes is over, without an error."""
    try:
        yield
    except StorageOperationError:
        if not runtime.gate.lost:
            raise


def _mock_clock() -> trio.testing.MockClock:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)  # noqa: S101 - checked on opening
    return clock


def _ms_to_next_deadline() -> int:
    """How long until some task is woken by its deadline, at least 1 ms."""
    seconds = trio.lowlevel.current_statistics().seconds_to_next_deadline
    return max(1, math.ceil(min(seconds, _LONGEST_STEP_SECONDS) * 1000))


def _checked_options(options: dict[str, Any]) -> dict[str, Any]:
    if "clock" in options:
        raise InvalidScheduleConfigurationError(
            "clock cannot be given: the harness needs a TrioClock; use epoch instead"
        )
    return dict(options)
