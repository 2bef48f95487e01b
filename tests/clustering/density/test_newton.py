"""Newton steps end near the minimum, and the result states it."""

import numpy as np
import pytest

from clustering.density import newton
from clustering.density.newton import NEAR, minimise, solve

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
        lambda u, _: lambda x: (1 + np.exp(u)) * x,
    )


def test_a_quadratic_of_all_scales_is_minimised() -> None:
    objective, matrix, aim = quadratic()
    found = minimise(objective, lambda *_: lambda x: matrix @ x, np.zeros(N))
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


def valleys(u, is_exact=True):
    """Return 1/2 |u|² with a narrow dip at 2 along each axis: value, gradient, and second derivatives or 60."""
    dip = 4 * np.exp(-2 * (u - 2) ** 2)
    second = 1 + dip * (4 - 16 * (u - 2) ** 2) if is_exact else np.full(u.size, 60.0)
    return float((0.5 * u**2 - dip).sum()), u + 4 * (u - 2) * dip, second


def test_second_derivatives_are_used_near_the_minimum_only() -> None:
    uses = []

    def curvature(u, is_exact):
        uses.append(is_exact)
        return lambda x: valleys(u, is_exact)[2] * x

    found = minimise(lambda u: valleys(u)[:2], curvature, np.full(5, 2.4))
    assert found.converged
    assert np.abs(valleys(found.place)[1]).max() < 2 * NEAR
    assert uses[0] is False
    assert uses[-1] is True
    slow = minimise(lambda u: valleys(u)[:2], lambda u, _: lambda x: valleys(u, False)[2] * x, np.full(5, 2.4))
    assert found.steps < slow.steps


def test_a_direction_of_negative_curvature_ends_a_solution_before_it() -> None:
    diagonal = np.array([4.0, 2.0, -1.0])
    known = solve(lambda x: diagonal * x, np.array([4.0, 2.0, 0.0]), 1e-9, 9)
    assert known.is_convex
    assert known.place == pytest.approx([1.0, 1.0, 0.0])
    target = np.array([4.0, 2.0, 1.0])
    found = solve(lambda x: diagonal * x, target, 1e-9, 9)
    assert not found.is_convex
    assert found.place @ target > 0  # a direction of descent
    only = solve(lambda x: -x, target, 1e-9, 9)
    assert (only.is_convex, only.place.tolist()) == (False, target.tolist())


def test_an_end_far_from_the_minimum_is_not_called_converged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newton, "MAX_STEPS", 2)
    objective, curvature = poisson(np.array([50.0, 3.0, 0.0]))
    found = minimise(objective, curvature, np.full(3, -10.0))
    assert (found.converged, found.steps) == (False, 2)
    assert found.value < objective(np.full(3, -10.0))[0]


def test_a_gradient_that_is_wrong_ends_the_search() -> None:
    found = minimise(lambda u: (float(u @ u), -u), lambda *_: lambda x: x, np.ones(3))
    assert (found.converged, found.place.tolist()) == (False, [1.0, 1.0, 1.0])
