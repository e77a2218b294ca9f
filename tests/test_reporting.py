from __future__ import annotations

import contextvars
import functools
import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_alarms._errors import InvalidScheduleConfigurationError
from trio_alarms._model import AlarmParked
from trio_alarms._reporting import (
    Reporter,
    alarm_reporter,
    current_reporter,
    logger,
    report_parked,
)

RETRY_AT = "2030-01-01T00:00:00+00:00"
REPORTS = [
    AlarmParked(attempts=attempts, retry_at=datetime.fromisoformat(RETRY_AT))
    for attempts in (8, 9, 10)
]


class _Recorder:
    """A reporter that remembers; false in a condition, as one that is a collection would be."""

    def __init__(self) -> None:
        self.seen: list[AlarmParked] = []

    def __len__(self) -> int:
        return 0

    async def __call__(self, parked: AlarmParked) -> None:
        await trio.lowlevel.checkpoint()
        self.seen.append(parked)


@pytest.fixture
def recorder() -> _Recorder:
    """A reporter that remembers what it was given."""
    return _Recorder()


async def test_without_a_reporter_a_warning_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The default is a content-free warning on the `trio_alarms` logger (R16)."""
    await report_parked(REPORTS[:1], current_reporter(None))
    assert caplog.record_tuples == [
        (
            "trio_alarms",
            logging.WARNING,
            f"an alarm was parked after 8 unchanged attempts; it is tried again at {RETRY_AT}",
        )
    ]
    assert logger.name == "trio_alarms"


async def test_each_report_is_made_once_in_order(recorder: _Recorder) -> None:
    """Reports reach the reporter in the order in which the alarms were parked (R16)."""
    await report_parked(REPORTS, recorder)
    assert recorder.seen == REPORTS


def test_a_reporter_that_is_false_is_still_a_reporter(recorder: _Recorder) -> None:
    """Whether there is a reporter is asked by identity with `None`, not by truth."""
    assert current_reporter(recorder) is recorder
    with alarm_reporter(recorder):
        assert current_reporter(None) is recorder


async def _ignore(_parked: AlarmParked) -> None: ...


async def _ignore_too(_parked: AlarmParked) -> None: ...


def test_the_innermost_override_wins_over_the_host(recorder: _Recorder) -> None:
    """The task's override, else the host's reporter, else the log."""
    with alarm_reporter(_ignore):
        with alarm_reporter(_ignore_too):
            assert current_reporter(recorder) is _ignore_too
        assert current_reporter(recorder) is _ignore
    assert current_reporter(recorder) is recorder


async def test_an_override_holds_for_the_task_and_what_it_starts(recorder: _Recorder) -> None:
    """Tasks started inside inherit it across awaits, tasks beside it do not see it."""
    seen: dict[str, Reporter] = {}

    async def look(name: str) -> None:
        await trio.lowlevel.checkpoint()
        seen[name] = current_reporter(recorder)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look, "before")
        with alarm_reporter(_ignore):
            nursery.start_soon(look, "inside")
            await trio.lowlevel.checkpoint()
        nursery.start_soon(look, "after")
    assert seen == {"before": recorder, "inside": _ignore, "after": recorder}


def test_leaving_in_another_context_disturbs_nothing_there() -> None:
    """A generator's clean-up may run in a foreign context, whose own override stays."""
    override = alarm_reporter(_ignore)
    contextvars.copy_context().run(override.__enter__)
    override.__exit__(None, None, None)
    with alarm_reporter(_ignore_too):
        override.__exit__(None, None, None)
        assert current_reporter(None) is _ignore_too


def test_an_override_ends_with_its_block_on_an_error_too(recorder: _Recorder) -> None:
    """What the body raises leaves the block unchanged, and the override is gone."""
    error = ValueError()
    with (
        pytest.raises(ValueError) as caught,  # noqa: PT011 - its identity is compared
        alarm_reporter(_ignore),
    ):
        raise error
    assert caught.value is error
    assert current_reporter(recorder) is recorder


def _synchronous(_parked: AlarmParked) -> None: ...


