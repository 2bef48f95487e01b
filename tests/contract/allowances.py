"""Hooks for Schemathesis: accepted failures with their reasons, and ids of existing objects.

All checks are enabled. A failure is dropped only for a reason given here, and a new operation has no exception.
The hooks replace the ids in the document's examples by ids of existing objects (`SFUMATO_TEST_OBJECTS`).
"""

import itertools
import json
import os
import re
from typing import Any

import schemathesis
from schemathesis.core.failures import Failure
from schemathesis.core.transport import Response
from schemathesis.generation.case import Case
from schemathesis.hooks import HookContext
from schemathesis.openapi.checks import EnsureResourceAvailability, RejectedPositiveData, UseAfterFree

from tests.contract.schema import misfits

OBJECTS: dict[str, Any] = json.loads(os.environ["SFUMATO_TEST_OBJECTS"])  # own_key, central, example, by_prefix

# The rules between members, and between a request and the state, which a schema cannot express: operations, message of
# the refusal, reason. Any other refusal of a request that fits its schema is a failure.
RULES = (
    ("create\\w+", "may have at most (nine|18) decimals", "binary numbers are no multiples of decimals"),
    (
        "createJob",
        "valid for a dataset with records only|is not the name of a feature",
        "the dataset decides on the features of a job",
    ),
    ("(create|update)Dataset", "Gaussian accounting needs a delta", "the accounting and the delta of a dataset"),
    ("createDataset|createForecast", "lower must be less than upper", "the bounds of a feature are ordered"),
    ("createDataset", "feature names must be unique", "names are compared"),
    ("createDataset", "one latitude and one longitude", "the features of a place belong together"),
    ("create(Forecast|Job|Series)", "do(es)? not take (periodic features|places)", "the algorithm decides on features"),
    ("createRound", "a circle must have", "the cells of an encoding on a circle"),
    ("(create|update)Dataset", "applies to [a-z ]+ datasets only", "the trust model decides on the settings"),
    ("getSource", "name must be left out unless", "a name replaces a label"),
    ("createDataset", "user_feature", "users exist over records, and their column is not a feature"),
    ("createDataset", "an embedding needs|a local dataset has at most", "features of a local dataset"),
    ("createForecast", "with expected_reports, list at most", "features of a local dataset"),
    ("createDataset|createGrant", "delta must be left out", "delta needs the trust model central"),
    ("createDataset|createGrant", "a shuffled (grant|dataset)", "members of a shuffled dataset"),
    (
        "create(Round|Job|Series|SeriesForecast|Revision)",
        "(valid|required) for a shuffled dataset",
        "the dataset decides on a shuffler",
    ),
    ("createGrant", "it may be 0 if another amount is positive", "a grant is not empty"),
    ("createForecast", "does not work on (reports|records)", "the algorithm decides on reports or records"),
    ("createForecast", "(max_records_per_user|target|occupied_share) must be sent with", "members of one trust model"),
    (
        "create(Forecast|Job)",
        "takes \\d+ to|takes at most|keeps every vector|too small (to be|for check)|more than",
        "parameters",
    ),
    ("create(Forecast|Job)", "auto (over records|finds)|at most \\d+ (levels|clusters|cells)", "parameters that fit"),
    (
        "create(Forecast|Job)",
        "mu replaces epsilon|or mu instead of|mu needs|with mu|a pure guarantee",
        "the cost of a job",
    ),
    ("create(Forecast|Job)", "needs the number of clusters", "the parameter refine of an algorithm"),
    (
        "create(Job|Forecast|ProfileForecast)",
        "there is no (feature|attribute)|is named twice",
        "the dataset has the names",
    ),
    ("create(Job|ProfileForecast)", "this dataset has no attributes", "the dataset has the attributes"),
    (
        "createJob",
        "not valid for a profile|the clusters belong to another dataset|is a profile itself",
        "the job described",
    ),
    ("createJob", "profile of \\d+ attributes", "epsilon and the number of attributes fit"),
    (
        "create(Dataset|Round)",
        "an attribute needs|must be unique|form NFC|edges|too near",
        "the categories of an attribute",
    ),
    ("create(Dataset|Round)", "occurs twice: columns and shares need|characters together", "the columns of a dataset"),
    ("create(Dataset|Round)", "needs the use cluster|must describe", "the attributes that form clusters"),
    ("create(Forecast|Job)", "takes no categories|at least one feature beside", "the columns of a job"),
    ("createJob", "valid for a dataset with records only|no columns to choose from", "the dataset decides on columns"),
    ("createForecast", "job_features must be sent with", "the dataset has the columns"),
    ("createJob", "is missing: name all|clusters must be at least", "a job over reports uses all features"),
    (
        "create(Dataset|Round)",
        "attributes of a (local|shuffled) dataset|forms clusters of more|weight has no effect|form clusters of the",
        "the dataset",
    ),
    ("createJob", "target_reports is required without round_ids", "one of two members"),
    ("createJob", "not valid with round_ids", "a job over earlier rounds collects nothing"),
    ("createJob", "not valid for a dataset with records", "the dataset decides on reports or records"),
    ("createJob", "(works|work) (on|over)|insufficient|too few|reports (are|is) ", "the algorithm fits the dataset"),
    ("updateResult", "the name of cluster|one name for each", "the result has the number of clusters"),
    ("createSeries", "needs a local or shuffled dataset|takes 1 to 3 features", "the dataset of a series"),
    ("createSeries", "time zone|calendar|first window|up to 28", "the days of a calendar, and the time of the request"),
    ("createSeries", "at most as many as the series|cost epsilon|costs one person", "the number of cycles and epsilon"),
    ("createSeries", "insufficient|reports|more than \\d+ fine cells|16 series", "the algorithm fits the windows"),
    (
        "createSeriesForecast",
        "exactly one of n_features and dataset_id|max_records_per_user is valid with",
        "members that exclude others",
    ),
    ("createSeriesForecast", "needs a local or shuffled|local|fine cells|epsilon", "the dataset and the grid"),
    (
        "createRevision",
        "has these terms already|fine cells|insufficient|reports|cycles cost epsilon",
        "the series and its windows",
    ),
    ("createRevision", "has (ended|begun)", "the state of a series"),
    ("updateSeries", "has ended", "the state of a series"),
    ("updateSeriesCluster", "the name of a cluster must", "the names of the other clusters, and bytes of UTF-8"),
    ("createKey|rotateKey", "the time must lie in the future", "the time of the request"),
    ("createRound", "grid (must|may) have|must tile|rows of \\w+ must have", "members of an encoding"),
    ("createRound", "not all zero|weights (is not all|are) zero|must have 1 to", "members of a row"),
    ("createRound", "must have \\d+ features|features", "the encoding fits the dataset"),
    (
        "createRound",
        "characters|attributes? of phases|phases take|is in no wave|a shifted grid takes",
        "the characters of waves fit the attributes",
    ),
    ("createRound", "mechanism|symbols|slots|discrete_laplace|lattice|noise", "mechanism, encoding and epsilon fit"),
    (
        "createRound",
        "a profile must have|attributes of a profile|a map must have|starts of a map|clusters times|belongs to its job",
        "members of the encoding of a profile, whose rounds its job opens",
    ),
    ("createProfileForecast", "required for this \\w+ dataset", "the dataset decides on reports or records"),
    ("createRound", "lo and hi of a participation must", "the ends of an interval are ordered"),
    (
        "create(Round|Series|SeriesForecast|Revision)",
        "must have at least one honest report",
        "min_batch and honest_share fit",
    ),
    ("createWebhook", "at most \\d+ webhooks", "the number of webhooks"),
    ("(create|update)Webhook", "the host must be a (public )?name", "the length of all labels; localhost"),
    ("sendReports", "incomplete|cannot send this value|slot is out of range", "the round defines width and range"),
    ("sendReports", "must have the same length", "the lengths of columns"),
    ("sendReports|uploadRecords", "Arrow|stream|NPY|CSV|UTF-8|JSON|array|header row|no reports", "a format of bytes"),
    ("deleteRecords", "send either the user", "one of two parameters"),
    ("deleteRecords", "must not contain control, zero-width or unassigned", "which characters have a meaning"),
    ("uploadRecords", "upload and part must be sent together", "parameters of a part"),
    ("uploadRecords", "column|record \\d+|no records", "the dataset defines the columns and their values"),
    (
        "assignPoints",
        "the last point is incomplete|points of the job's features|Arrow|stream|CSV|UTF-8|header row",
        "a format of bytes",
    ),
    ("assignPoints", "column|record \\d+", "the result defines the columns and their values"),
    ("assignPoints", "must be a finite number", "a JSON number may be above all doubles"),
    (
        "assignPoints",
        "records must (have|be numbers in|be finite numbers in) shape",
        "one coordinate per feature of the result",
    ),
)
STATE_CODES = {"idempotency_key_reused", "precondition_failed"}  # valid headers that do not match the state
OUTLIVES_DATASET = {"getBudget", "listLedgerEntries"}  # charges stay visible after the deletion
ENDS_OBJECT = re.compile("delete(?!Records)|revoke|close|cancel|rotate")  # keep ids without an object in their examples

