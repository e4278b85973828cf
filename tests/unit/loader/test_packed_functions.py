"""Packs with code of the caller: what functions, filters and classes see, in every world."""

import io
import itertools
import wave

import numpy as np
import pyarrow.parquet
import pytest
import torch

from mds import MDSWriter, Packing, Schedule, Stream, StreamingDataLoader, StreamingDataset
from mds.encodings._arrays import length_function
from mds.errors import ConfigError, EncodingError, FunctionError
from mds.transforms import pad
from mds.transforms._collate import ColumnFunction
from tests.unit.loader import packed_functions_helpers
from tests.unit.loader.packed_functions_helpers import (
    CAPACITY,
    COUNT,
    documents,
    make,
    noise,
    run,
    tokens_of,
)

# Fixtures of both halves of these tests.
corpus = packed_functions_helpers.corpus

# torch warns of more workers than this machine has cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def test_pieces_of_a_document_are_parts_of_what_map_makes_of_the_whole(corpus):
    """They draw the same numbers, whichever packs and ranks they are in; first labels go."""
    pieces = {}
    for rank in range(4):
        for batch in StreamingDataLoader(make(corpus, (4, rank)).map(noise)):
            ends = batch["cu_seqlens"].tolist()
            for text, (a, b) in zip(batch["text"], itertools.pairwise(ends), strict=False):
                assert batch["labels"][a] == -100
                labels, tokens = batch["labels"][a + 1 : b], batch["tokens"][a + 1 : b]
                assert ((labels == tokens) | (labels == -100)).all()
                found = pieces.setdefault(text, [])
                found.append((batch["tokens"][a:b].tolist(), batch["weight"][a:b].tolist()))
    assert len(pieces) == COUNT
    split = [found for found in pieces.values() if len(found) > 1]
    assert len(split) == 10
    for found in split:
        weights = [weight for _, weights in found for weight in weights]
        assert len(set(weights)) == len(weights) == 250
    for text, found in pieces.items():
        whole = tokens_of(int(text.split()[1])).tolist()
        assert sorted(t for tokens, _ in found for t in tokens) == sorted(whole)


def test_samples_that_come_twice_draw_twice(corpus):
    """Their places in the order differ, so their random numbers do."""
    dataset = make(corpus, epoch_size=3 * COUNT).map(noise)
    seen = [d for b in StreamingDataLoader(dataset) for d in documents(b, ("tokens", "weight"))]
    long = [d for d in seen if len(d[0]) > 5]
    assert len({d[0] for d in long}) * 3 == len(long)
    assert len({d[1] for d in long}) == len(long)


def test_columns_of_a_map_come_as_they_are(corpus):
    """Vectors follow the tokens but those of a stored length; the rest is a value a document."""
    batch = next(iter(StreamingDataLoader(make(corpus).map(noise))))
    count = len(batch["cu_seqlens"]) - 1
    assert batch["tokens"].dtype == batch["labels"].dtype == torch.int64
    assert batch["weight"].dtype == torch.float64
    assert batch["place"].shape == (count, 3)
    assert len(batch["text"]) == count
    numbers = [int(text.split()[1]) for text in batch["text"]]
    assert batch["place"][:, 0].tolist() == numbers
    dense = next(iter(StreamingDataLoader(make(corpus, layout="dense").map(noise))))
    assert dense["weight"].shape == dense["labels"].shape == (24, CAPACITY)


