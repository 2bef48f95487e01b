"""Checks of plans, accounting and the ledger raise no false alarm with other seeds."""

import pytest

from audit.checks.check import Effort, Setting
from audit.ledger import accounting, chain, jobs, walks
from audit.plans import plan_checks

pytestmark = pytest.mark.slow

CHECKS = [check for module in (plan_checks, accounting, walks, chain, jobs) for check in module.CHECKS]


@pytest.fixture(autouse=True)
def reduce_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a tenth of the trials of a quick audit."""
    monkeypatch.setattr(plan_checks, "TRANSCRIPTS", 100_000)
    monkeypatch.setattr(plan_checks, "N_SEEDS", 1)
    monkeypatch.setattr(accounting, "N_RHOS", 6)
    monkeypatch.setattr(accounting, "N_RATIOS", 100)
    monkeypatch.setattr(accounting, "N_AMOUNTS", 2000)
    monkeypatch.setattr(walks, "N_STEPS", 300)
    monkeypatch.setattr(chain, "N_TRIALS", 1)
    monkeypatch.setattr(jobs, "N_STEPS", 120)


@pytest.mark.parametrize("seed", [101, 102, 103])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.subject)
def test_sound_code_passes(check, seed: int) -> None:
    findings = list(check.run(Setting(Effort.QUICK, seed)))
    assert findings
    assert [(finding.claim, finding.why) for finding in findings if not finding.holds] == []
