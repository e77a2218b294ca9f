"""Durable alarms for Trio services, kept in SQLite beside the application's own tables."""

from __future__ import annotations

from ._clock import AlarmClock, SystemClock, TrioClock
from ._configuration import ScheduleConfiguration, schedule_configuration
from ._definitions import Alarm, BoundHandler
from ._errors import (
    AlarmError,
    AlarmPassError,
    InvalidAlarmPayloadError,
    InvalidAlarmRefError,
    InvalidAlarmRegistrationError,
    InvalidProcessDueAlarmsOptionsError,
    InvalidRepeatEveryError,
    InvalidScheduleConfigurationError,
    NativeAlarmOwnedError,
    StorageOperationError,
    StoredAlarmDecodeError,
)
from ._events import EventScope
from ._host import AlarmHost, HostStorage, open_host, process_due
from ._import import import_effect_cf
from ._model import (
    AlarmDue,
    AlarmFailure,
    AlarmParked,
    AlarmRecord,
    AlarmRef,
    AlarmStatus,
    DispatchResult,
)
from ._native_alarm import NativeAlarm
from ._options import DispatchOptions, FailureAction, Retry
from ._registrations import AlarmRegistration, AlarmService, define, merge_all
from ._reporting import alarm_reporter
from ._scheduler import AlarmScheduler, AlarmTransaction, ServiceScheduler
from ._storage_options import StorageOptions
from ._time import Duration

__all__ = [
    "Alarm",
    "AlarmClock",
    "AlarmDue",
    "AlarmError",
    "AlarmFailure",
    "AlarmHost",
    "AlarmParked",
    "AlarmPassError",
    "AlarmRecord",
    "AlarmRef",
    "AlarmRegistration",
    "AlarmScheduler",
    "AlarmService",
    "AlarmStatus",
    "AlarmTransaction",
    "BoundHandler",
    "DispatchOptions",
    "DispatchResult",
    "Duration",
    "EventScope",
    "FailureAction",
    "HostStorage",
    "InvalidAlarmPayloadError",
    "InvalidAlarmRefError",
    "InvalidAlarmRegistrationError",
    "InvalidProcessDueAlarmsOptionsError",
    "InvalidRepeatEveryError",
    "InvalidScheduleConfigurationError",
    "NativeAlarm",
    "NativeAlarmOwnedError",
    "Retry",
    "ScheduleConfiguration",
    "ServiceScheduler",
    "StorageOperationError",
    "StorageOptions",
    "StoredAlarmDecodeError",
    "SystemClock",
    "TrioClock",
    "alarm_reporter",
    "define",
    "import_effect_cf",
    "merge_all",
    "open_host",
    "process_due",
    "schedule_configuration",
]


def _show_public_names() -> None:
    """Let tracebacks and docs show the name that people import; aliases have none of their own."""
    for name in __all__:
        public = globals()[name]
        if getattr(public, "__module__", "").startswith(f"{__name__}."):
            public.__module__ = __name__


_show_public_names()
