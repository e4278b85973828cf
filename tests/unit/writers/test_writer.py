"""What a writer makes of its arguments: shards, an index, and clear refusals."""

import inspect
import json
import os
import pathlib
import re
import struct
import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
import xxhash

from mds import (
    CSVWriter,
    JSONWriter,
    LocalDataset,
    MDSWriter,
    StreamingDataset,
    TSVWriter,
    XSVWriter,
)
from mds.errors import (
    ArgumentError,
    ConfigError,
    EncodingError,
    EncodingTypeError,
    FixedSizeError,
    MissingColumnError,
    SeparatorError,
    UnknownEncodingError,
    WriterError,
)

INTS = {"x": "int"}


def read_index(path):
    return json.loads(pathlib.Path(path).read_bytes())["shards"]


def fill(writer, samples):
    with writer:
        for i in range(samples):
            writer.write({"x": i})


def test_an_empty_dataset_has_an_index(out, written):
    """No samples make an index without shards."""
    fill(MDSWriter(out=out, columns=INTS), 0)
    assert written(out).names == ["index.json"]
    assert written(out).index == {"shards": [], "version": 2}


def test_shards_end_at_the_limit(out, written):
    """No shard is larger than the limit, and one more sample would not have fitted."""
    fill(MDSWriter(out=out, columns=INTS, size_limit=400), 100)
    sizes = [shard["raw_data"]["bytes"] for shard in written(out).index["shards"]]
    assert all(size <= 400 < size + 12 for size in sizes[:-1])
    assert sum(written(out).counts()) == 100


def test_shards_of_a_number_of_samples(out, written):
    """`samples_per_shard` ends shards too, and the limit still holds."""
    fill(MDSWriter(out=out, columns=INTS, samples_per_shard=30), 100)
    assert written(out).counts() == [30, 30, 30, 10]
    fill(MDSWriter(out=out + "2", columns=INTS, samples_per_shard=30, size_limit=400), 100)
    assert max(written(out + "2").counts()) < 30


WRITERS = {
    MDSWriter: {},
    JSONWriter: {},
    CSVWriter: {},
    TSVWriter: {},
    XSVWriter: {"separator": "|"},
}


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("kind", WRITERS)
def test_digests_are_stored_by_default(out, kind, compression):
    """The index has an xxh3_64 of each file; `hashes=[]` stores none, and the same samples."""
    options = {"columns": INTS, "compression": compression, **WRITERS[kind]}
    for name, hashes in (("default", {}), ("none", {"hashes": None}), ("empty", {"hashes": []})):
        with kind(out=f"{out}/{name}", **options, **hashes) as writer:
            writer.write({"x": 1})
        ((shard,), folder) = read_index(f"{out}/{name}/index.json"), pathlib.Path(out, name)
        expected = [] if hashes == {"hashes": []} else ["xxh3_64"]
        assert shard["hashes"] == writer.hashes == expected
        for file in folder.glob("shard*"):
            keys = [key for key in shard if (shard[key] or {}) and key[4:] in ("data", "meta")]
            (info,) = (shard[key] for key in keys if shard[key]["basename"] == file.name)
            digests = {hash_: xxhash.xxh3_64_hexdigest(file.read_bytes()) for hash_ in expected}
            assert info["hashes"] == digests
        assert StreamingDataset(local=str(folder), batch_size=1)[0] == {"x": 1}


@pytest.mark.parametrize("no_limit", [None, 0, 0.0, "", "0", "0kb"])
def test_zero_and_nothing_are_no_limit(out, written, no_limit):
    """`size_limit=0` and `size_limit=""` put all samples in one shard, as None does."""
    fill(MDSWriter(out=out, columns=INTS, size_limit=no_limit), 70)
    assert written(out).counts() == [70]
    assert written(out).index["shards"][0]["size_limit"] is None


