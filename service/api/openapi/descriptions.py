"""Default descriptions and examples of members in the OpenAPI document.

A member with the same meaning in every schema is described once, here. A schema without an example gets one that is
composed of the examples of its members. Tests validate the examples against their schemas.
"""

from typing import Any

from service.schemas.base import EXAMPLE_ULID

_WHEN = "2026-03-01T09:30:00.000000Z"
_NOTHING = object()

# name: (description, example if the schema has none)
MEMBERS: dict[str, tuple[str, Any]] = {
    "accepted": ("Number of reports that were stored.", 1),
    "algorithm": ("Algorithm with its parameters.", _NOTHING),
    "at": ("Time of the entry.", _WHEN),
    "closed_at": ("Time at which the round closed; null while it is open.", None),
    "closes_at": ("Time at which the round closes at the latest.", "2026-03-08T09:30:00.000000Z"),
    "cluster": ("Index of the cluster, from 0.", 0),
    "created_at": ("Time of creation.", _WHEN),
    "dataset_id": ("Dataset of the object.", f"ds_{EXAMPLE_ULID}"),
    "delta": ("Delta; 0 for a pure guarantee.", 0.0),
    "delta_atto": ("Delta as an exact integer, in units of 1e-18.", 0),
    "delta_granted": ("Granted delta.", 0.0),
    "delta_charged": ("Charged delta.", 0.0),
    "delta_remaining": ("Remaining delta.", 0.0),
    "delta_reserved": ("Delta reserved by unfinished jobs.", 0.0),
    "description": ("Free text.", "the staging service"),
    "distance": ("Distance measure.", _NOTHING),
    "participation": ("Participation draws that answer the round.", _NOTHING),
    "enabled": ("Whether deliveries are sent.", True),
    "encoding": ("Encoding: how a point becomes a symbol.", _NOTHING),
    "epsilon": ("Epsilon.", 1.0),
    "epsilon_nano": ("Epsilon as an exact integer, in units of 1e-9.", 1_000_000_000),
    "error": ("Reason of the failure; null without a failure.", None),
    "event_types": ("Event types that are delivered.", _NOTHING),
    "expected_records": ("Number of records that the forecast assumes.", 100_000),
    "expected_reports": ("Number of reports that the forecast assumes.", 100_000),
    "expires_at": ("Time of expiry; null if it does not expire.", None),
    "features": ("Features of a record, in order.", _NOTHING),
    "finished_at": ("Time at which the job ended; null before.", None),
    "granted": ("Granted epsilon.", 8.0),
    "granted_delta_atto": ("Granted delta as an exact integer, in units of 1e-18.", 0),
    "granted_nano": ("Granted epsilon as an exact integer, in units of 1e-9.", 8_000_000_000),
    "hash": (
        "SHA-256 of this entry, which contains the hash of the previous one, in hexadecimal.",
        "9f86d081884c7d659a2feaa0c55ad015" * 2,
    ),
    "id": ("Id of the object.", _NOTHING),
    "index": ("Index of the round in its collection, from 0.", 0),
    "insufficient": ("Why this number of reports is insufficient; null if it is sufficient.", None),
    "items": ("Objects on this page.", _NOTHING),
    "job_id": ("Job of the object.", f"job_{EXAMPLE_ULID}"),
    "keep_reports": ("Whether reports are kept after their tally.", False),
    "kind": ("Kind of the entry.", _NOTHING),
    "labels": ("Index of the cluster of each point or cell, from 0.", [0, 1]),
    "ledger_hash": ("Hash of the last ledger entry.", "9f86d081884c7d659a2feaa0c55ad015" * 2),
    "max_records_per_user": ("Maximum number of records of one user that a job uses.", 1),
    "mechanism": ("Mechanism: how a symbol is perturbed.", _NOTHING),
    "min_reports": ("Minimal number of reports of a round; a round with fewer is not used.", 100),
    "model": ("Cluster model.", _NOTHING),
    "n_clusters": ("Number of clusters.", 2),
    "n_features": ("Number of features.", 2),
    "n_records": ("Number of records.", 2),
    "n_reports": ("Number of distinct reports in the tally.", 100_000),
    "n_uploads": ("Number of uploads.", 1),
    "name": ("Display name.", "commuters"),
    "open_round_id": ("Id of the open round; null if none is open.", None),
    "opened_at": ("Time at which the round opened.", _WHEN),
    "charged_delta_atto": ("Charged delta as an exact integer, in units of 1e-18.", 0),
    "charged_nano": ("Charged epsilon as an exact integer, in units of 1e-9.", 0),
    "progress": ("Progress of the collection.", _NOTHING),
    "remaining_delta_atto": ("Remaining delta as an exact integer, in units of 1e-18.", 0),
    "remaining_nano": ("Remaining epsilon as an exact integer, in units of 1e-9.", 8_000_000_000),
    "report_ids": ("Id of each report: 16 random bytes from the device, in hexadecimal.", ["5f0c9d2e7a41b8c3" * 2]),
    "reserved_delta_atto": ("Reserved delta as an exact integer, in units of 1e-18.", 0),
    "reserved_nano": ("Reserved epsilon as an exact integer, in units of 1e-9.", 0),
    "revoked_at": ("Time of revocation; null if it was not revoked.", None),
    "round_id": ("Round of the object.", f"rnd_{EXAMPLE_ULID}"),
    "round_ids": ("Ids of the rounds, oldest first.", [f"rnd_{EXAMPLE_ULID}"]),
    "rounds": ("Rounds, oldest first.", _NOTHING),
    "rounds_opened": ("Number of rounds that the job has opened.", 1),
    "scopes": ("Scopes of the key.", ["device"]),
    "slots": ("Slot of each report.", [0]),
    "software_version": ("Version of the service that computed the result.", "0.1.0"),
    "spec": ("Specification of the round.", _NOTHING),
    "started_at": ("Time at which a worker first claimed the job; null before.", None),
    "state": ("State of the object.", _NOTHING),
    "tallied_at": ("Time of the tally; null before.", None),
    "target_reports": ("Number of reports at which the round closes.", 100_000),
    "trust": (
        "Trust model: `local` (devices perturb their records) or `central` (the service stores records).",
        _NOTHING,
    ),
    "upper": ("Upper bound; null if there is none.", None),
    "url": ("Address of the receiver.", "https://example.org/hooks"),
    "values": ("Value of each report, base64.", ["BQ=="]),
    "warnings": ("Limitations, as sentences.", []),
    "webhook_id": ("Webhook of the delivery.", f"whk_{EXAMPLE_ULID}"),
    # these members have a description of their own; only the examples are used
    "code": ("Machine-readable code.", "too_few_reports"),
    "hi": ("End of the interval, exclusive.", "18446744073709551616"),
    "lo": ("Start of the interval, inclusive.", "0"),
    "ledger_seq": ("Sequence number of the last ledger entry.", 1),
    "message": ("Description of the error.", "too few reports"),
    "next_cursor": ("Cursor of the next page; null on the last page.", None),
    "pointer": ("JSON Pointer to the member.", "/epsilon"),
    "report_id": ("Id of the report, generated by the device.", "5f0c9d2e7a41b8c3" * 2),
    "request_id": ("Id of the request.", "5f0c9d2e7a41b8c3"),
    "status": ("Status.", _NOTHING),
    "value": ("Value, base64.", "BQ=="),
}

