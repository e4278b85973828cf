"""Readers of mds shards: one file with everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mds.errors import EncodingError, MissingDependencyError, ShardError
from mds.index import ShardSchema
from mds.readers import columnar
from mds.readers.base import Batch, Reader, Rows
from mds.readers.codegen import compile_offsets, compile_sample
from mds.readers.fields import ColumnSelection, Fields, fields_of
from mds.shardfile.layout import parse_offsets, split_sample

if TYPE_CHECKING:
    from mds.readers.mmap_file import Data


class JointReader(Reader):
    """The samples of an mds shard, or of some of its bytes.

    ``data`` is the whole file, or with ``offsets`` whatever these point into. The offsets are
    decoded and checked when the first sample is asked for.
    """

    def __init__(
        self,
        schema: ShardSchema,
        samples: int,
        data: Data,
        where: str,
        *,
        columns: ColumnSelection = ColumnSelection(),  # noqa: B008 - it is frozen
        offsets: npt.NDArray[np.uint32] | None = None,
    ) -> None:
        super().__init__(schema, samples, where)
        self.fields: Fields = fields_of(schema.columns, columns)
        self._selection = columns
        self._viewing_fields: Fields | None = None
        self._viewer: Callable[[int], dict[str, Any]] | None = None
        self.is_stacked = self.fields.are_stacked
        self._data: Data = data
        self._offsets = offsets
        self._is_checked = False

    def offsets(self) -> npt.NDArray[np.uint32]:
        """Return the checked bounds of samples, shape (samples + 1,)."""
        if not self._is_checked:
            self._check_open()
            if self._offsets is None:
                self._offsets = parse_offsets(
                    memoryview(self._data), self._count, len(self._data), self.where
                )
            self._check_rows(self._offsets)
            self._is_checked = True
        assert self._offsets is not None
        return self._offsets

    def _check_rows(self, offsets: npt.NDArray[np.uint32]) -> None:
        """Raise ShardError if samples of one fixed size have another one."""
        size = self.fields.row_size
        if size is None:
            return
        wrong = np.flatnonzero(np.diff(offsets) != size)
        if len(wrong):
            row = int(wrong[0])
            raise ShardError(
                f"{self.where}: sample {row} has {offsets[row + 1] - offsets[row]} bytes, but its "
                f"columns have {size} together."
            )

    def _viewing(self) -> Fields:
        if self._viewing_fields is None:
            self._viewing_fields = fields_of(self.schema.columns, self._selection.viewing)
        return self._viewing_fields

    def _open(self) -> Callable[[int], dict[str, Any]]:
        offsets = self.offsets()
        make_getter = compile_offsets(self.fields)
        return make_getter(self._slow_decoder(), self._data, memoryview(self._data), offsets.data)

    def viewer(self) -> Callable[[int], dict[str, Any]]:
        """``get`` whose arrays may be views; see Reader.viewer."""
        if self._viewer is None:
            offsets, make_getter = self.offsets(), compile_offsets(self._viewing())
            self._viewer = make_getter(
                self._slow_decoder(), self._data, memoryview(self._data), offsets.data
            )
        return self._viewer

    def rows(self, rows: Rows, *, copy: bool = True) -> Batch:
        """Many samples as columns; see Reader.rows."""
        numbers = self._numbers(rows)
        offsets = self.offsets()
        fields = self.fields if copy else self._viewing()
        try:
            return columnar.gather(fields, self._data, offsets, numbers)
        except Exception:
            # The first sample that is to blame, with its number and column.
            for row in numbers.tolist():
                self._decode_slowly(row)
            raise

    def as_columns(self, samples: list[dict[str, Any]]) -> Batch:
        """Convert samples of this schema to columns; see Reader.as_columns."""
        return {field.name: columnar.stack(field, samples) for field in self.fields.wanted}

    def sample_bytes(self, row: int) -> memoryview:
        """Return the stored bytes of one sample, as a view."""
        number, offsets = self._number(row), self.offsets()
        return memoryview(self._data)[int(offsets[number]) : int(offsets[number + 1])]

    def _decode_slowly(self, row: Any) -> dict[str, Any]:
        """Decode with care: for negative rows, and for the words of an error."""
        number = self._number(row)
        return decode(self.fields, self.sample_bytes(number), f"{self.where}, sample {number}")

    def close(self) -> None:
        """Release the mapping. Views that were returned keep it alive."""
        super().close()
        self._data, self._offsets, self._is_checked = b"", None, False
        self._viewer = None


def decode(fields: Fields, data: memoryview, where: str) -> dict[str, Any]:
    """One sample, column by column, with errors that say which.

    Raises ShardError for sizes that do not add up and EncodingError for a value.
    """
    try:
        values = split_sample(data, [field.size for field in fields.all], fields.variable)
    except ShardError as error:
        raise ShardError(f"{where}: {error}") from error
    out = {}
    for field, value in zip(fields.all, values, strict=True):
        if not field.is_wanted:
            continue
        try:
            out[field.name] = field.decode(value)
        except (MemoryError, MissingDependencyError):  # not the fault of the bytes
            raise
        except RecursionError as error:
            raise EncodingError(f"{where}, column {field.name!r}: nested too deeply.") from error
        except Exception as error:
            kind = type(error) if isinstance(error, EncodingError) else EncodingError
            raise kind(f"{where}, column {field.name!r}: {error}") from error
    return out


def sample_decoder(fields: Fields, where: str) -> Callable[[Any], dict[str, Any]]:
    """Return a function from the bytes of one sample to the sample."""

    def decode_slowly(data: memoryview) -> dict[str, Any]:
        return decode(fields, data, where)

    return compile_sample(fields)(decode_slowly)
