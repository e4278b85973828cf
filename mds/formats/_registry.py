"""Formats by name and by the endings of their files; users can register their own."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from mds._arguments import did_you_mean
from mds._lazy_imports import Registry, is_class, registers
from mds._shardfile.layout import INDEX_NAME
from mds.errors import ConfigError
from mds.formats._base import Format
from mds.formats._unpack import packed_endings
from mds.storage._url import is_local, local_path, redact, reveal


class BuiltinFormat(NamedTuple):
    """A format of this package, whose module is imported when the format is used.

    - ``module``, ``class_name``: where its class is.
    - ``endings``: the endings of the class, known without importing it.
    - ``is_detected``: whether a folder with such files is read in this format without ``format=``;
      False for endings that other datasets use as well.
    """

    module: str
    class_name: str
    endings: tuple[str, ...] = ()
    is_detected: bool = True


#: The only list of this package's formats.
BUILTIN_FORMATS = {
    "arrow": BuiltinFormat("arrow", "Arrow", (".arrow", ".feather", ".ipc")),
    "delta": BuiltinFormat("delta", "Delta"),
    "files": BuiltinFormat("raw_files", "RawFiles"),
    "iceberg": BuiltinFormat("iceberg", "Iceberg", (".metadata.json",)),
    "images": BuiltinFormat(
        "images",
        "ImageFiles",
        (".jpg", ".jpeg", ".jpe", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
        is_detected=False,
    ),
    "jsonl": BuiltinFormat("lines", "JsonLines", packed_endings(".jsonl", ".ndjson")),
    "lines": BuiltinFormat("lines", "TextLines", packed_endings(".txt"), is_detected=False),
    "megatron": BuiltinFormat("megatron", "Megatron", (".bin",), is_detected=False),
    "parquet": BuiltinFormat("parquet", "Parquet", (".parquet", ".parq", ".pq")),
    "tar": BuiltinFormat("tar", "Tar", (".tar",)),
}
#: Words of other libraries for a format, with the word here. `mds.convert` has the same words.
_OTHER_WORDS = {
    **dict.fromkeys(("imagefolder", "image_folder", "image"), "images"),
    **dict.fromkeys(("json", "jsonlines", "json_lines", "ndjson"), "jsonl"),
    **dict.fromkeys(("webdataset", "wds", "tarfile", "tars"), "tar"),
    **dict.fromkeys(("txt", "textlines", "text_lines", "line"), "lines"),
    **dict.fromkeys(("audiofolder", "audio_folder", "sound", "sounds"), "audio"),
    "tsv": "csv",
    **dict.fromkeys(("pq", "parq"), "parquet"),
    **dict.fromkeys(("feather", "ipc"), "arrow"),
    **dict.fromkeys(("deltalake", "delta_lake"), "delta"),
    **dict.fromkeys(("huggingface", "hugging_face", "datasets", "hub"), "hf"),
    **dict.fromkeys(("mosaic", "mosaicml", "streaming", "shards"), "mds"),
    **dict.fromkeys(("document", "documents"), "text"),
    **dict.fromkeys(("raw", "binary", "file"), "files"),
    "indexed_dataset": "megatron",
}
#: Words for sources that `mds.convert` takes, and that are not read in place.
_CONVERTED = frozenset(("audio", "csv", "hf", "metadata", "paired", "text"))
#: Names in states and indexes of formats that were renamed, with their names today.
_RECORDED_NAMES = {"text": "lines"}
#: Most files of a folder whose endings are compared to detect its format.
_DETECTION_FILES = 1000
#: Folder that only a Delta table has.
DELTA_LOG = "_delta_log"

_registry: Registry[type[Format]] = Registry(
    "format",
    {},
    BUILTIN_FORMATS,
    lambda kind: is_class(kind, Format) and hasattr(kind, "name") and hasattr(kind, "endings"),
    "inherit mds.formats.Format, define its abstract methods, name and endings",
    "FormatContract",
)


@registers
def register_format(name: str, format: type[Format], *, replace: bool = False) -> None:  # noqa: A002
    """Make a format available as ``format=name``; also a decorator, without ``format``.

    - ``name`` (str): Its name, which is also the class attribute ``name``. States record it.
    - ``format`` (type[Format]): The class. `mds.testing.FormatContract` tests
      it.
    - ``replace`` (bool, default False): Whether the name may be taken; see docs/contributing.md.

    Installed packages name it in an entry point of the group ``mds.formats``, which worker
    processes know, too. Raises ConfigError for a name that is taken, and for another object.

    >>> @register_format("fasta")  # doctest: +SKIP
    ... class Fasta(Format): ...
    """
    if getattr(format, "name", name) != name:
        raise ConfigError(
            f"the class of the format {name!r} has the name {format.name!r}, but both must be the "
            f"same. Write name = {name!r} in the class, or register_format({format.name!r}, ...)."
        )
    _registry.add(name, format, replace=replace)


def format_names() -> list[str]:
    """Return the names of all known formats, sorted.

    >>> format_names()[:5]
    ['arrow', 'delta', 'files', 'iceberg', 'images']
    """
    return sorted(_registry.names())


def find_format(name: str) -> type[Format]:
    """Return the class of a format by its name. Raises ConfigError for an unknown name."""
    registered = _registry.find(name)
    if registered is not None:
        return registered
    if name in BUILTIN_FORMATS:
        builtin = BUILTIN_FORMATS[name]
        module = import_module(f"mds.formats._{builtin.module}")
        kind: type[Format] = getattr(module, builtin.class_name)
        return _registry.entries.setdefault(name, kind)
    known_names = ["mds", *format_names()]
    native_name = other_word(name)
    if name in _CONVERTED or native_name in _CONVERTED:
        word = native_name or name
        lines = " For a sample of each line, write format='lines'." if word == "text" else ""
        raise ConfigError(
            f"format={name!r} cannot be read in place; mds.convert(source, out, format={word!r}) "
            f"converts such files.{lines}"
        )
    if native_name is not None:
        raise ConfigError(f"there is no format {name!r}: write format={native_name!r}.")
    raise ConfigError(
        f"there is no format {name!r}.{did_you_mean(name, known_names)} The formats are "
        f"{', '.join(known_names)}."
    )


def find_recorded_format(name: str) -> type[Format]:
    """Return the class of a format by the name that a state or an index has.

    Raises ConfigError for an unknown name.
    """
    return find_format(_RECORDED_NAMES.get(name, name))


def other_word(name: str) -> str | None:
    """Return the format that a word of another library means, or None.

    >>> other_word("imagefolder")
    'images'
    """
    return _OTHER_WORDS.get(name.lower().lstrip("."))


def parse_format(format_or_name: str | Format | None) -> Format | None:
    """Return the format that an argument ``format=`` means; None is MDS.

    Raises ConfigError for an unknown name, and for a value of another type.
    """
    if format_or_name is None or isinstance(format_or_name, Format):
        return format_or_name
    if not isinstance(format_or_name, str):
        raise ConfigError(
            f"format= must be a name or a Format, got {type(format_or_name).__name__}."
        )
    return None if format_or_name == "mds" else make_format(find_format(format_or_name))


def make_format(kind: type[Format], settings: Mapping[str, str] | None = None) -> Format:
    """Create a format with settings from a command line.

    - ``kind`` (type[Format]): The class of the format.
    - ``settings`` (Mapping[str, str] | None, default None): Texts by name of the setting. Digits
      become an int where the setting can be one.

    Raises ConfigError for an unknown setting, a missing one, and an impossible value.
    """
    fields = {each.name: each for each in dataclasses.fields(kind) if each.name != "columns"}
    values: dict[str, Any] = {}
    for name, text in (settings or {}).items():
        if name not in fields:
            raise ConfigError(
                f"{kind.name} files have no setting {name!r}.{did_you_mean(name, fields)} The "
                f"settings are {', '.join(fields)}."
            )
        is_number = "int" in str(fields[name].type) and text.isascii() and text.isdigit()
        values[name] = int(text) if is_number else text
    nothing = dataclasses.MISSING
    for name, each in fields.items():
        if name not in values and each.default is nothing and each.default_factory is nothing:
            raise ConfigError(
                f"{kind.name!r} needs a setting: give format={kind.__name__}({name}=...), or --set "
                f"{name}=... on a command line."
            )
    try:
        return kind(**values)
    except TypeError as error:
        arguments = ", ".join(f"{name}={value!r}" for name, value in values.items())
        raise ConfigError(
            f"the settings {arguments} of {kind.name} files are invalid: {error}."
        ) from error


def format_of_names(names: Iterable[str], *, is_folder: bool = False) -> Format | None:
    """Return the format of files with these names, or None if no format has such endings.

    With ``is_folder`` the names are the contents of a folder, and only formats that are detected
    count. Raises ConfigError for files of several formats.
    """
    file_names = [name.lower() for name in names if not name.startswith((".", "_"))]

    def has_files(format_name: str) -> bool:
        """Whether a file has an ending of this format, and the format may be detected by that."""
        built_in = BUILTIN_FORMATS.get(format_name)
        if is_folder and built_in is not None and not built_in.is_detected:
            return False
        endings = _endings_of(format_name)
        return any(file_name.endswith(endings) for file_name in file_names)

    # Installed packages are searched last, because that takes 20 ms.
    formats = [name for name in sorted({*BUILTIN_FORMATS, *_registry.entries}) if has_files(name)]
    if file_names and not formats:
        formats = [name for name in format_names() if has_files(name)]
    if len(formats) > 1:
        format_list = " and ".join(formats)
        raise ConfigError(
            f"there are files of {format_list}; choose one with format=, or with a pattern such as "
            f"FOLDER/*{_endings_of(formats[-1])[0]}."
        )
    return find_format(formats[0])() if formats else None


def format_of_url(url: str) -> Format | None:
    """Return the format of the file or pattern that a URL ends with, or None for a folder.

    It is Tar for ``s3://bucket/*.tar`` and ``s3://bucket/{00..12}.tar``. Raises ConfigError for a
    pattern whose ending is of no format.
    """
    text = reveal(url).rstrip("/")
    # The name that a file of the pattern could have: only its ending counts.
    name = text.rpartition("/")[2].replace("*", "x").replace("{", "x")
    if ("." not in name and "*" not in text) or os.path.isdir(text):
        return None
    matching = format_of_names([name]) if name else None
    if matching is None and "*" in text and "." in name:
        endings = ", ".join(_endings_of(each)[0] for each in format_names() if _endings_of(each))
        raise ConfigError(
            f"{redact(url)!r} has a wildcard, and its ending belongs to no format. Rename the "
            f"files so that they end in one of {endings}."
        )
    if matching is None and "*" in text:
        raise ConfigError(
            f"{redact(url)!r} has a wildcard, and its ending belongs to no format; give format=, "
            f"one of {', '.join(format_names())}."
        )
    return matching


def format_of_files(url: str, *, beside_index: bool = False) -> Format | None:
    """Return the format of the files at a URL or in a local folder, or None for MDS.

    A folder with an index.json is MDS, unless ``beside_index`` is True. Raises ConfigError for a
    folder with files of several formats.
    """
    matching = format_of_url(url)
    if matching is None and is_local(url):
        if os.path.isdir(os.path.join(local_path(url), DELTA_LOG)):
            return find_format("delta")()  # not Parquet: its folder has files of other versions too
        names = list(itertools.islice(_names_below(local_path(url)), _DETECTION_FILES))
        if beside_index or INDEX_NAME not in names:
            matching = format_of_names(names, is_folder=True)
    return matching


def _names_below(folder: str) -> Iterator[str]:
    """Yield the names of all files in and below a folder, except in hidden folders."""
    for _, folders, names in os.walk(folder):
        # Assigned to the list itself: `os.walk` only enters the folders that remain in it.
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        yield from names


def _endings_of(name: str) -> tuple[str, ...]:
    is_registered = name in _registry.entries or name not in BUILTIN_FORMATS
    return find_format(name).endings if is_registered else BUILTIN_FORMATS[name].endings
