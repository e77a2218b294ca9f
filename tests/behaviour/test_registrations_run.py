from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from tests.behaviour.conftest import OpenWorld
from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmPassError,
    AlarmRegistration,
    AlarmService,
    DispatchOptions,
    InvalidAlarmRegistrationError,
    StoredAlarmDecodeError,
    define,
    merge_all,
    process_due,
)

HOUR = 3_600_000

Handler = Callable[[AlarmDue[Any]], Awaitable[object]]


@attrs.frozen
class Expire:
    """A payload."""

    user: str


class Mail(AlarmService, key="app/mail"):
    """Automatic alarms only."""

    send = Alarm(Expire, tag="mail/send")
    digest = Alarm(None, tag="mail/digest")


class Billing(AlarmService, key="app/billing"):
    """An automatic and a manual alarm."""

    charge = Alarm(None, tag="billing/charge")
    sweep = Alarm(None, tag="billing/sweep", lifecycle="manual")


class Upkeep(AlarmService, key="app/upkeep"):
    """Manual alarms only."""

    vacuum = Alarm(None, tag="upkeep/vacuum", lifecycle="manual")


def _mail(handler: Handler, **options: Any) -> AlarmRegistration:
    return Mail.handlers(
        Mail.send.handled_by(handler),
        Mail.digest.handled_by(handler),
        options=DispatchOptions(**options),
    )


def _billing(handler: Handler, **options: Any) -> AlarmRegistration:
    return Billing.handlers(
        Billing.charge.handled_by(handler),
        Billing.sweep.handled_by(handler),
        options=DispatchOptions(**options),
    )


def _upkeep(handler: Handler) -> AlarmRegistration:
    return Upkeep.handlers(Upkeep.vacuum.handled_by(handler))


class Seen:
    """A handler that notes what it gets."""

    def __init__(self) -> None:
        self.events: list[AlarmDue[Any]] = []

    async def __call__(self, event: AlarmDue[Any]) -> None:
        """Handle an event."""
        self.events.append(event)

    @property
    def names(self) -> list[str]:
        """Tag and id of each event, in order."""
        return [f"{event.tag} {event.id}" for event in self.events]


async def test_each_dispatcher_sees_its_own_tags(open_world: OpenWorld, mock_clock: object) -> None:
    """A registration's pass runs every dispatcher over its own tags only (R30)."""
    mail, billing = Seen(), Seen()
    world = await open_world(alarms=merge_all(_mail(mail), _billing(billing)))
    host = world.host
    await host.service(Mail).schedule_alarm(Mail.send, "a", after=1, payload=Expire("u"))
    await host.service(Mail).schedule_alarm(Mail.digest, "b", after=1)
    await world.step()
    await world.host.service(Billing).schedule_alarm(Billing.charge, "a", after=1)
    await world.harness.advance(1)
    assert sorted(mail.names) == ["mail/digest b", "mail/send a"]
    assert billing.names == ["billing/charge a"]
    assert [event.payload for event in mail.events if event.id == "a"] == [Expire("u")]
    assert world.rows() == []
    assert world.native_alarm() is None


async def test_dispatchers_run_concurrently(
    open_inline_world: OpenWorld, autojump_clock: object
) -> None:
    """A slow dispatcher holds no other one up (R30)."""
    started = trio.Event()

    async def wait_for_the_other(_: object) -> None:
        with trio.fail_after(60):
            await started.wait()

    async def start(_: object) -> None:
        started.set()

    world = await open_inline_world(alarms=merge_all(_mail(wait_for_the_other), _billing(start)))
    await world.host.service(Mail).schedule_alarm(Mail.digest, "a", after=0)
    await world.host.service(Billing).schedule_alarm(Billing.charge, "a", after=0)
    await world.harness.settle()
    assert world.rows() == []


