"""Tokenization: from documents to blocks of token ids, with a token at the end of each document.

    bytes               every UTF-8 byte is a token, 256 ends a document
    tiktoken:gpt2       an encoding of tiktoken
    a path              tokenizer.json of Hugging Face tokenizers, or a folder that holds one
    a name              a tokenizer of the Hugging Face hub

Documents are laid end to end and cut into blocks, so no token is lost. The last block is filled
with end tokens, or is dropped with `drop_last`; a note of the conversion says which.
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

#: Usual spellings of the token that ends a document, the likeliest first.
_ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[EOS]", "<|eos|>", "[SEP]")


@dataclass(frozen=True, slots=True)
class TokenSpec:
    """Settings of a conversion to blocks of tokens.

    - ``tokenizer`` (str): Its name, as above; ``block`` (int): tokens of a block.
    - ``end`` (str | None): The token that ends a document; None: the tokenizer's own, "": none.
    - ``text`` (str | None): The column of text; None: the only one.
    - ``drop_last`` (bool): Whether to drop the tokens that fill no block.
    - ``encoding`` (str): The encoding of the column of tokens; "": 32-bit integers.
    """

    tokenizer: str
    block: int = 2048
    end: str | None = None
    text: str | None = None
    drop_last: bool = False
    encoding: str = ""

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ConfigError(f"block={self.block}: a block must have at least 1 token.")

    @property
    def column(self) -> str:
        """The encoding of the column of tokens."""
        return self.encoding or f"ndarray:int32:{self.block}"


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A loaded tokenizer.

    ``encode`` turns a text into ids, ``end`` is the id that ends a document (None: no such id), and
    ``size`` is the number of ids.
    """

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
            f"{spec.tokenizer} has {size} tokens, more than {encoding.dtype} can count; choose "
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
    """Load an encoding of tiktoken, with ``end`` as in `TokenSpec`. Raises ConfigError."""
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
    # None: the token of the encoding itself; "": no token.
    token = encoding.eot_token if end is None else None
    if end:
        try:
            token = encoding.encode_single_token(end)
        except KeyError:
            raise ConfigError(f"tiktoken:{name} has no token {end!r}.") from None
    return Tokenizer(encoding.encode_ordinary, token, encoding.n_vocab)


def _hugging_face(name: str, end: str | None) -> Tokenizer:
    """Load a tokenizer of Hugging Face from a path or by name. Raises ConfigError."""
    try:
        from tokenizers import Tokenizer as Fast
    except ImportError as error:
        raise need("tokenizers", "hf", f"the tokenizer {name}") from error
    # Several processes tokenize already; more threads in each would slow them down.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    path = os.path.join(name, "tokenizer.json") if os.path.isdir(name) else name
    try:
        loaded = Fast.from_file(path) if os.path.isfile(path) else Fast.from_pretrained(name)
    except Exception as error:  # the package raises plain Exception for every failure
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
    """Return the id of the token that ends documents, or None for none (``end`` is "").

    - ``find`` (function): Returns the id of a token, or None if the tokenizer lacks it.
    - ``name`` (str): The tokenizer, for messages.
    - ``end`` (str | None): The token; None: the first usual one that the tokenizer has.

    Raises ConfigError if the tokenizer has no such token.
    """
    if end == "":
        return None
    for token in _ENDS if end is None else (end,):
        if (number := find(token)) is not None:
            return number
    if end is not None:
        raise ConfigError(f"the tokenizer {name!r} has no token {end!r}.")
    raise ConfigError(
        f"the tokenizer {name!r} has none of the usual tokens for the end of a document "
        f"({', '.join(_ENDS)}). Name one with --end-token, or give --end-token '' for none."
    )
