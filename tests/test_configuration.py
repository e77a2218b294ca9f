from __future__ import annotations

import contextlib
import contextvars
import math
import pickle
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import attrs
import pytest
import trio

from trio_alarms._configuration import (
    DEFAULT_CONFIGURATION,
    ResolvedConfiguration,
    ScheduleConfiguration,
    resolve_configuration,
    schedule_configuration,
)
from trio_alarms._errors import InvalidScheduleConfigurationError

HOST = ScheduleConfiguration()


def test_the_defaults() -> None:
    """What nobody decides has the documented defaults (R1)."""
    assert resolve_configuration(HOST) == DEFAULT_CONFIGURATION
    assert (
        ResolvedConfiguration(
            dispatch_after_event=False,
            in_flight_recovery_ms=1_000,
            minimum_retry_delay_ms=1_000,
            unchanged_attempt_budget=8,
            parked_retry_delay_ms=3_600_000,
            minimum_repeat_interval_ms=60_000,
        )
        == DEFAULT_CONFIGURATION
    )


@pytest.mark.parametrize(
    ("field", "value", "resolved"),
    [
        ("in_flight_recovery", 0.001, 1),
        ("in_flight_recovery", 1e-9, 1),
        ("minimum_retry_delay", 1, 1_000),
        ("minimum_retry_delay", timedelta(minutes=1), 60_000),
        ("parked_retry_delay", 3600, 3_600_000),
        ("parked_retry_delay", timedelta(hours=1, microseconds=1), 3_600_001),
        ("minimum_repeat_interval", 1.0, 1_000),
    ],
)
def test_durations_at_their_bounds_are_taken(field: str, value: Any, resolved: int) -> None:
    """Every bound belongs to the range, and durations become whole milliseconds (R1)."""
    configuration = resolve_configuration(ScheduleConfiguration(**{field: value}))
    expected: dict[str, Any] = {f"{field}_ms": resolved}
    assert configuration == attrs.evolve(DEFAULT_CONFIGURATION, **expected)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("in_flight_recovery", 0),
        ("minimum_retry_delay", 0.999),
        ("minimum_retry_delay", timedelta(0)),
        ("parked_retry_delay", 3599.999),
        ("parked_retry_delay", timedelta(minutes=59)),
        ("minimum_repeat_interval", 0.999),
        *(
            (field, value)
            for field in (
                "in_flight_recovery",
                "minimum_retry_delay",
                "parked_retry_delay",
                "minimum_repeat_interval",
            )
            for value in (-1, math.nan, math.inf, True, "1", 1e12, timedelta(days=36_526))
        ),
        *(("unchanged_attempt_budget", value) for value in (0, -1, 1.0, 1.5, True, "8", 2**63)),
        *(("dispatch_after_event", value) for value in (0, 1, "yes", "False")),
    ],
)
def test_a_bad_field_is_refused_when_the_value_is_made(field: str, value: Any) -> None:
    """A single bad field fails at construction, naming itself (R1, C18)."""
    with pytest.raises(InvalidScheduleConfigurationError, match=f"^{field} must be "):
        ScheduleConfiguration(**{field: value})


def test_an_unknown_keyword_is_a_type_error() -> None:
    """A misspelt field is Python's own error (C18)."""
    with pytest.raises(TypeError, match="minimal_retry_delay"):
        ScheduleConfiguration(minimal_retry_delay=1)  # type: ignore[call-arg]  # the case tested


@pytest.mark.parametrize("given", [None, DEFAULT_CONFIGURATION, {}, ScheduleConfiguration])
def test_what_is_no_configuration_is_refused(given: Any) -> None:
    """Both who resolves and who overrides is told which argument is wrong."""
    with pytest.raises(InvalidScheduleConfigurationError, match=r"^configuration must be a Sched"):
        schedule_configuration(given)
    with pytest.raises(InvalidScheduleConfigurationError, match=r"^configuration must be a Sched"):
        resolve_configuration(given)


