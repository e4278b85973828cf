"""Files whose header claims a thousand times their size are refused before memory is reserved."""

import gzip
import io
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from limits import run

from mds.encodings import parse_encoding
from mds.errors import EncodingError

Image = pytest.importorskip("PIL.Image")
SIDE = 40_000  # pixels


def picture(kind, **more):
    """The file of a small picture, to be changed."""
    file = io.BytesIO()
    Image.new("P" if kind == "GIF" else "RGB", (16, 1)).save(file, kind, **more)
    return bytearray(file.getvalue())


def jpeg():
    data = picture("JPEG")
    struct.pack_into(">HH", data, data.find(b"\xff\xc0") + 5, SIDE, SIDE)
    return data


def png():
    data = picture("PNG")
    struct.pack_into(">II", data, 16, SIDE, SIDE)
    struct.pack_into(">I", data, 29, zlib.crc32(data[12:29]))
    return data


def gif():
    data = picture("GIF")
    struct.pack_into("<HH", data, 6, SIDE, SIDE)
    return data


def bmp():
    data = picture("BMP")
    struct.pack_into("<ii", data, 18, SIDE, SIDE)
    return data


def tiff():
    data = picture("TIFF")
    (start,) = struct.unpack_from("<I", data, 4)
    for entry in range(struct.unpack_from("<H", data, start)[0]):
        place = start + 2 + 12 * entry
        if struct.unpack_from("<H", data, place)[0] in {256, 257}:  # width and height
            struct.pack_into("<HII", data, place + 2, 4, 1, SIDE)
    return data


def webp():
    data = picture("WEBP", lossless=True)
    place = data.find(b"VP8L") + 9
    (bits,) = struct.unpack_from("<I", data, place)
    struct.pack_into("<I", data, place, bits | 0xFFFFFFF)  # 16,384 x 16,384, which is its most
    return data


@pytest.mark.parametrize("kind", [jpeg, png, gif, bmp, tiff, webp])
@pytest.mark.parametrize("column", ["jpeg", "png"])
def test_a_picture_that_claims_too_many_pixels_is_refused(kind, column):
    """However it is decoded; the error names the limit and how to raise it."""
    encoding, data = parse_encoding(column), bytes(kind())
    for decode in encoding.decode, encoding.decode_array:
        with pytest.raises(EncodingError, match=r"exceeds limit .* PIL\.Image\.MAX_IMAGE_PIXELS"):
            decode(data)


def test_a_limit_of_the_user_holds(monkeypatch):
    """A larger one, none, and one below the picture's size, for each way to decode a JPEG."""
    pixels = np.zeros((40, 50, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    encoding = parse_encoding("jpeg")
    for limit in 10**12, None, 40 * 50 // 2:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        assert encoding.decode_array(file.getvalue()).shape == (40, 50, 3)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40 * 50 // 2 - 1)
    with pytest.raises(EncodingError, match="exceeds limit"):
        encoding.decode_array(file.getvalue())


def test_the_limit_holds_before_pillow_is_imported():
    """The decoder of JPEG files does not need Pillow."""
    program = """
import sys
from mds.encodings import parse_encoding
from mds.errors import EncodingError
try:
    parse_encoding("jpeg").decode_array(bytes.fromhex(sys.argv[1]))
except EncodingError as error:
    print("MAX_IMAGE_PIXELS" in str(error))
"""
    command = [sys.executable, "-c", program, bytes(jpeg()).hex()]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"


READ = """
from mds import Samples
from mds.errors import FormatError
before = peak()
try:
    print(len([*Samples(sys.argv[1], format=sys.argv[2], batch_size=1)]))
except FormatError as error:
    print(peak() - before < 1536, error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("a.jsonl.gz", "jsonl"), ("a.txt.gz", "lines")])
@pytest.mark.parametrize(("megabytes", "memory"), [(1100, None), (900, 1000)])
def test_a_line_that_unpacks_to_a_gigabyte(tmp_path, name, kind, megabytes, memory):
    """A megabyte of gzip: the error names the limit, or what the process may take."""
    (tmp_path / "data").mkdir()
    with gzip.open(tmp_path / "data" / name, "wb") as file:
        file.write(b'{"a":"')
        for _ in range(megabytes):
            file.write(b"x" * (1 << 20))
        file.write(b'"}\n')
    cache = str(tmp_path / "cache")
    out = run(READ, tmp_path / "data", kind, memory=memory, MDS_CACHE_DIR=cache, timeout=600)
    assert out.startswith("True "), out
    assert ("more than 1,073,741,824 bytes" if memory is None else "ulimit -v") in out
