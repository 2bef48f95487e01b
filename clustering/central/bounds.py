"""Private bounds: a search for narrower bounds within the declared ones.

1. Histograms locate the records along each feature. The next round's bounds are the hull of the clear bins
   with a margin.
2. Nested boxes around the located middles determine the size. The noise of histograms grows with the number
   of features and can hide a small cluster. A record lies in one box only.

Features of one unit and equal declared ranges keep one scale, so that distances keep their meaning. Other
features are scaled by their own bounds. Records outside are clipped.
"""

from dataclasses import replace
from math import ceil, log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.central.curator import Curator
from clustering.central.gaussian_block import ConcentratedBlock
from clustering.central.narrowing import Bounds, BoxShells, FeatureHistograms
from clustering.centroids.verdict import Ground, decide, ground
from clustering.errors import TooFewRecords
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.precision import Verdict
from sfumato.privacy.accounting import NANO
from sfumato.records.encodings import scale_many
from sfumato.records.mixed import step_of
from sfumato.sizing.private_bounds import FINE_BINS, ROUNDS, WIDE, BoundsPlan, plan_bounds
from sfumato.specs import LATTICE, CentralAlgorithm, Feature, circles_of

CLEAR = 100.0  # records in thresholds of a round beyond which it costs less
COARSE = 4.0  # the same below which bins are twice as wide
MARGIN = 0.35  # margin in hulls
FACTORS = (0.1, 0.14, 0.2, 0.28, 0.4, 0.56, 0.8, 1.1, 1.6, 2.2, 3.0)  # sizes of boxes in located widths
OUTER = 2.0  # growth of further boxes, up to all of the declared bounds
OUTSIDE = 0.01  # share of records outside the bounds
DEVIATIONS, OUTER_DEVIATIONS = 2.0, 3.0  # noise in its estimate, for boxes and for further boxes
HELD = 0.95  # share of records in the box of which the width has an interval
EIGHTY_PERCENT = 1.2816  # standard errors of an 80 % interval
BALL_RADIUS = 0.5  # radius of the ball in the box
# Part of the bounds that clusters occupy, below which a result is at best uncertain, and doubtful. Below WIDE it warns.
TOO_WIDE, FAR_TOO_WIDE = 0.06, 0.03
REACH, TAIL = 2.0, 0.05  # reach of a cluster in deviations; ignored share of the records at each end
LEAST_WIDTH = 1024  # least width of bounds in lattice places


Source = Curator | ConcentratedBlock


class Found(NamedTuple):
    """Bounds of a search, and the interval of the width of the box that holds 95 % of the records.

    Attributes
    ----------
    bounds : Bounds
    lower, upper : ndarray of shape (d,)
        Ends of the 80 % interval, as shares of the declared bounds.
    """

    bounds: Bounds
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


class NarrowedJob(NamedTuple):
    """A job after its bounds are found."""

    params: Any  # with the remaining epsilon
    features: tuple[Feature, ...]
    diagnostics: dict[str, Any]


def narrow_bounds(params: CentralAlgorithm, features: tuple[Feature, ...], curator: Curator) -> NarrowedJob:
    """Find narrower bounds and scale the curator's records by them.

    Privacy: at most 8 % of epsilon, pure. In a job with a concentrated block, .5 % of epsilon and at most
    14 % of the block's rho, which increases the remaining noise as much. The rest is for the algorithm.

    Parameters
    ----------
    params : CentralAlgorithm
    features : tuple of Feature
        Features with their declared bounds.
    curator : Curator

    Returns
    -------
    NarrowedJob

    Raises
    ------
    InvalidSpec
        Epsilon is too small to be divided. Nothing was charged.
    TooFewRecords
        The noisy count is too small for bounds. Only the count was charged.
    """
    epsilon_nano, delta_atto = params.epsilon_nano, params.delta_atto
    domain = curator.domain
    numeric = features[: domain.n_numeric]
    plan = plan_bounds(params, domain.n_planned, curator.max_per_user, len(numeric))
    n_records = curator.count(plan.count_nano)
    if n_records < plan.needed_records:
        raise TooFewRecords(
            f"about {max(n_records, 0)} records are few for private bounds of {len(numeric)} features at this "
            f"epsilon: about {plan.needed_records} would do. Declare narrower bounds, or increase epsilon."
        )
    block = curator.open_block(epsilon_nano - plan.count_nano, delta_atto) if plan.has_block else None
    source = curator if block is None else block
    located = _locate(source, plan, float(n_records), numeric)
    bounds, lower, upper = _resize(source, plan, float(n_records), located)
    curator.narrow(bounds.keep_others(len(features)), block)
    left = epsilon_nano - curator.spent_nano if block is None else epsilon_nano - plan.count_nano
    notes = {
        "noisy_count": n_records,
        "shares_of_declared": (bounds.widths / LATTICE).tolist(),
        "width_of_95_percent": {
            "lower": lower.tolist(),
            "upper": upper.tolist(),
            "confidence": 0.8,
        },
    }
    return NarrowedJob(
        params.with_epsilon(left / NANO, bounds="declared"),
        bounds.scale_features(features),
        {"private_bounds": notes},
    )


