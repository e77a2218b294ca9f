"""The documentation's Python runs.

The blocks of a page are one program, in reading order. A block that begins with a comment naming
a file (`# remind.py`) is saved under that name instead and run from there, by pytest if the name
begins with `test_`. Everything a page writes lands in one temporary folder.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# (?P<name>\w+\.py)\n")
# Runs files one after the other, each put in its place only then, and each in a process of its
# own. What importing the package takes is paid once.
RUN_EACH = """
import os, runpy, sys
import trio_alarms

waiting = sys.argv[1]
for name in sys.argv[2:]:
    os.replace(os.path.join(waiting, name), name)
    if not (child := os.fork()):
        sys.argv = [name]
        runpy.run_path(name, run_name="__main__")
        sys.exit()
    if status := os.waitpid(child, 0)[1]:
        sys.exit(f"{name} ended with {os.waitstatus_to_exitcode(status)}")
"""
PAGES = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in path.parts),
]


@attrs.frozen
class Program:
    """A program that a page shows: what it is called, and its text on the page's own lines."""

    name: str
    text: str


def on_its_lines(page: str, match: re.Match[str]) -> str:
    """The block's code, moved down so that a traceback gives line numbers of the page."""
    return "\n" * page.count("\n", 0, match.start("code")) + match["code"]


def programs_of(page: str) -> Iterator[Program]:
    """The programs of a page: its named files in order, then what its other blocks make up."""
    rest = ""
    for match in BLOCK.finditer(page):
        code = on_its_lines(page, match)
        if named := FILE_NAME.match(match["code"]):
            yield Program(named["name"], code)
        else:
            rest += code[rest.count("\n") :]
    if rest:
        yield Program("page.py", rest)


PYTHON = [sys.executable, "-W", "error"]


def is_for_pytest(name: str) -> bool:
    """Whether a file holds tests."""
    return name.startswith("test_")


def command(name: str) -> Sequence[str]:
    """How a reader would run this file."""
    if is_for_pytest(name):
        return [*PYTHON, "-m", "pytest", "-q", "-o", "trio_mode=true", name]
    return [*PYTHON, name]


def environment() -> dict[str, str]:
    """The environment of a reader who has this checkout installed."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run(program: Program, folder: Path) -> str:
    """Save a program and run it for real; what it printed."""
    (folder / program.name).write_text(program.text, encoding="utf-8")
    return run_command(command(program.name), folder)


def run_page(programs: Sequence[Program], folder: Path) -> None:
    """Save and run the programs of a page for real, each before the next is there."""
    waiting = folder / "waiting"
    waiting.mkdir()
    for for_pytest, group in groupby(programs, lambda each: is_for_pytest(each.name)):
        if for_pytest:
            for program in group:
                run(program, folder)
        else:
            names = []
            for program in group:
                (waiting / program.name).write_text(program.text, encoding="utf-8")
                names.append(program.name)
            run_command([*PYTHON, "-c", RUN_EACH, str(waiting), *names], folder)


def run_command(command: Sequence[str], folder: Path) -> str:
    """Run this for a minute at most; what it printed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, f"{command[-1]}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    """A reader can paste every block of Python that the documentation shows."""
    text = page.read_text("utf-8")
    assert text.count("```python") == len(BLOCK.findall(text)), "a block that would not be run"
    run_page(list(programs_of(text)), tmp_path)


def test_the_tutorials_reminder_survives_the_kill(tmp_path: Path) -> None:
    """What the tutorial shows by hand: killed before it rang, it rings in the next process."""
    tutorial = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
    (remind,) = (program for program in programs_of(tutorial) if program.name == "remind.py")
    (tmp_path / remind.name).write_text(remind.text, encoding="utf-8")
    start = {"cwd": tmp_path, "env": environment(), "text": True}
    python = command(remind.name)
    with subprocess.Popen([*python, "the kettle boils"], stdout=subprocess.PIPE, **start) as first:
        assert first.stdout is not None
        assert "to ring at" in first.stdout.readline()
        first.kill()
    second = subprocess.run(python, capture_output=True, check=True, timeout=60, **start)
    assert second.stdout.endswith("UTC: the kettle boils\n")


def test_the_tutorials_orders_can_be_taken_again(tmp_path: Path) -> None:
    """A reader who runs the program a second time sees the same."""
    tutorial = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
    programs = {program.name: program for program in programs_of(tutorial)}
    (tmp_path / "remind.py").write_text(programs["remind.py"].text, encoding="utf-8")
    first = run(programs["orders.py"], tmp_path)
    assert first.endswith("orders: [('tea',)], alarms: ['tea']\n")
    assert run(programs["orders.py"], tmp_path) == first


def test_the_diagrams_are_what_the_script_draws() -> None:
    """A diagram is changed in docs/diagrams.py, and drawn again."""
    script = ROOT / "docs" / "diagrams.py"
    drawings = runpy.run_path(str(script))["drawings"]()
    static = ROOT / "docs" / "_static"
    assert {path.name: path.read_text("utf-8") for path in static.glob("*.svg")} == drawings


def test_a_failing_block_is_noticed(tmp_path: Path) -> None:
    """The check above would fail, and would name the page's line."""
    page = "# Title\n\n```python\nvalue = 1\n```\n\nand\n\n```python\nassert value == 2\n```\n"
    with pytest.raises(AssertionError, match=r'page\.py", line 10'):
        run_page(list(programs_of(page)), tmp_path)


def test_a_file_that_needs_a_later_one_is_noticed(tmp_path: Path) -> None:
    """A reader who pastes a page from its top has the earlier ones alone."""
    page = "```python\n# one.py\nimport two\n```\n```python\n# two.py\nvalue = 1\n```\n"
    with pytest.raises(AssertionError, match="No module named 'two'"):
        run_page(list(programs_of(page)), tmp_path)


def test_a_named_file_can_be_imported_by_the_next(tmp_path: Path) -> None:
    """Files of one page lie side by side, and a test file is run by pytest."""
    page = (
        "```python\n# one.py\nvalue = 1\n```\n"
        "```python\n# test_one.py\nfrom one import value\n\n"
        "def test_it() -> None:\n    assert value == 1\n```\n"
    )
    programs = list(programs_of(page))
    assert [program.name for program in programs] == ["one.py", "test_one.py"]
    run_page(programs, tmp_path)
