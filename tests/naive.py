"""Slow, plain twins of the kernels and array code, with loops, sets and exact fractions."""

from fractions import Fraction
from itertools import combinations, pairwise, product
from math import sqrt

import numpy as np

from sfumato.specs import OlhMechanism, OueMechanism, ShiftedGridEncoding, SsMechanism


def count(mechanism, n_slots, slots, values):
    """Return counts per slot and reports per slot as lists."""
    counts = [[0] * mechanism.tally_width for _ in range(n_slots)]
    reports = [0] * n_slots
    for slot, value in zip(slots, values, strict=True):
        for symbol in supported_symbols(mechanism, bytes(value)):
            counts[slot][symbol] += 1
        reports[slot] += 1
    return counts, reports


def supported_symbols(mechanism, value):
    """Return the symbols that a report supports, or under `hr` the value itself."""
    number = int.from_bytes(value, "little")
    if isinstance(mechanism, SsMechanism | OueMechanism):
        return [i for i in range(mechanism.n_symbols) if number >> i & 1]
    if isinstance(mechanism, OlhMechanism):
        seed = [int.from_bytes(value[at : at + 4], "little") for at in (0, 4, 8)]
        sent = int.from_bytes(value[12:], "little")
        return [x for x in range(mechanism.n_symbols) if mechanism.hashed(seed, x) == sent]
    return [number]


def walsh_sign(i, j):
    """Return (-1)^popcount(i & j)."""
    return -1 if bin(i & j).count("1") % 2 else 1


def walsh_hadamard(x):
    """Return sum over j of (-1)^popcount(i & j) x[j] for each i."""
    return [sum(walsh_sign(i, j) * int(value) for j, value in enumerate(x)) for i in range(len(x))]


