"""StreamingTrainer on one rank: which position a training begins at, and what a model gets."""

import importlib
import json
import multiprocessing
import os

import numpy as np
import pytest
import torch

from mds import MDSWriter, Packing, Schedule, Stream, StreamingDataLoader, StreamingDataset
from mds.errors import ConfigError, StateError
from tests.skip_reasons import not_installed

transformers = pytest.importorskip("transformers", reason=not_installed("transformers"))
trl = pytest.importorskip("trl", reason=not_installed("trl"))

from mds.integrations._model_inputs import ModelInputs, SampleCollator  # noqa: E402 - as below
from mds.integrations._model_loader import ModelLoader, TrainingLoader  # noqa: E402 - as below
from mds.integrations._position_file import POSITION_FILE  # noqa: E402 - as below
from mds.integrations.transformers import StreamingTrainer  # noqa: E402 - it may be missing

pytestmark = pytest.mark.filterwarnings("default")  # those of other libraries are no errors here

DOCUMENTS = 40


class SFTTrainer(StreamingTrainer, trl.SFTTrainer):
    """SFTTrainer whose datasets may be StreamingDatasets."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Documents of 3 tokens, which are all the number of the document and 2."""
    out = str(tmp_path_factory.mktemp("documents") / "data")
    with MDSWriter(out, {"tokens": "ndarray:uint16"}, lengths="tokens") as writer:
        for number in range(DOCUMENTS):
            writer.write({"tokens": np.full(3, number + 2, np.uint16)})
    return out


def make_model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, max_position_embeddings=64, bos_token_id=0, eos_token_id=0,
        pad_token_id=1, attention_dropout=0.5,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = Tokenizer(WordLevel({f"w{n}": n for n in range(64)}, unk_token="w0"))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="w0", pad_token="w1"
    )


class Run:
    """A trainer, and the documents of each batch of its model."""

    def __init__(self, cls, out, tokenizer, dataset, **options):
        self.steps, self.losses = [], []
        eval_dataset = options.pop("eval_dataset", None)
        make = trl.SFTConfig if issubclass(cls, trl.SFTTrainer) else transformers.TrainingArguments
        arguments = make(
            output_dir=str(out), use_cpu=True, report_to=[], disable_tqdm=True, bf16=False,
            per_device_eval_batch_size=2, logging_steps=1,
            **{"save_steps": 2, "max_steps": 6, "per_device_train_batch_size": 2, **options},
        )  # fmt: skip
        others = {"processing_class": tokenizer}
        if make is transformers.TrainingArguments:
            others["data_collator"] = transformers.DataCollatorForLanguageModeling(
                tokenizer, mlm=False
            )
        model = make_model()
        self.trainer = cls(
            model, arguments, train_dataset=dataset, eval_dataset=eval_dataset, **others
        )
        model.register_forward_pre_hook(self.write_down, with_kwargs=True)

    def write_down(self, module, arguments, inputs):
        self.inputs = inputs
        if module.training:
            self.steps.append(sorted(set(inputs["input_ids"].flatten().tolist()) - {0, 1}))

    def train(self, *arguments):
        """Train, and return the documents of each batch."""
        self.steps = []
        self.trainer.train(*arguments)
        return self.steps


@pytest.fixture(params=[transformers.Trainer, trl.SFTTrainer], ids=["transformers", "trl"])
def run(request, tmp_path, tokenizer, folder):
    """Make a run whose output is a folder of ``tmp_path``."""
    cls = SFTTrainer if request.param is trl.SFTTrainer else StreamingTrainer

    def make(out="out", packing=None, **options):
        dataset = StreamingDataset(folder, shuffle=True, packing=packing)
        return Run(cls, tmp_path / out, tokenizer, dataset, **options)

    return make


@pytest.mark.parametrize("packing", [None, 8])
def test_a_run_begins_at_the_checkpoint_that_it_is_given(run, packing, tmp_path):
    """Not at the newest of its folder; without one, at the beginning."""
    first = run(packing=packing)
    whole = first.train()
    assert len(whole) == 6
    assert len({tuple(step) for step in whole}) == 6
    assert first.train() == whole  # the same trainer again
    assert run(packing=packing).train() == whole  # in a folder with checkpoints
    assert run("new", packing).train(str(tmp_path / "out" / "checkpoint-2")) == whole[2:]
    resumed = run(packing=packing, max_steps=8)
    assert resumed.train(True) == run("other", packing, max_steps=8).train()[6:]


