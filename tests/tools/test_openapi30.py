"""The description as 3.0.3 says it: word by word, and as a whole."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.openapi30 import RENAMED, Unknown, down_converted

ROOT = Path(__file__).parents[2]
DESCRIPTION = ROOT / "openapi" / "openapi.json"
Json = dict[str, Any]

# What OpenAPI 3.0.3 knows of schemas, and what one says of ours.
WORDS_OF_30 = {
    "$ref", "additionalProperties", "allOf", "anyOf", "default", "description", "discriminator", "enum", "example",
    "format", "items", "maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum", "nullable", "oneOf",
    "pattern", "properties", "required", "title", "type", "x-extensible-enum",
}  # fmt: skip


def document(schema: Json, **schemas: Json) -> Json:
    """A description whose one schema it is, used by one operation."""
    answer = {"description": "OK", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "t", "version": "1", "summary": "s", "license": {"name": "l", "identifier": "Apache-2.0"}},
        "paths": {"/things": {"get": {"operationId": "getThing", "responses": {"200": answer}}}},
        "components": {"schemas": {"Thing": schema, **schemas}},
    }


def told(schema: Json, **schemas: Json) -> Any:
    return down_converted(document(schema, **schemas))["components"]["schemas"]


def a_property(schema: Json) -> Any:
    """How a property is said."""
    return told({"type": "object", "properties": {"part": schema}})["Thing"]["properties"]["part"]


class TestWords:
    @pytest.mark.parametrize(
        ("schema", "wanted"),
        [
            ({"type": "integer", "format": "int64"}, {"type": "integer", "format": "int64"}),
            ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": "string", "nullable": True}),
            (
                {"anyOf": [{"$ref": "#/components/schemas/Other"}, {"type": "null"}], "description": "d"},
                {"allOf": [{"$ref": "#/components/schemas/Other"}], "description": "d", "nullable": True},
            ),
            ({"$ref": "#/components/schemas/Other"}, {"$ref": "#/components/schemas/Other"}),
            (
                {"$ref": "#/components/schemas/Other", "description": "d"},
                {"allOf": [{"$ref": "#/components/schemas/Other"}], "description": "d"},
            ),
            ({"const": "a", "type": "string"}, {"enum": ["a"], "type": "string"}),
            ({"type": "string", "examples": ["a", "b"]}, {"type": "string", "example": "a"}),
            ({"type": "string", "contentEncoding": "base64"}, {"type": "string", "format": "byte"}),
            (
                {"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "null"}]}},
                {"type": "array", "items": {"type": "number", "nullable": True}},
            ),
            ({"type": "object", "additionalProperties": True}, {"type": "object", "additionalProperties": True}),
        ],
    )
    def test_are_said_in_the_older_way(self, schema: Json, wanted: Json) -> None:
        assert a_property(schema) == wanted

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": ["string", "null"]},
            {"prefixItems": []},
            {"if": {}},
            {"exclusiveMinimum": 0},
            {"contentEncoding": "quoted-printable"},
            {"$defs": {}},
        ],
    )
    def test_that_are_unknown_are_refused(self, schema: Json) -> None:
        with pytest.raises(Unknown):
            a_property(schema)

    @pytest.mark.parametrize("version", ["3.0.3", "2.0", None])
    def test_of_another_version_are_refused(self, version: str | None) -> None:
        with pytest.raises(Unknown):
            down_converted(document({"type": "string"}) | {"openapi": version})


class TestNames:
    def test_are_given_to_unions_within_others(self) -> None:
        union = {"oneOf": [{"$ref": "#/components/schemas/A"}, {"$ref": "#/components/schemas/B"}]}
        made = told({"type": "object", "properties": {"some_part": union}}, A={"type": "object"}, B={"type": "object"})
        assert made["Thing"]["properties"]["some_part"] == {"$ref": "#/components/schemas/ThingSomePart"}
        assert made["ThingSomePart"] == union

    def test_are_given_to_the_branches_that_are_plain(self) -> None:
        made = told({"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "string"}, {"type": "null"}]}})
        assert made["Thing"]["items"]["$ref"] == "#/components/schemas/ThingItem"
        names = [branch["$ref"].split("/")[-1] for branch in made["ThingItem"]["anyOf"]]
        assert names == ["ThingItemNumber", "ThingItemString"]
        assert [made[name] for name in names] == [{"type": "number"}, {"type": "string"}]
        assert made["ThingItem"]["nullable"]

    def test_of_answers_are_the_operations(self) -> None:
        given = document({"type": "object"}, Other={"type": "object"})
        media = given["paths"]["/things"]["get"]["responses"]["200"]["content"]["application/json"]
        media["schema"] = {"oneOf": [{"$ref": f"#/components/schemas/{name}"} for name in ("Thing", "Other")]}
        made = down_converted(given)
        assert "GetThingAnswer" in made["components"]["schemas"]
        answer = made["paths"]["/things"]["get"]["responses"]["200"]["content"]["application/json"]
        assert answer["schema"] == {"$ref": "#/components/schemas/GetThingAnswer"}

    def test_that_another_language_keeps_to_itself_are_changed_wherever_they_stand(self) -> None:
        ((old, new),) = RENAMED.items()
        union = {
            "oneOf": [{"$ref": f"#/components/schemas/{old}"}, {"$ref": "#/components/schemas/Other"}],
            "discriminator": {"propertyName": "type", "mapping": {"a": f"#/components/schemas/{old}"}},
        }
        made = told(union, **{old: {"type": "object"}, "Other": {"type": "object"}})
        assert old not in made
        assert made["Thing"]["discriminator"]["mapping"] == {"a": f"#/components/schemas/{new}"}
        assert f"schemas/{old}" not in json.dumps(made)

    def test_that_two_would_have_are_refused(self) -> None:
        union = {"oneOf": [{"$ref": "#/components/schemas/Thing"}, {"$ref": "#/components/schemas/Thing"}]}
        with pytest.raises(Unknown, match="two schemas would be called ThingPart"):
            told({"type": "object", "properties": {"part": union}}, ThingPart={"type": "string"})


class TestOurDescription:
    def test_is_said_in_words_of_the_older_version_alone(self) -> None:
        made = down_converted(json.loads(DESCRIPTION.read_text()))
        assert made["openapi"] == "3.0.3"
        assert "identifier" not in made["info"]["license"]
        for schema in _schemas(made["components"]["schemas"].values()):
            assert schema.keys() <= WORDS_OF_30
            assert schema.get("type") != "null"
            assert "$ref" not in schema or len(schema) == 1

    def test_leads_nowhere_that_is_not(self) -> None:
        made = down_converted(json.loads(DESCRIPTION.read_text()))
        names = {f"#/components/schemas/{name}" for name in made["components"]["schemas"]}
        assert set(_references(made)) <= names

    def test_says_the_same_of_every_field(self) -> None:
        given = json.loads(DESCRIPTION.read_text())
        made = down_converted(given)
        assert given == json.loads(DESCRIPTION.read_text())
        assert made["paths"].keys() == given["paths"].keys()
        for name, schema in given["components"]["schemas"].items():
            other = made["components"]["schemas"][RENAMED.get(name, name)]
            assert schema.get("required") == other.get("required")
            assert schema.get("properties", {}).keys() == other.get("properties", {}).keys()
            for field, part in schema.get("properties", {}).items():
                is_nullable = {"type": "null"} in part.get("anyOf", part.get("oneOf", []))
                assert is_nullable == other["properties"][field].get("nullable", False)

    def test_is_written_by_the_command(self, tmp_path: Path) -> None:
        target = tmp_path / "deep" / "openapi.json"
        command = [sys.executable, str(ROOT / "tools" / "openapi30.py"), str(DESCRIPTION), str(target)]
        subprocess.run(command, check=True)
        assert json.loads(target.read_text())["openapi"] == "3.0.3"


def _schemas(values: Any) -> Any:
    for schema in values:
        if not isinstance(schema, dict):
            continue
        yield schema
        inner = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
        yield from _schemas([*inner, *schema.get("anyOf", []), *schema.get("oneOf", []), *schema.get("allOf", [])])


def _references(value: Any) -> Any:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, list):
        for each in value:
            yield from _references(each)
