"""What a pass or a direct call dispatches: registrations, handler sets, hooks, unknown tags.

R25 (direct calls), R30 (registrations and the unknown-tag policy), R33 and R34 (custom
dispatchers and raw hooks).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from ._codec import decode_json
from ._context import Frame, find
from ._dispatch import MANUAL_CONCURRENCY, Chosen, Dispatch
from ._dispatch_plan import DispatchState, FindRoute, Plan, Route, routes_of
from ._errors import AlarmError, AlarmPassError, HostClosingError
from ._events import current_event
from ._handling import current_handling
from ._model import DispatchResult
from ._nursery import BodyNursery, combined
from ._options import DispatchOptions
from ._store._alarms import ALL_TAGS, DueWindow, TagView

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from ._configuration import ResolvedConfiguration
    from ._definitions import Dispatcher
    from ._events import EventScope
    from ._host import AlarmHost
    from ._model import AlarmDue
    from ._passes import Passes
    from ._store._session import Session
    from ._wakes import Wakes

_DEFAULT_OPTIONS: Final = DispatchOptions()


@attrs.define(eq=False)
class Hook:
    """What a hook has dispatched itself (R33): anything, and which tags' manual alarms."""

    dispatched: bool = False
    manual_tags: frozenset[str] = frozenset()


class DispatchFrame(Frame):
    """The frame of a pass's dispatch, or of a direct call: what is seen, and the shared limiter."""

    def __init__(
        self,
        owner: Dispatchers,
        scope: EventScope[Any],
        *,
        view: TagView = ALL_TAGS,
        limiter: trio.CapacityLimiter | None = None,
        hook: Hook | None = None,
    ) -> None:
        self.owner = owner
        self.scope = scope
        self.view = view
        self.limiter: trio.CapacityLimiter = (
            trio.CapacityLimiter(MANUAL_CONCURRENCY) if limiter is None else limiter
        )
        self.hook = hook
        self.over: bool = False


class Registered:
    """A registration's dispatchers, each with its routes and the tags that it sees."""

    def __init__(self, dispatchers: Sequence[Dispatcher]) -> None:
        self.dispatchers: Sequence[tuple[Dispatcher, FindRoute, TagView]] = [
            (dispatcher, routes_of(dispatcher), TagView(only=dispatcher.tags))
            for dispatcher in dispatchers
        ]
        self.unowned: TagView = TagView(
            excluded=frozenset(tag for dispatcher in dispatchers for tag in dispatcher.tags)
        )


