"""Programs that users of other libraries guessed, before they read any docs, with what happens.

They were written by people who had seen neither the code nor the docs. A program *works* as typed;
or its error *told* the fix, which is quoted, and the program with the fix runs; or it is *refused*
for a reason that is quoted. Programs that begin with ``$ `` are for the shell. `test_guesses.py`
runs them, and says what files and names they have.
"""

# ruff: noqa: E501 - the lines of guesses are as long as they were typed

from typing import NamedTuple


class Guess(NamedTuple):
    """A program, and what happens when it runs."""

    task: str
    code: str
    outcome: str  # "works", "told" or "refused"
    words: str = ""  # of the error: the fix, or the reason
    fixed: str = ""  # the program with the fix


GUESSES: list[Guess] = []


def works(task: str, code: str) -> None:
    """Add a program that works as typed."""
    GUESSES.append(Guess(task, code, "works"))


def told(task: str, code: str, words: str, *fixes: tuple[str, str]) -> None:
    """Add a program whose error tells the fix.

    ``fixes`` are pairs of a text of the program and what takes its place. A pair whose first text is
    empty has the whole program.
    """
    fixed = code
    for old, new in fixes:
        assert old in code, (task, old)
        fixed = fixed.replace(old, new) if old else new
    GUESSES.append(Guess(task, code, "told", words, fixed))


def refused(task: str, code: str, words: str) -> None:
    """Add a program that is refused without a fix."""
    GUESSES.append(Guess(task, code, "refused", words))


# ---------------------------------------- train from a folder

works(
    "train from a folder",
    """\
from torch.utils.data import DataLoader
from mds import StreamingDataset
ds = StreamingDataset(local="data/train", batch_size=8)
n = 0
for batch in DataLoader(ds, batch_size=8):
    model(batch)
    n += len(batch["id"])
assert n == 120
""",
)
works(
    "train from a folder",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset("data/train", shuffle=True)
loader = StreamingDataLoader(ds, batch_size=8)
for batch in loader:
    model(batch)
assert len(loader) == 15
""",
)
works(
    "train from a folder",
    """\
from mds import StreamingDataset
train = StreamingDataset(local="data", split="train", shuffle=True, batch_size=10)
val = StreamingDataset(local="data", split="val", shuffle=False, batch_size=10)
assert len(train) == 120 and len(val) == 30
""",
)
told(
    "train from a folder",
    """\
from mds import load_dataset
ds = load_dataset("data", split="train")
for sample in ds:
    model(sample)
assert len(ds) == 120
""",
    "Write mds.StreamingDataset('data/train')",
    ("from mds import load_dataset\n", ""),
    ('load_dataset("data", split="train")', "mds.StreamingDataset('data/train')"),
)
works(
    "train from a folder",
    """\
from torch.utils.data import DataLoader
from mds import LocalDataset
ds = LocalDataset("data/train")
loader = DataLoader(ds, batch_size=16, shuffle=True, num_workers=2)
seen = []
for epoch in range(2):
    seen += [int(i) for batch in loader for i in batch["id"]]
assert len(seen) == 240 and len(set(seen)) == 120
""",
)
works(
    "train from a folder",
    """\
from pathlib import Path
from mds import StreamingDataset
ds = StreamingDataset(local=Path("data") / "train", batch_size=4)
assert len(list(ds)) == 120
""",
)
works(
    "train from a folder",
    """\
from mds import StreamingDataset, Stream
ds = StreamingDataset(streams=[Stream(local="data/train")], batch_size=8, shuffle=True)
assert len({s["id"] for s in ds}) == 120
""",
)
told(
    "train from a folder",
    """\
ds = mds.open("data/train")
rows = [row for row in ds]
assert len(rows) == 120 and set(rows[0]) == {"id", "text", "label"}
""",
    "Write mds.StreamingDataset('data/train')",
    ('mds.open("data/train")', "mds.StreamingDataset('data/train')"),
)
told(
    "train from a folder",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train").shuffle(100).batch(8).prefetch(2)
n = 0
for batch in ds:
    model(batch)
    n += 1
assert n == 15
""",
    "Write StreamingDataset(..., shuffle=True)",
    ("import StreamingDataset", "import StreamingDataset, StreamingDataLoader"),
    (
        'StreamingDataset("data/train").shuffle(100).batch(8).prefetch(2)',
        'StreamingDataLoader(StreamingDataset("data/train", shuffle=True), batch_size=8)',
    ),
)
works(
    "train from a folder",
    """\
from mds import StreamingDataset
ds = StreamingDataset(remote="data/train", batch_size=8)
assert len(ds) == 120
assert sum(1 for _ in ds) == 120
""",
)
works(
    "train from a folder",
    """\
import os
from mds import StreamingDataset
url = "file://" + os.path.abspath("data/train")
ds = StreamingDataset(remote=url, local=out, batch_size=8)
assert len(list(ds)) == 120
""",
)
works(
    "train from a folder",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="data/train", shuffle=True, batch_size=8)
dl = StreamingDataLoader(ds, batch_size=8, num_workers=2, pin_memory=False, drop_last=False)
ids = torch.cat([batch["id"] for batch in dl])
assert ids.unique().numel() == 120 and ids.numel() == 120
""",
)
told(
    "train from a folder",
    """\
from mds import StreamingDataset
ds = StreamingDataset("photos", format="imagefolder")
sample = next(iter(ds))
assert len(ds) == 24
print(sample["image"].size, sample["label"])
""",
    "write format='images'",
    ('format="imagefolder"', "format='images'"),
)
told(
    "train from a folder",
    """\
from torch.utils.data import DataLoader
from mds import StreamingDataset
def transform(s):
    return torch.from_numpy(np.array(s["image"].convert("RGB").resize((32, 32)))).permute(2, 0, 1), s["label"]
ds = StreamingDataset(local="pictures", batch_size=4, shuffle=True, transform=transform)
images, labels = next(iter(DataLoader(ds, batch_size=4)))
assert images.shape == (4, 3, 32, 32) and labels.shape == (4,)
""",
    "Write StreamingDataset(...).map(transform)",
    (", transform=transform)", ").map(transform)"),
)
works(
    "train from a folder",
    """\
class Texts(mds.StreamingDataset):
    def __getitem__(self, idx):
        obj = super().__getitem__(idx)
        return obj["text"].upper(), obj["label"]
ds = Texts(local="data/train", batch_size=8)
text, label = next(iter(ds))
assert text == text.upper() and len(list(ds)) == 120
""",
)
works(
    "train from a folder",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset("docs.jsonl", format="jsonl", batch_size=10)
loader = StreamingDataLoader(ds, batch_size=10)
n = sum(len(batch["text"]) for batch in loader)
assert n == 50
""",
)

# ---------------------------------------- shuffle

works(
    "shuffle",
    """\
from mds import StreamingDataset
plain = [s["id"] for s in StreamingDataset(local="data/train", batch_size=8)]
mixed = [s["id"] for s in StreamingDataset(local="data/train", batch_size=8, shuffle=True, shuffle_seed=17)]
assert plain != mixed and sorted(plain) == sorted(mixed)
""",
)
works(
    "shuffle",
    """\
from mds import StreamingDataset
kw = dict(local="data/train", batch_size=8, shuffle=True, shuffle_seed=9176)
x = [s["id"] for s in StreamingDataset(**kw)]
y = [s["id"] for s in StreamingDataset(**kw)]
assert x == y
""",
)
works(
    "shuffle",
    """\
from mds import StreamingDataset
ds = StreamingDataset(local="data/train", shuffle=True, batch_size=8)
first = [s["id"] for s in ds]
second = [s["id"] for s in ds]
assert first != second and sorted(first) == sorted(second)
""",
)
works(
    "shuffle",
    """\
from mds import StreamingDataset
ds = StreamingDataset(local="data/train", shuffle=True, shuffle_algo="py1e", shuffle_block_size=2000, shuffle_seed=1, batch_size=8)
ids = [s["id"] for s in ds]
assert len(set(ids)) == 120 and ids != sorted(ids)
""",
)
works(
    "shuffle",
    """\
from mds import StreamingDataset
ds = StreamingDataset(local="data/train", shuffle=True, shuffle_algo="py1br", num_canonical_nodes=1, batch_size=8)
assert len({s["id"] for s in ds}) == 120
""",
)
told(
    "shuffle",
    """\
from mds import StreamingDataset
ds = StreamingDataset(local="data/train").shuffle(seed=42)
ids = [s["id"] for s in ds]
assert len(ids) == 120 and ids != sorted(ids)
""",
    "Write StreamingDataset(..., shuffle=True, shuffle_seed=42)",
    (
        'StreamingDataset(local="data/train").shuffle(seed=42)',
        'StreamingDataset(local="data/train", shuffle=True, shuffle_seed=42)',
    ),
)
told(
    "shuffle",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train")
ds = ds.shuffle(buffer_size=64, seed=0)
ids = [s["id"] for s in ds]
assert len(set(ids)) == 120 and ids != sorted(ids)
""",
    "Write StreamingDataset(..., shuffle=True, shuffle_seed=0)",
    (
        'StreamingDataset("data/train")',
        'StreamingDataset("data/train", shuffle=True, shuffle_seed=0)',
    ),
    ("ds = ds.shuffle(buffer_size=64, seed=0)\n", ""),
)
told(
    "shuffle",
    """\
ds = mds.StreamingDataset("data/train").shuffle(1000)
ids = [s["id"] for s in ds]
assert sorted(ids) == sorted(s["id"] for s in mds.StreamingDataset("data/train")) and ids != sorted(ids)
""",
    "Write StreamingDataset(..., shuffle=True)",
    (
        'mds.StreamingDataset("data/train").shuffle(1000)',
        'mds.StreamingDataset("data/train", shuffle=True)',
    ),
)
told(
    "shuffle",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train", shuffle=True, seed=42)
ids = [s["id"] for s in ds]
assert len(set(ids)) == 120
assert ids == [s["id"] for s in StreamingDataset("data/train", shuffle=True, seed=42)]
""",
    "Write shuffle_seed=42",
    ("seed=42", "shuffle_seed=42"),
)
told(
    "shuffle",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset("data/train")
loader = StreamingDataLoader(ds, batch_size=8, shuffle=True)
ids = [i for b in loader for i in b["id"].tolist()]
assert len(ids) == 120 and ids != sorted(ids)
""",
    "StreamingDataset(..., shuffle=True, shuffle_seed=...) shuffles it",
    ('StreamingDataset("data/train")', 'StreamingDataset("data/train", shuffle=True)'),
    ("batch_size=8, shuffle=True", "batch_size=8"),
)
works(
    "shuffle",
    """\
from torch.utils.data import DataLoader
from mds import LocalDataset
ds = LocalDataset(local="data/train")
g = torch.Generator().manual_seed(0)
ids = torch.cat([b["id"] for b in DataLoader(ds, batch_size=8, shuffle=True, generator=g)])
assert ids.unique().numel() == 120
assert ids.tolist() != sorted(ids.tolist())
""",
)
told(
    "shuffle",
    """\
from mds import StreamingDataset
ds = StreamingDataset(local="data/train", shuffle=True, shuffle_seed=3, batch_size=8)
ds.set_epoch(0)
e0 = [s["id"] for s in ds]
ds.set_epoch(5)
e5 = [s["id"] for s in ds]
assert e0 != e5 and sorted(e0) == sorted(e5)
""",
    "dataset.next_epoch = n sets its number",
    ("ds.set_epoch(0)", "ds.next_epoch = 0"),
    ("ds.set_epoch(5)", "ds.next_epoch = 5"),
)
told(
    "shuffle",
    """\
ds = mds.StreamingDataset(local="data/train").shuffle(120, seed=1, reshuffle_each_iteration=False)
one = [s["id"] for s in ds]
two = [s["id"] for s in ds]
assert one == two and one != sorted(one)
""",
    "Write StreamingDataset(..., shuffle=True, shuffle_seed=1)",
    (
        'StreamingDataset(local="data/train").shuffle(120, seed=1, reshuffle_each_iteration=False)',
        'StreamingDataset(local="data/train", shuffle=True, shuffle_seed=1)',
    ),
    ("two = [", "ds.next_epoch = 0\ntwo = ["),
)
told(
    "shuffle",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train").sample(fraction=1.0, shuffle=True, seed=7)
ids = [r["id"] for r in ds]
assert len(set(ids)) == 120 and ids != sorted(ids)
""",
    "Write StreamingDataset(..., shuffle=True, epoch_size=n): each epoch takes n samples at random.",
    (
        'StreamingDataset("data/train").sample(fraction=1.0, shuffle=True, seed=7)',
        'StreamingDataset("data/train", shuffle=True).limit(120)',
    ),
)
told(
    "shuffle",
    """\
$ mds-convert docs.jsonl out --shuffle --seed 1
python -c 'import mds; assert len(mds.StreamingDataset(local="out")) == 50'
""",
    "shuffled when they are read: StreamingDataset(..., shuffle=True, shuffle_seed=1)",
    ("mds-convert docs.jsonl out --shuffle --seed 1", "mds-convert docs.jsonl out"),
    (
        'mds.StreamingDataset(local="out")',
        'mds.StreamingDataset(local="out", shuffle=True, shuffle_seed=1)',
    ),
)
works(
    "shuffle",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="data/train", shuffle=False, batch_size=8)
ids = [i for b in StreamingDataLoader(ds, batch_size=8, num_workers=2) for i in b["id"].tolist()]
assert ids == [ds[i]["id"] for i in range(len(ds))]
""",
)

# ---------------------------------------- S3 with credentials

works(
    "S3 with credentials",
    """\
import os
from mds import StreamingDataset
os.environ["S3_ENDPOINT_URL"] = ENDPOINT
os.environ["AWS_ACCESS_KEY_ID"] = KEY
os.environ["AWS_SECRET_ACCESS_KEY"] = SECRET
ds = StreamingDataset(remote="s3://bucket/train", local=out, batch_size=8)
assert len(list(ds)) == len(ds) > 0
""",
)
works(
    "S3 with credentials",
    """\
import os
os.environ.update(AWS_ENDPOINT_URL=ENDPOINT, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET)
ds = mds.StreamingDataset(remote="s3://bucket/train", local=out, shuffle=True, batch_size=8)
assert "text" in next(iter(ds))
""",
)
works(
    "S3 with credentials",
    """\
import os
from mds import StreamingDataset
os.environ.update(AWS_ENDPOINT_URL_S3=ENDPOINT, AWS_DEFAULT_REGION="us-east-1")
os.environ.update(AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET)
ds = StreamingDataset("s3://bucket/train")
assert len(list(ds)) == len(ds) > 0
""",
)
works(
    "S3 with credentials",
    """\
from mds import StreamingDataset
opts = {"key": KEY, "secret": SECRET, "client_kwargs": {"endpoint_url": ENDPOINT}}
ds = StreamingDataset(remote="s3://bucket/train", local=out, storage_options=opts, batch_size=8)
assert len(list(ds)) == len(ds) > 0
""",
)
works(
    "S3 with credentials",
    """\
from mds import StreamingDataset
ds = StreamingDataset("s3://bucket/train", storage_options=dict(key=KEY, secret=SECRET, endpoint_url=ENDPOINT))
sample = next(iter(ds))
assert {"id", "text", "label"} <= set(sample)
""",
)
told(
    "S3 with credentials",
    """\
