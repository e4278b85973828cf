"""Names of `import streaming` that code replaces: each is live, sealed or harmless.

Some code replaces a function, a method or an entry of a registry of mosaicml-streaming from
outside, so that mosaicml-streaming calls the replacement. Here such a name is

- live: the replacement takes effect. Modules of this package look live names up when they use them:
  functions with `replacement`, methods with `overrides`, entries in a `LiveRegistry`;
- sealed: mds would never call the replacement, so setting the name raises SealedNameError, whose
  message names what to use instead;
- harmless: the name affects no sample, no order, no bytes and no source of data, so setting it
  warns once and has no effect.

The same holds for methods that a user's class overrides (`Overridable`) and for attributes that are
set on one object.

Words: *code* is code of the user that was written for mosaicml-streaming. A *replacement* is what
code has set in place of the *original*, the object of mds. A *remedy* is a sentence without a full
stop that says what to do instead; error messages end with it.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, NoReturn, TypeVar

from mds.errors import SealedNameError

K = TypeVar("K")
V = TypeVar("V")

#: Modules whose names users import and mds does not: a replacement is what users then import.
LIVE_MODULES = frozenset(
    {
        "streaming",
        "streaming.base",
        "streaming.multimodal",
        "streaming.text",
        "streaming.vision",
    }
)
_RANK_GETTERS = frozenset({"get_local_rank", "get_local_world_size", "get_rank", "get_world_size"})
#: Live names of the other modules.
LIVE_NAMES: Mapping[str, frozenset[str]] = {
    "streaming.base.distributed": _RANK_GETTERS | {"dist"},
    "streaming.base.dataset": _RANK_GETTERS | {"generate_work"},
    "streaming.base.batching.random": frozenset({"get_partitions", "get_shuffle"}),
}

#: Harmless names of all modules.
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
        "all_gather",
        "all_gather_object",
        "barrier",
        "broadcast",
        "clean_stale_shared_memory",
        "dist",
        "get_import_exception_message",
        "get_shm_prefix",
        "logger",
        "maybe_init_dist",
        "tqdm",
        "wait_for_file_to_exist",
        "__version__",
    }
)

_WORK = (
    "Put your function into streaming.base.batching.batching_methods, or override _get_work() of "
    "StreamingDataset; both are called"
)
_SHUFFLES = "Put your function into streaming.base.shuffle.algos, which is used"
_PARTITIONS = "Put your function into streaming.base.partition.algos, which is used"
_STORES = (
    "Register a store with mds.storage.register_store(), or override _download_file() of a Stream"
)
_UPLOADS = "Register a store with mds.storage.register_store(), to which writers upload"
_ENCODINGS = (
    "Put a class of your own into streaming.base.format.mds.encodings._encodings, which is used"
)
_READERS = "Override get_item() of StreamingDataset, or write the data with MDSWriter"

#: Name of a function, class or registry -> what to do instead of replacing it.
_REMEDIES: dict[str, str] = {
    "World": "Replace get_rank, get_world_size and get_local_world_size of "
    "streaming.base.distributed, or pass topology=(rank, world_size) to StreamingDataset",
    **dict.fromkeys(("batching_methods", "generate_work", "get_sampling", "_Iterator"), _WORK),
    "get_partitions": _PARTITIONS,
    "get_shuffle": _SHUFFLES,
    **dict.fromkeys(("CloudDownloader", "DOWNLOADER_MAPPINGS", "_LOCAL_DOWNLOADER"), _STORES),
    **dict.fromkeys(("CloudUploader", "UPLOADERS"), _UPLOADS),
    **dict.fromkeys(("mds_decode", "mds_encode", "Encoding"), _ENCODINGS),
    **dict.fromkeys(("Reader", "_readers", "reader_from_json"), _READERS),
}
#: The same for all names with that beginning, and with that end.
_REMEDIES_BY_START = {
    "generate_work_": _WORK,
    "get_partitions_": _PARTITIONS,
    "get_shuffle_": _SHUFFLES,
}
_REMEDIES_BY_END = {"Downloader": _STORES, "Uploader": _UPLOADS, "Reader": _READERS}
#: For methods that mds looks up on the class, see `Overridable._fixed`.
OVERRIDE_IN_CLASS = "Derive a class that overrides it, and use that class"
_DERIVE = "Derive a class, override the method there, and use that class"
_CALL = "Call your own function from your own code"

#: Special methods that mds may bypass, so that a replacement would have no effect.
_BYPASSED = {"__getitem__", "__iter__"}
_ABSENT: Any = object()
#: Harmless names that a warning has named in this process.
_warned: set[str] = set()


def refuse(name: str, remedy: str) -> NoReturn:
    """Raise SealedNameError for an attempt to set a sealed name.

    ``remedy``: sentence without a full stop that says what to do instead.
    """
    raise SealedNameError(
        f"setting {name} would have no effect: unlike mosaicml-streaming, mds does not use the "
        f"new value. {remedy}."
    )


def ignore(name: str) -> None:
    """Warn that setting a harmless name has no effect, once for each name."""
    if name in _warned:
        return
    _warned.add(name)
    warnings.warn(
        f"setting {name} has no effect: mds does not use it, and your samples stay the same.",
        stacklevel=3,
    )


def find_remedy(name: str, value: Any = None) -> str:
    """Return what to do instead of replacing a name, as a sentence without a full stop.

    ``value``: the object that has the name; the remedy for classes differs from that for functions.
    """
    if name in _REMEDIES:
        return _REMEDIES[name]
    for start, remedy in _REMEDIES_BY_START.items():
        if name.startswith(start):
            return remedy
    for end, remedy in _REMEDIES_BY_END.items():
        if name.endswith(end):
            return remedy
    return _DERIVE if isinstance(value, type) else _CALL


# ---------------------------------------------------------------------- functions of modules

#: (module of streaming, name) -> replacement.
_replacements: dict[tuple[str, str], Any] = {}


def is_live(module: str, name: str) -> bool:
    """Whether a replacement of a name takes effect."""
    return module in LIVE_MODULES or name in LIVE_NAMES.get(module, ())


def record_replacement(module: str, name: str, value: Any) -> None:
    """Record the replacement of a live name; ``module`` is the module of streaming, in full."""
    _replacements[module, name] = value


def forget_replacement(module: str, name: str) -> None:
    """Use the original of a live name again."""
    _replacements.pop((module, name), None)


def replacement(module: str, *names: str) -> Any:
    """Return the replacement of the first of ``names`` that has one, or None.

    ``module``: module of streaming in which the names were set, such as "streaming.base.dataset".
    """
    for name in names:
        if (module, name) in _replacements:
            return _replacements[module, name]
    return None


# ---------------------------------------------------------------------- methods of classes

#: (class, live method) -> original, for methods that were set on the class.
_originals: dict[tuple[type, str], Any] = {}


class Sealed(ABCMeta):
    """Metaclass of the classes of `import streaming`, which refuses to set methods on them.

    ``MDSWriter.write = function``, for example, raises SealedNameError, because mds would not call
    the function. Methods in ``_live``, a tuple of names that a class has, may be set. On a user's
    class, any attribute may be set that its ``class`` statement may define (`check_overrides`).
    """

    def __setattr__(cls, name: str, value: Any) -> None:
        _check_class_attribute(cls, name, value)
        if name in vars(cls) and name in getattr(cls, "_live", ()):
            # Keep the original, to which `overrides` compares.
            _originals.setdefault((cls, name), vars(cls)[name])
        super().__setattr__(name, value)

    def __delattr__(cls, name: str) -> None:
        _check_class_attribute(cls, name, _ABSENT)
        super().__delattr__(name)


def overrides(kind: type, base: type, name: str) -> bool:
    """Whether a method of ``kind`` is not the one that ``base`` was defined with.

    Either ``kind`` or a class between the two overrides the method, or code has set another method
    on one of these classes, ``base`` included.

    - ``kind`` (type): class of an object, derived from ``base``.
    - ``base`` (type): class of mds that defines the method.
    - ``name`` (str): name of the method.
    """
    # If code has set the method on ``base`` itself, its original is in _originals.
    original = _originals.get((base, name), vars(base).get(name))
    return inspect.getattr_static(kind, name) is not original


def _check_class_attribute(kind: type, name: str, value: Any) -> None:
    """Raise SealedNameError if setting an attribute of a class would have no effect.

    ``value`` is `_ABSENT` if the attribute is deleted.
    """
    # Special names such as __doc__ may be set, but not the methods in _BYPASSED.
    is_special = name.startswith("__") and name.endswith("__")
    # ABCMeta itself sets names that begin with _abc_.
    if name.startswith("_abc_") or (is_special and name not in _BYPASSED):
        return
    if not kind.__module__.startswith("mds."):  # a user's class
        if value is not _ABSENT:
            check_overrides(kind, {name: value})
        return
    if name in getattr(kind, "_live", ()):
        return
    if vars(kind).get(name, _ABSENT) is value and value is not _ABSENT:
        return  # the original is set again, for example by a test
    uncalled = uncalled_of(kind)
    if not hasattr(kind, name) and name not in uncalled:
        return  # an attribute that only the user's code reads
    remedy = f"Use {uncalled[name]}" if name in uncalled else find_remedy(kind.__name__, kind)
    refuse(f"{kind.__name__}.{name}", remedy)


class Overridable(metaclass=Sealed):
    """Base of the classes of `import streaming` that users derive from.

    Each table maps the name of a method or attribute to what to use instead.

    - ``_refused``: methods that mds does not call and whose overrides would change samples.
    - ``_ignored``: methods that mds does not call and whose overrides would change nothing.
    - ``_fixed``: attributes that mds looks up on the class or elsewhere, so that a value set on one
      object would have no effect.
    """

    _refused: ClassVar[Mapping[str, str]] = {}
    _ignored: ClassVar[Mapping[str, str]] = {}
    _fixed: ClassVar[Mapping[str, str]] = {}
    #: Names in the three tables, in one set, so that setting an attribute is fast.
    _all_names: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_overrides(cls, vars(cls))
        names = frozenset((*cls._refused, *cls._ignored, *cls._fixed))
        type.__setattr__(cls, "_all_names", names)  # Sealed would refuse it

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of one object, unless it is in one of the tables."""
        if name in self._all_names:
            full_name = f"{name} of one {type(self).__name__}"
            if name in self._fixed:
                refuse(full_name, self._fixed[name])
            if name in self._refused:
                refuse(full_name, f"Use {self._refused[name]}")
            ignore(full_name)
        super().__setattr__(name, value)


