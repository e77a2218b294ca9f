"""The wake guard: what commits leave the native alarm at while work is under way (R17-R20)."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import trio

from ._context import Frame, find
from ._errors import StorageOperationError
from ._reporting import logger
from ._store._native import NativeChange, Reconciliation
from ._time import saturated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from ._configuration import ResolvedConfiguration
    from ._store._session import Session
    from ._writer import HostWriter


@attrs.define(eq=False)
class ActivePass:
    """What the guard knows of the pass that is active.

    `asked`: a transaction asked for reconciliation meanwhile, so the pass has to do it (R23).
    `guard`: the guard that commits of this pass wrote, if they did; it counts as unset when the
    pass failed before it dispatched (R24).
    """

    asked: bool = False
    guard: int | None = None


class DeferFrame(Frame):
    """The frame of a `defer_wakes` scope."""

    def __init__(self, owner: Wakes) -> None:
        self.owner = owner
        self.open = True


def nothing(_: Session) -> None:
    """An operation that changes no alarm: its commit only reconciles."""


class Wakes:
    """How many `defer_wakes` scopes a host has open, whether a pass is active, and the guard.

    Changed only in the loop. A commit reads it when it is sent and writes it back when it is
    done; see `reconciliation` and `committed`.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._scopes = 0
        # Invariant: there from the first scope's entry until the last one has reconciled.
        self._scopes_ended: trio.Event | None = None
        self._active: ActivePass | None = None
        self._guard_delay = 0
        self._guard_at = 0
        self._disowned: int | None = None
        # Whether the last commit left the guard standing instead of the deadlines.
        self._guarded = False
        # Invariant: grows whenever the guard is set anew, so that a commit that was sent before
        # does not write its older guard back.
        self._era = 0

    @property
    def scopes_open(self) -> bool:
        """Whether a `defer_wakes` scope is open or the last one still reconciles."""
        return self._scopes_ended is not None

    @property
    def guard_at(self) -> int:
        """Where the guard was last set, in ms."""
        return self._guard_at

    def own_scope_open(self) -> bool:
        """Whether the running task is inside a `defer_wakes` scope of this host."""
        return find(DeferFrame, lambda frame: frame.owner is self and frame.open) is not None

    def reconciliation(self, now: int) -> Reconciliation:
        """What a commit that is about to be sent reconciles to (R18, R20)."""
        if not self._scopes and self._active is None:
            return Reconciliation(now)
        if self._active is not None:
            self._active.asked = True
        guard_at = self._guard_at
        if guard_at <= now:
            guard_at = saturated(now + self._guard_delay)
        return Reconciliation(now, guard_at, own_guard=self._disowned, era=self._era)

    def committed(self, reconciliation: Reconciliation, change: NativeChange | None) -> None:
        """Take note of what a commit left, and wake the driver where the native alarm changed."""
        self._guarded = reconciliation.guard_at is not None
        if reconciliation.guard_at is not None and reconciliation.era == self._era:
            self._guard_at = reconciliation.guard_at
        if change is None:
            return
        if self._active is not None and change.after == reconciliation.guard_at:
            self._active.guard = change.after
        self._on_change()

    def begin_pass(self, guard_delay: int) -> ActivePass:
        """A pass becomes active; its first commit sets a fresh guard (R22)."""
        self._active = ActivePass()
        self._set_guard(guard_delay, 0)
        return self._active

    def hold_back(self, guard_delay: int) -> bool:
        """The pass failed before it dispatched: its guard goes to now + `guard_delay` (R24).

        An open `defer_wakes` scope keeps its own short guard instead. Whether it was set.
        """
        if self._active is None or self._scopes:
            return False
        self._disowned = self._active.guard
        self._set_guard(guard_delay, 0)
        return True

    def end_pass(self) -> None:
        """The pass is no longer active; deadlines count again."""
        self._active = None
        self._disowned = None

    async def until_scopes_end(self) -> None:  # noqa: ASYNC910 - nothing to wait for is no checkpoint, as documented
        """Wait until the last `defer_wakes` scope has reconciled. A checkpoint if there is one."""
        while self._scopes_ended is not None:
            await self._scopes_ended.wait()

    @asynccontextmanager
    async def deferring(
        self,
        writer: HostWriter,
        configuration: ResolvedConfiguration,
        operation: Callable[[Session], Any] = nothing,
        landed: Callable[[Any], None] | None = None,
        *,
        synced: bool = True,
    ) -> AsyncIterator[None]:
        """Hold the guard armed around the body, then reconcile; see `defer_wakes` (R17-R19).

        `operation` runs in the commit that sets the guard, and `landed` gets its value.
        """
        writer.check_may_write("defer_wakes")
        writer.refuse_inside_transaction("defer_wakes")
        self._enter_scope(writer.clock.now_ms(), configuration.in_flight_recovery_ms)
        frame = DeferFrame(self)
        try:
            await writer.write(operation, name="defer_wakes", landed=landed, synced=synced)
            with frame:
                yield
        except BaseException as error:
            frame.open = False
            if isinstance(error, StorageOperationError) and error.outcome == "unknown":
                self._guarded = True
            await self._leave_after_error(writer)
            raise
        frame.open = False
        await self._leave(writer)

    def _enter_scope(self, now: int, guard_delay: int) -> None:
        if self._scopes_ended is None:
            self._scopes_ended = trio.Event()
        if not self._scopes:
            self._set_guard(guard_delay, saturated(now + guard_delay))
        self._scopes += 1

    async def _leave(self, writer: HostWriter) -> None:  # noqa: ASYNC910 - its commit is the checkpoint where it makes one
        with self._leaving() as reconciles:
            if reconciles:
                await writer.write_surely(nothing, name="defer_wakes")

    async def _leave_after_error(self, writer: HostWriter) -> None:  # noqa: ASYNC910 - its commit is the checkpoint where it makes one
        """Leave, shielded and bounded, so that the body's own error is what comes out."""
        with self._leaving() as reconciles:
            if reconciles:
                try:
                    await writer.write_within_bound(nothing, name="defer_wakes")
                except StorageOperationError as error:
                    # A host that is gone was reconciled when it was left, or is when it opens.
                    if not (writer.gate.lost or writer.closed):
                        logger.error("leaving defer_wakes could not reconcile", exc_info=error)

    @contextmanager
    def _leaving(self) -> Iterator[bool]:
        """Whether the scope that is left has to reconcile; then whoever waits is released."""
        self._scopes -= 1
        try:
            # Where nothing was committed under the guard, as when entering failed, there is
            # nothing to bring in line.
            last = not self._scopes and self._guarded
            if last and self._active is not None:
                # The pass does it when it ends (R19).
                self._active.asked = True
            yield last and self._active is None
        finally:
            self._release_waiters()

    def _release_waiters(self) -> None:
        if not self._scopes and self._scopes_ended is not None:
            self._scopes_ended.set()
            self._scopes_ended = None

    def _set_guard(self, guard_delay: int, guard_at: int) -> None:
        self._guard_delay = guard_delay
        self._guard_at = guard_at
        self._era += 1
