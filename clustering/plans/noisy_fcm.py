"""`noisy_fcm`: fuzzy c-means over noisy vectors; mnFCM of paper 004, made sound (STATISTICS 4.1).

Against the paper: exact discrete Laplace noise instead of floating-point noise; distances that
are the negative log of one density each, with its spread at its best value, instead of (5) to
(12); weighted means that never raise the objective instead of (22); and a comparison with one
centre at the mean, because the objective is as happy with noise as with clusters.
"""

from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray

from clustering.errors import TooFewReports, UnfitRound
from clustering.fuzzy import FuzzyFit, Rule, fuzzy_c_means
from clustering.known_noise import fit_mixture
from clustering.label_regions import PRIVACY
from clustering.plan import Collected, Plan, Sample
from sfumato.accounting import NANO, parse_epsilon
from sfumato.cluster_model import ClusterModel
from sfumato.encodings import unscale_many
from sfumato.entropy import WORD_SPAN
from sfumato.mechanisms import discrete_laplace
from sfumato.memberships import FuzzyMemberships
from sfumato.sizing import MAX_JSON_INT, noisy_reports
from sfumato.specs import (
    MAX_SAMPLE_VALUES,
    MAX_SCALE,
    DiscreteLaplaceMechanism,
    Feature,
    LatticeEncoding,
    NoisyFcm,
    RoundSpec,
)

STEPS = 1000  # lattice units a feature, far below the noise
SPREAD = 0.06  # s of a cluster that sigma0 is made for, as a share of a feature's range
TOLERANCE = 1e-4  # of sigma0, and at least of a feature's range
# Steps a third longer than the classical ones take a quarter fewer; half as long again saves no more
# where clusters melt into one in many features, and overshoots.
STRETCH = 1.3
STARTS, START_REPORTS, START_ITERATIONS = 4, 10_000, 50
START_TOLERANCE = 1e-2  # of sigma0, and at least of a feature's range: a start is compared, not believed
RESAMPLES, RESAMPLED, RESAMPLE_ITERATIONS = 24, 4000, 60
JUDGED_REPORTS, JUDGE_ITERATIONS = 20_000, 30
COINCIDENT = 0.05  # of a feature's range: centres closer than this in every feature are one

DRAWN_TOGETHER = "Noise draws fuzzy centroids together: clusters may be real and still look alike here."
DRIVEN_OUT = "What sets such centroids apart is the noise's width, not the people's."
LABEL_ON_DEVICES = (
    "Labels of the noisy reports are near chance even under the true centroids: label records on devices, with the "
    "published model."
)


