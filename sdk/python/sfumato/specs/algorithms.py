"""Parameters of the algorithms, one dataclass each."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from sfumato.accounting import parse_epsilon
from sfumato.specs.checks import finite, is_int, is_number, require
from sfumato.specs.encodings import MAX_CODE_BITS, MAX_PHASE_SLOTS, MAX_PROJECTIONS

MAX_CLUSTERS = 256
MAX_SKETCHED_CLUSTERS = 64  # a fit takes their number cubed

Distance = Literal["mixed", "euclidean", "absolute", "laplace", "gaussian"]  # of a noisy vector from a centre
Refine = Literal["auto", "none", "sign", "lloyd"]  # what follows a sketch of phases
Variant = Literal["sound", "paper"]  # of a method that was published: made sound, or as printed


@dataclass(frozen=True, slots=True)
class ShiftedGrid:
    """Parameters of `shifted_grid`: local, 1 to 3 features (STATISTICS 3.2).

    Parameters
    ----------
    epsilon : float
        What one device may spend, in [1e-6, 32], at most nine decimals.
    clusters : int, optional
        How many clusters, 1..256; None counts them from the data.
    cells : int, optional
        s, coarse cells per feature; None chooses by the reports expected.
    shifts : int
        w, shifts per feature; the fine grid has cells * shifts cells a feature.
    length_scale : float
        Correlation length of the log density's prior, as a share of a feature's range.
    amplitude : float
        Standard deviation of the log density's prior.
    """

    type: ClassVar[str] = "shifted_grid"
    epsilon: float
    clusters: int | None = None
    cells: int | None = None
    shifts: int = 4
    length_scale: float = 0.06
    amplitude: float = 2.5

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)
        _check_clusters(self.clusters)
        require(self.cells is None or (is_int(self.cells) and 2 <= self.cells <= 64), "cells lies in 2..64")
        require(is_int(self.shifts) and 1 <= self.shifts <= 8, "shifts lies in 1..8")
        require(0.005 <= finite(self.length_scale, "length_scale") <= 1, "length_scale lies in [.005, 1]")
        require(0.1 <= finite(self.amplitude, "amplitude") <= 10, "amplitude lies in [.1, 10]")


@dataclass(frozen=True, slots=True)
class UniformGrid:
    """Parameters of `uniform_grid`: one plain grid, dense cells joined (paper 000, UGC, made sound).

    Parameters
    ----------
    epsilon : float
        What one device may spend, in [1e-6, 32], at most nine decimals.
    clusters : int, optional
        How many clusters, 1..256; None keeps every connected dense region.
    cells : int, optional
        Cells per feature; None takes the finest grid whose dense cells can be told from noise.
    variant : {'sound', 'paper'}
        'paper' is the method as printed, for comparison.
    """

    type: ClassVar[str] = "uniform_grid"
    epsilon: float
    clusters: int | None = None
    cells: int | None = None
    variant: Variant = "sound"

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)
        _check_clusters(self.clusters)
        _check_variant(self.variant)
        require(self.cells is None or (is_int(self.cells) and 2 <= self.cells <= 1024), "cells lies in 2..1024")


@dataclass(frozen=True, slots=True)
class AdaptiveGridIterative:
    """Parameters of `adaptive_grid_iterative`: cells split and merged by rounds (paper 000, AGC1, made sound).

    Parameters
    ----------
    epsilon : float
        What one device may spend, in [1e-6, 32], at most nine decimals.
    clusters : int, optional
        How many clusters, 1..256; None counts them from the data.
    passes : int
        Rounds over the cells as adapted so far, 3..8.
    variant : {'sound', 'paper'}
        'paper' is the method as printed, for comparison: two more rounds.
    """

    type: ClassVar[str] = "adaptive_grid_iterative"
    epsilon: float
    clusters: int | None = None
    passes: int = 3
    variant: Variant = "sound"

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)
        _check_clusters(self.clusters)
        _check_variant(self.variant)
        require(is_int(self.passes) and 3 <= self.passes <= 8, "passes lies in 3..8")


@dataclass(frozen=True, slots=True)
class AdaptiveGridTree:
    """Parameters of `adaptive_grid_tree`: all levels of a grid tree at once (paper 000, AGC2, made sound).

    Parameters
    ----------
    epsilon : float
        What one device may spend, in [1e-6, 32], at most nine decimals.
    clusters : int, optional
        How many clusters, 1..256; None counts them from the data.
    height : int, optional
        H, levels of the tree and rounds, 1..9; None takes the finest leaves whose dense cells can be told
        from noise.
    variant : {'sound', 'paper'}
        'paper' is the method as printed, for comparison: two more rounds.
    """

    type: ClassVar[str] = "adaptive_grid_tree"
    epsilon: float
    clusters: int | None = None
    height: int | None = None
    variant: Variant = "sound"

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)
        _check_clusters(self.clusters)
        _check_variant(self.variant)
        require(self.height is None or (is_int(self.height) and 1 <= self.height <= 9), "height lies in 1..9")


@dataclass(frozen=True, slots=True)
class ValleyHashing:
    """Parameters of `valley_hashing`: local, 2 to 64 features, experimental (STATISTICS 3.3).

    Parameters
    ----------
    epsilon : float
        What one device may spend, in [1e-6, 32], at most nine decimals.
    clusters : int, optional
        How many clusters, 1..256; None counts them from the data.
    cuts : int
        B, at most so many cuts make the code, 1..12.
    projections : int, optional
        Directions that are looked along, 2..128: the features first, then random ones; None takes
        twice the number of features, at least 16.
    seed : int
        Of the random directions, which are public; 0..2**32-1.
    """

    type: ClassVar[str] = "valley_hashing"
    epsilon: float
    clusters: int | None = None
    cuts: int = 8
    projections: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)
        _check_clusters(self.clusters)
        require(is_int(self.cuts) and 1 <= self.cuts <= MAX_CODE_BITS, f"cuts lies in 1..{MAX_CODE_BITS}")
        require(
            self.projections is None or (is_int(self.projections) and 2 <= self.projections <= MAX_PROJECTIONS),
            f"projections lies in 2..{MAX_PROJECTIONS}",
        )
        require(is_int(self.seed) and 0 <= self.seed < 1 << 32, "seed lies in 0..2**32-1")


@dataclass(frozen=True, slots=True)
class PhaseSketch:
    """Parameters of `phase_sketch`: local, 1 to 64 features, one small integer a device (STATISTICS 4.2).

    Parameters
    ----------
    epsilon : float
        What one device may spend, in [1e-6, 32], at most nine decimals.
    clusters : int, optional
        How many clusters, 1..64; None counts them from the data, up to 16.
    slots : int, optional
        m, how many public waves, 32..1024; None takes 512, or 1024 from 16 features on.
    seed : int
        Of the waves, which are public, and of the places the fit starts from; 0..2**32-1.
    refine : {'auto', 'none', 'sign', 'lloyd'}
        What follows the first round, each for other devices. 'none': nothing, it is for all of
        them. 'sign': a round of signs about the centroids found. 'lloyd': rounds that move
        particles of the density found, for clusters that overlap. 'auto': what the first round
        speaks for, where the number of clusters is given and there are 4 features or more;
        else nothing. 'sign' and 'lloyd' need the number of clusters.
    """

    type: ClassVar[str] = "phase_sketch"
    epsilon: float
    clusters: int | None = None
    slots: int | None = None
    seed: int = 0
    refine: Refine = "auto"

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)
        require(
            self.clusters is None or (is_int(self.clusters) and 1 <= self.clusters <= MAX_SKETCHED_CLUSTERS),
            f"clusters lies in 1..{MAX_SKETCHED_CLUSTERS}, or is left out",
        )
        require(
            self.slots is None or (is_int(self.slots) and 32 <= self.slots <= MAX_PHASE_SLOTS),
            f"slots lies in 32..{MAX_PHASE_SLOTS}",
        )
        require(is_int(self.seed) and 0 <= self.seed < 1 << 32, "seed lies in 0..2**32-1")
        require(
            isinstance(self.refine, str) and self.refine in get_args(Refine),
            f"refine is {', '.join(get_args(Refine))}",
        )
        require(
            self.clusters is not None or self.refine in ("auto", "none"),
            f"refine={self.refine} needs the number of clusters",
        )


@dataclass(frozen=True, slots=True)
class NoisyFcm:
    """Parameters of `noisy_fcm`: local, fuzzy c-means over noisy vectors (paper 004, mnFCM, made sound).

    Parameters
    ----------
    epsilon : float
        What one device may spend, in [1e-6, 32], at most nine decimals.
    clusters : int
        How many clusters, 2..256. The fuzzy objective does not say, so it has to be given.
    distance : {'mixed', 'euclidean', 'absolute', 'laplace', 'gaussian'}
        Of a report from a centre.
    m : float
        Fuzziness, in [1.05, 16]; near 1 a report belongs to one cluster, large m to all alike.
    sigma0 : float, optional
        σ0, least spread of a report about its centre a feature, as a share of the feature's range,
        in [1e-6, 1e9]; None makes it of the noise and a spread of .06.
    max_iterations : int
        Steps of the fit, 1..1000.
    seed : int
        Of the places the fit starts from and of the resampling behind its errors; 0..2**32-1.
    """

    type: ClassVar[str] = "noisy_fcm"
    epsilon: float
    clusters: int
    distance: Distance = "mixed"
    m: float = 2.0
    sigma0: float | None = None
    max_iterations: int = 300
    seed: int = 0

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)
        require(
            is_int(self.clusters) and 2 <= self.clusters <= MAX_CLUSTERS,
            f"noisy_fcm needs the number of clusters, in 2..{MAX_CLUSTERS}",
        )
        require(
            isinstance(self.distance, str) and self.distance in get_args(Distance),
            f"distance is {', '.join(get_args(Distance))}",
        )
        require(1.05 <= finite(self.m, "m") <= 16, "m lies in [1.05, 16]")
        require(
            self.sigma0 is None or 1e-6 <= finite(self.sigma0, "sigma0") <= 1e9,
            "sigma0 lies in [.000001, 1e9], or is left out",
        )
        require(is_int(self.max_iterations) and 1 <= self.max_iterations <= 1000, "max_iterations lies in 1..1000")
        require(is_int(self.seed) and 0 <= self.seed < 1 << 32, "seed lies in 0..2**32-1")


@dataclass(frozen=True, slots=True)
class Auto:
    """Parameters of `auto`: the algorithm that public facts speak for.

    `sfumato.forecast.choose` says which, and over records `sfumato.forecast.choose_central`.

    Parameters
    ----------
    epsilon : float
        What one device may spend, or over records the job, in [1e-6, 32], at most nine decimals.
    clusters : int, optional
        How many clusters, 1..256; None counts them from the data, which nothing does over records.
    """

    type: ClassVar[str] = "auto"
    delta: ClassVar[float] = 0.0  # over records too: who wants Gaussian noise names the algorithm
    epsilon: float
    clusters: int | None = None

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)
        _check_clusters(self.clusters)


@dataclass(frozen=True, slots=True)
class GridKmeans:
    """Parameters of `grid_kmeans`: local, 1 to 4 features, k-means over the noisy cells of one plain grid.

    Parameters
    ----------
    epsilon : float
        What one device may spend, in [1e-6, 32], at most nine decimals.
    clusters : int
        How many clusters, 1..256.
    cells : int, optional
        Cells per feature, 2..1024, 65,536 in all; None weighs their size against their noise.
    seed : int
        Of the places k-means starts from; 0..2**32-1.
    """

    type: ClassVar[str] = "grid_kmeans"
    epsilon: float
    clusters: int
    cells: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)
        require(self.clusters is not None, "grid_kmeans needs the number of clusters")
        _check_clusters(self.clusters)
        require(self.cells is None or (is_int(self.cells) and 2 <= self.cells <= 1024), "cells lies in 2..1024")
        require(is_int(self.seed) and 0 <= self.seed < 1 << 32, "seed lies in 0..2**32-1")


@dataclass(frozen=True, slots=True)
class LdpKmeans:
    """Parameters of `ldp_kmeans`: local, 1 to 64 features, rounds of broadcast centroids.

    Parameters
    ----------
    epsilon : float
        What one device may spend, in [1e-6, 32], at most nine decimals.
    clusters : int
        How many clusters, 1..256.
    rounds : int
        3..32, each for its own part of the devices.
    seed : int
        Of the first centroids, which are public; 0..2**32-1.
    """

    type: ClassVar[str] = "ldp_kmeans"
    epsilon: float
    clusters: int
    rounds: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)
        require(self.clusters is not None, "ldp_kmeans needs the number of clusters")
        _check_clusters(self.clusters)
        require(is_int(self.rounds) and 3 <= self.rounds <= 32, "rounds lies in 3..32")
        require(is_int(self.seed) and 0 <= self.seed < 1 << 32, "seed lies in 0..2**32-1")


def _check_variant(variant: str) -> None:
    require(isinstance(variant, str) and variant in get_args(Variant), "variant is sound or paper")


def _check_epsilon(epsilon: float) -> None:
    require(is_number(epsilon), "epsilon must be a number")  # on the wire it is never text
    parse_epsilon(epsilon)


def _check_clusters(clusters: int | None) -> None:
    require(
        clusters is None or (is_int(clusters) and 1 <= clusters <= MAX_CLUSTERS),
        f"clusters lies in 1..{MAX_CLUSTERS}, or is left out",
    )


Algorithm = (
    ShiftedGrid
    | UniformGrid
    | AdaptiveGridIterative
    | AdaptiveGridTree
    | ValleyHashing
    | PhaseSketch
    | NoisyFcm
    | Auto
    | GridKmeans
    | LdpKmeans
)
