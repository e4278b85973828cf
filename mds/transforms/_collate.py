"""Collate functions of the library: they pad, lay end to end or stack columns of a batch.

A loader takes one as ``collate_fn=``, and a dataset in ``map_batches``. `images` is in
`mds.transforms._image_columns`.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.errors import ConfigError
from mds.transforms._columns import PACK_COLUMNS, columns_of, tensor_of, tensors_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds._words import PadColumn, PadSide
    from mds.transforms._randomness import Keys

    Columns = dict[str, Any]


class ColumnFunction(abc.ABC):
    """Function that converts the columns of a batch to those that the trainer gets.

    In StreamingDataLoader it gets columns that were gathered from the shards, without a Python
    object for each sample, and it may run in threads. torch's own loader calls it with a list of
    samples.

    Args:
        names: Names of the columns that it changes.

    Attributes:
        names: Names of the columns that it changes.
        needs_keys: Whether it draws random numbers.
        is_of_adapter: Whether an adapter of a trainer made it from the user's settings. Its
            ConfigErrors are about these, so a loader raises them unchanged.
        pack_columns: Columns that dense packs get for it, besides those that follow the tokens.
    """

    needs_keys = False
    is_of_adapter = False
    pack_columns = PACK_COLUMNS

    def __init__(self, names: Sequence[str]) -> None:
        if not all(isinstance(name, str) for name in names):
            raise ConfigError(f"columns must be given by name, got {names!r}.")
        self.names = tuple(names)

    @abc.abstractmethod
    def apply(self, columns: Columns, keys: Keys | None) -> Columns:
        """Return new columns by name.

        Args:
            columns: Columns of the batch by name, each an array or a list with a value per row.
            keys: Random key of each row, uint64 of shape (rows,); None unless `needs_keys`.
        """

    def __call__(self, batch: Mapping[str, Any] | Sequence[Any], keys: Keys | None = None) -> Any:
        """Return columns for a dict of columns, or a dict of tensors for a list of samples.

        ``keys`` are the random keys of the rows, if the function draws random numbers. Raises
        ConfigError for a column that does not exist, and for random numbers without keys.
        """
        if self.needs_keys and keys is None:
            raise ConfigError(
                f"{self!r} draws random numbers by the position of a sample in the order, which "
                "only StreamingDataLoader knows."
            )
        columns = dict(batch) if isinstance(batch, Mapping) else columns_of(batch)
        if missing := [name for name in self.names if name not in columns]:
            raise ConfigError(
                f"{self!r}: there is no column {missing[0]!r}. The columns are "
                f"{', '.join(map(repr, columns)) or 'none'}."
            )
        new_columns = self.apply(columns, keys)
        return new_columns if isinstance(batch, Mapping) else tensors_of(new_columns)

    def __repr__(self) -> str:
        names = ", ".join(map(repr, self.names))
        return f"{type(self).__name__.lower()}({names})"


# ---------------------------------------------------------------------------------------------- pad


def pad(
    *names: str,
    value: float | Mapping[str, float] = 0,
    multiple: int = 1,
    side: PadSide = "right",
    add: PadColumn | None = "lengths",
) -> Pad:
    """Return a collate function that pads a ragged column to its longest row.

    - ``names`` (str): The columns; all others are collated as by default.
    - ``value`` (number, or a mapping of one for each column, default 0): The padding.
    - ``multiple`` (int, default 1): The width is rounded up to a multiple, so that few shapes
      occur.
    - ``side`` ("right" or "left", default 'right'): The side that is padded: ``"right"`` or
      ``"left"``.
    - ``add`` ("lengths", "mask" or None, default 'lengths'): Column to add for each column ``x``:
      ``x_lengths`` (int64), with ``"mask"`` ``x_mask`` (bool, False where it was padded), with None
      no column.

    Rows are arrays, or lists of numbers, that differ in their first axis alone. Raises ConfigError
    (a ValueError) for other rows and for columns that do not exist.

    >>> with mds.MDSWriter("tokens", {"tokens": "ndarray:int32"}) as writer:
    ...     for length in (2, 3):
    ...         writer.write({"tokens": np.ones(length, np.int32)})
    >>> dataset = mds.StreamingDataset("tokens", batch_size=2)
    >>> loader = mds.StreamingDataLoader(dataset, collate_fn=pad("tokens"))
    >>> next(iter(loader))["tokens"].tolist()
    [[1, 1, 0], [1, 1, 1]]
    """
    return Pad(names, value, multiple, side, add)


class Pad(ColumnFunction):
    """Column function that pads rows to the length of the longest.

    The arguments are those of `pad`, which makes it.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        value: float | Mapping[str, float],
        multiple: int,
        side: PadSide,
        add: PadColumn | None,
    ) -> None:
        super().__init__(names)
        if not names:
            raise ConfigError("pad() needs the names of the columns to pad.")
        if type(multiple) is not int or multiple < 1:
            raise ConfigError(f"multiple of pad() must be at least 1, got {multiple!r}.")
        if side not in {"right", "left"}:
            raise ConfigError(f"side of pad() must be 'right' or 'left', got {side!r}.")
        if add not in {"lengths", "mask", None}:
            raise ConfigError(f"add of pad() must be 'lengths', 'mask' or None, got {add!r}.")
        values = value if isinstance(value, Mapping) else dict.fromkeys(names, value)
        if set(values) != set(names):
            raise ConfigError(
                f"value of pad() has the columns {sorted(values)}, but pad() has {names}."
            )
        self._values, self._multiple, self._side, self._add = values, multiple, side, add

    def apply(self, columns: dict[str, Any], keys: Keys | None) -> dict[str, Any]:
        """Return the columns with the named ones padded, and the added columns."""
        del keys
        new_columns = dict(columns)
        for name in self.names:
            rows, lengths = rows_of(columns[name], name)
            new_columns[name] = self._pad(rows, lengths, self._values[name])
            if self._add == "lengths":
                new_columns[f"{name}_lengths"] = lengths
            elif self._add == "mask":
                new_columns[f"{name}_mask"] = self._mask(lengths, new_columns[name].shape[1])
        return new_columns

    def _pad(
        self, rows: list[npt.NDArray[Any]], lengths: npt.NDArray[np.int64], value: float
    ) -> npt.NDArray[Any]:
        """Return the rows as one array of shape (rows, width, ...), padded with ``value``."""
        longest = max(int(lengths.max()), 1)
        width = -(-longest // self._multiple) * self._multiple  # rounded up
        dtype = np.result_type(*{row.dtype for row in rows})
        out = np.full((len(rows), width, *rows[0].shape[1:]), value, dtype)
        for target, row in zip(out, rows, strict=True):
            if self._side == "right":
                target[: len(row)] = row
            else:
                target[width - len(row) :] = row
        return out

    def _mask(self, lengths: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.bool_]:
        """Return an array of shape (rows, width) that is False where a row was padded."""
        places = np.arange(width)
        if self._side == "left":
            places = places[::-1]
        mask: npt.NDArray[np.bool_] = places < lengths[:, None]
        return mask


# ------------------------------------------------------------------------------------------- ragged


def ragged(*names: str, nested: bool = False) -> Ragged:
    """Return a collate function that lays the rows of a ragged column end to end.

    - ``names`` (str): The columns; all others are collated as by default.
    - ``nested`` (bool, default False): Whether column ``x`` is a nested tensor of torch's jagged
      layout. Otherwise ``x`` has the values of all rows and ``x_offsets`` (int64, one more than
      rows) the position at which each row begins, and the end of the last one. That is the form
      that torch's embedding bags and attention kernels take.

    Rows are arrays, or lists of numbers, that differ in their first axis alone. Raises ConfigError
    (a ValueError) for other rows and for columns that do not exist.

    >>> with mds.MDSWriter("tokens", {"tokens": "ndarray:int32"}) as writer:
    ...     for length in (2, 3):
    ...         writer.write({"tokens": np.ones(length, np.int32)})
    >>> dataset = mds.StreamingDataset("tokens", batch_size=2)
    >>> loader = mds.StreamingDataLoader(dataset, collate_fn=ragged("tokens"))
    >>> batch = next(iter(loader))
    >>> batch["tokens"].tolist(), batch["tokens_offsets"].tolist()
    ([1, 1, 1, 1, 1], [0, 2, 5])
    """
    return Ragged(names, nested=nested)


class Ragged(ColumnFunction):
    """Column function that lays rows end to end. The arguments are those of `ragged`."""

    def __init__(self, names: tuple[str, ...], *, nested: bool) -> None:
        super().__init__(names)
        if not names:
            raise ConfigError("ragged() needs the names of the ragged columns.")
        self._nested = nested

    def apply(self, columns: dict[str, Any], keys: Keys | None) -> dict[str, Any]:
        """Return the columns with the named ones end to end, and their offsets."""
        del keys
        new_columns = dict(columns)
        for name in self.names:
            rows, lengths = rows_of(columns[name], name)
            values, offsets = np.concatenate(rows), np.zeros(len(rows) + 1, np.int64)
            np.cumsum(lengths, out=offsets[1:])  # row i is values[offsets[i] : offsets[i + 1]]
            if self._nested:
                new_columns[name] = _nested(values, offsets, lengths)
            else:
                new_columns[name], new_columns[f"{name}_offsets"] = values, offsets
        return new_columns


def _nested(values: Any, offsets: Any, lengths: Any) -> Any:
    """Return a jagged tensor of rows, from their values end to end, their offsets and lengths."""
    import torch

    # Kernels need the smallest and the largest length, and would compute them from the offsets.
    return torch.nested.nested_tensor_from_jagged(
        torch.from_numpy(values),
        torch.from_numpy(offsets),
        min_seqlen=int(lengths.min()),
        max_seqlen=int(lengths.max()),
    )


# -------------------------------------------------------------------------------------------- stack


def stack(*names: str) -> Stack:
    """Return a collate function that stacks like the default one, but requires some columns to fit.

    - ``names`` (str): Columns each of which must become a tensor. Without names it is the default
      of a loader: values of one shape are stacked, others stay a list.

    Raises ConfigError (a ValueError) for a column of the names that cannot be stacked.

    >>> dataset = mds.StreamingDataset("data/train", batch_size=2)
    >>> loader = mds.StreamingDataLoader(dataset, collate_fn=stack("id"))
    >>> next(iter(loader))["id"].tolist()
    [0, 1]
    """
    return Stack(names)


class Stack(ColumnFunction):
    """Column function that converts columns to tensors; see `stack`."""

    def apply(self, columns: dict[str, Any], keys: Keys | None) -> dict[str, Any]:
        """Return the columns as tensors, or lists for columns whose values do not fit together.

        Raises ConfigError if that is so for one of the columns in ``names``.
        """
        del keys
        tensors = {name: tensor_of(values) for name, values in columns.items()}
        for name in self.names:
            if isinstance(tensors[name], list):
                shapes = sorted({str(tuple(getattr(v, "shape", ()))) for v in tensors[name]})
                values = f"values of shape {', '.join(shapes[:4])}" if len(shapes) > 1 else "values"
                raise ConfigError(
                    f"column {name!r} has {values} that cannot become a tensor: use pad() or "
                    "ragged() for rows of different lengths, images() for pictures."
                )
        return tensors


# --------------------------------------------------------------------------- rows of ragged columns


def rows_of(column: Any, name: str) -> tuple[list[npt.NDArray[Any]], npt.NDArray[np.int64]]:
    """Return the values of a column as arrays, and the lengths of their first axes.

    Lengths are int64 of shape (rows,). Raises ConfigError for values that are no arrays or lists of
    numbers, and for arrays that differ in another axis than the first. ``name`` is the column's
    name, for errors.
    """
    rows = [_array(value, name) for value in column]
    shapes = {row.shape[1:] for row in rows}
    if len(shapes) > 1:
        first, second, *_ = sorted(shapes)
        raise ConfigError(
            f"column {name!r} has values of shape (n, *{first}) and (n, *{second}): only the first "
            "axis may differ."
        )
    return rows, np.fromiter(map(len, rows), np.int64, len(rows))


def _array(value: Any, name: str) -> npt.NDArray[Any]:
    """Return a value of column ``name`` as an array of numbers; raise ConfigError if it is none."""
    if hasattr(value, "numpy"):  # a tensor
        value = _tensor_values(value, name)
    try:
        array = np.asarray(value) if isinstance(value, (np.ndarray, list, tuple)) else None
    except ValueError:  # arrays of different shapes in a list
        array = None
    if array is None or array.ndim == 0 or array.dtype.kind not in "biufc":
        excerpt = str(value)[:40]
        raise ConfigError(
            f"column {name!r} has {type(value).__name__} {excerpt!r}: its values must be arrays or "
            "lists of numbers."
        )
    return array


def _tensor_values(value: Any, name: str) -> Any:
    """Return the array of a tensor. Raises ConfigError for a type that NumPy lacks."""
    try:
        return value.numpy()
    except TypeError as error:
        raise ConfigError(
            f"column {name!r} has tensors of {value.dtype}, which NumPy does not have: convert "
            "them to torch.float32 in map()."
        ) from error