def uncalled_of(kind: type) -> dict[str, str]:
    """Return the methods that mosaicml-streaming calls and mds does not, with what to use instead.

    They are those in the tables ``_refused`` and ``_ignored`` (`Overridable`) of ``kind`` and its
    bases.
    """
    uncalled: dict[str, str] = {}
    for base in reversed(kind.__mro__):  # a subclass comes last, and so prevails
        for table in ("_refused", "_ignored"):
            uncalled |= vars(base).get(table, {})
    return uncalled


def check_overrides(kind: type, names: Iterable[str]) -> None:
    """Check attributes of a user's class for methods that mds does not call.

    Raises SealedNameError for an override that would change samples; warns of one that would not.

    - ``kind`` (type): class; one of mds is not checked.
    - ``names`` (Iterable[str]): names of the attributes.
    """
    if kind.__module__.startswith("mds."):
        return
    uncalled = uncalled_of(kind)
    ignored = {name for base in kind.__mro__ for name in vars(base).get("_ignored", ())}
    for name in names:
        if name not in uncalled:
            continue
        text = (
            f"{kind.__name__} overrides {name}, which mosaicml-streaming calls and mds does "
            f"not. Use {uncalled[name]}."
        )
        if name not in ignored:
            raise SealedNameError(text)
        warnings.warn(text, stacklevel=4)


