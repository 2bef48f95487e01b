"""Comparators of mnFCM in Zhang et al. 2025, and an estimator that models the noise.

The paper names NoPriv (fuzzy c-means on exact records), PrivKM ("the private version of
k-means", its reference 14), PrivDis ("protects the distances between records and centroids in
FCM", 15) and PrivPro ("the strengthened version of FCM under ordinary privacy", 16), and states
no more of them; the works it cites are of the central model. They are rebuilt under local
privacy, at one total epsilon a device, and what was left open is closed so:

- `fcm`, `k_means`: on the points they are given. On exact records they are not private.
- `priv_km`: every device sends its vector once, with Laplace noise of K/epsilon a feature, by
  the very mechanism of `noisy_fcm`; k-means runs on the reports.
- `priv_dis`: half of epsilon goes to the vector, sent once. The other half goes to distances:
  in each of T rounds the centres are broadcast and a device sends its C squared distances,
  each clipped to [0, K], with Laplace noise of C K over its part of the budget. Memberships
  come of these (below one hundredth of K they count as that), centres of the vectors sent.
- `priv_pro`: fuzzy c-means on the vectors sent at the full epsilon, started as k-means++ starts.
- `noise_em`: a mixture of round clusters of one spread seen through the known noise, fitted by
  expectation maximisation to the vectors sent at the full epsilon; the best of several starts.

Centres are clipped to the box. Starts are drawn uniformly in it, but for k-means++.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmarks.quality.reference.ldp_kmeans import nearest
from clustering.centroids.fuzzy_cmeans import Rule, fuzzy_c_means
from clustering.centroids.noisy_mixture_em import NoisyMixture, fit_mixture
from clustering.random import SeededEntropy
from sfumato.privacy.accounting import parse_epsilon
from sfumato.privacy.entropy import WORD_SPAN, Entropy
from sfumato.records.encodings import lattice_places
from sfumato.specs import DiscreteLaplaceMechanism

STEPS = 1000  # steps of the lattice
STARTS = 5
TOLERANCE = 1e-3  # γ of the paper, of a centre's move


@dataclass(frozen=True, slots=True)
class Vectors:
    """Noisy vectors of n devices."""

    sample: NDArray[np.int32]  # (n, d), lattice units
    mechanism: DiscreteLaplaceMechanism

    @property
    def points(self) -> NDArray[np.float64]:
        """Return the vectors in the units of the points."""
        return self.sample / self.mechanism.steps


def send_vectors(points: ArrayLike, epsilon: float, entropy: Entropy) -> Vectors:
    """Return the noisy vectors that devices send for these points of [0, 1]^d, at this epsilon each."""
    held = np.asarray(points, dtype=np.float64)
    mechanism = DiscreteLaplaceMechanism.design(held.shape[1], STEPS, parse_epsilon(epsilon))
    values = mechanism.perturb_many(lattice_places(held, STEPS), entropy)
    return Vectors(mechanism.vectors_of(values), mechanism)


def fcm(points: ArrayLike, clusters: int, seed: int) -> NDArray[np.float64]:
    """Run fuzzy c-means (Euclidean) from random centres: float64 of shape (clusters, d)."""
    array = np.asarray(points, dtype=np.float64)
    start = _uniform(clusters, array.shape[1], SeededEntropy(seed))
    found = fuzzy_c_means(array, start, Rule("euclidean"), max_iterations=300, tolerance=TOLERANCE)
    return found.centres


def k_means(points: ArrayLike, clusters: int, seed: int, iterations: int = 300) -> NDArray[np.float64]:
    """Run Lloyd's k-means from five k-means++ starts and return the best: float64 of shape (clusters, d)."""
    array = np.asarray(points, dtype=np.float64)
    entropy = SeededEntropy(seed)
    fits = [_lloyd(array, _plus_plus(array, clusters, entropy), iterations) for _ in range(STARTS)]
    return min(fits, key=lambda centres: _inertia(array, centres))


def priv_km(points: ArrayLike, clusters: int, epsilon: float, seed: int) -> NDArray[np.float64]:
    """Run k-means on noisy reports."""
    sent = send_vectors(points, epsilon, SeededEntropy(seed))
    return np.clip(k_means(sent.points, clusters, seed), 0.0, 1.0)


