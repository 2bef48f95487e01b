"""Records of rounds with attributes: categories, symbols, and refused values."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from sfumato import mechanisms
from sfumato.device.bulk import perturb_records
from sfumato.errors import InvalidPoint, InvalidSpec
from sfumato.privacy.accounting import NANO
from sfumato.privacy.entropy import SystemEntropy
from sfumato.records.described import categories, category
from sfumato.records.encodings import scale, symbol
from sfumato.records.outside import count_outside, encode, encode_many
from sfumato.specs import (
    LATTICE,
    Feature,
    PhaseEncoding,
    ProfileEncoding,
    RoundSpec,
    ShiftedGridEncoding,
    bin_feature,
    round_spec_from_wire,
    to_wire,
)
from sfumato.specs.attributes import Categorical, Numeric

FEATURES = (Feature("x", 0, 10), Feature("y", -1, 1))
PLAN = Categorical("plan", ["free", "pro"], unknown="other", missing="category")
AGE = Numeric("age", [0, 18, 65, 120])
CENTROIDS = ((0, 0), (1_000_000, 1_000_000))
MAP = {"cells": (2, 2), "starts": (0, 1, 2), "labels": (0, 2, 1)}
NAMES = ("x", "y", "plan", "age")


def spec_of(*, counts_outside: bool = False, **clusters: object) -> RoundSpec:
    encoding = ProfileEncoding((PLAN, AGE, bin_feature(FEATURES[0])), **clusters or {"centroids": CENTROIDS})  # type: ignore[arg-type]
    spec = RoundSpec(FEATURES, encoding, mechanisms.design("ss", encoding.n_symbols, NANO))
    return count_outside(spec) if counts_outside else spec


def record(*values: object) -> dict[str, object]:
    return dict(zip(NAMES, values, strict=True))


class TestCategory:
    @pytest.mark.parametrize(
        ("attribute", "value", "code"),
        [
            (PLAN, "free", 0),
            (PLAN, "pro", 1),
            (PLAN, "Pro", 2),
            (PLAN, "pro ", 2),
            (PLAN, None, 3),
            (PLAN, float("nan"), 3),
            (AGE, -5, 0),
            (AGE, 17.999, 0),
            (AGE, 18, 1),
            (AGE, 120, 2),
            (AGE, 1e300, 2),
        ],
    )
    def test_is_the_place_of_the_value(self, attribute: Categorical | Numeric, value: object, code: int) -> None:
        assert category(attribute, value) == code
        assert categories(attribute, [value]).tolist() == [code]

    @pytest.mark.parametrize(
        ("attribute", "value", "text"),
        [
            (AGE, None, "age is missing"),
            (AGE, "old", "age must be a finite number; got text"),
            (AGE, float("inf"), "age must be a finite number"),
            (AGE, True, "age must be a finite number"),
            (PLAN, 3, "plan must be text"),
            (Categorical("plan", ["a", "b"]), "secret", "plan must be one of its declared values"),
        ],
    )
    def test_of_another_value_is_refused_without_showing_it(
        self, attribute: Categorical | Numeric, value: object, text: str
    ) -> None:
        with pytest.raises(InvalidPoint, match=text) as refused:
            category(attribute, value)
        assert "secret" not in str(refused.value)
        with pytest.raises(InvalidPoint, match=r"record 1 \(counted from 1\)"):
            categories(attribute, [value])


class TestSymbol:
    @pytest.mark.parametrize("clusters", [{"centroids": CENTROIDS}, MAP])
    def test_of_many_records_is_that_of_each(self, clusters: dict[str, object]) -> None:
        spec = spec_of(**clusters)
        chance = np.random.default_rng(0)
        table = {
            "x": chance.uniform(-1, 11, 200),
            "y": chance.uniform(-1, 1, 200),
            "plan": chance.choice(np.array(["free", "pro", "else", None], dtype=object), 200),
            "age": chance.uniform(-5, 130, 200),
        }
        slots = np.arange(200) % 3
        many = encode_many(spec, table, slots, SystemEntropy())
        each = [
            encode(spec, {name: column[row] for name, column in table.items()}, int(slots[row]), SystemEntropy())
            for row in range(200)
        ]
        assert many.tolist() == each
        assert len(set(each)) > 10

    def test_is_that_of_the_cluster_and_the_category(self) -> None:
        spec = spec_of(**MAP)
        assert isinstance(spec.encoding, ProfileEncoding)
        assert (spec.encoding.n_clusters, spec.encoding.n_values, spec.n_symbols) == (3, 8, 24)
        own = [encode(spec, record(1.0, 0.5, "pro", 70), slot, SystemEntropy()) for slot in range(3)]
        assert own == [2 * 8 + 1, 2 * 8 + 2, 2 * 8 + 0]  # the second cell has the label 2

    def test_of_a_record_outside_is_the_last_one_for_each_attribute(self) -> None:
        spec = spec_of(counts_outside=True)
        own = {encode(spec, record(11, 0, "pro", 7), slot, SystemEntropy()) for slot in range(3)}
        assert own == {spec.encoding.n_symbols}

    def test_needs_the_names_of_features_and_attributes(self) -> None:
        spec = spec_of()
        for wrong, text in (
            ([1, 0, "pro", 3], "must have names"),
            ({"x": 1, "y": 0, "plan": "pro"}, "age are missing"),
            (record(1, 0, "pro", 3) | {"z": 1}, "z are not features"),
        ):
            with pytest.raises(InvalidPoint, match=text):
                encode(spec, wrong, 0, SystemEntropy())  # type: ignore[arg-type]
        with pytest.raises(InvalidPoint, match="must have names"):
            perturb_records(spec, [[1.0, 0.0]])
        with pytest.raises(InvalidPoint, match="equal lengths"):
            perturb_records(spec, {"x": [1.0], "y": [0.0], "plan": ["pro", "pro"], "age": [3.0]})


class TestEncoding:
    @pytest.mark.parametrize("clusters", [{"centroids": CENTROIDS}, MAP])
    def test_survives_json(self, clusters: dict[str, object]) -> None:
        spec = spec_of(counts_outside=True, **clusters)
        assert round_spec_from_wire(to_wire(spec)) == spec

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({}, "either centroids, or cells"),
            ({"centroids": CENTROIDS} | MAP, "either centroids, or cells"),
            (MAP | {"starts": (1, 2, 3)}, "ascend from 0"),
            (MAP | {"starts": (0, 2, 2)}, "ascend from 0"),
            (MAP | {"starts": (0, 1, 4)}, "below its number of cells, 4"),
            (MAP | {"starts": (0, 1)}, "a label for each start"),
            (MAP | {"labels": (0, -1, 1)}, "labels must be integers from 0"),
            (MAP | {"labels": (0, 4095, 1)}, "must be at most 4096, not 16384"),
            (MAP | {"cells": (2048, 1024)}, "at most 1048576 cells"),
            ({"centroids": ((0, 1 << 20),)}, "centroids must be integers"),
        ],
    )
    def test_refuses_clusters_that_do_not_fit(self, changes: dict[str, object], text: str) -> None:
        with pytest.raises(InvalidSpec, match=text):
            ProfileEncoding((PLAN,), **changes)  # type: ignore[arg-type]

    def test_refuses_attributes_that_do_not_fit(self) -> None:
        for attributes, text in (
            ((), "1 to 64 attributes"),
            ((PLAN, PLAN), "unique names"),
            (("plan",), "a list of attributes"),
        ):
            with pytest.raises(InvalidSpec, match=text):
                ProfileEncoding(attributes, CENTROIDS)  # type: ignore[arg-type]
        hour = (Feature("x", 0, 24, "h", periodic=True), FEATURES[1])
        for features, attribute in ((FEATURES, Categorical("x", ["a", "b"])), (hour, Numeric("x", [0, 12, 24]))):
            encoding = ProfileEncoding((attribute,), **MAP)  # type: ignore[arg-type]
            with pytest.raises(InvalidSpec, match="must be numeric, and the feature must not be periodic"):
                RoundSpec(features, encoding, mechanisms.design("ss", encoding.n_symbols, NANO))


class TestAShiftedGridWithCategories:
    FORMING = Categorical("plan", ["free", "pro"], unknown="other", missing="category", use="cluster")

    def spec(self, *, counts_outside: bool = False) -> RoundSpec:
        encoding = ShiftedGridEncoding(2, 3, 2, attributes=(self.FORMING,))
        spec = RoundSpec(FEATURES, encoding, mechanisms.design("ss", encoding.n_symbols, NANO))
        return count_outside(spec) if counts_outside else spec

    def test_has_a_symbol_for_each_cell_and_category(self) -> None:
        spec = self.spec()
        assert spec.n_symbols == 16 * 4
        assert [each.name for each in spec.attributes] == ["plan"]
        plain = ShiftedGridEncoding(2, 3, 2)
        for slot, (value, code) in enumerate([("free", 0), ("pro", 1), ("none", 2), (None, 3)]):
            person = {"x": 7.0, "y": 0.3, "plan": value}
            cell = symbol(plain, scale(FEATURES, [7.0, 0.3]), slot)
            assert encode(spec, person, slot, SystemEntropy()) == 4 * cell + code  # type: ignore[operator]
            columns = {"x": [7.0], "y": [0.3], "plan": [value]}
            assert encode_many(spec, columns, np.array([slot]), SystemEntropy()).tolist() == [4 * cell + code]  # type: ignore[operator]

    def test_reports_people_outside_whatever_their_category(self) -> None:
        spec = self.spec(counts_outside=True)
        for value in ("free", None):
            assert encode(spec, {"x": 11, "y": 0, "plan": value}, 1, SystemEntropy()) == 64

    def test_survives_its_document_and_leaves_an_absent_attribute_out(self) -> None:
        assert round_spec_from_wire(to_wire(self.spec())) == self.spec()
        assert "attributes" not in to_wire(ShiftedGridEncoding(2, 3, 2))

    @pytest.mark.parametrize("attributes", [(FORMING, PLAN), (AGE,), ({"kind": "text"},), ["plan"]])
    def test_takes_one_categorical_attribute(self, attributes: object) -> None:
        with pytest.raises(InvalidSpec):
            ShiftedGridEncoding(2, 3, 2, attributes=attributes)  # type: ignore[arg-type]

    def test_refuses_a_category_with_the_name_of_a_feature(self) -> None:
        encoding = ShiftedGridEncoding(2, 3, 2, attributes=(Categorical("x", ["a", "b"]),))
        with pytest.raises(InvalidSpec, match="must be numeric"):
            RoundSpec(FEATURES, encoding, mechanisms.design("ss", encoding.n_symbols, NANO))


REGION = Categorical("region", [f"r{place}" for place in range(16)], use="cluster")
DEVICE = Categorical("device", ["old", "new", "newest"], missing="category", use="cluster")


def random_waves(seed: int, n_waves: int = 40) -> PhaseEncoding:
    rng = np.random.default_rng(seed)
    weights = rng.integers(-2000, 2000, (n_waves, 2))
    characters = rng.integers(0, [16, 4], (n_waves, 2))
    weights[-1] = characters[-1] = 0
    rows = [tuple(map(tuple, each.tolist())) for each in (weights, characters)]
    return PhaseEncoding(rows[0], int(rng.integers(4, 1025)), (REGION, DEVICE), rows[1])


def define_phase(encoding: PhaseEncoding, point: list[float], slot: int, codes: list[int]) -> int:
    """Return the symbol by the definition: each part of a turn is an exact fraction, rounded down to 2**-30."""
    places = [min(math.floor(x * LATTICE), LATTICE - 1) for x in point]
    parts = [Fraction(w * x, 2**30) for w, x in zip(encoding.weights[slot], places, strict=True)]
    for a, c, m in zip(encoding.characters[slot], codes, encoding.categories, strict=True):
        turn = Fraction(a * c, m)
        parts.append(Fraction(math.floor((turn - math.floor(turn)) * 2**30), 2**30))
    turns = sum(parts)
    return math.floor(encoding.phases * (turns - math.floor(turns)))


class TestPhasesWithCategories:
    WAVES = PhaseEncoding(((1024, 0), (300, -700)), 16, (REGION, DEVICE), ((0, 0), (15, 2)))

    def spec(self, encoding: PhaseEncoding, *, counts_outside: bool = False) -> RoundSpec:
        spec = RoundSpec(FEATURES, encoding, mechanisms.design("window", encoding.phases, NANO))
        return count_outside(spec) if counts_outside else spec

    @pytest.mark.parametrize("seed", range(5))
    def test_the_symbol_is_that_of_the_definition(self, seed: int) -> None:
        rng, encoding = np.random.default_rng(seed), random_waves(seed)
        spec, n = self.spec(encoding), 60
        slots, regions, devices = (rng.integers(0, high, n) for high in (encoding.n_slots, 16, 4))
        xs, ys = rng.choice([0.0, 2.5, 10.0], n), rng.uniform(-1, 1, n)
        names = [*DEVICE.values, None]
        people = [
            {"x": float(x), "y": float(y), "region": f"r{region}", "device": names[device]}
            for x, y, region, device in zip(xs, ys, regions, devices, strict=True)
        ]
        expected = [
            define_phase(encoding, scale(FEATURES, [person["x"], person["y"]]), slot, [region, device])
            for person, slot, region, device in zip(
                people, slots.tolist(), regions.tolist(), devices.tolist(), strict=True
            )
        ]
        entropy = SystemEntropy()
        one_by_one = [encode(spec, person, slot, entropy) for person, slot in zip(people, slots.tolist(), strict=True)]
        columns = {name: [person[name] for person in people] for name in people[0]}
        assert one_by_one == expected
        assert encode_many(spec, columns, slots, entropy).tolist() == expected  # type: ignore[arg-type]

    def test_a_wave_shows_the_transform_of_the_shares_at_its_character(self) -> None:
        shares = np.random.default_rng(1).dirichlet(np.ones(16))
        encoding = PhaseEncoding(((700, 300),), 1024, (REGION,), ((5,),))
        turns = np.array([symbol(encoding, [0.25, 0.75], 0, [code]) for code in range(16)]) / 1024
        expected = np.exp(2j * np.pi * (700 * 0.25 + 300 * 0.75) / 1024) * np.fft.ifft(shares)[5] * 16
        assert abs((shares * np.exp(2j * np.pi * turns)).sum() - expected) < 2 * np.pi / 1024

    def test_without_codes_each_attribute_has_its_first_category(self) -> None:
        point = [0.3, 0.9]
        assert symbol(self.WAVES, point, 1) == symbol(self.WAVES, point, 1, [0, 0])
        assert symbol(self.WAVES, point, 1) != symbol(self.WAVES, point, 1, [8, 0])

    def test_every_intermediate_number_is_exact_in_doubles(self) -> None:
        """JavaScript numbers are doubles."""
        largest = max((m - 1) * 2**30 for m in self.WAVES.categories)
        assert max(15 * 15, largest, 2**40 + 4 * 2**30) < 2**53

    def test_people_outside_send_a_uniform_phase_whatever_their_category(self) -> None:
        spec, n = self.spec(self.WAVES, counts_outside=True), 16_000
        columns = {"x": [11.0] * n, "y": [0.0] * n, "region": ["r3"] * n, "device": ["new"] * n}
        sent = encode_many(spec, columns, np.ones(n, dtype=np.int64), SystemEntropy())  # type: ignore[arg-type]
        assert np.abs(np.bincount(sent, minlength=16) - n / 16).max() < 6 * np.sqrt(n / 16)

    @pytest.mark.parametrize("n_waves", [8, 512, 1024])
    def test_waves_of_weight_zero_have_no_characters(self, n_waves: int) -> None:
        encoding = random_waves(n_waves, n_waves).select(range(n_waves - 1))
        counting = self.spec(encoding, counts_outside=True).encoding
        assert isinstance(counting, PhaseEncoding)
        rows = dict(zip(encoding.weights, encoding.characters, strict=True))
        pairs = list(zip(counting.weights, counting.characters, strict=True))
        assert sum(not any(weights) for weights, _ in pairs) == -(-(n_waves - 1) // 8)
        assert all(row == (rows[weights] if any(weights) else (0, 0)) for weights, row in pairs)

    def test_survives_its_document_and_leaves_absent_members_out(self) -> None:
        for counts_outside in (False, True):
            spec = self.spec(self.WAVES, counts_outside=counts_outside)
            assert round_spec_from_wire(to_wire(spec)) == spec
        assert set(to_wire(PhaseEncoding(((1024, 0),), 16))) == {"type", "weights", "phases"}

    def test_has_a_mechanism_of_the_same_cost_as_without_categories(self) -> None:
        plain = PhaseEncoding(self.WAVES.weights, 16)
        assert self.spec(plain).mechanism == self.spec(self.WAVES).mechanism

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"attributes": ()}, "characters need attributes"),
            ({"characters": ()}, "characters must have 1 to 1024 rows"),
            ({"characters": ((15, 2),)}, "one row for each wave: 1 rows for 2 waves"),
            ({"characters": ((0,), (15,))}, "one integer for each attribute"),
            ({"characters": ((0, 0), (15, 4))}, "below its number of categories"),
            ({"characters": ((0, 0), (-1, 2))}, "characters must be integers from 0 to 15"),
            ({"characters": ((0, 0), (15, 0))}, "the attribute device is in no wave"),
            ({"weights": ((1024, 0), (0, 0))}, "a wave of weight zero must have characters of zero"),
            ({"attributes": (REGION, AGE)}, "each must be categorical"),
            ({"attributes": (REGION, REGION)}, "must have unique names"),
            ({"attributes": (REGION,) * 5}, "at most 4 attributes"),
            ({"attributes": ["region"]}, "must be a list of attributes"),
            (
                {"attributes": (Categorical("region", [f"r{place}" for place in range(17)]), DEVICE)},
                "region: an attribute of phases may have at most 16 categories, not 17",
            ),
        ],
    )
    def test_refuses_what_the_waves_cannot_determine(self, changes: dict[str, Any], message: str) -> None:
        given = {name: getattr(self.WAVES, name) for name in ("weights", "phases", "attributes", "characters")}
        with pytest.raises(InvalidSpec, match=message):
            PhaseEncoding(**given | changes)

    def test_refuses_a_category_with_the_name_of_a_feature(self) -> None:
        encoding = PhaseEncoding(((1024, 0),), 16, (Categorical("x", ["a", "b"]),), ((1,),))
        with pytest.raises(InvalidSpec, match="must be numeric"):
            self.spec(encoding)
