"""Test the flag of insufficient reports, and that the forecast has the same required number."""

from functools import partial

import numpy as np
import pytest

from clustering.simulate import simulate
from sfumato.forecast import forecast
from sfumato.sizing.methods import required_reports
from sfumato.sizing.required_reports import grid_kmeans_reports, ldp_kmeans_reports, noisy_fcm_reports
from sfumato.specs import Algorithm, GridKmeans, LdpKmeans, NoisyFcm, PhaseSketch
from tests.clustering.local_plans import mixture

PLANS = [
    PhaseSketch(1.0, 2, refine="none"),
    LdpKmeans(1.0, 2, 3),
    GridKmeans(1.0, 2, 6),
    NoisyFcm(8.0, 2, max_iterations=20),
]


def people(n: int) -> np.ndarray:
    return mixture(n, [[0.25, 0.3], [0.75, 0.7]], width=0.05, seed=3)[0]


@pytest.mark.parametrize("params", PLANS, ids=lambda params: params.type)
def test_fewer_reports_than_the_forecast_requires_are_flagged(params: Algorithm) -> None:
    forecasted = forecast(params, n_features=2, expected_reports=50).insufficient
    assert forecasted is not None
    needed = forecasted.reports_needed
    assert needed is not None
    least, few, enough = (simulate(params, people(n), seed=1) for n in (30, int(0.9 * needed), int(1.1 * needed) + 1))
    assert least.diagnostics["insufficient_reports"] is few.diagnostics["insufficient_reports"] is True
    assert enough.diagnostics["insufficient_reports"] is False
    assert few.diagnostics["reports_needed"] == pytest.approx(needed, rel=0.01)
    assert few.diagnostics["low_confidence"] is True
    assert any(str(few.diagnostics["reports_needed"]) in warning for warning in few.warnings)
    assert not any("few" in warning for warning in enough.warnings)


class TestRequiredReports:
    def test_increase_with_clusters_and_decrease_with_epsilon(self) -> None:
        for algorithm in (PhaseSketch, LdpKmeans, partial(GridKmeans, cells=8), NoisyFcm):
            needed = [required_reports(algorithm(epsilon, 8), 3, 1000) for epsilon in (0.5, 1.0, 2.0)]
            assert needed == sorted(needed, reverse=True)
            assert required_reports(algorithm(1.0, 16), 3, 1000) > needed[1]

    def test_follow_the_documented_rules(self) -> None:
        assert ldp_kmeans_reports(3.0, 5, 2, 4) == 8 * 3.0 * (5 / 4 * 4) * 2 * 16
        assert grid_kmeans_reports(3.0, 100, 4) == 12_000
        assert noisy_fcm_reports(2.0, 4) == pytest.approx(4 * (2.0 + 0.06**2) / 0.06**2)
        assert required_reports(NoisyFcm(2.0, 4), 2, 1) == pytest.approx(noisy_fcm_reports(2.0, 4))

    def test_of_a_grid_that_grows_with_the_reports_are_enough(self) -> None:
        forecasted = forecast(GridKmeans(1.0, 4), n_features=2, expected_reports=100).insufficient
        assert forecasted is not None
        assert forecasted.reports_needed is not None
        assert (
            forecast(GridKmeans(1.0, 4), n_features=2, expected_reports=forecasted.reports_needed).insufficient is None
        )
