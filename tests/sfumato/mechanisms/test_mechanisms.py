"""Mechanisms with a finite channel: enumerated channels, exact costs, and perturbation word by word."""

from dataclasses import fields, replace
from fractions import Fraction
from itertools import product
from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.checks.bounds import bound_exp
from sfumato import mechanisms
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import grr, hr, oue, ss, window
from sfumato.mechanisms.base import read_numbers
from sfumato.privacy import entropy
from sfumato.privacy.accounting import NANO
from sfumato.privacy.entropy import WORD_SPAN
from sfumato.specs import (
    GrrMechanism,
    HrMechanism,
    Mechanism,
    OlhMechanism,
    OueMechanism,
    SsMechanism,
    WindowMechanism,
)
from tests.sfumato import specs_given
from tests.sfumato.replay import GeneratorEntropy, ReplayEntropy, distribution

EPSILONS_NANO = [1000, 500_000_000, NANO, 4 * NANO + 7, 32 * NANO]
SIZES = [2, 4, 9]
KINDS = ["grr", "ss", "oue", "olh", "hr", "window"]

words = st.integers(0, WORD_SPAN - 1) | st.integers(WORD_SPAN - 5000, WORD_SPAN - 1)


def design_all(kind: str, n_symbols: int) -> list[Mechanism]:
    """Return the mechanisms of a kind with a channel small enough to enumerate."""
    largest = 5 * NANO if kind == "olh" else 32 * NANO
    return [mechanisms.design(kind, n_symbols, nano) for nano in EPSILONS_NANO if nano <= largest]


def is_supported(mechanism: Mechanism, value: bytes, symbol: int) -> bool:
    """Return whether a value supports a symbol."""
    number = int.from_bytes(value, "little")
    if isinstance(mechanism, HrMechanism):
        return (number >> 1 & symbol + 1).bit_count() & 1 == number & 1
    if isinstance(mechanism, GrrMechanism | WindowMechanism):
        return number == symbol
    return bool(number >> symbol & 1)


def name_threshold(mechanism: Mechanism) -> str:
    """Return the name of the field that decides."""
    (name,) = (field.name for field in fields(mechanism) if field.name.endswith("_threshold"))
    return name


@pytest.mark.parametrize("n_symbols", SIZES)
@pytest.mark.parametrize("kind", KINDS)
class TestChannel:
    def test_probabilities_sum_to_one_and_have_the_charged_ratio(self, kind: str, n_symbols: int) -> None:
        for mechanism in design_all(kind, n_symbols):
            rows = mechanism.channel().values()
            assert [sum(row[own] for row in rows) for own in range(n_symbols)] == [1] * n_symbols
            assert max(max(row) / min(row) for row in rows) == mechanism.ratio()

    def test_support_follows_from_the_channel(self, kind: str, n_symbols: int) -> None:
        if kind in ("olh", "window"):  # see test_olh.py; a window has no p and q
            return
        for mechanism in design_all(kind, n_symbols)[::2]:
            rows = mechanism.channel()
            for own, other in product(range(n_symbols), repeat=2):
                chance = sum(row[own] for value, row in rows.items() if is_supported(mechanism, value, other))
                assert chance == mechanism.support()[own != other]

    def test_values_are_the_values_of_the_channel(self, kind: str, n_symbols: int) -> None:
        if kind == "olh":
            return
        mechanism = mechanisms.design(kind, n_symbols, NANO)
        width, rows = mechanism.value_bytes, mechanism.channel()
        values = [number.to_bytes(width, "little") for number in range(256 if width == 1 else 2048)]
        assert {value for value in values if mechanism.is_value(value)} == set(rows)
        flags = mechanism.are_values(np.frombuffer(b"".join(values), np.uint8).reshape(-1, width))
        assert flags.tolist() == [value in rows for value in values]
        assert not mechanism.is_value(next(iter(rows)) + b"\0")
        assert not mechanism.is_value(b"")


