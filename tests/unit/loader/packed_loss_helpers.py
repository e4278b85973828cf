"""Helpers of the tests of packed loss, in this folder and in tests/programs/loader."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from mds import MDSWriter, Packing, StreamingDataLoader, StreamingDataset

WORDS, WIDTH, HEADS, PLACES = 50, 24, 3, 64


class SmallGPT(torch.nn.Module):
    """Two layers of attention and two of neurons, in float64; the mask is the caller's."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(WORDS, WIDTH)
        self.places = torch.nn.Embedding(PLACES, WIDTH)
        self.blocks = torch.nn.ModuleList(
            torch.nn.ModuleList(
                [
                    torch.nn.LayerNorm(WIDTH),
                    torch.nn.Linear(WIDTH, 3 * WIDTH),
                    torch.nn.Linear(WIDTH, WIDTH),
                    torch.nn.LayerNorm(WIDTH),
                    torch.nn.Linear(WIDTH, 2 * WIDTH),
                    torch.nn.Linear(2 * WIDTH, WIDTH),
                ]
            )
            for _ in range(2)
        )
        self.head = torch.nn.Linear(WIDTH, WORDS)
        self.double()

    def forward(self, tokens, positions, mask):
        """Logits; ``mask`` (rows, length, length) says which place a place may attend to."""
        x = self.words(tokens) + self.places(positions)
        rows, length = tokens.shape
        for norm, qkv, out, second, up, down in self.blocks:
            q, k, v = (
                part.view(rows, length, HEADS, -1).transpose(1, 2)
                for part in qkv(norm(x)).split(WIDTH, dim=-1)
            )
            scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
            weights = scores.masked_fill(~mask[:, None], -math.inf).softmax(-1)
            x = x + out((weights @ v).transpose(1, 2).reshape(rows, length, WIDTH))
            x = x + down(F.gelu(up(second(x))))
        return self.head(x)


def loss_of(logits, labels):
    """The sum of the losses of all labels, each predicted by the place before, and their count."""
    shifted = labels[..., 1:].reshape(-1)
    found = F.cross_entropy(
        logits[..., :-1, :].reshape(-1, WORDS), shifted, ignore_index=-100, reduction="sum"
    )
    return found, int((shifted != -100).sum())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Short documents of few words, some longer than a pack."""
    folder = str(tmp_path_factory.mktemp("words"))
    rng = np.random.default_rng(3)
    with MDSWriter(out=folder, columns={"tokens": "ndarray:int16"}, lengths="tokens") as writer:
        for i in range(60):
            length = 90 if i % 40 == 7 else int(rng.integers(1, 40))
            writer.write({"tokens": rng.integers(0, WORDS, length).astype(np.int16)})
    return folder


def loader(folder, layout):
    packing = Packing(PLACES, overflow="split", layout=layout)
    dataset = StreamingDataset(local=folder, shuffle=True, shuffle_algo="seekable", batch_size=4,
                               packing=packing)  # fmt: skip
    return StreamingDataLoader(dataset)
