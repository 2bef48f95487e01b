"""What Schemathesis may find in the gateway, each with its reason; loaded by it as hooks, and by nothing else.

Every check is on. A failure is dropped where one of these says why it is none; a new operation has no allowance. The
ids of the document's examples are put in place of by those of things that are there (`SFUMATO_TEST_THINGS`), so that
examples reach what they speak of.
"""

import itertools
import json
import os
import re
from typing import Any

import schemathesis
from schemathesis.core.failures import AcceptedNegativeData, Failure
from schemathesis.core.transport import Response
from schemathesis.generation.case import Case
from schemathesis.hooks import HookContext
from schemathesis.openapi.checks import EnsureResourceAvailability, RejectedPositiveData, UseAfterFree

from tests.contract.schema import misfits

THINGS: dict[str, Any] = json.loads(os.environ["SFUMATO_TEST_THINGS"])  # own_key, central, example, by_prefix

# Operations whose schema cannot say all they ask for, and what it is. They refuse with these codes, and no other.
MORE_THAN_A_SCHEMA_SAYS = {
    "createDataset": "epsilons with nine decimals at most, bounds in their order, names that differ, delta by trust",
    "updateDataset": "a name of white space",
    "createGrant": "delta by the dataset's trust; a grant of something",
    "createRound": "an encoding, a mechanism and a draw that fit together and the dataset",
    "createForecast": "exactly one of several members; an algorithm that fits the dataset and its own parameters",
    "createJob": "an algorithm that fits the dataset and its own parameters, with reports enough",
    "createKey": "a time that is to come",
    "sendReports": "a value of the round's own width and range",
    "uploadRecords": "columns that are the dataset's, values within them, files that are of their format",
    "assignPoints": "as many coordinates as the result has features",
    "rotateKey": "a time that is to come",
    "createWebhook": "an address that is public",
    "updateWebhook": "an address that is public",
}
REFUSALS = {"validation_failed", "report_malformed", "insufficient_reports"}
OF_THE_STATE = {"idempotency_key_reused", "precondition_failed"}  # headers of the right form, about something else
OUTLIVE_A_DATASET = {"getBudget", "listLedgerEntries"}  # what was spent stays to be shown when the data is gone
ENDING = re.compile("delete(?!Records)|revoke|close|cancel|rotate")  # their examples stay about nothing

_turn = itertools.count()
_may_be_gone: set[str] = set()  # ids in answers to a key that was used before, and ids that were deleted


@schemathesis.hook
def filter_case(context: HookContext, case: Case[Any]) -> bool:
    """The campaign's own key is not ended or changed: nothing after that would be tested."""
    return case.method == "GET" or THINGS["own_key"] not in (case.path_parameters or {}).values()


@schemathesis.hook
def before_call(context: HookContext, case: Case[Any], kwargs: dict[str, Any]) -> None:
    """Put ids of things that are there in the place of the examples' ids."""
    if ENDING.match(_operation_id(case)):
        return
    turn = next(_turn)
    there = THINGS["by_prefix"] | ({"ds": [THINGS["central"]]} if "Records" in _operation_id(case) else {})
    for part in ("path_parameters", "query", "body"):
        value = getattr(case, part)
        if isinstance(value, dict) and THINGS["example"] in json.dumps(value, default=str):
            setattr(case, part, _with_things(value, there, turn))


def _with_things(value: Any, there: dict[str, list[str]], turn: int) -> Any:
    if isinstance(value, dict):
        return {name: _with_things(item, there, turn) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_things(item, there, turn) for item in value]
    if isinstance(value, str) and value.endswith(f"_{THINGS['example']}"):
        ids = there.get(value.partition("_")[0])
        return ids[turn % len(ids)] if ids else value
    return value


@schemathesis.hook
def after_call(context: HookContext, case: Case[Any], response: Response) -> None:
    """Note what was made earlier than it was answered, and what is deleted: by whatever path a case came to it."""
    if "idempotent-replayed" in response.headers:
        _may_be_gone.add(str(response.json().get("id")))
    if case.method == "DELETE" and response.status_code == 204 and _operation_id(case) != "deleteRecords":
        _may_be_gone.update(str(value) for value in (case.path_parameters or {}).values())


@schemathesis.hook
def filter_failure(context: HookContext, failure: Failure, case: Case[Any], response: Response) -> bool:
    """Whether a failure is one."""
    if isinstance(failure, RejectedPositiveData):
        return not _is_refused_with_reason(case, response)
    if isinstance(failure, EnsureResourceAvailability):
        return _may_be_gone.isdisjoint((case.path_parameters or {}).values())
    if isinstance(failure, UseAfterFree):
        return _operation_id(case) not in OUTLIVE_A_DATASET
    if isinstance(failure, AcceptedNegativeData):
        return not _is_null_for_left_out(case)
    if "text/event-stream" in response.headers.get("content-type", [""])[0]:
        return not _are_jobs(
            case, response
        )  # OpenAPI 3.1 knows a stream as a string; what its events hold is read here
    return True


def _are_jobs(case: Case[Any], response: Response) -> bool:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    document: dict[str, Any] = case.operation.schema.raw_schema
    schema = {"$ref": "#/components/schemas/Job"}
    return bool(lines) and not any(list(misfits(document, schema, json.loads(line))) for line in lines)


def _operation_id(case: Case[Any]) -> str:
    return str(case.operation.definition.raw["operationId"])


def _is_refused_with_reason(case: Case[Any], response: Response) -> bool:
    told = response.json()
    if told.get("code") in OF_THE_STATE:
        return True
    if told.get("code") not in REFUSALS:
        return False
    errors = told.get("errors", ())
    if [error.get("parameter") for error in errors] == ["cursor"]:
        return True  # a cursor is opaque: that it has the right form does not make it one
    if errors and all(error.get("message") == "Input should be a valid integer" for error in errors):
        return True  # 7.0 is an integer to JSON Schema, and none here
    return _operation_id(case) in MORE_THAN_A_SCHEMA_SAYS


def _is_null_for_left_out(case: Case[Any]) -> bool:
    """Whether only nulls in place of optional members are wrong: the document's description takes them as left out."""
    schema = case.operation.definition.raw.get("requestBody", {}).get("content", {}).get("application/json")
    if schema is None or not isinstance(case.body, dict):
        return False
    document: dict[str, Any] = case.operation.schema.raw_schema
    wrong = list(misfits(document, schema["schema"], case.body))
    return bool(wrong) and not list(misfits(document, schema["schema"], _without_nulls(case.body)))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
