"""Parameters of the central algorithms, over records that the service stores.

The first paragraph of a docstring is the algorithm's description in the OpenAPI document and the
console. docs/algorithms.md describes the methods.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from sfumato.errors import InvalidSpec
from sfumato.limits import MAX_FEATURES, MAX_RECORD_FEATURES
from sfumato.specs.algorithms import (
    REPEATED,
    Bounds,
    bounds_parameter,
    clusters_parameter,
    delta_parameter,
    epsilon_parameter,
    mu_parameter,
    seed_parameter,
    state_mu,
)
from sfumato.specs.attributes import MAX_ATTRIBUTES
from sfumato.specs.definition import CENTRAL, LOCAL, AlgorithmParameters, Definition
from sfumato.validation import parameter, require

__all__ = [
    "DensityMap",
    "DpBisectingKmeans",
    "DpDensityPeaks",
    "DpKmeans",
    "DpQuadtreeKmeans",
    "DpUniformGridKmeans",
    "PrivateKmeans",
    "Profile",
]

MAX_CELLS = 1024  # cells per feature
MAX_MAP_CELLS = 1 << 16  # cells of a label map
MAX_STEPS_OF_LLOYD = 32
MAX_HEIGHT = 20
_JOB = "job_01jd0b1v3tq5c9m8x2h7r4k6ez"

Budget = Literal["halving", "uniform"]  # distribution of epsilon over the steps
Init = Literal["random", "plusplus", "subsets"]  # starting centres
Split = Literal["largest_sse", "total_sse"]  # selection of the next cluster to bisect


def _epsilon(replaced_by: str = "") -> Any:
    alternative = f" Required without {replaced_by}." if replaced_by else ""
    return epsilon_parameter(
        f"Maximum ε of the dataset's budget for the job, with at most nine decimals.{alternative}",
        replaced_by=replaced_by,
    )


def _steps(description: str, default: int) -> Any:
    return parameter(description, default=default, minimum=1, maximum=MAX_STEPS_OF_LLOYD)


def _cells(description: str, automatic: str = "from a noisy count") -> Any:
    return parameter(description, minimum=1, maximum=MAX_CELLS, automatic=automatic)


@dataclass(frozen=True, slots=True)
class DpKmeans(AlgorithmParameters):
    """Lloyd's k-means over records, with noisy sums and counts in each step.

    Source: Ma and Wu, with corrections.
    """

    type: ClassVar[str] = "dp_kmeans"
    definition: ClassVar[Definition] = Definition("comparators", CENTRAL, MAX_FEATURES)
    delta: ClassVar[float] = 0.0
    epsilon: float = _epsilon()
    clusters: int = clusters_parameter()
    init: Init = parameter(
        "Starting centres. `random`: public, spread-out places. `plusplus`: seeds from noisy cells. `subsets`: noisy "
        "means of disjoint random subsets. The last two cost a part of ε.",
        default="random",
    )
    budget: Budget = parameter(
        "Distribution of ε over the steps. `uniform`: equal parts. `halving`: each step spends half of the remainder, "
        "and the last step all of it.",
        default="uniform",
    )
    iterations: int = _steps("Number of steps.", 5)
    seed: int = seed_parameter("Seed of the public choices.")
    bounds: Bounds = bounds_parameter()


@dataclass(frozen=True, slots=True)
class DpBisectingKmeans(AlgorithmParameters):
    """Clusters of records, split in two until the number of clusters is reached.

    Source: Ma and Wu, with corrections.
    """

    type: ClassVar[str] = "dp_bisecting_kmeans"
    definition: ClassVar[Definition] = Definition("comparators", CENTRAL, MAX_FEATURES)
    delta: ClassVar[float] = 0.0
    epsilon: float = _epsilon()
    clusters: int = clusters_parameter()
    split: Split = parameter(
        "The next cluster to split. `largest_sse`: the one with the largest noisy sum of squares. `total_sse`: the "
        "one with the smallest total after its split.",
        default="largest_sse",
    )
    synopsis: bool = parameter(
        "Whether to split noisy cells instead of records, at no further cost per split.", default=False
    )
    iterations: int = _steps("Steps per split. More steps pay off with many records.", 2)
    seed: int = seed_parameter("Seed of the public choices.")
    bounds: Bounds = bounds_parameter()


@dataclass(frozen=True, slots=True)
class DpUniformGridKmeans(AlgorithmParameters):
    """k-means over the noisy cells of one grid over records.

    Source: EUGkM of Zhang and Cheng 2021, with corrections.
    """

    type: ClassVar[str] = "dp_uniform_grid_kmeans"
    definition: ClassVar[Definition] = Definition("comparators", CENTRAL, MAX_FEATURES)
    delta: ClassVar[float] = 0.0
    epsilon: float = _epsilon()
    clusters: int = clusters_parameter()
    cells: int | None = _cells("Cells per feature, at most 131,072 in all.")
    seed: int = seed_parameter("Seed of the starting points of k-means.")
    bounds: Bounds = bounds_parameter()


@dataclass(frozen=True, slots=True)
class DpQuadtreeKmeans(AlgorithmParameters):
    """k-means over the leaves of a noisy tree over records, for any number of features.

    Source: DPQTk-means of Zhang and Cheng 2021, with corrections.
    """

    type: ClassVar[str] = "dp_quadtree_kmeans"
    definition: ClassVar[Definition] = Definition("comparators", CENTRAL, MAX_FEATURES)
    delta: ClassVar[float] = 0.0
    epsilon: float = _epsilon()
    clusters: int = clusters_parameter()
    height: int | None = parameter(
        "Levels of the tree. By default enough levels for M boxes (see `dp_uniform_grid_kmeans`) and for 16 per "
        "cluster.",
        minimum=1,
        maximum=MAX_HEIGHT,
        automatic="from a noisy count",
    )
    seed: int = seed_parameter("Seed of the starting points of k-means.")
    bounds: Bounds = bounds_parameter()


@dataclass(frozen=True, slots=True)
class DpDensityPeaks(AlgorithmParameters):
    """Density peaks of the noisy cells of one grid over records.

    Source: comparator DP-DPCL of Zhang et al. 2025, with corrections.
    """

    type: ClassVar[str] = "dp_density_peaks"
    definition: ClassVar[Definition] = Definition("comparators", CENTRAL, MAX_FEATURES)
    delta: ClassVar[float] = 0.0
    epsilon: float = _epsilon()
    clusters: int = clusters_parameter()
    cells: int | None = _cells("Cells per feature.", "from a noisy count, at most 4,096 in all")
    bounds: Bounds = bounds_parameter()


@dataclass(frozen=True, slots=True)
class DensityMap(AlgorithmParameters):
    """Clusters of any shape over records in 1 to 3 features, from one smooth density of noisy cells.

    Source: this project; docs/algorithms.md states the method.
    """

    type: ClassVar[str] = "density_map"
    definition: ClassVar[Definition] = Definition("shapes", CENTRAL, 3, counts_by="agreement", periodic=True)
    delta: ClassVar[float] = 0.0
    epsilon: float = _epsilon()
    clusters: int | None = clusters_parameter(automatic=REPEATED, example=6)
    cells: int | None = parameter(
        "Cells per feature of the label map, at most 65,536 in all.",
        minimum=2,
        maximum=MAX_CELLS,
        automatic="from a noisy count",
    )
    length_scale: float | None = parameter(
        "Correlation length of the log density under the prior.",
        minimum=0.005,
        maximum=1,
        unit="share of a feature's range",
        automatic="from a noisy count",
    )
    amplitude: float = parameter(
        "Standard deviation of the log density under the prior.", default=2.5, minimum=0.1, maximum=10
    )
    bounds: Bounds = bounds_parameter()

    def require_features(self, n_features: int) -> None:
        """Raise InvalidSpec if the number of features or of cells is not supported."""
        AlgorithmParameters.require_features(self, n_features)
        if self.cells is not None and self.cells**n_features > MAX_MAP_CELLS:
            raise InvalidSpec(f"the grid may have at most {MAX_MAP_CELLS} cells in total: reduce cells per feature")


@dataclass(frozen=True, slots=True)
class PrivateKmeans(AlgorithmParameters):
    """k-means over records, by a route that suits ε, δ and the features. It is the default over records.

    Source: this project; docs/algorithms.md states the method.
    """

    type: ClassVar[str] = "private_kmeans"
    definition: ClassVar[Definition] = Definition(
        "centroids",
        CENTRAL,
        MAX_RECORD_FEATURES,
        counts_by="noisy count",
        has_block=True,
        max_attributes=MAX_ATTRIBUTES,
        periodic=True,
    )
    epsilon: float = _epsilon(replaced_by="mu")
    clusters: int | None = clusters_parameter(
        "Number of clusters. Fewer are published, with a warning, if noise would hide them.",
        automatic="counted from noisy answers, at most 64, with an interval",
    )
    seed: int = seed_parameter("Seed of the starting points of k-means and of the places for dead centres.")
    delta: float = delta_parameter(
        "Maximum δ of the dataset's budget for the job: 0, or at least 1e-15, with at most 18 decimals. A δ permits "
        "Gaussian noise, which is much less above four features. Where it does not help, δ is not spent, and the "
        "guarantee stays pure. Required above 64 features."
    )
    bounds: Bounds = bounds_parameter()
    mu: float | None = mu_parameter(
        "Maximum μ of the dataset's budget for the job, instead of ε and δ: its Gaussian noise counts at most μ². "
        "Needs more than four features and Gaussian accounting. ε then follows from μ at δ = 1e-8."
    )
    check_features: bool = parameter(
        "Whether to spend 8 % of ε on finding irrelevant features: those that divide people where nothing separates "
        "them. The result names them. Cannot be combined with `mu`.",
        default=False,
    )

    def __post_init__(self) -> None:
        """Derive ε and δ from `mu`, and validate all parameters."""
        require(
            not (self.check_features is True and self.mu is not None),
            "check_features cannot be combined with mu: give epsilon and delta instead of mu",
        )
        state_mu(self)
        AlgorithmParameters.__post_init__(self)


@dataclass(frozen=True, slots=True)
class Profile(AlgorithmParameters):
    """The profile of released clusters: the values of attributes that distinguish each cluster, with their errors.

    A job of its own over the records of the dataset, or over a further round of reports. It costs a budget of its own,
    once for all clusters. In a round of reports, each device reports its cluster and one of the attributes.
    """

    type: ClassVar[str] = "profile"
    definition: ClassVar[Definition] = Definition("profile", (*CENTRAL, *LOCAL), MAX_RECORD_FEATURES, ("profile",))
    of: str = parameter(
        "Id of the job that released the clusters. It must have succeeded, over the same dataset.",
        example=_JOB,
        pattern="^job_[0-9a-z]+$",
    )
    attributes: tuple[str, ...] = parameter(
        "Names of attributes or features, in any order. A feature is described by eight equal bins of its bounds.",
        example=["plan", "age"],
    )
    epsilon: float = _epsilon()
    delta: float = delta_parameter(
        "Maximum δ of the dataset's budget for the job: 0, or at least 1e-15, with at most 18 decimals. A δ permits "
        "Gaussian noise, which is less for many attributes. Where it is not, δ is not spent. 0 over reports."
    )
    first_pass: float | None = parameter(
        "Over records: share of ε that releases the association of each attribute, so that only associated ones are "
        "described. 0: describe all.",
        minimum=0,
        maximum=0.5,
        automatic="0.1 with more than five attributes, else 0",
    )


CentralAlgorithm = (
    DpKmeans | DpBisectingKmeans | DpUniformGridKmeans | DpQuadtreeKmeans | DpDensityPeaks | DensityMap | PrivateKmeans
)
