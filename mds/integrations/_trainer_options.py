"""Arguments of a trainer of transformers or TRL that is given a StreamingDataset."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mds.errors import ConfigError

#: Options of TRL that choose what is trained on -> why a StreamingDataset refuses them.
_REFUSED = {
    "packing": (
        "has no effect on a StreamingDataset. Leave it out, and write StreamingDataset(..., "
        "packing=4096)."
    ),
    **dict.fromkeys(
        ("assistant_only_loss", "completion_only_loss"),
        "masks no labels of a StreamingDataset. Leave it out, and give the dataset a column "
        "'labels' with -100 for each token that is not trained on.",
    ),
    "precompute_ref_log_probs": (
        "reads the whole dataset before the training, so a StreamingDataset cannot be used. Leave "
        "it out."
    ),
}


def name_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with positional ones by name, if all of these have names."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters.values()):
        return args, dict(kwargs)
    names = [*parameters][: len(args)]
    named = dict(zip(names, args, strict=False))
    if len(named) < len(args) or named.keys() & kwargs:  # Python raises the error
        return args, dict(kwargs)
    return (), {**named, **kwargs}


def check_options(bases: Sequence[type], options: Any) -> None:
    """Raise ConfigError for a trainer of TRL, or an option of it, that makes its own batches.

    ``bases``: classes of TRL that the trainer derives from. ``options``: its configuration.
    """
    for base in bases:
        if "get_train_dataloader" in vars(base):
            raise ConfigError(
                f"{base.__name__} makes its own batches, which repeat prompts, so it cannot train "
                "on a StreamingDataset. Give it a dataset of Hugging Face."
            )
    for name, reason in _REFUSED.items():
        if bases and getattr(options, name, None) is True:
            raise ConfigError(f"{name}=True of {type(options).__name__} {reason}")
