"""Bases of the incumbent's writers: ours, with the attributes and methods that code of 0.13 uses.

A writer of a format of one's own inherits JointWriter or SplitWriter and encodes whole shards.
"""

from __future__ import annotations

import inspect
import json
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mds.compat.clouds import CloudUploader
from mds.compat.compressions import get_compression_extension, get_hash
from mds.compat.overrides import Overridable, SealedDict, find_remedy, refuse, refuse_missing
from mds.process.fork_safe import new_event
from mds.shardfile.layout import shard_name
from mds.writers.writer import Writer as NativeWriter

if TYPE_CHECKING:
    import threading
    from concurrent.futures import Executor

    Out = str | tuple[str, str]

_REFUSED = {
    **dict.fromkeys(("_process_file", "_hash"), "compression= and hashes="),
    **dict.fromkeys(("_write_index", "_reset_cache", "_name_next_shard"), "flush_shard()"),
}
_IGNORED = dict.fromkeys(
    ("cancel_future_jobs", "exception_callback"),
    "abort(), and errors that are raised by write() and finish()",
)


def _signature_of(kind: type) -> inspect.Signature:
    """What is shown of a class: what its constructor takes."""
    signature = inspect.signature(kind.__init__)  # type: ignore[misc]
    _, *parameters = signature.parameters.values()
    return signature.replace(parameters=parameters)


class Writer(Overridable, NativeWriter):
    """As `mds.writers.Writer`."""

    format = ""
    _is_strict = False
    _refused, _ignored = _REFUSED, _IGNORED

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__signature__ = _signature_of(cls)
        own, base = vars(cls).get("format"), super(cls, cls).format
        if own not in (None, base) and base and not cls.__module__.startswith("mds."):
            refuse(
                f"{cls.__name__}.format = {own!r}",
                "Derive a format of your own from JointWriter or SplitWriter",
            )

    def __init__(
        self,
        *,
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: list[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        extra_bytes_per_shard: int = 0,
        extra_bytes_per_sample: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            extra_bytes_per_shard=extra_bytes_per_shard,
            extra_bytes_per_sample=extra_bytes_per_sample,
            **kwargs,
        )

    # ------------------------------------------------------------------ where it goes

    @property
    def local(self) -> str:
        """The folder where shards are written."""
        return self._destination.folder

    @property
    def remote(self) -> str | None:
        """Where they are sent; None where the folder is the end."""
        return self._destination._spec.remote  # noqa: SLF001 - a writer's other half

    @property
    def keep_local(self) -> bool:
        """Whether what was sent stays in the folder."""
        spec = self._destination._spec  # noqa: SLF001 - a writer's other half
        return spec.remote is not None and spec.keep_local

    @property
    def cloud_writer(self) -> CloudUploader:
        """What sends files of the folder."""
        return CloudUploader.of(self.local, self.remote, self.keep_local)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "cloud_writer":
            refuse("cloud_writer of one writer", find_remedy("CloudUploader"))
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        refuse_missing(self, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.")

    @property
    def executor(self) -> Executor:
        """The threads that write and send."""
        return self._pipeline._pool  # noqa: SLF001 - a writer's other half

    @property
    def event(self) -> threading.Event:
        """Set once a shard could not be written."""
        found = new_event()
        if self._pipeline._failure is not None:  # noqa: SLF001 - a writer's other half
            found.set()
        return found

    # ------------------------------------------------------------------ what is under way

    @property
    def new_samples(self) -> list[bytes]:
        """The samples of the shard that is being filled, as far as they are in memory."""
        if not hasattr(self, "_body"):
            return []
        found: list[bytes] = []
        end = self._used
        for size in reversed(self._sizes):
            if end < size:
                break
            found.append(bytes(self._body[end - size : end]))
            end -= size
        return found[::-1]

    @property
    def new_shard_size(self) -> int:
        """The bytes of the shard that is being filled."""
        return self._running

    @property
    def shards(self) -> list[dict[str, Any]]:
        """The entries of the full shards, which this waits for."""
        entries, _ = self._pipeline.finish()
        remedy = "The index has the keys of its format and no others: keep yours in another file"
        return [SealedDict("an entry of shards", json.loads(e), remedy) for e in entries]

    def _name_next_shard(self, extension: str | None = None) -> tuple[str, str | None]:
        """What the next shard is called, raw and compressed."""
        name = shard_name(self._shards, f"{self.format}.{extension}" if extension else self.format)
        if not self.compression:
            return name, None
        return name, f"{name}.{get_compression_extension(self.compression)}"

    def _hash(self, data: bytes, basename: str) -> dict[str, Any]:
        """What the index says of a file."""
        digests = {algo: get_hash(algo, data) for algo in self.hashes}
        return {"basename": basename, "bytes": len(data), "hashes": digests}

    def cancel_future_jobs(self) -> None:
        """Stop without an index."""
        self.abort()

    @property
    def _is_own(self) -> bool:
        """Whether a subclass encodes whole shards in its own way."""
        return False

    def _plan_header(self) -> bytes | None:
        return None if self._is_own else super()._plan_header()


Writer.__signature__ = _signature_of(Writer)


class JointWriter(Writer):
    """A writer of shards in one file."""

    @property
    def _is_own(self) -> bool:
        return not type(self).encode_joint_shard.__module__.startswith("mds.")

    @abstractmethod
    def encode_joint_shard(self) -> bytes:
        """The file of the samples in ``new_samples``."""

    def _files(self, body: Any, sizes: Sequence[int]) -> Any:
        if self._is_own:
            return ((self.encode_joint_shard(),),)
        return super()._files(body, sizes)  # type: ignore[safe-super]


class SplitWriter(Writer):
    """A writer of shards in a data file and a meta file."""

    extra_bytes_per_shard = 0
    extra_bytes_per_sample = 0

    def __init__(
        self,
        *,
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: list[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            **kwargs,
        )

    @property
    def _is_own(self) -> bool:
        return not type(self).encode_split_shard.__module__.startswith("mds.")

    @abstractmethod
    def encode_split_shard(self) -> tuple[bytes, bytes]:
        """The data and the meta file of the samples in ``new_samples``."""

    def _files(self, body: Any, sizes: Sequence[int]) -> Any:
        if self._is_own:
            data, meta = self.encode_split_shard()
            return (data,), (meta,)
        return super()._files(body, sizes)  # type: ignore[safe-super]
