"""A packing by its number of tokens, the column that it finds, and the layout of its batches."""

import dataclasses

import numpy as np
import pytest

from mds import MDSWriter, Packing, Stream, StreamingDataLoader, StreamingDataset
from mds.errors import ConfigError, StateError
from mds.plan._state import VERSION, parse_state
from tests.states import values_of

#: State after three steps of `loader_of`, written when the loader chose the layout of batches.
STATE = {
    "epoch": 0,
    "sample_in_epoch": "see position",
    "num_canonical_nodes": 2,
    "shuffle_seed": 9176,
    "initial_physical_nodes": 1,
    "version": 2,
    "unit": "packs",
    "position": {"epoch": 0, "in_epoch": 12, "cursors": [[0, 6], [0, 6]], "turn": 0},
    "keys": ["position.cursors", "position.turn"],
    "dataset": {
        "samples": 120,
        "shards": 1,
        "streams": 1,
        "choose": "8425658b06e21281d29959aaff32400b",
        "fingerprint": "4f608b7c87bd51b7",
    },
    "order": {
        "shuffle": True,
        "shuffle_algo": "seekable",
        "shuffle_block_size": 60,
        "sampling_method": "balanced",
        "sampling_granularity": 1,
        "batching_method": "random",
        "exact": False,
        "packing": "best-fit-decreasing.1",
        "packing_capacity": 32,
        "packing_overflow": "cut",
        "packing_order": 2,
        "packing_window": 60,
        "packing_lengths": "1c1245ae236d9e8f10f67517085acaae",
    },
    "data": {
        "streams": [{"at": "/data", "index": "013cff345af960f9"}],
        "ranks": 1,
        "nodes": 1,
        "batch_size": 4,
        "packing": {"lengths": "tokens", "balance": "attention"},
    },
    "order_hash": "dc8a7999a9b77cf4-12",
}
#: Packs of the fourth step: pairs of a document and its number of tokens.
FOURTH_STEP = [
    [(18, 12), (6, 20)],
    [(97, 13), (88, 19)],
    [(12, 16), (58, 16)],
    [(92, 1), (89, 3), (66, 3), (115, 1)],
]


TOKENS = "ndarray:uint16"
#: Functions that make the value of a column from the number of a sample and its tokens.
VALUES = {
    "int": lambda number, tokens: number,
    "str": lambda number, tokens: "text",
    "ndarray:float32": lambda number, tokens: tokens.astype(np.float32),
    "ndarray:uint16": lambda number, tokens: tokens.astype(np.uint16),
    "tensor:int32": lambda number, tokens: tokens.astype(np.int32),
    "list[int64]": lambda number, tokens: list(tokens),
    "optional[ndarray:int32]": lambda number, tokens: tokens.astype(np.int32),
}


def write(folder, **columns):
    """Write 120 documents, whose tokens are their numbers, with columns of these encodings."""
    with MDSWriter(str(folder), columns) as writer:
        for number in range(120):
            tokens = np.full(1 + number * 7 % 23, number)
            writer.write({name: VALUES[kind](number, tokens) for name, kind in columns.items()})
    return str(folder)


def column_found(folder, packing=8192, **settings):
    return StreamingDataset(folder, batch_size=2, packing=packing, **settings).packing.column


@pytest.fixture(scope="module")
def resumable(tmp_path_factory):
    return write(tmp_path_factory.mktemp("resumed"), tokens=TOKENS)


def loader_of(folder, layout):
    """Make the loader of the run whose state is `STATE`."""
    packing = Packing(32, overflow="truncate", balance="attention", layout=layout)
    dataset = StreamingDataset(
        folder, shuffle=True, shuffle_algo="seekable", shuffle_block_size=60,
        num_canonical_nodes=2, batch_size=4, packing=packing,
    )  # fmt: skip
    return StreamingDataLoader(dataset)


def test_a_number_is_a_packing(tmp_path):
    """Of Python and of NumPy, given and assigned; batches are those of the Packing."""
    folder = write(tmp_path, tokens=TOKENS)
    expected = list(
        StreamingDataLoader(StreamingDataset(folder, batch_size=2, packing=Packing(64)))
    )
    for size in (64, np.int64(64)):
        given = StreamingDataset(folder, batch_size=2, packing=size)
        assigned = StreamingDataset(folder, batch_size=2)
        assigned.packing = size
        for dataset in (given, assigned):
            assert dataset.packing == Packing(64, column="tokens")
            batches = list(StreamingDataLoader(dataset))
            assert [b["tokens"].tolist() for b in batches] == [
                b["tokens"].tolist() for b in expected
            ]


