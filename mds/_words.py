"""Words that arguments accept, as a type for each set of words; and nouns with their count.

Editors and type checkers read the types, and the checks at run time ask ``get_args`` for the words,
so each set is written once. An argument whose names users can register has the type
``ShuffleAlgo | str``.
"""

from __future__ import annotations

from typing import Literal

Balance = Literal["attention", "tokens"]
BatchingMethod = Literal["random", "stratified", "per_stream", "device_per_stream"]
Between = Literal["hold", "linear", "cosine"]
Compression = Literal["br", "bz2", "gz", "snappy", "zstd"]
Crop = Literal["center", "random"]
Digest = Literal[
    "blake2b",
    "blake2s",
    "md5",
    "sha1",
    "sha224",
    "sha256",
    "sha384",
    "sha512",
    "sha3_224",
    "sha3_256",
    "sha3_384",
    "sha3_512",
    "xxh32",
    "xxh64",
    "xxh128",
    "xxh3_64",
    "xxh3_128",
]
EngineName = Literal["local", "spark", "ray"]
Exhausted = Literal["repeat", "stop", "error"]
ImageDtype = Literal["uint8", "float32"]
ImageForm = Literal["pil", "array"]
OnError = Literal["raise", "skip"]
Overflow = Literal["error", "split", "truncate", "drop"]
PackLayout = Literal["varlen", "dense"]
PackLabels = Literal["masked", "shifted"]
PadColumn = Literal["lengths", "mask"]
PadSide = Literal["left", "right"]
PartitionAlgo = Literal["orig", "relaxed"]
Remainder = Literal["repeat", "short", "mask"]
SamplingMethod = Literal["balanced", "fixed"]
ShuffleAlgo = Literal["naive", "py1b", "py1br", "py1e", "py1s", "py2s", "seekable"]
Unit = Literal["steps", "samples", "tokens"]
WorkerType = Literal["auto", "processes", "threads"]


def plural(count: int, word: str) -> str:
    """Return a count with its noun: ``plural(1, "shard") == "1 shard"``."""
    ending = "" if count == 1 else "es" if word.endswith(("tch", "ss")) else "s"
    return f"{count:,} {word}{ending}"