class Dispatchers:
    """Everything that a host dispatches."""

    def __init__(
        self,
        host: AlarmHost,
        state: DispatchState,
        wakes: Wakes,
        passes: Passes,
        *,
        resolve: Callable[[], ResolvedConfiguration],
        enter_event: Callable[[], AbstractAsyncContextManager[EventScope[Any]]],
    ) -> None:
        self._host = host
        self._state = state
        self._wakes = wakes
        self._passes = passes
        self._resolve = resolve
        self._enter_event = enter_event

    async def process_due(
        self, handler: Callable[[AlarmDue[Any]], Awaitable[object]], options: DispatchOptions
    ) -> DispatchResult:
        """One handler for every tag that is seen, with payloads as plain JSON values (R25)."""
        route = Route(handler=handler, decode=decode_json)
        return await self._directly(
            "process_due_alarms", partial(self._run_one, lambda _: route, options)
        )

    async def run_set(self, dispatcher: Dispatcher) -> DispatchResult:
        """Due rows of every tag that is seen; unknown ones fail."""
        return await self._directly(
            "run",
            partial(self._run_one, routes_of(dispatcher), dispatcher.options),
            manual_tags=dispatcher.manual_tags,
        )

    async def run_registration(self, dispatchers: Sequence[Dispatcher]) -> DispatchResult:
        """Every dispatcher concurrently, each with its tags, then the unknown-tag policy (R30)."""
        return await self._directly(
            "run",
            lambda frame: self._prepare(Registered(dispatchers), None, frame).run(),
            manual_tags=frozenset(tag for one in dispatchers for tag in one.manual_tags),
        )

    def prepare_pass(
        self,
        scope: EventScope[Any],
        registered: Registered,
        hook: Callable[[], Awaitable[object]] | None,
    ) -> PassDispatch:
        """What a host's own pass dispatches: its registration's dispatchers and its hook."""
        frame = DispatchFrame(self, scope)
        return PassDispatch(frame, self._prepare(registered, hook, frame))

    async def _directly(
        self,
        operation: str,
        run: Callable[[DispatchFrame], Awaitable[DispatchResult]],
        *,
        manual_tags: frozenset[str] = frozenset(),
    ) -> DispatchResult:
        """Run as part of the pass that the task is inside of, or outside of any (R25)."""
        writer = self._state.writer
        writer.check_may_write(operation)
        if current_handling(writer) is not None:
            raise AlarmPassError(
                f"{operation} was called from a handler; a handler cannot dispatch, as it would"
                " wait for itself"
            )
        writer.refuse_inside_transaction(operation)
        frame = find(DispatchFrame, lambda frame: frame.owner is self and not frame.over)
        if frame is not None:
            if frame.hook is not None:
                # A contradictory policy fails here, before anything counts as dispatched: else
                # what is due would stay due uncharged, and the next pass would come at once.
                self._resolve()
                frame.hook.dispatched = True
                frame.hook.manual_tags |= manual_tags
            return await run(frame)
        if self._passes.closing:
            raise HostClosingError(
                f"{operation}: the host is closing; no new dispatch starts", operation="dispatch"
            )
        # Around the event, so that the host waits for its scope's clean-up as well.
        with self._passes.owned_scope() as owned:
            scope = current_event(writer)
            if scope is not None:
                return await self._outside_pass(scope, run)
            async with self._enter_event() as fresh:
                return await self._outside_pass(fresh, run)
        raise _cut_short(operation, by_closing=owned.cancelled_caught)

    async def _outside_pass(
        self,
        scope: EventScope[Any],
        run: Callable[[DispatchFrame], Awaitable[DispatchResult]],
    ) -> DispatchResult:
        frame = DispatchFrame(self, scope)
        async with self._wakes.deferring(self._state.writer, self._resolve()):
            try:
                with frame:
                    return await run(frame)
            finally:
                frame.over = True

    async def _run_one(
        self,
        find_route: FindRoute,
        options: DispatchOptions,
        frame: DispatchFrame,
        *,
        view: TagView = ALL_TAGS,
        automatic: bool = True,
    ) -> DispatchResult:
        dispatch = self._dispatch(find_route, options, frame, view=view, automatic=automatic)
        return await dispatch.run()

    def _dispatch(
        self,
        find_route: FindRoute,
        options: DispatchOptions,
        frame: DispatchFrame,
        *,
        view: TagView,
        automatic: bool = True,
    ) -> Dispatch:
        plan = Plan(
            host=self._host,
            scope=frame.scope,
            find_route=find_route,
            options=options,
            view=frame.view.narrowed(view),
            manual_limiter=frame.limiter,
            configuration=self._resolve(),
            automatic=automatic,
        )
        return Dispatch(self._state, plan)

    def _prepare(
        self,
        registered: Registered,
        hook: Callable[[], Awaitable[object]] | None,
        frame: DispatchFrame,
    ) -> _Prepared:
        """Dispatchers side by side; the hook after those with automatic alarms (R30, R34)."""
        prepared = _Prepared()
        for dispatcher, find_route, view in registered.dispatchers:
            dispatch = self._dispatch(find_route, dispatcher.options, frame, view=view)
            first = hook is not None and dispatcher.has_automatic
            (prepared.before_hook if first else prepared.beside).append(dispatch)
        unowned = registered.unowned
        if hook is None:
            # Due rows of tags that nobody owns: they fail and back off, none is deleted (R30).
            prepared.beside.append(
                self._dispatch(lambda _: None, _DEFAULT_OPTIONS, frame, view=unowned)
            )
        else:
            prepared.hook = partial(self._run_hook, hook, frame, unowned)
        return prepared

    async def _run_hook(
        self,
        hook: Callable[[], Awaitable[object]],
        frame: DispatchFrame,
        unowned: TagView,
        gathered: _Gathered,
    ) -> None:
        """Run the hook, then the unknown-tag policy, even when the hook raised (R33, R34)."""
        tracked = Hook()
        inner = DispatchFrame(
            self,
            frame.scope,
            view=frame.view.narrowed(unowned),
            limiter=frame.limiter,
            hook=tracked,
        )
        try:
            with inner:
                await gathered.add(partial(_no_result, hook))
        finally:
            inner.over = True
        # A manual alarm that the hook serves may have fallen due since the hook looked. It is
        # not without a handler: it stays due, and the next delivery brings it.
        unserved = unowned.narrowed(TagView(excluded=tracked.manual_tags))
        automatic = not tracked.dispatched
        unknown = partial(
            self._run_one,
            lambda _: None,
            _DEFAULT_OPTIONS,
            frame,
            view=unserved,
            automatic=automatic,
        )
        await gathered.add(unknown)


