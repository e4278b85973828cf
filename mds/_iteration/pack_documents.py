"""Documents of a step of packs: their values, column by column and end to end.

Packs are planned from recorded lengths, before documents are read. So a document must have its
recorded length, also after functions. Columns that *follow the tokens* are arrays as long as the
tokens of the document (weights, labels); of all other columns there is a value for each document.

Stored columns are copied once, from the shards to their place in the batch. Samples of functions
or of a user's class come one by one. If a document is cut into pieces, functions are called for
each piece with the whole document and the same random numbers.

Terms: a *document* is a sample with a column of tokens. A *piece* is a document, or a part of a
long one that packs have cut: a document of 300 tokens may be the pieces 0 to 99 and 100 to 299.
`RankPacks` has for each piece of a step its document (``ids``), its first token in the document
(``starts``) and its number of tokens (``sizes``). `Packing` is the user's ``packing=``, whose
``column`` names the column of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from mds._iteration.rows import numpy_dtype
from mds._iteration.sample_functions import DROPPED, any_sample
from mds._words import plural
from mds.encodings import DecodeKind, parse_encoding
from mds.errors import ConfigError, FunctionError, IndexFileError
from mds.plan._packing import LABELS, column_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mds._iteration.reading import SampleSource
    from mds._iteration.rows import Allocator, Rows
    from mds.plan._pack_filling import DocumentLengths, RankPacks
    from mds.plan._packing import Packing

    Ids = NDArray[np.int64]
    Vector = NDArray[Any]
    Tensors = dict[str, torch.Tensor]
    Columns = dict[str, list[Any]]

#: Columns that packs add to a batch.
_ADDED = ("position_ids", "document_ids", "cu_seqlens", "max_seqlen")
_FIRST_SAMPLES = 1 << 16  # samples that are tried to learn which columns samples have


class DocumentValues(Protocol):
    """Collector of the values of the documents of a step (a global batch of packs)."""

    def collect(self, packs: RankPacks, rows: Rows | None) -> tuple[RankPacks, Tensors, Columns]:
        """Return the remaining packs, the columns that follow the tokens, and the others.

        Args:
            packs: Packs of this rank in a step.
            rows: Documents of these packs; None if there are none.

        Returns the packs without dropped documents; for each column that follows the tokens a
        tensor of shape (tokens,), with all documents end to end; and for each other column a list
        with a value for each document. If no document remains, the tensors hold one token of
        padding.
        """


class StoredDocuments:
    """Collector of documents that are used as stored, and are read as columns.

    Args:
        source: Samples to read.
        packing: Settings of packs, among them the column of tokens.
        lengths: Recorded lengths of the samples.
        allocate: Allocates the columns that follow the tokens.
    """

    def __init__(
        self, source: SampleSource, packing: Packing, lengths: DocumentLengths, allocate: Allocator
    ) -> None:
        self._source, self._packing, self._tokens = source, packing, column_of(packing)
        self._lengths, self._allocate = lengths, allocate
        # Columns that follow the tokens, with their dtype in batches, and names of the others.
        self._following, self._extra = stored_columns(source, self._tokens)
        # The index does not say how many axes arrays have: the first document shows that.
        self._knows_axes = False

    def collect(self, packs: RankPacks, rows: Rows | None) -> tuple[RankPacks, Tensors, Columns]:
        """Collect the values of documents; see `DocumentValues.collect`."""
        if rows is None:
            # The step has the same columns as all others, so look at any sample.
            if not self._knows_axes and len(self._following) > 1:
                self._sort_by_axes(self._source.get(0))
            return packs, padding(self._following), {name: [] for name in self._extra}
        columns = rows.values
        self._sort_by_axes({name: columns[name][0] for name in self._following})
        lengths = self._lengths.take(packs.ids)
        # Whether the values of a piece differ from those of its document.
        is_cut = self._packing.separator is not None or not np.array_equal(packs.sizes, lengths)
        starts, sizes = packs.starts.tolist(), packs.sizes.tolist()
        flat = {}
        for name, dtype in self._following.items():
            values = columns[name]
            self._check(name, values, lengths, packs.ids)
            if is_cut:
                values = cut_pieces(name, values, starts, sizes, self._packing)
            flat[name] = self._allocate((int(packs.sizes.sum()),), dtype)
            join_values(name, values, flat[name].numpy())
        # Arrays are copied, because they may be views of the files.
        extra = {
            name: [
                np.array(value) if isinstance(value, np.ndarray) else value
                for value in columns[name]
            ]
            for name in self._extra
        }
        return packs, flat, extra

    def _sort_by_axes(self, sample: Mapping[str, Any]) -> None:
        """Move columns whose arrays have several axes to those that do not follow the tokens.

        Only the first call does so, since all documents have the same columns.

        ``sample``: columns of one document.
        """
        if self._knows_axes:
            return
        self._knows_axes = True
        for name in [*self._following]:
            if name != self._tokens and np.ndim(sample[name]) != 1:
                del self._following[name]
                self._extra.append(name)

    def _check(self, name: str, values: Any, lengths: Ids, ids: Ids) -> None:
        """Check that the documents in a column are as long as was recorded.

        Args:
            name: Name of the column.
            values: Values of each document.
            lengths: Recorded length of each document.
            ids: Sample number of each document, for the message.

        Raises IndexFileError for the column of tokens, ConfigError for another one.
        """
        recorded = lengths.tolist()
        if [*map(len, values)] == recorded and getattr(values[0], "ndim", 0) == 1:
            return
        row = next(  # the first document that is wrong
            index
            for index, value in enumerate(values)
            if np.ndim(value) != 1 or len(value) != recorded[index]
        )
        number, length = int(ids[row]), len(values[row])
        if name == self._tokens:
            raise IndexFileError(
                f"sample {number} has {plural(length, 'value')} in column {name!r}, but its "
                "recorded length "
                f"is {recorded[row]}, so the file of lengths belongs to other data. Write it "
                "again with mds lengths."
            )
        raise ConfigError(
            f"sample {number} has {plural(length, 'value')} in column {name!r} but "
            f"{recorded[row]} in "
            f"{self._tokens!r}; arrays must have the length of the tokens. Leave the column out "
            "with columns=."
        )


class SampleDocuments:
    """Collector of documents that functions, filters or a class of the user make, one by one.

    The arguments are those of `StoredDocuments`.
    """

    def __init__(
        self, source: SampleSource, packing: Packing, lengths: DocumentLengths, allocate: Allocator
    ) -> None:
        self._source, self._packing, self._tokens = source, packing, column_of(packing)
        self._lengths, self._allocate = lengths, allocate
        self._chain = source.filter.chain
        self._number = 0  # of the sample that is being checked, for messages
        # By column: whether it follows the tokens. The first sample sets this "form", and all
        # others must have the same columns.
        self._form: dict[str, bool] = {}
        # By column that follows the tokens: its dtype in batches, as of the last step.
        self._types: dict[str, np.dtype[Any]] = {}

    def collect(self, packs: RankPacks, rows: Rows | None) -> tuple[RankPacks, Tensors, Columns]:
        """Collect the values of documents; see `DocumentValues.collect`."""
        samples = [] if rows is None else rows.values  # a sample for each piece, or DROPPED
        is_dropped = np.array([sample is DROPPED for sample in samples], bool)
        if is_dropped.any():
            packs = packs.without(is_dropped)
            samples = [sample for sample in samples if sample is not DROPPED]
        if not samples:
            return packs, *self._padding()
        # By column: the values of each document, whether they follow the tokens or not.
        vectors: dict[str, list[Vector]] = {}
        extra: Columns = {}
        starts, sizes = packs.starts.tolist(), packs.sizes.tolist()
        lengths = self._lengths.take(packs.ids).tolist()
        documents = zip(samples, packs.ids.tolist(), lengths, strict=True)
        for sample, self._number, length in documents:  # errors name sample self._number
            self._check_form(sample)
            for name, follows in self._form.items():
                if follows:
                    vectors.setdefault(name, []).append(self._vector(name, sample[name], length))
                else:
                    extra.setdefault(name, []).append(sample[name])
        flat = {}
        for name, values in vectors.items():
            pieces = cut_pieces(name, values, starts, sizes, self._packing)
            # Functions may return another dtype for each document: take one that fits all.
            self._types[name] = batch_dtype(np.result_type(*{vector.dtype for vector in values}))
            flat[name] = self._allocate((int(packs.sizes.sum()),), self._types[name])
            join_values(name, pieces, flat[name].numpy())
        return packs, flat, extra

    def _padding(self) -> tuple[Tensors, Columns]:
        """Return padding for a step without documents, with the columns that documents have.

        A worker whose steps had no document yet does not know these columns. It reads one sample to
        find them (`_check_form` sets ``_form``): one with tokens, because functions may make other
        columns of a sample without any. `any_sample` raises ConfigError if there is none.
        """
        if not self._types:
            first = range(min(self._source.shards.num_samples, _FIRST_SAMPLES))
            numbers = np.flatnonzero(self._lengths.take(np.array(first, np.int64)))
            sample = any_sample(self._source, numbers.tolist())
            self._check_form(sample)
            self._types = {
                name: batch_dtype(_as_vector(sample[name]).dtype)
                for name, follows in self._form.items()
                if follows
            }
        extra: Columns = {name: [] for name, follows in self._form.items() if not follows}
        return padding(self._types), extra

    def _check_form(self, sample: Any) -> None:
        """Check that a sample is a dict with the columns of the first one, which sets ``_form``.

        Raises FunctionError for a sample that a function made, ConfigError for a stored one.
        """
        if not isinstance(sample, Mapping):
            raise self._wrong(f"is a {type(sample).__name__}, but packs need dicts")
        if not self._form:
            if self._tokens not in sample:
                raise self._wrong(
                    f"has the columns {', '.join(map(repr, sample)) or 'none'}, but not "
                    f"{self._tokens!r}, whose lengths were recorded. Keep this name; only "
                    "map_batches() may change it"
                )
            self._form = self._find_form(sample)
        elif sample.keys() != self._form.keys():
            raise self._wrong(
                f"has the columns {', '.join(map(repr, sample)) or 'none'}, but another sample has "
                f"{', '.join(map(repr, self._form))}"
            )

    def _find_form(self, sample: Mapping[str, Any]) -> dict[str, bool]:
        """Return for each column whether it follows the tokens.

        Arrays with one axis do, such as a weight for each token. An exception is a column that the
        source stores with a fixed shape other than that of the tokens, such as an embedding of 768
        numbers for each document.
        """
        stored = encodings_of(self._source)
        tokens = stored.get(self._tokens)
        shape_of_tokens = None if tokens is None else tokens.shape  # None: lengths differ
        of_other_shape = {
            name
            for name, encoding in stored.items()
            if encoding.shape is not None and encoding.shape != shape_of_tokens
        }
        form = {
            name: name == self._tokens or (name not in of_other_shape and _is_vector(value))
            for name, value in sample.items()
        }
        check_names(
            (name for name, follows in form.items() if follows),
            (name for name, follows in form.items() if not follows),
        )
        return form

    def _vector(self, name: str, value: Any, length: int) -> Vector:
        """Return the values of a document in a column that follows the tokens, as an array.

        Raises FunctionError, or ConfigError for a stored sample, unless there are ``length`` values
        with one axis.
        """
        if not _is_vector(value):
            text = f"{type(value).__name__} {str(value)[:40]!r}"
            raise self._wrong(
                f"has {text} in column {name!r}, which must be an array of numbers with one axis"
            )
        vector = _as_vector(value)
        if len(vector) == length:
            return vector
        if name == self._tokens:
            raise self._wrong(
                f"has {plural(len(vector), 'value')} in column {name!r}, but its recorded length "
                f"is {length}, and packs use recorded lengths. Do not change the length, or record "
                "the new lengths"
            )
        raise self._wrong(
            f"has {plural(len(vector), 'value')} in column {name!r} but {length} in "
            f"{self._tokens!r}; "
            "arrays with one axis must have the length of the tokens. Leave the column out, or "
            "give it two axes"
        )

    def _wrong(self, why: str) -> FunctionError | ConfigError:
        """Return the error for a sample that does not fit into a pack.

        ``why``: rest of the sentence "sample 17 ...", without a full stop.
        """
        maker = str(self._chain) if self._chain.maps else ""
        if self._source.has_own_items and not maker:
            maker = f"__getitem__ of {self._source.kind.__name__}"
        if not maker:
            return ConfigError(f"sample {self._number} as stored {why}.")
        return FunctionError(f"sample {self._number} returned by {maker} {why}.")


def cut_pieces(
    name: str,
    values: Sequence[Vector],
    starts: Sequence[int],
    sizes: Sequence[int],
    packing: Packing,
) -> list[Vector]:
    """Return the pieces of documents in a column that follows the tokens, with separators.

    For example, a document [5, 6, 7] with separator 0 has 4 tokens. Cut into the pieces of 2 tokens
    from 0 on and 2 tokens from 2 on, it gives [5, 6] and [7, 0].

    Args:
        name: Name of the column.
        values: Values of each document.
        starts: First token of each piece in its document.
        sizes: Tokens of each piece. The last piece of a document counts the separator.
        packing: Settings of packs, with the separator.

    Raises ConfigError if there is a separator, and the column is neither tokens nor labels.
    """
    cuts, token = zip(values, starts, sizes, strict=True), packing.separator
    if token is None:
        return [value[start : start + size] for value, start, size in cuts]
    if name not in (column_of(packing), LABELS):
        raise ConfigError(
            f"separator= of Packing is a token, but column {name!r}, which is as long as "
            f"{column_of(packing)!r}, has no value for it. Leave the column out with columns=, or "
            "add separators to the documents in map() or when you write them."
        )
    separator = np.array([token], np.int64)
    pieces = []
    for value, start, size in cuts:
        pieces.append(value[start : start + size])
        if start + size > len(value):  # the last piece, whose size counts the separator
            pieces.append(separator)
    return pieces


def padding(following: dict[str, np.dtype[Any]]) -> Tensors:
    """Return a token of padding for each column, given the dtype of each."""
    return {name: torch.from_numpy(np.zeros(1, dtype)) for name, dtype in following.items()}


def batch_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of a column in batches: int64 for integers, else its own in native order."""
    return np.dtype(np.int64) if dtype.kind in "iu" else dtype.newbyteorder("=")


