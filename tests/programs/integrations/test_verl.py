"""The class of docs/guides/verl.md in the loader that verl builds, with its resume."""

import itertools
import json
import pathlib
import re
import types
import warnings

import pytest
import torch

from mds import MDSWriter

REASON = "verl is not installed: pip install verl cachetools fastapi uvicorn"
for package in ("verl", "cachetools", "fastapi", "uvicorn"):  # verl does not require the others
    pytest.importorskip(package, reason=REASON)

import pyarrow as pa  # noqa: E402 - verl may be missing
import pyarrow.parquet as pq  # noqa: E402 - as above
from omegaconf import OmegaConf  # noqa: E402 - as above

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it imports parts of Ray that will move
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

pytestmark = pytest.mark.filterwarnings("default")  # those of other libraries are no errors here

GUIDE = pathlib.Path(__file__).parents[3] / "docs" / "guides" / "verl.md"
PROMPTS = 40


def rows():
    """Return prompts with the columns that verl's examples write."""
    return [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"question {number}"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(number)},
            "extra_info": {"index": number, "split": "train"},
        }
        for number in range(PROMPTS)
    ]


@pytest.fixture(params=["mds", "parquet"])
def folder(request, tmp_path):
    """The prompts as shards, or as a Parquet file that verl could read itself."""
    out = tmp_path / "data"
    if request.param == "parquet":
        out.mkdir()
        pq.write_table(pa.Table.from_pylist(rows()), out / "train.parquet")
        return str(out)
    kinds = {"prompt": "json", "reward_model": "json", "extra_info": "json"}
    columns = {name: kinds.get(name, "str") for name in rows()[0]}
    with MDSWriter(str(out), columns, size_limit=2000) as writer:
        for row in rows():
            writer.write(row)
    return str(out)


@pytest.fixture
def make_loader(folder, tmp_path):
    """Make the training loader by verl's own code, with the class of the guide."""
    program = tmp_path / "prompts.py"
    text = GUIDE.read_text(encoding="utf-8")
    program.write_text(re.search(r"```python no-run\n(.*?)```", text, re.DOTALL)[1])

    def make(**options):
        data = {
            "custom_cls": {"path": str(program), "name": "Prompts"},
            "train_files": [folder],
            "val_files": [folder],
            "train_batch_size": 8,
            "val_batch_size": None,
            "dataloader_num_workers": 2,
            "shuffle": True,
            "seed": 1,
            **options,
        }
        config = OmegaConf.create(
            {"data": data, "trainer": {"total_epochs": 2, "total_training_steps": None}}
        )
        trainer = types.SimpleNamespace(config=config, tokenizer=None, processor=None)
        RayPPOTrainer._create_dataloader(trainer, None, None, None, None)
        assert len(trainer.val_dataset) == PROMPTS
        return trainer.train_dataloader

    return make


def numbers_of(batch):
    return [message[0]["content"] for message in batch["raw_prompt"]]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_new_driver_goes_on_with_the_same_prompts(make_loader, tmp_path, workers):
    """From the file that verl writes, after each step of an epoch; then follows the next epoch."""
    loader = make_loader(dataloader_num_workers=workers)
    epochs = []
    for epoch in range(2):
        epochs.append([])
        for step, batch in enumerate(loader, 1):
            epochs[-1].append(numbers_of(batch))
            if not epoch:
                torch.save(loader.state_dict(), tmp_path / f"{step}.pt")
    questions = sorted(f"question {number}" for number in range(PROMPTS))
    assert [sorted(itertools.chain(*steps)) for steps in epochs] == [questions] * 2
    assert epochs[0] != epochs[1]
    for step in range(1, PROMPTS // 8):
        resumed = make_loader(dataloader_num_workers=workers)
        resumed.load_state_dict(torch.load(tmp_path / f"{step}.pt", weights_only=False))
        assert [numbers_of(batch) for batch in resumed] == epochs[0][step:]
        assert [numbers_of(batch) for batch in resumed] == epochs[1]


def test_steps_of_another_size_go_on_in_the_same_order(make_loader):
    loader = make_loader()
    steps = iter(loader)
    next(steps)
    state = loader.state_dict()
    expected = [numbers_of(batch) for batch in steps]
    resumed = make_loader(train_batch_size=4)
    resumed.load_state_dict(state)
    smaller = [numbers_of(batch) for batch in resumed]
    assert len(smaller) == 2 * len(expected)
    assert list(itertools.chain(*smaller)) == list(itertools.chain(*expected))
    other_workers = make_loader(dataloader_num_workers=3)
    other_workers.load_state_dict(state)
    with pytest.raises(AssertionError):
        next(iter(other_workers))


def test_prompts_are_what_verl_makes_of_its_own_files(make_loader):
    """Its answers and numbers too."""
    loader = make_loader(train_max_samples=8, shuffle=False)
    dataset = loader.dataset
    assert dataset[7]["raw_prompt"] == [{"role": "user", "content": "question 7"}]
    (batch,) = loader
    assert numbers_of(batch) == [f"question {number}" for number in range(8)]
    assert batch["index"].tolist() == [*range(8)]
    assert json.loads(json.dumps(batch["reward_model"][3])) == {
        "style": "rule",
        "ground_truth": "3",
    }
