"""The wire's schemas hold what the domain holds, and times go both ways."""

import dataclasses
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from service import algorithm_schemas, central_schemas, resources, spec_schemas
from service.clock import from_timestamp, timestamp
from sfumato import specs

UNIONS: dict[str, dict[str, Any]] = {
    "Encoding": dict(specs.ENCODINGS),
    "Mechanism": dict(specs.MECHANISMS),
    "Algorithm": dict(specs.ALGORITHMS),
}
KINDS = [specs.Feature, specs.Draw, specs.RoundSpec, *(kind for kinds in UNIONS.values() for kind in kinds.values())]


def on_the_wire(kind: Any) -> Any:
    """The schema of the same name."""
    return schema_of(kind.__name__)


def schema_of(name: str) -> Any:
    homes = (algorithm_schemas, central_schemas, spec_schemas)
    return next(getattr(home, name) for home in homes if hasattr(home, name))


class TestSchemas:
    @pytest.mark.parametrize("kind", KINDS)
    def test_have_the_domains_fields(self, kind: Any) -> None:
        fields = {field.name for field in dataclasses.fields(kind)}
        extra = {"type"} if hasattr(kind, "type") else {"version"} if kind is specs.RoundSpec else set()
        assert set(on_the_wire(kind).model_fields) == fields | extra

    @pytest.mark.parametrize("kind", specs.ALGORITHMS.values())
    def test_have_the_domains_defaults(self, kind: Any) -> None:
        for field in dataclasses.fields(kind):
            if field.default is not dataclasses.MISSING:
                assert on_the_wire(kind).model_fields[field.name].default == field.default

    @pytest.mark.parametrize("union", UNIONS)
    def test_know_every_kind_the_domain_knows(self, union: str) -> None:
        schema = TypeAdapter(schema_of(union)).json_schema()
        assert set(schema["discriminator"]["mapping"]) == set(UNIONS[union])

    @pytest.mark.parametrize(
        "algorithm",
        [
            specs.ShiftedGrid(2.0, clusters=6),
            specs.ShiftedGrid(0.5, cells=8, shifts=2),
            specs.UniformGrid(1.25),
            specs.GatedGridKmeans(0.75, 3),
        ],
    )
    def test_bring_an_algorithm_there_and_back(self, algorithm: specs.AnyAlgorithm) -> None:
        wire = TypeAdapter(algorithm_schemas.Algorithm).validate_python(specs.to_wire(algorithm))
        assert algorithm_schemas.algorithm_to_domain(wire) == algorithm
        assert None not in wire.model_dump().values()

    def test_know_the_ids_that_are_given_out(self) -> None:
        from models.db import new_id

        assert all(re.fullmatch(f"ds_{resources.ULID}", new_id("ds")) for _ in range(200))


class TestTimes:
    @given(st.integers(0, 250_000_000_000_000_000))
    def test_go_there_and_back(self, at: int) -> None:
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
    def test_are_read_as_rfc_3339_has_them(self, text: str, at: int) -> None:
        assert from_timestamp(text) == at

    @pytest.mark.parametrize(
        "text", ["", "0", "1970-01-01", "1970-01-01T00:00:00", "1970-13-01T00:00:00Z", "1970-01-01 00:00:00Z"]
    )
    def test_are_nothing_else(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"."):
            from_timestamp(text)
