"""Training on packs is training on their documents: masks, positions and labels are right."""

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


def loader(folder, pack_as):
    packing = Packing(PLACES, overflow="split")
    dataset = StreamingDataset(local=folder, shuffle=True, shuffle_algo="seekable", batch_size=4,
                               packing=packing)  # fmt: skip
    return StreamingDataLoader(dataset, pack_as=pack_as)


def losses(model, folder):
    """The loss by label and its gradient: dense, varlen, and document by document."""
    total = {"dense": 0.0, "varlen": 0.0, "alone": 0.0}
    count = dict.fromkeys(total, 0)
    for batch in loader(folder, "dense"):
        documents = batch["document_ids"]
        mask = (documents[:, :, None] == documents[:, None, :]).tril()
        logits = model(batch["tokens"], batch["position_ids"], mask)
        found, labels = loss_of(logits, batch["labels"])
        total["dense"] = total["dense"] + found
        count["dense"] += labels
    for batch in loader(folder, "varlen"):
        ends = batch["cu_seqlens"].long()
        number = torch.repeat_interleave(torch.arange(len(ends) - 1), ends.diff())
        mask = (number[:, None] == number[None, :]).tril()[None]
        logits = model(batch["tokens"][None], batch["position_ids"][None], mask)
        found, labels = loss_of(logits, batch["labels"][None])
        total["varlen"] = total["varlen"] + found
        count["varlen"] += labels
    for sample in StreamingDataset(local=folder, batch_size=1):
        tokens = torch.from_numpy(sample["tokens"].astype(np.int64))
        for piece in tokens.split(PLACES):
            length = len(piece)
            mask = torch.ones(1, length, length, dtype=torch.bool).tril()
            found, labels = loss_of(
                model(piece[None], torch.arange(length)[None], mask), piece[None]
            )
            total["alone"] = total["alone"] + found
            count["alone"] += labels
    return total, count


def test_the_loss_of_packs_is_that_of_their_documents(corpus):
    """Weighed by tokens, to the ninth digit; and so are all gradients."""
    model = SmallGPT()
    total, count = losses(model, corpus)
    assert count["dense"] == count["varlen"] == count["alone"] > 500
    means = {name: total[name] / count[name] for name in total}
    gradients = {}
    for name, mean in means.items():
        gradients[name] = torch.autograd.grad(mean, list(model.parameters()))
    for name in ("dense", "varlen"):
        assert abs((means[name] - means["alone"]).item()) < 1e-9
        for mine, theirs in zip(gradients[name], gradients["alone"], strict=True):
            assert torch.allclose(mine, theirs, rtol=0, atol=1e-9)


def test_a_wrong_mask_or_wrong_positions_would_show(corpus):
    """The same numbers without document boundaries are others: the test above can fail."""
    model = SmallGPT()
    batch = next(iter(loader(corpus, "dense")))
    documents = batch["document_ids"]
    right = (documents[:, :, None] == documents[:, None, :]).tril()
    whole = torch.ones_like(right).tril()
    loss, labels = loss_of(model(batch["tokens"], batch["position_ids"], right), batch["labels"])
    other, _ = loss_of(model(batch["tokens"], batch["position_ids"], whole), batch["labels"])
    assert abs((loss - other).item()) / labels > 1e-6
