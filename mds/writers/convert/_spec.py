"""Options of a conversion, parsed and checked once.

Most options decide what is written; a conversion that resumes must be given the same. Others only
decide how the work is done (`num_workers`, `engine`, `on_error`, ...) and may change.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from mds._arguments import did_you_mean, shown
from mds._shardfile.compression import parse_compression
from mds._shardfile.hashing import new_hash
from mds._units import parse_count
from mds._words import OnError
from mds.encodings import parse_encoding
from mds.encodings._base import located
from mds.encodings._spelling import encoding_name
from mds.errors import ArgumentError, ConfigError, EncodingError, UnknownEncodingError
from mds.formats._lines import text_encoding
from mds.writers._spec import DEFAULT_HASHES, parse_size_limit
from mds.writers.convert._inputs.base import InputOptions
from mds.writers.convert._tokens import TokenSpec

_SPLIT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class ConvertSpec(InputOptions):
    """The checked options of `mds.writers.convert.convert`, which explains them.

    `parse_spec` creates it.
    """

    drop: tuple[str, ...] = ()
    #: Columns to write; empty for all.
    columns: tuple[str, ...] = ()
    split: Mapping[str, float] = field(default_factory=dict)
    split_key: str | None = None
    fill: Mapping[str, str] = field(default_factory=dict)
    describe: Mapping[str, str] = field(default_factory=dict)
    lengths: str | None = None
    limit: int | None = None
    compression: str | None = None
    hashes: tuple[str, ...] = DEFAULT_HASHES
    size_limit: int | None = 1 << 26
    tokens: TokenSpec | None = None
    num_workers: int = 1
    engine: str = "local"
    #: "raise" for a record that cannot be a sample, or "skip".
    on_error: str = "raise"
    resume: bool = False
    overwrite: bool = False
    work: str | None = None
    durable: bool = True
    #: Whether a shard is written for each shard of files in a format.
    keep_shards: bool = False
    #: Whether only encodings are written that mosaicml-streaming knows.
    portable: bool = False

    #: Options that a resumed conversion may change.
    RUNTIME_OPTIONS = (
        "num_workers",
        "engine",
        "on_error",
        "resume",
        "overwrite",
        "work",
        "durable",
        "portable",  # the encodings of the columns are compared
    )

    def identity(self) -> dict[str, Any]:
        """Return the options that decide the output, as values for JSON."""
        fields = dataclasses.asdict(self)
        return {
            _RECORDED_OPTIONS.get(name, name): list(value) if isinstance(value, tuple) else value
            for name, value in fields.items()
            if name not in self.RUNTIME_OPTIONS
        }


#: Names of options in the plan of an unfinished conversion, where they differ: the first names that
#: the options had.
_RECORDED_OPTIONS = {"format": "kind", "encodings": "columns", "columns": "only"}

#: Options of `convert` about tokens, with their names in `TokenSpec`.
_TOKENS = {
    "tokenizer": "tokenizer",
    "block": "block",
    "end_token": "end",
    "text_column": "text",
    "drop_last": "drop_last",
}


def parse_spec(**options: Any) -> ConvertSpec:
    """Parse options as users write them: as in `convert`, or as texts of the command line.

    Raises ConfigError with the name of a wrong option.
    """
    option_names = {each.name for each in dataclasses.fields(ConvertSpec)} - {"tokens"}
    refuse_unknown_options(options, {*option_names, *_TOKENS})
    # Options about tokens are fields of `TokenSpec`, under other names; the others are fields of
    # `ConvertSpec`. None means the default.
    tokens = {_TOKENS[name]: options.pop(name) for name in list(options) if name in _TOKENS}
    values = {name: value for name, value in options.items() if value is not None}
    if "size_limit" in options:  # here None is a value: no limit
        limit = options["size_limit"]
        values["size_limit"] = parse_size_limit(None if limit == "none" else limit)
    values.setdefault("hashes", DEFAULT_HASHES)
    values["columns"] = _column_names(values.get("columns", ()))
    for name in ("include", "exclude", "drop", "hashes"):
        values[name] = _words(values.get(name, ()))
    values["encodings"] = _encodings(values.get("encodings", {}))
    null = values.get("null", ())
    values["null"] = (null,) if isinstance(null, str) else tuple(null)
    values["fill"] = _fills(values.get("fill", {}))
    if "encoding" in values:
        values["encoding"] = _text_encoding(values["encoding"])
    values["describe"] = _descriptions(values.get("describe", {}))
    values["split"] = _splits(values.get("split", {}))
    if "limit" in values:
        values["limit"] = parse_count(values["limit"])
        if values["limit"] < 1:
            raise ConfigError(f"limit={values['limit']} must be at least 1 sample.")
    num_workers = values.get("num_workers", 1)
    if num_workers == 0:
        values["num_workers"] = os.cpu_count() or 1
    elif num_workers < 0:
        raise ConfigError(
            f"num_workers={num_workers}: give a number of processes, or 0 for all cores."
        )
    if values.get("on_error", "raise") not in get_args(OnError):
        raise ConfigError(
            f"on_error={values['on_error']!r}: write 'skip' to leave out records that cannot be "
            "samples, or 'raise' to stop at the first."
        )
    if values.get("split_key") is not None and not values["split"]:
        raise ConfigError(
            f"split_key={shown(values['split_key'])} has no effect without split=, which has the "
            "shares. Write split={'train': 0.9, 'val': 0.1} as well, or leave split_key out."
        )
    parse_compression(values.get("compression"))  # raises for an unknown name
    values["hashes"] = _hashes(values["hashes"])
    return ConvertSpec(**values, tokens=_tokens(tokens, values))


#: Words of other libraries and earlier versions for options, with how to write them here.
_OTHER_OPTIONS = {
    **dict.fromkeys(
        ("workers", "num_proc", "n_jobs", "jobs", "processes", "num_processes", "max_workers"),
        "num_workers={value}",
    ),
    **dict.fromkeys(("kind", "input_format", "source_format", "type", "as_"), "format={value}"),
    **dict.fromkeys(
        ("only", "keep", "select", "usecols", "select_columns", "include_columns"),
        "columns={value}",
    ),
    **dict.fromkeys(
        ("remove_columns", "drop_columns", "exclude_columns", "ignore_columns"), "drop={value}"
    ),
    **dict.fromkeys(("schema", "features", "dtype", "dtypes", "types"), "encodings={value}"),
    **dict.fromkeys(
        ("skip_bad", "errors", "on_bad_lines", "ignore_errors", "skip_errors", "handler"),
        "on_error='skip'",
    ),
    **dict.fromkeys(("splits", "shares", "train_test_split"), "split={value}"),
    **dict.fromkeys(("exist_ok", "force", "replace"), "overwrite={value}"),
    **dict.fromkeys(("hash", "hashing", "hash_algos"), "hashes={value}"),
    **dict.fromkeys(("shard_size", "max_shard_size", "chunk_bytes", "size"), "size_limit={value}"),
    **dict.fromkeys(("max_samples", "num_samples", "n", "take", "head"), "limit={value}"),
    **dict.fromkeys(("output", "output_dir", "out_dir", "dst", "destination"), "out={value}"),
    **dict.fromkeys(("input", "input_dir", "src", "data"), "source={value}"),
    **dict.fromkeys(
        ("map", "fn", "function", "transform", "map_fn"),
        "the samples as the source, as in mds.convert(map(function, samples), out), or for files "
        "mds.convert(mds.StreamingDataset(source).map(function), out)",
    ),
    **dict.fromkeys(
        ("shuffle", "seed", "shuffle_seed"),
        "it where the dataset is read, as in StreamingDataset(local=out, shuffle=True)",
    ),
    **dict.fromkeys(("block_size", "seq_len", "seq_length", "max_length"), "block={value}"),
    "name": "config={value}",
}


def refuse_unknown_options(options: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise ArgumentError for the first option that `convert` does not have, with the right one.

    - ``options`` (Mapping[str, Any]): The options of the user; ``names``: those that exist.
    """
    for name in sorted(set(options) - set(names)):
        other = _OTHER_OPTIONS.get(name)
        if other is not None:
            remedy = f" Write {other.format(value=shown(options[name]))}."
        else:
            remedy = f"{did_you_mean(name, names)} The options are {', '.join(sorted(names))}."
        raise ArgumentError(f"convert: there is no option {name!r}.{remedy}")


