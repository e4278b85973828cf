"""What is this? A path or a URL to the source that reads it.

A file is known by its ending. A folder is known by what datasets leave in it (index.json,
dataset_info.json), else by the endings of its files, when they are all of a kind; a folder of
mixed files is stored file by file, and says so. `kind` overrules all of it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from mds.errors import ConfigError, SourceError
from mds.storage.url import is_local, local_path
from mds.writers.convert.files import AudioSource, FilesSource, TextSource
from mds.writers.convert.images import ENDINGS as IMAGES
from mds.writers.convert.images import ClassesSource, ImagesSource, LabelledSource
from mds.writers.convert.jsonl import JsonLinesSource, JsonListSource, is_list
from mds.writers.convert.lines import TextLinesSource
from mds.writers.convert.listing import Listing, ending
from mds.writers.convert.source import Bad, Source

if TYPE_CHECKING:
    from mds.writers.convert.spec import ConvertSpec

KINDS = {
    "images": "images, with a class per folder, a table of labels, or neither",
    "audio": "sound files",
    "text": "text files, each a document",
    "lines": "text files, each line a sample",
    "jsonl": "JSON lines, or a JSON list",
    "csv": "CSV or TSV",
    "parquet": "Parquet or Arrow",
    "webdataset": "WebDataset tars",
    "hf": "a Hugging Face dataset, saved to disk or by name",
    "mds": "an MDS dataset",
    "files": "any files",
}

_GROUPS = {
    "audio": {".wav", ".flac", ".mp3", ".ogg", ".opus"},
    "jsonl": {".jsonl", ".ndjson", ".json"},
    "csv": {".csv", ".tsv"},
    "parquet": {".parquet", ".pq", ".arrow", ".feather", ".ipc"},
    "webdataset": {".tar", ".tgz"},
    "text": {
        *(".txt", ".text", ".md", ".rst", ".tex", ".html", ".htm", ".xml", ".css", ".srt", ".vtt"),
        *(".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".java", ".kt", ".js", ".jsx"),
        *(".ts", ".tsx", ".go", ".rs", ".rb", ".php", ".pl", ".sh", ".sql", ".r", ".jl", ".scala"),
        *(".swift", ".lua", ".m", ".cs", ".hs", ".ml", ".ex", ".erl", ".clj", ".lisp", ".el"),
        *(".toml", ".yaml", ".yml", ".ini", ".cfg"),
    },
    "images": set(IMAGES),
}
_KIND_OF = {each: kind for kind, endings in _GROUPS.items() for each in endings}
#: Files that describe a dataset rather than belong to it.
_COMPANIONS = ("readme", "license", "licence", "changelog", "citation", "dataset_info", "notice")


def open_source(path: str, spec: ConvertSpec) -> Source:
    """The source for a path, a URL, or a name after ``hf:``.

    Raises SourceError when nothing is there or it cannot be read, ConfigError for an unknown kind.
    """
    source = _open(path, spec)
    source.name = path
    return source


def _open(path: str, spec: ConvertSpec) -> Source:
    if spec.kind is not None and spec.kind not in KINDS:
        raise ConfigError(
            f"there is no kind {spec.kind!r} of source. Known are {', '.join(KINDS)}."
        )
    if path.startswith("hf:") and not path.startswith("hf://"):
        return _hub(path.removeprefix("hf:"), spec)
    if not is_local(path):
        return _mds(path, spec)
    path = os.path.expanduser(local_path(path)) if path else path
    if spec.kind == "hf" and not os.path.exists(path):
        return _hub(path, spec)
    if spec.kind is None and os.path.isdir(path):
        if os.path.isfile(os.path.join(path, "index.json")):
            return _mds(path, spec)
        if any(os.path.isfile(os.path.join(path, name)) for name in _SAVED):
            return _hub(path, spec)
    if spec.kind in ("mds", "hf"):
        return (_mds if spec.kind == "mds" else _hub)(path, spec)
    listing = Listing.scan(path, spec.include, spec.exclude)
    kind, listing, note = (spec.kind, listing, "") if spec.kind else _kind(listing)
    source = _MAKERS[kind](listing, spec)
    source.notes += [note] if note else []
    if listing.left_out:
        counts = ", ".join(f"{count:,} {what}" for what, count in sorted(listing.left_out.items()))
        source.notes.append(f"passed over in the folder: {counts}")
    return source


#: What `datasets` leaves in a folder that it saved.
_SAVED = ("state.json", "dataset_dict.json")


def _kind(listing: Listing) -> tuple[str, Listing, str]:
    if os.path.isfile(listing.root) or len(listing) == 1:
        return _KIND_OF.get(_plain(listing.names[0]), "files"), listing, ""
    own = [name for name in listing.names if not _is_companion(name)]
    kinds = Counter(_KIND_OF.get(_plain(name), "files") for name in own)
    tables = kinds["csv"] + kinds["jsonl"]
    if kinds["images"] and tables == 1 and set(kinds) <= {"images", "csv", "jsonl"}:
        return "images", listing, ""
    if len(kinds) == 1:
        left = len(listing) - len(own)
        note = f"{left} file(s) about the data ({_companions(listing)}) left out" if left else ""
        return next(iter(kinds)), listing.only(own) if left else listing, note
    counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
    note = (
        f"the folder is mixed ({counts}): every file is stored as it is. Choose some with "
        "--include '*.txt', or say what they are with --as"
    )
    return "files", listing, note


def _plain(name: str) -> str:
    full = ending(name)
    return full if full in _KIND_OF else os.path.splitext(full)[0]


def _is_companion(name: str) -> bool:
    return "/" not in name and name.lower().startswith(_COMPANIONS)


def _companions(listing: Listing) -> str:
    return ", ".join(name for name in listing.names if _is_companion(name))


def _images(listing: Listing, spec: ConvertSpec) -> Source:
    table = spec.labels or _table(listing)
    if table is not None:
        return LabelledSource(listing, table, _rows(listing, table))
    pictures = [name for name in listing.names if ending(name) in IMAGES]
    # Pictures beside folders of pictures have no class; their paths then tell what there is.
    if pictures and all("/" in name for name in pictures):
        return ClassesSource(listing)
    return ImagesSource(listing)


def _table(listing: Listing) -> str | None:
    found = [name for name in listing.names if _plain(name) in (".csv", ".tsv", ".jsonl")]
    return found[0] if len(found) == 1 else None


def _rows(listing: Listing, table: str) -> list[dict[str, object]]:
    from mds.writers.convert.delimited import DelimitedSource

    if not os.path.isfile(listing.path(table)):
        raise SourceError(f"{listing.path(table)}: there is no such table of labels.")
    one = listing.only([table])
    source = JsonLinesSource(one) if table.endswith("l") else DelimitedSource(one)
    rows = []
    for part in source.parts(1 << 40):
        for mark, row in source.read(part):
            if isinstance(row, Bad):
                raise SourceError(f"{source.place(part, mark)}: {row.why}.")
            rows.append(row)
    return rows


def _json(listing: Listing, spec: ConvertSpec) -> Source:
    del spec
    lists = [name for name in listing.names if is_list(listing.path(name))]
    if lists and len(lists) < len(listing):
        raise SourceError(
            f"{listing.root}: some files are JSON lists ({lists[0]}), others are lines. Convert "
            "them one by one, or choose with --include."
        )
    return JsonListSource(listing) if lists else JsonLinesSource(listing)


def _delimited(listing: Listing, spec: ConvertSpec) -> Source:
    from mds.writers.convert.delimited import DelimitedSource

    del spec
    return DelimitedSource(listing)


def _arrow(listing: Listing, spec: ConvertSpec) -> Source:
    from mds.writers.convert.arrow import ArrowSource

    del spec
    return ArrowSource(listing)


def _tars(listing: Listing, spec: ConvertSpec) -> Source:
    from mds.writers.convert.tars import TarSource

    del spec
    return TarSource(listing)


def _mds(path: str, spec: ConvertSpec) -> Source:
    from mds.writers.convert.dataset import DatasetSource

    return DatasetSource(path, re_encode=frozenset(spec.columns))


def _hub(path: str, spec: ConvertSpec) -> Source:
    from mds.writers.convert.hub import HubSource

    return HubSource(path, config=spec.config, split=spec.source_split)


_MAKERS: dict[str, Callable[[Listing, ConvertSpec], Source]] = {
    "images": _images,
    "audio": lambda listing, _: AudioSource(listing),
    "text": lambda listing, _: TextSource(listing),
    "lines": lambda listing, _: TextLinesSource(listing),
    "jsonl": _json,
    "csv": _delimited,
    "parquet": _arrow,
    "webdataset": _tars,
    "files": lambda listing, _: FilesSource(listing),
}
