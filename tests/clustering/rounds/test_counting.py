"""Test the counting of reports against plain loops, and the refusal of malformed reports."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustering.errors import TallyMalformed, UnfitRound
from clustering.rounds import counting as module
from clustering.rounds.counting import RoundAggregator, check_packed, count, count_candidates, count_into
from clustering.rounds.plan import Collected
from clustering.rounds.tally import MAX_COUNTERS, Sample, Tally
from clustering.simulate import SeededEntropy, collect
from sfumato.errors import InvalidSpec, ReportMalformed
from sfumato.mechanisms import design, design_for, discrete_laplace, is_value, olh, perturb_many, value_bytes
from sfumato.privacy.entropy import below_many
from sfumato.specs import GridEncoding, LatticeEncoding, Participation, RoundSpec, ShiftedGridEncoding
from tests import naive
from tests.clustering.local_plans import features

X = features(1)
KINDS = ["ss", "grr", "oue", "olh", "hr"]
LATTICE = RoundSpec(features(2), LatticeEncoding(2, 10), discrete_laplace.design(2, 10, 10**9))


def shifted_round(kind, cells=5, shifts=3):
    encoding = ShiftedGridEncoding(1, cells, shifts)
    return RoundSpec(X, encoding, design(kind, encoding.n_symbols, 10**9))


def reports_of(spec, n, seed):
    entropy = SeededEntropy(seed)
    true_symbols = below_many(entropy, spec.encoding.n_symbols, n)
    return below_many(entropy, spec.encoding.n_slots, n), perturb_many(spec.mechanism, true_symbols, entropy)


def vector_reports(n):
    vectors = np.arange(n * 2).reshape(n, 2) % 11
    return np.zeros(n, dtype=np.int64), perturb_many(LATTICE.mechanism, vectors, SeededEntropy(0))


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
        width = value_bytes(spec.mechanism)
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
            slots, values = np.zeros(40, dtype=np.int64), rng.integers(0, 256, (40, value_bytes(spec.mechanism)))
        else:
            spec = shifted_round(kind, cells)
            slots, values = reports_of(spec, 40, seed)
        slots = slots + (rng.random(40) < 0.2) * rng.integers(0, 2**32 - 3, 40)
        changed = rng.random(values.shape) < 0.5 / values.shape[1]  # one byte in half of the reports
        values = np.where(changed, rng.integers(0, 256, values.shape), values).astype(np.uint8)
        head = rng.integers(0, 256, (40, n_before), dtype=np.uint8)
        records = np.concatenate([head, slots.astype("<u4").view(np.uint8).reshape(40, 4), values], axis=1)
        expected = [
            slot < spec.encoding.n_slots and is_value(spec.mechanism, value.tobytes())
            for slot, value in zip(slots, values, strict=True)
        ]
        assert (check_packed(spec, records) == 0).tolist() == expected

    def test_refuses_records_without_room_before_the_slot(self):
        spec = shifted_round("grr")
        with pytest.raises(ValueError, match="before its slot"):
            check_packed(spec, np.zeros((1, 7 + value_bytes(spec.mechanism)), dtype=np.uint8))


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
        if kind == "olh":
            with pytest.raises(ReportMalformed) as caught:
                count_candidates(spec, slots, values, np.array([0]))
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


class TestCandidates:
    @settings(max_examples=30, deadline=None)
    @given(
        candidates=st.lists(st.integers(0, 29), min_size=1, max_size=8),
        shifts=st.integers(1, 3),
        n=st.integers(0, 40),
        seed=st.integers(0, 2**32),
    )
    def test_have_the_counts_of_all_symbols(self, candidates, shifts, n, seed):
        spec = shifted_round("olh", 29, shifts)
        slots, values = reports_of(spec, n, seed)
        some, every = count_candidates(spec, slots, values, np.array(candidates)), count(spec, slots, values)
        assert some.counts.tolist() == every.counts[:, candidates].tolist()
        assert some.reports.tolist() == every.reports.tolist()

    def test_may_be_few_of_a_million_symbols(self):
        encoding = GridEncoding((1 << 10, 1 << 10))
        mechanism = design("olh", encoding.n_symbols, 4 * 10**9, n_candidates=2)
        spec = RoundSpec(features(2), encoding, mechanism)
        last = encoding.n_symbols - 1
        values = perturb_many(mechanism, np.full(4000, last), SeededEntropy(1))
        slots = np.zeros(4000, dtype=np.int64)
        tally = count_candidates(spec, slots, values, np.array([last, 0]))
        seeds = [[int.from_bytes(bytes(value[at : at + 4]), "little") for at in (0, 4, 8)] for value in values]
        hashes = [olh.hashed(mechanism, seed, last) for seed in seeds]
        assert tally.counts[0, 0] == sum(found == value[12] for found, value in zip(hashes, values, strict=True))
        assert 1800 < tally.counts[0, 0] < 2200
        assert tally.counts[0, 1] < 200
        with pytest.raises(UnfitRound):
            count(spec, slots, values)

    @pytest.mark.parametrize(
        ("kind", "candidates"),
        [("olh", []), ("olh", [-1]), ("olh", [6]), ("olh", [0, 2**40]), ("ss", [0]), ("olh", [0, 1, 2, 3])],
    )
    def test_are_refused_unless_few_symbols_of_a_hashing_round(self, kind, candidates, monkeypatch):
        monkeypatch.setattr(module, "MAX_COUNTERS", 11)  # three candidates in three slots fit
        spec = shifted_round(kind, shifts=3)
        with pytest.raises(UnfitRound):
            count_candidates(spec, *reports_of(spec, 5, 1), np.array(candidates, dtype=np.int64))


class TestVectors:
    def test_of_parts_become_one_sample(self):
        slots, values = vector_reports(1000)
        aggregator = RoundAggregator(LATTICE)
        for begin in range(0, 1000, 77):
            aggregator.add(slots[begin : begin + 77], values[begin : begin + 77])
        assert aggregator.result() == Sample(discrete_laplace.vectors_of(LATTICE.mechanism, values))
        assert RoundAggregator(LATTICE).result() == Sample.empty(LATTICE)
        with pytest.raises(InvalidSpec, match="kept, not counted"):
            count(LATTICE, slots, values)

    @pytest.mark.parametrize("at_once", [1, 7, 25])
    def test_beyond_the_limit_are_checked_and_left_out(self, monkeypatch, at_once):
        monkeypatch.setattr(module, "MAX_SAMPLE_VALUES", 21)  # ten reports of two features
        slots, values = vector_reports(25)
        aggregator = RoundAggregator(LATTICE)
        for begin in range(0, 25, at_once):
            aggregator.add(slots[begin : begin + at_once], values[begin : begin + at_once])
        assert aggregator.result() == Sample(discrete_laplace.vectors_of(LATTICE.mechanism, values[:10]))
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
