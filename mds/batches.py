"""Batches made next to their samples, each with the number of samples that it used up.

Where a sample is nothing but the readers' columns and the batch is torch's usual one, the batch is
gathered column by column into the memory that becomes the tensor, without a Python object for
each sample. Everything else goes through the samples and the caller's collate function.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, default_collate, default_convert

from mds.bundles import LARGEST, MOST, Bundle, Tag, Unbundled
from mds.dataset import StreamingDataset
from mds.encodings import parse_encoding
from mds.errors import ConfigError
from mds.heap import give_back_large_blocks
from mds.lanes import Lanes
from mds.part import Masked, Part
from mds.readers import gather
from mds.rooms import RecycledRooms, Room, shared_room
from mds.topology import in_worker, worker_group, worker_place

if TYPE_CHECKING:
    from mds.bundles import Batch
    from mds.index import ShardSchema
    from mds.prefetch import Window

    Columns = dict[str, Any]


class Batches(IterableDataset[Any]):
    """The batches of a dataset as (tag, collated batch).

    ``batch_size`` None gives single samples. Other attributes are the dataset's, so that code in
    workers which asks torch for "the dataset" finds what it knows.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None,
        drop_last: bool,
        collate: Callable[[Any], Any],
    ) -> None:
        self.dataset = dataset
        self._size, self._drop_last = batch_size, drop_last
        self._collate = collate_samples if collate is default_collate else collate

    def __iter__(self) -> Iterator[Batch | Bundle]:
        if not in_worker():
            return self.begin(*worker_place(), worker_group())
        give_back_large_blocks()
        return self.begin(*worker_place(), worker_group(), shared_room)

    def begin(
        self, worker: int, workers: int, group: int, room: Room | None = None
    ) -> Iterator[Batch | Bundle]:
        """Take the turn of one worker of ``workers`` at once, and give its batches.

        With ``room`` they are made elsewhere than where they are used, and come in bundles.
        """
        if not self.is_plain:
            return self._of_samples(iter(self.dataset))
        part = self.dataset.begin(worker, workers, group)
        if self._size is not None and self._collate is collate_samples and self._is_columnar:
            size, windows = self._size, self.dataset.windows(part)
            rooms = RecycledRooms() if room is None else room
            if self._is_sliceable and not isinstance(part, Masked):
                bundles = self._bundled(worker, part, windows, size, rooms)
                return Unbundled(bundles, workers) if room is None else bundles
            batches = self._of_columns(windows, lambda: size, rooms)
            return _tagged(part, batches, size if self._drop_last else 1)
        return _tagged(part, self._of_plain(self.dataset.samples(part)))

    @property
    def is_plain(self) -> bool:
        """Whether the samples are the readers' own, with no code of the caller on the way."""
        return isinstance(self.dataset, StreamingDataset) and self.dataset.is_plain

    @property
    def is_made_here(self) -> bool:
        """Whether the batches too are made by the library alone, without a collate function."""
        return self.is_plain and self._collate in {collate_samples, default_convert}

    @property
    def _schemas(self) -> list[ShardSchema]:
        return [schema for index in self.dataset.indexes for schema in index.schemas]

    @property
    def _is_columnar(self) -> bool:
        """Whether all streams have the same columns, so that a batch can be one gather."""
        first, *others = (schema.columns for schema in self._schemas)
        return all(
            columns.names == first.names and columns.encodings == first.encodings
            for columns in others
        )

    @property
    def _is_sliceable(self) -> bool:
        """Whether a batch is rows of a larger one: no shape or nesting depends on the batch."""
        encodings = map(parse_encoding, self._schemas[0].columns.encodings)
        return all(
            e.name in {"str", "bytes"} or (e.size and e.dtype is not None) for e in encodings
        )

    def _of_columns(
        self, windows: Iterable[Window], wanted: Callable[[], int], room: Room
    ) -> Iterator[tuple[int, Any]]:
        """Columns of as many samples as ``wanted`` says each time; of what is left at the end."""
        pieces: list[Columns] = []
        waiting, size = 0, wanted()  # samples in the pieces, and how many there are to be
        tensors: Columns = {}
        for window in windows:
            at, end = 0, len(window.ids)
            while at < end:
                if not waiting:
                    tensors = self._rooms(size, room)
                stop = min(end, at + size - waiting)
                shards, rows = window.shards[at:stop], window.rows[at:stop]
                filled = waiting + stop - at
                out = {name: t[waiting:filled].numpy() for name, t in tensors.items()}
                pieces.append(gather(window.readers, shards, rows, out=out))
                waiting, at = filled, stop
                if waiting == size:
                    yield size, tensors or _tensors(_joined(pieces))
                    del tensors, out  # whoever has them in hand is their only owner
                    pieces, waiting, size = [], 0, wanted()
        if waiting:
            left = {name: tensor[:waiting] for name, tensor in tensors.items()}
            yield waiting, left or _tensors(_joined(pieces))

    def _rooms(self, samples: int, room: Room) -> dict[str, torch.Tensor]:
        """Tensors for so many samples where all columns are of fixed width, else none."""
        return {name: room((samples, *shape), dtype) for name, dtype, shape in self._fixed_columns}

    @functools.cached_property
    def _fixed_columns(self) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
        """Name, dtype and shape of a sample's value of each column; none unless all are fixed."""
        columns = self._schemas[0].columns
        encodings = [parse_encoding(text) for text in columns.encodings]
        out = []
        for name, encoding in zip(columns.names, encodings, strict=True):
            if encoding.size is None or encoding.dtype is None or encoding.shape is None:
                return []
            if name in self.dataset.choice:
                out.append((name, encoding.dtype, encoding.shape))
        return out if not any(schema.is_split for schema in self._schemas) else []

    def _bundled(
        self, worker: int, part: Part, windows: Iterable[Window], size: int, room: Room
    ) -> Iterator[Bundle]:
        """Batches as `_of_columns` makes them, several in a message."""
        taken, count = 0, 1  # ids, and batches of the next message

        def wanted() -> int:
            return size * count

        for samples, columns in self._of_columns(windows, wanted, room):
            tags = []
            for at in range(0, samples, size):
                some = min(size, samples - at)
                if some == size or not self._drop_last:
                    tags.append(_tag(part, taken, some))
                    taken += some
            bytes_ = sum(v.nbytes for v in columns.values() if isinstance(v, torch.Tensor))
            fit = LARGEST * samples // (max(bytes_, 1) * size)
            count = max(1, min(count * 2, MOST, fit))
            if tags:
                yield Bundle(worker, tuple(tags), columns)
            del columns  # before the next ones are made, so that their memory can be those'
        yield Bundle(worker, (), {})

    def _of_plain(self, samples: Iterator[Any]) -> Iterator[tuple[int, Any]]:
        if self._size is None:
            yield from ((1, self._collate(sample)) for sample in samples)
            return
        while batch := [*itertools.islice(samples, self._size)]:
            if (count := len(batch)) == self._size or not self._drop_last:
                collated = self._collate(batch)
                # Decoded images are large: let go of these before the next ones are made.
                del batch
                yield count, collated
                del collated

    def _of_samples(self, samples: Iterator[Any]) -> Iterator[Batch]:
        """Batches of what the caller's code makes; a tag tells what it took from the order."""
        source = find_streaming(self.dataset)
        assert source is not None
        reported = len(source.left_out)
        taken = summed = 0  # an iteration counts from 0
        size = self._size or 1
        while batch := [*itertools.islice(samples, size)]:
            if len(batch) < size and self._drop_last:
                continue
            before, taken = taken, source.issued
            part, earlier = source.current, summed
            summed = part.sum_to(taken) if part is not None else 0
            left_out, reported = tuple(source.left_out[reported:]), len(source.left_out)
            tag = Tag(taken - before, ((summed - earlier) & _MASK, taken - before), left_out)
            collated = self._collate(batch if self._size is not None else batch[0])
            del batch  # as in `_of_plain`
            yield _masked(tag, collated, part) if isinstance(part, Masked) else (tag, collated)
            del collated

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["dataset"], name)