def join_values(
    name: str, values: Sequence[NDArray[Any]] | NDArray[Any], out: NDArray[Any]
) -> None:
    """Copy the values of documents end to end into ``out``, whose dtype they are cast to.

    Args:
        name: Name of the column, for messages.
        values: Values of each document, or of each piece if documents are cut.
        out: Array of shape (values of all documents,).

    Raises ConfigError for numbers beyond int64, which become negative when they are copied.
    """
    np.concatenate(values, out=out, casting="unsafe")
    if (
        any(value.dtype == np.uint64 for value in values)
        and out.dtype == np.int64
        and out.min() < 0
    ):
        raise ConfigError(
            f"column {name!r} has a number above 2**63 - 1, which int64 cannot hold. Make it "
            "smaller in map()."
        )


def check_names(following: Iterable[str], extra: Iterable[str]) -> None:
    """Refuse columns with the names of columns that packs add to batches (ConfigError).

    ``labels`` may be a column of the samples if it follows the tokens.

    Args:
        following: Names of the columns that follow the tokens.
        extra: Names of all other columns.
    """
    extra = [*extra]
    clashes = [name for name in (*following, *extra) if name in _ADDED]
    if clashes or LABELS in extra:
        raise ConfigError(
            f"batches of packs get the columns {', '.join(_ADDED)} and labels, but the samples "
            f"already have {', '.join(clashes or [LABELS])} of another kind. Leave these columns "
            "out with columns=."
        )


