"""The estimators follow the conventions of scikit-learn and release what the service releases."""

import inspect
import warnings
from dataclasses import fields
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from clustering import estimators
from clustering.central.run import FUNCTIONS
from clustering.estimators import (
    RENAMED,
    DensityMap,
    DPKMeans,
    GridKMeans,
    NoisyFCM,
    PrivateEstimator,
    PrivateKMeans,
)
from clustering.metrics import adjusted_rand_index
from clustering.registry import PLANS
from sfumato import specs
from sfumato.privacy.entropy import SystemEntropy

ALL = [
    each
    for _, each in inspect.getmembers(estimators, inspect.isclass)
    if issubclass(each, PrivateEstimator) and hasattr(each, "specification")
]
FEW_FEATURES = "the algorithm has a maximum number of features"
NOISE = {
    "check_fit_idempotent": "two fits draw different noise",
    "check_clustering": "noise may hide the clusters of 50 records",
}
MANY_FEATURES = dict.fromkeys(
    [
        "check_n_features_in_after_fitting",
        "check_positive_only_tag_during_fit",
        "check_estimators_dtypes",
        "check_dtype_object",
        "check_fit2d_1sample",
    ],
    FEW_FEATURES,
)
ONE_CLUSTER = dict.fromkeys(
    ["check_dont_overwrite_parameters", "check_fit2d_1sample", "check_fit2d_1feature", "check_fit2d_predict1d"],
    "memberships need two clusters",
)
LIMITED = ("ShiftedGrid", "DensityMap", "UniformGrid", "AdaptiveGridIterative", "AdaptiveGridTree", "GridKMeans")
PLACES = np.array([(2.0, 3.0), (7.0, 2.0), (5.0, 8.0)])


def sample(n: int = 3_000) -> tuple[np.ndarray, np.ndarray]:
    """Return records around three places, and their place."""
    rng = np.random.default_rng(4)
    truth = rng.integers(3, size=n)
    return PLACES[truth] + rng.normal(scale=0.4, size=(n, 2)), truth


def check(estimator: type[PrivateEstimator]) -> list[tuple[str, Exception]]:
    """Return the failed checks of scikit-learn that are not expected to fail."""
    expected = NOISE | (MANY_FEATURES if estimator.__name__ in LIMITED else {})
    if estimator is NoisyFCM:
        expected |= ONE_CLUSTER
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(
            estimator(n_clusters=3, epsilon=32, bounds=(-200, 200)),
            expected_failed_checks=expected,
            on_skip=None,
            on_fail=None,
        )
    assert len(found) > 40
    return [(each["check_name"], each["exception"]) for each in found if each["status"] == "failed"]


class TestConventions:
    def test_of_private_kmeans_hold(self) -> None:
        assert check(PrivateKMeans) == []

    @pytest.mark.slow
    @pytest.mark.parametrize("estimator", [each for each in ALL if each is not PrivateKMeans])
    def test_of_every_other_estimator_hold(self, estimator: type[PrivateEstimator]) -> None:
        assert check(estimator) == []

    def test_every_algorithm_has_an_estimator_with_its_parameters(self) -> None:
        assert {each.specification for each in ALL} == {*PLANS, *FUNCTIONS}
        for each in ALL:
            names = {RENAMED.get(field.name, field.name) for field in fields(each.specification)}
            categories = {"attributes"} if each.specification.definition.max_attributes else set()
            circles = {"periodic"} if each.specification.definition.periodic else set()
            assert set(each().get_params()) == names | {"bounds", "features"} | categories | circles
        assert set(FUNCTIONS) == set(get_args(specs.CentralAlgorithm))

    def test_a_pipeline_a_frame_and_a_clone_work(self) -> None:
        points, truth = sample()
        frame = pd.DataFrame(points * 1000, columns=["east", "north"], index=np.arange(len(points)) + 7)
        kilometres = FunctionTransformer(lambda metres: metres / 1000, feature_names_out="one-to-one")
        pipeline = make_pipeline(kilometres, PrivateKMeans(n_clusters=3, epsilon=2, bounds=([0, 0], [10, 12])))
        found = clone(pipeline).set_output(transform="pandas").fit_transform(frame)
        assert list(found.columns) == ["privatekmeans0", "privatekmeans1", "privatekmeans2"]
        assert found.index.equals(frame.index)
        assert adjusted_rand_index(found.to_numpy().argmin(axis=1), truth) > 0.95
        fitted = PrivateKMeans(n_clusters=3, epsilon=2, bounds=(0, 12_000)).fit(frame)
        assert [each.name for each in fitted.model_.features] == ["east", "north"]
        with pytest.raises(ValueError, match="feature names should match"):
            fitted.predict(frame[["north", "east"]])


