"""Records outside of the bounds: their symbols, and the rounds that count them."""

import math

import numpy as np
import pytest

from sfumato import mechanisms
from sfumato.errors import InvalidPoint, InvalidSpec
from sfumato.privacy.accounting import NANO
from sfumato.privacy.entropy import SystemEntropy
from sfumato.records.outside import are_outside, count_outside, encode, encode_many, outside_features
from sfumato.specs import (
    MAX_PHASE_SLOTS,
    Feature,
    GridEncoding,
    LatticeEncoding,
    PhaseEncoding,
    RoundSpec,
    design_for,
    round_spec_from_wire,
    to_wire,
)
from tests.vectors.specs import ENCODINGS, FEATURES

LON, LAT = FEATURES[:2]


def counting(encoding, kind="auto", epsilon_nano=NANO):
    mechanism = design_for(encoding, kind, epsilon_nano)
    return count_outside(RoundSpec(FEATURES[: encoding.n_features], encoding, mechanism))


class TestFeatures:
    @pytest.mark.parametrize(
        ("record", "names"),
        [
            ([180.0, 83.1], ()),
            ([-180.0, -59.7], ()),
            ([math.nextafter(180.0, 181), 0.0], ("lon",)),
            ({"lat": 134_000_000, "lon": 13.4}, ("lat",)),
            ([500.0, -500.0], ("lon", "lat")),
        ],
    )
    def test_a_bound_is_inside_and_the_next_number_is_not(self, record, names) -> None:
        assert outside_features((LON, LAT), record) == names
        values = np.array([[record["lon"], record["lat"]] if isinstance(record, dict) else record])
        assert are_outside((LON, LAT), values).tolist() == [bool(names)]

    @pytest.mark.parametrize("record", [[math.nan, 1.0], ["1", 2.0], [math.inf, 0.0], [1.0]])
    def test_what_is_no_number_stays_an_error(self, record) -> None:
        spec = counting(GridEncoding((4, 4)))
        with pytest.raises(InvalidPoint):
            encode(spec, record, 0, SystemEntropy())


class TestRounds:
    @pytest.mark.parametrize("name", [name for name in ENCODINGS if name not in ("phase", "centroid_sign")])
    def test_the_last_symbol_is_outside(self, name: str) -> None:
        spec = counting(ENCODINGS[name])
        k = spec.encoding.n_symbols
        assert spec.mechanism.n_symbols == k + 1
        record = [1e9, *[feature.lower for feature in spec.features[1:]]]
        assert {encode(spec, record, slot, SystemEntropy()) for slot in range(spec.encoding.n_slots)} == {k}

    @pytest.mark.parametrize("name", ["phase", "centroid_sign"])
    def test_symmetric_symbols_are_uniform_outside(self, name: str) -> None:
        """A chi-square test of 4,000 choices; false alarm below 1e-6."""
        spec = counting(ENCODINGS[name])
        k = spec.encoding.n_symbols
        assert spec.mechanism.n_symbols == k
        records = np.tile([1e9, 0.0, 0.5], (4000, 1))
        found = encode_many(spec, records, np.zeros(4000, dtype=np.int64), SystemEntropy())
        counts = np.bincount(found, minlength=k)
        assert ((counts - 4000 / k) ** 2).sum() / (4000 / k) < k + 5 * math.sqrt(2 * k) + 30

    def test_marks_cost_nothing(self) -> None:
        spec = counting(LatticeEncoding(3, 101))
        mechanism = spec.mechanism
        assert mechanism.mark == 3 * 50
        inside = [encode(spec, [f.lower for f in FEATURES], 0, SystemEntropy())]
        inside += [encode(spec, [f.upper for f in FEATURES], 0, SystemEntropy())]
        outside = encode(spec, [1e9, 0.0, 0.5], 0, SystemEntropy())
        assert outside == (50, 50, 50, 150)
        farthest = max(sum(abs(a - b) for a, b in zip(outside, each, strict=True)) for each in inside)
        assert farthest <= 3 * 101 == sum(abs(a - b) for a, b in zip(*inside, strict=True))
        assert mechanism.epsilon_nano() == NANO

    def test_costs_at_most_as_much(self) -> None:
        for kind in ("grr", "ss", "oue", "olh", "hr"):
            for epsilon_nano in (1_000_000, NANO, 7 * NANO + 3):
                encoding = GridEncoding((5, 7))
                clipping = RoundSpec((LON, LAT), encoding, mechanisms.design(kind, 35, epsilon_nano))
                charged = count_outside(clipping).mechanism.epsilon_nano()
                assert 0 <= clipping.mechanism.epsilon_nano() - charged < 1_000

    @pytest.mark.parametrize("n_waves", [1, 8, 512, MAX_PHASE_SLOTS])
    def test_phases_get_waves_of_weight_zero(self, n_waves: int) -> None:
        encoding = PhaseEncoding(tuple((place + 1,) for place in range(n_waves)), 16)
        spec = count_outside(RoundSpec((LON,), encoding, mechanisms.design("window", 16, NANO)))
        rows = spec.encoding.weights
        assert sum(row == (0,) for row in rows) == -(-n_waves // 8)
        kept = [row for row in rows if row != (0,)]
        assert len(rows) <= MAX_PHASE_SLOTS
        assert kept[0] == (1,)
        assert len(kept) == min(n_waves, MAX_PHASE_SLOTS - -(-n_waves // 8))
        assert count_outside(spec) == spec

    def test_a_round_without_the_member_clips(self) -> None:
        spec = RoundSpec((LON,), GridEncoding((4,)), mechanisms.design("ss", 4, NANO))
        assert "out_of_bounds" not in to_wire(spec)
        assert round_spec_from_wire(to_wire(spec)) == spec
        assert encode(spec, [1e9], 0, SystemEntropy()) == 3
        counted = count_outside(spec)
        assert to_wire(counted)["out_of_bounds"] == "count"
        assert round_spec_from_wire(to_wire(counted)) == counted

    def test_the_largest_grid_of_subsets_has_room_for_one_more(self) -> None:
        spec = count_outside(RoundSpec((LON, LAT), GridEncoding((64, 64)), mechanisms.design("auto", 4096, NANO)))
        assert (spec.mechanism.type, spec.mechanism.n_symbols) == ("ss", 4097)

    def test_a_lattice_of_one_step_has_no_room_for_a_mark(self) -> None:
        encoding = LatticeEncoding(1, 1)
        with pytest.raises(InvalidSpec, match="at least 2 steps"):
            count_outside(RoundSpec((Feature("x", 0, 1),), encoding, design_for(encoding, "auto", NANO)))
