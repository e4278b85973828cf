"""Write a real corpus as shards and stream it back, shuffled, into a DataLoader with two workers.

The corpus is one that every machine has: the sources of Python's standard library.

    python examples/quickstart.py            in a temporary folder
    python examples/quickstart.py FOLDER     keeping the shards
"""

import collections
import hashlib
import os
import pathlib
import sys
import sysconfig
import tempfile
import time

from mds import MDSWriter, StreamingDataLoader, StreamingDataset


def documents():
    """(path, text) of every source file of the standard library."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - {"site-packages", "__pycache__"})
        for name in sorted(n for n in names if n.endswith(".py")):
            path = pathlib.Path(folder, name)
            yield str(path.relative_to(root)), path.read_text(encoding="utf-8", errors="replace")


def digest(path, text):
    """A document in eight bytes, to tell what arrived."""
    return hashlib.blake2s(f"{path}\0{text}".encode(), digest_size=8).digest()


def main(folder):
    """Write, stream, count."""
    start = time.perf_counter()
    written = collections.Counter()
    columns = {"path": "str", "text": "str"}
    out = os.path.join(folder, "stdlib")
    with MDSWriter(out=out, columns=columns, compression="zstd", size_limit="4mb") as writer:
        for path, text in documents():
            writer.write({"path": path, "text": text})
            written[digest(path, text)] += 1
    size = sum(file.stat().st_size for file in pathlib.Path(out).iterdir())
    print(
        f"wrote    {written.total():,} documents, {size / 1e6:.1f} MB in {out} "
        f"({time.perf_counter() - start:.1f} s)"
    )

    dataset = StreamingDataset(remote=out, local=os.path.join(folder, "cache"), shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=32, num_workers=2)
    start = time.perf_counter()
    arrived = collections.Counter()
    characters = 0
    for batch in loader:
        for path, text in zip(batch["path"], batch["text"], strict=True):
            arrived[digest(path, text)] += 1
            characters += len(text)
    seconds = time.perf_counter() - start
    print(
        f"streamed {arrived.total():,} documents, {characters / 1e6:.1f} million characters, "
        f"shuffled, two workers: {arrived.total() / seconds:,.0f} documents/s from a cold cache"
    )
    if arrived != written:
        sys.exit("Some documents are missing, doubled or changed.")
    print(f"proof    every one of the {len(arrived):,} documents arrived exactly once, unchanged")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
