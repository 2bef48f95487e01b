"""Likelihood of phase reports under a mixture of round clusters, and fits of normal components to harmonics.

A wave omega_j has the phase theta = omega_j . mu_c at the centre of cluster c, plus a normal deviation of variance
|omega_j|^2 s_c^2 within the cluster. Harmonic q of the reported phase's distribution is the mechanism's coefficient
c_q, damped by exp(-q^2 |omega_j|^2 s_c^2 / 2):

    L p_j(y) = 1 + sum_c pi_c sum_q 2 Re[c_q e^(-q^2 |omega_j|^2 s_c^2 / 2) e^(-iq (theta - 2 pi y / L))].

The parameter order is: centres, row by row; shares; logarithms of widths.

The second half fits a characteristic function by a mixture of normal components. A component of share pi, centre mu
and covariance A A^T contributes pi e^(i omega.mu) e^(-|A^T omega|^2 / 2) at omega. A is lower triangular. Its entry
(rows[e], columns[e]) is spread numbers[e]: one number for the whole diagonal gives a round component, one for each
diagonal entry an axis-aligned ellipsoid, one for each entry of the triangle any covariance. The parameter order is
component by component: centre, share, spreads. Real parts come first, then imaginary parts.
"""

from math import cos, exp, factorial, log, pi, sin, sqrt

import numpy as np
from numba import njit
from numpy.typing import NDArray

LEAST_DENSITY = 1e-3  # minimum of L p, because a truncated sum of harmonics can be negative
_FAINT = 1e-5  # harmonics damped below this are ignored


# Quarter turns in a radian, a quarter turn in three parts of 33, 33 and 53 bits, and the Taylor series at 0.
_QUARTERS = 2 / pi
_QUARTER, _QUARTER_REST, _QUARTER_END = 1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21
_SINE = tuple((-1) ** n / factorial(2 * n + 1) for n in range(8))
_COSINE = tuple((-1) ** n / factorial(2 * n) for n in range(9))


@njit(cache=True, nogil=True)
def sines_and_cosines(
    angles: NDArray[np.float64],  # IN (n,), from -10^6 to 10^6
    sines: NDArray[np.float64],  # OUT (n,)
    cosines: NDArray[np.float64],  # OUT (n,)
) -> None:
    """Compute the sine and the cosine of each angle, to 1e-15.

    The loop has neither branches nor calls, so that the compiler can use vector instructions. Whole quarter turns are
    subtracted (Cody and Waite 1980, chapter 8), and Taylor series of the rest in [-pi/4, pi/4] follow.
    """
    for i in range(angles.size):
        quarters = np.rint(angles[i] * _QUARTERS)
        rest = ((angles[i] - quarters * _QUARTER) - quarters * _QUARTER_REST) - quarters * _QUARTER_END
        square = rest * rest
        sine = _SINE[7]
        cosine = _COSINE[8] * square + _COSINE[7]
        for n in range(6, -1, -1):
            sine = sine * square + _SINE[n]
            cosine = cosine * square + _COSINE[n]
        sine *= rest
        quarter = quarters - 4.0 * np.floor(0.25 * quarters)  # 0, 1, 2 or 3
        is_odd = (quarter == 1.0) | (quarter == 3.0)
        up, along = (cosine, sine) if is_odd else (sine, cosine)
        sines[i] = -up if quarter >= 2.0 else up
        cosines[i] = -along if (quarter == 1.0) | (quarter == 2.0) else along


