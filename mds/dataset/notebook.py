"""A dataset and its explanation as a notebook shows them: schema, sizes, the first samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mds.errors import MdsError
from mds.preview import element, make_fragment, samples_table, table

ROWS = 3
_SHOWN_CLASSES = 8


def show_dataset(dataset: Any) -> str:
    """Return a dataset in HTML: what it is, its columns and its first samples as stored.

    A display must not fail: what cannot be had (a store that does not answer) is told in its place.
    """
    pieces = [element("p", repr(dataset))]
    try:
        columns = dataset.columns
    except (MdsError, OSError) as error:
        pieces.append(element("p", f"The columns cannot be told: {error}"))
    else:
        rows = [
            (name, column.encoding, column.description, _classes(column.class_names))
            for name, column in columns.items()
        ]
        pieces.append(table(["column", "encoding", "description", "classes"], rows))
    try:
        pieces.append(samples_table((n, _sample(dataset, n)) for n in range(_rows(dataset))))
    except Exception as error:  # noqa: BLE001 - of a store, of a sample, of the caller's own class
        pieces.append(element("p", f"The first samples cannot be shown: {error}"))
    return make_fragment(pieces)


def _rows(dataset: Any) -> int:
    return min(ROWS, int(dataset.num_samples))


def _sample(dataset: Any, number: int) -> dict[str, Any]:
    sample = dataset.get_item(number)
    return sample if isinstance(sample, dict) else {"": sample}


def _classes(names: Sequence[str]) -> str:
    listed = ", ".join(f"{number} {name}" for number, name in enumerate(names[:_SHOWN_CLASSES]))
    return listed + (f", ... ({len(names):,})" if len(names) > _SHOWN_CLASSES else "")


class Explanation(str):
    """Text of `explain`, which a notebook shows as a table."""

    __slots__ = ("_head", "_rows")
    _head: str
    _rows: list[tuple[str, str, str]]

    @classmethod
    def of(cls, head: str, rows: list[tuple[str, str, str]]) -> Explanation:
        """Make the text of a line on the whole, and rows of a setting, its value and the reason."""
        width = max(len(label) for label, _, _ in rows)
        values = max(len(value) for _, value, _ in rows)
        lines = [
            f"  {label:<{width}}  {value:<{values}}  {why}".rstrip() for label, value, why in rows
        ]
        explanation = cls("\n".join([head, *lines]))
        explanation._head, explanation._rows = head, rows
        return explanation

    def _repr_html_(self) -> str:
        return make_fragment(
            [element("h3", self._head), table(["setting", "value", "why"], self._rows)]
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)
