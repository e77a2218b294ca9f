"""Hooks for what is a JSON array or object: collections, tuples, mappings and classes."""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import dataclasses
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final, get_args, get_origin

import attrs
from cattrs import Converter, StructureHandlerNotFoundError, override
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn

from ._faults import (
    ANY_KEY,
    MISSING,
    Misfit,
    Unstorable,
    UnstorableTypeError,
    Within,
    json_name,
    type_name,
    unexpected,
)
from ._scalars import StructureHook, UnstructureHook
from ._text import Entries, write_json

# Declared collections, and the class that a stored array becomes.
ARRAYS: Final[dict[Any, type]] = {
    list: list,
    collections.abc.MutableSequence: list,
    tuple: tuple,
    collections.abc.Sequence: tuple,
    collections.deque: collections.deque,
    set: set,
    collections.abc.MutableSet: set,
    frozenset: frozenset,
    collections.abc.Set: frozenset,
}
# Declared mappings, and the class that a stored object becomes.
MAPPINGS: Final[dict[Any, type]] = {
    dict: dict,
    collections.abc.MutableMapping: dict,
    collections.abc.Mapping: dict,
    collections.OrderedDict: collections.OrderedDict,
}
# What the markers of a TypedDict's key make of whether it is required.
_KEY_MARKERS: Final[dict[str, Callable[[bool], bool]]] = {
    "Required": lambda _required: True,
    "NotRequired": lambda _required: False,
    "ReadOnly": lambda required: required,
}
# A frozenset equals the set that it was.
_ALSO_ACCEPTED: Final[dict[Any, tuple[type, ...]]] = {collections.abc.Set: (set, frozenset)}


def bare(declared: Any) -> Any:
    """The class behind a generic alias, or the type itself."""
    return get_origin(declared) or declared


def _is_subclass(declared: Any, base: type) -> bool:
    return isinstance(declared, type) and issubclass(declared, base)


def is_array(declared: Any) -> bool:
    """Whether a declared type is a collection that is stored as an array."""
    return bare(declared) in ARRAYS


def is_mapping(declared: Any) -> bool:
    """Whether a declared type is a mapping that is stored as an object."""
    return bare(declared) in MAPPINGS


def is_named_tuple(declared: Any) -> bool:
    """Whether a declared type is a named tuple."""
    return _is_subclass(declared, tuple) and hasattr(declared, "_fields")


def is_typed_dict(declared: Any) -> bool:
    """Whether a declared type is a TypedDict, of `typing` or of `typing_extensions`."""
    origin = bare(declared)
    return _is_subclass(origin, dict) and hasattr(origin, "__total__")


def is_class(declared: Any) -> bool:
    """Whether a declared type is an attrs class or a dataclass."""
    origin = bare(declared)
    return isinstance(origin, type) and (attrs.has(origin) or dataclasses.is_dataclass(origin))


def is_other_collection(declared: Any) -> bool:
    """Whether a declared type is a collection of a kind that has no hook here."""
    return _is_subclass(bare(declared), collections.abc.Collection)


def refuse(declared: Any, _converter: Converter) -> Any:
    """Refuse a declared type that cattrs would structure laxly."""
    raise UnstorableTypeError(f"{type_name(declared)} has no strict JSON form")


def runtime_classes(declared: Any) -> tuple[type, ...]:
    """The classes of the values that a declared collection or mapping accepts."""
    origin = bare(declared)
    return _ALSO_ACCEPTED.get(origin) or ((ARRAYS.get(origin) or MAPPINGS[origin]),)


def _expected(declared: Any) -> str:
    origin = bare(declared)
    accepted = " or ".join(cls.__name__ for cls in runtime_classes(declared))
    if origin in runtime_classes(declared):
        return accepted
    return f"{accepted} (what {type_name(declared)} is read as)"


def _fixed_items(declared: Any) -> tuple[Any, ...] | None:
    """The item types of a tuple of fixed length, else None."""
    if bare(declared) is not tuple or declared in (tuple, typing.Tuple):  # noqa: UP006 - the alias
        return None
    items = get_args(declared)
    return None if Ellipsis in items else items


def structure_array(declared: Any, converter: Converter) -> StructureHook:
    """Make the hook for a collection."""
    fixed = _fixed_items(declared)
    if fixed is not None:
        return _structure_fixed(fixed, tuple, converter)
    item_type = next(iter(get_args(declared)), Any)
    hook = converter.get_structure_hook(item_type)
    build = ARRAYS[bare(declared)]

    def structure(value: Any, _declared: Any) -> Any:
        if value.__class__ is not list:
            raise Misfit(f"expected an array, got {json_name(value)}")
        items: list[Any] = []
        try:
            for item in value:
                items.append(hook(item, item_type))  # noqa: PERF401 - its length is the place
        except Exception as error:  # noqa: BLE001 - passed on with its place
            raise Within(f"[{len(items)}]", error) from None
        return build(items)

    return structure


