"""Centroids of too few reports are flagged, with the number that would do: the one the forecast tells beforehand."""

import numpy as np
import pytest

from clustering.simulate import simulate
from sfumato.forecast import forecast
from sfumato.sizing import enough_reports, leaning_reports, noisy_reports, steady_reports
from sfumato.specs import Algorithm, Feature, GridKmeans, LdpKmeans, NoisyFcm, PhaseSketch

FEATURES = (Feature("x", 0, 1), Feature("y", 0, 1))
ASKED = [
    PhaseSketch(1.0, 2, refine="none"),
    LdpKmeans(1.0, 2, 3),
    GridKmeans(1.0, 2, 6),
    NoisyFcm(8.0, 2, max_iterations=20),
]


def people(n: int) -> np.ndarray:
    random = np.random.default_rng(3)
    centres = np.array([[0.25, 0.3], [0.75, 0.7]])
    return np.clip(centres[random.integers(2, size=n)] + 0.05 * random.normal(size=(n, 2)), 0, 1)


@pytest.mark.parametrize("params", ASKED, ids=lambda params: params.type)
class TestTheFlag:
    def test_is_set_below_what_the_forecast_says_is_needed_and_not_from_there_on(self, params: Algorithm) -> None:
        foretold = forecast(params, n_features=2, expected_reports=50).insufficient
        assert foretold is not None
        assert foretold.reports_needed is not None
        few, enough = (
            simulate(params, people(n), features=FEATURES, seed=1)
            for n in (int(0.9 * foretold.reports_needed), int(1.1 * foretold.reports_needed) + 1)
        )
        assert few.diagnostics["insufficient_reports"] is True
        assert enough.diagnostics["insufficient_reports"] is False
        assert few.diagnostics["reports_needed"] == pytest.approx(foretold.reports_needed, rel=0.01)
        assert few.diagnostics["low_confidence"] is True
        assert any(str(few.diagnostics["reports_needed"]) in sentence for sentence in few.warnings)
        assert not any("few" in sentence for sentence in enough.warnings)

    def test_comes_with_a_model_that_is_finite_however_few_reports_there_are(self, params: Algorithm) -> None:
        model = simulate(params, people(30), features=FEATURES, seed=1)
        assert model.diagnostics["insufficient_reports"] is True
        for part in (model.sizes, model.size_errors, model.centroids, model.centroid_errors):
            assert part is not None
            assert np.isfinite(part).all()


class TestWhatIsNeeded:
    def test_grows_as_epsilon_falls_and_clusters_are_added(self) -> None:
        for made in (
            lambda epsilon, clusters: PhaseSketch(epsilon, clusters),
            lambda epsilon, clusters: LdpKmeans(epsilon, clusters),
            lambda epsilon, clusters: GridKmeans(epsilon, clusters, 8),
            lambda epsilon, clusters: NoisyFcm(epsilon, clusters),
        ):
            need = [enough_reports(made(epsilon, 8), 3, 1000) for epsilon in (0.5, 1.0, 2.0)]
            assert need == sorted(need, reverse=True)
            assert enough_reports(made(1.0, 16), 3, 1000) > enough_reports(made(1.0, 8), 3, 1000)

    def test_is_by_the_rules_that_are_told(self) -> None:
        assert leaning_reports(3.0, 5, 2, 4) == 8 * 3.0 * (5 / 4 * 4) * 2 * 16
        assert steady_reports(3.0, 100, 4) == 12_000
        assert noisy_reports(2.0, 4) == pytest.approx(4 * (2.0 + 0.06**2) / 0.06**2)
        assert enough_reports(NoisyFcm(2.0, 4), 2, 1) == pytest.approx(noisy_reports(2.0, 4))

    def test_of_a_grid_that_grows_with_the_reports_would_do(self) -> None:
        foretold = forecast(GridKmeans(1.0, 4), n_features=2, expected_reports=100).insufficient
        assert foretold is not None
        assert foretold.reports_needed is not None
        assert forecast(GridKmeans(1.0, 4), n_features=2, expected_reports=foretold.reports_needed).insufficient is None
