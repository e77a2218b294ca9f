"""Tests of alarms under virtual time, with crashes; see `open_test_host`."""

from __future__ import annotations

from ._harness import AlarmHarness, open_test_host

__all__ = ["AlarmHarness", "open_test_host"]

# Tracebacks and docs show the names that people import.
AlarmHarness.__module__ = open_test_host.__module__ = __name__
