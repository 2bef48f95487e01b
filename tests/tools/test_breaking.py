"""Pairs of documents with and without a breaking change, and the command that compares them."""

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import breaking

ROOT = Path(__file__).parents[2]
Json = dict[str, Any]

BASE: Json = {
    "openapi": "3.1.0",
    "info": {"version": "0.1.0"},
    "paths": {
        "/things": {
            "post": {
                "operationId": "createThing",
                "tags": ["things"],
                "security": [{"key": []}],
                "parameters": [
                    {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 100}},
                ],
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/New"}}}},
                "responses": {
                    "201": {
                        "headers": {"Location": {"schema": {"type": "string"}}},
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}},
                    },
                    "404": {"content": {"application/problem+json": {"schema": {"type": "object"}}}},
                },
            }
        }
    },
    "components": {
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        "schemas": {
            "New": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name"],
                "properties": {
                    "name": {"type": "string", "minLength": 1, "maxLength": 50},
                    "kind": {"type": "string", "enum": ["a", "b"]},
                    "size": {"type": "integer"},
                    "shape": {"$ref": "#/components/schemas/Shape"},
                    "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
                },
            },
            "Thing": {
                "type": "object",
                "additionalProperties": False,
                "required": ["id", "kind"],
                "properties": {
                    "id": {"type": "string", "pattern": "^t_"},
                    "kind": {"type": "string", "enum": ["a", "b"]},
                    "size": {"type": "integer", "maximum": 9},
                    "shape": {"$ref": "#/components/schemas/Shape"},
                    "parent": {"anyOf": [{"$ref": "#/components/schemas/Thing"}, {"type": "null"}]},
                    "notes": {"type": "object", "additionalProperties": {"type": "string"}},
                },
            },
            "Shape": {
                "oneOf": [{"$ref": "#/components/schemas/Round"}, {"$ref": "#/components/schemas/Square"}],
                "discriminator": {"propertyName": "type"},
            },
            "Round": {
                "type": "object",
                "required": ["type"],
                "properties": {"type": {"const": "round", "type": "string"}, "radius": {"type": "number"}},
            },
            "Square": {
                "type": "object",
                "required": ["type"],
                "properties": {"type": {"const": "square", "type": "string"}, "side": {"type": "number"}},
            },
            "Star": {
                "type": "object",
                "required": ["type"],
                "properties": {"type": {"const": "star", "type": "string"}},
            },
        },
    },
}  # fmt: skip

OPERATION = "paths./things.post"
NEW, THING = "components.schemas.New", "components.schemas.Thing"
STAR = {"$ref": "#/components/schemas/Star"}
GONE = object()

