"""Local hashing: the hash family by enumeration in a small field, and the real field against its fractions."""

from collections import Counter
from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.mechanisms import grr, olh
from sfumato.privacy import entropy
from sfumato.privacy.accounting import NANO
from sfumato.specs import OlhMechanism
from tests.sfumato.replay import GeneratorEntropy, ReplayEntropy, distribution

LARGEST_EXACT = 1 << 53  # in JavaScript's numbers


def reduce_field(monkeypatch: pytest.MonkeyPatch, span: int) -> None:
    """Hash into numbers below `span`; the field has span - 1 of them."""
    monkeypatch.setattr(olh, "HASH_SPAN", span)
    monkeypatch.setattr(olh, "HASH_PRIME", span - 1)


def hash_of(value: bytes) -> int:
    return int.from_bytes(value[12:], "little")


def seed_of(value: bytes) -> tuple[int, int, int]:
    a, b, c = (int.from_bytes(value[start : start + 4], "little") for start in (0, 4, 8))
    return a, b, c


class TestFamily:
    @pytest.mark.parametrize("hash_range", [2, 3])
    def test_hashes_any_three_symbols_independently(self, hash_range: int, monkeypatch: pytest.MonkeyPatch) -> None:
        reduce_field(monkeypatch, 8)
        mechanism = OlhMechanism(7, hash_range, 1)
        runs = Counter(v * hash_range // 8 for v in range(7))
        for three in permutations(range(7), 3):
            counts = Counter(
                tuple(mechanism.hashed(seed, x) for x in three)
                for seed in product(range(7), repeat=3)  # type: ignore[arg-type]
            )
            expected = product(range(hash_range), repeat=3)
            assert counts == {(i, j, k): runs[i] * runs[j] * runs[k] for i, j, k in expected}

    @pytest.mark.parametrize(("span", "hash_range"), [(8, 2), (8, 3), (32, 7), (128, 100)])
    def test_q_equals_its_enumeration(self, span: int, hash_range: int, monkeypatch: pytest.MonkeyPatch) -> None:
        reduce_field(monkeypatch, span)
        mechanism = OlhMechanism(3, hash_range, 3 << 62)
        keep, other = mechanism.response.support()
        hits = Fraction(0)
        for own, named in product(range(span - 1), repeat=2):  # all pairs of numbers are equally likely
            same = own * hash_range // span == named * hash_range // span
            hits += keep if same else other
        assert mechanism.support() == (keep, hits / (span - 1) ** 2)

    def test_q_of_the_real_field_is_close_to_one_by_the_range(self) -> None:
        for epsilon_nano in (NANO // 2, 2 * NANO, 11 * NANO):
            mechanism = OlhMechanism.design(169, epsilon_nano)
            _, q = mechanism.support()
            assert abs(q - Fraction(1, mechanism.hash_range)) < Fraction(mechanism.hash_range, 1 << 60)

    @settings(max_examples=50)
    @given(st.tuples(*[st.integers(0, olh.HASH_PRIME - 1)] * 3), st.integers(2, 1 << 16), st.integers(0, (1 << 20) - 1))
    def test_every_product_is_exact_in_doubles(self, seed: tuple[int, int, int], g: int, symbol: int) -> None:
        a, b, c = seed
        first = a * symbol + b
        second = first % olh.HASH_PRIME * symbol + c
        third = second % olh.HASH_PRIME * g
        assert max(first, second, third) < LARGEST_EXACT
        in_doubles = np.floor(float(third) / float(1 << 31))
        assert OlhMechanism(1 << 20, g, 1).hashed(seed, symbol) == in_doubles < g


class TestDesign:
    @pytest.mark.parametrize(("epsilon", "hash_range"), [(0.1, 2), (1, 4), (2, 8), (4, 56), (12, 1 << 16)])
    def test_the_range_minimises_the_variance(self, epsilon: float, hash_range: int) -> None:
        assert OlhMechanism.design(169, round(epsilon * NANO)).hash_range == hash_range

    @pytest.mark.parametrize(("hash_range", "width"), [(2, 13), (256, 13), (257, 14), (1 << 16, 14)])
    def test_a_value_has_a_seed_and_a_hash(self, hash_range: int, width: int) -> None:
        assert OlhMechanism(5, hash_range, 1).value_bytes == width


class TestPerturb:
    @pytest.mark.parametrize("hash_range", [2, 3])
    def test_all_word_sequences_together_give_the_channel_of_every_seed(
        self, hash_range: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reduce_field(monkeypatch, 4)
        for module in (entropy, grr):
            monkeypatch.setattr(module, "WORD_SPAN", 6)
        mechanism = OlhMechanism(3, hash_range, 4)
        keep, other = mechanism.response.support()
        for own in range(3):
            chances = distribution(lambda words, x=own: mechanism.perturb(x, words), 6)
            assert len(chances) == 27 * hash_range
            for value, chance in chances.items():
                is_kept = mechanism.hashed(seed_of(value), own) == hash_of(value)
                assert chance == (keep if is_kept else other) / 27

    def test_words_below_the_threshold_keep_the_hash(self) -> None:
        mechanism = OlhMechanism(4, 8, 2**63 + 5)
        for decision, keeps in [(2**63 + 4, True), (2**63 + 5, False)]:
            drawn = [3 << 33, 5 << 40, 7 << 50, decision, 0]
            value = mechanism.perturb(1, ReplayEntropy(drawn))
            assert mechanism.perturb_many(np.array([1]), ReplayEntropy(drawn)).tobytes() == value
            assert (hash_of(value) == mechanism.hashed(seed_of(value), 1)) is keeps

    def test_many_devices_hash_like_one(self) -> None:
        mechanism = OlhMechanism(1 << 20, 1000, (1 << 64) - 1)  # always keeps the hash
        own = np.random.default_rng(1).integers(0, 1 << 20, 500)
        values = [bytes(value) for value in mechanism.perturb_many(own, GeneratorEntropy(1))]
        expected = [mechanism.hashed(seed_of(value), int(x)) for value, x in zip(values, own, strict=True)]
        assert [hash_of(value) for value in values] == expected


class TestValues:
    @pytest.mark.parametrize(
        ("value", "is_valid"),
        [
            (bytes(13), True),
            ((olh.HASH_PRIME - 1).to_bytes(4, "little") * 3 + b"\x02", True),
            (bytes(12) + b"\x03", False),
            (olh.HASH_PRIME.to_bytes(4, "little") + bytes(9), False),
            (bytes(4) + olh.HASH_PRIME.to_bytes(4, "little") + bytes(5), False),
            (bytes(8) + b"\xff\xff\xff\xff" + bytes(1), False),
        ],
    )
    def test_have_a_seed_of_the_field_and_a_hash_in_range(self, value: bytes, is_valid: bool) -> None:
        mechanism = OlhMechanism(5, 3, 1 << 63)
        assert mechanism.is_value(value) is is_valid
        assert mechanism.are_values(np.frombuffer(value, np.uint8)[None, :]).tolist() == [is_valid]

    @pytest.mark.parametrize("value", [b"", bytes(12), bytes(14)])
    def test_have_one_width(self, value: bytes) -> None:
        assert not OlhMechanism(5, 3, 1 << 63).is_value(value)
