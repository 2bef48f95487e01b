"""Discrete Laplace noise: its exact cost, its coins by their series, and perturbation word by word."""

import base64
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import exp, factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.checks.bounds import bound_exp
from sfumato import mechanisms
from sfumato.device.bulk import perturb_records
from sfumato.errors import CapExceeded, InvalidSpec
from sfumato.privacy import entropy
from sfumato.privacy.accounting import EPSILON_MIN_NANO, NANO
from sfumato.privacy.entropy import WORD_SPAN
from sfumato.records.encodings import symbol, symbols
from sfumato.specs import (
    DiscreteLaplaceMechanism,
    Feature,
    GridEncoding,
    GrrMechanism,
    LatticeEncoding,
    Participation,
    RoundSpec,
    design_for,
    round_spec_from_wire,
    to_wire,
)
from tests.sfumato.replay import Exhausted, GeneratorEntropy, ReplayEntropy
from tests.sfumato.scripted import FEATURES, RECORD, ScriptedService, open_round

XY = (Feature("x", 0, 1), Feature("y", 0, 1))

HALF, THREE_QUARTERS = WORD_SPAN // 2, 3 * (WORD_SPAN // 4)
ONE_TURN, NO_TURN = [0, HALF], [HALF]  # coins of 1, 1/2, 1/3: the third fails, or the second

words = st.integers(0, WORD_SPAN - 1) | st.integers(WORD_SPAN - 5000, WORD_SPAN - 1)


def spec_of(mechanism: DiscreteLaplaceMechanism) -> RoundSpec:
    features = tuple(Feature(f"x{i}", 0, 1) for i in range(mechanism.n_features))
    return RoundSpec(features, LatticeEncoding(mechanism.n_features, mechanism.steps), mechanism)


def chances(mechanism: DiscreteLaplaceMechanism, own: int, decay: Fraction) -> dict[int, Fraction]:
    """Return the distribution of one clamped coordinate for r = exp(-1/scale), given as a fraction."""
    low, high = -mechanism.margin, mechanism.steps + mechanism.margin
    inner = {sent: (1 - decay) / (1 + decay) * decay ** abs(sent - own) for sent in range(low + 1, high)}
    return inner | {low: decay ** (own - low) / (1 + decay), high: decay ** (high - own) / (1 + decay)}


def outcomes(
    toss: Callable[[ReplayEntropy], bool], n_words: int, prefix: tuple[int, ...]
) -> Iterator[tuple[bool, Fraction]]:
    """Yield each outcome that at most `n_words` words decide, with its probability, in a space of 12 words."""
    try:
        outcome = toss(ReplayEntropy(prefix))
    except Exhausted:
        for word in range(12) if len(prefix) < n_words else ():
            yield from outcomes(toss, n_words, (*prefix, word))
    else:
        yield outcome, Fraction(1, 12 ** len(prefix))


