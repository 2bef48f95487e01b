"""Test forecasts against plans: the rounds that open, their cost, and the choice of `auto`."""

from dataclasses import replace

import numpy as np
import pytest

from clustering.registry import start
from clustering.simulate import simulate
from sfumato.errors import InvalidSpec
from sfumato.forecast import choose, forecast
from sfumato.sizing import planned_rounds
from sfumato.specs import (
    AdaptiveGridIterative,
    AdaptiveGridTree,
    Auto,
    GridKmeans,
    LdpKmeans,
    NoisyFcm,
    Participation,
    PhaseSketch,
    ShiftedGrid,
    UniformGrid,
    to_wire,
)
from tests.clustering.local_plans import features, mixture, price, run

CASES = [
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
    (NoisyFcm(3.0, 3), 2, 2_000),
    (PhaseSketch(2.0, 2), 4, 5_000),
    (PhaseSketch(9.0, 2), 2, 5_000),
    (GridKmeans(1.0, 3), 2, 5_000),
    (LdpKmeans(2.0, 3), 5, 5_000),
    (Auto(1.0, 3), 2, 5_000),
]


def people(n_features, n_reports):
    return mixture(n_reports, [[0.2] * n_features, [0.5] * n_features, [0.8] * n_features], width=0.03, seed=0)[0]


@pytest.mark.parametrize(
    ("params", "n_features", "n_reports"),
    CASES,
    ids=[f"{params.type}-{d}-{getattr(params, 'variant', '')}" for params, d, _ in CASES],
)
class TestRounds:
    def test_open_as_forecast_at_the_forecast_cost(self, params, n_features, n_reports):
        forecasted = forecast(params, n_features=n_features, expected_reports=n_reports)
        planned = planned_rounds(forecasted.algorithm, n_features, n_reports)
        specs = run(params, people(n_features, n_reports))[1].specs
        assert forecasted.epsilon_nano == price(specs)
        if isinstance(params, AdaptiveGridTree) and params.variant == "paper":  # one round per level
            levels = specs[1:-1]
            assert (levels[0].participation.lo, levels[-1].participation.hi) == (
                planned[1].participation.lo,
                planned[1].participation.hi,
            )
            specs = [specs[0], replace(levels[-1], participation=Participation()), specs[-1]]
        assert len(specs) == len(forecasted.rounds)
        for spec, shown, ahead in zip(specs, forecasted.rounds, planned, strict=True):
            assert spec.participation == shown.participation
            if ahead.encoding is not None:
                assert spec.encoding == ahead.encoding
            assert spec.encoding.n_symbols <= ahead.n_symbols
            assert spec.mechanism.value_bytes + 20 <= shown.report_bytes
            if not shown.adapts:
                assert spec.encoding.n_symbols == ahead.n_symbols
                assert spec.mechanism.type == shown.mechanism
                assert spec.mechanism.value_bytes + 20 == shown.report_bytes


def test_an_adaptive_plan_never_costs_more_than_forecast():
    params = AdaptiveGridIterative(32.0, 3)
    forecasted = forecast(params, n_features=2, expected_reports=5_000).epsilon_nano
    spent = price(run(params, people(2, 5_000))[1].specs)
    assert spent <= forecasted <= spent + 1_000_000


class TestAuto:
    def test_runs_and_reports_its_choice(self):
        points = people(2, 5_000)
        auto, named = (simulate(params, points, seed=3) for params in (Auto(1.0, 3), ShiftedGrid(1.0, 3)))
        assert np.array_equal(auto.label_map, named.label_map)
        assert np.array_equal(auto.density, named.density)
        choice = choose(Auto(1.0, 3), 2, 5_000)
        shown = auto.diagnostics["chosen"]
        assert shown["reason"] == choice.reason
        assert shown["algorithm"] == {k: v for k, v in to_wire(choice.algorithm).items() if v is not None}
        assert {k: v for k, v in auto.diagnostics.items() if k != "chosen"} == dict(named.diagnostics)

    def test_refuses_zero_expected_reports(self):
        with pytest.raises(InvalidSpec):
            start(Auto(1.0), features(1), 0)


@pytest.mark.parametrize(("n_features", "clusters"), [(2, 2), (5, 6)])
def test_a_sketch_and_its_forecast_need_equally_many_reports(n_features, clusters):
    model = simulate(PhaseSketch(1.0, clusters), people(n_features, 500), seed=0)
    forecasted = forecast(PhaseSketch(1.0, clusters), n_features=n_features, expected_reports=10)
    assert forecasted.insufficient.reports_needed == pytest.approx(model.diagnostics["reports_needed"], rel=1e-6)