def _locate(source: Source, plan: BoundsPlan, n_records: float, features: tuple[Feature, ...]) -> Bounds:
    """Find where most records are along each feature, by rounds of histograms."""
    d = len(features)
    bounds = Bounds(np.zeros(d, dtype=np.int64), np.full(d, LATTICE))
    cost = plan.cost_of(n_records / CLEAR, d)
    growth = plan.noise_growth(cost)
    n_bins = FINE_BINS if n_records >= COARSE * growth * plan.threshold else FINE_BINS // 2
    for _ in range(ROUNDS):
        counts = source.histograms(FeatureHistograms(bounds, n_bins), cost).reshape(d, n_bins)
        lows, highs = find_hulls(counts, growth * plan.threshold, growth * plan.summed)
        margins = 1 + np.ceil(MARGIN * (highs - lows)).astype(np.int64)
        lows, highs = np.maximum(lows - margins, 0), np.minimum(highs + margins, n_bins)
        starts, ends = bounds.lows + lows * bounds.widths // n_bins, bounds.lows + -(-highs * bounds.widths // n_bins)
        bounds = _widen(starts, ends - starts, np.maximum(ends - starts, LEAST_WIDTH))
    return _join_scales(bounds, features)


def _resize(source: Source, plan: BoundsPlan, n_records: float, located: Bounds) -> Found:
    """Find the smallest box around the located middles with nearly all records.

    Each record lies in one of the nested boxes, so their noise does not grow with the number of features.
    """
    n_outer = max(0, ceil(log(2 * LATTICE / FACTORS[-1] / located.widths.min(), OUTER)))
    factors = np.array(FACTORS + tuple(FACTORS[-1] * OUTER**i for i in range(1, n_outer + 1)))
    n_shells = len(factors)
    counts = source.counts(BoxShells(located, factors), plan.sizing).astype(np.float64)
    outside = np.cumsum(counts[::-1])[::-1][1:]  # records outside each box
    noise = source.deviation(plan.sizing) * np.sqrt(np.arange(n_shells, 0, -1))
    deviations = np.where(factors < FACTORS[-1], DEVIATIONS, OUTER_DEVIATIONS)
    is_outside = outside > OUTSIDE * n_records + deviations * noise
    factor = factors[min(int(is_outside.nonzero()[0].max(initial=-1)) + 1, n_shells - 1)]
    margin, allowed = EIGHTY_PERCENT * noise, (1 - HELD) * n_records
    too_small = int((outside - margin > allowed).nonzero()[0].max(initial=-1))  # last such box
    is_enough = (outside + margin <= allowed) & (np.arange(n_shells) > too_small)
    lower = factors[too_small] if too_small >= 0 else 0.0
    upper = factors[int(is_enough.argmax())] if is_enough.any() else factors[-1]
    widths = np.clip(np.ceil(factor * located.widths), LEAST_WIDTH, LATTICE).astype(np.int64)
    ends = (np.minimum(end * located.widths / LATTICE, 1) for end in (lower, upper))
    return Found(_widen(located.lows, located.widths, widths), *ends)


