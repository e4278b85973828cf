"""Samples of `Samples.select` and `Samples.split`: chosen by number, by a function or by a hash.

The plan sees only the chosen samples, so order, resume and ranks hold for a subset as for a whole
dataset.

`evaluate_once` shares a choice by a function among the processes of a node. A file holds the chosen
numbers after a digest, and is named after the data and the function. One process evaluates while
it holds a lock that the kernel releases when its owner ends; the others wait for the lock. With a
key of the user's, later runs use the file too. Without a key, the file serves the ranks of one
launcher, and only if everything that the function refers to has a digest; otherwise each process
evaluates for itself.
"""

from __future__ import annotations

import contextlib
import itertools
import numbers
import os
import pickle
import re
import types
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from mds._arguments import shown
from mds._cache.source import cache_root
from mds._dataset.columns import column_names
from mds._dataset.settings import check_function, find_column
from mds._iteration.filtering import Fate
from mds._iteration.reading import SampleSource, all_items, judge_all
from mds._redaction import get_logger
from mds._shardfile.hashing import hexdigest
from mds._words import plural
from mds.errors import ArgumentError, ConfigError, NotFoundError
from mds.storage._files import make_folder, open_regular, publish
from mds.storage._locks import lock_within

if TYPE_CHECKING:
    import numpy.typing as npt

    Ids = npt.NDArray[np.int64]


log = get_logger("mds._dataset.subsets")

_MAX_WAIT_SECONDS = 24 * 3600.0  # for another process that evaluates and is alive
_NAME = re.compile(r"^job-(\d+)-[0-9a-f]+\.ids$")
# Numbers the calls, so that two calls of one program have two files. All ranks of a job run the
# same program, so their calls have the same numbers.
_calls = itertools.count()


def choose_numbers(
    source: SampleSource, choice: Any, where: Callable[[Any], Any] | None, key: str | None
) -> Ids:
    """Return the sorted numbers, int64, of the samples that `Samples.select` chooses.

    ``choice``, ``where`` and ``key`` are the arguments of `Samples.select`. Raises ConfigError for
    arguments that are invalid or exclude each other.
    """
    check_choice(source.kind.__name__, choice, where)
    if key is not None and (where is None or not isinstance(key, str)):
        raise ConfigError(
            f"select(key={shown(key)}): key must be a text that names the selection of where=, as "
            "in select(where=lambda sample: ..., key='long')."
        )
    if where is None:
        return parse_selection(choice, source.shards.num_samples)
    return _evaluate(source, where, key)


def check_choice(owner: str, choice: Any, where: Any) -> None:
    """Raise an error unless one of the arguments is given, and ``where`` can be called.

    ``owner`` is the name of the user's class, for the message.
    """
    if (choice is None) == (where is None):
        raise ConfigError(
            "select() takes either sample numbers or where=. Write select([0, 7]) or "
            "select(where=lambda sample: ...)."
        )
    if where is not None:
        check_function(owner, "select", where, "where=lambda sample: ...")


def choose_parts(
    source: SampleSource, get: Callable[[int], Any], shares: Any, by: str | None, seed: int
) -> dict[Any, Ids]:
    """Return the sorted numbers, int64, of the samples of each part of `Samples.split`.

    Args:
        source: Samples to split.
        get: Returns a sample by its number, to read the column ``by``.
        shares: Share of the samples by name of the part, such as ``{"train": 0.9, "val": 0.1}``,
            or by its number; or numbers of samples, such as ``{"train": 900, "val": 100}``. Other
            values are refused.
        by: Column whose value decides the part of a sample; None for the sample's number.
        seed: Seed of the hash that chooses the parts.

    Raises ConfigError for invalid arguments.
    """
    count = source.shards.num_samples
    if not isinstance(shares, Mapping):
        is_share = isinstance(shares, float) and 0 < shares < 1
        example = f"[{shares:g}, {1 - shares:g}]" if is_share else "[0.9, 0.1]"
        first = round(count * (shares if is_share else 0.9))
        exact = f"split([{first}, {count - first}])"
        raise ConfigError(
            f"split({shown(shares)}): expected the share of each part. Write train, val = "
            f"dataset.split({example}) for about these shares, or numbers of samples, as in "
            f"{exact}; a dict with names, such as {{'train': 0.9, 'val': 0.1}}, returns a dict."
        )
    share: Any
    for name, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, numbers.Real):
            raise ArgumentError(
                f"split() needs a number for each part, got {share!r} for {name!r}. Write "
                "split({'train': 0.9, 'val': 0.1})."
            )
    if by is None:
        keys = np.arange(count, dtype=np.uint64)
        if are_counts(shares):
            return split_by_counts(keys, shares, seed)
    else:
        if are_counts(shares):
            raise ConfigError(
                f"split({shown(dict(shares))}, by={by!r}): samples of one {by} stay together, so "
                "parts cannot have exact numbers of samples. Use shares, as in split([0.9, 0.1], "
                f"by={by!r})."
            )
        find_column(f"split(by={by!r})", by, column_names(source.shards.indexes))
        values = (sample[by] for sample in all_items(source, get))
        keys = np.fromiter(map(key_of, values), np.uint64, count)
    parts = split_by_hash(keys, shares, seed)
    _warn_of_sizes(count, shares, parts, by)
    return parts


