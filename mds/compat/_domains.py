"""Datasets with fixed columns: `streaming.vision`, `streaming.text` and `streaming.multimodal`.

Their constructors keep the parameters and defaults that mosaicml-streaming had before 0.7, such as
``partition_algo="orig"`` and ``shuffle_algo="py1s"``; `keyword_parameters` gives them to a class.
In ``get_item(sample_id, retry)``, ``retry`` has no effect, as in `mds.StreamingDataset`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter, Signature
from typing import Any, TypeVar

import numpy as np

from mds.compat._dataset import StreamingDataset
from mds.errors import ConfigError, need
from mds.storage import open_store
from mds.storage._files import publish
from mds.storage._url import join

# ---------------------------------------------------------------------- parameters

C = TypeVar("C", bound=type)

_REQUIRED = Parameter.empty
#: Parameters of every class, with their defaults.
_OLD_DEFAULTS: dict[str, Any] = {
    "remote": None,
    "local": None,
    "split": None,
    "download_retry": 2,
    "download_timeout": 60,
    "validate_hash": None,
    "keep_zip": False,
    "epoch_size": None,
    "predownload": None,
    "cache_limit": None,
    "partition_algo": "orig",
    "num_canonical_nodes": None,
    "batch_size": None,
    "shuffle": False,
    "shuffle_algo": "py1s",
    "shuffle_seed": 9176,
    "shuffle_block_size": 1 << 18,
}


def keyword_parameters(required: tuple[str, ...] = (), **defaults: Any) -> Callable[[C], C]:
    """Return a decorator that gives the constructor of a class its keyword-only parameters.

    - ``required`` (tuple[str, ...], default ()): parameters without a default.
    - ``defaults``: parameters of the class with their defaults, beside `_OLD_DEFAULTS`.

    The class's ``__init__`` is called with all of them by name. Others raise TypeError.
    """
    parameters = {**_OLD_DEFAULTS, **defaults, **dict.fromkeys(required, _REQUIRED)}
    signature = Signature(
        [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default)
            for name, default in parameters.items()
        ]
    )

    def decorate(kind: C) -> C:
        """Replace the constructor of a class by one with the keyword parameters."""
        original_init = kind.__init__  # type: ignore[misc]

        def __init__(self: Any, **options: Any) -> None:  # noqa: N807 - becomes the class's
            # Raises TypeError for a missing or an unknown parameter.
            bound = signature.bind(**options)
            bound.apply_defaults()
            original_init(self, **bound.arguments)

        # The signature is set on the function and not on the class: inspect would show a signature
        # of the class for a subclass with an __init__ of its own, too.
        self_parameter = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
        __init__.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[self_parameter, *signature.parameters.values()]
        )
        kind.__init__ = __init__  # type: ignore[misc]
        return kind

    return decorate


# ---------------------------------------------------------------------- images


class StandardTransform:
    """Function of pairs (x, y), made of a function of x and a function of y.

    - ``transform``, ``target_transform`` (Callable | None, default None): functions of x and of y;
      None leaves x or y as it is.
    """

    def __init__(
        self,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.transform, self.target_transform = transform, target_transform

    def __call__(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Return ``transform(x)`` and ``target_transform(y)``."""
        x = x if self.transform is None else self.transform(x)
        return x, y if self.target_transform is None else self.target_transform(y)


