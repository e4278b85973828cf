"""Names of the door that code sets from outside, and overrides that this library never calls.

mosaicml-streaming calls its own functions, methods and registries through their names, so code
replaces them from outside. A name of the door is one of three kinds:

- live: the replacement takes effect, so it is accepted;
- sealed: this library never calls the replacement, so setting the name raises SealedNameError;
- harmless: the name changes no sample, no order, no bytes and no source of data, so setting it
  warns once and has no effect.
"""

from __future__ import annotations

import warnings
from abc import ABCMeta
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NoReturn, TypeVar

from mds.errors import SealedNameError

K = TypeVar("K")
V = TypeVar("V")

#: Modules that only hand names on to users, so that a replacement there is what users import.
LIVE_MODULES = {
    "streaming",
    "streaming.base",
    "streaming.multimodal",
    "streaming.text",
    "streaming.vision",
}

HARMLESS = frozenset(
    {
        "BARRIER",
        "BARRIER_FILELOCK",
        "BOTOCORE_CLIENT_ERROR_CODES",
        "CACHE_FILELOCK",
        "CACHE_USAGE",
        "DEFAULT_TIMEOUT",
        "EPOCH_DATA",
        "EPOCH_SHAPE",
        "GCSAuthentication",
        "GCS_ERROR_NO_AUTHENTICATION",
        "LOCALS",
        "NEVER",
        "NEXT_EPOCH",
        "RESUME",
        "SHARD_ACCESS_TIMES",
        "SHARD_STATES",
        "SHM_TO_CLEAN",
        "SharedArray",
        "SharedBarrier",
        "SharedMemory",
        "SharedScalar",
        "TICK",
        "TIMEOUT",
        "_IterState",
        "_ShardState",
        "_check_and_find",
        "_check_and_find_retrying",
        "_check_self",
        "_each_prefix_int",
        "_get_path",
        "_pack_locals",
        "_unpack_locals",
        "clean_stale_shared_memory",
        "get_import_exception_message",
        "get_shm_prefix",
        "logger",
        "tqdm",
        "wait_for_file_to_exist",
        "__version__",
    }
)

_RANKS = "Pass topology=(rank, world_size) to StreamingDataset"
_NO_GROUP = "mds makes no process group and calls no collective: leave this replacement out"
_WORK = "Override _get_work() in a subclass of StreamingDataset, which is called"
_SHUFFLES = "Register an algorithm with mds.shuffle.register_shuffle(), or override _get_work()"
_STORES = (
    "Register a store with mds.storage.register_store(), or override _download_file() of a Stream"
)
_UPLOADS = "Register a store with mds.storage.register_store(), which writers send to"
_ENCODINGS = (
    "Put a class of your own into streaming.base.format.mds.encodings._encodings, which is used"
)
_READERS = "Override get_item() of StreamingDataset, or write the data with MDSWriter"

#: Name -> what to do in place of a replacement.
_REMEDIES: dict[str, str] = {
    **dict.fromkeys(
        ("dist", "get_local_rank", "get_local_world_size", "get_rank", "get_world_size", "World"),
        _RANKS,
    ),
    **dict.fromkeys(
        ("all_gather", "all_gather_object", "barrier", "broadcast", "maybe_init_dist"), _NO_GROUP
    ),
    **dict.fromkeys(
        ("batching_methods", "generate_work", "get_partitions", "get_sampling", "_Iterator"), _WORK
    ),
    "get_shuffle": _SHUFFLES,
    **dict.fromkeys(("CloudDownloader", "DOWNLOADER_MAPPINGS", "_LOCAL_DOWNLOADER"), _STORES),
    **dict.fromkeys(("CloudUploader", "UPLOADERS"), _UPLOADS),
    **dict.fromkeys(("mds_decode", "mds_encode", "Encoding"), _ENCODINGS),
    **dict.fromkeys(("Reader", "_readers", "reader_from_json"), _READERS),
}
_DERIVE = "Derive a class, override the method there, and use that class"
_CALL = "Call your own function from your own code"

#: Special methods that this library may read past.
_BYPASSED = {"__getitem__", "__iter__"}
_ABSENT: Any = object()
_told: set[str] = set()


def refuse(name: str, remedy: str) -> NoReturn:
    """Raise SealedNameError for setting a name that this library never looks up again."""
    raise SealedNameError(
        f"setting {name} would have no effect: mosaicml-streaming calls it and mds does not. "
        f"{remedy}."
    )


def ignore(name: str) -> None:
    """Warn once that setting a harmless name has no effect."""
    if name in _told:
        return
    _told.add(name)
    warnings.warn(
        f"setting {name} has no effect: mds does not use it, and your samples stay the same.",
        stacklevel=4,
    )


