"""Runner of the functions of a chain on samples, one by one.

A function costs its call, and 0.1 us for a guard that describes the sample in errors.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mds.transforms._randomness import KeyedGenerator

if TYPE_CHECKING:
    from mds.transforms._chain import FunctionChain, Link

    Step = Callable[[int, Any], Any]  # of a key and a sample


class SampleRunner:
    """Runner of the sample functions of a chain, for one iteration in one thread.

    Args:
        chain: Chain whose functions of samples are called.
        describe_sample: Returns words for the sample that is processed now, for errors.
    """

    def __init__(self, chain: FunctionChain, describe_sample: Callable[[], str]) -> None:
        self._describe_sample = describe_sample
        # Only functions that draw random numbers are numbered, so adding other functions does not
        # change what they draw.
        streams = itertools.count()
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

        Args:
            samples: Samples before the functions.
            keys: Random key of each sample; None if no function requests random numbers.
            on_error: Function that is called with an error before the error is raised, which ends
                the iterator.

        Returns:
            Iterator over the samples after the functions.
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
        """Yield ``samples`` after a function that draws no random numbers; see `over`.

        The function is called in this loop rather than through `_plain`, to save a call a sample.
        """
        function = link.function
        for sample in samples:
            try:
                try:
                    result = function(sample)
                except Exception as error:
                    raise link.failed(self._describe_sample(), error, sample) from error
                if result is None:
                    raise link.gave_nothing(self._describe_sample())  # noqa: TRY301 - handled below
            except BaseException as error:
                on_error(error)
                raise
            del sample
            # Yields the result and clears the variable, which would keep the sample alive while
            # the caller works on it.
            yield (result, result := None)[0]

    def run(self, sample: Any, key: int) -> Any:
        """Return a sample after the functions of map; filters are not called.

        ``key`` determines the random numbers of the functions.
        """
        for link, step in self._steps:
            if link.kind == "map":
                sample = step(key, sample) if link.is_keyed else step(sample)
        return sample

    def judge(self, sample: Any, key: int) -> tuple[Any, bool, bool]:
        """Return the changed sample, whether filters keep it, and whether all map functions ran.

        Functions behind a filter that drops the sample are not called. ``key`` determines the
        random numbers of the functions.
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
        """Return a function of a sample that calls a link's function and describes its errors."""
        function, describe = link.function, self._describe_sample

        def call(sample: Any) -> Any:
            try:
                result = function(sample)
            except Exception as error:
                raise link.failed(describe(), error, sample) from error
            if result is None:
                raise link.gave_nothing(describe())
            return result

        return call

    def _keyed(self, link: Link, stream: int) -> Callable[..., Any]:
        """Return a function of a key and a sample, which gives ``rng`` to a link's function.

        ``stream`` is the number of the function among those that draw random numbers.
        """
        function, describe = link.function, self._describe_sample
        generator_at = KeyedGenerator(stream).at

        def call(key: int, sample: Any) -> Any:
            try:
                result = function(sample, rng=generator_at(key))
            except Exception as error:
                raise link.failed(describe(), error, sample) from error
            if result is None:
                raise link.gave_nothing(describe())
            return result

        return call


def _over_keyed(
    step: Step,
    samples: Iterator[Any],
    keys: Sequence[int],
    on_error: Callable[[BaseException], None],
) -> Iterator[Any]:
    """Yield ``samples`` after a step that draws random numbers; see `SampleRunner.over`."""
    remaining_keys = iter(keys)  # zip() would keep the sample alive in its tuple
    for sample in samples:
        try:
            result = step(next(remaining_keys), sample)
        except BaseException as error:
            on_error(error)
            raise
        del sample
        # Yields the result and clears the variable, see `SampleRunner._over_plain`.
        yield (result, result := None)[0]
