"""Test clusters that are counted from noisy pieces, and the agreement of refits that count them again."""

import numpy as np
import pytest

from clustering.central.private_kmeans import counted_pieces
from clustering.central.private_kmeans.counted_pieces import agreement_of_counts, merge_step, shrink_covariances
from clustering.central.private_kmeans.repair import Clusters, Step
from clustering.centroids.weighted_kmeans import weighted_kmeans
from clustering.random import PublicWords

M = 8


def step_of(points: np.ndarray, k: int, noise: float, rng: np.random.Generator, *, apart: float = 0.0) -> Step:
    """Return k pieces of the points. An element of a covariance has this noise, in mean variances of a piece."""
    fit = weighted_kmeans(points, np.ones(len(points)), k, PublicWords(1), restarts=1)
    covariances = np.array([np.cov(points[fit.labels == j].T, bias=True) for j in range(k)])
    spreads = np.sqrt(np.trace(covariances, axis1=1, axis2=2))
    deviations = np.full(k, noise * float((spreads**2).mean()) / points.shape[1])
    drawn = np.triu(rng.normal(size=covariances.shape))
    drawn += np.triu(drawn, 1).swapaxes(1, 2)
    centres = fit.centres + apart * rng.normal(size=fit.centres.shape)
    clusters = Clusters(centres, spreads, fit.masses, spreads)
    noisy = covariances + deviations[:, None, None] * drawn
    return Step(clusters, np.full(k, max(apart, 1e-6) ** 2), fit.masses, 1.0, noisy, deviations)


def groups_of(n_groups: int, rng: np.random.Generator, widths: np.ndarray, distance: float = 1.0) -> np.ndarray:
    """Return groups of 600 records around corners of a cube."""
    corners = np.array([[(j >> bit) & 1 for bit in range(M)] for j in range(n_groups)])
    return np.concatenate([distance * corner + rng.normal(size=(600, M)) * widths for corner in corners])


class TestShrinkage:
    def test_noise_of_round_pieces_is_removed(self) -> None:
        step = step_of(groups_of(8, np.random.default_rng(0), np.full(M, 0.1)), 24, 1.5, np.random.default_rng(1))
        found = shrink_covariances(step).covariances
        size = step.clusters.spreads.mean() ** 2 / M
        before, after = (((each - size * np.eye(M)) ** 2).sum() for each in (step.covariances, found))
        assert after < 0.1 * before
        assert np.trace(found, axis1=1, axis2=2) == pytest.approx(step.clusters.spreads**2)

    def test_a_shape_that_all_pieces_share_is_kept(self) -> None:
        widths = np.r_[0.3, np.full(M - 1, 0.1)]
        step = step_of(groups_of(8, np.random.default_rng(0), widths, 3.0), 8, 0.3, np.random.default_rng(1))
        found = shrink_covariances(step).covariances
        assert np.median(found[:, 0, 0]) == pytest.approx(0.09, rel=0.25)
        assert np.median(found[:, 1:, 1:].diagonal(axis1=1, axis2=2)) == pytest.approx(0.01, rel=0.25)

    def test_without_noise_each_piece_keeps_its_shape(self) -> None:
        step = step_of(groups_of(4, np.random.default_rng(0), np.full(M, 0.1)), 12, 0.0, np.random.default_rng(1))
        assert shrink_covariances(step).covariances == pytest.approx(step.covariances)

    def test_noise_far_above_the_variances_leaves_narrow_pieces(self) -> None:
        """The mean covariance has a negative trace in some steps, so it is no size of a piece."""
        rng = np.random.default_rng(3)
        steps = [step_of(groups_of(2, rng, np.full(M, 1e-4)), 6, 100.0, rng) for _ in range(8)]
        assert min(float(step.clusters.masses @ np.trace(step.covariances, axis1=1, axis2=2)) for step in steps) < 0
        for step in steps:
            assert np.linalg.norm(shrink_covariances(step).covariances) < np.linalg.norm(step.covariances)


class TestCount:
    def test_noise_of_covariances_does_not_change_the_number(self) -> None:
        """The noise is 1.5 times the variance of a piece. Without the shrinkage, the numbers differ."""
        rng = np.random.default_rng(3)
        points = groups_of(8, rng, np.full(M, 0.14))
        steps = [step_of(points, 40, 1.5, rng, apart=0.04) for _ in range(6)]
        assert [merge_step(shrink_covariances(step))[1].n_clusters for step in steps] == [8] * 6
        assert [merge_step(step)[1].n_clusters for step in steps] != [8] * 6


class TestAgreement:
    def index(self, distance: float, noise: float, apart: float) -> float:
        rng = np.random.default_rng(5)
        step = shrink_covariances(step_of(groups_of(4, rng, np.full(M, 0.14), distance), 16, noise, rng, apart=apart))
        return agreement_of_counts(step, merge_step(step)[0].centres, PublicWords(2)).index

    def test_clear_clusters_are_counted_equally(self) -> None:
        assert self.index(1.2, 0.5, 0.02) > 0.98

    def test_an_uncertain_number_lowers_the_agreement(self) -> None:
        assert self.index(0.53, 1.5, 0.05) < 0.85

    def test_a_refit_has_the_noise_of_the_round(self) -> None:
        """All records of a cluster are equal, so that the refit has nothing but noise."""
        centres = np.random.default_rng(0).random((40, M))
        deviations = np.full(40, 2e-5)
        clusters = Clusters(centres, np.full(40, 1e-3), np.full(40, 500.0), np.full(40, 1e-3))
        step = Step(clusters, np.full(40, 1e-6), np.full(40, 500.0), 81.0, np.zeros((40, M, M)), deviations)
        found = counted_pieces._find_again(step, np.repeat(centres, 40, axis=0), PublicWords(1))
        nearest = ((found.clusters.centres[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
        assert sorted(nearest) == list(range(40))
        assert (found.clusters.centres - centres[nearest]).std() == pytest.approx(1e-3, rel=0.15)
        assert found.covariances.std() == pytest.approx(2e-5, rel=0.15)
        assert (found.counts - 500).std() == pytest.approx(9, rel=0.35)
        assert (found.covariances == found.covariances.swapaxes(1, 2)).all()
