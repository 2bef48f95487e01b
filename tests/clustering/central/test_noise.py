"""Test exact noise word by word and against its closed-form law, with power against another scale."""

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from math import exp, expm1, isqrt, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from clustering.central import noise
from clustering.central.noise import (
    MAX_SCALE,
    MAX_SIGMA,
    GaussianNoise,
    LaplaceNoise,
    discrete_gaussian,
    discrete_laplace,
    laplace_variance,
    representable,
)
from clustering.random import SeededEntropy
from sfumato.privacy import entropy
from tests.sfumato.replay import Exhausted, GeneratorEntropy, ReplayEntropy

N_DRAWS = 20_000
SURE = 1e-6  # p-value below which the correct law is rejected
REFUSED = 1e-20  # p-value below which a law 30 % off is rejected


def played(draw, n_words, word_span):
    """Return the exact probability of each outcome decided by at most `n_words` words, and of no outcome."""
    decided, waiting = Counter(), [()]
    while waiting:
        prefix = waiting.pop()
        try:
            outcome = draw(ReplayEntropy(prefix))
        except Exhausted:
            if len(prefix) < n_words:
                waiting += [(*prefix, word) for word in range(word_span)]
            continue
        decided[outcome] += Fraction(1, word_span ** len(prefix))
    return decided, 1 - sum(decided.values())


def fair(a, b, words):
    """Replace the coin of probability exp(-a/b) by a fair one of one word; a = 0 always succeeds."""
    return np.array([part == 0 or words.words(1)[0] % 2 == 1 for part in a.tolist()])


def laplace_law(scale, sizes):
    """Return P(|z| = size) of the discrete Laplace law, and the probability of all larger sizes."""
    decay = exp(-1 / scale)
    at = [(1 - decay) / (1 + decay) * decay**size * (2 if size else 1) for size in range(sizes)]
    return np.array([*at, 1 - sum(at)])


def gaussian_law(sigma, sizes):
    weights = np.array([exp(-z * z / (2 * sigma**2)) * (2 if z else 1) for z in range(int(sizes + 40 * sigma))])
    weights /= weights.sum()
    return np.append(weights[:sizes], weights[sizes:].sum())


def p_value(drawn, law):
    seen = np.bincount(np.minimum(np.abs(drawn), len(law) - 1), minlength=len(law))
    return float(chisquare(seen, law * len(drawn)).pvalue)


