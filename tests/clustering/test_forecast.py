"""Forecasts against plans as they run: the rounds they open, what those cost, and what `auto` runs."""

from dataclasses import replace

import numpy as np
import pytest

from clustering.plan import drive
from clustering.registry import start
from clustering.simulate import SeededEntropy, collect, simulate
from sfumato import mechanisms
from sfumato.accounting import cost
from sfumato.errors import InvalidSpec
from sfumato.forecast import choose, forecast
from sfumato.sizing import planned_rounds
from sfumato.specs import (
    AdaptiveGridIterative,
    AdaptiveGridTree,
    Auto,
    Draw,
    Feature,
    GridKmeans,
    LdpKmeans,
    NoisyFcm,
    PhaseSketch,
    ShiftedGrid,
    UniformGrid,
    ValleyHashing,
    to_wire,
)

ASKED = [
    (ShiftedGrid(1.0, 3), 1, 5_000),
    (ShiftedGrid(2.5, 3), 2, 40_000),
    (ShiftedGrid(0.5, 3, cells=6, shifts=3), 3, 5_000),
    (UniformGrid(1.0, 3), 2, 5_000),
    (UniformGrid(0.3, 3, cells=9), 3, 5_000),
    (UniformGrid(1.0, 3, variant="paper"), 2, 5_000),
    (AdaptiveGridIterative(1.5, 3), 2, 20_000),
    (AdaptiveGridIterative(1.0, 3, passes=5), 1, 5_000),
    (AdaptiveGridIterative(1.0, 3, variant="paper"), 2, 5_000),
    (AdaptiveGridTree(1.0, 3), 2, 20_000),
    (AdaptiveGridTree(20.0, 3, height=3), 4, 5_000),
    (AdaptiveGridTree(1.0, 3, variant="paper"), 2, 5_000),
    (ValleyHashing(2.0, 3), 4, 20_000),
    (NoisyFcm(3.0, 3), 2, 2_000),
    (PhaseSketch(2.0, 2), 4, 5_000),
    (PhaseSketch(9.0, 2), 2, 5_000),
    (GridKmeans(1.0, 3), 2, 5_000),
    (LdpKmeans(2.0, 3), 5, 5_000),
    (Auto(1.0, 3), 2, 5_000),
]


def people(n_features, n_reports):
    """Three clear clusters."""
    rng = np.random.default_rng(0)
    centres = np.array([[0.2], [0.5], [0.8]]) * np.ones(n_features)
    return (centres[rng.integers(0, 3, n_reports)] + rng.normal(0, 0.03, (n_reports, n_features))).clip(0, 1)


def opened(asked, n_features, n_reports):
    """The specs of the rounds that a plan opens over such people."""
    points, entropy, specs = people(n_features, n_reports), SeededEntropy(1), []
    draws = entropy.words(n_reports)

    def answer(spec):
        specs.append(spec)
        return collect(spec, points, entropy, draws)

    features = tuple(Feature(f"x{i}", 0, 1) for i in range(n_features))
    drive(start(asked, features, n_reports), answer)
    return specs


@pytest.mark.parametrize(
    ("asked", "n_features", "n_reports"), ASKED, ids=[f"{a.type}-{d}-{getattr(a, 'variant', '')}" for a, d, _ in ASKED]
)
class TestRounds:
    def test_are_those_that_are_opened(self, asked, n_features, n_reports):
        made = forecast(asked, n_features=n_features, expected_reports=n_reports)
        planned = planned_rounds(made.algorithm, n_features, n_reports)
        specs = opened(asked, n_features, n_reports)
        if isinstance(asked, AdaptiveGridTree) and asked.variant == "paper":  # it asks level by level
            levels = specs[1:-1]
            assert (levels[0].draw.lo, levels[-1].draw.hi) == (planned[1].draw.lo, planned[1].draw.hi)
            specs = [specs[0], replace(levels[-1], draw=Draw()), specs[-1]]
        assert len(specs) == len(made.rounds)
        for spec, shown, ahead in zip(specs, made.rounds, planned, strict=True):
            assert spec.draw == shown.draw
            if ahead.encoding is not None:
                assert spec.encoding == ahead.encoding
            assert spec.encoding.n_symbols <= ahead.n_symbols
            assert mechanisms.value_bytes(spec.mechanism) + 20 <= shown.report_bytes
            if not shown.adapts:
                assert spec.encoding.n_symbols == ahead.n_symbols
                assert spec.mechanism.type == shown.mechanism
                assert mechanisms.value_bytes(spec.mechanism) + 20 == shown.report_bytes

    def test_cost_exactly_what_was_forecast(self, asked, n_features, n_reports):
        made = forecast(asked, n_features=n_features, expected_reports=n_reports)
        spent = cost(
            ((spec.draw.lo, spec.draw.hi), mechanisms.epsilon_nano(spec.mechanism))
            for spec in opened(asked, n_features, n_reports)
        )
        assert made.epsilon_nano == spent


@pytest.mark.parametrize("asked", [AdaptiveGridIterative(32.0, 3), ValleyHashing(32.0, 3)])
def test_what_adapts_never_costs_more_than_forecast_even_where_thresholds_saturate(asked):
    made = forecast(asked, n_features=2, expected_reports=5_000)
    spent = cost(
        ((spec.draw.lo, spec.draw.hi), mechanisms.epsilon_nano(spec.mechanism)) for spec in opened(asked, 2, 5_000)
    )
    assert spent <= made.epsilon_nano <= spent + 1_000_000


class TestAuto:
    def test_runs_what_was_chosen_and_says_so(self):
        points = people(2, 5_000)
        auto, named = (simulate(asked, points, seed=3) for asked in (Auto(1.0, 3), ShiftedGrid(1.0, 3)))
        assert np.array_equal(auto.label_map, named.label_map)
        assert np.array_equal(auto.density, named.density)
        choice = choose(Auto(1.0, 3), 2, 5_000)
        shown = auto.diagnostics["chosen"]
        assert shown["reason"] == choice.reason
        assert shown["algorithm"] == {k: v for k, v in to_wire(choice.algorithm).items() if v is not None}
        assert {k: v for k, v in auto.diagnostics.items() if k != "chosen"} == dict(named.diagnostics)

    def test_replays_to_the_same_model(self):
        points = people(1, 3_000)
        first, again = (simulate(Auto(2.0, 3), points, seed=3).to_wire() for _ in range(2))
        assert first == again

    def test_refuses_as_the_algorithm_it_stands_for(self):
        with pytest.raises(InvalidSpec):
            start(Auto(1.0), (Feature("x", 0, 1),), 0)


@pytest.mark.parametrize(("n_features", "clusters"), [(2, 2), (5, 6)])
def test_a_sketch_and_its_forecast_ask_for_as_many_reports(n_features, clusters):
    model = simulate(PhaseSketch(1.0, clusters), people(n_features, 500), seed=0)
    made = forecast(PhaseSketch(1.0, clusters), n_features=n_features, expected_reports=10)
    assert made.insufficient.reports_needed == pytest.approx(model.diagnostics["reports_needed"], rel=1e-6)
