"""Arguments of the writers: their names, types and defaults, and how they are checked."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, get_type_hints

from mds._arguments import (
    Rule,
    check_arguments,
    did_you_mean,
    flag,
    mapping,
    refuse_unknown,
    shown,
    text,
    whole,
)
from mds._redaction import mask_foreign
from mds._shardfile.compression import parse_compression
from mds._shardfile.hashing import hash_names, is_hash
from mds._shardfile.layout import MAX_SIZE
from mds._units import parse_bytes
from mds._words import Compression, Digest
from mds.errors import ArgumentError, ConfigError, UnknownEncodingError
from mds.storage._url import Url, is_local, local_path, redact

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Sequence

    import numpy as np
    import torch

    from mds._shardfile.compression import Codec

    Out = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    Spelling = str | type[Any] | np.dtype[Any] | torch.dtype | types.GenericAlias | types.UnionType

# Default number of full shards that may be in memory beside the one being filled.
_SHARDS_AHEAD = 2
#: The digests of the writers' ``hashes=None``.
DEFAULT_HASHES = ("xxh3_64",)


class WriterOptions(TypedDict, total=False):
    """The arguments of all writers beside ``out``; the docstring of `MDSWriter` explains them."""

    keep_local: bool
    compression: Compression | str | None
    hashes: Sequence[Digest] | Sequence[str] | None
    size_limit: int | str | None
    samples_per_shard: int | None
    exist_ok: bool
    retry: int
    max_workers: int | None
    progress_bar: bool
    durable: bool
    strict: bool | None
    storage_options: Mapping[str, Any] | None
    class_names: dict[str, list[str]] | None
    descriptions: dict[str, str] | None


DEFAULTS: WriterOptions = {
    "keep_local": False,
    "compression": None,
    "hashes": None,
    "size_limit": 1 << 26,
    "samples_per_shard": None,
    "exist_ok": False,
    "retry": 2,
    "max_workers": None,
    "progress_bar": False,
    "durable": True,
    "strict": None,
    "storage_options": None,
    "class_names": None,
    "descriptions": None,
}


def options_in(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of all writers among the arguments of a call, by name."""
    return {name: arguments[name] for name in DEFAULTS}


@dataclass(frozen=True, slots=True)
class OutSpec:
    """Target of a dataset: a folder, and a store if the folder is not the final place.

    - ``local`` (str | None): The folder; None if there is only a store: shards are then written to
      a temporary folder first.
    - ``remote`` (Url | None): The store, or a second folder; None if `local` is the final place.
    - ``keep_local`` (bool): Whether shards stay in `local` after their upload.
    - ``exist_ok`` (bool): Whether an old dataset is replaced.
    - ``retry`` (int): The least number of tries of an upload.
    """

    local: str | None
    remote: Url | None
    keep_local: bool
    exist_ok: bool
    retry: int


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """Settings that every shard of a dataset shares.

    - ``compression`` (str | None), ``codec`` (Codec | None): Name of the compression and its
      implementation; None for none.
    - ``hashes`` (tuple[str, ...]): Digests of every file, by name.
    - ``size_limit`` (int | None): The largest shard in bytes; None for no limit.
    - ``samples_per_shard`` (int | None): The most samples of a shard; None for no limit.
    """

    compression: str | None
    codec: Codec | None
    hashes: tuple[str, ...]
    size_limit: int | None
    samples_per_shard: int | None


@dataclass(frozen=True, slots=True)
class WorkSpec:
    """Settings of how a writer works, which do not change the output.

    - ``threads`` (int): Number of threads that write and upload shards.
    - ``shards_ahead`` (int): Number of full shards in memory beside the one being filled.
    - ``progress_bar`` (bool): Whether to show how many shards are written.
    - ``durable`` (bool): Whether local files are synced to the disk before the index appears.
    - ``strict`` (bool | None): Whether a key of a sample that no column has is an error (True),
      ignored (False), or a warning (None).
    """

    threads: int
    shards_ahead: int
    progress_bar: bool
    durable: bool = True
    strict: bool | None = None


