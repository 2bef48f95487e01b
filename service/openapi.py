"""The OpenAPI document: made from the routes, with what the framework cannot know added.

`python -m service.openapi` prints it.
"""

import json
import sys
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from service import links, problems, wording
from service.resources import Receipt, RecordRows, Report, ReportColumns
from service.schemas import EXAMPLE_ULID, Problem, Wire

OPENAPI_VERSION = "3.1.0"

DESCRIPTION = """\
Private clustering as a service. Devices send reports that are blurred before they leave, an analyst gets clusters,
and a ledger shows what every answer may cost a person.

- Send a key with every request: `Authorization: Bearer sfk_...`. A key sees its tenant's data only; what it may not
  see answers `not_found`.
- Errors are problem documents (RFC 9457); programs go by `code`.
- `epsilon` is a decimal number with at most nine decimals; the ledger keeps it as an integer, nano-epsilon.
- Lists come in pages: `?limit=` and `?cursor=`, with `next_cursor` null on the last.
- A POST with an `Idempotency-Key` happens once, however often it is sent within a day.
- A member of a request that may be left out may as well be null.
"""

TAGS = {
    "datasets": "What is asked about, of whom.",
    "ledger": "What was granted, what is held, what is spent.",
    "records": "What a curator uploads.",
    "rounds": "One spec put to the devices.",
    "reports": "Blurred answers.",
    "forecasts": "What clusters would cost, and how good they would be.",
    "jobs": "Requests for clusters.",
    "results": "What jobs released.",
    "keys": "Who may do what.",
    "limits": "What a tenant may have at once.",
    "webhooks": "Who is told what happens.",
    "audit": "Who did which act of administration, when.",
    "health": "Whether the service is there.",
}

REPORTS_PATH = "/v1/rounds/{round_id}/reports"


def document(app: FastAPI) -> dict[str, Any]:
    """The document of a gateway's routes and of `service.ingest`."""
    made = get_openapi(
        title=app.title,
        version=app.version,
        openapi_version=OPENAPI_VERSION,
        description=DESCRIPTION,
        routes=app.routes,
        tags=[{"name": name, "description": text} for name, text in TAGS.items()],
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        separate_input_output_schemas=False,
    )
    for methods in made["paths"].values():
        for operation in methods.values():
            _mend_responses(operation)
    made["paths"][REPORTS_PATH] = {"post": _send_reports()}
    schemas = made["components"]["schemas"]
    schemas |= _schemas(Problem, Receipt, RecordRows, Report, ReportColumns)
    for unused in ("HTTPValidationError", "ValidationError"):  # the framework's own, in place of our problems
        schemas.pop(unused, None)
    tidied: dict[str, Any] = _tidy(made)
    wording.add(tidied)
    links.add(tidied)
    return tidied


def canonical(made: dict[str, Any]) -> str:
    """The document as text: the same for the same document."""
    return json.dumps(made, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _schemas(*kinds: type[Wire]) -> dict[str, Any]:
    template = "#/components/schemas/{model}"
    _, made = models_json_schema([(kind, "validation") for kind in kinds], ref_template=template)
    schemas: dict[str, Any] = made["$defs"]
    return schemas


def _mend_responses(operation: dict[str, Any]) -> None:
    """Take the framework's own 422 away, say each status's name, and where what was made can be found."""
    responses = operation["responses"]
    if "application/json" in responses.get("422", {}).get("content", {}):
        del responses["422"]
    for status, response in responses.items():
        if response["description"] == "Successful Response":
            response["description"] = HTTPStatus(int(status)).phrase
        if status in ("201", "202") and operation["operationId"] != "createGrant":
            response["headers"] = {"Location": {"description": "Its path.", "schema": {"type": "string"}}}


def _tidy(value: Any) -> Any:
    """Drop what code generators stumble over: made-up titles, nulls as defaults, bounds of integers as floats."""
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


def _send_reports() -> dict[str, Any]:
    value = "BQ=="
    one = {"report_id": "5f0c9d2e7a41b8c35f0c9d2e7a41b8c3", "slot": 0, "value": value}
    columns = {"report_ids": [one["report_id"]], "slots": [0], "values": [value]}
    binary = {"schema": {"type": "string", "format": "binary"}}
    receipt = {"schema": {"$ref": "#/components/schemas/Receipt"}}
    answers: dict[str, Any] = {
        "202": {"description": "Stored.", "content": {"application/json": receipt}},
    }
    refusals = problems.documented(
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
            "- `application/vnd.apache.arrow.stream`: columns `report_id` fixed_size_binary[16], `slot` uint32, "
            "`value` fixed_size_binary[width], uncompressed.\n\n"
            "Needs one of the scopes `device`, `datasets`."
        ),
        "tags": ["reports"],
        "security": [{"key": []}],
        "parameters": [
            {
                "name": "round_id",
                "in": "path",
                "required": True,
                "description": "The round.",
                "schema": {"type": "string", "pattern": "^rnd_[0-9a-hjkmnp-tv-z]{26}$"},
                "examples": {"round": {"value": f"rnd_{EXAMPLE_ULID}"}},
            }
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "anyOf": [
                            {"$ref": "#/components/schemas/Report"},
                            {"$ref": "#/components/schemas/ReportColumns"},
                        ]
                    },
                    "examples": {"one": {"value": one}, "columns": {"value": columns}},
                },
                "application/octet-stream": binary,
                "application/vnd.apache.arrow.stream": binary,
            },
        },
        "responses": answers | {str(status): answer for status, answer in refusals.items()},
    }


def main() -> None:
    """Print the document of a gateway as it comes out of the box."""
    from models.db import Database
    from models.settings import Settings
    from service.app import create_app

    defaults = {name: field.get_default() for name, field in Settings.model_fields.items()}
    nowhere = Database("postgresql+psycopg:///")  # nobody connects to it
    app = create_app(Settings.model_construct(**defaults), nowhere)
    sys.stdout.write(canonical(document(app)))


if __name__ == "__main__":
    main()
