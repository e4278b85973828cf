"""Train an image classifier on a folder of images, one sub-folder a class.

    python examples/images.py                         # on shapes that it draws itself
    python examples/images.py --images path/to/folder

Files are stored as they are (no image is encoded again), and become tensors in the workers.
"""

from __future__ import annotations

import argparse
import math
import os
import pathlib
import random

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn

from mds import MDSWriter, StreamingDataLoader, StreamingDataset

SIZE = 32
KINDS = {".jpg", ".jpeg", ".png"}


def draw(folder: pathlib.Path, each: int) -> None:
    """Draw circles, squares and triangles, which is what the classes are called."""
    for corners, name in ((24, "circle"), (4, "square"), (3, "triangle")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(each):
            image = Image.new("RGB", (48, 48), tuple(random.choices(range(96), k=3)))
            x, y, radius = random.uniform(16, 32), random.uniform(16, 32), random.uniform(8, 15)
            turn = random.uniform(0, math.tau)
            angles = [turn + math.tau * k / corners for k in range(corners)]
            outline = [(x + radius * math.cos(a), y + radius * math.sin(a)) for a in angles]
            ImageDraw.Draw(image).polygon(outline, fill=tuple(random.choices(range(128, 256), k=3)))
            image.save(folder / name / f"{number}.jpg")


def convert(images: pathlib.Path, out: str) -> list[str]:
    """Write every image with the number of its class; give the names of the classes."""
    classes = sorted(entry.name for entry in images.iterdir() if entry.is_dir())
    files = [
        (file, label)
        for label, name in enumerate(classes)
        for file in sorted((images / name).rglob("*"))
        if file.suffix.lower() in KINDS
    ]
    random.shuffle(files)
    columns = {"image": "jpeg", "label": "int64"}
    with MDSWriter(columns=columns, out=out) as writer:
        for file, label in files:
            data = file.read_bytes()
            writer.write(
                {"image": Image.open(file) if file.suffix == ".png" else data, "label": label}
            )
    return classes


class Pictures(StreamingDataset):
    """Tensors of SIZE x SIZE pixels in [-1, 1], and labels."""

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        image = sample["image"].convert("RGB").resize((SIZE, SIZE))
        pixels = np.array(image, np.float32) / 127.5 - 1
        return torch.from_numpy(pixels).permute(2, 0, 1), int(sample["label"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="/tmp/mds-images")
    parser.add_argument("--images", type=pathlib.Path)
    parser.add_argument("--each", type=int, default=200, help="images to draw of each class")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    settings = parser.parse_args()

    random.seed(0)
    torch.manual_seed(0)
    images = settings.images or pathlib.Path(settings.data, "images")
    if settings.images is None and not images.exists():
        draw(images, settings.each)
    shards = os.path.join(settings.data, "shards")
    if os.path.exists(os.path.join(shards, "index.json")):
        classes = sorted(entry.name for entry in images.iterdir() if entry.is_dir())
    else:
        classes = convert(images, shards)

    pictures = Pictures(local=shards, batch_size=32, shuffle=True)
    parts = pictures.split({"train": 0.8, "val": 0.2})
    train = StreamingDataLoader(parts["train"], num_workers=settings.workers)
    val = StreamingDataLoader(parts["val"], num_workers=settings.workers)
    print(f"{parts['train'].num_samples} images to train on, {parts['val'].num_samples} to check")

    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(512, len(classes))),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(settings.epochs):
        for pixels, labels in train:
            loss = nn.functional.cross_entropy(model(pixels), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        right = total = 0
        with torch.no_grad():
            for pixels, labels in val:
                right += int((model(pixels).argmax(1) == labels).sum())
                total += len(labels)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {right} of {total} right", flush=True)


if __name__ == "__main__":
    main()
