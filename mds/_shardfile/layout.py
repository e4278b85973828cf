"""The bytes of a shard file: header, offsets, samples. Pure functions, without file access.

    mds     u32 n | u32 offset[n + 1] | config | samples     offsets: from the file's beginning
    meta    u32 n | u32 offset[n + 1] | config               offsets: in the data file (json, csv,
                                                             tsv, xsv)
    sample  u32 size of every variable column | value of every column

All numbers are little-endian. An offset has 32 bits. A shard that needs more is refused; other
writers let offsets wrap around. Reading checks every offset, in one pass of NumPy.
"""

from __future__ import annotations

import json
import re
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mds._words import plural
from mds.errors import ShardError, WriterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Buffer = bytes | bytearray | memoryview

VERSION = 2
INDEX_NAME = "index.json"
# The first offset that four bytes cannot hold.
MAX_SIZE = 1 << 32
_SHARD_NAME = re.compile(
    r"shard\.[0-9]{5,}\.(mds|json|csv|tsv|xsv)(\.meta)?(\.(br|bz2|gz|snappy|zstd))?"
)


class Columns(NamedTuple):
    """The columns of a shard, sorted by name, which is the order of their bytes in a sample.

    - ``names``, ``encodings``: Name and encoding of each column.
    - ``sizes``: Bytes of every value of each column; None for a column whose values vary.
    """

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]

    @property
    def variable(self) -> int:
        """Number of columns whose values vary in size, and need a size word in every sample."""
        return self.sizes.count(None)


def shard_name(number: int, extension: str) -> str:
    """Return the file name of a shard: `shard_name(12, "mds.zstd") == "shard.00012.mds.zstd"`."""
    return f"shard.{number:05}.{extension}"


def is_shard_name(name: str) -> bool:
    """Whether a file, in any folder, is named like a shard, such as `shard.00012.mds.zstd`."""
    return _SHARD_NAME.fullmatch(name.rpartition("/")[2]) is not None


def config_bytes(config: dict[str, Any]) -> bytes:
    """Return the configuration for shard and meta files: JSON with sorted keys."""
    return json.dumps(config, sort_keys=True).encode()


def header_size(samples: int) -> int:
    """Return the bytes of the count and the offsets, which precede the configuration."""
    return 4 + 4 * (samples + 1)


def empty_shard_size(config: bytes) -> int:
    """Return the size of a shard without samples; each sample adds its length plus four."""
    return header_size(0) + len(config)


def pack_header(sizes: Sequence[int], config: bytes) -> bytes:
    """Return the part of an mds shard before the samples: count, offsets and configuration.

    - `sizes` (Sequence[int], bytes): Size of each sample.
    - `config` (bytes): The configuration, from `config_bytes`.

    Raises WriterError if the file would reach 4 GiB.
    """
    first = header_size(len(sizes)) + len(config)
    return _pack_offsets(sizes, first, config)


def pack_meta(sizes: Sequence[int], first: int, config: bytes) -> bytes:
    """Return the meta file of a data file in a split format.

    - `sizes` (Sequence[int], bytes): Size of each sample in the data file.
    - `first` (int): Byte of the data file at which the first sample begins.
    - `config` (bytes): The configuration, from `config_bytes`.

    Raises WriterError if the data file would reach 4 GiB.
    """
    return _pack_offsets(sizes, first, config)


def _pack_offsets(sizes: Sequence[int], first: int, config: bytes) -> bytes:
    """Return the count, the offsets and the configuration as bytes.

    Args:
        sizes: Bytes of each sample.
        first: Offset of the first sample; each further offset adds the size of a sample.
        config: The configuration.
    """
    lengths = np.asarray(sizes)
    end = first + int(lengths.sum(dtype=np.uint64))
    if end >= MAX_SIZE:
        raise WriterError(
            f"a shard of {plural(len(sizes), 'sample')} would have {end} bytes, but the maximum is "
            f"{MAX_SIZE - 1}. Set size_limit or samples_per_shard, or make the samples smaller."
        )
    # Filled in place, to use little memory: shards of tiny samples are mostly offsets.
    offsets = np.empty(len(sizes) + 1, "<u4")  # where each sample begins, and the last one ends
    offsets[0] = first
    np.cumsum(lengths.astype(np.uint32, copy=False), out=offsets[1:])
    offsets[1:] += np.uint32(first)
    return b"".join((struct.pack("<I", len(sizes)), offsets.data, config))