from mds import StreamingDataset
storage_options = {"endpoint_url": ENDPOINT, "aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
ds = StreamingDataset("s3://bucket/train", cache_dir=out, storage_options=storage_options)
assert len(list(ds)) == len(ds) > 0
""",
    "Write local=",
    ("cache_dir=out", "local=out"),
)
works(
    "S3 with credentials",
    """\
from mds import StreamingDataset
so = {"aws_endpoint_url": ENDPOINT, "aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "aws_region": "us-east-1", "aws_allow_http": "true"}
ds = StreamingDataset(remote="s3://bucket/train", local=out, storage_options=so)
assert len(list(ds)) > 0
""",
)
refused(
    "S3 with credentials",
    """\
import fsspec
from mds import StreamingDataset
fs = fsspec.filesystem("s3", key=KEY, secret=SECRET, client_kwargs={"endpoint_url": ENDPOINT})
ds = StreamingDataset(remote="s3://bucket/train", local=out, filesystem=fs)
assert len(list(ds)) == len(ds) > 0
""",
    "Install s3fs to access S3",
)
told(
    "S3 with credentials",
    """\
from pyarrow.fs import S3FileSystem
from mds import StreamingDataset
fs = S3FileSystem(access_key=KEY, secret_key=SECRET, endpoint_override=ENDPOINT)
ds = StreamingDataset(remote="s3://bucket/train", local=out, filesystem=fs)
assert len(list(ds)) > 0
""",
    "Write its settings instead: storage_options={'endpoint_url': ..., 'aws_access_key_id': ..., 'aws_secret_access_key': ...}.",
    (
        "filesystem=fs",
        "storage_options={'endpoint_url': ENDPOINT, 'aws_access_key_id': KEY, 'aws_secret_access_key': SECRET}",
    ),
)
works(
    "S3 with credentials",
    """\
from mds import StreamingDataset, Stream
s = Stream(remote="s3://bucket/train", local=out,
           storage_options={"endpoint_url": ENDPOINT, "key": KEY, "secret": SECRET})
ds = StreamingDataset(streams=[s], batch_size=8)
assert len(list(ds)) == len(ds) > 0
""",
)
told(
    "S3 with credentials",
    """\
from mds import StreamingDataset
ds = StreamingDataset(remote="s3://bucket/train", local=out, endpoint_url=ENDPOINT,
                      aws_access_key_id=KEY, aws_secret_access_key=SECRET)
assert "label" in next(iter(ds))
""",
    "Write storage_options={'aws_secret_access_key': ...}.",
    (
        "endpoint_url=ENDPOINT,\n                      aws_access_key_id=KEY, aws_secret_access_key=SECRET",
        "storage_options={'endpoint_url': ENDPOINT, 'aws_access_key_id': KEY, 'aws_secret_access_key': SECRET}",
    ),
)
told(
    "S3 with credentials",
    """\
import boto3
from mds import StreamingDataset
s3 = boto3.client("s3", endpoint_url=ENDPOINT, aws_access_key_id=KEY, aws_secret_access_key=SECRET)
ds = StreamingDataset(remote="s3://bucket/train", local=out, client=s3, batch_size=8)
assert len(list(ds)) > 0
""",
    "Write its settings instead: storage_options={'endpoint_url': ..., 'aws_access_key_id': ..., 'aws_secret_access_key': ...}.",
    (
        "client=s3",
        "storage_options={'endpoint_url': ENDPOINT, 'aws_access_key_id': KEY, 'aws_secret_access_key': SECRET}",
    ),
)
works(
    "S3 with credentials",
    """\
$ export AWS_ACCESS_KEY_ID=$KEY AWS_SECRET_ACCESS_KEY=$SECRET AWS_ENDPOINT_URL=$ENDPOINT
mds info s3://bucket/train
""",
)
told(
    "S3 with credentials",
    """\
$ export AWS_ACCESS_KEY_ID=$KEY AWS_SECRET_ACCESS_KEY=$SECRET
mds inspect s3://bucket/train --endpoint-url $ENDPOINT
""",
    "Write: mds info s3://bucket/train",
    ("mds inspect", "mds info"),
    ("--endpoint-url $ENDPOINT", "--storage-option endpoint_url=$ENDPOINT"),
)
works(
    "S3 with credentials",
    """\
import os
os.environ.update(S3_ENDPOINT_URL=ENDPOINT, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET)
with mds.MDSWriter(out="s3://bucket/new", columns={"id": "int"}) as w:
    for i in range(5):
        w.write({"id": i})
ds = mds.StreamingDataset(remote="s3://bucket/new", local=out)
assert [s["id"] for s in ds] == [0, 1, 2, 3, 4]
""",
)
works(
    "S3 with credentials",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(remote="s3://bucket", split="train", local=out, batch_size=8,
                      storage_options={"key": KEY, "secret": SECRET, "endpoint_url": ENDPOINT})
dl = StreamingDataLoader(ds, batch_size=8, num_workers=2)
assert sum(len(b["id"]) for b in dl) == len(ds) > 0
""",
)

# ---------------------------------------- limit the cache

works(
    "limit the cache",
    """\
from pathlib import Path
from mds import StreamingDataset
ds = StreamingDataset(remote="data/train", local=out, cache_limit="1mb", batch_size=8)
assert len(list(ds)) == 120
assert sum(f.stat().st_size for f in Path(out).rglob("*") if f.is_file()) <= 1_000_000
""",
)
works(
    "limit the cache",
    """\
from mds import StreamingDataset
ds = StreamingDataset(remote="data/train", local=out, cache_limit=1_000_000, batch_size=8, shuffle=True)
assert len({s["id"] for s in ds}) == 120
""",
)
works(
    "limit the cache",
    """\
from mds import StreamingDataset
ds = StreamingDataset(remote="data/train", local=out, cache_limit="10GB", predownload=16, batch_size=8)
assert len(list(ds)) == 120
""",
)
told(
    "limit the cache",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train", cache_dir=out, max_cache_size="1GB")
assert len(list(ds)) == 120
""",
    "there is no argument 'cache_dir'. Write local=",
    ("cache_dir=out", "local=out"),
    ("max_cache_size=", "cache_limit="),
)
told(
    "limit the cache",
    """\
from mds import StreamingDataset
ds = StreamingDataset(input_dir="data/train", cache_dir=out, max_cache_size="500MB")
assert sum(1 for _ in ds) == 120
""",
    "Give the path or the URL first, without a name: StreamingDataset('data/train')",
    ("input_dir=", ""),
    ("cache_dir=out", "local=out"),
    ("max_cache_size=", "cache_limit="),
)
works(
    "limit the cache",
    """\
from mds import StreamingDataset
ds = StreamingDataset(remote="data/train", local=out, cache_limit="512 MiB", batch_size=8)
assert len(list(ds)) == 120
""",
)
works(
    "limit the cache",
    """\
from mds import StreamingDataset, Stream
streams = [Stream(remote="a", local=out + "/a"), Stream(remote="b", local=out + "/b")]
ds = StreamingDataset(streams=streams, cache_limit="2mb", batch_size=8)
assert len(list(ds)) == 120
""",
)
works(
    "limit the cache",
    """\
from mds import StreamingDataset
ds = StreamingDataset(remote="data/train", local=out, batch_size=8)
before = ds[0]
ds.evict_shard(0)
assert ds[0]["id"] == before["id"]
""",
)
works(
    "limit the cache",
    """\
from mds import StreamingDataset
ds = StreamingDataset(remote="data/train", local=out, cache_limit="1mb", batch_size=8)
list(ds)
print(ds.cache_usage)
assert 0 < ds.cache_usage <= 1_000_000
""",
)
works(
    "limit the cache",
    """\
import os
from mds import StreamingDataset
ds = StreamingDataset(remote="data/train", local=out, cache_limit=None, batch_size=8)
list(ds)
assert any(n.endswith((".mds", ".mds.zstd")) for _, _, names in os.walk(out) for n in names)
""",
)
works(
    "limit the cache",
    """\
from mds import StreamingDataset
ds = StreamingDataset(remote="data/train", local=out, keep_zip=False, cache_limit="100mb", batch_size=8, num_canonical_nodes=1)
assert len(list(ds)) == 120
""",
)
works(
    "limit the cache",
    """\
import os
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(remote="data/train", local=out, cache_limit="1mb", batch_size=8)
n = sum(len(b["id"]) for b in StreamingDataLoader(ds, batch_size=8, num_workers=2))
size = sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(out) for f in fs)
assert n == 120 and size <= 1_000_000
""",
)
works(
    "limit the cache",
    """\
import os
ds = mds.StreamingDataset("data/train", local=out, cache_limit="1gb", batch_size=8)
assert len(list(ds)) == 120
assert os.path.isdir(out)
""",
)
works(
    "limit the cache",
    """\
from mds import StreamingDataset
ds = StreamingDataset(remote="pictures", local=out, cache_limit=1e9, batch_size=4)
assert len(list(ds)) == 24
""",
)
refused(
    "limit the cache",
    """\
$ mds cache ls
mds cache clear
""",
    "Limit it with cache_limit=, and delete the folder to clear it.",
)
told(
    "limit the cache",
    """\
from mds import StreamingDataset, Stream
ds = StreamingDataset(streams=[Stream(remote="a", local=out, cache_limit="1mb")], batch_size=6)
assert len(list(ds)) == 60
""",
    "The dataset takes it: StreamingDataset(streams=[...], cache_limit='1mb')",
    (', cache_limit="1mb")], ', ')], cache_limit="1mb", '),
)

# ---------------------------------------- batch and collate

works(
    "batch and collate",
    """\
from torch.utils.data import DataLoader
from mds import StreamingDataset
batch = next(iter(DataLoader(StreamingDataset(local="data/train", batch_size=8), batch_size=8)))
assert torch.is_tensor(batch["id"]) and batch["id"].shape == (8,)
assert len(batch["text"]) == 8 and isinstance(batch["text"][0], str)
""",
)
works(
    "batch and collate",
    """\
from torch.nn.utils.rnn import pad_sequence
from mds import StreamingDataset, StreamingDataLoader
def collate(samples):
    return pad_sequence([torch.as_tensor(s["tokens"]) for s in samples], batch_first=True)
ds = StreamingDataset(local="tokens", batch_size=4)
batch = next(iter(StreamingDataLoader(ds, batch_size=4, collate_fn=collate)))
assert batch.shape[0] == 4 and 5 <= batch.shape[1] <= 60
""",
)
told(
    "batch and collate",
    """\
ds = mds.StreamingDataset("data/train").batched(8)
batches = list(ds)
assert len(batches) == 15 and len(batches[0]["id"]) == 8
""",
    "Write StreamingDataLoader(dataset, batch_size=...)",
    (
        'mds.StreamingDataset("data/train").batched(8)',
        'mds.StreamingDataLoader(mds.StreamingDataset("data/train"), batch_size=8)',
    ),
)
told(
    "batch and collate",
    """\
ds = mds.StreamingDataset("data/train").batch(50, drop_remainder=True)
sizes = [len(b["id"]) for b in ds]
assert sizes == [50, 50]
""",
    "Write StreamingDataLoader(dataset, batch_size=...)",
    (
        'mds.StreamingDataset("data/train").batch(50, drop_remainder=True)',
        'mds.StreamingDataLoader(mds.StreamingDataset("data/train"), batch_size=50, drop_last=True)',
    ),
)
told(
    "batch and collate",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train").batch(batch_size=8)
b = next(iter(ds))
assert set(b) == {"id", "text", "label"} and len(b["text"]) == 8
""",
    "Write StreamingDataLoader(dataset, batch_size=...)",
    ("import StreamingDataset", "import StreamingDataset, StreamingDataLoader"),
    (
        'StreamingDataset("data/train").batch(batch_size=8)',
        'StreamingDataLoader(StreamingDataset("data/train"), batch_size=8)',
    ),
)
told(
    "batch and collate",
    """\
from mds import StreamingDataset
ds = StreamingDataset(local="data/train")
assert sum(len(b["id"]) for b in ds.iter(batch_size=32)) == 120
""",
    "Write for sample in dataset",
    ("import StreamingDataset", "import StreamingDataset, StreamingDataLoader"),
    ("ds.iter(batch_size=32)", "StreamingDataLoader(ds, batch_size=32)"),
)
works(
    "batch and collate",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="data/train", batch_size=50)
dl = StreamingDataLoader(ds, batch_size=50, drop_last=True)
assert [len(b["id"]) for b in dl] == [50, 50]
""",
)
works(
    "batch and collate",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="data/train", batch_size=50)
dl = StreamingDataLoader(ds, batch_size=50)
assert [len(b["id"]) for b in dl] == [50, 50, 20]
""",
)
works(
    "batch and collate",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="pictures", batch_size=6)
batch = next(iter(StreamingDataLoader(ds, batch_size=6, collate_fn=list)))
assert len(batch) == 6 and batch[0]["image"].size[0] > 0
""",
)
works(
    "batch and collate",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="data/train", batch_size=12)
batch = next(iter(StreamingDataLoader(ds)))
assert len(batch["id"]) == 12
""",
)
told(
    "batch and collate",
    """\
ds = mds.StreamingDataset("data/train").to_tuple("id", "label").batched(10)
ids, labels = next(iter(ds))
assert len(ids) == 10 and len(labels) == 10
""",
    "Write dataset.map(lambda sample: (sample['image'], sample['label']))",
    (
        'mds.StreamingDataset("data/train").to_tuple("id", "label").batched(10)',
        "mds.StreamingDataLoader(mds.StreamingDataset(\"data/train\").map(lambda sample: (sample['id'], sample['label'])), batch_size=10)",
    ),
)
told(
    "batch and collate",
    """\
ds = mds.StreamingDataset("tokens").padded_batch(4)
b = next(iter(ds))
assert b["tokens"].shape[0] == 4 and b["tokens"].ndim == 2
""",
    "Write StreamingDataLoader(dataset, collate_fn=pad('tokens')), with pad of mds.transforms.",
    (
        'ds = mds.StreamingDataset("tokens").padded_batch(4)',
        "from mds.transforms import pad\nds = mds.StreamingDataLoader(mds.StreamingDataset(\"tokens\"), batch_size=4, collate_fn=pad('tokens'))",
    ),
)
told(
    "batch and collate",
    """\
ds = mds.StreamingDataset("data/train")
b = next(iter(ds.iter_batches(batch_size=16, batch_format="numpy")))
assert isinstance(b["id"], np.ndarray) and len(b["id"]) == 16
""",
    "Write StreamingDataLoader(dataset, batch_size=...)",
    (
        "",
        """\
ds = mds.StreamingDataset("data/train")
b = next(iter(mds.StreamingDataLoader(ds, batch_size=16)))
assert isinstance(b["id"].numpy(), np.ndarray) and len(b["id"]) == 16
""",
    ),
)
told(
    "batch and collate",
    """\
from torch.utils.data import DataLoader
from mds import StreamingDataset
ds = StreamingDataset(local="data/train").with_format("torch")
b = next(iter(DataLoader(ds, batch_size=8)))
assert b["label"].dtype == torch.int64 and b["label"].shape == (8,)
""",
    "Batches of a StreamingDataLoader are tensors",
    ("from torch.utils.data import DataLoader\n", ""),
    ("import StreamingDataset", "import StreamingDataset, StreamingDataLoader"),
    ('.with_format("torch")', ""),
    ("iter(DataLoader(", "iter(StreamingDataLoader("),
)
works(
    "batch and collate",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="pictures", batch_size=4)
ds = ds.map(lambda s: {"x": torch.tensor(np.asarray(s["image"].convert("RGB").resize((16, 16)))), "y": s["label"]})
b = next(iter(StreamingDataLoader(ds, batch_size=4)))
assert b["x"].shape == (4, 16, 16, 3) and b["y"].shape == (4,)
""",
)
told(
    "batch and collate",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="tokens", batch_size=4)
dl = StreamingDataLoader(ds, batch_size=4, collate_fn="pad")
b = next(iter(dl))
assert b["tokens"].shape[0] == 4 and b["tokens"].dim() == 2
""",
    "Write collate_fn=mds.transforms.pad('tokens')",
    ('collate_fn="pad"', "collate_fn=mds.transforms.pad('tokens')"),
)

# ---------------------------------------- map and filter

works(
    "map and filter",
    """\
from mds import StreamingDataset
ds = StreamingDataset(local="data/train").map(lambda x: {"n": len(x["text"])})
s = next(iter(ds))
assert s["n"] >= 0 and len(list(ds)) == 120
""",
)
works(
    "map and filter",
    """\
from mds import StreamingDataset
ds = StreamingDataset(local="data/train").filter(lambda x: x["id"] % 2 == 0)
rows = list(ds)
assert 0 < len(rows) < 120 and all(r["id"] % 2 == 0 for r in rows)
""",
)
works(
    "map and filter",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset("data/train").filter(lambda s: s["id"] % 3 == 0).map(lambda s: {"id": s["id"], "twice": s["id"] * 2})
for b in StreamingDataLoader(ds, batch_size=4):
    assert (b["twice"] == 2 * b["id"]).all() and (b["id"] % 3 == 0).all()
""",
)
told(
    "map and filter",
    """\
from mds import StreamingDataset
ds = StreamingDataset(local="data/train")
ds = ds.map(lambda b: {"length": [len(t) for t in b["text"]]}, batched=True, batch_size=16)
assert all(s["length"] >= 0 for s in ds) and len(list(ds)) == 120
""",
    "Write StreamingDataLoader(dataset.map_batches(function), batch_size=...): the function takes a batch of the loader, as a dict of columns.",
    (
        "",
        """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="data/train")
ds = StreamingDataLoader(ds.map_batches(lambda b: {"length": [len(t) for t in b["text"]]}), batch_size=16)
assert all((b["length"] >= 0).all() for b in ds) and sum(len(b["length"]) for b in ds) == 120
""",
    ),
)
told(
    "map and filter",
    """\
