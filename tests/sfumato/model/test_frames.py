"""Results as columns of numpy arrays, and as frames."""

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pandas
import pytest

from sfumato.api.budgets import Budget
from sfumato.errors import InvalidPoint, InvalidSpec
from sfumato.forecast import Forecast, RecordsForecast, forecast, forecast_records
from sfumato.model import frames
from sfumato.privacy.accounting import NANO
from sfumato.privacy.ledger import Balance, Head
from sfumato.specs import Feature, PrivateKmeans, ShiftedGrid
from tests.sfumato.model.test_cluster_model import FEATURES, centroids, label_map
from tests.sfumato.privacy.test_ledger import CHAIN


class TestClusters:
    def test_have_a_column_per_feature(self) -> None:
        columns = frames.clusters_columns(label_map())
        assert list(columns) == ["cluster", "size", "size_error", "x", "y"]
        assert columns["cluster"].tolist() == [0, 1, 2]
        assert columns["x"].tolist() == [2.5, 5.0, 7.5]
        assert columns["size"].sum() == 1

    def test_have_columns_of_errors(self) -> None:
        columns = frames.clusters_columns(replace(centroids(), centroid_errors=np.array([[0.1, 0.2], [0.3, 0.4]])))
        assert list(columns) == ["cluster", "size", "size_error", "x", "x_error", "y", "y_error"]
        assert columns["y_error"].tolist() == [0.2, 0.4]

    def test_rename_a_feature_with_the_name_of_a_column(self) -> None:
        columns = frames.clusters_columns(replace(centroids(), features=(Feature("size", 0, 9), FEATURES[1])))
        assert (columns["size"].tolist(), columns["feature_size"].tolist()) == ([0.5, 0.5], [2.0, 8.0])


class TestCells:
    def test_have_bounds_and_a_cluster(self) -> None:
        columns = frames.cells_columns(label_map())
        assert list(columns) == ["cluster", "x_lower", "x_upper", "y_lower", "y_upper", "density"]
        assert columns["cluster"].tolist() == [0, 0, 1, 2, 2, 1]
        assert columns["x_lower"].tolist() == [0, 0, 0, 5, 5, 5]
        assert columns["x_upper"].tolist() == [5, 5, 5, 10, 10, 10]
        assert columns["y_lower"].tolist() == pytest.approx([-1, -1 / 3, 1 / 3] * 2)
        assert columns["density"].sum() == pytest.approx(1)

    def test_have_the_labels_of_their_middles(self) -> None:
        model = label_map()
        columns = frames.cells_columns(model)
        middles = np.stack([(columns[f"{f.name}_lower"] + columns[f"{f.name}_upper"]) / 2 for f in FEATURES], axis=1)
        assert model.assign(middles).tolist() == columns["cluster"].tolist()

    def test_need_a_label_map(self) -> None:
        with pytest.raises(InvalidSpec, match="no cells"):
            frames.cells_columns(centroids())


class TestLabels:
    def test_are_beside_their_points(self) -> None:
        columns = frames.labels_columns(label_map(), [[0, -1], [10, 1]])
        lists = {name: column.tolist() for name, column in columns.items()}
        assert lists == {"cluster": [0, 1], "x": [0, 10], "y": [-1, 1]}
        assert len(frames.labels_columns(label_map(), np.zeros((0, 2)))["cluster"]) == 0
        with pytest.raises(InvalidPoint):
            frames.labels_columns(label_map(), [[float("nan"), 0]])


class TestLedger:
    def test_has_integers_and_epsilon(self) -> None:
        columns = frames.ledger_columns(CHAIN)
        assert columns["seq"].tolist() == [entry.seq for entry in CHAIN]
        assert columns["epsilon_nano"].dtype == np.int64
        assert columns["epsilon_nano"].tolist() == [entry.epsilon_nano for entry in CHAIN]
        assert columns["epsilon"].tolist() == [entry.epsilon_nano / 1e9 for entry in CHAIN]
        assert columns["kind"].tolist() == [entry.kind for entry in CHAIN]
        assert columns["at"].dtype == np.dtype("datetime64[us]")
        assert columns["at"][0].item() == CHAIN[0].at.replace(tzinfo=None)
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
    def test_name_the_package_to_install(self, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(ImportError, match="pip install pandas"):
            make()


class TestInNotebooks:
    def test_a_budget_is_a_bar_with_amounts_and_a_frame(self) -> None:
        balance = Balance(*[0] * len(Balance._fields))._replace(granted_nano=2 * NANO, charged_nano=NANO // 2)
        budget = Budget("ds_1", balance, NANO * 3 // 2, Head(1, "0" * 64))
        html = budget._repr_html_()
        assert '<rect x="0.0" width="75.0"' in html
        assert "<th>remaining</th><td>ε 1.5</td>" in html
        frame = budget.to_frame()
        assert isinstance(frame, pandas.DataFrame)
        assert frame.loc["epsilon"].to_dict() == {"granted": 2, "charged": 0.5, "reserved": 0, "remaining": 1.5}
        assert list(frame.index) == ["epsilon", "delta"]

    def test_the_budget_of_a_shuffled_dataset_has_both_figures(self) -> None:
        balance = Balance(2 * NANO)._replace(
            granted_shuffled_nano=NANO, charged_shuffled_nano=NANO // 4,
            granted_shuffled_delta_atto=10**13, charged_shuffled_delta_atto=10**12,
        )  # fmt: skip
        budget = Budget("ds_1", balance, 2 * NANO, Head(1, "0" * 64), 0, NANO * 3 // 4, 9 * 10**12)
        html = budget._repr_html_()
        assert "<th>charged towards the service</th><td>ε 0.25, δ 1e-6</td>" in html
        assert "<th>remaining towards the service</th><td>ε 0.75, δ 9e-6</td>" in html
        frame = budget.to_frame()
        assert frame.loc["shuffled_epsilon"].to_dict() == {
            "granted": 1, "charged": 0.25, "reserved": 0, "remaining": 0.75
        }  # fmt: skip
        assert frame.loc["shuffled_delta", "remaining"] == pytest.approx(9e-6)

    @pytest.mark.parametrize(
        "found",
        [
            forecast(ShiftedGrid(2.0, 3), n_features=2, expected_reports=100_000),
            forecast_records(PrivateKmeans(1.0, 3), n_features=2, expected_records=100_000),
        ],
    )
    def test_a_forecast_has_a_picture_and_its_verdict(self, found: Forecast | RecordsForecast) -> None:
        html = found._repr_html_()
        verdict = found.verdict if isinstance(found, Forecast) else found.expected.verdict
        assert html.startswith("<svg")
        assert f"<th>verdict</th><td>{verdict.value}</td>" in html


class TestForScikitLearn:
    def test_a_model_predicts_and_has_its_centres_if_any(self) -> None:
        model = centroids()
        assert model.predict([[2, 0.5], [8, 0.5]]).tolist() == model.assign([[2, 0.5], [8, 0.5]]).tolist()
        assert model.cluster_centers_ is model.centroids
        assert not hasattr(replace(label_map(), centroids=None), "cluster_centers_")
        assert repr(model) == "<ClusterModel centroids: 2 clusters of x, y; verdict doubtful>"
