"""What a sample's arrays are made of: memory of whoever asked for the sample."""

import hashlib
import io

import numpy as np
import pytest
import torch
from PIL import Image

from mds import LocalDataset, MDSWriter, Samples, StreamingDataLoader, StreamingDataset
from mds._cache.uncached import memory_reader
from mds._index.table import read_index
from mds._readers import make_decoder, open_reader, open_sparse
from mds._readers.fields import ColumnSelection
from mds._readers.gather import gather
from mds._readers.iterate import iterate_samples
from mds.encodings import Encoding
from mds.encodings._text import BytesEncoding
from mds.errors import ConfigError
from tests.unit.encodings.registered import registered


class ViewEncoding(Encoding):
    """An encoding of a user's that decodes to a view of what it is given."""

    def encode(self, value):
        """The array's bytes."""
        return value.tobytes()

    def decode(self, data):
        """A view."""
        return np.frombuffer(data, np.int16)


class ChildEncoding(BytesEncoding):
    """The same as a child of one that copies."""

    def __init__(self, name):
        Encoding.__init__(self, name)

    def encode(self, value):
        """The array's bytes."""
        return value.tobytes()

    def decode(self, data):
        """A view."""
        return {"inside": np.frombuffer(data, np.int16)}


@pytest.fixture(autouse=True)
def _registered():
    with registered({"test-view": ViewEncoding, "test-child": ChildEncoding}):
        yield


def picture(i):
    return Image.fromarray(np.full((4, 5, 3), i, np.uint8))


def file_of(i):
    file = io.BytesIO()
    picture(i).save(file, "PNG")
    return file.getvalue()


NUMBERS = np.arange(6, dtype=np.int32)
MAKERS = {
    "ndarray:int32:6": lambda i: NUMBERS + i,
    "ndarray:float32:2,3": lambda i: (NUMBERS + i).reshape(2, 3).astype(np.float32),
    "ndarray:int32": lambda i: np.arange(6 + i % 3, dtype=np.int32) + i,
    "ndarray": lambda i: NUMBERS.reshape(3, 2) + i,
    "tensor:bool:4": lambda i: np.arange(4) % 2 == i % 2,
    "tensor:int64:()": np.array,
    "tensor": lambda i: NUMBERS + i,
    "tensor:bfloat16:6": lambda i: torch.full((6,), float(i), dtype=torch.bfloat16),
    "list[ndarray:int32:6]": lambda i: [NUMBERS + i, NUMBERS - i],
    "optional[ndarray:int32]": lambda i: NUMBERS + i,
    "test-view": lambda i: np.arange(9, dtype=np.int16) + i,
    "list[test-child]": lambda i: [np.arange(9, dtype=np.int16) + i],
    "pil": picture,
    "png": file_of,
    "json": lambda i: {"a": [i]},
    "int32": np.int32,
    "bytes": lambda i: bytes([i % 256]) * 5,
}
FIXED = {"ndarray:int32:6", "ndarray:float32:2,3", "int32"}
SHAPES = {
    "fixed": {f"c{n}": name for n, name in enumerate(MAKERS) if name in FIXED},
    "mixed": {f"c{n}": name for n, name in enumerate(MAKERS)},
}
SAMPLES = 30


@pytest.fixture(params=[*SHAPES])
def folder(tmp_path, request):
    """A dataset of two shards or more with every kind of value that holds memory."""
    columns, out = SHAPES[request.param], tmp_path / "data"
    with MDSWriter(columns=columns, out=str(out), size_limit=12 << 10) as writer:
        for i in range(SAMPLES):
            writer.write({name: MAKERS[encoding](i) for name, encoding in columns.items()})
    return out


