"""Models of `phase_sketch` with category shares, and the agreement of their halves."""

from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from clustering.centroids.partition_agreement import PartitionAgreement, Population, compare_partitions
from clustering.phases.category_mixture import (
    CategoryFit,
    CategoryMixture,
    category_waves,
    standard_errors,
)
from clustering.phases.category_search import CategoryClusters, parameters_of
from clustering.phases.cluster_search import MAX_COUNTED, CountedFit, count_clusters, search_clusters
from clustering.phases.halves import CLEAR, FEW, SEED, halve
from clustering.phases.incremental_mixture import PARTICLES
from clustering.phases.mixture_fit import Sketch
from clustering.phases.model_selection import separation
from clustering.phases.particles import sobol_points
from clustering.phases.result import ClusterCount, Found, PhaseData, build_model, describe_fit, edges_of
from clustering.random import PublicWords
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.memberships import GaussianMixtureMemberships
from sfumato.records.mixed import step_of
from sfumato.sizing.centroids import WAVES_PER_PARAMETER, supported_clusters

TOGETHER = 1.0  # distance of centres, in sums of their widths, below which clusters are at one place
IDENTIFYING = 3  # number of attributes that separate clusters at one place
_INSIDE = 2.0**-40  # least distance of quantiles from 0 and 1


def fit_categories(data: PhaseData, seed: int) -> ClusterModel:
    """Return the model of clusters with category shares."""
    fits = _fits_of(data, data.sketch, seed)
    if data.n_requested is not None:
        return _model_of(data, search_clusters(fits, data.n_requested), None)
    n_supported = supported_clusters(len(data.features), data.n_effective, len(data.attributes))
    largest = max(1, min(MAX_COUNTED, len(data.sketch.omegas) // (WAVES_PER_PARAMETER * parameters_of(fits.waves))))
    counted: CountedFit[CategoryFit] = count_clusters(fits, data.n_reports, min(n_supported, largest), largest)
    return _model_of(data, counted.fitted, ClusterCount.of(counted, min(n_supported, largest)))


def _fits_of(data: PhaseData, sketch: Sketch, seed: int, width: float | None = None) -> CategoryClusters:
    """Return the fits, with starts of one width, or of every second one of round clusters: a start takes longer."""
    categories = [len(each.categories) for each in data.attributes]
    waves = category_waves(sketch, data.characters, categories)
    widths = data.limits.start_widths[::2] if width is None else (width,)
    return CategoryClusters(waves, data.limits, PublicWords(seed), widths)


def _model_of(data: PhaseData, fitted: CategoryFit, count: ClusterCount | None) -> ClusterModel:
    order = np.argsort(-fitted.mixture.places.shares, kind="stable")
    mixture = fitted.mixture.take(order)
    waves = _fits_of(data, data.sketch, 0).waves
    errors = standard_errors(waves, mixture)
    centres, sizes, widths = mixture.places
    found = Found(centres, errors.centres, sizes, errors.sizes, widths, mixture.shares, errors.shares)
    plain = np.asarray(~data.characters.any(axis=1))
    model = build_model(
        data,
        found,
        _agreement_of_halves(data, mixture),
        {**describe_fit(found, errors.log_widths, count), **fitted.diagnostics},
        count,
        soft=GaussianMixtureMemberships(tuple(widths.tolist()), waves.categories),
        edges=edges_of(data, data.sketch.select(plain), mixture.places),
    )
    return replace(model, warnings=(*model.warnings, *_describe_shared_places(data, mixture)))


def _describe_shared_places(data: PhaseData, mixture: CategoryMixture) -> tuple[str, ...]:
    """Return a warning about clusters at one place, if there are too few attributes to separate them.

    Two distributions of two independent attributes have a mixture that other pairs have, too. Three attributes
    determine them (Kruskal 1977).
    """
    if len(data.attributes) >= IDENTIFYING:
        return ()
    shared = [
        f"{one} and {other}"
        for one, other in combinations(range(len(mixture.places.shares)), 2)
        if separation(mixture.places.take(np.array([one, other])), data.limits.circles) < TOGETHER
    ]
    if not shared:
        return ()
    return (
        f"The places of the clusters {', '.join(shared)} overlap, and fewer than {IDENTIFYING} attributes do not "
        "determine how people divide into them: their sizes and shares are uncertain.",
    )


class _Space(NamedTuple):
    """The space of mixed points, in which the nearest centroid labels a record: see `sfumato.records.mixed`."""

    data: PhaseData

    def points(self, along: NDArray[np.float64], shares: tuple[NDArray[np.float64], ...]) -> NDArray[np.float64]:
        """Return the points of places along the features with category shares: (n, d')."""
        parts = [np.clip(self.data.circles.to_points(along), 0.0, 1.0)]
        for attribute, share in zip(self.data.attributes, shares, strict=True):
            parts.append(0.5 + step_of(attribute) * (share - 1 / len(attribute.categories)))
        return np.hstack(parts)

    def centres(self, mixture: CategoryMixture) -> NDArray[np.float64]:
        """Return the points of the centroids."""
        return self.points(np.clip(mixture.places.centres, 0.0, 1.0), mixture.shares)

    def population(self, mixture: CategoryMixture) -> Population:
        """Return particles of a mixture, with the category of each attribute."""
        places, d = mixture.places, mixture.places.centres.shape[1]
        draws = sobol_points(PARTICLES, d + len(mixture.shares), PublicWords(0))
        ends = np.cumsum(places.shares)
        owners = np.searchsorted(ends, (np.arange(PARTICLES) + 0.5) / PARTICLES * ends[-1], side="right")
        owners = owners.clip(max=len(ends) - 1)
        deviates = ndtri(np.clip(draws[:, :d], _INSIDE, 1 - _INSIDE))
        along = places.centres[owners] + deviates * places.widths[owners, None]
        drawn = []
        for place, shares in enumerate(mixture.shares):
            codes = (np.cumsum(shares, axis=1)[owners] < draws[:, d + place, None]).sum(axis=1)
            drawn.append(np.eye(shares.shape[1])[codes.clip(max=shares.shape[1] - 1)])
        return Population(self.points(along, tuple(drawn)), np.full(PARTICLES, 1 / PARTICLES))


def _agreement_of_halves(data: PhaseData, mixture: CategoryMixture) -> PartitionAgreement:
    """Return the agreement as `agreement_of_halves` does, with categories. The least agreement counts."""
    space = _Space(data)
    population, centres = space.population(mixture), space.centres(mixture)

    def compare(division: int) -> PartitionAgreement:
        halves = halve(len(data.sketch.omegas), division)
        fits = [space.centres(_fit_half(data, half, mixture)) for half in halves]
        return compare_partitions("sketch", population, centres, fits, with_own=True)

    found = compare(0)
    if found.index < CLEAR or len(centres) > FEW:
        return found
    return min(found, compare(1), key=lambda each: each.index)


def _fit_half(data: PhaseData, half: NDArray[np.bool_], mixture: CategoryMixture) -> CategoryMixture:
    """Return the fit to half of the waves, or equal clusters at the middle if there is none.

    Its start has the median width of the released clusters.
    """
    n_clusters, width = len(mixture.places.shares), float(np.median(mixture.places.widths))
    if not half.any():
        places = mixture.places._replace(centres=np.full(mixture.places.centres.shape, 0.5))
        return CategoryMixture(places, tuple(np.full(each.shape, 1 / each.shape[1]) for each in mixture.shares))
    part = data._replace(characters=data.characters[half])
    return search_clusters(_fits_of(part, data.sketch.select(half), SEED, width), n_clusters).mixture