async def test_each_dispatcher_has_its_own_limit(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """One dispatcher's backlog does not use up another one's limit (R25, R30)."""
    mail, billing = Seen(), Seen()
    world = await open_inline_world(alarms=merge_all(_mail(mail, limit=2), _billing(billing)))
    for id in "abcd":
        await world.host.service(Mail).schedule_alarm(Mail.digest, id, after=0)
        await world.host.service(Billing).schedule_alarm(Billing.charge, id, after=0)
    assert await world.harness.deliver()
    assert len(mail.events) == 2
    assert len(billing.events) == 4
    await world.harness.settle()
    assert len(mail.events) == 4


async def test_a_failing_dispatcher_stops_no_other(
    open_inline_world: OpenWorld, autojump_clock: object
) -> None:
    """Failures of one dispatcher are raised once all have run (R30)."""
    mail = Seen()

    async def fail(event: AlarmDue[Any]) -> None:
        raise LookupError(event.tag)

    async def handle_slowly(event: AlarmDue[Any]) -> None:
        await trio.sleep(0.5)
        await mail(event)

    registration = merge_all(_billing(fail), _mail(handle_slowly), _upkeep(fail))
    world = await open_inline_world(alarms=registration)
    await world.host.service(Billing).schedule_alarm(Billing.sweep, "a", after=0)
    await world.host.service(Mail).schedule_alarm(Mail.digest, "a", after=0)
    with pytest.raises(LookupError, match="billing/sweep"):
        await world.harness.deliver()
    assert mail.names == ["mail/digest a"]
    assert world.row("mail/digest", "a") is None
    row = world.row("billing/sweep", "a")
    assert row is not None
    # The dispatcher that failed has moved its row by the time the slow one ends.
    assert row.run_at == HOUR


async def test_failures_of_several_dispatchers_are_raised_together(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """What several dispatchers raised comes out in one group at the end (R30)."""

    async def fail(event: AlarmDue[Any]) -> None:
        raise LookupError(event.tag)

    world = await open_inline_world(alarms=merge_all(_billing(fail), _upkeep(fail)))
    await world.host.scheduler.schedule_alarm(Billing.sweep, "a", after=0)
    await world.host.scheduler.schedule_alarm(Upkeep.vacuum, "a", after=0)
    with pytest.raises(ExceptionGroup) as caught:
        await world.harness.deliver()
    assert sorted(str(error) for error in caught.value.exceptions) == [
        "billing/sweep",
        "upkeep/vacuum",
    ]


async def test_manual_alarms_of_all_dispatchers_share_four_permits(
    open_inline_world: OpenWorld, autojump_clock: object
) -> None:
    """At most four manual handlers run at a time across the dispatchers of a pass (R27, R30)."""
    running, most = 0, 0

    async def hold(_: object) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(1)
        running -= 1

    world = await open_inline_world(alarms=merge_all(_billing(hold), _upkeep(hold)))
    for id in "abcd":
        await world.host.scheduler.schedule_alarm(Billing.sweep, id, after=0)
        await world.host.scheduler.schedule_alarm(Upkeep.vacuum, id, after=0)
    assert await world.harness.deliver()
    assert most == 4
    assert trio.current_time() == pytest.approx(2)


async def test_a_run_outside_of_a_pass_dispatches_once(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """A registration's run dispatches what is due once and says what came of it (R25, R30)."""

    async def handle(event: AlarmDue[Any]) -> None:
        if event.tag == "billing/charge":
            raise LookupError(event.id)

    registration = merge_all(_mail(handle), _billing(handle))
    world = await open_world()
    await world.host.scheduler.schedule_alarm(Mail.digest, "a", after=0)
    await world.host.scheduler.schedule_alarm(Billing.charge, "a", after=0)
    await world.host.scheduler.schedule_alarm(Mail.digest, "later", after=60)
    await world.step()
    result = await registration.run(world.host)
    assert [event.tag for event in result.handled] == ["mail/digest"]
    assert [type(failure.error) for failure in result.failed] == [LookupError]
    assert result.parked == ()
    assert [(row.tag, row.id, row.wake_at) for row in world.rows()] == [
        ("billing/charge", "a", 1_000),
        ("mail/digest", "later", 60_000),
    ]
    assert world.native_alarm() == 1_000


async def test_a_run_applies_the_unknown_tag_policy(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """A run by hand, too, fails due rows of tags that none of its dispatchers owns (R30)."""
    mail = Seen()
    world = await open_world()
    await world.host.scheduler.schedule_alarm(Billing.charge, "a", after=0)
    await world.host.scheduler.schedule_alarm(Mail.digest, "a", after=0)
    result = await _mail(mail).run(world.host)
    assert [(failure.tag, failure.event) for failure in result.failed] == [("billing/charge", None)]
    assert isinstance(result.failed[0].error, StoredAlarmDecodeError)
    row = world.row("billing/charge", "a")
    assert row is not None
    assert (row.attempts, row.wake_at) == (1, 1_000)


@pytest.mark.parametrize("kind", ["registration", "set", "process_due_alarms"])
async def test_deliveries_wait_for_a_run(
    open_inline_world: OpenWorld, autojump_clock: object, kind: str
) -> None:
    """A run holds a defer_wakes scope: a delivery waits for it, and the guard stands (R25)."""
    log: list[str] = []

    async def handle(event: AlarmDue[Any]) -> None:
        log.append(f"{event.id} begins")
        await trio.sleep(0.5)
        log.append(f"{event.id} ends")

    registration = _mail(handle)
    run = {
        "registration": registration.run,
        "set": define(Mail.digest).handlers(Mail.digest.handled_by(handle)).run,
        "process_due_alarms": process_due(handle),
    }[kind]
    world = await open_inline_world(alarms=registration)
    await world.host.scheduler.schedule_alarm(Mail.digest, "run", after=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, world.host)
        await trio.testing.wait_all_tasks_blocked()
        assert world.native_alarm() == 1_000
        await world.host.scheduler.schedule_alarm(Mail.digest, "pass", after=0)
        assert world.native_alarm() == 1_000
        assert await world.host.deliver_native_alarm(force=True)
        log.append("delivered")
    assert log == ["run begins", "run ends", "pass begins", "pass ends", "delivered"]


async def test_a_run_from_a_handler_is_refused(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """A handler cannot dispatch: it would wait for itself (R25)."""
    refusals: list[str] = []

    async def handle(event: AlarmDue[Any]) -> None:
        for run in (registration.run, define().handlers().run):
            with pytest.raises(AlarmPassError) as caught:
                await run(event.host)
            refusals.append(str(caught.value))

    registration = _mail(handle)
    world = await open_inline_world(alarms=registration)
    await world.host.scheduler.schedule_alarm(Mail.digest, "a", after=0)
    await world.harness.settle()
    assert len(refusals) == 2
    assert world.rows() == []


async def test_composing_registrations_changes_none(
    open_inline_world: OpenWorld, mock_clock: object
) -> None:
    """Registrations are values: what was merged still runs by itself (R31)."""
    mail, billing = Seen(), Seen()
    single = _mail(mail)
    both = merge_all(single, _billing(billing))
    world = await open_inline_world(alarms=both)
    await world.host.scheduler.schedule_alarm(Billing.charge, "a", after=0)
    result = await single.run(world.host)
    assert [failure.tag for failure in result.failed] == ["billing/charge"]
    assert billing.events == []
    await world.harness.advance(1)
    assert billing.names == ["billing/charge a"]


def test_keys_and_tags_are_unique_over_all_registrations() -> None:
    """A key or a tag that is in two of the merged registrations is refused, nested too (R31)."""

    class Copy(AlarmService, key="app/copy"):
        send = Alarm(None, tag="mail/send")

    class Namesake(AlarmService, key="app/mail"):
        other = Alarm(None, tag="mail/other")

    seen = Seen()
    merged = merge_all(_upkeep(seen), merge_all(_billing(seen), _mail(seen)))
    for offender, name in (
        (Copy.handlers(Copy.send.handled_by(seen)), "'mail/send'"),
        (Namesake.handlers(Namesake.other.handled_by(seen)), "'app/mail'"),
        (_mail(seen), "'app/mail'"),
    ):
        with pytest.raises(InvalidAlarmRegistrationError, match=name):
            merge_all(merged, offender)


async def test_the_stored_lifecycle_decides_after_the_definition_changed(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """A row that was stored as manual stays manual, whatever is registered for its tag (R32)."""

    class Automatic(AlarmService, key="app/automatic"):
        job = Alarm(None, tag="job")

    seen = Seen()
    world = await open_world(alarms=Automatic.handlers(Automatic.job.handled_by(seen)))
    await world.host.scheduler.schedule_alarm("job", "a", after=0, lifecycle="manual")
    await world.step()
    status = await world.host.scheduler.get_alarm_status("job", "a")
    assert status is not None
    assert status.lifecycle == "manual"
    with pytest.raises(InvalidAlarmRegistrationError, match="'job'"):
        await world.harness.deliver()
    assert seen.events == []
    row = world.row("job", "a")
    assert row is not None
    assert (row.lifecycle, row.run_at) == ("manual", HOUR)


async def test_the_lifecycle_is_known_without_the_registration(
    open_world: OpenWorld, mock_clock: object
) -> None:
    """Rows of both lifecycles are told apart when their registration is gone (R32)."""
    seen = Seen()
    world = await open_world(alarms=_billing(seen))
    await world.host.service(Billing).schedule_alarm(Billing.charge, "a", after=0)
    await world.host.service(Billing).schedule_alarm(Billing.sweep, "a", after=0)
    await world.harness.reopen(alarms=None)
    records = await world.host.scheduler.list_alarms()
    assert {record.ref.tag: record.status.lifecycle for record in records} == {
        "billing/charge": "automatic",
        "billing/sweep": "manual",
    }
    with pytest.raises(InvalidAlarmRegistrationError, match="billing/sweep"):
        await world.harness.deliver()
    rows = {row.tag: row for row in world.rows()}
    assert (rows["billing/charge"].attempts, rows["billing/charge"].wake_at) == (1, 1_000)
    assert (rows["billing/sweep"].attempts, rows["billing/sweep"].wake_at) == (0, HOUR)
    await world.harness.reopen(alarms=_billing(seen))
    await world.harness.advance(3_600)
    assert seen.names == ["billing/charge a", "billing/sweep a"]
