"""The schemas of the API match the domain classes, and times survive a round trip."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from service.schemas import algorithms, datasets, fields
from service.schemas import specs as spec_schemas
from service.schemas.base import Epsilon, Wire, from_timestamp, timestamp
from sfumato import specs
from sfumato.privacy.accounting import parse_epsilon
from tests.service.api import show_algorithm

UNIONS: dict[str, dict[str, Any]] = {
    "Encoding": dict(specs.ENCODINGS),
    "Mechanism": dict(specs.MECHANISMS),
    "Algorithm": dict(specs.JOB_TYPES),
}
KINDS = [
    specs.Feature,
    specs.Participation,
    specs.RoundSpec,
    *(kind for kinds in UNIONS.values() for kind in kinds.values()),
]


def on_the_wire(kind: Any) -> Any:
    """Return the schema with the name of a domain class."""
    return schema_of(kind.__name__)


def schema_of(name: str) -> Any:
    derived = [*algorithms.JOB_SCHEMAS.values(), *spec_schemas.MECHANISM_SCHEMAS.values()]
    schemas = {schema.__name__: schema for schema in derived}
    return schemas.get(name) or getattr(algorithms if name == "Algorithm" else spec_schemas, name)


def all_subclasses(kind: type[Wire]) -> Iterator[type[Wire]]:
    for one in kind.__subclasses__():
        yield one
        yield from all_subclasses(one)


class TestSchemas:
    @pytest.mark.parametrize("kind", KINDS)
    def test_have_the_fields_of_the_domain(self, kind: Any) -> None:
        fields = {field.name for field in dataclasses.fields(kind)}
        extra = {"type"} if hasattr(kind, "type") else {"version"} if kind is specs.RoundSpec else set()
        assert set(on_the_wire(kind).model_fields) == fields | extra

    @pytest.mark.parametrize("kind", specs.JOB_TYPES.values())
    def test_have_the_defaults_of_the_domain(self, kind: Any) -> None:
        for field in dataclasses.fields(kind):
            if field.default is not dataclasses.MISSING:
                assert on_the_wire(kind).model_fields[field.name].default == field.default

    @pytest.mark.parametrize("union", UNIONS)
    def test_contain_every_type_of_the_domain(self, union: str) -> None:
        schema = TypeAdapter(schema_of(union)).json_schema()
        assert set(schema["discriminator"]["mapping"]) == set(UNIONS[union])

    @pytest.mark.parametrize(
        "algorithm",
        [
            specs.ShiftedGrid(2.0, clusters=6),
            specs.ShiftedGrid(0.5, cells=8, shifts=2),
            specs.UniformGrid(1.25),
            specs.PrivateKmeans(0.75, 3),
        ],
    )
    def test_preserve_an_algorithm_in_a_round_trip(self, algorithm: specs.AnyAlgorithm) -> None:
        wire = TypeAdapter(algorithms.Algorithm).validate_python(show_algorithm(specs.to_wire(algorithm)))
        assert algorithms.algorithm_to_domain(wire) == algorithm
        assert None not in wire.model_dump().values()

    def test_refuse_a_null_that_the_document_does_not_allow(self) -> None:
        n_refused = 0
        kinds = [kind for kind in all_subclasses(Wire) if kind.model_fields]
        for kind in kinds:
            for name, member in kind.model_json_schema()["properties"].items():
                if {"type": "null"} in member.get("anyOf", ()):
                    continue
                with pytest.raises(ValidationError) as caught:
                    kind.model_validate({name: None})
                assert name in {error["loc"][0] for error in caught.value.errors()}, (kind, name)
                n_refused += 1
        assert n_refused > 300

    def test_accept_a_whole_float_as_an_integer(self) -> None:
        assert datasets.DatasetChange.model_validate({"min_reports": 7.0}).min_reports == 7
        for wrong in (7.5, "7", True):
            with pytest.raises(ValidationError):
                datasets.DatasetChange.model_validate({"min_reports": wrong})

    @given(st.integers(1_000, 32_000_000_000))
    def test_accept_each_multiple_of_the_unit_of_epsilon(self, nano: int) -> None:
        assert parse_epsilon(TypeAdapter(Epsilon).validate_python(nano / 1e9)) == nano
        with pytest.raises(ValidationError):
            TypeAdapter(Epsilon).validate_python((nano + 0.25) / 1e9)

    def test_accept_generated_ids(self) -> None:
        from models.database.types import new_id

        assert all(re.fullmatch(f"ds_{fields.ULID}", new_id("ds")) for _ in range(200))


class TestTimes:
    @given(st.integers(0, 250_000_000_000_000_000))
    def test_survive_a_round_trip(self, at: int) -> None:
        written = timestamp(at)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", written)
        assert from_timestamp(written) == at

    @pytest.mark.parametrize(
        ("text", "at"),
        [
            ("1970-01-01T00:00:01Z", 1_000_000),
            ("1970-01-01t01:00:00.5+01:00", 500_000),
            ("1970-01-01T00:00:00.123456789Z", 123_456),
        ],
    )
    def test_are_parsed_as_rfc_3339(self, text: str, at: int) -> None:
        assert from_timestamp(text) == at

    @pytest.mark.parametrize(
        "text", ["", "0", "1970-01-01", "1970-01-01T00:00:00", "1970-13-01T00:00:00Z", "1970-01-01 00:00:00Z"]
    )
    def test_reject_other_formats(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"."):
            from_timestamp(text)