def test_a_resumed_training_is_the_undisturbed_one(run, tmp_path):
    """Its dropout, losses and numbers of epochs too."""
    whole = run()
    whole.train()
    resumed = run("new")
    resumed.train(str(tmp_path / "out" / "checkpoint-4"))
    logs = [
        [(log["step"], log["loss"], log["epoch"]) for log in history if "loss" in log]
        for history in (whole.trainer.state.log_history, resumed.trainer.state.log_history)
    ]
    assert logs[0] == logs[1]
    assert logs[0][-1][::2] == (6, pytest.approx(6 * 2 / DOCUMENTS))


def test_a_checkpoint_of_the_last_batch_begins_the_next_epoch(run, tmp_path):
    steps = DOCUMENTS // 2
    whole = run(max_steps=steps + 3, save_steps=steps).train()
    resumed = run("new", max_steps=steps + 3)
    assert resumed.train(str(tmp_path / "out" / f"checkpoint-{steps}")) == whole[steps:]
    assert len(whole[steps:]) == 3


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """Documents of 3 to 14 tokens, whose packs of 16 tokens differ in number between epochs."""
    out = str(tmp_path_factory.mktemp("uneven") / "data")
    lengths = np.random.default_rng(0).integers(3, 15, DOCUMENTS)
    with MDSWriter(out, {"tokens": "ndarray:uint16"}, lengths="tokens") as writer:
        for number, length in enumerate(lengths):
            writer.write({"tokens": np.full(length, number + 2, np.uint16)})
    return out


@pytest.mark.parametrize("batches", [1, 2])
def test_epochs_of_packs_have_the_steps_of_the_first(tmp_path, tokenizer, uneven, batches):
    """No document is left out, and a resume ends with the same step."""

    def make(out):
        dataset = StreamingDataset(uneven, shuffle=True, packing=Packing(16, window=1))
        options = {"gradient_accumulation_steps": batches}
        return Run(
            StreamingTrainer, tmp_path / out, tokenizer, dataset, max_steps=-1,
            num_train_epochs=3, save_strategy="epoch", per_device_train_batch_size=1, **options,
        )  # fmt: skip

    first = make("out")
    whole = first.train()
    state = first.trainer.state
    steps = state.global_step // 3
    assert (state.global_step, state.epoch) == (steps * 3, 3)
    assert len(whole) == state.global_step * batches
    # The batches of the dataset's epochs, which follow each other.
    documents = []
    dataset = StreamingDataset(uneven, batch_size=1, shuffle=True, packing=Packing(16, window=1))
    loader = StreamingDataLoader(dataset, microbatches=batches)
    lengths = []
    for _ in range(4):
        epoch = [sorted(set(batch["tokens"].tolist()) - {0, 1}) for batch in loader]
        documents += epoch
        lengths.append(len(epoch))
    assert len(set(lengths)) > 1
    assert steps * batches == lengths[0]
    assert whole == documents[: len(whole)]
    resumed = make("new")
    checkpoint = str(tmp_path / "out" / f"checkpoint-{steps}")
    assert resumed.train(checkpoint) == whole[steps * batches :]
    saved = {path.name for path in (tmp_path / "new").glob("checkpoint-*")}
    assert saved == {f"checkpoint-{epoch * steps}" for epoch in (2, 3)}


def test_edits_do_not_change_the_steps_of_an_epoch(tmp_path, tokenizer, uneven):
    """A resumed run has the epochs and the last step of the undisturbed one."""

    class Edit(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **objects):
            if state.global_step == 2:
                first.trainer.train_dataset.edits.replace_samples(range(15), reason="bad")

    def make(out):
        dataset = StreamingDataset(uneven, shuffle=True, packing=Packing(16, window=1))
        return Run(
            StreamingTrainer, tmp_path / out, tokenizer, dataset, max_steps=-1,
            num_train_epochs=2, save_steps=8, per_device_train_batch_size=1,
        )  # fmt: skip

    first = make("out")
    first.trainer.add_callback(Edit())
    whole = first.train()
    assert make("new").train(str(tmp_path / "out" / "checkpoint-8")) == whole[8:]


