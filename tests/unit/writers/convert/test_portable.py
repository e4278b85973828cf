"""Encodings: exact by default, and with --portable those that mosaicml-streaming reads."""

import io
from decimal import Decimal

import numpy as np
import pytest
from PIL import Image
from quickly import convert, prepare

from mds.errors import ConfigError, RecordError
from mds.writers.convert._portable import is_portable

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

#: Columns, their exact encodings, and their portable ones.
COLUMNS = {
    "i": ([1, None], "optional[int]", "json"),
    "s": (["a", None], "optional[str]", "json"),
    "y": ([True, False], "bool", "json"),
    "z": ([True, None], "optional[bool]", "json"),
    "b": ([b"x", b"y"], "bytes", "bytes"),
    "d": ([Decimal("1.50"), None], "optional[str_decimal]", "json"),
    "f": ([0.5, 1.5], "float64", "float64"),
    "n": ([{"k": 1}, None], "json", "json"),
}


def sources(kit, columns):
    """Yield the same samples as a list, a table, a Parquet file and a Hugging Face dataset."""
    datasets = pytest.importorskip("datasets")
    names = list(columns)
    table = pa.table({name: values for name, (values, *_) in columns.items()})
    samples = [
        dict(zip(names, row, strict=True))
        for row in zip(*[columns[name][0] for name in names], strict=True)
    ]
    pq.write_table(table, str(kit.source / "a.parquet"))
    yield "list", samples
    yield "table", table
    yield "frame", table.to_pandas() if "d" not in columns else table
    yield "file", str(kit.source)
    yield (
        "hugging face",
        datasets.Dataset.from_dict({name: columns[name][0] for name in names if name != "d"}),
    )


def test_types_are_exact_from_every_source(kit):
    """Nulls are optional, truth values bool, decimals decimals; the plan names them in one line."""
    for number, (kind, source) in enumerate(sources(kit, COLUMNS)):
        plan = prepare(source, f"{kit.out}{number}")
        found = kit.encodings(plan)
        assert found == {name: COLUMNS[name][1] for name in found}, kind
        (note,) = [each for each in plan.source.notes if "mosaicml-streaming" in each]
        assert "i (optional[int])" in note
        assert "--portable" in note
        assert "f (float64)" not in note
        plan.run()
        first, second = kit.samples(f"{kit.out}{number}")
        assert first == {name: COLUMNS[name][0][0] for name in found}
        assert second == {name: COLUMNS[name][0][1] for name in found}


def test_portable_encodings_are_known_to_mosaicml_streaming(kit):
    """The values are the same, except that JSON has no decimals."""
    for number, (kind, source) in enumerate(sources(kit, COLUMNS)):
        plan = prepare(source, f"{kit.out}{number}", portable=True)
        found = kit.encodings(plan)
        assert found == {name: COLUMNS[name][2] for name in found}, kind
        assert all(map(is_portable, found.values()))
        assert not [each for each in plan.source.notes if "mosaicml-streaming" in each]
        plan.run()
        first, second = kit.samples(f"{kit.out}{number}")
        assert first == {name: COLUMNS[name][0][0] for name in found} | (
            {"d": "1.50"} if "d" in found else {}
        )
        assert second == {name: COLUMNS[name][0][1] for name in found}


def test_an_encoding_that_the_user_chose_stays(kit):
    """Also one that mosaicml-streaming does not read; the note names it."""
    plan = prepare(
        [{"x": 1}, {"x": None}], kit.out, portable=True, encodings={"x": "optional[int]"}
    )
    assert kit.encodings(plan) == {"x": "optional[int]"}
    assert any("x (optional[int])" in note for note in plan.source.notes)


def test_bytes_cannot_be_missing_in_a_portable_dataset(kit):
    """JSON has no bytes, so a missing value is an error that names what holds it."""
    samples = [{"b": b"x"}, {"b": None}]
    plan = prepare(samples, kit.out, portable=True)
    assert kit.encodings(plan) == {"b": "bytes"}
    with pytest.raises(RecordError, match=r"sample 1, column 'b'.*optional\[bytes\]"):
        plan.run()


def test_lists_of_files_are_refused(kit):
    """Nothing that mosaicml-streaming reads holds them."""
    file = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"x": pa.array([[{"bytes": b"a", "path": "a.bin"}]], pa.list_(file))})
    pq.write_table(table, str(kit.source / "a.parquet"))
    assert kit.encodings(prepare(str(kit.source), kit.out)) == {"x": "list[bytes]"}
    with pytest.raises(ConfigError, match=r"column 'x' has lists of files .*--drop"):
        prepare(str(kit.source), kit.out, portable=True)


def test_empty_arrays_are_tensors_or_lists(kit):
    """Exact: arrays. Portable: JSON, since an `ndarray` is never empty."""
    samples = [{"v": np.arange(2)}, {"v": np.arange(0)}]
    assert kit.encodings(prepare(samples, kit.out)) == {"v": "tensor:int64"}
    convert(samples, kit.out, portable=True)
    assert kit.samples() == [{"v": [0, 1]}, {"v": []}]


def test_lists_of_pictures_of_hugging_face_are_lists(kit):
    """The files are stored unchanged; a sound that is neither WAV nor FLAC names its remedy."""
    datasets = pytest.importorskip("datasets")
    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, "JPEG")
    pictures = [{"bytes": file.getvalue(), "path": None}] * 2
    features = datasets.Features({"x": datasets.List(datasets.Image())})
    table = datasets.Dataset.from_dict({"x": [pictures, []]}, features=features)
    plan = prepare(table, kit.out)
    assert kit.encodings(plan) == {"x": "list[jpeg]"}
    plan.run()
    assert [len(sample["x"]) for sample in kit.samples()] == [2, 0]
    sounds = datasets.Dataset.from_dict({"a": [{"bytes": b"ID3" + bytes(60), "path": "a.mp3"}]})
    sounds = sounds.cast_column("a", datasets.Audio())
    with pytest.raises(RecordError, match=r"row 0|sample 0.*--encodings a:bytes"):
        convert(sounds, kit.out + "2")
    convert(sounds, kit.out + "3", encodings={"a": "bytes"})
    assert kit.samples(kit.out + "3") == [{"a": b"ID3" + bytes(60)}]
