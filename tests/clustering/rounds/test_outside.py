"""People outside of the bounds: the estimate of their share, and the results for those inside."""

from math import sqrt

import numpy as np
import pytest

from clustering.random import SeededEntropy
from clustering.rounds.decoders import decoder
from clustering.rounds.outside import inside, outside_share, pooled
from clustering.simulate import collect, simulate
from sfumato.errors import InvalidPoint, InvalidSpec
from sfumato.model.outside import OutsideShare
from sfumato.privacy.accounting import NANO
from sfumato.records.outside import count_outside
from sfumato.specs import (
    LATTICE,
    AdaptiveGridIterative,
    AdaptiveGridTree,
    CentroidSignEncoding,
    Feature,
    GridEncoding,
    GridKmeans,
    LatticeEncoding,
    LdpKmeans,
    NearestCentroidEncoding,
    NoisyFcm,
    PhaseEncoding,
    PhaseSketch,
    PrivateKmeans,
    RoundSpec,
    ShiftedGrid,
    ShiftedGridEncoding,
    TreeGridEncoding,
    UniformGrid,
    design_for,
)

UNIT = (Feature("x", 0.0, 1.0), Feature("y", 0.0, 1.0))
CENTROIDS = ((LATTICE // 4, LATTICE // 4), (LATTICE // 2, 3 * LATTICE // 4), (4 * LATTICE // 5, 2 * LATTICE // 5))
ENCODINGS = {
    "grid": (GridEncoding((6, 6)), "auto"),
    "hadamard": (GridEncoding((6, 6)), "hr"),
    "unary": (GridEncoding((6, 6)), "oue"),
    "shifted": (ShiftedGridEncoding(2, 5, 3), "auto"),
    "tree": (TreeGridEncoding(2, (1, 2, 2, 2, 2, 1, 1)), "auto"),
    "nearest": (NearestCentroidEncoding(CENTROIDS), "auto"),
    "sign": (CentroidSignEncoding(CENTROIDS), "auto"),
    "phase": (PhaseEncoding(((900, 100), (-300, 1200), (2000, 700)), 12), "window"),
    "phase by response": (PhaseEncoding(((900, 100), (-300, 1200), (2000, 700)), 12), "grr"),
    "lattice": (LatticeEncoding(2, 1000), "auto"),
}
ALGORITHMS = [
    ShiftedGrid(epsilon=2, clusters=3),
    UniformGrid(epsilon=2, clusters=3),
    AdaptiveGridTree(epsilon=2, clusters=3),
    AdaptiveGridIterative(epsilon=2, clusters=3),
    PhaseSketch(epsilon=2, clusters=3),
    PhaseSketch(epsilon=2, clusters=3, refine="sign"),
    GridKmeans(epsilon=2, clusters=3),
    LdpKmeans(epsilon=2, clusters=3),
]
CENTRES = np.array([(0.25, 0.25), (0.5, 0.75), (0.8, 0.4)])


def people(n, share_outside, *, where="corner", seed=5):
    rng = np.random.default_rng(seed)
    points = CENTRES[rng.integers(0, 3, n)] + rng.normal(scale=0.05, size=(n, 2)).clip(-0.19, 0.19)
    k = round(share_outside * n)
    points[:k] = {
        "corner": lambda: rng.uniform(-20, -5, (k, 2)),
        "one feature": lambda: np.column_stack([points[:k, 0], np.full(k, 1.3e6)]),
        "around": lambda: 0.5 + np.where(rng.random((k, 2)) < 0.5, -1, 1) * rng.uniform(0.6, 9, (k, 2)),
    }[where]()
    return points


def collected(name, points, seed, epsilon_nano=2 * NANO):
    encoding, kind = ENCODINGS[name]
    spec = count_outside(RoundSpec(UNIT, encoding, design_for(encoding, kind, epsilon_nano)))
    entropy = SeededEntropy(seed)
    return collect(spec, points, entropy, entropy.words(len(points)))


class TestShare:
    @pytest.mark.parametrize("name", ENCODINGS)
    @pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
    def test_is_unbiased_with_its_error(self, name: str, share: float) -> None:
        """24 rounds: mean and spread of the standardised errors. With free seeds, false alarms are below 1e-3."""
        found = [outside_share(collected(name, people(1500, share), seed)) for seed in range(24)]
        scores = np.array([(each.value - share) / each.error for each in found])
        assert abs(scores.mean()) < 4.5 / sqrt(24)
        # the stated error includes the sampling of people, which are the same in all rounds here
        assert 0.3 < (scores**2).mean() < 2.6

    def test_estimates_are_pooled_by_precision(self) -> None:
        both = pooled([OutsideShare(0.1, 0.01), OutsideShare(0.4, 0.03)])
        assert both.value == pytest.approx(0.13)
        assert both.error == pytest.approx(0.03 / sqrt(10))
        assert pooled([OutsideShare(0.1, float("inf"))]).error == float("inf")


class TestInside:
    @pytest.mark.parametrize("name", [name for name in ENCODINGS if not name.startswith("phase") and name != "lattice"])
    def test_frequencies_are_those_of_the_people_inside(self, name: str) -> None:
        """The mean square difference from a round of the people inside alone is the sum of both variances."""
        points = people(40_000, 0.4)
        counted = collected(name, points, 1)
        view = inside(counted, outside_share(counted))
        assert not view.spec.counts_outside
        alone = collected(name, points[16_000:], 2)
        expected = inside(alone, OutsideShare(0.0, 0.001))
        assert view.tally.n_reports == pytest.approx(0.6**2 * 40_000, rel=0.1)
        reading = decoder(view.spec.mechanism)
        found, other = (reading.frequencies(each.tally) for each in (view, expected))
        assert found.sum(axis=1) == pytest.approx(np.ones(len(found)), abs=1e-3)
        by_slot = view.tally.reports.mean(), expected.tally.reports.mean()
        variance = sum(
            (reading.zero_variance + other.mean() * reading.slope_variance + other.mean()) / n for n in by_slot
        )
        assert ((found - other) ** 2).mean() < 1.6 * variance

    def test_vectors_of_people_outside_are_left_out_by_their_mark(self) -> None:
        counted = collected("lattice", people(20_000, 0.3), 3, epsilon_nano=20 * NANO)
        view = inside(counted, outside_share(counted))
        assert view.sample.values.shape[1] == 2
        assert view.sample.n_reports == pytest.approx(14_000, rel=0.02)

    @pytest.mark.parametrize("name", ENCODINGS)
    def test_an_empty_round_has_the_symbols_of_the_people_inside(self, name: str) -> None:
        view = inside(collected(name, np.empty((0, 2)), 1), OutsideShare(0.0, float("inf")))
        assert (view.spec.counts_outside, view.aggregate.n_reports) == (False, 0)
        if name == "lattice":
            assert view.sample.values.shape == (0, 2)
        elif not view.spec.mechanism.has_support:
            assert view.tally.counts.shape[1] == view.spec.mechanism.n_symbols
        else:
            assert decoder(view.spec.mechanism).frequencies(view.tally).shape[1] == view.spec.encoding.n_symbols

    @pytest.mark.parametrize("params", ALGORITHMS, ids=lambda each: f"{each.type} {getattr(each, 'refine', '')}")
    def test_a_quarter_outside_neither_moves_nor_adds_a_cluster(self, params) -> None:
        model = simulate(params, people(30_000, 0.25), seed=4, out_of_bounds="count")
        assert model.outside_share == pytest.approx(0.25, abs=4.5 * model.outside_share_error)
        assert 0 < model.outside_share_error < 0.03
        found = model.centroids[np.argsort(model.centroids[:, 0])]
        assert found == pytest.approx(CENTRES, abs=0.09)
        assert model.sizes.sum() == pytest.approx(1)
        assert model.warnings[0].startswith(f"About {100 * model.outside_share:.2g} %")
        assert model.verdict != "reliable"
        assert model.diagnostics["n_reports"] == pytest.approx(30_000, abs=2)
        assert model.privacy["outside_share"] == "dp"

    @pytest.mark.parametrize("where", ["one feature", "around"])
    def test_wherever_they_are(self, where: str) -> None:
        model = simulate(ShiftedGrid(epsilon=2), people(30_000, 0.15, where=where), seed=4, out_of_bounds="count")
        assert model.outside_share == pytest.approx(0.15, abs=4.5 * model.outside_share_error)
        assert (model.n_clusters, model.verdict) == (3, "uncertain")

    def test_nobody_outside_is_no_warning(self) -> None:
        model = simulate(ShiftedGrid(epsilon=2), people(30_000, 0.0), seed=4, out_of_bounds="count")
        assert model.outside_share < 4.5 * model.outside_share_error
        assert not any("outside" in warning for warning in model.warnings)

    @pytest.mark.parametrize("params", [*ALGORITHMS, NoisyFcm(epsilon=4, clusters=3)], ids=lambda each: each.type)
    def test_everybody_outside_is_a_doubtful_result(self, params) -> None:
        points = people(3000, 0.0)[:, ::-1] * 1e6 + 5  # micro-degrees, and latitude in place of longitude
        model = simulate(params, points, seed=4, out_of_bounds="count")
        assert model.outside_share > 1 - 4.5 * model.outside_share_error
        assert model.verdict == "doubtful"
        assert model.warnings[0].startswith("About ")

    def test_unperturbed_reports_give_the_exact_share(self) -> None:
        params = UniformGrid(epsilon=2, clusters=3)
        model = simulate(params, people(3000, 0.2), seed=4, out_of_bounds="count", perturb=False)
        assert model.outside_share == pytest.approx(0.2)


class TestSimulate:
    def test_points_outside_are_refused_unless_the_caller_says_how_to_treat_them(self) -> None:
        points = people(1000, 0.2)
        with pytest.raises(InvalidPoint, match="outside"):
            simulate(UniformGrid(epsilon=2, clusters=3), points, seed=1)
        assert simulate(UniformGrid(epsilon=2, clusters=3), points, seed=1, out_of_bounds="clip").outside_share is None
        with pytest.raises(InvalidSpec, match="local"):
            simulate(PrivateKmeans(epsilon=2, clusters=3), points, seed=1, out_of_bounds="count")
        with pytest.raises(InvalidSpec, match="refuse, count, clip"):
            simulate(UniformGrid(epsilon=2, clusters=3), points, seed=1, out_of_bounds="drop")
