"""Nested values as JSON has them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np

from mds.errors import EncodingError


def as_json(value: Any) -> Any:
    """Return a value with everything that JSON lacks replaced by an equivalent.

    Raises EncodingError for bytes, which JSON has no word for at all.
    """
    convert = _JSON.get(type(value))
    if convert is not None:
        return convert(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, timedelta)):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        raise EncodingError(
            "bytes inside of a nested value, which JSON does not hold; leave the column out, or "
            "give the bytes a column of their own."
        )
    return value


_JSON: dict[type, Callable[[Any], Any]] = {
    dict: lambda value: {str(key): as_json(each) for key, each in value.items()},
    list: lambda value: [as_json(each) for each in value],
    tuple: lambda value: [as_json(each) for each in value],
}
