"""Regions of labelled cells, and the label-map model that grid plans publish."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt, generate_binary_structure, label

from sfumato.model.cluster_model import ClusterModel, PrivacyStatus
from sfumato.model.precision import ExpectedAgreement, Verdict
from sfumato.records.encodings import unscale_errors, unscale_many
from sfumato.records.mixed import expand_features
from sfumato.specs import Feature, circles_of
from sfumato.specs.attributes import Categorical

UNLABELLED = -1
UNMEASURED = "The agreement of this method with another run was not measured."

# Everything except the geometry is computed from perturbed reports, never from records.
PRIVACY: Mapping[str, PrivacyStatus] = {
    "type": "public",
    "features": "public",
    "n_clusters": "post_processed",
    "sizes": "post_processed",
    "size_errors": "post_processed",
    "centroids": "post_processed",
    "centroid_errors": "post_processed",
    "grid_shape": "public",
    "labels": "post_processed",
    "density": "post_processed",
    "memberships": "post_processed",
    "outside_share": "dp",
    "outside_share_error": "dp",
    "dishonest_shares": "post_processed",
    "verdict": "post_processed",
    "verdict_reason": "post_processed",
    "expected_agreement": "post_processed",
    "expected_loss": "post_processed",
    "feature_shares": "post_processed",
    "feature_check": "post_processed",
    "attributes": "public",
    "names": "post_processed",
    "ids": "post_processed",
    "diagnostics": "post_processed",
    "warnings": "post_processed",
    "privacy": "public",
}


def dense_components(dense: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Label the face-connected regions of dense cells 0, 1, ...; other cells become UNLABELLED.

    Two cells are neighbours if their integer indices differ by one in one feature (2 d
    neighbours). This is Definition 9 of Zhang et al. 2023 without its rounding.
    """
    labels, _ = label(dense, structure=generate_binary_structure(dense.ndim, 1))
    return np.asarray(labels, dtype=np.int64) - 1


def keep_largest(labels: NDArray[np.int64], mass: NDArray[np.float64], n_regions: int) -> NDArray[np.int64]:
    """Keep the regions of most mass, renumbered by descending mass (stable); unlabel the other cells."""
    totals = region_totals(labels, mass)
    order = np.argsort(-totals, kind="stable")[:n_regions]
    renumbered = np.full(len(totals) + 1, UNLABELLED, dtype=np.int64)  # label -1 maps to the last entry
    renumbered[order] = np.arange(len(order))
    return renumbered[labels]