class TestLaplaceWordByWord:
    @pytest.mark.parametrize(("t", "s"), [(1, 1), (2, 1), (4, 1), (2, 3), (4, 3)])
    def test_law_follows_from_its_coins(self, t: int, s: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """With rational coins, all outcomes are enumerated exactly."""
        span, n_words = (2, 12) if t <= 2 else (4, 7)
        monkeypatch.setattr(noise, "bernoulli_exp_many", fair)
        monkeypatch.setattr(entropy, "WORD_SPAN", span)  # a multiple of the bounds of choices
        found, undecided = played(lambda words: int(discrete_laplace(Fraction(t, s), 1, words)[0]), n_words, span)
        weights = Counter()
        for part in range(t):
            for turns in range(60):  # each further one is half as probable
                size = (part + t * turns) // s
                chance = Fraction(1, t) * (1 if part == 0 else Fraction(1, 2)) * Fraction(1, 2 ** (turns + 1))
                weights[size] += chance / 2
                weights[-size] += chance / 2 if size else 0  # minus zero is drawn again
        total = sum(weights.values())
        assert undecided < Fraction(1, 2)
        assert len(found) > 3
        assert all(found[z] == found[-z] for z in found)
        for z, chance in found.items():
            assert chance <= weights[z] / total + Fraction(1, 2**50)
        for z in range(-3, 4):
            assert weights[z] / total <= found[z] + undecided + Fraction(1, 2**50)


class TestLaplaceLaw:
    @pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(3, 2), Fraction(7), Fraction(10**9, 61_803_399)])
    def test_draws_follow_the_law_and_reject_30_percent_off(self, scale: Fraction) -> None:
        drawn = discrete_laplace(scale, N_DRAWS, GeneratorEntropy(1))
        sizes = max(3, int(4 * scale))
        assert p_value(drawn, laplace_law(float(scale), sizes)) > SURE
        assert p_value(drawn, laplace_law(float(scale) * 1.3, sizes)) < REFUSED
        assert p_value(drawn, laplace_law(float(scale) / 1.3, sizes)) < REFUSED
        assert abs((drawn > 0).sum() - (drawn < 0).sum()) < 5 * sqrt((drawn != 0).sum())

    @pytest.mark.parametrize("scale", [Fraction(1, 50), Fraction(3, 2), Fraction(1000)])
    def test_variance_is_that_of_the_law(self, scale: Fraction) -> None:
        decay = exp(-1 / scale)
        direct = 2 * sum(z * z * decay**z for z in range(1, int(60 * scale) + 60)) * -expm1(-1 / scale) / (1 + decay)
        assert laplace_variance(scale) == pytest.approx(direct, rel=1e-9)

    def test_extreme_scales(self) -> None:
        assert not discrete_laplace(Fraction(1, 10**9), 1000, GeneratorEntropy(2)).any()
        drawn = discrete_laplace(Fraction(MAX_SCALE), 4000, GeneratorEntropy(3)).astype(np.float64)
        assert np.abs(drawn).mean() == pytest.approx(float(MAX_SCALE), rel=0.1)
        assert np.abs(drawn).max() < 2.0**62

    @given(st.fractions(Fraction(1, 10**12), MAX_SCALE))
    def test_drawn_scale_is_rounded_up(self, scale: Fraction) -> None:
        t, s = representable(scale)
        assert scale <= Fraction(t, s) <= scale + max(scale, Fraction(1)) / 2**38
        assert 1 <= t <= 1 << 57


