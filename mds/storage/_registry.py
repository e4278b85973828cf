"""Opening of stores: the provider of a URL's scheme, with limits and retries around it.

The provider is one that was registered (`register_store`), a built-in one, one that a package
offers by an entry point of the group ``mds.stores``, or else fsspec.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from mds._lazy_imports import Registry, is_class, registers
from mds._redaction import remember_secrets
from mds.errors import ConfigError
from mds.storage._base import Store, split_options, unused_settings
from mds.storage._retry import Retrying, RetryingFiles, RetryPolicy
from mds.storage._url import Url, is_local, options_of, redact, reveal, scheme_of
from mds.storage._wrappers import Hedged, Limited, Unversioned

#: Function ``factory(url, options, timeout_seconds)`` that returns a store with one try per verb.
Factory = Callable[[str, Mapping[str, Any], float], Store]

_REFUSED = "registry:refuse"  # schemes that have no store
# Factory by scheme: module of this package, and name in it. '' is a plain path.
_HOMES = {
    "": "local:LocalStore",
    "file": "local:LocalStore",
    "memory": "memory:MemoryStore",
    "http": "http:HttpStore",
    "https": "http:HttpStore",
    "s3": "s3:S3Store",
    "gs": "gs:open_gs",
    "azure": "azure:AzureStore",
    "azure-dl": "azure:AzureStore",
    "oci": "oci:OciStore",
    "hf": "hf:HfStore",
    "dbfs": "databricks:open_dbfs",
    "sftp": "sftp:SftpStore",
    "alipan": _REFUSED,
}
_stores: Registry[Factory] = Registry(
    "store",
    {},
    [scheme for scheme, home in _HOMES.items() if home != _REFUSED],
    lambda factory: is_class(factory, Store) if isinstance(factory, type) else callable(factory),
    "give a subclass of mds.storage.Store, or a function (url, options, timeout) that returns one",
    "StoreContract",
)


@registers
def register_store(name: str, store: Factory, *, replace: bool = False) -> None:
    """Make a store available for the URLs of a scheme; also a decorator, without ``store``.

    - ``name`` (str): The scheme, such as "box" for ``box://...``, in any case.
    - ``store`` (callable): A subclass of `Store`, or a function that returns one: it is called with
      the URL, a mapping of options, and a timeout in seconds. Each method of the store makes one
      attempt. `mds.testing.StoreContract` tests it.
    - ``replace`` (bool, default False): Whether the name may be taken; see docs/contributing.md.

    Installed packages name it in an entry point of the group ``mds.stores``. Raises ConfigError for
    a scheme that is taken, and for another object.

    >>> from mds.storage._memory import MemoryStore
    >>> register_store("shelf", MemoryStore)
    <class 'mds.storage._memory.MemoryStore'>
    """
    _stores.add(name.lower(), store, replace=replace)


def schemes() -> list[str]:
    """Return the schemes of built-in and registered providers; fsspec supports others."""
    return sorted({*_stores.built_in, *_stores.entries} - {""})


def open_store(
    url: str,
    *,
    options: Mapping[str, Any] | None = None,
    retry: RetryPolicy | None = None,
    timeout: float = 60.0,
) -> Retrying:
    """Return the store at a URL, which retries failed requests and detects stalls.

    Opening sends no request.

    Args:
        url: URL or path of the folder of objects.
        options: Options of the provider, which docs/storage.md lists; they override the
            environment (default: those that a `Url` carries). Names of fsspec and object_store
            are accepted.
        retry: How often and how long to retry (default `RetryPolicy()`).
        timeout: Seconds without a byte after which a request has stalled (default 60).

    Raises ConfigError for an invalid URL or option, and MissingDependencyError if the scheme needs
    a package that is not installed.

    >>> with open_store("memory://docs") as store:
    ...     store.put("word", b"hello").size
    ...     store.get_range("word", 1, 3)
    5
    b'el'
    """
    if timeout <= 0:
        raise ConfigError(f"timeout={timeout} must be greater than 0 seconds.")
    if unused := unused_settings(url, options):
        raise ConfigError(
            f"open_store(options=...): {', '.join(map(repr, unused))} would have no effect: these "
            f"are settings of the store of a URL, and {redact(url)!r} is a path. Leave them out, "
            "or give the URL."
        )
    if options is None:
        options = options_of(url)
    if options and scheme_of(url) not in _stores.entries:
        from mds.storage._spellings import own_options

        options = own_options(url, options)
    common, provider_options = split_options(options)
    remember_secrets(provider_options)  # all later messages mask them
    store = _factory(url)(reveal(url), provider_options, float(timeout))
    if options_of(url):  # URLs that are made of the store's carry the options too
        store.url = Url(store.url, options)
    store.part_size, store.part_connections = common.part_size, common.part_connections
    store.min_rate = common.min_rate
    if not common.compare_versions:
        store = Unversioned(store)
    if store.local_path is None:  # a remote store
        store = Limited(store, common.concurrency)
        if common.hedge > 0:
            store = Hedged(store, common.hedge)
    policy = retry or RetryPolicy()
    if policy.unreachable_within != timeout:
        policy = replace(policy, unreachable_within=float(timeout))
    return Retrying(store, policy) if store.local_path is None else RetryingFiles(store, policy)


def _factory(url: str) -> Factory:
    """Return the factory for the scheme of a URL: registered, built-in, of a plugin, or fsspec's.

    A plugin is a package that offers a store by an entry point. Modules are imported only here.

    Raises ConfigError for a text that is neither a path nor a URL.
    """
    scheme = scheme_of(url)
    if not url:
        raise ConfigError(
            "The URL of a store is empty. Give a URL, or a path such as '.' for the current folder."
        )
    is_local(url)  # raises for a URL that has lost a slash
    registered = _stores.find(scheme)
    if registered is not None:
        return registered
    if scheme not in _HOMES and "://" not in url:
        raise ConfigError(f"{redact(url)!r} is neither a path nor a URL with a scheme.")
    module, _, name = _HOMES.get(scheme, "fsspec:FsspecStore").partition(":")
    factory: Factory = getattr(importlib.import_module(f"mds.storage._{module}"), name)
    return factory


def refuse(url: str, options: Mapping[str, Any], timeout: float) -> NoReturn:
    """Raise ConfigError for alipan:// URLs, with alternatives; serves as their `Factory`."""
    del options, timeout
    raise ConfigError(
        f"{redact(url)!r}: Alipan is not supported. Copy the dataset to a supported store, mount "
        f"the drive and use its path, or register your own store: "
        f"mds.storage.register_store('alipan', factory)."
    )
