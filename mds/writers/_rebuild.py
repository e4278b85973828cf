"""Rebuilding of a lost index.json from the shards of one place.

The header of an MDS shard, and the meta file of a shard of JSON or CSV, hold all that an index says
about a shard, except its sizes and digests, which are computed from the files. So the new index has
the bytes of the lost one if all shards are as their writer left them. Nobody can know whether the
last shards are missing, or whether a file was changed. Files that were compressed, or whose writer
stored digests, are read whole; of others only the header is read.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from mds._index.table import Index
from mds._shardfile.compression import parse_compression
from mds._shardfile.hashing import new_hash
from mds._shardfile.layout import (
    INDEX_NAME,
    MAX_SIZE,
    VERSION,
    header_size,
    is_shard_name,
    parse_meta_offsets,
    parse_offsets,
)
from mds._words import plural
from mds.errors import ConfigError, IndexFileError, NotFoundError, ShardError
from mds.storage import open_store
from mds.storage._url import redact
from mds.writers._merge import lock_places

if TYPE_CHECKING:
    from mds._shardfile.compression import Codec
    from mds.storage import Store

_NAME = re.compile(
    r"shard\.(?P<number>\d{5,})\.(?P<format>mds|json|csv|tsv|xsv)(?P<meta>\.meta)?"
    r"(?P<zip>\.(?:br|bz2|gz|snappy|zstd))?"
)
#: Shards that are read at the same time.
_THREADS = 8


def has_shards(place: str) -> bool:
    """Return whether there are shards directly at a folder or URL, as far as it can be listed."""
    store = open_store(place)
    return store.can_list and next(_list_shards(store), None) is not None


def rebuild_index(place: str) -> Index:
    """Write the index.json of the shards at a place, and return it.

    - ``place`` (str): The folder or URL of one dataset, without folders of splits.

    Raises FileExistsError if there is an index, WriterError if a writer is filling the folder,
    ConfigError for a conversion that is not finished, IndexFileError if a shard is missing or
    belongs to another dataset, and ShardError for a damaged one. Then nothing is written.
    """
    with lock_places([place]), open_store(place) as store:
        _refuse_existing(store, place)
        local = store.local_path
        if local is not None and ".mds-convert" in os.listdir(local):
            raise ConfigError(
                f"{redact(place)}: a conversion there was not finished. Continue with mds-convert "
                "--resume."
            )
        shards = _group_files(_list_shards(store), redact(place))
        with ThreadPoolExecutor(_THREADS, "mds-rebuild") as pool:
            entries = list(pool.map(lambda files: _read_entry(store, files), shards))
        _check_equal(entries, redact(place))
        texts = [json.dumps(entry, sort_keys=True) for entry in entries]
        data = f'{{"shards": [{", ".join(texts)}], "version": {VERSION}}}'.encode()
        index = Index.parse(data, store.url_of(INDEX_NAME))
        _refuse_existing(store, place)  # it may have appeared meanwhile
        store.put(INDEX_NAME, data)
    return index


def _refuse_existing(store: Store, place: str) -> None:
    """Raise FileExistsError if there is an index."""
    with suppress(NotFoundError):
        store.head(INDEX_NAME)
        raise FileExistsError(
            f"{redact(place)}: there is an {INDEX_NAME} already, which is never replaced by one of "
            f"the shards. Check the dataset with mds verify {redact(place)}."
        )


def _list_shards(store: Store) -> Iterator[str]:
    """Yield the names of the shard files directly at a place."""
    if store.local_path is not None:
        names = os.listdir(store.local_path) if os.path.isdir(store.local_path) else []
    else:
        names = (info.key for info in store.list("shard."))  # type: ignore[assignment]
    yield from (name for name in names if "/" not in name and is_shard_name(name))


def _group_files(names: Iterator[str], location: str) -> list[dict[str, str]]:
    """Return the files of each shard by kind, such as {"raw_data": "shard.00000.mds"}, in order.

    Raises IndexFileError if a number has no shard, or if there are shards of two formats.
    """
    shards: dict[int, dict[str, str]] = defaultdict(dict)
    formats = set()
    for name in sorted(names):
        match = _NAME.fullmatch(name)
        assert match is not None, "it is the name of a shard"
        formats.add(match["format"])
        kind = f"{'zip' if match['zip'] else 'raw'}_{'meta' if match['meta'] else 'data'}"
        shards[int(match["number"])][kind] = name
    if len(formats) > 1:
        raise IndexFileError(
            f"{location}: there are shards of several datasets, in the formats "
            f"{' and '.join(sorted(formats))}. Move those of one dataset to a folder of their own."
        )
    kinds = ("data",) if formats == {"mds"} else ("data", "meta")
    missing = [
        number
        for number in range(max(shards) + 1)
        if not all({f"raw_{kind}", f"zip_{kind}"} & shards[number].keys() for kind in kinds)
    ]
    if missing:
        listed = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        raise IndexFileError(
            f"{location}: of the shards 0 to {max(shards)}, {len(missing)} are missing ({listed}). "
            "No index is written, because it would leave out their samples. Copy them to this "
            "place, or write the dataset again."
        )
    return [shards[number] for number in sorted(shards)]


def _read_entry(store: Store, files: Mapping[str, str]) -> dict[str, Any]:
    """Return the index entry of a shard. Raises ShardError if one of its files is damaged.

    - ``files`` (Mapping[str, str]): The names of its files by kind, as `_group_files` returns them.
    """
    is_split = any(kind.endswith("meta") for kind in files)
    kind = "meta" if is_split else "data"
    name = files.get(f"zip_{kind}") or files[f"raw_{kind}"]
    location = store.url_of(name)
    header = _read_header(store, name, is_whole=is_split)
    (samples,) = struct.unpack_from("<I", header)
    try:
        config = json.loads(header[header_size(samples) :])
        hashes = [*config["hashes"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ShardError(f"{location}: its header is damaged: {error!r}.") from error
    check_offsets = parse_meta_offsets if is_split else parse_offsets
    # The last offset is the end of the data file.
    (size,) = struct.unpack_from("<I", header, header_size(samples) - 4)
    sizes = {"data": size, "meta": len(header)} if is_split else {"data": size}
    entry = {**config, "samples": samples}
    for each, raw_size in sizes.items():
        entry |= _describe_file(store, files, each, hashes, raw_size)
    if all(entry[f"zip_{each}"] is None for each in sizes):
        entry["compression"] = None
    check_offsets(header, samples, entry["raw_data"]["bytes"], location)
    return entry


def _describe_file(
    store: Store, files: Mapping[str, str], kind: str, hashes: Sequence[str], size: int
) -> dict[str, Any]:
    """Return what the index says of the data or meta file of a shard, raw and compressed.

    - ``files`` (Mapping[str, str]): The names of the files of the shard by kind.
    - ``kind`` (str): "data" or "meta".
    - ``hashes`` (Sequence[str]): Names of the digests to compute.
    - ``size`` (int): Bytes of the raw file, as the header says.
    """
    zipped = files.get(f"zip_{kind}")
    raw = files[f"raw_{kind}"] if zipped is None else zipped.rpartition(".")[0]
    if zipped is None and not hashes:
        entry = _entry(raw, store.head(raw).size, {})
        return {f"raw_{kind}": entry, f"zip_{kind}": None}
    digests = {name: new_hash(name) for name in hashes}
    zip_digests = {name: new_hash(name) for name in hashes}
    raw_size = zip_size = 0
    for piece, chunk in _read_pieces(store, zipped or raw, size):
        raw_size += len(piece)
        zip_size += len(chunk)
        for name in hashes:
            digests[name].update(piece)
            zip_digests[name].update(chunk)
    zip_entry = None if zipped is None else _entry(zipped, zip_size, zip_digests)
    return {f"raw_{kind}": _entry(raw, raw_size, digests), f"zip_{kind}": zip_entry}


def _entry(name: str, size: int, digests: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object of a file in an index."""
    hashes = {hash_: digest.hexdigest() for hash_, digest in digests.items()}
    return {"basename": name, "bytes": size, "hashes": hashes}


