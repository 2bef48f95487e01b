"""Test Gaussian components of three shapes: the kernels against plain twins, the prior and the fit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustering.kernels.phases import jacobian, residuals
from clustering.phases import gaussian_components
from clustering.phases.gaussian_components import (
    Characteristic,
    Components,
    Constraints,
    characteristic_residual,
    diagonal_shape,
    fit_components,
    full_shape,
    round_shape,
)
from tests import naive_phase

SHAPES = {"round": round_shape, "diagonal": diagonal_shape, "full": full_shape}
shapes = pytest.mark.parametrize("shape_name", SHAPES)


def rules(n_features=3, **others):
    given = {
        "lower": np.full(n_features, -0.02),
        "upper": np.full(n_features, 1.02),
        "least_share": 0.002,
        "least_width": 0.02,
        "most_width": 0.4,
        "usual_width": 0.1,
        "stiffness": 1.0,
        "off_stiffness": 4.0,
    }
    return Constraints(**{**given, **others})


def random_components(shape, n_components=3, seed=1):
    rng = np.random.default_rng(seed)
    n_features = int(shape.rows.max()) + 1
    spreads = np.where(
        shape.on_diagonal,
        rng.uniform(0.05, 0.15, (n_components, shape.n_spreads)),
        rng.uniform(-0.05, 0.05, (n_components, shape.n_spreads)),
    )
    shares = rng.uniform(0.5, 1.5, n_components)
    return Components(rng.random((n_components, n_features)), shares / shares.sum(), spreads)


def seen_of(shape, components, n=150, noise=0.0, seed=2):
    """Return the characteristic function of the components, with noise."""
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(n, components.centres.shape[1]))
    lengths = np.exp(rng.uniform(np.log(3), np.log(20), n))
    omegas = directions / np.linalg.norm(directions, axis=1, keepdims=True) * lengths[:, None]
    values = np.array([naive_phase.expected_value(omega, shape, components) for omega in omegas])
    weights = rng.uniform(50, 150, n)
    deviates = rng.normal(size=(2, n)) / np.sqrt(2 * weights)
    return Characteristic(omegas, values + noise * (deviates[0] + 1j * deviates[1]), weights)


class TestKernels:
    @shapes
    @pytest.mark.parametrize("n_features", [1, 3])
    def test_residuals_equal_the_definition(self, shape_name, n_features):
        shape = SHAPES[shape_name](n_features)
        seen, components = seen_of(shape, random_components(shape)), random_components(shape, seed=5)
        roots = np.sqrt(seen.weights)
        found = np.empty(2 * len(roots))
        total = residuals(seen.omegas, seen.values, roots, *shape[1:], *components, found)
        plain = naive_phase.weighted_residuals(seen.omegas, seen.values, roots, shape, components)
        assert found == pytest.approx(plain, abs=1e-6)  # components damped below e^-18 are omitted
        assert total == pytest.approx(plain @ plain)

    @shapes
    @pytest.mark.parametrize("n_features", [1, 3])
    def test_slopes_equal_the_definition(self, shape_name, n_features):
        shape = SHAPES[shape_name](n_features)
        components = random_components(shape)
        seen = seen_of(shape, components, n=40)
        roots = np.sqrt(seen.weights)
        plain = naive_phase.residual_slopes(seen.omegas, roots, shape, components)
        found = np.full(plain.shape, np.nan)
        jacobian(seen.omegas, roots, *shape[1:], *components, found)
        assert found == pytest.approx(plain, abs=1e-5 * np.abs(plain).max())

    def test_an_invisible_component_has_no_slope(self):
        shape = round_shape(1)
        found = np.full((2, 3), np.nan)
        wide = Components(np.array([[0.5]]), np.ones(1), np.array([[0.4]]))
        jacobian(np.array([[100.0]]), np.ones(1), *shape[1:], *wide, found)
        assert (found == 0).all()


class TestShapes:
    @pytest.mark.parametrize(("shape_name", "n_spreads"), [("round", 1), ("diagonal", 4), ("full", 10)])
    def test_have_their_number_of_spreads(self, shape_name, n_spreads):
        shape = SHAPES[shape_name](4)
        assert shape.name == shape_name
        assert shape.n_spreads == n_spreads
        assert shape.on_diagonal.sum() == min(n_spreads, 4)

    @shapes
    def test_roots_equal_the_definition(self, shape_name):
        shape = SHAPES[shape_name](4)
        components = random_components(shape)
        plain = [naive_phase.root_of(shape, spreads) for spreads in components.spreads]
        assert (components.roots(shape) == np.array(plain)).all()
        assert (np.triu(components.roots(shape)[0], 1) == 0).all()


class TestLoss:
    @shapes
    def test_is_the_weighted_square_of_the_residual(self, shape_name):
        shape = SHAPES[shape_name](3)
        seen, components = seen_of(shape, random_components(shape), noise=1.0), random_components(shape, seed=9)
        left = characteristic_residual(seen, shape, components)
        plain = [
            v - naive_phase.expected_value(o, shape, components) for o, v in zip(seen.omegas, seen.values, strict=True)
        ]
        assert left == pytest.approx(np.array(plain), abs=1e-7)

    def test_of_the_truth_is_one_per_frequency(self):
        shape = full_shape(3)
        components = random_components(shape)
        seen = seen_of(shape, components, n=4000, noise=1.0)
        left = characteristic_residual(seen, shape, components)
        assert seen.weights @ np.abs(left) ** 2 == pytest.approx(4000, abs=5 * 4000**0.5)


class TestPrior:
    @shapes
    def test_its_gradient_is_the_slope_of_its_value(self, shape_name):
        shape = SHAPES[shape_name](3)
        components = random_components(shape)
        n_numbers = 4 + shape.n_spreads
        prior = gaussian_components._Prior(shape, rules(), True)
        gradient, matrix = np.zeros(3 * n_numbers), np.zeros((3 * n_numbers, 3 * n_numbers))
        prior.add(components, matrix, gradient)
        for component in range(3):
            for number in np.flatnonzero(shape.on_diagonal):
                sides = []
                for by in (1e-6, -1e-6):
                    spreads = components.spreads.copy()
                    spreads[component, number] += by
                    # the step measures entries off the diagonal in a constant width
                    off = gaussian_components._Prior(shape, rules(off_stiffness=0.0), True)
                    sides.append(off.value(components._replace(spreads=spreads)))
                at = component * n_numbers + 4 + number
                assert gradient[at] == pytest.approx(-(sides[0] - sides[1]) / 2e-6 / 2, rel=1e-5)
                assert matrix[at, at] > 0
        assert np.count_nonzero(matrix) == 3 * shape.n_spreads

    def test_its_gradient_moves_entries_off_the_diagonal_to_zero(self):
        shape = full_shape(2)
        components = Components(np.full((1, 2), 0.5), np.ones(1), np.array([[0.1, 0.05, 0.2]]))
        gradient, matrix = np.zeros(6), np.zeros((6, 6))
        gaussian_components._Prior(shape, rules(2), True).add(components, matrix, gradient)
        assert gradient[4] == pytest.approx(-0.5 * 4.0 * 0.05 / 0.2**2)  # in units of the row's width
        assert matrix[4, 4] == pytest.approx(0.5 * 4.0 / 0.2**2)

    def test_does_not_apply_to_a_partial_fit(self):
        shape = round_shape(2)
        gradient, matrix = np.zeros(4), np.zeros((4, 4))
        prior = gaussian_components._Prior(shape, rules(2), False)
        prior.add(random_components(shape, 1), matrix, gradient)
        assert prior.value(random_components(shape, 1)) == 0
        assert not gradient.any()
        assert not matrix.any()


class TestFit:
    @shapes
    def test_finds_the_true_components(self, shape_name):
        shape = SHAPES[shape_name](3)
        components = random_components(shape)
        seen = seen_of(shape, components, n=400)
        flat = np.where(shape.on_diagonal, 0.1, 0.0)
        start = Components(components.centres + 0.03, np.full(3, 1 / 3), np.tile(flat, (3, 1)))
        loose = rules(stiffness=1e-9, off_stiffness=1e-9)
        fitted = fit_components(seen, shape, start, loose, 60, 1e-9)
        assert fitted.loss < 1e-3
        assert fitted.components.centres == pytest.approx(components.centres, abs=2e-3)
        assert fitted.components.shares == pytest.approx(components.shares, abs=2e-3)
        assert fitted.components.roots(shape) @ fitted.components.roots(shape).transpose(0, 2, 1) == pytest.approx(
            components.roots(shape) @ components.roots(shape).transpose(0, 2, 1), abs=1e-3
        )

    @shapes
    def test_never_increases_the_loss_and_keeps_the_constraints(self, shape_name):
        shape = SHAPES[shape_name](3)
        seen = seen_of(shape, random_components(shape), noise=1.0)
        start = random_components(shape, seed=8)
        constraints = rules()
        prior = gaussian_components._Prior(shape, constraints, True)
        values = []
        for n_steps in range(8):
            fitted = fit_components(seen, shape, start, constraints, n_steps, 0.0)
            values.append(fitted.loss + prior.value(fitted.components))
            left = characteristic_residual(seen, shape, fitted.components)
            assert fitted.loss == pytest.approx(seen.weights @ np.abs(left) ** 2)
            assert fitted.components.shares.sum() == pytest.approx(1)
            assert fitted.components.shares.min() > 0.001  # the least share after normalisation
            assert ((fitted.components.centres >= -0.02) & (fitted.components.centres <= 1.02)).all()
            widths = fitted.components.spreads[:, shape.on_diagonal]
            assert ((widths >= 0.02) & (widths <= 0.4)).all()
        assert values == sorted(values, reverse=True)
        assert values[-1] < values[0]

    def test_a_partial_fit_has_less_than_the_whole_share(self):
        shape = round_shape(2)
        component = Components(np.array([[0.3, 0.6]]), np.array([0.25]), np.array([[0.08]]))
        seen = seen_of(shape, component)
        start = Components(np.array([[0.33, 0.57]]), np.array([0.6]), np.array([[0.1]]))
        fitted = fit_components(seen, shape, start, rules(2), 40, 1e-9, whole=False)
        assert fitted.components.shares == pytest.approx([0.25], abs=1e-3)
        assert fitted.components.centres == pytest.approx(component.centres, abs=1e-3)

    @settings(max_examples=40)
    @given(st.integers(0, 1000), st.sampled_from(sorted(SHAPES)), st.sampled_from([0.0, 1.0, 1e6]))
    def test_is_finite_for_any_values(self, seed, shape_name, loudness):
        shape = SHAPES[shape_name](2)
        rng = np.random.default_rng(seed)
        n = int(rng.integers(0, 9))
        values = loudness * (rng.normal(size=n) + 1j * rng.normal(size=n))
        seen = Characteristic(rng.normal(0, 10, (n, 2)), values, rng.choice([1e-9, 1.0, 1e5], n))
        fitted = fit_components(seen, shape, random_components(shape, seed=seed), rules(2), 10, 0.01)
        assert np.isfinite(fitted.loss)
        assert all(np.isfinite(part).all() for part in fitted.components)
