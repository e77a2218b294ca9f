"""Everything that is run on this project: tests, checks, documentation, the demo.

`nox` alone runs what a change must pass. Each session makes its own environment from
`pyproject.toml`: the project with its extras, and dependency groups for what only we need.
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import nox

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "virtualenv"  # comes with nox, and brings a current pip
nox.options.error_on_external_run = True
nox.options.sessions = ["tests", "lint", "typing", "wheel", "docs"]

ROOT = Path(__file__).parent
PYPROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
TYPED_SOURCES = ["trio_alarms", "tests/typing", "tests/mutants", "examples", "benchmarks"]
# What flake8-async checks on the package: ruff's ASYNC rules know none of these.
CHECKPOINT_RULES = "ASYNC910,ASYNC911"
NO_TESTS_COLLECTED = 5  # pytest's exit code
# Tests start hundreds of interpreters, each of which would compile the package anew where the
# machine says to write no bytecode. Not for the mutants, whose files change within a second.
BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}

# What `import trio_alarms` may not bring along: everything in an extra.
IMPORT_CHECK = """
import sys
import trio_alarms
optional = {"_pytest", "pytest", "pytest_trio", "icalendar", "recurring_ical_events", "rich"}
assert not optional & set(sys.modules), optional & set(sys.modules)
assert "site-packages" in trio_alarms.__file__, trio_alarms.__file__
for name in trio_alarms.__all__:
    getattr(trio_alarms, name)
print(f"trio_alarms {trio_alarms.__file__}: {len(trio_alarms.__all__)} public names")
"""


def groups(*names: str) -> tuple[str, ...]:
    """The requirements of these dependency groups of pyproject.toml."""
    return nox.project.dependency_groups(PYPROJECT, *names)


def build_wheel(session: nox.Session) -> Path:
    """Build the sdist, and from it the wheel, into this session's temporary folder."""
    dist = Path(session.create_tmp()).resolve() / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(dist), str(ROOT), silent=True)
    (wheel,) = dist.glob("*.whl")
    return wheel


def run_tests(session: nox.Session) -> None:
    """Run the suite on all cores, after those tests that need the real clock to themselves."""
    if session.posargs:
        session.run("pytest", *session.posargs, env=BYTECODE)
        return
    alone = [0, NO_TESTS_COLLECTED]
    demo = "tests/examples"
    session.run("pytest", "-m", "real_time", f"--ignore={demo}", success_codes=alone, env=BYTECODE)
    # The demo sleeps through most of its seconds and may take a minute, so two run side by side.
    several = ["-n", "auto", "--dist", "worksteal", "--maxprocesses"]
    session.run("pytest", "-m", "real_time", demo, *several, "2", env=BYTECODE)
    session.run("pytest", "-m", "not real_time", *several, "4", env=BYTECODE)


@nox.session
def tests(session: nox.Session) -> None:
    """The tests, on the interpreter at hand. Arguments go to pytest: one serial run of those."""
    session.install("-e.[testing,demo]", *groups("tests"))
    run_tests(session)


@nox.session(python=["3.12", "3.13", "3.14"])
def tests_other(session: nox.Session) -> None:
    """The tests on other versions of Python, where they are installed."""
    session.install("-e.[testing,demo]", *groups("tests"))
    run_tests(session)


@nox.session
def tests_lowest(session: nox.Session) -> None:
    """The tests on the oldest releases that pyproject.toml admits."""
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"]
    oldest = [
        requirement.replace(">=", "==")
        for requirement in [*project["dependencies"], *extras["testing"], *extras["demo"]]
    ]
    session.install("-e.[testing,demo]", *groups("tests"), *oldest)
    run_tests(session)


@nox.session
def trust(session: nox.Session) -> None:
    """Searches for what nobody thought of: the model, kills, faults, hostile input. Minutes."""
    session.install("-e.[testing,demo]", *groups("tests"))
    if session.posargs:
        session.run("pytest", "-m", "trust", *session.posargs, env=BYTECODE)
        return
    alone = [0, NO_TESTS_COLLECTED]
    session.run("pytest", "-m", "trust and real_time", success_codes=alone, env=BYTECODE)
    session.run("pytest", "-m", "trust and not real_time", "-n", "2", env=BYTECODE)


