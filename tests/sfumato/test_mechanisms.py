"""Mechanisms, exactly: channels by enumeration, costs by a second route, words one by one."""

from dataclasses import fields, replace
from fractions import Fraction
from itertools import product
from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.exact_exponential import exp_bounds
from sfumato import entropy, mechanisms
from sfumato.accounting import NANO
from sfumato.entropy import WORD_SPAN
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import grr, hr, oue, ss
from sfumato.specs import GrrMechanism, HrMechanism, Mechanism, OlhMechanism, OueMechanism, SsMechanism
from tests.sfumato import specs_given
from tests.sfumato.replay import GeneratorEntropy, ReplayEntropy, distribution

EPSILONS_NANO = [1000, 1_000_000, 100_000_000, 500_000_000, NANO, 2 * NANO, 4 * NANO + 7, 11 * NANO, 32 * NANO]
SIZES = [2, 3, 4, 5, 8, 9]
KINDS = ["grr", "ss", "oue", "olh", "hr"]

words = st.integers(0, WORD_SPAN - 1) | st.integers(WORD_SPAN - 5000, WORD_SPAN - 1)


def designed(*kinds: str) -> list[Mechanism]:
    return [
        mechanisms.design(kind, k, epsilon_nano)
        for kind, k, epsilon_nano in product(kinds, SIZES, EPSILONS_NANO)
        if kind != "olh" or epsilon_nano < 5 * NANO  # beyond, g is too many values to list
    ]


class TestChannel:
    @pytest.mark.parametrize("mechanism", designed(*KINDS), ids=str)
    def test_each_symbols_chances_sum_to_one(self, mechanism: Mechanism) -> None:
        rows = mechanisms.channel(mechanism)
        for held in range(mechanism.n_symbols):
            assert sum(row[held] for row in rows.values()) == 1

    @pytest.mark.parametrize("mechanism", designed(*KINDS), ids=str)
    def test_the_largest_ratio_is_the_one_that_is_charged(self, mechanism: Mechanism) -> None:
        largest = max(max(row) / min(row) for row in mechanisms.channel(mechanism).values())
        assert largest == mechanisms.ratio(mechanism)

    @pytest.mark.parametrize("mechanism", designed("grr", "ss", "oue", "hr"), ids=str)
    def test_support_is_what_the_channel_says(self, mechanism: Mechanism) -> None:
        rows = mechanisms.channel(mechanism)
        k = mechanism.n_symbols
        for held, named in product(range(k), repeat=2):
            chance = sum(row[held] for value, row in rows.items() if _names(mechanism, value, named))
            assert chance == mechanisms.support(mechanism)[held != named]

    @pytest.mark.parametrize("mechanism", designed("grr", "ss", "oue", "hr"), ids=str)
    def test_values_are_those_of_the_channel_and_no_others(self, mechanism: Mechanism) -> None:
        width = mechanisms.value_bytes(mechanism)
        rows = mechanisms.channel(mechanism)
        everything = [number.to_bytes(width, "little") for number in range(256**width if width == 1 else 2048)]
        assert {value for value in everything if mechanisms.is_value(mechanism, value)} == set(rows)
        flags = mechanisms.are_values(mechanism, np.frombuffer(b"".join(everything), np.uint8).reshape(-1, width))
        assert flags.tolist() == [value in rows for value in everything]
        assert not mechanisms.is_value(mechanism, next(iter(rows)) + b"\0")
        assert not mechanisms.is_value(mechanism, b"")


def _names(mechanism: Mechanism, value: bytes, named: int) -> bool:
    number = int.from_bytes(value, "little")
    if isinstance(mechanism, HrMechanism):
        return (number >> 1 & named + 1).bit_count() & 1 == number & 1
    return number == named if isinstance(mechanism, GrrMechanism) else bool(number >> named & 1)


def _with_next_threshold(mechanism: Mechanism) -> Mechanism:
    """The threshold that says a little more."""
    if isinstance(mechanism, OueMechanism):
        return replace(mechanism, other_threshold=mechanism.other_threshold - 1)
    if isinstance(mechanism, SsMechanism):
        return replace(mechanism, hold_threshold=mechanism.hold_threshold + 1)
    return replace(mechanism, keep_threshold=mechanism.keep_threshold + 1)