def hadamard_supports(n_symbols, row):
    """Return the number of `hr` reports that agree with each symbol's sign, from counts of (coefficient, sign)."""
    return [
        sum(
            int(count)
            for number, count in enumerate(row)
            if walsh_sign(number // 2, symbol + 1) == (-1 if number % 2 else 1)
        )
        for symbol in range(n_symbols)
    ]


def frequencies(p: Fraction, q: Fraction, counts, reports):
    """Return (C/n - q) / (p - q) as exact fractions; zero without reports."""
    return [
        [(Fraction(int(c), int(n)) - q) / (p - q) if n else Fraction(0) for c in row]
        for row, n in zip(counts, reports, strict=True)
    ]


def normalise(estimates, reports):
    """Add to each row an even share of its difference from 1. Rows without reports stay zero."""
    return [
        [f + (1 - sum(row)) / len(row) if n else Fraction(0) for f in row]
        for row, n in zip(estimates, reports, strict=True)
    ]


def coarse_symbol(encoding: ShiftedGridEncoding, slot: int, fine: tuple[int, ...]) -> int:
    """Return the symbol of a fine cell under a slot, digit by digit."""
    digits = []
    for _ in range(encoding.n_features):
        digits.append(slot % encoding.shifts)
        slot //= encoding.shifts
    symbol = 0
    for place, (x, shift) in enumerate(zip(fine, reversed(digits), strict=True)):
        coarse, n_coarse = (x + shift) // encoding.shifts, encoding.cells + 1
        if place in encoding.circles:
            coarse, n_coarse = (0 if coarse == encoding.cells else coarse), encoding.cells
        symbol = symbol * n_coarse + coarse
    return symbol


def field(encoding: ShiftedGridEncoding, estimates, reports):
    """Return F at each fine cell: the mean over reports of the estimate of its coarse cell."""
    total = int(sum(reports))
    out = np.zeros((encoding.fine_cells,) * encoding.n_features)
    for fine in np.ndindex(out.shape):
        for slot in range(encoding.n_slots):
            out[fine] += reports[slot] / total * estimates[slot][coarse_symbol(encoding, slot, fine)]
    return out


def blur(density, shifts, circles=()):
    """Return T * f by its definition: sum over y of prod (1 - |x_i - y_i| / w)+ f(y)."""
    out = np.zeros(density.shape)
    turns = [(-n, 0, n) if axis in circles else (0,) for axis, n in enumerate(density.shape)]
    for x in np.ndindex(density.shape):
        for y in np.ndindex(density.shape):
            apart = [min(abs(a - b + turn) for turn in of) for a, b, of in zip(x, y, turns, strict=True)]
            out[x] += density[y] * np.prod([max(0.0, 1 - each / shifts) for each in apart])
    return out


def connect_to_peak(density, circles=()):
    """Return the maximum over paths to the peak of their minimum, by growing the region above each level."""
    level = np.zeros(density.shape)
    peak = np.unravel_index(int(density.argmax()), density.shape)
    for height in np.unique(density):
        reached, to_visit = {peak}, [peak]
        while to_visit:
            cell = to_visit.pop()
            for step in product((-1, 0, 1), repeat=density.ndim):
                other = tuple(
                    (c + s) % n if axis in circles else c + s
                    for axis, (c, s, n) in enumerate(zip(cell, step, density.shape, strict=True))
                )
                inside = all(0 <= c < n for c, n in zip(other, density.shape, strict=True))
                if inside and other not in reached and density[other] >= height:
                    reached.add(other)
                    to_visit.append(other)
        for cell in reached:
            level[cell] = height
    return level


def inverse_curvature(steps, changes):
    """Return the inverse of the curvature that BFGS updates estimate from steps and changes of the gradient, in order.

    The first estimate is a multiple of the identity.
    """
    identity = np.eye(steps.shape[1])
    inverse = identity * (steps[-1] @ changes[-1]) / (changes[-1] @ changes[-1]) if len(steps) else identity
    for step, change in zip(steps, changes, strict=True):
        left = identity - np.outer(step, change) / (step @ change)
        inverse = left @ inverse @ left.T + np.outer(step, step) / (step @ change)
    return inverse


def grow_components(density, kept=frozenset(), circles=()):
    """Build the excess-of-mass tree with components as sets of cells. Along circles, the ends are neighbours.

    Return the component's peak of each cell and, by peak, the cell, E and S at the end of the component
    or at the first contact of two kept ones.
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
        moved = [tuple(int(c + s) for c, s in zip(cell, step, strict=True)) for step in steps]
        on_circles = [
            tuple(c % density.shape[axis] if axis in circles else c for axis, c in enumerate(near)) for near in moved
        ]
        around = [near for near in on_circles if near in home and near != cell]
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
    """Return face-connected regions by flood fill, numbered in row-major order of their first cell."""
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
    """Return the squared distance from a cell to the nearest labelled one, and the labels at that distance."""
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
    """Count pairs of points: together in both, together in a, together in b, all."""
    pairs = list(combinations(range(len(a)), 2))
    both = sum(a[i] == a[j] and b[i] == b[j] for i, j in pairs)
    return both, sum(a[i] == a[j] for i, j in pairs), sum(b[i] == b[j] for i, j in pairs), len(pairs)


def fuzzy_distance(kind, length, d, sigma, rounding):
    """Return f(l) as the integral of the weight times l from the centre. The absolute distance is per coordinate."""

    def slope(x):
        cone = 1 / sigma if x >= rounding else x / (rounding * sigma)
        if kind == "euclidean":
            return 2 * x
        kappa = {"gaussian": d**-0.5, "laplace": 1 / d, "mixed": (1 + (1 + 4 * d) ** 0.5) / (2 * d)}[kind]
        if kappa * x >= sigma:
            return d / x
        return {"gaussian": x / sigma**2, "laplace": cone, "mixed": x / sigma**2 + cone}[kind]

    nodes, weights = np.polynomial.legendre.leggauss(40)
    edges = [0.0, rounding, *np.geomspace(max(rounding, 1e-9) * 1.01, max(length, rounding * 1.02), 60)]
    kinks = [sigma * k for k in (d**0.5, d, 2 * d / (1 + (1 + 4 * d) ** 0.5))]
    edges = sorted({min(edge, length) for edge in [*edges, *kinks]})
    total = 0.0
    for low, high in pairwise(edges):
        places = low + (high - low) * (nodes + 1) / 2
        total += (high - low) / 2 * sum(w * slope(x) for w, x in zip(weights, places, strict=True))
    return total


def fuzzy_step(points, centres, kind, m, sigma, rounding):
    """Return J, the next centres and the summed memberships by definition; `kind` is the name of a distance."""
    d = points.shape[1]

    def apart(point, centre):
        if kind == "absolute":
            gaps = [abs(a - b) for a, b in zip(point, centre, strict=True)]
            return sum(g - rounding / 2 if g >= rounding else g * g / (2 * rounding) for g in gaps)
        gap = sum((a - b) ** 2 for a, b in zip(point, centre, strict=True)) ** 0.5
        return fuzzy_distance(kind, gap, d, sigma, rounding)

    def weight(point, centre, j):
        if kind == "absolute":
            return 1 / max(abs(point[j] - centre[j]), rounding)
        gap = sum((a - b) ** 2 for a, b in zip(point, centre, strict=True)) ** 0.5
        if kind == "euclidean":
            return 2.0
        kappa = {"gaussian": d**-0.5, "laplace": 1 / d, "mixed": (1 + (1 + 4 * d) ** 0.5) / (2 * d)}[kind]
        if kappa * gap >= sigma:
            return d / gap**2
        cone, bowl = 1 / (sigma * max(gap, rounding)), 1 / sigma**2
        return {"gaussian": bowl, "laplace": cone, "mixed": bowl + cone}[kind]

    objective, shares = 0.0, [0.0] * len(centres)
    sums, masses = np.zeros(centres.shape), np.zeros(centres.shape)
    for point in points:
        distances = [max(apart(point, centre), 1e-30) for centre in centres]
        closeness = [distance ** (-1 / (m - 1)) for distance in distances]
        for c, centre in enumerate(centres):
            u = closeness[c] / sum(closeness)
            shares[c] += u
            objective += u**m * distances[c]
            for j in range(d):
                sums[c, j] += u**m * weight(point, centre, j) * point[j]
                masses[c, j] += u**m * weight(point, centre, j)
    return objective, sums / masses, shares


def noisy_likelihood(places, centres, shares, spread, noise, steps, coordinates):
    """Return the log likelihood of clipped reports and their memberships, by sums over true coordinates."""

    def chance(place, centre):
        weights = [np.exp(-0.5 * ((x - centre) / spread) ** 2) for x in coordinates]
        through = [np.exp(-abs(place / steps - x) / noise) for x in coordinates]
        return sum(w * t for w, t in zip(weights, through, strict=True)) / sum(weights)

    likelihood, memberships = 0.0, []
    for place in places:
        each = [
            share * np.prod([chance(p, c) for p, c in zip(place, centre, strict=True)])
            for share, centre in zip(shares, centres, strict=True)
        ]
        likelihood += np.log(sum(each))
        memberships.append([one / sum(each) for one in each])
    return likelihood, memberships


def nearest_centroid_symbol(centroids, point, slot):
    """Return 2 c, plus 1 if the point lies above, with exact fractions."""
    places = [min(int(Fraction(x) * (1 << 20)), (1 << 20) - 1) for x in point]
    best, nearest = None, 0
    for c, row in enumerate(centroids):
        far = sum((x - p) * (x - p) for x, p in zip(places, row, strict=True))
        if best is None or far < best:
            best, nearest = far, c
    return 2 * nearest + (1 if places[slot] > centroids[nearest][slot] else 0)


def centroid_sign_symbol(centroids, point, slot):
    """Return 1 if the slot's Walsh sign of the nearest centroid equals the side, which is +1 past the last feature."""
    n_rows = 1
    while n_rows < len(centroids):
        n_rows *= 2
    feature, row = slot // n_rows, slot % n_rows
    side = 1
    if feature < len(point):
        side = 1 if nearest_centroid_symbol(centroids, point, feature) % 2 else -1
    nearest = nearest_centroid_symbol(centroids, point, 0) // 2
    sign = -1 if bin(row & nearest).count("1") % 2 else 1
    return 1 if sign * side == 1 else 0


def nearest_centres(points, centres):
    """Return the first nearest centre of each point, with squares added in order.

    A distance that is infinite or no number never counts. Without any other one, the first centre is nearest.
    """
    labels = []
    for point in points:
        nearest, least = 0, float("inf")
        for c, centre in enumerate(centres):
            far = 0.0
            for x, y in zip(point, centre, strict=True):
                far += (x - y) * (x - y)
            if far < least:
                nearest, least = c, far
        labels.append(nearest)
    return labels


def weighted_lloyd_step(points, weights, centres):
    """Return labels, weighted sums, masses and the weighted sum of squared distances, point by point."""
    labels, sums, masses, inertia = [], [[0.0] * len(c) for c in centres], [0.0] * len(centres), 0.0
    for point, weight in zip(points, weights, strict=True):
        # products, because `** 2` is the C library's pow, which can differ in the last bit
        far = [sum((x - c) * (x - c) for x, c in zip(point, centre, strict=True)) for centre in centres]
        nearest = far.index(min(far))
        labels.append(nearest)
        masses[nearest] += weight
        for j, x in enumerate(point):
            sums[nearest][j] += weight * x
        inertia += weight * far[nearest]
    return labels, sums, masses, inertia


def nearest_distances(points, place, before):
    """Return squared distances to the nearest seed or one more point, with numpy's order of summation."""
    return np.minimum(before, ((points - points[place]) ** 2).sum(axis=1))


def choose_seeds(points, weights, n_clusters, words, n_trials):
    """Choose initial centres by greedy k-means++ over whole arrays."""

    def drawn(chances, uniform):
        ends = np.cumsum(chances)
        places = np.searchsorted(ends, uniform * ends[-1], side="right")
        return np.minimum(places, np.flatnonzero(chances)[-1])

    chosen = [drawn(weights, words.uniform(1))[0]]
    distances = nearest_distances(points, chosen[0], np.full(len(points), np.inf))
    while len(chosen) < n_clusters and (weights * distances).sum() > 0:
        tried = drawn(weights * distances, words.uniform(n_trials))
        trials = [(place, nearest_distances(points, place, distances)) for place in tried]
        place, distances = min(trials, key=lambda trial: float(weights @ trial[1]))
        chosen.append(place)
    return points[chosen]


def farthest_first(candidates, n):
    """Choose the first candidate, then repeatedly the first one farthest from all chosen."""
    chosen = [candidates[0]]
    while len(chosen) < n:
        gaps = [min(sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) for y in chosen) for x in candidates]
        chosen.append(candidates[gaps.index(max(gaps))])
    return chosen


