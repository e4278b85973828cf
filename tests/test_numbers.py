"""Numbers that no order can count are refused where they enter, with an error of the library."""

import json

import pytest

from mds import MDSWriter, Schedule, Stream, StreamingDataLoader, StreamingDataset
from mds.errors import MdsError
from mds.plan._state import KEYS

HUGE = {
    "10**30": 10**30,
    "-10**30": -(10**30),
    "2**63": 1 << 63,
    "2**63-1": (1 << 63) - 1,
    "-2**63": -(1 << 63),
    "2**52": 1 << 52,
    "10**400": 10**400,
    "10**5000": 10**5000,
    "inf": float("inf"),
    "nan": float("nan"),
    "1e300": 1e300,
    "forty nines": "9" * 40,
    "5000 nines": "9" * 5000,
}
COUNTS = ["epoch_size", "batch_size", "num_canonical_nodes", "shuffle_block_size", "predownload"]
OF_A_STREAM = ["repeat", "choose", "proportion", "download_retry", "download_timeout"]


@pytest.fixture
def data(tmp_path):
    """A dataset of forty samples."""
    with MDSWriter(out=str(tmp_path / "d"), columns={"x": "int"}, size_limit=200) as writer:
        for number in range(40):
            writer.write({"x": number})
    return str(tmp_path / "d")


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize("name", COUNTS)
def test_an_argument_of_a_dataset(data, name, value):
    """Before anything is allocated or computed."""
    with pytest.raises(MdsError, match=name):
        StreamingDataset(**{"local": data, "batch_size": 4, "shuffle": True, name: HUGE[value]})


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize("name", OF_A_STREAM)
def test_an_argument_of_a_stream(data, name, value):
    """Its share of an epoch among them."""
    with pytest.raises(MdsError, match=f"{name}|samples"):
        StreamingDataset(streams=[Stream(local=data, **{name: HUGE[value]})], batch_size=4)


@pytest.mark.parametrize("value", HUGE)
def test_a_field_of_a_state(data, value):
    """The state says which."""
    dataset = StreamingDataset(local=data, batch_size=4, shuffle=True)
    state = dataset.state_dict(8, True)
    for key in (*KEYS, "version"):
        if (key, value) == ("shuffle_seed", "2**63") or state[key] == HUGE[value]:
            continue
        fits = key == "shuffle_seed" and value in ("2**63-1", "2**52")
        if not fits:
            with pytest.raises(MdsError, match=key):
                dataset.load_state_dict({**state, key: HUGE[value]})
    dataset.load_state_dict(json.loads(json.dumps(state)))
    assert len(list(dataset)) == 32


@pytest.mark.parametrize("value", HUGE)
def test_a_step_at_which_weights_change(data, value):
    """Steps are counted in 32 bits."""
    streams = {name: Stream(local=data) for name in "ab"}
    schedule = Schedule({0: {"a": 1, "b": 1}})
    dataset = StreamingDataset(streams=streams, schedule=schedule, batch_size=4)
    with pytest.raises(MdsError, match="at_step"):
        dataset.edits.set_weights({"a": 1}, at_step=HUGE[value])


@pytest.mark.parametrize("value", HUGE)
def test_an_argument_of_a_loader(data, value):
    """As of a dataset."""
    dataset = StreamingDataset(local=data, batch_size=4)
    for name in ("batch_size", "num_workers"):
        with pytest.raises(MdsError, match=name):
            StreamingDataLoader(dataset, **{name: HUGE[value]})


@pytest.mark.parametrize("value", HUGE)
def test_a_position_and_a_world(data, value):
    """What a trainer counts, and how many there are of it."""
    dataset = StreamingDataset(local=data, batch_size=4)
    if value != "2**52":
        with pytest.raises(MdsError, match="num_samples"):
            dataset.state_dict(HUGE[value], True)
    with pytest.raises(MdsError, match="topology"):
        StreamingDataset(local=data, batch_size=4, topology=(0, HUGE[value]))


def test_seeds_may_have_64_bits(data):
    """As states and generators do."""
    for seed in (1 << 63, (1 << 64) - 1):
        dataset = StreamingDataset(local=data, batch_size=4, shuffle=True, shuffle_seed=seed)
        state = dataset.state_dict(0, True)
        assert sorted(sample["x"] for sample in dataset) == list(range(40))
        dataset.load_state_dict(json.loads(json.dumps(state)))