#: Check of the value of each option; a new option needs a check here.
WRITER_RULES: dict[str, Rule] = {
    "keep_local": flag(),
    "compression": text("the name of a compression such as 'zstd:3'").or_none(),
    "samples_per_shard": whole(1, unit="samples").or_none("no limit"),
    "exist_ok": flag(),
    "retry": whole(0, unit="tries"),
    "max_workers": whole(1, unit="threads").or_none("the default number"),
    "progress_bar": flag(),
    "durable": flag(),
    "strict": flag().or_none("a warning"),
    "storage_options": mapping(
        "settings of the store", "{'endpoint_url': 'https://...'}"
    ).or_none(),
    "class_names": mapping(
        "a list of names for each column", "{'label': ['cat', 'dog']}"
    ).or_none(),
    "descriptions": mapping("a text for each column", "{'label': 'the animal'}").or_none(),
}
_COLUMNS = {"columns": mapping("an encoding for each column", "{'image': 'jpeg', 'label': 'int'}")}


def parse_columns(owner: str, columns: Any, *, converts: bool = True) -> dict[str, str]:
    """Return columns as a dict from their names to names of encodings.

    - ``owner`` (str): The name of the class, for messages.
    - ``columns``: A dict.
    - ``converts`` (bool): Whether encodings may be spelled otherwise than by their names, such as
      `int` and `np.int32` (`mds.encodings._spelling`).

    Raises ArgumentError for another type, ConfigError for an empty
    dict, and UnknownEncodingError for a value that means no encoding.
    """
    check_arguments(owner, {"columns": columns}, _COLUMNS)
    if not columns:
        raise ConfigError(
            f"{owner}(columns={columns!r}): a dataset needs at least one column. Write "
            "columns={'text': 'str'}."
        )
    encodings = {}
    for name, encoding in columns.items():
        if not isinstance(name, str):
            raise ArgumentError(
                f"{owner}: a column name must be a str, got {type(name).__name__} {name!r}. "
                f"Write '{name}'."
            )
        if isinstance(encoding, str) and not (converts and encoding.endswith(("]", ")"))):
            encodings[name] = encoding
            continue
        if not converts:
            raise UnknownEncodingError(
                f"{owner}, column {name!r}: an encoding must be a str, got {shown(encoding)}."
            )
        from mds.encodings._spelling import encoding_name

        try:
            encodings[name] = encoding_name(encoding)
        except UnknownEncodingError as error:
            raise UnknownEncodingError(f"{owner}, column {name!r}: {error}") from None
    return encodings


def fill_options(
    owner: str,
    options: Mapping[str, Any],
    *,
    is_strict: bool = True,
    hashes: Sequence[str] = DEFAULT_HASHES,
) -> WriterOptions:
    """Return all options, with defaults for those that are not given.

    - ``owner`` (str): The name of the class, for messages.
    - ``is_strict`` (bool): Whether to raise ConfigError for values of a wrong type or range.
    - ``hashes`` (Sequence[str]): The meaning of ``hashes=None`` in ``options``.

    Raises ConfigError for unknown options.
    """
    refuse_unknown(owner, options, ["columns", "out", *DEFAULTS], "Writer")
    if is_strict:
        check_arguments(owner, options, WRITER_RULES)
    filled = {**DEFAULTS, **options}
    if filled["hashes"] is None:
        filled["hashes"] = list(hashes)
    return filled  # type: ignore[return-value]


