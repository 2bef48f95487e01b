"""Test `noisy_fcm`: its round, model, errors and warnings."""

import json

import numpy as np
import pytest

from clustering.centroids import noisy_fcm as plan_file
from clustering.centroids.noisy_fcm import STEPS, fit, noisy_fcm
from clustering.errors import TooFewReports, UnfitRound
from clustering.metrics import adjusted_rand_index
from clustering.registry import start
from clustering.rounds.plan import Collected
from clustering.rounds.tally import Sample
from clustering.simulate import simulate
from sfumato.errors import InvalidSpec
from sfumato.model.cluster_model import model_from_wire
from sfumato.privacy.accounting import NANO
from sfumato.specs import (
    MAX_SAMPLE_VALUES,
    DiscreteLaplaceMechanism,
    Feature,
    LatticeEncoding,
    NoisyFcm,
    Participation,
    RoundSpec,
    job_from_wire,
    to_wire,
)
from tests.clustering.local_plans import mixture

XY = (Feature("x", 0, 1), Feature("y", -2, 2, "m"))
CENTRES = np.array([[0.2, 0.3], [0.7, 0.2], [0.5, 0.8]])


def blobs(n, seed=0, spread=0.05, centres=CENTRES):
    return mixture(n, centres, None, spread, seed)


def off(found, centres=CENTRES):
    """Return the largest distance of a true centre from the nearest found one."""
    return max(np.abs(found - centre).max(axis=1).min() for centre in centres)


class TestTheRound:
    @pytest.mark.parametrize("epsilon", [0.1, 2.5, 32])
    def test_one_round_of_vectors_at_the_full_epsilon(self, epsilon):
        spec = next(noisy_fcm(NoisyFcm(epsilon, 3), XY, 1000))
        assert spec.encoding == LatticeEncoding(2, STEPS)
        assert spec.participation == Participation()
        assert spec.mechanism.epsilon_nano() == round(epsilon * NANO)
        assert spec.mechanism.epsilon() <= round(epsilon * NANO) / NANO

    def test_uses_coarser_steps_for_excessive_noise(self):
        features = tuple(Feature(f"x{i}", 0, 1) for i in range(64))
        spec = next(noisy_fcm(NoisyFcm(1e-6, 3), features, 1000))
        assert spec.encoding.steps == 1
        assert spec.mechanism.epsilon_nano() == 1000

    def test_rejects_too_many_reports_at_the_start(self):
        most = MAX_SAMPLE_VALUES // 3  # two features and the mark
        assert next(start(NoisyFcm(1, 3), XY, most)).encoding.n_features == 2
        with pytest.raises(UnfitRound, match=f"at most {most} reports"):
            next(start(NoisyFcm(1, 3), XY, most + 1))


class TestParameters:
    @pytest.mark.parametrize(
        "wrong",
        [
            *({"clusters": clusters} for clusters in (1, 257, None, 2.0)),
            *({"distance": distance} for distance in ("cosine", ["mixed"])),
            *({"m": m} for m in (1.0, float("nan"))),
            *({name: value} for name, value in (("sigma0", 0), ("max_iterations", 0), ("seed", -1), ("epsilon", 33))),
        ],
    )
    def test_rejects_impossible_parameters(self, wrong):
        with pytest.raises(InvalidSpec) as refused:
            NoisyFcm(**({"epsilon": 1.0, "clusters": 3} | wrong))
        assert "clusters" not in wrong or "clusters must" in str(refused.value)

    def test_parameters_round_trip_and_need_clusters(self):
        params = NoisyFcm(1.5, 4, distance="laplace", m=1.5, sigma0=0.3, max_iterations=7, seed=9)
        assert job_from_wire(to_wire(params)) == params
        with pytest.raises(InvalidSpec):
            job_from_wire({"type": "noisy_fcm", "epsilon": 1.0})