@njit(cache=True, nogil=True)
def _turns(omegas: NDArray[np.float64], centres: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cosine and the sine of each wave's phase at each centre: (2, m, C)."""
    n_waves, n_clusters = omegas.shape[0], centres.shape[0]
    turns = np.empty((2, n_waves * n_clusters))
    sines_and_cosines(np.dot(omegas, centres.T).ravel(), turns[1], turns[0])
    return turns.reshape((2, n_waves, n_clusters))


@njit(cache=True, nogil=True)
def _damped_harmonics(
    turn_re: float,  # IN, cosine of the phase at the cluster's centre
    turn_im: float,  # IN, its sine
    variance: float,  # IN, |omega|^2 s^2
    harmonics: NDArray[np.complex128],  # IN (Q,), c_1 .. c_Q
    real: NDArray[np.float64],  # OUT (Q,), coefficient of cos(2 pi q y / L)
    imaginary: NDArray[np.float64],  # OUT (Q,), of -sin(2 pi q y / L)
) -> int:
    """Compute the harmonics of one cluster and wave, and return how many are not faint."""
    damped = exp(-0.5 * variance)  # e^(-q^2 variance / 2)
    step, squared = damped * damped * damped, damped * damped
    at_re, at_im = turn_re, turn_im
    for i in range(harmonics.size):
        if damped < _FAINT:
            return i
        c = harmonics[i]
        real[i] = 2.0 * damped * (c.real * at_re + c.imag * at_im)
        imaginary[i] = 2.0 * damped * (c.imag * at_re - c.real * at_im)
        at_re, at_im = at_re * turn_re - at_im * turn_im, at_im * turn_re + at_re * turn_im
        damped *= step
        step *= squared
    return int(harmonics.size)


@njit(cache=True, nogil=True)
def negative_log_likelihood(
    omegas: NDArray[np.float64],  # IN (m, d), radians over the box
    counts: NDArray[np.float64],  # IN (m, L)
    harmonics: NDArray[np.complex128],  # IN (Q,)
    cosines: NDArray[np.float64],  # IN (Q, L), cos(2 pi q y / L)
    sines: NDArray[np.float64],  # IN (Q, L)
    centres: NDArray[np.float64],  # IN (C, d)
    shares: NDArray[np.float64],  # IN (C,)
    widths: NDArray[np.float64],  # IN (C,)
) -> float:
    """Return - sum over waves and phases of n log(L p), with L p at least LEAST_DENSITY."""
    n_waves, n_features = omegas.shape
    turns = _turns(omegas, centres)
    density = np.empty(counts.shape[1])
    real, imaginary, sum_re, sum_im = np.empty((4, harmonics.size))
    total = 0.0
    for j in range(n_waves):
        squared = 0.0
        for k in range(n_features):
            squared += omegas[j, k] * omegas[j, k]
        sum_re[:] = 0.0
        sum_im[:] = 0.0
        n_clear = 0
        for c in range(shares.size):
            variance = squared * widths[c] * widths[c]
            n_own = _damped_harmonics(turns[0, j, c], turns[1, j, c], variance, harmonics, real, imaginary)
            n_clear = max(n_clear, n_own)
            for i in range(n_own):
                sum_re[i] += shares[c] * real[i]
                sum_im[i] += shares[c] * imaginary[i]
        density[:] = 1.0
        for i in range(n_clear):
            for y in range(density.size):
                density[y] += sum_re[i] * cosines[i, y] - sum_im[i] * sines[i, y]
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
    gradient: NDArray[np.float64],  # OUT (C (d + 2),), gradient of the negative log likelihood
    information: NDArray[np.float64],  # OUT (C (d + 2), C (d + 2)), Fisher information of the reports
) -> None:
    """Compute the gradient and the Fisher information, sum over waves and phases of (n_j / L) (D p)(D p)^T / p.

    Here p stands for L p. A wave depends on a centre only along its own direction. The sum over phases
    therefore has three numbers per cluster (along the wave, share, width), which are then distributed
    over the features.
    """
    n_waves, n_features = omegas.shape
    n_phases = counts.shape[1]
    n_clusters = shares.size
    n_centres = n_clusters * n_features
    gradient[:] = 0.0
    information[:] = 0.0
    turns = _turns(omegas, centres)
    real, imaginary = np.empty((2, harmonics.size))
    density = np.empty(n_phases)
    seen = np.empty((3 * n_clusters, n_phases))  # slopes, values, spreads
    for j in range(n_waves):
        omega = omegas[j]
        squared = 0.0
        for k in range(n_features):
            squared += omega[k] * omega[k]
        density[:] = 1.0
        for c in range(n_clusters):
            variance = squared * widths[c] * widths[c]
            n_clear = _damped_harmonics(turns[0, j, c], turns[1, j, c], variance, harmonics, real, imaginary)
            value, slope, spread = seen[n_clusters + c], seen[c], seen[2 * n_clusters + c]
            value[:] = 0.0
            slope[:] = 0.0
            spread[:] = 0.0
            for i in range(n_clear):
                q = i + 1
                for y in range(n_phases):
                    along = real[i] * cosines[i, y] - imaginary[i] * sines[i, y]
                    value[y] += along
                    slope[y] += q * (real[i] * sines[i, y] + imaginary[i] * cosines[i, y])
                    spread[y] -= q * q * variance * along
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
        _add_information(omega, np.dot(seen, seen.T), n_clusters, information)
    for row in range(gradient.size):
        for column in range(row):
            information[column, row] = information[row, column]


