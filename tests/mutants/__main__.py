"""Break one thing at a time in a copy of the tree, and demand that the named test fails.

First all named tests must pass on an unbroken copy. A mutant counts as caught only if its test
fails by an assertion (or with the error it declares): a test that cannot be imported or set up
proves nothing, nor does one that runs into the time limit unless the mutant says so.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .catalogue import MUTANTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .mutant import Mutant

ROOT: Final = Path(__file__).parents[2]
COPIED: Final = ("trio_alarms", "tests", "examples", "pyproject.toml")
PROCESSES: Final = 2
SECONDS: Final = 120
BASELINE_SECONDS: Final = 300
TESTS_FAILED: Final = 1  # pytest's exit code; errors of collection or usage have others
PYTEST: Final = ("-m", "pytest", "-p", "no:cacheprovider", "-o", "addopts=", "--strict-markers")
# One serial run that stops at the first failure. Only the failing line of each frame is shown.
OPTIONS: Final = ("--import-mode=importlib", "-x", "-q", "--tb=native", "-rf")
# What a failing `assert` and a `pytest.raises` that saw nothing are shown as.
ASSERTION: Final = r"AssertionError|Failed"
# How patches fail that are merely no working Python.
SENSELESS: Final = r"ImportError|ModuleNotFoundError|NameError|UnboundLocalError|AttributeError"


def main(words: Sequence[str]) -> int:
    """Try the mutants that any of the words is in; all of them without any."""
    chosen = [one for one in MUTANTS if not words or any(word in repr(one) for word in words)]
    refused = [problem for one in chosen if (problem := does_not_apply(one)) is not None]
    if refused or not chosen:
        print("\n".join(refused) or "no such mutant")
        return 2
    began = time.monotonic()
    problem = baseline(sorted({one.test for one in chosen}))
    if problem is not None:
        print(f"the tests do not pass as it is: {problem}")
        return 2
    survivors = 0
    with ThreadPoolExecutor(PROCESSES) as pool:
        for one, problem in zip(chosen, pool.map(verdict, chosen), strict=True):
            survivors += problem is not None
            print(f"{'caught' if problem is None else 'SURVIVED':8} {one.rule:4} {one.breaks}")
            print(f"{'':13} {one.test}" + ("" if problem is None else f"\n{problem}"), flush=True)
    seconds = time.monotonic() - began
    print(f"{len(chosen) - survivors} of {len(chosen)} mutants were caught, in {seconds:.0f} s")
    return min(survivors, 1)


def does_not_apply(mutant: Mutant) -> str | None:
    """Why a mutant cannot be tried, if so."""
    try:
        mutant.applied((ROOT / "trio_alarms" / mutant.file).read_text())
    except (OSError, ValueError) as error:
        return f"{mutant.rule}, {mutant.breaks}: {error}"
    return None


def baseline(tests: Sequence[str]) -> str | None:
    """What fails although nothing is broken."""
    with tempfile.TemporaryDirectory(prefix="trio_alarms-mutants-") as name:
        tree = copied(Path(name))
        found = run(tree, ("-c", "import trio_alarms; print(trio_alarms.__file__)"), SECONDS)
        if found is None or str(tree) not in found.stdout:
            return "it is not the copied package that is imported"
        done = run(tree, (*PYTEST, *OPTIONS, *(f"tests/{test}" for test in tests)))
    if done is None:
        return f"they take more than {BASELINE_SECONDS} s"
    return None if done.returncode == 0 else done.stdout + done.stderr


def verdict(mutant: Mutant) -> str | None:
    """Break a fresh copy and run the test on it; why the mutant is not caught, if so."""
    with tempfile.TemporaryDirectory(prefix="trio_alarms-mutants-") as name:
        tree = copied(Path(name))
        broken = tree / "trio_alarms" / mutant.file
        broken.write_text(mutant.applied(broken.read_text()))
        done = run(tree, (*PYTEST, *OPTIONS, f"tests/{mutant.test}"), SECONDS)
    if done is None:
        return None if mutant.hangs else f"the test did not end within {SECONDS} s"
    if done.returncode == 0:
        return "the test passed"
    expected = ASSERTION if mutant.error == "AssertionError" else re.escape(mutant.error)
    # A test that could not be collected or set up is an ERROR and nothing else.
    if done.returncode != TESTS_FAILED or "\nFAILED " not in done.stdout:
        return f"the test could not be run:\n{done.stdout}{done.stderr}"
    if raised(SENSELESS, done.stdout) and not raised(expected, done.stdout):
        return f"the patch is no working code:\n{done.stdout}"
    if not raised(expected, done.stdout):
        return f"the test failed, but not by {mutant.error}:\n{done.stdout}"
    return None


def raised(names: str, output: str) -> bool:
    """Whether a traceback, maybe inside a group's, ends with one of these exceptions."""
    return re.search(rf"^[\s|]*(?:\w+\.)*(?:{names})(?::|$)", output, re.MULTILINE) is not None


def copied(directory: Path) -> Path:
    """A copy of the tree, without caches: a stale one could hide a patch."""
    tree = directory.resolve()
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", ".*")
            shutil.copytree(ROOT / name, tree / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tree / name)
    return tree


def run(
    tree: Path, arguments: Sequence[str], seconds: float = BASELINE_SECONDS
) -> subprocess.CompletedProcess[str] | None:
    """Run this Python in a copy of the tree, on the package that is there; `None`: too long."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(tree / ".hypothesis"),
    }
    try:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
