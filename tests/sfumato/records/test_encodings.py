"""Encodings: scaled records, the symbol of a point by each definition, wire forms, and reports of devices."""

import base64
import itertools
import json
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustering.phases.waves import waves_for
from sfumato import mechanisms
from sfumato.device.bulk import perturb_records
from sfumato.device.outcomes import Outcome
from sfumato.errors import InvalidPoint, InvalidSpec
from sfumato.mechanisms.base import read_numbers
from sfumato.privacy.accounting import DRAW_SPAN, NANO
from sfumato.records.encodings import (
    cell,
    cells,
    differences,
    scale,
    scale_many,
    shift_of,
    symbol,
    symbols,
    tree_starts,
    unscale_many,
    z_place,
    z_places,
)
from sfumato.specs import (
    LATTICE,
    MAX_CENTROIDS,
    MAX_FEATURES,
    MAX_PHASE_SLOTS,
    MAX_TREE_CELLS,
    MAX_WEIGHT,
    CentroidSignEncoding,
    Encoding,
    Feature,
    GridEncoding,
    GrrMechanism,
    NearestCentroidEncoding,
    Participation,
    PhaseEncoding,
    RoundSpec,
    ShiftedGridEncoding,
    TreeGridEncoding,
    encoding_from_wire,
    round_spec_from_wire,
    to_wire,
)
from tests import naive
from tests.sfumato import specs_given
from tests.sfumato.replay import GeneratorEntropy, ReplayEntropy
from tests.sfumato.scripted import FEATURES, ScriptedService, open_round

