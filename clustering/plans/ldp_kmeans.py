"""`ldp_kmeans`: k-means by rounds of broadcast centroids, each for its own part of the devices.

A round publishes centroids, the same for everybody. A device draws a feature, finds its
nearest centroid and reports, through a frequency oracle at the full epsilon, which one that
is and whether it lies above it in that feature: one of 2k symbols. The server learns the
centroids' masses and leans and nothing of any one device beyond its report; the next devices
are shown centroids that those noisy counts moved. A device answers one round, so it spends
epsilon once, whatever the number of rounds: the rounds compose in parallel.

The comparator that paper 000 calls LDPKmeans spends epsilon on a perturbed record and on an
assignment in every round, and starts from random places. Here the first round instead shows many
spread-out places, chosen without looking at anybody, whose masses say where to start; the
later ones move the K centroids by the sign statistic (STATISTICS 4.2, "second round"), in
steps that get shorter.
"""

from math import ceil, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustering.broadcast_centroids import WIDTH, Heard, balance, gather, hear, moved, spread_out, to_lattice
from clustering.decoders import Decoder, decoder
from clustering.errors import TooFewReports, UnfitRound
from clustering.label_regions import PRIVACY, project_to_shares
from clustering.phase_search import PublicWords
from clustering.plan import Collected, Plan
from sfumato.cluster_model import ClusterModel
from sfumato.encodings import unscale_many
from sfumato.sizing import MAX_JSON_INT, leaning_reports, planned_rounds
from sfumato.specs import (
    Feature,
    LdpKmeans,
    NearestCentroidEncoding,
)

FIRST_STEP = 0.25  # of K^(-1/d), the width of a cluster if all were alike and filled the box
LAST_STEP = 0.04  # of the range: about the spread of a tight cluster
DEAD_SHARE = 0.2  # of an even share: below it a centroid is tried elsewhere
DETECTABLE_ERRORS = 2.0  # that a size must stand above zero
SETTLED_ERRORS = 4.0  # standard errors of a lean that say a centroid was still moving


