"""MDSWriter: the binary format, joint files."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from mds.encodings import parse_encoding
from mds.errors import ConfigError, EncodingError
from mds.layout import Columns, config_bytes, empty_shard_size, pack_header
from mds.writers.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mds.writers.spec import Out
    from mds.writers.writer import Data


class MDSWriter(Writer):
    """Writes samples as MDS shards.

    `columns` names the columns and their encodings; for the other arguments see `Writer`. Raises
    UnknownEncodingError (a TypeError and KeyError too) for an encoding that does not exist.

    >>> with MDSWriter(out="data/", columns={"tokens": "ndarray:int32"}) as writer:
    ...     writer.write({"tokens": np.arange(7, dtype=np.int32)})
    """

    format = "mds"

    def __init__(
        self,
        *,
        columns: dict[str, str],
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: list[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        samples_per_shard: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._ended = "never began"
        parsed = [(name, parse_encoding(columns[name])) for name in sorted_names(columns)]
        self.columns = Columns(
            tuple(name for name, _ in parsed),
            tuple(encoding.name for _, encoding in parsed),
            tuple(encoding.size for _, encoding in parsed),
        )
        self._packers = [(name, encoding.pack) for name, encoding in parsed]
        self._variable = [i for i, size in enumerate(self.columns.sizes) if size is None]
        self._pack_sizes = struct.Struct(f"<{len(self._variable)}I").pack
        super().__init__(
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            extra_bytes_per_sample=4,
            samples_per_shard=samples_per_shard,
            **kwargs,
        )
        self._config = config_bytes(self.get_config())
        self._running = self.extra_bytes_per_shard = empty_shard_size(self._config)

    def get_config(self) -> dict[str, Any]:
        """What every shard and the index tell about the dataset."""
        return {
            **super().get_config(),
            "column_names": list(self.columns.names),
            "column_encodings": list(self.columns.encodings),
            "column_sizes": list(self.columns.sizes),
        }

    def encode_sample(self, sample: Mapping[str, Any]) -> bytes:
        """Sizes of the variable columns, then the values. Raises EncodingError."""
        values = []
        name = ""
        try:
            for name, pack in self._packers:
                values.append(pack(sample[name]))
        except Exception as error:
            raise self._explain(error, name, sample) from error
        if not self._variable:
            return values[0] if len(values) == 1 else b"".join(values)
        try:
            sizes = self._pack_sizes(*[len(values[i]) for i in self._variable])
        except struct.error:
            raise EncodingError(
                f"sample {self._samples} has a value of 4 GiB or more, which fits no shard"
            ) from None
        return b"".join((sizes, *values))

    def _files(self, body: Data, sizes: Sequence[int]) -> tuple[Sequence[Data], ...]:
        return ((pack_header(sizes, self._config), body),)


def sorted_names(columns: dict[str, str]) -> list[str]:
    """The names of the columns in the order of their bytes. Raises ConfigError (a ValueError)."""
    if not columns:
        raise ConfigError(f"columns is a dict from names to encodings, got {columns!r}.")
    for name in columns:
        if not isinstance(name, str):
            raise ConfigError(f"the name of a column is a str, got {name!r}.")
    return sorted(columns)
