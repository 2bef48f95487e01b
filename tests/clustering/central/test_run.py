"""Central algorithms by their parameters: each has its function, and points are taken as records."""

import json

import numpy as np
import pytest

from clustering.central.run import run, simulate_central
from clustering.curator import Curator, MemoryJournal, Records
from clustering.seeded_entropy import SeededEntropy
from clustering.simulate import simulate
from sfumato.accounting import NANO
from sfumato.errors import InvalidPoint, InvalidSpec
from sfumato.forecast import choose_central
from sfumato.specs import CENTRAL_ALGORITHMS, Auto, Feature, GatedGridKmeans, ShiftedGrid

XY = (Feature("x", -10.0, 10.0), Feature("y", 0.0, 5.0))


def two_places(n: int = 4000) -> np.ndarray:
    chance = np.random.default_rng(0)
    return chance.normal(np.where(chance.random(n) < 0.5, 0.25, 0.75)[:, None], 0.05, size=(n, 2)).clip(0, 1)


def curator_of(points: np.ndarray, epsilon_nano: int) -> Curator:
    return Curator(Records(points.astype(np.int32)), epsilon_nano, MemoryJournal(), SeededEntropy(0))


class TestRun:
    @pytest.mark.parametrize("algorithm", CENTRAL_ALGORITHMS.values())
    def test_knows_every_algorithm_and_lists_what_it_asked(self, algorithm) -> None:
        curator = curator_of(np.zeros((100, 2)), NANO)
        model = run(algorithm(epsilon=1, clusters=2), XY, curator)
        odometer = model.diagnostics["odometer"]
        assert sum(asked["epsilon_nano"] for asked in odometer) == model.diagnostics["spent_nano"] == curator.spent_nano
        assert 0 < curator.spent_nano <= NANO
        assert model.features == XY

    def test_refuses_what_is_no_central_algorithm_and_asks_nothing(self) -> None:
        curator = curator_of(np.zeros((10, 2)), NANO)
        with pytest.raises(InvalidSpec):
            run(ShiftedGrid(epsilon=1), XY, curator)  # type: ignore[arg-type]
        assert curator.odometer == ()

    def test_of_auto_runs_what_was_chosen_and_says_so(self) -> None:
        chosen = simulate_central(Auto(1.0, 2), two_places(), seed=3)
        choice = choose_central(Auto(1.0, 2), 2)
        named = simulate_central(choice.algorithm, two_places(), seed=3)
        assert chosen.diagnostics["chosen"]["reason"] == choice.reason
        assert chosen.diagnostics["chosen"]["algorithm"]["type"] == "gated_grid_kmeans"
        assert chosen.centroids.tolist() == named.centroids.tolist()
        assert chosen.diagnostics["odometer"] == named.diagnostics["odometer"]


class TestSimulate:
    def test_takes_points_as_records_by_the_algorithm_it_is_given(self) -> None:
        params = GatedGridKmeans(epsilon=1, clusters=2)
        wires = [json.dumps(simulate(params, two_places(), seed=seed).to_wire()) for seed in (5, 5, 6)]
        assert wires[0] == wires[1] == json.dumps(simulate_central(params, two_places(), seed=5).to_wire()) != wires[2]

    def test_of_auto_asks_devices(self) -> None:
        assert "odometer" not in simulate(Auto(4.0, 2), two_places(), seed=5).diagnostics

    def test_names_features_as_told(self) -> None:
        model = simulate(GatedGridKmeans(epsilon=8, clusters=1), two_places(), seed=1, features=XY)
        assert model.centroids[0] == pytest.approx([0.0, 2.5], abs=0.5)

    def test_perturbs_no_point_so_there_is_nothing_to_leave_out(self) -> None:
        with pytest.raises(InvalidSpec):
            simulate(GatedGridKmeans(epsilon=1, clusters=2), two_places(), seed=1, perturb=False)

    @pytest.mark.parametrize("points", [[[0.5, 1.1]], [[0.5, float("nan")]], [0.5, 0.5], [[], []], [[0.5, 0.5, 0.5]]])
    def test_refuses_points_outside_the_unit_box_and_of_another_number_of_features(self, points) -> None:
        with pytest.raises(InvalidPoint):
            simulate(GatedGridKmeans(epsilon=1, clusters=2), points, seed=1, features=XY)
