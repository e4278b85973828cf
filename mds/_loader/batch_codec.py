"""Serialization of batches for another process: a pickle, and the memory of its arrays.

Anything that can be pickled can be sent, in any nesting. Tensors and arrays are left out of the
pickle (protocol 5, out-of-band buffers) and copied once, into memory that the receiver uses in
place; the pickle is in the same memory, after them. The receiver gets tensors and arrays that are
writable views of it:

    | block | padding | block | padding | ... | pickle |        each aligned to 64 bytes

A tensor keeps its strides if they span few bytes besides its own (channels last, an expanded mask,
a row without its last token). Of a view into a larger tensor only the view is sent. Tensors that
share memory share it at the receiver too. Tensors on other devices, sparse tensors and subclasses
are sent as torch sends them.
"""

from __future__ import annotations

import ctypes
import functools
import io
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.multiprocessing  # how torch sends tensors of other kinds

from mds._iteration.rows import is_plain, numpy_dtype

if TYPE_CHECKING:
    import numpy.typing as npt

    Memory = npt.NDArray[np.uint8]

ALIGNMENT = 64  # bytes
_MAX_GAPS = 1.25  # memory that a tensor with strides may span, relative to its elements


class Layout(NamedTuple):
    """Layout of an encoded value in memory.

    For example, inputs and labels are the tokens 0 to 99 and 1 to 100 (int64) of one tensor. They
    share a block of 808 bytes, so ``buffers`` is ((0, 0, 800), (0, 8, 800)), and ``sizes`` is
    (808, bytes of the pickle).

    ``sizes``: bytes of each block and, last, of the pickle. ``buffers``: for each array or tensor
    of the pickle, (number of its block, offset in the block, size), in bytes; empty if each of them
    has a block of its own.
    """

    sizes: tuple[int, ...]
    buffers: tuple[tuple[int, int, int], ...]


class Encoded(NamedTuple):
    """Encoded value: a pickle, in parts, and the blocks of memory that it refers to.

    ``blocks``: memory of arrays and tensors. ``pickle``: parts of the pickle, to be joined.
    ``buffers``: see `Layout`. ``owners``: buffers of the arrays and tensors, kept here because
    ``blocks`` may be bare addresses in their memory.
    """

    blocks: list[memoryview]
    pickle: list[bytes]
    buffers: tuple[tuple[int, int, int], ...]
    owners: list[memoryview]

    @property
    def layout(self) -> Layout:
        """Layout, which the receiver needs to decode the value."""
        sizes = (*map(len, self.blocks), sum(map(len, self.pickle)))
        return Layout(sizes, self.buffers)

    @property
    def size(self) -> int:
        """Bytes of memory that `write` needs."""
        return sum(map(_aligned, self.layout.sizes))

    def write(self, memory: memoryview, offset: int) -> int:
        """Copy blocks and pickle into memory from an offset on; return the offset of their end.

        Each block, and the pickle, takes a multiple of `ALIGNMENT` bytes.
        """
        for block in self.blocks:
            memory[offset : offset + len(block)] = block
            offset += _aligned(len(block))
        end = offset
        for part in self.pickle:
            memory[end : end + len(part)] = part
            end += len(part)
        return offset + _aligned(end - offset)


class _Parts(list[bytes]):
    """File object that keeps the written bytes in a list, so that long ones are not copied."""

    write = list.append


def encode(value: Any) -> Encoded:
    """Encode a value for `decode`. Raises what pickling the value raises."""
    # Protocol 5 calls buffer_callback with the memory of each array, which is then left out of the
    # pickle.
    parts, buffers = _Parts(), list[pickle.PickleBuffer]()
    pickler = pickle.Pickler(parts, 5, buffer_callback=buffers.append)
    pickler.dispatch_table = _reducers()
    pickler.dump(value)
    owners = [buffer.raw() for buffer in buffers]
    blocks, places = _merge(owners)
    return Encoded(blocks, parts, places, owners)


def _merge(buffers: list[memoryview]) -> tuple[list[memoryview], tuple[tuple[int, int, int], ...]]:
    """Return blocks of memory that do not overlap, and the place of each buffer in them.

    So two views of one tensor, such as inputs and labels, are copied once:

        memory:  | buffer 0          |        | buffer 2 |
                 |      | buffer 1          |
        blocks:  | block 0                  | | block 1  |

    A place is (number of the block, offset in the block, size), in bytes. There are no places if no
    buffers overlap; each buffer is then a block.
    """
    if len(buffers) < 2:
        return buffers, ()
    addresses = [np.asarray(b).__array_interface__["data"][0] for b in buffers]
    by_address = sorted(range(len(buffers)), key=addresses.__getitem__)
    spans: list[list[int]] = []  # first and end address of each block
    places = [(0, 0, 0)] * len(buffers)
    for number in by_address:
        start, size = addresses[number], len(buffers[number])
        if not spans or start >= spans[-1][1]:  # no overlap with the last block: begin a new one
            spans.append([start, start])
        spans[-1][1] = max(spans[-1][1], start + size)
        places[number] = (len(spans) - 1, start - spans[-1][0], size)
    if len(spans) == len(buffers):
        return buffers, ()
    return [_memory_at(start, end - start) for start, end in spans], tuple(places)


