"""How plans that do not end in a grid's label map size their rounds: cuts, phases, vectors, centroids."""

from math import ceil

from sfumato.accounting import NANO, parse_epsilon
from sfumato.errors import InvalidSpec
from sfumato.sizing.rounds import PlannedRound, draws, effective_reports, precision_of, whole_round
from sfumato.specs import (
    MAX_CENTROIDS,
    MAX_FEATURES,
    MAX_SAMPLE_VALUES,
    MAX_SCALE,
    Draw,
    GridEncoding,
    GridKmeans,
    LatticeEncoding,
    LdpKmeans,
    NoisyFcm,
    PhaseSketch,
    Refine,
    ValleyHashing,
)

# valley_hashing
MIN_VALLEY_FEATURES = 2
VALLEY_FIRST_SHARE = 0.4  # of the draws, that look for valleys
VALLEY_CELLS = 10  # s, coarse cells along a direction

# phase_sketch. At epsilon 8 and above a phase is told finely. Two reports of half the epsilon each
# would tell a little more (sqrt 2 at most), but take a second round of every device's time.
PHASES = 16  # L
FINE_PHASES = 64
FINE_PHASES_EPSILON_NANO = 8_000_000_000

# Its later rounds, each for other devices: of so many parts the first round's, and how many follow.
PARTS = 40
LLOYD_FIRST, LLOYD_ROUNDS = 12, 4
FLAT_FIRST, FLAT_ROUNDS = 28, 2  # with one or two features
SIGN_FIRST = 20
MOST_FIRST = 36  # where phases need more, all are phases
FLAT_FEATURES = 2
LEAST_REFINED_FEATURES = 4  # for 'auto'

# N tanh^2(eps/2) from which on centroids are found: about 1000 with 2 or 4 features and 4 clusters,
# 2000 with 8 (STATISTICS 4.2). Eight clusters took eight times as many: what is seen of a cluster falls
# with the square of its share, and there are more of them to miss.
SKETCHED_REPORTS_PER_FEATURE = 250
FEWEST_FEATURES, FEW_CLUSTERS = 4, 4

# grid_kmeans
MAX_KMEANS_FEATURES = 4
MAX_KMEANS_CELLS = 1 << 16  # in all
MAX_CHOSEN_CELLS = 1 << 14  # in all, where nobody asked for more
LEAST_CELLS = 8  # for each cluster

# ldp_kmeans
STARTS = 8  # places of the first round for each cluster; twice as many where reports are
FIRST_WEIGHT = 4  # the first round's part of the devices is one in 1 + 4: see `centroid_shares`

# noisy_fcm
LATTICE_STEPS = 1000  # lattice units a feature, far below the noise


def of_valley_hashing(params: ValleyHashing, n_features: int) -> tuple[PlannedRound, ...]:
    """Round 2 is not opened where no direction has a valley; that changes what is known, not what it costs."""
    if not MIN_VALLEY_FEATURES <= n_features <= MAX_FEATURES:
        raise InvalidSpec(f"valley_hashing takes {MIN_VALLEY_FEATURES} to {MAX_FEATURES} features")
    epsilon_nano = parse_epsilon(params.epsilon)
    return (
        PlannedRound(Draw.between(0, VALLEY_FIRST_SHARE), "auto", epsilon_nano, VALLEY_CELLS + 1),
        PlannedRound(Draw.between(VALLEY_FIRST_SHARE, 1), "auto", epsilon_nano, 1 << params.cuts, adapts=True),
    )


def of_phase_sketch(params: PhaseSketch, n_features: int, expected_reports: int) -> tuple[PlannedRound, ...]:
    """A round of phases, and what follows it: all planned, whatever the answers will be.

    A later round asks about centroids; the second, but of 'lloyd', asks for phases once more where those
    of the first do not tell enough to ask about them.
    """
    if not 1 <= n_features <= MAX_FEATURES:
        raise InvalidSpec(f"phase_sketch takes 1 to {MAX_FEATURES} features")
    epsilon_nano = parse_epsilon(params.epsilon)
    n_phases = phases(epsilon_nano)
    first, n_later = first_part(params, n_features, expected_reports)
    if n_later == 0 or params.clusters is None:
        return (PlannedRound(Draw(), "window", epsilon_nano, n_phases),)
    told = 2 if asks_signs(params.clusters, n_features, epsilon_nano) else 2 * params.clusters
    of_phases, second, *later = draws([first * n_later, *[PARTS - first] * n_later])
    n_symbols = told if params.refine == "lloyd" else max(told, n_phases)
    return (
        PlannedRound(of_phases, "window", epsilon_nano, n_phases),
        PlannedRound(second, "auto", epsilon_nano, n_symbols, adapts=True),
        *(PlannedRound(draw, "auto", epsilon_nano, told, adapts=True) for draw in later),
    )


