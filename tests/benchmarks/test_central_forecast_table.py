"""The table of forecasts over records: its places, its sets, and its file."""

import numpy as np
import pytest

from benchmarks.central_forecast_table import (
    CLUSTERS,
    DRAW,
    FEATURES,
    LOG_INFORMATION,
    MOST_EPSILON,
    choose_run,
    text,
)
from sfumato.forecast.families import FAMILIES, PLACES, ROUTES, TABLE, TABLE_FILE, Family, RouteName


def test_the_file_equals_the_output_of_the_script() -> None:
    assert text(TABLE) == TABLE_FILE.read_text()
    assert PLACES == LOG_INFORMATION
    assert set(TABLE) == {(route, family) for route in ROUTES for family in FAMILIES}


@pytest.mark.parametrize("route", ROUTES)
def test_a_place_is_run_with_its_information(route: RouteName) -> None:
    for place in LOG_INFORMATION[:4]:
        for d in FEATURES[route]:
            run = choose_run(route, place, d, 3)
            assert run is not None
            n, epsilon = run
            assert np.log10(ROUTES[route](n * epsilon, d, 3)) == pytest.approx(place, abs=0.001)
            assert epsilon <= MOST_EPSILON
    assert choose_run(route, 9.0, 6, 3) is None


@pytest.mark.parametrize("family", FAMILIES)
def test_a_set_has_its_size_and_depends_on_the_seed(family: Family) -> None:
    k = CLUSTERS[family][0]
    points, again, other = (DRAW[family](np.random.default_rng(seed), 400, 3, k) for seed in (1, 1, 2))
    assert points.shape == (400, 3)
    assert np.mean((points >= 0) & (points <= 1)) > 0.9
    assert (points == again).all()
    assert not (points == other).all()
