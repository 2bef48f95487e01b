"""`noisy_fcm`: fuzzy c-means on noisy vectors, a corrected form of mnFCM of Zhang et al. 2025.

Changes from the paper: discrete Laplace noise is exact, not floating-point. Each distance is the negative
logarithm of one density at its optimal spread, instead of equations (5) to (12). Weighted means never
increase the objective, unlike equation (22). The fit is compared with one centre at the mean, because
the objective does not distinguish noise from clusters.
"""

from functools import partial
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray

from clustering.centroids.fuzzy_cmeans import FuzzyFit, Rule, block_sums, fuzzy_c_means
from clustering.centroids.noisy_mixture_em import fit_mixture
from clustering.centroids.piece_population import agreement_of_errors
from clustering.centroids.verdict import few, rate
from clustering.density.label_map import PRIVACY
from clustering.errors import TooFewReports, UnfitRound
from clustering.random import PublicWords
from clustering.rounds.plan import Collected, Plan
from clustering.rounds.tally import Sample, noise_of
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.memberships import FuzzyMemberships
from sfumato.privacy.accounting import NANO
from sfumato.privacy.entropy import WORD_SPAN
from sfumato.records.encodings import unscale_errors, unscale_many
from sfumato.sizing.required_reports import noisy_fcm_reports
from sfumato.sizing.rounds import MAX_JSON_INT
from sfumato.specs import (
    MAX_SCALE,
    DiscreteLaplaceMechanism,
    Feature,
    LatticeEncoding,
    NoisyFcm,
    RoundSpec,
    most_vectors,
)

STEPS = 1000  # lattice steps per feature, far finer than the noise
SPREAD = 0.06  # cluster spread for which sigma0 is chosen, as a share of a feature's range
TOLERANCE = 1e-4  # in max(sigma0, 1), shares of a feature's range
# Steps longer by 30 % need a quarter fewer iterations than the classical ones. With 50 % there is no further
# gain if clusters merge in many features, and the steps overshoot.
STRETCH = 1.3
STARTS, START_REPORTS, START_ITERATIONS = 4, 10_000, 50
START_TOLERANCE = 1e-2  # like TOLERANCE; starts are only compared
RESAMPLES, RESAMPLED, RESAMPLE_ITERATIONS = 24, 4000, 60
JUDGED_REPORTS, JUDGE_ITERATIONS = 20_000, 30
COINCIDENT = 0.05  # share of the range; centres closer than this in every feature count as one

COINCIDENT_HINT = "Noise pulls fuzzy centroids together, so distinct clusters can have almost equal centroids."
OUTSIDE_HINT = "Their distance reflects the width of the noise, not of the data."
LABEL_ON_DEVICES = (
    "Labels of noisy reports are close to chance even under the true centroids. Label records on devices with the "
    "published model."
)


