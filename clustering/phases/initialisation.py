"""Initial mixtures of a sketch and the number of clusters: greedy placement, swaps, and BIC."""

from math import log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.kernels.phases import agreement, ascend
from clustering.phases.mixture_fit import Fitted, Limits, Mixture, Sketch, climb, raise_to_floor
from clustering.random import PublicWords

# One greedy start per width, then swaps while they improve the fit. (Two starts per width and at most
# two swaps take longer, and miss the optimum in ten of twelve hard cases instead of seven.)
START_STEPS = 10  # steps of the fit from each start
SWAP_PASSES = 3
SWAP_GAIN = 0.5  # least gain in negative log likelihood; an unfinished fit can gain less

# A cluster is searched among so many places. The best ascend, first on a coarse scale.
PLACES = 256
CLIMBERS = 24
FINE_CLIMBERS = 8
CLIMB_STEPS = 20
COARSE_STRIDE, FINE_STRIDE, STRIDE_DECAY = 0.08, 0.03, 0.88
FAINT_WAVE = 1e-3  # ignore waves that a cluster's width damps below this share

MAX_COUNTED = 16  # most clusters if their number is not given
PATIENCE = 2  # numbers of clusters on either side of the best that must be worse
CLOSE = 0.5  # excess of the criterion up to which a number of clusters is in the interval, in costs of a cluster
FEW_FEATURES = 4  # largest number of features with the whole cost of BIC
NOISE_COST = 4.4  # largest cost of a parameter with more features; noise alone gains up to it


class CountedFit(NamedTuple):
    """Result if the number of clusters is not given."""

    fitted: Fitted
    criteria: dict[int, float]  # BIC by number of clusters, of the numbers that were compared; the least is selected
    lower: int  # least and greatest number with a BIC close to the least
    upper: int
    gains: tuple[float, float] | None  # log likelihood over BIC penalty: mean after the first cluster, and the last one


def search(sketch: Sketch, n_clusters: int, limits: Limits, words: PublicWords) -> Fitted:
    """Return the best fit of a number of clusters, from greedy starts of several widths and swaps."""
    starts = [
        climb(sketch, greedy(sketch, n_clusters, width, limits, words), limits, START_STEPS)
        for width in limits.start_widths
    ]
    best = min(starts, key=lambda fitted: fitted.nll)
    return climb(sketch, swap_clusters(sketch, best, limits, words).mixture, limits)


def swap_clusters(sketch: Sketch, best: Fitted, limits: Limits, words: PublicWords) -> Fitted:
    """Move each cluster in turn to the peak of the residual, and keep the move if the fit improves."""
    n_clusters = len(best.mixture.shares)
    n_in_vain = 0
    for attempt in range(SWAP_PASSES * n_clusters):
        left_out = attempt % n_clusters
        tried = climb(sketch, _move_cluster(sketch, best.mixture, left_out, limits, words), limits, START_STEPS)
        if tried.nll < best.nll - SWAP_GAIN:
            best, n_in_vain = tried, 0
        else:
            n_in_vain += 1
        if n_in_vain == n_clusters:
            break
    return best


