"""`Alarm`, the handlers bound to it, and the dispatchers that they make up."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args, overload

import attrs
from cattrs import BaseConverter

from ._arguments import chosen, describe, describe_choice, is_plainly_synchronous
from ._codec import DuplicateMemberError, PayloadCodec
from ._errors import InvalidAlarmRegistrationError
from ._model import AlarmDue, Lifecycle
from ._names import require_name
from ._options import DispatchOptions
from ._time import Duration, duration_to_ms

P = TypeVar("P")

FailurePolicy: TypeAlias = Literal["retry", "skip-and-advance-repeat"]
HandlerFunction: TypeAlias = Callable[[AlarmDue[P]], Awaitable[object]]


class Alarm(Generic[P]):
    """The definition of an alarm: the type of its payload, and what its failures mean.

    It becomes usable as an attribute of an `AlarmService` or as an argument of `define`.

    Args:
        payload_type: What cattrs can structure and unstructure as JSON; `None` for no payload.
        tag: What the stored alarms are known by; the name of the attribute by default. At most
            512 characters.
        lifecycle: Whether a handled alarm is acknowledged ("automatic"), or kept until its handler
            cancels or reschedules it ("manual").
        failure: What a failed handling means: "retry" or "skip-and-advance-repeat"; `None` leaves
            it to the dispatch options. Not for manual alarms.
        retry_initial_delay: A `Duration` (seconds when a number): the first delay after a failure,
            never under `minimum_retry_delay`, which doubles per attempt. Implies "retry".
        timeout: A positive `Duration` (seconds when a number) that bounds one run of the handler;
            past it the handler is cancelled and has failed with `trio.TooSlowError`.
        upgrade: A function from the stored JSON value to the JSON value of today's type. It is
            applied to every stored value, today's included; what it raises makes the payload
            undecodable.

    Raises:
        InvalidAlarmRegistrationError: A bad argument. A type that needs the converter of its
            service is judged when the service is defined.
    """

    @overload
    def __init__(
        self: Alarm[None],
        payload_type: None,
        *,
        tag: str | None = None,
        lifecycle: Lifecycle = "automatic",
        failure: FailurePolicy | None = None,
        retry_initial_delay: Duration | None = None,
        timeout: Duration | None = None,
        upgrade: Callable[[Any], Any] | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        payload_type: type[P],
        *,
        tag: str | None = None,
        lifecycle: Lifecycle = "automatic",
        failure: FailurePolicy | None = None,
        retry_initial_delay: Duration | None = None,
        timeout: Duration | None = None,
        upgrade: Callable[[Any], Any] | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: Alarm[Any],
        payload_type: object,
        *,
        tag: str | None = None,
        lifecycle: Lifecycle = "automatic",
        failure: FailurePolicy | None = None,
        retry_initial_delay: Duration | None = None,
        timeout: Duration | None = None,
        upgrade: Callable[[Any], Any] | None = None,
    ) -> None: ...

    def __init__(
        self,
        payload_type: object,
        *,
        tag: str | None = None,
        lifecycle: Lifecycle = "automatic",
        failure: FailurePolicy | None = None,
        retry_initial_delay: Duration | None = None,
        timeout: Duration | None = None,
        upgrade: Callable[[Any], Any] | None = None,
    ) -> None:
        self._payload_type = payload_type
        self._tag = None if tag is None else _require_tag(tag)
        self._upgrade = _checked_upgrade(upgrade)
        self._lifecycle: Lifecycle = _require_one_of(Lifecycle, lifecycle, "lifecycle")
        self._failure: FailurePolicy | None
        self._failure, self._retry_initial_delay_ms = _failure_policy(
            self._lifecycle, failure, retry_initial_delay
        )
        self._timeout_seconds = (
            None if timeout is None else _to_ms(timeout, "timeout", minimum_ms=1) / 1000
        )
        self._owner: type | None = None
        # Invariant: once bound, converter and codec stay; payloads are written and read by one.
        self._is_bound = False
        self._converter: BaseConverter | None = None
        self._codec = self._strict_codec()

    def __repr__(self) -> str:
        return "<Alarm without a tag>" if self._tag is None else f"<Alarm {self._tag!r}>"

    @property
    def tag(self) -> str:
        """What the stored alarms are known by."""
        if self._tag is None:
            raise InvalidAlarmRegistrationError(
                "this Alarm has no tag yet: give it tag=..., or make it an attribute of an"
                " AlarmService"
            )
        return self._tag

    @property
    def payload_type(self) -> object:
        """The declared type of the payload."""
        return self._payload_type

    @property
    def lifecycle(self) -> Lifecycle:
        """Whether a handled alarm is acknowledged, or kept until its handler decides."""
        return self._lifecycle

    @property
    def failure(self) -> FailurePolicy | None:
        """What a failed handling means; `None` leaves it to the dispatch options."""
        return self._failure

    @property
    def retry_initial_delay_ms(self) -> int | None:
        """The first delay after a failure in milliseconds."""
        return self._retry_initial_delay_ms

    @property
    def timeout_seconds(self) -> float | None:
        """The bound on one run of the handler in seconds."""
        return self._timeout_seconds

    def handled_by(self, handler: Callable[[AlarmDue[P]], Awaitable[object]]) -> BoundHandler:
        """Bind a handler to this alarm; a value, which changes nothing.

        Args:
            handler: Any callable that takes the `AlarmDue` and returns an awaitable: an async
                function or method, a `functools.partial`, an object with an async `__call__`.

        Raises:
            InvalidAlarmRegistrationError: `handler` is plainly synchronous: a generator, or a
                `def` that is not declared to return an awaitable.
        """
        if is_plainly_synchronous(handler):
            raise InvalidAlarmRegistrationError(
                f"the handler of {self._described} must be an async callable that takes an"
                f" AlarmDue, not {describe(handler)}"
            )
        return BoundHandler(self, handler)

    def encode(self, payload: P, *, max_bytes: int) -> str:
        """Write a payload as the JSON text to store.

        Args:
            payload: A value of the declared type.
            max_bytes: The most bytes of UTF-8 that the text may take.

        Raises:
            InvalidAlarmPayloadError: It cannot be stored so that an equal one comes back.
        """
        return self._usable_codec().encode(payload, max_bytes=max_bytes)

    def decode(self, text: str) -> P:
        """Make a payload of the stored text.

        Raises:
            StoredAlarmDecodeError: The text does not make a payload of the declared type.
        """
        payload: P = self._usable_codec().decode(text)
        return payload

    def _bind(self, converter: BaseConverter | None) -> None:
        """Settle how payloads are stored. Several handler sets may share one alarm."""
        if not self._is_bound:
            if converter is not None:
                self._codec = PayloadCodec(
                    self._payload_type, converter=converter, upgrade=self._upgrade
                )
            self._usable_codec()
            self._converter = converter
            self._is_bound = True
        elif converter is not None and converter is not self._converter:
            raise InvalidAlarmRegistrationError(
                f"{self._described} is already defined with another converter"
            )

    def _own(self, owner: type, attribute: str, converter: BaseConverter | None) -> None:
        """Become an alarm of the service `owner`, whose attribute gives the default tag."""
        if self._owner is not None:
            raise InvalidAlarmRegistrationError(
                f"{owner.__qualname__}.{attribute} is already an alarm of"
                f" {self._owner.__qualname__}; each Alarm belongs to one attribute"
            )
        self._bind(converter)
        self._owner = owner
        self._tag = self._tag or _require_tag(attribute)

    @property
    def _described(self) -> str:
        return "an alarm without a tag" if self._tag is None else f"the alarm {self._tag!r}"

    def _strict_codec(self) -> PayloadCodec | None:
        """The codec that does without a converter; None: the type may need one."""
        try:
            return PayloadCodec(self._payload_type, upgrade=self._upgrade)
        except InvalidAlarmRegistrationError as error:
            if isinstance(error.__cause__, DuplicateMemberError):
                raise
            return None

    def _usable_codec(self) -> PayloadCodec:
        if self._codec is None:
            # Raises what is wrong with the type.
            self._codec = PayloadCodec(self._payload_type, upgrade=self._upgrade)
        return self._codec


@attrs.frozen
class BoundHandler:
    """A handler together with the alarm that it handles; made by `Alarm.handled_by`."""

    alarm: Alarm[Any]
    handler: HandlerFunction[Any]


@attrs.frozen
class Dispatcher:
    """The handlers that work through due alarms together: of one service or one set (R25).

    `key` is the service's; a handler set has none.
    """

    key: str | None
    handlers: Mapping[str, BoundHandler] = attrs.field(hash=False)
    options: DispatchOptions
    tags: frozenset[str] = attrs.field(
        init=False,
        repr=False,
        eq=False,
        default=attrs.Factory(lambda self: frozenset(self.handlers), takes_self=True),
    )
    manual_tags: frozenset[str] = attrs.field(
        init=False,
        repr=False,
        eq=False,
        default=attrs.Factory(lambda self: _manual_tags(self.handlers), takes_self=True),
    )

    @property
    def has_automatic(self) -> bool:
        """Whether any of the alarms is automatic."""
        return self.tags != self.manual_tags


def _manual_tags(handlers: Mapping[str, BoundHandler]) -> frozenset[str]:
    return frozenset(tag for tag, bound in handlers.items() if bound.alarm.lifecycle == "manual")


def _require_tag(tag: object) -> str:
    return require_name(tag, parameter="tag", error=InvalidAlarmRegistrationError)


def _require_one_of(allowed: Any, value: Any, parameter: str) -> Any:
    names = get_args(allowed)
    choice = chosen(value, names)
    if choice is None:
        raise InvalidAlarmRegistrationError(
            f"{parameter} must be {' or '.join(map(repr, names))}, not {describe_choice(value)}"
        )
    return choice


def _to_ms(value: Duration, parameter: str, *, minimum_ms: int = 0) -> int:
    return duration_to_ms(
        value, parameter=parameter, error=InvalidAlarmRegistrationError, minimum_ms=minimum_ms
    )


def _failure_policy(
    lifecycle: Lifecycle, failure: object, retry_initial_delay: Duration | None
) -> tuple[FailurePolicy | None, int | None]:
    """Check what a definition says about failures; an initial delay implies "retry"."""
    policy: FailurePolicy | None = None
    if failure is not None:
        policy = _require_one_of(FailurePolicy, failure, "failure")
    delay_ms = None
    if retry_initial_delay is not None:
        delay_ms = _to_ms(retry_initial_delay, "retry_initial_delay")
        if policy == "skip-and-advance-repeat":
            raise InvalidAlarmRegistrationError(
                "retry_initial_delay implies failure='retry', so it cannot go with"
                " failure='skip-and-advance-repeat'"
            )
        policy = "retry"
    if lifecycle == "manual" and policy is not None:
        given = "failure" if failure is not None else "retry_initial_delay"
        raise InvalidAlarmRegistrationError(
            f"{given} cannot be given for a manual alarm, whose handler itself decides when it"
            " runs again"
        )
    return policy, delay_ms


def _checked_upgrade(upgrade: Any) -> Callable[[Any], Any] | None:
    if upgrade is None:
        return None
    if not callable(upgrade) or inspect.iscoroutinefunction(upgrade):
        raise InvalidAlarmRegistrationError(
            "upgrade must be a plain function from JSON value to JSON value, not"
            f" {describe(upgrade)}"
        )
    checked: Callable[[Any], Any] = upgrade
    return checked
