"""Packers: policies by which the documents of a window are put into packs.

A packer is a function. It gets the sizes of the documents in their order, and the room of a pack,
both in tokens. It returns the pack of each document and the number of packs. `register_packer` adds
one; so does an entry point of the group ``mds.packers``.

- ``"best_fit"``: longest first, each into the fullest pack that has room for it; the default.
- ``"greedy"``: documents in their order; one that does not fit opens the next pack.
- ``"concat"``: documents end to end, cut wherever a pack ends; the rest opens the next pack.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mds._lazy_imports import Registry, registers
from mds._words import plural
from mds.errors import UnknownNameError

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
        function: Function of the sizes of documents and the room of a pack, in tokens; returns the
            number of the pack of each document, and the number of packs.
        cuts: Whether documents are cut wherever a pack ends, so that all packs but the last are
            full. The function then gets the sizes of the pieces.
    """

    name: str
    function: PackFunction
    cuts: bool = False

    def pack(self, sizes: Ids, room: int) -> tuple[Ids, int]:
        """Return the pack of each document, int64, and the number of packs.

        ``sizes`` are the tokens of the documents, ``room`` the tokens that a pack holds. Raises
        PlanError if the function returns packs that are empty or too long.
        """
        if self.is_built_in:
            return self.function(sizes, room)
        # A copy, since a function of the user may change it.
        return _check_packs(self.name, sizes, room, self.function(sizes.copy(), room))

    @property
    def is_built_in(self) -> bool:
        """Whether this library has it, and no user replaced it."""
        return _BUILT_IN.get(self.name) == self


@registers
def register_packer(name: str, packer: PackFunction, *, replace: bool = False) -> None:
    """Make a function available as ``Packing(packer=name)``; also a decorator, without ``packer``.

    - ``name`` (str): Its name. States record it.
    - ``packer`` (callable): Takes the sizes of the documents of a window, int64 of shape (n,), and
      the room of a pack, both in tokens. Every size is from 1 to the room. Returns the number of
      the pack of each document, int64 of shape (n,), and the number of packs. It must depend on
      nothing else. `mds.testing.PackerContract` tests it.
    - ``replace`` (bool, default False): Whether the name may be taken; see docs/contributing.md.

    Every process that plans must register it, worker processes too: do so at the top level of the
    training script, or name it in an entry point of the group ``mds.packers``. Raises ConfigError
    for a name that is taken, and for an object that is not callable.

    >>> import numpy as np
    >>> @register_packer("one_each")
    ... def one_each(sizes, room):
    ...     return np.arange(len(sizes)), len(sizes)
    """
    _packers.add(name, packer, replace=replace)


def find_packer(name: str) -> Packer:
    """Return the packer of a name: a built-in or registered one, or that of an entry point.

    Raises UnknownNameError (a KeyError and a ValueError) for an unknown name.
    """
    function = _packers.find(name)
    if function is not None:
        return Packer(name, function)
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    from mds._arguments import did_you_mean

    names = [*_BUILT_IN, *_packers.entries]
    raise UnknownNameError(
        f"no packer {name!r}: choose one of {', '.join(names)}.{did_you_mean(name, names)}"
    )


def _check_packs(name: str, sizes: Ids, room: int, result: Any) -> tuple[Ids, int]:
    """Return the packs that a user's function returned: that of each document, and their number.

    Raises PlanError if they are not valid.

    Args:
        name: Name of the packer.
        sizes, room: Sizes of the documents and the room of a pack, as given to the function.
        result: Value that the function returned.
    """
    from mds._arguments import shown
    from mds.errors import PlanError

    problem = shown(result)  # description for the message
    if isinstance(result, (tuple, list)) and len(result) == 2:
        pack_of, count = np.asarray(result[0]), _as_count(result[1])
        problem = ""
        if pack_of.shape != sizes.shape or pack_of.dtype.kind not in "iu" or count is None:
            problem = (
                f"{pack_of.dtype} of shape {pack_of.shape} and {shown(result[1])} for {len(sizes)} "
                "documents"
            )
        elif len(pack_of) and not 0 <= int(pack_of.min()) <= int(pack_of.max()) < count:
            problem = f"packs {int(pack_of.min())} to {int(pack_of.max())} of {count}"
        elif count > len(pack_of):
            problem = (
                f"packs of 0 to {plural(int(sizes.max(initial=0)), 'token')}: "
                f"{plural(count, 'pack')} for {len(pack_of)} documents"
            )
        else:
            pack_of = pack_of.astype(np.int64)
            tokens = np.bincount(pack_of, sizes, minlength=count)
            if len(tokens) and (tokens.max() > room or not tokens.all()):
                most = plural(int(tokens.max()), "token")
                problem = f"packs of {int(tokens.min())} to {most} for {room}"
        if not problem and count is not None:
            return pack_of, count
    raise PlanError(
        f"packer {name!r} returned {problem}. It must return the pack of each document, from "
        "0 to the number of packs - 1, and that number. No pack may be empty or exceed its "
        "capacity."
    )


