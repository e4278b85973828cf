"""Function chain of a dataset: what map, filter and map_batches added, in that order."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from mds.errors import ConfigError

if TYPE_CHECKING:
    from mds.transforms.links import Link


@dataclasses.dataclass(frozen=True)
class FunctionChain:
    """Chain of the caller's functions; some facts of it are asked for at every epoch.

    ``of_samples`` see samples one by one (map, filter), ``of_batches`` whole batches. ``drops``:
    a filter is among them. ``maps``: samples are changed.
    """

    links: tuple[Link, ...] = ()
    of_samples: tuple[Link, ...] = dataclasses.field(init=False)
    of_batches: tuple[Link, ...] = dataclasses.field(init=False)
    drops: bool = dataclasses.field(init=False)
    maps: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        kinds = [link.kind for link in self.links]
        facts = {
            "of_samples": tuple(link for link in self.links if link.kind != "map_batches"),
            "of_batches": tuple(link for link in self.links if link.kind == "map_batches"),
            "drops": "filter" in kinds,
            "maps": "map" in kinds,
        }
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    @property
    def is_keyed(self) -> bool:
        """Whether a function of samples takes random numbers."""
        return any(link.is_keyed for link in self.of_samples)

    def with_link(self, link: Link) -> FunctionChain:
        """Return the chain with one more function at its end.

        Raises ConfigError for one of samples after one of batches.
        """
        if self.of_batches and link.kind != "map_batches":
            raise ConfigError(
                f"{link.kind}() is of samples, and {self.of_batches[0].name} has made batches of "
                f"them: call {link.kind}() first."
            )
        return FunctionChain((*self.links, link))

    def refuse_samples(self) -> None:
        """Refuse to give samples where a function takes batches (ConfigError)."""
        if self.of_batches:
            raise ConfigError(
                f"{self.of_batches[0].name} takes batches, and a sample by itself is none: read "
                "this dataset with StreamingDataLoader, or take the dataset as it was before "
                "map_batches()."
            )

    def __str__(self) -> str:
        return ", ".join(link.name for link in self.links)
