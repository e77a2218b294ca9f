"""How much each contestant does: in a full run, and in a quick one."""

from __future__ import annotations

from typing import Final

import attrs


@attrs.frozen(kw_only=True)
class Sizes:
    """Counts of operations, alarms and children, and seconds to be idle."""

    operations: int
    concurrent_operations: int
    callers: int = 100
    dispatched: int
    wakes: int
    retained: int
    few: int = 1_000
    scale_operations: int
    interrupted: int = 10
    idle_seconds: float
    idle_alarms: int = 100_000
    overdue: int
    deferred_transactions: int
    recoveries: int
    imports: int


FULL: Final = Sizes(
    operations=5_000,
    concurrent_operations=5_000,
    dispatched=10_000,
    wakes=200,
    retained=1_000_000,
    scale_operations=1_000,
    idle_seconds=60.0,
    overdue=200_000,
    deferred_transactions=1_000,
    recoveries=5,
    imports=10,
)

QUICK: Final = Sizes(
    operations=300,
    concurrent_operations=2_000,
    dispatched=600,
    wakes=60,
    retained=100_000,
    scale_operations=100,
    idle_seconds=10.0,
    overdue=10_000,
    deferred_transactions=1_000,
    recoveries=2,
    imports=3,
)