ds = mds.StreamingDataset(local="data/train").map_batches(lambda b: {"id": [i + 1000 for i in b["id"]]}, batch_size=16)
ids = [s["id"] for s in ds]
assert len(ids) == 120 and min(ids) >= 1000
""",
    "Write StreamingDataLoader(dataset.map_batches(function), batch_size=...): the function takes a batch of the loader, as a dict of columns.",
    (
        'mds.StreamingDataset(local="data/train").map_batches',
        'mds.StreamingDataLoader(mds.StreamingDataset(local="data/train").map_batches',
    ),
    (", batch_size=16", "), batch_size=16"),
    ('[s["id"] for s in ds]', '[i for b in ds for i in b["id"].tolist()]'),
)
told(
    "map and filter",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train")
ds = ds.map(lambda s: {"words": s["text"].split()}, remove_columns=["text", "label"])
assert set(next(iter(ds))) == {"id", "words"}
""",
    "e complete new sample, as in lambda sample: {'id': sample['id']}. Leave the columns out of its dict.",
    (
        '{"words": s["text"].split()}, remove_columns=["text", "label"]',
        '{"id": s["id"], "words": s["text"].split()}',
    ),
)
told(
    "map and filter",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train").filter(lambda label: label == 1, input_columns="label")
assert all(s["label"] == 1 for s in ds)
print(sum(1 for _ in ds))
""",
    "The function takes the whole sample, as in lambda sample: sample['text']",
    ('lambda label: label == 1, input_columns="label"', "lambda sample: sample['label'] == 1"),
)
told(
    "map and filter",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train").map(lambda s, i: {**s, "index": i}, with_indices=True)
assert [s["index"] for s in ds][:3] == [0, 1, 2]
""",
    "The function gets only the sample. Store its number as a column, as in mds.convert(({**sample, 'index': i} for i, sample in enumerate(dataset)), out).",
    (
        "",
        """\
from mds import StreamingDataset
dataset = StreamingDataset("data/train")
mds.convert(({**sample, "index": i} for i, sample in enumerate(dataset)), out)
ds = StreamingDataset(out)
assert [s["index"] for s in ds][:3] == [0, 1, 2]
""",
    ),
)
told(
    "map and filter",
    """\
ds = mds.StreamingDataset("pictures").map_dict(image=lambda im: np.asarray(im), label=int)
s = next(iter(ds))
assert isinstance(s["image"], np.ndarray) and isinstance(s["label"], int)
""",
    "Write dataset.map(function)",
    (
        ".map_dict(image=lambda im: np.asarray(im), label=int)",
        '.map(lambda s: {**s, "image": np.asarray(s["image"]), "label": int(s["label"])})',
    ),
)
works(
    "map and filter",
    """\
ds = mds.StreamingDataset("data/train").select(lambda s: s["id"] % 2 == 1)
ids = [s["id"] for s in ds]
assert 0 < len(ids) < 120 and all(i % 2 == 1 for i in ids)
""",
)
told(
    "map and filter",
    """\
from mds import StreamingDataset, col
ds = StreamingDataset("data/train").filter(col("id") < 10)
assert all(s["id"] < 10 for s in ds) and len(list(ds)) > 0
""",
    "Write functions instead, as in dataset.filter(lambda sample: sample['id'] < 10)",
    ("import StreamingDataset, col", "import StreamingDataset"),
    ('filter(col("id") < 10)', "filter(lambda sample: sample['id'] < 10)"),
)
told(
    "map and filter",
    """\
from mds import StreamingDataset
ds = StreamingDataset(local="data/train", batch_size=8, transform=lambda s: (s["text"], s["label"]))
text, label = ds[0]
assert isinstance(text, str) and len(list(ds)) == 120
""",
    "Write StreamingDataset(...).map(<lambda>)",
    (', transform=lambda s: (s["text"], s["label"]))', ').map(lambda s: (s["text"], s["label"]))'),
)
works(
    "map and filter",
    """\
from mds import LocalDataset
ds = LocalDataset("data/train").map(lambda s: s["text"].lower())
texts = list(ds)
assert len(texts) == 120 and all(isinstance(t, str) for t in texts)
assert ds[3] == texts[3]
""",
)
works(
    "map and filter",
    """\
from mds import StreamingDataset, StreamingDataLoader
def double(s): return {"id": s["id"], "double": 2 * s["id"]}
ds = StreamingDataset(local="data/train", shuffle=True, batch_size=8).map(double)
ids = [i for b in StreamingDataLoader(ds, batch_size=8, num_workers=2) for i in b["double"].tolist()]
assert len(ids) == 120 and all(i % 2 == 0 for i in ids)
""",
)
told(
    "map and filter",
    """\
ds = mds.StreamingDataset("data/train").map(lambda s: s["id"] + 1, num_parallel_calls=4)
ids = list(ds)
assert len(ids) == 120 and all(isinstance(i, int) for i in ids)
""",
    "The workers of the loader call it: StreamingDataLoader(dataset, num_workers=4).",
    (
        'ds = mds.StreamingDataset("data/train").map(lambda s: s["id"] + 1, num_parallel_calls=4)',
        'ds = mds.StreamingDataset("data/train").map(lambda s: s["id"] + 1)\nds = mds.StreamingDataLoader(ds, batch_size=16, num_workers=4)',
    ),
    ("ids = list(ds)", "ids = [i for b in ds for i in b.tolist()]"),
)
works(
    "map and filter",
    """\
from mds import StreamingDataset
ds = StreamingDataset("docs.parquet", format="parquet").filter(lambda r: r["id"] % 5 == 0)
rows = list(ds)
assert 0 < len(rows) < 50 and all(r["id"] % 5 == 0 for r in rows)
""",
)

# ---------------------------------------- resume

works(
    "resume",
    """\
from mds import StreamingDataset, StreamingDataLoader
def make(): return StreamingDataLoader(StreamingDataset(local="data/train", shuffle=True, batch_size=8), batch_size=8)
dl = make(); it = iter(dl)
for _ in range(5): next(it)
state = dl.state_dict()
rest = [b["id"].tolist() for b in it]
new = make(); new.load_state_dict(state)
assert [b["id"].tolist() for b in new] == rest
""",
)
works(
    "resume",
    """\
from mds import StreamingDataset
ds = StreamingDataset(local="data/train", shuffle=True, batch_size=8)
it = iter(ds); head = [next(it)["id"] for _ in range(16)]
state = ds.state_dict(num_samples=16, from_beginning=True)
ds2 = StreamingDataset(local="data/train", shuffle=True, batch_size=8)
ds2.load_state_dict(state)
rest = [s["id"] for s in ds2]
assert len(rest) == 104 and not set(head) & set(rest)
""",
)
works(
    "resume",
    """\
from mds import StreamingDataset, StreamingDataLoader
dl = StreamingDataLoader(StreamingDataset(local="data/train", batch_size=8), batch_size=8)
for i, batch in enumerate(dl):
    if i == 3: break
torch.save({"loader": dl.state_dict()}, "ckpt.pt")
dl2 = StreamingDataLoader(StreamingDataset(local="data/train", batch_size=8), batch_size=8)
dl2.load_state_dict(torch.load("ckpt.pt", weights_only=False)["loader"])
assert sum(len(b["id"]) for b in dl2) == 120 - 32
""",
)
works(
    "resume",
    """\
from mds import StreamingDataset, StreamingDataLoader
dl = StreamingDataLoader(StreamingDataset(local="data/train", batch_size=8), batch_size=8)
it = iter(dl); next(it)
torch.save(dl.state_dict(), "state.pt")
state = torch.load("state.pt", weights_only=True)
dl.load_state_dict(state)
assert sum(len(b["id"]) for b in dl) == 112
""",
)
works(
    "resume",
    """\
from torchdata.stateful_dataloader import StatefulDataLoader
from mds import StreamingDataset
dl = StatefulDataLoader(StreamingDataset(local="data/train", batch_size=8), batch_size=8, num_workers=0)
it = iter(dl); next(it); next(it)
dl2 = StatefulDataLoader(StreamingDataset(local="data/train", batch_size=8), batch_size=8, num_workers=0)
dl2.load_state_dict(dl.state_dict())
assert sum(len(b["id"]) for b in dl2) == 104
""",
)
works(
    "resume",
    """\
from mds import StreamingDataset, StreamingDataLoader
make = lambda: StreamingDataLoader(StreamingDataset("data/train", shuffle=True), batch_size=8, num_workers=2)
dl = make(); it = iter(dl)
done = [next(it)["id"].tolist() for _ in range(4)]
dl2 = make(); dl2.load_state_dict(dl.state_dict())
rest = [b["id"].tolist() for b in dl2]
assert sorted(sum(done + rest, [])) == sorted(s["id"] for s in StreamingDataset("data/train"))
""",
)
works(
    "resume",
    """\
from mds import StreamingDataset
ds = StreamingDataset(local="data/train")
for i, s in enumerate(ds):
    if i == 9:
        state = ds.state_dict(); break
ds.load_state_dict(state)
assert len(list(ds)) == 110
""",
)
works(
    "resume",
    """\
import json
from mds import StreamingDataset, StreamingDataLoader
dl = StreamingDataLoader(StreamingDataset(local="data/train", batch_size=8), batch_size=8)
it = iter(dl); next(it)
text = json.dumps(dl.state_dict())
dl.load_state_dict(json.loads(text))
assert len(list(dl)) == 14
""",
)
works(
    "resume",
    """\
from mds import StreamingDataset, StreamingDataLoader
make = lambda: StreamingDataLoader(StreamingDataset(local="data/train", shuffle=True, batch_size=8), batch_size=8)
dl = make(); list(dl)
it = iter(dl); next(it); state = dl.state_dict()
rest = [b["id"].tolist() for b in it]
dl2 = make(); dl2.load_state_dict(state)
assert [b["id"].tolist() for b in dl2] == rest
""",
)
works(
    "resume",
    """\
from mds import StreamingDataset, StreamingDataLoader
dl = StreamingDataLoader(StreamingDataset(local="data/train", batch_size=8), batch_size=8)
it = iter(dl); next(it); state = dl.state_dict()
dl2 = StreamingDataLoader(StreamingDataset(local="data/train", batch_size=8), batch_size=8)
dl2.load_state_dict(state)
assert (len(list(dl2)), len(list(dl2))) == (14, 15)
""",
)
told(
    "resume",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train")
rest = [s["id"] for s in ds.skip(40)]
assert rest == [s["id"] for s in ds][40:]
""",
    "Write dataset.select(range(n, dataset.num_samples)) to leave out the first n",
    ("ds.skip(40)", "ds.select(range(40, ds.num_samples))"),
)
works(
    "resume",
    """\
from mds import StreamingDataset, StreamingDataLoader
make = lambda: StreamingDataLoader(StreamingDataset(local="data/train", batch_size=8).map(lambda s: {"id": s["id"]}), batch_size=8)
dl = make(); it = iter(dl); next(it); state = dl.state_dict()
expected = [b["id"].tolist() for b in it]
dl2 = make(); dl2.load_state_dict(state)
assert [b["id"].tolist() for b in dl2] == expected
""",
)
refused(
    "resume",
    """\
from mds import StreamingDataset, StreamingDataLoader
dl = StreamingDataLoader(StreamingDataset(local="data/train", batch_size=8), batch_size=8)
it = iter(dl); next(it)
state = it.get_state()
expected = next(it)["id"].tolist()
it2 = iter(dl); it2.set_state(state)
assert next(it2)["id"].tolist() == expected
""",
    "'generator' object has no attribute 'get_state'",
)
works(
    "resume",
    """\
from mds import StreamingDataset, StreamingDataLoader
make = lambda w: StreamingDataLoader(StreamingDataset(local="data/train", shuffle=True, batch_size=8), batch_size=8, num_workers=w)
dl = make(0); it = iter(dl); next(it); state = dl.state_dict()
rest = [b["id"].tolist() for b in it]
dl2 = make(2); dl2.load_state_dict(state)
assert [b["id"].tolist() for b in dl2] == rest
""",
)
told(
    "resume",
    """\
from mds import StreamingDataset, StreamingDataLoader
dl = StreamingDataLoader(StreamingDataset(local="data/train", batch_size=8), batch_size=8)
it = iter(dl); next(it)
dl2 = StreamingDataLoader(StreamingDataset(local="data/train", batch_size=8), batch_size=8, state_dict=dl.state_dict())
assert len(list(dl2)) == 14
""",
    "Write loader.load_state_dict(state), with the state of loader.state_dict()",
    (", state_dict=dl.state_dict())", ")\ndl2.load_state_dict(dl.state_dict())"),
)
told(
    "resume",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="data/train", shuffle=True, shuffle_seed=1, batch_size=8)
whole = [b["id"].tolist() for b in StreamingDataLoader(ds, batch_size=8)]
ds2 = StreamingDataset(local="data/train", shuffle=True, shuffle_seed=1, batch_size=8)
rest = [b["id"].tolist() for b in StreamingDataLoader(ds2, batch_size=8, start_step=5)]
assert rest == whole[5:]
""",
    "Write loader.load_state_dict(state), with the state of loader.state_dict().",
    (
        'rest = [b["id"].tolist() for b in StreamingDataLoader(ds2, batch_size=8, start_step=5)]',
        'loader = StreamingDataLoader(ds2, batch_size=8)\nloader.load_state_dict(ds2.state_dict(5 * 8, True))\nrest = [b["id"].tolist() for b in loader]',
    ),
)

# ---------------------------------------- mix with weights

works(
    "mix with weights",
    """\
from mds import StreamingDataset, Stream
A = {s["text"] for s in StreamingDataset(local="a")}
ds = StreamingDataset(streams=[Stream(local="a", proportion=0.75), Stream(local="b", proportion=0.25)], batch_size=8)
rows = list(ds)
share = sum(s["text"] in A for s in rows) / len(rows)
assert 0.7 <= share <= 0.8
""",
)
works(
    "mix with weights",
    """\
from mds import StreamingDataset, Stream
streams = [Stream(local="a", proportion=3), Stream(local="b", proportion=1)]
ds = StreamingDataset(streams=streams, epoch_size=40, shuffle=True, batch_size=8)
assert len(list(ds)) == 40
""",
)
works(
    "mix with weights",
    """\
from mds import StreamingDataset, Stream
ds = StreamingDataset(streams=[Stream(local="a", repeat=2), Stream(local="b", repeat=1)], batch_size=10)
assert len(ds) == 180 and len(list(ds)) == 180
""",
)
works(
    "mix with weights",
    """\
from mds import StreamingDataset, Stream
ds = StreamingDataset(streams=[Stream(local="a", choose=10), Stream(local="b", choose=30)], batch_size=10)
assert len(list(ds)) == 40
""",
)
told(
    "mix with weights",
    """\
from mds import StreamingDataset, interleave_datasets
ds = interleave_datasets([StreamingDataset("a"), StreamingDataset("b")], probabilities=[0.7, 0.3], seed=42)
s = next(iter(ds))
assert set(s) == {"id", "text"}
""",
    "Write mds.StreamingDataset([mds.Stream('a', proportion=0.7), mds.Stream('b', proportion=0.3)], shuffle=True).",
    (
        'interleave_datasets([StreamingDataset("a"), StreamingDataset("b")], probabilities=[0.7, 0.3], seed=42)',
        "mds.StreamingDataset([mds.Stream('a', proportion=0.7), mds.Stream('b', proportion=0.3)], shuffle=True)",
    ),
    (", interleave_datasets", ""),
)
told(
    "mix with weights",
    """\
from mds import StreamingDataset, CombinedStreamingDataset, StreamingDataLoader
ds = CombinedStreamingDataset(datasets=[StreamingDataset("a"), StreamingDataset("b")], weights=[0.5, 0.5], seed=42)
batch = next(iter(StreamingDataLoader(ds, batch_size=8)))
assert len(batch["id"]) == 8
""",
    "Write mds.StreamingDataset([mds.Stream('a', proportion=0.7), mds.Stream('b', proportion=0.3)], shuffle=True).",
    (", CombinedStreamingDataset", ""),
    (
        'CombinedStreamingDataset(datasets=[StreamingDataset("a"), StreamingDataset("b")], weights=[0.5, 0.5], seed=42)',
        "mds.StreamingDataset([mds.Stream('a', proportion=0.5), mds.Stream('b', proportion=0.5)], shuffle=True)",
    ),
)
told(
    "mix with weights",
    """\
from mds import StreamingDataset
ds = mds.sample_from_datasets([StreamingDataset("a"), StreamingDataset("b")], weights=[0.8, 0.2], seed=1)
assert len([s for _, s in zip(range(20), ds)]) == 20
""",
    "Write mds.StreamingDataset([mds.Stream('a', proportion=0.7), mds.Stream('b', proportion=0.3)], shuffle=True).",
    (
        'mds.sample_from_datasets([StreamingDataset("a"), StreamingDataset("b")], weights=[0.8, 0.2], seed=1)',
        "mds.StreamingDataset([mds.Stream('a', proportion=0.8), mds.Stream('b', proportion=0.2)], shuffle=True)",
    ),
)
told(
    "mix with weights",
    """\
from mds import StreamingDataset, RandomMix
ds = RandomMix([StreamingDataset("a"), StreamingDataset("b")], probs=[0.9, 0.1])
assert "text" in next(iter(ds))
""",
    "Write mds.StreamingDataset([mds.Stream('a', proportion=0.7), mds.Stream('b', proportion=0.3)], shuffle=True).",
    (", RandomMix", ""),
    (
        'RandomMix([StreamingDataset("a"), StreamingDataset("b")], probs=[0.9, 0.1])',
        "mds.StreamingDataset([mds.Stream('a', proportion=0.9), mds.Stream('b', proportion=0.1)], shuffle=True)",
    ),
)
told(
    "mix with weights",
    """\
from mds import StreamingDataset
A = {s["text"] for s in StreamingDataset("a")}
ds = mds.mix([StreamingDataset("a"), StreamingDataset("b")], weights=[0.75, 0.25])
rows = list(ds)
assert 0.65 <= sum(s["text"] in A for s in rows) / len(rows) <= 0.85
""",
    "Write mds.StreamingDataset([mds.Stream('a', proportion=0.7), mds.Stream('b', proportion=0.3)], shuffle=True).",
    (
        'mds.mix([StreamingDataset("a"), StreamingDataset("b")], weights=[0.75, 0.25])',
        "mds.StreamingDataset([mds.Stream('a', proportion=0.75), mds.Stream('b', proportion=0.25)])",
    ),
)
works(
    "mix with weights",
    """\
from mds import StreamingDataset
ds = StreamingDataset(streams={"a": {"local": "a", "proportion": 0.5}, "b": {"local": "b", "proportion": 0.5}}, batch_size=8)
assert len(list(ds)) == 120
""",
)
works(
    "mix with weights",
    """\
from mds import StreamingDataset
A = {s["text"] for s in StreamingDataset("a")}
ds = StreamingDataset({"a": 0.75, "b": 0.25}, epoch_size=80)
n = sum(s["text"] in A for s in ds)
assert 56 <= n <= 64
""",
)
works(
    "mix with weights",
    """\
from mds import LocalDataset
both = LocalDataset("a") + LocalDataset("b")
assert len(both) == 120 and both[60]["text"] == LocalDataset("b")[0]["text"]
""",
)
told(
    "mix with weights",
    """\
from mds import StreamingDataset, Stream
A = {s["text"] for s in StreamingDataset("a")}
ds = StreamingDataset(streams=[Stream("a", weight=1), Stream("b", weight=3)], batch_size=8)
rows = list(ds)
assert 0.2 <= sum(s["text"] in A for s in rows) / len(rows) <= 0.3
""",
    "Write proportion=1",
    ("weight=", "proportion="),
)
works(
    "mix with weights",
    """\
from mds import StreamingDataset, StreamingDataLoader, Stream
A = {s["text"] for s in StreamingDataset(local="a")}
ds = StreamingDataset(streams=[Stream(local="a"), Stream(local="b")], batch_size=6, shuffle=True, batching_method="per_stream")
for b in StreamingDataLoader(ds, batch_size=6):
    assert len({t in A for t in b["text"]}) == 1
""",
)
works(
    "mix with weights",
    """\
from mds import StreamingDataset, StreamingDataLoader, Stream
A = {s["text"] for s in StreamingDataset(local="a")}
ds = StreamingDataset(streams=[Stream(local="a", proportion=0.75), Stream(local="b", proportion=0.25)], batch_size=8, batching_method="stratified")
b = next(iter(StreamingDataLoader(ds, batch_size=8)))
assert sum(t in A for t in b["text"]) == 6
""",
)
told(
    "mix with weights",
    """\
from mds import StreamingDataset, concatenate_datasets
ds = concatenate_datasets([StreamingDataset("a"), StreamingDataset("b")])
assert len(ds) == 120 and len(list(ds)) == 120
""",
    "Write mds.StreamingDataset([mds.Stream('a'), mds.Stream('b')])",
    (", concatenate_datasets", ""),
    (
        'concatenate_datasets([StreamingDataset("a"), StreamingDataset("b")])',
        "mds.StreamingDataset([mds.Stream('a'), mds.Stream('b')])",
    ),
)

