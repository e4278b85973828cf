"""Batch maker: what a batch becomes of its samples or columns.

Either the caller's collate function is called with samples, or the functions of map_batches see
columns one after the other, our own collate functions last, and what comes of that is made tensors.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils.data import default_collate, default_convert

from mds.errors import ConfigError
from mds.transforms.chain import FunctionChain
from mds.transforms.column_function import ColumnFunction
from mds.transforms.columns import batch_of, column_of, columns_of, tensors_of
from mds.transforms.links import Link
from mds.transforms.row_keys import keys_of_link

if TYPE_CHECKING:
    from mds.process.stopwatch import Stopwatch
    from mds.transforms.row_keys import Keys

    Collate = Callable[[Any], Any]


class BatchMaker:
    """Makes a batch of samples, or of columns where ``takes_columns``.

    ``collate`` is the loader's collate function and ``size`` its batch size; ``chain`` has the
    functions of map_batches. ``transposes``: dicts and lists are collated as torch does. Raises
    ConfigError for what does not go together.
    """

    def __init__(
        self,
        collate: Collate,
        size: int | None,
        chain: FunctionChain,
        *,
        transposes: bool = False,
    ) -> None:
        self._collate = collate
        self._links = chain.of_batches
        is_default = collate in {default_collate, default_convert}
        if self._links and size is None:
            raise ConfigError(
                f"{self._links[0].name} takes batches, and batch_size=None makes none: give the "
                "loader a batch_size, or use map()."
            )
        if isinstance(collate, ColumnFunction):
            if size is not None:
                self._links = (*self._links, Link.parse("collate_fn", collate, is_ours=True))
        elif self._links and not is_default:
            raise ConfigError(
                f"{self._links[-1].name} makes the batches, so collate_fn= would be given no "
                "samples. Do what it does in map_batches()."
            )
        if collate is default_collate:
            self._collate = functools.partial(collate_samples, transposes=transposes)
        self.takes_columns = bool(self._links) or collate is default_collate
        self.has_functions = bool(self._links)
        self._last_of_caller = len(chain.of_batches) - 1
        self.is_keyed = any(link.is_keyed for link in self._links)
        #: Whether no code of the caller takes part.
        self.is_ours = all(link.is_ours for link in self._links) and (
            self.has_functions or is_default
        )

    def of_samples(
        self, samples: Any, keys: Keys | None, where: Callable[[], str], watch: Stopwatch
    ) -> Any:
        """The batch of samples (of one sample by itself, where there is no batch size)."""
        if self._links:
            columns = columns_of(samples)
            watch.end_collating()
            made = batch_of(self.apply(columns, keys, where, watch))
            watch.end_collating()
            return made
        collated = self._collate(samples)
        watch.end_collating()
        return collated

    def apply(
        self, columns: dict[str, Any], keys: Keys | None, where: Callable[[], str], watch: Stopwatch
    ) -> Any:
        """What the functions make of columns, which become their property.

        ``keys`` are those of the rows; ``where`` names the batch in an error.
        """
        made: Any = columns
        streams = itertools.count()  # those that draw are numbered, so that others may come between
        for at, link in enumerate(self._links):
            if not link.is_ours:
                made = _in_one_shape(made)
            elif not isinstance(made, dict):
                raise ConfigError(
                    f"{link.name} takes a dict of columns, and {self._links[at - 1].name} returned "
                    f"{type(made).__name__}."
                )
            of_rows = None
            if link.is_keyed:
                assert keys is not None
                of_rows = keys_of_link(keys, next(streams))
            made = self._call(link, made, of_rows, where)
            if at == self._last_of_caller:
                watch.end_functions()
        return made

    @staticmethod
    def _call(link: Link, made: Any, keys: Keys | None, where: Callable[[], str]) -> Any:
        try:
            found = link.function(made) if keys is None else link.function(made, keys=keys)
        except Exception as error:
            raise link.failed(where(), error) from error
        if found is None:
            raise link.gave_nothing(where())
        return found


def _in_one_shape(made: Any) -> Any:
    """Columns as a function of the caller's sees them: arrays wherever values have one shape."""
    if not isinstance(made, dict):
        return made
    return {name: column_of(v) if isinstance(v, list) else v for name, v in made.items()}


def collate_samples(batch: Sequence[Any], *, transposes: bool = False) -> Any:
    """What torch's default collate makes of samples, and more of what it refuses.

    Arrays and images of different shapes are lists of tensors. There is no warning about stored
    arrays: stacking copies them, so the tensor owns its memory.
    """
    if isinstance(batch[0], dict) and all(
        type(s) is dict and s.keys() == batch[0].keys() for s in batch
    ):
        columns = {name: [sample[name] for sample in batch] for name in batch[0]}
        return tensors_of(columns, transposes=transposes)
    return default_collate(list(batch))