def test_a_map_that_changes_a_length_is_named_with_both_numbers(corpus):
    """And so is a column beside the tokens, other columns, and what is no dict."""

    def shorter(sample):
        return {"tokens": sample["tokens"][: 3 if sample["number"] == 9 else None]}

    with pytest.raises(
        FunctionError, match=r"sample 9 returned by map\(shorter\) has 3 values .* 12,"
    ):
        list(StreamingDataLoader(make(corpus).map(shorter)))

    def beside(sample):
        return {"tokens": sample["tokens"], "mask": np.ones(2)}

    with pytest.raises(FunctionError, match="has 2 values in column 'mask' but"):
        list(StreamingDataLoader(make(corpus).map(beside)))

    def other(sample):
        return {"tokens": sample["tokens"]} if sample["number"] % 2 else sample

    with pytest.raises(FunctionError, match="but another sample has"):
        list(StreamingDataLoader(make(corpus).map(other)))
    with pytest.raises(FunctionError, match="is a list, but packs need dicts"):
        list(StreamingDataLoader(make(corpus).map(list)))
    with pytest.raises(FunctionError, match=r"but not 'tokens', .*Keep this name"):
        list(StreamingDataLoader(make(corpus).map(lambda s: {"number": s["number"]})))
    with pytest.raises(FunctionError, match="has the columns none, but"):
        list(StreamingDataLoader(make(corpus).map(lambda _: {})))
    with pytest.raises(FunctionError, match=r"str 'x' in column 'tokens'"):
        list(StreamingDataLoader(make(corpus).map(lambda _: {"tokens": "x"})))
    with pytest.raises(ConfigError, match="cu_seqlens of another kind"):
        list(StreamingDataLoader(make(corpus).map(lambda s: {**s, "cu_seqlens": 1})))
    with pytest.raises(
        FunctionError, match=r"map\(.*failed on sample \d+ \(of a pack of epoch 0\)"
    ):
        list(StreamingDataLoader(make(corpus).map(lambda s: s["none"])))


@pytest.mark.parametrize("layout", ["varlen", "dense"])
def test_map_batches_gets_the_packed_batch(corpus, layout):
    """Its columns are arrays; what comes back is the batch, of tensors."""
    kinds = []

    def shift(columns):
        kinds.append({name: type(value).__name__ for name, value in columns.items()})
        columns["tokens"] += 1
        return {"inputs": columns["tokens"], "labels": columns["labels"], "n": columns["number"]}

    plain = StreamingDataLoader(make(corpus, layout=layout))
    shifted = StreamingDataLoader(make(corpus, layout=layout).map_batches(shift))
    for batch, other in zip(plain, shifted, strict=True):
        assert torch.equal(other["inputs"], batch["tokens"] + 1)
        assert torch.equal(other["labels"], batch["labels"])
        assert torch.equal(torch.as_tensor(other["n"]), torch.as_tensor(batch["number"]))
    added = {"cu_seqlens", "max_seqlen"} if layout == "varlen" else {"document_ids"}
    assert kinds[0].keys() == {"tokens", "labels", "position_ids", "number", "place"} | added
    assert kinds[0]["tokens"] == kinds[0]["place"] == "ndarray"
    assert plain.state_dict() == shifted.state_dict()


def test_a_batch_of_which_nothing_is_kept_is_a_token_of_padding(corpus):
    """With the columns of every batch."""
    dataset = make(corpus).map(noise).filter(lambda sample: sample["text"] == "document 3")
    batches = list(StreamingDataLoader(dataset))
    kept = [b for b in batches if b["mask"].any()]
    assert len(kept) == 1
    for batch in batches:
        assert batch.keys() == kept[0].keys()
        if not batch["mask"].any():
            assert batch["labels"].tolist() == [-100]
            assert batch["tokens"].tolist() == [0]
            assert batch["weight"].dtype == torch.float64
    assert dataset.stats()["empty_batches"] == len(batches) - 1


def broken(sample):
    """A sample that is broken, as far as a caller can tell."""
    if sample["number"] in {11, 12}:
        raise EncodingError("no text")
    return sample


def test_broken_samples_are_padding_with_on_error_skip(corpus):
    """And an error without it."""
    dataset = make(corpus, on_error="skip").map(broken)
    numbers = {int(n) for batch in StreamingDataLoader(dataset) for n in batch["number"]}
    assert numbers == {*range(COUNT)} - {11, 12}
    assert sorted(s.sample for s in dataset.skipped) == [11, 12]
    with pytest.raises(FunctionError, match="no text"):
        list(StreamingDataLoader(make(corpus).map(broken)))


class Larger(StreamingDataset):
    """A dataset whose samples have larger tokens."""

    def __getitem__(self, at):
        sample = super().__getitem__(at)
        return {"tokens": sample["tokens"].astype(np.int64) + 100_000}


class Shorter(StreamingDataset):
    """A dataset whose samples are shorter than was recorded."""

    def get_item(self, sample_id, retry=7):
        return {"tokens": super().get_item(sample_id, retry)["tokens"][1:]}


def test_a_class_with_samples_of_its_own_is_packed(corpus):
    """As long as was recorded; another length is refused as that of a function is."""
    rows, _ = run(lambda world: make(corpus, world), ("tokens",), 1, 0)
    larger, _ = run(lambda world: make(corpus, world, Larger), ("tokens",), 2, 2)
    assert larger == [
        sorted((tuple(token + 100_000 for token in d[0]),) for d in row) for row in rows
    ]
    with pytest.raises(FunctionError, match=r"returned by __getitem__ of Shorter has .* recorded"):
        list(StreamingDataLoader(make(corpus, kind=Shorter)))


