"""Which files a folder has: hidden names, names that begin with ``_``, links, splits and classes.

Reading in place and converting ask here, so both take the same files:

    .git/  __MACOSX/  Thumbs.db      hidden: left out
    _SUCCESS  _delta_log/            left out of Parquet, Arrow, JSON Lines and CSV, as by Spark
    _old/a.parquet                   the same, and warned of
    _background/1.jpg                data: other formats give ``_`` no meaning
    a link to a folder or a file     followed, unless another user may have planted it, or it leads
                                     to a folder above

A folder that cannot be listed is an error. `walk` lists a folder on a disk; the keys of an object
store are judged by the same names.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from mds.errors import DeniedError, NotFoundError
from mds.storage._control_files import is_untrusted
from mds.storage._files import temporary_owner
from mds.storage._local import BROKEN_LINKS, list_files

if TYPE_CHECKING:
    from mds.storage import ObjectInfo

T = TypeVar("T")
#: Called with the key of a file, folder or link, and with a reason in plural.
OnKey = Callable[[str, str], object]

#: Reasons for which files are left out, in plural.
HIDDEN, UNDERSCORED, OTHER_KINDS = (
    "hidden names",
    "names that begin with _",
    "files of another kind",
)
#: Reasons for which links are not followed, in plural.
UNTRUSTED_FILES, UNTRUSTED_FOLDERS = (
    "links of other users to files",
    "links of other users to folders",
)
LINKS_ABOVE = "links to a folder above"
#: Reasons that a user should hear of: perhaps the files were meant to be read.
WARNED = (UNTRUSTED_FILES, UNTRUSTED_FOLDERS, LINKS_ABOVE, BROKEN_LINKS, UNDERSCORED)
#: Kinds of links that are followed, in plural.
LINKED_FOLDERS, LINKED_FILES = "links to folders", "links to files"

# From the slash before it to its end: a name with a dot in front (not "..", the folder above, which
# tars may have), a folder with "__" in front, and the files that Windows leaves in folders.
_HIDDEN = re.compile(
    r"(?:^|/)(?:\.(?!\./)[^/]+|__[^/]*(?=/)|(?:thumbs\.db|desktop\.ini)\Z)", re.IGNORECASE
)
# What Spark, Hive, Dask, Delta and Flink write beside their data.
_OF_ENGINES = re.compile(
    r"(?:^|/)_(?:SUCCESS|metadata|common_metadata|delta_log|delta_index|change_data|temporary|"
    r"spark_metadata|symlink_format_manifest|committed_[^/]*|started_[^/]*)(?:/|\Z)"
)
# Files that describe a dataset and hold no samples, such as an index that `mds index` wrote.
_COMPANION = re.compile(
    r"(?:.*/)?(?:(?:readme|licen[cs]e|changelog|citation|notice)(?:[-_.][a-z]{1,10})?"
    r"(?:\.(?:md|txt|rst|html|pdf|cff|bib))?|dataset_infos?\.json|(?:dataset_dict|state)\.json|"
    r"index\.json|index\.\w+\.(?:bin|json)|[^/]*(?:\.crc|_stats\.json|\.tar\.idx))",
    re.IGNORECASE,
)
#: Endings of text files.
TEXTS = (
    *(".txt", ".text", ".md", ".rst", ".tex", ".html", ".htm", ".xml", ".css", ".srt", ".vtt"),
    *(".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".java", ".kt", ".js", ".jsx"),
    *(".ts", ".tsx", ".go", ".rs", ".rb", ".php", ".pl", ".sh", ".sql", ".r", ".jl", ".scala"),
    *(".swift", ".lua", ".m", ".cs", ".hs", ".ml", ".ex", ".erl", ".clj", ".lisp", ".el"),
    *(".toml", ".yaml", ".yml", ".ini", ".cfg"),
)
#: Value of ``split=`` that mixes the files of all splits.
ALL_SPLITS = "all"
#: Names of splits, in lower case.
SPLITS = frozenset(
    {"train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval"}
)
# train.jsonl, train-00000-of-00008.parquet, squad_test.csv; not trains.csv, not latest.csv
_IN_FILE_NAME = re.compile(
    rf"(?<![a-z0-9])({'|'.join(sorted(SPLITS, reverse=True))})(?![a-z])", re.IGNORECASE
)
# train, but also train2017, as COCO has it.
_FOLDER = re.compile(rf"({'|'.join(sorted(SPLITS, reverse=True))})((19|20)\d\d)?", re.IGNORECASE)


# --------------------------------------------------------------------- names


def find_hidden(key: str) -> str:
    """Return a key up to its first hidden name; '' if no name is hidden.

    It is "a/.git" for the key "a/.git/objects/x".
    """
    match = _HIDDEN.search(key)
    return key[: match.end()] if match else ""


def is_of_engine(key: str) -> bool:
    """Return True for a file that an engine such as Spark writes beside its data."""
    return _OF_ENGINES.search(key) is not None


def is_companion(key: str) -> bool:
    """Return True for a file that describes a dataset, or that an engine wrote beside its data.

    >>> is_companion("photos/README.md"), is_companion("license_plate_1.jpg")
    (True, False)
    """
    return is_of_engine(key) or _COMPANION.fullmatch(key) is not None


def drop_companions(
    files: list[T], key_of: Callable[[T], str], omit: OnKey, *, in_subfolders: bool = False
) -> list[T]:
    """Return the files that are data, in their order, without companions.

    If there are no others, they are the data. For the arguments see `drop_underscored`; companions
    below the top of the folder are left out only with ``in_subfolders``.
    """
    keys = [key_of(file) for file in files]
    are_companions = [(in_subfolders or "/" not in key) and is_companion(key) for key in keys]
    if all(are_companions):
        return files
    for file, is_one in zip(files, are_companions, strict=True):
        if is_one:
            omit(key_of(file), OTHER_KINDS)
    return [file for file, is_one in zip(files, are_companions, strict=True) if not is_one]


def has_underscore(key: str) -> bool:
    """Return True if a file or a folder above it has a name that begins with ``_``."""
    return "/_" in f"/{key}"


def drop_underscored(files: list[T], key_of: Callable[[T], str], omit: OnKey) -> list[T]:
    """Return the files of an engine's format that are data, in their order.

    Names that begin with ``_``, also of folders, are left out. But if a folder has no other files,
    they are its data, except those that an engine wrote.

    Args:
        files: Files of a format whose `Format.omits_underscored` is True.
        key_of: Returns the key of a file.
        omit: Called with the key of each file that is left out, and with the reason.
    """
    is_underscored = [has_underscore(key_of(file)) for file in files]
    if not any(is_underscored):
        return files
    has_others = not all(is_underscored)
    kept_files = []
    for file, underscored in zip(files, is_underscored, strict=True):
        key = key_of(file)
        if underscored and is_of_engine(key):
            omit(key, OTHER_KINDS)
        elif underscored and has_others:
            omit(key, UNDERSCORED)
        else:
            kept_files.append(file)
    return kept_files


def is_wanted(key: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Return True for a key that matches ``include``, if there is any, and no ``exclude``.

    Shell patterns match the last name or the whole key.
    """
    return (not include or _matches(key, include)) and not _matches(key, exclude)


