"""Costs against OpenDP and dp-accounting. The service uses neither.

The tests import them inside functions, because each import takes two seconds.
"""

from fractions import Fraction
from math import sqrt

import numpy as np
import pytest

from audit.checks.bounds import compute_normal_delta
from audit.ledger.accounting import compute_discrete_delta
from clustering.central.noise import GaussianNoise, LaplaceNoise
from sfumato.privacy.accounting import ATTO, NANO
from sfumato.privacy.gaussian_privacy import ADDED_VARIANCE, PICO, rho_of
from sfumato.specs import LatticeEncoding, design_for

pytestmark = pytest.mark.slow

EPSILONS = (NANO // 10, NANO // 2, NANO, 4 * NANO, 16 * NANO)
Parts = tuple[tuple[int, int, float], ...]
DELTAS = (10**6, 10**9, 10**12, 10**15)  # atto: 1e-12 .. 1e-3


def laplace_epsilon(scale: float, distance: int, *, vector: bool = False) -> float:
    """Return OpenDP's epsilon for discrete Laplace noise of this scale on integers at this L1 distance."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    atoms = dp.atom_domain(T=int)
    space = (dp.vector_domain(atoms), dp.l1_distance(T=int)) if vector else (atoms, dp.absolute_distance(T=int))
    return float(dp.m.make_laplace(*space, scale=scale).map(d_in=distance))


def gaussian_measure(scale: float):
    """Return OpenDP's discrete Gaussian noise on a vector under zero-concentrated privacy."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    return dp.m.make_gaussian(*space, scale=scale, MO="ZeroConcentratedDivergence")


class TestLaplace:
    @pytest.mark.parametrize("requested", EPSILONS)
    @pytest.mark.parametrize(("n_features", "steps"), [(1, 10), (2, 1000), (16, 1000)])
    def test_a_device_is_charged_the_epsilon_of_opendp(self, requested: int, n_features: int, steps: int) -> None:
        mechanism = design_for(LatticeEncoding(n_features, steps), "auto", requested)
        scale = mechanism.scale_numerator / mechanism.scale_denominator
        reference = laplace_epsilon(scale, n_features * steps, vector=True)
        charged = mechanism.epsilon_nano() / NANO
        assert float(mechanism.epsilon()) == pytest.approx(reference, rel=1e-12)
        assert reference <= charged * (1 + 1e-12)
        assert charged <= requested / NANO
        assert laplace_epsilon(scale / 1.3, n_features * steps, vector=True) > 1.29 * charged

    @pytest.mark.parametrize("requested", EPSILONS)
    @pytest.mark.parametrize(("sensitivity", "max_per_user"), [(1, 1), (7, 1), (1 << 20, 5)])
    def test_a_curators_noise_has_the_epsilon_of_opendp(
        self, requested: int, sensitivity: int, max_per_user: int
    ) -> None:
        noise = LaplaceNoise(Fraction(max_per_user * NANO, requested), np.array([sensitivity]))
        reference = laplace_epsilon(float(noise.scale(sensitivity)), sensitivity * max_per_user)
        assert reference == pytest.approx(requested / NANO, rel=1e-12)


class TestGaussian:
    @pytest.mark.parametrize(
        ("rho_pico", "sensitivity", "max_per_user"), [(10**9, 1, 1), (45 * 10**9, 3, 1), (PICO, 9, 4)]
    )
    def test_a_blocks_noise_has_at_most_the_rho_of_opendp(
        self, rho_pico: int, sensitivity: int, max_per_user: int
    ) -> None:
        noise = GaussianNoise(Fraction(max_per_user**2 * PICO, 2 * rho_pico), np.array([sensitivity]))
        scale = sqrt(noise.variance(sensitivity))
        reference = gaussian_measure(scale).map(d_in=float(sensitivity * max_per_user))
        variance = noise.variance(sensitivity)
        assert reference == pytest.approx(rho_pico / PICO * float(1 - 3 / variance), rel=1e-12)


class TestBlocks:
    """Blocks against privacy loss distributions, rounded to lower bounds.

    A part of a block is a number of values, the change of each, and the part's share of rho.
    """

    SPLITS: tuple[Parts, ...] = (
        ((1, 1, 1.0),),
        ((1, 3, 1.0),),
        ((30, 1, 1.0),),
        ((1, 1, 0.1), (4, 1, 0.3), (2, 5, 0.6)),
    )

    @pytest.mark.parametrize("requested", EPSILONS)
    @pytest.mark.parametrize("delta_atto", DELTAS)
    def test_the_rho_of_a_block_has_the_epsilon_of_normal_noise(self, requested: int, delta_atto: int) -> None:
        from dp_accounting.pld import privacy_loss_distribution as pld

        rho, epsilons = rho_of(requested, delta_atto) / PICO, []
        for more in (1, 1.01):
            normal = pld.from_gaussian_mechanism(
                (2 * more * rho) ** -0.5, pessimistic_estimate=False, value_discretization_interval=2e-13 * requested
            )
            epsilons.append(normal.get_epsilon_for_delta(delta_atto / ATTO))
        assert epsilons[0] <= requested / NANO < epsilons[1]

    def bound_delta(self, parts: Parts, epsilon: float, delta_atto: int, added: int) -> float:
        """Return a lower bound of the delta of a block, from the distributions of its values."""
        from dp_accounting.pld import privacy_loss_distribution as pld

        rho, block = rho_of(round(epsilon * NANO), delta_atto) / PICO, None
        for n, change, share in parts:
            deviation = sqrt(n * change**2 / (2 * rho * share) + added)
            value = pld.from_discrete_gaussian_mechanism(
                deviation, change, value_discretization_interval=1e-4, pessimistic_estimate=False
            )
            values = value.self_compose(n) if n > 1 else value
            block = values if block is None else block.compose(values)
        return float(block.get_delta_for_epsilon(epsilon))

    @pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 32.0])
    @pytest.mark.parametrize("delta_atto", [10**9, 10**12])
    @pytest.mark.parametrize("parts", SPLITS)
    def test_a_block_of_discrete_noise_keeps_its_delta(self, parts: Parts, epsilon: float, delta_atto: int) -> None:
        assert self.bound_delta(parts, epsilon, delta_atto, ADDED_VARIANCE) <= delta_atto / ATTO

    @pytest.mark.parametrize(("epsilon", "delta_atto"), [(1.0, 10**9), (2.0, 10**15), (8.0, 10**12)])
    def test_a_count_without_the_added_variance_exceeds_its_delta(self, epsilon: float, delta_atto: int) -> None:
        assert self.bound_delta(self.SPLITS[0], epsilon, delta_atto, 0) > delta_atto / ATTO

    @pytest.mark.parametrize(("rho", "epsilon"), [(0.005, 0.2), (0.045, 0.5), (0.5, 2.0), (4.0, 8.0)])
    def test_the_audits_deltas_are_those_of_privacy_loss_distributions(self, rho: float, epsilon: float) -> None:
        from dp_accounting.pld import privacy_loss_distribution as pld

        normal = pld.from_gaussian_mechanism((2 * rho) ** -0.5).get_delta_for_epsilon(epsilon)  # rounded up
        assert compute_normal_delta(rho, epsilon) == pytest.approx(normal, rel=1e-3)
        deviation = sqrt(1 / (2 * rho) + 3)
        discrete = pld.from_discrete_gaussian_mechanism(deviation).get_delta_for_epsilon(epsilon)
        assert compute_discrete_delta(rho, epsilon) == pytest.approx(discrete, rel=2e-2)
        assert compute_discrete_delta(rho, epsilon) <= discrete * (1 + 1e-9)
