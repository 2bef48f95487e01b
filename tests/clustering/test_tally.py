"""Counting reports, against plain loops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustering.errors import TallyMalformed, UnfitRound
from clustering.plan import MAX_COUNTERS, Collected, Tally
from clustering.simulate import SeededEntropy
from clustering.tally import check_packed, count, count_candidates, count_into
from sfumato.entropy import below_many
from sfumato.errors import ReportMalformed
from sfumato.mechanisms import design, design_for, is_value, olh, perturb_many, value_bytes
from sfumato.specs import Feature, GridEncoding, LatticeEncoding, RoundSpec, ShiftedGridEncoding
from tests import naive

X = (Feature("x", 0, 1),)
KINDS = ["ss", "grr", "oue", "olh", "hr"]


def a_round(kind, cells=5, shifts=3, epsilon_nano=10**9):
    encoding = ShiftedGridEncoding(1, cells, shifts)
    return RoundSpec(X, encoding, design(kind, encoding.n_symbols, epsilon_nano))


def reports_of(spec, n, seed):
    entropy = SeededEntropy(seed)
    held = below_many(entropy, spec.encoding.n_symbols, n)
    return below_many(entropy, spec.encoding.n_slots, n), perturb_many(spec.mechanism, held, entropy)


class TestCount:
    @settings(max_examples=60, deadline=None)
    @given(
        kind=st.sampled_from(KINDS),
        cells=st.integers(1, 40),
        shifts=st.integers(1, 4),
        n=st.integers(0, 40),
        seed=st.integers(0, 2**32),
    )
    def test_is_what_plain_loops_count(self, kind, cells, shifts, n, seed):
        spec = a_round(kind, cells, shifts)
        slots, values = reports_of(spec, n, seed)
        counts, reports = naive.count(spec.mechanism, spec.encoding.n_slots, slots, values)
        tally = count(spec, slots, values)
        assert tally.counts.tolist() == counts
        assert tally.reports.tolist() == reports

    @pytest.mark.parametrize("n_symbols", [300, 70_000])
    def test_reads_symbols_of_two_and_three_bytes(self, n_symbols):
        encoding = GridEncoding((n_symbols,))
        spec = RoundSpec(X, encoding, design("grr", n_symbols, 10**9))
        named = np.array([0, 255, 256, n_symbols - 1])
        width = value_bytes(spec.mechanism)
        values = np.array([list(int(i).to_bytes(width, "little")) for i in named], dtype=np.uint8)
        tally = count(spec, np.zeros(4, dtype=np.int64), values)
        assert np.flatnonzero(tally.counts[0]).tolist() == named.tolist()

    @pytest.mark.parametrize("kind", KINDS)
    def test_parts_counted_apart_add_up(self, kind):
        spec = a_round(kind)
        slots, values = reports_of(spec, 100, 1)
        into = Tally.empty(spec)
        count_into(into, spec, slots[:30], values[:30])
        count_into(into, spec, slots[30:], values[30:])
        assert (
            into
            == count(spec, slots, values)
            == count(spec, slots[:7], values[:7]) + count(spec, slots[7:], values[7:])
        )

    @pytest.mark.parametrize("kind", ["ss", "oue"])
    @pytest.mark.parametrize("cells", [20, 63, 64, 127, 130])  # one word of symbols, two, three; full ones and not
    def test_of_more_reports_than_a_byte_counts_is_the_same(self, kind, cells):
        spec = a_round(kind, cells=cells)
        slots, values = reports_of(spec, 1500, 3)
        slots[:700] = 1
        counts, reports = naive.count(spec.mechanism, spec.encoding.n_slots, slots, values)
        tally = count(spec, slots, values)
        assert tally.counts.tolist() == counts
        assert tally.reports.tolist() == reports

    @pytest.mark.parametrize("n", [14, 15, 254, 255, 256, 525])
    def test_of_a_symbol_that_all_name_is_how_many_they_are(self, n):
        spec = a_round("oue", cells=69, shifts=1)
        values = np.packbits(np.ones((n, spec.encoding.n_symbols), dtype=np.uint8), axis=1, bitorder="little")
        tally = count(spec, np.zeros(n, dtype=np.int64), values)
        assert (tally.counts == n).all()
        assert tally.n_reports == n


class TestCheck:
    @settings(max_examples=80, deadline=None)
    @given(
        kind=st.sampled_from([*KINDS, "discrete_laplace"]),
        cells=st.integers(2, 80),
        n_before=st.sampled_from([4, 16]),
        seed=st.integers(0, 2**32),
    )
    def test_says_what_one_report_at_a_time_is_told(self, kind, cells, n_before, seed):
        rng = np.random.default_rng(seed)
        if kind == "discrete_laplace":
            spec = RoundSpec(X, LatticeEncoding(1, cells), design_for(LatticeEncoding(1, cells), kind, 10**9))
            slots, values = np.zeros(40, dtype=np.int64), rng.integers(0, 256, (40, value_bytes(spec.mechanism)))
        else:
            spec = a_round(kind, cells)
            slots, values = reports_of(spec, 40, seed)
        slots = slots + (rng.random(40) < 0.2) * rng.integers(0, 2**32 - 3, 40)
        flipped = rng.random(values.shape) < 0.5 / values.shape[1]  # a byte of every other report is another
        values = np.where(flipped, rng.integers(0, 256, values.shape), values).astype(np.uint8)
        head = rng.integers(0, 256, (40, n_before), dtype=np.uint8)
        records = np.concatenate([head, slots.astype("<u4").view(np.uint8).reshape(40, 4), values], axis=1)
        expected = [
            slot < spec.encoding.n_slots and is_value(spec.mechanism, value.tobytes())
            for slot, value in zip(slots, values, strict=True)
        ]
        assert (check_packed(spec, records) == 0).tolist() == expected

    def test_takes_no_records_of_which_it_would_load_what_is_not_theirs(self):
        spec = a_round("grr")
        with pytest.raises(ValueError, match="before the slot"):
            check_packed(spec, np.zeros((1, 7 + value_bytes(spec.mechanism)), dtype=np.uint8))


class TestMalformed:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("slot", [-1, 3, 2**40])
    def test_a_slot_out_of_range_names_the_report(self, kind, slot):
        spec = a_round(kind)
        slots, values = reports_of(spec, 10, 2)
        slots[7] = slot
        with pytest.raises(ReportMalformed) as caught:
            count(spec, slots, values)
        assert caught.value.index == 7

    @pytest.mark.parametrize(
        ("kind", "byte", "bad"), [("grr", 0, 6), ("hr", 0, 16), ("olh", 12, 4), ("olh", 3, 128), ("olh", 11, 255)]
    )
    def test_a_symbol_out_of_range_names_the_report(self, kind, byte, bad):
        spec = a_round(kind)
        slots, values = reports_of(spec, 10, 2)
        values[4, byte] = bad
        with pytest.raises(ReportMalformed) as caught:
            count(spec, slots, values)
        assert caught.value.index == 4

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
    def test_arrays_that_do_not_fit_are_refused(self, slots, values):
        with pytest.raises(ReportMalformed):
            count(a_round("grr"), slots, values)


class TestTheWidth:
    def test_of_a_tally_is_two_counters_a_coefficient_under_hadamard_response(self):
        spec = a_round("hr", cells=7, shifts=2)  # 8 symbols, 16 coefficients
        tally = count(spec, *reports_of(spec, 50, 3))
        assert tally.counts.shape == (2, 32)
        assert tally.counts.sum(axis=1).tolist() == tally.reports.tolist()
        assert Tally.from_bytes(tally.to_bytes()) == Collected(spec, tally).tally
        with pytest.raises(TallyMalformed):
            Collected(a_round("olh", cells=7, shifts=2), tally)

    def test_is_what_a_round_of_many_symbols_is_refused_by(self):
        encoding = ShiftedGridEncoding(2, 511, 8)  # 2^18 symbols, 64 slots
        fits = RoundSpec((*X, Feature("y", 0, 1)), encoding, design("grr", encoding.n_symbols, 10**9))
        assert Tally.empty(fits).counts.size <= MAX_COUNTERS
        with pytest.raises(UnfitRound):
            Tally.empty(RoundSpec(fits.features, encoding, design("hr", encoding.n_symbols, 10**9)))


class TestCandidates:
    @settings(max_examples=40, deadline=None)
    @given(
        candidates=st.lists(st.integers(0, 29), min_size=1, max_size=8),
        shifts=st.integers(1, 3),
        n=st.integers(0, 40),
        seed=st.integers(0, 2**32),
    )
    def test_have_the_counts_they_have_among_all(self, candidates, shifts, n, seed):
        spec = a_round("olh", 29, shifts)
        slots, values = reports_of(spec, n, seed)
        some, every = count_candidates(spec, slots, values, np.array(candidates)), count(spec, slots, values)
        assert some.counts.tolist() == every.counts[:, candidates].tolist()
        assert some.reports.tolist() == every.reports.tolist()

    def test_of_a_million_symbols_are_counted_where_all_cannot_be(self):
        encoding = GridEncoding((1 << 10, 1 << 10))
        mechanism = design("olh", encoding.n_symbols, 4 * 10**9, n_candidates=2)
        spec = RoundSpec((*X, Feature("y", 0, 1)), encoding, mechanism)
        values = perturb_many(mechanism, np.full(4000, encoding.n_symbols - 1), SeededEntropy(1))
        slots = np.zeros(4000, dtype=np.int64)
        tally = count_candidates(spec, slots, values, np.array([encoding.n_symbols - 1, 0]))
        supported = [_supports(mechanism, value, encoding.n_symbols - 1) for value in values]
        assert tally.counts[0, 0] == sum(supported)
        assert 1800 < tally.counts[0, 0] < 2200
        assert tally.counts[0, 1] < 200
        with pytest.raises(UnfitRound):
            count(spec, slots, values)

    @pytest.mark.parametrize("candidates", [[], [-1], [6], [0, 2**40]])
    def test_are_symbols_of_the_round(self, candidates):
        spec = a_round("olh")
        with pytest.raises(UnfitRound):
            count_candidates(spec, *reports_of(spec, 5, 1), np.array(candidates, dtype=np.int64))

    def test_are_a_matter_of_hashing(self):
        spec = a_round("ss")
        with pytest.raises(UnfitRound):
            count_candidates(spec, *reports_of(spec, 5, 1), np.array([0]))

    def test_are_not_too_many(self, monkeypatch):
        monkeypatch.setattr("clustering.tally.MAX_COUNTERS", 11)
        spec = a_round("olh", shifts=3)
        with pytest.raises(UnfitRound):
            count_candidates(spec, *reports_of(spec, 5, 1), np.array([0, 1, 2, 3]))

    def test_of_a_malformed_report_are_not_counted(self):
        spec = a_round("olh")
        slots, values = reports_of(spec, 10, 2)
        values[4, 12] = 200
        with pytest.raises(ReportMalformed) as caught:
            count_candidates(spec, slots, values, np.array([0]))
        assert caught.value.index == 4


def _supports(mechanism, value, symbol):
    seed = [int.from_bytes(bytes(value[at : at + 4]), "little") for at in (0, 4, 8)]
    return olh.hashed(mechanism, seed, symbol) == value[12]
