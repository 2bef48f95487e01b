"""What answers tell of a person, exactly: of any noise that might be drawn, the most."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from audit.curator_tree import tree_loss
from clustering.curator import Question
from clustering.noise import GaussianNoise, LaplaceNoise, Noise
from sfumato.accounting import ATTO, NANO
from sfumato.concentrated import PICO

ROUNDING = 1e-9  # of floats: trees, and what a rho makes of (epsilon, delta)


class Answered(NamedTuple):
    """A question whose answer is exact values and noise."""

    question: Question
    exact: NDArray[np.int64]  # (n_values,)
    noise: Noise
    answer: NDArray[np.int64]  # (n_values,)


class Grown(NamedTuple):
    """A tree."""

    question: Question
    points: NDArray[np.int32]  # (n, d)
    scale: Fraction
    answer: NDArray[np.int64]


class Told(NamedTuple):
    """What a transcript tells of the person two datasets differ by."""

    epsilon: float  # at most, whatever noise had been drawn; with the delta that was charged
    charged: float
    why: str  # what told more than its charge, if anything


def epsilons_told(
    charges: Sequence[Question], seen: Mapping[int, Answered | Grown], other: Mapping[int, Answered | Grown]
) -> Told:
    """Question by question, and in sum.

    A pure answer tells at most sum |change| / scale, whatever the noise; a tree what its decisions
    tell; a concentrated answer is bounded by sum change^2 / (2 sigma^2) in rho, and all of a block
    by what of epsilon that is at the block's delta.

    Parameters
    ----------
    charges : sequence of Question
    seen, other : mapping of int to Answered or Grown
        By number, over the two datasets.
    """
    charged = sum(each.epsilon_nano for each in charges) / NANO
    pure, why = Fraction(0), ""
    blocks: list[tuple[Question, Fraction]] = []
    for index, question in enumerate(charges):
        if question.n_values == 0:
            blocks.append((question, Fraction(0)))
            continue
        told = _told_by(seen[index], other[index])
        if told is None:
            return Told(0.0, charged, f"question {index}, {question.what}: its noise depends on records")
        if question.rho_pico:
            unit, price = "rho", Fraction(question.rho_pico, PICO)
            blocks[-1] = (blocks[-1][0], blocks[-1][1] + told)
        else:
            unit, price = "epsilon", Fraction(question.epsilon_nano, NANO)
            pure += told
        slack = ROUNDING if isinstance(seen[index], Grown) else 0
        if told > price + slack and not why:
            figures = f"tells {unit} {float(told):.4g} and is charged {float(price):.4g}"
            why = f"question {index}, {question.what}, {figures}"
    in_blocks = 0.0
    for block, rho in blocks:
        in_block, paid = epsilon_of(float(rho), block.delta_atto / ATTO), block.epsilon_nano / NANO
        if in_block > paid + ROUNDING and not why:
            why = f"a concentrated block tells epsilon {in_block:.6g} and is charged {paid:.6g}"
        in_blocks += in_block
    return Told(float(pure) + in_blocks, charged, why)


def _told_by(one: Answered | Grown, two: Answered | Grown) -> Fraction | None:
    """What one answer tells: epsilon, or rho of Gaussian noise; nothing is known where its noise is not the same."""
    if isinstance(one, Grown) and isinstance(two, Grown):
        alike = one.scale == two.scale
        return Fraction(abs(tree_loss(one.answer, one.points, two.points, one.scale))) if alike else None
    if not isinstance(one, Answered) or not isinstance(two, Answered) or not _is_alike(one.noise, two.noise):
        return None
    if isinstance(one.noise, LaplaceNoise):
        return laplace_distance(one.noise, one.exact, two.exact)
    return gaussian_distance(one.noise, one.exact, two.exact)


def laplace_distance(noise: LaplaceNoise, exact: NDArray[np.int64], other: NDArray[np.int64]) -> Fraction:
    """The most that an answer's log likelihood ratio can be: sum |change| / scale."""
    total = Fraction(0)
    for i in np.flatnonzero(exact != other):
        total += abs(int(exact[i]) - int(other[i])) / noise.scale(int(noise.sensitivities[i]))
    return total


def gaussian_distance(noise: GaussianNoise, exact: NDArray[np.int64], other: NDArray[np.int64]) -> Fraction:
    """The rho of an answer: sum change^2 / (2 sigma^2) (Canonne, Kamath and Steinke 2020, proposition 5)."""
    total = Fraction(0)
    for i in np.flatnonzero(exact != other):
        total += (int(exact[i]) - int(other[i])) ** 2 / (2 * noise.variance(int(noise.sensitivities[i])))
    return total


def epsilon_of(rho: float, delta: float) -> float:
    """The least epsilon at which rho-concentrated privacy is (epsilon, delta)-private, by the best order.

    Canonne, Kamath and Steinke 2020, corollary 13: alpha rho + ln(1/(alpha delta))/(alpha - 1) +
    ln(1 - 1/alpha), over alpha > 1.
    """
    if rho == 0:
        return 0.0
    if delta == 0:
        return float("inf")

    def at(log_order: float) -> float:
        order = 1 + float(np.exp(log_order))
        return order * rho - log(order * delta) / (order - 1) + float(np.log1p(-1 / order))

    found = minimize_scalar(at, bounds=(-12.0, 40.0), method="bounded", options={"xatol": 1e-10})
    return max(0.0, float(found.fun))


def surprise(noise: Noise, drawn: NDArray[np.int64], counted: NDArray[np.bool_]) -> tuple[int, float]:
    """How many draws, and how much larger they are than on average in sum: each of mean 0 and variance 1.

    Sizes of Laplace noise, squares of Gaussian. Values that are not counted are left out, and noise
    that is 0 nearly always.
    """
    n_draws, surplus = 0, 0.0
    for sensitivity in np.unique(noise.sensitivities):
        values = drawn[(noise.sensitivities == sensitivity) & counted].astype(np.float64)
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
            n_draws += len(sizes)
            surplus += float(((sizes - mean) / spread).sum())
    return n_draws, surplus


def _is_alike(noise: Noise, other: Noise) -> bool:
    return (
        type(noise) is type(other)
        and noise.unit == other.unit
        and np.array_equal(noise.sensitivities, other.sensitivities)
    )