class Iterates(StreamingDataset):
    """A dataset that iterates by itself."""

    def __iter__(self):
        yield from super().__iter__()


def test_a_class_that_iterates_by_itself_is_refused(corpus):
    """It gives samples, and packs would never be made."""
    with pytest.raises(ConfigError, match="Iterates has its own __iter__ over samples"):
        StreamingDataLoader(make(corpus, kind=Iterates))


def test_functions_of_the_library_make_columns_of_documents(corpus):
    """As collate functions and in map_batches: of columns with a value for each document."""

    def texts(sample):
        ids = np.arange(sample["number"] % 5 + 1)[None].T
        return {"tokens": sample["tokens"], "ids": ids}

    for loader in (
        StreamingDataLoader(make(corpus).map(texts), collate_fn=pad("ids")),
        StreamingDataLoader(make(corpus).map(texts).map_batches(pad("ids"))),
    ):
        batch = next(iter(loader))
        assert batch["ids"].shape == (len(batch["cu_seqlens"]) - 1, 5, 1)
        assert set(batch["ids_lengths"].tolist()) == {1, 2, 3, 4, 5}


def write_stream(folder, columns, rows):
    """A stream of a few samples."""
    with MDSWriter(out=folder, columns=columns, lengths="tokens") as writer:
        for row in rows:
            writer.write(row)
    return Stream(local=folder)


def packs_of(streams, **settings):
    """All tokens of the packs of streams, sorted, and the columns of the first batch."""
    dataset = StreamingDataset(streams=streams, batch_size=2, packing=Packing(32), **settings)
    batches = list(StreamingDataLoader(dataset))
    tokens = sorted(t for b in batches for t in b["tokens"].tolist() if t)
    assert {b["tokens"].dtype for b in batches} == {torch.int64}
    return tokens, batches[0].keys()


def test_streams_of_other_columns_and_widths_are_packed(tmp_path):
    """Only the columns that are chosen count, and whole numbers of any width are int64."""
    narrow = [{"tokens": np.arange(1, 9, dtype=np.uint16), "more": i} for i in range(6)]
    wide = [{"tokens": np.arange(70_001, 70_009, dtype=np.int32)} for _ in range(6)]
    streams = [
        write_stream(str(tmp_path / "a"), {"tokens": "ndarray:uint16", "more": "int"}, narrow),
        write_stream(str(tmp_path / "b"), {"tokens": "ndarray:int32"}, wide),
    ]
    tokens, names = packs_of(streams, columns=["tokens"])
    assert tokens == sorted([*range(1, 9), *range(70_001, 70_009)] * 6)
    assert "more" not in names
    with pytest.raises(ConfigError, match="Choose common columns with columns="):
        packs_of(streams)


