"""The incumbent's WebVid datasets: videos inside the shards, or beside them as files."""

from __future__ import annotations

import os
from typing import Any

from mds.compat.dataset import StreamingDataset
from mds.compat.options import keywords
from mds.storage import join, open_store, publish


class StreamingInsideWebVid(StreamingDataset):
    """Videos in the column ``content``."""


class _Outside(StreamingDataset):
    """Videos as files below ``extra_remote``, kept in ``extra_local``.

    The column ``content_path`` names the file; its bytes become ``content``.
    """

    def __init__(
        self, *, extra_local: str | None, extra_remote: str | None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.extra_local, self.extra_remote = extra_local, extra_remote

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """The sample of that number, with its video."""
        sample = super().get_item(sample_id, retry)
        path = os.path.join(self.extra_local or "", sample["content_path"])
        if not os.path.exists(path):
            remote = join(self.extra_remote or "", sample["content_path"])
            with open_store(remote) as store, publish(path) as temporary:
                store.get_file("", temporary)
        with open(path, "rb") as file:
            sample["content"] = file.read()
        return sample


@keywords(extra_local=None, extra_remote=None)
class StreamingOutsideGIWebVid(_Outside):
    """Videos fetched when a sample is asked for."""


@keywords(extra_local=None, extra_remote=None)
class StreamingOutsideDTWebVid(_Outside):
    """The same: a sample is asked for ahead of its use by the loader's workers anyway."""