def priv_pro(points: ArrayLike, clusters: int, epsilon: float, seed: int) -> NDArray[np.float64]:
    """Run fuzzy c-means on noisy reports, from k-means++ centres."""
    entropy = SeededEntropy(seed)
    sent = send_vectors(points, epsilon, entropy).points
    start = _plus_plus(sent, clusters, entropy)
    found = fuzzy_c_means(sent, start, Rule("euclidean"), max_iterations=300, tolerance=TOLERANCE)
    return np.clip(found.centres, 0.0, 1.0)


def priv_dis(points: ArrayLike, clusters: int, epsilon: float, seed: int, rounds: int = 5) -> NDArray[np.float64]:
    """Run fuzzy c-means with memberships from noisy distances, over rounds of broadcast centres.

    The distances' noise is in floating point, which a device must not use; it is a comparator.
    """
    held = np.asarray(points, dtype=np.float64)
    d = held.shape[1]
    entropy = SeededEntropy(seed)
    sent = send_vectors(held, epsilon / 2, entropy).points
    centres = _uniform(clusters, d, entropy)
    scale = clusters * d * rounds / (epsilon / 2)
    for _ in range(rounds):
        distances = np.clip(((held[:, None] - centres) ** 2).sum(axis=2), 0.0, d)
        reported = np.maximum(distances + _laplace(distances.shape, scale, entropy), 0.01 * d)
        closeness = 1 / reported
        pulls = (closeness / closeness.sum(axis=1, keepdims=True)) ** 2
        centres = np.clip(pulls.T @ sent / pulls.sum(axis=0)[:, None], 0.0, 1.0)
    return centres


def noise_em(points: ArrayLike, clusters: int, epsilon: float, seed: int, iterations: int = 150) -> NoisyMixture:
    """Fit a mixture with the known noise, from the best of several short starts on 20,000 reports."""
    entropy = SeededEntropy(seed)
    sent = send_vectors(points, epsilon, entropy)
    some, d = sent.sample[:20_000], sent.sample.shape[1]
    starts = [
        fit_mixture(some, sent.mechanism, _uniform(clusters, d, entropy), iterations=iterations // 3, move_centres=True)
        for _ in range(STARTS)
    ]
    best = max(starts, key=lambda each: each.log_likelihood)
    return fit_mixture(sent.sample, sent.mechanism, best.centres, iterations=iterations, move_centres=True)


def _uniform(clusters: int, d: int, entropy: Entropy) -> NDArray[np.float64]:
    return (entropy.words(clusters * d) / WORD_SPAN).reshape(clusters, d)


def _laplace(shape: tuple[int, ...], scale: float, entropy: Entropy) -> NDArray[np.float64]:
    """Draw continuous Laplace noise by the inverse of its distribution function."""
    uniform = (entropy.words(int(np.prod(shape))) / WORD_SPAN).reshape(shape) - 0.5
    drawn: NDArray[np.float64] = -scale * np.sign(uniform) * np.log(np.maximum(1 - 2 * np.abs(uniform), 1e-300))
    return drawn


def _plus_plus(points: NDArray[np.float64], clusters: int, entropy: Entropy) -> NDArray[np.float64]:
    """Choose initial centres by k-means++: each with probability proportional to its squared distance."""
    squares = np.full(len(points), 1.0)
    chosen: list[NDArray[np.float64]] = []
    for word in entropy.words(clusters):
        reach = np.cumsum(squares)
        centre = points[min(int(np.searchsorted(reach, word / WORD_SPAN * reach[-1])), len(points) - 1)]
        to_it = ((points - centre) ** 2).sum(axis=1)
        squares = np.minimum(squares, to_it) if chosen else to_it
        chosen.append(centre)
    return np.stack(chosen)


def _lloyd(points: NDArray[np.float64], centres: NDArray[np.float64], iterations: int) -> NDArray[np.float64]:
    for _ in range(iterations):
        labels = nearest(points, centres)
        sizes = np.bincount(labels, minlength=len(centres))
        sums = [np.bincount(labels, weights=column, minlength=len(centres)) for column in points.T]
        moved = np.where(sizes[:, None] > 0, np.stack(sums, axis=1) / np.maximum(sizes, 1)[:, None], centres)
        if np.abs(moved - centres).max() <= TOLERANCE:
            return moved
        centres = moved
    return centres


def _inertia(points: NDArray[np.float64], centres: NDArray[np.float64]) -> float:
    return float(((points - centres[nearest(points, centres)]) ** 2).sum())
