"""The curator: the only access to records. It charges each query, then adds exact noise to the answer.

Neighbouring data sets differ by one record, present or absent. If the dataset names its users, they
differ by all records of one user, of which at most `max_per_user` are stored.

All answers are integers. Most have discrete Laplace noise of scale sensitivity * max_per_user / epsilon
and cost that epsilon under pure differential privacy. Queries in a concentrated block have discrete
Gaussian noise, and the block costs (epsilon, delta). Epsilons add up, and so do deltas.

Cells, centres and radii of a query are public: they follow from parameters and earlier answers.
Computation on answers is post-processing and costs nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clustering.central.cells import Cells, Domain, GridCells
from clustering.central.circles import CellsAlong, RecordCircles
from clustering.central.gaussian_block import ConcentratedBlock
from clustering.central.mapped_records import MappedRecords, RecordMap, Selection
from clustering.central.narrowing import Bounds, FeatureHistograms
from clustering.central.noise import MAX_SCALE, LaplaceNoise, Noise, laplace_variance
from clustering.central.privtree import decide_splits
from clustering.central.profile_tables import SCORE_UNITS, ProfileTables, check_shares, exact_scores
from clustering.central.queries import (
    CellSquares,
    CellSums,
    Exact,
    Journal,
    Query,
    RecordSource,
    Shares,
    Sums,
    check_centres,
    compute_digest,
    count_records,
    exact_counts,
    exact_sums,
)
from clustering.circles import DIAMETER
from clustering.edges import EdgeGrid
from clustering.errors import BudgetOverdrawn, DeltaOverdrawn
from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import NANO
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.gaussian_privacy import rho_of
from sfumato.specs import LATTICE
from sfumato.specs.attributes import Categorical

LARGEST = 1 << 60  # bound of an answer; larger noisy values are clamped after the noise
SQUARE_BITS = 20  # low bits dropped from squared distances, so that their sum fits into 64 bits


class Curator:
    """The only access to records.

    Parameters
    ----------
    records : RecordSource
    epsilon_nano : int
        Maximum total cost of the answers, in nano-epsilon.
    journal : Journal
    entropy : Entropy
        The system's entropy source. Only simulations pass a seeded one.
    delta_atto : int
        Maximum total cost in atto-delta. Only concentrated blocks cost delta.
    in_ball : bool
        Whether all records lie in the L2 ball in the box. Public. It reduces noise, and no guarantee depends on it.
    selection : Selection, optional
        The columns that the queries see. They are selected before anything else, and are inputs of every query.
    may_clip : bool
        Whether values outside of the bounds may have been moved to them. Public.

    Attributes
    ----------
    grids : list of EdgeGrid
        The released counts of regular grids so far, as shares.
    circles : RecordCircles
        The map of periodic features to points on circles; see `on_circles`.
    """

    def __init__(
        self,
        records: RecordSource,
        epsilon_nano: int,
        journal: Journal,
        entropy: Entropy,
        delta_atto: int = 0,
        in_ball: bool = False,
        selection: Selection | None = None,
        may_clip: bool = True,
    ) -> None:
        self._records: RecordSource = records if selection is None else MappedRecords(records, selection)
        self._selected: tuple[RecordMap, ...] = () if selection is None else (selection,)
        self._space = self._selected  # maps of the records so far
        self._budget = epsilon_nano
        self._delta_budget = delta_atto
        self._journal = journal
        self._entropy = entropy
        self._block: ConcentratedBlock | None = None
        self._queries: list[Query] = []
        self.domain = Domain(self.n_features, in_ball, () if selection is None else selection.blocks)
        self.circles = RecordCircles(self.n_features)
        self.may_clip = may_clip
        self.grids: list[EdgeGrid] = []
        self._spent_nano = self._spent_delta_atto = 0

    @property
    def n_features(self) -> int:
        """Return the number of features d."""
        return self._records.n_features

    @property
    def attributes(self) -> tuple[Categorical, ...]:
        """Return the attributes with their categories as the last features."""
        return tuple(block.attribute for block in self.domain.blocks)

    @property
    def max_per_user(self) -> int:
        """Return the public maximum number of records of one user. Noise grows with it."""
        return self._records.max_per_user

    @property
    def odometer(self) -> tuple[Query, ...]:
        """Return all queries charged so far, in order."""
        return tuple(self._queries)

    @property
    def spent_nano(self) -> int:
        """Return the cost of all queries so far, in nano-epsilon."""
        return self._spent_nano

    @property
    def left_nano(self) -> int:
        """Return the remaining budget in nano-epsilon."""
        return self._budget - self.spent_nano

    @property
    def spent_delta_atto(self) -> int:
        """Return the cost of all queries so far, in atto-delta."""
        return self._spent_delta_atto

    @property
    def left_delta_atto(self) -> int:
        """Return the remaining budget in atto-delta."""
        return self._delta_budget - self.spent_delta_atto

    def variance(self, sensitivity: int, epsilon_nano: int) -> float:
        """Return the noise variance of an answer with this sensitivity per record. Public, no cost."""
        return laplace_variance(self._scale(sensitivity, epsilon_nano))

    def deviation(self, epsilon_nano: int) -> float:
        """Return the standard deviation of noise at sensitivity 1, in the continuous limit. Public, no cost."""
        return float(2**0.5 * self.max_per_user * NANO / epsilon_nano)

    def count(self, epsilon_nano: int) -> int:
        """Return the noisy number of records, possibly negative. The sensitivity is 1."""
        return int(self._answer("count", epsilon_nano, 1, (), lambda: self._records.total(count_records)[0])[0])

    def counts(self, cells: Cells, epsilon_nano: int) -> NDArray[np.int64]:
        """Return the noisy number of records in each cell.

        Cells are disjoint, so one record changes one count by 1, and all counts together cost
        `epsilon_nano` (parallel composition).

        Parameters
        ----------
        cells : Cells
        epsilon_nano : int

        Returns
        -------
        ndarray of shape (n_cells,), int64
            Values may be negative.

        Raises
        ------
        BudgetOverdrawn
            Less than `epsilon_nano` is left.
        InvalidSpec
            The noise scale would exceed `MAX_SCALE`.
        """
        answer = self._answer("counts", epsilon_nano, cells.n_cells, (cells,), exact_counts(self._records, cells))
        grid = cells.inner if isinstance(cells, CellsAlong) else cells
        if isinstance(grid, GridCells) and answer.sum() > 0:
            n, whole = float(answer.sum()), [1 / size for size in grid.shape]
            shares, variance = answer.reshape(grid.shape) / n, self.variance(1, epsilon_nano)
            self.grids.append(EdgeGrid(shares, n, variance / n**2, 1 / n, [(each, each) for each in whole], whole))
        return answer

    def histograms(self, histograms: FeatureHistograms, epsilon_nano: int) -> NDArray[np.int64]:
        """Return noisy histograms of the first d features: (d n_bins,).

        One record changes d counts by 1, so each value has sensitivity d.
        """
        d = histograms.n_features
        sensitivities = np.full(d * histograms.n_bins, d, dtype=np.int64)

        def exact() -> NDArray[np.int64]:
            return self._records.total(histograms)[0]

        return self._answer("histograms", epsilon_nano, sensitivities, (histograms,), exact)

    def sums(self, cells: Cells, centres: NDArray[np.int64], radii: NDArray[np.int64], shares: Shares) -> Sums:
        """Return noisy sums of clipped residuals for each cell, with counts and sizes.

        The residual of a record from its cell's centre is scaled down to the cell's radius in L1, in
        whole lattice units. One record therefore changes one cell's sum by at most the radius in L1,
        its size by at most the radius, and its count by 1. Total cost: the sum of `shares`.

        Parameters
        ----------
        cells : Cells
        centres : ndarray of shape (n_cells, d), int64
            Lattice places.
        radii : ndarray of shape (n_cells,), int64
            R in lattice units, clipped to 1 .. d 2^20.
        shares : Shares
            Cost of each part. Each part is charged before its noise is drawn.

        Returns
        -------
        Sums

        Raises
        ------
        BudgetOverdrawn
            Less than the cost is left.
        InvalidSpec
            A noise scale would exceed `MAX_SCALE`.
        ValueError
            See `check_centres`.
        """
        k, d = check_centres(cells, centres, self.n_features)
        radii = np.clip(radii, 1, d * LATTICE)
        exact = exact_sums(self._records, CellSums(cells, centres, radii))
        inputs = (cells, centres, radii)
        residuals = self._answer("sums", shares.residuals, np.repeat(radii, d), inputs, exact.residuals)
        counts = self._answer("counts", shares.counts, k, (cells,), exact.counts)
        sizes = self._answer("sizes", shares.sizes, radii, inputs, exact.sizes) if shares.sizes else None
        return Sums(residuals.reshape(k, d), counts, sizes)

    def squares(self, cells: Cells, centres: NDArray[np.int64], epsilon_nano: int) -> NDArray[np.int64]:
        """Return noisy sums of squared distances from each cell's centre.

        One record changes one sum by at most d 2^20 units. This is sensitivity 4d on [-1, 1]^d.

        Parameters
        ----------
        cells : Cells
        centres : ndarray of shape (n_cells, d), int64
            Lattice places.
        epsilon_nano : int

        Returns
        -------
        ndarray of shape (n_cells,), int64
            In units of 2^20 squared lattice units, which are 2^-20 of a feature's squared range.
        """
        k, d = check_centres(cells, centres, self.n_features)

        def exact() -> NDArray[np.int64]:
            return self._records.total(CellSquares(cells, centres, SQUARE_BITS))[0]

        return self._answer("squares", epsilon_nano, np.full(k, d * LATTICE), (cells, centres), exact)

    def profile_tables(self, tables: ProfileTables, epsilon_nano: int) -> NDArray[np.int64]:
        """Return noisy counts of records by cluster and value, of all attributes: (tables.n_values,).

        One record changes one count of each of the m tables by 1, so each value has sensitivity m.
        """
        sensitivities = np.full(tables.n_values, len(tables.columns), dtype=np.int64)

        def exact() -> NDArray[np.int64]:
            return self._records.total(tables)[0]

        return self._answer("tables", epsilon_nano, sensitivities, (tables,), exact)

    def profile_scores(self, tables: ProfileTables, shares: NDArray[np.int64], epsilon_nano: int) -> NDArray[np.int64]:
        """Return the noisy association of each attribute with the clusters: (m,), in units of 2^-21 records.

        One record changes each of the m scores by at most 1 record, because the shares are public; see
        `clustering.central.profile_tables`. So each value has sensitivity m.

        Parameters
        ----------
        tables : ProfileTables
        shares : ndarray of shape (K,), int64
            Public shares of the clusters, as multiples of 2^-20 with sum 1.
        epsilon_nano : int
        """
        check_shares(tables, shares)
        m = len(tables.columns)

        def exact() -> NDArray[np.int64]:
            return exact_scores(tables.split(self._records.total(tables)[0]), shares)

        sensitivities = np.full(m, m * SCORE_UNITS, dtype=np.int64)
        return self._answer("scores", epsilon_nano, sensitivities, (tables, shares), exact)

    def halving_tree(self, epsilon_nano: int) -> NDArray[np.int64]:
        """Return the splits of a PrivTree: 1 or 0 for each node, as `build_tree` reads them.

        The cost does not depend on the depth; `clustering.central.privtree` has the proof. The tree
        contains no counts; counting its leaves is a separate query.
        """
        scale = self._scale(3, epsilon_nano)
        digest = compute_digest(scale.numerator, scale.denominator, *self._space)
        answer = self._charge(Query("halving tree", epsilon_nano, 1, digest))
        if answer is None:
            answer = self._store(decide_splits(self._records.points, scale, self._entropy))
        return answer

    def open_block(self, epsilon_nano: int, delta_atto: int) -> ConcentratedBlock:
        """Charge (epsilon, delta) and return a block of queries with Gaussian noise.

        The block's rho is the largest that (epsilon, delta) covers; see `sfumato.privacy.gaussian_privacy`. Its
        queries appear in the odometer at no further cost. If `narrow` received a block, this is what is
        left of it, and nothing is charged.

        Raises
        ------
        InvalidSpec
            The largest rho is 0. Nothing is charged.
        BudgetOverdrawn, DeltaOverdrawn
            Less than the cost is left.
        """
        if self._block is not None:
            block, self._block = self._block, None
            return block
        rho_pico = rho_of(epsilon_nano, delta_atto)
        if rho_pico == 0:
            raise InvalidSpec("this epsilon and delta are too small for concentrated answers")
        digest = compute_digest("concentrated block", self.max_per_user, rho_pico)
        if self._charge(Query("concentrated block", epsilon_nano, 0, digest, delta_atto)) is None:
            self._store(np.empty(0, dtype=np.int64))  # the block has no values of its own
        return ConcentratedBlock(rho_pico, self._records, self._release, self.domain, self._space)

    def narrow(self, bounds: Bounds, block: ConcentratedBlock | None = None) -> None:
        """Scale the records by public bounds for all later queries. No cost.

        A block that was opened before becomes that of the next `open_block`, over the scaled records.
        """
        self._records = MappedRecords(self._records, bounds)
        self._space = (*self._space, bounds)
        self.domain = replace(self.domain, is_ball=False)
        self._block = None if block is None else block.narrow(self._records, bounds)

    @contextmanager
    def on_circles(self, places: tuple[int, ...]) -> Iterator[RecordCircles]:
        """Map periodic features with these indices to points on circles, for the queries in the context. No cost."""
        before = self._records, self._space, self.domain, self.circles
        if places:
            self.circles = RecordCircles(self.n_features, places)
            self._records, self._space = MappedRecords(self._records, self.circles), (*self._space, self.circles)
            disks = tuple(self.circles.firsts.tolist())
            self.domain = replace(
                self.domain, n_features=self.circles.n_features, disks=disks, disk_radius=DIAMETER / 2
            )
        try:
            yield self.circles
        finally:
            self._records, self._space, self.domain, self.circles = before

    def _answer(
        self,
        description: str,
        epsilon_nano: int,
        sensitivities: int | NDArray[np.int64],
        inputs: tuple[Any, ...],
        exact: Exact,
    ) -> NDArray[np.int64]:
        """Charge a query with Laplace noise and return its noisy or stored answer.

        `sensitivities` is the number of values, each of sensitivity 1, or one sensitivity per value.
        """
        if isinstance(sensitivities, int):
            sensitivities = np.ones(sensitivities, dtype=np.int64)
        self._scale(int(sensitivities.max(initial=1)), epsilon_nano)  # reject an excessive scale before the charge
        noise = LaplaceNoise(Fraction(self.max_per_user * NANO, epsilon_nano), sensitivities)
        digest = compute_digest(description, self.max_per_user, *self._space, *inputs)
        return self._release(Query(description, epsilon_nano, len(sensitivities), digest), exact, noise)

    def _release(self, query: Query, exact: Exact, noise: Noise) -> NDArray[np.int64]:
        """Charge a query, compute its exact answer, add noise, store the sum and return it.

        All noisy numbers except PrivTree splits pass through this method.
        """
        answer = self._charge(query)
        if answer is None:
            noisy = exact() + noise.draw(self._entropy)
            answer = self._store(np.asarray(np.clip(noisy, -LARGEST, LARGEST), dtype=np.int64))
        return answer

    def _scale(self, sensitivity: int, epsilon_nano: int) -> Fraction:
        """Return the Laplace scale for a sensitivity. Raise InvalidSpec if it exceeds `MAX_SCALE`."""
        if epsilon_nano < 1:
            raise ValueError("a query must cost at least one nano-epsilon")
        scale = Fraction(sensitivity * self.max_per_user * NANO, epsilon_nano)
        if scale > MAX_SCALE:
            raise InvalidSpec("epsilon is too small for a query with this maximum number of records per user")
        return scale

    def _charge(self, query: Query) -> NDArray[np.int64] | None:
        """Charge the next query. Return its stored answer if it has one."""
        if query.epsilon_nano > self.left_nano:
            raise BudgetOverdrawn(cost_nano=query.epsilon_nano, left_nano=self.left_nano)
        if query.delta_atto > self.left_delta_atto:
            raise DeltaOverdrawn(cost_atto=query.delta_atto, left_atto=self.left_delta_atto)
        self._queries.append(query)
        self._spent_nano += query.epsilon_nano
        self._spent_delta_atto += query.delta_atto
        return self._journal.charge(len(self._queries) - 1, query)

    def _store(self, answer: NDArray[np.int64]) -> NDArray[np.int64]:
        """Store the answer to the latest query and return it."""
        self._journal.keep(len(self._queries) - 1, answer)
        return answer
