"""Follow the windows of a series in the job process: pool what was released, continue the clusters, test a change.

A window is followed before its job publishes the result, so that a window that is done has its map. Everything here
starts from released tallies, or released counts of records, and costs nothing.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustering.central.algorithms.density_map import count_scale
from clustering.central.model import PRIVACY
from clustering.density.confidence import confidence
from clustering.density.count_fit import CountFit
from clustering.density.label_map import label_map_model
from clustering.density.shifted_field import centre_errors, size_errors
from clustering.grids.density_fit import DensityFit
from clustering.poles import warn_of_poles
from clustering.rounds.decoders import decoder
from clustering.rounds.outside import inside, outside_share, pooled
from clustering.rounds.plan import Collected
from clustering.rounds.tally import read_aggregate
from clustering.series.follow import Memory, Step, begin_revision, follow, memory_from_wire
from clustering.series.identities import NamedMap, match_regions
from clustering.series.observed import Counted, Measured, Window
from clustering.series.shares import window_shares
from models.database.engine import Database
from models.database.types import new_id
from models.series import following
from models.series.following import Due, Outcome
from models.tables.rounds import Round
from sfumato.model.cluster_model import ClusterModel, model_from_wire
from sfumato.model.outside import with_outside_share
from sfumato.sizing.grids import MAP_INFORMATION
from sfumato.specs import SeriesAlgorithm, to_series_algorithm
from workers.central_job import unpack


def follow_series(database: Database, job_id: str, model: ClusterModel | None = None) -> None:
    """Follow all windows that are due in the series of a job. Do nothing for other jobs.

    Parameters
    ----------
    database : Database
    job_id : str
    model : ClusterModel, optional
        The map of the job's window alone, before it is published.
    """
    while True:
        with database.reading() as session:
            due = following.find_due(session, job_id)
        if due is None:
            return
        own = model if due.job_id == job_id else None
        if own is None and due.own is not None:
            own = model_from_wire(due.own["model"])
        outcome = _follow(due, own)
        series_id, index = due.series.id, due.index

        def store(session: Any, outcome: Outcome = outcome, series_id: str = series_id, index: int = index) -> bool:
            return following.store(session, series_id, index, outcome, now=database.clock())

        database.run("follow_window", store)  # stores nothing if another worker was faster


def _follow(due: Due, own: ClusterModel | None) -> Outcome:
    params = to_series_algorithm(due.terms.algorithm)
    windows = _observations(due, params)
    memory, earlier = Memory(), None
    if due.before is not None:
        memory = memory_from_wire(due.before["memory"])
        before = model_from_wire(due.before["model"])
        assert before.label_map is not None  # noqa: S101 - for the type checker: a pooled map
        earlier = NamedMap(before.label_map, tuple(due.before["cluster_ids"]))
    dropped = None
    if due.begins and earlier is not None:
        dropped = memory.alarm
        memory, earlier = begin_revision(windows, due.index, due.terms.first_window, memory, earlier)
    season, least = due.terms.season, due.terms.least_change
    step = follow(params, windows, due.index, memory, earlier, new_id, season=season, least=least)
    model = warn_of_poles(
        _pooled_counts(step) if isinstance(step.pooled, Counted) else _pooled_model(step, due.tallied)
    )
    document = {
        "model": model.to_wire(),
        "cluster_ids": list(step.map.ids),
        "weights": {str(index): weight for index, weight in step.weights.items()},
        "is_provisional": step.is_provisional,
        "memory": step.memory.to_wire(),
    }
    event = None
    if step.event is not None:
        found = step.event
        event = {
            "id": found.id,
            "change": found.change,
            "change_first": found.first,
            "change_last": found.last,
            "evidence": found.evidence,
        }
    described: tuple[str, list[dict[str, Any]]] | None = None if dropped is None else (dropped.event, [])
    if step.described is not None:
        described = (step.described[0], [asdict(each) | {"others": list(each.others)} for each in step.kinds])
    own_ids = None if own is None or own.label_map is None else _own_ids(step, own)
    return Outcome(document, own_ids, _shares(step, model, windows[due.index]), step.parents, event, described)


def _observations(due: Due, params: SeriesAlgorithm) -> dict[int, Window]:
    """Return what each window released: tallies, or counts of records."""
    if not params.definition.needs_records:
        return {index: Measured(_people_inside(found)) for index, found in due.tallied.items()}
    features, scale = due.dataset.features, count_scale(params.epsilon_nano, due.dataset.max_records_per_user)
    shape = (params.cells or 0,) * len(features)  # a series states its cells
    return {index: Counted(features, unpack(packed).reshape(shape), scale) for index, packed in due.counted.items()}


def _read(found: Round) -> Collected:
    assert found.tally is not None  # noqa: S101 - for the type checker: `find_due` loaded it
    return Collected(found.spec, read_aggregate(found.spec, found.tally))


def _people_inside(found: Round) -> Collected:
    collected = _read(found)
    return inside(collected, outside_share(collected)) if collected.spec.counts_outside else collected


def _pooled_model(step: Step, tallied: Mapping[int, Round]) -> ClusterModel:
    fit, labels = step.fit, step.map.labels
    assert isinstance(fit, DensityFit)  # noqa: S101 - for the type checker: a pool of tallies
    encoding, tally, reading = fit.encoding, fit.collected.tally, decoder(fit.collected.spec.mechanism)
    trust = confidence(tally.n_reports, reading)
    model = label_map_model(
        fit.collected.spec.features,
        labels,
        fit.density,
        size_errors(encoding, reading, tally, labels, fit.density),
        centre_errors(encoding, reading, tally, labels, fit.density),
        {
            **trust.diagnostics(),
            "length_scale": fit.length_scale,
            "converged": fit.fitted.converged,
            "coarse_cells": encoding.cells,
            "fine_cells": encoding.fine_cells,
        },
        trust.warnings(len(step.map.ids), [True] * len(step.map.ids)),
    )
    counting = [_read(tallied[index]) for index in step.weights if tallied[index].spec.counts_outside]
    if not counting:
        return model
    received = sum(each.aggregate.n_reports for each in counting)
    within = sum(inside(each, outside_share(each)).aggregate.n_reports for each in counting)
    return with_outside_share(model, pooled([outside_share(each) for each in counting]), received / max(within, 1))


def _pooled_counts(step: Step) -> ClusterModel:
    """Return the pooled map of counts of records."""
    fit, labels = step.fit, step.map.labels
    assert isinstance(fit, CountFit) and isinstance(step.pooled, Counted)  # noqa: S101, PT018 - for the type checker
    needed = ceil(MAP_INFORMATION * fit.scale)
    warnings: tuple[str, ...] = ()
    if fit.n_records < needed:
        warnings = (
            f"The pool has about {round(fit.n_records)} records, and {needed} would make a map clear at this noise: "
            "clusters may be missing or noise.",
        )
    model = label_map_model(
        step.pooled.features,
        labels,
        fit.density,
        fit.size_errors(labels),
        fit.centre_errors(labels),
        {
            "noisy_count": fit.n_records,
            "records_needed": needed,
            "length_scale": fit.length_scale,
            "converged": fit.fitted.converged,
            "grid_shape": list(labels.shape),
        },
        warnings,
    )
    return replace(model, privacy=PRIVACY)


def _own_ids(step: Step, own: ClusterModel) -> list[str | None]:
    """Return the id of each cluster of the map of the window alone; None for a cluster that matches no id."""
    assert own.label_map is not None  # noqa: S101 - for the type checker: the caller checked it
    density: NDArray[np.float64] = step.fit.density if own.density is None else (step.fit.density + own.density) / 2
    found = {other: step.map.ids[label] for label, other in match_regions(step.map.labels, own.label_map, density)}
    return [found.get(label) for label in range(own.n_clusters)]


def _shares(step: Step, model: ClusterModel, window: Window) -> list[dict[str, Any]]:
    """Return the clusters with their shares in the window and in the pool."""
    shares, errors = window_shares(window, step.map.labels, step.fit.density)
    return [
        {
            "cluster_id": name,
            "share": share,
            "error": error,
            "pooled_share": float(model.sizes[place]),
            "pooled_error": float(model.size_errors[place]),
        }
        for place, (name, share, error) in enumerate(zip(step.map.ids, shares.tolist(), errors.tolist(), strict=True))
    ]
