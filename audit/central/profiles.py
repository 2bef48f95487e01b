"""Replay check of profiles: the queries of a profile over records with features that are counted in equal bins.

The clusters are public. They are two halves of the first feature, as centroids and as a label map.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from audit.central.recordings import Method
from audit.central.replay import check_replay
from audit.checks.check import Check
from clustering.central.curator import Curator
from clustering.central.profile_clusters import describe_columns, label_records, profile_clusters
from sfumato.model.cluster_model import ClusterModel
from sfumato.profiles.cluster_profile import ClusterProfile
from sfumato.specs import Feature, Profile, bin_feature

Features = tuple[Feature, ...]
RunProfile = Callable[[Profile, ClusterModel, Any, Any, Curator], ClusterProfile]


def make_clusters(features: Features, *, is_map: bool) -> ClusterModel:
    """Return three public clusters along the first feature. The first one is small."""
    first = features[0]
    places = np.array([[0.05], [0.4], [0.8]]) * (first.upper - first.lower) + first.lower
    sizes, errors = np.array([0.1, 0.45, 0.45]), np.zeros(3)
    if is_map:
        labels = np.array([0, 1, 1, 1, 2, 2, 2, 2])
        return ClusterModel("label_map", features[:1], sizes, errors, label_map=labels)
    return ClusterModel("centroids", features[:1], sizes, errors, centroids=places)


def run_profile(
    params: Profile,
    features: Features,
    curator: Curator,
    *,
    is_map: bool = False,
    profile: RunProfile = profile_clusters,
) -> ClusterProfile:
    """Profile public clusters by all features of the records."""
    model = make_clusters(features, is_map=is_map)
    columns = describe_columns(features, (), tuple(map(bin_feature, features)))
    return profile(params, model, label_records(model, features), columns, curator)


def parameters(epsilon: float, **other: Any) -> Profile:
    """Return the parameters of a profile of public clusters."""
    return Profile(of="job_audit", attributes=("x0",), epsilon=epsilon, **other)


_run: Any = run_profile
_run_map: Any = partial(run_profile, is_map=True)

METHODS: tuple[Method, ...] = (
    Method("profile", parameters(4.0), _run, n_features=(1, 3)),
    Method("profile, label map", parameters(8.0), _run_map, n_features=(2,)),
    Method("profile, first pass", parameters(32.0), _run, n_features=(8,)),
    Method("profile, delta", parameters(16.0, delta=1e-3, first_pass=0.2), _run, n_features=(8,)),
    Method("profile, delta, all", parameters(16.0, delta=1e-3, first_pass=0.0), _run, n_features=(12,)),
)


CHECKS: tuple[Check, ...] = tuple(Check(f"{method.name}, replay", partial(check_replay, method)) for method in METHODS)
