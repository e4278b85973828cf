"""Short names for values, so that what was computed from equal values can be found again."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def digest(*parts: str | float | NDArray[Any] | None) -> str:
    """A short name for values; arrays by their content."""
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.astype("<i8").tobytes() if isinstance(part, np.ndarray) else repr(part).encode()
        made.update(len(data).to_bytes(8, "little"))
        made.update(data)
    return made.hexdigest()
