"""Rules of the arguments of a loader. Add one here for a new argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mds.arguments import (
    Rule,
    check_arguments,
    flag,
    function,
    number,
    one_of,
    refuse_unknown,
    shown,
    whole,
)
from mds.errors import ArgumentError, ConfigError

LOADER_RULES: dict[str, Rule] = {
    "batch_size": whole(1, unit="samples").or_none("samples one by one"),
    "num_workers": whole(0),
    "workers": one_of("auto", "processes", "threads"),
    "collate_fn": function("a function that makes a batch of a list of samples").or_none(),
    "pin_memory": flag(),
    "drop_last": flag(),
    "timeout": number(above=0, reaches=True, unit="seconds"),
    "worker_init_fn": function("a function of a worker's number").or_none(),
    "prefetch_factor": whole(1, unit="batches").or_none("2 of each worker"),
    "persistent_workers": flag(),
    "in_order": flag(),
}


def check_loader(owner: str, dataset: Any, arguments: Mapping[str, Any], names: list[str]) -> None:
    """Refuse a dataset that is none, unknown arguments, and those of another type or value.

    Raises ConfigError, of which ArgumentError is a kind.
    """
    if isinstance(dataset, (str, bytes, dict)) or not (
        hasattr(dataset, "__iter__") or hasattr(dataset, "__getitem__")
    ):
        raise ArgumentError(
            f"{owner}({shown(dataset)}): a loader takes a dataset. Write "
            f"{owner}(StreamingDataset(local=...), batch_size=...)."
        )
    refuse_unknown(owner, arguments, names)
    check_arguments(owner, arguments, LOADER_RULES)
    if arguments.get("num_workers", 0):
        return
    for name in ("prefetch_factor", "persistent_workers"):
        if arguments.get(name):
            raise ConfigError(
                f"{owner}({name}={arguments[name]!r}): there are no workers that it could be "
                f"about. Give num_workers= as well, or leave {name} out."
            )


def check_threads(arguments: Mapping[str, Any], about_processes: tuple[str, ...]) -> None:
    """Refuse beside ``workers="threads"`` what would have no effect on them (ConfigError)."""
    for name in about_processes:
        if arguments.get(name):
            raise ConfigError(
                f"{name}={shown(arguments[name])} is about worker processes, and workers='threads' "
                "has none: it would have no effect. Leave it out, or say workers='processes'."
            )
