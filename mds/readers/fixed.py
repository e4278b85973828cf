"""The reader of mds shards whose columns are all of fixed width: strides in place of offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mds.index import ShardSchema
from mds.readers.base import Batch, Rows
from mds.readers.codegen import compile_views
from mds.readers.fields import ColumnSelection, Field, fields_of
from mds.readers.joint import JointReader

if TYPE_CHECKING:
    from mds.readers.mmap_file import Data


Cells = dict[str, npt.NDArray[Any]]


class FixedReader(JointReader):
    """Samples of one size. Each column is a strided view on the file, made once."""

    _cells: Cells | None = None

    @property
    def cells(self) -> Cells:
        """Column name to an array of shape (samples,) with one opaque element for each value.

        To copy an element is to copy the bytes of a value, whatever its shape and alignment.
        """
        if self._cells is None:
            self._cells = {
                field.name: self._view(at, np.dtype(f"V{field.size}"), ())
                for field, at in self._places()
            }
        return self._cells

    def rows(self, rows: Rows, *, copy: bool = True) -> Batch:
        """Many samples as columns, copies always; see Reader.rows."""
        del copy
        numbers = np.asarray(rows)
        if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
            numbers = self._numbers(rows)
        cells = self.cells
        try:
            return {
                field.name: values_of(cells[field.name][numbers], field)
                for field in self.fields.wanted
            }
        except IndexError:
            # numpy has checked the range; these are the words.
            self._numbers(rows)
            raise

    def _open(self) -> Callable[[int], dict[str, Any]]:
        views = [
            self._view(at, field.encoding.dtype, field.encoding.shape)
            for field, at in self._places()
        ]
        return compile_views(self.fields)(self._slow_decoder(), *views)

    def _places(self) -> Iterator[tuple[Field, int]]:
        """Each wanted column and where its first value is."""
        at = int(self.offsets()[0])
        for field in self.fields.all:
            if field.is_wanted:
                yield field, at
            at += field.size or 0

    def _view(self, at: int, dtype: Any, shape: Any) -> npt.NDArray[Any]:
        if not len(self):  # there are no bytes to point at
            return np.empty((0, *shape), dtype)
        inner: list[int] = []
        step = dtype.itemsize
        for length in reversed(shape):
            inner.insert(0, step)
            step *= length
        strides = (self.fields.row_size, *inner)
        view: npt.NDArray[Any] = np.ndarray((len(self), *shape), dtype, self._data, at, strides)  # type: ignore[arg-type]
        return view

    def close(self) -> None:
        """Release the mapping. Views that were returned keep it alive."""
        super().close()
        self._cells = None


def values_of(cells: npt.NDArray[Any], field: Field) -> npt.NDArray[Any]:
    """Contiguous cells as the numbers in them, of shape (rows, *shape)."""
    assert field.encoding.dtype is not None
    assert field.encoding.shape is not None
    values: npt.NDArray[Any] = cells.view(field.encoding.dtype)
    return values.reshape(len(cells), *field.encoding.shape)


def joint_reader(
    schema: ShardSchema,
    samples: int,
    data: Data,
    where: str,
    *,
    columns: ColumnSelection = ColumnSelection(),  # noqa: B008 - it is frozen
    offsets: npt.NDArray[np.uint32] | None = None,
) -> JointReader:
    """Return the quickest reader for the columns of a schema."""
    fields = fields_of(schema.columns, columns)
    kind = FixedReader if fields.are_views else JointReader
    return kind(schema, samples, data, where, columns=columns, offsets=offsets)
