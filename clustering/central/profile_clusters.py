"""The profile of released clusters: which attributes differ between them, and by how much.

With up to five attributes, all tables are released at once. With more, a first pass of 10 % of the cost releases the
score of each attribute, and the second one the tables of the associated ones. 1 % goes to a count, which the null level
of the scores needs. With a delta, all queries share one concentrated block, unless pure noise is less.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import pi, sqrt

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import NearestAlongCircles, NearestCells, WholeBox, to_places
from clustering.central.curator import Curator
from clustering.central.gaussian_block import ConcentratedBlock
from clustering.central.mapped_records import select_columns
from clustering.central.narrowing import Bounds
from clustering.central.profile_tables import (
    SCORE_UNITS,
    Column,
    Labelling,
    MapCells,
    ProfileTables,
    public_shares,
)
from clustering.central.queries import split
from clustering.errors import TooFewRecords
from clustering.profiles.distinctions import FALSE_DISCOVERIES as RATE
from clustering.profiles.distinctions import (
    find_distinctions,
    list_clearest,
    name_distinction,
    small_warnings,
    too_small,
)
from clustering.profiles.shares import ConsistentTables, Noise, association, make_consistent, share_variances
from sfumato.errors import InvalidSpec
from sfumato.model.cluster_model import ClusterModel
from sfumato.profiles.cluster_profile import AttributeProfile, ClusterProfile
from sfumato.records.encodings import scale_many
from sfumato.sizing.profiles import COUNT_SHARE, plan_profile
from sfumato.specs import LATTICE, Feature, Profile, circles_of
from sfumato.specs.attributes import DEFAULT_BINS, Attribute

NULL_SHARE = 0.9  # part of the expected score without association that is subtracted
LEAST_ASSOCIATION = 0.015  # smallest association of a described attribute
LAPLACE_DEVIATIONS, GAUSSIAN_DEVIATIONS = 1.5, 2.5  # deviations of the noise that a described attribute exceeds
PRIVACY = dict.fromkeys(
    ("sizes", "size_errors", "shares", "share_errors", "distinguishing", "too_small", "names"), "post_processed"
) | {"counts": "dp", "values": "public", "false_discovery_rate": "public"}

Source = Curator | ConcentratedBlock


@dataclass(frozen=True)
class Described:
    """An attribute of a profile: its declaration, and its column in the records."""

    attribute: Attribute
    column: Column


def label_records(
    model: ClusterModel, features: tuple[Feature, ...], attributes: tuple[Attribute, ...] = ()
) -> Labelling:
    """Return the released clusters as a function of the records of a dataset with these features and attributes.

    Raises
    ------
    InvalidSpec
        The model has features or attributes that the dataset does not have.
    """
    numeric = model.features[: model.n_numeric]
    names = [each.name for each in numeric] + [each.name for each in model.attributes]
    by_name = {feature.name: feature for feature in features}
    if not by_name.keys() >= {each.name for each in numeric} or not set(attributes) >= set(model.attributes):
        raise InvalidSpec("the clusters have features that this dataset does not have")
    declared = [by_name[each.name] for each in numeric]
    bounds = None
    if any((own.lower, own.upper) != (of.lower, of.upper) for own, of in zip(numeric, declared, strict=True)):
        steps = [(of.upper - of.lower) / LATTICE for of in declared]
        lows = [round((own.lower - of.lower) / step) for own, of, step in zip(numeric, declared, steps, strict=True)]
        widths = [round((own.upper - own.lower) / step) for own, step in zip(numeric, steps, strict=True)]
        found = Bounds(np.array(lows, dtype=np.int64), np.maximum(np.array(widths, dtype=np.int64), 1))
        bounds = found.keep_others(len(model.features))
    positions = [features.index(each) for each in declared]  # the columns have the order of the model
    selection = replace(select_columns(features, attributes, names), positions=np.array(positions, dtype=np.int64))
    if model.label_map is not None:
        shape, labels = model.label_map.shape, model.label_map.ravel().astype(np.int64)
        return Labelling(selection, bounds, MapCells(shape, labels, model.n_clusters))
    centres = to_places(scale_many(model.features, np.asarray(model.centroids)))
    circles = circles_of(model.features)
    cells = NearestAlongCircles(centres, circles) if circles else NearestCells(centres)
    return Labelling(selection, bounds, cells)


def profile_clusters(
    params: Profile, model: ClusterModel, labelling: Labelling, described: tuple[Described, ...], curator: Curator
) -> ClusterProfile:
    """Return the profile of released clusters.

    Parameters
    ----------
    params : Profile
    model : ClusterModel
        The released clusters. They are public.
    labelling : Labelling
        The clusters as a function of records; see `label_records`.
    described : tuple of Described
        The attributes, at least one.
    curator : Curator
        Over whole records, with codes of attributes.

    Returns
    -------
    ClusterProfile

    Raises
    ------
    TooFewRecords
        No cluster is above the noise. The queries were charged.
    BudgetOverdrawn, DeltaOverdrawn
        See `Curator`.
    """
    plan = plan_profile(params, len(described), curator.max_per_user)
    source: Source = curator
    cost = params.epsilon_nano
    if plan.has_block:
        block = curator.open_block(cost, params.delta_atto)
        source, cost = block, block.left_pico
    shares = public_shares(model.sizes)
    chosen, scores = list(range(len(described))), None
    if plan.first_pass:
        first = Fraction(round(plan.first_pass * 1000), 1000)
        for_count, for_scores, cost = split(cost, COUNT_SHARE, first, 1 - first - COUNT_SHARE)
        scores = _score(source, labelling, described, shares, for_count, for_scores)
        chosen = scores.chosen
    tables = ProfileTables(labelling, tuple(described[place].column for place in chosen))
    noise = _table_noise(source, len(chosen), cost)
    noisy = tables.split(source.profile_tables(tables, cost))
    found = make_consistent(noisy, noise)
    small = too_small(found)
    if len(small) == model.n_clusters:
        raise TooFewRecords(
            "no cluster has more records than the noise of its counts: increase epsilon, or name fewer attributes"
        )
    distinctions, n_tested = find_distinctions(found, noise, curator.max_per_user)
    listed, cut = list_clearest(distinctions)
    attributes = [described[place].attribute for place in chosen]
    total = max(float(found.numbers.sum()), 1.0)
    return ClusterProfile(
        of=params.of,
        sizes=np.maximum(found.numbers, 0.0) / total,
        size_errors=np.full(model.n_clusters, sqrt(found.number_variance) / total),
        attributes=_attribute_profiles(described, chosen, scores, found, noisy, noise),
        distinctions=tuple(name_distinction(each, attributes) for each in listed),
        too_small=tuple(small),
        false_discovery_rate=RATE,
        n_tested=n_tested,
        warnings=tuple(small_warnings(small, model.n_clusters) + cut),
        diagnostics={
            "noise_per_count": sqrt(noise.variance),
            "n_records": total,
            "odometer": [query.entry for query in curator.odometer],
            "spent_nano": curator.spent_nano,
            "spent_delta_atto": curator.spent_delta_atto,
        },
        privacy=PRIVACY | {"association": "dp" if scores is not None else "post_processed"},
    )


@dataclass(frozen=True)
class _Scores:
    """Released associations, with a common standard error, and the places of the described attributes."""

    values: list[float]
    error: float
    chosen: list[int]


def _score(
    source: Source,
    labelling: Labelling,
    described: tuple[Described, ...],
    shares: NDArray[np.int64],
    for_count: int,
    for_scores: int,
) -> _Scores:
    """Release the scores of all attributes and choose those above the noise and the null level; at least the best."""
    columns = tuple(each.column for each in described)
    n_records = max(float(source.counts(WholeBox(), for_count)[0]), 1.0)
    noisy = source.profile_scores(ProfileTables(labelling, columns), shares, for_scores) / SCORE_UNITS
    is_pure = isinstance(source, Curator)
    deviation = _score_deviation(source, len(columns), for_scores)
    p = shares / shares.sum()
    spread = float(np.sqrt(p * (1 - p)).sum()) * sqrt(n_records / (2 * pi))
    nulls = np.array([NULL_SHARE * spread * sqrt(column.n_values) for column in columns])
    excess = noisy - nulls
    least = max((LAPLACE_DEVIATIONS if is_pure else GAUSSIAN_DEVIATIONS) * deviation, LEAST_ASSOCIATION * n_records)
    above = np.nonzero(excess > least)[0].tolist()
    values = np.clip(excess / n_records, 0.0, 1.0).tolist()
    return _Scores(values, deviation / n_records, above or [int(excess.argmax())])


def _attribute_profiles(
    described: tuple[Described, ...],
    chosen: list[int],
    scores: _Scores | None,
    found: ConsistentTables,
    noisy: list[NDArray[np.int64]],
    noise: Noise,
) -> tuple[AttributeProfile, ...]:
    """Return the profile of each attribute; only the chosen ones have counts."""
    profiles = []
    for place, each in enumerate(described):
        if place in chosen:
            at = chosen.index(place)
            value, error = association(found, at, noise.variance)
            if scores is not None:
                value, error = scores.values[place], scores.error
            profiles.append(
                AttributeProfile(
                    each.attribute.name,
                    "described",
                    value,
                    error,
                    each.attribute.categories,
                    noisy[at].astype(np.int64),
                    found.shares[at],
                    np.sqrt(share_variances(found, at, noise)),
                )
            )
        elif scores is not None:
            profiles.append(
                AttributeProfile(each.attribute.name, "no_association_found", scores.values[place], scores.error)
            )
    return tuple(profiles)


def _table_noise(source: Source, n_tables: int, cost: int) -> Noise:
    if isinstance(source, Curator):
        variance = source.variance(n_tables, cost)
        return Noise(variance, sqrt(variance / 2))
    return Noise(source.deviation(cost // n_tables) ** 2, 0.0)


def _score_deviation(source: Source, n_scores: int, cost: int) -> float:
    """Return the standard deviation of the noise of a score, in records."""
    if isinstance(source, Curator):
        return sqrt(source.variance(n_scores * SCORE_UNITS, cost)) / SCORE_UNITS
    return source.moment_deviation(cost // n_scores)


def describe_columns(
    features: tuple[Feature, ...], attributes: tuple[Attribute, ...], chosen: tuple[Attribute, ...]
) -> tuple[Described, ...]:
    """Return the chosen attributes with their columns. A feature is counted in equal bins of its bounds."""
    positions = {each.name: len(features) + place for place, each in enumerate(attributes)}
    own = {feature.name: place for place, feature in enumerate(features)}
    return tuple(
        Described(each, Column(positions[each.name], len(each.categories), is_feature=False))
        if each.name in positions
        else Described(each, Column(own[each.name], DEFAULT_BINS, is_feature=True))
        for each in chosen
    )
