"""The published model of a central algorithm: centroids, shares of noisy counts, and warnings."""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.centroids.partition_agreement import PartitionAgreement
from clustering.centroids.verdict import Ground, few, ground, rate
from clustering.density import label_map
from clustering.density.label_map import project_to_shares
from sfumato.model.cluster_model import ClusterModel, PrivacyStatus
from sfumato.model.precision import ExpectedLoss, Verdict
from sfumato.privacy.accounting import NANO
from sfumato.records.encodings import unscale_errors, unscale_many
from sfumato.specs import Feature

CLEAR = 30.0  # N epsilon / k below which centres are mostly noise
MAX_RATIO = 100.0  # bound of the ratios of mean squared distances; it represents all larger ones
GAIN_ERRORS = 2.0  # standard errors by which several centres must be closer to the records than one
NO_BETTER = "One centre at the mean of all records may be as good as these centres."

_TINY = 1e-12

# The diagnostics contain query answers unchanged. All other fields are computed from query answers.
PRIVACY: Mapping[str, PrivacyStatus] = {**label_map.PRIVACY, "diagnostics": "dp"}


def build_centroid_model(
    features: tuple[Feature, ...],
    centres: NDArray[np.float64],
    counts: NDArray[np.float64],
    count_variances: NDArray[np.float64],
    *,
    centre_errors: NDArray[np.float64],
    spreads: NDArray[np.float64] | None = None,
    agreement: PartitionAgreement,
    diagnostics: Mapping[str, Any],
    warnings: Sequence[str] = (),
    loss: ExpectedLoss | None = None,
    grounds: Sequence[Ground] | None = None,
) -> ClusterModel:
    """Build a model of centroids, sorted by descending noisy count.

    Parameters
    ----------
    features : tuple of Feature
    centres : ndarray of shape (k, d)
        In [0, 1]^d.
    counts : ndarray of shape (k,)
        Noisy numbers of records. Negative values are allowed.
    count_variances : ndarray of shape (k,)
        Noise variances of the counts.
    centre_errors : ndarray of shape (k, d)
        Standard errors of the centres, as shares of each feature's range.
    spreads : ndarray of shape (k,), optional
        Noisy root mean square distance of each cluster's records from its centre in [0, 1]^d; NaN if
        unknown.
    diagnostics : mapping
        JSON values. `noisy_counts` and `spreads` are added, in the order of the centroids, and
        `one_mean_ratio`. `low_confidence` is set if the centres are no better than one.
    warnings : sequence of str
    loss : ExpectedLoss, optional
        Unknown by default. One centre is as good if its ratio of `compare_with_one_mean` is below the loss.
    grounds : sequence of Ground, optional
        Further grounds of the verdict. The default is few data with low confidence.

    Returns
    -------
    ClusterModel
        `sizes` are the nearest non-negative shares with sum 1. `size_errors` are standard errors of
        a share of the counts' sum, from the noise only.
    """
    order = np.argsort(-counts, kind="stable")
    counts, variances, centres = counts[order], count_variances[order], centres[order]
    # A total far below its parts is noise. The lower bound avoids overflow of the shares.
    total = max(float(counts.sum()), float(np.abs(counts).max()) * 2.0**-20, 1.0)
    shares = project_to_shares(counts / total)
    spread = (1 - shares) ** 2 * variances + shares**2 * (variances.sum() - variances)
    errors = np.minimum(centre_errors[order], 1.0)
    centroids = unscale_many(features, np.clip(centres, 0.0, 1.0))
    sorted_spreads = np.full(len(order), np.nan) if spreads is None else spreads[order]
    one_mean = compare_with_one_mean(centres, counts, variances, errors, sorted_spreads)
    is_low = bool(diagnostics.get("low_confidence", True))
    others = [few(is_low=is_low)] if grounds is None else grounds
    least_ratio = 1.0 if loss is None else loss.value
    is_no_better = not one_mean.is_beaten or (one_mean.ratio is not None and one_mean.ratio < least_ratio)
    if is_no_better:
        is_low, warnings = True, (*warnings, NO_BETTER)
    return ClusterModel(
        type="centroids",
        features=features,
        sizes=shares,
        size_errors=np.minimum(np.sqrt(spread) / total, 1.0),
        centroids=centroids,
        centroid_errors=unscale_errors(features, centroids, errors),
        diagnostics={
            **diagnostics,
            "low_confidence": is_low,
            "one_mean_ratio": one_mean.ratio,
            "refits": agreement.to_wire(),
            "noisy_counts": counts.tolist(),
            "spreads": [float(value) if np.isfinite(value) else None for value in sorted_spreads],
        },
        warnings=tuple(warnings),
        privacy=PRIVACY,
        **rate(loss, agreement, *others, ground(Verdict.DOUBTFUL, NO_BETTER, applies=is_no_better)),
    )


