"""Writers as in mosaicml-streaming 0.13: `streaming.base.format.*.writer`.

Each class derives from the writer of mds for its format. A format of one's own derives from
JointWriter or SplitWriter and encodes whole shards from ``new_samples``:

    class NumbersWriter(JointWriter):
        format = "numbers"

        def encode_joint_shard(self) -> bytes: ...

The writer of mds encodes each sample and calls ``_files`` for a full shard. For such a format, that
method calls ``encode_joint_shard`` or ``encode_split_shard`` of the user's class.

In this package, 0.13 is mosaicml-streaming 0.13, "native" is the class of mds of the same name, and
"code" is code of the user that was written for 0.13.
"""

from __future__ import annotations

import inspect
import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar

from mds.compat._clouds import CloudUploader
from mds.compat._encodings import packer_of
from mds.compat._overrides import (
    OVERRIDE_IN_CLASS,
    Overridable,
    SealedDict,
    find_remedy,
    refuse,
    refuse_missing,
)
from mds.writers import _mds as native
from mds.writers import _text as native_text
from mds.writers._spec import full_signature
from mds.writers._writer import Writer as NativeWriter
from mds.writers.convert import _dataframe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Unpack

    from mds._shardfile.layout import Columns
    from mds.encodings import Encoding
    from mds.writers._spec import Out, WriterOptions

#: Parameters that writers of 0.13 show; they take further options by ``**kwargs``, as ours do.
_SHOWN_PARAMETERS = (
    "columns",
    "separator",
    "newline",
    "out",
    "keep_local",
    "compression",
    "hashes",
    "size_limit",
    "extra_bytes_per_shard",
    "extra_bytes_per_sample",
)


def _signature_of(kind: type[Any]) -> inspect.Signature:
    """Return the signature that ``inspect`` and help() show for a writer class.

    A class of `mds` shows the parameters of 0.13 and ``**kwargs``, as there, without those that are
    constants of the class (``Writer._constants``). A user's class shows the parameters of its
    ``__init__``, with all options of the writer.
    """
    signature = full_signature(kind.__init__)
    if not kind.__module__.startswith("mds."):
        return signature
    constants = kind._constants  # noqa: SLF001 - a class of this file
    parameters = [
        parameter
        for name, parameter in signature.parameters.items()
        if name in _SHOWN_PARAMETERS and name not in constants
    ]
    return signature.replace(
        parameters=[*parameters, inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)]
    )


