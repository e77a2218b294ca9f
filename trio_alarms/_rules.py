"""The pure rules: what scheduling, failing and completing do to one row (R3-R9, R28).

Nothing here does I/O, reads a clock or knows Trio. A rule takes the row that is stored (or
`None`), says what is stored afterwards, and gives `None` where nothing is to be written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ._model import NO_PROGRESS, AlarmRow
from ._time import saturated

if TYPE_CHECKING:
    from ._configuration import ResolvedConfiguration
    from ._model import AlarmRef, Lifecycle


@attrs.frozen
class ScheduleRequest:
    """The checked arguments of one schedule, min-merge or ensure."""

    ref: AlarmRef
    lifecycle: Lifecycle
    run_at: int
    repeat_every: int | None
    progress: int | None
    payload: str


@attrs.frozen
class Circumstances:
    """What a schedule depends on besides its arguments and the stored row.

    `source` is the row of the handling that the caller is in, as it was re-read before its
    handler began. `in_hand` says that the stored row itself is in hand (R6).
    """

    now: int
    configuration: ResolvedConfiguration
    revision: bytes
    source: AlarmRow | None = None
    in_hand: bool = False


def retry_delay(
    attempts: int,
    *,
    parked: bool,
    configuration: ResolvedConfiguration,
    initial: int | None = None,
) -> int:
    """How long to wait after `attempts` unchanged attempts, in ms (R7)."""
    ceiling = configuration.parked_retry_delay_ms
    if parked:
        return ceiling
    floor = configuration.minimum_retry_delay_ms
    first = floor if initial is None else max(floor, initial)
    doublings = attempts - 1
    # Past this many doublings any initial delay is over the ceiling; the power is not computed,
    # so that a stored count of any size is harmless.
    if doublings >= ceiling.bit_length():
        return ceiling
    return min(ceiling, first << doublings)


def schedule(
    request: ScheduleRequest, existing: AlarmRow | None, circumstances: Circumstances
) -> AlarmRow | None:
    """Arm or replace (R4). `None`: an already known progress was repeated, nothing changes."""
    source = _charging_source(request, circumstances)
    progress = _known_progress(existing, source)
    given = request.progress
    if source is None and given is not None and given <= progress:
        return None
    attempts = _attempts_after_schedule(request, existing, source, circumstances)
    parked, retry_at = False, None
    if attempts > 0:
        parked = (
            attempts >= circumstances.configuration.unchanged_attempt_budget
            or (source is not None and source.parked)
            or (existing is not None and existing.parked)
        )
        delay = retry_delay(attempts, parked=parked, configuration=circumstances.configuration)
        retry_at = saturated(circumstances.now + delay)
    manual = request.lifecycle == "manual"
    return AlarmRow(
        ref=request.ref,
        lifecycle=request.lifecycle,
        run_at=request.run_at,
        wake_at=_wake_at(request.run_at, retry_at),
        retry_at=retry_at,
        repeat_every=None if manual else request.repeat_every,
        progress=NO_PROGRESS if manual else max(progress, NO_PROGRESS if given is None else given),
        attempts=attempts,
        parked=parked,
        revision=circumstances.revision,
        payload=request.payload,
    )


def schedule_earlier(
    request: ScheduleRequest, existing: AlarmRow | None, circumstances: Circumstances
) -> AlarmRow | None:
    """Arm, but keep an earlier deadline with its payload and repeat (R6).

    A row in hand has no deadline left to keep, so it is replaced as by `schedule`.
    """
    keeps = existing is not None and existing.run_at <= request.run_at and not circumstances.in_hand
    if existing is not None and keeps:
        request = attrs.evolve(
            request,
            run_at=existing.run_at,
            payload=existing.payload,
            repeat_every=existing.repeat_every,
        )
    return schedule(request, existing, circumstances)


def ensure(
    request: ScheduleRequest, existing: AlarmRow | None, circumstances: Circumstances
) -> AlarmRow | None:
    """Arm what is absent; bring lifecycle, payload and repeat of what is there up to date (R6a)."""
    if existing is None:
        return schedule(request, existing, circumstances)
    source = circumstances.source
    if circumstances.in_hand and source is not None and source.ref == request.ref:
        return None
    manual = request.lifecycle == "manual"
    repeat_every = None if manual else request.repeat_every
    given = (request.lifecycle, request.payload, repeat_every)
    if given == (existing.lifecycle, existing.payload, existing.repeat_every):
        return None
    run_at = existing.run_at
    if repeat_every != existing.repeat_every:
        run_at = min(run_at, request.run_at)
    retry_at = None if manual else existing.retry_at
    return attrs.evolve(
        existing,
        lifecycle=request.lifecycle,
        run_at=run_at,
        wake_at=_wake_at(run_at, retry_at),
        retry_at=retry_at,
        repeat_every=repeat_every,
        progress=NO_PROGRESS if manual else existing.progress,
        attempts=0 if manual else existing.attempts,
        parked=False if manual else existing.parked,
        revision=circumstances.revision,
        payload=request.payload,
    )


def complete(
    row: AlarmRow, *, now: int, configuration: ResolvedConfiguration, revision: bytes
) -> AlarmRow | None:
    """The next occurrence of a repeat, counted from its completion (R8); `None`: no more (R28)."""
    if row.repeat_every is None:
        return None
    period = max(configuration.minimum_repeat_interval_ms, row.repeat_every)
    run_at = saturated(now + period)
    return attrs.evolve(
        row,
        run_at=run_at,
        wake_at=run_at,
        retry_at=None,
        attempts=0,
        parked=False,
        revision=revision,
    )


def fail(
    row: AlarmRow,
    *,
    now: int,
    configuration: ResolvedConfiguration,
    revision: bytes,
    initial: int | None,
) -> AlarmRow:
    """Charge one failed attempt and back off, or park at the budget (R7, R28)."""
    budget = configuration.unchanged_attempt_budget
    attempts = row.attempts
    if not row.parked and attempts < budget:
        attempts += 1
    parked = row.parked or attempts >= budget
    delay = retry_delay(attempts, parked=parked, configuration=configuration, initial=initial)
    retry_at = saturated(now + delay)
    return attrs.evolve(
        row,
        wake_at=_wake_at(row.run_at, retry_at),
        retry_at=retry_at,
        attempts=attempts,
        parked=parked,
        revision=revision,
    )


def _wake_at(run_at: int, retry_at: int | None) -> int:
    return run_at if retry_at is None else max(run_at, retry_at)


def _charging_source(request: ScheduleRequest, circumstances: Circumstances) -> AlarmRow | None:
    source = circumstances.source
    if source is None or source.lifecycle == "manual" or request.lifecycle == "manual":
        return None
    return source


def _known_progress(existing: AlarmRow | None, source: AlarmRow | None) -> int:
    if existing is not None:
        return existing.progress
    return NO_PROGRESS if source is None else source.progress


def _attempts_after_schedule(
    request: ScheduleRequest,
    existing: AlarmRow | None,
    source: AlarmRow | None,
    circumstances: Circumstances,
) -> int:
    """Whether a schedule is fresh enrolment (0) or a self-rearm that charges once (R4)."""
    if source is None:
        return 0
    if request.progress is not None and request.progress > _known_progress(existing, source):
        return 0
    if existing is not None and existing.ref == source.ref and existing.progress > source.progress:
        return 0
    stored = 0 if existing is None else existing.attempts
    if source.parked or (existing is not None and existing.parked):
        return max(source.attempts, stored)
    budget = circumstances.configuration.unchanged_attempt_budget
    return min(budget, max(source.attempts + 1, stored))
