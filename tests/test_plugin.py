from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]

# What every test file of these needs.
PREAMBLE = """
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio

from trio_alarms import TrioClock, process_due

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
"""

# A package that stands before the real one, and is as good as not installed.
HIDDEN = "raise ModuleNotFoundError(f'No module named {__name__!r}', name=__name__)"


@pytest.fixture
def run_tests(pytester: pytest.Pytester) -> pytest.Pytester:
    """A directory in which tests of trio's kind run in a process of their own."""
    pytester.makeini("[pytest]\ntrio_mode = true\n")
    return pytester


def _run(pytester: pytest.Pytester, body: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(test_user=PREAMBLE + body)
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments)


def test_the_fixtures_are_there_once_the_package_is(run_tests: pytest.Pytester) -> None:
    """The plugin is registered by an entry point, and its fixtures have help (api)."""
    result = _run(run_tests, "", "--fixtures")
    result.stdout.fnmatch_lines(["alarm_harness*", "    Open harnesses:*"])
    result.stdout.fnmatch_lines(["alarm_clock*", "    Make clocks:*"])
    assert result.ret == 0


@pytest.mark.parametrize("clock", ["mock_clock", "autojump_clock"])
def test_a_harness_works_with_both_clocks(run_tests: pytest.Pytester, clock: str) -> None:
    """`alarm_harness` opens a host on the test's own mock clock (api)."""
    result = _run(
        run_tests,
        f"""
async def test_it(alarm_harness, {clock}):
    handled = []

    async def handle(event):
        handled.append(trio.current_time())

    harness = await alarm_harness(alarms=process_due(handle))
    await harness.host.scheduler.schedule_alarm("job", "a", after=5)
    await harness.advance(60)
    assert handled == [5]
    assert harness.host.now() == EPOCH + timedelta(seconds=60)
""",
    )
    result.assert_outcomes(passed=1)


def test_as_many_harnesses_as_wanted_are_closed_in_the_end(run_tests: pytest.Pytester) -> None:
    """Each lives until the test's end, and leaves nothing behind (api)."""
    result = _run(
        run_tests,
        """
OPENED = []

async def test_many(alarm_harness, mock_clock, tmp_path):
    for name in ("one", "two"):
        harness = await alarm_harness(database=tmp_path / "alarms.db", name=name)
        await harness.host.scheduler.schedule_alarm("job", "a", after=60)
        OPENED.append(harness)
    OPENED.append(await alarm_harness())
    await OPENED[0].crash()
    assert (tmp_path / "alarms.db-wal").exists()
    OPENED.append(tmp_path)

async def test_afterwards():
    one, two, private, path = OPENED
    assert not (path / "alarms.db-wal").exists()
    assert not Path(private.database).parent.exists()
""",
    )
    result.assert_outcomes(passed=2)


def test_a_harness_needs_the_tests_own_clock(run_tests: pytest.Pytester) -> None:
    """Without a mock clock the error says which fixtures to use (api)."""
    result = _run(
        run_tests,
        """
async def test_it(alarm_harness):
    await alarm_harness()
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*InvalidScheduleConfigurationError*mock_clock or*"])


def test_a_failing_test_fails_with_its_own_error(run_tests: pytest.Pytester) -> None:
    """An open harness hides no assertion (api: Exceptions)."""
    result = _run(
        run_tests,
        """
async def test_it(alarm_harness, mock_clock):
    harness = await alarm_harness()
    await harness.host.scheduler.schedule_alarm("job", "a", after=60)
    assert harness.host.name == "another"
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*AssertionError: assert 'default' == 'another'*"])


def test_a_failure_in_the_background_fails_the_test(run_tests: pytest.Pytester) -> None:
    """What a driver's pass raised after the test's last call is not lost (api)."""
    result = _run(
        run_tests,
        """
async def hook(host):
    raise LookupError("in the background")

async def test_it(alarm_harness, mock_clock):
    harness = await alarm_harness(raw_alarm=hook, driver=True)
    await harness.host.scheduler.schedule_alarm("job", "a", after=0)
    await trio.testing.wait_all_tasks_blocked()
""".replace("async def hook", "import trio.testing\n\nasync def hook"),
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*LookupError: in the background*"])


def test_a_bad_option_fails_where_it_is_given(run_tests: pytest.Pytester) -> None:
    """The test itself can catch what opening raises, and go on (api)."""
    result = _run(
        run_tests,
        """
from trio_alarms import InvalidAlarmRefError

async def test_it(alarm_harness, mock_clock):
    with pytest.raises(InvalidAlarmRefError):
        await alarm_harness(name="")
    harness = await alarm_harness(name="good")
    assert harness.host.name == "good"
""",
    )
    result.assert_outcomes(passed=1)


def test_a_clock_is_on_the_tests_mock_clock(run_tests: pytest.Pytester) -> None:
    """`alarm_clock` makes `TrioClock`s, with an epoch where one is given (api)."""
    result = _run(
        run_tests,
        """
async def test_it(alarm_clock, mock_clock):
    mock_clock.jump(7)
    clock = alarm_clock()
    assert isinstance(clock, TrioClock)
    assert clock.now_ms() == EPOCH.timestamp() * 1000 + 7_000
    epoch = datetime(2030, 1, 1, tzinfo=UTC)
    assert alarm_clock(epoch=epoch).now_ms() == epoch.timestamp() * 1000 + 7_000

def test_without_a_loop(alarm_clock):
    assert callable(alarm_clock)
""",
    )
    result.assert_outcomes(passed=2)


@pytest.mark.parametrize("fixture", ["alarm_harness", "alarm_clock"])
def test_without_pytest_trio_the_fixtures_say_what_to_install(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, fixture: str
) -> None:
    """The plugin loads, other tests run, and only who asks is told (api)."""
    _hide(pytester, monkeypatch, "pytest_trio")
    pytester.makepyfile(
        f"""
        def test_other():
            pass

        def test_it({fixture}):
            pass
        """
    )
    # Its own entry point is not there either.
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:trio")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines([f"*{fixture}*trio_alarms?testing?*"])


def test_importing_the_package_imports_no_pytest(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither `trio_alarms` nor `trio_alarms.testing` needs pytest (api)."""
    _hide(pytester, monkeypatch, "pytest", "_pytest", "pytest_trio")
    program = """
import sys, trio, trio.testing
import trio_alarms
from trio_alarms.testing import open_test_host

async def main():
    async with open_test_host() as harness:
        await harness.host.scheduler.schedule_alarm("job", "a", after=1)
        await harness.advance(1)

trio.run(main, clock=trio.testing.MockClock())
assert not {"pytest", "_pytest", "pytest_trio"} & set(sys.modules)
"""
    finished = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr


def _hide(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Have no child process import any of these packages."""
    directory = pytester.mkdir("hidden")
    for package in packages:
        (directory / package).mkdir()
        (directory / package / "__init__.py").write_text(HIDDEN)
    monkeypatch.setenv("PYTHONPATH", f"{directory}{os.pathsep}{ROOT}")