# ---------------------------------------- validate without repeats

works(
    "validate without repeats",
    """\
from mds import StreamingDataset, StreamingDataLoader
val = StreamingDataset(local="data/val", shuffle=False, batch_size=8)
ids = [i for b in StreamingDataLoader(val, batch_size=8, drop_last=False) for i in b["id"].tolist()]
assert len(ids) == 30 == len(set(ids))
""",
)
works(
    "validate without repeats",
    """\
from torch.utils.data import DataLoader
from mds import StreamingDataset
val = StreamingDataset(local="data/val", batch_size=7)
ids = [i for b in DataLoader(val, batch_size=7, num_workers=4) for i in b["id"].tolist()]
assert len(ids) == 30 == len(set(ids))
""",
)
told(
    "validate without repeats",
    """\
import os
from mds import StreamingDataset
ids = []
for r in range(4):
    os.environ.update(RANK=str(r), WORLD_SIZE="4", LOCAL_RANK=str(r), LOCAL_WORLD_SIZE="4")
    ids += [s["id"] for s in StreamingDataset(local="data/val", batch_size=4, repeat=False)]
assert len(ids) == 30 == len(set(ids))
""",
    "remainder='short' no sample repeats",
    ("repeat=False", "remainder='short'"),
)
told(
    "validate without repeats",
    """\
from mds import StreamingDataset
val = StreamingDataset("data/val")
parts = [[s["id"] for s in val.shard(num_shards=4, index=i)] for i in range(4)]
ids = sum(parts, [])
assert len(ids) == 30 == len(set(ids))
""",
    "batch_size=..., topology=(rank, world_size), remainder='short') gives the part of one rank.",
    (
        "val.shard(num_shards=4, index=i)",
        "StreamingDataset(\"data/val\", batch_size=1, topology=(i, 4), remainder='short')",
    ),
)
told(
    "validate without repeats",
    """\
from mds import StreamingDataset, split_dataset_by_node
val = StreamingDataset("data/val")
ids = [s["id"] for r in range(4) for s in split_dataset_by_node(val, rank=r, world_size=4)]
assert len(ids) == 30 == len(set(ids))
""",
    "Samples are divided among ranks and workers automatically.",
    (", split_dataset_by_node", ""),
    (
        "split_dataset_by_node(val, rank=r, world_size=4)",
        "StreamingDataset(\"data/val\", batch_size=1, topology=(r, 4), remainder='short')",
    ),
)
works(
    "validate without repeats",
    """\
from torch.utils.data import DataLoader, SequentialSampler
from mds import LocalDataset
val = LocalDataset("data/val")
ids = [i for b in DataLoader(val, batch_size=8, sampler=SequentialSampler(val)) for i in b["id"].tolist()]
assert ids == [val[i]["id"] for i in range(30)]
""",
)
told(
    "validate without repeats",
    """\
from mds import StreamingDataset
ids = []
for rank in range(4):
    ds = StreamingDataset(local="data/val", rank=rank, world_size=4, pad=False, batch_size=4)
    ids += [s["id"] for s in ds]
assert sorted(ids) == sorted({s["id"] for s in StreamingDataset(local="data/val")})
""",
    "The launcher sets the ranks; topology=(rank, world_size) replaces them.",
    ("rank=rank, world_size=4, pad=False", "topology=(rank, 4), remainder='short'"),
)
told(
    "validate without repeats",
    """\
from mds import StreamingDataset, StreamingDataLoader
val = StreamingDataset(local="data/val", batch_size=8, allow_repeats=False)
n = sum(len(b["id"]) for b in StreamingDataLoader(val, batch_size=8, num_workers=3))
assert n == 30
""",
    "Write remainder='short': no sample is repeated",
    ("allow_repeats=False", "remainder='short'"),
)
works(
    "validate without repeats",
    """\
from mds import StreamingDataset, StreamingDataLoader
loader = StreamingDataLoader(StreamingDataset(local="data", split="val", batch_size=8), batch_size=8, drop_last=False)
assert len(loader) == 4
assert len(list(loader)) == 4
""",
)
works(
    "validate without repeats",
    """\
from mds import StreamingDataset, StreamingDataLoader
loader = StreamingDataLoader(StreamingDataset(local="data/val", shuffle=False, batch_size=16), batch_size=16, num_workers=2)
one = [b["id"].tolist() for b in loader]
two = [b["id"].tolist() for b in loader]
assert one == two and sum(map(len, one)) == 30
""",
)
works(
    "validate without repeats",
    """\
val = mds.StreamingDataset("data/val", shuffle=False)
labels = [s["label"] for s in val]
assert len(labels) == 30
print(sum(labels) / 30)
""",
)
told(
    "validate without repeats",
    """\
val = mds.StreamingDataset("data/val").batch(8)
assert [len(b["id"]) for b in val] == [8, 8, 8, 6]
""",
    "Write StreamingDataLoader(dataset, batch_size=...)",
    (
        'mds.StreamingDataset("data/val").batch(8)',
        'mds.StreamingDataLoader(mds.StreamingDataset("data/val"), batch_size=8)',
    ),
)
told(
    "validate without repeats",
    """\
from mds import StreamingDataset, StreamingDataLoader
val = StreamingDataset(local="data/val", batch_size=4, exact=True)
ids = [i for b in StreamingDataLoader(val, batch_size=4, num_workers=2) for i in b["id"].tolist()]
assert sorted(set(ids)) == sorted(ids) and len(ids) == 30
""",
    "Write remainder='short' instead of True",
    ("exact=True", "remainder='short'"),
)
works(
    "validate without repeats",
    """\
from mds import StreamingDataset, StreamingDataLoader
train = StreamingDataLoader(StreamingDataset(local="data/train", batch_size=8), batch_size=8)
val = StreamingDataLoader(StreamingDataset(local="data/val", batch_size=8), batch_size=8)
it = iter(train); next(it)
assert sum(len(b["id"]) for b in val) == 30
assert sum(len(b["id"]) for b in it) == 112
""",
)
works(
    "validate without repeats",
    """\
from mds import StreamingDataset
val = StreamingDataset(local="data/val", batch_size=8, num_canonical_nodes=1, replication=1)
assert len({s["id"] for s in val}) == 30 == len(val)
""",
)
works(
    "validate without repeats",
    """\
$ echo 'import mds; print([s["id"] for s in mds.StreamingDataset(local="data/val", batch_size=5)])' > v.py
torchrun --nproc_per_node 2 v.py
""",
)

# ---------------------------------------- pack sequences

works(
    "pack sequences",
    """\
from mds import StreamingDataset, Packing
total = sum(len(s["tokens"]) for s in StreamingDataset(local="tokens"))
ds = StreamingDataset(local="tokens", batch_size=4, packing=Packing(128))
packs = [s["tokens"] for s in ds]
assert len(packs) < 200 and all(len(p) <= 128 for p in packs)
assert sum(map(len, packs)) == total
""",
)
told(
    "pack sequences",
    """\
from mds import StreamingDataset, Packing
ds = StreamingDataset(local="tokens", batch_size=4, packing=Packing(max_length=128))
assert all(len(s["tokens"]) <= 128 for s in ds)
print(sum(1 for _ in ds))
""",
    "Packing(128)",
    ("Packing(max_length=128)", "Packing(128)"),
)
told(
    "pack sequences",
    """\
from mds import StreamingDataset, Packing
ds = StreamingDataset(local="tokens", batch_size=4, packing=Packing(column="tokens", seq_length=128))
n = [len(s["tokens"]) for s in ds]
assert max(n) <= 128 and len(n) < 200
""",
    "Packing(128)",
    ('Packing(column="tokens", seq_length=128)', 'Packing(128, column="tokens")'),
)
told(
    "pack sequences",
    """\
from mds import StreamingDataset
ds = StreamingDataset("tokens").pack(128)
n = [len(s["tokens"]) for s in ds]
assert max(n) <= 128 and len(n) < 200
""",
    "Write StreamingDataset(..., packing=8192).",
    ('StreamingDataset("tokens").pack(128)', 'StreamingDataset("tokens", packing=128)'),
)
told(
    "pack sequences",
    """\
from mds import StreamingDataset
ds = StreamingDataset("tokens").pack(max_length=256, column="tokens")
assert all(len(s["tokens"]) <= 256 for s in ds)
print(len(list(ds)))
""",
    "Write StreamingDataset(..., packing=8192).",
    (
        'StreamingDataset("tokens").pack(max_length=256, column="tokens")',
        'StreamingDataset("tokens", packing=256)',
    ),
)
told(
    "pack sequences",
    """\
from mds import StreamingDataset, StreamingDataLoader, Packing
ds = StreamingDataset(local="tokens", batch_size=2)
dl = StreamingDataLoader(ds, batch_size=2, packing=Packing(seq_len=128))
b = next(iter(dl))
assert b["tokens"].shape == (2, 128)
""",
    "Packing(128)",
    (
        "",
        """\
from mds import StreamingDataset, StreamingDataLoader, Packing
ds = StreamingDataset(local="tokens", batch_size=2, packing=Packing(128, layout='dense'))
dl = StreamingDataLoader(ds, batch_size=2)
b = next(iter(dl))
assert b["tokens"].shape == (2, 128)
""",
    ),
)
told(
    "pack sequences",
    """\
from mds import StreamingDataset, StreamingDataLoader, Packing
ds = StreamingDataset(local="tokens", batch_size=4, packing=Packing(seq_len=128, pad_id=0))
b = next(iter(StreamingDataLoader(ds, batch_size=4)))
assert b["tokens"].shape == (4, 128)
""",
    "Packing(128)",
    ("Packing(seq_len=128, pad_id=0)", "Packing(128, layout='dense')"),
)
told(
    "pack sequences",
    """\
from mds import StreamingDataset, TokensLoader
ds = StreamingDataset("tokens", item_loader=TokensLoader(block_size=64))
assert len(next(iter(ds))) == 64
""",
    "Write mds.StreamingDataset(..., packing=8192): each pack is a dict with its 'tokens'.",
    (
        "",
        """\
from mds import StreamingDataset
ds = StreamingDataset("tokens", packing=64)
assert 0 < len(next(iter(ds))["tokens"]) <= 64
""",
    ),
)
told(
    "pack sequences",
    """\
from mds import StreamingDataset, Packing
ds = StreamingDataset(local="tokens", batch_size=4, packing=Packing(max_length=128, strategy="bfd"))
assert all(len(s["tokens"]) <= 128 for s in ds)
print(len(list(ds)))
""",
    "Packing(128)",
    (
        "",
        """\
from mds import StreamingDataset, StreamingDataLoader, Packing
ds = StreamingDataset(local="tokens", batch_size=4, packing=Packing(128, packer='greedy'))
batches = list(StreamingDataLoader(ds))
assert all(len(b["tokens"]) <= 4 * 128 for b in batches)
""",
    ),
)
works(
    "pack sequences",
    """\
from mds import StreamingDataset, Packing
ds = StreamingDataset(local="tokens", batch_size=4, packing=Packing(128))
s = next(iter(ds))
assert len(s["position_ids"]) == len(s["tokens"]) and s["position_ids"][0] == 0
""",
)
works(
    "pack sequences",
    """\
from mds import StreamingDataset, Packing
ds = StreamingDataset(local="tokens", batch_size=4, packing=Packing(128))
s = next(iter(ds))
assert s["cu_seqlens"][0] == 0 and s["cu_seqlens"][-1] <= 128
""",
)
told(
    "pack sequences",
    """\
from mds import StreamingDataset
ds = StreamingDataset(local="tokens", batch_size=4, packing=True, max_seq_length=128)
assert all(len(s["tokens"]) <= 128 for s in ds)
print(len(list(ds)))
""",
    "Write packing=128, the number of tokens of a pack.",
    ("packing=True, max_seq_length=128", "packing=128"),
)
told(
    "pack sequences",
    """\
from mds import StreamingDataset, Packing
ds = StreamingDataset(local="tokens", batch_size=4, packing=Packing(seq_len=64, eos_id=1, split=True))
rows = [s["tokens"] for s in ds]
assert all(len(r) == 64 for r in rows[:-1])
""",
    "Packing(64)",
    ("Packing(seq_len=64, eos_id=1, split=True)", "Packing(64, separator=1, packer='concat')"),
)
told(
    "pack sequences",
    """\
from mds import StreamingDataset
def group(b):
    flat = np.concatenate(b["tokens"]); n = len(flat) // 64
    return {"tokens": list(flat[:n * 64].reshape(n, 64))}
ds = StreamingDataset(local="tokens").map_batches(group, batch_size=50)
rows = list(ds)
assert rows and all(len(r["tokens"]) == 64 for r in rows)
""",
    "Write StreamingDataLoader(dataset.map_batches(function), batch_size=...): the function takes a batch of the loader, as a dict of columns.",
    (
        "",
        """\
from mds import StreamingDataset, StreamingDataLoader
def group(b):
    flat = np.concatenate(b["tokens"]); n = len(flat) // 64
    return {"tokens": list(flat[:n * 64].reshape(n, 64))}
ds = StreamingDataLoader(StreamingDataset(local="tokens").map_batches(group), batch_size=50)
rows = [{"tokens": t} for b in ds for t in b["tokens"]]
assert rows and all(len(r["tokens"]) == 64 for r in rows)
""",
    ),
)
told(
    "pack sequences",
    """\
from mds import StreamingDataset, Packing
packed = Packing(StreamingDataset("tokens"), max_length=128)
n = [len(s["tokens"]) for s in packed]
assert max(n) <= 128 and len(n) < 200
""",
    "Packing(128)",
    (
        "",
        """\
from mds import StreamingDataset, Packing
packed = StreamingDataset("tokens", packing=Packing(128))
n = [len(s["tokens"]) for s in packed]
assert max(n) <= 128 and len(n) < 200
""",
    ),
)
told(
    "pack sequences",
    """\
from mds import StreamingDataset, StreamingDataLoader, Packing
make = lambda: StreamingDataLoader(StreamingDataset(local="tokens", shuffle=True, batch_size=2, packing=Packing(128)), batch_size=2, collate_fn=list)
dl = make(); it = iter(dl); next(it); state = dl.state_dict()
rest = [s["tokens"].tolist() for b in it for s in b]
dl2 = make(); dl2.load_state_dict(state)
assert [s["tokens"].tolist() for b in dl2 for s in b] == rest
""",
    "ples. Move its code into map(), for each document, or map_batches(), for the packed batch.",
    (", collate_fn=list", ""),
    ('[s["tokens"].tolist() for b in it for s in b]', '[b["tokens"].tolist() for b in it]'),
    ('[s["tokens"].tolist() for b in dl2 for s in b]', '[b["tokens"].tolist() for b in dl2]'),
)

