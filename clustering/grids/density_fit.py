"""Fits of a density to a round of shifted grids, and its bumps.

Refits repeat the same fit for other tallies of the round, and under other priors. In a round with an attribute, one fit
over all cells and categories estimates the shares of the categories. The density of each category is then fitted alone.
"""

from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from clustering.density.bump_fit import LONG_FIT_CELLS, BumpFit, choose_search
from clustering.density.deconvolution import Deconvolution, deconvolve
from clustering.density.shifted_field import SAMPLING_VARIANCE, field
from clustering.density.synthetic_rounds import SyntheticPopulation, halve
from clustering.rounds.decoders import decoder
from clustering.rounds.plan import Collected
from sfumato.sizing.grids import shifted_grid_length_scale
from sfumato.specs import SeriesAlgorithm, ShiftedGridEncoding


@dataclass(frozen=True)
class Category:
    """A category of a round's attribute.

    Attributes
    ----------
    place : int
        Index among the categories.
    share : float
        Estimated share of the people, positive.
    """

    place: int
    share: float


@dataclass(frozen=True)
class DensityFit(BumpFit):
    """The density fitted to a round, or to the people of one category of its attribute.

    Attributes
    ----------
    params : SeriesAlgorithm
        Number of clusters, and prior of the density.
    encoding : ShiftedGridEncoding
        Encoding of the round.
    collected : Collected
    category : Category or None
    """

    params: SeriesAlgorithm
    encoding: ShiftedGridEncoding
    collected: Collected
    category: Category | None = None

    @property
    def clusters(self) -> int | None:
        """Return the requested number of clusters."""
        return self.params.clusters

    @property
    def selects_scale(self) -> bool:
        """Return whether ℓ is open."""
        return self.params.length_scale is None

    def redraw(self, density: NDArray[np.float64], throw: int) -> Deconvolution:
        """Return the fit to a synthetic round from `density`.

        People of other categories are even over their cells, because the noise of a cell does not depend on them.
        """
        population = SyntheticPopulation(self._among_all(density), (self.collected.tally.n_reports,), throw)
        return self._refit(population.collect(self.collected.spec, 0, throw), self.length_scale, density)

    def halve(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the densities fitted to two halves of the reports."""
        one, other = (self._refit(half, self.length_scale, self.density).density for half in halve(self.collected))
        return one, other

    def at_scale(self, length_scale: float) -> "DensityFit":
        """Return the fit to the same reports under another ℓ."""
        fitted = self._refit(self.collected, length_scale, self.density)
        return replace(self, fitted=fitted, length_scale=length_scale)

    def _among_all(self, density: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the density of all people, from that of the category."""
        if self.category is None:
            return density
        shape = self.encoding.fine_shape
        others = (1 - self.category.share) / (prod(shape) - density.size)
        everyone = np.full(shape, others)
        everyone[..., self.category.place] = self.category.share * density
        return everyone

    def _refit(self, collected: Collected, length_scale: float, former: NDArray[np.float64]) -> Deconvolution:
        return _fit(self.params, self.encoding, collected, length_scale, former, self.category)


def fit_density(params: SeriesAlgorithm, encoding: ShiftedGridEncoding, collected: Collected) -> DensityFit:
    """Fit the density of a round over a shifted grid. ℓ follows from the effective reports unless it is given.

    With an attribute, the density is that over the cells and the categories.
    """
    length_scale = _length_scale(params, encoding, collected, 1 / prod(encoding.categories))
    fitted = _fit(params, encoding, collected, length_scale, None)
    return DensityFit(fitted, length_scale, params, encoding, collected)


def fit_category(whole: DensityFit, category: Category) -> DensityFit:
    """Fit the density of the people of one category, after that of the whole round."""
    params, encoding, collected = whole.params, whole.encoding, whole.collected
    length_scale = _length_scale(params, encoding, collected, category.share)
    start = whole.density[..., category.place]
    fitted = _fit(params, encoding, collected, length_scale, start / start.sum(), category)
    return DensityFit(fitted, length_scale, params, encoding, collected, category)


def _length_scale(params: SeriesAlgorithm, encoding: ShiftedGridEncoding, collected: Collected, share: float) -> float:
    """Return ℓ for the people of a category with this share; their noise is that of all reports."""
    n_eff = collected.tally.n_reports * decoder(collected.spec.mechanism).signal * share**2
    return params.length_scale or shifted_grid_length_scale(encoding.n_features, n_eff)


def _fit(
    params: SeriesAlgorithm,
    encoding: ShiftedGridEncoding,
    collected: Collected,
    length_scale: float,
    former: NDArray[np.float64] | None,
    category: Category | None = None,
) -> Deconvolution:
    """Return the fit to the field F of a round, or to F / s for the people of a category with the share s.

    The variance of F / s is (v + .02 s) / (N s²).
    """
    reading = decoder(collected.spec.mechanism)
    observed, share = field(encoding, reading, collected.tally), 1.0
    if category is not None:
        observed, share = observed[..., category.place] / category.share, category.share
    search = choose_search(prod(observed.shape), former)
    converges = former is None and observed.size <= LONG_FIT_CELLS
    return deconvolve(
        observed,
        shifts=encoding.shifts,
        precision=collected.tally.n_reports * share**2 / (reading.zero_variance + SAMPLING_VARIANCE * share),
        length_scale=length_scale,
        amplitude=params.amplitude,
        circles=encoding.circles,
        has_categories=category is None and bool(encoding.attributes),
        steps=None if converges else search.steps,
        start=search.start,
        is_refit=search.is_refit,
    )
