"""Packing: documents to packs of at most so many tokens, one window of the order at a time.

A window is a stretch of consecutive samples of one canonical node. A packer (`packers.py`) puts its
documents into packs. Windows exchange nothing, so any of them is packed alone, from the lengths of
its own samples. Half a pack of each window is padding, so a window has some thousand packs.
"""

from __future__ import annotations

import dataclasses
import numbers
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.arguments import plain_fields, takes_names
from mds.errors import ConfigError, PlanError
from mds.plan.packers import BEST_FIT, cut_at_packs, find_packer, radix_argsort
from mds.process.fork_safe import cached_property
from mds.shuffle.permutation import derive_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]

OVERFLOWS = ("error", "split", "cut", "drop")
BALANCES = ("attention", "tokens")
#: Least packs of a window by default, of which half a pack is padding, and its most documents.
WINDOW_PACKS = 1_024
MAX_WINDOW_DOCUMENTS = 131_072
#: Tokens of a pack that are plausible; beyond it squares of lengths would not fit.
MAX_CAPACITY = 1 << 30
_ALGORITHM = "best-fit-decreasing.1"
_PACKS = 0x7061636B  # what the key is for


@dataclasses.dataclass(frozen=True)
class Packing:
    """Settings by which documents become packs: full sequences without padding.

    - ``capacity`` (int | None, default None, tokens): Length of a pack.
    - ``lengths`` (str, default 'tokens'): Column whose lengths count; one-dimensional numbers.
    - ``overflow`` (str, default 'error'): What becomes of a document that is longer than a pack:
      ``"split"`` cuts it into pieces of the capacity and a rest, ``"cut"`` keeps its beginning,
      ``"drop"`` leaves it out, ``"error"`` refuses it. No other document is ever cut.
    - ``balance`` (str | None, default None): What the ranks of a machine shall have equally much
      of in a step: ``"attention"`` work (the sum of squares of lengths), or ``"tokens"``. Which
      packs a global batch has does not depend on it.
    - ``budget`` (int | None, default None, tokens): Instead of a capacity: a pack is a batch of
      documents of like lengths that takes at most so many tokens when all are padded to the
      longest; for models that take one document a row.
    - ``separator`` (int | None, default None): Token that is inserted after each document, in the
      column of the tokens and in ``labels``.
    - ``packer`` (str, default 'best_fit'): Policy by which documents are put into packs; see
      `mds.plan.packers`.
    - ``window`` (int | None, default None, packs): Least packs that are made together, of
      consecutive documents; None is 1,024. A schedule takes effect where a window begins, and half
      a pack of each window is padding.

    Raises ConfigError (a ValueError) for anything else.

    >>> Packing(8192, overflow="split").capacity
    8192
    """

    capacity: int | None = None
    lengths: str = "tokens"
    overflow: str = "error"
    balance: str | None = None
    budget: int | None = None
    window: int | None = None
    packer: str = BEST_FIT
    separator: int | None = None

    def __post_init__(self) -> None:
        plain_fields(self)
        if (self.capacity is None) == (self.budget is None):
            raise ConfigError("Packing takes a capacity or a budget=, in tokens; one of them.")
        for name in ("capacity", "budget"):
            value: Any = getattr(self, name)
            is_number = isinstance(value, numbers.Integral) and not isinstance(value, bool)
            if value is not None and not (is_number and 1 <= int(value) <= MAX_CAPACITY):
                raise ConfigError(
                    f"{name} {value!r} of Packing must be a number of tokens from 1 to "
                    f"{MAX_CAPACITY}."
                )
        window: Any = self.window
        is_number = isinstance(window, numbers.Integral) and not isinstance(window, bool)
        if window is not None and not (is_number and 1 <= window <= MAX_WINDOW_DOCUMENTS):
            raise ConfigError(
                f"window {window!r} of Packing must be a number of packs from 1 to "
                f"{MAX_WINDOW_DOCUMENTS}."
            )
        column: Any = self.lengths
        if not isinstance(column, str) or not column:
            raise ConfigError(f"lengths {self.lengths!r} of Packing must be the name of a column.")
        self._check_packer()
        for name, choices in (("overflow", OVERFLOWS), ("balance", (None, *BALANCES))):
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"{name} {getattr(self, name)!r} of Packing: choose one of "
                    f"{', '.join(map(repr, choices))}."
                )

    def _check_packer(self) -> None:
        if not isinstance(self.packer, str):
            raise ConfigError(f"packer {self.packer!r} of Packing must be the name of a packer.")
        find_packer(self.packer)
        if self.packer != BEST_FIT and self.budget is not None:
            raise ConfigError(
                f"packer {self.packer!r} of Packing fills packs of a capacity, and budget= makes "
                "batches of like lengths: give a capacity, or leave packer out."
            )

        if find_packer(self.packer).cuts and self.overflow not in {"error", "split"}:
            raise ConfigError(
                f"overflow {self.overflow!r} of Packing: packer {self.packer!r} cuts documents "
                "wherever a pack ends, so none is too long. Leave overflow out."
            )
        token: Any = self.separator
        is_token = isinstance(token, numbers.Integral) and not isinstance(token, bool)
        if token is not None and not (is_token and 0 <= int(token) < 1 << 63):
            raise ConfigError(
                f"separator {token!r} of Packing must be a token, a number from 0 to 2**63 - 1."
            )

    def packed_lengths(self, lengths: Ids) -> Ids:
        """Return the lengths that documents have in packs, before any is cut or left out."""
        return lengths if self.separator is None else lengths + (lengths > 0)

    @property
    def room(self) -> int:
        """Tokens of the longest document that fits a pack."""
        return int(self.capacity or self.budget or 0)

    def window_documents(self, tokens: int, documents: int) -> int:
        """Return the documents of a window, a power of two.

        ``documents`` have so many ``tokens`` together, so a window has as many packs as were asked
        for, or up to twice as many.
        """
        packs, count = self.window or WINDOW_PACKS, 1
        tokens = self.estimate_tokens(tokens, documents)
        while count < MAX_WINDOW_DOCUMENTS and count * tokens < packs * self.room * documents:
            count *= 2
        return count

    def estimate_tokens(self, tokens: int, documents: int) -> int:
        """Return the tokens of documents as packed, before any of them is cut or left out."""
        return tokens if self.separator is None else tokens + documents

    def tokens(self, lengths: Ids) -> int:
        """Return the tokens of documents as packed: those that overflow are cut, or left out."""
        lengths = self.packed_lengths(lengths)
        if self.overflow == "cut":
            lengths = np.minimum(lengths, self.room)
        elif self.overflow == "drop":
            lengths = lengths[lengths <= self.room]
        return int(lengths.sum())

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any], lengths: str, balance: str | None) -> Packing:
        """Return the packing of recorded `facts`, which leave out ``lengths`` and ``balance``."""
        packer = facts.get("packing", _ALGORITHM)
        return cls(
            facts.get("packing_capacity"),
            lengths=lengths,
            overflow=facts.get("packing_overflow", ""),
            balance=balance,
            budget=facts.get("packing_budget"),
            packer=BEST_FIT if packer == _ALGORITHM else packer,
            separator=facts.get("packing_separator"),
        )

    def facts(self) -> dict[str, Any]:
        """Return the settings that a resumed run must have, as plain JSON."""
        kind = {"packing_capacity": self.capacity} if self.capacity else {}
        kind |= {"packing_budget": self.budget} if self.budget else {}
        kind |= {} if self.separator is None else {"packing_separator": int(self.separator)}
        return {
            "packing": _ALGORITHM if self.packer == BEST_FIT else self.packer,
            **kind,
            "packing_overflow": self.overflow,
        }