def unstructure_array(declared: Any, converter: Converter) -> UnstructureHook:
    """Make the hook for a collection; a set is sorted, so that equal sets have equal texts."""
    fixed = _fixed_items(declared)
    if fixed is not None:
        return _unstructure_fixed(fixed, tuple, converter)
    hook = converter.get_unstructure_hook(next(iter(get_args(declared)), Any))
    accepted: tuple[Any, ...] = runtime_classes(declared)
    is_set = issubclass(accepted[0], collections.abc.Set)
    expected = _expected(declared)

    def unstructure(value: Any) -> Any:
        if not isinstance(value, accepted):
            return unexpected(expected, value)
        items = [hook(item) for item in value]
        return sorted(items, key=_sort_key) if is_set else items

    return unstructure


def _sort_key(item: Any) -> str:
    try:
        return write_json(item)
    except (Misfit, TypeError, ValueError):
        # It is found and reported by whoever walks the tree.
        return ""


def _structure_fixed(
    item_types: tuple[Any, ...], build: Callable[[list[Any]], Any], converter: Converter
) -> StructureHook:
    hooks = [(converter.get_structure_hook(item_type), item_type) for item_type in item_types]

    def structure(value: Any, _declared: Any) -> Any:
        if value.__class__ is not list:
            raise Misfit(f"expected an array, got {json_name(value)}")
        if len(value) != len(hooks):
            raise Misfit(f"expected {len(hooks)} items, got {len(value)}")
        items: list[Any] = []
        try:
            for item, (hook, item_type) in zip(value, hooks, strict=True):
                items.append(hook(item, item_type))
        except Exception as error:  # noqa: BLE001 - passed on with its place
            raise Within(f"[{len(items)}]", error) from None
        return build(items)

    return structure


def _unstructure_fixed(
    item_types: tuple[Any, ...], accepted: Any, converter: Converter
) -> UnstructureHook:
    hooks = [converter.get_unstructure_hook(item_type) for item_type in item_types]

    def unstructure(value: Any) -> Any:
        if not isinstance(value, accepted):
            return unexpected(accepted.__name__, value)
        if len(value) != len(hooks):
            return Unstorable(f"expected {len(hooks)} items, got {len(value)}")
        return [hook(item) for hook, item in zip(hooks, value, strict=True)]

    return unstructure


def _named_tuple_items(declared: Any) -> tuple[Any, ...]:
    hints = _resolved_hints(declared)
    missing = next((name for name in declared._fields if name not in hints), None)
    if missing is not None:
        raise UnstorableTypeError(f"{declared.__name__}.{missing} has no type")
    return tuple(hints[name] for name in declared._fields)


def structure_named_tuple(declared: Any, converter: Converter) -> StructureHook:
    """Make the hook for a named tuple, which is stored as an array."""
    return _structure_fixed(_named_tuple_items(declared), declared._make, converter)


def unstructure_named_tuple(declared: Any, converter: Converter) -> UnstructureHook:
    """Make the hook for a named tuple, which is stored as an array."""
    return _unstructure_fixed(_named_tuple_items(declared), declared, converter)


def _mapping_types(declared: Any) -> tuple[Any, Any]:
    key_type, value_type = get_args(declared) or (Any, Any)
    if key_type in (int, float, bool, type(None)):
        raise UnstorableTypeError(
            f"the keys of {type_name(declared)} are not stored as strings, and JSON has no others"
        )
    return key_type, value_type


def structure_mapping(declared: Any, converter: Converter) -> StructureHook:
    """Make the hook for a mapping."""
    key_type, value_type = _mapping_types(declared)
    key_hook = converter.get_structure_hook(key_type)
    value_hook = converter.get_structure_hook(value_type)
    build = MAPPINGS[bare(declared)]

    def structure(value: Any, _declared: Any) -> Any:
        if value.__class__ is not dict:
            raise Misfit(f"expected an object, got {json_name(value)}")
        entries: dict[Any, Any] = {}
        try:
            for key, item in value.items():
                entries[key_hook(key, key_type)] = value_hook(item, value_type)
        except Exception as error:  # noqa: BLE001 - passed on with its place
            raise Within(ANY_KEY, error) from None
        return entries if build is dict else build(entries)

    return structure


def unstructure_mapping(declared: Any, converter: Converter) -> UnstructureHook:
    """Make the hook for a mapping."""
    key_type, value_type = _mapping_types(declared)
    key_hook = converter.get_unstructure_hook(key_type)
    value_hook = converter.get_unstructure_hook(value_type)
    accepted: tuple[Any, ...] = runtime_classes(declared)
    expected = _expected(declared)

    def unstructure(value: Any) -> Any:
        if not isinstance(value, accepted):
            return unexpected(expected, value)
        return Entries((key_hook(key), value_hook(item)) for key, item in value.items())

    return unstructure


