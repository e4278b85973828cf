"""Images and sound: files are stored as they are, and decoded when asked."""

import contextlib
import io
import wave

import numpy as np
import pytest

from mds.encodings import parse_encoding
from mds.errors import EncodingError, EncodingTypeError

Image = pytest.importorskip("PIL.Image")


@pytest.fixture
def photo():
    rng = np.random.default_rng(1)
    return Image.fromarray(rng.integers(0, 255, (24, 32, 3), np.uint8))


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_paths_and_bytes_are_stored_untouched(kind, photo, tmp_path):
    """A path, as text or object, and bytes lead to the very bytes of the file."""
    path = tmp_path / f"photo.{kind}"
    photo.save(path, format=kind, **({"quality": 31} if kind == "jpeg" else {}))
    encoding = parse_encoding(kind)
    data = path.read_bytes()
    for given in (path, str(path), data):
        assert encoding.pack(given) == data
    assert parse_encoding(f"list[{kind}]").encode([path, data])[16:] == data + data
    decoded = encoding.decode(memoryview(data))
    assert (decoded.format, decoded.size) == (kind.upper(), (32, 24))


def test_an_opened_jpeg_file_is_not_encoded_again(photo, tmp_path):
    """As long as its file is there, a JPEG that Pillow opened is stored as that file."""
    path = tmp_path / "photo.jpg"
    photo.save(path, quality=20)
    data = path.read_bytes()
    opened = Image.open(path)
    encoding = parse_encoding("jpeg")
    assert encoding.encode(opened) == data
    opened.load()
    path.unlink()
    assert encoding.encode(opened)[:3] == b"\xff\xd8\xff"


def test_a_path_to_another_kind_of_file(photo, tmp_path):
    """A file of another kind, or none, is refused with its name."""
    path = tmp_path / "photo.png"
    photo.save(path)
    with pytest.raises(EncodingError, match=r"photo\.png.*not a jpeg"):
        parse_encoding("jpeg").encode(path)
    with pytest.raises(EncodingTypeError, match="no such file"):
        parse_encoding("jpeg").encode(tmp_path / "none.jpg")


def test_a_palette_is_lost_with_a_warning():
    """The raw format has no place for a palette, and says so when it matters."""
    image = Image.new("P", (2, 2))
    data = parse_encoding("pil").encode(image)
    assert parse_encoding("pil").decode(data).mode == "P"
    image.putpalette([255, 0, 0] * 256)
    with pytest.warns(UserWarning, match=r"convert\('RGB'\)"):
        assert parse_encoding("pil").encode(image) == data


def test_postscript_is_never_opened():
    """Opening EPS would start another program, so bytes of that kind are no image here."""
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
    with pytest.raises(EncodingError):
        parse_encoding("png").decode(eps)


def test_raw_pixels_are_checked_before_memory_is_taken():
    """A size that the bytes cannot have is refused, however large."""
    data = bytearray(parse_encoding("pil").encode(Image.new("RGB", (4, 4))))
    data[0:8] = b"\xff\xff\xff\x7f" * 2
    with pytest.raises(EncodingError, match="2147483647 x 2147483647"):
        parse_encoding("pil").decode(bytes(data))


def test_an_empty_jpeg_array_is_an_empty_list():
    """No images are as good as some."""
    encoding = parse_encoding("jpeg_array")
    assert encoding.decode(encoding.encode([])) == []


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wav_is_read_with_python_alone(width):
    """Integer samples of every width come back as float32 between -1 and 1, with the rate."""
    ends = {
        1: (0, 255),
        2: (-(2**15), 2**15 - 1),
        3: (-(2**23), 2**23 - 1),
        4: (-(2**31), 2**31 - 1),
    }
    low, high = (n.to_bytes(width, "little", signed=width > 1) for n in ends[width])
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((2, width, 8000, 0, "NONE", ""))
        out.writeframes(low + high + high + low)
    encoding = parse_encoding("audio")
    data = encoding.encode(file.getvalue())
    assert data == file.getvalue()
    samples, rate = encoding.decode(data)
    assert (samples.dtype, samples.shape, rate) == (np.float32, (2, 2), 8000)
    assert samples[0, 0] == samples[1, 1] == -1
    assert 0.99 < samples[0, 1] <= 1


def test_flac_is_read_with_soundfile(tmp_path):
    """FLAC and floating-point WAV come back through soundfile, where it is installed."""
    soundfile = pytest.importorskip("soundfile", reason="pip install soundfile")
    wanted = np.linspace(-0.5, 0.5, 2000, dtype=np.float32).reshape(-1, 2)
    encoding = parse_encoding("audio")
    for name, subtype in (("a.flac", "PCM_24"), ("a.wav", "FLOAT")):
        soundfile.write(tmp_path / name, wanted, 44100, subtype=subtype)
        samples, rate = encoding.decode(encoding.encode(str(tmp_path / name)))
        assert rate == 44100
        assert np.allclose(samples, wanted, atol=1e-6)
        data = (tmp_path / name).read_bytes()
        for cut in (20, len(data) // 2):
            with contextlib.suppress(EncodingError):
                encoding.decode(data[:cut])
