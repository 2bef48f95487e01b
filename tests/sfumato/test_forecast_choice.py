"""What `auto` takes, why, and what a forecast of it says."""

from dataclasses import fields

import pytest

from sfumato.errors import InvalidSpec
from sfumato.forecast import (
    Band,
    Forecast,
    choose,
    forecast,
    reports_needed,
)
from sfumato.specs import (
    Algorithm,
    Auto,
    GridKmeans,
    PhaseSketch,
    ShiftedGrid,
)


class TestAuto:
    @pytest.mark.parametrize(
        ("n_features", "kind"), [(1, ShiftedGrid), (3, ShiftedGrid), (4, PhaseSketch), (64, PhaseSketch)]
    )
    def test_goes_by_the_number_of_features(self, n_features: int, kind: type[Algorithm]) -> None:
        choice = choose(Auto(2.0, 5), n_features, 10**6)
        assert type(choice.algorithm) is kind
        assert (choice.algorithm.epsilon, choice.algorithm.clusters) == (2.0, 5)
        assert kind.type in choice.reason

    def test_takes_a_grid_in_four_features_where_a_sketch_hears_too_little(self) -> None:
        # N tanh^2(eps/2) = 1000 of 1 / tanh^2(1/2) = 4.683
        few, enough = (choose(Auto(1.0, 5), 4, n) for n in (4_682, 4_683))
        assert (type(few.algorithm), type(enough.algorithm)) == (GridKmeans, PhaseSketch)
        assert (few.algorithm.epsilon, few.algorithm.clusters) == (1.0, 5)
        assert "below 4683 reports at this epsilon it does better than phase_sketch" in few.reason
        assert type(choose(Auto(2.0, 5), 4, 4_682).algorithm) is PhaseSketch
        assert type(choose(Auto(1.0), 4, 100).algorithm) is PhaseSketch  # a grid does not count clusters
        assert type(choose(Auto(1.0, 5), 5, 100).algorithm) is PhaseSketch

    def test_takes_a_grid_in_four_features_for_more_clusters_than_a_sketch_finds(self) -> None:
        for n_reports in (10, 10**9):
            choice = choose(Auto(1.0, 65), 4, n_reports)
            assert type(choice.algorithm) is GridKmeans
            assert "more than 64 clusters" in choice.reason

    def test_a_wish_is_met_by_what_it_takes_at_that_number(self) -> None:
        asked = Auto(1.0, 3)
        needed = reports_needed(asked, 4, detectable_mass=0.5)
        assert needed.n_reports == 4_683  # a sketch's would be fewer, and there it is a grid
        assert "phase_sketch" in needed.reason
        more = reports_needed(asked, 4, detectable_mass=0.05).n_reports
        assert more == reports_needed(PhaseSketch(1.0, 3), 4, detectable_mass=0.05).n_reports
        assert more is not None
        assert more > 4_683
        hopeless = reports_needed(Auto(1e-6, 3), 4, detectable_mass=1e-6)
        assert hopeless.n_reports is None

    def test_says_what_speaks_against_the_others(self) -> None:
        assert "valley_hashing fails on real data" in choose(Auto(2.0), 4, 10**6).reason

    @pytest.mark.parametrize(
        ("asked", "n_features", "said"),
        [
            (Auto(1.0), 2, "few to count clusters by at this epsilon: some may be missing"),
            (Auto(0.1), 2, "2 clusters of equal size are too small"),
            (Auto(1.0, 40), 2, "40 clusters of equal size are too small"),
            (Auto(1.0, 2), 2, "are few at this epsilon; about 36827 would"),
            (Auto(1.0, 4), 9, "too few to place 4 centroids"),
        ],
    )
    def test_says_what_the_facts_cannot_give(self, asked: Auto, n_features: int, said: str) -> None:
        assert said in choose(asked, n_features, 2000).reason

    def test_says_no_more_than_it_must(self) -> None:
        reason = choose(Auto(4.0, 3), 2, 10**6).reason
        assert reason == "2 features: shifted_grid finds clusters of any shape in up to 3 features."

    @pytest.mark.parametrize(
        ("asked", "n_features", "n"), [(Auto(1.0), 0, 9), (Auto(1.0), 65, 9), (Auto(1.0), 2, 0), (Auto(1.0, 65), 5, 9)]
    )
    def test_refuses_what_nothing_can_do(self, asked: Auto, n_features: int, n: int) -> None:
        with pytest.raises(InvalidSpec):
            choose(asked, n_features, n)

    def test_is_what_a_forecast_forecasts(self) -> None:
        made = forecast(Auto(1.0, 3), n_features=2, expected_reports=50_000)
        named = forecast(ShiftedGrid(1.0, 3), n_features=2, expected_reports=50_000)
        differing = {
            field.name for field in fields(Forecast) if getattr(made, field.name) != getattr(named, field.name)
        }
        assert differing == {"reason"}
        assert isinstance(made.quality, Band)
