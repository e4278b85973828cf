"""The class of docs/guides/verl.md in the loader that verl builds, with its resume."""

import functools
import itertools
import json
import pathlib
import re
import types
import warnings

import pytest
import torch

from mds import MDSWriter

REASON = "verl is not installed: pip install verl cachetools fastapi uvicorn TransferQueue"
# verl does not require the others.
for package in ("verl", "cachetools", "fastapi", "uvicorn", "transfer_queue"):
    pytest.importorskip(package, reason=REASON)

import pyarrow as pa  # noqa: E402 - verl may be missing
import pyarrow.parquet as pq  # noqa: E402 - as above
from omegaconf import OmegaConf  # noqa: E402 - as above

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it imports parts of Ray that will move
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

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
def place(request, tmp_path):
    """The prompts as shards, or as a Parquet file that verl could read itself."""
    out = tmp_path / "data"
    if request.param == "parquet":
        out.mkdir()
        pq.write_table(pa.Table.from_pylist(rows()), out / "train.parquet")
        pq.write_table(pa.Table.from_pylist(rows()[:3]), out / "test.parquet")  # as verl's examples
        return str(out / "train.parquet")
    write_shards(str(out))
    return str(out)


def write_shards(place, prompts=PROMPTS):
    kinds = {"prompt": "json", "reward_model": "json", "extra_info": "json"}
    columns = {name: kinds.get(name, "str") for name in rows()[0]}
    with MDSWriter(place, columns, size_limit=2000) as writer:
        for row in rows()[:prompts]:
            writer.write(row)


@pytest.fixture
def make_trainer(place, tmp_path):
    """Make what a trainer of verl has of data, by verl's own code, with the class of the guide."""
    program = tmp_path / "prompts.py"
    text = GUIDE.read_text(encoding="utf-8")
    program.write_text(re.search(r"```python no-run\n(.*?)```", text, re.DOTALL)[1])

    def make(init=PPOTrainer._init_dataloader, mode="sync", **options):
        data = {
            "custom_cls": {"path": str(program), "name": "Prompts"},
            "train_files": [place],
            "val_files": [place],
            "train_batch_size": 8,
            "val_batch_size": None,
            "dataloader_num_workers": 2,
            "shuffle": True,
            "seed": 1,
            "filter_overlong_prompts": False,
            **options,
        }
        settings = {
            "total_epochs": 2,
            "total_training_steps": None,
            "resume_mode": "resume_path",
            "resume_from_path": None,
            "default_local_dir": str(tmp_path),
            "default_hdfs_dir": None,
            "del_local_ckpt_after_load": False,
            "v1": {"sampler": {}},
        }
        config = OmegaConf.create({"data": data, "trainer": settings, "algorithm": {}})
        model = types.SimpleNamespace(load_checkpoint=lambda *_, **__: None)
        trainer = types.SimpleNamespace(
            config=config, tokenizer=None, processor=None, trainer_mode=mode, use_critic=False,
            parameter_sync_step=1, actor_rollout_wg=model, global_steps=0,
        )  # fmt: skip
        trainer._fetch_one_gen_batch = functools.partial(PPOTrainer._fetch_one_gen_batch, trainer)
        init(trainer)
        return trainer

    return make


def numbers_of(batch):
    return [message[0]["content"] for message in batch["raw_prompt"]]


def next_step(trainer):
    """Return the prompts of the next step of verl's default trainer."""
    return numbers_of(PPOTrainer._next_train_batch(trainer))


def close(trainer):
    """End the worker processes, which would keep those of the next trainer from ending."""
    vars(trainer).clear()


def save(trainer, folder, step):
    """Write the file of verl's checkpoints that is about the data."""
    (folder / f"global_step_{step}").mkdir()
    torch.save(trainer.train_dataloader.state_dict(), folder / f"global_step_{step}" / "data.pt")


def load(trainer, folder, step, method=PPOTrainer._load_checkpoint):
    trainer.config.trainer.resume_from_path = str(folder / f"global_step_{step}")
    method(trainer)


