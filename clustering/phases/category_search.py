"""Starts of clusters with categories: greedy placement at places and categories, and added clusters.

A cluster is searched among places with one category of each attribute. So two clusters at one place are found, if their
people have different categories.
"""

from itertools import product
from math import pi, prod, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.kernels.phases import ascend
from clustering.phases.category_mixture import (
    CategoryFit,
    CategoryMixture,
    CategoryWaves,
    climb,
    cluster_values,
    residual,
)
from clustering.phases.initialisation import (
    CLIMB_STEPS,
    CLIMBERS,
    COARSE_STRIDE,
    FAINT_WAVE,
    FINE_CLIMBERS,
    FINE_STRIDE,
    PLACES,
    STRIDE_DECAY,
)
from clustering.phases.mixture_fit import STEPS, Limits, Mixture, raise_to_floor
from clustering.random import PublicWords

LAST_STEPS = 80
USUAL = 0.6  # share of its category of each attribute in a cluster that is searched; the others are even
CODES = 256  # largest number of tuples of categories that are compared
LEAST_START_SHARE = 0.02


class Peak(NamedTuple):
    """The start of a cluster."""

    place: NDArray[np.float64]  # (d,)
    codes: NDArray[np.int64]  # (J,), category of each attribute


class CategoryClusters(NamedTuple):
    """Fits of clusters with categories, see `ClusterFits`.

    The first steps of a fit read the first harmonics alone, which have most of the information. So likelihoods after a
    number of steps are compared with each other only, and so are those of whole fits.
    """

    waves: CategoryWaves
    limits: Limits
    words: PublicWords
    start_widths: tuple[float, ...]

    @property
    def n_parameters(self) -> int:
        """Return the number of parameters of a cluster: centre, share, width, and all category shares but one."""
        return parameters_of(self.waves)

    def place(self, n_clusters: int, width: float, n_steps: int | None) -> CategoryFit:
        """Return the fit from greedy clusters of a width, after some or all steps."""
        return self._climb(greedy(self.waves, n_clusters, width, self.limits, self.words), n_steps)

    def add(self, fitted: CategoryFit, n_steps: int | None) -> CategoryFit:
        """Return the fit from a start with one more cluster, at the peak of the residual."""
        return self._climb(self._add(fitted.mixture), n_steps)

    def drop(self, fitted: CategoryFit, left_out: int, n_steps: int) -> CategoryFit:
        """Return the fit from a start without one cluster."""
        kept = fitted.mixture.take(np.delete(np.arange(fitted.n_clusters), left_out))
        sizes = raise_to_floor(kept.places.shares, self.limits)
        start = kept._replace(places=kept.places._replace(shares=sizes))
        return self._climb(start, n_steps)

    def climb(self, fitted: CategoryFit) -> CategoryFit:
        """Return the fit after all steps. Shares near zero converge slowly."""
        return climb(self.waves, fitted.mixture, self.limits, LAST_STEPS)

    def _climb(self, start: CategoryMixture, n_steps: int | None) -> CategoryFit:
        """Return the fit after some steps with the first harmonics, or after all steps."""
        waves = self.waves if n_steps is None else self.waves.firsts
        return climb(waves, start, self.limits, n_steps or STEPS)

    def _add(self, mixture: CategoryMixture) -> CategoryMixture:
        """Return the mixture plus one cluster of median width at the peak of the residual."""
        places, share = mixture.places, 1 / (len(mixture.places.shares) + 1)
        width = float(np.median(places.widths))
        peak = find_peak(self.waves, residual(self.waves, mixture), width, self.words, places.centres)
        found = start_at(self.waves, [peak], width)
        return CategoryMixture(
            Mixture(
                np.vstack([places.centres, found.places.centres]),
                raise_to_floor(np.append(places.shares * (1 - share), share), self.limits),
                np.append(places.widths, width),
            ),
            tuple(np.vstack(parts) for parts in zip(mixture.shares, found.shares, strict=True)),
        )


def parameters_of(waves: CategoryWaves) -> int:
    """Return the number of parameters of a cluster: centre, share, width, and all category shares but one."""
    return waves.n_features + 2 + sum(waves.categories) - len(waves.categories)


def greedy(waves: CategoryWaves, n_clusters: int, width: float, limits: Limits, words: PublicWords) -> CategoryMixture:
    """Return clusters of one width, each placed where the waves agree most on the residual."""
    firsts, peaks, left = waves.firsts, list[Peak](), waves.firsts.values
    for _ in range(n_clusters):
        found = np.array([peak.place for peak in peaks]).reshape(-1, waves.n_features)
        peaks.append(find_peak(waves, left, width, words, found))
        start = start_at(waves, peaks, width)
        sizes = _sizes(firsts, start)
        left = firsts.values - cluster_values(firsts, start) @ sizes
    return start._replace(places=start.places._replace(shares=raise_to_floor(sizes, limits)))


