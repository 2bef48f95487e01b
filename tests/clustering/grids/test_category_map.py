"""Clusters of each category of an attribute, from one round of shifted grids."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from clustering.density.map_agreement import NO_AGREEMENT, Agreement, adjusted_rand
from clustering.density.map_division import agreement_table
from clustering.estimators import ShiftedGrid as ShiftedGridEstimator
from clustering.grids.category_map import CategoryDivision, index_of_whole
from clustering.rounds.outside import edge_grids
from clustering.rounds.plan import Collected
from clustering.rounds.tally import Tally
from clustering.simulate import simulate
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import design
from sfumato.model.category_maps import category_maps, cell_points
from sfumato.model.cluster_model import ClusterModel, model_from_wire
from sfumato.model.precision import Verdict
from sfumato.plotting.geojson import to_geojson
from sfumato.specs import Feature, RoundSpec, ShiftedGrid, ShiftedGridEncoding, UniformGrid
from sfumato.specs.attributes import Categorical

PLAN = Categorical("plan", ["free", "pro"], use="cluster")
PARAMS = ShiftedGrid(epsilon=4, clusters=6)
N = 20_000


def blobs(n: int = N) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Return labels, points and codes: two times three groups in the same places, 95 % in the category of their own."""
    chance = np.random.default_rng(0)
    centres = np.array([[0.25, 0.25], [0.7, 0.3], [0.5, 0.75]] * 2)
    labels = chance.integers(0, 6, n)
    points = np.clip(centres[labels] + chance.normal(0, 0.07, (n, 2)), 0, 1)
    codes = np.where(chance.random(n) < 0.95, labels // 3, 1 - labels // 3)
    return labels, points, codes


@pytest.fixture(scope="module")
def model() -> ClusterModel:
    _, points, codes = blobs()
    return simulate(PARAMS, points, seed=1, attributes=[PLAN], codes=codes[:, None])


def table(points: NDArray[np.float64], codes: NDArray[np.int64]) -> dict[str, object]:
    return {"x1": points[:, 0], "x2": points[:, 1], "plan": np.array(PLAN.categories)[codes]}


class TestAMapOfCategories:
    def test_separates_groups_in_the_same_places(self, model: ClusterModel) -> None:
        labels, points, codes = blobs()
        found = model.assign(table(points, codes))
        assert model.n_clusters == 6
        assert adjusted_rand_score(labels, found) > 0.85  # 1 of 20 people is in the other category: .88 is the most
        shares = np.bincount(found, minlength=6) / N
        assert np.abs(model.sizes - shares).max() < 3 * model.size_errors.max()
        assert model.size_errors.max() < 0.03

    def test_has_clusters_of_one_category_each(self, model: ClusterModel) -> None:
        assert model.label_map is not None
        assert model.category_shares["plan"].sum(axis=0).tolist() == [3, 3]
        assert not set(np.unique(model.label_map[..., 0])) & set(np.unique(model.label_map[..., 1]))
        assert model.density is not None
        assert model.density.sum() == pytest.approx(1)
        rows = model.diagnostics["categories"]
        assert [(row["category"], row["clusters"]) for row in rows] == [("free", 3), ("pro", 3)]
        assert sum(row["share"] for row in rows) == pytest.approx(1)

    def test_assigns_shares_of_categories_as_their_values(self, model: ClusterModel) -> None:
        _, points, codes = blobs(50)
        by_shares = model.assign(np.concatenate([points, np.eye(2)[codes]], axis=1))
        assert (by_shares == model.assign(table(points, codes))).all()

    def test_survives_its_document(self, model: ClusterModel) -> None:
        again = model_from_wire(model.to_wire())
        assert again.label_map is not None
        assert (again.label_map == model.label_map).all()
        wrong = model.to_wire() | {"attributes": []}
        with pytest.raises(InvalidSpec, match="inconsistent"):
            model_from_wire(wrong)

    def test_gives_a_plain_map_of_each_category(self, model: ClusterModel) -> None:
        free, pro = category_maps(model)
        assert (free.attribute, free.category, pro.category) == ("plan", "free", "pro")
        assert [each.name for each in free.model.features] == ["x1", "x2"]
        assert free.model.label_map is not None
        assert free.model.label_map.shape == model.label_map.shape[:2]  # type: ignore[union-attr]
        assert free.model.n_clusters == 6

    def test_has_points_of_its_cells(self, model: ClusterModel) -> None:
        index = np.argwhere(np.ones(model.label_map.shape, dtype=bool))[::97]  # type: ignore[union-attr]
        places = cell_points(model, index)
        assert places.shape == (len(index), 4)
        assert ((places[:, 2] > places[:, 3]) == (index[:, 2] == 0)).all()

    def test_warns_of_few_reports(self) -> None:
        _, points, codes = blobs(400)
        found = simulate(replace(PARAMS, clusters=None), points, seed=1, attributes=[PLAN], codes=codes[:, None])
        assert found.diagnostics["low_confidence"]
        assert any("are few for the people of free, pro" in each for each in found.warnings)
        assert found.verdict.value != "reliable"

    def test_has_no_detectable_cluster_of_a_category_without_people(self) -> None:
        _, points, codes = blobs(5000)
        empty = Categorical("plan", ["free", "pro", "gold"], use="cluster")
        found = simulate(PARAMS, points, seed=1, attributes=[empty], codes=codes[:, None])
        of_nobody = found.category_shares["plan"][:, 2] == 1
        assert of_nobody.any()
        clear = np.array(found.diagnostics["detectable"])
        assert not clear[of_nobody].any()
        assert clear[~of_nobody].all()


class TestTheAgreement:
    def test_of_the_whole_is_the_index_of_the_whole_map(self) -> None:
        chance = np.random.default_rng(3)
        shares, whole, indexes, squares = (0.6, 0.3, 0.1), [], [], []
        for place, share in enumerate(shares):
            one = chance.permutation(np.repeat(np.arange(place + 1), 12))  # clusters of equal sizes, one in the first
            other = one.copy()
            moved = chance.choice(len(one), 8, replace=False)
            other[moved] = chance.permutation(other[moved])
            even = np.full(len(one), 1 / len(one))
            indexes.append(adjusted_rand(one, other, even))
            squares.append(1 / (place + 1))
            whole.append((one + 10 * place, other + 10 * place, even * share))
        one, other, density = (np.concatenate(each) for each in zip(*whole, strict=True))
        assert indexes[0] == 1
        assert min(indexes) < 0.9
        found = index_of_whole(indexes, shares, squares)
        assert found == pytest.approx(adjusted_rand(one, other, density))

    def test_is_stated_for_all_people(self, model: ClusterModel) -> None:
        stated, names = model.diagnostics, ("stability", "halves", "between_halves", "scales")
        for name in names:
            assert min(row[name] for row in stated["categories"]) < stated[name] < 1
        assert model.expected_agreement is not None
        agreement = Agreement(*(stated[name] for name in (*names, "gap")))
        assert model.expected_agreement == agreement_table().estimate(agreement)
        assert model.verdict_reason is not None
        assert model.verdict_reason.startswith(
            f"Another run would agree with these clusters to about {model.expected_agreement.value:.2f}"
        )
        assert model.verdict_reason.count("Another run") == 1
        assert re.search(r"By category: free 0\.\d\d, pro 0\.\d\d\.", model.verdict_reason)

    @pytest.mark.parametrize(
        ("change", "verdict"),
        [
            ({}, "reliable"),
            ({"is_open": True}, "uncertain"),
            ({"undivided": 0.05}, "uncertain"),  # a half of the people has .025 of all
            ({"clearly_undivided": 0.07}, "doubtful"),
        ],
    )
    def test_is_limited_by_a_category_with_one_cluster(self, change: dict[str, Any], verdict: str) -> None:
        """Refits of a single cluster state nothing, so its count and its bumps limit the verdict."""
        clear = Agreement(0.95, 0.95, 0.95, 0.95, 1.0)
        common = {"count": object(), "is_open": False, "undivided": 0.0, "clearly_undivided": 0.0}
        several = SimpleNamespace(cut=SimpleNamespace(bumps=[1, 2]), agreement=clear, sum_of_squares=0.5, **common)
        one = SimpleNamespace(cut=SimpleNamespace(bumps=[1]), agreement=NO_AGREEMENT, sum_of_squares=1.0)
        vars(one).update(common | change)
        parts: Any = (several, one)
        empty = np.zeros(0)
        division = CategoryDivision(
            ("free", "pro"), parts, (0.5, 0.5), empty.astype(np.int64), empty, empty.astype(int), None
        )
        trust: Any = SimpleNamespace(n_eff=1e6)
        assert division.verdict(trust).value == verdict


def test_fewer_clusters_than_requested_are_doubtful() -> None:
    _, points, codes = blobs(4000)
    found = simulate(replace(PARAMS, clusters=256), points, seed=1, attributes=[PLAN], codes=codes[:, None])
    assert found.n_clusters < 256
    assert found.verdict is Verdict.DOUBTFUL
    assert found.verdict_reason is not None
    assert found.verdict_reason.endswith(f"Only {found.n_clusters} of 256 requested clusters were found.")


class TestParameters:
    def test_need_a_cluster_for_each_category(self) -> None:
        _, points, codes = blobs(10)
        with pytest.raises(InvalidSpec, match=r"at least 2, because each category of plan"):
            simulate(replace(PARAMS, clusters=1), points, seed=1, attributes=[PLAN], codes=codes[:, None])

    def test_need_shifted_grid(self) -> None:
        _, points, codes = blobs(10)
        with pytest.raises(InvalidSpec, match="uniform_grid takes no categories: use shifted_grid"):
            simulate(UniformGrid(epsilon=1), points, seed=1, attributes=[PLAN], codes=codes[:, None])


class TestTheEstimator:
    def test_takes_a_frame_with_the_attribute(self) -> None:
        _, points, codes = blobs(4000)
        people = pd.DataFrame(table(points, codes))
        bounds = ([0, 0], [1, 1])
        found = ShiftedGridEstimator(epsilon=8, n_clusters=6, cells=6, bounds=bounds, attributes=[PLAN]).fit(people)
        assert found.model_.n_clusters == 6
        assert (found.predict(people) == found.labels_).all()
        category = found.model_.category_shares["plan"].argmax(axis=1)
        assert (category[found.labels_] == codes).all()


class TestRegions:
    def test_state_their_category_as_geojson(self) -> None:
        features = (Feature("longitude", 0, 10, "degrees"), Feature("latitude", 0, 10, "degrees"))
        _, points, codes = blobs(2000)
        found = simulate(PARAMS, points, seed=1, attributes=[PLAN], codes=codes[:, None], features=features)
        parts = [each["properties"] for each in to_geojson(found)["features"]]
        assert {each["category"]["plan"] for each in parts} == {"free", "pro"}
        assert sum(each["kind"] == "region" for each in parts) == found.n_clusters


class TestEdges:
    def test_add_the_people_of_all_categories(self) -> None:
        encoding = ShiftedGridEncoding(1, 2, 1, attributes=(PLAN,))
        features = (Feature("x1", 0, 1),)
        spec = RoundSpec(features, encoding, design("grr", encoding.n_symbols, 4 * 10**9))
        (grid,) = edge_grids(Collected(spec, Tally(np.array([[3, 4, 5, 6, 0, 0]]), np.array([18]))))
        assert grid.shares.shape == (2,)