def _memory_at(start: int, size: int) -> memoryview:
    """Return the ``size`` bytes of this process's memory from address ``start`` on.

    The result does not keep this memory alive: the caller keeps its owners (`Encoded.owners`).
    """
    if not size:
        return memoryview(b"")
    bytes_ = (ctypes.c_ubyte * size).from_address(start)
    return memoryview(np.frombuffer(bytes_, np.uint8))  # type: ignore[call-overload]


def decode(memory: Memory, offset: int, layout: Layout) -> tuple[Any, int]:
    """Decode a value from memory.

    Args:
        memory: Bytes into which `Encoded.write` has written the value.
        offset: First byte of the value.
        layout: Layout of the value.

    Returns the value, whose arrays are views of the memory, and the offset after the value.
    """
    parts = []  # memory of each block, and of the pickle after them
    for size in layout.sizes:
        parts.append(memory[offset : offset + size])
        offset += _aligned(size)
    pickled = parts.pop()
    if layout.buffers:  # several arrays share a block: cut the blocks
        parts = [parts[block][start : start + size] for block, start, size in layout.buffers]
    # The sender is a worker process of this program, as for all pickles of multiprocessing.
    return pickle.loads(pickled, buffers=parts), offset  # type: ignore[arg-type]  # noqa: S301


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


@functools.cache
def _reducers() -> dict[type, Callable[[Any], Any]]:
    """Return the function that makes the pickle of a value, for each type with one of its own."""
    # Types that torch and other packages have registered for multiprocessing stay as they are.
    table = dict(ForkingPickler(io.BytesIO()).dispatch_table)
    table[np.ndarray] = _reduce_array
    table[torch.Tensor] = functools.partial(_reduce_tensor, table[torch.Tensor])
    return table


def _reduce_array(array: npt.NDArray[Any]) -> Any:
    """Return the call of `_open_array` that makes an array again: (function, arguments).

    The receiver gets the memory of the array in its order: column by column ("F") for a Fortran
    array, else row by row ("C").
    """
    dtype = array.dtype
    if dtype.hasobject:  # Python objects: pickled as NumPy does
        return array.__reduce_ex__(5)
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    flat = np.ravel(array, order)  # type: ignore[call-overload]
    # The names of plain dtypes are pickled faster than the dtypes.
    name = dtype.str if dtype.isbuiltin == 1 else dtype
    return _open_array, (_as_buffer(flat.view(np.uint8)), name, array.shape, order)


def _open_array(buffer: Any, dtype: Any, shape: tuple[int, ...], order: Any) -> Any:
    return np.ndarray(shape, dtype, _writable(buffer), order=order)


def _reduce_tensor(by_torch: Callable[[Any], Any], tensor: torch.Tensor) -> Any:
    """Return the call of `_open_tensor` that makes a tensor again: (function, arguments).

    A tensor with gaps between its elements, such as all but the last token of each row, is sent
    with the gaps if they are small, because one copy of the whole span is fast:

        x[:, :-1]:  | row 0 | gap | row 1 | gap | row 2 |        the span that is sent

    ``by_torch``: torch's own function, for tensors that are not plain numbers in memory.
    """
    if not is_plain(tensor):
        return by_torch(tensor)
    tensor = tensor.resolve_conj().resolve_neg()  # write conjugated or negated values out
    flat, strides = tensor, None  # no strides: contiguous
    if not tensor.is_contiguous():
        # Number of elements from the first one to the last one, gaps included.
        extent = 1 + sum(
            (length - 1) * stride
            for length, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
        if tensor.numel() and extent <= tensor.numel() * _MAX_GAPS:
            flat = tensor.as_strided((extent,), (1,))
            strides = tensor.stride()
        else:
            flat = tensor.contiguous()
    name = _dtype_name(tensor.dtype)
    if numpy_dtype(tensor.dtype) is None:  # bfloat16, for example: send its bytes
        flat = flat.reshape(-1).view(torch.uint8)
    values = flat.numpy()
    return _open_tensor, (_as_buffer(values), name, tuple(tensor.shape), strides)


def _as_buffer(array: npt.NDArray[Any]) -> pickle.PickleBuffer:
    return pickle.PickleBuffer(array)  # type: ignore[arg-type]  # before Python 3.12


@functools.cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _open_tensor(
    buffer: Any, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...] | None
) -> torch.Tensor:
    """Return the tensor on a buffer; see `_reduce_tensor`.

    ``dtype``: name such as "bfloat16". ``strides``: in elements, or None if it is contiguous.
    """
    kind = getattr(torch, dtype)
    memory = _writable(buffer)
    if not len(memory):  # which torch.frombuffer refuses
        return torch.empty(shape, dtype=kind)
    flat = torch.frombuffer(memory, dtype=kind)
    return flat.view(shape) if strides is None else flat.as_strided(shape, strides)


def _writable(buffer: Any) -> Any:
    """Return the writable array of a buffer, which pickle gives read-only if the sender's was."""
    return buffer.obj if isinstance(buffer, memoryview) else buffer