Packing.__init__ = takes_names(Packing.__init__)  # type: ignore[method-assign]


@dataclasses.dataclass(frozen=True, eq=False)
class Packs:
    """Packs of a window: pieces of documents, and the bounds of each pack among them.

    Piece i is the tokens ``starts[i]`` to ``starts[i] + sizes[i]`` of sample ``ids[i]``; pack k has
    the pieces ``bounds[k]`` to ``bounds[k + 1]``. ``places``: of its document in the order.
    ``dropped`` documents and ``cut_tokens`` tokens were left out.
    """

    ids: Ids
    starts: Ids
    sizes: Ids
    bounds: Ids
    places: Ids
    dropped: int = 0
    cut_tokens: int = 0

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @cached_property
    def tokens(self) -> Ids:
        """Tokens of each pack."""
        return _sums(self.sizes, self.bounds)

    @cached_property
    def work(self) -> Ids:
        """Attention work of each pack: the sum of the squares of its pieces' lengths."""
        return _sums(self.sizes * self.sizes, self.bounds)


def pack_window(ids: Ids, lengths: Ids, packing: Packing, key: int | None, place: int = 0) -> Packs:
    """Pack one window of samples with their lengths, in the order of the samples.

    ``key`` permutes the packs; None leaves them in the order of their first documents. ``place``:
    that of the window's first sample. Raises PlanError for a document that is too long under
    overflow="error".
    """
    lengths, packer = packing.packed_lengths(lengths), find_packer(packing.packer)
    if packer.cuts:
        places, starts, sizes = cut_at_packs(lengths, packing.room)
        dropped = cut_tokens = 0
    else:
        places, starts, sizes, dropped, cut_tokens = _fit(ids, lengths, packing)
    if packing.capacity is not None:
        pack_of, count = packer.pack(sizes, packing.room)
    else:
        pack_of, count = _like_lengths(sizes, packing.room)
    if key is None:
        first = np.full(count, len(pack_of), np.int64)
        np.minimum.at(first, pack_of, np.arange(len(pack_of)))
        order_of_packs = np.argsort(first, kind="stable")
    else:
        from mds.shuffle.keyed_order import keyed_order

        order_of_packs = keyed_order(derive_key(_PACKS, key), count)
    new = np.empty(count, np.int64)
    new[order_of_packs] = np.arange(count)
    pack_of = new[pack_of]
    order = radix_argsort(pack_of, count)
    bounds = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(pack_of, minlength=count), out=bounds[1:])
    places = places[order]
    return Packs(
        ids[places], starts[order], sizes[order], bounds, place + places, dropped, cut_tokens
    )


