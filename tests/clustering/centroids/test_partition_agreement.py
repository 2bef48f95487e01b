"""Test the agreement of partitions with those of refits: clear and ambiguous data, and the calibration."""

import itertools

import numpy as np
import pytest

from clustering.centroids import partition_agreement
from clustering.centroids.partition_agreement import (
    AgreementRanges,
    PartitionAgreement,
    Population,
    calibrations,
    compare_partitions,
    draw_laplace,
    draw_normal,
    refit,
)
from clustering.centroids.piece_population import Pieces, agreement_of_errors, agreement_of_pieces, agreement_of_spreads
from clustering.centroids.verdict import OFTEN_POOR, rate
from clustering.centroids.weighted_kmeans import weighted_kmeans
from clustering.random import PublicWords
from clustering.simulate import simulate, simulate_central
from sfumato.model.precision import ExpectedLoss
from sfumato.specs import GridKmeans, PrivateKmeans

RNG = np.random.default_rng(5)
CLEAR = np.array([[0.2, 0.3], [0.7, 0.2], [0.5, 0.8]])


def clear_people(n, d=2):
    """Return three clusters; further features are copies."""
    points = CLEAR[RNG.integers(0, 3, n)] + RNG.normal(0, 0.05, (n, 2))
    return np.concatenate([points] * (d // 2), axis=1).clip(0, 1)


def crowd(n, d=2):
    """Return one round cluster."""
    return RNG.normal(0.5, 0.12, (n, d)).clip(0, 1)


def pieces_of(points, clusters):
    """Return the exact moments of k-means clusters."""
    fit = weighted_kmeans(points, np.ones(len(points)), clusters, PublicWords(1))
    covariances = np.array([np.cov(points[fit.labels == j].T) for j in range(clusters)])
    return Pieces(fit.centres, fit.masses, covariances, np.full(clusters, 1e-8))


class TestComparison:
    def test_equal_partitions_agree_and_shifted_ones_do_not(self) -> None:
        population = Population(RNG.random((2000, 2)), np.ones(2000))
        same = compare_partitions("cells", population, CLEAR, [CLEAR[[1, 2, 0]], CLEAR])
        assert (same.index, same.moved) == pytest.approx((1.0, 0.0))
        other = compare_partitions("cells", population, CLEAR, [CLEAR[:, ::-1], CLEAR, CLEAR[:1]])
        assert other.index < 0.6
        assert other.moved > 0.1

    def test_a_refit_prefers_the_better_of_its_starts(self) -> None:
        points = clear_people(1500)
        poor = np.array([[0.2, 0.3], [0.21, 0.3], [0.6, 0.5]])
        best = refit(Population(points, np.ones(len(points))), poor, PublicWords(0))
        assert np.sort(best[:, 0]) == pytest.approx(np.sort(CLEAR[:, 0]), abs=0.02)

    def test_deviates_have_their_distributions(self) -> None:
        # 20,000 deviates; the limits are six standard errors
        normal, laplace = draw_normal(PublicWords(1), 20_000), draw_laplace(PublicWords(2), 20_000)
        assert abs(normal.mean()) < 6 / 20_000**0.5
        assert normal.std() == pytest.approx(1, abs=6 * 0.5**0.5 / 20_000**0.5)
        assert np.abs(laplace).mean() == pytest.approx(1, abs=6 / 20_000**0.5)


class TestPieces:
    def test_two_halves_of_one_cluster_become_one_again(self) -> None:
        assert index_of_moments(pieces_of(crowd(6000, 8), 2)) < 0.5

    def test_separate_clusters_stay_separate(self) -> None:
        assert index_of_moments(pieces_of(clear_people(6000, 8), 3)) > 0.98

    @pytest.mark.parametrize(
        ("points", "clusters", "least", "most"),
        [(crowd(6000, 8), 2, 0, 0.9), (clear_people(6000, 8), 3, 0.98, 1)],
        ids=["one", "three"],
    )
    def test_spreads_alone_tell_one_cluster_from_several(self, points, clusters, least, most) -> None:
        pieces = pieces_of(points, clusters)
        spreads = np.sqrt(np.trace(pieces.covariances, axis1=1, axis2=2))
        found = agreement_of_spreads(pieces.centres, pieces.masses, spreads, pieces.centre_variances, PublicWords(1))
        assert least <= found.index <= most

    def test_noise_of_the_centres_lowers_the_agreement(self) -> None:
        indices = [
            agreement_of_errors(CLEAR, np.ones(3), np.full((3, 2), error), PublicWords(1)).index
            for error in (0.0, 0.05, 0.2)
        ]
        assert indices[0] == 1
        assert indices[0] > indices[1] > indices[2]


def index_of_moments(pieces):
    """Return the index of refits to a population with the moments of these pieces."""
    return agreement_of_pieces("moments", pieces, pieces.centres, PublicWords(1)).index


class TestCalibration:
    def test_estimates_increase_with_the_index_and_lie_in_their_interval(self) -> None:
        for source in calibrations():
            found = [PartitionAgreement(source, index, 0.0).expected() for index in np.linspace(-0.5, 1.0, 60)]
            for one, other in itertools.pairwise(found):
                assert one.value <= other.value
                assert one.lower <= other.lower
                assert one.upper <= other.upper

    def test_poor_agreement_is_rarer_with_a_higher_index(self) -> None:
        for source in calibrations():
            poor = [PartitionAgreement(source, index, 0.0).poor_share() for index in np.linspace(-0.5, 1.0, 60)]
            assert poor == sorted(poor, reverse=True)
            assert 0 <= poor[-1] <= poor[0] <= 1


class TestVerdict:
    @pytest.mark.parametrize(("source", "verdict"), [("cells", "reliable"), ("moments", "uncertain")])
    def test_moments_need_a_narrower_interval(self, source, verdict):
        rated = rate(ExpectedLoss(1.0, 1.0, 1.0), PartitionAgreement(source, 0.97, 0.0))
        assert rated["verdict"] == verdict
        assert rate(ExpectedLoss(1.0, 1.0, 1.0), PartitionAgreement(source, 1.0, 0.0))["verdict"] == "reliable"

    @pytest.mark.parametrize("source", ["centres", "rounds"])
    @pytest.mark.parametrize("index", [0.5, 0.97, 1.0])
    def test_sources_that_do_not_show_gaps_are_doubtful(self, source, index):
        rated = rate(ExpectedLoss(1.0, 1.0, 1.0), PartitionAgreement(source, index, 0.0))
        assert rated["verdict"] == "doubtful"
        assert OFTEN_POOR in rated["verdict_reason"]

    @pytest.mark.parametrize(("poor", "verdict"), [(0.03, "reliable"), (0.05, "doubtful")])
    def test_often_poor_agreement_is_doubtful(self, monkeypatch, poor, verdict):
        ranges = AgreementRanges([1.1], [0.98], [0.9], [1.0], [poor])
        monkeypatch.setattr(partition_agreement, "calibrations", lambda: {"cells": ranges})
        rated = rate(ExpectedLoss(1.0, 1.0, 1.0), PartitionAgreement("cells", 0.97, 0.0))
        assert rated["verdict"] == verdict
        assert (rated["verdict_reason"] == OFTEN_POOR) == (verdict == "doubtful")

    def test_the_worst_ground_decides_and_is_named(self):
        rated = rate(ExpectedLoss(2.5, 1.5, 3.0), PartitionAgreement("cells", 1.0, 0.0))
        assert rated["verdict"] == "doubtful"
        assert "loss" in rated["verdict_reason"]
        assert "Another run" not in rated["verdict_reason"]


class TestResults:
    @pytest.mark.parametrize(
        ("params", "points"),
        [
            (PrivateKmeans(1.0, clusters=3), crowd(20_000)),
            (PrivateKmeans(1.0, clusters=3), RNG.uniform(0.05, 0.95, (20_000, 3))),
            (PrivateKmeans(2.0, clusters=2), crowd(20_000, 8)),
            (PrivateKmeans(2.0, clusters=2, delta=1e-6), crowd(20_000, 8)),
            (GridKmeans(3.0, clusters=2), crowd(60_000)),
        ],
        ids=["round", "even", "round_8", "round_8_delta", "round_grid"],
    )
    def test_a_partition_by_chance_is_not_reliable(self, params, points) -> None:
        run = simulate if isinstance(params, GridKmeans) else simulate_central
        models = [run(params, points, seed=seed) for seed in range(3)]
        assert not any(model.verdict == "reliable" for model in models)
        assert all(model.expected_agreement.lower < 0.7 for model in models)
        assert any("nother run" in model.verdict_reason for model in models)

    @pytest.mark.parametrize(
        ("params", "d"),
        [
            (PrivateKmeans(1.0, clusters=3), 2),
            (PrivateKmeans(1.0, clusters=3, delta=1e-6), 8),
            (GridKmeans(4.0, clusters=3), 2),
        ],
        ids=str,
    )
    def test_clear_clusters_are_reliable_with_both_figures(self, params, d) -> None:
        run = simulate if isinstance(params, GridKmeans) else simulate_central
        model = run(params, clear_people(60_000 if isinstance(params, GridKmeans) else 20_000, d), seed=1)
        assert model.verdict == "reliable"
        assert model.expected_agreement.value > 0.9
        assert model.expected_loss.upper < 1.3
        assert "Another run" in model.verdict_reason
        assert "loss" in model.verdict_reason
        assert model.privacy["expected_agreement"] == model.privacy["expected_loss"] == "post_processed"
