"""Packs are what the collator of Hugging Face makes of the same documents."""

import itertools

import numpy as np
import pytest
import torch

from mds import MDSWriter, Packing, StreamingDataLoader, StreamingDataset
from tests.skip_reasons import not_installed


def test_ten_thousand_packs_are_those_of_the_flattening_collator(tmp_path):
    """Array by array: ids, labels, positions, where documents begin, the longest one."""
    transformers = pytest.importorskip("transformers", reason=not_installed("transformers"))
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    rng, folder = np.random.default_rng(1), str(tmp_path)
    with MDSWriter(out=folder, columns={"tokens": "ndarray:uint16"}, lengths="tokens") as writer:
        for _ in range(42_000):
            tokens = rng.integers(0, 50_000, int(rng.integers(1, 60))).astype(np.uint16)
            writer.write({"tokens": tokens})
    dataset = StreamingDataset(
        local=folder, shuffle=True, shuffle_algo="seekable", batch_size=1, packing=Packing(120)
    )
    seen = 0
    for batch in itertools.islice(StreamingDataLoader(dataset), 10_000):
        ends = batch["cu_seqlens"].tolist()
        documents = [batch["tokens"][a:b].tolist() for a, b in itertools.pairwise(ends)]
        theirs = collate([{"input_ids": document} for document in documents])
        assert torch.equal(batch["tokens"], theirs["input_ids"][0])
        assert torch.equal(batch["labels"], theirs["labels"][0])
        assert torch.equal(batch["position_ids"], theirs["position_ids"][0])
        assert torch.equal(batch["cu_seqlens"], theirs["cu_seq_lens_q"])
        assert batch["cu_seqlens"].dtype == theirs["cu_seq_lens_q"].dtype
        assert batch["max_seqlen"] == theirs["max_length_q"]
        seen += 1
    assert seen == 10_000