def _hashes(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return sorted names of digests; none for ("none",). Raises ConfigError for another name."""
    if "none" in names:
        if len(names) > 1:
            raise ConfigError(f"hashes={', '.join(names)}: 'none' cannot be combined with others.")
        return ()
    for name in names:
        new_hash(name)  # raises for an unknown name
    return tuple(sorted(set(names)))


def _words(value: str | Iterable[str]) -> tuple[str, ...]:
    """Return the words of a comma-separated list, or those of a list as they are."""
    if not isinstance(value, str):
        return tuple(value)
    return tuple(word.strip() for word in value.split(",") if word.strip())


def _column_names(value: Any) -> tuple[str, ...]:
    """Return the names of the columns to write, from names or a comma-separated list.

    Raises ConfigError for encodings of columns, which are another option.
    """
    if isinstance(value, Mapping):
        raise ConfigError(
            f"columns={shown(dict(value))}: columns= has the names of the columns to write. Write "
            f"encodings={shown(dict(value))} to replace inferred encodings."
        )
    names = _words(value)
    for name in names:
        column, _, encoding = name.partition(":")
        if _is_encoding(encoding):
            raise ConfigError(
                f"columns={name!r}: columns= has the names of the columns to write. Write "
                f"--encodings {name}, in Python encodings={{{column!r}: {encoding!r}}}, to replace "
                "an inferred encoding."
            )
    return names


def _is_encoding(name: str) -> bool:
    """Return whether this is the name of an encoding; a column may have a colon in its name."""
    try:
        parse_encoding(encoding_name(name))
    except (EncodingError, ConfigError):
        return False
    return True


def _encodings(value: str | Sequence[str] | Mapping[str, Any]) -> dict[str, str]:
    """Return the encoding of each column, from a mapping or from texts such as "id:int,x:float64".

    Encodings may be spelled otherwise, such as `int` and "ndarray:int32[4]" (`encoding_name`).

    Raises ConfigError for a text that is no column, and for an encoding that writes pickles.
    """
    if isinstance(value, Mapping):
        columns = dict(value)
    else:
        columns = {}
        for each in [value] if isinstance(value, str) else value:
            # A comma separates columns, and is also part of 'ndarray:int32:3,224,224'.
            for pair in re.split(r",(?=[^,:]+:)", each):
                name, colon, encoding = pair.partition(":")
                if not colon or not name or not encoding:
                    raise ConfigError(
                        f"encodings={pair!r} has no encoding. Write NAME:ENCODING, as in id:int; "
                        "columns= has the names of the columns to write."
                    )
                columns[name.strip()] = encoding.strip()
    for name, spelling in columns.items():
        try:
            encoding = columns[name] = encoding_name(spelling)
            is_unsafe = parse_encoding(encoding).is_unsafe
        except UnknownEncodingError as error:
            raise located(error, f"column {name!r}") from None
        if is_unsafe:
            raise ConfigError(
                f"column {name!r}: {encoding} would write pickles. Use json or bytes."
            )
    return columns


def _fills(value: str | Sequence[str] | Mapping[str, Any]) -> dict[str, str]:
    """Return the replacement of missing values for each column, as a text to parse like a cell.

    - ``value``: A mapping, or texts such as "age=-1".
    """
    if isinstance(value, Mapping):
        return {name: str(each) for name, each in value.items()}
    fills = {}
    for pair in [value] if isinstance(value, str) else value:
        name, equals, each = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"fill={pair!r} must be a pair. Write name=value, as in age=-1.")
        fills[name.strip()] = each
    return fills


def _text_encoding(name: Any) -> str:
    """Return Python's name of a text encoding. Raises ConfigError for the encoding of a column."""
    if isinstance(name, Mapping) or (
        isinstance(name, str) and _is_encoding(name.partition(":")[2])
    ):
        raise ConfigError(
            f"encoding={shown(name)}: encoding= is the encoding of text files, such as cp1252. "
            "Encodings of columns are given as --encodings id:int32, in Python "
            "encodings={'id': 'int32'}."
        )
    return text_encoding(name)


def _descriptions(value: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Return the description of each column, from a mapping or from texts such as "age=years"."""
    if isinstance(value, Mapping):
        return {name: str(each) for name, each in value.items()}
    descriptions = {}
    for pair in [value] if isinstance(value, str) else value:
        name, equals, each = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"describe={pair!r} must be a pair. Write name=text.")
        descriptions[name.strip()] = each.strip()
    return descriptions


def _splits(value: str | Sequence[str] | Mapping[str, float]) -> dict[str, float]:
    """Return the share of each split, from a mapping or from a text such as "train=0.9,val=0.1".

    Raises ConfigError unless the shares add up to 1.
    """
    if isinstance(value, Mapping):
        splits = {name: float(share) for name, share in value.items()}
    else:
        splits = {}
        for pair in _words(value):
            name, _, number = pair.partition("=")
            try:
                splits[name] = float(number)
            except ValueError:
                raise ConfigError(f"{pair!r} is not a split. Write train=0.98,val=0.02.") from None
    for name, share in splits.items():
        if not _SPLIT_NAME.fullmatch(name):
            raise ConfigError(
                f"the split name {name!r} is invalid: it must be a valid name of a folder."
            )
        if not 0 < share <= 1:
            raise ConfigError(
                f"split {name!r} has the share {share}; shares must be above 0 and at most 1."
            )
    if splits and abs(sum(splits.values()) - 1) > 1e-6:
        total = f"{sum(splits.values()):.6g}"
        raise ConfigError(f"the shares of the splits must add up to 1, got {total}.")
    return splits


#: Options about columns that a conversion to tokens does not have.
_ABOUT_COLUMNS = ("columns", "drop", "fill")


def _tokens(options: dict[str, Any], values: Mapping[str, Any]) -> TokenSpec | None:
    """Return the settings of tokens, or None without a tokenizer.

    - ``options`` (dict[str, Any]): The user's options about tokens under the names of the fields of
      `TokenSpec`; None for one that was not given.
    - ``values`` (Mapping[str, Any]): The parsed values of all other options; ``encodings`` may have
      that of the column "tokens".

    Raises ConfigError for options about tokens without a tokenizer, and for options about other
    columns with one.
    """
    # False is the default of ``drop_last``; 0 is not equal to "not given".
    options = {
        name: value for name, value in options.items() if value is not None and value is not False
    }
    if not options.get("tokenizer"):
        if options:
            # `_TOKENS` has the field of each option, such as "end_token": "end".
            option_of_field = {field: option for option, field in _TOKENS.items()}
            option_names = ", ".join(sorted(option_of_field[field] for field in options))
            raise ConfigError(f"{option_names} is for tokens: give a tokenizer too.")
        return None
    unused = [name for name in _ABOUT_COLUMNS if values[name]]
    unused += [name for name in ("encodings", "describe") if {*values[name]} - {"tokens"}]
    if unused:
        name = unused[0]
        raise ConfigError(
            f"{name}={shown(values[name])} has no effect with tokenizer=: such a dataset has only "
            f"the column 'tokens'. Leave {name} out; text_column= names the column of the text."
        )
    encodings: Mapping[str, str] = values["encodings"]
    return TokenSpec(**options, encoding=encodings.get("tokens", ""))