def noisy_fcm(params: NoisyFcm, features: tuple[Feature, ...], expected_reports: int) -> Plan:
    """The plan: one round of noisy vectors at the full epsilon, for every draw, then `fit`.

    Every feature's noise costs epsilon/K (Theorem 5 of the paper: K of them, each at K times the
    range over epsilon, make epsilon).

    Raises
    ------
    UnfitRound
        More expected reports, times features, than a sample may hold.
    TooFewReports
        From `fit`.
    """
    d = len(features)
    if expected_reports * d > MAX_SAMPLE_VALUES:
        raise UnfitRound(f"noisy_fcm keeps every vector: over {d} features it takes {MAX_SAMPLE_VALUES // d} reports")
    epsilon_nano = parse_epsilon(params.epsilon)
    # at the least epsilon the noise leaves no sense in fine steps, nor room for them
    steps = max(1, min(STEPS, MAX_SCALE * epsilon_nano // (d * NANO)))
    encoding = LatticeEncoding(d, steps)
    collected = yield RoundSpec(features, encoding, discrete_laplace.design(d, steps, epsilon_nano))
    return fit(params, collected)


def scaled(spec: RoundSpec, sample: Sample) -> NDArray[np.float64]:
    """A sample's vectors as shares of the lattice's range, shape (n, d). Raises UnfitRound."""
    if not isinstance(spec.mechanism, DiscreteLaplaceMechanism):
        raise UnfitRound("noisy_fcm goes on from noisy vectors")
    return np.asarray(sample.values / spec.mechanism.steps)


def fit(params: NoisyFcm, collected: Collected) -> ClusterModel:
    """The model of a collected round, whose lattice and mechanism are taken as published.

    Sizes are mean memberships. Errors come from fits to resampled reports, 24 times at most
    4,000 of them drawn with replacement, each from the fit itself on, and scaled to the number
    of reports; they say how far chance moves them (the coins', and the devices being a sample),
    not how far noise draws them in or drives them out.

    Returns
    -------
    ClusterModel
        Centroids, clipped to the bounds, by descending size. Diagnostics: n_reports; n_eff (how
        many exact records would tell a mean as well, of a feature as wide as its bounds);
        reports_needed (with fewer no centroid is known to a cluster's own spread, even if
        reports came with their clusters' names), insufficient_reports (there are fewer),
        low_confidence (so, or beats_one_centre is false);
        noise_scale (a share of a feature's range); distance, m, sigma0; objective (J a report);
        iterations, converged; distinct_centroids; outside_bounds (before they were clipped);
        gain (log likelihood a report over one centre at the mean, under the known noise) and
        beats_one_centre (whether that pays for the parameters, by BIC).

    Raises
    ------
    TooFewReports
        Fewer reports than clusters.
    UnfitRound
        The round is not of noisy vectors.
    """
    sample, mechanism = collected.sample.values, collected.spec.mechanism
    if not isinstance(mechanism, DiscreteLaplaceMechanism):
        raise UnfitRound("noisy_fcm goes on from noisy vectors")
    n_reports = len(sample)
    if n_reports < params.clusters:
        raise TooFewReports(n_reports=n_reports, n_needed=params.clusters)
    points = scaled(collected.spec, collected.sample)
    noise_variance = discrete_laplace.variance(mechanism) / mechanism.steps**2
    sigma = params.sigma0 if params.sigma0 is not None else sqrt(SPREAD**2 + noise_variance)
    rule = Rule(params.distance, params.m, sigma)
    tolerance = TOLERANCE * max(1.0, sigma)
    found = fuzzy_c_means(
        points,
        _start(params, points, rule),
        rule,
        max_iterations=params.max_iterations,
        tolerance=tolerance,
        stretch=STRETCH,
        passes=collected.passes,
    )
    centre_errors, size_errors = _resampled(params, points, found, rule, tolerance)
    centres = np.clip(found.centres, 0.0, 1.0)
    needed = min(ceil(noisy_reports(noise_variance, params.clusters)), MAX_JSON_INT)
    gain, beats = _judged(sample, mechanism, centres)
    n_distinct, n_outside = _n_distinct(centres), int((centres != found.centres).any(axis=1).sum())
    order = np.argsort(-found.shares, kind="stable")
    ranges = np.array([feature.upper - feature.lower for feature in collected.spec.features])
    return ClusterModel(
        type="centroids",
        features=collected.spec.features,
        sizes=found.shares[order] / found.shares.sum(),
        size_errors=size_errors[order],
        centroids=unscale_many(collected.spec.features, centres[order]),
        centroid_errors=centre_errors[order] * ranges,
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
        },
        warnings=_warnings(found, n_distinct, n_outside, beats, n_reports, needed),
        privacy=PRIVACY,
    )


def _start(params: NoisyFcm, points: NDArray[np.float64], rule: Rule) -> NDArray[np.float64]:
    """The best of some places drawn uniformly in the box: no record is looked at to draw them."""
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


def _resampled(
    params: NoisyFcm, points: NDArray[np.float64], found: FuzzyFit, rule: Rule, tolerance: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Standard errors of centres and shares: their spread over fits to resampled reports."""
    n_drawn = min(len(points), RESAMPLED)
    bits = np.random.PCG64(params.seed + 1)
    fits = []
    for _ in range(RESAMPLES):
        rows = (bits.random_raw(n_drawn) / WORD_SPAN * len(points)).astype(np.int64)
        rows = np.minimum(rows, len(points) - 1)  # a word near the last rounds up
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


def _judged(
    sample: NDArray[np.int32], mechanism: DiscreteLaplaceMechanism, centres: NDArray[np.float64]
) -> tuple[float, bool]:
    """Gain in log likelihood a report over one centre at the mean, and whether BIC says it is one."""
    some = sample[:: -(-len(sample) // JUDGED_REPORTS)]
    mean = np.clip(sample.mean(axis=0, keepdims=True) / mechanism.steps, 0.0, 1.0)
    several, one = (
        fit_mixture(some, mechanism, places, iterations=JUDGE_ITERATIONS, moves=False).log_likelihood / len(some)
        for places in (centres, mean)
    )
    n_more = centres.size - mean.size + len(centres) - 1
    gain = several - one
    return gain, bool(gain * len(sample) > 0.5 * n_more * np.log(len(sample)))


def _n_distinct(centres: NDArray[np.float64]) -> int:
    """How many centres are told apart: those that lie close to an earlier one are not counted."""
    distinct: list[NDArray[np.float64]] = []
    for centre in centres:
        if all(np.abs(centre - other).max() >= COINCIDENT for other in distinct):
            distinct.append(centre)
    return len(distinct)


def _warnings(
    found: FuzzyFit, n_distinct: int, n_outside: int, beats: bool, n_reports: int, needed: int
) -> tuple[str, ...]:
    """What a reader must know before they believe the model, in sentences."""
    said = [LABEL_ON_DEVICES]
    if n_reports < needed:
        said.append(
            f"{n_reports} reports are too few for such noise even if their clusters were known; it takes {needed}."
        )
    if not found.converged:
        said.append(f"The fit had not settled after {len(found.objectives)} iterations.")
    if n_distinct < len(found.centres):
        said.append(f"Only {n_distinct} of {len(found.centres)} centroids are told apart. {DRAWN_TOGETHER}")
    if n_outside:
        said.append(f"{n_outside} centroids lay outside the bounds and were moved to them. {DRIVEN_OUT}")
    if not beats:
        said.append("These centroids explain the reports no better than one centre at the mean of all.")
    return tuple(said)
