"""What a system must answer, so that a question never knows whom it asks.

An adapter imports its system inside its methods only: the suite lists and plans without any of them
installed. ``answers`` says which questions a system can answer and with which settings; each
setting is measured and the best one stands for the system in the table.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

Begin = Callable[[], Iterator[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Data:
    """A workload as one system wrote it."""

    workload: str
    folder: str
    count: int


@dataclasses.dataclass(frozen=True, slots=True)
class Batching:
    """Settings of a loader."""

    size: int
    workers: int = 0
    shuffled: bool = True


class System:
    """An adapter. Methods that a system's ``answers`` does not name are never called."""

    name: str
    label: str
    packages: tuple[str, ...] = ()  # distributions whose versions are printed
    requires: tuple[str, ...] = ()  # requirements for pip
    module: str = ""  # what `import` costs are measured of
    classes: tuple[str, ...] = ()  # of the module, the dataset and the loader of a training
    workloads: tuple[str, ...] = ("tokens", "text", "images", "small")
    answers: ClassVar[dict[str, tuple[str, ...]]] = {}
    note: str = ""  # how it is configured and on whose advice
    stored_as: str = ""  # another system whose files these are

    def variants(self, question: str, workload: str) -> tuple[str, ...]:
        """The settings to measure for a question; none when it has no answer."""
        is_able = workload in ("", *self.workloads)
        return self.answers.get(question, ()) if is_able else ()

    def write(self, workload: str, columns: dict[str, str], samples: Any, folder: str) -> None:
        """Write a workload, once."""
        raise NotImplementedError

    def write_as(
        self, workload: str, columns: dict[str, str], samples: Any, folder: str, variant: str
    ) -> None:
        """Write a dataset like ``write``, in one of the variants."""
        self.write(workload, columns, samples, folder)

    def ranges(self, data: Data, name: str, url: str) -> Callable[[int, int], bytes]:
        """The bytes from one place to before another, of a file of the bucket "mds" in S3."""
        raise NotImplementedError

    def iterate(self, data: Data, shuffled: bool, variant: str) -> Begin:
        """Epochs of samples as dicts of columns, in this process."""
        raise NotImplementedError

    def getter(self, data: Data, variant: str) -> Callable[[int], Any]:
        """A sample by its number."""
        raise NotImplementedError

    def rows(self, data: Data, variant: str) -> Callable[[list[int]], Any]:
        """Many samples by their numbers, in one call."""
        raise NotImplementedError

    def batches(self, data: Data, batching: Batching, variant: str) -> Begin:
        """Epochs of batches as dicts of tensors."""
        raise NotImplementedError

    def collated(self, data: Data, batching: Batching, variant: str) -> Begin:
        """The same made of samples by ``collate_samples``, a function of the caller's."""
        raise NotImplementedError

    def images(self, data: Data, batching: Batching, variant: str) -> Begin:
        """Epochs of batches of decoded, cropped images and labels."""
        raise NotImplementedError

    def augmented(self, data: Data, batching: Batching, variant: str) -> Begin:
        """Epochs of batches of decoded, cut and normalised images; see suite/augment.py."""
        raise NotImplementedError

    def with_function(
        self, data: Data, batching: Batching, variant: str, method: str, function: Any
    ) -> Begin:
        """Epochs of batches, or of samples where the size is 0, with a function of the caller.

        ``method`` names the way by which it is given; empty: without it.
        """
        raise NotImplementedError

    def start(self, data: Data, variant: str) -> Any:
        """Construct a data set of many shards and take its first sample."""
        raise NotImplementedError

    def half_way(self, data: Data, variant: str) -> Any:
        """A shuffled data set that goes on at the half of its epoch when it is iterated."""
        raise NotImplementedError

    def remote(
        self, data: Data, batching: Batching, variant: str, url: str, cache: str, collate: Any
    ) -> Begin:
        """Read batches like ``batches``, from S3 at ``url``, in the bucket of this system's name.

        ``collate`` is a collate function of the caller's, or None.
        Everything from constructing on is to happen when the epoch is begun.
        """
        raise NotImplementedError


def torch_loader(dataset: Any, batching: Batching, **options: Any) -> Any:
    """Torch's own loader with workers that stay between epochs."""
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset,
        num_workers=batching.workers,
        persistent_workers=batching.workers > 0,
        **options,
    )


def collate_samples(samples: Any) -> Any:
    """A collate function of the caller's: it leaves the work to torch's."""
    from torch.utils.data import default_collate

    return default_collate(samples)


def fresh(folder: str) -> str:
    """An empty folder of that name."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    return folder


def stack_images(samples: Any) -> Any:
    """A batch of the suite: (images as a uint8 tensor (n, CROP, CROP, 3), labels).

    ``samples``: pairs or dicts of the bytes of a JPEG (or a decoded image) and its label.
    """
    import torch

    from benchmarks.suite.workloads import CROP, crop

    images = torch.empty((len(samples), CROP, CROP, 3), dtype=torch.uint8)
    view = images.numpy()
    labels = []
    for number, sample in enumerate(samples):
        image, label = decoded(sample)
        view[number] = crop(image)
        labels.append(label)
    return {"image": images, "label": torch.tensor(labels)}


def augment_images(samples: Any) -> Any:
    """The same decoded, cut at random and normalised in one collate function of the caller's."""
    import numpy as np

    from benchmarks.suite.augment import cut, normalise

    rng = np.random.default_rng()
    pairs = map(decoded, samples)
    return normalise([{"image": cut(image, rng), "label": label} for image, label in pairs])


def decoded(sample: Any) -> tuple[Any, int]:
    """The pixels and the label of a sample of the suite, as whatever a system hands it out."""
    import numpy as np

    from benchmarks.suite.workloads import decoder

    image, label = (sample["image"], sample["label"]) if isinstance(sample, dict) else sample
    if isinstance(image, (bytes, memoryview)):
        image = decoder()[1](image)
    elif hasattr(image, "convert"):  # a Pillow image, opened and not yet decoded
        image = image.convert("RGB")
    return np.asarray(image), int(label)
