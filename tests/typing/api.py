"""The public API as a typed program uses it: checked by mypy and pyright, never run.

An ``assert_type`` holds what a user's editor shows. A name that loses its type fails the gate.
"""

import pathlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import assert_type

import mds
from mds import (
    CSVWriter,
    LocalDataset,
    MDSWriter,
    Packing,
    RunHistory,
    Samples,
    Schedule,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    World,
    merge_index,
)
from mds._words import PackLayout, PartitionAlgo, Remainder
from mds.encodings import Encoding, encoding_names, parse_encoding, register_encoding
from mds.errors import ConfigError, StoreError
from mds.events import Event, subscribe
from mds.formats import Problem
from mds.metrics import Tally, chrome_trace
from mds.plan import EpochPlan, OrderHash
from mds.report import WaitReport
from mds.shuffle import Shuffle, get_shuffle, register_shuffle
from mds.shuffle._py1s import Py1s
from mds.storage import RetryPolicy, Store, open_store, register_store
from mds.storage._memory import MemoryStore
from mds.storage._retry import Retrying
from mds.testing import EncodingContract, InputContract, ShuffleContract, StoreContract
from mds.transforms import RowGenerator, images, pad, ragged, stack
from mds.writers import dataframe_to_mds
from mds.writers.convert import (
    Column,
    Input,
    InputOptions,
    InputPart,
    convert,
    input_names,
    prepare,
    register_input,
)


def write(out: str) -> None:
    assert_type(mds.__version__, str)
    assert_type(mds.storage.open_store(out), Retrying)
    columns = {"id": "int", "tokens": "ndarray:int32"}
    with MDSWriter(
        out=out, columns=columns, compression="zstd", hashes=["xxh3_64"], size_limit="64mb"
    ) as writer:
        assert_type(writer, MDSWriter)
        assert_type(writer.write({"id": 1, "tokens": np.zeros(4, np.int32)}), None)
    with CSVWriter(
        out=(out, "s3://bucket/rows"), columns={"id": "int"}, newline="\n", retry=3
    ) as rows:
        assert_type(rows, CSVWriter)
    merge_index(out)
    merge_index([f"{out}/0/index.json"], out, storage_options={"anonymous": True})
    assert_type(MDSWriter(out, columns), MDSWriter)


class Doubled(StreamingDataset):
    def __getitem__(self, at: Any) -> Any:
        sample = super().__getitem__(at)
        return {"id": sample["id"] * 2}


def places(path: pathlib.Path) -> None:
    assert_type(StreamingDataset("data/train", local=path, batch_size=2), StreamingDataset)
    assert_type(Samples(path), Samples)
    assert_type(Doubled("s3://bucket/train"), Doubled)
    assert_type(Stream("s3://bucket/train", local=path, proportion=0.5), Stream)
    StreamingDataset([Stream(path), Stream("more")])
    StreamingDataset({"web": Stream("web"), "math": Stream("math")})
    LocalDataset(path)


def read(remote: str) -> None:
    dataset = StreamingDataset(
        streams=[Stream(remote=remote, proportion=0.5), Stream(local="more", proportion=0.5)],
        batch_size=32,
        shuffle=True,
        cache_limit="10gb",
    )
    assert_type(len(dataset), int)
    assert_type(dataset.num_samples, int)
    assert_type(iter(dataset), Iterator[Any])
    assert_type(dataset.explain(), str)
    assert_type(dataset.stats(), dict[str, float])
    assert_type(dataset.cache_usage, int)
    assert_type(dataset.state_dict(0, True), dict[str, Any])
    dataset.edits.set_weights({"web": 1.0}, at_step=7)
    dataset.edits.replace_samples([7, 8], reason="noise", at_step=7)
    dataset.edits.skip_steps(range(7, 9))
    assert_type(dataset.edits[-1], str)
    assert_type([each.reason for each in dataset.skipped], list[str])
    schedule = Schedule({0: {"web": 0.9, "math": 0.1}, 500: {"web": 1}}, between="linear")
    named = {"web": Stream(remote=remote), "math": Stream(local="more")}
    assert_type(StreamingDataset(streams=named, schedule=schedule), StreamingDataset)
    assert_type(Schedule.temperature({0: 1.0, 500: 3.0}), Schedule)
    part = dataset.select([1, 2, 3]).limit(2).filter(lambda sample: sample["id"] > 0)
    assert_type(part, StreamingDataset)
    mapped = Doubled(local="more", batch_size=2).map(lambda sample: sample["id"])
    assert_type(mapped.map_batches(lambda columns: columns), Doubled)
    mapped.map_batches(pad("tokens", add="mask")).map_batches(ragged("words", nested=True))
    StreamingDataLoader(dataset, collate_fn=images("image", size=224, flip=True))
    StreamingDataLoader(dataset, collate_fn=stack())
    images("image", size=224, crop="random", dtype="uint8")
    pad("tokens", side="left", add=None)
    images("image", size=224, crop="middle")  # type: ignore[arg-type]
    LocalDataset("more", images={"image": "array"})
    LocalDataset("more", images="pillow")  # type: ignore[arg-type]
    assert_type(RowGenerator(np.zeros(4, np.uint64)).integers(3), "np.typing.NDArray[np.int64]")
    assert_type(dataset.split([0.9, 0.1]), list[StreamingDataset])
    assert_type(dataset.split({"train": 0.9, "val": 0.1}), dict[str, StreamingDataset])
    assert_type(Doubled(local="more", batch_size=2).limit(1), Doubled)
    assert_type(len(LocalDataset(local="more")), int)
    assert_type(LocalDataset("more")[0], dict[str, Any])
    assert_type(dataset[0], dict[str, Any])
    assert_type(dataset[:3], list[dict[str, Any]])
    assert_type(dataset.partition_algo, PartitionAlgo)
    assert_type(dataset.remainder, Remainder)
    packed = StreamingDataset("data", batch_size=2, packing=8192)
    assert_type(packed.packing, Packing | None)
    assert_type(Packing(8192, layout="dense").layout, PackLayout)
    assert_type(dataset.class_names, dict[str, list[str]])
    assert_type(dataset.shards[0].samples, int)
    StreamingDataset(remote, shuffle_algo="one_of_mine", validate_hash="sha1", images="array")
    assert_type(iter(Samples(local="more", batch_size=1)), Iterator[Any])