class TestGaussian:
    @pytest.mark.parametrize("sigma", [0.4, 1.5, 6.0])
    def test_draws_follow_the_law_and_reject_30_percent_off(self, sigma: float) -> None:
        variance = Fraction(sigma).limit_denominator(100) ** 2
        drawn = discrete_gaussian(variance, 12_000, GeneratorEntropy(4))
        sizes = max(2, int(2.5 * sigma))
        assert p_value(drawn, gaussian_law(sigma, sizes)) > SURE
        assert p_value(drawn, gaussian_law(sigma * 1.3, sizes)) < REFUSED
        assert p_value(drawn, gaussian_law(sigma / 1.3, sizes)) < REFUSED
        assert abs((drawn > 0).sum() - (drawn < 0).sum()) < 5 * sqrt((drawn != 0).sum())

    def test_huge_variance_has_its_deviation(self) -> None:
        drawn = discrete_gaussian(Fraction(1 << 100), 3000, GeneratorEntropy(5)).astype(np.float64)
        assert drawn.std() == pytest.approx(2.0**50, rel=0.08)
        tails = np.mean(np.abs(drawn) > 2.0**50), np.mean(np.abs(drawn) > 2.0**51)
        assert tails == pytest.approx((0.3173, 0.0455), abs=0.035)

    def test_tiny_variance_adds_nothing(self) -> None:
        assert not discrete_gaussian(Fraction(1, 10**9), 1000, GeneratorEntropy(2)).any()

    @settings(max_examples=30)
    @given(st.lists(st.integers(-60, 60), min_size=1, max_size=9), st.fractions(Fraction(1, 10), 10**12))
    @pytest.mark.slow
    def test_accepted_draws_follow_the_law(self, tried: list[int], variance: Fraction) -> None:
        """Laplace probabilities times coin probabilities give exp(-z^2/(2 variance)) up to a constant, exactly."""
        t = isqrt(variance.numerator // variance.denominator) + 1
        tossed = [Fraction(0)] * len(tried)

        def whole(a: np.ndarray, b: int, _: object) -> np.ndarray:
            turn = next(turns)
            for i, z in enumerate(tried):
                tossed[i] += Fraction(1) if exponent(z) >= turn else 0
            assert len(a) == sum(exponent(z) >= turn for z in tried)
            assert (a == b).all()
            return np.ones(len(a), dtype=np.bool_)

        def rest(parts: list[int], b: int, _: object) -> np.ndarray:
            for i, a in enumerate(parts):
                assert 0 <= a < b
                tossed[i] += Fraction(a, b)
            return np.ones(len(parts), dtype=np.bool_)

        def exponent(z: int) -> int:
            return int((abs(z) - variance / t) ** 2 / (2 * variance))

        turns = iter(range(1, 1 << 20))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(noise, "bernoulli_exp_many", whole)
            patch.setattr(noise, "_toss_exp", rest)
            assert noise._accept(np.array(tried), t, variance, ReplayEntropy([])).all()
        for z, coins in zip(tried, tossed, strict=True):
            # exp(-|z|/t) of the Laplace draw, times the coins
            assert Fraction(abs(z), t) + coins == Fraction(z) ** 2 / (2 * variance) + variance / (2 * Fraction(t) ** 2)

    def test_rejected_draw_needs_no_further_coins(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tossed: list[int] = []

        def none(a: np.ndarray, b: int, _: object) -> np.ndarray:
            tossed.append(len(a))
            return np.zeros(len(a), dtype=np.bool_)

        monkeypatch.setattr(noise, "bernoulli_exp_many", none)
        monkeypatch.setattr(noise, "_toss_exp", lambda parts, b, _: np.ones(len(parts), dtype=np.bool_))
        kept = noise._accept(np.array([0, 40, -40, 1]), 3, Fraction(4), ReplayEntropy([]))
        assert kept.tolist() == [True, False, False, True]
        assert tossed == [2]

    def test_blocks_do_not_change_draws(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = noise.discrete_gaussian(Fraction(10**20, 7), 50, SeededEntropy(1))
        monkeypatch.setattr(noise, "_BLOCK", 3)
        assert noise.discrete_gaussian(Fraction(10**20, 7), 50, SeededEntropy(1)).tolist() == whole.tolist()

    @pytest.mark.parametrize("fails_at", [1, 2, 3, 4])
    def test_coin_is_the_parity_of_the_first_failure(self, fails_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
        a, b = 3 * 10**30, 7 * 10**30 + 1
        digits = (a << 64) // b
        picked: list[int] = []

        def pick(_: object, k: int, n: int) -> np.ndarray:
            picked.append(k)
            return np.zeros(n, dtype=np.int64)

        monkeypatch.setattr(noise, "pick_many", pick)
        words = [digits - 1] * (fails_at - 1) + [digits + 1]
        assert noise._toss_exp([a], b, ReplayEntropy(words)).tolist() == [fails_at % 2 == 1]
        assert picked == list(range(1, fails_at + 1))

    def test_coins_have_their_probabilities(self) -> None:
        """Coins of probability exp(-a/b), for many a at once and b above 64 bits."""
        b = 10**40 + 7
        for part in (Fraction(0), Fraction(1, 10), Fraction(1, 2), Fraction(99, 100)):
            tossed = noise._toss_exp([int(part * b)] * N_DRAWS, b, GeneratorEntropy(7)).mean()
            assert tossed == pytest.approx(exp(-part), abs=6 * sqrt(0.25 / N_DRAWS))
        assert abs(exp(-0.1) - exp(-0.13)) > 6 * sqrt(0.25 / N_DRAWS)  # detects a deviation of 30 %

    @pytest.mark.parametrize(("word", "below"), [(-1, True), (0, None), (1, False)])
    def test_equal_first_word_defers_to_further_words(self, word: int, below: bool | None) -> None:
        a, b = 2, 7
        first, rest = divmod(a << 64, b)
        second = (rest << 64) // b
        if below is None:
            assert noise._toss_exp([a], b, ReplayEntropy([first, second + 1])).tolist() == [True]
            # the first coin succeeds, and the next one fails
            twice = ReplayEntropy([first, second - 1, first + 1])
            assert noise._toss_exp([a], b, twice).tolist() == [False]
        else:
            words = [first + word] + [first + 1] * below
            assert noise._toss_exp([a], b, ReplayEntropy(words)).tolist() == [not below]

    @pytest.mark.parametrize(("a", "b"), [(1, 3), (2, 7), (5, 8), (10**30, 3 * 10**30 + 1)])
    def test_compares_words_with_digits(self, a: int, b: int) -> None:
        first, rest = divmod(a << 64, b)
        second = (rest << 64) // b
        assert noise._toss(a, b, ReplayEntropy([max(first - 1, 0)]))
        assert not noise._toss(a, b, ReplayEntropy([first + 1]))
        if rest == 0:
            assert not noise._toss(a, b, ReplayEntropy([first]))
        else:
            assert noise._toss(a, b, ReplayEntropy([first, second - 1]))
            assert not noise._toss(a, b, ReplayEntropy([first, second + 1]))


class TestArguments:
    @pytest.mark.parametrize(
        ("draw", "parameter", "most"),
        [(discrete_laplace, "scale", MAX_SCALE), (discrete_gaussian, "variance", MAX_SIGMA**2)],
    )
    def test_are_positive_and_limited(self, draw: Callable[..., np.ndarray], parameter: str, most: int) -> None:
        for value in (Fraction(0), Fraction(-1), Fraction(most) + 1):
            with pytest.raises(ValueError, match=parameter):
                draw(value, 1, GeneratorEntropy(0))
        assert draw(Fraction(1), 0, ReplayEntropy([])).shape == (0,)


class TestNoiseOfAnAnswer:
    @pytest.mark.parametrize("sensitivity", [1, 40])
    def test_scale_follows_the_sensitivity(self, sensitivity: int) -> None:
        sensitivities = np.array([3, sensitivity] * (N_DRAWS // 2))
        loud = np.arange(N_DRAWS) % 2 == 1
        laplace = LaplaceNoise(Fraction(1, 2), sensitivities)
        assert laplace.scale(sensitivity) == Fraction(sensitivity, 2)
        gaussian = GaussianNoise(Fraction(1, 4), sensitivities)
        assert gaussian.variance(sensitivity) == Fraction(sensitivity**2, 4) + 3
        sizes, deviation = 6 + sensitivity, (sensitivity**2 / 4 + 3) ** 0.5
        for noise_of, law, scale in ((laplace, laplace_law, sensitivity / 2), (gaussian, gaussian_law, deviation)):
            drawn = noise_of.draw(GeneratorEntropy(9))[loud]
            assert p_value(drawn, law(scale, sizes)) > SURE
            assert p_value(drawn, law(scale * 1.3, sizes)) < REFUSED
            assert p_value(drawn, law(scale / 1.3, sizes)) < REFUSED

    @pytest.mark.parametrize("kind", [LaplaceNoise, GaussianNoise])
    def test_rejects_zero_sensitivity(self, kind: type[LaplaceNoise | GaussianNoise]) -> None:
        with pytest.raises(ValueError, match="sensitivities"):
            kind(Fraction(1), np.array([1, 0]))
        with pytest.raises(ValueError, match=r"must lie in \(0"):
            kind(Fraction(0), np.array([1]))

    def test_rejects_excessive_noise(self) -> None:
        with pytest.raises(ValueError, match="scale"):
            LaplaceNoise(Fraction(MAX_SCALE), np.array([1, 2]))
        with pytest.raises(ValueError, match="variance"):
            GaussianNoise(Fraction(1), np.array([MAX_SIGMA]))  # the added variance is too much
        assert GaussianNoise(Fraction(1), np.array([MAX_SIGMA - 1])).variance(MAX_SIGMA - 1) < MAX_SIGMA**2
