"""The values that distinguish a cluster from all others, with control of false discoveries.

Tests compare the share of a value in a cluster with its share in the rest. The variance is that of the noise and of
sampling the people. Benjamini and Hochberg (1995) at 5 % selects values. The intervals have the level 1 - .05 R / m for
R selected of m tested values (Benjamini and Yekutieli 2005). The tests of one table depend on each other, and for
these the rate of false discoveries was measured and not proved.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri

from clustering.profiles.shares import ConsistentTables, Noise, share_variances
from sfumato.profiles.cluster_profile import Distinguishing
from sfumato.specs.attributes import Attribute

FALSE_DISCOVERIES = 0.05
MIN_DEVIATIONS = 4.0  # deviations of the noise that a describable cluster has at least
MIN_RECORDS = 10.0
LISTED = 50  # values of a cluster in the list of a result, which bounds its length
LEAST_SHARE = 1e-4  # smallest share in a lift, to avoid a division by zero

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Distinction:
    """A value that distinguishes a cluster.

    Attributes
    ----------
    cluster, table, value : int
        Places of the cluster, the table and the value.
    share, share_error : float
        Share in the cluster, and the standard error of its noise.
    rest : float
        Share in all other clusters.
    difference : tuple of three floats
        Difference of the shares, and its interval.
    lift : tuple of three floats
        Ratio of the shares, and its interval.
    """

    cluster: int
    table: int
    value: int
    share: float
    share_error: float
    rest: float
    difference: tuple[float, float, float]
    lift: tuple[float, float, float]


class _Tests(NamedTuple):
    """Tests as parallel arrays of shape (n,)."""

    clusters: NDArray[np.int64]
    tables: NDArray[np.int64]
    values: NDArray[np.int64]
    shares: Floats
    rests: Floats
    own_variances: Floats
    variances: Floats
    p_values: Floats


def too_small(found: ConsistentTables) -> list[int]:
    """Return the clusters with a number of records that is not above the noise."""
    least = max(MIN_DEVIATIONS * sqrt(found.number_variance), MIN_RECORDS)
    return [c for c, number in enumerate(found.numbers.tolist()) if number < least]


def small_warnings(small: list[int], n_clusters: int) -> list[str]:
    """Return the warning about clusters with too few records, if there are any."""
    if not small:
        return []
    named = ", ".join(map(str, small))
    return [f"Too few records to describe {len(small)} of {n_clusters} clusters at this epsilon: {named}."]


def find_distinctions(found: ConsistentTables, noise: Noise, max_per_user: int) -> tuple[list[Distinction], int]:
    """Return the values that distinguish a cluster, the clearest first, and the number of tested values.

    They are in order of the lower end of |log lift|. Sampling errors count `max_per_user` times, because the records of
    a user may be equal.
    """
    tests = _test(found, noise, max_per_user)
    kept = select_discoveries(tests.p_values, FALSE_DISCOVERIES)
    n_tested = len(tests.p_values)
    if not kept.any():
        return [], n_tested
    width = -float(ndtri(FALSE_DISCOVERIES * kept.sum() / n_tested / 2))
    listed = []
    for place in np.nonzero(kept)[0]:
        share, rest = float(tests.shares[place]), float(tests.rests[place])
        error, own = sqrt(tests.variances[place]), sqrt(tests.own_variances[place])
        p, r = max(share, LEAST_SHARE), max(rest, LEAST_SHARE)
        log_lift = float(np.log(p / r))
        log_error = sqrt((own / p) ** 2 + max(tests.variances[place] - own**2, 0.0) / r**2)
        ends = np.exp(np.clip([log_lift - width * log_error, log_lift + width * log_error], -12.0, 12.0)).tolist()
        difference = share - rest
        clearness = max(abs(log_lift) - width * error / min(p, r), 0.0)
        entry = Distinction(
            cluster=int(tests.clusters[place]),
            table=int(tests.tables[place]),
            value=int(tests.values[place]),
            share=min(max(share, 0.0), 1.0),
            share_error=own,
            rest=min(max(rest, 0.0), 1.0),
            difference=(difference, difference - width * error, difference + width * error),
            lift=(p / r, ends[0], ends[1]),
        )
        listed.append((-clearness, -abs(difference), entry))
    return [entry for _, _, entry in sorted(listed, key=lambda each: each[:2])], n_tested


def list_clearest(found: Sequence[Distinction]) -> tuple[list[Distinction], list[str]]:
    """Return the values of the list of a result, in the given order, and a warning if it leaves out others.

    Each cluster has at most `LISTED`: those with the clearest differences, by the lower end of their size. Lifts are
    clearest for rare values. In the order of lifts, their small differences would displace large ones.
    """
    counts, listed = Counter[int](), set[int]()
    for place in sorted(range(len(found)), key=lambda place: -_least_difference(found[place])):
        counts[found[place].cluster] += 1
        if counts[found[place].cluster] <= LISTED:
            listed.add(place)
    kept = [each for place, each in enumerate(found) if place in listed]
    if len(kept) == len(found):
        return kept, []
    return kept, [
        f"{len(found)} values distinguish a cluster. The list has the {LISTED} clearest differences of each cluster, "
        "and the tables of the attributes have all shares."
    ]


def _least_difference(found: Distinction) -> float:
    """Return the lower end of the size of a difference. It is negative if the interval contains 0."""
    _, lower, upper = found.difference
    return max(lower, -upper)


def name_distinction(found: Distinction, attributes: Sequence[Attribute]) -> Distinguishing:
    """Return a distinction with the names of the attribute of its table and of its value."""
    attribute = attributes[found.table]
    return Distinguishing(
        cluster=found.cluster,
        attribute=attribute.name,
        value=attribute.categories[found.value],
        share=found.share,
        share_error=found.share_error,
        rest=found.rest,
        difference=found.difference[0],
        difference_interval=found.difference[1:],
        lift=found.lift[0],
        interval=found.lift[1:],
    )


def select_discoveries(p_values: Floats, rate: float) -> NDArray[np.bool_]:
    """Return a mask of the discoveries at this rate of false ones (Benjamini and Hochberg 1995)."""
    kept = np.zeros(len(p_values), dtype=np.bool_)
    order = np.argsort(p_values, kind="stable")
    below = np.nonzero(p_values[order] <= rate * np.arange(1, len(order) + 1) / max(len(order), 1))[0]
    if len(below):
        kept[order[: below[-1] + 1]] = True
    return kept


def laplace_normal_tail(size: Floats, scale: float | Floats, deviation: Floats) -> Floats:
    """Return P(L + G > size) for Laplace noise L of a scale and normal G of a deviation, size >= 0."""
    scale = np.maximum(scale, 1e-12)
    deviation = np.maximum(deviation, 1e-12 * scale)
    ratio = deviation / scale
    first = np.exp(np.minimum(ratio**2 / 2 - size / scale + log_ndtr(size / deviation - ratio), 0.0))
    second = np.exp(np.minimum(ratio**2 / 2 + size / scale + log_ndtr(-size / deviation - ratio), 0.0))
    tail: Floats = np.clip(ndtr(-size / deviation) + 0.5 * (first - second), 1e-300, 1.0)
    return tail


def _test(found: ConsistentTables, noise: Noise, max_per_user: int) -> _Tests:
    numbers, total = found.numbers, float(found.numbers.sum())
    skipped = set(too_small(found))
    parts: list[tuple[NDArray[Any], ...]] = []
    for place, table in enumerate(found.tables):
        k, n_values = table.shape
        own, cells = share_variances(found, place, noise), noise.of(place, table.shape)
        others = cells.sum(axis=0) - cells
        for c in range(k):
            n, rest_n = float(numbers[c]), total - float(numbers[c])
            if c in skipped or rest_n < MIN_RECORDS:
                continue
            shares, rests = table[c] / n, (table.sum(axis=0) - table[c]) / rest_n
            pooled = np.clip(table.sum(axis=0) / total, LEAST_SHARE, 1 - LEAST_SHARE)
            sampling = max_per_user * pooled * (1 - pooled) * (1 / n + 1 / rest_n)
            spread = found.number_variance * (k - 1) * (1 / n_values - rests) ** 2
            of_rest = (others[c] * (1 - 1 / n_values) + spread) / rest_n**2 + noise.of_draw(pooled, rest_n)
            variances = own[c] + of_rest + sampling
            sizes = np.abs(shares - rests)
            if noise.laplace_scale:
                scale = noise.laplace_scale * (1 - 1 / n_values) / n
                normal = np.sqrt(np.maximum(own[c] - 2 * scale**2, 0.0) + of_rest + sampling)
                p_values = np.minimum(2 * laplace_normal_tail(sizes, scale, normal), 1.0)
            else:
                p_values = 2 * ndtr(-sizes / np.sqrt(variances))
            where = np.full(n_values, c), np.full(n_values, place), np.arange(n_values)
            parts.append((*where, shares, rests, own[c], variances, p_values))
    columns: list[NDArray[Any]] = [np.empty(0)] * 8
    if parts:
        columns = [np.concatenate(each) for each in zip(*parts, strict=True)]
    return _Tests(*columns)
