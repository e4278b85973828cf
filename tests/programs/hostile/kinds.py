"""The kinds of hostile input, and what is done with each: the real thing, as a user would.

Every function gets the tools of one input (`Tools`) and attempts things; an attempt may end in an
error of the library and in nothing else. Not one of our names is replaced.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import pickle
import random
import shutil
import struct
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mutations
import xxhash
from sentinels import Home
from server import HostileServer

import mds
from mds._index.table import read_index
from mds.writers import MDSWriter, merge_index
from mds.writers.convert import convert

COLUMNS = {"x": "int", "b": "bytes", "t": "str", "a": "ndarray:int16:3", "j": "json"}
SAMPLES = 40
VARIANTS: dict[str, dict[str, Any]] = {
    "raw": {},
    "hashed": {"hashes": ["xxh3_64"]},
    "zstd": {"compression": "zstd"},
    "gz": {"compression": "gz:1", "hashes": ["sha1"]},
    "bz2": {"compression": "bz2"},
    "br": {"compression": "br:1"},
    "snappy": {"compression": "snappy"},
}
Files = dict[str, bytes]


@dataclass
class Tools:
    """What an input is made of and where it is put."""

    rng: random.Random
    home: Home
    server: HostileServer
    datasets: dict[str, Files]
    attempt: Callable[[Callable[[], object]], object]

    def pick(self, *names: str) -> Files:
        """The files of one of the honest datasets."""
        return dict(self.datasets[self.rng.choice(names or tuple(self.datasets))])

    def put(self, files: Files, folder: str) -> str:
        """Write files below a folder, those that stay there and a disk can hold; the folder."""
        for name, data in files.items():
            path = os.path.normpath(os.path.join(folder, name))
            # The names are hostile, and this is not the code that has to withstand them.
            if not path.startswith(os.path.join(folder, "")):
                continue
            with contextlib.suppress(OSError, ValueError):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                pathlib.Path(path).write_bytes(data)
        return folder

    def read(self, where: str | None, *, remote: str | None = None, **options: Any) -> None:
        """Open a dataset and read as training does: some steps, samples by number, a state."""
        rng = self.rng
        options.setdefault("shuffle", rng.random() < 0.5)
        options.setdefault("cache_limit", rng.choice((None, None, 200_000)))
        options.setdefault("keep_zip", rng.choice((False, False, True)))

        def go() -> None:
            dataset = mds.StreamingDataset(
                remote=remote,
                local=where,
                batch_size=4,
                download_retry=0,
                download_timeout=1.0,
                **options,
            )
            self.attempt(lambda: steps(dataset))
            for at in (0, -1, len(dataset) // 2) if len(dataset) else ():
                self.attempt(lambda at=at: dataset[at])
            self.attempt(lambda: dataset.state_dict(4, from_beginning=True))

        self.attempt(go)

    def read_local(self, folder: str) -> None:
        """The same with a LocalDataset."""

        def go() -> None:
            dataset = mds.LocalDataset(folder)
            for at in range(min(len(dataset), 12)):
                self.attempt(lambda at=at: dataset[at])

        self.attempt(go)

    def read_anyhow(self, files: Files) -> None:
        """Over http into the cache folder, from a folder into it, or in place."""
        how = self.rng.randrange(4)
        if how <= 1:
            self.server.files = files
            self.read(self.home.cache, remote=self.server.url)
        elif how == 2:
            self.read(self.home.cache, remote=self.put(files, self.home.remote))
        elif self.rng.random() < 0.5:
            self.read(self.put(files, self.home.remote))
        else:
            self.read_local(self.put(files, self.home.remote))


def steps(dataset: Any, count: int = 9) -> None:
    """Some samples, as they come."""
    for number, _ in enumerate(dataset):
        if number >= count:
            break


def write_datasets(folder: str) -> dict[str, Files]:
    """The honest datasets, as bytes."""
    found = {}
    for variant, options in VARIANTS.items():
        out = os.path.join(folder, variant)
        with MDSWriter(out=out, columns=COLUMNS, size_limit=1500, **options) as writer:
            for x in range(SAMPLES):
                text = f"sample {x}"
                row = {"x": x, "b": text.encode() * 4, "t": text, "a": [x, 2, 3], "j": [x]}
                import numpy as np

                writer.write({**row, "a": np.array(row["a"], np.int16)})
        found[variant] = {name: pathlib.Path(out, name).read_bytes() for name in os.listdir(out)}
    return found


# ---------------------------------------------------------------------- kinds


def names(tools: Tools) -> None:
    """Hostile names in an index, with bytes behind every one of them."""
    rng, files = tools.rng, tools.pick("raw", "raw", "hashed", "zstd", "gz")
    index = json.loads(files["index.json"])
    for _ in range(rng.randint(1, 3)):
        shard = rng.choice(index["shards"])
        kind = rng.choice([k for k in ("raw_data", "zip_data") if shard[k]])
        before, told = shard[kind]["basename"], mutations.name(rng)
        shard[kind]["basename"] = told
        if rng.random() < 0.3:
            shard[kind]["bytes"] = rng.choice((shard[kind]["bytes"], 0, 29, 5, 1 << 20))
        with contextlib.suppress(UnicodeEncodeError):
            told.encode()
            files[told] = files.get(before, b"")
    tools.server.other = rng.choice((None, files.get("shard.00000.mds", b"x"), b""))
    files["index.json"] = json.dumps(index).encode()
    if rng.random() < 0.3:
        tools.read(tools.home.cache, remote=tools.put(tools.pick("raw"), tools.home.remote))
    tools.read_anyhow(files)


def numbers(tools: Tools) -> None:
    """Hostile values anywhere in an index."""
    files = tools.pick()
    index = mutations.change(tools.rng, json.loads(files["index.json"]), most=3)
    files["index.json"] = json.dumps(index).encode("utf-8", "surrogatepass")
    tools.read_anyhow(files)


def texts(tools: Tools) -> None:
    """An index whose bytes are damaged."""
    files = tools.pick()
    files["index.json"] = mutations.damage(tools.rng, files["index.json"])
    tools.read_anyhow(files)


def _first_run(tools: Tools, *kinds: str, **options: Any) -> dict[str, Any]:
    """A cache folder as an honest run leaves it; what the next run is to be called with."""
    remote = tools.put(tools.pick(*kinds), tools.home.remote)
    if tools.rng.random() < 0.3:
        tools.server.files = tools.pick(*kinds)
        remote = tools.server.url
    shared = {"remote": remote, **options}
    tools.read(tools.home.cache, **shared)
    return shared


def _ours(top: str, *endings: str) -> list[str]:
    """The files of the library below a folder."""
    found = [os.path.join(f, n) for f, _, names in os.walk(top) for n in names if ".mds" in f]
    return sorted(path for path in found if not endings or path.endswith(endings))


def sidecars(tools: Tools) -> None:
    """The binary table of the index: damaged, or forged with a right digest."""
    rng = tools.rng
    shared = _first_run(tools, "raw", "hashed", "zstd")
    for path in _ours(tools.home.cache, "index.mds"):
        data = pathlib.Path(path).read_bytes()
        data = mutations.damage(rng, data) if rng.random() < 0.2 else _forged(rng, data)
        _replace(rng, path, data, tools.home)
    tools.read(tools.home.cache, **shared)
    tools.read(tools.home.cache, **shared)


def _forged(rng: random.Random, data: bytes) -> bytes:
    length = int.from_bytes(data[16:20], "little")
    header, body = json.loads(data[20 : 20 + length]), data[20 + length :]
    how = rng.randrange(4)
    if how == 0:
        header = mutations.change(rng, header)
    elif how == 1:
        old = rng.choice([b"shard.00000.mds", b"shard.00001.mds", b"shard.0000", b"mds"])
        new = mutations.name(rng).encode("utf-8", "surrogatepass")[: len(old)]
        body = body.replace(old, new.ljust(len(old), b"x"))
    else:
        body = mutations.damage(rng, body)
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    text += b" " * (-(20 + len(text)) % 64)
    rest = len(text).to_bytes(4, "little") + text + body
    return data[:8] + struct.pack("<Q", xxhash.xxh3_64_intdigest(rest)) + rest


def _replace(rng: random.Random, path: str, data: bytes, home: Home) -> None:
    """Put bytes in a file's place, or something that is no file at all."""
    how = rng.random()
    os.unlink(path)  # a file that is still mapped must not be cut short
    if how < 0.85:
        pathlib.Path(path).write_bytes(data)
    elif how < 0.88:
        os.mkdir(path)
    elif how < 0.91:
        os.mkfifo(path)
    elif how < 0.97:
        os.symlink(os.path.join(home.home, rng.choice((".ssh/id", ".ssh", "work/train.py"))), path)


