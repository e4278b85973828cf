"""The loader for OLMo-core: its batches, epochs, states, and what it refuses."""

import json

import numpy as np
import pytest
import torch

from mds import MDSWriter, Packing, Schedule, StreamingDataLoader, StreamingDataset
from mds.errors import ConfigError, StateError
from tests.skip_reasons import not_installed
from tests.token_rows import IGNORED, LENGTH, SAMPLES, write_token_rows

pytest.importorskip("olmo_core", reason=not_installed("ai2-olmo-core"))

import itertools

from olmo_core.config import Config
from olmo_core.data import (
    NumpyDataLoaderConfig,
    NumpyFSLDatasetConfig,
    TokenizerConfig,
)
from olmo_core.data.data_loader import DataLoaderConfig
from olmo_core.data.utils import get_cumulative_document_lengths, get_labels, split_batch

from mds.integrations.olmo_core import MDSDataLoader, MDSDataLoaderConfig

TOKENIZER = TokenizerConfig(vocab_size=100, eos_token_id=1, pad_token_id=99)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Datasets of blocks of one token more than a sequence, of blocks as long, and of documents."""
    return write_token_rows(tmp_path_factory.mktemp("olmo_core"))


def configure(place, size=4, length=LENGTH, **config):
    """Return a config; ``size`` counts sequences of the global batch."""
    arguments = {"shuffle": True, **config.pop("arguments", {})}
    options = {"sequence_length": length, "global_batch_size": size * length, **config}
    return MDSDataLoaderConfig(path=place, arguments=arguments, tokenizer=TOKENIZER, **options)


def build(place, rank=0, ranks=1, **config):
    """Return the loader of a rank."""
    return MDSDataLoader(configure(place, **config), rank, ranks)


def steps(loaders, first=1):
    """Yield the sorted rows of each step and its epoch, as the trainer reads them."""
    epoch = first
    while True:
        for loader in loaders:
            loader.reshuffle(epoch)
        for batches in zip(*loaders, strict=True):
            yield epoch, sorted(row for batch in batches for row in rows(batch))
        for loader in loaders:
            loader.reset()
        epoch += 1


def rows(batch):
    names = [name for name in ("input_ids", "labels", "doc_lens") if name in batch]
    lists = [batch[name].tolist() for name in names]
    return [[without_zeros(part) for part in row] for row in zip(*lists, strict=True)]


def without_zeros(numbers):
    return [number for number in numbers if number]


@pytest.mark.parametrize("name", ["more", "equal"])
def test_blocks_have_shifted_labels(places, name):
    loader = build(places[name])
    loader.reshuffle(1)
    batch = next(iter(loader))
    assert batch.keys() == {"input_ids", "labels"}
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    assert batch["labels"].shape == batch["input_ids"].shape == (4, LENGTH)
    assert (batch["labels"][:, :-1] == get_labels(batch)[:, :-1]).all()
    if name == "equal":
        assert (batch["labels"] == get_labels(batch)).all()
    else:
        assert (batch["labels"] == batch["input_ids"]).all()


def test_packs_keep_documents_apart(places):
    loader = build(places["documents"], arguments={"packing": LENGTH})
    loader.reshuffle(1)
    for batch in loader:
        tokens, labels, lengths = batch["input_ids"], batch["labels"], batch["doc_lens"]
        assert lengths.sum(1).tolist() == [LENGTH] * 4
        assert batch["max_doc_lens"] == lengths.max(1).values.tolist()
        bounds = get_cumulative_document_lengths(lengths).tolist()
        flat_tokens, flat_labels = tokens.flatten().tolist(), labels.flatten().tolist()
        for start, end in itertools.pairwise(bounds):
            assert len(set(flat_tokens[start:end])) == 1
            is_padding = flat_tokens[start] == TOKENIZER.pad_token_id
            expected = [IGNORED] * (end - start) if is_padding else flat_tokens[start + 1 : end]
            assert flat_labels[start:end] == expected + [IGNORED] * (not is_padding)
        assert [len(part["input_ids"]) for part in split_batch(batch, 2)] == [2, 2]


def test_lengths_of_documents_can_be_left_out(places):
    options = {"arguments": {"packing": LENGTH}, "generate_doc_lengths": False}
    loader = build(places["documents"], **options)
    loader.reshuffle(1)
    assert next(iter(loader)).keys() == loader.get_mock_batch().keys() == {"input_ids", "labels"}


@pytest.mark.parametrize("name", ["equal", "documents"])
def test_the_mock_batch_has_the_form_of_the_others(places, name):
    packing = LENGTH if name == "documents" else None
    loader = build(places[name], 1, 2, arguments={"packing": packing})
    loader.reshuffle(1)
    mock, batch = loader.get_mock_batch(), next(iter(loader))
    assert mock.keys() == batch.keys()
    assert mock["input_ids"].shape == batch["input_ids"].shape == (2, LENGTH)
    assert mock["input_ids"].max() < TOKENIZER.vocab_size
    if packing:
        assert mock["doc_lens"].tolist() == [[4, 4]] * 2
    assert mock["input_ids"].tolist() == loader.get_mock_batch()["input_ids"].tolist()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("packing", [None, LENGTH])
@pytest.mark.parametrize("saved_after", [0, 1, 2, 3, 4, 5, 11])
def test_a_state_of_four_ranks_goes_on_with_two(places, workers, packing, saved_after):
    """Also after the last step of an epoch: 37 blocks or their packs make 4 or 3 steps of 8."""
    place = places["documents" if packing else "more"]
    options = {"arguments": {"packing": packing}, "size": 8}
    before = [build(place, rank, 4, **options) for rank in range(4)]
    undisturbed, epoch = steps(before), 1
    for _ in range(saved_after):
        epoch, _ = next(undisturbed)
    states = [json.loads(json.dumps(loader.state_dict())) for loader in before]
    expected = [next(undisturbed) for _ in range(8)]
    after = [build(place, rank, 2, num_workers=workers, **options) for rank in range(2)]
    for loader in after:
        loader.load_state_dict(states[0])
    resumed = steps(after, epoch)
    assert [next(resumed) for _ in range(8)] == expected


@pytest.mark.parametrize("packing", [None, LENGTH])
def test_an_epoch_has_as_many_batches_as_it_says(places, packing):
    loader = build(places["documents" if packing else "more"], arguments={"packing": packing})
    for epoch in (1, 2, 3):
        loader.reshuffle()
        assert loader.epoch == epoch
        expected = loader.total_batches
        assert loader.batches_in_epoch(epoch) == expected == len(loader)
        batches = list(loader)
        assert len(batches) == loader.batches_processed == expected > 0
        assert loader.tokens_processed == expected * loader.global_batch_size
        loader.reset()


def test_each_epoch_has_another_order(places):
    loader, epochs = build(places["more"]), []
    for epoch in (1, 2):
        loader.reshuffle(epoch)
        epochs.append([row for batch in loader for row in rows(batch)])
        loader.reset()
        assert len(epochs[-1]) == 36  # the last of 37 samples fills no step
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("packing", [None, LENGTH])
def test_an_iteration_that_ended_early_goes_on(places, packing):
    """As when the Trainer reaches its last step, and `fit` is called again for more."""
    place = places["documents" if packing else "more"]
    loader = build(place, arguments={"packing": packing}, num_workers=1)
    undisturbed = steps([build(place, arguments={"packing": packing})])
    for number in range(1, 4):
        loader.reshuffle(1)
        for _, batch in zip(range(1), loader, strict=False):
            assert sorted(rows(batch)) == next(undisturbed)[1], number


@pytest.mark.parametrize("packing", [None, LENGTH])
def test_a_state_after_the_loop_over_an_epoch(places, packing):
    """Saved by `post_epoch`, before the Trainer counts the epoch, and by `post_train`, after."""
    place = places["documents" if packing else "more"]
    options = {"arguments": {"packing": packing}}
    loader = build(place, **options)
    loader.reshuffle(1)
    assert list(loader)
    states = [(loader.state_dict(), 1)]
    loader.reset()
    states.append((loader.state_dict(), 2))
    expected = next(steps([loader], 2))
    for state, epoch in states:
        other = build(place, **options)
        other.load_state_dict(state)
        again = build(place, **options)  # from a checkpoint before the first batch
        again.load_state_dict(other.state_dict())
        assert next(steps([other], epoch)) == next(steps([again], epoch)) == expected


@pytest.mark.parametrize("packing", [None, LENGTH])
def test_evaluations_read_the_same_batches(places, packing):
    """An Evaluator resets the loader before each pass, and may have left the last one early."""
    loader = build(places["documents" if packing else "more"], arguments={"packing": packing})
    passes = []
    for count in (1, 9, 9):
        loader.reset()
        loader.reshuffle(epoch=1, in_memory=True)
        passes.append([rows(batch) for _, batch in zip(range(count), loader, strict=False)])
    assert passes[0] == passes[1][:1]
    assert passes[1] == passes[2]
    assert len(passes[1]) > 1


@pytest.mark.parametrize("packing", [None, LENGTH])
def test_another_batch_size_loses_and_repeats_nothing(places, packing):
    """As by BatchSizeSchedulerCallback, before it loads the next batch."""
    place = places["documents" if packing else "more"]
    options = {"arguments": {"packing": packing}, "size": 1, "num_workers": 1}
    whole, loader = build(place, **options), build(place, **options)
    whole.reshuffle(1)
    expected = [row for batch in whole for row in rows(batch)]
    loader.reshuffle(1)
    seen, sizes, batches = [], [], iter(loader)
    for size in (1, 1, 2, 4, 1):
        if size != loader.global_batch_size // LENGTH:
            loader.global_batch_size = size * LENGTH
        batch = next(batches)
        sizes.append(len(batch["input_ids"]))
        seen += rows(batch)
    assert sizes == [1, 1, 2, 4, 1]
    assert sorted(seen) == sorted(expected[: len(seen)])
    assert loader.batches_processed == 9


def test_a_larger_global_batch_after_a_resume(places):
    """Its first batch comes before the scheduler of the batch size has restored the size."""
    loader, other = build(places["more"], size=4), build(places["more"], size=2)
    loader.reshuffle(1)
    batches = iter(loader)
    next(batches)
    other.load_state_dict(loader.state_dict())
    assert other.batches_processed == 2
    other.global_batch_size = 4 * LENGTH
    assert other.batches_processed == 1
    other.reshuffle(1)
    assert rows(next(iter(other))) == rows(next(batches))


def test_edits_and_schedules_reach_the_order(places):
    streams = {"a": places["equal"], "b": places["equal"]}
    schedule = Schedule({0: {"a": 1, "b": 0}, 2: {"a": 0, "b": 1}})
    arguments = {"streams": streams, "schedule": schedule}
    loader, other = (build(None, arguments=arguments) for _ in range(2))
    undisturbed = steps([loader])
    next(undisturbed)
    loader.dataset.edits.replace_samples(range(0, SAMPLES, 3), reason="a test")
    other.load_state_dict(loader.state_dict())
    expected = [next(undisturbed) for _ in range(4)]
    resumed = steps([other])
    assert [next(resumed) for _ in range(4)] == expected
    tokens = {row[0][0] for row in expected[0][1]}  # of the first stream, the only one until then
    assert not {n - 2 for n in tokens} & set(range(0, SAMPLES, 3))


def test_a_position_of_a_plain_loader_goes_on(places):
    dataset = StreamingDataset(places["more"], batch_size=4, shuffle=True, remainder="mask")
    plain = StreamingDataLoader(dataset)
    batches = iter(plain)
    next(batches)
    loader = build(places["more"])
    loader.load_state_dict(plain.state_dict())
    loader.reshuffle(1)
    assert next(iter(loader))["labels"].tolist() == next(batches)["tokens"][:, 1:].tolist()


def test_a_column_of_labels_replaces_the_tokens(tmp_path):
    with MDSWriter(str(tmp_path), {"ids": "ndarray:int64", "labels": "ndarray:int64"}) as out:
        for n in range(4):
            out.write({"ids": np.full(LENGTH, n), "labels": np.arange(LENGTH) - 100})
    loader = build(str(tmp_path), column="ids")
    loader.reshuffle(1)
    batch = next(iter(loader))
    assert batch["labels"][0].tolist() == [*range(-99, LENGTH - 100), IGNORED]
    assert sorted(set(batch["input_ids"].flatten().tolist())) == [0, 1, 2, 3]


def test_configs_can_be_overridden_and_saved(places):
    packing = Packing(LENGTH, overflow="split")
    config = configure(places["documents"], arguments={"packing": packing})
    changed = config.merge(["num_workers=1", "path=elsewhere", "arguments.shuffle_seed=5"])
    assert (changed.num_workers, changed.path) == (1, "elsewhere")
    assert changed.arguments == {"shuffle": True, "packing": packing, "shuffle_seed": 5}
    saved = json.loads(json.dumps(config.as_config_dict()))
    assert saved["type"] == "mds"
    restored = Config.from_dict(saved)
    assert restored == config
    assert DataLoaderConfig.get_registered_class("mds") is MDSDataLoaderConfig
    assert build(places["documents"]).rank_batch_size == config.build().rank_batch_size == 32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arguments": {"num_workers": 2}}, "set num_workers= of MDSDataLoaderConfig"),
        ({"arguments": {"batch_size": 2}}, "leave it out, it follows from global_batch_size"),
        ({"arguments": {"topology": (0, 1)}}, "it follows from the data-parallel process group"),
        ({"arguments": {"remainder": "short"}}, "OLMo-core needs full batches"),
        ({"arguments": {"packing": 16}}, "packs of 16 tokens do not fit sequence_length=8"),
        ({"arguments": {"packing": Packing(budget=8)}}, "do not fit sequence_length=8"),
        ({"global_batch_size": 24}, "counts tokens: give a multiple of 16 .2 data-parallel ranks"),
        ({"global_batch_size": 8}, "counts tokens: give a multiple of 16"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(places, options, message):
    with pytest.raises(ConfigError, match=message):
        build(places["documents"], 0, 2, **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("documents", {}, "not blocks of 9 or 8 tokens.*--block 9, or pack documents"),
        ("more", {"length": 6}, "not blocks of 7 or 6 tokens, for sequence_length=6"),
        ("more", {"column": "ids"}, "no column 'ids', only 'tokens'"),
        ("more", {"size": 64}, "an epoch has no step of 64 samples or packs on each of 1 rank"),
    ],
)
def test_data_that_does_not_fit_is_refused_at_the_first_batch(places, name, options, message):
    loader = build(places[name], **options)
    loader.reshuffle(1)
    with pytest.raises(ConfigError, match=message):
        next(iter(loader))


def test_an_epoch_after_the_end_of_a_schedule_is_refused(places):
    """OLMo-core would begin epochs without end if they had no batches."""
    schedule = Schedule({0: {"a": 1}}, unit="samples", exhausted="stop")
    loader = build(None, arguments={"streams": {"a": places["more"]}, "schedule": schedule})
    loader.reshuffle(1)
    assert len(list(loader)) == loader.total_batches
    loader.reset()
    loader.reshuffle(2)
    with pytest.raises(ConfigError, match="the schedule has ended the training"):
        next(iter(loader))


def test_tokens_of_another_vocabulary_are_refused(tmp_path):
    with MDSWriter(str(tmp_path), {"tokens": "ndarray:uint16"}) as out:
        for _ in range(4):
            out.write({"tokens": np.full(LENGTH, 128, np.uint16)})
    loader = build(str(tmp_path))
    loader.reshuffle(1)
    with pytest.raises(ConfigError, match="tokens from 128 to 128, but the tokenizer has 128"):
        next(iter(loader))


def test_another_epoch_inside_an_epoch_is_refused(places):
    loader = build(places["more"])
    loader.reshuffle(1)
    next(iter(loader))
    with pytest.raises(ConfigError, match="the data is in epoch 1, but epoch 2 was asked for"):
        loader.reshuffle(2)


def test_states_of_other_loaders_are_refused(places, tmp_path):
    np.arange(64, dtype=np.uint16).tofile(tmp_path / "tokens.npy")
    dataset = NumpyFSLDatasetConfig(
        paths=[str(tmp_path / "tokens.npy")],
        sequence_length=LENGTH,
        tokenizer=TOKENIZER,
        work_dir=str(tmp_path),
    )
    own = NumpyDataLoaderConfig(global_batch_size=16, seed=0, work_dir=str(tmp_path))
    loader = build(places["more"])
    with pytest.raises(StateError, match="load_path to the checkpoint and load_trainer_state"):
        loader.load_state_dict(own.build(dataset.build()).state_dict())
    with pytest.raises(StateError, match="dataset"):
        loader.load_state_dict(build(places["documents"]).state_dict())
    with pytest.raises(StateError):
        loader.load_state_dict({"epoch": 1})
