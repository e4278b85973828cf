"""MDSWriter: the binary row format, in joint files."""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from mds._arguments import takes_names
from mds._index.lengths import emit_lengths_file, lengths_name
from mds._index.table import fingerprint_of
from mds._shardfile.layout import Columns, config_bytes, empty_shard_size, pack_header
from mds.encodings import DecodeKind, parse_encoding
from mds.encodings._arrays import length_function
from mds.writers._pipeline import GATHERED
from mds.writers._spec import options_in, parse_columns
from mds.writers._writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mds._words import Compression, Digest
    from mds.encodings import Encoding
    from mds.writers._spec import Out, Spelling
    from mds.writers._writer import Data


#: A shard is written while it is filled only if its samples take at least this many bytes, and
#: each row at least `_MIN_EARLY_ROW`: shards of tiny rows are mostly header.
_MIN_EARLY_SHARD = 4 * GATHERED
_MIN_EARLY_ROW = 256


class MDSWriter(Writer):
    """Writes samples as MDS shards.

    Arguments; ``out`` and ``columns``, in this order, may be given without their names:

    * ``columns`` (dict[str, str | type]): the encoding of each column, such as "jpeg"; `int`,
      `str`, `bytes`, `bool`, `float` ("float64"), types of NumPy and `np.ndarray` are names too.
    * ``out`` (path, URL or pair): a folder, a URL, or (folder, URL or folder) to upload to.
    * ``keep_local`` (bool, False): keep the shards of a pair's folder after they are uploaded.
    * ``lengths`` (str, None): the column of arrays whose lengths are recorded beside the index, for
      packing; such as "tokens".
    * ``compression`` (str, None): how shards are compressed, such as "zstd:7".
    * ``hashes`` (list[str], None): digests of every file to store, sorted; None for ["xxh3_64"],
      [] for none.
    * ``size_limit`` (bytes or text, 67108864): the most bytes of a shard, such as "64mb", where a
      kb is 1,024 bytes; None, 0 and "" are no limit, which is one shard of all samples, below 4
      GiB, in memory until the end.
    * ``samples_per_shard`` (int, None): the most samples of a shard.
    * ``exist_ok`` (bool, False): replace a dataset that is already there.
    * ``retry`` (int, 2): the least number of tries of an upload.
    * ``max_workers`` (int, None): threads, and finished shards that may wait in memory; None for
      a thread a core and some more, and 2 shards. Shards whose samples all have one size are
      written while they are filled and do not wait.
    * ``progress_bar`` (bool, False): show how many shards are written.
    * ``durable`` (bool, True): sync files that stay on a local disk before the index appears.
    * ``strict`` (bool, None): a key of a sample that no column has is an error (True), is left
      out (False), or is left out with one warning (None).
    * ``storage_options`` (dict[str, Any], None): settings of the store of ``out``, as those of
      `StreamingDataset`, such as {"endpoint_url": "https://..."}.
    * ``class_names`` (dict[str, list[str]], None): what the numbers of a column mean, in turn, such
      as {"label": ["cat", "dog"]}; kept beside the index for `dataset.class_names`.
    * ``descriptions`` (dict[str, str], None): description of each column, kept beside the index.

    Raises ConfigError (a ValueError) for arguments that make no sense, UnknownEncodingError (a
    TypeError and KeyError too) for an encoding that does not exist, FileExistsError for a
    destination that is not empty and WriterError for a folder that another writer is filling.

    >>> with MDSWriter("data/tokens", {"tokens": "ndarray:int32"}) as writer:
    ...     writer.write({"tokens": np.arange(7, dtype=np.int32)})
    """

    format = "mds"

    @takes_names
    def __init__(
        self,
        out: Out,
        columns: Mapping[str, Spelling],
        *,
        lengths: str | None = None,
        keep_local: bool = False,
        compression: Compression | str | None = None,
        hashes: Sequence[Digest] | Sequence[str] | None = None,
        size_limit: int | str | None = 67108864,
        samples_per_shard: int | None = None,
        exist_ok: bool = False,
        retry: int = 2,
        max_workers: int | None = None,
        progress_bar: bool = False,
        durable: bool = True,
        strict: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        class_names: dict[str, list[str]] | None = None,
        descriptions: dict[str, str] | None = None,
    ) -> None:
        options = options_in(locals())
        self._ended = "never began"  # replaced when the constructor is complete
        names = parse_columns(type(self).__name__, columns, converts=self._converts)
        parsed = [(name, parse_encoding(names[name])) for name in sorted(names)]
        self.columns = Columns(
            tuple(name for name, _ in parsed),
            tuple(encoding.name for _, encoding in parsed),
            tuple(encoding.size for _, encoding in parsed),
        )
        self._packers = [(name, self._packer(encoding)) for name, encoding in parsed]
        #: Positions of the columns whose values differ in size; each sample records these sizes.
        self._variable = [i for i, size in enumerate(self.columns.sizes) if size is None]
        self._lengths_name = lengths
        if lengths is not None:
            self._length = length_function({name: e.name for name, e in parsed}, lengths)
            # The length of each sample, and the position of the column it is computed from.
            self._lengths, self._length_column = array("I"), self.columns.names.index(lengths)
        # Packs the sizes of the variable values of a sample, as little-endian uint32.
        self._pack_sizes = struct.Struct(f"<{len(self._variable)}I").pack
        # The header of a shard has an offset of 4 bytes for each sample.
        super().__init__(out=out, extra_bytes_per_sample=4, **options)
        self._config = config_bytes(self.get_config())
        # The first shard is open already, so its size is set, too.
        self._shard_size = self.extra_bytes_per_shard = empty_shard_size(self._config)
        self._plan_early_file()
        if self._strict is not False:
            # `write` reports a sample with more keys than there are columns.
            self._max_keys = len(parsed)

    def _packer(self, encoding: Encoding) -> Callable[[Any], bytes]:
        """Return the function from a value of a column to its bytes.

        Some encodings also take values that are encoded already, such as the file of an image.
        Such bytes are checked, unless every bytes value is valid.
        """
        if encoding.decode_kind is DecodeKind.BYTES or not encoding.takes_bytes:
            return encoding.pack
        return encoding.pack_checked

    def get_config(self) -> dict[str, Any]:
        """Return what every shard and the index record about the dataset."""
        return {
            **super().get_config(),
            "column_names": list(self.columns.names),
            "column_encodings": list(self.columns.encodings),
            "column_sizes": list(self.columns.sizes),
        }

    def encode_sample(self, sample: Mapping[str, Any]) -> bytes:
        """Return the sizes of the variable columns, then the values. Raises EncodingError."""
        values = []
        name = ""  # the column at work, for the error
        try:
            for name, pack in self._packers:
                values.append(pack(sample[name]))
        except Exception as error:
            raise self._locate_error(error, name, sample) from error
        if self._lengths_name is not None:
            self._record_length(values[self._length_column])
        if not self._variable:
            return values[0] if len(values) == 1 else b"".join(values)
        lengths = [len(values[i]) for i in self._variable]
        # Checked before they are joined, which takes the same memory again.
        if sum(lengths) >= self.max_shard_size:
            raise self._too_large(sum(lengths))
        return b"".join((self._pack_sizes(*lengths), *values))

    def _record_length(self, value: bytes) -> None:
        """Append the length of the array with these bytes, which belongs to the next sample."""
        # There is one length for each of the `_samples` before. A further one belongs to a sample
        # that was encoded and then refused, such as one that is too large.
        del self._lengths[self._samples :]
        self._lengths.append(self._length(value))

    def _publish_sidecars(self, index: bytes) -> None:
        """Publish the lengths of all samples, if they are recorded."""
        if self._lengths_name is not None:
            # The last length may be of a sample that was refused (see `_record_length`).
            del self._lengths[self._samples :]
            lengths = np.frombuffer(self._lengths, np.uint32)
            data = emit_lengths_file(self._lengths_name, lengths, fingerprint_of(index))
            self._destination.publish_sidecar(lengths_name(self._lengths_name), data)

    def _column_encodings(self) -> dict[str, str]:
        return dict(zip(self.columns.names, self.columns.encodings, strict=True))

    def _plan_header(self) -> bytes | None:
        """Return the header of a full shard, or None if it is not known before the samples.

        The header has the offset of each sample, so it is known in advance if all samples have one
        size. Shards are then written while they are filled (`EarlyFile`), which takes less memory.
        Compression needs a whole shard, slow digests are computed in other threads, and small rows
        or shards gain nothing: None.
        """
        if self._variable or self.compression or self.size_limit is None:
            return None
        if not all(name.startswith("xxh") for name in self.hashes):
            return None
        row_size = sum(size for size in self.columns.sizes if size is not None)  # bytes
        if row_size < _MIN_EARLY_ROW:
            return None
        # A row also takes 4 bytes of the header.
        free_bytes = self._full_size - self.extra_bytes_per_shard
        count = min(self._max_samples, free_bytes // (row_size + 4))
        if count * row_size < _MIN_EARLY_SHARD:
            return None
        return pack_header([row_size] * count, self._config)

    def _files(self, body: Data, sizes: Sequence[int]) -> tuple[Sequence[Data], ...]:
        """Return the parts of the only file: the header, and the samples."""
        return ((pack_header(sizes, self._config), body),)