def find_hulls(
    counts: NDArray[np.int64], threshold: float, summed: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the hull of the bins that stand out from noise, for each feature.

    Sums of 1, 2, 4, ... adjacent bins are tested in turn, each beside the hull of the shorter ones.

    Parameters
    ----------
    counts : ndarray of shape (d, n_bins)
        Noisy counts.
    threshold, summed : float
        See `sfumato.sizing.private_bounds.BoundsPlan`.

    Returns
    -------
    ndarray of shape (d,), int64
        First bin of each hull; 0 if no bin stands out.
    ndarray of shape (d,), int64
        First bin beyond each hull; n_bins if no bin stands out.
    """
    d, n_bins = counts.shape
    sums = np.concatenate([np.zeros((d, 1), dtype=np.int64), np.cumsum(counts, axis=1)], axis=1)
    lows, highs = np.full(d, n_bins), np.zeros(d, dtype=np.int64)
    n_summed = 1
    while n_summed < n_bins:
        starts = np.arange(n_bins - n_summed + 1)
        windows = sums[:, n_summed:] - sums[:, :-n_summed]
        is_clear = windows > (threshold**2 + (n_summed - 1) * summed**2) ** 0.5
        is_clear &= (starts + n_summed <= lows[:, None]) | (starts >= highs[:, None])
        lows = np.minimum(lows, np.where(is_clear, starts, n_bins).min(axis=1))
        highs = np.maximum(highs, np.where(is_clear, starts + n_summed, 0).max(axis=1))
        n_summed *= 2
    is_found = lows < highs
    return np.where(is_found, lows, 0), np.where(is_found, highs, n_bins)


def _widen(lows: NDArray[np.int64], widths: NDArray[np.int64], wider: NDArray[np.int64]) -> Bounds:
    """Return bounds of other widths around the same middles, within the lattice."""
    return Bounds(np.clip(lows - (wider - widths) // 2, 0, LATTICE - wider), wider)


def _join_scales(bounds: Bounds, features: tuple[Feature, ...]) -> Bounds:
    """Return the bounds with the largest width of each set of features of one unit and equal declared ranges."""
    wider = bounds.widths.copy()
    groups: dict[tuple[str, float], list[int]] = {}
    for i, feature in enumerate(features):
        groups.setdefault((feature.unit, float(f"{feature.upper - feature.lower:.9g}")), []).append(i)
    for group in groups.values():
        wider[group] = bounds.widths[group].max()
    return _widen(bounds.lows, bounds.widths, wider)


def judge_bounds(model: ClusterModel, *, in_ball: bool, is_searched: bool) -> ClusterModel:
    """Return the model with a warning and a limited verdict if its clusters occupy a small part of the bounds.

    No privacy cost.

    Parameters
    ----------
    model : ClusterModel
    in_ball : bool
        Whether all records lie in the ball. Its width is then that of the bounds.
    is_searched : bool
        Whether the bounds were found by a private search.
    """
    extent = _measure_extent(model, in_ball=in_ball)
    if extent is None or extent > WIDE:
        return model
    kind, remedy = (
        ("private", "More records or a larger epsilon make")
        if is_searched
        else (
            "declared",
            "Narrower or private bounds make",
        )
    )
    sentence = f"The clusters occupy about {max(extent, 0.001):.1%} of the {kind} bounds."
    limit = Verdict.DOUBTFUL if extent <= FAR_TOO_WIDE else Verdict.UNCERTAIN
    wide = ground(limit, sentence, applies=extent <= TOO_WIDE)
    rated = decide(Ground(model.verdict, model.verdict_reason), wide)
    return replace(
        model,
        verdict=rated.verdict,
        verdict_reason=rated.sentence,
        warnings=(*model.warnings, f"{sentence} {remedy} results more accurate."),
    )


def _measure_extent(model: ClusterModel, *, in_ball: bool = False) -> float | None:
    """Return the largest part of a feature's range that the clusters occupy, or None if it is unknown.

    The outermost records at each end are ignored, because noise alone makes clusters there. In a ball, each of many
    features has a small range, so that the root mean square distance from the mean is compared with the radius.
    """
    if model.density is not None:
        axes, circles = range(model.density.ndim), circles_of(model.features)
        lines = [axis for axis in axes if axis not in circles]  # a circle has no bounds to narrow
        if not lines:
            return None
        marginals = [np.cumsum(model.density.sum(axis=tuple(j for j in axes if j != i))) for i in lines]
        return max(float(((each > TAIL) & (each < 1 - TAIL)).mean()) for each in marginals)
    spreads = np.array(model.diagnostics.get("spreads", []), dtype=np.float64)
    if model.centroids is None or not spreads.size or not np.isfinite(spreads).all():
        return None
    centres = scale_many(model.features, model.centroids)
    if in_ball:
        mean = model.sizes @ centres
        return float((model.sizes @ (spreads**2 + ((centres - mean) ** 2).sum(axis=1))) ** 0.5 / BALL_RADIUS)
    if model.attributes:  # within clusters, a category varies by share (1 - share)
        centres = centres[:, : model.n_numeric]
        varied = sum(
            step_of(each) ** 2 * (1 - (model.category_shares[each.name] ** 2).sum(axis=1)) for each in model.attributes
        )
        spreads = np.sqrt(np.maximum(spreads**2 - varied, 0.0))
    reach = (REACH * spreads / model.n_numeric**0.5)[:, None]
    order = np.argsort(centres, axis=0)
    ends = np.cumsum(model.sizes[order], axis=0)
    is_inner = (ends > TAIL) & (ends - model.sizes[order] < 1 - TAIL)
    highs = np.where(is_inner, np.take_along_axis(centres + reach, order, axis=0), 0.0).max(axis=0)
    lows = np.where(is_inner, np.take_along_axis(centres - reach, order, axis=0), 1.0).min(axis=0)
    return float((highs - lows).max())
