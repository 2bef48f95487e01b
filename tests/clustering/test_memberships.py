"""Test the soft memberships that plans publish: the rule of their fit, for any points."""

import numpy as np
import pytest

from clustering.centroids import noisy_fcm
from clustering.phases import phase_sketch
from clustering.simulate import SeededEntropy, collect, simulate
from sfumato.model.cluster_model import model_from_wire
from sfumato.model.memberships import FuzzyMemberships, GaussianMixtureMemberships
from sfumato.model.posterior import posterior
from sfumato.records.encodings import scale_many, symbols
from sfumato.specs import Feature, NoisyFcm, PhaseSketch, RoundSpec

FEATURES = (Feature("x", 0, 10), Feature("y", -1, 1))
CENTRES = np.array([[0.25, 0.3], [0.75, 0.7]])


def people(n: int) -> np.ndarray:
    """Return points in scaled units."""
    random = np.random.default_rng(3)
    own = (random.random(n) < 0.3).astype(np.int64)
    return np.clip(CENTRES[own] + 0.05 * random.normal(size=(n, 2)), 0, 1)


class TestNoisyFcm:
    @pytest.mark.parametrize("distance", ["euclidean", "mixed"])
    def test_the_mean_membership_of_the_reports_equals_the_sizes(self, distance: str) -> None:
        params = NoisyFcm(16.0, 2, distance=distance, m=1.5)
        plan = noisy_fcm.noisy_fcm(params, FEATURES, 5000)
        spec = next(plan)
        assert isinstance(spec, RoundSpec)
        draws = np.zeros(5000, dtype=np.uint64)
        collected = collect(spec, people(5000), SeededEntropy(1), draws)
        model = noisy_fcm.fit(params, collected)
        assert isinstance(model.soft, FuzzyMemberships)
        assert (model.soft.distance, model.soft.m) == (distance, 1.5)
        assert model.soft.sigma0 == model.diagnostics["sigma0"]
        assert model.diagnostics["outside_bounds"] == 0
        reports = collected.sample.values / spec.encoding.steps
        centres = scale_many(FEATURES, model.centroids)
        of_reports = model.soft.of(reports, centres, model.sizes)
        np.testing.assert_allclose(of_reports.mean(axis=0), model.sizes, atol=2e-3)
        back = model_from_wire(model.to_wire())
        points = people(50) * [10, 2] - [0, 1]
        np.testing.assert_array_equal(back.memberships(points), model.memberships(points))
        np.testing.assert_array_equal(model.memberships(points).argmax(axis=1), model.assign(points))


class TestPhaseSketch:
    def test_memberships_are_the_posterior_of_the_mixture(self) -> None:
        model = simulate(PhaseSketch(4.0, 2, refine="none"), people(20_000), features=FEATURES, seed=1)
        assert isinstance(model.soft, GaussianMixtureMemberships)
        assert list(model.soft.widths) == model.diagnostics["widths"]
        scaled = people(200)
        assert model.centroids is not None
        centres = scale_many(FEATURES, model.centroids)
        joint = np.stack(
            [
                share * np.exp(-((scaled - centre) ** 2).sum(axis=1) / (2 * width**2)) / width**2
                for share, centre, width in zip(model.sizes, centres, model.soft.widths, strict=True)
            ],
            axis=1,
        )
        found = model.memberships(scaled * [10, 2] - [0, 1])
        np.testing.assert_allclose(found, joint / joint.sum(axis=1, keepdims=True), atol=1e-9)

    def test_the_posterior_of_reports_is_calibrated(self) -> None:
        params = PhaseSketch(4.0, 2, refine="none")
        points = people(20_000)
        spec = next(phase_sketch.phase_sketch(params, FEATURES, len(points)))
        assert isinstance(spec, RoundSpec)
        model = simulate(params, points, features=FEATURES, seed=1)
        random = np.random.default_rng(5)
        slots = random.integers(spec.encoding.n_slots, size=len(points))
        values = spec.mechanism.perturb_many(symbols(spec.encoding, points, slots), SeededEntropy(2))
        chances = posterior(model, spec, slots, values)
        own = model.assign(points * [10, 2] - [0, 1])
        right = (chances.argmax(axis=1) == own).mean()
        assert abs(right - chances.max(axis=1).mean()) < 0.02
        assert right > model.sizes.max() + 0.02
