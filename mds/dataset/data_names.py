"""Names of the data in a state, for people, which lead back to the order: places and settings.

They are in every state and hold no secret: URLs are masked as in messages. Only the lists of files
that are read in place are compared, and only with lists of the same format. Other differences of
the data are a warning.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mds.errors import StateError
from mds.redaction import mask_foreign

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mds.dataset.shard_map import ShardMap
    from mds.dataset.stream import Stream

_DIGEST_LETTERS = 16


def name_data(
    streams: Sequence[Stream],
    shards: ShardMap,
    contents: Sequence[str],
    shares: Sequence[Mapping[str, float]],
    epoch_size: int | None,
) -> dict[str, Any]:
    """Return the streams with their places and requested shares, as plain JSON.

    ``contents``: a digest for the data of each.
    """
    places = [
        mask_foreign(str(stream.remote_folder or os.path.abspath(stream.folder)))
        for stream in streams
    ]
    # Streams are often in one folder, and a state with many of them shall stay small.
    root = os.path.commonprefix(places) if len(places) > 1 else ""  # noqa: RUF071 - cut below
    root = root[: root.rfind("/") + 1]
    facts: dict[str, Any] = {"streams": []}
    if root:
        facts["root"] = root
    for place, stream, content, share in zip(places, streams, contents, shares, strict=True):
        entry = {"at": place[len(root) :], "index": content[:_DIGEST_LETTERS], **share}
        if stream.format is not None:
            entry["format"] = stream.format.name
        entry |= stream._files_pin  # noqa: SLF001 - of the same family
        facts["streams"].append(entry)
    if epoch_size is not None:
        facts["epoch_size"] = epoch_size
    if shards.selection is not None:
        facts["selected"] = shards.num_samples
    return facts


def check_files(
    recorded: Mapping[str, Any] | None,
    current: Mapping[str, Any],
    changes: Sequence[tuple[str, str]],
) -> None:
    """Raise StateError where a state is of other files than those that are read in place.

    A copy in another format has the same order, so only a list of the same format is compared.
    ``changes``: of each stream the digest of its files before they last changed, and what changed.
    """
    before = (recorded or {}).get("streams")
    streams = current.get("streams", ())
    if not isinstance(before, list) or len(before) != len(streams):
        return
    for old, new, (since, changed) in zip(before, streams, changes, strict=True):
        if not isinstance(old, dict) or "list" not in old or old.get("kind") != new.get("kind"):
            continue
        if old["list"] != new.get("list"):
            # Otherwise this cache folder never had the files of the state.
            differences = changed if old["list"] == since else "their names or sizes differ"
            raise StateError(
                f"the state is of {_files(old)}, and {current.get('root', '')}{new['at']} has "
                f"{_files(new)}: {differences}. {_way_back(old)}"
            )


def _files(stream: Mapping[str, Any]) -> str:
    pins = "".join(f", {name} {value}" for name, value in _pin(stream).items())
    return f"{stream.get('files')} files of {stream.get('kind')}{pins}"


def _pin(stream: Mapping[str, Any]) -> Mapping[str, Any]:
    pin = stream.get("pin")
    return pin if isinstance(pin, dict) else {}


def _way_back(old: Mapping[str, Any]) -> str:
    pin = _pin(old)
    if "remote" in pin:
        return f"Read those of the state: remote={pin['remote']!r}, with the pattern behind it."
    for name, value in pin.items():
        return f"Read that of the state: format={str(old['kind']).title()}({name}={value})."
    return "Put back those of the state; `mds index` pins the files of a run."


def other_data(
    recorded_data: Mapping[str, Any] | None, current_data: Mapping[str, Any]
) -> list[str]:
    """Return clauses about streams whose data differ from those that a state names.

    A copy of the same index in another place is the same, and so is a version of a table whether
    it was asked for or was the latest.
    """
    clauses = []
    for recorded, current in zip(_contents(recorded_data), _contents(current_data), strict=False):
        (before, old, version), (after, new, version_now) = recorded, current
        if old == new or (version and version == version_now):
            continue
        if before == after:
            clauses.append(f"{after} has the index {new} now and had {old}: it was replaced")
        else:
            clauses.append(f"{after} with the index {new} is read now, and {before} with {old} was")
    return clauses


def _contents(data: Mapping[str, Any] | None) -> list[tuple[str, str, Any]]:
    """Return place, digest and version of each stream, as far as a state records them."""
    streams = (data or {}).get("streams")
    if not isinstance(streams, (list, tuple)):
        return []
    entries = [entry for entry in streams if isinstance(entry, Mapping)]
    root = (data or {}).get("root", "")
    return [
        (f"{root}{entry.get('at')}", str(entry.get("index")), _version(entry)) for entry in entries
    ]


def _version(stream: Mapping[str, Any]) -> Any:
    """Return what identifies the files of a version of a table, or None if nothing does."""
    pin = {name: value for name, value in _pin(stream).items() if name != "remote"}
    return (stream.get("kind"), stream.get("list"), pin) if pin else None