@njit(cache=True, nogil=True)
def _add_information(
    omega: NDArray[np.float64],  # IN (d,)
    seen: NDArray[np.float64],  # IN (3 C, 3 C), information along the wave, about shares and about widths
    n_clusters: int,
    information: NDArray[np.float64],  # IN OUT, lower triangle
) -> None:
    """Distribute the information of one wave over the features and add it."""
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
    signal: NDArray[np.complex128],  # IN (m,), weighted first harmonics
    places: NDArray[np.float64],  # IN (n, d)
    scores: NDArray[np.float64],  # OUT (n,)
) -> None:
    """Compute the agreement of the waves at each place p: sum over j of Re(z_j e^(-i omega_j . p))."""
    real, imaginary = signal.real.copy(), signal.imag.copy()
    sines, cosines = np.empty(signal.size), np.empty(signal.size)
    for i in range(places.shape[0]):
        sines_and_cosines(np.dot(omegas, places[i]), sines, cosines)
        scores[i] = np.dot(real, cosines) + np.dot(imaginary, sines)


@njit(cache=True, nogil=True)
def ascend(
    omegas: NDArray[np.float64],  # IN (m, d)
    signal: NDArray[np.complex128],  # IN (m,)
    places: NDArray[np.float64],  # IN OUT (n, d), in [0, 1]
    n_steps: int,
    stride: float,  # length of the first step
    decay: float,  # factor from step to step
) -> None:
    """Move each place uphill in `agreement` by steps of given lengths along the gradient, within the box."""
    real, imaginary = signal.real.copy(), signal.imag.copy()
    sines, cosines, pulls = np.empty(signal.size), np.empty(signal.size), np.empty(signal.size)
    for i in range(places.shape[0]):
        place = places[i]
        length = stride
        for _ in range(n_steps):
            sines_and_cosines(np.dot(omegas, place), sines, cosines)
            for j in range(signal.size):
                pulls[j] = imaginary[j] * cosines[j] - real[j] * sines[j]
            gradient = np.dot(pulls, omegas)
            norm = sqrt(np.dot(gradient, gradient))
            if norm == 0.0:
                break
            for k in range(place.size):
                place[k] = min(max(place[k] + length * gradient[k] / norm, 0.0), 1.0)
            length *= decay


FAINT = 18.0  # components damped below e^-18 at a frequency are ignored