def _tagged(part: Part, batches: Iterator[tuple[int, Any]], least: int = 1) -> Iterator[Batch]:
    """Batches of (samples, batch) with their tags, but those of fewer samples than ``least``."""
    taken = 0
    for count, batch in batches:
        if count >= least:
            tag = _tag(part, taken, count)
            taken += count
            yield _masked(tag, batch, part) if isinstance(part, Masked) else (tag, batch)
        del batch  # before the next one is made, so that its memory can be that one's


def _tag(part: Part, taken: int, count: int) -> Tag:
    """The tag of a batch of ``count`` samples, after ``taken``."""
    earlier = part.sum_to(taken)
    return Tag(count, ((part.sum_to(taken + count) - earlier) & _MASK, count))


def _masked(tag: Tag, batch: Any, part: Masked) -> Batch:
    """A batch with its mask: as column ``mask`` of a dict, else beside it in a pair."""
    mask = torch.from_numpy(part.next_mask(tag.samples))
    tag = tag._replace(order=(tag.order[0], int(mask.sum())))
    if not isinstance(batch, dict):
        return tag, (batch, mask)
    if "mask" in batch:
        raise ConfigError(
            "exact='mask' adds a column 'mask' to batches, and the samples have one already. "
            "Choose others with columns=, or name it otherwise in a collate function."
        )
    return tag, {**batch, "mask": mask}