def _warn_of_sizes(
    count: int, shares: Mapping[Any, float], parts: Mapping[Any, Ids], by: str | None
) -> None:
    """Warn of parts whose size differs from their share by more than 2 % of all samples.

    Args:
        count: Number of all samples.
        shares: Share of the samples by name of the part.
        parts: Sample numbers by name of the part.
        by: Column whose values were divided; None for samples.
    """
    sizes = [len(numbers) for numbers in parts.values()]
    exact_sizes = [share * count for share in shares.values()]
    if all(abs(size - want) <= 0.02 * count for size, want in zip(sizes, exact_sizes, strict=True)):
        return
    bounds = np.rint(np.cumsum([0, *exact_sizes])).astype(int)
    exact = np.diff(bounds).tolist()
    log.warning(
        "split(%s) of %s samples gave parts of %s, because a hash chooses the part of each %s.%s",
        list(shares.values()),
        f"{count:,}",
        ", ".join(f"{size:,}" for size in sizes),
        by or "sample",
        "" if by else f" Write split({exact}) for exact numbers.",
    )


def _evaluate(source: SampleSource, where: Callable[[Any], Any], key: str | None) -> Ids:
    """Return the sorted numbers of the samples for which ``where`` is true.

    Other processes of the node, and later runs if ``key`` is given, use the same result, see
    `evaluate_once`.
    """
    sample_filter = source.filter.with_function("filter", where, "select(where={})")

    def evaluate() -> Ids:
        fates = judge_all(source, sample_filter)
        return np.array([number for number, _, fate in fates if fate is Fate.KEPT], np.int64)

    if source.filter.chain.links:
        return evaluate()  # not shared: the result depends on functions without a digest
    folder = os.path.join(cache_root(), "selections")
    ids = evaluate_once(folder, _data_name(source), where, key, evaluate)
    if len(ids) and not 0 <= ids[0] <= ids[-1] < source.shards.num_samples:
        return evaluate()  # the stored result is of other data
    return ids


def _data_name(source: SampleSource) -> str:
    """Return a text that identifies the samples: their data, how they are read, and the class."""
    kind = f"{source.kind.__module__}.{source.kind.__qualname__}"
    sources = [(s.content(), s.remote or s.folder, s.version) for s in source.cache.sources]
    skips = source.filter.skip_broken
    return repr((sources, source.shards.fingerprint, source.columns, skips, kind))


