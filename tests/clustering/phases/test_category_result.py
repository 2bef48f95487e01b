"""Test models of `phase_sketch` with category shares: their fields, labels, verdict and limits."""

from functools import cache

import numpy as np
import pytest

from clustering.random import SeededEntropy
from clustering.registry import start
from clustering.simulate import simulate, unit_features
from sfumato.errors import InvalidSpec
from sfumato.model.cluster_model import ClusterModel, model_from_wire
from sfumato.model.memberships import GaussianMixtureMemberships
from sfumato.model.posterior import posterior
from sfumato.model.precision import Verdict
from sfumato.records.described import Described
from sfumato.records.mixed import expand_features
from sfumato.records.outside import encode_many
from sfumato.specs import PhaseSketch
from tests.clustering.phases.categories import attribute, mixture_of

CATEGORIES = (3, 2, 3)
ATTRIBUTES = tuple(attribute(f"a{place}", m) for place, m in enumerate(CATEGORIES))
# Two clusters are at one place and differ in their categories.
CODES = [[0, 0, 0], [2, 1, 1], [1, 0, 2]]
POPULATION = mixture_of([[0.3, 0.4], [0.3, 0.4], [0.75, 0.7]], [0.4, 0.35, 0.25], CODES, CATEGORIES)
N = 40_000


@cache
def people():
    """Return labels, points and codes."""
    chance, places = np.random.default_rng(4), POPULATION.places
    labels = chance.choice(3, N, p=places.shares)
    points = places.centres[labels] + chance.normal(0, 0.08, (N, 2))
    codes = [(chance.random((N, 1)) > np.cumsum(shares[labels], axis=1)).sum(axis=1) for shares in POPULATION.shares]
    return labels, points.clip(0, 1), np.stack(codes, axis=1)


@cache
def model(clusters=3, seed=1):
    """Return the model of a run."""
    _, points, codes = people()
    params = PhaseSketch(epsilon=3, clusters=clusters, slots=256)
    return simulate(params, points, seed=seed, attributes=ATTRIBUTES, codes=codes)


def order(found):
    """Return the place of each true cluster in a model: by its usual categories."""
    usual = [tuple(int(part[place].argmax()) for part in found.category_shares.values()) for place in range(3)]
    return [usual.index(tuple(code)) for code in CODES]


class TestModel:
    def test_has_places_and_category_shares_of_each_cluster(self):
        found = model()
        at = order(found)
        assert [each.name for each in found.features] == ["x1", "x2", *(n for a in ATTRIBUTES for n in a.share_names)]
        assert found.n_numeric == 2
        true = np.hstack([POPULATION.places.centres, *POPULATION.shares])
        assert found.centroids[at] == pytest.approx(true, abs=0.2)
        assert found.centroids[at, :2] == pytest.approx(true[:, :2], abs=0.03)
        for shares in found.category_shares.values():
            assert shares.sum(axis=1) == pytest.approx(1)

    def test_states_its_errors(self):
        found = model()
        at = order(found)
        true = np.hstack([POPULATION.places.centres, *POPULATION.shares])
        deviations = (found.centroids[at] - true) / found.centroid_errors[at]
        assert 0.4 < np.sqrt(np.mean(deviations**2)) < 1.6
        assert (np.abs(found.sizes[at] - POPULATION.places.shares) < 3 * found.size_errors[at]).all()
        assert found.centroid_errors.max() < 0.12

    def test_is_the_same_after_a_document(self):
        found = model()
        again = model_from_wire(found.to_wire())
        assert again.attributes == ATTRIBUTES
        assert again.soft == found.soft
        assert (again.centroids == found.centroids).all()
        wire = found.to_wire()
        wire["memberships"]["categories"] = [3, 3]
        with pytest.raises(InvalidSpec, match="inconsistent"):
            model_from_wire(wire)

    @pytest.mark.slow
    def test_the_number_of_clusters_is_counted(self):
        found = model(clusters=None)
        assert found.n_clusters == 3
        lower, upper = found.diagnostics["cluster_interval"]
        assert lower <= 3 <= upper

    def test_few_reports_are_doubtful(self):
        _, points, codes = people()
        params = PhaseSketch(epsilon=0.5, clusters=2, slots=256)
        found = simulate(params, points[:500], seed=1, attributes=ATTRIBUTES, codes=codes[:500])
        assert found.verdict is Verdict.DOUBTFUL
        assert found.diagnostics["insufficient_reports"]
        assert any("too few" in each for each in found.warnings)

    @pytest.mark.parametrize("n", [1, 3])
    def test_a_few_reports_have_a_model(self, n):
        _, points, codes = people()
        params = PhaseSketch(epsilon=4, clusters=2, slots=64)
        found = simulate(params, points[:n], seed=1, attributes=ATTRIBUTES, codes=codes[:n])
        assert np.isfinite(found.centroids).all()
        assert np.isfinite(found.centroid_errors).all()


