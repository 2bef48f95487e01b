"""L-BFGS steps end near the minimum, and the result states it."""

import numpy as np
import pytest

from clustering.density.quasi_newton import descend
from clustering.kernels.descent import descent_direction
from tests import naive

N_PAIRS, N = 4, 9


@pytest.mark.parametrize("n_steps", [0, 1, 3, 4, 7])
def test_a_direction_is_that_of_the_updates_of_the_last_steps(n_steps: int) -> None:
    rng = np.random.default_rng(2)
    root = rng.normal(size=(N, N))
    steps = rng.normal(size=(n_steps, N))
    changes = steps @ (root @ root.T)
    ring = np.zeros((2, N_PAIRS, N))
    products = np.ones(N_PAIRS)
    for i in range(n_steps):
        at = i % N_PAIRS
        ring[0, at], ring[1, at], products[at] = steps[i], changes[i], steps[i] @ changes[i]
    slope, direction = rng.normal(size=N), np.empty(N)
    descent_direction(slope, ring[0], ring[1], products, n_steps, direction)
    kept = slice(max(n_steps - N_PAIRS, 0), None)
    assert direction == pytest.approx(naive.inverse_curvature(steps[kept], changes[kept]) @ slope)


def rosenbrock(u):
    """Return a function with a curved valley, and its gradient. The minimum 0 is at (1, 1, ..)."""
    a, b = u[:-1], u[1:]
    slope = np.zeros(u.size)
    slope[:-1] = -400 * a * (b - a**2) - 2 * (1 - a)
    slope[1:] += 200 * (b - a**2)
    return float((100 * (b - a**2) ** 2 + (1 - a) ** 2).sum()), slope


def test_a_curved_valley_is_followed_to_its_end() -> None:
    end = descend(rosenbrock, np.full(10, -1.0), 200, 1e-12)
    assert end.converged
    assert end.steps < 100
    assert end.place == pytest.approx(np.ones(10), abs=1e-4)
    assert end.value == rosenbrock(end.place)[0]


def test_too_few_steps_do_not_converge() -> None:
    end = descend(rosenbrock, np.full(10, -1.0), 5, 1e-12)
    assert (end.converged, end.steps) == (False, 5)
    assert end.value < rosenbrock(np.full(10, -1.0))[0]


def test_one_small_step_does_not_end_the_search() -> None:
    values = iter([100.0, 99.99, 50.0, 49.999, 49.998, 0.0])
    slopes = iter(0.001 * 0.5 ** np.arange(6))
    end = descend(lambda _: (next(values), np.full(2, next(slopes))), np.zeros(2), 5, 1e-3)
    assert (end.converged, end.steps, end.value) == (True, 4, 49.998)


def test_a_gradient_that_is_wrong_ends_the_search() -> None:
    end = descend(lambda u: (float(u @ u), -u), np.ones(3), 50, 1e-6)
    assert (end.converged, end.place.tolist()) == (False, [1.0, 1.0, 1.0])


def test_a_step_that_fits_no_condition_ends_the_search() -> None:
    """The value jumps where the slope still falls, so every step is too short or too long."""
    end = descend(lambda u: (-float(u[0]) if u[0] < 1 else 10.0, -np.ones(1)), np.zeros(1), 50, 1e-6)
    assert not end.converged
    assert -1 < end.value <= 0
