"""Rules of the arguments of a dataset and a Stream, and settings that cannot be changed later.

Add a rule here for a new argument of their constructors. Checks that depend on other arguments, on
the data or on registered names are made where the argument is used.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, get_args

from mds._arguments import (
    Rule,
    amount,
    check_arguments,
    did_you_mean,
    flag,
    mapping,
    names,
    number,
    one_of,
    shown,
    text,
    whole,
)
from mds._units import parse_bytes, parse_count
from mds._words import ImageForm, OnError
from mds.errors import ArgumentError, ConfigError
from mds.plan._state import MAX_SEED
from mds.shuffle._registry import find_shuffle
from mds.world import MAX_RANKS

if TYPE_CHECKING:
    from mds.plan._packing import Packing
    from mds.plan._schedule import Schedule, ScheduledRun


def _of_images(word: Rule) -> Rule:
    """Return the rule of the argument ``images``: one word, or a dict from columns to words.

    ``word`` is the rule of a single word, "pil" or "array". In a dict, each value must follow it.
    """
    return Rule(
        expected=f"{word.expected}, or a dict such as {{'image': 'array'}}",
        is_kind=lambda value: word.is_kind(value) or isinstance(value, Mapping),
        fits=lambda value: all(
            map(word.fits, value.values() if isinstance(value, Mapping) else [value])
        ),
        fix=lambda value: "" if isinstance(value, Mapping) else word.fix(value),
    )


def _is_format(value: Any) -> bool:
    """Whether a value is the name of a format or a Format; formats are imported only if needed."""
    if isinstance(value, str):
        return True
    from mds.formats._base import Format

    return isinstance(value, Format)


def _is_packing(value: Any) -> bool:
    """Whether a value is a Packing or a whole number; the class is imported only for a packing."""
    from mds.plan._packing import Packing

    return isinstance(value, Packing) or whole().is_kind(value)


def _fits_packing(value: Any) -> bool:
    """Whether a value that passed `_is_packing` is a Packing, or the tokens of one."""
    from mds.plan._packing import MAX_CAPACITY, Packing

    return isinstance(value, Packing) or 1 <= value <= MAX_CAPACITY


def _is_schedule(value: Any) -> bool:
    """Whether a value is a Schedule, or a dict of milestones that makes one.

    The class is imported only if ``schedule=`` is given.
    """
    if isinstance(value, Mapping):
        return True
    from mds.plan._schedule import Schedule

    return isinstance(value, Schedule)


_PLACE: dict[str, Rule] = {
    "remote": text("a URL or a path").or_none(),
    "local": text("the path of a folder").or_none(),
    "split": text("the name of a subfolder").or_none(),
    "storage_options": mapping("settings of the store", "{'anonymous': True}").or_none(),
    "validate_hash": text("the name of a digest such as 'xxh3_64'").or_none(),
    "format": Rule(
        "the name of a format such as 'parquet', or a Format such as Parquet(columns=['text'])",
        _is_format,
        fix=lambda value: f"{value.__name__}()" if isinstance(value, type) else "",
    ).or_none("the format of their endings"),
}

STREAM_RULES: dict[str, Rule] = {
    **_PLACE,
    "proportion": number(above=0, reaches=True).or_none(),
    "repeat": number(above=0, reaches=True).or_none(),
    "choose": whole(0, unit="samples").or_none(),
    "download_retry": whole(0, unit="tries").or_none(),
    "download_timeout": number(above=0, unit="seconds").or_none(),
    "keep_zip": flag().or_none(),
}


DATASET_RULES: dict[str, Rule] = {
    **_PLACE,
    "download_retry": STREAM_RULES["download_retry"],
    "download_timeout": STREAM_RULES["download_timeout"],
    "keep_zip": STREAM_RULES["keep_zip"],
    "epoch_size": amount(parse_count, "100k", unit="samples").or_none("all of them"),
    "predownload": whole(0, unit="samples").or_none("eight batches"),
    "cache_limit": amount(parse_bytes, "50gb", least=1, unit="bytes", most=(1 << 63) - 1).or_none(
        "no limit"
    ),
    "sampling_granularity": whole(unit="samples"),  # its value, and the seed's: OrderSpec
    "num_canonical_nodes": whole(1).or_none("the default number"),
    "batch_size": whole(1, unit="samples").or_none(),
    "shuffle": flag(),
    "shuffle_seed": whole(most=MAX_SEED),
    "shuffle_block_size": whole(1, unit="samples").or_none("the default size"),
    "allow_unsafe_types": flag(),
    "replication": whole(1, unit="ranks").or_none(),
    "stream_config": mapping("arguments of the stream's class", "{'repeat': 2}").or_none(),
    "columns": names("names of columns", "['image', 'label']").or_none("all of them"),
    "images": _of_images(one_of(*get_args(ImageForm))),
    "on_error": one_of(*get_args(OnError)),
    "copy": flag(),
    "packing": Rule(
        f"a Packing, or the tokens of a pack from 1 to {1 << 30:,}, as in 8192",
        _is_packing,
        _fits_packing,
        fix=whole(1).fix,
    ).or_none("single samples"),
    "schedule": Rule(
        "a Schedule or its milestones, as in {0: {'web': 0.9, 'math': 0.1}}", _is_schedule
    ).or_none("constant shares"),
}

T = TypeVar("T")


class FixedSetting(Generic[T]):
    """Descriptor of a setting that a dataset reads only in its constructor.

    A subclass may assign it before it calls the constructor. Later, an assignment would have no
    effect, so it raises AttributeError. The dataset itself writes to ``vars(dataset)``.

    Args:
        remedy: End of the error message, which names another way to change the setting.
    """

    def __init__(self, remedy: str = "") -> None:
        self._remedy = remedy

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    if TYPE_CHECKING:  # without a method, reading looks into ``vars(dataset)`` and costs nothing

        def __get__(self, dataset: object, owner: type | None = None) -> T: ...

    def __set__(self, dataset: Any, value: T) -> None:
        """Store the value, or raise AttributeError once the constructor of a dataset has ended."""
        # The constructor sets ``_shards`` last, so a dataset that has it is complete.
        if "_shards" in vars(dataset) and dataset._is_strict:  # noqa: SLF001 - its own
            raise_fixed(dataset, self._name, value, self._remedy)
        vars(dataset)[self._name] = value


def raise_fixed(owner: object, name: str, value: object, remedy: str = "") -> NoReturn:
    """Raise AttributeError for an assignment to a setting that is read only at construction.

    Args:
        owner: Dataset or Stream whose setting was assigned.
        name: Name of the setting.
        value: Value that was assigned.
        remedy: End of the message, which names another way to change the setting.
    """
    kind = type(owner).__name__
    raise AttributeError(
        f"{kind}.{name} = {shown(value)} would have no effect: {name} is fixed when the {kind} is "
        f"created. Write {kind}(..., {name}=...){remedy}."
    )


def check_assignment(
    owner: object, name: str, value: object, rules: Mapping[str, Rule], names: Iterable[str]
) -> None:
    """Refuse an assignment to an attribute of an object that cannot have an effect.

    An attribute that the object has must follow its rule. One that it lacks is refused if it looks
    like a setting. A class of the user may have any attributes, so its objects are not checked.

    Args:
        owner: Dataset, Stream or loader, after its constructor.
        name: Name of the attribute.
        value: Value that was assigned.
        rules: Rules of the settings, by name.
        names: Names of all settings.

    Raises AttributeError, or ConfigError for a value that breaks a rule.
    """
    kind = type(owner)
    if name.startswith("_") or not kind.__module__.startswith("mds."):
        return
    if name in vars(owner):
        if name in rules:
            check_arguments(kind.__name__, {name: value}, {name: rules[name]})
    elif not hasattr(kind, name):
        # For a new attribute only.
        from difflib import get_close_matches

        from mds._foreign_words import setting_meant

        setting = setting_meant([each.__name__ for each in kind.__mro__], name)
        near = [setting] if setting in names else get_close_matches(name, names, 1, 0.8)
        if near:
            raise AttributeError(
                f"{kind.__name__}.{name} = {shown(value)} would have no effect: there is no "
                f"setting {name!r}. Did you mean {near[0]}?"
            )


LIMIT_RULES: dict[str, Rule] = {"samples": amount(parse_count, "10k", unit="samples")}
ARROW_RULES: dict[str, Rule] = {
    "columns": DATASET_RULES["columns"],
    "batch_rows": whole(1, unit="rows"),
}


def check_settings(owner: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of a dataset that break a rule.

    ``owner`` is the name of the user's class, for messages, and ``arguments`` has the values of all
    arguments by name. Raises ConfigError, or its subclasses ArgumentError for a wrong type and
    UnknownNameError for an unknown shuffle.
    """
    check_arguments(owner, arguments, DATASET_RULES)
    _check_streams(owner, arguments["streams"])
    find_shuffle(arguments["shuffle_algo"])
    _check_topology(owner, arguments["topology"])


