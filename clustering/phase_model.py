"""A mixture of round clusters fitted to counted phases: what is known, its likelihood, and Levenberg-Marquardt."""

from math import pi
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.errors import UnfitRound
from clustering.kernels.phase import curvature, negative_log_likelihood
from clustering.plan import Tally
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import offset_chances
from sfumato.specs import LATTICE, TURN, Mechanism, PhaseEncoding

# Q. With 8 instead, as first tried, 4 clear clusters at epsilon 8 have half as much error again, and
# harmonics that a cluster damps away cost nothing.
HARMONICS = 16
RADIANS = 2 * pi * LATTICE / TURN  # of a weight of one, across the box
LEAST_CONTRAST = 1e-12  # |c_1| below which reports say nothing of a phase

# Levenberg-Marquardt (STATISTICS, section 4.2).
STEPS = 40
FIRST_DAMPING, EASED, HARDENED, LEAST_DAMPING, MOST_DAMPING = 1e-2, 5.0, 6.0, 1e-6, 1e7
RIDGE = 1e-6  # of the largest curvature: keeps what nothing is known of where it is
SMALL_DECREASE = 1e-3  # in negative log likelihood: far below what noise makes
CENTRE_STEP, SHARE_STEP, LOG_WIDTH_STEP = 0.1, 0.15, 0.4
MARGIN = 0.05  # a centre may lie so far outside the box while the fit goes on

# What is known of a parameter before anybody reports, as variances: a place in the box and a share
# are uniform in [0, 1] at best, and a width is known to a factor e.
PLACE_VARIANCE = SHARE_VARIANCE = 1 / 12
LOG_WIDTH_VARIANCE = 1.0


class Sketch(NamedTuple):
    """What a round brought, for the fit. Waves nobody answered are left out."""

    omegas: NDArray[np.float64]  # (m, d), radians across the box
    counts: NDArray[np.float64]  # (m, L)
    harmonics: NDArray[np.complex128]  # (Q,), c_q: what the mechanism leaves of harmonic q
    cosines: NDArray[np.float64]  # (Q, L), cos(2 pi q y / L)
    sines: NDArray[np.float64]  # (Q, L)

    @property
    def n_features(self) -> int:
        return int(self.omegas.shape[1])


class Mixture(NamedTuple):
    """Round normal clusters."""

    centres: NDArray[np.float64]  # (C, d), around [0, 1]
    shares: NDArray[np.float64]  # (C,), of sum one
    widths: NDArray[np.float64]  # (C,), standard deviation in every direction


class Limits(NamedTuple):
    """Public constants of the fit."""

    least_share: float
    least_width: float
    most_width: float
    start_widths: tuple[float, ...]


class Fitted(NamedTuple):
    """Where a fit ended."""

    mixture: Mixture
    nll: float  # negative log likelihood, in natural units; that of no cluster at all is 0
    converged: bool


def sketch_of(encoding: PhaseEncoding, mechanism: Mechanism, tally: Tally) -> Sketch:
    """The sketch of a published round.

    Raises
    ------
    UnfitRound
        The mechanism's reports are no phases, or say nothing of one.
    """
    try:
        chances = np.array([float(chance) for chance in offset_chances(mechanism)])
    except InvalidSpec:
        raise UnfitRound(f"phases cannot be read out of reports through {mechanism.type}") from None
    n_phases = encoding.phases
    harmonics = harmonics_of(chances)
    if abs(harmonics[0]) < LEAST_CONTRAST:
        raise UnfitRound("reports of this mechanism say nothing about a phase")
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
    """c_q = the mean over theta of L p(0 | theta) e^(iq theta), q = 1 .. Q.

    A device's own symbol is the part of the turn its phase lies in, so the mean over a part
    is e^(iq theta) at its middle times sin(pi q / L) / (pi q / L).

    Parameters
    ----------
    chances : ndarray of shape (L,)
        For t = 0 .. L-1, the chance that (sent - own) mod L is t.
    """
    n_phases = len(chances)
    q = np.arange(1, HARMONICS + 1)
    middles = 2 * pi * (np.arange(n_phases) + 0.5) / n_phases
    zero_sent = chances[-np.arange(n_phases) % n_phases] - chances.min()  # which changes no harmonic but the mean's
    return np.asarray(np.sinc(q / n_phases) * (np.exp(1j * np.outer(q, middles)) @ zero_sent))


def nll(sketch: Sketch, mixture: Mixture) -> float:
    """The mixture's negative log likelihood; that of evenly spread phases is 0."""
    return float(negative_log_likelihood(*sketch, *mixture))


