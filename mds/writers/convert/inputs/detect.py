"""Detection of the input: from a path, URL or name to the `Input` that reads it.

A file is known by its ending. A folder is known by what datasets leave in it (index.json,
dataset_info.json), else by the endings of its files, when nine of ten are of a kind: the others are
left out, and told. A folder of mixed files is stored file by file, and says so; where some of them
are tables or the like, nothing is guessed. `kind` overrules all of it.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from mds.errors import ConfigError, SourceError
from mds.storage.url import is_local, local_path, redact
from mds.writers.convert.inputs.file_input import FileInput
from mds.writers.convert.inputs.huggingface import HuggingFaceInput, is_hub_name
from mds.writers.convert.inputs.listing import Listing, ending
from mds.writers.convert.inputs.pairs import PairedFilesInput
from mds.writers.convert.inputs.registry import all_inputs, find_input

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mds.writers.convert.inputs.base import Input, InputOptions

#: Files that describe a dataset rather than belong to it.
_COMPANIONS = ("readme", "license", "licence", "changelog", "citation", "dataset_info", "notice")

#: What a listing passes over, by its plural.
_SINGULAR = {
    "broken links": "broken link",
    "links in a circle": "link in a circle",
    "links to folders elsewhere": "link to folders elsewhere",
    "no files": "no file",
}


def open_input(path: str, options: InputOptions) -> Input:
    """Open the input at a path or a URL, or of a name after ``hf:``.

    Raises SourceError when nothing is there or it cannot be read, ConfigError for an unknown kind
    and for options that it does not take.
    """
    opened = _open(path, options)
    for option in ("labels", "config", "source_split", "encoding", "no_header"):
        if getattr(options, option) not in (None, False) and option not in opened.takes:
            raise ConfigError(
                f"--{option.replace('_', '-')} says nothing of {path} ({opened.title}): leave it "
                "out, or say with --as what the source is."
            )
    if options.null and not opened.is_text:
        raise ConfigError(
            f"--null is about the cells of CSV and TSV, and {path} is {opened.title}."
        )
    opened.name, opened.nulls = redact(path), options.null
    if isinstance(opened, FileInput) and (passed := opened.listing.omitted):
        counts = ", ".join(
            f"{count:,} {_SINGULAR.get(reason, reason) if count == 1 else reason}"
            for reason, count in sorted(passed.items())
        )
        opened.notes.append(f"passed over in the folder: {counts}")
    return opened


def _open(path: str, options: InputOptions) -> Input:
    if is_hub_name(path):  # not a URL that lost a slash, also as hf:/folder
        return HuggingFaceInput.open(path, options)
    place = local_path(path) if path and is_local(path) else path
    requested_kind = find_input(options.kind) if options.kind is not None else None
    all_kinds: dict[str, type[Input]] = {}
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


#: Endings of files that nothing here reads, and what to do with them.
_UNREAD = {
    **dict.fromkeys((".zip", ".7z", ".rar"), "unpack it and convert the folder"),
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save its sheets as CSV"),
    **dict.fromkeys(
        (".h5", ".hdf5", ".npz", ".mat", ".db", ".sqlite", ".pkl", ".pickle"),
        "write what it holds with MDSWriter (docs/writing.md)",
    ),
}


def _check_readable(listing: Listing) -> None:
    """Refuse files of which a value of bytes would hardly be meant. Raises SourceError."""
    for name in listing.names:
        way_out = _UNREAD.get(os.path.splitext(name.lower())[1])
        if way_out is None:
            return
    raise SourceError(
        f"{listing.path(listing.names[0])}: no input reads such a file: {way_out}, or say --as "
        "files to store its bytes."
    )


def _open_files(
    listing: Listing, inputs: Mapping[str, type[Input]], options: InputOptions
) -> Input:
    """Open the input of files that are recognised by their endings alone."""
    kinds = {name: each for name, each in inputs.items() if issubclass(each, FileInput)}
    # The first input keeps an ending: installed packages cannot take one of a built-in input.
    kind_of = {each: name for name in reversed(kinds) for each in kinds[name].endings}
    _check_readable(listing)
    if options.labels is not None and any(
        kind_of.get(ending(n)) == "images" for n in listing.names
    ):
        return kinds["images"].from_files(listing, options)
    if os.path.isfile(listing.root) or len(listing) == 1:
        kind = kind_of.get(_known_ending(listing.names[0], kind_of), "files")
        return kinds[kind].from_files(listing, options)
    own = [name for name in listing.names if not _is_companion(name)]
    pairs = PairedFilesInput.find(listing, options, own)
    if pairs is not None:
        return pairs
    kind_of_name = {name: kind_of.get(_known_ending(name, kind_of), "files") for name in own}
    counts = Counter(kind_of_name.values())
    for each in kinds.values():
        if each.recognizes_mixture(counts):
            return each.from_files(listing, options)
    if counts and (majority := _majority(counts)) is not None:
        chosen_names = [name for name in own if kind_of_name[name] == majority]
        omitted_count = len(listing) - len(chosen_names)
        # A listing looks at every file, which takes a while where there are many.
        opened = kinds[majority].from_files(
            listing.only(chosen_names) if omitted_count else listing, options
        )
        if omitted_count:
            examples = [name for name in listing.names if kind_of_name.get(name) != majority][:3]
            ellipsis = ", ..." if omitted_count > len(examples) else ""
            opened.notes.append(
                f"{omitted_count:,} other file{'s' * (omitted_count > 1)} left out "
                f"({', '.join(examples)}{ellipsis}); --as files takes all of them as they are"
            )
        return opened
    kind_counts = ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common())
    usual = Counter(map(ending, own)).most_common(1)
    include_option = f"--include '*{usual[0][0] if usual else ''}'"
    if any(kinds[kind].names_splits for kind in counts):
        # A table as one value of a column is hardly meant.
        joins = (
            " join a table of labels to pictures with --labels FILE," if "images" in counts else ""
        )
        raise SourceError(
            f"{listing.root}: the folder is mixed ({kind_counts}), and some of its files hold many "
            f"samples. Choose files of one kind with {include_option},{joins} or say --as files to "
            "store each as it is."
        )
    opened = kinds["files"].from_files(listing, options)
    opened.notes.append(
        f"the folder is mixed ({kind_counts}): every file is stored as it is. Choose some with "
        f"{include_option}, or say what they are with --as"
    )
    return opened


def _majority(counts: Mapping[str, int]) -> str | None:
    """Return the kind of nine in ten files, or of all; None if there is no such kind."""
    kind, count = max(counts.items(), key=lambda each: each[1])
    return (
        kind
        if len(counts) == 1 or (kind != "files" and count >= 9 * sum(counts.values()) / 10)
        else None
    )


def _known_ending(name: str, kind_of_ending: Mapping[str, str]) -> str:
    full = ending(name)
    return full if full in kind_of_ending else os.path.splitext(full)[0]


def _is_companion(name: str) -> bool:
    return "/" not in name and name.lower().startswith(_COMPANIONS)
