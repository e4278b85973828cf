"""Conversion of what people have (images, text, tables, tars, datasets) into MDS.

`convert` does it; `prepare` shows first what would be done. `mds-convert` is these two on the
command line. See docs/convert.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mds.writers.convert.conversion import Conversion
    from mds.writers.convert.run import Progress, Summary

__all__ = ["convert", "prepare"]


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

    ``out`` is a folder or a URL. Options, all by name:

    * what is read: ``kind`` (see `recognise.KINDS`), ``include`` and ``exclude`` (patterns),
      ``labels`` (table of an image folder), ``config`` and ``source_split`` (Hugging Face),
      ``limit`` (samples), ``skip_bad``;
    * what is written: ``columns`` ({name: encoding}), ``drop``, ``only``, ``split`` ({name:
      share}), ``split_key``, ``compression``, ``hashes``, ``size_limit`` (bytes);
    * tokens: ``tokenizer``, ``block``, ``end_token``, ``text_column``, ``drop_last``;
    * how: ``workers`` (processes, 0 for all cores), ``engine`` (local, spark, ray), ``resume``,
      ``overwrite``, ``work`` (folder for what is under way).

    Raises SourceError for a source that cannot be read, RecordError for a bad record,
    ConfigError for options that make no sense, FileExistsError for an output that is not empty.
    """
    return prepare(source, out, **options).run(progress)