def _check_streams(owner: str, streams: Any) -> None:
    """Raise ArgumentError unless ``streams`` is None, or a list or dict of Stream objects."""
    if streams is None:
        return
    if not isinstance(streams, (list, tuple, Mapping)):
        raise ArgumentError(
            f"{owner}(streams=<{type(streams).__name__}>): streams= must be a list, as in "
            "streams=[Stream('a'), Stream('b')], or a dict of names and streams."
        )
    for key, stream in streams.items() if isinstance(streams, Mapping) else enumerate(streams):
        if not hasattr(stream, "remote"):
            raise ArgumentError(
                f"{owner}: streams[{key!r}] must be a Stream, got {type(stream).__name__}. Write "
                f"{_as_stream(key, stream)}."
            )


def _as_stream(key: object, value: object) -> str:
    """Return the Stream that a user probably means by an entry of ``streams``, as Python code.

    ``key`` is its position or name, and ``value`` no path, no dict of arguments and no weight.
    """
    del key, value
    return "Stream('data/train') or Stream('s3://bucket/train')"


def _check_topology(owner: str, topology: Any) -> None:
    """Refuse a ``topology`` that cannot name ranks, such as a number or a wrong (rank, size) pair.

    Other objects (a World, a process group, a function) are checked where they are used.
    """
    if isinstance(topology, (bool, int, float, str, list, Mapping)):
        pair = f" Write topology={tuple(topology)!r}." if isinstance(topology, list) else ""
        raise ArgumentError(
            f"{owner}(topology={shown(topology)}): topology= must be a pair of rank and world "
            "size such as (0, 2), a World, a process group, or None to use the launcher's "
            f"variables.{pair}"
        )
    if not isinstance(topology, tuple):
        return
    is_pair = len(topology) == 2 and all(isinstance(n, numbers.Integral) for n in topology)
    if not is_pair or not 0 <= topology[0] < topology[1] <= MAX_RANKS:
        raise ConfigError(
            f"{owner}(topology={shown(topology)}): expected a pair (rank, world size) such as (0, "
            f"2), with 0 <= rank < world size <= {MAX_RANKS:,}."
        )


