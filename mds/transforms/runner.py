"""Runner of a chain over samples, one by one; made for each iteration.

A function costs its call and a guard, which names the sample when it fails (0.1 us).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mds.transforms.row_keys import KeyedGenerator

if TYPE_CHECKING:
    from mds.transforms.chain import FunctionChain
    from mds.transforms.links import Link

    Step = Callable[[int, Any], Any]  # of a key and a sample


class SampleRunner:
    """Runner of the functions of samples of a chain.

    ``where`` tells, in the words of an error, which sample is in work. An iteration is run by one
    thread, and has a runner of its own: random generators are set for each sample.
    """

    def __init__(self, chain: FunctionChain, where: Callable[[], str]) -> None:
        self._where = where
        streams = itertools.count()  # those that draw are numbered, so that others may come between
        self._steps = [
            (link, self._keyed(link, next(streams)) if link.is_keyed else self._plain(link))
            for link in chain.of_samples
        ]

    def over(
        self,
        samples: Iterator[Any],
        keys: Sequence[int] | None,
        on_error: Callable[[BaseException], None],
    ) -> Iterator[Any]:
        """Apply all functions of a chain without filters to the samples.

        ``keys`` are those of the samples, and may be None where no function takes random numbers.
        An error of a function ends the iterator; ``on_error`` is called with it.
        """
        for link, step in self._steps:
            if link.is_keyed:
                assert keys is not None
                samples = _over_keyed(step, samples, keys, on_error)
            else:
                samples = self._over_plain(link, samples, on_error)
        return samples

    def _over_plain(
        self, link: Link, samples: Iterator[Any], on_error: Callable[[BaseException], None]
    ) -> Iterator[Any]:
        function = link.function
        for sample in samples:
            try:
                try:
                    result = function(sample)
                except Exception as error:
                    raise link.failed(self._where(), error) from error
                if result is None:
                    raise link.gave_nothing(self._where())  # noqa: TRY301 - taken back below
            except BaseException as error:
                on_error(error)
                raise
            del sample
            yield (result, result := None)[0]  # for a variable would keep it until the next one

    def run(self, sample: Any, key: int) -> Any:
        """Apply the functions of map to one sample, and skip filters."""
        for link, step in self._steps:
            if link.kind == "map":
                sample = step(key, sample) if link.is_keyed else step(sample)
        return sample

    def judge(self, sample: Any, key: int) -> tuple[Any, bool, bool]:
        """Return a sample, whether the filters keep it, and whether all functions have seen it.

        Of one that is refused the functions behind that filter see nothing.
        """
        for position, (link, step) in enumerate(self._steps):
            result = step(key, sample) if link.is_keyed else step(sample)
            if link.kind == "map":
                sample = result
            elif not result:
                later_steps = self._steps[position + 1 :]
                return sample, False, all(later.kind != "map" for later, _ in later_steps)
        return sample, True, True

    def _plain(self, link: Link) -> Callable[..., Any]:
        function, describe_position, may_be_none = link.function, self._where, link.kind == "filter"

        def call(sample: Any) -> Any:
            try:
                result = function(sample)
            except Exception as error:
                raise link.failed(describe_position(), error) from error
            if result is None and not may_be_none:
                raise link.gave_nothing(describe_position())
            return result

        return call

    def _keyed(self, link: Link, stream: int) -> Callable[..., Any]:
        function, describe_position, generator = link.function, self._where, KeyedGenerator(stream)
        seat = generator.at

        def call(key: int, sample: Any) -> Any:
            try:
                result = function(sample, rng=seat(key))
            except Exception as error:
                raise link.failed(describe_position(), error) from error
            if result is None:
                raise link.gave_nothing(describe_position())
            return result

        return call


def _over_keyed(
    step: Step,
    samples: Iterator[Any],
    keys: Sequence[int],
    on_error: Callable[[BaseException], None],
) -> Iterator[Any]:
    remaining_keys = iter(keys)  # not zip(), which keeps the sample in its tuple
    for sample in samples:
        try:
            result = step(next(remaining_keys), sample)
        except BaseException as error:
            on_error(error)
            raise
        del sample
        yield (result, result := None)[0]  # for a variable would keep it until the next one
