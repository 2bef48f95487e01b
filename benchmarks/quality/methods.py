"""Which methods are measured: one line each in `TABLE`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.quality import ceilings
from benchmarks.quality.rows import Way
from clustering.reference.clique import Clique, clique
from clustering.reference.k_cluster import KCluster, k_cluster
from clustering.reference.ldp_kmeans import LdpKMeans, ldp_kmeans
from clustering.simulate import simulate
from sfumato.specs import LOCAL_ALGORITHMS, Algorithm

Kind = Literal["ours", "paper", "comparator", "ceiling"]
ANY, TO_8, TO_3 = (1, 64), (1, 8), (1, 3)  # numbers of features

Points = NDArray[np.float64]
Labels = NDArray[np.int64]


class Model(Protocol):
    """What a run brings: something that labels points."""

    @property
    def n_clusters(self) -> int: ...

    def assign(self, points: Points) -> Labels: ...


@dataclass(frozen=True)
class Method:
    """One method.

    Attributes
    ----------
    name : str
        In tables and on the command line.
    kind : {'ours', 'paper', 'comparator', 'ceiling'}
        Ceilings are not private. `paper` is ours as a paper prints it.
    module : str
        Where it begins: its rows are made anew when this module, or one of the room it
        imports, has changed.
    run : callable
        (points, epsilon, clusters or None, seed, perturb) to a model.
    ways : tuple of {'given', 'auto'}
        How it may be told K.
    features : tuple of int
        The least and the most features of the sets it is measured on.
    """

    name: str
    kind: Kind
    module: str
    run: Callable[[Points, float, int | None, int, bool], Model]
    ways: tuple[Way, ...] = ("given", "auto")
    features: tuple[int, int] = ANY


@dataclass(frozen=True)
class TunedMethod:
    """A ceiling that is tuned on the truth, over a small grid; it knows no epsilon.

    Attributes
    ----------
    tune : callable
        (points, truth, clusters, seed) to the labels that score best.
    """

    name: str
    module: str
    tune: Callable[[Points, Labels, int, int], Labels]
    kind: Kind = "ceiling"
    ways: tuple[Way, ...] = ("tuned",)
    features: tuple[int, int] = ANY


AnyMethod = Method | TunedMethod


def _plan(
    tag: str, kind: Kind = "ours", *, name: str = "", module: str = "", features: tuple[int, int] = ANY, **settings: Any
) -> Method:
    """A plan of the product, through `simulate`."""

    def run(points: Points, epsilon: float, clusters: int | None, seed: int, perturb: bool) -> Model:
        params: Callable[..., Algorithm] = LOCAL_ALGORITHMS[tag]
        made = params(epsilon=epsilon, clusters=clusters, **settings)
        return simulate(made, points, seed=seed, perturb=perturb)

    return Method(name or tag, kind, module or f"clustering.plans.{tag}", run, features=features)


def _exact(tag: str, *, name: str, features: tuple[int, int]) -> Method:
    """A plan on the symbols themselves: its grid at this epsilon, without noise."""
    plan = _plan(tag)

    def run(points: Points, epsilon: float, clusters: int | None, seed: int, _perturb: bool) -> Model:
        return plan.run(points, epsilon, clusters, seed, False)

    return Method(name, "ceiling", plan.module, run, features=features)


def _comparator(name: str, run: Callable[..., Model], params: Callable[..., Any], **limits: Any) -> Method:
    def of(points: Points, epsilon: float, clusters: int | None, seed: int, perturb: bool) -> Model:
        return run(params(epsilon=epsilon, clusters=clusters), points, seed=seed, perturb=perturb)

    return Method(name, "comparator", run.__module__, of, **limits)


TABLE: tuple[AnyMethod, ...] = (
    _plan("shifted_grid", features=TO_3),
    _plan("uniform_grid", features=TO_8),
    _plan("adaptive_grid_iterative", features=TO_8),
    _plan("adaptive_grid_tree", features=TO_8),
    _plan("valley_hashing", features=(4, 64)),  # fewer features are the grids' own
    _plan("auto", module="clustering.registry"),
    _plan("uniform_grid", "paper", name="UGC (paper)", features=TO_8, variant="paper"),
    _plan("adaptive_grid_iterative", "paper", name="AGC1 (paper)", features=TO_8, variant="paper"),
    _plan("adaptive_grid_tree", "paper", name="AGC2 (paper)", features=TO_8, variant="paper"),
    _comparator("CLIQUE", clique, Clique, features=TO_8),
    _comparator("LDPKmeans", ldp_kmeans, LdpKMeans, ways=("given",)),
    _comparator("kCluster", k_cluster, KCluster, ways=("given",)),
    _exact("shifted_grid", name="exact grid", features=TO_3),
    TunedMethod("k-means", ceilings.__name__, ceilings.k_means),
    TunedMethod("DBSCAN", ceilings.__name__, ceilings.dbscan),
    TunedMethod("HDBSCAN", ceilings.__name__, ceilings.hdbscan),
    TunedMethod("exact CLIQUE", ceilings.__name__, ceilings.exact_clique, features=TO_3),
)

METHODS: Mapping[str, AnyMethod] = {method.name: method for method in TABLE}
