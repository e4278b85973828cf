"""A copy with the same shards has the same order, and states go across in both directions."""

import itertools
import pathlib
import random

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

from click.testing import CliRunner  # noqa: E402
from tables import write_files  # noqa: E402

from mds import StreamingDataLoader, StreamingDataset  # noqa: E402
from mds._cli import convert as convert_command  # noqa: E402
from mds._index.table import read_index  # noqa: E402
from mds.errors import ConfigError, SourceError  # noqa: E402
from mds.writers.convert import convert  # noqa: E402

GROUPS = ((5, 7, 30), (4,), (61, 12), (9, 9, 9), (40,))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Parquet files, and their copy in MDS."""
    root = tmp_path_factory.mktemp("pair")
    files = write_files(root / "files", GROUPS)
    summary = convert(str(files), str(root / "copy"), keep_shards=True)
    assert summary.samples == sum(map(sum, GROUPS))
    return str(files), str(root / "copy"), str(root / "cache")


def opened(pair, which, **more):
    files, copy, cache = pair
    place = {"remote": files, "local": cache} if which == "files" else {"local": copy}
    return StreamingDataset(**place, **{"batch_size": 4, **more})


def same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert type(value) is type(other[name])
        if isinstance(value, np.ndarray):
            assert value.dtype == other[name].dtype
            assert np.array_equal(value, other[name])
        else:
            assert value == other[name]


def test_the_copy_has_the_same_shards_and_values(pair):
    """Shard by shard the same number of samples, sample by sample the same values and types."""
    files, copy = opened(pair, "files"), opened(pair, "copy")
    assert files.samples_per_shard.tolist() == copy.samples_per_shard.tolist()
    assert files.samples_per_shard.tolist() == list(itertools.chain(*GROUPS))
    for number in range(files.num_samples):
        same(files[number], copy[number])
    index = read_index(f"{pair[1]}/index.json")
    assert all(info.raw.hashes.keys() == {"xxh3_64"} for info in index)


SETTINGS = [
    {"shuffle_algo": algo, "num_canonical_nodes": nodes, "shuffle_seed": seed,
     "shuffle_block_size": block, "sampling_method": method, "epoch_size": size}
    for algo, nodes, seed, block, method, size in [
        (algo, nodes, seed, block, method, size)
        for algo in ("py1e", "py1br", "py1s", "py2s", "naive", "seekable")
        for nodes in (1, 4)
        for seed, block, method, size in ((1, 20, "balanced", None), (7, 90, "fixed", 70),
                                          (9, 50, "balanced", 400), (11, 31, "balanced", 101))
    ]
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Shuffle block size was smaller")
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s.values())))
def test_the_order_is_that_of_the_copy(pair, settings):
    """Epoch by epoch the same samples in the same places, under each setting."""
    found = []
    for which in ("files", "copy"):
        dataset = opened(pair, which, shuffle=True, **settings)
        found.append([[sample["id"] for sample in dataset] for _ in range(2)])
    assert found[0] == found[1]


def run(pair, which, world, state, steps, **settings):
    """The ids that the ranks of a world get, step by step, from a state on; and the state then."""
    loaders = []
    for rank in range(world):
        dataset = opened(pair, which, topology=(rank, world), **settings)
        loader = StreamingDataLoader(dataset, batch_size=settings["batch_size"])
        if state is not None:
            loader.load_state_dict(state)
        loaders.append(loader)
    out = []
    iterators = [iter(loader) for loader in loaders]
    for _ in range(steps):
        batches = [next(iterator, None) for iterator in iterators]
        if batches[0] is None:
            break
        out.append(sorted(n for batch in batches for n in batch["id"].tolist()))
    return out, loaders[0].state_dict()


@pytest.mark.parametrize("begin", ["files", "copy"])
def test_states_go_across_at_every_step_and_in_other_worlds(pair, begin):
    """A run that stops at any step goes on from the other kind of data with what is left."""
    other = "copy" if begin == "files" else "files"
    settings = {"shuffle": True, "shuffle_seed": 4, "num_canonical_nodes": 2, "batch_size": 4}
    whole, _ = run(pair, begin, 2, None, 1000, **settings)
    rng = random.Random(2)
    for step in range(1, len(whole)):
        head, state = run(pair, begin, 2, None, step, **settings)
        assert head == whole[:step]
        rest, _ = run(pair, other, 2, state, 1000, **settings)
        assert rest == whole[step:]
        ranks = rng.choice((1, 4))
        few = {**settings, "batch_size": 8 // ranks}
        rest, _ = run(pair, other, ranks, state, 1000, **few)
        assert rest[:-1] == whole[step : step + len(rest) - 1]


def test_the_command_writes_it(pair, tmp_path):
    """mds-convert --keep-shards, with columns, compression and a pattern; others are refused."""
    run_command = CliRunner().invoke
    out = str(tmp_path / "out")
    asked = [f"{pair[0]}/part-00[02].parquet", out, "--keep-shards", "--columns", "id,tokens"]
    done = run_command(convert_command, [*asked, "--compression", "zstd"])
    assert done.exit_code == 0, done.output
    assert "115 samples in 5 shards" in done.output
    dataset = StreamingDataset(local=out, batch_size=4)
    assert sorted(dataset[0]) == ["id", "tokens"]
    assert dataset.samples_per_shard.tolist() == [5, 7, 30, 61, 12]
    done = run_command(convert_command, [*asked, "--size-limit", "1mb"])
    assert done.exit_code
    assert "so --size-limit cannot be used" in done.output
    with pytest.raises(FileExistsError):
        convert(pair[0], out, keep_shards=True)
    assert convert(pair[0], out, overwrite=True, keep_shards=True).samples == sum(map(sum, GROUPS))
    with pytest.raises(SourceError, match="nowhere: there is no such file or folder"):
        convert(str(tmp_path / "nowhere"), str(tmp_path / "x"), keep_shards=True)


@pytest.mark.parametrize("keep_shards", [False, True])
def test_files_of_this_machine_may_be_named_by_a_url(pair, tmp_path, keep_shards):
    """With kept shards, the URL was looked up as a path, and such files did not exist."""
    out, url = str(tmp_path / "out"), pathlib.Path(pair[0]).as_uri()
    assert convert(url, out, keep_shards=keep_shards).samples == sum(map(sum, GROUPS))
    with pytest.raises(SourceError, match=f"^{pair[0]}s: there is no such .* mean {pair[0]}"):
        convert(f"{url}s", str(tmp_path / "x"), keep_shards=keep_shards)


def test_it_is_an_option_of_the_converter(pair, tmp_path):
    """`convert` writes the same bytes, and refuses options that would change shards or samples."""
    convert(pair[0], str(tmp_path / "a"), columns=["id", "tokens"], keep_shards=True)
    reports = []
    options = {"columns": ["id", "tokens"], "keep_shards": True}
    summary = convert(pair[0], str(tmp_path / "b"), progress=reports.append, **options)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "b").iterdir())
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert summary.samples == reports[-1].samples == sum(map(sum, GROUPS))
    for name, value in {"limit": 3, "drop": "id", "split": "a=1", "tokenizer": "bytes"}.items():
        with pytest.raises(ConfigError, match=f"so --{name} cannot be used"):
            convert(pair[0], str(tmp_path / "c"), keep_shards=True, **{name: value})


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_copy_that_was_stopped_goes_on(pair, tmp_path, num_workers):
    """The shards are the same, however often it stops and with any number of processes."""
    out, expected = tmp_path / "out", tmp_path / "expected"
    convert(pair[0], str(expected), keep_shards=True)
    stops = 0

    def stop(progress):
        nonlocal stops
        if progress.shards > stops:
            stops = progress.shards
            raise KeyboardInterrupt

    options = {"keep_shards": True, "resume": True, "num_workers": num_workers}
    with pytest.raises(KeyboardInterrupt):
        convert(pair[0], str(out), progress=stop, **options)
    with pytest.raises(KeyboardInterrupt):
        convert(pair[0], str(out), progress=stop, **options)
    summary = convert(pair[0], str(out), **options)
    assert summary.resumed_parts
    assert sorted(path.name for path in out.iterdir()) == sorted(
        path.name for path in expected.iterdir()
    )
    assert all((out / path.name).read_bytes() == path.read_bytes() for path in expected.iterdir())


def test_splits_are_kept_apart(tmp_path):
    """Each split is a dataset of its own shards."""
    for split, groups in (("train", ((5, 7), (4,))), ("test", ((3,),))):
        write_files(tmp_path / "files" / split, groups)
    summary = convert(str(tmp_path / "files"), str(tmp_path / "out"), keep_shards=True)
    assert {split.name: split.shards for split in summary.splits} == {"train": 3, "test": 1}
    train = StreamingDataset(local=str(tmp_path / "out" / "train"), batch_size=1)
    assert train.samples_per_shard.tolist() == [5, 7, 4]