def refuse_missing(owner: object, name: str) -> None:
    """Raise AttributeError, which says what to use, if mosaicml-streaming has a missing attribute.

    - ``owner`` (object): object that has no such attribute.
    - ``name`` (str): name of the attribute. For any other name nothing happens.
    """
    remedy = uncalled_of(type(owner)).get(name)
    if remedy is not None:
        raise AttributeError(
            f"{type(owner).__name__} has no {name} through mds. Use {remedy}.",
            name=name,
            obj=owner,
        )


# ---------------------------------------------------------------------- registries

#: Full name of the variable -> registry.
_registries: dict[str, LiveRegistry[Any, Any]] = {}


class LiveRegistry(MutableMapping[K, V]):
    """Registry of functions or classes by name, whose entries code may set and delete.

    For example, ``shuffle.algos["mine"] = function`` adds a shuffle, which a dataset then uses by
    ``shuffle_algo="mine"``: mds looks entries up when it needs them.

    - ``name`` (str): full name of the variable; `load_replacements` imports its module.
    - ``values`` (Mapping): entries of mds, the originals.
    - ``apply`` (Callable | None, default None): function that is called with each key whose entry
      has changed, so that it can change tables of mds, too.
    """

    def __init__(
        self, name: str, values: Mapping[K, V], apply: Callable[[K], None] | None = None
    ) -> None:
        self._original, self._values, self._apply = dict(values), dict(values), apply
        _registries[name] = self

    def __getitem__(self, key: K) -> V:
        return self._values[key]

    def __setitem__(self, key: K, value: V) -> None:
        self._values[key] = value
        self._changed(key)

    def __delitem__(self, key: K) -> None:
        del self._values[key]
        self._changed(key)

    def _changed(self, key: K) -> None:
        if self._apply is not None:
            self._apply(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    def copy(self) -> dict[K, V]:
        """Return the entries as a dict."""
        return dict(self._values)

    def is_original(self, key: K) -> bool:
        """Whether a key has the entry that mds gave it, or has none because mds gave it none."""
        return self._values.get(key) is self._original.get(key)


class SealedDict(dict[K, V]):
    """Dict that raises SealedNameError for changes, which mds would never read.

    ``name``: name of the dict in the message; ``remedy``: what to do instead, without a full stop.
    """

    def __init__(self, name: str, values: Mapping[K, V], remedy: str) -> None:
        super().__init__(values)
        self._name, self._remedy = name, remedy

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # pickled as a plain dict

    def _refuse(self, key: Any) -> NoReturn:
        refuse(f"{self._name}[{key!r}]", self._remedy)

    def __setitem__(self, key: K, value: V) -> None:
        if key not in self or self[key] is not value:  # setting the present value is no change
            self._refuse(key)

    def __delitem__(self, key: K) -> None:
        self._refuse(key)

    def __ior__(self, other: Any) -> SealedDict[K, V]:  # type: ignore[misc,override]
        self.update(other)
        return self

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Raise SealedNameError unless every new entry is the present one."""
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def setdefault(self, key: K, default: Any = None) -> Any:
        """Return the entry of a key. Raises SealedNameError if there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: K, *default: Any) -> Any:
        """Return the default for a key without an entry.

        Raises SealedNameError for a key that has an entry, and if there is no default.
        """
        if key in self or not default:
            self._refuse(key)
        return default[0]

    def popitem(self) -> tuple[K, V]:
        """Raise SealedNameError."""
        self._refuse(next(reversed(self)))

    def clear(self) -> None:
        """Raise SealedNameError."""
        refuse(f"{self._name}.clear()", self._remedy)