Json = dict[str, Any]


def add_descriptions(document: Json) -> None:
    """Add missing descriptions of members and missing examples of schemas and responses."""
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        if not schema:
            schema["description"] = "Any value of JSON."
        for name, member in schema.get("properties", {}).items():
            if "const" not in member and name in MEMBERS:
                member.setdefault("description", MEMBERS[name][0])
    for schema in schemas.values():
        if "properties" in schema and "examples" not in schema:
            schema["examples"] = [_example(schemas, schema, "")]
    for methods in document["paths"].values():
        for operation in methods.values():
            for response in operation["responses"].values():
                content = response.get("content", {}).get("application/json", {})
                schema = _resolve(schemas, content.get("schema", {}))
                branches = schema.get("anyOf") or schema.get("oneOf")
                if branches:
                    content["examples"] = {
                        branch["$ref"].rpartition("/")[2]: {"value": _example(schemas, branch, "")}
                        for branch in branches
                    }


def _resolve(schemas: Json, schema: Json) -> Json:
    while "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    return schema


def _example(schemas: Json, schema: Json, name: str) -> Any:
    """Return a valid example: that of the schema, that of the member, or one composed of its parts."""
    is_reference, schema = "$ref" in schema, _resolve(schemas, schema)
    if "const" in schema:
        return schema["const"]
    if schema.get("examples"):
        return schema["examples"][0]
    if (
        not is_reference
        and (default := MEMBERS.get(name, ("", _NOTHING))[1]) is not _NOTHING
        and _allows(schema, default)
    ):
        return default
    if "enum" in schema:
        return schema["enum"][0]
    for branch in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        return _example(schemas, branch, name)
    return _example_of_type(schemas, schema, name)


def _allows(schema: Json, value: Any) -> bool:
    """Return whether the type and the enum of a schema allow a value. Different schemas share member names."""
    kinds = {branch.get("type") for branch in (schema, *schema.get("anyOf", ()))}
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", type(None): "null"}
    return names[type(value)] in kinds and value in schema.get("enum", [value])


def _example_of_type(schemas: Json, schema: Json, name: str) -> Any:
    kind = schema.get("type")
    if kind == "object":
        required = schema.get("required", ())
        return {one: _example(schemas, schema["properties"][one], one) for one in required}
    if kind == "array":
        return [_example(schemas, schema["items"], name)] * max(1, schema.get("minItems", 1))
    low = schema.get("minimum", 0)
    plain: Json = {"string": "text", "integer": low, "number": float(low), "boolean": False}
    return _WHEN if schema.get("format") == "date-time" else plain.get(kind or "")
