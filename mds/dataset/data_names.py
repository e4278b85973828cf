"""What names the data of a state for people, and leads back to the order: places and settings.

It is in every state and holds no secret: URLs are masked as in messages. Only the lists of files
that are read as they lie are compared, and only with lists of the same format. Where the data are
others all the same, it is told.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mds.errors import StateError
from mds.text.redaction import mask_foreign

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
    """The streams, with what was asked for of each and of an epoch, as plain JSON.

    ``contents``: a digest for the data of each.
    """
    places = [
        mask_foreign(str(stream.remote_folder or os.path.abspath(stream.folder)))
        for stream in streams
    ]
    # Streams mostly lie side by side, and a state with many of them is to stay small.
    root = os.path.commonprefix(places) if len(places) > 1 else ""  # noqa: RUF071 - cut below
    root = root[: root.rfind("/") + 1]
    found: dict[str, Any] = {"streams": []}
    if root:
        found["root"] = root
    for place, stream, content, share in zip(places, streams, contents, shares, strict=True):
        one = {"at": place[len(root) :], "index": content[:_DIGEST_LETTERS], **share}
        if stream.format is not None:
            one["format"] = stream.format.name
        one |= stream._files_pin  # noqa: SLF001 - of the same family
        found["streams"].append(one)
    if epoch_size is not None:
        found["epoch_size"] = epoch_size
    if shards.selection is not None:
        found["selected"] = shards.num_samples
    return found


def check_files(
    then: Mapping[str, Any] | None, now: Mapping[str, Any], changes: Sequence[tuple[str, str]]
) -> None:
    """Raise StateError where a state is of other files than those that are read in place.

    A copy in another format has the same order, so only a list of the same format is compared.
    ``changes``: of each stream the digest of its files before they last changed, and what changed.
    """
    before = (then or {}).get("streams")
    streams = now.get("streams", ())
    if not isinstance(before, list) or len(before) != len(streams):
        return
    for old, new, (since, changed) in zip(before, streams, changes, strict=True):
        if not isinstance(old, dict) or "list" not in old or old.get("kind") != new.get("kind"):
            continue
        if old["list"] != new.get("list"):
            # Otherwise this cache folder never had the files of the state.
            differences = changed if old["list"] == since else "their names or sizes differ"
            raise StateError(
                f"the state is of {_files(old)}, and {now.get('root', '')}{new['at']} has "
                f"{_files(new)}: {differences}. {_way_back(old)}"
            )


def _files(one: Mapping[str, Any]) -> str:
    told = "".join(f", {name} {value}" for name, value in _pin(one).items())
    return f"{one.get('files')} files of {one.get('kind')}{told}"


def _pin(one: Mapping[str, Any]) -> Mapping[str, Any]:
    found = one.get("pin")
    return found if isinstance(found, dict) else {}


def _way_back(old: Mapping[str, Any]) -> str:
    pin = _pin(old)
    if "remote" in pin:
        return f"Read those of the state: remote={pin['remote']!r}, with the pattern behind it."
    for name, value in pin.items():
        return f"Read that of the state: format={str(old['kind']).title()}({name}={value})."
    return "Put back those of the state; `mds index` pins the files of a run."


def other_data(then: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """Sentences on the streams of a run whose data are not those that a state names.

    A copy of the same index in another place is the same, and so is a version of a table whether
    it was asked for or was the latest.
    """
    found = []
    for one, other in zip(_contents(then), _contents(now), strict=False):
        (before, old, version), (after, new, version_now) = one, other
        if old == new or (version and version == version_now):
            continue
        if before == after:
            found.append(f"{after} has the index {new} now and had {old}: it was replaced")
        else:
            found.append(f"{after} with the index {new} is read now, and {before} with {old} was")
    return found


def _contents(data: Mapping[str, Any] | None) -> list[tuple[str, str, Any]]:
    """Place, digest and version with files of each stream, as far as the data of a state say so."""
    streams = (data or {}).get("streams")
    if not isinstance(streams, (list, tuple)):
        return []
    told = [one for one in streams if isinstance(one, Mapping)]
    root = (data or {}).get("root", "")
    return [(f"{root}{one.get('at')}", str(one.get("index")), _version(one)) for one in told]


def _version(one: Mapping[str, Any]) -> Any:
    """What names the files of a version of a table for good; None where nothing does."""
    pin = {name: value for name, value in _pin(one).items() if name != "remote"}
    return (one.get("kind"), one.get("list"), pin) if pin else None
