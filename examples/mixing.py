"""Mix three sources, and shift the mixture as training goes on.

    python examples/mixing.py --epoch-size 600

The sources are code, prose (docstrings) and numbers, all from Python's standard library. Each
phase of the curriculum is a dataset with shares of its own over the same shards; its position is
saved like any other, so a run may stop within any phase.
"""

from __future__ import annotations

import argparse
import ast
import collections
import json
import os
import pathlib
import sysconfig

from mds import MDSWriter, Stream, StreamingDataLoader, StreamingDataset

# Shares of (code, prose, numbers), phase by phase.
CURRICULUM = [(0.2, 0.7, 0.1), (0.5, 0.3, 0.2), (0.7, 0.1, 0.2)]
SOURCES = ("code", "prose", "numbers")


def pieces() -> dict[str, list[str]]:
    """Return texts by source."""
    texts: dict[str, list[str]] = {name: [] for name in SOURCES}
    for file in sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))[:80]:
        text = file.read_text(encoding="utf-8", errors="replace")
        tree, lines = ast.parse(text), text.splitlines()
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                texts["code"].append("\n".join(lines[node.lineno - 1 : node.end_lineno]))
                texts["prose"].append(ast.get_docstring(node) or node.name)
            elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
                texts["numbers"].append(f"{node.value} on line {node.lineno} of {file.name}")
    return {name: source_texts[:2000] for name, source_texts in texts.items()}


def convert(data: str) -> None:
    """Write one dataset for each source."""
    for name, texts in pieces().items():
        out = os.path.join(data, name)
        if os.path.exists(os.path.join(out, "index.json")):
            continue
        columns = {"source": "str", "text": "str"}
        options = {"size_limit": "256kb", "compression": "zstd"}
        with MDSWriter(columns=columns, out=out, **options) as writer:
            for text in texts:
                writer.write({"source": name, "text": text})


def phase(data: str, number: int, epoch_size: int) -> StreamingDataLoader:
    """The loader of one phase of the curriculum."""
    streams = [
        Stream(local=os.path.join(data, name), proportion=share)
        for name, share in zip(SOURCES, CURRICULUM[number], strict=True)
    ]
    dataset = StreamingDataset(
        streams=streams,
        epoch_size=epoch_size,
        batch_size=20,
        shuffle=True,
        shuffle_seed=9176 + number,  # the same sources, but not the same samples first
        batching_method="stratified",  # every batch has the shares, not only the epoch
    )
    return StreamingDataLoader(dataset, num_workers=1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="/tmp/mds-mixing")
    parser.add_argument("--epoch-size", type=int, default=600)
    parser.add_argument("--stop-after", type=int, help="batches, then exit, to show how to resume")
    settings = parser.parse_args()

    convert(settings.data)
    saved = pathlib.Path(settings.data, "position.json")
    position = json.loads(saved.read_text()) if saved.exists() else {"phase": 0, "state": None}
    batches = 0
    for number in range(position["phase"], len(CURRICULUM)):
        loader = phase(settings.data, number, settings.epoch_size)
        if position["state"] is not None:
            loader.load_state_dict(position["state"])
            position["state"] = None
        counts: collections.Counter[str] = collections.Counter()
        for batch in loader:
            counts.update(batch["source"])  # here a model would learn from batch["text"]
            batches += 1
            if batches == settings.stop_after:
                saved.write_text(json.dumps({"phase": number, "state": loader.state_dict()}))
                print(f"stopped in phase {number} after {batches} batches")
                return
        total = sum(counts.values())
        shares = ", ".join(f"{name} {counts[name] / total:.0%}" for name in SOURCES)
        print(f"phase {number}: {total} samples, {shares}", flush=True)
    saved.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
