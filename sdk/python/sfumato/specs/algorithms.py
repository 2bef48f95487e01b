"""Parameters of the algorithms over device reports.

The first paragraph of a docstring is the algorithm's description in the OpenAPI document and the
console. docs/algorithms.md describes the methods.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor
from typing import Any, ClassVar, Literal, Self

from sfumato.errors import InvalidSpec
from sfumato.limits import MAX_FEATURES, MAX_PHASE_ATTRIBUTES, MAX_PHASE_CATEGORIES, MAX_RECORD_FEATURES
from sfumato.privacy.accounting import ATTO, NANO, parse_delta, parse_epsilon
from sfumato.privacy.gaussian_privacy import PICO, epsilon_of
from sfumato.specs.attributes import Categorical
from sfumato.specs.definition import CENTRAL, LOCAL, AlgorithmParameters, Definition
from sfumato.specs.phases import MAX_PHASE_SLOTS
from sfumato.validation import parameter, parameters_of, require

__all__ = [
    "AdaptiveGridIterative",
    "AdaptiveGridTree",
    "Auto",
    "GridKmeans",
    "LdpKmeans",
    "NoisyFcm",
    "PhaseSketch",
    "ShiftedGrid",
    "UniformGrid",
]

MAX_CLUSTERS = 256
MAX_SKETCHED_CLUSTERS = 64  # the time of a fit grows with the cube of the number
MAX_SEED = 2**32 - 1
MU_RANGE = (0.002, 4.0)  # range of mu: above the smallest block, and below epsilon 32 at `MU_DELTA_ATTO`
MU_DELTA_ATTO = ATTO // 10**8  # delta at which a mu is stated as an epsilon

Distance = Literal["mixed", "euclidean", "absolute", "laplace", "gaussian"]  # from a noisy vector to a centroid
Bounds = Literal["declared", "private"]  # bounds that scale records
Refine = Literal["auto", "none", "sign", "lloyd"]  # rounds after the first one of a phase sketch
Shape = Literal["any", "round"]  # shape of the clusters of interest
Variant = Literal["sound", "paper"]  # a published method with corrections, or as printed

DEVICE_EPSILON = "Maximum ε for one device, with at most nine decimals."
SIGNIFICANT = "all clusters with a significant excess of mass"
REPEATED = "the number that repeated runs reproduce"


def epsilon_parameter(description: str = DEVICE_EPSILON, example: float = 1.0, replaced_by: str = "") -> Any:
    """Return the declaration of an ε."""
    return parameter(
        description, minimum=1e-6, maximum=32, check=parse_epsilon, example=example, replaced_by=replaced_by
    )


def mu_parameter(description: str) -> Any:
    """Return the declaration of a μ that replaces ε and δ. `state_mu` derives them."""
    return parameter(description, minimum=MU_RANGE[0], maximum=MU_RANGE[1], automatic="ε and δ state the cost")


def clusters_parameter(
    description: str = "Number of clusters.",
    *,
    minimum: int = 1,
    maximum: int = MAX_CLUSTERS,
    automatic: str = "",
    example: int | None = 4,
) -> Any:
    """Return the declaration of the number of clusters."""
    return parameter(description, minimum=minimum, maximum=maximum, automatic=automatic, example=example)


def delta_parameter(description: str) -> Any:
    """Return the declaration of a δ, 0 by default."""
    return parameter(description, default=0.0, minimum=0, maximum=1e-3, check=parse_delta)


def seed_parameter(description: str) -> Any:
    """Return the declaration of a seed."""
    return parameter(description, default=0, minimum=0, maximum=MAX_SEED)


def bounds_parameter() -> Any:
    """Return the declaration of the bounds of an algorithm over records."""
    return parameter(
        "Bounds that scale the records. `declared`: those of the dataset. `private`: narrower ones within them, found "
        "from the records at a cost of at most 8 % of ε. Records outside are clipped to them.",
        default="declared",
    )


def _variant_parameter(difference: str) -> Any:
    return parameter(f"`paper` is the published method as printed, for comparison: {difference}.", default="sound")


def epsilon_of_mu(mu: float) -> float:
    """Return the largest ε of which a block counts at most mu^2, at the δ of `MU_DELTA_ATTO`.

    Parameters
    ----------
    mu : float
        In `MU_RANGE`. It is read as it prints.
    """
    least = epsilon_of(floor(Fraction(repr(mu)) ** 2 * PICO), MU_DELTA_ATTO)
    if least is None:
        raise InvalidSpec(f"mu must be at most {MU_RANGE[1]}")
    return (least - 1) / NANO


def state_mu(params: Any) -> None:
    """Set ε and δ of parameters that state `mu`, before they are validated.

    Raises
    ------
    InvalidSpec
        `mu` is out of range, `mu` and another ε or δ are given, or neither `mu` nor ε.
    """
    if params.mu is not None:
        parameters_of(type(params))["mu"].validate("mu", params.mu)
        epsilon, delta = epsilon_of_mu(float(params.mu)), MU_DELTA_ATTO / ATTO
        if (params.epsilon, params.delta) not in ((None, 0), (epsilon, delta)):
            raise InvalidSpec("mu replaces epsilon and delta: give mu alone, or epsilon and delta without mu")
        object.__setattr__(params, "epsilon", epsilon)
        object.__setattr__(params, "delta", delta)
    elif params.epsilon is None:
        raise InvalidSpec("epsilon is required, or mu instead of epsilon and delta")


@dataclass(frozen=True, slots=True)
class ShiftedGrid(AlgorithmParameters):
    """Clusters of any shape in 1 to 3 features, from one smooth density over shifted coarse grids.

    Source: this project; docs/algorithms.md states the method.
    """

    type: ClassVar[str] = "shifted_grid"
    definition: ClassVar[Definition] = Definition(
        "shapes",
        LOCAL,
        3,
        ("shifted_grid",),
        counts_by="agreement",
        max_attributes=1,
        pools=True,
        periodic=True,
    )
    epsilon: float = epsilon_parameter(example=2.0)
    clusters: int | None = clusters_parameter(automatic=REPEATED, example=6)
    cells: int | None = parameter(
        "Coarse cells per feature.", minimum=2, maximum=64, automatic="from the expected reports"
    )
    shifts: int = parameter(
        "Shifts per feature. The fine grid has `cells · shifts` cells per feature.", default=4, minimum=1, maximum=8
    )
    length_scale: float | None = parameter(
        "Correlation length of the log density under the prior.",
        minimum=0.005,
        maximum=1,
        unit="share of a feature's range",
        automatic="from the reports",
    )
    amplitude: float = parameter(
        "Standard deviation of the log density under the prior.", default=2.5, minimum=0.1, maximum=10
    )


@dataclass(frozen=True, slots=True)
class UniformGrid(AlgorithmParameters):
    """Clusters as connected dense cells of one grid, for comparison.

    Source: UGC of Zhang et al. 2023, with corrections.
    """

    type: ClassVar[str] = "uniform_grid"
    definition: ClassVar[Definition] = Definition("comparators", LOCAL, 8, ("grid",), counts_by="regions")
    epsilon: float = epsilon_parameter()
    clusters: int | None = clusters_parameter(automatic="every connected dense region", example=None)
    cells: int | None = parameter(
        "Cells per feature.",
        minimum=2,
        maximum=1024,
        automatic="the finest grid with dense cells that are distinguishable from noise",
    )
    variant: Variant = _variant_parameter("two rounds at half of ε each")


@dataclass(frozen=True, slots=True)
class AdaptiveGridIterative(AlgorithmParameters):
    """Clusters on a grid with cells that are split and merged from round to round, for comparison.

    Source: AGC1 of Zhang et al. 2023, with corrections.
    """

    type: ClassVar[str] = "adaptive_grid_iterative"
    definition: ClassVar[Definition] = Definition("comparators", LOCAL, 8, ("grid", "tree_grid"), counts_by="excess")
    epsilon: float = epsilon_parameter()
    clusters: int | None = clusters_parameter(automatic=SIGNIFICANT, example=3)
    passes: int = parameter("Number of rounds.", default=3, minimum=3, maximum=8)
    variant: Variant = _variant_parameter("two more rounds; every device reports in all rounds, and their ε adds up")


@dataclass(frozen=True, slots=True)
class AdaptiveGridTree(AlgorithmParameters):
    """Clusters on the levels of a grid tree, each for its own part of the devices, for comparison.

    Source: AGC2 of Zhang et al. 2023, with corrections.
    """

    type: ClassVar[str] = "adaptive_grid_tree"
    definition: ClassVar[Definition] = Definition("comparators", LOCAL, 8, ("grid", "tree_grid"), counts_by="excess")
    epsilon: float = epsilon_parameter()
    clusters: int | None = clusters_parameter(automatic=SIGNIFICANT, example=3)
    height: int | None = parameter(
        "Levels of the tree. Each level is one round.", minimum=1, maximum=9, automatic="from the expected reports"
    )
    variant: Variant = _variant_parameter("two more rounds; the two and the tree have ε/3 each")


@dataclass(frozen=True, slots=True)
class Auto(AlgorithmParameters):
    """The algorithm that is best for the number of features and, over devices, for the expected reports.

    The result names the algorithm and the reason. `sfumato.forecast.choose` selects over reports
    and `sfumato.forecast.choose_central` over records.
    """

    type: ClassVar[str] = "auto"
    definition: ClassVar[Definition] = Definition("automatic", (*LOCAL, *CENTRAL), MAX_RECORD_FEATURES)
    epsilon: float = epsilon_parameter(
        "Maximum ε for one device, or for the job over records. At most nine decimals. Required without mu.",
        replaced_by="mu",
    )
    clusters: int | None = clusters_parameter(
        "Number of clusters. Over reports at most 64 above 4 features.",
        automatic="estimated",
        example=3,
    )
    shape: Shape | None = parameter(
        "Shape of the clusters of interest in up to 3 features. `any`: a label map. `round`: centroids.",
        automatic="any over reports, round over records",
    )
    delta: float = delta_parameter(
        "Only over records: maximum δ of the dataset's budget for the job, 0 or at least 1e-15, with at most 18 "
        "decimals. Required above 64 features."
    )
    bounds: Bounds = bounds_parameter()
    mu: float | None = mu_parameter(
        "Only over records with Gaussian accounting, in more than four features: maximum μ of the dataset's budget for "
        "the job, instead of ε and δ."
    )

    def __post_init__(self) -> None:
        """Derive ε and δ from `mu`, and validate all parameters."""
        state_mu(self)
        AlgorithmParameters.__post_init__(self)


@dataclass(frozen=True, slots=True)
class NoisyFcm(AlgorithmParameters):
    """Fuzzy c-means over noisy vectors, for comparison: its noise hides most clusters.

    Source: mnFCM of Zhang et al. 2025, with corrections.
    """

    type: ClassVar[str] = "noisy_fcm"
    definition: ClassVar[Definition] = Definition(
        "comparators",
        LOCAL,
        MAX_FEATURES,
        ("lattice",),
        limitation="The noise of vectors moves fuzzy centroids towards each other. The result states whether it is "
        "better than one centre at the mean.",
    )
    epsilon: float = epsilon_parameter(
        "Maximum ε for one device over all features together, with at most nine decimals.", example=8.0
    )
    clusters: int = clusters_parameter(
        "Number of clusters. Required, because the objective does not determine it.", minimum=2
    )
    distance: Distance = parameter("Distance of a report from a centroid.", default="mixed")
    m: float = parameter(
        "Fuzziness. Near 1 a report belongs to one cluster, with large values equally to all.",
        default=2.0,
        minimum=1.05,
        maximum=16,
    )
    sigma0: float | None = parameter(
        "Least spread of a report about its centroid.",
        minimum=1e-6,
        maximum=1e9,
        unit="share of a feature's range",
        automatic="√(.06² + the noise's variance)",
    )
    max_iterations: int = parameter("Maximum number of steps of the fit.", default=300, minimum=1, maximum=1000)
    seed: int = seed_parameter("Seed of the starting points, uniform in the box, and of the resampling for the errors.")


@dataclass(frozen=True, slots=True)
class GridKmeans(AlgorithmParameters):
    """k-means over the noisy cells of one grid, for 1 to 4 features."""

    type: ClassVar[str] = "grid_kmeans"
    definition: ClassVar[Definition] = Definition("centroids", LOCAL, 4, ("grid",), periodic=True)
    epsilon: float = epsilon_parameter()
    clusters: int = clusters_parameter("Number of clusters. Required, because cells do not determine it.")
    cells: int | None = parameter(
        "Cells per feature, at most 65,536 in all.", minimum=2, maximum=1024, automatic="from the expected reports"
    )
    seed: int = seed_parameter("Seed of the starting points of k-means.")


@dataclass(frozen=True, slots=True)
class LdpKmeans(AlgorithmParameters):
    """k-means by rounds of broadcast centroids: devices report the nearest centroid and their side of it."""

    type: ClassVar[str] = "ldp_kmeans"
    definition: ClassVar[Definition] = Definition("centroids", LOCAL, MAX_FEATURES, ("nearest_centroid",))
    epsilon: float = epsilon_parameter()
    clusters: int = clusters_parameter()
    rounds: int = parameter("Number of rounds, each for its own part of the devices.", default=8, minimum=3, maximum=32)
    seed: int = seed_parameter("Seed of the public centroids of the first round, and of the places for dead centroids.")


@dataclass(frozen=True, slots=True)
class PhaseSketch(AlgorithmParameters):
    """Centroids and widths of round clusters in 1 to 64 features, from one small integer per device.

    Source: this project; docs/algorithms.md states the method.
    """

    type: ClassVar[str] = "phase_sketch"
    definition: ClassVar[Definition] = Definition(
        "centroids",
        LOCAL,
        MAX_FEATURES,
        ("phase",),
        ("phase", "nearest_centroid", "centroid_sign"),
        counts_by="bic",
        max_attributes=MAX_PHASE_ATTRIBUTES,
        periodic=True,
        limitation="Clusters that overlap heavily are not separated, at any epsilon.",
    )
    epsilon: float = epsilon_parameter()
    clusters: int | None = clusters_parameter(
        maximum=MAX_SKETCHED_CLUSTERS, automatic="the number from 1 to 16 with the least BIC"
    )
    slots: int | None = parameter(
        "Number of public waves.",
        minimum=32,
        maximum=MAX_PHASE_SLOTS,
        automatic="512, or 1024 from 16 features or with attributes",
    )
    seed: int = seed_parameter("Seed of the waves, which are public, and of the starting points of the fit.")
    refine: Refine = parameter(
        "The rounds after the first, each for other devices. `none`: no round. `sign`: a round of signs about the "
        "centroids. `lloyd`: rounds that move particles of the density, for clusters that overlap. `auto`: selected "
        "from the first round, with at least 4 features and a given number of clusters. `sign` and `lloyd` need "
        "`clusters`, and no periodic features; with these, `auto` is `none`.",
        default="auto",
    )

    def __post_init__(self) -> None:
        AlgorithmParameters.__post_init__(self)
        needs_clusters = self.refine in ("sign", "lloyd")
        require(self.clusters is not None or not needs_clusters, f"refine={self.refine} needs the number of clusters")

    def on_circles(self) -> Self:
        """Return the parameters with a round of phases alone, because rounds about centroids have no circles."""
        require(
            self.refine in ("auto", "none"),
            f"refine={self.refine} does not take periodic features: use refine='none'",
        )
        return replace(self, refine="none")

    def require_attributes(self, attributes: Sequence[Categorical]) -> None:
        """Raise InvalidSpec if the algorithm does not cluster by these attributes. Rounds about centroids have none."""
        AlgorithmParameters.require_attributes(self, attributes)
        for each in attributes:
            require(
                len(each.categories) <= MAX_PHASE_CATEGORIES,
                f"{self.type} takes attributes of at most {MAX_PHASE_CATEGORIES} categories, and {each.name} has "
                f"{len(each.categories)}: name features without it",
            )
        require(
            not attributes or self.refine in ("auto", "none"),
            f"refine={self.refine} takes no attributes: use refine='none', or name features without "
            f"{', '.join(each.name for each in attributes)}",
        )


Algorithm = (
    ShiftedGrid
    | UniformGrid
    | AdaptiveGridIterative
    | AdaptiveGridTree
    | Auto
    | NoisyFcm
    | GridKmeans
    | LdpKmeans
    | PhaseSketch
)
