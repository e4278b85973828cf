"""Batches that functions of columns made, several in a message where they are views of one memory.

A function that cuts columns or changes them in place gives views of what was gathered for several
batches at once; together they are views of it, too, and cross to the trainer as if no function had
been. Small arrays that it makes anew are put end to end. Anything else goes batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from mds.loader.batch_codec import is_plain, numpy_dtype
from mds.loader.batch_groups import MAX_GROUP_BATCHES, BatchGroup, BatchInfo, BatchList, batch_info
from mds.loader.parcels import MAX_GROUP_SECONDS
from mds.transforms.columns import batch_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds.dataset.worker_epoch import WorkerEpoch
    from mds.loader.batch_groups import Message
    from mds.process.stopwatch import Stopwatch

_MAX_COPIED_BYTES = 32 << 10  # of a column of a batch; copying more costs what a message does


class FunctionBatch(NamedTuple):
    """What functions made of so many samples, before it becomes tensors.

    ``sources`` were gathered for it and others, of which it ``is_last``.
    """

    samples: int
    batch: Any
    sources: Sequence[torch.Tensor]
    is_last: bool


def function_batches(made: Iterator[FunctionBatch], watch: Stopwatch) -> Iterator[tuple[int, Any]]:
    """Such batches one by one, of tensors, and the samples of each."""
    for one in made:
        samples, batch = one.samples, batch_of(one.batch)
        watch.end_collating()
        del one  # before the next one is made, so that its memory can be that one's
        yield samples, batch
        del batch


def group_function_batches(
    worker: int,
    epoch: WorkerEpoch,
    watch: Stopwatch,
    made: Iterator[FunctionBatch],
    least: int,
) -> Iterator[Message]:
    """Messages of such batches, but those of fewer than ``least`` samples.

    What takes long is not kept back for others, nor what was made before an error.
    """
    position, failure = epoch.start, None
    infos: list[BatchInfo] = []
    batches: list[Any] = []
    watch.start()
    begun = watch.last
    while True:
        one = None
        try:
            one = next(made, None)
        except Exception as error:  # noqa: BLE001 - raised below
            failure = error
        if one is not None and one.samples >= least:
            infos.append(batch_info(epoch, position, one.samples))
            batches.append(one.batch)
            position += one.samples
        is_slow = watch.last - begun > len(batches) * MAX_GROUP_SECONDS / MAX_GROUP_BATCHES
        if batches and (one is None or one.is_last or is_slow):
            sources = one.sources if one is not None else ()
            message = _message(worker, infos, batches, sources, watch)
            # Before the next ones are made, so that their memory can be those'.
            infos, batches = [], []
            del one, sources
            yield message
            del message
            watch.start()
            begun = watch.last
        elif one is None:
            break
    if failure is not None:
        raise failure
    yield BatchGroup(worker, (), {})


def _message(
    worker: int,
    infos: list[BatchInfo],
    made: list[Any],
    sources: Sequence[torch.Tensor],
    watch: Stopwatch,
) -> Message:
    columns = join_batches([info.samples for info in infos], made, sources)
    batches = [] if columns is not None else [batch_of(each) for each in made]
    watch.end_collating()
    infos[0] = infos[0]._replace(making=watch.take())
    if columns is None:
        return BatchList(worker, [*zip(infos, batches, strict=True)])
    return BatchGroup(worker, tuple(infos), columns)


def join_batches(
    rows: Sequence[int], batches: Sequence[Any], sources: Sequence[torch.Tensor]
) -> dict[str, torch.Tensor] | None:
    """The columns of several batches end to end; None where they are better left alone.

    ``rows``: how many each batch has. ``sources``: tensors that they may be views of.
    """
    if len(batches) < 2 or any(type(batch) is not dict for batch in batches):
        return None
    first = batches[0]
    if not first or any(batch.keys() != first.keys() for batch in batches):
        return None
    joined = {}
    for name in first:
        found = _join_column(rows, [_as_array(batch[name]) for batch in batches], sources)
        if found is None:
            return None
        joined[name] = found
    return joined


_NOTHING = np.zeros((), np.uint8)


def _as_array(value: Any) -> npt.NDArray[Any]:
    """The array of a value; one that fits nowhere for a value that is not numbers in memory."""
    if type(value) is torch.Tensor and is_plain(value) and numpy_dtype(value.dtype) is not None:
        value = value.resolve_conj().resolve_neg().numpy()
    if type(value) is np.ndarray and value.dtype.kind in "biufc" and value.dtype.isnative:
        return value
    return _NOTHING


def _join_column(
    rows: Sequence[int], pieces: Sequence[npt.NDArray[Any]], sources: Sequence[torch.Tensor]
) -> torch.Tensor | None:
    first = pieces[0]
    dtype, rest, strides = first.dtype, first.shape[1:], first.strides
    for count, piece in zip(rows, pieces, strict=True):
        if piece.shape != (count, *rest) or piece.dtype != dtype:
            return None
    begin = end = _address(first)
    is_run = True  # one behind the other in memory
    for count, piece in zip(rows, pieces, strict=True):
        is_run = is_run and piece.strides == strides and _address(piece) == end
        end += count * strides[0]
    for source in sources if is_run else ():
        start, width = begin - source.data_ptr(), dtype.itemsize
        is_inside = start >= 0 and 0 < end - begin <= source.nbytes - start + _row_gap(first)
        if is_inside and not start % width and numpy_dtype(source.dtype) == dtype:
            steps = [stride // width for stride in strides]
            return source.as_strided((sum(rows), *rest), steps, start // width)
    if first.nbytes > _MAX_COPIED_BYTES:
        return None
    return torch.from_numpy(np.concatenate(pieces))


def _row_gap(array: npt.NDArray[Any]) -> int:
    """Bytes by which a row may begin behind the beginning of the row that it was cut from."""
    return max(0, array.strides[0] - array.itemsize)


def _address(array: npt.NDArray[Any]) -> int:
    found: int = array.__array_interface__["data"][0]
    return found
