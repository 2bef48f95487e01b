"""Fits of a density to the noisy counts of a grid over records, and the errors of its regions.

Refits repeat the same fit for synthetic counts, for halves of the counts and under other priors. Their random numbers
have a public seed, so a result depends on its query answers alone.
"""

from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from clustering.density.bump_fit import BumpFit, choose_search
from clustering.density.cell_centres import RegionGeometry
from clustering.density.deconvolution import Deconvolution, NoisyCounts, fit_log_density
from clustering.density.label_map import region_totals
from clustering.density.synthetic_rounds import HALVES, SEED


@dataclass(frozen=True)
class CountFit(BumpFit):
    """The density fitted to noisy counts.

    Attributes
    ----------
    counts : ndarray of shape (cells,) * n_features, int64
        Noisy numbers of records.
    scale : float
        Scale of a count's discrete Laplace noise; 0 for exact counts.
    n_records : float
        Estimated number of all records, at least 1.
    amplitude : float
        A of the prior.
    requested : int or None
        Requested number of clusters.
    """

    counts: NDArray[np.int64]
    scale: float
    n_records: float
    amplitude: float
    requested: int | None

    @property
    def clusters(self) -> int | None:
        """Return the requested number of clusters."""
        return self.requested

    @property
    def selects_scale(self) -> bool:
        """Return False: the length scale follows from the table of `choose_map_grid`."""
        return False

    def redraw(self, density: NDArray[np.float64], throw: int) -> Deconvolution:
        """Return the fit to synthetic counts from `density`."""
        counts = draw_counts(density, self.n_records, self.scale, throw, throw)
        return self._refit(counts, 1.0, self.length_scale, density)

    def halve(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the densities fitted to two halves of the counts; see `halve_counts`."""
        variances = self.n_records * self.density + noise_variance(self.scale)
        one, other = (
            self._refit(half, 0.5, self.length_scale, self.density).density
            for half in halve_counts(self.counts, variances)
        )
        return one, other

    def at_scale(self, length_scale: float) -> "CountFit":
        """Return the fit to the same counts under another ℓ."""
        fitted = self._refit(self.counts, 1.0, length_scale, self.density)
        return replace(self, fitted=fitted, length_scale=length_scale)

    def _refit(
        self, counts: NDArray[np.int64], share: float, length_scale: float, former: NDArray[np.float64]
    ) -> Deconvolution:
        """Return the fit to counts of a share of the records, which have this share of the noise variance."""
        likelihood = NoisyCounts(counts, share * noise_variance(self.scale), share * self.n_records)
        return _fit(likelihood, counts.shape, length_scale, self.amplitude, self.fitted.circles, former)

    def size_errors(self, labels: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return standard errors of the shares of regions: noise, the sampling of people, and misfit of the density.

        The counts alone estimate a region's share s by the sum of its counts, divided by the number n of
        records. The people are a sample, and the difference from the density is added:
            error² = variance + s (1-s) / n + (share from counts - s)².
        """
        sizes = region_totals(labels, self.density)
        n_cells = np.bincount(labels.ravel(), minlength=len(sizes))
        variances = noise_variance(self.scale) * ((1 - sizes) ** 2 * n_cells + sizes**2 * (labels.size - n_cells))
        misfit = region_totals(labels, self.counts / self.n_records - self.density)
        sampling = sizes * (1 - sizes).clip(0.0) / self.n_records
        errors = np.sqrt(variances / self.n_records**2 + sampling + misfit**2)
        return np.asarray(np.minimum(errors, 1.0), dtype=np.float64)

    def centre_errors(self, labels: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return standard errors of the centres of regions, in units of the box, for fixed regions.

        They cover noise, misfit, the sampling of records and the position within a cell
        (`RegionGeometry.errors`). Shape (n, n_features).
        """
        places = RegionGeometry.of(labels, self.density, self.fitted.circles)
        residuals = self.counts.ravel() / self.n_records - places.shares
        variances = np.empty(places.centres.shape)
        for axis in range(labels.ndim):
            weights = places.weights[:, axis]
            squares = np.bincount(places.labels, weights=weights**2)
            misfit = np.bincount(places.labels, weights=weights * residuals)
            variances[:, axis] = noise_variance(self.scale) / self.n_records**2 * squares + misfit**2
        return places.errors(variances, max(1, round(self.n_records)))


def fit_counts(
    counts: NDArray[np.int64],
    scale: float,
    n_records: float,
    *,
    length_scale: float,
    amplitude: float,
    clusters: int | None,
    circles: tuple[int, ...] = (),
) -> CountFit:
    """Fit a density to the noisy counts of a grid.

    Parameters
    ----------
    counts : ndarray of shape (cells,) * n_features, int64
        One to three features.
    scale : float
        Scale of a count's discrete Laplace noise.
    n_records : float
        Estimated number of all records, at least 1.
    length_scale, amplitude : float
        ℓ and A of the prior.
    clusters : int or None
        Requested number of clusters.
    circles : tuple of int
        Axes of periodic features.
    """
    likelihood = NoisyCounts(counts, noise_variance(scale), n_records)
    fitted = _fit(likelihood, counts.shape, length_scale, amplitude, circles, None)
    return CountFit(fitted, length_scale, counts, scale, n_records, amplitude, clusters)


def _fit(
    likelihood: NoisyCounts,
    shape: tuple[int, ...],
    length_scale: float,
    amplitude: float,
    circles: tuple[int, ...],
    former: NDArray[np.float64] | None,
) -> Deconvolution:
    search = choose_search(prod(shape), former)
    return fit_log_density(
        likelihood,
        shape,
        length_scale=length_scale,
        amplitude=amplitude,
        circles=circles,
        steps=search.steps,
        start=search.start,
        is_refit=search.is_refit,
    )


def noise_variance(scale: float) -> float:
    """Return the variance of discrete Laplace noise, 2r/(1-r)² with r = exp(-1/scale)."""
    return 0.5 / float(np.sinh(min(0.5 / scale, 350.0))) ** 2 if scale else 0.0


def draw_counts(
    density: NDArray[np.float64], n_records: float, scale: float, sample: int, coins: int | None
) -> NDArray[np.int64]:
    """Return counts of synthetic records of a density, with discrete Laplace noise from floats.

    Parameters
    ----------
    density : ndarray
        Sums to one.
    n_records : float
        Number of records.
    scale : float
    sample : int
        Number of the sample of records.
    coins : int or None
        Number of the sample of noise. None gives exact counts.
    """
    shares = density.ravel() / density.sum()
    counts = np.random.default_rng([SEED, sample]).multinomial(round(n_records), shares)
    if coins is not None and scale:
        failure = -np.expm1(-1 / scale)
        noise = np.random.default_rng([SEED, sample, 1 + coins]).geometric(failure, (2, counts.size))
        counts = counts + noise[0] - noise[1]
    return counts.astype(np.int64).reshape(density.shape)


def halve_counts(
    counts: NDArray[np.int64], variances: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return two independent halves of noisy counts, which sum to the counts.

    A half is count/2 + e and the other count/2 - e. With e of a quarter of the count's variance, the halves are
    uncorrelated, and each has half of the variance. This is post-processing of the released counts.

    Parameters
    ----------
    counts : ndarray of int64
    variances : ndarray of the same shape
        Variance of each count, from sampling and noise.
    """
    split = np.random.default_rng([SEED, HALVES]).standard_normal(counts.shape) * np.sqrt(variances) / 2
    half = np.rint(counts / 2 + split).astype(np.int64)
    return half, counts - half
