"""The dataset for NeMo Automodel: what its loader makes of it, its states, and what it refuses."""

import pathlib
import warnings

import numpy as np
import pytest
import torch

from mds import MDSWriter, Packing
from mds.errors import ConfigError, StateError

HINT = 'NeMo Automodel is not installed: pip install nemo-automodel "triton<3.9"'
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its modules use what torch deprecates
    loader = pytest.importorskip("nemo_automodel.components.datasets.loader", reason=HINT)
    import transformers
    import yaml
    from nemo_automodel.components.config.loader import ConfigNode
    from nemo_automodel.components.datasets.utils import (
        default_collater,
        neat_packed_collater,
        packed_sequence_thd_collater,
    )
    from nemo_automodel.components.training.step_scheduler import StepScheduler
    from nemo_automodel.recipes._typed_config import RecipeConfig

from devtools.pages import blocks  # noqa: E402
from mds.integrations.automodel import Dataset  # noqa: E402
from tests.token_rows import IGNORED, LENGTH, SAMPLES, write_token_rows  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # by torchdata
    pytest.mark.filterwarnings("ignore:To copy construct from a tensor"),  # by Automodel
    pytest.mark.filterwarnings("ignore:invalid escape sequence"),  # by torchao, when it is compiled
]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Datasets of blocks of one token more than a sequence, of blocks as long, and of documents."""
    return write_token_rows(tmp_path_factory.mktemp("automodel"))


def build(place, rank=0, ranks=1, size=2, packed=None, collate=None, **arguments):
    """Return the loader as the recipes of Automodel make it, with batches of ``size``.

    ``packed`` is the part packed_sequence of a configuration; settings of the loader that begin
    with ``loader_`` are among ``arguments``.
    """
    settings = {k[7:]: arguments.pop(k) for k in [*arguments] if k.startswith("loader_")}
    arguments = {"shuffle": True, "global_batch_size": size * ranks, **arguments}
    collate = collate or (neat_packed_collater if "packing" in arguments else default_collater)
    return loader.DataloaderConfig(
        dataset_config=loader.make_dataset_config(Dataset, {"place": place, **arguments}),
        packing=loader.make_packing_config("neat" if packed else None, packed),
        batch_size=size,
        collate_fn=collate,
        **settings,
    ).build(dp_rank=rank, dp_world_size=ranks)


def rows_of(batch):
    """Return the rows of a batch without their padding; rows of a padded step are left out."""
    rows = []
    for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
        if ids[0] > 1 and (set(labels) != {IGNORED} or len(set(ids) - {0}) > 1):
            rows.append([token for token in ids if token])
    return rows


def take(loaders, batches):
    """Yield the sorted rows of each step of loaders, with ``batches`` of each in a step."""
    schedulers = [
        StepScheduler(
            global_batch_size=batches, local_batch_size=1, dp_size=1, dataloader=each,
            ckpt_every_steps=1000, max_steps=1000, num_epochs=20, preemption_signal=None,
        )
        for each in loaders
    ]  # fmt: skip
    for _ in range(20):
        for steps in zip(*schedulers, strict=True):
            yield sorted(row for batches in steps for batch in batches for row in rows_of(batch))


@pytest.mark.parametrize("name", ["more", "equal"])
def test_labels_of_blocks_are_shifted(places, name):
    batch = next(iter(build(places[name], seq_len=LENGTH)))
    for name_of_column in ("input_ids", "labels", "attention_mask"):
        assert batch[name_of_column].dtype == torch.int64
        assert batch[name_of_column].shape == (2, LENGTH)
    assert (batch["attention_mask"] == 1).all()
    assert (batch["labels"][:, :-1] == batch["input_ids"][:, 1:]).all()
    last = batch["labels"][:, -1]
    assert (last == (batch["input_ids"][:, 0] if name == "more" else IGNORED)).all()


def test_samples_of_any_length_are_padded(places):
    batch = next(iter(build(places["documents"], size=SAMPLES, shuffle=False)))
    counts = batch["attention_mask"].sum(1)
    assert set(counts.tolist()) == {1, 2, 3, 4, 5}
    for n, count in enumerate(counts.tolist()):
        assert batch["input_ids"][n].tolist() == [n + 2] * count + [0] * (5 - count)
        assert batch["labels"][n].tolist() == [n + 2] * (count - 1) + [IGNORED] * (6 - count)
    assert (batch["padding_mask"] == (batch["attention_mask"] == 0)).all()


def test_documents_of_packs_are_numbered(places):
    batch = next(iter(build(places["documents"], packing=LENGTH)))
    assert batch["input_ids"].shape == batch["labels"].shape == (2, LENGTH)
    documents = batch["_packed_seq_ids"]
    starts = (batch["position_ids"] == 0) & (documents > 0)
    assert (documents == starts.cumsum(1) * (documents > 0)).all()
    assert batch["attention_mask"].shape == (2, 1, LENGTH, LENGTH)
    is_last = torch.nn.functional.pad(documents[:, 1:] != documents[:, :-1], (0, 1), value=True)
    assert (batch["labels"][is_last | (documents == 0)] == IGNORED).all()
    within = ~is_last & (documents > 0)
    assert (batch["labels"][within] == batch["input_ids"][within]).all()


def test_a_yaml_file_can_set_arguments_of_packing(places):
    """They are a mapping."""
    packing = {"capacity": LENGTH // 2, "overflow": "split"}
    rows = build(places["documents"], packing=packing)
    assert rows.dataset.dataset.packing.overflow == "split"
    assert next(iter(rows))["input_ids"].shape[1] == LENGTH // 2


def test_documents_of_a_pack_do_not_attend_to_each_other(places):
    """In a Llama, whose logits for a document are those of the document alone."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=64, attn_implementation="sdpa",
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    batch = next(iter(build(places["documents"], packing=LENGTH)))
    documents = batch.pop("_packed_seq_ids")
    del batch["labels"]
    is_second = documents[0] == 2
    assert is_second.any()
    packed = model(**batch).logits[0][is_second]
    alone = model(input_ids=batch["input_ids"][:1, is_second]).logits[0]
    torch.testing.assert_close(packed, alone)


