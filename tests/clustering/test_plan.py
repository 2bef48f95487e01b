"""Tallies and the driver."""

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustering.errors import TallyMalformed, UnfitRound
from clustering.plan import Collected, Tally, drive
from sfumato.cluster_model import ClusterModel
from sfumato.mechanisms import design
from sfumato.specs import Feature, GridEncoding, RoundSpec, ShiftedGridEncoding

XY = (Feature("x", 0, 1), Feature("y", 0, 1))


def a_round(cells=(2, 3)):
    encoding = GridEncoding(cells)
    return RoundSpec(XY, encoding, design("grr", encoding.n_symbols, 10**9))


@st.composite
def tallies(draw, shape=None):
    n_slots, n_symbols = shape or (draw(st.integers(1, 4)), draw(st.integers(1, 5)))
    reports = draw(st.lists(st.integers(0, 2**40), min_size=n_slots, max_size=n_slots))
    counts = [[draw(st.integers(0, n)) for _ in range(n_symbols)] for n in reports]
    return Tally(np.array(counts, dtype=np.int64), np.array(reports, dtype=np.int64))


class TestMerge:
    @given(tallies((3, 4)), tallies((3, 4)), tallies((3, 4)))
    def test_adds_in_any_order_and_grouping(self, a, b, c):
        assert (a + b) + c == a + (c + b)
        assert (a + b).n_reports == a.n_reports + b.n_reports

    @given(tallies((2, 6)))
    def test_the_empty_tally_changes_nothing(self, tally):
        encoding = ShiftedGridEncoding(1, 5, 2)
        spec = RoundSpec(XY[:1], encoding, design("grr", 6, 10**9))
        assert tally + Tally.empty(spec) == tally

    def test_does_not_change_its_parts(self):
        a = Tally(np.ones((1, 2), dtype=np.int64), np.ones(1, dtype=np.int64))
        a + a
        assert a.counts.tolist() == [[1, 1]]

    def test_refuses_another_shape(self):
        a = Tally(np.zeros((1, 2), dtype=np.int64), np.zeros(1, dtype=np.int64))
        b = Tally(np.zeros((1, 3), dtype=np.int64), np.zeros(1, dtype=np.int64))
        with pytest.raises(TallyMalformed, match="different rounds"):
            a + b
        with pytest.raises(TypeError):
            a + 1

    def test_equality_looks_at_counts_and_reports(self):
        a = Tally(np.zeros((1, 2), dtype=np.int64), np.zeros(1, dtype=np.int64))
        b = Tally(np.zeros((1, 2), dtype=np.int64), np.ones(1, dtype=np.int64))
        assert a != b
        assert a != "a tally"
        with pytest.raises(TypeError, match="unhashable"):
            hash(a)


class TestShape:
    @pytest.mark.parametrize(
        ("counts", "reports"),
        [
            (np.zeros((2, 3)), np.zeros(2, dtype=np.int64)),
            (np.zeros((2, 3), dtype=np.int64), np.zeros(2, dtype=np.int32)),
            (np.zeros((2, 3), dtype=np.int64), np.zeros(3, dtype=np.int64)),
            (np.zeros(3, dtype=np.int64), np.zeros((), dtype=np.int64)),
            (np.zeros((0, 3), dtype=np.int64), np.zeros(0, dtype=np.int64)),
        ],
    )
    def test_refuses_arrays_that_are_no_tally(self, counts, reports):
        with pytest.raises(TallyMalformed):
            Tally(counts, reports)

    def test_refuses_a_round_with_too_many_counters(self):
        encoding = ShiftedGridEncoding(3, 64, 8)
        spec = RoundSpec((*XY, Feature("z", 0, 1)), encoding, design("auto", encoding.n_symbols, 10**9))
        with pytest.raises(UnfitRound, match="counters"):
            Tally.empty(spec)

    def test_a_collected_tally_is_of_its_round(self):
        with pytest.raises(TallyMalformed, match="another round"):
            Collected(a_round((2, 2)), Tally.empty(a_round((2, 3))))


