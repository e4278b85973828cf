"""Packers: policies by which the documents of a window are put into packs.

A packer is a function. It gets the sizes of the documents in their order, and the room of a pack,
both in tokens. It returns the pack of each document and the number of packs. `register_packer` adds
one; so does an entry point of the group ``mds.packers``.

- ``"best_fit"``: longest first, each into the fullest pack that has room for it; the default.
- ``"greedy"``: documents in their order; one that does not fit opens the next pack.
- ``"concat"``: documents end to end, cut wherever a pack ends; the rest opens the next pack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mds.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    #: Function of sizes, int64 of shape (n,), and room; returns the pack of each and their number.
    PackFunction = Callable[[Ids, int], tuple[Ids, int]]

BEST_FIT = "best_fit"


class Packer(NamedTuple):
    """Policy by which documents are put into packs.

    Attributes:
        name: Name of the policy, as in ``Packing(packer=name)``.
        function: Function of the sizes of documents and the room of a pack.
        cuts: Whether documents are cut wherever a pack ends, so that all packs but the last are
            full.
    """

    name: str
    function: PackFunction
    cuts: bool = False

    def pack(self, sizes: Ids, room: int) -> tuple[Ids, int]:
        """Return the pack of each document, int64, and the number of packs.

        ``sizes`` are the tokens of the documents, ``room`` the tokens that a pack holds. Raises
        PlanError if the function returns packs that are empty or too long.
        """
        pack_of, count = self.function(sizes, room)
        if self.name not in _BUILT_IN:
            _check_packs(self.name, sizes, room, pack_of, count)
        return pack_of, count


def register_packer(name: str, function: PackFunction) -> None:
    """Make a function available as ``Packing(packer=name)``.

    - ``name`` (str): Its name. States record it.
    - ``function`` (callable): Takes the sizes of the documents of a window, int64 of shape (n,),
      and the room of a pack, both in tokens. Every size is from 1 to the room. Returns the number
      of the pack of each document, int64 of shape (n,), and the number of packs. It must depend on
      nothing else.

    Every process that plans must register it, worker processes too: do so where the dataset's class
    is defined, or name it in an entry point of the group ``mds.packers``. Raises ConfigError for a
    built-in name, whose packs must not change.

    >>> import numpy as np
    >>> register_packer("alone", lambda sizes, room: (np.arange(len(sizes)), len(sizes)))
    """
    if name in _BUILT_IN:
        raise ConfigError(f"packer {name!r} is built in: take another name.")
    _registered[name] = _checked_packer(name, function)


def find_packer(name: str) -> Packer:
    """Return the packer of a name: a built-in or registered one, or that of an entry point.

    Raises UnknownNameError (a KeyError and a ValueError) for an unknown name.
    """
    packer = _BUILT_IN.get(name) or _registered.get(name)
    if packer is not None:
        return packer
    from mds.arguments import did_you_mean
    from mds.lazy_imports import load_plugin

    function = load_plugin("mds.packers", name, "packer")
    if function is not None:
        return _registered.setdefault(name, _checked_packer(name, function))
    names = [*_BUILT_IN, *_registered]
    raise UnknownNameError(
        f"no packer {name!r}: choose one of {', '.join(names)}.{did_you_mean(name, names)}"
    )


def _checked_packer(name: str, function: object) -> Packer:
    """Return a packer with a function. Raises ConfigError for an object that is not callable."""
    if not callable(function):
        raise ConfigError(
            f"packer {name!r} is {function!r}: give a function of the sizes of documents and the "
            "room of a pack."
        )
    return Packer(name, function)


def _check_packs(name: str, sizes: Ids, room: int, pack_of: object, count: object) -> None:
    """Raise PlanError if the packs that a user's function returned are not valid.

    Args:
        name: Name of the packer.
        sizes, room: Sizes of the documents and the room of a pack, as given to the function.
        pack_of, count: What the function returned: the pack of each document, and their number.
    """
    from mds.errors import PlanError

    packs = np.asarray(pack_of)
    problem = ""
    if packs.shape != sizes.shape or packs.dtype.kind not in "iu" or not isinstance(count, int):
        problem = f"{packs.dtype} of shape {packs.shape} and {count!r} for {len(sizes)} documents"
    elif len(packs) and not 0 <= int(packs.min()) <= int(packs.max()) < count:
        problem = f"packs {int(packs.min())} to {int(packs.max())} of {count}"
    else:
        tokens = np.bincount(packs.astype(np.int64), sizes, minlength=count)
        if len(tokens) and (tokens.max() > room or not tokens.all()):
            problem = f"packs of {int(tokens.min())} to {int(tokens.max())} tokens for {room}"
    if problem:
        raise PlanError(
            f"packer {name!r} returned {problem}: return the pack of each document, from 0 to the "
            "number of packs - 1, and that number; no pack is empty or longer than its room."
        )


def best_fit_decreasing(sizes: Ids, capacity: int) -> tuple[Ids, int]:
    """Return best-fit packs: longest document first, each into the fullest pack with room for it.

    Documents of one length go by their place in the order. Every document must fit into a pack.
    Measured with lengths of texts and sources and a capacity of 8,192, this needs as few packs as
    the tokens of a window allow. It takes about 0.5 us a document.
    """
    order = radix_argsort(capacity - sizes, capacity)  # longest first
    ordered = sizes[order]
    # No two documents longer than half a pack fit together, so each of them begins a pack.
    long = int(np.searchsorted(-ordered, -(capacity // 2), side="left"))
    packs, counts, total = _place_short(ordered, long, capacity)
    pack_of = np.empty(len(sizes), np.int64)
    pack_of[order[:long]] = np.arange(long)
    pack_of[order[long:]] = np.repeat(np.array(packs, np.int64), np.array(counts, np.int64))
    return pack_of, total


def _place_short(ordered: Ids, long: int, capacity: int) -> tuple[list[int], list[int], int]:
    """Return the packs of all documents but the first ``long`` ones, which have packs 0, 1, ....

    A *room* is the number of tokens that still fit into a pack. Best fit needs the smallest room
    that is large enough. The rooms of open packs are bits of integers, and a shift finds the lowest
    bit from a length on::

        words[room >> 10] has bit (room & 1023)     1,024 rooms each
        summary has bit number                      whether words[number] has any bit

    ``stacks[room]`` has the packs with that room. Documents of one length are placed together,
    which gives the same packs: after each of them, the same pack is the best for the next.

    Args:
        ordered: Sizes of all documents, descending.
        long: Number of documents longer than half a pack.
        capacity: Tokens of a pack.

    Returns runs of documents in their order, as the pack of each run and its number of documents;
    and the number of all packs.
    """
    packs: list[int] = []
    counts: list[int] = []
    total = long
    if long == len(ordered):
        return packs, counts, total
    changes = np.flatnonzero(np.diff(ordered[long:])) + 1 + long
    first = np.concatenate([[long], changes])
    lengths = ordered[first].tolist()
    repeats = np.diff(np.concatenate([first, [len(ordered)]])).tolist()
    shortest = lengths[-1]
    stacks: list[list[int]] = [[] for _ in range(capacity + 1)]
    # With more than 1,024 rooms in a word, shifts cost more than a second level.
    words = [0] * ((capacity >> 10) + 1)
    # The top of a stack is the first of the packs with that room.
    rooms = (capacity - ordered[:long]).tolist()
    for pack in range(long - 1, -1, -1):
        room = rooms[pack]
        if room >= shortest:
            stacks[room].append(pack)
            words[room >> 10] |= 1 << (room & 1023)
    summary = sum(1 << number for number, word in enumerate(words) if word)

    def put_back(room: int, packs_of_room: range | tuple[int]) -> None:
        """Add packs to those with a room, unless no remaining document fits."""
        nonlocal summary
        if room >= shortest and packs_of_room:
            if not stacks[room]:
                words[room >> 10] |= 1 << (room & 1023)
                summary |= 1 << (room >> 10)
            stacks[room].extend(packs_of_room)

    for length, repeat in zip(lengths, repeats, strict=True):
        count = repeat  # documents of this length that remain
        # Look for a room in the word of this length from its bit on, then in the words above.
        # ``bits & -bits`` is the lowest bit.
        high, low = length >> 10, length & 1023
        while count:
            word_above = words[high] >> low
            if word_above:
                room = length + (word_above & -word_above).bit_length() - 1
                index = high
            else:
                above = summary >> (high + 1)
                if not above:
                    # No open pack has room, so the remaining documents fill new packs.
                    each = capacity // length
                    full_packs, last = divmod(count, each)
                    packs.extend(range(total, total + full_packs))
                    counts.extend([each] * full_packs)
                    put_back(capacity - each * length, range(total + full_packs - 1, total - 1, -1))
                    total += full_packs
                    if last:
                        packs.append(total)
                        counts.append(last)
                        put_back(capacity - last * length, (total,))
                        total += 1
                    break
                index = high + (above & -above).bit_length()
                word = words[index]
                room = (index << 10) + (word & -word).bit_length() - 1
            stack = stacks[room]
            pack = stack.pop()
            if not stack:
                words[index] ^= 1 << (room & 1023)
                if not words[index]:
                    summary ^= 1 << index
            fit = min(room // length, count)
            packs.append(pack)
            counts.append(fit)
            count -= fit
            put_back(room - fit * length, (pack,))
    return packs, counts, total


def greedy(sizes: Ids, room: int) -> tuple[Ids, int]:
    """Return packs of consecutive documents: one that does not fit opens the next pack."""
    ends = np.cumsum(sizes)
    firsts: list[int] = []  # first document of each pack
    first = 0
    while first < len(ends):
        firsts.append(first)
        before = int(ends[first - 1]) if first else 0
        first = int(np.searchsorted(ends, before + room, side="right"))
    counts = np.diff([*firsts, len(ends)])
    return np.repeat(np.arange(len(firsts)), counts), len(firsts)


def cut_at_packs(sizes: Ids, room: int) -> tuple[Ids, Ids, Ids]:
    """Cut documents, laid end to end, wherever a pack ends.

    Returns three int64 arrays: the index of each piece's document, its first token in the document,
    and its size.
    """
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    # A piece begins where a document or a pack begins.
    begins = np.union1d((ends - sizes)[sizes > 0], np.arange(0, total, room))
    document = np.searchsorted(ends, begins, side="right")
    return document, begins - (ends - sizes)[document], np.diff(begins, append=total)


def concat(sizes: Ids, room: int) -> tuple[Ids, int]:
    """Return the packs of pieces from `cut_at_packs`: all but the last one are full.

    No piece crosses the end of a pack, so the pack of a piece is that of its first token.
    """
    begins = np.cumsum(sizes) - sizes
    return begins // room, -(-int(sizes.sum()) // room)


def radix_argsort(keys: Ids, top: int) -> NDArray[np.intp]:
    """Return a stable argsort of numbers from 0 to ``top``.

    Of 16-bit numbers numpy makes a radix sort, which is several times as fast.
    """
    return np.argsort(keys.astype(np.uint16) if top < 1 << 16 else keys, kind="stable")


_BUILT_IN = {
    packer.name: packer
    for packer in (
        Packer(BEST_FIT, best_fit_decreasing),
        Packer("greedy", greedy),
        Packer("concat", concat, cuts=True),
    )
}
_registered: dict[str, Packer] = {}