def _as_count(value: Any) -> int | None:
    """Return a whole number of any type as an int, and None for anything else."""
    try:
        return operator.index(value)
    except TypeError:
        return None


def best_fit_decreasing(sizes: Ids, capacity: int) -> tuple[Ids, int]:
    """Return best-fit packs: longest document first, each into the fullest pack with room for it.

    Documents of one length are placed in their order. With sizes 3, 6, 4, 3 and a capacity of 10
    the packs are 1, 0, 0, 1: first 6 opens pack 0, 4 fits there, and both of 3 share pack 1.

    Measured with lengths of texts and sources and a capacity of 8,192, this needs as few packs as
    the tokens of a window allow. It takes about 0.5 us a document.

    Args:
        sizes: Tokens of each document, from 1 to ``capacity``.
        capacity: Tokens of a pack.

    Returns the pack of each document, int64, and the number of packs.
    """
    order = radix_argsort(capacity - sizes, capacity)  # longest first
    ordered = sizes[order]
    # No two documents longer than half a pack fit together, so each of them begins a pack. Negative
    # numbers, as searchsorted needs ascending ones.
    long = int(np.searchsorted(-ordered, -(capacity // 2), side="left"))
    packs, counts, total = _place_short(ordered, long, capacity)
    # From the sorted order back to the order of ``sizes``.
    pack_of = np.empty(len(sizes), np.int64)
    pack_of[order[:long]] = np.arange(long)
    pack_of[order[long:]] = np.repeat(np.array(packs, np.int64), np.array(counts, np.int64))
    return pack_of, total


def _place_short(ordered: Ids, long: int, capacity: int) -> tuple[list[int], list[int], int]:
    """Return the packs of all documents but the first ``long`` ones, which have packs 0, 1, ....

    A *room* is the number of tokens that still fit into a pack. ``stacks[room]`` has the packs with
    that room. For a document, best fit needs the smallest room with a pack that is at least its
    length. To find it quickly, a bit for each room says whether its stack has a pack. The bits are
    in integers of 1,024 bits (``words``), and a further integer (``summary``) has a bit for each of
    these that is not 0::

        bit (room & 1023) of words[room >> 10]     stacks[room] is not empty
        bit number of summary                      words[number] is not 0

        word          0b101000      packs with room 3 and with room 5
        word >> 4     0b10          for a length of 4: the lowest bit is 1, so the room is 4 + 1

    Equal documents are placed together: as many as fit go into the pack that is found. One by one
    they would take the same packs, since a pack that got one of them is the best for the next.

    Args:
        ordered: Sizes of all documents, descending.
        long: Number of documents longer than half a pack.
        capacity: Tokens of a pack.

    Returns three values: ``packs`` and ``counts``, by which the next ``counts[i]`` documents are in
    pack ``packs[i]``, and the number of all packs.
    """
    packs: list[int] = []
    counts: list[int] = []
    total = long
    if long == len(ordered):
        return packs, counts, total
    # Lengths that occur, descending, and the number of documents of each.
    changes = np.flatnonzero(np.diff(ordered[long:])) + 1 + long
    first = np.concatenate([[long], changes])
    lengths = ordered[first].tolist()
    repeats = np.diff(np.concatenate([first, [len(ordered)]])).tolist()
    shortest = lengths[-1]
    stacks: list[list[int]] = [[] for _ in range(capacity + 1)]
    # Shifts of longer words would cost more than the second level, the summary.
    words = [0] * ((capacity >> 10) + 1)
    # Last pack first, so that the top of a stack is the first of the packs with that room.
    rooms = (capacity - ordered[:long]).tolist()
    for pack in range(long - 1, -1, -1):
        room = rooms[pack]
        if room >= shortest:
            stacks[room].append(pack)
            words[room >> 10] |= 1 << (room & 1023)
    summary = sum(1 << number for number, word in enumerate(words) if word)

    def put_back(room: int, packs_of_room: range | tuple[int]) -> None:
        """Push packs on the stack of their room. The last one given is used first.

        Packs into which not even the shortest document fits are full, and are left out.
        """
        nonlocal summary
        if room >= shortest and packs_of_room:
            if not stacks[room]:
                # Set the bit of this room, and that of its word.
                words[room >> 10] |= 1 << (room & 1023)
                summary |= 1 << (room >> 10)
            stacks[room].extend(packs_of_room)

    for length, repeat in zip(lengths, repeats, strict=True):
        count = repeat  # documents of this length that remain
        # Look for a room in the word of this length from its bit on, then in the words above.
        # ``(bits & -bits).bit_length() - 1`` is the number of the lowest bit that is set.
        high, low = length >> 10, length & 1023
        while count:
            # Find the smallest room that is large enough: ``room`` in the word ``index``.
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
                # Bit 0 of ``above`` is for the word high + 1.
                index = high + (above & -above).bit_length()
                word = words[index]
                room = (index << 10) + (word & -word).bit_length() - 1
            # Take the first pack with this room, fill it, and put it back with its new room.
            stack = stacks[room]
            pack = stack.pop()
            if not stack:
                # Clear the bit of this room, and that of its word if it was the last one.
                words[index] ^= 1 << (room & 1023)
                if not words[index]:
                    summary ^= 1 << index
            fit = min(room // length, count)  # documents that go into this pack
            packs.append(pack)
            counts.append(fit)
            count -= fit
            put_back(room - fit * length, (pack,))
    return packs, counts, total


def greedy(sizes: Ids, room: int) -> tuple[Ids, int]:
    """Return packs of consecutive documents: one that does not fit opens the next pack.

    Takes and returns what `Packer.pack` does. The time depends on the number of packs.
    """
    ends = np.cumsum(sizes)  # all documents laid end to end
    firsts: list[int] = []  # first document of each pack
    first = 0
    while first < len(ends):
        firsts.append(first)
        before = int(ends[first - 1]) if first else 0  # tokens before the pack
        first = int(np.searchsorted(ends, before + room, side="right"))
    counts = np.diff([*firsts, len(ends)])
    return np.repeat(np.arange(len(firsts)), counts), len(firsts)


def cut_at_packs(sizes: Ids, room: int) -> tuple[Ids, Ids, Ids]:
    """Cut documents, laid end to end, wherever a pack ends.

    With sizes 3, 6, 4 and a room of 5 the pieces have the sizes 3, 2, 4, 1, 3, of the documents 0,
    1, 1, 2, 2. Arguments are in tokens.

    Returns three int64 arrays: the index of each piece's document, its first token in the document,
    and its size.
    """
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    # A piece begins where a document or a pack begins.
    begins = np.union1d((ends - sizes)[sizes > 0], np.arange(0, total, room))
    # The document that has the token at which the piece begins.
    document = np.searchsorted(ends, begins, side="right")
    return document, begins - (ends - sizes)[document], np.diff(begins, append=total)


def concat(sizes: Ids, room: int) -> tuple[Ids, int]:
    """Return the packs of pieces from `cut_at_packs`: all but the last one are full.

    ``sizes`` are those of the pieces. No piece crosses the end of a pack, so the pack of a piece
    follows from its first token.
    """
    begins = np.cumsum(sizes) - sizes
    return begins // room, -(-int(sizes.sum()) // room)


def radix_argsort(keys: Ids, top: int) -> NDArray[np.intp]:
    """Return a stable argsort of numbers from 0 to ``top``.

    NumPy sorts 16-bit numbers by radix, which is several times as fast as its other sorts.
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
_packers: Registry[PackFunction] = Registry(
    "packer",
    {},
    _BUILT_IN,
    callable,
    "give a function that takes the sizes of documents and the capacity of a pack",
    "PackerContract",
)
