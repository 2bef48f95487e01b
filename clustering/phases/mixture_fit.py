"""Likelihood of a mixture of round clusters given counts of phases, and its penalised Levenberg-Marquardt fit."""

from math import pi
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.errors import UnfitRound
from clustering.kernels.phases import curvature, negative_log_likelihood
from clustering.rounds.tally import Tally
from sfumato.errors import InvalidSpec
from sfumato.specs import LATTICE, TURN, Mechanism, PhaseEncoding

# Q. With 8, the error of 4 clear clusters at epsilon 8 is 1.5 times as large. Damped harmonics cost nothing.
HARMONICS = 16
RADIANS = 2 * pi * LATTICE / TURN  # radians across the box per unit of weight
LEAST_CONTRAST = 1e-12  # least |c_1| of reports that carry information

# Levenberg-Marquardt.
STEPS = 40
FIRST_DAMPING, DAMPING_DECREASE, DAMPING_INCREASE, LEAST_DAMPING, MOST_DAMPING = 1e-2, 5.0, 6.0, 1e-6, 1e7
RIDGE = 1e-6  # share of the largest curvature that is added, so that undetermined parameters stay
SMALL_DECREASE = 1e-3  # decrease in negative log likelihood at which the fit stops; far below noise
CENTRE_STEP, SHARE_STEP, LOG_WIDTH_STEP = 0.1, 0.15, 0.4
MARGIN = 0.05  # allowed distance of a centre outside the box during the fit

# Prior variances: a coordinate and a share are uniform in [0, 1], and a width is known to a factor e.
PLACE_VARIANCE = SHARE_VARIANCE = 1 / 12
LOG_WIDTH_VARIANCE = 1.0
ALIKE = 0.2  # prior standard deviation of the logarithms of widths around their mean, in the fit


class Sketch(NamedTuple):
    """Counts of a round of phases, prepared for the fit. Waves without reports are left out."""

    omegas: NDArray[np.float64]  # (m, d), radians across the box
    counts: NDArray[np.float64]  # (m, L)
    harmonics: NDArray[np.complex128]  # (Q,), c_q, the mechanism's gain at harmonic q
    cosines: NDArray[np.float64]  # (Q, L), cos(2 pi q y / L)
    sines: NDArray[np.float64]  # (Q, L)

    @property
    def n_features(self) -> int:
        """Return the number of features d."""
        return int(self.omegas.shape[1])

    def select(self, waves: NDArray[np.bool_]) -> "Sketch":
        """Return the sketch of some waves."""
        return self._replace(omegas=self.omegas[waves], counts=self.counts[waves])


class Mixture(NamedTuple):
    """A mixture of round normal clusters."""

    centres: NDArray[np.float64]  # (C, d), around [0, 1]
    shares: NDArray[np.float64]  # (C,), sum one
    widths: NDArray[np.float64]  # (C,), standard deviation in every direction

    def take(self, kept: NDArray[np.int64]) -> "Mixture":
        """Return the mixture of some clusters, in their order."""
        return Mixture(*(part[kept] for part in self))