def ledgers(tools: Tools) -> None:
    """The account of the cache folder, damaged anywhere."""
    rng = tools.rng
    shared = _first_run(tools, "raw", "hashed", "zstd", cache_limit=200_000)
    for path in _ours(tools.home.cache, "ledger"):
        data = pathlib.Path(path).read_bytes()
        if rng.random() < 0.6:  # the entries lie at the end
            at = len(data) - 48 * rng.randint(1, 4)
            data = data[:at] + mutations.damage(rng, data[at:])[: len(data) - at]
            data = data.ljust(at, b"\0")
        else:
            data = mutations.damage(rng, data)
        _replace(rng, path, data, tools.home)
    tools.read(tools.home.cache, **shared)
    tools.read(tools.home.cache, **shared)


def control_files(tools: Tools) -> None:
    """Origin and locks changed, and names planted that look like ours."""
    rng, home = tools.rng, tools.home
    shared = _first_run(tools)
    for path in _ours(home.cache):
        if path.endswith("origin.json") and rng.random() < 0.7:
            told = json.loads(pathlib.Path(path).read_bytes())
            told = mutations.change(rng, told) if rng.random() < 0.7 else mutations.value(rng)
            _replace(rng, path, json.dumps(told).encode("utf-8", "surrogatepass"), home)
        elif rng.random() < 0.3:
            _replace(rng, path, mutations.damage(rng, pathlib.Path(path).read_bytes()), home)
    for _ in range(rng.randint(0, 3)):
        owner = rng.choice(("1", "0", "99999999", "9" * 30, "9" * 180, "4194303", "-1"))
        planted = rng.choice(
            (f".shard.00000.mds.{owner}-0123456789ab.mds-part", f"order-{owner}.ids")
        )
        folder = rng.choice((home.cache, f"{home.cache}/.mds", f"{home.home}/.cache/mds/orders"))
        with contextlib.suppress(OSError):
            os.makedirs(folder, exist_ok=True)
            how = rng.randrange(3)
            target = os.path.join(home.home, ".ssh/id")
            path = os.path.join(folder, planted)
            if os.path.lexists(path):
                continue
            os.mkdir(path) if how == 0 else os.symlink(target, path) if how == 1 else (
                pathlib.Path(path).write_bytes(b"x")
            )
    if rng.random() < 0.15:
        shutil.rmtree(os.path.join(home.cache, ".mds"))
        pathlib.Path(home.cache, ".mds").write_bytes(b"a file")
    tools.read(home.cache, **shared)
    tools.read(home.cache, **shared)


