"""Soft memberships of a published model equal those of its fit."""

import json
from typing import Any, get_args

import numpy as np
import pytest

from clustering.centroids.fuzzy_cmeans import ROUNDING, Rule, fuzzy_c_means
from sfumato.errors import InvalidPoint, InvalidSpec
from sfumato.model.cluster_model import ClusterModel, model_from_wire
from sfumato.model.memberships import (
    FuzzyMemberships,
    GaussianMixtureMemberships,
    Memberships,
    distances_of,
    memberships_from_wire,
)
from sfumato.specs import Distance, Feature
from tests import naive

FEATURES = (Feature("x", 0, 10), Feature("y", -1, 1))
CENTRES = np.array([[0.2, 0.3], [0.8, 0.4], [0.5, 0.9]])  # scaled
DISTANCES: tuple[Distance, ...] = get_args(Distance)
MIXTURE = GaussianMixtureMemberships((0.1, 0.05, 0.2))


def model(soft: Memberships | None) -> ClusterModel:
    centroids = CENTRES * [10, 2] - [0, 1]
    return ClusterModel("centroids", FEATURES, np.array([0.5, 0.3, 0.2]), np.zeros(3), centroids=centroids, soft=soft)


def places(n: int = 300) -> np.ndarray:
    """Return points of the box in the units of the features. The first three are the centres."""
    some = np.random.default_rng(1).random((n, 2))
    some[:3] = CENTRES
    return some * [10, 2] - [0, 1]


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("m", [1.2, 2.0, 5.0])
class TestFuzzy:
    def test_equal_those_of_the_fit(self, distance: Distance, m: float) -> None:
        points = places() / [10, 2] + [0, 0.5]
        found = model(FuzzyMemberships(distance, m, 0.13)).memberships(places())
        of_fit = fuzzy_c_means(points, CENTRES, Rule(distance, m, 0.13), max_iterations=1, tolerance=0.0)
        np.testing.assert_allclose(found.mean(axis=0), of_fit.shares, rtol=1e-9)

    def test_follow_the_definition(self, distance: Distance, m: float) -> None:
        points = places(8) / [10, 2] + [0, 0.5]
        rule = FuzzyMemberships(distance, m, 0.2)
        kinds: dict[str, Any] = {"kind": distance, "m": m, "sigma": 0.2, "rounding": ROUNDING * 0.2}
        by_definition = [naive.fuzzy_step(point[None, :], CENTRES, **kinds)[2] for point in points[3:]]
        np.testing.assert_allclose(rule.of(points, CENTRES, np.ones(3))[3:], by_definition, rtol=1e-6)

    def test_sum_to_one_and_select_the_nearest_centroid(self, distance: Distance, m: float) -> None:
        fuzzy = model(FuzzyMemberships(distance, m, 0.13))
        found = fuzzy.memberships(places())
        assert found.shape == (300, 3)
        assert (found >= 0).all()
        np.testing.assert_allclose(found.sum(axis=1), 1)
        np.testing.assert_allclose(found[:3], np.eye(3), atol=1e-3)
        assert (found.argmax(axis=1) == fuzzy.assign(places())).all() == (distance != "absolute")


class TestMixture:
    def test_equal_the_posterior(self) -> None:
        mixture = model(MIXTURE)
        point = np.array([4.0, 0.1])
        scaled = point / [10, 2] + [0, 0.5]
        joint = [
            size * np.exp(-((scaled - centre) ** 2).sum() / (2 * width**2)) / width**2
            for size, centre, width in zip([0.5, 0.3, 0.2], CENTRES, MIXTURE.widths, strict=True)
        ]
        np.testing.assert_allclose(mixture.memberships([point])[0], np.array(joint) / sum(joint), rtol=1e-9)

    def test_are_finite_for_narrow_clusters(self) -> None:
        mixture = model(GaussianMixtureMemberships((1e-6, 1e-6, 1e-6)))
        found = mixture.memberships(places())
        np.testing.assert_allclose(found.sum(axis=1), 1)
        assert (found.argmax(axis=1) == mixture.assign(places())).all()
        wide = model(MIXTURE)
        agrees = wide.memberships(places()).argmax(axis=1) == wide.assign(places())
        assert 0.5 < agrees.mean() < 1  # a wider cluster wins points near another centroid


class TestWire:
    @pytest.mark.parametrize("soft", [FuzzyMemberships("mixed", 2.0, 0.5), MIXTURE, None], ids=str)
    def test_stay_equal_through_json(self, soft: Memberships | None) -> None:
        wire = json.loads(json.dumps(model(soft).to_wire(), allow_nan=False))
        back = model_from_wire(wire)
        assert back.soft == soft
        if soft is not None:
            np.testing.assert_array_equal(back.memberships(places()), model(soft).memberships(places()))

    def test_are_absent_from_an_older_result(self) -> None:
        wire = model(MIXTURE).to_wire()
        del wire["memberships"]
        assert model_from_wire(wire).soft is None

    @pytest.mark.parametrize(
        "wire",
        [
            {},
            {"type": "hard"},
            {"type": "fuzzy", "distance": "mixed", "m": 2.0},
            {"type": "fuzzy", "distance": "far", "m": 2.0, "sigma0": 1.0},
            {"type": "fuzzy", "distance": "mixed", "m": 1.0, "sigma0": 1.0},
            {"type": "fuzzy", "distance": "mixed", "m": 2.0, "sigma0": 0.0},
            {"type": "fuzzy", "distance": "mixed", "m": float("inf"), "sigma0": 1.0},
            {"type": "gaussian_mixture"},
            {"type": "gaussian_mixture", "widths": []},
            {"type": "gaussian_mixture", "widths": [0.1, 0.0, 0.1]},
            {"type": "gaussian_mixture", "widths": [0.1, "wide", 0.1]},
        ],
        ids=str,
    )
    def test_are_refused_if_invalid(self, wire: dict[str, Any]) -> None:
        with pytest.raises(InvalidSpec):
            memberships_from_wire(wire)

    def test_are_refused_for_another_number_of_clusters(self) -> None:
        wire = model(None).to_wire() | {"memberships": {"type": "gaussian_mixture", "widths": [0.1, 0.1]}}
        with pytest.raises(InvalidSpec):
            model_from_wire(wire)


class TestModel:
    def test_needs_a_rule(self) -> None:
        with pytest.raises(InvalidSpec, match="hard"):
            model(None).memberships(places())

    def test_takes_any_number_of_valid_points(self) -> None:
        assert model(MIXTURE).memberships(np.zeros((0, 2))).shape == (0, 3)
        for bad in ([[1.0]], [[float("nan"), 0.0]]):
            with pytest.raises(InvalidPoint):
                model(MIXTURE).memberships(bad)
        points = np.tile(places(), (300, 1))  # more than one part
        found = model(MIXTURE).memberships(points)
        np.testing.assert_array_equal(found[:300], found[-300:])
        assert len(found) == 90_000


def test_distances_equal_those_of_the_kernel() -> None:
    rule = FuzzyMemberships("laplace", 2.0, 0.3)
    far = distances_of(rule, np.array([[5.0, 0.0]]), np.array([[0.0, 0.0]]))
    assert far[0, 0] == pytest.approx(naive.fuzzy_distance("laplace", 5.0, 2, 0.3, 3e-7), rel=1e-6)