# The changed value at each place (GONE removes it), and the expected message.
BREAKING: dict[str, tuple[str, Any, str]] = {
    "an operation is gone": (OPERATION, GONE, "the operation was removed"),
    "a path is gone": ("paths./things", GONE, "the operation was removed"),
    "an operationId changes": (f"{OPERATION}.operationId", "makeThing", "operationId"),
    "a tag changes": (f"{OPERATION}.tags", ["other"], "tag"),
    "another key is needed": (f"{OPERATION}.security", [{"other": []}], "needs more"),
    "a second key is needed": (f"{OPERATION}.security", [{"key": [], "other": []}], "needs more"),
    "keys are sent otherwise": ("components.securitySchemes.key.scheme", "basic", "security scheme"),
    "an answer is gone": (f"{OPERATION}.responses.404", GONE, "the response 404 was removed"),
    "another success comes": (f"{OPERATION}.responses.202", {}, "may now respond 202"),
    "an answer's header is gone": (f"{OPERATION}.responses.201.headers", GONE, "Location is gone"),
    "an answer's type is gone": (f"{OPERATION}.responses.201.content", {}, "no longer answered"),
    "an answer's type is added": (f"{OPERATION}.responses.404.content.text/html", {"schema": {}}, "may now be text"),
    "a parameter is gone": (f"{OPERATION}.parameters", [], "is gone"),
    "a parameter becomes required": (f"{OPERATION}.parameters.0.required", True, "now required"),
    "a parameter's range narrows": (f"{OPERATION}.parameters.0.schema.maximum", 50, "maximum is narrower"),
    "a parameter is bounded": (f"{OPERATION}.parameters.0.schema.multipleOf", 5, "multipleOf"),
    "a parameter moves": (f"{OPERATION}.parameters.0.in", "header", "is gone"),
    "a required parameter is added": (
        f"{OPERATION}.parameters.1", {"name": "x", "in": "query", "required": True, "schema": {}}, "new and required"
    ),
    "a body becomes required": (f"{OPERATION}.requestBody.required", True, "body is now required"),
    "a body's type is gone": (f"{OPERATION}.requestBody.content", {}, "no longer taken"),
    "a sent member is gone": (f"{NEW}.properties.size", GONE, "size: is gone"),
    "a sent member becomes required": (f"{NEW}.required", ["name", "size"], "size: is now required"),
    "a required member is added": (f"{NEW}", {**BASE["components"]["schemas"]["New"], "required": ["name", "x"],
        "properties": {**BASE["components"]["schemas"]["New"]["properties"], "x": {}}}, "x: is new and required"),
    "a sent enum narrows": (f"{NEW}.properties.kind.enum", ["a"], '"b" is no longer taken'),
    "a sent member gets an enum": (f"{NEW}.properties.name.enum", ["x"], "anything is no longer taken"),
    "a sent text may be less long": (f"{NEW}.properties.name.maxLength", 49, "maxLength is narrower"),
    "a sent text must be longer": (f"{NEW}.properties.name.minLength", 2, "minLength is narrower"),
    "a sent text gets a pattern": (f"{NEW}.properties.name.pattern", "^x", "pattern"),
    "a sent type changes": (f"{NEW}.properties.size.type", "string", "type was integer and is string"),
    "fewer items may be sent": (f"{NEW}.properties.tags.maxItems", 4, "maxItems is narrower"),
    "sent items narrow": (f"{NEW}.properties.tags.items.maxLength", 4, "tags[]: maxLength is narrower"),
    "a sent union loses a kind": ("components.schemas.Shape.oneOf.1", STAR, "the kind square is gone"),
    "within a union's kind something narrows": ("components.schemas.Round.properties.radius.minimum", 0, "radius"),
    "an answered member is gone": (f"{THING}.properties.size", GONE, "size: is gone"),
    "an answered member may be missing": (f"{THING}.required", ["id"], "kind: may now be missing"),
    "an answered enum widens": (f"{THING}.properties.kind.enum", ["a", "b", "c"], '"c" may now be answered'),
    "an answered member may be anything": (f"{THING}.properties.kind.enum", GONE, "anything may now be answered"),
    "an answered member may be null": (f"{THING}.properties.size.type", ["integer", "null"], "null"),
    "an answered pattern is gone": (f"{THING}.properties.id.pattern", GONE, "pattern"),
    "an answered range widens": (f"{THING}.properties.size.maximum", 10, "maximum is wider"),
    "an answered integer becomes a number": (f"{THING}.properties.size.type", "number", "type was integer"),
    "an answered union gains a kind": ("components.schemas.Shape.oneOf.2", STAR, "the kind star is new"),
    "a map's members widen": (f"{THING}.properties.notes.additionalProperties.type", "object", "notes.*"),
}  # fmt: skip

ADDITIVE: dict[str, tuple[str, Any]] = {
    "nothing": ("openapi", "3.1.0"),
    "an operation": ("paths./others", {"get": {"operationId": "listOthers", "responses": {}}}),
    "a method": ("paths./things.get", {"operationId": "listThings", "responses": {}}),
    "a refusal": (f"{OPERATION}.responses.409", {"content": {}}),
    "an answer's header": (f"{OPERATION}.responses.201.headers.ETag", {"schema": {}}),
    "an optional parameter": (f"{OPERATION}.parameters.1", {"name": "x", "in": "query", "schema": {}}),
    "a wider parameter": (f"{OPERATION}.parameters.0.schema.maximum", 200),
    "an unbounded parameter": (f"{OPERATION}.parameters.0.schema.minimum", GONE),
    "a body's type": (f"{OPERATION}.requestBody.content.text/csv", {"schema": {"type": "string"}}),
    "no key needed": (f"{OPERATION}.security", []),
    "another way in": (f"{OPERATION}.security", [{"key": []}, {"other": []}]),
    "an optional member that is sent": (f"{NEW}.properties.colour", {"type": "string"}),
    "a member that is answered": (f"{THING}.properties.colour", {"type": "string"}),
    "a value that is taken": (f"{NEW}.properties.kind.enum", ["a", "b", "c"]),
    "a value that is answered no more": (f"{THING}.properties.kind.enum", ["a"]),
    "a narrower answer": (f"{THING}.properties.size.maximum", 8),
    "a promise": (f"{THING}.required", ["id", "kind", "size"]),
    "nothing required": (f"{NEW}.required", []),
    "numbers for integers": (f"{NEW}.properties.size.type", "number"),
    "null taken": (f"{NEW}.properties.size.type", ["integer", "null"]),
    "null answered no more": (f"{THING}.properties.parent", {"$ref": "#/components/schemas/Thing"}),
    "words": (f"{THING}.description", "A thing."),
    "examples": (f"{NEW}.examples", [{"name": "x"}]),
}