def find_remedy(name: str, value: Any = None) -> str:
    """Return what to do in place of replacing a function or a class of that name."""
    if name in _REMEDIES:
        return _REMEDIES[name]
    for start, remedy in (
        ("generate_work_", _WORK),
        ("get_partitions_", _WORK),
        ("get_shuffle_", _REMEDIES["get_shuffle"]),
    ):
        if name.startswith(start):
            return remedy
    for end, remedy in (("Downloader", _STORES), ("Uploader", _UPLOADS), ("Reader", _READERS)):
        if name.endswith(end):
            return remedy
    return _DERIVE if isinstance(value, type) else _CALL


class Sealed(ABCMeta):
    """Metaclass of the door's classes: it refuses methods that are replaced on the class.

    A class of a user may get any attribute but one that its bases list as uncalled.
    """

    def __setattr__(cls, name: str, value: Any) -> None:
        _check_attribute(cls, name, value)
        super().__setattr__(name, value)

    def __delattr__(cls, name: str) -> None:
        _check_attribute(cls, name, _ABSENT)
        super().__delattr__(name)


def _check_attribute(kind: type, name: str, value: Any) -> None:
    is_special = name.startswith("__") and name.endswith("__")
    if name.startswith("_abc_") or (is_special and name not in _BYPASSED):
        return
    if not kind.__module__.startswith("mds."):
        if value is not _ABSENT:
            check_overrides(kind, {name: value})
        return
    if name in getattr(kind, "_live", ()):
        return
    if vars(kind).get(name, _ABSENT) is value and value is not _ABSENT:
        return  # a test puts the original back
    uncalled = uncalled_of(kind)
    if not hasattr(kind, name) and name not in uncalled:
        return  # an attribute of the user's own
    remedy = f"In its place there is {uncalled[name]}" if name in uncalled else ""
    if not remedy:
        remedy = find_remedy(kind.__name__, kind)
    refuse(f"{kind.__name__}.{name}", remedy)


class Overridable(metaclass=Sealed):
    """Base of the door's classes that users derive from.

    ``_refused``: methods whose overrides would change samples, and what there is in their place.
    ``_ignored``: methods whose overrides change nothing, and what there is in their place.
    """

    _refused: ClassVar[Mapping[str, str]] = {}
    _ignored: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_overrides(cls, vars(cls))


def uncalled_of(kind: type) -> dict[str, str]:
    """Return the methods that a class has in mosaicml-streaming, and that are not called here."""
    uncalled: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        for table in ("_refused", "_ignored"):
            uncalled |= vars(base).get(table, {})
    return uncalled


def check_overrides(kind: type, names: Iterable[str]) -> None:
    """Refuse overrides that would have to be called, and warn about those that change nothing."""
    if kind.__module__.startswith("mds."):
        return
    uncalled = uncalled_of(kind)
    ignored = {name for base in kind.__mro__ for name in vars(base).get("_ignored", ())}
    for name in names:
        if name not in uncalled:
            continue
        text = (
            f"{kind.__name__} overrides {name}, which mosaicml-streaming calls and mds does "
            f"not. In its place there is {uncalled[name]}."
        )
        if name not in ignored:
            raise SealedNameError(text)
        warnings.warn(text, stacklevel=4)


def refuse_missing(owner: object, name: str) -> None:
    """Raise AttributeError for a method that mosaicml-streaming has and this library has not."""
    remedy = uncalled_of(type(owner)).get(name)
    if remedy is not None:
        raise AttributeError(
            f"{type(owner).__name__} has no {name} through mds. In its place there is {remedy}.",
            name=name,
            obj=owner,
        )


class SealedDict(dict[K, V]):
    """A registry that refuses changes that this library would not see.

    ``remedy``: what to do in its place. ``takes_new``: whether names of the user's own are used.
    """

    def __init__(
        self, name: str, values: Mapping[K, V], remedy: str, *, takes_new: bool = False
    ) -> None:
        super().__init__(values)
        self._name, self._remedy = name, remedy
        self._fixed = frozenset(values)
        self._takes_new = takes_new

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def _check(self, key: Any) -> None:
        if key in self._fixed or not self._takes_new:
            refuse(f"{self._name}[{key!r}]", self._remedy)

    def __setitem__(self, key: K, value: V) -> None:
        if key not in self or self[key] is not value:
            self._check(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: K) -> None:
        self._check(key)
        super().__delitem__(key)

    def __ior__(self, other: Any) -> SealedDict[K, V]:  # type: ignore[misc,override]
        self.update(other)
        return self

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set several names."""
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def setdefault(self, key: K, default: Any = None) -> Any:
        """Return the value of a name, which is set if there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: K, *default: Any) -> Any:
        """Remove a name and return its value."""
        if key in self:
            self._check(key)
        return super().pop(key, *default)

    def popitem(self) -> tuple[K, V]:
        """Remove the last name."""
        self._check(next(reversed(self)))
        return super().popitem()

    def clear(self) -> None:
        """Remove the names of the user's own."""
        for key in [key for key in self if key not in self._fixed]:
            del self[key]
        if not self._takes_new:
            refuse(f"{self._name}.clear()", self._remedy)
