"""Costs against two libraries of the field, OpenDP and dp-accounting: neither runs in the service.

They are imported inside the tests, which takes two seconds each.
"""

from fractions import Fraction
from math import sqrt

import numpy as np
import pytest

from audit.accounting_reference import discrete_delta, normal_delta
from clustering.noise import GaussianNoise, LaplaceNoise
from sfumato.accounting import ATTO, NANO
from sfumato.concentrated import PICO, rho_of
from sfumato.mechanisms import design_for, discrete_laplace, epsilon_nano
from sfumato.specs import LatticeEncoding

pytestmark = [pytest.mark.slow, pytest.mark.ci]

EPSILONS = (NANO // 10, NANO // 2, NANO, 4 * NANO, 16 * NANO)
DELTAS = (10**6, 10**9, 10**12, 10**15)  # atto: 1e-12 .. 1e-3


def laplace_epsilon(scale: float, distance: int, *, vector: bool = False) -> float:
    """What OpenDP charges for discrete Laplace noise of this scale on whole numbers this far apart in L1."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    atoms = dp.atom_domain(T=int)
    space = (dp.vector_domain(atoms), dp.l1_distance(T=int)) if vector else (atoms, dp.absolute_distance(T=int))
    return float(dp.m.make_laplace(*space, scale=scale).map(d_in=distance))


def gaussian_measure(scale: float):
    """OpenDP's discrete Gaussian noise on a vector, under zero-concentrated privacy."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    return dp.m.make_gaussian(*space, scale=scale, MO="ZeroConcentratedDivergence")


class TestLaplace:
    @pytest.mark.parametrize("asked", EPSILONS)
    @pytest.mark.parametrize(("n_features", "steps"), [(1, 10), (2, 1000), (16, 1000)])
    def test_a_device_is_charged_what_opendp_charges(self, asked: int, n_features: int, steps: int) -> None:
        mechanism = design_for(LatticeEncoding(n_features, steps), "auto", asked)
        scale = mechanism.scale_numerator / mechanism.scale_denominator
        theirs = laplace_epsilon(scale, n_features * steps, vector=True)
        ours = epsilon_nano(mechanism) / NANO
        assert float(discrete_laplace.epsilon(mechanism)) == pytest.approx(theirs, rel=1e-12)
        assert theirs <= ours * (1 + 1e-12)
        assert ours <= asked / NANO
        assert laplace_epsilon(scale / 1.3, n_features * steps, vector=True) > 1.29 * ours

    @pytest.mark.parametrize("asked", EPSILONS)
    @pytest.mark.parametrize(("sensitivity", "max_per_user"), [(1, 1), (7, 1), (1 << 20, 5)])
    def test_a_curators_noise_has_the_scale_that_opendp_wants(
        self, asked: int, sensitivity: int, max_per_user: int
    ) -> None:
        noise = LaplaceNoise(Fraction(max_per_user * NANO, asked), np.array([sensitivity]))
        theirs = laplace_epsilon(float(noise.scale(sensitivity)), sensitivity * max_per_user)
        assert theirs == pytest.approx(asked / NANO, rel=1e-12)


class TestGaussian:
    @pytest.mark.parametrize(
        ("rho_pico", "sensitivity", "max_per_user"), [(10**9, 1, 1), (45 * 10**9, 3, 1), (PICO, 9, 4)]
    )
    def test_a_blocks_noise_costs_the_rho_that_opendp_says(
        self, rho_pico: int, sensitivity: int, max_per_user: int
    ) -> None:
        noise = GaussianNoise(Fraction(max_per_user**2 * PICO, 2 * rho_pico), np.array([sensitivity]))
        scale = sqrt(noise.variance(sensitivity))
        theirs = gaussian_measure(scale).map(d_in=float(sensitivity * max_per_user))
        assert theirs == pytest.approx(rho_pico / PICO, rel=1e-12)

    @pytest.mark.parametrize("asked", EPSILONS)
    @pytest.mark.parametrize("delta_atto", DELTAS)
    def test_a_block_is_charged_what_opendp_charges_for_its_rho(self, asked: int, delta_atto: int) -> None:
        import opendp.prelude as dp

        rho = rho_of(asked, delta_atto) / PICO
        noise = gaussian_measure(1.0)
        curve = dp.c.make_zCDP_to_approxDP(noise).map(d_in=sqrt(2 * rho))
        theirs = curve.epsilon(delta_atto / ATTO)
        assert theirs == pytest.approx(asked / NANO, rel=1e-5)
        assert theirs <= asked / NANO * (1 + 1e-6)  # their search ends a little above the least epsilon


class TestConcentrated:
    ORDERS = 1 + np.exp(np.linspace(-9, 12, 20_000))

    @pytest.mark.parametrize("asked", EPSILONS)
    @pytest.mark.parametrize("delta_atto", DELTAS)
    def test_a_rho_is_worth_the_epsilon_that_dp_accounting_says(self, asked: int, delta_atto: int) -> None:
        from dp_accounting.rdp import rdp_privacy_accountant

        rho = rho_of(asked, delta_atto) / PICO
        theirs, _ = rdp_privacy_accountant.compute_epsilon(self.ORDERS, rho * self.ORDERS, delta_atto / ATTO)
        assert theirs == pytest.approx(asked / NANO, rel=1e-5)
        more, _ = rdp_privacy_accountant.compute_epsilon(self.ORDERS, 1.3 * rho * self.ORDERS, delta_atto / ATTO)
        assert more > 1.05 * asked / NANO

    @pytest.mark.parametrize(("rho", "epsilon"), [(0.005, 0.2), (0.045, 0.5), (0.5, 2.0), (4.0, 8.0)])
    def test_the_audits_deltas_are_those_of_the_privacy_loss_distributions(self, rho: float, epsilon: float) -> None:
        from dp_accounting.pld import privacy_loss_distribution as pld

        deviation = 1 / sqrt(2 * rho)
        normal = pld.from_gaussian_mechanism(deviation).get_delta_for_epsilon(epsilon)  # rounded up
        assert normal_delta(rho, epsilon) == pytest.approx(normal, rel=1e-3)
        discrete = pld.from_discrete_gaussian_mechanism(deviation).get_delta_for_epsilon(epsilon)
        assert discrete_delta(rho, epsilon) == pytest.approx(discrete, rel=2e-2)
        assert discrete_delta(rho, epsilon) <= discrete * (1 + 1e-9)

    @pytest.mark.parametrize("n_answers", [4, 100])
    def test_a_block_of_answers_keeps_its_delta_by_composition_without_rho(self, n_answers: int) -> None:
        from dp_accounting.pld import privacy_loss_distribution as pld

        rho = rho_of(NANO, 10**12) / PICO / n_answers  # of each
        answer = pld.from_gaussian_mechanism(1 / sqrt(2 * rho), value_discretization_interval=1e-4)
        assert 1e-8 < answer.self_compose(n_answers).get_delta_for_epsilon(1.0) <= 1e-6
