"""Phases of public waves: what a wave may be, and the integers that say which part of a turn a point is in."""

import json
from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustering.phase_waves import waves_for
from sfumato import mechanisms
from sfumato.bulk import perturb_records
from sfumato.encodings import symbol, symbols
from sfumato.errors import InvalidSpec
from sfumato.specs import (
    MAX_FEATURES,
    MAX_PHASE_SLOTS,
    MAX_WEIGHT,
    Feature,
    PhaseEncoding,
    RoundSpec,
    encoding_from_wire,
    round_spec_from_wire,
    to_wire,
)
from tests.sfumato.replay import GeneratorEntropy

weights = st.integers(-MAX_WEIGHT, MAX_WEIGHT)


@st.composite
def phase_encodings(draw: st.DrawFn) -> PhaseEncoding:
    n_features = draw(st.integers(1, 4))
    row = st.lists(weights, min_size=n_features, max_size=n_features).filter(any).map(tuple)
    return PhaseEncoding(tuple(draw(st.lists(row, min_size=1, max_size=5))), draw(st.integers(4, 1024)))


def plain_symbol(encoding: PhaseEncoding, point: list[float], slot: int) -> int:
    """floor(L frac(omega . x / 2 pi)) in exact fractions, x on its lattice."""
    turns = sum(
        Fraction(weight, 1024) * Fraction(min(floor(x * 2**20), 2**20 - 1), 2**20)
        for weight, x in zip(encoding.weights[slot], point, strict=True)
    )
    return floor(encoding.phases * (turns - floor(turns)))


class TestSymbol:
    @settings(deadline=None, max_examples=300)
    @given(st.data(), phase_encodings())
    def test_it_is_what_the_definition_says_one_by_one_and_all_at_once(
        self, data: st.DataObject, encoding: PhaseEncoding
    ) -> None:
        d = encoding.n_features
        points = data.draw(st.lists(st.lists(st.floats(0, 1), min_size=d, max_size=d), min_size=1, max_size=5))
        slots = [data.draw(st.integers(0, encoding.n_slots - 1)) for _ in points]
        plain = [plain_symbol(encoding, point, slot) for point, slot in zip(points, slots, strict=True)]
        assert [symbol(encoding, point, slot) for point, slot in zip(points, slots, strict=True)] == plain
        assert symbols(encoding, np.array(points), np.array(slots)).tolist() == plain
        assert all(0 <= index < encoding.n_symbols for index in plain)

    def test_a_wave_of_1024_turns_once_across_a_feature(self) -> None:
        encoding = PhaseEncoding(((1024,), (-1024,)), 8)
        at = [0.0, 0.125, 0.5, 0.999999, 1.0]
        assert [symbol(encoding, [x], 0) for x in at] == [0, 1, 4, 7, 7]
        assert [symbol(encoding, [x], 1) for x in at] == [0, 7, 4, 0, 0]

    def test_no_number_on_the_way_reaches_2_to_the_53(self) -> None:
        """So plain JavaScript numbers compute it: sums, remainders and products below are all there are."""
        encoding = PhaseEncoding(((MAX_WEIGHT,) * MAX_FEATURES,), 1024)
        total = sum(MAX_WEIGHT * (2**20 - 1) for _ in range(MAX_FEATURES))
        assert total < 2**53
        assert (2**30 - 1) * encoding.phases < 2**53
        assert symbol(encoding, [1.0] * MAX_FEATURES, 0) == total % 2**30 * 1024 // 2**30


class TestWhatMayBe:
    @pytest.mark.parametrize(
        ("rows", "phases"),
        [
            ((), 16),
            (((),), 16),
            (((0, 0),), 16),
            (((1, 2), (3,)), 16),
            (((MAX_WEIGHT + 1,),), 16),
            (((0.5,),), 16),
            (((True,),), 16),
            ([[1]], 16),
            (((1,) * (MAX_FEATURES + 1),), 16),
            (((1,),) * (MAX_PHASE_SLOTS + 1), 16),
            (((1,),), 3),
            (((1,),), 1025),
            (((1,),), 16.0),
        ],
        ids=lambda given: str(given)[:30],
    )
    def test_anything_else_is_refused(self, rows: object, phases: object) -> None:
        with pytest.raises(InvalidSpec):
            PhaseEncoding(rows, phases)  # type: ignore[arg-type]

    @settings(deadline=None)
    @given(phase_encodings())
    def test_it_comes_back_equal_through_json(self, encoding: PhaseEncoding) -> None:
        assert encoding_from_wire(json.loads(json.dumps(to_wire(encoding)))) == encoding

    @pytest.mark.parametrize(("n_features", "most_bytes"), [(2, 10_000), (8, 25_000), (64, 450_000)])
    def test_a_published_round_stays_small(self, n_features: int, most_bytes: int) -> None:
        features = tuple(Feature(f"x{i}", 0, 1) for i in range(n_features))
        encoding = waves_for(n_features, 20, None, 10**9, 0)
        spec = RoundSpec(features, encoding, mechanisms.design("window", 16, 10**9))
        wire = json.dumps(to_wire(spec), separators=(",", ":"))
        assert len(wire) < most_bytes
        assert round_spec_from_wire(json.loads(wire)) == spec


class TestReports:
    def test_are_one_byte_a_device_under_a_slot_that_owes_nothing_to_the_record(self) -> None:
        encoding = waves_for(3, None, 64, 10**9, 1)
        features = tuple(Feature(name, -2, 2) for name in "abc")
        spec = RoundSpec(features, encoding, mechanisms.design("window", 16, 10**9))
        reports = perturb_records(spec, np.zeros((20_000, 3)), GeneratorEntropy(3))
        assert reports.values.shape == (20_000, 1)
        assert reports.values.max() < 16
        assert (np.bincount(reports.slots, minlength=64) > 200).all()
