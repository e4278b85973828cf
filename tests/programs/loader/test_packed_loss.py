"""Training on packs is training on their documents: masks, positions and labels are right."""

import numpy as np
import pytest
import torch

from mds import StreamingDataset
from tests.unit.loader import packed_loss_helpers
from tests.unit.loader.packed_loss_helpers import PLACES, SmallGPT, loader, loss_of

# Fixtures of both halves of these tests.
corpus = packed_loss_helpers.corpus


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


@pytest.mark.slow
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
