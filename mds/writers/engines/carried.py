"""A call and its answer as bytes, so that errors come back from clusters as what they are.

Spark and Ray wrap what a task raises in errors of their own, with the user's sentence buried in a
Java or a remote traceback.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class _Call:
    data: bytes

    def __call__(self, _: Any = None) -> bytes:
        function, arguments = pickle.loads(self.data)  # noqa: S301 - made by `carried`
        try:
            return pickle.dumps((function(*arguments), None))
        except Exception as error:  # noqa: BLE001 - carried to the one who asked
            return _failure(error)


def carried(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[Any], bytes]:
    """A picklable call that never raises what its function raises."""
    return _Call(pickle.dumps((function, arguments)))


def unpacked(answer: bytes) -> Any:
    """The result in an answer. Raises what the function raised."""
    result, error = pickle.loads(answer)  # noqa: S301 - made by our own call
    if error is not None:
        raise error
    return result


def _failure(error: Exception) -> bytes:
    try:
        data = pickle.dumps((None, error))
        pickle.loads(data)  # noqa: S301 - made in the line before
    except Exception:  # noqa: BLE001 - errors of other packages do not all survive pickling
        return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))
    return data