def train(dataset: StreamingDataset, state: Mapping[str, Any]) -> None:
    loader = StreamingDataLoader(dataset, num_workers=2, worker_type="threads")
    loader.load_state_dict(state)
    for batch in loader:
        assert batch is not None
    assert_type(RunHistory(dataset.state_dict()).step(3)[0].sample, int)
    assert_type(RunHistory("run/step5.pt").diff("other.json").step, int | None)
    assert_type(loader.state_dict(), dict[str, Any])
    assert_type(next(iter(loader)), Any)  # what the collate function returns
    history = RunHistory(loader.state_dict())
    assert_type(history.steps_per_epoch, int)
    assert_type(history.position, tuple[int, int])
    assert_type(history.step(3)[0].tokens, tuple[int, int] | None)
    assert_type([visit.is_over for visit in history.sample(7)], list[bool])
    assert_type(history.diff(dataset.state_dict()).reasons, list[str])
    assert_type(history.mixture(until=100).names, tuple[str, ...])
    assert_type(next(iter(dataset)), Any)  # what the last function of map() returns
    assert_type(loader.steps_per_epoch, int)
    assert_type(loader.order_hash, OrderHash)
    assert_type(loader.report(), WaitReport)


def plan() -> None:
    world = World(num_nodes=2, ranks_per_node=4, workers_per_rank=2, worker=0)
    epoch = EpochPlan([{"shards": [400, 250]}], world, batch_size=8, shuffle=True, epoch=3)
    assert_type(epoch.steps, int)
    assert_type(epoch.order_hash(epoch.steps), OrderHash)
    assert_type(OrderHash().count, int)
    assert_type(get_shuffle("py1e", [10, 20], 1, 0, 0).dtype, np.dtype[np.int64])


def extend(url: str) -> None:
    register_store("box", MemoryStore)
    shuffle: type[Shuffle] = Py1s
    register_shuffle("mine", shuffle)
    with open_store(url, retry=RetryPolicy(attempts=3), timeout=10) as store:
        assert_type(store, Store)
        assert_type(store.get("index.json"), bytes)
        assert_type([info.key for info in store.list()], list[str])
    kind: type[Input] = Paragraphs
    register_input("paragraphs", kind)
    assert_type(input_names(), list[str])
    register_encoding("same", lambda name: parse_encoding("bytes"))
    assert_type(register_shuffle("mine")(Py1s), type[Py1s])
    assert_type(register_store("box", MemoryStore, replace=True)("box://x", {}, 1.0), Store)
    assert_type(parse_encoding("int"), Encoding)
    assert_type(encoding_names(), list[str])


class Paragraphs(Input):
    title = "paragraphs"

    @classmethod
    def open(cls, path: str, options: InputOptions) -> Input:
        return cls(path)

    def infer_columns(self) -> list[Column]:
        return [Column("text", "str")]

    def cut_parts(self, size: int) -> Iterator[InputPart]:
        yield InputPart(0, size, self.root)

    def read(self, part: InputPart) -> Iterator[tuple[int, dict[str, Any] | Problem]]:
        with open(part.address) as file:
            for number, text in enumerate(file.read().split("\n\n"), 1):
                yield number, {"text": text} if text else Problem("", "it is empty")

    def locate(self, part: InputPart, position: int) -> str:
        return f"{part.address}, paragraph {position}"

    def describe(self) -> str:
        return "paragraphs"

    def fingerprint(self) -> str:
        return self.root


class TestMine(StoreContract): ...


class TestSame(EncodingContract): ...


class TestMixed(ShuffleContract): ...


class TestParagraphs(InputContract):
    input = Paragraphs


def observe(event: Event) -> None:
    tally = Tally()
    tally(event)
    with subscribe(tally), chrome_trace("trace.json"):
        assert_type(tally.as_dict(), dict[str, float])


def change(source: str, out: str) -> None:
    plan = prepare(source, out, compression="zstd", tokenizer="bytes", block=8, drop_last=True)
    assert_type(plan.run().samples, int)
    assert_type(convert(source, out, num_workers=1).samples, int)
    rows = ({"id": number, "text": str(number)} for number in range(3))
    assert_type(mds.convert(rows, Path(out), columns=["id"], encodings={"id": "int32"}).out, str)
    mds.convert({"train": [{"id": 1}]}, out, engine="local", limit="10k", progress=print)
    dataframe_to_mds(None, mds_kwargs={"out": out})
    try:
        Stream(remote=source)
    except (ConfigError, StoreError) as error:
        assert_type(str(error), str)