@pytest.mark.parametrize("given", [None, _synchronous, functools.partial(_synchronous), "log"])
def test_what_is_no_async_callable_is_refused(given: Any) -> None:
    """A reporter that could never be awaited is refused at the call, by name."""
    with pytest.raises(
        InvalidScheduleConfigurationError, match=r"^reporter must be an async callable"
    ):
        alarm_reporter(given)


async def _raise_group() -> None:
    async with trio.open_nursery() as nursery:
        for error in (ValueError(), KeyError()):
            nursery.start_soon(_raise, error)


async def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("fail", [functools.partial(_raise, RuntimeError()), _raise_group])
async def test_a_failing_reporter_is_logged_and_the_next_report_made(
    caplog: pytest.LogCaptureFixture, fail: Callable[[], Any]
) -> None:
    """A failing reporter is logged with its traceback and changes nothing (R16)."""
    seen: list[int] = []

    async def reporter(parked: AlarmParked) -> None:
        seen.append(parked.attempts)
        await fail()

    await report_parked(REPORTS, reporter)
    assert seen == [8, 9, 10]
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3
    assert all(record.exc_info for record in caplog.records)


async def test_a_reporter_that_gives_no_awaitable_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A synchronous callable that could not be recognised fails like any other reporter."""
    await report_parked(REPORTS[:1], lambda _parked: None)  # type: ignore[arg-type,return-value]  # the case tested
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_reports_never_take_more_than_five_seconds(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A reporter that hangs is bounded: all reports together take 5 s at most (R16)."""
    seen: list[int] = []

    async def hang(parked: AlarmParked) -> None:
        seen.append(parked.attempts)
        await trio.sleep_forever()

    await report_parked(REPORTS, hang)
    assert trio.current_time() == pytest.approx(5)
    assert seen == [8, 9, 10]
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3


async def test_one_hanging_report_leaves_time_for_the_others(autojump_clock: MockClock) -> None:
    """The time left is shared among the reports that are left."""
    finished: list[int] = []

    async def reporter(parked: AlarmParked) -> None:
        if parked.attempts == 8:
            await trio.sleep_forever()
        await trio.sleep(1.5)
        finished.append(parked.attempts)

    await report_parked(REPORTS, reporter)
    assert finished == [9, 10]


async def test_a_single_reporter_has_all_five_seconds(autojump_clock: MockClock) -> None:
    """One report may take just under 5 s."""
    finished = False

    async def reporter(_parked: AlarmParked) -> None:
        nonlocal finished
        await trio.sleep(4.9)
        finished = True

    await report_parked(REPORTS[:1], reporter)
    assert finished


async def test_a_reporter_that_fails_while_it_is_cut_off_is_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """An error mixed with our own cancellation in one group escapes neither (R16)."""

    async def fail_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError

    async def reporter(_parked: AlarmParked) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(fail_when_cancelled)

    await report_parked(REPORTS[:1], reporter)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert caplog.records[0].exc_info


async def test_reports_are_made_under_cancellation(recorder: _Recorder) -> None:
    """Reports are shielded, and the cancellation is there when they are made (R16)."""
    reported: list[AlarmParked] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await report_parked(REPORTS, recorder)
        reported = list(recorder.seen)
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert reported == REPORTS


async def test_what_is_no_exception_leaves_as_it_came() -> None:
    """Only `Exception` is a failing reporter; an interruption is for the program."""

    async def interrupt(_parked: AlarmParked) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await report_parked(REPORTS, interrupt)


async def test_a_broken_logging_handler_changes_nothing() -> None:
    """Where a logging handler raises, each report is made all the same, and so is its failure."""
    emitted: list[str] = []

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            emitted.append(record.levelname)
            raise RuntimeError

    broken = Broken()
    logger.addHandler(broken)
    try:
        await report_parked(REPORTS, current_reporter(None))
    finally:
        logger.removeHandler(broken)
    assert emitted == ["WARNING", "ERROR"] * len(REPORTS)


async def test_nothing_to_report_asks_nobody(
    recorder: _Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a report no reporter is called, nor the log written to."""
    for reporter in (current_reporter(recorder), current_reporter(None)):
        await report_parked([], reporter)
    assert recorder.seen == []
    assert caplog.records == []