def test_the_relation_of_two_fields_fails_when_they_are_resolved() -> None:
    """`parked_retry_delay` under `minimum_retry_delay` is found on resolution, every time (R1)."""
    host = ScheduleConfiguration(minimum_retry_delay=7200)
    for _ in range(2):
        with pytest.raises(
            InvalidScheduleConfigurationError,
            match=r"^parked_retry_delay must be at least minimum_retry_delay, .* 3600 s .* 7200 s$",
        ):
            resolve_configuration(host)
    with schedule_configuration(ScheduleConfiguration(parked_retry_delay=7200)):
        assert resolve_configuration(host).parked_retry_delay_ms == 7_200_000


def test_an_override_can_break_the_relation_and_leaves_no_trace() -> None:
    """The relation is that of the resolved fields, wherever each came from (R1, R2)."""
    with (
        schedule_configuration(ScheduleConfiguration(minimum_retry_delay=7200)),
        pytest.raises(InvalidScheduleConfigurationError),
    ):
        resolve_configuration(HOST)
    assert resolve_configuration(HOST) == DEFAULT_CONFIGURATION


def test_fields_resolve_one_by_one() -> None:
    """Task override, else the host's configuration, else the default, field by field (R2)."""
    host = ScheduleConfiguration(minimum_retry_delay=2, unchanged_attempt_budget=3)
    with schedule_configuration(
        ScheduleConfiguration(unchanged_attempt_budget=4, dispatch_after_event=True)
    ):
        assert resolve_configuration(host) == attrs.evolve(
            DEFAULT_CONFIGURATION,
            minimum_retry_delay_ms=2_000,
            unchanged_attempt_budget=4,
            dispatch_after_event=True,
        )
    assert resolve_configuration(host) == attrs.evolve(
        DEFAULT_CONFIGURATION, minimum_retry_delay_ms=2_000, unchanged_attempt_budget=3
    )


def test_an_override_can_decide_false() -> None:
    """Only `None` leaves a field undecided; `False` overrides `True` (R2)."""
    host = ScheduleConfiguration(dispatch_after_event=True)
    with schedule_configuration(ScheduleConfiguration(dispatch_after_event=False)):
        assert not resolve_configuration(host).dispatch_after_event
    assert resolve_configuration(host).dispatch_after_event


def test_nested_overrides_merge() -> None:
    """A field that the inner override leaves open keeps the outer one's value (R2)."""
    with schedule_configuration(
        ScheduleConfiguration(minimum_retry_delay=2, unchanged_attempt_budget=2)
    ):
        with schedule_configuration(ScheduleConfiguration(unchanged_attempt_budget=3)):
            inner = resolve_configuration(HOST)
        outer = resolve_configuration(HOST)
    assert (inner.minimum_retry_delay_ms, inner.unchanged_attempt_budget) == (2_000, 3)
    assert (outer.minimum_retry_delay_ms, outer.unchanged_attempt_budget) == (2_000, 2)


def test_an_override_ends_with_its_block_on_an_error_too() -> None:
    """What the body raises leaves the block unchanged, and the override is gone."""
    error = ValueError()
    with (
        pytest.raises(ValueError) as caught,  # noqa: PT011 - its identity is compared
        schedule_configuration(ScheduleConfiguration(unchanged_attempt_budget=1)),
    ):
        raise error
    assert caught.value is error
    assert resolve_configuration(HOST) == DEFAULT_CONFIGURATION


async def test_an_override_holds_for_the_task_and_what_it_starts() -> None:
    """Tasks started inside inherit it across awaits, tasks beside it do not see it (R2)."""
    budgets: dict[str, int] = {}

    async def look(name: str) -> None:
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        budgets[name] = resolve_configuration(HOST).unchanged_attempt_budget

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look, "before")
        with schedule_configuration(ScheduleConfiguration(unchanged_attempt_budget=3)):
            nursery.start_soon(look, "inside")
            await look("itself")
        nursery.start_soon(look, "after")
    assert budgets == {"before": 8, "inside": 3, "itself": 3, "after": 8}


