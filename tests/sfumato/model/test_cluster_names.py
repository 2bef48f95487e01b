"""Names of clusters: one per cluster, unique, and texts to show."""

from dataclasses import replace
from typing import Any

import pytest

from sfumato import cells_frame, clusters_frame, labels_frame, plot
from sfumato.errors import InvalidSpec
from sfumato.model.cluster_model import ClusterModel, model_from_wire
from sfumato.model.cluster_names import check_names, cluster_title
from tests.service.api import a_model


@pytest.fixture
def named() -> ClusterModel:
    return replace(a_model(), names=("west", ""))


class TestNames:
    @pytest.mark.parametrize("names", [[], ["", ""], ["a", ""], ["a", "b"], ["Pendler über 30", "夜"], ["a" * 64, ""]])
    def test_that_are_valid_are_kept(self, names: list[str]) -> None:
        assert check_names(names, 2) == (tuple(names) if any(names) else ())

    @pytest.mark.parametrize(
        ("names", "text"),
        [
            (["a"], "one name for each of the 2 clusters, not 1"),
            (["a", "b", "c"], "not 3"),
            (["a", "a"], "cluster 1 must be unique: cluster 0"),
            (["", " a"], "cluster 1 must have 1 to 64 bytes"),
            (["a\n", ""], "cluster 0"),
            (["a\u202e", ""], "printable"),
            (["a\u0308", ""], "NFC"),
            (["ä" * 33, ""], "64 bytes"),
            ("ab", "a list with one name per cluster"),
            ([1, ""], "cluster 0"),
        ],
    )
    def test_that_are_invalid_are_refused(self, names: Any, text: str) -> None:
        with pytest.raises(InvalidSpec, match=text):
            check_names(names, 2)

    def test_make_titles(self) -> None:
        assert [cluster_title(["a", ""], cluster) for cluster in range(3)] == ["cluster 0, a", "cluster 1", "cluster 2"]


class TestANamedModel:
    def test_survives_its_document(self, named: ClusterModel) -> None:
        assert model_from_wire(named.to_wire()).names == ("west", "")
        assert model_from_wire({**named.to_wire(), "names": []}).names == ()
        with pytest.raises(InvalidSpec):
            model_from_wire({**named.to_wire(), "names": ["west"]})

    def test_has_its_ids_in_its_document_and_in_frames(self, named: ClusterModel) -> None:
        model = replace(named, ids=("clu_1", None))
        assert model_from_wire(model.to_wire()).ids == ("clu_1", None)
        for wrong in (["clu_1"], ["clu_1", 2]):
            with pytest.raises(InvalidSpec):
                model_from_wire({**model.to_wire(), "ids": wrong})
        assert clusters_frame(model)["id"].fillna("").tolist() == ["clu_1", ""]
        assert labels_frame(model, [[0.9, 0.0], [0.1, 0.0]])["id"].fillna("").tolist() == ["", "clu_1"]
        assert "id" not in clusters_frame(named)

    def test_has_its_names_in_frames_and_in_the_legend(self, named: ClusterModel) -> None:
        assert clusters_frame(named)["name"].tolist() == ["west", ""]
        assert labels_frame(named, [[0.9, 0.0], [0.1, 0.0]])["name"].tolist() == ["", "west"]
        assert cells_frame(named)["name"].tolist() == ["west", "west", "", ""]
        texts = [each.get_text() for each in plot(named).legends[0].get_texts()]
        assert texts[0].startswith("0  west, ")
        assert plot(named, names=["left", ""]).legends[0].get_texts()[0].get_text().startswith("0  left, ")

    def test_has_no_name_column_without_names(self) -> None:
        assert "name" not in clusters_frame(a_model()).columns