@pytest.mark.parametrize(
    ("encoding", "value", "words"),
    [
        ("int32", 1.5, "got float 1.5, which would become 1. Write round"),
        ("uint8", 1.5, "got float 1.5, which would become 1. Write round"),
        ("uint8", np.float32(3.5), "would become 3"),
        ("uint8", np.array([1.5]), "would become"),
        ("uint8", Decimal("1.5"), "would become 1"),
        ("uint8", Fraction(3, 2), "would become 1"),
        ("uint8", float("nan"), "expected a number"),
        ("uint8", np.array([np.nan]), "expected a whole number"),
        ("int64", float("inf"), "expected a number from -9223"),
        ("int64", float("-inf"), "expected a number from -9223"),
        ("int64", np.float32("nan"), "expected a number"),
        ("uint64", -1, "expected a number from 0"),
        ("uint64", -1.0, "expected a number from 0"),
        ("uint64", np.array([2.0**64]), "expected a number from 0"),
        ("int64", 2.0**63, "expected a number from -9223"),
        ("int64", np.array([2.0**63]), "expected a number from -9223"),
        ("int32", np.float32(2.7), "would become 2"),
        ("int64", Decimal("1.5"), "would become 1"),
        ("int8", np.array([1.5]), "would become"),
        ("uint16", [1.5], "would become"),
        ("optional[int32]", 1.5, "would become 1"),
        ("list[int32]", [1, 1.5], "item 1, encoding int32: expected a whole number"),
        ("float32", 1e300, "got float 1e[+]300. The encoding 'float64' holds it"),
        ("float32", np.float64(-1e39), "expected a number from -3.4"),
        ("float32", 10**39, "expected a number from -3.4"),
        ("float16", 70000, "The encoding 'int32' holds it"),
        ("float16", np.float32(1e6), "expected a number from -65504"),
        ("float64", 10**400, "'str_int' holds"),
        ("float64", Decimal("1e999"), "'str_decimal' holds"),
    ],
)
def test_a_number_that_would_change_is_refused(out, encoding, value, words):
    """A fraction in a column of integers and an overflow to infinity name column and sample."""
    with (
        MDSWriter(out=out, columns={"x": encoding}) as writer,
        pytest.raises(EncodingError, match=rf"column 'x' of sample 0, .*{words}"),
    ):
        writer.write({"x": value})


@pytest.mark.parametrize(
    ("encoding", "value", "stored"),
    [
        ("int32", 2.0, 2),
        ("int32", np.int64(3), 3),
        ("int32", True, 1),
        ("int64", np.float64(2.0**62), 2**62),
        ("float32", 0.1, np.float32(0.1)),
        ("float32", np.float64(0.1), np.float32(0.1)),
        ("float32", Decimal("0.1"), np.float32(0.1)),
        ("float32", 1e-300, 0),
        ("float32", float("-inf"), -np.inf),
        ("float16", np.float32("inf"), np.inf),
        ("float16", 0.1, np.float16(0.1)),
    ],
)
def test_a_number_that_stays_is_taken_in_another_type(out, encoding, value, stored):
    """Rounding and conversions without loss are written without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with MDSWriter(out=out, columns={"x": encoding}) as writer:
            writer.write({"x": value})
    assert LocalDataset(out)[0]["x"] == stored


LOSSLESS = [
    ("int", np.int8(3), 3),
    ("int", np.uint64(7), 7),
    ("int", np.array(4), 4),
    ("int", torch.tensor(5, dtype=torch.int32), 5),
    ("optional[int]", np.int64(3), 3),
    ("int32", torch.tensor(3), 3),
    ("float32", torch.tensor(0.5, requires_grad=True), 0.5),
    ("float32", torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
    ("bool", torch.tensor(True), True),
    ("bool", np.array(False), False),
    ("str_int", np.int64(-3), -3),
    ("str_int", torch.tensor(3), 3),
    ("str_float", np.float32(0.1), float(np.float32(0.1))),
    ("bytes", bytearray(b"ab"), b"ab"),
    ("bytes", memoryview(b"abcd")[::2], b"ac"),
    ("ndarray", torch.arange(6).reshape(2, 3), np.arange(6).reshape(2, 3)),
    ("ndarray:float32", torch.ones(2, requires_grad=True), np.ones(2, np.float32)),
    ("ndarray:int32", [1, -2], np.array([1, -2], np.int32)),
    ("ndarray:int32", ((1, 2), (3, 4)), np.array([[1, 2], [3, 4]], np.int32)),
    ("ndarray:uint64", [1 << 63, 1], np.array([1 << 63, 1], np.uint64)),
    ("ndarray:float32", [0.1, 1], np.array([0.1, 1], np.float32)),
    ("ndarray:float32", [float("inf")], np.array([np.inf], np.float32)),
    ("ndarray:float32:2", [1, 2], np.array([1, 2], np.float32)),
    ("tensor:int64", [], np.array([], np.int64)),
    ("tensor:bool", [True, False], np.array([True, False])),
]


@pytest.mark.parametrize(("encoding", "value", "stored"), LOSSLESS)
def test_values_of_numpy_and_torch_are_taken_without_loss(out, written, encoding, value, stored):
    """Numbers, tensors and lists have the bytes of the value that the column's own type holds."""
    for place, each in ((out, value), (out + "2", stored)):
        with MDSWriter(out=place, columns={"x": encoding}) as writer:
            writer.write({"x": each})
    read = LocalDataset(out)[0]["x"]
    np.testing.assert_array_equal(read, stored)
    assert getattr(read, "dtype", None) == getattr(LocalDataset(out + "2")[0]["x"], "dtype", None)
    assert written(out).bytes() == written(out + "2").bytes()


