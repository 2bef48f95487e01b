"""Test that each central algorithm runs by its parameters, over a curator and over points."""

import json

import numpy as np
import pytest

from clustering.central.curator import Curator
from clustering.central.queries import MemoryJournal, Records
from clustering.central.run import run
from clustering.random import SeededEntropy
from clustering.simulate import simulate, simulate_central
from sfumato.errors import InvalidSpec
from sfumato.forecast import choose_central
from sfumato.privacy.accounting import NANO
from sfumato.specs import CENTRAL_ALGORITHMS, Auto, Feature, PrivateKmeans, ShiftedGrid

XY = (Feature("x", -10.0, 10.0), Feature("y", 0.0, 5.0))


def two_places(n: int = 4000) -> np.ndarray:
    chance = np.random.default_rng(0)
    return chance.normal(np.where(chance.random(n) < 0.5, 0.25, 0.75)[:, None], 0.05, size=(n, 2)).clip(0, 1)


def curator_of(points: np.ndarray, epsilon_nano: int) -> Curator:
    return Curator(Records(points.astype(np.int32)), epsilon_nano, MemoryJournal(), SeededEntropy(0))


class TestRun:
    @pytest.mark.parametrize("algorithm", CENTRAL_ALGORITHMS.values())
    def test_runs_every_algorithm_and_lists_its_queries(self, algorithm) -> None:
        curator = curator_of(np.zeros((100, 2)), NANO)
        model = run(algorithm(epsilon=1, clusters=2), XY, curator)
        odometer = model.diagnostics["odometer"]
        assert sum(query["epsilon_nano"] for query in odometer) == model.diagnostics["spent_nano"] == curator.spent_nano
        assert 0 < curator.spent_nano <= NANO
        assert model.features == XY

    def test_rejects_other_algorithms_without_a_query(self) -> None:
        curator = curator_of(np.zeros((10, 2)), NANO)
        with pytest.raises(InvalidSpec):
            run(ShiftedGrid(epsilon=1), XY, curator)  # type: ignore[arg-type]
        assert curator.odometer == ()

    def test_auto_runs_and_names_its_choice(self) -> None:
        chosen = simulate_central(Auto(1.0, 2), two_places(), seed=3)
        choice = choose_central(Auto(1.0, 2), 2)
        named = simulate_central(choice.algorithm, two_places(), seed=3)
        assert chosen.diagnostics["chosen"]["reason"] == choice.reason
        assert chosen.diagnostics["chosen"]["algorithm"]["type"] == "private_kmeans"
        assert chosen.centroids.tolist() == named.centroids.tolist()
        assert chosen.diagnostics["odometer"] == named.diagnostics["odometer"]


class TestSimulate:
    def test_central_algorithm_treats_points_as_records(self) -> None:
        params = PrivateKmeans(epsilon=1, clusters=2)
        wires = [json.dumps(simulate(params, two_places(), seed=seed).to_wire()) for seed in (5, 5, 6)]
        assert wires[0] == wires[1] == json.dumps(simulate_central(params, two_places(), seed=5).to_wire()) != wires[2]

    def test_auto_is_local(self) -> None:
        assert "odometer" not in simulate(Auto(4.0, 2), two_places(), seed=5).diagnostics

    def test_uses_the_given_features(self) -> None:
        model = simulate(PrivateKmeans(epsilon=8, clusters=1), two_places(), seed=1, features=XY)
        assert model.centroids[0] == pytest.approx([0.0, 2.5], abs=0.5)

    def test_rejects_perturb_false(self) -> None:
        with pytest.raises(InvalidSpec):
            simulate(PrivateKmeans(epsilon=1, clusters=2), two_places(), seed=1, perturb=False)
