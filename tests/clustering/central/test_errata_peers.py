"""Peers in the central model: what docs/errata.md says of diffprivlib 0.6.6, and that it is not so here.

Formulas of its `models/k_means.py` are written out; the library itself is not needed.
"""

from math import cbrt, sqrt

import numpy as np
import pytest

from clustering.central.cells import NearestCells
from clustering.curator import Shares
from sfumato.accounting import NANO
from sfumato.specs import LATTICE
from sfumato.specs.central import DpKmeans, GatedGridKmeans
from tests.clustering.central.journals import curator_of
from tests.clustering.central.test_errata_central import blobs, costs, ran

MIDDLES = np.array([[LATTICE // 4, LATTICE // 2], [LATTICE - 1, LATTICE - 1]], dtype=np.int64)
RADII = np.array([LATTICE // 8, LATTICE // 8], dtype=np.int64)


def steps_of_the_peer(n_records: int, epsilon: float, clusters: int, d: int) -> int:
    """`KMeans._calc_iters`."""
    rho = 0.225
    per_step = sqrt(500 * clusters**3 / n_records**2 * (d + cbrt(4 * d * rho**2)) ** 3)
    return int(max(min(epsilon / per_step, 7), 2))


class TestDiffprivlib:
    def test_a_cluster_without_records_is_answered_with_noise_like_any_other(self) -> None:
        """There it keeps its centre to the last bit, and one record in it moves it."""
        points = np.full((50, 2), LATTICE // 4)
        shares = Shares(NANO // 2, NANO // 4, NANO // 4)
        answers = [curator_of(points, seed=seed).sums(NearestCells(MIDDLES), MIDDLES, RADII, shares) for seed in (1, 2)]
        assert (NearestCells(MIDDLES).index(points.astype(np.int32)) == 0).all()
        for answer in answers:
            assert (answer.residuals[1] != 0).all()
        assert (answers[0].residuals[1] != answers[1].residuals[1]).all()

    def test_the_number_of_steps_tells_of_no_record(self) -> None:
        """There it goes by the exact number: one record more of 6,883 is a step more, and `n_iter_` says so."""
        assert [steps_of_the_peer(n, 1.0, 8, 2) for n in (6883, 6884)] == [2, 3]
        points = blobs(6884)
        for params in (DpKmeans(1.0, 8), GatedGridKmeans(1.0, 8)):
            _, all_of_them = ran(params, points)
            _, one_less = ran(params, points[1:])
            assert costs(one_less)[:2] == costs(all_of_them)[:2]
        assert costs(ran(DpKmeans(1.0, 8), points[1:])[1]) == costs(ran(DpKmeans(1.0, 8), points)[1])

    @pytest.mark.parametrize("n", [0, 1, 4])
    def test_fewer_records_than_clusters_are_no_error(self, n: int) -> None:
        """There the error names their number."""
        document, _ = ran(DpKmeans(1.0, 5), blobs(5)[:n])
        assert np.isfinite(document["centroids"]).all()

    def test_a_record_moves_a_sum_by_no_more_than_its_noise_is_made_for(self) -> None:
        """There a value of [40, 41] is added as it is, and noise is for the bounds' width: 41 times too little."""
        lower, upper = 40.0, 41.0
        assert max(abs(lower), abs(upper)) / (upper - lower) == 41
        shares = Shares(32 * NANO - 2, 1, 1)
        points = np.random.default_rng(0).integers(0, LATTICE, (20, 2)).astype(np.int32)
        for at in ([0, 0], [LATTICE - 1, 0], [LATTICE - 1, LATTICE - 1]):
            more = np.concatenate([points, [at]]).astype(np.int32)
            without, with_it = (
                curator_of(records, 32 * NANO, seed=3).sums(NearestCells(MIDDLES), MIDDLES, RADII, shares).residuals
                for records in (points, more)
            )  # with the same noise, which the difference is free of
            assert np.abs(with_it - without).sum() <= RADII[0]
