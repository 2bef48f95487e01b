"""Fits of a density to a round of shifted grids, and its bumps.

Refits repeat the same fit for other tallies of the round, and under other priors.
"""

from dataclasses import dataclass, replace
from math import prod, sinh

import numpy as np
from numpy.typing import NDArray

from clustering.density.bump_fit import BumpFit, choose_search
from clustering.density.deconvolution import Deconvolution, deconvolve
from clustering.density.shifted_field import SAMPLING_VARIANCE, field
from clustering.density.synthetic_rounds import SyntheticPopulation, halve
from clustering.rounds.decoders import decoder
from clustering.rounds.plan import Collected
from sfumato.sizing.grids import shifted_grid_length_scale
from sfumato.specs import SeriesAlgorithm, ShiftedGridEncoding

SELECTED_SIGNAL = sinh(1.99) ** 2  # signal of a report at epsilon 4, from which ℓ is selected for a given K


@dataclass(frozen=True)
class DensityFit(BumpFit):
    """The density fitted to a round.

    Attributes
    ----------
    params : SeriesAlgorithm
        Number of clusters, and prior of the density.
    encoding : ShiftedGridEncoding
        Encoding of the round.
    collected : Collected
    """

    params: SeriesAlgorithm
    encoding: ShiftedGridEncoding
    collected: Collected

    @property
    def clusters(self) -> int | None:
        """Return the requested number of clusters."""
        return self.params.clusters

    @property
    def selects_scale(self) -> bool:
        """Return whether ℓ is open and epsilon is 4 or more."""
        signal = decoder(self.collected.spec.mechanism).signal
        return self.params.length_scale is None and signal >= SELECTED_SIGNAL

    def redraw(self, density: NDArray[np.float64], throw: int) -> Deconvolution:
        """Return the fit to a synthetic round from `density`."""
        population = SyntheticPopulation(density, (self.collected.tally.n_reports,), throw)
        return self._refit(population.collect(self.collected.spec, 0, throw), self.length_scale, density)

    def halve(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the densities fitted to two halves of the reports."""
        one, other = (self._refit(half, self.length_scale, self.density).density for half in halve(self.collected))
        return one, other

    def at_scale(self, length_scale: float) -> "DensityFit":
        """Return the fit to the same reports under another ℓ."""
        fitted = self._refit(self.collected, length_scale, self.density)
        return replace(self, fitted=fitted, length_scale=length_scale)

    def _refit(self, collected: Collected, length_scale: float, former: NDArray[np.float64]) -> Deconvolution:
        return _fit(self.params, self.encoding, collected, length_scale, former)


def fit_density(params: SeriesAlgorithm, encoding: ShiftedGridEncoding, collected: Collected) -> DensityFit:
    """Fit the density of a round over a shifted grid. ℓ follows from the effective reports unless it is given."""
    n_eff = collected.tally.n_reports * decoder(collected.spec.mechanism).signal
    length_scale = params.length_scale or shifted_grid_length_scale(encoding.n_features, n_eff)
    fitted = _fit(params, encoding, collected, length_scale, None)
    return DensityFit(fitted, length_scale, params, encoding, collected)


def _fit(
    params: SeriesAlgorithm,
    encoding: ShiftedGridEncoding,
    collected: Collected,
    length_scale: float,
    former: NDArray[np.float64] | None,
) -> Deconvolution:
    reading = decoder(collected.spec.mechanism)
    observed = field(encoding, reading, collected.tally)
    search = choose_search(prod(observed.shape), former)
    return deconvolve(
        observed,
        shifts=encoding.shifts,
        precision=collected.tally.n_reports / (reading.zero_variance + SAMPLING_VARIANCE),
        length_scale=length_scale,
        amplitude=params.amplitude,
        circles=encoding.circles,
        steps=search.steps,
        start=search.start,
        is_refit=search.is_refit,
    )
