"""Discrete Laplace noise, exactly: its cost by a second route, its coins by their series, its words one by one."""

import base64
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from math import exp, factorial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.exact_exponential import exp_bounds
from sfumato import entropy, exact_coins, mechanisms
from sfumato.accounting import EPSILON_MIN_NANO, NANO
from sfumato.bulk import perturb_records
from sfumato.encodings import symbol, symbols
from sfumato.entropy import WORD_SPAN
from sfumato.errors import CapExceeded, InvalidSpec
from sfumato.mechanisms import discrete_laplace
from sfumato.specs import (
    DiscreteLaplaceMechanism,
    Draw,
    Feature,
    GridEncoding,
    GrrMechanism,
    LatticeEncoding,
    RoundSpec,
    round_spec_from_wire,
    to_wire,
)
from tests.sfumato.replay import Exhausted, GeneratorEntropy, ReplayEntropy
from tests.sfumato.scripted import FEATURES, RECORD, ScriptedService, open_round

XY = (Feature("x", 0, 1), Feature("y", 0, 1))

HALF, THREE_QUARTERS = WORD_SPAN // 2, 3 * (WORD_SPAN // 4)
ONE_TURN, NO_TURN = [0, HALF], [HALF]  # of coins of 1, 1/2, 1/3: the third fails, or the second

words = st.integers(0, WORD_SPAN - 1) | st.integers(WORD_SPAN - 5000, WORD_SPAN - 1)


def spec_of(mechanism: DiscreteLaplaceMechanism) -> RoundSpec:
    features = tuple(Feature(f"x{i}", 0, 1) for i in range(mechanism.n_features))
    return RoundSpec(features, LatticeEncoding(mechanism.n_features, mechanism.steps), mechanism)


def chances(mechanism: DiscreteLaplaceMechanism, own: int, decay: Fraction) -> dict[int, Fraction]:
    """P(sent of one feature), where r = exp(-1/scale) is given as a fraction: the clamped sum's law."""
    low, high = -mechanism.margin, mechanism.steps + mechanism.margin
    at = {sent: (1 - decay) / (1 + decay) * decay ** abs(sent - own) for sent in range(low + 1, high)}
    return at | {low: decay ** (own - low) / (1 + decay), high: decay ** (high - own) / (1 + decay)}


def played(
    toss: Callable[[ReplayEntropy], bool], n_words: int, prefix: tuple[int, ...]
) -> Iterator[tuple[bool, Fraction]]:
    """Every outcome that at most so many words decide, with its chance, in a space of 12 words."""
    try:
        outcome = toss(ReplayEntropy(prefix))
    except Exhausted:
        for word in range(12) if len(prefix) < n_words else ():
            yield from played(toss, n_words, (*prefix, word))
    else:
        yield outcome, Fraction(1, 12 ** len(prefix))