async def test_an_override_reaches_worker_threads() -> None:
    """`trio.to_thread.run_sync` carries it like every context variable."""
    with schedule_configuration(ScheduleConfiguration(unchanged_attempt_budget=3)):
        resolved = await trio.to_thread.run_sync(resolve_configuration, HOST)
    assert resolved.unchanged_attempt_budget == 3


async def test_one_override_object_serves_many_tasks_and_nests_in_itself() -> None:
    """The object keeps no state, so that entering it elsewhere disturbs nobody."""
    override = schedule_configuration(ScheduleConfiguration(unchanged_attempt_budget=3))

    async def use(budget: int) -> None:
        with schedule_configuration(ScheduleConfiguration(unchanged_attempt_budget=budget)):
            with override:
                await trio.lowlevel.checkpoint()
                with override:
                    await trio.lowlevel.checkpoint()
                assert resolve_configuration(HOST).unchanged_attempt_budget == 3
            assert resolve_configuration(HOST).unchanged_attempt_budget == budget

    async with trio.open_nursery() as nursery:
        for budget in range(10, 20):
            nursery.start_soon(use, budget)


def test_leaving_in_another_context_disturbs_nothing_there() -> None:
    """A generator's clean-up may run in a foreign context, whose own override stays."""
    override = schedule_configuration(ScheduleConfiguration(unchanged_attempt_budget=3))
    contextvars.copy_context().run(override.__enter__)
    override.__exit__(None, None, None)
    assert resolve_configuration(HOST) == DEFAULT_CONFIGURATION
    with schedule_configuration(ScheduleConfiguration(unchanged_attempt_budget=4)):
        override.__exit__(None, None, None)
        assert resolve_configuration(HOST).unchanged_attempt_budget == 4


async def test_an_async_generator_may_be_closed_by_another_task() -> None:
    """Closing it elsewhere raises nothing and leaves the closing task's override alone."""

    async def generate() -> AsyncGenerator[int]:
        with schedule_configuration(ScheduleConfiguration(unchanged_attempt_budget=3)):
            yield resolve_configuration(HOST).unchanged_attempt_budget

    generator = generate()

    async def start() -> None:
        assert await anext(generator) == 3

    async with trio.open_nursery() as nursery:
        nursery.start_soon(start)
    with schedule_configuration(ScheduleConfiguration(unchanged_attempt_budget=4)):
        await generator.aclose()
        assert resolve_configuration(HOST).unchanged_attempt_budget == 4


def test_overrides_work_in_an_exit_stack() -> None:
    """The block is a plain context manager."""
    with contextlib.ExitStack() as stack:
        for budget in range(1, 5):
            stack.enter_context(
                schedule_configuration(ScheduleConfiguration(unchanged_attempt_budget=budget))
            )
        assert resolve_configuration(HOST).unchanged_attempt_budget == 4
    assert resolve_configuration(HOST) == DEFAULT_CONFIGURATION


def test_equal_policies_resolve_to_the_same_value() -> None:
    """Resolving is on the path of every operation, so the work is done once per policy."""
    first = resolve_configuration(ScheduleConfiguration(minimum_repeat_interval=90))
    assert resolve_configuration(ScheduleConfiguration(minimum_repeat_interval=90)) is first


def test_a_configuration_is_a_value() -> None:
    """Configurations compare and hash by their fields, cannot be changed, and pickle."""
    configuration = ScheduleConfiguration(minimum_retry_delay=2)
    assert configuration == ScheduleConfiguration(minimum_retry_delay=2)
    assert hash(configuration) == hash(ScheduleConfiguration(minimum_retry_delay=2))
    copy = pickle.loads(pickle.dumps(configuration))  # noqa: S301 - pickled in this line
    assert copy == configuration
    assert hash(copy) == hash(configuration)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        configuration.minimum_retry_delay = 3  # type: ignore[misc]  # the case tested