# ---------------------------------------- change the mixture at a step

works(
    "change the mixture at a step",
    """\
from mds import StreamingDataset, StreamingDataLoader, Stream, Schedule
A = {s["text"] for s in StreamingDataset(local="a")}
streams = [Stream(local="a"), Stream(local="b")]
ds = StreamingDataset(streams=streams, batch_size=4, schedule=Schedule({0: [1, 0], 5: [0, 1]}))
got = [sum(t in A for t in b["text"]) for b in StreamingDataLoader(ds, batch_size=4)]
assert got[:5] == [4] * 5 and got[5] == 0
""",
)
works(
    "change the mixture at a step",
    """\
from mds import StreamingDataset, StreamingDataLoader, Stream, Schedule
A = {s["text"] for s in StreamingDataset(local="a")}
ds = StreamingDataset(streams=[Stream(local="a"), Stream(local="b")], batch_size=4,
                      schedule=Schedule([(0, [1.0, 0.0]), (5, [0.0, 1.0])]))
got = [sum(t in A for t in b["text"]) for b in StreamingDataLoader(ds, batch_size=4)]
assert got[4] == 4 and got[5] == 0
""",
)
works(
    "change the mixture at a step",
    """\
from mds import StreamingDataset, StreamingDataLoader, Stream, Schedule
A = {s["text"] for s in StreamingDataset(local="a")}
sched = Schedule({0: {"a": 1.0, "b": 0.0}, 5: {"a": 0.0, "b": 1.0}})
ds = StreamingDataset(streams={"a": Stream(local="a"), "b": Stream(local="b")}, schedule=sched, batch_size=4)
got = [sum(t in A for t in b["text"]) for b in StreamingDataLoader(ds, batch_size=4)]
assert got[:6] == [4, 4, 4, 4, 4, 0]
""",
)
told(
    "change the mixture at a step",
    """\
from mds import StreamingDataset, StreamingDataLoader, Stream
A = {s["text"] for s in StreamingDataset(local="a")}
ds = StreamingDataset(streams=[Stream(local="a", name="a"), Stream(local="b", name="b")], batch_size=4,
                      schedule={0: {"a": 1, "b": 0}, 5: {"a": 0, "b": 1}})
got = [sum(t in A for t in b["text"]) for b in StreamingDataLoader(ds, batch_size=4)]
assert got[:6] == [4, 4, 4, 4, 4, 0]
""",
    "StreamingDataset({'a': Stream(...)})",
    (
        'streams=[Stream(local="a", name="a"), Stream(local="b", name="b")]',
        '{"a": Stream(local="a"), "b": Stream(local="b")}',
    ),
)
told(
    "change the mixture at a step",
    """\
from mds import StreamingDataset, StreamingDataLoader, Stream, Schedule
A = {s["text"] for s in StreamingDataset(local="a")}
sa = Stream(local="a", proportion=Schedule({0: 1.0, 5: 0.0}))
sb = Stream(local="b", proportion=Schedule({0: 0.0, 5: 1.0}))
ds = StreamingDataset(streams=[sa, sb], batch_size=4)
got = [sum(t in A for t in b["text"]) for b in StreamingDataLoader(ds, batch_size=4)]
assert got[4] == 4 and got[5] == 0
""",
    "StreamingDataset({'web': Stream(...), 'math': Stream(...)})",
    (
        "",
        """\
from mds import StreamingDataset, StreamingDataLoader, Stream
A = {s["text"] for s in StreamingDataset(local="a")}
streams = [Stream(local="a"), Stream(local="b")]
ds = StreamingDataset(streams=streams, batch_size=4, schedule={0: [1, 0], 5: [0, 1]})
got = [sum(t in A for t in b["text"]) for b in StreamingDataLoader(ds, batch_size=4)]
assert got[:5] == [4] * 5 and got[5] == 0
""",
    ),
)
told(
    "change the mixture at a step",
    """\
from mds import StreamingDataset, StreamingDataLoader, Stream, Schedule
A = {s["text"] for s in StreamingDataset(local="a")}
ds = StreamingDataset(streams=[Stream(local="a"), Stream(local="b")], batch_size=4,
                      schedule=Schedule(steps=[0, 5], proportions=[[1, 0], [0, 1]]))
got = [sum(t in A for t in b["text"]) for b in StreamingDataLoader(ds, batch_size=4)]
assert got[4] == 4 and got[5] == 0
""",
    "Schedule({0: {'web': 0.9, 'math': 0.1}, 1000: {'web': 0.5, 'math': 0.5}})",
    (
        "",
        """\
from mds import StreamingDataset, StreamingDataLoader, Stream
A = {s["text"] for s in StreamingDataset(local="a")}
ds = StreamingDataset({"a": Stream("a"), "b": Stream("b")}, batch_size=4,
                      schedule={0: {"a": 1, "b": 0}, 5: {"a": 0, "b": 1}})
got = [sum(t in A for t in b["text"]) for b in StreamingDataLoader(ds, batch_size=4)]
assert got[4] == 4 and got[5] == 0
""",
    ),
)
told(
    "change the mixture at a step",
    """\
from mds import StreamingDataset, StreamingDataLoader, Stream, Schedule
A = {s["text"] for s in StreamingDataset(local="a")}
sched = Schedule(boundaries=[5], weights=[{"a": 1, "b": 0}, {"a": 0, "b": 1}])
ds = StreamingDataset(streams=[Stream(local="a", name="a"), Stream(local="b", name="b")], batch_size=4, schedule=sched)
got = [sum(t in A for t in b["text"]) for b in StreamingDataLoader(ds, batch_size=4)]
assert got[4] == 4 and got[5] == 0
""",
    "Schedule({0: {'web': 0.9, 'math': 0.1}, 1000: {'web': 0.5, 'math': 0.5}})",
    (
        "",
        """\
from mds import StreamingDataset, StreamingDataLoader, Stream
A = {s["text"] for s in StreamingDataset(local="a")}
ds = StreamingDataset({"a": Stream("a"), "b": Stream("b")}, batch_size=4,
                      schedule={0: {"a": 1, "b": 0}, 5: {"a": 0, "b": 1}})
got = [sum(t in A for t in b["text"]) for b in StreamingDataLoader(ds, batch_size=4)]
assert got[4] == 4 and got[5] == 0
""",
    ),
)
told(
    "change the mixture at a step",
    """\
from mds import StreamingDataset, Stream
A = {s["text"] for s in StreamingDataset(local="a")}
ds = StreamingDataset(streams=[Stream(local="a", proportion=0.5), Stream(local="b", proportion=0.5)], batch_size=4)
list(ds)
ds.set_weights([0.9, 0.1])
rows = list(ds)
assert 0.85 <= sum(s["text"] in A for s in rows) / len(rows) <= 0.95
""",
    "Write dataset.edits.set_weights([0.9, 0.1]) for a dataset with a schedule such as schedule={0: [0.5, 0.5]}.",
    (
        'Stream(local="a", proportion=0.5), Stream(local="b", proportion=0.5)',
        'Stream(local="a"), Stream(local="b")',
    ),
    ("batch_size=4)", "batch_size=4, schedule={0: [0.5, 0.5]})"),
    ("ds.set_weights", "ds.edits.set_weights"),
)
told(
    "change the mixture at a step",
    """\
from mds import StreamingDataset, StreamingDataLoader, Stream
ds = StreamingDataset(streams=[Stream(local="a", proportion=1), Stream(local="b", proportion=1)], batch_size=4)
dl = StreamingDataLoader(ds, batch_size=4)
for step, batch in enumerate(dl):
    if step == 5: ds.set_proportions([0.2, 0.8])
assert step >= 5
print(ds.proportions)
""",
    "Write dataset.edits.set_weights([0.9, 0.1]) for a dataset with a schedule such as schedule={0: [0.5, 0.5]}.",
    (
        "",
        """\
from mds import StreamingDataset, StreamingDataLoader, Stream
ds = StreamingDataset(streams=[Stream(local="a"), Stream(local="b")], batch_size=4, schedule={0: [0.5, 0.5]})
dl = StreamingDataLoader(ds, batch_size=4)
for step, batch in enumerate(dl):
    if step == 5: ds.edits.set_weights([0.2, 0.8])
assert step >= 5
print([stream.proportion for stream in ds.streams])
""",
    ),
)
refused(
    "change the mixture at a step",
    """\
from mds import Schedule
s = Schedule({0: {"a": 0.9, "b": 0.1}, 100: {"a": 0.5, "b": 0.5}})
assert s.at(0) == {"a": 0.9, "b": 0.1}
assert s.at(99) == s.at(0) and s.at(100) == {"a": 0.5, "b": 0.5}
""",
    "has no attribute 'at'",
)
refused(
    "change the mixture at a step",
    """\
from mds import Schedule
s = Schedule([(0, {"a": 1.0, "b": 0.0}), (100, {"a": 0.0, "b": 1.0})])
assert s(0)["a"] == 1.0
assert s(150)["b"] == 1.0
""",
    "TypeError: 'Schedule' object is not callable",
)
told(
    "change the mixture at a step",
    """\
from mds import StreamingDataset, StreamingDataLoader, Stream, Schedule
A = {s["text"] for s in StreamingDataset(local="a")}
sched = Schedule({0: [1, 0], 14: [0, 1]}, interpolation="linear")
ds = StreamingDataset(streams=[Stream(local="a"), Stream(local="b")], batch_size=8, schedule=sched)
got = [sum(t in A for t in b["text"]) for b in StreamingDataLoader(ds, batch_size=8)]
assert got[0] > got[-1]
""",
    "between='linear'",
    (
        "",
        """\
from mds import StreamingDataset, StreamingDataLoader, Stream, Schedule
A = {s["text"] for s in StreamingDataset(local="a")}
sched = Schedule({0: {"a": 1, "b": 0}, 14: {"a": 0, "b": 1}}, between="linear")
ds = StreamingDataset({"a": Stream("a"), "b": Stream("b")}, batch_size=8, schedule=sched)
got = [sum(t in A for t in b["text"]) for b in StreamingDataLoader(ds, batch_size=8)]
assert got[0] > got[-1]
""",
    ),
)
works(
    "change the mixture at a step",
    """\
from mds import StreamingDataset, StreamingDataLoader, Stream, Schedule
make = lambda: StreamingDataLoader(StreamingDataset(streams=[Stream(local="a"), Stream(local="b")], batch_size=4, shuffle=True,
                                   schedule=Schedule({0: [1, 0], 5: [0, 1]})), batch_size=4)
dl = make(); it = iter(dl); [next(it) for _ in range(3)]; state = dl.state_dict()
rest = [b["text"] for b in it]
dl2 = make(); dl2.load_state_dict(state)
assert [list(t) for t in rest] == [list(b["text"]) for b in dl2]
""",
)
told(
    "change the mixture at a step",
    """\
from mds import StreamingDataset, StreamingDataLoader, Schedule
A = {s["text"] for s in StreamingDataset("a")}
ds = mds.mix([StreamingDataset("a"), StreamingDataset("b")], weights=Schedule({0: [1, 0], 5: [0, 1]}))
got = [sum(t in A for t in b["text"]) for b in StreamingDataLoader(ds, batch_size=4)]
assert got[4] == 4 and got[5] == 0
""",
    "Write mds.StreamingDataset([mds.Stream('a', proportion=0.7), mds.Stream('b', proportion=0.3)], shuffle=True).",
    (
        "",
        """\
from mds import StreamingDataset, StreamingDataLoader, Schedule
A = {s["text"] for s in StreamingDataset("a")}
ds = mds.StreamingDataset([mds.Stream("a"), mds.Stream("b")], batch_size=4, schedule={0: [1, 0], 5: [0, 1]})
got = [sum(t in A for t in b["text"]) for b in StreamingDataLoader(ds, batch_size=4)]
assert got[4] == 4 and got[5] == 0
""",
    ),
)
works(
    "change the mixture at a step",
    """\
from mds import StreamingDataset, StreamingDataLoader, Stream, Schedule
A = {s["text"] for s in StreamingDataset(local="a")}
ds = StreamingDataset(streams=[Stream(local="a"), Stream(local="b")], batch_size=4,
                      schedule=Schedule({"0ba": [1, 0], "5ba": [0, 1]}))
got = [sum(t in A for t in b["text"]) for b in StreamingDataLoader(ds, batch_size=4)]
assert got[4] == 4 and got[5] == 0
""",
)
told(
    "change the mixture at a step",
    """\
from mds import StreamingDataset, StreamingDataLoader, Stream
A = {s["text"] for s in StreamingDataset(local="a")}
ds = StreamingDataset(streams=[Stream(local="a"), Stream(local="b")], batch_size=4,
                      schedule=lambda step: [1, 0] if step < 5 else [0, 1])
got = [sum(t in A for t in b["text"]) for b in StreamingDataLoader(ds, batch_size=4)]
assert got[4] == 4 and got[5] == 0
""",
    "{0: {'web': 0.9, 'math': 0.1}}",
    (
        "",
        """\
from mds import StreamingDataset, StreamingDataLoader, Stream
A = {s["text"] for s in StreamingDataset(local="a")}
ds = StreamingDataset({"a": Stream("a"), "b": Stream("b")}, batch_size=4,
                      schedule={0: {"a": 1, "b": 0}, 5: {"a": 0, "b": 1}})
got = [sum(t in A for t in b["text"]) for b in StreamingDataLoader(ds, batch_size=4)]
assert got[4] == 4 and got[5] == 0
""",
    ),
)

# ---------------------------------------- inspect a dataset and a sample