@attrs.define(eq=False)
class _Gathered:
    """The results and errors of what runs side by side, in the order of their ends."""

    results: list[DispatchResult] = attrs.Factory(list[DispatchResult])
    errors: list[Exception] = attrs.Factory(list[Exception])

    async def add(self, run: Callable[[], Awaitable[DispatchResult]]) -> None:  # noqa: ASYNC910 - what it runs is the checkpoint
        """Run one; its failure stops no other."""
        try:
            self.results.append(await run())
        except Exception as error:  # noqa: BLE001 - raised together with the others at the end
            self.errors.append(error)

    def result(self) -> DispatchResult:
        """All results as one, or what failed."""
        error = combined(self.errors, "several dispatchers failed")
        if error is not None:
            raise error
        return DispatchResult(
            handled=tuple(event for result in self.results for event in result.handled),
            failed=tuple(failure for result in self.results for failure in result.failed),
            parked=tuple(parked for result in self.results for parked in result.parked),
        )


@attrs.define(eq=False)
class _Prepared:
    """The dispatches of a registration, not begun yet; a hook runs after those before it.

    They run inside a `defer_wakes` scope, that of the pass or of the direct call.
    """

    beside: list[Dispatch] = attrs.Factory(list[Dispatch])
    before_hook: list[Dispatch] = attrs.Factory(list[Dispatch])
    hook: Callable[[_Gathered], Awaitable[None]] | None = None

    @property
    def dispatches(self) -> Sequence[Dispatch]:
        return [*self.before_hook, *self.beside]

    async def run(self) -> DispatchResult:
        """Run all of them; what fails is raised together at the end."""
        gathered = _Gathered()
        busy = [dispatch for dispatch in self.beside if not dispatch.has_nothing_to_do]
        if len(busy) == 1 and not self.before_hook and self.hook is None:
            return await busy[0].run()
        async with BodyNursery(unwrap=True) as nursery:
            for dispatch in busy:
                nursery.start_soon(gathered.add, dispatch.run)
            if self.before_hook:
                async with BodyNursery(unwrap=True) as first:
                    for dispatch in self.before_hook:
                        first.start_soon(gathered.add, dispatch.run)
            if self.hook is not None:
                await self.hook(gathered)
        return gathered.result()


class PassDispatch:
    """What a host's pass dispatches."""

    def __init__(self, frame: DispatchFrame, prepared: _Prepared) -> None:
        self._frame = frame
        self._prepared = prepared

    def choose(self, session: Session) -> Sequence[Chosen]:
        """Look what is due, for all dispatchers."""
        window = DueWindow()
        return [dispatch.choose(session, window) for dispatch in self._prepared.dispatches]

    def landed(self, chosen: Sequence[Chosen]) -> None:
        """What was chosen is durable."""
        for dispatch, its_own in zip(self._prepared.dispatches, chosen, strict=True):
            dispatch.landed(its_own)

    async def run(self) -> None:
        """Dispatch it, and run the hook."""
        try:
            with self._frame:
                await self._prepared.run()
        finally:
            self._frame.over = True

    def let_go(self) -> None:
        """What was not begun is no longer in hand."""
        for dispatch in self._prepared.dispatches:
            dispatch.let_go()


def _cut_short(operation: str, *, by_closing: bool) -> AlarmError:
    """Why a direct call did not get to its end, although its caller was not cancelled."""
    if by_closing:
        return HostClosingError(
            f"{operation}: the host was closed while this dispatch ran", operation="dispatch"
        )
    return AlarmPassError(
        f"{operation}: the dispatch's own event was cancelled from inside; what is due stays due"
    )


async def _no_result(hook: Callable[[], Awaitable[object]]) -> DispatchResult:
    await hook()
    return DispatchResult()
