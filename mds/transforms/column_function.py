"""Functions of the library over columns of a batch: for map_batches, and as collate functions."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mds.errors import ConfigError
from mds.transforms.columns import columns_of, tensors_of

if TYPE_CHECKING:
    from mds.transforms.row_keys import Keys

    Columns = dict[str, Any]


class ColumnFunction(abc.ABC):
    """Function from the columns of a batch to those that the trainer gets.

    ``map_batches`` takes one, and so does a loader as ``collate_fn=``; in torch's own loader it
    makes the batch of a list of samples. In StreamingDataLoader it sees columns that were gathered
    from the shards, without a Python object for each sample, and it may run in threads.

    ``names`` are the columns that it is about, ``needs_keys`` says whether it draws random numbers.
    """

    needs_keys = False

    def __init__(self, names: Sequence[str]) -> None:
        if not all(isinstance(name, str) for name in names):
            raise ConfigError(f"columns are given by name, got {names!r}.")
        self.names = tuple(names)

    @abc.abstractmethod
    def apply(self, columns: Columns, keys: Keys | None) -> Columns:
        """Compute new columns from ``columns``; ``keys`` are the keys of the rows, if needed."""

    def __call__(self, batch: Mapping[str, Any] | Sequence[Any], keys: Keys | None = None) -> Any:
        """Compute columns from columns, or a batch of tensors from samples.

        Raises ConfigError for a column that does not exist, and for random numbers without keys.
        """
        if self.needs_keys and keys is None:
            raise ConfigError(
                f"{self!r} draws random numbers by the place of a sample in the order, which only "
                "StreamingDataLoader knows."
            )
        columns = dict(batch) if isinstance(batch, Mapping) else columns_of(batch)
        if missing := [name for name in self.names if name not in columns]:
            raise ConfigError(
                f"{self!r}: there is no column {missing[0]!r}. The columns are "
                f"{', '.join(map(repr, columns))}."
            )
        made = self.apply(columns, keys)
        return made if isinstance(batch, Mapping) else tensors_of(made)

    def __repr__(self) -> str:
        names = ", ".join(map(repr, self.names))
        return f"{type(self).__name__.lower()}({names})"