def _like_lengths(sizes: Ids, budget: int) -> tuple[Ids, int]:
    """Return the same for batches that are padded to their longest document."""
    order = radix_argsort(budget - sizes, budget)
    ordered = sizes[order].tolist()
    bounds, next_document = [0], 0
    while next_document < len(ordered):
        next_document += min(budget // ordered[next_document], len(ordered) - next_document)
        bounds.append(next_document)
    pack_of = np.empty(len(sizes), np.int64)
    pack_of[order] = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    return pack_of, len(bounds) - 1


def _fit(ids: Ids, lengths: Ids, packing: Packing) -> tuple[Ids, Ids, Ids, int, int]:
    """Return pieces that fit: documents, starts, sizes, and what was left out."""
    room, places = packing.room, np.arange(len(lengths))
    if len(lengths) and int(lengths.min()) == 0:
        places = places[lengths > 0]
        lengths = lengths[places]
    if not len(lengths) or int(lengths.max()) <= room:
        return places, np.zeros(len(places), np.int64), lengths, 0, 0
    is_long = lengths > room
    if packing.overflow == "error":
        worst = int(np.flatnonzero(is_long)[0])
        raise PlanError(
            f"sample {int(ids[places[worst]])} has {int(lengths[worst])} tokens and a pack "
            f"{room}: give Packing an overflow, 'split', 'cut' or 'drop', or a larger capacity."
        )
    if packing.overflow == "drop":
        fits = ~is_long
        places, lengths = places[fits], lengths[fits]
        return places, np.zeros(len(places), np.int64), lengths, int(is_long.sum()), 0
    if packing.overflow == "cut":
        cut_tokens = int((lengths[is_long] - room).sum())
        return places, np.zeros(len(places), np.int64), np.minimum(lengths, room), 0, cut_tokens
    pieces = -(-lengths // room)
    ends = np.cumsum(pieces)
    number = np.arange(int(ends[-1])) - np.repeat(ends - pieces, pieces)
    starts = number * room
    sizes = np.minimum(np.repeat(lengths, pieces) - starts, room)
    return np.repeat(places, pieces), starts, sizes, 0, 0


def balance(weights: Ids, groups: int) -> Ids:
    """Return the group of each pack, int64, so that groups have similar sums of weights.

    Every group gets as many, so ``groups`` divides their number. The heaviest first, each to the
    group that has least so far; then neighbours exchange what makes the heaviest group lighter.
    """
    group_of = np.empty(len(weights), np.int64)
    places = len(weights) // groups
    order = np.argsort(-weights, kind="stable").tolist()
    loads = [0] * groups
    members: list[list[int]] = [[] for _ in range(groups)]
    values = weights.tolist()
    open_groups = list(range(groups))
    for pack in order:
        group = min(open_groups, key=loads.__getitem__)
        members[group].append(pack)
        loads[group] += values[pack]
        if len(members[group]) == places:
            open_groups.remove(group)
    _exchange(values, members, loads)
    for group, packs in enumerate(members):
        group_of[packs] = group
    return group_of


def _exchange(values: list[int], members: list[list[int]], loads: list[int]) -> None:
    """Exchange packs of the heaviest group with others while that makes it lighter."""
    mean = sum(loads) / len(loads)
    for _ in range(4 * len(loads)):
        heavy = max(range(len(loads)), key=loads.__getitem__)
        if loads[heavy] <= mean * 1.002:
            return
        best = None
        for light in range(len(loads)):
            gap = loads[heavy] - loads[light]
            if gap <= 0:
                continue
            for i, mine in enumerate(members[heavy]):
                for j, other in enumerate(members[light]):
                    moved = values[mine] - values[other]
                    if 0 < moved < gap:
                        worse = max(loads[heavy] - moved, loads[light] + moved)
                        if best is None or worse < best[0]:
                            best = (worse, light, i, j, moved)
        if best is None:
            return
        _, light, i, j, moved = best
        members[heavy][i], members[light][j] = members[light][j], members[heavy][i]
        loads[heavy] -= moved
        loads[light] += moved


def _sums(values: Ids, bounds: Ids) -> Ids:
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=ends[1:])
    sums: Ids = np.diff(ends[bounds])
    return sums