def test_a_schedule_ends_the_training(tmp_path, tokenizer, folder):
    """Though the Trainer counts on more epochs of as many steps."""
    dataset = StreamingDataset(
        {"a": Stream(folder)}, shuffle=True, schedule=Schedule({0: {"a": 1}}, exhausted="stop")
    )
    run = Run(StreamingTrainer, tmp_path, tokenizer, dataset, max_steps=-1, num_train_epochs=2)
    assert len(run.train()) == DOCUMENTS // 2


@pytest.mark.parametrize("options", [{}, {"max_steps": -1}])
def test_a_training_without_a_step_is_refused(run, options):
    trainer = run(per_device_train_batch_size=64, dataloader_drop_last=True, **options)
    with pytest.raises(ConfigError, match="an epoch has no step of 64 samples or packs"):
        trainer.train()


def test_ranks_with_fewer_batches_are_refused(folder):
    """The others would wait for them."""
    dataset = StreamingDataset(folder, topology=(0, 2), remainder="short")
    inputs = ModelInputs(make_model(), ["labels"])
    with pytest.raises(ConfigError, match="gives ranks different numbers of batches"):
        TrainingLoader(dataset, SampleCollator(list), inputs, 2, 3)
    assert len(TrainingLoader(dataset, SampleCollator(list), inputs, 2, 3, drop_last=True)) == 6


def test_several_batches_of_a_step(run, tmp_path):
    """The position is that after the last step, though a step fetches its batches at once."""
    options = {"gradient_accumulation_steps": 3, "dataloader_drop_last": True}
    whole = run(**options).train()
    assert len(whole) == 18
    resumed = run("new", **options)
    assert resumed.train(str(tmp_path / "out" / "checkpoint-4")) == whole[12:]
    with pytest.raises(ConfigError, match="its last step has fewer than the others, which have 3"):
        run(gradient_accumulation_steps=3).train()


def test_a_checkpoint_within_a_step_has_the_position_before_it(run, tmp_path):
    """As a preempted job saves one: the batches of the step come again."""

    class Preemption(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **objects):
            if state.global_step == 3:
                first.trainer._save_checkpoint(first.trainer.model, None)

    first = run(enable_jit_checkpoint=True)
    first.trainer.add_callback(Preemption())
    whole = first.train()
    assert run("new").train(str(tmp_path / "out" / "checkpoint-3")) == whole[3:]


def test_evaluation_counts_each_sample_once(run, folder):
    """Padding has no labels."""
    dataset = StreamingDataset(folder, remainder="mask").select(range(7))
    evaluated = []
    first = run(eval_dataset={"a": dataset, "b": dataset})
    first.trainer.model.register_forward_pre_hook(
        lambda module, args, inputs: evaluated.append(inputs["labels"].tolist()), with_kwargs=True
    )
    metrics = first.trainer.evaluate()
    assert {"eval_a_loss", "eval_b_loss"} <= metrics.keys()
    labels = [label for batch in evaluated for row in batch for label in row if label != -100]
    assert sorted(labels) == sorted(number + 2 for number in range(7) for _ in range(3 * 2))


def test_an_evaluation_divides_by_the_labels_of_all_ranks(run, folder, monkeypatch):
    """A rank whose batch is padding has none, and must not make the mean smaller."""
    dataset = StreamingDataset(folder, remainder="mask").select(range(7))
    trainer = run(eval_dataset=dataset).trainer
    loss = trainer.evaluate()["eval_loss"]
    count = trainer._get_num_items_in_batch
    monkeypatch.setattr(trainer, "_get_num_items_in_batch", lambda *a: 2 * count(*a))
    assert trainer.evaluate()["eval_loss"] == pytest.approx(loss / 2)