class TestCost:
    @pytest.mark.parametrize("n_features", [1, 4, 64])
    @pytest.mark.parametrize("steps", [1, 7, 1000, 65536])
    @pytest.mark.parametrize("epsilon_nano", [100_000_000, 123_456_789, NANO, 2 * NANO + 7, 32 * NANO])
    def test_never_exceeds_what_was_asked_and_comes_close(self, n_features: int, steps: int, epsilon_nano: int) -> None:
        mechanism = discrete_laplace.design(n_features, steps, epsilon_nano)
        asked = Fraction(epsilon_nano, NANO)
        assert asked * (1 - Fraction(1, 2**31)) <= discrete_laplace.epsilon(mechanism) <= asked
        assert mechanisms.epsilon_nano(mechanism) == epsilon_nano

    @pytest.mark.parametrize("epsilon", [1, 3, 8])
    @pytest.mark.parametrize("steps", [1, 5])
    def test_no_report_is_likelier_under_one_point_than_the_cost_allows(self, epsilon: int, steps: int) -> None:
        mechanism = replace(discrete_laplace.design(2, steps, epsilon * NANO), margin=3)
        per_unit = 1 / Fraction(mechanism.scale_numerator, mechanism.scale_denominator)
        low, high = exp_bounds(per_unit)
        for decay in (1 / high, 1 / low):  # r lies between
            laws = [chances(mechanism, own, decay) for own in range(steps + 1)]
            assert all(sum(law.values()) == 1 for law in laws)
            largest = max(max(law[sent] for law in laws) / min(law[sent] for law in laws) for sent in laws[0])
            assert largest == decay**-steps  # reached, so that less noise than published would be found out
        # two features together, against e^epsilon by another series
        assert high ** (2 * steps) >= exp_bounds(Fraction(epsilon))[0]
        assert low ** (2 * steps) <= exp_bounds(Fraction(epsilon))[1]

    def test_every_feature_costs_its_part(self) -> None:
        together = discrete_laplace.design(5, 1000, NANO)
        alone = discrete_laplace.design(1, 1000, NANO // 5)
        assert (together.scale_numerator, together.scale_denominator) == (5000, 1)
        assert (alone.scale_numerator, alone.scale_denominator) == (5000, 1)

    def test_noise_that_is_none_has_no_cost_to_speak_of(self) -> None:
        with pytest.raises(InvalidSpec, match="gives the symbol away"):
            mechanisms.epsilon_nano(DiscreteLaplaceMechanism(2, 10, 0, 1, 0))

    def test_more_noise_than_a_report_holds_is_refused(self) -> None:
        assert discrete_laplace.design(64, 1, EPSILON_MIN_NANO).margin <= 2**30
        with pytest.raises(InvalidSpec, match="fewer steps"):
            discrete_laplace.design(64, 1000, EPSILON_MIN_NANO)

    def test_has_no_p_and_q_and_no_fractions_to_enumerate(self) -> None:
        mechanism = discrete_laplace.design(2, 10, NANO)
        for ask in (mechanisms.support, mechanisms.ratio, mechanisms.channel, mechanisms.tally_width):
            with pytest.raises(InvalidSpec):
                ask(mechanism)

    @pytest.mark.parametrize("scale", [0.3, 1, 5, 4000])
    def test_the_variance_is_the_laws(self, scale: float) -> None:
        mechanism = DiscreteLaplaceMechanism(1, 1, round(scale * 10), 10, 1)
        decay = exp(-1 / scale)
        direct = 2 * sum(z * z * (1 - decay) / (1 + decay) * decay**z for z in range(1, int(60 * scale) + 60))
        assert discrete_laplace.variance(mechanism) == pytest.approx(direct, rel=1e-9)
        assert discrete_laplace.variance(replace(mechanism, scale_numerator=0)) == 0


class TestCoins:
    """The coin of exp(-a/b), by playing every sequence of words in a space of few."""

    LONG = (pytest.mark.slow, pytest.mark.ci)

    @pytest.mark.parametrize(
        ("a", "b"), [(0, 3), (1, 3), pytest.param(2, 3, marks=LONG), pytest.param(3, 4, marks=LONG), (1, 1)]
    )
    def test_it_falls_by_the_series_of_the_exponential(self, a: int, b: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(entropy, "WORD_SPAN", 12)  # which 1 to 4 divide: nothing is drawn again
        share = Fraction(a, b)
        ends = [share ** (k - 1) / factorial(k - 1) - share**k / factorial(k) for k in (1, 2, 3, 4)]
        n_words = 7 if b > 1 else 3  # of four coins, each of a/b and, from the second on, of 1/k
        said = {True: Fraction(0), False: Fraction(0)}
        for outcome, chance in played(lambda words: exact_coins.bernoulli_exp(a, b, words), n_words, ()):
            said[outcome] += chance
        assert said == {True: ends[0] + ends[2], False: ends[1] + ends[3]}

    @pytest.mark.parametrize(
        ("drawn", "says"),
        [
            ([HALF], True),  # the first coin fails
            ([0, HALF], False),  # the second: of 1/2, or of its own 1/2
            ([0, 0, HALF], False),
            ([0, 0, 0, HALF], True),  # the third: of 1/2, or of its own 1/3
            ([0, 0, 0, 0, HALF], True),
            ([0, 0, 0, 0, 0, HALF], False),
        ],
    )
    def test_it_says_whether_the_first_to_fail_is_odd(self, drawn: list[int], says: bool) -> None:
        replay = ReplayEntropy(drawn)
        assert exact_coins.bernoulli_exp(1, 2, replay) is says
        assert replay.n_drawn == len(drawn)


class TestPerturb:
    @settings(deadline=None, max_examples=300)
    @given(
        st.data(),
        st.integers(1, 3),
        st.integers(1, 20),
        st.integers(0, 50),
        st.integers(1, 7),
        st.integers(0, 300),
    )
    def test_one_device_and_an_array_of_one_make_the_same_bytes_of_the_same_words(
        self, data: st.DataObject, n_features: int, steps: int, numerator: int, denominator: int, margin: int
    ) -> None:
        mechanism = DiscreteLaplaceMechanism(n_features, steps, numerator, denominator, margin)
        own = tuple(data.draw(st.integers(0, steps)) for _ in range(n_features))
        generator = GeneratorEntropy(data.draw(st.integers(0, 2**32)))
        drawn = [*data.draw(st.lists(words, max_size=20)), *generator.words(2000).tolist()]
        one, many = ReplayEntropy(drawn), ReplayEntropy(drawn)
        value = mechanisms.perturb(mechanism, own, one)
        assert mechanisms.perturb_many(mechanism, np.array([own]), many).tobytes() == value
        assert many.n_drawn == one.n_drawn
        assert mechanisms.is_value(mechanism, value)

    def test_words_are_read_in_the_published_order(self) -> None:
        """U and its coin, the turns' coins, the sign: (3 + 4) / 2 units less."""
        mechanism = DiscreteLaplaceMechanism(1, 10, 4, 2, 40)
        drawn = [THREE_QUARTERS, THREE_QUARTERS, *ONE_TURN, *NO_TURN, HALF]
        value = mechanisms.perturb(mechanism, (5,), ReplayEntropy(drawn))
        assert discrete_laplace.vectors_of(mechanism, np.frombuffer(value, np.uint8)[None]).tolist() == [[5 - 7 // 2]]
        value = mechanisms.perturb(mechanism, (5,), ReplayEntropy([*drawn[:-1], 0]))
        assert discrete_laplace.vectors_of(mechanism, np.frombuffer(value, np.uint8)[None]).tolist() == [[5 + 7 // 2]]

    def test_a_u_whose_coin_falls_is_drawn_again(self) -> None:
        mechanism = DiscreteLaplaceMechanism(1, 10, 4, 2, 40)
        refused = [THREE_QUARTERS, 0, THREE_QUARTERS]  # U = 3; of 3/4 the first coin holds, the second fails
        drawn = ReplayEntropy([*refused, HALF, THREE_QUARTERS, *NO_TURN, 0])
        assert discrete_laplace.noise(mechanism, drawn) == 1
        assert drawn.n_drawn == 7

    def test_minus_zero_is_drawn_again(self) -> None:
        mechanism = DiscreteLaplaceMechanism(1, 10, 4, 2, 40)
        zero = [0, HALF, *NO_TURN]  # U = 0, whose coin of 0 fails at once: kept
        one = [HALF, THREE_QUARTERS, *NO_TURN]  # U = 2: one unit
        drawn = ReplayEntropy([*zero, HALF, *one, 0])
        assert discrete_laplace.noise(mechanism, drawn) == 1
        assert drawn.n_drawn == 8
        assert discrete_laplace.noise(mechanism, ReplayEntropy([*zero, 0])) == 0

    def test_turns_are_counted_until_the_clamp_hides_them(self) -> None:
        mechanism = DiscreteLaplaceMechanism(1, 10, 4, 1, 6)
        drawn = ReplayEntropy([0, HALF, *ONE_TURN * 4, 0])  # 4 turns of 4 units reach 16 from any place
        value = mechanisms.perturb(mechanism, (0,), drawn)
        assert discrete_laplace.vectors_of(mechanism, np.frombuffer(value, np.uint8)[None]).tolist() == [[16]]
        assert drawn.n_drawn == 11

    def test_nothing_added_sends_the_vector(self) -> None:
        mechanism = DiscreteLaplaceMechanism(2, 300, 0, 1, 0)
        own = np.array([[0, 300], [7, 256]])
        values = mechanisms.perturb_many(mechanism, own, ReplayEntropy([]))
        assert discrete_laplace.vectors_of(mechanism, values).tolist() == own.tolist()
        assert mechanisms.perturb(mechanism, (7, 256), ReplayEntropy([])) == values[1].tobytes()

    @pytest.mark.parametrize("own", [(-1, 0), (0, 11), (0,), (0, 0, 0), 3])
    def test_a_vector_out_of_range_is_refused(self, own: tuple[int, ...]) -> None:
        mechanism = discrete_laplace.design(2, 10, NANO)
        with pytest.raises(InvalidSpec):
            mechanisms.perturb(mechanism, own, GeneratorEntropy(0))
        with pytest.raises(InvalidSpec):
            mechanisms.perturb_many(mechanism, np.array([own]), GeneratorEntropy(0))
        with pytest.raises(InvalidSpec):
            mechanisms.perturb(GrrMechanism(4, 2**63), (1, 2), GeneratorEntropy(0))

    def test_nobody_sends_nothing(self) -> None:
        mechanism = discrete_laplace.design(2, 10, NANO)
        values = mechanisms.perturb_many(mechanism, np.zeros((0, 2), np.int64), ReplayEntropy([]))
        assert values.shape == (0, mechanisms.value_bytes(mechanism))


class TestValues:
    def test_are_as_wide_as_the_largest_needs(self) -> None:
        for largest, width in [(1, 1), (255, 1), (256, 2), (65535, 2), (65536, 3), (2**24, 4)]:
            margin = (largest - 1) // 2
            mechanism = DiscreteLaplaceMechanism(3, largest - 2 * margin, 5, 1, margin)
            assert mechanisms.value_bytes(mechanism) == 3 * width
            top = largest.to_bytes(width, "little")
            assert mechanisms.is_value(mechanism, top * 3)
            if largest < 256**width - 1:
                above = (largest + 1).to_bytes(width, "little")
                assert not mechanisms.is_value(mechanism, top * 2 + above)
            assert not mechanisms.is_value(mechanism, top * 3 + b"\0")

    @given(st.integers(1, 3), st.integers(1, 400), st.integers(0, 70_000), st.data())
    def test_one_by_one_and_together_are_told_alike(
        self, n_features: int, steps: int, margin: int, data: st.DataObject
    ) -> None:
        mechanism = DiscreteLaplaceMechanism(n_features, steps, 7, 3, margin)
        width = mechanisms.value_bytes(mechanism)
        values = [data.draw(st.binary(min_size=width, max_size=width)) for _ in range(5)]
        together = np.frombuffer(b"".join(values), np.uint8).reshape(5, width)
        flags = mechanisms.are_values(mechanism, together)
        assert flags.tolist() == [mechanisms.is_value(mechanism, value) for value in values]
        vectors = discrete_laplace.vectors_of(mechanism, together[flags])
        assert vectors.dtype == np.int32
        assert ((vectors >= -margin) & (vectors <= steps + margin)).all()


class TestSpecs:
    def test_a_lattice_and_its_noise_go_together_and_travel(self) -> None:
        spec = spec_of(discrete_laplace.design(3, 1000, NANO))
        assert round_spec_from_wire(to_wire(spec)) == spec
        assert spec.encoding.n_slots == 1
        assert spec.encoding.n_symbols == spec.mechanism.n_symbols == 1001**3

    @pytest.mark.parametrize(
        ("encoding", "mechanism"),
        [
            (LatticeEncoding(2, 3), GrrMechanism(16, 2**63)),
            (GridEncoding((4, 4)), DiscreteLaplaceMechanism(2, 3, 1, 1, 16)),
            (LatticeEncoding(2, 3), DiscreteLaplaceMechanism(2, 4, 1, 1, 16)),
            (LatticeEncoding(2, 3), DiscreteLaplaceMechanism(1, 15, 1, 1, 16)),
        ],
    )
    def test_nothing_else_goes_together(self, encoding: object, mechanism: object) -> None:
        with pytest.raises(InvalidSpec, match="go together"):
            RoundSpec(XY, encoding, mechanism)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "parts",
        [
            (0, 10, 1, 1, 0),
            (65, 10, 1, 1, 0),
            (2, 0, 1, 1, 0),
            (2, 1 << 17, 1, 1, 0),
            (2, 10, -1, 1, 0),
            (2, 10, 1, 0, 0),
            (2, 10, (1 << 32) + 1, 1 << 32, 0),
            (2, 10, 1 << 27, 1, 0),
            (2, 10, 1, 1, -1),
            (2, 10, 1, 1, (1 << 30) + 1),
            (2, 10, 1.5, 1, 0),
            (2, True, 1, 1, 0),
        ],
    )
    def test_impossible_parts_are_refused(self, parts: tuple[int, ...]) -> None:
        with pytest.raises(InvalidSpec):
            DiscreteLaplaceMechanism(*parts)

    @pytest.mark.parametrize("parts", [(0, 10), (65, 10), (2, 0), (2, (1 << 16) + 1), (2, 2.0)])
    def test_impossible_lattices_are_refused(self, parts: tuple[int, int]) -> None:
        with pytest.raises(InvalidSpec):
            LatticeEncoding(*parts)

    def test_the_mechanism_is_designed_for_the_encoding(self) -> None:
        lattice = LatticeEncoding(2, 100)
        for kind in ("auto", "discrete_laplace"):
            assert mechanisms.design_for(lattice, kind, NANO) == discrete_laplace.design(2, 100, NANO)
        grid = GridEncoding((3, 3))
        assert mechanisms.design_for(grid, "oue", NANO) == mechanisms.design("oue", 9, NANO)
        for encoding, kind in ((lattice, "grr"), (grid, "discrete_laplace")):
            with pytest.raises(InvalidSpec, match="nothing else does"):
                mechanisms.design_for(encoding, kind, NANO)


class TestLattice:
    @given(st.integers(1, 65536), st.lists(st.floats(0, 1), min_size=1, max_size=6))
    def test_a_coordinate_goes_to_the_nearest_place(self, steps: int, point: list[float]) -> None:
        encoding = LatticeEncoding(len(point), steps)
        vector = symbol(encoding, point, 0)
        assert isinstance(vector, tuple)
        for coordinate, place in zip(point, vector, strict=True):
            assert 0 <= place <= steps
            assert abs(Fraction(coordinate) * steps - place) <= Fraction(1, 2) + Fraction(1, 10**9)
        assert symbols(encoding, np.array([point]), np.zeros(1, np.int64)).tolist() == [list(vector)]

    def test_records_become_reports_in_bulk(self) -> None:
        spec = spec_of(discrete_laplace.design(2, 1000, 32 * NANO))
        half = replace(spec, draw=Draw(0, 2**63))
        reports = perturb_records(half, np.tile([0.25, 0.75], (4000, 1)), GeneratorEntropy(1))
        assert 1800 < len(reports.slots) < 2200
        assert not reports.slots.any()
        vectors = discrete_laplace.vectors_of(spec.mechanism, reports.values)  # type: ignore[arg-type]
        assert np.abs(vectors.mean(axis=0) - [250, 750]).max() < 12  # the noise's scale is 62.5


class TestADevice:
    def test_answers_a_round_of_vectors_and_charges_what_it_costs(self) -> None:
        spec = RoundSpec(FEATURES, LatticeEncoding(2, 1000), discrete_laplace.design(2, 1000, NANO))
        service = ScriptedService(open_round(spec=spec))
        device = service.device(cap=1.5)
        assert device.report(RECORD).outcome == "sent"
        assert device.report(RECORD).outcome == "already_answered"
        assert device.spent == 1
        (report,) = service.stored["rnd_1"]
        assert report["slot"] == 0
        assert mechanisms.is_value(spec.mechanism, base64.b64decode(report["value"]))

    def test_refuses_noise_that_is_none_whatever_the_service_says_it_costs(self) -> None:
        bare = RoundSpec(FEATURES, LatticeEncoding(2, 10), DiscreteLaplaceMechanism(2, 10, 0, 1, 0))
        service = ScriptedService(open_round(spec=bare, epsilon=1.0))
        with pytest.raises(InvalidSpec):
            service.device(cap=2).report(RECORD)
        assert service.sent == []

    def test_refuses_less_noise_than_its_owner_allows(self) -> None:
        spec = RoundSpec(FEATURES, LatticeEncoding(2, 1000), discrete_laplace.design(2, 1000, 3 * NANO))
        with pytest.raises(CapExceeded):
            ScriptedService(open_round(spec=spec)).device(cap=2).report(RECORD)