works(
    "inspect a dataset and a sample",
    """\
$ mds info data/train
mds info pictures
""",
)
told(
    "inspect a dataset and a sample",
    """\
$ mds inspect data/train
mds inspect pictures
""",
    "mds info data/train",
    ("inspect", "info"),
)
works(
    "inspect a dataset and a sample",
    """\
$ mds head data/train -n 3
mds head docs.jsonl -n 2
""",
)
told(
    "inspect a dataset and a sample",
    """\
$ mds show data/train 7
mds show data/train 119
""",
    "mds head data/train",
    (
        "mds show data/train 7\nmds show data/train 119",
        "python -c \"import mds; print(mds.StreamingDataset('data/train')[7])\"\npython -c \"import mds; print(mds.StreamingDataset('data/train')[119])\"",
    ),
)
works(
    "inspect a dataset and a sample",
    """\
from mds import StreamingDataset
ds = StreamingDataset(local="data/train")
print(ds[0])
assert isinstance(ds[0]["text"], str) and ds[-1]["id"] == ds[119]["id"]
""",
)
told(
    "inspect a dataset and a sample",
    """\
from mds import StreamingDataset
ds = StreamingDataset(local="data/train")
assert set(ds.column_names) == {"id", "text", "label"}
assert ds.num_rows == 120
""",
    "dataset.columns",
    ("ds.column_names", "ds.columns"),
    ("ds.num_rows", "ds.num_samples"),
)
told(
    "inspect a dataset and a sample",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train")
print(ds.features)
assert set(ds.features) == {"id", "text", "label"}
""",
    "dataset.schema",
    ("ds.features", "ds.schema"),
)
works(
    "inspect a dataset and a sample",
    """\
from mds import StreamingDataset
ds = StreamingDataset("pictures")
print(ds.schema)
assert dict(ds.schema) == {"image": "jpeg", "label": "int"}
""",
)
works(
    "inspect a dataset and a sample",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train")
assert set(ds.columns) == {"id", "text", "label"}
print(ds)
""",
)
told(
    "inspect a dataset and a sample",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train")
rows = list(ds.head(5))
assert len(rows) == 5 and rows[0]["id"] == ds[0]["id"]
""",
    "dataset.limit(n)",
    ("ds.head(5)", "ds.limit(5)"),
)
told(
    "inspect a dataset and a sample",
    """\
from mds import StreamingDataset
df = StreamingDataset("data/train").to_pandas()
print(df.describe())
assert df.shape == (120, 3)
""",
    "pandas.DataFrame(list(dataset))",
    ("from mds", "import pandas\nfrom mds"),
    (
        'StreamingDataset("data/train").to_pandas()',
        'pandas.DataFrame(list(StreamingDataset("data/train")))',
    ),
)
works(
    "inspect a dataset and a sample",
    """\
from mds import LocalDataset
ds = LocalDataset("data/train")
part = ds[10:13]
print(part)
assert [s["id"] for s in part] == [ds[i]["id"] for i in (10, 11, 12)]
""",
)
works(
    "inspect a dataset and a sample",
    """\
ds = mds.StreamingDataset("data/train")
text = repr(ds)
print(text)
assert "120" in text and "label" in text
""",
)
told(
    "inspect a dataset and a sample",
    """\
info = mds.info("data/train")
print(info)
assert "120" in str(info) and "label" in str(info)
""",
    "Write dataset.num_samples and dataset.schema, or print(dataset.explain()), of mds.StreamingDataset(path).",
    (
        'info = mds.info("data/train")',
        'dataset = mds.StreamingDataset("data/train")\ninfo = dataset.num_samples, dataset.schema',
    ),
)
works(
    "inspect a dataset and a sample",
    """\
from mds import StreamingDataset
ds = StreamingDataset(local="data/train")
print(len(ds.shards), ds.num_samples)
assert sum(s.samples for s in ds.shards) == 120 == ds.size
""",
)
works(
    "inspect a dataset and a sample",
    """\
from mds import LocalDataset
ds = LocalDataset(local="pictures")
s = ds.get_item(0)
assert isinstance(s["image"], Image.Image) and isinstance(s["label"], int)
""",
)

# ---------------------------------------- find out why it is slow

told(
    "find out why it is slow",
    """\
$ mds bench data/train
mds bench data/train --batch-size 8 --workers 2
""",
    "print(loader.report())",
    (
        "",
        """\
$ python -c "import mds; loader = mds.StreamingDataLoader(mds.StreamingDataset('data/train'), batch_size=8); list(loader); print(loader.report())"
""",
    ),
)
told(
    "find out why it is slow",
    """\
$ mds profile data/train
mds profile pictures --num-workers 2
""",
    "print(loader.report())",
    (
        "",
        """\
$ python -c "import mds; loader = mds.StreamingDataLoader(mds.StreamingDataset('data/train'), batch_size=8); list(loader); print(loader.report())"
""",
    ),
)
told(
    "find out why it is slow",
    """\
$ mds doctor data/train
mds doctor pictures
""",
    "print(loader.report())",
    (
        "",
        """\
$ python -c "import mds; loader = mds.StreamingDataLoader(mds.StreamingDataset('data/train'), batch_size=8); list(loader); print(loader.report())"
""",
    ),
)
told(
    "find out why it is slow",
    """\
from mds import StreamingDataset, StreamingDataLoader
dl = StreamingDataLoader(StreamingDataset(local="data/train", batch_size=8), batch_size=8)
for b in dl: model(b)
stats = dl.stats()
print(stats)
assert stats
""",
    "loader.report()",
    ("dl.stats()", "dl.report()"),
)
works(
    "find out why it is slow",
    """\
from mds import StreamingDataset, StreamingDataLoader
dl = StreamingDataLoader(StreamingDataset(local="data/train", batch_size=8), batch_size=8)
for b in dl: model(b)
text = str(dl.report())
print(text)
assert len(text) > 20
""",
)
told(
    "find out why it is slow",
    """\
from mds import StreamingDataset, StreamingDataLoader
dl = StreamingDataLoader(StreamingDataset(local="data/train", batch_size=8), batch_size=8)
for b in dl: model(b)
text = str(dl.explain())
print(text)
assert len(text) > 20
""",
    "loader.report()",
    ("dl.explain()", "dl.report()"),
)
told(
    "find out why it is slow",
    """\
from mds import StreamingDataset
p = StreamingDataset("data/train").profile()
print(p)
assert p is not None and str(p)
""",
    "print(loader.report())",
    ("import StreamingDataset", "import StreamingDataset, StreamingDataLoader"),
    (
        'p = StreamingDataset("data/train").profile()',
        'loader = StreamingDataLoader(StreamingDataset("data/train"), batch_size=8)\nfor _ in loader: pass\np = loader.report()',
    ),
)
told(
    "find out why it is slow",
    """\
from mds import StreamingDataset, StreamingDataLoader
dl = StreamingDataLoader(StreamingDataset("data/train"), batch_size=8, profile_batches=5)
for b in dl: model(b)
assert len(dl) == 15
print("profiled")
""",
    "print(loader.report())",
    (", profile_batches=5", ""),
    ('print("profiled")', "print(dl.report())"),
)
told(
    "find out why it is slow",
    """\
from mds import StreamingDataset, StreamingDataLoader
dl = StreamingDataLoader(StreamingDataset(local="data/train", batch_size=8), batch_size=8, num_workers=2)
with mds.profile(dl) as prof:
    for b in dl: model(b)
print(prof)
assert str(prof)
""",
    "print(loader.report())",
    (
        "with mds.profile(dl) as prof:\n    for b in dl: model(b)",
        "for b in dl: model(b)\nprof = dl.report()",
    ),
)
told(
    "find out why it is slow",
    """\
from mds import StreamingDataset, StreamingDataLoader
dl = StreamingDataLoader(StreamingDataset(local="data/train", batch_size=8), batch_size=8)
report = mds.profile(dl)
print(report)
assert "sec" in str(report) or "ms" in str(report) or "%" in str(report)
""",
    "print(loader.report())",
    ("report = mds.profile(dl)", "for b in dl: model(b)\nreport = dl.report()"),
)
told(
    "find out why it is slow",
    """\
from mds import StreamingDataset, StreamingDataLoader
dl = StreamingDataLoader(StreamingDataset(local="data/train", batch_size=8), batch_size=8)
for b in dl: model(b)
d = dl.diagnose()
print(d)
assert d is not None
""",
    "print(loader.report())",
    ("dl.diagnose()", "dl.report()"),
)
works(
    "find out why it is slow",
    """\
ds = mds.StreamingDataset("data/train")
for s in ds: pass
print(ds.stats())
assert ds.stats()
""",
)
works(
    "find out why it is slow",
    """\
import logging
logging.basicConfig(level=logging.INFO)
logging.getLogger("mds").setLevel(logging.DEBUG)
ds = mds.StreamingDataset(remote="data/train", local=out, batch_size=8)
assert len(list(ds)) == 120
""",
)
told(
    "find out why it is slow",
    """\
from mds import StreamingDataset, StreamingDataLoader
dl = StreamingDataLoader(StreamingDataset(local="data/train", batch_size=8), batch_size=8, profile=True)
for b in dl: model(b)
print(dl.profile)
assert dl.profile
""",
    "print(loader.report())",
    (", profile=True", ""),
    ("dl.profile", "dl.report()"),
)
refused(
    "find out why it is slow",
    """\
from mds import StreamingDataset, StreamingDataLoader
dl = StreamingDataLoader(StreamingDataset(local="data/train", batch_size=8), batch_size=8)
for b in dl: model(b)
rate = dl.stats()["samples_per_second"]
assert rate > 0
""",
    "loader.dataset.stats()",
)
told(
    "find out why it is slow",
    """\
from mds import StreamingDataset, StreamingDataLoader
dl = StreamingDataLoader(StreamingDataset(remote="data/train", local=out, batch_size=8), batch_size=8)
for b in dl: model(b)
text = str(dl.why_slow())
print(text)
assert text
""",
    "print(loader.report())",
    ("dl.why_slow()", "dl.report()"),
)

# ---------------------------------------- look up the samples of a step

told(
    "look up the samples of a step",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="data/train", shuffle=True, shuffle_seed=5, batch_size=8)
dl = StreamingDataLoader(ds, batch_size=8)
batches = [b["id"].tolist() for b in dl]
idx = dl.samples_at(3)
assert [ds[i]["id"] for i in idx] == batches[3]
""",
    "mds.RunHistory(loader.state_dict()).step(step)",
    ("dl.samples_at(3)", "[row.sample for row in mds.RunHistory(dl.state_dict()).step(3)]"),
)
told(
    "look up the samples of a step",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="data/train", shuffle=True, shuffle_seed=5, batch_size=8)
batches = [b["id"].tolist() for b in StreamingDataLoader(ds, batch_size=8)]
idx = ds.samples_at(step=3, epoch=0)
assert [ds[i]["id"] for i in idx] == batches[3]
""",
    "mds.RunHistory(loader.state_dict()).step(step)",
    (
        'batches = [b["id"].tolist() for b in StreamingDataLoader(ds, batch_size=8)]',
        'dl = StreamingDataLoader(ds, batch_size=8)\nbatches = [b["id"].tolist() for b in dl]',
    ),
    (
        "ds.samples_at(step=3, epoch=0)",
        "[row.sample for row in mds.RunHistory(dl.state_dict()).step(3)]",
    ),
)
told(
    "look up the samples of a step",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="data/train", shuffle=True, batch_size=8)
first = next(iter(StreamingDataLoader(ds, batch_size=8)))["id"].tolist()
ids = ds.sample_ids(step=0)
assert [ds[i]["id"] for i in ids] == first
""",
    "mds.RunHistory(loader.state_dict()).step(step)",
    (
        'first = next(iter(StreamingDataLoader(ds, batch_size=8)))["id"].tolist()',
        'dl = StreamingDataLoader(ds, batch_size=8)\nfirst = next(iter(dl))["id"].tolist()',
    ),
    ("ds.sample_ids(step=0)", "[row.sample for row in mds.RunHistory(dl.state_dict()).step(0)]"),
)
told(
    "look up the samples of a step",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="data/train", shuffle=True, batch_size=8)
dl = StreamingDataLoader(ds, batch_size=8)
batches = [b["id"].tolist() for b in dl]
assert [ds[i]["id"] for i in dl.lookup(7)] == batches[7]
""",
    "mds.RunHistory(loader.state_dict()).step(step)",
    ("dl.lookup(7)", "[row.sample for row in mds.RunHistory(dl.state_dict()).step(7)]"),
)
told(
    "look up the samples of a step",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="data/train", shuffle=True, batch_size=8)
dl = StreamingDataLoader(ds, batch_size=8)
batches = [b["id"].tolist() for b in dl]
assert dl.get_batch(4)["id"].tolist() == batches[4]
""",
    "mds.RunHistory(loader.state_dict()).step(step)",
    (
        'dl.get_batch(4)["id"].tolist()',
        '[ds[row.sample]["id"] for row in mds.RunHistory(dl.state_dict()).step(4)]',
    ),
)
told(
    "look up the samples of a step",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="data/train", shuffle=True, batch_size=8)
batches = [b["id"].tolist() for b in StreamingDataLoader(ds, batch_size=8)]
assert [s["id"] for s in ds.samples_of_step(2)] == batches[2]
""",
    "mds.RunHistory(loader.state_dict()).step(step)",
    (
        'batches = [b["id"].tolist() for b in StreamingDataLoader(ds, batch_size=8)]',
        'dl = StreamingDataLoader(ds, batch_size=8)\nbatches = [b["id"].tolist() for b in dl]',
    ),
    (
        '[s["id"] for s in ds.samples_of_step(2)]',
        '[ds[row.sample]["id"] for row in mds.RunHistory(dl.state_dict()).step(2)]',
    ),
)
refused(
    "look up the samples of a step",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="data/train", shuffle=True, batch_size=8)
b = next(iter(StreamingDataLoader(ds, batch_size=8)))
assert len(set(b["__key__"])) == 8
""",
    "KeyError: '__key__'",
)
told(
    "look up the samples of a step",
    """\
from mds import StreamingDataset, StreamingDataLoader
raw = StreamingDataset(local="data/train", shuffle=True, batch_size=8)
ds = raw.map(lambda s, i: {**s, "index": i}, with_indices=True)
b = next(iter(StreamingDataLoader(ds, batch_size=8)))
assert [raw[i]["id"] for i in b["index"].tolist()] == b["id"].tolist()
""",
    "Store its number as a column",
    (
        "",
        """\
from mds import StreamingDataset, StreamingDataLoader
raw = StreamingDataset(local="data/train")
mds.convert(({**sample, "index": i} for i, sample in enumerate(raw)), out)
ds = StreamingDataset(out, shuffle=True, batch_size=8)
b = next(iter(StreamingDataLoader(ds, batch_size=8)))
assert [raw[i]["id"] for i in b["index"].tolist()] == b["id"].tolist()
""",
    ),
)
refused(
    "look up the samples of a step",
    """\
$ mds lookup data/train --step 3 --batch-size 8 --shuffle --seed 5
mds lookup data/train --step 4 --batch-size 8 --shuffle --shuffle-seed 5
""",
    "mds run step STATE STEP",
)
refused(
    "look up the samples of a step",
    """\
$ mds samples data/train --step 0 --batch-size 8
mds samples data/train --step 14 --batch-size 8
""",
    "mds run step STATE STEP",
)
told(
    "look up the samples of a step",
    """\
from mds import StreamingDataset, StreamingDataLoader, Stream
ds = StreamingDataset(streams=[Stream(local="a"), Stream(local="b")], shuffle=True, batch_size=8)
dl = StreamingDataLoader(ds, batch_size=8)
texts = [list(b["text"]) for b in dl]
assert [ds[i]["text"] for i in dl.samples_at(2)] == texts[2]
""",
    "mds.RunHistory(loader.state_dict()).step(step)",
    ("dl.samples_at(2)", "[row.sample for row in mds.RunHistory(dl.state_dict()).step(2)]"),
)
told(
    "look up the samples of a step",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="data/train", shuffle=True, shuffle_seed=1, batch_size=8)
ids = [ds[i]["id"] for i in ds.samples_at_step(0)]
assert ids == next(iter(StreamingDataLoader(ds, batch_size=8)))["id"].tolist()
""",
    "mds.RunHistory(loader.state_dict()).step(step)",
    (
        'ids = [ds[i]["id"] for i in ds.samples_at_step(0)]',
        'dl = StreamingDataLoader(ds, batch_size=8)\nids = [ds[row.sample]["id"] for row in mds.RunHistory(dl.state_dict()).step(0)]',
    ),
    ("next(iter(StreamingDataLoader(ds, batch_size=8)))", "next(iter(dl))"),
)
told(
    "look up the samples of a step",
    """\
from mds import StreamingDataset
ds = StreamingDataset(local="data/train", shuffle=True, shuffle_seed=1, batch_size=8)
order = list(ds.order(epoch=0))
assert sorted(order) == list(range(120))
assert [ds[i]["id"] for i in order] == [s["id"] for s in ds]
""",
    "Write [row.sample for row in mds.RunHistory(loader.state_dict()).step(step)] for the numbers of its samples, for each step of an epoch.",
    (
        "list(ds.order(epoch=0))",
        "[row.sample for step in range(15) for row in mds.RunHistory(ds.state_dict()).step(step)]",
    ),
)
told(
    "look up the samples of a step",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="data/train", shuffle=True, batch_size=8)
dl = StreamingDataLoader(ds, batch_size=8)
got = [[ds[i]["id"] for i in dl.samples_at(s)] for s in range(2, 5)]
assert got == [b["id"].tolist() for b in dl][2:5]
""",
    "Write [row.sample for row in mds.RunHistory(loader.state_dict()).step(step)] for the numbers of its samples.",
    ("dl.samples_at(s)", "[row.sample for row in mds.RunHistory(dl.state_dict()).step(s)]"),
)
told(
    "look up the samples of a step",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="data/train", shuffle=True, batch_size=8)
batches = [b["id"].tolist() for b in StreamingDataLoader(ds, batch_size=8)]
step = ds.step_of(17)
assert ds[17]["id"] in batches[step]
""",
    "Write [use.step for use in mds.RunHistory(loader.state_dict()).sample(number)] for the steps that read it.",
    (
        'batches = [b["id"].tolist() for b in StreamingDataLoader(ds, batch_size=8)]',
        'dl = StreamingDataLoader(ds, batch_size=8)\nbatches = [b["id"].tolist() for b in dl]',
    ),
    (
        "step = ds.step_of(17)",
        "(step,) = [use.step for use in mds.RunHistory(dl.state_dict()).sample(17)]",
    ),
)
told(
    "look up the samples of a step",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="data/train", shuffle=True, batch_size=8)
batches = [b["id"].tolist() for b in StreamingDataLoader(ds, batch_size=8)]
idx = mds.samples_at(ds, step=3, batch_size=8)
assert [ds[i]["id"] for i in idx] == batches[3]
""",
    "Write [row.sample for row in mds.RunHistory(loader.state_dict()).step(step)] for the numbers of its samples.",
    (
        'batches = [b["id"].tolist() for b in StreamingDataLoader(ds, batch_size=8)]',
        'dl = StreamingDataLoader(ds, batch_size=8)\nbatches = [b["id"].tolist() for b in dl]',
    ),
    (
        "mds.samples_at(ds, step=3, batch_size=8)",
        "[row.sample for row in mds.RunHistory(dl.state_dict()).step(3)]",
    ),
)

# ---------------------------------------- write NumPy, PIL and torch values

