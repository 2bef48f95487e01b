"""No false alarm: everything the audit looks at of plans, accounting and the ledger, sound, under other seeds."""

import pytest

from audit import accounting, ledger, ledger_chain, ledger_jobs, plans
from audit.check import Effort, Setting

pytestmark = [pytest.mark.slow, pytest.mark.ci]

CHECKS = [check for module in (plans, accounting, ledger, ledger_chain, ledger_jobs) for check in module.CHECKS]


@pytest.fixture(autouse=True)
def less(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of a quick audit."""
    monkeypatch.setattr(plans, "TRANSCRIPTS", 100_000)
    monkeypatch.setattr(plans, "SEEDS", 1)
    monkeypatch.setattr(accounting, "RHOS", 6)
    monkeypatch.setattr(accounting, "RATIOS", 100)
    monkeypatch.setattr(accounting, "AMOUNTS", 2000)
    monkeypatch.setattr(ledger, "STEPS", 300)
    monkeypatch.setattr(ledger_chain, "TAMPERED", 1)
    monkeypatch.setattr(ledger_jobs, "STEPS", 120)


@pytest.mark.parametrize("seed", [101, 102, 103])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.subject)
def test_what_is_sound_is_found_sound(check, seed: int) -> None:
    found = check.run(Setting(Effort.QUICK, seed))
    assert found
    assert [(finding.claim, finding.why) for finding in found if not finding.holds] == []
