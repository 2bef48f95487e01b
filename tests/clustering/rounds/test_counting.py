"""Test the counting of reports against plain loops, and the refusal of malformed reports."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustering.errors import TallyMalformed, UnfitRound
from clustering.rounds import counting as module
from clustering.rounds.counting import RoundAggregator, check_packed, count, count_into
from clustering.rounds.plan import Collected
from clustering.rounds.tally import MAX_COUNTERS, Sample, Tally
from clustering.simulate import SeededEntropy, collect
from sfumato.errors import InvalidSpec, ReportMalformed
from sfumato.mechanisms import design
from sfumato.mechanisms.olh import MAX_COUNTED
from sfumato.privacy.entropy import below_many
from sfumato.specs import (
    DiscreteLaplaceMechanism,
    GridEncoding,
    LatticeEncoding,
    OlhMechanism,
    Participation,
    RoundSpec,
    ShiftedGridEncoding,
    design_for,
)
from tests import naive
from tests.clustering.local_plans import features

X = features(1)
KINDS = ["ss", "grr", "oue", "olh", "hr"]
LATTICE = RoundSpec(features(2), LatticeEncoding(2, 10), DiscreteLaplaceMechanism.design(2, 10, 10**9))


def shifted_round(kind, cells=5, shifts=3):
    encoding = ShiftedGridEncoding(1, cells, shifts)
    return RoundSpec(X, encoding, design(kind, encoding.n_symbols, 10**9))


def reports_of(spec, n, seed):
    entropy = SeededEntropy(seed)
    true_symbols = below_many(entropy, spec.encoding.n_symbols, n)
    return below_many(entropy, spec.encoding.n_slots, n), spec.mechanism.perturb_many(true_symbols, entropy)


def vector_reports(n):
    vectors = np.arange(n * 2).reshape(n, 2) % 11
    return np.zeros(n, dtype=np.int64), LATTICE.mechanism.perturb_many(vectors, SeededEntropy(0))


def assert_counts_equal_plain_loops(spec, slots, values):
    counts, reports = naive.count(spec.mechanism, spec.encoding.n_slots, slots, values)
    tally = count(spec, slots, values)
    assert tally.counts.tolist() == counts
    assert tally.reports.tolist() == reports


class TestCount:
    @settings(max_examples=50, deadline=None)
    @given(
        kind=st.sampled_from(KINDS),
        cells=st.integers(1, 40),
        shifts=st.integers(1, 4),
        n=st.integers(0, 40),
        seed=st.integers(0, 2**32),
    )
    def test_equals_plain_loops(self, kind, cells, shifts, n, seed):
        spec = shifted_round(kind, cells, shifts)
        assert_counts_equal_plain_loops(spec, *reports_of(spec, n, seed))

    @pytest.mark.parametrize("kind", ["ss", "oue"])
    @pytest.mark.parametrize("cells", [20, 63, 64, 127, 130])  # one to three words of symbols, full or not
    def test_carries_counts_above_one_byte(self, kind, cells):
        spec = shifted_round(kind, cells=cells)
        slots, values = reports_of(spec, 1000, 3)
        slots[:500] = 1
        assert_counts_equal_plain_loops(spec, slots, values)

    @pytest.mark.parametrize("n", [14, 15, 254, 255, 256, 525])
    def test_of_a_symbol_in_all_reports_is_their_number(self, n):
        spec = shifted_round("oue", cells=69, shifts=1)
        values = np.packbits(np.ones((n, spec.encoding.n_symbols), dtype=np.uint8), axis=1, bitorder="little")
        tally = count(spec, np.zeros(n, dtype=np.int64), values)
        assert (tally.counts == n).all()
        assert tally.n_reports == n

    @pytest.mark.parametrize("n_symbols", [300, 70_000])
    def test_reads_symbols_of_two_and_three_bytes(self, n_symbols):
        spec = RoundSpec(X, GridEncoding((n_symbols,)), design("grr", n_symbols, 10**9))
        symbols = np.array([0, 255, 256, n_symbols - 1])
        width = spec.mechanism.value_bytes
        values = np.array([list(int(i).to_bytes(width, "little")) for i in symbols], dtype=np.uint8)
        tally = count(spec, np.zeros(4, dtype=np.int64), values)
        assert np.flatnonzero(tally.counts[0]).tolist() == symbols.tolist()

    @pytest.mark.parametrize("kind", KINDS)
    def test_of_parts_add_up(self, kind):
        spec = shifted_round(kind)
        slots, values = reports_of(spec, 100, 1)
        into, aggregator = Tally.empty(spec), RoundAggregator(spec)
        for part in (slice(0, 30), slice(30, None)):
            count_into(into, spec, slots[part], values[part])
            aggregator.add(slots[part], values[part])
        assert into == aggregator.result() == count(spec, slots, values)
        assert into == count(spec, slots[:7], values[:7]) + count(spec, slots[7:], values[7:])


class TestCheck:
    @settings(max_examples=50, deadline=None)
    @given(
        kind=st.sampled_from([*KINDS, "discrete_laplace"]),
        cells=st.integers(2, 80),
        n_before=st.sampled_from([4, 16]),
        seed=st.integers(0, 2**32),
    )
    def test_equals_the_check_of_single_reports(self, kind, cells, n_before, seed):
        rng = np.random.default_rng(seed)
        if kind == "discrete_laplace":
            spec = RoundSpec(X, LatticeEncoding(1, cells), design_for(LatticeEncoding(1, cells), kind, 10**9))
            slots, values = np.zeros(40, dtype=np.int64), rng.integers(0, 256, (40, spec.mechanism.value_bytes))
        else:
            spec = shifted_round(kind, cells)
            slots, values = reports_of(spec, 40, seed)
        slots = slots + (rng.random(40) < 0.2) * rng.integers(0, 2**32 - 3, 40)
        changed = rng.random(values.shape) < 0.5 / values.shape[1]  # one byte in half of the reports
        values = np.where(changed, rng.integers(0, 256, values.shape), values).astype(np.uint8)
        head = rng.integers(0, 256, (40, n_before), dtype=np.uint8)
        records = np.concatenate([head, slots.astype("<u4").view(np.uint8).reshape(40, 4), values], axis=1)
        expected = [
            slot < spec.encoding.n_slots and spec.mechanism.is_value(value.tobytes())
            for slot, value in zip(slots, values, strict=True)
        ]
        assert (check_packed(spec, records) == 0).tolist() == expected

    def test_refuses_records_without_room_before_the_slot(self):
        spec = shifted_round("grr")
        with pytest.raises(ValueError, match="before its slot"):
            check_packed(spec, np.zeros((1, 7 + spec.mechanism.value_bytes), dtype=np.uint8))


class TestMalformed:
    @pytest.mark.parametrize(
        ("kind", "slot", "byte", "symbol"),
        [
            *((kind, slot, None, None) for kind in KINDS for slot in (-1, 3, 2**40)),
            ("grr", None, 0, 6),
            ("hr", None, 0, 16),
            ("olh", None, 12, 4),
            ("olh", None, 3, 128),
            ("olh", None, 11, 255),
        ],
    )
    def test_the_error_has_the_index_of_the_report(self, kind, slot, byte, symbol):
        spec = shifted_round(kind)
        slots, values = reports_of(spec, 10, 2)
        if slot is None:
            values[7, byte] = symbol
        else:
            slots[7] = slot
        with pytest.raises(ReportMalformed) as caught:
            count(spec, slots, values)
        assert caught.value.index == 7

    @pytest.mark.parametrize("part", ["slot", "value"])
    def test_the_error_of_a_vector_has_its_index(self, part):
        slots, values = vector_reports(5)
        if part == "slot":
            slots[3] = 1
        else:
            values[3] = 255
        with pytest.raises(ReportMalformed) as caught:
            RoundAggregator(LATTICE).add(slots, values)
        assert caught.value.index == 3

    @pytest.mark.parametrize(
        ("slots", "values"),
        [
            (np.zeros(3, dtype=np.int64), np.zeros((2, 1), dtype=np.uint8)),
            (np.zeros(2, dtype=np.int64), np.zeros((2, 2), dtype=np.uint8)),
            (np.zeros((2, 1), dtype=np.int64), np.zeros((2, 1), dtype=np.uint8)),
            (np.zeros(2, dtype=np.int32), np.zeros((2, 1), dtype=np.uint8)),
            (np.zeros(2, dtype=np.int64), np.zeros((2, 1), dtype=np.int8)),
        ],
    )
    def test_arrays_of_other_shapes_or_types_are_refused(self, slots, values):
        with pytest.raises(ReportMalformed):
            count(shifted_round("grr"), slots, values)
        with pytest.raises(ReportMalformed):
            RoundAggregator(LATTICE).add(slots, values)


class TestTallyWidth:
    def test_is_two_counters_per_coefficient_under_hadamard_response(self):
        spec = shifted_round("hr", cells=7, shifts=2)  # 8 symbols, 16 coefficients
        tally = count(spec, *reports_of(spec, 50, 3))
        assert tally.counts.shape == (2, 32)
        assert tally.counts.sum(axis=1).tolist() == tally.reports.tolist()
        assert Tally.from_bytes(tally.to_bytes()) == Collected(spec, tally).tally
        with pytest.raises(TallyMalformed):
            Collected(shifted_round("olh", cells=7, shifts=2), tally)

    def test_is_limited(self):
        encoding = ShiftedGridEncoding(2, 511, 8)  # 2^18 symbols, 64 slots
        fits = RoundSpec(features(2), encoding, design("grr", encoding.n_symbols, 10**9))
        assert Tally.empty(fits).counts.size <= MAX_COUNTERS
        with pytest.raises(UnfitRound):
            Tally.empty(RoundSpec(fits.features, encoding, design("hr", encoding.n_symbols, 10**9)))


class TestManyHashedSymbols:
    def test_are_refused(self):
        mechanism = OlhMechanism(MAX_COUNTED + 1, 4, 2**63)
        spec = RoundSpec(features(1), GridEncoding((MAX_COUNTED + 1,)), mechanism)
        with pytest.raises(UnfitRound, match="at most 4097"):
            count(spec, np.zeros(1, dtype=np.int64), np.zeros((1, 13), dtype=np.uint8))


class TestVectors:
    def test_of_parts_become_one_sample(self):
        slots, values = vector_reports(1000)
        aggregator = RoundAggregator(LATTICE)
        for begin in range(0, 1000, 77):
            aggregator.add(slots[begin : begin + 77], values[begin : begin + 77])
        assert aggregator.result() == Sample(LATTICE.mechanism.vectors_of(values))
        assert RoundAggregator(LATTICE).result() == Sample.empty(LATTICE)
        with pytest.raises(InvalidSpec, match="stored and not counted"):
            count(LATTICE, slots, values)

    @pytest.mark.parametrize("at_once", [1, 7, 25])
    def test_beyond_the_limit_are_checked_and_left_out(self, monkeypatch, at_once):
        monkeypatch.setattr(module, "MAX_SAMPLE_VALUES", 21)  # ten reports of two features
        slots, values = vector_reports(25)
        aggregator = RoundAggregator(LATTICE)
        for begin in range(0, 25, at_once):
            aggregator.add(slots[begin : begin + at_once], values[begin : begin + at_once])
        assert aggregator.result() == Sample(LATTICE.mechanism.vectors_of(values[:10]))
        assert aggregator.n_left_out == 15
        values[24] = 255
        with pytest.raises(ReportMalformed):
            RoundAggregator(LATTICE).add(slots, values)

    def test_of_participating_devices_are_collected(self):
        spec = RoundSpec(LATTICE.features, LATTICE.encoding, LATTICE.mechanism, Participation(0, 2**62))
        entropy = SeededEntropy(3)
        sample = collect(spec, np.full((4000, 2), 0.3), entropy, entropy.words(4000)).sample
        assert 800 < sample.n_reports < 1200
        assert abs(sample.values.mean() - 3) < 2  # the noise has a scale of 20
