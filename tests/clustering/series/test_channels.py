"""Channels: their plain twin, their mean, and their variance."""

import numpy as np
import pytest

from clustering.density.shifted_field import coarse_symbols
from clustering.rounds.decoders import decoder
from clustering.rounds.plan import Collected
from clustering.series.channels import read_channels, variances
from clustering.series.observed import Measured
from tests.clustering.series.populations import blobs, draw

TWO = blobs((0.6, 0.3, 0.3), (0.4, 0.7, 0.7))


def plain_channel(collected: Collected, weights: np.ndarray) -> float:
    """Return the mean of weights over fine cells, slot by slot and cell by cell."""
    encoding, tally = collected.spec.encoding, collected.tally
    frequencies, total = decoder(collected.spec.mechanism).frequencies(tally), 0.0
    for slot, n in enumerate(tally.reports):
        symbols = coarse_symbols(encoding, slot)
        for symbol in range(encoding.n_symbols):
            inside = symbols == symbol
            if inside.any():
                total += n / tally.n_reports * weights[inside].mean() * frequencies[slot, symbol]
    return total


def test_channels_equal_their_plain_twin() -> None:
    collected = draw(TWO, 1.0, 5000, np.random.default_rng(1))
    found = read_channels(Measured(collected))
    assert found.values.shape == (320,)
    middles = (np.arange(32) + 0.5) / 32
    for place, width, n in ((0, 0.05, 16), (37, 0.05, 16), (256 + 10, 0.10, 8)):
        row, column = divmod(place - (256 if n == 8 else 0), n)
        along = [np.exp(-0.5 * ((middles - (at + 0.5) / n) / width) ** 2) for at in (row, column)]
        weights = np.multiply.outer(*along)
        assert found.values[place] == pytest.approx(plain_channel(collected, weights))


def test_channels_of_a_circle_go_over_the_seam() -> None:
    collected = draw(np.roll(TWO, 12, axis=0), 1.0, 5000, np.random.default_rng(1), (0,))
    found = read_channels(Measured(collected))
    assert found.values.shape == (320,)
    middles = (np.arange(32) + 0.5) / 32
    apart = np.abs(middles - 0.5 / 16)
    weights = np.exp(-0.5 * (np.stack([np.minimum(apart, 1 - apart), apart]) / 0.05) ** 2)
    assert found.values[0] == pytest.approx(plain_channel(collected, np.multiply.outer(*weights)))


@pytest.mark.parametrize("n_features", [1, 3])
def test_other_numbers_of_features_have_channels(n_features: int) -> None:
    density = np.full((32,) * n_features, 1 / 32**n_features)
    found = read_channels(Measured(draw(density, 2.0, 20_000, np.random.default_rng(2))))
    assert found.values.shape == ({1: 24, 3: 512}[n_features],)


@pytest.mark.parametrize("epsilon", [0.5, 5.0])
def test_the_variance_is_that_of_the_mechanism_and_of_sampling(epsilon: float) -> None:
    """z of 200 windows and 320 correlated channels: a variance that is 30 % off fails, chance below 1 in 10,000."""
    rng = np.random.default_rng(3)
    readings = [read_channels(Measured(draw(TWO, epsilon, 20_000, rng))) for _ in range(200)]
    values = np.array([each.values for each in readings])
    stated = variances(readings)[-1]
    ratio = values.var(axis=0, ddof=1) / stated
    assert 0.9 < np.median(ratio) < 1.1
    assert 0.85 < ratio.mean() < 1.15