_turn = itertools.count()
_may_be_gone: set[str] = set()  # deleted ids, and ids in replayed responses


schemathesis.serializer.alias("application/vnd.sfumato.batch", "application/octet-stream")


@schemathesis.hook
def filter_case(context: HookContext, case: Case[Any]) -> bool:
    """Skip cases that would revoke or rotate the key of the test run."""
    return case.method == "GET" or OBJECTS["own_key"] not in (case.path_parameters or {}).values()


@schemathesis.hook
def before_call(context: HookContext, case: Case[Any], kwargs: dict[str, Any]) -> None:
    """Replace ids of examples by ids of existing objects, and keep the datasets of the examples from deletion."""
    if ENDS_OBJECT.match(_operation_id(case)):
        if (case.path_parameters or {}).get("dataset_id") in OBJECTS["by_prefix"]["ds"]:
            case.path_parameters["dataset_id"] = f"ds_{OBJECTS['example']}"
        return
    turn = next(_turn)
    ids_by_prefix = dict(OBJECTS["by_prefix"])
    if "Records" in _operation_id(case):
        ids_by_prefix["ds"] = [OBJECTS["central"]]
    elif "Round" in _operation_id(case):
        ids_by_prefix["ds"] = [each for each in ids_by_prefix["ds"] if each != OBJECTS["central"]]
    for part in ("path_parameters", "query", "body"):
        value = getattr(case, part)
        if isinstance(value, dict) and OBJECTS["example"] in json.dumps(value, default=str):
            setattr(case, part, _with_ids(value, ids_by_prefix, turn))


