"""What every member of the document's schemas is called in words, where its own field does not say; and examples.

A member that means the same everywhere is described once, here. An example of a schema without one is put together
from those of its members, so that each answer has one; tests hold them against their schemas.
"""

from typing import Any

from service.schemas import EXAMPLE_ULID

_WHEN = "2026-03-01T09:30:00.000000Z"
_NOTHING = object()

# name: (what it is, an example, where the schema itself has none)
MEMBERS: dict[str, tuple[str, Any]] = {
    "accepted": ("How many reports were stored.", 1),
    "algorithm": ("How clusters are found, and with how much epsilon.", _NOTHING),
    "at": ("When.", _WHEN),
    "closed_at": ("When it stopped taking reports; null, where it still takes them.", None),
    "closes_at": ("When it stops taking reports, at the latest.", "2026-03-08T09:30:00.000000Z"),
    "cluster": ("Number of the cluster, from 0.", 0),
    "created_at": ("When it was made.", _WHEN),
    "dataset_id": ("The dataset it belongs to.", f"ds_{EXAMPLE_ULID}"),
    "delta": ("Its delta; 0 is none.", 0.0),
    "delta_atto": ("The same exactly, in units of 1e-18.", 0),
    "delta_granted": ("Delta that was granted.", 0.0),
    "delta_posted": ("Delta that is spent.", 0.0),
    "delta_remaining": ("Delta that is left.", 0.0),
    "delta_reserved": ("Delta that jobs hold.", 0.0),
    "description": ("For people.", "the staging service"),
    "distance": ("How far is measured.", _NOTHING),
    "draw": ("Which devices are asked: those whose own draw lies within.", _NOTHING),
    "enabled": ("Whether it is in use.", True),
    "encoding": ("How a point becomes a symbol.", _NOTHING),
    "epsilon": ("Its epsilon.", 1.0),
    "epsilon_nano": ("The same exactly, in units of 1e-9.", 1_000_000_000),
    "error": ("Why it failed; null, where it did not.", None),
    "event_types": ("What it is told of.", _NOTHING),
    "expected_records": ("How many records were assumed.", 100_000),
    "expected_reports": ("How many reports were assumed.", 100_000),
    "expires_at": ("When it ends by itself; null, where it does not.", None),
    "features": ("What a record holds, in order.", _NOTHING),
    "finished_at": ("When it was over; null, where it is not.", None),
    "granted": ("Epsilon that was granted.", 8.0),
    "granted_delta_atto": ("The granted delta exactly, in units of 1e-18.", 0),
    "granted_nano": ("The granted epsilon exactly, in units of 1e-9.", 8_000_000_000),
    "hash": ("SHA-256 over it and what came before it, in hexadecimal.", "9f86d081884c7d659a2feaa0c55ad015" * 2),
    "id": ("Its id.", _NOTHING),
    "index": ("Its place among the rounds of its job, from 0.", 0),
    "insufficient": ("Why so few reports would say nothing; null, where they would do.", None),
    "items": ("What is on this page.", _NOTHING),
    "job_id": ("The job it belongs to.", f"job_{EXAMPLE_ULID}"),
    "keep_reports": ("Whether reports outlive their tally.", False),
    "kind": ("Which kind.", _NOTHING),
    "labels": ("The number of each one's cluster, from 0.", [0, 1]),
    "ledger_hash": ("The last entry's hash.", "9f86d081884c7d659a2feaa0c55ad015" * 2),
    "max_records_per_user": ("So many records of a user are used at most.", 1),
    "mechanism": ("How a symbol is perturbed.", _NOTHING),
    "min_reports": ("No round is used with fewer.", 100),
    "model": ("The clusters.", _NOTHING),
    "n_clusters": ("How many clusters.", 2),
    "n_features": ("How many features.", 2),
    "n_records": ("How many records.", 2),
    "n_reports": ("How many reports were counted.", 100_000),
    "n_uploads": ("In how many uploads.", 1),
    "name": ("For people.", "commuters"),
    "open_round_id": ("The round that takes reports now; null, where none does.", None),
    "opened_at": ("When it began to take reports.", _WHEN),
    "out_of_bounds": ("What happens to a record with a value outside of its bounds.", _NOTHING),
    "posted_delta_atto": ("The spent delta exactly, in units of 1e-18.", 0),
    "posted_nano": ("The spent epsilon exactly, in units of 1e-9.", 0),
    "progress": ("How far it is.", _NOTHING),
    "remaining_delta_atto": ("The remaining delta exactly, in units of 1e-18.", 0),
    "remaining_nano": ("The remaining epsilon exactly, in units of 1e-9.", 8_000_000_000),
    "report_ids": ("Each report's id: 16 random bytes of the device's, in hexadecimal.", ["5f0c9d2e7a41b8c3" * 2]),
    "reserved_delta_atto": ("The held delta exactly, in units of 1e-18.", 0),
    "reserved_nano": ("The held epsilon exactly, in units of 1e-9.", 0),
    "revoked_at": ("When it was ended; null, where it was not.", None),
    "round_id": ("The round it belongs to.", f"rnd_{EXAMPLE_ULID}"),
    "round_ids": ("Its rounds, oldest first.", [f"rnd_{EXAMPLE_ULID}"]),
    "rounds": ("The rounds, oldest first.", _NOTHING),
    "rounds_opened": ("How many rounds it has opened.", 1),
    "scopes": ("What it may do.", ["device"]),
    "slots": ("Each report's slot.", [0]),
    "software_version": ("The version that computed it.", "0.1.0"),
    "spec": ("What devices are asked, and how they answer.", _NOTHING),
    "started_at": ("When it was first worked on; null, where it was not.", None),
    "state": ("Where it stands.", _NOTHING),
    "tallied_at": ("When its reports were counted; null, where they were not.", None),
    "target_reports": ("How many reports are wanted.", 100_000),
    "trust": ("Who sees raw values: nobody (`local`), or the service for a curator (`central`).", _NOTHING),
    "upper": ("The upper bound; null, where there is none.", None),
    "url": ("Where it is sent.", "https://example.org/hooks"),
    "values": ("Each report's value, as base64.", ["BQ=="]),
    "warnings": ("What to know of it, for people.", []),
    "webhook_id": ("The webhook it belongs to.", f"whk_{EXAMPLE_ULID}"),
    # examples of members that are described where they are
    "code": ("What programs go by.", "too_few_reports"),
    "hi": ("The end, not within.", "18446744073709551616"),
    "lo": ("The beginning, within.", "0"),
    "ledger_seq": ("The last entry.", 1),
    "message": ("For people.", "too few reports"),
    "next_cursor": ("Where the next page begins; null on the last one.", None),
    "pointer": ("Where.", "/epsilon"),
    "report_id": ("The device's own id of it.", "5f0c9d2e7a41b8c3" * 2),
    "request_id": ("The request.", "5f0c9d2e7a41b8c3"),
    "status": ("How it is.", _NOTHING),
    "value": ("The value, as base64.", "BQ=="),
}