class Threaded(IterableDataset[Any]):
    """The batches of ``workers`` threads of this process, as of so many worker processes."""

    def __init__(self, batches: Batches, workers: int, ahead: int) -> None:
        self._batches, self._workers, self._ahead = batches, workers, ahead

    def __iter__(self) -> Iterator[Any]:
        group = -2 - next(_iterations)
        parts = [
            self._batches.begin(worker, self._workers, group, RecycledRooms())
            for worker in range(self._workers)
        ]
        lanes = Lanes([functools.partial(iter, part) for part in parts], self._ahead)
        return Unbundled(lanes, self._workers)


_MASK = (1 << 64) - 1

# Each iteration is a group of its own in the epoch book, told from torch's seeds by its sign.
_iterations = itertools.count()


def find_streaming(dataset: Any) -> StreamingDataset | None:
    """The StreamingDataset that this is, or that it wraps under ``.dataset``."""
    for _ in range(16):  # wrappers may point in circles
        if dataset is None or isinstance(dataset, StreamingDataset):
            return dataset
        dataset = getattr(dataset, "dataset", None)
    return None


def _joined(pieces: Sequence[Columns]) -> Columns:
    """One batch of columns from its pieces, which come from different windows."""
    if len(pieces) == 1:
        return pieces[0]
    return {
        name: np.concatenate([piece[name] for piece in pieces])
        if isinstance(first, np.ndarray)
        else [*itertools.chain.from_iterable(piece[name] for piece in pieces)]
        for name, first in pieces[0].items()
    }


def collate_samples(batch: Sequence[Any]) -> Any:
    """What torch's default collate makes of samples, without its warning about stored arrays.

    Arrays from a shard are read-only views; stacking copies them, so the tensor is nobody's view.
    """
    if isinstance(batch[0], dict) and all(
        type(s) is dict and s.keys() == batch[0].keys() for s in batch
    ):
        return _tensors({name: [sample[name] for sample in batch] for name in batch[0]})
    return default_collate(list(batch))


def _tensors(columns: Columns) -> Columns:
    """The batch that torch's default collate makes of the same samples."""
    return {name: _tensor(values) for name, values in columns.items()}


def _tensor(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        return torch.from_numpy(values)
    if isinstance(values[0], np.ndarray) and len({v.shape for v in values}) == 1:
        return torch.from_numpy(np.stack(values))
    return default_collate(values)
