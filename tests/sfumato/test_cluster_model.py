"""Released models: the way to the wire and back, and how points are labelled."""

import json
from typing import Any

import numpy as np
import pytest

from sfumato.cluster_model import ClusterModel, model_from_wire
from sfumato.errors import InvalidPoint, InvalidSpec
from sfumato.specs import LATTICE, Feature, HalfspaceCodeEncoding, ShiftedGridEncoding, to_wire

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


def codes() -> ClusterModel:
    """Two cuts through the middles: left; right below; right above."""
    return ClusterModel(
        type="codes",
        features=FEATURES,
        sizes=np.array([0.5, 0.3, 0.2]),
        size_errors=np.array([0.01, 0.02, 0.03]),
        encoding=HalfspaceCodeEncoding(((1, 0), (0, 1)), (LATTICE // 2, LATTICE // 2)),
        label_map=np.array([0, 1, 0, 2]),
        density=np.array([0.3, 0.3, 0.2, 0.2]),
    )


class TestTheWire:
    @pytest.mark.parametrize("model", [label_map(), centroids(), codes()], ids=["label_map", "centroids", "codes"])
    def test_a_model_comes_back_as_it_was_through_json(self, model: ClusterModel) -> None:
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
        ],
        ids=str,
    )
    def test_parts_that_do_not_fit_are_refused(self, changes: dict[str, Any]) -> None:
        with pytest.raises(InvalidSpec):
            model_from_wire({**label_map().to_wire(), **changes})

    @pytest.mark.parametrize("wire", [{}, [], None, "model", {"type": "centroids"}])
    def test_what_is_no_model_is_refused(self, wire: Any) -> None:
        with pytest.raises(InvalidSpec):
            model_from_wire(wire)

    @pytest.mark.parametrize(
        "changes",
        [
            {"encoding": None},
            {"encoding": {"type": "halfspace_code"}},
            {"encoding": to_wire(HalfspaceCodeEncoding(((1, 0),), (0,)))},  # of two symbols
            {"encoding": to_wire(HalfspaceCodeEncoding(((1,), (1,)), (0, 1)))},  # of one feature
            {"encoding": to_wire(ShiftedGridEncoding(2, 2, 2))},  # of nine symbols
            {"encoding": 7},
            {"labels": None},
            {"labels": [0, 1, 0]},
            {"labels": [0, 1, 0, 3]},
            {"grid_shape": [2, 2]},
            {"density": [0.5, 0.5]},
            {"type": "label_map"},
            {"type": "centroids"},
            {"centroids": [[1.0, 2.0]]},
            {"centroid_errors": [[1.0, 2.0]] * 3},
        ],
        ids=str,
    )
    def test_codes_whose_parts_do_not_fit_are_refused(self, changes: dict[str, Any]) -> None:
        with pytest.raises(InvalidSpec):
            model_from_wire({**codes().to_wire(), **changes})

    def test_only_codes_have_an_encoding(self) -> None:
        encoding = to_wire(HalfspaceCodeEncoding(((1, 0), (0, 1)), (0, 0)))
        for model in (label_map(), centroids()):
            with pytest.raises(InvalidSpec):
                model_from_wire({**model.to_wire(), "encoding": encoding})

    def test_centroid_errors_come_with_centroids_and_have_their_shape(self) -> None:
        wire = {**centroids().to_wire(), "centroid_errors": [[0.1, 0.2], [0.3, 0.4]]}
        assert model_from_wire(wire).to_wire() == wire
        with pytest.raises(InvalidSpec):
            model_from_wire({**wire, "centroid_errors": [[0.1, 0.2]]})

    def test_centroids_without_centroids_are_refused(self) -> None:
        with pytest.raises(InvalidSpec):
            model_from_wire({**centroids().to_wire(), "centroids": None})


class TestAssign:
    def test_a_point_has_the_label_of_its_cell_and_one_beyond_the_bounds_that_of_the_nearest(self) -> None:
        points = [[0, -1], [4.99, 0.3], [4.99, 0.34], [5, -1], [10, 1], [-50, 50], [50, -50]]
        assert label_map().assign(points).tolist() == [0, 0, 1, 2, 1, 1, 2]

    def test_a_point_goes_to_the_centroid_nearest_in_scaled_units(self) -> None:
        assert centroids().assign([[4.9, 1], [5.1, -1], [0, 0], [99, 9]]).tolist() == [0, 1, 0, 1]

    def test_a_point_has_the_label_of_its_code(self) -> None:
        points = [[4.99, 0.9], [0, -1], [5, -0.01], [5, 0], [10, 1], [99, -99]]
        assert codes().assign(points).tolist() == [0, 0, 1, 2, 2, 1]

    def test_codes_of_a_shifted_encoding_are_those_of_the_first_slot(self) -> None:
        model = ClusterModel(
            type="codes",
            features=FEATURES[:1],
            sizes=np.ones(3) / 3,
            size_errors=np.zeros(3),
            encoding=ShiftedGridEncoding(1, 2, 2),
            label_map=np.array([0, 1, 2]),
        )
        assert model.assign([[0.0], [4.9], [5.0], [10.0]]).tolist() == [0, 0, 1, 1]

    def test_many_points_are_worked_on_in_parts(self) -> None:
        points = np.tile([[1.0, 0.0], [9.0, 0.0]], (40_000, 1))
        assert centroids().assign(points).tolist() == [0, 1] * 40_000

    @pytest.mark.parametrize("points", [[[1.0]], [1.0, 2.0], [[float("nan"), 0.0]]])
    def test_what_is_no_point_is_refused(self, points: Any) -> None:
        with pytest.raises(InvalidPoint):
            label_map().assign(points)

    @pytest.mark.parametrize("model", [label_map(), codes()], ids=["label_map", "codes"])
    def test_no_points_have_no_labels(self, model: ClusterModel) -> None:
        assert model.assign(np.zeros((0, 2))).shape == (0,)
