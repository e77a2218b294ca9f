"""Reports of parked alarms, and the logger of the package."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeAlias

import attrs
import trio

from ._arguments import describe, is_plainly_synchronous
from ._errors import InvalidScheduleConfigurationError
from ._model import AlarmParked

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

logger = logging.getLogger("trio_alarms")

Reporter: TypeAlias = Callable[[AlarmParked], Awaitable[object]]

REPORTING_SECONDS = 5.0


async def _log_parked(parked: AlarmParked) -> None:  # noqa: ASYNC910 - reporters need not wait
    logger.warning(
        "an alarm was parked after %d unchanged attempts; it is tried again at %s",
        parked.attempts,
        parked.retry_at.isoformat(),
    )


@attrs.frozen(eq=False)
class _Override:
    """What a `with alarm_reporter(...)` block has put in force in its context."""

    reporter: Reporter
    owner: _ReporterScope
    previous: _Override | None


_current: ContextVar[_Override | None] = ContextVar("trio_alarms_reporter", default=None)


class _ReporterScope:
    """The block of `alarm_reporter`; stateless, so that one may be entered anywhere."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def __enter__(self) -> None:
        _current.set(_Override(self._reporter, self, _current.get()))

    def __exit__(self, *_exception: object) -> None:
        # Not `reset(token)`, which fails when clean-up runs in another context; there the
        # override in force is not ours, and stays.
        current = _current.get()
        if current is not None and current.owner is self:
            _current.set(current.previous)


def alarm_reporter(reporter: Reporter) -> AbstractContextManager[None]:
    """Send reports of parked alarms to `reporter`, in the current task and what it starts.

    Nothing is stored. The innermost override wins over the outer ones and over the host's.

    Args:
        reporter: An async callable that takes an `AlarmParked`.

    Raises:
        InvalidScheduleConfigurationError: `reporter` is no async callable.
    """
    if is_plainly_synchronous(reporter):
        raise InvalidScheduleConfigurationError(
            "reporter must be an async callable that takes an AlarmParked, not"
            f" {describe(reporter)}"
        )
    return _ReporterScope(reporter)


def current_reporter(host_reporter: Reporter | None) -> Reporter:
    """Return the reporter in force: the task's override, else the host's, else the log."""
    override = _current.get()
    if override is not None:
        return override.reporter
    # Compared with None: a callable whose `len()` is 0 is false.
    return _log_parked if host_reporter is None else host_reporter


async def report_parked(  # noqa: ASYNC910 - never a checkpoint, since it is shielded
    reports: Sequence[AlarmParked], reporter: Reporter
) -> None:
    """Hand each report to `reporter`, one after the other, in at most 5 s for all of them.

    What is parked is already committed; nothing of that changes here. A reporter that raises or
    takes more than its share of the time left is logged, and the next report is made. Shielded:
    cancellation is neither noticed nor lost. Not a checkpoint.

    Args:
        reports: The reports, in order.
        reporter: Who gets them; see `current_reporter`.
    """
    if not reports:
        return  # noqa: ASYNC910 - never a checkpoint
    deadline = trio.current_time() + REPORTING_SECONDS
    for done, report in enumerate(reports):
        share = max(0.0, deadline - trio.current_time()) / (len(reports) - done)
        await _report(report, reporter, share)


async def _report(  # noqa: ASYNC910 - never a checkpoint, since it is shielded
    report: AlarmParked, reporter: Reporter, seconds: float
) -> None:
    scope = trio.CancelScope(deadline=trio.current_time() + seconds, shield=True)
    try:
        # Inside the `try`: a reporter's own nursery may mix its error with our cancellation,
        # and only the error is left when the scope has taken its part.
        with scope:
            await reporter(report)
    except Exception as error:  # noqa: BLE001 - whatever it raises, the commit stands
        _log_failure("the alarm reporter failed", error)
    else:
        if scope.cancelled_caught:
            _log_failure(f"the alarm reporter was cancelled after {seconds:g} s", None)


def _log_failure(message: str, error: Exception | None) -> None:
    # A logging handler that raises is the last place where reporting can fail.
    with contextlib.suppress(Exception):
        logger.error("%s; what it was told of is committed all the same", message, exc_info=error)