def parse_selection(choice: Any, samples: int) -> npt.NDArray[np.int64]:
    """Return ascending sample numbers, int64, of the argument ``choice`` of `Samples.select`.

    ``samples``: number of samples to choose from. Raises ConfigError (a ValueError) for numbers
    that are out of range, given twice or not ascending, and for a mask of another length.
    """
    if isinstance(choice, (str, os.PathLike)):
        choice = _load(choice)
    array = _as_array(choice, samples)
    if array.dtype == bool:
        if array.shape != (samples,):
            raise ConfigError(
                f"a mask of shape {array.shape} cannot select from {plural(samples, 'sample')}."
            )
        return np.flatnonzero(array).astype(np.int64)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or not array.size):
        description = (
            f"{array.dtype} of shape {array.shape}" if array.dtype != object else shown(choice)
        )
        raise ConfigError(
            f"select() takes sample numbers or a boolean mask, got {description}. Write "
            "select([0, 7]), select(dataset_mask) or select(where=function)."
            f"{_selection_hint(array)}"
        )
    numbers = array.astype(np.int64)
    ids = np.unique(numbers)
    if len(ids) and (ids[0] < 0 or ids[-1] >= samples):
        raise ConfigError(
            f"select() got sample numbers from {ids[0]} to {ids[-1]}; expected numbers from 0 to "
            f"{samples - 1}."
        )
    if len(ids) != len(numbers):
        raise ConfigError(
            f"{len(numbers) - len(ids)} of {len(numbers)} selected sample numbers are repeated. "
            "Write select(sorted(set(numbers))). To see samples more often, use repeat= of a "
            "Stream."
        )
    if not np.array_equal(ids, numbers):
        place = int(np.argmax(np.diff(numbers) < 0)) + 1
        raise ConfigError(
            f"select() needs ascending sample numbers, but {numbers[place]} follows "
            f"{numbers[place - 1]}. Write select(sorted(numbers)). For another order, use "
            "shuffle=True for an epoch, or dataset[numbers] for single samples."
        )
    return ids


def _as_array(choice: Any, samples: int) -> npt.NDArray[Any]:
    """Return the argument ``choice`` of `Samples.select` as an array, whatever it has.

    Numbers of a set, which has no order, are sorted. ``samples`` is the number of samples, for a
    slice. The array has the dtype object if no other one fits.
    """
    try:
        if isinstance(choice, slice):
            choice = range(*choice.indices(samples))
        if isinstance(choice, range):
            choice = np.arange(choice.start, choice.stop, choice.step)
        elif isinstance(choice, (set, frozenset)):
            choice = sorted(choice)
        elif isinstance(choice, Iterable) and not hasattr(choice, "__array__"):
            choice = list(choice)
        elif hasattr(choice, "cpu"):  # a tensor, which may be on another device
            choice = choice.cpu()
        return np.asarray(choice)
    except (TypeError, ValueError):  # numbers that cannot be compared, lists of several lengths
        return np.asarray(None)


def _selection_hint(array: npt.NDArray[Any]) -> str:
    """Return the end of an error for a value that is not a list of numbers, with what was meant."""
    if array.dtype.kind == "U" and array.size:
        return f" For columns, write StreamingDataset(..., columns={array.tolist()})."
    if array.ndim == 0 and array.dtype.kind in "iu":
        return (
            f" For one sample, write select([{array}]). For the first samples, write "
            f"dataset.limit({array})."
        )
    return ""


def _load(path: str | os.PathLike[str]) -> Any:
    """Return the array of a ``.npy`` file, memory-mapped.

    Raises NotFoundError if there is no file, and ConfigError if it is no file of numbers.
    """
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise NotFoundError(
            f"select({os.fspath(path)!r}): there is no such .npy file. Give sample numbers, a "
            "mask, or the path of a .npy file with one of these. To choose samples by content, "
            "write select(where=...)."
        ) from None
    except ValueError as error:
        raise ConfigError(
            f"select({os.fspath(path)!r}): this is not a .npy file of numbers or of a mask "
            f"({error}). Write the file with numpy.save()."
        ) from error


