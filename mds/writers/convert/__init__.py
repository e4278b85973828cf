"""Conversion of what people have (images, text, tables, tars, datasets) into MDS.

`convert` does it; `prepare` shows first what would be done. `mds-convert` is these two on the
command line, `register_input` adds inputs of your own. See docs/convert.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mds.lazy_imports import on_first_touch

if TYPE_CHECKING:
    from collections.abc import Callable

    from mds.formats.columns import Column
    from mds.writers.convert.conversion import Conversion
    from mds.writers.convert.inputs.base import BadRecord, FileInput, Input, InputOptions, InputPart
    from mds.writers.convert.inputs.registry import input_names, register_input
    from mds.writers.convert.run import Progress, Summary

__all__ = [
    "BadRecord",
    "Column",
    "FileInput",
    "Input",
    "InputOptions",
    "InputPart",
    "convert",
    "input_names",
    "prepare",
    "register_input",
]

_HOMES = {
    "BadRecord": "inputs.base",
    "Column": "inputs.base",
    "FileInput": "inputs.base",
    "Input": "inputs.base",
    "InputOptions": "inputs.base",
    "InputPart": "inputs.base",
    "input_names": "inputs.registry",
    "register_input": "inputs.registry",
}
__getattr__, __dir__ = on_first_touch(__name__, _HOMES)


def prepare(source: str, out: str, **options: Any) -> Conversion:
    """Recognise a source and infer its columns; nothing is written. Options as in `convert`."""
    from mds.writers.convert.conversion import prepare

    return prepare(source, out, **options)


def convert(
    source: str,
    out: str,
    *,
    progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Summary:
    """Convert a file, folder, URL or named dataset to an MDS dataset at ``out``.

    ``out`` is a folder or a URL; ``progress`` is called after every part and shard. Options, all by
    name. What is read:

    * ``kind`` (str, None): one of `input_names()` or a format, such as "megatron"; None to
      recognise it.
    * ``include`` (list[str], ()): patterns of the files to convert.
    * ``exclude`` (list[str], ()): patterns of the files to leave out.
    * ``labels`` (str, None): the table of labels in a folder of images.
    * ``config`` (str, None): the configuration of a Hugging Face dataset.
    * ``source_split`` (str, None): the split of a Hugging Face dataset.
    * ``encoding`` (str, None): encoding of text, such as "cp1252"; None is UTF-8.
    * ``no_header`` (bool, False): the first line of a CSV or TSV is a record.
    * ``limit`` (samples or text, None): stop after so many samples, such as "10k".
    * ``skip_bad`` (bool, False): leave out records that cannot be samples, and list them.

    What is written:

    * ``columns`` (dict[str, str], {}): encodings to use instead of the inferred ones.
    * ``null`` (list[str], ()): texts of cells that count as missing values.
    * ``fill`` (dict[str, Any], {}): replacements of missing values, by column.
    * ``describe`` (dict[str, str], {}): descriptions of columns, kept beside the dataset.
    * ``lengths`` (str, None): the column of arrays whose lengths are recorded beside the index.
    * ``drop`` (list[str], ()): columns to leave out.
    * ``only`` (list[str], ()): columns to write, and no others.
    * ``split`` (dict[str, float], {}): name of each split, and its share of the samples.
    * ``merge_splits`` (bool, False): write all splits of the source as one dataset.
    * ``split_key`` (str, None): the column whose value decides the split.
    * ``compression`` (str, None): how shards are compressed, such as "zstd:7".
    * ``hashes`` (list[str], ('xxh3_64',)): digests of every file to store.
    * ``keep_shards`` (bool, False): write one shard for each shard of files in a format, such as a
      row group of Parquet; the order of training stays, and states can be exchanged.
    * ``size_limit`` (bytes or text, 67108864): the most bytes of a shard; None or 0 for one shard.

    Tokens:

    * ``tokenizer`` (str, None): write blocks of tokens by this tokenizer.
    * ``block`` (int, 2048): tokens of a block.
    * ``end_token`` (str, None): token that ends a document; None: the tokenizer's own, "": none.
    * ``text_column`` (str, None): the column that is tokenized.
    * ``drop_last`` (bool, False): drop the last tokens if they fill no block.

    How it is done:

    * ``workers`` (int, 1): number of processes; 0: one per core.
    * ``engine`` (str, 'local'): where work runs, "local", "spark" or "ray".
    * ``resume`` (bool, False): continue a conversion that was interrupted.
    * ``overwrite`` (bool, False): replace the dataset at ``out``.
    * ``work`` (path, None): the folder for unfinished work; None: one inside ``out``.
    * ``durable`` (bool, True): sync shards and index to the disk.
    * ``storage_options`` (dict[str, Any], None): settings of the store of ``out``, and of the
      source if it has the same scheme or ``out`` is a folder, such as {"endpoint_url": "..."}.

    Raises SourceError for a source that cannot be read, RecordError for a bad record,
    ConfigError for invalid options, FileExistsError for an output that is not empty.
    """
    return prepare(source, out, **options).run(progress)
