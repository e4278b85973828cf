"""Tokenization: from documents to blocks of token ids, with a token at the end of each document.

    bytes               every UTF-8 byte is a token, 256 ends a document
    tiktoken:gpt2       an encoding of tiktoken
    a path              tokenizer.json of Hugging Face tokenizers, or a folder that holds one
    a name              a tokenizer of the Hugging Face hub

Documents are laid end to end and cut into blocks, so no token is lost. The last block is filled
with end tokens, or is dropped with `drop_last`; a note of the conversion says which.

The text of a document is in a column ("text"), or in values inside it ("messages.content").
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from mds._words import plural
from mds.encodings import parse_encoding
from mds.errors import ConfigError, need

#: Usual spellings of the token that ends a document, the likeliest first.
_ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[EOS]", "<|eos|>", "[SEP]")


@dataclass(frozen=True, slots=True)
class TokenSpec:
    """Settings of a conversion to blocks of tokens.

    - ``tokenizer`` (str): Its name, as above; ``block`` (int): tokens of a block.
    - ``end`` (str | None): The token that ends a document; None: the tokenizer's own, "": none.
    - ``text`` (str | None): The column of text, or a path in it such as "messages.content"; None:
      the only one.
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

    ``encode`` turns a text into ids, ``end`` is the id that ends a document (None: no such id),
    ``size`` is the number of ids, and ``end_token`` is the token of ``end`` as text, if known.
    """

    encode: Callable[[str], Sequence[int]]
    end: int | None
    size: int
    end_token: str = ""

    def describe_end(self) -> str:
        """Return how documents end, for the plan of a conversion."""
        if self.end is None:
            return "no end token"
        return f"end token {self.end_token or self.end}"


# ------------------------------------------------------------------------------- text of a record

#: Usual names of the text of a message, the likeliest first.
_TEXT_KEYS = ("content", "value", "text")


def find_text(record: Mapping[str, Any], path: str) -> str:
    """Return the text of a record at a path; several texts are joined by line ends.

    The path is a column ("text"), or a column and keys inside its dicts ("messages.content"). Of a
    list, the texts of all items are taken. Raises ValueError if there is no text, or another value.

    >>> find_text({"turns": [{"text": "Hi"}, {"text": "Hello"}]}, "turns.text").split()
    ['Hi', 'Hello']
    """
    column, keys = split_path(path, record)
    value = decoded(record.get(column)) if keys else record.get(column)
    texts = list(_texts_in(value, keys, path))
    if not texts:
        raise ValueError(f"column {column!r}: there is no text at {path!r}")
    return "\n".join(texts)


def split_path(path: str, columns: Iterable[str]) -> tuple[str, list[str]]:
    """Return the column of a path and the keys below it. A column may have dots in its name.

    ``columns`` are the names of all columns.
    """
    if path in {*columns}:
        return path, []
    column, *keys = path.split(".")
    return column, keys


def decoded(value: Any) -> Any:
    """Return a nested value; in an MDS dataset it is the bytes of JSON."""
    return json.loads(value) if isinstance(value, bytes) else value


def _texts_in(value: Any, keys: Sequence[str], path: str) -> Iterator[str]:
    """Yield the texts below a value. Raises ValueError for another value at the end of ``keys``."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts_in(item, keys, path)
    elif keys and isinstance(value, Mapping):
        yield from _texts_in(value.get(keys[0]), keys[1:], path)
    elif not keys and isinstance(value, (str, bytes)):
        yield value if isinstance(value, str) else value.decode()
    elif value is not None or "." not in path:  # a message may have no text, such as a tool call
        raise ValueError(f"column {path!r}: expected text, got {type(value).__name__}")


def list_text_paths(records: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> list[str]:
    """Return the paths of text in some columns of records, the likeliest of each column first.

    - ``records`` (Iterable[Mapping[str, Any]]): Some records of the source.
    - ``columns`` (Sequence[str]): Columns with nested values or values of several types.
    """
    paths: dict[str, None] = {}  # in the order of the records
    for record in records:
        for column in columns:
            paths |= dict.fromkeys(_paths_below(decoded(record.get(column)), column))

    def rank(path: str) -> tuple[int, int]:
        _, dot, key = path.rpartition(".")
        position = _TEXT_KEYS.index(key) if key in _TEXT_KEYS else len(_TEXT_KEYS)
        return columns.index(split_path(path, columns)[0]), position if dot else -1

    return sorted(paths, key=rank)


def is_message_path(path: str) -> bool:
    """Return whether a path is that of the texts of messages, such as "messages.content"."""
    _, dot, key = path.rpartition(".")
    return bool(dot) and key in _TEXT_KEYS


def _paths_below(value: Any, path: str) -> Iterator[str]:
    """Yield the paths of all texts below a value."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _paths_below(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _paths_below(item, path)


# --------------------------------------------------------------------------------------- tokenizers


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
            f"{spec.tokenizer} has {plural(size, 'token')}, more than {encoding.dtype} can "
            "count; choose "
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
    name_of_end = "" if token is None else encoding.decode([token])
    return Tokenizer(encoding.encode_ordinary, token, encoding.n_vocab, name_of_end)


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
            f"the tokenizer {name!r} cannot be loaded: {str(error).rstrip('.')}. "
            "Give 'bytes', 'tiktoken:NAME', the path of a tokenizer.json, or the name of a "
            "tokenizer on the Hugging Face hub."
        ) from error
    token = _end_token(loaded.token_to_id, name, end)
    return Tokenizer(
        lambda text: loaded.encode(text, add_special_tokens=False).ids,
        token,
        loaded.get_vocab_size(),
        (None if token is None else loaded.id_to_token(token)) or "",
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
