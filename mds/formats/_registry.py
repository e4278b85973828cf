"""Formats by name and by the endings of their files; users can register their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from mds._arguments import did_you_mean
from mds._lazy_imports import Registry, is_class, registers
from mds.errors import ConfigError
from mds.formats._base import Format
from mds.formats._names import TEXTS
from mds.formats._unpack import packed_endings


class BuiltinFormat(NamedTuple):
    """A format of this package, whose module is imported when the format is used.

    - ``module``, ``class_name``: where its class is.
    - ``endings``: the endings of the class, known without importing it.
    - ``is_detected``: whether files with such endings are read in this format without ``format=``.
    """

    module: str
    class_name: str
    endings: tuple[str, ...] = ()
    is_detected: bool = True


#: The only list of this package's formats.
BUILTIN_FORMATS = {
    "arrow": BuiltinFormat("arrow", "Arrow", (".arrow", ".feather", ".ipc")),
    "audio": BuiltinFormat("audio", "AudioFiles", (".flac", ".opus", ".wav", ".mp3", ".ogg")),
    "csv": BuiltinFormat("csv", "Csv", packed_endings(".csv", ".tsv")),
    "delta": BuiltinFormat("delta", "Delta"),
    "files": BuiltinFormat("raw_files", "RawFiles"),
    "iceberg": BuiltinFormat("iceberg", "Iceberg", (".metadata.json",)),
    "images": BuiltinFormat(
        "images",
        "ImageFiles",
        (".jpg", ".jpeg", ".jpe", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    ),
    "jsonl": BuiltinFormat("lines", "JsonLines", packed_endings(".jsonl", ".ndjson", ".json")),
    "lines": BuiltinFormat("lines", "TextLines", packed_endings(".txt"), is_detected=False),
    "megatron": BuiltinFormat("megatron", "Megatron", (".bin",), is_detected=False),
    "metadata": BuiltinFormat("metadata", "MetadataFiles"),
    "paired": BuiltinFormat("paired_files", "PairedFiles"),
    "parquet": BuiltinFormat("parquet", "Parquet", (".parquet", ".parq", ".pq")),
    "tar": BuiltinFormat("tar", "Tar", (*packed_endings(".tar"), ".tgz")),
    "text": BuiltinFormat("text_files", "TextFiles", packed_endings(*TEXTS)),
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
_CONVERTED = frozenset(("hf",))
#: Names in states and indexes of formats that were renamed, with their names today.
_RECORDED_NAMES = {"text": "lines", "documents": "text"}
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
    ['arrow', 'audio', 'csv', 'delta', 'files']
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
        raise ConfigError(
            f"format={name!r} cannot be read in place; mds.convert(source, out, format={word!r}) "
            f"converts such files."
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


def known_formats() -> list[str]:
    """Return the names of the built-in and the registered formats, without installed packages."""
    return [*dict.fromkeys([*BUILTIN_FORMATS, *_registry.entries])]


def endings_of(name: str) -> tuple[str, ...]:
    """Return the endings of a format, without importing a built-in one."""
    is_registered = name in _registry.entries or name not in BUILTIN_FORMATS
    return find_format(name).endings if is_registered else BUILTIN_FORMATS[name].endings