def changed(place: str, value: Any) -> Json:
    """The base with something else at a place."""
    document: Any = copy.deepcopy(BASE)
    here = document
    *way, last = place.replace("text/csv", "text_csv").split(".")
    for step in way:
        here = here[int(step) if isinstance(here, list) else step]
    last = last.replace("text_csv", "text/csv")
    if value is GONE:
        del here[last]
    elif isinstance(here, list) and int(last) == len(here):
        here.append(value)
    else:
        here[int(last) if isinstance(here, list) else last] = value
    return dict(document)


@pytest.mark.parametrize("what", BREAKING)
def test_breaks(what: str) -> None:
    place, value, said = BREAKING[what]
    found = list(breaking.Comparison(BASE, changed(place, value)).changes())
    assert any(said in change for change in found), found
    assert len(found) <= 3, found  # it names what changed, and little else


@pytest.mark.parametrize("what", ADDITIVE)
def test_does_not_break(what: str) -> None:
    assert list(breaking.Comparison(BASE, changed(*ADDITIVE[what])).changes()) == []


def test_a_document_does_not_break_itself() -> None:
    document = json.loads((ROOT / breaking.COMMITTED).read_text())
    assert list(breaking.Comparison(document, copy.deepcopy(document)).changes()) == []


@pytest.mark.release
def test_every_schema_of_the_real_document_counts() -> None:
    old = json.loads((ROOT / breaking.COMMITTED).read_text())
    new = copy.deepcopy(old)
    for name, schema in old["components"]["schemas"].items():
        for member in [one for one in schema.get("properties", ()) if one not in ("type", "trust")][-1:]:
            properties = new["components"]["schemas"][name]["properties"]
            gone = properties.pop(member)
            found = list(breaking.Comparison(old, new).changes())
            properties[member] = gone
            assert any(change.endswith(f".{member}: is gone") for change in found), (name, member, found)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("0.1.0", "0.1.1", False),
        ("0.1.0", "0.2.0", True),
        ("0.9.0", "0.10.0", True),
        ("0.2.0", "0.1.0", False),
        ("0.9.0", "1.0.0", True),
        ("1.0.0", "1.1.0", False),
        ("1.9.0", "2.0.0", True),
    ],
)
def test_a_minor_version_may_break_clients_before_1_0(old: str, new: str, expected: bool) -> None:
    documents = ({"info": {"version": version}} for version in (old, new))
    assert breaking.allows_breaking(*documents) is expected


class TestTheCommand:
    def run(self, *arguments: str | Path, cwd: Path = ROOT) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, ROOT / "tools" / "breaking.py", *arguments]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)

    def test_fails_and_names_what_breaks(self, tmp_path: Path) -> None:
        (tmp_path / "old").write_text(json.dumps(BASE))
        (tmp_path / "new").write_text(json.dumps(changed(f"{NEW}.properties.size", GONE)))
        assert self.run(tmp_path / "old", tmp_path / "old").returncode == 0
        found = self.run(tmp_path / "old", tmp_path / "new")
        assert found.returncode == 1
        assert "POST /things body.size: is gone" in found.stdout
        assert "1 breaking change\n" in found.stdout

    def test_wants_two_files_or_none(self) -> None:
        assert self.run("one").returncode == 2

    def test_compares_with_the_last_release(self, tmp_path: Path) -> None:
        def git(*arguments: str) -> None:
            who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
            subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

        git("init")
        (tmp_path / "tools").mkdir()
        (tmp_path / "openapi").mkdir()
        copied = tmp_path / "tools" / "breaking.py"
        copied.write_text((ROOT / "tools" / "breaking.py").read_text())
        document = tmp_path / "openapi" / "openapi.json"
        document.write_text(json.dumps(BASE))
        git("add", ".")
        git("commit", "-m", "first")

        def compared() -> "subprocess.CompletedProcess[str]":
            return subprocess.run([sys.executable, copied], capture_output=True, text=True, check=False)

        assert "no release" in compared().stdout
        git("tag", "v1.0.0")
        assert compared().stdout == "v1.0.0 and this tree: no breaking changes\n"
        later = changed(OPERATION, GONE)
        document.write_text(json.dumps(later))
        assert compared().returncode == 1
        document.write_text(json.dumps(later | {"info": {"version": "0.2.0"}}))
        changelog = tmp_path / "CHANGELOG.md"
        changelog.write_text("# Changelog\n\n## 0.2.0\n\n## 0.1.0\n\n### Incompatible\n")
        assert compared().returncode == 1
        changelog.write_text("# Changelog\n\n## 0.2.0\n\n### Incompatible\n\n- The operation is gone.\n")
        found = compared()
        assert found.returncode == 0
        assert "version 0.2.0 may break clients" in found.stdout
