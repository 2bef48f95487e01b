"""Rounds of plans that estimate centroids: phases, vectors, grids for k-means, broadcast centroids."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, floor, sqrt

from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import NANO
from sfumato.sizing.rounds import PlannedRound, draws, effective_reports, plans, precision_of, whole_round
from sfumato.specs import (
    MAX_CENTROIDS,
    MAX_SCALE,
    GridEncoding,
    GridKmeans,
    LatticeEncoding,
    LdpKmeans,
    NoisyFcm,
    Participation,
    PhaseSketch,
    Refine,
    most_vectors,
)
from sfumato.specs.attributes import Categorical

# phase_sketch. From epsilon 8 on, phases are finer. Two reports with half of epsilon each would be slightly more
# precise, by at most sqrt 2, but would need a second report of every device.
PHASES = 16  # L
FINE_PHASES = 64
FINE_PHASES_EPSILON_NANO = 8_000_000_000

# Later rounds of phase_sketch, each for other devices: parts of the first round, and the number of later rounds.
PARTS = 40
LLOYD_FIRST, LLOYD_ROUNDS = 12, 4
FLAT_FIRST, FLAT_ROUNDS = 28, 2  # with one or two features
SIGN_FIRST = 20
MOST_FIRST = 36  # if phases need more parts, all devices report phases
FLAT_FEATURES = 2
LEAST_REFINED_FEATURES = 4  # minimum number of features for refine='auto'

# Required N tanh^2(eps/2): about 1000 with 2 or 4 features and 4 clusters, 2000 with 8 features.
# Eight clusters took eight times as many, because the signal of a cluster falls with the square of its share.
SKETCHED_REPORTS_PER_FEATURE = 250
FEWEST_FEATURES, FEW_CLUSTERS = 4, 4

# Factor of the required reports, by the number of attributes by which a job clusters. Waves with characters have less
# signal about places. (Squared Cramer-Rao errors of centres over those without attributes, 4 clusters in 3 features, 7
# in 10 people with the usual category.)
CATEGORY_PRICES = 1.0, 1.4, 1.9, 2.2
# Error of the share of a category, in units of K / (tanh(eps/2) sqrt(N)), by the number of attributes from one on.
SHARE_ERRORS = 1.8, 2.3, 2.8, 3.1
CATEGORY_WAVES = 1024  # default number of waves with attributes
# Each wave has two numbers, of which damped ones and noise take a part.
WAVES_PER_PARAMETER = 2

# grid_kmeans
MAX_KMEANS_FEATURES = GridKmeans.definition.max_features
MAX_KMEANS_CELLS = 1 << 16  # maximum number of cells in all
MAX_CHOSEN_CELLS = 1 << 14  # maximum number of cells in all by default
LEAST_CELLS = 8  # minimum number of cells per cluster

# ldp_kmeans
STARTS = 8  # centroids of the first round per cluster; twice as many with many reports
FIRST_WEIGHT = 4  # the first round has one device in 1 + 4; see `centroid_shares`

# noisy_fcm
LATTICE_STEPS = 1000  # lattice units per feature, far below the noise


@plans(PhaseSketch)
def phase_sketch_rounds(params: PhaseSketch, n_features: int, expected_reports: int) -> tuple[PlannedRound, ...]:
    """Return a round of phases and the later rounds, independent of the reports.

    Later rounds collect reports about centroids. Except with 'lloyd', the second round collects phases
    again if those of the first round are insufficient.
    """
    epsilon_nano = params.epsilon_nano
    n_phases = phases(epsilon_nano)
    first, n_later = first_part(params, n_features, expected_reports)
    if n_later == 0 or params.clusters is None:
        return (PlannedRound(Participation(), "window", epsilon_nano, n_phases),)
    n_answers = 2 if prefers_signs(params.clusters, n_features, epsilon_nano) else 2 * params.clusters
    of_phases, second, *later = draws([first * n_later, *[PARTS - first] * n_later])
    n_symbols = n_answers if params.refine == "lloyd" else max(n_answers, n_phases)
    return (
        PlannedRound(of_phases, "window", epsilon_nano, n_phases),
        PlannedRound(second, "auto", epsilon_nano, n_symbols, adapts=True),
        *(PlannedRound(draw, "auto", epsilon_nano, n_answers, adapts=True) for draw in later),
    )


def categorical_rounds(
    params: PhaseSketch, n_features: int, expected_reports: int, attributes: Sequence[Categorical]
) -> tuple[PlannedRound, ...]:
    """Return the round of phases of all devices for a job that clusters by attributes.

    Raises
    ------
    InvalidSpec
        The waves do not determine the parameters of the clusters.
    """
    require_waves(params.slots or CATEGORY_WAVES, n_features, attributes, params.clusters)
    return phase_sketch_rounds(replace(params, refine="none"), n_features, expected_reports)


def require_waves(n_waves: int, n_features: int, attributes: Sequence[Categorical], clusters: int | None) -> None:
    """Raise InvalidSpec if waves do not determine the numbers of clusters with category shares, or of one cluster."""
    n_parameters, clusters = n_features + 2 + sum(len(each.categories) - 1 for each in attributes), clusters or 1
    if n_waves < WAVES_PER_PARAMETER * n_parameters * clusters:
        raise InvalidSpec(
            f"{n_waves} waves do not determine {n_parameters} numbers of each of {clusters} clusters: use fewer "
            "clusters or attributes, join categories, or use more waves (slots)"
        )


def category_share_error(params: PhaseSketch, n_reports: int, n_attributes: int) -> float:
    """Return the standard error of the share of a category in one of K equal clusters."""
    signal = precision_of("auto", 2, params.epsilon_nano).contrast * sqrt(n_reports)
    of_signal = SHARE_ERRORS[min(n_attributes, len(SHARE_ERRORS)) - 1]
    return min(1.0, of_signal * (params.clusters or FEW_CLUSTERS) / signal)


def first_part(params: PhaseSketch, n_features: int, expected_reports: int) -> tuple[int, int]:
    """Return the first round's parts of 40 of the devices, and the number of later rounds.

    With 'auto' the first round has the devices that phases need to find clear clusters, at least three
    in ten, if nine in ten devices are enough. Otherwise it has three in ten, which are sufficient for
    the density.
    """
    refine = refinement(params, n_features)
    if refine == "none" or params.clusters is None:
        return PARTS, 0
    if refine == "sign":
        return SIGN_FIRST, 1
    if n_features <= FLAT_FEATURES:
        return FLAT_FIRST, FLAT_ROUNDS
    if needs_density(params, n_features, expected_reports):
        return LLOYD_FIRST, LLOYD_ROUNDS
    needed = ceil(PARTS * phases_needed(params, n_features, expected_reports))
    if needed > MOST_FIRST:
        return PARTS, 0
    first = max(needed, LLOYD_FIRST)
    return first, max(1, round(LLOYD_ROUNDS * (PARTS - first) / (PARTS - LLOYD_FIRST)))


def needs_density(params: PhaseSketch, n_features: int, expected_reports: int) -> bool:
    """Return whether the first round serves to estimate the density, because phases cannot find the clusters."""
    if n_features <= FLAT_FEATURES:
        return False
    refine = refinement(params, n_features)
    return refine == "lloyd" or (refine == "auto" and phases_needed(params, n_features, expected_reports) > 1)


def phases_needed(params: PhaseSketch, n_features: int, expected_reports: int) -> float:
    """Return the share of the devices with phases that find clear clusters; above 1 if all devices are too few."""
    signal = expected_reports * precision_of("auto", 2, params.epsilon_nano).contrast ** 2
    return sketched_reports(n_features, params.clusters or 1) / signal


def refinement(params: PhaseSketch, n_features: int) -> Refine:
    """Return the rounds after the first; 'auto' if they depend on its reports."""
    if params.refine != "auto":
        return params.refine
    refines = params.clusters is not None and params.clusters > 1 and n_features >= LEAST_REFINED_FEATURES
    return "auto" if refines else "none"


def prefers_signs(clusters: int, n_features: int, epsilon_nano: int) -> bool:
    """Return whether a bit about the nearest centroid is more precise than the centroid with the side.

    Compare the variance of an imbalance times the mass, per report. For a bit it is d + 1 over
    tanh^2(eps/2), because one part in d + 1 is for the masses. For sides it is d times the variance
    of the difference of two of 2K estimates, which also give the masses.
    """
    bits = precision_of("auto", 2, epsilon_nano)
    sides = precision_of("auto", 2 * clusters, epsilon_nano)
    of_bits = (n_features + 1) / bits.contrast**2
    of_sides = n_features * (2 * sides.spread_variance + max(sides.slope_variance + 1, 0.0) / clusters)
    return of_bits < of_sides


def phases(epsilon_nano: int) -> int:
    """Return L, the number of phases of a wave."""
    return FINE_PHASES if epsilon_nano >= FINE_PHASES_EPSILON_NANO else PHASES


def sketched_reports(n_features: int, n_clusters: int, n_attributes: int = 0) -> float:
    """Return the N tanh^2(eps/2) from which phases find the centroids."""
    crowd = max(1.0, n_clusters / FEW_CLUSTERS) ** 3
    needed = SKETCHED_REPORTS_PER_FEATURE * max(n_features, FEWEST_FEATURES) * crowd
    return needed * category_price(n_attributes)


def category_price(n_attributes: int) -> float:
    """Return the factor of the required reports for this number of attributes."""
    return CATEGORY_PRICES[min(n_attributes, len(CATEGORY_PRICES) - 1)]


def supported_clusters(n_features: int, n_effective: float, n_attributes: int = 0) -> int:
    """Return the largest number of clusters that phases find with N tanh^2(eps/2) = `n_effective`, at least 1."""
    crowd = n_effective / sketched_reports(n_features, 1, n_attributes)
    return 1 if crowd < 1 else max(1, floor(FEW_CLUSTERS * crowd ** (1 / 3) + 1e-9))


@plans(NoisyFcm)
def noisy_fcm_rounds(params: NoisyFcm, n_features: int, expected_reports: int) -> tuple[PlannedRound, ...]:
    """Return the round of `noisy_fcm`: noisy vectors over a lattice."""
    most = most_vectors(n_features)
    if expected_reports > most:
        raise InvalidSpec(f"noisy_fcm keeps every vector: over {n_features} features it takes {most} reports")
    epsilon_nano = params.epsilon_nano
    # with a tiny epsilon, fine steps would be useless and would exceed the maximum scale
    steps = max(1, min(LATTICE_STEPS, MAX_SCALE * epsilon_nano // (n_features * NANO)))
    encoding = LatticeEncoding(n_features, steps)
    return (PlannedRound(Participation(), "discrete_laplace", epsilon_nano, encoding.n_symbols, encoding),)


@plans(GridKmeans)
def grid_kmeans_rounds(params: GridKmeans, n_features: int, expected_reports: int) -> tuple[PlannedRound, ...]:
    """Return the round of `grid_kmeans`: cells of a grid."""
    epsilon_nano = params.epsilon_nano
    cells = params.cells or grid_kmeans_cells(n_features, expected_reports, epsilon_nano, params.clusters)
    if cells**n_features > MAX_KMEANS_CELLS:
        raise InvalidSpec(f"grid_kmeans takes at most {MAX_KMEANS_CELLS} cells in all")
    return (whole_round(params.epsilon, GridEncoding((cells,) * n_features)),)


def grid_kmeans_cells(n_features: int, n_reports: int, epsilon_nano: int, clusters: int) -> int:
    """Return m, the cells per feature that balance the cells' size and noise.

    Let K clusters of width W = K^(-1/d) share the box, over cells of width h = 1/m and noise
    v/N each. A centroid then moves by noise of variance (v/N) h^-d K^(1-2/d) / 12 a feature,
    and by the cells that its bounds cut by h^2/24 or so. The sum is least where
    m^(d+2) = N / (v d K^(1-2/d)). There are at least eight cells per cluster, because
    coarser grids cannot separate clusters. On S1, iris, xclara and blobs in 2 and 4 features
    (100,000 reports, epsilon .5 to 4) grids of .5, .75, 1 and 1.3 times (N/v)^(1/(d+2)) were compared: this
    rule, .7 to .85 of it, was within a tenth of the best except for four features at epsilon .5.
    """
    d = n_features
    effective = effective_reports(n_reports, epsilon_nano)
    balanced = round((effective / (d * clusters ** (1 - 2 / d))) ** (1 / (d + 2)))
    least = ceil(round((LEAST_CELLS * clusters) ** (1 / d), 6))
    most = int(round(MAX_CHOSEN_CELLS ** (1 / d), 6))
    return int(min(max(2, balanced, least), most, 1024))


@plans(LdpKmeans)
def ldp_kmeans_rounds(
    params: LdpKmeans,
    n_features: int,  # noqa: ARG001 - all rules have it
    expected_reports: int,
) -> tuple[PlannedRound, ...]:
    """Return the rounds of `ldp_kmeans`: first places, then broadcasts of centroids."""
    epsilon_nano = params.epsilon_nano
    first = first_places(params.clusters, expected_reports, epsilon_nano)
    places = (first, *[params.clusters] * (params.rounds - 1))
    # a report has a centroid and a side of it, so there are two symbols per centroid
    return tuple(
        PlannedRound(draw, "auto", epsilon_nano, 2 * n_places)
        for draw, n_places in zip(draws(centroid_shares(params.rounds)), places, strict=True)
    )


def first_places(clusters: int, n_reports: int, epsilon_nano: int) -> int:
    """Return the number of centroids of the first round: 8 K, or 16 K if masses are known to 1/20 of 1/K.

    More centroids separate close clusters, but add noise. Four blobs in 8
    features, two of them close, 100,000 reports: RMSE at epsilon 4 .023 with 8 K, .004 with
    16 K; at epsilon 1 .017 and .026.
    """
    first = effective_reports(n_reports, epsilon_nano) / (1 + FIRST_WEIGHT)
    many = first >= 2 * (20 * clusters) ** 2
    return min((2 if many else 1) * STARTS * clusters, MAX_CENTROIDS)


def centroid_shares(rounds: int) -> list[int]:
    """Return the shares of the rounds: one device in five for the first, equal parts of the rest for the others."""
    return [rounds - 1] + [FIRST_WEIGHT] * (rounds - 1)
