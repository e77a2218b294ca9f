"""Every exception that trio_alarms raises.

::

    AlarmError
    ├── InvalidAlarmRefError                  a tag, id, name, instant, progress or lifecycle
    ├── InvalidAlarmPayloadError              a payload that cannot be stored
    ├── InvalidRepeatEveryError               a period that is too short
    ├── InvalidProcessDueAlarmsOptionsError   a bad `DispatchOptions`
    ├── InvalidAlarmRegistrationError         definitions and handlers that do not fit
    │   └── UnhandledTagError                 (private) due work of a tag nobody handles
    ├── InvalidScheduleConfigurationError     a policy, clock, storage or `open_host` argument
    ├── StoredAlarmDecodeError                a stored payload that cannot be read
    ├── NativeAlarmOwnedError                 the native alarm belongs to the scheduler
    ├── StorageOperationError                 SQLite, the file, its lock, or who may write now
    │   └── HostClosingError                  (private) the host is being left
    └── AlarmPassError                        a joined pass failed, or would wait for itself
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Outcome: TypeAlias = Literal["rolled back", "unknown"]


class AlarmError(Exception):
    """Base class of every error that trio_alarms raises on purpose.

    Messages name what was given and what is allowed, and never a payload. The underlying
    error, where there is one, is `__cause__`.
    """


class InvalidAlarmRefError(AlarmError):
    """A tag, id, host name, instant, lifecycle, progress or event that is not acceptable."""


class InvalidAlarmPayloadError(AlarmError):
    """A payload that is not JSON, too large, too deep, or does not structure back."""


class InvalidRepeatEveryError(AlarmError):
    """A `repeat_every` that is no duration or is under the configured floor."""


class InvalidProcessDueAlarmsOptionsError(AlarmError):
    """A `DispatchOptions` or `Retry` with a bad value."""


class InvalidAlarmRegistrationError(AlarmError):
    """A definition or a composition of handlers that does not fit, or a due alarm without one."""


class UnhandledTagError(InvalidAlarmRegistrationError):
    """A due manual alarm has a tag for which nobody registered a manual handler (R29)."""

    def __init__(self, tag: str) -> None:
        super().__init__(
            f"no manual handler is registered for the alarm tag {tag!r}; its alarms are kept and"
            " tried again after parked_retry_delay"
        )
        self.tag = tag


class InvalidScheduleConfigurationError(AlarmError):
    """A policy that is out of bounds, or a bad argument of `open_host`, a clock or the harness."""


class StoredAlarmDecodeError(AlarmError):
    """A stored payload could not be decoded, or its tag has no handler; nothing was deleted."""


class NativeAlarmOwnedError(AlarmError):
    """The host is managed: its scheduler owns the native alarm, so it cannot be set by hand."""


class StorageOperationError(AlarmError):
    """An operation on the storage failed or was refused.

    `operation` names it. `outcome` is `"rolled back"` when nothing of it is stored, and
    `"unknown"` when SQLite left a commit open and neither re-reading it nor writing over it could
    tell (R11).
    """

    def __init__(self, message: str, *, operation: str, outcome: Outcome = "rolled back") -> None:
        super().__init__(message)
        self.operation = operation
        self.outcome: Outcome = outcome


class HostClosingError(StorageOperationError):
    """Nothing new starts, or what ran was cancelled, since the host is being left."""


class AlarmPassError(AlarmError):
    """A pass that was joined failed, was cancelled from inside, or would wait for itself."""
