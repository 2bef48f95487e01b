"""`valley_hashing`: its two rounds, what it finds among clear groups, and what it says where there are none."""

import json
from dataclasses import replace

import numpy as np
import pytest

from clustering.errors import TooFewReports, UnfitRound
from clustering.metrics import adjusted_rand_index
from clustering.plan import Collected, Tally, drive
from clustering.plans.valley_hashing import valley_hashing
from clustering.registry import start
from clustering.simulate import SeededEntropy, collect, simulate
from clustering.valleys import directions
from sfumato.accounting import DRAW_SPAN, cost
from sfumato.cluster_model import model_from_wire
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import design, epsilon_nano
from sfumato.specs import (
    LATTICE,
    Draw,
    Feature,
    GridEncoding,
    GrrMechanism,
    HalfspaceCodeEncoding,
    ProjectedGridEncoding,
    RoundSpec,
    ValleyHashing,
)


def features(n):
    return tuple(Feature(f"x{i}", 0, 1) for i in range(n))


def crowds(n, d=4, seed=1, k=3):
    """k round crowds around the corners of a simplex, in shares of 3 : 2 : 2 ..."""
    rng = np.random.default_rng([seed, 7])  # not the devices' own generator, or their draws would know their crowd
    shares = np.array([3] + [2] * (k - 1))
    labels = rng.choice(k, n, p=shares / shares.sum())
    centres = np.full((k, d), 0.3)
    for cluster in range(1, k):
        centres[cluster, cluster - 1] = 0.75
    return (centres[labels] + rng.normal(0, 0.05, (n, d))).clip(0, 1), labels


def assert_sound(model):
    json.dumps(model.to_wire(), allow_nan=False)
    assert model_from_wire(model.to_wire()).to_wire() == model.to_wire()
    assert model.type == "codes"
    assert model.centroids is None
    assert model.sizes.sum() == pytest.approx(1)
    assert (model.sizes >= 0).all()
    assert (np.diff(model.sizes) <= 0).all()
    assert (model.size_errors >= 0).all()
    assert np.unique(model.label_map).tolist() == list(range(model.n_clusters))
    assert len(model.diagnostics["detectable"]) == model.n_clusters
    assert model.density is None or model.density.sum() == pytest.approx(1)
    assert set(model.privacy) == set(model.to_wire())
    assert "experimental" in model.warnings[0]


class Devices:
    """Points that answer any round, and what they answered."""

    def __init__(self, points, seed=1):
        self.points, self.seed, self.answered = points, seed, []

    def __call__(self, spec):
        entropy = SeededEntropy(self.seed + len(self.answered))
        draws = SeededEntropy(1000 + self.seed).words(len(self.points))
        self.answered.append(collect(spec, self.points, entropy, draws))
        return self.answered[-1]


def run(params, answer, d=4):
    return drive(start(params, features(d), 1000), answer)


class TestRounds:
    def test_are_two_for_different_devices_at_the_full_epsilon(self):
        devices = Devices(crowds(30_000)[0])
        run(ValleyHashing(epsilon=2, cuts=5, seed=3), devices)
        first, second = (collected.spec for collected in devices.answered)
        assert first.encoding == directions(4, 16, 3)
        assert isinstance(second.encoding, HalfspaceCodeEncoding)
        assert second.encoding.n_symbols == 32
        assert (first.draw, second.draw) == (Draw.between(0, 0.4), Draw.between(0.4, 1))
        assert first.draw.hi == second.draw.lo
        costs = [epsilon_nano(spec.mechanism) for spec in (first, second)]
        assert all(2e9 - 10 <= each <= 2e9 for each in costs)
        both = [((s.draw.lo, s.draw.hi), c) for s, c in zip((first, second), costs, strict=True)]
        assert cost(both) == max(costs)

    @pytest.mark.parametrize(("d", "n"), [(2, 16), (8, 16), (9, 18), (24, 48), (64, 128)])
    def test_look_along_twice_as_many_directions_as_there_are_features(self, d, n):
        asked = next(valley_hashing(ValleyHashing(epsilon=1), features(d), 1000))
        assert len(asked.encoding.weights) == n
        assert len(json.dumps(list(asked.encoding.weights))) < 100_000

    def test_look_along_as_many_as_asked_for(self):
        asked = next(valley_hashing(ValleyHashing(epsilon=1, projections=6), features(4), 1000))
        assert asked.encoding == directions(4, 6, 0)

    def test_ask_the_same_whoever_expects_how_many(self):
        params = ValleyHashing(epsilon=1)
        assert next(valley_hashing(params, features(3), 10)) == next(valley_hashing(params, features(3), 10**8))

    @pytest.mark.parametrize("d", [1, 65])
    def test_are_not_for_one_feature_nor_for_more_than_64(self, d):
        with pytest.raises(InvalidSpec, match="2 to 64 features"):
            next(valley_hashing(ValleyHashing(epsilon=1), features(d), 1000))