def descend(points, first_child, nodes, feature, bit):
    """Return the node of each record one level down the tree, by the binary digits of its lattice place."""
    moved = []
    for point, node in zip(points, nodes, strict=True):
        child = first_child[node]
        moved.append(node if child < 0 else child + int(bin((1 << 20) + point[feature])[3:][19 - bit]))
    return moved


def two_level_cell(point, lattice, n_coarse, splits):
    """Return the index of the fine cell of a place, by exact fractions."""
    coarse = [int(Fraction(place, lattice) * n_coarse) for place in point]
    number = 0
    for place in coarse:
        number = number * n_coarse + place
    part = 0
    for place, cell in zip(point, coarse, strict=True):
        within = Fraction(place, lattice) * n_coarse - cell
        part = part * splits[number] + int(within * splits[number])
    return sum(m ** len(point) for m in splits[:number]) + part


def posterior_mean(count, scale, expected, empty, places, chances):
    """Return the posterior mean and log likelihood of a count under Laplace noise, place by place."""
    spots = [0.0] + [expected / (1 - empty) * place for place in places]
    prior = [empty] + [(1 - empty) * chance for chance in chances]
    likely = [p * np.exp(-abs(count - spot) / scale) for p, spot in zip(prior, spots, strict=True)]
    return sum(p * spot for p, spot in zip(likely, spots, strict=True)) / sum(likely), np.log(sum(likely))


