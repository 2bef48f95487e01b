"""From a round of shifted grids to a density and its bumps (STATISTICS 3.2, steps 3 and 4), again and again.

What is said of a model's errors needs the same fit to other tallies, so that it is one
function of a tally here.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from clustering.bump_count import Bar, candidates, count, noise_bar
from clustering.decoders import decoder
from clustering.deconvolution import MORE_STEPS, STEPS, Deconvolved, deconvolve
from clustering.excess_mass import Bump, above_saddle, bumps, regions
from clustering.plan import Collected
from clustering.shifted_field import SAMPLING_VARIANCE, field
from clustering.synthetic import People
from sfumato.specs import ShiftedGrid, ShiftedGridEncoding

LONG_FIT_CELLS = 96**2  # fine cells up to which there is time to fit to the end, and under two priors
AGAIN_STEPS = 100  # of a fit that begins at another's end; of as many cells as there is no time for:
FEW_STEPS = 20

# By how much the finer prior must be the more credible. Where it led by less (27 to 114, smile at
# epsilon 1 and 2), the labels were worse by it; where fine structure showed (smile and spirals,
# 150,000 at epsilon 4), it led by 600 and more.
MIN_EVIDENCE = 150.0

NULL_THROWS = 8  # of the one-bump density
_NULL_WORK = 1 << 14  # cells of all of them together, beyond which there are fewer; never fewer than two


@dataclass(frozen=True)
class Landscape:
    """The density behind a round, and how it was found.

    Attributes
    ----------
    params : ShiftedGrid
    encoding : ShiftedGridEncoding
        Of the round.
    collected : Collected
    fitted : Deconvolved
    length_scale : float
        ℓ of the prior that was taken.
    """

    params: ShiftedGrid
    encoding: ShiftedGridEncoding
    collected: Collected
    fitted: Deconvolved
    length_scale: float

    @property
    def density(self) -> NDArray[np.float64]:
        return self.fitted.density

    @cached_property
    def found(self) -> list[Bump]:
        """All bumps, the whole first."""
        return bumps(self.density)

    def excess_error(self, bump: Bump) -> float:
        """Standard error of E by noise, the cells of the bump and its saddle held fixed."""
        if bump.saddle is None:
            return 0.0
        if bump not in self._errors:
            self._errors[bump] = self.fitted.standard_error(above_saddle(self.density, bump))
        return self._errors[bump]

    @cached_property
    def _errors(self) -> dict[Bump, float]:
        """Those that were asked for."""
        return {}

    @cached_property
    def bar(self) -> Bar:
        """What noise alone makes of a density with one bump (`clustering.bump_count`)."""
        n_throws = min(NULL_THROWS, max(2, _NULL_WORK // self.density.size))
        errors = self.candidate_errors
        return Bar(
            noise_bar(self.density, self._redrawn, n_throws) if errors else 0.0,
            float(np.median(errors)) if errors else 0.0,
        )

    @cached_property
    def candidate_errors(self) -> list[float]:
        return [self.excess_error(bump) for bump in candidates(self.found)]

    def _redrawn(self, density: NDArray[np.float64], throw: int) -> NDArray[np.float64]:
        people = People(density, (self.collected.tally.n_reports,), throw)
        return self.again(people.answer(self.collected.spec, 0, throw)).density

    def again(self, collected: Collected) -> "Landscape":
        """The landscape behind another tally of this grid, under this one's prior, from this one's fit on."""
        steps = AGAIN_STEPS if self.density.size <= LONG_FIT_CELLS else FEW_STEPS
        fitted = _fit(self.params, self.encoding, collected, self.length_scale, steps, self.fitted)
        return replace(self, collected=collected, fitted=fitted)

    def kept(self, bar: Bar | None = None) -> list[Bump]:
        """The bumps that are clusters: the K of greatest E, or those that are counted.

        Parameters
        ----------
        bar : Bar, optional
            To count by; by default this landscape's own, and its bumps' own errors.
        """
        if self.params.clusters is not None:
            return self.found[: self.params.clusters]
        return count(self.found, self.bar, self.candidate_errors) if bar is None else count(self.found, bar)

    def labels(self, bar: Bar | None = None) -> NDArray[np.int64]:
        return regions(self.density, self.kept(bar)).labels


def landscape(params: ShiftedGrid, encoding: ShiftedGridEncoding, collected: Collected) -> Landscape:
    """Fit the density behind a round over a shifted grid.

    The prior has ℓ as given; half of it is taken where the reports make that by far the
    more credible (`Deconvolved.log_evidence`), which is where many reports show structure
    finer than ℓ.
    """
    long = encoding.fine_cells**encoding.n_features <= LONG_FIT_CELLS
    length_scale = params.length_scale
    fitted = _fit(params, encoding, collected, length_scale, MORE_STEPS if long else STEPS)
    if long:
        finer = _fit(params, encoding, collected, length_scale / 2, MORE_STEPS)
        if finer.log_evidence > fitted.log_evidence + MIN_EVIDENCE:
            fitted, length_scale = finer, length_scale / 2
    return Landscape(params, encoding, collected, fitted, length_scale)


def _fit(
    params: ShiftedGrid,
    encoding: ShiftedGridEncoding,
    collected: Collected,
    length_scale: float,
    steps: int,
    start: Deconvolved | None = None,
) -> Deconvolved:
    reading = decoder(collected.spec.mechanism)
    return deconvolve(
        field(encoding, reading, collected.tally),
        shifts=encoding.shifts,
        precision=collected.tally.n_reports / (reading.zero_variance + SAMPLING_VARIANCE),
        length_scale=length_scale,
        amplitude=params.amplitude,
        steps=steps,
        start=start,
    )
