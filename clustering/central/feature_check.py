"""Check for irrelevant features: features that divide people where nothing separates them.

An even feature with a wide range attracts the borders of k-means, although no group of people shows in it. Two queries
find such features. Counts between the two nearest centres of each record show which neighbouring clusters have no gap
between them. Histograms show which features have a single peak. A feature without a second peak that has much of the
separation of clusters without a gap is irrelevant. `docs/algorithms.md` has the measurements.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from clustering.central.cells import GAP_BINS, GapCells, to_places
from clustering.central.curator import Curator
from clustering.central.narrowing import Bounds, FeatureHistograms
from clustering.centroids.partition_agreement import draw_laplace, draw_normal
from clustering.centroids.verdict import Ground, decide
from clustering.random import PublicWords
from sfumato.forecast import forecast_central
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.feature_shares import FeatureCheck, list_names
from sfumato.model.precision import Verdict
from sfumato.privacy.accounting import NANO
from sfumato.records.encodings import differences, scale_many
from sfumato.sizing.feature_checks import CheckPlan, plan_check
from sfumato.sizing.required_reports import planned_features
from sfumato.specs import LATTICE, CentralAlgorithm, circles_of

N_BINS = 32  # bins of a histogram
NO_GAP = 0.6  # density at the border, in the density inside of the clusters, from which there is no gap
CLEAR_PAIR = 6.0  # deviations of noise below which the count of a pair is ignored
LEAST_SHARE = 0.15  # gapless share of an irrelevant feature
PEAKS = 3.0  # peak score from which a feature has a second peak
N_NULLS = 12  # histograms with one peak to which a feature is compared
DOMINATED, DOMINANT = 3, 0.8  # number of features from which one that has this share of the separation is named

_SEED = 39  # public seed of the histograms to which a feature is compared
_TINY = 1e-6


def check_features(curator: Curator, model: ClusterModel, plan: CheckPlan) -> FeatureCheck | None:
    """Check which features of released clusters are irrelevant. Return None for one cluster, at no cost.

    Privacy: the cost of the plan. The cells of all pairs of clusters are disjoint, so that a record changes one gap
    count by 1. It changes one bin of each of the d histograms.

    Parameters
    ----------
    curator : Curator
    model : ClusterModel
        Its centroids are public, and its features have the bounds that scale the curator's records.
    plan : CheckPlan
    """
    if model.centroids is None or model.n_clusters < 2:
        return None
    centres, periodic = scale_many(model.features, model.centroids), circles_of(model.features)
    d = model.n_numeric
    with curator.on_circles(periodic) as circles:
        answer = curator.counts(GapCells(to_places(circles.to_points(centres))), plan.gaps)
    counts = answer.reshape(-1, GAP_BINS).astype(np.float64)
    gapless = find_gapless_shares(centres, counts, curator.deviation(plan.gaps), periodic)
    bounds = Bounds(np.zeros(d, dtype=np.int64), np.full(d, LATTICE, dtype=np.int64))
    answer = curator.histograms(FeatureHistograms(bounds, N_BINS), plan.histograms).reshape(d, N_BINS)
    scale = curator.deviation(plan.histograms) * d / 2**0.5
    is_conclusive = count_of(model) >= plan.needed_records(d, curator.max_per_user)
    histograms, words = answer.astype(np.float64), PublicWords(_SEED)
    scores = np.zeros(len(model.features))
    if is_conclusive:
        scores[:d] = [
            score_peaks(each, scale, words, is_circle=place in periodic) for place, each in enumerate(histograms)
        ]
    is_irrelevant = (gapless > LEAST_SHARE) & (scores < PEAKS) & is_conclusive
    is_irrelevant[d:] = False  # categories have no histograms
    names = tuple(each.name for each, found in zip(model.features, is_irrelevant, strict=True) if found)
    return FeatureCheck(plan.cost / NANO, gapless, scores, names, is_conclusive)


def judge_features(
    params: CentralAlgorithm, model: ClusterModel, check: FeatureCheck | None, max_per_user: int
) -> ClusterModel:
    """Return the model with its check, and with warnings about features that may be irrelevant.

    Without a check, a feature that has almost all of the separation is named. No privacy cost.

    Parameters
    ----------
    params : CentralAlgorithm
        With the ε of a further job.
    model : ClusterModel
    check : FeatureCheck or None
    max_per_user : int
    """
    d, shares = model.n_numeric, model.feature_shares
    if model.type != "centroids" or shares is None:
        return model
    if check is None:
        place = int(shares.argmax())
        if len(model.features) < DOMINATED or shares[place] < DOMINANT:
            return model
        name = model.features[place].name
        sentence = f"'{name}' has {shares[place]:.0%} of the separation of the clusters."
        remedy = "If it should not decide alone, widen its bounds, or compare the result with that of a job without it."
        without = _forecast_without(params, 1, model, max_per_user)
        return replace(model, warnings=(*model.warnings, f"{sentence} {remedy}{without}"))
    if not check.is_conclusive:
        needed = plan_check(params.epsilon_nano).needed_records(d, max_per_user)
        sentence = f"The records are few for a check of {d} features at this epsilon: about {needed} would do."
        return replace(model, feature_check=check, warnings=(*model.warnings, sentence))
    if not check.irrelevant:
        return replace(model, feature_check=check)
    n_irrelevant = len(check.irrelevant)
    verb, it = ("divides", "it") if n_irrelevant == 1 else ("divide", "them")
    sentence = f"{list_names(check.irrelevant)} {verb} the people where nothing separates them."
    remedy = f"Compare the result with that of a job without {it}."
    if n_irrelevant == d:
        remedy = "The clusters may be pieces of one group."
    rated = decide(Ground(model.verdict, model.verdict_reason), Ground(Verdict.UNCERTAIN, sentence))
    return replace(
        model,
        feature_check=check,
        verdict=rated.verdict,
        verdict_reason=rated.sentence,
        warnings=(
            *model.warnings,
            f"{sentence} {remedy}{_forecast_without(params, n_irrelevant, model, max_per_user)}",
        ),
    )


def _forecast_without(params: CentralAlgorithm, n_features: int, model: ClusterModel, max_per_user: int) -> str:
    """Return a sentence about the expected loss of a job without some of the features, or nothing."""
    left = planned_features(model.n_numeric - n_features, len(model.features) - model.n_numeric)
    if left < 1 or params.bounds == "private" or getattr(params, "mu", None) is not None:
        return ""
    same = replace(params, clusters=params.clusters or model.n_clusters)
    forecast = forecast_central(same, left, count_of(model), max_per_user)
    if forecast.ratio is None:
        return ""
    return (
        f" Such a job has an expected loss of about {forecast.ratio:.2f} (80 % interval: {forecast.lower:.2f} to "
        f"{forecast.upper:.2f})."
    )


def count_of(model: ClusterModel) -> float:
    """Return the noisy number of records that a model states, at least 1."""
    return max(float(model.diagnostics.get("noisy_count", 1.0)), 1.0)


def find_gapless_shares(
    centres: NDArray[np.float64], counts: NDArray[np.float64], deviation: float, circles: Sequence[int] = ()
) -> NDArray[np.float64]:
    """Return the share of each feature in the separation of pairs of clusters without a gap: (d,).

    Parameters
    ----------
    centres : ndarray of shape (k, d)
    counts : ndarray of shape (pairs, GAP_BINS)
        Noisy counts between the centres of each pair.
    deviation : float
        Standard deviation of the noise of a count.
    circles : sequence of int
        Indices of the periodic features.
    """
    first, second = np.triu_indices(len(centres), 1)
    masses = np.maximum(counts.sum(axis=1), 0.0)
    is_clear = masses > CLEAR_PAIR * deviation * GAP_BINS**0.5
    inside = np.maximum(counts[:, 2:5].mean(axis=1), 2 * deviation)
    has_no_gap = is_clear & (counts[:, 0] > NO_GAP * inside)
    squares = differences(centres[first], centres[second], circles) ** 2
    parts = squares / np.maximum(squares.sum(axis=1, keepdims=True), _TINY**2)
    shares: NDArray[np.float64] = (masses * has_no_gap) @ parts / max(float(masses @ is_clear), 1.0)
    return np.clip(shares, 0.0, 1.0)


def score_peaks(histogram: NDArray[np.float64], scale: float, words: PublicWords, *, is_circle: bool = False) -> float:
    """Return how much more a noisy histogram differs from one with a single peak than noise explains.

    The difference is the range of the cumulated residuals from the nearest histogram with one peak, as a share of the
    records. It is compared with that of histograms that are drawn from the latter with the same noise.

    Parameters
    ----------
    histogram : ndarray of shape (n_bins,)
    scale : float
        Scale of the Laplace noise of each bin.
    words : PublicWords
    is_circle : bool
        Whether the last bin is next to the first one. The histogram then starts at its lowest place, on a mean of three
        bins.
    """
    if is_circle:
        smooth = histogram + np.roll(histogram, 1) + np.roll(histogram, -1)
        histogram = np.roll(histogram, -int(smooth.argmin()))
    difference, fit = _differ_from_one_peak(histogram)
    n = max(float(histogram.sum()), 100.0)
    expected = n * fit / max(float(fit.sum()), _TINY)
    nulls = []
    for _ in range(N_NULLS):
        noise = np.sqrt(expected) * draw_normal(words, len(fit)) + scale * draw_laplace(words, len(fit))
        nulls.append(_differ_from_one_peak(expected + noise)[0])
    return float((difference - np.mean(nulls)) / max(float(np.std(nulls)), _TINY))


def _differ_from_one_peak(histogram: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Return the difference of a histogram from the nearest one with a single peak, and that one."""
    best, least = histogram, np.inf
    for peak in range(0, len(histogram), 2):
        rising = isotonic_regression(histogram[: peak + 1]).x
        falling = isotonic_regression(histogram[peak + 1 :], increasing=False).x
        fit = np.concatenate([rising, falling])
        if (error := float(((fit - histogram) ** 2).sum())) < least:
            best, least = fit, error
    fit = np.maximum(best, 0.0)
    total = max(float(histogram.sum()), 1.0)
    residuals = np.cumsum(histogram - fit * total / max(float(fit.sum()), _TINY)) / total
    return float(residuals.max() - residuals.min()), fit