def gap_cell(centres, point, n_bins):
    """Return the bin of a record between its two nearest centres, numbered by pair."""
    away = [sum((int(x) - int(c)) ** 2 for x, c in zip(point, centre, strict=True)) for centre in centres]
    a, b = sorted(range(len(centres)), key=lambda i: (away[i], i))[:2]
    gap = sum((int(x) - int(y)) ** 2 for x, y in zip(centres[a], centres[b], strict=True))
    place = Fraction(away[b] - away[a], 2 * max(gap, 1))
    pairs = list(combinations(range(len(centres)), 2))
    return pairs.index((min(a, b), max(a, b))) * n_bins + min(int(10 * place), n_bins - 1)


def nearest_centre(centres, point):
    """Return the first nearest centre, in integers."""
    far = [sum((int(x) - int(c)) ** 2 for x, c in zip(point, centre, strict=True)) for centre in centres]
    return far.index(min(far))


def clipped_l1_residual(centre, radius, point):
    """Return the residual of a record, scaled down to an L1 norm of at most the radius, and its norm."""
    residual = [int(x) - int(c) for x, c in zip(point, centre, strict=True)]
    norm = sum(abs(r) for r in residual)
    if norm <= radius:
        return residual, norm
    return [int(Fraction(r * radius, norm)) for r in residual], radius


def clipped_residual(centre, radius, parts, point):
    """Return the residual of a record, clipped in L2, in parts of the radius, and its squared norm in parts^2."""
    residual = [int(x) - int(c) for x, c in zip(point, centre, strict=True)]
    slack = 1 - 2.0**-30
    norm = sqrt(sum(r * r for r in residual))
    scale = parts * slack / max(norm, radius)
    share = min(norm / radius, 1.0)
    return [int(r * scale) for r in residual], int(parts**2 * slack * share * share)


def shifted_square(centre, shift, point):
    """Return the squared distance in units of 2^shift, rounded down."""
    return sum((int(x) - int(c)) ** 2 for x, c in zip(point, centre, strict=True)) // 2**shift


def box_cell(boxes, point):
    """Return the index of the box (lows, highs) that contains a record."""
    (inside,) = [
        i
        for i, (lows, highs) in enumerate(boxes)
        if all(low <= x < high for low, x, high in zip(lows, point, highs, strict=True))
    ]
    return inside


def pair_leaf(centres, first, point):
    """Return the leaf reached by descending to the nearer centre of each pair."""
    node = 0
    while first[node] >= 0:
        node = first[node] + nearest_centre(centres[first[node] : first[node] + 2], point)
    return node


def hashed_cell(seed, n_cells, point):
    """Return the cell of a record from SplitMix64's finaliser over its coordinates, in integers."""
    span, mixed = 1 << 64, seed
    for x in point:
        mixed = ((mixed ^ int(x)) + 0x9E3779B97F4A7C15) % span
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % span
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % span
        mixed ^= mixed >> 31
    return (mixed >> 32) * n_cells >> 32