class Limits(NamedTuple):
    """Public constants of the fit."""

    least_share: float
    least_width: float
    most_width: float
    start_widths: tuple[float, ...]
    circles: tuple[int, ...] = ()  # indices of the periodic features

    def move(self, centres: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return centres of a step: clipped to the box with its margin, and along circles moved by whole turns.

        Waves make whole turns along a circle. So a normal cluster and the same one wrapped around the circle have the
        same phases, and a centre is as good as one a turn away.
        """
        moved = np.clip(centres, -MARGIN, 1 + MARGIN)
        for place in self.circles:
            moved[:, place] = centres[:, place] % 1.0
        return moved


class Fitted(NamedTuple):
    """Result of a fit."""

    mixture: Mixture
    nll: float  # negative log likelihood relative to uniform phases, in nats, and the prior of the widths
    converged: bool

    @property
    def n_clusters(self) -> int:
        """Return the number of clusters."""
        return len(self.mixture.shares)

    @property
    def diagnostics(self) -> dict[str, float | bool]:
        """Return the diagnostics of the fit that a model publishes."""
        return {"negative_log_likelihood": self.nll, "converged": self.converged}


def sketch_of(encoding: PhaseEncoding, mechanism: Mechanism, tally: Tally) -> Sketch:
    """Return the sketch of a published round.

    Raises
    ------
    UnfitRound
        The mechanism does not report phases, or its reports carry no information.
    """
    try:
        chances = np.array([float(chance) for chance in mechanism.offset_chances()])
    except InvalidSpec:
        raise UnfitRound(f"the mechanism {mechanism.type} does not report phases") from None
    n_phases = encoding.phases
    harmonics = harmonics_of(chances)
    if abs(harmonics[0]) < LEAST_CONTRAST:
        raise UnfitRound("reports of this mechanism carry no information about a phase")
    angles = 2 * pi * np.outer(np.arange(1, HARMONICS + 1), np.arange(n_phases)) / n_phases
    answered = tally.reports > 0
    return Sketch(
        omegas=np.array(encoding.weights, dtype=np.float64)[answered] * RADIANS,
        counts=tally.counts[answered].astype(np.float64),
        harmonics=harmonics,
        cosines=np.cos(angles),
        sines=np.sin(angles),
    )


def harmonics_of(chances: NDArray[np.float64]) -> NDArray[np.complex128]:
    """Return c_q = the mean over theta of L p(0 | theta) e^(iq theta), q = 1 .. Q.

    A device's own symbol is the part of the turn that contains its phase. The mean over a part
    is e^(iq theta) at its middle times sin(pi q / L) / (pi q / L).

    Parameters
    ----------
    chances : ndarray of shape (L,)
        Probability that (reported - own) mod L is t, for t = 0 .. L-1.

    Returns
    -------
    ndarray of shape (Q,), complex128
    """
    n_phases = len(chances)
    q = np.arange(1, HARMONICS + 1)
    middles = 2 * pi * (np.arange(n_phases) + 0.5) / n_phases
    zero_sent = chances[-np.arange(n_phases) % n_phases] - chances.min()  # a constant changes only harmonic 0
    return np.asarray(np.sinc(q / n_phases) * (np.exp(1j * np.outer(q, middles)) @ zero_sent))


def nll(sketch: Sketch, mixture: Mixture) -> float:
    """Return the mixture's negative log likelihood relative to uniform phases."""
    return float(negative_log_likelihood(*sketch, *mixture))


def information(sketch: Sketch, mixture: Mixture) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return gradient (P,) and Fisher information (P, P), P = C (d + 2): centres, shares, log widths."""
    n_parameters = mixture.centres.size + 2 * len(mixture.shares)
    gradient, matrix = np.empty(n_parameters), np.empty((n_parameters, n_parameters))
    curvature(*sketch, *mixture, gradient, matrix)
    return gradient, matrix


class Alike(NamedTuple):
    """The prior of similar widths: their logarithms are normal around their mean, which is free.

    Without it, the most likely mixture of many clusters has clusters of the least width at peaks of the noise, and
    one wide cluster with most of the people.
    """

    value: float  # negative logarithm of the prior
    gradient: NDArray[np.float64]  # (C,), with respect to the logarithms
    information: NDArray[np.float64]  # (C, C)

    @classmethod
    def of(cls, widths: NDArray[np.float64]) -> "Alike":
        """Return the prior of these widths."""
        logs = np.log(widths)
        away, n = logs - logs.mean(), len(widths)
        return cls(float(away @ away) / (2 * ALIKE**2), away / ALIKE**2, (np.eye(n) - 1 / n) / ALIKE**2)


def objective(sketch: Sketch, mixture: Mixture) -> float:
    """Return the negative log likelihood relative to uniform phases, plus the prior of the widths."""
    return nll(sketch, mixture) + Alike.of(mixture.widths).value


def normal_equations(sketch: Sketch, mixture: Mixture) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the gradient of `objective` (P,) and its information (P, P), in the order of `information`."""
    gradient, matrix = information(sketch, mixture)
    prior = Alike.of(mixture.widths)
    n_clusters = len(mixture.widths)
    gradient[-n_clusters:] += prior.gradient
    matrix[-n_clusters:, -n_clusters:] += prior.information
    return gradient, matrix


def climb(sketch: Sketch, start: Mixture, limits: Limits, n_steps: int = STEPS) -> Fitted:
    """Minimise `objective` by Levenberg-Marquardt with the Fisher information.

    Parameters
    ----------
    sketch : Sketch
    start : Mixture
    limits : Limits
    n_steps : int
        Maximum number of steps.

    Returns
    -------
    Fitted
    """
    mixture, best = start, objective(sketch, start)
    gradient, matrix = normal_equations(sketch, mixture)
    damping = FIRST_DAMPING
    for _ in range(n_steps):
        trial = step(mixture, gradient, matrix, damping, limits)
        tried = objective(sketch, trial)
        if tried < best:
            decrease, mixture, best = best - tried, trial, tried
            if decrease < SMALL_DECREASE:
                return Fitted(mixture, best, True)
            damping = max(damping / DAMPING_DECREASE, LEAST_DAMPING)
            gradient, matrix = normal_equations(sketch, mixture)
        else:
            damping = max(damping * DAMPING_INCREASE, 1e-3)
            if damping > MOST_DAMPING:  # no step decreases the objective
                return Fitted(mixture, best, True)
    return Fitted(mixture, best, False)


def step(
    mixture: Mixture,
    gradient: NDArray[np.float64],
    matrix: NDArray[np.float64],
    damping: float,
    limits: Limits,
) -> Mixture:
    """Return the mixture after one damped step, clipped to the limits, with the sum of shares kept."""
    n_clusters, n_features = mixture.centres.shape
    n_centres = n_clusters * n_features
    diagonal = matrix.diagonal()
    damped = matrix + np.diag(damping * diagonal + max(RIDGE * diagonal.max(), np.finfo(np.float64).tiny))
    summed = np.zeros(len(gradient))
    summed[n_centres : n_centres + n_clusters] = 1.0
    free, along = np.linalg.solve(damped, np.column_stack([gradient, summed])).T
    move = free - along * (summed @ free) / (summed @ along)  # changes of shares sum to zero
    centres = mixture.centres - np.clip(move[:n_centres], -CENTRE_STEP, CENTRE_STEP).reshape(n_clusters, n_features)
    shares = mixture.shares - np.clip(move[n_centres : n_centres + n_clusters], -SHARE_STEP, SHARE_STEP)
    widths = mixture.widths * np.exp(-np.clip(move[n_centres + n_clusters :], -LOG_WIDTH_STEP, LOG_WIDTH_STEP))
    return Mixture(
        limits.move(centres),
        raise_to_floor(shares, limits),
        np.clip(widths, limits.least_width, limits.most_width),
    )


def raise_to_floor(shares: NDArray[np.float64], limits: Limits) -> NDArray[np.float64]:
    """Raise shares to the least share and scale them to sum one."""
    raised = np.maximum(shares, least_share(len(shares), limits))
    return np.asarray(raised / raised.sum())


def least_share(n_clusters: int, limits: Limits) -> float:
    """Return the least share of a cluster: the limit, but at most half of an even share."""
    return min(limits.least_share, 0.5 / n_clusters)


class Errors(NamedTuple):
    """Standard errors of a mixture."""

    centres: NDArray[np.float64]  # (C, d)
    shares: NDArray[np.float64]  # (C,)
    log_widths: NDArray[np.float64]  # (C,)


def standard_errors(sketch: Sketch, mixture: Mixture) -> Errors:
    """Return Cramer-Rao errors: roots of the diagonal of the inverse Fisher information, with shares that sum to one.

    They include the sampling of devices, because reports are independent samples of the mixture.
    Prior information is added, so without informative reports the errors equal those of the
    prior and stay finite.
    """
    _, matrix = information(sketch, mixture)
    n_clusters, n_features = mixture.centres.shape
    n_centres = n_clusters * n_features
    before = np.repeat(
        [1 / PLACE_VARIANCE, 1 / SHARE_VARIANCE, 1 / LOG_WIDTH_VARIANCE], [n_centres, n_clusters, n_clusters]
    )
    covariance = np.linalg.inv(matrix + np.diag(before))
    of_shares = covariance[:, n_centres : n_centres + n_clusters].sum(axis=1)  # covariance with the sum of shares
    total = of_shares[n_centres : n_centres + n_clusters].sum()
    variances = np.maximum(covariance.diagonal() - of_shares**2 / total, 0.0)
    errors = np.sqrt(variances)
    return Errors(
        errors[:n_centres].reshape(n_clusters, n_features),
        errors[n_centres : n_centres + n_clusters],
        errors[n_centres + n_clusters :],
    )
