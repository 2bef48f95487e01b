"""Methods of the local benchmark: one line each in `METHODS`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from benchmarks.quality.data import Labels, Points, Sample
from benchmarks.quality.local import ceilings
from benchmarks.quality.reference.clique import Clique, clique
from benchmarks.quality.reference.k_cluster import KCluster, k_cluster
from benchmarks.quality.reference.ldp_kmeans import LdpKMeans, ldp_kmeans
from benchmarks.quality.runs import Kind, Method, by_name
from clustering.registry import PLANS, start
from clustering.simulate import simulate
from sfumato.specs import LOCAL_ALGORITHMS, Algorithm

ALL, TO_8, TO_3 = (1, 64), (1, 8), (1, 3)  # smallest and largest number of features


class Model(Protocol):
    """The result of a run, which labels points."""

    @property
    def n_clusters(self) -> int:
        """Return the number of clusters."""

    def assign(self, points: Points) -> Labels:
        """Return the cluster of each point."""


@dataclass(frozen=True, eq=False)
class Labelling:
    """The labels that a ceiling gives the points of a sample."""

    labels: Labels

    @property
    def n_clusters(self) -> int:
        """Return the number of distinct labels."""
        return len(np.unique(self.labels))

    def assign(self, _points: Points) -> Labels:
        """Return the labels."""
        return self.labels


# A method runs on (sample, epsilon, clusters or None, seed, perturb) and returns a `Model`.


def _plan(tag: str, kind: Kind = "ours", *, name: str = "", features: tuple[int, int] = ALL, **settings: Any) -> Method:
    """Return a method that simulates an algorithm of the product."""
    params: Callable[..., Algorithm] = LOCAL_ALGORITHMS[tag]

    def run(sample: Sample, epsilon: float, clusters: int | None, seed: int, perturb: bool) -> Model:
        return simulate(
            params(epsilon=epsilon, clusters=clusters, **settings), sample.points, seed=seed, perturb=perturb
        )

    module = PLANS.get(LOCAL_ALGORITHMS[tag], start).__module__
    return Method(name or tag, kind, module, run, ("given", "auto"), features)


def _exact(tag: str, *, name: str, features: tuple[int, int]) -> Method:
    """Return a ceiling that runs an algorithm without noise, with the grid that it has at this epsilon."""
    plan = _plan(tag)

    def run(sample: Sample, epsilon: float, clusters: int | None, seed: int, _perturb: bool) -> Model:
        return plan.run(sample, epsilon, clusters, seed, False)  # type: ignore[no-any-return]

    return Method(name, "open", plan.module, run, plan.k, features, needs_labels=True)


def _comparator(name: str, simulated: Callable[..., Model], params: Callable[..., Any], **limits: Any) -> Method:
    """Return a method of the AGCluster paper's comparison."""

    def run(sample: Sample, epsilon: float, clusters: int | None, seed: int, perturb: bool) -> Model:
        return simulated(params(epsilon=epsilon, clusters=clusters), sample.points, seed=seed, perturb=perturb)

    return Method(name, "comparator", simulated.__module__, run, **limits)


def _tuned(name: str, tune: ceilings.Tune, features: tuple[int, int] = ALL) -> Method:
    """Return a ceiling that is tuned on the true labels."""

    def run(sample: Sample, _epsilon: None, clusters: int, seed: int, _perturb: bool) -> Model:
        return Labelling(tune(sample.points, sample.labels, clusters, seed))

    return Method(name, "open", ceilings.__name__, run, ("tuned",), features, takes_epsilon=False, needs_labels=True)


METHODS: Mapping[str, Method] = by_name(
    _plan("shifted_grid", features=TO_3),
    _plan("uniform_grid", features=TO_8),
    _plan("adaptive_grid_iterative", features=TO_8),
    _plan("adaptive_grid_tree", features=TO_8),
    _plan("auto"),
    _plan("uniform_grid", "paper", name="UGC (paper)", features=TO_8, variant="paper"),
    _plan("adaptive_grid_iterative", "paper", name="AGC1 (paper)", features=TO_8, variant="paper"),
    _plan("adaptive_grid_tree", "paper", name="AGC2 (paper)", features=TO_8, variant="paper"),
    _comparator("CLIQUE", clique, Clique, k=("given", "auto"), features=TO_8),
    _comparator("LDPKmeans", ldp_kmeans, LdpKMeans),
    _comparator("kCluster", k_cluster, KCluster),
    _exact("shifted_grid", name="exact grid", features=TO_3),
    _tuned("k-means", ceilings.k_means),
    _tuned("DBSCAN", ceilings.dbscan),
    _tuned("HDBSCAN", ceilings.hdbscan),
    _tuned("exact CLIQUE", ceilings.exact_clique, TO_3),
)
