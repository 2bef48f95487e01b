"""Results as columns of numpy arrays; frames over them are tried where pandas is, in tests/sdks/test_python.py."""

import sys
from typing import Any

import numpy as np
import pytest

from sfumato import frames
from sfumato.cluster_model import ClusterModel
from sfumato.errors import InvalidPoint, InvalidSpec
from sfumato.specs import Feature, HalfspaceCodeEncoding
from tests.sfumato.test_cluster_model import FEATURES, centroids, label_map
from tests.sfumato.test_ledger import CHAIN


class TestClusters:
    def test_are_rows_with_a_column_for_each_feature(self) -> None:
        columns = frames.clusters_columns(label_map())
        assert list(columns) == ["cluster", "size", "size_error", "x", "y"]
        assert columns["cluster"].tolist() == [0, 1, 2]
        assert columns["x"].tolist() == [2.5, 5.0, 7.5]
        assert columns["size"].sum() == 1

    def test_have_their_errors_beside_them(self) -> None:
        model = centroids()
        with_errors = ClusterModel(
            type="centroids",
            features=model.features,
            sizes=model.sizes,
            size_errors=model.size_errors,
            centroids=model.centroids,
            centroid_errors=np.array([[0.1, 0.2], [0.3, 0.4]]),
        )
        columns = frames.clusters_columns(with_errors)
        assert list(columns) == ["cluster", "size", "size_error", "x", "x_error", "y", "y_error"]
        assert columns["y_error"].tolist() == [0.2, 0.4]

    def test_of_a_feature_called_as_a_column_keep_both(self) -> None:
        model = ClusterModel(
            type="centroids",
            features=(Feature("size", 0, 1),),
            sizes=np.array([1.0]),
            size_errors=np.zeros(1),
            centroids=np.array([[0.5]]),
        )
        columns = frames.clusters_columns(model)
        assert (columns["size"].tolist(), columns["feature_size"].tolist()) == ([1.0], [0.5])


class TestCells:
    def test_say_where_they_are_and_whose(self) -> None:
        columns = frames.cells_columns(label_map())
        assert list(columns) == ["cluster", "x_lower", "x_upper", "y_lower", "y_upper", "density"]
        assert columns["cluster"].tolist() == [0, 0, 1, 2, 2, 1]
        assert columns["x_lower"].tolist() == [0, 0, 0, 5, 5, 5]
        assert columns["x_upper"].tolist() == [5, 5, 5, 10, 10, 10]
        assert columns["y_lower"].tolist() == pytest.approx([-1, -1 / 3, 1 / 3] * 2)
        assert columns["density"].sum() == pytest.approx(1)

    def test_agree_with_the_labels_of_their_middles(self) -> None:
        model = label_map()
        columns = frames.cells_columns(model)
        middles = np.stack([(columns[f"{f.name}_lower"] + columns[f"{f.name}_upper"]) / 2 for f in FEATURES], axis=1)
        assert model.assign(middles).tolist() == columns["cluster"].tolist()

    def test_of_codes_are_symbols(self) -> None:
        model = ClusterModel(
            type="codes",
            features=FEATURES,
            sizes=np.array([0.5, 0.5]),
            size_errors=np.zeros(2),
            encoding=HalfspaceCodeEncoding(weights=((1, 0),), thresholds=(5,)),
            label_map=np.array([1, 0]),
        )
        columns = frames.cells_columns(model)
        assert {name: column.tolist() for name, column in columns.items()} == {"cluster": [1, 0], "symbol": [0, 1]}

    def test_there_are_none_of_centroids(self) -> None:
        with pytest.raises(InvalidSpec, match="no cells"):
            frames.cells_columns(centroids())


class TestLabels:
    def test_stand_beside_their_points(self) -> None:
        columns = frames.labels_columns(label_map(), [[0, -1], [10, 1]])
        assert {name: column.tolist() for name, column in columns.items()} == {
            "cluster": [0, 1],
            "x": [0, 10],
            "y": [-1, 1],
        }

    def test_of_no_points_are_none(self) -> None:
        assert len(frames.labels_columns(label_map(), np.zeros((0, 2)))["cluster"]) == 0

    def test_points_that_are_none_are_refused(self) -> None:
        with pytest.raises(InvalidPoint):
            frames.labels_columns(label_map(), [[float("nan"), 0]])


class TestTheLedger:
    def test_keeps_integers_and_says_epsilon_beside_them(self) -> None:
        columns = frames.ledger_columns(CHAIN)
        assert columns["seq"].tolist() == [entry.seq for entry in CHAIN]
        assert columns["epsilon_nano"].dtype == np.int64
        assert columns["epsilon_nano"].tolist() == [entry.epsilon_nano for entry in CHAIN]
        assert columns["epsilon"].tolist() == [entry.epsilon_nano / 1e9 for entry in CHAIN]
        assert columns["kind"].tolist() == [entry.kind for entry in CHAIN]
        assert columns["at"].dtype == np.dtype("datetime64[us]")
        assert columns["at"][0].item() == CHAIN[0].at.replace(tzinfo=None)

    def test_may_be_empty(self) -> None:
        assert {len(column) for column in frames.ledger_columns([]).values()} == {0}


class TestFrames:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: frames.clusters_frame(label_map()),
            lambda: frames.cells_frame(label_map()),
            lambda: frames.labels_frame(label_map(), [[0, 0]]),
            lambda: frames.ledger_frame(CHAIN),
        ],
    )
    def test_without_pandas_say_what_to_install(self, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(ImportError, match=r"pip install 'sfumato\[pandas\]'"):
            make()
