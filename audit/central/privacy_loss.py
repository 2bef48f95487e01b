"""The exact privacy loss of query answers: the largest loss over all noise values."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from audit.central.trees import compute_tree_loss
from audit.checks.bounds import compute_normal_delta
from clustering.central.noise import GaussianNoise, LaplaceNoise, Noise
from clustering.central.queries import Query
from sfumato.privacy.accounting import ATTO, NANO
from sfumato.privacy.gaussian_privacy import PICO

ROUNDING = 1e-9  # error of floats in tree losses and in the conversion of rho
UNBOUNDED = Fraction(10**9)  # rho of noise without a bound


class NoisyAnswer(NamedTuple):
    """A query with its exact values, its noise and its answer."""

    query: Query
    exact: NDArray[np.int64]  # (n_values,)
    noise: Noise
    answer: NDArray[np.int64]  # (n_values,)


class TreeAnswer(NamedTuple):
    """A query for a tree of halved cells, with its records, noise scale and answer."""

    query: Query
    points: NDArray[np.int32]  # (n, d)
    scale: Fraction
    answer: NDArray[np.int64]


class PrivacyLoss(NamedTuple):
    """The privacy loss of a transcript for the person in which two datasets differ."""

    epsilon: float  # largest loss over all noise values, at the charged delta
    charged: float
    why: str  # the answer that exceeds its charge; empty if none does


def compute_privacy_loss(
    charges: Sequence[Query],
    answers: Mapping[int, NoisyAnswer | TreeAnswer],
    other: Mapping[int, NoisyAnswer | TreeAnswer],
) -> PrivacyLoss:
    """Return the privacy loss of all query answers and the first answer that exceeds its charge.

    A pure answer loses at most sum |change| / scale for any noise. A tree loses the log likelihood ratio of its
    decisions. A concentrated answer is bounded by sum change^2 / (2 (sigma^2 - 3)) in rho, and a block by the epsilon
    of that rho at the block's delta.

    Parameters
    ----------
    charges : sequence of Query
    answers, other : mapping of int to NoisyAnswer or TreeAnswer
        Answers by query number, for the two datasets.
    """
    charged = sum(each.epsilon_nano for each in charges) / NANO
    pure, why = Fraction(0), ""
    blocks: list[tuple[Query, Fraction]] = []
    for index, query in enumerate(charges):
        if query.n_values == 0:
            blocks.append((query, Fraction(0)))
            continue
        loss = _compute_answer_loss(answers[index], other[index])
        if loss is None:
            return PrivacyLoss(0.0, charged, f"query {index}, {query.description}: the noise depends on records")
        if query.rho_pico:
            unit, limit = "rho", Fraction(query.rho_pico, PICO)
            blocks[-1] = (blocks[-1][0], blocks[-1][1] + loss)
        else:
            unit, limit = "epsilon", Fraction(query.epsilon_nano, NANO)
            pure += loss
        slack = ROUNDING if isinstance(answers[index], TreeAnswer) else 0
        if loss > limit + slack and not why:
            amounts = f"reveals {unit} {float(loss):.4g}, but {float(limit):.4g} was charged"
            why = f"query {index}, {query.description}, {amounts}"
    block_epsilons = 0.0
    for block, rho in blocks:
        epsilon, paid = epsilon_from_rho(float(rho), block.delta_atto / ATTO), block.epsilon_nano / NANO
        if epsilon > paid + ROUNDING and not why:
            why = f"a concentrated block reveals epsilon {epsilon:.6g}, but {paid:.6g} was charged"
        block_epsilons += epsilon
    return PrivacyLoss(float(pure) + block_epsilons, charged, why)


def _compute_answer_loss(one: NoisyAnswer | TreeAnswer, two: NoisyAnswer | TreeAnswer) -> Fraction | None:
    """Return epsilon of an answer, or rho for Gaussian noise; None if the noise differs between the datasets."""
    if isinstance(one, TreeAnswer) and isinstance(two, TreeAnswer):
        same = one.scale == two.scale
        return Fraction(abs(compute_tree_loss(one.answer, one.points, two.points, one.scale))) if same else None
    if not isinstance(one, NoisyAnswer) or not isinstance(two, NoisyAnswer) or not _is_same_noise(one.noise, two.noise):
        return None
    if isinstance(one.noise, LaplaceNoise):
        return compute_laplace_epsilon(one.noise, one.exact, two.exact)
    return compute_gaussian_rho(one.noise, one.exact, two.exact)


def compute_laplace_epsilon(noise: LaplaceNoise, exact: NDArray[np.int64], other: NDArray[np.int64]) -> Fraction:
    """Return the largest log likelihood ratio of an answer: sum |change| / scale."""
    total = Fraction(0)
    for i in np.flatnonzero(exact != other):
        total += abs(int(exact[i]) - int(other[i])) / noise.scale(int(noise.sensitivities[i]))
    return total


def compute_gaussian_rho(noise: GaussianNoise, exact: NDArray[np.int64], other: NDArray[np.int64]) -> Fraction:
    """Return the rho of an answer: sum change^2 / (2 (sigma^2 - 3)); infinite if a variance is 3 or less.

    docs/decisions/0030-gaussian-accounting-of-blocks.md has the proof.
    """
    total = Fraction(0)
    for i in np.flatnonzero(exact != other):
        variance = noise.variance(int(noise.sensitivities[i])) - 3
        if variance <= 0:
            return UNBOUNDED
        total += (int(exact[i]) - int(other[i])) ** 2 / (2 * variance)
    return total


def epsilon_from_rho(rho: float, delta: float) -> float:
    """Return the least epsilon at this delta of normal noise with this rho."""
    if rho == 0 or (delta > 0 and compute_normal_delta(rho, 0.0) <= delta):
        return 0.0
    if delta == 0:
        return float("inf")
    high = rho + 10 * sqrt(2 * rho)  # the loss is normal with this mean and deviation, and delta is above 1e-23
    return float(brentq(lambda epsilon: compute_normal_delta(rho, epsilon) / delta - 1, 0.0, high, xtol=1e-13))


def sum_noise_excess(noise: Noise, samples: NDArray[np.int64], is_counted: NDArray[np.bool_]) -> tuple[int, float]:
    """Return the number of noise samples and the sum of their standardised excess over the mean size.

    The size is |z| for Laplace noise and z^2 for Gaussian noise. Each excess has mean 0 and variance 1. Values that are
    not counted are skipped, and so is noise with a scale below 1, which is almost always 0.
    """
    n_samples, excess = 0, 0.0
    for sensitivity in np.unique(noise.sensitivities):
        values = samples[(noise.sensitivities == sensitivity) & is_counted].astype(np.float64)
        if isinstance(noise, LaplaceNoise):
            scale = float(noise.scale(int(sensitivity)))
            rate = 1 / scale
            mean = 1 / float(np.sinh(rate))  # 2r / (1 - r^2), r = e^-rate
            spread = sqrt(0.5 / float(np.sinh(rate / 2)) ** 2 - mean**2)
            sizes = np.abs(values)
        else:
            scale = sqrt(mean := float(noise.variance(int(sensitivity))))
            spread, sizes = mean * sqrt(2), values**2
        if scale >= 1:
            n_samples += len(sizes)
            excess += float(((sizes - mean) / spread).sum())
    return n_samples, excess


def _is_same_noise(noise: Noise, other: Noise) -> bool:
    return (
        type(noise) is type(other)
        and noise.unit == other.unit
        and np.array_equal(noise.sensitivities, other.sensitivities)
    )
