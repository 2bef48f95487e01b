"""Test that grid plans fit published rounds of any mechanism and grid."""

import numpy as np
import pytest

from clustering.registry import start
from clustering.rounds.plan import drive
from sfumato.mechanisms import design
from sfumato.specs import GridEncoding, RoundSpec, ShiftedGrid, ShiftedGridEncoding, UniformGrid
from tests.clustering.local_plans import Devices, features, mixture

CENTRES = np.array([[0.25, 0.25], [0.75, 0.75]])


@pytest.mark.parametrize("kind", ["grr", "ss", "oue", "olh", "hr"])
@pytest.mark.parametrize(
    ("params", "encoding", "shape"),
    [
        (ShiftedGrid(epsilon=0.5, clusters=2), ShiftedGridEncoding(2, 8, 4), (32, 32)),
        (UniformGrid(epsilon=0.5, clusters=2), GridEncoding((9, 11)), (9, 11)),
    ],
    ids=["shifted_grid", "uniform_grid"],
)
def test_two_clusters_are_found_with_their_sizes_and_errors(kind, params, encoding, shape):
    points, _ = mixture(30_000, CENTRES, [0.75, 0.25])
    devices = Devices(points)
    spec = RoundSpec(features(2), encoding, design(kind, encoding.n_symbols, 4 * 10**9))
    model = drive(start(params, features(2), 10), lambda _: devices(spec))
    assert model.label_map.shape == shape
    assert model.assign(CENTRES).tolist() == [0, 1]
    assert (np.abs(model.sizes - [0.75, 0.25]) < 5 * model.size_errors).all()
    assert (model.size_errors < 0.1).all()
    assert model.diagnostics["n_reports"] == 30_000
