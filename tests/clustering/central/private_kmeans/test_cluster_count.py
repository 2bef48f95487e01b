"""Test the number of clusters that follows from noisy pieces."""

import numpy as np
import pytest
from sklearn.cluster import KMeans

from clustering.central.private_kmeans.cluster_count import (
    MOST,
    NoisyClusters,
    choose_pieces,
    count_clusters,
    merge_pieces,
)
from sfumato.model.precision import Verdict


def pieces_on_a_line(places: list[float], counts: list[float] | None = None, *, width: float = 0.01) -> NoisyClusters:
    """Return pieces in two features along the first, with noise of deviation 10 in their counts."""
    k = len(places)
    return NoisyClusters(
        np.stack([np.array(places), np.full(k, 0.5)], axis=1),
        np.full(k, 1e-8),
        np.array(counts or [1000.0] * k),
        np.full(k, 100.0),
        np.tile(width**2 * np.eye(2), (k, 1, 1)),
    )


HALVES = [0.1, 0.12, 0.5, 0.52, 0.9, 0.92]  # three clusters of two touching pieces


class TestCount:
    def test_touching_pieces_are_one_cluster(self) -> None:
        found = count_clusters(pieces_on_a_line(HALVES))
        assert found.groups.tolist() == [0, 0, 1, 1, 2, 2]
        assert (found.n_clusters, found.lower, found.upper, found.verdict) == (3, 3, 3, Verdict.RELIABLE)
        assert found.describe() == ()

    def test_one_group_of_touching_pieces_is_one_cluster_with_a_warning(self) -> None:
        found = count_clusters(pieces_on_a_line([0.5, 0.52, 0.54, 0.56]))
        assert (found.n_clusters, found.verdict) == (1, Verdict.DOUBTFUL)
        assert "there is one cluster" in found.describe()[0]

    @pytest.mark.parametrize("seed", [0, 1, 3, 4])  # with the largest jump alone: 3, 4, 3 and 4 clusters
    def test_pieces_of_one_skewed_cluster_have_no_clear_jump(self, seed: int) -> None:
        points = np.random.default_rng(seed).lognormal(0, 1, (6000, 4))
        labels = KMeans(16, n_init=1, random_state=seed).fit_predict(points)
        parts = [points[labels == piece] for piece in range(16)]
        counts = np.array([float(len(part)) for part in parts])
        covariances = np.stack([np.cov(part.T, bias=True) + 1e-6 * np.eye(4) for part in parts])
        centres = np.stack([part.mean(axis=0) for part in parts])
        found = count_clusters(NoisyClusters(centres, np.zeros(16), counts, np.full(16, 100.0), covariances))
        assert (found.n_clusters, found.lower, found.verdict) == (1, 1, Verdict.DOUBTFUL)

    @pytest.mark.parametrize(("groups", "found"), [(2, 1), (8, 1), (9, 9), (12, 12)])
    def test_few_clusters_need_a_larger_jump(self, groups: int, found: int) -> None:
        """Pieces at a ratio of 8 form groups at a ratio of 14.8."""
        starts = 0.06 * np.arange(groups)
        places = np.sort(np.concatenate([starts, starts + 0.02]))
        count = count_clusters(pieces_on_a_line(places.tolist(), width=0.005))
        assert count.n_clusters == found
        assert count.jump == pytest.approx(1.0 if found == 1 else 1.8, abs=0.1)
        assert count.verdict is not Verdict.RELIABLE

    def test_faint_and_tiny_pieces_are_not_clusters(self) -> None:
        found = count_clusters(pieces_on_a_line([*HALVES, 0.3, 0.7], [1000.0] * 6 + [35.0, 150.0]))
        assert found.n_clusters == 3
        assert found.groups[6:].tolist() == [-1, -1]

    @pytest.mark.parametrize("counts", [[-50.0, 0.0, 35.0], [0.0] * 3])
    def test_no_clear_piece_gives_one_cluster(self, counts: list[float]) -> None:
        found = count_clusters(pieces := pieces_on_a_line([0.1, 0.5, 0.9], counts))
        assert (found.n_clusters, found.lower, found.upper, found.verdict) == (1, 1, 3, Verdict.DOUBTFUL)
        merged = merge_pieces(found, pieces.centres, np.ones(3), np.full(3, 0.01))
        assert merged.centres == pytest.approx(np.array([[0.5, 0.5]]))

    def test_as_many_clusters_as_pieces_are_doubtful(self) -> None:
        found = count_clusters(pieces_on_a_line([0.1, 0.5, 0.9]))
        assert (found.n_clusters, found.verdict) == (3, Verdict.DOUBTFUL)
        assert "there may be more than 3" in found.describe()[0]

    def test_two_scales_give_an_interval(self) -> None:
        """Pairs at five and at twelve standard deviations; the pieces of a cluster touch."""
        starts = np.array([0.1, 0.155, 0.5, 0.555])
        places = np.sort(np.concatenate([starts + step for step in (-0.01, 0.0, 0.01)]))
        found = count_clusters(pieces_on_a_line(places.tolist(), width=0.008))
        assert found.lower <= 2 < 4 <= found.upper
        assert found.verdict is Verdict.DOUBTFUL
        assert f"{found.lower} to {found.upper} are plausible" in found.describe()[0]

    def test_noise_of_centres_does_not_separate_them(self) -> None:
        pieces = pieces_on_a_line([0.4, 0.45])
        assert count_clusters(pieces).n_clusters == 2
        assert count_clusters(pieces._replace(centre_noise=np.full(2, 0.05**2 / 3))).n_clusters == 1


class TestMerge:
    def test_merged_pieces_keep_their_moments(self) -> None:
        pieces = pieces_on_a_line(HALVES, [1000.0, 3000.0, *[1000.0] * 4])
        merged = merge_pieces(count_clusters(pieces), pieces.centres, pieces.counts, np.full(6, 0.01))
        assert merged.masses.tolist() == [4000, 2000, 2000]
        assert merged.centres[:, 0] == pytest.approx([0.115, 0.51, 0.91])
        assert merged.spreads[0] ** 2 == pytest.approx(0.01**2 + 3 / 16 * 0.02**2)


def test_number_of_pieces_follows_the_information() -> None:
    assert [choose_pieces(n, 1.0) for n in (0, 1000, 10**6)] == [2, 5, MOST]
    assert choose_pieces(10_000, 0.1) == 5