def test_the_configuration_of_the_guide_builds_a_loader(tmp_path):
    """Its YAML, with the paths of datasets here."""
    for name in ("tokens", "web", "code"):
        with MDSWriter(str(tmp_path / name), {"tokens": "ndarray:uint16"}) as out:
            for _ in range(300):
                out.write({"tokens": np.ones(4097, np.uint16)})
    page = pathlib.Path(__file__).parents[3] / "docs" / "guides" / "automodel.md"
    first, streams, packs, validation = (
        yaml.safe_load(each.code.replace("s3://bucket", str(tmp_path)))
        for each in blocks(page)
        if each.mark == "yaml"
    )

    def keys(*left_out, **others):
        settings = {**first["dataset"], **others}
        return {name: settings[name] for name in settings.keys() - {*left_out}}

    def shape(config, name="dataloader"):
        config = RecipeConfig(ConfigNode(config))
        configs = {"dataloader": config.dataloader, **config.validation_dataloaders}
        return next(iter(configs[name].build(dp_rank=1, dp_world_size=4)))["input_ids"].shape

    assert shape(first) == (2, 4096)
    assert shape({**first, "dataset": keys("place", **streams["dataset"])}) == (2, 4096)
    dataset = keys("seq_len", packing=5000)
    config = {**first, **packs, "dataset": dataset}
    assert shape(config) == (2, 5000)
    config = {**config, **validation, "validation_dataset": dataset}
    assert shape(config, "default") == (2, 5000)


def test_a_column_of_labels_replaces_the_tokens(tmp_path):
    with MDSWriter(str(tmp_path), {"ids": "ndarray:int64", "labels": "ndarray:int64"}) as out:
        for n in range(4):
            out.write({"ids": np.full(LENGTH, n), "labels": np.arange(LENGTH) - 100})
    batch = next(iter(build(str(tmp_path), column="ids", seq_len=LENGTH)))
    assert batch["labels"][0].tolist() == [*range(-99, LENGTH - 100), IGNORED]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("saved_after", [3, 11])
def test_a_state_of_four_ranks_goes_on_with_two(places, tmp_path, workers, packing, saved_after):
    """As two batches of a step instead of one, and beyond the end of an epoch."""
    place = places["documents" if packing else "more"]
    options = {"packing": LENGTH} if packing else {"seq_len": LENGTH}
    options |= {"global_batch_size": 8}
    before = [build(place, rank, 4, **options) for rank in range(4)]
    steps = take(before, 1)
    for _ in range(saved_after):
        next(steps)
    for rank, each in enumerate(before):
        torch.save(each.state_dict(), tmp_path / f"{rank}.pt")
    expected = [next(steps) for _ in range(8)]
    after = [build(place, rank, 2, num_workers=workers, **options) for rank in range(2)]
    for rank, each in enumerate(after):
        each.load_state_dict(torch.load(tmp_path / f"{rank + 1}.pt", weights_only=True))
    resumed = take(after, 2)
    assert [next(resumed) for _ in range(8)] == expected


def test_each_sample_comes_once_on_as_many_batches_of_each_rank(places):
    loaders = [build(places["documents"], rank, 4, shuffle=False) for rank in range(4)]
    batches = [list(each) for each in loaders]
    assert {len(of_rank) for of_rank in batches} == {len(loaders[0])} == {5}
    longer = sum(len(set(row)) == 1 for each in batches for b in each for row in rows_of(b))
    documents = build(places["documents"], size=SAMPLES)
    assert longer == int((next(iter(documents))["attention_mask"].sum(1) > 1).sum())


