"""Keyed permutations and orders: Feistel networks and sorts by hash, without state.

`hash_counters` mixes a 64-bit key and a counter into 64 bits that look random::

    x = counter * step + key
    x = (x ^ x >> 30) * first;  x = (x ^ x >> 27) * second;  hash = x ^ x >> 31      (mod 2**64)

`permute` makes a permutation of the numbers below 2**bits of such bits: a Feistel network. A number
is split in two halves. Each round hashes one half and adds the hash to the other half, bit by bit,
so that the same round applied again undoes it::

    high   low                 high ^= hash(low)           rounds 0, 2, 4, ...
      |     |                  low ^= hash(high)           rounds 1, 3, 5, ...
      ^<-hash
      |     |                  hash(half) = top bits of  w * spread
      hash->^                               with  w = v ^ v >> 15,  v = half * factor + term

`permute_below` serves any other count of numbers by the next power of two. A number that falls
outside is sent through the network again until it falls inside (cycle walking), which keeps it a
permutation and takes fewer than two passes on average.

`keyed_order` sorts numbers by their hashes. All of it works on whole arrays.
"""

from __future__ import annotations

import copy
import functools
import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]
    Keys = NDArray[np.uint64]
    Words = NDArray[np.uint32]

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio: consecutive counters end up far apart
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
# Arrays of no dimension, with which numpy computes in half the time that scalars take.
_MIX_STEP, _MIX_FIRST, _MIX_SECOND = (np.array(n, np.uint64) for n in (_STEP, _FIRST, _SECOND))
_MIX_SHIFTS = tuple(np.array(n, np.uint64) for n in (30, 27, 31))
_ROUND_FACTOR, _ROUND_TERM = 0x9E3779B1, 0xC2B2AE35
_SPREAD, _UNIT, _HALF = (np.array(each, np.uint32) for each in (0x85EBCA6B, 1, 15))


# ------------------------------------------------------------------------------- keys and hashes


def derive_key(*numbers: int) -> int:
    """Return a 64-bit key from numbers that are not negative; their order and count matter."""
    return functools.reduce(_fold, numbers, _mix64(len(numbers)))


def partial_key(*numbers: int) -> int:
    """Return an unfinished key, to which `finish_keys` adds the last number of `derive_key`."""
    return functools.reduce(_fold, numbers, _mix64(len(numbers) + 1))


def finish_keys(partial: Keys, lasts: Ids) -> Keys:
    """Return the keys that `derive_key` makes of the numbers of each partial key and one more.

    ``partial[i]`` is ``partial_key(*numbers)`` and ``lasts[i]`` the further number, below 2**63, so
    key i is ``derive_key(*numbers, lasts[i])``. Keys of many epochs are made by one call this way.
    """
    # The same steps as in `_fold`, on arrays.
    return hash_counters(1, partial ^ lasts.astype(np.uint64))


def hash_counters(key: int | Keys, counters: NDArray[np.integer]) -> Keys:
    """Return 64 hashed bits for each counter, uint64, by one key for all or one key each.

    The formula is in the module's docstring: a step of SplitMix64. Arrays are changed in place,
    because new ones would cost more than the arithmetic.
    """
    bits = counters.astype(np.uint64)
    bits *= _MIX_STEP
    bits += np.asarray(key, np.uint64)
    mixed = bits >> _MIX_SHIFTS[0]
    bits ^= mixed
    bits *= _MIX_FIRST
    np.right_shift(bits, _MIX_SHIFTS[1], out=mixed)
    bits ^= mixed
    bits *= _MIX_SECOND
    np.right_shift(bits, _MIX_SHIFTS[2], out=mixed)
    bits ^= mixed
    return bits


def _fold(key: int, number: int) -> int:
    """Return a new 64-bit key made of ``key`` and ``number``, which may have any size.

    The number is mixed in 64 bits at a time, from the lowest ones on.
    """
    while True:
        key = _mix64((key ^ (number & _MASK)) * _STEP + 1 & _MASK)
        number >>= 64
        if not number:
            return key


def _mix64(number: int) -> int:
    """Return a 64-bit number with its bits mixed: the last line of the hash in the module."""
    number ^= number >> 30
    number = number * _FIRST & _MASK
    number ^= number >> 27
    number = number * _SECOND & _MASK
    return number ^ number >> 31


# ------------------------------------------------------------------------------- permutations