class OneMean(NamedTuple):
    """One centre at the mean of all records, compared with several centres."""

    ratio: float | None  # its mean squared distance, divided by that of the centres; None without spreads
    is_beaten: bool  # whether the centres are closer by more than noise explains


def compare_with_one_mean(
    centres: NDArray[np.float64],
    counts: NDArray[np.float64],
    count_variances: NDArray[np.float64],
    centre_errors: NDArray[np.float64],
    spreads: NDArray[np.float64],
) -> OneMean:
    """Compare centres with one centre at the mean of the records, at no privacy cost.

    Several centres gain the sum over clusters of n (|c - mean|^2 - noise) and lose n times the noise,
    because they are not where the records' means are. They beat one mean if the difference exceeds two
    of its standard errors.

    Parameters
    ----------
    centres : ndarray of shape (k, d)
        In [0, 1]^d.
    counts, count_variances : ndarray of shape (k,)
    centre_errors : ndarray of shape (k, d)
    spreads : ndarray of shape (k,)
        NaN if unknown.

    Returns
    -------
    OneMean
        One centre is compared with itself: its ratio is 1, and it counts as beaten. A ratio is at most
        `MAX_RATIO`.
    """
    k, d = centres.shape
    if k == 1:
        return OneMean(1.0, True)
    masses = np.maximum(counts, 0.0)
    total = max(float(masses.sum()), 1.0)
    noise = (centre_errors**2).sum(axis=1)
    away = ((centres - masses @ centres / total) ** 2).sum(axis=1)
    gain = float(masses @ (away - 2 * noise))
    variance = float(count_variances @ away**2 + masses**2 @ (4 * away * noise + 2 * noise**2)) / d
    is_beaten = gain > GAIN_ERRORS * sqrt(variance)
    if not np.isfinite(spreads).all():
        return OneMean(None, is_beaten)
    within = max(float(masses @ (spreads**2 + noise)), _TINY)
    return OneMean(min(max(1 + gain / within, 1 / MAX_RATIO), MAX_RATIO), is_beaten)


def compute_achieved_ratio(
    noise: NDArray[np.float64], counts: NDArray[np.float64], spreads: NDArray[np.float64]
) -> float:
    """Return the factor by which noise in the centres increases the mean squared distance, 1 to `MAX_RATIO`.

    It is a lower bound, because it does not include clusters that the noise hid. The mean squared
    distance of the records is a noisy estimate. Where that estimate is nearly zero, the factor is
    `MAX_RATIO`.

    Parameters
    ----------
    noise : ndarray of shape (k,)
        Squared distance by which noise moves each centre.
    counts : ndarray of shape (k,)
    spreads : ndarray of shape (k,)
    """
    masses = np.maximum(counts, 1.0)
    within, moved = float(masses @ spreads**2), float(masses @ noise)
    return 1 + min(moved / max(within, _TINY), MAX_RATIO - 1)


class NoisyCount(NamedTuple):
    """The noisy number of all records."""

    value: float
    variance: float  # noise variance

    @property
    def lower_bound(self) -> float:
        """Return the value less three standard deviations of the noise."""
        return self.value - 3 * sqrt(self.variance)


def is_clear(count: NoisyCount, epsilon_nano: int, clusters: int) -> bool:
    """Return whether N epsilon / k is large enough for centres to stand out from noise.

    `epsilon_nano` is the cost per record: the declared epsilon divided by the maximum number of
    records per user. N is `count.lower_bound`.
    """
    return count.lower_bound * epsilon_nano >= CLEAR * clusters * NANO


def build_warnings(count: NoisyCount | float, epsilon_nano: int, clusters: int, n_found: int) -> tuple[str, ...]:
    """Build the warnings of a model from noisy counts, at no privacy cost.

    Parameters
    ----------
    count : NoisyCount or float
        Number of all records; a float has no noise.
    epsilon_nano : int
        Cost per record, as in `is_clear`.
    clusters : int
        Requested number of clusters.
    n_found : int
        Number of clusters in the model.

    Returns
    -------
    tuple of str
        Sentences.
    """
    warnings = []
    if not isinstance(count, NoisyCount):
        count = NoisyCount(count, 0.0)
    if not is_clear(count, epsilon_nano, clusters):
        needed = int(np.ceil(CLEAR * clusters * NANO / max(epsilon_nano, 1)))
        warnings.append(
            f"About {max(0, round(count.value))} records are few for {clusters} clusters at this epsilon: "
            f"centroids may be noise alone. About {needed} would make them clear."
        )
    if n_found < clusters:
        warnings.append(describe_missing_clusters(n_found))
    return tuple(warnings)


def describe_missing_clusters(n_found: int) -> str:
    """Return the warning that the model has fewer clusters than requested."""
    if n_found == 1:
        return "Only one place stands out from noise, so there is one cluster."
    return f"Only {n_found} places stand out from noise, so there are {n_found} clusters."
