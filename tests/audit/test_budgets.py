"""Attacks on Gaussian accounting: sound code passes, planted leaks are detected."""

from fractions import Fraction

import numpy as np
import pytest
from scipy.special import ndtr

from audit.checks.bounds import compute_normal_delta
from audit.checks.check import Effort, Setting
from audit.ledger import budgets
from audit.ledger.budgets import CHECKS, Accountant, Analyst, Job, bound_delta, bound_tail, reserve, simulate
from audit.planted.budgets import LEAKS
from models.ledger.amounts import Amounts
from sfumato.privacy.accountant import charge_mu2
from sfumato.privacy.accounting import ATTO, NANO
from sfumato.privacy.gaussian_privacy import PICO

SETTING = Setting(Effort.QUICK, 5)
REQUIRED = {"mu squared rounded down", "pure charge at epsilon^2 / 2", "mu squared without reservations"}


@pytest.fixture(autouse=True)
def reduce_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the trials so that the attacks take less than a second."""
    for name, n in (("N_COUNTS", 12), ("N_COURSES", 1 << 13), ("N_LONG_COURSES", 1 << 11)):
        monkeypatch.setattr(budgets, name, n)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.subject)
def test_sound_accounting_passes(check) -> None:
    for finding in check.run(SETTING):
        assert finding.holds, finding.why


@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.name)
def test_planted_leaks_are_detected(leak) -> None:
    assert not all(finding.holds for finding in leak.run(SETTING))


def test_required_leaks_are_planted() -> None:
    assert {leak.name for leak in LEAKS} >= REQUIRED
    assert {leak.subject for leak in LEAKS} <= {check.subject for check in CHECKS}


class TestBounds:
    @pytest.mark.parametrize("square", [Fraction(1, 10**6), Fraction(2), Fraction(49, 3), Fraction(60)])
    def test_contain_the_normal_tail(self, square: Fraction) -> None:
        low, high = bound_tail(square)
        assert 0 <= high - low < Fraction(1, 10**80)
        assert float(low) == pytest.approx(ndtr(-(float(square) ** 0.5)), rel=1e-9)

    def test_contain_the_delta(self) -> None:
        low, high = bound_delta(PICO // 5, 2 * NANO)
        assert float(low) == pytest.approx(compute_normal_delta(0.1, 2.0), rel=1e-9)
        assert low < high


class TestCourses:
    def test_stop_when_the_ledger_refuses(self) -> None:
        grant = Amounts(NANO, ATTO // 12)
        block = budgets._block(grant, 3)
        analyst = Analyst("all", grant, (block,), 9, lambda losses: np.zeros(len(losses), dtype=np.int64))
        accountant = Accountant(analyst, charge_mu2, reserve)
        losses = simulate(accountant, 1, 4000, np.random.default_rng(1))
        assert len(accountant.balances) == 4
        assert losses.mean() == pytest.approx(3 * block.mu2 / 2, abs=6 * (3 * block.mu2 / 4000) ** 0.5)

    def test_randomised_response_loses_at_most_its_epsilon(self) -> None:
        losses = Job(NANO).draw_losses(1, np.full(4000, 1), np.random.default_rng(2))
        assert set(losses) == {-1.0, 1.0}
        assert (losses > 0).mean() == pytest.approx(0.731, abs=0.04)
