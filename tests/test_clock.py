from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, assert_checkpoints

from trio_alarms._clock import (
    AlarmClock,
    SystemClock,
    TrioClock,
    default_clock,
    runs_on_mock_clock,
)
from trio_alarms._errors import InvalidScheduleConfigurationError
from trio_alarms._time import MAX_INSTANT_MS

START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z


@attrs.define
class _WallClock:
    """A wall clock that runs with Trio's virtual clock, except where a test steps it."""

    offset_ns: int = START_MS * 1_000_000
    readings: int = 0

    def time_ns(self) -> int:
        self.readings += 1
        return self.offset_ns + round(Fraction(trio.current_time()) * 1_000_000_000)

    def step(self, seconds: float) -> None:
        self.offset_ns += round(seconds * 1_000_000_000)


@pytest.fixture
def wall_clock(monkeypatch: pytest.MonkeyPatch) -> _WallClock:
    """The clock that `time.time_ns` reads."""
    clock = _WallClock()
    monkeypatch.setattr(time, "time_ns", clock.time_ns)
    return clock


@pytest.mark.parametrize(
    ("nanoseconds", "milliseconds"),
    [(0, 0), (999_999, 0), (1_000_000, 1), (-1, -1), (1_999_999, 1), (START_MS * 10**6, START_MS)],
)
def test_the_wall_clock_is_rounded_down(
    monkeypatch: pytest.MonkeyPatch, nanoseconds: int, milliseconds: int
) -> None:
    """A moment within a millisecond has not reached the next one, so nothing fires early."""
    monkeypatch.setattr(time, "time_ns", lambda: nanoseconds)
    assert SystemClock().now_ms() == milliseconds


async def test_sleep_ends_at_its_deadline(
    autojump_clock: MockClock, wall_clock: _WallClock
) -> None:
    """Without a step, a sleep ends exactly at its deadline, over many check intervals (C04)."""
    clock = SystemClock()
    await clock.sleep_until_ms(START_MS + 86_400_001)
    assert clock.now_ms() == START_MS + 86_400_001


async def test_a_step_forward_is_noticed_within_one_check_interval(
    autojump_clock: MockClock, wall_clock: _WallClock
) -> None:
    """Due at 09:00, asleep at 08:55, stepped to 10:00: noticed in one interval (C01)."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(SystemClock().sleep_until_ms, START_MS + 300_000)
        await trio.sleep(1)
        wall_clock.step(3_900)
        stepped_at = trio.current_time()
    assert trio.current_time() - stepped_at <= 30


async def test_a_step_back_does_not_end_the_sleep_early(
    autojump_clock: MockClock, wall_clock: _WallClock
) -> None:
    """A step back by 30 s in mid-sleep: the sleep lasts as much longer, not less (C01)."""
    clock = SystemClock()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(clock.sleep_until_ms, START_MS + 60_000)
        await trio.sleep(45)
        wall_clock.step(-30)
    assert clock.now_ms() == START_MS + 60_000
    assert trio.current_time() == pytest.approx(90, abs=1e-6)


async def test_a_step_back_by_years_is_survived(
    autojump_clock: MockClock, wall_clock: _WallClock
) -> None:
    """A clock set to the epoch and put right later delays the sleep by one interval at most."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(SystemClock().sleep_until_ms, START_MS + 10_000)
        await trio.sleep(5)
        wall_clock.step(-START_MS / 1000)
        await trio.sleep(100)
        wall_clock.step(START_MS / 1000)
        put_right_at = trio.current_time()
    assert trio.current_time() - put_right_at <= 30


@pytest.mark.parametrize("early", [0.003, 0.0005, 0.000_000_5])
async def test_a_sleep_of_trio_that_ends_early_is_continued(
    autojump_clock: MockClock,
    wall_clock: _WallClock,
    monkeypatch: pytest.MonkeyPatch,
    early: float,
) -> None:
    """When Trio wakes 3 ms early by the wall clock, the rest is slept too (C04)."""
    whole_sleep = trio.sleep

    async def short_sleep(seconds: float) -> None:
        await whole_sleep(max(seconds - early, 0.000_1))

    monkeypatch.setattr(trio, "sleep", short_sleep)
    clock = SystemClock()
    await clock.sleep_until_ms(START_MS + 100)
    assert START_MS + 100 <= clock.now_ms() <= START_MS + 101