class TestParameters:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"cuts": 0},
            {"cuts": 13},
            {"cuts": 2.0},
            {"cuts": True},
            {"projections": 1},
            {"projections": 129},
            {"projections": "8"},
            {"seed": -1},
            {"seed": 1 << 32},
            {"seed": None},
            {"clusters": 0},
            {"clusters": 257},
            {"epsilon": 0},
            {"epsilon": "1"},
        ],
        ids=repr,
    )
    def test_out_of_range_are_refused(self, wrong):
        with pytest.raises(InvalidSpec):
            ValleyHashing(**({"epsilon": 1} | wrong))


class TestFinding:
    @pytest.mark.parametrize("clusters", [None, 3])
    @pytest.mark.parametrize("d", [4, 16])
    def test_crowds_are_told_apart_and_counted(self, d, clusters):
        points, labels = crowds(60_000, d)
        model = simulate(ValleyHashing(epsilon=4, clusters=clusters), points, seed=1)
        assert_sound(model)
        assert model.n_clusters == 3
        assert adjusted_rand_index(model.assign(points), labels) > 0.95
        assert (np.abs(model.sizes - np.array([3, 2, 2]) / 7) < 3 * model.size_errors + 0.02).all()
        assert model.diagnostics["detectable"] == [True] * 3
        assert model.diagnostics["low_confidence"] is False
        assert not any("reports are few" in warning or "stand" in warning for warning in model.warnings)

    def test_fewer_than_there_are_keep_the_greatest(self):
        points, labels = crowds(30_000, k=4)
        model = simulate(ValleyHashing(epsilon=4, clusters=1), points, seed=2)
        assert_sound(model)
        assert model.n_clusters == 1
        two = simulate(ValleyHashing(epsilon=4, clusters=2), points, seed=2)
        assert two.n_clusters == 2
        assert len(np.unique(two.assign(points[labels == 0]))) >= 1

    def test_more_than_there_are_is_said(self):
        points, _ = crowds(30_000)
        model = simulate(ValleyHashing(epsilon=4, clusters=200), points, seed=3)
        assert_sound(model)
        assert "200 clusters were asked for" in " ".join(model.warnings)

    def test_diagnostics_tell_of_the_cuts_and_the_reports(self):
        points, _ = crowds(30_000)
        model = simulate(ValleyHashing(epsilon=2, cuts=4), points, seed=4)
        said = model.diagnostics
        assert sum(said["reports_by_round"]) == said["n_reports"] == 30_000
        assert said["reports_by_round"][0] == pytest.approx(12_000, abs=500)
        assert said["n_eff"] == pytest.approx(30_000 * np.sinh(1) ** 2, rel=1e-6)
        assert said["reports_needed"] == pytest.approx(1e4 / np.sinh(1) ** 2, abs=1)
        assert len(said["cuts"]) == 4
        for cut in said["cuts"]:
            assert np.linalg.norm(cut["direction"]) == pytest.approx(1)
            assert 0 < cut["excess_mass"] < 0.5
            assert cut["excess_mass_error"] > 0
        assert said["n_codes_kept"] >= model.n_clusters

    def test_sizes_are_as_exact_as_said(self):
        points, _ = crowds(30_000)
        off = []
        for seed in range(4):
            model = simulate(ValleyHashing(epsilon=1, clusters=3), points, seed=seed)
            shares = np.bincount(model.assign(points), minlength=model.n_clusters) / len(points)
            off += list((model.sizes - shares) / model.size_errors)
        assert 0.2 < np.sqrt(np.mean(np.square(off))) < 1.5

    def test_equal_seeds_give_equal_models(self):
        points, _ = crowds(20_000)
        wires = [json.dumps(simulate(ValleyHashing(epsilon=2), points, seed=5).to_wire()) for _ in range(2)]
        assert wires[0] == wires[1]
        other = simulate(ValleyHashing(epsilon=2, seed=6), points, seed=5)
        assert json.dumps(other.to_wire()) != wires[0]


