"""The likelihood of phases under a mixture of round clusters, its curvature, and the climb to where phases agree.

A wave omega_j turns by theta = omega_j . mu_c at the centre of cluster c, and by a normal
deviate of variance |omega_j|^2 s_c^2 around it. Harmonic q of the phase's distribution is
what the mechanism leaves of it, c_q, damped by exp(-q^2 |omega_j|^2 s_c^2 / 2):

    L p_j(y) = 1 + sum_c pi_c sum_q 2 Re[c_q e^(-q^2 |omega_j|^2 s_c^2 / 2) e^(-iq (theta - 2 pi y / L))].

(STATISTICS, section 4.2.) Parameters stand in the order: centres, row by row; shares;
logarithms of widths.
"""

from math import cos, exp, log, sin, sqrt

import numpy as np
from numba import njit
from numpy.typing import NDArray

LEAST_DENSITY = 1e-3  # of L p: a sum of harmonics that is cut off may dip below zero
_FAINT = 1e-5  # a harmonic damped to less is left out


@njit(cache=True, nogil=True)
def _waves(
    theta: float,  # IN phase at the cluster's centre
    variance: float,  # IN |omega|^2 s^2
    harmonics: NDArray[np.complex128],  # IN (Q,), c_1 .. c_Q
    cosines: NDArray[np.float64],  # IN (Q, L), cos(2 pi q y / L)
    sines: NDArray[np.float64],  # IN (Q, L)
    value: NDArray[np.float64],  # OUT (L,), the sum over q
    slope: NDArray[np.float64],  # OUT (L,), its derivative by theta
    spread: NDArray[np.float64],  # OUT (L,), its derivative by ln s
) -> None:
    value[:] = 0.0
    slope[:] = 0.0
    spread[:] = 0.0
    turn_re, turn_im = cos(theta), sin(theta)
    at_re, at_im = 1.0, 0.0
    for i in range(harmonics.size):
        q = i + 1
        damped = exp(-0.5 * q * q * variance)
        if damped < _FAINT:
            break
        at_re, at_im = at_re * turn_re - at_im * turn_im, at_im * turn_re + at_re * turn_im
        c = harmonics[i]
        re = 2.0 * damped * (c.real * at_re + c.imag * at_im)
        im = 2.0 * damped * (c.imag * at_re - c.real * at_im)
        bent = q * q * variance
        for y in range(value.size):
            along = re * cosines[i, y] - im * sines[i, y]
            value[y] += along
            slope[y] += q * (re * sines[i, y] + im * cosines[i, y])
            spread[y] -= bent * along


@njit(cache=True, nogil=True)
def _values(
    theta: float,
    variance: float,
    share: float,
    harmonics: NDArray[np.complex128],
    cosines: NDArray[np.float64],
    sines: NDArray[np.float64],
    density: NDArray[np.float64],  # OUT (L,), share times the value is added
) -> None:
    turn_re, turn_im = cos(theta), sin(theta)
    at_re, at_im = 1.0, 0.0
    for i in range(harmonics.size):
        q = i + 1
        damped = exp(-0.5 * q * q * variance)
        if damped < _FAINT:
            break
        at_re, at_im = at_re * turn_re - at_im * turn_im, at_im * turn_re + at_re * turn_im
        c = harmonics[i]
        re = 2.0 * share * damped * (c.real * at_re + c.imag * at_im)
        im = 2.0 * share * damped * (c.imag * at_re - c.real * at_im)
        for y in range(density.size):
            density[y] += re * cosines[i, y] - im * sines[i, y]


@njit(cache=True, nogil=True)
def negative_log_likelihood(
    omegas: NDArray[np.float64],  # IN (m, d), radians across the box
    counts: NDArray[np.float64],  # IN (m, L)
    harmonics: NDArray[np.complex128],  # IN (Q,)
    cosines: NDArray[np.float64],  # IN (Q, L)
    sines: NDArray[np.float64],  # IN (Q, L)
    centres: NDArray[np.float64],  # IN (C, d)
    shares: NDArray[np.float64],  # IN (C,)
    widths: NDArray[np.float64],  # IN (C,)
) -> float:
    """- sum over waves and phases of n log(L p), L p at least 1e-3."""
    n_waves, n_features = omegas.shape
    density = np.empty(counts.shape[1])
    total = 0.0
    for j in range(n_waves):
        squared = 0.0
        for k in range(n_features):
            squared += omegas[j, k] * omegas[j, k]
        density[:] = 1.0
        for c in range(shares.size):
            theta = 0.0
            for k in range(n_features):
                theta += omegas[j, k] * centres[c, k]
            _values(theta, squared * widths[c] * widths[c], shares[c], harmonics, cosines, sines, density)
        for y in range(density.size):
            total -= counts[j, y] * log(max(density[y], LEAST_DENSITY))
    return total