def _read_header(store: Store, name: str, *, is_whole: bool) -> bytes:
    """Return the bytes before the first sample of a shard, or a whole meta file.

    Raises ShardError if the file is too short.
    """
    header = bytearray()
    for piece, _ in _read_pieces(store, name):
        header += piece
        if len(header) >= header_size(0) and not is_whole:
            (first_sample,) = struct.unpack_from("<I", header, 4)
            if len(header) >= first_sample:
                del header[first_sample:]
                break
    samples = int.from_bytes(header[:4], "little")
    if len(header) < header_size(samples):
        raise ShardError(
            f"{store.url_of(name)}: the file is cut short: its header of "
            f"{plural(samples, 'sample')} takes "
            f"{header_size(samples)} bytes or more, and there are {len(header)}. Copy this shard "
            "again, or write the dataset again."
        )
    return bytes(header)


def _read_pieces(store: Store, name: str, size: int | None = None) -> Iterator[tuple[bytes, bytes]]:
    """Yield the content of a file in pieces, each decompressed and as it is stored.

    - ``size`` (int | None): Bytes of the decompressed file; None: unknown, so its end is not
      checked.

    Raises ShardError for damage.
    """
    match = _NAME.fullmatch(name)
    assert match is not None, "it is the name of a shard"
    codec: Codec | None = parse_compression(match["zip"][1:]) if match["zip"] else None
    with store.stream(name) as body:
        if codec is None:
            yield from ((chunk, b"") for chunk in body)
            return
        decompressor = codec.decompressor(MAX_SIZE - 1 if size is None else size)
        try:
            for chunk in body:
                yield decompressor.feed(chunk), chunk
            pieces: list[bytes] = []
            with suppress(ShardError) if size is None else nullcontext():
                decompressor.finish_to(pieces.append)
            yield b"".join(pieces), b""
        except ShardError as error:
            raise ShardError(f"{store.url_of(name)}: {str(error).rstrip('.')}.") from error


def _check_equal(entries: Sequence[Mapping[str, Any]], location: str) -> None:
    """Raise IndexFileError if shards have other columns or settings than the first one."""
    ignored = {"samples", "compression", "raw_data", "zip_data", "raw_meta", "zip_meta"}

    def settings(entry: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in entry.items() if key not in ignored}

    for number, entry in enumerate(entries):
        first, other = settings(entries[0]), settings(entry)
        if first != other:
            key = next(key for key in {**first, **other} if first.get(key) != other.get(key))
            raise IndexFileError(
                f"{location}: shard {number} has {key}={other.get(key)!r}, and shard 0 has "
                f"{first.get(key)!r}: shards of several datasets are mixed here. Move those of one "
                "dataset to a folder of their own."
            )