def test_a_trainer_may_compute_the_loss_itself(tmp_path, tokenizer, folder):
    """And give the arguments of `compute_loss` by position."""

    class Halved(StreamingTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            return (loss[0] / 2, loss[1]) if return_outputs else loss / 2

    losses = []
    for cls in (StreamingTrainer, Halved):
        dataset = StreamingDataset(folder, shuffle=True)
        run = Run(cls, tmp_path, tokenizer, dataset, max_steps=1, eval_dataset=[{"input_ids": [2]}])
        run.train()
        losses.append(run.trainer.state.log_history[0]["loss"])
    assert losses[1] == pytest.approx(losses[0] / 2)


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("SequenceClassification", {"labels": "float32"}),
        ("QuestionAnswering", {"start_positions": "int64", "end_positions": "int64"}),
    ],
)
def test_padding_of_labels_that_cannot_be_ignored_is_refused(tmp_path, kind, labels):
    """A mean squared error would count -100, and the loss of positions would take it for 0."""
    out = str(tmp_path / "scores")
    with MDSWriter(out, {"input_ids": "ndarray:int64", **labels}) as writer:
        for number in range(5):
            values = {name: np.dtype(dtype).type(1) for name, dtype in labels.items()}
            writer.write({"input_ids": np.full(3, number + 2), **values})
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8, num_labels=1 if "labels" in labels else 2,
    )  # fmt: skip
    model = getattr(transformers, f"BertFor{kind}")(config)
    arguments = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True, per_device_eval_batch_size=2
    )
    trainer = StreamingTrainer(model, arguments, transformers.default_data_collator)
    dataset = StreamingDataset(out, remainder="mask")
    assert trainer.evaluate(dataset.select(range(4)))["eval_loss"] < 10
    with pytest.raises(ConfigError, match="', whose loss does not ignore -100"):
        trainer.evaluate(dataset)


def test_predictions_are_those_of_each_sample(run, folder):
    """In the order of the dataset; padding, which fills the last batch, has no labels."""
    dataset = StreamingDataset(folder, remainder="mask").select(range(7))
    output = run().trainer.predict(dataset)
    labels = output.label_ids.max(axis=1)
    assert labels[labels != -100].tolist() == [number + 2 for number in range(7)]
    assert len(output.predictions) == len(labels)


def test_the_training_dataset_is_not_evaluated(run):
    """It would change the order of the next epoch."""
    first = run()
    with pytest.raises(ConfigError, match="Create another StreamingDataset of the same data"):
        first.trainer.evaluate(first.trainer.train_dataset)


def test_a_training_dataset_may_be_assigned(tmp_path, tokenizer, folder):
    """Before the training, in place of one of another kind."""
    rows = [{"input_ids": [2, 3]}] * 4
    later = Run(StreamingTrainer, tmp_path / "later", tokenizer, rows)
    later.trainer.train_dataset = StreamingDataset(folder, shuffle=True)
    whole = Run(
        StreamingTrainer, tmp_path / "whole", tokenizer, StreamingDataset(folder, shuffle=True)
    )
    assert later.train() == whole.train()
    first, second = (StreamingDataset(folder, shuffle=True).select(range(10)) for _ in range(2))
    later.trainer.train_dataset = first  # another one, at its own beginning
    assert later.train() == Run(StreamingTrainer, tmp_path / "rows", tokenizer, second).train()
    assert not later.trainer.args.ignore_data_skip
    later.trainer.train_dataset = [{"input_ids": [2, 3]}] * 16  # of another kind again
    os.remove(tmp_path / "later" / "checkpoint-6" / POSITION_FILE)
    later.train()
    assert not (tmp_path / "later" / "checkpoint-6" / POSITION_FILE).exists()


def test_a_batch_size_of_a_trainer_is_not_the_datasets_own(tmp_path, tokenizer, folder):
    """The next trainer of the dataset may have another one."""
    dataset = StreamingDataset(folder, shuffle=True)
    for size in (2, 4, 3):
        run = Run(
            StreamingTrainer, tmp_path, tokenizer, dataset, max_steps=1,
            per_device_train_batch_size=size,
        )  # fmt: skip
        assert [len(step) for step in run.train()] == [size]
        if size == 4:
            dataset = dataset.select(range(10))  # after it was trained on
    dataset.batch_size = 5  # of the user
    with pytest.raises(ConfigError, match="batch_size=5, but the trainer has 2"):
        Run(StreamingTrainer, tmp_path, tokenizer, dataset, max_steps=1).train()