@njit(cache=True, nogil=True)
def _half_variance(
    omega: NDArray[np.float64],  # IN (d,)
    spreads: NDArray[np.float64],  # IN (T,)
    rows: NDArray[np.int64],  # IN (E,)
    columns: NDArray[np.int64],  # IN (E,)
    numbers: NDArray[np.int64],  # IN (E,)
    along: NDArray[np.float64],  # OUT (d,), A^T omega
) -> float:
    """Return half the variance of omega . x around the component's centre."""
    along[:] = 0.0
    for e in range(rows.size):
        along[columns[e]] += omega[rows[e]] * spreads[numbers[e]]
    total = 0.0
    for k in range(along.size):
        total += along[k] * along[k]
    return 0.5 * total


@njit(cache=True, nogil=True)
def residuals(
    omegas: NDArray[np.float64],  # IN (F, d)
    values: NDArray[np.complex128],  # IN (F,), observed values
    roots: NDArray[np.float64],  # IN (F,), square roots of the weights
    rows: NDArray[np.int64],  # IN (E,)
    columns: NDArray[np.int64],  # IN (E,)
    numbers: NDArray[np.int64],  # IN (E,)
    centres: NDArray[np.float64],  # IN (C, d)
    shares: NDArray[np.float64],  # IN (C,)
    spreads: NDArray[np.float64],  # IN (C, T)
    residual: NDArray[np.float64],  # OUT (2 F,), root times (observed - expected)
) -> float:
    """Compute weighted residuals and return their sum of squares."""
    n_frequencies, n_features = omegas.shape
    along = np.empty(n_features)
    total = 0.0
    for f in range(n_frequencies):
        re, im = values[f].real, values[f].imag
        for c in range(shares.size):
            damping = _half_variance(omegas[f], spreads[c], rows, columns, numbers, along)
            if damping > FAINT:
                continue
            theta = 0.0
            for k in range(n_features):
                theta += omegas[f, k] * centres[c, k]
            seen = shares[c] * exp(-damping)
            re -= seen * cos(theta)
            im -= seen * sin(theta)
        residual[f] = roots[f] * re
        residual[n_frequencies + f] = roots[f] * im
        total += residual[f] * residual[f] + residual[n_frequencies + f] * residual[n_frequencies + f]
    return total


@njit(cache=True, nogil=True)
def jacobian(
    omegas: NDArray[np.float64],  # IN (F, d)
    roots: NDArray[np.float64],  # IN (F,)
    rows: NDArray[np.int64],  # IN (E,)
    columns: NDArray[np.int64],  # IN (E,)
    numbers: NDArray[np.int64],  # IN (E,)
    centres: NDArray[np.float64],  # IN (C, d)
    shares: NDArray[np.float64],  # IN (C,)
    spreads: NDArray[np.float64],  # IN (C, T)
    slopes: NDArray[np.float64],  # OUT (2 F, C (d + 1 + T)), derivatives of root times the expected value
) -> None:
    """Compute the derivatives of the weighted expected values with respect to each parameter."""
    n_frequencies, n_features = omegas.shape
    n_numbers = n_features + 1 + spreads.shape[1]
    along = np.empty(n_features)
    slopes[:] = 0.0
    for f in range(n_frequencies):
        real, imaginary = slopes[f], slopes[n_frequencies + f]
        for c in range(shares.size):
            damping = _half_variance(omegas[f], spreads[c], rows, columns, numbers, along)
            if damping > FAINT:
                continue
            theta = 0.0
            for k in range(n_features):
                theta += omegas[f, k] * centres[c, k]
            seen = roots[f] * exp(-damping)
            re, im = seen * cos(theta), seen * sin(theta)
            at = c * n_numbers
            for k in range(n_features):
                real[at + k] = -shares[c] * im * omegas[f, k]
                imaginary[at + k] = shares[c] * re * omegas[f, k]
            at += n_features
            real[at] = re
            imaginary[at] = im
            at += 1
            for e in range(rows.size):
                pull = -shares[c] * omegas[f, rows[e]] * along[columns[e]]
                real[at + numbers[e]] += pull * re
                imaginary[at + numbers[e]] += pull * im
