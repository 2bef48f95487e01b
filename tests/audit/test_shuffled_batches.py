"""Checks of the shuffler's queue and its planted leaks."""

import numpy as np
import pytest

from audit.checks.check import Check, Effort, Leak, Setting
from audit.mechanisms.shuffled_batches import CHECKS, N_REPORTS, _count, _p_value
from audit.planted.batches import LEAKS

SETTING = Setting(Effort.QUICK, 3)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.run.func.__name__)
def test_accept_the_queue_of_the_shuffler(check: Check) -> None:
    findings = check.run(SETTING)
    assert [finding.why for finding in findings if not finding.holds] == []
    assert sum(finding.trials for finding in findings) > 0


@pytest.mark.parametrize("leak", LEAKS, ids=lambda leak: leak.name)
def test_detect_every_planted_leak(leak: Leak) -> None:
    assert [finding.why for finding in leak.run(SETTING) if not finding.holds] != []


def test_the_p_value_is_uniform_for_random_permutations() -> None:
    chance = np.random.default_rng(5)
    values = []
    for _ in range(400):
        counts = np.zeros((N_REPORTS, N_REPORTS), dtype=np.int64)
        for _ in range(200):
            _count(counts, range(N_REPORTS), chance.permutation(N_REPORTS).tolist())
        values.append(_p_value(counts))
    below = [np.mean(np.array(values) < level) for level in (0.1, 0.5, 0.9)]
    assert np.abs(np.array(below) - [0.1, 0.5, 0.9]).max() < 0.09  # at most 3.6 standard errors; seeded
