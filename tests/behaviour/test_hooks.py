from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from tests.behaviour.conftest import OpenWorld, World
from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmHost,
    AlarmPassError,
    AlarmRegistration,
    AlarmService,
    DispatchOptions,
    InvalidAlarmRegistrationError,
    define,
    merge_all,
    process_due,
)

HOUR = 3_600_000


class Mail(AlarmService, key="app/mail"):
    """A service with an automatic alarm."""

    send = Alarm(None, tag="mail")


class Upkeep(AlarmService, key="app/upkeep"):
    """A service with manual alarms only."""

    vacuum = Alarm(None, tag="upkeep", lifecycle="manual")


class Log:
    """What ran, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def handle(self, event: AlarmDue[Any]) -> None:
        """Note an event."""
        self.lines.append(f"{event.tag} {event.id}")

    async def hook(self, _: AlarmHost) -> None:
        """Note that the raw hook ran; dispatch nothing."""
        self.lines.append("hook")

    async def dispatching_hook(self, host: AlarmHost) -> None:
        """Dispatch everything that the raw hook sees."""
        self.lines.append("hook")
        await host.scheduler.process_due_alarms(self.handle)

    def mail(self) -> AlarmRegistration:
        """A registration of `Mail` that notes its events."""
        return Mail.handlers(Mail.send.handled_by(self.handle))


async def _make_due(world: World, *tags: str, lifecycle: Any = "automatic") -> None:
    for tag in tags:
        await world.host.scheduler.schedule_alarm(tag, "a", after=0, lifecycle=lifecycle)


def _wakes(world: World) -> dict[str, int]:
    return {row.tag: row.wake_at for row in world.rows()}


# A custom dispatcher, or only a raw hook (R33).

HookKind = Callable[[Callable[[AlarmHost], Awaitable[object]]], dict[str, Any]]


@pytest.fixture(params=["alarms", "raw_alarm"])
def as_option(request: pytest.FixtureRequest) -> HookKind:
    """The two options that take a hook; without a registration they mean the same."""
    return lambda hook: {request.param: hook}


async def test_a_hook_dispatches_as_it_pleases(
    open_world: OpenWorld, mock_clock: object, as_option: HookKind
) -> None:
    """A custom dispatcher or raw hook dispatches due rows of every tag (R33)."""
    log = Log()
    world = await open_world(**as_option(log.dispatching_hook))
    await _make_due(world, "one", "two")
    await world.step()
    assert await world.harness.deliver()
    assert log.lines == ["hook", "one a", "two a"]
    assert world.rows() == []
    assert world.native_alarm() is None


async def test_a_hook_keeps_its_batch_limit(
    open_world: OpenWorld, mock_clock: object, as_option: HookKind
) -> None:
    """What a hook's own limit left over is neither failed nor lost (R33)."""
    log = Log()
    world = await open_world(**as_option(process_due(log.handle, DispatchOptions(limit=1))))
    await _make_due(world, "one", "two", "three")
    assert await world.harness.deliver()
    assert log.lines == ["one a"]
    assert {row.tag: row.attempts for row in world.rows()} == {"three": 0, "two": 0}
    assert world.native_alarm() == 0
    await world.step()
    await world.harness.settle()
    assert log.lines == ["one a", "three a", "two a"]


async def test_a_hook_that_dispatches_nothing_leaves_the_unknown_tag_policy(
    open_world: OpenWorld, mock_clock: object, as_option: HookKind
) -> None:
    """Due automatic rows fail and back off where the hook called no dispatch (R33)."""
    log = Log()
    world = await open_world(**as_option(log.hook))
    await _make_due(world, "one")
    await world.step()
    assert await world.harness.deliver()
    assert log.lines == ["hook"]
    assert _wakes(world) == {"one": 1_000}