#: Samples ahead for each sample of a batch, or pack, which counts as 32 documents.
_SAMPLES_AHEAD = {"samples": 8, "packs": 8 * 32}


def resolve_predownload(predownload: int | None, batch_size: int | None, unit: str) -> int:
    """Return how many samples ahead of each worker shards are fetched.

    The default is eight batches, or 64 samples without a batch size. ``unit`` says what a batch
    has: "samples" or "packs".
    """
    if predownload is not None:
        return predownload
    if not batch_size:
        return 64
    return batch_size * _SAMPLES_AHEAD[unit]


def check_function(owner: str, method: str, function: Any, example: str) -> Callable[..., Any]:
    """Return ``function``; raise ArgumentError if it cannot be called.

    Args:
        owner: Name of the user's class, for the message.
        method: Name of the method to which ``function`` was given, for the message.
        function: Value to check.
        example: Correct argument of the method, for the message.
    """
    if callable(function):
        return function  # type: ignore[no-any-return]
    raise ArgumentError(
        f"{owner}.{method}() needs a function, got {type(function).__name__} {function!r}. Write "
        f"{method}({example})."
    )


def find_column(owner: str, name: Any, columns: list[str]) -> str:
    """Return ``name`` if it is one of ``columns``, else raise ConfigError with the nearest name.

    ``owner`` is the call in which the name was given, for the message.
    """
    if name in columns:
        return str(name)
    raise ConfigError(
        f"{owner}: there is no column {name!r}.{did_you_mean(name, columns)} The columns are "
        f"{', '.join(map(repr, columns))}."
    )


def check_schedule(
    schedule: Schedule | Mapping[int, Mapping[str, float] | Sequence[float]] | None,
    streams: object,
    batching_method: str,
    packing: Packing | None,
) -> ScheduledRun | None:
    """Return the schedule with the names of its streams; None without a schedule.

    The arguments are those of the dataset with the same names. A dict of milestones becomes a
    Schedule. Raises ConfigError if the schedule names streams in a list, which have no names, or if
    other settings contradict a schedule.
    """
    if schedule is None:
        return None
    if not isinstance(streams, (Mapping, list, tuple)):
        raise ConfigError(
            "a schedule needs streams with names. Write streams={'web': Stream(...), ...}."
        )
    if batching_method != "random":
        raise ConfigError(
            f"batching_method={batching_method!r} does not work with schedule=, which sets the "
            "number of samples of each stream in a batch. Leave batching_method out."
        )
    from mds.plan._schedule import Schedule, ScheduledRun

    if not isinstance(schedule, Schedule):
        schedule = Schedule(schedule)
    if packing is not None:
        from mds.plan._pack_schedule import check_packed_schedule

        check_packed_schedule(schedule, packing)
    elif schedule.unit == "tokens" and schedule.tokens_per_sample is None:
        raise ConfigError(
            "schedule: unit='tokens' needs tokens_per_sample= for samples of one length, or "
            "packing= for documents. Give one of them."
        )
    if isinstance(streams, Mapping):
        return ScheduledRun(schedule, tuple(streams))
    # Streams without names have their numbers as names, which lists of weights have, too.
    positions = tuple(map(str, range(len(streams))))
    unknown = schedule.names - {*positions}
    if unknown:
        raise ConfigError(
            "a schedule speaks of streams by name: give streams={'web': Stream(...), ...}, or the "
            "weights of each milestone as a list in the order of the streams, as in "
            f"{{0: {[1, *[0] * (len(streams) - 1)]}}}."
        )
    return ScheduledRun(schedule, positions)
