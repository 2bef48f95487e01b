"""Charges against the audit's reference implementations, and these against closed forms."""

from math import exp, expm1

import pytest
from scipy.stats import norm

from audit.checks.bounds import compute_normal_delta
from audit.checks.check import Effort, Setting
from audit.ledger import accounting
from audit.ledger.accounting import CHECKS, compute_discrete_delta
from audit.planted.accounting import LEAKS
from sfumato.privacy.accounting import ATTO, NANO
from sfumato.privacy.gaussian_privacy import PICO, rho_of

SETTING = Setting(Effort.QUICK, 3)
REQUIRED = {  # leaks that must be planted
    "participation interval ignored",
    "cost as mean over draws",
    "epsilon in floats",
}


@pytest.fixture(autouse=True)
def reduce_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the trials so that a quick audit takes a second."""
    for name, n in (("N_COLLECTIONS", 300), ("N_RATIOS", 60), ("N_RHOS", 2), ("N_AMOUNTS", 500)):
        monkeypatch.setattr(accounting, name, n)
    monkeypatch.setattr(accounting, "EPSILONS", (NANO // 100, 32 * NANO))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.subject)
def test_sound_code_passes(check) -> None:
    for finding in check.run(SETTING):
        assert finding.holds, finding.why
        assert finding.trials >= 10


@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.name)
def test_planted_leaks_are_detected(leak) -> None:
    (finding,) = leak.run(SETTING)
    assert not finding.holds
    assert finding.why


def test_required_leaks_are_planted() -> None:
    assert {leak.name for leak in LEAKS} >= REQUIRED
    assert {leak.subject for leak in LEAKS} <= {check.subject for check in CHECKS}


class TestDeltas:
    @pytest.mark.parametrize(("rho", "epsilon"), [(0.01, 0.3), (0.5, 1.0), (2.0, 8.0), (8.0, 2.0)])
    def test_normal_noise_has_the_delta_of_the_closed_form(self, rho: float, epsilon: float) -> None:
        shift = (2 * rho) ** 0.5
        plain = norm.cdf(shift / 2 - epsilon / shift) - exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift)
        assert compute_normal_delta(rho, epsilon) == pytest.approx(plain, rel=1e-9)

    @pytest.mark.parametrize(("rho", "epsilon"), [(1e-3, 0.05), (0.02, 0.5), (0.1, 1.0), (5.0, 2.0)])
    def test_discrete_noise_has_at_most_the_delta_of_normal_noise(self, rho: float, epsilon: float) -> None:
        normal = compute_normal_delta(rho, epsilon)
        assert compute_discrete_delta(rho, epsilon) < normal
        if rho < 0.01:
            assert compute_discrete_delta(rho, epsilon) > 0.9 * normal

    def test_the_delta_of_discrete_noise_is_a_sum_over_outcomes(self) -> None:
        variance = 3.1  # at rho = 5; from z = -5 the loss is above 2
        weights = {z: exp(-z * z / (2 * variance)) for z in range(-30, 31)}
        excess = {z: -expm1(2 - (1 - 2 * z) / (2 * variance)) for z in weights}
        expected = sum(weights[z] * max(excess[z], 0.0) for z in weights) / sum(weights.values())
        assert compute_discrete_delta(5.0, 2.0) == pytest.approx(expected, rel=1e-9)

    @pytest.mark.parametrize("delta_atto", [10**6, 10**12])
    def test_a_thousandth_more_rho_exceeds_delta(self, delta_atto: int) -> None:
        for epsilon_nano in (NANO // 10, NANO, 8 * NANO):
            rho = rho_of(epsilon_nano, delta_atto) / PICO
            assert compute_normal_delta(rho, epsilon_nano / NANO) == pytest.approx(delta_atto / ATTO, rel=1e-5)
            assert compute_normal_delta(1.001 * rho, epsilon_nano / NANO) > 1.001 * delta_atto / ATTO
