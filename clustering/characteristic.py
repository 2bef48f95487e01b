"""The characteristic function of the people behind a round of phases, as noisily as reports tell it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clustering.phase_model import Sketch

CLEAR = 0.1  # |c_q|^2 / |c_1|^2 from which on a harmonic is read
MOST_HARMONICS = 8
MOST_FREQUENCIES = 4096  # bounds the work of a fit: with 1024 waves four harmonics are read


class Characteristic(NamedTuple):
    """E e^(i omega . x) over the people, seen at some frequencies."""

    omegas: NDArray[np.float64]  # (F, d), radians across the box
    values: NDArray[np.complex128]  # (F,), unbiased
    weights: NDArray[np.float64]  # (F,), about one over the variance of a value: E|noise|^2


def characteristic_of(sketch: Sketch) -> Characteristic:
    """What a sketch tells of the characteristic function, at every wave and its clear harmonics.

    Harmonic q of a wave's phases, sum over y of n_jy e^(2 pi i q y / L) / n_j, is in the mean
    conj(c_q) phi(q omega_j), and each report adds one point of the unit circle to it: so
    phi is read with a variance of at most 1 / (n_j |c_q|^2) (STATISTICS, section 4.2).
    Two harmonics of a wave are as good as uncorrelated, being orthogonal over even phases. The
    harmonic q = L/2 is left out: it tells of one part, the real one, alone.
    """
    n_phases = sketch.counts.shape[1]
    n_reports = sketch.counts.sum(axis=1)
    strengths = np.abs(sketch.harmonics) ** 2
    most = max(1, min(MOST_HARMONICS, MOST_FREQUENCIES // max(len(n_reports), 1)))
    read = [q for q in range(1, most + 1) if 2 * q < n_phases and strengths[q - 1] >= CLEAR * strengths[0]]
    values = [
        (sketch.counts @ (sketch.cosines[q - 1] + 1j * sketch.sines[q - 1]))
        / n_reports
        / np.conj(sketch.harmonics[q - 1])
        for q in read
    ]
    return Characteristic(
        np.concatenate([q * sketch.omegas for q in read]),
        np.concatenate(values),
        np.concatenate([n_reports * strengths[q - 1] for q in read]),
    )
