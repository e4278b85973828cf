"""Functions that draw from global random generators, seeded for each sample."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from mds.errors import ConfigError


class Seeded:
    """Function of samples under seeded global generators; see `seeded`."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        if not callable(function):
            raise ConfigError(
                f"seeded() takes a function of a sample, got {type(function).__name__}. Write "
                "dataset.map(seeded(function))."
            )
        self._function = function
        if (name := getattr(function, "__qualname__", None)) is not None:
            self.__qualname__ = name  # errors name the function

    def __call__(self, sample: Any, rng: np.random.Generator) -> Any:
        """Return what the function makes of a sample, and restore the generators after it."""
        import torch

        seed = int(rng.integers(1 << 63))
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
        try:
            random.seed(seed)
            np.random.seed(seed % (1 << 32))  # noqa: NPY002
            torch.default_generator.manual_seed(seed)
            return self._function(sample)
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002
            torch.set_rng_state(states[2])

    def __repr__(self) -> str:
        return f"seeded({getattr(self, '__qualname__', self._function)})"


def seeded(function: Callable[[Any], Any]) -> Seeded:
    """Seed `random`, `numpy.random` and torch's CPU generator for each call of a function.

    Augmentations of torchvision, timm and albumentations draw from these global generators. Under
    ``seeded`` they draw the same numbers for a sample on any number of ranks and workers and after
    a resume, as ``rng`` of `map` does. The generators are as before after each call.

    - ``function`` (Callable[[Any], Any]): Function of a sample, as for `map`.

    Use it with worker processes or without workers. Threads share the generators, so
    ``workers="threads"`` raises ConfigError (a ValueError), as does what is not a function.

    >>> dataset = dataset.map(seeded(augment))  # doctest: +SKIP
    """
    return Seeded(function)