@pytest.mark.parametrize(
    ("encoding", "value", "words"),
    [
        ("int", np.float32(3), "expected an int, got float32 .* Write int[(]value[)]"),
        ("int", np.bool_(True), "or use the encoding 'bool'"),
        ("int", np.uint64((1 << 64) - 1), "The encoding 'uint64' holds it"),
        ("int", np.array([3]), "For an array, use"),
        ("int", np.datetime64("2020-01-01", "ns"), "expected an int"),
        ("int", np.ma.masked, "expected an int"),
        ("int8", torch.tensor(300), "The encoding 'int16' holds it"),
        ("int32", torch.tensor(1.5), "would become 1"),
        ("str_int", 2.0, "expected a Python int"),
        ("str_float", 3, "expected a Python float"),
        ("str_decimal", np.int64(3), "expected a Decimal"),
        ("str_float", np.longdouble("0.1"), "expected a Python float"),
        ("bytes", np.ones(2), "Write value.tobytes"),
        ("ndarray", [1, 2], "or name the type of its items: 'ndarray:int64'"),
        ("ndarray", 3, "use an encoding such as 'int'"),
        ("ndarray", torch.ones(2, dtype=torch.bfloat16), "Write value.float"),
        ("ndarray", torch.ones(2).to_sparse(), "Write value.to_dense"),
        ("ndarray:int32", torch.arange(3), r"Write value.to\(torch.int32\)"),
        ("ndarray:int32", [1.5], "items are float64. Write np.asarray"),
        ("ndarray:int32", [1 << 31], "a number in it does not fit into int32"),
        ("ndarray:int32", [1 << 70], "a number in it does not fit into int32"),
        ("ndarray:int32", [True], "items are bool"),
        ("ndarray:int32", ["3"], "Give a list of numbers without gaps"),
        ("ndarray:int32", [1, None], "Give a list of numbers without gaps"),
        ("ndarray:int32", [[1], [1, 2]], "its items are not an array"),
        ("ndarray:int32", [], "only the encoding 'tensor' stores"),
        ("ndarray:int32:2", [1], r"the column's shape is \(2,\)"),
        ("ndarray:uint64", [-1], "does not fit into uint64"),
        ("ndarray:float32", [1e300], "does not fit into float32"),
        ("ndarray:float32", [(1 << 24) + 1], "does not fit into float32"),
    ],
)
def test_values_of_numpy_and_torch_that_would_change_are_refused(out, encoding, value, words):
    """A number that does not fit, and a value of another kind, say what to write."""
    with (
        MDSWriter(out=out, columns={"x": encoding}) as writer,
        pytest.raises(EncodingError, match=f"column 'x' of sample 0, encoding .*{words}"),
    ):
        writer.write({"x": value})


def test_an_array_of_one_that_does_not_fit_uint8_is_refused(out):
    """A number that would wrap around is an error, also in an array of one element."""
    with MDSWriter(out=out, columns={"x": "uint8"}) as writer:
        for value in (300.0, 1e300, -1.0):
            with pytest.raises(EncodingError, match="expected a number from 0 to 255"):
                writer.write({"x": np.array([value])})
        writer.write({"x": 1})


