"""LDPKmeans: k-means by rounds of broadcast centroids, with a perturbed value and perturbed assignments.

Comparator [21] of Zhang et al. 2023, which states: partition-based; initial centres are shared
and points are assigned on the device; perturbed assignments go to the server, which updates
the centres; values are protected by RAPPOR over a bit vector with a budget
for each bit. It is Xia, Hua, Tong and Zhong 2020, "Distributed K-Means clustering guaranteeing
local differential privacy", rebuilt from that description. What was left open is closed so:

- half of epsilon goes to the value, sent once: each feature as a fixed-point number of
  `bits` bits, each bit by randomised response (RAPPOR's permanent response on one bit). The
  features share it evenly, the bits by 4^(-b/3), which minimises the variance
  sum 4^-b / epsilon_b^2 of the number they make as epsilon goes to 0;
- the other half goes to the assignments: one report a round over the K centroids, by k-ary
  randomised response at epsilon/2 over the number of rounds;
- both are unbiased once decoded, so a centroid is (S_k - q S) / (N_k - q N), S_k the sum of
  the decoded values and N_k the number of the devices that reported k, clipped to the box.
  A cluster of under a tenth of an even share begins again beside the largest one;
- initial centroids are uniform in the box and public: no record is read.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clustering.random import SeededEntropy
from sfumato.mechanisms import design
from sfumato.mechanisms.base import read_numbers
from sfumato.model.cluster_model import ClusterModel
from sfumato.privacy.accounting import DRAW_SPAN, EPSILON_MIN_NANO, parse_epsilon
from sfumato.privacy.entropy import WORD_SPAN, Entropy
from sfumato.specs import Feature, GrrMechanism

LEAST_SHARE = 0.1  # share of an even split; a smaller cluster gets a new centre
_CHUNK_SYMBOLS = 1 << 21  # perturbed at once: 16 MB of words
ASIDE = 0.1  # width of the box about the largest cluster's centroid where it begins


@dataclass(frozen=True)
class Response:
    """Randomised response over k symbols, with the two probabilities that make its estimate unbiased.

    Attributes
    ----------
    mechanism : GrrMechanism
        As the SDK designs it; its realised epsilon is `Mechanism.epsilon_nano`.
    p, q : float
        The chance that the own symbol is sent, and any one other.
    """

    mechanism: GrrMechanism
    p: float
    q: float

    def send(self, symbols: NDArray[np.int64], entropy: Entropy) -> NDArray[np.int64]:
        """Return the symbols that n devices send for their own: int64 of the same shape."""
        flat = symbols.ravel()
        sent = np.empty(flat.size, dtype=np.int64)
        for begin in range(0, flat.size, _CHUNK_SYMBOLS):
            part = slice(begin, begin + _CHUNK_SYMBOLS)
            sent[part] = read_numbers(self.mechanism.perturb_many(flat[part], entropy))
        return sent.reshape(symbols.shape)


def response(n_symbols: int, epsilon_nano: int, perturb: bool) -> Response:
    """Design a randomised response that costs at most `epsilon_nano`, or one that always keeps the symbol.

    Raises
    ------
    InvalidSpec
        Fewer than two symbols, or more than a device can send.
    """
    mechanism = design("grr", n_symbols, epsilon_nano) if perturb else GrrMechanism(n_symbols, DRAW_SPAN)
    assert isinstance(mechanism, GrrMechanism)  # the type checker needs it
    p, q = mechanism.support()
    return Response(mechanism, float(p), float(q))


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
    """Reports of a device: the bits of every feature once, and an assignment in every round."""

    bits: tuple[Response, ...]  # bits of a feature, most significant first
    assignment: Response


def reports(params: LdpKMeans, n_features: int, *, perturb: bool = True) -> Reports:
    """Design the responses of a device. The costs of bits times features and of assignments times rounds add up.

    Raises
    ------
    ValueError
        An epsilon too small to be split, or fewer than two clusters.
    """
    if params.clusters < 2:
        raise ValueError("clusters must be at least 2")
    half = parse_epsilon(params.epsilon) // 2
    weights = 4.0 ** (-np.arange(params.bits) / 3)
    budgets = [int(half // n_features * weight) for weight in weights / weights.sum()]
    each = half // params.rounds
    if min(*budgets, each) < EPSILON_MIN_NANO:
        raise ValueError("this epsilon is too small to be split over the bits and rounds")
    return Reports(tuple(response(2, budget, perturb) for budget in budgets), response(params.clusters, each, perturb))


def ldp_kmeans(params: LdpKMeans, points: ArrayLike, *, seed: int, perturb: bool = True) -> ClusterModel:
    """Run LDPKmeans over points, each on a device of its own.

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
    """Return the nearest centre of each point (Euclidean): int64 of shape (n,)."""
    scores = (centres**2).sum(axis=1) - 2 * points @ centres.T  # without the squared norm of the point
    return np.asarray(scores.argmin(axis=1), dtype=np.int64)


def _values(points: NDArray[np.float64], bits: tuple[Response, ...], entropy: Entropy) -> NDArray[np.float64]:
    """Decode values, unbiased except for half of the last bit: float64 of shape (n, d)."""
    span = 1 << len(bits)
    whole = np.minimum((points * span).astype(np.int64), span - 1)
    values = np.full(points.shape, 0.5 / span)
    for place, bit in enumerate(bits):
        named = bit.send(whole >> (len(bits) - 1 - place) & 1, entropy)
        values += (named - bit.q) / (bit.p - bit.q) * 0.5 ** (place + 1)
    return values