def _matches(key: str, patterns: Sequence[str]) -> bool:
    """Return True if a shell pattern matches a whole key or its last name."""
    name = key.rpartition("/")[2]
    return any(
        fnmatch.fnmatchcase(key, each) or fnmatch.fnmatchcase(name, each) for each in patterns
    )


# --------------------------------------------------------------------- listing and links


def walk(
    root: str,
    prefix: str = "",
    enters: Callable[[str], bool] | None = None,
    omit: OnKey | None = None,
    follow: OnKey | None = None,
) -> Iterator[ObjectInfo]:
    """Yield the files below a folder that are not hidden, and follow links.

    Args:
        root: Path of the folder. A missing one has no files.
        prefix: Beginning of the keys of the files. Keys are paths below the root.
        enters: Returns True if a subfolder, by its key, is to be listed. None (default): all are.
        omit: Called for each entry that is left out. A hidden folder counts as one entry.
        follow: Called for each link to a folder or file that is followed.

    Raises StoreError for a folder that cannot be listed, and DeniedError for a link of another user
    to the folder of a split.
    """
    file_link = ""

    def why_not(key: str, entry: os.DirEntry[str], is_folder: bool) -> str:
        """Return why an entry is left out; '' to take it."""
        nonlocal file_link
        if find_hidden(f"{entry.name}/" if is_folder else entry.name):
            return HIDDEN
        if not entry.is_symlink():
            return ""
        if reason := _why_untrusted(entry):
            return reason
        if not is_folder:
            file_link = key  # counted once it is known to lead to a file
        elif _leads_above(root, key):
            return LINKS_ABOVE
        elif follow is not None:
            follow(key, LINKED_FOLDERS)
        return ""

    def omit_entry(key: str, reason: str) -> None:
        if omit is not None and temporary_owner(key) is None:
            omit(key, reason)

    for info in list_files(root, prefix, enters, omit_entry, why_not):
        if info.key == file_link and follow is not None:
            follow(info.key, LINKED_FILES)
        yield info