class TestLittleToFind:
    def test_no_reports_are_too_few(self):
        with pytest.raises(TooFewReports):
            simulate(ValleyHashing(epsilon=1), np.empty((0, 3)), seed=1)

    def test_a_second_round_that_brings_nothing_has_too_few(self):
        devices = Devices(crowds(30_000)[0])

        def answer(spec):
            return Collected(spec, Tally.empty(spec)) if devices.answered else devices(spec)

        with pytest.raises(TooFewReports):
            run(ValleyHashing(epsilon=2), answer)

    @pytest.mark.parametrize("n", [3, 30, 300])
    @pytest.mark.parametrize("perturb", [True, False])
    @pytest.mark.parametrize("clusters", [None, 3])
    def test_few_reports_make_a_flagged_model(self, n, perturb, clusters):
        points = np.random.default_rng(1).random((n, 3))
        model = simulate(ValleyHashing(epsilon=0.5, clusters=clusters), points, seed=1, perturb=perturb)
        assert_sound(model)
        if perturb:
            assert model.diagnostics["low_confidence"] is True
            assert f"about {model.diagnostics['reports_needed']} would" in model.warnings[1]

    @pytest.mark.parametrize("place", [0.0, 0.41, 1.0])
    @pytest.mark.parametrize("perturb", [True, False])
    def test_all_in_one_place_make_a_model(self, place, perturb):
        model = simulate(ValleyHashing(epsilon=2), np.full((20_000, 5), place), seed=2, perturb=perturb)
        assert_sound(model)
        assert model.sizes[model.assign(np.full((1, 5), place))[0]] > 0.9

    def test_one_crowd_without_a_valley_is_one_cluster_and_the_second_round_is_not_asked_for(self):
        points = np.random.default_rng(3).normal(0.5, 0.12, (150_000, 3)).clip(0, 1)
        devices = Devices(points)
        model = run(ValleyHashing(epsilon=8, projections=3), lambda spec: devices(unperturbed(spec)), d=3)
        assert_sound(model)
        assert model.n_clusters == 1
        assert len(devices.answered) == 1
        assert "No direction has a valley" in model.warnings[-1]
        assert model.diagnostics["low_confidence"] is True
        assert model.diagnostics["detectable"] == [False]
        assert set(model.assign(points[:100]).tolist()) == {0}

    def test_codes_that_do_not_stand_out_are_one_cluster(self):
        devices = Devices(crowds(30_000)[0])

        def answer(spec):
            if not devices.answered:
                return devices(spec)
            tally = Tally.empty(spec)
            tally.counts[:], tally.reports[:] = 50, 50 * spec.encoding.n_symbols // spec.mechanism.subset_size
            return Collected(spec, tally)

        model = run(ValleyHashing(epsilon=2), answer)
        assert_sound(model)
        assert model.n_clusters == 1
        assert "No code of sides stands out" in " ".join(model.warnings)
        assert model.diagnostics["low_confidence"] is True
        assert model.diagnostics["detectable"] == [False]

    def test_cuts_through_crowds_are_told(self):
        points = np.random.default_rng(4).random((60_000, 4))
        model = simulate(ValleyHashing(epsilon=4), points, seed=4)
        assert_sound(model)
        assert model.n_clusters == 1 or model.diagnostics["crossed_share"] > 0.5
        assert model.n_clusters == 1 or "pieces of larger ones" in model.warnings[-1]

    @pytest.mark.parametrize("epsilon", [1e-6, 32])
    @pytest.mark.parametrize("clusters", [None, 2, 256])
    def test_extreme_epsilon_makes_a_model(self, epsilon, clusters):
        points, _ = crowds(3000)
        assert_sound(simulate(ValleyHashing(epsilon=epsilon, clusters=clusters), points, seed=5))

    @pytest.mark.parametrize(("d", "cuts"), [(2, 12), (64, 1)])
    def test_the_fewest_and_the_most_are_taken(self, d, cuts):
        points, _ = crowds(3000, d, k=2)
        assert_sound(simulate(ValleyHashing(epsilon=4, cuts=cuts, projections=None), points, seed=6))

    def test_a_constant_feature_makes_a_model(self):
        points, labels = crowds(30_000)
        points[:, 3] = 0.5
        model = simulate(ValleyHashing(epsilon=4), points, seed=7)
        assert_sound(model)
        assert adjusted_rand_index(model.assign(points), labels) > 0.9


