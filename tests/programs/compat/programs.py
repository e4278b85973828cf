"""Small programs in the ways of public code, whose results are digests: equal under 0.13 and here.

Run by either Python it prints a digest for each program, as JSON; programs.json has those of 0.13.
"""

import hashlib
import json
import os
import sys
import tempfile
import warnings

import numpy as np


def digest(value):
    """A digest of nested values; arrays and tensors by their bytes."""
    state = hashlib.sha256()

    def add(found):
        if isinstance(found, dict):
            for key in sorted(found):
                state.update(str(key).encode())
                add(found[key])
        elif isinstance(found, (list, tuple)):
            state.update(b"[")
            for one in found:
                add(one)
        elif hasattr(found, "numpy") or isinstance(found, np.ndarray):
            array = np.asarray(found)
            state.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        elif isinstance(found, np.generic):
            add(found.item())
        elif isinstance(found, bytes):
            state.update(found)
        else:
            state.update(repr(found).encode())

    add(value)
    return state.hexdigest()


def files_of(folder):
    """The names and contents of all files of a dataset."""
    found = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            if name.startswith("shard.") or name == "index.json":
                with open(path, "rb") as file:
                    data = file.read()
                key = os.path.relpath(path, folder)
                found[key] = json.loads(data) if name == "index.json" else data
    return found


def write_tokens(out, count=60, seed=0, **options):
    """Documents of tokens, as pretraining data are."""
    from streaming import MDSWriter

    random = np.random.default_rng(seed)
    columns = {"input_ids": "ndarray:uint16", "id": "str", "len": "int"}
    with MDSWriter(columns=columns, out=out, size_limit=2000, **options) as writer:
        for n in range(count):
            ids = random.integers(0, 50000, 8 + n % 5).astype(np.uint16)
            writer.write({"input_ids": ids, "id": f"doc-{n}", "len": len(ids)})


def prepare_in_parts(tmp):
    """Encoder pretraining: workers write parts, private functions merge them."""
    from streaming import StreamingDataset
    from streaming.base.util import _merge_index_from_root, merge_index

    root = os.path.join(tmp, "train")
    for part in range(3):
        write_tokens(os.path.join(root, f"{part:05}"), seed=part, hashes=["sha1", "xxh64"])
    _merge_index_from_root(root, keep_local=True)
    merged = files_of(root)["index.json"]
    os.unlink(os.path.join(root, "index.json"))
    urls = [os.path.join(root, f"{part:05}", "index.json") for part in range(3)]
    merge_index(urls, root, keep_local=True)
    dataset = StreamingDataset(local=tmp, split="train", batch_size=4, shuffle=True)
    return merged, files_of(root)["index.json"], list(dataset)


def caption_images(tmp):
    """Captioning: samples go into another dataset with a column more."""
    from streaming import MDSWriter, StreamingDataset
    from torch.utils.data import Subset

    columns = {"image": "bytes", "key": "str", "width": "int32"}
    with MDSWriter(columns=columns, out=tmp + "/images", compression="gz") as writer:
        for n in range(30):
            writer.write({"image": bytes([n]) * (n + 1), "key": str(n), "width": np.int32(n)})
    dataset = StreamingDataset(
        remote=tmp + "/images", local=tmp + "/cache", batch_size=1, shuffle_algo="py1s"
    )
    with open(tmp + "/images/index.json") as file:
        first = json.load(file)["shards"][0]
    columns = dict(zip(first["column_names"], first["column_encodings"], strict=True))
    with MDSWriter(columns={**columns, "caption": "str"}, out=tmp + "/captioned") as writer:
        for sample in Subset(dataset, range(20)):
            writer.write({**sample, "caption": f"{sample['width']} wide"})
    return files_of(tmp + "/captioned")


def merge_domains(tmp):
    """Pruning: domains are opened shard by shard, and their shards listed in one index."""
    from streaming.base.format import get_index_basename, reader_from_json

    seen, shards = [], []
    for domain in ("cc", "wiki"):
        write_tokens(os.path.join(tmp, domain), 25, seed=len(domain))
        with open(os.path.join(tmp, domain, get_index_basename())) as file:
            entries = json.load(file)["shards"]
        for entry in entries:
            reader = reader_from_json(os.path.join(tmp, domain), None, entry)
            reader.validate(False)
            seen.append((len(reader), reader.get_raw_size(), reader.column_names, reader[0]))
            seen += [sample["input_ids"] for sample in reader]
            entry["raw_data"]["basename"] = os.path.join(domain, entry["raw_data"]["basename"])
            shards.append(entry)
    with open(os.path.join(tmp, "index.json"), "w") as file:
        json.dump({"version": 2, "shards": shards}, file)
    from streaming import LocalDataset, StreamingDataset

    dataset = StreamingDataset(local=tmp, batch_size=5, shuffle=True, shuffle_seed=3)
    local = LocalDataset(tmp)
    facts = [(shard.samples, shard.raw_data.basename) for shard in dataset.shards]
    return seen, facts, list(dataset), local[7], len(local.shards)