def permute(values: Words, keys: Keys, bits: int | Words, rounds: int = 0) -> Words:
    """Return each value as the Feistel network of its key moves it among the numbers below 2**bits.

    Args:
        values: Numbers below 2**bits, uint32 of shape (n,).
        keys: Key of each value, uint64 of shape (n,).
        bits: Number of bits, at most 32: one for all values, or one each.
        rounds: Number of Feistel rounds; 0 is `rounds_for` of the bits.
    """
    return _make_network(keys, bits, rounds).forward(values)


def unpermute(values: Words, keys: Keys, bits: int | Words, rounds: int = 0) -> Words:
    """Return the values that `permute` sends to these: its inverse."""
    return _make_network(keys, bits, rounds).backward(values)


def permute_below(values: Ids, sizes: Ids, keys: Keys, *, inverse: bool = False) -> Ids:
    """Return each value as the permutation of its key moves it, int64 of shape (n,).

    The permutation of value i is one of the numbers 0 to ``sizes[i]`` - 1.

    Args:
        values: Numbers below their ``sizes``, int64 of shape (n,).
        sizes: Count of the permuted numbers, from 1 to 2**32, for each value.
        keys: Key of the permutation, for each value, uint64.
        inverse: Whether to undo the permutation.
    """
    # Networks permute the numbers below the next power of two.
    step = _Network.backward if inverse else _Network.forward
    network = _make_network(keys, bit_lengths(sizes - 1))
    out = step(network, values.astype(np.uint32)).astype(np.int64)
    # Cycle walking: permute values that are not below their sizes again, until they are.
    outside = (out >= sizes).nonzero()[0]
    while len(outside):
        again = step(network.subset(outside), out[outside].astype(np.uint32))
        out[outside] = again
        outside = outside[again >= sizes[outside]]
    return out


def bit_lengths(values: Ids) -> Words:
    """Return the number of bits of each value, uint32: 0, 1, 4 and 5 have 0, 1, 3 and 3 bits.

    Values are from 0 to 2**53, which floats hold exactly. The exponent that `frexp` returns is the
    number of bits.
    """
    return np.frexp(values.astype(np.float64))[1].astype(np.uint32)


def rounds_for(bits: int | Words) -> int:
    """Return the number of Feistel rounds that mix values of ``bits`` bits well.

    For an array of bits it is a number that is enough for any of them.
    """
    # Measured by counting where pairs of values go, over 400,000 keys: from 8 bits on, 6 rounds
    # cannot be told from chance. Smaller halves mix less in a round and need more.
    return 6 if np.ndim(bits) == 0 and int(bits) >= 8 else 12


class _Network(NamedTuple):
    """Feistel networks, one for each key; see the picture in the module's docstring.

    A value of 7 bits has a low half of 4 bits and a high half of 3.

    Attributes:
        factors, terms: Numbers of the hash of each round, uint32 of shape (rounds, keys).
        low, high: Number of bits of the low and of the high half. These two and the next two are
            of shape (keys,), or arrays of no dimension if they are the same for all keys.
        to_high, to_low: Shifts to the right that leave of a hash (32 bits) as many of the topmost
            bits as the high and the low half have: 29 and 28 for 7 bits.
        is_full: Whether no half is empty. Values of one bit or none have an empty half.
    """

    factors: Words
    terms: Words
    low: Words
    high: Words
    to_high: Words
    to_low: Words
    is_full: bool

    def subset(self, indexes: NDArray[np.intp]) -> _Network:
        """Return the networks of the keys at these indexes."""
        # Arrays of no dimension are the same for all keys and stay.
        factors, terms = (each.take(indexes, axis=1) for each in (self.factors, self.terms))
        if self.low.ndim == 0:
            return self._replace(factors=factors, terms=terms)
        low, high, to_high, to_low = (
            each.take(indexes) for each in (self.low, self.high, self.to_high, self.to_low)
        )
        return _Network(factors, terms, low, high, to_high, to_low, self.is_full)

    def forward(self, values: Words) -> Words:
        """Return the permuted values."""
        return self._run_rounds(values, range(len(self.factors)))

    def backward(self, values: Words) -> Words:
        """Return the values that `forward` turns into ``values``: the rounds in reverse order."""
        return self._run_rounds(values, range(len(self.factors) - 1, -1, -1))

    def _run_rounds(self, values: Words, rounds: range) -> Words:
        """Return the values after the rounds with these numbers, in this order.

        The arrays ``word`` and ``mixed`` are reused, as new ones would cost as much as a round.
        """
        factors, terms, low, high, to_high, to_low, is_full = self
        low_mask = (_UNIT << low) - _UNIT
        high_half: Words = values >> low
        low_half: Words = values & low_mask
        word, mixed = np.empty_like(high_half), np.empty_like(high_half)
        for i in rounds:
            changes_high = i % 2 == 0
            np.multiply(low_half if changes_high else high_half, factors[i], out=word)
            word += terms[i]
            np.right_shift(word, _HALF, out=mixed)
            word ^= mixed
            word *= _SPREAD
            # Keep as many bits of the hash as the half has: the topmost, which are the best mixed.
            # Of an empty half nothing may be kept, but a shift, at most 31, leaves one bit.
            if changes_high:
                word >>= to_high
                if not is_full:
                    word *= high > 0
                high_half ^= word
            else:
                word >>= to_low
                if not is_full:
                    word &= low_mask
                low_half ^= word
        high_half <<= low
        high_half |= low_half
        return high_half


