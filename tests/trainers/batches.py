"""Datasets and batches for the programs of trainers that leave them to the user."""

import harness
import torch


class OwnDocuments(torch.utils.data.Dataset):
    """All documents, for torch's own loader, whose sampler the trainer divides among the ranks."""

    def __init__(self, settings):
        self.tokens = harness.tokens_of_documents(settings)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"tokens": self.tokens[index]}


def pad(samples):
    """Return a batch of documents, padded to the longest, with shifted labels."""
    longest = max(len(sample["tokens"]) for sample in samples)
    tokens = torch.zeros(len(samples), longest, dtype=torch.int64)
    mask = torch.zeros_like(tokens)
    for row, sample in enumerate(samples):
        size = len(sample["tokens"])
        tokens[row, :size] = torch.as_tensor(sample["tokens"], dtype=torch.int64)
        mask[row, :size] = 1
    labels = torch.full_like(tokens, -100)
    labels[:, :-1] = tokens[:, 1:].where(mask[:, 1:] == 1, -100)
    return {"input_ids": tokens, "labels": labels, "attention_mask": mask}


def rows(batch):
    """Return a batch of packs as one row, with the names that models take."""
    return {
        "input_ids": batch["tokens"][None],
        "labels": batch["labels"][None],
        "position_ids": batch["position_ids"][None],
    }
