"""The cyclic window, exactly: its channel by enumeration and by playing every word, its cost by a second route."""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.exact_exponential import exp_bounds
from sfumato import entropy, mechanisms
from sfumato.accounting import NANO
from sfumato.entropy import WORD_SPAN
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import window
from sfumato.specs import GrrMechanism, OueMechanism, WindowMechanism
from tests.sfumato.replay import GeneratorEntropy, ReplayEntropy, distribution

EPSILONS_NANO = [1000, 1_000_000, 500_000_000, NANO, 2 * NANO, 4 * NANO + 7, 11 * NANO, 32 * NANO]
SIZES = [2, 3, 4, 5, 16, 64]
DESIGNED = [window.design(k, epsilon_nano) for k, epsilon_nano in product(SIZES, EPSILONS_NANO)]

words = st.integers(0, WORD_SPAN - 1) | st.integers(WORD_SPAN - 5000, WORD_SPAN - 1)


class TestChannel:
    @pytest.mark.parametrize("mechanism", DESIGNED, ids=str)
    def test_each_symbols_chances_sum_to_one(self, mechanism: WindowMechanism) -> None:
        rows = mechanisms.channel(mechanism)
        assert all(sum(row[own] for row in rows.values()) == 1 for own in range(mechanism.n_symbols))

    @pytest.mark.parametrize("mechanism", DESIGNED, ids=str)
    def test_the_largest_ratio_is_the_one_that_is_charged(self, mechanism: WindowMechanism) -> None:
        largest = max(max(row) / min(row) for row in mechanisms.channel(mechanism).values())
        assert largest == mechanisms.ratio(mechanism)

    @pytest.mark.parametrize("mechanism", DESIGNED, ids=str)
    def test_it_turns_with_the_symbol(self, mechanism: WindowMechanism) -> None:
        chances, k = mechanisms.offset_chances(mechanism), mechanism.n_symbols
        for value, row in mechanisms.channel(mechanism).items():
            sent = int.from_bytes(value, "little")
            assert row == tuple(chances[(sent - own) % k] for own in range(k))

    def test_the_window_lies_around_the_own_symbol(self) -> None:
        chances = mechanisms.offset_chances(WindowMechanism(7, 3, 3 * 2**62))
        assert chances == (Fraction(1, 4), Fraction(1, 4), *[Fraction(1, 16)] * 4, Fraction(1, 4))
        chances = mechanisms.offset_chances(WindowMechanism(8, 4, 2**63 + 2**62))  # even: one more below than above
        assert [chance == max(chances) for chance in chances] == [True, True, False, False, False, False, True, True]

    def test_values_are_the_symbols_and_no_others(self) -> None:
        mechanism = WindowMechanism(16, 6, 2**63)
        everything = [bytes([number]) for number in range(256)]
        assert [mechanisms.is_value(mechanism, value) for value in everything] == [number < 16 for number in range(256)]
        flags = mechanisms.are_values(mechanism, np.arange(256, dtype=np.uint8)[:, None])
        assert flags.tolist() == [number < 16 for number in range(256)]
        assert not mechanisms.is_value(mechanism, b"\1\0")
        assert not mechanisms.is_value(mechanism, b"")

    @pytest.mark.parametrize(("k", "width"), [(2, 1), (256, 1), (257, 2), (4096, 2)])
    def test_values_are_as_wide_as_the_symbols_need(self, k: int, width: int) -> None:
        mechanism = WindowMechanism(k, 1, WORD_SPAN - 1)
        assert mechanisms.value_bytes(mechanism) == width
        assert mechanisms.perturb(mechanism, k - 1, ReplayEntropy([0, 0])) == (k - 1).to_bytes(width, "little")
        many = mechanisms.perturb_many(mechanism, np.array([k - 1]), ReplayEntropy([0, 0]))
        assert many.tobytes() == (k - 1).to_bytes(width, "little")


class TestDesign:
    @pytest.mark.parametrize("mechanism", DESIGNED, ids=str)
    def test_is_of_its_kind(self, mechanism: WindowMechanism) -> None:
        assert mechanism.type == "window"

    @pytest.mark.parametrize(("n_symbols", "epsilon_nano"), list(product(SIZES, EPSILONS_NANO)))
    def test_the_threshold_is_the_last_that_keeps_the_promise(self, n_symbols: int, epsilon_nano: int) -> None:
        mechanism = mechanisms.design("window", n_symbols, epsilon_nano)
        assert isinstance(mechanism, WindowMechanism)
        low, high = exp_bounds(Fraction(epsilon_nano, NANO))
        assert mechanisms.ratio(mechanism) <= low
        assert mechanisms.ratio(replace(mechanism, inside_threshold=mechanism.inside_threshold + 1)) > high

    @pytest.mark.parametrize(("n_symbols", "epsilon_nano"), list(product(SIZES, EPSILONS_NANO)))
    def test_the_cost_covers_the_channel_and_is_at_most_what_was_asked(self, n_symbols: int, epsilon_nano: int) -> None:
        mechanism = mechanisms.design("window", n_symbols, epsilon_nano)
        realised = mechanisms.epsilon_nano(mechanism)
        assert 0.9999 * epsilon_nano < realised <= epsilon_nano
        assert exp_bounds(Fraction(realised, NANO))[0] >= mechanisms.ratio(mechanism)

    @settings(deadline=None)
    @given(st.integers(2, 300), st.data())
    def test_the_cost_of_any_published_threshold_covers_it(self, n_symbols: int, data: st.DataObject) -> None:
        mechanism = WindowMechanism(
            n_symbols, data.draw(st.integers(1, n_symbols - 1)), data.draw(st.integers(1, WORD_SPAN - 1))
        )
        realised = mechanisms.epsilon_nano(mechanism)
        assert exp_bounds(Fraction(realised, NANO))[0] >= mechanisms.ratio(mechanism)

    @pytest.mark.parametrize(("epsilon", "size"), [(0.001, 8), (0.5, 7), (1, 6), (2, 4), (4, 2), (8, 1), (32, 1)])
    def test_the_window_has_the_size_of_the_rule(self, epsilon: float, size: int) -> None:
        mechanism = window.design(16, round(epsilon * NANO))
        assert mechanism.window_size == size == max(1, round(16 / (1 + np.exp(epsilon / 2))))

    def test_what_cannot_be_is_refused(self) -> None:
        for wrong in [(1, 1, 5), (4097, 1, 5), (4, 0, 5), (4, 4, 5), (4, 2, 0), (4, 2, WORD_SPAN), (4, 2, 0.5)]:
            with pytest.raises(InvalidSpec):
                WindowMechanism(*wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidSpec):
            mechanisms.design("window", 4097, NANO)