class TestLabels:
    def test_memberships_use_places_and_categories(self):
        labels, points, codes = people()
        found = model()
        shares = [np.eye(m)[codes[:, place]] for place, m in enumerate(CATEGORIES)]
        records = np.hstack([points, *shares])
        at = np.argsort(order(found))
        assert (at[found.memberships(records).argmax(axis=1)] == labels).mean() > 0.85
        assert (at[found.assign(records)] == labels).mean() > 0.8

    def test_memberships_are_the_posterior(self):
        found = model()
        soft = found.soft
        assert isinstance(soft, GaussianMixtureMemberships)
        code = (2, 0, 1)
        record = np.hstack([[0.4, 0.5], *(np.eye(m)[c] for m, c in zip(CATEGORIES, code, strict=True))])
        away = ((found.centroids[:, :2] - record[:2]) ** 2).sum(axis=1)
        like = found.sizes * np.exp(-away / (2 * np.square(soft.widths))) / np.square(soft.widths)
        for part, each in zip(found.category_shares.values(), code, strict=True):
            like = like * part[:, each]
        assert found.memberships(record[None])[0] == pytest.approx(like / like.sum(), rel=1e-6)

    def test_a_report_alone_gives_a_calibrated_posterior(self):
        """If the model is correct, the mean confidence equals the share of correct labels."""
        labels, points, codes = people()
        places, n = POPULATION.places, 20_000
        true = ClusterModel(
            "centroids",
            expand_features(unit_features(2), ATTRIBUTES),
            places.shares,
            np.zeros(3),
            centroids=np.hstack([places.centres, *POPULATION.shares]),
            soft=GaussianMixtureMemberships((0.08,) * 3, CATEGORIES),
            attributes=ATTRIBUTES,
        )
        plan = start(PhaseSketch(epsilon=6, clusters=3, slots=64), unit_features(2), n, ATTRIBUTES)
        spec = next(plan)
        entropy = SeededEntropy(5)
        slots = np.random.default_rng(5).integers(0, 64, n)
        symbols = encode_many(spec, Described(points[:n], codes[:n].astype(np.int64)), slots, entropy)
        given = posterior(true, spec, slots, spec.mechanism.perturb_many(symbols, entropy))
        confidence = given.max(axis=1)
        assert (given.argmax(axis=1) == labels[:n]).mean() == pytest.approx(confidence.mean(), abs=0.02)
        assert confidence.mean() > places.shares.max() + 0.05


class TestSharedPlaces:
    def test_two_attributes_do_not_separate_clusters_at_one_place(self):
        _, points, codes = people()
        params = PhaseSketch(epsilon=3, clusters=3, slots=128)
        found = simulate(params, points, seed=1, attributes=ATTRIBUTES[:2], codes=codes[:, :2])
        (warning,) = [each for each in found.warnings if "attributes do not determine" in each]
        near = [place for place in range(3) if found.centroids[place, 0] < 0.5]
        assert f"clusters {near[0]} and {near[1]} overlap" in warning
        assert found.verdict is not Verdict.RELIABLE

    def test_three_attributes_do(self):
        assert not any("do not determine" in each for each in model().warnings)


class TestLimits:
    def test_all_devices_report_phases(self):
        plan = start(PhaseSketch(epsilon=2, clusters=2), unit_features(6), 100_000, ATTRIBUTES)
        spec = next(plan)
        assert spec.participation.hi - spec.participation.lo == 1 << 64
        assert spec.encoding.attributes == ATTRIBUTES

    def test_too_many_categories_for_the_waves_are_refused(self):
        many = tuple(attribute(f"a{place}", 16) for place in range(4))
        with pytest.raises(InvalidSpec, match="1024 waves do not determine 65 numbers of each of 10 clusters"):
            next(start(PhaseSketch(epsilon=2, clusters=10), unit_features(3), 1000, many))

    def test_rounds_about_centroids_are_refused(self):
        with pytest.raises(InvalidSpec, match="refine=lloyd takes no attributes"):
            next(start(PhaseSketch(epsilon=2, clusters=3, refine="lloyd"), unit_features(6), 1000, ATTRIBUTES))
