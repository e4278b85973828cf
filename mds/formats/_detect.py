"""Which kind of files a location has; reading in place and converting ask here.

A kind is the name of a format, such as "images". All data files of a folder must be of one kind:

    a/1.jpg  b/2.png                      images
    1.jpg  2.jpg  labels.csv              images: a table beside pictures belongs to them
    1.jpg  1.txt  2.jpg  2.txt            paired: each picture or sound has a text of its name
    a.wav  metadata.csv                   metadata: the table has a row for each sound; if it does
                                          not, the sounds are audio, and the table is left out
    x.heic  y.bin                         files: no other format reads any of them
    1.jpg  2.jpg  notes.pdf               an error, which names the kinds
    README.md  LICENSE  _SUCCESS  a.crc   companions, which do not count beside other files, and are
                                          no samples

A file or a pattern has the kind of its ending. A folder behind a network is not listed, so its
format must be given. Archives and spreadsheets, which no format reads, are refused with what to do.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mds._shardfile.layout import INDEX_NAME, is_shard_name
from mds.errors import ConfigError
from mds.formats._base import Format
from mds.formats._names import (
    FolderListing,
    has_underscore,
    is_companion,
    is_wanted,
    split_in_name,
)
from mds.formats._registry import (
    BUILTIN_FORMATS,
    DELTA_LOG,
    endings_of,
    find_format,
    format_names,
    known_formats,
)
from mds.formats._source import Files, has_pattern
from mds.storage import open_store
from mds.storage._url import is_local, join, local_path, redact, reveal

#: Kind of files that no other format reads.
ANY_FILES = "files"
#: Kinds of files that may be tables of labels, with many samples in columns.
_TABLES = frozenset(("csv", "jsonl", "parquet"))
#: Most files of a folder that are looked at.
_MOST_FILES = 100_000
#: Endings of files that no format reads, and what to do with such files.
_UNREAD = {
    **dict.fromkeys((".zip", ".7z", ".rar"), "unpack it and take the folder"),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save its sheets as CSV"),
    **dict.fromkeys(
        (".h5", ".hdf5", ".npz", ".mat", ".db", ".sqlite", ".pkl", ".pickle"),
        "write its content with MDSWriter (docs/writing.md)",
    ),
}


# --------------------------------------------------------------------- kinds of names


class Endings:
    """The kind of a file by the ending of its name, from the registry of formats.

    Installed packages with formats are looked at for the first unknown ending: that takes 20 ms.
    """

    def __init__(self) -> None:
        self._kinds = _kinds_of(known_formats())
        self._is_complete = False
        self._found: dict[str, str] = {}  # kinds of names, by what follows their first dot

    def kind_of(self, name: str) -> str:
        """Return the kind of a file: that of its longest known ending, else `ANY_FILES`."""
        suffix = name.rpartition("/")[2].partition(".")[2]
        kind = self._found.get(suffix)
        if kind is None:
            kind = self._found[suffix] = self._kind_of_suffix(suffix.lower())
        return kind

    def _kind_of_suffix(self, suffix: str) -> str:
        """Return the kind of names that end with a dot and a suffix such as "jsonl.gz"."""
        parts = suffix.split(".")
        for first in range(len(parts)):
            kind = self._kinds.get("." + ".".join(parts[first:]))
            if kind is not None:
                return kind
        if not self._is_complete:
            self._is_complete = True
            self._kinds = {**_kinds_of(format_names()), **self._kinds}
            return self._kind_of_suffix(suffix)
        return ANY_FILES


def _kinds_of(formats: Iterable[str]) -> dict[str, str]:
    """Return the kind of each ending of some formats; the first format keeps an ending."""
    kinds: dict[str, str] = {}
    for name in formats:
        if name not in BUILTIN_FORMATS or BUILTIN_FORMATS[name].is_detected:
            for ending in endings_of(name):
                kinds.setdefault(ending, name)
    return kinds


def data_names(names: Sequence[str]) -> Sequence[str]:
    """Return the names of the files that hold samples: companions do not, if there are others."""
    return [name for name in names if not is_companion(name)] or names


def kind_of_files(names: Sequence[str], location: str, endings: Endings) -> str:
    """Return the kind of the files of a folder.

    Args:
        names: Keys of the files, at least one.
        location: Path of the folder; tables beside sounds are read there.
        endings: Kinds by ending.

    Raises ConfigError for files of several kinds, and for files that no format reads.
    """
    chosen_names = data_names(names)
    # Names that begin with "_" count if there are no others.
    chosen_names = [name for name in chosen_names if not has_underscore(name)] or chosen_names
    names_of: dict[str, list[str]] = {}
    for name in chosen_names:
        names_of.setdefault(endings.kind_of(name), []).append(name)
    if len(names_of) == 1:
        (kind,) = names_of
        if kind == ANY_FILES:
            if _are_megatron(chosen_names):
                return "megatron"
            _check_readable(chosen_names, location)
        return kind
    joint_kind = _joint_kind(names_of, location)
    if joint_kind is None:
        raise _several_kinds(location, names_of)
    return joint_kind


def _are_megatron(names: Sequence[str]) -> bool:
    """Return True if all files are those of Megatron-LM: ``x.bin`` and ``x.idx``."""
    stems = {posixpath.splitext(name) for name in names}
    return {(stem, ending) for stem, _ in stems for ending in (".bin", ".idx")} == stems


def _joint_kind(names_of: Mapping[str, Sequence[str]], location: str) -> str | None:
    """Return the kind of files of several kinds that belong together; None if they do not."""
    from mds.formats._metadata import describe_sounds
    from mds.formats._paired_files import may_be_pairs

    media = {"images", "audio"} & {*names_of}
    others = [name for kind, names in names_of.items() if kind not in media for name in names]
    if len(media) != 1:
        return None
    if {*names_of} - media <= _TABLES:
        if len(others) == 1 and media == {"images"}:
            return "images"
        # Of Common Voice, those of splits are read: train.tsv and test.tsv, not validated.tsv.
        of_splits = [name for name in others if split_in_name(name.rpartition("/")[2])]
        may_join = len(others) == 1 or len(of_splits) > 1 or all(map(is_metadata, others))
        if media == {"images"} or not may_join:
            return "metadata" if may_join else None
        files = Files(open_store(location))
        if describe_sounds(others, names_of["audio"], files):
            return "metadata"
        return "audio" if len(others) == 1 else None
    return "paired" if may_be_pairs([*itertools.chain(*names_of.values())]) else None


def is_metadata(name: str) -> bool:
    """Return True for a table of metadata as Hugging Face has it, such as metadata.csv."""
    return name.rpartition("/")[2].startswith("metadata.")


# --------------------------------------------------------------------- errors


def _several_kinds(location: str, names_of: Mapping[str, Sequence[str]]) -> ConfigError:
    """Return the error for a folder with files of several kinds."""
    by_count = sorted(names_of.items(), key=lambda item: (-len(item[1]), item[0]))
    counts = ", ".join(f"{len(names):,} {kind} such as {names[0]}" for kind, names in by_count)
    choices = " or ".join(
        f"--format {kind} (format={kind!r})" for kind, _ in by_count if kind != ANY_FILES
    )
    joins = (
        " A table of labels is joined to pictures with --labels FILE (labels='FILE')."
        if "images" in names_of and _TABLES & {*names_of}
        else ""
    )
    ending = posixpath.splitext(by_count[0][1][0])[1]
    return ConfigError(
        f"{location}: the folder has files of several kinds: {counts}. Choose one with {choices}: "
        "the others are left out and counted. Or take every file as it is with --format files "
        f"(format='files'). Or choose files with a pattern, or --include '*{ending}'.{joins}"
    )


def _check_readable(names: Sequence[str], location: str) -> None:
    """Raise ConfigError if no format reads any of the files, such as archives and spreadsheets."""
    ways_out = [_UNREAD.get(posixpath.splitext(name.lower())[1]) for name in names]
    if names and all(ways_out):
        path = posixpath.join(location, names[0])
        raise ConfigError(
            f"{path}: mds does not read such files: {ways_out[0]}, or take the bytes with "
            "--format files (format='files')."
        )


def _without_shards(names: Sequence[str]) -> Sequence[str]:
    """Return the names that are no shards of MDS, such as those of a cache below the folder.

    If only companions remain, or shards are at the top of the folder, no name remains.
    """
    shards = {name for name in names if _is_mds_shard(name.rpartition("/")[2])}
    others = [name for name in names if name not in shards]
    is_dataset = any("/" not in name for name in shards) or all(map(is_companion, others))
    return [] if shards and is_dataset else others


def _is_mds_shard(base: str) -> bool:
    return base.startswith("shard.") and is_shard_name(base) and ".mds" in base[-10:]


# --------------------------------------------------------------------- locations


def format_of_url(url: str) -> Format | None:
    """Return the format of the file or pattern that a URL ends with, or None for a folder.

    It is Tar for ``s3://bucket/*.tar`` and ``s3://bucket/{00..12}.tar``. Raises ConfigError for a
    pattern whose ending is of no format.
    """
    text = reveal(url).rstrip("/")
    # The name that a file of the pattern could have: only its ending counts.
    name = text.rpartition("/")[2].replace("*", "x").replace("{", "x")
    if ("." not in name and "*" not in text) or os.path.isdir(text) or name == INDEX_NAME:
        return None
    kind = Endings().kind_of(name)
    if name.lower().endswith(".bin") and not os.path.isfile(text):
        kind = "megatron"  # whether it has an .idx is seen when it is opened
    if kind != ANY_FILES:
        return find_format(kind)()
    if "*" in text:
        raise ConfigError(
            f"{redact(url)!r} has a wildcard, and its ending belongs to no format; give format=, "
            f"one of {', '.join(format_names())}."
        )
    return None


def format_of_files(
    url: str,
    *,
    beside_index: bool = False,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    labels: str | None = None,
    listings: list[FolderListing] | None = None,
) -> Format | None:
    """Return the format of the files at a URL or in a local folder, or None for MDS.

    Args:
        url: A URL, a path or a pattern. A folder behind a network is not listed, and is MDS.
        beside_index: A folder with an index.json is not MDS.
        include: Shell patterns of the files of a folder that count; empty for all.
        exclude: Shell patterns of the files that do not.
        labels: The table of labels, beside pictures or sounds.
        listings: Gets the listing of the folder, if it is complete.

    Raises ConfigError for a folder with files of several kinds, and FormatError for pictures with
    masks or annotations, which are no classes.
    """
    matching = format_of_url(url)
    if matching is not None or not is_local(url):
        return matching
    root = local_path(url)
    if os.path.isdir(os.path.join(root, DELTA_LOG)):
        return find_format("delta")()  # not Parquet: its folder has files of other versions too
    names: Sequence[str]
    tables: list[str] = []
    folder = redact(url)
    if os.path.isfile(root):
        if _is_megatron(root):
            return find_format("megatron")()
        folder, name = os.path.split(folder.rstrip("/"))
        names = [name]
    else:
        listing = FolderListing.scan(root, _MOST_FILES)
        if listings is not None and len(listing.files) < _MOST_FILES:
            listings.append(listing)
        keys = [info.key for info in listing.files]
        names = keys
        if include or exclude:
            names = [key for key in keys if is_wanted(key, include, exclude)]
        # Tables of metadata are needed even if a pattern of ``include`` leaves them out.
        if include:
            tables = [key for key in {*keys} - {*names} if is_metadata(key)]
    is_indexed = any(name.rpartition("/")[2] == INDEX_NAME for name in names)
    names = [] if is_indexed and not beside_index else _without_shards(names)
    if not names:
        return None
    endings = Endings()
    kind = _kind_with_labels(names, endings) if labels is not None else None
    kind = kind or kind_of_files([*names, *tables], folder, endings)
    others = [name for name in names if endings.kind_of(name) != "images"]
    if kind == "images" and labels is None and not any(map(_may_be_table, others)):
        from mds.formats._images import refuse_no_classes

        refuse_no_classes(names, Files(open_store(root)))
    return _without_companions(find_format(kind)())


def _without_companions(kind: Format) -> Format:
    """Return a detected format. Companions do not count then, also among files of any kind."""
    if kind.name != ANY_FILES:
        return kind
    from mds.formats._raw_files import RawFiles

    return dataclasses.replace(kind, companions=False) if isinstance(kind, RawFiles) else kind


def _kind_with_labels(names: Sequence[str], endings: Endings) -> str | None:
    """Return the kind of files beside a table of labels: pictures, or else sounds."""
    kinds = {*map(endings.kind_of, names)}
    by_medium = {"images": "images", "audio": "metadata"}
    return next((kind for medium, kind in by_medium.items() if medium in kinds), None)


def _may_be_table(name: str) -> bool:
    """Return True for a name that a table of labels may have."""
    from mds.formats._raw_files import is_table

    return is_table(name)


def _is_megatron(path: str) -> bool:
    """Return True for a file of Megatron-LM: its index has the same name."""
    stem, ending = os.path.splitext(path)
    return ending.lower() == ".bin" and os.path.isfile(f"{stem}.idx")


def format_of_split(
    url: str, split: str, *, beside_index: bool = False, **choices: Any
) -> Format | None:
    """Return the format of the files of a split, or None for MDS; see `format_of_files`.

    Args:
        url: URL or path of the files of all splits.
        split: The argument ``split=``; '' for none.
        beside_index: A folder with an index.json is not MDS.
        choices: Further arguments of `format_of_files`.
    """
    folder = join(url, split)
    # A split that is no folder is named by files, whose format is that of all files at the URL.
    is_folder = not is_local(url) or os.path.isdir(local_path(folder))
    has_files = is_folder and not has_pattern(url)
    place = folder if has_files else url
    return format_of_files(place, beside_index=beside_index, **choices)
