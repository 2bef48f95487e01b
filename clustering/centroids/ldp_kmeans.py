"""`ldp_kmeans`: k-means by rounds of broadcast centroids, each answered by a different part of the devices.

A round publishes centroids. A device draws a feature, finds its nearest centroid, and reports through a
frequency oracle at the full epsilon which one that is and whether its value lies above it in that feature:
one of 2k symbols. The server estimates masses and imbalances of the centroids, moves the centroids, and
publishes them in the next round. A device reports in one round only. Rounds therefore compose in parallel,
and a device spends epsilon once for any number of rounds.

The first round publishes many spread-out public places. Their masses select the start. The later rounds
move K centroids by the sign statistic in decreasing steps. The comparator LDPKmeans of Zhang et al. 2023 instead
spends epsilon on a perturbed record and on an assignment in every round, and starts from random places.
"""

from math import ceil, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustering.centroids.centroid_statistics import (
    NORMAL_WIDTH,
    CentroidStatistics,
    choose_initial_centroids,
    estimate_statistics,
    spread_places,
    step_direction,
    to_lattice,
    update_centroids,
)
from clustering.centroids.expected_ratio import expected_ratio
from clustering.centroids.partition_agreement import (
    REFITS,
    PartitionAgreement,
    Population,
    compare_partitions,
    draw_normal,
)
from clustering.centroids.verdict import BAD_LOSS, few, rate
from clustering.centroids.weighted_kmeans import lloyd
from clustering.density.label_map import PRIVACY, project_to_shares
from clustering.errors import TooFewReports, UnfitRound
from clustering.random import PublicWords
from clustering.rounds.decoders import Decoder, decoder
from clustering.rounds.plan import Collected, Plan
from sfumato.model.cluster_model import ClusterModel
from sfumato.records.encodings import unscale_errors, unscale_many
from sfumato.sizing import planned_rounds
from sfumato.sizing.required_reports import ldp_kmeans_reports
from sfumato.sizing.rounds import MAX_JSON_INT
from sfumato.specs import (
    Feature,
    LdpKmeans,
    NearestCentroidEncoding,
)

FIRST_STEP = 0.25  # in K^(-1/d), the width of K equal clusters that fill the box
LAST_STEP = 0.04  # share of the range, about the spread of a tight cluster
AROUND = 16  # points around each place of the first round, for refits
DEAD_SHARE = 0.2  # mass in even shares below which a centroid is moved elsewhere
DETECTABLE_ERRORS = 2.0  # standard errors above zero from which a size counts as detectable
SETTLED_ERRORS = 4.0  # standard errors of an imbalance above which a centroid counts as moving


