"""Images and sound: files are stored as they are, and decoded when asked."""

import contextlib
import io
import os
import warnings
import wave

import numpy as np
import pytest

from mds import LocalDataset, MDSWriter
from mds.encodings import parse_encoding
from mds.errors import EncodingError, EncodingTypeError

Image = pytest.importorskip("PIL.Image")
ImageOps = pytest.importorskip("PIL.ImageOps")


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


def saved(image):
    file = io.BytesIO()
    image.save(file, format="JPEG")
    return file.getvalue()


CHANGES = {
    "thumbnail": lambda image: image.thumbnail((8, 8)),
    "draft": lambda image: image.draft("RGB", (8, 8)),
    "paste": lambda image: image.paste((255, 0, 0), (0, 0, 16, 16)),
    "putpixel": lambda image: image.putpixel((3, 3), (1, 2, 3)),
    "transpose": lambda image: ImageOps.exif_transpose(image, in_place=True),
}


@pytest.mark.parametrize("kind", ["jpeg", "list[jpeg]", "jpeg_array", "optional[jpeg]"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_jpeg_that_was_changed_is_stored_as_it_is_now(photo, tmp_path, kind, change):
    """The file of its name has other pixels, so the image is encoded."""
    path = tmp_path / "photo.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # on its side
    photo.resize((64, 48)).save(path, quality=95, exif=exif)
    image = Image.open(path)
    CHANGES[change](image)
    stored = parse_encoding(kind).encode(image if kind in ("jpeg", "optional[jpeg]") else [image])
    assert stored.endswith(saved(image))
    assert path.read_bytes() not in stored


def test_a_file_that_took_the_name_is_not_stored(photo, tmp_path):
    """Neither before Pillow decodes the image, nor after it."""
    path, other = tmp_path / "photo.jpg", tmp_path / "other.jpg"
    photo.save(path)
    photo.transpose(Image.Transpose.ROTATE_180).save(other)
    data = path.read_bytes()
    encode = parse_encoding("jpeg").encode
    with Image.open(path) as opened, Image.open(path) as decoded:
        decoded.load()
        os.replace(other, path)
        assert encode(opened) == data
        assert encode(decoded) == saved(decoded)


def test_a_decoded_jpeg_with_the_pixels_of_its_file(photo, tmp_path, monkeypatch):
    """The file is stored, also from another name of the working folder that has the same file."""
    photo.save(tmp_path / "photo.jpg", quality=20)
    photo.convert("CMYK").save(tmp_path / "cmyk.jpg", quality=20)
    monkeypatch.chdir(tmp_path)
    for name in ("photo.jpg", "cmyk.jpg"):
        image = Image.open(name)
        image.load()
        assert parse_encoding("jpeg").encode(image) == (tmp_path / name).read_bytes()
        with Image.open(name) as closed:
            pass
        assert parse_encoding("jpeg").encode(closed) == (tmp_path / name).read_bytes()


@pytest.mark.parametrize("stream", ["memory", "file"])
def test_a_jpeg_from_a_stream_is_stored_unchanged(photo, tmp_path, stream):
    """Until it is decoded; then it is encoded again, which is said."""
    path = tmp_path / "photo.jpg"
    photo.save(path, quality=20)
    data = path.read_bytes()
    with io.BytesIO(data) if stream == "memory" else path.open("rb") as file:
        image = Image.open(file)
        position = file.tell()
        encoding = parse_encoding("jpeg")
        assert encoding.encode(image) == encoding.encode(image) == data
        assert file.tell() == position
        image.load()
        with pytest.warns(UserWarning, match="encoded again, with loss. Write the bytes"):
            again = encoding.encode(image)
        assert again == saved(image)


def test_pictures_of_a_dataset_are_copied_without_loss(photo, tmp_path):
    """A dataset gives JPEGs that are not decoded, so a writer stores the files that it has."""
    file = io.BytesIO()
    photo.save(file, format="JPEG", quality=20)
    with MDSWriter(str(tmp_path / "a"), {"x": "jpeg"}) as writer:
        writer.write({"x": file.getvalue()})
    with MDSWriter(str(tmp_path / "b"), {"x": "jpeg"}) as writer:
        writer.write(LocalDataset(str(tmp_path / "a"))[0])
    first, second = (tmp_path / name / "shard.00000.mds" for name in "ab")
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(("kind", "name"), [("png", "GIF"), ("png", "TIFF"), ("pil", "GIF")])
def test_a_picture_of_a_file_is_stored_by_its_pixels(photo, tmp_path, kind, name):
    """The frame that is shown now, and what was painted on it, whatever the file has."""
    path = tmp_path / f"frames.{name.lower()}"
    frames = [Image.new("L", (4, 4), level) for level in (0, 128, 255)]
    frames[0].save(path, format=name, save_all=True, append_images=frames[1:])
    encoding = parse_encoding(kind)
    with Image.open(path) as image:
        for frame, level in ((2, 255), (1, 128)):
            image.seek(frame)
            painted = image.convert("L")
            painted.putpixel((0, 0), 7)
            for each in (image, painted):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of a palette
                    stored = encoding.decode(encoding.encode(each))
                expected = np.full((4, 4), level)
                expected[0, 0] = np.asarray(each.convert("L"))[0, 0]
                if each is painted or kind == "png":
                    assert np.asarray(stored.convert("L")).tolist() == expected.tolist()


def test_arrays_of_mapped_files_are_stored_as_they_are_now(tmp_path):
    """A map of a file is read when it is written, so later changes do not matter."""
    array = np.memmap(tmp_path / "a", np.int32, "w+", shape=(4,))
    array[:] = 7
    data = parse_encoding("ndarray:int32").encode(array)
    array[:] = 8
    assert parse_encoding("ndarray:int32").decode(data).tolist() == [7] * 4


def test_an_open_file_is_refused_for_bytes_and_pictures(photo, tmp_path):
    """Its content is the caller's to read."""
    photo.save(tmp_path / "a.jpg")
    with (tmp_path / "a.jpg").open("rb") as file:
        for kind in ("bytes", "jpeg", "audio", "pil", "str"):
            with pytest.raises(EncodingTypeError, match="got BufferedReader"):
                parse_encoding(kind).encode(file)


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
