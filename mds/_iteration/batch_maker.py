"""Stages that make a batch of samples or columns.

Either the collate function of the user is called with samples. Or the functions of `map_batches`
are called with columns, one after the other, then a collate function of `mds.transforms` if one is
given, and the result is turned into tensors.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils.data import default_collate, default_convert

from mds._process.stopwatch import COLLATE, FUNCTIONS
from mds.errors import ConfigError
from mds.transforms._chain import FunctionChain, Link
from mds.transforms._columns import PACK_COLUMNS, batch_of, column_of, columns_of, tensors_of
from mds.transforms._randomness import keys_of_link

if TYPE_CHECKING:
    from mds._iteration.rows import Rows
    from mds._process.stopwatch import Stopwatch
    from mds.transforms._randomness import Keys

    Collate = Callable[[Any], Any]
    Describe = Callable[[int, int], str]


def is_default_collate(collate: Any) -> bool:
    """Return True if a collate function is one that torch chooses, not one of the user."""
    return collate is default_collate or collate is default_convert


class BatchMaker:
    """Collate function of a loader together with the functions of batches.

    Args:
        collate: The loader's collate function, which takes a list of samples.
        size: Batch size of the loader; None gives single samples.
        chain: Functions of the dataset, of which those of ``map_batches`` are called.
        transposes: Whether dicts and lists are collated as torch does.

    Attributes:
        takes_columns: Whether batches can be made of columns, without a Python object for each
            sample.
        has_functions: Whether functions of whole batches are called: those of `map_batches`, and a
            collate function of `mds.transforms`.
        is_keyed: Whether one of these functions takes random numbers.
        is_ours: Whether batches are made without code of the user.
        transposes: Whether dicts and lists are collated as torch does.
        pack_columns: Columns that dense packs get besides those that follow the tokens.

    Raises ConfigError for arguments that do not go together.
    """

    def __init__(
        self,
        collate: Collate,
        size: int | None,
        chain: FunctionChain,
        *,
        transposes: bool = False,
    ) -> None:
        self._collate, self._size, self.transposes = collate, size, transposes
        self._links = chain.of_batches  # functions of whole batches, in the order of their calls
        is_default = is_default_collate(collate)
        # Refuse functions and a collate function that contradict each other.
        if self._links and size is None:
            raise ConfigError(
                f"{self._links[0].name} needs batches, but batch_size=None makes single samples. "
                "Give the loader a batch_size, or use map()."
            )
        if not is_default and _is_column_function(collate):
            # It takes columns, and so is called as the last of the functions of batches.
            if size is not None:
                self._links = (*self._links, Link.parse("collate_fn", collate, is_ours=True))
        elif self._links and not is_default:
            raise ConfigError(
                f"{self._links[-1].name} makes the batches, so collate_fn= would get no samples. "
                "Move its code into map_batches()."
            )
        if collate is default_collate:
            self._collate = functools.partial(collate_samples, transposes=transposes)
        self.takes_columns = bool(self._links) or collate is default_collate
        self.has_functions = bool(self._links)
        # Index in _links of the last function of `map_batches`. The time up to its end is charged
        # to the user's functions; a collate function of `mds.transforms` may follow it.
        self._last_of_caller = len(chain.of_batches) - 1
        self.is_keyed = any(link.is_keyed for link in self._links)
        # Without functions of batches, the collate function makes them.
        are_links_ours = all(link.is_ours for link in self._links)
        self.is_ours = are_links_ours and (self.has_functions or is_default)
        self.pack_columns: frozenset[str] = getattr(collate, "pack_columns", PACK_COLUMNS)

    def collate(self, rows: Rows, describe: Describe, watch: Stopwatch) -> Rows:
        """Collate the samples of a batch, and return the same rows with the finished batch.

        Args:
            rows: Places of the batch, with a list of samples.
            describe: Describes a batch for an error, from its first place and number of places.
            watch: Stopwatch, to which the time of collating is charged.
        """
        # Without a batch size, each "batch" is a single sample.
        values = rows.values if self._size is not None else rows.values[0]
        rows.values = None  # so that the samples are released as soon as they are collated
        if self._links:
            values = columns_of(values)
            watch.charge(COLLATE)
            values = batch_of(self._apply(values, rows, describe, watch))
        else:
            values = self._collate(values)
        watch.charge(COLLATE)
        rows.values = values
        return rows

    def call_functions(self, rows: Rows, describe: Describe, watch: Stopwatch) -> Rows:
        """Call the functions of `map_batches` with the columns of a batch; see `collate`."""
        rows.values = self._apply(rows.values, rows, describe, watch)
        return rows

    def _apply(self, columns: Any, rows: Rows, describe: Describe, watch: Stopwatch) -> Any:
        """Return what the functions make of the columns of ``rows``; see `apply`."""
        describe_rows = functools.partial(describe, rows.first, rows.size)
        return self.apply(columns, rows.keys, describe_rows, watch)

    def apply(
        self, columns: Any, keys: Keys | None, describe: Callable[[], str], watch: Stopwatch
    ) -> Any:
        """Return what the functions of `map_batches` make of columns, which they may change.

        Args:
            columns: Columns of the batch, by name.
            keys: Row keys, uint64; None if no function takes random numbers.
            describe: Describes the batch for an error.
            watch: Stopwatch, to which the time of the user's functions is charged.
        """
        values = columns
        # Each function that takes random numbers has its own stream of them, by number. Other
        # functions are not numbered, so that adding one does not change the random numbers.
        stream_numbers = itertools.count()
        for position, link in enumerate(self._links):
            if not link.is_ours:
                values = _in_one_shape(values)
            elif not isinstance(values, dict):
                raise ConfigError(
                    f"{link.name} needs a dict of columns, but {self._links[position - 1].name} "
                    f"returned {type(values).__name__}. Return a dict."
                )
            row_keys = None
            if link.is_keyed:
                assert keys is not None
                row_keys = keys_of_link(keys, next(stream_numbers))
            values = self._call(link, values, row_keys, describe)
            if position == self._last_of_caller:
                watch.charge(FUNCTIONS)
        return values

    @staticmethod
    def _call(link: Link, values: Any, keys: Keys | None, describe: Callable[[], str]) -> Any:
        """Call a function with columns, and with row keys if it takes random numbers.

        Raises FunctionError if the function fails or returns None.
        """
        try:
            result = link.function(values) if keys is None else link.function(values, keys=keys)
        except Exception as error:
            if isinstance(error, ConfigError) and getattr(link.function, "is_of_adapter", False):
                raise
            raise link.failed(describe(), error, values) from error
        if result is None:
            raise link.gave_nothing(describe())
        return result


def _is_column_function(collate: Collate) -> bool:
    from mds.transforms._collate import ColumnFunction

    return isinstance(collate, ColumnFunction)


def make_tensors(rows: Rows, *, transposes: bool = False) -> Rows:
    """Turn the columns of a batch into tensors, where torch's default collate would.

    ``rows`` is changed and returned. ``transposes``: whether dicts and lists inside columns are
    collated as torch does: a list of pairs becomes a pair of lists.
    """
    if type(rows.values) is dict:
        rows.values = tensors_of(rows.values, transposes=transposes)
    else:
        rows.values = batch_of(rows.values)  # functions may return something else than a dict
    return rows


def _in_one_shape(values: Any) -> Any:
    """Return columns for a function of the user: lists of values of one shape become arrays.

    Values other than a dict of columns are returned unchanged.
    """
    if not isinstance(values, dict):
        return values
    return {name: column_of(v) if isinstance(v, list) else v for name, v in values.items()}


def collate_samples(batch: Sequence[Any], *, transposes: bool = False) -> Any:
    """Collate samples as torch's default collate does, and also samples that it refuses.

    ``transposes``: whether dicts and lists inside samples are collated as torch does.

    Arrays and images of different shapes become lists of tensors. torch's warning about read-only
    arrays is not given: stacking copies them.
    """
    if isinstance(batch[0], dict) and all(
        type(s) is dict and s.keys() == batch[0].keys() for s in batch
    ):
        columns = {name: [sample[name] for sample in batch] for name in batch[0]}
        return tensors_of(columns, transposes=transposes)
    return default_collate(list(batch))
