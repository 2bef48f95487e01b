"""Test synthetic rounds: resampled densities, shares of symbols, and the noise of the mechanism."""

import numpy as np
import pytest

from clustering.density.synthetic_rounds import SyntheticPopulation, halve, resample, symbol_shares
from clustering.errors import UnfitRound
from clustering.rounds.decoders import decoder
from clustering.rounds.plan import Collected
from clustering.simulate import SeededEntropy, collect
from sfumato.mechanisms import design
from sfumato.records.encodings import symbols
from sfumato.specs import (
    Feature,
    GridEncoding,
    Participation,
    PhaseEncoding,
    RoundSpec,
    ShiftedGridEncoding,
    TreeGridEncoding,
)

XY = (Feature("x", 0, 1), Feature("y", 0, 1))
DENSITY = np.random.default_rng(3).dirichlet(np.ones(16)).reshape(4, 4)


def spec_of(encoding, kind="auto", epsilon_nano=10**9, participation=None):
    return RoundSpec(XY, encoding, design(kind, encoding.n_symbols, epsilon_nano), participation or Participation())


class TestResample:
    @pytest.mark.parametrize("cells", [(8, 8), (2, 4), (3, 5), (1, 7)])
    def test_keeps_the_mass_of_every_box(self, cells):
        fine = np.repeat(np.repeat(DENSITY, 210, axis=0), 210, axis=1) / 210**2  # 840 = 3 * 5 * 7 * 8
        blocks = fine.reshape(cells[0], 840 // cells[0], cells[1], 840 // cells[1])
        assert resample(DENSITY, cells) == pytest.approx(blocks.sum(axis=(1, 3)))


class TestShares:
    @pytest.mark.parametrize(
        "encoding",
        [GridEncoding((3, 5)), ShiftedGridEncoding(2, 4, 2), TreeGridEncoding(2, (1, 1, 2, 2, 2, 2, 1))],
    )
    def test_equal_those_of_points_from_the_cells(self, encoding):
        rng = np.random.default_rng(4)
        cell = rng.choice(16, 200_000, p=DENSITY.ravel())
        points = (np.stack([cell // 4, cell % 4], axis=1) + rng.random((200_000, 2))) / 4
        shares = symbol_shares(encoding, DENSITY)
        for slot in range(encoding.n_slots):
            drawn = symbols(encoding, points, np.full(len(points), slot, dtype=np.int64))
            seen = np.bincount(drawn, minlength=encoding.n_symbols) / len(points)
            assert seen == pytest.approx(shares[slot], abs=0.006)

    def test_refuse_an_encoding_without_cells(self):
        with pytest.raises(UnfitRound, match="tree grid"):
            symbol_shares(PhaseEncoding(((1, 0),), 4), DENSITY)


class TestReports:
    @pytest.mark.parametrize("kind", ["grr", "ss", "oue", "olh", "hr"])
    def test_have_the_noise_of_the_mechanism(self, kind):
        spec = spec_of(GridEncoding((4, 4)), kind)
        people, reading = SyntheticPopulation(DENSITY, (20_000,)), decoder(spec.mechanism)
        truth = frequencies_of(people.collect(spec, 0, None))
        errors = np.array([frequencies_of(people.collect(spec, 0, throw)) - truth for throw in range(150)])
        predicted = np.array([reading.variance(share, 20_000) for share in truth])
        # 150 repetitions of 16 symbols give the ratio to 3 %
        assert 0.88 < (errors**2).mean() / predicted.mean() < 1.12
        assert np.abs(errors.mean(axis=0)).max() < 5 * np.sqrt(predicted.max() / 150)

    def test_repeat_with_equal_samples_and_noise(self):
        spec = spec_of(GridEncoding((4, 4)))
        one, again = (SyntheticPopulation(DENSITY, (1000,)).collect(spec, 0, None) for _ in range(2))
        assert one.tally == again.tally
        assert one.tally != SyntheticPopulation(DENSITY, (1000,), 1).collect(spec, 0, None).tally
        noisy = [SyntheticPopulation(DENSITY, (1000,)).collect(spec, 0, throw).tally for throw in (0, 0, 1)]
        assert noisy[0] == noisy[1] != noisy[2]

    def test_rounds_partition_the_population(self):
        parts = [Participation.between(0, 0.3), Participation.between(0.3, 0.77), Participation.between(0.77, 1)]
        people = SyntheticPopulation(DENSITY, 1001)
        encoding = GridEncoding((4, 4))
        n = [
            people.collect(spec_of(encoding, participation=part), i, 0).tally.n_reports for i, part in enumerate(parts)
        ]
        assert sum(n) == 1001
        assert n == pytest.approx([300, 471, 230], abs=1)

    def test_a_round_may_have_no_reports(self):
        answered = SyntheticPopulation(DENSITY, (0,)).collect(spec_of(ShiftedGridEncoding(2, 3, 2), "hr"), 0, 0)
        assert answered.tally.n_reports == 0


def frequencies_of(collected: Collected):
    return decoder(collected.spec.mechanism).frequencies(collected.tally)[0]


class TestHalves:
    @pytest.mark.parametrize("kind", ["grr", "ss", "oue", "hr"])
    def test_have_the_variance_of_half_the_reports_and_are_independent(self, kind):
        encoding, n = GridEncoding((16, 16)), 40_000
        cell = np.random.default_rng(5).choice(16, n, p=DENSITY.ravel())
        points = (np.stack([cell // 4, cell % 4], axis=1) + np.random.default_rng(6).random((n, 2))) / 4
        entropy = SeededEntropy(7)
        collected = collect(spec_of(encoding, kind, 2 * 10**9), points, entropy, entropy.words(n))
        one, other = halve(collected)
        assert (one.tally.counts + other.tally.counts == collected.tally.counts).all()
        assert (one.tally.reports + other.tally.reports == collected.tally.reports).all()
        assert (one.tally.counts >= 0).all()
        reading = decoder(collected.spec.mechanism)
        whole = reading.frequencies(collected.tally)[0]
        first, second = (reading.frequencies(half.tally)[0] for half in (one, other))
        truth = symbol_shares(encoding, DENSITY)[0]
        expected = np.mean([reading.variance(share, n // 2) + share / (n // 2) for share in truth])
        assert np.var(first - truth) == pytest.approx(expected, rel=0.3)
        assert np.var(first - second) == pytest.approx(2 * expected, rel=0.3)
        assert (first + second) / 2 == pytest.approx(whole, abs=3e-4)

    def test_of_few_reports_stay_within_the_counts(self):
        collected = SyntheticPopulation(DENSITY, (7,)).collect(spec_of(ShiftedGridEncoding(2, 4, 2)), 0, None)
        for half in halve(collected):
            assert (half.tally.counts >= 0).all()
            assert (half.tally.counts <= half.tally.reports[:, None]).all()
