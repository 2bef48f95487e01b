"""Records of profile rounds: categories of attributes, symbols, and refused values."""

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
    Feature,
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
