"""Observations of windows: tallies of reports, and noisy counts of records. Each pools, and fits a density."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import asinh, sqrt
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from clustering.density.bump_fit import BumpFit
from clustering.density.count_fit import CountFit, fit_counts, noise_variance
from clustering.density.deconvolution import NoisyCounts, SmoothedField
from clustering.density.shifted_field import SAMPLING_VARIANCE
from clustering.density.shifted_field import field as smooth_field
from clustering.errors import UnfitRound
from clustering.grids.density_fit import DensityFit, fit_density
from clustering.rounds.decoders import Decoder, decoder
from clustering.rounds.plan import Collected
from clustering.series.channels import Observation
from clustering.series.pooling import pool, scaled_weights
from sfumato.sizing.grids import choose_map_grid
from sfumato.specs import Feature, SeriesAlgorithm, ShiftedGridEncoding, circles_of


class Window(Observation):
    """An observation that a series can follow."""

    @property
    @abstractmethod
    def circles(self) -> tuple[int, ...]:
        """Return the indices of the periodic features."""

    @property
    @abstractmethod
    def kind(self) -> object:
        """Return what windows of a pool have in common."""

    @property
    @abstractmethod
    def likelihood(self) -> SmoothedField | NoisyCounts:
        """Return the likelihood of a density."""

    @abstractmethod
    def pooled(self, others: Sequence[Self], weights: Sequence[float] | None) -> Self:
        """Return the pool of this window and others; see `clustering.series.pooling.pool`."""

    @abstractmethod
    def fit(self, params: SeriesAlgorithm) -> BumpFit:
        """Return the density and its bumps."""


def pool_windows(windows: Sequence[Window], weights: Sequence[float] | None = None) -> Window:
    """Return the pool of windows, at least one; see `clustering.series.pooling.pool`."""
    return windows[0].pooled(windows[1:], weights)


@dataclass(frozen=True, eq=False)
class Measured(Window):
    """A window with its tally.

    Attributes
    ----------
    collected : Collected
    """

    collected: Collected
    is_divided: ClassVar[bool] = False

    @property
    def encoding(self) -> ShiftedGridEncoding:
        """Return the grid of the round."""
        encoding = self.collected.spec.encoding
        assert isinstance(encoding, ShiftedGridEncoding)  # noqa: S101 - for the type checker: a series has this grid
        return encoding

    @cached_property
    def noise(self) -> Decoder:
        """Return the decoder of the mechanism."""
        return decoder(self.collected.spec.mechanism)

    @cached_property
    def frequencies(self) -> NDArray[np.float64]:
        """Return the unbiased frequencies of the tally."""
        return self.noise.frequencies(self.collected.tally)

    @property
    def reports(self) -> NDArray[np.int64]:
        """Return the number of reports in each slot."""
        return self.collected.tally.reports

    @property
    def circles(self) -> tuple[int, ...]:
        """Return the indices of the periodic features."""
        return circles_of(self.collected.spec.features)

    @property
    def kind(self) -> object:
        """Return the encoding and the mechanism."""
        return self.collected.spec.encoding, self.collected.spec.mechanism

    @property
    def likelihood(self) -> SmoothedField:
        """Return the likelihood of the field over the fine grid."""
        observed = smooth_field(self.encoding, self.noise, self.collected.tally)
        precision = self.n_reports / (self.noise.zero_variance + SAMPLING_VARIANCE)
        return SmoothedField(observed, self.encoding.shifts, precision, self.encoding.circles)

    def pooled(self, others: Sequence["Measured"], weights: Sequence[float] | None) -> "Measured":
        """Return the pool of the tallies."""
        return Measured(pool([self.collected, *(each.collected for each in others)], weights))

    def fit(self, params: SeriesAlgorithm) -> DensityFit:
        """Return the density of the tally."""
        return fit_density(params, self.encoding, self.collected)


class RecordGrid(ShiftedGridEncoding):
    """The grid of counts of records: one slot without a shift, so that no cell lies beyond the bounds."""

    @property
    def symbols_along(self) -> tuple[int, ...]:
        """Return the number of cells of each feature."""
        return (self.cells,) * self.n_features


@dataclass(frozen=True)
class CountNoise:
    """Noise of the frequencies of noisy counts, which are divided by their sum.

    Attributes
    ----------
    spread_variance : float
        Variance of a count, divided by the number of records.
    n_cells : int
    """

    spread_variance: float
    n_cells: int
    slope_variance: ClassVar[float] = 0.0

    @property
    def signal(self) -> float:
        """Return the effective reports per record."""
        return 1 / max(self.spread_variance, 1e-12)

    def standard_errors(
        self,
        spreads: NDArray[np.float64],
        totals: NDArray[np.float64],
        shares: NDArray[np.float64],
        n_reports: int,
    ) -> NDArray[np.float64]:
        """Return standard errors of weighted sums Σ w c / Σ c of counts c: of noise, and of the sample of records.

        The noise of the sum of the counts moves all frequencies. So the weights vary about the share, and
            n Var = v Σ (w - share)² + share (1 - share).
        `Decoder.standard_errors` states the parameters.
        """
        share = np.clip(shares, 0.0, 1.0)
        about = np.maximum(spreads, 0.0) + self.n_cells * (share - totals / self.n_cells) ** 2
        variance = self.spread_variance * about + share * (1 - share)
        return np.asarray(np.sqrt(variance / n_reports), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Counted(Window):
    """The noisy counts of the records of a window, or of a pool of windows.

    Attributes
    ----------
    features : tuple of Feature
    counts : ndarray of shape (cells,) * n_features, int64
    scale : float
        Scale of a count's discrete Laplace noise.
    """

    features: tuple[Feature, ...]
    counts: NDArray[np.int64]
    scale: float
    is_divided: ClassVar[bool] = True

    @cached_property
    def encoding(self) -> RecordGrid:
        """Return the grid."""
        return RecordGrid(self.counts.ndim, len(self.counts), 1, self.circles)

    @property
    def noise(self) -> CountNoise:
        """Return the noise of the frequencies."""
        return CountNoise(noise_variance(self.scale) / self.n_reports, self.counts.size)

    @property
    def frequencies(self) -> NDArray[np.float64]:
        """Return the counts, divided by their sum."""
        return (self.counts.ravel() / self.n_reports)[None]

    @property
    def reports(self) -> NDArray[np.int64]:
        """Return the noisy number of records, at least 1."""
        return np.array([max(int(self.counts.sum()), 1)], dtype=np.int64)

    @property
    def circles(self) -> tuple[int, ...]:
        """Return the indices of the periodic features."""
        return circles_of(self.features)

    @property
    def kind(self) -> object:
        """Return the shape of the grid. Windows with another noise can be pooled."""
        return self.counts.shape

    @property
    def likelihood(self) -> NoisyCounts:
        """Return the likelihood of the counts."""
        return NoisyCounts(self.counts, noise_variance(self.scale), float(self.n_reports))

    def pooled(self, others: Sequence["Counted"], weights: Sequence[float] | None) -> "Counted":
        """Return the weighted sum of the counts, with a scale for the noise of this sum."""
        windows = (self, *others)
        if any(each.kind != self.kind for each in windows):
            raise UnfitRound("the windows of a pool must have the same grid: choose windows of one revision")
        scaled = scaled_weights([float(each.n_reports) for each in windows], weights)
        counts = sum(w * each.counts for w, each in zip(scaled, windows, strict=True))
        variance = sum(w**2 * noise_variance(each.scale) for w, each in zip(scaled, windows, strict=True))
        return Counted(self.features, np.rint(counts).astype(np.int64), scale_of(float(variance)))

    def fit(self, params: SeriesAlgorithm) -> CountFit:
        """Return the density of the counts. ℓ follows from their information unless it is given."""
        information = self.n_reports / max(self.scale, 1e-9)
        return fit_counts(
            self.counts,
            self.scale,
            float(self.n_reports),
            length_scale=params.length_scale or choose_map_grid(self.counts.ndim, information)[1],
            amplitude=params.amplitude,
            clusters=params.clusters,
            circles=self.circles,
        )


def scale_of(variance: float) -> float:
    """Return the scale of discrete Laplace noise with a variance; the inverse of `noise_variance`."""
    return 0.5 / asinh(sqrt(0.5 / variance)) if variance > 0 else 0.0
