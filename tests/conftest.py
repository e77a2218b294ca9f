"""What the whole suite shares."""

from __future__ import annotations

import gc

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes minutes or hours, unless a `-m` names it."""
    named = config.getoption("markexpr")
    unnamed = [marker for marker in ("trust", "soak") if marker not in named]
    left_out = [item for item in items if any(map(item.get_closest_marker, unnamed))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Spare the garbage collector what lives until the end: it took a third of the suite's time."""
    gc.collect()
    gc.freeze()