def test_epochs_of_packs_have_no_length(places):
    with pytest.raises(TypeError, match="max_steps"):
        len(build(places["documents"], packing=LENGTH))


def test_a_checkpoint_within_a_step_is_refused(places):
    """Which means that the two global batch sizes differ."""
    each = build(places["more"], seq_len=LENGTH, global_batch_size=4)
    iterator = iter(each)
    next(iterator)
    with pytest.raises(StateError, match="within a step of global_batch_size=4"):
        each.state_dict()
    next(iterator)
    each.state_dict()


def test_edits_reach_the_order(places):
    each = build(places["more"], seq_len=LENGTH)
    steps = take([each], 1)
    next(steps)
    gone = [n for n in range(SAMPLES) if n % 2]
    each.dataset.dataset.edits.replace_samples(gone, reason="a test")
    assert {row[0] % 2 for _ in range(8) for row in next(steps)} == {0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 2}, "leave it out, give global_batch_size"),
        ({"remainder": "short"}, "remainder= of the dataset: leave it out"),
        ({"topology": (0, 1)}, "it follows from the parallelism"),
        ({"packing": 16, "seq_len": 8}, "leave seq_len out"),
        ({"packing": Packing(budget=8)}, "give packing a capacity"),
        ({"global_batch_size": 3, "ranks": 2}, "a multiple of the ranks. It is 3"),
        ({"global_batch_size": 0}, "must be a whole number of samples, of at least 1"),
        ({"global_batch_size": "8k"}, "must be a whole number of samples, of at least 1"),
        ({"seq_len": 0}, "seq_len must be a whole number of tokens, of at least 1"),
        ({"seq_len": 8.0}, "Write seq_len=8"),
        ({"seq_len": "8k"}, "seq_len must be a whole number of tokens, of at least 1"),
        ({"column": ["tokens"]}, "column must be the name of a column"),
        ({"loader_shuffle": True}, "leave out dataloader.shuffle"),
        ({"packed": {"packed_sequence_size": 8}}, "leave out dataloader.shuffle and packed"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(places, options, message):
    with pytest.raises(ConfigError, match=message):
        build(places["documents"], **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("documents", {"seq_len": LENGTH}, "for seq_len=8. Write blocks with mds-convert --block"),
        ("more", {"seq_len": 6}, "not blocks of 7 or 6 tokens, for seq_len=6"),
        ("more", {"column": "ids"}, "have the columns tokens.*not 'ids'"),
        ("more", {"loader_num_workers": 1}, "num_workers= of the dataset"),
        ("documents", {"packing": 8, "collate": default_collater}, "neat_packed"),
        (
            "documents",
            {"packing": 8, "collate": packed_sequence_thd_collater},
            "validation_dataloader.collate_fn",
        ),
        ("more", {"seq_len": LENGTH, "collate": neat_packed_collater}, "they are not packs"),
    ],
)
def test_what_does_not_fit_is_refused_at_the_first_batch(places, name, options, message):
    each = build(places[name], **options)
    with pytest.raises(ConfigError, match=message):
        next(iter(each))


def test_columns_without_effect_are_refused(tmp_path):
    columns = {"tokens": "ndarray:int64", "loss_mask": "ndarray:int64"}
    with MDSWriter(str(tmp_path), columns) as out:
        for _ in range(4):
            out.write(dict.fromkeys(columns, np.ones(LENGTH, np.int64)))
    with pytest.raises(ConfigError, match=r"leave out \['loss_mask'\] with columns="):
        next(iter(build(str(tmp_path))))
    next(iter(build(str(tmp_path), columns=["tokens"])))


class Documents(torch.utils.data.Dataset):
    """Documents as Automodel's own datasets give them."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, number):
        return {"input_ids": [number], "labels": [number]}


def test_an_empty_position_replaces_that_of_a_dataset_of_automodel(places):
    """Which the loader of torchdata refuses, before mds gets it; the guide says what to do."""
    own = loader.DataloaderConfig(
        dataset_config=loader.make_dataset_config(Documents, {}), batch_size=2
    ).build(dp_rank=0, dp_world_size=4)
    next(iter(own))
    each = build(places["more"])
    each.load_state_dict(own.state_dict())
    with pytest.raises(AssertionError):
        next(iter(each))
    each = build(places["more"])
    each.load_state_dict({})
    assert rows_of(next(iter(each))) == rows_of(next(iter(build(places["more"]))))


def test_a_second_division_among_ranks_is_refused(places):
    each = build(places["more"])
    with pytest.raises(ConfigError, match="call it once"):
        each.dataset.shard(2, 0)