def ldp_kmeans(params: LdpKmeans, features: tuple[Feature, ...], expected_reports: int) -> Plan:
    """Plan a round over 8 K or 16 K spread-out places, then `params.rounds - 1` rounds over K centroids.

    Privacy: epsilon per device, once, because the rounds' participation intervals are disjoint.

    Parameters
    ----------
    params : LdpKmeans
    features : tuple of Feature
        One to 64.
    expected_reports : int
        Decides the number of places in the first round.

    Raises
    ------
    InvalidSpec
        The number of features is not supported.
    TooFewReports
        No round has reports.
    UnfitRound
        A published round has another encoding or another number of centroids, or its mechanism carries no
        information.
    """
    d, clusters = len(features), params.clusters
    words = PublicWords(params.seed)
    planned = planned_rounds(params, d, expected_reports)
    lengths = step_lengths(clusters, d, params.rounds - 1)
    published = tuple(tuple(row) for row in spread_places(planned[0].n_symbols // 2, d, params.seed).tolist())
    history: list[CentroidStatistics] = []
    ends: list[NDArray[np.float64]] = []  # centroids after each round
    for index, planned_round in enumerate(planned):
        collected: Collected = yield planned_round.spec(features, NearestCentroidEncoding(published))
        statistics = estimate_statistics(collected)
        if index == 0:
            places = choose_initial_centroids(statistics, clusters, words)
        else:
            if len(statistics.places) != clusters:
                raise UnfitRound("the round's number of centroids must equal the number of clusters")
            places = update_centroids(statistics, lengths[index - 1])
            ends.append(places)
            if index < params.rounds - _tail(params.rounds):
                places = revive(statistics, places, lengths[index - 1], words)
        history.append(statistics)
        published = to_lattice(places)
    return _model(params, collected, history, ends, lengths)


def step_lengths(clusters: int, n_features: int, n_steps: int) -> list[float]:
    """Return step lengths that decrease geometrically from K^(-1/d)/4 to .04 of the range.

    Final lengths of .06, .03 and 0 were compared on blobs of spread .025 to .1 in 2, 4 and 8 features.
    With .06 the centroids of the tightest blobs oscillated (RMSE .0088 instead of .0032); with 0 the
    distant ones were not reached.
    """
    first = max(FIRST_STEP * clusters ** (-1 / n_features), LAST_STEP)
    ratio = (LAST_STEP / first) ** (1 / max(n_steps - 1, 1))
    return [first * ratio**step for step in range(n_steps)]


def revive(
    statistics: CentroidStatistics, places: NDArray[np.float64], step: float, words: PublicWords
) -> NDArray[np.float64]:
    """Move centroids with very small masses next to the heaviest one, a step away in random directions.

    The rule uses noisy masses only. It eventually splits a cluster that covers two blobs, and lets a small
    cluster recover if its centroid is close enough.
    """
    share = DEAD_SHARE / len(places)
    (dead,) = np.nonzero(statistics.masses < share)
    if len(dead) == len(places):
        return places
    out = places.copy()
    signs = np.where(words.uniform(len(dead), places.shape[1]) < 0.5, -1.0, 1.0)
    out[dead] = np.clip(places[statistics.masses.argmax()] + 0.5 * step * signs, 0.0, 1.0)
    return out


def _tail(rounds: int) -> int:
    """Return the number of final rounds that the model averages."""
    return max(1, (rounds - 1) // 2)


def _model(
    params: LdpKmeans,
    last: Collected,
    history: list[CentroidStatistics],
    ends: list[NDArray[np.float64]],
    lengths: list[float],
) -> ClusterModel:
    """Build the model: centroids averaged over the last rounds, by descending size.

    Sizes average the masses of these rounds, weighted by reports. `centroid_errors` propagate the
    counting noise of these rounds through the steps, without the pull back to the median. They are too
    large for clusters about as wide as the last steps, .04 of the range, and too small for much wider
    ones. They do not include centroids that have not arrived (see `settled`) or a start that leads to a
    wrong optimum.
    """
    n_reports = sum(found.n_reports for found in history)
    if n_reports == 0:
        raise TooFewReports(n_reports=0, n_needed=1)
    tail = _tail(params.rounds)
    late = [found for found in history[-tail:] if found.n_reports] or [
        max(history[1:], key=lambda found: found.n_reports)
    ]
    weights = np.array([found.n_reports for found in late], dtype=np.float64)
    weights /= max(weights.sum(), 1.0)
    masses = sum((w * found.masses for w, found in zip(weights, late, strict=True)), np.zeros(params.clusters))
    squares = sum(((w * found.mass_errors) ** 2 for w, found in zip(weights, late, strict=True)), np.zeros_like(masses))
    centres = np.mean(ends[-tail:], axis=0)
    errors = _propagate_errors(history[-tail:], lengths[-tail:])
    sizes = project_to_shares(masses)
    order = np.argsort(-sizes, kind="stable")
    features = last.spec.features
    centroids = unscale_many(features, centres[order])
    diagnostics = _diagnostics(params, decoder(last.spec.mechanism), history, order)
    lack = diagnostics["reports_needed"] / n_reports
    agreement = _compare_refits(params, history[0], centres, errors)
    estimate = expected_ratio("ldp_kmeans", sizes, errors, _mean_square(history[0], centres), lack)
    return ClusterModel(
        type="centroids",
        features=features,
        sizes=sizes[order],
        size_errors=np.sqrt(squares)[order],
        centroids=centroids,
        centroid_errors=unscale_errors(features, centroids, errors[order]),
        diagnostics={**diagnostics, "expected_ratio": estimate.to_wire(), "refits": agreement.to_wire()},
        warnings=_warnings(diagnostics),
        privacy=PRIVACY,
        **rate(estimate.loss, agreement, few(is_low=diagnostics["low_confidence"]), bad_from=BAD_LOSS),
    )


def _compare_refits(
    params: LdpKmeans, first: CentroidStatistics, centres: NDArray[np.float64], errors: NDArray[np.float64]
) -> PartitionAgreement:
    """Return the agreement of refits from the first round's masses with new noise.

    People are spread evenly around each place of the first round.
    """
    words, (m, d) = PublicWords(params.seed), first.places.shape
    shares = project_to_shares(first.masses)
    heavy = np.flatnonzero(shares)
    around = np.repeat(first.places[heavy], AROUND, axis=0)
    around = np.clip(around + (words.uniform(*around.shape) - 0.5) * m ** (-1 / d), 0.0, 1.0)
    population = Population(around, np.repeat(shares[heavy], AROUND))
    refits = []
    for _ in range(REFITS):
        masses = shares + first.mass_errors * draw_normal(words, m)
        start = choose_initial_centroids(first._replace(masses=masses), params.clusters, words)
        found = lloyd(*population, start).centres
        refits.append(found + errors * draw_normal(words, *found.shape))
    return compare_partitions("rounds", population, centres, refits)


def _mean_square(first: CentroidStatistics, centres: NDArray[np.float64]) -> float:
    """Return the mean squared distance of the first round's places, weighted by mass, from their nearest centroid."""
    squares = ((first.places[:, None] - centres) ** 2).sum(axis=2).min(axis=1)
    return float(project_to_shares(first.masses) @ squares)


def _propagate_errors(late: list[CentroidStatistics], lengths: list[float]) -> NDArray[np.float64]:
    """Return standard errors of the mean of the centroids after the last rounds: (k, d).

    The noise of a round's step affects the centroids after it and after all later rounds.
    """
    total = np.zeros_like(late[0].places)
    for index, (statistics, step) in enumerate(zip(late, lengths, strict=True)):
        share = (len(late) - index) / len(late)
        total += (share * step * NORMAL_WIDTH * step_direction(statistics)[1]) ** 2
    return np.asarray(np.sqrt(total), dtype=np.float64)


def _diagnostics(
    params: LdpKmeans, decoding: Decoder, history: list[CentroidStatistics], order: NDArray[np.int64]
) -> dict[str, Any]:
    """Return the diagnostics of a run.

    With `reports_needed` reports, the relative imbalance of an even share has a standard error of 1/2 per
    round and feature: n = 8 v d K^2 reports per round. `settled` is false for a centroid if its last
    imbalance exceeds half its mass by more than four standard errors.
    """
    n_reports = sum(statistics.n_reports for statistics in history)
    n_eff = n_reports * decoding.signal
    last = history[-1]
    d = last.places.shape[1]
    least = ldp_kmeans_reports(decoding.spread_variance, params.rounds, d, params.clusters)
    needed = int(min(max(1, ceil(least)), MAX_JSON_INT))
    noise = np.where(np.isfinite(last.imbalance_errors), last.imbalance_errors, 0.0)
    still = np.maximum(last.masses, 0.0)[:, None] / 2 + SETTLED_ERRORS * noise
    return {
        "n_reports": n_reports,
        "n_eff": n_eff if isfinite(n_eff) else None,
        "reports_needed": needed,
        "insufficient_reports": n_reports < needed,
        "low_confidence": n_reports < needed,
        "reports_by_round": [statistics.n_reports for statistics in history],
        "first_places": len(history[0].places),
        "detectable": (last.masses > DETECTABLE_ERRORS * last.mass_errors)[order].tolist(),
        "settled": np.all(np.abs(last.imbalances) <= still, axis=1)[order].tolist(),
    }


def _warnings(diagnostics: dict[str, Any]) -> tuple[str, ...]:
    """Return the limitations of the model, as sentences."""
    warnings = []
    n_reports, needed = diagnostics["n_reports"], diagnostics["reports_needed"]
    if n_reports < needed:
        warnings.append(
            f"{n_reports} reports are few for this number of rounds, features and clusters; about {needed} are enough."
        )
    if not all(diagnostics["detectable"]):
        doubtful = ", ".join(str(c) for c, is_clear in enumerate(diagnostics["detectable"]) if not is_clear)
        warnings.append(f"Clusters with a size less than two standard errors above zero: {doubtful}.")
    if not all(diagnostics["settled"]):
        moving = ", ".join(str(c) for c, is_settled in enumerate(diagnostics["settled"]) if not is_settled)
        warnings.append(f"Centroids that still moved in the last round: {moving}. More rounds may help.")
    return tuple(warnings)
