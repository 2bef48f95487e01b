"""Projected grids and codes of sides: integers, the same on every device, and nothing that overflows."""

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato import mechanisms
from sfumato.accounting import DRAW_SPAN, NANO
from sfumato.bulk import perturb_records
from sfumato.device import Outcome
from sfumato.encodings import project, project_many, scale_many, symbol, symbols
from sfumato.errors import InvalidSpec
from sfumato.mechanisms import grr
from sfumato.specs import (
    LATTICE,
    MAX_CODE_BITS,
    MAX_FEATURES,
    MAX_PROJECTED_CELLS,
    MAX_PROJECTED_SHIFTS,
    MAX_PROJECTION,
    MAX_PROJECTIONS,
    MAX_WEIGHT,
    Draw,
    Feature,
    GrrMechanism,
    HalfspaceCodeEncoding,
    ProjectedGridEncoding,
    RoundSpec,
    encoding_from_wire,
    to_wire,
)
from tests.sfumato.replay import ReplayEntropy
from tests.sfumato.scripted import FEATURES, ScriptedService, open_round

Encoding = ProjectedGridEncoding | HalfspaceCodeEncoding

coordinates = st.floats(0, 1) | st.sampled_from([0.0, 1.0, 0.5, np.nextafter(1.0, 0)])
weights = st.integers(-MAX_WEIGHT, MAX_WEIGHT) | st.sampled_from([-MAX_WEIGHT, MAX_WEIGHT])
ends = st.integers(-MAX_PROJECTION, MAX_PROJECTION)


@st.composite
def rows_of_weights(draw: st.DrawFn, most: int) -> tuple[tuple[int, ...], ...]:
    n_features = draw(st.integers(1, 5) | st.just(MAX_FEATURES))
    row = st.lists(weights, min_size=n_features, max_size=n_features).map(tuple).filter(any)
    return tuple(draw(st.lists(row, min_size=1, max_size=most)))


@st.composite
def projected_grids(draw: st.DrawFn) -> ProjectedGridEncoding:
    rows = draw(rows_of_weights(4))
    n = len(rows)
    return ProjectedGridEncoding(
        rows,
        tuple(draw(st.lists(ends, min_size=n, max_size=n))),
        tuple(draw(st.lists(st.integers(1, 2 * MAX_PROJECTION), min_size=n, max_size=n))),
        draw(st.integers(1, MAX_PROJECTED_CELLS)),
        draw(st.integers(1, MAX_PROJECTED_SHIFTS)),
    )


@st.composite
def codes(draw: st.DrawFn) -> HalfspaceCodeEncoding:
    rows = draw(rows_of_weights(MAX_CODE_BITS))
    return HalfspaceCodeEncoding(rows, tuple(draw(st.lists(ends, min_size=len(rows), max_size=len(rows)))))


encodings = projected_grids() | codes()


def plain_symbol(encoding: Encoding, point: list[float], slot: int) -> int:
    """The definition, in Python's integers, which cannot overflow."""
    places = [min(int(x * LATTICE), LATTICE - 1) for x in point]
    sums = [sum(w * c for w, c in zip(row, places, strict=True)) for row in encoding.weights]
    if isinstance(encoding, HalfspaceCodeEncoding):
        return sum(2**bit for bit, (v, t) in enumerate(zip(sums, encoding.thresholds, strict=True)) if v >= t)
    projection, shift = slot // encoding.shifts, slot % encoding.shifts
    lower, span = encoding.lowers[projection], encoding.spans[projection]
    n_fine = encoding.cells * encoding.shifts
    fine = (sums[projection] - lower) * n_fine // span
    return (min(max(fine, 0), n_fine - 1) + shift) // encoding.shifts


