"""How late an alarm rings, beyond what a bare `trio.sleep_until` is late by."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Final

import trio

from trio_alarms import AlarmDue

from . import files
from .hosts import Chores, Countdown, open_chores
from .rounds import Group, Row, Sample, Samples, Work

_FIRST_MS: Final = 500
# Far enough apart that one has been acknowledged before the next is due.
_GAP_MS: Final = 30


def sleeping(work: Work) -> Sample:
    """The reference: one task that sleeps until each deadline."""

    async def main() -> list[float]:
        late: list[float] = []
        for deadline in _deadlines(work.sizes.wakes):
            await trio.sleep_until(trio.current_time() + deadline / 1000 - time.time())
            late.append(_milliseconds_after(deadline))
        return late

    return percentiles(trio.run(main))


def alarms(work: Work) -> Sample:
    """Alarms of a host with its driver, until their handlers are called."""
    late: list[float] = []
    countdown = Countdown(work.sizes.wakes)

    async def once(event: AlarmDue[str]) -> None:
        late.append(_milliseconds_after(round(event.scheduled_at.timestamp() * 1000)))
        countdown.tick()

    async def main() -> None:
        async with open_chores(work.folder / "ours.db", once=once) as host:
            async with host.service(Chores).transaction() as tx:
                for deadline in _deadlines(work.sizes.wakes):
                    await tx.schedule_alarm(
                        Chores.once, str(deadline), run_at=files.instant(deadline), payload="work"
                    )
            await countdown.wait()

    trio.run(main)
    return percentiles(late)


def percentiles(late: Sequence[float]) -> Sample:
    """The median and the 99th percentile: the least that as many do not exceed."""
    ordered = sorted(late)
    return {
        f"p{percent}": ordered[math.ceil(len(ordered) * percent / 100) - 1] for percent in (50, 99)
    }


def _deadlines(count: int) -> list[int]:
    first = files.now_ms() + _FIRST_MS
    return [first + number * _GAP_MS for number in range(count)]


def _milliseconds_after(deadline: int) -> float:
    return time.time_ns() / 1e6 - deadline


def _beyond_p50(samples: Samples) -> float:
    return samples["alarms"]["p50"] - samples["sleep_until"]["p50"]


def _beyond_p99(samples: Samples) -> float:
    return samples["alarms"]["p99"] - samples["sleep_until"]["p99"]


WAKE: Final = Group(
    "wake",
    {"sleep_until": sleeping, "alarms": alarms},
    [
        Row(
            "wake latency beyond trio.sleep_until, p50", _beyond_p50, unit="ms", bound=1, wanted=0.6
        ),
        Row("wake latency beyond trio.sleep_until, p99", _beyond_p99, unit="ms", bound=5, wanted=2),
    ],
)
