"""Specifications: ranges, and their wire form."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from sfumato.errors import InvalidEpsilon, InvalidSpec, SfumatoError
from sfumato.privacy.accounting import DRAW_SPAN
from sfumato.specs import (
    Algorithm,
    Feature,
    GridEncoding,
    GridKmeans,
    GrrMechanism,
    LdpKmeans,
    Participation,
    RoundSpec,
    ShiftedGrid,
    ShiftedGridEncoding,
    SsMechanism,
    UniformGrid,
    encoding_from_wire,
    features_from_wire,
    job_from_wire,
    mechanism_from_wire,
    round_spec_from_wire,
    to_wire,
)
from tests.sfumato import specs_given

SPEC = RoundSpec(
    features=(Feature("longitude", -180, 180, "deg"), Feature("latitude", -90, 90, "deg")),
    encoding=ShiftedGridEncoding(n_features=2, cells=8, shifts=4),
    mechanism=SsMechanism(81, 22, 2**63 + 1),
    participation=Participation(0, DRAW_SPAN),
)


def _wire(**changes: Any) -> dict[str, Any]:
    wire = json.loads(json.dumps(to_wire(SPEC)))
    wire.update(changes)
    return wire


class TestWire:
    @settings(max_examples=40)
    @given(specs_given.round_specs())
    def test_a_round_stays_equal_through_json(self, spec: RoundSpec) -> None:
        assert round_spec_from_wire(json.loads(json.dumps(to_wire(spec)))) == spec

    @settings(max_examples=40)
    @given(specs_given.algorithms)
    def test_an_algorithm_stays_equal_through_json(self, algorithm: Algorithm) -> None:
        assert job_from_wire(json.loads(json.dumps(to_wire(algorithm)))) == algorithm

    def test_words_of_64_bits_are_decimal_strings(self) -> None:
        wire = _wire()
        mechanism = {"type": "ss", "n_symbols": 81, "subset_size": 22, "hold_threshold": "9223372036854775809"}
        assert wire["mechanism"] == mechanism
        assert wire["participation"] == {"lo": "0", "hi": "18446744073709551616"}
        assert wire["version"] == 1
        assert wire["encoding"] == {"type": "shifted_grid", "n_features": 2, "cells": 8, "shifts": 4}

    @pytest.mark.parametrize("version", [None, 0, 2, "1", True, 1.0])
    def test_another_version_is_refused(self, version: object) -> None:
        with pytest.raises(InvalidSpec, match="version of a round spec must be 1"):
            round_spec_from_wire(_wire(version=version))

    def test_a_missing_or_unknown_part_is_refused(self) -> None:
        for part in ("features", "encoding", "mechanism", "participation", "version"):
            wire = _wire()
            del wire[part]
            with pytest.raises(InvalidSpec):
                round_spec_from_wire(wire)
        with pytest.raises(InvalidSpec, match="follow_up"):
            round_spec_from_wire(_wire(follow_up="please"))

    @pytest.mark.parametrize(
        ("part", "value"),
        [
            *itertools.product(
                ["encoding", "mechanism", "participation"],
                [None, "grid", ["type"], {"type": "telepathy"}, {"type": ["grr"]}],
            ),
            ("encoding", {}),
            ("mechanism", {}),
        ],
    )
    def test_a_part_of_another_kind_is_refused(self, part: str, value: object) -> None:
        with pytest.raises(InvalidSpec):
            round_spec_from_wire(_wire(**{part: value}))

    @pytest.mark.parametrize("participation", [{}, {"lo": "0"}, {"hi": "1"}, None])
    def test_refuses_a_participation_without_both_ends(self, participation: object) -> None:
        with pytest.raises(InvalidSpec, match="must have lo and hi"):
            round_spec_from_wire(_wire(participation=participation))

    @pytest.mark.parametrize(
        "threshold", [2**63, 1.5, None, "", "-1", "+1", " 1", "1e3", "0x10", "١", "9" * 21, str(DRAW_SPAN), "0", True]
    )
    def test_refuses_other_thresholds(self, threshold: object) -> None:
        wire = _wire()
        wire["mechanism"]["hold_threshold"] = threshold
        with pytest.raises(InvalidSpec):
            round_spec_from_wire(wire)

    @pytest.mark.parametrize(
        ("read", "wire"),
        [
            (encoding_from_wire, {"type": "grid", "cells": [4, 4], "extra": 1}),
            (encoding_from_wire, {"type": "grid"}),
            (encoding_from_wire, {"type": "grid", "cells": 4}),
            (encoding_from_wire, {"type": "grid", "cells": [4, True]}),
            (encoding_from_wire, {"type": "grid", "cells": [4, 2.0]}),
            (encoding_from_wire, {"type": "grid", "cells": "44"}),
            (encoding_from_wire, {"type": "shifted_grid", "n_features": "2", "cells": 8, "shifts": 4}),
            (mechanism_from_wire, {"type": "grr", "n_symbols": 4, "keep_threshold": "9", "epsilon": 1}),
            (mechanism_from_wire, {"type": "grr", "n_symbols": None, "keep_threshold": "9"}),
            (job_from_wire, {"type": "uniform_grid"}),
            (job_from_wire, {"type": "uniform_grid", "epsilon": "1"}),
            (job_from_wire, {"type": "uniform_grid", "epsilon": True}),
            (job_from_wire, {"type": "uniform_grid", "epsilon": None}),
            (job_from_wire, {"type": "uniform_grid", "epsilon": [0, [1], 0]}),
            (job_from_wire, {"type": "uniform_grid", "epsilon": 1, "clusters": 2.0}),
            (job_from_wire, {"type": "shifted_grid", "epsilon": 1, "amplitude": "2"}),
            (job_from_wire, {"type": "shifted_grid", "epsilon": 1, "amplitude": True}),
            (features_from_wire, []),
            (features_from_wire, {}),
            (features_from_wire, {"dimensions": 1537}),
            (features_from_wire, {"dimensions": 0}),
            (features_from_wire, {"dimensions": 2.0}),
            (features_from_wire, {"dimensions": 2, "norm": 0}),
            (features_from_wire, {"dimensions": 2, "norm": 2e300}),
            (features_from_wire, {"dimensions": 2, "norm": float("nan")}),
            (features_from_wire, {"dimensions": 2, "norms": 1}),
            (features_from_wire, [1]),
            (features_from_wire, [["name", "lower", "upper"]]),
            (features_from_wire, [{"name": "x", "lower": 0, "upper": 1, "colour": "red"}]),
            (features_from_wire, [{"name": "x", "lower": 0, "upper": 1}] * 2),
            (features_from_wire, [{"name": f"x{i}", "lower": 0, "upper": 1} for i in range(1537)]),
        ],
    )
    def test_refuses_unknown_fields_and_wrong_types(self, read: Callable[[object], object], wire: object) -> None:
        with pytest.raises(InvalidSpec):
            read(wire)

    def test_an_epsilon_with_too_many_decimals_has_its_own_error(self) -> None:
        with pytest.raises(InvalidEpsilon):
            job_from_wire({"type": "uniform_grid", "epsilon": 0.12345678901})


class TestFeature:
    @pytest.mark.parametrize(
        ("lower", "upper"),
        [
            (1, 1),
            (2, 1),
            (float("nan"), 1),
            (0, float("nan")),
            (0, float("inf")),
            (float("-inf"), 0),
            (-1.7e308, 1.7e308),
            (0, 10**400),
            ("0", 1),
            (None, 1),
            (False, 1),
        ],
    )
    def test_refuses_impossible_bounds(self, lower: Any, upper: Any) -> None:
        with pytest.raises(InvalidSpec):
            Feature("x", lower, upper)

    @pytest.mark.parametrize("name", ["", "x" * 65, 5, None])
    def test_a_name_is_text_of_1_to_64_characters(self, name: Any) -> None:
        with pytest.raises(InvalidSpec):
            Feature(name, 0, 1)

    @pytest.mark.parametrize("unit", [5, None, "m" * 65])
    def test_a_unit_is_short_text(self, unit: Any) -> None:
        with pytest.raises(InvalidSpec):
            Feature("x", 0, 1, unit)

    def test_bounds_become_floats(self) -> None:
        feature = Feature("x", 0, np.int64(10))  # type: ignore[arg-type]
        assert (type(feature.lower), type(feature.upper)) == (float, float)
        assert to_wire(feature) == {"name": "x", "lower": 0.0, "upper": 10.0, "unit": ""}


class TestRanges:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: GridEncoding(()),
            lambda: GridEncoding((1, 1)),
            lambda: GridEncoding((0, 2)),
            lambda: GridEncoding((1025, 1024)),
            lambda: GridEncoding((2,) * 65),
            lambda: ShiftedGridEncoding(0, 8, 4),
            lambda: ShiftedGridEncoding(9, 1, 1),
            lambda: ShiftedGridEncoding(2, 0, 4),
            lambda: ShiftedGridEncoding(2, 8, 0),
            lambda: ShiftedGridEncoding(2, 1024, 4),
            lambda: ShiftedGridEncoding(8, 1, 64),
            lambda: GrrMechanism(1, 5),
            lambda: GrrMechanism(2, 0),
            lambda: GrrMechanism(2, DRAW_SPAN + 1),
            lambda: GrrMechanism(2**20 + 2, 5),
            lambda: SsMechanism(4098, 1, 5),
            lambda: SsMechanism(4, 0, 5),
            lambda: SsMechanism(4, 4, 5),
            lambda: SsMechanism(4, 1, 0),
            lambda: SsMechanism(4, 1, DRAW_SPAN),
            lambda: Participation(0, 0),
            lambda: Participation(5, 4),
            lambda: Participation(-1, 4),
            lambda: Participation(0, DRAW_SPAN + 1),
            lambda: Participation(0.0, 1),  # type: ignore[arg-type]
            lambda: ShiftedGrid(epsilon=1, clusters=0),
            lambda: ShiftedGrid(epsilon=1, clusters=257),
            lambda: ShiftedGrid(epsilon=1, cells=1),
            lambda: ShiftedGrid(epsilon=1, shifts=9),
            lambda: ShiftedGrid(epsilon=1, length_scale=float("nan")),
            lambda: UniformGrid(epsilon=0),
            lambda: UniformGrid(epsilon=33),
            lambda: UniformGrid(epsilon=1, cells=1025),
        ],
    )
    def test_refuses_values_out_of_range(self, make: Callable[[], object]) -> None:
        with pytest.raises(InvalidSpec):
            make()

    def test_refuses_parts_that_do_not_fit(self) -> None:
        with pytest.raises(InvalidSpec, match="must be for 81 symbols"):
            RoundSpec(SPEC.features, SPEC.encoding, GrrMechanism(80, 5))
        with pytest.raises(InvalidSpec, match="must be for 1 features"):
            RoundSpec(SPEC.features[:1], SPEC.encoding, SPEC.mechanism)


class TestKmeansParameters:
    @pytest.mark.parametrize(
        "algorithm",
        [GridKmeans(1, 4), GridKmeans(0.5, 1, cells=16, seed=7), LdpKmeans(1, 4), LdpKmeans(32, 256, rounds=32)],
    )
    def test_stay_equal_through_json(self, algorithm: Algorithm) -> None:
        assert job_from_wire(json.loads(json.dumps(to_wire(algorithm)))) == algorithm

    @pytest.mark.parametrize(
        "changes",
        [{"clusters": c} for c in (None, 0, 257, 2.0, True)]
        + [{"epsilon": e} for e in (0, 33, "1", float("nan"))]
        + [{"seed": s} for s in (-1, 1 << 32, 0.5)],
        ids=repr,
    )
    def test_out_of_range_are_refused(self, changes: dict[str, Any]) -> None:
        for kind in (GridKmeans, LdpKmeans):
            assert kind(epsilon=1, clusters=2).seed == 0
            with pytest.raises(SfumatoError):
                kind(**({"epsilon": 1, "clusters": 2} | changes))

    def test_of_their_own_out_of_range_are_refused(self) -> None:
        own = [(GridKmeans, "cells", n) for n in (1, 1025, 2.0)] + [(LdpKmeans, "rounds", n) for n in (2, 33, True)]
        for kind, name, value in own:
            with pytest.raises(InvalidSpec):
                kind(**{"epsilon": 1, "clusters": 2, name: value})


class TestParticipation:
    def test_adjacent_intervals_partition_the_draws(self) -> None:
        first, second = Participation.between(0, 0.4), Participation.between(0.4, 1)
        assert (first.lo, first.hi, second.hi) == (0, second.lo, DRAW_SPAN)
        for draw in (0, first.hi - 1, first.hi, DRAW_SPAN - 1):
            assert first.holds(draw) != second.holds(draw)
