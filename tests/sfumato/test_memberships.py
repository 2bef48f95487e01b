"""Soft memberships: what anyone computes of a published model is what the fit went by."""

import json
from typing import Any, get_args

import numpy as np
import pytest

from clustering.fuzzy import ROUNDING, Rule, fuzzy_c_means
from sfumato.cluster_model import ClusterModel, model_from_wire
from sfumato.errors import InvalidPoint, InvalidSpec
from sfumato.memberships import (
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
    return ClusterModel(
        "centroids",
        FEATURES,
        np.array([0.5, 0.3, 0.2]),
        np.zeros(3),
        centroids=CENTRES * [10, 2] - [0, 1],
        soft=soft,
    )


def places(n: int = 300) -> np.ndarray:
    """Points of the box in the features' units, the centres among them."""
    some = np.random.default_rng(1).random((n, 2))
    some[:3] = CENTRES
    return some * [10, 2] - [0, 1]


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("m", [1.2, 2.0, 5.0])
class TestFuzzyOnes:
    def test_are_those_of_the_fit(self, distance: Distance, m: float) -> None:
        points = places() / [10, 2] + [0, 0.5]
        found = model(FuzzyMemberships(distance, m, 0.13)).memberships(places())
        of_fit = fuzzy_c_means(points, CENTRES, Rule(distance, m, 0.13), max_iterations=1, tolerance=0.0)
        np.testing.assert_allclose(found.mean(axis=0), of_fit.shares, rtol=1e-9)

    def test_are_those_of_the_definition(self, distance: Distance, m: float) -> None:
        points = places(12) / [10, 2] + [0, 0.5]
        rule = FuzzyMemberships(distance, m, 0.2)
        kinds: dict[str, Any] = {"kind": distance, "m": m, "sigma": 0.2, "rounding": ROUNDING * 0.2}
        by_definition = [naive.fuzzy_step(point[None, :], CENTRES, **kinds)[2] for point in points[3:]]
        np.testing.assert_allclose(rule.of(points, CENTRES, np.ones(3))[3:], by_definition, rtol=1e-6)

    def test_are_shares_and_whole_on_a_centre(self, distance: Distance, m: float) -> None:
        found = model(FuzzyMemberships(distance, m, 0.13)).memberships(places())
        assert found.shape == (300, 3)
        assert (found >= 0).all()
        np.testing.assert_allclose(found.sum(axis=1), 1)
        np.testing.assert_allclose(found[:3], np.eye(3), atol=1e-3)

    def test_name_the_nearest_centroid_but_along_the_features(self, distance: Distance, m: float) -> None:
        made = model(FuzzyMemberships(distance, m, 0.13))
        agrees = made.memberships(places()).argmax(axis=1) == made.assign(places())
        assert agrees.all() == (distance != "absolute")


class TestThoseOfAMixture:
    def test_are_its_posterior(self) -> None:
        made = model(MIXTURE)
        point = np.array([4.0, 0.1])
        scaled = point / [10, 2] + [0, 0.5]
        joint = [
            size * np.exp(-((scaled - centre) ** 2).sum() / (2 * width**2)) / width**2
            for size, centre, width in zip([0.5, 0.3, 0.2], CENTRES, MIXTURE.widths, strict=True)
        ]
        np.testing.assert_allclose(made.memberships([point])[0], np.array(joint) / sum(joint), rtol=1e-9)

    def test_are_finite_however_far_and_narrow(self) -> None:
        made = model(GaussianMixtureMemberships((1e-6, 1e-6, 1e-6)))
        found = made.memberships(places())
        np.testing.assert_allclose(found.sum(axis=1), 1)
        assert (found.argmax(axis=1) == made.assign(places())).all()

    def test_may_name_another_cluster_than_the_nearest(self) -> None:
        made = model(MIXTURE)
        agrees = made.memberships(places()).argmax(axis=1) == made.assign(places())
        assert 0.5 < agrees.mean() < 1


class TestTheWire:
    @pytest.mark.parametrize("soft", [FuzzyMemberships("mixed", 2.0, 0.5), MIXTURE, None], ids=str)
    def test_they_come_back_as_they_were(self, soft: Memberships | None) -> None:
        wire = json.loads(json.dumps(model(soft).to_wire(), allow_nan=False))
        back = model_from_wire(wire)
        assert back.soft == soft
        if soft is not None:
            np.testing.assert_array_equal(back.memberships(places()), model(soft).memberships(places()))

    def test_an_older_result_has_none(self) -> None:
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
    def test_what_are_none_are_refused(self, wire: dict[str, Any]) -> None:
        with pytest.raises(InvalidSpec):
            memberships_from_wire(wire)

    def test_those_of_another_number_of_clusters_are_refused(self) -> None:
        wire = model(None).to_wire() | {"memberships": {"type": "gaussian_mixture", "widths": [0.1, 0.1]}}
        with pytest.raises(InvalidSpec):
            model_from_wire(wire)


class TestAModel:
    def test_without_a_rule_has_none(self) -> None:
        with pytest.raises(InvalidSpec, match="hard"):
            model(None).memberships(places())

    def test_takes_points_and_nothing_else(self) -> None:
        assert model(MIXTURE).memberships(np.zeros((0, 2))).shape == (0, 3)
        for bad in ([[1.0]], [[float("nan"), 0.0]]):
            with pytest.raises(InvalidPoint):
                model(MIXTURE).memberships(bad)

    def test_takes_many_points_in_parts(self) -> None:
        points = np.tile(places(), (300, 1))
        found = model(MIXTURE).memberships(points)
        np.testing.assert_array_equal(found[:300], found[-300:])
        assert len(found) == 90_000


def test_distances_are_the_kernels_own() -> None:
    rule = FuzzyMemberships("laplace", 2.0, 0.3)
    far = distances_of(rule, np.array([[5.0, 0.0]]), np.array([[0.0, 0.0]]))
    assert far[0, 0] == pytest.approx(naive.fuzzy_distance("laplace", 5.0, 2, 0.3, 3e-7), rel=1e-6)
