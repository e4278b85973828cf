"""Conversion of what people have (images, text, tables, tars, datasets) into MDS.

`convert` does it; `prepare` shows first what would be done. `mds-convert` is these two on the
command line, `register_input` adds inputs of your own. See docs/convert.md.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from mds._lazy_imports import on_first_touch
from mds.errors import ArgumentError

if TYPE_CHECKING:
    from mds._words import Compression, Digest, EngineName, OnError
    from mds.formats._columns import Column
    from mds.writers.convert._conversion import Conversion
    from mds.writers.convert._inputs.base import (
        Input,
        InputOptions,
        InputPart,
    )
    from mds.writers.convert._inputs.registry import input_names, register_input
    from mds.writers.convert._run import Progress, Summary

__all__ = [
    "Column",
    "Input",
    "InputOptions",
    "InputPart",
    "convert",
    "input_names",
    "prepare",
    "register_input",
]

_HOMES = {
    "Column": "_inputs.base",
    "FileInput": "_inputs.base",
    "Input": "_inputs.base",
    "InputOptions": "_inputs.base",
    "InputPart": "_inputs.base",
    "input_names": "_inputs.registry",
    "register_input": "_inputs.registry",
}
__getattr__, __dir__ = on_first_touch(__name__, _HOMES)


class ArrowTable(Protocol):
    """A table of pandas, polars, pyarrow or another library that exports Arrow streams."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the rows as a stream of Arrow batches."""


#: Samples of Python: dicts from column to value, or a table.
SampleSource = Iterable[Mapping[str, Any]] | ArrowTable
#: What can be converted: a place, samples, or the samples of each split.
Source = str | os.PathLike[str] | SampleSource | Mapping[str, SampleSource]
F = TypeVar("F", bound=Callable[..., Any])
_POSITIONAL = 2  # arguments of `convert` without a name


def _names_checked(function: F) -> F:
    """Decorate `convert` or `prepare`: unknown options raise ArgumentError with the right name."""
    names = [*inspect.signature(function).parameters]

    @functools.wraps(function)
    def checked(*arguments: Any, **options: Any) -> Any:
        if not options.keys() <= set(names):
            from mds.writers.convert._spec import refuse_unknown_options

            refuse_unknown_options(options, names)
        if len(arguments) > _POSITIONAL:
            raise ArgumentError(
                f"{function.__name__}() takes the source and out by position, and the others by "
                f"name. For a function write mds.convert(map(function, samples), out)."
            )
        return function(*arguments, **options)

    return checked  # type: ignore[return-value]


@_names_checked
def prepare(
    source: Source,
    out: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - what it is
    columns: str | Sequence[str] = (),
    encodings: Mapping[str, Any] | None = None,
    drop: str | Sequence[str] = (),
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    labels: str | None = None,
    config: str | None = None,
    source_split: str | None = None,
    encoding: str | None = None,
    no_header: bool = False,
    limit: int | str | None = None,
    on_error: OnError = "raise",
    null: str | Sequence[str] = (),
    fill: Mapping[str, Any] | None = None,
    describe: Mapping[str, str] | None = None,
    lengths: str | None = None,
    split: str | Mapping[str, float] | None = None,
    split_key: str | None = None,
    merge_splits: bool = False,
    compression: Compression | str | None = None,
    hashes: str | Sequence[Digest] | Sequence[str] = ("xxh3_64",),
    size_limit: int | str | None = 67108864,
    keep_shards: bool = False,
    portable: bool = False,
    tokenizer: str | None = None,
    block: int | None = None,
    end_token: str | None = None,
    text_column: str | None = None,
    drop_last: bool = False,
    num_workers: int = 1,
    engine: EngineName = "local",
    resume: bool = False,
    overwrite: bool = False,
    work: str | os.PathLike[str] | None = None,
    durable: bool = True,
    storage_options: Mapping[str, Any] | None = None,
) -> Conversion:
    """Recognise a source and infer its columns; nothing is written. Arguments as in `convert`.

    >>> conversion = prepare([{"name": "Ada", "age": 36}, {"name": "Alan", "age": 41}], "out")
    >>> [(column.name, column.encoding) for column in conversion.columns]
    [('age', 'int'), ('name', 'str')]
    """
    arguments = dict(locals())
    from mds.writers.convert._conversion import prepare

    return prepare(**arguments)