def split_by_hash(
    keys: npt.NDArray[np.uint64], shares: Mapping[Any, float], seed: int
) -> dict[Any, npt.NDArray[np.int64]]:
    """Divide samples into disjoint parts by a hash of their keys.

    Args:
        keys: Key of each sample, uint64 of shape (samples,). Samples with equal keys share a part.
        shares: Share of the samples by name of the part; ConfigError is raised unless the sum is 1.
        seed: Seed of the hash.

    Returns:
        The ascending sample numbers, int64, by name of the part.
    """
    if not shares or any(s < 0 for s in shares.values()):
        raise ConfigError(f"split() needs names with shares of at least 0, got {dict(shares)}.")
    if not 0.5 < (total := sum(shares.values())) < 1.5 or not np.isclose(total, 1.0):
        remedy = "Change one of the shares."
        if total >= len(shares):  # numbers of samples
            remedy = f"Write {[round(s / total, 3) for s in shares.values()]}."
        raise ConfigError(
            f"the shares of split() must sum to 1, got {shown(total)}: {shown(dict(shares))}. "
            f"{remedy}"
        )
    # Part i has the samples whose random number is from bounds[i - 1] to below bounds[i].
    bounds = np.cumsum(list(shares.values()))[:-1]
    part = np.searchsorted(bounds, _uniform(keys, seed), "right")
    return {name: np.flatnonzero(part == i).astype(np.int64) for i, name in enumerate(shares)}


def are_counts(shares: Mapping[Any, float]) -> bool:
    """Return True if shares of `Samples.split` are numbers of samples.

    They are integers whose sum is above 1.
    """
    return sum(shares.values()) > 1 and all(
        isinstance(share, numbers.Integral) for share in shares.values()
    )


def split_by_counts(
    keys: npt.NDArray[np.uint64], counts: Mapping[Any, float], seed: int
) -> dict[Any, npt.NDArray[np.int64]]:
    """Divide samples into disjoint parts of exact sizes, in the order of a hash of their keys.

    Args:
        keys: Key of each sample, uint64 of shape (samples,).
        counts: Number of samples by name of the part; ConfigError is raised unless the sum is the
            number of all samples.
        seed: Seed of the hash.

    Returns:
        The ascending sample numbers, int64, by name of the part.
    """
    if any(count < 0 for count in counts.values()) or sum(counts.values()) != len(keys):
        total = sum(counts.values())
        raise ConfigError(
            f"split() got {total:,} samples in all, but the dataset has "
            f"{plural(len(keys), 'sample')}: "
            f"{shown(dict(counts))}. Use shares, as in "
            f"split({[round(count / total, 3) for count in counts.values()]}), or change a number."
        )
    by_hash = np.argsort(_uniform(keys, seed), kind="stable")
    parts = np.split(by_hash, np.cumsum(list(counts.values()))[:-1])
    return {name: np.sort(part).astype(np.int64) for name, part in zip(counts, parts, strict=True)}


def key_of(value: Any) -> int:
    """Return a hash of a value, the same on all machines: of its bytes, else of its text."""
    if isinstance(value, np.ndarray):
        data = value.tobytes()
    else:
        data = bytes(value) if isinstance(value, (bytes, bytearray)) else str(value).encode()
    return int(hexdigest("xxh3_64", data), 16)