def test_a_tensor_of_a_type_that_numpy_lacks_is_refused(out):
    """The error names the type and conversions that can be written."""
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    value = torch.zeros(3, dtype=torch.float8_e4m3fn)
    with MDSWriter(out=out, columns={"x": "tensor"}) as writer:
        with pytest.raises(EncodingError, match=r"no torch\.float8_e4m3fn\. Write value\.to\("):
            writer.write({"x": value})
        writer.write({"x": value.to(torch.bfloat16)})


NUMBERS = ("int32", "uint8", "int64", "float16", "float32", "float64", "int")
NO_NUMBERS = [
    "7",
    "inf",
    np.str_("7"),
    np.array("7"),
    np.array(["7"]),
    ["7"],
    None,
    [None],
    np.array([None]),
    bytearray(b"7"),
    memoryview(b"7"),
    np.bytes_(b"7777777"),
    np.ma.masked,
    np.ma.array([1], mask=[True]),
    np.datetime64(1, "ns"),
    np.timedelta64(1, "ns"),
    1 + 0j,
    np.array([1 + 0j]),
]


@pytest.mark.parametrize("encoding", [*NUMBERS, "optional[float32]"])
@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: type(value).__name__)
def test_what_is_no_number_is_refused(out, encoding, value):
    """Text, None, bytes of another size, gaps and dates name the column; None means no value."""
    if value is None and encoding.startswith("optional"):
        value = "7"
    with (
        MDSWriter(out=out, columns={"x": encoding}) as writer,
        pytest.raises(EncodingError, match=r"column 'x' of sample 0, encoding .*got|bytes"),
    ):
        writer.write({"x": value})


@pytest.mark.parametrize(
    ("encoding", "value", "way_out"),
    [
        ("float32", None, r"write 'optional\[float32\]'"),
        ("int32", "7", r"Write int\(value\), or use the encoding 'str'"),
        ("float64", "7", r"Write float\(value\), or use the encoding 'str'"),
        ("str_int", "7", r"Write int\(value\)\."),
        ("str_int", b"3", r"Write int\(value.decode\(\)\)"),
        ("str_float", b"1.5", r"Write float\(value.decode\(\)\)"),
        ("str_decimal", b"1.5", r"Write Decimal\(value.decode\(\)\)"),
        ("optional[str_int]", b"3", r"Write int\(value.decode\(\)\)"),
        ("str_int", None, r"write 'optional\[str_int\]'"),
        ("list[int32]", [b"3"], "expected a number"),
        ("list[int32]", ["3"], "Write int"),
    ],
)
def test_what_is_no_number_names_a_conversion(out, encoding, value, way_out):
    """Also bytes in a column of numbers as text, which mosaicml-streaming stores as they are."""
    with (
        MDSWriter(out=out, columns={"x": encoding}) as writer,
        pytest.raises(EncodingError, match=way_out),
    ):
        writer.write({"x": value})


def test_bytes_of_the_exact_size_are_encoded_numbers(out):
    """They stay what they are in columns of a fixed size: values that are encoded already."""
    columns = {"a": "int", "b": "float32", "c": "uint8"}
    with MDSWriter(out=out, columns=columns) as writer:
        writer.write({"a": struct.pack("<q", 7), "b": struct.pack("<f", 0.5), "c": b"\3"})
    assert LocalDataset(out)[0] == {"a": 7, "b": 0.5, "c": 3}


@pytest.mark.parametrize(
    ("encoding", "value", "remedy"),
    [
        ("str", b"\xff", "Write a str, or use the encoding 'bytes'"),
        ("json", b"{", "Write a value that json.dumps accepts"),
        ("ndarray", b"123", "Write a NumPy array"),
        ("ndarray:int32", b"1", "Write a NumPy array"),
        ("pil", b"x", "Write a PIL image"),
        ("jpeg", b"x", "not the file of a picture"),
        ("jpeg", bytearray(b"x"), "not the file of a picture"),
        ("list[jpeg]", [b"x"], "item 0, encoding jpeg"),
        ("list[png]", struct.pack("<3I", 0, 1, 1) + b"x", "item 0, encoding png"),
        ("jpeg_array", [b"x"], "item 0, encoding jpeg"),
        ("jpeg_array", b"x", "cannot decode 1 bytes"),
        ("optional[jpeg]", b"x", "not the file of a picture"),
        ("optional[str]", b"\xff", "Write a str"),
    ],
)
def test_bytes_that_cannot_be_read_back_are_refused(out, encoding, value, remedy):
    """A column that stores bytes unchanged looks at them first, and says what to write."""
    with (
        MDSWriter(out=out, columns={"x": encoding}) as writer,
        pytest.raises(EncodingError, match=rf"column 'x' of sample 0, .*{re.escape(remedy)}"),
    ):
        writer.write({"x": value})


