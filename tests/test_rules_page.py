"""The page of rules: it has every rule, each with a test that exists and was seen to fail."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "explanation" / "rules.md").read_text("utf-8")

# The numbers are fixed: code, tests and commits refer to them. Those between are not in use.
RULES = (
    *(f"R{number}" for number in range(1, 10)),
    "R6a",
    *(f"R{number}" for number in range(10, 37)),
    *("R40", "R41"),
    *(f"R{number}" for number in range(50, 54)),
    *(f"R{number}" for number in range(60, 64)),
)

HEADING = re.compile(r"^### (R\d+a?) \S", re.MULTILINE)
LINE = re.compile(
    r"^\| (?:\[(R\d+a?)\]|host) \| `(tests/[\w/]+\.py(?:::\w+)+)` \| (.+) \|$", re.MULTILINE
)
RULE = re.compile(r"\bR\d+a?\b")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
PARENTHESES = re.compile(r"\(([^()]*)\)")


def sources(folder: str) -> Iterator[Path]:
    """Every Python file below a folder of the project."""
    return (ROOT / folder).rglob("*.py")


def found_by_pytest(path: Path) -> Iterator[str]:
    """What pytest finds in a file: functions, methods of classes, and what is assigned a name."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, FUNCTIONS):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            members = [each for each in node.body if isinstance(each, FUNCTIONS)]
            yield from (f"{node.name}::{member.name}" for member in members)
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def docstrings_in(path: Path) -> Iterator[str]:
    """The docstring of every test of a file."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield ast.get_docstring(node) or ""


def rules_named(text: str) -> set[str]:
    """The rules that a text names in parentheses, as in "(R28)" and "(R17, R18)"."""
    return {rule for inside in PARENTHESES.findall(text) for rule in RULE.findall(inside)}


def test_the_page_has_every_rule_once() -> None:
    """No number is missing, doubled or made up."""
    assert sorted(HEADING.findall(PAGE)) == sorted(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_was_seen_to_fail(rule: str) -> None:
    """For each rule the page names a test, and what was broken in the code to turn it red."""
    assert rule in {named for named, _, _ in LINE.findall(PAGE)}


def test_the_page_names_tests_that_exist() -> None:
    """A test that is renamed or removed takes its line on the page along."""
    found = {
        f"{path.relative_to(ROOT).as_posix()}::{name}"
        for path in sources("tests")
        for name in found_by_pytest(path)
    }
    named = {test for _, test, _ in LINE.findall(PAGE)}
    assert named - found == set()


def test_every_line_of_the_tables_is_read() -> None:
    """No line is passed over above because it is written differently."""
    assert len(LINE.findall(PAGE)) == len(re.findall(r"^\| .*`tests/", PAGE, re.MULTILINE))


def test_tests_name_rules_that_exist() -> None:
    """A docstring refers to a rule of the page."""
    named = {
        rule
        for path in sources("tests")
        for text in docstrings_in(path)
        for rule in rules_named(text)
    }
    assert named
    assert named - set(RULES) == set()


def test_the_code_names_rules_that_exist() -> None:
    """A comment or a docstring of the package refers to a rule of the page."""
    named = {
        rule for path in sources("trio_alarms") for rule in rules_named(path.read_text("utf-8"))
    }
    assert named
    assert named - set(RULES) == set()