def _make_network(keys: Keys, bits: int | Words, rounds: int = 0) -> _Network:
    """Return a network for each key, for values of ``bits`` bits.

    Args:
        keys: Keys, uint64 of shape (n,).
        bits: Number of bits of a value, at most 32: one for all keys, or one each.
        rounds: Number of rounds; 0 is `rounds_for` of the bits.
    """
    count = rounds or rounds_for(bits)
    value_bits: Words = np.asarray(bits, np.uint32)
    high = np.asarray(value_bits >> _UNIT)
    low = np.asarray(value_bits - high)
    # A shift by 32 is undefined, so an empty half counts as one bit here; see `_run_rounds`.
    to_high, to_low = (np.asarray(np.uint32(32) - np.maximum(half, _UNIT)) for half in (high, low))
    is_full = bool(high.all())
    return _Network(*_round_numbers(keys, count), low, high, to_high, to_low, is_full)


def _round_numbers(keys: Keys, count: int) -> tuple[Words, Words]:
    """Return the factors and terms of ``count`` rounds, uint32 of shape (rounds, keys).

    Round 0 has the low half L of a key as its factor and the high half H as its term. Each further
    pair follows from the pair before it::

        factor, term = term * F, factor + T       with F = _ROUND_FACTOR, T = _ROUND_TERM

        round         0    1        2              3
        factor        L    H * F    L * F + T * F  H * F * F + T * F
        term          H    L + T    H * F + T      L * F + T * F + T

    So each is a multiple of one half plus a constant, in even rounds of one half and in odd rounds
    of the other. All rounds of all keys are computed at once.
    """
    factor, term = keys.astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32)
    for_factors, for_terms = _round_constants(count)
    factors = _multiply_in_turns(factor, term, *for_factors)
    terms = _multiply_in_turns(term, factor, *for_terms)
    factors |= _UNIT  # odd, because multiplication by an even number loses bits
    return factors, terms


def _multiply_in_turns(even: Words, odd: Words, multipliers: Words, increments: Words) -> Words:
    """Return multiplier * half + increment for each round, uint32 of shape (rounds, keys).

    Args:
        even: Half of each key that rounds 0, 2, ... multiply, uint32 of shape (keys,).
        odd: Half of each key that rounds 1, 3, ... multiply.
        multipliers, increments: Numbers of each round, uint32 of shape (rounds, 1).
    """
    out = np.empty((len(multipliers), len(even)), np.uint32)
    np.multiply(multipliers[::2], even, out=out[::2])
    np.multiply(multipliers[1::2], odd, out=out[1::2])
    out += increments
    return out


@functools.lru_cache(maxsize=8)
def _round_constants(count: int) -> list[tuple[Words, Words]]:
    """Return the multipliers and increments of the factors, and those of the terms.

    Each is uint32 of shape (rounds, 1). A factor or term of the table in `_round_numbers` is a
    half of the key times its multiplier plus its increment: H * F * F + T * F has F * F and T * F.
    """
    mask = (1 << 32) - 1
    rows = []
    factor_multiplier, factor_increment, term_multiplier, term_increment = 1, 0, 1, 0
    for _ in range(count):
        rows.append((factor_multiplier, factor_increment, term_multiplier, term_increment))
        factor_multiplier, factor_increment, term_multiplier, term_increment = (
            term_multiplier * _ROUND_FACTOR & mask,
            term_increment * _ROUND_FACTOR & mask,
            factor_multiplier,
            factor_increment + _ROUND_TERM & mask,
        )
    columns = np.array(rows, np.uint32).reshape(count, 4, 1).transpose(1, 0, 2)
    return [(columns[0], columns[1]), (columns[2], columns[3])]


