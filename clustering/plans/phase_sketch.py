"""`phase_sketch`: phases of public waves, a mixture fitted to them, and rounds that refine it (STATISTICS 4.2)."""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

from clustering.broadcast_centroids import to_lattice
from clustering.centroid_signs import hear_about
from clustering.errors import TooFewReports, UnfitRound
from clustering.particle_rounds import Standing, moved
from clustering.phase_model import sketch_of
from clustering.phase_result import Told, contrast_of, of_mixture, of_particles
from clustering.phase_search import PublicWords, count, search
from clustering.phase_switch import Start, misfits, start_of, start_of_particles
from clustering.phase_waves import limits_for, waves_for
from clustering.plan import Collected, Plan, Tally
from sfumato.cluster_model import ClusterModel
from sfumato.sizing import PlannedRound, asks_density, asks_signs, planned_rounds, refinement
from sfumato.specs import (
    CentroidSignEncoding,
    Encoding,
    Feature,
    NearestCentroidEncoding,
    PhaseEncoding,
    PhaseSketch,
)

DENSITY_LENGTHS = 3.0, 20.0  # |omega| of waves that are to tell how people spread


def phase_sketch(params: PhaseSketch, features: tuple[Feature, ...], expected_reports: int) -> Plan:
    """The plan: phases from everybody and `fit`, or from a part of the devices and `_refined` with the others.

    Raises
    ------
    TooFewReports
        The first round brought nothing.
    UnfitRound
        A round is not what was asked for, or tells nothing.
    """
    d = len(features)
    first, *later = planned_rounds(params, d, expected_reports)
    lengths = DENSITY_LENGTHS if asks_density(params, d, expected_reports) else None
    waves = waves_for(d, params.clusters, params.slots, first.epsilon_nano, params.seed, lengths)
    collected = yield first.spec(features, waves)
    if not later or params.clusters is None:
        return fit(params, collected)
    return (yield from _refined(params, params.clusters, collected, later))


def _refined(params: PhaseSketch, clusters: int, collected: Collected, later: Sequence[PlannedRound]) -> Plan:
    """Rounds about centroids, for the other devices; the first one of phases, where those told too little to ask.

    What the first of them says of clear clusters can show that they are none, and the rest asks about
    those of particles.
    """
    spec, rounds = collected.spec, list(later)
    told = _told(params, [collected], collected.tally.n_reports)
    by_round = [told.n_reports]
    start = _start(params, clusters, told, is_last=False)
    if start.standing is None:
        again = yield replace(rounds.pop(0), kind="window").spec(spec.features, spec.encoding)
        by_round.append(again.tally.n_reports)
        told = _told(params, [collected, again], sum(by_round))
        if not rounds:
            fitted = search(told.sketch, clusters, told.limits, PublicWords(params.seed))
            return of_mixture(told, fitted, more={"refined": start.way, "reports_by_round": by_round})
        start = _start(params, clusters, told, is_last=True)
    standing = start.standing
    assert standing is not None  # noqa: S101 - for the type checker: phases are asked once more at most
    for place, asked in enumerate(rounds):
        answered = yield asked.spec(spec.features, _about(standing, asked.epsilon_nano))
        heard = hear_about(answered, clusters)
        if place == 0 and start.way == "clear" and params.refine == "auto" and misfits(standing, heard):
            start = start_of_particles(told.sketch, clusters, params.seed)
            standing = start.standing or standing
        else:
            standing = moved(standing, heard)
        by_round.append(answered.tally.n_reports)
    path = start.path
    more: dict[str, Any] = {
        "refined": start.way,
        "reports_by_round": by_round,
        "family": None if path is None else path.family,
        "atoms": None if path is None else path.atoms,
    }
    return of_particles(told._replace(n_all_reports=sum(by_round)), standing, more)


def _start(params: PhaseSketch, clusters: int, told: Told, is_last: bool) -> Start:
    refine = refinement(params, told.sketch.n_features)
    return start_of(told.sketch, refine, clusters, told.n_reports * told.contrast**2, params.seed, is_last)


def _about(standing: Standing, epsilon_nano: int) -> Encoding:
    """What is asked about centroids: what tells more of them at this epsilon."""
    places = to_lattice(standing.centres)
    k, d = standing.centres.shape
    return CentroidSignEncoding(places) if asks_signs(k, d, epsilon_nano) else NearestCentroidEncoding(places)


def _told(params: PhaseSketch, phases: Sequence[Collected], n_all_reports: int) -> Told:
    """What rounds of the same phases tell together.

    Raises
    ------
    TooFewReports
        They brought nothing.
    UnfitRound
        A round is none of phases, tells nothing, or is not of the first one's waves and mechanism.
    """
    first = phases[0].spec
    if not isinstance(first.encoding, PhaseEncoding):
        raise UnfitRound("phase_sketch goes on from a round of phases")
    if any((each.spec.encoding, each.spec.mechanism) != (first.encoding, first.mechanism) for each in phases):
        raise UnfitRound("these rounds of phases are of different waves")
    tally: Tally = reduce(add, (each.tally for each in phases))
    if tally.n_reports == 0:
        raise TooFewReports(n_reports=0, n_needed=1)
    return Told(
        features=first.features,
        sketch=sketch_of(first.encoding, first.mechanism, tally),
        contrast=contrast_of(first.mechanism),
        limits=limits_for(first.encoding.n_features),
        asked_for=params.clusters,
        n_reports=tally.n_reports,
        n_all_reports=n_all_reports,
    )


def fit(params: PhaseSketch, collected: Collected) -> ClusterModel:
    """The model of a collected round, whose waves and mechanism are taken as published.

    Returns
    -------
    ClusterModel
        Centroids, clusters by descending share, with standard errors from the Fisher
        information. Diagnostics: n_reports; n_eff (N tanh^2(eps/2)); reports_needed (for as
        many as the features and clusters take); insufficient_reports and low_confidence (there are fewer); widths and
        width_errors per cluster (standard deviation in every direction, as a share of a
        feature's range); cramer_rao_error (root mean square of the centroids' errors, likewise);
        detectable per cluster; negative_log_likelihood; bic of 1, 2, ... clusters where their
        number was left open; waves_answered; converged.

    Raises
    ------
    TooFewReports
        The round brought nothing.
    UnfitRound
        The round is none of phases, or tells nothing.
    """
    told = _told(params, [collected], collected.tally.n_reports)
    words = PublicWords(params.seed)
    if params.clusters is not None:
        return of_mixture(told, search(told.sketch, params.clusters, told.limits, words))
    counted = count(told.sketch, told.n_reports, told.limits, words)
    return of_mixture(told, counted.fitted, counted.criteria)