works(
    "write NumPy, PIL and torch values",
    """\
from mds import MDSWriter, LocalDataset
with MDSWriter(out=out, columns={"x": "ndarray", "y": "int"}) as w:
    for i in range(3):
        w.write({"x": np.full((2, 3), i, np.float32), "y": i})
x = LocalDataset(out)[2]["x"]
assert x.dtype == np.float32 and x.shape == (2, 3) and (x == 2).all()
""",
)
works(
    "write NumPy, PIL and torch values",
    """\
from mds import MDSWriter, StreamingDataset
with MDSWriter(out=out, columns={"x": "ndarray:float32:4,4"}, compression="zstd", hashes=["sha1"]) as w:
    for i in range(10): w.write({"x": np.ones((4, 4), dtype="float32") * i})
assert StreamingDataset(local=out)[9]["x"].sum() == 144
""",
)
works(
    "write NumPy, PIL and torch values",
    """\
from mds import MDSWriter, StreamingDataset
im = Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3))
with MDSWriter(out=out, columns={"image": "png", "label": "int"}) as w:
    w.write({"image": im, "label": 1})
back = StreamingDataset(local=out)[0]["image"]
assert np.array_equal(np.asarray(back), np.asarray(im))
""",
)
works(
    "write NumPy, PIL and torch values",
    """\
from mds import MDSWriter, StreamingDataset
im = Image.new("L", (5, 4), 77)
with MDSWriter(out=out, columns={"im": "pil"}, size_limit="1mb") as w:
    w.write({"im": im})
back = StreamingDataset(local=out)[0]["im"]
assert back.mode == "L" and back.size == (5, 4)
""",
)
refused(
    "write NumPy, PIL and torch values",
    """\
from mds import MDSWriter, StreamingDataset
with MDSWriter(out=out, columns={"t": "tensor"}) as w:
    for i in range(4): w.write({"t": torch.full((3,), i, dtype=torch.float32)})
t = StreamingDataset(local=out)[3]["t"]
assert torch.is_tensor(t) and torch.equal(t, torch.full((3,), 3.0))
""",
    "AssertionError:",
)
works(
    "write NumPy, PIL and torch values",
    """\
from mds import MDSWriter, StreamingDataset
with MDSWriter(out=out, columns={"t": "ndarray"}) as w:
    w.write({"t": torch.arange(6).reshape(2, 3)})
t = StreamingDataset(local=out)[0]["t"]
assert np.array_equal(np.asarray(t), np.arange(6).reshape(2, 3))
""",
)
told(
    "write NumPy, PIL and torch values",
    """\
from mds import MDSWriter, StreamingDataset
with MDSWriter(out) as w:
    for i in range(5):
        w.write({"id": i, "vec": np.arange(i, i + 4), "name": f"s{i}", "image": Image.new("RGB", (4, 4))})
s = StreamingDataset(out)[4]
assert s["id"] == 4 and s["vec"].tolist() == [4, 5, 6, 7] and s["name"] == "s4" and s["image"].size == (4, 4)
""",
    "mds.convert(samples, out)",
    (
        'with MDSWriter(out) as w:\n    for i in range(5):\n        w.write({"id": i, "vec": np.arange(i, i + 4), "name": f"s{i}", "image": Image.new("RGB", (4, 4))})',
        'mds.convert([{"id": i, "vec": np.arange(i, i + 4), "name": f"s{i}", "image": Image.new("RGB", (4, 4))} for i in range(5)], out)',
    ),
)
told(
    "write NumPy, PIL and torch values",
    """\
from mds import optimize, StreamingDataset
def fn(i): return {"index": i, "image": np.zeros((4, 4, 3), np.uint8)}
optimize(fn=fn, inputs=list(range(10)), output_dir=out, chunk_bytes="1MB", num_workers=1)
ds = StreamingDataset(out)
assert len(ds) == 10 and ds[3]["image"].shape == (4, 4, 3)
""",
    "mds.convert(map(function, inputs), out, num_workers=...)",
    ("from mds import optimize, StreamingDataset", "from mds import StreamingDataset"),
    (
        'optimize(fn=fn, inputs=list(range(10)), output_dir=out, chunk_bytes="1MB", num_workers=1)',
        "mds.convert(map(fn, range(10)), out, num_workers=1)",
    ),
)
told(
    "write NumPy, PIL and torch values",
    """\
samples = ({"id": i, "x": np.random.rand(8).astype("float32")} for i in range(10))
mds.write(out, samples)
assert len(mds.StreamingDataset(local=out)) == 10
""",
    "Write mds.convert(samples, out)",
    ("mds.write(out, samples)", "mds.convert(samples, out)"),
)
told(
    "write NumPy, PIL and torch values",
    """\
samples = [{"x": torch.randn(3), "y": i} for i in range(6)]
mds.write(samples, out, columns={"x": "ndarray:float32", "y": "int"})
assert [s["y"] for s in mds.StreamingDataset(local=out)] == list(range(6))
""",
    "Write mds.convert(samples, out)",
    ("mds.write(samples, out, columns=", "mds.convert(samples, out, encodings="),
)
works(
    "write NumPy, PIL and torch values",
    """\
from mds import MDSWriter, StreamingDataset
with MDSWriter(out=out, columns={"i": "int", "f": "float32"}) as w:
    for v in np.arange(5): w.write({"i": v, "f": np.float32(v) / 2})
s = StreamingDataset(local=out)[4]
assert s["i"] == 4 and s["f"] == 2.0
""",
)
told(
    "write NumPy, PIL and torch values",
    """\
ds = mds.from_dict({"x": np.arange(12).reshape(4, 3), "y": [0, 1, 2, 3]})
ds.save_to_disk(out)
s = mds.StreamingDataset(local=out)[3]
assert s["y"] == 3 and list(s["x"]) == [9, 10, 11]
""",
    "Write mds.convert(({'x': x, 'y': y} for x, y in zip(xs, ys)), out), with a dict for each sample.",
    (
        'mds.from_dict({"x": np.arange(12).reshape(4, 3), "y": [0, 1, 2, 3]})',
        '({"x": x, "y": y} for x, y in zip(np.arange(12).reshape(4, 3), [0, 1, 2, 3]))',
    ),
    ("ds.save_to_disk(out)", "mds.convert(ds, out)"),
)
works(
    "write NumPy, PIL and torch values",
    """\
from mds import MDSWriter, StreamingDataset
sink = MDSWriter(out=out, columns={"image": "jpeg", "meta": "json", "raw": "bytes"})
sink.write({"image": Image.new("RGB", (16, 16), "red"), "meta": {"cls": 1}, "raw": b"abc"})
sink.finish()
s = StreamingDataset(local=out)[0]
assert s["image"].size == (16, 16) and s["meta"] == {"cls": 1} and s["raw"] == b"abc"
""",
)
told(
    "write NumPy, PIL and torch values",
    """\
from mds import MDSWriter, StreamingDataset
w = MDSWriter(out=out, columns={"x": "ndarray:uint8"})
w.write({"x": np.arange(10, dtype=np.uint8)})
w.close()
assert StreamingDataset(local=out)[0]["x"].tolist() == list(range(10))
""",
    "Write writer.finish()",
    ("w.close()", "w.finish()"),
)
works(
    "write NumPy, PIL and torch values",
    """\
from mds import MDSWriter, StreamingDataset
with MDSWriter(out=out, columns={"id": int, "text": str, "x": np.ndarray, "image": Image.Image}) as w:
    w.write({"id": 1, "text": "hi", "x": np.ones(3), "image": Image.new("RGB", (2, 2))})
s = StreamingDataset(local=out)[0]
assert s["id"] == 1 and s["text"] == "hi" and s["x"].sum() == 3 and s["image"].size == (2, 2)
""",
)
works(
    "write NumPy, PIL and torch values",
    """\
from mds import MDSWriter, StreamingDataset
t = torch.tensor([1.5, -2.0, 3.0], dtype=torch.bfloat16)
with MDSWriter(out=out, columns={"t": "tensor"}) as w:
    w.write({"t": t})
back = StreamingDataset(local=out)[0]["t"]
assert back.dtype == torch.bfloat16 and torch.equal(back, t)
""",
)

# ---------------------------------------- convert in parallel

told(
    "convert in parallel",
    """\
$ mds-convert docs.jsonl out --workers 4
python -c 'import mds; assert len(mds.StreamingDataset(local="out")) == 50'
""",
    "Write --num-workers.",
    ("--workers", "--num-workers"),
)
works(
    "convert in parallel",
    """\
$ mds convert docs.parquet out --num-workers 4
python -c 'import mds; assert len(mds.StreamingDataset(local="out")) == 50'
""",
)
works(
    "convert in parallel",
    """\
$ mds-convert docs.csv out -j 4
python -c 'import mds; assert len(mds.StreamingDataset(local="out")) == 50'
""",
)
told(
    "convert in parallel",
    """\
$ mds-convert docs.jsonl out --num-proc 4
python -c 'import mds; assert len(mds.StreamingDataset(local="out")) == 50'
""",
    "Write --num-workers.",
    ("--num-proc", "--num-workers"),
)
works(
    "convert in parallel",
    """\
mds.convert("docs.jsonl", out, num_workers=4)
ds = mds.StreamingDataset(local=out)
assert len(ds) == 50 and set(ds[0]) == {"text", "label"}
""",
)
told(
    "convert in parallel",
    """\
mds.convert("docs.parquet", out, workers=2)
ds = mds.StreamingDataset(local=out)
src = mds.StreamingDataset("docs.parquet", format="parquet")
assert [s["id"] for s in ds] == [s["id"] for s in src]
""",
    "Write num_workers=2.",
    ("workers=2", "num_workers=2"),
)
told(
    "convert in parallel",
    """\
mds.convert("docs.csv", out, num_proc=2, format="csv")
assert len(mds.StreamingDataset(local=out)) == 50
""",
    "Write num_workers=2.",
    ("num_proc=2", "num_workers=2"),
)
told(
    "convert in parallel",
    """\
def load(path):
    return {"text": open(path).read(), "path": path}
import glob
mds.optimize(fn=load, inputs=sorted(glob.glob("texts/*.txt")), output_dir=out, num_workers=2)
assert len(mds.StreamingDataset(local=out)) == 6
""",
    "mds.convert(map(function, inputs), out, num_workers=...)",
    (
        'mds.optimize(fn=load, inputs=sorted(glob.glob("texts/*.txt")), output_dir=out, num_workers=2)',
        'mds.convert(map(load, sorted(glob.glob("texts/*.txt"))), out, num_workers=1)',
    ),
)
told(
    "convert in parallel",
    """\
def shout(s): return {"text": s["text"].upper(), "label": s["label"]}
mds.convert("docs.jsonl", out, map=shout, workers=2)
ds = mds.StreamingDataset(local=out)
assert len(ds) == 50 and all(s["text"] == s["text"].upper() for s in ds)
""",
    "Write the samples as the source, as in mds.convert(map(function, samples), out), or for files mds.convert(mds.StreamingDataset(source).map(function), out).",
    (
        'mds.convert("docs.jsonl", out, map=shout, workers=2)',
        'mds.convert(map(shout, mds.StreamingDataset("docs.jsonl")), out, num_workers=1)',
    ),
)
works(
    "convert in parallel",
    """\
from mds import MDSWriter, StreamingDataset, merge_index
for part in range(3):
    with MDSWriter(out=f"{out}/{part}", columns={"id": "int"}) as w:
        for i in range(part * 10, part * 10 + 10): w.write({"id": i})
merge_index(out, keep_local=True)
assert sorted(s["id"] for s in StreamingDataset(local=out)) == list(range(30))
""",
)
refused(
    "convert in parallel",
    """\
from mds.base.util import merge_index
from mds import MDSWriter, StreamingDataset
for part in range(2):
    with MDSWriter(out=f"{out}/{part:05d}", columns={"id": "int"}) as w:
        for i in range(5): w.write({"id": part * 5 + i})
merge_index(out)
assert len(StreamingDataset(local=out)) == 10
""",
    "No module named 'mds.base'",
)
works(
    "convert in parallel",
    """\
from mds import StreamingDataset
ds = StreamingDataset("docs.jsonl", format="jsonl").map(lambda s: {"n": len(s["text"])})
mds.convert(ds, out, num_workers=2)
assert len(StreamingDataset(local=out)) == 50
""",
)
told(
    "convert in parallel",
    """\
$ mds-convert photos out --workers 4
python -c 'import mds; ds = mds.StreamingDataset(local="out"); assert len(ds) == 24 and "label" in ds[0]'
""",
    "Write --num-workers.",
    ("--workers", "--num-workers"),
)
told(
    "convert in parallel",
    """\
mds.convert("photos", out, format="imagefolder", workers=2)
ds = mds.StreamingDataset(local=out)
assert len(ds) == 24 and len({s["label"] for s in ds}) == 2
""",
    "Write num_workers=2.",
    ('"imagefolder", workers=', '"images", num_workers='),
)
told(
    "convert in parallel",
    """\
$ mds-convert --input docs.jsonl --output out --workers 2 --compression zstd --size-limit 1mb
python -c 'import mds; assert len(mds.StreamingDataset(local="out")) == 50'
""",
    "Give its value alone, without an option: mds-convert SOURCE OUT",
    (
        "mds-convert --input docs.jsonl --output out --workers 2",
        "mds-convert docs.jsonl out --num-workers 2",
    ),
)
told(
    "convert in parallel",
    """\
mds.convert("docs.jsonl", out, columns={"text": "str", "label": "int"}, compression="zstd:7", hashes=["xxh64"], size_limit="1mb", num_workers=2)
ds = mds.StreamingDataset(local=out, validate_hash="xxh64")
assert len(list(ds)) == 50
""",
    "Write encodings={'text': 'str', 'label': 'int'}",
    ('columns={"text"', 'encodings={"text"'),
    ("num_workers=2", "num_workers=1"),
)

# ---------------------------------------- read two columns

works(
    "read two columns",
    """\
from mds import StreamingDataset
ds = StreamingDataset(local="data/train", columns=["id", "label"])
assert all(set(s) == {"id", "label"} for s in ds) and len(ds) == 120
""",
)
told(
    "read two columns",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train").select_columns(["id", "text"])
assert set(next(iter(ds))) == {"id", "text"} and len(list(ds)) == 120
""",
    "Write StreamingDataset(..., columns=['image', 'label']).",
    (
        'StreamingDataset("data/train").select_columns(["id", "text"])',
        'StreamingDataset("data/train", columns=["id", "text"])',
    ),
)
told(
    "read two columns",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train").select("id", "label")
assert all(set(s) == {"id", "label"} for s in ds)
assert len(list(ds)) == 120
""",
    "For columns, write StreamingDataset(..., columns=['id', 'label']).",
    (
        'StreamingDataset("data/train").select("id", "label")',
        'StreamingDataset("data/train", columns=["id", "label"])',
    ),
)
told(
    "read two columns",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train").select(["id", "text"])
assert set(ds[0]) == {"id", "text"}
""",
    "Write select([0, 7]), select(dataset_mask) or select(where=function).",
    (
        'StreamingDataset("data/train").select(["id", "text"])',
        'StreamingDataset("data/train", columns=["id", "text"])',
    ),
)
told(
    "read two columns",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train")[["id", "text"]]
assert set(next(iter(ds))) == {"id", "text"}
""",
    "StreamingDataset(..., columns=['id'])",
    (
        'StreamingDataset("data/train")[["id", "text"]]',
        'StreamingDataset("data/train", columns=["id", "text"])',
    ),
)
told(
    "read two columns",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train").remove_columns("text")
assert set(next(iter(ds))) == {"id", "label"}
""",
    "Write StreamingDataset(..., columns=['image', 'label']), with the columns to keep.",
    (
        'StreamingDataset("data/train").remove_columns("text")',
        'StreamingDataset("data/train", columns=["id", "label"])',
    ),
)
told(
    "read two columns",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train").remove_columns(["label"])
assert set(next(iter(ds))) == {"id", "text"}
""",
    "Write StreamingDataset(..., columns=['image', 'label']), with the columns to keep.",
    (
        'StreamingDataset("data/train").remove_columns(["label"])',
        'StreamingDataset("data/train", columns=["id", "text"])',
    ),
)
told(
    "read two columns",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train").drop("label")
assert set(next(iter(ds))) == {"id", "text"}
""",
    "StreamingDataset(..., columns=[...]) for fewer columns",
    (
        'StreamingDataset("data/train").drop("label")',
        'StreamingDataset("data/train", columns=["id", "text"])',
    ),
)
told(
    "read two columns",
    """\
ds = mds.StreamingDataset("data/train").to_tuple("text", "label")
text, label = next(iter(ds))
assert isinstance(text, str) and isinstance(label, int)
""",
    "Write dataset.map(lambda sample: (sample['image'], sample['label'])).",
    ('.to_tuple("text", "label")', '.map(lambda sample: (sample["text"], sample["label"]))'),
)
works(
    "read two columns",
    """\
from mds import StreamingDataset
ds = StreamingDataset("docs.parquet", format="parquet", columns=["id", "text"])
assert len(list(ds)) == 50 and set(ds[0]) == {"id", "text"}
""",
)
works(
    "read two columns",
    """\
from mds import LocalDataset
ds = LocalDataset("data/train")
ids, labels = list(ds["id"]), list(ds["label"])
assert len(ids) == len(labels) == 120 and ids[5] == ds[5]["id"]
""",
)
works(
    "read two columns",
    """\
$ mds head data/train -n 2 --columns id,label
mds head docs.parquet -n 2 --columns id,label
""",
)
works(
    "read two columns",
    """\
$ mds-convert docs.parquet out --columns id,text
python -c 'import mds; assert set(mds.StreamingDataset(local="out")[0]) == {"id", "text"}'
""",
)
works(
    "read two columns",
    """\
mds.convert("docs.parquet", out, columns=["id", "label"])
ds = mds.StreamingDataset(local=out)
assert len(ds) == 50 and set(ds[0]) == {"id", "label"}
""",
)
works(
    "read two columns",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="data/train", columns=("id", "label"), shuffle=True, batch_size=8)
for b in StreamingDataLoader(ds, batch_size=8, num_workers=2):
    assert set(b) == {"id", "label"}
print("ok")
""",
)
works(
    "read two columns",
    """\
from mds import LocalDataset
ds = LocalDataset(local="data", split="train", columns=["text", "label"])
assert set(ds[0]) == {"text", "label"} and len(ds) == 120
""",
)

# ---------------------------------------- take the first 1,000