class FolderListing(NamedTuple):
    """What `walk` found in a whole folder, so that it is listed once.

    - ``root``: path of the folder.
    - ``files``: its files.
    - ``omitted``, ``followed``: keys with reasons, as `walk` reports them.
    """

    root: str
    files: list[ObjectInfo]
    omitted: list[tuple[str, str]]
    followed: list[tuple[str, str]]

    @classmethod
    def scan(cls, root: str, most_files: int) -> FolderListing:
        """List the first files of a folder."""
        omitted: list[tuple[str, str]] = []
        followed: list[tuple[str, str]] = []
        entries = walk(
            root,
            omit=lambda *each: omitted.append(each),
            follow=lambda *each: followed.append(each),
        )
        return cls(root, [*itertools.islice(entries, most_files)], omitted, followed)

    def replay(self, omit: OnKey, follow: OnKey) -> Iterator[ObjectInfo]:
        """Yield the files as `walk` does."""
        for key, reason in self.omitted:
            omit(key, reason)
        for key, kind in self.followed:
            follow(key, kind)
        yield from self.files


def _why_untrusted(entry: os.DirEntry[str]) -> str:
    """Return the reason not to follow a link that another user may have planted; '' to follow it.

    Raises DeniedError for a link to the folder of a split.
    """
    try:
        if not is_untrusted(entry.stat(follow_symlinks=False), entry.path):
            return ""
        target = os.readlink(entry.path)
    except FileNotFoundError:  # deleted after it was listed
        return BROKEN_LINKS
    # The target is looked at by its own name, because Linux may refuse to follow the link.
    if not os.path.isdir(os.path.join(os.path.dirname(entry.path), target)):
        return UNTRUSTED_FILES
    if is_split(entry.name):
        raise _untrusted_error(entry.path)
    return UNTRUSTED_FOLDERS


def _leads_above(root: str, key: str) -> bool:
    """Return True if a link leads to a folder on its own path, or above one: a circle."""
    folders = itertools.accumulate(key.split("/")[:-1], os.path.join, initial=root or ".")
    target = os.path.join(os.path.realpath(os.path.join(root, key)), "")
    return any(os.path.join(os.path.realpath(each), "").startswith(target) for each in folders)


def check_class_links(root: str, omitted_links: Sequence[str]) -> None:
    """Raise DeniedError for a link to the folder of a class that is not followed.

    Args:
        root: Path of the folder whose subfolders are classes, perhaps below splits.
        omitted_links: Keys of the links to folders that others may have planted.
    """
    for key in omitted_links:
        if all(map(is_split, key.split("/")[:-1])):
            raise _untrusted_error(os.path.join(root, key))