class TestBytes:
    @given(tallies())
    def test_come_back_equal_and_are_the_same_each_time(self, tally):
        data = tally.to_bytes()
        assert Tally.from_bytes(data) == tally
        assert Tally.from_bytes(data).to_bytes() == data

    def test_can_be_counted_into_again(self):
        tally = Tally.from_bytes(Tally.empty(a_round()).to_bytes())
        tally.counts[0, 0] += 1
        assert tally.counts.sum() == 1

    def test_are_compact(self):
        encoding = ShiftedGridEncoding(2, 16, 4)
        spec = RoundSpec(XY, encoding, design("auto", encoding.n_symbols, 10**9))
        tally = Tally.empty(spec)
        tally.counts[:] = np.arange(encoding.n_symbols) % 97
        tally.reports[:] = 97
        assert len(tally.to_bytes()) < tally.counts.nbytes / 4

    @given(tallies(), st.data())
    def test_changed_in_one_byte_are_refused_or_say_the_same(self, tally, data):
        packed = bytearray(tally.to_bytes())
        place = data.draw(st.integers(0, len(packed) - 1))
        packed[place] ^= data.draw(st.integers(1, 255))
        try:
            read = Tally.from_bytes(bytes(packed))
        except TallyMalformed:
            return
        assert read == tally  # spare bits at the end of the packed stream mean nothing

    @given(tallies(), st.data())
    def test_cut_or_lengthened_are_refused(self, tally, data):
        packed = tally.to_bytes()
        with pytest.raises(TallyMalformed):
            Tally.from_bytes(packed[: data.draw(st.integers(0, len(packed) - 1))])
        with pytest.raises(TallyMalformed):
            Tally.from_bytes(packed + b"\0")

    @pytest.mark.parametrize(
        ("values", "why"),
        [([1, -1, 1], "negative"), ([1, 2, 1], "more often"), ([1, 1], "length"), ([1, 1, 1, 1], "length")],
    )
    def test_with_impossible_counts_are_refused(self, values, why):
        body = zlib.compress(np.array(values, dtype="<i8").tobytes())
        with pytest.raises(TallyMalformed, match=why):
            Tally.from_bytes(b"SFT1" + (1).to_bytes(4, "little") + (2).to_bytes(4, "little") + body)

    @pytest.mark.parametrize("shape", [(0, 4), (4, 0), (2**31, 2**31), (2**24, 2)])
    def test_with_an_impossible_shape_are_refused_before_unpacking(self, shape):
        n_slots, n_symbols = shape
        data = b"SFT1" + n_slots.to_bytes(4, "little") + n_symbols.to_bytes(4, "little") + zlib.compress(b"\0" * 64)
        with pytest.raises(TallyMalformed, match="shape"):
            Tally.from_bytes(data)

    def test_of_another_version_are_refused(self):
        with pytest.raises(TallyMalformed, match="version"):
            Tally.from_bytes(b"SFT2" + Tally.empty(a_round()).to_bytes()[4:])


def a_model(marks):
    return ClusterModel("centroids", XY, np.ones(1), np.zeros(1), diagnostics={"marks": marks})


class TestDrive:
    def test_sends_each_round_what_came_of_it_and_returns_the_model(self):
        def plan():
            first = yield a_round((2, 2))
            second = yield a_round((2, 4))
            return a_model([first.tally.n_reports, second.spec.encoding.cells])

        def collect(spec):
            tally = Tally.empty(spec)
            tally.reports[0] = spec.encoding.n_symbols
            return Collected(spec, tally)

        assert drive(plan(), collect).diagnostics["marks"] == [4, (2, 4)]

    def test_a_failing_collection_closes_the_plan_and_passes_through(self):
        closed = []

        def plan():
            try:
                yield a_round()
            finally:
                closed.append(True)

        def collect(spec):
            raise LookupError("no such round")

        with pytest.raises(LookupError):
            drive(plan(), collect)
        assert closed == [True]
