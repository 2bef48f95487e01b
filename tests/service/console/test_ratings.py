"""Tests of the ratings of clusters, and of values with errors."""

from dataclasses import replace

import numpy as np
import pytest

from service.console.ratings import find_distinctions, find_doubts
from service.console.rendering import measured, share
from sfumato.model.cluster_model import ClusterModel
from sfumato.model.separation import separation
from sfumato.specs import Feature

FEATURES = (Feature("east", 0.0, 10.0, "km"), Feature("age", 0.0, 100.0, "years"))
MODEL = ClusterModel(
    type="centroids",
    features=FEATURES,
    sizes=np.array([0.6, 0.37, 0.03]),
    size_errors=np.array([0.02, 0.02, 0.02]),
    centroids=np.array([[2.0, 30.0], [8.0, 30.0], [5.0, 90.0]]),
    centroid_errors=np.full((3, 2), 0.1),
    privacy={},
)


def doubts(model: ClusterModel) -> list[str | None]:
    return find_doubts(model, separation(model))


class TestDoubts:
    def test_concern_a_share_within_the_noise(self) -> None:
        assert doubts(MODEL) == ["", "", "its share may be noise alone"]
        assert doubts(replace(MODEL, size_errors=np.full(3, 0.01))) == ["", "", ""]

    def test_concern_centres_that_may_be_the_same(self) -> None:
        near = replace(
            MODEL,
            size_errors=np.full(3, 0.01),
            centroids=np.array([[2.0, 30.0], [2.1, 30.0], [5.0, 90.0]]),
        )
        assert doubts(near) == ["its centre may be that of cluster 1", "its centre may be that of cluster 0", ""]

    def test_are_not_known_without_errors(self) -> None:
        unknown = replace(MODEL, size_errors=np.full(3, np.nan), centroid_errors=None)
        assert doubts(unknown) == [None, None, None]


class TestDistinctions:
    def test_name_the_feature_with_the_largest_difference(self) -> None:
        found = find_distinctions(MODEL)
        assert [each["name"] for each in found if each is not None] == ["east", "east", "age"]
        assert found[2] == {"name": "age", "unit": "years", "value": 90.0, "error": 0.1, "others": 30.0}

    def test_go_the_shorter_way_round_a_circle(self) -> None:
        features = Feature("hour", 0, 24, "h", periodic=True), FEATURES[1]
        places = np.array([[23.0, 30.0], [1.0, 30.0], [2.0, 90.0]])
        model = replace(MODEL, features=features, centroids=places, sizes=np.array([0.2, 0.3, 0.5]))
        found = [each for each in find_distinctions(model) if each is not None]
        assert [each["name"] for each in found] == ["age", "age", "age"]
        level = replace(model, centroids=places * [1, 0])
        others = [each["others"] for each in find_distinctions(level) if each is not None]
        assert others == pytest.approx([1.3 / 0.8, 0.8 / 0.7, 0.2], abs=0.03)  # the mean of near hours

    def test_the_others_on_both_sides_of_a_cluster_have_a_circular_mean(self) -> None:
        hours = np.array([[23.5, 30.0], [8.0, 32.0], [13.0, 34.0]])
        features = Feature("hour", 0, 24, "h", periodic=True), FEATURES[1]
        model = replace(MODEL, features=features, centroids=hours, sizes=np.array([0.5, 0.25, 0.25]))
        first, *_ = found = [each for each in find_distinctions(model) if each is not None]
        assert [each["name"] for each in found] == ["hour", "hour", "hour"]
        assert first["others"] == pytest.approx(10.5)

    def test_do_not_exist_for_one_cluster(self) -> None:
        alone = replace(
            MODEL,
            sizes=np.array([1.0]),
            size_errors=np.array([0.01]),
            centroids=np.array([[2.0, 30.0]]),
            centroid_errors=None,
        )
        assert find_distinctions(alone) == [None]


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (21.0398, 0.48, "21.0 ± 0.5"),
        (21.0398, 0.12, "21.04 ± 0.12"),
        (2.3, None, "2.3"),
        (2.3, 0.0, "2.3"),
        (1234.56, 150.0, "1,235 ± 150"),
        (0.000123, 0.00001, "0.000123 ± 0.000010"),
    ],
)
def test_a_value_is_rounded_to_its_error(value: float, error: float | None, text: str) -> None:
    assert measured(value, error) == text


def test_a_share_is_rounded_to_its_error() -> None:
    assert share(0.25, 0.01) == "25.0 % ± 1.0 %"
    assert share(0.2034, 0.004) == "20.3 % ± 0.4 %"
    assert share(0.2034, None) == "20.3 %"