def information(sketch: Sketch, mixture: Mixture) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gradient and Fisher information, of shapes (P,) and (P, P), P = C (d + 2): centres, shares, log widths."""
    n_parameters = mixture.centres.size + 2 * len(mixture.shares)
    gradient, matrix = np.empty(n_parameters), np.empty((n_parameters, n_parameters))
    curvature(*sketch, *mixture, gradient, matrix)
    return gradient, matrix


def climb(sketch: Sketch, start: Mixture, limits: Limits, n_steps: int = STEPS) -> Fitted:
    """Levenberg-Marquardt with the Fisher information, from a start."""
    mixture, best = start, nll(sketch, start)
    gradient, matrix = information(sketch, mixture)
    damping = FIRST_DAMPING
    for _ in range(n_steps):
        moved = step(mixture, gradient, matrix, damping, limits)
        tried = nll(sketch, moved)
        if tried < best:
            decrease, mixture, best = best - tried, moved, tried
            if decrease < SMALL_DECREASE:
                return Fitted(mixture, best, True)
            damping = max(damping / EASED, LEAST_DAMPING)
            gradient, matrix = information(sketch, mixture)
        else:
            damping = max(damping * HARDENED, 1e-3)
            if damping > MOST_DAMPING:  # no way down is left
                return Fitted(mixture, best, True)
    return Fitted(mixture, best, False)


def step(
    mixture: Mixture,
    gradient: NDArray[np.float64],
    matrix: NDArray[np.float64],
    damping: float,
    limits: Limits,
) -> Mixture:
    """One damped step: the sum of shares is kept, steps are cut, limits hold."""
    n_clusters, n_features = mixture.centres.shape
    n_centres = n_clusters * n_features
    diagonal = matrix.diagonal()
    damped = matrix + np.diag(damping * diagonal + max(RIDGE * diagonal.max(), np.finfo(np.float64).tiny))
    summed = np.zeros(len(gradient))
    summed[n_centres : n_centres + n_clusters] = 1.0
    free, along = np.linalg.solve(damped, np.column_stack([gradient, summed])).T
    move = free - along * (summed @ free) / (summed @ along)  # of shares that sum to zero
    centres = mixture.centres - np.clip(move[:n_centres], -CENTRE_STEP, CENTRE_STEP).reshape(n_clusters, n_features)
    shares = mixture.shares - np.clip(move[n_centres : n_centres + n_clusters], -SHARE_STEP, SHARE_STEP)
    widths = mixture.widths * np.exp(-np.clip(move[n_centres + n_clusters :], -LOG_WIDTH_STEP, LOG_WIDTH_STEP))
    return Mixture(
        np.clip(centres, -MARGIN, 1 + MARGIN),
        floored(shares, limits),
        np.clip(widths, limits.least_width, limits.most_width),
    )


def floored(shares: NDArray[np.float64], limits: Limits) -> NDArray[np.float64]:
    """Shares of sum one, none far below the least."""
    raised = np.maximum(shares, least_share(len(shares), limits))
    return np.asarray(raised / raised.sum())


def least_share(n_clusters: int, limits: Limits) -> float:
    """The least share a cluster may have in a fit of so many: half its even share at most."""
    return min(limits.least_share, 0.5 / n_clusters)


class Errors(NamedTuple):
    """Standard errors of a mixture."""

    centres: NDArray[np.float64]  # (C, d)
    shares: NDArray[np.float64]  # (C,)
    log_widths: NDArray[np.float64]  # (C,)


def standard_errors(sketch: Sketch, mixture: Mixture) -> Errors:
    """The Cramer-Rao errors: roots of the inverse Fisher information's diagonal, shares summing to one.

    The devices being a sample is in them, since reports are independent draws from the mixture.
    What nobody was told of before a report is added as information, so that errors stay
    finite, and at most those of a blind guess, where reports tell nothing.
    """
    _, matrix = information(sketch, mixture)
    n_clusters, n_features = mixture.centres.shape
    n_centres = n_clusters * n_features
    before = np.repeat(
        [1 / PLACE_VARIANCE, 1 / SHARE_VARIANCE, 1 / LOG_WIDTH_VARIANCE], [n_centres, n_clusters, n_clusters]
    )
    covariance = np.linalg.inv(matrix + np.diag(before))
    of_shares = covariance[:, n_centres : n_centres + n_clusters].sum(axis=1)  # with the sum of shares
    total = of_shares[n_centres : n_centres + n_clusters].sum()
    variances = np.maximum(covariance.diagonal() - of_shares**2 / total, 0.0)
    errors = np.sqrt(variances)
    return Errors(
        errors[:n_centres].reshape(n_clusters, n_features),
        errors[n_centres : n_centres + n_clusters],
        errors[n_centres + n_clusters :],
    )
