"""Plans go on from rounds of any mechanism: two blobs are found through each."""

import numpy as np
import pytest

from clustering.plans import shifted_grid, uniform_grid
from clustering.simulate import SeededEntropy, collect
from sfumato.mechanisms import design
from sfumato.specs import Feature, GridEncoding, RoundSpec, ShiftedGrid, ShiftedGridEncoding, UniformGrid

XY = (Feature("x", 0, 1), Feature("y", 0, 1))
N = 40_000


def two_blobs():
    """Three quarters of the people around (.25, .25), the others around (.75, .75)."""
    rng = np.random.default_rng(7)
    centres = np.repeat([[0.25, 0.25], [0.75, 0.75]], [3 * N // 4, N // 4], axis=0)
    return np.clip(centres + 0.06 * rng.standard_normal((N, 2)), 0, 1)


@pytest.mark.parametrize("kind", ["grr", "ss", "oue", "olh", "hr"])
@pytest.mark.parametrize(
    ("encoding", "fit"),
    [
        (ShiftedGridEncoding(2, 8, 4), lambda came: shifted_grid.fit(ShiftedGrid(epsilon=4, clusters=2), came)),
        (GridEncoding((10, 10)), lambda came: uniform_grid.fit(UniformGrid(epsilon=4, clusters=2), came)),
    ],
    ids=["shifted_grid", "uniform_grid"],
)
def test_two_blobs_are_found_with_their_sizes_and_errors(kind, encoding, fit):
    spec = RoundSpec(XY, encoding, design(kind, encoding.n_symbols, 4 * 10**9))
    model = fit(collect(spec, two_blobs(), SeededEntropy(1), SeededEntropy(2).words(N)))
    assert model.assign(np.array([[0.25, 0.25], [0.75, 0.75]])).tolist() == [0, 1]
    assert (np.abs(model.sizes - [0.75, 0.25]) < 5 * model.size_errors).all()
    assert (model.size_errors < 0.1).all()
    assert model.diagnostics["n_reports"] == N
