"""The incumbent's shuffles said again in the plainest way: whole arrays, one loop a sentence."""

import itertools

import numpy as np


def intervals(sizes):
    ends = np.cumsum(sizes).tolist()
    return [(end - size, end) for end, size in zip(ends, sizes.tolist(), strict=True)]


def cut(spans, samples, nodes):
    """Deal intervals to nodes, cutting those that straddle the end of one."""
    out, spans, at = [], list(spans), 0
    for node in range(nodes):
        end, mine = samples * (node + 1) // nodes, []
        while spans and at + spans[0][1] - spans[0][0] <= end:
            mine.append(spans.pop(0))
            at += mine[-1][1] - mine[-1][0]
        if spans and at < end:
            first, last = spans[0]
            mine.append((first, first + end - at))
            spans[0] = (first + end - at, last)
            at = end
        out.append(mine)
    return out


def start(sizes, nodes, seed, epoch):
    spans = intervals(sizes)
    np.random.default_rng(seed).shuffle(spans)
    shares = cut(map(tuple, spans), int(sizes.sum()), nodes)
    rng = np.random.default_rng(seed + epoch)
    for share in shares:
        rng.shuffle(share)
    return shares, rng


def ids_of(share):
    return np.concatenate([np.zeros(0, np.int64), *(np.arange(*span) for span in share)])


def naive(sizes, nodes, seed, epoch, block):
    return np.random.default_rng(seed + epoch).permutation(int(sizes.sum()))


def py1s(sizes, nodes, seed, epoch, block):
    shares, rng = start(sizes, nodes, seed, epoch)
    out = []
    for share in shares:
        for span in share:
            out.append(np.arange(*span))
            rng.shuffle(out[-1])
    return np.concatenate(out)


def py1b(sizes, nodes, seed, epoch, block):
    shares, rng = start(sizes, nodes, seed, epoch)
    out = []
    for share in shares:
        ids = ids_of(share)
        for first in range(0, len(ids), block):
            rng.shuffle(ids[first : first + block])
        out.append(ids)
    return np.concatenate(out)


def py1br(sizes, nodes, seed, epoch, block):
    shares, rng = start(sizes, nodes, seed, epoch)
    staggers = rng.integers(0, int(0.75 * block), (nodes,))
    out = []
    for share, stagger in zip(shares, staggers, strict=True):
        ids, slices, at = ids_of(share), [], 0
        while at < len(ids):
            length = rng.integers(int(0.75 * block), int(1.25 * block))
            slices.append((max(at - stagger, 0), min(at + length - stagger, len(ids))))
            at += slices[-1][1] - slices[-1][0]
        for first, last in slices:
            rng.shuffle(ids[first:last])
        out.append(ids)
    return np.concatenate(out)


def py1e(sizes, nodes, seed, epoch, block):
    shares, rng = start(sizes, nodes, seed, epoch)
    out = []
    for share in shares:
        parts = [np.arange(*span) for span in share]
        for part in parts:
            rng.shuffle(part)
        ids = np.concatenate([np.zeros(0, np.int64), *parts])
        places, first = np.arange(len(ids), dtype=np.float64), 0
        for part in parts:
            size = len(part)
            half = max((rng.integers(int(0.75 * block), int(1.25 * block)) - size) / 2, 0)
            low, high = max(-half, -first), min(half, len(ids) - first - size)
            places[first : first + size] += rng.uniform(low, high, size)
            first += size
        out.append(ids[np.argsort(places, kind="stable")])
    return np.concatenate(out)


def py2s(sizes, nodes, seed, epoch, block):
    rng = np.random.default_rng(seed)
    units = [np.arange(*span) for span in intervals(sizes)]
    order = list(range(len(units)))
    rng.shuffle(order)
    for k in order:
        rng.shuffle(units[k])
    line = np.concatenate([units[k] for k in order])
    edges = np.cumsum([0] + [len(units[k]) for k in order]).tolist()
    spans = list(itertools.pairwise(edges))
    rng = np.random.default_rng(seed + epoch)
    out = []
    for share in cut(spans, len(line), nodes):
        rng.shuffle(share)
        for first, last in share:
            out.append(line[first:last].copy())
            rng.shuffle(out[-1])
    return np.concatenate(out)