def region_totals(labels: NDArray[np.int64], mass: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum of `mass` over each region 0 .. n-1."""
    inside = labels >= 0
    n_regions = int(labels.max(initial=UNLABELLED)) + 1
    totals = np.bincount(labels[inside], weights=mass[inside], minlength=n_regions)
    return np.asarray(totals, dtype=np.float64)


def rank_by_mass(labels: NDArray[np.int64], mass: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Renumber regions 0 .. n-1 by descending mass. Return the labels and the old number of each region."""
    order = np.argsort(-region_totals(labels, mass), kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[labels], order


def fill_nearest(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give each unlabelled cell the label of the nearest labelled cell (Euclidean, in cells).

    If no cell is labelled, all become region 0.
    """
    if (labels < 0).all():
        return np.zeros_like(labels)
    nearest = distance_transform_edt(labels < 0, return_distances=False, return_indices=True)
    return np.asarray(labels[tuple(nearest)], dtype=np.int64)


def project_to_shares(estimates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the nearest non-negative values that sum to one (Euclidean): subtract a constant and clip at zero.

    Wang et al. 2020, "Locally Differentially Private Frequency Estimation with
    Consistency" (Norm-Sub).
    """
    descending = np.sort(estimates, axis=None)[::-1]
    constants = (np.cumsum(descending) - 1) / np.arange(1, estimates.size + 1)
    n_positive = int(np.flatnonzero(descending > constants)[-1])
    shares = np.maximum(estimates - constants[n_positive], 0.0)
    return np.asarray(shares / shares.sum(), dtype=np.float64)


def label_map_model(
    features: tuple[Feature, ...],
    labels: NDArray[np.int64],
    density: NDArray[np.float64],
    size_errors: NDArray[np.float64],
    centre_errors: NDArray[np.float64],
    diagnostics: Mapping[str, Any],
    warnings: tuple[str, ...],
    verdict: Verdict | None = None,
    expected_agreement: ExpectedAgreement | None = None,
    reason: str = UNMEASURED,
    attributes: tuple[Categorical, ...] = (),
) -> ClusterModel:
    """Return the model of a fully labelled grid, with sizes and centres from the density.

    Parameters
    ----------
    features : tuple of Feature
    labels : ndarray of shape (cells,) * n_features, then the categories of each attribute
        0 .. n-1, each at least once, and in one category only.
    density : ndarray of the same shape
        Non-negative, sums to one.
    size_errors : ndarray of shape (n,)
    centre_errors : ndarray of shape (n, n_features)
        Standard errors in the scaled box, as shares of each feature's range.
    diagnostics : mapping
    warnings : tuple of str
    verdict : Verdict, optional
        The default is that of a method without an estimate of its accuracy.
    expected_agreement : ExpectedAgreement, optional
    reason : str
        Sentences that the verdict follows from.
    attributes : tuple of Categorical
        At most one attribute by which the job clustered.

    Returns
    -------
    ClusterModel
    """
    sizes = region_totals(labels, density)
    centres = centres_of(labels, density, circles_of(features))[:, : len(features)]
    centroids = unscale_many(features, centres)
    centroid_errors = unscale_errors(features, centroids, centre_errors)
    if attributes:
        shares = _own_categories(labels, len(sizes))
        centroids = np.concatenate([centroids, shares], axis=1)
        centroid_errors = np.concatenate([centroid_errors, np.zeros(shares.shape)], axis=1)
    return ClusterModel(
        type="label_map",
        features=expand_features(features, attributes),
        sizes=sizes / sizes.sum(),
        size_errors=size_errors,
        centroids=centroids,
        centroid_errors=centroid_errors,
        label_map=labels,
        density=density,
        verdict=verdict or Verdict.unmeasured(is_low=diagnostics.get("low_confidence", True)),
        verdict_reason=reason,
        expected_agreement=expected_agreement,
        attributes=attributes,
        diagnostics=diagnostics,
        warnings=(*warnings, *describe_convergence(diagnostics)),
        privacy=PRIVACY,
    )


def _own_categories(labels: NDArray[np.int64], n_regions: int) -> NDArray[np.float64]:
    """Return the share of each category, the last axis of the labels, in each region: 1 for its own, 0 for others."""
    n_categories = labels.shape[-1]
    pairs = np.unique(labels.reshape(-1, n_categories) * n_categories + np.arange(n_categories))
    shares = np.zeros((n_regions, n_categories))
    shares[pairs // n_categories, pairs % n_categories] = 1.0
    return shares


def centres_of(
    labels: NDArray[np.int64], density: NDArray[np.float64], circles: Sequence[int] = ()
) -> NDArray[np.float64]:
    """Return the centre of mass of each region in [0, 1]^d, or of its cells if it has no mass.

    Along a circle it is the circular mean, the direction of the mean of the unit vectors (Mardia and Jupp 2000,
    "Directional Statistics", section 2.2).
    """
    n_regions = int(labels.max()) + 1
    totals = region_totals(labels, density)
    weights = np.where(totals[labels] > 0, density, 1.0)
    totals = region_totals(labels, weights)
    centres = np.empty((n_regions, labels.ndim))
    for axis, n_cells in enumerate(labels.shape):
        middles = (np.arange(n_cells) + 0.5) / n_cells
        along = middles.reshape([-1 if a == axis else 1 for a in range(labels.ndim)])
        if axis in circles:
            centres[:, axis] = np.angle(_resultants(labels, weights, along)) / (2 * np.pi) % 1
        else:
            centres[:, axis] = region_totals(labels, weights * along) / totals
    return centres


def _resultants(
    labels: NDArray[np.int64], weights: NDArray[np.float64], along: NDArray[np.float64]
) -> NDArray[np.complex128]:
    """Return the sum of the unit vectors of each region, as complex numbers, for places on a circle of length 1."""
    angles = 2 * np.pi * along
    return np.asarray(
        region_totals(labels, weights * np.cos(angles)) + 1j * region_totals(labels, weights * np.sin(angles))
    )


def describe_convergence(diagnostics: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a warning if the diagnostics of a fit state that it did not converge."""
    if diagnostics.get("converged", True):
        return ()
    return ("The fit ended before it converged, so the result may be less accurate than its errors state.",)
