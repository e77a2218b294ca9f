"""The methods that schedulers and transaction blocks share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar, overload

from . import _rules
from ._configuration import resolve_configuration
from ._handling import current_handling
from ._operations import ScheduleRule, cancelling, scheduling, status_of
from ._requests import ScheduleArguments
from ._store import _alarms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from ._codec import JSON
    from ._configuration import ScheduleConfiguration
    from ._definitions import Alarm
    from ._model import AlarmStatus, Lifecycle
    from ._requests import AlarmView
    from ._store._connection import Connection
    from ._store._session import Session
    from ._time import Duration
    from ._writer import HostWriter

P = TypeVar("P")
T = TypeVar("T")


class SchedulingMethods(ABC):
    """Scheduling, cancelling and looking up single alarms."""

    def __init__(
        self, writer: HostWriter, view: AlarmView, configuration: ScheduleConfiguration
    ) -> None:
        self._writer = writer
        self._view = view
        self._configuration = configuration

    @abstractmethod
    def _write(self, operation: Callable[[Session], T], name: str) -> Awaitable[T]:
        """Run an operation on alarms in a transaction; what it returns is to be awaited at once."""

    @abstractmethod
    async def _read(self, function: Callable[[Connection], T], name: str) -> T:
        """Read what this object sees."""

    @overload
    async def schedule_alarm(
        self,
        alarm: Alarm[None],
        id: str,
        *,
        run_at: datetime | None = None,
        after: Duration | None = None,
        payload: None = None,
        repeat_every: Duration | None = None,
        progress: int | None = None,
    ) -> AlarmStatus: ...

    @overload
    async def schedule_alarm(
        self,
        alarm: Alarm[P],
        id: str,
        *,
        run_at: datetime | None = None,
        after: Duration | None = None,
        payload: P,
        repeat_every: Duration | None = None,
        progress: int | None = None,
    ) -> AlarmStatus: ...

    @overload
    async def schedule_alarm(
        self,
        alarm: str,
        id: str,
        *,
        run_at: datetime | None = None,
        after: Duration | None = None,
        payload: JSON = None,
        repeat_every: Duration | None = None,
        progress: int | None = None,
        lifecycle: Lifecycle | None = None,
    ) -> AlarmStatus: ...

    async def schedule_alarm(
        self,
        alarm: Alarm[Any] | str,
        id: str,
        *,
        run_at: datetime | None = None,
        after: Duration | None = None,
        payload: Any = None,
        repeat_every: Duration | None = None,
        progress: int | None = None,
        lifecycle: Lifecycle | None = None,
    ) -> AlarmStatus:
        """Arm an alarm, or replace the one of this tag and id (R4).

        Durable when it returns; inside a transaction block, with that block. Cancellation: if it
        raises `trio.Cancelled`, nothing was stored; once the commit has begun it is not noticed.

        A deadline in the past is due at once. Called by a handler for an automatic alarm it is a
        self-rearm, which counts one attempt and backs off; from outside it clears attempts and
        parking.

        Args:
            alarm: A definition, or on the raw scheduler a tag.
            id: The alarm's id within its tag.
            run_at: The deadline, an aware datetime.
            after: Or the time from `host.now()` to it, in seconds or as a timedelta.
            payload: What the handler gets.
            repeat_every: The period from one completion to the next run, in seconds or as a
                timedelta.
            progress: A cursor that only grows. A schedule from outside with a progress that is
                already known changes nothing; new progress clears the attempts of a self-rearm.
            lifecycle: `"automatic"` (the default) or `"manual"`, with a tag only.

        Returns:
            The status that is stored now.

        Raises:
            InvalidAlarmRefError: A bad tag, id, deadline, progress or lifecycle.
            InvalidAlarmPayloadError: The payload cannot be stored.
            InvalidRepeatEveryError: The period is under `minimum_repeat_interval`.
            StorageOperationError: The storage failed; nothing was stored.
        """
        given = ScheduleArguments(run_at, after, payload, repeat_every, progress, lifecycle)
        return await self._schedule("schedule_alarm", _rules.schedule, alarm, id, given)

    @overload
    async def schedule_alarm_earlier(
        self,
        alarm: Alarm[None],
        id: str,
        *,
        run_at: datetime | None = None,
        after: Duration | None = None,
        payload: None = None,
        repeat_every: Duration | None = None,
        progress: int | None = None,
    ) -> AlarmStatus: ...

    @overload
    async def schedule_alarm_earlier(
        self,
        alarm: Alarm[P],
        id: str,
        *,
        run_at: datetime | None = None,
        after: Duration | None = None,
        payload: P,
        repeat_every: Duration | None = None,
        progress: int | None = None,
    ) -> AlarmStatus: ...

    @overload
    async def schedule_alarm_earlier(
        self,
        alarm: str,
        id: str,
        *,
        run_at: datetime | None = None,
        after: Duration | None = None,
        payload: JSON = None,
        repeat_every: Duration | None = None,
        progress: int | None = None,
        lifecycle: Lifecycle | None = None,
    ) -> AlarmStatus: ...

    async def schedule_alarm_earlier(
        self,
        alarm: Alarm[Any] | str,
        id: str,
        *,
        run_at: datetime | None = None,
        after: Duration | None = None,
        payload: Any = None,
        repeat_every: Duration | None = None,
        progress: int | None = None,
        lifecycle: Lifecycle | None = None,
    ) -> AlarmStatus:
        """Arm an alarm, but keep an earlier deadline, with its payload and repeat (R6).

        As `schedule_alarm` in all else: it clears attempts and parking when called from outside.
        An alarm whose handler is running has no deadline left to keep, so it is replaced.

        Durable when it returns; inside a transaction block, with that block. Cancellation: if it
        raises `trio.Cancelled`, nothing was stored; once the commit has begun it is not noticed.

        Args:
            alarm: As for `schedule_alarm`, and so are all others.
            id: The alarm's id within its tag.
            run_at: The deadline, an aware datetime.
            after: Or the time from `host.now()` to it, in seconds or as a timedelta.
            payload: What the handler gets, where this deadline is the earlier one.
            repeat_every: The period, where this deadline is the earlier one.
            progress: A cursor that only grows.
            lifecycle: `"automatic"` (the default) or `"manual"`, with a tag only.

        Raises:
            AlarmError: As for `schedule_alarm`.
        """
        given = ScheduleArguments(run_at, after, payload, repeat_every, progress, lifecycle)
        return await self._schedule(
            "schedule_alarm_earlier", _rules.schedule_earlier, alarm, id, given
        )

    @overload
    async def ensure_alarm(
        self,
        alarm: Alarm[None],
        id: str,
        *,
        run_at: datetime | None = None,
        after: Duration | None = None,
        payload: None = None,
        repeat_every: Duration | None = None,
        progress: int | None = None,
    ) -> AlarmStatus: ...

    @overload
    async def ensure_alarm(
        self,
        alarm: Alarm[P],
        id: str,
        *,
        run_at: datetime | None = None,
        after: Duration | None = None,
        payload: P,
        repeat_every: Duration | None = None,
        progress: int | None = None,
    ) -> AlarmStatus: ...

    @overload
    async def ensure_alarm(
        self,
        alarm: str,
        id: str,
        *,
        run_at: datetime | None = None,
        after: Duration | None = None,
        payload: JSON = None,
        repeat_every: Duration | None = None,
        progress: int | None = None,
        lifecycle: Lifecycle | None = None,
    ) -> AlarmStatus: ...

    async def ensure_alarm(
        self,
        alarm: Alarm[Any] | str,
        id: str,
        *,
        run_at: datetime | None = None,
        after: Duration | None = None,
        payload: Any = None,
        repeat_every: Duration | None = None,
        progress: int | None = None,
        lifecycle: Lifecycle | None = None,
    ) -> AlarmStatus:
        """Arm an alarm unless it is there; bring its definition up to date if it is (R6a).

        Safe to call at every start. Deadline, attempts, parking and progress of an existing alarm
        stay; its lifecycle, payload and repeat become the given ones where they differ (a
        differing repeat also moves the deadline to the earlier of the two). A one-shot that has
        run is gone and is armed anew: what must run once in all needs a mark of your own, written
        in the same transaction. Called by its own handler it writes nothing.

        Durable when it returns; inside a transaction block, with that block. Cancellation: if it
        raises `trio.Cancelled`, nothing was stored; once the commit has begun it is not noticed.

        Args:
            alarm: As for `schedule_alarm`, and so are all others.
            id: The alarm's id within its tag.
            run_at: The deadline if it is absent, an aware datetime.
            after: Or the time from `host.now()` to it, in seconds or as a timedelta.
            payload: What the handler gets.
            repeat_every: The period from one completion to the next run.
            progress: A cursor that only grows; used only where the alarm is absent.
            lifecycle: `"automatic"` (the default) or `"manual"`, with a tag only.

        Raises:
            AlarmError: As for `schedule_alarm`.
        """
        given = ScheduleArguments(run_at, after, payload, repeat_every, progress, lifecycle)
        return await self._schedule("ensure_alarm", _rules.ensure, alarm, id, given)

    async def cancel_alarm(self, alarm: Alarm[Any] | str, id: str) -> bool:
        """Remove an alarm with its attempts; an absent one is fine (R9).

        A handler that is running is not stopped; what it returns or raises changes nothing then.

        Durable when it returns; inside a transaction block, with that block. Cancellation: if it
        raises `trio.Cancelled`, nothing was removed.

        Args:
            alarm: A definition, or on the raw scheduler a tag.
            id: The alarm's id within its tag.

        Returns:
            Whether there was one.

        Raises:
            InvalidAlarmRefError: A bad tag or id.
            StorageOperationError: The storage failed; nothing was removed.
        """
        self._writer.check_open("cancel_alarm")
        ref = self._view.ref(alarm, id)
        return await self._write(cancelling(ref), "cancel_alarm")

    async def get_alarm_status(self, alarm: Alarm[Any] | str, id: str) -> AlarmStatus | None:
        """What is known about an alarm; `None` where it is not scheduled.

        Reads the last committed state, or inside a transaction block what that block sees; writes
        nothing. Cancellation ends it.

        Args:
            alarm: A definition, or on the raw scheduler a tag.
            id: The alarm's id within its tag.

        Raises:
            InvalidAlarmRefError: A bad tag or id.
            StorageOperationError: The storage failed.
        """
        self._writer.check_open("get_alarm_status")
        ref = self._view.ref(alarm, id)
        host = self._writer.name
        row = await self._read(
            lambda connection: _alarms.read(connection.raw, host, ref), "get_alarm_status"
        )
        return None if row is None else status_of(row)

    def _schedule(
        self,
        name: str,
        rule: ScheduleRule,
        alarm: Alarm[Any] | str,
        id: str,
        given: ScheduleArguments,
    ) -> Awaitable[AlarmStatus]:
        writer = self._writer
        configuration = resolve_configuration(self._configuration)
        request = self._view.request(
            alarm,
            id,
            given,
            clock=writer.clock,
            configuration=configuration,
            max_bytes=writer.database.options.max_payload_bytes,
        )
        handling = current_handling(writer)
        return self._write(scheduling(rule, request, configuration, handling), name)