@njit(cache=True, nogil=True)
def curvature(
    omegas: NDArray[np.float64],  # IN (m, d)
    counts: NDArray[np.float64],  # IN (m, L)
    harmonics: NDArray[np.complex128],  # IN (Q,)
    cosines: NDArray[np.float64],  # IN (Q, L)
    sines: NDArray[np.float64],  # IN (Q, L)
    centres: NDArray[np.float64],  # IN (C, d)
    shares: NDArray[np.float64],  # IN (C,)
    widths: NDArray[np.float64],  # IN (C,)
    gradient: NDArray[np.float64],  # OUT (C (d + 2),), of the negative log likelihood
    information: NDArray[np.float64],  # OUT (C (d + 2), C (d + 2)), Fisher's, of the reports there are
) -> None:
    """The gradient, and sum over waves and phases of (n_j / L) (D p)(D p)^T / p with p for L p.

    A wave sees a centre along its own direction only. So the sum over phases is taken of three
    numbers a cluster (along the wave, share, width), and spread over the features after.
    """
    n_waves, n_features = omegas.shape
    n_phases = counts.shape[1]
    n_clusters = shares.size
    n_centres = n_clusters * n_features
    gradient[:] = 0.0
    information[:] = 0.0
    density = np.empty(n_phases)
    seen = np.empty((3 * n_clusters, n_phases))  # slopes, values, spreads
    for j in range(n_waves):
        omega = omegas[j]
        squared = 0.0
        for k in range(n_features):
            squared += omega[k] * omega[k]
        density[:] = 1.0
        for c in range(n_clusters):
            theta = 0.0
            for k in range(n_features):
                theta += omega[k] * centres[c, k]
            value, slope, spread = seen[n_clusters + c], seen[c], seen[2 * n_clusters + c]
            _waves(theta, squared * widths[c] * widths[c], harmonics, cosines, sines, value, slope, spread)
            for y in range(n_phases):
                slope[y] *= shares[c]
                spread[y] *= shares[c]
                density[y] += shares[c] * value[y]
        expected = 0.0
        for y in range(n_phases):
            expected += counts[j, y]
        expected /= n_phases
        for y in range(n_phases):
            density[y] = max(density[y], LEAST_DENSITY)
        for c in range(n_clusters):
            along, share, spread = 0.0, 0.0, 0.0
            for y in range(n_phases):
                surplus = counts[j, y] / density[y] - expected
                along += seen[c, y] * surplus
                share += seen[n_clusters + c, y] * surplus
                spread += seen[2 * n_clusters + c, y] * surplus
            for k in range(n_features):
                gradient[c * n_features + k] -= omega[k] * along
            gradient[n_centres + c] -= share
            gradient[n_centres + n_clusters + c] -= spread
        for y in range(n_phases):
            scale = sqrt(expected / density[y])
            for row in range(3 * n_clusters):
                seen[row, y] *= scale
        _spread_out(omega, np.dot(seen, seen.T), n_clusters, information)
    for row in range(gradient.size):
        for column in range(row):
            information[column, row] = information[row, column]


@njit(cache=True, nogil=True)
def _spread_out(
    omega: NDArray[np.float64],  # IN (d,)
    seen: NDArray[np.float64],  # IN (3 C, 3 C), information along the wave, of shares and of widths
    n_clusters: int,
    information: NDArray[np.float64],  # OUT, lower triangle added to
) -> None:
    n_features = omega.size
    n_centres = n_clusters * n_features
    for c in range(n_clusters):
        for k in range(n_features):
            row = information[c * n_features + k]
            for other in range(c + 1):
                both = seen[c, other] * omega[k]
                for l in range(n_features):  # noqa: E741
                    row[other * n_features + l] += both * omega[l]
    for a in range(2 * n_clusters):
        row = information[n_centres + a]
        for c in range(n_clusters):
            both = seen[n_clusters + a, c]
            for k in range(n_features):
                row[c * n_features + k] += both * omega[k]
        for b in range(a + 1):
            row[n_centres + b] += seen[n_clusters + a, n_clusters + b]


@njit(cache=True, nogil=True)
def agreement(
    omegas: NDArray[np.float64],  # IN (m, d)
    signal: NDArray[np.complex128],  # IN (m,), first harmonics, each with the weight it has
    places: NDArray[np.float64],  # IN (n, d)
    scores: NDArray[np.float64],  # OUT (n,)
) -> None:
    """How far the waves agree on each place: sum over j of Re(z_j e^(-i omega_j . p))."""
    for i in range(places.shape[0]):
        total = 0.0
        for j in range(omegas.shape[0]):
            theta = 0.0
            for k in range(omegas.shape[1]):
                theta += omegas[j, k] * places[i, k]
            total += signal[j].real * cos(theta) + signal[j].imag * sin(theta)
        scores[i] = total


@njit(cache=True, nogil=True)
def ascend(
    omegas: NDArray[np.float64],  # IN (m, d)
    signal: NDArray[np.complex128],  # IN (m,)
    places: NDArray[np.float64],  # IN and OUT (n, d), in [0, 1]
    n_steps: int,
    stride: float,  # length of the first step
    decay: float,  # each next step is so much shorter
) -> None:
    """Move each place uphill in `agreement`, by steps of given lengths along the gradient, inside the box."""
    n_features = omegas.shape[1]
    gradient = np.empty(n_features)
    for i in range(places.shape[0]):
        place = places[i]
        length = stride
        for _ in range(n_steps):
            gradient[:] = 0.0
            for j in range(omegas.shape[0]):
                theta = 0.0
                for k in range(n_features):
                    theta += omegas[j, k] * place[k]
                pull = signal[j].imag * cos(theta) - signal[j].real * sin(theta)
                for k in range(n_features):
                    gradient[k] += pull * omegas[j, k]
            norm = 0.0
            for k in range(n_features):
                norm += gradient[k] * gradient[k]
            norm = sqrt(norm)
            if norm == 0.0:
                break
            for k in range(n_features):
                place[k] = min(max(place[k] + length * gradient[k] / norm, 0.0), 1.0)
            length *= decay
