"""The incumbent's datasets of images: ``x`` and ``y`` columns, and transforms of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mds.compat.dataset import StreamingDataset
from mds.compat.options import keywords
from mds.errors import ConfigError
from mds.writers import MDSWriter


class StandardTransform:
    """Changes x and y of a pair, each by a function of its own."""

    def __init__(
        self,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.transform, self.target_transform = transform, target_transform

    def __call__(self, x: Any, y: Any) -> tuple[Any, Any]:
        """The pair that the functions give."""
        x = x if self.transform is None else self.transform(x)
        return x, y if self.target_transform is None else self.target_transform(y)


@keywords(("batch_size",), transforms=None, transform=None, target_transform=None)
class StreamingVisionDataset(StreamingDataset):
    """Pairs (x, y).

    ``transforms(x, y)`` gives a pair; or ``transform`` takes the x and ``target_transform`` the y.
    """

    def __init__(
        self,
        *,
        transforms: Callable[[Any, Any], Any] | None,
        transform: Callable[[Any], Any] | None,
        target_transform: Callable[[Any], Any] | None,
        **options: Any,
    ) -> None:
        if transforms is not None and (transform is not None or target_transform is not None):
            raise ConfigError("give transforms, or transform and target_transform, and not both.")
        super().__init__(**options)
        self.transform, self.target_transform = transform, target_transform
        if transforms is None:
            transforms = StandardTransform(transform, target_transform)
        self.transforms = transforms

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """The pair of that number."""
        sample = super().get_item(sample_id, retry)
        return self.transforms(sample["x"], sample["y"])


class StreamingImageNet(StreamingVisionDataset):
    """ImageNet: columns i (int), x (jpeg), y (int)."""


class StreamingCIFAR10(StreamingVisionDataset):
    """CIFAR-10: columns i (int), x (pil), y (int)."""


@keywords(joint_transform=None, transform=None, target_transform=None)
class StreamingADE20K(StreamingDataset):
    """ADE20K: columns uid (bytes), x (jpeg), y (png). ``joint_transform(x, y)`` comes first."""

    def __init__(
        self,
        *,
        joint_transform: Callable[[Any, Any], Any] | None,
        transform: Callable[[Any], Any] | None,
        target_transform: Callable[[Any], Any] | None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.joint_transform = joint_transform
        self.transform, self.target_transform = transform, target_transform

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """Image and mask of that number."""
        sample = super().get_item(sample_id, retry)
        x, y = sample["x"], sample["y"]
        if self.joint_transform is not None:
            x, y = self.joint_transform(x, y)
        x = x if self.transform is None else self.transform(x)
        return x, y if self.target_transform is None else self.target_transform(y)


@keywords(transform=None)
class StreamingCOCO(StreamingDataset):
    """COCO: columns img (jpeg), img_id, htot, wtot (int), bbox_sizes and bbox_labels (ndarray).

    ``transform(img, (htot, wtot), bbox_sizes, bbox_labels)`` gives the four anew.
    """

    def __init__(self, *, transform: Callable[..., Any] | None, **options: Any) -> None:
        super().__init__(**options)
        self.transform = transform

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """(img, img_id, (htot, wtot), bbox_sizes, bbox_labels) of that number."""
        sample = super().get_item(sample_id, retry)
        found = (
            sample["img"].convert("RGB"),
            (sample["htot"], sample["wtot"]),
            sample["bbox_sizes"],
            sample["bbox_labels"],
        )
        if self.transform is not None:
            found = self.transform(*found)
        image, size, boxes, labels = found
        return image, sample["img_id"], size, boxes, labels


def convert_image_class_dataset(
    dataset: Iterable[tuple[Any, int]],
    out_root: str,
    split: str | None = None,
    compression: str | None = None,
    hashes: Sequence[str] | None = None,
    size_limit: int = 1 << 24,
    progress_bar: bool = True,
    leave: bool = False,
    encoding: str = "pil",
) -> None:
    """Write pairs (image, class number) as columns i, x and y, below ``out_root``/``split``."""
    del leave
    writer = MDSWriter(
        columns={"i": "int", "x": encoding, "y": "int"},
        out=os.path.join(out_root, split or ""),
        compression=compression,
        hashes=list(hashes) if hashes is not None else None,
        size_limit=size_limit,
        progress_bar=progress_bar,
    )
    with writer:
        for i, (x, y) in enumerate(dataset):
            writer.write({"i": i, "x": x, "y": int(y)})
