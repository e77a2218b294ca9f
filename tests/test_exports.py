"""The public face: which names there are, that each is documented, and what importing costs."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trio_alarms
import trio_alarms.testing

ROOT = Path(__file__).parents[1]

PUBLIC_NAMES = {
    # time
    "AlarmClock",
    "Duration",
    "SystemClock",
    "TrioClock",
    # defining alarms
    "Alarm",
    "AlarmRegistration",
    "AlarmService",
    "BoundHandler",
    "DispatchOptions",
    "FailureAction",
    "Retry",
    "define",
    "merge_all",
    "process_due",
    # hosts
    "AlarmHost",
    "EventScope",
    "HostStorage",
    "NativeAlarm",
    "StorageOptions",
    "import_effect_cf",
    "open_host",
    # scheduling
    "AlarmScheduler",
    "AlarmTransaction",
    "ServiceScheduler",
    # values
    "AlarmDue",
    "AlarmFailure",
    "AlarmParked",
    "AlarmRecord",
    "AlarmRef",
    "AlarmStatus",
    "DispatchResult",
    # policy and reporting
    "ScheduleConfiguration",
    "alarm_reporter",
    "schedule_configuration",
    # errors
    "AlarmError",
    "AlarmPassError",
    "InvalidAlarmPayloadError",
    "InvalidAlarmRefError",
    "InvalidAlarmRegistrationError",
    "InvalidProcessDueAlarmsOptionsError",
    "InvalidRepeatEveryError",
    "InvalidScheduleConfigurationError",
    "NativeAlarmOwnedError",
    "StorageOperationError",
    "StoredAlarmDecodeError",
}
# These name types made of other types: they are neither classes nor functions.
ALIASES = {"Duration", "FailureAction"}

REFERENCE = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")
DOCUMENTED = set(re.findall(r"^\.\. auto\w+:: trio_alarms\.([\w.]+)", REFERENCE, re.MULTILINE))

LOADED_BY_IMPORT = """
import sys
import trio_alarms
print(*sys.modules)
"""


def test_the_public_names_are_those_of_the_contract() -> None:
    """Nothing public is missing, and nothing is public by accident."""
    assert set(trio_alarms.__all__) == PUBLIC_NAMES
    assert len(trio_alarms.__all__) == len(PUBLIC_NAMES)


@pytest.mark.parametrize("name", sorted(PUBLIC_NAMES - ALIASES))
def test_a_public_object_says_where_to_import_it_from(name: str) -> None:
    """Tracebacks, reprs and the reference show the name that a user can import."""
    assert getattr(trio_alarms, name).__module__ == "trio_alarms"


@pytest.mark.parametrize("name", sorted(PUBLIC_NAMES - ALIASES))
def test_a_public_object_and_its_methods_have_docstrings(name: str) -> None:
    """What a user can call says what it does, in its own words and not its base's."""
    public = getattr(trio_alarms, name)
    assert vars(public).get("__doc__") if isinstance(public, type) else public.__doc__
    if isinstance(public, type):
        methods = {
            member: function
            for member, function in vars(public).items()
            if not member.startswith("_")
            and (
                inspect.isfunction(function)
                or isinstance(function, (classmethod, staticmethod, property))
            )
        }
        assert not {member for member, function in methods.items() if not function.__doc__}


def test_the_reference_has_every_public_name() -> None:
    """The reference page documents all that can be imported, and nothing else."""
    testing = {f"testing.{name}" for name in trio_alarms.testing.__all__}
    assert PUBLIC_NAMES | testing == DOCUMENTED


def test_importing_the_package_loads_nothing_optional() -> None:
    """An application without the extras can import trio_alarms, and never loads pytest."""
    loaded = subprocess.run(
        [sys.executable, "-c", LOADED_BY_IMPORT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.split()
    optional = {"_pytest", "pytest", "pytest_trio", "icalendar", "recurring_ical_events", "rich"}
    assert "trio_alarms" in loaded
    assert not optional & set(loaded)


def test_the_package_is_marked_as_typed() -> None:
    """Type checkers look into an installed package only where `py.typed` lies."""
    assert Path(trio_alarms.__file__).with_name("py.typed").is_file()
