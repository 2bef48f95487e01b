"""LDPKmeans: k-means by rounds of broadcast centroids, with a perturbed value and perturbed assignments.

Comparator [21] of paper 000, which says of it: partition-based; initial centres are shared
and points are assigned on the device; perturbed assignments go to the server, which updates
the centres; values are protected by RAPPOR over a bit vector whose bits have budgets of
their own. It is Xia, Hua, Tong and Zhong 2020, "Distributed K-Means clustering guaranteeing
local differential privacy", rebuilt from that description. What was left open is closed so:

- half of epsilon goes to the value, sent once: each feature as a fixed-point number of
  `bits` bits, each bit by randomised response (RAPPOR's permanent response on one bit). The
  features share it evenly, the bits by 4^(-b/3), which minimises the variance
  sum 4^-b / epsilon_b^2 of the number they make as epsilon goes to 0;
- the other half goes to the assignments: one report a round over the K centroids, by k-ary
  randomised response at epsilon/2 over the number of rounds;
- both are unbiased once decoded, so a centroid is (S_k - q S) / (N_k - q N), S_k the sum of
  the decoded values and N_k the number of the devices that reported k, clipped to the box.
  A cluster of under a tenth of an even share is begun anew beside the largest one;
- initial centroids are uniform in the box and public: no record is looked at.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clustering.reference.response import Response, response
from clustering.seeded_entropy import SeededEntropy
from sfumato.accounting import EPSILON_MIN_NANO, parse_epsilon
from sfumato.cluster_model import ClusterModel
from sfumato.entropy import WORD_SPAN, Entropy
from sfumato.specs import Feature

LEAST_SHARE = 0.1  # of an even share: a cluster estimated below is begun anew
ASIDE = 0.1  # width of the box about the largest cluster's centroid where it begins


@dataclass(frozen=True)
class LdpKMeans:
    """Parameters of `ldp_kmeans`.

    Parameters
    ----------
    epsilon : float
        What one device spends over all rounds together.
    clusters : int
        K, at least 2.
    rounds : int
        Rounds of broadcast centroids.
    bits : int
        Of a value's fixed-point number.
    """

    epsilon: float
    clusters: int
    rounds: int = 5
    bits: int = 5


@dataclass(frozen=True)
class Reports:
    """What a device sends: every feature's bits once, an assignment every round."""

    bits: tuple[Response, ...]  # of one feature, the most significant first
    assignment: Response


def reports(params: LdpKMeans, n_features: int, *, perturb: bool = True) -> Reports:
    """The responses of a device; their costs, bits times features and assignment times rounds, add up.

    Raises
    ------
    ValueError
        An epsilon too small to be split, or fewer than two clusters.
    """
    if params.clusters < 2:
        raise ValueError("ldp_kmeans needs two clusters or more")
    half = parse_epsilon(params.epsilon) // 2
    weights = 4.0 ** (-np.arange(params.bits) / 3)
    budgets = [int(half // n_features * weight) for weight in weights / weights.sum()]
    each = half // params.rounds
    if min(*budgets, each) < EPSILON_MIN_NANO:
        raise ValueError("this epsilon is too small to be split over the bits and rounds")
    return Reports(tuple(response(2, budget, perturb) for budget in budgets), response(params.clusters, each, perturb))


def ldp_kmeans(params: LdpKMeans, points: ArrayLike, *, seed: int, perturb: bool = True) -> ClusterModel:
    """Run LDPKmeans over points as if each were one person's device.

    Parameters
    ----------
    params : LdpKMeans
    points : array-like of shape (n, d), float64
        In [0, 1], n at least 1.
    seed : int
        Of the initial centroids and of the devices' coins.
    perturb : bool
        False sends values and assignments as they are: Lloyd's k-means from the same
        centroids, on values rounded to `bits` bits. Not private.

    Returns
    -------
    ClusterModel
        Of type "centroids".

    Raises
    ------
    ValueError
        See `reports`; or no points.
    """
    points = np.asarray(points, dtype=np.float64)
    n, d = points.shape
    if n == 0:
        raise ValueError("ldp_kmeans needs points")
    entropy = SeededEntropy(seed)
    centres = (entropy.words(params.clusters * d) / WORD_SPAN).reshape(params.clusters, d)
    sent = reports(params, d, perturb=perturb)
    values = _values(points, sent.bits, entropy)
    reading = sent.assignment
    total = values.sum(axis=0)
    shares = np.full(params.clusters, 1 / params.clusters)
    for remaining in reversed(range(params.rounds)):
        named = reading.send(nearest(points, centres), entropy)
        shares = (np.bincount(named, minlength=params.clusters) / n - reading.q) / (reading.p - reading.q)
        sums = np.stack([np.bincount(named, weights=values[:, j], minlength=params.clusters) for j in range(d)], axis=1)
        sums = (sums - reading.q * total) / (reading.p - reading.q)
        big = shares > LEAST_SHARE / params.clusters
        centres[big] = sums[big] / (n * shares[big, None])
        if remaining and not big.all():
            aside = ASIDE * (entropy.words((~big).sum() * d) / WORD_SPAN - 0.5)
            centres[~big] = centres[shares.argmax()] + aside.reshape(-1, d)
        centres = centres.clip(0.0, 1.0)
    sizes = np.maximum(shares, 0.0)
    q = reading.q
    errors = np.full(params.clusters, np.sqrt(q * (1 - q) / n) / (reading.p - q))
    features = tuple(Feature(f"x{i + 1}", 0.0, 1.0) for i in range(d))
    return ClusterModel("centroids", features, sizes / sizes.sum(), errors, centroids=centres)


def nearest(points: NDArray[np.float64], centres: NDArray[np.float64]) -> NDArray[np.int64]:
    """The nearest centre of each point (Euclid): int64 of shape (n,)."""
    scores = (centres**2).sum(axis=1) - 2 * points @ centres.T  # less the point's own square
    return np.asarray(scores.argmin(axis=1), dtype=np.int64)


def _values(points: NDArray[np.float64], bits: tuple[Response, ...], entropy: Entropy) -> NDArray[np.float64]:
    """Decoded values, unbiased but for the last bit's half: float64 of shape (n, d)."""
    span = 1 << len(bits)
    whole = np.minimum((points * span).astype(np.int64), span - 1)
    values = np.full(points.shape, 0.5 / span)
    for place, bit in enumerate(bits):
        named = bit.send(whole >> (len(bits) - 1 - place) & 1, entropy)
        values += (named - bit.q) / (bit.p - bit.q) * 0.5 ** (place + 1)
    return values
