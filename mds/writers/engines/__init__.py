"""Executors of conversion work: processes of this machine, a Spark cluster, a Ray cluster.

An engine runs functions somewhere and gives futures; what is run neither knows nor cares. Spark's
data frames are written by `dataframe_to_mds`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mds.writers.engines.base import Engine
from mds.writers.engines.open import open_engine

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
