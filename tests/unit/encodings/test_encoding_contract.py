"""Every encoding passes the contract: the old ones, ours, and some inside others."""

import io
import math
import struct
import wave
from decimal import Decimal

import numpy as np
import pytest

from mds.encodings import encoding_names, parse_encoding
from mds.testing import EncodingContract

COMPLEX = [np.complex64(1j), np.complex64(-2)]


def image(mode, size=(5, 3)):
    from PIL import Image

    made = Image.new("L", size)
    made.putdata([7 * i % 256 for i in range(size[0] * size[1])])
    return made.convert(mode)


def wav(frames=50, channels=2, width=2):
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((channels, width, 16000, 0, "NONE", ""))
        out.writeframes(bytes(i * 37 % 251 for i in range(frames * channels * width)))
    return file.getvalue()


def same(left, right):
    """Equality that looks into arrays, images and lists, and takes NaN as equal to itself."""
    if isinstance(right, bytes) and not isinstance(left, bytes):
        return True  # a file that was given as bytes comes back decoded
    if isinstance(right, (list, tuple)):
        pairs = zip(left, right, strict=True)
        return type(left) is type(right) and all(same(a, b) for a, b in pairs)
    if type(left).__module__.startswith("PIL") or type(right).__module__.startswith("PIL"):
        return left.size == right.size
    if type(left).__module__ == "torch":
        return left.dtype == right.dtype and left.equal(right)
    if isinstance(right, np.ndarray):
        equal = left.dtype == right.dtype and left.shape == right.shape
        return equal and not left.flags.writeable and np.array_equal(left, right)
    if isinstance(right, (float, np.floating)) and math.isnan(right):
        return type(left) is type(right) and math.isnan(left)
    return type(left) is type(right) and left == right


def torch_values():
    import torch

    return [torch.tensor([[1.5, -2.0]]).bfloat16(), torch.zeros(0).bfloat16()]


NUMBERS = {
    **{f"uint{b}": [0, 1, 2**b - 1] for b in (8, 16, 32, 64)},
    **{f"int{b}": [0, -(2 ** (b - 1)), 2 ** (b - 1) - 1] for b in (8, 16, 32, 64)},
    **{f"float{b}": [0.0, -1.5, float("inf"), float("nan")] for b in (16, 32, 64)},
}
CASES = {
    "bytes": ([b"", b"\0abc"], ["text", None, np.ones(2), 5]),
    "str": (["", "é\0ü", "x" * 500], [b"".__class__, 5, None, "\ud800"]),
    "int": ([0, -1, 2**63 - 1, -(2**63)], ["5", 1.5, None, np.float64(3), 2**63, b"123"]),
    "bool": ([True, False], [1, 0, "True", None, b"\x01"]),
    "str_int": ([0, -(10**40)], [1.5, "5", None, np.bool_(True)]),
    "str_float": ([0.1, -1e300, float("inf"), float("nan")], [1, "1.5", None]),
    "str_decimal": ([Decimal("1.50"), Decimal("-1E+9")], [1.5, 1, None]),
    "json": ([None, {"b": [1, {"a": "é"}], "a": 1.5}, [], "x", True], [{1, 2}, b"".join, object]),
    "pkl": ([{1, 2}, None, ("a", 1.5)], [lambda: 0]),
    "ndarray": (
        [np.arange(6, dtype=d).reshape(2, 3) for d in NUMBERS] + [np.ones((1,) * 30)],
        [
            [1, 2],
            np.zeros(0),
            np.zeros((2, 0)),
            np.array(5),
            np.zeros(2, bool),
            np.zeros(2, "c8"),
            np.array(["a"]),
            None,
            np.ma.masked_array([1.0], mask=[True]),
            np.array([None]),
        ],
    ),
    "ndarray:int32": (
        [np.arange(5, dtype="i4"), np.zeros((300, 2), "i4")],
        [np.arange(5), [1.5], np.zeros(0, "i4")],
    ),
    "ndarray:float16:2,3": (
        [np.arange(6, dtype="f2").reshape(2, 3)],
        [np.zeros((3, 2), "f2"), np.zeros((2, 3), "f4"), b"12345"],
    ),
    "tensor": (
        [
            np.zeros(0, bool),
            np.array(5),
            np.array([True]),
            np.ones((2, 0, 3), "c16"),
            np.array([1j], "c8"),
            np.arange(70000, dtype="u1"),
        ],
        [[1], None, np.array(["a"]), b"bytes"],
    ),
    "tensor:bool:()": ([np.array(True)], [np.array([True]), True]),
    "tensor:int64:0,5": ([np.zeros((0, 5), "i8")], [np.zeros((5, 0), "i8")]),
    "tensor:complex64": ([np.array([[1j]], "c8")], [np.array([1j], "c16")]),
    "tensor:bfloat16": (torch_values, [np.zeros(3, "u2"), np.zeros(3, "f4")]),
    "pil": ([image(m) for m in ("L", "RGB", "RGBA", "1", "I", "F", "CMYK", "LA")], ["a.png", None]),
    "jpeg": ([image("L"), image("RGB"), image("CMYK")], ["no such file", None, 5, image("RGBA")]),
    "png": ([image("L"), image("RGBA"), image("1"), image("P")], ["no such file", None]),
    "jpeg_array": ([[image("L")], [], [image("RGB"), image("L")]], [3, "text", [5]]),
    "list[jpeg]": ([[image("L")], []], [3, (image("L"),), None, ["no such file"]]),
    "list[pil]": ([[image("RGB"), image("1")]], [[b"bytes"], image("L")]),
    "list[str]": ([["a", "", "é"], []], ["ab", ["a", 5], None, b"ab"]),
    "list[bytes]": ([[b"", b"abc"]], [["a"], b"abc"]),
    "list[int64]": ([[np.int64(-5), np.int64(7)]], [["x"], 5]),
    "list[list[bool]]": ([[[True], [], [False, True]]], [[True]]),
    "list[optional[ndarray:int8]]": ([[None, np.arange(3, dtype="i1")]], [[5]]),
    "optional[int]": ([None, 5, -1], ["x", 1.5]),
    "optional[bytes]": ([None, b"", b"\0", b"\1x"], ["x"]),
    "optional[json]": ([{"a": None}, [1]], []),
    "audio": (
        [wav(), wav(0), wav(9, 1, 1), wav(9, 1, 3), wav(9, 1, 4)],
        [b"no sound", 5, "no.wav"],
    ),
    **{
        name: ([np.dtype(name).type(v) for v in values], ["x", 1j])
        for name, values in NUMBERS.items()
    },
}


