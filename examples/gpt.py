"""Train a small GPT on blocks of real text, stop anywhere, and go on where it stopped.

    python examples/gpt.py --steps 200
    python examples/gpt.py --steps 400        # goes on from the checkpoint of the first run
    torchrun --nproc-per-node 2 examples/gpt.py --steps 600

The text is what every machine has: the sources of Python's standard library, as bytes. Give
``--text FILE`` for your own.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sysconfig

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from mds import MDSWriter, StreamingDataLoader, StreamingDataset

BLOCK = 64  # bytes of context


def corpus(path: str | None) -> bytes:
    """The text to learn, about 2 MB of it."""
    if path:
        return pathlib.Path(path).read_bytes()
    files = sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return b"\n".join(file.read_bytes() for file in files)[: 1 << 21]


def convert(out: str, text: bytes) -> None:
    """Write blocks of BLOCK + 1 bytes, so that each has its inputs and its targets."""
    columns = {"tokens": f"ndarray:uint8:{BLOCK + 1}"}
    with MDSWriter(columns=columns, out=out, compression="zstd") as writer:
        data = np.frombuffer(text, np.uint8)
        for start in range(0, len(data) - BLOCK, BLOCK):
            writer.write({"tokens": data[start : start + BLOCK + 1]})


class GPT(nn.Module):
    """A transformer over bytes."""

    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.places = nn.Embedding(BLOCK, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(BLOCK))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of the next byte at each place: (batch, BLOCK) to (batch, BLOCK, 256)."""
        x = self.tokens(tokens) + self.places.weight
        return self.head(self.layers(x, mask=self.mask, is_causal=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="/tmp/mds-gpt")
    parser.add_argument("--text")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32, help="blocks of all ranks together")
    parser.add_argument("--workers", type=int, default=2)
    settings = parser.parse_args()

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    if ranks > 1:
        dist.init_process_group("gloo")
    shards = os.path.join(settings.data, "shards")
    if rank == 0 and not os.path.exists(os.path.join(shards, "index.json")):
        convert(shards, corpus(settings.text))
    if ranks > 1:
        dist.barrier()

    torch.manual_seed(0)
    model: nn.Module = GPT()
    if ranks > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    dataset = StreamingDataset(local=shards, batch_size=settings.batch // ranks, shuffle=True)
    loader = StreamingDataLoader(dataset, num_workers=settings.workers, drop_last=True)

    # The position is one small dict, the same on every rank; another number of ranks may load it.
    checkpoint, step = os.path.join(settings.data, "checkpoint.pt"), 0
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint, weights_only=True)
        (model.module if ranks > 1 else model).load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["position"])
        step = saved["step"]

    while step < settings.steps:
        for batch in loader:
            tokens = batch["tokens"].long()
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and (step % 20 == 0 or step == settings.steps):
                print(f"step {step}: loss {loss.item():.3f}", flush=True)
            if step == settings.steps:
                break
    if rank == 0:
        torch.save(
            {
                "model": (model.module if ranks > 1 else model).state_dict(),
                "optimizer": optimizer.state_dict(),
                "position": loader.state_dict(),
                "step": step,
            },
            checkpoint,
        )
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
