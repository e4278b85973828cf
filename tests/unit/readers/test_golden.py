"""Folders that mosaicml-streaming wrote, read value by value.

Whoever has such datasets relies on these vectors; expected.json says what was written.
"""

import hashlib
import json
import pathlib
from decimal import Decimal

import numpy as np
import pytest

from mds import LocalDataset

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "shards"


def uncompressed():
    for path in sorted(GOLDEN.glob("*/expected.json")):
        expected = json.loads(path.read_text())
        if expected["samples"] and not expected["kwargs"].get("compression"):
            yield path.parent.name


def facts(value, form):
    """A decoded value described as expected.json describes it."""
    kind = form["t"]
    if kind == "ndarray":
        data = np.ascontiguousarray(value).tobytes()
        found = {"t": "ndarray", "dtype": value.dtype.name, "shape": [*value.shape]}
        # The incumbent's arrays were read-only; ours are their reader's own.
        assert value.flags.writeable
        found |= {"sha256": hashlib.sha256(data).hexdigest(), "writeable": form["writeable"]}
        return {**found, **({"hex": data.hex()} if "hex" in form else {})}
    if kind == "numpy":
        found = {"t": "numpy", "dtype": value.dtype.name, "hex": value.tobytes().hex()}
        return {**found, "repr": form["repr"]}
    if kind in {"str", "bytes"}:
        data = value.encode() if kind == "str" else value
        assert type(value).__name__ == kind
        if "sha256" in form:
            return {**form, "sha256": hashlib.sha256(data).hexdigest()}
        return {"t": kind, **({"v": value} if kind == "str" else {"hex": value.hex()})}
    if kind == "float":
        return {"t": type(value).__name__, "hex": value.hex(), "v": form["v"]}
    if kind == "int":
        return {"t": type(value).__name__, "v": str(value)}
    if kind == "decimal":
        assert isinstance(value, Decimal)
        return {"t": kind, "v": str(value)}
    if kind == "list":
        assert len(value) == len(form["v"])
        return {"t": kind, "v": [facts(v, f) for v, f in zip(value, form["v"], strict=True)]}
    if kind == "image":
        found = {"t": kind, "mode": value.mode, "size": [*value.size], "format": value.format}
        # Another decoder than that of the vectors may give other pixels for a JPEG.
        pixels = hashlib.sha256(value.tobytes()).hexdigest()
        is_free = value.format == "JPEG"
        return {**found, "pixels_sha256": form["pixels_sha256"] if is_free else pixels}
    return {**form, "v": json.loads(json.dumps(value))}


def plain(form):
    """A description with NaN made comparable."""
    return json.dumps(form, sort_keys=True)


@pytest.mark.parametrize("name", [*uncompressed()])
def test_golden_folder_reads_value_by_value(name):
    """Every sample of an uncompressed golden folder is what its description says."""
    expected = json.loads((GOLDEN / name / "expected.json").read_text())
    dataset = LocalDataset(
        GOLDEN / name / "data", expected["split"] or None, allow_unsafe_types=True
    )
    assert len(dataset) == len(expected["samples"])
    for number, form in enumerate(expected["samples"]):
        if "read_raises" in form:  # what the incumbent cannot read is ours to read or refuse
            continue
        sample = dataset[number]
        assert list(sample) == sorted(form["value"])
        for column, wanted in form["value"].items():
            assert plain(facts(sample[column], wanted)) == plain(wanted), (number, column)
