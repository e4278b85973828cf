"""What every reader can do, whatever the format of its shard."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mds.errors import ShardError

if TYPE_CHECKING:
    from types import TracebackType

    from mds.index import ShardSchema

Rows = Sequence[int] | npt.NDArray[np.integer[Any]]
Batch = dict[str, "npt.NDArray[Any] | list[Any]"]


class Reader(ABC):
    """The samples of one shard, mapped once and decoded when asked for.

    ``get`` is what ``reader[row]`` calls: a function of a row that is made for the schema when
    the first sample is asked for. No function that a reader has refers to it, so that its file is
    let go of as soon as nothing uses it. Readers never fetch and never delete. Views that were
    given out stay good after ``close``: they keep the mapping alive, and the last of them ends it.
    """

    is_stacked: bool = False  # as_columns copies every value that a viewer may leave in the file

    def __init__(self, schema: ShardSchema, samples: int, where: str) -> None:
        self.schema = schema
        self.where = where
        self._count = samples
        self._is_closed = False

    def get(self, row: int) -> dict[str, Any]:
        """One sample; what the compiled function of the schema replaces when it is first called."""
        return self.opened()(row)

    def opened(self) -> Callable[[int], dict[str, Any]]:
        """``get``, after what it needs was decoded: the function that a loop can keep."""
        if "get" not in vars(self):
            self._check_open()
            self.get = self._open()  # type: ignore[assignment,method-assign]
        return self.get

    def __len__(self) -> int:
        return self._count

    def __contains__(self, row: object) -> bool:
        return isinstance(row, int) and 0 <= row < self._count

    def __getitem__(self, row: int) -> dict[str, Any]:
        """One sample; IndexError for a row that does not exist."""
        return self.get(row)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self.get(row) for row in range(self._count))

    def samples(self, rows: Rows) -> list[dict[str, Any]]:
        """Many samples, each as from ``reader[row]``."""
        rows = rows.tolist() if isinstance(rows, np.ndarray) else rows
        return [*map(self.get, rows)]

    @abstractmethod
    def rows(self, rows: Rows, *, copy: bool = True) -> Batch:
        """Many samples as columns.

        A column of fixed-width numbers is a new array of shape (rows, *shape), gathered in one
        call; any other is a list of values. Without ``copy`` these may be views of the file, for
        code that copies them next.
        """

    def viewer(self) -> Callable[[int], dict[str, Any]]:
        """``get`` whose arrays may be views of the file, for code that copies them next."""
        return self.get

    @abstractmethod
    def as_columns(self, samples: list[dict[str, Any]]) -> Batch:
        """Convert samples of this schema to the columns that ``rows`` returns."""

    @abstractmethod
    def sample_bytes(self, row: int) -> memoryview:
        """Return the stored bytes of one sample, as a view."""

    @abstractmethod
    def _open(self) -> Callable[[int], dict[str, Any]]:
        """Decode the offsets and make ``get``."""

    def close(self) -> None:
        """Close the file. Closing it twice is allowed."""
        self._is_closed = True
        vars(self).pop("get", None)

    def _slow_decoder(self) -> Callable[[Any], dict[str, Any]]:
        """``_decode_slowly`` for a compiled function, which must not keep its reader alive.

        A reader that held itself would let go of its file when garbage is collected, and not when
        nothing uses it any more: maps would pile up behind a table of open readers.
        """
        found, where = weakref.WeakMethod(self._decode_slowly), self.where

        def decode_slowly(row: Any) -> dict[str, Any]:
            method = found()
            if method is None:
                raise ShardError(f"{where}: the reader is closed.")
            return method(row)

        return decode_slowly

    @abstractmethod
    def _decode_slowly(self, row: Any) -> dict[str, Any]:
        """Decode with care: for negative rows, and for the words of an error."""

    def _check_open(self) -> None:
        if self._is_closed:
            raise ShardError(f"{self.where}: the reader is closed.")

    def _number(self, row: Any) -> int:
        """Return a row as an int in range, counted from the end when negative."""
        number = row.__index__()
        if number < 0:
            number += self._count
        if not 0 <= number < self._count:
            raise IndexError(f"{self.where}: there is no sample {row} among {self._count:,}.")
        return int(number)

    def _numbers(self, rows: Rows) -> npt.NDArray[np.int64]:
        """Rows as an array in range."""
        numbers = np.asarray(rows)
        if numbers.size == 0:
            return np.zeros(0, np.int64)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise ShardError(
                f"{self.where}: rows are a list of integers, got {numbers.dtype} of shape "
                f"{numbers.shape}."
            )
        numbers = numbers.astype(np.int64, copy=False)
        if numbers.min() < 0 or numbers.max() >= self._count:
            return np.array([self._number(row) for row in numbers.tolist()], np.int64)
        return numbers

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ""
        return f"<{type(self).__name__} {self.where}: {self._count:,} samples{state}>"