class TestTheModel:
    @pytest.mark.parametrize("distance", ["mixed", "euclidean", "absolute", "laplace", "gaussian"])
    def test_finds_clear_clusters_without_noise(self, distance):
        points, labels = blobs(5000)
        model = simulate(NoisyFcm(1, 3, distance=distance), points, seed=1, perturb=False)
        assert off(model.centroids) < 0.03
        assert adjusted_rand_index(labels, model.assign(points)) > 0.97
        assert model.diagnostics["beats_one_centre"] is True
        assert model.diagnostics["distinct_centroids"] == 3

    def test_finds_clear_clusters_at_high_epsilon(self):
        points, labels = blobs(20_000)
        model = simulate(NoisyFcm(24, 3), points, seed=1)
        assert off(model.centroids) < 0.04
        assert adjusted_rand_index(labels, model.assign(points)) > 0.95
        assert model.sizes.sum() == pytest.approx(1)
        assert (np.diff(model.sizes) <= 0).all()
        assert any("Label records on devices" in warning for warning in model.warnings)
        assert not any("no better" in warning for warning in model.warnings)

    def test_warns_if_noise_hides_the_clusters(self):
        points, _ = blobs(20_000)
        model = simulate(NoisyFcm(0.5, 3), points, seed=1)
        assert model.diagnostics["beats_one_centre"] is False
        assert any("no better than one centre at the mean" in warning for warning in model.warnings)
        assert model.diagnostics["outside_bounds"] > 0
        assert any("width of the noise" in warning for warning in model.warnings)

    def test_warns_about_coincident_centroids(self):
        centres = np.array([[0.2, 0.3, 0.7, 0.4], [0.7, 0.2, 0.5, 0.8], [0.5, 0.8, 0.2, 0.6]])
        points, _ = blobs(20_000, centres=centres)
        model = simulate(NoisyFcm(4, 3), points, seed=1)
        assert model.diagnostics["distinct_centroids"] == 1
        assert any("Only 1 of 3 centroids are distinct" in warning for warning in model.warnings)

    def test_one_cloud_does_not_beat_one_centre(self):
        points, _ = blobs(20_000, centres=np.array([[0.5, 0.5]]), spread=0.08)
        model = simulate(NoisyFcm(4, 3, distance="euclidean"), points, seed=1)
        assert model.diagnostics["beats_one_centre"] is False

    def test_does_not_depend_on_the_order_of_reports(self):
        spec = next(noisy_fcm(NoisyFcm(8, 3), XY, 3000))
        values = np.random.default_rng(0).integers(0, 1001, (300, 2)).astype(np.int32)
        fits = [fit(NoisyFcm(8, 3), Collected(spec, Sample(v))).to_wire() for v in (values, values[::-1].copy())]
        assert fits[0] == fits[1]

    def test_uses_the_published_round(self):
        points, _ = blobs(4000)
        spec = RoundSpec(XY, LatticeEncoding(2, 50), DiscreteLaplaceMechanism.design(2, 50, 24 * NANO))
        values = np.rint(points * 50).astype(np.int32)
        model = fit(NoisyFcm(1, 3), Collected(spec, Sample(values)))
        assert off((model.centroids - [0, -2]) / [1, 4]) < 0.04
        assert model.diagnostics["noise_scale"] == pytest.approx(2 / 24)

    def test_diagnostics_are_correct(self):
        points, _ = blobs(2000)
        noise = 2 / 8
        reported = simulate(NoisyFcm(8, 3), points, seed=1).diagnostics
        assert reported["n_reports"] == 2000
        assert reported["sigma0"] == pytest.approx((0.06**2 + 2 * noise**2) ** 0.5, rel=1e-3)
        assert reported["n_eff"] == pytest.approx(2000 * (1 / 12) / (1 / 12 + 2 * noise**2), rel=1e-3)
        assert simulate(NoisyFcm(8, 3, sigma0=0.5), points, seed=1).diagnostics["sigma0"] == 0.5
        points, _ = blobs(plan_file.START_REPORTS + 1)  # starts are fitted to half of these
        short = simulate(NoisyFcm(8, 3, max_iterations=1), points, seed=1)
        assert short.diagnostics["iterations"] == 1
        assert short.diagnostics["converged"] is False
        assert any("had not converged after 1" in warning for warning in short.warnings)


class TestErrors:
    def test_errors_match_the_deviation_over_collections(self):
        """Compare with twenty collections, each with fresh people and noise."""
        found, reported, sizes, reported_sizes = [], [], [], []
        for seed in range(20):
            points, _ = blobs(4000, seed=seed)
            model = simulate(NoisyFcm(16, 3, distance="euclidean"), points, seed=seed)
            order = [int(np.abs(model.centroids - centre).sum(axis=1).argmin()) for centre in CENTRES]
            found.append(model.centroids[order])
            reported.append(model.centroid_errors[order])
            sizes.append(model.sizes[order])
            reported_sizes.append(model.size_errors[order])
        ratio = np.sqrt((np.stack(reported) ** 2).mean(axis=0)) / np.std(found, axis=0, ddof=1)
        # 20 collections give a standard deviation to 16 %; six values are compared
        assert 0.6 < ratio.min() < ratio.max() < 1.7
        assert 0.8 < ratio.mean() < 1.25
        ratio = np.sqrt((np.stack(reported_sizes) ** 2).mean(axis=0)) / np.std(sizes, axis=0, ddof=1)
        assert 0.6 < ratio.min() < ratio.max() < 1.7

    def test_errors_decrease_with_the_root_of_the_reports(self, monkeypatch):
        """Also if the resamples are smaller than the sample."""
        monkeypatch.setattr(plan_file, "RESAMPLED", 1000)
        points, _ = blobs(8000)
        few, many = (
            simulate(NoisyFcm(16, 3, distance="euclidean"), points[:n], seed=1).centroid_errors.mean()
            for n in (500, 8000)
        )
        assert many == pytest.approx(few / 4, rel=0.3)


class TestBadInput:
    def test_rejects_fewer_reports_than_clusters(self):
        spec = next(noisy_fcm(NoisyFcm(1, 3), XY, 10))
        with pytest.raises(TooFewReports):
            fit(NoisyFcm(1, 3), Collected(spec, Sample.empty(spec)))
        with pytest.raises(TooFewReports):
            fit(NoisyFcm(1, 3), Collected(spec, Sample(np.zeros((2, 2), dtype=np.int32))))

    @pytest.mark.parametrize("distance", ["mixed", "absolute"])
    @pytest.mark.parametrize("kind", ["equal", "collinear", "extreme", "as few as clusters"])
    def test_odd_samples_give_finite_models(self, distance, kind):
        spec = next(noisy_fcm(NoisyFcm(1, 3), XY, 10))
        values = {
            "equal": np.full((50, 2), 500),
            "collinear": np.repeat(np.arange(0, 1000, 10)[:, None], 2, axis=1),
            "extreme": np.tile([[-spec.mechanism.margin, 1000 + spec.mechanism.margin]], (50, 1)),
            "as few as clusters": np.array([[1, 2], [500, 700], [900, 3]]),
        }[kind].astype(np.int32)
        model = fit(NoisyFcm(1, 3, distance=distance), Collected(spec, Sample(values)))
        wire = json.dumps(model.to_wire(), allow_nan=False)
        assert model_from_wire(json.loads(wire)).n_clusters == 3
        assert ((model.centroids >= [0, -2]) & (model.centroids <= [1, 2])).all()