def _with_ids(value: Any, ids_by_prefix: dict[str, list[str]], turn: int) -> Any:
    if isinstance(value, dict):
        return {name: _with_ids(item, ids_by_prefix, turn) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_ids(item, ids_by_prefix, turn) for item in value]
    if isinstance(value, str) and value.endswith(f"_{OBJECTS['example']}"):
        ids = ids_by_prefix.get(value.partition("_")[0])
        return ids[turn % len(ids)] if ids else value
    return value


@schemathesis.hook
def after_call(context: HookContext, case: Case[Any], response: Response) -> None:
    """Record ids in replayed responses and ids of deleted objects, because these objects may not exist."""
    if "idempotent-replayed" in response.headers:
        _may_be_gone.add(str(response.json().get("id")))
    if case.method == "DELETE" and response.status_code == 204 and _operation_id(case) != "deleteRecords":
        _may_be_gone.update(str(value) for value in (case.path_parameters or {}).values())


@schemathesis.hook
def filter_failure(context: HookContext, failure: Failure, case: Case[Any], response: Response) -> bool:
    """Return whether to report a failure."""
    if isinstance(failure, RejectedPositiveData):
        return not _is_refused_with_reason(case, response)
    if isinstance(failure, EnsureResourceAvailability):
        return _may_be_gone.isdisjoint((case.path_parameters or {}).values())
    if isinstance(failure, UseAfterFree):
        return _operation_id(case) not in OUTLIVES_DATASET
    if "text/event-stream" in response.headers.get("content-type", [""])[0]:
        # OpenAPI 3.1 describes a stream as a string, so the events are checked here.
        return not _are_jobs(case, response)
    return True


def _are_jobs(case: Case[Any], response: Response) -> bool:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    document: dict[str, Any] = case.operation.schema.raw_schema
    schema = {"$ref": "#/components/schemas/Job"}
    return bool(lines) and not any(list(misfits(document, schema, json.loads(line))) for line in lines)


def _operation_id(case: Case[Any]) -> str:
    return str(case.operation.definition.raw["operationId"])


def _is_refused_with_reason(case: Case[Any], response: Response) -> bool:
    problem = response.json()
    if problem.get("code") in STATE_CODES:
        return True
    messages = [error["message"] for error in problem.get("errors", ())] or [problem["detail"]]
    rules = [message for operations, message, _ in RULES if re.fullmatch(operations, _operation_id(case))]
    return all(any(re.search(rule, message) for rule in rules) for message in messages)
