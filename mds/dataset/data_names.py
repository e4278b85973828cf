"""What names the data of a state for people, and leads back to the order: places and settings.

It is in every state, is never compared, and holds no secret: URLs are masked as in messages.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from mds.text.redaction import mask_foreign

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mds.dataset.shard_map import ShardMap
    from mds.dataset.stream import Stream

_DIGEST_LETTERS = 16


def name_data(
    streams: Sequence[Stream],
    shards: ShardMap,
    shares: Sequence[Mapping[str, float]],
    epoch_size: int | None,
) -> dict[str, Any]:
    """The streams, with what was asked for of each and of an epoch, as plain JSON."""
    places = [
        mask_foreign(str(stream.remote_folder or os.path.abspath(stream.folder)))
        for stream in streams
    ]
    # Streams mostly lie side by side, and a state with many of them is to stay small.
    root = os.path.commonprefix(places) if len(places) > 1 else ""  # noqa: RUF071 - cut below
    root = root[: root.rfind("/") + 1]
    found: dict[str, Any] = {"streams": []}
    if root:
        found["root"] = root
    for place, stream, index, share in zip(places, streams, shards.indexes, shares, strict=True):
        one = {"at": place[len(root) :], "index": index.fingerprint()[:_DIGEST_LETTERS], **share}
        if stream.format is not None:
            one["format"] = stream.format.name
        found["streams"].append(one)
    if epoch_size is not None:
        found["epoch_size"] = epoch_size
    if shards.selection is not None:
        found["selected"] = shards.num_samples
    return found
