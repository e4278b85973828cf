"""A published annealing mix, typed in as a schedule: a stop and a start change no bit of the loss.

The shares are those of the two stages of OLMo 2 7B (arXiv:2501.00656): pretraining, and the 50
billion tokens of its mid-training.
"""

import copy
import itertools
import json

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from mds import MDSWriter, Schedule, Stream, StreamingDataLoader, StreamingDataset

PRETRAINING = {"dclm": 95.1, "starcoder": 2.13, "pes2o": 1.5, "arxiv": 0.53, "openwebmath": 0.31,
               "algebraic": 0.3, "wiki": 0.09}  # fmt: skip
ANNEALING = {"dclm": 47.2, "flan": 16.6, "pes2o": 5.85, "wiki": 7.11, "stackexchange": 2.45,
             "math": 20.8}  # fmt: skip
NAMES = sorted({*PRETRAINING, *ANNEALING})
KNOT, STEPS, BATCH, WORDS, LENGTH = 24, 36, 64, 40, 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A little of each source; tokens of each are drawn from words of its own."""
    made = tmp_path_factory.mktemp("sources")
    for number, name in enumerate(NAMES):
        rng = np.random.default_rng(number)
        columns = {"tokens": f"ndarray:int64:{LENGTH}", "source": "int32"}
        with MDSWriter(out=str(made / name), columns=columns, size_limit=1 << 13) as writer:
            for _ in range(1200 if name == "dclm" else 90):
                words = (rng.integers(0, 12, LENGTH) + 3 * number) % WORDS
                writer.write({"tokens": words, "source": number})
    return made


class Run:
    """A small model in training, with everything that a checkpoint has."""

    def __init__(self, folder):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(
            torch.nn.Embedding(WORDS, 16), torch.nn.Linear(16, 32), torch.nn.GELU(),
            torch.nn.Linear(32, WORDS),
        ).double()  # fmt: skip
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2)
        dataset = StreamingDataset(
            streams={name: Stream(local=str(folder / name)) for name in NAMES},
            schedule=Schedule({0: PRETRAINING, KNOT: ANNEALING}), shuffle=True, batch_size=BATCH,
        )  # fmt: skip
        self.loader = StreamingDataLoader(dataset, num_workers=2)

    def checkpoint(self):
        """Model, optimizer and loader, as they would be saved."""
        parts = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))
        return (*parts, json.dumps(self.loader.state_dict()))

    def load(self, checkpoint):
        """Go on from a checkpoint."""
        model, optimizer, loader = checkpoint
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        self.loader.load_state_dict(json.loads(loader))

    def steps(self):
        """Train; after each step the loss, and how many samples of each source it had."""
        for batch in itertools.chain.from_iterable(itertools.repeat(self.loader)):
            tokens = batch["tokens"]
            logits = self.model(tokens[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, WORDS), tokens[:, 1:].reshape(-1))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            yield loss.item(), np.bincount(batch["source"], minlength=len(NAMES))


@pytest.fixture
def one_thread():
    """Sums of floats depend on how they are split."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_an_interrupted_training_has_the_same_loss_to_the_last_bit(folder):
    """Stopped before the mix changes, where it does, and after it."""
    whole = Run(folder)
    expected, checkpoints = [], []
    for loss, _ in itertools.islice(whole.steps(), STEPS):
        expected.append(loss)
        checkpoints.append(whole.checkpoint())
    assert expected[-1] < expected[0]
    for stop in (1, KNOT - 1, KNOT, KNOT + 7):
        again = Run(folder)
        again.load(checkpoints[stop - 1])
        found = [loss for loss, _ in itertools.islice(again.steps(), STEPS - stop)]
        assert found == expected[stop:]


def test_every_step_has_the_published_shares(folder):
    """Within a sample or two of each source, from the knot on those of the second stage."""
    counts = np.array([count for _, count in itertools.islice(Run(folder).steps(), STEPS)])
    for stage, rows in ((PRETRAINING, counts[:KNOT]), (ANNEALING, counts[KNOT:])):
        shares = np.array([stage.get(name, 0.0) for name in NAMES])
        due = np.cumsum(np.full((len(rows), 1), BATCH) * shares / shares.sum(), axis=0)
        assert np.abs(np.cumsum(rows, axis=0) - due).max() < 3
        assert (rows.sum(axis=1) == BATCH).all()
