"""Broken profiles, each with one fault."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.central.profiles import parameters, run_profile
from audit.central.recordings import Method
from audit.central.replay import check_replay
from audit.checks.check import Finding, Leak, Setting
from clustering.central.curator import Curator
from clustering.central.noise import LaplaceNoise, Noise
from clustering.central.profile_clusters import Described, profile_clusters
from clustering.central.profile_tables import (
    SCORE_UNITS,
    SHARE_BITS,
    Labelling,
    ProfileTables,
    exact_scores,
    public_shares,
)
from clustering.central.queries import Exact, Query
from sfumato.model.cluster_model import ClusterModel
from sfumato.profiles.cluster_profile import ClusterProfile
from sfumato.specs import Profile


class OwnShares(Curator):
    """A curator with scores by the records' own shares of the clusters, and noise for public shares."""

    def profile_scores(self, tables: ProfileTables, shares: NDArray[np.int64], epsilon_nano: int) -> NDArray[np.int64]:
        n_tables = len(tables.columns)

        def exact() -> NDArray[np.int64]:
            found = tables.split(self._records.total(tables)[0])
            return exact_scores(found, public_shares(found[0].sum(axis=1).astype(np.float64)))

        sensitivities = np.full(n_tables, n_tables * SCORE_UNITS, dtype=np.int64)
        return self._answer("scores", epsilon_nano, sensitivities, (tables, shares), exact)


class OneTableNoise(Curator):
    """A curator with tables that have the noise of one table, although a record changes each of them."""

    def _release(self, query: Query, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        if query.description == "tables" and isinstance(noise, LaplaceNoise):
            noise = replace(noise, sensitivities=np.ones_like(noise.sensitivities))
        return super()._release(query, exact, noise)


def select_without_cost(
    params: Profile, model: ClusterModel, labelling: Labelling, described: tuple[Described, ...], curator: Curator
) -> ClusterProfile:
    """Describe the attributes with a positive exact score, or the first one, without a query."""
    tables = ProfileTables(labelling, tuple(each.column for each in described))
    scores = exact_scores(tables.split(curator._records.total(tables)[0]), public_shares(model.sizes))
    chosen = tuple(described[place] for place in np.nonzero(scores)[0]) or described[:1]
    return profile_clusters(replace(params, first_pass=0.0), model, labelling, chosen, curator)


def publish_exact_totals(
    params: Profile, model: ClusterModel, labelling: Labelling, described: tuple[Described, ...], curator: Curator
) -> ClusterProfile:
    """Publish the exact numbers of records of the clusters as their sizes, as if a job had released them."""
    found = profile_clusters(params, model, labelling, described, curator)
    counts = np.bincount(labelling.index(curator._records.points), minlength=model.n_clusters).astype(np.float64)
    return replace(found, sizes=counts / max(counts.sum(), 1.0))


def fit_public_shares_to_records(
    params: Profile, model: ClusterModel, labelling: Labelling, described: tuple[Described, ...], curator: Curator
) -> ClusterProfile:
    """Score with shares that are computed from the records in place of the released sizes."""
    counts = np.bincount(labelling.index(curator._records.points), minlength=model.n_clusters) + 1.0
    sizes = np.round(counts / counts.sum() * (1 << SHARE_BITS)) / (1 << SHARE_BITS)
    return profile_clusters(params, replace(model, sizes=sizes), labelling, described, curator)


def _replay(
    params: Profile, n_features: int, profile: Any = profile_clusters, curator: type[Curator] = Curator
) -> Callable[[Setting], list[Finding]]:
    run: Any = partial(run_profile, profile=profile)
    method = Method("broken profile", params, run, curator, (n_features,))
    return lambda setting: list(check_replay(method, setting, until_fault=True))


_FIRST_PASS = parameters(32.0, first_pass=0.2)

LEAKS: tuple[Leak, ...] = (
    Leak("scores with the records' own shares", "profile, noise", _replay(_FIRST_PASS, 8, curator=OwnShares)),
    Leak(
        "scores with the records' own shares",
        "profile, replay",
        _replay(_FIRST_PASS, 8, fit_public_shares_to_records),
    ),
    Leak("attributes selected without a cost", "profile, replay", _replay(parameters(4.0), 8, select_without_cost)),
    Leak("totals from exact counts", "profile, replay", _replay(parameters(4.0), 3, publish_exact_totals)),
    Leak("tables with the noise of one table", "profile, replay", _replay(parameters(4.0), 3, curator=OneTableNoise)),
)
