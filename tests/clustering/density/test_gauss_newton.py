"""Gauss-Newton steps end near the minimum, and the result states it."""

import numpy as np
import pytest

from clustering.density import gauss_newton
from clustering.density.gauss_newton import NEAR, minimise

N = 60


def quadratic(seed=0, condition=1e6):
    """Return an objective 1/2 u·Hu - b·u with H >= 1, and its matrix H and minimum."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.normal(size=(N, N)))
    matrix = basis @ np.diag(np.geomspace(1, condition, N)) @ basis.T
    aim = rng.normal(size=N)
    return lambda u: (0.5 * (u - aim) @ matrix @ (u - aim), matrix @ (u - aim)), matrix, aim


def poisson(counts):
    """Return the objective of logarithms of means under a normal prior, and its curvature."""
    return (
        lambda u: (float((np.exp(u) - counts * u + 0.5 * u**2).sum()), np.exp(u) - counts + u),
        lambda u: lambda x: (1 + np.exp(u)) * x,
    )


def test_a_quadratic_of_all_scales_is_minimised() -> None:
    objective, matrix, aim = quadratic()
    found = minimise(objective, lambda _: lambda x: matrix @ x, np.zeros(N))
    assert found.converged
    apart = found.place - aim
    assert apart @ matrix @ apart <= NEAR**2  # λ, by its definition
    assert found.value == pytest.approx(objective(found.place)[0])


def test_a_step_that_is_too_long_is_halved() -> None:
    objective, curvature = poisson(np.array([50.0, 3.0, 0.0]))
    start = np.full(3, -10.0)
    assert objective(start - objective(start)[1])[0] > 1e6 * objective(start)[0]  # after a whole step
    found = minimise(objective, curvature, start)
    assert found.converged
    assert objective(found.place)[1] == pytest.approx(0, abs=0.2)
    assert np.exp(found.place[0]) == pytest.approx(50 - np.log(50), rel=0.02)


def test_an_end_far_from_the_minimum_is_not_called_converged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauss_newton, "MAX_STEPS", 2)
    objective, curvature = poisson(np.array([50.0, 3.0, 0.0]))
    found = minimise(objective, curvature, np.full(3, -10.0))
    assert (found.converged, found.steps) == (False, 2)
    assert found.value < objective(np.full(3, -10.0))[0]


def test_a_gradient_that_is_wrong_ends_the_search() -> None:
    found = minimise(lambda u: (float(u @ u), -u), lambda _: lambda x: x, np.ones(3))
    assert (found.converged, found.place.tolist()) == (False, [1.0, 1.0, 1.0])