def start_at(waves: CategoryWaves, peaks: list[Peak], width: float) -> CategoryMixture:
    """Return clusters of equal size and one width at peaks, where most people have the peak's category."""
    n = len(peaks)
    codes = np.array([peak.codes for peak in peaks])
    shares = tuple((1 - USUAL) / m + USUAL * np.eye(m)[codes[:, place]] for place, m in enumerate(waves.categories))
    return CategoryMixture(
        Mixture(np.array([peak.place for peak in peaks]), np.full(n, 1 / n), np.full(n, width)), shares
    )


def _sizes(firsts: CategoryWaves, start: CategoryMixture) -> NDArray[np.float64]:
    """Return sizes by least squares on the first harmonics, in [.02, 1]; they need not sum to one."""
    seen = cluster_values(firsts, start)
    normal = (seen.conj().T @ (firsts.weights[:, None] * seen)).real
    normal += 1e-9 * normal.trace() * np.eye(len(normal))
    right = (seen.conj().T @ (firsts.weights * firsts.values)).real
    return np.clip(np.linalg.solve(normal, right), LEAST_START_SHARE, 1.0)


def find_peak(
    waves: CategoryWaves,
    values: NDArray[np.complex128],
    width: float,
    words: PublicWords,
    others: NDArray[np.float64],
) -> Peak:
    """Return the place and categories where the waves agree most for a cluster of a width.

    Parameters
    ----------
    waves : CategoryWaves
    values : ndarray of shape (F,), complex128
        Residual of the values; only those of the first harmonics are read.
    width : float
    words : PublicWords
        Source of candidates.
    others : ndarray of shape (C, d)
        Further candidate places: those of other clusters, because two clusters can have one place.
    """
    firsts = waves.firsts
    signal = firsts.weights * values[: waves.n_first]
    squared = (firsts.omegas**2).sum(axis=1)
    usual = USUAL ** np.count_nonzero(firsts.characters, axis=1)
    codes = _codes(waves.categories, words)
    steps = firsts.characters / np.array(waves.categories)
    turns = np.exp(-2j * pi * (steps @ codes.T)).astype(np.complex64)  # (m, n_codes); candidates need few digits

    def seen(at_width: float) -> tuple[NDArray[np.bool_], NDArray[np.complex128]]:
        weights = np.exp(-squared * at_width**2 / 2) * usual
        return weights > FAINT_WAVE * weights.max(), signal * weights

    def best(places: NDArray[np.float64], at_width: float, n_kept: int) -> list[Peak]:
        _, weighted = seen(at_width)
        angles = (places @ firsts.omegas.T).astype(np.float32)
        seen_at = np.exp(-1j * angles) * weighted.astype(np.complex64)
        scores = seen_at.real @ turns.real - seen_at.imag @ turns.imag
        at = scores.argmax(axis=1)
        kept = np.argsort(-scores[np.arange(len(places)), at], kind="stable")[:n_kept]
        return [Peak(places[place], codes[at[place]]) for place in kept]

    def ascended(peaks: list[Peak], at_width: float, stride: float) -> NDArray[np.float64]:
        clear, weighted = seen(at_width)
        return np.array([_ascend(peak, firsts.omegas[clear], weighted[clear], steps[clear], stride) for peak in peaks])

    scale = sqrt(waves.n_features / 2)
    places = np.vstack([words.uniform(PLACES, waves.n_features), np.clip(others, 0.0, 1.0)])
    places = ascended(best(places, 1.5 * width, CLIMBERS), 2 * width, COARSE_STRIDE * scale)
    places = ascended(best(places, 1.5 * width, FINE_CLIMBERS), width, FINE_STRIDE * scale)
    return best(places, width, 1)[0]


def _ascend(
    peak: Peak,
    omegas: NDArray[np.float64],
    weighted: NDArray[np.complex128],
    steps: NDArray[np.float64],
    stride: float,
) -> NDArray[np.float64]:
    """Return the place after steps uphill, with the categories kept: (d,)."""
    place = peak.place[None].copy()
    signal = weighted * np.exp(-2j * pi * (steps @ peak.codes))
    ascend(np.ascontiguousarray(omegas), signal, place, CLIMB_STEPS, stride, STRIDE_DECAY)
    return np.asarray(place[0])


def _codes(categories: tuple[int, ...], words: PublicWords) -> NDArray[np.int64]:
    """Return tuples of categories: all of them, or random ones if there are many: (n, J)."""
    if prod(categories) <= CODES:
        return np.array(list(product(*map(range, categories))), dtype=np.int64)
    return np.asarray(words.uniform(CODES, len(categories)) * np.array(categories), dtype=np.int64)
