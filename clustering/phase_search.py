"""Where the fit of a sketch starts, and how many clusters it has: greedy atoms, swaps, and a criterion."""

from math import log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.kernels.phase import agreement, ascend
from clustering.phase_model import Fitted, Limits, Mixture, Sketch, climb, floored

# One greedy start of each width and swaps as long as they gain. (Two starts of each and two swaps at
# most take longer, and miss the optimum more often: of twelve hard cases ten, instead of seven.)
START_STEPS = 10  # of the fit from each start
SWAP_PASSES = 3
SWAP_GAIN = 0.5  # in negative log likelihood: less is the end of a fit that was cut short

# An atom is looked for among so many places; the best of them climb, first on a coarse scale.
PLACES = 256
CLIMBERS = 24
FINE_CLIMBERS = 8
CLIMB_STEPS = 20
COARSE_STRIDE, FINE_STRIDE, STRIDE_DECAY = 0.08, 0.03, 0.88
FAINT_WAVE = 1e-3  # a wave that a cluster of this width damps to less is not looked at

MAX_COUNTED = 16  # clusters, when their number is left open
PATIENCE = 2  # numbers of clusters that may be worse than the best so far


class PublicWords:
    """Uniform numbers from a public seed: raw words of PCG64, whose stream is the same in every version of numpy.

    Nothing private comes of them: they choose the waves everybody is shown, and the places a
    fit starts from.
    """

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def uniform(self, *shape: int) -> NDArray[np.float64]:
        """Numbers in [0, 1), multiples of 2^-53."""
        words = np.asarray(self._bits.random_raw(int(np.prod(shape))), dtype=np.uint64)
        return np.asarray((words >> np.uint64(11)) * 2.0**-53, dtype=np.float64).reshape(shape)


class Counted(NamedTuple):
    """What was found when the number of clusters was left open."""

    fitted: Fitted
    criteria: tuple[float, ...]  # of 1, 2, ... clusters; the least wins


def search(sketch: Sketch, n_clusters: int, limits: Limits, words: PublicWords) -> Fitted:
    """The best fit of so many clusters: greedy starts of several widths, then swaps."""
    starts = [
        climb(sketch, greedy(sketch, n_clusters, width, limits, words), limits, START_STEPS)
        for width in limits.start_widths
    ]
    best = min(starts, key=lambda fitted: fitted.nll)
    return climb(sketch, swapped(sketch, best, limits, words).mixture, limits)


def swapped(sketch: Sketch, best: Fitted, limits: Limits, words: PublicWords) -> Fitted:
    """Take each cluster out in turn and put one where the rest leaves most: kept where it fits better."""
    n_clusters = len(best.mixture.shares)
    n_in_vain = 0
    for attempt in range(SWAP_PASSES * n_clusters):
        left_out = attempt % n_clusters
        tried = climb(sketch, _replaced(sketch, best.mixture, left_out, limits, words), limits, START_STEPS)
        if tried.nll < best.nll - SWAP_GAIN:
            best, n_in_vain = tried, 0
        else:
            n_in_vain += 1
        if n_in_vain == n_clusters:
            break
    return best