class TestCost:
    def test_never_exceeds_the_requested_epsilon_and_comes_close(self) -> None:
        requested = [100_000_000, 123_456_789, 2 * NANO + 7, 32 * NANO]
        for n_features, steps, epsilon_nano in product([1, 4, 64], [1, 7, 65536], requested):
            mechanism = DiscreteLaplaceMechanism.design(n_features, steps, epsilon_nano)
            most = Fraction(epsilon_nano, NANO)
            assert most * (1 - Fraction(1, 2**31)) <= mechanism.epsilon() <= most
            assert mechanism.epsilon_nano() == epsilon_nano

    @pytest.mark.parametrize("epsilon", [1, 8])
    @pytest.mark.parametrize("steps", [1, 5])
    def test_the_largest_ratio_of_probabilities_is_the_cost(self, epsilon: int, steps: int) -> None:
        mechanism = replace(DiscreteLaplaceMechanism.design(2, steps, epsilon * NANO), margin=3)
        per_unit = 1 / Fraction(mechanism.scale_numerator, mechanism.scale_denominator)
        low, high = bound_exp(per_unit)
        for decay in (1 / high, 1 / low):  # r lies between
            laws = [chances(mechanism, own, decay) for own in range(steps + 1)]
            assert all(sum(law.values()) == 1 for law in laws)
            largest = max(max(law[sent] for law in laws) / min(law[sent] for law in laws) for sent in laws[0])
            assert largest == decay**-steps  # reached, so that less noise than published would exceed the cost
        # two features together, against e^epsilon by another series
        assert high ** (2 * steps) >= bound_exp(Fraction(epsilon))[0]
        assert low ** (2 * steps) <= bound_exp(Fraction(epsilon))[1]

    def test_features_share_the_epsilon(self) -> None:
        for mechanism in (
            DiscreteLaplaceMechanism.design(5, 1000, NANO),
            DiscreteLaplaceMechanism.design(1, 1000, NANO // 5),
        ):
            assert (mechanism.scale_numerator, mechanism.scale_denominator) == (5000, 1)

    def test_refuses_no_noise_and_noise_beyond_the_report(self) -> None:
        with pytest.raises(InvalidSpec, match="reveals its symbol"):
            DiscreteLaplaceMechanism(2, 10, 0, 1, 0).epsilon_nano()
        assert DiscreteLaplaceMechanism.design(64, 1, EPSILON_MIN_NANO).margin <= 2**30
        with pytest.raises(InvalidSpec, match="fewer steps"):
            DiscreteLaplaceMechanism.design(64, 1000, EPSILON_MIN_NANO)

    def test_has_no_p_and_q_and_no_finite_channel(self) -> None:
        mechanism = DiscreteLaplaceMechanism.design(2, 10, NANO)
        functions: tuple[Callable[[], object], ...] = (
            mechanism.support,
            mechanism.ratio,
            mechanism.channel,
            mechanism.evidence,
            lambda: mechanism.tally_width,
        )
        for function in functions:
            with pytest.raises(InvalidSpec):
                function()

    @pytest.mark.parametrize("scale", [0.3, 1, 5, 4000])
    def test_the_variance_is_the_sum_over_outcomes(self, scale: float) -> None:
        mechanism = DiscreteLaplaceMechanism(1, 1, round(scale * 10), 10, 1)
        decay = exp(-1 / scale)
        direct = 2 * sum(z * z * (1 - decay) / (1 + decay) * decay**z for z in range(1, int(60 * scale) + 60))
        assert mechanism.variance() == pytest.approx(direct, rel=1e-9)
        assert replace(mechanism, scale_numerator=0).variance() == 0


class TestCoins:
    """The coin with probability exp(-a/b), over every sequence of words in a space of 12 words."""

    @pytest.mark.parametrize(
        ("a", "b", "n_coins"),
        [
            (0, 3, 4),
            (1, 1, 4),
            (1, 3, 3),
            pytest.param(1, 3, 4, marks=pytest.mark.release),
            pytest.param(2, 3, 4, marks=pytest.mark.release),
            pytest.param(3, 4, 4, marks=pytest.mark.release),
        ],
    )
    def test_probabilities_follow_the_series_of_the_exponential(
        self, a: int, b: int, n_coins: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(entropy, "WORD_SPAN", 12)  # divisible by 1 to 4, so that no word is rejected
        part = Fraction(a, b)
        ends = [part ** (k - 1) / factorial(k - 1) - part**k / factorial(k) for k in range(1, n_coins + 1)]
        n_words = 2 * n_coins - 1 if b > 1 else n_coins - 1  # each coin has a/b and, from the second on, 1/k
        totals = {True: Fraction(0), False: Fraction(0)}
        for outcome, chance in outcomes(lambda words: entropy.bernoulli_exp(a, b, words), n_words, ()):
            totals[outcome] += chance
        assert totals == {True: sum(ends[0::2]), False: sum(ends[1::2])}

    @pytest.mark.parametrize(
        ("drawn", "outcome"),
        [
            ([HALF], True),  # the first coin fails
            ([0, HALF], False),  # the second fails at 1/2, or at its own 1/2
            ([0, 0, HALF], False),
            ([0, 0, 0, HALF], True),  # the third fails at 1/2, or at its own 1/3
            ([0, 0, 0, 0, HALF], True),
            ([0, 0, 0, 0, 0, HALF], False),
        ],
    )
    def test_is_true_if_the_first_failure_is_odd(self, drawn: list[int], outcome: bool) -> None:
        replay = ReplayEntropy(drawn)
        assert entropy.bernoulli_exp(1, 2, replay) is outcome
        assert replay.n_drawn == len(drawn)


class TestPerturb:
    @settings(max_examples=80)
    @given(
        st.integers(0, 2**32),
        st.integers(1, 3),
        st.integers(1, 20),
        st.integers(0, 50),
        st.integers(1, 7),
        st.integers(0, 300),
        st.lists(words, max_size=20),
    )
    def test_one_device_and_an_array_of_one_send_the_same_bytes(
        self,
        seed: int,
        n_features: int,
        steps: int,
        numerator: int,
        denominator: int,
        margin: int,
        first_words: list[int],
    ) -> None:
        mechanism = DiscreteLaplaceMechanism(n_features, steps, numerator, denominator, margin)
        own = tuple(np.random.default_rng(seed).integers(0, steps, n_features, endpoint=True).tolist())
        drawn = [*first_words, *GeneratorEntropy(seed).words(2000).tolist()]
        one, many = ReplayEntropy(drawn), ReplayEntropy(drawn)
        value = mechanism.perturb(own, one)
        assert mechanism.perturb_many(np.array([own]), many).tobytes() == value
        assert many.n_drawn == one.n_drawn
        assert mechanism.is_value(value)

    @pytest.mark.parametrize(
        ("margin", "own", "drawn", "sent"),
        [
            # U and its coin, the coins of the turns, the sign: (3 + 4) / 2 units less, or more
            (40, 5, [THREE_QUARTERS, THREE_QUARTERS, *ONE_TURN, *NO_TURN, HALF], 2),
            (40, 5, [THREE_QUARTERS, THREE_QUARTERS, *ONE_TURN, *NO_TURN, 0], 8),
            # U = 3 is rejected: of its coin of 3/4 the first holds and the second fails; then U = 2
            (40, 5, [THREE_QUARTERS, 0, THREE_QUARTERS, HALF, THREE_QUARTERS, *NO_TURN, 0], 6),
            # minus zero is rejected: U = 0 with its coin of 0 fails at once; then U = 2
            (40, 5, [0, HALF, *NO_TURN, HALF, HALF, THREE_QUARTERS, *NO_TURN, 0], 6),
            (40, 5, [0, HALF, *NO_TURN, 0], 5),
            # four turns of 2 units reach the clamp from any place, so that no more turns are drawn
            (3, 0, [0, HALF, *ONE_TURN * 7, 0], 13),
        ],
    )
    def test_reads_words_in_the_published_order(self, margin: int, own: int, drawn: list[int], sent: int) -> None:
        mechanism = DiscreteLaplaceMechanism(1, 10, 4, 2, margin)
        replay = ReplayEntropy(drawn)
        value = mechanism.perturb((own,), replay)
        assert mechanism.vectors_of(np.frombuffer(value, np.uint8)[None]).tolist() == [[sent]]
        assert replay.n_drawn == len(drawn)

    def test_sends_the_vector_without_noise(self) -> None:
        mechanism = DiscreteLaplaceMechanism(2, 300, 0, 1, 0)
        own = np.array([[0, 300], [7, 256]])
        values = mechanism.perturb_many(own, ReplayEntropy([]))
        assert mechanism.vectors_of(values).tolist() == own.tolist()
        assert mechanism.perturb((7, 256), ReplayEntropy([])) == values[1].tobytes()
        none = mechanism.perturb_many(np.zeros((0, 2), np.int64), ReplayEntropy([]))
        assert none.shape == (0, mechanism.value_bytes)

    @pytest.mark.parametrize("own", [(-1, 0), (0, 11), (0,), (0, 0, 0), 3])
    def test_refuses_a_vector_out_of_range(self, own: tuple[int, ...]) -> None:
        mechanism = DiscreteLaplaceMechanism.design(2, 10, NANO)
        with pytest.raises(InvalidSpec):
            mechanism.perturb(own, GeneratorEntropy(0))
        with pytest.raises(InvalidSpec):
            mechanism.perturb_many(np.array([own]), GeneratorEntropy(0))
        with pytest.raises(InvalidSpec):
            GrrMechanism(4, 2**63).perturb((1, 2), GeneratorEntropy(0))


class TestValues:
    @pytest.mark.parametrize(("largest", "width"), [(1, 1), (255, 1), (256, 2), (65535, 2), (65536, 3), (2**24, 4)])
    def test_have_the_width_of_the_largest_coordinate(self, largest: int, width: int) -> None:
        margin = (largest - 1) // 2
        mechanism = DiscreteLaplaceMechanism(3, largest - 2 * margin, 5, 1, margin)
        assert mechanism.value_bytes == 3 * width
        top = largest.to_bytes(width, "little")
        assert mechanism.is_value(top * 3)
        if largest < 256**width - 1:
            assert not mechanism.is_value(top * 2 + (largest + 1).to_bytes(width, "little"))
        assert not mechanism.is_value(top * 3 + b"\0")

    @settings(max_examples=50)
    @given(st.integers(1, 3), st.integers(1, 400), st.integers(0, 70_000), st.integers(0, 2**32))
    def test_are_checked_alike_one_by_one_and_together(
        self, n_features: int, steps: int, margin: int, seed: int
    ) -> None:
        mechanism = DiscreteLaplaceMechanism(n_features, steps, 7, 3, margin)
        width = mechanism.value_bytes
        together = np.random.default_rng(seed).integers(0, 256, (5, width), dtype=np.uint8)
        flags = mechanism.are_values(together)
        assert flags.tolist() == [mechanism.is_value(value.tobytes()) for value in together]
        vectors = mechanism.vectors_of(together[flags])
        assert vectors.dtype == np.int32
        assert ((vectors >= -margin) & (vectors <= steps + margin)).all()


class TestSpecs:
    def test_a_lattice_needs_its_own_noise(self) -> None:
        spec = spec_of(DiscreteLaplaceMechanism.design(3, 1000, NANO))
        assert round_spec_from_wire(to_wire(spec)) == spec
        assert (spec.encoding.n_slots, spec.encoding.n_symbols, spec.mechanism.n_symbols) == (1, 1001**3, 1001**3)
        for encoding, mechanism in (
            (LatticeEncoding(2, 3), GrrMechanism(16, 2**63)),
            (GridEncoding((4, 4)), DiscreteLaplaceMechanism(2, 3, 1, 1, 16)),
            (LatticeEncoding(2, 3), DiscreteLaplaceMechanism(2, 4, 1, 1, 16)),
            (LatticeEncoding(2, 3), DiscreteLaplaceMechanism(1, 15, 1, 1, 16)),
        ):
            with pytest.raises(InvalidSpec, match="must be over the lattice"):
                RoundSpec(XY, encoding, mechanism)

    @pytest.mark.parametrize(
        ("position", "value"),  # the parts are n_features, steps, numerator, denominator, margin
        [(0, 0), (0, 65), (1, 0), (1, 1 << 17), (1, True), (2, -1), (2, 1.5), (2, 1 << 27), (3, 0), (4, 1.5)],
    )
    def test_refuses_impossible_parts(self, position: int, value: float) -> None:
        parts = [2, 10, 1, 1, 0]
        DiscreteLaplaceMechanism(*parts)
        for impossible in ((2, 10, (1 << 32) + 1, 1 << 32, 0), (2, 10, 1, 1, -1), (2, 10, 1, 1, (1 << 30) + 1)):
            with pytest.raises(InvalidSpec):
                DiscreteLaplaceMechanism(*impossible)
        parts[position] = value  # type: ignore[call-overload]
        with pytest.raises(InvalidSpec):
            DiscreteLaplaceMechanism(*parts)

    @pytest.mark.parametrize("parts", [(0, 10), (65, 10), (2, 0), (2, (1 << 16) + 1), (2, 2.0)])
    def test_refuses_impossible_lattices(self, parts: tuple[int, int]) -> None:
        with pytest.raises(InvalidSpec):
            LatticeEncoding(*parts)

    def test_a_mechanism_is_designed_for_its_encoding(self) -> None:
        lattice = LatticeEncoding(2, 100)
        for kind in ("auto", "discrete_laplace"):
            assert design_for(lattice, kind, NANO) == DiscreteLaplaceMechanism.design(2, 100, NANO)
        grid = GridEncoding((3, 3))
        assert design_for(grid, "oue", NANO) == mechanisms.design("oue", 9, NANO)
        for encoding, kind in ((lattice, "grr"), (grid, "discrete_laplace")):
            with pytest.raises(InvalidSpec, match="cannot perturb"):
                design_for(encoding, kind, NANO)


class TestLattice:
    @settings(max_examples=50)
    @given(st.integers(1, 65536), st.lists(st.floats(0, 1), min_size=1, max_size=6))
    def test_a_coordinate_becomes_the_nearest_place(self, steps: int, point: list[float]) -> None:
        encoding = LatticeEncoding(len(point), steps)
        vector = symbol(encoding, point, 0)
        assert isinstance(vector, tuple)
        for coordinate, place in zip(point, vector, strict=True):
            assert 0 <= place <= steps
            assert abs(Fraction(coordinate) * steps - place) <= Fraction(1, 2) + Fraction(1, 10**9)
        assert symbols(encoding, np.array([point]), np.zeros(1, np.int64)).tolist() == [list(vector)]

    def test_many_records_become_reports(self) -> None:
        spec = spec_of(DiscreteLaplaceMechanism.design(2, 1000, 32 * NANO))
        half = replace(spec, participation=Participation(0, 2**63))
        reports = perturb_records(half, np.tile([0.25, 0.75], (4000, 1)), GeneratorEntropy(1))
        assert 1800 < len(reports.slots) < 2200
        assert not reports.slots.any()
        vectors = spec.mechanism.vectors_of(reports.values)  # type: ignore[arg-type]
        assert np.abs(vectors.mean(axis=0) - [250, 750]).max() < 12  # the noise's scale is 62.5


class TestDevice:
    def test_reports_once_and_charges_the_cost(self) -> None:
        spec = RoundSpec(FEATURES, LatticeEncoding(2, 1000), DiscreteLaplaceMechanism.design(2, 1000, NANO))
        service = ScriptedService(open_round(spec=spec))
        device = service.device(cap=1.5)
        assert device.report(RECORD).outcome == "sent"
        assert device.report(RECORD).outcome == "already_answered"
        assert device.spent == 1
        (report,) = service.stored["rnd_1"]
        assert report["slot"] == 0
        assert spec.mechanism.is_value(base64.b64decode(report["value"]))

    def test_refuses_no_noise_whatever_its_announced_cost_and_less_noise_than_the_cap(self) -> None:
        without_noise = RoundSpec(FEATURES, LatticeEncoding(2, 10), DiscreteLaplaceMechanism(2, 10, 0, 1, 0))
        too_little = RoundSpec(FEATURES, LatticeEncoding(2, 1000), DiscreteLaplaceMechanism.design(2, 1000, 3 * NANO))
        for spec, declared, error in ((without_noise, 1.0, InvalidSpec), (too_little, 3.0, CapExceeded)):
            service = ScriptedService(open_round(spec=spec, epsilon=declared))
            with pytest.raises(error):
                service.device(cap=2).report(RECORD)
            assert service.sent == []