class TestSymbol:
    @settings(deadline=None, max_examples=60)
    @given(st.data(), encodings)
    def test_is_what_the_definition_says_one_by_one_and_all_at_once(
        self, data: st.DataObject, encoding: Encoding
    ) -> None:
        d = encoding.n_features
        points = data.draw(st.lists(st.lists(coordinates, min_size=d, max_size=d), min_size=1, max_size=4))
        slots = [data.draw(st.integers(0, encoding.n_slots - 1)) for _ in points]
        plain = [plain_symbol(encoding, p, slot) for p, slot in zip(points, slots, strict=True)]
        assert [symbol(encoding, p, slot) for p, slot in zip(points, slots, strict=True)] == plain
        assert symbols(encoding, np.array(points), np.array(slots)).tolist() == plain
        assert all(0 <= index < encoding.n_symbols for index in plain)

    @pytest.mark.parametrize("sign", [-1, 1])
    @pytest.mark.parametrize("lower", [-MAX_PROJECTION, MAX_PROJECTION])
    @pytest.mark.parametrize("span", [1, 2 * MAX_PROJECTION])
    def test_nothing_overflows_at_the_limits(self, sign: int, lower: int, span: int) -> None:
        row = (sign * MAX_WEIGHT,) * MAX_FEATURES
        top = [1.0] * MAX_FEATURES
        assert project(row, top) == sign * MAX_WEIGHT * MAX_FEATURES * (LATTICE - 1)
        assert project_many(np.array([row]), np.array([top])).tolist() == [project(row, top)]
        assert abs(project(row, top)) < MAX_PROJECTION
        grid = ProjectedGridEncoding((row,), (lower,), (span,), MAX_PROJECTED_CELLS, MAX_PROJECTED_SHIFTS)
        assert span * grid.fine_cells < 2**53  # the largest product on a device's way
        for slot in (0, MAX_PROJECTED_SHIFTS - 1):
            assert symbol(grid, top, slot) == plain_symbol(grid, top, slot)
            assert symbols(grid, np.array([top]), np.array([slot])).tolist() == [symbol(grid, top, slot)]

    def test_doubles_divide_as_integers_do_so_that_any_language_can(self) -> None:
        rng = np.random.default_rng(1)
        n_fine = MAX_PROJECTED_CELLS * MAX_PROJECTED_SHIFTS
        for span in (*rng.integers(1, 2 * MAX_PROJECTION, 200).tolist(), 2 * MAX_PROJECTION):
            fine = int(rng.integers(1, n_fine))
            edge = -(-fine * span // n_fine)  # the first place of a fine cell, and the last of the one before
            for along in (edge, edge - 1):
                assert int(float(along) * n_fine / float(span)) == along * n_fine // span

    def test_beyond_the_range_are_the_first_and_the_last_cell(self) -> None:
        grid = ProjectedGridEncoding(((1,),), (LATTICE // 4,), (LATTICE // 2,), 2, 2)
        points = [[0.0], [0.24], [0.26], [0.374], [0.376], [0.51], [0.74], [0.76], [1.0]]
        assert [symbol(grid, p, 0) for p in points] == [0, 0, 0, 0, 0, 1, 1, 1, 1]
        assert [symbol(grid, p, 1) for p in points] == [0, 0, 0, 0, 1, 1, 2, 2, 2]

    def test_the_slot_is_projection_then_shift(self) -> None:
        grid = ProjectedGridEncoding(((1, 0), (0, 1)), (0, 0), (LATTICE, LATTICE), 2, 2)
        assert grid.n_slots == 4
        assert [symbol(grid, [0.3, 0.9], slot) for slot in range(4)] == [0, 1, 1, 2]

    def test_a_bit_is_set_from_the_threshold_on(self) -> None:
        code = HalfspaceCodeEncoding(((1, 0), (-1, 1)), (LATTICE // 2, 0))
        assert [symbol(code, p, 0) for p in ([0.4, 0.3], [0.5, 0.4], [0.4, 0.4], [0.6, 0.7])] == [0, 1, 2, 3]

    def test_many_points_are_worked_on_in_parts(self) -> None:
        grid = ProjectedGridEncoding(((3, -2), (1, 1)), (-LATTICE, 0), (4 * LATTICE, 2 * LATTICE), 10, 4)
        points, slots = np.random.default_rng(2).random((70_000, 2)), np.arange(70_000) % grid.n_slots
        places = [0, 1, 32_767, 32_768, 65_535, 65_536, 69_999]
        many = symbols(grid, points, slots)
        assert [int(many[i]) for i in places] == [symbol(grid, points[i].tolist(), int(slots[i])) for i in places]


def grid_wire(**changes: Any) -> dict[str, Any]:
    return {
        "type": "projected_grid",
        "weights": [[1, 0], [3, -4]],
        "lowers": [0, -5],
        "spans": [LATTICE, 9],
        "cells": 10,
        "shifts": 4,
    } | changes


def code_wire(**changes: Any) -> dict[str, Any]:
    return {"type": "halfspace_code", "weights": [[1, 0], [3, -4]], "thresholds": [7, -7]} | changes


BAD_WEIGHTS: list[Any] = [
    [],
    None,
    1,
    [1, 2],
    [[]],
    [[], []],
    [[1, 0], [1]],
    [[1, 0], [0, 0]],
    [[1, 0], [1, 1.0]],
    [[1, 0], [1, True]],
    [[1, 0], [1, None]],
    [[1, 0], "12"],
    [[1, 0], [0, MAX_WEIGHT + 1]],
    [[1, 0], [0, -MAX_WEIGHT - 1]],
    [[1] * (MAX_FEATURES + 1)] * 2,
]


class TestTheWire:
    @settings(deadline=None)
    @given(encodings)
    def test_an_encoding_comes_back_equal_through_json(self, encoding: Encoding) -> None:
        assert encoding_from_wire(json.loads(json.dumps(to_wire(encoding)))) == encoding

    @pytest.mark.parametrize("weights", BAD_WEIGHTS, ids=repr)
    def test_weights_that_are_no_directions_are_refused(self, weights: Any) -> None:
        for wire in (grid_wire(weights=weights), code_wire(weights=weights)):
            with pytest.raises(InvalidSpec):
                encoding_from_wire(wire)

    def test_more_directions_than_may_be_are_refused(self) -> None:
        for n, allowed in ((MAX_PROJECTIONS, True), (MAX_PROJECTIONS + 1, False)):
            wire = grid_wire(weights=[[1, 1]] * n, lowers=[0] * n, spans=[1] * n)
            assert is_taken(wire) is allowed
        for n, allowed in ((MAX_CODE_BITS, True), (MAX_CODE_BITS + 1, False)):
            assert is_taken(code_wire(weights=[[1, 1]] * n, thresholds=[0] * n)) is allowed

    @pytest.mark.parametrize(
        "changes",
        [
            {"lowers": [0]},
            {"lowers": 0},
            {"lowers": [0, 0.5]},
            {"lowers": [0, True]},
            {"lowers": [0, MAX_PROJECTION + 1]},
            {"lowers": [0, -MAX_PROJECTION - 1]},
            {"lowers": [0, [1]]},
            {"spans": [1, 0]},
            {"spans": [1, -1]},
            {"spans": [1, 2 * MAX_PROJECTION + 1]},
            {"spans": [1, 1, 1]},
            {"spans": None},
            {"cells": 0},
            {"cells": MAX_PROJECTED_CELLS + 1},
            {"cells": 2.0},
            {"cells": True},
            {"shifts": 0},
            {"shifts": MAX_PROJECTED_SHIFTS + 1},
            {"shifts": "4"},
            {"thresholds": [1, 2]},
        ],
        ids=repr,
    )
    def test_a_projected_grid_that_cannot_be_is_refused(self, changes: dict[str, Any]) -> None:
        assert is_taken(grid_wire())
        assert not is_taken(grid_wire(**changes))

    @pytest.mark.parametrize(
        "changes",
        [
            {"thresholds": [0]},
            {"thresholds": []},
            {"thresholds": 0},
            {"thresholds": None},
            {"thresholds": [0, 0.0]},
            {"thresholds": [0, False]},
            {"thresholds": [0, MAX_PROJECTION + 1]},
            {"thresholds": [0, -MAX_PROJECTION - 1]},
            {"spans": [1, 1]},
        ],
        ids=repr,
    )
    def test_a_code_that_cannot_be_is_refused(self, changes: dict[str, Any]) -> None:
        assert is_taken(code_wire())
        assert not is_taken(code_wire(**changes))


def is_taken(wire: dict[str, Any]) -> bool:
    try:
        encoding_from_wire(wire)
    except InvalidSpec:
        return False
    return True


GRID = ProjectedGridEncoding(((1, 0), (2, -1)), (0, -LATTICE), (LATTICE, 3 * LATTICE), 5, 2)
CODE = HalfspaceCodeEncoding(((1, 0), (2, -1), (0, 1)), (LATTICE // 3, 0, LATTICE // 2))


class TestDevices:
    """Both rounds of a plan, split by the draw, as one device and as many answer them."""

    @pytest.mark.parametrize(("draw", "answered"), [(0.1, 0), (0.7, 1)])
    def test_a_device_answers_the_round_its_draw_is_for_with_the_symbol_of_its_record(
        self, draw: float, answered: int
    ) -> None:
        rounds = [
            RoundSpec(FEATURES, GRID, mechanisms.design("grr", GRID.n_symbols, NANO), Draw.between(0, 0.4)),
            RoundSpec(FEATURES, CODE, mechanisms.design("grr", CODE.n_symbols, NANO), Draw.between(0.4, 1)),
        ]
        service = ScriptedService(
            *(open_round(f"rnd_{i}", spec, collection_id="job_1") for i, spec in enumerate(rounds))
        )
        slot = 3 if answered == 0 else 0
        words = [int(draw * DRAW_SPAN), *([3 << 62] if answered == 0 else []), 0, 1, 2]  # keep the symbol; report id
        if answered == 1:
            words.insert(1, 0)  # of one slot
        receipt = service.device(entropy=ReplayEntropy(words)).report([6.0, 1.0])
        outcomes = [answer.outcome for answer in receipt.rounds]
        assert outcomes[answered] is Outcome.SENT
        assert outcomes[1 - answered] is Outcome.NOT_DRAWN
        ((round_id, (report,)),) = service.stored.items()
        assert (round_id, report["slot"]) == (f"rnd_{answered}", slot)
        expected = plain_symbol(rounds[answered].encoding, [0.75, 0.125], slot)  # type: ignore[arg-type]
        assert base64.b64decode(report["value"]) == bytes([expected])

    @pytest.mark.parametrize("encoding", [GRID, CODE])
    def test_many_devices_send_the_symbols_of_their_records(self, encoding: Encoding) -> None:
        features = (Feature("x", 0, 10), Feature("y", -5, 5))
        spec = RoundSpec(features, encoding, GrrMechanism(encoding.n_symbols, DRAW_SPAN))
        records = np.random.default_rng(3).uniform([0, -5], [10, 5], (400, 2))
        _, slots, values = perturb_records(spec, records)
        points = scale_many(features, records).tolist()
        expected = [plain_symbol(encoding, p, int(slot)) for p, slot in zip(points, slots, strict=True)]
        assert grr.symbols_of(values).tolist() == expected
        assert len(set(slots.tolist())) == encoding.n_slots
