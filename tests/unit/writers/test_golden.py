"""Writer calls that mosaicml-streaming was given, given again: the same bytes on disk.

Whoever mixes writers of both relies on this. Calls without ``hashes`` get an empty list, because
mds stores digests by default. What compressors make depends on their version, so
compressed files are compared after decompression, and the index without their sizes and digests.
"""

import base64
import io
import json
import pathlib
import pickle
import warnings
from contextlib import ExitStack
from decimal import Decimal

import numpy as np
import pytest

import mds
from mds._shardfile.compression import parse_compression

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "shards"
# A pickle's bytes depend on which parts of an object are one and the same.
CASES = {path.parent.name for path in GOLDEN.glob("*/expected.json")} - {"pickle"}
# A limit of nothing is no limit there; here it is refused, since zero rarely means everything.
CASES = sorted(CASES - {"size_limit_0"})
MANIFEST = json.loads((GOLDEN / "manifest.json").read_text())
ENCODED_BY_PILLOW = {"jpeg", "png", "list_images"}


def value_of(form, tmp_path, stack):
    """The object that was given to `write`, from its description."""
    kind = form["in"]
    data = base64.b64decode(form.get("b64", ""))
    if kind in {"bytes", "bytearray"}:
        return bytes(data) if kind == "bytes" else bytearray(data)
    if kind in {"ndarray", "numpy"}:
        array = np.frombuffer(data, form["dtype"])
        return array[0] if kind == "numpy" else array.reshape(form["shape"]).copy(form["order"])
    if kind == "image":
        from PIL import Image

        image = Image.frombytes(form["mode"], tuple(form["size"]), data)
        if "palette_b64" in form:
            image.putpalette(base64.b64decode(form["palette_b64"]))
        return image
    if kind == "jpeg_file":
        from PIL import Image

        path = tmp_path / f"{abs(hash(data))}.jpg"
        path.write_bytes(data)
        return stack.enter_context(Image.open(path))
    text = form["v"]
    if kind == "list":
        return [value_of(item, tmp_path, stack) for item in text]
    plain = {"int": int, "float": float.fromhex, "decimal": Decimal, "json_text": json.loads}
    return plain.get(kind, lambda v: v)(text)


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.*"))}


def opened(index):
    """The index with what depends on a compressor's version taken out."""
    index = json.loads(index)
    for shard in index["shards"]:
        for info in (shard.get("zip_data"), shard.get("zip_meta")):
            if info:
                info["bytes"] = 0
                info["hashes"] = sorted(info["hashes"])
    return index


@pytest.mark.parametrize("case", CASES)
def test_the_same_call_makes_the_same_bytes(case, tmp_path):
    """Shards, meta files and index are equal, byte for byte."""
    expected = json.loads((GOLDEN / case / "expected.json").read_text())
    pillow_differs = pytest.importorskip("PIL").__version__ != MANIFEST["pillow"]
    if case in ENCODED_BY_PILLOW and pillow_differs:
        pytest.skip("encoded by another version of Pillow")
    out = tmp_path / "out"
    kwargs = {**expected["kwargs"], "hashes": expected["kwargs"].get("hashes") or []}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a palette that the format cannot hold
        make = getattr(mds, expected["writer"])
        with ExitStack() as stack, make(out=str(out), **kwargs) as writer:
            for sample in expected["samples"]:
                form = sample["input"].items()
                writer.write({name: value_of(value, tmp_path, stack) for name, value in form})
    wanted, found = files(GOLDEN / case / "data" / expected["split"]), files(out)
    codec = parse_compression(expected["kwargs"].get("compression"))
    if codec is None:
        assert found == wanted
        return
    assert found.keys() == wanted.keys()
    index = json.loads(wanted["index.json"])
    assert opened(found["index.json"]) == opened(wanted["index.json"])
    for shard in index["shards"]:
        for what in ("data", "meta"):
            if f"zip_{what}" in shard:
                name, size = shard[f"zip_{what}"]["basename"], shard[f"raw_{what}"]["bytes"]
                assert codec.decompress(found[name], size) == codec.decompress(wanted[name], size)


def test_pickles_are_plain_pickles(tmp_path):
    """A pkl column holds what pickle.dumps makes."""
    value = {"a": [1, 2.5], "b": ("x", None)}
    with mds.MDSWriter(out=str(tmp_path / "out"), columns={"x": "pkl"}) as writer:
        writer.write({"x": value})
    data = (tmp_path / "out" / "shard.00000.mds").read_bytes()
    assert data.endswith(pickle.dumps(value))
    assert pickle.load(io.BytesIO(data[-len(pickle.dumps(value)) :])) == value