def _untrusted_error(path: str) -> DeniedError:
    """Return the error for a link of another user to the folder of a class or a split."""
    return DeniedError(
        f"list {path}: this link to a folder belongs to user {os.lstat(path).st_uid}, in a folder "
        "where anyone can create links. It is not followed, so a class or split would be missing. "
        "Delete the link. If you trust it, make it yours, as root: "
        f"chown -h {os.geteuid()} {shlex.quote(path)}",
        url=path,
        verb="list",
    )


# --------------------------------------------------------------------- splits


def find_splits(names: Sequence[str], *, by_file: bool) -> dict[str, str]:
    """Return the split of every file: the first folder named after one, else from its file name.

    The result is empty if a file has no split. Splits count only if `split_names` has them.

    Args:
        names: Paths of the files.
        by_file: The names of files count, as train-0.parquet. They do not where a file is one
            sample.
    """
    split_of: dict[str, str] = {}
    for name in names:
        *folders, file = name.split("/")
        split = split_folder(folders)
        if split is None and by_file:
            split = split_in_name(file)
        if split is None:
            return {}
        split_of[name] = split
    return split_of


def split_in_name(file: str) -> str | None:
    """Return the split that the name of a file has, such as "train" of train-00000.parquet."""
    match = _IN_FILE_NAME.search(file)
    return match[1].lower() if match else None


def split_folder(folders: Sequence[str]) -> str | None:
    """Return the first of these folders that is named after a split."""
    return next(filter(is_split, folders), None)


def split_names(split_of: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the splits of files, sorted; none if there is only one.

    Args:
        split_of: The split of each file, from `find_splits`.
    """
    names = sorted({*split_of.values()})
    return tuple(names) if len(names) > 1 else ()


class SplitError(NotFoundError):
    """There are files, but none of a certain split.

    Args:
        message: What there is instead.
        is_folder: A folder of this name has files, but it is no split.
    """

    def __init__(self, message: str, *, is_folder: bool = False) -> None:
        super().__init__(message)
        self.is_folder = is_folder


@functools.lru_cache(maxsize=4096)
def is_split(folder: str) -> bool:
    """Return True if a folder of this name is a split."""
    return _FOLDER.fullmatch(folder) is not None


# --------------------------------------------------------------------- classes


class FolderClasses:
    """Classes of the files of a folder: the first folder of a path that is not named after a split.

    For example ``train/cat/1.jpg`` and ``cat/train/1.jpg`` have the class ``cat``. A label is the
    number of a class in alphabetical order. It is the same in every split, and also if only some of
    the files are read.

    Args:
        names: The files to read.
        others: Other files of the folder, whose classes count.
    """

    def __init__(self, names: Sequence[str], others: Sequence[str] = ()) -> None:
        self._has_splits = bool(find_splits(names, by_file=False))
        classes = {_class_of(name, is_below_split=self._has_splits) for name in names}
        for name in others:
            # If the files to read have splits, other files outside of all splits have no class.
            if not self._has_splits or any(map(is_split, name.split("/")[:-1])):
                classes.add(_class_of(name, is_below_split=self._has_splits))
        self.numbers = {name: number for number, name in enumerate(sorted(classes - {""}))}

    @staticmethod
    def are_in(names: Sequence[str]) -> bool:
        """Return True if every file has a class.

        A file has none if it is directly in the root or in the folder of a split.
        """
        has_splits = bool(find_splits(names, by_file=False))
        return bool(names) and all(_class_of(name, is_below_split=has_splits) for name in names)

    def of(self, name: str) -> dict[str, str | int]:
        """Return the columns of a file: ``{"class": "cat", "label": 0}`` for train/cat/1.jpg."""
        class_name = _class_of(name, is_below_split=self._has_splits)
        return {"class": class_name, "label": self.numbers[class_name]}

    def __str__(self) -> str:
        return f"{len(self.numbers)} class{'es' if len(self.numbers) != 1 else ''}"


def _class_of(name: str, *, is_below_split: bool) -> str:
    """Return the first folder of a path; '' if there is none.

    Args:
        name: The path of a file.
        is_below_split: The first folder that is named after a split is no class.
    """
    folders = name.split("/")[:-1]
    if is_below_split:
        folders.remove(next(filter(is_split, folders)))
    return folders[0] if folders else ""
