"""Objects of any make: `json`, and `pkl`, which is unsafe and refused unless asked for.

Reading a pickle runs whatever code its writer liked, so readers refuse a column with `pkl`
anywhere in its encoding unless `allow_unsafe_types=True`.
"""

from __future__ import annotations

import json
import json.encoder
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.encodings.base import LARGEST, DecodeKind, Encoding, describe
from mds.encodings.scalars import plain
from mds.errors import EncodingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mds.encodings.base import Data


def _make_dumps() -> Callable[[Any], str]:
    """`json.dumps` with its defaults, without its making a new C encoder for every call.

    That halves its time. Circular objects end in RecursionError rather than ValueError.
    """
    encoder = json.JSONEncoder()
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return encoder.encode
    escape = json.encoder.encode_basestring_ascii
    encode = make(None, encoder.default, escape, None, ": ", ", ", False, False, True)

    def dumps(value: Any) -> str:
        return "".join(encode(value, 0))

    return dumps


_dumps = _make_dumps()


class JsonEncoding(Encoding):
    """Whatever JSON can say; a NumPy array at the top becomes nested lists."""

    shares_memory = False
    takes_bytes = True
    decode_kind = DecodeKind.JSON
    expects = "something that json.dumps takes"

    def __init__(self, name: str) -> None:
        super().__init__(plain(name, "json"))

    def encode(self, value: Any) -> bytes:
        """`json.dumps` with its defaults: keys unsorted, non-ASCII escaped, NaN allowed."""
        # The least that it can be: a text as it is, a digit and a comma for a number.
        if isinstance(value, str) and len(value) > LARGEST:
            raise self.too_large(value, len(value))
        if isinstance(value, np.ndarray):
            if 3 * value.size > LARGEST:
                raise self.too_large(value, 3 * value.size)
            value = value.tolist()
        try:
            return _dumps(value).encode()
        except TypeError as error:
            raise self.refuse(value, f"{error}.") from error
        except (ValueError, RecursionError) as error:
            raise EncodingError(
                f"encoding json: expected {self.expects}, got {describe(value)} ({error})"
            ) from error

    def decode(self, data: Data) -> Any:
        """Return the value that `json.loads` parses."""
        try:
            return json.loads(str(data, "utf-8"))
        except (ValueError, RecursionError) as error:
            raise self.broken(data, error) from error


class PickleEncoding(Encoding):
    """Anything that pickle takes. Unsafe."""

    shares_memory = False
    takes_bytes = True
    is_unsafe = True
    expects = "something that pickle takes"

    def __init__(self, name: str) -> None:
        super().__init__(plain(name, "pkl"))

    def encode(self, value: Any) -> bytes:
        """`pickle.dumps` with the default protocol."""
        try:
            return pickle.dumps(value)
        except Exception as error:  # objects raise what they like while being pickled
            raise EncodingError(
                f"encoding pkl: expected {self.expects}, got {describe(value)} ({error})"
            ) from error

    def check_bytes(self, data: bytes) -> None:
        """Take any bytes: to look inside a pickle is to run it."""
        del data

    def decode(self, data: Data) -> Any:
        """Return the unpickled object."""
        try:
            return pickle.loads(data)  # noqa: S301 - readers ask allow_unsafe_types first
        except Exception as error:  # damaged pickles raise anything at all
            raise self.broken(data, f"{type(error).__name__}: {error}") from error
