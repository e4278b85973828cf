"""Training on packs is training on their documents: masks, positions and labels are right."""

import torch

from tests.unit.loader import packed_loss_helpers
from tests.unit.loader.packed_loss_helpers import SmallGPT, loader, loss_of

# Fixtures of both halves of these tests.
corpus = packed_loss_helpers.corpus


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