# ------------------------------------------------------------------------------- keyed orders


def keyed_order(key: int, count: int, groups: Ids | None = None) -> Ids:
    """Return the numbers 0 to ``count`` - 1 sorted by their hashes, int64: a keyed shuffle.

    Args:
        key: Key of the hash.
        count: How many numbers to sort.
        groups: Group of each number, ascending, int64. Numbers are sorted within their groups, and
            groups keep their order: with groups (0, 0, 0, 1, 1), 2 0 1 4 3 is possible. None for
            one group.
    """
    return KeyedOrders([(count, groups)]).orders(np.asarray(key, np.uint64))


class KeyedOrders:
    """Keyed orders (`keyed_order`) of several ranges of numbers, which are computed together.

    A number is sorted as one 64-bit integer, which is three times as fast as an argsort::

        bits 63 ............................... 0
            | group | top bits of hash | number |

    Args:
        ranges: A pair for each range: how many numbers it has, which count from 0 on, and the group
            of each number, ascending, or None. Numbers of different groups are not mixed.

    Attributes:
        starts: Where each range begins when they are laid end to end, and the end of the last.
    """

    def __init__(self, ranges: Sequence[tuple[int, Ids | None]]) -> None:
        counts = [count for count, _ in ranges]
        self.starts = np.cumsum([0, *counts])
        # Of each number: itself, and its group in the topmost bits.
        self._numbers, self._groups = (np.zeros(sum(counts), np.uint64) for _ in range(2))
        # Of each range: a mask of the bits that hold a number, and how many bits hold a group.
        number_masks, group_bits = [], []
        for start, (count, groups) in zip(self.starts.tolist(), ranges, strict=False):
            self._numbers[start : start + count] = np.arange(count)
            number_masks.append((1 << max(count - 1, 1).bit_length()) - 1)
            # The last group is the largest.
            bits = int(groups[-1]).bit_length() if groups is not None and count else 0
            if groups is not None and bits:
                topmost = groups.astype(np.uint64) << np.uint64(64 - bits)
                self._groups[start : start + count] = topmost
            group_bits.append(bits)
        # Repeated for each number, so that all ranges are packed by the same calls.
        self._number_masks, self._group_bits = (
            np.repeat(np.array(each, np.uint64), counts) for each in (number_masks, group_bits)
        )

    def subset(self, indexes: Ids) -> KeyedOrders:
        """Return an object of only the ranges with these indexes, in the order of ``indexes``."""
        orders = copy.copy(self)
        sizes = np.diff(self.starts)[indexes]
        # Indices of the numbers of these ranges in the arrays.
        entries = join_ranges(self.starts[indexes], sizes)
        for name in ("_numbers", "_groups", "_number_masks", "_group_bits"):
            setattr(orders, name, getattr(self, name)[entries])
        orders.starts = np.concatenate([[0], sizes.cumsum()])
        return orders

    def orders(self, keys: Keys) -> Ids:
        """Return the orders of all ranges end to end, int64.

        ``keys`` is one key for all numbers, or a key for each number of each range.
        """
        # Pack group, hash and number into one integer each.
        packed = hash_counters(keys, self._numbers)
        packed >>= self._group_bits  # makes room for the group
        packed |= self._groups
        packed &= ~self._number_masks  # makes room for the number
        packed |= self._numbers
        # Sort each range, and keep the numbers.
        for first, last in itertools.pairwise(self.starts.tolist()):
            packed[first:last].sort()
        packed &= self._number_masks
        return packed.astype(np.int64)


def join_ranges(begins: Ids, sizes: Ids) -> Ids:
    """Return ranges of integers end to end, int64.

    Range i has ``sizes[i]`` integers from ``begins[i]`` on, so begins (5, 1) and sizes (2, 3) give
    5, 6, 1, 2, 3.
    """
    # Add to 0, 1, 2, 3, 4 for each range its begin less the place where it lies: 5 - 0 and 1 - 2.
    ends: Ids = sizes.cumsum()
    numbers: Ids = np.repeat(begins - (ends - sizes), sizes)
    numbers += np.arange(int(sizes.sum()))
    return numbers
