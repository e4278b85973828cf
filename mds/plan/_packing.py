"""Settings by which documents become packs of at most so many tokens.

A packer (`_packers.py`) puts the documents of a window (`_pack_windows.py`) into packs. A *window*
is a stretch of consecutive documents that are packed together. Half a pack of each window is
padding, so a window has some thousand packs. The *room* of a pack is the length of the longest
document that fits, `Packing.room`.
"""

from __future__ import annotations

import dataclasses
import numbers
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np

from mds._arguments import plain_fields, takes_names
from mds._words import Balance, Overflow, PackLabels, PackLayout
from mds.errors import ConfigError
from mds.plan._packers import BEST_FIT, find_packer
from mds.plan._state import ORDER_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]

#: Column of the tokens if none is given and no dataset knows better.
DEFAULT_COLUMN = "tokens"
#: Column of the labels, which is not that of the tokens if there is another.
LABELS = "labels"
#: Words of ``overflow`` that states record in another spelling.
_RECORDED_OVERFLOWS = {"truncate": "cut"}
#: Least packs of a window by default.
WINDOW_PACKS = 1_024
#: Most documents of a window.
MAX_WINDOW_DOCUMENTS = 131_072
#: Most tokens of a pack: sums of squares of lengths have to fit into 64 bits.
MAX_CAPACITY = 1 << 30
_ALGORITHM = "best-fit-decreasing.1"  # name of the packer "best_fit" in states, with its version


