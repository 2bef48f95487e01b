"""Test the likelihood of phases, its information, the Newton step and the errors against plain twins."""

from itertools import pairwise

import numpy as np
import pytest

from clustering.errors import UnfitRound
from clustering.kernels.phases import agreement, ascend, sines_and_cosines
from clustering.phases.mixture_fit import (
    ALIKE,
    CENTRE_STEP,
    HARMONICS,
    RIDGE,
    SHARE_STEP,
    Alike,
    Limits,
    Mixture,
    climb,
    harmonics_of,
    information,
    least_share,
    nll,
    normal_equations,
    objective,
    sketch_of,
    standard_errors,
    step,
)
from clustering.rounds.tally import Tally
from sfumato.mechanisms import design
from sfumato.specs import Feature, GrrMechanism, PhaseEncoding, RoundSpec, SsMechanism
from tests import naive_phase

LIMITS = Limits(0.02, 0.015, 0.35, (0.1,))
MIXTURE = Mixture(np.array([[0.3, 0.6], [0.8, 0.2]]), np.array([0.65, 0.35]), np.array([0.05, 0.12]))


def sketch(n_waves=7, n_features=2, n_phases=8, seed=1, mechanism=None):
    rng = np.random.default_rng(seed)
    weights = rng.integers(-3000, 3000, (n_waves, n_features))
    encoding = PhaseEncoding(tuple(tuple(row) for row in weights.tolist()), n_phases)
    counts = rng.integers(0, 40, (n_waves, n_phases))
    mechanism = mechanism or design("window", n_phases, 2 * 10**9)
    return sketch_of(encoding, mechanism, Tally(counts, counts.sum(axis=1)))


class TestSinesAndCosines:
    @pytest.mark.parametrize("largest", [1e-9, 1.0, 200.0, 1e6])
    def test_equal_those_of_their_twin(self, largest):
        angles = np.random.default_rng(4).uniform(-largest, largest, 2000)
        found = np.empty((2, len(angles)))
        sines_and_cosines(angles, *found)
        assert found == pytest.approx(np.array(naive_phase.sines_and_cosines(angles)), rel=0, abs=1e-15)

    def test_of_quarter_turns_and_their_middles_have_the_right_sign(self):
        angles = np.arange(-40, 41) * np.pi / 4
        found = np.empty((2, len(angles)))
        sines_and_cosines(angles, *found)
        assert found == pytest.approx(np.array(naive_phase.sines_and_cosines(angles)), rel=0, abs=1e-15)


class TestHarmonics:
    @pytest.mark.parametrize(("n_phases", "epsilon"), [(16, 0.5), (8, 1.0), (64, 8.0)])
    def test_are_the_means_of_the_window(self, n_phases, epsilon):
        mechanism = design("window", n_phases, round(epsilon * 1e9))
        plain = naive_phase.window_chances(n_phases, mechanism.window_size, epsilon)
        chances = np.array([float(chance) for chance in mechanism.offset_chances()])
        assert chances == pytest.approx(plain, rel=1e-6)
        found = harmonics_of(chances)
        assert len(found) == HARMONICS
        for q in (1, 2, 3, 8, 16):
            assert found[q - 1] == pytest.approx(naive_phase.harmonic(plain, q), abs=2e-3)

    def test_of_tiny_epsilon_are_precise(self):
        chances = [np.array([float(c) for c in design("window", 16, nano).offset_chances()]) for nano in (1000, 10**6)]
        tiny, larger = (abs(harmonics_of(each)[0]) for each in chances)
        assert tiny == pytest.approx(larger / 1000, rel=1e-3)


class TestSketch:
    def test_omits_waves_without_reports(self):
        encoding = PhaseEncoding(((1024, 0), (0, 512), (5, 5)), 4)
        counts = np.array([[1, 2, 3, 4], [0, 0, 0, 0], [0, 0, 0, 7]])
        found = sketch_of(encoding, design("window", 4, 10**9), Tally(counts, counts.sum(axis=1)))
        assert found.counts.tolist() == [[1, 2, 3, 4], [0, 0, 0, 7]]
        assert found.omegas == pytest.approx(2 * np.pi * np.array([[1, 0], [5 / 1024, 5 / 1024]]))
        assert found.n_features == 2

    def test_refuses_a_mechanism_without_information(self):
        tally = Tally.empty(RoundSpec((Feature("x", 0, 1),), PhaseEncoding(((9,),), 4), GrrMechanism(4, 2**62)))
        encoding = PhaseEncoding(((9,),), 4)
        with pytest.raises(UnfitRound, match="carry no information"):
            sketch_of(encoding, GrrMechanism(4, 2**62), tally)
        with pytest.raises(UnfitRound, match="does not report phases"):
            sketch_of(encoding, SsMechanism(4, 2, 2**63), tally)


