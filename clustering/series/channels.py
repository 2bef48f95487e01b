"""Channels: public linear functions of a tally. Their means depend on the population alone.

A channel has a weight for each place, a normal bump. Its value is the mean of the weight over the people, estimated
from the unbiased frequencies of all shifts. No fit, and no earlier result, enters it. So its mean is constant while the
population is, and its variance is that of the mechanism and of the sample of people.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from clustering.density.deconvolution import along_axes
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
    middles : ndarray of shape (n_channels,), float64
        Mean weight of the cells.
    slope : float
        Increase of that variance per unit of frequency.
    drift : float
        Variance of the sum of all frequencies before they were divided by it, times the number of reports.
    n_reports : int
    """

    values: NDArray[np.float64]
    squares: NDArray[np.float64]
    noise: NDArray[np.float64]
    middles: NDArray[np.float64]
    slope: float
    drift: float
    n_reports: int


class FrequencyNoise(Protocol):
    """Noise of the frequencies of an observation; `clustering.rounds.decoders.Decoder` states the terms."""

    @property
    def spread_variance(self) -> float:
        """Return the variance of a sum of frequencies, per spread of its weights and per report."""

    @property
    def slope_variance(self) -> float:
        """Return the increase of the variance per unit of frequency."""

    @property
    def signal(self) -> float:
        """Return the effective reports per report."""

    def standard_errors(
        self,
        spreads: NDArray[np.float64],
        totals: NDArray[np.float64],
        shares: NDArray[np.float64],
        n_reports: int,
    ) -> NDArray[np.float64]:
        """Return standard errors of weighted sums of frequencies."""


class Observation(ABC):
    """Released frequencies of a window, or of a pool of windows, with known noise. The channels are read once.

    Attributes
    ----------
    is_divided : bool
        Whether the frequencies are noisy counts that were divided by their noisy sum.
    """

    is_divided: ClassVar[bool]

    @property
    @abstractmethod
    def encoding(self) -> ShiftedGridEncoding:
        """Return the grid, which all windows of a pool share."""

    @property
    @abstractmethod
    def noise(self) -> FrequencyNoise:
        """Return the noise of the frequencies."""

    @property
    @abstractmethod
    def frequencies(self) -> NDArray[np.float64]:
        """Return the unbiased frequencies: (n_slots, n_symbols)."""

    @property
    @abstractmethod
    def reports(self) -> NDArray[np.int64]:
        """Return the number of reports, or of records, in each slot."""

    @property
    def n_reports(self) -> int:
        """Return the number of reports, or of records."""
        return int(self.reports.sum())

    @property
    def n_eff(self) -> float:
        """Return the effective number of reports."""
        return self.n_reports * self.noise.signal

    @cached_property
    def reading(self) -> Reading:
        """Return the channels."""
        return read_channels(self)


def read_channels(observed: Observation) -> Reading:
    """Return the channels of a grid: 24 for one feature, 320 for two, 512 for three.

    Three features have the wide bumps alone, because the narrow ones are 4,096.
    """
    encoding, of_noise = observed.encoding, observed.noise
    frequencies, parts = observed.frequencies, observed.reports / max(observed.n_reports, 1)
    values, squares, noise, middles = [], [], [], []
    for width, n_bumps in LATTICES[1:] if encoding.n_features > 2 else LATTICES:
        means = [
            _means(width, n_bumps, encoding.fine_cells, encoding.shifts, n_coarse, place in encoding.circles)
            for place, n_coarse in enumerate(encoding.symbols_along)
        ]
        total = np.zeros((4, n_bumps**encoding.n_features))
        for slot, part in enumerate(parts):
            along = [of[shift] for of, shift in zip(means, shift_of(encoding, slot), strict=True)]
            square = [each**2 for each in along]
            shares = frequencies[slot].reshape(encoding.symbols_along)
            spread, sums = _outer([each.sum(axis=1) for each in square]), _outer([each.sum(axis=1) for each in along])
            spread -= sums**2 / encoding.n_symbols
            rows = (along_axes(shares, along).ravel(), along_axes(shares, square).ravel(), spread)
            total += part * np.stack([*rows, sums / encoding.n_symbols])
        values.append(total[0])
        squares.append(total[1])
        noise.append(of_noise.spread_variance * np.maximum(total[2], 0.0))
        middles.append(total[3])
    drift = of_noise.spread_variance * encoding.n_symbols if observed.is_divided else 0.0
    return Reading(
        values=np.concatenate(values),
        squares=np.concatenate(squares),
        noise=np.concatenate(noise),
        middles=np.concatenate(middles),
        slope=of_noise.slope_variance,
        drift=drift,
        n_reports=observed.n_reports,
    )


def variances(readings: list[Reading]) -> NDArray[np.float64]:
    """Return the variance of each channel in each window, of the mechanism and of sampling: (n_windows, n_channels).

    The mean and the mean square of a weight are those of all windows up to this one. Counts that are divided by their
    noisy sum vary by the spread of the weights about their mean over the people, not over the cells.
    """
    counts = np.arange(1, len(readings) + 1)[:, None]
    means = np.clip(np.cumsum([each.values for each in readings], axis=0) / counts, 0.0, 1.0)
    squares = np.cumsum([each.squares for each in readings], axis=0) / counts
    squares = np.clip(squares, means**2, means)
    drifts, middles = np.array([[each.drift] for each in readings]), np.array([each.middles for each in readings])
    noise = np.array([each.noise for each in readings]) + drifts * (means - middles) ** 2
    slopes = np.array([[each.slope] for each in readings])
    n = np.array([[max(each.n_reports, 1)] for each in readings])
    return np.asarray((noise + (1 + slopes) * squares - means**2) / n, dtype=np.float64)


@lru_cache(maxsize=16)
def _means(
    width: float,
    n_bumps: int,
    fine_cells: int,
    shifts: int,
    n_coarse: int,
    is_circle: bool,
) -> tuple[NDArray[np.float64], ...]:
    """Return for each shift of one feature the mean weight of each bump in each coarse cell: (n_bumps, n_coarse)."""
    places, fine = (np.arange(fine_cells) + 0.5) / fine_cells, np.arange(fine_cells)
    centres = (np.arange(n_bumps) + 0.5) / n_bumps
    apart = differences(places[:, None], centres[:, None, None], (0,) if is_circle else ())[..., 0]
    weights = np.exp(-0.5 * (apart / width) ** 2)
    found = []
    for shift in range(shifts):
        coarse = (fine + shift) // shifts % n_coarse
        within = (coarse == np.arange(n_coarse)[:, None]).astype(np.float64)
        found.append(weights @ within.T / np.maximum(within.sum(axis=1), 1.0))
    return tuple(found)


def _outer(factors: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    return reduce(np.multiply.outer, factors).ravel()
