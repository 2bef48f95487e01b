"""Profiles of clusters: sensitivities, consistent shares, distinctions, and the recall of a census-like table."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from clustering.central.cells import NearestCells, to_places
from clustering.central.curator import Curator
from clustering.central.mapped_records import Selection
from clustering.central.profile_clusters import describe_columns, label_records, profile_clusters
from clustering.central.profile_tables import (
    SCORE_UNITS,
    SHARE_BITS,
    Column,
    Labelling,
    ProfileTables,
    check_shares,
    exact_scores,
    public_shares,
)
from clustering.central.queries import MemoryJournal, Records
from clustering.errors import TooFewRecords
from clustering.profiles.distinctions import (
    LISTED,
    find_distinctions,
    laplace_normal_tail,
    select_discoveries,
    too_small,
)
from clustering.profiles.shares import Noise, make_consistent, share_variances
from clustering.random import SeededEntropy
from sfumato.errors import InvalidSpec
from sfumato.model.cluster_model import ClusterModel
from sfumato.privacy.accounting import parse_delta, parse_epsilon
from sfumato.profiles.cluster_profile import ClusterProfile, profile_from_wire, show_times
from sfumato.sizing.profiles import plan_profile
from sfumato.specs import LATTICE, Feature, Profile, bin_feature
from sfumato.specs.attributes import Categorical, Numeric

K = 5
SIZES = np.array([0.35, 0.25, 0.2, 0.13, 0.07])
N_VALUES = (2, 3, 4, 5, 6, 8, 10, 12, 3, 5, 7, 9)
STRONG, WEAK = (0, 3, 5, 8), (2, 10)  # attributes that are associated with the clusters
FEATURES = (Feature("x", 0, 1),)
CENTRES = ((np.arange(K) + 0.5) / K)[:, None]
MODEL = ClusterModel("centroids", FEATURES, SIZES, np.zeros(K), centroids=CENTRES)
ATTRIBUTES = tuple(Categorical(f"a{j}", tuple(f"v{v}" for v in range(n))) for j, n in enumerate(N_VALUES))


def population(chance: np.random.Generator) -> list[np.ndarray]:
    """Return the shares of the values of each attribute in each cluster."""
    shares = []
    for j, n in enumerate(N_VALUES):
        base = chance.dirichlet(np.full(n, 3.0))
        rows = np.tile(base, (K, 1))
        if j in STRONG + WEAK:
            strength = 0.5 if j in STRONG else 0.12
            rows = (1 - strength) * rows + strength * chance.dirichlet(np.full(n, 0.5), K)
        shares.append(rows)
    return shares


def people(shares: list[np.ndarray], n: int, chance: np.random.Generator) -> Records:
    """Draw records: the place of the cluster, then the codes of the attributes."""
    labels = chance.choice(K, n, p=SIZES)
    codes = [(chance.random(n)[:, None] > rows.cumsum(axis=1)[labels][:, :-1]).sum(axis=1) for rows in shares]
    return Records(np.column_stack([to_places(CENTRES[labels]), *codes]).astype(np.int32))


def profile(records: Records, *, seed: int = 0, attributes=ATTRIBUTES, model=MODEL, **parameters) -> ClusterProfile:
    params = Profile(of="job_x", attributes=tuple(each.name for each in attributes), **parameters)
    budget = parse_epsilon(params.epsilon), parse_delta(params.delta)
    curator = Curator(records, budget[0], MemoryJournal(), SeededEntropy(seed), budget[1])
    columns = describe_columns(FEATURES, ATTRIBUTES, attributes)
    return profile_clusters(params, model, label_records(model, FEATURES), columns, curator)


class TestTables:
    def test_count_each_record_once_per_attribute(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("clustering.central.cells.BLOCK_VALUES", 64)
        chance = np.random.default_rng(0)
        points = np.column_stack([chance.integers(0, LATTICE, 500), chance.integers(0, 3, 500)]).astype(np.int32)
        labelling = Labelling(Selection(np.array([0])), None, NearestCells(to_places(CENTRES)))
        tables = ProfileTables(labelling, (Column(1, 3, is_feature=False), Column(0, 8, is_feature=True)))
        counts = np.zeros((K, 3), dtype=int), np.zeros((K, 8), dtype=int)
        for place, code in points.tolist():
            c = int(np.abs(CENTRES[:, 0] * LATTICE - place).argmin())
            counts[0][c, code] += 1
            counts[1][c, place * 8 // LATTICE] += 1
        found = tables.split(tables(points)[0])
        assert [each.tolist() for each in found] == [each.tolist() for each in counts]

    @given(st.integers(0, 2**32 - 1))
    def test_one_record_changes_a_score_by_at_most_one(self, seed: int) -> None:
        chance = np.random.default_rng(seed)
        k, v = int(chance.integers(1, 6)), int(chance.integers(1, 6))
        shares = public_shares(chance.dirichlet(np.ones(k)))
        table = chance.integers(0, 30, (k, v))
        other = table.copy()
        other[chance.integers(k), chance.integers(v)] += 1
        before, after = exact_scores([table], shares)[0], exact_scores([other], shares)[0]
        assert abs(after - before) <= SCORE_UNITS

    def test_shares_of_the_records_themselves_would_change_it_by_more(self) -> None:
        worst = 0.0
        chance = np.random.default_rng(0)
        for _ in range(3_000):
            table = chance.integers(0, 4, (2, 2)) + np.eye(2, dtype=int)
            other = table.copy()
            other[chance.integers(2), chance.integers(2)] += 1
            own = [exact_scores([each], public_shares(each.sum(axis=1).astype(float)))[0] for each in (table, other)]
            worst = max(worst, abs(own[1] - own[0]) / SCORE_UNITS)
        assert worst > 1.05

    @given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
    def test_public_shares_add_up_to_one(self, sizes: list[float]) -> None:
        shares = public_shares(np.array(sizes))
        assert shares.sum() == 1 << SHARE_BITS
        assert (shares >= 0).all()

    def test_other_shares_are_refused(self) -> None:
        labelling = Labelling(Selection(np.array([0])), None, NearestCells(to_places(CENTRES)))
        tables = ProfileTables(labelling, (Column(1, 3, is_feature=False),))
        for shares in (np.zeros(K, dtype=np.int64), public_shares(np.ones(K - 1))):
            with pytest.raises(ValueError, match="add up to 1"):
                check_shares(tables, shares)


class TestLabels:
    def test_are_those_of_the_model(self) -> None:
        features = (Feature("x", 0, 10), Feature("y", -5, 5), Feature("z", 0, 1))
        chance = np.random.default_rng(3)
        values = chance.uniform([0, -5, 0], [10, 5, 1], (2_000, 3))
        lower, upper = np.array([0, -5, 0]), np.array([10, 5, 1])
        points = to_places((values - lower) / (upper - lower)).astype(np.int32)
        narrow = (Feature("z", 0.25, 0.75), Feature("x", 0, 10))
        centroids = np.array([[0.3, 2.0], [0.7, 3.0], [0.5, 9.0]])
        model = ClusterModel("centroids", narrow, np.ones(3) / 3, np.zeros(3), centroids=centroids)
        labels = label_records(model, features).index(points)
        assert (labels == model.assign(values[:, [2, 0]])).mean() > 0.999
        shaped = ClusterModel(
            "label_map", features[:2], np.ones(2) / 2, np.zeros(2), label_map=np.array([[0, 1], [1, 0]])
        )
        assert label_records(shaped, features).index(points).tolist() == shaped.assign(values[:, :2]).tolist()

    def test_of_another_dataset_are_refused(self) -> None:
        with pytest.raises(InvalidSpec, match="features that this dataset does not have"):
            label_records(MODEL, (Feature("east", 0, 1),))


class TestShares:
    def test_are_consistent_and_their_errors_are_right(self) -> None:
        chance = np.random.default_rng(4)
        truth = [np.array([[600, 400], [90, 10]]), np.array([[500, 300, 200], [20, 30, 50]])]
        z = []
        for _ in range(400):
            noisy = [np.rint(table + chance.laplace(size=table.shape, scale=10)).astype(np.int64) for table in truth]
            found = make_consistent(noisy, Noise(200.0))
            for place, (table, adjusted) in enumerate(zip(truth, found.tables, strict=True)):
                assert found.shares[place].sum(axis=1) == pytest.approx(1.0)
                assert (found.shares[place] >= 0).all()
                assert adjusted.sum(axis=1) == pytest.approx(found.numbers)
                errors = np.sqrt(share_variances(found, place, Noise(200.0)))
                z.append((adjusted / found.numbers[:, None] - table / table.sum(axis=1)[:, None])[0] / errors[0])
        assert np.sqrt(np.mean(np.concatenate(z) ** 2)) == pytest.approx(1.0, abs=0.1)  # fails at 30 % less noise

    def test_small_clusters_are_named(self) -> None:
        found = make_consistent([np.array([[500, 500], [3, -2]])], Noise(50.0))
        assert too_small(found) == [1]
        assert {each.cluster for each in find_distinctions(found, Noise(50.0, 5.0), 1)[0]} <= {0}


class TestDiscoveries:
    def test_follow_benjamini_and_hochberg(self) -> None:
        p = np.array([0.9, 0.001, 0.02, 0.04, 0.0001])
        assert select_discoveries(p, 0.05).tolist() == [False, True, True, True, True]
        assert not select_discoveries(np.array([0.03, 0.5]), 0.05).any()
        assert not select_discoveries(np.empty(0), 0.05).any()

    @pytest.mark.parametrize(("scale", "deviation"), [(1.0, 1.0), (5.0, 0.5), (0.1, 2.0)])
    def test_tails_of_laplace_and_normal_noise_are_those_of_a_sample(self, scale: float, deviation: float) -> None:
        chance = np.random.default_rng(5)
        drawn = chance.laplace(scale=scale, size=400_000) + chance.normal(scale=deviation, size=400_000)
        for size in (0.5, 1.0, 3.0):
            expected = float((drawn > size).mean())
            tail = float(laplace_normal_tail(np.array([size]), scale, np.array([deviation]))[0])
            assert tail == pytest.approx(expected, abs=5 * np.sqrt(max(expected, 1e-5) / 400_000))

    def test_without_laplace_noise_are_normal_tails(self) -> None:
        tail = laplace_normal_tail(np.array([1.5]), 0.0, np.array([1.0]))
        assert tail[0] == pytest.approx(norm.sf(1.5), rel=1e-6)


class TestPlan:
    @pytest.mark.parametrize(
        ("n", "delta", "first", "block"),
        [(3, 0.0, 0.0, False), (5, 1e-6, 0.0, False), (6, 0.0, 0.1, False), (12, 1e-6, 0.1, True)],
    )
    def test_chooses_the_first_pass_and_the_noise_by_public_numbers(
        self, n: int, delta: float, first: float, block: bool
    ) -> None:
        plan = plan_profile(Profile(of="job_x", attributes=("a",), epsilon=1, delta=delta), n)
        assert (plan.first_pass, plan.has_block) == (first, block)

    def test_states_the_variance_of_the_released_counts(self) -> None:
        records = people(population(np.random.default_rng(0)), 2_000, np.random.default_rng(1))
        for delta in (0.0, 1e-6):
            found = profile(records, epsilon=1.0, delta=delta, first_pass=0.0)
            params = Profile(of="job_x", attributes=("a",), epsilon=1.0, delta=delta, first_pass=0.0)
            expected = plan_profile(params, len(ATTRIBUTES)).variance
            assert found.diagnostics["noise_per_count"] ** 2 == pytest.approx(expected, rel=0.01)


class TestProfile:
    def test_of_associated_attributes_names_what_distinguishes_clusters(self) -> None:
        chance = np.random.default_rng(7)
        shares = population(chance)
        found = profile(people(shares, 20_000, chance), epsilon=1.0, seed=3)
        described = {each.name for each in found.attributes if each.status == "described"}
        assert {f"a{j}" for j in STRONG} <= described
        assert found.diagnostics["spent_nano"] == 10**9
        assert found.sizes == pytest.approx(SIZES, abs=0.02)
        for each in found.distinguishing(0)[:5]:
            truth = shares[int(each.attribute[1:])][0, int(each.value[1:])]
            assert each.share == pytest.approx(truth, abs=0.04)
        again = profile_from_wire(json.loads(json.dumps(found.to_wire())))
        assert again.to_wire() == found.to_wire()

    def test_of_many_values_is_a_short_document_without_rounding_errors(self) -> None:
        chance = np.random.default_rng(9)
        n_values, attributes = 64, tuple(Categorical(f"a{j}", tuple(f"value{v}" for v in range(64))) for j in range(12))
        labels, records = chance.choice(K, 40_000, p=SIZES), []
        for _ in attributes:
            ends = chance.dirichlet(np.full(n_values, 0.3), K).cumsum(axis=1)[labels][:, :-1]
            records.append((chance.random(len(labels))[:, None] > ends).sum(axis=1))
        columns = np.column_stack([to_places(CENTRES[labels]), *records]).astype(np.int32)
        params = Profile(of="job_x", attributes=tuple(each.name for each in attributes), epsilon=2.0)
        curator = Curator(Records(columns), parse_epsilon(2.0), MemoryJournal(), SeededEntropy(0), 0)
        described = describe_columns(FEATURES, attributes, attributes)
        found = profile_clusters(params, MODEL, label_records(MODEL, FEATURES), described, curator)
        wire = json.dumps(found.to_wire(), separators=(",", ":"))
        assert len(wire) < 200_000
        assert len(found.distinguishing(0)) == LISTED
        assert any(f"The list has the {LISTED} clearest differences of each cluster" in each for each in found.warnings)
        again = profile_from_wire(json.loads(wire))
        for exact, read in zip(found.attributes, again.attributes, strict=True):
            assert np.abs(exact.shares - read.shares).max() <= 0.1 * exact.share_errors.max()
            assert read.shares.sum(axis=1) == pytest.approx(np.ones(K), abs=0.01)
            assert read.share_errors == pytest.approx(exact.share_errors, rel=0.05)
        for exact, read in zip(found.distinctions, again.distinctions, strict=True):
            assert read.lift == pytest.approx(exact.lift, rel=1e-3)
            assert read.difference == pytest.approx(exact.difference, abs=0.1 * exact.share_error)

    def test_of_features_counts_their_equal_bins(self) -> None:
        chance = np.random.default_rng(8)
        found = profile(
            people(population(chance), 20_000, chance),
            epsilon=1.0,
            attributes=(bin_feature(FEATURES[0]), ATTRIBUTES[0]),
        )
        assert [each.name for each in found.attributes] == ["x", "a0"]
        table = found.attribute("x").shares
        assert table is not None
        assert table[0, 0] == pytest.approx(1.0, abs=0.02)  # cluster 0 lies at x = 0.1
        assert found.attribute("x").association > 0.5

    def test_of_few_records_is_refused_after_the_charge(self) -> None:
        records = Records(people(population(np.random.default_rng(0)), 3, np.random.default_rng(1)).points)
        with pytest.raises(TooFewRecords, match="no cluster has more records than the noise"):
            profile(records, epsilon=0.1)

    def test_noise_grows_with_the_records_of_a_user(self) -> None:
        records = people(population(np.random.default_rng(0)), 20_000, np.random.default_rng(1))
        one = profile(records, epsilon=1.0, first_pass=0.0)
        five = profile(records._replace(max_per_user=5), epsilon=1.0, first_pass=0.0)
        ratio = five.diagnostics["noise_per_count"] / one.diagnostics["noise_per_count"]
        assert ratio == pytest.approx(5.0, rel=0.01)

    def test_with_missing_values_and_bins_fits_their_categories(self) -> None:
        age = Numeric("a0", (0, 18, 120))
        assert age.categories == ("0 to 18", "18 to 120")
        assert replace(age, missing="category").categories[-1] == "missing"

    @pytest.mark.parametrize(("delta", "least"), [(0.0, (0.5, 0.85, 0.93)), (1e-6, (0.55, 0.87, 0.93))])
    def test_recall_and_false_discoveries_of_a_census_like_table(self, delta: float, least: tuple[float, ...]) -> None:
        """Three tables: the bounds of the recall lie five standard errors below the means of forty tables."""
        for epsilon, bound in zip((0.1, 0.5, 1.0), least, strict=True):
            recall, false = [], []
            for seed in range(3):
                chance = np.random.default_rng(100 + seed)
                shares = population(chance)
                found = profile(people(shares, 20_000, chance), epsilon=epsilon, delta=delta, seed=seed)
                truth = distinguishing_values(shares)
                listed = {(each.cluster, each.attribute, each.value) for each in found.distinctions}
                recall.append(len(listed & truth) / len(truth))
                null = {f"a{j}" for j in range(len(N_VALUES))} - {f"a{j}" for j in STRONG + WEAK}
                false.append(sum(attribute in null for _, attribute, _ in listed) / max(len(listed), 1))
            assert np.mean(recall) >= bound
            assert np.mean(false) <= 0.1


def distinguishing_values(shares: list[np.ndarray]) -> set[tuple[int, str, str]]:
    """Return the values with shares that differ by .03 and by a factor of 1.5 from those in all other clusters."""
    found = set()
    for j, rows in enumerate(shares):
        for c in range(K):
            others = SIZES * (np.arange(K) != c)
            rest = others / others.sum() @ rows
            is_far = (np.abs(rows[c] - rest) >= 0.03) & (np.maximum(rows[c] / rest, rest / rows[c]) >= 1.5)
            found |= {(c, f"a{j}", f"v{v}") for v in np.nonzero(is_far)[0]}
    return found


@pytest.mark.parametrize(
    ("lift", "shown"),
    [
        (28.46, "28.5 times"),
        (1.04, "1.0 times"),
        (0.94, "0.94 times"),
        (0.03, "0.03 times"),
        (0.0, "less than 0.001 times"),
    ],
)
def test_a_factor_below_one_has_two_significant_digits(lift: float, shown: str) -> None:
    assert show_times(lift) == shown