def _resolved_hints(declared: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(declared, include_extras=True)
    except NameError as error:
        raise UnstorableTypeError(
            f"an annotation of {declared.__name__} cannot be resolved: {error}"
        ) from error


def _prepared_fields(declared: type) -> tuple[Any, ...]:
    """The fields of a class, whose annotations are resolved where the class keeps them."""
    hints = _resolved_hints(declared)
    if not attrs.has(declared):
        for field in dataclasses.fields(declared):
            field.type = hints[field.name]
        return dataclasses.fields(declared)
    attrs.resolve_types(declared, include_extras=True)
    untyped = next((field.name for field in attrs.fields(declared) if field.type is None), None)
    if untyped is not None:
        raise UnstorableTypeError(f"{declared.__name__}.{untyped} has no type")
    fields: tuple[Any, ...] = attrs.fields(declared)
    return fields


def structure_class(declared: Any, converter: Converter) -> StructureHook:
    """Make the hook for an attrs class or a dataclass; unknown keys are ignored."""
    _prepared_fields(bare(declared))
    structure_fields = make_dict_structure_fn(declared, converter, _cattrs_use_linecache=False)

    def structure(value: Any, _declared: Any) -> Any:
        if value.__class__ is not dict:
            raise Misfit(f"expected an object, got {json_name(value)}")
        return structure_fields(value, declared)

    return structure


def _derived_fields(declared: type, converter: Converter) -> Iterator[str]:
    """The fields that a class makes by itself, and that make two values of it different.

    They are stored beside the others, and ignored when they are read; so a value that comes back
    with others is noticed.
    """
    for field in _prepared_fields(declared):
        counts = field.eq if attrs.has(declared) else field.compare
        if not field.init and counts:
            with contextlib.suppress(UnstorableTypeError, StructureHandlerNotFoundError):
                converter.get_structure_hook(field.type)
                yield field.name


def unstructure_class(declared: Any, converter: Converter) -> UnstructureHook:
    """Make the hook for an attrs class or a dataclass; a subclass's fields would be lost."""
    origin = bare(declared)
    overrides: Any = {name: override(omit=False) for name in _derived_fields(origin, converter)}
    unstructure_fields = make_dict_unstructure_fn(
        declared, converter, _cattrs_use_linecache=False, **overrides
    )

    def unstructure(value: Any) -> Any:
        if value.__class__ is not origin:
            return unexpected(origin.__name__, value)
        return unstructure_fields(value)

    return unstructure


@attrs.frozen
class _Key:
    """What a TypedDict says about one of its keys."""

    declared: Any
    required: bool


def _typed_dict_keys(declared: type) -> dict[str, _Key]:
    """The keys of a TypedDict, also where its annotations are strings.

    Then Python does not see `NotRequired` when it makes `__required_keys__`, and cattrs neither.
    """
    by_default: frozenset[str] = getattr(declared, "__required_keys__", frozenset())
    keys: dict[str, _Key] = {}
    for name, hint in _resolved_hints(declared).items():
        required = name in by_default
        while (marker := _KEY_MARKERS.get(str(get_origin(hint)).rpartition(".")[2])) is not None:
            required = marker(required)
            (hint,) = get_args(hint)
        keys[name] = _Key(hint, required)
    return keys


def structure_typed_dict(declared: Any, converter: Converter) -> StructureHook:
    """Make the hook for a TypedDict; unknown keys are ignored."""
    keys = _typed_dict_keys(bare(declared))
    hooks = {name: converter.get_structure_hook(key.declared) for name, key in keys.items()}

    def structure(value: Any, _declared: Any) -> Any:
        if value.__class__ is not dict:
            raise Misfit(f"expected an object, got {json_name(value)}")
        entries: dict[str, Any] = {}
        for name, key in keys.items():
            if name not in value:
                if key.required:
                    raise Within(f".{name}", Misfit(MISSING))
                continue
            try:
                entries[name] = hooks[name](value[name], key.declared)
            except Exception as error:  # noqa: BLE001 - passed on with its place
                raise Within(f".{name}", error) from None
        return entries

    return structure


def unstructure_typed_dict(declared: Any, converter: Converter) -> UnstructureHook:
    """Make the hook for a TypedDict; a missing key is noticed when it is structured back."""
    hooks = {
        name: converter.get_unstructure_hook(key.declared)
        for name, key in _typed_dict_keys(bare(declared)).items()
    }
    type_of_it = type_name(declared)

    def unstructure(value: Any) -> Any:
        if not isinstance(value, dict):
            return unexpected(type_of_it, value)
        if not value.keys() <= hooks.keys():
            return Unstorable(f"it has a key that {type_of_it} does not declare")
        return {name: hook(value[name]) for name, hook in hooks.items() if name in value}

    return unstructure
