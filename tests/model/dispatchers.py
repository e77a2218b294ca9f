"""Who serves which tags (R25, R30, R33), as values; `hosted` has the real ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import attrs

from tests.model.alarms import AUTOMATIC, MANUAL
from tests.model.steps import DEFAULT_OPTIONS, Options, Serving


@attrs.frozen
class Definition:
    """An `Alarm`; its payload is an int. A `retry_initial_delay` implies `failure="retry"`."""

    lifecycle: str = AUTOMATIC
    failure: Literal["retry", "skip-and-advance-repeat"] | None = None
    retry_initial_delay: int | None = None
    timeout: int | None = None


FIRST: Final = {
    "plain": Definition(),
    "skip": Definition(failure="skip-and-advance-repeat"),
    "sweep": Definition(MANUAL),
}
SECOND: Final = {
    "slow": Definition(failure="retry", retry_initial_delay=3_000, timeout=4_500),
    "retry": Definition(failure="retry"),
    "tidy": Definition(MANUAL, timeout=4_500),
}


@attrs.frozen
class Dispatcher:
    """Who serves which tags, and how (R25, R30)."""

    definitions: Mapping[str, Definition]
    options: Options = DEFAULT_OPTIONS
    only: frozenset[str] | None = None
    but: frozenset[str] = frozenset()
    any_tag: bool = False  # `process_due_alarms`
    leftover: bool = False  # only manual rows that nothing serves (R33)

    def sees(self, tag: str, lifecycle: str) -> bool:
        """Whether rows of this tag are its own."""
        if self.leftover:
            return lifecycle == MANUAL and self.serves(tag, MANUAL) is None
        return tag not in self.but and (self.only is None or tag in self.only)

    def serves(self, tag: str, lifecycle: str) -> Definition | None:
        """What handles it here; only a manual row asks for a handler of its lifecycle (R26)."""
        definition = Definition() if self.any_tag else self.definitions.get(tag)
        if lifecycle == MANUAL and definition is not None and definition.lifecycle != MANUAL:
            return None
        return definition

    def decodes(self, payload: Any) -> bool:
        """Whether the stored payload is of its type."""
        return self.any_tag or isinstance(payload, int)


def second_options(options: Options) -> Options:
    """The second service's: plain ones, but it asks `on_failure` where the first does."""
    return Options(on_failure=options.on_failure)


def dispatchers(serving: Serving, options: Options) -> list[Dispatcher]:
    """What each way to serve a host dispatches with."""
    if serving == "process_due":
        return [Dispatcher({}, options, any_tag=True)]
    if serving == "set":
        return [Dispatcher(FIRST | SECOND, options)]
    found = []
    if serving in ("first", "both"):
        found.append(Dispatcher(FIRST, options, only=frozenset(FIRST)))
    if serving in ("second", "both"):
        found.append(Dispatcher(SECOND, second_options(options), only=frozenset(SECOND)))
    known = frozenset(tag for one in found for tag in one.definitions)
    return [*found, Dispatcher({}, but=known)]  # the unknown-tag policy
