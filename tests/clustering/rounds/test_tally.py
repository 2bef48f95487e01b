"""Test tallies and samples: their sums, their bytes, and the arrays and bytes that they refuse."""

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustering.errors import TallyMalformed, UnfitRound
from clustering.rounds import tally as module
from clustering.rounds.tally import Sample, Tally, read_aggregate
from sfumato.mechanisms import design
from sfumato.specs import (
    MAX_SAMPLE_VALUES,
    DiscreteLaplaceMechanism,
    GridEncoding,
    LatticeEncoding,
    RoundSpec,
    ShiftedGridEncoding,
)
from tests.clustering.local_plans import features

XY = features(2)
GRID = RoundSpec(XY, GridEncoding((2, 2)), design("grr", 4, 10**9))
LATTICE = RoundSpec(XY, LatticeEncoding(2, 10), DiscreteLaplaceMechanism.design(2, 10, 10**9))


def sample_of(rows):
    return Sample(np.array(rows, dtype=np.int32).reshape(-1, 2))


def integers(*shape, dtype=np.int64):
    return np.zeros(shape, dtype=dtype)


@st.composite
def tallies(draw, shape=None):
    n_slots, n_symbols = shape or (draw(st.integers(1, 4)), draw(st.integers(1, 5)))
    reports = draw(st.lists(st.integers(0, 2**40), min_size=n_slots, max_size=n_slots))
    counts = [[draw(st.integers(0, n)) for _ in range(n_symbols)] for n in reports]
    return Tally(np.array(counts, dtype=np.int64), np.array(reports, dtype=np.int64))


rows = st.lists(st.tuples(st.integers(-3, 3), st.integers(-(2**31), 2**31 - 1)), max_size=20)
SAMPLES = rows.map(sample_of)
AGGREGATES = tallies() | SAMPLES


class TestSums:
    @settings(max_examples=40)
    @given(st.tuples(*[tallies((3, 4))] * 3) | st.tuples(*[SAMPLES] * 3))
    def test_do_not_depend_on_order_and_grouping(self, parts):
        a, b, c = parts
        before = a.to_bytes()
        assert (a + b) + c == a + (c + b)
        assert (a + b).n_reports == a.n_reports + b.n_reports
        assert a.to_bytes() == before

    def test_with_an_empty_part_change_nothing(self):
        tally = Tally(np.arange(4)[None], np.array([9]))
        assert tally + Tally.empty(GRID) == tally
        assert sample_of([(1, 2)]) + Sample.empty(LATTICE) == sample_of([(1, 2)])

    @pytest.mark.parametrize(
        ("part", "other"),
        [
            (Tally(integers(1, 2), integers(1)), Tally(integers(1, 3), integers(1))),
            (sample_of([(1, 2)]), Sample(integers(1, 3, dtype=np.int32))),
        ],
    )
    def test_refuse_another_round_or_type(self, part, other):
        with pytest.raises(TallyMalformed, match="different rounds"):
            part + other
        for value in (1, Tally.empty(GRID) if isinstance(part, Sample) else Sample.empty(LATTICE)):
            with pytest.raises(TypeError):
                part + value


