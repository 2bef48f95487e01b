"""The share of people at the bounds, where clipped values lie."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from clustering.edges import find_edge_share
from clustering.registry import start
from clustering.rounds.outside import edge_grids
from clustering.simulate import SeededEntropy, collect, simulate, simulate_central
from sfumato.model.outside import UNSEEN, EdgeShare, edge_share_of_centres
from sfumato.model.precision import Verdict
from sfumato.records.encodings import scale_many
from sfumato.specs import (
    Algorithm,
    DensityMap,
    Feature,
    GridKmeans,
    LdpKmeans,
    NoisyFcm,
    PhaseSketch,
    Place,
    PrivateKmeans,
    ShiftedGrid,
    UniformGrid,
)

N = 50_000
FEATURES = Feature("x", 0, 1), Feature("y", 0, 1)
GRIDS = [ShiftedGrid(epsilon=2.0), GridKmeans(epsilon=2.0, clusters=3), UniformGrid(epsilon=2.0)]

Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]


def people(share: float = 0.0, elsewhere: Draw | None = None) -> NDArray[np.float64]:
    """Return three clusters, with a share of the people elsewhere, clipped to the bounds."""
    draw = np.random.default_rng(5)
    points = draw.choice([(0.25, 0.25), (0.5, 0.75), (0.8, 0.4)], size=N) + draw.normal(scale=0.05, size=(N, 2))
    if elsewhere is not None:
        points[: int(share * N)] = elsewhere(draw, int(share * N))
    return points.clip(0, 1)


def edges(algorithm: Algorithm, points: NDArray[np.float64], seed: int = 2) -> EdgeShare | None:
    entropy = SeededEntropy(seed)
    spec = next(start(algorithm, FEATURES, len(points)))
    return find_edge_share(edge_grids(collect(spec, points, entropy, entropy.words(len(points)))))


@pytest.mark.parametrize("algorithm", GRIDS, ids=lambda each: type(each).__name__)
class TestShareAtTheBounds:
    # The seeds are fixed. Other seeds exceed 4.5 standard errors once in 100,000 runs.
    @pytest.mark.parametrize(
        ("share", "elsewhere", "sides"),
        [
            (0.15, lambda draw, k: draw.uniform(-20, -5, (k, 2)), {(0, -1), (1, -1)}),
            (0.15, lambda draw, k: draw.normal(0.5, 8, (k, 2)), {(0, -1), (0, 1), (1, -1), (1, 1)}),
            (0.25, lambda draw, k: np.column_stack([draw.uniform(2, 3, k), draw.uniform(0, 1, k)]), {(0, 1)}),
        ],
        ids=["a corner", "all around", "one side"],
    )
    def test_is_that_of_clipped_values(
        self, algorithm: Algorithm, share: float, elsewhere: Draw, sides: set[tuple[int, int]]
    ) -> None:
        found = edges(algorithm, people(share, elsewhere))
        assert found is not None
        assert abs(found.value - share) < 4.5 * found.error
        assert found.error < 0.03
        assert sides <= set(found.sides)

    @pytest.mark.parametrize(
        "draw_people",
        [
            lambda draw: people(),
            lambda draw: draw.uniform(0, 1, (N, 2)),
            lambda draw: draw.exponential(0.1, (N, 2)),
            lambda draw: np.exp(draw.normal(0, 0.6, (N, 2))) / 8,
            lambda draw: draw.normal(0.06, 0.03, (N, 2)),
        ],
        ids=["clusters", "uniform", "exponential", "lognormal", "a cluster beside a corner"],
    )
    def test_is_not_stated_of_a_tail_or_a_cluster(
        self, algorithm: Algorithm, draw_people: Callable[[np.random.Generator], NDArray[np.float64]]
    ) -> None:
        found = edges(algorithm, draw_people(np.random.default_rng(8)).clip(0, 1))
        assert found is None or found.value < 0.05


class TestResult:
    def test_of_clipped_reports_warns_and_is_uncertain_at_best(self) -> None:
        clipped = people(0.15, lambda draw, k: draw.uniform(-20, -5, (k, 2)))
        model = simulate(GridKmeans(epsilon=2.0, clusters=3), clipped, seed=2, features=FEATURES)
        assert abs(model.diagnostics["edge_share"]["value"] - 0.15) < 4 * model.diagnostics["edge_share"]["error"]
        assert "lower bound of x, lower bound of y" in model.warnings[0]
        assert model.warnings[0].startswith("About 15 % (± ")
        assert model.verdict != Verdict.RELIABLE

    @pytest.mark.parametrize("algorithm", [PrivateKmeans(epsilon=1.0, clusters=3), DensityMap(epsilon=1.0)])
    def test_of_clipped_records_warns_and_that_of_others_does_not(self, algorithm: PrivateKmeans | DensityMap) -> None:
        clipped = people(0.15, lambda draw, k: draw.uniform(-20, -5, (k, 2)))
        model = simulate_central(algorithm, clipped, seed=2, features=FEATURES)
        assert abs(model.diagnostics["edge_share"]["value"] - 0.15) < 4 * model.diagnostics["edge_share"]["error"]
        assert model.verdict != Verdict.RELIABLE
        assert "edge_share" not in simulate_central(algorithm, people(), seed=2, features=FEATURES).diagnostics

    @pytest.mark.parametrize("d", [2, 4])
    def test_of_phases_finds_a_corner_beside_the_given_clusters(self, d: int) -> None:
        draw = np.random.default_rng(6)
        points = draw.choice(draw.uniform(0.2, 0.8, (3, d)), size=N) + draw.normal(scale=0.05, size=(N, d))
        features = tuple(Feature(f"x{place}", 0, 1) for place in range(d))
        params = PhaseSketch(epsilon=2.0, clusters=3, refine="none")
        plain = simulate(params, points.clip(0, 1), seed=2, features=features)
        assert "edge_share" not in plain.diagnostics
        points[: N // 5] = -9
        clipped = simulate(params, points.clip(0, 1), seed=2, features=features)
        found = clipped.diagnostics["edge_share"]
        assert abs(found["value"] - 0.2) < 0.05
        assert found["bounds"] == [f"lower bound of x{place}" for place in range(d)]
        assert clipped.verdict != Verdict.RELIABLE
        assert sum("at the bounds" in each for each in clipped.warnings) == 1

    def test_of_people_who_were_counted_outside_states_no_corner(self) -> None:
        outside = people()
        outside[: N // 5] = -9
        model = simulate(
            PhaseSketch(2.0, clusters=3, slots=128), outside, seed=2, features=FEATURES, out_of_bounds="count"
        )
        assert "edge_share" not in model.diagnostics
        assert abs(model.outside_share - 0.2) < 4 * model.outside_share_error

    @pytest.mark.parametrize("algorithm", [GridKmeans(2.0, 2), ShiftedGrid(2.0, 2), PrivateKmeans(1.0, 2)])
    def test_has_no_edge_at_a_pole_or_at_the_seam_of_a_circle(
        self, algorithm: GridKmeans | ShiftedGrid | PrivateKmeans
    ) -> None:
        draw = np.random.default_rng(6)
        places = draw.choice([(89.0, 0.0), (-89.0, 180.0)], size=N) + draw.normal(scale=0.3, size=(N, 2))
        places[:, 1] = (places[:, 1] + 180) % 360 - 180
        places[:, 0] = places[:, 0].clip(-90, 90)
        points = scale_many(Place().features, places)
        for features, has_edges in ((Place().features, False), (FEATURES, True)):
            if isinstance(algorithm, PrivateKmeans):
                model = simulate_central(algorithm, points, seed=2, features=features)
            else:
                model = simulate(algorithm, points, seed=2, features=features)
            assert ("edge_share" in model.diagnostics) is has_edges

    def test_without_a_grid_names_clusters_with_their_centre_at_a_bound(self) -> None:
        clipped = people(0.25, lambda draw, k: draw.uniform(-20, -5, (k, 2)))
        model = simulate(LdpKmeans(epsilon=4.0, clusters=4), clipped, seed=3, features=FEATURES)
        found = edge_share_of_centres(model)
        assert found is not None
        assert set(found.sides) == {(0, -1), (1, -1)}
        assert abs(found.value - 0.25) < 0.03
        assert edge_share_of_centres(simulate(LdpKmeans(epsilon=4.0, clusters=3), people(), seed=3)) is None


class TestMethodThatDoesNotShowTheBounds:
    @pytest.mark.parametrize(
        ("algorithm", "features"),
        [
            (LdpKmeans(epsilon=4.0, clusters=3, rounds=3), FEATURES),
            (NoisyFcm(epsilon=8.0, clusters=3), FEATURES),
            (UniformGrid(epsilon=2.0, cells=4), FEATURES),
            (PhaseSketch(2.0, clusters=3, refine="none"), (Feature("hour", 0, 24, periodic=True), Feature("y", 0, 1))),
        ],
        ids=lambda each: getattr(each, "type", None),
    )
    def test_warns_if_values_were_moved_and_not_counted(
        self, algorithm: Algorithm, features: tuple[Feature, ...]
    ) -> None:
        points = people()[:3000]
        clipped = simulate(algorithm, points, seed=1, features=features, out_of_bounds="clip")
        assert clipped.diagnostics["edge_share"] is None
        assert clipped.warnings.count(UNSEEN) == 1
        refused = simulate(algorithm, points, seed=1, features=features)
        assert UNSEEN not in refused.warnings
        counted = simulate(algorithm, points, seed=1, features=features, out_of_bounds="count")
        assert "edge_share" not in counted.diagnostics
        assert UNSEEN not in counted.warnings

    @pytest.mark.parametrize("algorithm", [GridKmeans(2.0, 3, cells=16), PhaseSketch(2.0, clusters=3, refine="none")])
    def test_is_none_that_searches_them(self, algorithm: Algorithm) -> None:
        model = simulate(algorithm, people()[:3000], seed=1, features=FEATURES, out_of_bounds="clip")
        assert "edge_share" not in model.diagnostics
        assert UNSEEN not in model.warnings

    def test_does_not_warn_if_no_value_is_beyond_the_bounds(self) -> None:
        hours = (Feature("hour", 0, 24, periodic=True),)
        model = simulate(
            PhaseSketch(2.0, 2, refine="none"), people()[:3000, :1], seed=1, features=hours, out_of_bounds="clip"
        )
        assert "edge_share" not in model.diagnostics

    def test_over_records_states_null_because_uploads_count_them(self) -> None:
        points = np.random.default_rng(1).uniform(0.2, 0.8, (3000, 6))
        model = simulate_central(PrivateKmeans(1.0, clusters=3, delta=1e-6), points, seed=1)
        assert model.diagnostics["edge_share"] is None
        assert UNSEEN not in model.warnings


class TestCircle:
    def test_has_no_bounds(self) -> None:
        features = Feature("hour", 0, 24, "h", periodic=True), Feature("y", 0, 1)
        points = people()
        points[: N // 5, 0] = 0.0  # at midnight
        points[N // 5 : N // 5 * 2, 1] = 0.0
        params = ShiftedGrid(epsilon=4.0, clusters=2)
        model = simulate(params, points, seed=1, features=features, out_of_bounds="clip")
        warnings = [text for text in model.warnings if "at the bounds" in text]
        assert len(warnings) == 1
        assert "y" in warnings[0]
        assert "hour" not in warnings[0]
        points[:, 1] = np.random.default_rng(1).uniform(0.1, 0.9, N)
        model = simulate(params, points, seed=1, features=features, out_of_bounds="clip")
        assert not [text for text in model.warnings if "at the bounds" in text]
