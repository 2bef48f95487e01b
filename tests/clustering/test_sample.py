"""Samples of vectors: their order, their bytes, and how reports become one."""

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustering import plan
from clustering import tally as tallies
from clustering.errors import TallyMalformed, UnfitRound
from clustering.plan import Collected, Sample, Tally, read_answers
from clustering.simulate import SeededEntropy, collect
from clustering.tally import Counting, count
from sfumato.errors import InvalidSpec, ReportMalformed
from sfumato.mechanisms import design, discrete_laplace, perturb_many
from sfumato.specs import MAX_SAMPLE_VALUES, Draw, Feature, GridEncoding, LatticeEncoding, RoundSpec

XY = (Feature("x", 0, 1), Feature("y", 0, 1))
LATTICE = RoundSpec(XY, LatticeEncoding(2, 10), discrete_laplace.design(2, 10, 10**9))
GRID = RoundSpec(XY, GridEncoding((2, 2)), design("grr", 4, 10**9))


def of(rows):
    return Sample(np.array(rows, dtype=np.int32).reshape(-1, 2))


def reports(n, seed=0, spec=LATTICE):
    vectors = np.arange(n * 2).reshape(n, 2) % 11
    return np.zeros(n, dtype=np.int64), perturb_many(spec.mechanism, vectors, SeededEntropy(seed))


rows = st.lists(st.tuples(st.integers(-3, 3), st.integers(-(2**31), 2**31 - 1)), max_size=20)


class TestOrder:
    @given(rows, st.randoms())
    def test_the_order_of_arrival_does_not_show(self, given_rows, random):
        shuffled = list(given_rows)
        random.shuffle(shuffled)
        assert of(given_rows) == of(shuffled)
        assert of(given_rows).to_bytes() == of(shuffled).to_bytes()
        assert [tuple(row) for row in of(given_rows).values.tolist()] == sorted(given_rows)

    @given(rows, rows, rows)
    def test_parts_add_up_in_any_order_and_grouping(self, a, b, c):
        assert (of(a) + of(b)) + of(c) == of(a) + (of(c) + of(b)) == of(a + b + c)
        assert (of(a) + of(b)).n_reports == len(a) + len(b)
        assert of(a) + Sample.empty(LATTICE) == of(a)

    def test_equal_means_the_same_rows(self):
        assert of([(1, 2)]) != of([(1, 3)])
        assert of([(1, 2)]) != of([(1, 2), (1, 2)])
        assert of([(1, 2)]) != "a sample"
        with pytest.raises(TypeError, match="unhashable"):
            hash(of([]))

    def test_refuses_what_is_of_another_round(self):
        with pytest.raises(TallyMalformed, match="different rounds"):
            of([(1, 2)]) + Sample(np.zeros((1, 3), dtype=np.int32))
        with pytest.raises(TypeError):
            of([(1, 2)]) + Tally.empty(GRID)

    @pytest.mark.parametrize(
        "values",
        [np.zeros((2, 2)), np.zeros((2, 2), dtype=np.int64), np.zeros(4, np.int32), np.zeros((3, 0), np.int32)],
    )
    def test_refuses_arrays_that_are_no_sample(self, values):
        with pytest.raises(TallyMalformed):
            Sample(values)

    def test_refuses_more_than_may_be_kept(self, monkeypatch):
        monkeypatch.setattr(plan, "MAX_SAMPLE_VALUES", 6)
        assert Sample(np.zeros((3, 2), dtype=np.int32)).n_reports == 3
        with pytest.raises(UnfitRound, match="at most 6 values"):
            Sample(np.zeros((4, 2), dtype=np.int32))


