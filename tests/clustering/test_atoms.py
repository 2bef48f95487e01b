"""Normal atoms of three shapes: their kernels against plain twins, what is thought beforehand, and the fit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustering import atoms as module
from clustering.atoms import (
    Atoms,
    Rules,
    diagonal_shape,
    full_shape,
    left_over,
    loss_of,
    polish,
    round_shape,
)
from clustering.characteristic import Characteristic
from clustering.kernels.characteristic import jacobian, residuals
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
    return Rules(**{**given, **others})


def some_atoms(shape, n_atoms=3, seed=1):
    rng = np.random.default_rng(seed)
    n_features = int(shape.rows.max()) + 1
    spreads = np.where(
        shape.on_diagonal,
        rng.uniform(0.05, 0.15, (n_atoms, shape.n_spreads)),
        rng.uniform(-0.05, 0.05, (n_atoms, shape.n_spreads)),
    )
    shares = rng.uniform(0.5, 1.5, n_atoms)
    return Atoms(rng.random((n_atoms, n_features)), shares / shares.sum(), spreads)


def seen_of(shape, atoms, n=150, noise=0.0, seed=2):
    """What the atoms are expected to show, and noise."""
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(n, atoms.centres.shape[1]))
    lengths = np.exp(rng.uniform(np.log(3), np.log(20), n))
    omegas = directions / np.linalg.norm(directions, axis=1, keepdims=True) * lengths[:, None]
    values = np.array([naive_phase.expected_value(omega, shape, atoms) for omega in omegas])
    weights = rng.uniform(50, 150, n)
    deviates = rng.normal(size=(2, n)) / np.sqrt(2 * weights)
    return Characteristic(omegas, values + noise * (deviates[0] + 1j * deviates[1]), weights)


class TestKernels:
    @shapes
    @pytest.mark.parametrize("n_features", [1, 3])
    def test_residuals_are_those_of_the_definition(self, shape_name, n_features):
        shape = SHAPES[shape_name](n_features)
        seen, atoms = seen_of(shape, some_atoms(shape)), some_atoms(shape, seed=5)
        roots = np.sqrt(seen.weights)
        found = np.empty(2 * len(roots))
        total = residuals(seen.omegas, seen.values, roots, *shape[1:], *atoms, found)
        plain = naive_phase.weighted_residuals(seen.omegas, seen.values, roots, shape, atoms)
        assert found == pytest.approx(plain, abs=1e-6)  # an atom damped below e^-18 is left out
        assert total == pytest.approx(plain @ plain)

    @shapes
    @pytest.mark.parametrize("n_features", [1, 3])
    def test_slopes_are_those_of_the_definition(self, shape_name, n_features):
        shape = SHAPES[shape_name](n_features)
        atoms = some_atoms(shape)
        seen = seen_of(shape, atoms, n=40)
        roots = np.sqrt(seen.weights)
        plain = naive_phase.residual_slopes(seen.omegas, roots, shape, atoms)
        found = np.full(plain.shape, np.nan)
        jacobian(seen.omegas, roots, *shape[1:], *atoms, found)
        assert found == pytest.approx(plain, abs=1e-5 * np.abs(plain).max())

    def test_an_atom_that_is_not_seen_has_no_slope(self):
        shape = round_shape(1)
        found = np.full((2, 3), np.nan)
        wide = Atoms(np.array([[0.5]]), np.ones(1), np.array([[0.4]]))
        jacobian(np.array([[100.0]]), np.ones(1), *shape[1:], *wide, found)
        assert (found == 0).all()


class TestShapes:
    @pytest.mark.parametrize(("shape_name", "n_spreads"), [("round", 1), ("diagonal", 4), ("full", 10)])
    def test_have_so_many_spreads(self, shape_name, n_spreads):
        shape = SHAPES[shape_name](4)
        assert shape.name == shape_name
        assert shape.n_spreads == n_spreads
        assert shape.on_diagonal.sum() == min(n_spreads, 4)

    @shapes
    def test_fill_roots_as_the_definition_does(self, shape_name):
        shape = SHAPES[shape_name](4)
        atoms = some_atoms(shape)
        plain = [naive_phase.root_of(shape, spreads) for spreads in atoms.spreads]
        assert (atoms.roots(shape) == np.array(plain)).all()
        assert (np.triu(atoms.roots(shape)[0], 1) == 0).all()


class TestLoss:
    @shapes
    def test_is_the_weighted_square_of_what_is_left(self, shape_name):
        shape = SHAPES[shape_name](3)
        seen, atoms = seen_of(shape, some_atoms(shape), noise=1.0), some_atoms(shape, seed=9)
        left = left_over(seen, shape, atoms)
        assert loss_of(seen, shape, atoms) == pytest.approx(seen.weights @ np.abs(left) ** 2)
        plain = [v - naive_phase.expected_value(o, shape, atoms) for o, v in zip(seen.omegas, seen.values, strict=True)]
        assert left == pytest.approx(np.array(plain), abs=1e-7)

    def test_of_the_truth_is_one_a_frequency(self):
        shape = full_shape(3)
        atoms = some_atoms(shape)
        seen = seen_of(shape, atoms, n=4000, noise=1.0)
        assert loss_of(seen, shape, atoms) == pytest.approx(4000, abs=5 * 4000**0.5)


class TestPrior:
    @shapes
    def test_its_gradient_is_that_of_its_value(self, shape_name):
        shape = SHAPES[shape_name](3)
        atoms = some_atoms(shape)
        n_numbers = 4 + shape.n_spreads
        prior = module._Prior(shape, rules(), True)
        gradient, matrix = np.zeros(3 * n_numbers), np.zeros((3 * n_numbers, 3 * n_numbers))
        prior.add(atoms, matrix, gradient)
        for atom in range(3):
            for number in np.flatnonzero(shape.on_diagonal):
                sides = []
                for by in (1e-6, -1e-6):
                    spreads = atoms.spreads.copy()
                    spreads[atom, number] += by
                    # entries off the diagonal are measured in a width that stays: as the step takes it
                    off = module._Prior(shape, rules(off_stiffness=0.0), True)
                    sides.append(off.value(atoms._replace(spreads=spreads)))
                at = atom * n_numbers + 4 + number
                assert gradient[at] == pytest.approx(-(sides[0] - sides[1]) / 2e-6 / 2, rel=1e-5)
                assert matrix[at, at] > 0
        assert np.count_nonzero(matrix) == 3 * shape.n_spreads

    def test_pulls_entries_off_the_diagonal_to_zero(self):
        shape = full_shape(2)
        atoms = Atoms(np.full((1, 2), 0.5), np.ones(1), np.array([[0.1, 0.05, 0.2]]))
        gradient, matrix = np.zeros(6), np.zeros((6, 6))
        module._Prior(shape, rules(2), True).add(atoms, matrix, gradient)
        assert gradient[4] == pytest.approx(-0.5 * 4.0 * 0.05 / 0.2**2)  # in units of its row's width
        assert matrix[4, 4] == pytest.approx(0.5 * 4.0 / 0.2**2)

    def test_does_not_count_for_a_part_of_what_is_seen(self):
        shape = round_shape(2)
        gradient, matrix = np.zeros(4), np.zeros((4, 4))
        prior = module._Prior(shape, rules(2), False)
        prior.add(some_atoms(shape, 1), matrix, gradient)
        assert prior.value(some_atoms(shape, 1)) == 0
        assert not gradient.any()
        assert not matrix.any()


class TestPolish:
    @shapes
    def test_finds_the_atoms_that_are_seen(self, shape_name):
        shape = SHAPES[shape_name](3)
        atoms = some_atoms(shape)
        seen = seen_of(shape, atoms, n=400)
        flat = np.where(shape.on_diagonal, 0.1, 0.0)
        start = Atoms(atoms.centres + 0.03, np.full(3, 1 / 3), np.tile(flat, (3, 1)))
        loose = rules(stiffness=1e-9, off_stiffness=1e-9)
        fitted = polish(seen, shape, start, loose, 60, 1e-9)
        assert fitted.loss < 1e-3
        assert fitted.atoms.centres == pytest.approx(atoms.centres, abs=2e-3)
        assert fitted.atoms.shares == pytest.approx(atoms.shares, abs=2e-3)
        assert fitted.atoms.roots(shape) @ fitted.atoms.roots(shape).transpose(0, 2, 1) == pytest.approx(
            atoms.roots(shape) @ atoms.roots(shape).transpose(0, 2, 1), abs=1e-3
        )

    @shapes
    def test_never_goes_up_and_keeps_the_rules(self, shape_name):
        shape = SHAPES[shape_name](3)
        seen = seen_of(shape, some_atoms(shape), noise=1.0)
        start = some_atoms(shape, seed=8)
        held = rules()
        prior = module._Prior(shape, held, True)
        values = []
        for n_steps in range(8):
            fitted = polish(seen, shape, start, held, n_steps, 0.0)
            values.append(fitted.loss + prior.value(fitted.atoms))
            assert fitted.loss == pytest.approx(loss_of(seen, shape, fitted.atoms))
            assert fitted.atoms.shares.sum() == pytest.approx(1)
            assert fitted.atoms.shares.min() > 0.001  # the least one, made to sum to one with the others
            assert ((fitted.atoms.centres >= -0.02) & (fitted.atoms.centres <= 1.02)).all()
            widths = fitted.atoms.spreads[:, shape.on_diagonal]
            assert ((widths >= 0.02) & (widths <= 0.4)).all()
        assert values == sorted(values, reverse=True)
        assert values[-1] < values[0]

    def test_a_part_need_not_have_all_the_share(self):
        shape = round_shape(2)
        atom = Atoms(np.array([[0.3, 0.6]]), np.array([0.25]), np.array([[0.08]]))
        seen = seen_of(shape, atom)
        start = Atoms(np.array([[0.33, 0.57]]), np.array([0.6]), np.array([[0.1]]))
        fitted = polish(seen, shape, start, rules(2), 40, 1e-9, whole=False)
        assert fitted.atoms.shares == pytest.approx([0.25], abs=1e-3)
        assert fitted.atoms.centres == pytest.approx(atom.centres, abs=1e-3)

    @given(st.integers(0, 1000), st.sampled_from(sorted(SHAPES)), st.sampled_from([0.0, 1.0, 1e6]))
    def test_is_finite_whatever_is_seen(self, seed, shape_name, loudness):
        shape = SHAPES[shape_name](2)
        rng = np.random.default_rng(seed)
        n = int(rng.integers(0, 9))
        values = loudness * (rng.normal(size=n) + 1j * rng.normal(size=n))
        seen = Characteristic(rng.normal(0, 10, (n, 2)), values, rng.choice([1e-9, 1.0, 1e5], n))
        fitted = polish(seen, shape, some_atoms(shape, seed=seed), rules(2), 10, 0.01)
        assert np.isfinite(fitted.loss)
        assert all(np.isfinite(part).all() for part in fitted.atoms)