@pytest.mark.parametrize(
    ("encoding", "value", "read"),
    [
        ("str", "r\u00e4w".encode(), "r\u00e4w"),
        ("json", b'{"a": [1]}', {"a": [1]}),
        ("int", (7).to_bytes(8, "little"), 7),
        ("bytes", b"\xff", b"\xff"),
    ],
)
def test_bytes_that_are_an_encoded_value_are_stored(out, encoding, value, read):
    """What is encoded already is written as it is."""
    with MDSWriter(out=out, columns={"x": encoding}) as writer:
        writer.write({"x": value})
    assert LocalDataset(out)[0]["x"] == read


@pytest.mark.parametrize("place", ["s3:/bucket/train", pathlib.Path("gs://bucket/train"), "ftp:/x"])
@pytest.mark.parametrize("kind", [MDSWriter, JSONWriter, CSVWriter])
def test_a_url_that_lost_a_slash_is_refused(kind, place, tmp_path, monkeypatch):
    """No folder `s3:` appears, alone or in a pair; a pathlib.Path is how the slash gets lost."""
    monkeypatch.chdir(tmp_path)
    for out in (place, (place, "b"), ("a", place)):
        with pytest.raises(ConfigError, match="with two slashes"):
            kind(out=out, columns=INTS)
    assert os.listdir() == []


