"""An object into a file: in one stream, or a large one in parts over several connections.

One connection to an object store seldom fills the wire. Measured with files of 32 MB from loopback
S3: 230 MB/s whole, 680 MB/s in four parts of 8 MB; with 30 ms of latency 200 and 300 MB/s. Parts of
16 MB halve the requests of a shard of 64 MB, whose four parts still come at once. Every part is a
range read of its own, so a break costs no more than the rest of one part.
"""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from mds.errors import CorruptError
from mds.storage.files import disk, read_back, write_at

if TYPE_CHECKING:
    from mds.storage.base import Body, ObjectInfo, Store, Watch


def download(
    store: Store, key: str, path: str, size: int | None, watch: Watch | None = None
) -> ObjectInfo:
    """Write an object to ``path``; see `Store.get_file`."""
    with disk(path), open(path, "wb", buffering=0) as file:
        if size is None or size < 2 * store.part_size or store.part_connections < 2:
            return _whole(store, key, file.fileno(), size, watch)
        info = _parts(store, key, file.fileno(), size)
    if watch is not None:
        read_back(path, watch)
    return info


def _whole(store: Store, key: str, file: int, size: int | None, watch: Watch | None) -> ObjectInfo:
    written = 0
    with store.stream(key) as body:
        _check_size(store, body, size)
        for chunk in body:
            write_at(file, chunk, written)
            written += len(chunk)
            if watch is not None:
                watch(chunk)
    if size is not None and written != size:
        raise _wrong_size(store, key, written, size)
    return type(body.info)(key, written, body.info.version)


def _parts(store: Store, key: str, file: int, size: int) -> ObjectInfo:
    step = store.part_size
    stop = threading.Event()
    seen: list[ObjectInfo] = []

    def part(start: int) -> None:
        with store.stream(key, start, min(start + step, size)) as body:
            _check_size(store, body, size)
            seen.append(body.info)
            if body.info.version != seen[0].version:
                url = store.url_of(key)
                raise CorruptError(
                    f"get {url}: the object changed while it was read", url=url, verb="get"
                )
            for chunk in body:
                write_at(file, chunk, start)
                start += len(chunk)
                if stop.is_set():
                    break

    workers = min(store.part_connections, -(-size // step))
    with ThreadPoolExecutor(workers, thread_name_prefix="mds-part") as pool:
        futures = [pool.submit(part, start) for start in range(0, size, step)]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        finally:
            # After a failure nobody waits for parts that have not begun.
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
    return seen[0]


def _check_size(store: Store, body: Body, size: int | None) -> None:
    if size is not None and body.info.size not in (size, -1):
        raise _wrong_size(store, body.info.key, body.info.size, size)


def _wrong_size(store: Store, key: str, found: int, wanted: int) -> CorruptError:
    url = store.url_of(key)
    return CorruptError(
        f"get {url}: it has {found} bytes, {wanted} were expected", url=url, verb="get"
    )