@pytest.mark.parametrize("scheduled", [False, True])
def test_shards_and_parquet_are_packed_together(tmp_path, scheduled):
    """A stream of MDS and one of Parquet fill the same packs, with tokens of any width."""
    rows = [{"tokens": np.arange(1, 9, dtype=np.uint16)} for _ in range(64)]
    write_stream(str(tmp_path / "a"), {"tokens": "ndarray:uint16"}, rows)
    lists = pyarrow.array([list(range(70_001, 70_009))] * 64, pyarrow.list_(pyarrow.int32()))
    parquet = str(tmp_path / "b.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"tokens": lists}), parquet)
    streams = {"a": Stream(local=str(tmp_path / "a")), "b": Stream(remote=parquet)}
    settings = {"packing": Packing(32, column="tokens"), "shuffle_algo": "seekable"}
    if scheduled:
        settings["schedule"] = Schedule({0: {"a": 1, "b": 1}})
    dataset = StreamingDataset(streams=streams, batch_size=2, **settings)
    batches = list(StreamingDataLoader(dataset))
    tokens = torch.cat([batch["tokens"] for batch in batches])
    assert {batch["tokens"].dtype for batch in batches} == {torch.int64}
    assert set(tokens[tokens > 0].tolist()) == {*range(1, 9), *range(70_001, 70_009)}


def test_streams_whose_columns_do_not_fit_into_one_are_refused_at_the_start(tmp_path):
    """A loader of whole numbers and fractions is refused before it reads."""
    streams = [
        write_stream(
            str(tmp_path / "a"), {"tokens": "ndarray:uint16"}, [{"tokens": np.ones(3, np.uint16)}]
        ),
        write_stream(
            str(tmp_path / "b"), {"tokens": "ndarray:float32"}, [{"tokens": np.ones(3, np.float32)}]
        ),
    ]
    named = dict(zip(("web", "math"), streams, strict=True))
    for given, title in ((streams, "0"), (named, "'web'")):
        dataset = StreamingDataset(streams=given, batch_size=2, packing=Packing(32))
        with pytest.raises(ConfigError, match=f"'tokens' is 'ndarray:uint16' in stream {title} "):
            StreamingDataLoader(dataset)


@pytest.mark.parametrize("workers", [0, 2])
def test_arrays_of_two_axes_come_as_they_are_without_a_function(tmp_path, workers):
    """A column of several axes does not follow the tokens, whether or not map() is there."""
    columns = {"tokens": "ndarray:int32", "grid": "ndarray:float32"}
    rows = [
        {"tokens": np.arange(1, 5 + i, dtype=np.int32), "grid": np.full((1 + i, 3), i, np.float32)}
        for i in range(6)
    ]
    write_stream(str(tmp_path), columns, rows)
    plain = StreamingDataset(local=str(tmp_path), batch_size=2, packing=Packing(16))
    for dataset in (plain, plain.map(dict)):
        batches = list(StreamingDataLoader(dataset, num_workers=workers))
        grids = [grid for batch in batches for grid in batch["grid"]]
        assert sorted(tuple(grid.shape) for grid in grids) == [(1 + i, 3) for i in range(6)]


def test_columns_that_could_be_packed_are_named(tmp_path):
    """A dataset of texts names none, and says how tokens are made."""
    with MDSWriter(out=str(tmp_path), columns={"text": "str"}) as writer:
        writer.write({"text": "a"})
    with pytest.raises(ConfigError, match=r"mds-convert --tokenizer"):
        StreamingDataset(local=str(tmp_path), batch_size=2, packing=Packing(16))
    packing = Packing(16, column="text")
    dataset = StreamingDataset(local=str(tmp_path), batch_size=2, packing=packing)
    with pytest.raises(ConfigError, match=r"mds-convert --tokenizer"):
        list(StreamingDataLoader(dataset))


def test_the_length_of_sound_is_its_frames():
    """Sound is packed by its duration."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((2, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(4 * 123))
    assert length_function({"audio": "audio"}, "audio")(file.getvalue()) == 123
    assert length_function({"audio": "optional[audio]"}, "audio")(b"\0") == 0


class Lengths(ColumnFunction):
    """A function of an adapter that needs the lengths of documents only."""

    pack_columns = frozenset({"document_lengths"})
    is_of_adapter = True

    error = None

    def apply(self, columns, keys):
        if self.error is not None:
            raise self.error
        return columns


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_of_an_adapter_gets_the_columns_of_packs_that_it_needs(corpus, workers):
    """The lengths of documents are those that the numbers of the documents tell."""
    dataset = make(corpus, layout="dense", columns=["tokens"])
    loader = StreamingDataLoader(dataset, num_workers=workers, collate_fn=Lengths(()))
    plain = StreamingDataLoader(make(corpus, layout="dense", columns=["tokens"]))
    for batch, expected in zip(loader, plain, strict=True):
        assert batch.keys() == {"tokens", "labels", "document_lengths"}
        assert torch.equal(batch["tokens"], expected["tokens"])
        rows = zip(batch["document_lengths"].tolist(), expected["document_ids"], strict=True)
        for lengths, numbers in rows:
            assert [n for n in lengths if n] == torch.bincount(numbers[numbers >= 0]).tolist()


@pytest.mark.parametrize("kind", ["auto", "processes"])
def test_a_config_error_of_an_adapter_is_raised_unchanged(corpus, kind):
    """The user has not written the function, so an error names the setting only."""
    function, dataset = Lengths(()), make(corpus, layout="dense")
    function.error = ConfigError("a setting of the adapter")
    loader = StreamingDataLoader(dataset, num_workers=1, worker_type=kind, collate_fn=function)
    with pytest.raises(ConfigError, match="a setting of the adapter"):
        next(iter(loader))