@pytest.mark.parametrize(
    "encoding", ["ndarray:uint16", "tensor:int32", "list[int64]", "optional[ndarray:int32]"]
)
def test_the_only_column_of_integers_has_the_tokens(tmp_path, encoding):
    """Of any name; columns of scalars, texts and fractions are none."""
    others = {"text": "str", "weights": "ndarray:float32", "number": "int"}
    folder = write(tmp_path, input_ids=encoding, **others)
    assert column_found(folder) == "input_ids"
    assert column_found(folder, Packing(budget=64), columns=["text", "input_ids"]) == "input_ids"


def test_a_column_named_tokens_is_preferred_and_a_name_is_kept(tmp_path):
    """Beside labels, and where another column is named."""
    folder = write(tmp_path, labels=TOKENS, tokens=TOKENS)
    assert column_found(folder) == "tokens"
    assert column_found(folder, Packing(8192, "labels")) == "labels"
    assert column_found(folder, columns=["labels"]) == "labels"


def test_labels_are_not_the_tokens_beside_another_column(tmp_path):
    """As in the datasets that trainers tokenize."""
    folder = write(tmp_path, input_ids=TOKENS, labels=TOKENS)
    assert column_found(folder) == "input_ids"


def test_streams_agree_on_the_column(tmp_path):
    """It is one that all of them have."""
    first = write(tmp_path / "a", ids=TOKENS, mask=TOKENS)
    second = write(tmp_path / "b", ids=TOKENS)
    streams = [Stream(first), Stream(second)]
    assert StreamingDataset(streams, batch_size=2, packing=8192).packing.column == "ids"


def test_columns_that_leave_a_choice_or_none_are_named(tmp_path):
    """With the call to write, in the constructor and in an assignment."""
    several = write(tmp_path / "several", attention_mask=TOKENS, input_ids=TOKENS)
    message = (
        r"Packing\(8192\): more than one column may have the tokens: 'attention_mask', "
        r"'input_ids'. Write packing=Packing\(8192, column='input_ids'\), or name "
        r"another of these columns."
    )
    with pytest.raises(ConfigError, match=message):
        column_found(several)
    dataset = StreamingDataset(several, batch_size=2)
    with pytest.raises(ConfigError, match=message):
        dataset.packing = 8192
    assert dataset.packing is None
    with pytest.raises(ConfigError, match=r"packing=Packing\(budget=64, column='input_ids'\)"):
        column_found(several, Packing(budget=64))
    none = write(tmp_path / "none", text="str", number="int")
    with pytest.raises(ConfigError, match=r"columns 'number', 'text' .* mds-convert --tokenizer"):
        column_found(none)
    fractions = write(tmp_path / "fractions", text="str", weights="ndarray:float32")
    with pytest.raises(ConfigError, match=r"Write packing=Packing\(8192, column='weights'\)"):
        column_found(fractions)
    other = write(tmp_path / "other", body="str")
    with pytest.raises(ConfigError, match="none of the columns of all streams has one-dim"):
        StreamingDataset([Stream(none), Stream(other)], batch_size=2, packing=8192)


@pytest.mark.parametrize("layout", ["varlen", "dense"])
def test_a_state_of_a_loader_that_chose_the_layout_goes_on(resumable, layout):
    """The layout is no part of a state, so either goes on, with the same state afterwards."""
    loader = loader_of(resumable, layout)
    loader.load_state_dict(STATE)
    batch = next(iter(loader))
    packs = [[number for number, size in pack for _ in range(size)] for pack in FOURTH_STEP]
    if layout == "varlen":
        assert batch["tokens"].tolist() == [number for pack in packs for number in pack]
        assert batch["max_seqlen"] == 20
    else:
        assert batch["tokens"].tolist() == [pack + [0] * (32 - len(pack)) for pack in packs]
        assert batch["document_ids"].shape == (4, 32)
    state = values_of(loader.state_dict())
    assert state["sample_in_epoch"] == 16
    assert state["order"] == STATE["order"]
    assert state["data"]["packing"] == STATE["data"]["packing"]
    again = loader_of(resumable, layout)
    for step, _ in enumerate(again):
        if step == 2:
            break
    point, before = parse_state(STATE), parse_state(again.state_dict())
    assert before == dataclasses.replace(point, data=before.data, version=VERSION)


def test_a_state_of_another_order_of_packs_is_refused(resumable):
    """It was saved when packs were given to ranks in another order."""
    order = {name: value for name, value in STATE["order"].items() if name != "packing_order"}
    for state in ({**STATE, "order": order}, {**STATE, "order": {**order, "packing_order": 3}}):
        loader = loader_of(resumable, "varlen")
        with pytest.raises(StateError, match=r"another order\. Start a new run, without the"):
            loader.load_state_dict(state)