class TestEquality:
    @pytest.mark.parametrize(
        ("one", "others"),
        [
            (Tally(integers(1, 2), integers(1)), [Tally(integers(1, 2), np.ones(1, dtype=np.int64)), "a tally"]),
            (sample_of([(1, 2)]), [sample_of([(1, 3)]), sample_of([(1, 2), (1, 2)]), "a sample"]),
        ],
    )
    def test_compares_all_values(self, one, others):
        assert all(one != other for other in others)
        with pytest.raises(TypeError, match="unhashable"):
            hash(one)

    @given(rows, st.randoms())
    def test_ignores_the_order_of_reports(self, given_rows, random):
        shuffled = list(given_rows)
        random.shuffle(shuffled)
        assert sample_of(given_rows).to_bytes() == sample_of(shuffled).to_bytes()
        assert [tuple(row) for row in sample_of(given_rows).values.tolist()] == sorted(given_rows)

    @pytest.mark.parametrize("n_features", [1, 2, 9])
    @pytest.mark.parametrize("span", [1, 300, 2**31])
    def test_samples_are_sorted_as_tuples(self, n_features, span):
        values = np.random.default_rng(n_features).integers(-span, span, (500, n_features)).astype(np.int32)
        values[:, n_features // 2] = 7  # a constant feature
        assert Sample(values).values.tolist() == sorted(values.tolist())


class TestArrays:
    @pytest.mark.parametrize(
        ("counts", "reports"),
        [
            (np.zeros((2, 3)), integers(2)),
            (integers(2, 3), integers(2, dtype=np.int32)),
            (integers(2, 3), integers(3)),
            (integers(3), integers()),
            (integers(0, 3), integers(0)),
        ],
    )
    def test_of_other_shapes_or_types_are_no_tally(self, counts, reports):
        with pytest.raises(TallyMalformed):
            Tally(counts, reports)

    @pytest.mark.parametrize(
        "values",
        [np.zeros((2, 2)), integers(2, 2), integers(4, dtype=np.int32), integers(3, 0, dtype=np.int32)],
    )
    def test_of_other_shapes_or_types_are_no_sample(self, values):
        with pytest.raises(TallyMalformed):
            Sample(values)

    def test_may_not_be_too_large(self, monkeypatch):
        encoding = ShiftedGridEncoding(3, 64, 8)
        spec = RoundSpec(features(3), encoding, design("auto", encoding.n_symbols, 10**9))
        with pytest.raises(UnfitRound, match="counters"):
            Tally.empty(spec)
        monkeypatch.setattr(module, "MAX_SAMPLE_VALUES", 6)
        assert Sample(integers(3, 2, dtype=np.int32)).n_reports == 3
        with pytest.raises(UnfitRound, match="at most 6 values"):
            Sample(integers(4, 2, dtype=np.int32))


def header(magic, *shape):
    return magic + b"".join(size.to_bytes(4, "little") for size in shape)


class TestBytes:
    @given(AGGREGATES)
    def test_round_trip(self, aggregate):
        data = aggregate.to_bytes()
        assert type(aggregate).from_bytes(data) == aggregate
        assert type(aggregate).from_bytes(data).to_bytes() == data

    def test_give_a_tally_that_can_be_changed(self):
        tally = Tally.from_bytes(Tally.empty(GRID).to_bytes())
        tally.counts[0, 0] += 1
        assert tally.counts.sum() == 1

    def test_are_compact(self):
        encoding = ShiftedGridEncoding(2, 16, 4)
        tally = Tally.empty(RoundSpec(XY, encoding, design("auto", encoding.n_symbols, 10**9)))
        tally.counts[:] = np.arange(encoding.n_symbols) % 97
        tally.reports[:] = 97
        assert len(tally.to_bytes()) < tally.counts.nbytes / 4

    @given(tallies(), st.data())
    def test_with_one_changed_byte_are_refused_or_equal(self, tally, data):
        packed = bytearray(tally.to_bytes())
        place = data.draw(st.integers(0, len(packed) - 1))
        packed[place] ^= data.draw(st.integers(1, 255))
        try:
            read = Tally.from_bytes(bytes(packed))
        except TallyMalformed:
            return
        assert read == tally  # spare bits at the end of the stream have no meaning

    @given(AGGREGATES, st.data())
    def test_of_another_length_are_refused(self, aggregate, data):
        packed = aggregate.to_bytes()
        for wrong in (packed[: data.draw(st.integers(0, len(packed) - 1))], packed + b"\0"):
            with pytest.raises(TallyMalformed):
                type(aggregate).from_bytes(wrong)

    @pytest.mark.parametrize(
        ("kind", "head", "values", "message"),
        [
            (Tally, header(b"SFT1", 1, 2), np.array([1, -1, 1], "<i8"), "negative"),
            (Tally, header(b"SFT1", 1, 2), np.array([1, 2, 1], "<i8"), "exceeds"),
            (Tally, header(b"SFT1", 1, 2), np.array([1, 1], "<i8"), "must have"),
            (Tally, header(b"SFT1", 1, 2), np.array([1, 1, 1, 1], "<i8"), "must have"),
            (Sample, header(b"SFS1", 2, 2), np.array([2, 1, 0, 0], "<i4"), "not sorted"),
            (Sample, header(b"SFS1", 2, 2), np.array([1, 1, 5, 4], "<i4"), "not sorted"),
            (Sample, header(b"SFS1", 2, 2), np.zeros(50_000_000, np.uint8), "must have"),  # not decompressed further
            *(
                (Tally, header(b"SFT1", *shape), np.zeros(64, np.uint8), "shape")
                for shape in ((0, 4), (4, 0), (2**31, 2**31), (2**24, 2))
            ),
            *(
                (Sample, header(b"SFS1", *shape), np.zeros(64, np.uint8), "at least one feature")
                for shape in ((4, 0), (2**31, 2**31), (MAX_SAMPLE_VALUES // 2 + 1, 2))
            ),
            (Tally, header(b"SFT2", 1, 2), np.array([1, 1, 1], "<i8"), "version"),
            (Sample, header(b"SFT1", 1, 2), np.array([1, 1, 1], "<i8"), "version"),
        ],
    )
    def test_with_an_impossible_header_or_values_are_refused(self, kind, head, values, message):
        with pytest.raises(TallyMalformed, match=message):
            kind.from_bytes(head + zlib.compress(values.tobytes()))

    def test_are_read_as_the_round_determines(self):
        assert read_aggregate(GRID, Tally.empty(GRID).to_bytes()) == Tally.empty(GRID)
        assert read_aggregate(LATTICE, sample_of([(1, 2)]).to_bytes()) == sample_of([(1, 2)])
        with pytest.raises(TallyMalformed):
            read_aggregate(LATTICE, Tally.empty(GRID).to_bytes())
