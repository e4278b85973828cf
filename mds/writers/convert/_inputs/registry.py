"""Inputs by name, and detection of the input that a path, URL or name is.

`register_input` adds an input under a name for ``--format``; so does an entry point of the group
``mds.inputs``. Names of formats (`mds.formats`) are names of sources too: a word means the same
files for `mds.convert` and for a dataset that reads them in place.

`open_input` knows a file by its ending. It knows a folder by what datasets leave in it
(index.json, dataset_info.json), else by the endings of its files: if nine of ten are of one kind,
the others are left out, and a note names them. A folder of mixed files is stored file by file, with
a note; if some of them are tables or the like, nothing is guessed. ``format`` overrules all of it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping

from mds._arguments import did_you_mean
from mds._lazy_imports import Registry, is_class, registers
from mds.errors import ConfigError, SourceError
from mds.formats._registry import find_format, format_names, other_word
from mds.storage._url import is_local, local_path, redact
from mds.writers.convert._inputs.base import FileInput, Input, InputOptions
from mds.writers.convert._inputs.csv import DelimitedTextInput
from mds.writers.convert._inputs.files import AudioInput, TextFilesInput, WholeFilesInput
from mds.writers.convert._inputs.format_files import (
    AnyFormatInput,
    FormatInput,
    JsonLinesInput,
    TablesInput,
    TextLinesInput,
    WebDatasetInput,
)
from mds.writers.convert._inputs.huggingface import HuggingFaceInput, is_hub_name
from mds.writers.convert._inputs.images import ImagesInput
from mds.writers.convert._inputs.listing import Listing, ending
from mds.writers.convert._inputs.mds import MdsInput
from mds.writers.convert._inputs.media import MetadataInput, PairedFilesInput

#: Inputs by name. The order matters: the first one that recognises a source is used.
inputs: dict[str, type[Input]] = {
    "images": ImagesInput,
    "audio": AudioInput,
    "paired": PairedFilesInput,
    "metadata": MetadataInput,
    "text": TextFilesInput,
    "lines": TextLinesInput,
    "jsonl": JsonLinesInput,
    "csv": DelimitedTextInput,
    "parquet": TablesInput,
    "tar": WebDatasetInput,
    "hf": HuggingFaceInput,
    "mds": MdsInput,
    "files": WholeFilesInput,
}
_inputs: Registry[type[Input]] = Registry(
    "input",
    inputs,
    frozenset(inputs),
    lambda kind: is_class(kind, Input),
    "inherit mds.writers.convert.Input or FileInput, and define its abstract methods",
    "InputContract",
)


@registers
def register_input(name: str, input: type[Input], *, replace: bool = False) -> None:  # noqa: A002
    """Make an input available as ``--format name``; also a decorator, without ``input``.

    - ``name`` (str): Its name.
    - ``input`` (type[Input]): The class. It cannot take endings of built-in inputs.
      `mds.testing.InputContract` tests it.
    - ``replace`` (bool, default False): Whether the name may be taken; see docs/contributing.md.

    Only the process that plans a conversion has to register it. For the commands, name the class in
    an entry point of the group ``mds.inputs``. Raises ConfigError for a name that is taken, and for
    another object.

    >>> @register_input("fasta")  # doctest: +SKIP
    ... class Fasta(FileInput): ...
    """
    _inputs.add(name, input, replace=replace)


def input_names() -> list[str]:
    """Return the names of all inputs; those of installed packages come last.

    >>> input_names()[:3]
    ['images', 'audio', 'paired']
    """
    return _inputs.names()


def find_input(name: str) -> type[Input]:
    """Return the input with this name, or the input that reads the format with this name.

    Raises ConfigError if there is neither.
    """
    registered = _inputs.find(name)
    if registered is not None:
        return registered
    names = input_names()
    other_formats = [each for each in format_names() if each not in names]
    if name in other_formats:
        return _input_of_format(name)
    native_name = other_word(name)
    if native_name is not None:
        raise ConfigError(f"there is no format {name!r}: write {native_name!r}.")
    known_names = [*names, *other_formats]
    raise ConfigError(
        f"there is no format {name!r}.{did_you_mean(name, known_names)} The formats are "
        f"{', '.join(known_names)}."
    )


def _input_of_format(name: str) -> type[Input]:
    """Return the first input that reads a format, else the one that reads any format."""
    kind = find_format(name)
    for each in inputs.values():
        if issubclass(each, FormatInput) and issubclass(kind, each.reads):
            return each
    return AnyFormatInput


def all_inputs() -> dict[str, type[Input]]:
    """Return every input by its name, with those of installed packages. Raises ConfigError."""
    return {name: find_input(name) for name in input_names()}


# ---------------------------------------------------------------------- detection

#: Beginnings of the names of files that describe a dataset and hold no samples.
_COMPANIONS = ("readme", "license", "licence", "changelog", "citation", "dataset_info", "notice")

#: Singular of each reason for which a listing leaves out files.
_SINGULAR = {
    "broken links": "broken link",
    "links in a circle": "link in a circle",
    "links to folders elsewhere": "link to folders elsewhere",
    "no files": "no file",
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
    if options.null and not opened.is_text:
        raise ConfigError(
            f"--null applies to cells of CSV and TSV files, but {path} is {opened.title}."
        )
    opened.name, opened.nulls = redact(path), options.null
    if isinstance(opened, FileInput) and (omitted := opened.listing.omitted):
        counts = ", ".join(
            f"{count:,} {_SINGULAR.get(reason, reason) if count == 1 else reason}"
            for reason, count in sorted(omitted.items())
        )
        opened.notes.append(f"left out of the folder: {counts}")
    return opened


def _open(path: str, options: InputOptions) -> Input:
    """Open an input by its kind, else by the first input that recognises the path."""
    if is_hub_name(path):  # also hf:/folder, which is no URL without a slash
        return HuggingFaceInput.open(path, options)
    place = local_path(path) if path and is_local(path) else path
    requested_kind = find_input(options.format) if options.format is not None else None
    all_kinds: dict[str, type[Input]] = {}
    # A requested kind of files opens files on a disk. A URL or a pattern is opened by the input
    # that recognises it, which may differ from the requested one.
    if requested_kind is None or (
        issubclass(requested_kind, FileInput) and not os.path.lexists(place)
    ):
        all_kinds = all_inputs()
        for each in all_kinds.values():
            if each.recognizes(place):
                return each.open(place, options)
    if requested_kind is not None:
        return requested_kind.open(place, options)
    return _open_files(Listing.scan(place, options.include, options.exclude), all_kinds, options)


#: Endings of files that no input reads, and what to do with such files.
_UNREAD = {
    **dict.fromkeys((".zip", ".7z", ".rar"), "unpack it and convert the folder"),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save its sheets as CSV"),
    **dict.fromkeys(
        (".h5", ".hdf5", ".npz", ".mat", ".db", ".sqlite", ".pkl", ".pickle"),
        "write its content with MDSWriter (docs/writing.md)",
    ),
}


def _check_readable(listing: Listing) -> None:
    """Raise SourceError if no input reads any of the files, such as archives and spreadsheets."""
    for name in listing.names:
        # What the user can do instead, such as "unpack it first".
        way_out = _UNREAD.get(os.path.splitext(name.lower())[1])
        if way_out is None:
            return
    raise SourceError(
        f"{listing.path(listing.names[0])}: mds-convert does not read such files: {way_out}, or "
        "give --format files to store the bytes."
    )


def _open_files(
    listing: Listing, inputs: Mapping[str, type[Input]], options: InputOptions
) -> Input:
    """Open the input of files that are recognised by their endings.

    In this order: pictures with a table (--labels), a single file, pairs of files and texts, a
    mixture that an input recognises, the kind of nine in ten files, else every file as it is.

    - ``listing`` (Listing): The files; ``inputs`` (Mapping[str, type[Input]]): all inputs by name.

    Raises SourceError if the files are of several kinds, and some of them hold many samples.
    """
    # Inputs of files by name, such as "csv". "files" takes any file, as it is.
    kinds = {name: each for name, each in inputs.items() if issubclass(each, FileInput)}
    # The first input with an ending keeps it (a later item of a dict replaces an earlier one):
    # packages cannot take an ending of a built-in input.
    kind_of_ending = {each: name for name in reversed(kinds) for each in kinds[name].endings}

    def kind_of(name: str) -> str:
        """Return the name of the input that reads a file, by its ending."""
        return kind_of_ending.get(_known_ending(name, kind_of_ending), "files")

    _check_readable(listing)
    if options.labels is not None and any(
        kind_of_ending.get(ending(name)) == "images" for name in listing.names
    ):
        return kinds["images"].from_files(listing, options)
    if os.path.isfile(listing.root) or len(listing) == 1:
        return kinds[kind_of(listing.names[0])].from_files(listing, options)
    # Without a README and the like.
    data_names = [name for name in listing.names if not _is_companion(name)]
    pairs = PairedFilesInput.find(listing, options, data_names)
    if pairs is not None:
        return pairs
    kind_of_name = {name: kind_of(name) for name in data_names}
    counts = Counter(kind_of_name.values())
    for each in kinds.values():
        if each.recognizes_mixture(counts):
            return each.from_files(listing, options)
    if counts and (majority := _majority(counts)) is not None:
        chosen_names = [name for name in data_names if kind_of_name[name] == majority]
        omitted_count = len(listing) - len(chosen_names)
        # A new listing asks for the size of every file, so none is made if all are chosen.
        opened = kinds[majority].from_files(
            listing.only(chosen_names) if omitted_count else listing, options
        )
        if omitted_count:
            examples = [name for name in listing.names if kind_of_name.get(name) != majority][:3]
            ellipsis = ", ..." if omitted_count > len(examples) else ""
            opened.notes.append(
                f"{omitted_count:,} other file{'s' * (omitted_count > 1)} left out "
                f"({', '.join(examples)}{ellipsis}); --format files stores all files unchanged"
            )
        return opened
    kind_counts = ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common())
    usual_ending = Counter(map(ending, data_names)).most_common(1)
    include_option = f"--include '*{usual_ending[0][0] if usual_ending else ''}'"
    if any(kinds[kind].names_splits for kind in counts):
        # Some files hold many samples. The user hardly wants a table to be one value of a column.
        joins = (
            " join a table of labels to pictures with --labels FILE," if "images" in counts else ""
        )
        raise SourceError(
            f"{listing.root}: the folder has files of several kinds ({kind_counts}), and some of "
            f"them hold many samples. Choose files of one kind with {include_option},{joins} or "
            "give --format files to store each file unchanged."
        )
    opened = kinds["files"].from_files(listing, options)
    opened.notes.append(
        f"the folder has files of several kinds ({kind_counts}): every file is stored unchanged. "
        f"Choose some with {include_option}, or name their format with --format"
    )
    return opened


def _majority(counts: Mapping[str, int]) -> str | None:
    """Return the kind of at least nine in ten files; None if there is no such kind."""
    kind, count = max(counts.items(), key=lambda item: item[1])
    if len(counts) == 1:
        return kind
    # "files" are files that no other input reads. They do not make the others strays.
    is_majority = kind != "files" and count >= 9 * sum(counts.values()) / 10
    return kind if is_majority else None


def _known_ending(name: str, kind_of_ending: Mapping[str, str]) -> str:
    full = ending(name)
    return full if full in kind_of_ending else os.path.splitext(full)[0]


def _is_companion(name: str) -> bool:
    return "/" not in name and name.lower().startswith(_COMPANIONS)
