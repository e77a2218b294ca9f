"""Hooks for unions: a class is named in `_type`, every other member is told by its JSON kind."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, NoReturn, get_args, get_origin

import attrs
from cattrs import Converter

from ._containers import (
    bare,
    is_array,
    is_class,
    is_mapping,
    is_named_tuple,
    is_typed_dict,
    runtime_classes,
)
from ._faults import (
    DuplicateMemberError,
    Misfit,
    Unstorable,
    UnstorableTypeError,
    json_name,
    type_name,
    unexpected,
)
from ._scalars import (
    SCALARS,
    TEXT_FORMS,
    StructureHook,
    UnstructureHook,
    identity,
    is_enum,
    literal_values,
    structure_any,
)

TYPE_KEY: Final = "_type"

PLAIN: Final = (Any, object)


def is_union(declared: Any) -> bool:
    """Whether a declared type is a union, `Optional` included."""
    return get_origin(declared) in (typing.Union, types.UnionType)


def unwrap(declared: Any) -> Any:
    """The type behind `Annotated`, `NewType` and a `type` alias."""
    while True:
        if get_origin(declared) is Annotated:
            declared = declared.__origin__
        elif isinstance(declared, typing.NewType):
            declared = declared.__supertype__
        elif is_alias(declared):
            declared = declared.__value__
        else:
            return declared


def is_alias(declared: Any) -> bool:
    """Whether a declared type is a `type` alias (Python 3.12), or its backport."""
    return type(declared).__name__ == "TypeAliasType"


@attrs.define
class _Plan:
    """How the members of a union are told apart.

    Invariant: no JSON value belongs to two members, except for a literal that is also a value of
    an open member, which reads the same either way.
    """

    declared: Any
    # Classes by the name that `_type` gives them.
    tagged: dict[str, Any] = attrs.Factory(dict[str, Any])
    # Members with a few values, by class and JSON value.
    exact: dict[tuple[type, Any], Any] = attrs.Factory(dict[tuple[type, Any], Any])
    # All others, by the class of their JSON value.
    by_kind: dict[type, Any] = attrs.Factory(dict[type, Any])
    # All members, by the class of a value before it is stored.
    by_class: dict[type, Any] = attrs.Factory(dict[type, Any])
    # The kinds of JSON values that read as enum members.
    enum_kinds: set[type] = attrs.Factory(set[type])

    def add(self, member: Any) -> None:
        """Take one member in, or refuse it."""
        base = unwrap(member)
        if is_class(base):
            self._add_class(member, bare(base))
        elif is_enum(base):
            self._add_enum(member, base)
        elif get_origin(base) is Literal:
            self._add_literal(member, base)
        else:
            kind, classes = _open_member(base, self.declared)
            self._add_kind(member, kind)
            self.by_class.update(dict.fromkeys(classes, member))

    def complete(self) -> None:
        """Refuse what cannot be told apart; let float take integers if nothing else does."""
        if dict in self.by_kind and self.tagged:
            self._refuse(self.by_kind[dict])
        for kind in self.enum_kinds & self.by_kind.keys():
            self._refuse(self.by_kind[kind])
        if float in self.by_kind:
            self.by_kind.setdefault(int, self.by_kind[float])
            self.by_class.setdefault(int, self.by_class[float])

    def _add_class(self, member: Any, cls: type) -> None:
        name = cls.__name__
        if name in self.tagged:
            raise DuplicateMemberError(
                f"two members of {type_name(self.declared)} are named {name}, so {TYPE_KEY} cannot"
                " tell them apart"
            )
        fields = attrs.fields(cls) if attrs.has(cls) else dataclasses.fields(cls)
        if any(field.name == TYPE_KEY for field in fields):
            raise UnstorableTypeError(f"{name} has a field {TYPE_KEY}, which names union members")
        self.tagged[name] = member
        self.by_class[cls] = member

    def _add_enum(self, member: Any, cls: type[enum.Enum]) -> None:
        self.by_class[cls] = member
        if issubclass(cls, enum.Flag):
            self._add_kind(member, int)
            return
        for item in cls:
            self._add_exact(member, item)

    def _add_literal(self, member: Any, base: Any) -> None:
        for value in literal_values(base).values():
            self._add_exact(member, value)
            self.by_class.setdefault(value.__class__, member)

    def _add_exact(self, member: Any, value: Any) -> None:
        stored: Any = value.value if isinstance(value, enum.Enum) else value
        kind: type = stored.__class__
        if isinstance(value, enum.Enum):
            self.enum_kinds.add(kind)
        if (kind, stored) in self.exact:
            self._refuse(member)
        self.exact[kind, stored] = member

    def _add_kind(self, member: Any, kind: type) -> None:
        if kind in self.by_kind:
            self._refuse(member)
        self.by_kind[kind] = member

    def _refuse(self, member: Any) -> NoReturn:
        raise UnstorableTypeError(
            f"{type_name(member)} cannot be told from another member of"
            f" {type_name(self.declared)} by its JSON value"
        )


def _open_member(base: Any, declared: Any) -> tuple[type, tuple[type, ...]]:
    """The class of a member's JSON values, and the classes of the values that they stand for."""
    if base in SCALARS:
        return base, (base,)
    if base in TEXT_FORMS:
        return str, (base,)
    if is_array(base):
        return list, runtime_classes(base)
    if is_named_tuple(base):
        return list, (base,)
    if is_typed_dict(base):
        return dict, (dict,)
    if is_mapping(base):
        return dict, runtime_classes(base)
    raise UnstorableTypeError(
        f"{type_name(base)} has no JSON form by which {type_name(declared)} could tell it"
    )


