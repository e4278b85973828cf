"""Inputs by name, and the input that a path, URL or name is.

`register_input` adds an input under a name for ``--format``; so does an entry point of the group
``mds.inputs``. Names of formats (`mds.formats`) are names of sources too: a word means the same
files for `mds.convert` and for a dataset that reads them in place.

`open_input` asks each input whether it recognizes a path; files are of the format that
`mds.formats._detect` finds. ``format`` overrules all of it.
"""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Mapping, Sequence

from mds._arguments import did_you_mean
from mds._index.table import explain_missing_index
from mds._lazy_imports import Registry, is_class, registers
from mds._shardfile.layout import INDEX_NAME, is_shard_name
from mds.errors import ConfigError, SourceError
from mds.formats._names import is_wanted, walk
from mds.formats._registry import BUILTIN_FORMATS, format_names, other_word
from mds.storage._url import is_local, local_path, redact
from mds.writers.convert._inputs.base import Input, InputOptions
from mds.writers.convert._inputs.format_input import FormatInput
from mds.writers.convert._inputs.huggingface import HuggingFaceInput, is_hub_name
from mds.writers.convert._inputs.mds import MdsInput

#: Files of a folder that are looked at for datasets of MDS.
_LOOKED_AT = 10_000
#: Inputs by name. The order matters: the first one that recognises a source is used.
inputs: dict[str, type[Input]] = {
    "hf": HuggingFaceInput,
    "mds": MdsInput,
}
_inputs: Registry[type[Input]] = Registry(
    "input",
    inputs,
    frozenset(inputs),
    lambda kind: is_class(kind, Input),
    "inherit mds.writers.convert.Input, and define its abstract methods",
    "InputContract",
)


@registers
def register_input(name: str, input: type[Input], *, replace: bool = False) -> None:  # noqa: A002
    """Make an input available as ``--format name``; also a decorator, without ``input``.

    - ``name`` (str): Its name.
    - ``input`` (type[Input]): The class. `mds.testing.InputContract` tests it. For a kind of files,
      write a format instead, and call `mds.formats.register_format`.
    - ``replace`` (bool, default False): Whether the name may be taken; see docs/contributing.md.

    Only the process that plans a conversion has to register it. For the commands, name the class in
    an entry point of the group ``mds.inputs``. Raises ConfigError for a name that is taken, and for
    another object.

    >>> @register_input("database")  # doctest: +SKIP
    ... class Database(Input): ...
    """
    if name in BUILTIN_FORMATS and not replace:
        raise ConfigError(
            f"the input {name!r} is built in. It reads files of this format: choose another name, "
            "or replace it with replace=True."
        )
    _inputs.add(name, input, replace=replace)


def input_names() -> list[str]:
    """Return the names of all inputs; those of installed packages come last.

    >>> input_names()[:2]
    ['hf', 'mds']
    """
    return _inputs.names()


def source_names() -> list[str]:
    """Return what ``--format`` may be: the names of all inputs, and of formats without an input."""
    names = input_names()
    return [*names, *(each for each in format_names() if each not in names)]


def find_input(name: str) -> type[Input]:
    """Return the input with this name, or the input that reads the format with this name.

    Raises ConfigError if there is neither.
    """
    registered = _inputs.find(name)
    if registered is not None:
        return registered
    known_names = source_names()
    if name in known_names:
        return FormatInput
    native_name = other_word(name)
    if native_name is not None:
        raise ConfigError(f"there is no format {name!r}: write {native_name!r}.")
    raise ConfigError(
        f"there is no format {name!r}.{did_you_mean(name, known_names)} The formats are "
        f"{', '.join(known_names)}."
    )


def all_inputs() -> dict[str, type[Input]]:
    """Return every input by its name, with those of installed packages. Raises ConfigError."""
    return {name: find_input(name) for name in input_names()}


# ---------------------------------------------------------------------- detection

#: Singular of each reason for which a listing leaves out files, and of each kind of link.
_SINGULAR = {
    "broken links": "broken link",
    "empty files": "empty file",
    "files of another kind": "file of another kind",
    "files that no table lists": "file that no table lists",
    "files without a partner": "file without a partner",
    "hidden names": "hidden name",
    "links of other users to files": "link of another user to a file",
    "links of other users to folders": "link of another user to a folder",
    "links to a folder above": "link to a folder above",
    "links to files": "link to a file",
    "links to folders": "link to a folder",
    "names that begin with _": "name that begins with _",
    "pipes, sockets or devices": "pipe, socket or device",
}