def orders(tools: Tools) -> None:
    """The files that keep the order of an epoch."""
    rng = tools.rng
    shared = _first_run(tools, "raw", shuffle=True, shuffle_algo="py1e", cache_limit=None)
    folder = os.path.join(tools.home.home, ".cache", "mds", "orders")
    for entry in list(os.scandir(folder)) if os.path.isdir(folder) else ():
        if entry.is_file() and entry.stat().st_size:
            data = pathlib.Path(entry.path).read_bytes()
            bad = rng.choice((bytes(len(data)), b"\xff" * len(data), rng.randbytes(len(data))))
            if rng.random() < 0.5:
                bad = mutations.damage(rng, data)
            _replace(rng, entry.path, bad, tools.home)
    tools.read(tools.home.cache, **shared)
    tools.read(tools.home.cache, **shared)


def states(tools: Tools) -> None:
    """A checkpoint that was changed, or is none."""
    rng = tools.rng
    remote = tools.put(tools.pick("raw"), tools.home.remote)

    def go() -> None:
        dataset = mds.StreamingDataset(local=remote, batch_size=4, shuffle=True)
        steps(dataset, 5)
        state = json.loads(json.dumps(dataset.state_dict(rng.randrange(50), from_beginning=True)))
        bad = mutations.change(rng, state, most=3) if rng.random() < 0.95 else mutations.value(rng)

        def resume() -> None:
            other = mds.StreamingDataset(local=remote, batch_size=4, shuffle=True)
            other.load_state_dict(bad)
            steps(other, 50)
            pickle.dumps(other.state_dict(1, from_beginning=False))

        tools.attempt(resume)

    tools.attempt(go)


def shards(tools: Tools) -> None:
    """Shards whose bytes are damaged, with their size in the index made right or not."""
    rng = tools.rng
    files = tools.pick("raw", "raw", "zstd", "gz", "bz2", "br", "snappy")
    index = json.loads(files["index.json"])
    for shard in rng.sample(index["shards"], rng.randint(1, len(index["shards"]))):
        file = shard["zip_data"] or shard["raw_data"]
        data = files[file["basename"]] = mutations.damage(rng, files[file["basename"]])
        file["hashes"] = {key: told for key, told in file["hashes"].items() if rng.random() < 0.1}
        if rng.random() < 0.8:
            file["bytes"] = len(data)
        if shard["zip_data"] and rng.random() < 0.3:
            shard["raw_data"]["bytes"] = rng.choice((5, 1000, 1 << 20, 1 << 31, (1 << 32) - 1))
    files["index.json"] = json.dumps(index).encode()
    tools.read_anyhow(files)


