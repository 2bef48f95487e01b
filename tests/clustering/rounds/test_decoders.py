"""Test decoders: frequencies against exact fractions, variances against closed forms, and the signal."""

import time
from fractions import Fraction
from itertools import combinations
from math import comb, exp, expm1, inf, tanh

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from clustering.errors import UnfitRound
from clustering.kernels.counting import walsh_hadamard
from clustering.rounds.counting import count
from clustering.rounds.decoders import decoder
from clustering.rounds.tally import Tally
from sfumato.mechanisms import design
from sfumato.model.precision import mass_noise, signal_of
from sfumato.privacy.accounting import DRAW_SPAN, exp_epsilon
from sfumato.specs import Feature, GridEncoding, GrrMechanism, RoundSpec
from tests import naive


class TestFrequencies:
    @settings(max_examples=60)
    @given(
        kind=st.sampled_from(["ss", "grr", "oue", "olh"]),
        k=st.integers(2, 30),
        nano=st.integers(10_000, 20 * 10**9),
        reports=st.lists(st.integers(0, 10**6), min_size=1, max_size=3),
        data=st.data(),
    )
    def test_equal_the_exact_estimate(self, kind, k, nano, reports, data):
        mechanism = design(kind, k, nano)
        counts = [[data.draw(st.integers(0, n)) for _ in range(k)] for n in reports]
        tally = Tally(np.array(counts, dtype=np.int64), np.array(reports, dtype=np.int64))
        exact = naive.frequencies(*mechanism.support(), counts, reports)
        reading = decoder(mechanism)  # its scale is the estimate of one count, which bounds the rounding
        plain = reading.frequencies(tally) if kind in ("ss", "grr") else reading.candidate_frequencies(tally)
        assert plain == pytest.approx(np.array(exact, dtype=float), rel=1e-12, abs=1e-14 * reading.scale)
        if kind in ("oue", "olh"):  # the sum of the frequencies is one
            assert reading.frequencies(tally) == pytest.approx(
                np.array(naive.normalise(exact, reports), dtype=float), rel=1e-12, abs=1e-13 * k * reading.scale
            )

    def test_of_a_slot_without_reports_are_zero(self):
        tally = Tally(np.array([[0, 0, 0], [5, 0, 0]], dtype=np.int64), np.array([0, 5], dtype=np.int64))
        estimates = decoder(design("grr", 3, 10**9)).frequencies(tally)
        assert estimates[0].tolist() == [0, 0, 0]
        assert estimates[1, 0] > 1

    @settings(max_examples=40)
    @given(k=st.integers(2, 33), nano=st.integers(10_000, 20 * 10**9), n_slots=st.integers(1, 3), data=st.data())
    def test_of_hadamard_response_equal_the_exact_estimate(self, k, nano, n_slots, data):
        mechanism = design("hr", k, nano)
        width = 2 * mechanism.n_coefficients
        counts = data.draw(arrays(np.int64, (n_slots, width), elements=st.integers(0, 10**6)))
        tally = Tally(counts, counts.sum(axis=1))
        supports = [naive.hadamard_supports(k, row) for row in counts]
        exact = naive.normalise(naive.frequencies(*mechanism.support(), supports, tally.reports), tally.reports)
        reading = decoder(mechanism)
        assert reading.frequencies(tally) == pytest.approx(
            np.array(exact, dtype=float), rel=1e-12, abs=1e-13 * k * reading.scale
        )

    @pytest.mark.parametrize("size", [1, 2, 8, 4096, 16384])
    def test_the_fast_transform_equals_the_definition(self, size):
        x = np.random.default_rng(size).integers(-(10**9), 10**9, size)
        fast = x.copy()
        walsh_hadamard(fast)
        if size <= 8:
            assert fast.tolist() == naive.walsh_hadamard(x)
        else:  # some values, and the inverse
            for i in (0, 1, 5, size // 2, size - 1):
                assert fast[i] == sum(naive.walsh_sign(i, j) * int(value) for j, value in enumerate(x))
            walsh_hadamard(fast)
            assert (fast == size * x).all()

    def test_of_a_million_cells_under_hadamard_response_take_half_a_second(self):
        mechanism = design("hr", 1 << 20, 10**9)
        tally = Tally(np.zeros((1, 2 * mechanism.n_coefficients), dtype=np.int64), np.array([10**6]))
        tally.counts[0, : 10**6] = 1
        decoder(mechanism).frequencies(tally)
        begin = time.process_time()
        estimates = decoder(mechanism).frequencies(tally)
        assert time.process_time() - begin < 0.5
        assert estimates.shape == (1, 1 << 20)
        assert estimates.sum() == pytest.approx(1)


class TestVariance:
    @pytest.mark.parametrize("epsilon", [0.25, 1, 2, 4])
    def test_of_oue_olh_and_hr_equals_the_closed_form(self, epsilon):
        e, k = exp(epsilon), 169
        g = round(e) + 1
        closed = {
            "oue": 4 * e / (e - 1) ** 2,
            "olh": (e - 1 + g) ** 2 / ((e - 1) ** 2 * (g - 1)),
            "hr": ((e + 1) / (e - 1)) ** 2,
        }
        for kind, v in closed.items():
            reading = decoder(design(kind, k, round(epsilon * 1e9)))
            assert reading.spread_variance == pytest.approx(v, rel=1e-8)
            p, q = reading.p, reading.q
            slope = (p * (1 - p) - q * (1 - q)) / (p - q) ** 2
            assert reading.zero_variance == pytest.approx(v * (1 - 1 / k) + slope / k**2, rel=1e-8)
            assert reading.slope_variance == pytest.approx(slope * (1 - 2 / k), rel=1e-8)

    @pytest.mark.parametrize("kind", ["oue", "hr"])
    def test_equals_that_of_the_exact_channel(self, kind):
        """Enumerate the estimates of one report, for a symbol and for a sum of two symbols."""
        mechanism = design(kind, 4, 10**9)
        spec = RoundSpec((Feature("x", 0, 1),), GridEncoding((4,)), mechanism)
        reading = decoder(mechanism)
        values, rows = zip(*mechanism.channel().items(), strict=True)
        one = np.zeros(1, dtype=np.int64)
        estimates = np.concatenate(
            [reading.frequencies(count(spec, one, np.frombuffer(value, np.uint8)[None])) for value in values]
        )
        for true in range(4):
            chances = np.array([float(row[true]) for row in rows])
            mean = chances @ estimates
            assert mean == pytest.approx(np.eye(4)[true], abs=1e-12)
            variances = chances @ estimates**2 - mean**2
            expected = [reading.variance(float(x == true), 1) for x in range(4)]
            assert variances == pytest.approx(expected, rel=1e-12)
            others = [x for x in range(4) if x != true][:2]
            weights = np.isin(range(4), others) - 0.5  # the weights minus their mean
            of_sum = chances @ (estimates @ weights - mean @ weights) ** 2
            slope = reading.slope_variance / (1 - 2 / 4)
            assert of_sum == pytest.approx(reading.spread_variance * (weights**2).sum() + slope / 4, rel=1e-12)

    @pytest.mark.parametrize("epsilon", [0.25, 1, 4])
    @pytest.mark.parametrize("k", [5, 169])
    def test_of_grr_equals_the_closed_form(self, epsilon, k):
        v = decoder(design("grr", k, int(epsilon * 1e9))).zero_variance
        assert v == pytest.approx((k - 2 + exp(epsilon)) / expm1(epsilon) ** 2, rel=1e-12)

    @pytest.mark.parametrize("epsilon", [0.25, 1, 2])
    def test_of_subset_selection_is_just_below_optimised_unary(self, epsilon):
        v = decoder(design("ss", 169, int(epsilon * 1e9))).zero_variance
        unary = 4 * exp(epsilon) / expm1(epsilon) ** 2
        assert 0.95 * unary < v < unary

    def test_depends_on_the_frequency(self):
        reading = decoder(design("grr", 7, 10**9))
        p, q = reading.p, reading.q
        n, f = 100, 0.3
        of_count = n * (f * p * (1 - p) + (1 - f) * q * (1 - q))
        assert reading.variance(f, n) == pytest.approx(of_count / (n * (p - q)) ** 2)

    def test_of_the_sum_over_all_symbols_is_zero(self):
        reading = decoder(design("ss", 20, 10**9))
        assert reading.standard_errors(np.zeros(1), np.full(1, 20), np.ones(1), 50) == pytest.approx([0.0])

    def test_of_one_symbol_is_that_of_noise_and_sampling(self):
        reading = decoder(design("ss", 20, 10**9))
        spread = np.array([1 - 1 / 20])  # weights 1, 0, 0, ...
        found = reading.standard_errors(spread, np.ones(1), np.array([0.1]), 50)
        assert found**2 == pytest.approx([reading.variance(0.1, 50) + 0.09 / 50])

    @pytest.mark.parametrize("size", [1, 3, 7, 8])
    def test_of_a_set_of_symbols_is_that_of_all_subsets(self, size):
        """Enumerate the subsets that a device can report, with their probabilities."""
        k, share, n = 9, 0.3, 50
        mechanism = design("ss", k, 10**9 // 2)
        d = mechanism.subset_size
        reading = decoder(mechanism)
        moments = []
        for symbol, weight in ((0, share), (k - 1, 1 - share)):  # inside of the set, and outside
            for subset in combinations(range(k), d):
                is_in = symbol in subset
                chance = reading.p / comb(k - 1, d - 1) if is_in else (1 - reading.p) / comb(k - 1, d)
                moments.append((weight * chance, sum(each < size for each in subset) / (reading.p - reading.q)))
        mean = sum(chance * value for chance, value in moments)
        variance = sum(chance * (value - mean) ** 2 for chance, value in moments)
        spread = np.array([size * (1 - size / k)])
        found = reading.standard_errors(spread, np.array([float(size)]), np.array([share]), n)
        assert n * found**2 == pytest.approx([variance], rel=1e-9)


class TestSignal:
    @pytest.mark.parametrize("epsilon", [1e-6, 0.25, 1, 4, 32])
    def test_and_contrast_follow_the_realised_epsilon(self, epsilon):
        reading = decoder(design("auto", 81, round(epsilon * 1e9)))
        assert reading.contrast == pytest.approx(tanh(epsilon / 2), rel=1e-6)
        assert reading.signal == pytest.approx(expm1(epsilon) ** 2 / (4 * exp(epsilon)), rel=1e-6)
        assert signal_of(exp_epsilon(round(epsilon * 1e9))) == pytest.approx(reading.signal, rel=1e-6)

    def test_is_infinite_without_perturbation(self):
        reading = decoder(GrrMechanism(4, DRAW_SPAN))
        assert (reading.p, reading.q, reading.zero_variance) == (1, 0, 0)
        assert (reading.signal, reading.contrast) == (inf, 1)

    def test_is_refused_without_information(self):
        with pytest.raises(UnfitRound):
            decoder(GrrMechanism(4, DRAW_SPAN // 4))

    def test_mass_noise_is_delta(self):
        assert mass_noise(10_000, tanh(0.5)) == pytest.approx(1 / (200 * tanh(0.5)))
        assert Fraction(1, 2) == mass_noise(1, 1.0)