class TestLikelihood:
    def test_equals_the_definition(self):
        given = sketch()
        plain = naive_phase.negative_log_likelihood(given.omegas, given.counts, given.harmonics, MIXTURE)
        assert nll(given, MIXTURE) == pytest.approx(plain, abs=0.02)  # harmonics damped below 1e-5 are omitted

    def test_of_uninformative_reports_is_zero(self):
        given = sketch()._replace(harmonics=np.zeros(HARMONICS, dtype=np.complex128))
        assert nll(given, MIXTURE) == 0.0

    def test_of_a_tiny_density_is_finite(self):
        given = sketch(mechanism=design("window", 8, 32 * 10**9))
        tight = MIXTURE._replace(widths=np.array([0.015, 0.015]))
        assert np.isfinite(nll(given, tight))
        assert all(np.isfinite(part).all() for part in information(given, tight))

    @pytest.mark.parametrize("n_features", [1, 3])
    def test_gradient_and_information_equal_the_definition(self, n_features):
        given = sketch(n_waves=5, n_features=n_features)
        rng = np.random.default_rng(2)
        mixture = Mixture(rng.random((3, n_features)), np.array([0.5, 0.3, 0.2]), np.array([0.06, 0.1, 0.2]))
        gradient, matrix = information(given, mixture)
        plain_gradient, plain_matrix = naive_phase.curvature(given.omegas, given.counts, given.harmonics, mixture)
        assert gradient == pytest.approx(plain_gradient, rel=1e-3, abs=1e-3 * np.abs(plain_gradient).max())
        assert matrix == pytest.approx(plain_matrix, rel=1e-3, abs=1e-3 * np.abs(plain_matrix).max())
        assert (matrix == matrix.T).all()

    def test_the_information_is_the_covariance_of_the_gradient(self):
        """Fisher's identity, for counts sampled from the mixture."""
        rng = np.random.default_rng(3)
        given = sketch(n_waves=40, mechanism=design("window", 8, 10**9))
        chances = np.array(
            [[naive_phase.density(w, given.harmonics, 8, y, MIXTURE) / 8 for y in range(8)] for w in given.omegas]
        )
        gradients = []
        for _ in range(2000):
            counts = np.array([rng.multinomial(50, row / row.sum()) for row in chances], dtype=float)
            gradients.append(information(given._replace(counts=counts), MIXTURE)[0])
        _, matrix = information(given._replace(counts=np.full((40, 8), 50 / 8)), MIXTURE)
        # 2,000 samples give a variance to 3 %
        assert np.cov(np.array(gradients).T).diagonal() == pytest.approx(
            matrix.diagonal(), rel=0.15
        )  # 2,000 samples give a variance to 3 %


class TestStep:
    def test_is_a_damped_newton_step_that_keeps_the_sum_of_shares(self):
        given = sketch(n_waves=30)
        gradient, matrix = information(given, MIXTURE)
        damping = 1e4  # keeps the step below its caps
        diagonal = matrix.diagonal()
        plain = naive_phase.damped_move(gradient, matrix, damping * diagonal + RIDGE * diagonal.max(), 2)
        moved = naive_phase.packed(step(MIXTURE, gradient, matrix, damping, LIMITS))
        assert moved - naive_phase.packed(MIXTURE) == pytest.approx(plain, rel=1e-5, abs=1e-12)
        assert np.abs(plain).max() > 1e-7

    def test_respects_caps_and_limits(self):
        gradient, matrix = np.full(8, -1e9), np.eye(8)
        gradient[4:6] = [-1e9, 1e9]
        moved = step(MIXTURE, gradient, matrix, 0.0, LIMITS)
        assert moved.centres == pytest.approx(MIXTURE.centres + CENTRE_STEP)
        assert moved.shares == pytest.approx([0.65 + SHARE_STEP, 0.35 - SHARE_STEP])
        assert moved.widths == pytest.approx(MIXTURE.widths * np.exp(0.4))
        far = MIXTURE._replace(
            centres=np.full((2, 2), 1.04), shares=np.array([0.97, 0.03]), widths=np.array([0.34, 0.3])
        )
        moved = step(far, gradient, matrix, 0.0, LIMITS)
        assert moved.centres.max() == 1.05
        assert moved.shares == pytest.approx(np.array([1.12, 0.02]) / 1.14)
        assert moved.widths.max() == 0.35

    def test_no_information_moves_nothing(self):
        moved = step(MIXTURE, np.zeros(8), np.zeros((8, 8)), 1e-2, LIMITS)
        assert all((a == b).all() for a, b in zip(moved, MIXTURE, strict=True))

    def test_the_least_share_is_lower_with_many_clusters(self):
        assert least_share(2, LIMITS) == 0.02
        assert least_share(64, LIMITS) == 0.5 / 64