def unperturbed(spec):
    return replace(spec, mechanism=GrrMechanism(spec.encoding.n_symbols, DRAW_SPAN))


class TestPublishedRounds:
    def test_are_gone_on_from_whatever_was_asked_for(self):
        points, labels = crowds(30_000)
        devices = Devices(points)
        along = ProjectedGridEncoding(((1, 0, 0, 0), (0, 2, 0, 0)), (0, 0), (LATTICE, 2 * LATTICE), 12, 3)

        def answer(spec):
            if isinstance(spec.encoding, ProjectedGridEncoding):
                return devices(replace(spec, encoding=along, mechanism=design("grr", 13, 3 * 10**9)))
            assert {tuple(map(abs, row)) for row in spec.encoding.weights} == set(along.weights)
            return devices(spec)

        model = run(ValleyHashing(epsilon=3), answer)
        assert_sound(model)
        assert adjusted_rand_index(model.assign(points), labels) > 0.95

    def test_the_code_is_the_published_one(self):
        points, _ = crowds(30_000)
        devices = Devices(points)
        code = HalfspaceCodeEncoding(((1, 0, 0, 0), (0, 1, 0, 0)), (LATTICE // 2, LATTICE // 2))

        def answer(spec):
            if isinstance(spec.encoding, ProjectedGridEncoding):
                return devices(spec)
            return devices(replace(spec, encoding=code, mechanism=design("ss", 4, 3 * 10**9)))

        model = run(ValleyHashing(epsilon=3), answer)
        assert_sound(model)
        assert model.encoding == code
        assert model.n_clusters == 3

    @pytest.mark.parametrize("place", [0, 1])
    def test_of_another_encoding_are_refused(self, place):
        devices = Devices(crowds(20_000)[0])

        def answer(spec):
            if len(devices.answered) < place:
                return devices(spec)
            other = RoundSpec(features(4), GridEncoding((2,) * 4), design("grr", 16, 10**9))
            return devices(other)

        with pytest.raises(UnfitRound, match="goes on from"):
            run(ValleyHashing(epsilon=2), answer)

    @pytest.mark.parametrize("place", [0, 1])
    def test_whose_reports_say_nothing_are_refused(self, place):
        devices = Devices(crowds(20_000)[0])

        def answer(spec):
            if len(devices.answered) < place:
                return devices(spec)
            k = 16
            encoding = (
                replace(spec.encoding, cells=k - 1)
                if place == 0
                else HalfspaceCodeEncoding(spec.encoding.weights[:4], spec.encoding.thresholds[:4])
            )
            return devices(replace(spec, encoding=encoding, mechanism=GrrMechanism(k, DRAW_SPAN // k)))

        with pytest.raises(UnfitRound, match="say nothing"):
            run(ValleyHashing(epsilon=2), answer)

    def test_driven_again_on_stored_tallies_give_the_same_bytes(self):
        devices = Devices(crowds(20_000)[0])
        params = ValleyHashing(epsilon=2)
        before = json.dumps(run(params, devices).to_wire())
        assert len(devices.answered) == 2
        stored = {each.spec: each.tally.to_bytes() for each in devices.answered}
        again = run(params, lambda spec: Collected(spec, Tally.from_bytes(stored[spec])))
        assert json.dumps(again.to_wire()) == before

    @pytest.mark.parametrize("kind", ["grr", "oue", "hr", "olh"])
    def test_of_any_mechanism_are_read(self, kind):
        points, labels = crowds(30_000)
        devices = Devices(points)

        def answer(spec):
            return devices(replace(spec, mechanism=design(kind, spec.encoding.n_symbols, 4 * 10**9)))

        model = run(ValleyHashing(epsilon=4, cuts=4), answer)
        assert_sound(model)
        assert adjusted_rand_index(model.assign(points), labels) > 0.8
