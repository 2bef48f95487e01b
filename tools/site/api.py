"""The reference of the HTTP interface as pages: each operation, parameter, schema, problem and example."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

Json = Mapping[str, Any]

METHODS = ("get", "post", "put", "patch", "delete")
SCHEMAS, PROBLEMS = "schemas.md", "problems.md"


def pages(document: Json) -> dict[str, str]:
    """The pages of a document: path below `api/`, Markdown."""
    schemas = document["components"]["schemas"]
    made = {
        "index.md": _join(_index(document)),
        SCHEMAS: _join(_schemas(schemas)),
        PROBLEMS: _join(_problem_examples(document)),
    }
    for tag in document["tags"]:
        made[f"{tag['name']}.md"] = _join(_tag(document, tag))
    return made


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    """(method, path, operation) of a document, in its order."""
    for path, methods in sorted(document["paths"].items()):
        for method in METHODS:
            if method in methods:
                yield method.upper(), path, methods[method]


def _join(parts: Iterator[str]) -> str:
    return "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"


def _index(document: Json) -> Iterator[str]:
    info = document["info"]
    yield f"# HTTP interface {info['version']}"
    yield info["description"]
    yield "The same as [an OpenAPI document](openapi.json), which clients are generated from."
    yield "| method, path | does | operation |\n|---|---|---|\n" + "\n".join(
        f"| `{method} {path}` | {_cell(each['summary'])} | [{each['operationId']}]({_home(each)}) |"
        for method, path, each in operations(document)
    )
    yield f"What a refusal looks like is in [problems]({PROBLEMS}), each member of a body in [schemas]({SCHEMAS})."


def _home(operation: Json) -> str:
    return f"{operation['tags'][0]}.md#{operation['operationId'].lower()}"


def _tag(document: Json, tag: Json) -> Iterator[str]:
    yield f"# {tag['name'].capitalize()}"
    yield tag["description"]
    for method, path, operation in operations(document):
        if operation["tags"][0] == tag["name"]:
            yield from _operation(document, method, path, operation)


def _operation(document: Json, method: str, path: str, operation: Json) -> Iterator[str]:
    name = operation["operationId"]
    yield f"## {name} {{ #{name.lower()} }}"
    yield f"`{method} {path}`"
    yield f"**{operation['summary']}.** {operation.get('description', '')}"
    if "security" not in operation:
        yield "Needs no key."
    if parameters := operation.get("parameters"):
        yield "### Parameters " + _anchor(name, "parameters")
        yield _table(
            ("name", "in", "takes", ""),
            (
                (
                    f"`{each['name']}`{'' if each.get('required') else ' (optional)'}",
                    each["in"],
                    kind(each["schema"]),
                    each.get("description", ""),
                )
                for each in parameters
            ),
        )
    if body := operation.get("requestBody"):
        yield "### Body " + _anchor(name, "body")
        yield from _bodies(document, body["content"])
    yield "### Answers " + _anchor(name, "answers")
    for status, answer in operation["responses"].items():
        if int(status) < 400:
            yield f"**{status}** {answer['description']}"
            yield _table(("header", ""), ((f"`{key}`", head["description"]) for key, head in _headers(answer)))
            yield from _bodies(document, answer.get("content", {}))
    yield _problems(operation["responses"])


def _anchor(name: str, part: str) -> str:
    return f"{{ #{name.lower()}-{part} }}"


def _headers(answer: Json) -> list[tuple[str, Json]]:
    return list(answer.get("headers", {}).items())


def _problems(responses: Json) -> str:
    """The refusals of an operation, by status; each code leads to what to do."""
    rows = []
    for status, answer in responses.items():
        if int(status) >= 400:
            codes = re.sub(r"`([a-z_]+)`", rf"[`\1`]({PROBLEMS}#\1)", answer["description"])
            rows.append((status, codes))
    return _table(("status", "problem"), rows)


def _problem_examples(document: Json) -> Iterator[str]:
    """Each code once, as one of the operations answers it."""
    yield "# Problems"
    yield "What each refusal looks like. What it means, and what to do: [errors](../errors.md)."
    found: dict[str, Any] = {}
    for _, _, operation in operations(document):
        for answer in operation["responses"].values():
            given = answer.get("content", {}).get("application/problem+json", {}).get("examples", {})
            found |= {code: example["value"] for code, example in given.items() if code not in found}
    for code, example in sorted(found.items(), key=lambda item: (item[1]["status"], item[0])):
        yield f"## {code} {{ #{code} }}"
        yield _code(example)


def _bodies(document: Json, content: Json) -> Iterator[str]:
    for media_type, about in content.items():
        schema = about.get("schema", {})
        yield f"`{media_type}`: {kind(schema)}"
        for title, example in _examples(document, about):
            yield title + ":" if title else ""
            yield _code(example)


def _examples(document: Json, about: Json) -> Iterator[tuple[str, Any]]:
    """What a body may look like: its own examples, else the first of its schema."""
    given = about.get("examples", {})
    for name, each in given.items():
        yield each.get("summary", f"`{name}`"), each["value"]
    if "example" in about:
        yield "", about["example"]
    elif not given and "$ref" in about.get("schema", {}):
        schema = document["components"]["schemas"][_name(about["schema"])]
        for example in schema.get("examples", ())[:1]:
            yield "", example


def _code(example: Any) -> str:
    if isinstance(example, str):
        return f"```text\n{example.rstrip()}\n```"
    return f"```json\n{json.dumps(example, indent=2, ensure_ascii=False)}\n```"


def _schemas(schemas: Json) -> Iterator[str]:
    yield "# Schemas"
    yield "Every body, and every member of one. A member that is *optional* may be left out."
    for name, schema in sorted(schemas.items()):
        yield f"## {name} {{ #{name.lower()} }}"
        yield schema.get("description", "")
        either = schema.get("oneOf") or schema.get("anyOf")
        if either:
            yield "One of " + ", ".join(kind(each) for each in either) + "."
        elif "properties" not in schema:
            yield kind(schema)
        needed = set(schema.get("required", ()))
        yield _table(
            ("member", "takes", ""),
            (
                (f"`{member}`{'' if member in needed else ' *optional*'}", kind(about), about.get("description", ""))
                for member, about in schema.get("properties", {}).items()
            ),
        )
        for example in schema.get("examples", ()):
            yield _code(example)


def kind(schema: Json) -> str:
    """What a schema takes, in a few words."""
    if "$ref" in schema:
        return f"[{_name(schema)}]({SCHEMAS}#{_name(schema).lower()})"
    if either := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(kind(each) for each in either)
    if "allOf" in schema:
        return " and ".join(kind(each) for each in schema["allOf"])
    if "enum" in schema or "const" in schema:
        values = schema.get("enum") or [schema["const"]]
        said = " or ".join(f"`{json.dumps(value)}`" for value in values)
    elif schema.get("type") == "array":
        said = f"list of {kind(schema.get('items', {}))}"
    else:
        kinds = schema.get("type", "anything")
        said = schema.get("format") or (kinds if isinstance(kinds, str) else " or ".join(kinds))
    return ", ".join([said, *_limits(schema)])


_BOUNDS = (
    ("minimum", "≥ {}"),
    ("exclusiveMinimum", "> {}"),
    ("maximum", "≤ {}"),
    ("exclusiveMaximum", "< {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minItems", "at least {} of them"),
    ("maxItems", "at most {} of them"),
    ("pattern", "`{}`"),
)


def _limits(schema: Json) -> Iterator[str]:
    for name, words in _BOUNDS:
        if name in schema:
            yield words.format(schema[name])
    if "default" in schema:
        yield f"by default `{json.dumps(schema['default'])}`"


def _name(schema: Json) -> str:
    found: str = schema["$ref"].rpartition("/")[2]
    return found


def _table(heads: tuple[str, ...], rows: Any) -> str:
    lines = ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads), *lines]) if lines else ""


def _cell(text: str) -> str:
    """One line, with the marks between cells escaped."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|")
