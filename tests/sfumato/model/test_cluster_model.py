"""Released models: their wire form, and labels of points."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sfumato.errors import InvalidPoint, InvalidSpec
from sfumato.model.cluster_model import ClusterModel, model_from_wire
from sfumato.model.precision import ExpectedAgreement, ExpectedLoss, Verdict
from sfumato.specs import Feature

FEATURES = (Feature("x", 0, 10, "m"), Feature("y", -1, 1))
LABELS = np.array([[0, 0, 1], [2, 2, 1]])


def label_map() -> ClusterModel:
    return ClusterModel(
        type="label_map",
        features=FEATURES,
        sizes=np.array([0.25, 0.5, 0.25]),
        size_errors=np.array([0.01, 0.02, 0.03]),
        centroids=np.array([[2.5, -0.5], [5.0, 0.75], [7.5, -0.5]]),
        label_map=LABELS,
        density=np.array([[0.2, 0.05, 0.25], [0.2, 0.05, 0.25]]),
        verdict=Verdict.RELIABLE,
        expected_agreement=ExpectedAgreement(0.9, 0.8, 1.0),
        diagnostics={"iterations": 12, "note": "fine"},
        warnings=("few reports",),
        privacy={"sizes": "post_processed"},
    )


def centroids() -> ClusterModel:
    return ClusterModel(
        type="centroids",
        features=FEATURES,
        sizes=np.array([0.5, 0.5]),
        size_errors=np.zeros(2),
        centroids=np.array([[2.0, 0.0], [8.0, 0.0]]),
    )


class TestFigures:
    def test_of_the_reason_are_stated_once(self) -> None:
        agreement, loss = ExpectedAgreement(0.9, 0.8, 1.0), ExpectedLoss(1.1, 1.0, 1.3)
        model = replace(label_map(), expected_loss=loss)
        assert model.further_figures == (agreement.sentence, loss.sentence)
        assert replace(model, verdict_reason=f"{agreement.sentence} By category.").further_figures == (loss.sentence,)
        assert replace(model, expected_agreement=None, expected_loss=None).further_figures == ()

    def test_of_a_fitted_map_state_the_gaps_that_it_smooths_out(self) -> None:
        fitted = replace(label_map(), diagnostics={"length_scale": 0.04})
        assert fitted.further_figures[1] == "Gaps narrower than about 4 % of a feature's range do not divide groups."
        assert replace(fitted, expected_agreement=None).further_figures == ()


class TestWire:
    @pytest.mark.parametrize("model", [label_map(), centroids()], ids=["label_map", "centroids"])
    def test_a_model_stays_equal_through_json(self, model: ClusterModel) -> None:
        wire = json.loads(json.dumps(model.to_wire(), allow_nan=False))
        back = model_from_wire(wire)
        assert back.to_wire() == wire
        points = np.random.default_rng(1).uniform([-1, -2], [11, 2], (500, 2))
        assert back.assign(points).tolist() == model.assign(points).tolist()

    @pytest.mark.parametrize(
        "changes",
        [
            {"type": "cells"},
            {"features": []},
            {"sizes": [0.5, 0.5]},
            {"size_errors": None},
            {"labels": [0, 0, 1, 2, 2]},
            {"labels": [0, 0, 1, 2, 2, 3]},
            {"labels": [0, 0, 1, 2, 2, -1]},
            {"labels": None},
            {"grid_shape": [6]},
            {"grid_shape": "wide"},
            {"centroids": [[1.0, 2.0]]},
            {"density": [0.5]},
            {"verdict": "fine"},
            {"verdict": None},
            {"expected_agreement": {"value": 0.7, "lower": 0.8, "upper": 1.0}},
            {"expected_agreement": {"value": float("nan"), "lower": 0.0, "upper": 1.0}},
            {"expected_agreement": 0.7},
        ],
        ids=str,
    )
    def test_refuses_parts_that_do_not_fit(self, changes: dict[str, Any]) -> None:
        with pytest.raises(InvalidSpec):
            model_from_wire({**label_map().to_wire(), **changes})

    @pytest.mark.parametrize("wire", [{}, [], None, "model", {"type": "centroids"}])
    def test_refuses_other_documents(self, wire: Any) -> None:
        with pytest.raises(InvalidSpec):
            model_from_wire(wire)

    def test_centroid_errors_have_the_shape_of_centroids(self) -> None:
        wire = {**centroids().to_wire(), "centroid_errors": [[0.1, 0.2], [0.3, 0.4]]}
        assert model_from_wire(wire).to_wire() == wire
        with pytest.raises(InvalidSpec):
            model_from_wire({**wire, "centroid_errors": [[0.1, 0.2]]})
        with pytest.raises(InvalidSpec):
            model_from_wire({**centroids().to_wire(), "centroids": None})


class TestAssign:
    def test_a_point_has_the_label_of_the_nearest_cell(self) -> None:
        points = [[0, -1], [4.99, 0.3], [4.99, 0.34], [5, -1], [10, 1], [-50, 50], [50, -50]]
        assert label_map().assign(points).tolist() == [0, 0, 1, 2, 1, 1, 2]

    def test_a_point_has_the_nearest_centroid_in_scaled_units(self) -> None:
        assert centroids().assign([[4.9, 1], [5.1, -1], [0, 0], [99, 9]]).tolist() == [0, 1, 0, 1]

    @pytest.mark.parametrize("n_features", [1, 8, 15, 16, 64, 300])  # products of matrices from 16 on
    def test_equals_the_plain_search(self, n_features: int) -> None:
        random = np.random.default_rng(n_features)
        features = tuple(Feature(f"x{i}", -5, 15) for i in range(n_features))
        centres = random.uniform(-5, 15, (7, n_features))
        model = ClusterModel("centroids", features, np.full(7, 1 / 7), np.zeros(7), centroids=centres)
        points = random.uniform(-5, 15, (200, n_features))
        nearest = [min(range(7), key=lambda c: sum((point - centres[c]) ** 2)) for point in points]
        assert model.assign(points).tolist() == nearest
        assert model.assign(centres).tolist() == list(range(7))
        assert model.distances(points).argmin(axis=1).tolist() == nearest
        assert model.distances(centres).diagonal().tolist() == [0.0] * 7

    def test_takes_any_number_of_points(self) -> None:
        points = np.tile([[1.0, 0.0], [9.0, 0.0]], (40_000, 1))  # more than one part
        assert centroids().assign(points).tolist() == [0, 1] * 40_000
        for model in (label_map(), centroids()):
            assert model.assign(np.zeros((0, 2))).shape == (0,)

    @pytest.mark.parametrize("points", [[[1.0]], [1.0, 2.0], [[float("nan"), 0.0]]])
    def test_refuses_invalid_points(self, points: Any) -> None:
        with pytest.raises(InvalidPoint):
            label_map().assign(points)
