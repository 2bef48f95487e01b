"""The page `/docs`: the OpenAPI document as HTML, without scripts or external resources."""

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}

_METHODS = ("get", "post", "patch", "delete")
_NONE: Mapping[str, str] = {}

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
code, pre { font-family: ui-monospace, monospace; font-size: 13px; }
pre { background: #f5f3ef; padding: .7rem; overflow-x: auto; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccc; }
h3 { margin: 2rem 0 .3rem; } h3 code { background: #e9e4da; padding: .15rem .4rem; font-size: 14px; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; vertical-align: top;
padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #eee; } details { margin: .3rem 0; } a { color: #14507a; }
"""


def page(document: Mapping[str, Any], samples: Mapping[str, str] = _NONE) -> str:
    """Return the whole document as one HTML page, with `samples` as HTML by the id of the operation."""
    info = document["info"]
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>{escape(info['title'])} {escape(info['version'])}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(info['title'])} <small>{escape(info['version'])}</small></h1>",
        _text(info["description"]),
        "<p><a href='openapi.json'>The same as an OpenAPI document</a></p>",
    ]
    for tag in document["tags"]:
        parts += [f"<h2 id='{escape(tag['name'])}'>{escape(tag['name'])}</h2>", _text(tag["description"])]
        parts += _operations(document, tag["name"], samples)
    parts.append("<h2 id='schemas'>schemas</h2>")
    parts += [_schema(name, schema) for name, schema in sorted(document["components"]["schemas"].items())]
    return "".join(parts) + "</body></html>"


def _operations(document: Mapping[str, Any], tag: str, samples: Mapping[str, str]) -> Iterator[str]:
    for path, methods in sorted(document["paths"].items()):
        for method in _METHODS:
            operation = methods.get(method)
            if operation is None or tag not in operation["tags"]:
                continue
            yield f"<h3 id='{escape(operation['operationId'])}'><code>{method.upper()} {escape(path)}</code></h3>"
            yield f"<p><b>{escape(operation['summary'])}.</b></p>" + _text(operation.get("description", ""))
            rows = [
                (
                    f"<code>{escape(p['name'])}</code> ({escape(p['in'])})",
                    f"{_type(p['schema'])} {escape(p.get('description', ''))}",
                )
                for p in operation.get("parameters", ())
            ]
            for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
                rows.append(("body", f"<code>{escape(media_type)}</code> {_type(content.get('schema', {}))}"))
            for status, response in sorted(operation["responses"].items()):
                body: Mapping[str, Any] = next(iter(response.get("content", {}).values()), {})
                kind = "" if int(status) >= 400 else _type(body.get("schema", {}))
                rows.append((escape(status), f"{kind} {_text(response['description'], 'span')}"))
            yield _table(rows) + samples.get(operation["operationId"], "")


def _schema(name: str, schema: Mapping[str, Any]) -> str:
    needed = set(schema.get("required", ()))
    rows = [
        (
            f"<code>{escape(member)}</code>{'' if member in needed else ' <i>optional</i>'}",
            f"{_type(about)} {_text(about.get('description', ''), 'span')}",
        )
        for member, about in schema.get("properties", {}).items()
    ]
    either = schema.get("oneOf") or schema.get("anyOf")
    examples = "".join(
        f"<pre>{escape(json.dumps(example, indent=2, ensure_ascii=False))}</pre>"
        for example in schema.get("examples", ())
        if isinstance(example, dict)
    )
    kinds = f"<p>{' or '.join(_type(kind) for kind in either)}</p>" if either else ""
    heading = f"<h3 id='schema-{escape(name)}'>{escape(name)}</h3>"
    return heading + _text(schema.get("description", "")) + kinds + _table(rows) + examples


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f"<a href='#schema-{name}'>{name}</a>"
    if "anyOf" in schema or "oneOf" in schema:
        return " or ".join(_type(kind) for kind in schema.get("anyOf") or schema["oneOf"])
    if "enum" in schema or "const" in schema:
        values = schema.get("enum") or [schema["const"]]
        return " | ".join(f"<code>{escape(json.dumps(value))}</code>" for value in values)
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    bounds = [f"{sign} {schema[bound]:,}" for bound, sign in (("minimum", "≥"), ("maximum", "≤")) if bound in schema]
    default = f", by default <code>{escape(json.dumps(schema['default']))}</code>" if "default" in schema else ""
    kind = escape(schema.get("format") or schema.get("type", ""))
    return f"<i>{kind}</i> {', '.join(bounds)}{default}"


def _table(rows: list[tuple[str, str]]) -> str:
    if not rows:
        return ""
    return "<table>" + "".join(f"<tr><td>{left}</td><td>{right}</td></tr>" for left, right in rows) + "</table>"


def _text(markdown: str, element: str = "p") -> str:
    """Convert the subset of Markdown that descriptions use: paragraphs, lists and `code`."""
    out = []
    for block in markdown.strip().split("\n\n"):
        pieces = escape(block).split("`")
        line = "".join(f"<code>{piece}</code>" if place % 2 else piece for place, piece in enumerate(pieces))
        if block.startswith("- "):
            items = "</li><li>".join(line[2:].split("\n- "))
            out.append(f"<ul><li>{items}</li></ul>")
        elif line:
            out.append(f"<{element}>{line}</{element}>")
    return "".join(out)
