"""Starts of round clusters in a sketch: greedy placement, and clusters added at the peak of the residual."""

from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.kernels.phases import agreement, ascend
from clustering.phases.cluster_search import CountedFit, count_clusters, search_clusters
from clustering.phases.mixture_fit import STEPS, Fitted, Limits, Mixture, Sketch, climb, raise_to_floor
from clustering.random import PublicWords

# A cluster is searched among so many places. The best ascend, first on a coarse scale.
PLACES = 256
CLIMBERS = 24
FINE_CLIMBERS = 8
CLIMB_STEPS = 20
COARSE_STRIDE, FINE_STRIDE, STRIDE_DECAY = 0.08, 0.03, 0.88
FAINT_WAVE = 1e-3  # ignore waves that a cluster's width damps below this share


class RoundClusters(NamedTuple):
    """Fits of round clusters to a sketch, see `ClusterFits`."""

    sketch: Sketch
    limits: Limits
    words: PublicWords

    @property
    def start_widths(self) -> tuple[float, ...]:
        """Return the widths of greedy starts."""
        return self.limits.start_widths

    @property
    def n_parameters(self) -> int:
        """Return the number of parameters of a cluster: its centre, share and width."""
        return self.sketch.n_features + 2

    def place(self, n_clusters: int, width: float, n_steps: int | None) -> Fitted:
        """Return the fit from greedy clusters of a width, after some or all steps."""
        start = greedy(self.sketch, n_clusters, width, self.limits, self.words)
        return climb(self.sketch, start, self.limits, n_steps or STEPS)

    def add(self, fitted: Fitted, n_steps: int | None) -> Fitted:
        """Return the fit from a start with one more cluster, at the peak of the residual."""
        start = _add_cluster(self.sketch, fitted.mixture, self.limits, self.words)
        return climb(self.sketch, start, self.limits, n_steps or STEPS)

    def drop(self, fitted: Fitted, left_out: int, n_steps: int) -> Fitted:
        """Return the fit from a start without one cluster."""
        kept = fitted.mixture.take(np.delete(np.arange(fitted.n_clusters), left_out))
        return climb(self.sketch, kept._replace(shares=raise_to_floor(kept.shares, self.limits)), self.limits, n_steps)

    def climb(self, fitted: Fitted) -> Fitted:
        """Return the fit after all steps."""
        return climb(self.sketch, fitted.mixture, self.limits)


def search(sketch: Sketch, n_clusters: int, limits: Limits, words: PublicWords) -> Fitted:
    """Return the best fit of a number of round clusters."""
    return search_clusters(RoundClusters(sketch, limits, words), n_clusters)


def count(sketch: Sketch, n_reports: int, n_supported: int, limits: Limits, words: PublicWords) -> CountedFit[Fitted]:
    """Return the number of round clusters and their fit."""
    return count_clusters(RoundClusters(sketch, limits, words), n_reports, n_supported)


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
