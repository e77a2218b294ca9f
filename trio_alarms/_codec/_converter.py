"""The strict converter: a cattrs converter whose hooks coerce nothing.

cattrs finds the hook of a type and generates code for the fields of classes. By itself it is lax:
it makes an int of "7" and a list of anything iterable, drops what a subclass adds, and forgets a
union's declared type in a recursive class. So each kind of type has hooks of ours, which look at
what they are given in both directions. Structuring raises `Misfit`; unstructuring leaves an
`Unstorable` in the tree.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeAlias, get_origin

import attrs
from cattrs import Converter, StructureHandlerNotFoundError

from . import _containers as containers
from . import _scalars as scalars
from . import _unions as unions
from ._faults import type_name

HookFactory: TypeAlias = Callable[[Any, Converter], Callable[..., Any]]


@attrs.frozen
class Shape:
    """A kind of declared types, and what makes its hooks.

    `refers` says that such a type has names of other types in it, and so of itself.
    """

    fits: Callable[[Any], bool]
    structure: HookFactory
    unstructure: HookFactory
    refers: bool = False


def _fixed(hook: Callable[..., Any]) -> HookFactory:
    """A hook that is the same for each type of its kind."""
    return lambda _declared, _converter: hook


# Where two of them fit, the later one counts.
_SHAPES: Final = (
    Shape(containers.is_other_collection, containers.refuse, containers.refuse),
    Shape(containers.is_array, containers.structure_array, containers.unstructure_array),
    Shape(containers.is_mapping, containers.structure_mapping, containers.unstructure_mapping),
    Shape(
        containers.is_named_tuple,
        containers.structure_named_tuple,
        containers.unstructure_named_tuple,
        refers=True,
    ),
    Shape(
        containers.is_typed_dict,
        containers.structure_typed_dict,
        containers.unstructure_typed_dict,
        refers=True,
    ),
    Shape(
        containers.is_class, containers.structure_class, containers.unstructure_class, refers=True
    ),
    Shape(
        lambda declared: declared in scalars.TEXT_FORMS,
        lambda declared, _converter: scalars.structure_text_form(declared),
        lambda declared, _converter: scalars.unstructure_text_form(declared),
    ),
    Shape(
        scalars.is_enum,
        _fixed(scalars.structure_member),
        lambda declared, _converter: scalars.unstructure_enum(declared),
    ),
    Shape(
        lambda declared: get_origin(declared) is Literal,
        lambda declared, _converter: scalars.structure_literal(declared),
        lambda declared, _converter: scalars.unstructure_literal(declared),
    ),
    Shape(
        lambda declared: declared is None or declared is type(None),
        _fixed(scalars.structure_null),
        _fixed(scalars.identity),
    ),
    Shape(
        lambda declared: declared in unions.PLAIN,
        _fixed(scalars.structure_any),
        _fixed(scalars.identity),
    ),
    Shape(unions.is_union, unions.structure_union, unions.unstructure_union),
    Shape(
        unions.is_alias,
        lambda declared, converter: converter.get_structure_hook(declared.__value__),
        lambda declared, converter: converter.get_unstructure_hook(declared.__value__),
        refers=True,
    ),
)


def strict_converter() -> Converter:
    """Make a converter that coerces nothing; for one payload type, as it keeps what it has seen."""
    converter = Converter(structure_fallback_factory=_refuse_unknown)
    for shape in _SHAPES:
        structure, unstructure = shape.structure, shape.unstructure
        if shape.refers:
            structure, unstructure = _late_bound(structure), _late_bound(unstructure)
        converter.register_structure_hook_factory(shape.fits, structure)
        converter.register_unstructure_hook_factory(shape.fits, unstructure)
    # cattrs finds these by class, before it asks any of the above.
    kind: type
    for kind in (bool, int, str):
        converter.register_structure_hook(kind, scalars.structure_scalar(kind))
    converter.register_structure_hook(float, scalars.structure_float)
    converter.register_unstructure_hook(float, scalars.unstructure_float)
    for kind in (bytes, Path):
        converter.register_structure_hook(kind, scalars.structure_text_form(kind))
        converter.register_unstructure_hook(kind, scalars.unstructure_text_form(kind))
    return converter


def _refuse_unknown(declared: Any) -> NoReturn:
    # The one error after which cattrs lets the `converter` of an attrs field take the value.
    raise StructureHandlerNotFoundError(
        f"{type_name(declared)} has no JSON form of its own; a cattrs converter, given to the"
        " service or to define() as converter=..., can give it one",
        declared,
    )


def _late_bound(make: HookFactory) -> HookFactory:
    """Let a type refer to itself: while its hook is being made, the reference is looked up late.

    cattrs does so too, but looks up the class of the value instead of the declared type.
    """
    hooks: dict[Any, Callable[..., Any]] = {}
    under_way: set[Any] = set()

    def factory(declared: Any, converter: Converter) -> Callable[..., Any]:
        # cattrs makes the hooks of one generic class, such as `Box[Box[int]]`, one at a time.
        origin = containers.bare(declared)
        if origin in under_way:
            return _deferred(lambda: hooks.get(declared) or factory(declared, converter))
        under_way.add(origin)
        try:
            hooks[declared] = hook = make(declared, converter)
        finally:
            under_way.remove(origin)
        return hook

    return factory


def _deferred(find: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    def hook(*arguments: Any) -> Any:
        return find()(*arguments)

    return hook
