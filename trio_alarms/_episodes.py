"""What to do about a pass that failed: log it once, wait, or end the host (R51)."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Final, cast

from ._errors import AlarmPassError, StorageOperationError, UnhandledTagError
from ._reporting import logger
from ._store._connection import failure_kind, is_busy, is_corrupt

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCKED_RETRY_SECONDS: Final = 0.5
_FIRST_BACK_OFF_SECONDS: Final = 1.0
_LONGEST_BACK_OFF_SECONDS: Final = 60.0

# What may pass by itself: space returns, a disk answers again.
_PASSING: Final = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PROTOCOL,
    }
)


class Episodes:
    """The failures of a host's deliveries since the last one that succeeded.

    One log record per episode and cause: a disk that is full for a week is one line, not one for
    every try.
    """

    def __init__(self) -> None:
        self._logged: set[str] = set()
        self._back_off = _FIRST_BACK_OFF_SECONDS

    def end(self) -> None:
        """A delivery has succeeded."""
        self._logged.clear()
        self._back_off = _FIRST_BACK_OFF_SECONDS

    def log_storage(self, error: StorageOperationError) -> None:
        """Log a storage failure, once per cause."""
        kind = failure_kind(error.__cause__)
        if kind not in self._logged:
            self._logged.add(kind)
            logger.error(
                "the storage failed (%s); it is tried again until it works", kind, exc_info=error
            )

    def log(self, error: Exception) -> None:
        """Log what a pass raised, but for what was logged when it began."""
        others: list[Exception] = []
        for leaf in leaves(error):
            if isinstance(leaf, StorageOperationError) and storage_condition(leaf) is not None:
                self.log_storage(leaf)
            elif not isinstance(leaf, UnhandledTagError):
                others.append(leaf)
        if others:
            logger.error("an alarm pass failed: %r", type(others[0]).__name__, exc_info=error)

    def seconds_to_wait(self, error: Exception, *, backs_off: bool = False) -> float:
        """How long to leave a failing storage alone; 0 where the storage did not fail.

        Args:
            error: What failed.
            backs_off: Whether to back off from whatever it is.

        Raises:
            StorageOperationError: The database is corrupt, which ends the host.
        """
        conditions: list[str | None] = []
        for leaf in leaves(error):
            condition = storage_condition(leaf)
            if condition == "corrupt":
                raise leaf
            conditions.append(condition)
        locked = "locked" in conditions
        if "failing" in conditions or (backs_off and not locked):
            seconds = self._back_off
            self._back_off = min(2 * seconds, _LONGEST_BACK_OFF_SECONDS)
            return seconds
        return LOCKED_RETRY_SECONDS if locked else 0.0


def storage_condition(error: Exception) -> str | None:
    """What is wrong with the storage: `"locked"`, `"failing"`, `"corrupt"`, or nothing."""
    if not isinstance(error, StorageOperationError):
        return None
    cause = error.__cause__
    if is_corrupt(cause):
        return "corrupt"
    if is_busy(cause):
        return "locked"
    code = getattr(cause, "sqlite_errorcode", None)
    return "failing" if code is not None and code & 0xFF in _PASSING else None


def leaves(error: BaseException) -> Iterator[Exception]:
    """The single errors that an error groups, through the passes that were joined."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        for inner in group.exceptions:
            yield from leaves(inner)
    elif isinstance(error, AlarmPassError) and isinstance(error.__cause__, Exception):
        yield from leaves(error.__cause__)
    elif isinstance(error, Exception):
        yield error
