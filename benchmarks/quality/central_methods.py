"""The methods of the central benchmark: ours, sound forms of the papers', what is not private, and a peer.

The peer, diffprivlib, imports with scikit-learn 1.6 alone, so it runs in an interpreter of its
own: `--peer PYTHON`, made by `python -m venv DIR && DIR/bin/pip install diffprivlib==0.6.6 scikit-learn==1.6.*`.
"""

import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from clustering.central.run import simulate_central
from sfumato.specs.central import (
    CentralAlgorithm,
    DpBisectingKmeans,
    DpDensityPeaks,
    DpKmeans,
    DpQuadtreeKmeans,
    DpUniformGridKmeans,
    GatedGridKmeans,
)

Points = NDArray[np.float64]

DELTA = 1e-6  # of the one that takes one
K_MEANS_POINTS = 20_000  # that starts are tried on
PEER_SECONDS = 300.0

# Answers with centres on stdout. The box is [0, 1]^d, which is told: left out, the peer takes the records' range.
_PEER = """
import json, sys, warnings
import numpy as np
from diffprivlib.models import KMeans
warnings.filterwarnings("ignore")
task = json.load(sys.stdin)
points = np.load(task["file"])
d = points.shape[1]
fitted = KMeans(n_clusters=task["clusters"], epsilon=task["epsilon"], bounds=(np.zeros(d), np.ones(d)),
                random_state=task["seed"]).fit(points)
json.dump(fitted.cluster_centers_.tolist(), sys.stdout)
"""


@dataclass(frozen=True)
class Method:
    """A method: `run(points, epsilon, clusters, seed)` gives centres in [0, 1]^d."""

    name: str
    module: str
    run: Callable[[Points, float, int, int], Points]
    is_private: bool = True


def _ours(name: str, module: str, params: Callable[[float, int], CentralAlgorithm]) -> Method:
    def run(points: Points, epsilon: float, clusters: int, seed: int) -> Points:
        model = simulate_central(params(epsilon, clusters), points, seed=seed)
        assert model.centroids is not None
        return model.centroids

    return Method(name, f"clustering.central.{module}", run)


def k_means(points: Points, clusters: int, seed: int) -> Points:
    """Non-private k-means that is hard to beat: the best of many greedy starts on 20,000 points, then on all."""
    few = points[np.random.default_rng(seed).permutation(len(points))[:K_MEANS_POINTS]]
    start = KMeans(clusters, n_init=20 if clusters < 40 else 6, random_state=seed).fit(few).cluster_centers_
    return np.asarray(KMeans(clusters, init=start, n_init=1).fit(points).cluster_centers_, dtype=np.float64)


def _best_open(points: Points, _: float, clusters: int, seed: int) -> Points:
    return k_means(points, clusters, seed)


def _one_mean(points: Points, _: float, __: int, ___: int) -> Points:
    return np.asarray(points.mean(axis=0)[None], dtype=np.float64)


TABLE = (
    _ours("gated_grid_kmeans", "gated_grid_kmeans", GatedGridKmeans),
    _ours("gated_grid with δ", "gated_grid_kmeans", lambda e, k: GatedGridKmeans(e, k, delta=DELTA)),
    _ours("dp_uniform_grid_kmeans", "dp_uniform_grid_kmeans", DpUniformGridKmeans),
    _ours("dp_quadtree_kmeans", "dp_quadtree_kmeans", DpQuadtreeKmeans),
    _ours("dp_kmeans", "dp_kmeans", DpKmeans),
    _ours("dp_kmeans++", "dp_kmeans", lambda e, k: DpKmeans(e, k, init="plusplus")),
    _ours("dp_kmeans subsets", "dp_kmeans", lambda e, k: DpKmeans(e, k, init="subsets")),
    _ours("dp_bisecting_kmeans", "dp_bisecting_kmeans", DpBisectingKmeans),
    _ours("dp_bisecting total", "dp_bisecting_kmeans", lambda e, k: DpBisectingKmeans(e, k, split="total_sse")),
    _ours("dp_bisecting synopsis", "dp_bisecting_kmeans", lambda e, k: DpBisectingKmeans(e, k, synopsis=True)),
    _ours("dp_density_peaks", "dp_density_peaks", DpDensityPeaks),
    Method("k-means", "benchmarks.quality.central_methods", _best_open, is_private=False),
    Method("one mean", "benchmarks.quality.central_methods", _one_mean, is_private=False),
)
METHODS: Mapping[str, Method] = {method.name: method for method in TABLE}
OURS, GRID, OPEN, PEER = "gated_grid_kmeans", "dp_uniform_grid_kmeans", "k-means", "diffprivlib"
WITH_DELTA = "gated_grid with δ"  # another guarantee: shown beside the pure ones, and not judged against them
PAPERS = tuple(name for name, method in METHODS.items() if method.is_private and name not in (OURS, WITH_DELTA))


def with_peer(python: Path | None) -> dict[str, Method]:
    """All methods; the peer too, where there is an interpreter that has it."""
    if python is None:
        return dict(METHODS)

    def run(points: Points, epsilon: float, clusters: int, seed: int) -> Points:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "points.npy"
            np.save(file, points)
            task = {"file": str(file), "epsilon": epsilon, "clusters": clusters, "seed": seed}
            done = subprocess.run(
                [str(python), "-c", _PEER],
                input=json.dumps(task),
                capture_output=True,
                text=True,
                timeout=PEER_SECONDS,
                check=False,
            )
        if done.returncode:
            raise ValueError(f"{PEER} failed: {done.stderr.strip().splitlines()[-1:]}")
        return np.clip(np.array(json.loads(done.stdout), dtype=np.float64), 0.0, 1.0)

    return {**METHODS, PEER: Method(PEER, "benchmarks.quality.central_methods", run)}