class TestBytes:
    @given(rows)
    def test_come_back_equal_and_are_the_same_each_time(self, given_rows):
        data = of(given_rows).to_bytes()
        assert Sample.from_bytes(data) == of(given_rows)
        assert Sample.from_bytes(data).to_bytes() == data

    @given(rows, st.data())
    def test_cut_or_lengthened_are_refused(self, given_rows, data):
        packed = of(given_rows).to_bytes()
        with pytest.raises(TallyMalformed):
            Sample.from_bytes(packed[: data.draw(st.integers(0, len(packed) - 1))])
        with pytest.raises(TallyMalformed):
            Sample.from_bytes(packed + b"\0")

    def test_rows_out_of_order_are_refused(self):
        for columns in ([2, 1, 0, 0], [1, 1, 5, 4]):
            body = zlib.compress(np.array(columns, dtype="<i4").tobytes())
            with pytest.raises(TallyMalformed, match="out of order"):
                Sample.from_bytes(b"SFS1" + (2).to_bytes(4, "little") * 2 + body)

    @pytest.mark.parametrize("shape", [(4, 0), (2**31, 2**31), (MAX_SAMPLE_VALUES // 2 + 1, 2)])
    def test_an_impossible_shape_is_refused_before_unpacking(self, shape):
        head = b"SFS1" + shape[0].to_bytes(4, "little") + shape[1].to_bytes(4, "little")
        with pytest.raises(TallyMalformed, match="shape"):
            Sample.from_bytes(head + zlib.compress(b"\0" * 64))

    def test_well_packed_bytes_are_unpacked_no_further_than_they_say(self):
        bomb = zlib.compress(b"\0" * 50_000_000)
        with pytest.raises(TallyMalformed, match="length"):
            Sample.from_bytes(b"SFS1" + (2).to_bytes(4, "little") * 2 + bomb)

    def test_of_a_tally_are_refused_and_the_round_says_which_to_read(self):
        with pytest.raises(TallyMalformed, match="version"):
            Sample.from_bytes(Tally.empty(GRID).to_bytes())
        assert read_answers(GRID, Tally.empty(GRID).to_bytes()) == Tally.empty(GRID)
        assert read_answers(LATTICE, of([(1, 2)]).to_bytes()) == of([(1, 2)])
        with pytest.raises(TallyMalformed):
            read_answers(LATTICE, Tally.empty(GRID).to_bytes())


class TestCollected:
    def test_gives_what_the_round_kept_and_says_so_of_the_other(self):
        assert Collected(LATTICE, of([(1, 2)])).sample.n_reports == 1
        with pytest.raises(UnfitRound, match="no counts"):
            Collected(LATTICE, of([(1, 2)])).tally  # noqa: B018
        with pytest.raises(UnfitRound, match="no sample"):
            Collected(GRID, Tally.empty(GRID)).sample  # noqa: B018

    @pytest.mark.parametrize(
        "answers",
        [
            Tally.empty(GRID),
            Sample(np.zeros((1, 3), dtype=np.int32)),
            of([(0, 10 + LATTICE.mechanism.margin + 1)]),
            of([(-LATTICE.mechanism.margin - 1, 0)]),
        ],
    )
    def test_refuses_what_is_of_another_round(self, answers):
        with pytest.raises(TallyMalformed, match="another round"):
            Collected(LATTICE, answers)
        with pytest.raises(TallyMalformed, match="another round"):
            Collected(GRID, of([(0, 0)]))


class TestSorting:
    @pytest.mark.parametrize("n_features", [1, 2, 3, 5, 9])
    @pytest.mark.parametrize("span", [1, 2, 300, 2**31])
    def test_is_that_of_tuples(self, n_features, span):
        values = np.random.default_rng(n_features).integers(-span, span, (500, n_features)).astype(np.int32)
        values[:, n_features // 2] = 7  # nothing to tell by
        assert Sample(values).values.tolist() == sorted(values.tolist())


class TestCounting:
    def test_parts_of_a_log_come_to_one_sample(self):
        slots, values = reports(1000)
        counting = Counting(LATTICE)
        for begin in range(0, 1000, 77):
            counting.add(slots[begin : begin + 77], values[begin : begin + 77])
        assert counting.result() == Sample(discrete_laplace.vectors_of(LATTICE.mechanism, values))
        assert Counting(LATTICE).result() == Sample.empty(LATTICE)

    def test_symbols_are_counted_as_ever(self):
        slots = np.zeros(500, dtype=np.int64)
        values = perturb_many(GRID.mechanism, np.arange(500) % 4, SeededEntropy(1))
        counting = Counting(GRID)
        counting.add(slots[:200], values[:200])
        counting.add(slots[200:], values[200:])
        assert counting.result() == count(GRID, slots, values)

    def test_a_malformed_report_is_named(self):
        slots, values = reports(5)
        for change in ("slot", "value"):
            wrong_slots, wrong_values = slots.copy(), values.copy()
            if change == "slot":
                wrong_slots[3] = 1
            else:
                wrong_values[3] = 255
            with pytest.raises(ReportMalformed) as refused:
                Counting(LATTICE).add(wrong_slots, wrong_values)
            assert refused.value.index == 3
        with pytest.raises(ReportMalformed):
            Counting(LATTICE).add(slots, values[:, :1])

    @pytest.mark.parametrize("at_once", [1, 7, 10, 25])
    def test_of_more_than_may_be_kept_the_first_are(self, monkeypatch, at_once):
        monkeypatch.setattr(tallies, "MAX_SAMPLE_VALUES", 21)  # ten reports of two features
        slots, values = reports(25)
        counting = Counting(LATTICE)
        for begin in range(0, 25, at_once):
            counting.add(slots[begin : begin + at_once], values[begin : begin + at_once])
        assert counting.result() == Sample(discrete_laplace.vectors_of(LATTICE.mechanism, values[:10]))
        assert counting.n_left_out == 15

    def test_what_is_left_out_is_checked_all_the_same(self, monkeypatch):
        monkeypatch.setattr(tallies, "MAX_SAMPLE_VALUES", 20)
        slots, values = reports(12)
        values[11] = 255
        with pytest.raises(ReportMalformed):
            Counting(LATTICE).add(slots, values)

    def test_vectors_are_not_counted(self):
        with pytest.raises(InvalidSpec, match="kept, not counted"):
            count(LATTICE, *reports(3))


class TestSimulated:
    def test_devices_of_the_draw_answer_with_vectors(self):
        spec = RoundSpec(XY, LATTICE.encoding, LATTICE.mechanism, Draw(0, 2**62))
        points = np.full((4000, 2), 0.3)
        entropy = SeededEntropy(3)
        sample = collect(spec, points, entropy, entropy.words(4000)).sample
        assert 800 < sample.n_reports < 1200
        assert abs(sample.values.mean() - 3) < 2  # 20 units of scale
