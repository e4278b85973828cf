"""Files of the Hub: patterns, a branch that moves on, requests that are counted."""

from concurrent.futures import ThreadPoolExecutor

import pytest

pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402
from tables import table, write_files  # noqa: E402
from together import run_together  # noqa: E402

from devtools import dialects  # noqa: E402
from devtools.httpserver import http_server  # noqa: E402
from devtools.proxy import Fault, FaultProxy  # noqa: E402
from mds import StreamingDataLoader, StreamingDataset  # noqa: E402
from mds.errors import NotFoundError, StateError  # noqa: E402
from mds.storage import open_store  # noqa: E402

ONE, OTHER = "1" * 40, "2" * 40
DATA = "hf://datasets/org/name/data/*.parquet"


@pytest.fixture
def folder(tmp_path):
    """The repository: a commit with five files, which the branch main is at."""
    root = tmp_path / "hub"
    write_files(root / ".commits" / ONE / "data", groups=((5, 7), (4,), (6, 1), (3,), (2,)))
    write_files(root / ".commits" / ONE / "other", groups=((9,),))
    (root / ".commits" / ONE / "README.md").write_text("words")
    (root / ".refs").mkdir()
    (root / ".refs" / "main").write_text(ONE)
    (root / ".refs" / "v1").write_text(ONE)
    return root


@pytest.fixture
def hub(folder, monkeypatch, tmp_path):
    """A proxy before a server that speaks as the Hub does."""
    monkeypatch.setenv("HF_TOKEN", "token")
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # gates are of this test
    monkeypatch.setattr("tempfile.tempdir", None)
    with http_server(str(folder), handler=dialects.Hub) as url, FaultProxy(url) as proxy:
        monkeypatch.setenv("HF_ENDPOINT", proxy.url)
        yield proxy
    monkeypatch.undo()
    monkeypatch.setattr("tempfile.tempdir", None)


def of(cache, remote=DATA, **more):
    return StreamingDataset(remote=remote, local=str(cache), batch_size=4, **more)


def test_a_complete_cache_is_read_where_nothing_answers(folder, hub, tmp_path, caplog):
    """The table of the last start and the shards in the cache need no Hub."""
    samples = list(of(tmp_path / "cache"))
    hub.add(Fault("drop", match="", times=None))
    dataset = of(tmp_path / "cache", download_retry=0)
    assert [repr(sample) for sample in dataset] == [repr(sample) for sample in samples]
    assert "mds uses the table of files of the last start" in caplog.text


def test_a_start_where_nothing_answers_waits_for_the_timeout(folder, hub, tmp_path, caplog):
    """With a table of the last start, as with an index, and not for five minutes."""
    count = len(list(of(tmp_path / "cache")))
    hub.add(Fault("drop", match="", times=None))
    dataset = of(tmp_path / "cache", download_timeout=1.0)
    assert len(list(dataset)) == count
    assert "at least 2 tries and 1 s in all" in caplog.text


def test_a_new_file_of_a_remote_that_answers_is_waited_for(folder, hub, tmp_path, caplog):
    """The table of the last start is no substitute then, so its headers have five minutes."""
    list(of(tmp_path / "cache"))
    move_on(folder)
    hub.add(Fault("drop", match=r"^GET .*part-9", times=1))
    assert of(tmp_path / "cache", download_timeout=1.0).num_samples == 36
    assert "at least 2 tries and 300 s in all" in caplog.text


def move_on(folder):
    """Main gets another commit, in which a file came and one has other rows."""
    write_files(folder / ".commits" / OTHER / "data", groups=((5, 7), (4,), (6, 1), (3,), (2,)))
    pq.write_table(table(500, 4), folder / ".commits" / OTHER / "data" / "part-001.parquet")
    pq.write_table(table(900, 8), folder / ".commits" / OTHER / "data" / "part-9.parquet")
    (folder / ".refs" / "main").write_text(OTHER)


@pytest.mark.parametrize(
    ("remote", "rows"),
    [
        (DATA, 28),
        ("hf://datasets/org/name@v1/data/part-00{1..2}.parquet", 11),
        ("hf://datasets/org/name/**/*.parquet", 37),
        (f"hf://datasets/org/name@{ONE}/other/part-000.parquet", 9),
        ("hf://datasets/org/name/data", 28),
    ],
)
@pytest.mark.usefixtures("hub")
def test_patterns_files_and_folders(tmp_path, remote, rows):
    """Each means the files that it means anywhere, over pages of a listing."""
    dataset = of(tmp_path / "c", remote, format="parquet")
    assert len([sample["id"] for sample in dataset]) == dataset.num_samples == rows