def count(sketch: Sketch, n_reports: int, limits: Limits, words: PublicWords) -> Counted:
    """The number of clusters by BIC = 2 NLL + C (d + 2) ln N, up to 16, and their fit.

    Each number starts from the fit of the one before with a cluster more, and from a greedy
    start; the number that wins is searched for in full.
    """
    cost = (sketch.n_features + 2) * log(max(n_reports, 3))
    criteria: list[float] = []
    fits: list[Fitted] = []
    middle = sorted(limits.start_widths)[len(limits.start_widths) // 2]
    while len(criteria) < MAX_COUNTED and len(criteria) - _least(criteria) <= PATIENCE:
        n_clusters = len(criteria) + 1
        starts = [greedy(sketch, n_clusters, middle, limits, words)]
        if fits:
            starts.append(_added(sketch, fits[-1].mixture, limits, words))
        fits.append(min((climb(sketch, start, limits) for start in starts), key=lambda fitted: fitted.nll))
        criteria.append(2 * fits[-1].nll + n_clusters * cost)
    at = _least(criteria)
    best = min((fits[at], search(sketch, at + 1, limits, words)), key=lambda fitted: fitted.nll)
    criteria[at] = 2 * best.nll + (at + 1) * cost
    return Counted(best, tuple(criteria))


def _least(criteria: list[float]) -> int:
    return min(range(len(criteria)), key=criteria.__getitem__, default=0)


# ---- atoms ----


def first_harmonics(sketch: Sketch) -> NDArray[np.complex128]:
    """z_j = sum over y of n_jy e^(2 pi i y / L) / conj(c_1): in the mean n_j times the characteristic function."""
    seen = sketch.counts @ (sketch.cosines[0] + 1j * sketch.sines[0])
    return np.asarray(seen / np.conj(sketch.harmonics[0]))


def greedy(sketch: Sketch, n_clusters: int, width: float, limits: Limits, words: PublicWords) -> Mixture:
    """Clusters of one width, one after the other where the waves agree most on what is left."""
    signal = first_harmonics(sketch)
    centres = np.empty((0, sketch.n_features))
    shares = np.empty(0)
    left = signal
    for _ in range(n_clusters):
        centres = np.vstack([centres, peak(sketch, left, width, words)])
        shares = _shares(sketch, signal, centres, width)
        left = signal - _expected(sketch, centres, shares, np.full(len(centres), width))
    return Mixture(centres, floored(shares, limits), np.full(n_clusters, width))


def peak(sketch: Sketch, signal: NDArray[np.complex128], width: float, words: PublicWords) -> NDArray[np.float64]:
    """The place on which the waves agree most, as a cluster of this width would have them: shape (d,)."""
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
    """Shares by least squares on the first harmonics, in [.02, 1]; they need not sum to one."""
    n_reports = sketch.counts.sum(axis=1)
    seen = _waves(sketch, centres, np.full(len(centres), width))
    normal = (seen.conj().T @ (n_reports[:, None] * seen)).real
    normal += 1e-9 * normal.trace() * np.eye(len(centres))
    return np.clip(np.linalg.solve(normal, (seen.conj().T @ signal).real), 0.02, 1.0)


def _waves(sketch: Sketch, centres: NDArray[np.float64], widths: NDArray[np.float64]) -> NDArray[np.complex128]:
    """What each wave's first harmonic is of each cluster: shape (m, C)."""
    squared = (sketch.omegas**2).sum(axis=1)
    return np.asarray(np.exp(-np.outer(squared, widths**2) / 2 + 1j * (sketch.omegas @ centres.T)))


def _expected(
    sketch: Sketch, centres: NDArray[np.float64], shares: NDArray[np.float64], widths: NDArray[np.float64]
) -> NDArray[np.complex128]:
    return np.asarray(sketch.counts.sum(axis=1) * (_waves(sketch, centres, widths) @ shares))


def _added(sketch: Sketch, mixture: Mixture, limits: Limits, words: PublicWords) -> Mixture:
    """One cluster more, of a middling width, where what is left agrees most."""
    width = float(np.median(mixture.widths))
    left = first_harmonics(sketch) - _expected(sketch, *mixture)
    share = 1 / (len(mixture.shares) + 1)
    return Mixture(
        np.vstack([mixture.centres, peak(sketch, left, width, words)]),
        floored(np.append(mixture.shares * (1 - share), share), limits),
        np.append(mixture.widths, width),
    )


def _replaced(sketch: Sketch, mixture: Mixture, left_out: int, limits: Limits, words: PublicWords) -> Mixture:
    """The mixture with one cluster moved to where the others leave most."""
    kept = np.arange(len(mixture.shares)) != left_out
    centres, shares, widths = mixture.centres[kept], mixture.shares[kept], mixture.widths[kept]
    width = float(np.median(mixture.widths))
    left = first_harmonics(sketch) - _expected(sketch, centres, shares, widths)
    return Mixture(
        np.vstack([centres, peak(sketch, left, width, words)]),
        floored(np.append(shares, mixture.shares[left_out]), limits),
        np.append(widths, width),
    )