async def test_the_policy_is_applied_even_when_the_hook_raised(
    open_world: OpenWorld, mock_clock: object, as_option: HookKind
) -> None:
    """A hook that fails before it dispatched does not make the host spin (R33)."""

    async def fail(_: AlarmHost) -> None:
        raise LookupError("hook")

    world = await open_world(**as_option(fail))
    await _make_due(world, "one")
    with pytest.raises(LookupError, match="hook"):
        await world.harness.deliver()
    assert _wakes(world) == {"one": 1_000}
    assert world.native_alarm() == 1_000


async def test_a_hook_that_dispatched_and_raised_leaves_the_rest_alone(
    open_inline_world: OpenWorld, mock_clock: object, as_option: HookKind
) -> None:
    """The policy is not applied after a dispatch, though the hook failed later (R33)."""
    log = Log()

    async def dispatch_and_fail(host: AlarmHost) -> None:
        await host.scheduler.process_due_alarms(log.handle, DispatchOptions(limit=1))
        raise LookupError("hook")

    world = await open_inline_world(**as_option(dispatch_and_fail))
    await _make_due(world, "one", "two")
    with pytest.raises(LookupError, match="hook"):
        await world.harness.deliver()
    assert [(row.tag, row.attempts, row.wake_at) for row in world.rows()] == [("two", 0, 0)]


async def test_a_cancelled_hook_charges_nothing(
    open_inline_world: OpenWorld, autojump_clock: object, as_option: HookKind
) -> None:
    """Cancelling a delivery in its hook leaves all that is due as it was (R24, R33)."""

    async def hang(_: AlarmHost) -> None:
        await trio.sleep_forever()

    world = await open_inline_world(**as_option(hang))
    await _make_due(world, "one")
    before = world.rows()
    with trio.move_on_after(5) as scope:
        await world.harness.deliver()
    assert scope.cancelled_caught
    assert world.rows() == before
    assert world.native_alarm() == 0


async def test_a_manual_row_that_no_hook_serves_is_kept(
    open_world: OpenWorld, mock_clock: object, as_option: HookKind
) -> None:
    """A due manual row comes back in an hour and raises, dispatched or not (R29, R33)."""
    log = Log()
    world = await open_world(**as_option(log.dispatching_hook))
    await _make_due(world, "kept", lifecycle="manual")
    await _make_due(world, "one")
    await world.step()
    with pytest.raises(InvalidAlarmRegistrationError, match="'kept'"):
        await world.harness.deliver()
    assert log.lines == ["hook", "one a"]
    assert _wakes(world) == {"kept": HOUR}
    await world.harness.reopen(**as_option(log.hook))
    await world.harness.set_time(world.host.now().replace(hour=1))
    with pytest.raises(InvalidAlarmRegistrationError, match="'kept'"):
        await world.harness.deliver()
    assert _wakes(world) == {"kept": 2 * HOUR}


async def test_a_registration_run_in_the_hook_counts_as_a_dispatch(
    open_inline_world: OpenWorld, mock_clock: object, as_option: HookKind
) -> None:
    """A hook may run a registration or a handler set; what they left is theirs (R33)."""
    log = Log()
    job = Alarm(None, tag="job")
    handlers = define(job).handlers(job.handled_by(log.handle), options=DispatchOptions(limit=1))
    left: dict[str, dict[str, int]] = {}
    for name, run in (("registration", log.mail().run), ("set", handlers.run)):
        world = await open_inline_world(name=name, **as_option(run))
        await _make_due(world, "job", "mail")
        assert await world.harness.deliver()
        left[name] = {row.tag: row.attempts for row in world.rows()}
    assert log.lines == ["mail a", "job a"]
    assert left == {"registration": {"job": 1}, "set": {"mail": 0}}


async def test_a_hook_may_dispatch_from_a_task_of_its_own(
    open_inline_world: OpenWorld, mock_clock: object, as_option: HookKind
) -> None:
    """A dispatch in a child task of the hook is the hook's (R33)."""
    log = Log()

    async def dispatch_in_a_child(host: AlarmHost) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.scheduler.process_due_alarms, log.handle)

    world = await open_inline_world(**as_option(dispatch_in_a_child))
    await _make_due(world, "one")
    await world.harness.settle()
    assert log.lines == ["one a"]


