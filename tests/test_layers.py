"""Which way the modules lean: each imports only from the floors below its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "trio_alarms"

# The floor of every module. A package such as `_store` has one floor as a whole; inside, its
# modules import each other in one direction.
FLOORS = {
    "_errors": 0,
    "_arguments": 0,
    "_nursery": 0,
    "_names": 1,
    "_time": 1,
    "_clock": 2,
    "_model": 2,
    "_context": 3,
    "_configuration": 3,
    "_options": 3,
    "_storage_options": 3,
    "_rules": 3,
    "_codec": 3,
    "_reporting": 3,
    "_definitions": 4,
    "_handling": 4,
    "_operations": 4,
    "_store": 4,
    "_requests": 5,
    "_episodes": 5,
    "_registrations": 5,
    "_database": 5,
    "_host_settings": 6,
    "_group_commit": 6,
    "_import": 6,
    "_scheduling": 6,
    "_transactions": 6,
    "_writer": 7,
    "_events": 7,
    "_dispatch_plan": 7,
    "_lane": 8,
    "_row_handler": 8,
    "_wakes": 8,
    "_scheduler": 8,
    "_passes": 9,
    "_dispatch": 9,
    "_native_alarm": 9,
    "_driver": 9,
    "_dispatchers": 10,
    "_runtime": 11,
    "_host": 12,
    "__init__": 13,
    "testing": 13,
}

# Within `_store` that direction is laid down: from siblings that stand before a module here.
STORE_ORDER = (
    "_executor",
    "_schema",
    "_files",
    "_lock",
    "_seam",
    "_connection",
    "_alarms",
    "_native",
    "_session",
    "_effect_cf",
    "__init__",
)


def module_names() -> list[str]:
    """Every module of the package, relative to it: `_rules`, `_store._alarms`, `__init__`."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return [".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in paths]


def is_type_checking(test: ast.expr) -> bool:
    """Whether this is the condition of a block that only type checkers run."""
    return ast.unparse(test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below this one but those under `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and is_type_checking(child.test):
            for other in child.orelse:
                yield other
                yield from runtime_nodes(other)
        else:
            yield child
            yield from runtime_nodes(child)


def resolve(dotted: str) -> str | None:
    """The module of ours that an imported name stands for or is defined in, if any."""
    parts = dotted.split(".")
    if parts[0] != "trio_alarms":
        return None
    inside = parts[1:]
    while inside:
        folder = PACKAGE.joinpath(*inside)
        if folder.with_suffix(".py").is_file():
            return ".".join(inside)
        if folder.is_dir():
            return ".".join([*inside, "__init__"])
        inside.pop()
    return "__init__"


def imports_of(module: str) -> set[str]:
    """The modules of ours that this one imports at run time, inside functions too."""
    parts = ["trio_alarms", *module.split(".")]
    tree = ast.parse(PACKAGE.parent.joinpath(*parts).with_suffix(".py").read_text("utf-8"))
    dotted: set[str] = set()
    for node in runtime_nodes(tree):
        if isinstance(node, ast.Import):
            dotted |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = [*parts[: -node.level], node.module] if node.level else [node.module]
            source = ".".join(part for part in base if part)
            dotted |= {f"{source}.{alias.name}" for alias in node.names}
    return {found for name in dotted if (found := resolve(name)) is not None}


def may_import(module: str, target: str) -> bool:
    """Whether the floors let `module` import `target`."""
    own, other = module.split("."), target.split(".")
    if own[0] != other[0]:
        return FLOORS[other[0]] < FLOORS[own[0]]
    if own[0] == "_store":
        return STORE_ORDER.index(other[1]) < STORE_ORDER.index(own[1])
    return True


def test_every_module_has_a_floor() -> None:
    """A module is added to the table with its floor, and leaves it when it goes."""
    modules = [name.split(".") for name in module_names()]
    assert {parts[0] for parts in modules} == set(FLOORS)
    assert {parts[1] for parts in modules if parts[0] == "_store"} == set(STORE_ORDER)


@pytest.mark.parametrize("module", module_names())
def test_a_module_imports_only_from_floors_below(module: str) -> None:
    """No import leads to the same floor or upwards."""
    wrong = {target for target in imports_of(module) if not may_import(module, target)}
    assert not wrong


def test_no_imports_go_in_a_circle() -> None:
    """Each module can be read, and tested, before those that import it."""
    imports = {module: imports_of(module) - {module} for module in module_names()}
    assert len(list(TopologicalSorter(imports).static_order())) == len(imports)


def test_the_design_page_shows_the_same_floors() -> None:
    """The table that people read is the table that is checked."""
    page = (ROOT / "docs" / "explanation" / "design.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| (.*?) \|", page, re.MULTILINE)
    shown = {name: int(floor) for floor, names in rows for name in re.findall(r"`(\w+)/?`", names)}
    assert shown == FLOORS
