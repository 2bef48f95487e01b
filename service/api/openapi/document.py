"""The OpenAPI document, generated from the routes, with the parts that FastAPI cannot know.

`python -m tools.openapi` prints it.
"""

import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from service.api.openapi import descriptions
from service.http import problems
from service.http.route_table import ENTRIES, REPORTS
from service.schemas.base import EXAMPLE_ULID, Problem, Wire
from service.schemas.datasets import RecordRows
from service.schemas.results import Points
from service.schemas.rounds import Receipt, Report, ReportColumns

OPENAPI_VERSION = "3.1.0"

DESCRIPTION = """\
Private clustering as a service. Devices send perturbed reports, or a client uploads records. Analysts receive
clusters. A ledger records every use of the privacy budget.

- Send a key with every request: `Authorization: Bearer sfk_...`. A key can access the data of its tenant only. Other
  objects answer `not_found`.
- Errors are problem documents (RFC 9457) with a machine-readable `code`.
- `epsilon` is a decimal number with at most nine decimals. The ledger stores it as an integer, in nano-epsilon.
- A later version may add members to responses. Ignore members that you do not know. Requests with unknown members are
  refused.
- Lists have pages: `?limit=` and `?cursor=`. `next_cursor` is null on the last page.
- A POST request with an `Idempotency-Key` takes effect once within a day.
- An optional member of a request may be absent, but not null.
- A request body may be gzip: `Content-Encoding: gzip`. The limits apply to the unpacked body.
"""

TAGS = {
    "datasets": "Features with public bounds, the trust model and the privacy budget of a population.",
    "ledger": "Grants, reservations and charges of the privacy budget.",
    "sources": "Costs of all datasets over the same people.",
    "records": "Records of central datasets.",
    "rounds": "Collections of reports by one specification.",
    "reports": "Perturbed values of devices.",
    "forecasts": "Expected cost and accuracy of an algorithm.",
    "jobs": "Clustering jobs.",
    "series": "Jobs that are repeated in windows, with a budget for each cycle.",
    "results": "Released models, labels and pictures.",
    "keys": "Bearer keys and their scopes.",
    "limits": "Limits of a tenant.",
    "webhooks": "Delivery of events to a URL.",
    "audit": "Acts of administration.",
    "health": "Liveness and readiness of the gateway.",
}

SECURITY: list[dict[str, list[str]]] = [{"key": []}]
ORIGIN = {
    "name": "Origin",
    "in": "header",
    "required": False,
    "description": "Origin of a web page, sent by browsers. The response to an allowed origin has CORS headers.",
    "schema": {"type": "string"},
}


def document(app: FastAPI, mount: str = "") -> dict[str, Any]:
    """Return the document of the routes of a gateway and of `service.ingestion.report_endpoint`.

    Parameters
    ----------
    app : FastAPI
    mount : str
        Path below which clients see the gateway.
    """
    generated = get_openapi(
        title=app.title,
        version=app.version,
        openapi_version=OPENAPI_VERSION,
        description=DESCRIPTION,
        routes=app.routes,
        tags=[{"name": name, "description": text} for name, text in TAGS.items()],
        servers=[{"url": mount or "/", "description": "The gateway that serves this document."}],
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        separate_input_output_schemas=False,
    )
    for methods in generated["paths"].values():
        for operation in methods.values():
            _mend_responses(operation)
            operation.setdefault("security", [])  # the health of the gateway is public
    generated["paths"][REPORTS.template] = {"post": _send_reports()}
    for entry in ENTRIES:
        if entry.cors:
            generated["paths"][entry.template][entry.cors.lower()]["parameters"].append(ORIGIN)
    generated["security"] = SECURITY  # the default: every operation declares its own
    schemas = generated["components"]["schemas"]
    schemas |= _schemas(Points, Problem, Receipt, RecordRows, Report, ReportColumns)
    schemas["ReportUpload"] = {
        "description": "One report, or columns of many.",
        "anyOf": [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in (Report, ReportColumns)],
    }
    for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's own schemas; the service has problems instead
        schemas.pop(unused, None)
    tidied: dict[str, Any] = _tidy(generated)
    _open_responses(tidied)
    descriptions.add_descriptions(tidied)
    _add_links(tidied)
    return tidied


