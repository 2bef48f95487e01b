"""Test that `shifted_grid` finds shapes as well as measured on its prototype, over five seeds."""

import numpy as np
import pytest

from benchmarks.quality.data import DataSet
from benchmarks.quality.local.benchmark import measure
from benchmarks.quality.local.data import SHAPES
from benchmarks.quality.runs import Run

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)

# Mean ARI of the prototype at epsilon .25, .5, 1, 2, 4, for comparison.
SEEN = {
    (15_000, "moons"): (0.25, 0.46, 0.79, 1, 1),
    (15_000, "aniso"): (0.39, 0.56, 0.79, 0.95, 0.98),
    (15_000, "circles"): (0.01, 0.03, 0.05, 0.32, 1),
    (150_000, "moons"): (0.69, 0.98, 1, 1, 1),
    (150_000, "aniso"): (0.74, 0.94, 0.96, 0.98, 0.98),
    (150_000, "circles"): (0.02, 0.10, 0.83, 1, 1),
}


def score(name: str, n: int, seed: int, epsilon: float) -> float:
    """Return the ARI of one run with K given."""
    return measure(Run("shifted_grid", name, n, "given", epsilon, seed), DataSet(name, n, SHAPES[name]))["ari"]


@pytest.mark.release
@pytest.mark.parametrize(("n", "name"), SEEN)
def test_shapes_are_found_as_measured(n, name):
    for epsilon, seen in zip(EPSILONS, SEEN[n, name], strict=True):
        scores = [score(name, n, seed, epsilon) for seed in range(5)]
        assert np.mean(scores) + np.std(scores) + 0.05 >= seen, f"epsilon {epsilon:g}: {np.mean(scores):.2f}"


@pytest.mark.parametrize(("n", "name", "epsilon"), [(15_000, "moons", 4), (15_000, "aniso", 4), (15_000, "circles", 4)])
def test_shapes_are_found_at_high_epsilon(n, name, epsilon):
    assert score(name, n, 0, epsilon) > 0.97
