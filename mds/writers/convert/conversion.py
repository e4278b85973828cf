"""A conversion: source, columns and output put together, looked at, and run.

    parts of the source -> (engine) samples of each part -> cut -> (engine) shards -> index

The process that runs this only decides: which part comes next, and which samples share a shard.
Both follow from the source alone, so the output is the same with any number of processes, on any
engine, and after any number of interruptions.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from mds.encodings import parse_encoding
from mds.errors import ConfigError, SourceError
from mds.storage import is_local, local_path, open_store, redact
from mds.writers.convert.assemble import Output
from mds.writers.convert.part import Job
from mds.writers.convert.recognise import open_source
from mds.writers.convert.run import Progress, Summary, run
from mds.writers.convert.source import Column, Source
from mds.writers.convert.spec import ConvertSpec, parse_spec
from mds.writers.convert.tokens import check_column
from mds.writers.convert.work import NAME, Work

#: Counted up when a new version would not go on with what an old one left.
_PLAN = 1


@dataclass(frozen=True)
class Conversion:
    """What would be done. Look at it, then `run` it."""

    source: Source
    columns: tuple[Column, ...]
    #: Column that decides the split; None: all of a sample.
    key: str | None
    out: str
    spec: ConvertSpec

    def run(self, progress: Callable[[Progress], None] | None = None) -> Summary:
        """Write the dataset. ``progress`` is called after every part and shard.

        Raises RecordError for a record that cannot become a sample (unless `skip_bad`),
        FileExistsError where the output holds something, and whatever reading and writing raise.
        """
        summary = run(self.job(), self.output(), self.spec, self.identity(), progress)
        return replace(summary, out=self.out)

    @property
    def splits(self) -> tuple[str, ...]:
        """Folders below the output; '' is the output itself."""
        return tuple(self.spec.split) or tuple(self.source.splits()) or ("",)

    def work(self) -> Work:
        """The work folder: inside a local output, else in the temporary folder."""
        if self.spec.work is not None:
            return Work(os.path.abspath(self.spec.work))
        local = open_store(self.out).local_path
        if local is not None:
            return Work(os.path.join(os.path.abspath(local), NAME))
        digest = blake2b(self.out.encode(), digest_size=8).hexdigest()
        return Work(os.path.join(tempfile.gettempdir(), f"mds-convert-{os.getuid()}-{digest}"))

    def output(self) -> Output:
        """What the processes that make shards must know."""
        return Output(
            url=os.path.abspath(local_path(self.out)) if is_local(self.out) else self.out,
            splits=self.splits,
            names=tuple(column.name for column in self.columns),
            encodings=tuple(column.encoding for column in self.columns),
            compression=self.spec.compression,
            hashes=self.spec.hashes,
            size_limit=self.spec.size_limit,
            work=self.work(),
        )

    def job(self) -> Job:
        """What the processes that read parts must know."""
        offered = {each.name for each in (*self.source.found, *self.source.extras())}
        names = [column.name for column in self.columns]
        tokens = self.spec.tokens
        if tokens is not None:
            names = [text_column(self.source, tokens.text)]
        return Job(
            source=self.source,
            names=tuple(names),
            encodings=tuple(column.encoding for column in self.columns),
            asked=frozenset(self.spec.columns),
            dropped=frozenset(offered - set(names)) | {*self.spec.drop},
            splits=self.splits,
            shares=tuple(self.spec.split.values()),
            key=self.key,
            tokens=tokens,
            limit=self.spec.limit,
            skip_bad=self.spec.skip_bad,
            work=self.work(),
        )

    def identity(self) -> dict[str, Any]:
        """All that decides what is written."""
        return {
            "version": _PLAN,
            "source": self.source.name,
            "source kind": self.source.kind,
            "source content": self.source.fingerprint(),
            "columns": {column.name: column.encoding for column in self.columns},
            "options": self.spec.identity(),
        }


def prepare(source: str, out: str, **options: Any) -> Conversion:
    """Recognise a source and infer its columns; nothing is written. Options as in `convert`."""
    spec = parse_spec(**options)
    source, out = os.fspath(source), os.path.expanduser(os.fspath(out))
    # Machines of a cluster start in folders of their own.
    opened = open_source(source if spec.engine == "local" else _absolute(source), spec)
    if spec.split and opened.splits():
        raise ConfigError(
            f"the source has splits of its own ({', '.join(opened.splits())}); leave out split."
        )
    columns = choose_columns(opened, spec)
    _check_apart(opened, out)
    return Conversion(opened, columns, _key(opened, spec), out, spec)


def choose_columns(source: Source, spec: ConvertSpec) -> tuple[Column, ...]:
    """The columns that are written, sorted by name: inferred, changed and chosen as asked."""
    found = {column.name: column for column in source.found}
    if not found:
        bad = source.first_bad()
        why = f" The first one is bad: {bad}." if bad else " It is empty."
        raise SourceError(f"{source.name}: there is no record to make samples of.{why}")
    extras = {column.name: column for column in source.extras()}
    if spec.tokens is not None:
        text_column(source, spec.tokens.text)
        check_column(spec.tokens)
        note = f"blocks of {spec.tokens.block}, tokenizer {spec.tokens.tokenizer}"
        return (Column("tokens", spec.tokens.column, "", note),)
    known = {*found, *extras, *spec.columns}
    for name in (*spec.only, *spec.drop):
        if name in known:
            continue
        if name in spec.drop and source.is_open:
            source.notes.append(f"no record that was looked at has the key {name!r}")
        else:
            raise ConfigError(f"there is no column {name!r}. There are {', '.join(sorted(found))}.")
    columns = dict(found)
    for name, encoding in spec.columns.items():
        before = found.get(name) or extras.get(name) or Column(name, "")
        columns[name] = Column(name, encoding, before.example, "as asked")
    columns = {
        name: column
        for name, column in columns.items()
        if name not in spec.drop and (not spec.only or name in spec.only)
    }
    if not columns:
        raise ConfigError("no column is left to write; drop and only leave out all of them.")
    for column in columns.values():
        parse_encoding(column.encoding)
    return tuple(columns[name] for name in sorted(columns))


def text_column(source: Source, asked: str | None) -> str:
    """The column whose text becomes tokens."""
    names = [column.name for column in source.found if column.encoding == "str"]
    if asked is not None:
        if asked not in {column.name for column in source.found}:
            raise ConfigError(f"there is no column {asked!r}; text is in {', '.join(names)}.")
        return asked
    for name in ("text", "content", "document"):
        if name in names:
            return name
    if len(names) == 1:
        return names[0]
    which = f"several: {', '.join(names)}" if names else "none"
    raise ConfigError(
        f"tokens need a column of text, and there are {which}. Name one with --text-column."
    )


def _absolute(place: str) -> str:
    is_path = is_local(place) and os.path.lexists(local_path(place))
    return os.path.abspath(local_path(place)) if is_path else place


def _key(source: Source, spec: ConvertSpec) -> str | None:
    if spec.split_key is None:
        return source.key
    names = {column.name for column in (*source.found, *source.extras())}
    if spec.split_key not in names:
        raise ConfigError(
            f"split_key={spec.split_key!r} is no column. There are {', '.join(sorted(names))}."
        )
    return spec.split_key


def _check_apart(source: Source, out: str) -> None:
    local = open_store(out).local_path
    if local is None:
        return
    ours, theirs = os.path.realpath(local), os.path.realpath(source.name)
    if ours == theirs or ours.startswith(theirs + os.sep):
        raise ConfigError(
            f"the output {redact(out)} is inside the source {redact(source.name)}; a second "
            "conversion would read it as data. Choose another folder."
        )
