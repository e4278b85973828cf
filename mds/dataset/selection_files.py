"""Selections that take long to make, made once a node and read by its other processes.

A file holds the chosen sample numbers behind a digest; its name stands for the data and for the
function that chose. One process evaluates while it holds a lock that the kernel drops with its
owner; the others wait for that lock. With a key of the user's the file serves later runs too.
Without one it serves the ranks that one launcher started, and only where everything that the
function refers to could be digested: otherwise each process evaluates for itself.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import re
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.format.hashing import hexdigest
from mds.storage.files import make_folder, publish
from mds.storage.locks import lock_within
from mds.storage.regular import open_regular
from mds.text.redaction import get_logger

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

log = get_logger("mds.dataset.selection")

_PATIENCE = 24 * 3600.0  # seconds to wait for a process that evaluates and is alive
_NAME = re.compile(r"^job-(\d+)-[0-9a-f]+\.ids$")
_calls = itertools.count()  # the ranks of a job run the same program, so they count alike


def evaluate_once(
    folder: str,
    data: str,
    where: Callable[[Any], Any],
    key: str | None,
    evaluate: Callable[[], Numbers],
) -> Numbers:
    """Return the result of ``evaluate`` for ``data`` and ``where``, from a file if possible."""
    number = next(_calls)
    if key is not None:
        name = f"key-{_digest(data, key)}.ids"
    else:
        function = _digest_of(where)
        if function is None:
            return evaluate()
        name = f"job-{os.getppid()}-{_digest(data, function, str(number), _start_of_parent())}.ids"
    path = os.path.join(folder, name)
    stored_ids = _read(path)
    if stored_ids is not None:
        return stored_ids
    try:
        make_folder(folder)
        lock = lock_within(f"{path}.lock", 0, _PATIENCE, past_stopped=True)
    except OSError as error:
        log.warning("%s cannot keep the selection (%s): every process makes it.", folder, error)
        return evaluate()
    try:
        stored_ids = _read(path)
        if stored_ids is None:
            stored_ids = evaluate()
            _write(path, stored_ids)
            _remove_those_of_ended_jobs(folder)
    finally:
        if lock is not None:
            lock.close()
    return stored_ids


def _read(path: str) -> Numbers | None:
    try:
        with open_regular(path) as file:
            content = file.read()
    except OSError:
        return None
    seal, data = content[:16], content[16:]
    if len(data) % 8 or seal != hexdigest("xxh3_64", data).encode():
        return None  # damaged: made anew
    return np.frombuffer(data, "<i8").astype(np.int64)


def _write(path: str, numbers: Numbers) -> None:
    data = np.ascontiguousarray(numbers, "<i8").tobytes()
    try:
        with publish(path) as temporary, open(temporary, "xb") as file:
            file.write(hexdigest("xxh3_64", data).encode() + data)
    except OSError as error:
        log.warning("%s cannot be kept (%s): other processes evaluate anew.", path, error)


def _remove_those_of_ended_jobs(folder: str) -> None:
    for name in os.listdir(folder):
        match = _NAME.match(name)
        if match and not os.path.exists(f"/proc/{match[1]}"):
            for path in (name, f"{name}.lock"):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(folder, path))


def _start_of_parent() -> str:
    # The number of a process is used again; when it started is not.
    try:
        with open(f"/proc/{os.getppid()}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return str(os.getpid())  # not shared


def _digest_of(function: Callable[[Any], Any]) -> str | None:
    """Return a digest of a function and all that it refers to, or None if that is unknown."""
    try:
        return _digest(*_told(function, set()))
    except Exception:  # noqa: BLE001 - pickling runs code of any kind
        return None


def _told(value: Any, seen: set[int]) -> Iterable[str]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if not isinstance(value, types.FunctionType):
        if isinstance(value, types.ModuleType):
            yield value.__name__
        else:
            yield hexdigest("xxh3_128", pickle.dumps(value))
        return
    yield f"{value.__module__}.{value.__qualname__}"
    yield from _code(value.__code__)
    cells = [cell.cell_contents for cell in value.__closure__ or ()]
    names = [name for name in value.__code__.co_names if name in value.__globals__]
    for each in (value.__defaults__, value.__kwdefaults__, *cells):
        yield from _told(each, seen)
    for name in names:
        yield name
        yield from _told(value.__globals__[name], seen)


def _code(code: types.CodeType) -> Iterable[str]:
    yield code.co_code.hex()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant)
        else:
            yield repr(constant)


def _digest(*parts: str) -> str:
    return hexdigest("xxh3_128", "\0".join(parts).encode())