class TestWhatItSupports:
    def test_it_has_no_two_numbers_that_say_so(self) -> None:
        mechanism = window.design(16, NANO)
        with pytest.raises(InvalidSpec, match="no one symbol"):
            mechanisms.support(mechanism)
        with pytest.raises(InvalidSpec, match="no one symbol"):
            mechanisms.zero_variance(mechanism)

    def test_randomised_response_is_a_window_of_one(self) -> None:
        assert mechanisms.offset_chances(GrrMechanism(5, 2**63)) == mechanisms.offset_chances(
            WindowMechanism(5, 1, 2**63)
        )

    def test_bits_are_no_symbols_of_a_circle(self) -> None:
        with pytest.raises(InvalidSpec, match="circle"):
            mechanisms.offset_chances(OueMechanism(4, 5))

    def test_auto_never_takes_it(self) -> None:
        for k, epsilon_nano in product([2, 16, 64, 5000], EPSILONS_NANO):
            assert mechanisms.design("auto", k, epsilon_nano).type != "window"


class TestPerturb:
    @pytest.mark.parametrize("threshold", [1, 5, 11])
    @pytest.mark.parametrize(("k", "size"), [(5, 1), (5, 2), (5, 3), (6, 4), (4, 3), (2, 1)])
    def test_all_words_together_make_the_channel(
        self, k: int, size: int, threshold: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        span = 12  # which 1 to 4 divide: nothing is drawn again
        for module in (entropy, window):
            monkeypatch.setattr(module, "WORD_SPAN", span)
        mechanism = WindowMechanism(k, size, threshold)
        rows = mechanisms.channel(mechanism)
        for own in range(k):
            played = distribution(lambda drawn, held=own: mechanisms.perturb(mechanism, held, drawn), span)
            assert played == {value: row[own] for value, row in rows.items()}

    @settings(deadline=None, max_examples=300)
    @given(st.integers(2, 300), st.data())
    def test_one_device_and_an_array_of_one_make_the_same_bytes_of_the_same_words(
        self, n_symbols: int, data: st.DataObject
    ) -> None:
        mechanism = WindowMechanism(
            n_symbols, data.draw(st.integers(1, n_symbols - 1)), data.draw(st.integers(1, WORD_SPAN - 1))
        )
        own = data.draw(st.integers(0, n_symbols - 1))
        drawn = [*data.draw(st.lists(words, min_size=12, max_size=12)), 1, 1]
        one, many = ReplayEntropy(drawn), ReplayEntropy(drawn)
        value = mechanisms.perturb(mechanism, own, one)
        assert mechanisms.perturb_many(mechanism, np.array([own]), many).tobytes() == value
        assert many.n_drawn == one.n_drawn
        assert mechanisms.is_value(mechanism, value)

    def test_the_last_word_below_the_threshold_is_inside_and_the_next_is_not(self) -> None:
        mechanism = WindowMechanism(8, 1, 2**63 + 5)
        for decision, is_inside in [(2**63 + 4, True), (2**63 + 5, False)]:
            value = mechanisms.perturb(mechanism, 3, ReplayEntropy([decision, 0]))
            assert (value == b"\3") is is_inside
            assert mechanisms.perturb_many(mechanism, np.array([3]), ReplayEntropy([decision, 0])).tobytes() == value

    def test_many_devices_send_values_that_can_be(self) -> None:
        for mechanism in (WindowMechanism(16, 6, 2**63), WindowMechanism(1000, 300, 2**62)):
            own = np.arange(5000) % mechanism.n_symbols
            values = mechanisms.perturb_many(mechanism, own, GeneratorEntropy(5))
            assert values.dtype == np.uint8
            assert values.shape == (5000, mechanisms.value_bytes(mechanism))
            assert mechanisms.are_values(mechanism, values).all()
        assert mechanisms.perturb_many(mechanism, np.zeros(0, np.int64), ReplayEntropy([])).shape == (0, 2)

    @pytest.mark.parametrize("own", [-1, 16])
    def test_a_symbol_out_of_range_is_refused(self, own: int) -> None:
        with pytest.raises(InvalidSpec):
            mechanisms.perturb(window.design(16, NANO), own, GeneratorEntropy(0))
