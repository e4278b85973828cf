"""What a conversion is asked to do, parsed once.

Options are of two kinds: those that decide what is written, which `--resume` must repeat, and
those that only decide how (`workers`, `engine`, `skip_bad`, ...), which may change between tries.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mds.compression import parse_compression
from mds.encodings import parse_encoding
from mds.errors import ConfigError
from mds.hashing import new_hash
from mds.units import parse_bytes, parse_count
from mds.writers.convert.tokens import TokenSpec

_SPLIT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class ConvertSpec:
    """The options of `convert`, checked. Made by `parse_spec`."""

    kind: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    labels: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    split: Mapping[str, float] = field(default_factory=dict)
    split_key: str | None = None
    limit: int | None = None
    compression: str | None = None
    hashes: tuple[str, ...] = ()
    size_limit: int | None = 1 << 26
    tokens: TokenSpec | None = None
    config: str | None = None
    source_split: str | None = None
    workers: int = 1
    engine: str = "local"
    skip_bad: bool = False
    resume: bool = False
    overwrite: bool = False
    work: str | None = None

    #: Options that change how the work is done, and nothing of what is written.
    HOW = ("workers", "engine", "skip_bad", "resume", "overwrite", "work")

    def identity(self) -> dict[str, Any]:
        """What decides the output, as JSON has it."""
        fields = dataclasses.asdict(self)
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in fields.items()
            if name not in self.HOW
        }


_TOKENS = {
    "tokenizer": "tokenizer",
    "block": "block",
    "end_token": "end",
    "text_column": "text",
    "drop_last": "drop_last",
}


def parse_spec(**options: Any) -> ConvertSpec:
    """Options as users write them to a `ConvertSpec`. Raises ConfigError naming what is wrong."""
    known = {each.name for each in dataclasses.fields(ConvertSpec)} - {"tokens"}
    if unknown := sorted(set(options) - known - set(_TOKENS)):
        raise ConfigError(
            f"there is no option {unknown[0]!r}. Known are {', '.join(sorted(known | {*_TOKENS}))}."
        )
    tokens = {_TOKENS[name]: options.pop(name) for name in list(options) if name in _TOKENS}
    values = {name: value for name, value in options.items() if value is not None}
    if "size_limit" in options:
        values["size_limit"] = _size_limit(options["size_limit"])
    for name in ("include", "exclude", "drop", "only", "hashes"):
        values[name] = _words(values.get(name, ()))
    values["columns"] = _columns(values.get("columns", {}))
    values["split"] = _splits(values.get("split", {}))
    if "limit" in values and (limit := parse_count(values["limit"])) < 1:
        raise ConfigError(f"limit={limit}: at least one sample has to be taken.")
    if "limit" in values:
        values["limit"] = parse_count(values["limit"])
    workers = values.get("workers", 1)
    if workers == 0:
        values["workers"] = os.cpu_count() or 1
    elif workers < 0:
        raise ConfigError(f"workers={workers}: give a number of processes, or 0 for all cores.")
    parse_compression(values.get("compression"))
    for name in values["hashes"]:
        new_hash(name)
    values["hashes"] = tuple(sorted(set(values["hashes"])))
    return ConvertSpec(**values, tokens=_tokens(tokens, values["columns"]))


def _size_limit(value: int | str | None) -> int | None:
    size = parse_bytes(value) if value else 0
    if not 0 <= size < 1 << 32:
        raise ConfigError(f"size_limit={value!r}: a shard has less than 4 GiB.")
    return size or None


def _words(value: str | Iterable[str]) -> tuple[str, ...]:
    lists = [value] if isinstance(value, str) else list(value)
    return tuple(word.strip() for each in lists for word in each.split(",") if word.strip())


def _columns(value: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    if isinstance(value, Mapping):
        columns = dict(value)
    else:
        columns = {}
        for each in [value] if isinstance(value, str) else value:
            # A comma separates columns, but is also inside 'ndarray:int32:3,224,224'.
            for pair in re.split(r",(?=[^,:]+:)", each):
                name, colon, encoding = pair.partition(":")
                if not colon or not name or not encoding:
                    raise ConfigError(f"{pair!r} is no column. Write name:encoding, as in id:int.")
                columns[name.strip()] = encoding.strip()
    for name, encoding in columns.items():
        if parse_encoding(encoding).is_unsafe:
            raise ConfigError(
                f"column {name!r}: {encoding} would write pickles. Use json or bytes."
            )
    return columns


def _splits(value: str | Sequence[str] | Mapping[str, float]) -> dict[str, float]:
    if isinstance(value, Mapping):
        splits = {name: float(share) for name, share in value.items()}
    else:
        splits = {}
        for pair in _words(value):
            name, _, number = pair.partition("=")
            try:
                splits[name] = float(number)
            except ValueError:
                raise ConfigError(f"{pair!r} is no split. Write train=0.98,val=0.02.") from None
    for name, share in splits.items():
        if not _SPLIT_NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is not the name of a split: it becomes a folder's name.")
        if not 0 < share <= 1:
            raise ConfigError(f"split {name!r} has the share {share}; shares are above 0, up to 1.")
    if splits and abs(sum(splits.values()) - 1) > 1e-6:
        total = f"{sum(splits.values()):.6g}"
        raise ConfigError(f"the shares of the splits add up to {total}, and should to 1.")
    return splits


def _tokens(options: dict[str, Any], columns: Mapping[str, str]) -> TokenSpec | None:
    options = {name: value for name, value in options.items() if value is not None}
    if not options.get("tokenizer"):
        if set(options) - {"drop_last", "block"}:
            raise ConfigError("end_token and text_column are about tokens: give a tokenizer too.")
        return None
    return TokenSpec(**options, encoding=columns.get("tokens", ""))