class TestRelease:
    def test_has_the_clusters_and_the_cost_of_the_service(self) -> None:
        points, truth = sample()
        fitted = PrivateKMeans(n_clusters=3, epsilon=1, bounds=(0, 10)).fit(points)
        distances = np.sqrt(((fitted.cluster_centers_[:, None] - PLACES) ** 2).sum(axis=2))
        assert sorted(distances.argmin(axis=1)) == [0, 1, 2]
        assert distances.min(axis=1).max() < 0.3
        assert fitted.model_.diagnostics["spent_nano"] <= 10**9
        assert adjusted_rand_index(fitted.labels_, truth) > 0.95
        assert (fitted.transform(points).argmin(axis=1) == fitted.predict(points)).all()

    def test_may_have_private_bounds(self) -> None:
        points, truth = sample(20_000)
        fitted = PrivateKMeans(n_clusters=3, epsilon=2, bounds=(-500, 500), bounds_kind="private").fit(points)
        assert adjusted_rand_index(fitted.labels_, truth) > 0.95
        assert fitted.model_.features[0].upper < 100

    def test_may_be_a_label_map(self) -> None:
        points, truth = sample(20_000)
        fitted = DensityMap(n_clusters=3, bounds=(0, 10)).fit(points)
        assert adjusted_rand_index(fitted.labels_, truth) > 0.9
        assert not hasattr(fitted, "transform")

    def test_may_be_of_perturbed_reports(self) -> None:
        points, truth = sample(20_000)
        found = GridKMeans(n_clusters=3, epsilon=4, bounds=(0, 10)).fit_predict(points)
        assert adjusted_rand_index(found, truth) > 0.8

    def test_of_reports_states_the_share_outside_and_of_records_warns_of_clipping(self) -> None:
        points, _ = sample(20_000)
        points[:5_000] = (300.0, 5.0)
        model = GridKMeans(n_clusters=3, epsilon=4, bounds=(0, 10)).fit(points).model_
        assert model.outside_share is not None
        assert abs(model.outside_share - 0.25) < 0.05  # 8 standard errors
        with pytest.warns(UserWarning, match=r"5,000 of 20,000 records are clipped to the bounds: 5,000 in x0\."):
            fitted = PrivateKMeans(n_clusters=3, bounds=(0, 10)).fit(points)
        assert fitted.model_.outside_share is None

    def test_takes_its_noise_from_the_operating_system(self, monkeypatch: pytest.MonkeyPatch) -> None:
        points, _ = sample(300)
        drawn = []
        words = SystemEntropy.words
        monkeypatch.setattr(SystemEntropy, "words", lambda self, n: drawn.append(n) or words(self, n))
        np.random.seed(0)
        first = PrivateKMeans(n_clusters=3, bounds=(0, 10)).fit(points).cluster_centers_
        np.random.seed(0)
        second = PrivateKMeans(n_clusters=3, bounds=(0, 10)).fit(points).cluster_centers_
        assert drawn
        assert first.shape != second.shape or (first != second).any()


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"bounds": None}, "bounds are required"),
            ({"bounds": 10}, "must be a pair"),
            ({"bounds": (0, [1, 2, 3])}, "2 numbers each"),
            ({"bounds": ("a", "b")}, "must be a pair"),
            ({"bounds": (10, 0)}, "lower must lie below upper"),
            ({"bounds": (0, float("nan"))}, "must be finite"),
            ({"epsilon": 0}, "epsilon"),
            ({"epsilon": 1000}, "epsilon"),
            ({"n_clusters": 0}, "clusters"),
            ({"n_clusters": 2.5}, "clusters"),
            ({"delta": 2}, "delta"),
        ],
    )
    def test_is_refused_before_a_query(self, options: dict[str, Any], message: str) -> None:
        estimator = PrivateKMeans(**{"n_clusters": 3, "bounds": (0, 10), **options})
        with pytest.raises(ValueError, match=message):
            estimator.fit(sample(50)[0])
        assert not hasattr(estimator, "model_")

    def test_the_base_class_has_no_algorithm(self) -> None:
        with pytest.raises(TypeError, match="use one of its subclasses"):
            PrivateEstimator()

    def test_a_seed_is_refused_with_a_reason(self) -> None:
        with pytest.raises(TypeError, match="noise that can be drawn again"):
            PrivateKMeans(random_state=0)
        with pytest.raises(TypeError, match="unknown parameters: clusters"):
            PrivateKMeans(clusters=3)


class TestFeatures:
    def test_are_the_columns_that_decide(self) -> None:
        points, truth = sample(20_000)
        noise = np.random.default_rng(2).uniform(0, 10, (len(points), 2))
        frame = pd.DataFrame({"a": noise[:, 0], "east": points[:, 0], "b": noise[:, 1], "north": points[:, 1]})
        found = PrivateKMeans(epsilon=2, n_clusters=3, bounds=(0, 10), features=["north", "east"]).fit(frame)
        assert [each.name for each in found.model_.features] == ["east", "north"]
        assert found.cluster_centers_.shape == (3, 2)
        assert adjusted_rand_index(found.predict(frame), truth) > 0.95
        assert found.labels_.tolist() == found.predict(frame).tolist()
        assert found.transform(frame).argmin(axis=1).tolist() == found.labels_.tolist()
        local = GridKMeans(epsilon=4, n_clusters=3, bounds=(0, 10), features=["x3", "x1"]).fit(frame.to_numpy())
        assert [each.name for each in local.model_.features] == ["x1", "x3"]

    def test_may_be_periodic(self) -> None:
        hours = np.random.default_rng(3).normal([[0.0], [12.0]], 1.0, (2, 3000)).reshape(-1, 1) % 24
        frame = pd.DataFrame({"hour": hours.ravel() - 24})  # values are moved by whole periods, and none is clipped
        found = PrivateKMeans(epsilon=2, n_clusters=2, bounds=(0, 24), periodic=["hour"]).fit(frame)
        centres = found.cluster_centers_.ravel()
        assert min(np.minimum(centres, 24 - centres)) < 0.5
        assert adjusted_rand_index(found.predict(frame), np.repeat([0, 1], 3000)) > 0.95
        with pytest.raises(ValueError, match="there is no column 'our'"):
            PrivateKMeans(bounds=(0, 24), periodic=["our"]).fit(frame)
        with pytest.raises(TypeError, match="periodic"):
            DPKMeans(bounds=(0, 24), periodic=["hour"])

    def test_with_an_unknown_name_are_refused_with_the_nearest(self) -> None:
        with pytest.raises(ValueError, match="there is no column 'x2': use 'x"):
            PrivateKMeans(bounds=(0, 10), features=["x2"]).fit(sample(100)[0])
