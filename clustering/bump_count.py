"""How many bumps of a density are clusters: those that stand out from what noise makes of a density with one bump.

A parametric bootstrap. The null is the density in which every bump but the greatest is cut down
to its saddle; what is drawn from it, perturbed and fitted anew has bumps that are noise, and
their heights are what a real one is held against.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import maximum_filter

from clustering.excess_mass import Bump, bumps

MIN_EXCESS = 0.01  # E, share of all people
MIN_CONTRAST = 0.3  # E/S, share of the bump above its saddle
COUNTED_ERRORS = 1.5  # E in its standard errors

Redraw = Callable[[NDArray[np.float64], int], NDArray[np.float64]]


@dataclass(frozen=True)
class Bar:
    """What a bump must reach to be counted.

    Attributes
    ----------
    height : float
        Of the highest bump (E/√S), or none is counted.
    error : float
        Standard error of E that is taken for a bump whose own is not known.
    """

    height: float
    error: float


def unimodal(density: NDArray[np.float64]) -> NDArray[np.float64]:
    """The density without any bump but the greatest, of sum one.

    Each cell keeps what it has as far as it is joined to the peak at that level: the greatest
    lowest point of all ways there (greyscale reconstruction; Vincent 1993).
    """
    level = np.zeros_like(density)
    peak = np.unravel_index(int(density.argmax()), density.shape)
    level[peak] = density[peak]
    while True:  # ends: it only grows, and never beyond the density
        grown = np.minimum(density, maximum_filter(level, size=3, mode="constant"))
        if (grown == level).all():
            return np.asarray(level / level.sum(), dtype=np.float64)
        level = grown


def noise_bar(density: NDArray[np.float64], redraw: Redraw, n_throws: int) -> float:
    """How high the highest bump is, on average, that noise makes of a one-bump density.

    Parameters
    ----------
    density : ndarray
    redraw : callable
        The density fitted to people drawn from the first argument, by the throw.
    n_throws : int
    """
    null = unimodal(density)
    heights = [max((b.height for b in bumps(redraw(null, throw))[1:]), default=0.0) for throw in range(n_throws)]
    return float(np.mean(heights))


def candidates(found: Sequence[Bump]) -> list[Bump]:
    """Bumps that would matter if they were real: E >= .01 and E/S >= .3."""
    return [bump for bump in found[1:] if bump.excess >= max(MIN_EXCESS, MIN_CONTRAST * bump.mass)]


def count(found: Sequence[Bump], bar: Bar, errors: Sequence[float] | None = None) -> list[Bump]:
    """The bumps that are clusters when nobody said how many there are; the whole is always one.

    The highest of the candidates must pass the bar; then all those count whose E is one and a
    half of its standard errors.

    Parameters
    ----------
    found : sequence of Bump
        As `bumps` gives them.
    bar : Bar
    errors : sequence of float, optional
        Standard error of E of each of the `candidates`; by default the bar's.
    """
    able = candidates(found)
    own = [bar.error] * len(able) if errors is None else errors
    clear = [bump for bump, error in zip(able, own, strict=True) if bump.excess >= COUNTED_ERRORS * error]
    return [found[0], *(clear if max((bump.height for bump in clear), default=-inf) >= bar.height else [])]
