"""The limit: the same values straight out of one mapped file, with nothing around them.

Tokens are copied by numpy, one sample or one gather at a time; text is decoded and its JSON parsed;
images are held in memory as files and decoded. No order, no index, no shards, no checks: what a
loader spends beyond this is its own.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from benchmarks.suite.workloads import TOKENS
from benchmarks.systems.base import (
    Batching,
    Begin,
    Data,
    System,
    collate_samples,
    stack_images,
    torch_loader,
)

_SMALL = np.dtype([("a", "<i8"), ("b", "<f8"), ("c", "u1")])


class Limit(System):
    """One file of values and one of offsets."""

    name = "limit"
    label = "limit"
    module = "numpy"
    answers: ClassVar = {
        "iterate": ("copy", "view"),
        "random_access": ("copy", "view"),
        "rows": ("",),
        "batches": ("",),
        "images": ("",),
        "augmented": ("",),
        "small": ("",),
        "start": ("json.load",),
        "cold": ("",),
        "requests": ("",),
        "write": ("",),
        "imports": ("",),
        "memory": ("",),
    }
    note = "'copy' copies the bytes out of the map, 'view' leaves them there; the bars mean 'copy'."

    def variants(self, question: str, workload: str) -> tuple[str, ...]:
        """Only an array can be left where it is."""
        variant_names = super().variants(question, workload)
        return variant_names[:1] if workload not in ("", "tokens") else variant_names

    def write(self, workload: str, columns: dict[str, str], samples: Any, folder: str) -> None:
        ends = [0]
        with open(os.path.join(folder, "values"), "wb") as file:
            for sample in samples:
                for value in _PARTS[workload](sample):
                    file.write(value)
                    ends.append(ends[-1] + len(value))
        np.save(os.path.join(folder, "ends.npy"), np.array(ends))

    def iterate(self, data: Data, shuffled: bool, variant: str) -> Begin:
        get = self.getter(data, variant)
        order = np.arange(data.count)
        if shuffled:
            order = np.random.default_rng(1).permutation(data.count)
        # A list: converting numpy integers would cost more than the read.
        numbers = order.tolist()
        return lambda: map(get, numbers)

    def getter(self, data: Data, variant: str) -> Callable[[int], Any]:
        return _GETTERS[data.workload, variant or "copy"](*_mapped(data))

    def rows(self, data: Data, variant: str) -> Callable[[list[int]], Any]:
        matrix = _matrix(data)
        return lambda numbers: {"tokens": matrix[numbers]}

    def batches(self, data: Data, batching: Batching, variant: str) -> Begin:
        import torch

        # Workers would only slow a gather down: their limit is the transport between processes.
        if batching.workers:
            loader = torch_loader(_Gathered(data, batching), batching, batch_size=None)
            return lambda: iter(loader)
        matrix, order = _matrix(data), _order(data, batching)
        size = batching.size

        def begin() -> Iterator[Any]:
            for begin in range(0, data.count, size):
                yield {"tokens": torch.from_numpy(matrix[order[begin : begin + size]])}

        return begin

    def remote(
        self, data: Data, batching: Batching, variant: str, url: str, cache: str, collate: Any
    ) -> Begin:
        from benchmarks import remote

        def begin() -> Iterator[Any]:
            remote.BUCKET = "mds"  # the objects of whom the limit is for
            remote.plain(url, cache)
            return iter([{"tokens": range(data.count)}])

        return begin

    def ranges(self, data: Data, name: str, url: str) -> Callable[[int, int], bytes]:
        import http.client
        import threading

        address, connections = url.partition("://")[2], threading.local()

        def get(start: int, end: int) -> bytes:
            if not hasattr(connections, "connection"):
                connections.connection = http.client.HTTPConnection(address)
            headers = {"Range": f"bytes={start}-{end - 1}"}
            connections.connection.request("GET", f"/mds/{name}", headers=headers)
            return connections.connection.getresponse().read()

        return get

    def start(self, data: Data, variant: str) -> Any:
        with open(os.path.join(data.folder, "index.json")) as file:
            return json.load(file)

    def images(self, data: Data, batching: Batching, variant: str) -> Begin:
        loader = torch_loader(
            _InMemory(data),
            batching,
            batch_size=batching.size,
            shuffle=batching.shuffled,
            collate_fn=stack_images,
        )
        return lambda: iter(loader)

    def augmented(self, data: Data, batching: Batching, variant: str) -> Begin:
        from benchmarks.suite.augment import normalise

        loader = torch_loader(
            _AugmentedInMemory(data),
            batching,
            batch_size=batching.size,
            shuffle=batching.shuffled,
            collate_fn=normalise,
        )
        return lambda: iter(loader)


class Plain(System):
    """A loader written by hand: a map-style dataset over one file, and torch's loader."""

    name = "plain"
    label = "plain map dataset"
    workloads = ("tokens",)
    answers: ClassVar = {"batches": ("",), "collate": ("",), "memory": ("",)}
    note = "torch.utils.data.Dataset over a numpy memory map, default collate."
    stored_as = "limit"

    def batches(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._loader(data, batching)

    def collated(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._loader(data, batching, collate_fn=collate_samples)

    def _loader(self, data: Data, batching: Batching, **options: Any) -> Begin:
        loader = torch_loader(
            _MapStyle(data),
            batching,
            batch_size=batching.size,
            shuffle=batching.shuffled,
            **options,
        )
        return lambda: iter(loader)


class _MapStyle:
    def __init__(self, data: Data) -> None:
        self._matrix = np.memmap(os.path.join(data.folder, "values"), np.int32, "r").reshape(
            -1, TOKENS
        )

    def __len__(self) -> int:
        return len(self._matrix)

    def __getitem__(self, number: int) -> Any:
        return {"tokens": np.array(self._matrix[number])}


class _Gathered:
    """Whole batches, each one gather; workers divide them among themselves."""

    def __init__(self, data: Data, batching: Batching) -> None:
        self._data, self._size = data, batching.size
        self._order = _order(data, batching)
        self._matrix: Any = None

    def __len__(self) -> int:
        return self._data.count // self._size

    def __getitem__(self, number: int) -> Any:
        import torch

        if self._matrix is None:
            self._matrix = _matrix(self._data)
        begin = number * self._size
        return {"tokens": torch.from_numpy(self._matrix[self._order[begin : begin + self._size]])}


class _InMemory:
    """JPEG files held in memory."""

    def __init__(self, data: Data) -> None:
        get = Limit().getter(data, "copy")
        self._files = [get(number) for number in range(data.count)]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> Any:
        return self._files[number]


class _AugmentedInMemory(_InMemory):
    """The same, decoded and cut."""

    def __init__(self, data: Data) -> None:
        super().__init__(data)
        self._rng = np.random.default_rng()

    def __getitem__(self, number: int) -> Any:
        from benchmarks.suite.augment import cut_sample
        from benchmarks.suite.workloads import decoder

        file = super().__getitem__(number)
        _, decode = decoder()
        return cut_sample({"image": decode(file["image"]), "label": file["label"]}, self._rng)


def _order(data: Data, batching: Batching) -> Any:
    if not batching.shuffled:
        return np.arange(data.count)
    return np.random.default_rng(1).permutation(data.count)


def _mapped(data: Data) -> tuple[mmap.mmap, list[int]]:
    with open(os.path.join(data.folder, "values"), "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return mapped, np.load(os.path.join(data.folder, "ends.npy")).tolist()


def _matrix(data: Data) -> Any:
    mapped, _ = _mapped(data)
    return np.frombuffer(mapped, np.int32).reshape(-1, TOKENS)


def _tokens_copied(mapped: Any, ends: list[int]) -> Callable[[int], Any]:
    matrix = np.frombuffer(mapped, np.int32).reshape(-1, TOKENS)
    return lambda number: {"tokens": matrix[number].copy()}


def _tokens_viewed(mapped: Any, ends: list[int]) -> Callable[[int], Any]:
    matrix = np.frombuffer(mapped, np.int32).reshape(-1, TOKENS)
    return lambda number: {"tokens": matrix[number]}


def _text(mapped: Any, ends: list[int]) -> Callable[[int], Any]:
    loads = json.loads

    def get(number: int) -> Any:
        first, middle, end = ends[2 * number : 2 * number + 3]
        text = str(mapped[first:middle], "utf-8")
        return {"text": text, "meta": loads(str(mapped[middle:end], "utf-8"))}

    return get


def _images(mapped: Any, ends: list[int]) -> Callable[[int], Any]:
    def get(number: int) -> Any:
        first, middle, end = ends[2 * number : 2 * number + 3]
        return {
            "image": mapped[first:middle],
            "label": int.from_bytes(mapped[middle:end], "little"),
        }

    return get


def _small(mapped: Any, ends: list[int]) -> Callable[[int], Any]:
    table = np.frombuffer(mapped, _SMALL)
    a, b, c = table["a"], table["b"], table["c"]
    return lambda number: {"a": a[number], "b": b[number], "c": c[number]}


_PARTS: dict[str, Callable[[Any], tuple[bytes, ...]]] = {
    "tokens": lambda sample: (sample["tokens"].tobytes(),),
    "text": lambda sample: (sample["text"].encode(), json.dumps(sample["meta"]).encode()),
    "images": lambda sample: (sample["image"], sample["label"].to_bytes(4, "little")),
    "small": lambda sample: (np.array([tuple(sample.values())], _SMALL).tobytes(),),
}
_GETTERS: dict[tuple[str, str], Callable[[Any, list[int]], Callable[[int], Any]]] = {
    ("tokens", "copy"): _tokens_copied,
    ("tokens", "view"): _tokens_viewed,
    ("text", "copy"): _text,
    ("images", "copy"): _images,
    ("small", "copy"): _small,
}

SYSTEM = Limit()
