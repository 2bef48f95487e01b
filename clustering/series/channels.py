"""Channels: public linear functions of a tally. Their means depend on the population alone.

A channel has a weight for each place, a normal bump. Its value is the mean of the weight over the people, estimated
from the unbiased frequencies of all shifts. No fit, and no earlier result, enters it. So its mean is constant while the
population is, and its variance is that of the mechanism and of the sample of people.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce

import numpy as np
from numpy.typing import NDArray

from clustering.density.deconvolution import along_axes
from clustering.rounds.decoders import decoder
from clustering.rounds.plan import Collected
from sfumato.records.encodings import differences, shift_of
from sfumato.specs import ShiftedGridEncoding

LATTICES = ((0.05, 16), (0.10, 8))  # standard deviation of the bumps, in shares of a range, and bumps along a feature


@dataclass(frozen=True)
class Reading:
    """The channels of one window.

    Attributes
    ----------
    values : ndarray of shape (n_channels,), float64
        Unbiased.
    squares : ndarray of shape (n_channels,), float64
        Estimates of the mean squared weight.
    noise : ndarray of shape (n_channels,), float64
        Variance of the mechanism for a symbol of frequency zero, times the number of reports.
    slope : float
        Increase of that variance per unit of frequency.
    n_reports : int
    """

    values: NDArray[np.float64]
    squares: NDArray[np.float64]
    noise: NDArray[np.float64]
    slope: float
    n_reports: int


@dataclass(frozen=True, eq=False)
class Measured:
    """A window with its tally. Its channels are read once.

    Attributes
    ----------
    collected : Collected
    """

    collected: Collected

    @cached_property
    def reading(self) -> Reading:
        """Return the channels."""
        return read_channels(self.collected)


def read_channels(collected: Collected) -> Reading:
    """Return the channels of a round over a shifted grid: 24 for one feature, 320 for two, 512 for three.

    Three features have the wide bumps alone, because the narrow ones are 4,096.
    """
    encoding, tally = collected.spec.encoding, collected.tally
    assert isinstance(encoding, ShiftedGridEncoding)  # noqa: S101 - for the type checker: a series has this grid
    reading = decoder(collected.spec.mechanism)
    frequencies, parts = reading.frequencies(tally), tally.reports / max(tally.n_reports, 1)
    values, squares, noise = [], [], []
    for width, n_bumps in LATTICES[1:] if encoding.n_features > 2 else LATTICES:
        means = [
            _means(width, n_bumps, encoding.fine_cells, encoding.shifts, place in encoding.circles)
            for place in range(encoding.n_features)
        ]
        total = np.zeros((3, n_bumps**encoding.n_features))
        for slot, part in enumerate(parts):
            along = [of[shift] for of, shift in zip(means, shift_of(encoding, slot), strict=True)]
            square = [each**2 for each in along]
            shares = frequencies[slot].reshape(encoding.symbols_along)
            spread = _outer([each.sum(axis=1) for each in square])
            spread -= _outer([each.sum(axis=1) for each in along]) ** 2 / encoding.n_symbols
            total += part * np.stack([along_axes(shares, along).ravel(), along_axes(shares, square).ravel(), spread])
        values.append(total[0])
        squares.append(total[1])
        noise.append(reading.spread_variance * np.maximum(total[2], 0.0))
    of_all = [np.concatenate(each) for each in (values, squares, noise)]
    return Reading(of_all[0], of_all[1], of_all[2], reading.slope_variance, tally.n_reports)


def variances(readings: list[Reading]) -> NDArray[np.float64]:
    """Return the variance of each channel in each window, of the mechanism and of sampling: (n_windows, n_channels).

    The mean and the mean square of a weight are those of all windows up to this one.
    """
    counts = np.arange(1, len(readings) + 1)[:, None]
    means = np.clip(np.cumsum([each.values for each in readings], axis=0) / counts, 0.0, 1.0)
    squares = np.cumsum([each.squares for each in readings], axis=0) / counts
    squares = np.clip(squares, means**2, means)
    noise = np.array([each.noise for each in readings])
    slopes = np.array([[each.slope] for each in readings])
    n = np.array([[max(each.n_reports, 1)] for each in readings])
    return np.asarray((noise + (1 + slopes) * squares - means**2) / n, dtype=np.float64)


@lru_cache(maxsize=16)
def _means(
    width: float,
    n_bumps: int,
    fine_cells: int,
    shifts: int,
    is_circle: bool,
) -> tuple[NDArray[np.float64], ...]:
    """Return for each shift of one feature the mean weight of each bump in each coarse cell: (n_bumps, cells + 1).

    A circle has one coarse cell less.
    """
    places, fine = (np.arange(fine_cells) + 0.5) / fine_cells, np.arange(fine_cells)
    centres = (np.arange(n_bumps) + 0.5) / n_bumps
    apart = differences(places[:, None], centres[:, None, None], (0,) if is_circle else ())[..., 0]
    weights = np.exp(-0.5 * (apart / width) ** 2)
    found = []
    for shift in range(shifts):
        n_coarse = fine_cells // shifts + (not is_circle)
        coarse = (fine + shift) // shifts % n_coarse
        within = (coarse == np.arange(n_coarse)[:, None]).astype(np.float64)
        found.append(weights @ within.T / np.maximum(within.sum(axis=1), 1.0))
    return tuple(found)


def _outer(factors: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    return reduce(np.multiply.outer, factors).ravel()