class TestClimb:
    def expected(self, n_reports=4000):
        """Return a sketch with the expected counts of the mixture."""
        given = sketch(n_waves=60, n_phases=16)
        density = np.array(
            [[naive_phase.density(w, given.harmonics, 16, y, MIXTURE) for y in range(16)] for w in given.omegas]
        )
        return given._replace(counts=n_reports / 16 * density)

    def test_finds_the_true_mixture(self):
        given = self.expected()
        start = Mixture(MIXTURE.centres + 0.03, np.array([0.5, 0.5]), np.array([0.08, 0.08]))
        fitted = climb(given, start, LIMITS)
        assert fitted.converged
        assert fitted.mixture.centres == pytest.approx(MIXTURE.centres, abs=1e-3)
        assert fitted.mixture.shares == pytest.approx(MIXTURE.shares, abs=1e-3)
        assert fitted.mixture.widths == pytest.approx(MIXTURE.widths, abs=1e-3)
        assert fitted.nll == pytest.approx(objective(given, MIXTURE), abs=0.03)  # the prior moves it

    def test_fitted_widths_are_nearer_to_each_other_if_there_are_few_reports(self):
        """The information about a log width is far less than that of the prior."""
        given = self.expected()
        few = given._replace(counts=given.counts * 1e-4)
        widths = climb(few, MIXTURE, LIMITS).mixture.widths
        assert widths[0] == pytest.approx(widths[1], rel=0.1)
        assert MIXTURE.widths[0] < widths.mean() < MIXTURE.widths[1]

    def test_the_gradient_is_that_of_the_objective(self):
        given, at, by = sketch(n_waves=40), naive_phase.packed(MIXTURE), 1e-5
        plain = [
            objective(given, Mixture(*naive_phase.unpacked(at + by * axis, 2)))
            - objective(given, Mixture(*naive_phase.unpacked(at - by * axis, 2)))
            for axis in np.eye(len(at))
        ]
        # a surplus over the expected counts is zero on average, which the likelihood alone does not subtract
        assert normal_equations(given, MIXTURE)[0][-2:] == pytest.approx(np.array(plain)[-2:] / (2 * by), rel=0.02)
        prior = Alike.of(MIXTURE.widths)
        logs = np.log(MIXTURE.widths)
        assert prior.value == pytest.approx(((logs - logs.mean()) ** 2).sum() / (2 * ALIKE**2))
        assert prior.gradient == pytest.approx(prior.information @ logs)

    def test_never_increases_and_reports_convergence(self):
        given = self.expected()
        start = Mixture(MIXTURE.centres[::-1] * 0.8, np.array([0.5, 0.5]), np.array([0.3, 0.3]))
        values = [climb(given, start, LIMITS, n_steps).nll for n_steps in range(8)]
        assert values[0] == objective(given, start)
        assert all(after <= before for before, after in pairwise(values))
        assert not climb(given, start, LIMITS, 1).converged


class TestErrors:
    def test_are_roots_of_the_inverse_information_for_shares_that_sum_to_one(self):
        given = sketch(n_waves=60)._replace(counts=np.full((60, 8), 500.0))
        _, matrix = information(given, MIXTURE)
        before = np.diag([12.0] * 6 + [1.0] * 2)
        inside = np.delete(np.eye(8), 5, axis=1)  # the last share is one minus the others
        inside[5, 4] = -1
        plain = inside @ np.linalg.inv(inside.T @ (matrix + before) @ inside) @ inside.T
        found = standard_errors(given, MIXTURE)
        together = np.concatenate([found.centres.ravel(), found.shares, found.log_widths])
        assert together == pytest.approx(np.sqrt(plain.diagonal()), rel=1e-6)
        assert found.shares[0] == pytest.approx(found.shares[1])

    def test_without_reports_are_those_of_the_prior(self):
        given = sketch()._replace(counts=np.zeros((7, 8)))
        found = standard_errors(given, MIXTURE)
        assert found.centres == pytest.approx(np.full((2, 2), 12**-0.5))
        assert found.shares == pytest.approx(np.full(2, 24**-0.5))

    def test_of_coincident_clusters_are_finite(self):
        same = Mixture(np.full((2, 2), 0.5), np.array([0.5, 0.5]), np.array([0.1, 0.1]))
        for part in standard_errors(sketch(), same):
            assert np.isfinite(part).all()
            assert (part >= 0).all()


class TestAgreement:
    def given(self):
        rng = np.random.default_rng(5)
        omegas = rng.normal(0, 8, (30, 2))
        true = np.array([0.35, 0.7])
        signal = np.exp(1j * omegas @ true) + 0.1 * rng.normal(size=30)
        return omegas, signal, true

    def test_equals_the_definition(self):
        omegas, signal, _ = self.given()
        places = np.random.default_rng(6).random((5, 2))
        scores = np.empty(5)
        agreement(omegas, signal, places, scores)
        assert scores == pytest.approx([naive_phase.agreement(omegas, signal, place) for place in places])

    def test_ascent_equals_its_twin(self):
        omegas, signal, true = self.given()
        places = np.array([[0.3, 0.75], [0.9, 0.02]])
        plain = [naive_phase.ascended(omegas, signal, place, 12, 0.05, 0.8) for place in places]
        ascend(omegas, signal, places, 12, 0.05, 0.8)
        assert places == pytest.approx(np.array(plain), abs=1e-5)
        assert np.abs(places[0] - true).max() < 0.02
        assert ((places >= 0) & (places <= 1)).all()

    def test_stays_without_a_gradient(self):
        places = np.array([[0.3, 0.75]])
        ascend(np.ones((3, 2)), np.zeros(3, dtype=np.complex128), places, 5, 0.1, 0.9)
        assert places.tolist() == [[0.3, 0.75]]
