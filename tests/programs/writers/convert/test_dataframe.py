"""Spark data frames become datasets, on a real local Spark."""

import json
import os
import pathlib
from decimal import Decimal

import pytest

from mds.errors import ConfigError

pytest.importorskip("pyspark", reason="pyspark is not installed")

from mds.compat import _writers as compat
from mds.writers import dataframe_to_mds
from mds.writers.convert._dataframe import (
    SPARK_TO_MDS,
    infer_dataframe_schema,
    is_json_compatible,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # pyspark and what it brings warn of each other


@pytest.fixture
def frame(spark):
    from pyspark.sql import types as t

    fields = {
        "a": t.IntegerType(),
        "b": t.StringType(),
        "c": t.ArrayType(t.FloatType()),
        "d": t.MapType(t.StringType(), t.LongType()),
        "e": t.DecimalType(10, 2),
        "f": t.BinaryType(),
    }
    schema = t.StructType([t.StructField(name, kind) for name, kind in fields.items()])
    rows = [(i, f"row {i}", [1.0, i + 0.5], {"k": i}, Decimal("1.20"), b"x" * i) for i in range(9)]
    return spark.createDataFrame(rows, schema).repartition(3)


def test_frame_becomes_a_dataset_of_its_partitions(kit, frame):
    """Every partition is a numbered folder, zstd unless said otherwise, one index over them."""
    assert dataframe_to_mds(frame, mds_kwargs={"out": kit.out, "hashes": ["sha1"]}) == (kit.out, "")
    samples = sorted(kit.samples(), key=lambda sample: sample["a"])
    assert [s["b"] for s in samples] == [f"row {i}" for i in range(9)]
    assert samples[3]["c"].tolist() == [1.0, 3.5]
    assert (samples[3]["d"], samples[3]["e"]) == ({"k": 3}, Decimal("1.20"))
    assert samples[3]["f"] == b"xxx"
    names = set(kit.files())
    assert {"index.json", "00000/index.json", "00000/shard.00000.mds.zstd"} <= names
    with pytest.raises(FileExistsError):
        dataframe_to_mds(frame, mds_kwargs={"out": kit.out})
    few = {"out": kit.out, "exist_ok": True, "columns": {"a": "int64"}, "compression": None}
    dataframe_to_mds(frame.limit(2), mds_kwargs=few)
    assert len(kit.samples()) == 2
    assert set(kit.samples()[0]) == {"a"}


def test_digests_follow_the_writer(kit, frame):
    """They are stored by default, and through the door only if they are named."""
    for write, options, hashes in (
        (dataframe_to_mds, {}, ["xxh3_64"]),
        (dataframe_to_mds, {"hashes": []}, []),
        (compat.dataframe_to_mds, {}, []),
        (compat.dataframe_to_mds, {"hashes": None}, []),
        (compat.dataframe_to_mds, {"hashes": ["sha1"]}, ["sha1"]),
    ):
        write(frame.limit(1), mds_kwargs={"out": kit.out, "exist_ok": True, **options})
        (shard,) = json.loads(pathlib.Path(kit.out, "index.json").read_bytes())["shards"]
        assert shard["hashes"] == hashes


def test_function_of_the_user_makes_the_samples(kit, frame):
    """udf_iterable gets batches as pandas data frames, and may make any samples of them."""

    def double(batch, times):
        for value in batch["a"]:
            for _ in range(times):
                yield {"n": int(value)}

    out = (kit.out, kit.out + "-remote")
    with pytest.raises(ConfigError, match="declare their columns"):
        dataframe_to_mds(frame, mds_kwargs={"out": out}, udf_iterable=double)
    done = dataframe_to_mds(
        frame,
        merge_index=False,
        mds_kwargs={"out": out, "columns": {"n": "int"}, "keep_local": True},
        udf_iterable=double,
        udf_kwargs={"times": 2},
    )
    assert done == out
    for place in out:
        assert not os.path.exists(os.path.join(place, "index.json"))
        parts = [kit.samples(os.path.join(place, name)) for name in sorted(os.listdir(place))]
        assert sorted(s["n"] for part in parts for s in part) == sorted([*range(9), *range(9)])


def test_schema_is_inferred_or_checked(spark):
    """Types without an encoding are refused with the way out, declared columns must fit."""
    frame = spark.sql(
        "select 1 as i, binary('x') as b, array(1L) as v, array('x') as w, true as y, "
        "named_struct('p', 1, 'q', array('z')) as s, current_date() as t"
    )
    assert infer_dataframe_schema(frame.select("i", "b", "v", "w", "s")) == {
        "i": "int32",
        "b": "bytes",
        "v": "ndarray:int64",
        "w": "json",
        "s": "json",
    }
    with pytest.raises(ConfigError, match=r"'y' is boolean.*cast"):
        infer_dataframe_schema(frame.select("y"))
    with pytest.raises(ConfigError, match=r"'t' is date.*cast it to string"):
        infer_dataframe_schema(frame.select("t"))
    assert infer_dataframe_schema(frame, {"b": "jpeg"}) == {"b": "jpeg"}
    with pytest.raises(ConfigError, match="'i' is int, which 'str' cannot store"):
        infer_dataframe_schema(frame, {"i": "str"})
    with pytest.raises(ConfigError, match="no column 'zz'"):
        infer_dataframe_schema(frame, {"zz": "str"})


def test_table_of_types_is_the_documented_one(spark):
    """SPARK_TO_MDS names an encoding for every plain type; JSON takes what JSON can say."""
    from pyspark.sql import types as t

    assert spark is not None
    assert SPARK_TO_MDS[t.LongType()] == "int64"
    assert SPARK_TO_MDS[t.ArrayType(t.DoubleType())] == "ndarray:float64"
    assert is_json_compatible(t.MapType(t.StringType(), t.ArrayType(t.BooleanType())))
    assert not is_json_compatible(t.MapType(t.IntegerType(), t.StringType()))
    assert not is_json_compatible(t.StructType([t.StructField("b", t.BinaryType())]))