class TestDesign:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("n_symbols", [2, 3, 81, 100, 169, 289, 4096])
    @pytest.mark.parametrize("epsilon_nano", EPSILONS_NANO)
    def test_the_threshold_is_the_last_that_keeps_the_promise(
        self, kind: str, n_symbols: int, epsilon_nano: int
    ) -> None:
        mechanism = mechanisms.design(kind, n_symbols, epsilon_nano)
        low, high = exp_bounds(Fraction(epsilon_nano, NANO))
        assert mechanisms.ratio(mechanism) <= low
        assert mechanisms.ratio(_with_next_threshold(mechanism)) > high

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("n_symbols", [2, 5, 100, 169, 4096])
    @pytest.mark.parametrize("epsilon_nano", EPSILONS_NANO)
    def test_the_cost_covers_the_channel_and_is_at_most_what_was_asked(
        self, kind: str, n_symbols: int, epsilon_nano: int
    ) -> None:
        mechanism = mechanisms.design(kind, n_symbols, epsilon_nano)
        realised = mechanisms.epsilon_nano(mechanism)
        ratio = mechanisms.ratio(mechanism)
        assert realised <= epsilon_nano
        assert realised > 0.9999 * epsilon_nano
        assert exp_bounds(Fraction(realised, NANO))[0] >= ratio
        assert exp_bounds(Fraction(realised - 1, NANO))[1] < ratio

    @settings(deadline=None)
    @given(st.data(), st.integers(2, 300))
    def test_the_cost_of_any_published_threshold_covers_it(self, data: st.DataObject, n_symbols: int) -> None:
        mechanism = data.draw(specs_given.mechanisms(n_symbols))
        realised = mechanisms.epsilon_nano(mechanism)
        assert exp_bounds(Fraction(realised, NANO))[0] >= mechanisms.ratio(mechanism)
        assert exp_bounds(Fraction(max(0, realised - 1), NANO))[0] <= mechanisms.ratio(mechanism)

    @pytest.mark.parametrize(
        ("n_symbols", "epsilon_nano", "size"),
        [
            (2, 1000, 1),
            (3, 1000, 1),
            (81, 500_000_000, 31),
            (81, 2 * NANO, 10),
            (100, 8 * NANO, 1),
            (169, NANO, 45),
            (289, 4 * NANO, 5),
            (4096, 1000, 2048),
        ],
    )
    def test_the_subset_has_the_size_of_the_rule(self, n_symbols: int, epsilon_nano: int, size: int) -> None:
        mechanism = ss.design(n_symbols, epsilon_nano)
        assert mechanism.subset_size == size
        assert size == max(1, round(n_symbols / (2.718281828459045 ** (epsilon_nano / NANO) + 1)))

    @pytest.mark.parametrize(("n_symbols", "epsilon"), [(10, 1.0), (169, 1.0), (100, 2.5)])
    def test_p_and_q_are_those_of_the_formulas(self, n_symbols: int, epsilon: float) -> None:
        k, e = n_symbols, 2.718281828459045**epsilon
        nano = round(epsilon * NANO)
        p, q = mechanisms.support(mechanisms.design("grr", k, nano))
        assert (float(p), float(q)) == pytest.approx((e / (e + k - 1), 1 / (e + k - 1)), rel=1e-12)
        mechanism = ss.design(k, nano)
        d = mechanism.subset_size
        p, q = mechanisms.support(mechanism)
        below = d * e + k - d
        formula = (d * e / below, (d * e * (d - 1) + (k - d) * d) / ((k - 1) * below))
        assert (float(p), float(q)) == pytest.approx(formula, rel=1e-12)
        p, q = mechanisms.support(mechanisms.design("oue", k, nano))
        assert (float(p), float(q)) == pytest.approx((0.5, 1 / (e + 1)), rel=1e-12)
        g = round(e) + 1
        p, q = mechanisms.support(mechanisms.design("olh", k, nano))
        assert (float(p), float(q)) == pytest.approx((e / (e + g - 1), 1 / g), rel=1e-9)
        p, q = mechanisms.support(mechanisms.design("hr", k, nano))
        assert (float(p), float(q)) == pytest.approx((e / (e + 1), 0.5), rel=1e-12)

    def test_auto_takes_the_least_variance_in_the_fewest_bytes(self) -> None:
        assert mechanisms.design("auto", 169, NANO) == ss.design(169, NANO)
        assert mechanisms.design("auto", 4, 2 * NANO) == grr.design(4, 2 * NANO)
        for k, epsilon_nano in product([2, 5, 30, 169], EPSILONS_NANO[2:]):
            chosen = mechanisms.zero_variance(mechanisms.design("auto", k, epsilon_nano))
            every = [mechanisms.zero_variance(mechanisms.design(kind, k, epsilon_nano)) for kind in KINDS]
            assert chosen <= Fraction(10001, 10000) * min(every)

    @pytest.mark.parametrize(
        ("n_symbols", "epsilon", "all_counted", "some_counted"),
        [
            (4097, 0.5, "hr", "hr"),
            (4097, 1, "hr", "hr"),
            (100_000, 1.04, "hr", "hr"),
            (100_000, 1.06, "hr", "olh"),
            (100_000, 4, "hr", "olh"),
            (4097, 5, "grr", "olh"),
            (100_000, 12, "grr", "grr"),
        ],
    )
    def test_auto_above_the_bitmaps_weighs_variance_against_hashing(
        self, n_symbols: int, epsilon: float, all_counted: str, some_counted: str
    ) -> None:
        nano = round(epsilon * NANO)
        assert mechanisms.design("auto", n_symbols, nano).type == all_counted
        assert mechanisms.design("auto", n_symbols, nano, n_candidates=4096).type == some_counted
        assert mechanisms.design("auto", n_symbols, nano, n_candidates=4097).type == all_counted

    def test_refuses_what_it_cannot_carry(self) -> None:
        with pytest.raises(InvalidSpec):
            mechanisms.design("ss", 4097, NANO)
        with pytest.raises(InvalidSpec):
            mechanisms.design("oue", 4097, NANO)
        with pytest.raises(InvalidSpec, match="counts at most 4096"):
            mechanisms.design("olh", 4097, NANO)
        assert mechanisms.design("olh", 4097, NANO, n_candidates=10).n_symbols == 4097
        with pytest.raises(InvalidSpec, match="counts at most 4096"):
            mechanisms.design("olh", 5000, NANO, n_candidates=4097)
        with pytest.raises(InvalidSpec, match="unknown mechanism"):
            mechanisms.design("laplace", 4, NANO)

    def test_an_unperturbed_channel_has_no_cost_to_speak_of(self) -> None:
        with pytest.raises(InvalidSpec, match="gives the symbol away"):
            mechanisms.epsilon_nano(GrrMechanism(4, WORD_SPAN))

    def test_a_threshold_that_favours_lies_costs_as_much_as_it_tells(self) -> None:
        """Below 1/k the symbol is told by its absence; that is not free."""
        assert mechanisms.epsilon_nano(GrrMechanism(2, WORD_SPAN // 4)) == -(-int(log(3) * NANO * 1000) // 1000)
        assert mechanisms.epsilon_nano(GrrMechanism(2, 1)) > 40 * NANO


class TestPerturb:
    """The device's code is the channel: every sequence of words is played, in a space of few words."""

    @pytest.mark.parametrize("threshold", [1, 5, 11])
    @pytest.mark.parametrize(
        "mechanism",
        [
            GrrMechanism(5, 1),
            GrrMechanism(2, 1),
            SsMechanism(5, 1, 1),
            SsMechanism(5, 2, 1),
            SsMechanism(5, 4, 1),
            OueMechanism(3, 1),
            HrMechanism(3, 1),
        ],
    )
    def test_all_words_together_make_the_channel(
        self, mechanism: Mechanism, threshold: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        span = 12  # which 1 to 4 divide: nothing is drawn again
        for module in (entropy, grr, ss, oue, hr):
            monkeypatch.setattr(module, "WORD_SPAN", span)
        (name,) = (field.name for field in fields(mechanism) if field.name.endswith("_threshold"))
        mechanism = replace(mechanism, **{name: threshold})
        rows = mechanisms.channel(mechanism)
        for held in range(mechanism.n_symbols):
            if isinstance(mechanism, SsMechanism) and mechanism.subset_size == 4 and held > 0:
                continue  # 12**5 sequences a symbol: one symbol will do
            played = distribution(lambda words, own=held: mechanisms.perturb(mechanism, own, words), span)
            assert played == {value: row[held] for value, row in rows.items() if row[held]}

    @settings(deadline=None, max_examples=300)
    @given(st.data(), st.integers(2, 40))
    def test_one_device_and_an_array_of_one_make_the_same_bytes_of_the_same_words(
        self, data: st.DataObject, n_symbols: int
    ) -> None:
        mechanism = data.draw(specs_given.mechanisms(n_symbols))
        own = data.draw(st.integers(0, n_symbols - 1))
        drawn = [*data.draw(st.lists(words, min_size=60, max_size=60)), *[1] * 60]
        one, many = ReplayEntropy(drawn), ReplayEntropy(drawn)
        value = mechanisms.perturb(mechanism, own, one)
        values = mechanisms.perturb_many(mechanism, np.array([own]), many)
        assert values.shape == (1, mechanisms.value_bytes(mechanism))
        assert values.tobytes() == value
        assert many.n_drawn == one.n_drawn
        assert mechanisms.is_value(mechanism, value)

    @pytest.mark.parametrize("mechanism", [GrrMechanism(4, 2**63 + 5), SsMechanism(4, 1, 2**63 + 5)])
    def test_the_last_word_below_the_threshold_keeps_the_symbol_and_the_next_does_not(
        self, mechanism: Mechanism
    ) -> None:
        for first, keeps in [(2**63 + 4, True), (2**63 + 5, False)]:
            value = mechanisms.perturb(mechanism, 1, ReplayEntropy([first, 0]))
            assert mechanisms.perturb_many(mechanism, np.array([1]), ReplayEntropy([first, 0])).tobytes() == value
            assert _names(mechanism, value, 1) is keeps

    def test_hadamard_response_lies_from_the_threshold_on(self) -> None:
        mechanism = HrMechanism(4, 2**63 + 5)
        for decision, supports in [(2**63 + 4, True), (2**63 + 5, False)]:
            drawn = [5 << 61, decision]  # coefficient 5 of 8
            value = mechanisms.perturb(mechanism, 1, ReplayEntropy(drawn))
            assert mechanisms.perturb_many(mechanism, np.array([1]), ReplayEntropy(drawn)).tobytes() == value
            assert value[0] >> 1 == 5
            assert _names(mechanism, value, 1) is supports

    def test_unary_encoding_draws_one_word_a_symbol_in_order(self) -> None:
        mechanism = OueMechanism(4, 1000)
        drawn = [999, 2**63 - 1, 1000, 2**64 - 1]
        assert mechanisms.perturb(mechanism, 1, ReplayEntropy(drawn)) == b"\x03"
        assert mechanisms.perturb(mechanism, 0, ReplayEntropy([2**63, 1000, 0, 0])) == b"\x0c"

    @pytest.mark.parametrize(
        "mechanism",
        [
            GrrMechanism(300, 2**62),
            SsMechanism(17, 3, 2**63),
            SsMechanism(16, 8, 9),
            OueMechanism(17, 2**62),
            OlhMechanism(300, 300, 2**63),
            HrMechanism(300, 2**63 + 2**60),
        ],
    )
    def test_many_devices_send_values_that_can_be(self, mechanism: Mechanism) -> None:
        own = np.arange(5000) % mechanism.n_symbols
        values = mechanisms.perturb_many(mechanism, own, GeneratorEntropy(5))
        assert values.dtype == np.uint8
        assert values.shape == (5000, mechanisms.value_bytes(mechanism))
        assert mechanisms.are_values(mechanism, values).all()

    def test_chunks_do_not_show(self, monkeypatch: pytest.MonkeyPatch) -> None:
        mechanism = SsMechanism(9, 3, 2**63)
        own = np.arange(1000) % 9
        monkeypatch.setattr(ss, "_CHUNK_BITS", 9 * 64)
        values = mechanisms.perturb_many(mechanism, own, GeneratorEntropy(3))
        held = np.unpackbits(values, axis=1, bitorder="little")[np.arange(1000), own]
        assert mechanisms.are_values(mechanism, values).all()
        assert 400 < held.sum() < 600

    @pytest.mark.parametrize("mechanism", [mechanisms.design(kind, 4, NANO) for kind in KINDS])
    @pytest.mark.parametrize("own", [-1, 4])
    def test_a_symbol_out_of_range_is_refused(self, mechanism: Mechanism, own: int) -> None:
        with pytest.raises(InvalidSpec):
            mechanisms.perturb(mechanism, own, GeneratorEntropy(0))
        with pytest.raises(InvalidSpec):
            mechanisms.perturb_many(mechanism, np.array([0, own]), GeneratorEntropy(0))

    def test_nobody_sends_nothing(self) -> None:
        for mechanism in [mechanisms.design(kind, 4, NANO) for kind in KINDS]:
            values = mechanisms.perturb_many(mechanism, np.zeros(0, np.int64), ReplayEntropy([]))
            assert values.shape == (0, mechanisms.value_bytes(mechanism))

    def test_an_unperturbed_channel_sends_the_symbol(self) -> None:
        own = np.arange(1000) % 7
        values = mechanisms.perturb_many(GrrMechanism(7, WORD_SPAN), own, GeneratorEntropy(2))
        assert grr.symbols_of(values).tolist() == own.tolist()

    @pytest.mark.parametrize(("k", "width"), [(2, 1), (256, 1), (257, 2), (65536, 2), (65537, 3), (2**20, 3)])
    def test_values_are_as_wide_as_the_symbols_need(self, k: int, width: int) -> None:
        mechanism = GrrMechanism(k, WORD_SPAN)
        last = np.array([k - 1])
        assert mechanisms.value_bytes(mechanism) == width
        assert grr.symbols_of(mechanisms.perturb_many(mechanism, last, GeneratorEntropy(1))).tolist() == [k - 1]
        assert mechanisms.perturb(mechanism, k - 1, GeneratorEntropy(1)) == (k - 1).to_bytes(width, "little")
        assert not mechanisms.is_value(mechanism, k.to_bytes(4, "little")[:width]) or k == 256**width