def first_part(params: PhaseSketch, n_features: int, expected_reports: int) -> tuple[int, int]:
    """The first round's parts of 40 of the devices, and how many rounds follow it.

    Left to 'auto', it has as many as phases need to find so many clear clusters, where those of nine in ten
    devices are enough; at least three in ten, and three in ten where they are not, for that tells the density as
    well as it can be told.
    """
    refine = refinement(params, n_features)
    if refine == "none" or params.clusters is None:
        return PARTS, 0
    if refine == "sign":
        return SIGN_FIRST, 1
    if n_features <= FLAT_FEATURES:
        return FLAT_FIRST, FLAT_ROUNDS
    if asks_density(params, n_features, expected_reports):
        return LLOYD_FIRST, LLOYD_ROUNDS
    needed = ceil(PARTS * phases_needed(params, n_features, expected_reports))
    if needed > MOST_FIRST:
        return PARTS, 0
    first = max(needed, LLOYD_FIRST)
    return first, max(1, round(LLOYD_ROUNDS * (PARTS - first) / (PARTS - LLOYD_FIRST)))


def asks_density(params: PhaseSketch, n_features: int, expected_reports: int) -> bool:
    """Whether the first round is about how people spread, not about clear clusters: more than phases would find."""
    if n_features <= FLAT_FEATURES:
        return False
    refine = refinement(params, n_features)
    return refine == "lloyd" or (refine == "auto" and phases_needed(params, n_features, expected_reports) > 1)


def phases_needed(params: PhaseSketch, n_features: int, expected_reports: int) -> float:
    """The share of the devices whose phases suffice to find so many clear clusters; above 1, all do not."""
    tells = expected_reports * precision_of("auto", 2, parse_epsilon(params.epsilon)).contrast ** 2
    return sketched_reports(n_features, params.clusters or 1) / tells


def refinement(params: PhaseSketch, n_features: int) -> Refine:
    """What follows the first round; 'auto' where that is left to its answers."""
    if params.refine != "auto":
        return params.refine
    refines = params.clusters is not None and params.clusters > 1 and n_features >= LEAST_REFINED_FEATURES
    return "auto" if refines else "none"


def asks_signs(clusters: int, n_features: int, epsilon_nano: int) -> bool:
    """Whether a bit about the nearest centroid tells more of its leans than the centroid and the side do.

    The variance of a lean times the mass, for each report: of a bit d + 1 over
    tanh^2(eps/2), one part in d + 1 being about masses; of sides d times that of the difference of two
    of 2K estimates, which tell of masses besides.
    """
    bits = precision_of("auto", 2, epsilon_nano)
    sides = precision_of("auto", 2 * clusters, epsilon_nano)
    of_bits = (n_features + 1) / bits.contrast**2
    of_sides = n_features * (2 * sides.spread_variance + max(sides.slope_variance + 1, 0.0) / clusters)
    return of_bits < of_sides


def phases(epsilon_nano: int) -> int:
    """L, how many phases a wave is told in."""
    return FINE_PHASES if epsilon_nano >= FINE_PHASES_EPSILON_NANO else PHASES


def sketched_reports(n_features: int, n_clusters: int) -> float:
    """N tanh^2(eps/2) from which on centroids are found by phases."""
    crowd = max(1.0, n_clusters / FEW_CLUSTERS) ** 3
    return SKETCHED_REPORTS_PER_FEATURE * max(n_features, FEWEST_FEATURES) * crowd


