"""Ragged columns as torch's embedding bags and attention kernels take them: values and offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mds.errors import ConfigError
from mds.transforms.column_function import ColumnFunction
from mds.transforms.rows import rows_of

if TYPE_CHECKING:
    from mds.transforms.row_keys import Keys


class Ragged(ColumnFunction):
    """Column function that lays rows end to end; see `ragged`."""

    def __init__(self, names: tuple[str, ...], *, nested: bool) -> None:
        super().__init__(names)
        if not names:
            raise ConfigError("ragged() takes the names of the columns that are ragged.")
        self._nested = nested

    def apply(self, columns: dict[str, Any], keys: Keys | None) -> dict[str, Any]:
        """Return the columns with the named ones end to end, and their offsets."""
        del keys
        made = dict(columns)
        for name in self.names:
            rows, lengths = rows_of(columns[name], name)
            values, offsets = np.concatenate(rows), np.zeros(len(rows) + 1, np.int64)
            np.cumsum(lengths, out=offsets[1:])
            if self._nested:
                made[name] = _nested(values, offsets, lengths)
            else:
                made[name], made[f"{name}_offsets"] = values, offsets
        return made


def _nested(values: Any, offsets: Any, lengths: Any) -> Any:
    import torch

    # The lengths are given, so that no kernel has to ask the offsets for them.
    return torch.nested.nested_tensor_from_jagged(
        torch.from_numpy(values),
        torch.from_numpy(offsets),
        min_seqlen=int(lengths.min()),
        max_seqlen=int(lengths.max()),
    )


def ragged(*names: str, nested: bool = False) -> Ragged:
    """Return a collate function that lays the rows of a ragged column end to end.

    - ``names`` (str): The columns; all others come as without it.
    - ``nested`` (bool, default False): Whether column ``x`` is a nested tensor of torch's jagged
      layout. Otherwise ``x`` has the values of all rows and ``x_offsets`` (int64, one more than
      rows) where each begins and the last ends.

    Rows are arrays, or lists of numbers, that differ in their first axis alone. Raises ConfigError
    (a ValueError) for others and for columns that do not exist.

    >>> loader = StreamingDataLoader(dataset, collate_fn=ragged("tokens"))  # doctest: +SKIP
    """
    return Ragged(names, nested=nested)
