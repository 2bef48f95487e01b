"""A concentrated block: queries with Gaussian noise, charged (epsilon, delta) once, as a whole.

The block has a rho, the largest that its charge covers, and every query in it takes an integer number
of pico-rho. The rhos of adaptive queries add up. Shares may depend on earlier answers, because their sum
has a limit that is fixed in advance (Smith and Thakurta 2022, Gaussian filters).

Noise of variance s^2 / (2 rho) + 3 on a value of sensitivity s costs rho; see
`sfumato.privacy.gaussian_privacy`. Several values cost no more if one record's changes, each divided by
its s, have an L2 norm of at most 1. The records of one user multiply that norm by up to `max_per_user`,
so the first term is multiplied by its square.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import isqrt, sqrt
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import Cells, Domain, NearestCells
from clustering.central.mapped_records import MappedRecords, RecordMap
from clustering.central.narrowing import Bounds, FeatureHistograms
from clustering.central.noise import MAX_SIGMA, GaussianNoise, Noise
from clustering.central.profile_tables import SCORE_UNITS, ProfileTables, check_shares, exact_scores
from clustering.central.projection import Projection
from clustering.central.queries import (
    PRODUCT_PARTS,
    RADIUS_PARTS,
    CellMoments,
    Exact,
    Query,
    RecordSource,
    Second,
    check_centres,
    compute_digest,
    exact_counts,
    exact_sums,
)
from clustering.errors import BlockOverdrawn
from sfumato.errors import InvalidSpec
from sfumato.privacy.gaussian_privacy import ADDED_VARIANCE, PICO
from sfumato.specs import LATTICE

MAX_PLACE = 1 << 27  # bound of a coordinate of a projected centre; sums of squares fit into 64 bits

Release = Callable[[Query, Exact, Noise], NDArray[np.int64]]


class Rho(NamedTuple):
    """Cost of each part of a `moments` query, in pico-rho. A part of cost 0 is omitted."""

    sums: int = 0
    counts: int = 0
    seconds: int = 0


class Moments(NamedTuple):
    """Noisy moments of the residuals of each cell, clipped to the cell's radius, in feature ranges.

    An omitted part is empty.
    """

    sums: NDArray[np.float64]  # (k, d)
    counts: NDArray[np.float64]  # (k,)
    seconds: NDArray[np.float64]  # squares (k,), or products (k, d, d)


class ConcentratedBlock:
    """Queries under Gaussian differential privacy. `Curator.open_block` charges for the block.

    Parameters
    ----------
    rho_pico : int
        Maximum total cost of the block's queries, in pico-rho.
    records : RecordSource
    release : callable
        The curator's method that charges a query, adds noise and stores the answer. A query in a
        block has no further cost in epsilon or delta.
    domain : Domain
        The public set of possible records before any projection.
    space : tuple of RecordMap
        The maps of the records so far, as public inputs of each query.
    """

    def __init__(
        self,
        rho_pico: int,
        records: RecordSource,
        release: Release,
        domain: Domain,
        space: tuple[RecordMap, ...] = (),
    ) -> None:
        self._records = records
        self._release = release
        self.domain = domain
        self._left = [rho_pico]  # shared with the projections of the block
        self._projection: Projection | None = None
        self._space = space

    @property
    def n_features(self) -> int:
        """Return the number of features d, or of coordinates of a projection."""
        return self._records.n_features

    @property
    def max_per_user(self) -> int:
        """Return the public maximum number of records of one user. Noise grows with it."""
        return self._records.max_per_user

    @property
    def left_pico(self) -> int:
        """Return the remaining pico-rho."""
        return self._left[0]

    def project(self, projection: Projection) -> Self:
        """Return the same block over projected records. Both spend the same rho."""
        block = type(self)(0, MappedRecords(self._records, projection), self._release, self.domain)
        block._left, block._projection, block._space = self._left, projection, (*self._space, projection)
        return block

    def narrow(self, records: RecordSource, bounds: Bounds) -> Self:
        """Return the same block over records scaled by public bounds. Both spend the same rho."""
        block = type(self)(0, records, self._release, replace(self.domain, is_ball=False))
        block._left, block._space = self._left, (*self._space, bounds)
        return block

    def deviation(self, rho_pico: int) -> float:
        """Return the standard deviation of the noise of counts. Public, no cost."""
        return sqrt(unit_variance(rho_pico, self._records.max_per_user) + ADDED_VARIANCE)

    def moment_deviation(self, rho_pico: int) -> float:
        """Return the standard deviation of the noise of sums, at a radius of 1. Public, no cost.

        The same number is that of squares and products. `ADDED_VARIANCE` is below 2^-38 in these units.
        """
        return sqrt(unit_variance(rho_pico, self._records.max_per_user))

    def to_places(self, centres: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the lattice places of centres, clipped to the box unless the records are projected."""
        low, high = (0, LATTICE - 1) if self._projection is None else (-MAX_PLACE, MAX_PLACE)
        return np.asarray(np.clip(np.floor(centres * LATTICE), low, high), dtype=np.int64)

    def counts(self, cells: Cells, rho_pico: int) -> NDArray[np.int64]:
        """Return noisy numbers of records in disjoint cells; see `Curator.counts`."""
        ones = np.ones(cells.n_cells, dtype=np.int64)
        return self._answer("counts", rho_pico, ones, (cells,), exact_counts(self._records, cells))

    def histograms(self, histograms: FeatureHistograms, rho_pico: int) -> NDArray[np.int64]:
        """Return noisy histograms of the first d features: (d n_bins,).

        The d histograms cost `rho_pico` together. One record changes one count of each by 1.
        """
        ones = np.ones(histograms.n_features * histograms.n_bins, dtype=np.int64)

        def exact() -> NDArray[np.int64]:
            return self._records.total(histograms)[0]

        return self._answer("histograms", rho_pico, ones, (histograms,), exact, n_changes=histograms.n_features)

    def profile_tables(self, tables: ProfileTables, rho_pico: int) -> NDArray[np.int64]:
        """Return noisy counts by cluster and value; see `Curator.profile_tables`. All tables cost `rho_pico`."""
        ones = np.ones(tables.n_values, dtype=np.int64)

        def exact() -> NDArray[np.int64]:
            return self._records.total(tables)[0]

        return self._answer("tables", rho_pico, ones, (tables,), exact, n_changes=len(tables.columns))

    def profile_scores(self, tables: ProfileTables, shares: NDArray[np.int64], rho_pico: int) -> NDArray[np.int64]:
        """Return the noisy association of each attribute; see `Curator.profile_scores`. All cost `rho_pico`."""
        check_shares(tables, shares)
        m = len(tables.columns)

        def exact() -> NDArray[np.int64]:
            return exact_scores(tables.split(self._records.total(tables)[0]), shares)

        sensitivities = np.full(m, SCORE_UNITS, dtype=np.int64)
        return self._answer("scores", rho_pico, sensitivities, (tables, shares), exact, n_changes=m)

    def moments(
        self,
        places: NDArray[np.int64],
        radii: NDArray[np.float64],
        rho: Rho,
        second: Second = "squares",
        cells: Cells | None = None,
    ) -> Moments:
        """Return noisy sums of clipped residuals for each cell, with counts and second moments.

        The residual of a record from its cell's centre is scaled down to the cell's radius R in L2.
        In units of R, one record changes the sum of one cell by at most 1 in L2, its count by 1, its
        sum of squares by at most 1, and its sum of products by at most 1 in the Frobenius norm.
        An upper triangle holds that norm if off-diagonal products weigh sqrt(2), so their noise is
        less by this factor. Total cost: the sum of `rho`.

        Parameters
        ----------
        places : ndarray of shape (n_cells, d), int64
            Centres as lattice places.
        radii : ndarray of shape (n_cells,), float64
            In feature ranges. Rounded to the lattice.
        rho : Rho
        second : {"squares", "products"}
        cells : Cells, optional
            By default, each record belongs to the nearest centre.

        Returns
        -------
        Moments

        Raises
        ------
        BlockOverdrawn
            Less rho than the cost is left.
        InvalidSpec
            A noise deviation would exceed `MAX_SIGMA`.
        ValueError
            See `check_centres`.
        """
        cells = NearestCells(places) if cells is None else cells
        k, d = check_centres(cells, places, self.n_features, None if self._projection is None else MAX_PLACE)
        limits = np.clip(np.rint(radii * LATTICE), 1, MAX_PLACE).astype(np.int64)
        exact = exact_sums(self._records, CellMoments(cells, places, limits, second))
        inputs = (cells, places, limits)
        sums, counts, seconds = np.empty((0, d)), np.empty(0), np.empty(0)
        scale = limits / LATTICE
        if rho.sums:
            parts = np.full(k * d, RADIUS_PARTS, dtype=np.int64)
            answer = self._answer("sums", rho.sums, parts, inputs, exact.residuals)
            sums = answer.reshape(k, d) * (scale / RADIUS_PARTS)[:, None]
        if rho.counts:
            answer = self._answer("counts", rho.counts, np.ones(k, dtype=np.int64), (cells,), exact.counts)
            counts = answer.astype(np.float64)
        if rho.seconds:
            parts = np.full(k, PRODUCT_PARTS**2, dtype=np.int64) if second == "squares" else product_sensitivities(k, d)
            answer = self._answer(second, rho.seconds, parts, inputs, exact.sizes)
            units = (scale / PRODUCT_PARTS) ** 2
            seconds = answer * units if second == "squares" else fill_triangles(answer.reshape(k, -1), d, units)
        return Moments(sums, counts, seconds)

    def _answer(
        self,
        description: str,
        rho_pico: int,
        sensitivities: NDArray[np.int64],
        inputs: tuple[Any, ...],
        exact: Exact,
        n_changes: int = 1,
    ) -> NDArray[np.int64]:
        """Deduct rho from the block and return the noisy or stored answer.

        `n_changes` is the squared L2 norm of one record's changes, each divided by its sensitivity.
        """
        unit = unit_variance(rho_pico // n_changes, self._records.max_per_user)
        if (
            unit * int(sensitivities.max(initial=1)) ** 2 > MAX_SIGMA**2 - ADDED_VARIANCE
        ):  # reject excessive noise before the charge
            raise InvalidSpec("epsilon is too small for a query with this maximum number of records per user")
        noise = GaussianNoise(unit, sensitivities)
        if rho_pico > self.left_pico:
            raise BlockOverdrawn(cost_pico=rho_pico, left_pico=self.left_pico)
        self._left[0] -= rho_pico
        digest = compute_digest(description, self._records.max_per_user, "rho", rho_pico, *self._space, *inputs)
        return self._release(Query(description, 0, len(sensitivities), digest, rho_pico=rho_pico), exact, noise)


def unit_variance(rho_pico: int, max_per_user: int) -> Fraction:
    """Return the noise variance per squared sensitivity for a query that costs this rho, exactly."""
    if rho_pico < 1:
        raise ValueError("a query in a block must cost at least one pico-rho")
    return Fraction(max_per_user**2 * PICO, 2 * rho_pico)


def product_sensitivities(n_cells: int, n_features: int) -> NDArray[np.int64]:
    """Return the sensitivities of upper triangles by rows: P^2 on diagonals, P^2 / sqrt(2) rounded up elsewhere.

    The squared changes of a triangle, divided by their squared sensitivities, add up to at most the
    squared Frobenius norm of the matrix divided by P^4, because each off-diagonal product occurs twice
    in the matrix.
    """
    rows, columns = np.triu_indices(n_features)
    aside = isqrt(PRODUCT_PARTS**4 // 2 - 1) + 1
    return np.tile(np.where(rows == columns, PRODUCT_PARTS**2, aside).astype(np.int64), n_cells)


def fill_triangles(triangles: NDArray[np.int64], n_features: int, units: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return symmetric matrices from upper triangles by rows, times the unit of each: (k, d, d)."""
    rows, columns = np.triu_indices(n_features)
    matrices = np.empty((len(triangles), n_features, n_features))
    matrices[:, rows, columns] = matrices[:, columns, rows] = triangles * units[:, None]
    return matrices