def is_columnar(source: SampleSource, packing: Packing) -> bool:
    """Return True if documents can be read as columns.

    For that, streams have the same columns, and tokens are stored as an array with one axis or of a
    fixed shape.
    """
    schemas = [schema for index in source.shards.indexes for schema in index.schemas]
    if any(schema.columns != schemas[0].columns for schema in schemas):
        return False
    tokens = encodings_of(source)[column_of(packing)]
    return tokens.decode_kind is DecodeKind.VECTOR or tokens.shape is not None


def stored_columns(source: SampleSource, tokens: str) -> tuple[dict[str, Any], list[str]]:
    """Return the columns that follow the tokens with their dtype in batches, and the others.

    For example, with tokens of any length ("ndarray:int32"), weights of any length follow them and
    an embedding of fixed shape ("ndarray:float32:768") does not. If the tokens have a fixed shape,
    only columns of the same shape follow them.

    ``tokens``: name of the column of tokens.
    """
    encodings = encodings_of(source)
    shape = encodings[tokens].shape  # of all tokens arrays; None if they differ
    following: dict[str, Any] = {}
    extra: list[str] = []
    for name, encoding in encodings.items():
        follows = name == tokens or (
            encoding.decode_kind is DecodeKind.VECTOR
            if shape is None
            else encoding.shape is not None and encoding.shape == shape
        )
        if not follows:
            extra.append(name)
            continue
        dtype = encoding.element_dtype if encoding.dtype is None else encoding.dtype
        following[name] = batch_dtype(dtype or np.dtype(np.int64))
    check_names(following, extra)
    return following, extra


def encodings_of(source: SampleSource) -> dict[str, Any]:
    """Return the encodings of the columns that are read."""
    columns = source.shards.indexes[0].schemas[0].columns
    return {
        name: parse_encoding(text)
        for name, text in zip(columns.names, columns.encodings, strict=True)
        if name in source.columns
    }


def _is_vector(value: Any) -> bool:
    """Return True if a value is an array, a tensor or a list of numbers, with one axis."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(v, (int, float, np.number)) for v in value)
    if isinstance(value, torch.Tensor):
        return value.ndim == 1 and numpy_dtype(value.dtype) is not None
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "biufc"


def _as_vector(value: Any) -> Vector:
    """Return the array of a value for which `_is_vector` is true."""
    return np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
