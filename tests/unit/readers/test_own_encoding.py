"""An encoding of a user's own is decoded as fast as ours where it declares how."""

import numpy as np
import pytest

from mds import MDSWriter
from mds._index.table import read_index
from mds._readers import open_reader
from mds._readers.joint import FixedReader
from mds.encodings import DecodeKind, Encoding, parse_encoding
from mds.errors import ConfigError
from tests.unit.encodings.registered import registered


class CountedEncoding(Encoding):
    """Counts the calls of `decode`, of which a fast path makes none."""

    calls = 0

    def count(self):
        """Note a call."""
        type(self).calls += 1


class PointEncoding(CountedEncoding):
    """Three float32."""

    decode_kind = DecodeKind.ARRAY
    size, dtype, shape = 12, np.dtype("<f4"), (3,)

    def encode(self, value):
        """The array's bytes."""
        return np.asarray(value, self.dtype).tobytes()

    def decode(self, data):
        """A view."""
        self.count()
        return np.frombuffer(data, self.dtype)


class CodeEncoding(CountedEncoding):
    """A number of 16 bits."""

    decode_kind = DecodeKind.SCALAR
    size, dtype, shape = 2, np.dtype("<u2"), ()

    def encode(self, value):
        """Two bytes."""
        return int(value).to_bytes(2, "little")

    def decode(self, data):
        """A NumPy scalar."""
        self.count()
        return np.frombuffer(data, self.dtype)[0]


class NoteEncoding(CountedEncoding):
    """A text."""

    decode_kind = DecodeKind.TEXT
    shares_memory = False

    def encode(self, value):
        """UTF-8."""
        return value.encode()

    def decode(self, data):
        """A str."""
        self.count()
        return str(data, "utf-8")


class LoudEncoding(NoteEncoding):
    """A text in capitals: the `decode` is another one, and what its parent's made is not said."""

    def decode(self, data):
        """A str."""
        self.count()
        return str(data, "utf-8").upper()


class WrongEncoding(PointEncoding):
    """An array of which a part of the declaration is missing."""

    dtype = None


OWN = {
    "own-code": CodeEncoding,
    "own-loud": LoudEncoding,
    "own-note": NoteEncoding,
    "own-point": PointEncoding,
    "own-wrong": WrongEncoding,
}


@pytest.fixture(autouse=True)
def _registered():
    for kind in OWN.values():
        kind.calls = 0
    with registered(OWN):
        yield


def sample(i):
    return {"code": i, "note": f"é{i}", "point": [i, i / 2, -i]}


def reader_of(folder, names):
    columns = {name: f"own-{name}" for name in names}
    with MDSWriter(out=str(folder), columns=columns) as writer:
        for i in range(50):
            writer.write({name: sample(i)[name] for name in names})
    return open_reader(str(folder), read_index(str(folder / "index.json")).shard(0))


def test_columns_of_numbers_are_views_of_the_file(tmp_path):
    """A declared dtype and shape make rows of strided views, without a call of `decode`."""
    reader = reader_of(tmp_path, ["code", "point"])
    rows = reader.rows([3, 49, 0])
    assert type(reader) is FixedReader
    assert rows["code"].tolist() == [3, 49, 0]
    assert rows["point"].tolist() == [sample(i)["point"] for i in (3, 49, 0)]
    one = reader[7]
    assert (type(one["code"]), one["code"], one["point"].tolist()) == (np.uint16, 7, [7, 3.5, -7])
    assert CodeEncoding.calls == PointEncoding.calls == 0


def test_columns_beside_a_text_are_gathered(tmp_path):
    """Beside a column of varying size the declared ones keep their fast path, and a text has it."""
    reader = reader_of(tmp_path, ["code", "note", "point"])
    rows = reader.rows([5, 2])
    assert rows["note"] == ["é5", "é2"]
    assert rows["point"].dtype == np.float32
    assert reader[5]["note"] == "é5"
    assert reader[5]["point"].flags.writeable
    assert NoteEncoding.calls == CodeEncoding.calls == PointEncoding.calls == 0


def test_another_decode_is_called(tmp_path):
    """A class with a `decode` of its own that declares nothing has it called for each value."""
    with MDSWriter(out=str(tmp_path), columns={"text": "own-loud"}) as writer:
        writer.write({"text": "word"})
    reader = open_reader(str(tmp_path), read_index(str(tmp_path / "index.json")).shard(0))
    assert reader[0] == {"text": "WORD"}
    assert LoudEncoding.calls == 1


def test_half_a_declaration_is_refused():
    """A decode kind without what it is decoded by is an error that says what is there."""
    with pytest.raises(ConfigError, match=r"decode_kind=ARRAY.*size=12, dtype=None"):
        parse_encoding("own-wrong")
