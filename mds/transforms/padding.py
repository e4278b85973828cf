"""Padding: a ragged column as one array, with the lengths or a mask beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.errors import ConfigError
from mds.transforms.column_function import ColumnFunction
from mds.transforms.rows import rows_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.transforms.row_keys import Keys


class Pad(ColumnFunction):
    """Column function that fills rows up to the longest; see `pad`."""

    def __init__(
        self,
        names: tuple[str, ...],
        value: float | Mapping[str, float],
        multiple: int,
        side: str,
        add: str | None,
    ) -> None:
        super().__init__(names)
        if not names:
            raise ConfigError("pad() takes the names of the columns that are to be padded.")
        if type(multiple) is not int or multiple < 1:
            raise ConfigError(f"multiple of pad() must be an integer from 1 on, got {multiple!r}.")
        if side not in {"right", "left"}:
            raise ConfigError(f"side of pad() is 'right' or 'left', got {side!r}.")
        if add not in {"lengths", "mask", None}:
            raise ConfigError(f"add of pad() is 'lengths', 'mask' or None, got {add!r}.")
        values = value if isinstance(value, Mapping) else dict.fromkeys(names, value)
        if set(values) != set(names):
            raise ConfigError(f"value of pad() is for {sorted(values)}, its columns are {names}.")
        self._values, self._multiple, self._side, self._add = values, multiple, side, add

    def apply(self, columns: dict[str, Any], keys: Keys | None) -> dict[str, Any]:
        """Return the columns with the named ones padded, and the added columns."""
        del keys
        made = dict(columns)
        for name in self.names:
            rows, lengths = rows_of(columns[name], name)
            made[name] = self._padded(rows, lengths, self._values[name])
            if self._add == "lengths":
                made[f"{name}_lengths"] = lengths
            elif self._add == "mask":
                made[f"{name}_mask"] = self._mask(lengths, made[name].shape[1])
        return made

    def _padded(
        self, rows: list[npt.NDArray[Any]], lengths: npt.NDArray[np.int64], value: float
    ) -> npt.NDArray[Any]:
        width = -(-max(int(lengths.max()), 1) // self._multiple) * self._multiple
        dtype = np.result_type(*{row.dtype for row in rows})
        out = np.full((len(rows), width, *rows[0].shape[1:]), value, dtype)
        for target, row in zip(out, rows, strict=True):
            if self._side == "right":
                target[: len(row)] = row
            else:
                target[width - len(row) :] = row
        return out

    def _mask(self, lengths: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.bool_]:
        places = np.arange(width)
        if self._side == "left":
            places = places[::-1]
        mask: npt.NDArray[np.bool_] = places < lengths[:, None]
        return mask


def pad(
    *names: str,
    value: float | Mapping[str, float] = 0,
    multiple: int = 1,
    side: str = "right",
    add: str | None = "lengths",
) -> Pad:
    """Return a collate function that pads a ragged column to its longest row.

    - ``names`` (str): The columns; all others come as without it.
    - ``value`` (number, or a mapping of one for each column, default 0): What fills.
    - ``multiple`` (int, default 1): The width is a multiple of it, which keeps shapes few.
    - ``side`` (str, default 'right'): The side that is filled, or ``"left"``.
    - ``add`` (str | None, default 'lengths'): Beside column ``x`` comes ``x_lengths`` (int64), with
      ``"mask"`` ``x_mask`` (bool, True where the row is), with None nothing.

    Rows are arrays, or lists of numbers, that differ in their first axis alone. Raises ConfigError
    (a ValueError) for others and for columns that do not exist.

    >>> loader = StreamingDataLoader(dataset, collate_fn=pad("tokens"))  # doctest: +SKIP
    """
    return Pad(names, value, multiple, side, add)