def count(sketch: Sketch, n_reports: int, n_supported: int, limits: Limits, words: PublicWords) -> CountedFit:
    """Return the number of clusters with the least 2 NLL + C (d + 2) a, up to 16, and their fit.

    a is ln N as in the BIC, and at most 4.4 with more than four features. There reports have little information about
    each of many clusters, so a penalty that depends on their number alone exceeds what a clear cluster gains.

    One cluster and the supported number are compared first, because in many features each single cluster of
    many gains less than its cost. Neighbours of the better number follow, until `PATIENCE` numbers on both
    sides are worse. Each number starts from a greedy start, and from the fit of the number below plus a
    cluster. The selected number gets a full `search`.

    Parameters
    ----------
    sketch : Sketch
    n_reports : int
    n_supported : int
        Number of clusters that the reports support, at least 1.
    limits : Limits
    words : PublicWords
    """
    cost = cluster_cost(sketch.n_features, n_reports)
    middle = sorted(limits.start_widths)[len(limits.start_widths) // 2]
    fits: dict[int, Fitted] = {}
    criteria: dict[int, float] = {}
    waiting = [1, min(n_supported, MAX_COUNTED)]
    while waiting:
        n_clusters = waiting.pop(0)
        if n_clusters not in fits:
            starts = [greedy(sketch, n_clusters, middle, limits, words)]
            if n_clusters - 1 in fits:
                starts.append(_add_cluster(sketch, fits[n_clusters - 1].mixture, limits, words))
            fits[n_clusters] = min((climb(sketch, start, limits) for start in starts), key=lambda fitted: fitted.nll)
            criteria[n_clusters] = 2 * fits[n_clusters].nll + n_clusters * cost
        if not waiting:
            best = min(criteria, key=criteria.__getitem__)
            near = [best + step for distance in range(1, PATIENCE + 1) for step in (distance, -distance)]
            waiting = [number for number in near if 1 <= number <= MAX_COUNTED and number not in fits][:1]
    full = min((fits[best], search(sketch, best, limits, words)), key=lambda fitted: fitted.nll)
    criteria[best] = 2 * full.nll + best * cost
    close = [number for number in criteria if criteria[number] <= criteria[best] + CLOSE * cost]
    gains = None
    if best > 1:  # the numbers beside the best one were compared
        of_bic = (sketch.n_features + 2) * log(max(n_reports, 3))
        mean, last = (((criteria[best - n] - criteria[best]) / n + cost) / of_bic for n in (best - 1, 1))
        gains = mean, last
    return CountedFit(full, dict(sorted(criteria.items())), min(close), max(close), gains)


def cluster_cost(n_features: int, n_reports: int) -> float:
    """Return the cost of a cluster in the criterion of `count`."""
    of_parameter = log(max(n_reports, 3))
    return (n_features + 2) * (of_parameter if n_features <= FEW_FEATURES else min(of_parameter, NOISE_COST))


# ---- placement of clusters ----


def first_harmonics(sketch: Sketch) -> NDArray[np.complex128]:
    """Return z_j = sum over y of n_jy e^(2 pi i y / L) / conj(c_1), with mean n_j times the characteristic function."""
    seen = sketch.counts @ (sketch.cosines[0] + 1j * sketch.sines[0])
    return np.asarray(seen / np.conj(sketch.harmonics[0]))


def residual(sketch: Sketch, mixture: Mixture) -> NDArray[np.complex128]:
    """Return the first harmonics without those of a mixture: shape (m,)."""
    return np.asarray(first_harmonics(sketch) - _expected(sketch, *mixture))


def greedy(sketch: Sketch, n_clusters: int, width: float, limits: Limits, words: PublicWords) -> Mixture:
    """Return clusters of one width, each placed where the waves agree most on the residual."""
    signal = first_harmonics(sketch)
    centres = np.empty((0, sketch.n_features))
    shares = np.empty(0)
    left = signal
    for _ in range(n_clusters):
        centres = np.vstack([centres, find_peak(sketch, left, width, words)])
        shares = _shares(sketch, signal, centres, width)
        left = signal - _expected(sketch, centres, shares, np.full(len(centres), width))
    return Mixture(centres, raise_to_floor(shares, limits), np.full(n_clusters, width))


def find_peak(sketch: Sketch, signal: NDArray[np.complex128], width: float, words: PublicWords) -> NDArray[np.float64]:
    """Return the place where the waves agree most for a cluster of a width: shape (d,)."""
    squared = (sketch.omegas**2).sum(axis=1)

    def seen(at_width: float) -> tuple[NDArray[np.float64], NDArray[np.complex128]]:
        weights = np.exp(-squared * at_width**2 / 2)
        clear = weights > FAINT_WAVE * weights.max()
        return np.ascontiguousarray(sketch.omegas[clear]), signal[clear] * weights[clear]

    def best(places: NDArray[np.float64], at_width: float, n_kept: int) -> NDArray[np.float64]:
        scores = np.empty(len(places))
        agreement(*seen(at_width), places, scores)
        return np.ascontiguousarray(places[np.argsort(-scores, kind="stable")[:n_kept]])

    scale = sqrt(sketch.n_features / 2)
    places = best(words.uniform(PLACES, sketch.n_features), 1.5 * width, CLIMBERS)
    ascend(*seen(2 * width), places, CLIMB_STEPS, COARSE_STRIDE * scale, STRIDE_DECAY)
    places = best(places, 1.5 * width, FINE_CLIMBERS)
    ascend(*seen(width), places, CLIMB_STEPS, FINE_STRIDE * scale, STRIDE_DECAY)
    return np.asarray(best(places, width, 1)[0])


def _shares(
    sketch: Sketch, signal: NDArray[np.complex128], centres: NDArray[np.float64], width: float
) -> NDArray[np.float64]:
    """Return shares by least squares on the first harmonics, in [.02, 1]; they need not sum to one."""
    n_reports = sketch.counts.sum(axis=1)
    seen = _waves(sketch, centres, np.full(len(centres), width))
    normal = (seen.conj().T @ (n_reports[:, None] * seen)).real
    normal += 1e-9 * normal.trace() * np.eye(len(centres))
    return np.clip(np.linalg.solve(normal, (seen.conj().T @ signal).real), 0.02, 1.0)


def _waves(sketch: Sketch, centres: NDArray[np.float64], widths: NDArray[np.float64]) -> NDArray[np.complex128]:
    """Return each wave's first harmonic for each cluster: shape (m, C)."""
    squared = (sketch.omegas**2).sum(axis=1)
    return np.asarray(np.exp(-np.outer(squared, widths**2) / 2 + 1j * (sketch.omegas @ centres.T)))


def _expected(
    sketch: Sketch, centres: NDArray[np.float64], shares: NDArray[np.float64], widths: NDArray[np.float64]
) -> NDArray[np.complex128]:
    return np.asarray(sketch.counts.sum(axis=1) * (_waves(sketch, centres, widths) @ shares))


def _add_cluster(sketch: Sketch, mixture: Mixture, limits: Limits, words: PublicWords) -> Mixture:
    """Return the mixture plus one cluster of median width at the peak of the residual."""
    width = float(np.median(mixture.widths))
    left = residual(sketch, mixture)
    share = 1 / (len(mixture.shares) + 1)
    return Mixture(
        np.vstack([mixture.centres, find_peak(sketch, left, width, words)]),
        raise_to_floor(np.append(mixture.shares * (1 - share), share), limits),
        np.append(mixture.widths, width),
    )


def _move_cluster(sketch: Sketch, mixture: Mixture, left_out: int, limits: Limits, words: PublicWords) -> Mixture:
    """Return the mixture with one cluster moved to the peak of the others' residual."""
    kept = np.arange(len(mixture.shares)) != left_out
    centres, shares, widths = mixture.centres[kept], mixture.shares[kept], mixture.widths[kept]
    width = float(np.median(mixture.widths))
    left = first_harmonics(sketch) - _expected(sketch, centres, shares, widths)
    return Mixture(
        np.vstack([centres, find_peak(sketch, left, width, words)]),
        raise_to_floor(np.append(shares, mixture.shares[left_out]), limits),
        np.append(widths, width),
    )