async def test_the_raw_hook_follows_a_custom_dispatcher(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """With both, the raw hook runs after the dispatcher, and both count as one hook (R33)."""
    log = Log()

    async def dispatch(host: AlarmHost) -> None:
        await host.scheduler.process_due_alarms(log.handle, DispatchOptions(limit=1))
        log.lines.append("dispatcher returns")

    world = await open_inline_world(alarms=dispatch, raw_alarm=log.hook)
    await _make_due(world, "one", "two")
    await world.harness.deliver()
    assert log.lines == ["one a", "dispatcher returns", "hook"]
    assert _wakes(world) == {"two": 0}


async def test_with_both_the_policy_waits_for_the_raw_hook(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """Where neither dispatches, due automatic rows fail; where one does, none fails (R33)."""
    log = Log()
    world = await open_inline_world(alarms=log.hook, raw_alarm=log.dispatching_hook)
    await _make_due(world, "one")
    await world.harness.deliver()
    assert log.lines == ["hook", "hook", "one a"]
    await world.harness.reopen(raw_alarm=log.hook)
    await _make_due(world, "one")
    await world.harness.deliver()
    assert _wakes(world) == {"one": 1_000}


# A registration and a raw hook (R34).


async def test_the_raw_hook_sees_only_tags_that_no_dispatcher_owns(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """What a registered service owns is never handed to the raw hook (R34)."""
    log = Log()
    seen: list[str] = []

    async def steal(event: AlarmDue[Any]) -> None:
        seen.append(event.tag)

    async def hook(host: AlarmHost) -> None:
        # Due again by now, so that the hook would see it if it could.
        await host.scheduler.schedule_alarm(Mail.send, "b", after=0)
        await host.scheduler.process_due_alarms(steal)

    world = await open_world(alarms=log.mail(), raw_alarm=hook)
    await _make_due(world, "mail", "other")
    await world.step()
    await world.harness.deliver()
    assert log.lines == ["mail a"]
    assert seen == ["other"]
    assert _wakes(world) == {"mail": 0}


async def test_the_raw_hook_starts_when_automatic_dispatchers_have_returned(
    open_inline_world: OpenWorld, autojump_clock: object
) -> None:
    """Dispatchers that have only manual alarms run on beside the raw hook (R34)."""
    log = Log()
    hook_ran = trio.Event()

    async def send(event: AlarmDue[Any]) -> None:
        await trio.sleep(1)
        await log.handle(event)

    async def vacuum(event: AlarmDue[Any]) -> None:
        with trio.fail_after(60):
            await hook_ran.wait()
        await log.handle(event)
        await event.host.scheduler.cancel_alarm(event.tag, event.id)

    async def hook(host: AlarmHost) -> None:
        await log.hook(host)
        hook_ran.set()

    registration = merge_all(
        Mail.handlers(Mail.send.handled_by(send)),
        Upkeep.handlers(Upkeep.vacuum.handled_by(vacuum)),
    )
    world = await open_inline_world(alarms=registration, raw_alarm=hook)
    await _make_due(world, "mail")
    await _make_due(world, "upkeep", lifecycle="manual")
    await world.harness.deliver()
    assert log.lines == ["mail a", "hook", "upkeep a"]
    assert world.rows() == []


async def test_a_service_of_both_lifecycles_returns_before_the_raw_hook(
    open_inline_world: OpenWorld, autojump_clock: object
) -> None:
    """A dispatcher with an automatic alarm finishes its manual ones, too, before the hook (R34)."""
    log = Log()

    class Mixed(AlarmService, key="app/mixed"):
        send = Alarm(None, tag="mail")
        vacuum = Alarm(None, tag="upkeep", lifecycle="manual")

    async def vacuum(event: AlarmDue[Any]) -> None:
        await trio.sleep(1)
        await log.handle(event)

    registration = Mixed.handlers(
        Mixed.send.handled_by(log.handle), Mixed.vacuum.handled_by(vacuum)
    )
    world = await open_inline_world(alarms=registration, raw_alarm=log.hook)
    await _make_due(world, "upkeep", lifecycle="manual")
    await world.harness.deliver()
    assert log.lines == ["upkeep a", "hook"]


async def test_a_registered_tag_is_never_unknown_to_the_policy_after_the_hook(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """After a hook that dispatched nothing only unowned automatic rows fail (R34)."""
    log = Log()

    async def fail(event: AlarmDue[Any]) -> None:
        raise LookupError(event.tag)

    registration = Mail.handlers(
        Mail.send.handled_by(fail), options=DispatchOptions(limit=1, retry_failed_after=30)
    )
    world = await open_world(alarms=registration, raw_alarm=log.hook)
    await world.host.scheduler.schedule_alarm("mail", "left over", after=0)
    await _make_due(world, "mail", "other")
    await world.step()
    await world.harness.deliver()
    assert [(row.tag, row.id, row.attempts, row.wake_at) for row in world.rows()] == [
        ("mail", "left over", 0, 0),
        ("other", "a", 1, 1_000),
        ("mail", "a", 1, 30_000),
    ]


async def test_what_the_raw_hook_left_over_is_not_failed(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """A raw hook that dispatched keeps its own limit beside a registration, too (R34)."""
    log = Log()
    world = await open_inline_world(
        alarms=log.mail(), raw_alarm=process_due(log.handle, DispatchOptions(limit=1))
    )
    await _make_due(world, "mail", "one", "two")
    await world.harness.deliver()
    assert log.lines == ["mail a", "one a"]
    assert [(row.tag, row.attempts) for row in world.rows()] == [("two", 0)]


async def test_an_unowned_manual_row_is_kept_whatever_the_raw_hook_did(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """Manual rows of unknown tags meet the policy, dispatched or not (R34)."""
    log = Log()
    world = await open_inline_world(alarms=log.mail(), raw_alarm=log.hook)
    await _make_due(world, "kept", lifecycle="manual")
    for hook in (log.hook, log.dispatching_hook):
        await world.harness.reopen(raw_alarm=hook)
        with pytest.raises(InvalidAlarmRegistrationError, match="'kept'"):
            await world.harness.advance(3_600)
        row = world.row("kept", "a")
        assert row is not None
        assert row.wake_at > world.now()


async def test_failures_of_dispatchers_and_hook_are_raised_together(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """A failing dispatcher does not keep the raw hook from running (R30, R34)."""

    async def fail(_: object) -> None:
        raise LookupError("manual")

    async def hook(_: AlarmHost) -> None:
        raise KeyError("hook")

    world = await open_inline_world(
        alarms=Upkeep.handlers(Upkeep.vacuum.handled_by(fail)), raw_alarm=hook
    )
    await _make_due(world, "upkeep", lifecycle="manual")
    with pytest.raises(ExceptionGroup) as caught:
        await world.harness.deliver()
    assert {type(error) for error in caught.value.exceptions} == {LookupError, KeyError}


async def test_the_raw_hook_runs_with_every_pass(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """A pass in which only a registered tag is due runs the raw hook as well (R34)."""
    log = Log()
    world = await open_inline_world(alarms=log.mail(), raw_alarm=log.hook)
    await _make_due(world, "mail")
    await world.harness.deliver()
    assert log.lines == ["mail a", "hook"]
    assert world.rows() == []


async def test_a_hook_cannot_wait_for_a_delivery(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """A delivery from within the pass would wait for itself (R21)."""

    async def hook(host: AlarmHost) -> None:
        await host.deliver_native_alarm(force=True)

    world = await open_inline_world(raw_alarm=hook)
    await _make_due(world, "one")
    with pytest.raises(AlarmPassError):
        await world.harness.deliver()
    assert _wakes(world) == {"one": 1_000}