def state(folder):
    """A digest of every file of a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(path, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]


def memory(value):
    """Every array, tensor and picture in a value."""
    if isinstance(value, (np.ndarray, torch.Tensor, Image.Image)):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from memory(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from memory(each)


def spoil(value):
    """Change all memory of a value, in numpy or through torch; how many there were."""
    count = 0
    for count, one in enumerate(memory(value), 1):
        if isinstance(one, Image.Image):
            one.putpixel((0, 0), (1, 2, 3))
        elif isinstance(one, torch.Tensor):
            one.fill_(77)
        else:
            assert one.flags.writeable
            torch.as_tensor(one).zero_()
            one[...] = 1
            if one.ndim:
                torch.from_numpy(one).reshape(-1)[:2] = 0
    return count


def seen(value):
    """A value as text, all of its memory included."""
    if isinstance(value, dict):
        return {key: seen(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [seen(each) for each in value]
    if isinstance(value, Image.Image):
        return value.tobytes()
    if isinstance(value, torch.Tensor):
        return value.float().numpy().tobytes()
    return value.tobytes() if isinstance(value, np.ndarray) else value


def ways(folder, **options):
    """Every way from the bytes of the first shard to a sample: a name, and a function of a row."""
    info = read_index(str(folder / "index.json")).shard(0)
    choice = ColumnSelection(**options)
    reader = open_reader(str(folder), info, columns=choice)
    stored = {row: bytes(reader.sample_bytes(row)) for row in range(info.samples)}
    sparse = open_sparse(info, stored, "here", columns=choice)
    raw = (folder / info.raw.basename).read_bytes()
    whole = memory_reader(info, [raw], "here", choice)
    decode = make_decoder(info.schema, columns=choice)
    local = LocalDataset(str(folder), **options)
    dataset = StreamingDataset(local=str(folder), batch_size=4, **options)
    yield from {
        "a reader": reader.get,
        "a negative row": lambda row: reader[row - info.samples],
        "samples": lambda row: reader.samples([row])[0],
        "in order": lambda row: next(
            iterate_samples({0: reader}, np.array([0]), np.array([row]), print)[0]
        ),
        "some rows": sparse.get,
        "in memory": whole.get,
        "stored bytes": lambda row: decode(memoryview(stored[row])),
        "stored in a bytearray": lambda row: decode(memoryview(bytearray(stored[row]))),
        "LocalDataset": local.__getitem__,
        "LocalDataset, a slice": lambda row: local[row : row + 1][0],
        "StreamingDataset": dataset.__getitem__,
        "StreamingDataset, a list": lambda row: dataset[[row]][0],
        "iteration": lambda row: [*dataset][row],
        "Samples": lambda row: [*Samples(local=str(folder), batch_size=4, **options)][row],
    }.items()


def test_a_changed_sample_is_the_original_when_it_is_read_again(folder):
    """Changing the arrays and pictures of a sample changes no file and no other read."""
    before = state(folder)
    for name, get in ways(folder):
        first = get(1)
        original = seen(first)
        assert spoil(first), name
        assert seen(first) != original
        again = get(1)
        assert seen(again) == original, name
        assert spoil(again)
        assert seen(get(1)) == original, name
    assert state(folder) == before


def test_images_as_arrays_are_their_readers_own(folder):
    """Decoded pixels can be changed too."""
    if not {"jpeg", "png", "pil"} & {*LocalDataset(str(folder)).schema.values()}:
        with pytest.raises(ConfigError, match="no column of images is read"):
            LocalDataset(str(folder), images="array")
        return
    for name, get in ways(folder, images="array"):
        first = get(2)
        original = seen(first)
        assert spoil(first), name
        assert seen(get(2)) == original, name


@pytest.mark.parametrize("rows", [[3], [3, 4, 5], [5, 3, 3, 4]])
@pytest.mark.parametrize("kind", ["whole", "some rows", "both"])
def test_changed_columns_change_nothing_else(folder, rows, kind):
    """Columns of one row, of neighbours, of repeated rows, from one shard and from several."""
    index = read_index(str(folder / "index.json"))
    whole = {n: open_reader(str(folder), info) for n, info in enumerate(index)}
    readers = dict(whole)
    for n, info in enumerate(index):
        if kind == "some rows" or (kind == "both" and n == 0):
            stored = {row: bytes(whole[n].sample_bytes(row)) for row in range(info.samples)}
            readers[n] = open_sparse(info, stored, "here")
    last = [n for n, info in enumerate(index) if info.samples > 5][-1]
    before = state(folder)
    for shards in ([0] * len(rows), [n % 2 * last for n in range(len(rows))]):
        batches = [gather(readers, shards, rows), gather(readers, shards, rows, copy=True)]
        if len(set(shards)) == 1:
            batches.append(readers[shards[0]].rows(rows))
        for batch in batches:
            original = seen(batch)
            kept = {name: v[0] for name, v in batch.items() if isinstance(v, list)}
            assert spoil(batch)
            assert kept.keys() <= batch.keys()
            assert seen(gather(readers, shards, rows)) == original
    assert state(folder) == before


def spoiling(samples):
    """A collate function that changes its samples in place, as masking does."""
    before = [seen(sample["tokens"]) for sample in samples]
    for sample in samples:
        torch.as_tensor(sample["tokens"])[:2] = -100
        torch.from_numpy(sample["free"]).mul_(0)
    return before


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [spoiling, None])
def test_a_collate_function_may_change_samples_and_batches(tmp_path, workers, collate):
    """Every epoch brings the originals, whatever was done to samples or batches of the last one."""
    columns = {"tokens": "ndarray:int32:64", "free": "ndarray:int32"}
    out = tmp_path / "data"
    with MDSWriter(columns=columns, out=str(out), size_limit=4 << 10) as writer:
        for i in range(96):
            writer.write({"tokens": np.full(64, i, np.int32), "free": np.full(8, i, np.int32)})
    before = state(out)
    dataset = StreamingDataset(local=str(out), batch_size=8, shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=8, num_workers=workers, collate_fn=collate)
    for _ in range(2):
        found = []
        for batch in loader:
            if collate is None:
                found += [
                    np.full(64, row[0], np.int32).tobytes() for row in batch["tokens"].numpy()
                ]
                assert (batch["tokens"][:, :1] == batch["tokens"]).all()
                assert (batch["free"][:, 0] == batch["tokens"][:, 0]).all()
                batch["tokens"].fill_(-1)
                batch["free"].fill_(-1)
            else:
                found += batch
        assert sorted(found) == sorted(np.full(64, i, np.int32).tobytes() for i in range(96))
    assert state(out) == before


def test_views_are_handed_out_when_asked_for(folder):
    """copy=False: arrays are views that numpy does not let be changed, for code that promises."""
    views = 0
    for name, get in ways(folder, copy=False):
        if name.startswith("stored in"):
            continue
        for one in memory(get(1)):
            if isinstance(one, np.ndarray) and one.ndim:
                assert not one.flags.owndata, name
                assert not one.flags.writeable, name
                with pytest.raises(ValueError, match="read-only"):
                    one[...] = 0
                views += 1
    assert views > 10
