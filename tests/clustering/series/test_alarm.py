"""Alarms: the Bayes factor, changes that are found, and noise that is not."""

import numpy as np
import pytest

from clustering.series.alarm import HORIZON, TAUS, evidence


def plain_evidence(values: np.ndarray, variance: float) -> float:
    """Return M for one channel of equal variances, from the densities of D under both hypotheses."""
    total, n = 0.0, len(values)
    for change in range(1, n):
        gap = values[change:].mean() - values[:change].mean()
        own = variance * (1 / change + 1 / (n - change))
        for tau in TAUS:
            wide = own + tau**2 * variance
            ratio = np.sqrt(own / wide) * np.exp(-0.5 * gap**2 / wide + 0.5 * gap**2 / own)
            total += ratio / len(TAUS)
    return (total + HORIZON - (n - 1)) / HORIZON


def test_the_evidence_equals_its_plain_twin() -> None:
    values = np.random.default_rng(1).normal(size=(9, 1))
    found = evidence(range(9), values, np.ones((9, 1)), test_from=0, least=0.0)
    assert found is not None
    assert found.value == pytest.approx(plain_evidence(values[:, 0], 1.0))


def test_the_mean_evidence_without_a_change_is_one() -> None:
    """E M = 1. The mean of 4,000 values with a bounded part fails beyond 5 standard errors."""
    rng = np.random.default_rng(2)
    found = [evidence(range(6), rng.normal(size=(6, 1)), np.ones((6, 1)), test_from=0, least=0.0) for _ in range(4000)]
    values = np.array([each.value for each in found if each is not None])
    assert abs(values.mean() - 1) < 5 * values.std() / np.sqrt(len(values))


def test_a_change_raises_an_alarm_at_its_window() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(12, 40))
    values[6:, 7] += 6
    found = evidence(range(12), values, np.ones((12, 40)), test_from=0)
    assert found is not None
    assert found.is_alarm
    assert found.change == 6
    assert found.first <= 6 <= found.last


def test_a_change_before_the_tested_windows_is_not_an_alarm() -> None:
    """Windows before `test_from` are a baseline: no change begins there."""
    values = np.zeros((12, 3))
    values[4:] = 6
    assert evidence(range(12), values, np.ones((12, 3)), test_from=12) is None
    found = evidence(range(12), values[4:].repeat(2, axis=0)[:12], np.ones((12, 3)), test_from=8)
    assert found is not None
    assert not found.is_alarm


def test_the_least_change_bounds_what_is_a_change() -> None:
    values = np.zeros((20, 2))
    values[10:] = 0.009
    small = np.full((20, 2), 1e-8)
    for least, is_alarm in ((0.0, True), (0.01, False)):
        found = evidence(range(20), values, small, test_from=0, least=least)
        assert found is not None
        assert found.is_alarm is is_alarm


def test_a_season_is_no_change() -> None:
    values = np.tile([[0.0], [0.3], [0.1], [0.5]], (6, 1))
    for season, is_alarm in ((1, True), (4, False)):
        alarms = []
        for last in range(2, 25):
            found = evidence(range(last), values[:last], np.full((last, 1), 1e-3), test_from=0, season=season)
            alarms.append(found is not None and found.is_alarm)
        assert any(alarms) is is_alarm


def test_missing_windows_keep_their_phase() -> None:
    windows = [index for index in range(24) if index % 3]
    values = np.array([[float(index % 2)] for index in windows])
    found = evidence(windows, values, np.full((len(windows), 1), 1e-3), test_from=0, season=2)
    assert found is not None
    assert not found.is_alarm
