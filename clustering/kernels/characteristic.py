"""Weighted residuals of a characteristic function under a mixture of normal atoms, and their derivatives.

An atom of share pi, centre mu and covariance A A^T has pi e^(i omega.mu) e^(-|A^T omega|^2 / 2)
of it at omega. A is lower triangular and is filled from a few numbers, its spreads: entry
(rows[e], columns[e]) is spread numbers[e]. One number on all of the diagonal makes an atom
round; one for each place of the diagonal, an ellipsoid along the axes; one for each place of
the triangle, any covariance.

Parameters stand atom by atom: centre, share, spreads. Real parts come first, then imaginary ones.
"""

from math import cos, exp, sin

import numpy as np
from numba import njit
from numpy.typing import NDArray

FAINT = 18.0  # an atom damped below e^-18 is not seen at a frequency


@njit(cache=True, nogil=True)
def _bent(
    omega: NDArray[np.float64],  # IN (d,)
    spreads: NDArray[np.float64],  # IN (T,)
    rows: NDArray[np.int64],  # IN (E,)
    columns: NDArray[np.int64],  # IN (E,)
    numbers: NDArray[np.int64],  # IN (E,)
    along: NDArray[np.float64],  # OUT (d,), A^T omega
) -> float:
    """Half the variance of omega . x around the atom's centre."""
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
    values: NDArray[np.complex128],  # IN (F,), what was seen
    roots: NDArray[np.float64],  # IN (F,), square roots of the weights
    rows: NDArray[np.int64],  # IN (E,)
    columns: NDArray[np.int64],  # IN (E,)
    numbers: NDArray[np.int64],  # IN (E,)
    centres: NDArray[np.float64],  # IN (C, d)
    shares: NDArray[np.float64],  # IN (C,)
    spreads: NDArray[np.float64],  # IN (C, T)
    residual: NDArray[np.float64],  # OUT (2 F,), root times (seen - expected)
) -> float:
    """The residuals; returns their sum of squares."""
    n_frequencies, n_features = omegas.shape
    along = np.empty(n_features)
    total = 0.0
    for f in range(n_frequencies):
        re, im = values[f].real, values[f].imag
        for c in range(shares.size):
            bent = _bent(omegas[f], spreads[c], rows, columns, numbers, along)
            if bent > FAINT:
                continue
            theta = 0.0
            for k in range(n_features):
                theta += omegas[f, k] * centres[c, k]
            seen = shares[c] * exp(-bent)
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
    slopes: NDArray[np.float64],  # OUT (2 F, C (d + 1 + T)), of what is expected, times the root
) -> None:
    """Derivatives of root times expected value by every parameter."""
    n_frequencies, n_features = omegas.shape
    n_numbers = n_features + 1 + spreads.shape[1]
    along = np.empty(n_features)
    slopes[:] = 0.0
    for f in range(n_frequencies):
        real, imaginary = slopes[f], slopes[n_frequencies + f]
        for c in range(shares.size):
            bent = _bent(omegas[f], spreads[c], rows, columns, numbers, along)
            if bent > FAINT:
                continue
            theta = 0.0
            for k in range(n_features):
                theta += omegas[f, k] * centres[c, k]
            seen = roots[f] * exp(-bent)
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