class Writer(Overridable, NativeWriter):
    """Base of all writers; see `mds.writers.Writer`."""

    format = ""
    #: Whether arguments are refused that 0.13 accepts.
    _is_strict = False
    _converts = False
    _default_hashes = ()
    # Tables of methods that mds never calls, and what to use instead: see `Overridable`.
    _refused: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("_process_file", "_hash"), "compression= and hashes="),
        **dict.fromkeys(
            ("_write_index", "_reset_cache", "_name_next_shard"), "flush_shard() to end a shard"
        ),
    }
    _ignored: ClassVar[Mapping[str, str]] = {
        "cancel_future_jobs": "abort()",
        **dict.fromkeys(
            ("event", "exception_callback"),
            "try around write() and finish(), which raise the errors of background threads",
        ),
        "executor": "max_workers=",
    }
    _fixed: ClassVar[Mapping[str, str]] = {
        "cloud_writer": find_remedy("CloudUploader"),
        **dict.fromkeys(("encode_joint_shard", "encode_split_shard"), OVERRIDE_IN_CLASS),
    }
    #: Parameters that have one value for all objects of a class, and are not shown.
    _constants: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__signature__ = _signature_of(cls)
        # A user's class must not change the format of a built-in writer: "csv" for a class derived
        # from MDSWriter would name a format in the index that its shards do not have.
        own_format, base_format = vars(cls).get("format"), super(cls, cls).format
        is_users = not cls.__module__.startswith("mds.")
        if own_format not in (None, base_format) and base_format and is_users:
            refuse(
                f"{cls.__name__}.format = {own_format!r}",
                "Derive a format of your own from JointWriter or SplitWriter",
            )

    # ------------------------------------------------------------------ destination

    @property
    def local(self) -> str:
        """Folder where shards are written."""
        return self._destination.folder

    @property
    def remote(self) -> str | None:
        """URL where files are uploaded; None if they stay in the folder."""
        return self._destination._spec.remote  # noqa: SLF001 - this class is a part of the writer

    @property
    def keep_local(self) -> bool:
        """Whether files stay in the folder after they were uploaded."""
        spec = self._destination._spec  # noqa: SLF001 - this class is a part of the writer
        return spec.remote is not None and spec.keep_local

    @property
    def cloud_writer(self) -> CloudUploader:
        """Uploader of single files from the folder."""
        return CloudUploader.for_folder(self.local, self.remote, self.keep_local)

    def __getattr__(self, name: str) -> Any:
        refuse_missing(self, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.")

    def cancel_future_jobs(self) -> None:
        """End the writer without an index; see `abort`."""
        self.abort()

    # ------------------------------------------------------------------ shards

    @property
    def new_samples(self) -> list[bytes]:
        """Encoded samples of the shard that is not full yet.

        Large samples of one size are written to the shard's file before the shard is full. Then the
        list has only the samples that are still in memory.
        """
        if not hasattr(self, "_buffer"):
            return []
        samples: list[bytes] = []
        # The last samples are in the buffer, one after the other: go from its end to the front.
        end = self._used
        for size in reversed(self._sizes):
            if end < size:  # this sample and all before it are in the file already
                break
            samples.append(bytes(self._buffer[end - size : end]))
            end -= size
        return samples[::-1]

    @property
    def new_shard_size(self) -> int:
        """Bytes of the shard that is not full yet."""
        return self._shard_size

    @property
    def shards(self) -> list[dict[str, Any]]:
        """Entries of ``index.json`` for all full shards; reading it waits until they are written.

        An entry refuses changes, which the index would not have.
        """
        entries, _ = self._pipeline.finish()
        remedy = "The index has the keys of its format and no others: keep yours in another file"
        return [SealedDict("an entry of shards", json.loads(entry), remedy) for entry in entries]

    @property
    def _encodes_shards(self) -> bool:
        """Whether a user's class encodes whole shards."""
        return False

    def _plan_header(self) -> bytes | None:
        return None if self._encodes_shards else super()._plan_header()


Writer.__signature__ = _signature_of(Writer)


class JointWriter(Writer):
    """Base of writers of shards in one file; a user's class defines `encode_joint_shard`."""

    @property
    def _encodes_shards(self) -> bool:
        """Whether `encode_joint_shard` is a method of a user's class, and not of mds."""
        return not type(self).encode_joint_shard.__module__.startswith("mds.")

    @abstractmethod
    def encode_joint_shard(self) -> bytes:
        """Return the content of a file with the samples in ``new_samples``."""

    def _files(self, body: Any, sizes: Sequence[int]) -> Any:
        """Return the content of a full shard: a tuple with the only file, as a tuple of its parts.

        Parts are bytes that are written one after the other, such as header and samples.

        ``body``: encoded samples, end to end; ``sizes``: bytes of each.
        """
        if self._encodes_shards:
            return ((self.encode_joint_shard(),),)
        return super()._files(body, sizes)  # type: ignore[safe-super]


class SplitWriter(Writer):
    """Base of writers of shards in two files: samples, and the offsets at which they begin.

    A user's class defines `encode_split_shard`.
    """

    # Bytes that a shard has besides its samples, which count toward size_limit; 0 in text formats.
    extra_bytes_per_shard = 0
    extra_bytes_per_sample = 0
    #: Parameters of 0.13 that are constant here, so signatures do not show them.
    _constants = ("extra_bytes_per_shard", "extra_bytes_per_sample")

    @property
    def _encodes_shards(self) -> bool:
        """Whether `encode_split_shard` is a method of a user's class, and not of mds."""
        return not type(self).encode_split_shard.__module__.startswith("mds.")

    @abstractmethod
    def encode_split_shard(self) -> tuple[bytes, bytes]:
        """Return the contents of both files with the samples in ``new_samples``: data, offsets."""

    def _files(self, body: Any, sizes: Sequence[int]) -> Any:
        """Return the content of a full shard: the file of samples and the file of offsets.

        Each file is a tuple of parts: bytes that are written one after the other.

        ``body``: encoded samples, end to end; ``sizes``: bytes of each.
        """
        if self._encodes_shards:
            data, meta = self.encode_split_shard()
            return (data,), (meta,)
        return super()._files(body, sizes)  # type: ignore[safe-super]


# ---------------------------------------------------------------------- formats


class ColumnDict(dict[str, str]):
    """Columns of an MDSWriter: a dict, as in 0.13, with the attributes that `mds.MDSWriter` uses.

    ``columns``: columns of a shard, sorted by name. The attributes ``names``, ``encodings`` and
    ``sizes`` (bytes) have an item for each column; a size is None if values differ in size.
    """

    def __init__(self, columns: Columns) -> None:
        super().__init__(zip(columns.names, columns.encodings, strict=True))
        self.names, self.encodings, self.sizes = columns


class MDSWriter(JointWriter, native.MDSWriter):
    """Writer of MDS shards; its help is that of `mds.MDSWriter`."""

    __doc__ = native.MDSWriter.__doc__
    format = "mds"

    def __init__(
        self,
        *,
        columns: dict[str, str],
        out: Out,
        lengths: str | None = None,
        **options: Unpack[WriterOptions],
    ) -> None:
        super().__init__(columns=columns, out=out, lengths=lengths, **options)
        self.columns = ColumnDict(self.columns)  # type: ignore[assignment]
        self.column_names = list(self.columns.names)
        self.column_encodings = list(self.columns.encodings)
        self.column_sizes = list(self.columns.sizes)
        self.config_data = self._config

    def _packer(self, encoding: Encoding) -> Callable[[Any], bytes]:
        return packer_of(encoding)

    def encode_joint_shard(self) -> bytes:
        """Return the content of a file with the samples in ``new_samples``."""
        samples = self.new_samples
        # A shard has one file, in parts. Not self._files(), which could call this method again.
        (parts,) = native.MDSWriter._files(self, b"".join(samples), [*map(len, samples)])  # noqa: SLF001
        return b"".join(parts)


class _LinesWriter(SplitWriter):
    """Base of writers of lines of text."""

    def encode_split_shard(self) -> tuple[bytes, bytes]:
        """Return the contents of both files with the samples in ``new_samples``: lines, offsets."""
        samples = self.new_samples
        data, meta = super()._files(b"".join(samples), [*map(len, samples)])
        return b"".join(data), b"".join(meta)


class JSONWriter(_LinesWriter, native_text.JSONWriter):
    """Writer of JSON lines; its help is that of `mds.JSONWriter`."""

    __doc__ = native_text.JSONWriter.__doc__
    format = "json"


class XSVWriter(_LinesWriter, native_text.XSVWriter):
    """Writer of lines with a separator; its help is that of `mds.XSVWriter`."""

    __doc__ = native_text.XSVWriter.__doc__
    format = "xsv"

    @property
    def column_names(self) -> list[str]:
        """Names of the columns, sorted."""
        return list(self.columns)

    @property
    def column_encodings(self) -> list[str]:
        """Encodings of the columns: "str", "int" or "float"."""
        return list(self.columns.values())


class CSVWriter(XSVWriter, native_text.CSVWriter):
    """Writer of lines with commas; its help is that of `mds.CSVWriter`."""

    __doc__ = native_text.CSVWriter.__doc__
    format = "csv"
    separator = ","


class TSVWriter(XSVWriter, native_text.TSVWriter):
    """Writer of lines with tabs; its help is that of `mds.TSVWriter`."""

    __doc__ = native_text.TSVWriter.__doc__
    format = "tsv"
    separator = "\t"


@wraps(_dataframe.dataframe_to_mds)
def dataframe_to_mds(
    dataframe: Any,
    merge_index: bool = True,
    mds_kwargs: dict[str, Any] | None = None,
    udf_iterable: Callable[..., Any] | None = None,
    udf_kwargs: dict[str, Any] | None = None,
) -> tuple[str, str]:
    """Write a Spark data frame as the native function does, without digests by default."""
    options = dict(mds_kwargs or {})
    if options.get("hashes") is None:
        options["hashes"] = []
    return _dataframe.dataframe_to_mds(dataframe, merge_index, options, udf_iterable, udf_kwargs)