def test_a_folder_with_a_colon_is_a_folder(tmp_path, monkeypatch):
    """What exists under the name of a scheme is meant."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("run:")
    fill(MDSWriter(out="run:/train", columns=INTS), 3)
    assert LocalDataset("run:/train")[2] == {"x": 2}


def test_a_first_sample_that_is_too_large(out, written):
    """It is preceded by an empty shard, as the format has it; later ones are not."""
    with MDSWriter(out=out, columns={"b": "bytes"}, size_limit=300) as writer:
        for size in (500, 10, 500, 500):
            writer.write({"b": bytes(size)})
    assert written(out).counts() == [0, 1, 1, 1, 1]
    assert len(LocalDataset(out)) == 4


def test_shards_by_hand(out, written):
    """`flush_shard` ends a shard where the caller wants it."""
    with MDSWriter(out=out, columns=INTS) as writer:
        for i in range(5):
            writer.write({"x": i})
            if i == 1:
                writer.flush_shard()
    assert written(out).counts() == [2, 3]


class SmallWriter(MDSWriter):
    """A writer whose offsets end early."""

    max_shard_size = 4999


def test_four_gigabytes_are_refused(out):
    """A sample that would push an offset over its 32 bits is refused, never wrapped around."""
    for limit, words in ((None, "Set size_limit"), (4000, "Split the sample")):
        writer = SmallWriter(out=out, columns={"b": "bytes"}, size_limit=limit, exist_ok=True)
        writer.write({"b": bytes(3000)})
        with pytest.raises(WriterError, match=words):
            writer.write({"b": bytes(4800 if limit is None else 4900)})
        writer.abort()


@pytest.mark.parametrize(
    ("sample", "kind", "words"),
    [
        ({"i": "5", "t": "a", "a": np.zeros(2, "i4")}, EncodingTypeError, r"column 'i'.*int.*'5'"),
        (
            {"i": 5, "t": None, "a": np.zeros(2, "i4")},
            EncodingTypeError,
            r"column 't'.*a str.*None",
        ),
        ({"i": 5, "t": "a", "a": np.zeros(3, "i4")}, EncodingError, r"column 'a'.*\(3,\).*\(2,\)"),
        ({"i": 5, "t": "a", "a": b"123"}, FixedSizeError, r"column 'a'.*8 bytes.*3"),
        ({"i": 5, "t": "a"}, MissingColumnError, r"column 'a'.*missing.*'i', 't'"),
        ([1, 2], MissingColumnError, r"column 'a'.*list \[1, 2\]"),
        (None, MissingColumnError, r"column 'a'.*None"),
    ],
)
def test_errors_of_samples_name_everything(out, written, sample, kind, words):
    """Column, number of the sample, what came, what was expected; and the writer goes on."""
    columns = {"i": "int", "t": "str", "a": "ndarray:int32:2"}
    good = {"i": 1, "t": "t", "a": np.arange(2, dtype="i4"), "not a column": object()}
    with MDSWriter(out=out, columns=columns, strict=False) as writer:
        writer.write(good)
        with pytest.raises(kind, match=words) as caught:
            writer.write(sample)
        assert "of sample 1" in str(caught.value)
        writer.write(good)
    assert written(out).counts() == [2]


def test_an_error_of_an_own_encoding_is_told_with_its_column(out):
    """Whatever an encoding raises becomes an EncodingError with the cause behind it."""
    with MDSWriter(out=out, columns={"j": "json"}) as writer:
        loop = []
        loop.append(loop)
        with pytest.raises(EncodingError, match="column 'j' of sample 0") as caught:
            writer.write({"j": loop})
        assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    "arguments",
    [
        {"bogus": 1},
        {"max_workers": 0},
        {"retry": -1},
        {"size_limit": -1},
        {"size_limit": 0.4},
        {"size_limit": float("nan")},
        {"size_limit": 1 << 32},
        {"size_limit": "much"},
        {"samples_per_shard": 0},
        {"compression": "zip"},
        {"hashes": ["sha1", "md5"]},
        {"hashes": "md5"},
        {"hashes": ["md6"]},
        {"columns": {}},
        {"columns": {5: "int"}},
        {"columns": {"x": "nope"}},
        {"out": ("a",)},
        {"out": ("a", "b", "c")},
        {"out": 5},
        {"out": ("s3://bucket/x", "s3://bucket/y")},
        {"out": (None, "b")},
    ],
)
def test_arguments_without_sense(out, arguments):
    """They are refused before anything is made."""
    with pytest.raises((ConfigError, UnknownEncodingError)):
        MDSWriter(**{"out": out, "columns": INTS, **arguments})
    assert not os.path.exists(out)


@pytest.mark.parametrize("kind", [MDSWriter, JSONWriter, XSVWriter, CSVWriter, TSVWriter])
def test_help_lists_every_argument_once(kind):
    """With the default that the signature has; MDSWriter lists what all writers share."""
    item = re.compile(r"^\* ``(\w+)`` \(([^()]+?)(?:, ([^ ,()\]]+))?\): \S", re.MULTILINE)
    own, shared = (item.findall(inspect.getdoc(each)) for each in (kind, MDSWriter))
    assert len({name for name, *_ in own}) == len(own)
    shared = [item for item in shared if item[0] != "lengths" or kind is MDSWriter]
    shown = {name: default for name, _, default in [*shared, *own]}
    found = inspect.signature(kind).parameters
    assert shown.keys() == found.keys()
    for name, parameter in found.items():
        is_first = kind is MDSWriter and name in ("out", "columns")
        kinds = {True: parameter.POSITIONAL_OR_KEYWORD, False: parameter.KEYWORD_ONLY}
        assert parameter.kind is kinds[is_first]
        is_needed = parameter.default is parameter.empty
        assert shown[name] == ("" if is_needed else repr(parameter.default))


def test_out_and_columns_come_first(out):
    """An MDSWriter takes them without names, in this order; other arguments have names."""
    fill(MDSWriter(out, INTS), 3)
    with pytest.raises(ArgumentError, match=r"2 may be without. See help\(MDSWriter\)"):
        MDSWriter(out, INTS, "zstd")
    with pytest.raises(ArgumentError, match=r"Write CSVWriter\(out="):
        CSVWriter(out, INTS)
    with pytest.raises(ArgumentError, match=r"XSVWriter\(\) needs separator="):
        XSVWriter(out=out, columns=INTS)


def test_paths_may_be_objects(tmp_path, monkeypatch):
    """A pathlib path, `file://`, `~` and a relative path are folders like any other."""
    fill(MDSWriter(out=tmp_path / "a", columns=INTS), 3)
    fill(MDSWriter(out=f"file://{tmp_path}/b", columns=INTS), 3)
    monkeypatch.setenv("HOME", str(tmp_path))
    fill(MDSWriter(out="~/c", columns=INTS), 3)
    monkeypatch.chdir(tmp_path)
    with MDSWriter(out="d", columns=INTS) as writer:
        monkeypatch.chdir("/")
        writer.write({"x": 1})
    found = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("index.json"))
    assert found == ["a/index.json", "b/index.json", "c/index.json", "d/index.json"]


def test_text_formats_are_readable_by_people(tmp_path):
    """Lines of text that other programs understand."""
    columns = {"n": "int", "t": "str", "f": "float"}
    sample = {"n": 5, "t": "é", "f": 0.1, "more": 1}
    for kind, line in (
        (JSONWriter, '{"f": 0.1, "n": 5, "t": "\\u00e9"}\n'),
        (CSVWriter, "f,n,t\n0.1,5,é\n"),
        (TSVWriter, "f\tn\tt\n0.1\t5\té\n"),
    ):
        folder = tmp_path / kind.format
        with kind(out=str(folder), columns=columns, strict=False) as writer:
            writer.write(sample)
        assert (folder / f"shard.00000.{kind.format}").read_text(encoding="utf-8") == line


@pytest.mark.parametrize(
    ("separator", "texts"),
    [(",", ["a,b", "c"]), ("--", ["a-", "-b"]), ("ab", ["xa", "bx"]), (",", ["a\nb", ""])],
)
def test_text_that_could_not_be_read_back(out, separator, texts):
    """A separator or newline in a value, or made by two neighbours, is refused."""
    with XSVWriter(out=out, columns={"a": "str", "b": "str"}, separator=separator) as writer:
        if separator != "ab":
            with pytest.raises(SeparatorError, match=r"sample 0.*quoting") as caught:
                writer.write(dict(zip("ab", texts, strict=True)))
            assert isinstance(caught.value, AssertionError)
        writer.write({"a": "fine", "b": ""})


def test_separators_and_newlines_must_be_something(out):
    """Neither may be empty, and no name of a column may have them."""
    with pytest.raises(ConfigError, match="separator"):
        XSVWriter(out=out, columns=INTS, separator="")
    with pytest.raises(ConfigError, match="newline"):
        CSVWriter(out=out, columns=INTS, newline="")
    with pytest.raises(SeparatorError, match="names of the columns"):
        CSVWriter(out=out, columns={"a,b": "int"})
    with pytest.raises(UnknownEncodingError, match="MDSWriter has more"):
        JSONWriter(out=out, columns={"a": "bytes"})
    assert not os.path.exists(out)


def test_types_of_text_formats_are_strict(out):
    """An int is no float and a text no int: what is read back is of the type that was written."""
    with JSONWriter(out=out, columns={"n": "int", "f": "float"}) as writer:
        for sample in ({"n": 1.0, "f": 1.0}, {"n": 1, "f": 1}, {"n": "1", "f": 1.0}):
            with pytest.raises(EncodingTypeError, match=r"column '[nf]' of sample 0"):
                writer.write(sample)
        with pytest.raises(MissingColumnError):
            writer.write({"n": 1})


def test_a_writer_tells_its_state(out):
    """`repr` says how far it is and how it ended."""
    writer = MDSWriter(out=out, columns=INTS, size_limit=400)
    for i in range(40):
        writer.write({"x": i})
    assert "40 samples" in repr(writer)
    assert pathlib.Path(out).name in repr(writer)
    writer.finish()
    assert "has finished" in repr(writer)
    writer.finish()
    with pytest.raises(WriterError, match="has finished"):
        writer.write({"x": 1})


def test_a_forgotten_writer_is_told(out):
    """A writer that is dropped without an end warns, since there is no index."""
    writer = MDSWriter(out=out, columns=INTS)
    with pytest.warns(UserWarning, match="never finished"):
        writer.__del__()
    writer.abort()


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("text", ['{"x": 1}', b'{"x": 1}', bytearray(b'{"x": 1}')])
def test_a_sample_as_text_names_json_loads(out, kind, text):
    """Also if the text has the name of a column in it."""
    with (
        kind(out=out, columns=INTS, **WRITERS[kind]) as writer,
        pytest.raises(MissingColumnError, match=r"got .*Write json\.loads\(sample\)\."),
    ):
        writer.write(text)
