"""Pools of windows: their counts, their effective size, and rounds that cannot be pooled."""

import numpy as np
import pytest

from clustering.errors import UnfitRound
from clustering.rounds.decoders import decoder
from clustering.series.pooling import forgetting_weights, pool
from tests.clustering.series.populations import blobs, draw

TWO = blobs((0.6, 0.3, 0.3), (0.4, 0.7, 0.7))


def test_equal_weights_add_tallies() -> None:
    rng = np.random.default_rng(1)
    windows = [draw(TWO, 1.0, 1000, rng) for _ in range(3)]
    assert pool(windows).tally == windows[0].tally + windows[1].tally + windows[2].tally


def test_a_pool_has_as_many_reports_as_its_variance() -> None:
    """The variance of a weighted mean of equal windows is that of (Σ w)² / Σ w² windows."""
    rng = np.random.default_rng(2)
    windows = [draw(TWO, 1.0, 16_000, rng) for _ in range(4)]
    weights = forgetting_weights(range(4), first=0, now=3)
    assert list(weights.values()) == pytest.approx([0.729, 0.81, 0.9, 1.0])
    pooled = pool(windows, list(weights.values()))
    size = sum(weights.values()) ** 2 / sum(each**2 for each in weights.values())
    assert pooled.tally.n_reports == pytest.approx(16_000 * size, abs=16)
    reading = decoder(windows[0].spec.mechanism)
    expected = sum(w * reading.frequencies(each.tally) for w, each in zip(weights.values(), windows, strict=True))
    shares = np.average([each.tally.reports for each in windows], axis=0, weights=list(weights.values()))
    assert np.abs(reading.frequencies(pooled.tally) - expected / sum(weights.values())).max() < 0.06
    assert pooled.tally.reports == pytest.approx(shares * size, abs=1)


def test_windows_before_the_first_have_no_weight() -> None:
    assert list(forgetting_weights([0, 2, 3, 5, 6], first=2, now=5)) == [2, 3, 5]


def test_rounds_of_another_mechanism_are_refused() -> None:
    rng = np.random.default_rng(3)
    with pytest.raises(UnfitRound, match="same encoding and mechanism"):
        pool([draw(TWO, 1.0, 100, rng), draw(TWO, 2.0, 100, rng)])