@keyword_parameters(("batch_size",), transforms=None, transform=None, target_transform=None)
class StreamingVisionDataset(StreamingDataset):
    """Dataset of pairs (x, y), the columns x and y.

    - ``transforms`` (Callable | None, default None): function of x and y that returns a pair.
    - ``transform``, ``target_transform`` (Callable | None, default None): functions of x and of y,
      instead of ``transforms``.
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
        """Return the transformed pair of a sample."""
        sample = super().get_item(sample_id, retry)
        return self.transforms(sample["x"], sample["y"])


class StreamingImageNet(StreamingVisionDataset):
    """ImageNet: columns i (int), x (jpeg) and y (int)."""


class StreamingCIFAR10(StreamingVisionDataset):
    """CIFAR-10: columns i (int), x (pil) and y (int)."""


@keyword_parameters(joint_transform=None, transform=None, target_transform=None)
class StreamingADE20K(StreamingDataset):
    """ADE20K: columns uid (bytes), x (jpeg, the image) and y (png, the mask).

    - ``joint_transform`` (Callable | None, default None): function of x and y that returns a pair;
      it is called first.
    - ``transform``, ``target_transform`` (Callable | None, default None): functions of x and of y.
    """

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
        """Return the transformed pair of image and mask."""
        sample = super().get_item(sample_id, retry)
        x, y = sample["x"], sample["y"]
        if self.joint_transform is not None:
            x, y = self.joint_transform(x, y)
        return StandardTransform(self.transform, self.target_transform)(x, y)


@keyword_parameters(transform=None)
class StreamingCOCO(StreamingDataset):
    """COCO: columns img (jpeg), img_id, htot, wtot (int), bbox_sizes and bbox_labels (ndarray).

    ``transform`` (Callable | None, default None): function of img, (htot, wtot), bbox_sizes and
    bbox_labels that returns all four.
    """

    def __init__(self, *, transform: Callable[..., Any] | None, **options: Any) -> None:
        super().__init__(**options)
        self.transform = transform

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """Return (img, img_id, (htot, wtot), bbox_sizes, bbox_labels), transformed."""
        sample = super().get_item(sample_id, retry)
        values = (
            sample["img"].convert("RGB"),
            (sample["htot"], sample["wtot"]),
            sample["bbox_sizes"],
            sample["bbox_labels"],
        )
        if self.transform is not None:
            values = self.transform(*values)
        image, size, boxes, labels = values
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
    """Write pairs of image and class as a dataset for `StreamingVisionDataset`.

    - ``dataset`` (Iterable): pairs (image, number of the class).
    - ``out_root`` (str), ``split`` (str | None, default None): folder or URL, and its sub-folder.
    - ``compression``, ``hashes``, ``size_limit``, ``progress_bar``: see `mds.MDSWriter`.
    - ``leave`` (bool, default False): no effect.
    - ``encoding`` (str, default "pil"): encoding of the images.
    """
    from mds.writers import MDSWriter

    del leave
    writer = MDSWriter(
        columns={"i": "int", "x": encoding, "y": "int"},
        out=os.path.join(out_root, split or ""),
        compression=compression,
        hashes=list(hashes or ()),  # None is none, as in 0.13
        size_limit=size_limit,
        progress_bar=progress_bar,
    )
    with writer:
        for index, (image, class_number) in enumerate(dataset):
            writer.write({"i": index, "x": image, "y": int(class_number)})


# ---------------------------------------------------------------------- text


class _TokenizedText(StreamingDataset):
    """Dataset whose column ``text`` is tokenized.

    - ``tokenizer_name`` (str): name of a tokenizer of the package transformers.
    - ``max_seq_len`` (int, tokens): length to which texts are cut or padded.
    - ``group_method`` (str): only "truncate".
    """

    def __init__(
        self, *, tokenizer_name: str, max_seq_len: int, group_method: str, **options: Any
    ) -> None:
        if group_method != "truncate":
            raise ConfigError(f"group_method is 'truncate', got {group_method!r}.")
        super().__init__(**options)
        self.tokenizer_name, self.max_seq_len = tokenizer_name, max_seq_len
        self.group_method = group_method
        self.tokenizer = _load_tokenizer(tokenizer_name, max_seq_len)

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """Return the tokenized text of a sample."""
        return self._tokenize(super().get_item(sample_id, retry))

    def _tokenize(self, text_sample: dict[str, Any]) -> Any:
        """Return what the tokenizer makes of the column ``text``, ``max_seq_len`` tokens long."""
        return self.tokenizer(
            text_sample["text"], truncation=True, padding="max_length", max_length=self.max_seq_len
        )


@keyword_parameters(("tokenizer_name", "max_seq_len", "group_method"))
class StreamingC4(_TokenizedText):
    """C4: columns text, timestamp and url."""


@keyword_parameters(("tokenizer_name", "max_seq_len", "group_method"))
class StreamingPile(_TokenizedText):
    """The Pile: columns text and pile_set_name."""


def _load_tokenizer(name: str, max_seq_len: int) -> Any:
    """Return a tokenizer with padding. Raises MissingDependencyError without transformers."""
    try:
        from transformers import AutoTokenizer  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise need("transformers", None, "tokenizers by name") from None
    tokenizer = AutoTokenizer.from_pretrained(name)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    # Otherwise the tokenizer warns of every longer text, although it is cut anyway.
    tokenizer.model_max_length = max(max_seq_len, tokenizer.model_max_length)
    return tokenizer


@keyword_parameters()
class StreamingEnWiki(StreamingDataset):
    """English Wikipedia as inputs of BERT: columns of int32, and of float32 for weights."""

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """Return the columns of a sample as tensors."""
        import torch

        return {
            name: torch.from_numpy(_to_array(name, value))
            for name, value in super().get_item(sample_id, retry).items()
        }


def _to_array(name: str, value: Any) -> Any:
    """Return a column's value as an array: bytes are float32 for weights, else int32."""
    if isinstance(value, bytes):
        return np.frombuffer(value, np.float32 if name.endswith("weights") else np.int32).copy()
    return np.array(value)


# ---------------------------------------------------------------------- videos


class StreamingInsideWebVid(StreamingDataset):
    """WebVid with the bytes of a video in the column ``content``."""


class _VideoFiles(StreamingDataset):
    """WebVid with the path of a video file in the column ``content_path``.

    - ``extra_remote`` (str | None): URL or folder of the videos.
    - ``extra_local`` (str | None): folder that keeps the fetched videos.
    """

    def __init__(
        self, *, extra_local: str | None, extra_remote: str | None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.extra_local, self.extra_remote = extra_local, extra_remote

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """Return a sample with the bytes of its video under ``content``."""
        sample = super().get_item(sample_id, retry)
        path = os.path.join(self.extra_local or "", sample["content_path"])
        if not os.path.exists(path):  # fetch the video once
            remote = join(self.extra_remote or "", sample["content_path"])
            with open_store(remote) as store, publish(path) as temporary:
                store.get_file("", temporary)
        with open(path, "rb") as file:
            sample["content"] = file.read()
        return sample


@keyword_parameters(extra_local=None, extra_remote=None)
class StreamingOutsideGIWebVid(_VideoFiles):
    """WebVid whose video files are fetched when a sample is read."""


@keyword_parameters(extra_local=None, extra_remote=None)
class StreamingOutsideDTWebVid(_VideoFiles):
    """WebVid like StreamingOutsideGIWebVid, under the other name of 0.13.

    There, threads of the dataset fetched the videos ahead. Here, workers of the loader do.
    """