Json = dict[str, Any]


def add(document: Json) -> None:
    """Describe every member that is not, and give an example to every schema and every answer that has none."""
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
                schema = _followed(schemas, content.get("schema", {}))
                branches = schema.get("anyOf") or schema.get("oneOf")
                if branches:
                    content["examples"] = {
                        branch["$ref"].rpartition("/")[2]: {"value": _example(schemas, branch, "")}
                        for branch in branches
                    }


def _followed(schemas: Json, schema: Json) -> Json:
    while "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    return schema


def _example(schemas: Json, schema: Json, name: str) -> Any:
    """A value that fits: the schema's own example, the member's, or one made of its parts."""
    is_reference, schema = "$ref" in schema, _followed(schemas, schema)
    if "const" in schema:
        return schema["const"]
    if schema.get("examples"):
        return schema["examples"][0]
    if not is_reference and (told := MEMBERS.get(name, ("", _NOTHING))[1]) is not _NOTHING and _may_be(schema, told):
        return told
    if "enum" in schema:
        return schema["enum"][0]
    for branch in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        return _example(schemas, branch, name)
    return _of_type(schemas, schema, name)


def _may_be(schema: Json, value: Any) -> bool:
    """Whether a value fits as far as types and lists of values go: names are shared by what differs."""
    kinds = {branch.get("type") for branch in (schema, *schema.get("anyOf", ()))}
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", type(None): "null"}
    return names[type(value)] in kinds and value in schema.get("enum", [value])


def _of_type(schemas: Json, schema: Json, name: str) -> Any:
    kind = schema.get("type")
    if kind == "object":
        required = schema.get("required", ())
        return {one: _example(schemas, schema["properties"][one], one) for one in required}
    if kind == "array":
        return [_example(schemas, schema["items"], name)] * max(1, schema.get("minItems", 1))
    low = schema.get("minimum", 0)
    plain: Json = {"string": "text", "integer": low, "number": float(low), "boolean": False}
    return _WHEN if schema.get("format") == "date-time" else plain.get(kind or "")