def _members(declared: Any) -> Iterator[Any]:
    for member in get_args(declared):
        base = unwrap(member)
        if is_union(base):
            yield from _members(base)
        else:
            yield member


def _plan(declared: Any) -> _Plan | None:
    """How to tell the members apart; None: the union is no narrower than plain JSON."""
    plan = _Plan(declared)
    members: list[Any] = []
    for member in _members(declared):
        # An alias may bring in a member that is there already.
        if member not in members:
            members.append(member)
    plain = [member for member in members if unwrap(member) in PLAIN]
    for member in members:
        if member not in plain:
            plan.add(member)
    plan.complete()
    if plain and (plan.tagged or plan.enum_kinds or not set(plan.by_class) <= set(SCALARS)):
        raise UnstorableTypeError(
            f"{type_name(declared)} mixes plain JSON with what has a JSON form of its own"
        )
    return None if plain else plan


def structure_union(declared: Any, converter: Converter) -> StructureHook:
    """Make the hook for a union.

    A class that is the only one of its union is also read without `_type`, so that a field may
    become optional.
    """
    plan = _plan(declared)
    if plan is None:
        return structure_any
    tagged = {name: _structured(member, converter) for name, member in plan.tagged.items()}
    exact = {key: _structured(member, converter) for key, member in plan.exact.items()}
    by_kind = {kind: _structured(member, converter) for kind, member in plan.by_kind.items()}
    expected = type_name(declared)
    only = next(iter(tagged.values())) if len(tagged) == 1 else None

    def structure(value: Any, _declared: Any) -> Any:
        kind = value.__class__
        if kind is dict and tagged:
            name = value.get(TYPE_KEY, "")
            found = tagged.get(name) if isinstance(name, str) else None
            if TYPE_KEY not in value:
                found = only
            if found is None:
                raise Misfit(f"expected {TYPE_KEY} to be one of {', '.join(tagged)}")
        else:
            found = (exact.get((kind, value)) if kind in SCALARS else None) or by_kind.get(kind)
            if found is None:
                raise Misfit(f"expected {expected}, got {json_name(value)}")
        hook, member = found
        return hook(value, member)

    return structure


def _structured(member: Any, converter: Converter) -> tuple[StructureHook, Any]:
    return converter.get_structure_hook(member), member


def unstructure_union(declared: Any, converter: Converter) -> UnstructureHook:
    """Make the hook for a union."""
    plan = _plan(declared)
    if plan is None:
        return identity
    by_class: dict[type, tuple[UnstructureHook, str | None]] = {
        cls: (converter.get_unstructure_hook(member), None) for cls, member in plan.by_class.items()
    }
    for name, member in plan.tagged.items():
        cls = bare(unwrap(member))
        by_class[cls] = by_class[cls][0], name
    expected = type_name(declared)

    def unstructure(value: Any) -> Any:
        found = by_class.get(value.__class__) or next(
            (by_class[cls] for cls in value.__class__.__mro__ if cls in by_class), None
        )
        if found is None:
            return unexpected(expected, value)
        hook, name = found
        tree = hook(value)
        if name is None or isinstance(tree, Unstorable):
            return tree
        return {TYPE_KEY: name, **tree}

    return unstructure
