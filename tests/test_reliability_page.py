"""The page on reliability: every report is there, with tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "explanation" / "reliability.md").read_text("utf-8")
CASE = re.compile(r"^\| (C\d\d) \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_report_has_a_line_with_tests() -> None:
    """From the first to the last, each once."""
    lines = CASE.findall(PAGE)
    assert [case for case, _ in lines] == [f"C{number:02}" for number in range(1, 27)]
    assert [case for case, line in lines if not TEST.findall(line)] == []


def test_the_page_names_tests_that_exist() -> None:
    """A test that is renamed or removed takes its name on the page along."""
    missing = [
        f"{path}::{name}"
        for path, name in TEST.findall(PAGE)
        if name not in functions_of(ROOT / path)
    ]
    assert missing == []


def functions_of(path: Path) -> set[str]:
    """The functions at the top of a file."""
    nodes = ast.parse(path.read_text("utf-8")).body
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
