"""Starts the ringing process, kills it half-way, starts it again, and watches its log."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import trio

from .ring_log import Enrolment, RingLogReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from .ring_log import Ring
    from .ringing_process import RingingProcess
    from .tally import Tally
    from .timeline import Timeline

_LONGEST_RUN_SECONDS = 45.0
_PATIENCE_SECONDS = 6.0
_LOG_CHECK_SECONDS = 0.02
_END_SECONDS = 5.0


class Supervisor:
    """Runs the ringing process through a kill, and tallies what its log says has rung.

    Args:
        process: What to run.
        tally: What is expected; it must expect something.
        timeline: Where to show what happens.
        patience: Real seconds for which the log may bring nothing new once all is overdue.
    """

    def __init__(
        self,
        process: RingingProcess,
        tally: Tally,
        timeline: Timeline,
        *,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        self._process = process
        self._clock = process.clock
        self._tally = tally
        self._timeline = timeline
        self._patience = patience
        self._reader = RingLogReader(process.log)
        self._last_due_ms = max(
            round(reminder.rings_at.timestamp() * 1000) for reminder in tally.expected.values()
        )
        self._started = self._last_news = trio.current_time()
        self._enrolments = 0
        # What was due until then, nobody was there to ring; set when the second process is ready.
        self._resumed_at_ms: int | None = None

    async def ring_through_a_kill(self) -> None:
        """Run the process, kill it with SIGKILL half-way, and run it again until all has rung.

        The second process ends by itself when no alarm is left in its table. If it does not, this
        ends when the last reminder is overdue and the log brings nothing new: what has not rung
        by then is lost. Cancelling it kills the process.
        """
        with trio.move_on_after(_LONGEST_RUN_SECONDS):
            async with _running(self._process) as first:
                await self._watch(first, until=lambda: self._is_half_way() or self._is_overdue())
                was_running = first.poll() is None
                first.kill()
                await first.wait()
            self._read_log()
            if was_running:
                self._timeline.killed(first.pid, len(self._tally.rung), len(self._tally.expected))
            again = attrs.evolve(self._process, until_all_have_rung=True)
            async with _running(again) as second:
                self._timeline.restarted(second.pid)
                await self._watch(second, until=self._is_overdue)
        self._read_log()

    async def _watch(self, process: trio.Process, until: Callable[[], bool]) -> None:
        """Follow the log until the process has ended or `until` is true."""
        while True:
            has_ended = process.poll() is not None  # before reading, so that nothing is missed
            self._read_log()
            if has_ended:
                if process.returncode:
                    self._timeline.failed(process.pid, process.returncode)
                return
            if until():
                return
            await trio.sleep(_LOG_CHECK_SECONDS)

    def _is_half_way(self) -> bool:
        return self._enrolments > 0 and len(self._tally.rung) >= len(self._tally.expected) // 2

    def _is_overdue(self) -> bool:
        waited = min(
            -self._clock.real_seconds_until(self._last_due_ms),
            trio.current_time() - self._last_news,
        )
        return waited > self._patience

    def _read_log(self) -> None:
        for record in self._reader.new_records():
            self._last_news = trio.current_time()
            if isinstance(record, Enrolment):
                self._enrolments += 1
                if self._enrolments > 1:
                    self._resumed_at_ms = self._clock.now_ms()
                self._timeline.enrolled(record)
            else:
                self._rang(record)

    def _rang(self, ring: Ring) -> None:
        due_ms = ring.due_at.timestamp() * 1000
        self._timeline.rang(
            ring,
            seconds=self._last_news - self._started,
            again=self._tally.count(ring.reminder_id) > 1,
            late=self._resumed_at_ms is not None and due_ms <= self._resumed_at_ms,
        )


@asynccontextmanager
async def _running(process: RingingProcess) -> AsyncIterator[trio.Process]:
    """Start the process, and kill what is left of it at the end."""
    started = await process.start()
    try:
        yield started
    finally:
        started.kill()
        with trio.move_on_after(_END_SECONDS, shield=True):
            await started.wait()
