"""Tests of alarms under virtual time, with crashes; see `open_test_host`."""

from __future__ import annotations

from ._harness import AlarmHarness, open_test_host

__all__ = ["AlarmHarness", "open_test_host"]

for _name in __all__:
    globals()[_name].__module__ = __name__
