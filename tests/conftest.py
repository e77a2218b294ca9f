"""What the whole suite shares."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes minutes, unless a `-m` names it."""
    if "trust" in config.getoption("markexpr"):
        return
    left_out = [item for item in items if item.get_closest_marker("trust") is not None]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