@pytest.mark.parametrize(("workers", "mode"), [(0, "sync"), (2, "sync"), (0, "separate_async")])
def test_a_new_driver_goes_on_with_the_same_prompts(make_trainer, tmp_path, workers, mode):
    """From the file that verl writes, after each step of an epoch, and after its end."""
    trainer = make_trainer(dataloader_num_workers=workers, mode=mode)
    steps = []
    for step in range(1, 11):
        steps.append(next_step(trainer))
        save(trainer, tmp_path, step)
    close(trainer)
    questions = sorted(f"question {number}" for number in range(PROMPTS))
    epochs = steps[:5], steps[5:]
    assert [sorted(itertools.chain(*epoch)) for epoch in epochs] == [questions] * 2
    assert epochs[0] != epochs[1]
    for step in range(1, 10):
        resumed = make_trainer(dataloader_num_workers=workers, mode=mode)
        load(resumed, tmp_path, step)
        assert [next_step(resumed) for _ in steps[step:]] == steps[step:]
        close(resumed)


def test_the_older_trainer_repeats_the_order_after_the_end_of_an_epoch(make_trainer, tmp_path):
    """It does not load the position there; the guide says so."""

    def make():
        init = functools.partial(
            RayPPOTrainer._create_dataloader,
            train_dataset=None, val_dataset=None, collate_fn=None, train_sampler=None,
        )  # fmt: skip
        return make_trainer(init)

    trainer = make()
    epochs = []
    for end in (5, 10):
        epochs.append([numbers_of(batch) for batch in trainer.train_dataloader])
        save(trainer, tmp_path, end)
    assert epochs[0] != epochs[1]
    resumed = make()
    load(resumed, tmp_path, 5, RayPPOTrainer._load_checkpoint)
    assert [numbers_of(batch) for batch in resumed.train_dataloader] == epochs[0]


def test_steps_of_another_size_go_on_in_the_same_order(make_trainer, tmp_path):
    trainer = make_trainer()
    next_step(trainer)
    save(trainer, tmp_path, 1)
    expected = [next_step(trainer) for _ in range(4)]
    close(trainer)
    resumed = make_trainer(train_batch_size=4)
    load(resumed, tmp_path, 1)
    smaller = [next_step(resumed) for _ in range(8)]
    close(resumed)
    assert list(itertools.chain(*smaller)) == list(itertools.chain(*expected))
    other_workers = make_trainer(dataloader_num_workers=3)
    load(other_workers, tmp_path, 1)
    with pytest.raises(AssertionError):
        next_step(other_workers)


def test_a_position_in_other_data_is_no_error(make_trainer, tmp_path):
    """Because verl's state has positions only. Without its file, the data begins anew."""
    trainer = make_trainer()
    first = next_step(trainer)
    save(trainer, tmp_path, 1)
    close(trainer)
    write_shards(str(tmp_path / "other"), PROMPTS - 10)
    resumed = make_trainer(train_files=[str(tmp_path / "other")])
    load(resumed, tmp_path, 1)
    assert len(next_step(resumed)) == len(first)
    close(resumed)
    (tmp_path / "global_step_1" / "data.pt").unlink()
    begun_anew = make_trainer()
    load(begun_anew, tmp_path, 1)
    assert next_step(begun_anew) == first
    close(begun_anew)


def test_prompts_are_what_verl_makes_of_its_own_files(make_trainer):
    """Its answers and numbers too."""
    trainer = make_trainer(train_max_samples=8, shuffle=False)
    assert len(trainer.val_dataset) == PROMPTS
    assert trainer.train_dataset[7]["raw_prompt"] == [{"role": "user", "content": "question 7"}]
    (batch,) = trainer.train_dataloader
    assert numbers_of(batch) == [f"question {number}" for number in range(8)]
    assert batch["index"].tolist() == [*range(8)]
    assert json.loads(json.dumps(batch["reward_model"][3])) == {
        "style": "rule",
        "ground_truth": "3",
    }


def test_filtering_long_prompts_is_refused(make_trainer):
    with pytest.raises(ValueError, match=r"set data\.filter_overlong_prompts=False"):
        make_trainer(filter_overlong_prompts=True)


def test_pictures_are_paths(make_trainer, tmp_path):
    place = str(tmp_path / "pictures")
    row = {"prompt": [{"role": "user", "content": "<image>What?"}], "images": ["a.png"]}
    with MDSWriter(place, {"prompt": "json", "images": "json"}) as writer:
        for _ in range(8):
            writer.write(row)
    dataset = make_trainer(train_files=[place]).train_dataset
    dataset.processor = object()  # verl asserts that there is one
    (message,) = dataset[0]["raw_prompt"]
    assert message["content"] == [
        {"type": "image", "image": "a.png"},
        {"type": "text", "text": "What?"},
    ]
