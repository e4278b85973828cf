"""Tokenization: text to blocks of token ids, each document ended by a token that says so.

    bytes               every UTF-8 byte is a token, 256 ends a document
    tiktoken:gpt2       an encoding of tiktoken
    a path              tokenizer.json of Hugging Face tokenizers, or a folder that holds one
    a name              a tokenizer of the Hugging Face hub

A block crosses documents and no token is lost: the last block is filled up with the token that
ends documents, or is dropped when asked for, and either is said.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from mds.encodings import parse_encoding
from mds.errors import ConfigError, need

#: Names under which tokenizers know the token between documents, the likeliest first.
_ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[EOS]", "<|eos|>", "[SEP]")


@dataclass(frozen=True, slots=True)
class TokenSpec:
    """Settings for cutting text into blocks; ``end`` None is the tokenizer's own, '' is none."""

    tokenizer: str
    block: int = 2048
    end: str | None = None
    text: str | None = None
    drop_last: bool = False
    encoding: str = ""

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ConfigError(f"a block of {self.block} tokens; it takes at least one.")

    @property
    def column(self) -> str:
        """The encoding of the column of tokens."""
        return self.encoding or f"ndarray:int32:{self.block}"


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A tokenizer at hand: text to ids, the id that ends a document, ids there are."""

    encode: Callable[[str], Sequence[int]]
    end: int | None
    size: int


def check_column(spec: TokenSpec) -> np.dtype[Any]:
    """Return the dtype of a block. Raises ConfigError if it cannot hold the vocabulary."""
    encoding = parse_encoding(spec.column)
    if encoding.dtype is None or encoding.shape != (spec.block,) or encoding.dtype.kind not in "iu":
        raise ConfigError(
            f"the column of tokens is {spec.column!r}; it must be integers of a fixed shape, such "
            f"as 'ndarray:uint16:{spec.block}'."
        )
    size = load_tokenizer(spec.tokenizer, spec.end).size
    if size - 1 > np.iinfo(encoding.dtype).max:
        raise ConfigError(
            f"{spec.tokenizer} has {size} tokens, more than {encoding.dtype} counts; choose "
            f"'tokens:ndarray:int32:{spec.block}'."
        )
    return encoding.dtype


def tokenize(spec: TokenSpec, text: str) -> bytes:
    """Return the ids of a document and its end token, as the bytes that a block holds."""
    tokenizer = load_tokenizer(spec.tokenizer, spec.end)
    dtype = parse_encoding(spec.column).dtype
    if spec.tokenizer == "bytes":
        ids = np.frombuffer(text.encode(), np.uint8).astype(dtype)
    else:
        ids = np.asarray(tokenizer.encode(text), dtype)
    if tokenizer.end is None:
        return ids.tobytes()
    return np.append(ids, np.asarray(tokenizer.end, dtype)).tobytes()


@lru_cache(maxsize=4)
def load_tokenizer(name: str, end: str | None) -> Tokenizer:
    """Load a tokenizer, once per process. Raises ConfigError if there is none of that name."""
    if name == "bytes":
        return Tokenizer(lambda text: text.encode(), None if end == "" else 256, 257)
    if name.startswith("tiktoken:"):
        return _tiktoken(name.removeprefix("tiktoken:"), end)
    return _hugging_face(name, end)


def _tiktoken(name: str, end: str | None) -> Tokenizer:
    try:
        import tiktoken
    except ImportError as error:
        raise need("tiktoken", None, f"the tokenizer tiktoken:{name}") from error
    try:
        encoding = tiktoken.get_encoding(name)
    except ValueError as error:
        encoding_names = ", ".join(sorted(tiktoken.list_encoding_names()))
        raise ConfigError(f"tiktoken has no encoding {name!r}; it has {encoding_names}.") from error
    except OSError as error:
        raise ConfigError(f"the tokenizer tiktoken:{name} cannot be fetched: {error}") from error
    token = encoding.eot_token if end is None else None
    if end:
        try:
            token = encoding.encode_single_token(end)
        except KeyError:
            raise ConfigError(f"tiktoken:{name} has no token {end!r}.") from None
    return Tokenizer(encoding.encode_ordinary, token, encoding.n_vocab)


def _hugging_face(name: str, end: str | None) -> Tokenizer:
    try:
        from tokenizers import Tokenizer as Fast
    except ImportError as error:
        raise need("tokenizers", "hf", f"the tokenizer {name}") from error
    # Processes are the parallelism here; threads of the tokenizer's own would fight them.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    path = os.path.join(name, "tokenizer.json") if os.path.isdir(name) else name
    try:
        loaded = Fast.from_file(path) if os.path.isfile(path) else Fast.from_pretrained(name)
    except Exception as error:  # the package raises plain Exception for whatever went wrong
        raise ConfigError(
            f"the tokenizer {name!r} cannot be loaded: {error}. Give 'bytes', 'tiktoken:NAME', the "
            "path of a tokenizer.json, or the name of a tokenizer on the Hugging Face hub."
        ) from error
    token = _end_token(loaded.token_to_id, name, end)
    return Tokenizer(
        lambda text: loaded.encode(text, add_special_tokens=False).ids,
        token,
        loaded.get_vocab_size(),
    )


def _end_token(find: Callable[[str], int | None], name: str, end: str | None) -> int | None:
    if end == "":
        return None
    for token in _ENDS if end is None else (end,):
        if (number := find(token)) is not None:
            return number
    if end is not None:
        raise ConfigError(f"the tokenizer {name!r} has no token {end!r}.")
    raise ConfigError(
        f"the tokenizer {name!r} has no token that is known to end documents "
        f"({', '.join(_ENDS)}). Name it with --end-token, or say --end-token '' for none."
    )
