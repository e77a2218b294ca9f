"""Tests of alarms under virtual time, with crashes; see `open_test_host`."""

from __future__ import annotations

from ._crashes import CrashExplorationError, CrashPoint, CrashReport, explore_crashes
from ._harness import AlarmHarness, open_test_host

__all__ = [
    "AlarmHarness",
    "CrashExplorationError",
    "CrashPoint",
    "CrashReport",
    "explore_crashes",
    "open_test_host",
]

# Tracebacks and docs show the names that people import.
for _public in (
    AlarmHarness,
    CrashExplorationError,
    CrashPoint,
    CrashReport,
    explore_crashes,
    open_test_host,
):
    _public.__module__ = __name__
del _public