def open_input(path: str, options: InputOptions) -> Input:
    """Open the input at a path or a URL, or of a name after ``hf:``.

    Raises SourceError if the source does not exist or cannot be read, and ConfigError for an
    unknown kind and for options that the input does not take.
    """
    opened = _open(path, options)
    for option in ("labels", "config", "source_split", "encoding", "no_header"):
        if getattr(options, option) not in (None, False) and option not in opened.takes:
            raise ConfigError(
                f"--{option.replace('_', '-')} does not apply to {path} ({opened.title}). Leave "
                "it out, or name the format of the source with --format."
            )
    if options.null and "null" not in opened.takes:
        raise ConfigError(
            f"--null applies to cells of CSV and TSV files, but {path} is {opened.title}."
        )
    opened.name, opened.nulls = redact(path), options.null
    note_left_out(opened)
    return opened


def note_left_out(opened: Input) -> None:
    """Add a note that counts the files of the folder that are left out, if there are any."""
    if not isinstance(opened, FormatInput):
        return
    if omitted := opened.left_out():
        opened.notes.append(f"left out of the folder: {_describe_counts(omitted)}")
    if followed := opened.followed():
        opened.notes.append(f"followed: {_describe_counts(followed)}")


def _describe_counts(counts: Mapping[str, tuple[int, str]]) -> str:
    """Return counts with an example as text: "2 broken links (such as a.jpg), 1 hidden name (.x)".

    ``counts`` has number and first key by reason.
    """
    return ", ".join(
        f"{count:,} {reason} (such as {example})"
        if count > 1
        else f"1 {_SINGULAR.get(reason, reason)} ({example})"
        for reason, (count, example) in sorted(counts.items())
    )


def _open(path: str, options: InputOptions) -> Input:
    """Open an input by its name, else by the first input that recognizes the path, else files."""
    if is_hub_name(path):  # also hf:/folder, which is no URL without a slash
        return HuggingFaceInput.open(path, options)
    place = local_path(path) if path and is_local(path) else path
    if isinstance(options.format, str):
        chosen_input = find_input(options.format)
    elif options.format is not None:  # a format with its settings
        chosen_input = FormatInput
    else:
        chosen_input = next(
            (each for each in all_inputs().values() if each.recognizes(place)), FormatInput
        )
    if chosen_input is not FormatInput:
        return chosen_input.open(place, options)
    try:
        return FormatInput.open(place, options)
    except (ConfigError, SourceError):
        if os.path.isdir(place):
            _explain_folder(place, options)
        raise


def _explain_folder(path: str, options: InputOptions) -> None:
    """Raise SourceError for a folder without files, or with datasets of MDS below it."""
    names = (info.key for info in walk(path))
    wanted_names = (name for name in names if is_wanted(name, options.include, options.exclude))
    first = [*itertools.islice(wanted_names, _LOOKED_AT)]
    if not first:
        missing = "file that matches" if options.include or options.exclude else "file to convert"
        raise SourceError(f"{path}: the folder holds no {missing}; there is nothing to write.")
    _refuse_shards(path, first)


def _refuse_shards(root: str, names: Sequence[str]) -> None:
    """Raise SourceError if there are MDS datasets below a folder that has no index itself.

    - ``root`` (str): The folder; ``names`` (Sequence[str]): keys of files in it.
    """
    shards = [
        name
        for name in names
        if name.rpartition("/")[2].startswith("shard.") and is_shard_name(name)
    ]
    # The folder of each dataset; other programs write shard.00000.csv, too, but no index.
    folders = {name.rpartition("/")[0] for name in shards if ".mds" in name[-10:]}
    if not folders and shards:
        known = {*names}
        folders = {
            f for f in (n.rpartition("/")[0] for n in shards) if f"{f}/{INDEX_NAME}" in known
        }
    if "" in folders:
        raise SourceError(f"{root}: there is no index.{explain_missing_index(root)}")
    if folders:
        listed = ", ".join(sorted(folders)[:5]) + (", ..." if len(folders) > 5 else "")
        raise SourceError(
            f"{root}: there are MDS datasets in its folders {listed}. Give one of them, or "
            f"merge parts of one dataset first: mds merge {shlex.quote(root)}"
        )