def test_a_branch_is_read_at_its_commit(hub, folder, tmp_path):
    """What was planned is read although the branch moves; the next start has the new commit."""
    dataset = of(tmp_path / "c")
    assert dataset[0]["id"] == 0
    move_on(folder)
    assert [sample["id"] for sample in dataset] == list(range(28))
    assert of(tmp_path / "c").num_samples == 36
    assert hub.count(f"/resolve/{ONE}/") >= 5
    assert hub.count("/resolve/main/") == 0
    with pytest.raises(NotFoundError, match="nowhere"):
        of(tmp_path / "d", "hf://datasets/org/name@nowhere/data/*.parquet")


@pytest.mark.usefixtures("hub")
def test_a_state_goes_on_at_its_commit(folder, tmp_path):
    """A branch that moved on is refused, with the URL of the commit, where it goes on."""
    dataset = of(tmp_path / "c", shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=4)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    expected = [batch["id"].tolist() for batch in batches]
    move_on(folder)
    moved = StreamingDataLoader(of(tmp_path / "d", shuffle=True), batch_size=4)
    with pytest.raises(StateError, match=f"5 files of parquet, remote .*name@{ONE}/data.*6 files"):
        moved.load_state_dict(state)
    pinned = of(tmp_path / "e", f"hf://datasets/org/name@{ONE}/data/*.parquet", shuffle=True)
    again = StreamingDataLoader(pinned, batch_size=4)
    again.load_state_dict(state)
    assert [batch["id"].tolist() for batch in again] == expected


def test_a_start_asks_for_the_commit_and_the_list(hub, tmp_path):
    """The first one also where each file is; later ones on the machine look at no file."""
    of(tmp_path / "c")
    assert hub.count("GET /api/.*/revision/main") == 1
    assert hub.count("GET /api/.*/tree/") == 2, "five files, in pages of three"
    assert hub.count("HEAD /datasets/org/name/resolve/") == 5
    asked = hub.count()
    of(tmp_path / "c")
    assert hub.count() - asked == 3


def _start(cache):
    assert of(cache).num_samples == 28


@pytest.mark.slow
def test_processes_of_a_node_ask_as_often_as_one(hub, tmp_path):
    """Some that start together list once, and look at each file once."""
    run_together("spawn", 4, _start, tmp_path / "c")
    assert hub.count("HEAD /datasets/org/name/resolve/") == 5
    assert hub.count("GET /api/.*/revision/main") <= 4
    assert hub.count("GET /cdn/") == 5


def _read(cache):
    assert [sample["id"] for sample in of(cache)] == list(range(28))


def test_a_forked_worker_does_not_ask_where_files_are(hub, tmp_path):
    """Its parent has asked, and the answer is good in both."""
    of(tmp_path / "c")
    run_together("fork", 3, _read, tmp_path / "c")
    assert hub.count("HEAD /datasets/org/name/resolve/") == 5


def test_threads_that_begin_with_one_file_ask_once(hub):
    """Where its bytes are is asked by the first, and the others wait for the answer."""
    store, size = open_store("hf://datasets/org/name/data"), 4
    hub.latency = 0.2
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda at: store.get_range("part-000.parquet", at, at + size), range(8))
        pieces = [*found]
    assert pieces[0] == b"PAR1"
    assert hub.count("HEAD ") == 1


def test_a_hub_that_counts_requests_is_waited_for(hub, folder, tmp_path, caplog):
    """Above its limit it answers 429: one process waits for all, and the epoch ends."""
    (folder / ".limit").write_text("6 1.5")
    dataset = of(tmp_path / "c")
    assert [sample["id"] for sample in dataset] == list(range(28))
    told = [record.getMessage() for record in caplog.records]
    assert any("too many requests (429). Continuing in" in line for line in told)
    refused = hub.count("/api/|/resolve/") - 8
    assert 0 < refused <= 32, "each request that was under way was refused once"


def test_a_wait_that_the_hub_asks_for(hub):
    """Retry-After counts where it is said, and a page that was refused is asked for again."""
    store = open_store("hf://datasets/org/name/data")
    hub.add(Fault("status", match="GET /api/", status=429, times=1, skip=1, retry_after=1))
    assert len(list(store.list())) == 5
    assert hub.count("GET /api/") == 3
