"""Executors of conversion work: processes of this machine, a Spark cluster, a Ray cluster.

`open_engine` makes one by name. An engine runs functions somewhere and returns futures.
`dataframe_to_mds` writes Spark's data frames.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mds.arguments import did_you_mean
from mds.errors import ConfigError
from mds.writers.engines.base import Engine, InlineEngine

if TYPE_CHECKING:
    from mds.writers.convert.dataframe import (
        SPARK_TO_MDS,
        dataframe_to_mds,
        infer_dataframe_schema,
        is_json_compatible,
    )

__all__ = [
    "SPARK_TO_MDS",
    "Engine",
    "dataframe_to_mds",
    "infer_dataframe_schema",
    "is_json_compatible",
    "open_engine",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'mds.writers.engines' has no attribute {name!r}")
    from mds.writers.convert import dataframe

    return getattr(dataframe, name)


def open_engine(name: str, workers: int) -> Engine:
    """Return an engine by name: `local`, `spark` or `ray`.

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
