"""Periodic features as points on circles, and the plans over reports that see them so."""

import numpy as np
import pytest

from clustering.circles import DIAMETER, LARGEST_ERROR, Circles
from clustering.metrics import adjusted_rand_index
from clustering.phases.waves import waves_for
from clustering.registry import start
from clustering.rounds.plan import Plan
from clustering.simulate import simulate
from sfumato.model.cluster_model import model_from_wire
from sfumato.model.memberships import GaussianMixtureMemberships
from sfumato.privacy.accounting import NANO
from sfumato.records.encodings import differences
from sfumato.specs import FULL_TURN, Algorithm, Feature, GridKmeans, PhaseSketch, to_wire

HOUR, X = Feature("hour", 0, 24, "h", periodic=True), Feature("x", 0, 1)
CENTRES = np.array([[0.5, 0.5], [0.8, 0.3], [0.2, 0.7]])  # in feature ranges


def people(turn: float, n: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """Return places of three groups, turned along the circle, and their labels."""
    chance = np.random.default_rng(0)
    labels = chance.integers(0, 3, n)
    points = (CENTRES[labels] + chance.normal(0, 0.04, (n, 2))).clip(0, 1)
    return np.column_stack([(points[:, 0] + turn) % 1, points[:, 1]]), labels


class TestPoints:
    CIRCLES = Circles(2, (0,))

    def test_slopes_are_derivatives_of_the_place(self) -> None:
        centres = self.CIRCLES.to_points(np.array([[0.1, 0.4], [0.9, 0.6]]))
        centres[1, :2] = 0.5 + (centres[1, :2] - 0.5) / 2  # the mean of a wide cluster lies within the circle
        slopes, step = self.CIRCLES.slopes(centres), 1e-6
        for axis in range(3):
            moved = centres.copy()
            moved[:, axis] += step
            rates = (self.CIRCLES.along(moved) - self.CIRCLES.along(centres)) / step
            assert slopes[:, :, axis] == pytest.approx(rates, abs=1e-4)
        assert np.linalg.norm(slopes[:, 0], axis=1) == pytest.approx([1.0, 2.0])

    def test_a_centre_in_the_middle_has_a_huge_error(self) -> None:
        slopes = self.CIRCLES.slopes(np.full((1, 3), 0.5))
        assert np.isfinite(slopes).all()
        errors = self.CIRCLES.limit_errors(np.abs(slopes).sum(axis=2))
        assert errors.tolist() == [[LARGEST_ERROR, 1.0]]

    def test_opposite_places_are_a_diameter_apart(self) -> None:
        points = self.CIRCLES.to_points(np.array([[0.1, 0.0], [0.6, 0.0]]))
        assert np.linalg.norm(points[0] - points[1]) == pytest.approx(DIAMETER)


class TestWaves:
    @pytest.mark.parametrize("circles", [(0,), (0, 1), (1, 2)])
    def test_make_whole_turns_along_circles(self, circles: tuple[int, ...]) -> None:
        d = max(circles) + 1
        weights = np.array(waves_for(d, 3, None, NANO, 0, circles=circles).weights)
        assert (weights[:, circles] % FULL_TURN == 0).all()
        assert weights.any(axis=1).all()
        plain = [place for place in range(d) if place not in circles]
        assert weights[:, plain].tolist() == np.array(waves_for(d, 3, None, NANO, 0).weights)[:, plain].tolist()


class TestPlans:
    @pytest.mark.parametrize("params", [GridKmeans(4.0, 3), PhaseSketch(4.0, 3, slots=128)], ids=lambda each: each.type)
    def test_find_clusters_over_the_seam_as_in_the_middle(self, params: Algorithm) -> None:
        for turn in (0.0, 0.5):
            points, labels = people(turn)
            values = points * np.array([24, 1])
            model = simulate(params, points, seed=1, features=(HOUR, X))
            assert model.centroids is not None
            assert model.centroid_errors is not None
            assert adjusted_rand_index(labels, model.assign(values)) > 0.97
            wanted = np.column_stack([(CENTRES[:, 0] + turn) % 1, CENTRES[:, 1]])
            away = differences((model.centroids / np.array([24, 1]))[:, None], wanted, (0,))
            assert np.abs(away).max(axis=2).min(axis=1).max() < 0.015
            assert (model.centroid_errors > 0).all()
            assert (model.centroid_errors[:, 0] < 1).all()
            assert model_from_wire(model.to_wire()).features == (HOUR, X)
            if model.soft is not None:
                assert (model.memberships(values).argmax(axis=1) == model.assign(values)).mean() > 0.99

    def test_overlapping_clusters_are_divided_on_the_circle(self) -> None:
        chance = np.random.default_rng(2)
        hours = np.concatenate([chance.normal(-0.08, 0.06, 20_000), chance.normal(0.08, 0.06, 20_000)]) % 1
        model = simulate(PhaseSketch(8.0, 2, slots=64), hours[:, None], seed=1, features=(HOUR,))
        assert model.centroids is not None
        assert np.sort(model.centroids.ravel()) == pytest.approx([1.9, 22.1], abs=1.0)
        assert 0.4 < model.sizes.min() <= 0.5
        assert max(model.diagnostics["widths"]) < 0.1

    def test_more_features_have_one_round(self) -> None:
        features = (HOUR, *(Feature(f"x{i}", 0, 1) for i in range(4)))
        plan: Plan = start(PhaseSketch(4.0, 3), features, 50_000)
        spec = next(plan)
        assert (spec.participation.lo, spec.participation.hi) == (0, 1 << 64)
        assert to_wire(spec)["features"][0]["periodic"] is True


def test_memberships_go_the_shorter_way() -> None:
    rule, points = GaussianMixtureMemberships((0.1, 0.1)), np.array([[0.98]])
    centres, sizes = np.array([[0.02], [0.7]]), np.array([0.5, 0.5])
    assert rule.of(points, centres, sizes, (0,))[0, 0] > 0.95
    assert rule.of(points, centres, sizes)[0, 0] < 0.01