@dataclasses.dataclass(frozen=True)
class Packing:
    """Settings by which documents become packs: full sequences without padding.

    - ``capacity`` (int | None, default None, tokens): Length of a pack.
    - ``column`` (str | None, default None): Column of the tokens, whose lengths count. None is the
      column ``tokens`` if there is one, else the only column of one-dimensional integers
      beside ``labels``.
    - ``overflow`` (Literal, default 'error'): Treatment of a document that is longer than a pack:
      ``"split"`` cuts it into pieces of the capacity and a shorter last one, ``"truncate"`` keeps
      its beginning, ``"drop"`` leaves it out, ``"error"`` refuses it. No other document is cut.
    - ``balance`` (Literal | None, default None): Quantity that the ranks of a machine get equally
      much of in a step: ``"attention"``, the sum of the squares of lengths, or ``"tokens"``. It
      decides which rank gets a pack, and not which packs a global batch has.
    - ``layout`` (Literal, default 'varlen'): Form of a batch. ``"varlen"`` lays all documents end
      to end, with ``cu_seqlens`` and ``max_seqlen``. ``"dense"`` has a row for each pack, with
      ``document_ids``. Both have ``labels`` and ``position_ids``. A resumed run may have another
      layout.
    - ``labels`` (Literal, default 'masked'): Alignment of the column ``labels`` with the tokens.
      ``"masked"``: the label of a token is the token itself, and -100 for the first token of a
      document. The loss shifts them, as in models of Hugging Face (Trainer, TRL, axolotl).
      ``"shifted"``: the label of a token is the next token, and -100 for the last token of a
      document. Take it for a loss that does not shift, such as ``cross_entropy(logits, labels)``,
      which you call yourself in plain torch and Lightning. torchtitan and NeMo Automodel shift in
      their own datasets. A resumed run may have other labels.
    - ``budget`` (int | None, default None, tokens): Alternative to ``capacity``, for models that
      take a document a row. A pack is a batch of documents of like lengths. Padded to the longest,
      they have at most so many tokens together.
    - ``separator`` (int | None, default None): Token that is inserted after each document, in the
      column of the tokens and in ``labels``.
    - ``packer`` (str, default 'best_fit'): Policy by which documents are put into packs; see
      `mds.plan._packers`.
    - ``window`` (int | None, default None, packs): Least packs that are made together, of
      consecutive documents; None is 1,024. A schedule takes effect where a window begins, and half
      a pack of each window is padding.

    ``StreamingDataset(..., packing=8192)`` is short for ``packing=Packing(8192)``.

    Raises ConfigError (a ValueError) for anything else.

    >>> Packing(8192, overflow="split").capacity
    8192
    """

    capacity: int | None = None
    column: str | None = None
    overflow: Overflow = "error"
    balance: Balance | None = None
    budget: int | None = None
    window: int | None = None
    packer: str = BEST_FIT
    separator: int | None = None
    layout: PackLayout = "varlen"
    labels: PackLabels = "masked"

    def __post_init__(self) -> None:
        plain_fields(self)
        if (self.capacity is None) == (self.budget is None):
            raise ConfigError(
                "Packing takes either a capacity or budget=, in tokens. Give one of them."
            )
        for name in ("capacity", "budget"):
            value: Any = getattr(self, name)
            is_number = isinstance(value, numbers.Integral) and not isinstance(value, bool)
            if value is not None and not (is_number and 1 <= int(value) <= MAX_CAPACITY):
                raise ConfigError(
                    f"{name} of Packing must be a number of tokens from 1 to {MAX_CAPACITY}, got "
                    f"{value!r}."
                )
        window: Any = self.window
        is_number = isinstance(window, numbers.Integral) and not isinstance(window, bool)
        if window is not None and not (is_number and 1 <= window <= MAX_WINDOW_DOCUMENTS):
            raise ConfigError(
                f"window of Packing must be a number of packs from 1 to {MAX_WINDOW_DOCUMENTS}, "
                f"got {window!r}."
            )
        column: Any = self.column
        if column is not None and (not isinstance(column, str) or not column):
            raise ConfigError(
                f"column of Packing must be the name of a column, got {self.column!r}."
            )
        word: Any = self.overflow
        if word == "cut":
            raise ConfigError("overflow='cut' of Packing is now overflow='truncate'.")
        self._check_packer()
        for name, choices in (
            ("overflow", get_args(Overflow)),
            ("balance", (None, *get_args(Balance))),
            ("layout", get_args(PackLayout)),
            ("labels", get_args(PackLabels)),
        ):
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"{name} {getattr(self, name)!r} of Packing: choose one of "
                    f"{', '.join(map(repr, choices))}."
                )

    def _check_packer(self) -> None:
        """Raise ConfigError for a bad packer or separator, or settings that exclude each other."""
        if not isinstance(self.packer, str):
            raise ConfigError(
                f"packer of Packing must be the name of a packer, got {self.packer!r}."
            )
        find_packer(self.packer)
        if self.packer != BEST_FIT and self.budget is not None:
            raise ConfigError(
                f"packer {self.packer!r} of Packing fills packs of a fixed capacity, but budget= "
                "groups documents of similar length. Give a capacity, or leave packer out."
            )
        if find_packer(self.packer).cuts and self.overflow not in {"error", "split"}:
            raise ConfigError(
                f"overflow={self.overflow!r} of Packing has no effect: packer {self.packer!r} "
                "cuts documents where a pack ends, so no document is too long. Leave overflow "
                "out."
            )
        token: Any = self.separator
        is_token = isinstance(token, numbers.Integral) and not isinstance(token, bool)
        if token is not None and not (is_token and 0 <= int(token) < 1 << 63):
            raise ConfigError(
                "separator of Packing must be a token, a number from 0 to 2**63 - 1, got "
                f"{token!r}."
            )

    def packed_lengths(self, lengths: Ids) -> Ids:
        """Return the lengths of documents with their separators, before any is cut or dropped.

        An empty document gets no separator.
        """
        return lengths if self.separator is None else lengths + (lengths > 0)

    @property
    def room(self) -> int:
        """Tokens of the longest document that fits into a pack."""
        return int(self.capacity or self.budget or 0)

    @property
    def size_argument(self) -> str:
        """Argument of a call that gives the size of its packs, such as ``4096``, for messages."""
        return f"budget={self.budget}" if self.capacity is None else str(self.capacity)

    def window_documents(self, tokens: int, documents: int) -> int:
        """Return the number of documents of a window, a power of two.

        By the mean length of documents, a window then has as many packs as the setting ``window``
        asks for, or up to twice as many. It never has more than MAX_WINDOW_DOCUMENTS documents.

        Args:
            tokens: Tokens of the whole dataset, without separators.
            documents: Documents of the whole dataset.
        """
        packs, count = self.window or WINDOW_PACKS, 1
        tokens = self.estimate_tokens(tokens, documents)
        # Until the tokens of a window, count * (tokens / documents), fill this number of packs.
        while count < MAX_WINDOW_DOCUMENTS and count * tokens < packs * self.room * documents:
            count *= 2
        return count

    def estimate_tokens(self, tokens: int, documents: int) -> int:
        """Return about how many tokens documents have with their separators, before any is cut.

        Args:
            tokens: Tokens of all the documents, without separators.
            documents: Number of the documents. Each counts with a separator, although empty ones
                get none.
        """
        return tokens if self.separator is None else tokens + documents

    def tokens(self, lengths: Ids) -> Ids:
        """Return the tokens of each document as packed, int64: with separators, after a cut.

        ``lengths`` are the tokens of each document without separators. ``overflow="truncate"``
        and ``"drop"`` make some smaller.
        """
        lengths = self.packed_lengths(lengths)
        if self.overflow == "truncate":
            return np.minimum(lengths, self.room)
        if self.overflow == "drop":
            return np.where(lengths <= self.room, lengths, 0)
        return lengths

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any], column: str, balance: Any) -> Packing:
        """Return the packing with the `facts` that a state recorded.

        Args:
            facts: Facts about the order, those of other settings included.
            column, balance: Settings that facts lack, since they do not change the order.
        """
        packer = facts.get("packing", _ALGORITHM)
        recorded = facts.get("packing_overflow", "")
        words = {recorded_word: word for word, recorded_word in _RECORDED_OVERFLOWS.items()}
        return cls(
            facts.get("packing_capacity"),
            column=column,
            overflow=cast("Any", words.get(recorded, recorded)),
            balance=balance,
            budget=facts.get("packing_budget"),
            packer=BEST_FIT if packer == _ALGORITHM else packer,
            separator=facts.get("packing_separator"),
        )

    def facts(self) -> dict[str, Any]:
        """Return the settings that a resumed run must have, as plain JSON.

        The packer "best_fit" is recorded as the name and version of its algorithm, and the overflow
        "truncate" as "cut".
        """
        options = {"packing_capacity": self.capacity} if self.capacity else {}
        options |= {"packing_budget": self.budget} if self.budget else {}
        options |= {} if self.separator is None else {"packing_separator": int(self.separator)}
        return {
            "packing": _ALGORITHM if self.packer == BEST_FIT else self.packer,
            **options,
            "packing_overflow": _RECORDED_OVERFLOWS.get(self.overflow, self.overflow),
            "packing_order": ORDER_VERSION,
        }


def packing_of(value: Any) -> Packing:
    """Return a Packing as it is, or that of a number of tokens. Raises ConfigError for others."""
    if isinstance(value, Packing):
        return value
    is_number = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if is_number:
        return Packing(int(value))
    raise ConfigError(
        f"packing must be a Packing, the number of tokens of a pack, or None, got {value!r}."
    )


def column_of(packing: Packing) -> str:
    """Return the column of the tokens; "tokens" for a packing that neither names nor found one."""
    return packing.column or DEFAULT_COLUMN


# Only now, as the decorator of the dataclass makes __init__.
Packing.__init__ = takes_names(Packing.__init__)  # type: ignore[method-assign]