def _uniform(numbers: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.float64]:
    """Return a pseudo-random number in [0, 1) for each of ``numbers``.

    It is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
    generators", 2014).
    """
    with np.errstate(over="ignore"):
        z = (numbers + np.uint64(seed & 0xFFFFFFFF) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    # A float64 represents the upper 53 of the 64 bits exactly.
    return np.asarray(z >> np.uint64(11), np.float64) / float(1 << 53)


def evaluate_once(
    folder: str,
    data: str,
    where: Callable[[Any], Any],
    key: str | None,
    evaluate: Callable[[], Ids],
) -> Ids:
    """Return the result of ``evaluate``, from a file of the cache folder if it is there.

    Args:
        folder: Folder of the files.
        data: Text that identifies the data.
        where: Function that chooses samples; its digest is part of the name of the file.
        key: Name that replaces the digest, or None.
        evaluate: Returns the chosen sample numbers.
    """
    # All ranks run the same program, so this number identifies the call on each of them.
    call_number = next(_calls)
    if key is not None:
        name = f"key-{_digest(data, key)}.ids"
    else:
        function = _digest_of(where)
        if function is None:
            return evaluate()
        # Only the ranks of this launcher find the file: they have the same parent process.
        call_digest = _digest(data, function, str(call_number), _start_of_parent())
        name = f"job-{os.getppid()}-{call_digest}.ids"
    path = os.path.join(folder, name)
    stored_ids = _read(path)
    if stored_ids is not None:
        return stored_ids
    try:
        make_folder(folder)
        # Wait for a process that evaluates, but not if it has been stopped (``past_stopped``).
        lock = lock_within(f"{path}.lock", 0, _MAX_WAIT_SECONDS, past_stopped=True)
    except OSError as error:
        log.warning(
            "%s cannot store the selection (%s), so every process evaluates it.",
            folder,
            error,
        )
        return evaluate()
    try:
        # While this process waited for the lock, another one may have written the file. A lock of
        # None means that the wait was given up; the result is then computed here too.
        stored_ids = _read(path)
        if stored_ids is None:
            stored_ids = evaluate()
            _write(path, stored_ids)
            _delete_files_of_ended_jobs(folder)
    finally:
        if lock is not None:
            lock.close()
    return stored_ids


def _read(path: str) -> Ids | None:
    """Return the numbers of a file, or None if it is missing or damaged.

    A file is a digest of 16 hexadecimal digits and then the numbers, little-endian int64.
    """
    try:
        with open_regular(path) as file:
            content = file.read()
    except OSError:
        return None
    checksum, data = content[:16], content[16:]
    if len(data) % 8 or checksum != hexdigest("xxh3_64", data).encode():
        return None  # damaged, and evaluated again
    return np.frombuffer(data, "<i8").astype(np.int64)


def _write(path: str, numbers: Ids) -> None:
    """Write numbers to a file for `_read`; only log a warning if that fails."""
    data = np.ascontiguousarray(numbers, "<i8").tobytes()
    try:
        with publish(path) as temporary, open(temporary, "xb") as file:
            file.write(hexdigest("xxh3_64", data).encode() + data)
    except OSError as error:
        log.warning(
            ("%s cannot be stored (%s), so every process evaluates the selection itself."),
            path,
            error,
        )


def _delete_files_of_ended_jobs(folder: str) -> None:
    """Delete the files, and their locks, of launchers whose process no longer exists.

    Such a file is named ``job-PID-DIGEST.ids``, with the process number of the launcher.
    """
    for name in os.listdir(folder):
        match = _NAME.match(name)  # its group is the process number of the launcher
        if match and not os.path.exists(f"/proc/{match[1]}"):
            for path in (name, f"{name}.lock"):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(folder, path))


def _start_of_parent() -> str:
    """Return the start time of the parent process, in clock ticks since boot.

    Process numbers are used again, so the start time is needed to identify a process.
    """
    try:
        with open(f"/proc/{os.getppid()}/stat", encoding="utf-8", errors="replace") as file:
            # Field 22, the twentieth after the name in brackets, which may contain blanks.
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return str(os.getpid())  # not shared


def _digest_of(function: Callable[[Any], Any]) -> str | None:
    """Return a digest of a function and all that it refers to, or None if that is unknown."""
    try:
        return _digest(*_describe_value(function, set()))
    except Exception:  # noqa: BLE001 - pickling runs code of any kind
        return None


def _describe_value(value: Any, visited: set[int]) -> Iterable[str]:
    """Yield texts that identify a value and, of a function, its code and all that it refers to.

    ``visited``: identities of values that were described before.
    """
    if id(value) in visited:
        return
    visited.add(id(value))
    if not isinstance(value, types.FunctionType):
        if isinstance(value, types.ModuleType):
            yield value.__name__
        else:
            yield hexdigest("xxh3_128", pickle.dumps(value))
        return
    yield f"{value.__module__}.{value.__qualname__}"
    yield from _describe_code(value.__code__)
    # A function refers to variables of the functions around it, and to names of its module.
    cells = [cell.cell_contents for cell in value.__closure__ or ()]
    names = [name for name in value.__code__.co_names if name in value.__globals__]
    for referent in (value.__defaults__, value.__kwdefaults__, *cells):
        yield from _describe_value(referent, visited)
    for name in names:
        yield name
        yield from _describe_value(value.__globals__[name], visited)


def _describe_code(code: types.CodeType) -> Iterable[str]:
    """Yield texts that identify the code of a function and of the functions inside it."""
    yield code.co_code.hex()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _describe_code(constant)
        else:
            yield repr(constant)


def _digest(*parts: str) -> str:
    return hexdigest("xxh3_128", "\0".join(parts).encode())
