"""The smooth field over the fine grid, estimated from reports through shifted coarse grids."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from clustering.density.cell_centres import RegionGeometry
from clustering.density.label_map import region_totals
from clustering.rounds.decoders import Decoder
from clustering.rounds.tally import Tally
from sfumato.records.encodings import shift_of
from sfumato.specs import ShiftedGridEncoding

SAMPLING_VARIANCE = 0.02  # sampling variance of the devices, added to v, for a cell of typical mass


def field(encoding: ShiftedGridEncoding, decoder: Decoder, tally: Tally) -> NDArray[np.float64]:
    """Return F, the estimated mass of the coarse cells that contain each fine cell, averaged over shifts.

    F(x) = sum_g (n_g / N) f_g[cell of x under shift g], so E F = T * f with
    T(Δ) = prod (1 - |Δ_i|/w)+ and Var F is about v/N everywhere. A shift without reports
    has weight zero. Without any report the field is zero.

    Returns
    -------
    ndarray of the encoding's fine shape, float64
        Along the last axis, the categories of its attribute, if it has one.
    """
    frequencies = decoder.frequencies(tally)
    weights = tally.reports / max(tally.n_reports, 1)
    total = np.zeros(encoding.fine_shape)
    for slot in range(encoding.n_slots):
        total += weights[slot] * frequencies[slot][coarse_symbols(encoding, slot)]
    return total


@lru_cache(maxsize=64)  # each refit of a round needs those of all slots
def coarse_symbols(encoding: ShiftedGridEncoding, slot: int) -> NDArray[np.int64]:
    """Return the symbol of each fine cell, and of each category, in a slot: int64 of the encoding's fine shape.

    The array is shared, and so is read-only.
    """
    fine = np.arange(encoding.fine_cells, dtype=np.int64)
    base = encoding.symbols_along
    along = [(fine + shift) // encoding.shifts % n for shift, n in zip(shift_of(encoding, slot), base, strict=True)]
    index = np.zeros((1,) * encoding.n_features, dtype=np.int64)
    for part, n_coarse in zip(np.ix_(*along), base, strict=True):
        index = index * n_coarse + part
    for n_categories in encoding.categories:
        index = index[..., None] * n_categories + np.arange(n_categories)
    index.setflags(write=False)
    return index


def size_errors(
    encoding: ShiftedGridEncoding,
    decoder: Decoder,
    tally: Tally,
    labels: NDArray[np.int64],
    density: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return standard errors of the shares of regions under a fitted density.

    The reports alone estimate region A by sum_g (n_g/N) sum_cells b f_g[cell], where b is the
    fraction of the coarse cell's fine cells in A. The mechanism gives its exact variance,
    including sampling (`Decoder.standard_errors`). The difference from the density is added:
        error² = variance + (estimate from reports - same sum under the density)².
    In simulations of seven sets of 15,000 and 150,000 points at epsilon .25 to 4, 1.3 % of
    true shares were more than two errors away. No set exceeded 1.1 errors in root mean square.

    Parameters
    ----------
    encoding : ShiftedGridEncoding
    decoder : Decoder
    tally : Tally
    labels : ndarray of the encoding's fine shape, int64
        0 .. n-1.
    density : ndarray of the same shape
        Sums to one.

    Returns
    -------
    ndarray of shape (n,), float64
    """
    k, sizes = encoding.n_symbols, region_totals(labels, density)
    n_regions = len(sizes)
    frequencies = decoder.frequencies(tally)
    variance, misfit = np.zeros(n_regions), np.zeros(n_regions)
    for slot in range(encoding.n_slots):
        symbols = coarse_symbols(encoding, slot).ravel()
        residual = frequencies[slot] - np.bincount(symbols, weights=density.ravel(), minlength=k)
        whole = np.bincount(symbols, minlength=k)
        parts = np.bincount(labels.ravel() * k + symbols, minlength=n_regions * k).reshape(n_regions, k)
        b = parts / np.maximum(whole, 1)
        # A coarse cell outside the bounds is empty, so its noise is spread over all regions.
        outside = whole == 0
        total = b.sum(axis=1) + outside.sum() * sizes
        squares = (b * b).sum(axis=1) + outside.sum() * sizes**2
        share = tally.reports[slot] / tally.n_reports
        variance += share * decoder.standard_errors(squares - total**2 / k, total, sizes, tally.n_reports) ** 2
        misfit += share * (b @ residual)
        misfit += share * residual[outside].sum() * sizes
    return np.asarray(np.sqrt(variance + misfit**2), dtype=np.float64)


def centre_errors(
    encoding: ShiftedGridEncoding,
    decoder: Decoder,
    tally: Tally,
    labels: NDArray[np.int64],
    density: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return standard errors of the centres of mass of regions, for fixed regions.

    The derivative of a centre c = sum x f / sum f over region A is sum (x - c) / S f, a weighted
    sum like a share (`size_errors`). `RegionGeometry` has the derivative along a circle. The error combines the
    mechanism's variance, the misfit of density and reports, sampling of devices, and the unknown position within a fine
    cell. It is at most the region's width. A category is no coordinate.

    Returns
    -------
    ndarray of shape (n, n_features), float64
        Errors in units of the box, [0, 1].
    """
    k, n_features = encoding.n_symbols, encoding.n_features
    frequencies = decoder.frequencies(tally)
    places = RegionGeometry.of(labels, density, encoding.circles)
    variance, misfit = np.zeros(places.centres.shape), np.zeros(places.centres.shape)
    for slot in range(encoding.n_slots):
        symbols = coarse_symbols(encoding, slot).ravel()
        residual = frequencies[slot] - np.bincount(symbols, weights=density.ravel(), minlength=k)
        whole = np.bincount(symbols, minlength=k)
        pairs, n_regions = labels.ravel() * k + symbols, len(places.sizes)
        share = tally.reports[slot] / tally.n_reports
        for axis in range(n_features):
            sums = np.bincount(pairs, weights=places.weights[:, axis], minlength=n_regions * k)
            b = sums.reshape(n_regions, k) / np.maximum(whole, 1)
            squares, totals = (b * b).sum(axis=1), b.sum(axis=1)
            variance[:, axis] += share * decoder.spread_variance * (squares - totals**2 / k).clip(0) / tally.n_reports
            misfit[:, axis] += share * (b @ residual)
    return places.errors(variance + misfit**2, tally.n_reports)[:, :n_features]