def parse_offsets(data: Buffer, samples: int, size: int, path: str) -> npt.NDArray[np.uint32]:
    """Return the `samples + 1` offsets of an mds shard of `size` bytes, checked.

    `data` is the file, or at least its first `header_size(samples)` bytes; `path` names the file in
    errors. Raises ShardError unless the count is `samples`, the first sample begins after the
    header, offsets do not decrease, and the last one is the end of the file.
    """
    offsets = _read_offsets(data, samples, path)
    if offsets[0] < header_size(samples):
        raise ShardError(
            f"{path}: the first sample begins at byte {offsets[0]}, inside the header of "
            f"{header_size(samples)} bytes."
        )
    return _checked(offsets, size, path, path)


def parse_meta_offsets(data: Buffer, samples: int, size: int, path: str) -> npt.NDArray[np.uint32]:
    """Return the `samples + 1` offsets of a meta file into a data file of `size` bytes, checked.

    `data` is the meta file, `path` names it in errors. Raises ShardError as `parse_offsets` does.
    """
    offsets = _read_offsets(data, samples, path)
    return _checked(offsets, size, path, "the data file")


def _read_offsets(data: Buffer, samples: int, path: str) -> npt.NDArray[np.uint32]:
    """Return the `samples + 1` offsets, unchecked. Raises ShardError for another count.

    ``data`` begins with the count, ``path`` names the file in errors.
    """
    if len(data) < header_size(samples):
        raise ShardError(
            f"{path}: {len(data)} bytes cannot hold the offsets of {plural(samples, 'sample')}; "
            "the file is cut short or does not belong to the index."
        )
    (count,) = struct.unpack_from("<I", data)
    if count != samples:
        raise ShardError(f"{path} has {plural(count, 'sample')}, but the index says {samples}.")
    # A copy: a view would keep the mapped file open for as long as the offsets live.
    return np.frombuffer(data, "<u4", samples + 1, 4).astype(np.uint32)


def _checked(
    offsets: npt.NDArray[np.uint32], size: int, path: str, data_file: str
) -> npt.NDArray[np.uint32]:
    """Return the offsets. Raises ShardError if they decrease or do not end at ``size``.

    Args:
        offsets: Offsets of all samples, and the end of the last one.
        size: Bytes of the file with the samples.
        path: Name of the file with the offsets, for errors.
        data_file: Name of the file with the samples, for errors.
    """
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if len(falls):
        row = int(falls[0])
        raise ShardError(
            f"{path}: sample {row} begins at byte {offsets[row]} and ends at {offsets[row + 1]}."
        )
    if offsets[-1] != size:
        raise ShardError(
            f"{path}: the last sample ends at byte {offsets[-1]}, but {data_file} at {size}; "
            "the file is cut short or was changed."
        )
    return offsets


#: First bytes of a sample in the cache that stands for a broken record of another format. As the
#: size of a value, they are more than a shard can have.
_BROKEN = b"\xff\xff\xff\xffbroken record: "


def broken_sample(reason: str, columns: Columns) -> bytes:
    """Return the stored bytes of a record of another format that is no sample.

    Args:
        reason: Text of the error that reading the sample raises.
        columns: Columns of the other samples. If these all have one size, this one has more bytes.
    """
    sizes = [size for size in columns.sizes if size is not None]
    return (_BROKEN + reason.encode(errors="replace")).ljust(sum(sizes) + 1)


def broken_reason(data: Buffer, row_size: int | None) -> str | None:
    """Return the text that `broken_sample` stored, or None for any other sample.

    Args:
        data: The stored bytes of a sample.
        row_size: Bytes of every sample, or None if they vary.
    """
    if bytes(data[: len(_BROKEN)]) != _BROKEN or len(data) == row_size:
        return None
    return bytes(data[len(_BROKEN) :]).decode(errors="replace").rstrip()


def split_sample(data: memoryview, sizes: Sequence[int | None], variable: int) -> list[memoryview]:
    """Return the bytes of every column of one sample, as views of `data`.

    - `data` (memoryview): The stored sample: a size word (u32) for each variable column, then the
      values of all columns.
    - `sizes`, `variable`: Size of each column, and number of variable ones, as in `Columns`.

    Raises ShardError unless the sizes add up to the bytes of the sample.
    """
    start = 4 * variable  # the values begin after the size words
    if start > len(data):
        raise ShardError(f"a sample of {len(data)} bytes cannot hold {variable} sizes.")
    words = iter(struct.unpack_from(f"<{variable}I", data))
    values = []
    for size in sizes:
        end = start + (next(words) if size is None else size)
        values.append(data[start:end])
        start = end
    if start != len(data):
        raise ShardError(f"a sample of {len(data)} bytes has columns of {start} bytes in total.")
    return values
