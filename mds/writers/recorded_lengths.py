"""Lengths that lie beside the indexes of datasets: read, and joined where datasets are merged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mds.errors import IndexFileError
from mds.index.companion import companions_of, parse_companion
from mds.index.lengths import KIND, Lengths, emit_lengths_file, lengths_name, parse_lengths

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mds.storage import Store


def read_recorded(store: Store, index: str, samples: int) -> Iterator[Lengths]:
    """The lengths beside an index of a fingerprint and so many samples, column by column.

    Those of another index, and damaged ones, are left out; `mds verify` tells of them.
    """
    for name in companions_of(store):
        try:
            found = parse_companion(store.get(name), name, None, index)
            if found.kind == KIND:
                yield parse_lengths(found.payload, samples, None, name)
        except IndexFileError:  # noqa: PERF203 - one file's fault hides no other's
            continue


def join_recorded(
    parts: Sequence[Mapping[str, Lengths]], index: str
) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of the files of lengths for the index over all parts, end to end.

    A column has one where every part has its lengths.
    """
    shared = set(parts[0]).intersection(*parts[1:]) if parts else set()
    for column in sorted(shared):
        whole = np.concatenate([part[column].all() for part in parts])
        yield lengths_name(column), emit_lengths_file(column, whole, index)