@pytest.mark.parametrize("name", CASES)
class TestEncodings(EncodingContract):
    @pytest.fixture
    def encoding(self, name):
        self.refused = CASES[name][1]
        return parse_encoding(name)

    @pytest.fixture
    def values(self, name):
        values = CASES[name][0]
        return values() if callable(values) else values

    def same(self, left, right):
        return same(left, right)


def test_no_family_is_left_out():
    """Each registered family has a case above."""
    tested = {name.split(":")[0].split("[")[0] for name in CASES}
    assert set(encoding_names()) - tested <= {"jpegarray"}


def test_dtype_and_shape_say_how_a_batch_is_viewed():
    """A fixed-size numeric column can be viewed as an array by dtype and shape alone."""
    for name, (values, _) in CASES.items():
        encoding = parse_encoding(name)
        if encoding.dtype is None:
            assert encoding.shape is None
            continue
        data = b"".join(encoding.pack(value) for value in values)
        batch = np.frombuffer(data, encoding.dtype).reshape(len(values), *encoding.shape)
        assert all(
            np.array_equal(row, v, equal_nan=True) for row, v in zip(batch, values, strict=True)
        )


def test_arrays_are_views():
    """Decoding an array copies nothing."""
    encoding = parse_encoding("ndarray:int32")
    data = encoding.pack(np.arange(1000, dtype=np.int32))
    assert np.shares_memory(encoding.decode(data), np.frombuffer(data, np.uint8))


def test_wide_and_strange_arrays_are_stored_in_c_order():
    """Fortran order, slices and big-endian numbers are stored as if they were plain."""
    encoding = parse_encoding("ndarray")
    plain = np.arange(12, dtype="<i4").reshape(3, 4)
    for strange in (np.asfortranarray(plain), plain.astype(">i4"), np.repeat(plain, 2, 0)[::2]):
        assert encoding.pack(strange) == encoding.pack(plain)


def test_head_of_an_array_by_hand():
    """Code of the dtype, axes and width, dimensions; as the first readers of the format know it."""
    data = parse_encoding("ndarray").pack(np.zeros((2, 300), np.float32))
    assert data[:6] == bytes([34, 2 << 2 | 1]) + struct.pack("<2H", 2, 300)
