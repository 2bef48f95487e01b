"""Randomised response as the comparators use it."""

import numpy as np
import pytest

from benchmarks.quality.reference.ldp_kmeans import response
from clustering.simulate import SeededEntropy
from sfumato.errors import InvalidSpec
from sfumato.privacy.accounting import NANO


class TestResponse:
    @pytest.mark.parametrize(("n_symbols", "nano"), [(2, NANO), (5, NANO // 3), (64, 4 * NANO)])
    def test_costs_at_most_what_it_may(self, n_symbols, nano):
        cost = response(n_symbols, nano, True).mechanism.epsilon_nano()
        assert nano - 1 <= cost <= nano

    def test_counts_are_unbiased_once_decoded(self):
        held = np.repeat([0, 1, 1, 2], 50_000)
        channel = response(4, NANO, True)
        sent = channel.send(held, SeededEntropy(1))
        shares = (np.bincount(sent, minlength=4) / len(held) - channel.q) / (channel.p - channel.q)
        assert shares == pytest.approx([0.25, 0.5, 0.25, 0], abs=0.02)
        assert (sent != held).mean() == pytest.approx(1 - channel.p, abs=0.01)

    def test_keeps_the_shape_and_takes_more_than_a_chunk(self, monkeypatch):
        monkeypatch.setattr("benchmarks.quality.reference.ldp_kmeans._CHUNK_SYMBOLS", 7)
        held = np.arange(30).reshape(10, 3) % 2
        assert response(2, 1, False).send(held, SeededEntropy(1)).tolist() == held.tolist()

    def test_needs_two_symbols(self):
        with pytest.raises(InvalidSpec):
            response(1, NANO, True)
