"""Shares of the clusters in one window, by regions of a pooled map."""

import numpy as np
from numpy.typing import NDArray

from clustering.density.label_map import region_totals
from clustering.density.shifted_field import coarse_symbols
from clustering.series.channels import Observation


def window_shares(
    observed: Observation, labels: NDArray[np.int64], density: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the share of the people of one window in each region, and its standard error.

    The share of a region under the pooled density is corrected by what the window's frequencies differ from that
    density: share + Σ b (f_window - f_pool), where b is the part of a coarse cell that lies in the region. So noise of
    other windows enters through the part of the correction that the grid does not resolve alone. The error is that of
    the mechanism and of sampling in this window.

    Parameters
    ----------
    observed : Observation
        What the window released.
    labels : ndarray of shape (fine_cells,) * n_features, int64
        0 .. n-1.
    density : ndarray of the same shape
        Sums to one.

    Returns
    -------
    shares, errors : ndarray of shape (n,), float64
        Shares are in [0, 1]; estimates outside are moved to the limits.
    """
    encoding, n_reports = observed.encoding, max(observed.n_reports, 1)
    frequencies, k = observed.frequencies, encoding.n_symbols
    frequencies = frequencies + (1 - frequencies.sum(axis=1, keepdims=True)) / k  # people inside are rounded
    shares = region_totals(labels, density)
    n_regions = len(shares)
    corrected, variance = shares.copy(), np.zeros(n_regions)
    for slot, part in enumerate(observed.reports / n_reports):
        symbols = coarse_symbols(encoding, slot).ravel()
        whole = np.bincount(symbols, minlength=k)
        cells = np.bincount(labels.ravel() * k + symbols, minlength=n_regions * k).reshape(n_regions, k)
        b = cells / np.maximum(whole, 1) + np.where(
            whole == 0, shares[:, None], 0.0
        )  # noise of cells outside is spread
        residual = frequencies[slot] - np.bincount(symbols, weights=density.ravel(), minlength=k)
        corrected += part * (b @ residual)
        spreads, totals = (b**2).sum(axis=1) - b.sum(axis=1) ** 2 / k, b.sum(axis=1)
        variance += part * observed.noise.standard_errors(spreads, totals, shares, n_reports) ** 2
    return np.clip(corrected, 0.0, 1.0), np.sqrt(variance)
