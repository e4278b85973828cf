"""Registry of engines: one by its name."""

from __future__ import annotations

from mds.errors import ConfigError
from mds.text.near import did_you_mean
from mds.writers.engines.base import Engine, InlineEngine


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
    near = did_you_mean(name, ("local", "spark", "ray"))
    raise ConfigError(f"there is no engine {name!r}.{near} Known are local, spark and ray.")