# ---------------------------------------------------------------------- worker processes


def save_replacements() -> dict[str, Any]:
    """Return the replacements that a spawned worker process needs, for `load_replacements`.

    Replaced rank getters are left out: a worker has the ranks of the dataset that it is given.

    Returns a dict that may have ``functions`` ({(module, name): function}), ``methods`` ({(class,
    name): method}) and ``entries`` ({registry: {key: value}}); empty if nothing is replaced.
    """
    # A worker uses no names of LIVE_MODULES, which only users import, and no process group.
    functions = {
        key: value
        for key, value in _replacements.items()
        if key[0] not in LIVE_MODULES and key[1] not in (*_RANK_GETTERS, "dist")
    }
    methods = {
        (kind, name): vars(kind)[name]
        for (kind, name), original in _originals.items()
        if vars(kind)[name] is not original
    }
    all_entries = {
        name: {key: value for key, value in registry.items() if not registry.is_original(key)}
        for name, registry in _registries.items()
    }
    entries = {name: changed for name, changed in all_entries.items() if changed}
    saved = {"functions": functions, "methods": methods, "entries": entries}
    return {kind: values for kind, values in saved.items() if values}


def load_replacements(saved: Mapping[str, Any]) -> None:
    """Make the replacements of another process in this one.

    ``saved``: result of `save_replacements` in that process.
    """
    _replacements.update(saved.get("functions", {}))
    for (kind, name), value in saved.get("methods", {}).items():
        setattr(kind, name, value)
    for name, entries in saved.get("entries", {}).items():
        importlib.import_module(name.rpartition(".")[0])  # makes the registry
        _registries[name].update(entries)