LON_LAT = (Feature("longitude", -180, 180), Feature("latitude", -90, 90))
CENTROIDS = ((LATTICE // 4, LATTICE // 4), (LATTICE // 2, LATTICE // 8), (0, LATTICE - 1))
NEAREST, SIGN = NearestCentroidEncoding(CENTROIDS), CentroidSignEncoding(CENTROIDS)

Row = tuple[int, ...]


# ---- random encodings and points ----


def random_grid(rng: np.random.Generator) -> Encoding:
    n_cells = tuple(rng.integers(1, 17, rng.integers(1, 5)).tolist())
    return GridEncoding((*n_cells, 2))


def random_shifted_grid(rng: np.random.Generator) -> Encoding:
    n_features, cells, shifts = (int(rng.integers(1, most + 1)) for most in (3, 14, 8))
    circles = tuple(np.flatnonzero(rng.random(n_features) < 0.3).tolist()) if cells > 1 else ()
    return ShiftedGridEncoding(n_features, cells, shifts, circles)


def random_rows(rng: np.random.Generator) -> tuple[Row, ...]:
    """Return up to six centroids. The places repeat and reach the ends."""
    places = [0, LATTICE // 2, LATTICE - 1, *rng.integers(0, LATTICE, 3)]
    shape = rng.integers(1, 7), rng.choice([1, 2, 4, MAX_FEATURES])
    return tuple(tuple(row) for row in rng.choice(places, shape).tolist())


def random_phases(rng: np.random.Generator) -> Encoding:
    rows = rng.integers(-MAX_WEIGHT, MAX_WEIGHT, (rng.integers(1, 6), rng.integers(1, 5)), endpoint=True)
    return PhaseEncoding(tuple(tuple(row) for row in rows.tolist()), int(rng.integers(4, 1025)))


def random_tree(rng: np.random.Generator) -> TreeGridEncoding:
    """Return cells that are split at random, from the whole box down."""
    n_features, levels = int(rng.integers(1, 4)), [0]
    for _ in range(rng.integers(1, 7)):
        place = int(rng.integers(0, len(levels)))
        levels[place : place + 1] = [levels[place] + 1] * 2**n_features
    return TreeGridEncoding(n_features, tuple(levels))


RANDOM: dict[str, Callable[[np.random.Generator], Encoding]] = {
    "grid": random_grid,
    "shifted_grid": random_shifted_grid,
    "nearest_centroid": lambda rng: NearestCentroidEncoding(random_rows(rng)),
    "centroid_sign": lambda rng: CentroidSignEncoding(random_rows(rng)),
    "phase": random_phases,
    "tree_grid": random_tree,
}


def random_points(encoding: Encoding, rng: np.random.Generator) -> np.ndarray:
    """Return five points of the unit box, with ends, middles and centroids among the coordinates."""
    points = rng.random((5, encoding.n_features))
    special = rng.random(points.shape) < 0.3
    points[special] = rng.choice([0.0, 0.5, 1.0, np.nextafter(1.0, 0)], special.sum())
    if isinstance(encoding, NearestCentroidEncoding | CentroidSignEncoding):
        points[0] = np.array(encoding.centroids[0]) / LATTICE
    return points


# ---- definitions, one feature after the other ----


def define_symbol(encoding: Encoding, point: list[float], slot: int) -> int:
    """Return the symbol by the definition."""
    if isinstance(encoding, GridEncoding):
        parts = [min(math.floor(x * n), n - 1) for x, n in zip(point, encoding.cells, strict=True)]
        return int(np.ravel_multi_index(parts, encoding.cells))
    if isinstance(encoding, ShiftedGridEncoding):
        s, w, d = encoding.cells, encoding.shifts, encoding.n_features
        shift = list(itertools.product(range(w), repeat=d))[slot]
        fine = [min(math.floor(x * s * w), s * w - 1) for x in point]
        along = [s if place in encoding.circles else s + 1 for place in range(d)]
        coarse = [(x + a) // w % n for x, a, n in zip(fine, shift, along, strict=True)]
        return int(np.ravel_multi_index(coarse, along))
    if isinstance(encoding, NearestCentroidEncoding):
        return naive.nearest_centroid_symbol(encoding.centroids, point, slot)
    if isinstance(encoding, CentroidSignEncoding):
        return naive.centroid_sign_symbol(encoding.centroids, point, slot)
    if isinstance(encoding, PhaseEncoding):  # floor(L frac(omega . x / 2 pi)) in exact fractions, x on its lattice
        turns = sum(
            Fraction(weight, 1024) * Fraction(min(math.floor(x * LATTICE), LATTICE - 1), LATTICE)
            for weight, x in zip(encoding.weights[slot], point, strict=True)
        )
        return math.floor(encoding.phases * (turns - math.floor(turns)))
    assert isinstance(encoding, TreeGridEncoding)
    (index,) = (
        index
        for index, (corner, side) in enumerate(list_boxes(encoding))
        if all(low <= x < low + side or x == low + side == 1 for x, low in zip(point, corner, strict=True))
    )
    return index


def list_boxes(encoding: TreeGridEncoding) -> list[tuple[tuple[float, ...], float]]:
    """Return the lower corner and the side of each cell by a walk of the tree."""
    remaining = list(encoding.levels)
    boxes: list[tuple[tuple[float, ...], float]] = []

    def walk(corner: tuple[float, ...], level: int) -> None:
        if remaining[0] == level:
            boxes.append((corner, 0.5**level))
            remaining.pop(0)
            return
        for half in np.ndindex((2,) * encoding.n_features):
            walk(tuple(c + h * 0.5 ** (level + 1) for c, h in zip(corner, half, strict=True)), level + 1)

    walk((0.0,) * encoding.n_features, 0)
    return boxes


class TestCircle:
    HOURS = (Feature("hour", 6, 30, "h", periodic=True), Feature("x", 0, 2))

    def test_a_value_is_moved_by_whole_periods_and_the_upper_bound_is_the_lower_one(self) -> None:
        values = [6.0, 30.0, 18.0, 31.0, 5.0, -19.0, 1e300, -1e300, math.nextafter(6.0, 0)]
        expected = [0, 0, 0.5, 1 / 24, 23 / 24, 23 / 24, 0, 0, 1]
        for value, share in zip(values, expected, strict=True):
            assert scale(self.HOURS, [value, 3.0]) == pytest.approx([share, 1.0], abs=1e-12)
        many = scale_many(self.HOURS, [[value, 3.0] for value in values])
        assert many.tolist() == [scale(self.HOURS, [value, 3.0]) for value in values]

    def test_a_difference_goes_the_shorter_way(self) -> None:
        points, others = np.array([[0.9, 0.9], [0.2, 0.2]]), np.array([[0.1, 0.1]])
        assert differences(points, others, (0,)) == pytest.approx(np.array([[-0.2, 0.8], [0.1, 0.1]]))
        assert differences(points, others).tolist() == (points - others).tolist()

    def test_the_bounds_are_one_period(self) -> None:
        for bounds in ((0, 23, "h"), (0, 1, "degrees"), (-180, 179, "°"), (0, 3, "rad"), (5, 5, ""), (24, 0, "h")):
            with pytest.raises(InvalidSpec):
                Feature("x", *bounds, periodic=True)
        for bounds in ((0, 24, "h"), (0, 168, "Hours"), (-180, 180, "degrees"), (0, 2 * math.pi, "rad"), (0, 7, "")):
            assert Feature("x", *bounds, periodic=True).period == bounds[1] - bounds[0]
        with pytest.raises(InvalidSpec, match="true or false"):
            Feature("x", 0, 24, "h", periodic=1)  # type: ignore[arg-type]

    def test_a_round_has_circles_where_its_features_are_periodic(self) -> None:
        encoding = ShiftedGridEncoding(2, 4, 2, (0,))
        assert (encoding.symbols_along, encoding.n_symbols) == ((4, 5), 20)
        spec = RoundSpec(self.HOURS, encoding, mechanisms.design("grr", 20, NANO))
        wire = to_wire(spec)
        assert (wire["features"][0]["periodic"], wire["encoding"]["circles"]) == (True, [0])
        assert "periodic" not in wire["features"][1]
        assert round_spec_from_wire(wire) == spec
        centroids = NearestCentroidEncoding(((0, 0), (5, 5)))
        half_turn = PhaseEncoding(((1024, 3), (512, 0)), 8)
        for other in (ShiftedGridEncoding(2, 4, 2), ShiftedGridEncoding(2, 4, 2, (1,)), half_turn, centroids):
            with pytest.raises(InvalidSpec, match="periodic"):
                RoundSpec(self.HOURS, other, mechanisms.design("grr", other.n_symbols, NANO))
        for other in (GridEncoding((4, 5)), PhaseEncoding(((1024, 3), (-2048, 0)), 8)):
            assert RoundSpec(self.HOURS, other, mechanisms.design("grr", other.n_symbols, NANO)).encoding == other
        for circles in ((2,), (1, 0), (0, 0), (-1,), [0], ("0",)):
            with pytest.raises(InvalidSpec, match="ascending"):
                ShiftedGridEncoding(2, 4, 2, circles)  # type: ignore[arg-type]
        with pytest.raises(InvalidSpec, match="at least 2"):
            ShiftedGridEncoding(1, 1, 4, (0,))


@pytest.mark.parametrize("kind", RANDOM)
class TestEveryEncoding:
    def test_the_symbol_follows_the_definition_for_one_point_and_for_many(self, kind: str) -> None:
        for seed in range(80):
            rng = np.random.default_rng(seed)
            encoding = RANDOM[kind](rng)
            points, slots = random_points(encoding, rng), rng.integers(0, encoding.n_slots, 5)
            pairs = list(zip(points.tolist(), slots.tolist(), strict=True))
            expected = [define_symbol(encoding, point, slot) for point, slot in pairs]
            assert [symbol(encoding, point, slot) for point, slot in pairs] == expected, encoding
            assert symbols(encoding, points, slots).tolist() == expected
            assert all(0 <= index < encoding.n_symbols for index in expected)

    def test_an_encoding_stays_equal_through_json(self, kind: str) -> None:
        for seed in range(30):
            encoding = RANDOM[kind](np.random.default_rng(seed))
            assert encoding_from_wire(json.loads(json.dumps(to_wire(encoding)))) == encoding


class TestScale:
    @settings(max_examples=50)
    @given(st.data(), st.integers(1, 4))
    def test_one_record_is_scaled_like_many(self, data: st.DataObject, n_features: int) -> None:
        features = data.draw(specs_given.features(n_features))
        values = st.floats(allow_nan=False, allow_infinity=False)
        record = data.draw(st.lists(values, min_size=n_features, max_size=n_features))
        point = scale(features, record)
        assert scale_many(features, [record]).tolist() == [point]
        assert all(0 <= x <= 1 for x in point)

    def test_clips_to_the_bounds(self) -> None:
        assert scale(LON_LAT, [-180, 90]) == [0, 1]
        assert scale(LON_LAT, [-1e308, 1e308]) == [0, 1]
        assert scale(LON_LAT, [0, -45]) == [0.5, 0.25]
        assert scale((Feature("x", 0, 1),), [-0.0]) == [0.0]

    @pytest.mark.parametrize("value", [float("nan"), float("-inf"), "secret-77", None, 10**400, object()])
    def test_refuses_other_values_without_repeating_them(self, value: object) -> None:
        for attempt in (
            lambda: scale(LON_LAT, [1.5, value]),  # type: ignore[list-item]
            lambda: scale_many(LON_LAT, [[1.5, value]]),
        ):
            with pytest.raises(InvalidPoint) as refused:
                attempt()
            assert str(value) not in str(refused.value)
            assert refused.value.__cause__ is None
            assert refused.value.__suppress_context__ or refused.value.__context__ is None

    def test_refuses_another_number_of_features(self) -> None:
        for record in ([], [1.0], [1.0, 2.0, 3.0]):
            with pytest.raises(InvalidPoint, match="longitude, latitude in this order"):
                scale(LON_LAT, record)
            with pytest.raises(InvalidPoint, match="longitude, latitude in this order"):
                scale_many(LON_LAT, [record])
        with pytest.raises(InvalidPoint):
            scale_many(LON_LAT, [[1.0, 2.0], [3.0]])

    def test_unscaling_inverts_scaling(self) -> None:
        records = np.array([[-180.0, 90.0], [12.5, 41.75]])
        assert np.allclose(unscale_many(LON_LAT, scale_many(LON_LAT, records)), records, rtol=0, atol=1e-12)


class TestGrids:
    @settings(max_examples=50)
    @given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(1, 2**20))
    def test_one_coordinate_has_the_cell_that_many_have(self, points: list[float], n_cells: int) -> None:
        many = cells(np.array(points)[:, None], [n_cells])[:, 0]
        assert many.tolist() == [cell(x, n_cells) for x in points]
        assert 0 <= many.min() <= many.max() < n_cells

    def test_the_upper_bound_belongs_to_the_last_cell(self) -> None:
        assert [cell(x, 4) for x in (0.0, 0.2499, 0.25, 0.75, 1.0)] == [0, 0, 1, 3, 3]

    def test_all_shifts_together_weight_neighbours_by_a_triangle(self) -> None:
        encoding = ShiftedGridEncoding(n_features=1, cells=5, shifts=4)
        middles = (np.arange(20) + 0.5) / 20
        together = np.zeros(8)
        for slot in range(4):
            index = symbols(encoding, middles[:, None], np.full(20, slot))
            together += index[8:16] == index[8]
        assert together.tolist() == [4, 3, 2, 1, 0, 0, 0, 0]

    def test_each_slot_has_its_own_shift(self) -> None:
        encoding = ShiftedGridEncoding(n_features=2, cells=3, shifts=4)
        shifts = [shift_of(encoding, slot) for slot in range(encoding.n_slots)]
        assert shifts == list(itertools.product(range(4), repeat=2))


class TestNearestCentroid:
    def test_the_first_of_equally_near_centroids_counts(self) -> None:
        encoding = NearestCentroidEncoding(((3, 0), (0, 3), (3, 0), (0, 0)))
        points = np.array([[3.0, 3.0], [3.0, 0.0], [1.5, 1.5]]) / LATTICE
        assert symbols(encoding, points, np.zeros(3, dtype=np.int64)).tolist() == [0, 0, 6 + 1]

    def test_a_point_at_its_centroid_is_not_above(self) -> None:
        encoding = NearestCentroidEncoding(((5, LATTICE - 1),))
        assert [symbol(encoding, [x / LATTICE, 1.0], 0) for x in (4, 5, 6)] == [0, 0, 1]
        assert symbol(encoding, [0.0, 1.0], 1) == 0  # the upper bound is the last place

    def test_the_largest_distances_are_exact_in_doubles(self) -> None:
        assert 2 * MAX_FEATURES * LATTICE**2 < 2**53
        far, one_nearer = (LATTICE - 1,) * MAX_FEATURES, (LATTICE - 1,) * (MAX_FEATURES - 1) + (LATTICE - 2,)
        for rows, nearest in (((far, one_nearer), 1), ((one_nearer, far), 0)):
            encoding = NearestCentroidEncoding(rows)
            origin = np.zeros((1, MAX_FEATURES))
            assert symbols(encoding, origin, np.zeros(1, dtype=np.int64)).tolist() == [2 * nearest]
            assert symbol(encoding, [0.0] * MAX_FEATURES, 0) == 2 * nearest


class TestCentroidSign:
    def test_the_first_row_has_only_the_side(self) -> None:
        encoding = CentroidSignEncoding(((10, 10), (1000, 1000), (5000, 5000)))
        assert encoding.n_rows == 4
        point = [1001 / LATTICE, 999 / LATTICE]
        assert [symbol(encoding, point, slot) for slot in (0, 4, 8)] == [1, 0, 1]

    def test_the_rows_after_the_last_feature_identify_the_centroid(self) -> None:
        rng = np.random.default_rng(1)
        encoding = CentroidSignEncoding(tuple(tuple(row) for row in rng.integers(0, LATTICE, (5, 3)).tolist()))
        points = rng.random((200, 3))
        slots = 3 * encoding.n_rows + np.arange(encoding.n_rows)
        signs = np.array([2 * symbols(encoding, points, np.full(200, slot)) - 1 for slot in slots])
        walsh = np.array([[1 - 2 * (bin(h & c).count("1") % 2) for c in range(5)] for h in range(8)])
        nearest = (walsh.T @ signs / 8).argmax(axis=0)
        far = ((points[:, None] * LATTICE - np.array(encoding.centroids)) ** 2).sum(axis=2)
        assert nearest.tolist() == far.argmin(axis=1).tolist()

    @pytest.mark.parametrize(("k", "rows"), [(1, 1), (3, 4), (4, 4), (5, 8), (65, 128)])
    def test_the_number_of_rows_is_the_next_power_of_two(self, k: int, rows: int) -> None:
        encoding = CentroidSignEncoding(tuple((c, c) for c in range(k)))
        assert (encoding.n_rows, encoding.n_slots, encoding.n_symbols) == (rows, 3 * rows, 2)


class TestPhases:
    def test_a_wave_of_1024_turns_once_across_a_feature(self) -> None:
        encoding = PhaseEncoding(((1024,), (-1024,)), 8)
        coordinates = [0.0, 0.125, 0.5, 0.999999, 1.0]
        assert [symbol(encoding, [x], 0) for x in coordinates] == [0, 1, 4, 7, 7]
        assert [symbol(encoding, [x], 1) for x in coordinates] == [0, 7, 4, 0, 0]

    def test_every_intermediate_number_is_exact_in_doubles(self) -> None:
        """JavaScript numbers are doubles."""
        encoding = PhaseEncoding(((MAX_WEIGHT,) * MAX_FEATURES,), 1024)
        total = MAX_FEATURES * MAX_WEIGHT * (LATTICE - 1)
        assert max(total, (2**30 - 1) * encoding.phases) < 2**53
        assert symbol(encoding, [1.0] * MAX_FEATURES, 0) == total % 2**30 * 1024 // 2**30

    @pytest.mark.parametrize(("n_features", "most_bytes"), [(2, 10_000), (64, 450_000)])
    def test_a_published_round_stays_small(self, n_features: int, most_bytes: int) -> None:
        features = tuple(Feature(f"x{i}", 0, 1) for i in range(n_features))
        encoding = waves_for(n_features, 20, None, 10**9, 0)
        spec = RoundSpec(features, encoding, mechanisms.design("window", 16, 10**9))
        wire = json.dumps(to_wire(spec), separators=(",", ":"))
        assert len(wire) < most_bytes
        assert round_spec_from_wire(json.loads(wire)) == spec

    def test_the_slot_of_a_report_is_independent_of_the_record(self) -> None:
        features = tuple(Feature(name, -2, 2) for name in "abc")
        spec = RoundSpec(features, waves_for(3, None, 64, 10**9, 1), mechanisms.design("window", 16, 10**9))
        reports = perturb_records(spec, np.zeros((20_000, 3)), GeneratorEntropy(3))
        assert reports.values.shape == (20_000, 1)
        assert reports.values.max() < 16
        assert (np.bincount(reports.slots, minlength=64) > 200).all()


class TestTrees:
    def test_the_first_feature_changes_slowest(self) -> None:
        encoding = TreeGridEncoding(2, (1, 1, 1, 1))
        assert [symbol(encoding, point, 0) for point in ([0, 0], [0, 0.9], [0.9, 0], [1, 1])] == [0, 1, 2, 3]

    def test_places_interleave_the_bits_of_the_finest_box(self) -> None:
        assert z_place([0b101, 0b011], 3) == 0b100111
        assert z_places(np.array([[0b101, 0b011]]), 3).tolist() == [0b100111]
        assert tree_starts(TreeGridEncoding(1, (1, 2, 3, 3))) == (0, 4, 6, 7)

    def test_a_change_of_one_level_is_refused(self) -> None:
        for seed in range(30):
            rng = np.random.default_rng(seed)
            encoding = random_tree(rng)
            levels = list(encoding.levels)
            levels[rng.integers(len(levels))] += int(rng.choice([-1, 1]))
            with pytest.raises(InvalidSpec):
                TreeGridEncoding(encoding.n_features, tuple(levels))


CENTROID_ROWS = [[], None, [1, 2], [[]], [[1, 2], [3]], [[1, 2.0]], [[1, True]], [[-1, 0]], [[LATTICE, 0]], ["12"]]
CENTROID_ROWS += [[[0] * (MAX_FEATURES + 1)], [[0, 0]] * (MAX_CENTROIDS + 1)]
WEIGHTS = [[], [[]], [[0, 0]], [[1, 2], [3]], [[MAX_WEIGHT + 1]], [[0.5]], [[True]], [[1] * (MAX_FEATURES + 1)]]
WEIGHTS += [[[1]] * (MAX_PHASE_SLOTS + 1)]
LEVELS = [  # number of features, and levels that do not tile the box
    (1, [1]),
    (1, [0]),  # one cell
    (1, [1, 1, 1]),
    (1, [2, 1, 2]),  # the right volume, but one cell lies across
    (2, [1, 1, 1, 2]),
    (2, [2, 2, 1, 2, 2, 1, 1]),
    (1, [-1, 1]),
    (1, [1, 1.0]),
    (1, [1, True]),
    (9, [1] * 512),
    (0, [1, 1]),
    (8, [7] * 4),
    (1, [17] * (2 * MAX_TREE_CELLS)),
    *((1, levels) for levels in (None, 1, "11", [[1], [1]], [1, None])),
]
IMPOSSIBLE: list[dict[str, Any]] = [
    *({"type": kind, "centroids": rows} for kind in ("nearest_centroid", "centroid_sign") for rows in CENTROID_ROWS),
    *({"type": "phase", "weights": rows, "phases": 16} for rows in WEIGHTS),
    *({"type": "phase", "weights": [[1]], "phases": phases} for phases in (3, 1025, 16.0)),
    *({"type": "tree_grid", "n_features": n_features, "levels": levels} for n_features, levels in LEVELS),
]


class TestLimits:
    @pytest.mark.parametrize("wire", IMPOSSIBLE, ids=lambda wire: repr(wire)[:60])
    def test_refuses_impossible_encodings(self, wire: dict[str, Any]) -> None:
        with pytest.raises(InvalidSpec):
            encoding_from_wire(wire)

    def test_accepts_the_largest_encodings(self) -> None:
        rows = ((LATTICE - 1,) * MAX_FEATURES,) * MAX_CENTROIDS
        assert NearestCentroidEncoding(rows).n_symbols == 2 * MAX_CENTROIDS
        assert CentroidSignEncoding(rows).n_slots == 65 * 256
        assert TreeGridEncoding(2, (8,) * MAX_TREE_CELLS).n_symbols == MAX_TREE_CELLS


class TestDevices:
    @pytest.mark.parametrize(("draw", "answered"), [(0.1, 0), (0.7, 1)])
    def test_a_device_reports_in_the_round_that_contains_its_draw(self, draw: float, answered: int) -> None:
        rounds = [
            RoundSpec(FEATURES, encoding, mechanisms.design("grr", encoding.n_symbols, NANO), part)
            for encoding, part in (
                (NEAREST, Participation.between(0, 0.4)),
                (NearestCentroidEncoding(CENTROIDS[::-1]), Participation.between(0.4, 1)),
            )
        ]
        service = ScriptedService(
            *(open_round(f"rnd_{i}", spec, collection_id="job_1") for i, spec in enumerate(rounds))
        )
        words = [int(draw * DRAW_SPAN), 1 << 63, 0, 1, 2]  # slot 1 of two; keep the symbol; report id
        receipt = service.device(entropy=ReplayEntropy(words)).report([6.0, 1.5])
        outcomes = [report.outcome for report in receipt.rounds]
        assert outcomes[answered] is Outcome.SENT
        assert outcomes[1 - answered] is Outcome.NOT_SELECTED
        ((round_id, (report,)),) = service.stored.items()
        assert (round_id, report["slot"]) == (f"rnd_{answered}", 1)
        assert base64.b64decode(report["value"]) == bytes([2 * 1 + 1])  # the middle centroid, above it

    def test_a_device_sends_the_bit_of_its_record(self) -> None:
        spec = RoundSpec(FEATURES, SIGN, mechanisms.design("auto", 2, NANO))
        assert NANO - 10 <= spec.mechanism.epsilon_nano() <= NANO
        slot = 1 * 4 + 1  # second feature, second row
        service = ScriptedService(open_round(spec=spec))
        words = [0, slot * (DRAW_SPAN // 12 + 1), 0, 1, 2]  # draw; slot of twelve; keep the symbol; report id
        assert service.device(entropy=ReplayEntropy(words)).report([6.0, 1.5]).outcome is Outcome.SENT
        (report,) = service.stored["rnd_1"]
        assert report["slot"] == slot
        assert base64.b64decode(report["value"]) == b"\0"  # the middle centroid, above it; its sign here is minus

    @pytest.mark.parametrize("encoding", [NEAREST, SIGN], ids=["nearest", "sign"])
    def test_many_devices_send_the_symbols_of_their_records(self, encoding: Encoding) -> None:
        features = (Feature("x", 0, 10), Feature("y", -5, 5))
        spec = RoundSpec(features, encoding, GrrMechanism(encoding.n_symbols, DRAW_SPAN))
        records = np.random.default_rng(3).uniform([0, -5], [10, 5], (400, 2))
        _, slots, values = perturb_records(spec, records)
        points = scale_many(features, records).tolist()
        expected = [define_symbol(encoding, p, slot) for p, slot in zip(points, slots.tolist(), strict=True)]
        assert read_numbers(values).tolist() == expected
        assert set(slots.tolist()) == set(range(encoding.n_slots))
        assert set(expected) == set(range(encoding.n_symbols))