def ldp_kmeans(params: LdpKmeans, features: tuple[Feature, ...], expected_reports: int) -> Plan:
    """The plan: a round over 8 K or 16 K spread-out places, then `params.rounds - 1` over K centroids.

    Parameters
    ----------
    params : LdpKmeans
    features : tuple of Feature
        One to 64.
    expected_reports : int
        Says how many places the first round shows.

    Raises
    ------
    InvalidSpec
        Another number of features.
    TooFewReports
        No round brought any.
    UnfitRound
        A published round is not over nearest centroids, or over another number of them than
        there are clusters, or tells nothing.
    """
    d, clusters = len(features), params.clusters
    words = PublicWords(params.seed)
    planned = planned_rounds(params, d, expected_reports)
    lengths = step_lengths(clusters, d, params.rounds - 1)
    shown = tuple(tuple(row) for row in spread_out(planned[0].n_symbols // 2, d, params.seed).tolist())
    told: list[Heard] = []
    ends: list[NDArray[np.float64]] = []  # where the centroids stood after each round
    for index, asked in enumerate(planned):
        collected: Collected = yield asked.spec(features, NearestCentroidEncoding(shown))
        heard = hear(collected)
        if index == 0:
            places = gather(heard, clusters, words)
        else:
            if len(heard.places) != clusters:
                raise UnfitRound("this round is over another number of centroids than there are clusters")
            places = moved(heard, lengths[index - 1])
            ends.append(places)
            if index < params.rounds - _tail(params.rounds):
                places = revived(heard, places, lengths[index - 1], words)
        told.append(heard)
        shown = to_lattice(places)
    return _model(params, collected, told, ends, lengths)


def step_lengths(clusters: int, n_features: int, n_steps: int) -> list[float]:
    """Lengths of the steps, falling in proportion from K^(-1/d)/4 to .04 of the range: public facts alone.

    Lengths down to .06, .03 and 0 were compared on blobs of spread .025 to .1 in 2, 4 and 8
    features: .06 rocked the tightest (RMSE .0088 for .0032), 0 stopped short of the far ones.
    """
    first = max(FIRST_STEP * clusters ** (-1 / n_features), LAST_STEP)
    ratio = (LAST_STEP / first) ** (1 / max(n_steps - 1, 1))
    return [first * ratio**step for step in range(n_steps)]


def revived(heard: Heard, places: NDArray[np.float64], step: float, words: PublicWords) -> NDArray[np.float64]:
    """Put centroids that next to nobody is near beside the heaviest, a step away in random directions.

    The rule looks at noisy masses alone. A cluster with two blobs is so parted in time; one
    that was only small comes back too, if its centroid was within reach.
    """
    share = DEAD_SHARE / len(places)
    (dead,) = np.nonzero(heard.masses < share)
    if len(dead) == len(places):
        return places
    out = places.copy()
    signs = np.where(words.uniform(len(dead), places.shape[1]) < 0.5, -1.0, 1.0)
    out[dead] = np.clip(places[heard.masses.argmax()] + 0.5 * step * signs, 0.0, 1.0)
    return out


def _tail(rounds: int) -> int:
    """How many of the last rounds the model is made of."""
    return max(1, (rounds - 1) // 2)


def _model(
    params: LdpKmeans,
    last: Collected,
    told: list[Heard],
    ends: list[NDArray[np.float64]],
    lengths: list[float],
) -> ClusterModel:
    """Centroids averaged over the last rounds, by descending size.

    Sizes average the masses of those rounds, each by its reports. `centroid_errors` carry the
    counting noise of those rounds through the steps, as if nothing pulled a centroid back; that is
    too much for clusters about as wide as the last steps, .04 of the range, and too little
    for far wider ones. They do not know of a centroid that has not arrived (see `settled`),
    nor of a start that led to the wrong optimum.
    """
    n_reports = sum(heard.n_reports for heard in told)
    if n_reports == 0:
        raise TooFewReports(n_reports=0, n_needed=1)
    tail = _tail(params.rounds)
    late = [heard for heard in told[-tail:] if heard.n_reports] or [max(told[1:], key=lambda heard: heard.n_reports)]
    weights = np.array([heard.n_reports for heard in late], dtype=np.float64)
    weights /= max(weights.sum(), 1.0)
    masses = sum((w * heard.masses for w, heard in zip(weights, late, strict=True)), np.zeros(params.clusters))
    squares = sum(((w * heard.mass_errors) ** 2 for w, heard in zip(weights, late, strict=True)), np.zeros_like(masses))
    centres = np.mean(ends[-tail:], axis=0)
    errors = _propagated(told[-tail:], lengths[-tail:])
    sizes = project_to_shares(masses)
    order = np.argsort(-sizes, kind="stable")
    features = last.spec.features
    ranges = np.array([feature.upper - feature.lower for feature in features])
    diagnostics = _diagnostics(params, decoder(last.spec.mechanism), told, order)
    return ClusterModel(
        type="centroids",
        features=features,
        sizes=sizes[order],
        size_errors=np.sqrt(squares)[order],
        centroids=unscale_many(features, centres[order]),
        centroid_errors=errors[order] * ranges,
        diagnostics=diagnostics,
        warnings=_warnings(diagnostics),
        privacy=PRIVACY,
    )


def _propagated(late: list[Heard], lengths: list[float]) -> NDArray[np.float64]:
    """Standard errors of the mean of where the centroids stood after the last rounds: (k, d).

    The noise of a round's step stands in the place after it and in all later ones.
    """
    total = np.zeros_like(late[0].places)
    for index, (heard, step) in enumerate(zip(late, lengths, strict=True)):
        share = (len(late) - index) / len(late)
        total += (share * step * WIDTH * balance(heard)[1]) ** 2
    return np.asarray(np.sqrt(total), dtype=np.float64)


def _diagnostics(params: LdpKmeans, reading: Decoder, told: list[Heard], order: NDArray[np.int64]) -> dict[str, Any]:
    """Plain facts of the run.

    `reports_needed` gives the balance of an even share, in one round and feature, a standard
    error of a half: n = 8 v d K^2 reports a round. `settled` is false where a centroid of the last
    round still had half or more of its people on one side, by more than four standard errors.
    """
    n_reports = sum(heard.n_reports for heard in told)
    n_eff = n_reports * reading.signal
    last = told[-1]
    d = last.places.shape[1]
    least = leaning_reports(reading.spread_variance, params.rounds, d, params.clusters)
    needed = int(min(max(1, ceil(least)), MAX_JSON_INT))
    noise = np.where(np.isfinite(last.lean_errors), last.lean_errors, 0.0)
    still = np.maximum(last.masses, 0.0)[:, None] / 2 + SETTLED_ERRORS * noise
    return {
        "n_reports": n_reports,
        "n_eff": n_eff if isfinite(n_eff) else None,
        "reports_needed": needed,
        "insufficient_reports": n_reports < needed,
        "low_confidence": n_reports < needed,
        "reports_by_round": [heard.n_reports for heard in told],
        "first_places": len(told[0].places),
        "detectable": (last.masses > DETECTABLE_ERRORS * last.mass_errors)[order].tolist(),
        "settled": np.all(np.abs(last.leans) <= still, axis=1)[order].tolist(),
    }


def _warnings(diagnostics: dict[str, Any]) -> tuple[str, ...]:
    """What a reader must know before they believe the model, in sentences."""
    said = []
    n_reports, needed = diagnostics["n_reports"], diagnostics["reports_needed"]
    if n_reports < needed:
        said.append(f"{n_reports} reports are few for so many rounds, features and clusters; about {needed} would do.")
    if not all(diagnostics["detectable"]):
        doubtful = ", ".join(str(c) for c, is_clear in enumerate(diagnostics["detectable"]) if not is_clear)
        said.append(f"Clusters whose size is not two standard errors above zero: {doubtful}.")
    if not all(diagnostics["settled"]):
        moving = ", ".join(str(c) for c, is_settled in enumerate(diagnostics["settled"]) if not is_settled)
        said.append(f"Centroids that were still moving in the last round: {moving}; more rounds might help.")
    return tuple(said)
