"""The augmentation of photographs that every system runs: random cut, flip, normalise."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.suite.workloads import CROP

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def cut(pixels: Any, rng: np.random.Generator) -> Any:
    """A random part of a decoded image, (CROP, CROP, 3), mirrored half of the time."""
    height, width = pixels.shape[:2]
    if height < CROP or width < CROP:
        room = np.zeros((max(height, CROP), max(width, CROP), 3), np.uint8)
        room[:height, :width] = pixels
        pixels, (height, width) = room, room.shape[:2]
    top, left = int(rng.integers(height - CROP + 1)), int(rng.integers(width - CROP + 1))
    part = pixels[top : top + CROP, left : left + CROP]
    return part[:, ::-1] if rng.random() < 0.5 else part


def cut_sample(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """The same of a sample."""
    return {"image": cut(sample["image"], rng), "label": sample["label"]}


def normalise(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """A batch of cut images as float32 (n, 3, CROP, CROP), and their labels."""
    import torch

    images = torch.empty((len(samples), 3, CROP, CROP))
    mean, std = (255 * torch.tensor(each).view(3, 1, 1) for each in (MEAN, STD))
    for image, sample in zip(images, samples, strict=True):
        pixels = torch.from_numpy(np.ascontiguousarray(sample["image"]))
        image.copy_(pixels.permute(2, 0, 1)).sub_(mean).div_(std)
    return {"image": images, "label": torch.tensor([int(s["label"]) for s in samples])}
