"""Slow, plain twins of the phase kernels and of the fit's step, by their definitions."""

import cmath
from fractions import Fraction
from math import cos, exp, floor, log, pi, sin, sqrt

import numpy as np


def harmonic(chances, q, n_points=20_000):
    """Return c_q, the mean over theta of L p(0 | theta) e^(iq theta), by a fine sum."""
    n_phases = len(chances)
    total = 0
    for i in range(n_points):
        theta = 2 * pi * (i + 0.5) / n_points
        own = floor(n_phases * theta / (2 * pi))
        total += n_phases * float(chances[-own % n_phases]) * cmath.exp(1j * q * theta)
    return total / n_points


def window_chances(n_phases, size, epsilon):
    """Return the window's probabilities: y = (a + o - floor(w/2)) mod L, o inside with weight e^eps."""
    chances = [0.0] * n_phases
    for offset in range(n_phases):
        weight = exp(epsilon) if offset < size else 1.0
        chances[(offset - size // 2) % n_phases] += weight / (size * exp(epsilon) + n_phases - size)
    return chances


def sines_and_cosines(angles):
    """Return the sine of each angle, then the cosine of each."""
    return [sin(angle) for angle in angles], [cos(angle) for angle in angles]


def density(omega, harmonics, n_phases, y, mixture):
    """Return L p(y) along one wave."""
    total = 1.0
    for centre, share, width in zip(*mixture, strict=True):
        theta = sum(w * x for w, x in zip(omega, centre, strict=True))
        variance = sum(w * w for w in omega) * width**2
        for q, c in enumerate(harmonics, start=1):
            wave = c * exp(-q * q * variance / 2) * cmath.exp(-1j * q * (theta - 2 * pi * y / n_phases))
            total += share * 2 * wave.real
    return total


def negative_log_likelihood(omegas, counts, harmonics, mixture):
    """Return - sum n log(L p)."""
    n_phases = len(counts[0])
    return -sum(
        n * log(max(density(omega, harmonics, n_phases, y, mixture), 1e-3))
        for omega, row in zip(omegas, counts, strict=True)
        for y, n in enumerate(row)
    )


def packed(mixture):
    """Return parameters in the kernels' order: centres, shares, log widths."""
    centres, shares, widths = mixture
    return np.concatenate([np.ravel(centres), shares, np.log(widths)])


def unpacked(parameters, n_clusters):
    """Return the mixture of these parameters."""
    centres, shares, log_widths = np.split(parameters, [-2 * n_clusters, -n_clusters])
    return centres.reshape(n_clusters, -1), shares, np.exp(log_widths)


def density_gradient(omega, harmonics, n_phases, y, mixture, by=1e-6):
    """Return D (L p), by central differences."""
    at = packed(mixture)
    n_clusters = len(mixture[1])
    out = np.empty(len(at))
    for i in range(len(at)):
        sides = []
        for sign in (1, -1):
            moved = at.copy()
            moved[i] += sign * by
            sides.append(density(omega, harmonics, n_phases, y, unpacked(moved, n_clusters)))
        out[i] = (sides[0] - sides[1]) / (2 * by)
    return out


def curvature(omegas, counts, harmonics, mixture):
    """Return the gradient of the negative log likelihood, and sum (n_j / L) (D p)(D p)^T / p."""
    n_phases = len(counts[0])
    n_parameters = len(packed(mixture))
    gradient, information = np.zeros(n_parameters), np.zeros((n_parameters, n_parameters))
    for omega, row in zip(omegas, counts, strict=True):
        for y, n in enumerate(row):
            p = max(density(omega, harmonics, n_phases, y, mixture), 1e-3)
            slope = density_gradient(omega, harmonics, n_phases, y, mixture)
            gradient -= (n / p - sum(row) / n_phases) * slope
            information += sum(row) / n_phases / p * np.outer(slope, slope)
    return gradient, information


def damped_move(gradient, information, damped, n_clusters):
    """Return the x that minimises g.x + x.(H + D)x/2 with changes of shares that sum to zero."""
    n_parameters = len(gradient)
    last = n_parameters - n_clusters - 1
    free = [i for i in range(n_parameters) if i != last]
    inside = np.eye(n_parameters)[:, free]
    for column, i in enumerate(free):
        if n_parameters - 2 * n_clusters <= i < last:
            inside[last, column] = -1.0
    matrix = information + np.diag(damped)
    return inside @ np.linalg.solve(inside.T @ matrix @ inside, inside.T @ -gradient)


def agreement(omegas, signal, place):
    """Return sum Re(z e^(-i omega . p))."""
    return sum(
        (z * cmath.exp(-1j * sum(w * x for w, x in zip(omega, place, strict=True)))).real
        for omega, z in zip(omegas, signal, strict=True)
    )


def ascended(omegas, signal, place, n_steps, stride, decay, by=1e-6):
    """Move places by steps of given lengths along the gradient of the agreement, inside the box."""
    place = np.array(place, dtype=float)
    for _ in range(n_steps):
        gradient = np.array(
            [
                agreement(omegas, signal, place + by * axis) - agreement(omegas, signal, place - by * axis)
                for axis in np.eye(len(place))
            ]
        )
        place = np.clip(place + stride * gradient / np.linalg.norm(gradient), 0, 1)
        stride *= decay
    return place


def raw_uniform(seed, n):
    """Return numbers in [0, 1) from PCG64's raw words, multiples of 2^-53."""
    return [float(Fraction(int(word) >> 11, 1 << 53)) for word in np.random.PCG64(seed).random_raw(n)]


def root_of(shape, spreads):
    """Return the lower triangular A that the spreads fill."""
    size = max(shape.rows) + 1
    root = np.zeros((size, size))
    for row, column, number in zip(shape.rows, shape.columns, shape.numbers, strict=True):
        root[row, column] = spreads[number]
    return root


def expected_value(omega, shape, atoms):
    """Return sum pi e^(i omega.mu - omega^T A A^T omega / 2)."""
    total = 0
    for centre, share, spreads in zip(*atoms, strict=True):
        root = root_of(shape, spreads)
        total += share * cmath.exp(1j * (omega @ centre) - omega @ root @ root.T @ omega / 2)
    return total


def weighted_residuals(omegas, values, roots, shape, atoms):
    """Return root (observed - expected): real parts, then imaginary parts."""
    left = [
        root * (value - expected_value(omega, shape, atoms))
        for omega, value, root in zip(omegas, values, roots, strict=True)
    ]
    return np.array([z.real for z in left] + [z.imag for z in left])


def residual_slopes(omegas, roots, shape, atoms, by=1e-6):
    """Return derivatives of root times expected by component (centre, share, spreads), by central differences."""
    zeros = np.zeros(len(omegas))
    columns = []
    for atom in range(len(atoms.shares)):
        for part, array in enumerate(atoms):
            for number in range(np.size(array[atom])):
                sides = []
                for sign in (1, -1):
                    moved = [np.array(each, dtype=float) for each in atoms]
                    moved[part].reshape(len(atoms.shares), -1)[atom, number] += sign * by
                    sides.append(-weighted_residuals(omegas, zeros, roots, shape, type(atoms)(*moved)))
                columns.append((sides[0] - sides[1]) / (2 * by))
    return np.column_stack(columns)


def particle_cells(points, weights, centres):
    """Return labels, shares, spreads, imbalances and slopes of particles by nearest centre, one by one."""
    d, k = len(points[0]), len(centres)
    far = [[sum((x - c) * (x - c) for x, c in zip(p, centre, strict=True)) for centre in centres] for p in points]
    labels = [row.index(min(row)) for row in far]
    total = sum(weights)
    shares, spreads, leans, slopes = [], [], [], []
    for c in range(k):
        own = [(p, w) for p, w, label in zip(points, weights, labels, strict=True) if label == c]
        mass = sum(w for _, w in own)
        shares.append(max(mass / total, 0.03 / k))
        off = [[(p[j] - centres[c][j], w) for p, w in own] for j in range(d)]
        spread = [max(sqrt(sum(w * x * x for x, w in column) / max(mass, 1e-12)), 1e-3) for column in off]
        near = [sum(w for x, w in off[j] if abs(x) < 0.6 * spread[j]) / max(mass, 1e-12) for j in range(d)]
        spreads.append(spread)
        leans.append([sum(w * (float(x > 0) - float(x < 0)) for x, w in off[j]) / max(mass, 1e-12) for j in range(d)])
        slopes.append([min(max(near[j] / (0.6 * s), 0.4 / s), 1.2 / s) for j, s in enumerate(spread)])
    return labels, shares, spreads, leans, slopes


def category_value(omega, characters, categories, mixture):
    """Return sum size e^(i omega.mu - |omega|^2 s^2 / 2) prod sum share e^(2 pi i a v / m), by its definition."""
    total = 0
    for cluster, (centre, size, width) in enumerate(zip(*mixture.places, strict=True)):
        value = size * cmath.exp(1j * (omega @ centre) - (omega @ omega) * width**2 / 2)
        for character, m, shares in zip(characters, categories, mixture.shares, strict=True):
            value *= sum(share * cmath.exp(2j * pi * character * v / m) for v, share in enumerate(shares[cluster]))
        total += value
    return total


def softmax(numbers):
    """Return shares from free numbers."""
    parts = [exp(number) for number in numbers]
    return np.array(parts) / sum(parts)


def moved_category_mixture(mixture, cluster, parameter, by):
    """Return the mixture with one parameter moved. The order is: centre, log width, log size, log shares."""
    places, d = mixture.places, mixture.places.centres.shape[1]
    centres, logs, widths = (
        np.array(each, dtype=float) for each in (places.centres, np.log(places.shares), places.widths)
    )
    shares = [np.array(each, dtype=float) for each in mixture.shares]
    if parameter < d:
        centres[cluster, parameter] += by
    elif parameter == d:
        widths[cluster] *= exp(by)
    elif parameter == d + 1:
        logs[cluster] += by
    else:
        place, left = 0, parameter - d - 2
        while left >= shares[place].shape[1]:
            left -= shares[place].shape[1]
            place += 1
        row = np.log(shares[place][cluster])
        row[left] += by
        shares[place][cluster] = softmax(row)
    return type(mixture)(type(places)(centres, softmax(logs), widths), tuple(shares))
