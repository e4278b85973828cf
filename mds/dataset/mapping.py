"""Datasets with functions: ``[]`` gives what the functions of `map` make of a sample."""

from __future__ import annotations

import functools
from typing import Any

from mds.dataset.indexing import resolve
from mds.dataset.reading import apply_functions


class AppliesFunctions:
    """Mixin of datasets with functions, which get what the caller's own class gives."""

    _stored_kind: Any  # the class without functions

    def __getitem__(self: Any, at: Any) -> Any:
        self._filter.chain.refuse_samples()
        return resolve(at, self._shards.num_samples, self._applied_item)

    def _applied_item(self: Any, number: int) -> Any:
        return apply_functions(self, number, self._stored_item(number))

    def _stored_item(self, number: int) -> Any:
        """Return a sample before the functions."""
        return super().__getitem__(number)  # type: ignore[misc]

    def __reduce_ex__(self: Any, protocol: Any) -> tuple[Any, ...]:
        # The class has no name by which a pickle could find it.
        del protocol
        return _revive, (self._stored_kind,), self.__getstate__()


def applying_class(kind: type) -> type:
    """Return the class of datasets with functions that is made of a class of datasets."""
    return _make_class(getattr(kind, "_stored_kind", kind))


@functools.cache
def _make_class(kind: type) -> type:
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(kind.__name__, (AppliesFunctions, kind), {**names, "_stored_kind": kind})


def _revive(kind: type) -> Any:
    applying = _make_class(kind)
    return applying.__new__(applying)  # type: ignore[call-overload]
