"""The reference lists the methods by hand, in the order in which a reader needs them."""

from __future__ import annotations

import inspect
import re
from operator import attrgetter
from pathlib import Path

import pytest

import trio_alarms
import trio_alarms.testing

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")
CLASS = re.compile(
    r"^\.\. autoclass:: trio_alarms\.([\w.]+)(?:\(\))?\n((?:\n?   .*\n)*)", re.MULTILINE
)
MEMBER = re.compile(r"^   \.\. auto(?:method|property):: (\w+)$", re.MULTILINE)

LISTED = {name: MEMBER.findall(block) for name, block in CLASS.findall(PAGE)}

# What the page says in a sentence, since another class has the same methods, and what it leaves
# out, since it is derived from an argument.
SCHEDULING = {
    "schedule_alarm",
    "schedule_alarm_earlier",
    "ensure_alarm",
    "cancel_alarm",
    "get_alarm_status",
}
NOT_LISTED = {
    "ServiceScheduler": SCHEDULING | {"list_alarms", "transaction", "defer_wakes"},
    "AlarmTransaction": SCHEDULING,
    "DispatchOptions": {"timeout_seconds", "retry_failed_after_ms"},
    "Retry": {"after_ms"},
    "StorageOptions": {"busy_timeout_seconds"},
    # Those of `AlarmClock`.
    "SystemClock": {"now_ms", "sleep_until_ms"},
    "TrioClock": {"now_ms", "sleep_until_ms"},
}


def public_methods(name: str) -> set[str]:
    """The methods and properties of a public class, inherited ones included."""
    return {
        member
        for member, value in inspect.getmembers(attrgetter(name)(trio_alarms))
        if not member.startswith("_") and (inspect.isroutine(value) or isinstance(value, property))
    }


@pytest.mark.parametrize("name", sorted(LISTED))
def test_the_reference_lists_every_method(name: str) -> None:
    """A method that is added is listed, and one that goes is not."""
    assert len(LISTED[name]) == len(set(LISTED[name]))
    assert set(LISTED[name]) | NOT_LISTED.get(name, set()) == public_methods(name)
