"""Columns of a file, and the fields inside of them, as their table has them by now.

A table that numbers its fields may rename, drop, move and add them, and leaves its files as they
are. Fields are trees here, plain values: number, name, kind (``struct``, ``list``, ``map`` or
``""``) and what is inside. `recipe` says how a column of a file becomes one of the table, and
`rebuilt` does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mds.formats.arrow_types import pyarrow

#: Number, name, kind, fields inside.
Tree = Sequence[Any]
#: For files without numbers: the number of each name, and the same for the fields inside.
Numbers = Mapping[str, Sequence[Any]]


def has_numbers(schema: Any) -> bool:
    """Whether the columns of a file have numbers."""
    return any(_number(field) for field in schema)


def tree_of(
    field: Any, numbers: Numbers | None = None, called: str = "", *, any_case: bool = False
) -> Tree:
    """Return the tree of a file's field; ``numbers`` has its number if the file has none.

    ``called``: the name by which those know it, where that is not its own; with ``any_case`` they
    know it in capitals and small letters alike.
    """
    if numbers is None:
        number, within = _number(field), None
    else:
        number, within = _known(called or field.name, numbers, any_case=any_case)

    def inside(each: Any, name: str = "") -> Tree:
        return tree_of(each, within, name, any_case=any_case)

    types, kind = pyarrow().types, field.type
    if types.is_struct(kind):
        fields = [kind.field(position) for position in range(kind.num_fields)]
        return (number, field.name, "struct", [inside(each) for each in fields])
    if types.is_map(kind):
        pair = ((kind.key_field, "key"), (kind.item_field, "value"))
        return (number, field.name, "map", [inside(each, name) for each, name in pair])
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return (number, field.name, "list", [inside(kind.value_field, "element")])
    return (number, field.name, "", [])


def _known(name: str, numbers: Numbers, *, any_case: bool) -> Sequence[Any]:
    if name not in numbers and any_case:
        name = next((each for each in numbers if each.lower() == name.lower()), name)
    return numbers.get(name, ("", {}))


def recipe(stored: Tree, target: Tree) -> list[Any] | None:
    """Return the steps from a field of a file to that of the table, or None if it is equal.

    Of a struct: name, name in the file (None where it has none) and recipe of each field; else the
    recipes of what is inside.
    """
    if stored[2] != target[2] or not target[2]:
        return None
    if target[2] != "struct":
        inside = [recipe(*pair) for pair in zip(stored[3], target[3], strict=True)]
        return inside if any(each is not None for each in inside) else None
    stored_fields = {field[0]: field for field in stored[3] if field[0]}
    steps: list[Any] = []
    for field in target[3]:
        stored_field = stored_fields.get(field[0])
        steps.append(
            [field[1], None, None]
            if stored_field is None
            else [field[1], stored_field[1], recipe(stored_field, field)]
        )
    is_same = len(steps) == len(stored[3]) and all(
        name == stored_name and inner is None for name, stored_name, inner in steps
    )
    return None if is_same else steps


def rebuilt(column: Any, steps: Sequence[Any] | None) -> Any:
    """Convert a column of a file to that of the table; a field that is missing is null."""
    if steps is None:
        return column
    pa = pyarrow()
    kind = column.type
    if pa.types.is_struct(kind):
        parts = dict(zip([field.name for field in kind.fields], column.flatten(), strict=True))
        fields = [
            pa.nulls(len(column)) if stored is None else rebuilt(parts[stored], inner)
            for _, stored, inner in steps
        ]
        names = [name for name, _, _ in steps]
        return pa.StructArray.from_arrays(fields, names=names, mask=column.is_null())
    if pa.types.is_fixed_size_list(kind):
        column = column.cast(pa.list_(kind.value_field))
    column = column.take(pa.array(range(len(column)), pa.int64()))  # whose places begin with 0
    mask = column.is_null()
    if pa.types.is_map(kind):
        keys, items = rebuilt(column.keys, steps[0]), rebuilt(column.items, steps[1])
        return pa.MapArray.from_arrays(column.offsets, keys, items, mask=mask)
    make = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return make.from_arrays(column.offsets, rebuilt(column.values, steps[0]), mask=mask)


def _number(field: Any) -> str:
    """Return the number of a column in a file, or ''."""
    number: bytes = (field.metadata or {}).get(b"PARQUET:field_id", b"")
    return number.decode()
