"""Weights of streams: the number of samples that each stream gives to an epoch.

The user gives a weight for each stream, in one of three ways:

- ``proportion``: a share of the epoch, whose size is given (`_relative`);
- ``repeat``: a multiple of the stream's samples, 1 if nothing is given (`_absolute`);
- ``choose``: a number of samples (`_absolute`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mds.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from mds.plan._schedule import ScheduledRun


#: Samples of an epoch: sums and products of a few such numbers fit into 64 bits.
MAX_EPOCH = 1 << 48


class Weights(NamedTuple):
    """Resolved weights of all streams.

    Attributes:
        choose: Samples that each stream gives to an epoch.
        proportion: Share of each stream in the epoch, from 0 to 1.
        repeat: ``choose`` divided by the samples of the stream.
        epoch_size: Samples of the epoch.
    """

    choose: tuple[int, ...]
    proportion: tuple[float, ...]
    repeat: tuple[float, ...]
    epoch_size: int


def resolve_weights(
    samples_per_stream: Sequence[int],
    weights: Sequence[Mapping[str, Any]],
    epoch_size: int | None,
    seed: int,
    *,
    skip_empty: bool = False,
    schedule: ScheduledRun | None = None,
) -> Weights:
    """Return weights from the requested ``proportion``, ``repeat`` or ``choose`` of each stream.

    With a schedule they are those of a pass: ``choose`` are the samples of a pass through each
    stream, and ``epoch_size`` those of an epoch. The schedule decides the shares, so a
    ``proportion`` is an error. A stream without samples is no error then, as the schedule refuses
    it if it has a weight.

    - ``samples_per_stream`` (Sequence[int]): Samples that each stream has.
    - ``weights`` (Sequence[Mapping]): For each stream at most one of ``proportion``, ``repeat`` and
      ``choose``, and its ``name`` for messages. Other keys, and None, are ignored.
    - ``epoch_size`` (int | None, samples): Samples of an epoch; None and 0 mean that it is not
      given, as in mosaicml-streaming.
    - ``seed`` (int): Seed that decides which streams get the samples that rounding leaves.
    - ``skip_empty`` (bool, default False): Whether a stream without samples gives none, whatever
      its weight is. Otherwise it is an error.
    - ``schedule`` (ScheduledRun | None, default None): Schedule of the run.

    Raises ConfigError for weights that are invalid, alone or together.
    """
    if schedule is not None:
        return _resolve_passes(samples_per_stream, weights, epoch_size, seed)
    requests = [_parse_share(stream_title(weights, i), weights[i]) for i in range(len(weights))]
    samples = [int(n) for n in samples_per_stream]
    for i, count in enumerate(samples):
        if not count and not skip_empty:
            raise ConfigError(
                f"stream {stream_title(weights, i)} has no samples. Leave the stream out."
            )
        if not count and requests[i][0]:
            requests[i] = (requests[i][0], 0)  # an empty stream gives nothing
    if epoch_size is not None and epoch_size < 0:
        raise ConfigError(f"epoch_size must not be negative, got {epoch_size}.")
    relative = [i for i, (name, _) in enumerate(requests) if name == "proportion"]
    if relative and len(relative) < len(requests):
        other = next(i for i in range(len(requests)) if i not in relative)
        raise ConfigError(
            f"stream {stream_title(weights, relative[0])} has a proportion, but stream "
            f"{stream_title(weights, other)} has none. Give a proportion to every stream or to no "
            "stream."
        )
    if relative or (epoch_size and not any(name for name, _ in requests)):
        # With epoch_size and without any weights, streams share the epoch by their sizes.
        shares = [value if name else n for (name, value), n in zip(requests, samples, strict=True)]
        return _relative(shares, samples, epoch_size or sum(samples), seed)
    if epoch_size:
        raise ConfigError(
            "epoch_size does not work with repeat or choose, which set the size of the epoch. "
            "Leave epoch_size out, or give proportions."
        )
    return _absolute(requests, samples)


def _resolve_passes(
    samples_per_stream: Sequence[int],
    weights: Sequence[Mapping[str, Any]],
    epoch_size: int | None,
    seed: int,
) -> Weights:
    """Return the weights of a pass through each stream, for a run with a schedule.

    The arguments are those of `resolve_weights`. Raises ConfigError for a ``proportion``.
    """
    for i, stream in enumerate(weights):
        if stream.get("proportion") is not None:
            raise ConfigError(
                f"stream {stream_title(weights, i)} has a proportion, but the schedule sets the "
                "shares of streams. Leave proportion out. repeat and choose set the samples of "
                "one pass through a stream."
            )
    if epoch_size is not None and epoch_size < 0:
        raise ConfigError(f"epoch_size must not be negative, got {epoch_size}.")
    weights_of_pass = resolve_weights(samples_per_stream, weights, None, seed, skip_empty=True)
    return weights_of_pass._replace(epoch_size=epoch_size or weights_of_pass.epoch_size)


def no_weights(streams: int) -> Weights:
    """Return the weights of an epoch without samples."""
    return Weights((0,) * streams, (0.0,) * streams, (0.0,) * streams, 0)


def stream_title(streams: Sequence[Mapping[str, Any]], number: int) -> str:
    """Return the name of a stream in messages: its ``name`` if it has one, else its number."""
    name = streams[number].get("name")
    return str(number) if name is None else repr(name)


def _parse_share(title: str, stream: Mapping[str, Any]) -> tuple[str, float]:
    """Return the kind of a stream's weight and its value; ("", 1) if it has none.

    ``title`` names the stream in messages; ``stream`` has its weight, as in `resolve_weights`.
    Raises ConfigError for several weights, or a value that is negative or infinite.
    """
    names = [n for n in ("proportion", "repeat", "choose") if stream.get(n) is not None]
    if len(names) > 1:
        raise ConfigError(f"stream {title} has {' and '.join(names)}. Give at most one of them.")
    if not names:
        return "", 1
    value = stream[names[0]]
    if not value >= 0 or value == float("inf"):  # NaN is not >= 0 either
        raise ConfigError(f"{names[0]} of stream {title} must not be negative, got {value}.")
    return names[0], value


def _relative(
    shares: Sequence[float], samples: Sequence[int], epoch_size: int, seed: int
) -> Weights:
    """Return the weights of streams that share an epoch of a given size: ``proportion`` of each.

    Numbers of samples are rounded down. The samples that are missing come from streams drawn by the
    seed, one more of each.

    Args:
        shares: Share of each stream; they need not sum to 1.
        samples: Samples that each stream has.
        epoch_size: Samples of the epoch.
        seed: Seed that decides which streams get the samples that rounding down leaves.
    """
    parts = np.array(shares, np.float64)
    if not parts.sum():
        raise ConfigError(
            "all proportions are zero. Give at least one stream a positive proportion."
        )
    proportion = parts / parts.sum()
    choose = (epoch_size * proportion).astype(np.int64)
    missing = epoch_size - int(choose.sum())
    if missing:
        rounded_up = np.random.default_rng(seed).choice(len(choose), missing, replace=False)
        choose[rounded_up] += 1
    repeat = choose / np.maximum(samples, 1)
    return Weights(
        tuple(choose.tolist()), tuple(proportion.tolist()), tuple(repeat.tolist()), epoch_size
    )


def _absolute(shares: Sequence[tuple[str, float]], samples: Sequence[int]) -> Weights:
    """Return the weights of streams whose ``repeat`` and ``choose`` decide the size of the epoch.

    Args:
        shares: For each stream the kind of its weight, "repeat", "choose" or "", and its value.
        samples: Samples that each stream has.
    """
    # With fractions, before any number is rounded down.
    total_samples = sum(
        value * (1 if name == "choose" else count)
        for (name, value), count in zip(shares, samples, strict=True)
    )
    if total_samples > MAX_EPOCH:
        raise ConfigError(
            f"repeat and choose request an epoch of more than {MAX_EPOCH:,} samples. Use smaller "
            "values."
        )
    choose = [
        int(value * count) if name != "choose" else int(value)
        for (name, value), count in zip(shares, samples, strict=True)
    ]
    total = sum(choose)
    if not total:
        return no_weights(len(choose))
    repeat = tuple(c / max(n, 1) for c, n in zip(choose, samples, strict=True))
    return Weights(tuple(choose), tuple(c / total for c in choose), repeat, total)