@_names_checked
def convert(
    source: Source,
    out: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - what it is
    columns: str | Sequence[str] = (),
    encodings: Mapping[str, Any] | None = None,
    drop: str | Sequence[str] = (),
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    labels: str | None = None,
    config: str | None = None,
    source_split: str | None = None,
    encoding: str | None = None,
    no_header: bool = False,
    limit: int | str | None = None,
    on_error: OnError = "raise",
    null: str | Sequence[str] = (),
    fill: Mapping[str, Any] | None = None,
    describe: Mapping[str, str] | None = None,
    lengths: str | None = None,
    split: str | Mapping[str, float] | None = None,
    split_key: str | None = None,
    merge_splits: bool = False,
    compression: Compression | str | None = None,
    hashes: str | Sequence[Digest] | Sequence[str] = ("xxh3_64",),
    size_limit: int | str | None = 67108864,
    keep_shards: bool = False,
    portable: bool = False,
    tokenizer: str | None = None,
    block: int | None = None,
    end_token: str | None = None,
    text_column: str | None = None,
    drop_last: bool = False,
    num_workers: int = 1,
    engine: EngineName = "local",
    resume: bool = False,
    overwrite: bool = False,
    work: str | os.PathLike[str] | None = None,
    durable: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Convert a file, folder, URL, dataset or iterable of samples to an MDS dataset at ``out``.

    - ``source``: What is read: the path or URL of files, a Hugging Face dataset (``"hf:NAME"`` or
      the object), an iterable of dicts from column to value, such as a list or a generator, a table
      of pandas, polars or pyarrow, or a dict from the name of a split to any of these iterables.
    - ``out`` (str | PathLike): A folder or a URL.
    - ``format`` (str | None, default None): What the files are, such as "images", "csv", "lines"
      (a sample of each line) or "text" (a sample of each file): a name of `input_names()` or of a
      format. None recognises it.

    Which columns are written, and how:

    - ``columns`` (Sequence[str], default ()): The only columns to write; empty for all.
    - ``encodings`` (Mapping[str, Any] | None, default None): Encodings of columns instead of the
      inferred ones, such as ``{"id": "int32"}``.
    - ``drop`` (Sequence[str], default ()): Columns to leave out.
    - ``fill`` (Mapping[str, Any] | None, default None): Replacements of missing values, by column.
    - ``describe`` (Mapping[str, str] | None, default None): Descriptions of columns, kept beside
      the dataset.
    - ``lengths`` (str | None, default None): The column of arrays whose lengths are recorded beside
      the index, for packing.

    Which samples are read:

    - ``include``, ``exclude`` (Sequence[str], default ()): Patterns of the files to convert, and of
      those to leave out.
    - ``labels`` (str | None, default None): The table of labels in a folder of images.
    - ``config``, ``source_split`` (str | None, default None): Configuration and split of a Hugging
      Face dataset.
    - ``encoding`` (str | None, default None): Encoding of text files, such as "cp1252"; None is
      UTF-8.
    - ``no_header`` (bool, default False): The first line of a CSV or TSV is a record.
    - ``null`` (Sequence[str], default ()): Texts of cells that count as missing values.
    - ``limit`` (int | str | None, default None): The most samples, such as 10000 or "10k".
    - ``on_error`` ("raise" or "skip", default "raise"): What a record does that cannot be a sample:
      stop the conversion, or be left out and listed in the summary.

    What is written:

    - ``split`` (Mapping[str, float] | None, default None): Share of the samples of each split, such
      as ``{"train": 0.9, "val": 0.1}``; each is a dataset in a folder of its name.
    - ``split_key`` (str | None, default None): The column whose value decides the split.
    - ``merge_splits`` (bool, default False): Write all splits of the source as one dataset.
    - ``compression`` (str | None, default None): How shards are compressed: "zstd", "gz", "bz2",
      "br" or "snappy", with a level as in "zstd:7".
    - ``hashes`` (Sequence[str], default ("xxh3_64",)): Digests of every file to store.
    - ``size_limit`` (int | str | None, default 67108864, bytes): The most bytes of a shard, also as
      "64mb"; None or 0 for one shard.
    - ``keep_shards`` (bool, default False): Write one shard for each shard of files in a format,
      such as a row group of Parquet; the order of training stays, and states can be exchanged.
    - ``portable`` (bool, default False): Write only encodings that mosaicml-streaming reads.

    Tokens:

    - ``tokenizer`` (str | None, default None): Write blocks of tokens by this tokenizer.
    - ``block`` (int | None, default None): Tokens of a block; None is 2048.
    - ``end_token`` (str | None, default None): Token that ends a document; None is the tokenizer's
      own, "" none.
    - ``text_column`` (str | None, default None): The column that is tokenized, or a path to texts
      inside it, such as "messages.content".
    - ``drop_last`` (bool, default False): Drop the last tokens if they fill no block.

    How it is done:

    - ``num_workers`` (int, default 1): Number of processes; 0 is one per core. The bytes written do
      not depend on it. Iterables are read by the calling process, and encoded by all.
    - ``engine`` (str, default "local"): Where work runs: "local", "spark" or "ray".
    - ``resume`` (bool, default False): Continue a conversion that was interrupted. An iterable must
      yield the same samples again.
    - ``overwrite`` (bool, default False): Replace the dataset at ``out``.
    - ``work`` (str | PathLike | None, default None): The folder for unfinished work; None is one
      inside ``out``.
    - ``durable`` (bool, default True): Sync shards and index to the disk.
    - ``storage_options`` (Mapping[str, Any] | None, default None): Settings of the store of
      ``out``, and of the source if it has the same scheme or ``out`` is a folder, such as
      ``{"endpoint_url": "..."}``.
    - ``progress`` (Callable[[Progress], None] | None, default None): Called after every part and
      shard. None shows a bar in a notebook, and nothing elsewhere.

    Returns a summary: ``samples``, ``seconds``, and ``splits`` with the shards and bytes of each.

    Raises SourceError for a source that cannot be read or has no sample, RecordError for a bad
    record, ConfigError for invalid options, FileExistsError for an output that is not empty.

    >>> mds.convert("photos", "out/photos", num_workers=8)  # doctest: +SKIP
    >>> summary = mds.convert(({"text": text} for text in ("red", "green")), "out/colours")
    >>> mds.LocalDataset("out/colours")[1]
    {'text': 'green'}
    """
    arguments = dict(locals())
    del arguments["progress"]
    from mds.writers.convert._run import show_in_notebook

    conversion = prepare(**arguments)
    return conversion.run(progress or show_in_notebook())
