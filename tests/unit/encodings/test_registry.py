"""Names of encodings: which are known, which are refused, and how a user adds one."""

import struct

import pytest

from mds import LocalDataset, MDSWriter
from mds.encodings import Encoding, parse_encoding
from mds.errors import UnknownEncodingError
from tests.unit.encodings.registered import registered

REFUSED = ["", "nope", "nope:x", "INT", "str:", "int32:4", "int:", "json:x", "pkl:2", "bool:1"]
REFUSED += ["ndarray:nope", "ndarray:bool", "ndarray:int32:", "ndarray:int32:0", "ndarray:int32:a"]
REFUSED += ["ndarray:int32:2:3", "ndarray:int32:()", "ndarray:int32:-1", "ndarray:int32:٣"]
REFUSED += [
    "tensor:nope",
    "tensor:int32:2,,3",
    "tensor:uint8:9999999999999999999",
    "tensor:"[:-1] * 2,
]
REFUSED += [
    "list",
    "list[",
    "list[]",
    "list[int]",
    "list[nope]",
    "list[str]x",
    "optional",
    "optional[]",
]
REFUSED += ["list[" * 17 + "str" + "]" * 17, "x" * 600, "list:str", " str", "str "]


@pytest.mark.parametrize("name", REFUSED)
def test_names_that_mean_nothing(name):
    """What is no encoding is refused by an error that old code catches by any of its names."""
    with pytest.raises(UnknownEncodingError) as caught:
        parse_encoding(name)
    for kind in (TypeError, KeyError, AttributeError, AssertionError, ValueError):
        assert isinstance(caught.value, kind)
    assert not str(caught.value).startswith("'\"")


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("ndarray:", None),
        ("ndarray:int32:2048", 8192),
        ("tensor:complex128:()", 16),
        ("tensor:float32:0,7", 0),
        ("optional[int]", None),
        ("list[list[str]]", None),
    ],
)
def test_names_with_parameters(name, size):
    """Parameters are part of the name, and the size follows from them."""
    encoding = parse_encoding(name)
    assert (encoding.name, encoding.size) == (name, size)
    assert parse_encoding(name) is encoding


@pytest.mark.parametrize("name", ["pkl", "list[pkl]", "optional[list[pkl]]"])
def test_pickle_is_unsafe_however_deep(name):
    """A pickle inside another encoding is a pickle."""
    assert parse_encoding(name).is_unsafe
    assert not parse_encoding(name.replace("pkl", "json")).is_unsafe


class PointEncoding(Encoding):
    """Somebody's own: `point:N`, N floats."""

    def __init__(self, name):
        super().__init__(name)
        self.count = int(name.split(":")[1])
        self.size = 4 * self.count

    def encode(self, value):
        return struct.pack(f"<{self.count}f", *value)

    def decode(self, data):
        return struct.unpack(f"<{self.count}f", data)


@pytest.fixture
def _point():
    with registered({"point": PointEncoding}):
        yield


@pytest.mark.usefixtures("_point")
def test_a_users_own_encoding(tmp_path):
    """A registered family is written and read like any other, alone and inside others."""
    columns = {"p": "point:2", "ps": "list[point:3]"}
    with MDSWriter(out=str(tmp_path / "out"), columns=columns) as writer:
        writer.write({"p": (1, 2), "ps": [(1, 2, 3)]})
    assert LocalDataset(str(tmp_path / "out"))[0] == {"p": (1.0, 2.0), "ps": [(1.0, 2.0, 3.0)]}
