"""The bound of label maps: information of one report against a sum over all reports, and a short run."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import map_bound
from benchmarks.map_bound import FEATURES, SLOTS, Mixture, information, measure
from clustering.grids.shifted_grid import shifted_grid
from sfumato.mechanisms.ss import SsMechanism
from sfumato.specs import RoundSpec, ShiftedGrid
from sfumato.specs.encodings import ShiftedGridEncoding

MIXTURE = Mixture(np.array([[0.3, 0.4], [0.7, 0.6]]), np.array([0.4, 0.6]), 0.1)


ENCODING = ShiftedGridEncoding(2, 2, 4)


def coarse_round(epsilon_nano: int) -> RoundSpec:
    spec = next(shifted_grid(ShiftedGrid(1, 2), FEATURES, 10_000))
    return replace(spec, encoding=ENCODING, mechanism=SsMechanism.design(9, epsilon_nano))


@pytest.mark.parametrize("epsilon_nano", [1_000_000_000, 4_000_000_000])
def test_the_information_is_that_of_the_channel(epsilon_nano: int) -> None:
    spec = coarse_round(epsilon_nano)
    channel = np.array([[float(each) for each in row] for row in spec.mechanism.channel().values()])
    exact = np.zeros((5, 5))
    for slot in SLOTS:
        shares = MIXTURE.cell_shares(ENCODING, slot)
        assert shares.sum() == pytest.approx(1)
        steps = 1e-5 * np.eye(5)
        gradient = np.array([
            MIXTURE.having(MIXTURE.unknowns + step).cell_shares(ENCODING, slot)
            - MIXTURE.having(MIXTURE.unknowns - step).cell_shares(ENCODING, slot)
            for step in steps
        ]) / 2e-5  # fmt: skip
        change = channel @ gradient.T
        exact += np.einsum("yi,yj,y->ij", change, change, 1 / (channel @ shares)) / len(SLOTS)
    found = information(MIXTURE, spec, np.random.default_rng(1))
    assert np.abs(found - exact).max() < 0.03 * np.abs(exact).max()


def test_a_map_of_two_clear_clusters_is_near_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_bound, "N", 40_000)
    monkeypatch.setattr(map_bound, "ESTIMATES", 2)
    row = measure(2, 0.08, 5.0, 2.0, 1)
    assert row.label_map > 0.9
    assert row.label_map <= row.without_noise + 0.01
    assert row.at_the_bound == pytest.approx(row.without_noise, abs=0.01)