def noisy_fcm(params: NoisyFcm, features: tuple[Feature, ...], expected_reports: int) -> Plan:
    """Plan one round of noisy vectors for all devices at the full epsilon, then `fit`.

    Privacy: each of d features has noise of scale d times its range divided by epsilon and costs
    epsilon/d, epsilon in total (theorem 5 of the paper).

    Parameters
    ----------
    params : NoisyFcm
    features : tuple of Feature
    expected_reports : int

    Raises
    ------
    UnfitRound
        A sample does not hold the vectors of so many reports.
    TooFewReports
        See `fit`.
    """
    d = len(features)
    if expected_reports > (most := most_vectors(d)):
        raise UnfitRound(f"noisy_fcm stores every vector: with {d} features it accepts at most {most} reports")
    epsilon_nano = params.epsilon_nano
    # with a tiny epsilon, fine steps are useless and would exceed the maximum scale
    steps = max(1, min(STEPS, MAX_SCALE * epsilon_nano // (d * NANO)))
    encoding = LatticeEncoding(d, steps)
    collected = yield RoundSpec(features, encoding, DiscreteLaplaceMechanism.design(d, steps, epsilon_nano))
    return fit(params, collected)


def scaled(spec: RoundSpec, sample: Sample) -> NDArray[np.float64]:
    """Return the sample's vectors as shares of the lattice's range, shape (n, d). Raise UnfitRound for other rounds."""
    return np.asarray(sample.values / noise_of(spec).steps)


def fit(params: NoisyFcm, collected: Collected) -> ClusterModel:
    """Fit the model of a collected round with its published lattice and mechanism.

    Sizes are mean memberships. Standard errors come from 24 fits to resampled reports, each of at most
    4,000 reports drawn with replacement and started at the fit, scaled to the number of reports. They
    include the randomness of the noise and of sampling devices. They do not include the bias by which
    noise pulls centroids together or pushes them outwards.

    Returns
    -------
    ClusterModel
        Centroids, clipped to the bounds, by descending size. Diagnostics:

        - n_reports.
        - n_eff: number of exact records that give the same standard error of a mean, for a uniform
          feature.
        - reports_needed: with fewer, no centroid has a standard error below a cluster's spread, even
          if the cluster of each report were known.
        - insufficient_reports: n_reports is below reports_needed.
        - low_confidence: insufficient_reports, or beats_one_centre is false.
        - noise_scale: as a share of a feature's range.
        - distance, m, sigma0.
        - objective: J per report.
        - iterations, converged.
        - distinct_centroids: centroids that do not coincide with an earlier one.
        - outside_bounds: centroids outside the bounds before clipping.
        - gain: log likelihood per report above that of one centre at the mean, under the known noise.
        - beats_one_centre: whether the gain justifies the additional parameters by BIC.

    Raises
    ------
    TooFewReports
        There are fewer reports than clusters.
    UnfitRound
        The round does not have noisy vectors.
    """
    sample, mechanism = collected.sample.values, noise_of(collected.spec)
    n_reports = len(sample)
    if n_reports < params.clusters:
        raise TooFewReports(n_reports=n_reports, n_needed=params.clusters)
    points = scaled(collected.spec, collected.sample)
    noise_variance = mechanism.variance() / mechanism.steps**2
    sigma = params.sigma0 if params.sigma0 is not None else sqrt(SPREAD**2 + noise_variance)
    rule = Rule(params.distance, params.m, sigma)
    tolerance = TOLERANCE * max(1.0, sigma)
    found = fuzzy_c_means(
        points,
        _choose_start(params, points, rule),
        rule,
        max_iterations=params.max_iterations,
        tolerance=tolerance,
        stretch=STRETCH,
        passes=partial(collected.map_blocks, block_sums) if collected.map_blocks else None,
    )
    centre_errors, size_errors = _resample_errors(params, points, found, rule, tolerance)
    centres = np.clip(found.centres, 0.0, 1.0)
    needed = min(ceil(noisy_fcm_reports(noise_variance, params.clusters)), MAX_JSON_INT)
    gain, beats = _compare_with_one_centre(sample, mechanism, centres)
    n_distinct, n_outside = _n_distinct(centres), int((centres != found.centres).any(axis=1).sum())
    order = np.argsort(-found.shares, kind="stable")
    agreement = agreement_of_errors(centres, found.shares, centre_errors, PublicWords(params.seed))
    features = collected.spec.features
    centroids = unscale_many(features, centres[order])
    return ClusterModel(
        type="centroids",
        features=features,
        sizes=found.shares[order] / found.shares.sum(),
        size_errors=size_errors[order],
        centroids=centroids,
        centroid_errors=unscale_errors(features, centroids, centre_errors[order]),
        soft=FuzzyMemberships(params.distance, float(params.m), float(sigma)),
        diagnostics={
            "n_reports": n_reports,
            "n_eff": n_reports / (1 + 12 * noise_variance),
            "reports_needed": needed,
            "insufficient_reports": n_reports < needed,
            "low_confidence": n_reports < needed or not beats,
            "noise_scale": mechanism.scale_numerator / mechanism.scale_denominator / mechanism.steps,
            "distance": params.distance,
            "m": float(params.m),
            "sigma0": float(sigma),
            "objective": found.objectives[-1] / n_reports,
            "iterations": len(found.objectives),
            "converged": found.converged,
            "distinct_centroids": n_distinct,
            "outside_bounds": n_outside,
            "gain": gain,
            "beats_one_centre": beats,
            "refits": agreement.to_wire(),
        },
        warnings=_warnings(found, n_distinct, n_outside, beats, n_reports, needed),
        privacy=PRIVACY,
        **rate(None, agreement, few(is_low=n_reports < needed or not beats)),
    )


def _choose_start(params: NoisyFcm, points: NDArray[np.float64], rule: Rule) -> NDArray[np.float64]:
    """Return the best of several uniform random starts, compared on part of the reports."""
    shape = (params.clusters, points.shape[1])
    bits = np.random.PCG64(params.seed)
    some = points[:: -(-len(points) // START_REPORTS)]
    tolerance = START_TOLERANCE * max(1.0, rule.sigma)
    fits = []
    for _ in range(STARTS):
        places = (bits.random_raw(shape[0] * shape[1]) / WORD_SPAN).reshape(shape)
        fits.append(
            fuzzy_c_means(some, places, rule, max_iterations=START_ITERATIONS, tolerance=tolerance, stretch=STRETCH)
        )
    return min(fits, key=lambda each: each.objectives[-1]).centres


def _resample_errors(
    params: NoisyFcm, points: NDArray[np.float64], found: FuzzyFit, rule: Rule, tolerance: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return standard errors of centres and shares: their deviations over fits to resampled reports."""
    n_drawn = min(len(points), RESAMPLED)
    bits = np.random.PCG64(params.seed + 1)
    fits = []
    for _ in range(RESAMPLES):
        rows = (bits.random_raw(n_drawn) / WORD_SPAN * len(points)).astype(np.int64)
        rows = np.minimum(rows, len(points) - 1)  # the largest words round up to 1
        again = fuzzy_c_means(
            points[rows],
            found.centres,
            rule,
            max_iterations=RESAMPLE_ITERATIONS,
            tolerance=tolerance,
            stretch=STRETCH,
        )
        fits.append(again)
    shrunk = sqrt(n_drawn / len(points))
    centres, shares = np.stack([each.centres for each in fits]), np.stack([each.shares for each in fits])
    return shrunk * centres.std(axis=0, ddof=1), shrunk * shares.std(axis=0, ddof=1)


def _compare_with_one_centre(
    sample: NDArray[np.int32], mechanism: DiscreteLaplaceMechanism, centres: NDArray[np.float64]
) -> tuple[float, bool]:
    """Return the gain in log likelihood per report over one centre at the mean, and whether BIC accepts it."""
    some = sample[:: -(-len(sample) // JUDGED_REPORTS)]
    mean = np.clip(sample.mean(axis=0, keepdims=True) / mechanism.steps, 0.0, 1.0)
    several, one = (
        fit_mixture(some, mechanism, places, iterations=JUDGE_ITERATIONS, move_centres=False).log_likelihood / len(some)
        for places in (centres, mean)
    )
    n_more = centres.size - mean.size + len(centres) - 1
    gain = several - one
    return gain, bool(gain * len(sample) > 0.5 * n_more * np.log(len(sample)))


def _n_distinct(centres: NDArray[np.float64]) -> int:
    """Return the number of centres that do not coincide with an earlier one."""
    distinct: list[NDArray[np.float64]] = []
    for centre in centres:
        if all(np.abs(centre - other).max() >= COINCIDENT for other in distinct):
            distinct.append(centre)
    return len(distinct)


def _warnings(
    found: FuzzyFit, n_distinct: int, n_outside: int, beats: bool, n_reports: int, needed: int
) -> tuple[str, ...]:
    """Return the limitations of the model, as sentences."""
    warnings = [LABEL_ON_DEVICES]
    if n_reports < needed:
        warnings.append(
            f"{n_reports} reports are too few for this noise, even if their clusters were known; {needed} are needed."
        )
    if not found.converged:
        warnings.append(f"The fit had not converged after {len(found.objectives)} iterations.")
    if n_distinct < len(found.centres):
        warnings.append(f"Only {n_distinct} of {len(found.centres)} centroids are distinct. {COINCIDENT_HINT}")
    if n_outside:
        warnings.append(f"{n_outside} centroids lay outside the bounds and were moved to them. {OUTSIDE_HINT}")
    if not beats:
        warnings.append("These centroids explain the reports no better than one centre at the mean of all.")
    return tuple(warnings)
