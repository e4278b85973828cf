"""Plan of a conversion: its source, columns and output, to inspect and to run.

    parts of the source -> (engine) samples of each part -> cut -> (engine) shards -> index

The calling process only decides which part is read next and which samples share a shard. Both
follow from the source alone, so the output is the same with any number of processes, on any engine,
and after any number of interruptions.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mds._arguments import did_you_mean, shown
from mds._index.column_notes import ColumnNote, make_notes
from mds._shardfile.layout import MAX_SIZE
from mds._units import format_bytes
from mds.encodings import parse_encoding
from mds.encodings._arrays import length_function
from mds.errors import ConfigError, NoSpaceError, SourceError
from mds.formats._columns import Column
from mds.storage import open_store
from mds.storage._url import Url, is_local, local_path, redact, scheme_of
from mds.writers._leftovers import work_folder_name
from mds.writers._spec import refuse_storage_options
from mds.writers.convert._checkpoint import NAME, Checkpoint
from mds.writers.convert._inputs.base import Input
from mds.writers.convert._inputs.format_input import FormatInput
from mds.writers.convert._inputs.huggingface import is_hub_name
from mds.writers.convert._inputs.registry import note_left_out, open_input
from mds.writers.convert._portable import describe_others, portable_columns
from mds.writers.convert._read_part import ReadSpec
from mds.writers.convert._run import Progress, Summary, run
from mds.writers.convert._spec import ConvertSpec, parse_spec
from mds.writers.convert._tokens import (
    check_column,
    decoded,
    is_message_path,
    list_text_paths,
    load_tokenizer,
    split_path,
)
from mds.writers.convert._write_shard import Output

#: Increased when a new version cannot resume the conversion of an old one.
_PLAN_VERSION = 2
#: The plan warns of more than `_MANY_SHARDS` shards below `_SMALL_SHARD` bytes: a likely mistake.
_MANY_SHARDS = 1000
_SMALL_SHARD = 1 << 18
_TINY_SHARD = 4096
#: Encodings of columns of text.
_TEXT_ENCODINGS = ("str", "optional[str]")
_MIN_PART = 1 << 20
_MAX_PART = 16 << 20


@dataclass(frozen=True)
class Conversion:
    """Plan of a conversion: inspect it, then `run` it.

    - ``source`` (Input): The input to convert; ``columns``: the columns to write, sorted by name.
    - ``out`` (str): The folder or URL to write to; ``spec``: the options.
    """

    source: Input
    columns: tuple[Column, ...]
    #: Column whose value decides the split of a sample; None: the bytes of the whole sample.
    key: str | None
    out: str
    spec: ConvertSpec
    #: Approximate bytes of a part; 0: chosen by the size of the input. The output is the same.
    part_size: int = 0
    #: Largest shard in bytes that offsets of 32 bits can address.
    max_shard_size: int = MAX_SIZE - 1

    def run(self, progress: Callable[[Progress], None] | None = None) -> Summary:
        """Write the dataset. ``progress`` is called after every part and shard.

        Raises RecordError for a record that cannot become a sample (unless `on_error="skip"`),
        FileExistsError if the output is not empty, and the errors of reading and writing.
        """
        summary = run(self.read_spec(), self.output(), self.spec, self.identity(), progress)
        return replace(summary, out=self.out, notes=(*self.source.notes, *summary.notes))

    @property
    def splits(self) -> tuple[str, ...]:
        """Folders below the output; '' is the output itself."""
        return tuple(self.spec.split) or _own_splits(self.source, self.spec) or ("",)

    def checkpoint(self) -> Checkpoint:
        """Return the work folder: inside a local output, else in the temporary folder."""
        if self.spec.work is not None:
            return Checkpoint(os.path.abspath(self.spec.work))
        local = open_store(self.out).local_path
        if local is not None:
            return Checkpoint(os.path.join(os.path.abspath(local), NAME))
        return Checkpoint(
            os.path.join(tempfile.gettempdir(), work_folder_name(self.out)), is_private=True
        )

    def output(self) -> Output:
        """Return the settings for the processes that write shards."""
        return Output(
            url=os.path.abspath(local_path(self.out)) if is_local(self.out) else self.out,
            splits=self.splits,
            names=tuple(column.name for column in self.columns),
            encodings=tuple(column.encoding for column in self.columns),
            compression=self.spec.compression,
            hashes=self.spec.hashes,
            size_limit=None if self.spec.keep_shards else self.spec.size_limit,
            keeps_parts=self.spec.keep_shards,
            checkpoint=self.checkpoint(),
            durable=self.spec.durable,
            notes=self.notes(),
            lengths=self.spec.lengths,
            max_shard_size=self.max_shard_size,
        )

    def disk_space(self) -> tuple[int, int] | None:
        """Return the approximate bytes of the output and the free bytes there; None if unknown.

        They are known for a local output if the source is written as it is. Tokens, a limit, chosen
        columns and compression make the output smaller, and a store does not report free space.
        """
        spec, local = self.spec, open_store(self.out).local_path
        # The output is then smaller than the source, by an unknown factor.
        is_less = spec.limit or spec.tokens or spec.columns or spec.drop or spec.compression
        if local is None or is_less or not self.source.size:
            return None
        # Use the disk of the nearest folder that exists.
        folder = os.path.abspath(local)
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        return self.source.size, shutil.disk_usage(folder).free

    def describe_disk_space(self) -> str:
        """Return needed and free disk space as a sentence, or '' if either is unknown."""
        space = self.disk_space()
        if space is None:
            return ""
        return f"space: about {format_bytes(space[0])} needed, {format_bytes(space[1])} free"

    def check_disk_space(self) -> None:
        """Raise NoSpaceError if the disk is certainly too small.

        This is certain only if files are stored as they are: encoded text may be larger or smaller.
        """
        space = self.disk_space()
        source = self.source
        if space is None or not (isinstance(source, FormatInput) and source.stores_files):
            return
        needed, free = space
        if needed > free:
            raise NoSpaceError(
                f"{redact(self.out)}: the files of {self.source.name} take {format_bytes(needed)}, "
                f"but only {format_bytes(free)} are free. Free some space, choose another place or "
                "a URL, or write less with --limit, --include or --compression zstd."
            )

    def notes(self) -> dict[str, ColumnNote]:
        """Return the notes stored beside the dataset: names of classes, descriptions of columns."""
        classes = {column.name: column.class_names for column in self.columns if column.class_names}
        descriptions = {
            column.name: column.description for column in self.columns if column.description
        }
        return make_notes(classes, {**descriptions, **self.spec.describe})

    def read_spec(self) -> ReadSpec:
        """Return the settings for the processes that read parts."""
        # Keys of records that are not written, and are no error.
        source_columns = {
            each.name for each in (*self.source.inferred_columns, *self.source.list_extra_columns())
        }
        names = [column.name for column in self.columns]
        tokens = self.spec.tokens
        if tokens is not None:
            names = [text_column(self.source, tokens.text)]
        decoded, is_whole = frozenset(self.spec.encodings), False
        if isinstance(self.source, FormatInput):
            decoded = self.source.decoded_columns
            is_whole = not decoded and self.source.data.columns.names == tuple(names)
        return ReadSpec(
            source=self.source,
            part_size=self.part_size or _part_size(self.source.size),
            max_sample_size=self.max_shard_size,
            names=tuple(names),
            encodings=tuple(column.encoding for column in self.columns),
            requested=frozenset(self.spec.encodings),
            decoded=decoded,
            dropped=frozenset(source_columns - set(names)) | {*self.spec.drop},
            splits=self.splits,
            shares=tuple(self.spec.split.values()),
            merges_splits=self.spec.merge_splits,
            nulls=frozenset(self.spec.null),
            fills=tuple(self.spec.fill.get(column.name) for column in self.columns),
            key=self.key,
            tokens=tokens,
            limit=self.spec.limit,
            skip_bad=self.spec.on_error == "skip",
            checkpoint=self.checkpoint(),
            lengths=self.spec.lengths if tokens is None else None,
            is_whole=is_whole,
        )

    def identity(self) -> dict[str, Any]:
        """Return everything that decides the output, as JSON; a resumed conversion compares it."""
        return {
            "version": _PLAN_VERSION,
            "source": self.source.name,
            "source kind": self.source.title,
            "source content": self.source.fingerprint(),
            "columns": {column.name: column.encoding for column in self.columns},
            "options": self.spec.identity(),
        }


def prepare(
    source: Any,
    out: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Conversion:
    """Recognise a source and infer its columns; nothing is written.

    - ``source``, ``out``, ``options``: The arguments of `mds.convert`.
    - ``storage_options`` (Mapping[str, Any] | None): Settings of the stores of both. They travel in
      the URLs, so no plan and no record of the work folder has them.

    Raises SourceError, ConfigError and FileExistsError.
    """
    spec = parse_spec(**options)
    out = Url(os.path.expanduser(os.fspath(out)), storage_options)
    if not isinstance(source, (str, os.PathLike)):
        refuse_storage_options(storage_options, out)
        return _prepare(_open_samples(source, spec), out, spec)
    source = os.fspath(source)
    refuse_storage_options(storage_options, out, *([source] if "://" in source else []))
    if "://" in source and (is_local(out) or scheme_of(source) == scheme_of(out)):
        source = Url(source, storage_options)
    if spec.keep_shards:
        _check_keeps_shards(spec)
        files = FormatInput.open_kind(source, spec, is_counted=True)
        note_left_out(files)
        files.keep_shards()
        files.name = redact(source)
        return _prepare(files, out, spec)
    # The machines of a cluster have other working folders, so they need an absolute path.
    return _prepare(
        open_input(source if spec.engine == "local" else _absolute(source), spec), out, spec
    )


#: Options of `convert` that change neither shards nor samples, nor how they are read.
_KEEP_SHARDS_OPTIONS = {
    *("format", "columns", "compression", "hashes", "overwrite", "durable", "keep_shards"),
    *("num_workers", "engine", "resume", "work", "merge_splits"),
}


def _check_keeps_shards(spec: ConvertSpec) -> None:
    """Raise ConfigError for options that would change shards or samples."""
    for field in dataclasses.fields(spec):
        is_default = getattr(spec, field.name) == getattr(ConvertSpec(), field.name)
        if not is_default and field.name not in _KEEP_SHARDS_OPTIONS:
            option = {"tokens": "tokenizer"}.get(field.name, field.name.replace("_", "-"))
            raise ConfigError(
                f"--keep-shards keeps shards and samples unchanged, so --{option} cannot be used "
                "with it."
            )


def _open_samples(source: Any, spec: ConvertSpec) -> Input:
    """Open a source that is no path. Raises ConfigError if its shards cannot be kept."""
    from mds.writers.convert._inputs.samples import open_samples

    if spec.keep_shards:
        raise ConfigError("keep_shards=True needs files in a known format: give their path or URL.")
    return open_samples(source, spec)


def _prepare(opened: Input, out: str, spec: ConvertSpec) -> Conversion:
    """Return the plan of the conversion of an open source. Raises ConfigError."""
    if spec.split and (own := _own_splits(opened, spec)):
        raise ConfigError(
            f"the source has its own splits ({', '.join(own)}); leave out split, or merge them "
            "with --merge-splits."
        )
    if spec.merge_splits and not opened.list_splits():
        raise ConfigError(
            f"merge_splits=True has no effect: {opened.name} has no splits, such as folders named "
            "train and test. Leave it out."
        )
    columns = choose_columns(opened, spec)
    if note := describe_others(columns):
        opened.notes.append(note)
    if spec.lengths is not None:
        # Raises if the column has no arrays, or does not exist.
        length_function({column.name: column.encoding for column in columns}, spec.lengths)
        if spec.tokens is None:
            _check_lengths(opened, spec.lengths)
    _check_apart(opened, out)
    limit = spec.size_limit or 0
    if 0 < limit < _TINY_SHARD:
        opened.notes.append(
            f"a shard of {format_bytes(limit)} holds only one or two samples; shards of 1 to 256 "
            "MB are read fastest (--size-limit)"
        )
    elif limit and limit < _SMALL_SHARD and opened.size > _MANY_SHARDS * limit:
        opened.notes.append(
            f"shards of {format_bytes(limit)} make about {opened.size // limit:,} files of this "
            "source; shards of 1 to 256 MB are read fastest (--size-limit)"
        )
    key = _key(opened, spec)
    if isinstance(opened, FormatInput):
        _choose_read_columns(opened, columns, key, spec)
    return Conversion(opened, columns, key, out, spec)


def _choose_read_columns(
    source: FormatInput, columns: Sequence[Column], key: str | None, spec: ConvertSpec
) -> None:
    """Have the files read with the columns that are written, or that decide what is written."""
    encodings = {column.name: column.encoding for column in source.inferred_columns}
    names = {column.name for column in columns}
    decoded = {
        column.name
        for column in columns
        if column.encoding != encodings.get(column.name) or column.name in spec.fill
    }
    if spec.tokens is not None:
        name, _ = split_path(text_column(source, spec.tokens.text), encodings)
        names = decoded = {name}
    if spec.split and key is not None:
        names, decoded = names | {key}, decoded | {key}
    source.choose(
        sorted(names),
        decoded=frozenset(decoded),
        filled=spec.fill,
        dropped=frozenset(spec.drop),
        has_chosen=bool(spec.columns or spec.tokens),
    )


def _check_lengths(source: Input, column: str) -> None:
    """Raise ConfigError if the first value of a column of `json` has no length."""
    if {"json"}.isdisjoint(c.encoding for c in source.inferred_columns if c.name == column):
        return
    values = (decoded(record.get(column)) for record in source.probe())
    value = next((value for value in values if value is not None), None)
    is_list = isinstance(value, (list, tuple))
    if value is not None and not (
        is_list and all(isinstance(item, (int, float)) for item in value)
    ):
        raise ConfigError(
            f"column {column!r} has the value {shown(value)}, but only arrays and lists of numbers "
            "have a length. Name another column with --lengths."
        )


def _own_splits(source: Input, spec: ConvertSpec) -> tuple[str, ...]:
    """Return the splits that the source has itself, unless they are merged."""
    return () if spec.merge_splits else tuple(source.list_splits())


def _part_size(source_size: int) -> int:
    """Return the bytes of a part, given those of the source."""
    # About 64 parts: many make progress and resuming finer, but each has a fixed cost.
    return min(_MAX_PART, max(_MIN_PART, source_size // 64))


def choose_columns(source: Input, spec: ConvertSpec) -> tuple[Column, ...]:
    """Return the columns to write, sorted by name, after the options are applied."""
    inferred = {column.name: column for column in source.inferred_columns}
    if not inferred:
        bad = source.find_bad_record()
        why = f" The first record is bad: {bad}." if bad else " It is empty."
        raise SourceError(f"{source.name}: there are no records to convert.{why}")
    # Columns that are written only on request.
    extras = {column.name: column for column in source.list_extra_columns()}
    if spec.tokens is not None:
        text = text_column(source, spec.tokens.text)
        check_column(spec.tokens)
        end = load_tokenizer(spec.tokens.tokenizer, spec.tokens.end).describe_end()
        note = (
            f"blocks of {spec.tokens.block} of the column {text!r}, tokenizer "
            f"{spec.tokens.tokenizer}, {end}"
        )
        return (Column("tokens", spec.tokens.column, "", note),)
    known_columns = {*inferred, *extras, *spec.encodings}
    for name in (*spec.columns, *spec.drop):
        if name in known_columns:
            continue
        if name in spec.drop and source.has_late_keys:
            source.notes.append(f"none of the first records has the key {name!r}")
        else:
            raise ConfigError(
                f"there is no column {name!r}.{did_you_mean(name, inferred)} The columns are "
                f"{', '.join(sorted(inferred))}."
            )
    # --columns also chooses extra columns, --encodings changes encodings or adds columns.
    columns = inferred | {name: extras[name] for name in spec.columns if name in extras}
    for name, encoding in spec.encodings.items():
        if source.is_text and name not in {*inferred, *extras}:
            raise ConfigError(
                f"there is no column {name!r}.{did_you_mean(name, inferred)} The columns are "
                f"{', '.join(sorted(inferred))}."
            )
        before = inferred.get(name) or extras.get(name) or Column(name, "")
        columns[name] = replace(before, encoding=encoding, note="as requested")
    columns = {
        name: column
        for name, column in columns.items()
        if name not in spec.drop and (not spec.columns or name in spec.columns)
    }
    if not columns:
        raise ConfigError("no column remains to write: drop= and columns= leave out all of them.")
    for name in spec.fill:
        if name not in columns:
            raise ConfigError(
                f"fill={name!r} is not a column. The columns are {', '.join(columns)}."
            )
        column = columns[name]
        if name not in spec.encodings and column.encoding.startswith("optional["):
            # No value is missing after the replacement.
            plain = column.encoding[len("optional[") : -1]
            columns[name] = replace(column, encoding=plain, note=f"{column.note}: filled")
    for name in spec.describe:
        if name not in columns:
            raise ConfigError(
                f"describe={name!r} is not a column.{did_you_mean(name, columns)} The columns are "
                f"{', '.join(columns)}."
            )
    if spec.portable:
        chosen = portable_columns(columns.values(), spec.encodings)
        columns = {column.name: column for column in chosen}
    for column in columns.values():
        parse_encoding(column.encoding)
    return tuple(columns[name] for name in sorted(columns))


def text_column(source: Input, requested: str | None) -> str:
    """Return the column whose text becomes tokens, or a path in a column ("messages.content").

    - ``requested`` (str | None): The choice of the user; None: the only likely column. The user
      must choose if messages would be left out.

    Raises ConfigError if there is no such text.
    """
    encodings = {column.name: column.encoding for column in source.inferred_columns}
    names = [name for name, encoding in encodings.items() if encoding in _TEXT_ENCODINGS]
    if requested in names:
        return requested
    # Columns that may have text inside lists and dicts, or only sometimes.
    mixed = [name for name, encoding in encodings.items() if encoding == "json"]
    paths = list_text_paths(source.probe(), mixed)
    if requested is not None:
        column, _ = split_path(requested, encodings)
        if requested not in paths and column in (*mixed, *names):
            ours = [path for path in paths if split_path(path, encodings)[0] == column]
            raise ConfigError(
                f"the first records have no text at {requested!r}. Name another place with "
                f"--text-column: {', '.join(ours or [*names, *paths])}."
            )
        if column not in encodings:
            raise ConfigError(
                f"there is no column {requested!r}; the columns of text are "
                f"{', '.join([*names, *paths]) or 'none'}."
            )
        return requested  # perhaps bytes that are text; another value is an error when it is read
    names += [path for path in paths if path in mixed]
    messages = [path for path in paths if is_message_path(path)]
    if not messages:
        for name in ("text", "content", "document"):
            if name in names:
                return name
        if len(names) == 1:
            return names[0]
    choices = [*names, *messages]
    way = (
        f" {messages[0]} joins the texts of all messages by line ends; for a template, see "
        "docs/recipes/instructions.md."
        if messages
        else ""
    )
    raise ConfigError(
        f"tokens need one column of text, and the source has {', '.join(choices) or 'none'}. Name "
        f"one with --text-column.{way}"
    )


def _absolute(place: str) -> str:
    """Return an absolute path for a local path, and other places as they are."""
    is_path = not is_hub_name(place) and is_local(place) and os.path.lexists(local_path(place))
    return os.path.abspath(local_path(place)) if is_path else place


def _key(source: Input, spec: ConvertSpec) -> str | None:
    """Return the column that decides the split. Raises ConfigError if there is none."""
    if spec.split_key is None:
        return source.key
    names = {column.name for column in (*source.inferred_columns, *source.list_extra_columns())}
    if spec.split_key not in names:
        raise ConfigError(
            f"split_key={spec.split_key!r} is not a column. The columns are "
            f"{', '.join(sorted(names))}."
        )
    return spec.split_key


def _check_apart(source: Input, out: str) -> None:
    """Raise ConfigError if the output is inside the source."""
    local = open_store(out).local_path
    if local is None:
        return
    ours, theirs = os.path.realpath(local), os.path.realpath(source.name)
    if ours == theirs or ours.startswith(theirs + os.sep):
        raise ConfigError(
            f"the output {redact(out)} is inside the source {redact(source.name)}; a second "
            "conversion would read it as data. Choose another folder."
        )
