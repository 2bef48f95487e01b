"""`phase_sketch`: phases of public waves, a mixture fitted to them, and rounds that refine it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from clustering.centroids.centroid_statistics import estimate_round_statistics, to_lattice
from clustering.errors import TooFewReports, UnfitRound
from clustering.phases.category_result import fit_categories
from clustering.phases.initialisation import count, search
from clustering.phases.mixture_fit import sketch_of
from clustering.phases.model_selection import (
    APART,
    RefinementStart,
    choose_start,
    contradicts_clusters,
    separation,
    start_of_particles,
    state_of_overlap,
)
from clustering.phases.particles import CentroidState, update_state
from clustering.phases.result import ClusterCount, PhaseData, contrast_of, model_of_mixture, model_of_particles
from clustering.phases.waves import limits_for, waves_for
from clustering.random import PublicWords
from clustering.rounds.plan import Collected, Plan
from clustering.rounds.tally import Tally
from sfumato.model.cluster_model import ClusterModel
from sfumato.sizing import planned_rounds
from sfumato.sizing.centroids import needs_density, prefers_signs, refinement, supported_clusters
from sfumato.sizing.rounds import PlannedRound
from sfumato.specs import (
    CentroidSignEncoding,
    Encoding,
    Feature,
    NearestCentroidEncoding,
    PhaseEncoding,
    PhaseSketch,
    circles_of,
)
from sfumato.specs.attributes import Categorical

DENSITY_LENGTHS = 3.0, 20.0  # least and greatest |omega| of waves that estimate the density


def phase_sketch(
    params: PhaseSketch,
    features: tuple[Feature, ...],
    expected_reports: int,
    attributes: tuple[Categorical, ...] = (),
) -> Plan:
    """Return the plan: phases of all devices and `fit`, or phases of some devices and `_refine` with the others.

    With attributes, it is phases of all devices.

    Parameters
    ----------
    params : PhaseSketch
    features : tuple of Feature
    expected_reports : int
        Determines the shares of the rounds.
    attributes : tuple of Categorical
        Attributes by which the job clusters.

    Raises
    ------
    InvalidSpec
        There are too many categories for the waves and the clusters.
    TooFewReports
        The first round has no reports.
    UnfitRound
        A round does not match the plan, or carries no information.
    """
    d, circles = len(features), circles_of(features)
    params = params.on_circles() if circles else params
    params = replace(params, refine="none") if attributes else params
    first, *later = planned_rounds(params, d, expected_reports, circles, attributes)
    lengths = DENSITY_LENGTHS if needs_density(params, d, expected_reports) else None
    waves = waves_for(d, params.clusters, params.slots, first.epsilon_nano, params.seed, lengths, circles, attributes)
    collected = yield first.spec(features, waves)
    if not later or params.clusters is None:
        return fit(params, collected)
    return (yield from _refine(params, params.clusters, collected, later))


def _refine(params: PhaseSketch, clusters: int, collected: Collected, later: Sequence[PlannedRound]) -> Plan:
    """Run rounds about centroids with the other devices. Collect phases once more if the centroids are too uncertain.

    If the first such round contradicts clear clusters, the remaining rounds use the particles' centroids.
    """
    spec, rounds = collected.spec, list(later)
    data = _read_phases(params, [collected], collected.tally.n_reports)
    reports_by_round = [data.n_reports]
    start = _start(params, clusters, data, is_last=False)
    if start.state is None:
        second = yield replace(rounds.pop(0), kind="window").spec(spec.features, spec.encoding)
        reports_by_round.append(second.tally.n_reports)
        data = _read_phases(params, [collected, second], sum(reports_by_round))
        if not rounds:
            fitted = search(data.sketch, clusters, data.limits, PublicWords(params.seed))
            return model_of_mixture(data, fitted, more={"refined": start.kind, "reports_by_round": reports_by_round})
        start = _start(params, clusters, data, is_last=True)
    state = start.state
    assert state is not None  # noqa: S101 - for the type checker: phases are collected at most twice
    for place, planned_round in enumerate(rounds):
        collected_round = yield planned_round.spec(spec.features, _centroid_encoding(state, planned_round.epsilon_nano))
        statistics = estimate_round_statistics(collected_round, clusters)
        if place == 0 and start.kind == "clear" and params.refine == "auto" and contradicts_clusters(state, statistics):
            start = start_of_particles(data.sketch, clusters, params.seed)
            state = start.state or state
        else:
            state = update_state(state, statistics)
        reports_by_round.append(collected_round.tally.n_reports)
    mixture = start.mixture
    more: dict[str, Any] = {
        "refined": start.kind,
        "reports_by_round": reports_by_round,
        "family": None if mixture is None else mixture.family,
        "atoms": None if mixture is None else mixture.n_components,
    }
    return model_of_particles(data._replace(n_all_reports=sum(reports_by_round)), state, more)


def _start(params: PhaseSketch, clusters: int, data: PhaseData, is_last: bool) -> RefinementStart:
    refine = refinement(params, data.sketch.n_features)
    return choose_start(data.sketch, refine, clusters, data.n_reports * data.contrast**2, params.seed, is_last)


def _centroid_encoding(state: CentroidState, epsilon_nano: int) -> Encoding:
    """Return the encoding with more information about the centroids at this epsilon."""
    places = to_lattice(state.centres)
    k, d = state.centres.shape
    return CentroidSignEncoding(places) if prefers_signs(k, d, epsilon_nano) else NearestCentroidEncoding(places)


def _read_phases(params: PhaseSketch, phases: Sequence[Collected], n_all_reports: int) -> PhaseData:
    """Return the data of rounds with the same phases.

    Raises
    ------
    TooFewReports
        The rounds have no reports.
    UnfitRound
        A round has no phases or no information, or its waves or mechanism differ from the first.
    """
    first = phases[0].spec
    if not isinstance(first.encoding, PhaseEncoding):
        raise UnfitRound("phase_sketch needs a round of phases")
    if any((each.spec.encoding, each.spec.mechanism) != (first.encoding, first.mechanism) for each in phases):
        raise UnfitRound("these rounds of phases have different waves or mechanisms")
    tally: Tally = reduce(add, (each.tally for each in phases))
    if tally.n_reports == 0:
        raise TooFewReports(n_reports=0, n_needed=1)
    answered = tally.reports > 0
    return PhaseData(
        features=first.features,
        sketch=sketch_of(first.encoding, first.mechanism, tally),
        contrast=contrast_of(first.mechanism),
        limits=limits_for(first.encoding.n_features, circles_of(first.features)),
        n_requested=params.clusters,
        n_reports=tally.n_reports,
        n_all_reports=n_all_reports,
        may_clip=all(each.may_clip for each in phases),
        attributes=first.encoding.attributes,
        characters=np.array(first.encoding.characters, dtype=np.int64).reshape(len(answered), -1)[answered],
    )


def fit(params: PhaseSketch, collected: Collected) -> ClusterModel:
    """Return the model of a collected round, with waves and mechanism as published.

    Returns
    -------
    ClusterModel
        Centroids, clusters by descending share, with standard errors from the Fisher
        information. With attributes, shares of their categories follow the coordinates. Diagnostics:

        - n_reports; n_eff: N tanh^2(eps/2).
        - reports_needed: for this number of features and clusters.
        - insufficient_reports, low_confidence: whether there are fewer.
        - expected_ratio: see `clustering.centroids.expected_ratio`.
        - refits: see `clustering.centroids.partition_agreement`.
        - widths: per cluster, standard deviation as a share of a feature's range.
        - width_errors; cramer_rao_error: root mean square of the centroids' errors, in the same unit. Only of
          components that do not overlap.
        - detectable: per cluster.
        - negative_log_likelihood: with the prior of the widths.
        - bic, cluster_interval, supported_clusters, cluster_gains: if the number of clusters was not given.
        - waves_answered: waves with reports; converged.

    Raises
    ------
    TooFewReports
        The round has no reports.
    UnfitRound
        The round has no phases, or carries no information.
    """
    data = _read_phases(params, [collected], collected.tally.n_reports)
    if data.attributes:
        return fit_categories(data, params.seed)
    words = PublicWords(params.seed)
    if params.clusters is None:
        n_supported = supported_clusters(data.sketch.n_features, data.n_reports * data.contrast**2)
        counted = count(data.sketch, data.n_reports, n_supported, data.limits, words)
        return model_of_mixture(data, counted.fitted, count=ClusterCount.of(counted, n_supported))
    fitted = search(data.sketch, params.clusters, data.limits, words)
    circles = data.limits.circles
    if separation(fitted.mixture, circles) >= APART:
        return model_of_mixture(data, fitted)
    state = state_of_overlap(data.sketch, fitted.mixture, params.seed, circles)
    return model_of_particles(data, state, fitted.diagnostics)
