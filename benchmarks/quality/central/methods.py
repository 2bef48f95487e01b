"""Methods of the central benchmark: ours, sound forms of the papers' methods, methods without privacy, and a peer.

The peer, diffprivlib, needs scikit-learn 1.6, so it runs in an interpreter of its own: `--peer PYTHON`, made by
`python -m venv DIR && DIR/bin/pip install diffprivlib==0.6.6 scikit-learn==1.6.*`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from benchmarks.peers.peer import Peer, PeerFailed
from benchmarks.quality.data import Points
from benchmarks.quality.runs import Kind, Method, by_name
from benchmarks.quality.scores import best_k_means
from clustering.central.run import FUNCTIONS
from clustering.simulate import simulate_central
from sfumato.specs.central import (
    CentralAlgorithm,
    DpBisectingKmeans,
    DpDensityPeaks,
    DpKmeans,
    DpQuadtreeKmeans,
    DpUniformGridKmeans,
    PrivateKmeans,
)

DELTA = 1e-6  # δ of the one method that takes one
K_MEANS_POINTS = 20_000  # points that starts of k-means are tried on
OURS, GRID, OPEN, ONE_MEAN, PEER = "private_kmeans", "dp_uniform_grid_kmeans", "k-means", "one mean", "diffprivlib"
WITH_DELTA = "private_kmeans with δ"  # a weaker guarantee, so it is shown beside the others and not judged

# A method runs on (points, epsilon, clusters, seed) and returns centroids in [0, 1]^d.


class Diffprivlib:
    """k-means of diffprivlib in an interpreter of its own."""

    python: Path | None = None

    def run(self, points: Points, epsilon: float, clusters: int, seed: int) -> Points:
        """Return centroids. Raise ValueError if the interpreter is unknown or the peer fails."""
        if self.python is None:
            raise ValueError(f"{PEER} needs an interpreter that has it: set --peer")
        try:
            with Peer(python=self.python) as process:
                process.send("points", points)
                called = process.call("private_k_means", "points", clusters=clusters, epsilon=epsilon, seed=seed)
        except PeerFailed as failure:
            raise ValueError(f"{PEER} failed: {str(failure).strip().splitlines()[-1]}") from failure
        return np.asarray(np.clip(called.value, 0.0, 1.0), dtype=np.float64)


def _ours(name: str, kind: Kind, algorithm: type[CentralAlgorithm], **settings: object) -> Method:
    """Return a method that simulates a central algorithm of the product."""

    def run(points: Points, epsilon: float, clusters: int, seed: int) -> Points:
        params: Callable[..., CentralAlgorithm] = algorithm
        model = simulate_central(params(epsilon, clusters, **settings), points, seed=seed)
        assert model.centroids is not None
        return model.centroids

    return Method(name, kind, FUNCTIONS[algorithm].__module__, run)


def _open(name: str, find: Callable[[Points, int, int], Points]) -> Method:
    """Return a method without privacy."""

    def run(points: Points, _epsilon: None, clusters: int, seed: int) -> Points:
        return find(points, clusters, seed)

    return Method(name, "open", __name__, run, takes_epsilon=False, seeds=1)


def k_means(points: Points, clusters: int, seed: int) -> Points:
    """Return centroids of k-means on all points, from the best of many greedy starts on 20,000 points."""
    few = np.random.default_rng(seed).permutation(len(points))[:K_MEANS_POINTS]
    return best_k_means(points, points[few], clusters, 20 if clusters < 40 else 6, seed)


def _one_mean(points: Points, _clusters: int, _seed: int) -> Points:
    return np.asarray(points.mean(axis=0)[None], dtype=np.float64)


peer = Diffprivlib()
METHODS: Mapping[str, Method] = by_name(
    _ours(OURS, "ours", PrivateKmeans),
    _ours(WITH_DELTA, "ours", PrivateKmeans, delta=DELTA),
    _ours(GRID, "paper", DpUniformGridKmeans),
    _ours("dp_quadtree_kmeans", "paper", DpQuadtreeKmeans),
    _ours("dp_kmeans", "paper", DpKmeans),
    _ours("dp_kmeans++", "paper", DpKmeans, init="plusplus"),
    _ours("dp_kmeans subsets", "paper", DpKmeans, init="subsets"),
    _ours("dp_bisecting_kmeans", "paper", DpBisectingKmeans),
    _ours("dp_bisecting total", "paper", DpBisectingKmeans, split="total_sse"),
    _ours("dp_bisecting synopsis", "paper", DpBisectingKmeans, synopsis=True),
    _ours("dp_density_peaks", "paper", DpDensityPeaks),
    _open(OPEN, k_means),
    _open(ONE_MEAN, _one_mean),
    Method(PEER, "comparator", __name__, peer.run),
)
PAPERS = tuple(name for name, method in METHODS.items() if method.kind == "paper")
