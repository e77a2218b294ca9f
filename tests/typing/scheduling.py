"""What type checkers say about scheduling; checked, never run.

A `type: ignore` is an assertion: without the error that it names it is itself an error.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from datetime import datetime
from typing import Any, assert_type

import attrs

from trio_alarms import (
    Alarm,
    AlarmDue,
    AlarmHost,
    AlarmRecord,
    AlarmRegistration,
    AlarmScheduler,
    AlarmService,
    AlarmStatus,
    AlarmTransaction,
    DispatchResult,
    EventScope,
    ServiceScheduler,
    define,
    open_host,
    process_due,
)


@attrs.frozen
class Expire:
    """One payload."""

    user_id: str


@attrs.frozen
class Renew:
    """Another payload."""

    months: int


class Expirations(AlarmService, key="app/expirations"):
    """Alarms of each form of payload type."""

    expire = Alarm(Expire)
    sweep = Alarm(None, lifecycle="manual", tag="app/sweep")
    change: Alarm[Expire | Renew] = Alarm(Expire | Renew)


async def schedule(alarms: ServiceScheduler, when: datetime) -> None:
    """The payload of a definition is checked; so is that there is one."""
    expire, sweep, change = Expirations.expire, Expirations.sweep, Expirations.change
    status = await alarms.schedule_alarm(expire, "1", run_at=when, payload=Expire("u"))
    assert_type(status, AlarmStatus)
    await alarms.schedule_alarm_earlier(expire, "1", after=5, payload=Expire("u"))
    await alarms.ensure_alarm(expire, "1", after=5, payload=Expire("u"), repeat_every=60)
    await alarms.schedule_alarm(sweep, "1", after=1.5)
    await alarms.schedule_alarm(sweep, "1", after=1.5, payload=None)
    await alarms.schedule_alarm(change, "1", after=1, payload=Renew(1))
    assert_type(await alarms.cancel_alarm(expire, "1"), bool)
    assert_type(await alarms.get_alarm_status(expire, "1"), AlarmStatus | None)
    assert_type(await alarms.list_alarms(alarm=expire, parked=True), list[AlarmRecord])

    await alarms.schedule_alarm(expire, "1", after=1, payload=Renew(1))  # type: ignore[misc]  # another type
    await alarms.schedule_alarm(expire, "1", after=1)  # type: ignore[arg-type]  # no payload
    await alarms.schedule_alarm(expire, "1", after=1, payload=None)  # type: ignore[arg-type]  # no payload
    await alarms.schedule_alarm(sweep, "1", after=1, payload=Expire("u"))  # type: ignore[misc]  # it has none
    await alarms.schedule_alarm(change, "1", after=1, payload="u")  # type: ignore[misc]  # no member
    await alarms.schedule_alarm(expire, 1, after=1, payload=Expire("u"))  # type: ignore[call-overload]  # no id
    await alarms.schedule_alarm(expire, "1", run_at=1, payload=Expire("u"))  # type: ignore[call-overload]  # no instant
    await alarms.schedule_alarm(expire, "1", after="1", payload=Expire("u"))  # type: ignore[call-overload]  # no duration
    await alarms.schedule_alarm_earlier(expire, "1", after=1, payload=Renew(1))  # type: ignore[misc]  # another type
    await alarms.ensure_alarm(expire, "1", after=1, payload=Renew(1))  # type: ignore[misc]  # another type


async def schedule_by_tag(alarms: AlarmScheduler) -> None:
    """A tag string takes plain JSON and a lifecycle; a definition has its own."""
    await alarms.schedule_alarm("ping", "1", after=1)
    await alarms.schedule_alarm("ping", "1", after=1, payload={"a": [1, None]}, lifecycle="manual")
    await alarms.schedule_alarm(Expirations.expire, "1", after=1, payload=Expire("u"))
    await alarms.schedule_alarm("ping", "1", after=1, lifecycle="once")  # type: ignore[call-overload]  # no lifecycle
    await alarms.schedule_alarm(Expirations.sweep, "1", after=1, lifecycle="manual")  # type: ignore[call-overload]  # its definition says it

    async def on_any(event: AlarmDue[Any]) -> None:
        assert_type(event.scope, EventScope[Any])

    assert_type(await alarms.process_due_alarms(on_any), DispatchResult)


async def change_in_a_transaction(host: AlarmHost) -> None:
    """A transaction has the same methods, and the application's SQL."""
    alarms = host.service(Expirations)
    assert_type(alarms, ServiceScheduler)
    assert_type(host.scheduler, AlarmScheduler)
    async with alarms.transaction() as tx:
        assert_type(tx, AlarmTransaction)
        assert_type(await tx.execute("SELECT 1"), list[tuple[Any, ...]])
        assert_type(await tx.run_sync(lambda connection: connection.total_changes), int)
        await tx.schedule_alarm(Expirations.expire, "1", after=1, payload=Expire("u"))
        await tx.schedule_alarm(Expirations.expire, "1", after=1, payload=Renew(1))  # type: ignore[misc]  # another type


async def handle(event: AlarmDue[Expire]) -> None:
    """A handler acknowledges the event that it got, and nothing else."""
    async with event.host.scheduler.transaction() as tx:
        assert_type(await tx.acknowledge(event), bool)
        await tx.acknowledge(event.id)  # type: ignore[arg-type]  # no event


async def open_hosts(registered: AlarmRegistration) -> None:
    """A host takes a registration or a dispatcher, and no handler."""
    async with open_host("app.db", alarms=registered) as host:
        assert_type(host, AlarmHost)
        assert_type(await registered.run(host), DispatchResult)
    async with open_host("app.db", alarms=define(Expirations.expire).handlers()):
        pass
    async with open_host("app.db", alarms=process_due(handle)):
        pass
    async with open_host("app.db", alarms=5):  # type: ignore[arg-type]  # no dispatcher
        pass
    async with open_host("app.db", alarms=handle):  # type: ignore[arg-type]  # takes no host
        pass
