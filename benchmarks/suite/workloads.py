"""The material: made by script from what every machine has, so that the suite runs anywhere.

Text is that of the Python sources on the machine (standard library and installed packages). Images
are photographs from a folder, when one is given, or else pages of that text on a shaded ground,
rendered and saved as JPEG. Everything is a function of the count alone: each system is written the
same samples.
"""

from __future__ import annotations

import dataclasses
import io
import os
import random
import sysconfig
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

TOKENS = 2048  # of a sample
CROP = 224  # pixels of a decoded image's side in a batch
_SEED = 20

Sample = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """One kind of data set: its columns in the words of mds, and its samples."""

    name: str
    columns: dict[str, str]
    samples: Callable[[int, str | None], Iterator[Sample]]
    sizes: dict[str, int]  # samples for each scale


def sources() -> Iterator[str]:
    """The texts of Python sources of this machine, in an order that does not change."""
    for root in dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "purelib")):
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(f for f in folders if f not in ("site-packages", "__pycache__"))
            for name in sorted(f for f in files if f.endswith(".py")):
                try:
                    with open(os.path.join(folder, name), encoding="utf-8") as file:
                        text = file.read()
                except (OSError, UnicodeDecodeError):
                    continue  # a link to nowhere, or a test of another encoding
                if text:
                    yield text


def _endless() -> Iterator[str]:
    while True:
        yield from sources()


def tokens(count: int, _: str | None = None) -> Iterator[Sample]:
    """2,048 int32 each: the bytes of the text, as a byte-level tokenizer gives them."""
    buffer, need = bytearray(), TOKENS
    texts = _endless()
    for _number in range(count):
        while len(buffer) < need:
            buffer += next(texts).encode()
        yield {"tokens": np.frombuffer(bytes(buffer[:need]), np.uint8).astype(np.int32)}
        del buffer[:need]


def text(count: int, _: str | None = None) -> Iterator[Sample]:
    """Stretches of 0.2 to 4 KB, with a small JSON column that says where they are from."""
    draw = random.Random(_SEED)
    number = 0
    for document, document_tokens in enumerate(_endless()):
        offset = 0
        while offset < len(document_tokens):
            piece = document_tokens[offset : offset + draw.randint(200, 4096)]
            if len(piece) < 200:
                break
            meta = {
                "document": document,
                "start": offset,
                "lines": piece.count("\n"),
                "language": "python",
                "tags": ["source", "code"],
                "score": round(draw.random(), 4),
            }
            yield {"meta": meta, "text": piece}
            offset += len(piece)
            number += 1
            if number == count:
                return


def images(count: int, folder: str | None = None) -> Iterator[Sample]:
    """JPEG files of 20 to 100 KB and a label."""
    files = _photographs(folder) if folder else [_page(number) for number in range(min(count, 64))]
    for number in range(count):
        yield {"image": files[number % len(files)], "label": number % 1000}


def _photographs(folder: str) -> list[bytes]:
    sample_list = []
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if name.lower().endswith((".jpg", ".jpeg")):
                with open(os.path.join(place, name), "rb") as file:
                    sample_list.append(file.read())
    fit = [data for data in sample_list if 20_000 <= len(data) <= 200_000]
    if not fit:
        raise SystemExit(f"--images {folder}: there is no JPEG of 20 to 200 KB in it.")
    return fit


def _page(number: int) -> bytes:
    """A page of text on a shaded, slightly noisy ground, as a JPEG."""
    from PIL import Image, ImageDraw

    draw = np.random.default_rng(_SEED + number)
    width, height = int(draw.integers(320, 480)), int(draw.integers(320, 480))
    shade = np.linspace(60, 220, width)[None, :, None] + draw.normal(0, 9, (height, width, 3))
    image = Image.fromarray(shade.clip(0, 255).astype(np.uint8))
    lines = next(iter(_skip(sources(), number % 50))).splitlines()[:40]
    ImageDraw.Draw(image).multiline_text((8, 8), "\n".join(lines), fill=(20, 30, 60))
    file = io.BytesIO()
    image.save(file, format="JPEG", quality=85)
    return file.getvalue()


def _skip(texts: Iterator[str], count: int) -> Iterator[str]:
    for _ in range(count):
        next(texts)
    return texts


def small(count: int, _: str | None = None) -> Iterator[Sample]:
    """Three scalars."""
    for number in range(count):
        yield {"a": number, "b": number * 0.5, "c": number % 256}


WORKLOADS = {
    w.name: w
    for w in (
        Workload(
            "tokens",
            {"tokens": f"ndarray:int32:{TOKENS}"},
            tokens,
            {"smoke": 8192, "quick": 16_384, "full": 65_536},
        ),
        Workload(
            "text",
            {"meta": "json", "text": "str"},
            text,
            {"smoke": 1024, "quick": 32_768, "full": 131_072},
        ),
        Workload(
            "images",
            {"image": "jpeg", "label": "int32"},
            images,
            {"smoke": 256, "quick": 768, "full": 3_072},
        ),
        Workload(
            "small",
            {"a": "int64", "b": "float64", "c": "uint8"},
            small,
            {"smoke": 4096, "quick": 262_144, "full": 1_048_576},
        ),
    )
}


def decoder() -> tuple[str, Callable[[Any], Any]]:
    """The quickest JPEG decoder that is installed, the same for every system: (name, function).

    The function turns a file's bytes into a uint8 array (height, width, 3).
    """
    try:
        from simplejpeg import decode_jpeg
    except ImportError:
        from PIL import Image

        return "pillow", lambda data: np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    return "simplejpeg", lambda data: decode_jpeg(data, "RGB")


def crop(image: Any) -> Any:
    """The middle of a decoded image, (CROP, CROP, 3), padded with black where it is smaller."""
    height, width = image.shape[:2]
    top, left = max(0, (height - CROP) // 2), max(0, (width - CROP) // 2)
    middle = image[top : top + CROP, left : left + CROP]
    if middle.shape[:2] == (CROP, CROP):
        return middle
    out = np.zeros((CROP, CROP, 3), np.uint8)
    out[: middle.shape[0], : middle.shape[1]] = middle
    return out
