"""Masks of batches: which of their samples count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mds.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mds.dataset.worker_epoch import PaddedWorkerEpoch
    from mds.loader.batch_groups import Batch, BatchInfo


def mask_padding(info: BatchInfo, batch: Any, epoch: PaddedWorkerEpoch) -> Batch:
    """A batch with its mask of padding."""
    mask = epoch.next_mask(info.samples)
    return info._replace(order=(info.order[0], int(mask.sum()))), with_mask(batch, mask)


def with_mask(batch: Any, mask: npt.NDArray[np.bool_]) -> Any:
    """A batch and which of its samples count: as column ``mask`` of a dict, else in a pair."""
    import torch

    tensor = torch.from_numpy(mask)
    if not isinstance(batch, dict):
        return batch, tensor
    if "mask" in batch:
        raise ConfigError(
            "batches get a column 'mask' from exact='mask', filter() and on_error='skip', and the "
            "samples have one already. Choose others with columns=, or name it otherwise in a "
            "collate function."
        )
    return {**batch, "mask": tensor}
