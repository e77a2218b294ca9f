"""The native alarm's public face, and deliveries of a host that is not managed (R35)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ._errors import NativeAlarmOwnedError
from ._store import _native
from ._time import instant_from_ms, instant_to_ms, saturated
from ._wakes import nothing

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from ._store._native import NativeState
    from ._store._session import Session
    from ._writer import HostWriter

_FIRST_RETRY_MS: Final = 1_000
_LONGEST_RETRY_MS: Final = 64_000


async def read_state(writer: HostWriter) -> NativeState:
    """The timestamp that is stored for a host, and whether its scheduler owns it."""
    name = writer.name
    return await writer.read(
        lambda connection: _native.read(connection.raw, name), name="native_alarm"
    )


class NativeAlarm:
    """The single timestamp that wakes a host.

    It is the application's until the host is managed: until its first alarm write has committed,
    here or in another process. From then on the scheduler owns it.
    """

    def __init__(self, writer: HostWriter, on_change: Callable[[], None]) -> None:
        self._writer = writer
        self._on_change = on_change
        # Grows with every write of the application's, so that a raw delivery can tell whether
        # its hook has set the timestamp anew, be it to the same value.
        self._writes = 0

    async def get(self) -> datetime | None:
        """The native alarm that is stored; `None` where it is unset.

        Inside a transaction block, what that block sees. Cancellation ends it.

        Raises:
            StorageOperationError: The storage failed.
        """
        state = await read_state(self._writer)
        return None if state.native_alarm is None else instant_from_ms(state.native_alarm)

    async def set(self, when: datetime) -> None:
        """Arm the native alarm of a host that is not managed.

        Durable when it returns. Cancellation: if it raises `trio.Cancelled`, nothing was stored.

        Args:
            when: An aware datetime.

        Raises:
            InvalidAlarmRefError: `when` is not an aware datetime.
            NativeAlarmOwnedError: The host is managed.
            StorageOperationError: The storage failed; nothing was stored.
        """
        await self._write_unmanaged(instant_to_ms(when, parameter="when"), "native_alarm.set")

    async def delete(self) -> None:
        """Disarm the native alarm of a host that is not managed.

        Durable when it returns. Cancellation: if it raises `trio.Cancelled`, nothing was changed.

        Raises:
            NativeAlarmOwnedError: The host is managed.
            StorageOperationError: The storage failed; nothing was changed.
        """
        await self._write_unmanaged(None, "native_alarm.delete")

    async def _write_unmanaged(self, native_alarm: int | None, name: str) -> None:
        def operation(session: Session) -> None:
            if _native.read(session.connection.raw, session.host).managed:
                raise NativeAlarmOwnedError(
                    f"{name}: the host {session.host!r} is managed, so its scheduler owns the"
                    " native alarm; schedule an alarm instead"
                )
            _native.write(session.connection.raw, session.host, native_alarm, managed=False)
            # Inside a transaction block it counts with that block's commit, or not at all.
            session.after_commit(self._note_write)

        await self._writer.write(operation, name=name, asks_reconciliation=False)

    def _note_write(self) -> None:
        self._writes += 1
        self._on_change()


class RawDelivery:
    """What happens to the timestamp of a host that is not managed when it is delivered (R35).

    It stays while the hook runs. Then it is cleared unless it was written meanwhile; when the
    hook raised it moves to now + 1 s, doubling with each failure in a row up to 64 s.
    """

    def __init__(self, writer: HostWriter, native_alarm: NativeAlarm) -> None:
        self._writer = writer
        self._native_alarm = native_alarm
        self._failures = 0
        self._delivered: int | None = None
        self._writes = 0

    async def begin(self) -> None:
        """Remember what is being delivered."""
        self._writes = self._native_alarm._writes  # noqa: SLF001 - one module, one concern
        self._delivered = (await read_state(self._writer)).native_alarm

    async def settle(self, outcome: BaseException | None) -> None:
        """Clear or move the timestamp after the hook; a cancelled delivery leaves it."""
        if outcome is not None and not isinstance(outcome, Exception):
            return  # noqa: ASYNC910 - a cancelled delivery has nothing to settle
        self._failures = 0 if outcome is None else self._failures + 1
        writes = self._native_alarm._writes  # noqa: SLF001 - as above
        written = writes != self._writes
        delivered, failures = self._delivered, self._failures

        def operation(session: Session) -> bool:
            connection = session.connection.raw
            state = _native.read(connection, session.host)
            if state.managed:
                return True
            if written or state.native_alarm != delivered:
                return False
            retry_at = None
            if failures:
                delay = min(_LONGEST_RETRY_MS, _FIRST_RETRY_MS << min(failures - 1, 16))
                retry_at = saturated(session.now + delay)
            _native.write(connection, session.host, retry_at, managed=False)
            return False

        managed = await self._writer.write_surely(
            operation, name="deliver", asks_reconciliation=False
        )
        if managed:
            # The hook has scheduled its first alarm, so from now on deadlines count.
            await self._writer.write_surely(nothing, name="reconcile")
