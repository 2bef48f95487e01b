"""Selection by `auto`: the algorithm, the reason, and its forecast."""

from dataclasses import fields

import pytest

from sfumato.errors import InvalidSpec
from sfumato.forecast import Band, Forecast, choose, forecast, reports_needed
from sfumato.specs import Algorithm, Auto, GridKmeans, PhaseSketch, ShiftedGrid
from sfumato.specs.attributes import Categorical


class TestAuto:
    @pytest.mark.parametrize(
        ("n_features", "kind"), [(1, ShiftedGrid), (3, ShiftedGrid), (4, PhaseSketch), (64, PhaseSketch)]
    )
    def test_selects_by_the_number_of_features(self, n_features: int, kind: type[Algorithm]) -> None:
        choice = choose(Auto(2.0, 5), n_features, 10**6)
        assert type(choice.algorithm) is kind
        assert (choice.algorithm.epsilon, choice.algorithm.clusters) == (2.0, 5)
        assert kind.type in choice.reason

    def test_selects_a_grid_for_few_reports_in_four_features(self) -> None:
        # N tanh^2(eps/2) = 1000 of 1 / tanh^2(1/2) = 4.683
        few, enough = (choose(Auto(1.0, 5), 4, n) for n in (4_682, 4_683))
        assert (type(few.algorithm), type(enough.algorithm)) == (GridKmeans, PhaseSketch)
        assert (few.algorithm.epsilon, few.algorithm.clusters) == (1.0, 5)
        assert "below 4683 reports at this epsilon it does better than phase_sketch" in few.reason
        assert type(choose(Auto(2.0, 5), 4, 4_682).algorithm) is PhaseSketch
        assert type(choose(Auto(1.0), 4, 100).algorithm) is PhaseSketch  # a grid does not count clusters
        assert type(choose(Auto(1.0, 5), 5, 100).algorithm) is PhaseSketch

    def test_selects_a_grid_for_many_clusters_in_four_features(self) -> None:
        for n_reports in (10, 10**9):
            choice = choose(Auto(1.0, 65), 4, n_reports)
            assert type(choice.algorithm) is GridKmeans
            assert "more than 64 clusters" in choice.reason

    def test_selects_centroids_for_round_clusters_in_few_features(self) -> None:
        assert choose(Auto(1.0, 5, "round"), 2, 10**6).algorithm == GridKmeans(1.0, 5)
        assert choose(Auto(1.0, shape="round"), 3, 10**6).algorithm == PhaseSketch(1.0)
        assert choose(Auto(1.0, 5, "any"), 2, 10**6) == choose(Auto(1.0, 5), 2, 10**6)

    def test_selects_a_map_of_categories_only_with_enough_reports(self) -> None:
        two, three = (Categorical(f"a{n}", [f"v{i}" for i in range(n)], use="cluster") for n in (2, 3))
        assert type(choose(Auto(2.0), 2, 10**6, [two]).algorithm) is ShiftedGrid
        assert type(choose(Auto(2.0), 2, 10_000, [two]).algorithm) is PhaseSketch  # below 1e4 V^2 effective reports
        assert type(choose(Auto(2.0, 4), 2, 10**6, [two, three]).algorithm) is PhaseSketch
        assert choose(Auto(2.0, 4, "round"), 2, 10**6, [two]).algorithm == PhaseSketch(2.0, 4)
        assert type(choose(Auto(2.0, 3), 2, 10**6, [three]).algorithm) is ShiftedGrid
        assert type(choose(Auto(2.0, 2), 2, 10**6, [three]).algorithm) is PhaseSketch  # each category has a cluster
        few = choose(Auto(1.0, 5), 4, 100, [two])
        assert type(few.algorithm) is PhaseSketch
        assert "too few to estimate 5 centroids" in few.reason

    def test_a_target_with_categories_is_met_by_the_algorithm_selected_for_its_number(self) -> None:
        attributes = (Categorical("a", [f"v{place}" for place in range(4)], use="cluster"),)
        wish = 0.5
        found = reports_needed(Auto(1.0, 4), 2, size_error=wish, attributes=attributes)
        assert found.n_reports is not None
        least, below = (
            forecast(Auto(1.0, 4), n_features=2, expected_reports=n, attributes=attributes)
            for n in (found.n_reports, found.n_reports - 1)
        )
        assert isinstance(least.algorithm, ShiftedGrid)
        assert least.size_error is not None
        assert least.size_error <= wish
        assert below.size_error is None  # sizes of a sketch of phases have no public error

    def test_a_target_that_was_not_measured_with_categories_says_so(self) -> None:
        attributes = (Categorical("a", ["p", "q"], use="cluster"),)
        assert "not measured" in reports_needed(PhaseSketch(1.0, 4), 4, quality=0.5, attributes=attributes).reason

    def test_a_target_is_met_by_the_selected_algorithm(self) -> None:
        algorithm = Auto(1.0, 3)
        needed = reports_needed(algorithm, 4, detectable_mass=0.5)
        assert needed.n_reports == 4_683  # a sketch's would be fewer, and there it is a grid
        assert "phase_sketch" in needed.reason
        more = reports_needed(algorithm, 4, detectable_mass=0.05).n_reports
        assert more == reports_needed(PhaseSketch(1.0, 3), 4, detectable_mass=0.05).n_reports
        assert more is not None
        assert more > 4_683
        hopeless = reports_needed(Auto(1e-6, 3), 4, detectable_mass=1e-6)
        assert hopeless.n_reports is None

    @pytest.mark.parametrize(
        ("algorithm", "n_features", "reason"),
        [
            (Auto(1.0), 2, "few to estimate the number of clusters at this epsilon. Clusters may be missing"),
            (Auto(0.1), 2, "2 clusters of equal size are too small"),
            (Auto(1.0, 40), 2, "40 clusters of equal size are too small"),
            (Auto(1.0, 2), 2, "are few at this epsilon. About 36827 reports"),
            (Auto(1.0, 4), 9, "too few to estimate 4 centroids"),
        ],
    )
    def test_states_the_limits_of_the_data(self, algorithm: Auto, n_features: int, reason: str) -> None:
        assert reason in choose(algorithm, n_features, 2000).reason

    def test_has_a_short_reason(self) -> None:
        reason = choose(Auto(4.0, 3), 2, 10**6).reason
        assert reason == "2 features: shifted_grid finds clusters of any shape in up to 3 features."

    @pytest.mark.parametrize(
        ("algorithm", "n_features", "n"),
        [(Auto(1.0), 0, 9), (Auto(1.0), 65, 9), (Auto(1.0), 2, 0), (Auto(1, 65), 5, 9)],
    )
    def test_refuses_impossible_requests(self, algorithm: Auto, n_features: int, n: int) -> None:
        with pytest.raises(InvalidSpec):
            choose(algorithm, n_features, n)

    def test_has_the_forecast_of_the_selected_algorithm(self) -> None:
        made = forecast(Auto(1.0, 3), n_features=2, expected_reports=50_000)
        named = forecast(ShiftedGrid(1.0, 3), n_features=2, expected_reports=50_000)
        differing = {
            field.name for field in fields(Forecast) if getattr(made, field.name) != getattr(named, field.name)
        }
        assert differing == {"reason"}
        assert isinstance(made.quality, Band)
