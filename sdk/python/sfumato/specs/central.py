"""Parameters of the central algorithms: over records that a curator keeps."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from sfumato.accounting import parse_delta, parse_epsilon
from sfumato.specs.algorithms import MAX_CLUSTERS
from sfumato.specs.checks import is_int, is_number, require

MAX_STEPS_OF_LLOYD = 32
MAX_HEIGHT = 20

Budget = Literal["halving", "uniform"]  # how epsilon is divided over the steps
Init = Literal["random", "plusplus", "subsets"]  # where centres start
Split = Literal["largest_sse", "total_sse"]  # which cluster is bisected next


@dataclass(frozen=True, slots=True)
class DpKmeans:
    """Parameters of `dp_kmeans`: Lloyd's steps, each on noisy sums and counts (paper 001, made sound).

    Parameters
    ----------
    epsilon : float
        What the job may spend of the dataset's budget, in [1e-6, 32], at most nine decimals.
    clusters : int
        How many clusters, 1..256.
    init : {'random', 'plusplus', 'subsets'}
        DPk-means from public, spread-out places; DPk-means++ from noisy cells, which are paid
        for; IDPk-means from the means of disjoint random subsets, which are paid for.
    budget : {'uniform', 'halving'}
        Of the steps: all alike, or each half of what is left.
    iterations : int
        T, steps, 1..32.
    seed : int
        Of public choices; 0..2**32-1.
    """

    type: ClassVar[str] = "dp_kmeans"
    delta: ClassVar[float] = 0.0
    epsilon: float
    clusters: int
    init: Init = "random"
    budget: Budget = "uniform"
    iterations: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        _check(self.epsilon, self.clusters, self.seed)
        _one_of(self.init, Init, "init")
        _one_of(self.budget, Budget, "budget")
        require(
            is_int(self.iterations) and 1 <= self.iterations <= MAX_STEPS_OF_LLOYD,
            f"iterations lies in 1..{MAX_STEPS_OF_LLOYD}",
        )


@dataclass(frozen=True, slots=True)
class DpBisectingKmeans:
    """Parameters of `dp_bisecting_kmeans`: clusters split in two until there are enough (paper 001, made sound).

    Parameters
    ----------
    epsilon : float
        What the job may spend of the dataset's budget, in [1e-6, 32], at most nine decimals.
    clusters : int
        How many clusters, 1..256.
    split : {'largest_sse', 'total_sse'}
        Bisect the cluster of the largest noisy sum of squares, or the one whose bisection
        leaves the least in all.
    synopsis : bool
        Bisect noisy cells instead of records: no further cost for each split.
    iterations : int
        T, steps of each bisection, 1..32.
    seed : int
        Of public choices; 0..2**32-1.
    """

    type: ClassVar[str] = "dp_bisecting_kmeans"
    delta: ClassVar[float] = 0.0
    epsilon: float
    clusters: int
    split: Split = "largest_sse"
    synopsis: bool = False
    iterations: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        _check(self.epsilon, self.clusters, self.seed)
        _one_of(self.split, Split, "split")
        require(isinstance(self.synopsis, bool), "synopsis is true or false")
        require(
            is_int(self.iterations) and 1 <= self.iterations <= MAX_STEPS_OF_LLOYD,
            f"iterations lies in 1..{MAX_STEPS_OF_LLOYD}",
        )


@dataclass(frozen=True, slots=True)
class DpUniformGridKmeans:
    """Parameters of `dp_uniform_grid_kmeans`: k-means on one noisy grid (paper 003's EUGkM, made sound).

    Parameters
    ----------
    epsilon : float
        What the job may spend of the dataset's budget, in [1e-6, 32], at most nine decimals.
    clusters : int
        How many clusters, 1..256.
    cells : int, optional
        Cells per feature, 1..1024; None chooses by a noisy count of the records.
    seed : int
        Of the places k-means starts from; 0..2**32-1.
    """

    type: ClassVar[str] = "dp_uniform_grid_kmeans"
    delta: ClassVar[float] = 0.0
    epsilon: float
    clusters: int
    cells: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check(self.epsilon, self.clusters, self.seed)
        require(self.cells is None or (is_int(self.cells) and 1 <= self.cells <= 1024), "cells lies in 1..1024")


@dataclass(frozen=True, slots=True)
class DpQuadtreeKmeans:
    """Parameters of `dp_quadtree_kmeans`: k-means on the leaves of a noisy tree (paper 003's DPQTk-means, made sound).

    Parameters
    ----------
    epsilon : float
        What the job may spend of the dataset's budget, in [1e-6, 32], at most nine decimals.
    clusters : int
        How many clusters, 1..256.
    height : int, optional
        Levels of the tree, 1..20; None chooses by a noisy count of the records.
    seed : int
        Of the places k-means starts from; 0..2**32-1.
    """

    type: ClassVar[str] = "dp_quadtree_kmeans"
    delta: ClassVar[float] = 0.0
    epsilon: float
    clusters: int
    height: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check(self.epsilon, self.clusters, self.seed)
        require(
            self.height is None or (is_int(self.height) and 1 <= self.height <= MAX_HEIGHT),
            f"height lies in 1..{MAX_HEIGHT}",
        )


@dataclass(frozen=True, slots=True)
class DpDensityPeaks:
    """Parameters of `dp_density_peaks`: density peaks of noisy cells (comparator DP-DPCL of paper 004, made sound).

    Parameters
    ----------
    epsilon : float
        What the job may spend of the dataset's budget, in [1e-6, 32], at most nine decimals.
    clusters : int
        How many clusters, 1..256.
    cells : int, optional
        Cells per feature, 1..1024; None chooses by a noisy count of the records.
    """

    type: ClassVar[str] = "dp_density_peaks"
    delta: ClassVar[float] = 0.0
    epsilon: float
    clusters: int
    cells: int | None = None

    def __post_init__(self) -> None:
        _check(self.epsilon, self.clusters, 0)
        require(self.cells is None or (is_int(self.cells) and 1 <= self.cells <= 1024), "cells lies in 1..1024")


@dataclass(frozen=True, slots=True)
class GatedGridKmeans:
    """Parameters of `gated_grid_kmeans`: the default for records (STATISTICS 5.2).

    Parameters
    ----------
    epsilon : float
        What the job may spend of the dataset's budget, in [1e-6, 32], at most nine decimals.
    clusters : int
        How many clusters, 1..256.
    seed : int
        Of the places k-means starts from; 0..2**32-1.
    delta : float
        What the job may spend of the dataset's delta: 0, or in [1e-15, 1e-3], at most 18 decimals.
        With it the guarantee is approximate, and steps on records, which there are above four
        features, have Gaussian noise where that is less. Elsewhere it is not spent.
    """

    type: ClassVar[str] = "gated_grid_kmeans"
    epsilon: float
    clusters: int
    seed: int = 0
    delta: float = 0.0

    def __post_init__(self) -> None:
        _check(self.epsilon, self.clusters, self.seed)
        require(is_number(self.delta), "delta must be a number")
        parse_delta(self.delta)


def _check(epsilon: float, clusters: int, seed: int) -> None:
    require(is_number(epsilon), "epsilon must be a number")  # on the wire it is never text
    parse_epsilon(epsilon)
    require(is_int(clusters) and 1 <= clusters <= MAX_CLUSTERS, f"clusters lies in 1..{MAX_CLUSTERS}")
    require(is_int(seed) and 0 <= seed < 1 << 32, "seed lies in 0..2**32-1")


def _one_of(value: str, kind: object, name: str) -> None:
    known = get_args(kind)
    require(isinstance(value, str) and value in known, f"{name} is {', '.join(known)}")


CentralAlgorithm = (
    DpKmeans | DpBisectingKmeans | DpUniformGridKmeans | DpQuadtreeKmeans | DpDensityPeaks | GatedGridKmeans
)