async def test_a_sleep_reads_the_wall_clock_once_per_check_interval(
    autojump_clock: MockClock, wall_clock: _WallClock
) -> None:
    """The check interval bounds every slice, and no shorter slice costs a wake (R50)."""
    await SystemClock(check_interval=10).sleep_until_ms(START_MS + 100_000)
    assert wall_clock.readings == 11


@pytest.mark.parametrize("clock", [SystemClock(), TrioClock()])
@pytest.mark.parametrize("deadline", [-(10**15), 0, 946_684_800_000])
async def test_a_deadline_in_the_past_is_a_checkpoint(
    mock_clock: MockClock, wall_clock: _WallClock, clock: AlarmClock, deadline: int
) -> None:
    """Sleeping until what is past returns at once, after a checkpoint."""
    with assert_checkpoints():
        await clock.sleep_until_ms(deadline)
    with trio.CancelScope() as scope:
        scope.cancel()
        await clock.sleep_until_ms(deadline)
    assert scope.cancelled_caught
    assert trio.current_time() == 0


@pytest.mark.parametrize("clock", [SystemClock(), TrioClock()])
async def test_cancellation_ends_a_sleep_at_once(
    autojump_clock: MockClock, wall_clock: _WallClock, clock: AlarmClock
) -> None:
    """A sleep until the year 9999 overflows nothing and is cancelled like any other (C03)."""
    with trio.move_on_after(3) as scope:
        await clock.sleep_until_ms(MAX_INSTANT_MS)
    assert scope.cancelled_caught
    assert trio.current_time() == pytest.approx(3)


@pytest.mark.parametrize(
    ("given_interval", "seconds"),
    [(0.25, 0.25), (5, 5.0), (timedelta(minutes=2), 120.0), (1e-9, 0.001)],
)
def test_check_interval_is_a_duration(given_interval: float, seconds: float) -> None:
    """A check interval is any positive duration, and is read back in seconds."""
    assert SystemClock(check_interval=given_interval).check_interval == seconds
    assert SystemClock().check_interval == 30.0


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True, None, "30", 1e12])
def test_a_bad_check_interval_is_refused(value: float) -> None:
    """A bad argument of a clock is refused at construction, by name."""
    with pytest.raises(InvalidScheduleConfigurationError, match=r"^check_interval must be "):
        SystemClock(check_interval=value)


async def test_trio_clock_is_epoch_plus_trio_time(mock_clock: MockClock) -> None:
    """`TrioClock` starts at its epoch and moves with Trio's clock."""
    clock = TrioClock()
    assert clock.epoch == datetime(2000, 1, 1, tzinfo=UTC)
    assert clock.now_ms() == 946_684_800_000
    mock_clock.jump(1.5)
    assert clock.now_ms() == 946_684_801_500


@pytest.mark.parametrize(
    ("microsecond", "elapsed", "milliseconds"),
    [
        (0, 0.001, 1),
        (0, 0.000_999, 0),
        (0, 0.000_999_4, 0),
        (0, 0.000_999_6, 1),
        (0, 0.1 + 0.2, 300),
        (0, 0.29, 290),
        (0, 4.35, 4350),
        (500, 0.000_499, 0),
        (500, 0.000_5, 1),
        (999_999, 0.000_001, 1000),
    ],
)
async def test_trio_clock_rounds_to_microseconds_and_then_down(
    mock_clock: MockClock, microsecond: int, elapsed: float, milliseconds: int
) -> None:
    """Trio's time is rounded to the nearest microsecond, then the sum down to milliseconds."""
    clock = TrioClock(epoch=datetime(2000, 1, 1, microsecond=microsecond, tzinfo=UTC))
    mock_clock.jump(elapsed)
    assert clock.now_ms() - 946_684_800_000 == milliseconds


async def test_repeated_jumps_do_not_drift(mock_clock: MockClock) -> None:
    """A thousand jumps of a tenth of a second are a hundred seconds."""
    clock = TrioClock()
    for step in range(1, 1001):
        mock_clock.jump(0.1)
        assert clock.now_ms() == 946_684_800_000 + 100 * step


