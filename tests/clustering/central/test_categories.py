"""Jobs over records with categories among numbers: clusters, shares, and the checks of the other algorithms."""

import re

import numpy as np
import pandas as pd
import pytest

from clustering.central.mapped_records import select_columns
from clustering.central.profile_clusters import label_records
from clustering.estimators import PrivateKMeans
from clustering.metrics import adjusted_rand_index
from clustering.simulate import simulate_central
from sfumato import Categorical, Feature
from sfumato.errors import InvalidPoint, InvalidSpec
from sfumato.model.cluster_model import ClusterModel, model_from_wire
from sfumato.specs import Auto, DensityMap, DpKmeans, PrivateKmeans

N = 6_000
PLAN = Categorical("plan", ["free", "basic", "pro"], use="cluster")
REGION = Categorical("region", ["n", "e", "s", "w"], missing="category", use="cluster")
NOTE = Categorical("note", ["a", "b"])
EAST = Feature("east", 0, 10)


def people(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return labels of four groups, places and codes. Groups 0 and 1, and 2 and 3, differ in their categories alone."""
    chance = np.random.default_rng(seed)
    labels = chance.integers(4, size=N)
    x = np.clip(np.where(labels < 2, 0.25, 0.75) + chance.normal(0, 0.06, N), 0, 1)
    plan = np.where(chance.random(N) < 0.85, labels % 2 * 2, 1)
    region = np.where(chance.random(N) < 0.9, labels, 4)
    return labels, x[:, None], np.stack([plan, region], axis=1)


def fit(params: PrivateKmeans | Auto, **other: object) -> tuple[ClusterModel, float]:
    labels, points, codes = people()
    model = simulate_central(params, points, seed=1, features=(EAST,), attributes=(PLAN, REGION), codes=codes, **other)  # type: ignore[arg-type]
    return model, adjusted_rand_index(labels, model.assign(table(points, codes)))


def table(points: np.ndarray, codes: np.ndarray) -> pd.DataFrame:
    plan = np.array(["free", "basic", "pro"], dtype=object)[codes[:, 0]]
    region = np.array(["n", "e", "s", "w", None], dtype=object)[codes[:, 1]]
    return pd.DataFrame({"region": region, "east": 10 * points[:, 0], "plan": plan})


class TestClusters:
    @pytest.mark.parametrize(
        "params",
        [
            PrivateKmeans(4.0, 4),
            PrivateKmeans(2.0, 4, delta=1e-6),
            Auto(2.0, 4, delta=1e-6),
            PrivateKmeans(8.0, 4, delta=1e-6, bounds="private"),
            PrivateKmeans(8.0, 4, delta=1e-6, check_features=True),
        ],
        ids=["pure", "block", "auto", "private bounds", "feature check"],
    )
    def test_differ_in_their_categories_alone(self, params: PrivateKmeans | Auto) -> None:
        model, ari = fit(params)
        assert ari > 0.9
        assert [each.name for each in model.features[:2]] == ["east", "plan = free"]
        shares = model.category_shares
        assert {name: each.shape for name, each in shares.items()} == {"plan": (4, 3), "region": (4, 5)}
        for each in shares.values():
            assert each.min() >= 0
            assert each.sum(axis=1) == pytest.approx(np.ones(4), abs=1e-12)
        assert list(model.column_shares) == ["east", "plan", "region"]
        assert sum(model.column_shares.values()) == pytest.approx(1)
        assert model.column_shares["plan"] == pytest.approx(model.feature_shares[1:4].sum())
        largest = sorted(model.category_shares["region"].argmax(axis=1).tolist())
        assert largest == [0, 1, 2, 3]
        assert model.privacy["attributes"] == "public"
        again = model_from_wire(model.to_wire())
        assert again.attributes == (PLAN, REGION)
        assert repr(again).endswith(f"of east, plan, region; verdict {model.verdict.value}>")

    def test_have_the_shares_of_their_records_within_the_errors(self) -> None:
        _labels, points, codes = people()
        model, _ = fit(PrivateKmeans(2.0, 4, delta=1e-6))
        found = model.assign(table(points, codes))
        errors = np.asarray(model.centroid_errors)[:, 1:4]
        for cluster in range(4):
            own = np.bincount(codes[found == cluster, 0], minlength=3) / (found == cluster).sum()
            assert np.abs(model.category_shares["plan"][cluster] - own).max() < 0.03
        assert errors.max() < 0.03

    def test_are_the_labels_of_stored_records(self) -> None:
        _, points, codes = people()
        model, _ = fit(PrivateKmeans(8.0, 4, delta=1e-6, bounds="private"))
        assert model.features[0].upper < EAST.upper
        places = np.column_stack([(points[:, 0] * (1 << 20)).clip(0, (1 << 20) - 1), np.zeros(N), codes])
        labelling = label_records(model, (EAST,), (NOTE, PLAN, REGION))
        stored = labelling.index(places.astype(np.int32))
        assert (stored != model.assign(table(points, codes))).mean() < 0.001  # rounding to the lattice
        with pytest.raises(InvalidSpec, match="does not have"):
            label_records(model, (EAST,), (NOTE, PLAN))

    def test_have_shares_with_the_sum_one_under_much_noise(self) -> None:
        for delta in (0.0, 1e-6):
            model, _ = fit(PrivateKmeans(0.1, 8, delta=delta))
            for each in model.category_shares.values():
                assert each.min() >= 0
                assert each.sum(axis=1) == pytest.approx(np.ones(8), abs=1e-12)

    def test_take_the_weight_of_an_attribute(self) -> None:
        _labels, points, codes = people()
        shares = []
        for weight in (0.05, 1.0, 6.0):
            attribute = Categorical("plan", ["free", "basic", "pro"], use="cluster", weight=weight)
            params = PrivateKmeans(8.0, 2, delta=1e-6)
            chosen = {"attributes": (attribute,), "codes": codes[:, :1], "features": (EAST,)}
            model = simulate_central(params, points, seed=2, **chosen)  # type: ignore[arg-type]
            shares.append(model.column_shares["plan"])
        assert shares[0] < 0.05
        assert shares[2] > 0.8

    def test_warn_of_wide_bounds_of_the_numbers(self) -> None:
        _labels, points, codes = people()
        narrow = 0.5 + (points - 0.5) / 100
        params = PrivateKmeans(8.0, 2, delta=1e-6)
        chosen = {"attributes": (PLAN, REGION), "codes": codes, "features": (EAST,)}
        model = simulate_central(params, narrow, seed=2, **chosen)  # type: ignore[arg-type]
        assert any("of the declared bounds" in each for each in model.warnings), model.warnings


class TestRefusals:
    @pytest.mark.parametrize("params", [DensityMap(2.0), DpKmeans(2.0, 3)], ids=["density_map", "dp_kmeans"])
    def test_algorithms_without_categories_name_the_remedy(self, params: DensityMap) -> None:
        with pytest.raises(InvalidSpec, match="takes no categories: use private_kmeans, or name features without"):
            fit(params)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("codes", "message"),
        [
            (None, "shape (n, 1)"),
            (np.zeros((N, 2), dtype=np.int64), "shape (n, 1)"),
            (np.zeros((N, 1)), "integers"),
            (np.full((N, 1), 3), "a code of plan is not the place of a category"),
            (np.full((N, 1), -1), "a code of plan is not the place of a category"),
        ],
    )
    def test_codes_of_no_category(self, codes: np.ndarray | None, message: str) -> None:
        _, points, _ = people()
        with pytest.raises(InvalidPoint, match=re.escape(message)):
            simulate_central(PrivateKmeans(1.0, 2), points, seed=0, attributes=(PLAN,), codes=codes)

    def test_tables_of_other_columns_without_their_values(self) -> None:
        _labels, points, codes = people()
        model, _ = fit(PrivateKmeans(4.0, 4, delta=1e-6))
        frame = table(points, codes)
        for wrong, message in (
            (frame.drop(columns="region"), "the column region is missing"),
            (frame.drop(columns="east"), "east"),
            (frame.assign(more=1), "more"),
            (frame.assign(plan="gold"), "record 1 (counted from 1): plan must be one of its declared values"),
            (frame.assign(plan=None), "plan is missing"),
        ):
            with pytest.raises(InvalidPoint, match=re.escape(message)) as caught:
                model.assign(wrong)
            assert "gold" not in str(caught.value)
        expanded = np.concatenate([frame[["east"]], np.eye(3)[codes[:, 0]], np.eye(5)[codes[:, 1]]], axis=1)
        assert (model.assign(expanded) == model.assign(frame)).all()


def test_a_selection_reads_named_columns_alone() -> None:
    features, attributes = (EAST, Feature("north", 0, 1)), (NOTE, PLAN, REGION)
    records = np.array([[5, 6, 1, 2, 4], [7, 8, 0, 0, 0]], dtype=np.int32)
    chosen = select_columns(features, attributes, ["north", "region"])
    mapped = chosen.apply(records)
    (block,) = chosen.blocks
    assert mapped[:, 0].tolist() == [6, 8]
    assert mapped[:, 1:].tolist() == block.places[[4, 0]].tolist()
    assert (np.diff(np.sort(block.places, axis=1), axis=1) > 0).sum() == 5  # one place of five is higher
    whole = select_columns(features, attributes)
    assert (whole.n_features, whole.codes.tolist()) == (2 + 3 + 5, [3, 4])


class TestTheEstimator:
    def test_clusters_a_frame_with_its_categories(self) -> None:
        labels, points, codes = people()
        frame = table(points, codes)
        model = PrivateKMeans(n_clusters=4, epsilon=4, delta=1e-6, bounds=(0, 10), attributes=[PLAN, REGION])
        assert adjusted_rand_index(labels, model.fit_predict(frame)) > 0.9
        assert (model.predict(frame) == model.labels_).all()
        assert model.transform(frame).shape == (N, 4)
        assert (model.transform(frame).argmin(axis=1) == model.labels_).all()

    def test_refuses_records_without_the_columns(self) -> None:
        _labels, points, codes = people()
        model = PrivateKMeans(n_clusters=2, bounds=(0, 10), attributes=[PLAN])
        for records in (points, table(points, codes)[["east"]]):
            with pytest.raises(ValueError, match="attribute"):
                model.fit(records)
        with pytest.raises(ValueError, match="with the use cluster"):
            PrivateKMeans(n_clusters=2, bounds=(0, 10), attributes=[NOTE]).fit(table(points, codes))