def full_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a writer's ``__init__``, with all options in place of ``**options``.

    The signature has no ``self``, as that of a class.
    """
    signature = inspect.signature(function)
    own = list(signature.parameters.values())[1:]
    if not own or own[-1].kind is not inspect.Parameter.VAR_KEYWORD:
        return signature.replace(parameters=own)
    types = get_type_hints(WriterOptions)
    option_parameters = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[name]
        )
        for name, default in DEFAULTS.items()
        if name not in signature.parameters  # a subclass names the options that it changes
    ]
    return signature.replace(parameters=own[:-1] + option_parameters)


def parse_out(out: Out, options: WriterOptions) -> OutSpec:
    """Parse the target `out` and the options about it.

    Raises ConfigError unless `out` is a path, a URL, or a pair (local folder, path or URL).
    """
    keep_local = options["keep_local"]
    exist_ok, retry = bool(options["exist_ok"]), int(options["retry"])
    if isinstance(out, (str, os.PathLike)):
        place = os.fspath(out)
        if not place:
            raise ConfigError("out is an empty text. Give a folder, such as './data', or a URL.")
        if is_local(place):
            refuse_storage_options(options["storage_options"], place)
            return OutSpec(
                local=_folder(place), remote=None, keep_local=True, exist_ok=exist_ok, retry=retry
            )
        return OutSpec(
            local=None,
            remote=Url(place, options["storage_options"]),
            keep_local=keep_local,
            exist_ok=exist_ok,
            retry=retry,
        )
    if not isinstance(out, (list, tuple)) or len(out) != 2:
        raise ConfigError(
            f"out must be a folder, a URL, or a pair (local folder, remote); "
            f"got {mask_foreign(repr(out))}."
        )
    local, remote = (None if place is None else os.fspath(place) for place in out)
    places = tuple(None if place is None else redact(place) for place in (local, remote))
    if not local or not remote:
        raise ConfigError(f"out=(local, remote) needs both; got {places!r}.")
    if not is_local(local):
        raise ConfigError(f"local of out=(local, remote) must be a folder, got {places[0]!r}.")
    folder = _folder(local)
    if is_local(remote):
        refuse_storage_options(options["storage_options"], local, remote)
        remote = _folder(remote)
        if os.path.realpath(remote) == os.path.realpath(folder):
            # One folder given twice: without a remote, because a file that is uploaded onto itself
            # would then be deleted.
            return OutSpec(
                local=folder, remote=None, keep_local=True, exist_ok=exist_ok, retry=retry
            )
    return OutSpec(
        local=folder,
        remote=Url(remote, options["storage_options"]),
        keep_local=keep_local,
        exist_ok=exist_ok,
        retry=retry,
    )


def refuse_storage_options(options: Mapping[str, Any] | None, *places: str) -> None:
    """Raise ConfigError for settings of a store if all places are paths, which have no store."""
    if options and all(map(is_local, places)):
        raise ConfigError(
            f"storage_options= are settings of the store of a URL, and {redact(places[0])!r} is a "
            "path. Leave them out, or give the URL."
        )


def _folder(place: str) -> str:
    """Return an absolute local path, which stays valid if the working folder changes."""
    return os.path.abspath(local_path(place))


def parse_shards(options: WriterOptions) -> ShardSpec:
    """Parse the options about shards. Raises ConfigError (a ValueError) for a wrong value."""
    codec = parse_compression(options["compression"])
    samples = options["samples_per_shard"]
    if samples is not None and samples < 1:
        raise ConfigError(f"samples_per_shard must be at least 1, got {samples}.")
    return ShardSpec(
        compression=codec.name if codec else None,
        codec=codec,
        hashes=_parse_hashes(options["hashes"]),
        size_limit=parse_size_limit(options["size_limit"]),
        samples_per_shard=samples,
    )


def _parse_hashes(hashes: Sequence[str] | None) -> tuple[str, ...]:
    """Return names of digests as a tuple. Raises ConfigError unless they are known and sorted."""
    if isinstance(hashes, str):
        raise ConfigError(f"hashes must be a list of names such as [{hashes!r}], got {hashes!r}.")
    names = tuple(hashes or ())
    for name in names:
        if not is_hash(name):
            raise ConfigError(
                f"there is no hash {name!r}.{did_you_mean(name, hash_names())} The hashes are "
                f"{', '.join(hash_names())}."
            )
    if list(names) != sorted(names):
        raise ConfigError(f"hashes must be sorted: {sorted(names)}, got {list(names)}.")
    return names


def parse_size_limit(size_limit: float | str | None) -> int | None:
    """Return the largest size of a shard in bytes; None, 0 and "" mean no limit, which is None.

    Raises ConfigError for a negative number, one below a byte, and one of 4 GiB or more.
    """
    if size_limit is None or size_limit == "":
        return None
    try:
        limit = parse_bytes(size_limit)
    except (ValueError, OverflowError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        limit = -1  # nan, inf or a list: refused below
    # A float such as 0.3 is parsed as 0 bytes, and does not mean "no limit".
    is_zero = limit == 0 and not (isinstance(size_limit, float) and size_limit)
    if not (is_zero or 1 <= limit < MAX_SIZE):
        raise ConfigError(
            f"size_limit={size_limit!r}: a shard must have at least 1 byte and less than 4 GiB. "
            "Give a number or a text such as '64mb', or None for one shard of all samples."
        )
    return limit or None


def parse_work(options: WriterOptions) -> WorkSpec:
    """Parse the options about how to work. Raises ConfigError for a number that is too small."""
    workers, strict = options["max_workers"], options["strict"]
    if workers is not None and workers < 1:
        raise ConfigError(f"max_workers must be at least 1, got {workers}.")
    if options["retry"] < 0:
        raise ConfigError(f"retry must be a number of tries, got {options['retry']}.")
    return WorkSpec(
        threads=workers or min(32, (os.cpu_count() or 1) + 4),
        shards_ahead=workers or _SHARDS_AHEAD,
        progress_bar=bool(options["progress_bar"]),
        durable=bool(options["durable"]),
        strict=None if strict is None else bool(strict),
    )