def servers(tools: Tools) -> None:
    """A server whose answers lie, now and then or always."""
    rng = tools.rng
    tools.server.files = tools.pick()
    share = rng.choice((0.2, 0.5, 1.0))
    only = rng.choice(("", "", "shard", "index"))
    dice = random.Random(rng.random())

    def tell(answer: Any) -> None:
        if only in answer.path and dice.random() < share:
            mutations.lie(dice, answer)

    if rng.random() < 0.5:
        tools.read(tools.home.cache, remote=tools.server.url)
    tools.server.lie = tell
    tools.read(tools.home.cache, remote=tools.server.url)
    tools.read(tools.home.cache, remote=tools.server.url)


def links(tools: Tools) -> None:
    """Links, folders and files in the cache folder where shards are to be."""
    rng, home = tools.rng, tools.home
    files = tools.pick("raw", "hashed", "zstd")
    index = json.loads(files["index.json"])
    for shard in index["shards"]:
        for kind in ("raw_data", "zip_data"):
            if shard[kind]:
                before = shard[kind]["basename"]
                after = shard[kind]["basename"] = f"{rng.choice(('a', 'a/b', 'c'))}/{before}"
                files[after] = files.pop(before, b"")
    files["index.json"] = json.dumps(index).encode()
    for part in ("a", "a/b", "c", "a/shard.00000.mds", "c/shard.00001.mds", "index.json", ".mds"):
        how, path = rng.random(), os.path.join(home.cache, part)
        target = os.path.join(
            home.home, rng.choice((".ssh", ".ssh/id", "work/notes", "work/neighbour"))
        )
        if os.path.realpath(os.path.dirname(path)) != os.path.dirname(
            os.path.realpath(home.cache) + f"/{part}"
        ):
            continue  # this program follows no links either
        with contextlib.suppress(OSError):
            if how < 0.25:
                os.symlink(target, path)
            elif how < 0.35:
                pathlib.Path(path).write_bytes(b"x")
            elif how < 0.5:
                os.makedirs(path)
    tools.read_anyhow(files)


def writers(tools: Tools) -> None:
    """Merging, overwriting, converting and listing where the index that is there lies."""
    rng, home = tools.rng, tools.home
    files = tools.pick("raw", "zstd")
    index = json.loads(files["index.json"])
    if rng.random() < 0.7:
        shard = rng.choice(index["shards"])
        kind = rng.choice([k for k in ("raw_data", "zip_data") if shard[k]])
        shard[kind]["basename"] = mutations.name(rng)
    else:
        index = mutations.change(rng, index)
    files["index.json"] = json.dumps(index).encode("utf-8", "surrogatepass")
    folder = os.path.join(home.cache, "out")
    how = rng.randrange(5)
    if how == 0:
        for sub in ("p", rng.choice(("q", "q\x1b[2J", ".mds", "r" * 200))):
            tools.put(files, os.path.join(folder, sub))
        tools.attempt(lambda: merge_index(folder))
    elif how == 1:
        tools.put(files, folder)

        def write() -> None:
            with MDSWriter(out=folder, columns={"x": "int"}, exist_ok=True) as writer:
                writer.write({"x": 1})

        tools.attempt(write)
    elif how == 2:
        tools.put(files, home.remote)
        tools.attempt(lambda: convert(home.remote, folder, source_format="mds", num_workers=1))
    elif how == 3:
        path = os.path.join(home.remote, "x.tar")
        with tarfile.open(path, "w") as tar:
            for _ in range(3):
                told = tarfile.TarInfo(mutations.name(rng).encode("utf-8", "replace").decode())
                told.size = 5
                tar.addfile(told, io.BytesIO(b"hello"))
        tools.attempt(lambda: convert(home.remote, folder, num_workers=1))
    else:
        tools.put(files, folder)
        tools.attempt(lambda: list(read_index(os.path.join(folder, "index.json"))))
        tools.attempt(lambda: convert(home.remote, folder, overwrite=True, num_workers=1))


KINDS: dict[Callable[[Tools], None], int] = {
    names: 20, numbers: 14, texts: 8, sidecars: 10, ledgers: 10, control_files: 8, orders: 5,
    states: 8, shards: 12, servers: 15, links: 6, writers: 6,
}  # fmt: skip
