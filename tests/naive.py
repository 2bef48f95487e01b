"""Slow, plain twins of the kernels and array code: loops, sets and exact fractions, nothing clever."""

from fractions import Fraction
from itertools import combinations, product

import numpy as np

from sfumato.mechanisms import olh, tally_width
from sfumato.specs import OlhMechanism, OueMechanism, ShiftedGridEncoding, SsMechanism


def count(mechanism, n_slots, slots, values):
    """Counts per slot, and reports per slot, as nested lists."""
    counts = [[0] * tally_width(mechanism) for _ in range(n_slots)]
    reports = [0] * n_slots
    for slot, value in zip(slots, values, strict=True):
        for symbol in named(mechanism, bytes(value)):
            counts[slot][symbol] += 1
        reports[slot] += 1
    return counts, reports


def named(mechanism, value):
    """What a report adds one to: the symbols it supports, or under `hr` the value itself."""
    number = int.from_bytes(value, "little")
    if isinstance(mechanism, SsMechanism | OueMechanism):
        return [i for i in range(mechanism.n_symbols) if number >> i & 1]
    if isinstance(mechanism, OlhMechanism):
        seed = [int.from_bytes(value[at : at + 4], "little") for at in (0, 4, 8)]
        sent = int.from_bytes(value[12:], "little")
        return [x for x in range(mechanism.n_symbols) if olh.hashed(mechanism, seed, x) == sent]
    return [number]


def walsh_sign(i, j):
    """(-1)^popcount(i & j), by its bits."""
    return -1 if bin(i & j).count("1") % 2 else 1


def walsh_hadamard(x):
    """sum over j of (-1)^popcount(i & j) x[j], for every i, by the definition."""
    return [sum(walsh_sign(i, j) * int(value) for j, value in enumerate(x)) for i in range(len(x))]


def hadamard_supports(n_symbols, row):
    """How many reports of `hr` agree with each symbol's sign, from counts of (coefficient, sign)."""
    return [
        sum(
            int(count)
            for number, count in enumerate(row)
            if walsh_sign(number // 2, symbol + 1) == (-1 if number % 2 else 1)
        )
        for symbol in range(n_symbols)
    ]


def frequencies(p: Fraction, q: Fraction, counts, reports):
    """(C/n - q) / (p - q) in exact fractions; zero where nothing was reported."""
    return [
        [(Fraction(int(c), int(n)) - q) / (p - q) if n else Fraction(0) for c in row]
        for row, n in zip(counts, reports, strict=True)
    ]


def made_to_sum_to_one(estimates, reports):
    """What each row lacks of one, shared out evenly; rows without reports stay zero."""
    return [
        [f + (1 - sum(row)) / len(row) if n else Fraction(0) for f in row]
        for row, n in zip(estimates, reports, strict=True)
    ]


def coarse_symbol(encoding: ShiftedGridEncoding, slot: int, fine: tuple[int, ...]) -> int:
    """The symbol of a fine cell under a slot, digit by digit."""
    digits = []
    for _ in range(encoding.n_features):
        digits.append(slot % encoding.shifts)
        slot //= encoding.shifts
    symbol = 0
    for x, shift in zip(fine, reversed(digits), strict=True):
        symbol = symbol * (encoding.cells + 1) + (x + shift) // encoding.shifts
    return symbol


def field(encoding: ShiftedGridEncoding, estimates, reports):
    """F at every fine cell: the mean over reports of the estimate of the coarse cell that holds it."""
    total = int(sum(reports))
    out = np.zeros((encoding.fine_cells,) * encoding.n_features)
    for fine in np.ndindex(out.shape):
        for slot in range(encoding.n_slots):
            out[fine] += reports[slot] / total * estimates[slot][coarse_symbol(encoding, slot, fine)]
    return out


def blur(density, shifts):
    """T * f by the definition: sum over y of prod (1 - |x_i - y_i| / w)+ f(y)."""
    out = np.zeros(density.shape)
    for x in np.ndindex(density.shape):
        for y in np.ndindex(density.shape):
            out[x] += density[y] * np.prod([max(0.0, 1 - abs(a - b) / shifts) for a, b in zip(x, y, strict=True)])
    return out


def grow_components(density, kept=frozenset()):
    """The excess-of-mass tree with components as sets of cells.

    Returns the component's peak of each cell, and by peak where it ended (or, of two kept
    ones, their first contact): the cell, E and S.
    """
    steps = [step for step in product((-1, 0, 1), repeat=density.ndim) if any(step)]
    cells = sorted(
        np.ndindex(density.shape), key=lambda cell: (-density[cell], np.ravel_multi_index(cell, density.shape))
    )
    members: dict[tuple, set] = {}
    home: dict[tuple, tuple] = {}
    ended: dict[tuple, tuple[tuple, float, float]] = {}

    def excess(peak, level):
        return sum(density[c] - level for c in members[peak])

    def mass(peak):
        return sum(density[c] for c in members[peak])

    for cell in cells:
        level = density[cell]
        around = [n for step in steps if (n := tuple(int(c + s) for c, s in zip(cell, step, strict=True))) in home]
        if around:
            steepest = max(around, key=lambda n: density[n])
            home[cell] = home[steepest]
            members[home[cell]].add(cell)
        else:
            home[cell] = cell
            members[cell] = {cell}
        for other in around:
            a, b = home[cell], home[other]
            if a == b:
                continue
            if a in kept and b in kept:
                for peak in (a, b):
                    ended.setdefault(peak, (cell, excess(peak, level), mass(peak)))
                continue
            if b in kept or (a not in kept and excess(b, level) > excess(a, level)):
                a, b = b, a
            ended[b] = (cell, excess(b, level), mass(b))
            for c in members[b]:
                home[c] = a
            members[a] |= members.pop(b)
    return home, ended


def dense_components(dense):
    """Face-connected regions by flood fill, numbered in row-major order of their first cell."""
    labels = np.full(dense.shape, -1)
    n = 0
    for start in np.ndindex(dense.shape):
        if not dense[start] or labels[start] >= 0:
            continue
        labels[start] = n
        waiting = [start]
        while waiting:
            cell = waiting.pop()
            for axis in range(dense.ndim):
                for step in (-1, 1):
                    other = tuple(int(c + step * (a == axis)) for a, c in enumerate(cell))
                    inside = all(0 <= c < m for c, m in zip(other, dense.shape, strict=True))
                    if inside and dense[other] and labels[other] < 0:
                        labels[other] = n
                        waiting.append(other)
        n += 1
    return labels


def nearest_distance(labels, cell):
    """Squared distance from a cell to the nearest labelled one, and the labels at that distance."""
    best, names = None, set()
    for other in np.ndindex(labels.shape):
        if labels[other] < 0:
            continue
        far = sum((a - b) ** 2 for a, b in zip(cell, other, strict=True))
        if best is None or far < best:
            best, names = far, set()
        if far == best:
            names.add(int(labels[other]))
    return best, names


def pair_counts(a, b):
    """Over all pairs of points: together in both, together in a, together in b, all."""
    pairs = list(combinations(range(len(a)), 2))
    both = sum(a[i] == a[j] and b[i] == b[j] for i, j in pairs)
    return both, sum(a[i] == a[j] for i, j in pairs), sum(b[i] == b[j] for i, j in pairs), len(pairs)