def scale_latents(tmp):
    """Images: the encoding `uint8` is replaced by one that scales between least and greatest."""
    from streaming import MDSWriter, StreamingDataset
    from streaming.base.format.mds.encodings import Encoding, _encodings

    class Scaled(Encoding):
        def encode(self, obj):
            low, high = obj.min(), obj.max()
            levels = np.rint((obj - low) / (high - low) * 255).astype(np.uint8)
            return np.array([low, high], np.float32).tobytes() + levels.tobytes()

        def decode(self, data):
            low, high = np.frombuffer(data[:8], np.float32)
            return np.frombuffer(data[8:], np.uint8) / np.float32(255) * (high - low) + low

    before = _encodings["uint8"]
    _encodings["uint8"] = Scaled
    try:
        random = np.random.default_rng(1)
        with MDSWriter(columns={"x": "uint8"}, out=tmp, size_limit=3000) as writer:
            for _ in range(40):
                writer.write({"x": random.normal(size=64).astype(np.float32)})
        found = list(StreamingDataset(local=tmp, batch_size=4, shuffle=True))
    finally:
        _encodings["uint8"] = before
    return files_of(tmp), found


def slice_documents(tmp):
    """Long contexts: a subclass cuts samples, mixed by proportion, with a resume."""
    from streaming import Stream, StreamingDataLoader, StreamingDataset

    class Sliced(StreamingDataset):
        def __init__(self, *, length, **options):
            super().__init__(**options)
            self.length_of_slice = length

        def __getitem__(self, at):
            sample = super().__getitem__(at)
            return {
                "ids": sample["input_ids"][: self.length_of_slice].astype(np.int64),
                "id": sample["id"],
            }

    for domain in ("books", "code"):
        write_tokens(os.path.join(tmp, domain), 40, seed=len(domain))

    def make():
        streams = [
            Stream(local=os.path.join(tmp, "books"), proportion=0.7),
            Stream(local=os.path.join(tmp, "code"), proportion=0.3),
        ]
        return Sliced(
            length=6,
            streams=streams,
            batch_size=4,
            shuffle=True,
            epoch_size=60,
            num_canonical_nodes=2,
        )

    loader = StreamingDataLoader(make(), batch_size=4)
    iterator = iter(loader)
    first = [next(iterator) for _ in range(5)]
    keys = ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed")
    state = {key: loader.state_dict()[key] for key in keys}
    again = StreamingDataLoader(make(), batch_size=4)
    again.load_state_dict(loader.state_dict())
    return first, state, list(again)


def reorder_work(tmp):
    """A curriculum: a subclass sorts the ids that `_get_work` gives it."""
    from streaming import StreamingDataset

    class Sorted(StreamingDataset):
        def _get_work(self, epoch, sample_in_epoch):
            ids = super()._get_work(epoch, sample_in_epoch)
            return np.sort(ids)

    write_tokens(tmp, 33)
    dataset = Sorted(local=tmp, batch_size=4, shuffle=True)
    return [list(dataset), list(dataset)]


def label_by_number(tmp):
    """Reinforcement learning: a sample carries the number that it was asked by, with `.item()`."""
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    class Numbered(StreamingDataset):
        def __getitem__(self, idx):
            sample = super().__getitem__(idx)
            return {"prompt_id": idx.item(), "kind": type(idx).__name__, "id": sample["id"]}

    write_tokens(tmp, 20)
    dataset = Numbered(local=tmp, batch_size=5, shuffle=True)
    return list(dataset), list(DataLoader(dataset, batch_size=5))


def decrypt_shards(tmp):
    """A stream of one's own decrypts what it has downloaded."""
    from streaming import Stream, StreamingDataset

    write_tokens(tmp + "/remote", 30, compression="zstd:3")
    for name in os.listdir(tmp + "/remote"):
        if name.endswith(".zstd"):
            path = os.path.join(tmp, "remote", name)
            with open(path, "rb") as file:
                data = bytes(byte ^ 0x55 for byte in file.read())
            with open(path, "wb") as file:
                file.write(data)

    class Decrypting(Stream):
        def _decompress_shard_part(self, zip_info, zip_filename, raw_filename, compression):
            with open(zip_filename, "rb") as file:
                data = bytes(byte ^ 0x55 for byte in file.read())
            with open(zip_filename, "wb") as file:
                file.write(data)
            super()._decompress_shard_part(zip_info, zip_filename, raw_filename, compression)

    stream = Decrypting(remote=tmp + "/remote", local=tmp + "/local")
    return list(StreamingDataset(streams=[stream], batch_size=3, shuffle=True))


def count_in_its_own_way(tmp):
    """A loader of one's own counts the samples of a batch by its masks."""
    from streaming import StreamingDataLoader, StreamingDataset

    class Counting(StreamingDataLoader):
        def _get_batch_size(self, batch):
            return 2 * super()._get_batch_size(batch["len"])

    write_tokens(tmp, 24)

    def collate(samples):
        import torch

        return {"len": torch.tensor([sample["len"] for sample in samples])}

    loader = Counting(StreamingDataset(local=tmp, batch_size=4), batch_size=4, collate_fn=collate)
    iterator = iter(loader)
    batches = [next(iterator) for _ in range(3)]
    return batches, loader.num_samples_yielded, loader.state_dict()["sample_in_epoch"]


PROGRAMS = (
    prepare_in_parts,
    caption_images,
    merge_domains,
    scale_latents,
    slice_documents,
    reorder_work,
    label_by_number,
    decrypt_shards,
    count_in_its_own_way,
)


def main():
    """Print the digests."""
    warnings.simplefilter("ignore")
    found = {}
    for program in PROGRAMS:
        with tempfile.TemporaryDirectory() as tmp:
            found[program.__name__] = digest(program(tmp))
    json.dump(found, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
