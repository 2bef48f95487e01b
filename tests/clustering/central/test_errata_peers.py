"""Test that the errors of diffprivlib 0.6.6 in docs/errata.md are not present here.

The formulas of its `models/k_means.py` are repeated here, so the library is not needed.
"""

from math import cbrt, sqrt

import numpy as np
import pytest

from clustering.central.cells import NearestCells
from clustering.central.queries import Shares
from sfumato.privacy.accounting import NANO
from sfumato.specs import LATTICE
from sfumato.specs.central import DpKmeans, PrivateKmeans
from tests.clustering.central.journals import curator_of
from tests.clustering.central.test_errata_central import blobs, costs, run_recorded

MIDDLES = np.array([[LATTICE // 4, LATTICE // 2], [LATTICE - 1, LATTICE - 1]], dtype=np.int64)
RADII = np.array([LATTICE // 8, LATTICE // 8], dtype=np.int64)


def steps_of_the_peer(n_records: int, epsilon: float, clusters: int, d: int) -> int:
    """Return the number of steps as `KMeans._calc_iters` does."""
    rho = 0.225
    per_step = sqrt(500 * clusters**3 / n_records**2 * (d + cbrt(4 * d * rho**2)) ** 3)
    return int(max(min(epsilon / per_step, 7), 2))


class TestDiffprivlib:
    def test_a_cluster_without_records_is_answered_with_noise_like_any_other(self) -> None:
        """In diffprivlib, an empty cluster keeps its centre exactly, and one record moves it."""
        points = np.full((50, 2), LATTICE // 4)
        shares = Shares(NANO // 2, NANO // 4, NANO // 4)
        answers = [curator_of(points, seed=seed).sums(NearestCells(MIDDLES), MIDDLES, RADII, shares) for seed in (1, 2)]
        assert (NearestCells(MIDDLES).index(points.astype(np.int32)) == 0).all()
        for answer in answers:
            assert (answer.residuals[1] != 0).all()
        assert (answers[0].residuals[1] != answers[1].residuals[1]).all()

    def test_the_number_of_steps_tells_of_no_record(self) -> None:
        """In diffprivlib, `n_iter_` depends on the exact number: record 6,884 adds a step."""
        assert [steps_of_the_peer(n, 1.0, 8, 2) for n in (6883, 6884)] == [2, 3]
        points = blobs(6884)
        for params in (DpKmeans(1.0, 8), PrivateKmeans(1.0, 8)):
            _, all_of_them = run_recorded(params, points)
            _, one_less = run_recorded(params, points[1:])
            assert costs(one_less)[:2] == costs(all_of_them)[:2]
        assert costs(run_recorded(DpKmeans(1.0, 8), points[1:])[1]) == costs(run_recorded(DpKmeans(1.0, 8), points)[1])

    @pytest.mark.parametrize("n", [0, 1, 4])
    def test_fewer_records_than_clusters_are_no_error(self, n: int) -> None:
        """In diffprivlib, the error contains the exact number of records."""
        document, _ = run_recorded(DpKmeans(1.0, 5), blobs(5)[:n])
        assert np.isfinite(document["centroids"]).all()

    def test_a_record_moves_a_sum_by_no_more_than_its_noise_is_made_for(self) -> None:
        """In diffprivlib, a value in [40, 41] is added unclipped, with 41 times too little noise."""
        lower, upper = 40.0, 41.0
        assert max(abs(lower), abs(upper)) / (upper - lower) == 41
        shares = Shares(32 * NANO - 2, 1, 1)
        points = np.random.default_rng(0).integers(0, LATTICE, (20, 2)).astype(np.int32)
        for at in ([0, 0], [LATTICE - 1, 0], [LATTICE - 1, LATTICE - 1]):
            more = np.concatenate([points, [at]]).astype(np.int32)
            without, with_it = (
                curator_of(records, 32 * NANO, seed=3).sums(NearestCells(MIDDLES), MIDDLES, RADII, shares).residuals
                for records in (points, more)
            )  # with equal noise, which cancels in the difference
            assert np.abs(with_it - without).sum() <= RADII[0]
