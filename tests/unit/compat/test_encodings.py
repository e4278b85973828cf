"""Encodings through the door: replaced ones are used, classes answer as the functions do."""

import io

import numpy as np
import pytest
from PIL import Image
from streaming import MDSWriter, StreamingDataset
from streaming.base.format.json import encodings as json_encodings
from streaming.base.format.mds import encodings
from streaming.base.format.xsv import encodings as xsv_encodings


class Scaled(encodings.Encoding):
    """Pictures scaled to their least and greatest value, as public code replaces `uint8`."""

    def encode(self, obj):
        low, high = float(obj.min()), float(obj.max())
        scaled = np.rint((obj - low) / (high - low) * 255).astype(np.uint8)
        return np.array([low, high], np.float32).tobytes() + scaled.tobytes()

    def decode(self, data):
        low, high = np.frombuffer(data[:8], np.float32)
        return np.frombuffer(data[8:], np.uint8) / np.float32(255) * (high - low) + low


@pytest.fixture
def replaced():
    """The encoding `uint8` is a user's own meanwhile."""
    encodings._encodings["uint8"] = Scaled
    yield
    encodings._encodings["uint8"] = encodings.UInt8


def test_a_built_in_encoding_is_replaced(tmp_path, replaced):
    """Writers, readers and functions use what a user put in the place of `uint8`."""
    values = np.linspace(-3, 5, 50, dtype=np.float32)
    with MDSWriter(columns={"x": "uint8"}, out=str(tmp_path)) as writer:
        writer.write({"x": values})
    found = StreamingDataset(local=str(tmp_path), batch_size=1)[0]["x"]
    np.testing.assert_allclose(found, values, atol=0.02)
    assert encodings.get_mds_encoded_size("uint8") is None


def test_what_was_replaced_comes_back():
    """With the class of the library in its place again, an encoding is as it was."""
    encodings._encodings["int16"] = Scaled
    assert encodings.get_mds_encoded_size("int16") is None
    encodings._encodings["int16"] = encodings.Int16
    assert encodings.mds_encode("int16", 3) == b"\x03\x00"
    assert encodings.get_mds_encoded_size("int16") == 2


def test_a_subclass_of_a_built_in_class_calls_it(tmp_path):
    """A replacement may inherit from what it replaces."""

    class Doubled(encodings.UInt8):
        def decode(self, data):
            return super().decode(data) * 2

    encodings._encodings["uint8"] = Doubled
    try:
        assert encodings.mds_decode("uint8", encodings.mds_encode("uint8", 5)) == 10
    finally:
        encodings._encodings["uint8"] = encodings.UInt8


def test_parameters_reach_from_str():
    """What follows the colon of a user's encoding goes to its `from_str`."""

    class Fixed(encodings.Encoding):
        def __init__(self, size):
            self.size = size

        @classmethod
        def from_str(cls, text):
            return cls(int(text))

        def encode(self, obj):
            return obj.ljust(self.size).encode()

        def decode(self, data):
            return data.decode().rstrip()

    encodings._encodings["fixed"] = Fixed
    try:
        assert encodings.get_mds_encoded_size("fixed:5") == 5
        assert encodings.mds_encode("fixed:5", "ab") == b"ab   "
        assert encodings._get_coder("fixed:3").size == 3
    finally:
        del encodings._encodings["fixed"]
    assert not encodings.is_mds_encoding("fixed:5")
    assert "fixed" not in encodings._encodings


@pytest.mark.parametrize("name", [*encodings._encodings])
def test_the_class_of_a_name_is_made_without_arguments(name):
    """Every class has the size that the name has."""
    made = encodings._encodings[name]()
    assert made.size == encodings.get_mds_encoded_size(name)
    assert isinstance(made, encodings.Encoding)


def test_arrays_as_a_class():
    """The class of arrays takes a type and a shape, or both as text."""
    made = encodings.NDArray.from_str("int32:2,3")
    assert (made.dtype, made.shape, made.size) == ("int32", (2, 3), 24)
    value = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert encodings.mds_encode("ndarray:int32:2,3", value) == made.encode(value)
    assert (made.decode(made.encode(value)) == value).all()


def test_bytes_are_taken_as_encoded():
    """Whatever the column, bytes were encoded by their owner."""
    assert encodings.mds_encode("uint8", b"\x07") == b"\x07"


def test_classes_of_images_take_images():
    """The bytes of a file are for `mds_encode`; a class encodes pictures."""
    assert encodings.mds_encode("jpeg", b"abc") == b"abc"
    for kind in (encodings.JPEG, encodings.PNG):
        with pytest.raises(AttributeError):
            kind().encode(b"abc")


def test_types_of_text_formats():
    """Values of another type are AttributeErrors, as ever; texts come back as values."""
    assert json_encodings.is_json_encoded("int", 3)
    assert json_encodings.Str.is_encoded("x")
    with pytest.raises(AttributeError, match="should be of type"):
        json_encodings.is_json_encoded("float", 3)
    assert xsv_encodings.xsv_encode("float", 1.5) == "1.5"
    assert xsv_encodings.xsv_decode("int", "3") == 3
    with pytest.raises(AttributeError):
        xsv_encodings.xsv_encode("str", 3)
    with pytest.raises(KeyError):
        xsv_encodings.xsv_decode("jpeg", "3")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["jpeg", "list[jpeg]", "jpeg_array"])
def test_jpegs_are_written_as_0_13_writes_them(tmp_path, kind):
    """The file while it has the image's pixels, and an image from memory always again."""
    path = tmp_path / "a.jpg"
    Image.effect_noise((32, 24), 90).save(path, quality=30)
    data = path.read_bytes()

    def encode(image):
        value = image if kind == "jpeg" else [image]
        encoded = encodings.mds_encode(kind, value)
        if kind != "jpeg_array":
            assert encodings._get_coder(kind).encode(value) == encoded
        return encoded[encoded.index(b"\xff\xd8\xff") :]

    def again(image):
        file = io.BytesIO()
        image.save(file, format="JPEG")
        return file.getvalue()

    with Image.open(path) as image:
        assert encode(image) == data
        image.load()
        assert encode(image) == data
        assert encode(Image.open(io.BytesIO(data))) == again(image) != data
        image.paste(0, (0, 0, 9, 9))
        assert encode(image) == again(image)
