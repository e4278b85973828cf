"""The seam between work and where it is done."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from mds.errors import ConfigError


class Engine(ABC):
    """Runs functions, each call on its own, anywhere. A context manager; closing twice is fine.

    Functions are those of importable modules, arguments and results are pickled. What a call
    raises is raised by its future, the same kind of error with the same text.
    """

    #: Calls that run at the same time.
    slots: int = 1

    @abstractmethod
    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Have a function called somewhere."""

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
        except Exception as error:  # noqa: BLE001 - the future carries it to whoever asks
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Nothing runs between calls."""

    def __repr__(self) -> str:
        return "<InlineEngine>"


def open_engine(name: str, workers: int) -> Engine:
    """An engine by name: `local`, `spark` or `ray`.

    ``workers`` counts processes of this machine; clusters bring as many as they have.
    """
    if name == "local":
        from mds.writers.engines.local import LocalEngine

        return LocalEngine(workers) if workers > 1 else InlineEngine()
    if name == "spark":
        from mds.writers.engines.spark import SparkEngine

        return SparkEngine()
    if name == "ray":
        from mds.writers.engines.ray import RayEngine

        return RayEngine()
    raise ConfigError(f"there is no engine {name!r}. Known are local, spark and ray.")
