"""Other data that look as they were: what is remembered notices, for many random changes by seed.

Each change leaves the names, sizes and, without digests, the bytes of the index equal. Then no old
sample comes. `docs/cache.md` lists what cannot be noticed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from devtools.httpserver import http_server
from mds import LocalDataset, MDSWriter, Packing, StreamingDataLoader, StreamingDataset
from mds.errors import ConfigError, SourceError, StateError
from mds.writers.convert import prepare

CHANGES = 300 if os.environ.get("MDS_FAULTS") == "long" else 70
SAMPLES = 12
SECOND = 10**9


def write_blocks(folder: Path, first: int, **options) -> None:
    """Write blocks of 16 tokens of one value each, from ``first`` on."""
    with MDSWriter(str(folder), {"tokens": "ndarray:int32"}, size_limit=300, **options) as writer:
        for number in range(SAMPLES):
            writer.write({"tokens": np.full(16, first + number, np.int32)})


def write_lines(folder: Path, first: int, **_) -> None:
    folder.mkdir()
    for part in range(3):
        numbers = range(first + part * 4, first + part * 4 + 4)
        lines = (json.dumps({"tokens": [number]}) + "\n" for number in numbers)
        (folder / f"{part}.jsonl").write_text("".join(lines))


@dataclass
class World:
    """A place whose data change, and what remembers them."""

    root: Path
    kind: str
    hashes: tuple[str, ...]
    url: str
    #: Whether datasets stay open, with their readers, when the next one is made.
    is_open: bool = False
    datasets: list[StreamingDataset] = field(default_factory=list)

    @property
    def place(self) -> Path:
        return self.root / "place"

    def write(self, folder: Path, first: int) -> None:
        compression = "zstd" if self.kind == "compressed" else None
        write = (
            write_lines if self.kind in ("lines", "fetched lines", "selection") else write_blocks
        )
        write(folder, first, hashes=list(self.hashes), compression=compression)

    def read(self) -> list[int]:
        """Return the first token of each sample, in a new dataset."""
        cache = str(self.root / "cache")
        if self.kind in ("in place", "compressed", "lines", "selection"):
            dataset = StreamingDataset(self.place, batch_size=2)
        elif self.kind == "http":
            dataset = StreamingDataset(f"{self.url}/place", local=cache, batch_size=2)
        else:
            dataset = StreamingDataset(self.place, local=cache, batch_size=2, shuffle=True)
        if self.is_open:
            self.datasets.append(dataset)
            dataset[0]
        if self.kind == "lengths":
            dataset = StreamingDataset(
                self.place, local=cache, batch_size=1, packing=Packing(32, column="tokens")
            )
            loader = StreamingDataLoader(dataset)
            return sorted({int(n) for batch in loader for n in np.unique(batch["tokens"])})
        if self.kind == "selection":
            dataset = dataset.select(where=lambda sample: sample["tokens"][0] % 2 == 0, key="even")
            return sorted(int(sample["tokens"][0]) for sample in dataset)
        return sorted(int(sample["tokens"][0]) for sample in dataset)

    def expected(self, first: int) -> list[int]:
        numbers = range(first, first + SAMPLES)
        return [n for n in numbers if self.kind != "selection" or n % 2 == 0]


def times_of(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def set_times(folder: Path, times: dict[str, int], later: int = 0) -> None:
    for name, time in times.items():
        os.utime(folder / name, ns=(time + later, time + later))


def overwrite(world: World, other: Path, later: int) -> None:
    """Write the bytes of other files into the same files, and set their times."""
    times = times_of(world.place)
    for path in other.iterdir():
        with open(world.place / path.name, "r+b") as file:
            file.truncate()
            file.write(path.read_bytes())
    set_times(world.place, times, later)


def replace(world: World, other: Path) -> None:
    """Rename other files to the names, with the same times."""
    set_times(other, times_of(world.place))
    for path in other.iterdir():
        os.replace(path, world.place / path.name)


def swap_folder(world: World, other: Path) -> None:
    """Rename another folder to the name, with the same times."""
    set_times(other, times_of(world.place))
    moved = world.root / f"old-{other.name}"
    os.rename(world.place, moved)
    os.rename(other, world.place)


def link_folder(world: World, other: Path) -> None:
    """Let a link lead to another folder, with the same times."""
    set_times(other, times_of(world.place))
    if world.place.is_symlink():
        world.place.unlink()
    else:
        os.rename(world.place, world.root / f"old-{other.name}")
    world.place.symlink_to(other)


def link_files(world: World, other: Path) -> None:
    """Let links lead to other files, with the same times."""
    set_times(other, times_of(world.place))
    for path in other.iterdir():
        (world.place / path.name).unlink()
        (world.place / path.name).symlink_to(path)


WAYS = {
    "a nanosecond later": lambda world, other: overwrite(world, other, 1),
    "the clock set back": lambda world, other: overwrite(world, other, -3600 * SECOND),
    "another inode": replace,
    "another folder": swap_folder,
    "a link of the folder": link_folder,
    "links of the files": link_files,
}
KINDS = (
    "cache",
    "in place",
    "compressed",
    "lines",
    "fetched lines",
    "lengths",
    "selection",
    "http",
)


def test_random_changes_are_noticed(tmp_path, monkeypatch):
    """Each world changes several times, in random ways; every new dataset gives the new data."""
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "home"))
    choose = random.Random(20)
    changed = 0
    with contextlib.ExitStack() as stack:
        while changed < CHANGES:
            kind = KINDS[changed // 5 % len(KINDS)]
            hashes = choose.choice([(), ("xxh3_64",)])
            root = tmp_path / f"{changed}"
            root.mkdir()
            url = stack.enter_context(http_server(str(root))) if kind == "http" else ""
            world = World(root, kind, hashes, url, is_open=choose.random() < 0.5)
            world.write(world.place, 100)
            assert world.read() == world.expected(100)
            history = [f"{kind}, hashes={hashes}, is_open={world.is_open}"]
            for step in range(1, 6):
                # Over HTTP, the ETag of the server has the time and the size alone.
                ways = ["a nanosecond later", "the clock set back"] if kind == "http" else [*WAYS]
                history.append(choose.choice(ways))
                first = 100 + 40 * step
                other = root / f"other-{step}"
                world.write(other, first)
                WAYS[history[-1]](world, other)
                changed += 1
                assert world.read() == world.expected(first), history
                assert world.read() == world.expected(first), history
            shutil.rmtree(root)


class Stopped(Exception):
    """The interruption of a conversion."""


def stop(progress) -> None:
    if progress.samples:
        raise Stopped


def convert_in_steps(source: Path, out: Path, *, is_interrupted: bool) -> None:
    """Convert with small parts and shards: to the first part, or to the end of what was begun."""
    conversion = prepare(str(source), str(out), size_limit=200, resume=not is_interrupted)
    conversion = dataclasses.replace(conversion, part_size=32)
    if not is_interrupted:
        conversion.run()
        return
    with pytest.raises(Stopped):
        conversion.run(stop)


@pytest.mark.parametrize("kind", ["lines", "blocks", "blocks with digests"])
@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_conversion_notices_other_files(tmp_path, kind, way):
    """It refuses them, and goes on with the same."""
    hashes = ("xxh3_64",) if kind == "blocks with digests" else ()
    world = World(tmp_path, "lines" if kind == "lines" else "in place", hashes, "")
    world.write(world.place, 100)
    convert_in_steps(world.place, tmp_path / "same", is_interrupted=True)
    convert_in_steps(world.place, tmp_path / "same", is_interrupted=False)
    assert len(LocalDataset(tmp_path / "same")) == SAMPLES
    convert_in_steps(world.place, tmp_path / "out", is_interrupted=True)
    other = tmp_path / "other"
    world.write(other, 500)
    WAYS[way](world, other)
    with pytest.raises(ConfigError, match="source content"):
        convert_in_steps(world.place, tmp_path / "out", is_interrupted=False)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_resumed_conversion_notices_other_shards_below_the_same_index(tmp_path, compression):
    """By their digests, whatever their times; it goes on when the shards are those of the index."""
    world = World(tmp_path, "compressed" if compression else "in place", ("xxh3_64",), "")
    world.write(world.place, 100)
    convert_in_steps(world.place, tmp_path / "out", is_interrupted=True)
    world.write(tmp_path / "other", 500)
    shards = {path: path.read_bytes() for path in world.place.glob("shard.*")}
    times = times_of(world.place)
    for path in shards:
        path.write_bytes((tmp_path / "other" / path.name).read_bytes())
    set_times(world.place, times)
    with pytest.raises(SourceError, match=r"shard\.\d+\.mds\S*: the index says .*, found .*"):
        convert_in_steps(world.place, tmp_path / "out", is_interrupted=False)
    for path, data in shards.items():
        path.write_bytes(data)
    convert_in_steps(world.place, tmp_path / "out", is_interrupted=False)
    numbers = [int(sample["tokens"][0]) for sample in LocalDataset(tmp_path / "out")]
    assert numbers == world.expected(100)


@pytest.mark.parametrize("way", WAYS)
def test_a_state_notices_other_files(tmp_path, way):
    """If the index has digests."""
    world = World(tmp_path, "in place", ("xxh3_64",), "")
    world.write(world.place, 100)
    loader = StreamingDataLoader(StreamingDataset(world.place, batch_size=2))
    next(iter(loader))
    state = loader.state_dict()
    other = tmp_path / "other"
    world.write(other, 500)
    WAYS[way](world, other)
    with pytest.raises(StateError):
        StreamingDataLoader(StreamingDataset(world.place, batch_size=2)).load_state_dict(state)