told(
    "take the first 1,000",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train")
assert [s["id"] for s in ds.take(10)] == [ds[i]["id"] for i in range(10)]
""",
    "Write dataset.limit(n)",
    ("ds.take(10)", "ds.limit(10)"),
)
works(
    "take the first 1,000",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train").limit(10)
assert len(ds) == 10 and len(list(ds)) == 10
""",
)
works(
    "take the first 1,000",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train")
small = ds.select(range(10))
assert len(small) == 10 and [s["id"] for s in small] == [ds[i]["id"] for i in range(10)]
""",
)
told(
    "take the first 1,000",
    """\
from mds import StreamingDataset
small = StreamingDataset("data/train").head(10)
assert len(list(small)) == 10
""",
    "Write dataset.limit(n)",
    (".head(10)", ".limit(10)"),
)
works(
    "take the first 1,000",
    """\
from mds import LocalDataset
ds = LocalDataset("data/train")
first = ds[:10]
assert len(first) == 10 and first[9]["id"] == ds[9]["id"]
""",
)
works(
    "take the first 1,000",
    """\
from torch.utils.data import Subset, DataLoader
from mds import LocalDataset
small = Subset(LocalDataset("data/train"), range(10))
assert sum(len(b["id"]) for b in DataLoader(small, batch_size=4)) == 10
""",
)
works(
    "take the first 1,000",
    """\
from itertools import islice
from mds import StreamingDataset
rows = list(islice(StreamingDataset(local="data/train"), 10))
assert len(rows) == 10 and "text" in rows[0]
""",
)
told(
    "take the first 1,000",
    """\
from mds import StreamingDataset
ds = StreamingDataset(local="data", split="train[:10]")
assert len(ds) == 10 and len(list(ds)) == 10
""",
    "write split='train' and then .limit(10)",
    ('split="train[:10]")', 'split="train").limit(10)'),
)
works(
    "take the first 1,000",
    """\
from mds import StreamingDataset
ds = StreamingDataset(local="data/train", epoch_size=10, batch_size=5)
assert len(list(ds)) == 10
""",
)
works(
    "take the first 1,000",
    """\
from mds import StreamingDataset, Stream
ds = StreamingDataset(streams=[Stream(local="data/train", choose=10)], batch_size=5)
assert len(list(ds)) == 10
""",
)
told(
    "take the first 1,000",
    """\
from mds import StreamingDataset
ds = StreamingDataset(local="data/train", limit=10, batch_size=5)
assert len(ds) == 10 and len({s["id"] for s in ds}) == 10
""",
    "Write StreamingDataset(...).limit(10).",
    ("limit=10, batch_size=5)", "batch_size=5).limit(10)"),
)
works(
    "take the first 1,000",
    """\
$ mds head data/train -n 10
mds head data/train --limit 10
""",
)
works(
    "take the first 1,000",
    """\
$ mds-convert docs.jsonl out --limit 10
python -c 'import mds; assert len(mds.StreamingDataset(local="out")) == 10'
""",
)
works(
    "take the first 1,000",
    """\
mds.convert("docs.jsonl", out, limit=10)
assert len(mds.StreamingDataset(local=out)) == 10
""",
)
works(
    "take the first 1,000",
    """\
from mds import StreamingDataset, StreamingDataLoader
ds = StreamingDataset(local="data/train", batch_size=4).limit(10)
ids = [i for b in StreamingDataLoader(ds, batch_size=4, num_workers=2) for i in b["id"].tolist()]
assert len(ids) == 10 == len(set(ids))
""",
)
told(
    "take the first 1,000",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train", subsample=0.1)
assert len(ds) == 12
""",
    "Write StreamingDataset(...).split([0.1, 1 - 0.1])[0] for about this share, or .limit(n).",
    (", subsample=0.1)", ").limit(12)"),
)

# ---------------------------------------- split

told(
    "split",
    """\
from mds import StreamingDataset
train, val = StreamingDataset("data/train").split(0.8)
assert len(train) == 96 and len(val) == 24
assert not {s["id"] for s in train} & {s["id"] for s in val}
""",
    "Write train, val = dataset.split([0.8, 0.2])",
    ("split(0.8)", "split([96, 24])"),
)
told(
    "split",
    """\
from mds import StreamingDataset
train, val = StreamingDataset("data/train").split([0.8, 0.2])
assert (len(train), len(val)) == (96, 24)
""",
    "Write split([96, 24]) for exact numbers.",
    ("[0.8, 0.2]", "[96, 24]"),
)
told(
    "split",
    """\
from mds import StreamingDataset
x, y, z = StreamingDataset("data/train").split(0.8, 0.1, 0.1)
assert (len(x), len(y), len(z)) == (96, 12, 12)
""",
    "split([0.8, 0.1, 0.1])",
    ("split(0.8, 0.1, 0.1)", "split([96, 12, 12])"),
)
told(
    "split",
    """\
from mds import StreamingDataset
parts = StreamingDataset("data/train").train_test_split(test_size=0.2, seed=42)
assert len(parts["train"]) == 96 and len(parts["test"]) == 24
""",
    "Write train, test = dataset.split([0.9, 0.1]) for about these shares, or split([100, 20]) for these exact numbers; split({'train': 0.9, 'test': 0.1}) returns",
    ("train_test_split(test_size=0.2, seed=42)", 'split({"train": 96, "test": 24})'),
)
works(
    "split",
    """\
from torch.utils.data import random_split
from mds import LocalDataset
train, val = random_split(LocalDataset("data/train"), [0.75, 0.25], generator=torch.Generator().manual_seed(0))
assert len(train) == 90 and len(val) == 30
""",
)
told(
    "split",
    """\
from mds import StreamingDataset, train_test_split
train, val = train_test_split(StreamingDataset("data/train"), splits=[0.75, 0.25])
assert len(train) == 90 and len(val) == 30
""",
    "Write train, test = dataset.split([0.9, 0.1]) for about these shares, or split([100, 20]) for these exact numbers; split({'train': 0.9, 'test': 0.1}) returns",
    ("import StreamingDataset, train_test_split", "import StreamingDataset"),
    (
        'train_test_split(StreamingDataset("data/train"), splits=[0.75, 0.25])',
        'StreamingDataset("data/train").split([90, 30])',
    ),
)
told(
    "split",
    """\
from mds import StreamingDataset
train, val = mds.random_split(StreamingDataset("data/train"), [100, 20])
assert len(train) == 100 and len(val) == 20
""",
    "Write train, test = dataset.split([0.9, 0.1]) for about these shares, or split([100, 20]) for these exact numbers; split({'train': 0.9, 'test': 0.1}) returns",
    (
        'mds.random_split(StreamingDataset("data/train"), [100, 20])',
        'StreamingDataset("data/train").split([100, 20])',
    ),
)
told(
    "split",
    """\
from mds import StreamingDataset
train = StreamingDataset(local="data", split="train[:80%]")
val = StreamingDataset(local="data", split="train[80%:]")
assert (len(train), len(val)) == (96, 24)
""",
    "write split='train' and then .limit(10), .select(range(10, 20)) or .split([0.8, 0.2]).",
    ('split="train[:80%]")', "split='train').limit(96)"),
    ('split="train[80%:]")', "split='train').select(range(96, 120))"),
)
told(
    "split",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train")
train, val = ds.skip(20), ds.take(20)
ids = [s["id"] for s in val] + [s["id"] for s in train]
assert ids == [s["id"] for s in ds]
""",
    "Write dataset.select(range(n, dataset.num_samples)) to leave out the first n",
    ("ds.skip(20), ds.take(20)", "ds.select(range(20, ds.num_samples)), ds.limit(20)"),
)
told(
    "split",
    """\
from mds import StreamingDataset
parts = StreamingDataset("data/train").split({"train": 0.9, "val": 0.1})
assert len(parts["train"]) == 108 and len(parts["val"]) == 12
""",
    "Write split([108, 12]) for exact numbers.",
    ('{"train": 0.9, "val": 0.1}', '{"train": 108, "val": 12}'),
)
told(
    "split",
    """\
from mds import StreamingDataset
one, _ = StreamingDataset("data/train").split([0.8, 0.2], seed=42)
two, _ = StreamingDataset("data/train").split([0.8, 0.2], seed=42)
assert sorted(s["id"] for s in one) == sorted(s["id"] for s in two) and len(one) == 96
""",
    's in one) == sorted(s["id"] for s in two) and len(one) == 96 ^^^^^^^^^^^^^^ AssertionError',
    ("[0.8, 0.2]", "[96, 24]"),
)
told(
    "split",
    """\
from mds import StreamingDataset, StreamingDataLoader
train, val = StreamingDataset(local="data/train", shuffle=True, batch_size=8).split([0.8, 0.2])
assert sum(len(b["id"]) for b in StreamingDataLoader(train, batch_size=8, num_workers=2)) == 96
assert sum(len(b["id"]) for b in StreamingDataLoader(val, batch_size=8)) == 24
""",
    "Write split([96, 24]) for exact numbers.",
    ("[0.8, 0.2]", "[96, 24]"),
)
refused(
    "split",
    """\
$ mds split data/train out --train 0.8 --val 0.2
python -c 'import mds; assert len(mds.StreamingDataset(local="out/train")) == 96 and len(mds.StreamingDataset(local="out/val")) == 24'
""",
    "Write: mds convert SOURCE OUT --split train=0.8,val=0.2",
)
refused(
    "split",
    """\
$ mds-convert docs.jsonl out --split train=0.8,val=0.2
python -c 'import mds; assert len(mds.StreamingDataset(local="out", split="train")) == 40 and len(mds.StreamingDataset(local="out", split="val")) == 10'
""",
    "train 0.8, val 0.2",
)
works(
    "split",
    """\
from mds import MDSWriter, StreamingDataset
for name, n in [("train", 8), ("val", 2)]:
    with MDSWriter(out=f"{out}/{name}", columns={"id": "int"}) as w:
        for i in range(n): w.write({"id": i})
assert len(StreamingDataset(local=out, split="train")) == 8
assert len(StreamingDataset(local=out, split="val")) == 2
""",
)
told(
    "split",
    """\
from mds import StreamingDataset
ds = StreamingDataset("data/train")
third = ds.shard(3, 0)
assert len(list(third)) == 40
""",
    "batch_size=..., topology=(rank, world_size), remainder='short') gives the part of one rank.",
    (
        'ds = StreamingDataset("data/train")\nthird = ds.shard(3, 0)',
        'third = StreamingDataset("data/train", batch_size=1, topology=(0, 3), remainder="short")',
    ),
)

# ---------------------------------------- skip bad samples

works(
    "skip bad samples",
    """\
from mds import StreamingDataset
ds = StreamingDataset("bad.jsonl", format="jsonl", on_error="skip")
assert len(list(ds)) == sum(1 for _ in open("bad.jsonl")) - 2
""",
)
told(
    "skip bad samples",
    """\
from mds import StreamingDataset
ds = StreamingDataset("bad.jsonl", format="jsonl", ignore_errors=True)
assert len(list(ds)) == sum(1 for _ in open("bad.jsonl")) - 2
""",
    "Write on_error='skip'.",
    ("ignore_errors=True", "on_error='skip'"),
)
told(
    "skip bad samples",
    """\
from mds import StreamingDataset
ds = StreamingDataset("bad.jsonl", format="jsonl", on_bad_lines="skip")
assert len(list(ds)) == sum(1 for _ in open("bad.jsonl")) - 2
""",
    "Write on_error='skip'.",
    ('on_bad_lines="skip"', "on_error='skip'"),
)
told(
    "skip bad samples",
    """\
from mds import StreamingDataset, warn_and_continue
ds = StreamingDataset("bad.jsonl", format="jsonl", handler=warn_and_continue)
assert len(list(ds)) == sum(1 for _ in open("bad.jsonl")) - 2
""",
    "Write mds.StreamingDataset(..., on_error='skip') to leave out samples that cannot be read.",
    ("from mds import StreamingDataset, warn_and_continue", "from mds import StreamingDataset"),
    ("handler=warn_and_continue", 'on_error="skip"'),
)
told(
    "skip bad samples",
    """\
def f(s):
    if s["id"] % 10 == 0: raise ValueError("bad")
    return s
ds = mds.StreamingDataset("data/train").map(f).ignore_errors()
ids = [s["id"] for s in ds]
assert 0 < len(ids) < 120 and all(i % 10 for i in ids)
""",
    "Write StreamingDataset(..., on_error='skip') to leave out samples that cannot be read.",
    (
        "ds = mds",
        'def caught(s):\n    try: return f(s)\n    except ValueError: return "bad"\nds = mds',
    ),
    (".map(f).ignore_errors()", '.map(caught).filter(lambda s: s != "bad")'),
)
told(
    "skip bad samples",
    """\
def f(s):
    if s["id"] % 10 == 0: raise ValueError("bad")
    return s
ds = mds.StreamingDataset(local="data/train").map(f, on_error="skip")
ids = [s["id"] for s in ds]
assert 0 < len(ids) < 120 and all(i % 10 for i in ids)
""",
    "Catch the exception in the function, return a marker for such a sample, and drop it with filter(function).",
    (
        '    if s["id"] % 10 == 0: raise ValueError("bad")\n    return s\nds = mds.StreamingDataset(local="data/train").map(f, on_error="skip")',
        '    if s["id"] % 10 == 0: raise ValueError("bad")\n    return s\ndef caught(s):\n    try: return f(s)\n    except ValueError: return "bad"\nds = mds.StreamingDataset(local="data/train").map(caught).filter(lambda s: s != "bad")',
    ),
)
told(
    "skip bad samples",
    """\
def f(s):
    if s["id"] % 10 == 0: raise ValueError("bad")
    return s
ds = mds.StreamingDataset("data/train").map(f, handler=mds.ignore_and_continue)
assert all(s["id"] % 10 for s in ds)
print(len(list(ds)))
""",
    "Write mds.StreamingDataset(..., on_error='skip') to leave out samples that cannot be read.",
    (
        "ds = mds",
        'def caught(s):\n    try: return f(s)\n    except ValueError: return "bad"\nds = mds',
    ),
    (".map(f, handler=mds.ignore_and_continue)", '.map(caught).filter(lambda s: s != "bad")'),
)
works(
    "skip bad samples",
    """\
$ mds-convert bad.jsonl out --on-error skip
python -c 'import mds; assert len(mds.StreamingDataset(local="out")) == sum(1 for _ in open("bad.jsonl")) - 2'
""",
)
told(
    "skip bad samples",
    """\
$ mds-convert bad.jsonl out --skip-errors
python -c 'import mds; assert len(mds.StreamingDataset(local="out")) == sum(1 for _ in open("bad.jsonl")) - 2'
""",
    "Write --on-error skip.",
    ("--skip-errors", "--on-error skip"),
)
told(
    "skip bad samples",
    """\
$ mds convert bad.jsonl out --ignore-errors
python -c 'import mds; assert len(mds.StreamingDataset(local="out")) == sum(1 for _ in open("bad.jsonl")) - 2'
""",
    "Write --on-error skip.",
    ("--ignore-errors", "--on-error skip"),
)
works(
    "skip bad samples",
    """\
mds.convert("bad.jsonl", out, on_error="skip")
assert len(mds.StreamingDataset(local=out)) == sum(1 for _ in open("bad.jsonl")) - 2
""",
)
told(
    "skip bad samples",
    """\
mds.convert("bad.jsonl", out, errors="ignore")
assert len(mds.StreamingDataset(local=out)) == sum(1 for _ in open("bad.jsonl")) - 2
""",
    "Write on_error='skip'.",
    ('errors="ignore"', "on_error='skip'"),
)
works(
    "skip bad samples",
    """\
from mds import StreamingDataset
try:
    list(StreamingDataset("bad.jsonl", format="jsonl"))
    raised = False
except Exception as e:
    print(e); raised = True
assert raised
""",
)
told(
    "skip bad samples",
    """\
from mds import StreamingDataset, StreamingDataLoader
def f(s):
    if s["id"] % 10 == 0: raise ValueError("bad")
    return s
dl = StreamingDataLoader(StreamingDataset(local="data/train", batch_size=8).map(f), batch_size=8, on_error="skip")
ids = [i for b in dl for i in b["id"].tolist()]
assert 0 < len(ids) < 120 and all(i % 10 for i in ids)
""",
    "Give it to the dataset, for samples that cannot be read: StreamingDataset(..., on_error='skip').",
    (
        "dl = Str",
        'def caught(s):\n    try: return f(s)\n    except ValueError: return "bad"\ndl = Str',
    ),
    (
        '.map(f), batch_size=8, on_error="skip")',
        '.map(caught).filter(lambda s: s != "bad"), batch_size=8)',
    ),
)
works(
    "skip bad samples",
    """\
from mds import StreamingDataset, StreamingDataLoader
def ok(s): return len(s["text"]) > 0 and s["id"] % 10 != 0
ds = StreamingDataset(local="data/train", batch_size=8).filter(ok)
ids = [i for b in StreamingDataLoader(ds, batch_size=8) for i in b["id"].tolist()]
assert 0 < len(ids) < 120 and all(i % 10 for i in ids)
""",
)
told(
    "skip bad samples",
    """\
from mds import StreamingDataset
ds = StreamingDataset("bad.jsonl", format="jsonl", skip_errors=True)
n = len(list(ds))
assert n == sum(1 for _ in open("bad.jsonl")) - 2 and n > 0
""",
    "Write on_error='skip'.",
    ("skip_errors=True", "on_error='skip'"),
)
