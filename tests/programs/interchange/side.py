"""One side of the exchange: run by a Python that has `mds`, and by one that has `streaming`.

    side.py LIBRARY write FOLDER        writes every case
    side.py LIBRARY read FOLDER CACHE   prints what it reads, as JSON: case -> samples or an error

Both sides make the same samples and describe values alike, so the descriptions can be compared.
"""

import hashlib
import importlib
import json
import os
import sys
from decimal import Decimal

import numpy as np

NUMBERS = [f"{s}int{b}" for s in ("", "u") for b in (8, 16, 32, 64)]
NUMBERS += ["float16", "float32", "float64"]
COMPRESSIONS = ["br", "br:0", "br:11", "bz2", "bz2:1", "gz", "gz:0", "gz:9", "snappy", "zstd"]
COMPRESSIONS += ["zstd:1", "zstd:22"]
HASHES = ["blake2s", "md5", "sha3_256", "xxh128", "xxh32", "xxh3_64", "xxh64"]


def image(rng, mode):
    from PIL import Image

    return Image.fromarray(rng.integers(0, 255, (9, 13, 3), np.uint8)).convert(mode)


def arrays(dtype):
    def make(rng):
        return (rng.random((3, 4)) * 100).astype(dtype)

    return make


def jpeg_files(rng):
    import io

    files = []
    for mode in ("L", "RGB"):
        files.append(io.BytesIO())
        image(rng, mode).save(files[-1], format="JPEG")
    return [file.getvalue() for file in files]


ENCODINGS = {
    "bytes": lambda rng: rng.bytes(rng.integers(0, 50)),
    "str": lambda rng: "".join(map(chr, rng.integers(32, 2000, rng.integers(0, 30)))),
    "int": lambda rng: int(rng.integers(-(2**63), 2**63 - 1)),
    "str_int": lambda rng: int(rng.integers(0, 2**62)) ** 3,
    "str_float": lambda rng: float(rng.normal()),
    "str_decimal": lambda rng: Decimal(str(rng.normal())),
    "json": lambda rng: {"é": [None, True, float(rng.random())], "a": {"b": int(rng.integers(9))}},
    "pkl": lambda rng: {"t": (1, 2.5), "s": {int(rng.integers(9))}},
    "ndarray": lambda rng: rng.integers(0, 99, tuple(rng.integers(1, 5, rng.integers(1, 4)))),
    "pil": lambda rng: image(rng, ("RGB", "L", "RGBA", "1", "CMYK")[rng.integers(5)]),
    "png": lambda rng: image(rng, ("RGB", "L", "RGBA", "P")[rng.integers(4)]),
    "jpeg": lambda rng: image(rng, ("RGB", "L", "CMYK")[rng.integers(3)]),
    "jpeg_array": jpeg_files,
    "jpegarray": jpeg_files,
    "list[pil]": lambda rng: [image(rng, "RGB"), image(rng, "L")],
    "list[png]": lambda rng: [image(rng, "RGB")] * int(rng.integers(0, 3)),
    "list[jpeg]": lambda rng: [image(rng, "RGB")] * int(rng.integers(0, 3)),
    **{name: lambda rng, d=name: np.dtype(d).type(rng.integers(0, 100)) for name in NUMBERS},
    **{f"ndarray:{name}": arrays(name) for name in NUMBERS},
    **{f"ndarray:{name}:3,4": arrays(name) for name in NUMBERS},
}
TEXT = {
    "s": ("str", lambda rng: "".join(map(chr, rng.integers(65, 900, rng.integers(0, 9))))),
    "i": ("int", lambda rng: int(rng.integers(-(2**40), 2**40))),
    "f": ("float", lambda rng: float(rng.normal())),
}


def cases():
    """Name of a case -> writer, its arguments, makers of values."""
    for name, make in ENCODINGS.items():
        yield f"encoding {name}", ("MDSWriter", {"columns": {"x": name}}, {"x": make})
    mixed = {"a": "str", "n": "ndarray:int16", "i": "int", "Z": "uint8"}
    makers = {"a": ENCODINGS["str"], "i": ENCODINGS["int"], "Z": ENCODINGS["uint8"]}
    makers["n"] = arrays("int16")
    for compression in [None, *COMPRESSIONS]:
        options = {"columns": mixed, "compression": compression, "hashes": HASHES}
        yield f"mds {compression}", ("MDSWriter", {**options, "size_limit": 700}, makers)
    columns = {name: encoding for name, (encoding, _) in TEXT.items()}
    makers = {name: make for name, (_, make) in TEXT.items()}
    for kind in ("JSON", "CSV", "TSV", "XSV"):
        for compression in (None, "gz", "zstd:7"):
            options = {"columns": columns, "compression": compression, "size_limit": 300}
            options |= {"separator": "<>"} if kind == "XSV" else {}
            yield f"{kind} {compression}", (f"{kind}Writer", options, makers)


def samples(case, makers):
    rng = np.random.default_rng(int(hashlib.md5(case.encode()).hexdigest()[:8], 16))
    return [{name: make(rng) for name, make in makers.items()} for _ in range(12)]


def describe(value):
    """A value in words that are equal where values are."""
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(describe, value)]
    if isinstance(value, dict):
        return {key: describe(item) for key, item in sorted(value.items())}
    if isinstance(value, (np.ndarray, np.generic)):
        digest = hashlib.md5(np.ascontiguousarray(value).tobytes()).hexdigest()
        return [type(value).__name__, str(value.dtype), list(value.shape), digest]
    if hasattr(value, "tobytes"):
        return ["image", value.mode, list(value.size), hashlib.md5(value.tobytes()).hexdigest()]
    return [type(value).__name__, repr(value)]


def write(library, folder):
    for case, (writer, options, makers) in cases():
        with getattr(library, writer)(out=os.path.join(folder, case), **options) as out:
            for sample in samples(case, makers):
                out.write(sample)


def read(library, folder, cache):
    found = {}
    for case in sorted(os.listdir(folder)):
        try:
            dataset = library.StreamingDataset(
                remote=os.path.join(folder, case),
                local=os.path.join(cache, case),
                batch_size=1,
                allow_unsafe_types=True,
                validate_hash="xxh64" if case.startswith("mds") else None,
            )
            found[case] = [describe(dataset[i]) for i in range(dataset.size)]
        except Exception as error:  # noqa: BLE001 - the other side judges
            found[case] = f"{type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    module = importlib.import_module(sys.argv[1])
    if sys.argv[2] == "write":
        write(module, sys.argv[3])
    else:
        print("RESULT" + json.dumps(read(module, *sys.argv[3:5])))