def of_noisy_fcm(params: NoisyFcm, n_features: int, expected_reports: int) -> tuple[PlannedRound, ...]:
    if not 1 <= n_features <= MAX_FEATURES:
        raise InvalidSpec(f"noisy_fcm takes 1 to {MAX_FEATURES} features")
    most = MAX_SAMPLE_VALUES // n_features
    if expected_reports > most:
        raise InvalidSpec(f"noisy_fcm keeps every vector: over {n_features} features it takes {most} reports")
    epsilon_nano = parse_epsilon(params.epsilon)
    # at the least epsilon the noise leaves no sense in fine steps, nor room for them
    steps = max(1, min(LATTICE_STEPS, MAX_SCALE * epsilon_nano // (n_features * NANO)))
    encoding = LatticeEncoding(n_features, steps)
    return (PlannedRound(Draw(), "discrete_laplace", epsilon_nano, encoding.n_symbols, encoding),)


def of_grid_kmeans(params: GridKmeans, n_features: int, expected_reports: int) -> tuple[PlannedRound, ...]:
    if not 1 <= n_features <= MAX_KMEANS_FEATURES:
        raise InvalidSpec(f"grid_kmeans takes 1 to {MAX_KMEANS_FEATURES} features")
    epsilon_nano = parse_epsilon(params.epsilon)
    cells = params.cells or grid_kmeans_cells(n_features, expected_reports, epsilon_nano, params.clusters)
    if cells**n_features > MAX_KMEANS_CELLS:
        raise InvalidSpec(f"grid_kmeans takes at most {MAX_KMEANS_CELLS} cells in all")
    return (whole_round(params.epsilon, GridEncoding((cells,) * n_features)),)


def grid_kmeans_cells(n_features: int, n_reports: int, epsilon_nano: int, clusters: int) -> int:
    """m, cells per feature, that weighs the cells' size against their noise.

    Let K clusters of width W = K^(-1/d) share the box, over cells of width h = 1/m and noise
    v/N each. A centroid then moves by noise of variance (v/N) h^-d K^(1-2/d) / 12 a feature,
    and by the cells that its bounds cut by h^2/24 or so. The sum is least where
    m^(d+2) = N / (v d K^(1-2/d)). At least eight cells a cluster: what is coarser cannot tell
    them apart. On S1, iris, xclara and blobs in 2 and 4 features (100,000 reports, epsilon .5
    to 4) grids of .5, .75, 1 and 1.3 times (N/v)^(1/(d+2)) were compared: this rule, .7 to .85
    of it, was within a tenth of the best but for four features at epsilon .5.
    """
    d = n_features
    effective = effective_reports(n_reports, epsilon_nano)
    balanced = round((effective / (d * clusters ** (1 - 2 / d))) ** (1 / (d + 2)))
    least = ceil(round((LEAST_CELLS * clusters) ** (1 / d), 6))
    most = int(round(MAX_CHOSEN_CELLS ** (1 / d), 6))
    return int(min(max(2, balanced, least), most, 1024))


def of_ldp_kmeans(params: LdpKmeans, n_features: int, expected_reports: int) -> tuple[PlannedRound, ...]:
    if not 1 <= n_features <= MAX_FEATURES:
        raise InvalidSpec(f"ldp_kmeans takes 1 to {MAX_FEATURES} features")
    epsilon_nano = parse_epsilon(params.epsilon)
    first = first_places(params.clusters, expected_reports, epsilon_nano)
    places = (first, *[params.clusters] * (params.rounds - 1))
    # a report names a place and a side of it: two symbols each, known however the centroids move
    return tuple(
        PlannedRound(draw, "auto", epsilon_nano, 2 * n_places)
        for draw, n_places in zip(draws(centroid_shares(params.rounds)), places, strict=True)
    )


def first_places(clusters: int, n_reports: int, epsilon_nano: int) -> int:
    """How many places the first round shows: 8 K, or 16 K where a place's mass is heard to a twentieth of 1/K.

    More places find clusters that share a neighbourhood, and add noise. Four blobs in 8
    features, two of them close, 100,000 reports: RMSE at epsilon 4 .023 with 8 K, .004 with
    16 K; at epsilon 1 .017 and .026.
    """
    first = effective_reports(n_reports, epsilon_nano) / (1 + FIRST_WEIGHT)
    many = first >= 2 * (20 * clusters) ** 2
    return min((2 if many else 1) * STARTS * clusters, MAX_CENTROIDS)


def centroid_shares(rounds: int) -> list[int]:
    """The first round is for one device in five, the others for equal parts of the rest."""
    return [rounds - 1] + [FIRST_WEIGHT] * (rounds - 1)