@nox.session
def soak(session: nox.Session) -> None:
    """A long life: a million alarms, or TRIO_ALARMS_SOAK_CYCLES. The better part of an hour."""
    session.install("-e.[testing,demo]", *groups("tests"))
    session.run("pytest", "-m", "soak", "-s", *session.posargs)


@nox.session
def coverage(session: nox.Session) -> None:
    """Branch coverage of the package by its tests. Fails under the floor in pyproject.toml."""
    session.install("-e.[testing,demo]", *groups("coverage"))
    session.run("coverage", "erase")
    # Our pytest plugin imports the package before pytest-cov could start measuring.
    session.run("coverage", "run", "-m", "pytest", *session.posargs)
    session.run("coverage", "combine", "--quiet")
    session.run("coverage", "report")


@nox.session
def mutants(session: nox.Session) -> None:
    """Break one thing at a time: a named test must notice. Arguments choose, as R28 does."""
    session.install("-e.[testing,demo]", *groups("tests"))
    session.run("python", "-m", "tests.mutants", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """What it costs beside the least that is durable, with bounds. `-- --quick` is short."""
    session.install("-e.", *groups("bench"))
    session.run("python", "-m", "benchmarks", *session.posargs)


@nox.session
def bench_peers(session: nox.Session) -> None:
    """Beside what users would pick instead. An hour and more; `-- --quick` takes six minutes."""
    session.install("-e.")
    session.run("python", "-m", "benchmarks.peers", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, likely bugs, formatting, and that every async function is always a checkpoint."""
    session.install(*groups("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    sources = [str(path) for path in sorted(Path("trio_alarms").rglob("*.py"))]
    session.run("flake8-async", f"--enable={CHECKPOINT_RULES}", *sources)


@nox.session
def typing(session: nox.Session) -> None:
    """Types of the package, the typing tests and the examples; the wheel's public types."""
    session.install(*groups("typing", "bench"))
    wheel = build_wheel(session)
    session.install("--force-reinstall", "--no-deps", str(wheel))
    session.install(f"trio_alarms[testing,demo] @ {wheel.as_uri()}")
    session.run("mypy", *TYPED_SOURCES)
    session.run("pyright")
    # Away from the sources, so that it is the installed wheel that is looked at.
    with session.chdir(session.create_tmp()):
        session.run("pyright", "--verifytypes", "trio_alarms", "--ignoreexternal")


@nox.session
def wheel(session: nox.Session) -> None:
    """The wheel holds the package and nothing else, and works when it is all that is installed."""
    session.install("build")
    path = build_wheel(session)
    names = zipfile.ZipFile(path).namelist()
    strays = [name for name in names if not name.startswith(("trio_alarms/", "trio_alarms-"))]
    if strays or "trio_alarms/py.typed" not in names:
        session.error(f"the wheel holds {strays}, or lacks trio_alarms/py.typed")
    alone = Path(session.create_tmp()) / "alone"
    shutil.rmtree(alone, ignore_errors=True)
    session.run("python", "-m", "venv", str(alone), silent=True)
    python = str(alone / "bin" / "python")
    session.run(python, "-m", "pip", "install", "--quiet", str(path), external=True)
    session.run(python, "-I", "-W", "error", "-c", IMPORT_CHECK, external=True)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation as HTML, in docs/_build. A warning is an error."""
    session.install("-e.[testing]", *groups("docs"))
    session.run("sphinx-build", "-W", "--keep-going", "-E", "-b", "html", "docs", "docs/_build")


@nox.session
def demo(session: nox.Session) -> None:
    """Ring a calendar's reminders, with a kill half-way. Arguments go to examples.reminders."""
    session.install("-e.[demo]")
    session.run("python", "-m", "examples.reminders", *session.posargs)