_EPOCHS = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-9, minutes=-30))]))
_DEADLINES = st.one_of(
    st.integers(-62_135_596_800_000, MAX_INSTANT_MS),
    st.integers(MAX_INSTANT_MS - 100_000, MAX_INSTANT_MS),
    st.integers(946_684_800_000, 946_684_900_000),
)


@given(_EPOCHS, st.floats(0, 1e11), _DEADLINES)
def test_trio_clock_never_wakes_early(epoch: datetime, start: float, deadline: int) -> None:
    """However far the deadline: when the sleep returns, the clock has reached it (C04)."""

    async def main() -> None:
        mock_clock.jump(start)
        clock = TrioClock(epoch=epoch)
        slept_from = clock.now_ms()
        await clock.sleep_until_ms(deadline)
        assert clock.now_ms() >= deadline
        # As exact as Trio's floating point seconds are so far out.
        assert clock.now_ms() <= max(slept_from, deadline)

    mock_clock = MockClock(autojump_threshold=0)
    trio.run(main, clock=mock_clock)


async def test_trio_clock_sleeps_in_one_piece(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a `TrioClock` a sleep is one piece, however long (R50)."""
    sleeps = 0
    sleep_until = trio.sleep_until

    async def counting(deadline: float) -> None:
        nonlocal sleeps
        sleeps += 1
        await sleep_until(deadline)

    monkeypatch.setattr(trio, "sleep_until", counting)
    clock = TrioClock()
    await clock.sleep_until_ms(MAX_INSTANT_MS)
    assert clock.now_ms() == MAX_INSTANT_MS
    assert sleeps == 1


@pytest.mark.parametrize(
    "value",
    [None, 0, "2000-01-01", datetime(2000, 1, 1)],  # noqa: DTZ001 - the case tested
)
def test_a_bad_epoch_is_refused(value: datetime) -> None:
    """A bad argument of a clock is refused at construction, by name."""
    with pytest.raises(InvalidScheduleConfigurationError, match=r"^epoch must be an aware "):
        TrioClock(epoch=value)


def test_clocks_are_values() -> None:
    """Clocks made alike are equal, and show what they were made with."""
    epoch = datetime(2020, 1, 1, tzinfo=UTC)
    assert TrioClock(epoch=epoch) == TrioClock(epoch)
    assert TrioClock(epoch=epoch) != TrioClock()
    assert repr(TrioClock(epoch)) == f"TrioClock(epoch={epoch!r})"
    assert repr(SystemClock()) == "SystemClock(check_interval=30.0)"


def test_both_clocks_are_alarm_clocks() -> None:
    """What has the two methods is an `AlarmClock`, also when asked at run time."""
    assert isinstance(SystemClock(), AlarmClock)
    assert isinstance(TrioClock(), AlarmClock)
    assert not isinstance(object(), AlarmClock)


async def test_the_default_under_a_mock_clock_is_a_trio_clock(mock_clock: MockClock) -> None:
    """A plain `mock_clock` or `autojump_clock` test just works."""
    assert runs_on_mock_clock()
    assert default_clock() == TrioClock()


async def test_the_default_under_the_real_clock_is_the_system_clock() -> None:
    """Without a `MockClock` the wall clock tells the time."""
    assert not runs_on_mock_clock()
    assert default_clock() == SystemClock()


@pytest.mark.parametrize("call", [runs_on_mock_clock, default_clock, TrioClock().now_ms])
def test_trio_says_when_it_does_not_run(call: Callable[[], object]) -> None:
    """What needs the running Trio raises Trio's own error outside of it."""
    with pytest.raises(RuntimeError, match="async context"):
        call()


def test_asking_for_a_mock_clock_imports_nothing() -> None:
    """Neither the import nor the question loads `trio.testing` into production."""
    code = """
import sys, trio
from trio_alarms import _clock
async def main():
    assert not _clock.runs_on_mock_clock()
trio.run(main)
assert "trio.testing" not in sys.modules
"""
    root = Path(__file__).parents[1]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, check=False, timeout=60)
    assert run.returncode == 0
