"""`ldp_kmeans`: its rounds, how they lead to one another, and the model of the last ones."""

import json
from itertools import pairwise

import numpy as np
import pytest

from clustering.broadcast_centroids import hear, spread_out, to_lattice
from clustering.errors import UnfitRound
from clustering.phase_search import PublicWords
from clustering.plan import Collected, Tally, drive
from clustering.plans.ldp_kmeans import revived, step_lengths
from clustering.registry import start
from clustering.simulate import SeededEntropy, collect, simulate
from sfumato.accounting import DRAW_SPAN, cost
from sfumato.mechanisms import design, epsilon_nano
from sfumato.sizing import first_places
from sfumato.specs import Feature, GridEncoding, LdpKmeans, NearestCentroidEncoding, RoundSpec

CENTRES = np.full((4, 6), 0.3)
CENTRES[[0, 1, 1, 2, 3], [0, 0, 1, 1, 5]] = 0.7
SHARES = [0.4, 0.3, 0.2, 0.1]


def features(n):
    return tuple(Feature(f"x{i}", 0, 1) for i in range(n))


def blobs(n, spread=0.05, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.choice(4, n, p=SHARES)
    return (CENTRES[labels] + spread * rng.standard_normal((n, 6))).clip(0, 1), labels


def run(params, points, seed=1, through=lambda collected: collected):
    """The model, and every round as it was collected."""
    entropy, rounds = SeededEntropy(seed), []
    draws = entropy.words(len(points))

    def answer(spec):
        rounds.append(through(collect(spec, points, entropy, draws)))
        return rounds[-1]

    return drive(start(params, features(points.shape[1]), 10), answer), rounds


class TestRounds:
    def test_part_the_devices_so_that_each_spends_epsilon_once(self):
        _, rounds = run(LdpKmeans(epsilon=1, clusters=4, rounds=5), blobs(500)[0])
        parts = [collected.spec.draw for collected in rounds]
        assert len(parts) == 5
        assert (parts[0].lo, parts[-1].hi) == (0, DRAW_SPAN)
        assert all(before.hi == after.lo for before, after in pairwise(parts))
        assert parts[0].hi == pytest.approx(DRAW_SPAN / 5, rel=1e-9)
        spent = [((each.spec.draw.lo, each.spec.draw.hi), epsilon_nano(each.spec.mechanism)) for each in rounds]
        assert 0.999e9 < cost(spent) <= 10**9

    def test_begin_with_places_that_owe_nothing_to_anybody(self):
        for points in (blobs(500)[0], np.zeros((50, 6))):
            _, rounds = run(LdpKmeans(epsilon=1, clusters=4, seed=3), points)
            shown = tuple(map(tuple, spread_out(32, 6, seed=3).tolist()))
            assert rounds[0].spec.encoding == NearestCentroidEncoding(shown)
            assert all(len(each.spec.encoding.centroids) == 4 for each in rounds[1:])

    def test_go_on_from_the_centroids_as_published(self):
        """Another machine rounds otherwise: what it published is what counts."""
        elsewhere = to_lattice(np.full((4, 6), 0.9))
        published = []

        def through(collected):
            published.append(collected.spec)
            if len(published) == 3:
                spec = RoundSpec(features(6), NearestCentroidEncoding(elsewhere), collected.spec.mechanism)
                return Collected(spec, Tally.empty(spec))
            return collected

        run(LdpKmeans(epsilon=1, clusters=4), blobs(2000)[0], through=through)
        assert published[3].encoding.centroids == elsewhere  # nobody answered, so nothing moved

    def test_of_another_kind_are_refused(self):
        other = RoundSpec(features(2), GridEncoding((2, 2)), design("grr", 4, 10**9))
        with pytest.raises(UnfitRound, match="nearest centroids"):
            drive(start(LdpKmeans(1, 2), features(2), 10), lambda _: Collected(other, Tally.empty(other)))

    def test_over_another_number_of_centroids_are_refused(self):
        encoding = NearestCentroidEncoding(((1, 1), (2, 2), (3, 3)))
        other = RoundSpec(features(2), encoding, design("grr", 6, 10**9))
        with pytest.raises(UnfitRound, match="another number"):
            drive(start(LdpKmeans(1, 2), features(2), 10), lambda _: Collected(other, Tally.empty(other)))


class TestFirstPlaces:
    def test_are_more_where_reports_are_many_and_never_more_than_may_be_shown(self):
        assert first_places(4, 100_000, 10**9) == 32
        assert first_places(4, 100_000, 4 * 10**9) == 64
        assert first_places(4, 10**6, 10**9) == 64
        assert first_places(256, 10**9, 4 * 10**9) == 256


class TestSteps:
    @pytest.mark.parametrize(("clusters", "d", "n"), [(1, 1, 2), (4, 4, 7), (256, 1, 5), (256, 64, 31)])
    def test_shorten_in_proportion_from_public_facts(self, clusters, d, n):
        lengths = step_lengths(clusters, d, n)
        assert len(lengths) == n
        assert lengths[0] == pytest.approx(max(0.25 * clusters ** (-1 / d), 0.04))
        assert lengths[-1] == pytest.approx(0.04)
        ratios = [after / before for before, after in pairwise(lengths)]
        assert ratios == pytest.approx([ratios[0]] * (n - 1))
        assert ratios[0] <= 1


class TestRevived:
    def told(self, masses):
        encoding = NearestCentroidEncoding(to_lattice(np.array([[0.2, 0.2], [0.8, 0.8], [0.5, 0.1]])))
        spec = RoundSpec(features(2), encoding, design("grr", 6, 10**9))
        return hear(Collected(spec, Tally.empty(spec)))._replace(masses=np.array(masses))

    def test_a_dead_centroid_goes_beside_the_heaviest(self):
        told = self.told([0.3, 0.7, 0.01])
        after = revived(told, told.places, 0.1, PublicWords(0))
        assert np.array_equal(after[:2], told.places[:2])
        assert np.abs(after[2] - told.places[1]) == pytest.approx([0.05, 0.05])

    def test_the_living_stay(self):
        told = self.told([0.3, 0.6, 0.1])
        assert np.array_equal(revived(told, told.places, 0.1, PublicWords(0)), told.places)

    def test_where_all_are_dead_nothing_is_known_and_nothing_moves(self):
        told = self.told([0.0, -0.1, 0.01])
        assert np.array_equal(revived(told, told.places, 0.1, PublicWords(0)), told.places)


class TestModel:
    def test_four_blobs_in_six_features_are_found_with_their_sizes_and_errors(self):
        points, labels = blobs(60_000)
        model = simulate(LdpKmeans(epsilon=4, clusters=4), points, seed=1)
        assert (model.assign(points) == labels).mean() > 0.99  # by descending size, as the blobs are
        assert np.abs(model.centroids - CENTRES).max() < 0.03
        assert (np.abs(model.centroids - CENTRES) < 5 * model.centroid_errors).all()
        assert (model.centroid_errors < 0.03).all()
        assert (np.abs(model.sizes - SHARES) < 5 * model.size_errors).all()
        assert (model.size_errors < 0.02).all()
        assert model.warnings == ()
        said = model.diagnostics
        assert said["low_confidence"] is False
        assert said["first_places"] == 64
        assert sum(said["reports_by_round"]) == said["n_reports"] == 60_000
        assert said["detectable"] == said["settled"] == [True] * 4

    def test_centroids_and_errors_are_in_the_features_units(self):
        points, _ = blobs(10_000)
        wide = tuple(Feature(f"x{i}", -10, 10 * (i + 1)) for i in range(6))
        ranges = np.array([feature.upper - feature.lower for feature in wide])
        plain = simulate(LdpKmeans(epsilon=4, clusters=4), points, seed=1)
        scaled = simulate(LdpKmeans(epsilon=4, clusters=4), points, seed=1, features=wide)
        assert scaled.centroids == pytest.approx(plain.centroids * ranges - 10)
        assert scaled.centroid_errors == pytest.approx(plain.centroid_errors * ranges)

    def test_unperturbed_it_comes_to_the_medians(self):
        points, labels = blobs(60_000)
        model = simulate(LdpKmeans(epsilon=4, clusters=4), points, seed=1, perturb=False)
        medians = np.stack([np.median(points[labels == c], axis=0) for c in range(4)])
        assert np.abs(model.centroids - medians).max() < 0.01
        assert model.diagnostics["n_eff"] is None

    def test_a_centroid_on_its_way_is_said_to_be(self):
        points = np.full((50_000, 1), 0.0)
        model = simulate(LdpKmeans(epsilon=8, clusters=1, rounds=3), points, seed=1)
        assert model.diagnostics["settled"] == [False]
        assert "still moving" in " ".join(model.warnings)

    def test_the_seed_is_of_the_first_places(self):
        points, _ = blobs(5000)
        one, same, other = (simulate(LdpKmeans(1, 4, seed=s), points, seed=1).centroids for s in (1, 1, 2))
        assert np.array_equal(one, same)
        assert not np.array_equal(one, other)

    def test_driven_again_on_stored_tallies_gives_the_same_bytes(self):
        params = LdpKmeans(epsilon=1, clusters=3)
        model, rounds = run(params, blobs(5000)[0])
        stored = iter([Collected(each.spec, Tally.from_bytes(each.tally.to_bytes())) for each in rounds])
        again = drive(start(params, features(6), 10), lambda _: next(stored))
        assert json.dumps(again.to_wire()) == json.dumps(model.to_wire())
