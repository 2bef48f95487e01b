"""kCluster: k-means in Hamming space over perturbed bit vectors, without interaction.

Comparator [22] of Zhang et al. 2023, which states: non-interactive; a bit vector projects
Euclidean distance into Hamming space and is perturbed on the device; results depend on how
bit vectors are made. It is Sun, Zhao and Ye 2019, "Distributed clustering in the anonymized
space with local differential privacy" (arXiv 1906.11441), rebuilt from that description.
What was left open is closed so:

- a feature has `anchors` public random anchors, and bit j states whether the value lies within
  `window` of anchor j. The number of bits two values share falls with their distance up to
  two windows, which is what carries distance into Hamming space. Values, anchors and window
  are integers of a lattice of 1024, so that a vector has no rounding to depend on;
- two people's vectors differ in at most D bits, D computed from the anchors by trying every
  pair of lattice values; each bit goes through binary randomised response at epsilon / D, so
  that the whole report is epsilon-LDP, whichever two values are compared;
- the server runs Lloyd's k-means (k-means++ start, 15 steps) on the vectors it received;
- labels of noisy reports would be near chance, so centres are published and a device labels
  itself by its own vector's mean image, q + (p - q) bit: kinder than the paper's use.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmarks.quality.reference.ldp_kmeans import Response, nearest, response
from clustering.random import SeededEntropy
from sfumato.privacy.accounting import EPSILON_MIN_NANO, parse_epsilon
from sfumato.privacy.entropy import WORD_SPAN, Entropy, below_many

LATTICE = 1024
LLOYD_STEPS = 15


@dataclass(frozen=True)
class KCluster:
    """Parameters of `k_cluster`.

    Parameters
    ----------
    epsilon : float
        What one device spends, in its one report.
    clusters : int
        K, at least 1.
    anchors : int
        Bits a feature.
    window : float
        Half the width of a bit's interval, as a share of the range, in (0, 1).
    """

    epsilon: float
    clusters: int
    anchors: int = 8
    window: float = 0.3


@dataclass(frozen=True)
class BitVectors:
    """Public design: the bits of a point and their randomised response.

    Attributes
    ----------
    table : ndarray of shape (n_features, LATTICE, anchors), bool
        The bits of every lattice value of a feature.
    bit : Response
        Binary, for each bit alone.
    """

    table: NDArray[np.bool_]
    bit: Response

    def of(self, points: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return the vectors of points in [0, 1]: bool of shape (n, n_features * anchors)."""
        lattice = np.minimum((points * LATTICE).astype(np.int64), LATTICE - 1)
        return np.concatenate([self.table[j][lattice[:, j]] for j in range(points.shape[1])], axis=1)


@dataclass(frozen=True)
class BitVectorModel:
    """Model with centres in the space of received vectors."""

    vectors: BitVectors
    centres: NDArray[np.float64]  # shape (K, bits)

    @property
    def n_clusters(self) -> int:
        return len(self.centres)

    def assign(self, points: ArrayLike) -> NDArray[np.int64]:
        """Label points of [0, 1]^d as their devices do: int64 of shape (n,)."""
        points = np.asarray(points, dtype=np.float64)
        bit = self.vectors.bit
        labels = np.empty(len(points), dtype=np.int64)
        for begin in range(0, len(points), 65536):
            part = slice(begin, begin + 65536)
            image = bit.q + (bit.p - bit.q) * self.vectors.of(points[part]).astype(np.float64)
            labels[part] = nearest(image, self.centres)
        return labels


def bit_vectors(params: KCluster, n_features: int, entropy: Entropy, *, perturb: bool = True) -> BitVectors:
    """Draw the public anchors and divide epsilon by the maximal distance of two vectors.

    Raises
    ------
    ValueError
        An epsilon too small to be split.
    """
    anchors = below_many(entropy, LATTICE, n_features * params.anchors).reshape(n_features, 1, params.anchors)
    width = round(params.window * LATTICE)
    table = np.abs(np.arange(LATTICE)[:, None] - anchors) <= width
    most = sum(_diameter(of_feature) for of_feature in table)
    each = parse_epsilon(params.epsilon) // max(1, most)
    if each < EPSILON_MIN_NANO:
        raise ValueError("this epsilon is too small to be split over the bits")
    return BitVectors(table, response(2, each, perturb))


def _diameter(of_feature: NDArray[np.bool_]) -> int:
    """Return the largest Hamming distance between two lattice values of a feature, from all pairs."""
    distinct = np.unique(of_feature, axis=0).astype(np.int64)
    ones = distinct.sum(axis=1)
    return int((ones[:, None] + ones[None, :] - 2 * distinct @ distinct.T).max())


def k_cluster(params: KCluster, points: ArrayLike, *, seed: int, perturb: bool = True) -> BitVectorModel:
    """Run kCluster over points, each on a device of its own.

    Parameters
    ----------
    params : KCluster
    points : array-like of shape (n, d), float64
        In [0, 1], n at least 1.
    seed : int
        Of the anchors, the devices' coins and the server's start.
    perturb : bool
        False sends vectors as they are: not private.

    Raises
    ------
    ValueError
        An epsilon too small to be split, or no points.
    """
    points = np.asarray(points, dtype=np.float64)
    if len(points) == 0:
        raise ValueError("k_cluster needs points")
    entropy = SeededEntropy(seed)
    vectors = bit_vectors(params, points.shape[1], entropy, perturb=perturb)
    received = np.empty((len(points), vectors.table.shape[0] * params.anchors), dtype=np.float32)
    for begin in range(0, len(points), 65536):
        part = slice(begin, begin + 65536)
        received[part] = vectors.bit.send(vectors.of(points[part]).astype(np.int64), entropy)
    return BitVectorModel(vectors, _lloyd(received, params.clusters, entropy))


def _lloyd(received: NDArray[np.float32], clusters: int, entropy: Entropy) -> NDArray[np.float64]:
    """k-means of the received vectors: centres of shape (K, bits)."""
    centres = _plus_plus(received, clusters, entropy)
    previous = np.full(len(received), -1, dtype=np.int64)
    for _ in range(LLOYD_STEPS):
        labels = np.argmin((centres**2).sum(axis=1) - 2 * received @ centres.T, axis=1)
        if np.array_equal(labels, previous):
            break
        previous = labels
        sizes = np.bincount(labels, minlength=clusters)
        members = (labels == np.arange(clusters)[:, None]).astype(np.float32)
        held = sizes > 0
        centres[held] = (members @ received)[held] / sizes[held, None]
    return centres.astype(np.float64)


def _plus_plus(received: NDArray[np.float32], clusters: int, entropy: Entropy) -> NDArray[np.float32]:
    """Choose initial centres by k-means++: each next vector with probability proportional to its squared distance."""
    n = len(received)
    chosen = [int(below_many(entropy, n, 1)[0])]
    squares = (received**2).sum(axis=1)
    distances = np.full(n, np.inf, dtype=np.float64)
    for _ in range(clusters - 1):
        last = received[chosen[-1]]
        distances = np.minimum(distances, np.maximum(squares - 2 * received @ last + last @ last, 0.0))
        cumulated = np.cumsum(distances)
        aim = float(entropy.words(1)[0]) / WORD_SPAN * cumulated[-1]
        chosen.append(min(int(np.searchsorted(cumulated, aim, side="right")), n - 1))
    return received[chosen].copy()
