"""Stacking: every column as one tensor, and an error where that cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mds.errors import ConfigError
from mds.transforms.column_function import ColumnFunction
from mds.transforms.columns import tensor_of

if TYPE_CHECKING:
    from mds.transforms.row_keys import Keys


class Stack(ColumnFunction):
    """Column function that stacks; see `stack`."""

    def apply(self, columns: dict[str, Any], keys: Keys | None) -> dict[str, Any]:
        """Return the columns as tensors. The named ones must become tensors."""
        del keys
        made = {name: tensor_of(values) for name, values in columns.items()}
        for name in self.names:
            if isinstance(made[name], list):
                shapes = sorted({str(tuple(getattr(v, "shape", ()))) for v in made[name]})
                what = f"values of shape {', '.join(shapes[:4])}" if len(shapes) > 1 else "values"
                raise ConfigError(
                    f"column {name!r} has {what} that make no tensor: take pad() or ragged() for "
                    "rows of different lengths, images() for pictures."
                )
        return made


def stack(*names: str) -> Stack:
    """Return a collate function that stacks as the default one, and insists on some columns.

    - ``names`` (str): Columns that must become a tensor each. Without names it is the default of a
      loader: columns of one shape are stacked, others come as a list.

    Raises ConfigError (a ValueError) for a column of the names that cannot be stacked.

    >>> loader = StreamingDataLoader(dataset, collate_fn=stack("tokens"))  # doctest: +SKIP
    """
    return Stack(names)