def test_a_smaller_batch_is_tried_after_a_lack_of_memory(run):
    """From the beginning of the data."""

    def fail(module, args, inputs):
        if len(inputs["input_ids"]) == 2:
            raise RuntimeError("CUDA out of memory.")

    smaller = run(auto_find_batch_size=True)
    smaller.trainer.model.register_forward_pre_hook(fail, with_kwargs=True)
    whole = run("other", per_device_train_batch_size=1)
    assert [step for step in smaller.train() if len(step) == 1] == whole.train()


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_of_a_larger_batch_are_stopped(run, persistent):
    """And all of them after the training."""
    workers = []

    def fail(module, args, inputs):
        workers.append(len(multiprocessing.active_children()))
        if len(inputs["input_ids"]) > 2:
            raise RuntimeError("CUDA out of memory.")

    smaller = run(
        auto_find_batch_size=True, per_device_train_batch_size=4, dataloader_num_workers=1,
        dataloader_persistent_workers=persistent, max_steps=1,
    )  # fmt: skip
    smaller.trainer.model.register_forward_pre_hook(fail, with_kwargs=True)
    smaller.train()
    assert workers == [1, 1, 1]  # with batches of 4, 3 and 2
    assert multiprocessing.active_children() == []


def test_packs_have_what_every_kind_of_attention_needs(run):
    """One row, in which positions and lengths tell the documents apart."""
    first = run(packing=8, max_steps=1)
    first.train()
    inputs = first.inputs
    size = inputs["input_ids"].shape[1]
    assert inputs["position_ids"].tolist() == [[0, 1, 2] * (size // 3)]
    assert inputs["cu_seq_lens_q"].tolist() == [*range(0, size + 1, 3)]
    assert inputs["max_length_k"] == 3
    assert inputs["labels"].tolist()[0][::3] == [-100] * (size // 3)
    assert "seq_idx" not in inputs, "Llama does not use it"


@pytest.mark.parametrize("module", [__name__, "nowhere"])
def test_a_model_that_may_use_them_gets_the_numbers_of_documents(folder, module):
    """Its source names ``seq_idx``, or cannot be read."""
    kind = type("Model", (transformers.LlamaForCausalLM,), {"__module__": module})
    inputs = ModelInputs(kind(make_model().config), ["labels"])
    dataset = StreamingDataset(folder, topology=(0, 1), packing=8)
    loader = ModelLoader(dataset, SampleCollator(list), inputs, 1, 2)
    numbers = next(iter(loader))["seq_idx"]
    assert numbers.tolist() == [[i // 3 for i in range(numbers.numel())]]


@pytest.mark.parametrize("layout", [{"layout": "dense"}, {"labels": "shifted"}])
def test_packs_that_such_a_model_misreads_are_refused(run, layout):
    with pytest.raises(ConfigError, match="models of transformers shift labels themselves"):
        run(packing=Packing(8, **layout)).train()


def test_a_batch_without_the_input_of_the_model_is_refused(tmp_path, tokenizer, folder):
    """At the first batch; a data collator that is given gets the columns as they are."""
    dataset = StreamingDataset(folder).map(lambda sample: {"text_ids": sample["tokens"]})
    run = Run(StreamingTrainer, tmp_path, tokenizer, dataset, remove_unused_columns=False)
    run.trainer.data_collator = transformers.default_data_collator
    with pytest.raises(ConfigError, match="takes 'input_ids', but a batch has 'text_ids'"):
        run.train()


def test_other_ranks_and_batch_sizes_are_refused(tmp_path, tokenizer, folder):
    dataset = StreamingDataset(folder, topology=(0, 2))
    with pytest.raises(ConfigError, match="has 2 ranks, but the trainer has 1"):
        Run(StreamingTrainer, tmp_path, tokenizer, dataset).train()
    dataset = StreamingDataset(folder, batch_size=4)
    with pytest.raises(ConfigError, match="batch_size=4, but the trainer has 2"):
        Run(StreamingTrainer, tmp_path, tokenizer, dataset).train()


def test_a_checkpoint_without_a_position_is_refused(run, tmp_path):
    run().train()
    os.remove(tmp_path / "out" / "checkpoint-2" / POSITION_FILE)
    with pytest.raises(StateError, match="has no position of a StreamingDataset"):
        run("new").train(str(tmp_path / "out" / "checkpoint-2"))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("packing", "packing=True of SFTConfig has no effect"),
        ("assistant_only_loss", "assistant_only_loss=True of SFTConfig masks no labels"),
        ("completion_only_loss", "completion_only_loss=True of SFTConfig masks no labels"),
    ],
)
def test_options_of_trl_that_would_have_no_effect_are_refused(
    tmp_path, tokenizer, folder, option, message
):
    with pytest.raises(ConfigError, match=message):
        Run(SFTTrainer, tmp_path, tokenizer, StreamingDataset(folder), **{option: True})


def test_a_trainer_that_repeats_prompts_is_refused(tokenizer, folder):
    """Its groups of completions would be of different prompts."""

    class GRPOTrainer(StreamingTrainer, trl.GRPOTrainer):
        pass

    with pytest.raises(ConfigError, match="GRPOTrainer makes its own batches"):
        GRPOTrainer(make_model(), len, train_dataset=StreamingDataset(folder))


def make_pairs(folder):
    """Write pairs of completions whose first one is as long as their prompt."""
    columns = ["prompt_ids", "chosen_ids", "rejected_ids"]
    with MDSWriter(folder, dict.fromkeys(columns, "ndarray:int64")) as writer:
        for number in range(7):
            values = [np.full(size, number + 2) for size in (2, 2, 3)]
            writer.write(dict(zip(columns, values, strict=True)))
    return folder


def make_preference_trainer(tmp_path, tokenizer, collator=None, **options):
    class DPOTrainer(StreamingTrainer, trl.DPOTrainer):
        pass

    folder = make_pairs(str(tmp_path / "pairs"))
    arguments = trl.DPOConfig(
        str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True, bf16=False, max_steps=2,
        per_device_train_batch_size=2, **options,
    )  # fmt: skip
    return DPOTrainer(
        make_model(), make_model(), arguments, train_dataset=StreamingDataset(folder),
        eval_dataset=StreamingDataset(folder, remainder="mask"), processing_class=tokenizer,
        data_collator=collator,
    )  # fmt: skip


def test_a_collator_that_derives_from_one_of_trl(tmp_path, tokenizer):
    """It concatenates lists too, where arrays would be added."""
    base = importlib.import_module("trl.trainer.dpo_trainer").DataCollatorForPreference
    collator = type("Collator", (base,), {})(pad_token_id=1)
    trainer = make_preference_trainer(tmp_path, tokenizer, collator)
    batch = next(iter(trainer.get_train_dataloader()))
    assert batch["input_ids"].tolist()[0] == [2] * 4 + [1]


def test_pairs_of_a_preference_trainer(tmp_path, tokenizer):
    """A completion follows its prompt; padding, which has no labels, is refused."""
    trainer = make_preference_trainer(tmp_path, tokenizer)
    rows = []
    trainer.model.register_forward_pre_hook(
        lambda module, args, inputs: rows.append(inputs["input_ids"].tolist()), with_kwargs=True
    )
    trainer.train()
    assert rows[0] == [[2] * 4 + [1], [3] * 4 + [1], [2] * 5, [3] * 5]
    with pytest.raises(ConfigError, match="these have no 'labels' to set to -100"):
        trainer.evaluate()
    with pytest.raises(ConfigError, match="precompute_ref_log_probs=True of DPOConfig reads"):
        make_preference_trainer(tmp_path / "other", tokenizer, precompute_ref_log_probs=True)


def test_arguments_by_position_and_datasets_that_trl_need_not_prepare(tmp_path, tokenizer, folder):
    arguments = trl.SFTConfig(
        str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True, bf16=False, max_steps=1,
        dataset_kwargs={"skip_prepare_dataset": True},
    )  # fmt: skip
    datasets = [StreamingDataset(folder), StreamingDataset(folder, remainder="mask")]
    trainer = SFTTrainer(make_model(), arguments, None, *datasets, tokenizer)
    trainer.train()
    assert "eval_loss" in trainer.evaluate(datasets[1])


def test_other_datasets_work_as_before(tmp_path, tokenizer):
    """They are tokenized and packed by TRL, and checkpoints have no position of ours."""
    import datasets

    rows = datasets.Dataset.from_dict({"text": ["w2 w3", "w4 w5"] * 8})
    run = Run(SFTTrainer, tmp_path, tokenizer, rows, max_steps=2, packing=True, max_length=8)
    assert len(run.train()) == 2
    assert not (tmp_path / "checkpoint-2" / POSITION_FILE).exists()
    assert json.loads((tmp_path / "checkpoint-2" / "trainer_state.json").read_text())["epoch"]