class TestDesign:
    @pytest.mark.parametrize("n_symbols", [2, 3, 169, 4096])
    @pytest.mark.parametrize("kind", KINDS)
    def test_uses_the_whole_epsilon_and_charges_what_the_channel_reveals(self, kind: str, n_symbols: int) -> None:
        for epsilon_nano in [*EPSILONS_NANO, 1_000_000, 11 * NANO]:
            mechanism = mechanisms.design(kind, n_symbols, epsilon_nano)
            low, high = bound_exp(Fraction(epsilon_nano, NANO))
            name = name_threshold(mechanism)
            step = -1 if kind == "oue" else 1  # the direction that reveals more
            beyond = replace(mechanism, **{name: getattr(mechanism, name) + step})
            assert mechanism.ratio() <= low
            assert beyond.ratio() > high
            charged = mechanism.epsilon_nano()
            assert 0.9999 * epsilon_nano < charged <= epsilon_nano
            assert bound_exp(Fraction(charged, NANO))[0] >= mechanism.ratio()
            assert bound_exp(Fraction(charged - 1, NANO))[1] < mechanism.ratio()

    @settings(max_examples=50)
    @given(st.data(), st.sampled_from(KINDS), st.integers(2, 300))
    def test_charges_the_ratio_of_any_threshold(self, data: st.DataObject, kind: str, n_symbols: int) -> None:
        mechanism = data.draw(specs_given.mechanisms(n_symbols, [kind]))
        charged = mechanism.epsilon_nano()
        assert bound_exp(Fraction(charged, NANO))[0] >= mechanism.ratio()
        assert bound_exp(Fraction(max(0, charged - 1), NANO))[0] <= mechanism.ratio()

    @pytest.mark.parametrize(
        ("n_symbols", "epsilon_nano", "size"),
        [(3, 1000, 1), (81, 500_000_000, 31), (81, 2 * NANO, 10), (100, 8 * NANO, 1), (4096, 1000, 2048)],
    )
    def test_subset_size_minimises_the_variance(self, n_symbols: int, epsilon_nano: int, size: int) -> None:
        assert SsMechanism.design(n_symbols, epsilon_nano).subset_size == size

    @pytest.mark.parametrize(("epsilon", "size"), [(0.001, 8), (0.5, 7), (1, 6), (2, 4), (4, 2), (8, 1), (32, 1)])
    def test_window_size_is_a_part_of_the_circle(self, epsilon: float, size: int) -> None:
        mechanism = WindowMechanism.design(16, round(epsilon * NANO))
        assert mechanism.window_size == size == max(1, round(16 / (1 + np.exp(epsilon / 2))))

    @pytest.mark.parametrize(("n_symbols", "epsilon"), [(10, 1.0), (169, 1.0), (100, 2.5)])
    def test_p_and_q_equal_the_published_formulas(self, n_symbols: int, epsilon: float) -> None:
        k, e = n_symbols, 2.718281828459045**epsilon
        nano = round(epsilon * NANO)
        d, g = SsMechanism.design(k, nano).subset_size, round(e) + 1
        below = d * e + k - d
        formulas = {
            "grr": (e / (e + k - 1), 1 / (e + k - 1)),
            "ss": (d * e / below, (d * e * (d - 1) + (k - d) * d) / ((k - 1) * below)),
            "oue": (0.5, 1 / (e + 1)),
            "olh": (e / (e + g - 1), 1 / g),
            "hr": (e / (e + 1), 0.5),
        }
        for kind, formula in formulas.items():
            p, q = mechanisms.design(kind, k, nano).support()
            assert (float(p), float(q)) == pytest.approx(formula, rel=1e-9)

    def test_auto_selects_the_least_variance_in_the_fewest_bytes(self) -> None:
        assert mechanisms.design("auto", 169, NANO) == SsMechanism.design(169, NANO)
        assert mechanisms.design("auto", 4, 2 * NANO) == GrrMechanism.design(4, 2 * NANO)
        for k, epsilon_nano in product([2, 30, 169], EPSILONS_NANO[1:]):
            chosen = mechanisms.design("auto", k, epsilon_nano).zero_variance()
            others = [mechanisms.design(kind, k, epsilon_nano) for kind in KINDS if kind != "window"]
            assert chosen <= Fraction(10001, 10000) * min(map(Mechanism.zero_variance, others))

    @pytest.mark.parametrize(
        ("n_symbols", "epsilon", "kind"),
        [(4098, 0.5, "hr"), (100_000, 1.04, "hr"), (100_000, 1.06, "hr"), (4098, 5, "grr"), (100_000, 12, "grr")],
    )
    def test_auto_weighs_variance_against_decoding_for_many_symbols(
        self, n_symbols: int, epsilon: float, kind: str
    ) -> None:
        assert mechanisms.design("auto", n_symbols, round(epsilon * NANO)).type == kind

    @pytest.mark.parametrize(
        ("kind", "n_symbols", "message"),
        [
            ("ss", 4098, "2 to 4097"),
            ("oue", 4098, "2 to 4097"),
            ("window", 4097, "2 to 4096"),
            ("olh", 4098, "counts at most 4097"),
            ("laplace", 4, "unknown mechanism"),
        ],
    )
    def test_refuses_unknown_kinds_and_too_many_symbols(self, kind: str, n_symbols: int, message: str) -> None:
        with pytest.raises(InvalidSpec, match=message):
            mechanisms.design(kind, n_symbols, NANO)

    def test_an_unperturbed_channel_has_no_finite_cost(self) -> None:
        with pytest.raises(InvalidSpec, match="reveals its symbol"):
            GrrMechanism(4, WORD_SPAN).epsilon_nano()

    def test_a_threshold_below_one_kth_has_a_cost(self) -> None:
        """The absence of a symbol reveals it."""
        assert GrrMechanism(2, WORD_SPAN // 4).epsilon_nano() == -(-int(log(3) * NANO * 1000) // 1000)
        assert GrrMechanism(2, 1).epsilon_nano() > 40 * NANO


class TestOffsets:
    def test_offset_chances_give_the_channel_of_a_circle(self) -> None:
        for mechanism in (*design_all("window", 9), *design_all("window", 64), GrrMechanism(5, 1 << 63)):
            chances, k = mechanism.offset_chances(), mechanism.n_symbols
            for value, row in mechanism.channel().items():
                sent = int.from_bytes(value, "little")
                assert row == tuple(chances[(sent - own) % k] for own in range(k))

    def test_the_window_surrounds_the_own_symbol(self) -> None:
        chances = WindowMechanism(7, 3, 3 * 2**62).offset_chances()
        assert chances == (Fraction(1, 4), Fraction(1, 4), *[Fraction(1, 16)] * 4, Fraction(1, 4))
        chances = WindowMechanism(8, 4, 2**63 + 2**62).offset_chances()  # even: one more below than above
        assert [chance == max(chances) for chance in chances] == [True, True, False, False, False, False, True, True]

    def test_refuses_values_that_are_not_one_symbol_of_a_circle(self) -> None:
        with pytest.raises(InvalidSpec, match="circle"):
            OueMechanism(4, 5).offset_chances()
        with pytest.raises(InvalidSpec, match="no probabilities p and q"):
            WindowMechanism(7, 3, 5).support()


class TestPerturb:
    @pytest.mark.parametrize(
        ("mechanism", "span"),  # every bound of a draw divides the span, so that no word is rejected
        [
            (GrrMechanism(4, 1), 6),
            (GrrMechanism(2, 1), 6),
            (SsMechanism(4, 1, 1), 6),
            (SsMechanism(4, 2, 1), 6),
            (SsMechanism(4, 3, 1), 6),
            (OueMechanism(3, 1), 6),
            (HrMechanism(3, 1), 8),
            (WindowMechanism(5, 2, 1), 6),
            (WindowMechanism(5, 3, 1), 6),
            (WindowMechanism(6, 4, 1), 12),
            (WindowMechanism(2, 1, 1), 6),
        ],
    )
    def test_all_word_sequences_together_give_the_channel(
        self, mechanism: Mechanism, span: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (entropy, grr, ss, oue, hr, window):
            monkeypatch.setattr(module, "WORD_SPAN", span)
        for threshold in (1, span // 2 - 1, span - 1):
            mechanism = replace(mechanism, **{name_threshold(mechanism): threshold})
            rows = mechanism.channel()
            for own in range(mechanism.n_symbols):
                chances = distribution(lambda drawn, m=mechanism, x=own: m.perturb(x, drawn), span)
                assert chances == {value: row[own] for value, row in rows.items() if row[own]}

    @settings(max_examples=150)
    @given(st.data(), st.sampled_from(KINDS), st.integers(2, 40) | st.integers(250, 300))
    def test_one_device_and_an_array_of_one_send_the_same_bytes(
        self, data: st.DataObject, kind: str, n_symbols: int
    ) -> None:
        mechanism = data.draw(specs_given.mechanisms(n_symbols, [kind]))
        own = data.draw(st.integers(0, n_symbols - 1))
        rest = GeneratorEntropy(data.draw(st.integers(0, 2**32))).words(400).tolist()
        drawn = [*data.draw(st.lists(words, max_size=8)), *rest]
        one, many = ReplayEntropy(drawn), ReplayEntropy(drawn)
        value = mechanism.perturb(own, one)
        values = mechanism.perturb_many(np.array([own]), many)
        assert values.shape == (1, mechanism.value_bytes)
        assert values.tobytes() == value
        assert many.n_drawn == one.n_drawn
        assert mechanism.is_value(value)

    @pytest.mark.parametrize(
        "mechanism", [GrrMechanism(4, 2**63 + 5), SsMechanism(4, 1, 2**63 + 5), WindowMechanism(8, 1, 2**63 + 5)]
    )
    def test_words_below_the_threshold_keep_the_symbol(self, mechanism: Mechanism) -> None:
        for first, keeps in [(2**63 + 4, True), (2**63 + 5, False)]:
            value = mechanism.perturb(1, ReplayEntropy([first, 0]))
            assert mechanism.perturb_many(np.array([1]), ReplayEntropy([first, 0])).tobytes() == value
            assert is_supported(mechanism, value, 1) is keeps

    def test_hadamard_response_flips_the_sign_from_the_threshold_on(self) -> None:
        mechanism = HrMechanism(4, 2**63 + 5)
        for decision, supports in [(2**63 + 4, True), (2**63 + 5, False)]:
            drawn = [5 << 61, decision]  # coefficient 5 of 8
            value = mechanism.perturb(1, ReplayEntropy(drawn))
            assert mechanism.perturb_many(np.array([1]), ReplayEntropy(drawn)).tobytes() == value
            assert value[0] >> 1 == 5
            assert is_supported(mechanism, value, 1) is supports

    def test_unary_encoding_draws_one_word_per_symbol_in_order(self) -> None:
        mechanism = OueMechanism(4, 1000)
        assert mechanism.perturb(1, ReplayEntropy([999, 2**63 - 1, 1000, 2**64 - 1])) == b"\x03"
        assert mechanism.perturb(0, ReplayEntropy([2**63, 1000, 0, 0])) == b"\x0c"

    @pytest.mark.parametrize(
        "mechanism",
        [
            GrrMechanism(300, 2**62),
            SsMechanism(17, 3, 2**63),
            OueMechanism(17, 2**62),
            OlhMechanism(300, 300, 2**63),
            HrMechanism(300, 2**63 + 2**60),
            WindowMechanism(1000, 300, 2**62),
        ],
    )
    def test_many_devices_send_valid_values(self, mechanism: Mechanism) -> None:
        for n in (0, 5000):
            values = mechanism.perturb_many(np.arange(n) % mechanism.n_symbols, GeneratorEntropy(5))
            assert (values.dtype, values.shape) == (np.uint8, (n, mechanism.value_bytes))
            assert mechanism.are_values(values).all()

    def test_chunks_of_devices_do_not_change_the_distribution(self, monkeypatch: pytest.MonkeyPatch) -> None:
        mechanism = SsMechanism(9, 3, 2**63)
        own = np.arange(1000) % 9
        monkeypatch.setattr(ss, "_CHUNK_BITS", 9 * 64)
        values = mechanism.perturb_many(own, GeneratorEntropy(3))
        kept = np.unpackbits(values, axis=1, bitorder="little")[np.arange(1000), own]
        assert mechanism.are_values(values).all()
        assert 400 < kept.sum() < 600

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("own", [-1, 4])
    def test_refuses_a_symbol_out_of_range(self, kind: str, own: int) -> None:
        mechanism = mechanisms.design(kind, 4, NANO)
        with pytest.raises(InvalidSpec):
            mechanism.perturb(own, GeneratorEntropy(0))
        with pytest.raises(InvalidSpec):
            mechanism.perturb_many(np.array([0, own]), GeneratorEntropy(0))

    @pytest.mark.parametrize(("k", "width"), [(2, 1), (256, 1), (257, 2), (4096, 2), (65536, 2), (65537, 3)])
    def test_values_have_the_width_of_the_largest_symbol(self, k: int, width: int) -> None:
        candidates = [GrrMechanism(k, WORD_SPAN), *([WindowMechanism(k, 1, WORD_SPAN - 1)] if k <= 4096 else [])]
        for mechanism in candidates:
            assert mechanism.value_bytes == width
            value = mechanism.perturb(k - 1, ReplayEntropy([0, 0]))
            assert value == (k - 1).to_bytes(width, "little")
            many = mechanism.perturb_many(np.array([k - 1]), ReplayEntropy([0, 0]))
            assert many.tobytes() == value
            assert read_numbers(many).tolist() == [k - 1]
            assert not mechanism.is_value(k.to_bytes(4, "little")[:width]) or k == 256**width