def canonical(generated: dict[str, Any]) -> str:
    """Serialise the document. Equal documents give equal text."""
    return json.dumps(generated, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _schemas(*kinds: type[Wire]) -> dict[str, Any]:
    template = "#/components/schemas/{model}"
    _, generated = models_json_schema([(kind, "validation") for kind in kinds], ref_template=template)
    schemas: dict[str, Any] = generated["$defs"]
    return schemas


def _mend_responses(operation: dict[str, Any]) -> None:
    """Remove FastAPI's own 422, name each status and document the `Location` header."""
    responses = operation["responses"]
    if "application/json" in responses.get("422", {}).get("content", {}):
        del responses["422"]
    for status, response in responses.items():
        if response["description"] == "Successful Response":
            response["description"] = HTTPStatus(int(status)).phrase
        if status in ("201", "202") and operation["operationId"] != "createGrant":
            response["headers"] = {"Location": {"description": "Path of the new object.", "schema": {"type": "string"}}}


def _tidy(value: Any) -> Any:
    """Remove what code generators cannot handle: generated titles, null defaults and float bounds of integers."""
    if isinstance(value, list):
        return [_tidy(item) for item in value]
    if not isinstance(value, dict):
        return value
    is_schema = not value.keys().isdisjoint(("type", "$ref", "anyOf", "oneOf", "const"))
    is_integer = value.get("type") == "integer"
    tidied = {}
    for name, item in value.items():
        if is_schema and ((name == "title" and isinstance(item, str)) or (name == "default" and item is None)):
            continue
        if name in ("example", "examples"):
            tidied[name] = item
            continue
        tidied[name] = int(item) if is_integer and name in ("minimum", "maximum") else _tidy(item)
    return tidied


def _open_responses(document: dict[str, Any]) -> None:
    """Let schemas of responses alone have other members, so that strict clients accept those of a later version."""
    schemas = document["components"]["schemas"]
    bodies = [
        operation["requestBody"]
        for methods in document["paths"].values()
        for operation in methods.values()
        if "requestBody" in operation
    ]
    sent: set[str] = set()
    while names := {name for part in bodies for name in _references(part)} - sent:
        sent |= names
        bodies = [schemas[name] for name in names]
    for name in schemas.keys() - sent:
        if schemas[name].get("additionalProperties") is False:
            del schemas[name]["additionalProperties"]


def _references(part: Any) -> Iterator[str]:
    """Yield the names of the schemas that a part of the document refers to."""
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"].rsplit("/", 1)[1]
        part = list(part.values())
    if isinstance(part, list):
        for each in part:
            yield from _references(each)


def _send_reports() -> dict[str, Any]:
    value = "BQ=="
    one = {"report_id": "5f0c9d2e7a41b8c35f0c9d2e7a41b8c3", "slot": 0, "value": value}
    columns = {"report_ids": [one["report_id"]], "slots": [0], "values": [value]}
    binary = {"schema": {"type": "string", "format": "binary", "minLength": 1}}
    receipt = {"schema": {"$ref": "#/components/schemas/Receipt"}}
    answers: dict[str, Any] = {
        "202": {"description": "The reports are stored.", "content": {"application/json": receipt}},
    }
    refusals = problems.problem_responses(
        problems.BadRequest,
        problems.Unauthenticated,
        problems.Forbidden,
        problems.NotFound,
        problems.RoundClosed,
        problems.PayloadTooLarge,
        problems.UnsupportedMediaType,
        problems.ValidationFailed,
        problems.ReportMalformed,
    )
    return {
        "operationId": "sendReports",
        "summary": "Send reports",
        "description": (
            "One report, or many: all are stored or none, and the answer comes after the commit. A repeated "
            "`report_id` counts once, so a request without an answer can be sent again as it was.\n\n"
            "- `application/json`: one report, or columns of many.\n"
            "- `application/octet-stream`: packed reports, one after the other: report_id (16 bytes), slot (uint32, "
            "little-endian), value (the mechanism's fixed width).\n"
            "- `application/vnd.apache.arrow.stream` or `application/vnd.apache.arrow.file`: columns `report_id` "
            "fixed_size_binary[16], `slot` uint32, `value` fixed_size_binary[width], uncompressed.\n\n"
            "Needs one of the scopes `device`, `datasets`."
        ),
        "tags": ["reports"],
        "security": SECURITY,
        "parameters": [
            {
                "name": "round_id",
                "in": "path",
                "required": True,
                "description": "Id of the round.",
                "schema": {"type": "string", "pattern": "^rnd_[0-9a-hjkmnp-tv-z]{26}$"},
                "examples": {"round": {"value": f"rnd_{EXAMPLE_ULID}"}},
            }
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {"$ref": "#/components/schemas/ReportUpload"},
                    "examples": {"one": {"value": one}, "columns": {"value": columns}},
                },
                "application/octet-stream": binary,
                "application/vnd.apache.arrow.stream": binary,
                "application/vnd.apache.arrow.file": binary,
            },
        },
        "responses": answers | {str(status): answer for status, answer in refusals.items()},
    }


# ---- links ----


def _add_links(document: dict[str, Any]) -> None:
    """Add to every response with an id the operations that take this id in their path.

    The `id` of a response and a path parameter belong together if they have the same pattern, so that a new route is
    linked without further code.
    """
    takers = list(_takers(document))
    for methods in document["paths"].values():
        for operation in methods.values():
            for status, response in operation["responses"].items():
                if status.startswith("2") and (links := _links(document, response, takers)):
                    response["links"] = links


def _takers(document: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Return operation, name and pattern of each path parameter."""
    for methods in document["paths"].values():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path" and "pattern" in parameter["schema"]:
                    yield operation["operationId"], parameter["name"], parameter["schema"]["pattern"]


def _links(document: dict[str, Any], response: dict[str, Any], takers: list[tuple[str, str, str]]) -> dict[str, Any]:
    schema = _members(document, response.get("content", {}).get("application/json", {}).get("schema", {}))
    if "items" in schema:
        where, generated = "#/items/0/id", _members(document, schema["items"].get("items", {}))
    elif "Location" in response.get("headers", {}):
        where, generated = "#/id", schema
    else:
        return {}
    pattern = generated.get("id", {}).get("pattern")
    return {
        operation_id: {
            "operationId": operation_id,
            "parameters": {name: f"$response.body{where}"},
            "description": f"The `id` of this response is the `{name}` of that operation.",
        }
        for operation_id, name, taken in sorted(takers)
        if taken == pattern
    }


def _members(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    members: dict[str, Any] = schema.get("properties", {})
    return members
