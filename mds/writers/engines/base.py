"""Abstract base class of executors (engines), and calls that travel with their errors."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any


class Engine(ABC):
    """Runs functions, each call on its own, anywhere. A context manager; closing twice is fine.

    Functions are those of importable modules, arguments and results are pickled. What a call
    raises is raised by its future, the same kind of error with the same text.
    """

    #: Calls that run at the same time.
    slots: int = 1

    @abstractmethod
    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run a function on the engine."""

    @abstractmethod
    def close(self) -> None:
        """Stop at once; calls under way are abandoned, and must be such that this is harmless."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class InlineEngine(Engine):
    """Every call runs here and now, in the process that asks."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call the function."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:  # noqa: BLE001 - the future carries it to its caller
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Do nothing: no process or thread is left between calls."""

    def __repr__(self) -> str:
        return "<InlineEngine>"


@dataclass(frozen=True, slots=True)
class _Call:
    data: bytes

    def __call__(self, _: Any = None) -> bytes:
        function, arguments = pickle.loads(self.data)  # noqa: S301 - made by `pickle_call`
        try:
            return pickle.dumps((function(*arguments), None))
        except Exception as error:  # noqa: BLE001 - carried to the caller
            return _failure(error)


def pickle_call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[Any], bytes]:
    """Return a picklable call that never raises what its function raises."""
    return _Call(pickle.dumps((function, arguments)))


def unpickle_answer(answer: bytes) -> Any:
    """Return the result in an answer. Raises what the function raised."""
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
